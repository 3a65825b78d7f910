"""A store that is continued is, byte for byte, the one that was not interrupted; what is something else is refused."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.quick import quick
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sonde
from sonde.errors import ArgumentError, ObservationWarning, StoreError

GAIN = 2.0


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval()


def data(count: int = 12) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(int(torch.randint(1, 6, (), generator=generator)), 4, generator=generator) for _ in range(count)]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.startswith(".lock")}


def extract(to: Path, batches: Any = None, **changed: Any) -> Any:
    given = {"include": ["0", "2"], "shard": 400, "transform": {"^0": gained}} | changed
    return sonde.extract(given.pop("model", None) or model(), data() if batches is None else batches, to=to, **given)


def gained(rows: Tensor) -> Tensor:
    return rows * GAIN


class Interruption(Exception):  # noqa: N818  # no error
    """Ends the data."""


def until(count: int, batches: list[Any]) -> Iterator[Any]:
    """The first *count* batches, and then an interruption."""
    for number, batch in enumerate(batches):
        if number == count:
            raise Interruption
        yield batch


class Listed(list[Any]):
    """A list that is interrupted, and says of itself what the whole list says."""

    def __init__(self, batches: list[Any], count: int) -> None:
        super().__init__(batches)
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return until(self.count, self[:])


Listed.__qualname__ = "list"


@pytest.mark.parametrize(
    "options",
    quick([{}, {"dtype": "int8"}, {"shard": "1 MB"}, {"shard": 1}], {"dtype": "int8"}, {"shard": 1}),
    ids=["plain", "int8", "one shard", "small shards"],
)
def test_a_store_that_is_continued_is_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    """After an interruption in each batch, also twice."""
    extract(tmp_path / "whole", **options)
    whole = contents(tmp_path / "whole")
    for count in range(12):
        with pytest.raises(Interruption):
            extract(tmp_path / "t", Listed(data(), count), exists="replace", **options)
        for later in range(count, 12, 5):
            with pytest.raises(Interruption):
                extract(tmp_path / "t", Listed(data(), later), **options)
        assert extract(tmp_path / "t", **options).complete
        assert contents(tmp_path / "t") == whole


def test_a_complete_store_is_returned_at_once(tmp_path: Path) -> None:
    """Without a batch being read, or a byte being written."""
    extract(tmp_path / "t")
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "t").iterdir()}
    store = extract(tmp_path / "t", Listed(data(), 0))
    assert store.complete
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "t").iterdir()} == before


def test_a_journal_that_a_kill_at_the_very_end_has_left_is_taken_away(tmp_path: Path) -> None:
    extract(tmp_path / "t")
    whole = contents(tmp_path / "t")
    (tmp_path / "t" / "shards.jsonl").touch()
    assert extract(tmp_path / "t").complete
    assert contents(tmp_path / "t") == whole


@pytest.mark.slow
def test_a_process_that_is_killed_loses_the_open_shard_at_most(tmp_path: Path) -> None:
    """Forty processes are killed at random moments, each continuing the store of the one before, three times over."""
    chance, batches, kills = random.Random(0), data(120), 0
    extract(tmp_path / "whole", batches)
    whole = contents(tmp_path / "whole")

    for attempt in range(3):
        folder = tmp_path / f"t{attempt}"
        for _ in range(40):
            if (child := os.fork()) == 0:
                try:
                    extract(folder, batches)
                finally:
                    os._exit(0)
            time.sleep(chance.random() * 0.12)
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            kills += status != 0
            if (folder / "index.json").exists() and list(folder.glob("*.jsonl")):
                assert len(sonde.open_tensors(folder)["item"][:])
            if status == 0:
                break
        assert extract(folder, batches).complete
        assert contents(folder) == whole
    assert kills > 5


def other_weights() -> nn.Module:
    changed = model()
    with torch.no_grad():
        changed[2].weight[0, 0] += 1e-6
    return changed


def other_gain(rows: Tensor) -> Tensor:
    return rows * 2.5


OTHERS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "weights": (lambda: {"model": other_weights()}, "the weights: was "),
    "training mode": (lambda: {"model": model().train()}, "modules in training mode of the model: was 0, is 4"),
    "structure": (lambda: {"model": nn.Sequential(*model()[:2], nn.Linear(6, 3)).eval()}, "the weights: was "),
    "activation": (lambda: {"model": nn.Sequential(model()[0], nn.ReLU(), model()[2]).eval()}, "code of the model: was "),
    "sites": (lambda: {"include": ["0"], "transform": {"^0": gained}}, r"the sites: was \['0:output', '2:output'\], is"),
    "ports": (lambda: {"ports": ("input", "output")}, "the sites: was"),
    "dtype": (lambda: {"dtype": torch.bfloat16}, "dtype=: was none, is torch.bfloat16"),
    "code": (lambda: {"transform": {"^0": other_gain}}, "transform .*: was gained .*, is other_gain"),
    "transform elsewhere": (lambda: {"transform": {"^2": gained}}, "transform"),
    "positions": (lambda: {"positions": lambda batch: batch > 0}, "positions=: was none"),
    "columns": (lambda: {"columns": {"sum": lambda batch: batch.sum(1)}}, "columns sum=: was none"),
    "shard": (lambda: {"shard": 500}, "shard=: was 400.0, is 500.0"),
    "length": (lambda: {"batches": data(13)}, "batches of the data: was 12, is 13"),
    "kind": (lambda: {"batches": tuple(data())}, "kind of the data: was list, is tuple"),
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("whole", [False, True])
def test_what_is_something_else_is_refused(tmp_path: Path, case: str, whole: bool) -> None:
    """By a sentence that says what differs, and nothing in the store is changed, so that it can be continued."""
    if whole:
        extract(tmp_path / "t")
    else:
        with pytest.raises(Interruption):
            extract(tmp_path / "t", Listed(data(), 8))
    before = contents(tmp_path / "t")
    changed, said = OTHERS[case]
    with pytest.raises(StoreError, match=said):
        extract(tmp_path / "t", **changed())
    assert contents(tmp_path / "t") == before
    assert extract(tmp_path / "t").complete


def test_a_value_that_a_transform_reads_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Interruption):
        extract(tmp_path / "t", Listed(data(), 8))
    monkeypatch.setitem(gained.__globals__, "GAIN", 3.0)
    with pytest.raises(StoreError, match="transform"):
        extract(tmp_path / "t")


def test_other_data_of_the_same_length(tmp_path: Path) -> None:
    """One value that differs, another order, fewer data: each is named, at the first batch that differs."""
    with pytest.raises(Interruption):
        extract(tmp_path / "t", Listed(data(), 10))
    other = data()
    other[3] = other[3].clone()
    other[3][0, 0] += 1e-6
    with pytest.raises(StoreError, match="batch 3 of the data is not the one that is stored"):
        extract(tmp_path / "t", other)
    other = data()
    other[1], other[2] = other[2], other[1]
    with pytest.raises(StoreError, match=r"batch 1 .* and was batch 2: they come in another order"):
        extract(tmp_path / "t", other)
    with pytest.raises(StoreError, match="the data end after 2 batches, and the store holds"):
        extract(tmp_path / "t", Shorter(data()))
    assert extract(tmp_path / "t").complete


class Shorter(list[Any]):
    """A list that says more of itself than it gives."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self[:2])


