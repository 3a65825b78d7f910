"""Join the rows of a probe with those of the other ranks of a distributed training, at one call on all ranks."""

from __future__ import annotations

from typing import Any

from sonde.engine.probes import dataframes
from sonde.engine.probes.attachment import Attachment
from sonde.engine.probes.row_keys import RowKeys
from sonde.engine.probes.statistic_hooks import ParameterStatisticHook
from sonde.engine.torch_api.data_parallel import ranks_of
from sonde.errors import ArgumentError, RankError
from sonde.site import PARAMETER_PORTS
from sonde.stats import Group, Key, Merger, Offer, RankRows, Statistic


def merged_rows(attachment: Attachment, group: Any, seconds: float) -> list[dict[str, Any]]:
    """Return the rows of a probe, joined over all ranks, with the columns ``scope`` and ``ranks``; see ``Probe.merged``."""
    table = attachment.hooks.table
    if table is None or not isinstance(table.statistic, Statistic):
        observer = attachment.delivery.observer if table is None else table.statistic
        reason = "it is no statistic, whose rows add up" if table is None else "it compares each tensor with the one before it"
        raise ArgumentError(f"merged() cannot join what ranks have of {observer}: {reason}; observe with a Statistic, as Moments()")
    places = dataframes.places_of(attachment)
    rows = table.on_host([row for _, _, row in places])
    ranks = Group.join("probe.merged()", seconds=seconds)
    if ranks is None:
        return [row | {"scope": "global", "ranks": 1} for row in dataframes.finished(places, table, rows)]
    batches = None if group is None else ranks_of(group)
    if batches is not None and ranks.rank not in batches:
        raise ArgumentError(f"group={group!r} is no process group or mesh that rank {ranks.rank} is in")
    ranks.agree({"the statistic": repr(table.statistic)})
    keys: list[Key | None] = [None] * len(places)
    for root in attachment.roots:
        made = RowKeys(root.model, batches, ranks.size)
        for between_steps in (False, True):
            chosen = [
                place
                for place, (hook, _, _) in enumerate(places)
                if hook.clock is root.clock and isinstance(hook, ParameterStatisticHook) == between_steps
            ]
            found = [(hook.sites[port].at(leaf), call, hook) for hook, (port, leaf, call), _ in map(places.__getitem__, chosen)]
            for place, key in zip(chosen, made.of("", table.statistic, found, micro_step=between_steps), strict=True):
                keys[place] = key
    merger = Merger(ranks)
    try:
        merged = merger.merge(Offer(0, [RankRows(table.statistic, keys, rows)]))
        if merged.failed or merged.lost:
            raise RankError(f"merged() could not join the rows: {merged.failed or merged.lost}")
    finally:
        merger.close()
    (block,) = merged.blocks
    found_rows = dataframes.finished(places, table, block.rows)
    for place, row in enumerate(found_rows):
        is_joined = block.is_merged[place]
        if is_joined and block.joined[place]:
            row["rank"] = int(block.first[place])
        row["scope"] = "rank" if not is_joined else "global" if row["port"] in PARAMETER_PORTS else "data-parallel"
        row["ranks"] = int(block.joined[place])
    return found_rows
