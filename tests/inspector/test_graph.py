"""The execution graph in a run, and the run's numbers on it."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn

import sonde
from sonde.errors import ArgumentError
from sonde.graph import Graph


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))


def test_the_graph_of_a_batch_is_kept_in_the_run_and_joins_with_its_numbers() -> None:
    """Every module on the graph that has a series in the run has one name with it; capturing leaves the training as it was."""
    torch.manual_seed(1)
    model, x = net(), torch.randn(8, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inspector = sonde.watch(model, every=1, to="memory", verbose=False, graph=x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    run = inspector.run
    inspector.detach()
    assert list(run.scalar("grad_norm")[0]) == [0, 1, 2]  # the capturing was no step
    graph = Graph.of(run.graph)
    sites = [str(node.site) for node in graph.modules() if node.path]
    assert sites == ["0:output", "1:output", "2:output", "3:output"]
    series = {site: list(zip(*run.series(site, "rms", family="moments"), strict=True)) for site in sites}
    assert {len(values) for values in series.values()} == {3}
    page = graph.to_html(values={"rms": series})
    assert "0:output" in page
    assert "<script" in page


class Named(nn.Module):
    """Takes keyword arguments, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, *, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        out: torch.Tensor = self.layer(x) * scale
        return out


@pytest.mark.parametrize("kind", [dict, UserDict, MappingProxyType])
def test_a_batch_of_keyword_arguments_is_a_mapping(kind: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """A dict, or what a tokenizer returns, is handed on as keyword arguments, whatever its keys are."""
    batch = kind({"x": torch.ones(2, 3), "scale": 2.0})
    with sonde.watch(Named(), to="memory", verbose=False, graph=batch) as inspector:
        pass
    graph = Graph.of(inspector.run.graph)
    assert [node.name for node in graph.nodes if node.kind == "input"] == ["x"]


def test_the_graph_of_several_models_is_asked_for_one_by_one() -> None:
    """``graph=`` means one model; the message says what to do for several."""
    with pytest.raises(ArgumentError, match="capture each with"):
        sonde.watch({"G": net(), "D": net()}, to="memory", graph=torch.randn(8, 3))
