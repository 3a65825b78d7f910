"""Write the report of a run: one HTML file with the pictures of the live page, which opens without a server and without network."""

from __future__ import annotations

import argparse

EXAMPLES = """examples:
  sonde report runs/quiet-otter                     writes quiet-otter.html
  sonde report runs/quiet-otter -o reports/otter.html"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("run", help="the folder of a run, as runs/quiet-otter")
    parser.add_argument("-o", "--output", help="the file (default: the name of the run with .html, in the current folder)")


def run(options: argparse.Namespace) -> int:
    """Write the report, and say where it is and how large."""
    from sonde.paths import short_path
    from sonde.run.run import open_run
    from sonde.view.app.report_file import save_report

    opened = open_run(options.run)
    name = "run" if opened.path is None else opened.path.name
    written = save_report(opened, options.output or f"{name}.html")
    print(f"{short_path(written)}: {written.stat().st_size / 1e6:.1f} MB")
    return 0
