"""Hold a run together with what several answers read from it: each number of all layers over all steps is read once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sonde.errors import ArgumentError, UnknownSiteError
from sonde.number import Number
from sonde.run.folder.duckdb_sql import quoted
from sonde.run.model_facts import ModelFacts
from sonde.run.run import Run
from sonde.run.schema import main_families
from sonde.site import PORTS, Site
from sonde.suggest import unknown_name
from sonde.view.app.answers.reduction import Bins, Marks, marks_of
from sonde.view.app.bounded_cache import BoundedCache
from sonde.view.plots.layer_names import Include
from sonde.view.plots.layer_series import Known, Matrix, matrix
from sonde.view.plots.number_names import axis_of, main_number, title_of, unit_of
from sonde.view.plots.update_ratio import ratio_of
from sonde.view.scales import DIVERGING, Scale, scale_for

__all__ = ["RATIO", "OpenedRun", "StepGrid"]

RATIO = "ratio"
"""The id of update / weight, which is made of two recorded numbers or recorded as one."""

_HELD = 512 << 20  # bytes of numbers that stay in memory
_SCALED = 400  # bins over which the scale of a number is chosen


@dataclass(frozen=True, eq=False)
class StepGrid:
    """One number of all sites over all logged steps.

    Attributes:
        id: of the number, as ``moments.rms@output``.
        matrix: the values.
        marks: of the same shape; see :func:`sonde.view.app.answers.reduction.marks_of`.
        kinds: the class of each site's layer; ``""`` where the run does not say.
    """

    id: str
    matrix: Matrix
    marks: Marks
    kinds: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of the values and marks."""
        return self.matrix.values.nbytes + self.matrix.defects.nbytes + self.marks.nbytes

    @cached_property
    def scale(self) -> Scale:
        """The scale of the whole run, which stays as it is while a reader looks at some of the steps."""
        bins = Bins.of(self.matrix.steps, None, None, _SCALED)
        middle, marks = bins.reduced(self.matrix.values, self.marks)
        del marks
        return scale_for(middle, self.matrix.described.kind)

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
        """Return what a legend says of the number, for JSON."""
        found, scale = self.matrix, self.scale
        finite = found.values[np.isfinite(found.values)]
        return {
            **number_data(self.id, found.family, found.port, found.described),
            "scale": {
                "low": scale.low,
                "high": scale.high,
                "log": scale.log,
                "diverging": scale.colours == DIVERGING,
                "extend": scale.extend,
                "least": float(finite.min()) if len(finite) else None,
                "most": float(finite.max()) if len(finite) else None,
            },
        }


class OpenedRun:
    """A run as it is at one version. Any thread may ask.

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
        self._numbers = BoundedCache(_HELD) if numbers is None else numbers

    @cached_property
    def known(self) -> Known:
        """The numbers and ports that the run has."""
        return Known.of(self.run)

    @cached_property
    def facts(self) -> ModelFacts:
        """What the run says of layers and parameters."""
        return ModelFacts(self.run.info)

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """All sites, in the order of execution."""
        return tuple(map(Site.parse, self.run.sites))

    @cached_property
    def drawable(self) -> dict[str, tuple[str, str, str, Number]]:
        """By id the numbers that each row has one of: family, name, port, description. Main families and main numbers first."""
        families = [*main_families(self.known.numbers)]
        families += [each for each in self.known.numbers if each not in families]
        found = {}
        for family in families:
            columns = self.run.sql(f"DESCRIBE {quoted(family)}").fetchall()
            lists = {name for name, kind, *_ in columns if kind.endswith("]")}
            names = [name for name in self.known.numbers[family] if name not in lists]
            first = main_number(tuple(names), {}, self.known.described[family])
            for port in sorted(self.known.ports[family], key=_place):
                for name in sorted(names, key=lambda each: (each != first, self.known.describe(each, family).is_minor)):
                    found[f"{family}.{name}@{port}"] = family, name, port, self.known.describe(name, family)
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

    def grid(self, asked: str) -> StepGrid:
        """Return a number of all sites over all steps.

        Args:
            asked: the number, see :meth:`number`, or :data:`RATIO`.

        Raises:
            UnknownSiteError: the run has no such number; the message names the nearest.
        """
        name = RATIO if asked == RATIO else self.number(asked)
        return self._numbers.get((self.name, self.version, name), lambda: self._read(name), lambda grid: grid.nbytes)

    def _read(self, name: str) -> StepGrid:
        if name == RATIO:
            found = ratio_of(self.run)
        else:
            family, number, port, _ = self.drawable[name]
            found = matrix(self.run, number, port, family=family, known=self.known)
        kinds = tuple(self.facts.of(site).kind for site in found.sites)
        return StepGrid(name, found, marks_of(found.values, found.defects), kinds)


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


def chosen_rows(grid: StepGrid, layers: str) -> list[int]:
    """Return the rows of a subtree of modules, given by its name, or of the names in which *layers*, a pattern, is found.

    Raises:
        SelectionError: no row is left; the message names the nearest.
        ArgumentError: *layers* is no regular expression.
    """
    import re

    from sonde.view.plots.layer_names import chosen

    names = grid.matrix.names
    if not layers:
        return list(range(len(names)))
    inside = [row for row, name in enumerate(names) if name == layers or name.startswith(f"{layers}.")]
    if inside:
        return inside
    try:
        pattern: Include = re.compile(layers)
    except re.error as error:
        raise ArgumentError(f"layers={layers!r} is no regular expression: {error}") from None
    return chosen(names, pattern)
