"""Query parts with DuckDB: open a connection, write names, values and files as SQL, find damaged files.

Every SQL text in sonde is made of constant text, the caller's own conditions, and the results of :func:`quoted`, :func:`literal`,
:func:`of_rank` and :func:`rows_of`. A test reads the source to hold this.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.library_calls import LibraryCalls
from sonde.run.folder.files import check_regular

if TYPE_CHECKING:
    import duckdb
    import pyarrow


Answer = TypeVar("Answer")
_LONG = 0.25  # seconds: some ten times as long as opening a database
_of_parents: list[Any] = []  # connections, in a forked child
_NO_TABLE = re.compile(r"Table with name (\w+) does not exist")  # in the words of DuckDB; the group is its name

_EXPLAIN = re.compile(r"\s*explain\s+(analyze\s+)?", re.IGNORECASE)
_PIVOT = re.compile(r"\s*\(?\s*(pivot|from|select|with)\b", re.IGNORECASE)


def connect(settings: Mapping[str, str | int] | None = None) -> duckdb.DuckDBPyConnection:
    """Return a database in memory that sees files and registered tables, and none of the caller's Python variables.

    It draws no bar of its progress in the caller's terminal.
    """
    import duckdb

    return _without_bar(duckdb.connect(":memory:", config={"python_enable_replacements": False, **(settings or {})}))


def _without_bar(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    import duckdb

    with suppress(duckdb.Error):  # in a notebook without ipywidgets there is no bar, and DuckDB refuses to switch it off
        connection.execute("SET enable_progress_bar = false")
    return connection


class Database(LibraryCalls):
    """The locked database that answers the questions of a run: opened with the first, and closed when the program ends.

    It is also closed after an answer that took long: DuckDB keeps the memory of an answer for later ones, tens of megabytes, and to
    open it anew takes a small part of that time.

    Beside it is one that is not locked, for answers that are given away as relations: to open one for each takes ten milliseconds.

    Args:
        folders: whose files it reads.
        threads: how many work on one question; None: one for each core.
    """

    def __init__(self, folders: Sequence[Path] = (), threads: int | None = None) -> None:
        super().__init__()
        self._folders = folders
        self._threads = threads
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._answers: duckdb.DuckDBPyConnection | None = None

    def ask(self, question: Callable[[duckdb.DuckDBPyConnection], Answer]) -> Answer:
        """Return the answer to *question*, one at a time."""
        with self:
            if self._connection is None:
                self._connection = connect_locked(*self._folders, threads=self._threads)
            began = time.monotonic()
            try:
                return question(self._connection)
            finally:
                if time.monotonic() - began > _LONG:
                    self._connection.close()
                    self._connection = None

    def relation(self, answer: pyarrow.Table) -> duckdb.DuckDBPyRelation:
        """Return *answer* as a relation with a connection of its own."""
        with self:
            if self._answers is None:
                self._answers = connect()
            return _without_bar(self._answers.cursor()).from_arrow(answer)

    def ended(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._answers = None  # a relation that the caller has keeps the database of answers

    def forked(self) -> None:
        _of_parents.extend((self._connection, self._answers))  # to close them would wait for threads that are not here
        self._connection = self._answers = None


def connect_locked(*folders: Path, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Return a database in memory that reads files in *folders* alone, and whose settings cannot be changed.

    Args:
        folders: the folders.
        threads: how many work on one question; None: one for each core.
    """
    more = {} if threads is None else {"threads": threads}
    connection = connect({"autoinstall_known_extensions": False, "autoload_known_extensions": False, **more})
    if folders:
        paths = [folder.resolve() for folder in folders]
        names = ", ".join(literal(name) for path in paths for name in (str(path), _literally(path)))  # files and patterns
        connection.execute(f"SET allowed_directories = [{names}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def ask_tables(
    connection: duckdb.DuckDBPyConnection,
    tables: Mapping[str, pyarrow.Table],
    question: Callable[[duckdb.DuckDBPyConnection, tuple[str, ...]], Answer],
) -> Answer:
    """Return what *question* returns, called with *connection*, which reads *tables* by name, and with their names.

    It is called once more where DuckDB could not read a table: DuckDB stops what it reads of Python when the program begins to end,
    though other threads and what is called at the end may still ask.
    """
    import duckdb

    for name, table in tables.items():
        connection.register(name, table)
    names = tuple(tables)
    try:
        return question(connection, names)
    except duckdb.InvalidInputException:
        return question(connection, names)


