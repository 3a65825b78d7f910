"""Reductions against an oracle that keeps everything, and what happens when one fails."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sonde.errors import ArgumentError, ObservationWarning
from sonde.recorders import BackwardOutput, ForwardOutput, ForwardPre
from sonde.recorders.reductions import Accumulated, Concatenate, First, Last, Max, Mean, Reservoir, Sum

READY = [Sum(axis=0), Mean(axis=0), Max(axis=0), Last(), First(3), Reservoir(3), Concatenate()]


def recorded(reduction: Any, values: list[Any], **how: Any) -> Any:
    """What a recorder of a module that returns these values, one a call, keeps in the end."""

    class Says(nn.Module):
        def forward(self) -> Any:
            return next(coming)

    coming, model = iter(values), Says()
    with ForwardOutput(reduction=reduction, strict=True, **how).modules(model) as recorder:
        for _ in values:
            model()
    return recorder[0]


def chunks(rows: Tensor, sizes: list[int]) -> list[Tensor]:
    """*rows* in batches of these sizes, and what is left in a last one."""
    sizes = [size for size in sizes if size <= len(rows)]
    kept = [size for place, size in enumerate(sizes) if sum(sizes[: place + 1]) <= len(rows)]
    return list(rows.split([*kept, len(rows) - sum(kept)])) if sum(kept) <= len(rows) else [rows]


sizes = st.lists(st.integers(0, 7), max_size=6)
numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20)

ORACLES: list[tuple[Any, Callable[[Tensor], Tensor]]] = [
    (Sum(axis=0), lambda rows: rows.double().sum(0).float()),
    (Mean(axis=0), lambda rows: rows.double().mean(0).float()),
    (Concatenate(), lambda rows: rows),
    (First(4), lambda rows: rows[:4]),
]


@given(numbers, sizes)
@settings(deadline=None)
@pytest.mark.parametrize(("reduction", "oracle"), ORACLES)
def test_however_the_samples_are_batched(
    reduction: Any, oracle: Callable[[Tensor], Tensor], rows: list[float], parts: list[int]
) -> None:
    """The result over batches is that of all samples together, also with empty batches and a short last one."""
    data = torch.tensor(rows).reshape(-1, 1) * torch.tensor([1.0, -3.0])
    torch.testing.assert_close(recorded(reduction, chunks(data, parts)), oracle(data), rtol=1e-6, atol=1e-6)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=6))
@settings(deadline=None)
def test_element_by_element_over_calls(values: list[float]) -> None:
    """Without an axis: each element is the sum, mean or maximum of that element over the calls."""
    data = [torch.tensor([value, -2 * value]) for value in values]
    whole = torch.stack(data).double()
    torch.testing.assert_close(recorded(Sum(), data), whole.sum(0).float())
    torch.testing.assert_close(recorded(Mean(), data), whole.mean(0).float())
    assert torch.equal(recorded(Max(), data), whole.amax(0).float())
    assert torch.equal(recorded(Last(), data), data[-1])


@pytest.mark.slow
def test_the_mean_is_exact_where_float32_sums_are_not() -> None:
    """Ten thousand times 0.1 and one hundred million: a running float32 sum would lose the small ones."""
    big = torch.tensor([1e8])
    values = [big, *[torch.tensor([0.1])] * 10_000]
    expected = (1e8 + 10_000 * float(torch.tensor(0.1))) / 10_001
    assert recorded(Mean(), values).item() == pytest.approx(expected, rel=1e-7)
    naive = reduce(torch.add, values) / 10_001
    assert naive.item() != pytest.approx(expected, rel=1e-7)


def test_half_precision_does_not_overflow() -> None:
    """1000 x 1000 in float16 is infinite; the sum is shown in float32."""
    values = [torch.full((2,), 1000.0, dtype=torch.float16)] * 1000
    assert recorded(Sum(), values).tolist() == [1e6, 1e6]
    assert recorded(Sum(), values).dtype is torch.float32
    assert recorded(Mean(), values).tolist() == [1000, 1000]


@pytest.mark.parametrize(
    ("dtype", "total", "mean"),
    [
        (torch.float64, torch.float64, torch.float64),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.int64, torch.int64, torch.float64),
        (torch.uint8, torch.int64, torch.float64),
        (torch.bool, torch.int64, torch.float64),
        (torch.complex64, torch.complex64, torch.complex64),
        (torch.float8_e4m3fn, torch.float32, torch.float32),
    ],
)
def test_types(dtype: torch.dtype, total: torch.dtype, mean: torch.dtype) -> None:
    """Of (1, 0), (1, 0), (1, 1): the sums (3, 1) and the means (1, 1/3), whatever the type."""
    values = [torch.tensor(row).to(dtype) for row in ([1.0, 0.0], [1.0, 0.0], [1.0, 1.0])]
    for axis, shape in ((None, values), (0, [value[None] for value in values])):
        summed, averaged = recorded(Sum(axis), shape), recorded(Mean(axis), shape)
        assert (summed.dtype, averaged.dtype) == (total, mean)
        assert summed.to(torch.complex128).tolist() == [3, 1]
        torch.testing.assert_close(averaged.to(torch.complex128), torch.tensor([1, 1 / 3], dtype=torch.complex128))


def test_max_of_nan_and_of_several_axes() -> None:
    """NaN is the largest; over two axes of an image one number per channel is left."""
    assert math.isnan(recorded(Max(), [torch.tensor(1.0), torch.tensor(math.nan), torch.tensor(2.0)]).item())
    images = [torch.arange(16.0).reshape(2, 2, 2, 2), torch.zeros(1, 2, 2, 2)]
    assert recorded(Max(axis=(0, 2, 3)), images).tolist() == [11, 15]


def test_mean_over_several_axes_counts_every_element() -> None:
    """Two batches of images of different size: 3 images of 4 pixels, so each channel's mean is of 12 numbers."""
    images = [torch.ones(2, 2, 2, 2), torch.full((1, 2, 2, 2), 4.0)]
    assert recorded(Mean(axis=(0, 2, 3)), images).tolist() == [2, 2]


