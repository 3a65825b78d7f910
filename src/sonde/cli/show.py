"""Print the table of a run: a row for each layer in the order of execution, over the last logged steps or at one step."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sonde.answer import Cell, Grid, standard_output
from sonde.cli.run_options import expect_json, expect_layers, expect_run, find_run
from sonde.words import number_text

if TYPE_CHECKING:
    from sonde.number import Number
    from sonde.run import Run

EXAMPLES = """
sonde show                                      the newest run in runs
sonde show quiet-otter --layers 'layers|head' --step 4
sonde show runs/quiet-otter --family moments    all numbers of a family
"""

_OF_LAYERS = {"rms", "norm", "call_death"}
"""The numbers that the table of layers has columns for; a run without any is shown by its first family."""


_WITHOUT_SITES = {"scalars": ("name", "value"), "alerts": ("severity", "rule", "site", "message")}
"""The families whose rows are of no site, with the columns that ``--family`` shows of them."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    expect_run(parser)
    expect_layers(parser)
    parser.add_argument("--step", type=int, help="show this step alone (default: medians over the last logged steps)")
    expect_json(parser, "run, path, state, end, steps, findings, and layers or (with --family) rows, each with its numbers")
    parser.add_argument("--family", help="show all numbers of one family, site by site, in place of the layers")


def run(options: argparse.Namespace) -> int:
    """Print the run's contents, its table, its findings, and alerts of the user's own."""
    from sonde.escape import printable
    from sonde.rules import RULES
    from sonde.run import findings_in, open_run
    from sonde.view.plots.layer_series import FIRST_ROWS

    console = standard_output()
    opened = open_run(find_run(options.run))
    if options.json:
        print(_json(opened, options))
        return 0
    shown = _shown(opened, options)  # an error in the arguments stands alone
    head, *families = repr(opened).splitlines()
    console.print(printable(head), markup=False, highlight=False)
    end = "" if opened.end is None else opened.end.words
    said = [line for line in (end, opened.described_ranks, opened.pruned) if line]
    for line in families:  # findings stand in full below, and all numbers under --family
        if line not in said:
            console.print(printable(line), markup=False, highlight=False, no_wrap=True, overflow="ellipsis")
    for line in said:
        console.print(printable(line), markup=False, highlight=False, style="red" if line == end else None)
    if opened.config:
        values = " · ".join(f"{name} {value}" for name, value in opened.config.items())
        console.print(printable(f"config: {values}"), markup=False, highlight=False)
    if shown is None:
        if opened.state == "running":
            console.print(FIRST_ROWS, highlight=False)
        return 0
    family, grid = shown
    console.print()
    console.print(grid)
    found = findings_in(opened) if family is None else ()
    lines = [f"{each.severity}: {each.message}" for each in found]
    alerts = () if family == "alerts" else opened.alerts  # which the table has
    lines += [f"{alert['severity']}: {alert['message']}" for alert in alerts if family or alert["rule"] not in RULES]
    for line in lines:
        console.print(printable(line), style="red", markup=False, highlight=False)
    return 0


def _shown(opened: Run, options: argparse.Namespace) -> tuple[str | None, Grid] | None:
    """Return the family that is shown, None for the layers, and its table; None for a run without rows.

    Raises:
        ArgumentError: there is no such family, or *step* has no rows.
        SelectionError: no layer is selected.
    """
    from sonde.view.plots.table import table

    numbers = opened.numbers
    if not numbers:
        return None
    has_layers = any(_OF_LAYERS & set(names) for names in numbers.values())
    family = options.family or (None if has_layers else next(iter(numbers)))
    if family is None:
        return None, table(opened, include=options.layers, step=options.step)
    if family in _WITHOUT_SITES:
        return family, _of_names(opened, family, options.step)
    return family, _of_sites(opened, family, options.step, options.layers)


