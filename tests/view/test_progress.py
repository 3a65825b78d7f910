"""Long work shows what it is at: in a terminal, and only from a second on."""

from __future__ import annotations

import io
import sys

import pytest

from sonde.view.progress_bar import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "after", "is_shown"),
    [(Terminal(), 0.0, True), (Terminal(), 60.0, False), (io.StringIO(), 0.0, False)],
    ids=["terminal", "short work", "log"],
)
def test_what_runs_is_shown_in_a_terminal_if_it_takes_long(
    stream: io.StringIO, after: float, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("why_nan", after=after) as show:
        show("64 operations, forward [blocks.0]")
    assert ("64 operations, forward [blocks.0]" in stream.getvalue()) is is_shown
    assert (stream.getvalue() == "") is not is_shown
