"""The help of every command: examples that run, exit codes, eighty columns, and nothing slow that is imported for it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from sonde.cli import COMMANDS, main

SLOW = ("torch", "pandas", "duckdb", "pyarrow", "numpy", "matplotlib", "rich")


def helped(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


def examples(command: str) -> list[str]:
    lines = import_module(f"sonde.cli.{command}").EXAMPLES.splitlines()
    return [line for line in lines if line.startswith("sonde ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_two_examples_or_three_and_the_exit_codes_in_eighty_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = helped(command, capsys)
    assert 2 <= len(examples(command)) <= 3
    assert all(f"  {line}" in said for line in examples(command))
    assert "exit code: 0 " in said
    assert [line for line in said.splitlines() if len(line) > 80] == []


def test_every_option_means_the_same_everywhere() -> None:
    """One short name and one metavar for each option, over all commands."""
    import argparse

    known: dict[str, set[tuple[object, ...]]] = {}
    for command in COMMANDS:
        parser = argparse.ArgumentParser()
        import_module(f"sonde.cli.{command}").arguments(parser)
        for action in parser._actions:
            for name in action.option_strings:
                if name in ("-o", "--layers", "--number", "--from", "--to", "--json"):
                    known.setdefault(name, set()).add((action.dest if name != "-o" else "", type(action)))
    assert {name: len(found) for name, found in known.items() if len(found) > 1} == {}


def test_no_help_imports_what_is_slow() -> None:
    """All helps in one process, and the general one."""
    code = f"""
import contextlib, io, json, sys
from sonde.cli import COMMANDS, main
found = {{}}
for command in ("", *COMMANDS):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main([*filter(None, [command]), "--help"])
    found[command] = [name for name in {SLOW!r} if name in sys.modules]
print(json.dumps({{command: names for command, names in found.items() if names}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == {}


@pytest.fixture(autouse=True)
def own_imports() -> Iterator[None]:
    """The files that examples import are forgotten."""
    before, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = before
    for name in {"train", "mine", "theirs"} & (sys.modules.keys() - known):
        del sys.modules[name]


ENDLESS = {"ui"}  # it serves a page until Ctrl-C
LONG = {"doctor", "preflight", "demo", "report", "plot", "graph", "show", "compare", "check"}


def run_examples(command: str) -> None:
    from sonde.cli import main

    for line in examples(command):
        words = shlex.split(line.split("||")[0].split(">")[0].partition("  ")[0])
        assert main(words[1:]) in (0, 1), line


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ENDLESS | LONG])
def test_examples_run(command: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As they stand there, in a folder with runs; what follows three spaces is a remark."""
    sweep = project / "sweep"
    sweep.mkdir()
    (project / "runs" / "calm-heron").rename(sweep / "lr-0.1") if command == "list" else None
    run_examples(command)
    assert capsys.readouterr().err.count("Traceback") == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(LONG))
def test_long_examples_run(command: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_examples(command)
