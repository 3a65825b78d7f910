"""What one thread runs, and which of its graphs are remembered."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Iterable

from torch import nn

from sonde.engine.calls.call_log import Call, RootCall
from sonde.engine.calls.recomputation import Recall

__all__ = ["ThreadState"]

_RECENT = 16
"""So many calls of roots are remembered in any case: a graph may hang on tensors that no root returned."""


class ThreadState:
    """What one thread runs, and what its graphs were made by."""

    __slots__ = ("crossing", "in_backward", "passages", "recall", "thread", "top")

    def __init__(self) -> None:
        self.thread = weakref.ref(threading.current_thread())
        self.top: Call | None = None
        self.passages: list[RootCall] = []  # as they began, so by number
        self.recall = Recall()
        self.in_backward: list[Call] = []  # for callbacks: the calls whose backward runs
        self.crossing = -1  # for callbacks: the backward pass that runs

    def open(self, number: int, task: int, recording: bool) -> RootCall:
        """Begin a passage, in the middle of the one that runs; those whose graphs are gone are forgotten."""
        if task == -1:
            recent = len(self.passages) - _RECENT
            kept = enumerate(self.passages)
            self.passages = [held for index, held in kept if held.task == -1 and (index >= recent or held.is_needed())]
        passage = RootCall(number, task, recording, None if self.top is None else self.top.passage)
        self.passages.append(passage)
        return passage

    def settle(self, number: int, running: Iterable[nn.Module]) -> None:
        """Of the calls, only those of *running* (the outermost first) still run: an interrupt kept the others from ending."""
        alive, left = None, iter(running)
        for call in self.begun()[::-1]:
            if not any(module is call.place.module() or module is call.place.held() for module in left):
                break
            alive = call
        for call in self.begun():
            if call is alive:
                break
            self.end(call, number)

    def begun(self) -> list[Call]:
        """The calls that run, the innermost first, also those in the middle of which a recomputation was begun."""
        calls: list[Call] = []
        call = self.top
        while call is not None:
            calls.append(call)
            call = call.beneath
        return calls

    def skip_to(self, module: nn.Module, number: int) -> Call | None:
        """The innermost call of *module*, if it runs; those inside it never ended."""
        calls = self.begun()
        found = next((call for call in calls if call.place.key == id(module)), None)
        for call in calls[: 0 if found is None else calls.index(found)]:
            self.end(call, number)
        return found

    def end(self, call: Call, number: int) -> bool:
        """The innermost call ends at that number; whether a passage ends with it that has made nodes, so that it is remembered."""
        beneath = self.top = call.beneath
        if beneath is not None and beneath.passage is call.passage:
            call.passage.note(number, beneath)
            return False
        call.passage.note(number, None)
        if number == call.passage.numbers[0] and self.passages[-1] is call.passage:
            self.passages.pop()
            return False
        return True

    def passage_of(self, number: int) -> RootCall | None:
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
