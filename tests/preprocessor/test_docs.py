"""The code of docs/preprocessors.md runs, and shows what the page says."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from sonde import preprocessor

PAGE = (Path(__file__).parents[2] / "docs" / "preprocessors.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def shown(code: str, names: dict[str, Any]) -> str:
    """Run *code* in *names*; how its last line shows itself, as in a console."""
    tree = ast.parse(code)
    assert isinstance(tree.body[-1], ast.Expr), "a block on this page ends with what it shows"
    exec(compile(ast.Module(tree.body[:-1], []), "docs/preprocessors.md", "exec"), names)
    return repr(eval(compile(ast.Expression(tree.body[-1].value), "docs/preprocessors.md", "eval"), names))


def test_every_block_shows_what_the_page_says() -> None:
    """Blocks alternate: Python, and what it shows. They run in one namespace, as a reader would type them."""
    assert [mark for mark, _ in BLOCKS] == ["python", ""] * (len(BLOCKS) // 2)
    names: dict[str, Any] = {"__name__": "docs"}
    for (_, code), (_, output) in zip(BLOCKS[::2], BLOCKS[1::2], strict=True):
        assert shown(code, names) == output.rstrip("\n")


def test_every_preprocessor_is_in_the_table() -> None:
    table = PAGE.partition("## What there is")[2].partition("## By hand")[0]
    held = vars(preprocessor).items()
    kinds = {name for name, kind in held if isinstance(kind, type) and issubclass(kind, preprocessor.AbstractPreprocessor)}
    listed = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))))
    assert listed == {name for name in kinds if not name.startswith("Abstract")}