Shorter.__qualname__ = "list"


def loader(seed: int, *, batch_size: int = 4, interrupted: bool = False) -> DataLoader[Any]:
    items = torch.randn(40, 4, generator=torch.Generator().manual_seed(3))
    made: DataLoader[Any] = DataLoader(
        Stops(items) if interrupted else Items(items),
        batch_size=batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
    )
    return made


class Items(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0]


class Stops(Items):
    """Is interrupted after thirty items."""

    count = 0

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        if self.count > 30:
            raise Interruption
        return super().__getitem__(index)


Stops.__qualname__ = "Items"


def test_a_shuffled_loader(tmp_path: Path) -> None:
    """It is continued under its seed alone."""
    extract(tmp_path / "whole", loader(5))
    with pytest.raises(Interruption):
        extract(tmp_path / "t", loader(5, interrupted=True))
    with pytest.raises(StoreError, match="sampler seed of the data: was 5, is 6"):
        extract(tmp_path / "t", loader(6))
    with pytest.raises(StoreError, match="batch_size of the data: was 4, is 5"):
        extract(tmp_path / "t", loader(5, batch_size=5))
    advanced = loader(5)
    list(advanced)  # the same seed, the order of the next epoch
    with pytest.raises(StoreError, match="batch 0 of the data is not the one"):
        extract(tmp_path / "t", advanced)
    extract(tmp_path / "t", loader(5))
    assert contents(tmp_path / "t") == contents(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["key", "texts"])
def test_ids_continue_data_in_any_order(tmp_path: Path, kind: str) -> None:
    """Each item is stored once, with its id, though every pass has another order and other batches."""
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))

    def batches(seed: int, stop: int) -> Iterator[dict[str, Any]]:
        order = torch.randperm(50, generator=torch.Generator().manual_seed(seed))
        for part in order[:stop].split(3 + seed):
            yield {"input": x[part], "id": part if kind == "key" else [f"text {each}" for each in part.tolist()]}
        if stop < 50:
            raise Interruption

    for seed, stop in ((0, 20), (1, 31), (2, 50)):
        try:
            store = extract(tmp_path / "t", batches(seed, stop), order="id", include=["0"])
        except Interruption:
            assert seed < 2
    ids = torch.as_tensor(store["id"][:])
    assert len(ids.unique()) == len(ids) == 50
    assert torch.equal(torch.as_tensor(store["item"][:]), torch.arange(50))
    if kind == "key":
        with torch.no_grad():
            whole = model()[0](x)[ids] * GAIN  # of another size of batch, which chooses the kernel
            torch.testing.assert_close(torch.as_tensor(store["0:output"][:]), whole)


