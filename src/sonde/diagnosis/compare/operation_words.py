"""Name operations in words, and what differs in their arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sonde.diagnosis.compare.recorded_operations import Step, greatest, tensors_in
from sonde.words import names_text, shape_text

MOST_NAMES = 6

LINE = re.compile(r" \([^()]*:\d+\)")

ALIKE = {"safe_softmax": "softmax", "softmax": "softmax"}
"""Operations that differ only where all entries of a row are left out."""


CUTS = dict.fromkeys(("split", "split_with_sizes", "slice", "narrow", "select", "unbind"), "slice")
"""Operations that take a part of the entries along an axis."""


def arguments_text(here: Step, there: Step) -> str:
    """Return in words which arguments of one operation that are no tensors differ; ``""`` for none."""
    one, other = here.plain, there.plain
    axes = [len(step.given[0].shape) if step.given else 0 for step in (here, there)]
    if axes[0] == axes[1]:  # an axis may be counted from the end
        one, other = ({name: _from_first(name, each, axes[0]) for name, each in held.items()} for held in (one, other))
    apart = [name for name in one if name in other and one[name] != other[name]]
    if not apart:
        return _of_overloads(here, there, one, other)
    said = [
        {name: _REDUCTIONS[held[name]] if name == "reduction" else value_text(held[name]) for name in apart}
        for held in (one, other)
    ]
    sides = [", ".join(f"{name}={each}" for name, each in held.items()) for held in said]
    return f"{here.name} has {sides[0]} in a{line_text(here)}, {sides[1]} in b{line_text(there)}"


def _of_overloads(here: Step, there: Step, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return in words that one operation is done over some axes in one side, and over all in the other."""
    axes = [next((held.get(name) for name in _AXES if held.get(name) is not None), None) for held in (one, other)]
    if (axes[0] is None) == (axes[1] is None) or len(here.given) != len(there.given):
        return ""
    lengths = [shape_text(step.given[0].shape) if step.given else "" for step in (here, there)]
    said = ["all axes" if held is None else f"axes {held}" if isinstance(held, tuple) else f"axis {held}" for held in axes]
    of = f", of {lengths[0]}," if lengths[0] == lengths[1] else ""
    return f"{here.name}{of} is over {said[0]} in a{line_text(here)}, over {said[1]} in b{line_text(there)}"


_AXES = ("dim", "dims", "axis")
"""Arguments that tell over which axes an operation is done."""


def _from_first(name: str, value: Any, axes: int) -> Any:
    """Return an axis, or several, counted from the first of so many; other arguments as they are."""
    if name not in _AXES or not axes:
        return value
    if type(value) is int:
        return value % axes
    return tuple(each % axes if type(each) is int else each for each in value) if isinstance(value, tuple) else value


_REDUCTIONS = ("none", "mean", "sum")
"""What operators name by its number."""


def operations_text(steps: Sequence[Step]) -> str:
    """Return the operations in words, with the numbers by which they add, multiply, divide, or take powers."""
    return list_text(operation_names(steps) or [operation_text(steps[-1])])


def operation_names(steps: Sequence[Step], *, with_picks: bool = False) -> list[str]:
    """Return what the operations are called, but for those of layout; *with_picks* those that pick entries as well."""
    return [operation_text(each) for each in steps if not each.is_layout or (with_picks and each.call.is_view and picks(each))]


def picks(step: Step) -> bool:
    """Return whether an operation makes fewer entries than it is given, or more."""
    return step.given[0].count != step.made[0].count


def list_text(names: Sequence[str]) -> str:
    """Return names in words, each once."""
    return names_text(dict.fromkeys(names), MOST_NAMES)


def operation_text(step: Step) -> str:
    """Return the name of an operation, with the number by which it adds, multiplies, divides, or takes a power."""
    held = [each for name, each in step.plain.items() if name in OPERANDS and type(each) in (int, float)]
    most = max((each.count for each in step.made), default=1)
    held = held[:1] or [each.total for each in step.given if each.count == 1 < most]
    if step.name == "masked_fill" and step.given:  # as the largest number of the type does
        held = [math.copysign(math.inf, each) if abs(each) >= greatest(tensors_in(step.call.args)[0]) else each for each in held]
    return " ".join([CUTS.get(step.name, step.name), *map(value_text, held)])


OPERANDS = ("other", "exponent", "value", "self")
"""Arguments that are operands, where they are numbers: of ``x * 0.5`` the half."""


def line_text(step: Step) -> str:
    """Return the line of the code that runs an operation, in brackets; ``""`` where it is not known."""
    return f" ({step.line})" if step.line else ""


def value_text(value: Any) -> str:
    """Return a value in words, a number with six digits at most."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
