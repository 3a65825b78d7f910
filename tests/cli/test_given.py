"""`sonde doctor` and `sonde preflight` run what a function of the user returns; what goes wrong there is one line and code 2."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sonde.cli import main

SOURCE = """
import torch
from torch import nn


def setup():
    return nn.Linear(4, 3), torch.ones(2, 4), lambda output: output.square().mean()


class Shy(nn.Linear):
    def forward(self, x):
        return super().forward(x) + bool(self._forward_hooks)


def shy():
    return Shy(4, 3), torch.ones(2, 4)


def dead():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    nn.init.constant_(model[0].bias, -9)
    return model, torch.ones(2, 4), lambda output: output.square().mean()


def wide():
    return nn.Linear(5, 3), torch.ones(2, 4)


def raising():
    raise ValueError("no data")


def alone():
    return nn.Linear(4, 3)
"""


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file of a user in the folder where the command runs."""
    (tmp_path / "a_training.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    before, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = before
    for name in {"a_training"} & (sys.modules.keys() - known):
        del sys.modules[name]


@pytest.mark.parametrize("given", ["a_training.py:setup", "a_training:setup"])
def test_a_function_of_a_file_or_a_module_is_examined(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", given, "--json", "--seconds", "1e-6"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["model"] == "Linear"


def test_the_exit_code_of_what_is_bad_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "a_training.py:shy", "--seconds", "1e-6"]) == 1
    assert "pass 0: output" in capsys.readouterr().out
    assert main(["preflight", "a_training.py:dead", "--checks", "alive"]) == 1
    assert main(["preflight", "a_training.py:setup", "--checks", "runs", "--html", "page.html"]) == 0
    assert "sonde.preflight" in Path("page.html").read_text()


WRONG = {
    "a_training.py:stup": "a_training.py has no function 'stup'. Nearest: setup",
    "a_trianing:setup": "there is no module a_trianing here",
    "nowhere.py:setup": "there is no file nowhere.py",
    "setup": "write the module or file, a colon, and the function",
    "a_training.py:alone": "returned a Linear: return (model, batch)",
    "a_training.py:raising": "raising() raised ValueError: no data (a_training.py:30: raise ValueError",
    "a_training.py:wide": "the model raised RuntimeError: ",
}


@pytest.mark.parametrize("given", WRONG)
def test_an_error_is_one_line_and_exit_code_2(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", given, "--json", "--seconds", "1e-6"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("sonde doctor: ")
    assert said.err.count("\n") == 1
    assert WRONG[given] in said.err
    assert said.out == ""


def test_an_option_that_cannot_be_used_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "a_training.py:setup", "--checks", "rnus"]) == 2
    assert "no check" in capsys.readouterr().err
