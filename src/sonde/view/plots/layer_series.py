"""Read one number of all layers over all steps from a run, and mark the cells with NaN or infinite elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError, UnknownSiteError
from sonde.number import Number, described, number_of
from sonde.run import Heatmap, Reduce, Run, condition, quoted
from sonde.site import PORTS, Site
from sonde.suggest import unknown_name
from sonde.view.aggregation import point_of, starts_of
from sonde.view.plots.layer_names import Include, chosen
from sonde.view.plots.number_names import recorded_by

_DEFECTS = {"nan": 3, "nonfinite": 2, "inf": 1}  # counts of the elements which other numbers leave out, with their codes

FIRST_ROWS = "the first rows come within two seconds of the first logged step"
"""When a run of which nothing was recorded yet has something to show."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """A number of layers over steps.

    Attributes:
        values: float64, or of a large one float32, of shape (layers, steps); NaN where there is none.
        defects: of the same shape; codes of elements that were infinite (1), NaN (3), or one of both (2), as in
            ``canvas.DEFECTS``; 0 where all were finite.
        sites: of the layers or parameters, in the order of execution.
        steps: ascending.
        number, port, family: what the values are.
        described: the number, with its label, unit and kind.
    """

    values: npt.NDArray[np.float64]
    defects: npt.NDArray[np.int8]
    sites: tuple[Site, ...]
    steps: npt.NDArray[np.int64]
    number: str
    port: str
    family: str
    described: Number

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layers or parameters, without the port."""
        return tuple(site.name for site in self.sites)

    @property
    def broken(self) -> npt.NDArray[np.bool_]:
        """A mask: True where elements were NaN or infinite."""
        found: npt.NDArray[np.bool_] = self.defects > 0
        return found

    @property
    def finite(self) -> npt.NDArray[np.float64]:
        """The values that are finite and of finite elements; NaN elsewhere."""
        return np.where(self.broken | ~np.isfinite(self.values), np.nan, self.values)

    @property
    def zero(self) -> npt.NDArray[np.bool_]:
        """A mask: True where the value is exactly zero, and of finite elements."""
        found: npt.NDArray[np.bool_] = (self.values == 0) & ~self.broken
        return found

    def rows(self, places: list[int]) -> Matrix:
        """Return the same of some layers."""
        if places == list(range(len(self.sites))):
            return self
        sites = tuple(self.sites[place] for place in places)
        return replace(self, values=self.values[places], defects=self.defects[places], sites=sites)

    def like(self, other: Matrix) -> Matrix:
        """Return this number for the layers and steps of *other*; values are NaN where this one has none."""
        values = np.full(other.values.shape, np.nan)
        defects = np.zeros(other.values.shape, np.int8)
        row_of = {name: row for row, name in enumerate(self.names)}
        _, here, there = np.intersect1d(self.steps, other.steps, return_indices=True)
        for place, name in enumerate(other.names):
            if name in row_of:
                values[place, there] = self.values[row_of[name], here]
                defects[place, there] = self.defects[row_of[name], here]
        return replace(self, values=values, defects=defects, sites=other.sites, steps=other.steps)

    def aggregated(self, intervals: int, method: str) -> Matrix:
        """Return one column for each interval of equally many steps, at the interval's first step; see ``point_of``."""
        starts = starts_of(len(self.steps), intervals)
        defects = np.maximum.reduceat(self.defects, starts, axis=1)
        return replace(self, values=point_of(self.finite, starts, method), defects=defects, steps=self.steps[starts])

    def extended(self, kept: int, later: Matrix) -> Matrix:
        """Return the first *kept* steps of this one, and the steps of *later*, whose sites are the same and perhaps more."""
        row_of = {site: row for row, site in enumerate(later.sites)}
        rows = [row_of[site] for site in self.sites]
        values = np.full((len(later.sites), kept), np.nan, self.values.dtype)
        defects = np.zeros(values.shape, np.int8)
        values[rows], defects[rows] = self.values[:, :kept], self.defects[:, :kept]
        return replace(
            later,
            values=np.hstack([values, later.values]),
            defects=np.hstack([defects, later.defects]),
            steps=np.append(self.steps[:kept], later.steps),
        )

    def innermost(self) -> Matrix:
        """Return the rows of layers that hold none of the others."""
        around = {
            (site.model, ".".join(parts[:length]))
            for site in self.sites
            for parts in [site.path.split(".") if site.path else []]
            for length in range(len(parts))
        }
        return self.rows([row for row, site in enumerate(self.sites) if (site.model, site.path) not in around])


