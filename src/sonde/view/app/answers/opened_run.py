"""Hold a run together with what several answers read from it: each number of all layers over all steps is read once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError, SiteError, UnknownSiteError
from sonde.number import Number
from sonde.rules import ModelFacts
from sonde.run import Run, TensorStore, quoted
from sonde.site import PORTS, Site
from sonde.suggest import unknown_name
from sonde.view.app.answers.reduction import Bins, Marks, Reduced, Values, marks_of
from sonde.view.app.bounded_cache import BoundedCache
from sonde.view.plots.graph_page import graph_page
from sonde.view.plots.layer_names import chosen
from sonde.view.plots.layer_series import Known, Matrix, matrix
from sonde.view.plots.number_names import axis_of, main_number, title_of, unit_of
from sonde.view.plots.update_ratio import ratio_of
from sonde.view.scales import DIVERGING, Scale, scale_for

RATIO = "ratio"
"""The id of update / weight, which is made of two recorded numbers or recorded as one."""

_HELD = 512 << 20  # bytes of numbers that stay in memory
_FIRST = 10_000  # rows, among which nearly every number of a family has a value
_AGAIN = 3  # logged steps that are read once more when a run has grown: their rows may have come in several flushes

_EXACT = 2_000_000  # cells of a number; of more, seven digits are kept
_DOUBLE = 8  # bytes of a number with all digits

_FEW = 3  # bins that say how a layer was before something went wrong

BINS = 400
"""The bins of a picture of a whole run, over which also the scale of the number is chosen."""


@dataclass(frozen=True, eq=False)
class StepGrid:
    """One number of all sites over all logged steps.

    Attributes:
        id: of the number, as ``moments.rms@output``.
        matrix: the values.
        marks: of the same shape; see :func:`sonde.view.app.answers.reduction.marks_of`.
        kinds: the class of each site's layer; ``""`` where the run does not say.
        began: the step from which on a finding of the run holds; None: there is none.
    """

    id: str
    matrix: Matrix
    marks: Marks
    kinds: tuple[str, ...]
    began: int | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the values and marks."""
        return self.matrix.values.nbytes + self.matrix.defects.nbytes + self.marks.nbytes

    @cached_property
    def whole(self) -> tuple[Bins, Reduced]:
        """The bins of the whole run, and what is in them."""
        bins = Bins.of(self.matrix.steps, None, None, BINS)
        return bins, bins.reduced(self.matrix.values, self.marks)

    @cached_property
    def scale(self) -> Scale:
        """The scale of the whole run, which stays as it is while a reader looks at some of the steps."""
        return scale_for(self.whole[1].middle, self.matrix.described.kind)

    @property
    def before(self) -> int | None:
        """The step at which the first finding begins, if a few bins of the run are before it; else None."""
        return self.began if self._healthy >= _FEW else None

    @property
    def _healthy(self) -> int:
        return 0 if self.began is None else int(np.searchsorted(self.whole[0].ends, self.began))

    @cached_property
    def reference(self) -> Values:
        """What a picture of change compares sites with: medians of the bins in front of :attr:`before`, or of all; NaN without."""
        every = self.whole[1].middle
        found = np.full(len(every), np.nan)
        for middle in (every,) if self.before is None else (every, every[:, : self._healthy]):
            there = np.isfinite(middle).any(axis=1)
            found[there] = np.nanmedian(middle[there], axis=1)
        return found

    @cached_property
    def courses(self) -> tuple[Values, Values, Values]:
        """The median, the least and the greatest finite value of each site over the run."""
        found = Bins.of(self.matrix.steps, None, None, 1).reduced(self.matrix.values, self.marks)
        return found.middle[:, 0], found.low[:, 0], found.high[:, 0]

    @cached_property
    def ends(self) -> tuple[float | None, float | None]:
        """The least and the greatest finite value; None without any."""
        reduced = self.whole[1]
        low, high = np.fmin.reduce(reduced.low, axis=None), np.fmax.reduce(reduced.high, axis=None)
        return (None, None) if np.isnan(low) else (float(low), float(high))

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of each site, by its text."""
        return {str(site): row for row, site in enumerate(self.matrix.sites)}

    def row(self, site: str) -> int:
        """Return the row of *site*, given as text.

        Raises:
            UnknownSiteError: the number was not recorded there; the message names the nearest.
        """
        text = str(Site.parse(site)) if ":" in site else f"{site}:{self.matrix.port}"
        if text not in self.row_of:
            raise unknown_name("site", site, self.row_of, f"{self.id} in this run")
        return self.row_of[text]

    def described(self) -> dict[str, Any]:
        """Return the legend of the number, for JSON."""
        found = self.matrix
        return {
            **number_data(self.id, found.family, found.port, found.described),
            "scale": scale_data(self.scale, *self.ends),
        }


class OpenedRun:
    """A run at one version. Safe to use from any thread.

    Args:
        run: the run.
        name: of the run among others.
        version: changes when there is something new to read.
        numbers: where numbers that were read are kept.
    """

    def __init__(self, run: Run, name: str = "", version: str = "", numbers: BoundedCache | None = None) -> None:
        self.run = run
        self.name = name or (run.path.name if run.path is not None else "in memory")
        self.version = version
        self.numbers = BoundedCache(_HELD) if numbers is None else numbers

    @cached_property
    def known(self) -> Known:
        """The numbers and ports that the run has."""
        return Known.of(self.run)

    @property
    def matched(self) -> dict[str, int] | None:
        """How many steps are compared with those of another run; None: the run stands alone."""
        return None

    @cached_property
    def scalars(self) -> tuple[str, ...]:
        """The names of the scalars."""
        if "scalars" not in self.run.families:
            return ()
        return tuple(name for (name,) in self.run.sql("SELECT DISTINCT name FROM scalars ORDER BY name").fetchall())

    def scalar(self, name: str) -> tuple[npt.NDArray[np.int64], Values, str]:
        """Return the steps and the values of a scalar, and a unit where it is not that of the scalar's kind."""
        steps, values = self.run.scalar(name)
        return steps, np.asarray(values, np.float64), ""

    @cached_property
    def facts(self) -> ModelFacts:
        """The run's facts about layers and parameters."""
        return ModelFacts(self.run.info)

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """All sites, in the order of execution."""
        return tuple(map(Site.parse, self.run.sites))

    @cached_property
    def tensors(self) -> TensorStore | None:
        """The tensors that were kept beside the run: see :attr:`sonde.run.Run.tensors`."""
        return self.run.tensors

    @cached_property
    def rows(self) -> int:
        """How many rows of numbers there are."""
        counted = [f"SELECT count(*) AS rows FROM {quoted(family)}" for family in self.known.numbers]
        return int(self.run.sql(f"SELECT sum(rows) FROM ({' UNION ALL '.join(counted)})").fetchall()[0][0]) if counted else 0

    @cached_property
    def drawable(self) -> dict[str, tuple[str, str, str, Number]]:
        """By id the numbers that each row has one of: family, name, port, description. Main families and main numbers first."""
        families = [*self.known.main]
        families += [each for each in self.known.numbers if each not in families]
        found = {}
        for family in families:
            columns = self.run.sql(f"DESCRIBE {quoted(family)}").fetchall()
            lists = {name for name, kind, *_ in columns if kind.endswith("]")}
            names = [name for name in self.known.numbers[family] if name not in lists]
            first = main_number(tuple(names), {}, self.known.described[family])
            sorted_names = sorted(names, key=lambda each: (each != first, self.known.describe(each, family).is_minor))
            there = self._there(family, sorted_names)
            for port in sorted(self.known.ports[family], key=_place):
                for name in sorted_names:
                    if name in there.get(port, ()):
                        found[f"{family}.{name}@{port}"] = family, name, port, self.known.describe(name, family)
        return found

    def _there(self, family: str, names: Sequence[str]) -> dict[str, set[str]]:
        """Return by port those of *names* that have a value there: the tensors of a family need not have the same numbers.

        Most are there among the first rows; all rows are read of those names alone that some port lacks there.
        """
        found: dict[str, set[str]] = {port: set() for port in self.known.ports[family]}
        for is_all in (False, True):
            rows = quoted(family) if is_all else f"(FROM {quoted(family)} LIMIT {_FIRST:d})"
            wanted = [name for name in names if any(name not in held for held in found.values())]
            counts = "".join(f", count({quoted(name)})" for name in wanted)
            for port, *held in self.run.sql(f"SELECT port{counts} FROM {rows} GROUP BY port").fetchall() if wanted else ():
                found.setdefault(port, set()).update(name for name, count in zip(wanted, held, strict=True) if count)
        return found

    def number(self, asked: str) -> str:
        """Return the id of the number that *asked* names: an id, or a name and perhaps a port, as ``rms`` or ``rms@grad``.

        Raises:
            UnknownSiteError: the run has no such number; the message names the nearest.
        """
        if asked in self.drawable:
            return asked
        name, _, port = asked.partition("@")
        try:
            found = f"{self.known.family_with(name, port or 'output')}.{name}@{port or 'output'}"
        except (UnknownSiteError, ArgumentError):
            found = ""
        if found not in self.drawable:
            raise unknown_name("number", asked, self.drawable, f"run {self.name}")
        return found

    def grid(self, asked: str, *, exact: bool = False) -> StepGrid:
        """Return a number of all sites over all steps.

        Args:
            asked: the number, see :meth:`number`, or :data:`RATIO`.
            exact: with all digits; else those of two million cells or more have seven.

        Raises:
            UnknownSiteError: the run has no such number; the message names the nearest.
        """
        name = RATIO if asked == RATIO else self.number(asked)
        key = self.name, name, self.version, self._attempts, exact
        return self.numbers.get(key, lambda: self._read(name, exact), lambda grid: grid.nbytes)

    def _read(self, name: str, exact: bool) -> StepGrid:
        if name == RATIO:
            found = ratio_of(self.run)
        else:
            found = self._grown(name, exact) or self._matrix(name, math.inf if exact else _EXACT)
        kinds = tuple(self.facts.of(site).kind for site in found.sites)
        began = min((each.begun for each in self.run.findings if each.severity != "note"), default=None)
        return StepGrid(name, found, marks_of(found.values, found.defects), kinds, began)

    def _matrix(self, name: str, exact: float, where: str | None = None) -> Matrix:
        family, number, port, _ = self.drawable[name]
        return matrix(self.run, number, port, family=family, known=self.known, where=where, exact=exact)

    @cached_property
    def _attempts(self) -> tuple[int, tuple[int, ...]]:
        return len(self.run.description.attempts), self.run.ranks

    def _grown(self, name: str, exact: bool) -> Matrix | None:
        """Return a number of a run that goes on: as it was at an earlier version, with the rows of later steps; None: read all.

        All is read where one of several ranks may be behind the others, or a run that was resumed may have replaced its last steps;
        and where the number becomes so large that it is no longer kept with all digits.
        """
        before: StepGrid | None = self.numbers.latest(
            lambda key: key[:2] == (self.name, name) and key[3:] == (self._attempts, exact)
        )
        if before is None or self._attempts[1] != (0,) or len(before.matrix.steps) <= _AGAIN:
            return None
        kept, held = len(before.matrix.steps) - _AGAIN, before.matrix.values
        later = self._matrix(name, math.inf if held.itemsize == _DOUBLE else 0, f"step >= {int(before.matrix.steps[kept]):d}")
        found = before.matrix.extended(kept, later)
        return None if not exact and held.size <= _EXACT < found.values.size else found


