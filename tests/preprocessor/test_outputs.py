"""How active and how large outputs and inputs are, against definitions written out in plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.errors import ArgumentError
from sonde.preprocessor import InputNorm, OutputActivation, OutputNorm

RELU = nn.ReLU()
SHAPES = [(6, 4), (3, 4, 5), (2, 3, 4, 5), (1, 1), (7,), ()]


def activation(output: Tensor, eps: float = 1e-8, channel_last: bool = False) -> tuple[float, float]:
    """Activation and death of one call as the seed defines them, neuron by neuron."""
    values = output.double()
    if values.dim() < 2:
        values = values.reshape(-1, 1)
    if channel_last:
        values = values.movedim(-1, 1)
    rates = [float((values[:, neuron].abs() > eps).double().mean()) for neuron in range(values.shape[1])]
    return sum(rates) / len(rates), sum(rate == 0 for rate in rates) / len(rates)


def norm(output: Tensor, normalize: bool = False) -> float:
    """Mean over samples of the norm of each."""
    samples = [sample.double().flatten() for sample in (output if output.dim() else output[None])]
    return sum(math.sqrt((s * s).sum().item() / (len(s) if normalize else 1)) for s in samples) / len(samples)


def sparse(*shape: int) -> Tensor:
    """Values of which about half are zero, and the neuron 0 wholly."""
    values = torch.randn(shape).relu()
    if values.dim() > 1:
        values[:, 0] = 0
    return values


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("channel_last", [False, True])
def test_activation_and_death_of_a_call(shape: tuple[int, ...], channel_last: bool) -> None:
    seen = OutputActivation(death=True, inplace=False, record_eval=False, evaluation_from_grad=False, channel_last=channel_last)
    outputs = [sparse(*shape) for _ in range(3)]
    for output in outputs:
        seen.process_fw("a", RELU, None, output)
    expected = [activation(output, channel_last=channel_last) for output in outputs]
    assert seen.value["a"].activation == pytest.approx([rate for rate, _ in expected])
    assert seen.value["a"].death == pytest.approx([death for _, death in expected])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normalize", [False, True])
def test_norm_of_a_call(shape: tuple[int, ...], normalize: bool) -> None:
    seen = OutputNorm(normalize=normalize, inplace=False)
    outputs = [torch.randn(shape) for _ in range(3)]
    for output in outputs:
        seen.process_fw("a", RELU, None, output)
    assert seen.value["a"] == pytest.approx([norm(output, normalize) for output in outputs])


def test_the_normalised_norm_is_the_mean_of_the_samples_root_mean_squares() -> None:
    for normalize, expected in ((False, 7.5), (True, 5.303300858899107)):
        seen = OutputNorm(normalize)
        seen.process_fw("a", RELU, None, torch.tensor([[3.0, 4.0], [6.0, 8.0]]))
        assert seen.value["a"].mean == pytest.approx(expected, rel=1e-15)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=5), max_size=6))
def test_both_modes_hold_the_same_numbers(batches: list[list[float]]) -> None:
    for make in (OutputActivation, OutputNorm):
        running, kept = make(inplace=True), make(inplace=False)
        for batch in batches:
            for seen in (running, kept):
                seen.process_fw("a", RELU, None, torch.tensor(batch))
        for one, many in zip(flat(running.value), flat(kept.value), strict=True):
            assert (one.count, one.min_, one.max_) == pytest.approx((len(many), many.min_, many.max_), nan_ok=True)
            assert one.mean == pytest.approx(many.mean, abs=1e-12, nan_ok=True)
            assert one.var == pytest.approx(many.var, abs=1e-9, nan_ok=True)


def flat(value: dict[str, Any]) -> list[Any]:
    return [one for held in value.values() for one in (held if type(held).__name__ == "Activity" else (held,))]


def test_eps_is_the_magnitude_up_to_which_an_output_is_zero() -> None:
    seen = OutputActivation(eps=0.5)
    seen.process_fw("a", RELU, None, torch.tensor([[0.5, -0.6, 0.4, 1.0]]))
    assert (seen.value["a"].activation.mean, seen.value["a"].death.mean) == (0.5, 0.5)
    with pytest.raises(ArgumentError, match="eps"):
        OutputActivation(eps=-1e-8)


def test_without_death_the_value_is_the_activation_alone() -> None:
    seen = OutputActivation(death=False)
    seen.process_fw("a", RELU, None, torch.tensor([[0.0, 1.0]]))
    assert seen.value["a"].mean == 0.5


def test_n12_a_single_image_is_not_a_batch_of_rows() -> None:
    """Of a convolution's output (channel, height, width) two channels of three are dead."""
    seen = OutputActivation()
    output = torch.zeros(3, 2, 2)
    output[1] = 1
    seen.process_fw("conv", nn.Conv2d(1, 3, 1), None, output)
    assert (seen.value["conv"].activation.mean, seen.value["conv"].death.mean) == pytest.approx((1 / 3, 2 / 3))
    told = OutputActivation(batched=False)
    told.process_fw("relu", RELU, None, output)
    assert told.value["relu"].death.mean == pytest.approx(2 / 3)


