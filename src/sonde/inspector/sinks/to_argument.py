"""Read a ``to=``: its targets, and which of them name folders."""

from __future__ import annotations

import os
from typing import Any, TypeGuard

__all__ = ["folders_named", "names_folder", "targets_of"]


def targets_of(given: Any) -> list[Any]:
    """Return the targets in *given*, which is one of them or a list."""
    return list(given) if isinstance(given, list | tuple) else [given]


def names_folder(target: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether *target* is the folder of a run, and neither the memory nor an object."""
    return isinstance(target, str | os.PathLike) and target != "memory"


def folders_named(given: Any) -> list[str | os.PathLike[str]]:
    """Return the folders among the targets in *given*."""
    return [target for target in targets_of(given) if names_folder(target)]