def matrix(
    run: Run,
    number: str,
    port: str,
    *,
    family: str | None = None,
    include: Include = None,
    exclude: Include = None,
    where: str | None = None,
    reduce: Reduce = "worst",
    known: Known | None = None,
    exact: float = math.inf,
) -> Matrix:
    """Read *number* at *port* of the layers that *include* selects; for *exact* see :meth:`sonde.run.Run.heatmap`.

    Raises:
        UnknownSiteError: it was not recorded; the message names the lens that records it.
        ArgumentError: several families have it.
        SelectionError: *include* selects nothing.
    """
    known = known or Known.of(run)
    family = known.family_with(number, port, family)
    heat = run.heatmap(number, port, family=family, reduce=reduce, where=where, exact=exact)
    if not len(heat.steps):
        raise UnknownSiteError(f"{number!r} at port {port!r} has no value in {family}" + (f" where {where}" if where else ""))
    sites = tuple(Site.parse(site) for site in heat.sites)
    found = Matrix(
        heat.values, _defects(run, heat, where, known), sites, heat.steps, number, port, family, known.describe(number, family)
    )
    return found.rows(chosen(found.names, include, exclude))


@dataclass(frozen=True, eq=False)
class Powers:
    """The number of elements with each power of two, of several layers together.

    Attributes:
        counts: float64 of shape (steps, powers), from the power ``ExponentHistogram`` begins with.
        zeros: elements that are exactly zero, of shape (steps,).
        defects: codes of elements that are NaN or infinite, as in :class:`Matrix`, of shape (steps,).
        steps: ascending.
        names: of the layers.
    """

    counts: npt.NDArray[np.float64]
    zeros: npt.NDArray[np.float64]
    defects: npt.NDArray[np.int8]
    steps: npt.NDArray[np.int64]
    names: tuple[str, ...]


def powers(
    run: Run, port: str, *, family: str | None = None, include: Include = None, exclude: Include = None, where: str | None = None
) -> Powers:
    """Read the counts of powers of two at *port* of the layers that *include* selects, added up.

    Raises:
        UnknownSiteError: they were not recorded; the message names the lens that records them.
        ArgumentError: several families have them.
        SelectionError: *include* selects nothing.
    """
    known = Known.of(run)
    family = known.family_with("powers", port, family)
    heat = run.heatmap("count", port, family=family)
    names = [Site.parse(site).name for site in heat.sites]
    kept = chosen(names, include, exclude)
    chosen_sites = {"sites": [heat.sites[place] for place in kept]}
    rows = f"FROM {quoted(family)} WHERE site IN (SELECT unnest($sites::VARCHAR[])){condition(where)}"
    counted = " ".join(f"WHEN {quoted(name)} > 0 THEN {kind:d}" for name, kind in _DEFECTS.items() if name in known.numbers[family])
    code = f"(CASE {counted or 'WHEN false THEN 0'} ELSE 0 END)"
    sums = run.sql(
        f"SELECT step, sum(zeros)::DOUBLE AS zeros, max({code})::TINYINT AS defects {rows} GROUP BY step ORDER BY step",
        chosen_sites,
    ).fetchnumpy()
    steps = np.asarray(sums["step"], np.int64)
    width = int(run.sql(f"SELECT coalesce(max(len(powers)), 0) {rows}", chosen_sites).fetchall()[0][0])
    each = f"SELECT step, generate_subscripts(powers, 1) AS place, unnest(powers) AS amount {rows}"
    found = run.sql(
        f"SELECT step, place, sum(amount)::DOUBLE AS amount FROM ({each}) WHERE amount > 0 GROUP BY step, place", chosen_sites
    ).fetchnumpy()
    counts = np.zeros((len(steps), width))
    counts[np.searchsorted(steps, found["step"]), np.asarray(found["place"], np.intp) - 1] = found["amount"]
    zeros, defects = np.asarray(sums["zeros"], np.float64), np.asarray(sums["defects"], np.int8)
    return Powers(counts, zeros, defects, steps, tuple(names[place] for place in kept))


def kinds_of(run: Run) -> dict[str, str]:
    """Return the class of each module by its name, if the run lists the modules; a user may have written something else there."""
    listed = run.info.get("model", ())
    lines = [line for line in listed if isinstance(line, Mapping)] if isinstance(listed, list | tuple) else []
    return {str(line.get("name") or ""): str(line.get("type", "")) for line in lines}


