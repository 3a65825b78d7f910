"""The compiled kernels for the CPU: whether there are any, which tensors they take, and how they are called.

A kernel reads memory, so a tensor goes through only if it is exactly what its type says: a plain strided tensor on the CPU with
memory of its own. Everything else is left to the reference. Compiled code sees to that in one call, where torch has the
exchange of DLPack (``torch.Tensor.__dlpack_c_exchange_api__``); where it has not, the same is asked from here, more slowly.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import torch  # before the compiled module, so that its threads are those of torch's own pool
from torch import Tensor, nn

from sonde.errors import ArgumentError
from sonde.stats.kernels.torch_private import count_dispatch_modes

__all__ = ["EXPONENTS", "KINDS", "MOMENTS", "NORM", "Kernel", "Status", "activation"]
__all__ += ["is_plain", "merge", "module", "status", "threads", "use"]

KINDS: dict[torch.dtype, int] = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
"""The precisions that the kernels read, as they are numbered there."""

SWITCH = "SONDE_KERNEL"
"""Environment variable: ``reference``, or one of the instruction sets, in place of the best there is."""

_MANY = 1 << 16  # elements, from which on threads pay
_PLAIN = frozenset({Tensor, nn.Parameter})

_is_compiling = torch.compiler.is_compiling
_dispatch_modes = count_dispatch_modes
_strided, _float64 = torch.strided, torch.float64


@dataclass(frozen=True)
class Status:
    """What the kernels for the CPU are at the moment.

    Attributes:
        level: the instruction set in use, ``""`` for none: then the reference is used.
        levels: those that this processor and this build have, best first.
        openmp: whether the build has threads.
        threads: how many a large tensor is split among in this thread of this process.
        reason: why the reference is used, or why fewer threads than torch has; ``""`` if there is nothing to explain.
        exchange: whether tensors are looked at by compiled code. Without that small ones take longer; the numbers are the same.
    """

    level: str
    levels: tuple[str, ...]
    openmp: bool
    threads: int
    reason: str
    exchange: bool = False


@dataclass
class _State:
    """What was loaded. One per process."""

    module: Any = None
    loaded: Any = None  # the module even while the reference is asked for
    exchange: bool = False  # whether the module was given torch's exchange
    reason: str = ""
    forked: bool = False


_state = _State()


def _load() -> None:
    name = "sonde.stats.kernels._native"
    try:
        _state.module = _state.loaded = import_module(name)
    except ModuleNotFoundError:
        _state.reason = "sonde was installed without compiled kernels: there was no C++ compiler, or SONDE_NO_NATIVE was set"
    except ImportError as error:  # as where libgomp is missing
        _state.reason = f"the compiled kernels cannot be loaded: {error}"
    else:
        capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
        _state.exchange = _state.module.connect(capsule, (Tensor, nn.Parameter), Tensor.is_neg, threads)
    choice = os.environ.get(SWITCH, "")
    if choice:
        use(choice, because=f"{SWITCH}={choice}")


def use(level: str, *, because: str = "it was asked for") -> None:
    """Use the instruction set *level*, or ``reference``, from now on in this process.

    Raises:
        ArgumentError: there is no such level on this processor or in this build.
    """
    levels = _state.loaded.levels()[1] if _state.loaded is not None else ()
    if level == "reference":
        _state.module, _state.reason = None, _state.reason if _state.loaded is None else because
        return
    if level not in levels:
        raise ArgumentError(f"no kernel {level!r} here ({SWITCH}, use): there are {', '.join((*levels, 'reference'))}")
    _state.loaded.use_level(level)
    _state.module, _state.reason = _state.loaded, ""


def module() -> ModuleType | None:
    """The compiled module, or None where the reference is to be used."""
    return _state.module  # type: ignore[no-any-return]


def status() -> Status:
    """What is in use at the moment, and why."""
    loaded = _state.loaded
    if loaded is None:
        return Status("", (), False, 1, _state.reason)
    level, levels = loaded.levels()
    reason = _state.reason
    if _state.module is None:
        return Status("", levels, bool(loaded.openmp), 1, reason)
    if not loaded.openmp:
        return Status(level, levels, False, 1, "the compiled kernels were built without OpenMP: one thread", _state.exchange)
    if _state.forked:
        reason = "this process was forked, where OpenMP's threads would hang: one thread"
    return Status(level, levels, True, threads(_MANY), reason, _state.exchange)


def threads(count: int) -> int:
    """How many threads *count* elements may be split among."""
    if count < _MANY or _state.forked:
        return 1
    return torch.get_num_threads()


def is_plain(tensor: Tensor) -> bool:
    """Whether *tensor* is what it looks like: strided memory on the CPU, of one of ``KINDS``, that may be read as it is.

    Nothing is plain while torch traces, or while a dispatch mode wants to see every operation.
    """
    return (
        not _is_compiling()
        and type(tensor) in _PLAIN
        and tensor.dtype in KINDS
        and tensor.is_cpu
        and tensor.layout is _strided
        and not tensor.is_neg()
        and not tensor.is_nested
        and not _dispatch_modes()
    )


@dataclass(frozen=True, slots=True)
class Kernel:
    """A reduction in one pass over memory.

    Attributes:
        name: what it is called.
        number: its number among the compiled reductions.
        width: that of the rows that it adds to.
        arguments: what it needs to know beside the tensor.
    """

    name: str
    number: int
    width: int
    arguments: tuple[float, ...] = ()

    def add(self, row: Tensor, tensor: Tensor, led: int = 0) -> bool:
        """Add all elements of *tensor* to *row* in place, if both can be read and written as they are.

        Sums are formed in float64: they differ from the reference's by the rounding of float64 in another order alone.
        Threads may add to one row at the same time.

        Args:
            row: float64, shape ``(led + width,)``.
            tensor: of any shape and strides.
            led: 1 if the row begins with a count of additions, which is raised by one; 0 if not.

        Returns:
            Whether it was done. If not, nothing was.
        """
        if not self.fits(row, led):
            return False
        try:
            address = row.data_ptr()
        except RuntimeError:  # inside a function transform there is no memory
            return False
        return self.add_at(address, tensor, led)

    def fits(self, row: Tensor, led: int = 0) -> bool:
        """Whether *row* is memory that the kernel can add to: its address may be kept then, as long as the row lives."""
        if type(row) is not Tensor or row.dtype is not _float64 or not row.is_cpu or _is_compiling():
            return False
        return row.is_contiguous() and row.numel() == self.width + led

    def add_at(self, address: int, tensor: Tensor, led: int = 0) -> bool:
        """The same as :meth:`add`, for a row that :meth:`fits` by its address: a fraction of the cost for a small tensor."""
        if _is_compiling() or _dispatch_modes():
            return False
        native = _state.module
        if native is None:
            return False
        if _state.exchange:
            return native.add(self.number, led, address, tensor, self.arguments)  # type: ignore[no-any-return]
        return self._add_from_here(address, led, tensor)

    def add_each(
        self, addresses: Iterable[int], tensors: Iterable[Tensor], minus: Iterable[Tensor] | None = None, led: int = 1
    ) -> list[int]:
        """Add many tensors, or differences of tensors, to a row each, in one call.

        A difference is not allocated. Its elements are formed in float64 and rounded once at most, to float64: where both
        tensors are float16, not even that; of float64 tensors as by torch. What is added is what :meth:`add` would add of
        ``tensor.double() - minus.double()``.

        Args:
            addresses: those of rows that :meth:`fits`, or 0 for a tensor that is not to be added.
            tensors: as many, of any shapes and strides.
            minus: as many, to be subtracted: each of the precision, shape and strides of its tensor, whose elements must lie
                side by side (in any order of dimensions).
            led: as in :meth:`add`.

        Returns:
            The positions of the tensors that were not added, in ascending order: for these nothing was done.

        Raises:
            ArgumentError: there are not as many of one as of the other.
        """
        rows, firsts, seconds = list(addresses), list(tensors), None if minus is None else list(minus)
        if len(rows) != len(firsts) or (seconds is not None and len(seconds) != len(firsts)):
            subtracted = "" if seconds is None else f" minus {len(seconds)}"
            raise ArgumentError(f"{len(firsts)} tensors{subtracted} for {len(rows)} rows: give as many of one as of the other")
        native = _state.module
        if native is None or _is_compiling() or _dispatch_modes():
            return list(range(len(rows)))
        if _state.exchange:
            return native.add_each(self.number, led, rows, firsts, seconds, self.arguments)  # type: ignore[no-any-return]
        columns = (rows, firsts) if seconds is None else (rows, firsts, seconds)
        return [
            at for at, (row, *both) in enumerate(zip(*columns, strict=True)) if not (row and self._add_from_here(row, led, *both))
        ]

    def _add_from_here(self, address: int, led: int, tensor: Tensor, *minus: Tensor) -> bool:
        """Look at the tensors from Python, and hand over where their memory is."""
        if not is_plain(tensor) or (minus and not (is_plain(minus[0]) and _are_alike(tensor, minus[0]))):
            return False
        try:
            data, other = tensor.data_ptr(), minus[0].data_ptr() if minus else 0
        except RuntimeError:  # inside a function transform there is no memory
            return False
        if not data or (minus and not other):  # empty, nested, or zeros that were never written
            return False
        where = (address, data, other, KINDS[tensor.dtype], tensor.shape, tensor.stride(), threads(tensor.numel()))
        return _state.module.add_memory(self.number, led, *where, self.arguments)  # type: ignore[no-any-return]


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return one.dtype is other.dtype and one.shape == other.shape and one.stride() == other.stride()


MOMENTS = Kernel("moments", 0, 8)
"""Adds to rows of :class:`~sonde.stats.Moments`."""

EXPONENTS = Kernel("exponents", 1, 288)
"""Adds to rows of :class:`~sonde.stats.ExponentHistogram`."""

NORM = Kernel("norm", 2, 4)
"""Adds to rows of :class:`~sonde.stats.Norm`."""


def activation(eps: float, channel_axis: int) -> Kernel:
    """A kernel that adds to rows of :class:`~sonde.stats.Activation` with these arguments.

    It takes tensors whose elements lie side by side, in any order of dimensions (channels last, transposed), and no differences.
    """
    return Kernel("activation", 3, 7, (float(eps), int(channel_axis)))


def merge(row: Tensor, other: Tensor, sums: int, minima: int, maxima: int) -> bool:
    """Merge the row *other* into *row* in place, as one step that no other thread's addition can come between.

    Args:
        row, other: float64, shape ``(sums + minima + maxima,)``.
        sums, minima, maxima: how many numbers are added, and of how many the smaller and the larger is kept, in that order.

    Returns:
        Whether it was done. If not, nothing was.
    """
    native = _state.module
    if native is None or not is_plain(row) or not is_plain(other) or row.dtype is not _float64 or other.dtype is not _float64:
        return False
    if not (row.is_contiguous() and other.is_contiguous() and row.numel() == other.numel() == sums + minima + maxima):
        return False
    native.merge(row.data_ptr(), other.data_ptr(), sums, minima, maxima)
    return True


def _stay_alone() -> None:
    _state.forked = True


_load()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stay_alone)  # a parallel region in a forked child hangs, torch's own too
