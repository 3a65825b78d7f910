"""The abstract classes, what a user's own preprocessor gets, and the seed's names and signatures."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde import preprocessor
from sonde.errors import ArgumentError
from sonde.preprocessor import (
    AbstractBackwardPreprocessor,
    AbstractForwardPreprocessor,
    AbstractModulePreprocessor,
    AbstractPreprocessor,
    AbstractTensorPreprocessor,
    OutputNorm,
)
from sonde.preprocessor.base import ParameterName


class Keeping(AbstractPreprocessor):
    """Keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    @property
    def value(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def reset(self) -> None:
        self.calls = []


class Forward(Keeping, AbstractForwardPreprocessor):
    def process_fw(self, name: str, module: Any, layer_input: Any, layer_output: Any) -> None:
        self.calls.append((name, module, layer_input, layer_output))


class Backward(Keeping, AbstractBackwardPreprocessor):
    def process_bw(self, name: str, module: Any, grad_input: Any, grad_output: Any) -> None:
        self.calls.append((name, module, grad_input, grad_output))


class OfModule(Keeping, AbstractModulePreprocessor):
    def process_module(self, name: str, module: Any) -> None:
        self.calls.append((name, module))


class OfTensor(Keeping, AbstractTensorPreprocessor):
    def process_tensor(self, name: str, tensor: Tensor) -> None:
        self.calls.append((name, tensor))


def test_a_forward_preprocessor_of_ones_own(event: Callable[..., sonde.types.Event]) -> None:
    seen, relu, x, y = Forward(), nn.ReLU(), torch.ones(1), torch.ones(2)
    seen(event("output", y, name="a", module=relu, args=(x, 1)))
    seen(event("output", y, name="b", module=relu, kwargs={"x": x}))
    seen(event("output", y, name="c", module=relu))
    seen(event("output", y, name="a", module=relu, args=(x,), phase="recompute"))
    assert seen.calls == [("a", relu, x, y), ("b", relu, x, y), ("c", relu, None, y)]


def test_a_backward_preprocessor_of_ones_own(event: Callable[..., sonde.types.Event]) -> None:
    seen, relu, g = Backward(), nn.ReLU(), (torch.ones(1), None)
    seen(event("grad_output", g, name="a", module=relu))
    seen(event("grad_input", g, name="a", module=relu))
    assert seen.calls == [("a", relu, (), g), ("a", relu, g, ())]


def test_a_module_preprocessor_of_ones_own_looks_at_each_layer_once_a_step(event: Callable[..., sonde.types.Event]) -> None:
    seen, linear = OfModule(), nn.Linear(1, 1)
    for step in (0, 1):
        for name in ("a.weight", "a.bias", "b.weight"):
            seen(event("param", torch.ones(1), name=name, module=linear, step=step))
    assert seen.calls == [("a", linear), ("b", linear)] * 2
    with pytest.raises(ArgumentError, match="looks at the layer itself"):
        seen(event("param", torch.ones(1), name="a.weight"))


def test_observe_gives_a_module_preprocessor_every_layer_once_per_step() -> None:
    """A layer that owns parameters at the optimizer's step, any other as it runs; also where its parameters are its parts'."""
    seen = OfModule()
    parts = {"fc": nn.Linear(2, 2), "drop": nn.Dropout(), "norm": nn.BatchNorm1d(2, affine=False)}
    model = nn.Sequential(OrderedDict(parts | {"made": torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2, bias=False))}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with sonde.observe(model, seen, include=[*parts, "made", "fc.weight", "fc.bias"], strict=True):
        for _ in range(2):
            for _ in range(2):
                model(torch.randn(4, 2)).sum().backward()
            optimizer.step()
    assert seen.calls == [(name, model.get_submodule(name)) for name in ("drop", "norm", "made", "fc")] * 2


def test_a_tensor_preprocessor_of_ones_own(event: Callable[..., sonde.types.Event]) -> None:
    seen, tensor = OfTensor(), torch.ones(1)
    seen(event("grad", tensor, name="a.weight"))
    seen(event("param", tensor, name="a.weight"))
    assert seen.calls == [("a.weight", tensor)] * 2


def test_one_of_ones_own_is_fed_by_observe() -> None:
    seen = Forward()
    model = nn.Linear(2, 2)
    with sonde.observe(model, seen, strict=True):
        model(torch.ones(1, 2))
    assert [(name, tuple(output.shape)) for name, _, _, output in seen.calls] == [("", (1, 2))]


@pytest.mark.parametrize(("make", "port"), [(Forward, "input"), (Backward, "output"), (OfModule, "grad"), (OfTensor, "output")])
def test_events_of_another_port_are_refused(make: Any, port: Any, event: Callable[..., sonde.types.Event]) -> None:
    seen = make()
    with pytest.raises(
        ArgumentError, match=f"{make.__name__} takes events of {' and '.join(seen.ports)}, and this is of layer:{port}"
    ):
        seen(event(port, torch.ones(1)))
    assert not seen.calls


def test_what_is_pushed_takes_no_events(event: Callable[..., sonde.types.Event]) -> None:
    with pytest.raises(ArgumentError, match="takes events of no port"):
        preprocessor.ExplicitCall("train", "test")(event("output", torch.ones(1)))


@pytest.mark.parametrize(
    "kind",
    [
        AbstractPreprocessor,
        AbstractForwardPreprocessor,
        AbstractBackwardPreprocessor,
        AbstractModulePreprocessor,
        AbstractTensorPreprocessor,
    ],
)
def test_the_abstract_classes_are_abstract(kind: type) -> None:
    with pytest.raises(TypeError, match="abstract"):
        kind()
    assert issubclass(kind, AbstractPreprocessor)


def test_names_of_parameters() -> None:
    assert ParameterName.parse("layers.0.weight") == ("layers.0", "weight")
    assert ParameterName.parse("weight") == ("", "weight")
    assert ParameterName.parse("weight", "G") == ("G/", "weight")
    assert ParameterName.parse("up.parametrizations.weight.original1") == ("up", "weight.original1")
    assert ParameterName.parse("parametrizations.weight.original") == ("", "weight.original")


SIGNATURES = {
    "ExplicitCall": "train_loss_str, non_train_loss_str",
    "GradientActivation": "death, inplace, eps",
    "GradientGeometry": "correlation, normalize, inplace, eps",
    "LossModule": "inplace, evaluation_from_grad",
    "OutputActivation": "death, inplace, record_eval, evaluation_from_grad, eps, channel_last",
    "OutputGradientGeometry": "correlation, normalize, inplace, eps",
    "OutputNorm": "normalize, inplace, record_eval, evaluation_from_grad, channel_last",
    "ParameterDifferenceGeometry": "correlation, normalize, inplace, eps",
    "ParameterNorm": "attrs, normalize, inplace",
}
KINDS = {
    "ExplicitCall": AbstractPreprocessor,
    "GradientActivation": AbstractTensorPreprocessor,
    "GradientGeometry": AbstractTensorPreprocessor,
    "LossModule": AbstractForwardPreprocessor,
    "OutputActivation": AbstractForwardPreprocessor,
    "OutputGradientGeometry": AbstractBackwardPreprocessor,
    "OutputNorm": AbstractForwardPreprocessor,
    "ParameterDifferenceGeometry": AbstractTensorPreprocessor,
    "ParameterNorm": AbstractModulePreprocessor,
}
DEFAULTS: dict[str, Any] = {"eps": 1e-8, "channel_last": False}
BY_LAYER = {"OutputActivation": {"channel_last": None}}  # the seed's False looks at tokens where features were meant


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_constructors_of_the_seed(name: str) -> None:
    """The seed's arguments come first, in its order, with its defaults; what is added is keyword-only."""
    parameters = list(inspect.signature(getattr(preprocessor, name)).parameters.values())
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert ", ".join(p.name for p in positional) == SIGNATURES[name]
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters[len(positional) :])
    defaults = DEFAULTS | BY_LAYER.get(name, {})
    assert all(p.default == defaults[p.name] for p in positional if p.name in defaults)
    assert issubclass(getattr(preprocessor, name), KINDS[name])


