"""How the rows of a statistic are held: rows that never move, read in one go."""

from __future__ import annotations

import pytest
import torch

from sonde.stats import HostCopy, Moments, Norm, Table


def test_a_slab_reads_all_its_blocks_in_order() -> None:
    """Rows of several allocations come back in the order they were allocated, each with its number of additions."""
    table = Table(Moments())
    assert table.read() == ([], {})
    first, alone, last = table.allocate(2, "cpu"), table.allocate(1, "cpu"), table.allocate(3, "cpu")
    rows = [*first, *alone, *last]
    assert len(table) == 6
    for index, held in enumerate(rows):
        for _ in range(index):
            table.add(held, torch.tensor([float(index), float(-index)]))
    counts, columns = table.read()
    assert counts == [0, 1, 2, 3, 4, 5]
    assert columns["count"].tolist() == [0, 2, 4, 6, 8, 10]
    assert columns["max"][1:].tolist() == [1, 2, 3, 4, 5]
    assert columns["min"][1:].tolist() == [-1, -2, -3, -4, -5]
    assert [held.shape for held in rows] == [(1 + len(Moments.fields),)] * 6


def test_a_reset_slab_is_empty_and_its_rows_have_not_moved() -> None:
    """``reset`` empties rows in place: the views that hooks hold, whose address is built into code, still count."""
    table = Table(Moments())
    (held,) = table.allocate(1, "cpu")
    address = held.data_ptr()
    table.add(held, torch.tensor([100.0]))
    table.reset()
    assert table.read()[0] == [0]
    table.allocate(2, "cpu")
    table.add(held, torch.tensor([2.0, 4.0]))
    counts, columns = table.read()
    assert counts == [1, 0, 0]
    assert [columns[name][0] for name in ("count", "mean", "min", "max")] == [2.0, 3.0, 2.0, 4.0]
    assert held.data_ptr() == address


def test_what_was_read_does_not_change_later() -> None:
    """Numbers read from a table are a copy: adding more, or emptying it, leaves them as they were."""
    table = Table(Moments())
    (held,) = table.allocate(1, "cpu")
    table.add(held, torch.tensor([1.0]))
    _, columns = table.read()
    table.add(held, torch.tensor([50.0]))
    table.reset()
    assert columns["count"].tolist() == [1.0]
    assert columns["max"].tolist() == [1.0]


def test_rows_allocated_in_inference_mode_can_be_added_to_in_training() -> None:
    """Rows are ordinary tensors wherever they were allocated, and adding in inference mode works too."""
    table = Table(Moments())
    with torch.inference_mode():
        (held,) = table.allocate(1, "cpu")
        table.add(held, torch.tensor([1.0]))
    table.add(held, torch.tensor([3.0]))
    assert table.read()[1]["mean"].tolist() == [2.0]


def test_additions_count_on_after_a_reset_and_take_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several tables at once, also of rows in blocks that were allocated after the reset."""
    one, other = Table(Norm(), 1), Table(Moments())
    (first,) = one.allocate(1, "cpu")
    (alone,) = other.allocate(1, "cpu")
    for _ in range(3):
        one.add(first, torch.ones(2))
    one.reset(counts_on=True)
    later = one.allocate(100, "cpu")
    one.add(first, torch.ones(2))
    one.add(later[-1], torch.ones(2))
    other.add(alone, torch.ones(2))
    copies: list[int] = []
    monkeypatch.setattr(HostCopy, "of", lambda tensors, of=HostCopy.of: copies.append(len(tensors)) or of(tensors))
    added = Table.additions([one, other])
    assert len(copies) == 1
    assert [added[id(row)] for row in (first, *later[:2], later[-1], alone)] == [4, 0, 0, 1, 1]
    assert Table.additions([]) == {}
