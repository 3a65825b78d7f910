"""Show a run as one table: of each layer how large its outputs and gradients are, which of its units are dead, how far it moves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from sonde import rules
from sonde.answer import Grid
from sonde.errors import ArgumentError, SiteError
from sonde.number import number_of
from sonde.rules import Finding
from sonde.run import Run, of_rank, quoted
from sonde.site import Site
from sonde.suggest import nearest_steps
from sonde.view.layer_table import NO_ELEMENTS, TONES, LayerRow, Note, Quantity, layer_table, notes_of, worst
from sonde.view.plots.family_table import family_rows, family_table
from sonde.view.plots.layer_names import Include, chosen
from sonde.view.plots.layer_series import FIRST_ROWS, Known, kinds_of
from sonde.words import number_text

OF_CALLS = {"max": "max", "min": "min", "": "avg"}
"""The SQL function that makes one number of those of a layer's calls, by ``Number.worst``."""
_RECENT = 20  # logged steps that medians are over
_SCALARS = 6  # that stand below the table
_OF_RATE = re.compile(r"lr([_/]\d+)*")
_WEIGHT = "weight "  # a gradient in the last column is the weight's; the column of that name has the one at the output
_NORMS = "weight, weight grad, update: Euclidean norms over all parameters of the layer"


def table(
    run: Run,
    *,
    include: Include = None,
    exclude: Include = None,
    recent: int = _RECENT,
    step: int | None = None,
    family: str | None = None,
) -> Grid:
    """Return a row for each layer, in the order of execution, each container before its parts; ``sonde show`` prints the same.

    >>> from sonde.view import plots
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> print(plots.table(writer.run()).to_text(60))
    run in memory · epoch 0 · step 0
    layer   rms
    ──────────────
    0         1
    1       0.5

    ``rms`` is the root mean square of the layer's outputs, ``gradient`` the Euclidean norm of the gradient at its output,
    ``weight`` and ``weight grad`` are norms over all its parameters, ``dead`` is the share of units that were zero in a call, the
    worst if the layer has several ``calls`` in a forward (other numbers are their means),
    ``update / weight`` the norm of a step's update over that of the parameters. Each is the median over the last *recent*
    logged steps of the last epoch, or of one *step* alone. Where most outputs are NaN or infinite there, ``last finite`` is the
    ``rms`` at the last step at which none was; behind a number stand the shares of NaN and of infinite elements, which
    the number leaves out. The last column holds the messages of the run's findings up to that step, which colour the layer's
    name too, and those of the rules in ``sonde.rules``. A number that was not recorded has no column.

    With *family* the table has all numbers of this family at *step*, or at the last logged one, a row for each site; of ``scalars``
    the last value of each.

    Raises:
        SelectionError: no layer is selected.
        ArgumentError: *recent* is not above 0, or *step* was not logged; the message names the nearest that was.
        UnknownSiteError: the run has no such family.
    """
    if family is not None:
        return family_table(run, family, include, step)
    name = f"run {run.path.name}" if run.path is not None else "run in memory"
    found = _layer_rows(run, include=include, exclude=exclude, recent=recent, step=step)
    if found is None:
        return layer_table(name, (), _scalars(run, step), empty=f"nothing was recorded yet; {FIRST_ROWS}")
    words, rows, footer = found
    return layer_table(f"{name} · {words}", rows, footer, empty="nothing was recorded yet")


def table_data(run: Run, *, include: Include = None, step: int | None = None, family: str | None = None) -> dict[str, Any]:
    """Return what :func:`table` shows as plain data: ``steps``, ``layers``, ``remarks``, ``scalars``; or ``family``, ``rows``."""
    if family is not None:
        return {"family": family, "rows": family_rows(run, family, include, step)}
    words, layers, remarks = _layer_rows(run, include=include, step=step) or ("", [], [])
    rows = [
        {
            "layer": each.name,
            "type": each.type,
            "numbers": {name: number.value for name, number in each.numbers.items()},
            "notes": [text for text, _ in each.notes],
        }
        for each in layers
    ]
    return {"steps": words, "layers": rows, "remarks": remarks, "scalars": _last_scalars(run, step)}


