"""The graph as data: frozen, compared, checked, written and read, exported."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import networkx
import pytest
import torch
from torch import nn

from sonde.errors import ArgumentError, GraphError, MissingExtraError, StoreError, UnknownSiteError
from sonde.graph import Edge, Graph, Node, capture
from sonde.run.graph.data import PlainGraph, byte_text, count_text, time_text


@pytest.fixture
def graph() -> Graph:
    return capture(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.ones(2, 3))


def test_a_graph_is_frozen_and_compared_by_value(graph: Graph) -> None:
    """Times do not count; anything else does."""
    with pytest.raises(FrozenInstanceError):
        graph.model = "other"  # type: ignore[misc]
    slower = replace(graph, nodes=tuple(replace(node, seconds=9.0) for node in graph.nodes))
    assert slower == graph
    assert replace(graph, edges=graph.edges[1:]) != graph
    assert replace(graph, nodes=(replace(graph.nodes[0], name="y"), *graph.nodes[1:])) != graph


def test_saved_and_loaded_it_is_equal(graph: Graph, tmp_path: Path) -> None:
    """JSON without a pickle, in folders that are made."""
    path = graph.save(tmp_path / "a" / "graph.json")
    loaded = Graph.load(path)
    assert loaded == graph
    assert [node.seconds for node in loaded.nodes] == pytest.approx([node.seconds for node in graph.nodes], abs=1e-7)
    assert json.loads(path.read_text())["format"] == "sonde.graph"


def test_a_run_s_plain_graph_becomes_one_with_methods(graph: Graph) -> None:
    """What is read without torch is as good."""
    plain = PlainGraph.from_json(graph.to_json())
    assert type(plain) is PlainGraph
    assert Graph.of(plain) == Graph.of(graph.to_data()) == graph


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "sonde.graph", "version": 1}', '{"format": "sonde.graph", "version": 9}']
)
def test_what_is_no_graph_is_refused(text: str, tmp_path: Path) -> None:
    """With what was found."""
    path = tmp_path / "graph.json"
    path.write_text(text)
    with pytest.raises(StoreError):
        Graph.load(path)


def test_a_missing_file_and_an_unknown_kind(graph: Graph, tmp_path: Path) -> None:
    """Neither is a graph."""
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        Graph.load(tmp_path / "none.json")
    with pytest.raises(StoreError, match="'thing' is no kind of node"):
        Graph.from_json(graph.to_json().replace('"operation"', '"thing"'))


def altered(graph: Graph, **fields: Any) -> Graph:
    return replace(graph, **fields)


def test_check_finds_each_contradiction(graph: Graph) -> None:
    """One wrong thing at a time."""
    by_name = {node.name: node for node in graph.nodes}
    linear, relu, root = by_name["linear"], by_name["relu"], by_name["Sequential"]
    read = next(edge for edge in graph.edges if edge.source == linear.id)
    cases = {
        "must rise": altered(graph, nodes=(graph.nodes[1], graph.nodes[0], *graph.nodes[2:])),
        "which is no module call": altered(graph, nodes=tuple(replace(n, parent=99) if n is relu else n for n in graph.nodes)),
        "which had ended before": altered(
            graph, nodes=tuple(replace(n, parent=linear.parent) if n is relu else n for n in graph.nodes)
        ),
        "gave values that the graph does not hold": altered(graph, values=graph.values[:-1]),
        "not both nodes": altered(graph, edges=(*graph.edges, Edge(linear.id, 99, 0))),
        "did not give": altered(graph, edges=(*graph.edges, Edge(linear.id, relu.id, 0))),
        "runs backwards": altered(graph, edges=(*graph.edges, Edge(linear.id, 0, linear.outputs[0]))),
        "holds other nodes and has an edge": altered(graph, edges=(*graph.edges, Edge(linear.id, root.id, linear.outputs[0]))),
        "has a cycle": altered(graph, edges=(*graph.edges, Edge(relu.id, linear.id, relu.outputs[0]))),
        "nothing flows into": altered(graph, edges=tuple(edge for edge in graph.edges if edge.source != relu.id)),
    }
    graph.check()
    assert read in graph.edges
    for text, wrong in cases.items():
        with pytest.raises(GraphError, match=text):
            wrong.check()


def test_networkx_has_every_node_edge_and_attribute(graph: Graph) -> None:
    """And it agrees that there is no cycle."""
    exported = graph.to_networkx()
    assert networkx.is_directed_acyclic_graph(exported)
    assert set(exported.nodes) == set(graph.by_id)
    assert exported.number_of_edges() == len(graph.edges)
    (linear,) = (number for number, held in exported.nodes(data=True) if held["name"] == "linear")
    assert exported.nodes[linear]["flops"] == 2 * 2 * 3 * 4
    assert [held["shape"] for _, _, held in exported.out_edges(linear, data=True)] == [(2, 4)]


def test_a_module_is_found_by_path_and_site(graph: Graph) -> None:
    """And a name that is not there names the nearest."""
    assert graph["0"] == graph["0:output"]
    assert graph["0.weight"][0].kind == "parameter"
    assert [node.kind for node in graph["(root):output"]] == ["module", "output"]
    with pytest.raises(UnknownSiteError, match=r"'0\.wieght' is no site of this graph. Nearest: 0\.weight"):
        graph["0.wieght"]


def test_it_says_what_it_is(graph: Graph) -> None:
    """In one line."""
    assert repr(graph) == "Graph of Sequential: 3 module calls, 2 operations, 5 edges, 48 FLOP"


def test_endings_say_what_is_written(graph: Graph, tmp_path: Path) -> None:
    """SVG without a program, source, and an error for what nothing makes."""
    assert "<svg" in graph.save(tmp_path / "model.svg").read_text()
    assert graph.save(tmp_path / "model.gv", depth=0).read_text() == graph.to_dot(0)
    with pytest.raises(ArgumentError, match=r"written as \.json, \.html"):
        graph.save(tmp_path / "model.jpeg2000")
    with pytest.raises(ArgumentError, match="values= colours a page"):
        graph.save(tmp_path / "model.svg", values={})


def test_what_makes_a_png_or_pdf_is_named_if_it_is_not_there(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Program, package, and what needs neither."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    for ending in ("png", "pdf"):
        with pytest.raises(MissingExtraError, match=r"apt install graphviz.*\.svg and \.html need no program"):
            graph.save(tmp_path / f"model.{ending}")


def test_a_png_is_made_where_something_makes_it(graph: Graph, tmp_path: Path) -> None:
    """By Graphviz's program, or resvg."""
    try:
        written = graph.save(tmp_path / "model.png").read_bytes()
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert written.startswith(b"\x89PNG")


def test_numbers_for_people() -> None:
    """Three digits and a unit."""
    assert [count_text(number) for number in (0, 7, 950, 999.6, 12_345, 4.56e6, 1e12)] == [
        "0",
        "7",
        "950",
        "1.00 k",
        "12.3 k",
        "4.56 M",
        "1.00 T",
    ]
    assert [byte_text(number) for number in (12, 2_500_000)] == ["12 B", "2.50 MB"]
    assert [time_text(seconds) for seconds in (1.2e-5, 0.0034, 2)] == ["12 µs", "3.4 ms", "2 s"]


def test_nodes_can_be_made_by_hand() -> None:
    """A graph is plain: one that nobody captured is as good."""
    made = Graph("Hand", (Node(0, "input", "x", outputs=(0,)), Node(1, "output", "y")), (Edge(0, 1, 0),), (capture_value(),))
    made.check()


def capture_value() -> Any:
    return capture(nn.Identity(), torch.ones(1)).values[0]
