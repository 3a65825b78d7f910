"""The page on statistics says what is so: its code runs and prints what it shows, and its tables name every number."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import sonde.stats
from sonde.stats import (
    Accumulator,
    Activation,
    ChannelActivation,
    Cosine,
    ExponentHistogram,
    Moments,
    Norm,
    RowStatistic,
    Spectrum,
    Updates,
)
from sonde.testing.laws import members

PAGE = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
UNITS = {"x", "elements", "calls", "pairs", "channels", "vectors", "share", "octaves", "1"}
STATISTICS: list[RowStatistic] = [
    Moments(),
    Norm(),
    ExponentHistogram(),
    Activation(),
    ChannelActivation(3),
    Spectrum(3),
    Cosine(),
    Updates(),
]


def test_the_code_runs_and_prints_what_the_page_shows() -> None:
    """All blocks of code in order, as one program; each block of text is what was printed since the last one."""
    space: dict[str, Any] = {"__name__": "statistics_page"}
    printed = io.StringIO()
    shown = 0
    for kind, text in BLOCK.findall(PAGE):
        if kind == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(text, "docs/statistics.md", "exec", dont_inherit=True), space)
        else:
            assert printed.getvalue() == text
            printed = io.StringIO()
            shown += 1
    assert printed.getvalue() == "", "printed and not shown"
    assert shown >= 10


def table(statistic: RowStatistic) -> dict[str, str]:
    """Number to unit, from the section of a statistic."""
    section = PAGE.split(f"\n## `{type(statistic).__name__}`\n")[1].split("\n## ")[0]
    rows = [row.strip("|").split(" | ") for row in section.splitlines() if row.startswith("| `")]
    return {name: row[1].strip() for row in rows for name in re.findall(r"`(\w+)`", row[0])}


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda statistic: type(statistic).__name__)
def test_every_number_has_a_unit(statistic: RowStatistic) -> None:
    """The table of a statistic names exactly the numbers it gives, each with a unit that the page explains."""
    given = set(Accumulator(statistic).update(torch.ones(2, 3)).compute())
    assert set(table(statistic)) == given
    assert set(table(statistic).values()) <= UNITS
    for unit in UNITS:
        assert f"*{unit}*" in PAGE


def test_every_statistic_is_on_the_page() -> None:
    """A member without a section, or without a row in the first table, fails."""
    assert members(sonde.stats) == {type(statistic) for statistic in STATISTICS}
    for statistic in STATISTICS:
        assert f"[`{type(statistic).__name__}`](#{type(statistic).__name__.lower()})" in PAGE
