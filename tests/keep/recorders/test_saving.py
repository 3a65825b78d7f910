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
from safetensors.torch import load_file
from torch import Tensor, nn

from sonde.errors import StoreError, UnknownSlotError
from sonde.keep.recorders import saving
from sonde.recorders import ForwardOutput, ForwardPre, open_recorded
from sonde.recorders.reductions import Mean

Pair = collections.namedtuple("Pair", "a b")


@dataclass
class Out:
    logits: Tensor
    loss: float


def holding(*values: Any, names: list[str] | None = None) -> ForwardOutput:
    """A recorder whose slots hold these values."""
    layers = {name: nn.Identity() for name in names or [f"layer{i}" for i in range(len(values))]}
    recorder = ForwardOutput(reduction=max, strict=True).children(nn.ModuleDict(layers))
    recorder[:] = values
    return recorder


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_one_file_for_each_module_named_after_it(tmp_path: Path) -> None:
    """Readable by safetensors alone; a slot without tensors has no file, but stands in the index."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh()), nn.ModuleList())
    recorder = ForwardOutput(strict=True).modules(model)
    for size in (2, 3):
        model[1](model[0](torch.ones(size, 2)))
    folder = recorder.save(tmp_path / "saved", mkdir=True)
    assert files(folder) == ["001-0.safetensors", "002-1.safetensors", "003-1.0.safetensors", "index.json"]
    tensors = load_file(folder / "001-0.safetensors")
    assert {key: tuple(tensor.shape) for key, tensor in tensors.items()} == {"value[0]": (2, 2), "value[1]": (3, 2)}
    index = json.loads((folder / "index.json").read_text())
    assert (index["format"], index["version"], index["kind"], index["reduction"]) == ("sonde-recorder", 1, "ForwardOutput", None)
    assert [(slot["site"], slot["samples"], slot["file"] is None) for slot in index["slots"]] == [
        ("(root):output", 0, True),
        ("0:output", 2, False),
        ("1:output", 2, False),
        ("1.0:output", 2, False),
        ("2:output", 0, True),
    ]


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
    assert recorded[3] == [1, "<the container itself>"]


def test_what_is_saved_is_finished(tmp_path: Path) -> None:
    """The mean, and not its sums."""
    model = nn.Identity()
    recorder = ForwardOutput(reduction=Mean(), strict=True).modules(model)
    model(torch.tensor([1.0]))
    model(torch.tensor([2.0]))
    recorded = open_recorded(recorder.save(tmp_path))
    assert recorded[0].tolist() == [1.5]
    assert recorded.reduction == "Mean(axis=None)"
    assert files(tmp_path) == ["000-(root).safetensors", "index.json"]


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    """Slashes, colons and long names are written otherwise; names that differ in case stay apart; models are named."""
    recorder = holding(*map(torch.tensor, range(5)), names=["a/b:c", "A", "a", "x" * 300, "ünï"])
    recorder.children(nn.ModuleDict({"a": nn.Identity()}), name="../G")
    recorder[5] = torch.tensor(5)
    folder = recorder.save(tmp_path / "saved", mkdir=True)
    assert len({name.lower() for name in files(folder)}) == 7
    assert files(tmp_path) == ["saved", *(f"saved/{name}" for name in files(folder))]
    assert "000-a%2Fb%3Ac.safetensors" in files(folder)
    recorded = open_recorded(folder)
    assert [value.item() for value in recorded] == [0, 1, 2, 3, 4, 5]
    assert recorded["ünï"].item() == 4


# Where


def test_path_and_mkdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text or a path; folders and those above are made on request; the arguments are those of Path.mkdir."""
    recorder = holding(torch.ones(1))
    with pytest.raises(StoreError, match="mkdir=True makes it"):
        recorder.save(str(tmp_path / "a"))
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
    recorder.save("there", mkdir=True)
    with pytest.raises(StoreError, match="holds something else"):
        recorder.save(".", overwrite=True)  # it is a recorder's folder, but another one stands in it


