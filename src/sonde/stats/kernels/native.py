"""Load and call the compiled kernels for the CPU; test which tensors they take.

A kernel reads memory directly. Therefore it takes only plain strided tensors on the CPU that own memory; every other tensor is
measured by the reference. Compiled code tests this in one call where torch has the exchange of DLPack
(``torch.Tensor.__dlpack_c_exchange_api__``); otherwise this file tests the same, more slowly.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import torch  # before the compiled module, so that its threads are those of torch's own pool
from torch import Tensor, nn

from sonde.errors import ArgumentError
from sonde.stats.kernels.fused import failures
from sonde.stats.kernels.torch_private import count_dispatch_modes

KINDS: dict[torch.dtype, int] = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
"""The precisions that the kernels read, with their numbers in the compiled code."""

REVISION = 2
"""Number of the layout of rows and of the compiled functions. Code that was built for other rows would write beyond them."""

SWITCH = "SONDE_KERNEL"
"""Environment variable: ``reference`` or the name of an instruction set, instead of the best that is present."""

_MANY = 1 << 16  # a tensor of at least so many elements is split among threads
_PLAIN = frozenset({Tensor, nn.Parameter})

_is_compiling = torch.compiler.is_dynamo_compiling  # of this thread; is_compiling() says it of all while one compiles
_dispatch_modes = count_dispatch_modes
_strided, _float64 = torch.strided, torch.float64


@dataclass(frozen=True)
class Status:
    """The state of the kernels for the CPU.

    Attributes:
        level: the instruction set in use; ``""`` if none is, and the reference is used.
        levels: the instruction sets that this processor and this build have, best first.
        openmp: whether the build has threads.
        threads: the number of threads for a large tensor, in this thread of this process.
        reason: why the reference is used, or why fewer threads than torch has; ``""`` if there is nothing to explain.
        exchange: whether compiled code tests tensors. Otherwise small tensors take longer; the numbers are the same.
        precisions: the types of elements that the kernels read.
        switch: the environment variable that chooses the instruction set, or the reference.
        failures: for each type of accelerator on which nothing could be compiled, the first line of the error.
    """

    level: str
    levels: tuple[str, ...]
    openmp: bool
    threads: int
    reason: str
    exchange: bool = False
    precisions: tuple[torch.dtype, ...] = tuple(KINDS)
    switch: str = SWITCH
    failures: Mapping[str, str] = field(default_factory=failures)


@dataclass
class _Loaded:
    """The loaded module and its state. One per process."""

    module: Any = None
    loaded: Any = None  # the module, also while the reference is used
    exchange: bool = False  # whether the module has torch's exchange
    reason: str = ""
    forked: bool = False


_state = _Loaded()


def _load() -> None:
    name = "sonde.stats.kernels._native"
    try:
        loaded = import_module(name)
    except ModuleNotFoundError:
        _state.reason = "sonde was installed without compiled kernels: there was no C++ compiler, or SONDE_NO_NATIVE was set"
        loaded = None
    except ImportError as error:  # as where libgomp is missing
        _state.reason = f"the compiled kernels cannot be loaded: {error}"
        loaded = None
    if loaded is not None and getattr(loaded, "revision", None) != REVISION:
        _state.reason = "the compiled kernels were built for another version of sonde: install it again"
    elif loaded is not None:
        _state.module = _state.loaded = loaded
        capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
        _state.exchange = _state.module.connect(capsule, (Tensor, nn.Parameter), Tensor.is_neg, threads)
    choice = os.environ.get(SWITCH, "")
    if choice:
        use(choice, because=f"{SWITCH}={choice}")


def use(level: str, *, because: str = "it was asked for") -> None:
    """Use the instruction set *level*, or ``reference``, from now on in this process.

    Raises:
        ArgumentError: this processor or this build has no such level.
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
    """Return the compiled module; None if the reference is to be used."""
    return _state.module  # type: ignore[no-any-return]


def kernel_status() -> Status:
    """Return what is in use at the moment, and why."""
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
    """Return the number of threads for *count* elements."""
    if count < _MANY or _state.forked:
        return 1
    return torch.get_num_threads()


