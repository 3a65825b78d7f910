"""A store of rows is read as one array of each column: across shards and folders, by item, shuffled, and where it is damaged."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

import sonde
from sonde.errors import ArgumentError, ObservationWarning, SiteError, SondeError, StoreError, UnknownSiteError
from sonde.run import RowWriter, write_tensors

LENGTHS = (5, 1, 0, 7, 3, 4)  # rows of the items


def columns_of(items: range, seed: int = 0) -> dict[str, Tensor]:
    """The columns of some items, each row of which says which it is."""
    item = torch.tensor([number for number in items for _ in range(LENGTHS[number % 6])], dtype=torch.int64)
    made = torch.Generator().manual_seed(seed + items.start)
    return {
        "layers.3:output": torch.randn(len(item), 3, generator=made),
        "layers.3:input": torch.randn(len(item), 2, generator=made).to(torch.bfloat16),
        "head:output": torch.randn(len(item), 2, dtype=torch.complex128, generator=made),
        "item": item,
        "row": torch.arange(len(item)) + 1000 * items.start,
    }


def made(folder: Path, shards: int = 4, first: int = 0, about: dict[str, Any] | None = None) -> tuple[Path, dict[str, Tensor]]:
    """A store with two items in each shard, and its columns as they should be."""
    writer, held = RowWriter(folder, about or {}), []
    for number in range(shards):
        items = range(first + 2 * number, first + 2 * number + 2)
        held.append(columns_of(items))
        writer.write(held[-1], items=(items[0], items[-1]), about={})
    writer.close()
    return folder, {name: torch.cat([each[name] for each in held]) for name in held[0]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    return made(tmp_path_factory.mktemp("rows") / "t", 9)


@given(st.data())
def test_every_way_to_ask_gives_what_the_array_gives(whole: tuple[Path, dict[str, Tensor]], data: st.DataObject) -> None:
    """A number, a slice, a list, an array, a mask: as torch has it for the whole, and a copy."""
    store, right = sonde.open_tensors(whole[0]), whole[1]
    name = data.draw(st.sampled_from(sorted(right)))
    rows, expected = store[name], right[name]
    count, number = len(expected), st.integers(-len(expected), len(expected) - 1)
    asked = data.draw(
        st.one_of(number, st.slices(count), st.lists(number), st.lists(st.booleans(), min_size=count, max_size=count))
    )
    if isinstance(asked, slice):
        wanted = expected[torch.arange(count)[range(*asked.indices(count))] if asked.step not in (None, 1) else asked]
    else:
        wanted = expected[asked] if isinstance(asked, int) or asked else expected[:0]
    kind = torch.bool if isinstance(asked, list) and asked and isinstance(asked[0], bool) else torch.int64
    tensor = torch.tensor(asked, dtype=kind) if isinstance(asked, list) else torch.empty(0)
    for form in [asked, tensor.numpy(), tensor] if isinstance(asked, list) else [asked]:
        found = rows[form]
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert torch.equal(found, wanted)
        if found.numel():
            found.zero_()
    assert torch.equal(rows[:], expected)


@pytest.mark.parametrize("most", [None, 1, 3])
def test_random_rows_one_after_the_other(tmp_path: Path, most: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every type and size of a row, of a store whose shards are mapped bit by bit, also where few may be; and in a copy."""
    chance = torch.Generator().manual_seed(0)
    whole = {
        "flag": torch.rand(40, generator=chance) < 0.5,
        "half": torch.randn(40, 3, 2, generator=chance).to(torch.float16),
        "nothing": torch.empty(40, 0),
        "wide": torch.randn(40, 20_000, generator=chance),
        "byte": torch.arange(40, dtype=torch.uint8),
        "pair": torch.randn(40, 5, dtype=torch.complex128, generator=chance),
    }
    writer = RowWriter(tmp_path / "t", {})
    for first, end in ((0, 1), (1, 14), (14, 15), (15, 33), (33, 40)):
        writer.write({name: column[first:end] for name, column in whole.items()}, items=(first, end - 1), about={})
    writer.close()
    if most is not None:
        monkeypatch.setattr("sonde.run.tensors.rows._MOST_MAPPED", most)
    store = sonde.open_tensors(tmp_path / "t")
    for size in (1, 2, 7, 60, 3, 1):
        at = torch.randint(40, (size,), generator=chance)
        copied = pickle.loads(pickle.dumps(store))
        for name, column in whole.items():
            assert torch.equal(store[name][at], column[at])
            assert torch.equal(copied[name][at], column[at])


