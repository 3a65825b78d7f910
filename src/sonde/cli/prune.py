"""Take rows out of runs that have ended: keep one step of many, or take out whole families. Without --yes nothing is changed.

The first and the last logged step stay, those that findings name, and losses. The run says what was taken out, and its
findings stay what they were.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sonde.answer import Cell, Grid, standard_output
from sonde.cli.completers import complete_runs, completes
from sonde.cli.run_options import expect_json, find_run
from sonde.errors import ArgumentError, SondeError, StoreError
from sonde.words import many, size_text

if TYPE_CHECKING:
    from sonde.run import PrunedRun

EXAMPLES = """
sonde prune quiet-otter --every 10               what would go
sonde prune runs --every 100 --before 30d --yes  all runs that are older
sonde prune quiet-otter --every 10 --keep-last 100 --drop activation --yes
"""
EXIT = "0 done, or nothing to do; 2 a run could not be pruned (one that is being written is left out of a folder)"

_UNITS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    of_run = "a run (its folder, or its name below runs/), or a folder: all runs in it"
    completes(parser.add_argument("run", metavar="RUN", help=of_run), complete_runs)
    parser.add_argument("--every", type=int, metavar="N", help="keep one of N steps of the training")
    parser.add_argument("--keep-last", type=int, default=0, metavar="N", help="leave the last N logged steps whole")
    parser.add_argument("--families", metavar="NAME,...", help="thin these families alone (default: all but scalars)")
    parser.add_argument("--drop", default="", metavar="NAME,...", help="take these families out as a whole")
    parser.add_argument(
        "--before", metavar="DATE", help="runs that ended before this date (2026-01-31), or this age (12h, 30d, 4w)"
    )
    parser.add_argument("--yes", action="store_true", help="do it; without, say what would go")
    expect_json(parser, "dry_run, runs (path, size before and after, families with steps, rows and size), skipped")


def run(options: argparse.Namespace) -> int:
    """Print what goes, or would go."""
    from sonde.paths import short_path
    from sonde.run import prune
    from sonde.view import progress

    if options.every is None and not _names(options.drop):
        raise ArgumentError("say what is to be taken out: --every 10 keeps one step of ten, --drop exponents takes a family out")
    found, several = _runs(options.run)
    before = None if options.before is None else _moment(options.before)
    families = None if options.families is None else _names(options.families)
    done: list[PrunedRun] = []
    skipped: dict[str, str] = {}
    refused: SondeError | None = None
    with progress("pruning", verbose=not options.json) as show:
        for path in found:
            show(short_path(path))
            if before is not None and _ended(path) >= before:
                skipped[str(path)] = "it is younger"
                continue
            drop = _names(options.drop)
            try:
                how = {"every": options.every, "keep_last": options.keep_last}
                done.append(prune(path, **how, families=families, drop=drop, dry_run=not options.yes))
            except SondeError as error:
                if not several or isinstance(error, ArgumentError):
                    raise
                skipped[str(path)] = str(error)
                refused = refused or error
    if refused is not None and not done:
        raise refused
    if options.json:
        _print_json(done, skipped, dry_run=not options.yes)
    else:
        _print(done, skipped, several=several, dry_run=not options.yes)
    return 0


def _runs(given: str) -> tuple[list[Path], bool]:
    """Return the runs that are *given*, and whether as a folder of runs."""
    from sonde.paths import absolute_path
    from sonde.run import RunFolder, runs_below

    folder = absolute_path(given)
    if not folder.is_dir() or RunFolder(folder).is_run:
        return [find_run(given)], False
    found = runs_below(folder)
    if not found:
        raise StoreError(f"there is no run in {given}: none of its folders holds a run.json")
    return found, True


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _moment(text: str) -> float:
    """Return the moment that *text* names, in seconds since 1970."""
    if age := re.fullmatch(r"(\d+)([hdw])", text):
        return time.time() - int(age[1]) * _UNITS[age[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ArgumentError(f"--before {text!r}: write a date, as 2026-01-31, or an age, as 12h, 30d or 4w") from None


def _ended(path: Path) -> float:
    """Return when a run ended, or of a killed one, when it was last written; in seconds since 1970."""
    from sonde.run import RunFolder

    folder = RunFolder(path)
    about = folder.description
    ended = about.attempts[-1].ended if about is not None and about.attempts else None
    return folder.changed if ended is None else ended


def _print(done: list[PrunedRun], skipped: dict[str, str], *, several: bool, dry_run: bool) -> None:
    from sonde.paths import short_path

    about = "about " if dry_run else ""
    rows, before, after = [], 0, 0
    for each in done:
        name = short_path(each.path)
        before, after = before + each.size[0], after + each.size[1]
        kinds = [] if several else [(family.family, family.steps, family.rows, family.size) for family in each.families]
        whole = tuple(sum(family.rows[side] for family in each.families) for side in (0, 1))
        longest = max((family.steps for family in each.families), default=(0, 0))
        for what, steps, counts, sizes in [*kinds, *([(name, longest, whole, each.size)] if several else [])]:
            changes = [
                f"{steps[0]:,} → {steps[1]:,}",
                f"{counts[0]:,} → {counts[1]:,}",
                f"{size_text(sizes[0])} → {about}{size_text(sizes[1])}",
            ]
            rows.append([Cell(what, "strong"), *(Cell(text, align="right") for text in changes)])
    which = many(len(done), "run") if several else short_path(done[0].path)
    verb = "would go" if dry_run else "went"
    stay = "would stay" if dry_run else "are left"
    title = f"{which}: {size_text(before - after)} {verb} of {size_text(before)}, {about}{size_text(after)} {stay}"
    footer = [f"left out: {short_path(Path(path))}: {why}" for path, why in skipped.items()]
    footer += ["nothing was changed: --yes does it"] if dry_run and rows else []
    heading = "run" if several else "family"
    standard_output().print(Grid(title, [heading, "steps", "rows", "size"], rows, footer, empty="nothing to take out"))


def _print_json(done: list[PrunedRun], skipped: dict[str, str], *, dry_run: bool) -> None:
    from dataclasses import asdict

    from sonde.escape import readable_json

    runs = [{"path": str(each.path), "size": each.size, "families": [asdict(family) for family in each.families]} for each in done]
    sys.stdout.write(readable_json({"dry_run": dry_run, "runs": runs, "skipped": skipped}) + "\n")