def is_plain(tensor: Tensor) -> bool:
    """Return whether *tensor* is plain strided memory on the CPU, of a precision in ``KINDS``, that can be read directly.

    No tensor is plain while torch traces, or while a dispatch mode intercepts operations.
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
        name: name of the reduction.
        number: its number in the compiled code.
        width: width of the rows that it adds to.
        arguments: further arguments of the reduction.
        aligns: whether the reduction's sums depend on a minimum, and :func:`merge` aligns them.
    """

    name: str
    number: int
    width: int
    arguments: tuple[float, ...] = ()
    aligns: bool = False

    def add(self, row: Tensor, tensor: Tensor, led: int = 0) -> bool:
        """Add all elements of *tensor* to *row* in place, if both are plain memory.

        Sums are computed in float64: they differ from those of the reference only by rounding in another order.
        Several threads may add to one row at the same time.

        Args:
            row: float64, shape ``(led + width,)``.
            tensor: of any shape and strides.
            led: 1 if the row begins with a count of additions, which is increased by one; 0 otherwise.

        Returns:
            Whether *tensor* was added. If not, *row* is unchanged.
        """
        if not self.fits(row, led):
            return False
        try:
            address = row.data_ptr()
        except RuntimeError:  # inside a function transform there is no memory
            return False
        return self.add_at(address, tensor, led)

    def fits(self, row: Tensor, led: int = 0) -> bool:
        """Return whether the kernel can add to the memory of *row*; its address stays valid as long as *row* lives."""
        if type(row) is not Tensor or row.dtype is not _float64 or not row.is_cpu or _is_compiling():
            return False
        return row.is_contiguous() and row.numel() == self.width + led

    def add_at(self, address: int, tensor: Tensor, led: int = 0) -> bool:
        """Add *tensor* as :meth:`add` does, to a row that :meth:`fits`, given by its address: much cheaper for a small tensor."""
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

        No memory is allocated for a difference. Its elements are computed in float64, with at most one rounding (none where both
        tensors are float16). The result is that of :meth:`add` for ``tensor.double() - minus.double()``.

        Args:
            addresses: of each tensor, the address of a row that :meth:`fits`; 0 for a tensor that is not to be added.
            tensors: tensors of any shapes and strides.
            minus: of each tensor, the tensor to subtract: of the same precision, shape and strides, with the elements side by
                side in memory (in any order of dimensions).
            led: as in :meth:`add`.

        Returns:
            The positions of the tensors that were not added, in ascending order; their rows are unchanged.

        Raises:
            ArgumentError: the numbers of addresses and tensors differ.
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
        """Test the tensors in Python, and pass the addresses of their memory to the compiled code."""
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


MOMENTS = Kernel("moments", 0, 11, aligns=True)
"""Adds to rows of :class:`~sonde.stats.Moments`."""

EXPONENTS = Kernel("exponents", 1, 288)
"""Adds to rows of :class:`~sonde.stats.ExponentHistogram`."""

NORM = Kernel("norm", 2, 4)
"""Adds to rows of :class:`~sonde.stats.Norm`."""


def nonfinite_in(tensors: list[Tensor]) -> tuple[int, list[int]]:
    """Return how many elements of *tensors* are NaN or infinite, and the positions of the tensors that no kernel takes."""
    row = array("d", (0.0,) * NORM.width)
    others = NORM.add_each([row.buffer_info()[0]] * len(tensors), tensors, led=0)
    return int(row[1] + row[2]), others


def activation(eps: float, channel_axis: int) -> Kernel:
    """Return the kernel that adds to rows of :class:`~sonde.stats.Activation` with these arguments.

    The kernel takes tensors whose elements lie side by side, in any order of dimensions (channels last, transposed), and no
    differences.
    """
    return Kernel("activation", 3, 7, (float(eps), int(channel_axis)))


def merge(row: Tensor, other: Tensor, sums: int, minima: int, maxima: int, aligner: Kernel | None = None) -> bool:
    """Merge the row *other* into *row* in place, in one step: no addition of another thread comes between.

    Args:
        row, other: float64, shape ``(sums + minima + maxima,)``.
        sums, minima, maxima: the numbers of sums, minima and maxima in a row, in that order.
        aligner: the kernel that adds to such rows, if their sums depend on their minima
            (:meth:`sonde.stats.Statistic.aligned`).

    Returns:
        Whether *other* was merged. If not, *row* is unchanged.
    """
    native = _state.module
    if native is None or not is_plain(row) or not is_plain(other) or row.dtype is not _float64 or other.dtype is not _float64:
        return False
    if not (row.is_contiguous() and other.is_contiguous() and row.numel() == other.numel() == sums + minima + maxima):
        return False
    native.merge(row.data_ptr(), other.data_ptr(), sums, minima, maxima, -1 if aligner is None else aligner.number)
    return True


def _stay_alone() -> None:
    _state.forked = True


_load()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stay_alone)  # a parallel region in a forked child hangs, torch's own too
