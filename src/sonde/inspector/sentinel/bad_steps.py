"""What is done about steps whose gradients are not finite: keep them, run them again, say what was found, stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sonde.errors import NonFiniteError
from sonde.inspector.sentinel.kept_step import KeptStep, count_text, step_of
from sonde.inspector.sentinel.replayed_step import Replayed, replayed, write_report
from sonde.inspector.sentinel.sentinel import BadStep, OnNonFinite
from sonde.paths import short_path
from sonde.rules import RULES, Finding
from sonde.warn import warn_user

__all__ = ["BadSteps"]

_MOST = 3
"""So many steps of a run are kept and run again; of later ones it is only said that they were."""


class BadSteps:
    """The steps of a training whose gradients were not finite.

    Attributes:
        findings: one for each.

    Args:
        policy: ``"warn"`` or ``"stop"``.
        folder: returns the folder of the run; None if there is none on disk.
        flush: writes what was recorded so far.
        rank: of this process, in the names of folders; None if it is the only one.
    """

    def __init__(
        self, policy: OnNonFinite, folder: Callable[[], Path | None], flush: Callable[[], None], rank: int | None = None
    ) -> None:
        self.findings: list[Finding] = []
        self._policy = policy
        self._folder = folder
        self._flush = flush
        self._rank = rank

    def report(self, found: BadStep) -> None:
        """Keep the step *found*, run it again, and warn or stop.

        Raises:
            NonFiniteError: the policy is ``"stop"``.
        """
        what = _what(found)
        path, replay = None, None
        if len(self.findings) < _MOST:
            step = step_of(found.model, found.name, (found.epoch, found.step), found.buffers, found.passes, found.gradients)
            path = self._kept(step)
            replay = replayed(step, found.model, in_backward=found.in_backward)
            if path is not None:
                write_report(path, replay)
        self.findings.append(_finding(found, what, replay))
        cause = "" if replay is None else f" {replay.summary}"
        kept = (
            ""
            if path is None
            else f" The step is kept in {short_path(path)}: sonde.replay({short_path(path)!r}, model) runs it again."
        )
        message = f"step {found.step}{f' of {found.name}' if found.name else ''}: {what}.{cause}{kept}"
        if self._policy == "stop" and not found.skipped:
            self._flush()
            raise NonFiniteError(f"{message} The optimizer has not stepped: {_damage(found)}.")
        warn_user(message)

    def _kept(self, step: KeptStep) -> Path | None:
        run = self._folder()
        if run is None:
            return None
        name = (
            f"step-{step.step:08d}"
            + (f"-{step.model}" if step.model else "")
            + ("" if self._rank is None else f"-rank{self._rank}")
        )
        path = run / "nonfinite" / name
        number = 1
        while path.exists():
            number += 1
            path = path.with_name(f"{name}-{number}")
        try:
            step.write(path)
        except OSError as error:
            warn_user(f"the step could not be kept in {path}: {error}. The training goes on")
            return None
        return path


def _damage(found: BadStep) -> str:
    return "some parameters have changed in this backward pass already" if found.in_backward else "no parameter has changed"


def _what(found: BadStep) -> str:
    if found.skipped:
        return f"the GradScaler has skipped {found.skipped} attempts in a row, whatever the scale"
    return count_text(found.gradients, len(found.gradients) + len(found.finite))


def _finding(found: BadStep, what: str, replay: Replayed | None) -> Finding:
    nan, inf, count = (float(sum(numbers[place] for numbers in found.gradients.values())) for place in range(3))
    prefix = f"{found.name}/" if found.name else ""
    first = next(iter(found.gradients), "")
    site = (replay.site if replay is not None else "") or (f"{first}:grad" if first else "")
    message = f"step {found.step}: {replay.summary.rstrip('.') if replay is not None and replay.summary else what}"
    return Finding(
        "nonfinite",
        message,
        f"{prefix}{site}" if site else "",
        found.epoch,
        found.step,
        nan + inf,
        "bad",
        first_step=found.step,
        evidence={"nan": nan, "inf": inf, "count": count},
        advice=(replay.advice if replay is not None else "") or RULES["nonfinite"].advice,
    )