def _layer_rows(
    run: Run, *, include: Include = None, exclude: Include = None, recent: int = _RECENT, step: int | None = None
) -> tuple[str, list[LayerRow], list[str]] | None:
    """Return what :func:`table` shows as data: the steps in words, the rows, and the lines below; None of a run without rows."""
    if recent < 1:
        raise ArgumentError(f"recent={recent}: medians are over one logged step or more")
    known = Known.of(run)
    moment = _moment(run, known, recent, step)
    if moment is None:
        return None
    reader = _Reader(run, known, moment)
    layers = reader.layers()
    remarks = reader.add_last_finite() if step is None else []
    found = _named(run, layers, moment.last)
    names = list(layers)
    names = [names[place] for place in chosen(names, include, exclude)] if names else []
    kinds = kinds_of(run)
    footer = [
        *moment.remarks,
        *remarks,
        *([_NORMS] if any("weight" in each.numbers for each in layers.values()) else []),
        *_scalars(run, step),
    ]
    rows = []
    for each in names:
        layer = layers[each]
        told = found.get(each, [])
        findings = (finding for finding in layer.findings if not _is_noted(finding, told))
        notes = notes_of(findings, [NO_ELEMENTS] if layer.empty else [])
        texts = {"calls": str(layer.calls)} if layer.calls > 1 else {}
        tone = worst(told, "strong")
        rows.append(LayerRow(each, kinds.get(layer.path, ""), texts, layer.numbers, (*told, *notes), tone=tone))
    return moment.words, rows, footer


def _named(run: Run, layers: Mapping[str, _LayerNumbers], last: int) -> dict[str, list[Note]]:
    """The findings up to step *last* as notes, by the name of the layer that each names; each once, without the layer's name."""
    named: dict[str, list[Note]] = {}
    for each in run.findings:
        try:
            site = Site.parse(each.site)
        except SiteError:  # of no place in the network, or a text of the user's own
            continue
        name = next((text for text in (site.name, site.owner.name) if text in layers), None)
        if name is None or each.step > last:
            continue
        note: Note = (_within(name, site, each.message), TONES[each.severity])
        if note not in named.setdefault(name, []):
            named[name].append(note)
    return named


def _is_noted(finding: Finding, told: Iterable[Note]) -> bool:
    """Return whether one of the notes *told* has the words of *finding*."""
    return any(finding.message.removeprefix(_WEIGHT) in text for text, _ in told)


def _within(name: str, site: Site, message: str) -> str:
    """Return the *message* of a finding at *site* for the row of the layer *name*: without the layer's name at its start.

    >>> _within("0", Site.parse("0.weight:grad"), "0.weight: gradient is zero")
    'weight: gradient is zero'
    """
    place = str(site)
    if message.startswith(f"{place} "):
        return f"{site.port}{message.removeprefix(place)}"
    if message.startswith((f"{site.name}: ", f"{name}: ")):
        return message.removeprefix(name).lstrip(".: ")
    return message.removeprefix(f"{name} ") if message.startswith(f"{name} (") else message


@dataclass(frozen=True)
class _ShownSteps:
    """The steps that are read: in words, as a condition in SQL for each family, the last of them, and remarks for the footer."""

    words: str
    where: Mapping[str, str]
    last: int
    remarks: tuple[str, ...] = ()


def _moment(run: Run, known: Known, recent: int, step: int | None) -> _ShownSteps | None:
    """The last *recent* logged steps of the last epoch, or *step* alone; None of a run without rows."""
    families = known.main
    if not families:
        return None
    parts = " UNION ".join(f"SELECT epoch, step FROM {quoted(family)}" for family in families)
    logged: list[tuple[int, int]] = run.sql(f"SELECT DISTINCT epoch, step FROM ({parts}) ORDER BY step DESC, epoch DESC").fetchall()
    if not logged:
        return None
    if step is not None:
        return _one_step(run, families, sorted({each for _, each in logged}), step)
    epoch = max(each for each, _ in logged)
    steps = [each for of, each in logged if of == epoch][:recent]
    last, first = steps[0], steps[-1]
    words = f"step {last:,}" if first == last else f"medians over steps {first:,} to {last:,}"
    where = f"epoch = {epoch:d} AND step BETWEEN {first:d} AND {last:d}"
    return _ShownSteps(f"epoch {epoch} · {words}", dict.fromkeys(families, where), last)


def _one_step(run: Run, families: Iterable[str], logged: list[int], step: int) -> _ShownSteps:
    if step not in logged:
        raise ArgumentError(f"step={step} was not logged; the nearest are {nearest_steps(step, logged)}")
    where, remarks = {}, []
    for family in families:  # a lens may look at one in so many logged steps only
        found = run.sql(f"SELECT max(step) FROM {quoted(family)} WHERE step <= {step:d}").fetchall()[0][0]
        where[family] = "false" if found is None else f"step = {found:d}"
        if found is not None and found != step:
            remarks.append(f"{family}: of step {found:,}, the last with any")
    return _ShownSteps(f"step {step:,}", where, step, tuple(remarks))


@dataclass
class _LayerNumbers:
    """One row while it is read: the layer's model and path, its place in the order, its numbers and findings.

    ``calls`` is how many calls in a forward have rows of their own; ``lost`` has, by the kind of tensor, how many elements were
    NaN, infinite, and there in all. ``empty``: the outputs had no elements.
    """

    model: str
    path: str
    place: int
    numbers: dict[str, Quantity]
    findings: list[Finding]
    lost: dict[str, tuple[float, float, float]]
    calls: int = 1
    empty: bool = False


