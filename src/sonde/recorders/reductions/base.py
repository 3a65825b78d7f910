"""The base of all reductions: how a new value is combined with what was kept so far, tensor by tensor.

Running sums here are not rows of the statistics' table: a row there has a fixed number of float64 numbers for one site,
while a sum over calls has the shape, type and structure of the value, and a reservoir holds whole samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from sonde.engine import remap, walk
from sonde.errors import ArgumentError
from sonde.words import many, shape_text


class Reduction(ABC):
    """A callable ``(so far, new) -> so far``. Its arguments are borrowed: it neither keeps nor changes the tensors of *new*.

    >>> import torch
    >>> from sonde.recorders import ForwardOutput
    >>> from sonde.recorders.reductions import Reduction
    >>> class Largest(Reduction):
    ...     def begin(self, first):
    ...         return first.clone()
    ...     def __call__(self, so_far, new):
    ...         return torch.maximum(so_far, new)
    >>> net = torch.nn.Sequential(torch.nn.Identity())
    >>> with ForwardOutput(reduction=Largest()).children(net) as recorder:
    ...     for value in (3.0, 1.0):
    ...         _ = net(torch.tensor([value]))
    >>> recorder["0"]
    tensor([3.])

    It is also a plain function for ``functools.reduce``; the finished value is the result's ``value``. Derive from this class
    for a reduction that takes structured values whole; a plain function is called tensor by tensor.
    """

    @abstractmethod
    def begin(self, first: Any) -> Any:
        """Return the content of a slot after the first value."""

    @abstractmethod
    def __call__(self, so_far: Any, new: Any) -> Any:
        """Return the content of a slot after *new*, given its content so far."""


@dataclass
class State:
    """Running sums of one tensor: tensors, numbers, types and lists of these, so that they can be copied and saved."""

    def plain(self) -> dict[str, Any]:
        """A copy of the fields."""
        return {field.name: remap(getattr(self, field.name), torch.clone) for field in fields(self)}


class Accumulated:
    """The sums of a running reduction, and the structure of the value that they are of.

    >>> import torch
    >>> from sonde.recorders.reductions import Accumulated, Mean
    >>> sums = Accumulated.of(Mean(), {"hidden": torch.tensor([[1.0, 2.0]])})
    >>> sums.add({"hidden": torch.tensor([[3.0, 4.0]])})
    >>> Accumulated.restored(Mean(), sums.plain()).plain()["template"]
    {'hidden': tensor([])}

    Attributes:
        reduction: the reduction that made the sums.
        states: the sums of each tensor of the value.
    """

    def __init__(self, reduction: Running, template: Any, paths: tuple[str, ...], states: list[Any]) -> None:
        self.reduction = reduction
        self.states = states
        self._template = template  # the first value, with empty tensors
        self._paths = paths

    @classmethod
    def of(cls, reduction: Running, first: Any) -> Accumulated:
        """The sums over *first* alone.

        Raises:
            ArgumentError: *first* holds no tensor.
        """
        template, tensors = _opened(first)
        if not tensors:
            raise ArgumentError(f"{reduction} reduces tensors, and there is none in a {type(first).__name__}")
        made = cls(reduction, template, _paths(first), [reduction._start(tensor) for tensor in tensors])
        if reduction.starts_empty:
            made._add(tensors)
        return made

    def add(self, new: Any) -> None:
        """Add the tensors of *new*.

        Raises:
            ArgumentError: *new* has other tensors than the values before, or of other shapes; then nothing is added.
        """
        if isinstance(new, Tensor) and self._paths == _ONE:
            self._add([new.detach()])
            return
        _, tensors = _opened(new)
        if _paths(new) != self._paths:
            raise ArgumentError(
                f"the value has its tensors at {_listed(_paths(new))}, those before had them at {_listed(self._paths)}"
            )
        self._add(tensors)

    def _add(self, tensors: list[Tensor]) -> None:
        reduction = self.reduction
        fitted = [reduction._fit(state, tensor) for state, tensor in zip(self.states, tensors, strict=True)]
        if reduction._admits(self.states, fitted):
            for state, each in zip(self.states, fitted, strict=True):
                reduction._add(state, each)

    @property
    def value(self) -> Any:
        """The finished value, in the structure of the first one. Later values do not change its tensors."""
        finished = iter([self.reduction._finish(state) for state in self.states])
        return remap(self._template, lambda _: next(finished), objects=True)

    @property
    def note(self) -> str:
        """A remark for the table; ``""`` for none."""
        return self.reduction._note(self.states[0])

    def plain(self) -> dict[str, Any]:
        """A copy as a dictionary."""
        return {"template": self._template, "paths": list(self._paths), "states": [state.plain() for state in self.states]}

    @classmethod
    def restored(cls, reduction: Running, plain: dict[str, Any]) -> Accumulated:
        """The sums that *plain* is a copy of."""
        states = [reduction.sums(**reduction.sums(**state).plain()) for state in plain["states"]]
        return cls(reduction, plain["template"], tuple(plain["paths"]), states)


class Running(Reduction):
    """A reduction with sums of its own for each tensor of a value, whatever the structure.

    A new value is added in two steps, so that it is added whole or not at all: ``_fit`` may raise, ``_add`` does not.
    """

    sums: ClassVar[type[State]]
    starts_empty: ClassVar[bool] = False  # whether ``_start`` leaves the first tensor to be added

    def begin(self, first: Any) -> Any:
        return Accumulated.of(self, first)

    def __call__(self, so_far: Any, new: Any) -> Any:
        sums = so_far if isinstance(so_far, Accumulated) else Accumulated.of(self, so_far)
        sums.add(new)
        return sums

    @abstractmethod
    def _start(self, tensor: Tensor) -> Any:
        """Return the sums over *tensor* alone, or empty ones."""

    @abstractmethod
    def _fit(self, state: Any, tensor: Tensor) -> Any:
        """Return *tensor* in the form that ``_add`` takes; raise if it cannot be added."""

    def _admits(self, states: list[Any], fitted: list[Any]) -> bool:
        """Return whether a value is added, given all of its tensors as fitted; raise if they do not fit together."""
        return True

    @abstractmethod
    def _add(self, state: Any, fitted: Any) -> None:
        """Add a fitted tensor to *state*."""

    @abstractmethod
    def _finish(self, state: Any) -> Any:
        """Return the finished tensor, in memory of its own."""

    def _note(self, state: Any) -> str:
        """Return a remark for the table."""
        return ""


def lined_up(reduction: Any, tensor: Tensor) -> Tensor:
    """*tensor* with the samples along the first axis, which is *reduction*'s ``axis``; a scalar is a vector of one sample.

    Raises:
        ArgumentError: *tensor* has no such axis.
    """
    tensor = tensor.reshape(1) if tensor.ndim == 0 else tensor
    if not -tensor.ndim <= reduction.axis < tensor.ndim:
        raise ArgumentError(
            f"{reduction} takes samples along axis {reduction.axis}, and a value of shape {value_text(tensor)} has none"
        )
    return tensor.movedim(reduction.axis, 0)


_ONE = ("",)  # the leaf path of a value that is a tensor itself


def _paths(value: Any) -> tuple[str, ...]:
    return _ONE if isinstance(value, Tensor) else tuple(path for path, _ in walk(value))


def _opened(value: Any) -> tuple[Any, list[Tensor]]:
    """*value* with an empty tensor in the place of each tensor; and the tensors, detached."""
    tensors: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        tensors.append(tensor.detach())
        return torch.empty(0, device="cpu")

    return remap(value, take, objects=True), tensors


def _listed(paths: tuple[str, ...]) -> str:
    return ", ".join(path or "its top" for path in paths) or "nowhere"


def own(value: Any) -> Any:
    """A copy of *value* that nothing changes later: its tensors detached, on their device, the structure rebuilt."""
    if isinstance(value, Tensor):
        return value.detach() if value.is_meta else value.detach().clone()
    return remap(value, own, objects=True)


def value_text(value: Any) -> str:
    """The shape of a tensor, or the kind of another value, in a few characters: ``5×3``, ``scalar``, ``tuple of 3 tensors``."""
    if isinstance(value, Tensor):
        return f"{value.size(0)} nested" if value.is_nested else shape_text(value.shape)
    tensors = len(walk(value))
    return f"{type(value).__name__} of {many(tensors, 'tensor')}" if tensors else type(value).__name__
