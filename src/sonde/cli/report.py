"""Write the report of one run or several: a file with the pictures of the live page, which opens without server or network."""

from __future__ import annotations

import argparse
import json

from sonde.cli.completers import complete_runs, completes
from sonde.cli.run_options import ROOT, expect_json, expect_runs, find_run
from sonde.words import size_text

EXAMPLES = """
sonde report runs/quiet-otter -o reports/otter.html
sonde report quiet-otter calm-heron    both in one file, and where they part
sonde report quiet-otter --against calm-heron    differences from calm-heron
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    expect_runs(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the file (default: the name of the first run with .html, in the current folder)"
    )
    other = "show the numbers of the run as differences from those of this one"
    completes(parser.add_argument("--against", metavar="RUN", help=other), complete_runs)
    expect_json(parser, "file, bytes")


def run(options: argparse.Namespace) -> int:
    """Write the report, and say where it is and how large."""
    from sonde.paths import short_path
    from sonde.run import open_run
    from sonde.view import save_report

    opened = [open_run(find_run(each)) for each in options.runs or [ROOT]]
    name = "run" if opened[0].path is None else opened[0].path.name
    other = None if options.against is None else open_run(find_run(options.against))
    written = save_report(opened, options.output or f"{name}.html", against=other)
    taken = written.stat().st_size
    print(json.dumps({"file": str(written), "bytes": taken}) if options.json else f"{short_path(written)}: {size_text(taken)}")
    return 0
