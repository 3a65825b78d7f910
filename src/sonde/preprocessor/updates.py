"""Of what a step does to a parameter: how far it moves, in proportion to its size, and what is lost in rounding."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from sonde.engine import Event, Port
from sonde.errors import ArgumentError
from sonde.preprocessor.base import AbstractTensorPreprocessor, name_of
from sonde.preprocessor.geometry import SequenceGeometry
from sonde.preprocessor.interval import NumberSpec
from sonde.preprocessor.measured import Measured, nothing_to_measure
from sonde.stats import Updates, vanished_share
from sonde.stats.history import History
from sonde.stats.samples import Single
from sonde.stats.statistic import dense

__all__ = ["ParameterDifferenceGeometry", "UpdateRatio", "UpdateRounding"]


class _OfUpdates(Measured, AbstractTensorPreprocessor):
    """Compares a parameter with what it was: in the call before, or before an optimizer step."""

    ports: tuple[Port, ...] = ("update",)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._parameters = History()

    @abstractmethod
    def _measure(self, name: str, before: Tensor, after: Tensor) -> None:
        """Measure an update of a parameter that has elements."""

    def process_tensor(self, name: str, param: Tensor | None) -> None:
        """Measure how a parameter differs from what it was in the last call.

        The first call gives no number, nor does one with another shape.
        """
        self._interval.expect(name)
        if param is None or nothing_to_measure(param, "a parameter"):
            return
        before = self._parameters.previous(name)
        if before is not None and before.shape == param.shape:
            self._measure(name, before, param)
        self._parameters.remember(name, param)

    def process_update(self, name: str, before: Tensor, after: Tensor) -> None:
        """Measure how a parameter differs *after* a step from *before* it.

        Raises:
            ArgumentError: the two are not of one shape.
        """
        self._interval.expect(name)
        if _is_update(before, after):
            self._measure(name, before, after)

    def __call__(self, event: Event) -> None:
        if event.site.port == "param":
            self.process_tensor(name_of(event), event.value)
        elif event.site.port == "update":
            self.process_update(name_of(event), *event.value)
        else:
            self._refuse(event)

    def clear(self) -> None:
        super().clear()
        self._parameters.clear()


class ParameterDifferenceGeometry(_OfUpdates, SequenceGeometry):
    """Length of the updates of a parameter, and the correlation of each with the update before.

    The numbers, the arguments and where they differ from the seed: see :class:`SequenceGeometry`, of the difference of the
    parameter after and before, formed in float64.

    Each call of ``process_tensor`` is compared with the call before; the first gives no number, as nothing is known of what
    the parameter was before it. Through ``observe`` every optimizer step counts, the first too, and the copy of the
    parameter is the engine's.
    """

    def __init__(self, correlation: bool = True, normalize: bool = False, inplace: bool = True, eps: float = 1e-8) -> None:
        super().__init__(correlation, normalize, inplace, eps)

    def _measure(self, name: str, before: Tensor, after: Tensor) -> None:
        self._add(name, _difference(after, before))


class UpdateRatio(_OfUpdates):
    """Length of a parameter's update in proportion to the parameter's own.

    *Tensor to number*: ``|after - before| / |before|``, Euclidean norms formed in float64, no unit (``ratio`` of
    :class:`sonde.stats.Updates`); 1e-3 is usual in a healthy training. *Numbers to aggregates*: over calls, which through
    ``observe`` are the optimizer steps. ``value[parameter]`` is the aggregate.

    A parameter that was all zeros has no ratio; a NaN or an infinity in either is counted as ``nonfinite``.

    Args:
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.
    """

    def __init__(self, inplace: bool = True) -> None:
        super().__init__([NumberSpec(Updates(), {"ratio": "ratio"})], inplace)

    def _measure(self, name: str, before: Tensor, after: Tensor) -> None:
        self._interval.add(name, after, before)


class UpdateRounding(Measured):
    """Share of a parameter's elements whose update vanished in the parameter's precision.

    *Tensor to number*: the share, of all elements, of those that got a gradient other than 0 and are after the step exactly
    what they were before (:func:`sonde.stats.vanished_share`): the update was smaller than half the distance to the next number
    that the parameter's type has. *Numbers to aggregates*: over optimizer steps. ``value[parameter]`` is the aggregate.

    With momentum or weight decay an element without a gradient may be meant to move; it is not counted if it does not, so
    that the share is then the least it can be. A learning rate of 0 makes every update vanish. A parameter without a
    gradient has no number. Through ``observe`` it takes a byte per element between backward pass and step.

    Args:
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.
    """

    ports: tuple[Port, ...] = ("grad", "update")

    def __init__(self, inplace: bool = True) -> None:
        super().__init__([NumberSpec(Single(), {"vanished": "value"})], inplace)
        self._wanted: dict[str, Tensor] = {}  # by parameter: which elements have got a gradient since the last step

    def process_update(self, name: str, before: Tensor, after: Tensor, wanted: Tensor) -> None:
        """Measure what is left of an update.

        Args:
            name: of the parameter.
            before, after: it, before and after the step.
            wanted: what is 0 exactly where no update was wanted, such as the gradient.

        Raises:
            ArgumentError: the three are not of one shape.
        """
        self._interval.expect(name)
        if _is_update(before, after):
            share = vanished_share(*(dense(tensor.detach()) for tensor in (after, before, wanted)))
            self._interval.add(name, share)

    def __call__(self, event: Event) -> None:
        name = name_of(event)
        if event.site.port == "grad":
            self._interval.expect(name)
            self._wanted[name] = dense(event.value.detach()) != 0
        elif event.site.port == "update":
            self._interval.expect(name)
            wanted = self._wanted.pop(name, None)
            if wanted is not None:
                before, after = event.value
                self.process_update(name, before, after, wanted)
        else:
            self._refuse(event)

    def clear(self) -> None:
        super().clear()
        self._wanted.clear()


def _is_update(before: Tensor, after: Tensor) -> bool:
    """Whether there is anything to measure.

    Raises:
        ArgumentError: there is, and the two are not of one shape.
    """
    if nothing_to_measure(before, "before") or nothing_to_measure(after, "after"):
        return False
    if before.shape != after.shape:
        raise ArgumentError(f"before and after must have one shape, not {tuple(before.shape)} and {tuple(after.shape)}")
    return True


def _difference(after: Tensor, before: Tensor) -> Tensor:
    """Exact for parameters of up to 32 bits that are of a size."""
    wide = torch.complex128 if after.is_complex() else torch.float64
    return dense(after.detach()).to(wide) - dense(before.detach()).to(after.device, wide)
