"""Many tensors, and differences of tensors, added in one call: what each adds, and which are left out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stats.rows import assert_moments, assert_same_rows
from tests.stats.threads import in_threads
from torch import Tensor, nn

from sonde.errors import ArgumentError
from sonde.stats import Activation, ExponentHistogram, Moments, Norm, Statistic
from sonde.stats.kernels import EXPONENTS, MOMENTS, native

LEVELS = native.kernel_status().levels
COMPILED = pytest.mark.skipif(not LEVELS, reason="this installation has no compiled kernels")
DTYPES = list(native.KINDS)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=[str(dtype).removeprefix("torch.") for dtype in DTYPES])
OF_DIFFERENCES = [Moments(), ExponentHistogram(), Norm()]
EACH = pytest.mark.parametrize("statistic", OF_DIFFERENCES, ids=["Moments", "ExponentHistogram", "Norm"])
SPECIAL = [0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, 1e-45, -1e-39, 3.4028234e38, -3.4028234e38, 2.0**-24, 65504.0, 1e-20]
ELEMENTS = st.one_of(st.floats(width=16), st.floats(width=32), st.sampled_from(SPECIAL))
U = 2.0**-53

pytestmark = COMPILED


@pytest.fixture(params=["by the exchange", "from Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to find out what a tensor is, in turn."""
    if request.param == "from Python":
        monkeypatch.setattr(native._state, "exchange", False)
    elif not native.kernel_status().exchange:
        pytest.skip("this torch has no exchange")
    return str(request.param)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this processor has, in turn."""
    before = native.kernel_status().level
    native.use(request.param)
    yield request.param
    native.use(before)


def rows_of(statistic: Statistic, number: int) -> Tensor:
    """Empty rows, each led by a count of additions."""
    return torch.cat([torch.zeros(number, 1, dtype=torch.float64), statistic.empty(number)], dim=1)


def addresses(rows: Tensor) -> list[int]:
    return [row.data_ptr() for row in rows]


def by_kernel(statistic: Statistic, tensor: Tensor, minus: Tensor) -> Tensor:
    """The row that a difference leaves; fails if the kernel leaves it alone."""
    assert statistic.kernel is not None
    row = statistic.empty(1)
    assert statistic.kernel.add_each(addresses(row), [tensor], [minus], led=0) == []
    return row[0]


def mixture() -> list[Tensor]:
    """Plain tensors of every kind, some long enough for threads, some in odd layouts."""
    made = [torch.randn(shape).to(dtype) for dtype in DTYPES for shape in ((), (1,), (7, 5), (64, 64), (300, 400))]
    made += [nn.Parameter(torch.randn(30)), torch.randn(9, 8).t(), torch.randn(4, 6, 5, 5).to(memory_format=torch.channels_last)]
    return [*made, torch.randn(20, 30)[:, 3:], torch.randn(50)[::7], torch.randn(5, 1).expand(5, 4)]


# Many at once


@pytest.mark.parametrize("statistic", [*OF_DIFFERENCES, Activation()], ids=lambda statistic: type(statistic).__name__)
def test_many_at_once_are_each_as_if_alone(way: str, statistic: Statistic) -> None:
    """Bit for bit, and the same ones are left out; a row may come twice."""
    kernel, tensors = statistic.kernel, mixture()
    assert kernel is not None
    together, alone = rows_of(statistic, len(tensors)), rows_of(statistic, len(tensors))
    done = [kernel.add_at(address, tensor, 1) for address, tensor in zip(addresses(alone) * 2, tensors * 2, strict=True)]
    left_out = kernel.add_each(addresses(together) * 2, tensors * 2)
    assert left_out == [index for index, did in enumerate(done) if not did]
    assert len(left_out) == (0 if statistic in OF_DIFFERENCES else 6)  # three of the layouts, twice
    assert torch.equal(together, alone)
    assert set(together[:, 0].tolist()) <= {0.0, 2.0}


def test_what_is_refused_is_named_and_the_rest_is_added(way: str) -> None:
    """Integers, empty ones, and those whose address is 0; their rows stay as they were."""
    tensors = [torch.ones(3), torch.arange(3), torch.ones(2), torch.ones(0), torch.ones(5), torch.ones(4, dtype=torch.complex64)]
    rows = rows_of(Moments(), len(tensors))
    given = addresses(rows)
    given[2] = 0
    assert MOMENTS.add_each(given, tensors) == [1, 2, 3, 5]
    assert rows[:, :2].tolist() == [[1, 3], [0, 0], [0, 0], [0, 0], [1, 5], [0, 0]]
    assert torch.equal(rows[[1, 2, 3, 5]], rows_of(Moments(), 4))


def test_rows_without_a_count_of_additions(way: str) -> None:
    """``led=0``: the address is that of the statistic's first number, and nothing before or behind is written."""
    block = torch.full((4, MOMENTS.width), 7.0, dtype=torch.float64)
    block[1:3] = Moments().empty(2)
    assert MOMENTS.add_each(addresses(block[1:3]), [torch.ones(3), torch.ones(4)], led=0) == []
    assert block[1:3, 0].tolist() == [3, 4]
    assert (block[[0, 3]] == 7).all()


