"""Preprocessors of losses and metrics: returned by a loss module, or pushed by the training loop."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sonde.engine import walk
from sonde.errors import ArgumentError, LossShapeError
from sonde.preprocessor.aggregates import Aggregate, InMemory
from sonde.preprocessor.base import AbstractForwardPreprocessor, AbstractPreprocessor, in_training
from sonde.preprocessor.interval import MOST_PENDING, NumberSpec, copied
from sonde.preprocessor.measured import Measured, Values
from sonde.site import Site
from sonde.stats import HostCopy, RunningMeanVar, Single, as_number


class LossModule(Measured, AbstractForwardPreprocessor):
    """Preprocessor: the loss that a loss module (``nn.MSELoss``, ``nn.CrossEntropyLoss``) returns, in training and in evaluation.

    >>> import torch
    >>> from sonde.preprocessor import LossModule
    >>> losses, criterion = LossModule(), torch.nn.MSELoss()
    >>> losses.set_loss_strs("loss", "val_loss")
    >>> losses.process_fw("", criterion, (), torch.tensor(0.5, requires_grad=True))
    >>> {name: each.mean for name, each in losses.value.items() if each.count}
    {'loss': 0.5}

    *Tensor to number*: the one element of the output. *Numbers to aggregates*: unweighted over calls. ``value`` has two
    names, whatever the module is called: ``train_loss`` and ``val_loss``, or the names given to :meth:`set_loss_strs`.

    Args:
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.
        evaluation_from_grad: evaluation is where gradients are switched off, otherwise where ``module.training`` is false.
            ``model.eval()`` does not reach a loss module that is no part of the model: then use True.
    """

    def __init__(self, inplace: bool = True, evaluation_from_grad: bool = False) -> None:
        super().__init__([NumberSpec(Single(), {"loss": "value"})], inplace, always=(True, False))
        self._evaluation_from_grad = evaluation_from_grad
        self._names = ("train_loss", "val_loss")

    def set_loss_strs(self, train_loss_str: str, non_train_loss_str: str) -> None:
        """Set the names of the two losses in ``value``.

        Raises:
            ArgumentError: the two names are the same.
        """
        self._names = _two_names(train_loss_str, non_train_loss_str)

    def process_fw(self, name: str, module: Any, layer_input: Any, layer_output: Any) -> None:
        """Add the loss that the module returned.

        Raises:
            LossShapeError: the module returned no tensor, or a tensor that has not exactly one real element.
        """
        loss = next((tensor for _, tensor in walk(layer_output)), None)
        if loss is None or loss.numel() != 1 or loss.is_complex():
            found = f"a tensor of shape {tuple(loss.shape)} and {loss.dtype}" if loss is not None else type(layer_output).__name__
            raise LossShapeError(
                f"{name or 'the loss module'} must return a loss of one element, and returned {found}: use a reduction, such as "
                "reduction='mean', or OutputNorm for what is no loss"
            )
        self._interval.add(in_training(module, self._evaluation_from_grad), loss)

    def _path(self, key: bool) -> tuple[str, ...]:
        return (self._names[0 if key else 1],)

    def _keys(self, site: Site | str) -> Iterable[Hashable]:
        return ()  # the two losses are always in ``value``


class _Pushed(NamedTuple):
    name: str
    value: Any
    waits: bool  # the value is a tensor whose one element has not been read yet


class ExplicitCall(AbstractPreprocessor):
    """Preprocessor: losses and metrics that the training loop pushes by name.

    >>> pushed = ExplicitCall("train_loss", "val_loss")
    >>> pushed.push_loss(0.5, train=True)
    >>> pushed.push_memory("accuracy", 0.75)
    >>> pushed.value["train_loss"].mean, pushed.value["accuracy"], pushed.value["val_loss"]
    (0.5, InMemory([0.75]), RunningMeanVar(no data))

    *Numbers to aggregates* only: each pushed value is a number. A pushed tensor of one element is copied, and read from its device
    when ``value`` is read. After ``reset`` every name has no data until something is pushed again.

    Args:
        train_loss_str: name of the loss in training.
        non_train_loss_str: name of the loss in evaluation.

    Raises:
        ArgumentError: the two names are the same.
    """

    def __init__(self, train_loss_str: str = "train_loss", non_train_loss_str: str = "val_loss") -> None:
        self.train_loss_str, self.non_train_loss_str = _two_names(train_loss_str, non_train_loss_str)
        self._state: dict[str, Aggregate] = {}
        self._pending: list[_Pushed] = []
        self.clear()

    def push_loss(self, value: float | Tensor, *, train: bool, running: bool = True) -> None:
        """Add a loss.

        >>> from sonde.preprocessor import ExplicitCall
        >>> pushed = ExplicitCall()
        >>> pushed.push_loss(0.5, train=True)
        >>> pushed.push_running("accuracy", 0.25)
        >>> pushed.push_memory("lr", 0.1)
        >>> pushed.value["train_loss"].mean, pushed.value["accuracy"].mean, pushed.value["lr"]
        (0.5, 0.25, InMemory([0.1]))
        >>> pushed.reset()
        >>> pushed.clear()
        >>> sorted(pushed.value)
        ['train_loss', 'val_loss']

        Args:
            value: a number or a tensor of one element.
            train: whether the loss is one of training.
            running: aggregate the loss in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep the loss in a list.

        Raises:
            ArgumentError: *value* is no number; or losses of this name were pushed with another *running* in this interval.
        """
        name = self.train_loss_str if train else self.non_train_loss_str
        self._push(_number(name, value), RunningMeanVar if running else InMemory)

    def push_memory(self, name: str, value: Any) -> None:
        """Append *value*, mostly a number or a tensor of one element, to the list called *name*.

        Any other tensor is appended as a copy, any other object unchanged; such a list has no mean.

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
        numbers = (float(each[0]) for each in HostCopy.of(waiting).unpack())
        for pushed in pending:
            self._state[pushed.name].append(next(numbers) if pushed.waits else pushed.value)

    @property
    def state(self) -> dict[str, Aggregate]:
        """The aggregates themselves, by name. Reading waits for the device."""
        self._settle()
        return self._state

    @property
    def value(self) -> dict[str, Any]:
        """Copies of the aggregates, by name. Reading waits for the device."""
        return Values({name: copied(held) for name, held in self.state.items()})

    def reset(self) -> None:
        """Begin a new interval: every name has no data."""
        self._pending.clear()
        self._state = {name: type(held)() for name, held in self._state.items()}

    def clear(self) -> None:
        """Begin anew: forget all names but those of the two losses."""
        self._pending.clear()
        self._state = {name: RunningMeanVar() for name in (self.train_loss_str, self.non_train_loss_str)}

    def __repr__(self) -> str:
        shown = "".join(f"\n  {name}: {held!r}" for name, held in self.state.items())
        return f"ExplicitCall:{shown}"


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex() and not value.is_meta


def _number(name: str, value: float | Tensor) -> _Pushed:
    """Return *value* as a number to push."""
    if isinstance(value, Tensor) and _is_number(value):
        return _Pushed(name, value.detach().to(torch.float64, copy=True).reshape(1), True)
    return _Pushed(name, as_number(value), False)


def _two_names(train: str, other: str) -> tuple[str, str]:
    """Return the names of the losses of training and of evaluation."""
    if train == other:
        raise ArgumentError(f"the losses of training and of evaluation cannot both be called {train!r}: give two names")
    return train, other
