"""Run the ``sonde`` command. A subcommand is one file here and one line in ``COMMANDS``; only the one that is run is imported.

A file has a docstring (its help), ``EXAMPLES``, ``arguments(parser)``, which adds its options, and ``run(options)``, which returns
the exit code; ``EXIT`` says what the exit codes mean where 0 is not all. ``given.py``, ``run_options.py`` and ``completers.py``
are no commands: they hold what several commands are given.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from textwrap import fill, indent
from types import ModuleType

from sonde.errors import SondeError
from sonde.suggest import nearest

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "demo": "train a small network on real data, look inside it, and find the layer that died",
    "list": "list the runs below a folder: state, steps, findings, size on disk",
    "show": "print the table of a run, layer by layer",
    "ui": "open a page that follows all runs below a folder",
    "report": "write the pictures of a run to one HTML file",
    "plot": "draw pictures of a run to files",
    "graph": "write the execution graph of a run, coloured by a number",
    "info": "say what a run holds: settings, environment, families, rows, bytes, files",
    "export": "write the rows of a run to CSV, Parquet or TensorBoard",
    "check": "apply the rules to a run, and say what is wrong, where, and since when",
    "compare": "find the first place where two models, live or saved, or two runs part",
    "doctor": "say what observing does to a model; or what is installed here, and whether it works",
    "preflight": "check a model before its training",
    "prune": "take rows out of old runs: keep one step of many, or drop families",
    "completion": "print the lines that teach a shell to complete this command",
    "env": "print the versions that a report of a defect should name",
}
"""The name of each file in this folder that is a subcommand, and one line of help."""

_EXIT = "0 done, 2 the command could not be done"
_WIDEST = 100
_AFTER = """run "sonde COMMAND --help" for examples and options

exit code: 0 done, 1 something was found (check, compare, doctor, preflight), 2 the command could not be done, 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code.

    0: done. 1: done, and something was found (``check``, ``compare``, ``doctor``, ``preflight``). 2: the command could not be done.
    130: interrupted. 141: the reader of the output, as ``head``, has ended.
    """
    given = [*(sys.argv[1:] if argv is None else argv)]  # list is a command here
    asked = next((word for word in given if not word.startswith("-")), None)
    try:
        try:
            with _plain_warnings(asked):
                return _run(given, asked)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # nothing is printed at exit, neither what is left nor an error about it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _run(given: Sequence[str], asked: str | None) -> int:
    """Run the command *asked*; an error of the user's is one line."""
    completes = "_ARGCOMPLETE" in os.environ  # a shell has started this process to complete a line
    if completes:
        from sonde.cli.completers import command_on_line, complete

        asked = command_on_line(COMMANDS)
    module = import_module(f"sonde.cli.{asked}") if asked in COMMANDS else None
    parser, command = _parser(asked, module)
    if completes:
        complete(parser)
    options, others = parser.parse_known_args(given)
    if others:
        command.error(_unknown(others, command))
    if options.version:
        import sonde

        print(f"sonde {sonde.__version__}")
        return 0
    if module is None:
        parser.print_help()
        return 2
    with suppress(AttributeError):  # where standard output is something else
        if sys.stdout.encoding.lower() not in ("utf-8", "utf8"):
            sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a text file
    try:
        return int(module.run(options))
    except BrokenPipeError:
        raise
    except SondeError as error:
        problem = str(error)
    except OSError as error:
        problem = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else f"{type(error).__name__}: {error}"
    print(f"sonde {asked}: {problem}", file=sys.stderr)
    return 2


def _parser(asked: str | None, module: ModuleType | None) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Return the parser, which knows the options of the command *asked* alone, and the parser of that command."""
    about = "See what happens inside a PyTorch network while it runs."
    parser = argparse.ArgumentParser(prog="sonde", description=about, epilog=_AFTER, formatter_class=_Help)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    of_command = parser
    for name, text in COMMANDS.items():
        is_asked = module is not None and name == asked
        command = commands.add_parser(name, help=text, formatter_class=_Help, description=module.__doc__ if is_asked else text)
        if module is not None and is_asked:
            command.epilog = _epilog(module)
            module.arguments(command)
            of_command = command
    if asked is not None and module is None:
        parser.error(f"there is no command {asked!r}. {nearest(asked, COMMANDS)}")
    return parser, of_command


def _unknown(others: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Return the words about arguments that a command does not take: of an option with the nearest that the command has."""
    option = next((each.partition("=")[0] for each in others if each.startswith("-")), None)
    if option is None:
        return f"{' '.join(others)!r} is one argument too many; {parser.prog} --help lists the arguments"
    known = [each for each in parser._option_string_actions if each.startswith("--")]
    return f"there is no option {option!r}. {nearest(option, known)}"


def _epilog(module: ModuleType) -> str:
    """Return the end of the help of a command: its examples, and what its exit codes mean."""
    examples = getattr(module, "EXAMPLES", "").strip()
    told = f"examples:\n{indent(examples, '  ')}\n\n" if examples else ""
    return f"{told}exit code: {getattr(module, 'EXIT', _EXIT)}"


class _Help(argparse.HelpFormatter):
    """Fills each paragraph of a text to the width of the terminal; indented lines, as examples, stay as they are."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]  # those of argparse
        self._width = min(self._width, _WIDEST)

    def add_argument(self, action: argparse.Action) -> None:
        """Add *action*, with room for the indentation of commands."""
        super().add_argument(action)
        names = [len(each.metavar or each.dest) for each in self._iter_indented_subactions(action)]
        self._action_max_length = max([self._action_max_length, *(length + 2 * self._indent_increment for length in names)])

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = [
            paragraph.rstrip() if "\n  " in paragraph or paragraph.startswith("  ") else fill(" ".join(paragraph.split()), width)
            for paragraph in text.replace("``", "").strip("\n").split("\n\n")
        ]
        return "\n\n".join(paragraphs)


@contextmanager
def _plain_warnings(command: str | None) -> Iterator[None]:
    """Print warnings as one line each, without the line of code that they were given at: the reader has not written it.

    Nor has the reader written ``include=``, which is ``--layers`` here.
    """
    before, begin = warnings.formatwarning, f"sonde{f' {command}' if command else ''}: "
    warnings.formatwarning = lambda message, *_: begin + re.sub(r"\binclude=r?(?=')", "--layers ", str(message)) + "\n"
    try:
        yield
    finally:
        warnings.formatwarning = before
