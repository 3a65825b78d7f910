"""A copy of the model under examination, and one step of it: of a training, or a forward pass in evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from sonde.checkup.compiling import Backend, compiled_anew
from sonde.checkup.pass_facts import Arguments, fresh, settled
from sonde.diagnosis import Subject
from sonde.engine import Trial, walk
from sonde.inspector import Inspector, watch

NEVER = range(10**9, 10**9 + 1)
"""Steps that never come: the inspector is attached and logs no step."""


class Training:
    """A copy of the model with its optimizer, and its steps.

    A model in training mode is trained: forward, loss, backward, optimizer. One in evaluation mode runs its forward, without
    gradients.

    Attributes:
        model: the copy.
        called: the copy, or the compiled wrapper around it.
        trains: the model is in training mode.
        optimizer: None where no parameter may be changed.
    """

    def __init__(self, trial: Trial, given: Any) -> None:
        self.model = self.called = trial.model
        self.trains = trial.model.training
        self._trial = trial
        trainable = [each for each in trial.model.parameters() if each.requires_grad]
        self.optimizer: torch.optim.Optimizer | None = None
        if self.trains and trainable and trial.is_free:
            make = given if given is not None else lambda parameters: torch.optim.SGD(parameters, lr=1e-3)
            self.optimizer = trial.make_optimizer(make)

    def stand_still(self) -> None:
        """Set the learning rates to zero: any number of steps leaves the parameters as they are, and takes as long."""
        for group in () if self.optimizer is None else self.optimizer.param_groups:
            if "lr" in group:
                group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0

    @classmethod
    @contextmanager
    def of(cls, subject: Subject, backend: Backend | None = None) -> Iterator[Training]:
        """Yield a training of a fresh copy of *subject*, from the random state of the user; compiled anew with *backend*."""
        with subject.trial() as trial:
            training = cls(trial, subject.optimizer)
            compiles = nullcontext(trial.model) if backend is None else compiled_anew(subject.model, trial.model, backend)
            with compiles as training.called, nullcontext() if training.trains else torch.no_grad():
                yield training

    def arguments(self) -> Arguments:
        """Return a copy of the batch."""
        return fresh(self._trial.args, self._trial.kwargs)

    def loss_of(self, output: Any) -> Tensor | None:
        """Return the loss to run backward from; None in evaluation, and where the loss needs no gradient.

        Without a loss function it is the output's own ``loss``; without that, the mean square of the output.

        Raises:
            ArgumentError: the loss function returns no scalar.
        """
        if not self.trains:
            return None
        loss = self._trial.loss_of(output)
        if loss is None and any(tensor.requires_grad for _, tensor in walk(output)):
            loss = mean_square(output)
        return loss if loss is not None and loss.requires_grad else None

    def step(self, inspector: Inspector | None) -> None:
        """End a step after its backward pass."""
        if not self.trains:
            return
        if self.optimizer is not None:
            self._trial.step(self.optimizer)
        elif inspector is not None:
            inspector.step()

    def run(self, inspector: Inspector | None, arguments: Arguments) -> None:
        """Make one whole step."""
        self.model.zero_grad()
        args, kwargs = arguments
        loss = self.loss_of(settled(self.called(*args, **kwargs)))
        if loss is not None:
            torch.autograd.backward(loss)
        self.step(inspector)


@contextmanager
def watching(training: Training, every: Any, **given: Any) -> Iterator[Inspector]:
    """Yield an inspector on the copy, as ``watch`` makes it, which writes to memory and prints nothing."""
    evaluation = not training.trains and every is not NEVER
    inspector = watch(training.model, every=every, to="memory", verbose=False, evaluation=evaluation, ranks="first", **given)
    with inspector:
        yield inspector


def mean_square(output: Any) -> Tensor:
    """Return the sum of the mean squares of all tensors in *output* that need a gradient: a loss for any output.

    >>> import torch
    >>> from sonde import testing
    >>> testing.mean_square({"logits": torch.tensor([1.0, 3.0], requires_grad=True)}).item()
    5.0

    The tensors are those in containers that ``sonde`` opens, and those that an iterator yields.

    Raises:
        ValueError: nothing in *output* needs a gradient.
    """
    held = settled(output)
    terms = [_dense(tensor).abs().square().mean() for _, tensor in walk(held) if tensor.requires_grad]
    if not terms:
        raise ValueError("nothing in the output needs a gradient, so there is nothing to make a loss of")
    return torch.stack([term.to(terms[0].dtype) for term in terms]).sum()


def _dense(tensor: Tensor) -> Tensor:
    if tensor.is_nested:
        return torch.cat([part.flatten() for part in tensor.unbind()])
    return tensor.to_dense() if tensor.layout == torch.sparse_coo else tensor
