"""``capture``: every kind of model, levels of cost, nothing changed, and clear errors."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from tests.torch_words import words_of
from torch import Tensor, nn

import sonde
from sonde.errors import ArgumentError, ModelError, SelectionError, UnknownSiteError
from sonde.graph import Graph, capture
from sonde.testing import ZOO
from sonde.testing.zoo import Entry, Net

x = torch.arange(6.0).reshape(2, 3)
TENSORLESS = {"root_returns_int", "root_returns_generator"}
UNUSED = {"returns_none": ["child.lin:output"], "ignores_input": ["a:output"]}  # models that throw something away


@pytest.mark.parametrize("entry", [held for held in ZOO.values() if held.name not in TENSORLESS], ids=str)
def test_every_model_of_the_zoo(entry: Entry) -> None:
    """The graph is whole at every depth and level of cost, the same in two runs, and leaves out no module call."""
    (args, kwargs), model = entry.batch(), entry.build()
    graph = capture(model, *args, **kwargs)
    graph.check()
    assert [node.site for node in graph.unused()] == UNUSED.get(entry.name, [])
    for depth in range(graph.depth + 1):
        graph.collapse(depth).check()
    for other in (graph.hide(views=True), graph.hide(operations=True), graph.hide(constants=True, parameters=True), graph.fold()):
        other.check()
    capture(entry.build(), *args, operations=False, **kwargs).check()
    (again, again_kwargs) = entry.batch()
    second = capture(entry.build(), *again, **again_kwargs)
    assert second == graph
    assert second.to_dot() == graph.to_dot()


@pytest.mark.parametrize("entry", [held for held in ZOO.values() if held.name not in {*TENSORLESS, "lazy"}], ids=str)
def test_nodes_have_the_names_that_observe_gives(entry: Entry) -> None:
    """Site and call of each module call are those that an observer of inputs is told."""
    (args, kwargs), model = entry.batch(), entry.build()
    graph = capture(model, *args, **kwargs)
    calls: list[tuple[str, int]] = []
    with sonde.observe(
        model, lambda event: calls.append((str(event.site.port_of("output")), event.call)), ports="input", strict=True
    ):
        model(*args, **kwargs)
    assert [(node.site, node.call) for node in graph.modules()] == calls


class Everything(nn.Module):
    """State of every kind: a buffer that counts, dropout, a gradient, an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm, self.drop = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout()
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.drop(self.norm(self.lin(x)))


def test_nothing_is_changed() -> None:
    """Parameters, buffers, attributes, flags, gradients, random state and the input are as they were."""
    model, given = Everything(), x.clone()
    model(given).sum().backward()
    before = copy.deepcopy(model.state_dict()), [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]
    state, seen = torch.get_rng_state(), model.seen
    capture(model, given)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(held, before[0][name]) for name, held in model.state_dict().items())
    assert all(torch.equal(parameter.grad, held) for parameter, held in zip(model.parameters(), before[1], strict=True))  # type: ignore[arg-type]
    assert (model.seen, model.training, given.requires_grad) == (seen, True, False)
    assert torch.equal(given, x)


def test_the_model_computes_what_it_computes_without_recording() -> None:
    """What the modules return under recording is bit for bit what they return without, gradients too."""
    recorder, model = sonde.graph.Recorder(), nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    expected = model(x)
    expected.sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]
    model.zero_grad()
    recorder.register_hooks(model)
    output = model(x)
    recorder.remove_hooks()
    output.sum().backward()
    assert torch.equal(output, expected)
    assert all(torch.equal(p.grad, held) for p, held in zip(model.parameters(), gradients, strict=True))  # type: ignore[arg-type]


def test_a_graph_holds_nothing_of_the_model() -> None:
    """Model and tensors go when the caller lets go of them."""
    model, given = nn.Linear(3, 3), x.clone()
    graph = capture(model, given)
    gone = weakref.ref(model), weakref.ref(given)
    del model, given
    gc.collect()
    assert graph
    assert [reference() for reference in gone] == [None, None]


@dataclass
class Pair:
    """Two tensors."""

    first: Tensor
    second: Tensor


