"""The abstract statistics: how to measure a tensor, how measures add up, and how to finish a row of sums."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parameter import is_lazy

from sonde.errors import ArgumentError
from sonde.number import Number
from sonde.stats.kernels import Kernel
from sonde.stats.pieces import PLAIN, Piece, local

Merge = Literal["sum", "min", "max"]
Column = NDArray[np.float64]

_ORDER: dict[str, int] = {"sum": 0, "min": 1, "max": 2}
_IDENTITY: dict[str, float] = {"sum": 0.0, "min": float("inf"), "max": float("-inf")}


@dataclass(frozen=True, slots=True)
class Field:
    """One entry of a row, and how the entries of two rows merge: over calls, steps, ranks and files in the same way.

    >>> from sonde.stats import Field
    >>> Field("largest", merge="max").size
    1

    Attributes:
        name: name of the field and of its column.
        merge: how two entries merge.
        size: number of elements of the row that the field takes; they are merged one by one.
        per: ``"element"`` if a tensor added whole gives the same as its pieces added one by one (pieces of whole samples, for a
            statistic that reads samples); ``"call"`` if each tensor added counts as one, whatever its size.
    """

    name: str
    merge: Merge = "sum"
    size: int = 1
    per: Literal["element", "call"] = "element"


class RowStatistic(ABC):
    """Base of all statistics: rows of float64 with a known layout, and numbers finished from columns of rows.

    >>> import torch
    >>> from sonde.stats import Norm, RowStatistic
    >>> statistic = Norm()
    >>> isinstance(statistic, RowStatistic), statistic.number("norm").label, statistic.on_axis(1) is statistic
    (True, 'norm', True)
    >>> statistic.at_width(statistic.width) is statistic
    True
    >>> row = statistic.empty(1)[0]
    >>> statistic.add(row, torch.tensor([3.0, 4.0]))
    >>> row.equal(statistic.row_of(torch.tensor([3.0, 4.0])))
    True
    >>> statistic.finish(statistic.columns(statistic.merged(row, row)[None]))["count"].tolist()
    [4.0]
    >>> statistic.takes_part((4, 2), (2, 2)), len(statistic.layout()) == len(statistic.fields)
    (True, True)
    """

    recorded: ClassVar[tuple[str, ...]] = ()
    """Fields that a run records unchanged, beside the numbers."""

    is_of_every_leaf: ClassVar[bool] = True
    """Whether every tensor of a structured value is measured. Else the first alone is: for a statistic to which is given which axis
    holds the units or the samples, since that axis is known of a layer's first tensor."""

    def __repr__(self) -> str:
        """Return the class with its attributes, by which a saved row names its statistic."""
        given = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({given})"

    @property
    def grows(self) -> bool:
        """Whether the width of a row is not known before the first tensor: a table then has rows as wide as the widest needs."""
        return False

    @property
    def finds_units(self) -> bool:
        """Whether the axis of the units is found for each tensor of a layer, and given to :meth:`on_axis`."""
        return False

    def takes_part(self, whole: tuple[int, ...], part: tuple[int, ...]) -> bool:
        """Return whether one rank's part of a tensor can be measured.

        By default every part can. Override this where the numbers of a part would say nothing about the whole, and rows of all
        parts do not add up to the row of the whole: a split tensor is then left out, and the coverage says so.

        Args:
            whole: shape of the tensor.
            part: shape of the part that this rank holds.
        """
        return True

    def at_width(self, width: int) -> RowStatistic:
        """Return this statistic, equal to it, with rows of *width* numbers; itself unless :attr:`grows`.

        Raises:
            ArgumentError: no row of the statistic has that width.
        """
        return self

    def on_axis(self, units: int) -> RowStatistic:
        """Return the statistic of tensors whose units are on the axis *units*; itself if its axis is given, or it reads none."""
        return self

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The numbers that :meth:`finish` gives, described; a picture shows the first that is not minor.

        A class attribute, or a property where a description depends on the statistic's arguments. The label of a number that is
        left out is its name; its unit and its scaling are unknown.
        """
        return ()

    def number(self, name: str) -> Number:
        """Return the description of the number *name*; a bare one if *name* is not in ``numbers``."""
        return next((number for number in self.numbers if number.name == name), Number(name))

    @property
    def can_sample(self) -> bool:
        """Whether every number of a whole tensor can be estimated from a sample of its elements."""
        return bool(self.numbers) and all(number.growth is not None for number in self.numbers)

    @abstractmethod
    def layout(self) -> tuple[tuple[str, int], ...]:
        """Return name and size of each entry of a row, in order."""

    @abstractmethod
    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        """Return the numbers of any number of rows at once, on the host.

        Args:
            columns: one per field; float64 of shape ``(rows,)``, or ``(rows, size)`` for a field of more than one number.

        Returns:
            Name to float64 of shape ``(rows,)``. NaN means no number.
        """

    @abstractmethod
    def empty(self, rows: int, device: torch.device | str = "cpu") -> Tensor:
        """Return empty rows: float64, shape ``(rows, width)``."""

    @property
    def kernel(self) -> Kernel | None:
        """The compiled kernel that adds the row of :meth:`row_of` in one pass over memory; None if there is none.

        A class attribute, or a property where the kernel depends on the statistic's arguments.
        """
        return None

    @abstractmethod
    def row_of(self, tensor: Tensor, previous: Tensor | None = None) -> Tensor:
        """Return the row of *tensor* alone; *previous* is its predecessor, for a statistic of pairs."""

    @abstractmethod
    def merged(self, row: Tensor, other: Tensor) -> Tensor:
        """Return a new row, the merge of both. Works on many rows at once."""

    def add(self, row: Tensor, tensor: Tensor, previous: Tensor | None = None) -> None:
        """Add *tensor* to *row*, of shape ``(width,)``, in place, by the kernel where it takes the tensor."""
        if self.kernel is None or not self.kernel.add(row, tensor):
            row.copy_(self.merged(row, self.row_of(tensor, previous)))

    @abstractmethod
    def _cuts(self) -> tuple[int, int]:
        """Return how many numbers of a row are sums, and how many are sums or minima; the rest are maxima."""

    @property
    def width(self) -> int:
        """Number of elements of a row."""
        return sum(size for _, size in self.layout())

    def columns(self, rows: Tensor) -> dict[str, Column]:
        """Return *rows*, of shape ``(rows, width)``, on the host as one column per field. Waits for the device."""
        host = rows.detach().cpu().numpy()
        slices = self.at_width(rows.shape[1])._slices()
        return {name: host[:, cut] if cut.stop - cut.start != 1 else host[:, cut.start] for name, cut in slices}

    def _slices(self) -> Iterator[tuple[str, slice]]:
        start = 0
        for name, size in self.layout():
            yield name, slice(start, start + size)
            start += size


class Statistic(RowStatistic):
    """A statistic without state; the state is a row of its ``fields``, which the caller keeps.

    >>> import torch
    >>> from sonde.stats import Accumulator, Field, Statistic, elements
    >>> class Largest(Statistic):
    ...     fields = (Field("largest", merge="max"),)
    ...     def measure(self, tensor):
    ...         return elements(tensor).abs().max().reshape(1)
    ...     def finish(self, columns):
    ...         return {"largest": columns["largest"]}
    >>> Accumulator(Largest()).update(torch.tensor([1.0, -3.0])).update(torch.tensor([2.0])).compute().largest
    3.0
    >>> Largest().empty(2).tolist()
    [[-inf], [-inf]]

    A subclass names its ``fields`` (sums first, then minima, then maxima), measures one tensor, and finishes
    columns of rows. Rows merge field by field: merging an empty row changes nothing, and the order and
    the grouping of updates matter only by rounding.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        fields = getattr(cls, "fields", ())
        order = [_ORDER[item.merge] for item in fields] if isinstance(fields, tuple) else []
        if order != sorted(order):
            raise ArgumentError(f"{cls.__name__}.fields must list sums first, then minima, then maxima")

    @property
    @abstractmethod
    def fields(self) -> tuple[Field, ...]:
        """The entries of a row. A class attribute, or a property where their size depends on the statistic's arguments."""

    @abstractmethod
    def measure(self, tensor: Tensor) -> Tensor:
        """Return the row of one dense tensor: float64, shape ``(width,)``, on its device. Traceable, without a host sync."""

    # Rows

    def layout(self) -> tuple[tuple[str, int], ...]:
        return tuple([(item.name, item.size) for item in self.fields])

    def empty(self, rows: int, device: torch.device | str = "cpu") -> Tensor:
        """Return empty rows: float64, shape ``(rows, width)``."""
        identity = [_IDENTITY[item.merge] for item in self.fields for _ in range(item.size)]
        with torch.inference_mode(False):  # a row made under inference mode could not be written to during training
            return torch.tensor(identity, dtype=torch.float64, device=device).repeat(rows, 1)

    def row_of(self, tensor: Tensor, previous: Tensor | None = None) -> Tensor:
        return self.measure(dense(tensor))

    def aligned(self, rows: Tensor, minima: Tensor) -> Tensor:
        """Return the sums of *rows* as they are to be added to those of other rows: unchanged, unless overridden.

        >>> import torch
        >>> from sonde.stats import Norm
        >>> row = Norm().measure(torch.tensor([3.0, 4.0]))
        >>> Norm().aligned(row, row[:0]).equal(row)
        True

        Override this where sums depend on a minimum, as sums of distances from a point do: the point is a field that merges by
        "min", and this method moves it to the merged one. Sums of a row that has these minima already must stay as they are, bit
        by bit. So rows of many ranks merge by one reduction of minima and one of sums.

        Args:
            rows: of shape ``(..., width)``.
            minima: the merged minima, of shape ``(number of minima,)`` or ``(..., number of minima)``.

        Returns:
            Float64 of shape ``(..., number of sums)``.
        """
        return rows[..., : self._cuts()[0]]

    def marks(self, rows: Tensor) -> Tensor:
        """Return the numbers of each row that tell copies of one tensor on several ranks apart.

        >>> import torch
        >>> from sonde.stats import Norm
        >>> row = Norm().measure(torch.tensor([3.0, 4.0]))
        >>> Norm().marks(row[None]).shape[0]
        1

        Of equal tensors each is equal up to 1e-12 of its size, in whatever order sums were formed. By default all fields that
        count elements; where sums depend on a minimum (:meth:`aligned` is overridden), the minima and maxima alone. Override this
        there, and where a sum may cancel out: give it as a share of the size of what was added.

        Args:
            rows: of shape ``(rows, width)``.
        """
        is_moved = type(self).aligned is not Statistic.aligned
        used = [each.per == "element" and not (is_moved and each.merge == "sum") for each in self.fields for _ in range(each.size)]
        return rows[:, torch.tensor(used, dtype=torch.bool, device=rows.device)]

    def rounding(self, row: Tensor) -> Tensor:
        """Return how far each number of *row* may be off, for the laws: 1e-12 of the number, and 1e-9.

        >>> import torch
        >>> from sonde.stats import Norm
        >>> Norm().rounding(torch.zeros(1)).item()
        9.999999717180685e-10

        Override this where a number magnifies the rounding of what it is made from, as a condition number does.
        """
        return 1e-12 * row.abs() + 1e-9

    def merged(self, row: Tensor, other: Tensor) -> Tensor:
        sums, minima = self._cuts()
        rows = torch.stack([row, other])
        lows = rows[..., sums:minima].amin(0)
        return torch.cat([self.aligned(rows, lows).sum(0), lows, rows[..., minima:].amax(0)], dim=-1)

    def _cuts(self) -> tuple[int, int]:
        sums = sum(item.size for item in self.fields if item.merge == "sum")
        return sums, sums + sum(item.size for item in self.fields if item.merge == "min")


