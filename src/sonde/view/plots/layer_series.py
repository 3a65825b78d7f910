"""One number of all layers over all steps, out of a run: from which family, of which layers, and where it met NaN or infinity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError, UnknownSiteError
from sonde.run.heatmap import Heatmap, Reduce
from sonde.run.run import Run
from sonde.run.store.duckdb_sql import quoted
from sonde.site import Site
from sonde.view.plots.layer_names import Include, chosen
from sonde.view.plots.number_names import recorded_by

__all__ = ["ASIDE", "Known", "Matrix", "matrix"]

_DEFECTS = ("nan", "inf", "nonfinite")  # numbers that count elements which the others leave out
ASIDE = ("_eval", "_micro")
"""How families of evaluation passes, and of single backward passes, end."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """A number of layers over steps.

    Attributes:
        values: float64 of shape (layers, steps); NaN where there is none.
        broken: of the same shape: NaN or infinite elements were met there.
        names: of the layers or parameters, in the order of execution.
        steps: ascending.
        number, port, family: what it is.
    """

    values: npt.NDArray[np.float64]
    broken: npt.NDArray[np.bool_]
    names: tuple[str, ...]
    steps: npt.NDArray[np.int64]
    number: str
    port: str
    family: str

    def rows(self, places: list[int]) -> Matrix:
        """The same of some layers."""
        names = tuple(self.names[place] for place in places)
        return replace(self, values=self.values[places], broken=self.broken[places], names=names)

    def aligned(self, names: tuple[str, ...], steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Its values for other layers and steps; NaN where it has none."""
        found = np.full((len(names), len(steps)), np.nan)
        row_of = {name: row for row, name in enumerate(self.names)}
        rows = [(place, row_of[name]) for place, name in enumerate(names) if name in row_of]
        _, here, there = np.intersect1d(self.steps, steps, return_indices=True)
        for place, row in rows:
            found[place, there] = self.values[row, here]
        return found


def matrix(
    run: Run,
    number: str,
    port: str,
    *,
    family: str | None = None,
    include: Include = None,
    exclude: Include = None,
    where: str | None = None,
    reduce: Reduce = "mean",
    known: Known | None = None,
) -> Matrix:
    """Read *number* at *port* of the layers that *include* selects.

    Raises:
        UnknownSiteError: it was not recorded; the message says which lens does.
        ArgumentError: several families have it.
        SelectionError: *include* selects nothing.
    """
    known = known or Known.of(run)
    family = known.family_with(number, port, family)
    heat = run.heatmap(number, port, family=family, reduce=reduce, where=where)
    if not len(heat.steps):
        raise UnknownSiteError(f"{number!r} at port {port!r} has no value in {family}" + (f" where {where}" if where else ""))
    names = tuple(Site.parse(site).name for site in heat.sites)
    found = Matrix(heat.values, _broken(run, heat, where, known), names, heat.steps, number, port, family)
    return found.rows(chosen(names, include, exclude))


@dataclass(frozen=True)
class Known:
    """What a run has.

    Attributes:
        numbers: of each family, its numbers.
        ports: of each family, the ports that it has rows of.
    """

    numbers: Mapping[str, tuple[str, ...]]
    ports: Mapping[str, tuple[str, ...]]

    @staticmethod
    def of(run: Run) -> Known:
        """What *run* has at this moment."""
        numbers = run.numbers
        parts = [f"SELECT DISTINCT '{family}' AS family, port FROM {quoted(family)}" for family in numbers]
        ports: dict[str, set[str]] = {family: set() for family in numbers}
        for family, port in run.sql(" UNION ALL ".join(parts)).fetchall() if parts else ():
            ports[family].add(port)
        return Known(numbers, {family: tuple(sorted(each)) for family, each in ports.items()})

    def has(self, number: str, port: str) -> bool:
        """Whether some family has *number* at *port*."""
        return any(number in names and port in self.ports[family] for family, names in self.numbers.items())

    def family_with(self, number: str, port: str, family: str | None = None) -> str:
        """The family that has *number* at *port*: *family* if given, ``moments`` before others, otherwise the only one.

        Raises:
            UnknownSiteError: there is none; the message says which lens records it.
            ArgumentError: there are several.
        """
        having = [each for each, names in self.numbers.items() if number in names and family in (None, each)]
        having = [each for each in having if port in self.ports[each]]
        if family is None:
            having = [each for each in having if not each.endswith(ASIDE)] or having
        if "moments" in having:
            return "moments"
        if len(having) == 1:
            return having[0]
        if having:
            raise ArgumentError(f"{' and '.join(having)} each have {number!r} at port {port!r}: say which with family=")
        where = f"the family {family!r} of the run" if family is not None else "the run"
        there = sorted(f"{each} ({', '.join(ports)})" for each, ports in self.ports.items())
        raise UnknownSiteError(
            f"{where} has no {number!r} at port {port!r}. What records it: {recorded_by(number, port)}. "
            f"Recorded: {', '.join(there) or 'nothing yet'}"
        )


def _broken(run: Run, heat: Heatmap, where: str | None, known: Known) -> npt.NDArray[np.bool_]:
    """Where elements were NaN or infinite: counted apart where the family counts them, else seen in the number itself."""
    counts = [name for name in _DEFECTS if name in known.numbers[heat.family]]
    condition = " + ".join(f"coalesce({name}, 0)" for name in counts) + " > 0" if counts else f"NOT isfinite({quoted(heat.number)})"
    wanted = f"({where}) AND" if where else ""
    rows = run.sql(f"SELECT DISTINCT site, step FROM {quoted(heat.family)} WHERE {wanted} ({condition})").fetchall()
    row_of = {site: row for row, site in enumerate(heat.sites)}
    column_of: Mapping[int, int] = {step: column for column, step in enumerate(heat.steps.tolist())}
    found = np.isinf(heat.values)
    for site, step in rows:
        if site in row_of and step in column_of:
            found[row_of[site], column_of[step]] = True
    return found
