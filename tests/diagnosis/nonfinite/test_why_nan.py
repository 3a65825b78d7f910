"""``why_nan`` in all situations: whose fault it is, what is intended, what is left as it was, and clear errors."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from tests.torch_words import words_of
from torch import Tensor, nn, special
from torch import nn as layers
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.diagnosis.nonfinite.tensor_facts import largest
from sonde.diagnosis.nonfinite.why_nan import observe_step
from sonde.engine import structure
from sonde.errors import ArgumentError, ModelError
from sonde.testing import ZOO
from sonde.testing.zoo import Entry

X = torch.linspace(-1, 1, 20).reshape(5, 4)
LABELS = torch.tensor([0, 1, 2, 0, 1])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def cross_entropy(output: Tensor) -> Tensor:
    return functional.cross_entropy(output, LABELS)


class Calls(nn.Module):
    """A linear layer, and a function of its output."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear(x))


# Nothing is wrong


def test_a_healthy_model_is_said_to_be_healthy_with_its_largest_values() -> None:
    found = sonde.why_nan(network(), X, cross_entropy)
    assert found.ok
    assert found.origin is found.kind is found.layer is found.line is None
    assert [each.dtype for each in found.largest] == ["float32"]
    assert found.near_limit == []
    assert "nothing that is not finite" in repr(found)


@pytest.mark.parametrize("entry", [held for held in ZOO.values() if held.name not in ("meta_device", "not_finite")], ids=str)
def test_no_model_of_the_zoo_is_blamed(entry: Entry) -> None:
    """Each runs forward and backward under observation, which never fails, and nothing is found."""
    (args, kwargs), model = entry.batch(), entry.build()

    def loss(output: Any) -> Tensor:
        found = [tensor for _, tensor in structure.walk(output) if tensor.requires_grad]
        parts = [tensor.values() if tensor.layout == torch.jagged else tensor for tensor in found]
        flat = [torch.cat([each.flatten() for each in part.unbind()]) if part.is_nested else part for part in parts]
        return sum((part.abs().sum() for part in flat), torch.zeros((), requires_grad=True))

    found = sonde.why_nan(model, kwargs if kwargs else args, loss)
    assert found.ok, found
    assert found.failure == ""


def test_a_value_near_the_limit_of_its_format_is_named_before_it_overflows() -> None:
    model = Calls(lambda x: (x.sign() * 30_000).half().float())
    found = sonde.why_nan(model, X)
    (near,) = found.near_limit
    assert (near.dtype, near.value, near.limit, near.place.path) == ("float16", 30_000, 65_504, "")
    assert "near the limit" in repr(found)


def test_a_large_mask_is_no_value_near_the_limit() -> None:
    model = Calls(lambda x: (x.masked_fill(x > 0, torch.finfo(x.dtype).min)).softmax(-1))
    assert sonde.why_nan(model, X, lambda output: output.square().sum()).near_limit == []


# What is intended, and what reaches nothing

INTENDED: dict[str, Callable[[Tensor], Tensor]] = {
    "masked_fill": lambda x: x.masked_fill(x < x.mean(-1, keepdim=True), -math.inf).logsumexp(-1),
    "full": lambda x: (x + torch.full((5, 4), -math.inf).triu(1)).softmax(-1),
    "start of a minimum": lambda x: torch.minimum(x, torch.full_like(x, math.inf)),
    "start of a maximum in place": lambda x: x.new_empty(4).fill_(-math.inf).maximum(x[0]),
    "log of a mask": lambda x: (x + torch.tensor([1.0, 1.0, 0.0, 1.0]).log()).softmax(-1),
    "where": lambda x: torch.where(x < 10, x, math.inf),
    "clamp": lambda x: x.clamp(-math.inf, math.inf),
    "pad": lambda x: functional.pad(x, (1, 1), value=-math.inf).amax(-1),
    "a tensor of the code": lambda x: (x + torch.tensor([0.0, -math.inf, 0.0, 0.0])).softmax(-1),
    "a square root behind a safe where": lambda x: torch.where(x > 0, torch.where(x > 0, x, 1.0).sqrt(), 0.0),
    "a mask in half precision": lambda x: (x + torch.tensor([-1e9, 0.0, 0.0, 0.0]).half().float()).softmax(-1),
}


@pytest.mark.parametrize("name", INTENDED)
def test_intended_infinities_are_not_blamed(name: str) -> None:
    assert sonde.why_nan(Calls(INTENDED[name]), X, lambda output: output.nan_to_num().sum()).ok


def test_intended_infinities_are_said_to_have_been_seen() -> None:
    found = sonde.why_nan(Calls(INTENDED["masked_fill"]), X, lambda output: output.sum())
    assert [origin.name for origin in found.intended] == ["masked_fill"]
    assert "on purpose: masked_fill" in repr(found)


def test_a_mask_given_as_argument_or_buffer_is_not_blamed_but_the_softmax_of_it_is() -> None:
    class Masked(nn.Module):
        def __init__(self, rows: int) -> None:
            super().__init__()
            mask = torch.zeros(4, 4)
            mask[:rows] = -math.inf
            self.register_buffer("mask", mask)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return (x + self.mask + mask).softmax(-1)

    x, open_mask = torch.zeros(4, 4, requires_grad=True), torch.tensor([0.0, -math.inf, 0.0, 0.0])
    model = Masked(0)
    assert sonde.why_nan(model, (x, open_mask), lambda output: output.square().sum()).ok
    for rows, mask in ((1, open_mask), (0, torch.full((4,), -math.inf))):
        found = sonde.why_nan(Masked(rows), (x, mask), lambda output: output.sum())
        assert (found.operation, found.cause and found.cause.name) == ("softmax", "softmax of a row of -inf")
        assert not found.origin.operands[0].facts.is_finite


def test_an_intended_infinity_that_reaches_the_loss_is_blamed() -> None:
    found = sonde.why_nan(Calls(lambda x: x.masked_fill(x < 10, math.inf)), X, lambda output: output.sum())
    assert (found.origin.source, found.operation, found.kind) == ("constant", "masked_fill", "inf")
    assert found.reached == ["the output", "the loss"]


def test_bad_values_that_reach_nothing_are_harmless() -> None:
    def function(x: Tensor) -> Tensor:
        torch.log(x.detach() - x.detach())
        return x

    found = sonde.why_nan(Calls(function), X, lambda output: output.sum())
    assert found.ok
    assert [origin.name for origin in found.harmless] == ["log"]


def test_a_new_infinity_beside_an_old_one_is_followed_with_it() -> None:
    """The mask's infinity is there still where others overflow: what makes a NaN of both came from both."""

    def function(x: Tensor) -> Tensor:
        masked = x.sigmoid().masked_fill(x > x.mean(), -math.inf)
        grown = masked * 3e38 * 3e38
        return grown - grown

    found = sonde.why_nan(Calls(function), X, lambda output: output.sum())
    assert (found.operation, found.kind, [origin.name for origin in found.intended]) == ("mul", "inf", ["masked_fill"])
    made = found.later[0]
    assert (made.name, made.kind) == ("sub", "NaN")
    assert sorted(origin.name for origin in made.parents) == ["masked_fill", "mul"]


