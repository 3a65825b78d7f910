"""Find the run that a command is given, as a folder, a name, or the newest; and add the options that several commands have."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sonde.cli.completers import RUNS, complete_runs, completes
from sonde.errors import ArgumentError, StoreError
from sonde.paths import absolute_path, short_path
from sonde.suggest import nearest

ROOT = RUNS
"""The folder in which ``sonde.watch`` makes runs, and in which commands look for them."""

_RUN = "the folder of a run, its name below runs/, or a folder of runs, of which the newest is taken (default: runs)"


def expect_run(parser: argparse.ArgumentParser) -> None:
    """Add the run to *parser*; :func:`find_run` finds ``options.run``."""
    completes(parser.add_argument("run", metavar="RUN", nargs="?", default=ROOT, help=_RUN), complete_runs)


def expect_runs(parser: argparse.ArgumentParser) -> None:
    """Add several runs to *parser*; :func:`find_run` finds each of ``options.runs``, which is empty where none is given."""
    several = f"{_RUN}; of several, the first is compared with each other"
    completes(parser.add_argument("runs", metavar="RUN", nargs="*", help=several), complete_runs)


def expect_layers(parser: argparse.ArgumentParser) -> None:
    """Add the choice of layers, ``options.layers``: what ``include=`` takes as a text."""
    parser.add_argument(
        "--layers", metavar="REGEX", help="the layers in whose names this regular expression is found, as 'mlp|head'"
    )


def expect_number(parser: argparse.ArgumentParser, chosen: str) -> None:
    """Add the number of a family and its port; *chosen* says what the number is for."""
    parser.add_argument("--number", metavar="NAME", help=f"{chosen}, as rms")
    parser.add_argument(
        "--port", metavar="PORT", help="the tensor that the number is of: output, grad_output, grad, param, update, ..."
    )


def expect_steps(parser: argparse.ArgumentParser) -> None:
    """Add the first and the last step; :func:`between` makes a condition of them."""
    parser.add_argument("--from", dest="first", type=int, metavar="STEP", help="leave out the steps before this one")
    parser.add_argument("--to", dest="last", type=int, metavar="STEP", help="leave out the steps after this one")


def expect_json(parser: argparse.ArgumentParser, holds: str) -> None:
    """Add ``--json``, whose output *holds* the words given."""
    parser.add_argument("--json", action="store_true", help=f"print JSON: {holds}")


def between(options: argparse.Namespace) -> str | None:
    """Return the SQL condition for the rows of the steps that were asked for; None for all.

    Raises:
        ArgumentError: the first step comes after the last.
    """
    first, last = options.first, options.last
    if first is not None and last is not None and first > last:
        raise ArgumentError(f"--from {first} --to {last}: the first step comes after the last")
    asked = [] if first is None else [f"step >= {first}"]
    asked += [] if last is None else [f"step <= {last}"]
    return " AND ".join(asked) or None


def find_run(given: str) -> Path:
    """Return the folder of the run *given*: itself, the run of this name below ``runs``, or the newest of a folder of runs.

    Of several runs the newest is the one whose training began last; standard error names it. A run that has ended without having
    recorded anything is taken only where there is no other.

    Raises:
        StoreError: there is none; the message names the nearest.
        ArgumentError: several runs have the name, or *given* cannot be a path.
    """
    from sonde.run import RunFolder

    path = absolute_path(given)
    if RunFolder(path).is_run:
        return path
    if path.is_dir():
        return _newest(path, given)
    if path.exists():
        its = f": give its folder, {short_path(path.parent)}" if RunFolder(path.parent).is_run else ""
        raise StoreError(f"{given} is a file; a run is a folder with a run.json in it{its}")
    return _named(given, path)


def _newest(folder: Path, given: str) -> Path:
    from sonde.run import RunFolder, runs_below

    found = runs_below(folder)
    if not found:
        raise StoreError(
            f"there is no run in {short_path(folder)}: none of its folders holds a run.json. sonde.watch(model, to=...) writes "
            "one, sonde demo makes two"
        )
    newest = max(found, key=lambda path: (not RunFolder(path).is_empty, _begun(path)))
    if len(found) > 1:
        print(f"{newest.relative_to(folder)}: the newest of {len(found):,} runs in {given}", file=sys.stderr)
    return newest


def _begun(path: Path) -> float:
    """Return when the last attempt of a run began; before all others if that cannot be read."""
    from sonde.run import RunFolder

    about = RunFolder(path).description
    return -1.0 if about is None else max((attempt.started for attempt in about.attempts), default=0.0)


def _named(given: str, path: Path) -> Path:
    """Return the run below ``runs``, or beside *path*, which is not there, whose name is *given*."""
    from sonde.run import runs_below

    top = absolute_path(ROOT)
    known = {each.relative_to(top).as_posix(): each for each in (runs_below(top) if top.is_dir() else [])}
    wanted = given.strip("/")
    found = [each for name, each in known.items() if name == wanted] or [
        each for name, each in known.items() if name.endswith(f"/{wanted}")
    ]
    if len(found) == 1:
        return found[0]
    if (top / wanted).is_dir():
        return _newest(top / wanted, f"{ROOT}/{wanted}")
    if found:
        names = ", ".join(short_path(each) for each in found)
        raise ArgumentError(f"{given!r} is the name of {len(found)} runs: {names}; give more of the path")
    if given == ROOT:
        raise StoreError(f"there is no folder {ROOT!r} here: give the folder of a run; sonde.watch(model, to=...) writes one")
    beside = [] if not path.parent.is_dir() else [each for each in path.parent.glob("*/run.json") if each.is_file()]
    names_there = [*known, *(short_path(each.parent) for each in beside)]
    where = f"the folder does not exist, and no run in {ROOT} has this name" if known else "the folder does not exist"
    raise StoreError(f"there is no run {given!r}: {where}. {nearest(given, names_there) if names_there else ''}".rstrip())
