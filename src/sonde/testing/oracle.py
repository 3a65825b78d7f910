"""Compare a statistic with a slow, obvious oracle that keeps every tensor: ``assert_oracle(MyStatistic(), oracle, tensors)``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sonde.stats import Accumulator, RowStatistic, Statistic, dense, reduce

Oracle = Callable[[list[Tensor]], dict[str, float]]
"""Maps all added tensors, in order, to the expected numbers by name."""


def assert_oracle(
    statistic: RowStatistic,
    oracle: Oracle,
    tensors: Sequence[Tensor],
    *,
    rel: float = 1e-9,
    absolute: Mapping[str, float] | None = None,
    unchecked: Sequence[str] = (),
) -> None:
    """Assert that *statistic* gives the numbers of *oracle*: the same names, and each number within its tolerance.

    >>> import sonde, torch
    >>> from sonde import testing
    >>> def oracle(tensors):
    ...     joined = torch.cat([tensor.flatten() for tensor in tensors])
    ...     return {"norm": joined.norm(), "rms": joined.square().mean().sqrt(), "count": joined.numel()}
    >>> tensors = [torch.tensor([3.0]), torch.tensor([4.0])]
    >>> testing.assert_oracle(sonde.stats.Norm(), oracle, tensors, unchecked=["finite", "nan", "inf"])

    The tensors are added one after the other. If the statistic merges, two more ways are compared: an accumulator for each
    tensor, as on several ranks, merged backwards; and rows that are measured without a compiled kernel, as in compiled
    models and on other devices.

    Args:
        statistic: an instance.
        oracle: returns the expected numbers; best written in plain torch, in float64.
        tensors: the added tensors.
        rel: the allowed error of each number, as a share of the oracle's number; infinities and NaN must be the same.
        absolute: a further allowed error of some numbers, by name.
        unchecked: names of numbers that *oracle* does not give, such as a bound on an error.

    Raises:
        AssertionError: a number is missing, superfluous or too far off; the message gives both numbers.
    """
    added = Accumulator(statistic)
    for tensor in tensors:
        added.update(tensor)
    expected = oracle(list(tensors))
    _compare(added, expected, rel, absolute or {}, unchecked, "added one after the other")
    if isinstance(statistic, Statistic):
        merged: Accumulator[Any] = Accumulator(statistic)
        for tensor in reversed(tensors):
            merged.merge(Accumulator(statistic).update(tensor))
        _compare(merged, expected, rel, absolute or {}, unchecked, "merged backwards")
        rows = torch.stack([statistic.empty(1)[0], *(statistic.measure(dense(tensor)) for tensor in tensors)])
        state = {"statistic": repr(statistic), "row": reduce(statistic, rows)[None]}
        reduced: Accumulator[Any] = Accumulator(statistic).load_state_dict(state)
        _compare(reduced, expected, rel, absolute or {}, unchecked, "measured without a kernel and reduced")


def _compare(
    found: Accumulator[Any],
    expected: dict[str, float],
    rel: float,
    absolute: Mapping[str, float],
    unchecked: Sequence[str],
    how: str,
) -> None:
    numbers = {name: number for name, number in found.compute().as_dict().items() if name not in unchecked}
    if numbers.keys() != expected.keys():
        raise AssertionError(f"{found.statistic} gives {', '.join(numbers)}; the oracle gives {', '.join(expected)}")
    wrong = {
        name: (numbers[name], number)
        for name, number in expected.items()
        if not math.isclose(numbers[name], number, rel_tol=rel, abs_tol=absolute.get(name, 0.0))
        and not (math.isnan(number) and math.isnan(numbers[name]))
    }
    if wrong:
        listed = "; ".join(f"{name} is {one!r}, and {other!r} by the oracle" for name, (one, other) in wrong.items())
        raise AssertionError(f"{found.statistic}, {how}: {listed}")


def situations(features: int | None = None) -> dict[str, list[Tensor]]:
    """Return difficult tensors for statistics, by name: each entry is the tensors of several updates, the same each time.

    >>> from sonde import testing
    >>> [name for name, tensors in testing.situations().items()][:3]
    ['float32', 'float64', 'bfloat16']

    Among them are types from float64 to bool and complex, NaN and infinities, empty tensors, scalars, tiny and huge values,
    large offsets, and strided, expanded and sparse tensors.

    Args:
        features: the size of the last axis; all tensors then have two dimensions. None gives tensors of any shape.
    """
    made = _by_shape(_Shapes(features))
    if features is None:
        made |= {
            "scalars": [torch.tensor(-2.5, device="cpu"), torch.tensor(4.0, device="cpu")],
            "batch size changes": [_values(4, 3), _values(4, 3) + 1, _values(2, 3), _values(1, 3), _values(3)],
            "channels last": [_values(2, 3, 4, 4).to(memory_format=torch.channels_last)],
            "no channels": [torch.empty(2, 0, device="cpu"), torch.empty(0, 2, 0, device="cpu")],
            "one dimension and three": [_values(7), _values(2, 7, 3)],
        }
    return made


class _Shapes:
    """Makes tensors of *count* elements or a few more, in the wanted shape."""

    def __init__(self, features: int | None) -> None:
        self.features = features

    def shape(self, count: int) -> tuple[int, ...]:
        return (count,) if self.features is None else (-(-count // self.features), self.features)

    def __call__(self, count: int, dtype: torch.dtype = torch.float32, spread: float = 1.0, shift: float = 0.0) -> Tensor:
        return (_values(*self.shape(count)) * spread + shift).to(dtype)

    def of(self, *numbers: float, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a tensor of these numbers, repeated to fill the shape."""
        shape = self.shape(len(numbers))
        return torch.tensor(numbers, dtype=dtype, device="cpu").repeat(self.features or 1)[: math.prod(shape)].reshape(shape)

    def defects(self, dtype: torch.dtype) -> Tensor:
        """Return values; in some samples a part is NaN, infinite or zero."""
        flat = self(60).flatten()
        flat[:20:7], flat[1:20:9], flat[2:20:5], flat[3::4] = float("nan"), float("inf"), float("-inf"), 0.0
        return flat.reshape(self.shape(60)).to(dtype)


