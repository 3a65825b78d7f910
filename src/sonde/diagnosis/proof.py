"""Prove an advice: try it in one step of the user's own model, on a copy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from sonde.diagnosis.attempt import Attempt, attempted, run_with_loss, words_of
from sonde.engine import Trial, as_arguments, check_loss_fn, check_model, check_numbers
from sonde.errors import ArgumentError
from sonde.rules import RULES, Finding

_LOWER = (10.0, 100.0, 1000.0)


class Proof:
    """The model, batch, loss and optimizer on which :func:`sonde.check` tries what it advises: ``check(run, prove=Proof(...))``.

    >>> import sonde, torch
    >>> net = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> proof = sonde.Proof(net, torch.ones(1, 2), torch.sum, optimizer=optimizer)
    >>> proof.of([]), sonde.check(writer.run(), prove=proof).findings
    ([], ())

    Give what the program makes before its training: a training that went wrong has left its weights and its optimizer as the fault
    has made them. The advice is tried in the first step, on copies; what is given stays as it is.

    Args:
        model: as the program makes it.
        batch: the argument of the model, or a tuple or dict of several.
        loss_fn: from the model's output to a scalar; None for a model that returns its loss.
        optimizer: an optimizer of this model, or a function from a list of parameters to one.

    Raises:
        ModelError, ArgumentError: they cannot be used, or a parameter is not finite.
    """

    def __init__(self, model: nn.Module, batch: Any, loss_fn: Any = None, *, optimizer: Any) -> None:
        check_model(model)
        check_numbers(model)
        check_loss_fn(loss_fn)
        broken = next((name for name, each in model.named_parameters() if not bool(torch.isfinite(each).all())), "")
        if broken:
            raise ArgumentError(
                f"{broken} of the model is not finite, as the training has left it: make the model anew for a proof"
            )
        self._model, self._batch, self._loss_fn, self._optimizer = model, batch, loss_fn, optimizer

    def of(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return *findings*, with ``proof`` of those whose advice can be tried in one step and that no other finding explains."""
        return [each if each.follows else replace(each, proof=self._proof(each)) for each in findings]

    def _proof(self, finding: Finding) -> str:
        changes = list(self._changes(finding))
        if not changes:
            return ""
        try:
            before = self._as_it_is
            if not _shows(before, finding):
                return "likely: the first step of this model does not show it"
            for change in changes:
                tried = self._attempt(change)
                if not tried.fault:
                    return f"proved in the first step: as it is, {before.fault}; with {words_of(change)}, {tried.words}"
        except (ArgumentError, RuntimeError, TypeError, ValueError) as error:
            return f"likely: it could not be tried ({type(error).__name__}: {error})"
        return f"likely: in the first step, {before.fault} also with {' or with '.join(map(words_of, changes))}"

    def _changes(self, finding: Finding) -> Iterator[dict[str, Any]]:
        """Yield what can be tried of an advice: a lower learning rate, and clipping, against what is too large."""
        tries = RULES[finding.rule].tries if finding.rule in RULES else ()
        rates = self._learning_rates if "lr" in tries else []
        for factor in _LOWER if len(set(rates)) == 1 else ():
            yield {"lr": rates[0] / factor}
        if "clip_grad_norm" in tries:
            yield {"clip_grad_norm": 1.0}

    @cached_property
    def _learning_rates(self) -> list[float]:
        with self._trial() as trial:
            return [float(group["lr"]) for group in trial.make_optimizer(self._optimizer).param_groups if "lr" in group]

    @cached_property
    def _as_it_is(self) -> Attempt:
        return self._attempt({})

    def _trial(self) -> Any:
        return Trial.of(self._model, *as_arguments(self._batch), self._loss_fn, self._optimizer)

    def _attempt(self, change: dict[str, Any]) -> Attempt:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with self._trial() as trial:
                return attempted(trial, change, run_with_loss, self._optimizer)


def _shows(step: Attempt, finding: Finding) -> bool:
    """Return whether a step has the fault that *finding* is about: a weight that is moved too far, or else a NaN or a rise, too."""
    about = RULES[finding.rule].about
    return step.moves_too_far if about is not None and about[0] == "update" else bool(step.fault)
