"""Show the rows of one family at one step as a table: a row for each site, or of scalars for each name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sonde.answer import Cell, Grid
from sonde.errors import ArgumentError
from sonde.number import Number, described, number_of
from sonde.run import Run
from sonde.site import Site
from sonde.suggest import nearest_steps
from sonde.view.plots.layer_names import Include, chosen
from sonde.view.plots.number_names import main_number
from sonde.words import number_text

_WITHOUT_SITES = {"scalars": ("name", "value")}
"""The families whose rows are of no site, with the columns that are shown of them."""


def family_table(run: Run, family: str, include: Include, step: int | None) -> Grid:
    """Return *family* at *step* as a table; by default at the last logged one, of scalars the last of each name."""
    if family in _WITHOUT_SITES:
        return _of_names(family, _rows_of_names(run, family, step), step)
    return _of_sites(run, family, family_rows(run, family, include, step))


def family_rows(run: Run, family: str, include: Include, step: int | None) -> list[dict[str, Any]]:
    """Return the rows that :func:`family_table` shows, with all columns."""
    rows = (_rows_of_names if family in _WITHOUT_SITES else _rows_of_sites)(run, family, step)
    if include is None:
        return rows
    return [rows[place] for place in chosen([Site.parse(row["site"]).owner.name if "site" in row else "" for row in rows], include)]


def _of_names(family: str, rows: list[dict[str, Any]], step: int | None) -> Grid:
    keys = ["step", *(["rank"] if len({row["rank"] for row in rows}) > 1 else [])]
    columns = [*keys, *_WITHOUT_SITES[family]]
    cells = [[_text(row[name], name) for name in columns] for row in rows]
    return Grid(family if step is None else f"{family} at step {step:,}", columns, cells)


def _rows_of_names(run: Run, family: str, step: int | None) -> list[dict[str, Any]]:
    rows = sorted(run.table(family).to_pylist(), key=lambda row: (row["epoch"], row["step"]))
    if step is not None:
        _check_logged((row["step"] for row in rows), family, step)
        return [row for row in rows if row["step"] == step]
    return list({(row["name"], row["rank"]): row for row in rows}.values()) if family == "scalars" else rows


def _rows_of_sites(run: Run, family: str, step: int | None) -> list[dict[str, Any]]:
    """Return the rows of *family* at *step*, or at the last logged one."""
    found = run.table(family)
    logged = found.column("step").unique().to_pylist()
    shown = max(logged) if step is None else step
    _check_logged(logged, family, shown)
    rows: list[dict[str, Any]] = found.filter(found.column("step").to_numpy() == shown).to_pylist()
    return sorted(rows, key=lambda row: (row["micro_step"], row["rank"], row["order"], row["site"]))


def _check_logged(logged: Iterable[int], family: str, step: int) -> None:
    there = sorted(set(logged))
    if step not in there:
        raise ArgumentError(f"step={step}: {family} has no rows of that step; the nearest are {nearest_steps(step, there)}")


def _text(value: Any, name: str) -> Cell:
    if name == "value":
        return Cell(number_text(value), "plain" if math.isfinite(value) else "bad", "right")
    return (
        Cell(f"{value:,}", "quiet", "right")
        if isinstance(value, int)
        else Cell(value or "", "strong" if name == "name" else "plain")
    )


def _of_sites(run: Run, family: str, rows: list[dict[str, Any]]) -> Grid:
    """Return all numbers of the *rows*, of one step, without lists of numbers and without numbers that have no value."""
    shown = rows[0]["step"]
    lists = {name for row in rows for name, value in row.items() if isinstance(value, list)}  # as an exponent histogram's counts
    known = described(run.info, family)
    names = [name for name in run.numbers.get(family, ()) if name not in lists and any(row[name] is not None for row in rows)]
    defects = [name for name in names if name in ("nan", "inf", "nonfinite")]
    whole = bool(defects) and not any(row[name] for row in rows for name in defects)
    names = [name for name in names if not (whole and name in defects)]
    keys = [key for key in ("epoch", "micro_step", "rank", "call") if len({row[key] for row in rows}) > 1]
    numbers = {name: known.get(name) or number_of(name) for name in names}
    cells = [
        [
            Cell(row["site"], "bad" if any(row[name] for name in defects) else "strong"),
            *(Cell(str(row[key]), "quiet", "right") for key in keys),
            *(_cell(row, number, name in defects) for name, number in numbers.items()),
        ]
        for row in rows
    ]
    main = main_number(tuple(names), {}, known)
    spare = [name for name in names[::-1] if name not in defects and name != main]
    return Grid(
        f"{family} at step {shown:,}",
        ["site", *keys, *names],
        cells,
        ["every element is finite"] if whole else [],
        optional=tuple(sorted(spare, key=lambda name: not numbers[name].is_minor)),  # counts first
    )


def _cell(row: Mapping[str, Any], number: Number, is_defect: bool) -> Cell:
    """A number as text: a count in full, another with three digits; NaN stands out, and so does a count of defects above 0."""
    value = row[number.name]
    if value is None:
        return Cell("", align="right")
    if math.isnan(value) or (row.get("finite") == 0 and row.get("count") and number.kind != "count"):
        return Cell("NaN", "bad", "right")
    text = f"{value:,.0f}" if number.kind == "count" and float(value).is_integer() else f"{value:.3g}"
    return Cell(text, "bad" if is_defect and value else "plain", "right")