# What was bad before


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("constant", "all in column 2, in every sample"),
        ("two", "all in columns 2, 5, in every sample"),
        ("lacks", "all in column 2"),
        ("sample", ""),
        ("few", ""),
    ],
)
def test_a_column_that_holds_all_bad_numbers_of_a_batch_is_named(kind: str, where: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    x[:, [2, 5] if kind == "two" else [2] if kind == "constant" else []] = 3.0
    x = (x - x.mean(0)) / x.std(0)
    rows, columns = {"lacks": ([1, 7, 9], 2), "sample": (4, slice(None)), "few": ([4, 9], [3, 6])}.get(kind, ([], []))
    x[rows, columns] = math.nan
    cause = sonde.why_nan(nn.Linear(8, 1), x, lambda out: out.mean()).origin.cause
    assert (f", {where}; the first at" in cause.sentence) is bool(where)
    assert ("column" in cause.sentence, "drop or repair this sample" in cause.advice) == (bool(where), not where)


def test_a_bad_input_is_named_with_its_place() -> None:
    x = X.clone()
    x[3, 2] = math.nan
    found = sonde.why_nan(network(), x, cross_entropy)
    assert (found.origin.source, found.origin.index, str(found.site)) == ("input", (3, 2), "(root):input")
    assert found.origin.operands[0].name == "input"
    assert found.reached[:2] == ["the output", "the loss"]


def test_a_bad_parameter_is_named() -> None:
    model = network()
    model[2].weight.data[1, 3] = math.inf
    found = sonde.why_nan(model, X, cross_entropy)
    assert (found.origin.source, found.operation, found.origin.index, str(found.site)) == (
        "parameter",
        "2.weight",
        (1, 3),
        "2.weight:param",
    )


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (["2.bias"], "most likely never initialised"),
        (["2.weight", "2.bias"], "most likely never initialised"),
        (["0.weight", "0.bias", "2.weight", "2.bias"], "never initialised (torch.empty), or broken by an update before"),
    ],
    ids=["one", "a layer", "all"],
)
def test_parameters_without_a_number_are_no_proof_of_an_update(bad: list[str], words: str) -> None:
    """Where others are finite they were never filled, most likely; where all are bad both may be."""
    model = network()
    for name in bad:
        model.get_parameter(name).data.fill_(math.nan)
    found = sonde.why_nan(model, X, cross_entropy)
    assert found.cause is not None
    assert found.operation == bad[0]
    assert words in found.cause.advice


def test_one_bad_element_of_a_parameter_may_be_of_an_update_as_well() -> None:
    model = network()
    model[2].weight.data[1, 3] = math.nan
    found = sonde.why_nan(model, X, cross_entropy)
    assert found.cause is not None
    assert "or broken by an update before this step" in found.cause.advice


def test_a_bad_buffer_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    model[1].running_var[1] = math.nan
    found = sonde.why_nan(model, X, lambda output: output.sum())
    assert (found.origin.source, found.operation, found.layer) == ("buffer", "1.running_var", "1")


def test_a_bad_target_in_the_loss_function_is_named() -> None:
    target = torch.zeros(5, 3)
    target[1, 2] = math.nan
    found = sonde.why_nan(network(), X, lambda output: functional.mse_loss(output, target))
    assert (found.origin.source, found.operation, found.origin.index, found.layer) == ("outside", "target", (1, 2), None)


def test_a_buffer_that_the_forward_breaks_is_found() -> None:
    model = nn.BatchNorm1d(4)
    found = sonde.why_nan(model, X.sign() * 3e30, lambda output: output.sum())
    assert found.operation == "batch_norm"
    assert "1 of 3 buffers" in found.reached


# Loss, optimizer, scaler


def test_a_loss_whose_labels_are_all_ignored() -> None:
    found = sonde.why_nan(network(), X, lambda output: functional.cross_entropy(output, torch.full((5,), -100)))
    assert (found.layer, found.operation, found.cause and found.cause.name) == (None, "cross_entropy", "mean of nothing")
    assert found.cause is not None
    assert "all 5 labels are ignore_index=-100" in found.cause.sentence


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_an_optimizer_without_eps(how: dict[str, bool]) -> None:
    """A unit that is dead has gradients of 0, of which Adam divides 0 by 0."""
    model = network()
    nn.init.constant_(model[0].bias, -9)
    found = sonde.why_nan(model, X, cross_entropy, optimizer=Adam(model.parameters(), eps=0.0, **how))
    assert (found.phase, found.cause and found.cause.name, str(found.site)[:2]) == ("step", "0 / 0", "0.")
    assert str(found.site).endswith(":update")
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_an_infinite_learning_rate() -> None:
    model = network()
    found = sonde.why_nan(model, X, cross_entropy, optimizer=SGD(model.parameters(), lr=math.inf))
    assert found.phase == "step"
    assert found.cause is not None
    assert found.cause.name == "-inf in the code"


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (torch.optim.AdamW, "weight_decay", math.inf),
        (torch.optim.AdamW, "eps", math.nan),
        (torch.optim.AdamW, "lr", math.inf),
        (SGD, "weight_decay", math.inf),
        (SGD, "lr", math.nan),
    ],
)
def test_a_setting_of_an_optimizer_that_is_not_finite_is_named(kind: Any, name: str, value: float, how: dict[str, bool]) -> None:
    """It breaks all parameters by one update, and all are counted."""
    model = network()
    optimizer = kind(model.parameters(), **({"lr": 0.1} | how))
    optimizer.param_groups[0][name] = value
    found = sonde.why_nan(model, X, cross_entropy, optimizer=optimizer)
    assert found.cause is not None
    assert found.phase == "step"
    assert f"{name} of {kind.__name__} is {'NaN' if math.isnan(value) else 'inf'}: " in found.cause.sentence
    assert found.cause.advice == f"give the optimizer a finite {name}"
    assert "4 of 4 parameters" in found.reached


@pytest.mark.parametrize(("setting", "said"), [({"eps": 0}, "eps of Adam is 0"), ({"betas": (0.9, 1.0)}, "betas of Adam is 1")])
def test_a_setting_by_which_an_optimizer_divides_by_zero_is_named(setting: dict[str, Any], said: str) -> None:
    model = network()
    with torch.no_grad():
        model[2].weight.zero_()  # no gradient comes before it
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.param_groups[0].update(setting)
    found = sonde.why_nan(model, X, cross_entropy, optimizer=optimizer)
    assert found.cause is not None
    assert (found.phase, found.cause.sentence) == ("step", f"{said}: 0 / 0")
    assert found.cause.advice.startswith("give the optimizer")


def test_a_setting_of_one_group_is_named_with_the_group() -> None:
    model = network()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "weight_decay": math.inf}]
    found = sonde.why_nan(model, X, cross_entropy, optimizer=SGD(groups, lr=0.1))
    assert found.cause is not None
    assert "weight_decay of group 1 of SGD is inf" in found.cause.sentence
    assert "2 of 4 parameters" in found.reached


def test_an_overflow_by_the_scale_of_the_loss_is_told_apart() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaler.scale(torch.zeros(()))  # the scale is there from the first use on
    with torch.autocast("cpu", torch.float16):
        found = sonde.why_nan(network(), X, lambda output: (output.float() * 50).square().sum(), scaler=scaler)
    assert (found.phase, found.cause and found.cause.name) == ("backward", "overflow of float16 by the loss scale")


# Kinds of models


def test_the_call_of_a_module_that_is_called_twice() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.root = Calls(torch.sqrt)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.root.linear.weight.fill_(1)
                self.root.linear.bias.fill_(9)
            first = self.root(x)
            return first + self.root(-first * 100)

    found = sonde.why_nan(Shared(), X, lambda output: output.sum())
    assert (found.layer, found.origin.place.call, found.operation) == ("root", 1, "sqrt")


