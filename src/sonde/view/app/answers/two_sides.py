"""Answer how two runs differ: where they part, and in which layers."""

from __future__ import annotations

import math
from typing import Any

from sonde.run import Parting
from sonde.site import Site
from sonde.view.app.answers.opened_run import OpenedRun
from sonde.view.run_comparison import compare_runs

_MOST = 500  # partings


def comparison(a: OpenedRun, b: OpenedRun) -> dict[str, Any]:
    """Return where two runs part beyond what seeds and noise explain; see :func:`sonde.compare`.

    Returns:
        ``text``: what was found, a sentence without its subject, which is the two; ``words``: all that is known, as a table;
        ``identical``; ``partings``: of each its ``site`` (``""`` for a scalar), ``layer``, ``number``, ``step``, ``a``, ``b``,
        ``kind``, ``factor``; ``first``: the first of a layer, or None; ``difference``: the first number that differs at all, or
        None; ``layers``: how the lists of layers differ, in words; ``only_a``, ``only_b``: sites; ``notes``: what else should be
        known.

    Raises:
        ArgumentError: a run is empty, or the two have no step or no place in common.
    """
    found = compare_runs(a.run, b.run)
    parts = found.parts
    first = parts.difference
    return {
        "text": repr(found).splitlines()[0].removeprefix(f"{found.a} and {found.b} "),
        "words": repr(found),
        "first": _parting(parts.partings[0]) if parts.partings else None,
        "identical": parts.identical,
        "partings": [_parting(each) for each in (*parts.scalars, *parts.partings)[:_MOST]],
        "difference": None
        if first is None
        else {"step": first.step, "site": first.site, "number": first.number, "a": _finite(first.a), "b": _finite(first.b)},
        "layers": list(parts.layers),
        "only_a": list(parts.only_a),
        "only_b": list(parts.only_b),
        "notes": list(parts.notes),
    }


def _parting(found: Parting) -> dict[str, Any]:
    return {
        "site": found.site,
        "layer": Site.parse(found.site).owner.name if found.site else "",
        "number": found.number,
        "step": found.step,
        "a": _finite(found.a),
        "b": _finite(found.b),
        "factor": _finite(found.factor),
        "kind": found.kind,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
