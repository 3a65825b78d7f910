"""Architectures of ``transformers``, built small from their configurations: captured, whole, and as torch counts them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sonde.graph import capture

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

_spec = importlib.util.spec_from_file_location("architectures", Path(__file__).parent.parent / "test_transformers.py")
assert _spec is not None
assert _spec.loader is not None
architectures: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(architectures)


def test_there_are_forty() -> None:
    assert len(architectures.ARCHITECTURES) >= 40


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_the_graph_is_whole(name: str, training: bool) -> None:
    """At every depth and level of cost; every module call lies on a path to an output, and every tensor's origin was seen."""
    model, batch = architectures.build(name)
    graph = capture(model.train(training), **batch)
    graph.check()
    assert not graph.unused()
    assert [node for node in graph.nodes if node.kind == "constant" or "unseen" in node.flags] == []
    for depth in range(graph.depth + 1):
        graph.collapse(depth).check()
    for other in (graph.fold(), graph.hide(views=True, constants=True), graph.hide(operations=True)):
        other.check()
    without = capture(model, operations=False, **batch)
    without.check()
    assert [(node.site, node.call) for node in without.modules()] == [(node.site, node.call) for node in graph.modules()]


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_it_is_the_same_in_two_runs_and_counts_what_torch_counts(name: str) -> None:
    """Byte for byte the same source; products, convolutions and attention add up to the FLOPs of torch's counter."""
    model, batch = architectures.build(name)
    graph = capture(model.eval(), **batch)
    assert capture(model, **batch).to_dot() == graph.to_dot()
    if name == "deberta-v2":
        return  # torch's counter fails on it, in a hook of its module tracker
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(**batch)
    assert graph["(root)"][0].flops == counter.get_total_flops()
