"""Apply the rules to the rows of a run, while it is written or afterwards: over its whole history, in bounded memory."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sonde import rules
from sonde.rules import Finding
from sonde.run.defects import FirstDefect
from sonde.run.place_history import RECENT, Growth, History, Numbers, Streaks, extended
from sonde.run.schema import main_families
from sonde.run.store.rows import RowBlock
from sonde.site import Site

__all__ = ["Findings"]

_NAMED = 3
_FEW = 3  # weights: with fewer, none can be far from the others
_GRADIENTS = ("grad_norm", "grad_norm_raw")
_SPIKING = ("loss", *_GRADIENTS, "update_norm")
_KEPT, _START, _LEAST_SPREAD = 128, 10, 0.02

Mask = npt.NDArray[np.bool_]


class Findings:
    """The findings so far. The thread that writes feeds it with all rows, in order."""

    def __init__(self) -> None:
        self._defect = FirstDefect()
        self._sizes: dict[tuple[str, str], _Sizes] = {}  # by family and model
        self._deaths: dict[tuple[str, str], _Deaths] = {}
        self._scalars: dict[str, _Scalar] = {}
        self._families: set[str] = set()

    def look(self, block: RowBlock, matrices: Mask) -> None:
        """Look at finished rows of one model; *matrices*: which rows of the layout are of parameters of two dimensions or more."""
        self._defect.look(block)
        self._families.add(block.family)
        if block.family not in main_families(self._families) or not len(block):
            return
        key = block.family, next(iter(block.layout.model), "")
        if "rms" in block.numbers:
            self._sizes.setdefault(key, _Sizes()).add(block, matrices)
        if "call_death" in block.numbers:
            self._deaths.setdefault(key, _Deaths()).add(block, matrices)

    def look_aside(self, role: str, block: RowBlock) -> None:
        """Look at rows that are not written: parameters as they were when a step began, or gradients before clipping.

        They come before the other rows of this step.
        """
        self._defect.look_aside(role, block)

    def look_at_scalar(self, name: str, value: float, epoch: int, step: int) -> None:
        """Look at a pushed value or a norm."""
        self._defect.look_at_scalar(name, value, epoch, step)
        if name.rpartition("/")[2] in _SPIKING:
            self._scalars.setdefault(name, _Scalar(name)).add(value, epoch, step)

    def all(self) -> list[Finding]:
        """The findings of all rules, the gravest first."""
        defect = self._defect.finding()
        found = [] if defect is None else [defect]
        for deaths in self._deaths.values():
            found += deaths.findings()
        for sizes in self._sizes.values():
            found += sizes.findings()
        found += self._of_scalars()
        first = {(each.rule, each.site, each.call): each for each in reversed(found)}  # one of each, from the first family
        return sorted((each for each in found if first[each.rule, each.site, each.call] is each), key=_gravity)

    def _of_scalars(self) -> Iterator[Finding]:
        """One finding for all scalars by each rule: the first, with the names of the others."""
        clipped = {f"{name}_raw" for name in self._scalars}  # the norm after clipping says nothing where that before is known
        raw = {name.removesuffix("_raw") for name in self._scalars if name in clipped or name.endswith("_raw")}
        judged = [each for name, each in self._scalars.items() if name not in raw]
        for found in ([each.grown for each in judged], [each.spike for each in judged]):
            first, *others = sorted((each for each in found if each is not None), key=lambda each: each.first_step or 0) or (None,)
            if first is not None:
                names = ", ".join(f"{each.message.partition(' ')[0]} at step {each.first_step:,}" for each in others)
                yield replace(first, message=first.message + (f" (also {names})" if names else ""))


def _gravity(found: Finding) -> bool:
    return found.severity != "bad"


@dataclass
class _Scalar:
    """The history of one scalar.

    Attributes:
        name: as it was pushed.
        spike: the first value that stands out of those before it.
        grown: the growth of a norm of gradients, if that was too much.
    """

    name: str
    spike: Finding | None = None
    grown: Finding | None = None
    _last: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _first: list[float] = field(default_factory=list)
    _least: float = math.inf

    def add(self, value: float, epoch: int, step: int) -> None:
        """Compare *value* with those before it."""
        if not (value > 0 and math.isfinite(value)):
            return
        if self.spike is None and len(self._last) >= rules.SPIKE_VALUES:
            self.spike = self._judged(value, epoch, step)
        if self._first and self.name.rpartition("/")[2] in _GRADIENTS:
            self._grow(value, epoch, step)
        self._last.append(math.log(value))
        self._least = min(self._least, value)
        if len(self._first) < 100:
            self._first.append(value)

    def _grow(self, value: float, epoch: int, step: int) -> None:
        found = rules.gradient_growth(value, max(self._first[0], self._least))
        if found is None or (self.grown is not None and found.value <= self.grown.value):
            return
        first = step if self.grown is None else self.grown.first_step
        since = "" if first == step else f", {rules.GRADIENT_GROWTH:,.0f}-fold from step {first:,} on"
        message = f"{self.name} {found.message} at step {step:,}{since}"
        self.grown = replace(found, message=message, epoch=epoch, step=step, first_step=first)

    def _judged(self, value: float, epoch: int, step: int) -> Finding | None:
        """The finding if *value* is a spike that brings the training back to its beginning: other jumps are the noise of batches.

        A loss must be as large as the first ones, a gradient norm twice as large, and an update norm ten times as large as all of
        the first hundred, since a learning rate may begin anew.
        """
        begin = float(np.median(self._first[:_START]))
        kind = self.name.rpartition("/")[2]
        least = 10 * max(self._first) if kind == "update_norm" else begin if kind == "loss" else 2 * begin
        if value < least:
            return None
        logs = np.array(self._last)
        median = float(np.median(logs))
        spread = max(
            1.4826 * float(np.median(np.abs(logs - median))), _LEAST_SPREAD
        )  # of a normal distribution the standard deviation
        found = rules.spike(value, math.exp(median), (math.log(value) - median) / spread)
        if found is None:
            return None
        message = f"{self.name} {found.message} at step {step:,}"
        return replace(found, message=message, epoch=epoch, step=step, first_step=step)


class _Deaths:
    """The shares of dead units in one family and model."""

    def __init__(self) -> None:
        self._history = History("call_death")
        self._dead = Streaks()

    def add(self, block: RowBlock, matrices: Mask) -> None:
        """Add rows."""
        values = self._history.add(block, matrices)
        self._dead.add(values > rules.DEAD_MOST, np.isfinite(values), block.moments[:, 1])

    def findings(self) -> Iterator[Finding]:
        """The dead layers: now, or for as many logged steps as medians are over."""
        history = self._history
        yield from _held(history, history.medians(), history.at("output"), self._dead, rules.dead)


class _Sizes:
    """The sizes (root mean squares) in one family and model."""

    def __init__(self) -> None:
        self._history = History("rms")
        self._outputs = Growth(rules.OUTPUT_GROWTH)
        self._weights = Growth(rules.WEIGHT_GROWTH)
        self._zero = Streaks()
        self._first = np.empty(0)  # the first value of each column, and its step
        self._first_step = np.empty(0)
        self._step: Finding | None = None  # the largest of those steps that are too large
        self._steps = 0  # how many of these there were

    def add(self, block: RowBlock, matrices: Mask) -> None:
        """Add rows."""
        history, steps = self._history, block.moments[:, 1]
        values = history.add(block, matrices)
        self._remember_first(values, steps)
        inner = history.at("output") & ~history.is_output_of_model()
        weights = history.at("param") & history.matrix
        if math.isnan(self._outputs.common):
            self._outputs.common = _first_of(values[:, inner], np.nanmax)
        if math.isnan(self._weights.common):
            self._weights.common = _first_of(values[:, weights], np.nanmedian)
        self._outputs.add(np.where(inner, values, np.nan), steps)
        self._weights.add(np.where(weights, values, np.nan), steps)
        self._zero.add(np.where(history.at("grad") & history.matrix, values, np.nan) == 0, np.isfinite(values), steps)
        self._judge_steps(values, block)

    def _remember_first(self, values: Numbers, steps: npt.NDArray[np.int64]) -> None:
        width = values.shape[1]
        self._first, self._first_step = extended(self._first, width), extended(self._first_step, width, -1)
        new = np.isnan(self._first) & np.isfinite(values).any(axis=0)
        if new.any():
            line = np.isfinite(values).argmax(axis=0)
            self._first[new] = values[line, np.arange(width)][new]
            self._first_step[new] = steps[line][new]

    def _ratios(self, values: Numbers) -> tuple[npt.NDArray[np.intp], Numbers]:
        """The columns of updates, and update / weight of these, NaN for weights without gradient: these are not meant to move."""
        updates, weights, gradients = self._history.beside("update", "param", "grad")
        size, weight = values[..., updates], values[..., weights]
        with np.errstate(all="ignore"):
            return updates, np.where((weight > 0) & np.isfinite(values[..., gradients]), size / weight, np.nan)

    def _judge_steps(self, values: Numbers, block: RowBlock) -> None:
        """Keep the step that moves half of all weights furthest, if it is one that moves them too far."""
        updates, ratios = self._ratios(values)
        many = np.isfinite(ratios).sum(axis=1) >= _FEW
        if not many.any():
            return
        for line, ratio in zip(np.flatnonzero(many).tolist(), np.nanmedian(ratios[many], axis=1).tolist(), strict=True):
            found = rules.step_large(ratio)
            if found is None:
                continue
            self._steps += 1
            if self._step is None or found.value > self._step.value:
                column = int(updates[np.nanargmax(ratios[line])])
                epoch, step = block.moments[line, :2].tolist()
                first = step if self._step is None else self._step.first_step
                self._step = replace(found.at(str(self._history.sites[column]), epoch, step), first_step=first)

    def findings(self) -> Iterator[Finding]:
        """The findings about these sizes."""
        yield from self._growth()
        yield from self._gradients()
        updates = list(self._updates())
        if self._step is not None and not any(found.rule == "update_large" for found in updates):
            first, step = self._step.first_step, self._step.step
            since = "" if first == step else f"; too far from step {first:,} on, in {self._steps:,} logged steps"
            yield replace(self._step, message=f"{self._step.message}: step {step:,}{since}")
        yield from updates

    def _growth(self) -> Iterator[Finding]:
        history = self._history
        first_layer = [c for c in np.flatnonzero(history.at("output")).tolist() if not math.isnan(self._first[c])]
        if first_layer:
            size = float(self._first[min(first_layer, key=history.rank)])
            large = [(c, found) for c in first_layer if (found := rules.output_large(float(self._first[c]), size)) is not None]
            large.sort(key=lambda each: history.rank(each[0]))
            yield from _joined(history, [(c, replace(found, step=int(self._first_step[c]))) for c, found in large])
        for growth, judge in ((self._outputs, rules.output_growth), (self._weights, rules.weight_growth)):
            hits = sorted(np.flatnonzero(growth.first >= 0).tolist(), key=lambda c: (growth.first[c], history.rank(c)))
            grown: list[tuple[int, Finding]] = []
            for column in hits:
                each = judge(float(growth.peak[column]), float(growth.before[column]))
                if each is not None:
                    step, first = int(growth.step[column]), int(growth.first[column])
                    when = f" at step {step:,}" + (f", {growth.limit:,.0f}-fold from step {first:,} on" if first != step else "")
                    grown.append((column, replace(each, message=each.message + when, step=step, first_step=first)))
            yield from _joined(history, grown)

    def _gradients(self) -> Iterator[Finding]:
        history = self._history
        sizes = history.medians()
        weights = history.at("grad") & history.matrix & np.isfinite(sizes)
        some = sizes[weights & (sizes > 0)]
        if not len(some) or weights.sum() < _FEW:
            return
        typical = float(np.median(some))
        yield from _held(history, sizes, weights, self._zero, rules.gradient_zero)
        yield from _now(history, sizes, weights, lambda size: rules.gradient_large(size, typical))
        yield from _now(history, sizes, weights, lambda size: rules.gradient_small(size, typical), smallest=True)

    def _updates(self) -> Iterator[Finding]:
        history = self._history
        medians = history.medians()
        updates, ratios = self._ratios(medians)
        values = np.full(len(history), np.nan)
        values[updates] = ratios
        yield from _now(history, values, np.isfinite(values), rules.update_large)
        yield from _now(history, values, np.isfinite(values), rules.update_small, smallest=True)


def _first_of(values: Numbers, reduce: Callable[..., float]) -> float:
    """*reduce* of the first line of *values* that has any; NaN if none has."""
    lines = np.flatnonzero(np.isfinite(values).any(axis=1))
    return float(reduce(values[lines[0]])) if len(lines) else math.nan


def _now(
    history: History,
    values: Numbers,
    columns: Mask,
    judge: Callable[[float], Finding | None],
    *,
    smallest: bool = False,
) -> Iterator[Finding]:
    """One finding for all *columns* whose median *judge* finds something in, at the one with the largest (or smallest) value."""
    found = [
        (column, each)
        for column in np.flatnonzero(columns & np.isfinite(values)).tolist()
        if (each := judge(float(values[column]))) is not None and each.severity != "note"
    ]
    found.sort(key=lambda each: (float(values[each[0]]) * (1 if smallest else -1), history.rank(each[0])))
    epoch, step = history.moments[-1].tolist() if len(history.moments) else (0, 0)
    first = int(history.moments[0, 1]) if len(history.moments) else None
    yield from _joined(history, [(column, replace(each, epoch=epoch, step=step, first_step=first)) for column, each in found])


def _held(
    history: History, medians: Numbers, columns: Mask, streaks: Streaks, judge: Callable[[float], Finding | None]
) -> Iterator[Finding]:
    """As :func:`_now`, with the step since when; and one finding for columns where the condition held long, but not now."""
    for found in _now(history, medians, columns, judge):
        column = next(c for c in range(len(history)) if str(history.sites[c]) == found.site and history.calls[c] == found.call)
        since = int(streaks.since[column] if streaks.since[column] >= 0 else streaks.first[column])
        yield replace(found, first_step=since if since >= 0 else found.first_step)
        return
    if len(streaks.length) < len(history):
        return
    past = []
    for column in np.flatnonzero(columns & (streaks.length >= RECENT)).tolist():
        each = judge(1.0 if judge is rules.dead else 0.0)
        if each is not None:
            first, last = int(streaks.first[column]), int(streaks.last[column])
            words = "dead" if judge is rules.dead else "gradient was zero"
            message = f"{words} from step {first:,} to {last:,}, not any more"
            past.append((column, replace(each, message=message, severity="warn", step=last, first_step=first)))
    yield from _joined(history, past)


def _joined(history: History, found: Sequence[tuple[int, Finding]]) -> Iterator[Finding]:
    """The first of *found* at its place, with the names of the others; nothing if there is none."""
    if not found:
        return
    column, first = found[0]
    times = Counter(history.sites)
    names = list(dict.fromkeys(_name(history, each, times) for each, _ in found))
    message = f"{names[0]}: {first.message}"
    if len(names) > 1:
        rest = len(names) - _NAMED
        message += f" (also {', '.join(names[1:_NAMED])}" + (f" and {rest} more)" if rest > 0 else ")")
    step = max(first.step, 0)
    epochs = history.moments[history.moments[:, 1] <= step, 0]
    epoch = first.epoch or (int(epochs[-1]) if len(epochs) else 0)
    begun = step if first.first_step is None else first.first_step
    yield replace(
        first, message=message, site=str(history.sites[column]), call=history.calls[column], epoch=epoch, first_step=begun
    )


def _name(history: History, column: int, times: Mapping[Site, int]) -> str:
    """The place in words, with the call where there are several; *times*: how often each site is in *history*."""
    site, call = history.sites[column], history.calls[column]
    return site.name if call <= 0 and times[site] == 1 else f"{site.name} (call {call})"
