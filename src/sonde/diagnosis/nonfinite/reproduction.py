"""Write one line of Python that makes the same kind of value again, run before it is shown."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sonde.diagnosis.nonfinite.derivatives import forward_name
from sonde.diagnosis.nonfinite.operation import Operation

_MOST = 24  # numbers in a literal
_LONGEST = 240  # characters of a line


def reproductions(operation: Operation) -> list[str]:
    """Return lines of Python that may make the value again that *operation* made, the best first. None has been run."""
    with contextlib.suppress(RuntimeError, IndexError, KeyError):
        return [line for line in _candidates(operation) if len(line) <= _LONGEST]
    return []


def first_that_works(lines: list[str], kind: str) -> str:
    """Return the first of *lines* whose value holds a NaN (*kind* ``NaN``) or an infinity; ``""`` if none does.

    The lines need nothing but ``import torch``, and are run here.
    """
    return next((line for line in lines if _makes(line, kind)), "")


def _makes(line: str, kind: str) -> bool:
    """Return whether the value of *line* holds what *kind* names."""
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = eval(line, {"torch": torch})
    except Exception:
        return False
    tensors = [part for part in (made if isinstance(made, tuple | list) else [made]) if isinstance(part, Tensor)]
    floating = [part for part in tensors if part.is_floating_point() or part.is_complex()]
    return any(bool((part.isnan() if kind == "NaN" else part.isinf()).any()) for part in floating)


def _candidates(operation: Operation) -> Iterator[str]:
    if operation.node:
        yield from _derivative(operation)
    if operation.by_element:
        yield from _calls(operation, lambda tensor: _picked(tensor, operation))
    if operation.name in _ROWS:
        yield from _calls(operation, lambda tensor: _row(tensor, operation), dim=-1)
    if operation.is_product:
        yield from _product(operation)
    yield from _calls(operation, lambda tensor: tensor)
    yield from _calls(operation, lambda tensor: _constant(tensor, operation))
    first = operation.first()
    if first is not None and operation.name in _REDUCTIONS and first[1].numel():
        largest = first[1].abs().max()
        yield f"torch.{operation.name}({_full(first[1].numel(), largest)})"


_ROWS = {"softmax", "log_softmax"}
_REDUCTIONS = {"sum", "mean", "prod", "cumsum", "std", "var"}


def _derivative(operation: Operation) -> Iterator[str]:
    """Yield lines that differentiate the forward operation at the number that its node had saved."""
    name = forward_name(operation.node)
    saved = operation.saved.get("self")
    value = None if saved is None else operation.element_of(saved)
    if value is None and "result" in operation.saved and operation.element_of(operation.saved["result"]) == 0:
        value = 0.0  # of sqrt
    if value is None or not hasattr(torch, name) or isinstance(value, complex):
        return
    dtype = operation.result.dtype
    leaf = f"(x := {_literal(torch.tensor(value, dtype=dtype, device='cpu'))}.requires_grad_())"
    gradients = [1.0, *(0.0 for _ in [0] if operation.kind == "NaN")]
    more = f", {operation.saved_numbers['exponent']!r}" if name == "pow" and "exponent" in operation.saved_numbers else ""
    if name in ("div", "mul", "std", "var"):
        return
    for gradient in gradients:
        scaled = "" if gradient == 1.0 else f" * {gradient!r}"
        yield f"torch.autograd.grad(torch.{name}({leaf}{more}){scaled}, x)"


def _calls(operation: Operation, smaller: Any, dim: int | None = None) -> Iterator[str]:
    """Yield the call of the operator with smaller tensors: as a function of torch, then as the operator itself."""
    texts: list[str] = []
    for part in operation.call.args:
        text = _text(part, smaller)
        if text is None:
            return
        texts.append(text)
    named = {key: _text(part, smaller) for key, part in operation.call.kwargs.items() if part is not None}
    if any(text is None for text in named.values()):
        return
    if dim is not None and len(texts) > 1:
        texts[1] = str(dim)
    keywords = [f"{key}={text}" for key, text in named.items()]
    public = operation.name
    if hasattr(torch, public) and not public.startswith("_"):
        kept = texts if dim is None else texts[:2]  # softmax(x, dim), and not the operator's third argument
        yield f"torch.{public}({', '.join([*kept, *keywords])})"
    space, _, rest = str(operation.call.function).partition(".")
    yield f"torch.ops.{space}.{rest}({', '.join([*texts, *keywords])})"


def _text(part: Any, smaller: Any) -> str | None:
    if isinstance(part, Tensor):
        made = smaller(part)
        return None if made is None else _literal(made)
    if isinstance(part, list | tuple):
        texts = [_text(each, smaller) for each in part]
        return None if any(text is None for text in texts) else f"[{', '.join(text for text in texts if text is not None)}]"
    if isinstance(part, bool | int | str | type(None)):
        return repr(part)
    if isinstance(part, float):
        return _number(part)
    if isinstance(part, torch.dtype):
        return str(part)
    return None


def _picked(tensor: Tensor, operation: Operation) -> Tensor | None:
    with contextlib.suppress(RuntimeError, IndexError):
        return torch.broadcast_to(tensor, operation.result.shape)[operation.index]
    return None


def _constant(tensor: Tensor, operation: Operation) -> Tensor | None:
    """Return a tensor of the same shape whose elements are all the one at the bad position, or the first one."""
    if tensor.numel() == 0:
        return tensor
    found = operation.element_of(tensor) if tensor.shape == operation.result.shape else None
    return torch.full_like(tensor, tensor.flatten()[0].item() if found is None else found)


def _row(tensor: Tensor, operation: Operation) -> Tensor | None:
    if tensor.dim() == 0 or tensor.dim() != len(operation.index):
        return tensor
    place: list[Any] = list(operation.index)
    place[int(operation.numbers.get("dim", -1))] = slice(None)
    return tensor[tuple(place)]


def _product(operation: Operation) -> Iterator[str]:
    row, column = operation.factors()
    order = (row.double().abs() * column.double().abs()).nan_to_num(math.inf).argsort(descending=True)
    for count in (1, 2, 4, 8, _MOST // 2):
        chosen = order[:count]
        yield f"torch.mm({_literal(row[chosen][None])}, {_literal(column[chosen][:, None])})"
    if row.numel() > _MOST:
        yield f"torch.mm({_full(row.numel(), row.abs().max())}[None], {_full(row.numel(), column.abs().max())}[:, None])"


def _full(count: int, value: Tensor) -> str:
    return f"torch.full(({count},), {_number(float(value))}, dtype={value.dtype})"


def _literal(tensor: Tensor) -> str | None:
    """Return the text of a tensor of the same numbers; None if that were too long."""
    held = tensor.detach().cpu()
    dtype = "" if held.dtype in (torch.float32, torch.bool, torch.int64) else f", dtype={held.dtype}"
    if held.numel() > 1 and bool((held == held.flatten()[0]).all()):
        value = held.flatten()[0].item()
        return f"torch.full({tuple(held.shape)}, {_number(value)}{dtype})"
    if held.numel() == 0:
        return f"torch.empty({tuple(held.shape)}{dtype})"
    if held.numel() > _MOST or held.is_complex():
        return None
    return f"torch.tensor({_nested(held.tolist())}{dtype})"


def _nested(value: Any) -> str:
    return f"[{', '.join(map(_nested, value))}]" if isinstance(value, list) else _number(value)


def _number(value: Any) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return "torch.nan"
        if math.isinf(value):
            return "torch.inf" if value > 0 else "-torch.inf"
        short = f"{value:.9g}"
        return short if any(mark in short for mark in ".e") else f"{short}.0"
    return repr(value)
