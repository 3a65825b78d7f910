"""The three lines that an inspector says at the end: where the run is, what it found, what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sonde.inspector.pipeline.findings import Finding

if TYPE_CHECKING:
    from sonde.inspector.training import WatchedTraining

__all__ = ["last_lines", "said_cost"]

_SHOWN = 3


def last_lines(recording: WatchedTraining, findings: Sequence[Finding]) -> list[str]:
    """What is printed."""
    steps = sum(watched.steps for watched in recording.watched)
    logged = sum(watched.logged for watched in recording.watched)
    where = _shown(recording.targets.path) if recording.targets.path is not None else "not on disk"
    lost = f" · {recording.lost_steps:,} of these lost" if recording.lost_steps else ""
    lost += f" · {recording.lost:,} rows lost" if recording.lost else ""
    return [
        f"run {where} · {logged:,} of {steps:,} steps logged{lost}",
        _found(findings),
        f"overhead {said_cost(recording)}",
    ]


def said_cost(recording: WatchedTraining) -> str:
    """The overhead in words."""
    share = recording.overhead()
    if share is not None:
        return f"{share:.1%}"
    if all(0 < watched.steps == watched.logged for watched in recording.watched):
        return "not measured: every step is logged, so there is none to compare with"
    return "not measured: too few steps"


def _found(findings: Sequence[Finding]) -> str:
    if not findings:
        return "no findings"
    shown = " · ".join(finding.message for finding in findings[:_SHOWN])
    rest = f" · {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
    return f"{len(findings)} finding{'s' if len(findings) > 1 else ''}: {shown}{rest}"


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
