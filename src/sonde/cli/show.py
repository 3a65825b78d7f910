"""Print the table of a run: a row for each layer in the order of execution, over the last logged steps or at one step."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sonde.run.run import Run
    from sonde.view.table import Grid

_OF_LAYERS = {"rms", "norm", "call_death"}
"""The numbers that the table of layers has columns for; a run without any is shown by its first family."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    parser.add_argument("run", help="the folder of a run, as runs/quiet-otter")
    parser.add_argument("--step", type=int, help="show this step alone (default: medians over the last logged steps)")
    parser.add_argument("--family", help="show all numbers of one family, site by site, in place of the layers")


def run(options: argparse.Namespace) -> int:
    """Print the run's contents, its table and its alerts."""
    from rich.console import Console

    from sonde.escape import printable
    from sonde.run.run import open_run
    from sonde.view.plots.table import table

    console = Console()
    opened = open_run(options.run)
    console.print(repr(opened), markup=False, highlight=False)
    numbers = opened.numbers
    if not numbers:
        return 0
    has_layers = any(_OF_LAYERS & set(names) for names in numbers.values())
    family = options.family or (None if has_layers else next(iter(numbers)))
    console.print()
    console.print(table(opened, step=options.step) if family is None else _of_sites(opened, family, options.step))
    for alert in opened.alerts:
        console.print(printable(f"{alert['severity']}: {alert['message']}"), style="red", markup=False, highlight=False)
    return 0


def _of_sites(opened: Run, family: str, step: int | None) -> Grid:
    """All numbers of one family at *step*, or at the last logged one, a row for each site; lists of numbers are left out.

    Raises:
        UnknownSiteError: the run has no such family.
        ArgumentError: *step* was not logged.
    """
    from sonde.errors import ArgumentError
    from sonde.run.folder.duckdb_sql import literal, quoted
    from sonde.suggest import nearest_steps
    from sonde.view.table import Cell, Grid

    logged = sorted(set(opened.table(family).column("step").to_pylist()))
    shown = logged[-1] if step is None else step
    if shown not in logged:
        raise ArgumentError(f"--step={shown}: {family} has no rows of that step; the nearest are {nearest_steps(shown, logged)}")
    sql = f'SELECT * FROM {quoted(family)} WHERE step = {literal(shown)} ORDER BY micro_step, rank, "order", site'
    rows = opened.sql(sql).to_arrow_table().to_pylist()
    lists = {name for row in rows for name, value in row.items() if isinstance(value, list)}  # as an exponent histogram's counts
    names = [name for name in opened.numbers.get(family, ()) if name not in lists]
    cells = [
        [Cell(row["site"]), *(Cell("" if row[name] is None else f"{row[name]:.3g}", align="right") for name in names)]
        for row in rows
    ]
    return Grid(
        f"{family} at step {shown:,}",
        ["site", *names],
        cells,
        optional=tuple(reversed([each for each in names[1:] if each not in ("nan", "inf")])),
    )