def test_nothing_to_add(way: str) -> None:
    """No tensors at all, in lists and in iterators."""
    assert MOMENTS.add_each([], []) == []
    assert MOMENTS.add_each(iter(()), iter(()), iter(())) == []


def test_not_as_many_of_one_as_of_the_other_raises(way: str) -> None:
    """It says how many there were, and nothing was added."""
    rows, x = rows_of(Moments(), 2), torch.ones(3)
    with pytest.raises(ArgumentError, match="1 tensors for 2 rows"):
        MOMENTS.add_each(addresses(rows), [x])
    with pytest.raises(ArgumentError, match="2 tensors minus 1 for 2 rows"):
        MOMENTS.add_each(addresses(rows), [x, x], [x])
    assert torch.equal(rows, rows_of(Moments(), 2))


def test_threads_that_add_to_the_same_rows_lose_nothing() -> None:
    """Small and large tensors, and differences, from several threads at once."""
    tensors = [torch.ones(50), torch.ones(100_000), torch.ones(3, 3)]
    rows, rounds, workers = rows_of(Moments(), 3), 40, 5

    def work() -> None:
        for _ in range(rounds):
            MOMENTS.add_each(addresses(rows), tensors)
            MOMENTS.add_each(addresses(rows), tensors, tensors)

    in_threads(work, workers)
    times = rounds * workers
    assert rows[:, 0].tolist() == [2 * times] * 3
    assert rows[:, 1].tolist() == [2 * times * tensor.numel() for tensor in tensors]
    assert rows[:, 5].tolist() == [times * tensor.numel() for tensor in tensors]


# Differences


@EVERY_DTYPE
@settings(deadline=None, max_examples=60)
@given(pairs=st.lists(st.tuples(ELEMENTS, ELEMENTS), min_size=1, max_size=200), repeats=st.sampled_from([1, 1, 7, 41]))
def test_moments_of_differences_are_those_of_exact_arithmetic(
    dtype: torch.dtype, pairs: list[tuple[float, float]], repeats: int
) -> None:
    """Each difference rounded once, to float64; then the bound that Moments states for the sums."""
    x, y = (torch.tensor(list(side) * repeats, dtype=torch.float64).to(dtype) for side in zip(*pairs, strict=True))
    both = list(zip(x.tolist(), y.tolist(), strict=True))
    exact = [Fraction(a) - Fraction(b) for a, b in both if math.isfinite(a - b)]
    size, squares = sum(map(abs, exact), Fraction()), sum((value**2 for value in exact), Fraction())
    for name in LEVELS:
        native.use(name)
        row = by_kernel(Moments(), x, y)
        assert_moments(row, torch.tensor([a - b for a, b in both], dtype=torch.float64))
        assert abs(Fraction(row[4].item()) - sum(exact, Fraction())) <= Fraction((150 + 2) * U) * size
        assert abs(Fraction(row[5].item()) - squares) <= Fraction((150 + 3) * U) * squares
    native.use(LEVELS[0])


HALVES = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
SUBTRACTED = (65504.0, 2.0**-24, -1.0, 0.0)


def test_float64_holds_all_differences_of_half_precision() -> None:
    """What the next test compares with is exact."""
    halves = HALVES[HALVES.isfinite()]
    for other in SUBTRACTED:
        values = (halves.double() - other).tolist()
        assert [Fraction(value) - Fraction(other) for value in halves.tolist()] == [Fraction(value) for value in values]


def test_differences_of_half_precision_are_exact(level: str) -> None:
    """All float16 values minus the largest and minus the smallest: the histogram has each in its place."""
    for other in SUBTRACTED:
        minus = torch.full_like(HALVES, other)
        values = HALVES.double() - other
        assert torch.equal(by_kernel(ExponentHistogram(), HALVES, minus), ExponentHistogram().measure(values))
        assert_same_rows(by_kernel(Moments(), HALVES, minus), Moments().measure(values), values)


def test_a_small_update_of_a_large_parameter_survives(level: str) -> None:
    """One step of the last bit: the difference is neither zero nor off."""
    before = torch.full((1000,), 1000.0)
    after = before.nextafter(torch.tensor(math.inf))
    row = by_kernel(Moments(), after, before)
    assert row.tolist() == [1000, 0, 0, 0, 1000 * 2.0**-14, 1000 * 2.0**-28, 0, 0, 2.0**-14, 2.0**-14, 2.0**-14]


