"""Two thousand random statistics of random tensors, against oracles that keep every element: types, strides, defects, merges."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial

import pytest
import torch
from tests.stats.test_oracle import CASES, Case, Numbers, activation, channel_activation, everything, moments, of_moments
from torch import Tensor

from sonde.stats import (
    Accumulator,
    Activation,
    ChannelActivation,
    Cosine,
    ExponentHistogram,
    Moments,
    Norm,
    RunningMeanVar,
    Statistic,
    Updates,
)
from sonde.stats.samples import MatrixCondition
from sonde.testing.oracle import assert_oracle

SEED, QUICK, ALL = 26, 50, 2000

# Of each type: the least and the largest power of ten that values are scaled by, so that squares of float64 stay in float64
SCALES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (-100, 100),
    torch.float32: (-30, 30),
    torch.bfloat16: (-30, 30),
    torch.float16: (-5, 3),
    torch.float8_e4m3fn: (-1, 1),
    torch.float8_e5m2: (-2, 3),
    torch.complex64: (-15, 15),
    torch.int64: (0, 12),
    torch.int32: (0, 9),
    torch.int8: (0, 2),
    torch.uint8: (0, 2),
    torch.bool: (0, 0),
}
PAIRED = [dtype for dtype in SCALES if dtype is not torch.float8_e5m2]  # what the oracle of updates knows
LIMITS = {torch.float64: [1e150, -1e150, 1e-150], torch.complex64: [1e15, -1e-15]}


def exact_moments(kept: list[Tensor]) -> Numbers:
    """The numbers of Moments from sums of fractions, each rounded once."""
    every = everything(kept)
    numbers = moments(kept)
    finite = [Fraction(value) for value in every[every.isfinite()].tolist()]
    if finite:
        mean, squares = sum(finite) / len(finite), sum((value * value for value in finite), Fraction())
        variance = sum(((value - mean) ** 2 for value in finite), Fraction()) / len(finite)
        numbers |= {"mean": float(mean), "std": root(variance), "rms": root(squares / len(finite)), "norm": root(squares)}
    return numbers


def exact_norm(kept: list[Tensor]) -> Numbers:
    numbers = exact_moments(kept)
    return {name: numbers[name] for name in ("count", "finite", "nan", "inf", "norm", "rms")}


def root(square: Fraction) -> float:
    """Return the square root, right to a rounding or two whatever the size."""
    if not square:
        return 0.0
    shift = (square.denominator.bit_length() - square.numerator.bit_length() + 130) // 2 * 2
    scaled = square * 4 ** (shift // 2) if shift >= 0 else square / 4 ** (-shift // 2)
    return float(Fraction(math.isqrt(int(scaled))) / Fraction(2) ** (shift // 2))


def values(draw: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return values of one size, some of them far from zero, some beside defects and extremes."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(draw.getrandbits(32)), dtype=torch.float64)
    scale = 10.0 ** draw.uniform(*SCALES[dtype])
    made = (made + draw.choice([0.0, 0.0, 1.0, 100.0])) * scale if dtype.is_floating_point or dtype.is_complex else made * scale
    if dtype is torch.bool:
        return made > draw.choice([-9.0, 0.0, 1.0])
    if not (dtype.is_floating_point or dtype.is_complex):
        bounds = torch.iinfo(dtype)
        return made.clamp(max(bounds.min, -(2**40)), min(bounds.max, 2**40)).to(dtype)
    if draw.random() < 0.4 and made.numel():
        largest = float(torch.finfo(dtype).max)
        extremes = LIMITS.get(dtype, [largest, -largest, float(torch.finfo(dtype).smallest_normal)])
        defects = [0.0, -0.0, *extremes, *([math.nan, math.inf, -math.inf] if draw.random() < 0.7 else [])]
        flat = made.view(-1)
        for place in draw.choices(range(made.numel()), k=draw.choice([1, 3, made.numel()])):
            flat[place] = draw.choice(defects)
    if dtype is torch.complex64:
        return torch.complex(made.float(), made.flip(0).float() if made.dim() else made.float())
    if dtype in (torch.float8_e4m3fn, torch.float16):  # what rounds beyond the largest is infinite, or NaN, by torch alone
        return made.float().to(dtype)
    return made.to(dtype)


def laid_out(draw: random.Random, tensor: Tensor) -> Tensor:
    """Return the same values, or some of them, with other strides."""
    ways: list[Callable[[Tensor], Tensor]] = [
        lambda given: given,
        lambda given: given.clone().requires_grad_(is_real_or_complex(given)),
    ]
    if tensor.dim():
        ways += [
            lambda given: torch.stack([given, given], -1)[..., 0],  # every second element in memory
            lambda given: given.transpose(0, -1).contiguous().transpose(0, -1),
            lambda given: torch.cat([given[:1], given])[1:],  # begins inside its storage
            lambda given: given[:1].expand(given.shape) if given.shape[0] else given,
        ]
    if tensor.dim() == 4:
        ways.append(lambda given: given.contiguous(memory_format=torch.channels_last))
    return draw.choice(ways)(tensor)


def is_real_or_complex(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def shape(draw: random.Random, case: Case) -> tuple[int, ...]:
    """Return a shape that the statistic can measure."""
    kind = type(case.statistic)
    rows = draw.choice([0, 1, 2, 3, 5, 8, 40])
    if isinstance(case.statistic, ChannelActivation):
        return (rows, case.statistic.channels, *(draw.randint(0, 4) for _ in range(draw.randint(0, 2))))
    if case.features is not None:
        return rows, case.features
    if kind is MatrixCondition:
        return tuple(draw.randint(1, 6) for _ in range(draw.randint(1, 3)))
    if draw.random() < 0.15:
        return (draw.randint(4000, 9000),)
    return tuple(draw.randint(0 if draw.random() < 0.1 else 1, 7) for _ in range(draw.randint(0, 4)))


def chosen(draw: random.Random) -> Case:
    """Return a statistic with its oracle; of those that have channels, also with another axis or number of channels."""
    if draw.random() < 0.25:
        eps, axis, channels = draw.choice([0.0, 1e-8, 0.5, 2.0]), draw.randint(0, 3), draw.randint(1, 5)
        return draw.choice(
            [
                Case(Activation(eps=eps, channel_axis=axis), partial(activation, eps=eps, axis=axis)),
                Case(ChannelActivation(channels, eps=0.5), channel_activation, channels),
            ]
        )
    case = draw.choice([case for cases in CASES.values() for case in cases])
    if isinstance(case.statistic, Moments):
        return Case(case.statistic, exact_moments, absolute=of_moments)
    return Case(case.statistic, exact_norm) if isinstance(case.statistic, Norm) else case


def is_well_posed(case: Case, tensors: list[Tensor]) -> bool:
    """Return whether rounding does not decide the answer: a matrix that is nearly singular may be so by either way."""
    if not isinstance(case.statistic, MatrixCondition):
        return True
    for tensor in tensors:
        matrix = tensor.detach().flatten(1) if tensor.dim() > 1 else tensor.detach().reshape(1, -1)
        matrix = matrix.to(torch.complex128 if matrix.is_complex() else torch.float64)
        singular = torch.linalg.svdvals(torch.where(matrix.isfinite(), matrix, 0.0)).tolist()
        if singular[0] and 1e-20 < singular[-1] / singular[0] < 1e-6:
            return False
    return True


def attacks(count: int) -> Iterator[tuple[int, random.Random, Case, list[Tensor]]]:
    """Yield *count* cases, each with a generator of its own, so that the first ones are the same however many there are."""
    number = made = 0
    while made < count:
        number += 1
        draw = random.Random(f"{SEED} {number}")
        case = chosen(draw)
        dtypes = PAIRED if isinstance(case.statistic, Cosine | Updates) else list(SCALES)
        dtype, one_shape = draw.choice(dtypes), shape(draw, case)
        tensors = []
        for _ in range(draw.randint(1, 4)):
            of = draw.choice(dtypes) if draw.random() < 0.1 else dtype
            made_of = (
                torch.float32 if isinstance(case.statistic, ExponentHistogram) and of is torch.float64 else of
            )  # the powers it has
            tensors.append(laid_out(draw, values(draw, made_of, one_shape if draw.random() < 0.7 else shape(draw, case)).to(of)))
        if is_well_posed(case, tensors):
            made += 1
            yield number, draw, case, tensors


@pytest.mark.parametrize("count", [QUICK, pytest.param(ALL, marks=pytest.mark.slow)])
def test_random_statistics_of_random_tensors_are_those_of_the_oracle(count: int) -> None:
    """Added one after the other, merged backwards, measured without a kernel; and divided at random, merged in a random order."""
    kinds, wrong = set(), []
    for number, draw, case, tensors in attacks(count):
        described = (
            f"case {number}: {case.statistic} of {[(tensor.dtype, tuple(tensor.shape), tensor.stride()) for tensor in tensors]}"
        )
        kinds.add(type(case.statistic))
        tolerances = case.absolute(tensors)
        try:
            assert_oracle(case.statistic, case.oracle, tensors, rel=case.rel, absolute=tolerances, unchecked=case.unchecked)
            if isinstance(case.statistic, Statistic):
                found = merged(draw, case.statistic, tensors)
                for name, expected in case.oracle(tensors).items():
                    assert found[name] == pytest.approx(expected, rel=case.rel, abs=tolerances.get(name, 0.0), nan_ok=True), name
        except Exception as error:
            wrong.append(f"{described}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join([f"{len(wrong)} of {count}", *wrong[:20]])
    assert count == QUICK or kinds == set(CASES)


def merged(draw: random.Random, statistic: Statistic, tensors: list[Tensor]) -> Numbers:
    """Return the numbers of several accumulators, each with some of *tensors*, merged in a random order through their states."""
    parts = [Accumulator(statistic) for _ in range(draw.randint(1, len(tensors)))]
    for tensor in tensors:
        draw.choice(parts).update(tensor)
    while len(parts) > 1:
        other = parts.pop(draw.randrange(len(parts)))
        draw.choice(parts).merge(Accumulator(statistic).load_state_dict(other.state_dict()))
    return dict(parts[0].compute().as_dict())


@pytest.mark.parametrize("count", [QUICK, pytest.param(ALL // 10, marks=pytest.mark.slow)])
def test_random_running_aggregates_are_those_of_fractions(count: int) -> None:
    """Mean and variance of numbers of any size and offset, in parts that are merged in a random order."""
    for number in range(count):
        draw = random.Random(f"{SEED} running {number}")
        scale = 10.0 ** draw.uniform(-100, 100)
        offset = draw.choice([0.0, 1.0, 1e3, 1e8, 1e12])
        given = [(draw.gauss(0, 1) + offset) * scale for _ in range(draw.randint(1, 60))]
        defects = [draw.choice([math.nan, math.inf, -math.inf]) for _ in range(draw.randint(0, 2))]
        parts = [RunningMeanVar() for _ in range(draw.randint(1, 5))]
        for value in draw.sample([*given, *defects], len(given) + len(defects)):
            draw.choice(parts).update(value)
        operations = len(given) + len(parts)
        while len(parts) > 1:
            other = parts.pop(draw.randrange(len(parts)))
            draw.choice(parts).merge(other)
        finite = [Fraction(value) for value in given]
        mean = sum(finite) / len(finite)
        variance = sum((value - mean) ** 2 for value in finite) / len(finite)
        found = parts[0]
        assert (found.count, found.nonfinite, found.min_, found.max_) == (len(given), len(defects), min(given), max(given)), number
        bound = 4 * 2.0**-53 * operations
        assert abs(Fraction(found.mean) - mean) <= bound * max(map(abs, given)), number
        if len(given) > 1:
            assert found.var == pytest.approx(float(variance), rel=2 * bound, abs=0), number
