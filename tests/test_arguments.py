"""Every argument of a public function does something, or says in its docstring why not."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import sonde

ROOT = Path(sonde.__file__).parent

UNREAD = {
    "is_container": {"name"},  # conditions are called with a name and a module
    "GraphvizStyler.style_edge": {"fnode", "tnode"},  # to be overridden
    "cut_off": {"loss"},  # of rules: what the finding carries as evidence, by name
    "eps_large": {"elements"},
    "update_lost": {"most"},
    "frozen_raw": {"few"},
    "nonfinite": {"count"},
    "would_overflow": {"scaled"},
    "would_underflow": {"scaled"},
    "OutputNorm.__init__": {"inplace", "evaluation_from_grad", "channel_last"},
    "OutputActivation.__init__": {"inplace", "evaluation_from_grad"},
    **{
        f"{lens}.__init__": {"inplace"}
        for lens in (
            "OutputGradientGeometry",
            "ParameterGradientGeometry",
            "ParameterGradientActivation",
            "ParameterNorm",
            "ParameterCond",
            "ParameterUpdateGeometry",
        )
    },
}
"""Arguments that no statement of the function reads."""

EXPLAINED = ("see :class:", "makes no difference", "has no effect")
"""Words by which a docstring explains an argument of a constructor or of ``save`` that changes nothing."""


@cache
def functions() -> list[tuple[str, ast.ClassDef | None, ast.FunctionDef]]:
    """Return each public function and method of the library, and each constructor, with its class."""
    return list(_found())


def _found() -> Iterator[tuple[str, ast.ClassDef | None, ast.FunctionDef]]:
    for path in sorted(ROOT.rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for owner in (None, *classes):
            for node in tree.body if owner is None else owner.body:
                public = owner is None or not owner.name.startswith("_")
                if isinstance(node, ast.FunctionDef) and (node.name == "__init__" or (public and not node.name.startswith("_"))):
                    yield file, owner, node


def unread(node: ast.FunctionDef) -> set[str]:
    """The arguments that no statement of *node* reads; none of a function without a body."""
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    body = [part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    if marks & {"overload", "abstractmethod"} or not body:
        return set()
    read = {name.id for part in body for name in ast.walk(part) if isinstance(name, ast.Name)}
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return {each.arg for each in given if not each.arg.startswith("_")} - read - {"self", "cls"}


def test_every_argument_is_read_but_those_with_a_reason() -> None:
    """A method that several classes define has one signature for all, of which each reads its part."""
    classes = Counter(node.name for _, owner, node in functions() if owner is not None and node.name != "__init__")
    found: dict[str, set[str]] = {}
    for file, owner, node in functions():
        foreign = file.startswith(("testing/", "integrations/"))  # methods that other projects call with arguments of their choice
        if unread(node) and not foreign and classes[node.name if owner else ""] < 2:
            found.setdefault(f"{owner.name}.{node.name}" if owner else node.name, set()).update(unread(node))
    assert found == UNREAD


def test_what_changes_nothing_says_so_where_people_look() -> None:
    """In the docstring of the class, or of the method."""
    for _, owner, node in functions():
        if owner is None or not unread(node) or (node.name not in ("__init__", "save")):
            continue
        text = (ast.get_docstring(owner if node.name == "__init__" else node) or "").splitlines()
        for name in unread(node):
            lines = [line for line in text if f"{name}:" in line or f"{name}," in line]
            assert any(word in line for line in lines for word in EXPLAINED), f"{owner.name}: {name} is not explained"


def test_every_wish_that_a_lens_writes_into_a_run_is_read_by_a_picture() -> None:
    """A key that nobody reads is an argument that does nothing."""
    drawn = (ROOT / "view" / "plots" / "plan.py").read_text() + (ROOT / "view" / "plots" / "number_names.py").read_text()
    read = {node.value for node in ast.walk(ast.parse(drawn)) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    model_free = [
        sonde.lens.moments(),
        sonde.lens.exponents(),
        sonde.lens.LossMetrics(),
        sonde.lens.OutputActivation(death_aggregation="max"),
        sonde.lens.OutputNorm(comparison_aggregation="max"),
        sonde.lens.OutputGradientGeometry(),
        sonde.lens.ParameterGradientGeometry(),
        sonde.lens.ParameterGradientActivation(),
        sonde.lens.ParameterNorm(),
        sonde.lens.ParameterCond(),
        sonde.lens.ParameterUpdateGeometry(compute_correlation=True),
    ]
    about = {"family", "statistic", "ports", "numbers", "metrics"}  # what the lens is, not how it is drawn
    written = {key for each in model_free for lens in (each, *getattr(each, "also", ())) for key in lens.described()} - about
    assert written - read == set()
