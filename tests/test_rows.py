"""Blocks of rows: moments by their position, the last ones, and pieces of a bounded size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sonde.errors import ArgumentError
from sonde.rows import Layout, RowBlock, Rows
from sonde.run import start_run

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


def test_rows_say_how_much_of_a_training_they_are_of(tmp_path: Path) -> None:
    """In a training of one process they are of the whole, unless somebody says otherwise."""
    layout = Layout(["fc:output", "fc.weight:grad"], scope=["data-parallel", "global"])
    with start_run(tmp_path / "run") as writer:
        writer.append("plain", Layout(["fc:output"]), {"rms": 1.0}, step=0)
        writer.extend("joined", layout, {"rms": [1.0, 2.0]}, moments=[(0, 0, 0)], lengths=[2], rows=[1, 0], ranks=[4, 2])
        writer.scalar("loss", 0.5, step=0)
        writer.scalar("norm", 0.5, step=1, scope="rank", ranks=1)
    run = writer.run()
    assert run.sql("SELECT scope, ranks FROM plain").fetchall() == [("global", 1)]
    assert run.sql("SELECT site, scope, ranks FROM joined ORDER BY site").fetchall() == [
        ("fc.weight:grad", "global", 4),
        ("fc:output", "data-parallel", 2),
    ]
    assert run.sql("SELECT name, scope, ranks FROM scalars").fetchall() == [("loss", "global", 1), ("norm", "rank", 1)]
    with pytest.raises(ArgumentError, match="'world' is no scope of a row"):
        Layout(["fc:output"], scope="world")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="has 1 of 'scope'"):
        Layout(["fc:output", "fc:grad_output"], scope=["rank"])
