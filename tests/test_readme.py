"""The README's Python runs, and prints what the README says."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks marked with *language* (``""`` for none)."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for mark, text in fenced if mark == language]


def test_the_snippets_run_in_order_and_the_table_is_what_they_print() -> None:
    """All Python blocks run in one namespace; the first ends with the table shown below it."""
    python = blocks("python")
    assert len(python) >= 5
    names: dict[str, object] = {}
    for number, block in enumerate(python):
        exec(compile(block, f"README block {number}", "exec"), names)
        if number == 0:
            assert repr(names["tracker"]) == shown("Tracker")
    assert repr(names["found"]) == shown("Sequential")
    assert names["sizes"]


def shown(start: str) -> str:
    """The output in the README that begins with *start*."""
    return next(block for block in blocks("") if block.startswith(start)).rstrip("\n")
