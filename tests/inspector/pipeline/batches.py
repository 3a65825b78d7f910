"""Batches of random trainings, and the rows that must come of them, computed one moment after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sonde.inspector.measurement.row_index import RowIndex
from sonde.inspector.pipeline.batch import Batch, PendingScalar, RawRows
from sonde.rows import Layout, Rows, Scalar
from sonde.stats import Activation, ChannelActivation, ExponentHistogram, Field, Moments, Norm, RowStatistic, Statistic
from sonde.stats.host_copy import HostCopy
from sonde.stats.statistic import Column


@dataclass(frozen=True)
class Fussy(Statistic):
    """Raises at a sum that is too large, wherever it stands."""

    fields: ClassVar[tuple[Field, ...]] = (Field("sum"),)

    def measure(self, tensor: Tensor) -> Tensor:
        return tensor.nan_to_num().abs().sum(dtype=torch.float64).reshape(1)

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        if (columns["sum"] > 8).any():
            raise ValueError("too much")
        return {"sum": columns["sum"], "one": np.float64(1.0)}  # type: ignore[dict-item]


def rowed(family: str, statistic: RowStatistic, sites: list[str], model: str = "", order: list[int] | None = None) -> RowIndex:
    """Sites whose rows do not lie in the order of the sites; at one of them a sample was measured."""
    names = [f"{model}/{site}" if model else site for site in sites]
    return RowIndex(
        family,
        statistic,
        Layout(names, -1, order),
        np.arange(len(sites))[::-1] + 1,
        tuple(site.partition(":")[2] for site in sites),  # type: ignore[misc]
        np.array([4.5 if site == "v:update" else 1.0 for site in sites]),
    )


PARAMETERS = ["a:output", "w:grad", "w:param", "w:update", "v:grad", "v:param", "v:update"]
NORMS = frozenset(["grad", "param", "update"])


def measured(draw: np.random.Generator, of: RowIndex, seen: np.ndarray) -> list[Tensor]:
    """The blocks of one moment: a row of random numbers for each site that was seen, and one row too many at each end."""
    statistic: Any = of.statistic
    size = len(of.layout) + 2
    rows = torch.cat([torch.zeros(size, 1, dtype=torch.float64), statistic.empty(size)], dim=1)
    for place in of.index[seen]:
        tensor = torch.from_numpy(draw.normal(size=(3, 4)).round(1))
        if draw.random() < 0.03:
            tensor[0, 0] = draw.choice([math.nan, math.inf])
        rows[place, 0] = int(draw.integers(1, 4))
        rows[place, 1:] = statistic.measure(tensor)
    cut = int(draw.integers(1, len(rows)))
    return [rows] if draw.random() < 0.5 else [rows[:cut], rows[cut:]]


@cache
def random_training(seed: int) -> tuple[Batch, ...]:
    """Random batches of two models: several families, micro steps, a second optimizer's part, scales, pushed values, defects."""
    draw = np.random.default_rng(seed)
    moments = rowed("moments", Moments(), PARAMETERS, order=[2, 1, 1, 1, 0, 0, 0])
    families = [
        (moments, NORMS, False),
        (rowed("activation", Activation(), ["a:output", "b:output"]), frozenset(), False),
        (rowed("channels", ChannelActivation(4), ["a:output"]), frozenset(), False),
        (rowed("fussy", Fussy(), ["a:output", "b:output"]), frozenset(), False),
        (rowed("exponents", ExponentHistogram(), ["a:output", "w:grad"]), frozenset(), False),
        (rowed("moments", Moments(), PARAMETERS, "G"), frozenset(["update"]), False),
        (rowed("norms", Norm(), PARAMETERS[1:], "G"), frozenset(["grad", "param"]), True),
    ]
    micro = rowed("moments_micro", Moments(), ["w:grad", "v:grad"])
    batches = []

    def batch(parts: list[tuple[RowIndex, frozenset[str], bool]], epoch: int, step: int, micro_step: int, share: float) -> None:
        tensors: list[Tensor] = []
        made = []
        for of, norms, hidden in parts:
            blocks = measured(draw, of, np.flatnonzero(draw.random(len(of.layout)) < share))
            start = len(tensors)
            tensors += blocks
            scales = {}
            if draw.random() < 0.3:
                scales = {"grad": len(tensors)}
                tensors.append(torch.tensor(2.0 ** draw.integers(1, 9), dtype=torch.float64))
            made.append(RawRows(of, slice(start, start + len(blocks)), epoch, step, micro_step, scales, norms, hidden=hidden))
        scalars: list[Scalar | PendingScalar] = []
        if draw.random() < 0.5:
            scalars.append(Scalar("loss", draw.normal(), epoch, step))
        if draw.random() < 0.5:
            scalars.append(PendingScalar("accuracy", epoch, step, count=3, place=len(tensors)))
            tensors.append(torch.tensor(draw.normal(), dtype=torch.float64))
        batches.append(Batch(HostCopy.of(tensors), made, scalars))

    for step in range(12):
        for micro_step in range(int(draw.integers(0, 3))):
            batch([(micro, frozenset(), False)], step // 5, step, micro_step, 0.9)
        batch([each for each in families if draw.random() < 0.8], step // 5, step, 0, draw.choice([0.0, 0.7, 1.0]))
        if draw.random() < 0.3:
            batch(families[:1], step // 5, step, 0, 0.5)
    return tuple(batches)


def one_by_one(batches: Iterable[Batch]) -> Iterator[Rows | Scalar]:
    """The rows of each part and the scalars, in order; the norms of a step before what is of the next one.

    A statistic that raises for some rows of a moment, and not for all, stops at the sites of these. Of the updates there is no norm
    where a parameter that has a row has none of its update.
    """
    stopped: set[tuple[str, int]] = set()
    squares: dict[str, dict[str, float]] = {}
    when: dict[str, tuple[int, int]] = {}

    def norms(models: list[str]) -> Iterator[Scalar]:
        for model in models:
            epoch, step = when.pop(model)
            found = squares.pop(model)
            for port in ("grad", "param", "update"):
                if port in found:
                    yield Scalar(f"{model}/{port}_norm" if model else f"{port}_norm", math.sqrt(found[port]), epoch, step)

    for batch in batches:
        arrays = batch.copy.unpack()
        for part in batch.rows:
            of, model = part.index, part.index.layout.model[0]
            if when.get(model, (0, part.step))[1] != part.step:
                yield from norms([model])
            rows = np.concatenate(arrays[part.blocks])[of.index]
            seen = np.array([row for row in np.flatnonzero(rows[:, 0]) if (of.family, row) not in stopped], np.intp)
            if of.family == "fussy" and (large := rows[seen, 1] > 8).any() and not large.all():
                stopped |= {(of.family, row) for row in seen[large]}
                seen = seen[~large]
            if not len(seen):
                continue
            try:
                columns = of.statistic.columns(torch.from_numpy(rows[seen, 1:]))
                numbers = of.statistic.finish(columns) | {name: columns[name] for name in getattr(of.statistic, "recorded", ())}
            except ValueError:
                continue
            for name in numbers:
                if power := of.statistic.number(name).growth:
                    numbers[name] = numbers[name] * of.sizes[seen] ** power
            for port, place in part.scales.items():
                under = [of.ports[row] == port for row in seen]
                for name in set(numbers) - set(of.statistic.recorded):
                    power = of.statistic.number(name).scaling
                    divisor = np.nan if power is None else float(arrays[place]) ** power
                    if divisor != 1:
                        numbers[name] = np.where(under, numbers[name] / divisor, numbers[name])
            if part.norms:
                when[model] = part.epoch, part.step
                sums = squares.setdefault(model, {})
                ports = [of.ports[row] for row in seen]
                is_whole = ports.count("update") >= ports.count("param") or not part.norms.issuperset(("param", "update"))
                for row, norm, nan, inf in zip(seen, numbers["norm"], numbers["nan"], numbers["inf"], strict=True):
                    port = of.ports[row]
                    if port in part.norms and (is_whole or port != "update"):
                        sums[port] = sums.get(port, 0.0) + (math.nan if nan else math.inf if inf else norm**2)
            if not part.hidden:
                yield Rows(of.family, of.layout, seen, part.epoch, part.step, part.micro_step, rows[seen, 0], numbers)
        for scalar in batch.scalars:
            yield scalar if isinstance(scalar, Scalar) else scalar.read(arrays)
    yield from norms(sorted(when))


def plain(entry: Rows | Scalar, *, digits: int | None = None) -> tuple[Any, ...]:
    """Something that compares by bits; norms, with *digits*, by so many digits."""
    if isinstance(entry, Scalar):
        value = entry.value.hex() if digits is None or "norm" not in entry.name else f"{entry.value:.{digits}e}"
        return entry.name, entry.epoch, entry.step, value
    numbers = {name: np.broadcast_to(column, np.shape(column) or len(entry.rows)) for name, column in entry.numbers.items()}
    listed = {name: (column.shape, np.ascontiguousarray(column).tobytes()) for name, column in numbers.items()}
    when = entry.epoch, entry.step, entry.micro_step
    return entry.family, id(entry.layout), when, entry.rows.tolist(), entry.counts.tolist(), listed


def moments_of(values: list[list[float]], first: int = 0) -> list[Batch]:
    """Moments of two sites, a batch for each step: of each the elements of a tensor at both."""
    of = rowed("moments", Moments(), ["a:output", "w:grad"], order=[1, 0])
    return [batch_of(of, step, values) for step, values in enumerate(values, first)]


def batch_of(of: RowIndex, step: int, values: list[float], *scalars: Scalar) -> Batch:
    statistic: Any = of.statistic
    rows = torch.zeros(len(values) + 2, 1 + statistic.width, dtype=torch.float64)
    for place, value in zip(of.index, values, strict=True):
        rows[place, 0] = 1
        rows[place, 1:] = statistic.measure(torch.tensor([value, 1.0]))
    return Batch(HostCopy.of([rows]), [RawRows(of, slice(0, 1), 0, step)], scalars, rows.nbytes)