def test_inputs_and_outputs_are_named_by_argument_and_leaf() -> None:
    """Positional, keyword, dict and dataclass arguments; tuple, dict and dataclass results."""

    class Structured(nn.Module):
        def forward(self, tokens: Tensor, pair: Pair, *, mask: Tensor, more: dict[str, Tensor]) -> Any:
            total = pair.first + pair.second + more["a"]
            return {"total": total * mask, "both": Pair(tokens + 1, total)}

    graph = capture(
        Structured(), torch.tensor([1, 2]), Pair(x[0, :2], x[1, :2]), mask=torch.tensor([True, False]), more={"a": x[0, 1:]}
    )
    graph.check()
    assert [(node.name, node.site) for node in graph.nodes if node.kind == "input"] == [
        ("tokens", "(root):input[0]"),
        ("pair.first", "(root):input[1].first"),
        ("pair.second", "(root):input[1].second"),
        ("mask", "(root):input['mask']"),
        ("more['a']", "(root):input['more']['a']"),
    ]
    assert [node.site for node in graph.nodes if node.kind == "output"] == [
        "(root):output['total']",
        "(root):output['both'].first",
        "(root):output['both'].second",
    ]
    assert {value.dtype for value in graph.values} == {"int64", "float32", "bool"}


def test_recurrent_and_attention_modules() -> None:
    """Each is one operation at the level at which it is called, between its parameters and its outputs."""
    graph = capture(nn.LSTM(3, 4), torch.ones(5, 2, 3))
    graph.check()
    (lstm,) = (node for node in graph.nodes if node.name == "lstm")
    assert [graph.values[value].shape for value in lstm.outputs] == [(5, 2, 4), (1, 2, 4), (1, 2, 4)]
    assert sum(node.kind == "parameter" for node in graph.nodes) == 4
    attention = capture(
        nn.MultiheadAttention(4, 2, batch_first=True), torch.ones(2, 5, 4), torch.ones(2, 5, 4), torch.ones(2, 5, 4)
    )
    attention.check()
    assert "multi_head_attention_forward" in [node.name for node in attention.nodes]
    assert not attention.unused()


def test_one_tensor_in_two_places_is_one_input() -> None:
    """The names of both places are on it."""
    graph = capture(nn.MultiheadAttention(4, 2), *[torch.ones(5, 2, 4)] * 3)
    assert [node.name for node in graph.nodes if node.kind == "input"] == ["query, key, value"]


# Levels of cost


def residual() -> nn.Module:
    block = Net(lambda net, x: x + net.b(net.a(x).tanh()), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    return nn.Sequential(block, nn.Flatten())


def test_without_operations_modules_are_joined_directly() -> None:
    """The addition is bridged: `1` reads the input and `0.b`; every module is there."""
    graph = capture(residual(), x, operations=False)
    graph.check()
    name = {node.id: node.path or node.name for node in graph.nodes}
    assert not [node for node in graph.nodes if node.kind == "operation"]
    assert [(name[e.source], name[e.target]) for e in graph.hide(parameters=True).edges] == [
        ("input", "0.a"),
        ("0.a", "0.b"),
        ("input", "1"),
        ("0.b", "1"),
        ("1", "output"),
    ]


def test_operations_inside_chosen_modules_only() -> None:
    """Only the block's own operations are nodes, and those of what is in it."""
    graph = capture(residual(), x, operations=["0"])
    graph.check()
    assert [(node.name, node.path) for node in graph.nodes if node.kind == "operation"] == [
        ("linear", "0.a"),
        ("tanh", "0"),
        ("linear", "0.b"),
        ("add", "0"),
    ]


def test_without_computing_the_graph_is_the_same() -> None:
    """Shapes, edges and sites need no numbers; and a model on the meta device needs none."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(32, 3))
    images = torch.ones(2, 1, 6, 6)
    state = torch.get_rng_state()
    assert capture(model, images, compute=False) == capture(model, images)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.device("meta"):
        there = nn.Linear(3, 100_000)
    graph = capture(there, x, compute=False)
    assert graph.values[graph["(root)"][0].outputs[0]].shape == (2, 100_000)


# Errors


def test_a_failing_forward_is_recorded_up_to_the_failure() -> None:
    """The model's own error, with the graph as an attribute; or that graph, with the failing calls flagged."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(3, 3)))
    with pytest.raises(RuntimeError, match=words_of(lambda: model(x))) as raised:
        capture(model, x)
    assert "in 1.1:output, call 0" in raised.value.__notes__[-1]
    graph = capture(model, x, on_error="partial")
    assert graph == raised.value.graph  # type: ignore[attr-defined]
    graph.check()
    assert [(node.kind, node.path) for node in graph.nodes if "failed" in node.flags] == [
        ("module", ""),
        ("module", "1"),
        ("module", "1.1"),
        ("operation", "1.1"),
    ]
    assert graph.error == f"RuntimeError: {raised.value}"
    assert "linear" in graph.to_dot()


def test_an_exception_that_the_model_catches_is_no_failure() -> None:
    """What raised is flagged so, and the graph goes on."""

    def forward(net: Net, x: Tensor) -> Tensor:
        try:
            return net.wrong(x)
        except RuntimeError:
            return net.right(x)

    graph = capture(Net(forward, wrong=nn.Linear(9, 1), right=nn.Linear(3, 1)), x)
    graph.check()
    assert not graph.error
    assert [(node.path, node.flags) for node in graph.modules()] == [("", ()), ("wrong", ("raised",)), ("right", ())]


def test_wrong_arguments_raise_the_model_s_own_error() -> None:
    """And no hook is left, as after every test."""
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        capture(nn.Linear(3, 3))


class Root(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x)
        return result


class Direct(Root):
    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)