def test_what_an_array_says_of_itself(whole: tuple[Path, dict[str, Tensor]]) -> None:
    store, right = sonde.open_tensors(whole[0]), whole[1]
    rows = store["layers.3:output"]
    assert (rows.shape, rows.dtype, rows.ndim, len(rows)) == ((len(rows), 3), torch.float32, 2, len(right["row"]))
    assert repr(rows) == f"TensorRows('layers.3:output': {len(rows)}×3 float32 in 9 shards)"
    assert [torch.equal(one, other) for one, other in zip(rows, right["layers.3:output"], strict=True)] == [True] * len(rows)
    assert torch.equal(torch.cat(list(rows.blocks())), right["layers.3:output"])
    assert np.array_equal(np.asarray(rows), right["layers.3:output"].numpy())
    with pytest.raises(ArgumentError, match="NumPy has no bfloat16"):
        store["layers.3:input"].numpy()
    for wrong in (1.5, "a", (1, 2), [[1]], [True]):
        with pytest.raises(ArgumentError, match="chooses no rows"):
            rows[wrong]
    for far in (len(rows), -len(rows) - 1, [0, len(rows)]):
        with pytest.raises(IndexError, match=f"there are {len(rows)}"):
            rows[far]


def test_columns_are_found_as_sites(whole: tuple[Path, dict[str, Tensor]]) -> None:
    """By the name of the column, a site, or a module of which one port was kept."""
    store = sonde.open_tensors(whole[0])
    assert store.columns == tuple(store) == ("layers.3:output", "layers.3:input", "head:output", "item", "row")
    assert store.sites == ("layers.3:output", "layers.3:input", "head:output")
    assert [store[key].name for key in ("head", sonde.Site("head"), "layers.3:input", "item")] == [
        "head:output",
        "head:output",
        "layers.3:input",
        "item",
    ]
    with pytest.raises(SiteError, match=r"2 columns.*layers.3:output, layers.3:input"):
        store["layers.3"]
    with pytest.raises(UnknownSiteError, match=r"'layer.3'.*Nearest: layers.3"):
        store["layer.3"]
    assert repr(store).splitlines()[0].endswith("items 0 to 17 in 9 shards)")


def test_items(whole: tuple[Path, dict[str, Tensor]]) -> None:
    """All rows of one item, in order; one that has none, and one that is not there."""
    store, right = sonde.open_tensors(whole[0]), whole[1]
    for item in (0, 1, 3, 17):
        mine = right["item"] == item
        assert torch.equal(store["layers.3:output"].item(item), right["layers.3:output"][mine])
        assert {name: held.tolist() for name, held in store.item(item).items()} == {
            name: held[mine].tolist() for name, held in right.items()
        }
    for item in (2, 18, -1):
        with pytest.raises(UnknownSiteError, match=f"no item {item}; there are 0 to 17"):
            store.item(item)


def test_several_folders_are_one(tmp_path: Path) -> None:
    """Rows one behind the other; items that two of them have are refused, as are other columns, and records."""
    (one, of_one), (two, of_two) = made(tmp_path / "one", 2), made(tmp_path / "two", 2, first=20)
    store = sonde.open_tensors([one, two])
    assert torch.equal(store["head"][:], torch.cat([of_one["head:output"], of_two["head:output"]]))
    assert len(store.item(21)["item"]) == LENGTHS[21 % 6]
    with pytest.raises(ArgumentError, match=r"item 1 is in each of .*one.*three"):
        sonde.open_tensors([one, made(tmp_path / "three", 1)[0]]).item(1)
    other = RowWriter(tmp_path / "other", {})
    other.write({"head:output": torch.ones(2, 5)}, items=(0, 1), about={})
    other.close()
    with pytest.raises(StoreError, match="has other columns"):
        sonde.open_tensors([one, tmp_path / "other"])
    records = write_tensors(tmp_path / "records", [({}, {"0/a:output": torch.ones(2)})])
    with pytest.raises(StoreError, match="one by one"):
        sonde.open_tensors([one, records])
    with pytest.raises(ArgumentError, match="no folder"):
        sonde.open_tensors([])
    for ask in (lambda: sonde.open_tensors(records).rows, lambda: sonde.open_tensors(records).shuffled(2)):
        with pytest.raises(StoreError, match="holds records"):
            ask()


