"""Rows and frames of a probe, with the columns by which all frames of sonde join."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sonde.engine.event import Tick
from sonde.errors import MissingExtraError
from sonde.site import PORTS, Site

if TYPE_CHECKING:
    import pandas

    from sonde.engine.probes.attachment import Attachment

__all__ = ["JOINING", "frame", "key_columns", "rows_of"]

JOINING = ("model", "site", "call", "phase", "epoch", "step", "micro_step", "forward", "rank")
"""Every frame has these columns."""


def key_columns(site: Site | None, call: int | None, phase: str | None, tick: Tick | None) -> dict[str, Any]:
    """The joining columns of one row."""
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
    """One row per site of a probe."""
    numbers = iter(_numbers(attachment))
    rows = []
    for tap in attachment.taps:
        tick = tap.clock.now()
        for port, count in tap.counts().items():
            site = tap.sites[port]
            row = {"name": tap.name, "type": type(tap.module).__name__, "port": port, "calls": count}
            rows.append(row | next(numbers, {}) | key_columns(site, None, PORTS[port].phase, tick))
    return rows


def _numbers(attachment: Attachment) -> list[dict[str, float]]:
    if attachment.table is None:
        return []
    _, columns = attachment.table.read()
    names = list(columns)
    return [dict(zip(names, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def frame(rows: list[dict[str, Any]]) -> pandas.DataFrame:
    """A pandas table of rows.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise MissingExtraError.of("to_frame()", "pandas", "frame") from None
    return pandas.DataFrame(rows)
