"""`sonde compare` of live models: each comes from a function, and the exit code says whether they part."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sonde.cli import main

SOURCE = """
import torch
from torch import nn


def setup():
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), torch.randn(2, 4), lambda output: output.square().mean()


def same():
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))


def other():
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3, eps=1e-2))


def renamed():
    model = nn.Sequential()
    model.add_module("up", nn.Linear(4, 3))
    model.add_module("norm", nn.LayerNorm(3))
    return model


def halved():
    return same(), torch.ones(1, 4), lambda output: output.square().mean() / 2


def train():
    model, batch, loss = setup()
    return model, batch, loss, torch.optim.SGD(model.parameters(), lr=0.1)


def train_faster():
    model, batch, loss = setup()
    return model, batch, loss, torch.optim.SGD(model.parameters(), lr=0.2)


def wide():
    return nn.Linear(5, 3)


def wrong():
    return 3
"""


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file of a user in the folder where the command runs."""
    (tmp_path / "some_models.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield
    sys.path[:] = before
    sys.modules.pop("some_models", None)


def compared(capsys: pytest.CaptureFixture[str], code: int, *given: str) -> dict[str, Any]:
    functions = [f"some_models.py:{name}" for name in given[:2]]
    assert main(["compare", *functions, *given[2:], "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_equal_models_have_the_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    """Both functions begin with the same random state, so that models that are made alike are alike."""
    assert compared(capsys, 0, "setup", "same")["ok"] is True
    assert compared(capsys, 0, "setup", "renamed", "--match", "0=up", "--match", "1=norm")["ok"] is True


def test_models_that_part_have_the_code_1_and_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(capsys, 1, "setup", "other")["culprit"]["site"] == "1:output"
    assert main(["compare", "some_models:setup", "some_models:other", "--html", "page.html"]) == 1
    assert "eps is 1e-05 in a and 0.01 in b" in " ".join(capsys.readouterr().out.split())
    assert "eps" in Path("page.html").read_text()


def test_the_batch_and_the_loss_are_those_of_a_unless_each_is_to_have_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    functions = ["some_models.py:setup", "some_models.py:halved"]
    assert main(["compare", *functions]) == 0
    assert "both models are given the batch and the loss of some_models.py:setup" in capsys.readouterr().err
    assert main(["compare", *functions, "--own-batch"]) == 1
    assert main(["compare", "some_models.py:halved", "some_models.py:same"]) == 0


def test_steps_of_two_optimizers_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(capsys, 0, "train", "setup")["ok"] is True
    assert compared(capsys, 1, "train", "train_faster")["ok"] is False


WRONG = {
    ("some_models.py:setup", "runs"): "'runs' is no function: write the module or file, a colon, and the function",
    ("some_models.py:same", "some_models.py:setup"): "returned a Sequential: return (model, batch)",
    ("some_models.py:setup", "some_models.py:wrong"): "returned a int: return the model, (model, batch), or",
    ("some_models.py:setup", "some_models.py:smae"): "has no function 'smae'. Nearest: same",
    ("some_models.py:setup", "some_models.py:wide"): "comparing the models raised RuntimeError: ",
    ("some_models.py:setup", "some_models.py:same", "--own-batch"): "returns a model alone; let it return (model, batch)",
    ("mine", "theirs", "--own-batch"): "'mine' is no function",
}


@pytest.mark.parametrize("given", WRONG, ids=" ".join)
def test_an_error_is_one_line_and_exit_code_2(given: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *given]) == 2
    said = capsys.readouterr()
    assert WRONG[given] in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
