"""Which calls a recomputation repeats: an activation checkpoint runs its part of the forward again, in the same order."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from sonde.engine.passage import Call, Passage
from sonde.engine.places import Place
from sonde.engine.running import nodes_running

__all__ = ["Recall", "is_recomputing"]


class Recall:
    """What one thread repeats: how far in the calls of a forward it is.

    A checkpoint that is recomputed begins where it began in the forward. One that is met for the first time while another
    is recomputed (they are nested) goes on where that one is; where it began is noted, for it may be recomputed in its turn.
    """

    __slots__ = ("_begun", "_from", "_made", "_position", "_tasks")

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._tasks: set[int] = set()
        self._begun: set[tuple[int, Hashable]] = set()  # in which backward pass which checkpoint
        self._made: dict[Hashable, tuple[Passage, int]] = {}  # checkpoints that were made by recomputation
        self._from: Passage | None = None
        self._position = 0

    def begin(self, checkpoint: Hashable, task: int, node: Any, origin: Passage | None) -> None:
        """The backward pass *task* is at *node*, which *origin* made, and recomputes *checkpoint*."""
        if task not in self._tasks:
            if all(outer is node for outer in nodes_running()):
                self._forget()  # the pass is not within another one
            self._tasks.add(task)
        if (task, checkpoint) in self._begun:
            return
        if checkpoint in self._made:
            self._from, self._position = self._made[checkpoint]
        elif origin is not None and checkpoint in origin.made:
            self._from, self._position = origin, origin.made[checkpoint]
        else:
            return
        self._begun.add((task, checkpoint))

    def repeated(self, place: Place, task: int, inside: Hashable) -> Call | None:
        """The next call of that module, which is the one that is repeated; *inside* names a checkpoint being made, if one is."""
        for index in range(self._position, 0 if self._from is None else len(self._from.order)):
            call = self._from.order[index]
            if call.place.key == place.key:
                if inside is not None and inside not in self._made:
                    self._made[inside] = self._from, index
                    self._begun.add((task, inside))
                self._position = index + 1
                return call
        return None

    def around(self) -> Call | None:
        """The call that the checkpoint is in."""
        if self._from is None:
            return None
        order = self._from.order
        return order[min(self._position, len(order) - 1)].above


