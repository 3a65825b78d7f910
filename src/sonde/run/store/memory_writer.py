"""Keep a run in memory: the same writer and the same reader as on disk, over Arrow tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sonde.rows import RowBlock
from sonde.run.folder.duckdb_sql import ask_tables
from sonde.run.folder.end import End
from sonde.run.folder.run_json import Description, copied
from sonde.run.folder.source import Answer, Ask
from sonde.run.record import Record
from sonde.run.store.tables import Lines, tables_of
from sonde.run.store.writer import RunWriter

if TYPE_CHECKING:
    import duckdb
    import pyarrow

    from sonde.run.run import Run


class MemorySource:
    """Holds all rows as tables; the memory grows until the run is dropped."""

    name = "the run in memory"
    ranks = (0,)

    def __init__(self) -> None:
        self.description = Description().begun(0)
        self.lost: Mapping[str, Sequence[str]] = {}
        self.documents: dict[str, Any] = {}
        self.record: Record | None = None
        self.process = 0
        self.ends: list[End] = []
        self.times: tuple[tuple[int, float], ...] = ()  # nothing comes to a disk
        self._items: list[RowBlock | Lines] = []  # not in the tables yet
        self._tables: dict[str, pyarrow.Table] = {}
        self._lock = threading.Lock()
        self._added = self._recorded = 0

    @property
    def version(self) -> str:
        return f"{self._added}-{len(self.documents)}-{self._recorded}-{self.description.attempts[-1].ended}"

    def add(self, item: RowBlock | Lines) -> None:
        """Keep *item*."""
        with self._lock:
            self._items.append(item)
            self._added += 1

    def keep_records(self, records: Mapping[int, Record]) -> str:
        if self.description.attempts[-1].ended is None:
            return "the run is being written"
        self.take(Record.merged(list(records.values())))
        return ""

    def take(self, record: Record) -> None:
        """Keep the *record* of findings in place of the one before."""
        self.record = record
        self._recorded += 1

    def describe(self) -> Description:
        return self.description

    def document(self, name: str, rank: int) -> Any:
        return copied(self.documents.get(name)) if rank == 0 else None

    def records(self) -> Mapping[int, Record]:
        return {} if self.record is None else {0: self.record}

    def ask(self, connection: duckdb.DuckDBPyConnection, question: Ask[Answer]) -> Answer:
        return ask_tables(connection, self._gathered(), question)

    def _gathered(self) -> Mapping[str, pyarrow.Table]:
        import pyarrow

        with self._lock:
            items, self._items = self._items, []
            for family, table in tables_of(items, self.process):
                plain = _without_dictionaries(table)
                known = self._tables.get(family)
                if known is not None:
                    plain = pyarrow.concat_tables([known, plain], promote_options="permissive")
                self._tables[family] = plain
            return dict(sorted(self._tables.items()))


def _without_dictionaries(table: pyarrow.Table) -> pyarrow.Table:
    """The same with plain texts, as a part on disk has them."""
    import pyarrow

    plain = [
        pyarrow.field(column.name, column.type.value_type) if pyarrow.types.is_dictionary(column.type) else column
        for column in table.schema
    ]
    return table.cast(pyarrow.schema(plain))


class MemoryWriter(RunWriter):
    """Keeps all rows in memory; ``run()`` reads them. Nothing is written to disk."""

    def __init__(self, about: Mapping[str, Any] | None = None) -> None:
        super().__init__(rank=0, first_step=0)
        self._source = MemorySource()
        self.describe(**(about or {}))

    def describe(self, **about: Any) -> None:
        self._must_be_open()
        self._source.description = self._source.description.telling(about)

    def _write_document(self, name: str, data: Any) -> None:
        self._source.documents[name] = data

    def judged(self, form: Callable[[], Record]) -> None:
        record = form()  # now: it is read in any thread
        super().judged(lambda: record)

    def _record_changed(self) -> None:
        self._source.take(self.record)

    def _take(self, item: RowBlock | Lines) -> None:
        self._source.process = self.process
        self._source.add(item)

    def flush(self) -> None:
        """What was added can be read at once."""

    def run(self) -> Run:
        from sonde.run.run import Run

        return Run(self._source)

    def _keep_end(self, end: End) -> None:
        self._source.ends.append(end)

    def _end(self) -> None:
        if self.lost:
            self._record_changed()
        self._source.description = self._source.description.ended(self.attempt, self.lost)


def memory_run(about: Mapping[str, Any] | None = None) -> MemoryWriter:
    """Begin a run that is kept in memory alone.

    >>> from sonde.run.store.memory_writer import memory_run
    >>> from sonde.rows import Layout
    >>> writer = memory_run()
    >>> for step in range(3):
    ...     writer.append("moments", Layout(["fc:output", "head:output"]), {"rms": [1.0, step]}, step=step)
    >>> steps, values = writer.run().series("head:output", "rms")
    >>> steps.tolist(), values.tolist()
    ([0, 1, 2], [0.0, 1.0, 2.0])

    Args:
        about: plain data: ``model``, ``environment``, ``lenses``, ...
    """
    return MemoryWriter(about)
