"""Load what a command is given: a function that returns a model, a batch, a loss and an optimizer."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sonde.answer import standard_output, write_page
from sonde.cli.completers import complete_functions, completes
from sonde.errors import ArgumentError, SondeError
from sonde.run import line_of
from sonde.suggest import nearest

if TYPE_CHECKING:
    from sonde.answer import Answer

FUNCTION = """
the function, called without arguments, returns (model, batch), or with a loss
function and an optimizer (model, batch, loss_fn, optimizer):

  def setup():
      model = Net()
      x, y = next(iter(loader))
      loss_fn = lambda output: cross_entropy(output, y)
      return model, x, loss_fn, AdamW(model.parameters(), lr=3e-4)
"""
"""The end of the examples of a command that is given such a function."""

VERDICT = "0 ok, 1 a finding is warn or bad, or nothing could be judged, 2 the command could not be done, or the model not be run"
"""The exit codes of such a command."""

_PIPED = 120  # characters of a line in a pipe: the words of a verdict are prose

Made = TypeVar("Made")


def expect_model(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add to *parser* the function that the command is given, and the form of the output."""
    about = "a function that returns the model, a batch, a loss function and an optimizer; file.py:FUNCTION too"
    model = parser.add_argument("model", metavar="MODULE:FUNCTION", nargs="?" if optional else None, help=about)
    completes(model, complete_functions)
    parser.add_argument("--json", action="store_true", help="print JSON, with the numbers of each finding")
    expect_page(parser)


def expect_page(parser: argparse.ArgumentParser) -> None:
    """Add the page that the result is written to as well; :func:`show` writes it."""
    parser.add_argument(
        "-o", "--output", "--html", dest="html", metavar="FILE", help="write the result to this page too, as page.html"
    )


def show(found: Answer, options: argparse.Namespace) -> None:
    """Print what was found, as the options ask."""
    if options.json:
        print(found.to_json())
    else:
        standard_output(piped=_PIPED).print(found)
    if options.html:
        write_page(found.to_html(), options.html, "the result")


def load(text: str, *, may_be_model: bool = False) -> tuple[Any, ...]:
    """Return what the function *text*, ``module:function`` or ``file.py:function``, returns: model, batch, loss, optimizer.

    The last two may be missing; where the function *may_be_model*, it may return a model alone, which comes in a tuple of one.

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
    if may_be_model and not isinstance(made, tuple) and callable(getattr(made, "named_modules", None)):
        return (made,)
    if not isinstance(made, tuple) or not 2 <= len(made) <= 4:
        alone = "the model, " if may_be_model else ""
        shown = f"a tuple of {len(made)}" if isinstance(made, tuple) else f"a {type(made).__name__}"
        raise ArgumentError(f"{text} returned {shown}: return {alone}(model, batch), or (model, batch, loss_fn, optimizer)")
    return made


def _from_file(name: str) -> Any:
    path = Path(name).resolve()
    if not path.is_file():
        raise ArgumentError(f"there is no file {name}")
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):  # of a second function: its classes are the same
        return known
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:  # else a second function would find half a module
        del sys.modules[path.stem]
        raise
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
        where = f" ({line})" if (line := line_of(error)) else ""
        first = next(iter(str(error).strip().splitlines()), "")
        raise ArgumentError(f"{what} raised {type(error).__name__}: {first}{where}") from None
