"""In which form the rows of a site are stored: transformed, of another type, or with a loss that is measured."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from sonde.engine import walk
from sonde.errors import ArgumentError
from sonde.words import names_text

Transform: TypeAlias = Callable[[Tensor], Any] | str
"""From the rows of one site in one batch to what is stored of them: a tensor, or several in a structured value, with as many rows;
``"top-64"`` for the 64 values of each row that are largest in magnitude, with their indices."""

_TOP = re.compile(r"top-(\d+)")
_INT8 = 127


class TopValues(NamedTuple):
    """The largest values of each row, in falling order of magnitude, and where they were."""

    values: Tensor
    indices: Tensor


class Loss:
    """What a lossy form loses at one site, measured: sums over the rows so far, on the device.

    Attributes:
        largest, squared, total: the largest error, the sum of squared errors, and that of the squared values.
        non_finite: values that were NaN or infinite; they do not count in the other three.
    """

    def __init__(self) -> None:
        self.largest = self.squared = self.total = self.non_finite = torch.zeros((), dtype=torch.float64, device="cpu")

    def add(self, rows: Tensor, restored: Tensor) -> None:
        """Add *rows*, which a reader sees as *restored*."""
        rows, restored = rows.double(), restored.double()
        is_finite = rows.isfinite() & restored.isfinite()
        error = torch.where(is_finite, (rows - restored).abs(), 0.0)
        device = rows.device
        if rows.numel():
            self.largest = torch.maximum(self.largest.to(device, non_blocking=True), error.max())
        self.squared = self.squared.to(device, non_blocking=True) + error.square().sum()
        self.total = self.total.to(device, non_blocking=True) + torch.where(is_finite, rows, 0.0).square().sum()
        self.non_finite = self.non_finite.to(device, non_blocking=True) + (~is_finite).sum()

    def numbers(self) -> list[float]:
        """Return the four numbers. Waits for the device."""
        return [float(each) for each in (self.largest, self.squared, self.total, self.non_finite)]


def summed(parts: list[list[float]]) -> dict[str, float | int | None]:
    """Return the error of a whole store, of the numbers of each shard's :class:`Loss`."""
    squared, total = math.fsum(part[1] for part in parts), math.fsum(part[2] for part in parts)
    return {
        "max_error": max((part[0] for part in parts), default=0.0),
        "relative_rms": math.sqrt(squared / total) if total else None,
        "non_finite": int(sum(part[3] for part in parts)),
    }


class Forms:
    """Which form each site is stored in.

    Args:
        transform: one function for all sites, or several by a regular expression that is searched in the site's text.
        dtype: the type of all floating-point tensors; ``"int8"`` for whole numbers with a scale for each row.

    Raises:
        ArgumentError: an argument cannot be read.
    """

    def __init__(self, transform: Transform | Mapping[str, Transform] | None, dtype: torch.dtype | str | None) -> None:
        given = transform if isinstance(transform, Mapping) else {} if transform is None else {"": transform}
        self._transforms: list[tuple[re.Pattern[str], Callable[[Tensor], Any]]] = []
        for where, each in given.items():
            try:
                self._transforms.append((re.compile(where), _function(each)))
            except (re.error, TypeError) as error:
                raise ArgumentError(f"transform: {where!r} is no regular expression for sites: {error}") from None
        self.is_int8 = dtype == "int8"
        self.dtype = torch.float32
        self._casts = dtype is not None and not self.is_int8
        if self._casts:
            found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
            if not isinstance(found, torch.dtype) or not found.is_floating_point:
                raise ArgumentError(f'dtype={dtype!r}: give a floating-point type, as torch.bfloat16, or "int8"')
            self.dtype = found
        self.losses: dict[str, Loss] = {}
        """What was lost since this was emptied, by column."""

    def check(self, columns: list[str]) -> None:
        """Check that each transform has a site among *columns*.

        Raises:
            ArgumentError: one has none.
        """
        for where, _ in self._transforms:
            if not any(where.search(column) for column in columns):
                raise ArgumentError(f"transform: {where.pattern!r} is found in no site. There are {names_text(columns, 5)}")

    def is_plain(self, column: str) -> bool:
        """Return whether rows of the site *column* are stored as they are, but for a cast."""
        return not self.is_int8 and not any(where.search(column) for where, _ in self._transforms)

    def stored_type(self, tensor: Tensor) -> torch.dtype:
        """Return the type in which *tensor* is stored."""
        return self.dtype if self._casts and tensor.is_floating_point() else tensor.dtype

    def of(self, column: str, rows: Tensor) -> dict[str, Tensor]:
        """Return what is stored of *rows* of the site *column*, by the name of a column each.

        Raises:
            ArgumentError: a transform has not returned tensors with as many rows.
        """
        found = next((function for where, function in self._transforms if where.search(column)), None)
        parts = [("", rows)] if found is None else walk(made := found(rows))
        if not parts or any(tensor.shape[:1] != rows.shape[:1] for _, tensor in parts):
            shapes = ", ".join(str(tuple(tensor.shape)) for _, tensor in parts) or f"a {type(made).__name__}"
            raise ArgumentError(f"the transform of {column} got {len(rows)} rows, and returned {shapes}: return as many rows")
        if found is not None and isinstance(made, TopValues):
            flat = rows.flatten(1)
            restored = torch.zeros_like(flat).scatter_(1, made.indices.long(), made.values)
            self._lost(column, flat, restored)
        stored: dict[str, Tensor] = {}
        for path, tensor in parts:
            if self.is_int8 and tensor.is_floating_point():
                whole, scale = _as_int8(tensor)
                stored |= {column + path: whole, f"{column}{path}.scale": scale}
                if found is None or not isinstance(made, TopValues):
                    self._lost(column + path, tensor, whole * scale.reshape(-1, *[1] * (tensor.dim() - 1)))
            else:
                stored[column + path] = tensor
        return stored

    def _lost(self, column: str, rows: Tensor, restored: Tensor) -> None:
        self.losses.setdefault(column, Loss()).add(rows, restored)


def _function(given: Any) -> Callable[[Tensor], Any]:
    found = _TOP.fullmatch(given) if isinstance(given, str) else None
    if found is not None and int(found[1]):
        return _Top(int(found[1]))
    if not callable(given):
        raise ArgumentError(f'transform={given!r}: give a function from rows to a tensor with as many rows, or "top-64"')
    return given  # type: ignore[no-any-return]  # whatever it returns is looked at


class _Top:
    """The transform ``"top-<k>"``."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, rows: Tensor) -> TopValues:
        flat = rows.flatten(1)
        indices = flat.abs().topk(min(self.k, flat.shape[1])).indices
        return TopValues(flat.gather(1, indices), indices.int())


def _as_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return *rows* as whole numbers from -127 to 127 and the factor of each row. Of a row with NaN or infinity it is no number."""
    flat = rows.flatten(1).float() if rows.dim() > 1 else rows[:, None].float()
    scale = flat.abs().amax(1) / _INT8 if flat.shape[1] else flat.new_zeros(len(flat))
    whole = (flat / scale[:, None]).round()
    whole = torch.where((scale[:, None] > 0) & whole.isfinite(), whole, 0.0)
    return whole.to(torch.int8).reshape(rows.shape), torch.where(scale.isfinite(), scale, math.nan)
