"""One operator that ran: its tensors and numbers as they were before it, its result, and which elements of that are new."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sonde.diagnosis.nonfinite.origins import Kind
from sonde.diagnosis.nonfinite.tensor_facts import dense, of_this_rank
from sonde.engine import OperatorCall, is_floating, remap

_OVERWRITES = {"copy", "fill", "zero", "normal", "uniform", "bernoulli", "exponential", "random", "set"}
"""Operators whose first argument is only written."""

_BY_ELEMENT = {"to_copy", "copy", "clone", "contiguous", "convert_element_type", "masked_fill", "relu", "gelu", "silu", "dropout"}
"""Operators without torch's tag for them that compute each element of the result from the elements at its position."""

_ALONG_DIM = {"softmax", "log_softmax", "softmax_backward_data", "log_softmax_backward_data", "cumsum", "cumprod", "logcumsumexp"}
_PRODUCTS = {
    "mm": ("self", "mat2"), "bmm": ("self", "mat2"), "addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"),
    "mv": ("self", "vec"), "addmv": ("mat", "vec"), "dot": ("self", "tensor"), "vdot": ("self", "other"),
}  # fmt: skip
"""Products of matrices and vectors, and the names of the two factors."""

NOTHING = {**dict.fromkeys(("logsumexp", "max", "amax"), -math.inf), **dict.fromkeys(("min", "amin"), math.inf)}
"""Operators that make one number of a row, and the infinity that they leave out: it comes out where a row holds nothing else."""

LOSSES_OF_LABELS = ("nll_loss_forward", "nll_loss2d_forward")

MOVES = {
    "cat", "stack", "index", "index_select", "gather", "embedding", "slice_scatter", "select_scatter", "scatter", "index_put",
    "repeat", "roll", "flip", "constant_pad_nd", "unfold_backward", "slice_backward", "select_backward", "masked_select",
    "as_strided_scatter", "max_pool2d_with_indices", "max", "min", "amax", "amin", "topk", "sort", "where", "take",
    "lift_fresh_copy",
    "permute_copy", "view_copy", "expand_copy", "diag_embed", "tril", "triu", "index_copy", "masked_scatter", "repeat_interleave",
    "upsample_nearest2d", "pixel_shuffle", "reflection_pad2d", "replication_pad2d", "split_with_sizes_copy", "unsafe_split",
}  # fmt: skip
"""Operators that only move elements: they make no new value out of any."""


