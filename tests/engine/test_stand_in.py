"""A copy of a model does not lead back to the model: not by defaults, weak references, caches or attributes of parameters."""

from __future__ import annotations

import functools
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.engine.restore import set_apart
from sonde.engine.stand_in import StandIn

X = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)


class Counting(nn.Module):
    """Counts its calls in an attribute and in a buffer. *made* is called with the model, and returns the forward."""

    seen: Tensor

    def __init__(self, made: Callable[[Counting], Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0
        self.register_buffer("seen", torch.zeros(1))
        self.run = made(self)

    def body(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        result: Tensor = self.linear(x)
        return result

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


def default(model: Counting) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor, model: Counting = model) -> Tensor:
        return model.body(x)

    return run


def keyword_default(model: Counting) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor, *, body: Any = model.body) -> Any:
        return body(x)

    return run


def attribute_of_a_function(model: Counting) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Any:
        return vars(run)["model"].body(x)

    vars(run)["model"] = model
    return run


def weak_reference(model: Counting) -> Callable[[Tensor], Tensor]:
    return functools.partial(lambda held, x: held().body(x), weakref.ref(model))


def weak_method(model: Counting) -> Callable[[Tensor], Tensor]:
    return functools.partial(lambda held, x: held()(x), weakref.WeakMethod(model.body))


def proxy(model: Counting) -> Callable[[Tensor], Tensor]:
    return functools.partial(lambda held, x: held[0].body(x), [weakref.proxy(model)])


def weak_values(model: Counting) -> Callable[[Tensor], Tensor]:
    return functools.partial(lambda held, x: held["it"].body(x), weakref.WeakValueDictionary({"it": model}))


def weak_keys(model: Counting) -> Callable[[Tensor], Tensor]:
    held = weakref.WeakKeyDictionary({model.linear: [0]})

    def run(x: Tensor) -> Tensor:
        held[model.linear][0] += 1
        return model.body(x)

    vars(run)["held"] = held
    return run


def weak_set(model: Counting) -> Callable[[Tensor], Tensor]:
    return functools.partial(lambda held, x: next(iter(held)).body(x), weakref.WeakSet([model]))


def cached(model: Counting) -> Callable[[Tensor], Tensor]:
    return functools.lru_cache(maxsize=None)(model.body)


class Object:
    """Leads to a model by a weak reference in an attribute."""

    def __init__(self, model: Counting) -> None:
        self.model = weakref.ref(model)

    def __call__(self, x: Tensor) -> Tensor:
        model = self.model()
        assert model is not None
        return model.body(x)


def attribute_of_a_parameter(model: Counting) -> Callable[[Tensor], Tensor]:
    vars(model.linear.weight)["owner"] = model
    vars(model.linear.weight)["log"] = []
    linear = model.linear

    def run(x: Tensor) -> Any:
        vars(linear.weight)["log"].append(1)
        return vars(linear.weight)["owner"].body(x)

    return run


@pytest.mark.parametrize(
    "made",
    [
        default,
        keyword_default,
        attribute_of_a_function,
        weak_reference,
        weak_method,
        proxy,
        weak_values,
        weak_keys,
        weak_set,
        cached,
        Object,
        attribute_of_a_parameter,
    ],
)
def test_a_copy_calls_the_copy(made: Callable[[Counting], Callable[[Tensor], Tensor]]) -> None:
    model = Counting(made)
    with set_apart(model, (X,)) as apart:
        expected = nn.functional.linear(X, model.linear.weight, model.linear.bias)
        assert torch.equal(apart.model(*apart.args), expected)
        assert isinstance(apart.model, Counting)
        assert (apart.model.calls, apart.model.seen.item()) == (1, 1)
    assert (model.calls, model.seen.item()) == (0, 0)
    assert vars(model.linear.weight).get("log", []) == []
    assert [held for value in vars(model.run).get("held", {}).values() for held in value] in ([], [0])
    if made is cached:
        assert getattr(model.run, "cache_info")().currsize == 0  # noqa: B009  # mypy does not know it of a Callable


def test_weak_references_to_other_objects_stay() -> None:
    class Other:
        pass

    other, gone = Other(), Other()
    linear = nn.Linear(2, 2)
    linear.__dict__["refs"] = [weakref.ref(other), weakref.ref(gone)]
    del gone
    gc.collect()
    with set_apart(linear) as apart:
        refs: Any = vars(apart.model)["refs"]
        assert (refs[0](), refs[1]()) == (other, None)


def test_a_copy_of_a_nested_tensor_goes_forward_and_backward() -> None:
    """A deep copy of its offsets would be those of another nested tensor, which torch refuses to mix with the first."""
    given = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
    model = nn.Linear(4, 3)
    stand_in = StandIn(model)
    copied, made = stand_in.copied(model), stand_in.copied(given)
    copied(made).values().sum().backward()
    assert torch.equal(copied.weight.grad, torch.full((3, 4), 5.0))
    assert made.values().data_ptr() != given.values().data_ptr()


class OfTuple(nn.Module):
    """Describes its state as a tuple, as the quantized layers of torch do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.full((1,), 3.0)

    def __getstate__(self) -> Any:
        return self.scale, self.training

    def __setstate__(self, state: Any) -> None:
        self.scale, self.training = state[0], state[1]

    def forward(self, x: Tensor) -> Tensor:
        self.scale += 1
        return x * self.scale


def test_a_module_whose_state_is_a_tuple_is_copied_with_all_that_it_holds() -> None:
    model = nn.Sequential(nn.Linear(4, 4), OfTuple())
    made = StandIn(model).copied(model)
    scaled = made(X)
    assert model[1].scale.item() == 3.0
    assert torch.equal(scaled, model(X))


def test_a_parametrized_module_which_refuses_to_be_pickled_is_copied() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    made = StandIn(model).copied(model)
    assert torch.equal(made(X), model(X))


def test_the_parameters_of_a_copied_part_of_torchscript_are_its_own_leaves() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))))
    dict(model.named_parameters())["1.0.bias"].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with set_apart(model, (optimizer,)) as apart:
        assert [parameter.is_leaf for parameter in apart.model.parameters()] == [True] * 6
        assert [parameter.requires_grad for parameter in apart.model.parameters()] == [
            parameter.requires_grad for parameter in model.parameters()
        ]
        apart.model(X).sum().backward()
        apart.args[0].step()
        moved = [not torch.equal(now, then) for now, then in zip(apart.model.parameters(), before, strict=True)]
        assert moved == [True, True, True, False, True, True]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))


QUESTIONS: dict[str, Callable[[nn.Module], Any]] = {
    "summary": lambda model: sonde.summary(model, X, loss_fn=torch.sum),
    "preflight": lambda model: sonde.preflight(model, X, torch.sum, verbose=False),
    "why_nan": lambda model: sonde.why_nan(model, X, torch.sum),
    "doctor": lambda model: sonde.doctor(model, X, torch.sum, verbose=False),
    "compare": lambda model: sonde.compare(model, model, X, verbose=False),
    "capture": lambda model: sonde.capture(model, X),
}


@pytest.mark.parametrize(
    "question", [name if name in ("summary", "capture") else pytest.param(name, marks=pytest.mark.slow) for name in QUESTIONS]
)
def test_of_a_model_with_a_part_of_torchscript_torch_warns_of_nothing(question: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.ReLU())))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        QUESTIONS[question](model)
    assert [each.message for each in caught if not issubclass(each.category, sonde.errors.ObservationWarning)] == []
