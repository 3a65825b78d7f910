"""What a step does to parameters."""

from __future__ import annotations

import itertools
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
from sonde.preprocessor import ParameterDifferenceGeometry, UpdateRatio, UpdateRounding

BY_PAIR = pytest.mark.parametrize("make", [ParameterDifferenceGeometry, UpdateRatio])


def test_differences_of_consecutive_calls() -> None:
    seen = ParameterDifferenceGeometry(correlation=True, normalize=False, inplace=False)
    for value in ([0.0, 0.0], [3.0, 4.0], [3.0, 4.0], [6.0, 8.0], [0.0, 0.0]):
        seen.process_tensor("w", torch.tensor(value))
    assert seen.value["w"].norm == pytest.approx([5, 0, 5, 10])
    assert seen.value["w"].correlation == pytest.approx([-1])  # nothing has an angle to no update


def test_normalised_differences() -> None:
    seen = ParameterDifferenceGeometry(correlation=False, normalize=True)
    seen.process_tensor("w", torch.zeros(4))
    seen.process_tensor("w", torch.full((4,), 2.0))
    assert seen.value["w"].mean == 2.0


def train(
    seen: Any, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, make: Callable[..., sonde.types.Event]
) -> list[Any]:
    """Train, feeding *seen* as the engine would; the parameters before the first step and after each."""
    names = dict(model.named_parameters())
    trace = [{name: p.detach().clone() for name, p in names.items()}]
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        for name, parameter in names.items():
            if "grad" in seen.ports:
                seen(make("grad", parameter.grad, name=name, step=step))
        optimizer.step()
        trace.append({name: p.detach().clone() for name, p in names.items()})
        for name, parameter in names.items():
            seen(make("update", (trace[-2][name], parameter.detach()), name=name, step=step))
    return trace


def test_n29_every_step_is_measured_and_the_first_too(event: Callable[..., sonde.types.Event]) -> None:
    model = nn.Linear(3, 2)
    seen = ParameterDifferenceGeometry(inplace=False)
    ratio = UpdateRatio(inplace=False)
    trace = train(seen, model, torch.optim.AdamW(model.parameters(), lr=0.1), 3, event)
    differences = [(after["weight"] - before["weight"]).double() for before, after in itertools.pairwise(trace)]
    found = seen.value["weight"]
    assert found.norm == pytest.approx([float(d.norm()) for d in differences], rel=1e-6)
    expected = [float((a * b).sum() / (a.norm() * b.norm())) for a, b in zip(differences[1:], differences, strict=False)]
    assert found.correlation == pytest.approx(expected, rel=1e-6)
    for before, after in itertools.pairwise(trace):
        ratio.process_update("weight", before["weight"], after["weight"])
    sizes = [float(before["weight"].double().norm()) for before in trace]
    assert ratio.value["weight"] == pytest.approx([n / s for n, s in zip(found.norm, sizes, strict=False)], rel=1e-6)


@BY_PAIR
@settings(deadline=None, max_examples=25)
@given(values=st.lists(st.floats(-10, 10, width=32), max_size=6))
def test_both_modes_hold_the_same_numbers(make: Any, values: list[float]) -> None:
    running, kept = make(inplace=True), make(inplace=False)
    for seen in (running, kept):
        seen.expect(["w"])
        for value in values:
            seen.process_tensor("w", torch.tensor([value, 1.0]))
    one, many = running.value["w"], kept.value["w"]
    for a, b in zip(one, many, strict=True) if make is ParameterDifferenceGeometry else [(one, many)]:
        assert (a.count, a.min_, a.max_) == pytest.approx((len(b), b.min_, b.max_), nan_ok=True)
        assert (a.mean, a.var) == pytest.approx((b.mean, b.var), abs=1e-9, nan_ok=True)


@BY_PAIR
def test_n29_a_parameter_of_another_shape_begins_anew(make: Any) -> None:
    seen = make(inplace=False)
    for value in (torch.ones(2), torch.ones(3), 2 * torch.ones(3)):
        seen.process_tensor("w", value)
    found = seen.value["w"]
    assert (found.norm if make is ParameterDifferenceGeometry else found) == pytest.approx(
        [math.sqrt(3) if make is ParameterDifferenceGeometry else 1.0]
    )


