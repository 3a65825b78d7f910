"""Models whose tensors are divided among ranks are compared by what each rank holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.processes import on_ranks
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import sonde


def net(width: int = 8) -> nn.Sequential:
    """The last layer has three rows, which two ranks cannot share evenly."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))


def sharded() -> nn.Module:
    model = net()
    for part in (model[0], model[2], model):
        fully_shard(part)
    return model


def in_columns(width: int = 8) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(net(width), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def compared(what: str) -> dict[str, Any]:
    sides: dict[str, tuple[Any, Any]] = {
        "shards with themselves": (sharded, None),
        "one process with shards": (net, sharded),
        "one process with columns": (net, in_columns),
        "columns with one process": (in_columns, net),
        "columns with themselves": (in_columns, None),
        "other weights in columns": (net, in_columns),
        "another width in columns": (net, lambda: in_columns(12)),
    }
    first, second = sides[what]
    a = first()
    b = a if second is None else second()
    if what.startswith("other weights"):
        with torch.no_grad():
            b[2].weight.to_local()[0, 0] += 1.0
    batch = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    found = sonde.compare(a, b, batch, verbose=False)
    apart = [str(place.site) for place in found.places if place.remark.startswith("not compared")]
    said = [note for note in found.notes if "distributed" in note]
    culprit = None if found.culprit is None else str(found.culprit.site)
    sites = [str(place.site) for place in found.places]
    return {"ok": found.ok, "culprit": culprit, "apart": apart, "said": said, "sites": sites, "text": str(found)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "culprit", "apart"),
    [
        ("shards with themselves", None, []),
        ("one process with shards", None, []),
        ("one process with columns", None, ["0:output", "1:output", "1:grad_output", "0:grad_output"]),
        ("columns with one process", None, ["0:output", "1:output", "1:grad_output", "0:grad_output"]),
        ("columns with themselves", None, []),
        ("other weights in columns", "2:output", ["0:output", "1:output", "1:grad_output", "0:grad_output"]),
        ("another width in columns", "0:output", []),
    ],
)
def test_what_a_rank_holds_of_both_sides_is_compared(what: str, culprit: str | None, apart: list[str]) -> None:
    """Gradients of parameters in their parts, of a whole one too; an output that is a part of features is said to be left out."""
    for rank in on_ranks(2, compared, what, check=False):
        assert rank.error is None, rank.error
        found = rank.value
        assert (found["ok"], found["culprit"]) == (culprit is None, culprit), found["text"]
        if culprit != "0:output":
            assert found["apart"] == apart
            assert len(found["said"]) == bool(apart)
            assert {"0.weight:grad", "2.weight:grad", "2.bias:grad"} <= set(found["sites"])
            assert not apart or "not compared" in found["text"]
