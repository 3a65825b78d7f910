"""Nothing that a test hooks may be left behind, and nothing it sets may stay set."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.hooks import RemovableHandle

from sonde.engine.probes.gradients import Watch
from sonde.engine.torch_api import hooks

_registered: list[tuple[weakref.ref[Any], int]] = []
_register = RemovableHandle.__init__


def _remember(handle: RemovableHandle, hooks_dict: Any, **extra: Any) -> None:
    _register(handle, hooks_dict, **extra)
    _registered.append((handle.hooks_dict_ref, handle.id))
    if len(_registered) > 1_000:
        _registered[:] = [(dictionary, key) for dictionary, key in _registered if key in (dictionary() or ())]


RemovableHandle.__init__ = _remember  # type: ignore[method-assign]


def our_hooks() -> list[str]:
    """Every hook of ours that was registered since the last test and is still in its dictionary."""
    left = []
    for dictionary, key in _registered:
        held = dictionary()
        hook = None if held is None else held.get(key)
        if isinstance(hook, Watch):
            continue  # on a tensor of a graph, with which it goes
        if isinstance(hook, hooks.Hook) or (getattr(hook, "__module__", None) or "").startswith("sonde."):
            left.append(str(hook))
    return left


@pytest.fixture(autouse=True)
def no_hook_is_left() -> Iterator[None]:
    """After each test, no module, parameter, living leaf or optimizer holds a hook of ours."""
    _registered.clear()
    yield
    if our_hooks():
        gc.collect()  # a probe in a reference cycle of the test's own
    assert our_hooks() == []


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test draws the same random numbers."""
    torch.manual_seed(0)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """A compiler that has seen nothing, with its settings restored afterwards."""
    import torch._dynamo

    torch._dynamo.reset()
    before = torch._dynamo.config.skip_nnmodule_hook_guards
    torch._dynamo.config.skip_nnmodule_hook_guards = True
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    torch._dynamo.config.skip_nnmodule_hook_guards = before