@BY_PAIR
def test_what_was_is_a_copy_and_clear_forgets_it(make: Any, event: Callable[..., sonde.types.Event]) -> None:
    seen = make(inplace=False)
    weight = nn.Parameter(torch.ones(2))
    seen(event("param", weight, name="w"))
    with torch.no_grad():
        weight.add_(1.0)
    seen(event("param", weight, name="w"))
    found = seen.value["w"]
    assert (found.norm if make is ParameterDifferenceGeometry else found) == pytest.approx(
        [math.sqrt(2) if make is ParameterDifferenceGeometry else 1.0]
    )
    seen.clear()
    assert dict(seen.value) == {}
    seen(event("param", weight, name="w"))
    assert "no data" in repr(seen.value["w"])


def test_an_update_below_the_precision_of_the_parameter_is_exact() -> None:
    before = torch.tensor([1.0, 1e-3], dtype=torch.bfloat16)
    after = torch.tensor([1.0, 1e-3 + 2**-16], dtype=torch.bfloat16)
    seen = ParameterDifferenceGeometry(correlation=False)
    seen.process_update("w", before, after)
    assert seen.value["w"].mean == pytest.approx(abs(float(after[1]) - float(before[1])), rel=1e-15)
    assert seen.value["w"].mean > 0


def test_a_ratio_by_hand_and_where_there_is_none() -> None:
    seen = UpdateRatio(inplace=False)
    seen.process_update("w", torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]))
    seen.process_update("w", torch.zeros(2), torch.ones(2))
    seen.process_update("w", torch.tensor([math.nan, 1.0]), torch.ones(2))
    seen.process_update("w", torch.empty(0), torch.empty(0))
    seen.process_tensor("w", None)
    assert seen.value["w"].finite == 1
    assert seen.value["w"][0] == pytest.approx(0.1)
    assert seen.value["w"].nonfinite == 1


# Rounding


def rounding(before: Tensor, after: Tensor, wanted: Tensor) -> float:
    seen = UpdateRounding()
    seen.process_update("w", before, after, wanted)
    return seen.value["w"].mean


def test_rounding_by_hand() -> None:
    before, after = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.5, 3.0, 4.0])
    assert rounding(before, after, torch.tensor([1.0, 1.0, 0.0, -1.0])) == 0.5
    assert rounding(before, before, torch.zeros(4)) == 0
    with pytest.raises(ArgumentError, match="one shape"):
        rounding(before, after, torch.ones(3))


def test_bfloat16_loses_what_float32_keeps(event: Callable[..., sonde.types.Event]) -> None:
    """At a rate of 1e-4 nearly all updates of a bfloat16 parameter near 1 vanish, and none of a float32 one."""
    shares = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = nn.Linear(3, 8, bias=False)
        nn.init.uniform_(model.weight, 1.0, 1.5)
        model = model.to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        seen = UpdateRounding()
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 3, dtype=dtype)).sum().backward()
            seen(event("grad", model.weight.grad, name="weight", step=step))
            before = model.weight.detach().clone()
            optimizer.step()
            seen(event("update", (before, model.weight.detach()), name="weight", step=step))
        shares[dtype] = (seen.value["weight"].count, seen.value["weight"].mean)
    assert shares == {torch.float32: (3, 0.0), torch.bfloat16: (3, 1.0)}


def test_without_a_gradient_nothing_was_wanted(event: Callable[..., sonde.types.Event]) -> None:
    seen = UpdateRounding(inplace=False)
    pair = (torch.ones(2), torch.ones(2))
    seen(event("update", pair, name="frozen"))
    seen(event("grad", torch.tensor([1.0, 0.0]), name="w"))
    seen(event("update", pair, name="w"))
    seen(event("update", pair, name="w", step=1))
    assert (seen.value["frozen"], seen.value["w"]) == ([], [0.5])


def test_events_of_another_port_and_bad_pairs_are_refused(event: Callable[..., sonde.types.Event]) -> None:
    for seen in (ParameterDifferenceGeometry(), UpdateRatio(), UpdateRounding()):
        with pytest.raises(ArgumentError, match=f"takes events of .*{seen.ports[-1]}"):
            seen(event("output", torch.ones(1)))
    for seen in (ParameterDifferenceGeometry(), UpdateRatio()):
        with pytest.raises(ArgumentError, match="one shape"):
            seen.process_update("w", torch.ones(2), torch.ones(3))
        with pytest.raises(ArgumentError, match="after must be a tensor, not float"):
            seen.process_update("w", torch.ones(2), 1.0)
