"""Keep what is known of one training pass, whose numbers arrive later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from sonde.inspector.batches.regression_targets import Range
from sonde.stats import HostCopy

EACH = 16
"""Logged steps that are looked at each; of later ones those whose number has grown by half since the last."""
PASSES = 4
"""Of a step, that are looked at: those of a discriminator on samples of both kinds, and of its generator."""
SQUARE = 8
"""Samples whose similarities are a table of classes."""
_ONE_LABEL, _BOTH_WAYS = (
    0.99,
    0.9,
)  # share of the samples that have one label; of pairs that are asked for both ways
_OFF = 0.02  # of a gradient in half precision, rounding of its sum


@dataclass(frozen=True)
class Depends:
    """What of a dependence is known at once.

    Attributes:
        inputs: of each whose part in the output was measured, tokens first: its shape, and whether it is an argument as it is.
        sought: it was asked which operation mixes samples.
        operations: those that may have: their name, and the modules they stand behind and before.
        spreading: the same of those that may have taken places to others.
        is_graph, is_cut: as :class:`~sonde.inspector.batches.dependence.Dependence` has them.
    """

    inputs: list[tuple[tuple[int, ...], bool]]
    sought: bool
    operations: list[tuple[str, str, str]]
    spreading: list[tuple[str, str, str]]
    is_graph: bool
    is_cut: bool


@dataclass
class Look:
    """What is known of one training pass, once its numbers have arrived.

    Attributes:
        epoch, step: the moment.
        shape: of the output, samples first.
        number: which pass of the step it is.
        makers: of each output that is looked at, the number of the operation that has made it.
        made: of each of them the name of that operation, and the axis along which it ran, if it is a softmax.
        plain: of each of them whether that operation has no parameter.
        samples: of the output, that are looked at.
        ranges: what each of them can be.
        results: by their place, of those whose targets a loss may tell, what they are; until the step ends.
        arrived: the gradient that has come to the first output so far; until the step ends.
        viewed: where a view has its axes in another order than what it was made of, and what it was.
        recurrent: the recurrent layer that takes samples for steps, if one does.
        arranged: the shape of the output as it is, but for samples and places in a row, which are apart.
        is_turned: samples are the second axis of that; *shape* has them first.
        taken: the first argument's storage, whether a gradient comes to it, and whether a model that is watched has made it.
        rebuilt: storages of what the losses that a model returns compare with in several parts: it is made again, in parts.
        generated: the activation that a generator of what this model is given beside ends with; "" for none.
        volumes: which of the outputs add up logarithms of what the first was multiplied by.
        is_heard: a gradient has come to the first of them, where there are such ones.
        loss: the identity of the loss whose backward pass has brought a gradient.
        terms: of each output which of the terms that are added up in the loss have it, with no layer between.
        is_linear: nothing but layers with weights, three or more in a row, has made the output.
        is_difference: the first output is a difference of two things that the same parameters have made, as of scores in a pair.
        outputs: the names of those that are looked at; of further ones, whether their targets are in their range.
        narrow: the layer of one unit through which all goes that the last one is given; ``""`` for none.
        bare: how many attentions the output goes through, if no way leads around any of them; else 0.
        repeated: the batch normalisation that is given what has gone through itself before; ``""`` for none.
        twice: the names of each layer that a list holds at several places.
        single: operations over one element, and the layers that they stand behind.
        lost: an operation whose slope is zero, the layer before it, and the parameters that outputs have no other way to.
        depends: what the output depends on, if that was measured.
        tokens: how many arguments are tokens; first those whose part in the output was measured.
        is_piecewise: nothing but linear operations and activations of straight pieces has made the first output.
        derivatives: how many have come to an input so far that have a graph themselves.
        is_ungraphed: one has come, of a call of autograd.grad, that has none.
        lacks_term: the loss adds something up that has no graph.
        copies: names and numbers, on their way.
    """

    epoch: int
    step: int
    shape: tuple[int, ...]
    number: int
    samples: int
    outputs: list[str]
    makers: list[int] = field(default_factory=list)
    made: list[tuple[str, int | None]] = field(default_factory=list)
    plain: list[bool] = field(default_factory=list)
    ranges: list[Range | None] = field(default_factory=list)
    results: dict[int, Tensor] = field(default_factory=dict)
    arrived: Tensor | None = None
    viewed: tuple[str, str] | None = None
    recurrent: str | None = None
    arranged: tuple[int, ...] = ()
    is_turned: bool = False
    taken: tuple[StorageWeakRef, bool, bool] | None = None
    rebuilt: set[StorageWeakRef] = field(default_factory=set)
    generated: str = ""
    volumes: list[bool] = field(default_factory=list)
    is_heard: bool = False
    loss: int | None = None
    terms: defaultdict[int, frozenset[int]] = field(default_factory=lambda: defaultdict(frozenset))
    is_linear: bool = False
    is_difference: bool = False
    narrow: str = ""
    bare: int = 0
    repeated: str = ""
    single: dict[str, str] = field(default_factory=dict)
    twice: list[list[str]] = field(default_factory=list)
    lost: tuple[str, str, list[str]] | None = None
    depends: Depends | None = None
    tokens: int = 0
    is_piecewise: bool = False
    derivatives: int = 0
    is_ungraphed: bool = False
    lacks_term: bool = False
    copies: list[tuple[list[str], HostCopy]] = field(default_factory=list)

    @property
    def activations(self) -> list[str]:
        """By which each of the outputs is kept in a range; ``""`` for none."""
        return ["" if each is None else each.activation for each in self.ranges]

    @property
    def made_by(self) -> str:
        """The operation that has made the first output."""
        return self.made[0][0]

    def add(self, numbers: Mapping[str, Tensor]) -> None:
        """Begin to copy *numbers* to the host, but for those that are held by several ranks."""
        numbers = {name: each for name, each in numbers.items() if type(each) is Tensor}
        self.copies.append((list(numbers), HostCopy.of([each.detach().double() for each in numbers.values()])))

    def read(self) -> dict[str, float]:
        """Return the numbers. Waits for the device."""
        return {name: float(one) for names, copy in tuple(self.copies) for name, one in zip(names, copy.unpack(), strict=True)}


@dataclass
class Table:
    """An embedding in the first passes.

    Attributes:
        counts: how often each row was asked for, without padding.
        is_sequence: it is asked for several places of each sample.
        looks: passes that were judged.
    """

    counts: Tensor
    is_sequence: bool
    looks: int = 0


def class_axes(look: Look) -> set[int]:
    """Return the axes of an output that may be those of classes."""
    return {axis for axis in (1, len(look.shape) - 1) if 0 < axis < len(look.shape) and look.shape[axis] > 1}


def label_axis(look: Look, numbers: Mapping[str, float]) -> int | None:
    """Return the axis of classes, if the gradient at the output is that of a cross-entropy against one label each; else None."""
    for axis in sorted(class_axes(look), reverse=True):
        counted = numbers.get(f"counted {axis}", 0.0)
        is_one = counted > 0 and numbers[f"single {axis}"] >= _ONE_LABEL * counted
        if is_one and numbers[f"off {axis}"] <= _OFF:
            return axis
    is_square = len(look.shape) == 2 and look.shape[0] == look.shape[1] and look.shape[0] >= SQUARE
    return 1 if is_square and numbers.get("single 1", 0.0) >= _BOTH_WAYS * look.shape[0] else None  # as of pairs


def without_recomputing() -> AbstractContextManager[None]:
    """Return a context in which what an activation checkpoint keeps cannot be read, since the checkpoint would run again."""
    return torch.autograd.graph.disable_saved_tensors_hooks("an activation checkpoint would run again")
