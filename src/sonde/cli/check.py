"""Apply the rules to a run, and print what they find: the exit code is 0 if nothing is found, 1 otherwise."""

from __future__ import annotations

import argparse
import sys

from sonde.errors import ArgumentError


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    parser.add_argument("run", help="the folder of a run, as runs/quiet-otter")
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
    parser.add_argument("--json", action="store_true", help="print JSON, with the numbers and the formula of each finding")


def run(options: argparse.Namespace) -> int:
    """Print the findings; return 0 if there are none, 1 otherwise."""
    from sonde.run.checking import check

    rules = None if options.rules is None else _rules(options.rules)
    found = check(options.run, rules=rules, what_if=options.what_if)
    sys.stdout.write(f"{found.to_json() if options.json else found}\n")
    return 0 if found.is_healthy else 1


def _rules(text: str) -> dict[str, bool | dict[str, float]]:
    """Return the rules that *text* names.

    >>> _rules("dead=off,spike:deviations=6")
    {'dead': False, 'spike': {'deviations': 6.0}}

    Raises:
        ArgumentError: *text* is written otherwise.
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
