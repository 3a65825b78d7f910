"""Norms of many tensors at once: parameters, gradients and updates of a whole model in a few calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.stats.kernels import native

__all__ = ["norms"]


def norms(tensors: Iterable[Tensor | None], minus: Iterable[Tensor | None] | None = None) -> Tensor:
    """The Euclidean norm of each tensor, or of each difference, without waiting for a device.

    One call of the compiled kernel for all plain tensors on the CPU, a constant number of ``torch._foreach`` calls for each
    other device and precision. Squares are summed in float64: neither do gradients of 1e-20 vanish nor float16 values
    overflow. A norm is one number and cannot count apart: it is NaN or infinite where an element is (``Moments`` counts).

    >>> norms([torch.tensor([3.0, 4.0]), None, torch.ones(4, dtype=torch.bfloat16)]).tolist()
    [5.0, 0.0, 2.0]

    Args:
        tensors: any mixture of shapes, precisions and devices. None has no elements, as a gradient that no loss reaches, and
            like an empty tensor the norm 0.
        minus: as many, of the same shapes, to be subtracted first: updates are ``norms(parameters, minus=before)``. The
            difference is formed in float64 on the CPU, in the tensors' own precision elsewhere; where either is None the
            difference has no elements.

    Returns:
        float64, shape ``(len(tensors),)``, on the device of the first tensor that is on an accelerator, else on the CPU.

    Raises:
        ArgumentError: *tensors* and *minus* do not match, or one of them is distributed: give its ``to_local()``.
    """
    firsts = list(tensors)
    seconds = [None] * len(firsts) if minus is None else list(minus)
    _check(firsts, seconds)
    made = torch.zeros(len(firsts), dtype=torch.float64)
    spans: list[tuple[int, int, int, int]] = []
    places: list[int] = []
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
        if first is None or (minus is not None and second is None) or first.numel() == 0:
            continue
        span = _span(first, second)
        if span is None:
            groups.setdefault((first.device, first.dtype), []).append(index)
        else:
            spans.append(span)
            places.append(index)
    if spans:
        found = torch.empty(len(spans), dtype=torch.float64)
        native.module().norms(found.data_ptr(), spans, native.threads(max(span[3] for span in spans)))  # type: ignore[union-attr]
        made[places] = found
    for (device, _), indices in groups.items():
        found = _of_group([firsts[index] for index in indices], [seconds[index] for index in indices])  # type: ignore[misc]
        if made.is_cpu and device.type != "cpu":
            made = made.to(device, non_blocking=True)
        made[torch.tensor(indices, device=made.device)] = found.to(made.device, non_blocking=True)
    return made


def _check(firsts: Sequence[Tensor | None], seconds: Sequence[Tensor | None]) -> None:
    if len(firsts) != len(seconds):
        raise ArgumentError(f"norms of {len(firsts)} tensors minus {len(seconds)}: give as many of one as of the other")
    for index, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
        if hasattr(first, "to_local") or hasattr(second, "to_local"):
            raise ArgumentError(f"tensor {index} is distributed: its norm would need communication; give its to_local()")
        if first is not None and second is not None and (first.shape != second.shape or first.device != second.device):
            raise ArgumentError(
                f"tensor {index} is {tuple(first.shape)} on {first.device} and what is subtracted {tuple(second.shape)} on "
                f"{second.device}: both must be alike"
            )


def _span(first: Tensor, second: Tensor | None) -> tuple[int, int, int, int] | None:
    """Addresses, kind and number of elements, if the kernel can read them in the order of memory."""
    if native.module() is None or not native.is_plain(first) or not _is_dense(first):
        return None
    if second is not None and not (
        native.is_plain(second) and second.dtype is first.dtype and second.stride() == first.stride() and _is_dense(second)
    ):
        return None
    try:
        data, other = first.data_ptr(), 0 if second is None else second.data_ptr()
    except RuntimeError:  # inside a function transform there is no memory
        return None
    if not data or (second is not None and not other):
        return None
    return data, other, native.KINDS[first.dtype], first.numel()


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def _of_group(firsts: list[Tensor], seconds: list[Tensor | None]) -> Tensor:
    """Norms of tensors of one device and precision, by torch."""
    values = [_values(first) for first in firsts]
    if any(second is not None for second in seconds):
        others = [_values(second).to(first.dtype) for first, second in zip(values, seconds, strict=True) if second is not None]
        if values[0].is_cpu:
            values, others = [item.to(torch.float64) for item in values], [item.to(torch.float64) for item in others]
        values = list(torch._foreach_sub(values, others))
    return torch.stack(torch._foreach_norm(values, 2.0, dtype=torch.float64))


def _values(tensor: Tensor) -> Tensor:
    """Real numbers with the same norm."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor if tensor.is_floating_point() else tensor.to(torch.float64)
