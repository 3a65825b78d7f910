"""Paths that people give: resolved once, when they are given, and shown relative to the current folder."""

from __future__ import annotations

import os
from pathlib import Path

from sonde.errors import ArgumentError


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """Return *path* as an absolute path, with ``~`` as the home folder. Links are not followed.

    Every path argument of sonde goes through this function at once, so that a later ``os.chdir`` does not move the files.

    Raises:
        ArgumentError: *path* is no path, holds a character that no path can have, or names an unknown user's home.
    """
    try:
        given = Path(path).expanduser().absolute()
        os.fsencode(given)
    except (TypeError, RuntimeError, UnicodeError) as error:
        raise ArgumentError(f"{path!r} cannot be a path: {error}") from None
    if "\0" in str(given):
        raise ArgumentError(f"{path!r} cannot be a path: it holds a NUL")
    if not is_text(given):
        raise ArgumentError(f"{str(given)!r} cannot be a path for sonde: a name in it is not UTF-8, which DuckDB needs; rename it")
    return given


def is_text(path: Path) -> bool:
    """Return whether the names in *path* are UTF-8. A file system may hold others, which Python gives with surrogates."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def short_path(path: Path) -> str:
    """Return *path* as text for people: relative to the current folder if it lies there, otherwise whole."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere, or the current folder is gone
        return str(path)


def is_inside(folder: Path, file: Path) -> bool:
    """Return whether *file*, all links followed, is a file directly or deeper in *folder*: the check before a file is read."""
    try:
        return file.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a link to itself
        return False
