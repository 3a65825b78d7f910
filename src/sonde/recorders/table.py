"""The table of a recorder: a row for each slot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sonde.answer import Grid
from sonde.engine import walk
from sonde.recorders.reductions.base import Accumulated, value_text
from sonde.recorders.slots import Subrecorder
from sonde.site import Site
from sonde.stats import Accumulator, Moments
from sonde.view import LayerRow, Quantity, first_of, layer_table

_MOST_ELEMENTS = 10_000_000  # in a slot; the mean of more is left out of the table


def row_of(slot: Subrecorder) -> dict[str, Any]:
    """Plain data about *slot*: position, name, type, samples, kind of value, shape, mean and std of all finite elements."""
    value = slot.value
    spread = _spread(value)
    some = spread is not None and math.isfinite(spread.value)
    return {
        "index": slot.index,
        "name": slot.name,
        "type": slot.type,
        "samples": slot.samples,
        "kept": _kept(value),
        "shape": _shape(value),
        "mean": spread.value if spread is not None and some else None,
        "std": spread.spread if spread is not None and some else None,
    }


def grid(slots: Sequence[Subrecorder], *, title: str, reasons: dict[Site, str], footer: list[str]) -> Grid:
    """The table of a recorder; *reasons* give, by site, why a slot has not recorded everything."""
    empty = "no slot: register modules with .modules(model) or .children(model)"
    return layer_table(title, [_layer_row(slot, reasons.get(slot.site, "")) for slot in slots], footer, empty=empty)


def _layer_row(slot: Subrecorder, reason: str) -> LayerRow:
    value = slot.value
    spread = _spread(value)
    remark = slot.held.note if isinstance(slot.held, Accumulated) else ""
    return LayerRow(
        f"{slot.site.model}/{slot.name or '(root)'}" if slot.site.model else slot.name,
        slot.type.rpartition(".")[2],
        {"slot": str(slot.index), "samples": str(slot.samples), "kept": _kept(value), "shape": _shape(value)},
        {} if spread is None else {"mean ± std": spread},
        [(remark or reason, "quiet" if slot.samples else "warn")],
    )


def _kept(value: Any) -> str:
    """The kind of *value* in words: ``tensor``, ``4 tensors``, ``2 tuples of 3 tensors``."""
    if value is None or (isinstance(value, list) and not value):
        return "nothing"
    if not isinstance(value, list):
        return _kind(value)
    kinds = Counter(_kind(item) for item in value)
    return ", ".join(f"{count} {_plural(kind) if count > 1 else kind}" for kind, count in kinds.items())


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return "tensor"
    return "None" if value is None else value_text(value)


def _plural(kind: str) -> str:
    first, _, rest = kind.partition(" ")
    return f"{first if first == 'None' else first + 's'} {rest}".rstrip()


def _shape(value: Any) -> str:
    """The shape of the first tensor of the last value, and the number of further tensors."""
    last = value[-1] if isinstance(value, list) and value else value
    return first_of([value_text(tensor) for _, tensor in walk(last)])


def _spread(value: Any) -> Quantity | None:
    """Mean and standard deviation of all finite floating-point elements; None without such tensors, or of too many elements.

    The mean of a number is the number.
    """
    if isinstance(value, int | float):
        return Quantity(float(value))
    tensors = [tensor for _, tensor in walk(value) if is_measurable(tensor)]
    if not 0 < sum(tensor.numel() for tensor in tensors) <= _MOST_ELEMENTS:
        return None
    seen = Accumulator(Moments())
    for tensor in tensors:
        seen.update(tensor)
    found = seen.compute()
    return Quantity.of(found.mean, found.nan, found.inf, found.count, found.std if found.count > 1 else None)


def is_measurable(item: Any) -> bool:
    """Whether *item* is a dense floating-point tensor with data, so that it has moments."""
    if not isinstance(item, Tensor) or item.is_meta or item.is_nested:
        return False
    return item.is_floating_point() and item.layout == torch.strided