@dataclass(frozen=True)
class _Median:
    """One number of one layer: its median, how many elements it leaves out, and of how many; NaN where that is not known."""

    value: float
    nan: float
    inf: float
    count: float

    @property
    def quantity(self) -> Quantity:
        return Quantity.of(self.value, self.nan, self.inf, self.count)

    @property
    def size(self) -> float:
        return math.nan if self.nan or self.inf else self.value


class _Reader:
    """Reads the layers of a run at a moment."""

    def __init__(self, run: Run, known: Known, moment: _ShownSteps) -> None:
        self._run, self._known, self._where = run, known, moment.where
        self._layers: dict[str, _LayerNumbers] = {}

    def layers(self) -> dict[str, _LayerNumbers]:
        """Every layer by its name, containers before their parts, else in the order of execution."""
        self._put("rms", self._of_outputs("rms", "output"), "output")
        self._put("zeros", self._of_outputs("zeros", "output"), None)
        self._put("gradient", self._of_outputs("norm", "grad_output"), "gradient")
        for name, seen in self._of_outputs("call_death", "output").items():
            if self._layers[name].empty:
                continue
            self._layers[name].numbers["dead"] = seen.quantity
            finding = rules.judge("dead", seen.value)
            self._layers[name].findings += [finding] if finding is not None else []
        weights, gradients, updates = (self._of_parameters(port) for port in ("param", "grad", "update"))
        self._put("weight", weights, "weights")
        self._put("weight grad", gradients, "weight gradient")
        sizes = [seen.size for seen in gradients.values() if seen.size > 0]
        typical = median(sizes) if sizes else 0.0
        for name, seen in gradients.items():
            if math.isfinite(seen.size):
                told = rules.of_size(seen.size, typical)
                self._layers[name].findings += [replace(each, message=f"{_WEIGHT}{each.message}") for each in told]
        for name, seen in updates.items():
            weight = weights.get(name)
            if weight is not None and (weight.value > 0 or seen.nan or seen.inf):
                ratio = _Median(seen.value / weight.value if weight.value else math.nan, seen.nan, seen.inf, seen.count)
                self._layers[name].numbers["update / weight"] = ratio.quantity
                if name in gradients:  # a frozen layer is not meant to move
                    self._layers[name].findings += rules.of_update(seen.size, weight.size)
        for layer in self._layers.values():
            sums = [sum(each) for each in zip(*layer.lost.values(), strict=True)] if layer.lost else [0.0] * 3
            finding = rules.judge("nonfinite", *sums, what=", ".join(layer.lost))
            layer.findings[:0] = [finding] if finding is not None else []
        return {name: self._layers[name] for name in _in_tree_order(self._layers)}

    def add_last_finite(self) -> list[str]:
        """Where most outputs are not finite, add their sizes at the last step at which all were; return lines for the footer."""
        sizes = [each.numbers["rms"].value for each in self._layers.values() if "rms" in each.numbers]
        if 2 * sum(map(math.isfinite, sizes)) >= len(sizes):
            return []
        cells = self._at("true")._cells("rms", "output")
        is_finite = "coalesce(isfinite(value), count = 0, false) AND nan = 0 AND inf = 0"
        of_step = f"SELECT step FROM ({cells}) GROUP BY step HAVING bool_and({is_finite})"
        found = self._run.sql(f"SELECT max(step) FROM ({of_step})", {"port": "output"}).fetchall()[0][0]
        if found is None:
            return []
        for name, seen in self._at(f"step = {found:d}")._of_outputs("rms", "output").items():
            if name in self._layers:
                self._layers[name].numbers["last finite"] = seen.quantity
        return [f"last finite: rms at step {found:,}, the last at which no output had a NaN or an infinity"]

    def _at(self, where: str) -> _Reader:
        return _Reader(self._run, self._known, _ShownSteps("", dict.fromkeys(self._where, where), -1))

    def _put(self, heading: str, found: Mapping[str, _Median], what: str | None) -> None:
        for name, seen in found.items():
            if seen.count == 0:
                self._layers[name].empty |= heading == "rms"
                continue
            self._layers[name].numbers[heading] = seen.quantity
            if what is not None and (seen.nan or seen.inf):
                self._layers[name].lost[what] = seen.nan, seen.inf, seen.count

    def _cells(self, number: str, port: str) -> str | None:
        """SQL for the worst call's *number* (or the mean) and the elements left out, for each site and step.

        None if no family has it at *port*.
        """
        if not self._known.has(number, port):
            return None
        try:
            family = self._known.family_with(number, port)
        except ArgumentError:  # two families of the user's own have it
            return None
        names = self._known.numbers[family]
        nan = " + ".join(quoted(each) for each in ("nan", "nonfinite") if each in names) or "0"
        inf, count = ("inf" if "inf" in names else "0"), ("count" if "count" in names else "NULL")
        value = "zeros / finite" if number == "zeros" and "finite" in names else f"{quoted(number)}::DOUBLE"
        some = "finite > 0" if "finite" in names else "true"
        return (
            f"SELECT site, step, {OF_CALLS[number_of(number).worst]}({value}) FILTER ({some} AND isfinite({value})) AS value, "
            f'sum({nan}) AS nan, sum({inf}) AS inf, sum({count}) AS count, min("order") AS place, '
            f"count(DISTINCT call) AS calls FROM {of_rank(family, None, self._run.ranks)} "
            f"WHERE port = $port AND {self._where.get(family, 'false')} GROUP BY site, step"
        )

    def _of_outputs(self, number: str, port: str) -> dict[str, _Median]:
        """The median over steps of a number, by the name of the module and leaf."""
        cells = self._cells(number, port)
        if cells is None:
            return {}
        sql = f"SELECT site, median(value), sum(nan), sum(inf), sum(count), min(place), max(calls) FROM ({cells}) GROUP BY site"
        found = {}
        for text, *numbers, place, calls in self._run.sql(sql, {"port": port}).fetchall():
            site = Site.parse(text)
            self._meet(site.name, site.owner, place).calls = calls
            found[site.name] = _Median(*(math.nan if each is None else float(each) for each in numbers))
        return found

    def _of_parameters(self, port: str) -> dict[str, _Median]:
        """The median over steps of the norm over all parameters of a module, by the module's name."""
        cells = self._cells("norm", port)
        if cells is None:
            return {}
        squares: dict[str, dict[int, float]] = {}
        lost: dict[str, list[float]] = {}
        for text, step, value, nan, inf, count, place, _ in self._run.sql(cells, {"port": port}).fetchall():
            owner = Site.parse(text).owner
            self._meet(owner.name, owner, place)
            steps = squares.setdefault(owner.name, {})
            if value is not None:
                steps[step] = steps.get(step, 0.0) + float(value) ** 2
            sums = lost.setdefault(owner.name, [0.0, 0.0, 0.0])
            for at, each in enumerate((nan, inf, math.nan if count is None else count)):
                sums[at] += float(each)
        roots = {name: [math.sqrt(square) for square in steps.values()] for name, steps in squares.items()}
        return {name: _Median(median(each) if each else math.nan, *lost[name]) for name, each in roots.items()}

    def _meet(self, name: str, owner: Site, place: int) -> _LayerNumbers:
        known = self._layers.setdefault(name, _LayerNumbers(owner.model, owner.path, place, {}, [], {}))
        known.place = min(known.place, place)
        return known