@pytest.mark.parametrize("stop", [3, 8, 10])
def test_ids_continue_data_in_the_same_order(tmp_path: Path, stop: int) -> None:
    """Also where whole batches, or all, are stored already: the store is, but for its history, the one that was not interrupted."""
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))

    def batches(stop: int) -> Iterator[dict[str, Any]]:
        for number, part in enumerate(torch.arange(50).split(5)):
            if number == stop:
                raise Interruption
            yield {"input": x[part], "id": part}
        if stop == 10:
            raise Interruption

    extract(tmp_path / "whole", batches(99), order="id", shard=100)
    with pytest.raises(Interruption):
        extract(tmp_path / "t", batches(stop), order="id", shard=100)
    assert extract(tmp_path / "t", batches(99), order="id", shard=100).complete
    whole, found = contents(tmp_path / "whole"), contents(tmp_path / "t")
    assert {name: held for name, held in found.items() if "tensors" in name} == {
        name: held for name, held in whole.items() if "tensors" in name
    }


def test_what_to_do_with_a_store_that_is_there(tmp_path: Path) -> None:
    extract(tmp_path / "t")
    whole = contents(tmp_path / "t")
    with pytest.raises(StoreError, match="holds a store already"):
        extract(tmp_path / "t", exists="error")
    assert extract(tmp_path / "t", exists="unique").path == tmp_path / "t-2"
    assert extract(tmp_path / "t", exists="replace", shard=900).complete
    assert contents(tmp_path / "t") != whole
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    for exists in ("resume", "error", "replace"):
        with pytest.raises(StoreError, match="holds something else"):
            extract(tmp_path / "other", exists=exists)
    assert (tmp_path / "other" / "mine.txt").read_text() == "mine"
    with sonde.track(model()) as tracker:
        tracker.save(tmp_path / "kept")
    with pytest.raises(StoreError, match=r"extract\(\) has not written"):
        extract(tmp_path / "kept")


def test_a_store_that_another_writes(tmp_path: Path) -> None:
    """It is refused before anything runs."""

    def nested() -> Iterator[Tensor]:
        yield data()[0]
        with pytest.raises(StoreError, match="being written"):
            extract(tmp_path / "t", Listed(data(), 0))
        yield data()[1]

    assert extract(tmp_path / "t", nested()).complete


def test_most_bytes(tmp_path: Path) -> None:
    """The store ends at a whole shard, and goes on with more."""
    extract(tmp_path / "whole")
    size = len(contents(tmp_path / "whole")["tensors-00001.safetensors"])
    with pytest.warns(ObservationWarning, match="max_bytes is .* is not complete"):
        store = extract(tmp_path / "t", max_bytes=2.5 * size)
    assert not store.complete
    assert len(list((tmp_path / "t").glob("*.safetensors"))) == 2
    assert extract(tmp_path / "t").complete
    assert contents(tmp_path / "t") == contents(tmp_path / "whole")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes from the thread to the caller; whole shards stay, and the same call goes on."""
    import safetensors.torch

    extract(tmp_path / "whole")
    save, left = safetensors.torch.save_file, [2]

    def full(*args: Any, **kwargs: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        save(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(safetensors.torch, "save_file", full)
        with pytest.raises(StoreError, match="No space left on device"):
            extract(tmp_path / "t")
    assert len(list((tmp_path / "t").glob("*.safetensors"))) == 2
    extract(tmp_path / "t")
    assert contents(tmp_path / "t") == contents(tmp_path / "whole")


def test_a_function_that_fails(tmp_path: Path) -> None:
    """Its error is raised as it is, also where the model catches what its modules raise."""

    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.inner(x)
            except Exception:
                return x

    def fails(rows: Tensor) -> Tensor:
        if rows.shape[0] == 3:
            raise ZeroDivisionError
        return rows

    with pytest.raises(ZeroDivisionError) as raised:
        sonde.extract(Catches().eval(), [torch.ones(2, 4), torch.ones(3, 4)], "inner", tmp_path / "t", transform=fails)
    assert "batch 1" in raised.value.__notes__[0]
    with pytest.raises(ArgumentError, match="batch 0: positions='x'"):
        sonde.extract(Catches().eval(), [torch.ones(2, 4)], "inner", tmp_path / "t", positions="x")
