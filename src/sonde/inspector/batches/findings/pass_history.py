"""What was read of the passes so far, and what all that judges them stands on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sonde.rules import Chosen, Finding
from sonde.words import short

LAST, KEPT, OFTEN, SEEN = 3, 6, 10, 17
"""Looks that show it again and again: the last ones, few, many; and so many that by then it is known what is dead."""
SETTLED, LONG = 50, 1000
"""Steps after which a training has begun to learn, and after which it should have."""
MATCHES, DIFFERS, HALF = 0.99, 0.9, 0.5
"""Shares: of all but for what comes by chance, of what is not all, of half of them."""
NOTHING, EXACT = 1e-6, 1e-8
"""Of a gradient: its rounding, and that of one which is the difference to a target."""
INPUTS = 8
"""That are compared with targets."""
DROWNED = 100.0
"""Times as large, from which on a gradient at one output leaves another one's loss where it is, if that stands still."""
_MORE = 10.0  # times as much as another one weighs a term that makes gradients uneven by that
_DROWNED = (
    "weigh the terms of the loss so that their gradients are of one size: look at a weight, a sum for a mean, units of a target; a "
    "learning rate that is right for the larger one does nothing for the other"
)
_NO_ROOM = 0.02  # of the width of a range, or of the size of outputs


class History(dict[tuple[Any, ...], list[Any]]):
    """By name, what was read of each pass."""

    def so_far(self, *name: Any, value: Any = None) -> list[Any]:
        """Return all values that were given by this *name*, of the passes in their order, this one last, if there is one."""
        values = self.setdefault(name, [])
        if value is not None:
            values.append(value)
        return values

    def by(self, name: str) -> dict[tuple[Any, ...], list[Any]]:
        """Return all values whose name begins with *name*, by the rest of it."""
        return {key[1:]: values for key, values in self.items() if key[0] == name and values}


class PassFindings:
    """Judges training passes, in their order.

    Args:
        chosen: the rules that are applied.
        part: the module whose passes these are.
        history: what was read of them so far.
    """

    def __init__(self, chosen: Chosen, part: str, history: History) -> None:
        self._chosen, self._part, self._history = chosen, part, history
        self._so_far, self._by = history.so_far, history.by

    def _told_stuck(self, values: Sequence[float], most: float, message: str, at: int = 0) -> Finding | None:
        """Return that a loss stands still, as a *message* says, if the last *values* are no more than *most*, and do not rise.

        It is that of the output *at* this place.
        """
        last = list(values[-LAST:])
        is_slow = sorted(set(last)) == last  # and has begun
        return self._told_still(message, at) if len(last) == LAST and max(last) <= most and not is_slow else None

    def _told_still(self, message: str, at: int = 0) -> Finding | None:
        """Return that the loss of the output *at* this place stands still, as a *message* says; another one may drown it."""
        found = self._chosen.judge("loss_stuck", 1.0, 1.0, 1.0, 0.0, math.nan)
        found = found and replace(found, message=message, evidence={})
        uneven = self._so_far("uneven")[:KEPT]
        times = min(times for *_, times in uneven) if uneven and all(each[:2] == (uneven[0][0], at) for each in uneven) else 0.0
        if times < DROWNED:
            return found
        beside = f"its gradient at first is 1/{short(times)} of that at output {uneven[0][0]} or less"
        known = {"times": times}
        return found and replace(found, message=f"{message}; {beside}{weighed(uneven[0][2])}", advice=_DROWNED, evidence=known)


def weighed(weights: Sequence[float]) -> str:
    """Return in words by what a loss multiplies the term of the larger gradient, and the other, where the one is far more."""
    one, other = weights
    return f"; the larger one's term has the weight {short(one)}, the other's {short(other)}" * (one > _MORE * other)


def has_room(numbers: Mapping[str, float], at: int, level: float, way: float) -> bool:
    """Return whether an output whose targets all push it one *way* (1: down) can go on, so that they may be in its range.

    It has come to a *level*.
    """
    low, high = numbers[f"floor {at}"], numbers[f"ceiling {at}"]
    room, width = (level - low if way > 0 else high - level), high - low
    size = numbers.get(f"size {at}", numbers.get("size", 0.0))
    return room > _NO_ROOM * (width if math.isfinite(width) else size)
