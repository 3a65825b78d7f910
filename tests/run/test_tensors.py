"""Tensors on disk: what ``Tracker.save`` writes, ``open_tensors`` gives back, or nothing is there."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import sonde
from sonde.errors import StoreError, UnknownSiteError
from sonde.run.tensors import VERSION, write_tensors

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


class Apply(nn.Module):
    """Any function of one tensor as a layer."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def kept(make: Callable[[Tensor], Any], x: Tensor | None = None, **how: Any) -> sonde.Tracker:
    """A tracker with one stash, of what *make* returns."""
    model = Apply(make)
    with sonde.track(model, strict=True, grad=False, **how) as tracker:
        model(torch.arange(6.0).reshape(2, 3) if x is None else x)
    return tracker


def keep_reference(tensor: Tensor) -> Tensor:
    return tensor


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a store, read with safetensors alone."""
    found: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as shard:
            found |= {key: shard.get_tensor(key) for key in shard.keys()}  # noqa: SIM118  # it is no mapping
    return found


def test_round_trip_of_a_training_step(tmp_path: Path) -> None:
    """Outputs and gradients of every layer come back bit-equal, in order, under the names of their sites."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    x = torch.randn(5, 3)
    with sonde.track(model) as tracker:
        for _ in range(2):
            model(x).sum().backward()
    assert tracker.save(tmp_path / "t") == tmp_path / "t"
    store = sonde.open_tensors(tmp_path / "t")
    assert store.sites == ("0:output", "1:output", "(root):output", "(root):grad_output", "1:grad_output", "0:grad_output")
    assert len(store) == 12
    hidden = model[0](x)
    (gradient,) = torch.autograd.grad(hidden.tanh().sum(), [hidden])
    assert [torch.equal(found, hidden) for found in store.at("0:output")] == [True, True]
    assert [torch.equal(found, gradient) for found in store.at("0:grad_output")] == [True, True]
    assert {key: found.tolist() for key, found in read(tmp_path / "t").items()} == {
        key: found.tolist() for key, found in store.items()
    }


def test_records_say_what_each_stash_was(tmp_path: Path) -> None:
    """There is one record per stash: name, type, direction, site, call, phase, tick, and the keys of its tensors."""
    model = nn.Sequential(nn.Linear(3, 4))
    with sonde.track(model, include=["0"]) as tracker:
        model(torch.ones(1, 3)).sum().backward()
    store = sonde.open_tensors(tracker.save(tmp_path / "t"))
    forward, backward = store.records
    assert (forward["name"], forward["type"], forward["grad"]) == ("0", "torch.nn.modules.linear.Linear", False)
    assert (backward["site"], backward["call"], backward["phase"]) == ("0:grad_output", 0, "backward")
    assert backward["tick"] == {"epoch": 0, "step": 0, "micro_step": 0, "forward": 0}
    assert [list(record["tensors"].values()) for record in store.records] == [[key] for key in store]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    """Values and dtype come back bit for bit."""
    value = torch.tensor([0.0, 1.0, 2.0, 0.0]).to(dtype)
    tracker = kept(lambda x: value)
    (found,) = sonde.open_tensors(tracker.save(tmp_path / "t")).at("(root):output")
    assert found.dtype == dtype
    assert found.view(torch.uint8).tolist() == value.view(torch.uint8).tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[:0],
        lambda x: x.sum(),
        lambda x: x.T,
        lambda x: x[:, ::2],
        lambda x: x[1:],
        lambda x: x[:1].expand(4, 3),
        lambda x: torch.complex(x, x).conj(),
        lambda x: torch.complex(x, x).conj().imag,
        lambda x: x.reshape(1, 2, 3, 1).to(memory_format=torch.channels_last),
    ],
    ids=["empty", "scalar", "transposed", "strided", "offset", "expanded", "conjugate", "negative", "channels_last"],
)
@pytest.mark.parametrize("stash_value", [None, keep_reference], ids=["copy", "reference"])
def test_every_memory_layout(tmp_path: Path, make: Callable[[Tensor], Tensor], stash_value: Any) -> None:
    """Empty, scalar, non-contiguous, expanded and lazily conjugated tensors come back as equal values."""
    x = torch.arange(6.0).reshape(2, 3)
    (found,) = sonde.open_tensors(kept(make, x, stash_value=stash_value).save(tmp_path / "t")).at("(root):output")
    assert found.shape == make(x).shape
    assert torch.equal(found, make(x).resolve_conj().resolve_neg())


