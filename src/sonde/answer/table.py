"""Print tables: a grid of cells as plain text, on a colour terminal (rich), or as HTML."""

from __future__ import annotations

import io
import os
import shutil
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from sonde.answer.page import asset
from sonde.errors import MissingExtraError
from sonde.escape import escape_html, printable, printable_line

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.segment import Segment
    from rich.table import Table

Tone = Literal["plain", "quiet", "good", "warn", "bad", "strong"]

_RICH: dict[Tone, str] = {"plain": "", "quiet": "dim", "good": "green", "warn": "yellow", "bad": "bold red", "strong": "bold"}

_BLOCKS = " ▏▎▍▌▋▊▉█"
_BAR_CELLS = 6
_GAP = 3  # between two columns
_LAST = 24  # of the last column, which folds, before other columns are left out for it
_FIRST = 12  # of the first column, whose texts are cut where leaving out columns does not suffice
_UNLIMITED = 10_000


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its text, how it stands out, and optionally a bar for a share between 0 and 1."""

    text: str
    tone: Tone = "plain"
    align: Literal["left", "right"] = "left"
    bar: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Grid:
    """A table as data.

    Attributes:
        title: one line above it.
        columns: the headings.
        rows: each as long as *columns*.
        footer: lines below it.
        empty: the text in place of rows if there are none.
        optional: headings of columns that are left out, in this order, where the terminal is too narrow.
    """

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    footer: list[str] = field(default_factory=list)
    empty: str = "nothing"
    optional: tuple[str, ...] = ()

    def to_text(self, width: int | None = None) -> str:
        """Plain text without colours, at most *width* characters wide where its columns allow that.

        None is the width of the terminal, if the output goes to one; else the table is as wide as it needs to be.
        """
        from rich.console import Console

        out = io.StringIO()
        console = Console(
            file=out,
            width=width or _terminal_width(),
            color_system=None,
            force_terminal=False,
            force_jupyter=False,  # else rich displays in a notebook, and writes nothing
            legacy_windows=False,
        )
        console.print(self)
        return out.getvalue().rstrip("\n")

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return self.to_html()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment
        from rich.text import Text

        yield Text(printable(self.title), style="bold")
        fitted = self._fitted(options.max_width)
        if self.rows:
            for segments in console.render_lines(fitted._rich_table(), options, pad=False):
                yield from _without_trailing_spaces(segments)
                yield Segment.line()
        else:
            yield Text(f"  {printable(self.empty)}", style="dim")
        for line in fitted.footer:
            yield Text(printable(line), style="dim")

    def _fitted(self, width: int) -> Grid:
        """Return the grid without as many optional columns as needed to fit into *width* characters; the footer names them.

        If that does not suffice, texts of the first column lose their beginnings.
        """
        left_out: list[str] = []
        for heading in self.optional:
            if self._without(left_out)._natural_width() <= width:
                break
            left_out.append(heading)
        for heading in left_out[::-1]:  # a narrow column may fit in the room that a wide one left
            others = [each for each in left_out if each != heading]
            if self._without(others)._natural_width() <= width:
                left_out = others
        grid = self._without(left_out)
        remark = [f"left out to fit {width} columns: {', '.join(left_out)}"] if left_out else []
        excess = grid._natural_width() - width
        if grid.rows and excess > 0:
            longest = max(_FIRST, max(len(row[0].text) for row in grid.rows) - excess)
            rows = [[replace(row[0], text=_end_of(row[0].text, longest)), *row[1:]] for row in grid.rows]
            grid = replace(grid, rows=rows)
        return replace(grid, footer=[*self.footer, *remark])

    def _without(self, headings: list[str]) -> Grid:
        kept = [place for place, heading in enumerate(self.columns) if heading not in headings]
        rows = [[row[place] for place in kept] for row in self.rows]
        return replace(self, columns=[self.columns[place] for place in kept], rows=rows)

    def _natural_width(self) -> int:
        widths = [
            max(map(len, column)) for column in zip(self.columns, *([_with_bar(c) for c in row] for row in self.rows), strict=True)
        ]
        widths[-1] = min(widths[-1], _LAST)
        return sum(widths) + _GAP * (len(widths) - 1)

    def _is_right(self, position: int) -> bool:
        return any(row[position].align == "right" for row in self.rows)

    def _rich_table(self) -> Table:
        from rich.box import Box
        from rich.table import Table
        from rich.text import Text

        rule = Box("    \n    \n ── \n    \n    \n    \n    \n    \n")
        table = Table(box=rule, show_edge=False, pad_edge=False, header_style="bold", border_style="dim")
        for position, heading in enumerate(self.columns):
            right = self._is_right(position)
            last = position == len(self.columns) - 1
            table.add_column(printable_line(heading), justify="right" if right else "left", no_wrap=not last)
        for row in self.rows:
            table.add_row(*(Text(printable_line(_with_bar(cell)), style=_RICH[cell.tone]) for cell in row))
        return table

    def to_html(self) -> str:
        """An HTML table that carries its own style and follows the colour scheme of the page around it."""
        return f"<style>{asset('table.css')}</style>{self.to_element(self.title)}"

    def to_element(self, caption: str = "") -> str:
        """The table alone, for a page that has the asset ``table.css``."""
        classes = [' class="right"' if self._is_right(place) else "" for place in range(len(self.columns))]
        head = "".join(f"<th{mark}>{escape_html(name)}</th>" for mark, name in zip(classes, self.columns, strict=True))
        body = "".join(map(_html_row, self.rows))
        if not self.rows:
            body = f'<tr><td class="quiet" colspan="{len(self.columns)}">{escape_html(self.empty)}</td></tr>'
        foot = "".join(f'<tr><td colspan="{len(self.columns)}">{escape_html(line)}</td></tr>' for line in self.footer)
        above = f"<caption>{escape_html(caption)}</caption>" if caption else ""
        return f'<table class="sonde">{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody><tfoot>{foot}</tfoot></table>'


class ShownAsTable(ABC):
    """An object that a console, rich and a notebook show as a table."""

    @abstractmethod
    def _grid(self) -> Grid:
        """Return the table."""

    def to_text(self, width: int | None = None) -> str:
        """The table as plain text, at most *width* characters wide; None is the width of the terminal."""
        return self._grid().to_text(width)

    def __rich__(self) -> Grid:
        return self._grid()

    def __repr__(self) -> str:
        return self._grid().to_text()

    def _repr_html_(self) -> str:
        return self._grid().to_html()


def frame(rows: list[dict[str, Any]]) -> pandas.DataFrame:
    """Return *rows* as a pandas table.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    made: pandas.DataFrame = MissingExtraError.import_or_raise("pandas", "to_frame()", "frame").DataFrame(rows)
    return made


