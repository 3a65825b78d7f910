"""The source of a run's rows: the interface, and the source that reads a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sonde.errors import StoreError
from sonde.paths import short_path
from sonde.run.folder.duckdb_sql import damage, quoted, rows_of
from sonde.run.folder.parts import live_parts, parts_in
from sonde.run.folder.run_json import Description
from sonde.run.schema import may_be_family
from sonde.warn import warn_user

if TYPE_CHECKING:
    import duckdb

__all__ = ["DiskSource", "Source"]

Answer = TypeVar("Answer")
Ask = Callable[["duckdb.DuckDBPyConnection", tuple[str, ...]], Answer]

_TRIES = 10  # of a query while compaction replaces the files under it


class Source(Protocol):
    """The interface from which a :class:`sonde.run.run.Run` reads."""

    @property
    def name(self) -> str:
        """The name of the run in messages."""

    @property
    def damaged(self) -> Mapping[Path, str]:
        """The files that were left out so far, each with its fault."""

    def describe(self) -> Description:
        """Return the description of the run, as of now."""

    def document(self, name: str, rank: int) -> Any:
        """Return a document as plain data, or None."""

    def ask(self, connection: duckdb.DuckDBPyConnection, question: Ask[Answer]) -> Answer:
        """Call *question* with a connection that has a view of each family, and with their names; return the answer."""


class DiskSource:
    """Reads a folder, whether or not somebody is writing to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged: dict[Path, str] = {}

    @property
    def name(self) -> str:
        return short_path(self.path)

    def describe(self) -> Description:
        return Description.read(self.path)

    def document(self, name: str, rank: int) -> Any:
        file = self.path / (f"{name}.json" if rank == 0 else f"{name}-r{rank:04d}.json")
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StoreError(f"{file} cannot be read: {error}") from None

    def ask(self, connection: duckdb.DuckDBPyConnection, question: Ask[Answer]) -> Answer:
        import duckdb

        callers_own = (duckdb.ParserException, duckdb.CatalogException, duckdb.BinderException)
        for attempt in range(_TRIES):
            files = self._files()
            try:
                families = self._view(connection, files)
                return question(connection, families)
            except callers_own:
                raise
            except duckdb.Error:
                again = self._files() != files or self._find_damaged(files)
                if not again or attempt == _TRIES - 1:
                    raise
        raise AssertionError("the last try has returned or raised")

    def _files(self) -> Mapping[str, list[tuple[Path, int | None]]]:
        """Return by family the live parts, each with the step from which its rows are superseded."""
        if not self.path.is_dir():
            self.describe()  # which says so
        # parts first, attempts second: an attempt is in run.json before its first part, so that each part's attempt is known
        found = {
            folder.name: live_parts(part for part in parts_in(folder) if folder / part.name not in self.damaged)
            for folder in sorted(self.path.iterdir())
            if folder.is_dir() and may_be_family(folder.name)
        }
        limits = self.describe().cutoffs
        return {
            family: [(self.path / family / part.name, limits.get(part.attempt)) for part in parts]
            for family, parts in found.items()
            if parts
        }

    def _view(self, connection: duckdb.DuckDBPyConnection, files: Mapping[str, list[tuple[Path, int | None]]]) -> tuple[str, ...]:
        for (stale,) in connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall():
            connection.execute(f"DROP VIEW {quoted(stale)}")
        for family, parts in files.items():
            connection.execute(f"CREATE VIEW {quoted(family)} AS {rows_of(parts)}")
        return tuple(files)

    def _find_damaged(self, files: Mapping[str, list[tuple[Path, int | None]]]) -> bool:
        """Warn of damaged parts and leave them out from now on; return whether there are new ones."""
        found = {path: why for parts in files.values() for path, _ in parts if path.exists() and (why := damage(path))}
        for path, why in found.items():
            self.damaged[path] = why
            warn_user(
                f"the part {path} is damaged and is left out; the rest is read ({why}). Its rows are missing from what you see"
            )
        return bool(found)