def test_the_methods_of_the_seed() -> None:
    """With the seed's names of arguments."""
    methods = {
        "OutputNorm.process_fw": "name, module, layer_input, layer_output",
        "OutputActivation.process_fw": "name, module, layer_input, layer_output",
        "LossModule.process_fw": "name, module, layer_input, layer_output",
        "LossModule.set_loss_strs": "train_loss_str, non_train_loss_str",
        "OutputGradientGeometry.process_bw": "name, module, grad_input, grad_output",
        "GradientGeometry.process_tensor": "name, grad",
        "GradientActivation.process_tensor": "name, grad",
        "ParameterDifferenceGeometry.process_tensor": "name, param",
        "ParameterNorm.process_module": "name, module",
        "ExplicitCall.push_loss": "value, train, running",
        "ExplicitCall.push_memory": "name, value",
        "ExplicitCall.push_running": "name, value",
    }
    for path, expected in methods.items():
        kind, method = path.split(".")
        found = list(inspect.signature(getattr(getattr(preprocessor, kind), method)).parameters)[1:]
        assert ", ".join(name for name in found if name != "owner") == expected, path


def test_every_public_name_is_there_and_documented() -> None:
    for name in preprocessor.__all__:
        assert inspect.getdoc(getattr(preprocessor, name)), name
    assert isinstance(OutputNorm().value, dict)