def test_a_checkpoint_whose_recomputation_differs_from_the_forward() -> None:
    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls = nn.Linear(4, 4), 0

        def part(self, x: Tensor) -> Tensor:
            self.calls += 1
            y = self.linear(x)
            return (y * y + 1 - 1e9 * (self.calls > 1)).sqrt()

        def forward(self, x: Tensor) -> Any:
            return torch.utils.checkpoint.checkpoint(self.part, x, use_reentrant=False)

    found = sonde.why_nan(Changes(), X, lambda output: output.sum())
    assert (found.phase, found.operation, found.layer) == ("recompute", "sqrt", "")


def test_complex_sparse_double_and_in_place() -> None:
    found = sonde.why_nan(nn.Linear(4, 4, dtype=torch.complex64), X.cfloat(), lambda output: (output - output).abs().log().sum())
    assert (found.operation, found.kind) == ("log", "inf")
    found = sonde.why_nan(nn.Embedding(5, 3, sparse=True), LABELS, lambda output: (output * 0).sqrt().sum())
    assert (found.phase, found.operation) == ("backward", "sqrt")
    found = sonde.why_nan(Calls(lambda x: x.double().sub_(x.double()).log_()), X, lambda output: output.sum())
    assert (found.operation, found.cause and found.cause.name) == ("log_", "log of zero")
    assert found.origin.operands[0].value == 0


def test_numbers_that_python_reads_from_a_tensor_are_followed() -> None:
    found = sonde.why_nan(Calls(lambda x: x * (x[0, 0].detach() * 0 - 1).sqrt().item()), X, lambda output: output.sum())
    assert found.operation == "sqrt"


def test_a_number_that_the_code_writes_into_a_tensor_is_named() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.clone()
        y[1, 1] = math.nan
        return y

    found = sonde.why_nan(Calls(function), X, lambda output: output.sum())
    assert (found.origin.source, found.operation, found.line and found.line.text) == ("constant", "setitem", "y[1, 1] = math.nan")


def test_values_that_no_operation_made_are_found_where_they_are_read() -> None:
    def function(x: Tensor) -> Tensor:
        held = x.detach().numpy().copy()
        held[2, 1] = math.nan
        return x + torch.from_numpy(held)  # read here

    found = sonde.why_nan(Calls(function), X, lambda output: output.sum())
    assert (found.origin.source, found.operation, found.origin.index) == ("outside", "torch.from_numpy(held)", (2, 1))
    assert found.line is not None
    assert found.line.text.endswith("# read here")


@torch.library.custom_op("sonde_test::quotient", mutates_args=())
def quotient(x: Tensor) -> Tensor:
    return x / (x - x)


def test_an_operator_of_ones_own_is_named_as_a_whole() -> None:
    found = sonde.why_nan(Calls(lambda x: quotient(x + 0)), X)
    assert (found.operation, found.origin.operator, found.cause and found.cause.name) == (
        "quotient",
        "sonde_test::quotient",
        "unknown",
    )


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16])
def test_small_formats(dtype: torch.dtype) -> None:
    found = sonde.why_nan(Calls(lambda x: (-1 - x.detach().abs()).log().to(dtype).float() + x), X)
    assert (found.operation, found.kind) == ("log", "NaN")
    assert found.failure == ""


def test_modes_without_gradients_and_transforms() -> None:
    def by_row(x: Tensor) -> Tensor:
        return torch.vmap(lambda row: torch.log(row - row))(x)

    with torch.inference_mode():
        assert sonde.why_nan(Calls(by_row), X).operation == "log"
    with torch.no_grad():
        assert sonde.why_nan(Calls(by_row), X, lambda output: output.sum()).operation == "log"


def test_uninitialised_memory_is_named() -> None:
    class Fills(torch.utils._python_dispatch.TorchDispatchMode):
        """Memory that nobody has written holds NaN."""

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            return made.fill_(math.nan) if str(function).startswith("aten.empty.") and made.is_floating_point() else made

    with Fills():
        found = sonde.why_nan(Calls(lambda x: x + torch.empty(4)), X, lambda output: output.sum())
    assert found.origin.source == "uninitialised"


def test_a_compiled_model_runs_as_python_and_the_answer_says_so() -> None:
    model = torch.compile(Calls(lambda x: (x - x).log()), backend="eager")
    found = sonde.why_nan(model, X, lambda output: output.sum())
    assert (found.operation, found.layer) == ("log", "")
    assert "compiled modules ran as plain Python" in found.notes
    healthy = sonde.why_nan(torch.compile(network(), backend="eager"), X, cross_entropy)
    assert any("aot_eager" in note for note in healthy.notes)


def test_an_exception_of_the_model_is_kept_where_a_bad_value_led_to_it() -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.log(x - x)
        if y.isinf().any():
            raise ValueError("y is infinite")
        return y

    found = sonde.why_nan(Calls(function), X, lambda output: output.sum())
    assert (found.operation, str(found.error)) == ("log", "y is infinite")
    harmless = Calls(lambda x: torch.log(x.detach() * 0) and None)
    with pytest.raises(RuntimeError, match=words_of(lambda: bool(torch.ones(2)))):  # the infinity has not led to it
        sonde.why_nan(harmless, X)
    with pytest.raises(RuntimeError, match=words_of(lambda: network()(X[:, :2]))):
        sonde.why_nan(network(), X[:, :2], cross_entropy)


def test_a_bad_value_that_an_operation_refuses_is_followed_though_no_variable_holds_it() -> None:
    found = sonde.why_nan(Calls(lambda x: torch.multinomial((x / (x - x)).softmax(-1), 1)), X)
    assert (found.operation, found.kind, type(found.error), found.reached) == ("truediv", "inf", RuntimeError, ["an exception"])
    assert [origin.name for origin in found.later] == ["softmax"]


def test_an_optimizer_that_evaluates_the_loss_itself_takes_its_step() -> None:
    model = network()
    assert sonde.why_nan(model, X, cross_entropy, optimizer=torch.optim.LBFGS(model.parameters(), max_iter=2)).ok
    found = sonde.why_nan(model, X, cross_entropy, optimizer=torch.optim.LBFGS(model.parameters(), lr=math.inf, max_iter=2))
    assert found.phase == "step"


def test_a_loss_in_the_output_needs_no_loss_function() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, *, labels: Tensor) -> dict[str, Tensor]:
            y = self.linear(x)
            return {"loss": ((y - y.detach()).sqrt() * labels[0]).sum(), "y": y}

    found = sonde.why_nan(WithLoss(), {"x": X, "labels": LABELS})
    assert (found.phase, found.operation, found.layer) == ("backward", "sqrt", "")
    forward_only = sonde.why_nan(network(), X)
    assert any("only the forward ran" in note for note in forward_only.notes)


def test_other_threads_are_not_looked_at() -> None:
    def function(x: Tensor) -> Tensor:
        thread = threading.Thread(target=lambda: torch.log(torch.zeros(3)))
        thread.start()
        thread.join()
        return x

    found = sonde.why_nan(Calls(function), X, lambda output: output.sum())
    assert found.ok
    assert found.harmless == []


# Nothing changes


