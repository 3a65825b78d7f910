"""An exception becomes an end: its state, its words, and what is read back from a file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sonde.run.folder.end import End, decisive, line_of
from sonde.run.folder.written import Written


class StoppedError(SystemExit):
    """As the exception that Lightning raises for SIGTERM."""


class StrangeError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ValueError("bad"), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (asyncio.CancelledError(), "interrupted"),
        (StoppedError(), "interrupted"),
        (SystemExit(143), "interrupted"),
        (SystemExit(1), "failed"),
        (SystemExit("no data"), "failed"),
        (SystemExit(0), None),
        (SystemExit(), None),
        (GeneratorExit(), None),
    ],
    ids=repr,
)
def test_an_exception_has_a_state(error: BaseException, state: str | None) -> None:
    end = End.of(error, 1, 0)
    assert (None if end is None else end.state) == state


def test_an_end_is_said_in_one_line() -> None:
    end = End(1, 3, "failed", "ValueError", "shapes\n  differ", "train.py:25: loss = model(x)", step=1017)
    assert end.words == "failed at step 1,017 on rank 3: ValueError: shapes differ (train.py:25: loss = model(x))"
    assert End(1, 0, "interrupted", "KeyboardInterrupt").words == "interrupted: KeyboardInterrupt"
    assert len(End(1, 0, "failed", "ValueError", "x" * 4000).words) == len("failed: ValueError: ") + 300


def test_texts_of_any_exception_can_be_kept() -> None:
    """One without a text, a long one, and one with a lone surrogate, which no file can hold."""
    assert End.of(StrangeError(), 1, 0).message == ""  # type: ignore[union-attr]  # it is an end
    assert End.of(ValueError("x" * 9999), 1, 0).message == "x" * 4000  # type: ignore[union-attr]
    assert End.of(ValueError("\udc80"), 1, 0).message == "\\udc80"  # type: ignore[union-attr]
    assert End.of(json.JSONDecodeError("bad", "{", 0), 1, 0).error == "json.decoder.JSONDecodeError"  # type: ignore[union-attr]


def test_the_line_is_the_last_of_the_users_own_code() -> None:
    """And not the library's in which the exception was raised."""
    try:
        json.loads("{")
    except ValueError as error:
        found = line_of(error)
    assert found.startswith("test_end.py:")
    assert found.endswith(': json.loads("{")')


def test_the_first_failure_decides_and_an_interrupt_only_without_one() -> None:
    ends = [
        End(1, 0, "interrupted", "KeyboardInterrupt", when=1.0),
        End(1, 2, "failed", "RuntimeError", "connection lost", when=3.0),
        End(1, 1, "failed", "ValueError", when=2.0),
        End(2, 0, "interrupted", "KeyboardInterrupt", when=9.0),
    ]
    assert decisive(ends, 1) == ends[2]
    assert decisive(ends, 2) == ends[3]
    assert decisive(ends, 3) is None


GOOD: dict[str, Any] = {**End(1, 7, "failed", "ValueError", "bad", "a.py:1: x", 3, 0, 5.0).to_data()}


@pytest.mark.parametrize(
    "changed",
    [{"state": "evaporated"}, {"message": 3}, {"step": -1}, {"step": True}, {"attempt": None}, {"when": "now"}],
    ids=repr,
)
def test_an_end_that_cannot_be_is_not_read(changed: dict[str, Any]) -> None:
    """A state of a later version, or a value of another type; a field that a later version has added is left out."""
    assert End.read(GOOD | {"later": 1}, 7) == End(1, 7, "failed", "ValueError", "bad", "a.py:1: x", 3, 0, 5.0)
    assert End.read(GOOD | changed, 7) is None
    assert End.read("failed", 7) is None


def test_a_file_keeps_the_ends_beside_what_earlier_versions_read(tmp_path: Path) -> None:
    """They read families and documents, and pass over the rest; a file without ends is theirs to the byte."""
    end = End.read(GOOD, 7)
    assert end is not None
    written = Written({"moments": 2}, frozenset({"coverage"}))
    written.write(tmp_path, 7, sync=False)
    assert set(json.loads(Written.file(tmp_path, 7).read_text())) == {"checksum", "families", "documents"}
    both = Written({"moments": 2}, frozenset({"coverage"}), (end, end))
    both.write(tmp_path, 7, sync=False)
    held = json.loads(Written.file(tmp_path, 7).read_text())
    assert (held["families"], held["documents"]) == ({"moments": 2}, ["coverage"])
    assert Written.read(tmp_path, 7) == both
