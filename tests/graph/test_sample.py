"""The original's sample network, at every depth, against what can be derived by hand."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from sonde.graph import capture, make_dot, record


class SampleNet(nn.Module):
    """The network in the original's README: two layers read the input, a third their concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.l1 = nn.Linear(4, 3)
        self.l2 = nn.Linear(4, 3)
        self.l3 = nn.Linear(6, 2)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.l3(torch.cat([self.l1(x), self.l2(x)], 1)))


def drawn_edges(source: str) -> list[tuple[str, str]]:
    """The edges of Graphviz source, each as it is drawn, by the labels of their ends."""
    labels = dict(re.findall(r'^\s*(\d+) \[label="?(.*?)"? align', source, re.MULTILINE | re.DOTALL))
    return [(labels[one], labels[other]) for one, other in re.findall(r"^\s*(\d+) -> (\d+)", source, re.MULTILINE)]


@pytest.mark.parametrize(("depth", "count"), [(0, 2), (1, 11), (2, 17)])
def test_the_seed_s_picture_has_the_edges_of_the_original(depth: int, count: int) -> None:
    """Depth 0 and 1 are the original's 2 and 11; at depth 2 three `linear` take the place of its six backward nodes."""
    edges = re.findall(r"(\d+) -> (\d+)", make_dot(record(SampleNet(), "Sample Net", (2, 4)), depth).source)
    assert len(edges) == len(set(edges)) == count


def test_the_seed_s_picture_at_depth_1_edge_by_edge() -> None:
    """Tensors stand between modules and operations, named in the order in which they came about."""
    edges = drawn_edges(make_dot(record(SampleNet(), "Sample Net", (2, 4)), 1).source)
    assert sorted(edges) == sorted(
        [
            ("Input\n[2, 4]", "l1\n(Linear)"),
            ("Input\n[2, 4]", "l2\n(Linear)"),
            ("l1\n(Linear)", "Tensor-2\n[2, 3]"),
            ("l2\n(Linear)", "Tensor-3\n[2, 3]"),
            ("Tensor-2\n[2, 3]", "cat"),
            ("Tensor-3\n[2, 3]", "cat"),
            ("cat", "Tensor-4\n[2, 6]"),
            ("Tensor-4\n[2, 6]", "l3\n(Linear)"),
            ("l3\n(Linear)", "Tensor-5\n[2, 2]"),
            ("Tensor-5\n[2, 2]", "relu\n(ReLU)"),
            ("relu\n(ReLU)", "Output\n[2, 2]"),
        ]
    )


def test_the_operations_edge_by_edge() -> None:
    """Every operation, what it reads, and the shape of each tensor that flows."""
    graph = capture(SampleNet(), torch.ones(2, 4))
    name = {node.id: (node.path or "net") + "/" + node.name for node in graph.nodes}
    edges = [(name[edge.source], name[edge.target], graph.values[edge.value].shape) for edge in graph.edges]
    assert edges == [
        ("net/x", "l1/linear", (2, 4)),
        ("l1.weight/weight", "l1/linear", (3, 4)),
        ("l1.bias/bias", "l1/linear", (3,)),
        ("net/x", "l2/linear", (2, 4)),
        ("l2.weight/weight", "l2/linear", (3, 4)),
        ("l2.bias/bias", "l2/linear", (3,)),
        ("l1/linear", "net/cat", (2, 3)),
        ("l2/linear", "net/cat", (2, 3)),
        ("net/cat", "l3/linear", (2, 6)),
        ("l3.weight/weight", "l3/linear", (2, 6)),
        ("l3.bias/bias", "l3/linear", (2,)),
        ("l3/linear", "relu/relu", (2, 2)),
        ("relu/relu", "net/output", (2, 2)),
    ]
    assert [len(graph.collapse(depth).edges) for depth in (0, 1, 2)] == [2, 7, 13]


def test_modules_carry_class_site_parameters_and_costs() -> None:
    """A linear layer of 2 rows from 4 to 3 is 2*2*4*3 FLOP, 15 parameters and 24 bytes of output."""
    graph = capture(SampleNet(), torch.ones(2, 4))
    (layer,) = graph["l1"]
    assert (layer.type, layer.site, layer.call, layer.parameters, layer.flops, layer.bytes) == (
        "Linear",
        "l1:output",
        0,
        15,
        48,
        24,
    )
    (root,) = graph["(root)"]
    assert (root.type, root.site, root.parameters, root.flops) == ("SampleNet", "(root):output", 15 + 15 + 14, 48 + 48 + 48)
    assert root.bytes == 24 + 24 + 48 + 16 + 16
    assert 0 < sum(graph[name][0].seconds for name in ("l1", "l2", "l3", "relu")) < root.seconds
