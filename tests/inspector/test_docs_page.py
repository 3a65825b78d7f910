"""The page on watching says what is so: its code runs in order, and prints what it shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from sonde import lens
from sonde.inspector.lenses.builtin import default_lenses
from sonde.inspector.pipeline import findings

PAGE = (Path(__file__).parents[2] / "docs" / "watch.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_runs_and_prints_what_the_page_shows() -> None:
    """All blocks of code as one program; a block of text is the end of what was printed before it."""
    space: dict[str, Any] = {"__name__": "watch_page"}
    printed = io.StringIO()
    for kind, text in BLOCK.findall(PAGE):
        if kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(text, "docs/watch.md", "exec", dont_inherit=True), space)
            if "60 of 60" in printed.getvalue():
                shown = re.search(r"^2 findings: .*$", PAGE, re.MULTILINE)
                assert shown is not None
                assert shown[0] in printed.getvalue().splitlines()
        else:
            assert printed.getvalue() == text


def test_every_lens_is_in_the_table() -> None:
    """With the family that it writes; and the limits of the rules are those of the code."""
    for name in lens.__all__:
        made = getattr(lens, name)
        if isinstance(made, type) and issubclass(made, lens.Lens) and made is not lens.Lens:
            assert f"`lens.{name}()`" in PAGE
            assert f"`{made().name}`" in PAGE
    assert [each.name for each in default_lenses() if isinstance(each, lens.Lens)] == ["moments"]
    assert f"more than {findings.DEAD_SHARE * 100:.0f} %" in PAGE
    assert f"over {findings.GRADIENT_LARGE:.0f} times" in PAGE
