"""The compiled kernel of Activation: channels in every layout, eps between what a precision can hold, NaN and infinity."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sonde.stats import Accumulator, Activation
from sonde.stats.kernels import native

LEVELS = native.kernel_status().levels
DTYPES = list(native.KINDS)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=[str(dtype).removeprefix("torch.") for dtype in DTYPES])
RATES = 5  # the place of the one field that is rounded

pytestmark = pytest.mark.skipif(not LEVELS, reason="this installation has no compiled kernels")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this processor has, in turn."""
    before = native.kernel_status().level
    native.use(request.param)
    yield request.param
    native.use(before)


def by_kernel(statistic: Activation, tensor: Tensor) -> list[float]:
    """The row that the compiled kernel leaves; fails if the kernel leaves the tensor alone."""
    row = statistic.empty(1)[0]
    assert statistic.kernel.add(row, tensor)
    return row.tolist()


def by_oracle(statistic: Activation, tensor: Tensor) -> list[float]:
    """The same one element after the other, in exact arithmetic."""
    axis = statistic.channel_axis
    channels = tensor.double().movedim(axis, 0) if -tensor.dim() <= axis < tensor.dim() else tensor.double()[None]
    nan = inf = active = idle = judged = dead = 0
    rates = Fraction()
    for channel in channels.reshape(len(channels), -1).tolist():
        finite = [value for value in channel if math.isfinite(value)]
        over = sum(abs(value) > statistic.eps for value in finite)
        nan += sum(map(math.isnan, channel))
        inf += sum(map(math.isinf, channel))
        active, idle = active + over, idle + len(finite) - over
        if finite:
            judged, rates = judged + 1, rates + Fraction(over, len(finite))
            dead += all(abs(value) <= statistic.eps for value in channel)
    if not judged:
        return [nan, inf, active, idle, 0, 0, 0]
    return [nan, inf, active, idle, 1, float(rates / judged), dead / len(channels)]


def assert_same(statistic: Activation, found: list[float], expected: list[float]) -> None:
    """Counts and death are equal, the mean rate up to rounding."""
    assert found[RATES] == pytest.approx(expected[RATES], rel=1e-13, abs=0), statistic
    assert found[:RATES] + found[RATES + 1 :] == expected[:RATES] + expected[RATES + 1 :], statistic


VALUES = [0.0, -0.0, 0.5, -0.5, 0.1, -2.0, 1e-8, 6e-8, 65504.0, math.nan, math.inf, -math.inf, 1e-45, 2.0**-133]
EPS = st.one_of(
    st.sampled_from([0.0, -0.0, 1e-8, 0.1, 0.5, 1e-40, 5e-324, 65504.0, 65519.0, 1e38, 3.5e38, 1e300]),
    st.floats(0, 1e4, allow_nan=False),
)


@st.composite
def dense(draw: st.DrawFn) -> Tensor:
    """Up to four dimensions in any order of memory, mostly idle, some defects."""
    shape = draw(st.lists(st.integers(1, 7), max_size=4))
    values = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=9))
    count = math.prod(shape)
    x = torch.tensor((values * count)[:count]).reshape(shape).to(draw(st.sampled_from(DTYPES)))
    return x.permute(draw(st.permutations(range(len(shape)))))


@settings(deadline=None, max_examples=300)
@given(x=dense(), axis=st.integers(-3, 4), eps=EPS)
def test_it_counts_as_one_would_by_hand(x: Tensor, axis: int, eps: float) -> None:
    """Any order of dimensions, any channel axis, one that the tensor has not, any eps."""
    statistic = Activation(eps, axis)
    expected = by_oracle(statistic, x)
    for name in LEVELS:
        native.use(name)
        assert_same(statistic, by_kernel(statistic, x), expected)
    native.use(LEVELS[0])


