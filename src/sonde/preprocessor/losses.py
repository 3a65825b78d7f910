"""Of a loss module: the loss that it returns, in training and in evaluation."""

from __future__ import annotations

from typing import Any

from sonde.engine import structure
from sonde.errors import ArgumentError, LossShapeError
from sonde.preprocessor.base import AbstractForwardPreprocessor
from sonde.preprocessor.interval import NumberSpec
from sonde.preprocessor.measured import Measured
from sonde.preprocessor.training import in_training
from sonde.stats.samples import Single

__all__ = ["LossModule", "two_names"]


class LossModule(Measured, AbstractForwardPreprocessor):
    """The loss that a loss module (``nn.MSELoss``, ``nn.CrossEntropyLoss``) returns, in training and in evaluation apart.

    *Tensor to number*: the one element of the output. *Numbers to aggregates*: unweighted over calls. ``value`` has two
    names, ``train_loss`` and ``val_loss`` unless :meth:`set_loss_strs` says otherwise, whatever the module is called.

    Args:
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.
        evaluation_from_grad: evaluation is where gradients are switched off, otherwise where ``module.training`` is false.
            A loss module that is no part of the model is not reached by ``model.eval()``: then use True.
    """

    def __init__(self, inplace: bool = True, evaluation_from_grad: bool = False) -> None:
        super().__init__([NumberSpec(Single(), {"loss": "value"})], inplace)
        self._evaluation_from_grad = evaluation_from_grad
        self._names = ("train_loss", "val_loss")
        for train in (True, False):
            self._interval.expect(train)

    def set_loss_strs(self, train_loss_str: str, non_train_loss_str: str) -> None:
        """What the two losses are called in ``value``.

        Raises:
            ArgumentError: the two are the same.
        """
        self._names = two_names(train_loss_str, non_train_loss_str)

    def process_fw(self, name: str, module: Any, layer_input: Any, layer_output: Any) -> None:
        """Add the loss that the module returned.

        Raises:
            LossShapeError: it returned no tensor, or one that has not exactly one real element.
        """
        loss = next((tensor for _, tensor in structure.walk(layer_output)), None)
        if loss is None or loss.numel() != 1 or loss.is_complex():
            found = f"a tensor of shape {tuple(loss.shape)} and {loss.dtype}" if loss is not None else type(layer_output).__name__
            raise LossShapeError(
                f"{name or 'the loss module'} must return a loss of one element, and returned {found}: use a reduction, such as "
                "reduction='mean', or OutputNorm for what is no loss"
            )
        self._interval.add(in_training(module, self._evaluation_from_grad), loss)

    def _path(self, key: Any) -> tuple[str, ...]:
        return (self._names[0 if key else 1],)

    def expect(self, sites: Any) -> None:
        """Nothing: the two losses are always in ``value``."""

    def clear(self) -> None:
        super().clear()
        for train in (True, False):
            self._interval.expect(train)


def two_names(train: str, other: str) -> tuple[str, str]:
    """The names of the losses of training and of evaluation.

    Raises:
        ArgumentError: they are the same.
    """
    if train == other:
        raise ArgumentError(f"the losses of training and of evaluation cannot both be called {train!r}: give two names")
    return train, other
