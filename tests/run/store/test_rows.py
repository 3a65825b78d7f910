"""Blocks of rows: moments by their position, the last ones, and pieces of a bounded size."""

from __future__ import annotations

import numpy as np
import pytest

from sonde.inspector.sinks.base import Rows
from sonde.run.schema import Layout
from sonde.run.store.rows import RowBlock

WHEN, EDGES = np.array([[0, 3, 0], [0, 4, 0], [1, 5, 2]]), np.array([0, 2, 3, 5])
BLOCK = RowBlock(
    "x",
    Layout(["a:output", "b:output"]),
    np.array([0, 1, 1, 0, 1]),
    WHEN,
    EDGES,
    np.ones(5),
    {"n": np.arange(5.0), "t": list("vwxyz")},
)


def moments(block: RowBlock) -> list[tuple[int, int, int, list[str], list[float], list[str]]]:
    made = [Rows.of(block, moment) for moment in range(len(block))]
    return [(each.epoch, each.step, each.micro_step, each.sites, each.numbers["n"].tolist(), each.numbers["t"]) for each in made]


ALL = [
    (0, 3, 0, ["a:output", "b:output"], [0.0, 1.0], ["v", "w"]),
    (0, 4, 0, ["b:output"], [2.0], ["x"]),
    (1, 5, 2, ["a:output", "b:output"], [3.0, 4.0], ["y", "z"]),
]


def test_moments_and_the_last_of_them() -> None:
    """Each with its rows."""
    assert moments(BLOCK) == ALL
    assert moments(BLOCK.last(2)) == ALL[1:]
    assert BLOCK.last(3) is BLOCK
    assert (len(BLOCK), BLOCK.lines) == (3, 5)


@pytest.mark.parametrize(("most", "lengths"), [(10**6, [3]), (3 * 56, [2, 1]), (2 * 56, [1, 1, 1]), (1, [1, 1, 1])])
def test_pieces_hold_whole_moments(most: int, lengths: list[int]) -> None:
    """As many as fit, and one at least; a row has 56 bytes here: two columns of 8 and its keys."""
    assert BLOCK.nbytes == 5 * 56
    pieces = list(BLOCK.pieces(most))
    assert [len(piece) for piece in pieces] == lengths
    assert [moment for piece in pieces for moment in moments(piece)] == ALL