# Damage


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4])


def change(file: Path) -> None:
    held = bytearray(file.read_bytes())
    held[-2] ^= 1
    file.write_bytes(held)


def change_header(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"bfloat16" if b"bfloat16" in file.read_bytes() else b"BF16", b"FP16", 1))


@pytest.mark.parametrize(
    ("harm", "said"),
    [(Path.unlink, "cannot be read"), (cut, "not whole"), (change, "is damaged"), (change_header, "checksum of its header")],
    ids=["missing", "cut", "changed", "header"],
)
def test_damage_is_named_and_the_rest_is_read(tmp_path: Path, harm: Callable[[Path], None], said: str) -> None:
    folder, right = made(tmp_path / "t", 3)
    harm(folder / "tensors-00002.safetensors")
    store = sonde.open_tensors(folder)
    found: dict[str, str] = {}
    for name in store:
        try:
            assert torch.equal(store[name][:], right[name])
        except StoreError as error:
            found[name] = str(error)
    assert found
    assert all("tensors-00002" in text and said in text for text in found.values())
    assert torch.equal(store["row"][:3], right["row"][:3])
    assert len(store["row"].item(5)) == LENGTHS[5]
    assert [line for line in store.verify() if said in line] == store.verify()
    assert len(store.verify()) == len(found)


def test_the_first_use_is_checked_unless_it_shall_not_be(tmp_path: Path) -> None:
    folder, right = made(tmp_path / "t", 1)
    change(folder / "tensors-00001.safetensors")
    (damaged,) = [name for name in right if f"'{name}'" in sonde.open_tensors(folder).verify()[0]]
    with pytest.raises(StoreError, match="is damaged"):
        sonde.open_tensors(folder)[damaged][0]
    assert not torch.equal(sonde.open_tensors(folder, verify=False)[damaged][:], right[damaged])


def test_a_store_that_is_being_written(tmp_path: Path) -> None:
    """Whole shards are read; a line that is not finished is not there; an opened store stays as it was."""
    writer = RowWriter(tmp_path, {"kind": "test"})
    with pytest.raises(StoreError, match="is empty"):
        sonde.open_tensors(tmp_path)
    writer.write(columns_of(range(2)), items=(0, 1), about={})
    store = sonde.open_tensors(tmp_path)
    assert (store.complete, len(store.rows), store.about["kind"]) == (False, 6, "test")
    assert "not complete" in repr(store)
    writer.write(columns_of(range(2, 4)), items=(2, 3), about={})
    with (tmp_path / "shards.jsonl").open("ab") as file:
        file.write(b'{"checksum":"00000000","shard":"tens')
    assert (len(store.rows), len(sonde.open_tensors(tmp_path).rows)) == (6, 13)


# Loaders


def test_a_data_set_for_a_loader(whole: tuple[Path, dict[str, Tensor]]) -> None:
    """Row by row, and whole batches at once; in workers of other processes as well."""
    rows, right = sonde.open_tensors(whole[0]).rows, whole[1]
    count = len(right["row"])
    assert (len(rows), rows[3]["row"], rows[2:5]["row"].tolist()) == (count, right["row"][3], right["row"][2:5].tolist())
    one_by_one: Any = DataLoader(rows, batch_size=7, num_workers=2)  # type: ignore[arg-type]
    at_once: Any = DataLoader(rows, batch_size=None, sampler=BatchSampler(SequentialSampler(range(count)), 7, drop_last=False))  # type: ignore[arg-type]
    for loader in (one_by_one, at_once):
        found = list(loader)
        assert {name: torch.equal(torch.cat([each[name] for each in found]), right[name]) for name in right} == dict.fromkeys(
            right, True
        )