def test_n6_a_nan_is_not_a_dead_neuron_and_is_counted() -> None:
    activity, norms = OutputActivation(), OutputNorm(inplace=False)
    for output in (torch.tensor([[1.0, 2.0]]), torch.tensor([[math.nan, 2.0]]), torch.tensor([[math.inf, 0.0]])):
        activity.process_fw("a", RELU, None, output)
        norms.process_fw("a", RELU, None, output)
    found = activity.value["a"]
    assert (found.activation.mean, found.death.mean, found.death.count, found.death.nonfinite) == (1, 0, 1, 2)
    assert norms.value["a"].mean == pytest.approx(math.sqrt(5))
    assert norms.value["a"].nonfinite == 2


def test_n3_half_precision_does_not_overflow() -> None:
    seen = OutputNorm(normalize=True)
    seen.process_fw("a", RELU, None, torch.full((2, 100_000), 300.0, dtype=torch.float16))
    assert seen.value["a"].mean == pytest.approx(300)
    plain = OutputNorm()
    plain.process_fw("a", RELU, None, torch.full((1, 1000), 1e-30))
    assert plain.value["a"].mean == pytest.approx(math.sqrt(1000) * 1e-30, rel=1e-6)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param(torch.tensor([3, -4]), 3.5, id="integers"),
        pytest.param(torch.tensor([[True, True, True, True]]), 2.0, id="bools"),
        pytest.param(torch.tensor([[3 + 4j]]), 5.0, id="complex"),
        pytest.param(torch.tensor(-2.0), 2.0, id="scalar"),
        pytest.param(torch.tensor([[3.0, 4.0]]).to_sparse(), 5.0, id="sparse"),
        pytest.param((torch.tensor([1]), {"x": torch.tensor([[3.0, 4.0]])}), 5.0, id="first floating one of a structure"),
        pytest.param(nn.Parameter(torch.tensor([[3.0, 4.0]])), 5.0, id="with a graph"),
    ],
)
def test_n19_n22_every_kind_of_output_has_a_norm(output: Any, expected: float) -> None:
    seen = OutputNorm()
    seen.process_fw("a", RELU, None, output)
    assert seen.value["a"].mean == pytest.approx(expected)


@pytest.mark.parametrize("output", [torch.empty(0), torch.empty(0, 3), torch.empty(2, 0), None, (), 1.5])
def test_n22_what_is_empty_gives_no_number(output: Any) -> None:
    for seen in (OutputNorm(), OutputActivation(death=False)):
        seen.process_fw("a", RELU, None, output)
        assert repr(seen.value["a"]) == "RunningMeanVar(no data)"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_has_no_values_is_refused_clearly() -> None:
    for output in (torch.empty(2, device="meta"), torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])):
        for seen in (OutputNorm(), OutputActivation(channel_last=True)):
            with pytest.raises(ArgumentError, match=r"nested|meta"):
                seen.process_fw("a", RELU, None, output)


# Training and evaluation


