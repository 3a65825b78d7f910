"""List the runs below a folder: state, steps, findings, the last loss, and the size on disk. Conditions choose some of them."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, get_args

from sonde.answer import Cell, Grid, standard_output
from sonde.cli.completers import complete_folders, completes
from sonde.cli.run_options import expect_json
from sonde.run import State
from sonde.words import many, number_text, size_text

EXAMPLES = """
sonde list                                  the runs in the folder "runs"
sonde list sweep --name 'lr-*' --sort loss  of another, the least loss first
sonde list --state failed --json            for scripts
"""

_GRAVITY = ("bad", "warn", "note", "unknown", "ok")
_STATES = (*get_args(State), "damaged", "newer")

_SORTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "name": lambda entry: 0,  # as they come: run-2 before run-10
    "changed": lambda entry: -entry.get("updated", 0.0),
    "size": lambda entry: -entry.get("size_bytes", 0),
    "steps": lambda entry: -_steps(entry),
    "loss": lambda entry: entry["loss_last"] if entry.get("loss_last") is not None else float("inf"),
    "findings": lambda entry: (_GRAVITY.index(entry["health"]), -entry.get("findings", 0)),
}
"""How runs can be sorted: the newest, largest, longest, worst first, and the least loss."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    folder = "the folder of the runs, or one run (default: runs)"
    completes(parser.add_argument("runs", metavar="FOLDER", nargs="?", default="runs", help=folder), complete_folders)
    parser.add_argument("--name", metavar="PATTERN", help="the runs of these names alone, as 'lr-*'")
    parser.add_argument(
        "--state",
        choices=_STATES,
        metavar="STATE",
        help=f"the runs in this state alone: {', '.join(_STATES)}; failed: by an error; lost: its process was killed",
    )
    parser.add_argument("--health", choices=_GRAVITY, help="the runs of this health alone; bad: something is wrong with it")
    parser.add_argument("--sort", choices=list(_SORTS), default="name", help="what comes first (default: %(default)s)")
    expect_json(
        parser,
        "folder, runs (of each name, path, state, end, health, findings, shortfalls, first, last, loss_last, size_bytes, ...)",
    )


def run(options: argparse.Namespace) -> int:
    """Print a line for each run."""
    from sonde.paths import absolute_path
    from sonde.view import FollowedRuns

    followed = FollowedRuns(absolute_path(options.runs))
    there = followed.entries()
    entries = sorted((entry for entry in there if _fits(entry, options)), key=_SORTS[options.sort])
    if options.json:
        print(json.dumps({"folder": followed.shown, "runs": entries}, indent=2, allow_nan=False))
    else:
        standard_output().print(_table(followed.shown, entries, len(there)))
    return 0


def _fits(entry: Mapping[str, Any], options: argparse.Namespace) -> bool:
    """Whether a run meets all conditions."""
    name, pattern = entry["name"], options.name
    named = pattern is None or fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("/")[2], pattern)
    return named and options.state in (None, entry["state"]) and options.health in (None, entry["health"])


def _steps(entry: Mapping[str, Any]) -> int:
    last = entry.get("last")
    return 0 if last is None else int(last) + 1


def _state(entry: Mapping[str, Any]) -> str:
    return f"{entry['state']}, pruned" if entry.get("pruned") else str(entry["state"])


def _table(folder: str, entries: Sequence[Mapping[str, Any]], there: int) -> Grid:
    shown = [name for name in _TEXTS if name != "model" or any(entry.get("model") for entry in entries)]
    rows = [[_TEXTS[name](entry) for name in shown] for entry in entries]
    total = sum(entry.get("size_bytes", 0) for entry in entries)
    shown_runs = many(there, "run") if len(entries) == there else f"{len(entries):,} of {many(there, 'run')}"
    said = [f"{entry['name']}: {entry['end']['words']}" for entry in entries if entry["end"]]
    said += [f"{entry['name']}: {entry['error']}" for entry in entries if entry.get("error")]
    said += [f"{entry['name']}: {', '.join(entry['shortfalls'])}" for entry in entries if entry.get("shortfalls")]
    empty = "no run meets these conditions" if there else "there is no run below this folder: sonde.watch(model, to=...) writes one"
    return Grid(f"{shown_runs} in {folder}, {size_text(total)}", shown, rows, said, empty=empty, optional=("model", "changed"))


def _health(entry: Mapping[str, Any]) -> Cell:
    count, health, doubts = entry.get("findings", 0), entry["health"], entry.get("shortfalls", ())
    if count:
        root = f", {entry['root']}" if entry.get("root") else ""
        return Cell(f"{count} {health}{root}", "bad" if health == "bad" else "warn" if health == "warn" else "plain")
    return Cell("?" if doubts else "", "warn") if health == "unknown" else Cell("none", "quiet")


def _changed(entry: Mapping[str, Any]) -> Cell:
    when = entry.get("updated")
    return Cell("" if when is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(when)), "quiet")


def _loss(entry: Mapping[str, Any]) -> Cell:
    value, mark = entry.get("loss_last"), entry.get("loss_last_mark", 1)
    if value is not None:
        return Cell(number_text(value), align="right")
    return Cell("" if mark == 1 else "NaN" if mark == 2 else "inf", "bad", "right")


_TEXTS: Mapping[str, Callable[[Mapping[str, Any]], Cell]] = {
    "run": lambda entry: Cell(entry["name"], "strong"),
    "state": lambda entry: Cell(_state(entry), "plain" if entry["state"] in ("running", "ended") else "bad"),
    "steps": lambda entry: Cell(f"{_steps(entry):,}" if _steps(entry) else "", align="right"),
    "findings": _health,
    "loss": _loss,
    "size": lambda entry: Cell(size_text(entry["size_bytes"]) if "size_bytes" in entry else "", "quiet", "right"),
    "model": lambda entry: Cell(entry.get("model", "")),
    "changed": _changed,
}
