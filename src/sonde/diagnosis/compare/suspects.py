"""A suspect is a finding that may be the cause, and the changes of copies by which it is undone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor

from sonde.engine import Trial
from sonde.rules import Finding

CAUSES = MappingProxyType(
    {
        "random": "no random numbers are drawn: each draw gives its mean",
        "training_mode": "the module has the mode of the other side",
        "batch": "the tensor of the other batch is put in",
        "argument": "the module is called with the argument of the other side",
        "weight_transposed": "the parameter of the other side is put in",
        "weight_reshaped": "the parameter of the other side is put in",
        "weight_flipped": "the parameter of the other side is put in",
        "weight_permuted": "the parameter of the other side is put in",
        "weight_shifted": "the parameter of the other side is put in",
        "weight_scaled": "the parameter of the other side is put in",
        "weight_rounded": "the parameter of the other side is put in",
        "weight_of_another": "the parameter of the other side is put in",
        "weight_differs": "the parameter of the other side is put in",
        "bias_missing": "the parameter that one side has alone is set to 0",
        "weight_missing": "the parameter that one side has alone is set to 1",
        "eps": "the setting, or the formula, of the other side is put in",
        "setting": "the setting of the other side is put in",
        "dtype": "the side computes in the type of the other",
        "normalisation": "the formula of the other side is put in",
        "activation": "the formula of the other side is put in",
        "inputs": "the formula of the other side is put in",
        "residual": "the sum of the other side is put in",
        "module_missing": "what the module made of the tensor is put in",
        "parameter_missing": "the parameter is added",
        "addends": "the sum, or the mean, of what the ranks hold is put in",
        "scaled": "the factor is taken out",
        "affine": "factors and addends are taken out",
        "permuted": "the order of the other side is put in",
        "shifted": "the entries are moved back",
        "attention_scale": "the attention of the other side is put in",
        "causal_mask": "the attention of the other side is put in",
        "mask": "the attention of the other side is put in",
        "rotary": "the attention of the other side is put in",
        "heads": "the attention of the other side is put in",
        "operation": "the operations of the other side stand in the place of one of this side",
        "gates": "blocks of the parameters are exchanged, or 1 is added to one of a bias",
        "class": "the code of the other side runs, with the parameters and settings of this one",
        "frozen": "the parameters require a gradient as in the other side",
        "tied": "the parameters are tied as in the other side",
        "graph_cut": "detach(), .data and torch.no_grad() have no effect",
        "loss": "the loss function of the other side is used",
        "not_updated": "the optimizer is given the parameter",
        "weight_decay": "the multiple of the parameter is taken out",
    }
)
"""The rule of each cause that can be stated, and what is undone on the copies to prove it."""


class CannotChangeError(Exception):
    """A change cannot be made on a copy: it has no such part, or its parameters are not copies."""


@dataclass(frozen=True)
class Change:
    """What is otherwise in one more run of a side. Changes add up.

    Attributes:
        trial: functions that change the copy of the model, or of the batch, before it runs.
        contexts: make the contexts in which it runs.
        optimizer: functions that change the optimizer before its step, and are given the copy of the model too.
        loss_fn: replaces the loss function; a tuple of one, or empty.
    """

    trial: tuple[Callable[[Trial], object], ...] = ()
    contexts: tuple[Callable[[], AbstractContextManager[Any]], ...] = ()
    optimizer: tuple[Callable[[Any, Trial], object], ...] = ()
    loss_fn: tuple[Any, ...] = ()

    def __add__(self, other: Change) -> Change:
        return Change(
            self.trial + other.trial,
            self.contexts + tuple(each for each in other.contexts if each not in self.contexts),
            self.optimizer + other.optimizer,
            other.loss_fn or self.loss_fn,
        )

    def __bool__(self) -> bool:
        return bool(self.trial or self.contexts or self.optimizer or self.loss_fn)


@dataclass(frozen=True)
class Undo:
    """How a difference is undone.

    Attributes:
        a, b: what is otherwise in the runs of the sides.
        made: from the tensor of ``b`` at the place, in the layout of ``a``, to that without the difference; None for no change.
    """

    a: Change = Change()
    b: Change = Change()
    made: Callable[[Tensor], Tensor] | None = None

    def __add__(self, other: Undo) -> Undo:
        return Undo(self.a + other.a, self.b + other.b, other.made or self.made)


@dataclass(frozen=True)
class Suspect:
    """A finding that may be the cause, and how it is undone.

    Attributes:
        finding: what is stated where the proof holds; its rule is one of ``CAUSES``.
        undo: how.
        instead: suspects of one text that is not empty exclude each other: two ways to undo one difference.
        is_guess: the sides need not differ in this, so that it is not told where it does not explain the place.
        is_whole: all code in front of the place is undone, so that the sides are equal without it whatever the cause: a hint.
    """

    finding: Finding
    undo: Undo
    instead: str = ""
    is_guess: bool = False
    is_whole: bool = False
