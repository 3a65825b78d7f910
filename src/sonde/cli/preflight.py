"""Check a model before its training: the exit code is 0 if nothing is bad, 1 if something is, 2 if the model could not be run."""

from __future__ import annotations

import argparse

from sonde.cli.given import attempt, expect_model, load, show

ERROR = 2


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    expect_model(parser, "preflight")
    parser.add_argument("--checks", metavar="NAME,...", help="make these checks alone")
    parser.add_argument("--skip", metavar="NAME,...", default="", help="leave these checks out")
    parser.add_argument("--steps", type=int, default=100, help="of the training on the one batch (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="the time that trainings may take (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Print the verdicts."""
    from sonde.diagnosis.preflight.preflight import preflight

    made = load(options.model)
    checks = None if options.checks is None else options.checks.split(",")
    skip = [name for name in options.skip.split(",") if name]
    found = attempt(
        "the model",
        lambda: preflight(*made, checks=checks, skip=skip, steps=options.steps, seconds=options.seconds, quiet=options.json),
    )
    show(found, options)
    return 1 if found.result == "bad" else 0
