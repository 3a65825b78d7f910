"""The table of recorded events: one row for each model of the zoo."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from sonde.answer import Cell, Grid
from sonde.checkup import settled
from sonde.engine import Coverage
from sonde.keep import Tracker, track
from sonde.testing.trial import same_chance
from sonde.testing.zoo import ZOO, Entry
from sonde.words import names_text

_SHOWN = 2  # sites per model in the last column


def zoo_report(entries: Iterable[Entry] | None = None) -> Grid:
    """Return a table of the events that ``track`` records in one pass of each entry, one row per model.

    >>> from sonde import testing
    >>> report = testing.zoo_report([testing.ZOO["mlp"]])
    >>> report.to_text(80).splitlines() != []
    True

    The columns are the name; the numbers of modules, of observed sites (outputs and their gradients), of forward events, of
    gradient events and of recomputed events; and the sites without an event, with the reason.

    Args:
        entries: the models; the default is the whole zoo.

    Returns:
        The table: print its ``to_text()``, or give it to rich.
    """
    rows = [_row(entry) for entry in (ZOO.values() if entries is None else entries)]
    columns = ["model", "modules", "sites", "forward", "gradients", "recomputed", "not recorded"]
    return Grid(f"zoo: {len(rows)} models under track()", columns, rows, empty="no model was asked for")


def _row(entry: Entry) -> list[Cell]:
    with same_chance():
        model = entry.build()
        args, kwargs = entry.batch()
        with track(model, strict=True) as tracker:
            output = settled(model(*args, **kwargs))
            if entry.loss is not None:
                torch.autograd.backward(entry.loss(output))
    counts = [len(list(model.modules())), len(tracker.sites), *_events(tracker)]
    return [
        Cell(entry.name, "strong"),
        *(Cell(str(count) if count else "", align="right") for count in counts),
        Cell(_not_recorded(tracker.coverage()), "quiet"),
    ]


def _events(tracker: Tracker) -> tuple[int, int, int]:
    again = sum(stash.phase == "recompute" for stash in tracker)
    gradients = sum(stash.grad for stash in tracker)
    return len(tracker) - again - gradients, gradients, again


def _not_recorded(coverage: Coverage) -> str:
    """Return the sites without an event in words, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for line in coverage.missing:
        by_reason.setdefault(line.reason or "no reason given", []).append(str(line.site))
    parts = []
    for reason, sites in by_reason.items():
        parts.append(f"{names_text(sites, _SHOWN)}: {reason}")
    return "; ".join(parts)
