"""A run as one table for a terminal: of each layer how large its outputs and gradients are, what is dead, how far it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from sonde.errors import ArgumentError, UnknownSiteError
from sonde.run.run import Run
from sonde.run.store.duckdb_sql import quoted
from sonde.site import Site
from sonde.view.plots.layer_names import Include, chosen
from sonde.view.plots.layer_series import ASIDE, Known, Matrix, matrix
from sonde.view.table import Cell, Grid, Tone

__all__ = ["table"]

_RECENT = 20  # logged steps that medians are over
_DEAD = 0.9  # share of a layer's units
_RATIO = (1e-5, 1e-1)  # update / weight: outside, a layer stands still or is thrown about; 1e-3 is usual
_GRADIENT = (1e-3, 100.0)  # against the median over layers; the limits of the table that ``sonde.track`` prints


@dataclass(frozen=True)
class _Column:
    """What each layer has in a column, in which layers there were NaN or infinite elements, and how a value is shown."""

    heading: str
    values: dict[str, float]
    broken: set[str]
    shown: Callable[[float], Cell]

    def cell(self, layer: str) -> Cell:
        if layer in self.broken:
            return Cell("NaN", "bad", "right")
        return self.shown(self.values[layer]) if layer in self.values else Cell("–", "quiet", "right")


def table(run: Run, *, include: Include = None, exclude: Include = None, recent: int = _RECENT) -> Grid:
    """One row for each layer, in the order of execution, for ``print`` and for notebooks.

    ``output`` is the root mean square of the layer's outputs, ``gradient`` the norm over its parameters' gradients, ``dead`` the
    share of units that were zero for a whole batch, ``update / weight`` the norm of its update over that of its parameters.
    Each is the median over the last *recent* logged steps of the last epoch; ``NaN`` says that NaN or infinite elements were met
    in them. What was not recorded has no column.

    Raises:
        SelectionError: no layer is selected.
        ArgumentError: *recent* is not above 0.
    """
    if recent < 1:
        raise ArgumentError(f"recent={recent}: medians are over one logged step or more")
    known = Known.of(run)
    when, where = _moment(run, known, recent)
    columns = [column for column in _columns(run, known, where) if column.values or column.broken]
    layers = _in_order(run, {layer for column in columns for layer in (*column.values, *column.broken)})
    layers = [layers[place] for place in chosen(layers, include, exclude)] if layers else []
    name = f"run {run.path.name}" if run.path is not None else "run in memory"
    return Grid(
        title=f"{name} · {when}" if when else name,
        columns=["layer", *(column.heading for column in columns)],
        rows=[[Cell(layer), *(column.cell(layer) for column in columns)] for layer in layers],
        footer=_scalars(run),
        empty="nothing was recorded yet",
    )


def _moment(run: Run, known: Known, recent: int) -> tuple[str, str]:
    """The last logged steps of the last epoch, in words and as SQL."""
    parts = [f"SELECT epoch, step FROM {quoted(family)}" for family in known.numbers if not family.endswith(ASIDE)]
    if not parts:
        return "", "true"
    rows = run.sql(
        f"WITH moments AS ({' UNION '.join(parts)}) SELECT DISTINCT epoch, step FROM moments "
        f"WHERE epoch = (SELECT max(epoch) FROM moments) ORDER BY step DESC LIMIT {recent}"
    ).fetchall()
    epoch, last, first = rows[0][0], rows[0][1], rows[-1][1]
    steps = f"step {last:,}" if first == last else f"medians over steps {first:,} to {last:,}"
    return f"epoch {epoch} · {steps}", f"epoch = {epoch} AND step BETWEEN {first} AND {last}"


def _columns(run: Run, known: Known, where: str) -> list[_Column]:
    output, dead = (_read(run, known, number, "output", where) for number in ("rms", "call_death"))
    grad, weight, update = (_read(run, known, "norm", port, where) for port in ("grad", "param", "update"))
    gradients, weights, updates = (_of_layers(each) for each in (grad, weight, update))
    ratios = {layer: size / weights[layer] for layer, size in updates.items() if weights.get(layer, 0.0) > 0}
    typical = float(np.median(list(gradients.values()))) if gradients else 0.0
    return [
        _Column("output", _medians(output), _broken(output), lambda value: _number(f"{value:.3g}")),
        _Column(
            "gradient", gradients, _broken_layers(grad), lambda value: _number(f"{value:.1e}", _tone(value, typical, _GRADIENT))
        ),
        _Column(
            "dead", _medians(dead), set(), lambda value: Cell(f"{value:.0%}", "bad" if value > _DEAD else "plain", "right", value)
        ),
        _Column(
            "update / weight",
            ratios,
            _broken_layers(weight) | _broken_layers(update),
            lambda value: _number(f"{value:.1e}", _tone(value, 1.0, _RATIO)),
        ),
    ]


def _read(run: Run, known: Known, number: str, port: str, where: str) -> Matrix | None:
    if not known.has(number, port):
        return None
    try:
        return matrix(run, number, port, where=where, known=known)
    except (ArgumentError, UnknownSiteError):  # two families of it, or none of these steps has any
        return None


def _medians(found: Matrix | None) -> dict[str, float]:
    if found is None:
        return {}
    kept = ((name, row[np.isfinite(row)]) for name, row in zip(found.names, found.values, strict=True))
    return {name: float(np.median(row)) for name, row in kept if len(row)}


def _of_layers(found: Matrix | None) -> dict[str, float]:
    """Of each layer the median of the norm over all its parameters together."""
    if found is None:
        return {}
    squares: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = {}
    for name, row in zip(found.names, found.values, strict=True):
        squares[_owner(name)] = squares.get(_owner(name), 0.0) + row**2
    kept = ((layer, np.sqrt(row[np.isfinite(row)])) for layer, row in squares.items())
    return {layer: float(np.median(row)) for layer, row in kept if len(row)}


def _broken(found: Matrix | None) -> set[str]:
    return set() if found is None else {name for name, row in zip(found.names, found.broken, strict=True) if row.any()}


def _broken_layers(found: Matrix | None) -> set[str]:
    return {_owner(name) for name in _broken(found)}


def _owner(parameter: str) -> str:
    return Site.parse(f"{parameter}:param").owner.name


def _in_order(run: Run, wanted: set[str]) -> list[str]:
    known = (layer for site in run.sites for layer in (Site.parse(site).name, Site.parse(site).owner.name))
    return list(dict.fromkeys(layer for layer in known if layer in wanted))


def _number(text: str, tone: Tone = "plain") -> Cell:
    return Cell(text, tone, "right")


def _tone(value: float, unit: float, limits: tuple[float, float]) -> Tone:
    return "warn" if unit > 0 and not limits[0] * unit <= value <= limits[1] * unit else "plain"


def _scalars(run: Run) -> list[str]:
    """The last value of each scalar, in a line."""
    if "scalars" not in run.families:
        return []
    rows = run.sql("SELECT name, arg_max(value, step) FROM scalars WHERE rank = 0 GROUP BY name").fetchall()
    rows.sort(key=lambda row: ("loss" not in row[0], row[0].endswith("_norm"), row[0]))
    return [_line(rows)]


def _line(rows: Iterable[tuple[str, float]]) -> str:
    return " · ".join(f"{name} {value:.4g}" for name, value in rows)
