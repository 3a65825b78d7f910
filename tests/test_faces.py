"""Rooms are known from their doors: what a folder of ``src/sonde`` uses of another stands on that one's face, its ``__init__``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "sonde"
ROOMS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
PROGRAMS = ["docs", "examples", "benchmarks"]

STATEMENTS, NAMES = 59_740, 446
"""What was reached: see :func:`test_the_size_is_a_ratchet`."""


@cache
def modules() -> frozenset[str]:
    """Return the full names of all modules and folders of sonde."""
    parts = [
        path.relative_to(SOURCE.parent).with_suffix("").parts for path in SOURCE.rglob("*.py*") if path.suffix in (".py", ".pyi")
    ]
    return frozenset(".".join(part for part in held if part != "__init__") for held in parts)


@cache
def bound(room: str) -> frozenset[str]:
    """Return the names that a room's face binds, which come before modules of the same name."""
    names: set[str] = set()
    for path in (SOURCE / room).glob("__init__.py*"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(names)


def imported(tree: ast.AST, package: str = "") -> Iterator[str]:
    """Yield the full name of everything that a module imports from sonde, also as text (``import_module("sonde.x")``)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (given.value for given in node.args if isinstance(given, ast.Constant) and isinstance(given.value, str))


def past_faces(tree: ast.AST, mine: str = "", package: str = "") -> list[str]:
    """Return the names that *tree*, a module of the room *mine*, imports past the face of another room."""
    found = []
    for name in imported(tree, package):
        parts = name.split(".")
        if parts[0] != "sonde" or len(parts) < 3 or parts[1] not in ROOMS or parts[1] == mine:
            continue
        is_inside = len(parts) > 3 or (name in modules() and parts[2] not in bound(parts[1]))
        if is_inside and not (len(parts) == 4 and is_public_module(".".join(parts[:3]))):
            found.append(name)
    return found


def is_public_module(name: str) -> bool:
    """Return whether a module stands on its room's face as a module: its names are public then (``sonde.view.plots``)."""
    _, room, module = name.split(".")
    faces = [path.read_text(encoding="utf-8") for path in (SOURCE / room).glob("__init__.py*")]
    own = rf"^from (\.|sonde\.{room}) import {module}( as {module})?$"
    return name in modules() and any(re.search(own, face, re.MULTILINE) for face in faces)


def statements(tree: ast.AST) -> int:
    """Return the number of statements, without docstrings; a lambda counts as two."""
    return sum(2 if isinstance(node, ast.Lambda) else isinstance(node, ast.stmt) and not is_text(node) for node in ast.walk(tree))


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def sources() -> list[tuple[str, str, ast.Module]]:
    """Return the room, the package and the tree of every module and stub; files of ``src/sonde`` itself are in no room: ``""``."""
    found = []
    for path in sorted(SOURCE.rglob("*.py*")):
        if path.suffix in (".py", ".pyi"):
            inner = path.relative_to(SOURCE)
            room = inner.parts[0] if len(inner.parts) > 1 else ""
            found.append((room, ".".join(["sonde", *inner.parts[:-1]]), ast.parse(path.read_text(encoding="utf-8"))))
    return found


def test_the_size_is_a_ratchet() -> None:
    """Statements, and names that rooms use of each other. Lower the limits when you can; who raises one says what for."""
    count, used = 0, set()
    for mine, package, tree in sources():
        count += statements(tree)
        for name in imported(tree, package):
            parts = name.split(".")
            if parts[0] == "sonde" and len(parts) > 2 and parts[1] != mine:
                used.add(name)
    assert count <= STATEMENTS, "more statements than before: say in the commit which capability they serve"
    assert len(used) <= NAMES, "more names on faces than before: could the room keep one to itself?"


def test_no_room_imports_past_the_face_of_another() -> None:
    """In no file of the library: not for a type, not in a function, not in a stub, not as text."""
    wrong: dict[str, list[str]] = {}
    for mine, package, tree in sources():
        if found := past_faces(tree, mine, package):
            wrong.setdefault(package, []).extend(found)
    assert wrong == {}


@pytest.mark.parametrize("folder", PROGRAMS)
def test_programs_for_people_import_from_faces(folder: str) -> None:
    """Pages, examples and benchmarks show the names that people may use."""
    wrong = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        if found := past_faces(ast.parse(path.read_text(encoding="utf-8"))):
            wrong[str(path.relative_to(ROOT))] = found
    for path in sorted((ROOT / folder).rglob("*.md")):
        for block in re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            lines = [line.strip() for line in block.splitlines() if re.match(r"\s*(from sonde|import sonde)[\w.]* ?", line)]
            if found := [name for line in lines if line.count("(") == line.count(")") for name in past_faces(ast.parse(line))]:
                wrong[str(path.relative_to(ROOT))] = found
    assert wrong == {}
