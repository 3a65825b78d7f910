"""Kill processes that extract, at random moments, and count what is wrong in the store; and ask it to go on with something else.

``python -m tests.extraction.kills 200``
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tests.processes import without_own_main
from torch import Tensor, nn
from torch.utils.data import DataLoader

import sonde
from sonde.errors import StoreError

ITEMS, SITES = 240, ("1", "3")

CONTEXT = multiprocessing.get_context("forkserver")  # of a process in which torch has begun no threads
CONTEXT.set_forkserver_preload(["sonde.extraction", "sonde.run", "torch.utils.data", "safetensors.torch"])


@dataclass
class Count:
    """What came out.

    Attributes:
        kills: processes that were killed.
        opened: stores of killed processes that could be read, and were compared item by item.
        items: that were compared.
        wrong: that were not what hooks by hand give.
        refused: by change, how often a store was asked to go on with something else, and refused.
        mixed: the changes that were not refused, or changed a file.
        whole: stores that were completed, byte for byte as without a kill.
    """

    kills: int = 0
    opened: int = 0
    items: int = 0
    wrong: int = 0
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHANGES, 0))
    mixed: list[str] = field(default_factory=list)
    whole: int = 0


def model(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 6)).eval()


class Sequences(torch.utils.data.Dataset[Tensor]):
    """Sequences of different lengths."""

    def __init__(self, seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.held = [
            torch.randint(1, 30, (int(torch.randint(1, 9, (), generator=chance)),), generator=chance) for _ in range(ITEMS)
        ]

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, item: int) -> Tensor:
        return self.held[item]


def padded(sequences: list[Tensor]) -> dict[str, Tensor]:
    ids = nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    return {"input": ids, "mask": ids != 0}


def given(seed: int, **changed: Any) -> dict[str, Any]:
    """Return the arguments of ``extract``, made anew, with those that are *changed*."""
    data, order = changed.pop("data", None) or Sequences(seed), changed.pop("order", seed)
    loader = DataLoader(data, 4, shuffle=True, collate_fn=padded, generator=torch.Generator().manual_seed(order))
    usual = {"model": model(seed), "batches": loader, "include": list(SITES), "positions": "mask", "columns": ("input",)}
    return usual | {"dtype": torch.bfloat16, "shard": 2_000, "progress": False} | changed


def other_weights(seed: int, stored: list[int]) -> dict[str, Any]:
    changed = model(seed)
    with torch.no_grad():
        changed[3].bias[0] += 1e-3
    return given(seed, model=changed)


def other_value(seed: int, stored: list[int]) -> dict[str, Any]:
    data = Sequences(seed)
    item = stored[-1]
    data.held[item] = data.held[item] % 29 + 1
    return given(seed, data=data)


def other_order(seed: int, stored: list[int]) -> dict[str, Any]:
    """As many data, of which the first, which is stored, and another have changed places."""
    data = Sequences(seed)
    one = stored[0]
    other = next(item for item in range(ITEMS) if not torch.equal(data.held[item], data.held[one]))
    data.held[one], data.held[other] = data.held[other], data.held[one]
    return given(seed, data=data)


Change = Callable[[int, list[int]], dict[str, Any]]
"""From the seed and the numbers in the data set of the items that are stored, to the arguments of another extraction."""

CHANGES: dict[str, Change] = {
    "weights": other_weights,
    "a value of the data": other_value,
    "the order of the data": other_order,
    "the seed of the loader": lambda seed, stored: given(seed, order=seed + 1),
    "positions": lambda seed, stored: given(seed, positions="last"),
    "the type": lambda seed, stored: given(seed, dtype=torch.float16),
}


def by_hand(seed: int) -> list[dict[str, Tensor]]:
    """Return the rows of each item, in the order of the loader, by hooks."""
    of, found = given(seed), []
    seen: dict[str, Tensor] = {}
    for name in SITES:
        of["model"].get_submodule(name).register_forward_hook(lambda module, args, output, name=name: seen.update({name: output}))
    with torch.no_grad():
        for batch in of["batches"]:
            of["model"](batch["input"])
            for item, mask in enumerate(batch["mask"]):
                rows = {f"{name}:output": output[item][mask].bfloat16() for name, output in seen.items()}
                found.append({**rows, "input": batch["input"][item][mask]})
    return found


def order_of(seed: int) -> list[int]:
    """Return the numbers in the data set of the items, in the order of the loader."""
    loader = given(seed)["batches"]
    loader.collate_fn = list
    loader.dataset.held = list(range(ITEMS))
    return [item for batch in loader for item in batch]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file() and not file.name.startswith(".lock")}


def tried(kills: int, seed: int, folder: Path) -> Count:
    """Kill so many processes, which go on with one store after the other, and return what came out."""
    count, chance, number = Count(), random.Random(seed), 0
    while count.kills < kills:
        number += 1
        one_store(count, chance, kills, seed + number, folder / str(number))
    return count


def one_store(count: Count, chance: random.Random, kills: int, seed: int, folder: Path) -> None:
    usual = run(seed, folder / "whole", None)
    assert usual is not None
    expected, order = by_hand(seed), order_of(seed)
    store = folder / "store"
    is_killed = True
    while is_killed and count.kills < kills:
        is_killed = run(seed, store, chance.random() * usual) is None
        count.kills += is_killed
        compare(count, store, expected)
        if is_killed:
            go_on_with_others(count, store, seed, order)
    sonde.extract(**given(seed), to=store)
    compare(count, store, expected)
    count.whole += contents(store) == contents(folder / "whole")


def run(seed: int, to: Path, seconds: float | None) -> float | None:
    """Extract in a process of its own, which is killed after so many *seconds*; return how long it took, None if it was killed."""
    begin = time.monotonic()
    with contextlib.nullcontext() if __name__ == "__main__" else without_own_main():
        process = CONTEXT.Process(target=extract, args=(seed, to))
        process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return time.monotonic() - begin if process.exitcode == 0 else None


def extract(seed: int, to: Path) -> None:
    sonde.extract(**given(seed), to=to)


def compare(count: Count, store: Path, expected: list[dict[str, Tensor]]) -> None:
    """Compare each item of what a killed process has left."""
    if not any(store.glob("*.safetensors")):
        return
    try:
        opened = sonde.open_tensors(store)
    except StoreError as error:  # the shard has its name, and its line is not in the journal yet
        if "did not finish" not in str(error):
            raise
        return
    count.opened += 1
    last = opened.item_span
    assert last is not None
    for item in range(last[1] + 1):
        count.items += 1
        rows = opened.item(item)
        count.wrong += any(not torch.equal(rows[name], right) for name, right in expected[item].items())


def go_on_with_others(count: Count, store: Path, seed: int, order: list[int]) -> None:
    """Ask the store to go on with something else, in each way."""
    try:
        opened = sonde.open_tensors(store)
    except StoreError:  # no shard yet: another extraction may begin
        return
    if opened.complete:  # killed as it ended: such a store is returned at once, and data are not read
        return
    last = opened.item_span
    assert last is not None
    before = shards_of(store)
    for name, change in CHANGES.items():
        try:
            sonde.extract(**change(seed, order[: last[1] + 1]), to=store)
        except StoreError:
            count.refused[name] += 1
            if shards_of(store) != before:
                count.mixed.append(f"{name}: refused, and a file changed")
        else:
            count.mixed.append(f"{name}: was not refused")
            return


def shards_of(store: Path) -> dict[str, bytes]:
    """Return the bytes of the shards that the store names."""
    named = {line["shard"] for _, line in sonde.open_tensors(store)._lines}
    return {name: held for name, held in contents(store).items() if name in named}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=None, help="a fresh one by default")
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if asked.seed is None else asked.seed
    for kills in range(0, asked.kills, 20):
        with tempfile.TemporaryDirectory() as folder:
            count = tried(min(20, asked.kills - kills), seed + kills * 1_000, Path(folder))
        sys.stdout.write(f"seed {seed + kills * 1_000}: {count}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