def standard_output(piped: int = _UNLIMITED) -> Console:
    """Return the console for standard output. A pipe or a file gets lines of *piped* characters at most, unless ``COLUMNS`` is set.

    By default they are as long as they need to be.
    """
    from rich.console import Console

    class Output(Console):
        """Leaves a closed pipe to the command, where rich would end the process."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Output(width=None if _is_terminal() or "COLUMNS" in os.environ else piped)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _terminal_width() -> int:
    return shutil.get_terminal_size().columns if _is_terminal() else _UNLIMITED


def _without_trailing_spaces(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.strip():
        kept.pop()
    if kept:
        kept[-1] = kept[-1]._replace(text=kept[-1].text.rstrip())
    return kept


def _end_of(text: str, length: int) -> str:
    """Return *text*, or its last characters behind an ellipsis where it is longer than *length*."""
    return text if len(text) <= length else f"…{text[len(text) - length + 1 :]}"


def _with_bar(cell: Cell) -> str:
    if cell.bar is None:
        return cell.text
    eighths = round(max(0.0, min(1.0, cell.bar)) * _BAR_CELLS * 8)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_BLOCKS[rest] if rest else "")
    return f"{cell.text} {drawn:<{_BAR_CELLS}}"


def _html_row(row: list[Cell]) -> str:
    """A row; one whose first cell is empty continues the row above."""
    return f"<tr{'' if row[0].text else ' class=more'}>{''.join(map(_html_cell, row))}</tr>"


def _html_cell(cell: Cell) -> str:
    classes = " ".join(
        name for name in (cell.tone if cell.tone != "plain" else "", cell.align if cell.align == "right" else "") if name
    )
    bar = ""
    if cell.bar is not None:
        width = max(0.0, min(1.0, cell.bar)) * _BAR_CELLS
        bar = f'&nbsp;<span class="bar" style="width:{_BAR_CELLS}em"><i class="bar" style="width:{width:.2f}em"></i></span>'
    marked = f' class="{classes}"' if classes else ""
    indented = len(cell.text) - len(cell.text.lstrip(" "))
    return f"<td{marked}>{'&nbsp;' * indented}{escape_html(printable_line(cell.text[indented:]))}{bar}</td>"
