"""Apply the thresholds of SageMaker Debugger and of TheDeepChecker to the numbers that sonde recorded.

Both compute mean |x| of a gradient, a weight and an update. The run has their root mean square, which is taken in its place: it is
at least as large (1.25 times for normal numbers). Both judge raw tensors of each step; here they judge the logged ones. Rules that
need what a run does not hold are left out: SaturatedActivation (counts of the inputs of an activation), TheDeepChecker's saturation
(histograms of an output), and everything before the training.

Sources: the rules' documentation for SageMaker Debugger, docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html, with
their default thresholds; Ben Braiek and Khomh, "TheDeepChecker", arXiv 2204.00694, with its settings.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sonde.site import Site

Numbers = npt.NDArray[np.float64]
Found = tuple[str, str, str, int | None]
Matrix = tuple[list[str], list[int], Numbers]
NAMES = ("smdebug", "TheDeepChecker")


class Recorded:
    """The numbers of a run as matrices of steps x sites; each family is read once."""

    def __init__(self, run: Any) -> None:
        self._tables = {}
        self._matrices: dict[tuple[str, ...], Matrix] = {}
        for family in {"moments", "activation"} & set(run.families):
            order = 'ORDER BY "order", site, call, step'
            self._tables[family] = run.sql(f"SELECT * FROM {family} {order}").fetchnumpy()
        rows = run.sql("SELECT name, step, value FROM scalars ORDER BY step").fetchall() if "scalars" in run.families else []
        self._scalars = rows

    def number(self, name: str, port: str, family: str = "moments") -> Matrix:
        """Return sites, steps, and the values of shape ``(steps, sites)``; NaN where there is no row."""
        key = name, port, family
        if key not in self._matrices:
            self._matrices[key] = self._read(*key)
        return self._matrices[key]

    def _read(self, name: str, port: str, family: str) -> Matrix:
        table = self._tables.get(family, {})
        if name not in table:
            return [], [], np.empty((0, 0))
        own = np.flatnonzero(np.asarray(table["port"]) == port)
        places = list(zip(np.asarray(table["site"])[own].tolist(), np.asarray(table["call"])[own].tolist(), strict=True))
        column = {place: at for at, place in enumerate(dict.fromkeys(places))}
        steps, lines = np.unique(np.asarray(table["step"])[own], return_inverse=True)
        values = np.full((len(steps), len(column)), np.nan)
        values[lines, [column[place] for place in places]] = np.ma.filled(np.ma.asarray(table[name], float), np.nan)[own]
        return [site for site, _ in column], steps.tolist(), values

    def defects(self, port: str) -> Matrix:
        """Return how many elements are NaN or infinite."""
        sites, steps, nan = self.number("nan", port)
        return sites, steps, nan + self.number("inf", port)[2]

    def scalar(self, name: str) -> tuple[list[int], Numbers]:
        """Return the steps and values of a scalar."""
        rows = [(step, value) for held, step, value in self._scalars if held == name]
        return [step for step, _ in rows], np.array([value for _, value in rows], float)

    def beside(self, name: str, port: str, other: str) -> tuple[list[str], list[int], Numbers, Numbers]:
        """Return the numbers of *port* and of *other* at the same parameters and steps."""
        sites, steps, values = self.number(name, port)
        others, other_steps, beside = self.number(name, other)
        column = {Site.parse(site).path: at for at, site in enumerate(others)}
        both = [at for at, site in enumerate(sites) if Site.parse(site).path in column]
        kept = [step for step in steps if step in set(other_steps)]
        lines, other_lines = [steps.index(step) for step in kept], [other_steps.index(step) for step in kept]
        matched = [column[Site.parse(sites[at]).path] for at in both]
        return [sites[at] for at in both], kept, values[np.ix_(lines, both)], beside[np.ix_(other_lines, matched)]


def alarms(name: str, recorded: Recorded) -> list[Found]:
    """Return what the tool *name* would say: rule, symptom, the first site, and the first step. One alarm for each rule.

    The alarms are in the order of their first steps.
    """
    with np.errstate(all="ignore"):
        found = [each for rule in _RULES[name] if (each := rule(recorded)) is not None]
    return sorted(found, key=lambda each: -1 if each[3] is None else each[3])


Rule = Callable[[Recorded], Found | None]
_RULES: dict[str, list[Rule]] = {name: [] for name in NAMES}


def _rule(tool: str, symptom: str) -> Callable[[Callable[[Recorded], Iterator[tuple[list[str], list[int], Any]]]], Rule]:
    """List a rule of *tool*: a function that yields sites, steps and where the condition holds, of shape ``(steps, sites)``."""

    def listed(hits: Callable[[Recorded], Iterator[tuple[list[str], list[int], Any]]]) -> Rule:
        def rule(recorded: Recorded) -> Found | None:
            first: tuple[int, str] | None = None
            for sites, steps, held in hits(recorded):
                if not len(steps):
                    continue
                found = np.argwhere(np.asarray(held).reshape(len(steps), -1))
                if len(found):
                    line, column = found[0]
                    each = steps[line], sites[column] if sites else ""
                    first = each if first is None or each[0] < first[0] else first
            return None if first is None else (hits.__name__.lstrip("_"), symptom, first[1], first[0])

        _RULES[tool].append(rule)
        return rule

    return listed


def _runs(held: Any, length: int) -> Any:
    """Return where *held* has been true for *length* lines without a break."""
    held = np.asarray(held)
    count = np.zeros(held.shape[1:], int)
    found = np.zeros(held.shape, bool)
    for line, now in enumerate(held):
        count = np.where(now, count + 1, 0)
        found[line] = count >= length
    return found


Hits = Iterator[tuple[list[str], list[int], Any]]


@_rule("smdebug", "vanishing")
def vanishing_gradient(recorded: Recorded) -> Hits:
    """Mean |gradient| < 1e-7."""
    sites, steps, values = recorded.number("rms", "grad")
    yield sites, steps, values < 1e-7


@_rule("smdebug", "not finite")
def exploding_tensor(recorded: Recorded) -> Hits:
    """Any NaN or infinity."""
    for port in ("output", "grad_output", "param", "grad"):
        sites, steps, values = recorded.defects(port)
        yield sites, steps, values > 0


@_rule("smdebug", "dead")
def dead_relu(recorded: Recorded) -> Hits:
    """More than half of the units of a ReLU inactive."""
    sites, steps, values = recorded.number("call_death", "output", "activation")
    yield sites, steps, values > 0.5


@_rule("smdebug", "scale")
def poor_weight_initialization(recorded: Recorded) -> Hits:
    """Largest / smallest variance of activations > 10, or the loss not falling for 5 steps; in the first 10 steps."""
    _, steps, values = recorded.number("std", "output")
    variance = values[:10] ** 2
    if np.isfinite(variance).any(axis=-1).all():
        yield [], steps[:10], np.nanmax(variance, axis=1, initial=0) / np.nanmin(variance, axis=1, initial=np.inf) > 10
    steps, loss = recorded.scalar("loss")
    rising = np.concatenate([[False], np.diff(loss[:10]) >= 0])
    yield [], steps[:10], _runs(rising, 5)


@_rule("smdebug", "large steps")
def weight_update_ratio_large(recorded: Recorded) -> Hits:
    """Norm of the update / norm of the weight > 10."""
    sites, steps, update, weight = recorded.beside("norm", "update", "param")
    yield sites, steps, update / (weight + 1e-9) > 10


@_rule("smdebug", "small steps")
def weight_update_ratio_small(recorded: Recorded) -> Hits:
    """Norm of the update / norm of the weight < 1e-8."""
    sites, steps, update, weight = recorded.beside("norm", "update", "param")
    yield sites, steps, update / (weight + 1e-9) < 1e-8


@_rule("smdebug", "dead")
def all_zero(recorded: Recorded) -> Hits:
    """All elements are zero."""
    for port in ("output", "grad", "param"):
        sites, steps, zeros = recorded.number("zeros", port)
        yield sites, steps, zeros >= recorded.number("count", port)[2]


@_rule("smdebug", "small steps")
def unchanged_tensor(recorded: Recorded) -> Hits:
    """``allclose`` to the step before, 3 times, judged by the largest change and the typical size."""
    sites, steps, update, weight = recorded.beside("absmax", "update", "param")
    yield sites, steps, _runs(update <= 1e-8 + 1e-5 * weight, 3)


@_rule("smdebug", "loss")
def loss_not_decreasing(recorded: Recorded) -> Hits:
    """The loss is not lower than 10 logged steps before."""
    steps, loss = recorded.scalar("loss")
    if len(loss) > 10:
        yield [], steps[10:], loss[10:] >= loss[:-10]


@_rule("smdebug", "overfitting")
def overfit(recorded: Recorded) -> Hits:
    """(validation loss - training loss) / training loss > 0.1."""
    steps, held_out = recorded.scalar("val_loss")
    all_steps, loss = recorded.scalar("loss")
    if len(held_out):
        beside = np.interp(steps, all_steps, loss)
        yield [], steps, (held_out - beside) / beside > 0.1


@_rule("TheDeepChecker", "dead")
def dead_layer(recorded: Recorded) -> Hits:
    """More than half of the units silent."""
    sites, steps, values = recorded.number("call_death", "output", "activation")
    yield sites, steps, values > 0.5


@_rule("TheDeepChecker", "scale")
def activation_std(recorded: Recorded) -> Hits:
    """Standard deviation of an activation outside 0.5 to 2."""
    sites, steps, values = recorded.number("std", "output")
    yield sites, steps, (values < 0.5) | (values > 2.0)


@_rule("TheDeepChecker", "constant")
def dead_weights(recorded: Recorded) -> Hits:
    """|w| < 1e-5 for almost all, judged by the root mean square."""
    sites, steps, values = recorded.number("rms", "param")
    yield sites, steps, values < 1e-5


@_rule("TheDeepChecker", "growth")
def diverging_weights(recorded: Recorded) -> Hits:
    """Mean |w| > 1e8, or twice as large in each of 5 windows of 10 steps."""
    sites, steps, values = recorded.number("rms", "param")
    yield sites, steps, values > 1e8
    windows = values[::10]
    growing = np.zeros(values.shape, bool)
    growing[::10] = _runs(
        np.vstack([np.zeros((1, values.shape[1]), bool), windows[1:] >= 2 * windows[:-1]]) if len(windows) else windows > 0, 5
    )
    yield sites, steps, growing


@_rule("TheDeepChecker", "vanishing")
def vanishing(recorded: Recorded) -> Hits:
    """Mean |g| < 1e-6, or half as large 5 times in a row."""
    sites, steps, values = recorded.number("rms", "grad")
    falling = np.zeros(values.shape, bool)
    falling[1:] = values[1:] <= 0.5 * values[:-1]
    yield sites, steps, (values < 1e-6) | _runs(falling, 5)


@_rule("TheDeepChecker", "exploding")
def exploding(recorded: Recorded) -> Hits:
    """Mean |g| > 1e6, or twice as large 5 times in a row."""
    sites, steps, values = recorded.number("rms", "grad")
    rising = np.zeros(values.shape, bool)
    rising[1:] = values[1:] >= 2 * values[:-1]
    yield sites, steps, (values > 1e6) | _runs(rising, 5)


@_rule("TheDeepChecker", "not finite")
def not_finite(recorded: Recorded) -> Hits:
    """Any NaN or infinity."""
    for port in ("output", "param", "grad"):
        sites, steps, values = recorded.defects(port)
        yield sites, steps, values > 0


@_rule("TheDeepChecker", "large steps")
def update_fast(recorded: Recorded) -> Hits:
    """log10 of mean |update| / mean |w| > -1, averaged over 10 steps."""
    sites, steps, ratio = _mean_ratio(recorded)
    yield sites, steps, np.log10(ratio) > -1


@_rule("TheDeepChecker", "small steps")
def update_slow(recorded: Recorded) -> Hits:
    """log10 of mean |update| / mean |w| < -4, averaged over 10 steps."""
    sites, steps, ratio = _mean_ratio(recorded)
    yield sites, steps, np.log10(ratio) < -4


def _mean_ratio(recorded: Recorded) -> tuple[list[str], list[int], Numbers]:
    sites, steps, update, weight = recorded.beside("rms", "update", "param")
    ratio = update / weight
    if len(steps) < 10:
        return sites, [], np.empty((0, len(sites)))
    means = np.lib.stride_tricks.sliding_window_view(ratio, 10, axis=0).mean(-1)
    return sites, steps[9:], means


@_rule("TheDeepChecker", "loss")
def loss_not_falling(recorded: Recorded) -> Hits:
    """Falls by less than 5 % in 5 checks, one every 10 steps; or twice its minimum in 5; or turns at more than half of 50 steps."""
    steps, loss = recorded.scalar("loss")
    if len(loss) < 2:
        return
    checks = loss[::10]
    slow = np.concatenate([[False], (checks[:-1] - checks[1:]) < 0.05 * np.abs(checks[:-1])])
    least = np.minimum.accumulate(checks)
    yield [], steps[::10], _runs(slow, 5) | _runs(checks >= 2 * least, 5)
    turns = np.concatenate([[0, 0], np.diff(np.sign(np.diff(loss))) != 0]).astype(float)
    if len(turns) >= 50:
        share = np.lib.stride_tricks.sliding_window_view(turns, 50).mean(-1)
        yield [], steps[49:], 1 - share < 0.5
