"""Answer everything that is known of one layer: its numbers with their last values and courses, its findings, its parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from sonde.run import quoted
from sonde.site import PORTS, Site
from sonde.suggest import unknown_name
from sonde.view.app.answers.distribution import counted_sites
from sonde.view.app.answers.found import findings_data
from sonde.view.app.answers.opened_run import OpenedRun, number_data
from sonde.view.app.answers.reduction import Bins, end_of, listed, marks_of
from sonde.view.app.answers.stored_sample import kept_sites
from sonde.words import shape_text

_POINTS = 120
_DEFECTS = ("nan", "inf", "nonfinite")


def layer(opened: OpenedRun, layer: str, *, step: int | None = None, points: int = _POINTS) -> dict[str, Any]:
    """Return what is known of one layer, with its own parameters, or of one parameter.

    Args:
        opened: the run.
        layer: its name, as ``blocks.0.fc``, or that of a parameter, as ``blocks.0.fc.weight``.
        step: also return the values at the logged step nearest to this one.
        points: the most bins of each course.

    Returns:
        ``layer``, ``kind``, ``code`` (where its class is written, as ``model.py:25``), ``children``; ``before`` and ``after``, the
        layers next to it in the order of execution; ``parameters`` (how many elements), ``shape`` and ``dtype`` of a parameter,
        ``own`` (name, shape, dtype, trainable of each parameter); ``findings``; ``powers``: its sites whose powers of two were
        counted; ``kept``: those that have a stored tensor, and ``unread``: why the tensors of the run cannot be read, in words;
        and ``numbers``: of each number at each site ``number`` (its id), ``site``, label, unit, ``last`` and ``last_mark`` at
        ``last_step``, with *step* ``shown`` and ``shown_mark`` at ``shown_step``, and over bins of steps ``values``, ``low``,
        ``high``, ``marks``.

    Raises:
        UnknownSiteError: there is no such layer; the message names the nearest.
    """
    owners = {site.owner.name: site.owner for site in opened.sites}
    parameters = {site.name: site for site in opened.sites if PORTS[site.port].of == "parameter"}
    if layer not in owners and layer not in parameters:
        raise unknown_name("layer", layer, [*owners, *parameters], f"run {opened.name}")
    owner = owners[layer] if layer in owners else parameters[layer].owner
    names = list(owners)
    place = names.index(owner.name)
    one = None if layer in owners else parameters[layer]
    held = {name: opened.facts.of(site) for name, site in parameters.items() if site.owner == owner and one in (None, site)}
    sizes = [math.prod(fact.shape) for fact in held.values() if fact.shape is not None]
    fact = None if one is None else held[one.name]
    kept, unread = kept_sites(opened)

    def is_here(text: str) -> bool:
        site = Site.parse(text)
        return site.owner == owner and (one is None or site.path == one.path)

    return {
        "layer": layer,
        "kind": opened.facts.of(owner).kind,
        "code": opened.facts.of(owner).code,
        "children": [each.name for each in owners.values() if _is_child(each, owner)] if one is None else [],
        "before": names[place - 1] if place else None,
        "after": names[place + 1] if place + 1 < len(names) else None,
        "parameters": sum(sizes),
        "shape": shape_text(fact.shape) if fact is not None and fact.shape else None,
        "dtype": None if fact is None else fact.dtype,
        "own": [
            {"name": name, "shape": each.shape and list(each.shape), "dtype": each.dtype, "trainable": each.trainable}
            for name, each in held.items()
        ],
        "findings": [each for each in findings_data(opened) if each["layer"] == owner.name],
        "powers": [
            each for each in counted_sites(opened, [str(site) for site in opened.sites if site.owner == owner]) if is_here(each)
        ],
        "kept": [each for each in kept if is_here(each)],
        "unread": unread,
        "numbers": [each for each in _numbers(opened, owner, points, step) if is_here(each["site"])],
    }


def _is_child(site: Site, owner: Site) -> bool:
    parent, _, last = site.path.rpartition(".")
    return bool(last) and site.model == owner.model and parent == owner.path and site.path != owner.path


def _numbers(opened: OpenedRun, owner: Site, points: int, step: int | None) -> Iterator[dict[str, Any]]:
    """Yield every number of the sites of a layer, family by family: one query reads all columns of a family."""
    of_family: dict[str, dict[str, None]] = {}
    for family, name, _, _ in opened.drawable.values():
        of_family.setdefault(family, {})[name] = None
    place = {"sites": [str(site) for site in opened.sites if site.owner == owner]}
    for family, names in of_family.items():
        columns = ", ".join(f"avg({quoted(name)}::DOUBLE) AS {quoted(name)}" for name in names)
        table = opened.run.sql(
            f"SELECT site, step, {columns} FROM {quoted(family)} WHERE site IN (SELECT unnest($sites::VARCHAR[])) "
            'GROUP BY site, step ORDER BY min("order"), site, step',
            place,
        ).fetchnumpy()
        sites = np.asarray(table["site"]).astype(str)
        for site in dict.fromkeys(sites.tolist()):
            here = sites == site
            steps = np.asarray(table["step"], np.int64)[here]
            near = None if step is None else int(np.abs(steps - step).argmin())
            port = Site.parse(site).port
            defects = np.zeros(len(steps), np.int8)
            for name, code in (("inf", 1), ("nonfinite", 2), ("nan", 3)):
                if name in names:
                    defects[np.nan_to_num(_filled(table[name])[here]) > 0] = code
            for name in names:
                if f"{family}.{name}@{port}" not in opened.drawable:
                    continue
                values = _filled(table[name])[here]
                if np.isnan(values).all() and not defects.any():
                    continue
                number = opened.drawable[f"{family}.{name}@{port}"][3]
                marks = marks_of(values, None if name in _DEFECTS else defects)
                bins = Bins.of(steps, None, None, points)
                reduced = bins.reduced(values, marks)
                yield {
                    **number_data(f"{family}.{name}@{port}", family, port, number),
                    "number": f"{family}.{name}@{port}",
                    "site": site,
                    **end_of(values, marks),
                    "last_step": int(steps[-1]),
                    **({} if near is None else {**end_of(values, marks, near, "shown"), "shown_step": int(steps[near])}),
                    "values": listed(reduced.middle),
                    "low": listed(reduced.low),
                    "high": listed(reduced.high),
                    "marks": reduced.marks.tolist(),
                    **bins.plain(),
                }


def _filled(column: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a column of DuckDB's with NaN where it has no value."""
    return np.asarray(np.ma.filled(np.ma.asarray(column).astype(np.float64), np.nan))
