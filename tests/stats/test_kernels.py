"""The compiled kernels give what the reference gives and what an exact oracle gives, or leave a tensor alone."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stats.rows import assert_moments, assert_same_rows
from tests.stats.threads import in_threads
from torch import Tensor

from sonde.stats import Accumulator, Activation, ExponentHistogram, Moments, Norm, Statistic, Table
from sonde.stats.kernels import native

LEVELS = native.kernel_status().levels
DTYPES = list(native.KINDS)
COMPILED = pytest.mark.skipif(not LEVELS, reason="this installation has no compiled kernels")
NO_DEADLINE = settings(deadline=None, max_examples=60)
SIZES = [1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 255, 1023, 4095, 4096, 4097, 8191, 12_289, 65_535, 65_537, 70_000]
ANY_LAYOUT = [Moments(), ExponentHistogram(), Norm()]
OF_ANY_LAYOUT = pytest.mark.parametrize("statistic", ANY_LAYOUT, ids=["Moments", "ExponentHistogram", "Norm"])
EACH = pytest.mark.parametrize("statistic", [*ANY_LAYOUT, Activation()], ids=["Moments", "ExponentHistogram", "Norm", "Activation"])
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=[str(dtype).removeprefix("torch.") for dtype in DTYPES])


@pytest.fixture(params=LEVELS or [pytest.param("none", marks=pytest.mark.skip("no compiled kernels"))])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this processor has, in turn."""
    before = native.kernel_status().level
    native.use(request.param)
    yield request.param
    native.use(before or "reference")


def by_kernel(statistic: Statistic, tensor: Tensor) -> Tensor:
    """The row that the compiled kernel leaves; fails if the kernel leaves the tensor alone."""
    assert statistic.kernel is not None
    row = statistic.empty(1)[0]
    assert statistic.kernel.add(row, tensor)
    return row


SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.nan,
    math.inf,
    -math.inf,
    1e-45,
    -1e-45,
    1e-39,
    2.0**-126,
    3.4028234e38,
    -3.4028234e38,
    1e-20,
    300.0,
]
ELEMENTS = st.one_of(st.floats(width=16), st.floats(width=32), st.sampled_from(SPECIAL))


# Exactness


