"""What goes wrong is one line on standard error, exit code 2, and no traceback; an end from outside has its own code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sonde.cli import main
from sonde.run import start_run

READING = ("show", *(pytest.param(name, marks=pytest.mark.slow) for name in ("check", "report", "plot", "graph")))
"""The commands that are given one run."""


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that cannot be done, and return the line that says why."""
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith(f"sonde {words[0]}: ")
    return lines[0]


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["shwo", "runs"])
    assert left.value.code == 2
    assert "there is no command 'shwo'. Nearest: show." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("info quiet-otter --jsn", "there is no option '--jsn'. Nearest: --json."),
        ("info quiet-otter other", "'other' is one argument too many; sonde info --help lists the arguments"),
        ("ui runs --port 99999999", "'99999999' is no port: give a number from 0 to 65535"),
    ],
)
def test_an_argument_that_a_command_does_not_take(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(line.split())
    assert left.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_run_without_rows_is_neither_healthy_nor_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with start_run("runs/quiet-otter"):
        pass
    assert main(["check", "quiet-otter"]) == 2
    assert "nothing could be judged, 0 rules judged 0 logged steps" in capsys.readouterr().out
    assert "runs/quiet-otter has nothing to export" in refused(capsys, "export", "quiet-otter")
    assert "--every 10 keeps one step of ten" in refused(capsys, "prune", "quiet-otter")


@pytest.mark.parametrize("command", READING)
def test_a_run_that_is_not_there(command: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The nearest names below runs, and beside what was given; a file, an empty folder, and no runs at all."""
    assert "Nearest: quiet-otter." in refused(capsys, command, "quiet-oter")
    assert "Nearest: runs/quiet-otter" in refused(capsys, command, "runs/quiet-oter")
    assert "run.json is a file" in refused(capsys, command, "runs/quiet-otter/run.json")
    assert "give its folder, runs/quiet-otter" in refused(capsys, command, "runs/quiet-otter/run.json")
    (project / "empty").mkdir()
    assert "there is no run in empty" in refused(capsys, command, "empty")
    assert "NUL" in refused(capsys, command, "a\0b")
    (project / "runs").rename(project / "other")
    assert "there is no folder 'runs' here" in refused(capsys, command)


@pytest.mark.parametrize("command", READING)
def test_a_run_that_cannot_be_read(command: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Damaged, and written by a newer sonde."""
    file = project / "runs" / "quiet-otter" / "run.json"
    text = file.read_text()
    file.write_text(text.replace('"version": 6', '"version": 99'))
    assert "version 99 of the run format" in refused(capsys, command, "quiet-otter")
    file.write_text(text[:100])
    assert "cannot be read" in refused(capsys, command, "quiet-otter")


@pytest.mark.slow
def test_a_damaged_part_is_one_line_and_the_rest_is_shown(project: Path) -> None:
    """In a process of its own: without the line of sonde's code that gave the warning."""
    (part,) = (project / "runs" / "quiet-otter" / "activation").glob("*.parquet")
    part.write_bytes(part.read_bytes()[:-1])
    done = sonde_in(project, "show", "quiet-otter")
    assert done.returncode == 0
    assert "medians over steps" in done.stdout
    assert done.stderr.startswith("sonde show: the part ")
    assert "is damaged and is left out" in done.stderr
    assert all(line.startswith("sonde show: ") for line in done.stderr.splitlines())


def test_what_a_run_does_not_have_names_the_nearest(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Nearest: moments" in told(capsys, "show", "quiet-otter", "--family", "moment")
    assert "selects none of" in told(capsys, "show", "quiet-otter", "--layers", "blocks")
    assert "'[' is no regular expression" in told(capsys, "show", "quiet-otter", "--layers", "[")
    assert "the nearest are" in told(capsys, "show", "quiet-otter", "--step", "3")
    assert "Nearest: dead" in refused(capsys, "check", "quiet-otter", "--rules", "daed=off")
    assert "Nearest: float16" in refused(capsys, "check", "quiet-otter", "--what-if", "floot16")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """As :func:`refused`, of a command that has printed a part of its answer before."""
    assert main(list(words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_cannot_be_written(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another form, a folder that cannot be made, a folder in place of a file; a missing folder is made."""
    assert ".html" in refused(capsys, "report", "quiet-otter", "-o", "page.pdf")
    (project / "file").write_text("")
    assert "file" in refused(capsys, "report", "quiet-otter", "-o", "file/page.html")
    (project / "folder.html").mkdir()
    assert "folder.html" in refused(capsys, "report", "quiet-otter", "-o", "folder.html")
    assert main(["compare", "mine", "theirs", "-o", "deep/down/page.html"]) == 1
    assert (project / "deep" / "down" / "page.html").stat().st_size > 1000


def test_both_sides_of_a_comparison(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no run, and the other side is one" in refused(capsys, "compare", "mine", "quiet-otter")
    assert "saved tensors beside it: mine, theirs" in refused(capsys, "compare", "mine", "thiers")
    assert "Nearest: quiet-otter" in refused(capsys, "compare", "mine", "quiet-oter")
    assert "write a name of a, =, and a name of b" in refused(capsys, "compare", "mine", "theirs", "--match", "layers")


def sonde_in(folder: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    env = os.environ | settings
    command = [sys.executable, "-m", "sonde", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120)


def test_a_closed_pipe_is_no_error(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As that of ``| head``: whether rich prints, or print does."""
    for words in (["show", "quiet-otter"], ["list", "--json"]):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as pipe, monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", pipe)
            assert main(words) == 141
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize("words", [["show", "quiet-otter"], ["list", "--json"], ["--help"], ["show", "--help"]])
def test_nothing_is_said_at_the_end_of_a_closed_pipe(words: list[str], made: Path) -> None:
    """Not by Python either, as it ends."""
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen([sys.executable, "-m", "sonde", *words], cwd=made, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    _, said = process.communicate(timeout=120)
    assert said == b""
    assert process.returncode in (0, 141)  # argparse takes a closed pipe for the end of its help


@pytest.mark.slow
def test_a_terminal_without_unicode_shows_what_it_can(made: Path) -> None:
    done = sonde_in(made, "show", "quiet-otter", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "medians over steps" in done.stdout


def test_interrupted_at_any_moment_has_code_130(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sonde.cli.check.find_run", interrupted)
    assert main(["check", "quiet-otter"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
