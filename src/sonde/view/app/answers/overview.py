"""Answer what the overview shows: scalars with their extremes, findings, settings, and what kind of run it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sonde.run import setting_text
from sonde.site import PORTS
from sonde.view.app.answers.covered import losses
from sonde.view.app.answers.found import findings_data, standing
from sonde.view.app.answers.opened_run import OpenedRun
from sonde.view.app.answers.reduction import REDUCTION, Bins, end_of, listed, marks_of
from sonde.view.plots.scalars import kind_of, phase_of
from sonde.view.scales import is_wide

_UNITS = {"lr": "no unit", "overhead": "share of a step that sonde takes"}
_OF_NORMS = {"grad_norm": PORTS["grad"].unit, "param_norm": PORTS["param"].unit, "update_norm": PORTS["update"].unit}


def overview(opened: OpenedRun, *, first: int | None = None, last: int | None = None, points: int = 400) -> dict[str, Any]:
    """Return what is known of a run as a whole.

    Args:
        opened: the run.
        first, last: the steps of the scalars, both inclusive; None: from the first, to the last.
        points: the most bins of each scalar.

    Returns:
        ``scalars``, ``findings``, what ``standing`` says of them, ``settings`` and ``environment`` (lists of name and text),
        ``model``, ``layers`` and
        ``parameters`` (how many), ``ranks`` in words, ``lost`` (rows and parts, in words),
        ``steps`` (first and last).
    """
    run = opened.run
    settings = run.settings
    listed = run.info.get("model")
    modules = [line for line in listed if isinstance(line, Mapping)] if isinstance(listed, list | tuple) else []
    scalars = scalars_data(opened, first, last, points)
    ends = [(each["all"][0], each["all"][1]) for each in scalars]
    _ = opened.known  # what cannot be read is found by reading
    return {
        "name": opened.name,
        "scalars": scalars,
        "findings": findings_data(opened),
        **standing(run),
        "settings": [[name, setting_text(value)] for name, value in settings.items() if not name.startswith("environment.")],
        "environment": [
            [name.removeprefix("environment."), setting_text(value)]
            for name, value in settings.items()
            if name.startswith("environment.")
        ],
        "model": str(modules[0].get("type", "")) if modules else "",
        "modules": len(modules),
        "parameters": sum(size for line in modules if isinstance(size := line.get("parameters"), int)),
        "ranks": run.described_ranks,
        "steps": [min(one for one, _ in ends), max(other for _, other in ends)] if ends else [],
        "last_step": run.last_step,
        "lost": losses(run),
        "reduction": REDUCTION,
    }


def scalars_data(opened: OpenedRun, first: int | None, last: int | None, points: int) -> list[dict[str, Any]]:
    """Return the scalars of a run: losses first, then norms, learning rates, metrics. One without a step in between is left out."""
    order = ("loss", "norm", "lr", "metric", "other")
    found = []
    for name in sorted(opened.scalars, key=lambda each: (order.index(_group(each)), each)):
        steps, values, unit = opened.scalar(name)
        if not len(steps):
            continue
        inside = (steps >= (steps[0] if first is None else first)) & (steps <= (steps[-1] if last is None else last))
        if not inside.any():
            continue
        bins = Bins.of(steps, first, last, points)
        marks = marks_of(values)
        reduced = bins.reduced(values, marks)
        group = _group(name)
        found.append(
            {
                "name": name,
                "group": group,
                "phase": phase_of(name),
                "unit": unit or _unit(name, group),
                "signed": bool(unit),
                "log": not unit and group in ("loss", "norm", "lr") and bool(is_wide(values)),
                "values": listed(reduced.middle),
                "low": listed(reduced.low),
                "high": listed(reduced.high),
                "marks": reduced.marks.tolist(),
                **end_of(values[bins.within], marks[bins.within]),
                "tail": _tail(steps, values),
                "logged": len(steps),
                "all": [int(steps[0]), int(steps[-1])],
                **bins.plain(),
            }
        )
    return found


def _tail(steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> int | None:
    """Return the step from which on no value is finite to the end; None where the last one is."""
    finite = np.flatnonzero(np.isfinite(values))
    begin = int(finite[-1]) + 1 if len(finite) else 0
    return int(steps[begin]) if begin < len(steps) else None


def _group(name: str) -> str:
    if name == "lr" or name.startswith(("lr/", "lr_")):
        return "lr"
    return "other" if name in ("overhead", "epoch", "loss_scale") else kind_of(name)


def _unit(name: str, group: str) -> str:
    norm = next((unit for start, unit in _OF_NORMS.items() if name.rpartition("/")[2].startswith(start)), "")
    return _UNITS.get(name) or norm or _UNITS.get(group, "")
