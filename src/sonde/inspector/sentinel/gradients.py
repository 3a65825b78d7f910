"""Look whether the gradients of an optimizer are finite, in a share of the step's time that stays below a limit.

Nothing that is not finite gets from a forward or backward pass into a parameter without standing in a gradient that an optimizer is
about to use. So all gradients are looked at before each step where that takes less than ``SHARE`` of the time between two steps.
In faster loops two small gradients are looked at before each step, and all before every n-th. The two are of the first and
of the last quarter of the parameters. A NaN of the forward is in the gradients of the last layers, and a NaN of the backward in
those of all layers before the place where it began. Only one weight's own gradient can overflow without being seen there: then
it is found at the next look at all gradients, or as the parameter makes everything else NaN.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import ceil, inf, isfinite, isnan

import torch
from torch import Tensor

from sonde.engine import is_floating, torch_tensors
from sonde.errors import ArgumentError
from sonde.stats import PLAIN, dense, local, nonfinite_in, unreadable

SHARE = 0.0025
"""The share of the time between two steps that looks at all gradients may take."""


class GradientLook:
    """Looks at the gradients of *parameters*, which one optimizer steps, given in the order of the model.

    Attributes:
        every: all gradients are looked at before every so many steps.
    """

    __slots__ = ("_before_all", "_cost", "_ends", "every", "parameters")

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.every = 1
        self._before_all = 0  # steps until all gradients are looked at again
        self._ends: tuple[Tensor, ...] = ()
        self._cost = 0.0

    def is_finite(self, step_time: float) -> bool:
        """Return whether all gradients that are looked at now are finite. Waits for a device that they are on.

        Args:
            step_time: seconds between two steps; 0 if that is not known.
        """
        if self._rests():
            return self.is_finite_at_ends()
        begun = time.perf_counter()
        finite = are_finite(self.gradients())
        self._spent(time.perf_counter() - begun, step_time)
        return finite

    def magnitudes(self, step_time: float) -> list[tuple[list[Tensor], Tensor]]:
        """Return the largest magnitude in each gradient that is looked at now, by device: the parameters, and their numbers.

        The numbers stay on the device, in float64 or narrower. Nothing waits for it.
        """
        if self._rests():
            self._ends = self._ends or self._small()
            return _magnitudes(self._ends)
        begun = time.perf_counter()
        found = _magnitudes(self.parameters)
        self._spent(time.perf_counter() - begun, step_time)
        return found

    def squares(self) -> tuple[list[Tensor], list[float]]:
        """Return the parameters that have gradients, and the squared norms of these. Waits for a device that they are on."""
        parts = _parts(self.parameters)
        norms = [norm.item() for _, each in parts for norm in torch_tensors.norms_of(each)]
        return [parameter for held, _ in parts for parameter in held], [norm * norm for norm in norms]

    def squares_later(self) -> list[Tensor]:
        """Return the sum of the squares of all gradients on each device."""
        norms = [torch.stack(list(torch_tensors.norms_of(each))) for _, each in _parts(self.parameters)]
        return [norm.to(torch.float64).square().sum() for norm in norms]

    def _rests(self) -> bool:
        """Return whether all gradients were looked at so lately that two are enough."""
        self._before_all -= 1
        return self._before_all >= 0

    def _spent(self, seconds: float, step_time: float) -> None:
        """Choose how many steps later all gradients are looked at again, which took so many *seconds* now."""
        self._cost = seconds if not self._cost else min(seconds, 1.02 * self._cost)  # another program may have taken the processor
        if step_time:
            self.every = max(1, ceil(self._cost / (SHARE * step_time)))
        self._before_all = self.every - 1

    def is_finite_at_ends(self) -> bool:
        """Return whether the gradients of two small parameters, near the input and near the output, are finite."""
        found = [gradient for end in self._ends if (gradient := end.grad) is not None]
        if not found or len(found) < len(self._ends):
            self._ends = self._small()
            found = [gradient for end in self._ends if (gradient := end.grad) is not None]
        return are_finite(found)

    def gradients(self) -> list[Tensor]:
        """Return the gradients that there are."""
        return [gradient for parameter in self.parameters if (gradient := parameter.grad) is not None]

    def _small(self) -> tuple[Tensor, ...]:
        having = [each for each in self.parameters if each.grad is not None and is_floating(each.grad) and each.numel()]
        quarter = -(-len(having) // 4)
        ends = [min(part, key=Tensor.numel) for part in (having[:quarter], having[-quarter:]) if part]
        return tuple({id(end): end for end in ends}.values())


def are_finite(tensors: list[Tensor]) -> bool:
    """Return whether all numbers of *tensors* are finite; of distributed ones those that this rank holds."""
    number, unread = nonfinite_in(tensors)
    return not number and (not unread or _are_finite([tensors[at] for at in unread]))


def _are_finite(tensors: Sequence[Tensor]) -> bool:
    plain = [
        each for each in tensors if type(each) is Tensor and each.dtype in _WIDE and each.layout is _STRIDED and not each.is_meta
    ]
    total = sum(norm.item() for norm in torch_tensors.norms_of(plain))
    if not isfinite(total):  # of finite numbers squares may overflow
        return all(map(is_finite, tensors))
    return len(plain) == len(tensors) or all(is_finite(each) for each in tensors if not any(each is known for known in plain))


_WIDE = (torch.float32, torch.float64)  # norms of others overflow, or are slow
_STRIDED = torch.strided


def _parts(parameters: Sequence[Tensor]) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Return by device the parameters that have a gradient, and the numbers of these gradients."""
    by_device: dict[torch.device, tuple[list[Tensor], list[Tensor]]] = {}
    for parameter in parameters:
        part = None if parameter.grad is None else _dense_part(parameter.grad, coalesced=False)
        if part is not None and part.numel():
            held, parts = by_device.setdefault(part.device, ([], []))
            held.append(parameter)
            parts.append(part)
    return list(by_device.values())


