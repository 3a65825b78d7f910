"""How a run shows itself in a console and in a notebook: a few plain lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from sonde.escape import escape_html
from sonde.run.schema import KEYS
from sonde.run.store.duckdb_sql import quoted
from sonde.run.store.run_json import Description

if TYPE_CHECKING:
    import duckdb

__all__ = ["as_html", "lines_of"]

_NAMES = 8


def lines_of(
    connection: duckdb.DuckDBPyConnection, families: Sequence[str], description: Description, path: PurePath | None
) -> list[str]:
    """A line for the run in the folder *path* (None: in memory) and one for each family."""
    described = [_family(connection, family) for family in families]
    widths = [max((len(row[place]) for row in described), default=0) for place in range(3)]
    rows = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in described]
    head = ["Run in memory", _state(description)] if path is None else [f"Run {path.name}", _state(description), str(path)]
    return [" · ".join(head), *(rows or ["nothing recorded yet"])]


def as_html(lines: Sequence[str]) -> str:
    """The same lines for a notebook."""
    head, *rest = map(escape_html, lines)
    return "<pre><b>" + head + "</b>\n" + "\n".join(rest) + "</pre>"


def _state(description: Description) -> str:
    lives = description.lives
    state = "closed" if lives and lives[-1].ended is not None else "not closed"
    resumed = f", resumed at step {' and '.join(str(life.first_step) for life in lives[1:])}" if len(lives) > 1 else ""
    lost = sum(life.lost for life in lives)
    return state + resumed + (f", {lost:,} rows lost" if lost else "")


def _family(connection: duckdb.DuckDBPyConnection, family: str) -> tuple[str, str, str, str]:
    """Its name, how much there is, over what, and which numbers."""
    source = quoted(family)
    size = f"SELECT count(*), count(DISTINCT step), min(step), max(step) FROM {source}"
    rows, steps, first, last = connection.execute(size).fetchall()[0]
    span = f"{_many(steps, 'step')}" + (f" ({first:,} to {last:,})" if steps > 1 else f" ({first:,})" if steps else "")
    if family == "alerts":
        messages = connection.execute(f"SELECT message FROM {source} ORDER BY step").fetchall()
        return family, _many(rows, "row"), span, _listed([f"“{message}”" for (message,) in messages], 2)
    if family == "scalars":
        names = connection.execute(f"SELECT DISTINCT name FROM {source} ORDER BY name").fetchall()
        return family, _many(rows, "row"), span, _listed([name for (name,) in names], _NAMES)
    sites = connection.execute(f"SELECT count(DISTINCT site) FROM {source}").fetchall()[0][0]
    columns = [name for name, *_ in connection.execute(f"DESCRIBE {source}").fetchall() if name not in KEYS]
    return family, _many(rows, "row"), f"{_many(sites, 'site')} × {span}", _listed(columns, _NAMES)


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _listed(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (f", ... ({len(names)})" if len(names) > most else "")
