"""Private names of torch are used in one place, and listed there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
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


# A torch that lacks one of them

TAKEN_AWAY = """
import importlib, os, sys, traceback, warnings
import torch, torch._dynamo, pandas, pyarrow.parquet, duckdb, rich.table
from torch import nn

def take(name):
    *path, last = name.split(".")
    holder = torch
    for part in path[1:]:
        holder = getattr(holder, part) if hasattr(holder, part) else importlib.import_module(f"{holder.__name__}.{part}")
    if name in sys.modules:
        sys.modules[name] = None
    if hasattr(holder, last):
        delattr(holder, last)

def train():
    import sonde
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 1, 6, 6)).square().mean().backward()
            optimizer.step()
    with sonde.track(model) as tracker:
        model(torch.randn(4, 1, 6, 6)).sum().backward()
    steps, norms = inspector.run.series("4:grad_output", "rms")
    rows = inspector.run.sql("SELECT port, count(*) FROM moments GROUP BY port ORDER BY port").fetchall()
    sums = [parameter.sum().item() for parameter in model.parameters()]
    digits = [f"{number:.5g}" for number in (*norms.tolist(), *sums)]  # a convolution may round otherwise in another process
    return digits, rows, len(tracker)

def child(name):
    try:
        take(name) if name else None
        warnings.simplefilter("error")
        return f"ran {train()!r}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"

for name in ["", *sys.argv[1:]]:
    read, write = os.pipe()
    if not os.fork():
        os.write(write, child(name).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        print(name, "::", *answer.read().split(), flush=True)
    os.wait()
"""


TORCHS_OWN = {
    "torch.autograd.Variable._execution_engine",
    "torch._C._stash_obj_in_tls",
    "torch._C._set_grad_enabled",
    "torch._dynamo.eval_frame.innermost_backend",
}
"""Without these torch itself does not run this training."""


@pytest.mark.slow
def test_without_a_name_sonde_does_less_or_says_that_it_cannot() -> None:
    """Each name of the list that can be taken away is: a torch without it gives one clear error, or the same numbers as with it."""
    names = [private.name for private in PRIVATE_NAMES if private.name.startswith("torch.") and private.name not in TORCHS_OWN]
    done = subprocess.run(
        [sys.executable, "-c", TAKEN_AWAY, *names],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
    )
    whole, *rest = (line.split(" :: ", 1) if not line.startswith("::") else ["", line[3:]] for line in done.stdout.splitlines())
    assert whole[1].startswith("ran")
    found: dict[str, str] = dict(rest)
    assert list(found) == names
    needed = {private.name for private in PRIVATE_NAMES if private.name in names and private.is_needed}
    for name, answer in found.items():
        if name in needed:
            assert answer.startswith("TorchVersionError")
            assert name in answer
            assert "Runs and kept tensors can be read" in answer
        else:
            assert answer == whole[1], name
