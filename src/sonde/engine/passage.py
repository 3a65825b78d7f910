"""Which module call made which part of the autograd graph.

Autograd numbers the nodes that a thread makes. When a module call begins or ends, the number that comes next is noted
with the calls that run from then on; so a node's number tells by bisection during which call it was made. Nothing is
hung on tensors or modules.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Hashable
from typing import Any, NamedTuple

from torch import nn

from sonde.engine import structure
from sonde.engine.places import Place

__all__ = ["Call", "ModuleCall", "Passage", "ThreadState"]


class ModuleCall(NamedTuple):
    """A module call that is running, or whose backward is.

    Attributes:
        path: the module's canonical name, as in its sites; ``""`` for the root.
        module: the module.
        call: index of the call within one forward of the root, from 0; None where that is not known, as while the
            gradient of a parameter is accumulated, which belongs to all calls.
        name: what it was called as, beginning with the label of its model: ``GPT.blocks.0``.
    """

    path: str
    module: nn.Module
    call: int | None
    name: str


class Call:
    """A call of the module at a place: the how-manieth, and the call it was made in."""

    __slots__ = ("above", "beneath", "index", "place", "task")

    def __init__(self, place: Place, index: int | None, above: Call | None, task: int, beneath: Call | None) -> None:
        self.place = place
        self.index = index  # None where gradients of many calls are summed
        self.above = above
        self.task = task  # the backward pass that it was made in, as a recomputation is; else -1
        self.beneath = beneath  # the call that goes on when it ends; it differs from above in a recomputation

    def chain(self) -> list[Call]:
        """The calls from the root down to this one."""
        calls: list[Call] = []
        call: Call | None = self
        while call is not None:
            calls.append(call)
            call = call.above
        return calls[::-1]

    def told(self) -> ModuleCall | None:
        """The same for people; None if the module is gone."""
        module = self.place.module()
        return None if module is None else ModuleCall(self.place.path, module, self.index, self.place.name)


class _Token:
    """Lives in the autograd graph, as long as that does."""

    __slots__ = ("__weakref__",)


_RECENT = 16
"""So many calls of roots are remembered in any case: a graph may hang on tensors that no root returned."""


class Passage:
    """One call of a root module (or one recomputation): which calls ran from which number on."""

    __slots__ = ("calls", "counts", "graph", "made", "numbers", "outer", "recording", "task")

    def __init__(self, number: int, task: int, recording: bool, outer: Passage | None) -> None:
        self.numbers: list[int] = [number]
        self.calls: list[Call | None] = [None]
        self.counts: dict[int, int] = {}  # by id of the module; all of them live while the root runs
        self.made: dict[Hashable, list[Call]] = {}  # the calls inside each activation checkpoint, in order
        self.recording = recording  # otherwise no checkpoint can be in it
        self.task = task
        self.outer = outer  # the one in the middle of which it was made
        self.graph: weakref.ref[_Token] | None = None

    def note(self, number: int, call: Call | None) -> None:
        """From *number* on, *call* runs."""
        if self.numbers[-1] == number:
            self.calls[-1] = call
        else:
            self.numbers.append(number)
            self.calls.append(call)

    def count(self, place: Place) -> int:
        """The index of the call of that module which begins now."""
        index = self.counts.get(place.key, 0)
        self.counts[place.key] = index + 1
        return index

    def covers(self, number: int) -> bool:
        """Whether the node of that number was made in it."""
        return self.numbers[0] <= number and (self.calls[-1] is not None or number < self.numbers[-1])

    def at(self, number: int) -> Call | None:
        """The innermost call that made the node of that number."""
        return self.calls[bisect_right(self.numbers, number) - 1]

    def tie(self, output: Any) -> None:
        """Remember it as long as the graph behind *output* lives."""
        token = _Token()
        for _, leaf in structure.walk(output):
            node = leaf.grad_fn
            if node is not None and self.covers(node._sequence_nr()):
                metadata: dict[Any, Any] = node.metadata  # type: ignore[assignment]  # torch declares a method
                metadata.setdefault("sonde", []).append(token)
                self.graph = weakref.ref(token)

    def is_needed(self) -> bool:
        """Whether the graph that it was tied to lives."""
        return self.graph is not None and self.graph() is not None


class ThreadState:
    """What one thread runs, and what its graphs were made by."""

    __slots__ = ("in_backward", "passage", "passages", "recalled", "thread", "top")

    def __init__(self) -> None:
        self.thread = weakref.ref(threading.current_thread())
        self.top: Call | None = None
        self.passage: Passage | None = None
        self.passages: list[Passage] = []  # as they began, so by number
        self.recalled: tuple[Hashable, int] = (None, 0)  # the checkpoint that is recomputed, and how far
        self.in_backward: list[Call] = []  # for callbacks: the calls whose backward runs

    def open(self, number: int, task: int, recording: bool) -> Passage:
        """Begin a passage, in the middle of the one that runs; those whose graphs are gone are forgotten."""
        if task == -1:
            recent = len(self.passages) - _RECENT
            kept = enumerate(self.passages)
            self.passages = [held for index, held in kept if held.task == -1 and (index >= recent or held.is_needed())]
        self.passage = Passage(number, task, recording, self.passage if self.top is not None else None)
        self.passages.append(self.passage)
        return self.passage

    def close(self) -> None:
        """End the passage that was begun last."""
        if self.passage is not None:
            self.passage = self.passage.outer

    def abandon(self) -> None:
        """Nothing runs: an interrupt kept what did from ending."""
        self.top = self.passage = None

    def passage_of(self, number: int) -> Passage | None:
        """The passage in which this thread made the node of that number."""
        index = bisect_right(self.passages, number, key=lambda passage: passage.numbers[0])
        passage = self.passages[index - 1] if index else None
        while passage is not None and not passage.covers(number):
            passage = passage.outer
        return passage

    def is_needed(self) -> bool:
        """Whether its thread or one of its graphs lives."""
        thread = self.thread()
        return (thread is not None and thread.is_alive()) or any(passage.is_needed() for passage in self.passages)
