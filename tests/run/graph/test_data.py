"""The graph as data: frozen, compared, checked, written and read, exported."""

from __future__ import annotations

import contextlib
import io
import json
import random
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import networkx
import pytest
import torch
from torch import nn

from sonde.errors import ArgumentError, GraphError, MissingExtraError, SondeError, StoreError, UnknownSiteError
from sonde.graph import Edge, Graph, Node, capture
from sonde.run import PlainGraph
from sonde.words import large_text


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
    with pytest.raises(StoreError, match=r"nodes\[\d+\]\.kind is 'thing', not one of input"):
        Graph.from_json(json.dumps(graph.to_data()).replace('"operation"', '"thing"'))


def damaged(text: str, random: random.Random) -> str:
    """*text* with one to four changes: bytes cut out, doubled, or replaced by other JSON."""
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(text))
        end = min(len(text), at + random.choice((1, 1, 1, 2, 5, 40)))
        put = ("", text[at:end] * 2, "null", "-1", "1e999", "true", "[]", "{}", '"a"', "9" * 400, "[" * 3, "NaN")
        text = text[:at] + random.choice(put) + text[end:]
    return text


def test_a_damaged_file_is_read_or_refused_in_plain_words(graph: Graph) -> None:
    """Of 2,000 damaged documents without a checksum none raises a foreign exception; those read can be used by every method."""
    chance = random.Random(1)
    text, read = json.dumps(graph.to_data()), 0
    for _ in range(2_000):
        try:
            found = Graph.from_json(damaged(text, chance))
        except StoreError:
            continue
        read += 1
        for use in (
            repr,
            Graph.to_dot,
            Graph.to_json,
            lambda it: it.collapse(1),
            lambda it: it.fold(),
            lambda it: it.unused(),
            Graph.check,
        ):
            with contextlib.suppress(SondeError):
                use(found)
    assert 0 < read < 1_000


def test_a_damaged_file_is_never_another_graph(graph: Graph) -> None:
    """The checksum finds what types and references let through, as one digit of a shape."""
    chance = random.Random(2)
    text = graph.to_json()
    for _ in range(500):
        other = damaged(text, chance)
        try:
            found = Graph.from_json(other)
        except StoreError:
            continue
        assert found == graph
    with pytest.raises(StoreError, match="its checksum does not fit"):
        Graph.from_json(text.replace('"float32"', '"float64"', 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["nodes"][1].update(id="1"), r"nodes\[1\]\.id is '1', not a whole number from 0"),
        (lambda data: data["nodes"][1].update(id=True), r"nodes\[1\]\.id is True"),
        (lambda data: data["nodes"][1].update(flops=-1), r"nodes\[1\]\.flops is -1"),
        (lambda data: data["nodes"][1].update(repeat=0), r"nodes\[1\]\.repeat is 0, not a whole number from 1"),
        (lambda data: data["nodes"][1].update(seconds=float("nan")), r"nodes\[1\]\.seconds is nan, not a finite number"),
        (lambda data: data["nodes"][1].update(outputs=[[0]]), r"nodes\[1\]\.outputs\[0\] is \[0\]"),
        (lambda data: data["nodes"][1].update(colour="red"), r"nodes\[1\] has a field 'colour'"),
        (lambda data: data["nodes"][1].pop("name"), r"nodes\[1\]\.'name' is missing"),
        (lambda data: data["nodes"][1].update(parent=77), r"lies in node 77, which is no module call"),
        (lambda data: data["edges"][0].pop(), r"edges\[0\] is .* not a list of source, target, value and seconds"),
        (lambda data: data["edges"].append([0, 99, 0, 0.0]), r"an edge joins 0 and 99"),
        (lambda data: data["edges"].append([0, 1, 99, 0.0]), r"carries value 99"),
        (lambda data: data["values"].insert(0, [["2"], "float32", "cpu"]), r"values\[0\]\.shape\[0\] is '2'"),
        (lambda data: data["values"].insert(0, [[2], "float32", "cpu", [1]]), r"values\[0\]\.most holds no largest sizes"),
        (lambda data: data["values"].insert(0, [[2], "float32", "cpu", [3, 3]]), r"values\[0\]\.most holds no largest sizes"),
        (lambda data: data.pop("error"), r"'error' is missing"),
        (lambda data: data.update(nodes={}), r"nodes is \{\}, not a list"),
    ],
)
def test_the_error_names_the_field(graph: Graph, change: Any, message: str) -> None:
    data = json.loads(graph.to_json())
    change(data)
    with pytest.raises(StoreError, match=message):
        Graph.from_data(data)


@pytest.mark.parametrize("written", [b"\xff\xfe", b"[" * 100_000, b'{"format": 1' + b"0" * 5_000 + b"}"])
def test_bytes_that_are_no_json_are_refused(written: bytes, tmp_path: Path) -> None:
    """Not UTF-8, nested too deep, a number of too many digits."""
    path = tmp_path / "graph.json"
    path.write_bytes(written)
    with pytest.raises(StoreError):
        Graph.load(path)


def test_any_name_survives_a_file(tmp_path: Path) -> None:
    """Control characters, quotes, markup and lone surrogates."""
    name = "a\x1b[31m\0\udc80</script><img src=x onerror=alert(1)>\"'"
    made = Graph("Hand", (Node(0, "input", name, outputs=(0,)), Node(1, "output", "y")), (Edge(0, 1, 0),), (capture_value(),))
    for ending in ("json", "html", "dot", "svg"):
        made.save(tmp_path / f"graph.{ending}")
    assert Graph.load(tmp_path / "graph.json") == made


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


def test_a_png_is_made_where_something_makes_it_and_shows_the_text(graph: Graph, tmp_path: Path) -> None:
    """By Graphviz's program, or resvg; in a font that is there, whatever fonts Graphviz asks for."""
    try:
        written = graph.save(tmp_path / "model.png").read_bytes()
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert written.startswith(b"\x89PNG")
    nameless = replace(graph, nodes=tuple(replace(node, name=" ", type=" ", path="") for node in graph.nodes))
    without_text = nameless.save(tmp_path / "nameless.png").read_bytes()
    assert dark_pixels(written) > 2 * dark_pixels(without_text)


def dark_pixels(png: bytes) -> int:
    """How many pixels are nearly black and opaque: those of text."""
    image = pytest.importorskip("matplotlib.image").imread(io.BytesIO(png))
    return int(((image[..., :3] < 0.2).all(axis=-1) & (image[..., 3] > 0.8)).sum())


def test_numbers_for_people() -> None:
    """Three digits and a unit."""
    assert [large_text(number) for number in (0, 7, 950, 999.6, 12_345, 4.56e6, 1e12)] == [
        "0",
        "7",
        "950",
        "1.00 k",
        "12.3 k",
        "4.56 M",
        "1.00 T",
    ]


def test_nodes_can_be_made_by_hand() -> None:
    """A graph is plain: one that nobody captured is as good."""
    made = Graph("Hand", (Node(0, "input", "x", outputs=(0,)), Node(1, "output", "y")), (Edge(0, 1, 0),), (capture_value(),))
    made.check()


def capture_value() -> Any:
    return capture(nn.Identity(), torch.ones(1)).values[0]