class Elsewhere(Root):
    def __call__(self, x: Tensor) -> Any:
        return {"all": self.inner(x)}


class Around(Root):
    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = super().__call__(x) * 2
        return result


@pytest.mark.parametrize(("root", "operations"), [(Direct, ["linear"]), (Elsewhere, ["linear"]), (Around, ["linear", "mul"])])
def test_all_that_a_root_does_whose_class_has_a_call_of_its_own(root: type[Root], operations: list[str]) -> None:
    batch, model = torch.ones(2, 3), root()
    graph = capture(model, batch)
    graph.check()
    assert [node.name for node in graph.nodes if node.kind == "operation"] == operations
    assert [(node.path, node.call) for node in graph.nodes if node.kind == "module"] == [("", 0), ("inner", 0)]
    assert len([node for node in graph.nodes if node.kind == "output"]) == 1
    assert {node.name for node in sonde.graph.record(model, "net", [(2, 3)]).nodes.values()} >= {"net", *operations}


def test_a_root_with_a_call_of_its_own_that_raises_is_recorded_up_to_there() -> None:
    class Raises(Root):
        def __call__(self, x: Tensor) -> Tensor:
            self.inner(x)
            raise KeyError("lost")

    with pytest.raises(KeyError, match="lost") as caught:
        capture(Raises(), torch.ones(2, 3))
    assert [node.name for node in caught.value.graph.nodes if node.kind == "operation"] == ["linear"]  # type: ignore[attr-defined]
    assert "failed" in caught.value.graph["(root)"][0].flags  # type: ignore[attr-defined]


@pytest.mark.parametrize(("returned", "text"), [(None, "returned None"), (7, "returned a int"), ({}, "returned a dict")])
def test_a_model_that_returns_no_tensor(returned: Any, text: str) -> None:
    """There is nothing for a graph to end in; `partial` gives it all the same."""
    model = Net(lambda net, x: returned)
    with pytest.raises(ArgumentError, match=text):
        capture(model, x)
    assert capture(model, x, on_error="partial").modules()


def test_what_is_no_model() -> None:
    """A class, a function, a TorchScript module."""
    with pytest.raises(ModelError, match="make one first"):
        capture(nn.Linear, x)  # type: ignore[arg-type]
    with pytest.warns((DeprecationWarning, FutureWarning), match="jit"):  # the second from torch 2.15 on
        scripted = torch.jit.script(nn.Linear(3, 3))
    with pytest.raises(ModelError, match="TorchScript"):
        capture(scripted, x)


def test_arguments_that_cannot_be_used() -> None:
    """Depths, sites and selections say what was asked and what there is."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    graph = capture(model, x)
    for depth in (-1, 1.5, True):
        with pytest.raises(ArgumentError, match="depth="):
            graph.to_dot(depth)  # type: ignore[arg-type]
    with pytest.raises(UnknownSiteError, match="Nearest: 0:output"):
        graph.collapse(at="0:ouput")
    with pytest.raises(SelectionError, match="nothing is selected"):
        capture(model, x, operations="nowhere")
    with pytest.raises(ArgumentError, match="on_error"):
        capture(model, x, on_error="ignore")  # type: ignore[arg-type]


def test_an_interrupt_leaves_no_hook() -> None:
    """Ctrl-C in the middle of a forward; the function mode is gone too."""

    def forward(net: Net, x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture(Net(forward, lin=nn.Linear(3, 3)), x)
    assert torch.overrides._get_current_function_mode() is None


class Inside(nn.Module):
    """Captures a part of itself in its forward."""

    graphs: ClassVar[list[Graph]] = []  # of the class: a list of the model, or of a closure in it, would be copied

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.graphs.append(capture(self.lin, x))
        out: Tensor = self.lin(x)
        return out


def test_a_model_inside_another_s_forward() -> None:
    """Capturing while a capture runs records both."""
    Inside.graphs.clear()
    outer = capture(Inside(), x)
    outer.check()
    assert [node.name for node in Inside.graphs[0].nodes if node.kind == "operation"] == ["linear"]
    assert "lin:output" in {node.site for node in outer.modules()}
