"""Make the one table of layers: rows of plain numbers and words in, a grid out, for all instruments.

``sonde.track``, ``sonde.summary``, ``sonde show`` and ``sonde.view.plots.table`` differ in which columns their rows fill and in
the order of the rows; columns, their order, the way numbers are written and the words in the last column are the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sonde.answer import Cell, Grid, Tone
from sonde.rules import Finding, Severity
from sonde.view.folding import folded
from sonde.words import percent

Note = tuple[str, Tone]
"""One thing that is notable, and how it stands out."""

NO_ELEMENTS = "no elements"  # in an output: the batch was empty
GRADIENT_IS = "gradient: Euclidean norm of the gradient at the layer's output"

TONES: Mapping[Severity, Tone] = {"note": "warn", "warn": "warn", "bad": "bad"}
FOUND: tuple[Tone, ...] = ("bad", "warn")
_NEAR, _NEAR_SHARE = 2.0, 0.1
ALIKE_IS = "alike: the same parts, sizes within a factor of 2, shares within 10 %, and nothing found in any"
_NOTABLE_ZEROS = 0.01  # share of the elements


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a layer.

    Attributes:
        value: over the finite elements; NaN if there is none.
        spread: the standard deviation that is written behind it; None for none.
        nan, inf: shares of the elements that are NaN and infinite, from 0 to 1; *value* leaves them out.
    """

    value: float
    spread: float | None = None
    nan: float = 0.0
    inf: float = 0.0

    @classmethod
    def of(cls, value: float, nan: float, inf: float, count: float, spread: float | None = None) -> Quantity:
        """Return the number of *count* elements with *nan* NaN and *inf* infinities; without a count, or a finite element, NaN."""
        if not nan and not inf:
            return cls(value, spread)
        if not nan + inf < count:
            return cls(math.nan, None if spread is None else math.nan, nan / (nan + inf), inf / (nan + inf))
        return cls(value, spread, nan / count, inf / count)


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One row of the table: the texts and numbers of one layer.

    Attributes:
        name: the module's name in ``named_modules()``; ``""`` is the model itself.
        type: the module's class.
        texts: the cells that are texts, by heading: ``input`` and ``output`` (shapes), ``calls``, ``params``, ``FLOPs``,
            ``memory``; of a recorder ``slot``, ``samples``, ``kept``, ``shape``.
        numbers: the cells that are numbers, by heading; the headings are those of ``COLUMNS``.
        notes: the words of the last column.
        depth: how far the row is indented, which then shows the last part of the name alone; None shows the whole name.
        tone: how the name stands out.
        repeats: the numbers are those of another row, and are written in a quiet tone.
    """

    name: str
    type: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, Quantity] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    depth: int | None = None
    tone: Tone = "strong"
    repeats: bool = False


def number(value: float) -> str:
    """Three significant digits, with room for the sign; exact zero is ``0``, and nothing else is."""
    magnitude = abs(value)
    if not magnitude:
        return " 0"
    if magnitude and not 1e-3 <= magnitude < 1e5:
        return f"{value: .1e}"
    decimals = 3 if magnitude < 0.9995 else 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0
    return f"{value: .{decimals}f}"


def first_of(shapes: Sequence[str]) -> str:
    """The first of *shapes*, which are texts, and the number of the others; ``""`` for none."""
    return "".join(shapes[:1]) + (f" (+{len(shapes) - 1})" if len(shapes) > 1 else "")


def _spread(quantity: Quantity) -> Cell:
    behind = "" if quantity.spread is None else f" ± {number(quantity.spread).strip()}"
    return Cell(number(quantity.value) + behind)


def _share(quantity: Quantity) -> Cell:
    return Cell(percent(quantity.value), align="right")


def _zeros(quantity: Quantity) -> Cell:
    share = quantity.value
    return Cell(percent(share), bar=share) if share >= _NOTABLE_ZEROS else Cell("")


def _digits(quantity: Quantity) -> Cell:
    return Cell(f"{quantity.value:.3g}", align="right")


def _decades(quantity: Quantity) -> Cell:
    return Cell(f"{quantity.value:.1e}" if quantity.value else "0", align="right")


COLUMNS: Mapping[str, Callable[[Quantity], Cell] | None] = {
    "slot": None,
    "layer": None,
    "type": None,
    "samples": None,
    "kept": None,
    "shape": None,
    "input": None,
    "output": None,
    "calls": None,
    "params": None,
    "FLOPs": None,
    "memory": None,
    "mean ± std": _spread,
    "rms": _digits,
    "last finite": _digits,
    "zeros": _zeros,
    "dead": _share,
    "gradient": _decades,
    "weight": _digits,
    "weight grad": _decades,
    "update / weight": _decades,
    "": None,
}
"""The headings in their order, with the way their numbers are written; the others are texts."""

DROPPED_FIRST = (
    "input",
    "weight",
    "calls",
    "type",
    "zeros",
    "output",
    "weight grad",
    "dead",
    "update / weight",
    "gradient",
)
"""The columns that are left out first, in this order, from tables of measured numbers: the size of the outputs stays."""
_SIZES = ("rms", "gradient", "weight", "weight grad", "update / weight")
"""Headings of sizes, which stand out where they are exactly 0."""
_RIGHT = ("slot", "samples", "calls", "params", "FLOPs", "memory")


def layer_table(
    title: str,
    rows: Iterable[LayerRow],
    footer: Sequence[str] = (),
    *,
    empty: str = "nothing",
    dropped_first: Sequence[str] = DROPPED_FIRST,
) -> Grid:
    """The table of *rows*, in their order; a column that no row fills is left out.

    Blocks that are alike are folded into one row; a block with a finding never is.
    Columns of *dropped_first* are left out, in that order, where the terminal is too narrow.
    """
    rows = tuple(rows)
    shown = folded(rows, _structure, _is_alike, lambda row: any(tone in FOUND for _, tone in row.notes), _fold)
    footer = footer if len(shown) == len(rows) else [*footer, ALIKE_IS]
    cells = [_cells(row) for row in shown]
    kept = [heading for heading in COLUMNS if heading in ("layer", "") or any(row[heading].text for row in cells)]
    grid = [[row[heading] for heading in kept] for row in cells]
    return Grid(title, kept, grid, list(footer), empty=empty, optional=tuple(each for each in dropped_first if each in kept))


def _structure(row: LayerRow) -> str:
    """What the same row of blocks that are alike has in common: all but its name and its place."""
    notes = re.sub(r"\d+", "#", "; ".join(text for text, tone in row.notes if tone not in FOUND))
    return "|".join([row.type, *(f"{name}={text}" for name, text in row.texts.items() if name != "slot"), *row.numbers, notes])


def _is_alike(one: LayerRow, other: LayerRow) -> bool:
    """Whether sizes are within a factor of two, and shares within a tenth of the whole. Of a mean its deviation is the size."""
    return all(_are_near(heading, quantity, other.numbers[heading]) for heading, quantity in one.numbers.items())


def _are_near(heading: str, one: Quantity, other: Quantity) -> bool:
    if (one.nan, one.inf) != (other.nan, other.inf):
        return False
    if heading in ("zeros", "dead"):
        return abs(one.value - other.value) <= _NEAR_SHARE
    if one.spread is not None and other.spread is not None:
        within = abs(one.value - other.value) <= max(one.spread, other.spread)
        return within and _are_near("", Quantity(one.spread), Quantity(other.spread))
    low, high = sorted([abs(one.value), abs(other.value)])
    return one.value == other.value or (low > 0 and high <= _NEAR * low)


def _fold(row: LayerRow, name: str, like: str) -> LayerRow:
    """The row for the blocks called *name*, where *row* comes first; they are alike the one called *like*."""
    return LayerRow(name, depth=row.depth, notes=((f"alike {like}", "quiet"),), tone="quiet")


def notes_of(findings: Iterable[Finding], others: Iterable[str] = ()) -> tuple[Note, ...]:
    """The words of the last column: the messages of *findings*, then *others* in a quiet tone."""
    quiet: list[Note] = [(text, "quiet") for text in others]
    return (*((found.message, TONES[found.severity]) for found in findings), *quiet)


def worst(notes: Iterable[Note], otherwise: Tone = "quiet") -> Tone:
    """The tone of the gravest of *notes*."""
    tones = {tone for _, tone in notes}
    return "bad" if "bad" in tones else "warn" if "warn" in tones else otherwise


def _cells(row: LayerRow) -> dict[str, Cell]:
    quiet: Tone = "quiet" if row.repeats else "plain"
    name = row.name or "(root)"
    if row.depth is not None:
        name = "  " * row.depth + (row.name.rpartition(".")[2] or "(root)")
    cells = {heading: Cell("", quiet) for heading in COLUMNS}
    cells |= {"layer": Cell(name, quiet if row.repeats and row.depth is None else row.tone), "type": Cell(row.type, "quiet")}
    for heading, text in row.texts.items():
        cells[heading] = Cell(text, "quiet" if text.startswith("(") else quiet, "right" if heading in _RIGHT else "left")
    for heading, quantity in row.numbers.items():
        cells[heading] = _number_cell(heading, quantity, quiet)
    cells[""] = Cell("; ".join(text for text, _ in row.notes), worst(row.notes))
    return cells


def _number_cell(heading: str, quantity: Quantity, tone: Tone) -> Cell:
    """The cell of a number: beside it the shares of elements that are not in it; without a finite element, only their kinds."""
    write = COLUMNS[heading]
    assert write is not None
    lost = {word: share for word, share in (("NaN", quantity.nan), ("inf", quantity.inf)) if share}
    if not math.isfinite(quantity.value):
        return Cell(", ".join(lost) or ("NaN" if math.isnan(quantity.value) else "inf"), "bad", write(Quantity(0.0)).align)
    cell = write(quantity)
    if lost and cell.text:
        shares = ", ".join(f"{percent(share)} {word}" for word, share in lost.items())
        return Cell(f"{cell.text} ({shares})".strip(), "bad", cell.align, cell.bar)
    return Cell(cell.text, "warn" if heading in _SIZES and not quantity.value else tone, cell.align, cell.bar)
