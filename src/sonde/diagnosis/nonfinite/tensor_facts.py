"""Describe the numbers of a tensor in a few words: shape, dtype, range, and how many NaN, infinities and zeros."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from sonde.engine import OperatorMode, torch_tensors
from sonde.stats import PLAIN, Piece, local
from sonde.words import number_text, shape_text

_UNREADABLE = (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """The numbers of one tensor.

    Attributes:
        shape: of the tensor.
        dtype: without ``torch.``: ``float16``.
        low, high: the smallest and the largest finite element; NaN where no element is finite. Of a complex tensor, of all
            real and imaginary parts.
        count: elements; of a sparse tensor those that are stored.
        nan, positive_infinities, negative_infinities, zeros: elements.
    """

    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float
    count: int
    nan: int
    positive_infinities: int
    negative_infinities: int
    zeros: int

    @classmethod
    def of(cls, tensor: Tensor) -> TensorFacts | None:
        """Return the facts of *tensor*; None if its numbers cannot be read."""
        held = dense(tensor)
        if held is None:
            return None
        with contextlib.suppress(*_UNREADABLE):
            return _facts(tuple(map(int, tensor.shape)) if not tensor.is_nested else (int(tensor.size(0)),), tensor.dtype, held)
        return None

    @property
    def is_finite(self) -> bool:
        """Whether the tensor holds neither NaN nor infinities."""
        return not (self.nan or self.positive_infinities or self.negative_infinities)

    @property
    def bad(self) -> str:
        """The counts of what is not finite: ``64 -inf``."""
        counts = ((self.nan, "NaN"), (self.positive_infinities, "inf"), (self.negative_infinities, "-inf"))
        return ", ".join(f"{'all' if count == self.count else format(count, ',')} {word}" for count, word in counts if count)

    @property
    def numbers(self) -> str:
        """The range and the counts: ``from -3.2 to 5.1, 64 -inf``."""
        parts = []
        if self.count == 0:
            return "no element"
        if not math.isnan(self.low):
            both = self.low == self.high
            parts.append(number_text(self.low) if both else f"from {number_text(self.low)} to {number_text(self.high)}")
        parts += [self.bad] if self.bad else []
        if self.zeros and not self.low == self.high == 0:
            parts.append(f"{self.zeros:,} zero")
        return ", ".join(parts)

    def __str__(self) -> str:
        return f"{shape_text(self.shape)} {self.dtype}, {self.numbers}"


def dtype_name(dtype: torch.dtype) -> str:
    """Return *dtype* without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def of_this_rank(tensor: Tensor) -> Tensor | None:
    """Return what this rank holds of *tensor*, also an addend of it; *tensor* itself if it is not distributed."""
    if not Piece.is_partial_sum(tensor):
        return local(tensor)
    with torch.no_grad():
        held: Tensor = tensor.to_local()  # type: ignore[attr-defined]
        return local(held)


def dense(tensor: Tensor) -> Tensor | None:
    """Return the stored numbers of *tensor* as a plain tensor; None where there are none in memory, or none that can be read.

    Of a sparse or nested tensor these are its values; of a distributed one the part, or the addend, that this rank holds.
    """
    with contextlib.suppress(*_UNREADABLE):
        if type(tensor) not in PLAIN:
            part = of_this_rank(tensor)
            if part is None:
                return None
            tensor = part
        if tensor.is_meta or tensor.is_quantized:
            return None
        if tensor.is_nested:
            tensor = tensor.values() if tensor.layout == torch.jagged else torch.cat([part.flatten() for part in tensor.unbind()])
        elif tensor.layout != torch.strided:
            tensor = tensor.to_dense() if "mkldnn" in str(tensor.layout) else torch_tensors.stored_values(tensor)
        held: Tensor = OperatorMode.with_memory(tensor.detach()).resolve_conj().resolve_neg()
        return held if type(held) in PLAIN else None
    return None


def memory_of(tensor: Tensor) -> StorageWeakRef | None:
    """Return a weak reference to the memory that *tensor* lies in; None where it has none of its own."""
    held = dense(tensor)
    if held is None:
        return None
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        return StorageWeakRef(held.untyped_storage())
    return None


def zeros_in(tensor: Tensor) -> int:
    """Return how many elements of *tensor* are 0, by one read; none if unreadable."""
    held = dense(tensor)
    return 0 if held is None else int((held == 0).sum())


def largest(tensor: Tensor) -> float | None:
    """Return the largest magnitude in *tensor*, by one read: NaN or infinity where there are such elements; None if unreadable."""
    held = dense(tensor)
    if held is None or not (held.is_floating_point() or held.is_complex()):
        return None
    if held.numel() == 0:
        return 0.0
    with contextlib.suppress(*_UNREADABLE):
        return float(torch.linalg.vector_norm(held, math.inf))
    with contextlib.suppress(*_UNREADABLE):  # a dtype that has no such norm, as those of 8 bits
        return float(torch.linalg.vector_norm(held.float(), math.inf))
    return None


def _facts(shape: tuple[int, ...], dtype: torch.dtype, held: Tensor) -> TensorFacts:
    flat: Any = torch.view_as_real(held).flatten() if held.is_complex() else held.flatten()
    if flat.dtype not in (torch.float64, torch.float32, torch.int64):
        flat = flat.to(torch.int64 if not flat.is_floating_point() else torch.float32)
    finite = flat[flat.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (math.nan, math.nan)
    return TensorFacts(
        shape,
        dtype_name(dtype),
        low,
        high,
        held.numel(),
        int(held.isnan().sum()),
        int((flat == math.inf).sum()),
        int((flat == -math.inf).sum()),
        int((held == 0).sum()),
    )