def test_model_optimizer_gradients_batch_and_random_state_stay_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3))
    optimizer = Adam(model.parameters())
    cross_entropy(model(X)).backward()
    optimizer.step()
    x = X.clone().requires_grad_()
    state, gradients = copy.deepcopy(model.state_dict()), [parameter.grad for parameter in model.parameters()]
    values = [gradient.clone() for gradient in gradients if gradient is not None]
    moments, random = copy.deepcopy(optimizer.state_dict()), torch.get_rng_state()
    penalty = model[0].weight
    sonde.why_nan(model, x, lambda output: cross_entropy(output) + penalty.square().sum(), optimizer=optimizer)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is held for parameter, held in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(held, value) for held, value in zip(gradients, values, strict=True) if held is not None)
    assert str(optimizer.state_dict()) == str(moments)
    assert torch.equal(torch.get_rng_state(), random)
    assert x.grad is None


def test_a_step_of_ones_own_is_observed_as_it_runs() -> None:
    model = network()

    def step() -> Tensor:
        loss = cross_entropy(model(X)) + (model[2].bias - model[2].bias.detach()).sqrt().sum()
        loss.backward()
        return loss

    found = observe_step(model, step)
    assert (found.phase, found.layer) == ("backward", None)
    assert "1 of 4 gradients" in found.reached


# The answer


def test_the_answer_as_text_html_and_finding() -> None:
    found = sonde.why_nan(Calls(lambda x: (x - x).log()), X, lambda output: output.sum())
    text = repr(found)
    for part in ("why", "log of 0 is -inf", "test_why_nan.py", "reproduce", "torch.log(torch.tensor(0.0))", "reached", "the loss"):
        assert part in text
    assert "log of 0 is -inf" in found._repr_html_()
    finding = found.findings[0]
    assert finding is not None
    assert (finding.rule, finding.severity, finding.site, finding.call) == ("nonfinite", "bad", "(root):output", 0)
    assert finding.evidence == {"nan": 0.0, "inf": 20.0, "count": 20.0}


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((X, X), ModelError, "must be a torch.nn.Module"),
        ((network(), X, 3), ArgumentError, "cannot be called"),
        ((network(), X, nn.CrossEntropyLoss()), ArgumentError, "output alone .*'target'"),
        ((network(), X, lambda output: output), ArgumentError, "must return a scalar"),
        ((nn.Linear(2, 2, device="meta"), torch.ones(2)), ArgumentError, "meta"),
    ],
)
def test_clear_errors(arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sonde.why_nan(*arguments)


# Whose fault a bad loss is


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    "loss", [functional.mse_loss, functional.l1_loss, functional.huber_loss, lambda o, goal: ((o - goal) ** 2).mean()]
)
def test_a_target_that_is_not_finite_is_to_blame_and_not_the_layer_before_the_loss(bad: float, loss: Any) -> None:
    goal = torch.zeros(5, 3)
    goal[1, 2] = bad
    found = sonde.why_nan(network(), X, lambda output: loss(output, goal))
    assert found.origin is not None
    assert (found.origin.source, found.origin.name, found.origin.index) == ("outside", "goal", (1, 2))
    assert found.line is not None
    assert "goal" in found.line.text
    assert found.intended == []


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_a_weight_of_the_loss_that_is_infinite_is_to_blame(value: float) -> None:
    weights = torch.tensor([1.0, 1.0, 1.0, 1.0, value])
    found = sonde.why_nan(network(), X, lambda output: (output.mean(-1) * weights).mean())
    assert found.origin is not None
    assert (found.origin.source, found.origin.name) == ("outside", "weights")


def test_a_mask_of_the_loss_function_is_not_blamed_but_the_softmax_of_it_is() -> None:
    mask = torch.full((5, 3), -math.inf)
    found = sonde.why_nan(network(), X, lambda output: (output + mask).log_softmax(-1).mean())
    assert (found.operation, found.cause and found.cause.name) == ("log_softmax", "softmax of a row of -inf")


def test_a_buffer_of_inf_that_reaches_the_loss_is_to_blame_and_one_that_is_only_held_is_not() -> None:
    class Scaled(nn.Module):
        def __init__(self, uses: bool) -> None:
            super().__init__()
            self.linear, self.uses = nn.Linear(4, 3), uses
            self.register_buffer("scale", torch.tensor([1.0, 1.0, math.inf]))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * (self.scale if self.uses else 1.0)

    found = sonde.why_nan(Scaled(True), X, lambda output: output.mean())
    assert found.origin is not None
    assert (found.origin.source, found.origin.name) == ("buffer", "scale")
    assert sonde.why_nan(Scaled(False), X, lambda output: output.mean()).ok


def test_what_a_softmax_of_the_loss_function_reads_is_masked_and_not_a_bad_target() -> None:
    teacher = torch.randn(5, 3).index_fill(1, torch.tensor([2]), -math.inf)

    def loss_fn(output: Tensor) -> Tensor:
        given = output.index_fill(1, torch.tensor([2]), -math.inf).log_softmax(-1)
        return functional.kl_div(given, teacher.log_softmax(-1), reduction="batchmean", log_target=True)

    found = sonde.why_nan(network(), X, loss_fn)
    assert (found.operation, found.kind, found.cause and found.cause.name) == ("kl_div", "NaN", "inf - inf")


def test_a_label_whose_class_is_masked_is_to_blame_on_the_loss() -> None:
    masked = torch.tensor([False, True, False])
    found = sonde.why_nan(network(), X, lambda output: functional.cross_entropy(output.masked_fill(masked, -math.inf), LABELS))
    assert (found.operation, found.kind, found.cause and found.cause.name) == ("cross_entropy", "inf", "label of probability zero")
    assert "class 1" in repr(found)


def test_an_operation_whose_cause_is_not_known_says_what_went_in_and_nothing_of_finite_numbers() -> None:
    x = X.clone()
    x[0, 0] = math.inf
    found = sonde.why_nan(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)), x, lambda output: output.square().mean())
    assert "layer_norm made a NaN: input holds 1 inf" in repr(found)
    assert "finite numbers" not in repr(found)


# What a division hides


class RootMeanSquare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def test_an_overflow_of_which_a_root_makes_zeros_is_not_called_harmless() -> None:
    model, x = nn.Sequential(RootMeanSquare(), nn.Linear(4, 2)).half(), (X.sign() * 1000).half()
    assert not model[0](x).any()  # where a norm of float32 gives numbers around 1
    found = sonde.why_nan(model, x, lambda output: output.float().square().mean())
    assert (found.layer, found.operation, found.kind) == ("0", "pow", "inf")
    assert "rsqrt makes 0 of the infinity" in repr(found)
    assert found.harmless == []
    assert sonde.why_nan(model, x / 1000, lambda output: output.float().square().mean()).ok


def test_an_overflow_whose_reciprocal_is_nearly_zero_is_harmless() -> None:
    assert sonde.why_nan(Calls(lambda x: x / (1 + (x * 1e25) ** 2)), X, lambda output: output.sum()).ok
    assert sonde.why_nan(Calls(lambda x: 1 / (1 + (x.sign() * 200).exp())), X, lambda output: output.sum()).ok