def reduce(statistic: Statistic, rows: Tensor) -> Tensor:
    """Merge *rows*, of shape ``(rows, width)``, into one row of shape ``(width,)``: over ranks, steps or files.

    >>> import torch
    >>> from sonde.stats import Norm, reduce
    >>> rows = torch.stack([Norm().measure(torch.tensor([3.0])), Norm().measure(torch.tensor([4.0]))])
    >>> Norm().finish(Norm().columns(reduce(Norm(), rows)[None]))["norm"].tolist()
    [5.0]

    Raises:
        ArgumentError: *statistic* is a :class:`~sonde.stats.PairStatistic`, whose rows depend on the order of
            tensors and do not add up (type checkers refuse it too); or *rows* are not rows of *statistic*.
    """
    if not isinstance(statistic, Statistic):
        raise ArgumentError(
            f"cannot reduce rows of {statistic!r}: it compares each tensor with the one before it, so rows of several ranks "
            "or sites do not add up; keep its numbers per row, or reduce a Statistic"
        )
    if rows.dim() != 2 or rows.shape[1] != statistic.width:
        raise ArgumentError(f"cannot reduce rows of shape {tuple(rows.shape)}: {statistic} has rows of {statistic.width} numbers")
    sums, minima = statistic._cuts()
    whole = torch.cat([statistic.empty(1, rows.device), rows])  # so that no rows make an empty row
    lows = whole[:, sums:minima].amin(0)
    return torch.cat([statistic.aligned(whole, lows).sum(0), lows, whole[:, minima:].amax(0)])


