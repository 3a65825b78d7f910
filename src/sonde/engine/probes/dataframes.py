"""Make rows and data frames of a probe, with the columns on which all frames of sonde join."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sonde.engine.event import Tick
from sonde.engine.probes.attachment import Attachment
from sonde.errors import MissingExtraError
from sonde.site import PORTS, Site

if TYPE_CHECKING:
    import pandas

__all__ = ["JOINING", "frame", "key_columns", "rows_of"]

JOINING = ("model", "site", "call", "phase", "epoch", "step", "micro_step", "forward", "rank")
"""Columns that every frame has."""


def key_columns(site: Site | None, call: int | None, phase: str | None, tick: Tick | None) -> dict[str, Any]:
    """Return the joining columns of one row."""
    epoch, step, micro_step, forward = tick if tick is not None else (None, None, None, None)
    values = (
        site.model if site is not None else "",
        str(site) if site is not None else None,
        call,
        phase,
        epoch,
        step,
        micro_step,
        forward,
        int(os.environ.get("RANK", "0")),
    )
    return dict(zip(JOINING, values, strict=True))


def rows_of(attachment: Attachment) -> list[dict[str, Any]]:
    """Return one row per site of a probe."""
    numbers = iter(_numbers(attachment))
    rows = []
    for hook in attachment.hooks:
        tick = hook.clock.now()
        for port, count in hook.counts().items():
            site = hook.sites[port]
            row = {"name": hook.name, "type": type(hook.module).__name__, "port": port, "calls": count}
            rows.append(row | next(numbers, {}) | key_columns(site, None, PORTS[port].phase, tick))
    return rows


def _numbers(attachment: Attachment) -> list[dict[str, float]]:
    table = attachment.hooks.table
    if table is None:
        return []
    _, columns = table.read()
    names = list(columns)
    return [dict(zip(names, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def frame(rows: list[dict[str, Any]]) -> pandas.DataFrame:
    """Return *rows* as a pandas table.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    made: pandas.DataFrame = MissingExtraError.import_or_raise("pandas", "to_frame()", "frame").DataFrame(rows)
    return made