# What an optimizer holds


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize(("key", "value"), [("exp_avg", math.nan), ("exp_avg_sq", math.inf), ("exp_avg_sq", -1.0)])
def test_broken_state_of_an_optimizer_is_named_with_its_parameter(options: dict[str, bool], key: str, value: float) -> None:
    model = network()
    adam = Adam(model.parameters(), **options)
    cross_entropy(model(X)).backward()
    adam.step()
    adam.state[model[2].weight][key][1, 2] = value
    found = sonde.why_nan(model, X, cross_entropy, optimizer=adam)
    assert (str(found.site), found.phase) == ("2.weight:update", "step")
    assert f"{key} of 2.weight" in repr(found)
    assert found.cause is not None
    assert "state is broken" in found.cause.advice


# Hooks on gradients


def test_hooks_on_the_gradients_of_parameters_run_in_the_copy() -> None:
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        model, seen = network(), []

        def spoil(given: Tensor, seen: list[int] = seen) -> Tensor | None:
            seen.append(1)
            if given.grad is None:
                return given / (given - given).norm()
            given.grad.div_(0)
            return None

        getattr(model[0].weight, register)(spoil)
        found = sonde.why_nan(model, X, cross_entropy)
        assert (found.layer, found.phase, found.operation) == (
            "0",
            "backward",
            "truediv" if register == "register_hook" else "div_",
        )
        assert found.line is not None
        assert found.line.function.endswith("spoil")
        assert seen == []  # the hook of the copy has a list of its own


KEPT: list[float] = []


def test_a_hook_that_reaches_what_no_copy_replaces_does_not_run_and_is_named() -> None:
    model = network()
    model[2].bias.register_hook(lambda gradient: KEPT.append(float(gradient.sum())))
    found = sonde.why_nan(model, X, cross_entropy)
    assert found.ok
    assert KEPT == []
    assert any("2.bias" in note and "hooks" in note for note in found.notes)


def test_a_gradient_that_is_there_before_the_step_is_noted() -> None:
    model = network()
    model[0].weight.grad = torch.full((8, 4), math.nan)
    found = sonde.why_nan(model, X, cross_entropy)
    assert found.ok
    assert any("0.weight" in note and "zero_grad" in note for note in found.notes)


# Where a gradient of 0 comes from


def at_zero(h: Tensor) -> Tensor:
    return (h - h.detach()).sqrt()


@pytest.mark.parametrize(
    ("function", "by"),
    [
        (lambda h: (h - h.detach()) / (at_zero((h - h.detach()).square().sum(-1, keepdim=True)) + 1e-6), "div"),
        (lambda h: at_zero(h).clamp(min=0.1), "clamp"),
        (lambda h: (at_zero(h) - 1).relu(), "relu"),
        (lambda h: at_zero(h) * (h > 9), "mul"),
        (lambda h: torch.minimum(at_zero(h), h * 0 - 1), "minimum"),
        (lambda h: at_zero(h)[:0].sum() + h.sum(), "slice"),
    ],
    ids=["numerator of zeros", "clamp", "relu", "product", "minimum", "slice"],
)
def test_a_gradient_of_zero_is_said_to_come_from_the_operation_that_made_it(function: Any, by: str) -> None:
    """No ``where`` is spoken of where the program has none; the remedy is in the root."""
    found = sonde.why_nan(Calls(function), X, lambda output: output.sum())
    assert found.cause is not None
    assert (found.phase, found.operation, found.cause.name) == ("backward", "sqrt", "sqrt'(0)")
    assert f"the gradient that arrives is 0, which the derivative of {by} (" in found.cause.sentence
    assert "where" not in found.cause.sentence + found.cause.advice
    assert "inside the root" in found.cause.advice


@pytest.mark.parametrize(
    ("function", "by"),
    [
        (lambda h: torch.where(h > 9, at_zero(h), 0.0), "where"),
        (lambda h: at_zero(h).masked_fill(h < 9, 0.0), "masked_fill"),
        (lambda h: at_zero(h)[h > 9].sum() + h.sum(), "index"),
    ],
    ids=["where", "masked_fill", "index"],
)
def test_a_choice_between_the_loss_and_the_place_is_named(function: Any, by: str) -> None:
    found = sonde.why_nan(Calls(function), X, lambda output: output.sum())
    assert found.cause is not None
    assert found.cause.name == "sqrt'(0) behind where"
    assert f"the branch that {by} (" in found.cause.sentence
    assert "f(torch.where(ok, x, 1.0))" in found.cause.advice


def test_infinities_beside_the_zero_gradient_are_counted() -> None:
    """Of 20 elements at 0 the first 8 have a gradient of 1, and infinities; the others 0, and NaN."""
    found = sonde.why_nan(Calls(lambda h: at_zero(h)[:2]), X, lambda output: output.sum())
    assert found.cause is not None
    assert "where it is not 0, 8 elements are infinite" in found.cause.sentence


# What the operands are called