def epochs_of(run: Run, found: Matrix) -> npt.NDArray[np.int64]:
    """Read the epoch of each step of *found*."""
    epochs = dict(run.sql(f"SELECT step, min(epoch) FROM {quoted(found.family)} GROUP BY step").fetchall())
    return np.array([epochs[step] for step in found.steps.tolist()], np.int64)


@dataclass(frozen=True)
class Known:
    """The numbers and ports that a run has.

    Attributes:
        numbers: the numbers of each family.
        main: the families that are not beside another, as those of evaluation passes are.
        ports: the ports that each family has rows of.
        described: by family and name, the numbers that its lens describes.
        kinds: the classes of the model's modules, if the run lists them.
    """

    numbers: Mapping[str, tuple[str, ...]]
    main: tuple[str, ...]
    ports: Mapping[str, tuple[str, ...]]
    described: Mapping[str, Mapping[str, Number]]
    kinds: frozenset[str] = frozenset()

    @staticmethod
    def of(run: Run) -> Known:
        """Read what *run* has at this moment."""
        numbers, info = run.numbers, run.info
        known = {family: described(info, family) for family in numbers}
        kinds = frozenset(kinds_of(run).values())
        return Known(numbers, run.main_families, run.ports, known, kinds)

    def describe(self, number: str, family: str) -> Number:
        """Return the description of *number*: by the lens of *family*, else the standard one."""
        return self.described[family].get(number) or number_of(number)

    def has(self, number: str, port: str) -> bool:
        """Whether some family has *number* at *port*."""
        return any(number in names and port in self.ports[family] for family, names in self.numbers.items())

    def family_with(self, number: str, port: str, family: str | None = None) -> str:
        """Return the family that has *number* at *port*: *family* if given, ``moments`` before others, otherwise the only one.

        Raises:
            UnknownSiteError: there is none; the message names the lens that records it.
            ArgumentError: there are several.
        """
        having = [each for each, names in self.numbers.items() if number in names and family in (None, each)]
        having = [each for each in having if port in self.ports[each]]
        if family is None:
            having = [each for each in having if each in self.main] or having
        if "moments" in having:
            return "moments"
        if len(having) == 1:
            return having[0]
        if having:
            raise ArgumentError(f"{' and '.join(having)} each have {number!r} at port {port!r}: say which with family=")
        recorded = {each for ports in self.ports.values() for each in ports}
        if port not in PORTS and port not in recorded:
            raise unknown_name("port", port, [*sorted(recorded), *PORTS], "a site")
        if family is not None and family not in self.numbers:
            raise unknown_name("family", family, self.numbers, "the run")
        where = f"the family {family!r} of the run" if family is not None else "the run"
        there = sorted(f"{each} ({', '.join(ports)})" for each, ports in self.ports.items())
        names = {name for names in self.numbers.values() for name in names}
        near = get_close_matches(number, names - {number}, n=1, cutoff=0.6)
        raise UnknownSiteError(
            f"{where} has no {number!r} at port {port!r}. {f'Nearest: {near[0]}. ' if near and number not in names else ''}"
            f"What records it: {recorded_by(number, port, self.kinds)}. "
            f"Recorded: {', '.join(there) or f'nothing yet; {FIRST_ROWS}'}"
        )


def _defects(run: Run, heat: Heatmap, where: str | None, known: Known) -> npt.NDArray[np.int8]:
    """Return the codes of the cells: by the family's own counts of defects, otherwise by whether the number is NaN or infinite."""
    names, number = known.numbers[heat.family], f"{quoted(heat.number)}::DOUBLE"  # it may be true or false
    counted = " ".join(f"WHEN {quoted(name)} > 0 THEN {kind:d}" for name, kind in _DEFECTS.items() if name in names)
    code = f"(CASE {counted or f'WHEN isnan({number}) THEN 3 WHEN isinf({number}) THEN 1'} ELSE 0 END)"
    rows = run.sql(
        f"SELECT site, step, max({code}) FROM {quoted(heat.family)} WHERE {code} > 0{condition(where)} GROUP BY site, step"
    ).fetchall()
    row_of = {site: row for row, site in enumerate(heat.sites)}
    column_of: Mapping[int, int] = {step: column for column, step in enumerate(heat.steps.tolist())}
    with np.errstate(over="ignore", invalid="ignore"):
        are_finite = bool(np.isfinite(heat.values.sum()))
    if are_finite and not rows:
        return np.broadcast_to(np.int8(0), heat.values.shape)  # one 0 in memory, and not one for each cell
    found = np.isinf(heat.values).view(np.int8)
    for site, step, kind in rows:
        if site in row_of and step in column_of:
            found[row_of[site], column_of[step]] = kind
    return found