def _json(opened: Run, options: argparse.Namespace) -> str:
    """Return the layers, or the rows of a family, with their numbers."""
    from sonde.escape import readable_json
    from sonde.run import findings_in
    from sonde.view.plots.table import layer_rows

    held: dict[str, Any] = {"run": opened.path.name if opened.path else "", "path": str(opened.path), "state": opened.state}
    held |= {"end": None if (end := opened.end) is None else end.to_data()}
    held |= {"config": opened.config, "pruned": opened.pruned}
    if options.family is not None:
        rows = (_rows_of_names if options.family in _WITHOUT_SITES else _rows_of_sites)(opened, options.family, options.step)
        return readable_json({**held, "family": options.family, "rows": _chosen(rows, options.layers)})
    found = layer_rows(opened, include=options.layers, step=options.step)
    words, layers, remarks = found or ("", [], [])
    rows = [
        {
            "layer": each.name,
            "type": each.type,
            "numbers": {name: number.value for name, number in each.numbers.items()},
            "notes": [text for text, _ in each.notes],
        }
        for each in layers
    ]
    return readable_json(
        {**held, "steps": words, "layers": rows, "remarks": remarks, "findings": list(map(asdict, findings_in(opened)))}
    )


def _chosen(rows: list[dict[str, Any]], layers: str | None) -> list[dict[str, Any]]:
    """Return the *rows* of the layers that were asked for.

    Raises:
        SelectionError: no layer is selected.
    """
    from sonde.view.plots.layer_names import chosen

    return rows if layers is None else [rows[place] for place in chosen([row.get("layer", "") for row in rows], layers)]


def _of_names(opened: Run, family: str, step: int | None) -> Grid:
    """The scalars or the alerts of a run: at *step*, or the last value of each scalar and every alert.

    Raises:
        ArgumentError: *step* has no rows.
    """
    rows = _rows_of_names(opened, family, step)
    keys = ["step", *(["rank"] if len({row["rank"] for row in rows}) > 1 else [])]
    columns = [*keys, *_WITHOUT_SITES[family]]
    cells = [[_text(row[name], name) for name in columns] for row in rows]
    return Grid(family if step is None else f"{family} at step {step:,}", columns, cells)


def _rows_of_names(opened: Run, family: str, step: int | None) -> list[dict[str, Any]]:
    rows = sorted(opened.table(family).to_pylist(), key=lambda row: (row["epoch"], row["step"]))
    if step is not None:
        return _at(rows, family, step)
    return list({(row["name"], row["rank"]): row for row in rows}.values()) if family == "scalars" else rows


def _rows_of_sites(opened: Run, family: str, step: int | None) -> list[dict[str, Any]]:
    """Return the rows of *family* at *step*, or at the last logged one.

    Raises:
        UnknownSiteError: the run has no such family.
        ArgumentError: *step* was not logged.
    """
    from sonde.run import literal, quoted

    logged = opened.table(family).select(["step"]).to_pylist()
    shown = max(row["step"] for row in logged) if step is None else step
    _at(logged, family, shown)
    sql = f'SELECT * FROM {quoted(family)} WHERE step = {literal(shown)} ORDER BY micro_step, rank, "order", site'
    rows: list[dict[str, Any]] = opened.sql(sql).to_arrow_table().to_pylist()
    return rows


def _at(rows: list[dict[str, Any]], family: str, step: int) -> list[dict[str, Any]]:
    from sonde.errors import ArgumentError
    from sonde.suggest import nearest_steps

    logged = sorted({row["step"] for row in rows})
    if step not in logged:
        raise ArgumentError(f"--step={step}: {family} has no rows of that step; the nearest are {nearest_steps(step, logged)}")
    return [row for row in rows if row["step"] == step]


def _text(value: Any, name: str) -> Cell:
    if name == "value":
        return Cell(number_text(value), "plain" if math.isfinite(value) else "bad", "right")
    return (
        Cell(f"{value:,}", "quiet", "right")
        if isinstance(value, int)
        else Cell(value or "", "strong" if name == "name" else "plain")
    )


def _of_sites(opened: Run, family: str, step: int | None, layers: str | None) -> Grid:
    """All numbers of one family at *step*, or at the last logged one, a row for each site.

    Lists of numbers are left out, and so are numbers without any value.

    Raises:
        UnknownSiteError: the run has no such family.
        ArgumentError: *step* was not logged.
        SelectionError: no layer is selected.
    """
    from sonde.number import described, number_of
    from sonde.view.plots.number_names import main_number

    rows = _chosen(_rows_of_sites(opened, family, step), layers)
    shown = rows[0]["step"]
    lists = {name for row in rows for name, value in row.items() if isinstance(value, list)}  # as an exponent histogram's counts
    known = described(opened.info, family)
    names = [name for name in opened.numbers.get(family, ()) if name not in lists and any(row[name] is not None for row in rows)]
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
