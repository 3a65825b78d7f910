"""No test and no page quotes torch: its words differ between versions."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.torch_words import words_of
from torch import Tensor, nn

ROOT = Path(__file__).parent.parent
OF_TORCH = {"RuntimeError", "NotImplementedError"}
"""Kinds of errors that are hardly ever of sonde: what is matched with them says torch, or the test itself."""


def written(x: Tensor) -> Tensor:
    y = x.exp()
    y += 1
    return y.sum().backward()  # type: ignore[no-untyped-call, no-any-return]


MISTAKES: dict[str, Callable[[], object]] = {
    "shapes that do not fit": lambda: nn.Linear(3, 1)(torch.ones(2, 5)),
    "shapes that cannot be broadcast": lambda: torch.ones(2) + torch.ones(3),
    "parts that cannot be joined": lambda: torch.cat([torch.ones(2, 1), torch.ones(3, 2)]),
    "a gradient of nothing": lambda: torch.ones(1).sum().backward(),  # type: ignore[no-untyped-call]
    "a gradient of many": lambda: torch.ones(2, requires_grad=True).exp().backward(),  # type: ignore[no-untyped-call]
    "a leaf written into": lambda: torch.ones(2, requires_grad=True).add_(1),
    "a saved tensor written into": lambda: written(torch.ones(2, requires_grad=True)),
    "more than one number": lambda: torch.ones(6).item(),
    "no truth of many": lambda: bool(torch.ones(2)),
}


def quoted(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield what ``pytest.raises`` matches with errors of torch's kinds."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "raises" and call.args:
            kinds = {name.id for name in ast.walk(call.args[0]) if isinstance(name, ast.Name)}
            matched = next((keyword.value for keyword in call.keywords if keyword.arg == "match"), None)
            if kinds & OF_TORCH and isinstance(matched, ast.Constant):
                yield matched


def not_its_own(text: str) -> list[str]:
    """Return the quotes of a test file whose words stand nowhere else in it."""
    tree = ast.parse(text)
    quotes = list(quoted(tree))
    own = [
        each.value
        for each in ast.walk(tree)
        if isinstance(each, ast.Constant) and each not in quotes and isinstance(each.value, str)
    ]
    return [str(each.value) for each in quotes if not any(re.search(str(each.value), line) for line in own)]


def test_an_error_of_torchs_kinds_is_matched_with_the_tests_own_words() -> None:
    """Else ``words_of`` asks torch."""
    assert not_its_own('pytest.raises(RuntimeError, match="mat1")') == ["mat1"]
    assert not_its_own('pytest.raises(RuntimeError, match="mine"); RuntimeError("it is mine")') == []
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    asked = {path: text for path, text in texts.items() if any(f"raises({kind}" in text for kind in OF_TORCH)}
    assert {str(path.relative_to(ROOT)): found for path, text in asked.items() if (found := not_its_own(text))} == {}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_no_test_and_no_page_quotes_what_torch_says_about(mistake: str) -> None:
    """Its words up to the first number, as this torch says them."""
    said = words_of(MISTAKES[mistake]).replace("\\", "")
    opening = max(re.split(r"[\d(\[:,]", said), key=len).strip()
    assert len(opening) > 12
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "examples").rglob("*.py"),
    ]
    assert [str(path.relative_to(ROOT)) for path in pages if opening in path.read_text()] == []
