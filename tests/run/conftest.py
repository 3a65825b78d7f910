"""Runs to write to: on disk and in memory, and a way to end one as a kill would."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from sonde.run.store.disk_writer import DiskWriter
from sonde.run.store.memory_writer import memory_run
from sonde.run.store.open import start_run
from sonde.run.store.writer import RunWriter


@pytest.fixture(params=["disk", "memory"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunWriter]:
    """A new run, once on disk and once in memory."""
    made: RunWriter = start_run(tmp_path / "run") if request.param == "disk" else memory_run()
    with made:
        yield made


@pytest.fixture
def abandon() -> Callable[[RunWriter], None]:
    """End a writer on disk after a flush, without compaction and without saying so: what a kill leaves behind."""

    def end(writer: RunWriter) -> None:
        on_disk = cast(DiskWriter, writer)
        on_disk.flush()
        on_disk.thread.stop()
        on_disk._lock.release()
        atexit.unregister(on_disk.close)

    return end
