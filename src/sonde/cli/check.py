"""Apply the rules to a run, and print what they find: what is wrong, where, since when, and what to do about it."""

from __future__ import annotations

import argparse
from textwrap import fill

from sonde.cli.run_options import expect_json, expect_run, find_run
from sonde.errors import ArgumentError

EXAMPLES = """
sonde check                                            the newest run in runs
sonde check quiet-otter --rules dead=off,spike:deviations=6
sonde check runs/quiet-otter --json || echo "look at this run"
"""
EXIT = "0 nothing was found but notes, 1 something was, 2 the run could not be checked"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    expect_run(parser)
    parser.add_argument(
        "--rules",
        metavar="RULE[=off|:THRESHOLD=NUMBER],...",
        help="other rules than the training had: dead=off, spike:deviations=6",
    )
    parser.add_argument(
        "--what-if",
        metavar="FORMAT",
        help="say what float16, bfloat16, float8_e4m3fn or float8_e5m2 would lose, of a run with the lens exponents()",
    )
    expect_json(
        parser, "run, verdict, ok, steps, findings (with the numbers, condition and advice of each), not_judged, too_early, notes"
    )


def run(options: argparse.Namespace) -> int:
    """Print the findings; return 0 if there are none but notes, 1 otherwise."""
    from sonde.run import check

    rules = None if options.rules is None else _rules(options.rules)
    found = check(find_run(options.run), rules=rules, what_if=options.what_if)
    if options.json:
        print(found.to_json())
    else:
        _print(str(found))
    return 0 if found.ok else 1 if found.verdict != "unknown" else 2


def _print(text: str) -> None:
    """Print the lines of a check: those of one finding below each other, its first in the colour of its severity."""
    from sonde.answer import standard_output

    console = standard_output()
    for line in text.splitlines():
        style = {"bad ": "bold red", "warn": "yellow"}.get(line[:4])
        console.print(
            fill(line, console.width, subsequent_indent="     "), style=style, markup=False, highlight=False, soft_wrap=True
        )


def _rules(text: str) -> dict[str, bool | dict[str, float]]:
    """Return the rules that *text* names.

    >>> _rules("dead=off,spike:deviations=6")
    {'dead': False, 'spike': {'deviations': 6.0}}
    """
    given: dict[str, bool | dict[str, float]] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = part.partition("=")
        rule, _, threshold = name.partition(":")
        if not threshold and value == "off":
            given[rule] = False
            continue
        try:
            number = float(value)
        except ValueError:
            number = None
        if not threshold or number is None:
            raise ArgumentError(f"--rules: {part!r} is neither RULE=off nor RULE:THRESHOLD=NUMBER, as in spike:deviations=6")
        known = given.setdefault(rule, {})
        if isinstance(known, dict):
            known[threshold] = number
    return given