_REMEDY = {
    "nested": "add the tensors of its unbind() one by one",
    "meta": "move the model to a real device first",
    "quantised": "add its dequantize()",
    "lazy": "run the model once before, which gives the parameter a shape",
    "fake": "it stands for a shape alone; leave the FakeTensorMode first",
    "released": "its memory was given back, as FSDP does between uses",
}
_OTHERWISE = "add a tensor of a type that torch can convert to float64"


_HIGH = 1 << 44


def unreadable(tensor: Tensor) -> str:
    """Return the kind of a *tensor* that has no values which a statistic could read, as ``nested``; ``""`` if it has them."""
    if type(tensor) in PLAIN:
        if tensor.dtype in _ORDINARY and tensor.layout is torch.strided and not tensor.is_nested and _lies_high(tensor):
            return ""
    else:
        if is_lazy(tensor):
            return "lazy"
        if isinstance(tensor, getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", ())):
            return "fake"
        tensor = _as_plain(tensor)
    if tensor.is_nested:
        return "nested"
    if tensor.is_meta:
        return "meta"
    if tensor.is_quantized:
        return "quantised"
    if not _is_convertible(tensor.dtype):
        return str(tensor.dtype)
    return "released" if _has_no_memory(tensor) else ""


_ORDINARY = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool})


