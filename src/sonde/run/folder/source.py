"""The sources of rows: the interface, the source that reads the folder of a run, and the one that joins several folders."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sonde.errors import StoreError
from sonde.escape import encodable
from sonde.paths import short_path
from sonde.run.folder.alone import alone
from sonde.run.folder.duckdb_sql import damage, joined_rows_of, literal, quoted, rows_of
from sonde.run.folder.end import End
from sonde.run.folder.files import FILE, SUMMARY, TENSORS, within
from sonde.run.folder.json_file import read_json
from sonde.run.folder.parts import Part, gaps, live_parts, parts_in
from sonde.run.folder.records import PATTERN as PATTERN_OF_RECORDS
from sonde.run.folder.records import write_records
from sonde.run.folder.run_json import Description
from sonde.run.folder.verify import fault
from sonde.run.folder.written import Written, ranks_in
from sonde.run.record import Record
from sonde.run.schema import may_be_family
from sonde.warn import warn_user

if TYPE_CHECKING:
    import duckdb


Answer = TypeVar("Answer")
Parts = list[tuple[Path, int | None]]
Files = Mapping[str, Parts]
"""By family the live parts, each with the step from which its rows are superseded."""
Ask = Callable[["duckdb.DuckDBPyConnection", tuple[str, ...]], Answer]

_TRIES = 10  # of a query while compaction replaces the files under it


class Source(Protocol):
    """The interface from which a :class:`sonde.run.run.Run` reads."""

    @property
    def name(self) -> str:
        """The name of the run in messages."""

    @property
    def lost(self) -> Mapping[str, Sequence[str]]:
        """By family, in words, the parts that were found damaged or missing so far."""

    @property
    def version(self) -> str:
        """A text that changes whenever there is something new to read."""

    @property
    def ranks(self) -> Sequence[int]:
        """The processes that have written rows, ascending."""

    @property
    def ends(self) -> Sequence[End]:
        """The errors and interrupts that ended the attempts, of all ranks."""

    @property
    def times(self) -> Sequence[tuple[int, float]]:
        """Steps, ascending, and when the rows up to each of them came to the disk, as the first rank noted it."""

    def describe(self) -> Description:
        """Return the description of the run, as of now."""

    def document(self, name: str, rank: int) -> Any:
        """Return a document as plain data, or None."""

    def records(self) -> Mapping[int, Record]:
        """Return by rank the record of findings."""

    def keep_records(self, records: Mapping[int, Record]) -> str:
        """Put *records* in place of those that there are; return in words why not, ``""`` where that is done."""

    def ask(self, connection: duckdb.DuckDBPyConnection, question: Ask[Answer]) -> Answer:
        """Call *question* with a connection that has a view of each family, and with their names; return the answer."""


class DiskSource:
    """Reads a folder, whether or not somebody is writing to it; *warns* of damage that it finds."""

    def __init__(self, path: Path, *, warns: bool = True) -> None:
        self.path = path
        self._warns = warns
        self.lost: dict[str, list[str]] = {}
        self._damaged: set[Path] = set()
        self._checked: dict[Path, tuple[int, int]] = {}  # size and time of change of each part when it was checked
        self.classes: dict[str, dict[str, str]] = {}  # by family and column: number, list or text
        self._warned: set[str] = set()
        self._read: dict[str, tuple[tuple[int, int, int], Any]] = {}  # by file, its number, size and time, and what it says
        self._viewed: tuple[Any, ...] = ()  # the connection that asked last, the parts with size and time, and the views of these

    @property
    def name(self) -> str:
        return short_path(self.path)

    @property
    def version(self) -> str:
        """Sizes and times of the files that each flush writes anew, shortened, and of the folder of tensors; a summary says nothing
        new. Nothing is read.
        """
        seen = []
        with suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                name = entry.name
                if name == TENSORS or (name.endswith(".json") and not name.startswith(".") and name != SUMMARY):
                    status = entry.stat()
                    seen.append((name, status.st_size, status.st_mtime_ns))
        return hashlib.blake2b(repr(sorted(seen)).encode(), digest_size=8).hexdigest()

    def _kept(self, name: str, read: Callable[[], Answer]) -> Answer:
        """Return what *read* returns, which is read again when the file of this *name* is another one, or has changed."""
        try:
            status = (self.path / name).stat()
        except (OSError, ValueError):
            return read()
        seen = status.st_ino, status.st_size, status.st_mtime_ns
        if name not in self._read or self._read[name][0] != seen:
            self._read[name] = seen, read()
        held: Answer = self._read[name][1]
        return held

    @property
    def ranks(self) -> Sequence[int]:
        folders = [folder for folder in self.path.iterdir() if may_be_family(folder.name)] if self.path.is_dir() else []
        return sorted({part.rank for folder in folders for part in parts_in(folder)})

    def describe(self) -> Description:
        description = self._kept(FILE, lambda: Description.read(self.path))
        if not description.intact:
            self._warn(
                f"{self.path / FILE} was changed or damaged after it was written: its checksum does not fit. The run is read "
                "as this file now describes it; attempts, names and settings in it may be wrong"
            )
        return description

    def document(self, name: str, rank: int) -> Any:
        file = self.path / (f"{name}.json" if rank == 0 else f"{name}-r{rank:04d}.json")
        within(self.path, file)
        try:
            return read_json(file)
        except FileNotFoundError:
            if name in self._written(rank).documents:
                raise StoreError(f"{file} is missing: it was written, and was removed since") from None
            return None

    def records(self) -> Mapping[int, Record]:
        there = {int(number) for path in self.path.glob(PATTERN_OF_RECORDS) if (number := path.stem[10:] or "0").isdecimal()}
        there |= {rank for rank, written in self._all_written().items() if "findings" in written.documents}
        found = {}
        for rank in sorted(there):
            try:
                record = Record.read(self.document("findings", rank))
                if record is not None:
                    found[rank] = record
            except StoreError as error:
                text = str(error)
                if text not in self.lost.get("findings", ()):
                    self.lost.setdefault("findings", []).append(text)
                self._warn(f"{text}. What was found so far is not known: sonde.check judges the rows again")
        return found

    def keep_records(self, records: Mapping[int, Record]) -> str:
        try:
            with alone(self.path):
                write_records(self.path, records)
        except StoreError:
            return "the run is being written"
        except OSError as error:
            return f"its folder cannot be written ({error})"
        self.lost.pop("findings", None)
        return ""

    def _warn(self, text: str) -> None:
        """Warn of *text*, once."""
        if self._warns and text not in self._warned:
            self._warned.add(text)
            warn_user(text)

    def ask(self, connection: duckdb.DuckDBPyConnection, question: Ask[Answer]) -> Answer:
        return _ask([self], lambda files: self._views_of(connection, files[0]), connection, question)

    def _views_of(self, connection: duckdb.DuckDBPyConnection, files: Files) -> tuple[str, ...]:
        """As :meth:`view`, for a connection that nobody else makes views in: where no part has changed they are there already."""
        asked = (weakref.ref(connection), files, [self._checked.get(path) for parts in files.values() for path, _ in parts])
        if self._viewed[:3] != asked:
            self._viewed = ()
            self._viewed = (*asked, self.view(connection, files))
        made: tuple[str, ...] = self._viewed[3]
        return made

    def files(self, only: Collection[str] | None = None) -> Files:
        """Check the parts of the families *only* (None: of all) and return the live ones."""
        if not self.path.is_dir():
            self.describe()  # which says so
        # first what was written, then the parts: merged parts hold the same flushes; at last the attempts, since an attempt is in
        # run.json before its first part
        written = {rank: written.families for rank, written in self._all_written().items()}
        families = {folder.name for folder in self.path.iterdir() if folder.is_dir() and may_be_family(folder.name)}
        families |= {family for held in written.values() for family in held}
        families = families if only is None else families & set(only)
        found = {}
        for family in sorted(families):
            there = self._whole_parts(family)
            self._find_missing(family, {rank: held[family] for rank, held in written.items() if family in held})
            found[family] = there
        limits = self.describe().cutoffs
        return {
            family: [(self.path / family / part.name, limits.get(part.attempt)) for part in parts]
            for family, parts in found.items()
            if parts
        }

    @property
    def ends(self) -> Sequence[End]:
        return [end for written in self._all_written().values() for end in written.ends]

    @property
    def times(self) -> Sequence[tuple[int, float]]:
        return next((written.times for written in self._all_written().values() if written.times), ())

    def _all_written(self) -> dict[int, Written]:
        return {rank: self._written(rank) for rank in ranks_in(self.path)}

    def _written(self, rank: int) -> Written:
        try:
            return self._kept(Written.file(self.path, rank).name, lambda: Written.read(self.path, rank))
        except StoreError as error:
            self._warn(f"{error}. It is not known whether parts of rank {rank} are missing")
            return Written()

    def _whole_parts(self, family: str) -> list[Part]:
        """Return the live parts of *family*. Damaged ones are left out, so that the parts that were merged into them live again."""
        folder = self.path / family
        while True:
            parts = live_parts(part for part in parts_in(folder) if folder / part.name not in self._damaged)
            if not any(self._is_damaged(folder, part) for part in parts):
                return parts

    def _is_damaged(self, folder: Path, part: Part) -> bool:
        """Whether *part* has a fault. Each file is checked once, and again when it has changed."""
        path = folder / part.name
        try:
            status = path.stat()
            seen = (status.st_size, status.st_mtime_ns)
            if self._checked.get(path) == seen:
                return False
            why = fault(folder, part, self.classes.setdefault(folder.name, {}))
        except FileNotFoundError:  # merged meanwhile
            return False
        except OSError as error:
            why = str(error)
        else:
            self._checked[path] = seen
        if why:
            self._leave_out(path, why)
        return bool(why)

    def _leave_out(self, path: Path, why: str) -> None:
        self._damaged.add(path)
        self.lost.setdefault(path.parent.name, []).append(f"{path.name} is damaged: {why}")
        self._warn(f"the part {path} is damaged and is left out; the rest is read ({why}). Its rows are missing from what you see")

    def _find_missing(self, family: str, written: Mapping[int, int]) -> None:
        """Warn of flushes of *family* that no part holds."""
        for _ in range(3):  # parts may be merged between two entries of a listing
            missing = gaps(parts_in(self.path / family), written)
            if not missing:
                return
        for rank, ranges in missing.items():
            flushes = " and ".join(f"{first} to {last}" if first < last else str(first) for first, last in ranges)
            text = f"the file with flush {flushes} of rank {rank} is missing"
            if text not in self.lost.get(family, ()):
                self.lost.setdefault(family, []).append(text)
                self._warn(
                    f"{text} from {self.path / family}: it was removed after it was written. Its rows are missing from what you see"
                )

    def view(self, connection: duckdb.DuckDBPyConnection, files: Files, schema: str = "main") -> tuple[str, ...]:
        """Make a view of each family in *schema*, in place of those that are there; return their names."""
        import duckdb

        _drop_views(connection, schema)
        made = []
        for family, parts in files.items():
            try:
                connection.execute(f"CREATE VIEW {quoted(schema)}.{quoted(family)} AS {rows_of(parts)}")
                made.append(family)
            except duckdb.Error as error:
                if not all(path.exists() for path, _ in parts) or self.find_damaged({family: parts}):
                    raise  # and try again
                self.lost.setdefault(family, []).append(f"DuckDB cannot read it: {error}")
                self._warn(f"the family {family} of {self.path} is left out; the others are read. DuckDB cannot read it: {error}")
        return tuple(made)

    def find_damaged(self, files: Files) -> bool:
        """Leave out the parts whose values cannot be read, whatever their checksums say; return whether there are any."""
        found = {path: why for parts in files.values() for path, _ in parts if path.exists() and (why := damage(path))}
        for path, why in found.items():
            self._leave_out(path, why)
        return bool(found)


class JoinedSource:
    """Reads the folders of several runs as one: each family has the rows of all of them, led by a column ``run``.

    Args:
        sources: by the name of each run.
    """

    def __init__(self, sources: Mapping[str, DiskSource]) -> None:
        self._sources = sources
        self._warned: set[str] = set()

    def ask(self, connection: duckdb.DuckDBPyConnection, question: Ask[Answer], *, only: Collection[str] | None = None) -> Answer:
        """As :meth:`Source.ask`, with views of the families *only*, whose rows are read of all runs, or of all families."""
        sources = list(self._sources.values())
        view = self._view if only is None else self._view_of_files
        return _ask(sources, lambda files: view(connection, files), connection, question, only)

    def _view_of_files(self, connection: duckdb.DuckDBPyConnection, files: Sequence[Files]) -> tuple[str, ...]:
        """Make one view over the files of all runs, which are opened once: of a thousand runs, views of each take seconds."""
        import duckdb

        _drop_views(connection, "main")
        made = []
        for family in sorted({family for there in files for family in there}):
            of_run = {name: there[family] for name, there in zip(self._sources, files, strict=True) if family in there}
            if self._differs(family, list(of_run)):
                continue
            try:
                self._join_files(connection, family, of_run)
            except duckdb.Error:
                of_run = {name: parts for name, parts in of_run.items() if self._can_view(connection, name, family, parts)}
                if not of_run:
                    continue
                self._join_files(connection, family, of_run)
            made.append(family)
        return tuple(made)

    def _join_files(self, connection: duckdb.DuckDBPyConnection, family: str, of_run: Mapping[str, Parts]) -> None:
        parts = [(encodable(name), path, limit) for name, parts in of_run.items() for path, limit in parts]
        names, paths, limits = zip(*parts, strict=True)
        table = f"sonde_files_of_{family}"
        columns = "unnest($1::VARCHAR[]) AS run, unnest($2::VARCHAR[]) AS sonde_file, unnest($3::BIGINT[]) AS sonde_limit"
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {quoted(table)} AS SELECT {columns}", [names, [*map(str, paths)], limits])
        connection.execute(f"CREATE VIEW {quoted(family)} AS {joined_rows_of(paths, table)}")

    def _can_view(self, connection: duckdb.DuckDBPyConnection, name: str, family: str, parts: Parts) -> bool:
        return bool(self._sources[name].view(connection, {family: parts}, "main"))

    def _view(self, connection: duckdb.DuckDBPyConnection, files: Sequence[Files]) -> tuple[str, ...]:
        parts: dict[str, dict[str, str]] = {}
        for place, (name, source) in enumerate(self._sources.items()):
            schema = f"run-{place}"
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
            for family in source.view(connection, files[place], schema):
                parts.setdefault(family, {})[name] = schema
        _drop_views(connection, "main")
        joined = {family: schemas for family, schemas in parts.items() if not self._differs(family, list(schemas))}
        for family, schemas in joined.items():
            rows = " UNION ALL BY NAME ".join(
                f"SELECT {literal(encodable(name))} AS run, * FROM {quoted(schema)}.{quoted(family)}"
                for name, schema in schemas.items()
            )
            connection.execute(f"CREATE VIEW {quoted(family)} AS {rows}")
        return tuple(joined)

    def _differs(self, family: str, names: Sequence[str]) -> bool:
        """Whether a column of *family* is of another kind in one of the runs, with a warning: DuckDB would make both texts."""
        seen: dict[str, tuple[str, str]] = {}
        for name in names:
            for column, kind in self._sources[name].classes.get(family, {}).items():
                first, of_first = seen.setdefault(column, (name, kind))
                if kind != of_first:
                    text = f"the family {family} is left out: {column} is {of_first} in {first} and {kind} in {name}"
                    if text not in self._warned:
                        self._warned.add(text)
                        warn_user(f"{text}. Open these runs one by one")
                    return True
        return False


def _drop_views(connection: duckdb.DuckDBPyConnection, schema: str) -> None:
    found = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = $1", [schema]).fetchall()
    for (stale,) in found:
        connection.execute(f"DROP VIEW {quoted(schema)}.{quoted(stale)}")


def _ask(
    sources: Sequence[DiskSource],
    view: Callable[[Sequence[Files]], tuple[str, ...]],
    connection: duckdb.DuckDBPyConnection,
    question: Ask[Answer],
    only: Collection[str] | None = None,
) -> Answer:
    """Answer *question* over the files of *sources*; again where they were merged or found damaged meanwhile."""
    import duckdb

    callers_own = (duckdb.ParserException, duckdb.CatalogException, duckdb.BinderException)
    for attempt in range(_TRIES):
        files = [source.files(only) for source in sources]
        try:
            families = view(files)
            return question(connection, families)
        except callers_own:
            raise
        except duckdb.Error:
            changed = [
                source.files(only) != there or source.find_damaged(there) for source, there in zip(sources, files, strict=True)
            ]
            if not any(changed) or attempt == _TRIES - 1:
                raise
    raise AssertionError("the last try has returned or raised")
