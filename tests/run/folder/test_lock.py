"""The lock of a writer: it leaves no file, and holds although its file comes and goes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sonde.errors import StoreError
from sonde.rows import Layout
from sonde.run.folder.lock import Lock, is_locked
from sonde.run.run import open_run
from sonde.run.store.open import join_run, start_run

PLACES = Layout(["fc:output"])


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_a_lock_that_is_given_back_leaves_no_file(tmp_path: Path) -> None:
    lock = Lock(tmp_path, 3)
    assert (is_locked(tmp_path), is_locked(tmp_path, 3), is_locked(tmp_path, 1)) == (True, True, False)
    lock.release()
    assert not files(tmp_path)
    assert is_locked(tmp_path) is False


def test_a_file_that_goes_between_opening_and_locking_it_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process gave it back, and a third one may lock a new one."""
    import fcntl

    tried: list[int] = []
    lockf = fcntl.lockf

    def late(descriptor: int, how: int) -> Any:
        tried.append(os.fstat(descriptor).st_ino)
        if len(tried) == 1:
            (tmp_path / ".lock-r0000").unlink()
        return lockf(descriptor, how)

    monkeypatch.setattr(fcntl, "lockf", late)
    lock = Lock(tmp_path, 0)
    assert len(tried) == 2
    assert (tmp_path / ".lock-r0000").stat().st_ino == tried[1]
    lock.release()


def test_a_rank_without_rows_leaves_no_file(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as zero:
        zero.append("moments", PLACES, {"rms": 1.0}, step=0)
        zero.flush()
        before = files(tmp_path)
        with join_run(zero.path, rank=1, attempt=1) as one:
            one.flush()
            assert files(tmp_path) == before
        assert files(tmp_path) == before
        with join_run(zero.path, rank=2, attempt=1) as two:
            two.append("moments", PLACES, {"rms": 2.0}, step=0)
            two.flush()
            assert is_locked(zero.path, 2)
    assert not any(name.startswith(".") for name in files(tmp_path))
    assert open_run(tmp_path / "run").series("fc", "rms", rank=2)[1].tolist() == [2.0]


def test_another_writer_of_the_same_rank_is_refused_when_it_joins(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as zero, join_run(zero.path, rank=1, attempt=1) as one:
        one.append("moments", PLACES, {"rms": 2.0}, step=0)
        one.flush()
        with pytest.raises(StoreError, match="this very process"):
            join_run(zero.path, rank=1, attempt=1)


def test_a_rank_writes_nothing_into_a_run_that_was_begun_anew(tmp_path: Path) -> None:
    zero = start_run(tmp_path / "run")
    late = join_run(zero.path, rank=1, attempt=1)
    zero.close()
    with start_run(tmp_path / "run", exists="replace") as again:
        late.append("moments", PLACES, {"rms": 7.0}, step=0)
        with pytest.warns(UserWarning, match="begun anew"):
            late.close()
        again.append("moments", PLACES, {"rms": 1.0}, step=0)
    assert late.lost == 1
    assert list(open_run(tmp_path / "run").ranks) == [0]
    assert not any("r0001" in name for name in files(tmp_path))


def test_a_late_column_of_another_kind_is_lost_and_the_family_stays_readable(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as zero:
        zero.append("moments", PLACES, {"rms": 1.0}, step=0)
    with start_run(tmp_path / "run", exists="resume") as zero:
        one = join_run(zero.path, rank=1, attempt=2)
        one.append("moments", PLACES, {"rms": [[1.0, 2.0]]}, step=1)
        with pytest.warns(UserWarning, match="held a number in each row before, and now a list"):
            one.close()
    assert one.lost == 1
    assert open_run(tmp_path / "run").series("fc", "rms")[1].tolist() == [1.0]