def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    """A saved recorder only with ``overwrite``, anything else never."""
    first, second = holding(torch.ones(1)), holding(torch.zeros(1))
    folder = first.save(tmp_path / "saved", mkdir=True)
    with pytest.raises(StoreError, match="overwrite=True"):
        second.save(folder)
    assert open_recorded(folder)[0].tolist() == [1]
    second.save(folder, overwrite=True)
    assert open_recorded(folder)[0].tolist() == [0]
    (folder / "mine.txt").write_text("kept")
    with pytest.raises(StoreError, match="holds something else"):
        first.save(folder, overwrite=True)
    (tmp_path / "file").write_text("kept")
    with pytest.raises(StoreError, match="is a file"):
        first.save(tmp_path / "file", overwrite=True)
    assert (folder / "mine.txt").read_text() == (tmp_path / "file").read_text() == "kept"


def test_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full at the second file: no folder is left, not even those above; what was there before is there."""
    recorder = holding(torch.ones(1), torch.ones(2))
    before = holding(torch.zeros(1)).save(tmp_path / "saved", mkdir=True)
    written: list[Path] = []

    def full(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        written.append(path)
        path.write_bytes(b"half")
        if len(written) % 2 == 0:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "save_file", full)
    for path in (tmp_path / "new" / "deep", before):
        with pytest.raises(StoreError, match=r"cannot be written: .*No space left.*Nothing was changed"):
            recorder.save(path, mkdir=True, overwrite=True)
    assert len(written) == 4
    assert files(tmp_path) == ["saved", "saved/000-layer0.safetensors", "saved/index.json"]
    assert open_recorded(before)[0].tolist() == [0]


def test_what_was_there_is_back_if_it_cannot_be_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old files are out of the way and one of the new ones in place when moving fails."""
    folder = holding(torch.zeros(1), torch.zeros(1)).save(tmp_path / "saved", mkdir=True)
    replace = Path.replace

    def fails(self: Path, target: Path) -> Path:
        if "former" not in str(target) and target.name == "001-layer1.safetensors" and self.parent != folder and not failed:
            failed.append(self)
            raise OSError("moved away")
        return replace(self, target)

    failed: list[Path] = []
    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(StoreError, match="moved away"):
        holding(torch.ones(1), torch.ones(1)).save(folder, overwrite=True)
    assert files(tmp_path) == ["saved", "saved/000-layer0.safetensors", "saved/001-layer1.safetensors", "saved/index.json"]
    assert [value.item() for value in open_recorded(folder)] == [0, 0]


def test_where_one_cannot_write(tmp_path: Path) -> None:
    """Below a file there can be no folder."""
    (tmp_path / "file").write_text("kept")
    with pytest.raises(StoreError, match="cannot be written"):
        holding(torch.ones(1)).save(tmp_path / "file" / "saved", mkdir=True)
    assert files(tmp_path) == ["file"]


# Reading what is broken


def test_what_is_no_saved_recorder(tmp_path: Path) -> None:
    """Each says what is wrong with it."""
    with pytest.raises(StoreError, match=r"index.json cannot be read"):
        open_recorded(tmp_path)
    folder = holding(torch.ones(1)).save(tmp_path / "saved", mkdir=True)
    whole = json.loads((folder / "index.json").read_text())

    def write(**changes: Any) -> None:
        (folder / "index.json").write_text(json.dumps(whole | changes))

    for changes, text in [
        ({"format": "other"}, "of another kind"),
        ({"version": 2}, "written in version 2"),
        ({"slots": [{}]}, "not whole"),
        ({"slots": 3}, "not whole"),
        ({"kind": None, "slots": [whole["slots"][0] | {"site": "?:?"}]}, "not whole"),
    ]:
        write(**changes)
        with pytest.raises(StoreError, match=text):
            open_recorded(folder)
    for changes, text in [
        ({"value": {"code": "import os"}}, "not the written form"),
        ({"file": None}, "no file that could hold it"),
        ({"file": "../saved/000-layer0.safetensors"}, "no file that could hold it"),
        ({"file": "gone.safetensors"}, "cannot be read"),
        ({"value": {"tensor": "other"}}, "cannot be read"),
    ]:
        write(slots=[whole["slots"][0] | changes])
        recorded = open_recorded(folder)
        with pytest.raises(StoreError, match=text):
            recorded[0]


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
