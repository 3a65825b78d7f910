"""Edges follow the data: writes in place, views, tensors that are handed on, what torch does not tell."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sonde.graph import Graph, capture
from sonde.testing.zoo import Net

x = torch.arange(6.0).reshape(2, 3)


def graph_of(forward: Callable[..., Any], *args: Any, **children: Any) -> Graph:
    """The checked graph of a function as a model's forward."""
    graph = capture(Net(forward, **children), *(args or (x,)))
    graph.check()
    return graph


def edges(graph: Graph) -> list[tuple[str, str]]:
    """The edges by names; operations of one name are numbered from the second on."""
    names: dict[int, str] = {}
    for node in graph.nodes:
        count = sum(held.split("#")[0] == node.name for held in names.values())
        names[node.id] = f"{node.name}#{count + 1}" if count else node.name
    return [(names[edge.source], names[edge.target]) for edge in graph.edges]


def test_a_write_in_place_is_a_new_value_and_no_cycle() -> None:
    """`y += x` reads y and x; who reads y after it reads the write. (The original drew a cycle.)"""

    def forward(net: Net, x: Tensor) -> Tensor:
        y = x * 2
        y += x
        return y.exp()

    assert edges(graph_of(forward)) == [
        ("args[0]", "mul"),
        ("mul", "add_"),
        ("args[0]", "add_"),
        ("add_", "exp"),
        ("exp", "output"),
    ]


def test_a_view_of_a_written_base_depends_on_the_write() -> None:
    """The view was taken before its base was written: reading it reads the write as well."""

    def forward(net: Net, x: Tensor) -> Tensor:
        base = x * 2
        view = base[0]
        base.zero_()
        return view.exp()

    assert edges(graph_of(forward)) == [
        ("args[0]", "mul"),
        ("mul", "getitem"),
        ("mul", "zero_"),
        ("getitem", "exp"),
        ("zero_", "exp"),
        ("exp", "output"),
    ]


def test_a_base_depends_on_a_write_through_its_view() -> None:
    """A write to one row leaves the other as it was: the base is read from both."""

    def forward(net: Net, x: Tensor) -> Tensor:
        base = x * 2
        base[0].fill_(1)
        return base.exp()

    found = edges(graph_of(forward))
    assert ("mul", "exp") in found
    assert ("fill_", "exp") in found


def test_a_whole_write_leaves_nothing_of_what_was_before() -> None:
    """Through a detached alias the whole memory is written: the first value is not read any more."""

    def forward(net: Net, x: Tensor) -> Tensor:
        base = x * 2
        base.detach().fill_(1)
        return base.exp()

    found = edges(graph_of(forward))
    assert ("fill_", "exp") in found
    assert ("mul", "exp") not in found


def test_a_write_elsewhere_in_the_same_memory_does_not_concern_a_view() -> None:
    """Rows that do not overlap are apart."""

    def forward(net: Net, x: Tensor) -> Tensor:
        base = x * 2
        first, second = base[0], base[1]
        second.fill_(1)
        return first.exp()

    found = edges(graph_of(forward))
    assert ("getitem", "exp") in found
    assert ("fill_", "exp") not in found


def test_assigning_into_a_tensor_and_out_arguments_are_writes() -> None:
    """`x[0] = y` and `out=` are seen, though nothing new is returned."""

    def forward(net: Net, x: Tensor) -> Tensor:
        made = torch.zeros(2, 3)
        made[0] = x[1]
        torch.add(x, 1, out=made)
        return made

    graph = graph_of(forward)
    assert edges(graph)[-1] == ("add", "output")
    flags = {node.name: node.flags for node in graph.nodes}
    assert flags["setitem"] == flags["add"] == ("inplace",)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_edges_are_the_same(context: Any) -> None:
    """Under no_grad and in inference mode (whose tensors count no writes) nothing is lost. (The original lost all of it.)"""

    def forward(net: Net, x: Tensor) -> Tensor:
        y = net.lin(x)
        y.relu_()
        return y.exp()

    inside = {"lin": nn.Linear(3, 3)}
    expected = edges(graph_of(forward, **inside))
    assert ("relu_", "exp") in expected
    with context():
        assert edges(graph_of(forward, **inside)) == expected


def test_detach_does_not_break_the_flow() -> None:
    """Data flows through `detach` although gradients do not."""
    found = edges(graph_of(lambda net, x: net.b(net.a(x).detach()), a=nn.Linear(3, 3), b=nn.Linear(3, 3)))
    assert ("linear", "detach") in found
    assert ("detach", "linear#2") in found


