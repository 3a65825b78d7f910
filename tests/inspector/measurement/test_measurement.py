"""Rows in few blocks, and one copy per device that later writing does not reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.inspector.training import small, train
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sonde.engine.probes.statistic_hooks import RowPlace, StatisticHook
from sonde.inspector import watch
from sonde.inspector.measurement.measurement import Measurement
from sonde.lens import Lens
from sonde.site import OTHER_CALLS
from sonde.stats import Moments, Table
from sonde.stats.host_copy import HostCopy


def test_rows_lie_in_few_blocks_and_are_found_again() -> None:
    """However they were allocated; a row is of the block that its place names."""
    table = Table(Moments())
    rows = [row for count in (1, 5, 60, 3, 200) for row in table.allocate(count, "cpu")]
    assert len(table) == 269
    assert len(table.blocks) <= 3
    for number, row in enumerate(rows):
        table.add(row, torch.full((number + 1,), 2.0))
    joined = torch.cat(table.blocks)
    positions = table.positions(rows)
    assert len(set(positions.tolist())) == 269
    assert joined[positions, 1].tolist() == list(range(1, 270))
    assert table.read()[0] == [1] * 269


def test_emptied_rows_are_as_new_and_keep_their_place() -> None:
    """Compiled code has their addresses built in."""
    table = Table(Moments())
    (row,) = table.allocate(1, "cpu")
    new, address = row.clone(), row.data_ptr()
    table.add(row, torch.ones(3))
    assert not torch.equal(row, new)
    table.reset()
    assert torch.equal(row, new)
    assert row.data_ptr() == address


def test_a_row_that_moves_is_itself() -> None:
    """With what it held, under its old number."""
    table = Table(Moments())
    first, second = table.allocate(2, "cpu")
    new = first.clone()
    table.add(first, torch.ones(3))
    table.add(second, torch.ones(5))
    moved = table.move(first, torch.device("cpu"))
    assert len(table) == 2
    table.add(moved, torch.ones(4))
    assert table.read()[1]["count"].tolist() == [7.0, 5.0]
    assert first.tolist() == new.tolist()


def test_a_row_that_has_moved_is_read_where_it_is() -> None:
    """As when a model goes to another device between two logged steps."""
    measuring = Measurement(Lens("moments", Moments(), ("output",)), Moments(), "step", ("output",))
    measuring.prepare(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), None, "", strict=True, update_memory=math.inf)
    before = measuring.row_index({}).index.tolist()
    first, second = measuring.attachment.hooks.held[1:]
    place: RowPlace = ("output", "", OTHER_CALLS)
    for hook in (first, second):
        assert isinstance(hook, StatisticHook)
        hook._add(place, torch.ones(()))
    measuring.table.reset()
    first.rows[place] = measuring.table.move(first.rows[place], torch.device("cpu"))
    after = measuring.row_index({}).index.tolist()
    assert before == [0, 1, 2]
    assert after == [0, 3, 2]
    measuring.table.add(first.rows[place], torch.ones(7))
    measuring.table.add(second.rows[place], torch.ones(5))
    _, counts, numbers = measuring.row_index({}).finish([[block.numpy() for block in measuring.table.blocks]])
    assert counts.tolist() == [1, 1]
    assert numbers["count"].tolist() == [7, 5]


def test_a_packet_is_what_was_packed() -> None:
    """Shapes and values, whatever is written afterwards."""
    tensors = [torch.arange(6.0, dtype=torch.float64).reshape(2, 3), torch.tensor(7.0, dtype=torch.float64)]
    packet = HostCopy.of(tensors)
    for tensor in tensors:
        tensor.zero_()
    first, second = packet.unpack()
    np.testing.assert_array_equal(first, [[0, 1, 2], [3, 4, 5]])
    assert second == 7.0


class Reads(TorchDispatchMode):
    """Counts what would make a host wait for its device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in ("_local_scalar_dense", "is_nonzero", "equal", "nonzero"):
            self.names.append(name)
        return function(*args, **(kwargs or {}))


def test_a_logged_step_waits_for_no_number() -> None:
    """Nothing is read by the host while a logged step runs, beside the one copy at its end.

    Only the look at gradients reads, on a CPU, where it waits for nothing.
    """
    model, optimizer = small()
    with watch(model, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        train(model, optimizer, 3)
        inspector.run  # noqa: B018  # the coverage, which is written once, is
        train(model, optimizer, 1)
        with Reads() as reads:
            loss = model(torch.randn(5, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            inspector.push_loss(loss, train=True)
    assert reads.names == []


def test_one_copy_for_each_logged_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all statistics, ports and pushed values together, and none in other steps."""
    from sonde.inspector.pipeline import batch

    copies: list[int] = []

    def counted(tensors: Sequence[Tensor]) -> HostCopy:
        copies.append(len(tensors))
        return HostCopy.of(tensors)

    monkeypatch.setattr(batch, "HostCopy", SimpleNamespace(of=counted))
    model, optimizer = small()
    inspector = watch(model, every=2, to="memory", verbose=False)
    for expected in (1, 1, 2, 2, 3):
        train(model, optimizer, 1, inspector)
        assert len(copies) == expected
    inspector.detach()
