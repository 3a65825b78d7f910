"""Find the part of a distributed tensor that this rank holds, without any communication.

An operation on a ``DTensor`` may begin a collective, which all ranks must take part in: an observer on one rank alone would hang
the training. Therefore all of sonde measures, copies and prints the local part of a tensor, which :func:`local` returns.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

PLAIN: frozenset[type] = frozenset({Tensor, nn.Parameter})
"""The classes of tensors that are never distributed, and read as they are."""

_DISTRIBUTED = "torch.distributed.tensor"
_ASYNCHRONOUS = "torch.distributed._functional_collectives"


class Piece(NamedTuple):
    """The part of a whole tensor that one rank holds. Two ranks hold the same part if their pieces are equal.

    Plain data: ``json.dumps`` takes a piece, as lists.

    Attributes:
        whole: shape of the whole tensor.
        shape: shape of the part.
        offset: of each dimension, where the part begins in the whole tensor.
    """

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    offset: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the part is the whole tensor."""
        return self.shape == self.whole

    def __str__(self) -> str:
        """The part as Python writes it, as ``[4:8] of (8, 16)``; dimensions that are whole and come last are left out."""
        last = max((at + 1 for at, size in enumerate(self.shape) if size != self.whole[at]), default=0)
        parts = [
            ":" if size == whole else f"{start}:{start + size}"
            for size, whole, start in list(zip(self.shape, self.whole, self.offset, strict=True))[:last]
        ]
        return f"[{', '.join(parts)}] of {self.whole}"

    @staticmethod
    def of(tensor: Tensor) -> Piece | None:
        """Return which part of the whole *tensor* this rank holds; None for a partial sum, and on a rank that holds nothing."""
        shape = tuple(tensor.shape)
        if not _is_distributed(tensor):
            return Piece(shape, shape, (0,) * len(shape))
        return None if Piece.is_partial_sum(tensor) else _region(tensor)

    @staticmethod
    def like(tensor: Tensor, other: Tensor) -> Tensor | None:
        """Return the part of *tensor* where this rank holds *other*, which has the same shape, without any communication.

        A gradient need not be distributed as its parameter: of an embedding whose rows are split, each rank may have the whole
        gradient. An optimizer uses then the part that belongs to the rank's rows.

        Returns:
            None for a partial sum, and where this rank holds *other* in places at which it does not hold *tensor*.
        """
        part = local(tensor)
        if part is None or (type(tensor) in PLAIN and type(other) in PLAIN):
            return part
        if getattr(tensor, "placements", None) == getattr(other, "placements", None):
            return part
        here_is, wanted = Piece.of(tensor), Piece.of(other)
        if here_is is None or wanted is None:
            return None
        for axis, (start, size) in enumerate(zip(wanted.offset, wanted.shape, strict=True)):
            first = start - here_is.offset[axis]
            if first < 0 or first + size > here_is.shape[axis]:
                return None
            part = part.narrow(axis, first, size)
        return part

    @staticmethod
    def is_part(tensor: Tensor) -> bool:
        """Return whether this rank holds less than all elements of *tensor*."""
        if type(tensor) in PLAIN or not _is_distributed(tensor):
            return False
        mesh = tensor.device_mesh
        return any(placement.is_shard() and mesh.size(at) > 1 for at, placement in enumerate(tensor.placements))

    @staticmethod
    def is_partial_sum(tensor: Tensor) -> bool:
        """Return whether each rank holds an addend of *tensor* only."""
        return _is_distributed(tensor) and any(placement.is_partial() for placement in tensor.placements)

    @staticmethod
    def held(tensor: Tensor) -> tuple[Tensor, Piece | None, list[int] | None]:
        """Return what this rank holds of *tensor*, an addend too; which part that is; and of an addend which one.

        An addend is named by the coordinates of the rank along those axes of the mesh over which the sum is. The part is None on a
        rank that holds nothing. No collective begins.
        """
        if not _is_distributed(tensor):
            return tensor.detach(), None, None
        if not Piece.is_partial_sum(tensor):
            part = local(tensor)
            assert part is not None
            return part, _region(tensor), None
        mesh, part = tensor.device_mesh, tensor.detach()._local_tensor
        summed = [at for at, placement in enumerate(tensor.placements) if placement.is_partial()]
        is_sum = mesh.get_coordinate() is not None and all(tensor.placements[at].reduce_op == "sum" for at in summed)
        return part, _region(tensor), [mesh.get_local_rank(at) for at in summed] if is_sum else None

    @staticmethod
    def may_come() -> bool:
        """Return whether there may be distributed tensors in this process: it is one of several, and their module is imported."""
        return (_DISTRIBUTED in sys.modules or _ASYNCHRONOUS in sys.modules) and torch.distributed.is_initialized()

    @staticmethod
    def in_words(tensor: Tensor) -> str:
        """Return in words which part of *tensor* this rank holds, as ``rank 1's part [4:8] of (8, 16)``; ``""`` for all of it."""
        if type(tensor) in PLAIN or not _is_distributed(tensor):
            return ""
        if Piece.is_partial_sum(tensor):
            return "a partial sum: each rank holds an addend, and no rank the value"
        piece = Piece.of(tensor)
        if piece is None:
            return f"rank {_rank()} holds no part of it"
        return "" if piece.is_whole else f"{_OWN.format(_rank())}{piece}"

    @staticmethod
    def is_in_words(words: str) -> bool:
        """Return whether *words* are those of :meth:`in_words` for a part of a tensor on this rank."""
        return words.startswith(_OWN.format(_rank()))


def _region(tensor: Any) -> Piece | None:
    """Return which part of a distributed *tensor*, or of the whole of its addend, this rank holds; None if it holds nothing."""
    if tensor.device_mesh.get_coordinate() is None:
        return None
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    placements = [Replicate() if placement.is_partial() else placement for placement in tensor.placements]
    own, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, placements)
    return Piece(tuple(tensor.shape), (*map(int, own),), (*map(int, offset),))


def local(tensor: Tensor) -> Tensor | None:
    """Return the part of *tensor* that this rank holds, without a graph; *tensor* itself if it is not distributed.

    No collective begins. For the result of a collective that still runs, its end is waited for (on an accelerator the stream waits,
    and the host does not).

    Returns:
        None for a partial sum: each rank holds an addend, and no rank the value.
    """
    if type(tensor) in PLAIN:
        return tensor
    if _is_distributed(tensor):
        if Piece.is_partial_sum(tensor):
            return None
        with torch.no_grad():  # with a graph, a node would be added to it
            tensor = tensor.to_local()
    asynchronous = getattr(sys.modules.get(_ASYNCHRONOUS), "AsyncCollectiveTensor", None)
    if asynchronous is not None and isinstance(tensor, asynchronous):
        tensor = tensor.wait()
    return tensor


_OWN = "rank {}'s part "


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def _is_distributed(tensor: Any) -> TypeGuard[Any]:
    """Return whether *tensor* is a ``DTensor``. Nothing is imported: where its module is not, there is none."""
    kind = getattr(sys.modules.get(_DISTRIBUTED), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)