def test_structures_are_reduced_tensor_by_tensor() -> None:
    """A tuple with a dict in it, and what is no tensor kept from the first value."""
    values = [(torch.full((2,), float(i)), {"h": torch.tensor([i]), "n": "first" if i == 1 else "later"}) for i in (1, 2, 6)]
    total, rest = recorded(Sum(), values)
    assert total.tolist() == [9, 9]
    assert rest["h"].tolist() == [9]
    assert rest["n"] == "first"
    mean, _ = recorded(Mean(), values)
    assert mean.tolist() == [3, 3]
    joined, rest = recorded(Concatenate(), values)
    assert joined.tolist() == [1, 1, 2, 2, 6, 6]
    assert rest["h"].tolist() == [1, 2, 6]


def test_gradients_with_none_in_them() -> None:
    """An LSTM whose states nothing used: the sum of the output's gradients, and None for the states."""
    lstm = nn.LSTM(4, 3)
    recorder = BackwardOutput(reduction=Sum(), strict=True).modules(lstm)
    for _ in range(2):
        lstm(torch.randn(5, 2, 4))[0].sum().backward()
    gradient, states = recorder[0]
    assert torch.equal(gradient, torch.full((5, 2, 3), 2.0))
    assert states == (None, None)


def test_scalars_are_joined_as_vectors() -> None:
    """Five losses, of which all, the first two, and two at random are kept."""
    losses = [torch.tensor(float(i)) for i in range(5)]
    assert recorded(Concatenate(), losses).tolist() == [0, 1, 2, 3, 4]
    assert recorded(First(2), losses).tolist() == [0, 1]
    assert recorded(Reservoir(2), losses).shape == (2,)


def test_joining_along_another_axis() -> None:
    """Time is axis 1: sequences of length 2 and 3 make one of length 5."""
    values = [torch.ones(4, 2), torch.zeros(4, 3)]
    assert recorded(Concatenate(axis=1), values).shape == (4, 5)
    assert recorded(First(3, axis=-1), values).sum() == 8
    assert recorded(Reservoir(4, axis=1), values).shape == (4, 4)


