"""Passes: pure, whole afterwards, and each what it says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sonde.errors import ArgumentError, UnknownSiteError
from sonde.graph import Edge, Graph, Node, Value, capture
from sonde.run.graph.check import reach
from sonde.testing.zoo import Net

x = torch.arange(6.0).reshape(2, 3)


def block() -> nn.Module:
    return Net(lambda net, x: x + net.b(net.a(x).relu()), a=nn.Linear(3, 6), b=nn.Linear(6, 3))


def stack(count: int) -> Graph:
    """A stack of equal residual blocks between two layers."""
    return capture(nn.Sequential(nn.Linear(3, 3), *(block() for _ in range(count)), nn.Linear(3, 1)), x)


def described(graph: Graph) -> list[tuple[str, str]]:
    """The edges between what is no parameter, by path or name."""
    name = {node.id: node.path or node.name for node in graph.nodes}
    name |= {node.id: f"{node.path}/{node.name}" for node in graph.nodes if node.kind == "operation"}
    return [(name[edge.source], name[edge.target]) for edge in graph.hide(parameters=True).edges]


def test_equal_blocks_fold_into_one() -> None:
    """Twelve blocks are one that says 12; what flows in and out is what flowed into the first and out of the last."""
    folded = stack(12).fold()
    folded.check()
    assert [(node.path, node.repeat) for node in folded.modules() if node.repeat > 1] == [("1", 12)]
    assert described(folded.collapse(1)) == [("input", "0"), ("0", "1"), ("1", "13"), ("13", "output")]
    assert described(folded)[2:8] == [
        ("1.a/linear", "1/relu"),
        ("1/relu", "1.b/linear"),
        ("0/linear", "1/add"),
        ("1.b/linear", "1/add"),
        ("1/add", "13/linear"),
        ("13/linear", "output"),
    ]
    assert "1 × 12" in folded.to_dot()
    assert stack(3).fold(least=4) == stack(3)


def test_blocks_that_differ_do_not_fold() -> None:
    """Another width, another class or another operation inside keeps a block apart."""
    other = Net(lambda net, x: x + net.b(net.a(x).tanh()), a=nn.Linear(3, 6), b=nn.Linear(6, 3))
    assert all(node.repeat == 1 for node in capture(nn.Sequential(block(), other, block()), x).fold().nodes)


def test_a_group_of_siblings_folds() -> None:
    """Linear and ReLU in turn repeat as a pair."""
    model = nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(3, 3), nn.ReLU())))
    folded = capture(model, x).fold()
    folded.check()
    assert [(node.path, node.repeat) for node in folded.modules()] == [("", 1), ("0", 5), ("1", 5)]


def test_nested_repetitions_fold_too() -> None:
    """Four times a stage of three blocks: one block, three in a row, in one stage of four."""
    stage = [nn.Sequential(block(), block(), block()) for _ in range(4)]
    folded = capture(nn.Sequential(*stage), x).fold()
    folded.check()
    assert [(node.path, node.repeat) for node in folded.modules() if node.repeat > 1] == [("0", 4), ("0.0", 3)]


def test_collapsing_chosen_modules() -> None:
    """Only the one named is closed; the others stay open."""
    graph = stack(2).collapse(at="1")
    graph.check()
    assert {node.path for node in graph.nodes if node.kind == "operation"} == {"0", "2", "2.a", "2.b", "3"}
    assert graph == stack(2).collapse(at=["1:output"])


def test_hidden_views_are_bridged() -> None:
    """`view` and `transpose` go; what they read is read by what read them; a module of views alone stays as one node."""

    def forward(net: Net, x: Tensor) -> Tensor:
        return net.flat(net.lin(x).view(3, 2).transpose(0, 1).exp())

    graph = capture(Net(forward, lin=nn.Linear(3, 3), flat=nn.Flatten()), x).hide(views=True)
    graph.check()
    assert [edge for edge in described(graph) if edge[0] != "args[0]"] == [
        ("lin/linear", "/exp"),
        ("/exp", "flat"),
        ("flat", "output"),
    ]


def test_hidden_constants_take_with_them_what_is_made_of_them() -> None:
    """A mask made of `arange` is gone with it."""

    def forward(net: Net, x: Tensor) -> Tensor:
        return x.masked_fill(torch.arange(3) > 1, 0.0)

    graph = capture(Net(forward), x).hide(constants=True)
    graph.check()
    assert [node.name for node in graph.nodes if node.kind == "operation"] == ["masked_fill"]


def test_what_an_output_alone_comes_from_is_not_hidden() -> None:
    """A model that returns a constant keeps it, or its output would hang in the air."""
    graph = capture(Net(lambda net, x: torch.ones(3) * 2), x).hide(operations=True, constants=True)
    graph.check()
    assert len(graph.edges) == 1


def test_additions_of_a_residual_network_stay_where_they_part() -> None:
    """Without them each layer would have an edge to every later one: edges grow with the blocks, not with their square."""
    edges = [len(stack(count).hide(operations=True).edges) for count in (10, 20, 30)]
    assert edges[2] - edges[1] == edges[1] - edges[0]


def test_what_lies_between_two_sites() -> None:
    """Nodes on a path from one to the other, and their parameters."""
    part = stack(3).between("1.b", "2.a")
    part.check()
    assert described(part) == [("1.b/linear", "1/add"), ("1/add", "2.a/linear")]
    assert {node.path for node in part.nodes if node.kind == "parameter"} == {"1.b.weight", "1.b.bias", "2.a.weight", "2.a.bias"}
    with pytest.raises(ArgumentError, match="but it does the other way"):
        stack(3).between("2.a", "1.b")
    with pytest.raises(UnknownSiteError, match="Nearest: "):
        stack(3).between("1.c", "2.a")


def test_passes_leave_the_graph_as_it_was() -> None:
    """Each returns a new one of the same class, which keeps the numbers of its nodes."""
    graph = stack(2)
    text = graph.to_json()
    for new in (graph.collapse(1), graph.hide(views=True), graph.fold(), graph.between("0", "1")):
        assert type(new) is Graph
        assert {node.id for node in new.nodes} <= {node.id for node in graph.nodes}
    assert graph.to_json() == text


# Laws, over random graphs


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random nesting of module calls with operations that read any earlier ones."""
    nodes, edges, calls = [Node(0, "input", "x", outputs=(0,))], [], [1]
    nodes.append(Node(1, "module", "M", "M", parent=None))
    for number in range(2, draw(st.integers(3, 25))):
        calls = calls[: draw(st.integers(1, len(calls)))]
        if draw(st.booleans()) and draw(st.booleans()):
            nodes.append(Node(number, "module", "m", "M", f"m{number}", f"m{number}:output", parent=calls[-1]))
            calls.append(number)
            continue
        sources = [node.id for node in nodes if node.kind != "module"]
        nodes.append(
            Node(number, "operation", "op", parent=calls[-1], outputs=(number,), flags=draw(st.sampled_from([(), ("view",)])))
        )
        edges += [Edge(source, number, source) for source in sorted(draw(st.sets(st.sampled_from(sources), max_size=3)))]
    last = [node.id for node in nodes if node.kind != "module"][-1]
    nodes.append(Node(len(nodes), "output", "output"))
    edges.append(Edge(last, nodes[-1].id, last))
    return Graph("M", tuple(nodes), tuple(edges), tuple(Value((), "float32") for _ in nodes))


