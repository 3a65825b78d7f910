"""Run the suite and print its tables."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.health import page, scoring
from benchmarks.health.case import Case
from benchmarks.health.outcome import Outcome
from benchmarks.health.suite import chosen, judged_anew, outcomes_of


def main() -> int:
    """Run the command; the exit code is 1 if a training could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.health", description=__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name matches, as 'dead|learning rate'")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N", help="the seeds (0)")
    parser.add_argument("--every", type=int, nargs="+", default=[1, 10], metavar="N", help="intervals of logged steps (1 10)")
    parser.add_argument("-j", "--processes", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--healthy", action="store_true", help="only the healthy controls")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page of the documentation to FILE")
    parser.add_argument("--failing", type=Path, metavar="FILE", help="write what is missed, misplaced or false to FILE")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write outcomes to FILE as each training ends, a line of JSON each"
    )
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="keep the runs in FOLDER; those that are there are only judged")
    parser.add_argument("--read", type=Path, nargs="+", metavar="FILE", help="train nothing: judge what such files hold")
    options = parser.parse_args()
    cases = chosen(options.only, healthy=True if options.healthy else None)
    if not cases:
        print(f"no case matches {options.only!r}", file=sys.stderr)
        return 2
    order = {(each.name, each.kind): place for place, each in enumerate(cases)}
    start = time.perf_counter()
    outcomes = _read(options.read) if options.read else _trained(cases, options)
    outcomes = [each for each in outcomes if (each.case, each.kind) in order and each.every in options.every]
    outcomes.sort(key=lambda each: (order[each.case, each.kind], each.seed, each.every))
    written = page.page(outcomes)
    print(written)
    print(f"{time.perf_counter() - start:.0f} s")
    if options.write:
        page.write(options.write, written)
    if options.failing:
        options.failing.write_text(scoring.failing(outcomes), encoding="utf-8")
    broken = [each for each in outcomes if each.error]
    for each in broken:
        print(f"{each.case} [{each.kind}] seed {each.seed}: {each.error.splitlines()[-1]}", file=sys.stderr)
    return int(bool(broken))


def _trained(cases: Sequence[Case], options: argparse.Namespace) -> list[Outcome]:
    outcomes: list[Outcome] = []
    total = len(cases) * len(options.seeds)
    if options.json:
        options.json.write_text("", encoding="utf-8")
    for done, found in enumerate(outcomes_of(cases, options.seeds, options.every, options.processes, options.runs), 1):
        outcomes += found
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(each.as_dict()) + "\n" for each in found)
        if sys.stderr.isatty():
            print(f"\r{done} of {total}", end="", file=sys.stderr, flush=True)
    return outcomes


def _read(files: Iterable[Path]) -> list[Outcome]:
    """Read outcomes; of one training that is in several files, those of the last."""
    found = [Outcome.of(json.loads(line)) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return list(judged_anew({(each.case, each.kind, each.seed, each.every, each.judge): each for each in found}.values()))


if __name__ == "__main__":
    sys.exit(main())
