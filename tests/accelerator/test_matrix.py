"""A training on a device: it has the bits of one that nobody observes, and its numbers are those of hooks by hand.

The same situations run on the CPU, so that this code is alive on every machine; ``make gpu`` runs them on an accelerator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import bounds
from tests.accelerator.situations import (
    COMPILED,
    ROWS,
    SITUATIONS,
    SLOW,
    STEPS,
    WIDTH,
    Looks,
    NotOfferedError,
    batch,
    looked_at,
    made,
)
from tests.processes import on_ranks, values
from torch import distributed, nn

import sonde

ACCELERATOR = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None

# A float32 training: as in tests/engine/test_compile_matrix.py, for the layers and operations of this model.
LAYERS = 3
ROUNDINGS = STEPS * 2 * (LAYERS * (2 * WIDTH + 10) + ROWS)

DEVICES = [
    pytest.param(torch.device("cpu"), id="cpu"),
    pytest.param(
        ACCELERATOR,
        id="accelerator",
        marks=[pytest.mark.gpu, pytest.mark.skipif(ACCELERATOR is None, reason="needs a GPU")],
    ),
]
CASES = [
    pytest.param(situation, id=situation.__name__, marks=[pytest.mark.slow] if situation in SLOW else [])
    for situation in SITUATIONS
]


def expect_numbers(watched: Looks, by_hand: Looks, roundings: int) -> None:
    """Each tensor that hooks by hand have seen has a row with its numbers, and no other step has any."""
    assert {step for _, step in by_hand.kept} == {step for _, step in watched.rows} == set(range(STEPS))
    assert by_hand.kept.keys() - watched.rows.keys() == set()
    for place, tensor in by_hand.kept.items():
        found, most = watched.rows[place], tensor.abs().max().item()
        error = bounds.relative(2 * tensor.numel()) + (bounds.relative(roundings, torch.float32) if roundings else 0.0)
        assert (found["count"], found["nan"]) == (tensor.numel(), 0), place
        assert found["mean"] == pytest.approx(tensor.mean().item(), rel=0, abs=error * most), place
        assert found["rms"] == pytest.approx(tensor.square().mean().sqrt().item(), rel=0, abs=error * most), place
        assert found["absmax"] == pytest.approx(most, rel=0, abs=error * most), place


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("situation", CASES)
def test_nothing_changes_and_the_numbers_are_those_of_hooks_by_hand(
    situation: Callable[[Looks, torch.device], None], device: torch.device
) -> None:
    try:
        alone = looked_at(situation, device, "")
    except NotOfferedError as needs:
        pytest.skip(str(needs))
    watched, by_hand = looked_at(situation, device, "watch"), looked_at(situation, device, "hooks")
    for name, parameter in alone.parameters.items():
        assert torch.equal(watched.parameters[name], parameter), name
    expect_numbers(watched, by_hand, ROUNDINGS if situation in COMPILED else 0)


def parallel(kind: str) -> tuple[list[torch.Tensor], list[torch.Tensor], list[Any]]:
    """Train with DistributedDataParallel; return the parameters without and with ``watch``, and the rows of the head's outputs."""
    rank = distributed.get_rank()
    device = torch.device(kind, rank) if kind != "cpu" else torch.device("cpu")
    found = []
    for watching in (False, True):
        model = made(device)
        outer = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        inspector = sonde.watch(model, optimizer, every=1, to="memory", verbose=False, rules=False) if watching else None
        for step in range(STEPS):
            x, y = batch(step * distributed.get_world_size() + rank, device)
            optimizer.zero_grad()
            (outer(x) - y).square().mean().backward()
            optimizer.step()
        found.append([parameter.detach().cpu() for parameter in model.parameters()])
    assert inspector is not None
    inspector.detach()
    rows = (
        inspector.run.sql("SELECT step, count FROM moments WHERE site = 'head:output' ORDER BY step").fetchall()
        if rank == 0
        else []
    )
    return *found, rows


def in_group(kind: str) -> tuple[list[torch.Tensor], list[torch.Tensor], list[Any]]:
    """Do the same in the process group that torch chooses for the device."""
    device = torch.device(kind, int(distributed.get_node_local_rank())) if kind != "cpu" else None
    if device is not None:
        torch.accelerator.set_device_index(device.index)
    distributed.init_process_group(distributed.get_default_backend_for_device(kind), device_id=device)
    try:
        return parallel(kind)
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_ranks_that_talk_through_the_device_train_the_same_and_their_rows_are_joined(device: torch.device) -> None:
    """In nccl, where the accelerator is one of CUDA: on each of its devices, but on two at most."""
    kind = device.type
    try:
        distributed.get_default_backend_for_device(kind)
    except ValueError:
        pytest.skip(f"torch has no collectives for {kind}")
    ranks = 2 if kind == "cpu" else min(2, torch.accelerator.device_count())
    for rank, (alone, watched, rows) in enumerate(values(on_ranks(ranks, in_group, kind, group=False))):
        assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))
        assert rows == ([(step, ranks * ROWS * 3) for step in range(STEPS)] if rank == 0 else [])
