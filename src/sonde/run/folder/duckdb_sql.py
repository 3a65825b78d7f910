"""Query parts with DuckDB: open a connection, write the rows of files as SQL, find damaged files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

__all__ = ["connect", "damage", "quoted", "rows_of"]


def connect(settings: Mapping[str, str | int] | None = None) -> duckdb.DuckDBPyConnection:
    """Return a database in memory that sees files and registered tables, and none of the caller's Python variables."""
    import duckdb

    return duckdb.connect(":memory:", config={"python_enable_replacements": False, **(settings or {})})


def quoted(name: str) -> str:
    """Return *name* as an SQL identifier, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def rows_of(files: Sequence[tuple[Path, int | None]]) -> str:
    """Return SQL for the rows of *files*, each up to (not including) a step or whole. A column that a file lacks is NULL there."""
    by_limit: dict[int | None, list[Path]] = {}
    for path, limit in files:
        by_limit.setdefault(limit, []).append(path)
    return " UNION ALL BY NAME ".join(_read(paths, limit) for limit, paths in by_limit.items())


def _read(paths: Sequence[Path], limit: int | None) -> str:
    files = ", ".join("'" + _literally(path).replace("'", "''") + "'" for path in paths)
    # without hive_partitioning=false a folder named lr=0.1 would add a column "lr"
    rows = f"SELECT * FROM read_parquet([{files}], union_by_name=true, hive_partitioning=false)"
    return rows if limit is None else f"{rows} WHERE step < {limit}"


def _literally(path: Path) -> str:
    """Return *path* as a file pattern that matches this file alone."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def damage(path: Path) -> str:
    """Return the fault of a Parquet file in words, or ``""`` if every value can be read."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for _ in file.iter_batches():
                pass
    except Exception as error:  # thrift, snappy and arrow each have their own
        return f"{type(error).__name__}: {error}"
    return ""