def site_or_none(text: str) -> Site | None:
    """Return the site of a text that another program may have written; None where it is none, or empty."""
    with suppress(SiteError):
        return Site.parse(text) if text else None
    return None


def scale_data(scale: Scale, least: float | None, most: float | None) -> dict[str, Any]:
    """Return a scale of colours and the ends of all values, for JSON."""
    return {
        "low": scale.low,
        "high": scale.high,
        "log": scale.log,
        "diverging": scale.colours == DIVERGING,
        "extend": scale.extend,
        "least": least,
        "most": most,
    }


def number_data(name: str, family: str, port: str, number: Number) -> dict[str, Any]:
    """Return what a page needs to name a number and its axis, for JSON."""
    return {
        "id": name,
        "family": family,
        "number": number.name,
        "port": port,
        "label": number.short,
        "title": title_of(number, port),
        "axis": axis_of(number, port).replace(r"\$", "$"),
        "unit": unit_of(number, port),
        "kind": number.kind,
        "log": number.kind == "size",
        "signed": number.kind in ("signed", "cosine"),
        "minor": number.is_minor,
        "zero": _ZEROS.get(number.kind, "exactly 0"),
    }


_ZEROS = {"size": "exactly 0: every element is zero", "share": "exactly 0: none", "count": "none"}


def _place(port: str) -> int:
    order = ("output", "grad_output", "grad", "param", "update", *PORTS)
    return order.index(port) if port in order else len(order)


def graph_text(opened: OpenedRun, numbers: tuple[str, ...] = ()) -> bytes:
    """Return the page of the run's graph, coloured by *numbers*, ids or names; none are the main ones.

    Raises:
        UnknownSiteError: the run has no such number.
        ArgumentError: the run has no graph; the message says how to record one.
        MissingExtraError: the layout engine of graphs is not installed.
    """
    names = [opened.drawable[opened.number(each)][1] for each in numbers]
    return graph_page(opened.run, [*dict.fromkeys(names)], only=bool(names)).html.encode()


def chosen_rows(grid: StepGrid, layers: str) -> list[int]:
    """Return the rows of a subtree of modules, given by its name, or of the names in which *layers*, a pattern, is found.

    Raises:
        SelectionError: no row is left, and the message names the nearest; or *layers* is no regular expression.
    """
    names = grid.matrix.names
    if not layers:
        return list(range(len(names)))
    inside = [row for row, name in enumerate(names) if name == layers or name.startswith(f"{layers}.")]
    if inside:
        return inside
    return chosen(names, layers)
