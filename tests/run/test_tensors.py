"""Tensors on disk: what ``Tracker.save`` writes, ``open_tensors`` gives back, or nothing is there."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import sonde
from sonde.errors import SiteError, StoreError, UnknownSiteError
from sonde.run.folder.json_file import write_json
from sonde.run.tensors import writers
from sonde.run.tensors.index import VERSION
from sonde.run.tensors.writers import write_tensors

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
    torch.complex128,
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
    """There is one record per stash: name, type, direction, site, call, phase, tick, and the structure of its value."""
    model = nn.Sequential(nn.Linear(3, 4))
    with sonde.track(model, include=["0"]) as tracker:
        model(torch.ones(1, 3)).sum().backward()
    store = sonde.open_tensors(tracker.save(tmp_path / "t"))
    forward, backward = store.records
    assert (forward["name"], forward["type"], forward["grad"]) == ("0", "torch.nn.modules.linear.Linear", False)
    assert (backward["site"], backward["call"], backward["phase"]) == ("0:grad_output", 0, "backward")
    assert backward["tick"] == {"epoch": 0, "step": 0, "micro_step": 0, "forward": 0}
    assert [record["value"] for record in store.records] == [
        {"tensor": "000000/0:output"},
        {"tuple": [{"tensor": "000001/0:grad_output"}]},
    ]
    assert torch.equal(store.value(1)[0], torch.ones(1, 4))


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
    """Numbers and texts come back in the structure of the value, other objects as the name of their type."""
    floats = kept(lambda x: {"a": x, "b": (x * 2, "text")}, stash_value=lambda tensor: tensor.sum().item())
    assert sonde.open_tensors(floats.save(tmp_path / "floats")).value(0) == {"a": 15.0, "b": (30.0, "text")}
    types = kept(lambda x: x, stash_value=lambda tensor: tensor.dtype)
    assert sonde.open_tensors(types.save(tmp_path / "types")).value(0) == "<torch.dtype>"
    with torch.device("meta"):
        store = sonde.open_tensors(kept(lambda x: x + 1).save(tmp_path / "meta"))
    assert (len(store), store.value(0)) == (0, "<meta tensor 2×3>")


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
    assert listed(target) == ["index.json", "tensors-00001.safetensors"]
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


def entries(**tensors: Tensor) -> list[tuple[dict[str, Any], dict[str, Tensor]]]:
    """A record for each tensor."""
    return [({"name": name}, {f"{number}/{name}:output": held}) for number, (name, held) in enumerate(tensors.items())]


def test_shards_are_bounded(tmp_path: Path) -> None:
    """A shard ends before it would grow beyond shard_bytes; a tensor larger than that has a shard of its own."""
    tensors = {name: torch.full((size,), float(size)) for name, size in zip("abcde", (4, 4, 1, 20, 2), strict=True)}
    write_tensors(tmp_path / "t", entries(**tensors), shard_bytes=36)
    index = json.loads((tmp_path / "t" / "index.json").read_text())
    names = [f"tensors-0000{n}.safetensors" for n in (1, 2, 3)]
    assert [len(line["tensors"]) for line in index["shards"]] == [3, 1, 1]
    assert [(line["shard"], line["bytes"]) for line in index["shards"]] == [
        (name, (tmp_path / "t" / name).stat().st_size) for name in names
    ]
    assert sorted(path.name for path in (tmp_path / "t").glob("*.safetensors")) == names
    store = sonde.open_tensors(tmp_path / "t")
    assert [found.tolist() for found in store.values()] == [held.tolist() for held in tensors.values()]
    assert list(store) == [f"{number}/{name}:output" for number, name in enumerate(tensors)]


def test_sequences_of_different_lengths(tmp_path: Path) -> None:
    """Records of one site may have any shape; they come back in order, mapped into memory."""
    lengths = (3, 0, 7)
    write_tensors(tmp_path / "t", [({}, {f"{n}/a:output": torch.ones(size, 2)}) for n, size in enumerate(lengths)], shard_bytes=8)
    assert [found.shape for found in sonde.open_tensors(tmp_path / "t").at("a")] == [(3, 2), (0, 2), (7, 2)]


def test_at_takes_what_a_tracker_takes(tmp_path: Path) -> None:
    """A module's name, any of its names, a site, one leaf, or a Site."""
    shared = Apply(lambda x: (x * 2, x * 3))
    model = nn.ModuleDict({"one": shared, "two": shared})
    with sonde.track(model, include=["one"]) as tracker:
        model["two"](torch.ones(1, requires_grad=True))[1].sum().backward()
    store = sonde.open_tensors(tracker.save(tmp_path / "t"))
    asked = ["one", "one:output", "one:output[1]", "one:grad_output", sonde.Site("one"), sonde.Site("one", leaf="[0]")]
    assert [[tensor.item() for tensor in store.at(key)] for key in asked] == [[2, 3, 1], [2, 3], [3], [1], [2, 3], [2]]
    with pytest.raises(UnknownSiteError, match=r"no tensor of 'ones'. Nearest: one"):
        store.at("ones")
    with pytest.raises(UnknownSiteError, match=r"no tensor of 'one:ouput'. Nearest: one:output"):
        store.at("one:ouput")


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
        write_tensors(target, entries(old=torch.ones(3)))

    def full(*args: Any, **kwargs: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise DiskFullError
        real(*args, **kwargs)

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(DiskFullError):
        write_tensors(target, entries(a=torch.zeros(3), b=torch.zeros(3)), shard_bytes=4, overwrite=True)
    assert len(calls) == 2
    assert listed(tmp_path) == (["deep"] if existing else [])
    if existing:
        assert listed(target) == ["index.json", "tensors-00001.safetensors"]
        assert sonde.open_tensors(target)["0/old:output"].tolist() == [1.0, 1.0, 1.0]


def test_a_failure_while_replacing_leaves_the_old_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the new index cannot take its place, the old store is still there, whole."""
    target = write_tensors(tmp_path / "t", entries(old=torch.ones(3)))
    real, failed = Path.replace, []

    def fails(self: Path, destination: Any) -> Path:
        if not failed:
            failed.append(self)
            raise OSError("no space")
        return real(self, destination)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(StoreError, match="cannot be written: no space"):
        write_tensors(target, entries(new=torch.zeros(3)), overwrite=True)
    assert failed
    assert sonde.open_tensors(target)["0/old:output"].tolist() == [1.0, 1.0, 1.0]
    assert listed(target) == ["index.json", "tensors-00001.safetensors"]


def test_a_killed_program_leaves_a_folder_that_can_be_written_again(tmp_path: Path) -> None:
    """Of a first save nothing can be read; of a second one the first is there, and its leftovers go with the third."""

    def killed() -> Iterator[writers.Entry]:
        yield from entries(a=torch.ones(2), b=torch.ones(2))
        os._exit(1)

    for overwrite in (False, True):
        if (child := os.fork()) == 0:
            write_tensors(tmp_path, killed(), shard_bytes=8, overwrite=overwrite)
        os.waitpid(child, 0)
        if not overwrite:
            with pytest.raises(StoreError, match="did not finish"):
                sonde.open_tensors(tmp_path)
            write_tensors(tmp_path, entries(a=torch.zeros(2)), overwrite=True)
    assert len(listed(tmp_path)) == 3
    assert sonde.open_tensors(tmp_path)["0/a:output"].tolist() == [0, 0]
    write_tensors(tmp_path, entries(c=torch.ones(2)), overwrite=True)
    assert len(listed(tmp_path)) == 2
    assert sonde.open_tensors(tmp_path).sites == ("c:output",)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (None, "not a folder of tensors"),
        ("no json", "not a folder of tensors"),
        ("[]", "not a folder of tensors"),
        ("[" * 100_000, "not a folder of tensors"),
        ('{"format": "other", "version": 1, "records": [], "weight_map": {}}', "not a folder of tensors"),
        ('{"format": "sonde-tensors", "records": [], "weight_map": {}}', "version None.*save again"),
        ('{"format": "sonde-tensors", "version": 1}', "version 1.*save again"),
        ('{"format": "sonde-tensors", "version": 3, "records": [], "shards": {}}', "version 3.*save again"),
        (json.dumps({"format": "sonde-tensors", "version": VERSION}), "'complete' is missing"),
        (json.dumps({"format": "sonde-tensors", "version": VERSION + 1, "new": 1}), f"version {VERSION + 1}.*update"),
    ],
    ids=["missing", "text", "list", "deep", "foreign", "unversioned", "oldest", "older", "incomplete", "newer"],
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


def rewrite(folder: Path, index: dict[str, Any]) -> None:
    """Write another index, with its right checksum, as somebody does who forges one."""
    write_json(folder / "index.json", {name: held for name, held in index.items() if name != "checksum"}, sync=False)


def test_a_missing_or_shortened_shard_is_a_store_error(tmp_path: Path) -> None:
    """A tensor whose file is gone or was cut is reported as such, naming the file."""
    target = write_tensors(tmp_path / "t", entries(s=torch.ones(3)))
    shard = target / "tensors-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(StoreError, match=r"tensors-00001\.safetensors is not whole"):
        sonde.open_tensors(target)["0/s:output"]
    shard.unlink()
    with pytest.raises(StoreError, match=r"tensors-00001\.safetensors.*cannot be read"):
        sonde.open_tensors(target)["0/s:output"]


@pytest.mark.parametrize("name", ["../other/tensors-00001.safetensors", "/etc/passwd", "tensors-00001.safetensors/..", "", 3])
def test_no_path_out_of_the_folder_is_followed(tmp_path: Path, name: Any) -> None:
    """Neither a path in the index nor a link in the folder."""
    other, target = (write_tensors(tmp_path / name, entries(s=torch.ones(3))) for name in ("other", "t"))
    index = json.loads((target / "index.json").read_text())
    rewrite(target, index | {"shards": [index["shards"][0] | {"shard": name}]})
    with pytest.raises(StoreError, match=r"not the name of a shard"):
        sonde.open_tensors(target)
    rewrite(target, index)
    (target / "tensors-00001.safetensors").unlink()
    (target / "tensors-00001.safetensors").symlink_to(other / "tensors-00001.safetensors")
    with pytest.raises(StoreError, match="link out of this folder"):
        sonde.open_tensors(target)["0/s:output"]


def test_a_value_that_is_no_value(tmp_path: Path) -> None:
    """A record whose structure names a tensor that is not there, or is of no known form, raises when it is read."""
    target = write_tensors(tmp_path / "t", entries(s=torch.ones(3)))
    index = json.loads((target / "index.json").read_text())
    for value, said in [({"tensor": "x/y"}, "no shard that holds it"), ({"code": "import os"}, "not the written form")]:
        rewrite(target, index | {"shards": [index["shards"][0] | {"records": [{"value": value}]}]})
        with pytest.raises(StoreError, match=said):
            sonde.open_tensors(target).value(0)


def test_unknown_keys_and_sites(tmp_path: Path) -> None:
    """A key or site that is not there is a KeyError that says what is."""
    store = sonde.open_tensors(kept(lambda x: x).save(tmp_path / "t"))
    for ask in (store.__getitem__, store.at):
        with pytest.raises(KeyError, match=r"'nope'.*\(root\)") as caught:
            ask("nope")
        assert isinstance(caught.value, UnknownSiteError)
        assert "..." not in str(caught.value)  # it has one, and the message names it
    assert "nope" not in store
    assert store.get("nope") is None


def test_what_was_kept_once_of_a_site_is_read_by_its_name(tmp_path: Path) -> None:
    """As a column of extracted rows is: of a tracker, of a recorder, and of an extraction the same tensor."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).eval(), torch.randn(5, 4)
    with sonde.track(model) as tracker, sonde.recorders.ForwardOutput().children(model) as recorder:
        model(x).sum().backward()
    extracted = sonde.extract(model, [x], ["0", "1"], tmp_path / "e")
    for name, probe in (("t", tracker), ("r", recorder)):
        probe.save(tmp_path / name)
        store = sonde.open_tensors(tmp_path / name)
        for site in ("0:output", "1:output"):
            assert torch.equal(store[site], extracted[site][:])
            assert torch.equal(store[sonde.Site.parse(site)], extracted[site][:])
    with pytest.raises(SiteError, match=r"'1' has 2 tensors in .*/1:output, .*/1:grad_output; store.at\(\) gives them all"):
        sonde.open_tensors(tmp_path / "t")["1"]


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