def _in_tree_order(layers: Mapping[str, _LayerNumbers]) -> list[str]:
    """The names so that each container stands before its parts, and parts stand in the order in which the first of each ran."""
    places: dict[tuple[str, ...], int] = {}
    paths = {name: _path(layer) for name, layer in layers.items()}
    for name, path in paths.items():
        for end in range(1, len(path) + 1):
            places[path[:end]] = min(places.get(path[:end], layers[name].place), layers[name].place)
    return sorted(
        layers, key=lambda name: [(places[paths[name][:end]], paths[name][end - 1]) for end in range(1, len(paths[name]) + 1)]
    )


def _path(layer: _LayerNumbers) -> tuple[str, ...]:
    return (layer.model, *(layer.path.split(".") if layer.path else ()))


def _scalars(run: Run, step: int | None) -> list[str]:
    """The last value of each scalar up to *step*, in a line: the loss first, and a few; equal learning rates are one."""
    rows = list(_last_scalars(run, step).items())
    first = {value: name for name, value in reversed(rows) if _OF_RATE.fullmatch(name)}
    rows = [(name, value) for name, value in rows if not _OF_RATE.fullmatch(name) or first[value] == name]
    more = [f"and {len(rows) - _SCALARS} more: sonde show --scalars"] if len(rows) > _SCALARS else []
    return [" · ".join([*(f"{name} {number_text(value)}" for name, value in rows[:_SCALARS]), *more])] if rows else []


def _last_scalars(run: Run, step: int | None) -> dict[str, float]:
    """The last value of each scalar up to *step*, by name: the loss first, norms last."""
    if "scalars" not in run.families:
        return {}
    until = "" if step is None else f" WHERE step <= {step:d}"
    rows = run.sql(f"SELECT name, arg_max(value, step) FROM {of_rank('scalars', None, run.ranks)}{until} GROUP BY name").fetchall()
    return dict(sorted(rows, key=lambda row: (row[0] != "loss", "loss" not in row[0], row[0].endswith("_norm"), row[0])))
