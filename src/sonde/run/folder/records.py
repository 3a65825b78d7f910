"""Read and write the records of findings of a run, one of each rank that writes rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sonde.errors import StoreError
from sonde.run.folder.json_file import read_json, write_json
from sonde.run.record import Record

PATTERN = "findings*.json"


def record_file(rank: int) -> str:
    """Return the name of the file of one rank."""
    return "findings.json" if rank == 0 else f"findings-r{rank:04d}.json"


def record_in(folder: Path, rank: int) -> Record | None:
    """Return the record of one rank; None where there is none, or a damaged one."""
    with suppress(FileNotFoundError, StoreError):
        return Record.read(read_json(folder / record_file(rank)))
    return None


def write_records(folder: Path, records: Mapping[int, Record]) -> None:
    """Put the *records*, by rank, in place of those in *folder*. The caller holds the locks of the run.

    Raises:
        OSError: a file cannot be written.
    """
    for rank, record in records.items():
        write_json(folder / record_file(rank), record.to_data(), sync=True)
