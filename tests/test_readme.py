"""The README's Python runs, and prints what the README says."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")

BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)

# bfloat16 products are rounded in an order that depends on the processor
INEXACT = ("UpdateRounding",)


def printed(block: str, names: dict[str, Any]) -> str:
    """What a notebook would show below *block*: what it prints, then the value of a last line that is an expression."""
    tree = ast.parse(block)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(tree, "README", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "README", "eval"), names)
            if value is not None:
                shown.write(f"{value!r}\n")
    return shown.getvalue()


def test_the_snippets_run_in_order_and_show_what_stands_below_them() -> None:
    """All Python blocks run in one namespace; a block without a language right after one of them is what it shows."""
    assert sum(language == "python" for language, _ in BLOCKS) >= 12
    names: dict[str, Any] = {}
    compared = 0
    shown = ""
    for language, block in BLOCKS:
        if language == "python":
            shown = printed(block, names)
        elif language == "" and shown:
            if block.startswith(INEXACT):
                assert masked(shown) == masked(block)
            else:
                assert shown == block
            compared += 1
            shown = ""
    assert compared >= 5


def masked(text: str) -> list[str]:
    """The words of *text*, numbers as one sign."""
    return re.sub(r"[\d.]+", "#", text).split()
