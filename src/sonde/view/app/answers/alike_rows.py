"""Fold the rows of blocks that change alike, under the names that tables and the graph give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sonde.rules import Finding
from sonde.view.app.answers.opened_run import StepGrid, site_or_none
from sonde.view.app.answers.reduction import MISSING, VALUE, Reduced, Values
from sonde.view.folding import folded

_NEAR = 2.0  # medians, and changes of one column, of rows that are alike differ by this factor at most


@dataclass(frozen=True)
class ShownRow:
    """A row of a picture: one of the grid, or those of blocks that are alike.

    Attributes:
        name: of the layer, or of the blocks, as ``blocks.1 to 11``.
        rows: of the grid, one or several.
        like: the name of the block that is shown; empty for a row of its own.
    """

    name: str
    rows: tuple[int, ...]
    like: str = ""


def shown_rows(grid: StepGrid, findings: Sequence[Finding]) -> list[ShownRow]:
    """Return the rows of a picture of change. A block with a finding, a mark, or a step that stands out is shown.

    Rows are alike where their medians, and in each bin of the run their changes, are within a factor of two.
    """
    found, reduced = grid.matrix, grid.whole[1]
    rows = [ShownRow(name, (row,)) for row, name in enumerate(found.names)]
    if found.described.kind != "size":
        return rows
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.log(reduced.middle)
        medians = np.log(grid.reference)
        changes = sizes - medians[:, None]
    at, _ = reduced.spikes(grid.scale)
    told = set((at // reduced.middle.shape[1]).tolist())
    told |= set(np.flatnonzero(~np.isin(reduced.marks, (VALUE, MISSING)).all(axis=1)).tolist())
    places = {name for each in findings for name in each.places}
    places |= {site.owner.name for each in findings if (site := site_or_none(each.site)) is not None}
    told |= {row for row, site in enumerate(found.sites) if {site.name, site.owner.name} & places}
    near = np.log(_NEAR)

    def are_alike(one: ShownRow, other: ShownRow) -> bool:
        (first,), (second,) = one.rows, other.rows
        apart = np.abs(changes[first] - changes[second])
        neither = np.isnan(changes[first]) & np.isnan(changes[second])
        return bool(abs(medians[first] - medians[second]) <= near and ((apart <= near) | neither).all())

    shown = folded(
        rows,
        lambda row: f"{grid.kinds[row.rows[0]]} {found.sites[row.rows[0]].leaf}",
        are_alike,
        lambda row: row.rows[0] in told,
        lambda row, name, like: replace(row, name=name, like=like),
    )
    begins = [*(row.rows[0] for row in shown), len(rows)]
    return [
        replace(row, rows=tuple(range(row.rows[0], end))) if row.like else row for row, end in zip(shown, begins[1:], strict=True)
    ]


def put_together(shown: Sequence[ShownRow], there: Sequence[int], reduced: Reduced, reference: Values) -> tuple[Reduced, Values]:
    """Return the rows of a picture, and the reference of each; of folded ones the largest change, and 1.

    Args:
        shown: see :func:`shown_rows`.
        there: the rows of the grid that they are made of.
        reduced: these rows.
        reference: of each of them.
    """
    place_of = {row: place for place, row in enumerate(there)}
    first = [place_of[row.rows[0]] for row in shown]
    kept = reduced[first]  # a copy
    references = reference[first].copy()
    for place, row in enumerate(shown):
        if row.like:
            rows = [place_of[each] for each in row.rows]
            change = reduced.middle[rows] / reference[rows, None]
            farthest = np.nan_to_num(np.abs(np.log(change)), nan=-1.0).argmax(axis=0)
            kept.middle[place] = kept.low[place] = kept.high[place] = change[farthest, np.arange(change.shape[1])]
            kept.marks[place] = np.where(np.isfinite(kept.middle[place]), VALUE, MISSING)
            references[place] = 1.0
    return kept, references
