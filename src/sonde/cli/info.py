"""Say what a run holds: state, steps, settings, families with rows and bytes on disk, files; or what a folder of tensors holds."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sonde.answer import Cell, Grid, standard_output
from sonde.cli.run_options import expect_json, expect_run, find_run
from sonde.escape import shortened
from sonde.paths import absolute_path, short_path
from sonde.words import many, names_text, shape_text, size_text

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
    from sonde.run import facts_of_run, holds_tensors, open_run

    folder = absolute_path(options.run)
    is_store = holds_tensors(folder)
    facts = _facts_of_store(folder) if is_store else facts_of_run(open_run(find_run(options.run)))
    if options.json:
        from sonde.escape import readable_json

        sys.stdout.write(readable_json(facts) + "\n")
        return 0
    console = standard_output()
    if is_store:
        console.print(_columns(facts))
        return 0
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


def _facts_of_store(folder: Path) -> dict[str, Any]:
    """Return what the tensors in *folder* are, as plain data."""
    from sonde.run import open_tensors

    store = open_tensors(folder)
    models = store.about.get("models")
    facts = {
        "store": short_path(folder),
        "kind": store.about.get("kind"),
        "complete": store.complete,
        "models": {name: held.get("class") for name, held in models.items()} if isinstance(models, dict) else {},
        "shards": store.shards,
        "bytes": store.nbytes,
    }
    if store.records or not len(store):
        tensors = Counter(key.split("/", 1)[1] for key in store)
        return facts | {"records": len(store.records), "tensors": len(store), "sites": dict(tensors)}
    columns = {
        name: {"type": str(store[name].dtype).removeprefix("torch."), "row": list(store[name].shape[1:])} for name in store.columns
    }
    return facts | {"rows": len(store.rows), "items": store.item_span, "columns": columns}


def _columns(facts: Mapping[str, Any]) -> Grid:
    if "columns" in facts:
        span = "" if facts["items"] is None else ", items {:,} to {:,}".format(*facts["items"])
        held = f"{many(facts['rows'], 'row')}{span}"
        names = ["column", "type", "a row"]
        rows = [
            [Cell(name, "strong"), Cell(column["type"]), Cell(shape_text(column["row"]))]
            for name, column in facts["columns"].items()
        ]
    else:
        held = f"{many(facts['tensors'], 'tensor')}, {many(facts['records'], 'record')}"
        names = ["site", "tensors"]
        rows = [[Cell(site, "strong"), Cell(f"{count:,}", align="right")] for site, count in facts["sites"].items()]
    state = "complete" if facts["complete"] else "not complete"
    title = f"{facts['store']} · {state} · {held} · {many(facts['shards'], 'shard')} · {size_text(facts['bytes'])}"
    models = [f"{name or 'model'}: {kind}" for name, kind in facts["models"].items()]
    return Grid(title, names, rows, models, empty="nothing is stored")