def test_concatenation_stops_at_its_limit_and_says_so() -> None:
    """Of three batches of 16 bytes two fit into 40; what comes later is not kept either, though it would fit."""
    model = nn.Identity()
    recorder = ForwardOutput(reduction=Concatenate(max_bytes=40), strict=True).modules(model)
    for size in (4, 4, 4, 1):
        model(torch.ones(size))
    assert recorder[0].shape == (8,)
    assert recorder.samples(0) == 4
    assert "max_bytes=40 reached: the last 2 not kept" in repr(recorder)
    assert recorded(Concatenate(max_bytes=3), [torch.ones(2, 2)]).shape == (0, 2)


# Reservoir


@given(st.integers(1, 6), st.integers(1, 60), st.integers(0, 2**70), sizes)
@settings(deadline=None)
def test_a_reservoir_holds_different_samples_however_they_are_batched(n: int, rows: int, seed: int, parts: list[int]) -> None:
    """It has n of them, or all, none twice; batching makes no difference."""
    data = torch.arange(rows)
    kept = recorded(Reservoir(n, seed), chunks(data, parts))
    assert len(kept) == min(n, rows)
    assert len(set(kept.tolist())) == len(kept)
    assert set(kept.tolist()) <= set(range(rows))
    assert torch.equal(kept, recorded(Reservoir(n, seed), [data]))


def test_every_sample_is_as_likely_to_be_kept() -> None:
    """Over 3,000 seeds each of 20 samples is kept 450 times, give or take five standard deviations (20 each)."""
    counts = torch.zeros(20, dtype=torch.int64)
    for seed in range(3000):
        kept = reduce(Reservoir(3, seed), torch.arange(20).split(6)).value
        counts[kept] += 1
    assert counts.sum() == 9000
    assert (counts - 450).abs().max() <= 100


def test_slots_that_see_the_same_batches_keep_the_same_samples() -> None:
    """Row i of one layer's reservoir and row i of the next one's are of the same sample."""
    model = nn.Sequential(nn.Identity(), nn.Tanh())
    recorder = ForwardOutput(reduction=Reservoir(5, seed=7), strict=True).children(model)
    for batch in torch.randn(100, 3).split(9):
        model(batch)
    assert torch.equal(recorder[1], recorder[0].tanh())


# As plain callables


@pytest.mark.parametrize("reduction", READY)
def test_ready_made_reductions_are_plain_callables(reduction: Any) -> None:
    """``functools.reduce`` takes them; the finished value is that of the recorder."""
    batches = list(torch.randn(20, 2).split(6))
    result = reduce(reduction, batches)
    result = result.value if isinstance(result, Accumulated) else result
    assert torch.equal(result, recorded(reduction, batches))


@pytest.mark.parametrize("reduction", READY)
def test_they_leave_what_they_are_given_alone(reduction: Any) -> None:
    """Neither changed nor kept: writing into the tensors afterwards changes nothing, nor does what comes later."""
    model = nn.Identity()
    recorder = ForwardOutput(reduction=reduction, strict=True).modules(model)
    batches = [torch.randn(4, 2, requires_grad=True) for _ in range(3)]
    copies = [batch.detach().clone() for batch in batches]
    for batch in batches[:2]:
        model(batch)
    assert all(torch.equal(a, b) for a, b in zip(batches, copies, strict=True))
    shown = recorder[0]
    before = shown.clone()
    for batch in batches[:2]:
        batch.data.fill_(1e6)
    model(batches[2])
    assert torch.equal(shown, before)
    assert torch.equal(recorder[0], recorded(reduction, copies))
    assert not recorder[0].requires_grad


@pytest.mark.parametrize("reduction", [lambda x, y: x + y, lambda x, y: x.add_(y), lambda x, y: y, *READY])
def test_a_running_reduction_keeps_no_graph_and_does_not_grow(reduction: Any) -> None:
    """After many steps one value without a graph, and as many tensors alive as after a few."""
    import gc

    model = nn.Linear(2, 2)
    recorder = ForwardOutput(reduction=reduction, strict=True).modules(model)

    def alive() -> int:
        gc.collect()
        return sum(type(thing) is Tensor for thing in gc.get_objects())

    def run(steps: int) -> None:
        for _ in range(steps):
            model(torch.ones(1, 2)).sum().backward()

    run(20)
    few = alive()
    run(200)
    assert alive() - few <= (200 if isinstance(reduction, Concatenate) else 2)
    assert recorder[0].grad_fn is None
    assert not recorder[0].requires_grad


