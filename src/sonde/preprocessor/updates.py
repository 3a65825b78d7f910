"""Preprocessors of updates: how far a step moves a parameter, in proportion to its size, and what is lost in rounding."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from sonde.engine import Event
from sonde.errors import ArgumentError
from sonde.preprocessor.base import AbstractTensorPreprocessor, name_of
from sonde.preprocessor.gradients import SequenceGeometry
from sonde.preprocessor.interval import NumberSpec
from sonde.preprocessor.measured import Measured, nothing_to_measure
from sonde.site import Port
from sonde.stats import History, Single, Updates, dense, vanished_share


class _OfUpdates(Measured, AbstractTensorPreprocessor):
    """Compares a parameter with its value in the call before, or before an optimizer step."""

    ports: tuple[Port, ...] = ("update",)
    _accepted: ClassVar[tuple[Port, ...]] = ("param", "update")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._parameters = History()

    @abstractmethod
    def _compare(self, name: str, before: Tensor, after: Tensor) -> None:
        """Measure an update of a parameter that has elements."""

    def process_tensor(self, name: str, param: Tensor | None) -> None:
        """Measure the difference between a parameter and its value in the last call.

        The first call gives no number; a call with another shape gives none either.
        """
        self._interval.expect(name)
        if param is None or nothing_to_measure(param, "a parameter"):
            return
        param = dense(param)
        before = self._parameters.previous(name)
        if before is not None and before.shape == param.shape:
            self._compare(name, before, param)
        self._parameters.remember(name, param)

    def process_update(self, name: str, before: Tensor, after: Tensor) -> None:
        """Measure the difference between a parameter *after* a step and *before* the step.

        Raises:
            ArgumentError: the two tensors have different shapes.
        """
        self._interval.expect(name)
        if _is_update(before, after):
            self._compare(name, before, after)

    def _process(self, event: Event) -> None:
        if event.site.port == "param":
            self.process_tensor(name_of(event.site), event.value)
        else:
            self.process_update(name_of(event.site), *event.value)

    def clear(self) -> None:
        super().clear()
        self._parameters.clear()


class ParameterDifferenceGeometry(_OfUpdates, SequenceGeometry):
    """Preprocessor: the length of the updates of a parameter, and the correlation of each update with the update before.

    >>> import torch
    >>> from sonde.preprocessor import ParameterDifferenceGeometry
    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> lengths = ParameterDifferenceGeometry(correlation=False)
    >>> for value in (torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])):
    ...     lengths.process_tensor("weight", value)
    >>> lengths.value["weight"].mean
    5.0

    An update is the parameter after a step minus the parameter before, computed in float64. Numbers, arguments and differences from
    monitorch: see :class:`SequenceGeometry`.

    Each call of ``process_tensor`` is compared with the call before; the first call gives no number, as the value before is not
    known. Through ``observe`` every optimizer step counts, the first too, and the engine keeps the copy of the parameter.
    """

    def __init__(self, correlation: bool = True, normalize: bool = False, inplace: bool = True, eps: float = 1e-8) -> None:
        super().__init__(correlation, normalize, inplace, eps)

    def _compare(self, name: str, before: Tensor, after: Tensor) -> None:
        self._add(name, difference(after, before), None)


class UpdateRatio(_OfUpdates):
    """Preprocessor: the length of a parameter's update, divided by the length of the parameter.

    >>> import torch
    >>> from sonde.preprocessor import UpdateRatio
    >>> ratios = UpdateRatio()
    >>> for value in (torch.tensor([3.0, 4.0]), torch.tensor([3.0, 9.0])):
    ...     ratios.process_tensor("weight", value)
    >>> ratios.value["weight"].mean
    1.0

    *Tensor to number*: ``|after - before| / |before|``, Euclidean norms computed in float64, no unit (``ratio`` of
    :class:`sonde.stats.Updates`); 1e-3 is usual in a healthy training. *Numbers to aggregates*: over calls, which through
    ``observe`` are the optimizer steps. ``value[parameter]`` is the aggregate.

    A parameter that was all zeros has no ratio; a NaN or an infinity in one of the two tensors is counted as ``nonfinite``.

    Args:
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.
    """

    def __init__(self, inplace: bool = True) -> None:
        super().__init__([NumberSpec(Updates(), {"ratio": "ratio"})], inplace)

    def _compare(self, name: str, before: Tensor, after: Tensor) -> None:
        self._interval.add(name, after, before)


class UpdateRounding(Measured):
    """Preprocessor: the share of a parameter's elements whose update vanished in the parameter's precision.

    >>> import torch
    >>> from sonde.preprocessor import UpdateRounding
    >>> shares = UpdateRounding()
    >>> before = torch.tensor([1.0, 1.0], dtype=torch.float16)
    >>> wanted = torch.tensor([1e-8, 0.5])
    >>> shares.process_update("weight", before, before + wanted.half(), wanted)
    >>> shares.value["weight"].mean
    0.5

    *Tensor to number*: among all elements, the share that got a gradient other than 0 and that the step left exactly as
    before (:func:`sonde.stats.vanished_share`): the update was smaller than half the distance to the next number
    of the parameter's type. *Numbers to aggregates*: over optimizer steps. ``value[parameter]`` is the aggregate.

    With momentum or weight decay, the optimizer may also move an element without a gradient. Such an element is not counted where
    it stays as before: the share is then a lower bound. A learning rate of 0 makes every update vanish. A parameter without a
    gradient has no number. Through ``observe``, one byte per element is kept between backward pass and step.

    Args:
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.
    """

    ports: tuple[Port, ...] = ("grad", "update")
    _accepted: ClassVar[tuple[Port, ...]] = ("grad", "update")

    def __init__(self, inplace: bool = True) -> None:
        super().__init__([NumberSpec(Single(), {"vanished": "value"})], inplace)
        self._wanted: dict[str, Tensor] = {}  # by parameter: which elements got a gradient since the last step

    def process_update(self, name: str, before: Tensor, after: Tensor, wanted: Tensor) -> None:
        """Measure the share of an update that vanished.

        Args:
            name: name of the parameter.
            before, after: the parameter before and after the step.
            wanted: a tensor that is 0 exactly where no update was wanted, such as the gradient.

        Raises:
            ArgumentError: the three tensors have different shapes.
        """
        self._interval.expect(name)
        if _is_update(before, after):
            share = vanished_share(*(dense(tensor.detach()) for tensor in (after, before, wanted)))
            self._interval.add(name, share)

    def _process(self, event: Event) -> None:
        name = name_of(event.site)
        self._interval.expect(name)
        if event.site.port == "grad":
            self._wanted[name] = dense(event.value.detach()) != 0
        elif (wanted := self._wanted.pop(name, None)) is not None:
            before, after = event.value
            self.process_update(name, before, after, wanted)

    def clear(self) -> None:
        super().clear()
        self._wanted.clear()


def _is_update(before: Tensor, after: Tensor) -> bool:
    """Return whether there is anything to measure."""
    if nothing_to_measure(before, "before") or nothing_to_measure(after, "after"):
        return False
    before, after = dense(before), dense(after)
    if before.shape != after.shape:
        raise ArgumentError(f"before and after must have one shape, not {tuple(before.shape)} and {tuple(after.shape)}")
    return True


def difference(after: Tensor, before: Tensor) -> Tensor:
    """Return *after* - *before* in double precision; exact for elements of up to 32 bits and similar magnitude."""
    wide = torch.complex128 if after.is_complex() else torch.float64
    return dense(after.detach()).to(wide) - dense(before.detach()).to(after.device, wide)
