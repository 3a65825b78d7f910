"""Tell which entries of one tensor two sides take, by whatever operation: a slice, a split, a selection."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sonde.diagnosis.compare.operation_words import line_text
from sonde.diagnosis.compare.recorded_operations import Fingerprint, Source, Step


@dataclass(frozen=True)
class Cut:
    """The entries along one axis that an operation takes of its operand."""

    axis: int
    entries: range

    def __str__(self) -> str:
        first, last, step = self.entries[0], self.entries[-1], self.entries.step
        if first == last:
            return f"entry {first} of axis {self.axis}"
        return f"entries {first} to {last} of axis {self.axis}" + f", in steps of {step}" * (step > 1)

    def of(self, held: Mapping[Source, Tensor], source: Source) -> list[Tensor]:
        """Return these entries of the tensor *source* among those *held*."""
        whole = held[source]
        return [whole.index_select(self.axis, torch.tensor(self.entries, device=whole.device))]


def cut_of(step: Step, place: int) -> Cut | None:
    """Return what the tensor at *place*, of those that *step* makes, is of its operand; None where it is no cut, or all of it."""
    if step.name not in ("slice", "select", "split", "split_with_sizes") or not step.given or not step.given[0].shape:
        return None
    held: Mapping[str, Any] = step.plain
    shape = step.given[0].shape
    axis = int(held.get("dim", 0)) % len(shape)
    length = shape[axis]
    if step.name == "slice":
        start, end = held.get("start"), held.get("end")
        entries = range(length)[slice(start, end, held.get("step", 1))]
    elif step.name == "select":
        index = int(held["index"]) % length
        entries = range(index, index + 1)
    elif step.name == "split":
        size = int(held["split_size"])
        entries = range(length)[size * place : size * (place + 1)]
    else:
        starts = [0, *itertools.accumulate(held["split_sizes"])]
        entries = range(starts[place], starts[place + 1])
    return Cut(axis, entries) if 0 < len(entries) < length else None


def cut_otherwise(
    here: Sequence[Step], there: Sequence[Step], ends: Sequence[Fingerprint], within: float
) -> Iterator[tuple[Source, Source, functools.partial[list[Tensor]], str]]:
    """Yield where ``b`` takes other entries of a tensor for the place than ``a``, that tensor, what ``a`` takes, and words."""
    found = [
        [
            (step, place, cut)
            for step in steps
            for place, each in enumerate(step.made)
            if each.is_like(end, within) and (cut := cut_of(step, place)) is not None
        ]
        for steps, end in zip((here, there), ends, strict=True)
    ]
    for (one, _, mine), (other, place, theirs) in itertools.product(*found):
        x, y = one.given[0], other.given[0]
        if mine != theirs and x.shape == y.shape and x.is_like(y, within):
            source = other.number, -1
            words = f"a goes on with {mine}{line_text(one)}, b with {theirs}{line_text(other)}, of one tensor"
            yield (other.number, place), source, functools.partial(mine.of, source=source), words