def _lies_high(tensor: Tensor) -> bool:
    """Return whether *tensor* surely has memory: released memory lies at zero, and no offset in it comes near this address."""
    try:
        return tensor.data_ptr() >= _HIGH
    except RuntimeError:  # inside a function transform
        return False


def surely_in_memory(tensors: Sequence[Tensor | None]) -> TypeGuard[list[Tensor]]:
    """Return whether *tensors* are all plain ones with memory. False says nothing: then each is to be asked about."""
    try:
        return {*map(type, tensors)} <= PLAIN and min(map(Tensor.data_ptr, tensors), default=0) >= _HIGH  # type: ignore[arg-type]
    except RuntimeError:  # inside a function transform
        return False


def in_memory(tensor: Tensor) -> Tensor | None:
    """Return *tensor* as a plain one in the same memory, without running code of its class.

    Returns:
        None if there is no such memory: of a sparse or unreadable tensor, and of a class that computes its values, as quantised
        weights do.
    """
    if unreadable(tensor):
        return None
    plain = tensor if type(tensor) in PLAIN else _as_plain(tensor)
    return plain if type(plain) in PLAIN and plain.layout is torch.strided else None


def bits_of(tensor: Tensor) -> Tensor:
    """Return the elements of a dense *tensor* as integers of the same bits, of a complex one as pairs: NaN equals itself."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().view(_INTEGERS[tensor.element_size()])


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _as_plain(tensor: Tensor) -> Tensor:
    """Return *tensor*, of a subclass, as a plain one, without running code of its class; itself if the class has other memory."""
    return tensor if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ else tensor.as_subclass(Tensor)


def _has_no_memory(tensor: Tensor) -> bool:
    """Return whether the memory of *tensor* was given back, where reading would end the process."""
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided or not tensor.numel():
        return False
    try:
        return tensor.untyped_storage().nbytes() == 0
    except NotImplementedError:  # inside a function transform
        return False


@cache
def _is_convertible(dtype: torch.dtype) -> bool:
    """Return whether torch converts elements of *dtype* to float64."""
    if dtype.is_complex:
        return True
    try:
        torch.empty(1, dtype=dtype, device="cpu").to(torch.float64)
    except (RuntimeError, TypeError):
        return False
    return True


def dense(tensor: Tensor) -> Tensor:
    """Return *tensor* itself if it is dense and plain, a dense copy of a sparse tensor, or this rank's part of a distributed one.

    Of a subclass of ``Tensor`` its values are returned: the same memory, or what its ``dequantize()`` or its conversion gives.

    Raises:
        ArgumentError: *tensor* is nested, quantised, fake, on the meta device, or a sum whose addends the ranks hold, or torch
            cannot convert its elements: it has no values to measure.
    """
    is_traced = torch.compiler.is_dynamo_compiling()
    if is_traced:  # a traced backward pass can read little more of a tensor
        kind = "nested" if tensor.is_nested else "meta" if tensor.is_meta else ""
    else:
        if type(tensor) not in PLAIN:
            part = local(tensor)
            if part is None:
                raise ArgumentError(
                    f"a distributed tensor cannot be measured here: {Piece.in_words(tensor)}. Call its redistribute() first"
                )
            tensor = part if is_lazy(part) else _as_plain(part)
        kind = unreadable(tensor)
    if kind:
        raise ArgumentError(f"a {kind} tensor cannot be measured: {_REMEDY.get(kind, _OTHERWISE)}")
    if is_traced:  # every traced tensor is dense
        return tensor
    if type(tensor) not in PLAIN:
        tensor = _values_of(tensor)
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _values_of(tensor: Tensor) -> Tensor:
    """Return the values of *tensor*, of a class with a ``__torch_dispatch__``, as a plain tensor.

    Such a class need not have memory of its own. It says what its values are by ``dequantize()``, as quantised weights do, or by
    converting them.

    Raises:
        ArgumentError: the class does neither.
    """
    kind = type(tensor)
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    try:
        with torch.no_grad():
            if kind.dequantize is not Tensor.dequantize:
                values = tensor.dequantize()
            else:
                values = tensor * 1 if tensor.dtype is wide else tensor.to(wide).to(tensor.dtype)
    except (RuntimeError, TypeError, AttributeError) as error:  # NotImplementedError is a RuntimeError
        raise ArgumentError(
            f"a tensor of class {kind.__name__} cannot be measured: the class does not convert it ({error})"
        ) from error
    if type(values) not in PLAIN:
        raise ArgumentError(f"a tensor of class {kind.__name__} cannot be measured: the class gives no plain tensor of its values")
    return values


def elements(tensor: Tensor) -> Tensor:
    """Return the elements as float64, without a graph: integers and bools as numbers, complex elements as their modulus.

    >>> import torch
    >>> from sonde.stats import elements
    >>> elements(torch.tensor([True, False])), elements(torch.tensor([3 + 4j]))
    (tensor([1., 0.], dtype=torch.float64), tensor([5.], dtype=torch.float64))

    A modulus is formed in double precision: it may be beyond the precision of the complex element's parts.

    Raises:
        ArgumentError: *tensor* has no values to measure, as a nested or a quantised one.
    """
    tensor = dense(tensor).detach()
    return tensor.to(torch.complex128).abs() if tensor.is_complex() else tensor.to(torch.float64)
