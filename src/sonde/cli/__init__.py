"""The ``sonde`` command. One file per command; none of them is imported before it runs, and torch only by those that need it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from sonde.errors import SondeError

__all__ = ["main"]

# Name, module in this package, help. A command module has ``arguments(parser)`` and ``run(options) -> int``.
_COMMANDS = {
    "demo": "train a small network on real data, look inside it, and find the layer that died",
    "doctor": "say which kernels are in use and why, whether the compiler works, and what is installed",
    "show": "print the table of a run, layer by layer",
    "env": "print the versions that a report of a defect should name",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 the command failed, 2 it was called wrongly."""
    parser = argparse.ArgumentParser(prog="sonde", description="See what happens inside a PyTorch network while it runs.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    modules = {}
    for name, text in _COMMANDS.items():
        module = modules[name] = import_module(f"sonde.cli.{name}")
        module.arguments(commands.add_parser(name, help=text, description=module.__doc__))
    options = parser.parse_args(argv)
    if options.version:
        import sonde

        print(f"sonde {sonde.__version__}")
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    try:
        return int(modules[options.command].run(options))
    except SondeError as error:
        print(f"sonde {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
