"""Say in a few lines what a run holds: its families with rows, steps and sites, where it was resumed, and what its ranks mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sonde.rows import KEYS
from sonde.run.folder.duckdb_sql import quoted
from sonde.run.folder.run_json import Description
from sonde.words import many, names_text

if TYPE_CHECKING:
    import duckdb


_NAMES = 8  # names that a line shows


def history(description: Description) -> str:
    """Where the run was resumed, and what was lost, in words."""
    attempts = description.attempts
    resumed = f", resumed at step {' and '.join(str(attempt.first_step) for attempt in attempts[1:])}" if len(attempts) > 1 else ""
    lost = sum(attempt.lost for attempt in attempts)
    return resumed + (f", {lost:,} rows lost" if lost else "")


def of_ranks(about: Any) -> str:
    """Return what the numbers of a run of several processes mean, in words; ``""`` for a run of one."""
    if not isinstance(about, Mapping) or not isinstance(size := about.get("size"), int):
        return ""
    if size == 1:
        return f"rank {about.get('rank')} alone of several: its own batches, and its own parts of parameters"
    members = about.get("members")
    who = f"{size:,} ranks" + (f" ({names_text(members, 8)} of the job)" if isinstance(members, list) else "")
    if about.get("joined") is not True:
        return f"{who}, each with rows of its own"
    return f"{who}: outputs of their batches joined, parameters whole; the columns scope and ranks say it of each row"


def family_cells(connection: duckdb.DuckDBPyConnection, family: str) -> tuple[str, str, str, str]:
    """The name of a family, its number of rows, their steps and sites, and its numbers."""
    source = quoted(family)
    size = f"SELECT count(*), count(DISTINCT step), min(step), max(step) FROM {source}"
    rows, steps, first, last = connection.execute(size).fetchall()[0]
    span = f"{many(steps, 'step')}" + (f" ({first:,} to {last:,})" if steps > 1 else f" ({first:,})" if steps else "")
    if family == "scalars":
        names = connection.execute(f"SELECT DISTINCT name FROM {source} ORDER BY name").fetchall()
        return family, many(rows, "row"), span, names_text([name for (name,) in names], _NAMES)
    sites = connection.execute(f"SELECT count(DISTINCT site) FROM {source}").fetchall()[0][0]
    columns = [name for name, *_ in connection.execute(f"DESCRIBE {source}").fetchall() if name not in KEYS]
    return family, many(rows, "row"), f"{many(sites, 'site')} × {span}", names_text(columns, _NAMES)