def _magnitudes(parameters: Sequence[Tensor]) -> list[tuple[list[Tensor], Tensor]]:
    return [(held, torch.stack(list(torch_tensors.norms_of(parts, inf)))) for held, parts in _parts(parameters)]


def is_finite(tensor: Tensor) -> bool:
    """Return whether all numbers of *tensor* are finite; of a distributed one those that this rank holds."""
    part = _dense_part(tensor)
    return part is None or bool(part.isfinite().all())


def _dense_part(tensor: Tensor, *, coalesced: bool = True) -> Tensor | None:
    """Return the numbers of *tensor* that this rank holds; None if it holds none, or they are no floating-point numbers.

    Args:
        coalesced: sum those of a sparse tensor that are of one position, which waits for a device.
    """
    part = tensor if type(tensor) in PLAIN else local(tensor)
    if part is None or not is_floating(part) or unreadable(part):
        return None
    if type(part) not in PLAIN:
        try:
            part = dense(part)
        except ArgumentError:  # a class that does not tell its values
            return None
    part = part.detach()
    if part.layout is not torch.strided:
        part = (
            part.coalesce().values()
            if part.is_sparse and coalesced
            else torch_tensors.stored_values(part)
            if part.is_sparse
            else part.to_dense()
        )
    return part if part.numel() else None


def kind_of(number: float) -> str:
    """Return ``NaN`` or ``inf`` for a number that is not finite, and ``""`` for one that is."""
    return "" if isfinite(number) else "NaN" if isnan(number) else "inf"


def kind_in(tensor: Tensor) -> str:
    """Return ``NaN``, or else ``inf``, if *tensor* holds such elements; ``""`` if all are finite."""
    part = _dense_part(tensor)
    return "" if part is None or bool(part.isfinite().all()) else "NaN" if bool(part.isnan().any()) else "inf"
