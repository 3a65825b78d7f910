"""Read a ``to=``: its targets, and which of them name folders."""

from __future__ import annotations

import os
from typing import Any, TypeGuard

from sonde.errors import ArgumentError
from sonde.suggest import nearest

NAMED = ("print", "matplotlib", "tensorboard", "wandb", "mlflow", "opentelemetry")
"""The sinks and visualizers that have a name. A folder of such a name is given as a path, as ``"./print"``."""


def with_visualizers(to: Any, visualizer: Any) -> Any:
    """Return *to* with the targets that ``visualizer=``, monitorch's word, adds to it: objects, or names among ``NAMED``."""
    if visualizer is None:
        return to
    added = targets_of(visualizer)
    for name in added:
        if isinstance(name, str) and name not in NAMED:
            known = ", ".join(map(repr, NAMED))
            raise ArgumentError(f"visualizer={name!r} is none of {known}. {nearest(name, NAMED, count=1)} A folder is given in to=")
    return [*([] if to is None else targets_of(to)), *added]


def targets_of(given: Any) -> list[Any]:
    """Return the targets in *given*, which is one of them or a list."""
    return list(given) if isinstance(given, list | tuple) else [given]


def names_folder(target: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether *target* is the folder of a run, and no memory, no name of a sink or visualizer, and no object."""
    return isinstance(target, str | os.PathLike) and target not in ("memory", *NAMED)


def folders_named(given: Any) -> list[str | os.PathLike[str]]:
    """Return the folders among the targets in *given*."""
    return [target for target in targets_of(given) if names_folder(target)]
