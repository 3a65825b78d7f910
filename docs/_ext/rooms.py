"""Write the body of ``rooms.md``: the rooms from the ground up, each with its purpose, its face and what it stands on.

``python docs/_ext/rooms.py`` writes the page anew; a test compares the page with the source.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sonde"
PAGE = ROOT / "docs" / "rooms.md"
BEGIN, END = "<!-- from the source -->\n", "<!-- end -->\n"


@cache
def layers() -> list[list[str]]:
    """Return the rooms and modules of the ground by layers, the lowest first, as the contract of imports has them."""
    held = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = held["tool"]["importlinter"]["contracts"]
    whole = next(each for each in contracts if each["name"] == "Imports point down")
    return [layer.split(" | ") for layer in reversed(whole["layers"])]


def face(room: str) -> Path:
    """Return the file that lists the names of a room, or the module of the ground itself."""
    stub, module, alone = SOURCE / room / "__init__.pyi", SOURCE / room / "__init__.py", SOURCE / f"{room}.py"
    return alone if alone.is_file() else stub if stub.is_file() else module


def names(room: str) -> dict[str, list[str]]:
    """Return the public names on the face of *room*, by the comment that stands above them in the file; ``""`` for none."""
    text = face(room).read_text(encoding="utf-8")
    comments = [
        (number, line[2:]) for number, line in enumerate(text.splitlines(), 1) if re.match(r"# (?!isort|noqa|type|A name)", line)
    ]
    listed = _listed(text)
    found: dict[str, list[str]] = {}
    for node in ast.parse(text).body:
        here = set(_bound(node, is_ground=face(room).parent == SOURCE))
        if bound := sorted(here & listed if listed else here, key=lambda name: (name.lower(), name)):
            above = max((each for each in comments if each[0] < node.lineno), default=(0, ""))[1]
            found.setdefault(above, []).extend(each for each in bound if each not in found.get(above, []))
    return found


def _listed(text: str) -> set[str]:
    """Return the names in ``__all__``, where it is written out; else none."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" and isinstance(node.value, ast.List):
            return set(ast.literal_eval(node.value))
    return set()


def _bound(node: ast.stmt, *, is_ground: bool) -> Iterator[str]:
    """Yield the public names that a statement binds; what a module of the ground imports belongs to another."""
    if isinstance(node, ast.Import | ast.ImportFrom) and not is_ground:
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("sonde")):
            yield from (name for alias in node.names if (name := alias.asname or alias.name)[0] != "_")
    elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name) and target.id[0] != "_")


def stands_on(room: str) -> list[str]:
    """Return the other rooms and modules of the ground that *room* imports from, the lowest first."""
    files = [SOURCE / f"{room}.py"] if (SOURCE / f"{room}.py").is_file() else sorted((SOURCE / room).rglob("*.py"))
    used: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
                path = node.module.split(".")
                held = [path[1]] if len(path) > 1 else [alias.name for alias in node.names]
                used |= {each for each in held if path[0] == "sonde"}
    return [each for layer in layers() for each in layer if each in used and each != room]


def purpose(room: str) -> str:
    """Return the first paragraph of the docstring of a room's face, in Markdown."""
    text = ast.get_docstring(ast.parse((face(room).with_suffix(".py")).read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", first).replace("``", "`")


def body() -> str:
    """Return the part of the page that is made from the source."""
    ground = [each for layer in layers() for each in layer if (SOURCE / f"{each}.py").is_file() and each != "types"]
    rooms = [each for layer in layers() for each in layer if (SOURCE / each).is_dir()]
    lines = ["## The ground", "", "| module | what for | names |", "|---|---|---|"]
    for module in ground:
        listed = ", ".join(f"`{name}`" for held in names(module).values() for name in held)
        lines.append(f"| `sonde.{module}` | {purpose(module)} | {listed} |")
    lines += ["", "## The rooms", ""]
    for room in rooms:
        lines += [f"### `sonde.{room}`", "", purpose(room), ""]
        for above, held in names(room).items():
            listed = ", ".join(f"`{name}`" for name in held)
            lines.append(f"- {above or 'Names'}: {listed}")
        below = ", ".join(f"`{each}`" for each in stands_on(room))
        lines += ["", f"Stands on {below or 'nothing'}.", ""]
    return "\n".join(lines)


def written(page: str) -> str:
    """Return the text of *page* with its body made anew."""
    head, rest = page.split(BEGIN)
    return head + BEGIN + "\n" + body() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
