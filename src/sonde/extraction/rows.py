"""Which rows of a batch are kept: its items, or some positions of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.words import names_text, shape_text

Positions: TypeAlias = str | slice | Tensor | Callable[[Any], Any] | None
"""``positions``: a key of the batch, ``"last"``, ``"all"``, ``"-8:"``, a slice, a mask, indices, or a function from a batch to one
of the last two; None: a row is an item."""

_NAMED = {"all": slice(None), "last": slice(-1, None)}
_SLICE = re.compile(r"\s*(-?\d+)?\s*:\s*(-?\d+)?\s*(?::\s*(-?\d+)?\s*)?")
_PADDING = "attention_mask"


class Rows:
    """The rows of one batch.

    Attributes:
        items: how many items the batch has.
        positions: how many positions each item has, padding included; None: a row is an item.
        item: of each row, the number of its item in the batch.
        position: of each row, its position in the item; None where a row is an item.
    """

    def __init__(self, items: int, positions: int | None, kept: Tensor | None) -> None:
        """Keep the rows at which *kept*, items or items times positions, is true; all if it is None."""
        self.items = items
        self.positions = positions
        shape = (items,) if positions is None else (items, positions)
        every = torch.ones(shape, dtype=torch.bool, device="cpu") if kept is None else kept
        found = every.nonzero()
        self.item = found[:, 0].contiguous()
        self.position = None if positions is None else found[:, 1].contiguous()
        flat = every.flatten().nonzero()[:, 0]
        self._index = None if len(flat) == every.numel() else {torch.device("cpu"): flat}

    def __len__(self) -> int:
        return len(self.item)

    def why_not(self, tensor: Tensor) -> str:
        """Return why *tensor* has no such rows; ``""`` if it has."""
        wanted = (self.items,) if self.positions is None else (self.items, self.positions)
        if tuple(tensor.shape[: len(wanted)]) == wanted:
            return ""
        axes = shape_text(wanted) + (" items" if self.positions is None else " items × positions")
        return f"its shape is {shape_text(tuple(tensor.shape))}, which does not begin with {axes}"

    def of(self, tensor: Tensor) -> Tensor:
        """Return the rows of *tensor*, without a copy where that can be."""
        index = self._index_on(tensor.device)
        if self.positions is None:
            return tensor if index is None else tensor.index_select(0, index)
        if index is None:
            return tensor.flatten(0, 1)
        if tensor.is_contiguous():
            return tensor.flatten(0, 1).index_select(0, index)
        return tensor[index // self.positions, index % self.positions]

    def into(self, tensor: Tensor, target: Tensor) -> None:
        """Write the rows of *tensor* into *target*, of their shape, in one copy where that can be."""
        index = self._index_on(tensor.device)
        if index is not None and tensor.is_contiguous() and tensor.dtype == target.dtype and tensor.device == target.device:
            torch.index_select(tensor if self.positions is None else tensor.flatten(0, 1), 0, index, out=target)
        else:
            rows = self.of(tensor)
            rows = rows if rows.device == target.device else rows.to(target.dtype)
            target.copy_(rows, non_blocking=True)

    def of_items(self, tensor: Tensor) -> Tensor:
        """Return the row of *tensor* that belongs to each row: its own, or that of its item."""
        if self.positions is not None and tensor.dim() >= 2 and not self.why_not(tensor):
            return self.of(tensor)
        return tensor if self._index is None and self.positions is None else tensor.index_select(0, self.item.to(tensor.device))

    def _index_on(self, device: torch.device) -> Tensor | None:
        if self._index is None:
            return None
        found = self._index.get(device)
        if found is None:
            found = self._index[device] = self._index[torch.device("cpu")].to(device, non_blocking=True)
        return found


class Chooser:
    """Chooses the rows of each batch, as ``positions`` says.

    Raises:
        ArgumentError: *positions* cannot be read.
    """

    def __init__(self, positions: Positions) -> None:
        self._cut: slice | None = None
        self._key, self._of = "", None
        self._indices: Tensor | None = None
        self.is_by_item = positions is None
        if isinstance(positions, slice):
            self._cut = positions
        elif isinstance(positions, str):
            found = _SLICE.fullmatch(positions)
            if positions in _NAMED:
                self._cut = _NAMED[positions]
            elif found is not None:
                self._cut = slice(*[None if part is None else int(part) for part in found.groups()])
            else:
                self._key = positions
        elif callable(positions):
            self._of = positions
        elif positions is not None:
            self._indices = _tensor("positions", positions)

    @property
    def key(self) -> str:
        """The key of the batch under which the mask is; ``""`` if there is none."""
        return self._key

    def rows(self, batch: Any, keep: Tensor | None) -> Rows | None:
        """Return the rows of *batch*, as far as it tells them; None if a tensor of the model has to: see :meth:`rows_like`.

        Args:
            batch: as the user gives it.
            keep: of each item, whether it is wanted; None for all.

        Raises:
            ArgumentError: the batch has no mask, or one that cannot be used.
        """
        if self.is_by_item:
            return None if keep is None else Rows(len(keep), None, keep)
        mask = self._mask(batch)
        if mask is None or mask.dim() == 1:
            return None
        return _of_mask(mask, keep)

    def rows_like(self, shape: tuple[int, ...], batch: Any, keep: Tensor | None) -> Rows | None:
        """Return the rows of a batch, as ``rows``, of whose tensors one has this *shape*; None if it cannot have rows."""
        if self.is_by_item:
            return Rows(shape[0], None, None) if shape else None
        if len(shape) < 3:  # of two axes the second may be that of units
            return None
        items, positions = shape[:2]
        if self._cut is None:
            marks = self._mask(batch)
            if marks is None:
                return None
            line = torch.zeros(positions, dtype=torch.bool, device="cpu")
            try:
                line[marks if marks.dtype == torch.bool else marks.long()] = True
            except IndexError:
                raise ArgumentError(f"positions names {marks.tolist()}, and there are {positions} positions") from None
        else:
            line = _cut(torch.ones(positions, dtype=torch.bool, device="cpu"), self._cut)
        return _of_mask(line.expand(items, positions).clone(), keep)

    def _mask(self, batch: Any) -> Tensor | None:
        if self._cut is not None:
            padding = batch.get(_PADDING) if isinstance(batch, Mapping) else None
            if not isinstance(padding, Tensor) or padding.dim() != 2:
                return None
            return torch.stack([_cut(line, self._cut) for line in padding.detach().cpu() != 0])
        if self._indices is not None:
            return self._indices
        if self._of is not None:
            return _tensor("what positions returned", self._of(batch))
        if not isinstance(batch, Mapping) or self._key not in batch:
            held = names_text(batch) if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
            raise ArgumentError(
                f"positions={self._key!r}: the batch has no such key, it holds {held}. Give the key of a mask, "
                '"last", "all", "-8:", a slice, or a function from the batch to a mask'
            )
        return _tensor(f"positions={self._key!r}", batch[self._key])


def _tensor(name: str, given: Any) -> Tensor:
    try:
        found = torch.as_tensor(given, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError):
        found = None
    if found is None or found.dim() not in (1, 2) or found.is_complex():
        held = shape_text(tuple(found.shape)) if found is not None else f"a {type(given).__name__}"
        raise ArgumentError(f"{name}: a mask of items × positions, or positions for all items, is wanted; this is {held}")
    return found != 0 if found.dim() == 2 else found


def _of_mask(mask: Tensor, keep: Tensor | None) -> Rows:
    items, positions = mask.shape
    if keep is None:
        return Rows(items, positions, None if bool(mask.all()) else mask)
    if len(keep) != items:
        raise ArgumentError(f"order names {len(keep)} items, and the mask of positions has {items}")
    return Rows(items, positions, mask & keep[:, None])


def _cut(line: Tensor, cut: slice) -> Tensor:
    """Return the mask *line* of one item with those positions alone that *cut* takes of the true ones."""
    kept = torch.zeros_like(line)
    kept[torch.from_numpy(line.nonzero()[:, 0].numpy()[cut].copy())] = True
    return kept
