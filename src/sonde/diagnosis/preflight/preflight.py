"""``preflight``: check a model before its training; the answer has a verdict of each check, and the losses of one batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from sonde.answer import Chart, Check, Line, ModelChecks, Part, Verdict, said_of
from sonde.checked import checked
from sonde.diagnosis.preflight import (
    label_checks,
    layer_checks,
    loss_checks,
    parameter_checks,
    sample_checks,
    target_checks,
    training_checks,
)
from sonde.diagnosis.preflight.subject import Subject, UnjudgedError, check_count
from sonde.engine import check_model, regions
from sonde.errors import ArgumentError, PreflightError
from sonde.suggest import nearest
from sonde.view import progress

_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(repr=False)
class Preflight(ModelChecks):
    """The checks on a model before its training; printed as a table.

    >>> import sonde, torch
    >>> found = sonde.preflight(torch.nn.Linear(2, 1), torch.ones(4, 2), torch.sum, checks=["zeroed_inputs"])
    >>> [check.name for check in found.checks], found.raise_if_bad() is found
    (['zeroed_inputs'], True)

    Attributes:
        model: class of the model.
        checks: in the order in which they were made.
        curve: the losses of the training on the one batch, step by step; empty if there was none.
        seconds: how long the checks took.
        notes: what else the reader must know.
    """

    model: str
    checks: list[Check]
    curve: list[float] = field(default_factory=list)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    _source = "sonde.preflight"
    _about = "Preflight of"
    _headlines: ClassVar[Mapping[Verdict, str]] = {
        "bad": "not ready to be trained",
        "warn": "look at the warnings first",
        "note": "nothing is wrong",
        "ok": "nothing is wrong",
        "unknown": "no check could be made",
    }

    def raise_if_bad(self) -> Preflight:
        """Return this answer if no finding is ``bad``.

        Raises:
            PreflightError: one is; the message holds all bad findings.
        """
        bad = [each for each in self.findings if each.severity == "bad"]
        if bad:
            lines = [f"{len(bad)} checks of {self.model} are bad:" if len(bad) > 1 else f"a check of {self.model} is bad:"]
            raise PreflightError("\n".join([*lines, *(f"  {each.rule}: {said_of(each)}" for each in bad)]))
        return self

    def _content(self) -> dict[str, Any]:
        return {**super()._content(), "curve": self.curve}

    def _words(self, check: Check) -> str:
        return f"{check.words} {sparkline(self.curve)}".rstrip() if check.name == "overfit" else check.words

    def _more_parts(self) -> list[Part]:
        if len(self.curve) < 2:
            return []
        log = min(self.curve) > 0 and max(self.curve) > 4 * min(self.curve)
        chart = Chart(range(len(self.curve)), [Line("loss", self.curve)], "step", "loss", log=log)
        remark = "A model that can learn at all brings the loss of one batch near zero."
        return [Part("One batch, learnt again and again", chart, remark)]


CHECKS: dict[str, Callable[[Subject], Check]] = {
    each.__name__: each
    for each in (
        loss_checks.runs,
        sample_checks.mode,
        label_checks.labels,
        loss_checks.loss_shape,
        loss_checks.loss_input,
        loss_checks.initial_loss,
        layer_checks.depth,
        layer_checks.alive,
        layer_checks.dtype,
        parameter_checks.gradients,
        parameter_checks.optimizer,
        parameter_checks.first_update,
        sample_checks.deterministic,
        sample_checks.input_used,
        sample_checks.samples_apart,
        target_checks.future_unseen,
        target_checks.targets_apart,
        target_checks.targets_used,
        training_checks.overfit,
        training_checks.zeroed_inputs,
        training_checks.learning_rate,
    )
}
"""Every check by its name, in the order in which they run."""


@checked("model", "loss_fn", "optimizer")
def preflight(
    model: nn.Module,
    batch: Any,
    loss_fn: Callable[[Any], Any] | None = None,
    optimizer: Any = None,
    *,
    checks: Collection[str] | None = None,
    skip: Collection[str] = (),
    steps: int = 100,
    seconds: float = 30.0,
    verbose: bool = True,
) -> Preflight:
    """Check a model before its training, with its batch, loss and optimizer: a table with a verdict of each check.

    A run is asked by :func:`sonde.check`, and the instrument by :func:`sonde.doctor`.

    >>> import sonde, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(-1))
    >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
    >>> found = sonde.preflight(model, x, lambda p: torch.nn.functional.cross_entropy(p, y), checks=["loss_input"])
    >>> found["loss_input"].verdict
    'bad'

    Each check runs fresh copies, from the present random state; the model, its gradients and buffers, the batch, the optimizer
    and the random state stay as they are. The model runs in its present mode; compiled modules run as plain Python. A check
    that cannot be made says why.

    Args:
        model: any module.
        batch: the arguments of the call: a tuple or list holds the positional arguments, a dict or another mapping the keyword
            arguments, and anything else is its only argument.
        loss_fn: from the model's output to a scalar. Without it, the output's own ``loss`` (an attribute or a key) is taken;
            without either, checks that need a loss are not made.
        optimizer: the optimizer of the model, or a function from a list of parameters to one. Without it, one batch is learnt
            with Adam, and the checks of the optimizer are not made.
        checks: the names of the checks to make; the default is all of them.
        skip: the names of checks to leave out.
        steps: of the training on the one batch.
        seconds: after this time no further training step is taken; a check that has too few steps is not made. Of a model that
            several ranks hold (tensor parallel) all steps are taken, since the ranks have no clock in common.
        verbose: show the progress.

    Returns:
        The checks, each with a verdict: ``bad``, ``warn``, ``note``, ``ok``, or ``unknown`` where it could not be made; and with
        findings, each with its evidence and an advice. ``raise_if_bad()`` is for tests and scripts.

    Raises:
        ModelError: *model* is no module.
        ArgumentError: an argument cannot be used, the model has no numbers (device ``meta``, or lazy parameters), or the loss is
            no scalar.
    """
    check_model(model)
    names = _names(checks, skip)
    check_count("steps", steps, "the number of training steps on the batch")
    began = time.monotonic()
    subject = Subject(model, batch, loss_fn, optimizer, steps, seconds)
    if regions(model):
        subject.notes.append("compiled modules ran as plain Python")
    made = []
    with progress("preflight", verbose=verbose) as show:
        for place, name in enumerate(names, 1):
            show(f"{name}, {place} of {len(names)}")
            made.append(_check(name, subject))
    return Preflight(subject.name, made, subject.curve, time.monotonic() - began, subject.notes)


def _check(name: str, subject: Subject) -> Check:
    try:
        return CHECKS[name](subject)
    except UnjudgedError as reason:
        return Check(name, str(reason), judged=False)
    except ArgumentError:
        raise
    except Exception as error:  # of the model, in a copy that a check has changed
        text = str(error).strip().splitlines()
        return Check(name, f"the model raised {type(error).__name__}: {text[0] if text else ''}", judged=False)


def _names(checks: Collection[str] | None, skip: Collection[str]) -> list[str]:
    for argument, given in (("checks", checks or ()), ("skip", skip)):
        if isinstance(given, str):
            raise ArgumentError(f"{argument}={given!r}: give a list of names, [{given!r}]")
        for name in given:
            if name not in CHECKS:
                raise ArgumentError(f"{argument}= names {name!r}, which is no check. {nearest(str(name), CHECKS)}")
    return [name for name in CHECKS if (checks is None or name in checks) and name not in skip]


def sparkline(curve: list[float], width: int = 12) -> str:
    """Return the curve in *width* characters, the largest finite value as a full block; ``""`` of fewer than two values."""
    finite = [each for each in curve if math.isfinite(each)]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    taken = [finite[round(place * (len(finite) - 1) / (width - 1))] for place in range(width)]
    return "".join(_BLOCKS[round((each - low) / (high - low) * (len(_BLOCKS) - 1)) if high > low else 0] for each in taken)
