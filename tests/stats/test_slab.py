"""How the rows of a statistic are held: rows that never move, read in one go."""

from __future__ import annotations

import torch

from sonde.stats import Moments, Slab


def test_a_slab_reads_all_its_blocks_in_order() -> None:
    """Rows of several allocations come back in the order they were allocated, each with its number of additions."""
    slab = Slab(Moments())
    assert slab.read() == ([], {})
    first, alone, last = slab.allocate(2, "cpu"), slab.allocate(1, "cpu"), slab.allocate(3, "cpu")
    rows = [*first, *alone, *last]
    assert len(slab) == 6
    for index, held in enumerate(rows):
        for _ in range(index):
            slab.add(held, torch.tensor([float(index), float(-index)]))
    counts, columns = slab.read()
    assert counts == [0, 1, 2, 3, 4, 5]
    assert columns["count"].tolist() == [0, 2, 4, 6, 8, 10]
    assert columns["max"][1:].tolist() == [1, 2, 3, 4, 5]
    assert columns["min"][1:].tolist() == [-1, -2, -3, -4, -5]
    assert [held.shape for held in rows] == [(1 + len(Moments.fields),)] * 6


def test_a_reset_slab_is_empty_and_its_rows_have_not_moved() -> None:
    """``reset`` empties rows in place: the views that hooks hold, whose address is built into code, still count."""
    slab = Slab(Moments())
    (held,) = slab.allocate(1, "cpu")
    address = held.data_ptr()
    slab.add(held, torch.tensor([100.0]))
    slab.reset()
    assert slab.read()[0] == [0]
    slab.allocate(2, "cpu")
    slab.add(held, torch.tensor([2.0, 4.0]))
    counts, columns = slab.read()
    assert counts == [1, 0, 0]
    assert [columns[name][0] for name in ("count", "mean", "min", "max")] == [2.0, 3.0, 2.0, 4.0]
    assert held.data_ptr() == address


def test_what_was_read_does_not_change_later() -> None:
    """Numbers read from a slab are a copy: adding more, or emptying it, leaves them as they were."""
    slab = Slab(Moments())
    (held,) = slab.allocate(1, "cpu")
    slab.add(held, torch.tensor([1.0]))
    _, columns = slab.read()
    slab.add(held, torch.tensor([50.0]))
    slab.reset()
    assert columns["count"].tolist() == [1.0]
    assert columns["max"].tolist() == [1.0]


def test_rows_allocated_in_inference_mode_can_be_added_to_in_training() -> None:
    """Rows are ordinary tensors wherever they were allocated, and adding in inference mode works too."""
    slab = Slab(Moments())
    with torch.inference_mode():
        (held,) = slab.allocate(1, "cpu")
        slab.add(held, torch.tensor([1.0]))
    slab.add(held, torch.tensor([3.0]))
    assert slab.read()[1]["mean"].tolist() == [2.0]
