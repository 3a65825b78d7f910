"""Say what a run holds: state, steps, settings, environment, its families with rows and bytes on disk, and its files."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from sonde.answer import Cell, Grid, standard_output
from sonde.cli.run_options import expect_json, expect_run, find_run
from sonde.escape import shortened
from sonde.words import names_text, size_text

EXAMPLES = """
sonde info                     the newest run in runs
sonde info quiet-otter --json  for scripts
"""

_NAMES = 8  # numbers of a family that are shown


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    expect_run(parser)
    expect_json(parser, "state, end, attempts, steps, families, settings, findings, files, bytes, ...")


def run(options: argparse.Namespace) -> int:
    """Print the facts."""
    from sonde.run import facts_of_run, open_run

    path = find_run(options.run)
    facts = facts_of_run(open_run(path))
    if options.json:
        from sonde.escape import readable_json

        sys.stdout.write(readable_json(facts) + "\n")
        return 0
    console = standard_output()
    console.print(_families(facts))
    lists = {("setting", "value"): _settings, ("attempt", "began, took"): _attempts, ("file", "size"): _files}
    for columns, listed in lists.items():
        if lines := listed(facts):
            console.print(Grid("", list(columns), lines))
    return 0


def _families(facts: Mapping[str, Any]) -> Grid:
    rows = []
    for name, family in facts["families"].items():
        per_row = family["bytes_per_row"]
        shown = family["numbers"] or (facts["scalars"] if name == "scalars" else [])
        counts = [
            f"{family['rows']:,}",
            f"{family['steps']:,}",
            "" if family["sites"] is None else f"{family['sites']:,}",
            "" if family["bytes"] is None else size_text(family["bytes"]),
            "" if per_row is None else f"{per_row:,.0f} B",
        ]
        numbers = Cell(names_text(shown, _NAMES), "quiet")
        rows.append([Cell(name, "strong"), *(Cell(text, align="right") for text in counts), numbers])
    steps = facts["steps"]
    span = f"{steps['logged']:,} logged steps" + (f" ({steps['first']:,} to {steps['last']:,})" if steps["logged"] else "")
    found = facts["counted"]
    title = f"{facts['run']} · {facts['state']} · {span} · {facts['sites']:,} sites · {found} · {size_text(facts['bytes'])}"
    lost = [f"{family}: {text}" for family, said in facts["lost"].items() for text in said]
    footer = [*filter(None, [facts["meaning_of_ranks"], facts["pruned"]]), *facts["shortfalls"], *lost]
    columns = ["family", "rows", "steps", "sites", "size", "a row", "numbers"]
    return Grid(title, columns, rows, footer, empty="nothing is recorded yet", optional=("numbers", "sites"))


def _settings(facts: Mapping[str, Any]) -> list[list[Cell]]:
    return [[Cell(name), Cell(shortened(str(value), 60))] for name, value in facts["settings"].items()]


def _files(facts: Mapping[str, Any]) -> list[list[Cell]]:
    return [[Cell(name), Cell(size_text(taken), align="right")] for name, taken in facts["files"].items()]


def _attempts(facts: Mapping[str, Any]) -> list[list[Cell]]:
    lines = []
    for number, each in enumerate(facts["attempts"], 1):
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["began"]))
        took = "not ended" if each["ended"] is None else f"{each['ended'] - each['began']:,.0f} s"
        lost = f", {each['lost']:,} rows lost" if each["lost"] else ""
        end = f", {each['end']}" if each["end"] else ""
        lines.append([Cell(f"{number}, from step {each['first_step']:,}"), Cell(f"{began}, {took}{lost}{end}")])
    return lines