@EVERY_DTYPE
def test_every_shape_of_channels_gives_what_the_reference_gives(level: str, dtype: torch.dtype) -> None:
    """Few wide channels and many narrow ones, runs around every block, on one thread and on three."""
    before = torch.get_num_threads()
    shapes = [
        (64, 64),
        (1, 1),
        (4096, 17),
        (3, 1),
        (1, 5000),
        (70_001, 2),
        (2, 70, 9, 33),
        (8, 3, 5, 5),
        (2, 3, 4095),
        (2, 3, 40_001),
    ]
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            for shape in shapes:
                x = torch.randn(shape).relu().to(dtype)
                spoiled = x.clone()
                spoiled.view(-1)[:: 1 + x.numel() // 3] = math.nan
                spoiled.view(-1)[-1] = -math.inf
                for tensor in (x, spoiled, x.transpose(0, 1)):
                    for axis in (0, 1, -1):
                        statistic = Activation(channel_axis=axis)
                        assert_same(statistic, by_kernel(statistic, tensor), statistic.measure(tensor).tolist())
    finally:
        torch.set_num_threads(before)


@EVERY_DTYPE
def test_eps_is_compared_with_the_values_and_not_rounded_to_their_precision(level: str, dtype: torch.dtype) -> None:
    """Around a number that no precision holds, and around each of its neighbours in this one."""
    near = torch.tensor(0.1, dtype=dtype)
    up, down = near.nextafter(torch.tensor(1.0, dtype=dtype)), near.nextafter(torch.tensor(0.0, dtype=dtype))
    x = torch.stack([down, near, up, -down, -near, -up])
    for middle in (0.1, *x[:3].tolist()):
        for eps in (math.nextafter(middle, 0), middle, math.nextafter(middle, 1)):
            active = sum(abs(value) > eps for value in x.double().tolist())
            assert by_kernel(Activation(eps), x)[2:4] == [active, 6 - active]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_value_of_half_precision_is_read_right(level: str, dtype: torch.dtype) -> None:
    """All 65,536 bit patterns in 256 channels, across and along memory."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).reshape(256, 256)
    for eps in (0.0, 1e-8, 2.0**-24, 2.0**-14, 0.3, 65503.0, 65504.0, 3.3e38):
        for axis in (0, 1):
            statistic = Activation(eps, axis)
            assert_same(statistic, by_kernel(statistic, every), statistic.measure(every).tolist())


def test_channels_last_is_read_where_it_lies(level: str) -> None:
    """The channel of an element is that of its index, not of its place in memory."""
    x = torch.zeros(2, 5, 3, 3)
    x[:, 1], x[1, 4, 2, 2] = 1.0, -1.0
    last = x.to(memory_format=torch.channels_last)
    assert last.stride() != x.stride()
    expected = [0, 0, 19, 71, 1, pytest.approx((1 + 1 / 18) / 5, rel=1e-13), 3 / 5]
    assert by_kernel(Activation(), x) == by_kernel(Activation(), last) == expected


def test_a_channel_of_nothing_finite_is_neither_judged_nor_dead(level: str) -> None:
    """Of three channels one is NaN throughout, one is idle but for an infinity, one is dead."""
    x = torch.tensor([[math.nan, 0.0, 0.0], [math.nan, math.inf, 0.0]])
    assert by_kernel(Activation(), x) == [2, 1, 0, 3, 1, 0.0, 1 / 3]
    assert by_kernel(Activation(), x[:, :1].clone()) == [2, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "view", [lambda x: x[:, 1:], lambda x: x[::2], lambda x: x[:1].expand(4, 6)], ids=["cut", "step", "expanded"]
)
def test_tensors_with_gaps_are_left_to_the_reference(view: object) -> None:
    """And come out right: the statistic adds them all the same."""
    assert callable(view)
    x = view(torch.randn(4, 6).relu())
    statistic = Activation()
    row = statistic.empty(1)[0]
    assert not statistic.kernel.add(row, x)
    assert not row.any()
    statistic.add(row, x)
    assert torch.equal(row, statistic.measure(x))


def test_rows_add_up(level: str) -> None:
    """A second call is added to the first, and a led row counts both."""
    row = torch.zeros(1 + 7, dtype=torch.float64)
    kernel = Activation().kernel
    assert kernel.add(row, torch.tensor([[1.0, 0.0]]), led=1)
    assert kernel.add(row, torch.tensor([[1.0, 1.0], [0.0, 1.0]]), led=1)
    assert row.tolist() == [2, 0, 0, 4, 2, 2, 1.25, 0.5]


def test_the_kernel_belongs_to_the_arguments() -> None:
    """A statistic replaced, copied or pickled has the kernel of its own arguments, and is still the value that it was."""
    statistic = Activation(eps=0.5, channel_axis=-1)
    x = torch.tensor([[0.4, 0.6], [0.3, 0.4]])
    assert Accumulator(replace(statistic, eps=0.35)).update(x).compute().activation == 0.75
    for same in (copy.deepcopy(statistic), pickle.loads(pickle.dumps(statistic)), Activation(0.5, -1)):
        assert same == statistic
        assert hash(same) == hash(statistic)
        assert same.kernel == statistic.kernel
        assert Accumulator(same).update(x).compute().activation == 0.25
    assert repr(statistic) == "Activation(eps=0.5, channel_axis=-1)"
