"""Of the training loop: losses and metrics that it pushes by name."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.preprocessor.aggregates import Aggregate, InMemory
from sonde.preprocessor.base import AbstractPreprocessor
from sonde.preprocessor.interval import MOST_PENDING, copied
from sonde.preprocessor.losses import two_names
from sonde.preprocessor.measured import Values
from sonde.stats.host_copy import pack
from sonde.stats.running import RunningMeanVar, as_number

__all__ = ["ExplicitCall"]


class _Pushed(NamedTuple):
    name: str
    value: Any
    waits: bool  # the value is a tensor whose one element has not been read yet


class ExplicitCall(AbstractPreprocessor):
    """Losses and metrics that are pushed by name.

    >>> pushed = ExplicitCall("train_loss", "val_loss")
    >>> pushed.push_loss(0.5, train=True)
    >>> pushed.push_memory("accuracy", 0.75)
    >>> pushed.value["train_loss"].mean, pushed.value["accuracy"], pushed.value["val_loss"]
    (0.5, InMemory([0.75]), RunningMeanVar(no data))

    *Numbers to aggregates* only: what is pushed is the number. A pushed tensor of one element is copied, and read when
    someone asks for ``value``. After ``reset`` every name has no data until something is pushed again.

    Args:
        train_loss_str: what the loss in training is called.
        non_train_loss_str: what the loss in evaluation is called.

    Raises:
        ArgumentError: the two are the same.
    """

    def __init__(self, train_loss_str: str = "train_loss", non_train_loss_str: str = "val_loss") -> None:
        self.train_loss_str, self.non_train_loss_str = two_names(train_loss_str, non_train_loss_str)
        self._state: dict[str, Aggregate] = {}
        self._pending: list[_Pushed] = []
        self.clear()

    def push_loss(self, value: float | Tensor, *, train: bool, running: bool = True) -> None:
        """Add a loss.

        Args:
            value: a number or a tensor of one element.
            train: whether it is one of training.
            running: aggregate it in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep it in a list.

        Raises:
            ArgumentError: *value* is no number; or the other of the two was pushed to in this interval.
        """
        name = self.train_loss_str if train else self.non_train_loss_str
        self._push(_number(name, value), RunningMeanVar if running else InMemory)

    def push_memory(self, name: str, value: Any) -> None:
        """Append *value*, mostly a number or a tensor of one element, to the list called *name*.

        Any other tensor is appended as a copy, any other thing as it is; such a list has no mean.

        Raises:
            ArgumentError: *name* is a running aggregate in this interval.
        """
        if isinstance(value, Tensor):
            pushed = _number(name, value) if _is_number(value) else _Pushed(name, value.detach().clone(), False)
        else:
            pushed = _Pushed(name, value, False)
        self._push(pushed, InMemory)

    def push_running(self, name: str, value: float | Tensor) -> None:
        """Add *value*, a number or a tensor of one element, to the running aggregate called *name*.

        Raises:
            ArgumentError: *value* is no number, or *name* is a list in this interval.
        """
        self._push(_number(name, value), RunningMeanVar)

    def _push(self, pushed: _Pushed, kind: type[Aggregate]) -> None:
        held = self._state.get(pushed.name)
        if type(held) is not kind:
            if held is not None and self.state[pushed.name]:
                what = "a running aggregate" if kind is InMemory else "a list"
                raise ArgumentError(f"{pushed.name!r} is {what} in this interval: push it in one way, or under another name")
            self._state[pushed.name] = kind()
        self._pending.append(pushed)
        if len(self._pending) >= MOST_PENDING:
            self._settle()

    def _settle(self) -> None:
        pending, self._pending = self._pending, []
        waiting = [pushed.value for pushed in pending if pushed.waits]
        numbers = (float(each[0]) for each in pack(waiting).unpack())
        for pushed in pending:
            self._state[pushed.name].append(next(numbers) if pushed.waits else pushed.value)

    @property
    def state(self) -> dict[str, Aggregate]:
        """The aggregates themselves, by name. NumberSpec waits for the device."""
        self._settle()
        return self._state

    @property
    def value(self) -> dict[str, Any]:
        """Copies of the aggregates, by name. NumberSpec waits for the device."""
        return Values({name: copied(held) for name, held in self.state.items()})

    def reset(self) -> None:
        """Begin a new interval: every name has no data."""
        self._pending.clear()
        self._state = {name: type(held)() for name, held in self._state.items()}

    def clear(self) -> None:
        """Begin anew: all names but those of the two losses are forgotten."""
        self._pending.clear()
        self._state = {name: RunningMeanVar() for name in (self.train_loss_str, self.non_train_loss_str)}

    def __repr__(self) -> str:
        shown = "".join(f"\n  {name}: {held!r}" for name, held in self.state.items())
        return f"ExplicitCall:{shown}"


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex() and not value.is_meta


def _number(name: str, value: float | Tensor) -> _Pushed:
    """A number to push.

    Raises:
        ArgumentError: it is none.
    """
    if isinstance(value, Tensor) and _is_number(value):
        return _Pushed(name, value.detach().to(torch.float64, copy=True).reshape(1), True)
    return _Pushed(name, as_number(value), False)
