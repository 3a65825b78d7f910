"""Complete runs and functions of files where a shell asks for them, and the command line as a whole. argcomplete does the rest."""

from __future__ import annotations

import argparse
import ast
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

RUNS = "runs"


def command_on_line(commands: Collection[str]) -> str | None:
    """Return the command on the line that the shell completes: one of *commands*, or None as long as it is not written out."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or "0")]
    return next((word for word in line.split()[1:] if word in commands and f"{word} " in line), None)


def complete(parser: argparse.ArgumentParser) -> None:
    """Write the completions of the line that a shell gives, and end the process. Without argcomplete write none."""
    try:
        import argcomplete
    except ImportError:
        raise SystemExit(1) from None
    argcomplete.autocomplete(parser)


def completes(action: argparse.Action, completer: Callable[..., Iterator[str]]) -> None:
    """Let *completer*, a function of the text so far, complete the argument *action*."""
    action.completer = lambda prefix, **_: list(completer(prefix))  # type: ignore[attr-defined]  # where argcomplete looks


def complete_runs(prefix: str) -> Iterator[str]:
    """Yield the names of runs below ``runs``, and folders."""
    from sonde.run import runs_below

    top = Path(RUNS)
    if top.is_dir() and not prefix.startswith((".", "/", "~")):
        yield from (name for path in runs_below(top) if (name := path.relative_to(top).as_posix()).startswith(prefix))
    yield from _paths(prefix, "*/")


def complete_folders(prefix: str) -> Iterator[str]:
    """Yield folders."""
    return _paths(prefix, "*/")


def complete_functions(prefix: str) -> Iterator[str]:
    """Yield Python files and folders; after the colon the public functions of the file or module, which is not run."""
    module, colon, _ = prefix.rpartition(":")
    if not colon:
        yield from (f"{path}:" for path in _paths(prefix, "*.py"))
        yield from _paths(prefix, "*/")
        return
    file = Path(module if module.endswith(".py") else f"{module.replace('.', '/')}.py")
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return
    for each in body:
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
            yield f"{module}:{each.name}"


def complete_sides(prefix: str) -> Iterator[str]:
    """Yield what ``compare`` takes: runs, folders, and functions of files."""
    yield from dict.fromkeys([*complete_runs(prefix), *complete_functions(prefix)])


def _paths(prefix: str, pattern: str) -> Iterator[str]:
    """Yield the paths that match *pattern* in the folder that *prefix* names; of a folder with a slash at the end."""
    above, slash, begun = prefix.rpartition("/")
    folder = Path(above + slash).expanduser()
    for found in sorted(folder.glob(pattern)) if folder.is_dir() else []:
        if found.name.startswith(begun) and (begun or not found.name.startswith((".", "__"))):
            yield f"{above}{slash}{found.name}{'/' if found.is_dir() else ''}"
