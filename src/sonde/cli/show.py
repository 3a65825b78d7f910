"""Print the table of a run: a row for each layer in the order of execution, over the last logged steps or at one step."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sonde.answer import Grid, standard_output
from sonde.cli.run_options import expect_json, expect_layers, expect_run, find_run

if TYPE_CHECKING:
    from sonde.run import Run

EXAMPLES = """
sonde show                                      the newest run in runs
sonde show quiet-otter --layers 'layers|head' --step 4
sonde show runs/quiet-otter --family moments    all numbers of a family
"""

_OF_LAYERS = {"rms", "norm", "call_death"}
"""The numbers that the table of layers has columns for; a run without any is shown by its first family."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    expect_run(parser)
    expect_layers(parser)
    parser.add_argument("--step", type=int, help="show this step alone (default: medians over the last logged steps)")
    expect_json(parser, "run, path, state, end, steps, findings, and layers or (with --family) rows, each with its numbers")
    parser.add_argument("--family", help="show all numbers of one family, site by site, in place of the layers")
    parser.add_argument(
        "--scalars", dest="family", action="store_const", const="scalars", help="show all losses, metrics, norms and rates"
    )


def run(options: argparse.Namespace) -> int:
    """Print the run's contents, its table, and its findings."""
    from sonde.escape import printable
    from sonde.run import open_run
    from sonde.view import plots

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
    in_full = shown is not None and shown[0] is None
    families = families[:-1] if in_full and opened.findings else families
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
            console.print(plots.FIRST_ROWS, highlight=False)
        return 0
    _, grid = shown
    console.print()
    console.print(grid)
    for each in opened.findings if in_full else ():
        style = {"bad": "red", "warn": "yellow"}.get(each.severity)
        why = f" (follows from {each.follows})" if each.follows else ""
        text = f"{'  ' if why else ''}{each.severity}: {each.message}{why}"
        console.print(printable(text), style=style, markup=False, highlight=False)
    for line in () if options.family else opened.shortfalls:
        console.print(printable(line), markup=False, highlight=False)
    return 0


def _shown(opened: Run, options: argparse.Namespace) -> tuple[str | None, Grid] | None:
    """Return the family that is shown, None for the layers, and its table; None for a run without rows."""
    from sonde.view import plots

    numbers = opened.numbers
    if not numbers:
        return None
    has_layers = any(_OF_LAYERS & set(names) for names in numbers.values())
    family = options.family or (None if has_layers else next(iter(numbers)))
    return family, plots.table(opened, include=options.layers, step=options.step, family=family)


def _json(opened: Run, options: argparse.Namespace) -> str:
    """Return the layers, or the rows of a family, with their numbers."""
    from sonde.escape import readable_json
    from sonde.view import plots

    held: dict[str, Any] = {"run": opened.path.name if opened.path else "", "path": str(opened.path), "state": opened.state}
    held |= {"end": None if (end := opened.end) is None else end.to_data()}
    held |= {"config": opened.config, "pruned": opened.pruned}
    held |= plots.table_data(opened, include=options.layers, step=options.step, family=options.family)
    record = {"verdict": opened.verdict, "shortfalls": opened.shortfalls, "findings": list(map(asdict, opened.findings))}
    return readable_json(held if options.family is not None else {**held, **record})