def _by_shape(values: _Shapes) -> dict[str, list[Tensor]]:
    nan, inf = float("nan"), float("inf")
    wide = values(24)
    return {
        "float32": [values(35), values(35, shift=0.5), values(4)],
        "float64": [values(35, torch.float64), values(35, torch.float64, shift=0.5), values(8, torch.float64)],
        "bfloat16": [values(500, torch.bfloat16), values(500, torch.bfloat16, shift=1e-3), values(3, torch.bfloat16)],
        "float16": [values(500, torch.float16), values(500, torch.float16, shift=1e-3), values(3, torch.float16)],
        "float8": [values(64).to(torch.float8_e4m3fn), values(64, shift=0.1).to(torch.float8_e4m3fn)],
        "dtypes in turn": [values(8, torch.float16), values(8, torch.float64), values(8, torch.int32, 10)],
        "float32 of bfloat16": [values(60, torch.bfloat16), values(60, torch.bfloat16).float() + values(60) * 2**-9],
        "int64": [values.of(-3, 0, 2, 7, 0, 10**9, dtype=torch.int64), values.of(-3, 0, 2, 8, 0, 10**9, dtype=torch.int64)],
        "int8 and uint8": [values.of(-128, 127, 0, dtype=torch.int8), values.of(255, 0, 1, dtype=torch.uint8)],
        "bool": [values.of(True, False, False, True, dtype=torch.bool), values.of(True, True, False, True, dtype=torch.bool)],
        "complex64": [torch.complex(values(6), values(6, shift=2.0)), torch.complex(values(6, shift=1.0), values(6))],
        "complex and real": [torch.complex(values(6), values(6, shift=2.0)), values(6)],
        "no samples": [values(4)[:0], values(4)[:0]],
        "no samples in between": [values(4)[:0], values(4), values(4)[:0]],
        "nan and inf": [values.defects(torch.float32), values(60)],
        "nan and inf in bfloat16": [values.defects(torch.bfloat16), values.defects(torch.bfloat16)],
        "nan and inf in float16": [values.defects(torch.float16), values(60, torch.float16)],
        "nothing finite": [values.of(nan, inf, -inf), values.of(nan, nan, nan)],
        "all zeros, of both signs": [values.of(0.0, -0.0, 0.0), values.of(0.0, 0.0, 0.0)],
        "one value": [torch.full(values.shape(1000), 3.25, device="cpu")] * 2,
        "the same twice": [values(20), values(20)],
        "tiny": [torch.full(values.shape(50), 1e-20, device="cpu"), torch.full(values.shape(50), -1e-20, device="cpu")],
        "smaller than squares allow": [torch.full(values.shape(50), 1e-30, device="cpu")] * 2,
        "subnormal": [values.of(1e-42, -1e-44, 0.0), values.of(2e-42, 1e-44, 0.0)],
        "huge": [torch.full(values.shape(50), 3e38, device="cpu"), torch.full(values.shape(50), -3e38, device="cpu")],
        "large offset": [values(10_000, shift=1e4), values(10_001, shift=1e4)],
        "strided": [values(40)[::2], values(40)[1::2]],
        "transposed": [wide.mT.contiguous().mT if wide.dim() > 1 else wide.flip(0), wide],
        "expanded": [values(1)[:1].expand(50, *wide.shape[1:]), values(50)],
        "requires grad": [values(5).requires_grad_(), values(5).requires_grad_() * 2],
        "parameter": [nn.Parameter(values(5)), nn.Parameter(values(5, shift=1.0))],
        "sparse": [values.of(0.0, 1.5, 0.0, -2.0, 0.0, 0.0).to_sparse(), values.of(0.0, 1.5, 0.0, 2.0, 1.0, 0.0).to_sparse()],
    }


def _values(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape) + 1)
    return torch.randn(*shape, generator=generator, device="cpu")
