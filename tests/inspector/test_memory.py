"""What an inspector may take of memory for copies of parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from sonde import Limits, lens
from sonde.engine.clock.parameter_copies import one_in_each, sample
from sonde.errors import ArgumentError
from sonde.inspector import watch


@pytest.mark.parametrize(
    ("given", "expected"),
    [("1GB", 1e9), ("500 MiB", 500 * 2**20), ("64k", 64e3), (2**30, 2**30), (1e6, 1e6), (None, math.inf), ("10", 10)],
)
def test_sizes_are_read(given: Any, expected: float) -> None:
    """With their units, or as numbers."""
    assert Limits(memory=given).memory_bytes() == expected


@pytest.mark.parametrize("given", ["much", "1 TB of it", 0, -1, True, "0GB", [1]])
def test_what_is_no_size_is_refused(given: Any) -> None:
    """With what to give."""
    with pytest.raises(ArgumentError, match=r"Limits\(memory\)="):
        Limits(memory=given)


def test_a_sampled_update_stands_for_the_whole() -> None:
    """Counts and lengths as of the whole parameter, means and shares as of its sample; norms over all parameters with them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    limit = 400_000
    with watch(
        model,
        every=1,
        to="memory",
        verbose=False,
        strict=True,
        limits=Limits(memory=limit),
        lenses=(lens.moments(), lens.ParameterUpdateGeometry()),
    ) as inspector:
        model(torch.randn(8, 512)).square().sum().backward()
        optimizer.step()
        coverage = {str(line.site): line for line in inspector.coverage()}
    one_in = dict(zip(before, one_in_each(list(model.parameters()), limit), strict=True))
    assert [name for name, each in one_in.items() if each > 1] == ["0.weight"]
    squares = 0.0
    rows = {row["site"]: row for row in inspector.run.table("moments").to_pylist()}
    ratios = {row["site"]: row for row in inspector.run.table("parameter_update_ratio").to_pylist()}
    for name, parameter in model.named_parameters():
        whole = (parameter.detach().double() - before[name]).flatten()
        seen = sample(whole, one_in[name])
        times = len(whole) / len(seen)
        row, ratio = rows[f"{name}:update"], ratios[f"{name}:update"]
        assert row["count"] == len(whole)
        assert row["rms"] == pytest.approx(seen.square().mean().sqrt().item(), rel=1e-9)
        assert row["absmax"] == pytest.approx(seen.abs().max().item(), rel=1e-12)
        assert row["norm"] == pytest.approx(seen.norm().item() * math.sqrt(times), rel=1e-9)
        assert row["norm"] == pytest.approx(whole.norm().item(), rel=0.02)
        assert rows[f"{name}:param"]["norm"] == pytest.approx(parameter.detach().double().norm().item(), rel=1e-9)
        former = sample(before[name].flatten(), one_in[name])
        assert ratio["ratio"] == pytest.approx((seen.norm() / former.norm()).item(), rel=1e-9)
        assert ratio["weight_norm"] == pytest.approx(former.norm().item() * math.sqrt(times), rel=1e-9)
        assert ratio["elements"] == len(whole)
        squares += row["norm"] ** 2
    assert inspector.run.scalar("update_norm")[1][0] == pytest.approx(math.sqrt(squares), rel=1e-12)
    assert "of one in" in str(coverage["0.weight:update"])
    assert "element" not in str(coverage["1.weight:update"])


def test_a_statistic_that_knows_no_samples_sees_the_whole() -> None:
    """The limit is for those that can say what a sample stands for."""
    torch.manual_seed(0)
    model = nn.Linear(512, 512, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    lenses = (lens.exponents("update"),)
    with watch(model, every=1, to="memory", verbose=False, strict=True, limits=Limits(memory="100k"), lenses=lenses) as inspector:
        model(torch.randn(8, 512)).square().sum().backward()
        optimizer.step()
    (row,) = inspector.run.table("exponents").to_pylist()
    assert row["count"] == 512 * 512