@pytest.mark.parametrize("memory", ["1 kB", "100 MB"])
@pytest.mark.parametrize("batch", [1, 4, 1000])
def test_a_shuffled_epoch_has_every_row_once(whole: tuple[Path, dict[str, Tensor]], batch: int, memory: str) -> None:
    """With its other columns beside it, in another order for each seed and epoch, the same for the same."""
    store, right = sonde.open_tensors(whole[0]), whole[1]
    shuffled = store.shuffled(batch, seed=3, memory=memory, columns=["row", "layers.3:output"])
    orders = []
    for epoch in (0, 1, 0):
        shuffled.set_epoch(epoch)
        batches = list(shuffled)
        assert [len(each["row"]) for each in batches[:-1]] == [min(batch, len(right["row"]))] * (len(batches) - 1)
        rows = torch.cat([each["row"] for each in batches])
        order = rows.argsort()
        assert torch.equal(rows[order], right["row"])
        assert torch.equal(torch.cat([each["layers.3:output"] for each in batches])[order], right["layers.3:output"])
        orders.append(rows.tolist())
    assert orders[0] == orders[2] != orders[1]
    assert orders[0] != right["row"].tolist()
    assert orders[0] != torch.cat([each["row"] for each in store.shuffled(batch, seed=4, memory=memory)]).tolist()
    with pytest.raises(UnknownSiteError, match="no column 'nope'"):
        store.shuffled(4, columns=["nope"])


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_share_an_epoch(whole: tuple[Path, dict[str, Tensor]], persistent: bool) -> None:
    """Without overlap and without loss; those that live on hear of the next epoch."""
    shuffled, right = sonde.open_tensors(whole[0]).shuffled(4, columns=["row"]), whole[1]
    loader: Any = DataLoader(shuffled, batch_size=None, num_workers=2, persistent_workers=persistent)  # type: ignore[arg-type]
    orders = []
    for epoch in range(2):
        shuffled.set_epoch(epoch)
        rows = torch.cat([each["row"] for each in loader])
        assert torch.equal(rows.sort().values, right["row"])
        orders.append(rows.tolist())
    assert orders[0] != orders[1]


@contextlib.contextmanager
def as_rank(rank: int, ranks: int, patch: pytest.MonkeyPatch) -> Iterator[None]:
    with patch.context() as patched:
        patched.setattr(torch.distributed, "is_initialized", lambda: True)
        patched.setattr(torch.distributed, "get_rank", lambda: rank)
        patched.setattr(torch.distributed, "get_world_size", lambda: ranks)
        yield


@pytest.mark.parametrize("ranks", [2, 5, 50])
def test_ranks_share_an_epoch(whole: tuple[Path, dict[str, Tensor]], ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same number of rows each but for one, also in a worker that was sent to another process."""
    store, right = sonde.open_tensors(whole[0]), whole[1]
    shares = []
    for rank in range(ranks):
        shuffled = store.shuffled(4, columns=["row"])
        with as_rank(rank, ranks, monkeypatch):
            shares.append([int(row) for each in shuffled for row in each["row"]])
            sent = pickle.loads(pickle.dumps(store.shuffled(4, columns=["row"]).__getstate__()["_ranks"]))
        assert sent == (rank, ranks)
    assert sorted(row for share in shares for row in share) == right["row"].tolist()
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


# Foreign


def test_hidden_states_of_vllm(tmp_path: Path) -> None:
    """A file for each request: each is an item; one that is half written is left out with a warning; other files are no store."""
    states = {name: torch.randn(length, 4, 8).to(torch.bfloat16) for name, length in (("a-0", 3), ("b-1", 5), ("c-2", 2))}
    for name, held in states.items():
        save_file({"hidden_states": held, "token_ids": torch.arange(len(held))}, tmp_path / f"{name}.safetensors")
        (tmp_path / f"{name}.safetensors.lock").touch()
    store = sonde.open_tensors(tmp_path)
    assert torch.equal(store["hidden_states"][:], torch.cat(list(states.values())))
    assert torch.equal(store.item(1)["hidden_states"], states["b-1"])
    assert (store.about["requests"], store.item(2)["token_ids"].tolist(), store.verify()) == (["a-0", "b-1", "c-2"], [0, 1], [])
    cut(tmp_path / "b-1.safetensors")
    with pytest.warns(ObservationWarning, match=r"b-1.safetensors cannot be read.*left out"):
        assert len(sonde.open_tensors(tmp_path)["token_ids"]) == 5
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.warns(ObservationWarning), pytest.raises(SondeError, match="not a folder of tensors"):
        sonde.open_tensors(tmp_path)
