"""What is done about steps whose gradients or loss are not finite: keep them, run them again, say what was found, stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sonde.engine import raise_if_foreign
from sonde.errors import NonFiniteError
from sonde.inspector.sentinel.bad_step import BadStep
from sonde.inspector.sentinel.kept_step import KeptStep, count_text, step_of
from sonde.inspector.sentinel.replayed_step import Replayed, replayed, standing_out, write_report
from sonde.inspector.sentinel.spikes import Spike
from sonde.inspector.settings import OnNonFinite
from sonde.paths import short_path
from sonde.rules import RULES, Finding
from sonde.warn import warn_user
from sonde.words import number_text, short

_MOST = 3
"""So many steps of a run are kept and run again; of later ones it is only said that they were."""


class BadStepReports:
    """The reports of a training's bad steps: of those whose gradients or loss were not finite, and of spikes.

    Attributes:
        findings: one for each.

    Args:
        policy: ``"warn"``, ``"stop"`` or ``"wait"``; None: only spikes are reported.
        folder: returns the folder of the run; None if there is none on disk.
        flush: writes what was recorded so far.
        rank: of this process, in the names of folders; None if it is the only one.
    """

    def __init__(
        self, policy: OnNonFinite | None, folder: Callable[[], Path | None], flush: Callable[[], None], rank: int | None = None
    ) -> None:
        self.findings: list[Finding] = []
        self._policy = policy
        self._folder = folder
        self._flush = flush
        self._rank = rank
        self._spiked: tuple[str, int, Path | None] = "", -1, None  # the last step that was reported as a spike, and its folder

    def report(self, found: BadStep) -> None:
        """Keep the step *found*, run it again, and warn or stop.

        Raises:
            NonFiniteError: the policy is ``"stop"`` or ``"wait"``.
        """
        if found.spike is not None:
            self._report_spike(found, found.spike)
            return
        if self._policy is None:
            return
        what = _what(found)
        path, replay = None, None
        if sum(each.rule == "nonfinite" for each in self.findings) < _MOST:
            step = step_of(found)
            path = self._kept(step, "nonfinite")
            replay = replayed(step, found)
            if path is not None:
                self._try_to_write(path, lambda: write_report(path, replay))
        self.findings.append(_finding(found, what, replay))
        cause = "" if replay is None else f" {replay.summary}"
        kept = (
            ""
            if path is None
            else f" The step is kept in {short_path(path)}: sonde.replay({short_path(path)!r}, model) runs it again"
            f"{', on a whole model, with the parts of all ranks' if replay is not None and replay.joins else ''}."
        )
        message = f"step {found.step}{f' of {found.name}' if found.name else ''}: {what}.{cause}{kept}"
        if self._policy != "warn" and not (found.skipped or found.at_end):
            self._flush()
            raise NonFiniteError(f"{message} {_damage(found)}")
        warn_user(message)

    def _report_spike(self, found: BadStep, spike: Spike) -> None:
        """Keep the step *found*, and warn. It is not run again: each operation in it gave finite numbers."""
        larger = spike.value / spike.median
        largest = f"; the largest gradient is that of {spike.largest}" if spike.largest else ""
        prefix = f"{found.name}/" if found.name else ""
        message = (
            f"step {found.step}{f' of {found.name}' if found.name else ''}: the {spike.name} jumped to {short(spike.value)}, "
            f"{short(larger)} x its median, {spike.deviations:.0f} robust deviations above it{largest}"
        )
        *last, kept = self._spiked
        if last == [found.name, found.step]:  # its loss is pushed behind the optimizer's step, before which it was found and kept
            if kept is not None:
                report = kept / "report.txt"
                self._try_to_write(kept, lambda: _append(report, message))
            return
        self._spiked = found.name, found.step, None
        many = sum(each.rule == "spike" for each in self.findings)
        step = step_of(found) if many < _MOST else None
        path = None if step is None else self._kept(step, "spikes")
        if path is not None and step is not None:
            self._spiked = found.name, found.step, path
            large = standing_out(step.passes[-1]) if step.passes else []
            text = "\n".join([message, *large, *step.notes, *([step.lost] if step.lost else [])])
            self._try_to_write(path, lambda: (path / "report.txt").write_text(f"{text}\n", encoding="utf-8"))
        evidence = {"value": spike.value, "median": spike.median, "deviations": spike.deviations}
        site = f"{prefix}{spike.largest}:grad" if spike.largest else ""
        where = found.epoch, found.step
        advice = RULES["spike"].advice
        self.findings.append(
            Finding(
                "spike",
                message,
                site,
                *where,
                spike.value,
                first_step=found.step,
                evidence=evidence,
                advice=advice,
                quantity="loss" if spike.name == "loss" else "gradient",
            )
        )
        again = "" if path is None else f"sonde.replay({short_path(path)!r}, model) says what is large in it"
        warn_user(message if path is None else f"{message}. The step is kept in {short_path(path)}: {again}")

    def _kept(self, step: KeptStep, folder: str) -> Path | None:
        run = self._folder()
        if run is None:
            return None
        name = (
            f"step-{step.step:08d}"
            + (f"-{step.model}" if step.model else "")
            + ("" if self._rank is None else f"-rank{self._rank}")
        )
        path = run / folder / name
        number = 1
        while path.exists():
            number += 1
            path = path.with_name(f"{name}-{number}")
        return path if self._try_to_write(path, lambda: step.write(path)) else None

    @staticmethod
    def _try_to_write(path: Path, write: Callable[[], object]) -> bool:
        try:
            write()
        except Exception as error:
            raise_if_foreign(error)
            warn_user(f"the step could not be kept in {short_path(path)}: {str(error).rstrip('.')}. The training goes on")
            return False
        return True


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def _damage(found: BadStep) -> str:
    """Say of a step that stops the training what it has done to the parameters."""
    if found.late:
        return (
            f"The training stops {_steps(found.late)} later, as nothing waits for the accelerator: parameters have changed since. "
            'bad_steps="wait" stops before they do.'
        )
    if found.is_taken:
        return "The optimizer has stepped already: the loss was given after its step."
    if found.in_backward:
        return "The optimizer has not stepped: some parameters have changed in this backward pass already."
    return "The optimizer has not stepped: no parameter has changed."


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number:,} steps"


def _what(found: BadStep) -> str:
    if found.skipped:
        return f"the GradScaler has skipped {found.skipped} attempts in a row, whatever the scale"
    if found.gradients:
        return count_text(found.gradients, found.looked_at, is_sample=found.is_sample)
    return f"the loss is {number_text(found.loss)}, and the gradients are finite" if found.loss is not None else ""


def _finding(found: BadStep, what: str, replay: Replayed | None) -> Finding:
    kinds = list(found.gradients.values())
    evidence = {"nan": float(kinds.count("NaN")), "inf": float(kinds.count("inf")), "count": float(found.looked_at)}
    if found.loss is not None:
        evidence["loss"] = found.loss
    prefix = f"{found.name}/" if found.name else ""
    first = next(iter(found.gradients), "")
    site = (replay.site if replay is not None else "") or (f"{first}:grad" if first else "")
    cause = None if replay is None or replay.report is None else replay.report.cause
    why = "" if replay is None else replay.summary.rstrip(".")
    is_placed = replay is not None and bool(replay.report is not None or replay.site)
    message = f"step {found.step}: {why if is_placed else '. '.join(filter(None, (what, why)))}"
    return Finding(
        "nonfinite",
        message,
        f"{prefix}{site}" if site else "",
        found.epoch,
        found.step,
        float(len(kinds)) or 1.0,
        "bad",
        first_step=found.step,
        evidence=evidence,
        advice=(replay.advice if replay is not None else "") or RULES["nonfinite"].advice,
        quantity="" if cause is None or cause.may_be_size else "setup",
    )
