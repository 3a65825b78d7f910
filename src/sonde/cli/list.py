"""List the runs below a folder: state, steps, findings, the last loss, the settings that differ, and the size on disk."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sonde.paths import absolute_path
from sonde.view.app.followed_runs import FollowedRuns
from sonde.view.table import Cell, Grid, standard_output

EXAMPLES = """examples:
  sonde list              the runs in the folder "runs"
  sonde list runs --json  one object, as scripts read it"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("runs", nargs="?", default="runs", help="the folder that holds the runs, or one run (default: runs)")
    parser.add_argument("--json", action="store_true", help="print JSON: name, state, health, steps, loss, size of each run")


def run(options: argparse.Namespace) -> int:
    """Print a line for each run."""
    followed = FollowedRuns(absolute_path(options.runs))
    entries = followed.entries()
    if options.json:
        print(json.dumps({"folder": followed.shown, "runs": entries}, indent=2, allow_nan=False))
    else:
        standard_output().print(_table(followed.shown, entries))
    return 0


def _table(folder: str, entries: Sequence[Mapping[str, Any]]) -> Grid:
    rows = [[_TEXTS[name](entry) for name in _TEXTS] for entry in entries]
    total = sum(entry.get("size_bytes", 0) for entry in entries)
    many = f"{len(entries)} run{'' if len(entries) == 1 else 's'}"
    unread = [f"{entry['name']}: {entry['error']}" for entry in entries if entry.get("error")]
    empty = "there is no run below this folder: sonde.watch(model, to=...) writes one"
    return Grid(
        f"{many} in {folder}, {total / 1e6:.1f} MB", list(_TEXTS), rows, unread, empty=empty, optional=("size", "model", "changed")
    )


def _health(entry: Mapping[str, Any]) -> Cell:
    count, health = entry.get("findings", 0), entry["health"]
    if health == "unknown":
        return Cell("", "quiet")
    return Cell(f"{count} {health}", "bad" if health == "bad" else "warn") if count else Cell("none", "quiet")


def _changed(entry: Mapping[str, Any]) -> Cell:
    when = entry.get("updated")
    return Cell("" if when is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(when)), "quiet")


def _loss(entry: Mapping[str, Any]) -> Cell:
    value, mark = entry.get("loss_last"), entry.get("loss_last_mark", 1)
    if value is not None:
        return Cell(f"{value:.4g}", align="right")
    return Cell("" if mark == 1 else "NaN" if mark == 2 else "inf", "bad", "right")


_TEXTS: Mapping[str, Callable[[Mapping[str, Any]], Cell]] = {
    "run": lambda entry: Cell(entry["name"], "strong"),
    "state": lambda entry: Cell(entry["state"], "plain" if entry["state"] in ("running", "ended") else "bad"),
    "steps": lambda entry: Cell("" if entry.get("last") is None else f"{entry['last'] + 1:,}", align="right"),
    "findings": _health,
    "loss": _loss,
    "model": lambda entry: Cell(entry.get("model", "")),
    "changed": _changed,
    "size": lambda entry: Cell(f"{entry['size_bytes'] / 1e6:.1f} MB" if "size_bytes" in entry else "", "quiet", "right"),
}
