"""Make the checks on a model that people make by hand before a training, on copies, and print a verdict of each."""

from __future__ import annotations

import argparse

from sonde.cli.given import FUNCTION, VERDICT, attempt, expect_model, load, show

EXAMPLES = f"""
sonde preflight train.py:setup               setup in the file train.py
sonde preflight train:setup --skip overfit   the same in the module train
sonde preflight train.py:setup --checks alive,initial_loss --json
{FUNCTION}"""
EXIT = VERDICT


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    expect_model(parser)
    parser.add_argument("--checks", metavar="NAME,...", help="make these checks alone")
    parser.add_argument("--skip", metavar="NAME,...", default="", help="leave these checks out")
    parser.add_argument("--steps", type=int, default=100, help="of the training on the one batch (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="the time that trainings may take (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Print the verdicts."""
    from sonde.diagnosis import preflight

    made = load(options.model)
    checks = None if options.checks is None else options.checks.split(",")
    skip = [name for name in options.skip.split(",") if name]
    found = attempt(
        "the model",
        lambda: preflight(*made, checks=checks, skip=skip, steps=options.steps, seconds=options.seconds, verbose=not options.json),
    )
    show(found, options)
    return 0 if found.ok else 1
