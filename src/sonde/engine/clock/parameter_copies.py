"""Copy parameters for the time of a step: whole, or samples where whole copies would take too much memory.

A sample is every n-th element in the order of memory, the same ones at each step. Numbers measured on the sample stand for the
whole: shares and means as they are, counts n times, lengths sqrt(n) times as large. Of m elements that vary as normal ones do,
the standard error of a length is 1 / sqrt(2 m) of it: 0.3 % for the 65,536 elements that every sample has at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import gcd, sqrt

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.engine.torch_api.tensors import clone_each

__all__ = ["LEAST", "Copies", "copies", "error_of", "one_in_each", "sample", "size_of"]

Copies = dict[tuple[int, int], Tensor]
"""Parameters as they were, by id, and of how many elements one was copied."""

LEAST = 1 << 16
"""A sample has at least so many elements, if the parameter has."""


def sample(tensor: Tensor, one_in: int) -> Tensor:
    """Return a view of every *one_in*-th element of *tensor*, which lies densely in memory, in the order in which it lies there.

    Returns:
        *tensor* itself for 1, else a view of one dimension.
    """
    if one_in == 1:
        return tensor
    return tensor.as_strided((size_of(tensor.numel(), one_in),), (one_in,))


def copies(wanted: dict[tuple[int, int], nn.Parameter]) -> Copies:
    """Return copies of parameters, or of their samples."""
    if not wanted:
        return {}
    with torch.no_grad():
        if all(one_in == 1 and type(parameter) is nn.Parameter for (_, one_in), parameter in wanted.items()):
            made = clone_each(list(wanted.values()))
        else:  # among them samples, or some that are distributed, say
            made = [sample(parameter.detach(), one_in).clone() for (_, one_in), parameter in wanted.items()]
    return dict(zip(wanted, made, strict=True))


def size_of(elements: int, one_in: int) -> int:
    """Return how many of *elements* are in a sample of every *one_in*-th."""
    return -(-elements // one_in)


def error_of(elements: int) -> float:
    """Return the relative standard error of a length that was measured on a sample of *elements* elements."""
    return 1 / sqrt(2 * elements)


def one_in_each(parameters: Sequence[nn.Parameter], limit: float) -> list[int]:
    """Return the sampling stride of each parameter, so that all copies together fit in *limit* bytes.

    Parameters that are not dense, and those with no more than ``LEAST`` elements, are taken whole, even beyond the limit.
    """
    held = sum(map(_bytes, parameters))
    if held <= limit:
        return [1] * len(parameters)
    large = [parameter for parameter in parameters if _is_dense(parameter) and parameter.numel() > LEAST]
    left = limit - held + sum(map(_bytes, large))

    def taken(one_in: int) -> int:
        return sum(max(size_of(parameter.numel(), one_in), LEAST) * parameter.element_size() for parameter in large)

    low, high = 1, max((-(-parameter.numel() // LEAST) for parameter in large), default=1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if taken(middle) <= left else (middle + 1, high)
    chosen = {id(parameter) for parameter in large}
    return [_fitted(parameter, low) if id(parameter) in chosen else 1 for parameter in parameters]


def _fitted(parameter: nn.Parameter, one_in: int) -> int:
    """Return a stride that leaves ``LEAST`` elements, and has no divisor in common with a row, so that all columns are sampled."""
    most = max(parameter.numel() // LEAST, 1)
    wanted = next(each for each in count(one_in) if gcd(each, parameter.shape[-1]) == 1)
    return min(wanted, most)


def _bytes(parameter: nn.Parameter) -> int:
    return 0 if is_lazy(parameter) else parameter.numel() * parameter.element_size()  # type: ignore[redundant-expr]  # is_lazy narrows too much


def _is_dense(tensor: Tensor) -> bool:
    """Return whether the elements of *tensor* fill a piece of memory, in any order of dimensions."""
    if type(tensor) is not nn.Parameter or tensor.is_sparse or tensor.is_meta:
        return False
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True
