"""Which part of a distributed tensor a rank holds, without communication."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tests.processes import on_ranks, values
from torch import Tensor, nn

from sonde.errors import ArgumentError
from sonde.stats import Accumulator, Cosine, Moments, Spectrum, Updates, cosine, vanished_share
from sonde.stats.activation import ChannelActivation
from sonde.stats.pieces import Piece, local
from sonde.stats.samples import MatrixCondition, SampleNorm


def whole(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def cut(tensor: Tensor, piece: Piece) -> Tensor:
    return tensor[tuple(slice(start, start + size) for start, size in zip(piece.offset, piece.shape, strict=True))]


def placed(mesh_shape: tuple[int, ...], layouts: list[tuple[tuple[int, ...], str]]) -> list[Any]:
    """Distribute tensors as *layouts* say, by a letter for each dimension of the mesh; return piece, words and local elements."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", mesh_shape)
    found: list[Any] = []
    for shape, letters in layouts:
        placements = [Replicate() if letter == "r" else Shard(int(letter)) for letter in letters]
        tensor = distribute_tensor(whole(*shape), mesh, placements)
        piece, part = Piece.of(tensor), local(tensor)
        assert piece is not None
        assert part is not None
        assert type(part) is Tensor
        assert torch.equal(cut(whole(*shape), piece), part)
        found.append((piece, Piece.in_words(tensor), Piece.is_part(tensor)))
    return found


def test_pieces_of_two_ranks() -> None:
    first, second = values(on_ranks(2, placed, (2,), [((8, 16), "0"), ((3, 2), "0"), ((1, 2), "0"), ((4, 6), "1"), ((4,), "r")]))
    assert [words for _, words, _ in first] == [
        "rank 0's part [0:4] of (8, 16)",
        "rank 0's part [0:2] of (3, 2)",  # the shards are uneven
        "",  # the first rank holds all
        "rank 0's part [:, 0:3] of (4, 6)",
        "",
    ]
    assert [words for _, words, _ in second] == [
        "rank 1's part [4:8] of (8, 16)",
        "rank 1's part [2:3] of (3, 2)",
        "rank 1's part [1:1] of (1, 2)",  # and the second nothing
        "rank 1's part [:, 3:6] of (4, 6)",
        "",
    ]
    assert [split for _, _, split in first] == [True, True, True, True, False]
    assert second[1][0] == Piece((3, 2), (1, 2), (2, 0))
    assert json.loads(json.dumps(second[1][0])) == [[3, 2], [1, 2], [2, 0]]


def test_pieces_on_a_mesh_of_two_dimensions() -> None:
    """Ranks that hold the same elements, and they alone, have equal pieces."""
    found = values(on_ranks(4, placed, (2, 2), [((8, 2), "r0"), ((8, 2), "01"), ((7, 2), "00"), ((2, 2), "rr")]))
    hybrid, both, nested, copied = ([rank[at][0] for rank in found] for at in range(4))
    assert hybrid[0] == hybrid[2] != hybrid[1] == hybrid[3]
    assert len(set(both)) == len(set(nested)) == 4
    assert len(set(copied)) == 1


def sharded_twice() -> Piece | None:
    """FSDP2 of a parameter that tensor parallelism has split before: a shard of a shard, in the other order."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Linear(2, 8, bias=False)
    with torch.no_grad():
        model.weight.copy_(whole(8, 2))
    parallelize_module(model, mesh["tp"], ColwiseParallel())
    fully_shard(model, mesh=mesh["dp"])
    piece, part = Piece.of(model.weight), local(model.weight)
    assert piece is not None
    assert part is not None
    assert torch.equal(cut(whole(8, 2), piece), part)
    return piece


@pytest.mark.slow
def test_a_shard_of_a_shard() -> None:
    pieces = values(on_ranks(4, sharded_twice))
    assert [piece.offset for piece in pieces] == [(0, 0), (4, 0), (2, 0), (6, 0)]


def measured() -> None:
    """Statistics of distributed tensors are those of this rank's part, where only one rank asks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    tensor, other = distribute_tensor(whole(4, 2), mesh, [Shard(0)]), distribute_tensor(whole(4, 2) + 1, mesh, [Shard(0)])
    asynchronous = DTensor.from_local(torch.ones(2), mesh, [Partial()]).redistribute(mesh, [Replicate()], async_op=True)
    addend = DTensor.from_local(torch.ones(2), mesh, [Partial()])
    if torch.distributed.get_rank() == 1:
        asynchronous.to_local().add(0)
        return
    part, after = whole(4, 2)[:2], whole(4, 2)[:2] + 1
    assert Accumulator(Moments()).update(tensor).compute().norm == float(part.double().norm())
    assert Accumulator(Cosine()).update(tensor).update(other).compute().pairs == 1
    assert Accumulator(Updates()).update(other, tensor).compute().update_norm == 2.0
    assert cosine(tensor, other) == cosine(part, after)
    assert vanished_share(tensor, other, tensor) == 0.0
    waited = local(asynchronous)
    assert waited is not None
    assert waited.tolist() == [2.0, 2.0]
    assert local(addend) is None
    assert Piece.of(addend) is None
    with pytest.raises(ArgumentError, match="a partial sum: each rank holds an addend, and no rank the value"):
        Accumulator(Moments()).update(addend)


def test_statistics_take_the_part_of_one_rank() -> None:
    on_ranks(2, measured)


def test_a_plain_tensor_is_whole() -> None:
    tensor = torch.zeros(3, 2)
    assert local(tensor) is tensor
    assert Piece.of(tensor) == Piece((3, 2), (3, 2), (0, 0))
    assert Piece.in_words(tensor) == ""
    assert not Piece.is_part(tensor)
    assert str(Piece.of(tensor)) == "[] of (3, 2)"


def test_statistics_say_which_parts_add_up() -> None:
    assert Moments().takes_part((4, 6), (2, 6))
    assert not MatrixCondition().takes_part((4, 6), (2, 6))
    assert Spectrum(6).takes_part((4, 6), (2, 6))
    assert not Spectrum(6).takes_part((4, 6), (4, 3))
    assert ChannelActivation(4, channel_axis=0).takes_part((4, 6), (4, 3))
    assert not ChannelActivation(4, channel_axis=0).takes_part((4, 6), (2, 6))
    assert ChannelActivation(1).takes_part((4,), (2,))  # too few dimensions for the axis: one channel
    assert SampleNorm().takes_part((4, 6), (2, 6))
    assert not SampleNorm().takes_part((4, 6), (4, 3))
    assert SampleNorm(sample_axis=1).takes_part((5, 4, 6), (5, 2, 6))
