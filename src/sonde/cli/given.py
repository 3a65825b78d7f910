"""Load what a command is given: a function that returns a model, a batch, a loss and an optimizer."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sonde.errors import ArgumentError, SondeError
from sonde.suggest import nearest
from sonde.view.table import standard_output

__all__ = ["attempt", "expect_model", "load", "show"]

_EXAMPLES = """examples:
  sonde {command} train.py:setup          the function setup in the file train.py
  sonde {command} mypackage.train:setup   the function setup in a module

  where the function, called without arguments, returns (model, batch), or with a loss function and an optimizer
  (model, batch, loss_fn, optimizer):

  def setup():
      model = Net()
      x, y = next(iter(loader))
      return model, x, lambda output: cross_entropy(output, y), AdamW(model.parameters(), lr=3e-4)

exit code: 0 nothing bad was found, 1 something was, 2 the command was used wrongly, or the model could not be run"""
"""The end of the help of a command that is given such a function."""

Made = TypeVar("Made")


class Shown(Protocol):
    """A result that a command prints."""

    def to_json(self) -> str:
        """Return the result as JSON."""

    def to_html(self) -> str:
        """Return the result as HTML."""


def expect_model(parser: argparse.ArgumentParser, command: str, *, optional: bool = False) -> None:
    """Add to *parser* the function that the *command* is given, the form of the output, and examples."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES.format(command=command)
    about = "a function that returns the model, a batch, a loss function and an optimizer; file.py:FUNCTION too"
    parser.add_argument("model", metavar="MODULE:FUNCTION", nargs="?" if optional else None, help=about)
    parser.add_argument("--json", action="store_true", help="print JSON, with the numbers of each finding")
    parser.add_argument("--html", metavar="FILE", help="write the result to this page too")


def show(found: Shown, options: argparse.Namespace) -> None:
    """Print what was found, as the options ask."""
    if options.json:
        print(found.to_json())
    else:
        standard_output().print(found)
    if options.html:
        Path(options.html).write_text(found.to_html(), encoding="utf-8")


def load(text: str) -> tuple[Any, ...]:
    """Return what the function *text*, ``module:function`` or ``file.py:function``, returns: model, batch, loss, optimizer.

    The last two may be missing.

    Raises:
        ArgumentError: there is no such function, it raises, or it returns something else.
    """
    module_name, sign, name = text.rpartition(":")
    if not (module_name and sign and name):
        raise ArgumentError(f"{text!r}: write the module or file, a colon, and the function, as train.py:setup")
    is_file = module_name.endswith(".py") or "/" in module_name
    module = attempt(f"importing {module_name}", lambda: _from_file(module_name) if is_file else _imported(module_name))
    function = getattr(module, name, None)
    if not callable(function):
        known = [each for each, held in vars(module).items() if callable(held) and not each.startswith("_")]
        raise ArgumentError(f"{module_name} has no function {name!r}. {nearest(name, known)}")
    made = attempt(f"{name}()", function)
    if not isinstance(made, tuple) or not 2 <= len(made) <= 4:
        shown = f"a tuple of {len(made)}" if isinstance(made, tuple) else f"a {type(made).__name__}"
        raise ArgumentError(f"{text} returned {shown}: return (model, batch), or (model, batch, loss_fn, optimizer)")
    return made


def _from_file(name: str) -> Any:
    path = Path(name).resolve()
    if not path.is_file():
        raise ArgumentError(f"there is no file {name}")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _imported(name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ArgumentError(
                f"there is no module {name} here: run the command in the folder that holds it, or give a file, as train.py:setup"
            ) from None
        raise


def attempt(what: str, function: Callable[[], Made]) -> Made:
    """Return what *function*, code of the user, returns.

    Raises:
        ArgumentError: it raises an exception; the message says *what* raised, the exception, and the line of the file.
    """
    try:
        return function()
    except SondeError:
        raise
    except Exception as error:
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
        where = f" ({Path(lines[-1].filename).name}:{lines[-1].lineno}: {lines[-1].line})" if lines else ""
        first = next(iter(str(error).strip().splitlines()), "")
        raise ArgumentError(f"{what} raised {type(error).__name__}: {first}{where}") from None


def _is_users(file: str) -> bool:
    libraries = [*sysconfig.get_paths().values(), str(Path(__file__).parents[1])]
    return not file.startswith(("<", *libraries))
