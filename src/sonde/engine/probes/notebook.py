"""A notebook cell that is run again replaces the probe it made before, which the notebook's history may still hold."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

__all__ = ["replace_former"]

# Where in which cell -> the probe made there last, and in which run of the cell
_made: dict[tuple[str, int, type], tuple[weakref.ref[Any], int]] = {}


def replace_former(probe: Any) -> None:
    """Detach the probe that an earlier run of the same line of the same cell made. Outside notebooks nothing happens."""
    place = _place()
    if place is None:
        return
    key, run = (*place[:2], type(probe)), place[2]
    former = _made.get(key)
    if former is not None and former[1] != run:
        earlier = former[0]()
        if earlier is not None:
            earlier.detach()
    _made[key] = weakref.ref(probe), run


def _place() -> tuple[str, int, int] | None:
    """File and line of the innermost frame that is a notebook cell's, and the number of that run of it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return None
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals is shell.user_ns:
            return frame.f_code.co_filename, frame.f_lineno, int(shell.execution_count)
        frame = frame.f_back
    return None