@pytest.mark.parametrize("make", [OutputActivation, OutputNorm, InputNorm])
@pytest.mark.parametrize("from_grad", [False, True])
@pytest.mark.parametrize("record_eval", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_which_calls_count(make: Any, from_grad: bool, record_eval: bool, training: bool, grad: bool) -> None:
    seen = make(record_eval=record_eval, evaluation_from_grad=from_grad, inplace=False)
    module = nn.ReLU().train(training)
    with torch.set_grad_enabled(grad):
        seen.process_fw("a", module, torch.ones(2, 2), torch.ones(2, 2))
    counted = record_eval or (grad if from_grad else training)
    assert [len(one) for one in flat(seen.value)] == [int(counted)] * len(flat(seen.value))


def test_n15_calls_without_gradients_are_not_recorded() -> None:
    """Three forwards, of which two under no_grad: one counts."""
    seen = OutputNorm(evaluation_from_grad=True)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with sonde.observe(model, seen, strict=True):
        model(torch.ones(1, 2))
        with torch.no_grad():
            model(torch.ones(1, 2))
            model(torch.ones(1, 2))
    assert [held.count for held in seen.value.values()] == [1, 1, 1]


def test_the_training_flag_needs_the_layer(event: Callable[..., sonde.types.Event]) -> None:
    with pytest.raises(ArgumentError, match="evaluation_from_grad=True"):
        OutputNorm()(event("output", torch.ones(1)))


# Events


def test_events_are_routed(event: Callable[..., sonde.types.Event]) -> None:
    norms, inputs = OutputNorm(), InputNorm()
    given, returned = torch.tensor([[6.0, 8.0]]), torch.tensor([[3.0, 4.0]])
    norms(event("output", returned, name="a", module=RELU, args=(given,)))
    inputs(event("input", (given,), name="a", module=RELU, args=(given,)))
    inputs(event("input", (), name="kw", module=RELU, kwargs={"mask": torch.tensor([1]), "x": given}))
    assert norms.value["a"].mean == 5.0
    assert inputs.value["a"].mean == inputs.value["kw"].mean == 10.0
    norms(event("output", returned, name="a", module=RELU, model="G"))
    assert list(norms.value) == ["a", "G/a"]
    for seen, port in ((norms, "input"), (inputs, "output"), (norms, "grad")):
        with pytest.raises(ArgumentError, match=f"takes events of {seen.ports[0]}, and this is of a:{port}"):
            seen(event(port, returned, name="a", module=RELU))


def test_n14_a_recomputed_forward_counts_once() -> None:
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    seen, inputs = (make(evaluation_from_grad=True) for make in (OutputNorm, InputNorm))
    with sonde.observe(block, seen, strict=True), sonde.observe(block, inputs, ports=("input",), strict=True):
        checkpoint(block, torch.ones(1, 2, requires_grad=True), use_reentrant=False).sum().backward()
    assert {name: held.count for name, held in seen.value.items()} == {"0": 1, "1": 1, "": 1}
    assert {held.count for held in inputs.value.values()} == {1}


def test_n13_a_shared_module_has_one_name_and_all_its_calls() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), relu), nn.Sequential(nn.Linear(2, 2), relu))
    seen = OutputNorm(evaluation_from_grad=True)
    with sonde.observe(model, seen, include=nn.ReLU, strict=True):
        model(torch.ones(1, 2))
    assert {name: held.count for name, held in seen.value.items()} == {"0.1": 2}


def test_n20_a_layer_that_is_called_with_keywords() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(input=x)

    seen, inputs = (make(evaluation_from_grad=True) for make in (OutputNorm, InputNorm))
    model = Outer()
    with sonde.observe(model, seen, strict=True), sonde.observe(model, inputs, ports=("input",), strict=True):
        model(torch.tensor([[3.0, 4.0]]))
    assert seen.value["inner"].count == 1
    assert inputs.value["inner"].mean == 5.0


def test_an_input_is_measured_before_the_layer_writes_into_it() -> None:
    model = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    seen = InputNorm(evaluation_from_grad=True)
    with sonde.observe(model, seen, ports=("input",), strict=True):
        model(torch.tensor([[-3.0, 4.0]]))
    assert seen.value["1"].mean == 5.0


def test_n21_layers_that_did_not_run_have_no_data() -> None:
    model = nn.ModuleDict({"a": nn.ReLU(), "b": nn.ReLU()})
    seen = OutputActivation(evaluation_from_grad=True)
    seen.expect(sonde.sites(model, include=nn.ReLU))
    with sonde.observe(model, seen, include=nn.ReLU, strict=True):
        model["a"](torch.ones(1, 2))
    assert seen.value["a"].activation.count == 1
    assert repr(seen.value["b"].activation) == "RunningMeanVar(no data)"


def test_an_evaluation_only_interval_has_no_data() -> None:
    seen = OutputNorm()
    seen.process_fw("a", RELU, None, torch.ones(1, 1))
    seen.reset()
    seen.process_fw("a", nn.ReLU().eval(), None, torch.ones(1, 1))
    assert repr(seen.value["a"]) == "RunningMeanVar(no data)"


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_is_seen_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    x = torch.randn(5, 4)
    expected = activation(model(x))
    seen = OutputActivation(record_eval=True)
    with sonde.observe(model, seen, include=nn.ReLU, strict=True):
        torch.compile(model, backend="aot_eager", fullgraph=True)(x).sum().backward()
    assert (seen.value["1"].activation.mean, seen.value["1"].death.mean) == pytest.approx(expected)
