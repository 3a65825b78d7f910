"""Compile copies as the model is compiled, and count their graphs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sonde.engine import compiler_state, is_called_compiled, members, regions, unwrap


class Backend:
    """Counts the graphs that a backend compiles. Code that another backend compiled is not used again under this one.

    Attributes:
        graphs: how many there were.

    Args:
        model: whose first compiled part says which backend compiles; inductor where nothing is compiled.
    """

    def __init__(self, model: nn.Module) -> None:
        self.graphs = 0
        found = (compiler_state.backend_of(module) for module in model.modules())
        self._compile: Callable[..., Any] = next(filter(None, found), None) or compiler_state.inductor()

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        self.graphs += 1
        return self._compile(graph, inputs, **options)


@contextmanager
def compiled_anew(original: nn.Module, made: nn.Module, backend: Backend) -> Iterator[nn.Module]:
    """Compile in *made*, a copy, what is compiled in *original*, or everything where nothing is; yield what is to be called.

    A part that ``compile()`` has compiled in place is compiled in place; any other gets a wrapper, as by ``torch.compile``, since
    Dynamo traces the classes of torch only in one.
    """
    tops = {region.top for region in regions(original)} or {unwrap(original)}
    copies = {item.name: item.module for item in members(made)}
    called = made
    for item in members(original):
        if item.module not in tops or item.name not in copies:
            continue
        copy = copies[item.name]
        if is_called_compiled(item.module):
            copy.compile(backend=backend)
            continue
        wrapper: Any = torch.compile(copy, backend=backend)
        if item.name:
            parent, _, name = item.name.rpartition(".")
            setattr(copies[parent], name, wrapper)
        else:
            called = wrapper
    compiler_state.notice_hooks()  # as watch does; else code compiled for an unobserved copy would serve for an observed one
    with torch.compiler.set_stance("default"):
        yield called


@dataclass
class Compilations:
    """What was compiled in a few steps.

    Attributes:
        graphs: after each step, the number of graphs so far.
        breaks: how often a graph was broken off.
        first: seconds of the first step.
    """

    graphs: list[int] = field(default_factory=list)
    breaks: int = 0
    first: float = 0.0


def counted(step: Callable[[], None], backend: Backend, steps: int) -> Compilations:
    """Return what is compiled in so many *steps*."""
    found = Compilations()
    before, start = compiler_state.graph_breaks(), time.perf_counter()
    for number in range(steps):
        step()
        found.graphs.append(backend.graphs)
        if not number:
            found.first = time.perf_counter() - start
    found.breaks = compiler_state.graph_breaks() - before
    return found
