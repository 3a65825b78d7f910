"""``sonde demo``: two trainings, the table of the second, what is wrong with it, and two pictures in its folder."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from sonde.cli import demo

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")  # importing it takes a second


def printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    parser = argparse.ArgumentParser()
    demo.arguments(parser)
    assert demo.run(parser.parse_args(["--epochs", "2", "-o", str(folder)])) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")


def test_it_says_what_is_wrong_and_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The dead layer by its name, that its gradient was zero at each logged step (of 46, 0 to 45), and where the pictures are."""
    pytest.importorskip("matplotlib")
    out = printed(tmp_path, capsys)
    assert "blocks.2.act is dead: 100 %" in out
    assert f"sonde ui {tmp_path}\n" in out
    assert (tmp_path / "demo" / "graph.json").exists()
    assert "blocks.2.fc1.weight was exactly zero at 10 of 10 logged steps" in out
    rows = [line.split()[0] for line in out.splitlines() if line.startswith(("stem", "blocks.", "head"))]
    assert rows[:3] == ["stem", "blocks.0.norm", "blocks.0.fc1"]
    for name in ("gradients.png", "dead_units.png"):
        file = tmp_path / "demo-2" / "pictures" / name
        assert str(file) in out
        assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_without_matplotlib_all_but_the_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which extra is missing is said in a line."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = printed(tmp_path, capsys)
    assert "blocks.2.act is dead" in out
    assert "no pictures: " in out
    assert not (tmp_path / "demo-2" / "pictures").exists()
