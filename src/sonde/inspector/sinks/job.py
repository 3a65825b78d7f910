"""The job that ``torchrun`` starts, and starts again after a failure: all its attempts write one run."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sonde.inspector.sinks.to_argument import names_folder, targets_of
from sonde.paths import absolute_path
from sonde.run import Existing, RunFolder

_ROOT = "runs"


def this_job() -> str:
    """Return what names the job of this process, in all its attempts; ``""`` where ``torchrun`` has not started the process."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return "" if name is None else f"{name} of process {os.getppid()} on {socket.gethostname()}"


def continued(to: Any, exists: Existing) -> tuple[Any, Existing]:
    """Return the folder of the run that an earlier attempt of this job has begun, and ``"resume"``; else *to* and *exists*."""
    job = this_job()
    if not job or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return to, exists
    targets = targets_of(to)
    for place, target in enumerate(targets):
        if target is None and len(targets) == 1:
            found = _newest_of(job, _folders(absolute_path(_ROOT)))
        elif names_folder(target):
            path = absolute_path(target)
            beside = _folders(path.parent) if exists == "unique" else ()
            found = _newest_of(job, [path, *(each for each in beside if each.name.startswith(f"{path.name}-"))])
        else:
            continue
        if found is not None:
            targets[place] = found
            return (targets if isinstance(to, list | tuple) else found), "resume"
    return to, exists


def _folders(root: Path) -> list[Path]:
    return [each for each in root.iterdir() if each.is_dir()] if root.is_dir() else []


def _newest_of(job: str, folders: Iterable[Path]) -> Path | None:
    """Return the folder of *folders* with the run of *job* that was begun last."""
    begun: dict[float, Path] = {}
    for folder in folders:
        description = RunFolder(folder).description
        if description is not None and description.about.get("job") == job and description.attempts:
            begun[description.attempts[-1].started] = folder
    return begun[max(begun)] if begun else None