@EACH
@EVERY_DTYPE
def test_every_size_and_alignment_gives_what_the_reference_gives(level: str, statistic: Statistic, dtype: torch.dtype) -> None:
    """Sizes around every unrolling, from addresses that are aligned to nothing but an element."""
    for size in SIZES:
        for offset in (0, 1, 3):
            x = torch.randn(size + offset).to(dtype)[offset:]
            x[:: max(1, size // 3)] = 0
            assert_same_rows(by_kernel(statistic, x), statistic.measure(x), x)


@EVERY_DTYPE
@NO_DEADLINE
@given(values=st.lists(ELEMENTS, min_size=1, max_size=200), repeats=st.sampled_from([1, 1, 7, 41]))
def test_moments_are_those_of_exact_arithmetic(dtype: torch.dtype, values: list[float], repeats: int) -> None:
    """Any mixture of special and ordinary values, within the stated bound."""
    x = torch.tensor(values * repeats, dtype=torch.float64).to(dtype)
    for name in LEVELS:
        native.use(name)
        assert_moments(by_kernel(Moments(), x), x)
    if LEVELS:
        native.use(LEVELS[0])
    else:
        assert_moments(Moments().measure(x), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@EACH
def test_every_value_of_half_precision_is_read_right(level: str, statistic: Statistic, dtype: torch.dtype) -> None:
    """All 65,536 bit patterns, together and one by one against the reference."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    assert_same_rows(by_kernel(statistic, every), statistic.measure(every), every)
    finite = every[every.isfinite()]
    assert_same_rows(by_kernel(statistic, finite), statistic.measure(finite), finite)
    for some in every.split(997):
        assert_same_rows(by_kernel(statistic, some), statistic.measure(some), some)


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, torch.int32), (torch.float64, torch.int64)])
@EACH
def test_random_bits_are_read_right(level: str, statistic: Statistic, dtype: torch.dtype, bits: torch.dtype) -> None:
    """Every exponent, subnormals, NaN of every kind; float64 too large to be added up is counted right all the same."""
    limits = torch.iinfo(bits)
    x = torch.randint(limits.min, limits.max, (50_000,), dtype=bits).view(dtype)
    row, expected = by_kernel(statistic, x), statistic.measure(x)
    if isinstance(statistic, Moments) and dtype is torch.float64:
        exact = [0, 1, 2, 3, 8, 10]
        assert torch.equal(row[exact], expected[exact])
        assert row[5] == expected[5] == math.inf
        x = x[~(x.abs() > 1e150)]
        row, expected = by_kernel(statistic, x), statistic.measure(x)
    assert_same_rows(row, expected, x)


SIGNS: dict[str, Callable[[Tensor], Tensor]] = {
    "both": lambda x: x,
    "positive": Tensor.abs,
    "negative": lambda x: -x.abs(),
    "zeros": torch.zeros_like,
    "negative zeros": lambda x: -torch.zeros_like(x),
    "negative zeros among negatives": lambda x: torch.where(x > 0, -0.0, x),
    "negative zeros among positives": lambda x: torch.where(x < 0, -0.0, x),
    "zeros among negatives": lambda x: torch.where(x > 0, 0.0, x),
    "rare zeros": lambda x: torch.where(x.abs() < 1e-3, 0.0, x),
    "infinities": lambda x: torch.where(x.abs() > 3, torch.inf * x, x),
}


@EVERY_DTYPE
def test_extremes_and_zeros_are_exact_for_every_mixture_of_signs(level: str, dtype: torch.dtype) -> None:
    """In tensors of one element to several blocks, and where one block has other signs and zeros than the next."""
    parts = {name: make(torch.randn(16_500)).to(dtype) for name, make in SIGNS.items()}
    tensors = [x[:size] for x in parts.values() for size in (1, 5, 33, 1000, 16_500)]
    tensors += [torch.cat([one[:16_384], other]) for one in parts.values() for other in parts.values()]
    exact = [0, 1, 2, 3, 8, 10]
    for x in tensors:
        assert torch.equal(by_kernel(Moments(), x)[exact], Moments().measure(x)[exact])


def test_histogram_bins_are_closed_above(level: str) -> None:
    """Powers of two, their neighbours, and the limits of other formats fall where the reference has them."""
    powers = torch.exp2(torch.arange(-149, 128, dtype=torch.float64)).float()
    limits = torch.tensor([65520.0, 65519.0, 464.0, 61440.0, 61439.0, 3.3895e38, 3.4e38])
    limits = torch.cat([limits, limits.nextafter(torch.tensor(math.inf)), limits.nextafter(torch.tensor(0.0))])
    for x in (powers, powers.nextafter(torch.tensor(math.inf)), powers.nextafter(torch.tensor(0.0)), limits, -limits):
        for tensor in (x, x.double(), *x.split(5)):
            assert torch.equal(by_kernel(ExponentHistogram(), tensor), ExponentHistogram().measure(tensor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_histograms_of_few_and_of_many_powers_are_exact(level: str, dtype: torch.dtype) -> None:
    """From one power to more than registers are compared for, at both ends of the range, alone and with everything else between."""
    least, most = (-126, 127) if dtype is not torch.float64 else (-1000, 1000)
    others = torch.tensor([0.0, -0.0, math.nan, -math.inf, 1e-39, -1e-39, 2.0**-149, -(2.0**-133), 2.0**-126], dtype=torch.float64)
    for span in (1, 2, 5, 32, 33, 64, 65, 128, 129, most - least):
        for first in (least, (least + most - span) // 2, most - span):
            x = torch.exp2(first + torch.rand(4500, dtype=torch.float64) * span) * torch.randn(4500).sign()
            for kinds in range(len(others) + 1):
                x[7::13] = others[:kinds].repeat(4500)[: len(x[7::13])] if kinds else x[7::13]
                tensor = x.to(dtype)
                assert torch.equal(by_kernel(ExponentHistogram(), tensor), ExponentHistogram().measure(tensor))


@COMPILED
def test_gradients_of_1e_minus_20_do_not_vanish(level: str) -> None:
    """Their squares are formed in float64."""
    seen = Accumulator(Moments()).update(torch.full((10_001,), 1e-20)).compute()
    assert seen.rms == pytest.approx(float(torch.tensor(1e-20)), rel=1e-12)
    assert seen.zeros == 0


def test_float16_does_not_overflow(level: str) -> None:
    """100,000 values of 300 have an RMS of 300."""
    assert Accumulator(Moments()).update(torch.full((100_000,), 300.0, dtype=torch.float16)).compute().rms == 300


def test_a_small_spread_around_a_large_mean_survives(level: str) -> None:
    """Mean 1e4, spread 1: the standard deviation is that of float64, which float32 sums would miss."""
    x = 1e4 + torch.randn(1_000_003)
    seen = Accumulator(Moments()).update(x).compute()
    assert seen.std == pytest.approx(x.double().std(unbiased=False).item(), rel=3e-8)


def test_counts_beyond_2_to_the_24_are_exact(level: str) -> None:
    """Where float32 stops counting."""
    x = torch.zeros(1, dtype=torch.float16).expand(2**24 + 3)
    row = by_kernel(Moments(), x)
    assert row[0] == row[3] == 2**24 + 3
    assert by_kernel(ExponentHistogram(), x)[0] == 2**24 + 3


@OF_ANY_LAYOUT
@EVERY_DTYPE
def test_clean_elements_between_spoiled_ones_give_what_the_reference_gives(
    level: str, statistic: Statistic, dtype: torch.dtype
) -> None:
    """A kernel goes on with masks behind a block that has NaN or infinities, and without them behind one that has none."""
    block = 16_384
    x = torch.randn(8 * block + 13, generator=torch.Generator().manual_seed(0)).mul(3).to(dtype)
    x[:block:100] = math.nan  # all over a block
    x[3 * block - 1] = math.inf  # the last one of a block
    x[3 * block : 4 * block] = -math.inf  # and nothing else
    x[4 * block : 5 * block : 2] = 0.0
    x[6 * block] = math.nan  # the first one of a block
    x[-5] = -math.inf  # behind the last whole vector
    x[7 * block + 1] = min(torch.finfo(dtype).max, 1e38)
    finite = x[x.isfinite()]
    assert_same_rows(by_kernel(statistic, x), statistic.measure(x), finite)


@OF_ANY_LAYOUT
@EVERY_DTYPE
def test_nan_and_infinity_poison_nothing(level: str, statistic: Statistic, dtype: torch.dtype) -> None:
    """One in the first block, one in the last, one in the tail."""
    x = torch.randn(9_001).to(dtype)
    clean = x.clone()
    for at, value in ((5, math.nan), (8_500, math.inf), (9_000, -math.inf)):
        x[at] = value
    row, kept = by_kernel(statistic, x), by_kernel(statistic, clean[[i not in {5, 8_500, 9_000} for i in range(9_001)]])
    spoiled = slice(1, 3)
    assert row[spoiled].tolist() == [1, 2]
    row[spoiled] = 0
    if not isinstance(statistic, ExponentHistogram):
        row[0] -= 3
    assert_same_rows(row, kept, clean)


# Layouts


@st.composite
def views(draw: st.DrawFn) -> Tensor:
    """Tensors of up to four dimensions, sliced, stepped, permuted and expanded."""
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    x = torch.randn(shape)
    for dim in range(len(shape)):
        start, step = draw(st.integers(0, x.shape[dim] - 1)), draw(st.integers(1, 3))
        x = x[(slice(None),) * dim + (slice(start, None, step),)]
    x = x.permute(draw(st.permutations(range(len(shape)))))
    if draw(st.booleans()):
        x = x.unsqueeze(0).expand(draw(st.integers(1, 5)), *x.shape)
    return x.to(draw(st.sampled_from(DTYPES))) if draw(st.booleans()) else x


@COMPILED
@OF_ANY_LAYOUT
@NO_DEADLINE
@given(x=views())
def test_any_strides_give_what_a_copy_gives(statistic: Statistic, x: Tensor) -> None:
    """Slices, steps, transposes and expansions are read where they lie."""
    assert_same_rows(by_kernel(statistic, x), statistic.measure(x.contiguous()), x)


@OF_ANY_LAYOUT
@EVERY_DTYPE
def test_large_views_are_read_in_every_order(level: str, statistic: Statistic, dtype: torch.dtype) -> None:
    """Runs shorter and longer than a block, on several threads, and two transpositions."""
    x = torch.randn(64, 9, 33, 40).to(dtype)
    made = [
        x[:, 2],
        x[..., 5:6],
        x[..., 3:],
        x[:, :, ::2],
        x.transpose(0, 3),
        x.to(memory_format=torch.channels_last),
        x.to(memory_format=torch.channels_last)[:, 1:],
        x[:1, :1, :1].expand(64, 9, 33, 40),
        torch.randn(7, 100_001).to(dtype)[:, 1:],
    ]
    for view in made:
        assert_same_rows(by_kernel(statistic, view), statistic.measure(view.contiguous()), view)


# Threads, processes, rows


@COMPILED
@EACH
def test_threads_that_add_at_the_same_time_lose_nothing(statistic: Statistic) -> None:
    """To one row, by the kernel with and without the GIL, and by the reference."""
    table = Table(statistic)
    row = table.allocate(1, "cpu")[0]
    tensors = [torch.ones(50), torch.ones(100_000), torch.ones(50, dtype=torch.int64)]
    rounds, workers = 60, 6

    def work() -> None:
        for _ in range(rounds):
            for tensor in tensors:
                table.add(row, tensor)

    in_threads(work, workers)
    additions, numbers = table.read()
    assert additions == [rounds * workers * len(tensors)]
    assert numbers["count"].tolist() == [rounds * workers * sum(tensor.numel() for tensor in tensors)]


def test_a_thread_that_compiles_changes_nothing_for_others(fresh_compiler: None) -> None:
    """The compiler says of the whole process that it is at work: kernels are used, and sparse tensors are read, all the same."""
    has_begun, may_end = threading.Event(), threading.Event()

    def slow(graph: Any, examples: Any) -> Any:
        has_begun.set()
        may_end.wait(60)
        return graph.forward

    compiling = threading.Thread(target=lambda: torch.compile(lambda x: x + 1, backend=slow)(torch.ones(3)))
    compiling.start()
    try:
        assert has_begun.wait(60)
        table = Table(Moments())
        row = table.allocate(1, "cpu")[0]
        table.add(row, torch.eye(3).to_sparse())
        assert native.is_plain(row)
    finally:
        may_end.set()
        compiling.join()
    assert table.read()[1]["count"].tolist() == [9.0]


FORK = """
import os, sys, torch
from sonde.stats import Accumulator, Moments
from sonde.stats.kernels import native

torch.set_num_threads(2)
x = torch.ones(1_000_000)
Accumulator(Moments()).update(x)
child = os.fork()
if child == 0:
    right = Accumulator(Moments()).update(x).compute().norm == 1000.0
    os._exit(0 if right and native.kernel_status().threads == 1 and "fork" in native.kernel_status().reason else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@COMPILED
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_does_not_hang() -> None:
    """After the parent has used threads, the child uses one, and says so."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", FORK], env=environment, timeout=60, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@COMPILED
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@OF_ANY_LAYOUT
def test_the_number_of_threads_changes_nothing(statistic: Statistic, threads: int) -> None:
    """Shares that do not divide the tensor, more threads than cores."""
    x = torch.randn(400_003)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert native.kernel_status().threads == (threads if native.kernel_status().openmp else 1)
        assert_same_rows(by_kernel(statistic, x), statistic.measure(x), x)
        strided = torch.randn(1000, 403)[:, 2:]
        assert_same_rows(by_kernel(statistic, strided), statistic.measure(strided.contiguous()), strided)
    finally:
        torch.set_num_threads(before)


@EACH
def test_nothing_beside_the_row_is_written(level: str, statistic: Statistic) -> None:
    """Neighbours in the block keep their numbers; a led row counts its addition."""
    width = statistic.width
    for led in (0, 1):
        block = torch.full((3, led + width), 7.0, dtype=torch.float64)
        block[1] = torch.cat([torch.zeros(led, dtype=torch.float64), statistic.empty(1)[0]])
        x = torch.randn(1000)
        assert statistic.kernel is not None
        assert statistic.kernel.add(block[1], x, led=led)
        assert (block[::2] == 7).all()
        assert block[1, :led].tolist() == [1.0] * led
        assert_same_rows(block[1, led:], statistic.measure(x), x)