def check_query(query: str) -> None:
    """Raise unless *query* is one statement that only reads.

    A locked connection refuses other files and other settings; this refuses ``COPY ... TO`` a file of the run, and changes of the
    views.

    Raises:
        ArgumentError: *query* is another statement, several statements, or none.
        duckdb.ParserException: *query* is no SQL.
    """
    import duckdb

    statements = duckdb.extract_statements(query)
    kinds = [statement.type.name for statement in statements]
    if kinds == ["EXPLAIN"] and (prefix := _EXPLAIN.match(query)) is not None:
        check_query(query[prefix.end() :])
    elif kinds != ["SELECT"] and not (kinds == ["MULTI"] and _PIVOT.match(query)):  # a PIVOT is several statements inside DuckDB
        found = " and ".join(kinds) or "no statement"
        raise ArgumentError(
            f"the query is {found}: {query!r:.200}. A run is only read: give one SELECT, FROM, WITH, PIVOT, DESCRIBE or EXPLAIN. "
            "run.connection() returns a DuckDB connection of your own, which does everything else"
        )


def condition(where: str | None) -> str:
    """Return *where*, an SQL condition of the caller's, as SQL to append to a WHERE; nothing for None or "".

    >>> from sonde.run import condition
    >>> "(rms > 1" in condition("rms > 1"), condition(None)
    (True, '')

    Raises:
        ArgumentError: *where* is more than a condition.
        duckdb.ParserException: *where* is no SQL.
    """
    if not where:
        return ""
    check_query(f"SELECT 1 WHERE ({where}\n)")
    return f" AND ({where}\n)"


