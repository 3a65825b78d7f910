"""Length, direction and activation of gradients, against definitions written out in plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import sonde
from sonde.errors import ArgumentError
from sonde.preprocessor import GradientActivation, GradientGeometry, OutputGradientGeometry, ParameterDifferenceGeometry


def cosine(one: Tensor, other: Tensor) -> float:
    one, other = one.double().flatten(), other.double().flatten()
    return float(one @ other / (one.norm() * other.norm()))


def feed(seen: Any, *gradients: Tensor | None, name: str = "w") -> Any:
    """All gradients, one after the other, to whichever kind it is."""
    for gradient in gradients:
        if isinstance(seen, OutputGradientGeometry):
            seen.process_bw(name, None, None, (gradient,))
        else:
            seen.process_tensor(name, gradient)
    return seen.value[name]


BOTH = pytest.mark.parametrize("make", [GradientGeometry, OutputGradientGeometry])


@BOTH
@pytest.mark.parametrize("normalize", [False, True])
def test_norm_and_correlation(make: Any, normalize: bool) -> None:
    gradients = [torch.randn(3, 4) for _ in range(4)]
    found = feed(make(correlation=True, normalize=normalize, inplace=False), *gradients)
    root = math.sqrt(12) if normalize else 1.0
    assert found.norm == pytest.approx([float(g.double().norm()) / root for g in gradients])
    assert found.correlation == pytest.approx([cosine(a, b) for a, b in zip(gradients[1:], gradients, strict=False)])


@BOTH
def test_without_correlation_the_value_is_the_norm_alone_and_nothing_is_copied(make: Any) -> None:
    seen = make(correlation=False)
    assert feed(seen, torch.tensor([3.0, 4.0])).mean == 5.0
    assert seen._history is None


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(*[st.floats(-10, 10, width=32)] * 3), max_size=8))
def test_both_modes_hold_the_same_numbers(gradients: list[tuple[float, ...]]) -> None:
    running, kept = GradientGeometry(inplace=True), GradientGeometry(inplace=False)
    for seen in (running, kept):
        seen.expect(["w"])
        feed(seen, *[torch.tensor(gradient) for gradient in gradients])
    for one, many in zip(running.value["w"], kept.value["w"], strict=True):
        assert (one.count, one.min_, one.max_) == pytest.approx((len(many), many.min_, many.max_), nan_ok=True)
        assert (one.mean, one.var) == pytest.approx((many.mean, many.var), abs=1e-9, nan_ok=True)
        assert all(-1 <= value <= 1 for value in kept.value["w"].correlation)


@BOTH
@pytest.mark.parametrize("size", [1e-2, 1e-3, 1e-5, 1e-6, 1e-12, 1e-20, 1e-30])
def test_n1_identical_gradients_of_any_size_have_correlation_one(make: Any, size: float) -> None:
    gradient = torch.randn(100)
    gradient *= size / gradient.norm()
    found = feed(make(), gradient, gradient.clone())
    assert 0.999 <= found.correlation.mean <= 1
    assert found.norm.mean == pytest.approx(float(gradient.double().norm()))
    assert found.norm.mean > 0


@BOTH
def test_n2_the_first_gradient_counts_no_correlation_also_after_a_reset(make: Any) -> None:
    seen, gradient = make(inplace=False), torch.tensor([1.0, 2.0])
    assert feed(seen, *[gradient] * 4).correlation == pytest.approx([1, 1, 1])
    seen.reset()
    assert feed(seen, gradient).correlation == pytest.approx([1])


@BOTH
def test_n3_half_precision_neither_overflows_nor_gives_nan(make: Any) -> None:
    for elements, value in ((1000, 10.0), (100_000, 300.0)):
        gradient = torch.full((elements,), value, dtype=torch.float16)
        found = feed(make(normalize=True), gradient, gradient)
        assert found.norm.mean == pytest.approx(value)
        assert found.correlation.mean == pytest.approx(1)


@BOTH
def test_n4_a_correlation_never_exceeds_one(make: Any) -> None:
    gradient = torch.randn(10_000).bfloat16()
    found = feed(make(), gradient, gradient, -gradient)
    assert (found.correlation.max_, found.correlation.min_) == pytest.approx((1, -1), abs=1e-12)
    assert -1 <= found.correlation.min_ <= found.correlation.max_ <= 1
    assert found.norm.mean == pytest.approx(float(gradient.double().norm()))


@BOTH
def test_n5_another_batch_size_has_no_correlation_and_never_raises(make: Any) -> None:
    found = feed(make(inplace=False), *(torch.ones(size, 3) for size in (4, 4, 2, 1, 1)))
    assert found.correlation == pytest.approx([1, 1])
    assert len(found.norm) == 5


def test_n5_in_a_real_loop_with_a_smaller_last_batch() -> None:
    model = nn.Linear(3, 2)
    seen = OutputGradientGeometry(inplace=False)
    with sonde.observe(model, seen, ports=seen.ports, strict=True):
        for size in (4, 4, 2):
            model(torch.ones(size, 3)).sum().backward()
    assert seen.value[""].correlation == pytest.approx([1])
    assert seen.value[""].norm == pytest.approx([math.sqrt(8), math.sqrt(8), 2])


@BOTH
def test_n6_a_gradient_with_a_nan_is_counted_and_spoils_nothing_else(make: Any) -> None:
    good = torch.tensor([3.0, 4.0])
    found = feed(make(), good, torch.tensor([math.nan, 1.0]), good, good)
    assert (found.norm.mean, found.norm.var, found.norm.count, found.norm.nonfinite) == (5, 0, 3, 1)
    assert (found.correlation.mean, found.correlation.count, found.correlation.nonfinite) == pytest.approx((1, 1, 2))
    assert feed(make(inplace=False), torch.tensor([math.inf])).norm.nonfinite == 1


@BOTH
def test_a_gradient_of_zero_has_a_norm_and_no_direction(make: Any) -> None:
    zero, one = torch.zeros(2), torch.ones(2)
    found = feed(make(), zero, zero, one, one)
    assert (found.norm.min_, found.norm.count) == (0, 4)
    assert (found.correlation.count, found.correlation.nonfinite) == (1, 0)


@BOTH
def test_what_is_kept_is_a_copy(make: Any) -> None:
    gradient = torch.tensor([1.0, 0.0])
    seen = make()
    feed(seen, gradient)
    gradient.copy_(torch.tensor([0.0, 1.0]))  # the memory is used again
    assert feed(seen, gradient).correlation.mean == 0


def test_n19_of_a_structured_output_the_gradient_that_arrived_counts() -> None:
    seen = OutputGradientGeometry()
    seen.process_bw("a", None, None, (None, torch.tensor([3.0, 4.0])))
    seen.process_bw("b", None, None, (None,))
    seen.process_bw("c", None, None, ({"x": torch.tensor([6.0, 8.0])},))
    assert seen.value["a"].norm.mean == 5
    assert repr(seen.value["b"].norm) == "RunningMeanVar(no data)"
    assert seen.value["c"].norm.mean == 10


def test_n18_an_in_place_activation_after_the_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    seen = OutputGradientGeometry()
    with sonde.observe(model, seen, ports=seen.ports, strict=True):
        model(torch.ones(2, 3)).sum().backward()
    assert {held.norm.count for held in seen.value.values()} == {1}


def test_n23_sparse_complex_and_differentiable_gradients() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    seen = GradientGeometry()
    with sonde.observe(embedding, seen, ports=seen.ports, strict=True) as probe:
        for _ in range(2):
            embedding.zero_grad()
            embedding(torch.tensor([1, 1, 3])).sum().backward()
            probe.step()
    assert seen.value["weight"].norm.mean == pytest.approx(math.sqrt(4 + 4 + 1 + 1))
    assert seen.value["weight"].correlation.mean == pytest.approx(1)

    turned = feed(GradientGeometry(), torch.tensor([1 + 1j]), torch.tensor([1 - 1j]), torch.tensor([2 - 2j]))
    assert (turned.correlation.min_, turned.correlation.max_) == pytest.approx((0, 1), abs=1e-15)
    assert turned.norm.max_ == pytest.approx(math.sqrt(8))

    weight = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)
    graph = GradientGeometry()
    assert feed(graph, gradient, gradient).norm.mean == pytest.approx(math.sqrt(18))
    assert not graph._history.previous(("w", None)).requires_grad


@pytest.mark.parametrize("make", [GradientGeometry, GradientActivation])
def test_n24_a_gradient_that_is_gone_or_empty_gives_no_number(make: Any) -> None:
    seen = make(inplace=False)
    found = feed(seen, None, torch.empty(0, 3))
    assert [list(one) for one in found] == [[], []]
    assert "InMemory(no data)" in repr(found)
    with pytest.raises(ArgumentError, match="a gradient must be a tensor, not float"):
        seen.process_tensor("w", 1.0)


def test_eps_is_checked() -> None:
    for make in (GradientGeometry, OutputGradientGeometry, GradientActivation, ParameterDifferenceGeometry):
        for eps in (-1e-9, math.nan, math.inf):
            with pytest.raises(ArgumentError, match="eps"):
                make(eps=eps)


# Steps


def test_n8_an_accumulated_gradient_counts_once_per_step() -> None:
    """Micro-gradients add up to the gradient of the step, which is compared with that of the step before."""
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    geometry, activity = GradientGeometry(inplace=False), GradientActivation(inplace=False)
    steps = [[(1.0, 0.0), (0.0, 1.0), (2.0, 0.0)], [(0.0, 0.0), (1.0, 0.0)], [(-1.0, 0.0)]]
    with (
        sonde.observe(model, geometry, ports=geometry.ports, strict=True),
        sonde.observe(model, activity, ports=activity.ports, strict=True),
    ):
        for micro in steps:
            for batch in micro:
                model(torch.tensor([batch])).sum().backward()
                assert geometry.value["weight"].norm[-1] == pytest.approx(float(model.weight.grad.norm()))
            optimizer.step()
            optimizer.zero_grad()
    assert geometry.value["weight"].norm == pytest.approx([math.sqrt(10), 1, 1])
    assert geometry.value["weight"].correlation == pytest.approx([3 / math.sqrt(10), -1])
    assert activity.value["weight"].activation == [1.0, 0.5, 0.5]


def test_n8_an_epoch_that_ends_between_micro_steps_keeps_neither_half_twice(event: Callable[..., sonde.types.Event]) -> None:
    seen = GradientGeometry(correlation=False, inplace=False)
    seen(event("grad", torch.tensor([1.0]), name="w", step=0))
    assert seen.value["w"] == [1.0]
    seen.reset()
    assert seen.value["w"] == []
    seen(event("grad", torch.tensor([2.0]), name="w", step=0, micro_step=1))
    seen(event("grad", torch.tensor([5.0]), name="w", step=1))
    assert seen.value["w"] == [2.0, 5.0]


def test_n9_the_scale_of_mixed_precision_is_taken_out() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    model = nn.Linear(2, 1, bias=False)
    norms, outputs, activity = (
        GradientGeometry(scaler=scaler),
        OutputGradientGeometry(scaler=scaler),
        GradientActivation(eps=2.0, scaler=scaler),
    )
    with (
        sonde.observe(model, norms, ports=norms.ports, strict=True),
        sonde.observe(model, outputs, ports=outputs.ports, strict=True),
        sonde.observe(model, activity, ports=activity.ports, strict=True),
    ):
        scaler.scale(model(torch.tensor([[1.0, 1.0]])).sum()).backward()
    assert norms.value["weight"].norm.mean == pytest.approx(math.sqrt(2))
    assert outputs.value[""].norm.mean == pytest.approx(1)
    assert activity.value["weight"].death.mean == 1
    assert feed(GradientGeometry(scaler=torch.amp.GradScaler("cpu", enabled=False)), torch.ones(1)).norm.mean == 1


def test_the_calls_of_one_forward_are_compared_with_their_like(event: Callable[..., sonde.types.Event]) -> None:
    seen = OutputGradientGeometry(inplace=False)
    right, up = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    for _ in range(2):
        seen(event("grad_output", (up,), name="a", call=1))
        seen(event("grad_output", (right,), name="a", call=0))
    assert seen.value["a"].correlation == [1.0, 1.0]


def test_n36_layers_keep_their_order() -> None:
    seen = GradientGeometry()
    seen.expect(["0", "1", "2"])
    for order in (["2", "1", "0"], ["0", "2", "1"]):
        for name in order:
            seen.process_tensor(name, torch.ones(1))
        assert list(seen.value) == ["0", "1", "2"]
        seen.reset()
    assert list(seen.value) == ["0", "1", "2"]


# Activation


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 2), (5,), ()])
def test_gradient_activation_and_death(shape: tuple[int, ...]) -> None:
    gradient = torch.randn(shape).relu()
    if gradient.dim():
        gradient[0] = 0
    mask = (gradient.double().abs() > 1e-8).double()
    rates = [float(row.mean()) for row in (mask if mask.dim() else mask[None])]
    found = feed(GradientActivation(death=True, inplace=True), gradient)
    assert found.activation.mean == pytest.approx(sum(rates) / len(rates))
    assert found.death.mean == pytest.approx(sum(rate == 0 for rate in rates) / len(rates))
    assert feed(GradientActivation(death=False, inplace=False), gradient) == pytest.approx([sum(rates) / len(rates)])


def test_n11_the_neurons_of_transposed_convolutions_and_embeddings(event: Callable[..., sonde.types.Event]) -> None:
    up = nn.ConvTranspose2d(2, 3, 2)
    up(torch.ones(1, 2, 2, 2))[:, 1].sum().backward()
    seen = GradientActivation()
    seen.process_tensor("up.weight", up.weight.grad, owner=up)
    seen(event("grad", up.weight.grad, name="same", module=up))
    for name in ("up.weight", "same"):
        assert seen.value[name].death.mean == pytest.approx(2 / 3)

    words = nn.Embedding(5, 4)
    words(torch.tensor([1]))[:, :3].sum().backward()
    seen.process_tensor("words", words.weight.grad, owner=words)
    assert seen.value["words"].death.mean == pytest.approx(1 / 4)
    assert seen.value["words"].activation.mean == pytest.approx(3 / 20)


def test_n37_small_gradients_are_alive_where_eps_says_so() -> None:
    gradient = torch.full((2, 2), 5e-9)
    assert feed(GradientActivation(), gradient).death.mean == 1
    assert feed(GradientActivation(eps=0.0), gradient).death.mean == 0


def test_events_of_another_port_are_refused(event: Callable[..., sonde.types.Event]) -> None:
    for seen, port in ((GradientGeometry(), "param"), (GradientActivation(), "output"), (OutputGradientGeometry(), "grad_input")):
        with pytest.raises(ArgumentError, match=f"{type(seen).__name__} takes events of {seen.ports[0]}"):
            seen(event(port, torch.ones(1)))