def test_differences_of_float64_are_rounded_once(level: str) -> None:
    """As by torch; two that overflow are infinite, and counted so."""
    x, y = torch.tensor([1.0, 1e308, math.inf, 3.0]).double(), torch.tensor([2.0**-60, -1e308, math.inf, 3.0]).double()
    x[1], y[1] = 1e308, -1e308
    assert by_kernel(Moments(), x, y).tolist() == [4, 1, 1, 1, 1.0, 1.0, 0.0, 0.5, 0.0, 0.5, 1.0]


@EACH
@EVERY_DTYPE
def test_differences_of_every_size_are_those_of_the_reference(level: str, statistic: Statistic, dtype: torch.dtype) -> None:
    """Sizes around every block and unrolling, from addresses aligned to nothing but an element, and on threads."""
    for size in (1, 2, 7, 8, 15, 17, 31, 33, 63, 65, 255, 2047, 2048, 2049, 4097, 8191, 65_537, 200_003):
        for offset in (0, 1, 3):
            x, y = torch.randn(2, size + offset).to(dtype)[:, offset:].unbind(0)
            x[:: max(1, size // 3)] = y[:: max(1, size // 3)]
            values = x.double() - y.double()
            assert_same_rows(by_kernel(statistic, x, y), statistic.measure(values), values)


@EACH
def test_nan_and_infinity_of_differences_are_counted_apart(statistic: Statistic) -> None:
    """In the first block, in a later one, on either side, and where they meet."""
    x, y = torch.randn(2, 9_001).unbind(0)
    x[5], y[4000], y[4100] = math.nan, math.nan, math.inf
    x[8_500] = y[8_500] = math.inf
    values = x.double() - y.double()
    assert (values.isnan().sum(), values.isinf().sum()) == (3, 1)
    assert_same_rows(by_kernel(statistic, x, y), statistic.measure(values), values)


@EACH
def test_layouts_whose_elements_lie_side_by_side(way: str, statistic: Statistic) -> None:
    """Channels last, transposed, a slice of whole rows, dimensions of one element with any strides."""
    shapes = [torch.randn(6, 5, 4, 3), torch.randn(6, 5, 4, 3).to(memory_format=torch.channels_last), torch.randn(5, 6).t()]
    shapes += [torch.randn(9, 7)[2:5], torch.tensor(3.0), torch.randn(1, 8)]
    for x in shapes:
        y = torch.empty_like(x).normal_()
        assert y.stride() == x.stride()
        values = x.double() - y.double()
        assert_same_rows(by_kernel(statistic, x, y), statistic.measure(values), values)


def test_what_cannot_be_subtracted_is_refused(way: str) -> None:
    """Another precision, shape or strides, nothing, gaps between the elements; the statistics of channels have no differences."""
    x = torch.randn(4, 6)
    pairs: list[tuple[Tensor, object]] = [
        (x, x.double()),
        (x, torch.arange(24).reshape(4, 6)),
        (x, torch.randn(4, 5)),
        (x, torch.randn(24)),
        (x, torch.randn(4, 6, 1)),
        (torch.ones(3), torch.ones(3).as_strided((3, 7), (1, 0))),
        (x, torch.randn(6, 4).t()),
        (x, None),
        (x, torch.ones(4, 6).to_sparse()),
        (x[:, :3], torch.randn(4, 6)[:, :3]),
        (x[:0], x[:0]),
    ]
    rows = rows_of(Moments(), len(pairs) + 1)
    firsts, seconds = [first for first, _ in pairs], [second for _, second in pairs]
    left_out = MOMENTS.add_each(addresses(rows), [*firsts, x], [*seconds, x])  # type: ignore[list-item]
    assert left_out == list(range(len(pairs)))
    assert torch.equal(rows[:-1], rows_of(Moments(), len(pairs)))
    assert rows[-1].tolist() == [1, 24, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0]
    kernel, row = Activation().kernel, rows_of(Activation(), 1)
    assert kernel.add_each(addresses(row), [x], [x]) == [0]
    assert not row.any()


def test_differences_are_taken_in_training_and_without_gradients(way: str) -> None:
    """Of parameters that require gradients from copies that do not, in inference mode too."""
    after = nn.Parameter(torch.ones(5))
    before = torch.zeros(5)
    rows = rows_of(Moments(), 1)
    assert MOMENTS.add_each(addresses(rows), [after], [before]) == []
    with torch.inference_mode():
        assert MOMENTS.add_each(addresses(rows), [after], [torch.zeros(5)]) == []
    assert rows[0].tolist() == [2, 10, 0, 0, 0, 10, 10, 0, 0, 1, 1, 1]
    assert EXPONENTS.add_each([0], [after], [before]) == [0]
