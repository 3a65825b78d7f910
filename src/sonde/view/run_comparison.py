"""Show where two runs part: a headline, what was set otherwise, and a row for each layer in the order in which they part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sonde.answer import Answer, Cell, Chart, Fact, Grid, Line, Mark, Part, Report, Tone
from sonde.number import number_of
from sonde.rules import Finding
from sonde.run import Curve, Difference, Parting, Parts, Run, compare_rows, names_apart, setting_text
from sonde.site import Site
from sonde.view.plots.number_names import axis_of
from sonde.words import many, names_text, number_text

_SHOWN = 24  # layers in the table
_SETTINGS, _MOST_SETTINGS = 8, 40  # that a line names, and a report
_UNIT = "differences of natural logarithms; of shares, plain ones"
_ADVICE = {
    "apart": "look at what is set otherwise, and at this layer before that step",
    "no rows": "look whether the layer still runs, and whether the parameter was frozen: it has no gradient any more",
    "not finite": "find the operation that made the first NaN or infinity, with sonde.why_nan",
}


@dataclass(frozen=True, repr=False)
class RunComparison(Answer):
    """Where two runs part; :func:`compare_runs` makes one. In a terminal and a notebook, a table of the layers in that order.

    >>> import sonde
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> found = sonde.compare(writer.run(), writer.run())
    >>> found.verdict, found.parts.identical
    ('ok', True)

    Attributes:
        a, b: the names of the runs.
        parts: all that was found, as plain data.
        notes: what else should be known.
    """

    a: str
    b: str
    parts: Parts
    notes: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        """Whether all numbers that both runs have at common steps are equal, to the last bit."""
        return self.parts.identical

    @property
    def partings(self) -> tuple[Parting, ...]:
        """The numbers of places that part, the earliest first; of one step in the order forward, backward, update."""
        return self.parts.partings

    @property
    def scalars(self) -> tuple[Parting, ...]:
        """The scalars that part, the earliest first."""
        return self.parts.scalars

    @property
    def first(self) -> Parting | None:
        """The first number of a place that parts; where none does, the first scalar; None where nothing parts."""
        return next(iter((*self.parts.partings, *self.parts.scalars)), None)

    @property
    def first_difference(self) -> Difference | None:
        """The first difference to the last bit of two runs that were equal before, or that began with equal weights; else None."""
        return self.parts.difference

    @property
    def step(self) -> int | None:
        """The step at which the two begin to differ: of :attr:`first_difference`, else of :attr:`first`."""
        found = self.first_difference or self.first
        return None if found is None else found.step

    @property
    def site(self) -> str | None:
        """The place at which they begin to differ, as the first run names it; None if there is none."""
        found = self.first_difference or next(iter(self.partings), None)
        return None if found is None else found.site

    @property
    def settings(self) -> Mapping[str, tuple[Any, ...]]:
        """The settings that differ (``config``, first learning rates, environment), each as the pair of both values."""
        return self.parts.settings

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The steps that were compared; of long runs, the first of each interval."""
        return self.parts.steps

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The first place where the runs part; none where no number differs by more than two trainings of one setting do."""
        first = self.first
        if first is None:
            return ()
        evidence = {"a": first.a, "b": first.b, "gap": first.gap, "allowed": first.allowed}
        found = Finding(
            "parts",
            f"{_place(first)}: {self._words(first)}",
            first.site,
            step=first.step,
            value=first.factor,
            call=first.call,
            first_step=first.step,
            evidence=evidence,
            severity="warn" if first.kind == "apart" else "bad",
            advice=_ADVICE[first.kind],
        )
        return (found,)

    def _content(self) -> dict[str, Any]:
        held = {"a": self.a, "b": self.b, "identical": self.identical, "step": self.step, "site": self.site}
        held |= {name: [asdict(each) for each in getattr(self, name)] for name in ("partings", "scalars")}
        found = self.first_difference
        held |= {"first_difference": None if found is None else asdict(found), "settings": self.settings}
        return {**held, "layers": self.parts.layers}

    def _rows(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self._all()]

    def _headline(self) -> str:
        if self.identical:
            return f"{self.a} and {self.b} are identical at {many(len(self.steps), 'common step')}"
        first = self.first
        if first is None:
            return f"{self.a} and {self.b} do not part: no number differs by more than seeds and noise explain"
        return f"{self.a} and {self.b} part at step {first.step:,} in {_place(first)}: {self._words(first)}"

    def _grid(self) -> Grid:
        rows: dict[tuple[str, int], list[Parting]] = {}
        for parting in self._all():
            owner = Site.parse(parting.site).owner.name if parting.site else parting.number
            rows.setdefault((owner, bool(parting.site)), []).append(parting)
        of_layers = sorted((key for key in rows if key[1]), key=lambda key: rows[key][0].step)
        keys = [*(key for key in rows if not key[1]), *of_layers]
        cells = [_cells(name, bool(is_place), rows[name, is_place]) for name, is_place in keys[:_SHOWN]]
        columns = ["part", "where", "a", "b", "b / a", "number", "then"]  # what can be broken stands last
        return Grid(
            self._headline(),
            columns,
            cells,
            self._footer(),
            empty="nothing parts",
            optional=("then",),
        )

    def _report(self) -> Report:
        first = self.first
        facts = []
        if first is not None:
            facts.append(Fact("first", f"step {first.step:,} · {_place(first)} · {self._words(first)}", "bad"))
            if math.isfinite(first.gap):
                words = f"beyond pace apart by {first.gap:.3g}; seeds and scatter explain {first.allowed:.3g} ({_UNIT})"
                facts.append(Fact("", words, "quiet"))
            facts.append(Fact("do", _ADVICE[first.kind], "good"))
        for place, (name, (one, other)) in enumerate(list(self.settings.items())[:_MOST_SETTINGS]):
            facts.append(Fact("" if place else "set otherwise", f"{name}: {setting_text(one)} → {setting_text(other)}"))
        if len(self.settings) > _MOST_SETTINGS:
            facts.append(Fact("", f"and {len(self.settings) - _MOST_SETTINGS} more", "quiet"))
        parts = [Part("", facts)] if facts else []
        charts = [
            Part(f"{each.number} of {each.site}" if each.site else each.number, self._chart(each)) for each in self.parts.curves
        ]
        if first is None:
            parts += [*charts, Part("What was compared", [Fact("", line) for line in self._remarks(with_settings=False)])]
        else:
            grid = replace(self._grid(), footer=self._footer(with_settings=False))
            parts += [*charts[:1], Part("Where they part, the earliest first", grid), *charts[1:]]
        return Report("sonde.compare", f"a: {self.a} · b: {self.b}", self.verdict, self._headline(), parts)

    def _chart(self, curve: Curve) -> Chart:
        key = curve.site, curve.call, curve.number
        steps = [each.step for each in self._all() if (each.site, each.call, each.number) == key]
        marks = [Mark(step, f"step {step:,}") for step in steps[:1]]
        held = [float(value) for values in (curve.a, curve.b) for value in values if math.isfinite(value)]
        log = bool(held) and min(held) >= 0 and max(held) > 4 * min(held)
        lines = [Line(f"a: {self.a}", curve.a.tolist(), "one"), Line(f"b: {self.b}", curve.b.tolist(), "other")]
        label = axis_of(number_of(curve.number), Site.parse(curve.site).port) if curve.site else curve.number
        return Chart(self.steps.tolist(), lines, "step", label, log=log, marks=marks)

    def _footer(self, *, with_settings: bool = True) -> list[str]:
        layers = {(Site.parse(each.site).owner.name if each.site else each.number, bool(each.site)) for each in self._all()}
        more = len(layers) - _SHOWN
        return [*([f"and {many(more, 'more layer')}, later"] if more > 0 else []), *self._remarks(with_settings=with_settings)]

    def _all(self) -> tuple[Parting, ...]:
        return (*self.scalars, *self.partings)

    def _remarks(self, *, with_settings: bool) -> list[str]:
        """The lines below the table: settings, the first difference, other layers, what was compared, and how to read it."""
        parts = self.parts
        found = []
        if parts.settings and with_settings:
            shown = list(parts.settings.items())[:_SETTINGS]
            pairs = [f"{name} {setting_text(one)} → {setting_text(other)}" for name, (one, other) in shown]
            more = len(parts.settings) - len(shown)
            found.append("set otherwise: " + " · ".join(pairs) + (f" · and {more} more" if more else ""))
        if (first := parts.difference) is not None:
            before = f"equal up to step {first.since:,}; " if first.since is not None else "equal weights at the beginning; "
            change = f"{first.number} {number_text(first.a, 3)} → {number_text(first.b, 3)}"
            found.append(
                f"{before}the first numbers that differ at all: step {first.step:,}, {first.site} ({change}), "
                f"{first.places:,} of {first.of:,} places"
            )
        found += parts.layers[:_SETTINGS]
        found += [f"and {len(parts.layers) - _SETTINGS} more modules differ"] if len(parts.layers) > _SETTINGS else []
        for name, sites in ((self.a, parts.only_a), (self.b, parts.only_b)):
            if sites:
                found.append(f"in {name} alone: {names_text(sites)}")
        found += self.notes
        span = f"{many(parts.places, 'number')} at {many(len(parts.steps), 'common step')}"
        each = f", medians of {parts.resolution:,} steps each" if parts.resolution > 1 else ""
        ends = f" ({parts.steps[0]:,} to {parts.steps[-1]:,}{each})" if len(parts.steps) else ""
        return [*found, f"compared: {span}{ends}; a: {self.a}, b: {self.b}"]

    def _words(self, parting: Parting) -> str:
        """What the two runs have there."""
        if parting.kind == "no rows":
            return f"only {self.a if math.isfinite(parting.a) else self.b} has rows of it from there on"
        if parting.kind == "not finite":
            return "elements are NaN or infinite in one of the two"
        number = f"{parting.number} " if parting.site else ""
        what = f"{number}{number_text(parting.a, 3)} → {number_text(parting.b, 3)}"
        if parting.a > 0 and parting.b > 0:
            ratio = parting.factor if parting.factor >= 1 else 1 / parting.factor
            return f"{what}, {ratio:.3g} times {'larger' if parting.factor >= 1 else 'smaller'} in {self.b}"
        return what


def compare_runs(
    a: Run,
    b: Run,
    *,
    baseline: Sequence[Run] = (),
    rename: Callable[[Site], Site | None] | None = None,
) -> RunComparison:
    """Compare two recorded trainings: the first step and the first layer at which they part beyond what seeds and noise explain.

    Numbers are compared at the steps that both runs logged, place by place and call by call: root mean squares of outputs,
    gradients, parameters and updates (of other families their main number), the ratio of update to parameter, shares of dead
    units, and scalars. :mod:`sonde.run.comparison.parting` says what is allowed. Runs that began equal are compared to the last
    bit, too: the first number that differs at all names step and layer of a change that is too small to matter at once.

    Args:
        a, b: the runs.
        baseline: repeats of the setting of *a* with other seeds: what these differ by, by place, takes the place of the built-in
            allowance for seeds.
        rename: gives the site of *b* for one of *a*, where layers have other names; None for a layer that *b* lacks.

    Raises:
        ArgumentError: a run is empty, or the two have no step or no place in common.
    """
    called = zip("ab", (a, b), names_apart([a, b]), strict=True)
    one, other = (f"run {side}" if run.path is None else name for side, run, name in called)
    parts = compare_rows(a, b, baseline=baseline, rename=rename, names=(one, other))
    return RunComparison(one, other, parts, parts.notes)


def _cells(name: str, is_place: bool, partings: Sequence[Parting]) -> list[Cell]:
    """The row of one layer or scalar: where it parts first; the last cell names its other numbers."""
    first = partings[0]
    number = f"{first.number} of {_within(first)}" if is_place else "scalar"
    rest = list(dict.fromkeys(f"{_within(each)} at {each.step:,}" for each in partings[1:] if each.step > first.step))
    factor = "" if not math.isfinite(first.factor) else f"{first.factor:.3g} ×"
    tone: Tone = "bad" if first.kind != "apart" else "plain"
    return [
        Cell(f"step {first.step:,}", align="right"),
        Cell(name, "strong"),
        Cell(_value(first, first.a), tone, "right"),
        Cell(_value(first, first.b), tone, "right"),
        Cell(factor, align="right"),
        Cell(number + (f", call {first.call}" if first.call > 0 else "")),
        Cell(names_text(rest), "quiet"),
    ]


def _within(parting: Parting) -> str:
    """Return the place within its layer: ``weight:update``, ``output``."""
    site = Site.parse(parting.site)
    own = site.path.rpartition(".")[2] if site.path != site.owner.path else ""
    return f"{own}:{site.port}" if own else f"{site.port}{site.leaf}"


def _place(parting: Parting) -> str:
    return parting.number if not parting.site else parting.site + (f" (call {parting.call})" if parting.call > 0 else "")


def _value(parting: Parting, value: float) -> str:
    if math.isfinite(value):
        return number_text(value, 3)
    return {"no rows": "no rows", "not finite": "NaN or infinite"}.get(parting.kind, "–")
