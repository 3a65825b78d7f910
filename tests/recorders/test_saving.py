"""A recorder on disk and back: names of files, forms of values, failure, and reading without pickle."""

from __future__ import annotations

import collections
import json
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.errors import StoreError, UnknownSlotError
from sonde.recorders import ForwardOutput, ForwardPre, open_recorded
from sonde.recorders.reductions import Mean
from sonde.run.folder.json_file import write_json

Pair = collections.namedtuple("Pair", "a b")


@dataclass
class Out:
    logits: Tensor
    loss: float


def holding(*values: Any, names: list[str] | None = None) -> ForwardOutput:
    """A recorder whose slots hold these values."""
    layers = {name: nn.Identity() for name in names or [f"layer{i}" for i in range(len(values))]}
    recorder = ForwardOutput(reduction=max, strict=True).children(nn.ModuleDict(layers))
    recorder.detach()
    recorder[:] = values
    return recorder


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_each_kept_value_is_a_record_at_its_site(tmp_path: Path) -> None:
    """The folder is a store of tensors, as ``Tracker.save`` writes one; a slot without values stands in the index."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh()), nn.ModuleList())
    recorder = ForwardOutput(strict=True).modules(model)
    for size in (2, 3):
        model[1](model[0](torch.ones(size, 2)))
    folder = recorder.save(tmp_path / "deep" / "saved")
    assert files(folder) == ["index.json", "tensors-00001.safetensors"]
    store = sonde.open_tensors(folder)
    assert [tuple(tensor.shape) for tensor in store.at("0")] == [(2, 2), (3, 2)]
    assert store.sites == ("0:output", "1:output", "1.0:output")
    assert (store.about["kind"], store.about["reduction"]) == ("ForwardOutput", None)
    assert [(slot["site"], slot["samples"]) for slot in store.about["slots"]] == [
        ("(root):output", 0),
        ("0:output", 2),
        ("1:output", 2),
        ("1.0:output", 2),
        ("2:output", 0),
    ]
    assert open_recorded(folder)["2"] == []


def test_a_store_of_another_kind_is_no_recorder(tmp_path: Path) -> None:
    """What a tracker has saved is read by ``open_tensors``, and the message says so."""
    with pytest.raises(StoreError, match="of another kind, and no recorder"):
        open_recorded(sonde.Tracker().save(tmp_path / "t"))


def test_reading_answers_as_the_recorder_did(tmp_path: Path) -> None:
    """By position, slice, name and site, with the counts; unknown ones with the same error."""
    model = nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 3))
    recorder = ForwardOutput(strict=True).children(model)
    for _ in range(2):
        model(torch.randn(4, 2))
    recorded = open_recorded(recorder.save(tmp_path))
    assert len(recorded) == len(recorder) == 2
    assert torch.equal(recorded[0][1], recorder[0][1])
    assert torch.equal(recorded["1"][1][1][0], recorder["1"][1][1][0])
    assert type(recorded["1"][1][1]) is tuple
    assert torch.equal(recorded["1:output[1][0]"][0], recorder["1:output[1][0]"][0])
    assert [len(values) for values in recorded] == [len(values) for values in recorded[:]] == [2, 2]
    assert recorded.samples("0") == 2
    assert list(recorded.iter_samples()) == [2, 2]
    assert (recorded.kind, recorded.reduction) == ("ForwardOutput", None)
    assert "2 slots of ForwardOutput" in repr(recorded)
    assert [str(slot.site) for slot in recorded.subrecorders] == ["0:output", "1:output"]
    with pytest.raises(UnknownSlotError, match="there are 2, 0 to 1"):
        recorded[2]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (0.1, 0.1),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
        (2 - 3j, 2 - 3j),
        ("text", "text"),
        ([1, [2.5, None]], [1, [2.5, None]]),
        ((1, "a", ()), (1, "a", ())),
        ({"a": 1, 2: (3,), None: [], (1, 2): 4}, {"a": 1, 2: (3,), None: [], (1, 2): 4}),
        ({3}, [3]),
        (Pair(1, [2]), {"a": 1, "b": [2]}),
        (Out(None, 0.5), {"logits": None, "loss": 0.5}),  # type: ignore[arg-type]
        (torch.float32, "<torch.dtype>"),
        (len, "<builtins.builtin_function_or_method>"),
        (nn.Linear, "<torch.nn.modules.linear.Linear>"),
        ({"tensor": "value"}, {"tensor": "value"}),
        ({"fields": {}}, {"fields": {}}),
    ],
)
def test_the_form_of_what_is_no_tensor(tmp_path: Path, value: Any, expected: Any) -> None:
    """Numbers, texts and plain containers come back as they were, others in the form that is written down for them."""
    recorded = open_recorded(holding(value).save(tmp_path))
    assert recorded[0] == expected
    assert type(recorded[0]) is type(expected)


def test_nan_comes_back(tmp_path: Path) -> None:
    """Though JSON has none."""
    assert math.isnan(open_recorded(holding(math.nan).save(tmp_path))[0])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.0),
        torch.ones(0, 2),
        torch.ones(2, 3, dtype=torch.bfloat16),
        torch.tensor([True]),
        torch.tensor([1 + 2j], dtype=torch.complex128),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(4, 4).T[1:, ::2],
        torch.ones(2, requires_grad=True),
        torch.eye(3).to_sparse(),
    ],
)
def test_tensors_come_back(tmp_path: Path, tensor: Tensor) -> None:
    """Of any type, dense, without gradients; in lists, tuples, dicts and with shared memory."""
    value = {"one": [tensor, (tensor, 1)], "two": {"x": tensor}}
    read = open_recorded(holding(value).save(tmp_path))[0]
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    for found in (read["one"][0], read["one"][1][0], read["two"]["x"]):
        assert found.dtype is dense.dtype
        assert torch.equal(found, dense.resolve_conj())
        assert not found.requires_grad
    assert read["one"][1][1] == 1


def test_tensors_that_cannot_be_written_are_described(tmp_path: Path) -> None:
    """On the meta device there is nothing to write."""
    assert open_recorded(holding(torch.ones(2, 3, device="meta")).save(tmp_path))[0] == "<meta tensor 2×3>"


def test_named_tuples_dataclasses_and_cycles(tmp_path: Path) -> None:
    """Named parts are read as a dict; a container in itself is said to be there."""
    cycle: list[Any] = [1]
    cycle.append(cycle)
    recorded = open_recorded(
        holding(Pair(torch.ones(1), 2), Out(torch.zeros(2), 0.5), torch.max(torch.eye(2), 1), cycle).save(tmp_path)
    )
    assert recorded[0]["a"].tolist() == [1]
    assert recorded[1]["logits"].tolist() == [0, 0]
    assert recorded[2]["values"].tolist() == [1, 1]
    assert recorded[3] == [1, [1, "<the container itself>"]]


def test_what_is_saved_is_finished(tmp_path: Path) -> None:
    """The mean, and not its sums."""
    model = nn.Identity()
    recorder = ForwardOutput(reduction=Mean(), strict=True).modules(model)
    model(torch.tensor([1.0]))
    model(torch.tensor([2.0]))
    recorded = open_recorded(recorder.save(tmp_path))
    assert recorded[0].tolist() == [1.5]
    assert recorded.reduction == "Mean(axis=None)"


def test_names_of_any_kind(tmp_path: Path) -> None:
    """Slashes, colons, long names, names that differ in case, and the names of models come back; none leads out of the folder."""
    names = ["a/b:c", "A", "a", "x" * 300, "ünï"]
    recorder = holding(*map(torch.tensor, range(5)), names=names)
    recorder.children(nn.ModuleDict({"a": nn.Identity()}), name="../G")
    recorder.detach()
    recorder[5] = torch.tensor(5)
    folder = recorder.save(tmp_path / "saved")
    assert files(tmp_path) == ["saved", "saved/index.json", "saved/tensors-00001.safetensors"]
    recorded = open_recorded(folder)
    assert [value.item() for value in recorded] == [0, 1, 2, 3, 4, 5]
    assert [slot.name for slot in recorded.subrecorders] == [*names, "a"]
    assert recorded["ünï"].item() == 4


# Where


def test_path_and_mkdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text or a path; missing folders are made; the arguments are those of Path.mkdir."""
    recorder = holding(torch.ones(1))
    with pytest.raises(StoreError, match="parents=False"):
        recorder.save(tmp_path / "a" / "b", mkdir=True, parents=False)
    assert files(tmp_path) == []
    assert recorder.save(str(tmp_path / "a" / "b"), True, 0o700) == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "empty").mkdir()
    recorder.save(tmp_path / "empty")
    with pytest.raises(StoreError, match="exist_ok=False"):
        recorder.save(tmp_path / "empty", mkdir=True, exist_ok=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert open_recorded(recorder.save("."))[0].tolist() == [1]
    recorder.save("there")
    with pytest.raises(StoreError, match="holds something else"):
        recorder.save(".", overwrite=True)  # it is a store, but another one stands in it


def test_where_one_cannot_write(tmp_path: Path) -> None:
    """Below a file there can be no folder."""
    (tmp_path / "file").write_text("kept")
    with pytest.raises(StoreError, match="cannot be written"):
        holding(torch.ones(1)).save(tmp_path / "file" / "saved", mkdir=True)
    assert files(tmp_path) == ["file"]


# Reading what is broken


@pytest.mark.parametrize(
    ("about", "records"),
    [
        ({"slots": [{}]}, None),
        ({"slots": 3}, None),
        ({"kind": None, "slots": [{"site": "?:?", "type": "", "samples": 1, "tick": None, "is_list": False}]}, None),
        ({}, [{"slot": 7}]),
        ({}, [{"slot": 0}, {"slot": 0}]),
        ({}, []),
    ],
)
def test_what_is_no_saved_recorder(tmp_path: Path, about: dict[str, Any], records: Any) -> None:
    """A store whose slots cannot be read."""
    folder = holding(torch.ones(1)).save(tmp_path / "saved")
    index = json.loads((folder / "index.json").read_text())
    index["about"] |= about
    index["shards"][0]["records"] = index["shards"][0]["records"] if records is None else records
    del index["checksum"]
    write_json(folder / "index.json", index, sync=False)  # with its right checksum, as somebody does who forges one
    with pytest.raises(StoreError, match="not whole"):
        open_recorded(folder)


def test_no_pickle_is_written(tmp_path: Path) -> None:
    """Nothing that saving writes, and nothing that reading does, goes through pickle."""

    class Evil:
        def __reduce__(self) -> Any:
            raise AssertionError("pickled")

    folder = holding([Evil(), torch.ones(1)]).save(tmp_path / "saved", mkdir=True)
    read = open_recorded(folder)[0]
    assert read[0] == {}  # the attributes of an object that is not known
    assert read[1].tolist() == [1]
    for path in folder.iterdir():
        with pytest.raises((pickle.UnpicklingError, UnicodeDecodeError, ValueError, EOFError, KeyError, IndexError)):
            pickle.loads(path.read_bytes())


def test_inputs_with_keywords(tmp_path: Path) -> None:
    """A dict of positions and keywords is read as that."""

    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x * mask

    model = Masked()
    recorder = ForwardPre(strict=True).modules(model)
    model(torch.ones(2), mask=torch.zeros(2))
    read = open_recorded(recorder.save(tmp_path))[0][0]
    assert list(read) == [0, "mask"]
    assert read["mask"].tolist() == [0, 0]


def test_a_name_with_half_a_surrogate_pair(tmp_path: Path) -> None:
    """Python allows such a name and no file does: the key is written with an escape, the slot has its name."""
    recorded = open_recorded(holding(torch.ones(1), names=["\ud800"]).save(tmp_path / "saved"))
    assert recorded["\ud800"].tolist() == [1]
