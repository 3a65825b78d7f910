"""Size and condition of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import sonde
from sonde.errors import ArgumentError
from sonde.preprocessor import Conditioning, ParameterNorm


def layer(*rows: tuple[float, ...]) -> nn.Linear:
    made = nn.Linear(len(rows[0]), len(rows), bias=False)
    made.weight = nn.Parameter(torch.tensor(rows))
    return made


@pytest.mark.parametrize("normalize", [False, True])
def test_norms_of_the_attributes_of_a_layer(normalize: bool) -> None:
    seen = ParameterNorm(attrs=["weight", "bias"], normalize=normalize, inplace=False)
    module = nn.Linear(3, 4)
    for _ in range(2):
        seen.process_module("a", module)
        with torch.no_grad():
            module.weight.mul_(2)
    weight, bias = module.weight.detach().double() / 4, module.bias.detach().double()
    expected = float(weight.norm()) / (math.sqrt(12) if normalize else 1)
    assert seen.value["a"]["weight"] == pytest.approx([expected, 2 * expected])
    assert seen.value["a"]["bias"] == pytest.approx([float(bias.norm()) / (2 if normalize else 1)] * 2)
    assert seen.attrs_ == ["weight", "bias"]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=4), max_size=6))
def test_both_modes_hold_the_same_numbers(weights: list[list[float]]) -> None:
    running, kept = ParameterNorm("weight", inplace=True), ParameterNorm("weight", inplace=False)
    for seen in (running, kept):
        seen.expect(["a"])
        for weight in weights:
            seen.process_module("a", layer(tuple(weight)))
    one, many = running.value["a"]["weight"], kept.value["a"]["weight"]
    assert (one.count, one.min_, one.max_) == pytest.approx((len(many), many.min_, many.max_), nan_ok=True)
    assert (one.mean, one.var) == pytest.approx((many.mean, many.var), abs=1e-9, nan_ok=True)


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(nn.Linear(2, 2, bias=False), id="None"),
        pytest.param(nn.ReLU(), id="missing"),
        pytest.param(nn.LazyLinear(2), id="uninitialised"),
        pytest.param(nn.LSTM(2, 2), id="other names"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_n25_n26_attributes_that_are_not_there_have_no_data(module: nn.Module) -> None:
    seen = ParameterNorm(["bias", "weight"])
    seen.process_module("a", module)
    assert repr(seen.value["a"]["bias"]) == "RunningMeanVar(no data)"
    assert seen.value["a"]["weight"].count == (1 if type(module) is nn.Linear else 0)


def test_n26_a_single_name_is_one_name_and_no_letters() -> None:
    assert ParameterNorm("weight").attrs_ == ["weight"]
    seen = ParameterNorm("in_proj_weight")
    attention = nn.MultiheadAttention(4, 2)
    seen.process_module("a", attention)
    assert seen.value["a"]["in_proj_weight"].mean == pytest.approx(float(attention.in_proj_weight.detach().double().norm()))
    for attrs in ([], [1], ""):
        with pytest.raises(ArgumentError, match="attrs must be names"):
            ParameterNorm(attrs) if attrs != "" else ParameterNorm([])


@pytest.mark.parametrize("wrap", [parametrizations.spectral_norm, parametrizations.weight_norm, parametrizations.orthogonal])
def test_n25_reading_a_parametrized_weight_changes_nothing_and_calls_no_hook(wrap: Any) -> None:
    module = wrap(nn.Linear(3, 3))
    parametrize.register_parametrization(module, "bias", nn.Dropout(0.5))
    before = {name: held.clone() for name, held in module.state_dict().items()}
    random = torch.get_rng_state()
    called = []
    handles = [part.register_forward_hook(lambda *_: called.append(1)) for part in module.modules()]
    seen = ParameterNorm()
    seen.process_module("a", module)
    for handle in handles:
        handle.remove()
    assert not called
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(held, before[name]) for name, held in module.state_dict().items())
    assert all(part.training for part in module.modules())
    module.eval()
    assert seen.value["a"]["weight"].mean == pytest.approx(float(module.weight.detach().double().norm()))
    assert seen.value["a"]["bias"].mean == pytest.approx(float(module.bias.detach().double().norm()))


def test_a_number_that_is_not_finite_is_counted() -> None:
    seen = ParameterNorm("weight")
    for value in (3.0, math.nan, math.inf):
        seen.process_module("a", layer((value, 4.0)))
    found = seen.value["a"]["weight"]
    assert (found.mean, found.count, found.nonfinite) == (5, 1, 2)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (torch.empty(0, 2), None),
        (torch.tensor(-3.0), 3.0),
        (torch.full((100_000,), 300.0).half(), 300 * math.sqrt(100_000)),
        (torch.tensor([3 + 4j]), 5.0),
    ],
)
def test_weights_of_every_kind(weight: torch.Tensor, expected: float | None) -> None:
    module = nn.Module()
    module.weight = nn.Parameter(weight)
    seen = ParameterNorm("weight")
    seen.process_module("a", module)
    found = seen.value["a"]["weight"]
    assert (found.mean if found else None) == (None if expected is None else pytest.approx(expected))


def test_events_of_parameters_are_filed_by_layer_and_attribute(event: Callable[..., sonde.types.Event]) -> None:
    seen = ParameterNorm()
    seen(event("param", torch.tensor([3.0, 4.0]), name="layers.0.weight"))
    seen(event("param", torch.tensor([1.0]), name="weight"))
    seen(event("param", torch.tensor([1.0]), name="layers.0.gain"))
    seen(event("param", torch.tensor([2.0]), name="up.parametrizations.weight.original0", model="G"))
    assert {layer: {name: held.mean for name, held in below.items()} for layer, below in seen.value.items()} == {
        "layers.0": {"weight": 5.0},
        "": {"weight": 1.0},
        "G/up": {"weight.original0": 2.0},
    }
    with pytest.raises(ArgumentError, match="takes events of param"):
        seen(event("grad", torch.ones(1)))


def test_expected_parameters_have_no_data() -> None:
    seen = ParameterNorm()
    seen.expect([sonde.Site("0.weight", "param"), sonde.Site("0.gain", "param"), "1"])
    assert {layer: list(below) for layer, below in seen.value.items()} == {"0": ["weight"], "1": ["weight", "bias"]}


# Conditioning


def condition(module: nn.Module, name: str = "weight") -> tuple[float, float]:
    seen = Conditioning(name)
    seen.process_module("a", module)
    found = seen.value["a"][name]
    return found.condition.mean, found.stable_rank.mean


def test_condition_and_stable_rank_by_hand() -> None:
    assert condition(layer((4.0, 0.0), (0.0, 2.0))) == pytest.approx((2, 20 / 16))
    rotation = layer((0.6, -0.8), (0.8, 0.6))
    assert condition(rotation) == pytest.approx((1, 2), rel=1e-6)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (2, 1)])
def test_condition_is_that_of_numpy(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape)
    singular = np.linalg.svd(weight.double().numpy(), compute_uv=False)
    expected = (singular[0] / singular[-1], (singular**2).sum() / singular[0] ** 2)
    assert condition(layer(*map(tuple, weight.tolist()))) == pytest.approx(expected, rel=1e-9)


def test_a_kernel_is_a_matrix_with_a_row_per_output_channel() -> None:
    conv, up = nn.Conv2d(2, 4, 3), nn.ConvTranspose2d(2, 4, 3)
    assert condition(conv)[0] == pytest.approx(float(torch.linalg.cond(conv.weight.detach().double().reshape(4, 18))))
    matrix = up.weight.detach().double().transpose(0, 1).reshape(4, 18)
    assert condition(up)[0] == pytest.approx(float(torch.linalg.cond(matrix)))


def test_what_has_no_condition() -> None:
    seen = Conditioning(["weight", "bias"])
    for module in (nn.Linear(2, 2), nn.LayerNorm(2), layer((0.0, 0.0), (0.0, 0.0)), layer((math.nan, 1.0), (1.0, 1.0))):
        seen.process_module("a", module)
    found = seen.value["a"]
    assert found["weight"].condition.count == 1
    assert found["weight"].condition.nonfinite == 1
    assert repr(found["bias"].condition) == "RunningMeanVar(no data)"


def test_a_singular_matrix_is_infinite_or_beyond_float64() -> None:
    seen = Conditioning(inplace=False)
    seen.process_module("a", layer((1.0, 0.0), (0.0, 0.0)))
    seen.process_module("b", layer((1.0, 2.0), (2.0, 4.0)))
    assert seen.value["a"]["weight"].condition == [math.inf]
    assert seen.value["b"]["weight"].condition[0] > 1e15
    assert seen.value["a"]["weight"].stable_rank == [1.0]


def test_a_complex_matrix_is_not_its_modulus() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.tensor([[1 + 0j, 1j], [1j, 1 + 0j]]))  # unitary but for a factor; its modulus is singular
    assert condition(module)[0] == pytest.approx(1)
