"""The walk-throughs of CONTRIBUTING.md are true: applied to a copy of sonde, each adds its capability and touches nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COUNTS = {"No": 0, "One": 1, "Two": 2, "Three": 3, "Four": 4}


@dataclass
class Change:
    """One walk-through.

    Attributes:
        promise: how many files it adds, and how many lines it adds to files that exist.
        files: the text of each new file, by path.
        lines: (path, old text, new text) of each changed place.
        shown: (program, its output) in the order of the page.
    """

    promise: tuple[int, int]
    files: dict[str, str]
    lines: list[tuple[str, str, str]]
    shown: list[tuple[str, str]]

    @staticmethod
    def read(section: str) -> Change:
        """Parse a section: a block that begins with a path is a file, a block ``diff`` a change, any other of Python a program."""
        promised = re.search(r"\*\*(\w+) files?, (\w+) lines?\*\*", section)
        assert promised is not None, "a walk-through says how many files and lines it takes"
        change = Change((COUNTS[promised[1]], COUNTS[promised[2].capitalize()]), {}, [], [])
        for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
            first, _, rest = block.partition("\n")
            if language == "python" and first.startswith("# src/"):
                change.files[first.removeprefix("# ")] = rest
            elif language == "diff":
                kept = [line[1:] for line in rest.splitlines() if line[0] != "+"]
                new = [line[1:] for line in rest.splitlines() if line[0] != "-"]
                change.lines.append((first.removeprefix("--- "), "\n".join(kept) + "\n", "\n".join(new) + "\n"))
            elif language == "python":
                change.shown.append((block, ""))
            elif language == "text":
                change.shown[-1] = (change.shown[-1][0], block)
        return change

    @property
    def size(self) -> tuple[int, int]:
        """The number of new files, and of new or changed lines in other files."""
        return len(self.files), sum(len(set(new.splitlines()) - set(old.splitlines())) for _, old, new in self.lines)

    def apply(self, root: Path) -> None:
        """Write the new files and lines below *root*."""
        for path, text in self.files.items():
            assert not (root / path).exists(), f"{path} is there already"
            (root / path).write_text(text, encoding="utf-8")
        for path, old, new in self.lines:
            text = (root / path).read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{path} has these lines {text.count(old)} times:\n{old}"
            (root / path).write_text(text.replace(old, new), encoding="utf-8")


CHANGES = {
    title: Change.read(body) for title, body in re.findall(r"^### (A new [a-z]+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
}


def test_there_is_a_walk_through_for_each_kind_of_change() -> None:
    kinds = ["statistic", "preprocessor", "lens", "port", "picture", "command", "column", "rule"]
    assert list(CHANGES) == [f"A new {kind}" for kind in kinds]


LONG = {"A new statistic", "A new picture", "A new preprocessor", "A new lens", "A new port"}


@pytest.mark.parametrize(
    "change", [pytest.param(each, id=title, marks=pytest.mark.slow if title in LONG else ()) for title, each in CHANGES.items()]
)
def test_a_walk_through_works_with_the_files_and_lines_that_it_names(change: Change, tmp_path: Path) -> None:
    """In a copy of sonde: its programs print the output below them and no warning, and new files pass the linter."""
    assert change.size == change.promise
    shutil.copytree(ROOT / "src" / "sonde", tmp_path / "src" / "sonde")
    change.apply(tmp_path)
    settings = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    assert change.shown
    for program, output in change.shown:
        ran = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=settings, check=False
        )
        assert (ran.stderr, ran.returncode) == ("", 0)
        assert ran.stdout == output
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        lint = [sys.executable, "-m", "ruff", *command, *change.files, *{path for path, _, _ in change.lines}]
        ran = subprocess.run(lint, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert ran.returncode == 0, ran.stdout
