"""``doctor``: say what observing does to a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from sonde.checkup.checkup import Checkup
from sonde.checkup.examination import Examination
from sonde.checkup.judgements import QUESTIONS, numbers_of
from sonde.diagnosis.preflight.preflight import check_arguments, check_count, check_numbers, progress
from sonde.diagnosis.preflight.subject import Subject
from sonde.diagnosis.preflight.verdicts import Verdict
from sonde.engine import Where, check_model
from sonde.errors import ArgumentError
from sonde.inspector import AnyLens, Lens, LossMetrics
from sonde.preprocessor import AbstractPreprocessor

__all__ = ["doctor"]


def doctor(
    model: nn.Module,
    batch: Any,
    loss_fn: Callable[[Any], Any] | None = None,
    optimizer: Any = None,
    *,
    lenses: Iterable[AnyLens] | AnyLens | None = None,
    include: Where = None,
    exclude: Where = None,
    every: int = 10,
    compile: bool | None = None,  # noqa: A002  # as the function of torch is called
    seconds: float = 20.0,
    verbose: bool = True,
) -> Checkup:
    """Say what ``watch`` does to *model*: whether anything changes, what is seen, and what it costs.

    >>> import sonde, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    >>> found = sonde.doctor(model, torch.randn(8, 4), seconds=0.1)
    >>> found["unchanged"].result, found.ok
    ('ok', True)

    Copies run without an observer and with one, from the present random state; the model, its gradients and buffers, the batch, the
    optimizer and the random state stay as they are. A model in training mode makes training steps; one in evaluation mode runs
    its forward without gradients, under ``watch(evaluation=True)``. A wrapper of DDP is left out.

    Args:
        model: any module.
        batch: the arguments of the call: a tuple or list holds the positional arguments, a dict or another mapping the keyword
            arguments, and anything else is its only argument.
        loss_fn: from the model's output to a scalar. Without it, the output's own ``loss`` (an attribute or a key) is taken;
            without either, the mean square of the output.
        optimizer: the optimizer of the model, or a function from a list of parameters to one; SGD by default.
        lenses, include, exclude: what is looked at, as ``watch`` takes them.
        every: which steps a training would log: every n-th. For the share of time that observing would take.
        compile: count graphs, graph breaks and recompilations, on copies that are compiled anew; None: where the model, or a
            part of it, is compiled. Torch keeps what was compiled until ``torch.compiler.reset()``.
        seconds: the time that timing may take.
        verbose: show the progress.

    Returns:
        A verdict on each question, ``ok``, ``note``, ``warn``, ``bad`` or ``skipped``, with findings and their numbers; and what
        each lens costs at each port.

    Raises:
        ModelError: *model* is no module.
        ArgumentError: an argument cannot be used, the model has no numbers (device ``meta``, or lazy parameters), or the loss is
            no scalar.
        Exception: what the model raises without an observer.
    """
    check_model(model)
    check_arguments(loss_fn, optimizer, seconds)
    check_numbers(model)
    check_count("every", every, "the number of steps from one logged step to the next")
    if compile not in (None, True, False):
        raise ArgumentError(f"compile={compile!r}: give True, False, or None for models that are compiled")
    if _rank():
        raise ArgumentError(
            f"this is rank {_rank()}: call doctor on rank 0 alone, which runs a copy and communicates with no other"
        )
    began = time.monotonic()
    subject = Subject(model, batch, loss_fn, optimizer, 1, seconds)
    single = isinstance(lenses, Lens | LossMetrics | AbstractPreprocessor)
    chosen: Any = (lenses,) if single else None if lenses is None else tuple(lenses)  # type: ignore[arg-type]
    given = {"include": include, "exclude": exclude}
    verdicts = []
    with progress("doctor", len(QUESTIONS), verbose) as advance:
        examined = Examination(subject, chosen, every, seconds, compile, given)
        for name, check in QUESTIONS.items():
            advance(name)
            skipped = Verdict(name, "the model raises under watch", skipped=True)
            verdicts.append(check(examined) if examined.raised is None else skipped)
    known = examined.raised is None
    costs, numbers = (examined.costs, numbers_of(examined)) if known else ([], {})
    return Checkup(subject.name, verdicts, costs, numbers, time.monotonic() - began, [*examined.notes, *subject.notes])


def _rank() -> int:
    """Return the rank of this process; 0 in a training of one."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
