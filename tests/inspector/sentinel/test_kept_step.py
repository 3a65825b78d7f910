"""A kept step that is damaged, of another version, of another model, or cannot be written: said in clear words."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.inspector.sentinel.faults import BAD, Planted, train, watched
from tests.inspector.sentinel.test_planted_faults import log_of_negative
from torch import nn

import sonde
from sonde.errors import ArgumentError, NonFiniteError, ObservationWarning, StoreError
from sonde.inspector.sentinel.kept_step import read_step
from sonde.run.folder.json_file import write_json

FILES = ("step.json", "model.safetensors", "passes.safetensors")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a step, which no test changes."""
    model = Planted(log_of_negative)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = tmp_path_factory.mktemp("kept") / "run"
    with pytest.raises(NonFiniteError), watched(model, optimizer, run, bad_steps="stop"):
        train(model, optimizer)
    return run / "nonfinite" / f"step-{BAD:08d}"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "step"))


def test_nothing_is_left_but_the_files_of_the_page(made: Path) -> None:
    assert sorted(path.name for path in made.parent.iterdir()) == [made.name]
    assert sorted(path.name for path in made.iterdir()) == sorted([*FILES, "report.txt", "reproduce.py"])


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(name: str, folder: Path) -> None:
    (folder / name).unlink()
    with pytest.raises(StoreError, match=name):
        sonde.replay(folder, Planted(log_of_negative))


def cut(written: bytes) -> bytes:
    return written[: len(written) // 2]


def empty(written: bytes) -> bytes:
    return b""


def one_byte(written: bytes) -> bytes:
    """Change one digit of a number, or one bit of a tensor."""
    place = written.rindex(b"7") if written.startswith(b"{") else len(written) - 2
    return written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :]


@pytest.mark.parametrize("damage", [cut, empty, one_byte], ids=lambda each: each.__name__)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(name: str, damage: Callable[[bytes], bytes], folder: Path) -> None:
    file = folder / name
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(StoreError, match=f"{name} (cannot be read|is damaged, or was changed)"):
        read_step(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_kind_or_a_link_out_of_the_folder_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    (folder / name).rename(tmp_path / name)
    (folder / name).mkdir()
    with pytest.raises(StoreError, match=name):
        read_step(folder)
    if name != "step.json":
        (folder / name).rmdir()
        (folder / name).symlink_to(tmp_path / name)
        with pytest.raises(StoreError, match="is a link out of this folder"):
            read_step(folder)


def described(folder: Path) -> dict[str, Any]:
    data = json.loads((folder / "step.json").read_text())
    del data["checksum"]
    assert isinstance(data, dict)
    return data


def test_a_step_of_version_1_is_read(folder: Path) -> None:
    data = described(folder)
    for name in ("checksums", "loss", "lost"):
        del data[name]
    numbers = {name: [3, 0, 8] for name in data["gradients"]}
    write_json(folder / "step.json", data | {"version": 1, "gradients": numbers | {"before.bias": [0, 2, 8]}}, sync=False)
    step = read_step(folder)
    assert step.gradients == dict.fromkeys(numbers, "NaN") | {"before.bias": "inf"}
    assert sonde.replay(folder, Planted(log_of_negative)).operation == "log"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 9}, "version 9, and this sonde reads versions 1 to 2: update sonde"),
        ({"format": "sonde-run"}, "its format is 'sonde-run' and not 'sonde-step'"),
        ({"version": None}, "describes no kept step"),
        ({"passes": [{}]}, "is not whole"),
        ({"as_pairs": 3}, "is not whole"),
        ({"buffers": ["none"]}, "is not whole"),
    ],
)
def test_another_version_or_form_is_said(change: dict[str, Any], words: str, folder: Path) -> None:
    write_json(folder / "step.json", described(folder) | change, sync=False)
    with pytest.raises(StoreError, match=words):
        read_step(folder)


def test_a_folder_without_a_step_is_said(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StoreError, match=r"holds no kept step.*give the folder that was printed"):
            sonde.replay(path, nn.Linear(1, 1))


def narrower() -> nn.Module:
    model = Planted(log_of_negative)
    model.after = nn.Linear(8, 1)
    return model


def without_bias() -> nn.Module:
    model = Planted(log_of_negative)
    model.after = nn.Linear(8, 2, bias=False)
    return model


def with_more() -> nn.Module:
    model = Planted(log_of_negative)
    model.more = nn.Linear(2, 2)
    return model


OTHERS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "shape": (narrower, r"its parameter 'after.weight' is 1×8, in the step 2×8 \(and 1 more\)"),
    "missing": (without_bias, "it has no parameter 'after.bias'"),
    "more": (with_more, "the step has no parameter 'more.weight'"),
    "dtype": (lambda: Planted(log_of_negative).double(), "its parameter 'before.weight' is float64, in the step float32"),
    "class": (lambda: nn.Linear(4, 2), "this Linear differs from the model of the step, a Planted: it has no parameter"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_in_another_model_is_said(name: str, made: Path) -> None:
    make, words = OTHERS[name]
    with pytest.raises(ArgumentError, match=words):
        sonde.replay(made, make())


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Let no file grow beyond 20 kB, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_training_goes_on_where_the_disk_is_full(full_disk: None, tmp_path: Path) -> None:
    model = nn.Sequential(Planted(log_of_negative).before, nn.Linear(8, 2000))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    taken = 0
    with (
        watched(model, optimizer, tmp_path / "run", lenses=sonde.lens.moments(), rules=False) as inspector,
        pytest.warns(ObservationWarning) as warned,
    ):
        for step in range(12):
            optimizer.zero_grad()
            loss = model(torch.rand(3, 4)).square().mean()
            (loss * torch.nan if step == 7 else loss).backward()
            optimizer.step()
            taken += 1
    assert taken == 12
    messages = [str(each.message) for each in warned]
    assert any("the step could not be kept in" in message and "File too large" in message for message in messages)
    assert any(message.startswith("step 7: 4 of 4 gradients hold NaN") for message in messages)
    assert not any("is given up" in message for message in messages)
    assert list((tmp_path / "run" / "nonfinite").iterdir()) == []
    assert inspector.findings[0].step == 7
