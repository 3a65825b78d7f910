"""Rows in few blocks, and one copy per device that later writing does not reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.inspector.training import small, train
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sonde.inspector import Lens, watch
from sonde.inspector.measurement.measurement import Measurement
from sonde.inspector.measurement.packed_slab import PackedSlab, pack
from sonde.stats import Moments


def test_rows_lie_in_few_blocks_and_are_found_again() -> None:
    """However they were allocated; a row is of the block that its place names."""
    slab = PackedSlab(Moments())
    rows = [row for count in (1, 5, 60, 3, 200) for row in slab.allocate(count, "cpu")]
    assert len(slab) == 269
    assert len(slab.blocks) <= 3
    for number, row in enumerate(rows):
        slab.add(row, torch.full((number + 1,), 2.0))
    places = slab.places()
    for number, row in enumerate(rows):
        block, position = places[id(row)]
        assert slab.blocks[block][position].data_ptr() == row.data_ptr()
        assert slab.blocks[block][position, 1] == number + 1
    assert slab.read()[0] == [1] * 269


def test_emptied_rows_are_as_new_and_keep_their_place() -> None:
    """Compiled code has their addresses built in."""
    slab = PackedSlab(Moments())
    (row,) = slab.allocate(1, "cpu")
    new, address = row.clone(), row.data_ptr()
    slab.add(row, torch.ones(3))
    assert not torch.equal(row, new)
    slab.reset()
    assert torch.equal(row, new)
    assert row.data_ptr() == address


def test_a_row_that_moves_is_itself() -> None:
    """With what it held, under its old number."""
    slab = PackedSlab(Moments())
    first, second = slab.allocate(2, "cpu")
    slab.add(first, torch.ones(3))
    slab.add(second, torch.ones(5))
    moved = slab.move(first, torch.device("cpu"))
    assert len(slab) == 2
    slab.add(moved, torch.ones(4))
    assert slab.read()[1]["count"].tolist() == [7.0, 5.0]
    assert id(first) not in slab.places()


def test_a_row_that_has_moved_is_read_where_it_is() -> None:
    """As when a model goes to another device between two logged steps."""
    measuring = Measurement(Lens("moments", Moments(), ("output",)), Moments(), "step", ("output",))
    measuring.prepare(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), None, "", strict=True, update_memory=math.inf)
    before = measuring.rowed({}).index.tolist()
    first, second = measuring.attachment.taps[1:]
    first.rows["output"] = measuring.slab.move(first.rows["output"], torch.device("cpu"))
    after = measuring.rowed({}).index.tolist()
    assert before == [0, 1, 2]
    assert after == [0, 3, 2]
    measuring.slab.add(first.rows["output"], torch.ones(7))
    measuring.slab.add(second.rows["output"], torch.ones(5))
    _, counts, numbers = measuring.rowed({}).finish([[block.numpy() for block in measuring.blocks]])
    assert counts.tolist() == [1, 1]
    assert numbers["count"].tolist() == [7, 5]


def test_a_packet_is_what_was_packed() -> None:
    """Shapes and values, whatever is written afterwards."""
    tensors = [torch.arange(6.0, dtype=torch.float64).reshape(2, 3), torch.tensor(7.0, dtype=torch.float64)]
    packet = pack(tensors)
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
    """Nothing is read by the host while a logged step runs, beside the one copy at its end."""
    model, optimizer = small()
    with watch(model, every=1, to="memory", quiet=True) as inspector:
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
    from sonde.inspector.measurement import packed_slab
    from sonde.inspector.pipeline import batch

    copies: list[int] = []

    def counted(tensors: Sequence[Tensor]) -> packed_slab.HostCopy:
        copies.append(len(tensors))
        return packed_slab.pack(tensors)

    monkeypatch.setattr(batch, "pack", counted)
    model, optimizer = small()
    inspector = watch(model, every=2, to="memory", quiet=True)
    for expected in (1, 1, 2, 2, 3):
        train(model, optimizer, 1, inspector)
        assert len(copies) == expected
    inspector.detach()