# The contract for reductions of one's own


def test_a_reduction_may_write_into_either_argument() -> None:
    """Both are the recorder's own: the model's output is as it would be."""
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    expected = model(x)
    recorder = ForwardOutput(reduction=lambda x, y: y.add_(x), strict=True).modules(model)
    for _ in range(3):
        assert torch.equal(model(x), expected)
    torch.testing.assert_close(recorder[0], 3 * expected.detach())


def test_a_reduction_may_join_and_collect() -> None:
    """A concatenation by hand, and a list, as ``functools.reduce`` would make them."""
    values = [torch.ones(2, 3), torch.zeros(1, 3), torch.ones(4, 3)]
    assert recorded(lambda x, y: torch.cat([x, y]), values).shape == (7, 3)
    collected = recorded(lambda x, y: [*(x if isinstance(x, list) else [x]), y], values)
    assert [len(value) for value in collected] == [2, 1, 4]


def test_a_reduction_takes_structured_values_tensor_by_tensor() -> None:
    """A tuple with a dict in it: sums of the tensors, what is no tensor from the first value, and no tuple that grows."""
    values = [(torch.full((2,), float(i)), {"h": torch.tensor([i]), "n": i}) for i in (1, 2, 6)]
    total, rest = recorded(lambda x, y: x + y, values)
    assert total.tolist() == [9, 9]
    assert (rest["h"].tolist(), rest["n"]) == ([9], 1)
    assert recorded(lambda x, y: x + y, [1.5, 2.5]) == 4  # a value without a tensor is handed over whole
    collected, _ = recorded(lambda x, y: [*(x if isinstance(x, list) else [x]), y], values)
    assert [tensor.tolist() for tensor in collected] == [[1, 1], [2, 2], [6, 6]]


def test_a_reduction_of_a_layer_with_two_inputs() -> None:
    """The sums of both over four calls; nothing grows."""
    model = nn.Bilinear(2, 3, 1)
    recorder = ForwardPre(reduction=lambda x, y: x + y, strict=True).modules(model)
    for _ in range(4):
        model(torch.ones(1, 2), torch.ones(1, 3))
    assert [tensor.tolist() for tensor in recorder[0]] == [[[4, 4]], [[4, 4, 4]]]


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        (lambda a, b: a.sum(0, keepdim=True) + b.sum(0, keepdim=True), [[9.0, 9.0]]),
        (lambda a, b: torch.maximum(a.max(), b.max()), 1.0),
        (lambda a, b: b, [[1.0, 1.0]]),
        (lambda a, b: a, [[1.0, 1.0]] * 4),
        (lambda a, b: a.sum() + b.sum(), 18.0),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_reduction_may_change_the_shape(reduction: Any, expected: Any) -> None:
    """Batches of 4, 4 and 1 rows of ones, as ``functools.reduce`` would reduce them; there is nothing to warn of."""
    batches = [torch.ones(rows, 2) for rows in (4, 4, 1)]
    assert recorded(reduction, batches).tolist() == expected == reduce(reduction, batches).tolist()


