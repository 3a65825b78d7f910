"""The package is typed: user code is accepted by a strict checker, and wrong calls are found before they run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RIGHT = """
from typing import assert_type

import torch
from torch import nn

import sonde

model = nn.Linear(2, 1)
with sonde.track(model, include=nn.Linear) as tracker:
    model(torch.ones(1, 2)).sum().backward()
assert_type(tracker, sonde.Tracker)
assert_type(sonde.open_run("x"), sonde.Run)
assert_type(sonde.summary(model, torch.ones(1, 2)), sonde.types.Summary)
assert_type(sonde.preflight(model, torch.ones(1, 2), nn.functional.relu), sonde.types.Preflight)
assert_type(sonde.why_nan(model, torch.ones(1, 2)), sonde.types.NonFinite)
with sonde.watch(model, every=10, to="memory") as inspector:
    inspector.push_loss(0.5, train=True)
assert_type(inspector, sonde.Inspector)
"""
WRONG = {
    'sonde.track("model")': "arg-type",
    "sonde.watch(model, evry=10)": "call-arg",
    "sonde.open_run(3)": "arg-type",
    'sonde.summary(model, torch.ones(1, 2), on_error="never")': "arg-type",
    "sonde.types.Tick(0).stepp": "attr-defined",
}
HEAD = "import torch\nfrom torch import nn\n\nimport sonde\n\nmodel = nn.Linear(2, 1)\n"

pytestmark = pytest.mark.slow


def errors(program: str, folder: Path) -> list[str]:
    """The errors of *program* that mypy finds under its strict rules; what it imports is read and not judged."""
    (folder / "user.py").write_text(program)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--no-error-summary",
        "--cache-dir",
        ".cache",
        "user.py",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert not done.stderr, done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def test_a_type_checker_knows_what_calls_return_and_finds_wrong_ones(tmp_path: Path) -> None:
    assert not errors(RIGHT, tmp_path)
    found = errors(HEAD + "\n".join(WRONG) + "\n", tmp_path)
    first = HEAD.count("\n") + 1
    assert [(int(line.split(":")[1]), line.rpartition("[")[2].rstrip("]")) for line in found] == [
        (first + number, code) for number, code in enumerate(WRONG.values())
    ]