class Scaled(nn.Module):
    """A function of a module with a weight and a bias, and of its input."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.bias, self.groups = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8)), 4
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


HUGE = torch.full((8, 8), 1e30)


def of_local_name(m: nn.Module, h: Tensor) -> Tensor:
    from torch.nn import functional as f

    return f.linear(h, HUGE)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (nn.GroupNorm(4, 8), ["input", "self.weight", "self.bias"]),
        (nn.LayerNorm(8), ["input", "self.weight", "self.bias"]),
        (nn.BatchNorm1d(8), ["input", "weight", "bias", "running_mean", "running_var"]),
        (Scaled(lambda m, h: functional.group_norm(h, m.groups, m.weight, m.bias)), ["h", "m.weight", "m.bias"]),
        (
            Scaled(lambda m, h: functional.group_norm(weight=m.weight, bias=m.bias, input=h, num_groups=4)),
            ["h", "m.weight", "m.bias"],
        ),
        (Scaled(lambda m, h: functional.group_norm(*(h, 4, m.weight), bias=m.bias)), ["input", "weight", "m.bias"]),
        (
            Scaled(lambda m, h: functional.batch_norm(h, m.bias.data, -m.weight.data, m.weight, m.bias)),
            ["h", "m.weight", "m.bias", "m.bias.data", "-m.weight.data"],
        ),
        (Scaled(lambda m, h: functional.linear(bias=m.bias, input=h, weight=HUGE)), ["m.bias", "h", "HUGE"]),
        (Scaled(lambda m, h: functional.linear(h, HUGE)), ["h", "HUGE"]),
        (Scaled(lambda m, h: nnf.linear(h, HUGE)), ["h", "HUGE"]),
        (Scaled(lambda m, h: layers.functional.group_norm(h, m.groups, m.weight, m.bias)), ["h", "m.weight", "m.bias"]),
        (Scaled(of_local_name), ["h", "HUGE"]),
        (Scaled(lambda m, h: special.exp2(h)), ["h"]),
        (Scaled(lambda m, h: torch.addmm(m.bias, h, HUGE)), ["m.bias", "h", "HUGE"]),
        (Scaled(lambda m, h: m.bias.addmm(h, HUGE)), ["m.bias", "h", "HUGE"]),
        (Scaled(lambda m, h: h @ HUGE), ["h", "HUGE"]),
        (Scaled(lambda m, h: torch.div(other=m.bias, input=h)), ["h", "m.bias"]),
        (Scaled(lambda m, h: functional.conv1d(h[:, None], HUGE[None, :1])), ["h[:, None]", "HUGE[None, :1]"]),
    ],
    ids=str,
)
def test_operands_are_named_by_the_signature_of_what_is_called(model: nn.Module, names: list[str]) -> None:
    """Numbers between the tensors, keywords and packed arguments shift no name."""
    found = sonde.why_nan(model, 3e8 * HUGE * torch.arange(64).reshape(8, 8).remainder(3).sub(1), lambda output: output.sum())
    assert found.origin is not None
    assert [operand.name for operand in found.origin.operands] == names


# Updates of one's own


def by_norm(p: nn.Parameter, _: dict[str, Tensor]) -> None:
    assert p.grad is not None
    p.add_(p.grad / p.grad.norm(), alpha=-0.1)


def by_moments(p: nn.Parameter, state: dict[str, Tensor]) -> None:
    assert p.grad is not None
    moment = state.setdefault("moment", torch.zeros_like(p))
    moment.mul_(0.9).addcmul_(p.grad, p.grad, value=0.1)
    p.sub_(0.1 * p.grad / moment.sqrt())


def by_copy(p: nn.Parameter, _: dict[str, Tensor]) -> None:
    assert p.grad is not None
    step = p.grad * 1.0
    p.copy_(p - step / step.abs().sum())


class Own(torch.optim.Optimizer):
    def __init__(self, params: Any, update: Callable[[nn.Parameter, dict[str, Tensor]], None]) -> None:
        super().__init__(params, {})
        self.update = update

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.update(parameter, self.state[parameter])


@pytest.mark.parametrize("update", [by_norm, by_moments, by_copy])
@pytest.mark.parametrize("is_loop", [False, True], ids=["optimizer", "loop"])
def test_an_update_of_ones_own_is_said_to_be_of_its_parameter(update: Any, is_loop: bool) -> None:
    """The second layer has a dead one before it: the gradients of all but its bias are 0, and 0 / 0 is NaN."""
    model = network()
    nn.init.constant_(model[0].bias, -9)

    def step() -> None:
        cross_entropy(model(X)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                update(parameter, {})

    found = (
        observe_step(model, step) if is_loop else sonde.why_nan(model, X, cross_entropy, optimizer=Own(model.parameters(), update))
    )
    assert found.origin is not None
    assert (found.operation, found.origin.parameter, str(found.site)) == ("truediv", "0.weight", "0.weight:update")
    assert "3 of 4 parameters" in found.reached


def test_what_a_loss_computes_of_a_parameter_without_a_gradient_is_no_update() -> None:
    model = network()

    def loss(output: Tensor) -> Tensor:
        with torch.no_grad():
            scale = model[0].weight / model[0].weight.mul(0)
        return output.sum() * scale.sum()

    found = sonde.why_nan(model, X, loss)
    assert found.origin is not None
    assert (found.phase, found.origin.parameter) == ("forward", "")


# Infinities of the code that meet something


def test_a_mask_times_an_infinity_is_said_to_be_zero_times_it() -> None:
    """Of 20 elements 12 are kept, whose factor is 0."""
    keep = (torch.arange(20) % 5 > 1).reshape(5, 4).float()
    found = sonde.why_nan(Calls(lambda h: (h + (1 - keep) * -math.inf).softmax(-1)), X, lambda output: output.sum())
    assert found.cause is not None
    assert found.cause.name == "0 x inf"
    assert found.cause.sentence == "0 × -inf is NaN: 12 of 20 elements are 0, and the code writes -inf"
    assert found.cause.advice == "write masked_fill(mask, -inf)"


def written_below_zero(h: Tensor, number: float) -> Tensor:
    h = h.clone()
    h[h < 0] = number
    return h


@pytest.mark.parametrize(
    ("function", "called"),
    [
        (lambda h: written_below_zero(h, math.nan), "setitem"),
        (lambda h: torch.where(h < 0, math.nan, h), "where"),
        (lambda h: h.masked_fill(h < 0, math.nan), "masked_fill"),
        (lambda h: h + torch.full_like(h, math.nan), "full_like"),
        (lambda h: h.index_fill(0, torch.tensor([1]), math.nan), "index_fill"),
    ],
    ids=["index", "where", "masked_fill", "full_like", "index_fill"],
)
def test_a_nan_that_the_code_writes_is_said_to_be_written(function: Any, called: str) -> None:
    found = sonde.why_nan(Calls(function), X, lambda output: output.sum())
    assert found.cause is not None
    assert (found.origin.source, found.operation, found.cause.name) == ("constant", called, "NaN in the code")
    assert found.cause.sentence.removeprefix("masked_fill in ").startswith(f"{called} was given ")  # as torch 2.15 writes by a mask


def test_a_tensor_of_the_code_that_is_written_by_an_index_keeps_its_name() -> None:
    limit = torch.tensor(math.nan)

    def write(h: Tensor) -> Tensor:
        h = h.clone()
        h[h < 0] = limit
        return h

    found = sonde.why_nan(Calls(write), X, lambda output: output.sum())
    assert (found.origin.source, found.operation) == ("outside", "limit")


class Force(nn.Module):
    """The gradient of an energy whose second derivative is infinite at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        force: Tensor = torch.autograd.grad((self.factor * x).abs().pow(1.5).sum(), x, create_graph=True)[0]
        return force


def test_zeros_without_memory_that_a_second_backward_makes_are_read_as_zeros() -> None:
    """Within a dispatch mode, reading such a tensor of torch's own would end the process."""
    assert largest(torch._efficientzerotensor((2, 3))) == 0.0
    x = torch.tensor([[1.0, 0.0, 2.0]])
    answer = sonde.why_nan(Force(), x, lambda force: force.square().sum())
    assert not answer.ok
    assert "pow" in answer.to_text()
    assert sonde.compare(Force(), Force(), x).ok
    assert sonde.capture(Force(), x).nodes


def test_a_hook_of_a_layer_is_said_to_be_its_own() -> None:
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2))
    model[1].register_forward_hook(lambda module, args, output: output / output.amax(-1, keepdim=True))
    found = sonde.why_nan(model, torch.zeros(2, 3), lambda output: output.sum())
    assert (found.layer, found.phase, found.cause and found.cause.name) == ("1", "forward", "0 / 0")
    assert "1 (hook of ReLU)" in found.to_text()
    plain = sonde.why_nan(Calls(lambda h: h * 0 / (h * 0)), X, lambda output: output.sum())
    assert plain.layer == ""
    assert "hook of" not in plain.to_text()