@pytest.mark.parametrize("reduction", [lambda x, y: x + y, lambda x, y: x.add_(y), lambda x, y: torch.maximum(y, x)])
def test_a_result_that_was_broadcast_is_said_once(reduction: Any) -> None:
    """Batches of 4, 4, 1 and 1: the last row is added to every row of the sum, which hardly anybody means."""
    model = nn.Identity()
    recorder = ForwardOutput(reduction=reduction, strict=True).modules(model)
    for _ in range(2):
        model(torch.ones(4, 2))
    said = r"in slot 0 \(\(root\):output\) has combined values of the shapes 4×2 and 1×2 into 4×2.*Sum\(axis=0\)"
    with pytest.warns(ObservationWarning, match=said):
        model(torch.ones(1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.ones(1, 2))
    assert recorder.samples(0) == 4


@pytest.mark.parametrize(
    ("reduction", "text"),
    [
        (lambda x, y: x + y, r"<lambda> in slot 1 \(1:output\) raised RuntimeError: .*5"),
        (lambda x, y: x.nothing, "raised AttributeError"),
        (Sum(), r"Sum\(axis=None\) in slot 1 \(1:output\) raised ArgumentError: a value of shape 2×3.*Sum\(axis=0\)"),
        (Mean(axis=2), "reduces axis 2, and a value of shape 5×3 has none"),
        (Concatenate(axis=1), "cannot be joined along axis 1 to values of shape 5×3"),
        (Reservoir(2, axis=1), "samples of shape 2 came after samples of shape 5"),
        (Reservoir(2, axis=4), "has none"),
        (Concatenate(axis=2), "has none"),
    ],
)
def test_a_reduction_that_fails_stops_its_own_slot(reduction: Any, text: str) -> None:
    """One warning that names slot and reduction; what was kept stays, the other slots and the training go on."""
    other, inner = nn.Tanh(), nn.Identity()
    recorder = ForwardOutput(reduction=reduction).children(nn.Sequential(other, inner))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ObservationWarning)
        inner(torch.ones(5, 3))
    kept = None if recorder[1] is None else recorder[1].clone()
    if not recorder.errors:
        with pytest.warns(ObservationWarning, match=text):
            inner(torch.ones(2, 3))
    inner(torch.ones(5, 3))
    (failure,) = recorder.errors
    assert isinstance(failure.error, ArgumentError)
    with pytest.raises(ArgumentError, match=text):
        raise failure.error
    assert str(failure.site) == "1:output"
    assert (recorder[1] is None) is (kept is None)
    assert kept is None or torch.equal(recorder[1], kept)
    assert "stopped: ArgumentError: the reduction" in repr(recorder)
    other(torch.ones((2,) * 5))
    assert list(recorder.iter_samples()) == [1, 0 if kept is None else 1]


def test_an_attached_recorder_tries_again_where_it_stopped() -> None:
    """After ``detach`` and ``attach``, as with other probes."""
    model = nn.Identity()
    recorder = ForwardOutput(reduction=lambda x, y: x + y).modules(model)
    model(torch.ones(2))
    with pytest.warns(ObservationWarning, match="nothing more is kept at"):
        model(torch.ones(3))
    model(torch.ones(2))
    assert recorder[0].tolist() == [1, 1]
    recorder.detach()
    recorder.attach()
    model(torch.ones(2))
    assert recorder[0].tolist() == [2, 2]


def test_a_failing_value_of_several_tensors_adds_nothing() -> None:
    """The first tensor would fit, the second does not: neither is added."""
    sums = Sum()(torch_pair(1, 1), torch_pair(1, 1))
    with pytest.raises(ArgumentError, match="element by element"):
        sums.add(torch_pair(1, 2))
    assert [tensor.tolist() for tensor in sums.value] == [[2], [2]]
    with pytest.raises(ArgumentError, match=r"at \[0\], those before had them at \[0\], \[1\]"):
        sums.add((torch.ones(1),))
    with pytest.raises(ArgumentError, match="there is none in a int"):
        Sum()(1, 2)


def torch_pair(one: int, other: int) -> tuple[Tensor, Tensor]:
    return torch.ones(one), torch.ones(other)


def test_tensors_of_one_value_must_have_the_same_samples_for_a_reservoir() -> None:
    """An LSTM's output and states have other first axes."""
    with pytest.raises(ArgumentError, match="where the tensors of a value differ: 3, 4"):
        Reservoir(2)(torch_pair(3, 4), torch_pair(3, 4))


@pytest.mark.parametrize("make", [lambda: First(0), lambda: Reservoir(0), lambda: Concatenate(max_bytes=0)])
def test_reductions_that_could_keep_nothing(make: Callable[[], Any]) -> None:
    """Refused when they are made."""
    with pytest.raises(ArgumentError):
        make()
