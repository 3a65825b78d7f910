"""Private names of torch are used in one place, and listed there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sonde
from sonde.engine.torch_api.private_names import PRIVATE_NAMES

SOURCE = Path(sonde.__file__).parent
ALLOWED = (
    SOURCE / "engine" / "torch_api",
    SOURCE / "stats" / "kernels" / "torch_private.py",
    SOURCE / "stats" / "distributed" / "torch_c10d.py",
    SOURCE / "stats" / "pieces.py",
)

LISTED = {part for private in PRIVATE_NAMES for part in private.name.split(".") if part.startswith("_")}
OF_OBJECTS = {private.name.split(".")[1] for private in PRIVATE_NAMES if not private.name.startswith("torch.")}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def chain(node: ast.AST) -> list[str]:
    """``a.b.c`` as its parts; empty for anything but names joined by dots."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        above = chain(node.value)
        return [*above, node.attr] if above else []
    return []


def private_names_in(text: str) -> Iterator[str]:
    """Private parts of what is imported from torch or reached from it, and of attributes that torch's objects have."""
    tree = ast.parse(text)
    from_torch = {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            from_torch |= {alias.asname or alias.name for alias in node.names}
            yield from filter(is_private, (*(node.module or "").split("."), *(alias.name for alias in node.names)))
        if isinstance(node, ast.Import):
            yield from (
                part
                for alias in node.names
                if alias.name.startswith("torch.")
                for part in alias.name.split(".")
                if is_private(part)
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = chain(node)
            if parts and parts[0] in from_torch:
                yield from filter(is_private, parts)
            elif node.attr in OF_OBJECTS and parts[:1] not in (["self"], ["cls"]):
                yield node.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and name.value in LISTED:
                yield str(name.value)


def test_private_parts_of_torch_are_touched_in_one_place() -> None:
    found = {
        str(path.relative_to(SOURCE)): names
        for path in SOURCE.rglob("*.py")
        if not any(path.is_relative_to(allowed) for allowed in ALLOWED)
        and (names := sorted(set(private_names_in(path.read_text()))))
    }
    assert found == {}


def test_every_private_name_in_use_is_listed() -> None:
    used: set[str] = set()
    for allowed in ALLOWED:
        for path in [allowed] if allowed.is_file() else allowed.glob("*.py"):
            used |= set(private_names_in(path.read_text()))
    assert used - LISTED - {"_C", "_dynamo", "_autograd", "_functorch", "_guards", "_library", "_subclasses"} == set()


@pytest.mark.parametrize("private", PRIVATE_NAMES, ids=lambda private: private.name)
def test_a_listed_name_is_there_and_used(private: object) -> None:
    """In the torch that sonde is tested with; a name that is not used any more is taken off the list."""
    assert private.is_present()  # type: ignore[attr-defined]
    last = private.name.rsplit(".", 1)[-1]  # type: ignore[attr-defined]
    texts = [path.read_text() for allowed in ALLOWED for path in ([allowed] if allowed.is_file() else allowed.glob("*.py"))]
    assert any(last in text for text in texts if "PRIVATE_NAMES" not in text)


def test_a_name_that_torch_lacks_is_found_missing() -> None:
    from sonde.engine.torch_api.private_names import PrivateName

    for name in ("torch._C._no_such_name", "Tensor._no_such_name", "torch._no_such_module.name"):
        assert not PrivateName(name, "nothing", "nothing").is_present()


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch._subclasses import fake_tensor",
        "from torch.utils import _pytree",
        "import torch\ntorch._C._current_graph_task_id()",
        "from torch import nn\nnn.Module._call_impl",
        "def f(module):\n    return module._forward_hooks",
        "def f(x):\n    return x.grad_fn._sequence_nr()",
        "def f(x):\n    return getattr(x, '_version')",
    ],
)
def test_the_walk_finds(line: str) -> None:
    assert list(private_names_in(line))


@pytest.mark.parametrize("line", ["self._version()", "import torch\ntorch.__version__", "from torch import nn\nnn.Linear", "x._y"])
def test_the_walk_passes(line: str) -> None:
    assert not list(private_names_in(line))