@pytest.mark.parametrize("is_broken", [True, False])
def test_a_state_that_no_step_makes_is_said_to_be_broken(is_broken: bool) -> None:
    """A difference of averages that is below 0 by rounding alone is none."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, centered=True)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    held = optimizer.state[model.bias]
    held["square_avg"].fill_(4.0)
    held["grad_avg"].fill_(3.0 if is_broken else 2.0 + 1e-6)
    found = sonde.why_nan(model, torch.ones(2, 3), lambda output: (output * 0).sum(), optimizer=optimizer)
    if is_broken:
        assert (found.phase, found.origin and found.origin.parameter) == ("step", "bias")
    assert found.cause is None or ("state is broken" in found.cause.advice) == is_broken


@pytest.mark.parametrize("is_mask", [True, False])
def test_infinities_from_outside_of_torch_are_no_mask_where_they_are_multiplied(is_mask: bool) -> None:
    def read(h: Tensor) -> Tensor:
        with np.errstate(divide="ignore"):
            w = torch.from_numpy(np.log(h.detach().relu().numpy()))
        return torch.cat([h + w, torch.zeros(len(h), 1)], 1).softmax(-1) if is_mask else h * w

    model = nn.Sequential(Calls(read), nn.Linear(5 if is_mask else 4, 2))
    found = sonde.why_nan(model, X, lambda output: output.square().sum())
    if is_mask:
        assert found.origin is None
    else:
        assert (found.origin and found.origin.source, found.operation, found.layer) == ("outside", "w", "0")


@pytest.mark.parametrize(("dtype", "is_lost"), [(torch.float16, True), (torch.float32, False)])
def test_an_eps_that_the_format_does_not_have_is_named(dtype: torch.dtype, is_lost: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Softmax(-1))
    model[0].weight.data.zero_()
    model[0].bias.data = torch.tensor([200.0, 0.0, 0.0, 0.0])
    found = sonde.why_nan(model.to(dtype), torch.ones(2, 3, dtype=dtype), lambda p: (p + 1e-8).log().sum())
    assert (found.origin is not None) == is_lost
    if is_lost:
        assert (found.origin.source, found.cause.name) == ("operation", "log of zero")
        assert "1e-08 in p + 1e-08 is 0 in float16" in found.cause.sentence


# Operation and derivative


def ratio(h: Tensor) -> Tensor:
    """Return ``sin(x) / x``, where some of the x are 0."""
    kept = h * (h > 0)
    return torch.sin(kept) / kept


def at_write(h: Tensor) -> Tensor:
    made = ratio(h)
    made[h <= 0] = 1.0
    return made


@pytest.mark.parametrize(
    ("function", "by"),
    [
        (lambda h: torch.where(h <= 0, 1.0, ratio(h)), "where"),
        (lambda h: ratio(h).masked_fill(h <= 0, 1.0), "masked_fill"),
        (lambda h: ratio(h)[h > 0], "index"),
        (at_write, "index_put"),
        (lambda h: checkpoint(lambda x: torch.where(x <= 0, 1.0, ratio(x)), h, use_reentrant=False), "where"),
    ],
    ids=["where", "masked_fill", "index", "written", "checkpoint"],
)
def test_what_a_derivative_computes_of_the_numbers_of_the_forward_is_not_laid_to_the_gradient(function: Any, by: str) -> None:
    """The derivative of a quotient divides both numbers again: 0 / 0 is NaN whatever gradient arrives."""
    found = sonde.why_nan(Calls(function), X, lambda output: output.sum())
    assert (found.phase, found.operation, found.kind) == ("backward", "truediv", "NaN")
    assert found.cause is not None
    assert found.cause.name == "0 / 0 behind where"
    _, _, behind = found.cause.sentence.partition("in the derivative of div: 0 / 0, whatever gradient arrives; ")
    assert behind.startswith((f"{by} (", "masked_fill (" if by == "index_put" else f"{by} ("))  # as torch 2.15 writes by a mask
    assert "f(torch.where(ok, x, 1.0))" in found.cause.advice
    assert found.others == found.harmless == []
    safe = sonde.why_nan(Calls(lambda h: torch.where(h <= 0, 1.0, ratio(h.clamp(min=0.1)))), X, lambda output: output.sum())
    assert safe.ok


def test_a_choice_that_leaves_a_nan_out_of_the_forward_alone_is_named() -> None:
    found = sonde.why_nan(Calls(lambda h: torch.where(h > 0, h.sqrt(), 0.0)), X, lambda output: output.sum())
    assert (found.phase, found.operation, found.reached) == ("forward", "sqrt", ["2 of 2 gradients"])
    assert found.cause is not None
    assert "; where (test_why_nan.py:" in found.cause.sentence
    assert found.cause.advice.startswith("torch.where does not protect")
    both = sonde.why_nan(Calls(lambda h: (torch.where(h > 0, (r := h.sqrt()), 0.0), r)), X, lambda output: output[1].sum())
    assert both.cause is not None
    assert "where" not in both.cause.sentence


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda h: h.relu().pow(0.5).relu() + h, "inf by the derivative of pow ("),
        (lambda h: torch.linalg.vector_norm(h * 0, dim=-1) + h.sum(-1), "NaN by the derivative of vector_norm ("),
    ],
    ids=["pow", "norm"],
)
def test_a_derivative_that_has_done_no_harm_is_said_to_be_one(function: Any, words: str) -> None:
    """The forward of all of these is finite."""
    found = sonde.why_nan(Calls(function), X, lambda output: output.sum())
    assert found.ok
    assert words in found.to_text()


def test_a_derivative_of_an_operation_that_writes_in_place_has_its_name_and_line() -> None:
    """Autograd keeps a copy of what is written over, and a write into a view has a node of its own."""

    def function(h: Tensor) -> Tensor:
        made = h.relu() * 1
        made[:2].sqrt_()
        return made

    text = sonde.why_nan(Calls(function), X, lambda output: output.sum()).to_text()
    assert "inf by the derivative of sqrt_ (test_why_nan.py:" in text

    def divided(h: Tensor) -> Tensor:
        made = h.relu().clone()
        made.div_(made.sum(-1, keepdim=True) * 0)
        return made

    found = sonde.why_nan(Calls(divided), X, lambda output: output.sum())
    assert (found.operation, found.harmless) == ("div_", [])
    assert {origin.name for origin in found.later} <= {"div_", "mul", "linear"}


def gaussian(output: Tensor) -> Tensor:
    spread = output[:, 1].relu() * 0
    return ((output[:, 0] - 2) ** 2 / spread + spread.log()).mean()


def test_what_has_reached_the_loss_is_not_called_harmless_with_its_derivative() -> None:
    """The derivative of the logarithm meets a relu, which lets nothing through; that of the quotient reaches all gradients."""
    found = sonde.why_nan(network(), X, gaussian)
    assert (found.operation, found.harmless) == ("truediv", [])
    assert [(origin.name, origin.derivative) for origin in found.others] == [("log", "")]
    assert "also" in found.to_text()
    assert found.reached == ["the loss", "4 of 4 gradients"]


# What the gradients became


def number_of_bad(model: nn.Module, loss: Any) -> int:
    loss(model(X)).backward()
    return sum(not bool(held.grad.isfinite().all()) for held in model.parameters() if held.grad is not None)


ONES = torch.ones(5, 3)


@pytest.mark.parametrize(
    "loss",
    [
        lambda output: (1 - (output * 0 + 1)).log().mean(),
        lambda output: (output.square() * 0).sum() / (ONES * 0).sum(),
        lambda output: functional.cross_entropy(output, LABELS * 0, weight=torch.tensor([0.0, 1, 1])),
        lambda output: -torch.logdet((output * 0)[:3]),
        lambda output: (ONES * ((ONES - 1) / output.softmax(-1)).log()).sum(),
        lambda output: (output.relu() * math.inf).clamp(max=5.0).sum(),
        lambda output: output[:0].mean(),
    ],
    ids=["log", "quotient", "weights", "logdet", "kl", "written", "nothing"],
)
def test_the_gradients_that_are_bad_are_counted_as_plain_torch_does(loss: Any) -> None:
    """A derivative that makes bad values of the numbers of the forward is a part of the operation that made a bad loss."""
    found, bad = sonde.why_nan(network(), X, loss), number_of_bad(network(), loss)
    words = [word for word in found.reached if "gradients" in word]
    assert words == ([f"{bad} of 4 gradients"] if bad else [])
    assert f"{bad or 'none'} of 4 gradients" in found.to_text()


def test_gradients_that_something_else_has_broken_are_counted_apart() -> None:
    model = network()
    model[0].weight.register_hook(lambda gradient: gradient / (gradient - gradient))
    found = sonde.why_nan(model, X, lambda output: output.sum() + output[:0].mean())
    assert (found.operation, found.reached) == ("mean", ["the loss", "1 of 4 gradients (by another origin)"])
    assert [origin.name for origin in found.others] == ["truediv"]


def test_gradients_that_are_not_there_were_not_looked_at() -> None:
    words = "; the gradients were not looked at, since there are none"
    assert f"the output{words}" in sonde.why_nan(Calls(lambda h: h.relu().log()), X).to_text()
    detached = sonde.why_nan(Calls(lambda h: h.relu().log().detach()), X, lambda output: output.sum())
    assert f"the output, the loss{words}" in detached.to_text()
    assert words not in sonde.why_nan(Calls(lambda h: h.relu().log()), X, lambda output: output.sum()).to_text()


# More than one origin


class Two(nn.Module):
    """The logarithm of a branch, and another branch."""

    def __init__(self, choose: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.choose = nn.Linear(4, 4), nn.Linear(4, 4), choose

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.choose(self.a(a).relu().log(), self.b(b))


def test_an_origin_in_another_branch_is_named_after_the_first() -> None:
    bad = X.clone()
    bad[4, 1] = math.nan
    found = sonde.why_nan(Two(torch.add), (X, bad), lambda output: output.sum())
    assert (found.origin and found.origin.source, [origin.name for origin in found.others]) == ("input", ["log"])
    assert "also      inf by log in (root) (test_why_nan.py:" in found.to_text()
    chosen = sonde.why_nan(Two(lambda one, other: torch.where(one > -9, one, other)), (X, bad), lambda output: output.sum())
    assert chosen.others == []  # the infinities of the logarithm are left out
    one = sonde.why_nan(Two(torch.add), (X, X), lambda output: output.sum())
    assert (one.operation, one.others) == ("log", [])


# Rows in which a mask has left nothing


def first_row(h: Tensor, value: float = -math.inf) -> Tensor:
    return h.masked_fill(torch.arange(5)[:, None] == 0, value)


@pytest.mark.parametrize(
    ("function", "called"),
    [
        (lambda h: first_row(h).logsumexp(-1), "logsumexp"),
        (lambda h: first_row(h).amax(-1), "amax"),
        (lambda h: first_row(h).max(-1).values, "max"),
        (lambda h: first_row(h, math.inf).min(-1).values, "min"),
        (lambda h: (first_row(h) - first_row(h).amax(-1, keepdim=True)).softmax(-1), "amax"),
        (lambda h: (h + first_row(torch.zeros(5, 4))).logsumexp(-1), "logsumexp"),
    ],
    ids=["logsumexp", "amax", "max", "min", "softmax", "added"],
)
def test_a_row_in_which_a_mask_has_left_nothing_is_to_blame_and_not_the_mask(function: Any, called: str) -> None:
    found = sonde.why_nan(Calls(function), X, lambda output: output.mean())
    assert (found.operation, found.kind) == (called, "inf")
    assert found.cause is not None
    assert found.cause.name.startswith(f"{called} of a row of ")
    assert "a row of 4 elements is all " in found.cause.sentence
    assert {origin.name for origin in found.intended} == {"masked_fill"}


@pytest.mark.parametrize("number", [-math.inf, math.inf])
def test_a_row_with_nothing_left_of_which_the_loss_takes_nothing_is_no_fault(number: float) -> None:
    """As a state that cannot be reached, in a recursion over states."""

    def function(h: Tensor) -> Tensor:
        masked = first_row(h, number)
        return masked.logsumexp(-1) if number < 0 else masked.amin(-1)

    for loss in (None, lambda output: output[1:].mean()):
        found = sonde.why_nan(Calls(function), X, loss)
        assert found.ok
        assert found.harmless == []
        assert [origin.name for origin in found.intended] == ["masked_fill"]


def test_a_row_with_nothing_left_is_no_origin_of_what_another_operation_breaks() -> None:
    def function(h: Tensor) -> tuple[Tensor, Tensor]:
        return first_row(h).logsumexp(-1), h.relu().log()

    found = sonde.why_nan(Calls(function), X, lambda output: output[0][1:].mean() + output[1].mean())
    assert (found.operation, found.others) == ("log", [])


def test_an_infinity_of_the_code_meets_zeros_of_no_mask() -> None:
    found = sonde.why_nan(Calls(lambda h: (h.relu() * math.inf).clamp(max=5.0)), X, lambda output: output.sum())
    assert found.cause is not None
    assert found.cause.name == "0 x inf"
    assert found.cause.advice == "write a finite number in place of inf, or clamp what it meets"


# Hooks on tensors


class Hooked(nn.Module):
    """Registers a hook on the gradient of its input, which another layer has made."""

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient / (gradient - gradient))
        return x * 2


def spoils(gradient: Tensor) -> Tensor:
    return gradient / (gradient - gradient)


def test_a_hook_on_a_gradient_is_of_the_module_in_whose_forward_it_is_written() -> None:
    found = sonde.why_nan(nn.Sequential(nn.Linear(4, 4), Hooked()), X, lambda output: output.sum())
    assert (found.layer, found.phase, found.operation) == ("1", "backward", "truediv")
    assert "1 (hook in Hooked)" in found.to_text()
    twice = sonde.why_nan(nn.Sequential(nn.Linear(4, 4), Hooked(), nn.Linear(4, 4), Hooked()), X, lambda output: output.sum())
    assert twice.layer is None  # which of both is not known
    assert "by truediv in a hook in Hooked, backward" in twice.to_text()

    def loss(output: Tensor) -> Tensor:
        output.register_hook(spoils)
        return output.sum()

    outside = sonde.why_nan(nn.Sequential(nn.Linear(4, 4)), X, loss)
    assert "0 (hook on a tensor of Linear)" in outside.to_text()


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (lambda h: torch.log1p(-h.abs() - 1), "keep what goes in above -1: clamp it before the log"),
        (lambda h: (-h.abs() - 1).rsqrt(), "clamp what goes in above 0: add an eps, or look at what makes it negative"),
        (lambda h: (-h.abs() - 1).sqrt(), "clamp what goes in at 0, or look at what makes it negative"),
        (lambda h: torch.atanh(h.abs() + 1.5), "clamp what goes in inside of its borders, or look at what makes it"),
        (lambda h: torch.acos(h.abs() + 1.5), "clamp what goes in, or look at what makes it"),
        (lambda h: torch.digamma(h * 0), "keep what goes in above 0"),
    ],
)
def test_an_advice_is_one_of_the_function_at_its_border(function: Callable[[Tensor], Tensor], advice: str) -> None:
    torch.manual_seed(0)
    text = str(sonde.why_nan(nn.Linear(4, 4), torch.randn(3, 4), lambda out: function(out).mean()))
    assert f"{advice}\n" in text


def test_a_buffer_of_infinities_is_to_blame_though_nothing_bad_comes_to_the_loss() -> None:

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("angles", torch.full((4,), math.inf))
            self.register_buffer("turns", torch.zeros(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            self.turns = (torch.arange(3.0)[:, None] * self.angles).cos()
            return self.layer(x)  # type: ignore[no-any-return]

    text = str(sonde.why_nan(Turned(), torch.randn(3, 4)))
    assert "the buffer angles holds all inf" in text
    assert "on purpose" not in text
