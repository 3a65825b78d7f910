"""The ``sonde`` command itself: its help, its exit codes, and that only the command that is run is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sonde.cli
from sonde.cli import COMMANDS, main


def test_every_file_is_a_command_and_every_command_a_file() -> None:
    files = {path.stem for path in Path(sonde.cli.__file__).parent.glob("*.py")} - {
        "__init__",
        "completers",
        "given",
        "run_options",
        "versions",
    }
    assert files == set(COMMANDS)


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out = capsys.readouterr().out
    assert all(name in out and text.split()[0] in out for name, text in COMMANDS.items())
    assert main(["--version"]) == 0
    assert sonde.__version__ in capsys.readouterr().out


def test_help_imports_no_command_and_no_torch() -> None:
    code = (
        "import sys; from sonde.cli import main; main(['--version']); "
        "print([name for name in sys.modules if name == 'torch' or name.startswith('sonde.cli.')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"