@given(graphs(), st.integers(0, 4))
def test_collapsing_keeps_a_graph_whole_and_what_reaches_what(graph: Graph, depth: int) -> None:
    """Acyclic before, acyclic after; twice is once; between nodes that stay, data flows where it flowed."""
    graph.check()
    once = graph.collapse(depth)
    once.check()
    assert once.collapse(depth) == once
    for node in once.nodes:
        if node.kind != "module":
            before = reach(graph, [node.id]) & {held.id for held in once.nodes if held.kind != "module"}
            assert before <= reach(once, [node.id])


@given(graphs())
def test_hiding_keeps_what_reaches_what(graph: Graph) -> None:
    """Between the nodes that are left, data flows exactly where it flowed."""
    left = graph.hide(views=True)
    left.check()
    kept = {node.id for node in left.nodes}
    for node in left.nodes:
        if node.kind != "module":
            direct = {held for held in reach(graph, [node.id]) & kept if graph.by_id[held].kind != "module"}
            assert direct <= reach(left, [node.id])


@given(graphs())
def test_folding_keeps_a_graph_whole(graph: Graph) -> None:
    """And a folded graph has nothing left to fold."""
    folded = graph.fold()
    folded.check()
    assert folded.fold() == folded


@given(graphs())
def test_json_gives_an_equal_graph_back(graph: Graph) -> None:
    """Every field survives."""
    assert Graph.from_json(graph.to_json()) == graph
