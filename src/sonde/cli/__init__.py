"""Run the ``sonde`` command. A subcommand is one file here and one line in ``COMMANDS``; only the one that is run is imported.

A file has a docstring (its help), ``arguments(parser)``, which adds its options, and ``run(options)``, which returns the exit code.
``ERROR`` is the exit code of an error; 1 where a file does not set it. ``given.py`` is no command: it loads what some are given.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from sonde.errors import SondeError

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "compare": "find the first place where two saved models, or two runs, part",
    "demo": "train a small network on real data, look inside it, and find the layer that died",
    "doctor": "say what observing does to a model; or which kernels are in use, whether the compiler works, what is installed",
    "preflight": "check a model before its training; the exit code is 0 if nothing is bad, 1 otherwise",
    "list": "list the runs below a folder, with their state and findings",
    "show": "print the table of a run, layer by layer",
    "ui": "open a page that follows all runs below a folder",
    "report": "write the pictures of a run to one HTML file",
    "check": "apply the rules to a run; the exit code is 0 if nothing is found, 1 otherwise",
    "env": "print the versions that a report of a defect should name",
}
"""The name of each file in this folder that is a subcommand, and one line of help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 0 done, 1 the command failed, 2 wrong usage, 130 interrupted."""
    given = [*(sys.argv[1:] if argv is None else argv)]  # list is a command here
    parser = argparse.ArgumentParser(prog="sonde", description="See what happens inside a PyTorch network while it runs.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    asked = next((word for word in given if not word.startswith("-")), None)
    module = import_module(f"sonde.cli.{asked}") if asked in COMMANDS else None
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=module.__doc__ if module and name == asked else text)
        if module is not None and name == asked:
            module.arguments(command)
    options = parser.parse_args(given)
    if options.version:
        import sonde

        print(f"sonde {sonde.__version__}")
        return 0
    if module is None:
        parser.print_help()
        return 2
    try:
        return int(module.run(options))
    except SondeError as error:
        print(f"sonde {options.command}: {error}", file=sys.stderr)
        return int(getattr(module, "ERROR", 1))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
