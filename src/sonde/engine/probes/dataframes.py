"""Make rows and data frames of a probe, with the columns on which all frames of sonde join."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sonde.engine.probes.attachment import Attachment
from sonde.engine.probes.site_hook import SiteHook
from sonde.engine.probes.statistic_hooks import RowPlace, StatisticHook
from sonde.engine.torch_api.modules import class_of
from sonde.schedule import Tick
from sonde.site import PORTS, Site
from sonde.stats import Table

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
    """Return one row per site of a probe; of a statistic one per leaf and call of each site."""
    table = attachment.hooks.table
    if table is not None:
        return _rows_of_statistic(attachment, table)
    rows = []
    for hook in attachment.hooks:
        tick = hook.clock.now()
        for port, count in hook.counts({}).items():
            taken = max(count - attachment.delivery.refused[hook.sites[port]], 0)
            rows.append(_row(hook, hook.sites[port], taken, {}, None, tick))
    return rows


def _rows_of_statistic(attachment: Attachment, table: Table) -> list[dict[str, Any]]:
    places = places_of(attachment)
    return finished(places, table, table.on_host([row for _, _, row in places]))


def places_of(attachment: Attachment) -> list[tuple[StatisticHook, RowPlace, Tensor]]:
    """Return every row of a statistic with its hook and its place."""
    return [(hook, *each) for hook in attachment.hooks.held if isinstance(hook, StatisticHook) for each in hook.places()]


def finished(
    places: Sequence[tuple[StatisticHook, RowPlace, Tensor]], table: Table, rows: npt.NDArray[np.float64]
) -> list[dict[str, Any]]:
    """Return a row of a frame for each of *places*, with the numbers of *rows*, which are on the host.

    A row that the statistic cannot finish has no numbers: the error is kept, and there is a warning.
    """
    try:
        numbers = _numbers(table, rows)
    except Exception:
        numbers, failing = [], list[tuple[StatisticHook, Site, Exception]]()
        for (hook, (port, leaf, _), _), row in zip(places, rows, strict=True):
            try:
                numbers += _numbers(table, row[None])
            except Exception as error:
                numbers.append({})
                failing.append((hook, hook.sites[port].at(leaf), error))
        if len(failing) in (0, len(places)):
            raise
        for hook, site, raised in failing:
            hook.delivery.not_finished(site, raised)
    ticks = {hook.clock: hook.clock.now() for hook, _, _ in places}
    return [
        _row(hook, hook.sites[port].at(leaf), count, found, call, ticks[hook.clock])
        for (hook, (port, leaf, call), _), count, found in zip(places, rows[:, 0].astype(int).tolist(), numbers, strict=True)
    ]


def _numbers(table: Table, rows: npt.NDArray[np.float64]) -> list[dict[str, Any]]:
    """Return the numbers of each of *rows*, by name."""
    _, columns = table.finished(rows)
    return [dict(zip(columns, map(_plain, values), strict=True)) for values in zip(*columns.values(), strict=True)]


def numbers_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return the names of the numbers in *rows*, without those that are lists."""
    known = {"name", "type", "port", "calls", *JOINING}
    return list(
        dict.fromkeys(name for row in rows for name, value in row.items() if name not in known and not isinstance(value, list))
    )


def _row(hook: SiteHook, site: Site, count: int, numbers: dict[str, Any], call: int | None, tick: Tick) -> dict[str, Any]:
    row = {"name": hook.name, "type": class_of(hook.module).__name__, "port": site.port, "calls": count}
    return row | numbers | key_columns(site, call, PORTS[site.port].phase, tick)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
