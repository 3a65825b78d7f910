"""Which module call made which part of the autograd graph.

Autograd numbers the nodes that a thread makes. When a module call begins or ends, the number that comes next is noted
with the calls that run from then on; so a node's number tells by bisection during which call it was made. Nothing is
hung on tensors or modules.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Hashable
from typing import Any, NamedTuple

from torch import nn

from sonde.engine import structure
from sonde.engine.calls.module_paths import ModuleNode
from sonde.engine.torch_api import autograd_state, hooks

__all__ = ["Call", "ModuleCall", "RootCall"]


class ModuleCall(NamedTuple):
    """A module call that is running, or whose backward is.

    Attributes:
        path: the module's canonical name, as in its sites; ``""`` for the root.
        module: the module; None in the backward of one that is gone.
        call: index of the call within one forward of the root, from 0; None where that is not known, as while the
            gradient of a parameter is accumulated, which belongs to all calls.
        name: what it was called as, beginning with the label of its model: ``GPT.blocks.0``.
    """

    path: str
    module: nn.Module | None
    call: int | None
    name: str


class Call:
    """A call of the module at a place: the how-manieth, the call it was made in, and the passage it is part of."""

    __slots__ = ("above", "beneath", "index", "passage", "place")

    def __init__(self, place: ModuleNode, index: int | None, above: Call | None, passage: RootCall, beneath: Call | None) -> None:
        self.place = place
        self.index = index  # None where gradients of many calls are summed
        self.above = above
        self.passage = passage
        self.beneath = beneath  # the call that goes on when it ends; it differs from above in a recomputation

    def chain(self) -> list[Call]:
        """The calls from the root down to this one."""
        calls: list[Call] = []
        call: Call | None = self
        while call is not None:
            calls.append(call)
            call = call.above
        return calls[::-1]

    def told(self) -> ModuleCall:
        """The same for people."""
        return ModuleCall(self.place.path, self.place.module(), self.index, self.place.name)


class _Token:
    """Lives in the autograd graph, as long as that does."""

    __slots__ = ("__weakref__",)


class RootCall:
    """One call of a root module (or one recomputation): which calls ran from which number on."""

    __slots__ = ("calls", "counts", "graph", "made", "numbers", "order", "outer", "reached", "recording", "task")

    def __init__(self, number: int, task: int, recording: bool, outer: RootCall | None) -> None:
        self.numbers: list[int] = [number]
        self.calls: list[Call | None] = [None]
        self.counts: dict[int, int] = {}  # by id of the module; all of them live while the root runs
        self.order: list[Call] = []  # the calls inside activation checkpoints
        self.made: dict[Hashable, int] = {}  # where in them each checkpoint began
        self.recording = recording  # otherwise no checkpoint can be in it
        self.task = task  # the backward pass that it was made in, as a recomputation is; else -1
        self.outer = outer  # the one in the middle of which it was made
        self.graph: weakref.ref[_Token] | None = None
        self.reached: int | None = None  # the last backward pass that came to it through its output; None if that cannot be told

    def begin(self, place: ModuleNode, above: Call | None, beneath: Call | None, number: int) -> Call:
        """From *number* on, a new call of that module runs."""
        counts, key = self.counts, place.key
        index = counts[key] = counts.get(key, -1) + 1
        call = Call(place, index, above, self, beneath)
        if self.recording and (checkpoint := autograd_state.checkpoint_made()) is not None:
            self.made.setdefault(checkpoint, len(self.order))
            self.order.append(call)
        if self.numbers[-1] == number:  # as note does: this runs at every call
            self.calls[-1] = call
        else:
            self.numbers.append(number)
            self.calls.append(call)
        return call

    def note(self, number: int, call: Call | None) -> None:
        """From *number* on, *call* runs."""
        if self.numbers[-1] == number:
            self.calls[-1] = call
        else:
            self.numbers.append(number)
            self.calls.append(call)

    def covers(self, number: int) -> bool:
        """Whether the node of that number was made in it."""
        return self.numbers[0] <= number and (self.calls[-1] is not None or number < self.numbers[-1])

    def at(self, number: int) -> Call | None:
        """The innermost call that made the node of that number."""
        return self.calls[bisect_right(self.numbers, number) - 1]

    def tie(self, output: Any, *, watched: bool) -> None:
        """Remember it as long as the graph behind *output* lives; *watched*, and note which backward passes come through that."""
        token = _Token()
        for _, leaf in structure.walk(output):
            node = leaf.grad_fn
            if node is not None and self.covers(autograd_state.sequence_of_node(node)):
                metadata: dict[Any, Any] = node.metadata  # type: ignore[assignment]  # torch declares a method
                metadata.setdefault("sonde", []).append(token)
                self.graph = weakref.ref(token)
                if watched:
                    self.reached = -1
                    hooks.on_node(node, _Reaches(self))

    def nearness(self, task: int) -> int:
        """Where threads have made nodes of the same numbers: how sure it is that *task* runs those of this one; 0 is best."""
        return 1 if self.reached is None else 0 if self.reached == task else 2

    def is_needed(self) -> bool:
        """Whether the graph that it was tied to lives."""
        return self.graph is not None and self.graph() is not None


class _Reaches:
    """A backward pass comes to the output of a passage."""

    __slots__ = ("passage",)

    def __init__(self, passage: RootCall) -> None:
        self.passage = passage

    def __call__(self, gradients: Any) -> None:
        self.passage.reached = autograd_state.graph_task()
