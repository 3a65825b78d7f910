"""Find the calls that a recomputation repeats: an activation checkpoint runs its part of the forward again, in the same order."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from sonde.engine.calls.call_log import Call, RootCall
from sonde.engine.calls.module_paths import ModuleNode
from sonde.engine.torch_api import autograd_state


class Recomputation:
    """The position of one thread's recomputation in the calls of the forward.

    A checkpoint that is recomputed begins where it began in the forward. A nested checkpoint, first met while another one is
    recomputed, goes on at that one's position; its beginning is noted, since it may be recomputed later.
    """

    __slots__ = ("_around", "_begun", "_made", "_origin", "_position", "_tasks")

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._tasks: set[int] = set()
        self._begun: dict[tuple[int, Hashable], Call | None] = {}  # by backward pass and checkpoint: the call around it
        self._made: dict[Hashable, tuple[RootCall, int]] = {}  # by checkpoint made in a recomputation: where it began
        self._origin: RootCall | None = None
        self._position = 0
        self._around: Call | None = None

    def begin(self, task: int, node: Any, origin: RootCall | None) -> Call | None:
        """Note that the backward pass *task* repeats a checkpoint; return the call around that checkpoint, if known.

        The pass is at *node*, which was made in *origin*.
        """
        checkpoint, is_made = autograd_state.checkpoint_repeated()
        if task not in self._tasks:
            if all(outer is node for outer in autograd_state.nodes_running()):
                self._forget()  # the pass is not within another one
            self._tasks.add(task)
        if (task, checkpoint) not in self._begun:
            if checkpoint in self._made:
                self._origin, self._position = self._made[checkpoint]
            elif origin is not None and checkpoint in origin.made:
                self._origin, self._position = origin, origin.made[checkpoint]
            else:
                return self._around if is_made else None
            self._begun[task, checkpoint] = self._around = self._origin.order[self._position].above
        return self._begun[task, checkpoint]

    def repeated(self, place: ModuleNode, task: int) -> Call | None:
        """Return the call of the module at *place* that is repeated now; None if it is unknown."""
        checkpoint, is_made = autograd_state.checkpoint_repeated()
        if self._origin is None or not (is_made or (task, checkpoint) in self._begun):
            return None
        inside = autograd_state.checkpoint_made()
        for index in range(self._position, len(self._origin.order)):
            call = self._origin.order[index]
            if call.place.key == place.key:
                if inside is not None and inside not in self._made:
                    self._made[inside] = self._origin, index
                    self._begun.setdefault((task, inside), call.above)
                self._position = index + 1
                return call
        return None
