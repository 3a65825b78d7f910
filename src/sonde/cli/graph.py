"""Write the execution graph of a run: a page that is coloured by a number and has a slider over the steps, or a drawing.

A drawing has the colours of --number at the last step, or at the last one up to --to. Red is NaN or infinite.

A run has a graph if one batch was given to sonde.watch(..., graph=...).
"""

from __future__ import annotations

import argparse
import json

from sonde.cli.run_options import between, expect_json, expect_number, expect_run, expect_steps, find_run
from sonde.words import size_text

EXAMPLES = """
sonde graph                                          quiet-otter-graph.html
sonde graph quiet-otter --number rms --port grad_output --from 2
sonde graph runs/quiet-otter -o graph.svg --number rms --depth 1
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    expect_run(parser)
    expect_number(parser, "the number that colours the graph (of a page, at first)")
    expect_steps(parser)
    parser.add_argument(
        "--depth", type=int, metavar="LEVELS", help="so many levels of modules are open (default: what can be read)"
    )
    forms = "a page (.html), or a drawing (.svg, .png, .pdf, .dot, .json)"
    parser.add_argument("-o", "--output", metavar="FILE", help=f"{forms}; default: the name of the run with -graph.html")
    expect_json(parser, "file, bytes, numbers")


def run(options: argparse.Namespace) -> int:
    """Write the file, and say where it is and how large."""
    from sonde.paths import absolute_path, short_path
    from sonde.run import open_run
    from sonde.view import plots

    where = between(options)
    opened = open_run(find_run(options.run))
    name = "run" if opened.path is None else opened.path.name
    file = absolute_path(options.output or f"{name}-graph.html")
    numbers = plots.save_graph(opened, file, options.number, options.port, where=where, depth=options.depth)
    taken = file.stat().st_size
    if options.json:
        print(json.dumps({"file": str(file), "bytes": taken, "numbers": numbers}))
    else:
        print(f"{short_path(file)}: {size_text(taken)}")
    return 0