def literal(value: str | int) -> str:
    """Return *value* as an SQL literal, whatever characters a text has.

    Raises:
        ArgumentError: *value* is a text with a NUL, which no SQL can hold.
    """
    if not isinstance(value, str):
        return str(int(value))
    if "\0" in value:
        raise ArgumentError(f"{value!r} holds a NUL, which no name in a run does")
    return "'" + value.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Return *name* as an SQL identifier, whatever characters it has.

    >>> from sonde.run import quoted
    >>> print(quoted("rms"))
    "rms"
    """
    return '"' + name.replace('"', '""') + '"'


def of_rank(family: str, rank: int | None, ranks: Sequence[int] = ()) -> str:
    """Return SQL for the rows of *family* that one *rank* wrote; None: of each place at each moment, those of the lowest rank.

    >>> from sonde.run import of_rank
    >>> "rank = 1" in of_rank("moments", 1)
    True

    Args:
        family: its name.
        rank: the process, or None.
        ranks: those that have written rows, where they are known to be few: of one rank alone nothing need be chosen.
    """
    if rank is not None:
        return f"(FROM {quoted(family)} WHERE rank = {literal(rank)})"
    if len(ranks) == 1:
        return quoted(family)
    return f"(FROM {quoted(family)} {first_rank(family)})"


def first_rank(family: str) -> str:
    """Return the SQL that chooses, of the rows of *family* that a query has found, at each moment those of the lowest rank."""
    place = "name" if family == "scalars" else "site, call, micro_step"
    return f"QUALIFY rank = min(rank) OVER (PARTITION BY step, epoch, {place})"


def rows_of(files: Sequence[tuple[Path, int | None]]) -> str:
    """Return SQL for the rows of *files*, each up to (not including) a step or whole. A column that a file lacks is NULL there."""
    by_limit: dict[int | None, list[Path]] = {}
    for path, limit in files:
        by_limit.setdefault(limit, []).append(path)
    return " UNION ALL BY NAME ".join(_read(paths, limit) for limit, paths in by_limit.items())


def joined_rows_of(paths: Sequence[Path], table: str) -> str:
    """Return SQL for the rows of the files at *paths*, each led by its ``run`` in *table*, and up to ``sonde_limit`` there."""
    rows = f"SELECT * FROM read_parquet({_files(paths)}, union_by_name=true, hive_partitioning=false, filename='sonde_path')"
    return (
        f"SELECT run, sonde_rows.* EXCLUDE (sonde_path) FROM ({rows}) AS sonde_rows "
        f"JOIN {quoted(table)} ON sonde_path = sonde_file WHERE sonde_limit IS NULL OR step < sonde_limit"
    )


def _read(paths: Sequence[Path], limit: int | None) -> str:
    # without hive_partitioning=false a folder named lr=0.1 would add a column "lr"
    rows = f"SELECT * FROM read_parquet({_files(paths)}, union_by_name=true, hive_partitioning=false)"
    return rows if limit is None else f"{rows} WHERE step < {literal(limit)}"


def _files(paths: Sequence[Path]) -> str:
    return f"[{', '.join(literal(_literally(path)) for path in paths)}]"


def _literally(path: Path) -> str:
    """Return *path* as a file pattern that matches this file alone."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def damage(path: Path) -> str:
    """Return the fault of a Parquet file in words, or ``""`` if every value can be read."""
    import pyarrow.parquet

    try:
        check_regular(path)
        with pyarrow.parquet.ParquetFile(path) as file:
            for _ in file.iter_batches():
                pass
    except Exception as error:  # thrift, snappy and arrow each have their own
        return f"{type(error).__name__}: {error}"
    return ""


def numbers_of(column: pyarrow.Array | pyarrow.ChunkedArray) -> npt.NDArray[Any]:
    """Return the numbers of *column*, as ``to_numpy`` does, null as NaN; those of one array cannot be written to.

    ``to_numpy`` imports pandas wherever it is installed: 40 MB, and half a second.
    """
    import pyarrow

    kind = column.type
    if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind)):
        return np.asarray(column.to_numpy(zero_copy_only=False))  # lists, decimals and texts, as objects
    if isinstance(column, pyarrow.ChunkedArray):
        return np.concatenate([np.empty(0, kind.to_pandas_dtype()), *map(_numbers, column.chunks)])
    return _numbers(column)


def _numbers(array: pyarrow.Array) -> npt.NDArray[Any]:
    import pyarrow

    valid, bits = array.buffers()
    if pyarrow.types.is_boolean(array.type):
        values = _bits(bits, array)
    else:
        values = np.frombuffer(bits, array.type.to_pandas_dtype(), count=array.offset + len(array))[array.offset :]
    return np.where(_bits(valid, array), values, np.nan) if array.null_count else values


def _bits(buffer: pyarrow.Buffer, array: pyarrow.Array) -> npt.NDArray[Any]:
    every = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")
    return every[array.offset : array.offset + len(array)].astype(bool)


def answer_to(
    query: str,
    params: Mapping[str, object] | None,
    unknown: Callable[[str, tuple[str, ...]], Exception],
    connection: duckdb.DuckDBPyConnection,
    families: tuple[str, ...],
) -> pyarrow.Table:
    """Return the answer to *query*; of a table that is not there, raise what *unknown* makes of the name and of *families*."""
    import duckdb

    try:
        return connection.sql(query, params=dict(params or {}) or None).to_arrow_table()
    except duckdb.CatalogException as error:
        found = _NO_TABLE.search(str(error))
        if found is None:
            raise
        raise unknown(found[1], families) from None
