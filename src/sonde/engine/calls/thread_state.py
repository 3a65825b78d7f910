"""Hold the module calls that one thread runs, and its root calls whose autograd graphs live."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Iterable

from torch import nn

from sonde.engine.calls.call_log import Call, RootCall
from sonde.engine.calls.recomputation import Recomputation

_RECENT = 16
"""So many root calls are kept in any case: a graph may hang on tensors that no root returned."""


class ThreadState:
    """The running calls and the root calls of one thread.

    Attributes:
        thread: held weakly.
        top: the innermost call that runs.
        root_calls: in the order of their beginnings, so of their numbers.
        recomputation: the position in a checkpoint that is repeated.
        in_backward: for callbacks: the calls whose backward runs.
        task: for callbacks: the backward pass that runs.
    """

    __slots__ = ("in_backward", "recomputation", "root_calls", "task", "thread", "top")

    def __init__(self) -> None:
        self.thread = weakref.ref(threading.current_thread())
        self.top: Call | None = None
        self.root_calls: list[RootCall] = []
        self.recomputation = Recomputation()
        self.in_backward: list[Call] = []
        self.task = -1

    def open(self, number: int, task: int, recording: bool) -> RootCall:
        """Start recording a root call; drop records whose graph is freed."""
        if task == -1:
            recent = len(self.root_calls) - _RECENT
            kept = enumerate(self.root_calls)
            self.root_calls = [held for index, held in kept if held.task == -1 and (index >= recent or held.is_needed())]
        root_call = RootCall(number, task, recording, None if self.top is None else self.top.root_call)
        self.root_calls.append(root_call)
        return root_call

    def end_interrupted(self, number: int, running: Iterable[nn.Module]) -> None:
        """End calls that an interrupt left open: all but those of the modules *running*, which are given outermost first."""
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
        """Return the calls that run, the innermost first, also calls that a recomputation interrupts."""
        calls: list[Call] = []
        call = self.top
        while call is not None:
            calls.append(call)
            call = call.resumed
        return calls

    def skip_to(self, module: nn.Module, number: int) -> Call | None:
        """Return the innermost running call of *module* (or None); end the calls inside it, which an interrupt left open."""
        calls = self.begun()
        found = next((call for call in calls if call.place.key == id(module)), None)
        for call in calls[: 0 if found is None else calls.index(found)]:
            self.end(call, number)
        return found

    def end(self, call: Call, number: int) -> bool:
        """End the innermost call at the node *number*; return whether a root call ends with it that has made nodes."""
        resumed = self.top = call.resumed
        if resumed is not None and resumed.root_call is call.root_call:
            call.root_call.note(number, resumed)
            return False
        call.root_call.note(number, None)
        if number == call.root_call.numbers[0] and self.root_calls[-1] is call.root_call:
            self.root_calls.pop()
            return False
        return True

    def root_call_of(self, number: int) -> RootCall | None:
        """Return the root call in which this thread made the node *number*."""
        index = bisect_right(self.root_calls, number, key=lambda root_call: root_call.numbers[0])
        root_call = self.root_calls[index - 1] if index else None
        while root_call is not None and not root_call.covers(number):
            root_call = root_call.outer
        return root_call

    def is_needed(self) -> bool:
        """Return whether the thread or one of its graphs lives."""
        thread = self.thread()
        return (thread is not None and thread.is_alive()) or any(root_call.is_needed() for root_call in self.root_calls)
