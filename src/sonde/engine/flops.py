"""Count the floating-point operations (FLOPs) of public torch functions, as ``torch.utils.flop_counter`` counts them.

Matrix products, convolutions, attention and recurrent layers count; one multiplication with one addition counts as two.
Element-wise functions and biases count as 0, as in torch. Two differences to torch: products with a vector, recurrent layers
and attention on the CPU are counted here and not in torch; a backward pass inside a forward is counted in torch and not here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from math import prod
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import conv_flop_count, sdpa_flop_count

from sonde.engine.torch_api.autograd_state import graph_task, transforms
from sonde.engine.torch_api.torch_tensors import without_overrides

Formula = Callable[[tuple[Any, ...], dict[str, Any], Any], int]

_names: dict[Any, str] = {}


class FlopCounter(TorchFunctionMode):
    """While entered, call *count* with the FLOPs of each public torch function that a forward calls.

    As in a graph, a backward pass inside the forward and code inside transforms of ``torch.func`` are not counted.
    """

    def __init__(self, count: Callable[[int], None]) -> None:
        super().__init__()
        self._count = count

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function_name(function)
        if name in _FORMULAS and graph_task() == -1 and transforms() is None:
            with without_overrides():
                self._count(count_flops(name, args, kwargs or {}, result))
        return result


def function_name(function: Any) -> str:
    """Return the public name of a function that torch reports: ``add``, ``getitem``, ``T``, ``relu_``."""
    try:
        return _names[function]
    except (KeyError, TypeError):
        name = getattr(function, "__name__", type(function).__name__)
        if name == "__get__":  # of a property, as x.T
            name = getattr(getattr(function, "__self__", None), "__name__", "get")
        if name.startswith("__i") and name.endswith("__") and name[3:-2] in _IN_PLACE:
            name = f"{name[3:-2]}_"
        name = name.removeprefix("__").removesuffix("__")
        with contextlib.suppress(TypeError):  # the function is not hashable
            _names[function] = name
        return name


_IN_PLACE = {"add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul"}


def count_flops(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the FLOPs of one call of the function *name*; 0 for a function that is not counted."""
    formula = _FORMULAS.get(name)
    if formula is None:
        return 0
    try:
        return int(formula(args, kwargs, result))
    except Exception:  # a form of call that no formula reads, or tensors without a shape
        return 0


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str) -> Any:
    return args[position] if position < len(args) else kwargs[name]


def _product(rows: int, inner: int, columns: int) -> int:
    return 2 * rows * inner * columns


def _linear(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> int:
    weight = _argument(args, kwargs, 1, "weight")
    return 2 * result.numel() * int(weight.shape[-1])


def _bilinear(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> int:
    weight = _argument(args, kwargs, 2, "weight")  # out × in1 × in2: one product with each of the two inputs
    return 2 * result.numel() * int(weight.shape[1]) * int(weight.shape[2])


def _matmul_at(first: int) -> Formula:
    """Return the formula of a product whose left matrix is argument number *first*; its columns are summed over."""

    def count(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> int:
        names = ("input", "mat1", "batch1", "vec1", "self")
        left = args[first] if first < len(args) else next(kwargs[name] for name in names[first:] if name in kwargs)
        return 2 * result.numel() * int(left.shape[-1])

    return count


def _reversed_matmul(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> int:
    return 2 * result.numel() * int(args[1].shape[-1])


def _convolution(transposed: bool) -> Formula:
    def count(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> int:
        given, weight = _argument(args, kwargs, 0, "input"), _argument(args, kwargs, 1, "weight")
        batched = given.dim() == weight.dim()
        shapes = [list(tensor.shape) if batched else [1, *tensor.shape] for tensor in (given, result)]
        return conv_flop_count(shapes[0], list(weight.shape), shapes[1], transposed)

    return count


def _attention(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> int:
    shapes = [_argument(args, kwargs, at, name).shape for at, name in enumerate(("query", "key", "value"))]
    query, key, value = ((1,) * max(0, 4 - len(shape)) + tuple(shape) for shape in shapes)
    batch = prod(query[:-3])
    return int(sdpa_flop_count(*((batch, *shape[-3:]) for shape in (query, key, value))))


def _multi_head(args: tuple[Any, ...], kwargs: dict[str, Any], result: tuple[Tensor, Any]) -> int:
    query, key, value = (_argument(args, kwargs, at, name) for at, name in enumerate(("query", "key", "value")))
    width = int(query.shape[-1])
    length, source = int(query.shape[0]), int(key.shape[0])
    batch = int(query.shape[1]) if query.dim() == 3 else 1
    projections = sum(_product(tensor.numel() // tensor.shape[-1], int(tensor.shape[-1]), width) for tensor in (query, key, value))
    return projections + 2 * _product(batch * length, width, source) + _product(batch * length, width, width)


def _einsum(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> int:
    equation, *given = args
    tensors = list(given[0]) if len(given) == 1 and isinstance(given[0], tuple | list) else given
    if not isinstance(equation, str) or "..." in equation or len(tensors) != 2:
        return 0
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    sizes = {
        letter: int(size)
        for term, tensor in zip(terms, tensors, strict=True)
        for letter, size in zip(term, tensor.shape, strict=True)
    }
    summed = set(terms[0]) & set(terms[1]) - set(output)
    if all(sizes[letter] == 1 for letter in summed):  # nothing is summed: torch multiplies element by element
        return 0
    return 2 * prod(sizes.values())


def _recurrent(args: tuple[Any, ...], kwargs: dict[str, Any], result: tuple[Tensor, ...]) -> int:
    """Count stacked recurrent layers: at each step, each layer multiplies its input and its state with its weights."""
    packed = isinstance(args[3], tuple | list)  # (data, batch_sizes, hx, weights, ...); otherwise (input, hx, weights, ...)
    weights = args[3] if packed else args[2]
    data = args[0]
    steps = int(data.shape[0]) if packed else data.numel() // int(data.shape[-1])
    return sum(2 * steps * weight.numel() for weight in weights if weight.dim() == 2)


def _cell(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    data, weights = args[0], args[2:4]
    rows = int(data.shape[0]) if data.dim() == 2 else 1
    return sum(2 * rows * weight.numel() for weight in weights)


_FORMULAS: dict[str, Formula] = {
    "linear": _linear,
    "bilinear": _bilinear,
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "chain_matmul"), _matmul_at(0)),
    **dict.fromkeys(("dot", "vdot"), lambda args, kwargs, result: 2 * args[0].numel()),
    "rmatmul": _reversed_matmul,
    **dict.fromkeys(("addmm", "addmm_", "addbmm", "baddbmm", "baddbmm_", "addmv"), _matmul_at(1)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution(transposed=False)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _convolution(transposed=True)),
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _multi_head,
    "einsum": _einsum,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _cell),
}
