"""Answer which sites delivered, and why others did not; and which parts of the run cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sonde.errors import StoreError
from sonde.run import Run
from sonde.view.app.answers.opened_run import OpenedRun


def coverage(opened: OpenedRun) -> dict[str, Any]:
    """Return what was not observed.

    Returns:
        ``sites`` and ``observed`` (how many), ``missing`` (site and reason), ``notes`` (site and note); ``lost``: rows that could
        not be written, and damaged parts, in words; ``error``: why the coverage cannot be read. Without a coverage, as in a run of
        another program, counts are None.
    """
    error, held = "", None
    try:
        held = opened.run.coverage
    except StoreError as failed:
        error = str(failed)
    held = held if isinstance(held, Mapping) else {}
    return {
        "sites": _count(held.get("sites")),
        "observed": _count(held.get("observed")),
        "missing": _lines(held.get("missing"), "reason"),
        "notes": _lines(held.get("notes"), "note"),
        "lost": losses(opened.run),
        "error": error,
    }


def lost_parts(run: Run) -> list[str]:
    """Return which parts of the run were found damaged or missing so far, in words."""
    return [f"{family}: {text}" for family, said in run.lost.items() for text in said]


def losses(run: Run) -> list[str]:
    """Return in words what pictures and findings of the run lack: rows that could not be written, and parts that cannot be read."""
    return [*run.record.losses(), *lost_parts(run)]


def _count(given: Any) -> int | None:
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _lines(given: Any, said: str) -> list[dict[str, str]]:
    """Return the lines of a document that may come from elsewhere: those that have a site and a text."""
    lines = [line for line in given if isinstance(line, Mapping)] if isinstance(given, list) else []
    return [{"site": str(line.get("site", "")), said: str(line.get(said, ""))} for line in lines]
