"""The graph of a model that FSDP2 shards is that of the model in one process."""

from __future__ import annotations

import pytest
import torch
from tests.processes import on_ranks
from tests.ranks.trainings import TRAININGS, batch, net
from torch import nn

from sonde import graph
from sonde.run import PlainGraph


def flow(of: PlainGraph) -> list[tuple[str, ...]]:
    """Return every node by its words, and every edge by those of its ends."""
    names = [(node.kind, node.name, node.path, str(node.call)) for node in of.nodes]
    places = {node.id: place for place, node in enumerate(of.nodes)}
    return [*names, *sorted(("edge", str(places[edge.source]), str(places[edge.target])) for edge in of.edges)]


def captured(name: str, is_trained: bool) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the flow of the sharded model, and that of the same model in one process."""
    training = TRAININGS[name][1]()
    if is_trained:
        training.step(0)
    inputs = batch(0)[0][:4]
    return flow(graph.capture(training.model, inputs)), flow(graph.capture(net(), inputs))


@pytest.mark.filterwarnings("ignore:FSDPNet cannot be copied")
@pytest.mark.parametrize(
    ("name", "is_trained"),
    [
        ("FSDP2", True),
        pytest.param("FSDP2", False, marks=pytest.mark.slow),
        pytest.param("FSDP2, parameters stay gathered", True, marks=pytest.mark.slow),
        pytest.param("HSDP, 2 × 2", True, marks=pytest.mark.slow),
        pytest.param("DDP", True, marks=pytest.mark.slow),
    ],
)
def test_gathering_is_no_operation_of_the_model(name: str, is_trained: bool) -> None:
    for rank in on_ranks(TRAININGS[name][0], captured, name, is_trained, check=False):
        sharded, whole = rank.value
        assert sharded == whole


def test_a_tensor_that_stands_for_a_parameter_has_its_name() -> None:
    """As in ``functional_call``; one that an operation has made is the result of that operation."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))

    class Substituted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(self.inner, {"0.weight": weight * 2}, (x,))

    found = graph.capture(Substituted(), torch.ones(1, 3), torch.ones(2, 3, requires_grad=True))
    by_id = {node.id: node for node in found.nodes}
    (first, second) = [node for node in found.nodes if node.name == "linear"]
    reads = {(by_id[edge.source].name, edge.target) for edge in found.edges}
    assert ("mul", first.id) in reads
    assert ("weight", second.id) in reads
    assert ("weight", first.id) not in reads
