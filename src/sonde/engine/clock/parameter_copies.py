"""Copy parameters for the time of a step: whole, or samples where whole copies would take too much memory.

A sample has one element of each block of k elements that adjoin in memory, chosen at random within its block; the same elements
at each step. No pattern in the dimensions of a parameter is in step with a random choice, as it may be with a stride: every
element has the same probability. Numbers measured on the sample stand for the whole: shares and means as they are, counts k times,
lengths sqrt(k) times as large. Their errors have bounds that hold for all tensors, over the random choices:

* A sum of squares has a variance of at most ``(k - 1) sum x^4`` (of one element from each block: k times the sum of the fourth
  powers, less the squared sums of blocks, each at least the sum of its fourth powers). With ``x^4 <= max x^2 * x^2``, and
  ``|sqrt(a) - sqrt(b)| <= |a - b| / sqrt(b)``, the relative root mean square error of a length is at most
  ``sqrt(k - 1) * absmax / norm``. For elements of similar size it is ``sqrt((k - 1) / n)``, for few large ones much more.
* A share of m sampled elements has a standard error of at most ``1 / (2 sqrt(m))``, 0.2 % for the 65,536 elements that every sample
  has at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from operator import attrgetter
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.engine.torch_api.torch_tensors import clone_each
from sonde.stats import PLAIN, local

Copies = dict[tuple[int, int], Tensor | None]
"""Parameters as they were, by id, and of how many elements one was copied; of a distributed one the part that this rank holds.

None for one whose class cannot be copied.
"""

LEAST = 1 << 16
"""A sample has at least so many elements, if the parameter has."""


_is_nested = attrgetter("is_nested")
_positions: WeakValueDictionary[tuple[int, int, torch.device], Tensor] = WeakValueDictionary()


def part_of(parameter: Tensor) -> Tensor:
    """Return *parameter* without a graph, or the part of it that this rank holds: all that is copied."""
    part = local(parameter)
    return (parameter if part is None else part).detach()  # the parameters of no parallelism are partial sums


def positions(tensor: Tensor, one_in: int) -> Tensor:
    """Return the positions of the sample of *tensor* in the order of memory, ascending; integers, on its device.

    One tensor of positions serves all tensors of one size, as long as somebody holds it.
    """
    elements = tensor.numel()
    key = elements, one_in, tensor.device
    found = _positions.get(key)
    if found is None:
        with torch.inference_mode(False):
            first = torch.arange(0, elements, one_in, device="cpu")
            chosen = torch.randint(one_in, first.shape, generator=torch.Generator("cpu").manual_seed(elements), device="cpu")
            chosen[-1:] %= elements - first[-1:]  # the last block may be shorter
            found = (first + chosen).to(_index_type(elements)).to(tensor.device)
        _positions[key] = found
    return found


def _index_type(elements: int) -> torch.dtype:
    return torch.int32 if elements < 2**31 else torch.int64


def sample(tensor: Tensor, one_in: int) -> Tensor:
    """Return one of each *one_in* elements of *tensor*, which lies densely in memory, in the order in which it lies there.

    Returns:
        *tensor* itself for 1, else a copy of one dimension.
    """
    if one_in == 1:
        return tensor
    return tensor.as_strided((tensor.numel(),), (1,)).index_select(0, positions(tensor, one_in))


def copies(wanted: dict[tuple[int, int], nn.Parameter]) -> Copies:
    """Return copies of parameters, or of their samples."""
    if not wanted:
        return {}
    with torch.no_grad():
        parts = [parameter if type(parameter) is nn.Parameter else part_of(parameter) for parameter in wanted.values()]
        made: Sequence[Tensor | None]
        if {one_in for _, one_in in wanted} == {1} and {*map(type, parts)} <= PLAIN and not any(map(_is_nested, parts)):
            made = clone_each(parts)
        else:
            made = [_copied(part, one_in) for (_, one_in), part in zip(wanted, parts, strict=True)]
    return dict(zip(wanted, made, strict=True))


def _copied(part: Tensor, one_in: int) -> Tensor | None:
    try:
        return part.clone() if one_in == 1 else sample(part, one_in)
    except (NotImplementedError, TypeError):
        if type(part) in PLAIN and not part.is_nested:
            raise
        return None


def size_of(elements: int, one_in: int) -> int:
    """Return how many of *elements* are in a sample of one in each *one_in*."""
    return -(-elements // one_in)


def length_error(one_in: int) -> float:
    """Return the bound on the relative root mean square error of a length measured on a sample, as a multiple of absmax / norm."""
    return sqrt(one_in - 1)


def one_in_each(wanted: Sequence[nn.Parameter], limit: float) -> list[int]:
    """Return the size of a sample's blocks for each parameter, so that all copies and positions together fit in *limit* bytes.

    Parameters that are not dense, and those with no more than ``LEAST`` elements, are taken whole, even beyond the limit.
    """
    parameters = [each if is_lazy(each) else part_of(each) for each in wanted]  # type: ignore[redundant-expr]  # is_lazy narrows too much
    held = sum(map(_bytes, parameters))
    if held <= limit:
        return [1] * len(parameters)
    large = [parameter for parameter in parameters if _is_dense(parameter) and parameter.numel() > LEAST]
    left = limit - held + sum(map(_bytes, large))

    lengths = {parameter.numel() for parameter in large}  # each has positions of its own

    def taken(one_in: int) -> int:
        if one_in == 1:
            return sum(map(_bytes, large))
        held = sum(_sampled(parameter.numel(), one_in) * parameter.element_size() for parameter in large)
        return held + sum(_sampled(elements, one_in) * _index_type(elements).itemsize for elements in lengths)

    low, high = 1, max((-(-parameter.numel() // LEAST) for parameter in large), default=1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if taken(middle) <= left else (middle + 1, high)
    chosen = {id(parameter) for parameter in large}
    return [_fitted(parameter.numel(), low) if id(parameter) in chosen else 1 for parameter in parameters]


def _sampled(elements: int, one_in: int) -> int:
    return size_of(elements, _fitted(elements, one_in))


def _fitted(elements: int, one_in: int) -> int:
    """Return *one_in*, or less where fewer than ``LEAST`` elements would be left."""
    return min(one_in, max(elements // LEAST, 1))


def _bytes(parameter: Tensor) -> int:
    return 0 if is_lazy(parameter) else parameter.numel() * parameter.element_size()


def _is_dense(tensor: Tensor) -> bool:
    """Return whether the elements of *tensor* fill a piece of memory, in any order of dimensions."""
    if type(tensor) not in PLAIN or tensor.is_sparse or tensor.is_meta:
        return False
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True