@pytest.mark.parametrize("make", [lambda x: x.to_sparse(), lambda x: x.to_sparse_csr()], ids=["coo", "csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_tensors_are_written_dense(tmp_path: Path, make: Callable[[Tensor], Tensor]) -> None:
    """A sparse tensor is stored as the dense tensor of the same values."""
    (found,) = sonde.open_tensors(kept(make).save(tmp_path / "t")).at("(root):output")
    assert torch.equal(found, torch.arange(6.0).reshape(2, 3))


def test_shared_memory(tmp_path: Path) -> None:
    """Tensors that share memory, wholly or in part, are each stored in full."""
    tracker = kept(lambda x: (x, x, x[0], x.view(6)[1:5]), stash_value=keep_reference)
    store = sonde.open_tensors(tracker.save(tmp_path / "t"))
    x = torch.arange(6.0).reshape(2, 3)
    assert list(store.sites) == ["(root):output[0]", "(root):output[1]", "(root):output[2]", "(root):output[3]"]
    for found, expected in zip(store.values(), (x, x, x[0], x.view(6)[1:5]), strict=True):
        assert torch.equal(found, expected)


def test_gradients_are_stored_under_the_leaf_of_their_output(tmp_path: Path) -> None:
    """The gradient of ``.values`` is at ``grad_output.values``, as its output is at ``output.values``."""
    model = nn.Sequential(nn.Linear(3, 4), Apply(lambda y: torch.max(y, 1)))
    with sonde.track(model, include=["1"]) as tracker:
        model(torch.randn(2, 3)).values.sum().backward()
    store = sonde.open_tensors(tracker.save(tmp_path / "t"))
    assert store.sites == ("1:output.values", "1:output.indices", "1:grad_output.values")


def test_what_is_no_tensor(tmp_path: Path) -> None:
    """Numbers and texts that were kept are in the record under their leaf, other objects as the name of their type."""
    floats = kept(lambda x: {"a": x, "b": (x * 2, "text")}, stash_value=lambda tensor: tensor.sum().item())
    assert sonde.open_tensors(floats.save(tmp_path / "floats")).records[0]["values"] == {"['a']": 15.0, "['b'][0]": 30.0}
    shapes = kept(lambda x: x, stash_value=lambda tensor: tensor.dtype)
    assert sonde.open_tensors(shapes.save(tmp_path / "shapes")).records[0]["values"] == {"": "<dtype>"}
    with torch.device("meta"):
        assert len(sonde.open_tensors(kept(lambda x: x + 1).save(tmp_path / "meta"))) == 0


def test_the_index_is_json_for_any_reader(tmp_path: Path) -> None:
    """Also where a kept number is NaN or infinite, the index holds nothing that JSON does not know."""
    tracker = kept(lambda x: x, stash_value=lambda tensor: float("nan"))
    text = (tracker.save(tmp_path / "t") / "index.json").read_text(encoding="utf-8")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    assert json.loads(text, parse_constant=refuse)["format"] == "sonde-tensors"


def test_an_empty_tracker(tmp_path: Path) -> None:
    """A tracker without stashes makes a store without tensors."""
    store = sonde.open_tensors(sonde.Tracker().save(tmp_path / "t"))
    assert (list(store), store.records, store.sites) == ([], [], ())


# Where


@pytest.mark.parametrize("kind", [str, Path])
def test_text_and_path_with_missing_parents(tmp_path: Path, kind: Callable[[str], Any]) -> None:
    """Both kinds of path are taken, and missing parents are made."""
    target = tmp_path / "a" / "b" / "c"
    assert kept(lambda x: x).save(kind(str(target))) == target
    assert len(sonde.open_tensors(kind(str(target)))) == 1
    assert listed(target) == ["index.json", "tensors-00001-of-00001.safetensors"]
    assert listed(target.parent) == ["c"]


def test_an_existing_folder_is_refused_unless_overwritten(tmp_path: Path) -> None:
    """A second save to the same place raises and changes nothing; overwrite=True replaces all of it."""
    target = kept(lambda x: (x, x)).save(tmp_path / "t")
    with pytest.raises(StoreError, match="overwrite=True"):
        kept(lambda x: x * 2).save(target)
    assert len(sonde.open_tensors(target)) == 2
    kept(lambda x: x * 2).save(target, overwrite=True)
    (found,) = sonde.open_tensors(target).values()
    assert torch.equal(found, torch.arange(6.0).reshape(2, 3) * 2)
    assert listed(tmp_path) == ["t"]


def test_what_is_no_store_is_never_replaced(tmp_path: Path) -> None:
    """A file, and a folder with other things in it, are left alone even with overwrite=True; an empty folder is used."""
    file, folder, empty = tmp_path / "file", tmp_path / "folder", tmp_path / "empty"
    file.write_text("mine")
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    empty.mkdir()
    for target in (file, folder):
        for overwrite in (False, True):
            with pytest.raises(StoreError, match=target.name):
                kept(lambda x: x).save(target, overwrite=overwrite)
    assert (file.read_text(), (folder / "mine.txt").read_text()) == ("mine", "mine")
    assert len(sonde.open_tensors(kept(lambda x: x).save(empty))) == 1


def test_a_foreign_index_is_not_replaced(tmp_path: Path) -> None:
    """A folder whose index.json belongs to something else is not a store, so overwrite=True refuses it."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.json").write_text('{"pages": []}')
    with pytest.raises(StoreError):
        kept(lambda x: x).save(tmp_path / "site", overwrite=True)
    assert (tmp_path / "site" / "index.json").read_text() == '{"pages": []}'


# Shards


def test_shards_are_bounded(tmp_path: Path) -> None:
    """A shard ends before it would grow beyond shard_bytes; a tensor larger than that has a shard of its own."""
    tensors = {f"{n}/s": torch.full((size,), float(n)) for n, size in enumerate((4, 4, 1, 20, 2))}
    write_tensors(tmp_path / "t", tensors, [], shard_bytes=36)
    index = json.loads((tmp_path / "t" / "index.json").read_text())
    names = [f"tensors-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert index["weight_map"] == dict(zip(tensors, (names[0], names[0], names[0], names[1], names[2]), strict=True))
    assert index["metadata"]["total_size"] == 31 * 4
    assert sorted(path.name for path in (tmp_path / "t").glob("*.safetensors")) == names
    store = sonde.open_tensors(tmp_path / "t")
    assert {key: found.tolist() for key, found in store.items()} == {key: held.tolist() for key, held in tensors.items()}
    assert list(store) == list(tensors)


# Failure


class DiskFullError(Exception):
    """The disk is full."""


@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_while_writing_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool) -> None:
    """If the second shard cannot be written, there is no trace of the new store and an old one is intact."""
    import safetensors.torch

    real, calls = safetensors.torch.save_file, []
    target = tmp_path / "deep" / "t"
    if existing:
        write_tensors(target, {"0/s": torch.ones(3)}, [{"name": "old"}])

    def full(*args: Any, **kwargs: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise DiskFullError
        real(*args, **kwargs)

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(DiskFullError):
        write_tensors(target, {"0/s": torch.zeros(3), "1/s": torch.zeros(3)}, [], shard_bytes=4, overwrite=True)
    assert len(calls) == 2
    assert listed(target.parent) == (["t"] if existing else [])
    if existing:
        assert sonde.open_tensors(target)["0/s"].tolist() == [1.0, 1.0, 1.0]


def test_a_failure_while_replacing_leaves_the_old_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the new folder cannot take its place, the old one is still there, whole."""
    target = write_tensors(tmp_path / "t", {"0/s": torch.ones(3)}, [{"name": "old"}])
    failed: list[Any] = []

    def once(real: Callable[..., Any]) -> Callable[..., Any]:
        def move(source: Any, destination: Any, **kwargs: Any) -> Any:
            if Path(destination) == target and not failed:
                failed.append(source)
                raise OSError("no space")
            return real(source, destination, **kwargs)

        return move

    monkeypatch.setattr(os, "replace", once(os.replace))
    monkeypatch.setattr(os, "rename", once(os.rename))
    with pytest.raises(OSError, match="no space"):
        write_tensors(target, {"0/s": torch.zeros(3)}, [], overwrite=True)
    assert failed
    assert sonde.open_tensors(target)["0/s"].tolist() == [1.0, 1.0, 1.0]
    assert listed(tmp_path) == ["t"]


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (None, "not a folder of tensors"),
        ("no json", "not a folder of tensors"),
        ("[]", "not a folder of tensors"),
        ('{"format": "other", "version": 1, "records": [], "weight_map": {}}', "not a folder of tensors"),
        ('{"format": "sonde-tensors", "records": [], "weight_map": {}}', "index.json"),
        ('{"format": "sonde-tensors", "version": 1}', "index.json"),
        (json.dumps({"format": "sonde-tensors", "version": VERSION + 1, "new": 1}), f"version {VERSION + 1}.*update"),
    ],
    ids=["missing", "text", "list", "foreign", "unversioned", "incomplete", "newer"],
)
def test_what_cannot_be_opened(tmp_path: Path, index: str | None, said: str) -> None:
    """A folder that is no store, a broken index, and a newer version are each a StoreError that names the folder."""
    folder = tmp_path / "odd"
    if index is not None:
        folder.mkdir()
        (folder / "index.json").write_text(index)
    with pytest.raises(StoreError, match=said) as caught:
        sonde.open_tensors(folder)
    assert str(folder) in str(caught.value)


