"""A shell completes subcommands, options, runs, files and functions, in bash itself, and without importing what is slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sonde.cli import COMMANDS, main
from sonde.cli.completers import complete_folders, complete_functions, complete_runs
from sonde.run import start_run

pytest.importorskip("argcomplete")

SOURCE = "import nowhere\n\ndef setup():\n    pass\n\ndef _hidden():\n    pass\n\nclass Net:\n    pass\n\ndef single():\n    pass\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with runs, a program that cannot be imported, and a command ``sonde`` that lists what it has imported."""
    monkeypatch.chdir(tmp_path)
    for name in ("calm-heron", "quiet-otter", "sweep/lr-1"):
        start_run(f"runs/{name}").close()
    (tmp_path / "train.py").write_text(SOURCE)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "models.py").write_text(SOURCE)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "sonde"
    kept = f"open({str(tmp_path / 'imported')!r}, 'w').write(' '.join(sys.modules))"
    program = f"import os, sys\nfrom sonde.cli import main\nend = os._exit\ndef leave(code):\n    {kept}\n    end(code)\n"
    command.write_text(f"#!{sys.executable}\n{program}os._exit = leave\nsys.exit(main())\n")
    command.chmod(0o755)
    return tmp_path


def completed(project: Path, line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What bash offers after *line* and the tab key."""
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    words = " ".join(f"'{word}'" for word in line.split(" "))
    asks = f"""{script}
PATH='{project}/bin':"$PATH"
complete -p sonde > /dev/null || exit 3
COMP_LINE='{line}' COMP_POINT={len(line)} COMP_TYPE=9 COMP_WORDS=({words}) COMP_CWORD={line.count(" ")}
_python_argcomplete sonde
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", asks], cwd=project, capture_output=True, text=True, check=True, timeout=120)
    return sorted(word.strip() for word in done.stdout.splitlines() if word.strip())


def test_bash_completes_commands_options_and_runs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one process each; nothing slow is imported for any of them."""
    assert completed(project, "sonde co", capsys) == ["compare", "completion"]
    assert completed(project, "sonde show q", capsys) == ["quiet-otter"]
    imported = set((project / "imported").read_text().split())
    assert not {"torch", "numpy", "duckdb", "pyarrow", "rich", "nowhere"} & imported


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("sonde ", [*sorted(["--help", "--version", "-h", *COMMANDS])]),
        ("sonde list --st", ["--state"]),
        ("sonde list --state f", ["failed"]),
        ("sonde show runs/", ["runs/calm-heron/", "runs/quiet-otter/", "runs/sweep/"]),
        ("sonde show s", ["sweep/lr-1"]),
        ("sonde doctor tr", ["train.py:"]),
        ("sonde doctor train.py:s", ["setup", "single"]),  # bash has cut the word at the colon
        ("sonde compare calm-heron q", ["quiet-otter"]),
        ("sonde completion z", ["zsh"]),
    ],
)
def test_bash_completes(line: str, found: list[str], project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert completed(project, line, capsys) == found


def test_runs_folders_and_functions_complete_a_prefix(project: Path) -> None:
    assert list(complete_runs("")) == ["calm-heron", "quiet-otter", "sweep/lr-1", "bin/", "package/", "runs/"]
    assert list(complete_runs("sweep/l")) == ["sweep/lr-1"]
    assert list(complete_folders("runs/s")) == ["runs/sweep/"]
    assert list(complete_folders(f"{project}/p")) == [f"{project}/package/"]
    assert list(complete_functions("")) == ["train.py:", "bin/", "package/", "runs/"]
    for module in ("train.py", "train", "package/models.py", "package.models"):
        assert list(complete_functions(f"{module}:s")) == [f"{module}:setup", f"{module}:single"]
    assert list(complete_functions("nowhere.py:")) == []
    (project / "broken.py").write_text("def (")
    assert list(complete_functions("broken.py:")) == []


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete "), ("zsh", "compdef "), ("fish", "complete --command sonde")])
def test_each_shell_has_its_lines(shell: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert word in capsys.readouterr().out


def test_without_argcomplete_the_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    monkeypatch.setitem(sys.modules, "argcomplete.shell_integration", None)
    assert main(["completion", "bash"]) == 2
    assert "sonde[completion]" in capsys.readouterr().err