def test_identity_and_dropout_in_evaluation_lie_on_the_path() -> None:
    """They return what they were given; what comes after them is drawn after them."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Dropout(), nn.Sequential()).eval()
    graph = capture(model, x)
    graph.check()
    assert not graph.unused()
    names = {node.id: node.path for node in graph.nodes}
    assert [(names[e.source], names[e.target]) for e in graph.collapse(1).edges] == [
        ("", "0"),
        ("0", "1"),
        ("1", "2"),
        ("2", "3"),
        ("3", ""),
    ]


def test_a_residual_connection_begins_before_what_the_block_hands_on() -> None:
    """`contiguous()` returns the tensor itself inside the block; outside of it, the tensor comes from where it came from."""
    block = Net(lambda net, x: net.lin(x.contiguous()), lin=nn.Linear(3, 3))
    found = edges(graph_of(lambda net, x: x + net.block(x), block=block))
    assert ("args[0]", "add") in found
    assert ("contiguous", "add") not in found


def test_a_parameter_handed_on_in_one_call_is_itself_in_the_next() -> None:
    """`weight.to(dtype)` returns the parameter; a second call of the module does not read it from the first."""
    shared = Net(lambda net, x: x * net.weight.to(x.dtype), weight=nn.Parameter(torch.ones(3)))
    graph = graph_of(lambda net, x: net.shared(net.shared(x)), shared=shared)
    first, second = graph["shared"]
    within = [{node.id for node in graph.nodes if call.id in graph.above(node.id)} for call in (first, second)]
    crossing = [edge for edge in graph.edges if edge.source in within[0] and edge.target in within[1]]
    assert len(crossing) == 1  # the product, not the weight


def test_a_module_called_twice_is_two_nodes() -> None:
    """Each call is its own, in order. (The original drew one node with an edge back to itself.)"""
    graph = graph_of(lambda net, x: net.lin(net.lin(x)), lin=nn.Linear(3, 3))
    first, second = graph["lin"]
    assert (first.call, second.call) == (0, 1)
    assert (first.site, second.site) == ("lin:output", "lin:output")
    assert [(e.source, e.target) for e in graph.collapse(1).edges if e.source == first.id] == [(first.id, second.id)]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_block_is_wired_like_any_other(reentrant: bool) -> None:
    """The forward of a checkpoint is recorded once, connected. (The original drew it empty.)"""
    plain = graph_of(lambda net, x: net.b(net.a(x)), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    held = graph_of(
        lambda net, x: net.b(checkpoint(net.a, x, use_reentrant=reentrant)),
        x.clone().requires_grad_(),
        a=nn.Linear(3, 3),
        b=nn.Linear(3, 3),
    )
    assert edges(held) == edges(plain)


def test_control_flow_is_what_was_executed() -> None:
    """The branch taken is in the graph, and so is the read of the number that decided."""

    def forward(net: Net, x: Tensor) -> Tensor:
        return x.exp() if x.sum() > 0 else x.neg()

    graph = graph_of(forward)
    assert [node.name for node in graph.nodes if node.kind == "operation"] == ["sum", "gt", "bool", "exp"]
    assert graph.nodes[4].flags == ("read",)
    assert "neg" in [node.name for node in graph_of(forward, -x).nodes]


def test_constants_and_buffers_are_sources() -> None:
    """A tensor that the code holds is a constant; a buffer is known by its name; `arange` is an operation."""

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(3))
            self.plain = torch.ones(3)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale + self.plain + torch.arange(3)

    graph = capture(Held(), x)
    graph.check()
    kinds = {node.name: node.kind for node in graph.nodes}
    assert kinds == {
        "x": "input",
        "Held": "module",
        "scale": "buffer",
        "mul": "operation",
        "constant": "constant",
        "add": "operation",
        "arange": "operation",
        "output": "output",
    }


def test_properties_and_methods_are_operations_and_questions_are_not() -> None:
    """`x.T` gives a tensor; shape, device and dim do not."""

    def forward(net: Net, x: Tensor) -> Tensor:
        assert x.dim() == 2
        assert x.shape[0] == x.size(0)
        return x.T.reshape(-1).to(x.device)

    assert [(node.name, node.flags) for node in graph_of(forward).nodes if node.kind == "operation"] == [
        ("T", ("view",)),
        ("reshape", ()),
        ("to", ("same",)),
    ]


class Doubled(torch.autograd.Function):
    """Returns a view that torch makes outside Python."""

    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        return given.view_as(given)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


def test_an_autograd_function_is_on_the_path() -> None:
    """What runs in its forward is recorded; the tensor that comes out is not lost."""
    graph = graph_of(lambda net, x: net.lin(Doubled.apply(net.lin(x))), lin=nn.Linear(3, 3))
    assert not graph.unused()
    assert not [node for node in graph.nodes if node.kind == "constant"]


def test_what_torch_does_not_tell_is_known_from_the_gradient() -> None:
    """An operation that no function mode sees is a node that says so."""

    def forward(net: Net, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            hidden = net.lin.weight * 2
        return x @ hidden

    (unseen,) = (node for node in graph_of(forward, lin=nn.Linear(3, 3)).nodes if "unseen" in node.flags)
    assert unseen.name == "Mul"


def test_another_thread_and_a_scripted_child_are_on_the_path() -> None:
    """Neither is recorded inside; what comes out of them is known from its gradient."""

    def forward(net: Net, x: Tensor) -> Tensor:
        found: list[Tensor] = []
        thread = Thread(target=lambda: found.append(net.lin(x)))
        thread.start()
        thread.join()
        return found[0]

    elsewhere = x.clone().requires_grad_()
    assert ("args[0]", "Addmm") in edges(graph_of(forward, elsewhere, lin=nn.Linear(3, 3)))
    with pytest.warns((DeprecationWarning, FutureWarning), match="jit"):  # the second from torch 2.15 on
        scripted = torch.jit.script(nn.Linear(3, 3))
    graph = capture(nn.Sequential(nn.Linear(3, 3), scripted), x)
    graph.check()
    assert ("linear", "Addmm") in edges(graph)


def test_a_compiled_model_is_recorded_as_it_was_written(fresh_compiler: None) -> None:
    """The same graph before and after compiling."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    assert capture(compiled, x) == capture(model, x)


def test_ten_thousand_operations_in_a_row() -> None:
    """No part of it recurses."""

    def forward(net: Net, x: Tensor) -> Tensor:
        for _ in range(10_000):
            x = x + 1
        return x

    graph = graph_of(forward)
    assert len(graph.edges) == 10_001
    assert len(graph.to_dot().splitlines()) > 20_000
    assert len(graph.collapse(0).edges) == len(graph.hide(operations=True).edges) == 2
    assert len(graph.fold().nodes) == len(graph.nodes)
    assert Graph.from_json(graph.to_json()) == graph