@dataclass(eq=False, slots=True)
class Operation:
    """One operator that ran, or one position of an operator that takes lists of tensors.

    Attributes:
        call: the operator with the arguments as they were before it; tensors that it wrote into are copies, and of distributed
            ones there is what this rank holds: an operation on them would wait for the other ranks.
        name: without namespace, overload and marks of its kind: ``softmax`` of ``aten::_softmax.default``.
        tensors: the floating-point operands by the names of the arguments.
        others: the operands of integers and truth values.
        numbers: the numbers among the arguments.
        written: of the operands that the operator wrote into, the tensor itself, with the new numbers.
        result: the tensor that was looked at.
        new: which elements of the result are bad and come from good operands; None if none is.
        kind: ``NaN`` or ``inf``: what these elements are.
        index: position of the first of them.
        node: the name of the autograd node whose derivative ran; ``""`` in a forward.
        saved, saved_numbers: tensors and numbers that this node had saved.
        by_element: each element of the result comes from the elements of the operands at its position.
        is_of_lists: one position of an operator that takes lists of tensors.
    """

    call: OperatorCall
    name: str
    tensors: dict[str, Tensor]
    others: dict[str, Tensor]
    numbers: dict[str, float]
    written: dict[str, Tensor]
    result: Tensor
    new: Tensor | None = None
    kind: Kind = "NaN"
    index: tuple[int, ...] = ()
    node: str = ""
    saved: dict[str, Tensor] = field(default_factory=dict)
    saved_numbers: dict[str, float] = field(default_factory=dict)
    by_element: bool = False
    is_of_lists: bool = False

    @property
    def operator(self) -> str:
        """The kernel: ``aten::_softmax``."""
        return str(self.call.function).rpartition(".")[0].replace(".", "::", 1)

    def element(self, name: str) -> float | complex | None:
        """Return the element of the operand *name* that meets the first bad element; None if no single one does."""
        tensor = self.tensors.get(name, self.others.get(name))
        if tensor is None:
            return self.numbers.get(name)
        return self.element_of(tensor)

    def element_of(self, tensor: Tensor) -> float | complex | None:
        """Return the element of *tensor* at the position of the first bad element; None if shapes do not fit."""
        try:
            value: float | complex = torch.broadcast_to(tensor, self.result.shape)[self.index].item()
        except (RuntimeError, IndexError):
            return None
        return value

    def first(self) -> tuple[str, Tensor] | None:
        """Return name and tensor of the first floating-point operand."""
        return next(iter(self.tensors.items()), None)

    def line(self, name: str, dim: int) -> Tensor | None:
        """Return the elements of the operand *name* along *dim* that meet the first bad element."""
        tensor = self.tensors[name]
        if tensor.dim() == 0 or tensor.dim() != len(self.index):
            return None
        place: list[Any] = list(self.index)
        place[dim] = slice(None)
        return tensor[tuple(place)]

    @property
    def is_product(self) -> bool:
        """Whether the operator multiplies matrices or vectors."""
        return self.name in _PRODUCTS

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return the row and the column of a product of matrices that meet in the first bad element."""
        left, right = (self.tensors[name] for name in _PRODUCTS[self.name])
        row: Any = self.index[: left.dim() - 1]
        column: Any = () if right.dim() == 1 else (*self.index[:-2], slice(None), self.index[-1])
        return left[row], right[column]

    def find(self) -> bool:
        """Look for bad elements of the result that come from good operands; return whether there are any."""
        result = _computable(self.result)
        nan, inf = result.isnan(), result.isinf()
        nan_in, inf_in = self._bad_operands()
        if any(math.isnan(number) for number in self.numbers.values()):
            nan_in = nan_in | True
        if any(math.isinf(number) for number in self.numbers.values()):
            inf_in = inf_in | True
        found_of: tuple[tuple[Kind, Tensor], ...] = (("NaN", nan & ~nan_in), ("inf", inf & ~(nan_in | inf_in)))
        for kind, found in found_of:
            if self.name in MOVES and (bool(nan_in.any()) or bool(inf_in.any())):
                return False
            if bool(found.any()):
                self.kind, self.new = kind, found
                self.index = first_of(found)
                return True
        return False

    def find_label(self, called: str) -> bool:
        """Return whether this is a loss of class labels that is infinite; if so, its first such element is the bad one.

        Args:
            called: the function that the code calls: a cross-entropy adds up all classes where it smooths the labels.
        """
        is_loss = self.name in LOSSES_OF_LABELS or (self.name == "sum" and "cross_entropy" in called)
        infinite = self.result.isinf() if is_loss else torch.zeros((), device="cpu")
        if not bool(infinite.any()):
            return False
        self.kind, self.new = "inf", infinite
        self.index = first_of(infinite)
        return True

    def find_rest(self) -> bool:
        """Return whether this looks over rows, and one holds nothing but the infinity that stands for "nothing here"."""
        nothing = NOTHING.get(self.name)
        if nothing is None or not bool((rest := _computable(self.result) == nothing).any()):
            return False
        self.kind, self.new = "inf", rest
        self.index = first_of(rest)
        return True

    def takes(self, name: str) -> bool:
        """Return whether a bad element of the operand *name* comes into the result, as far as a choice leaves elements out."""
        chosen = self.others.get("condition" if self.name == "where" else "mask")
        if self.name not in ("where", "masked_fill") or chosen is None or name not in ("self", "other"):
            return True
        taken = chosen if (self.name, name) == ("where", "self") else ~chosen
        return bool((~_computable(self.tensors[name]).isfinite() & taken.to(self.tensors[name].device)).any())

    def _bad_operands(self) -> tuple[Tensor, Tensor]:
        """Return which elements of the result depend on NaN, and which on infinities."""
        shape = self.result.shape
        nan = torch.zeros((), dtype=torch.bool, device=self.result.device)
        inf = nan.clone()
        for name, held in self.tensors.items():
            tensor = _computable(held)
            nan, inf = (before | self._reach(name, mask, shape) for before, mask in ((nan, tensor.isnan()), (inf, tensor.isinf())))
        return torch.broadcast_to(nan, shape), torch.broadcast_to(inf, shape)

    def _reach(self, name: str, mask: Tensor, shape: torch.Size) -> Tensor:
        """Return which elements of a result of *shape* depend on elements of the operand *name* that *mask* marks."""
        if self.is_product and name in _PRODUCTS[self.name]:
            if mask.dim() == 1:
                mask = mask.any()
            else:
                is_left = name == _PRODUCTS[self.name][0]
                mask = mask.any(-1 if is_left else -2, keepdim=len(shape) > 1)
        elif self.name in _ALONG_DIM:
            mask = mask.any(int(self.numbers.get("dim", -1)), keepdim=True)
        elif not (self.by_element or self.is_product):
            return mask.any().to(self.result.device)
        try:
            return torch.broadcast_to(mask.to(self.result.device), shape)
        except RuntimeError:
            return mask.any().to(self.result.device)


def first_of(marked: Tensor) -> tuple[int, ...]:
    """Return the position of the first element that *marked* marks."""
    flat = torch.tensor(int(marked.flatten().to(torch.uint8).argmax()), device="cpu")
    return tuple(int(part) for part in torch.unravel_index(flat, marked.shape))


def _computable(tensor: Tensor) -> Tensor:
    """Return *tensor*; of a dtype of 8 bits, which few operations take, a copy in float32."""
    return tensor.float() if tensor.element_size() == 1 else tensor


def base_name(function: Any) -> str:
    """Return the name of an operator without namespace, overload and marks: ``softmax``, ``add`` for ``aten::_foreach_add_``."""
    parts = str(function).split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    name = name.strip("_").removeprefix("foreach_").removeprefix("native_")
    return name.removeprefix("linalg_") if name == "linalg_vector_norm" else name


def operations_of(call: OperatorCall, result: Any, written: dict[str, Any]) -> Iterator[Operation]:
    """Yield what an operator did: one operation for each floating-point tensor that it returned or wrote into.

    Args:
        call: of the operator; the arguments that it wrote into hold the new numbers.
        result: what it returned.
        written: copies of the arguments that it wrote into, by name, from before.
    """
    function, names, given, name = call.function, call.names, call.given, base_name(call.function)
    before = {key: written.get(key, value) for key, value in given.items() if key != "out"}
    if name in _OVERWRITES and names:
        before.pop(names[0], None)
    foreach = "._foreach_" in str(function) or "._fused_" in str(function)
    outputs = [result if foreach else _tensors(result), *(given.get(key) for key in sorted(call.written))]
    by_element = name in _BY_ELEMENT or any(getattr(tag, "name", "") == "pointwise" for tag in getattr(function, "tags", ()))
    before_args = tuple(written.get(key, value) for key, value in zip(names, call.args, strict=False)) or call.args
    before_kwargs = {key: written.get(key, value) for key, value in call.kwargs.items()}
    was = OperatorCall(function, remap(before_args, of_this_rank), remap(before_kwargs, of_this_rank))
    seen: set[int] = set()
    for value in outputs:
        for position, tensor in enumerate(value if isinstance(value, list | tuple) else [value]):
            if not isinstance(tensor, Tensor) or id(tensor) in seen or not is_floating(tensor):
                continue
            seen.add(id(tensor))
            held = dense(tensor)
            if held is None:
                continue
            here = {key: _at(part, position) if foreach else part for key, part in before.items()}
            tensors, others, numbers = _sorted(here)
            new = {key: _at(given[key], position) if foreach else given[key] for key in written}
            yield Operation(was, name, tensors, others, numbers, new, held, by_element=by_element or foreach, is_of_lists=foreach)


def _at(value: Any, position: int) -> Any:
    return value[position] if isinstance(value, list | tuple) and position < len(value) else value


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _sorted(given: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, float]]:
    tensors: dict[str, Tensor] = {}
    others: dict[str, Tensor] = {}
    numbers: dict[str, float] = {}
    for name, value in given.items():
        if isinstance(value, tuple | list) and value and all(isinstance(part, Tensor) for part in value):
            found = {f"{name}[{place}]": part for place, part in enumerate(value)}
        elif isinstance(value, tuple | list) and len(value) == 1 and isinstance(value[0], int | float):
            numbers[name] = value[0]
            continue
        else:
            found = {name: value}
        for key, part in found.items():
            if isinstance(part, bool) or part is None:
                continue
            if isinstance(part, int | float):
                numbers[key] = part
            elif isinstance(part, Tensor) and (held := dense(part)) is not None:
                (tensors if is_floating(held) else others)[key] = held
    return tensors, others, numbers
