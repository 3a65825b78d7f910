"""The table printer: text that fits, text in a notebook, and HTML that keeps the indentation."""

from __future__ import annotations

import math
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import rich.console

from sonde.answer import Cell, Grid, standard_output
from sonde.rules import judge
from sonde.view.layer_table import LayerRow, Quantity, layer_table, notes_of

GRID = Grid(
    "title",
    ["layer", "type", "size", ""],
    [[Cell("  a"), Cell("Linear" * 3), Cell("1"), Cell("words " * 9)]],
    optional=("type", "size"),
)


def test_columns_that_do_not_fit_are_left_out_in_their_order_and_named() -> None:
    """The last column folds before others go, but not below 24 characters."""
    assert "left out" not in GRID.to_text()
    assert "left out" not in GRID.to_text(80)
    narrow = GRID.to_text(50)
    assert narrow.splitlines()[-1] == "left out to fit 50 columns: type"
    assert "Linear" not in narrow
    assert all(len(line) <= 50 for line in narrow.splitlines())


def test_a_narrow_column_comes_back_where_a_wide_one_left_room() -> None:
    columns = ["layer", "few", "wide", ""]
    rows = [[Cell("conv1"), Cell("1"), Cell("word " * 9), Cell("")]]
    lines = Grid("title", columns, rows, optional=("few", "wide")).to_text(40).splitlines()
    assert lines[1].split() == ["layer", "few"]
    assert lines[-1] == "left out to fit 40 columns: wide"


def test_a_pipe_gets_whole_lines_and_a_terminal_lines_that_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines for ``less -S`` and ``grep``, without spaces at their ends; ``COLUMNS`` is obeyed where it is set."""
    monkeypatch.delenv("COLUMNS", raising=False)
    standard_output().print(GRID)
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == f"  a     LinearLinearLinear   1      {'words ' * 9}".rstrip()
    assert lines == repr(GRID).splitlines()
    standard_output(piped=50).print(GRID)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 50
    monkeypatch.setenv("COLUMNS", "50")
    standard_output().print(GRID)
    assert "left out to fit 50 columns: type" in capsys.readouterr().out


def test_words_keep_their_room_beside_long_names() -> None:
    """As in a model of many levels: names lose their beginnings before the words fold to less than 24 characters."""
    name = "encoder.layers.10.attention.output.LayerNorm"
    rows = [[Cell(name), Cell("Linear"), Cell("words " * 9)], [Cell("fc"), Cell("Linear"), Cell("")]]
    lines = Grid("title", ["layer", "type", ""], rows, optional=("type",)).to_text(50).splitlines()
    assert all(len(line) <= 50 for line in lines)
    assert lines[3].startswith("…")
    assert "output.LayerNorm   words words" in lines[3]
    assert sum("words" in line for line in lines) <= 3
    assert lines[-2] == "fc"


def test_text_fits_the_terminal_if_it_goes_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is as wide as it needs to be in a file."""
    assert "LinearLinearLinear" in repr(GRID)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("COLUMNS", "50")
    assert "left out to fit 50 columns" in repr(GRID)


def test_in_a_notebook_the_text_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich displays instead of writing where it finds Jupyter; a table as text must not."""
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert str(GRID).splitlines()[0] == "title"
    assert "words" in str(GRID)


def test_headings_in_html_stand_on_the_side_of_their_cells() -> None:
    page = Grid("t", ["a", "b"], [[Cell("x"), Cell("1", align="right")]])._repr_html_()
    assert '<th>a</th><th class="right">b</th>' in page
    assert '<td>x</td><td class="right">1</td>' in page


def test_html_keeps_indentation_and_escapes() -> None:
    page = Grid("<t>", ["a"], [[Cell("    <b>")]], ["x & y"])._repr_html_()
    assert "<td>&nbsp;&nbsp;&nbsp;&nbsp;&lt;b&gt;</td>" in page
    assert "&lt;t&gt;" in page
    assert "x &amp; y" in page


# The layer table


def cells(*rows: LayerRow) -> dict[str, list[str]]:
    grid = layer_table("t", rows)
    return {heading: [row[place].text for row in grid.rows] for place, heading in enumerate(grid.columns)}


@pytest.mark.parametrize(
    ("heading", "quantity", "text"),
    [
        ("rms", Quantity(0.12345), "0.123"),
        ("rms", Quantity(0.12345, nan=0.5), "0.123 (50 % NaN)"),
        ("rms", Quantity(0.12345, inf=0.25), "0.123 (25 % inf)"),
        ("rms", Quantity(0.12345, nan=0.5, inf=0.25), "0.123 (50 % NaN, 25 % inf)"),
        ("rms", Quantity.of(0.0, 4, 0, 4), "NaN"),
        ("rms", Quantity.of(0.0, 0, 4, 4), "inf"),
        ("rms", Quantity.of(0.0, 1, 3, 4), "NaN, inf"),
        ("rms", Quantity.of(2.0, 1, 0, 4), "2 (25 % NaN)"),
        ("rms", Quantity.of(2.0, 1, 0, math.nan), "NaN"),
        ("rms", Quantity(math.inf), "inf"),
        ("mean ± std", Quantity(-0.5, 1.25), "-0.500 ± 1.25"),
        ("mean ± std", Quantity(1e6, None), " 1.0e+06"),
        ("mean ± std", Quantity(0.99999, 1.00001), " 1.00 ± 1.00"),
        ("mean ± std", Quantity(9.999, 99.99), " 10.0 ± 100"),
        ("zeros", Quantity(0.001), ""),
        ("zeros", Quantity(0.5), "50 %"),
        ("dead", Quantity(0.0), "0 %"),
        ("gradient", Quantity(0.0), "0"),
        ("gradient", Quantity(1e-20), "1.0e-20"),
        ("mean ± std", Quantity(0.0, 1e-9), " 0 ± 1.0e-09"),
        ("update / weight", Quantity(1e-3, nan=1e-9), "1.0e-03 (<1 % NaN)"),
    ],
)
def test_how_numbers_are_written(heading: str, quantity: Quantity, text: str) -> None:
    found: dict[str, Any] = cells(LayerRow("a", numbers={heading: quantity, "weight": Quantity(1.0)}))
    assert found.get(heading, [""]) == [text]


def test_only_columns_with_something_in_them_and_in_their_order() -> None:
    first = LayerRow("", "Net", {"calls": "2", "output": "3×4"}, depth=0)
    second = LayerRow("block.fc", "Linear", {"output": "3×5"}, {"weight": Quantity(2.0)}, depth=2)
    found = cells(first, second)
    assert list(found) == ["layer", "type", "output", "calls", "weight", ""]
    assert found["layer"] == ["(root)", "    fc"]
    assert found["output"] == ["3×4", "3×5"]


def test_words_stand_out_as_their_worst() -> None:
    grave, note = judge("nonfinite", 1, 0, 4), judge("dead", 0.5)
    assert grave is not None
    assert note is not None
    grid = layer_table("t", [LayerRow("a", notes=notes_of([note, grave], ["frozen"])), LayerRow("b", notes=notes_of([note]))])
    assert [(row[-1].text, row[-1].tone) for row in grid.rows] == [
        ("50 % dead in a batch; not finite: 1 NaN; frozen", "bad"),
        ("50 % dead in a batch", "warn"),
    ]
    zero = judge("gradient_zero", 0.0)
    assert zero is not None
    assert re.search("gradient is zero", repr(layer_table("t", [LayerRow("", notes=notes_of([zero]))])))
