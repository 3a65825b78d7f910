"""Disturb every result of an operation by one rounding, to measure how far rounding alone moves the numbers of a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sonde.engine.torch_api.dispatch import OperatorCall, OperatorMode
from sonde.engine.torch_api.pytree import flatten

_REDUCED = ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "convolution", "conv", "attention")
"""Parts of the names of operations that a device may compute with shorter factors, as TF32."""


class RoundingMode(OperatorMode):
    """While entered, multiply each floating result of an operation by ``1 + d``, with random ``|d|`` up to its type's ``eps``.

    Elements that are whole numbers stay, since operations on whole numbers are exact and may become indices; so do infinities,
    and numbers that would overflow. What an operation picks among its operands stays, too: the largest of some numbers is one of
    them, and code that compares them to it would choose otherwise. Views, types other than plain tensors, and what a collective
    still writes stay as well. Gradients are disturbed like other results. The random numbers come from a generator of the mode's
    own.

    Args:
        seed: of the random numbers.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def operator(self, call: OperatorCall) -> Any:
        result = call.run()
        name = getattr(call.function, "__name__", "")
        if call.is_view or call.is_unfinished or name.partition(".")[0] in _PICKING:
            return result
        for tensor in [result] if isinstance(result, Tensor) else flatten(result)[0]:
            if type(tensor) is Tensor and _can_be_disturbed(tensor):
                self._disturb(tensor, _spacing(tensor, name))
        return result

    def _disturb(self, tensor: Tensor, spacing: float) -> None:
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        generator = self._generators.get(real.device)
        if generator is None:
            generator = self._generators[real.device] = torch.Generator(real.device).manual_seed(self._seed)
        wide = real.float() if real.element_size() < 4 else real
        signed = torch.rand(wide.shape, generator=generator, dtype=wide.dtype, device=wide.device).mul_(2).sub_(1)
        moved = (wide + wide * signed.mul_(spacing)).to(real.dtype)
        real.copy_(torch.where((wide == wide.round()) | ~moved.isfinite(), real, moved))


_PICKING = {"topk", "sort", "msort", "kthvalue", "max", "min", "amax", "amin", "aminmax", "median", "nanmedian", "mode", "cummax"}
_PICKING |= {"cummin", "gather", "index", "index_select", "take"}
"""Operations whose results are entries of their operands."""


def _can_be_disturbed(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested or tensor._is_zerotensor():
        return False
    if tensor.is_conj() or tensor.is_neg():
        return False
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.real.element_size() < 2:
        return False
    return all(step or length == 1 for step, length in zip(tensor.stride(), tensor.shape, strict=True))  # one element, one place


def _spacing(tensor: Tensor, operation: str) -> float:
    spacing = torch.finfo(tensor.dtype).eps
    if tensor.dtype is torch.float32 and any(part in operation for part in _REDUCED):
        return max(spacing, _of_products(tensor.device))
    return spacing


def _of_products(device: torch.device) -> float:
    """Return the relative spacing of the factors of float32 products on *device*: that of TF32 where torch allows it."""
    if device.type == "cuda" and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32):
        return 2.0**-10
    return torch.finfo(torch.float32).eps