def test_a_missing_shard_is_a_store_error(tmp_path: Path) -> None:
    """A tensor whose file is gone is reported as such, naming the file."""
    target = write_tensors(tmp_path / "t", {"0/s": torch.ones(3)}, [])
    (target / "tensors-00001-of-00001.safetensors").unlink()
    store = sonde.open_tensors(target)
    with pytest.raises(StoreError, match="tensors-00001-of-00001"):
        store["0/s"]


def test_unknown_keys_and_sites(tmp_path: Path) -> None:
    """A key or site that is not there is a KeyError that says what is."""
    store = sonde.open_tensors(kept(lambda x: x).save(tmp_path / "t"))
    for ask in (store.__getitem__, store.at):
        with pytest.raises(KeyError, match=r"'nope'.*\(root\):output") as caught:
            ask("nope")
        assert isinstance(caught.value, UnknownSiteError)
        assert "..." not in str(caught.value)  # it has one, and the message names it
    assert "nope" not in store
    assert store.get("nope") is None


# Form


def test_there_is_no_pickle_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing and reading never pickle, and the files are safetensors and JSON alone."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("pickle was used")

    for module, names in ((pickle, ("dump", "dumps", "load", "loads")), (torch, ("save", "load"))):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    target = kept(lambda x: {"a": x, "b": (x > 0, object(), "text")}).save(tmp_path / "t")
    assert [found.shape for found in sonde.open_tensors(target).values()] == [(2, 3), (2, 3)]
    assert {path.suffix for path in target.iterdir()} == {".safetensors", ".json"}
    assert sorted(read(target)) == ["000000/(root):output['a']", "000000/(root):output['b'][0]"]
    assert json.loads((target / "index.json").read_text())["version"] == VERSION


def test_repr_says_what_is_inside(tmp_path: Path) -> None:
    """The store shows its folder and counts tensors, sites and records."""
    store = sonde.open_tensors(kept(lambda x: (x, x)).save(tmp_path / "t"))
    assert repr(store) == f"TensorStore({str(tmp_path / 't')!r}: 2 tensors of 2 sites, 1 records)"
