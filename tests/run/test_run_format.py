"""docs/run-format.md is true: its Python runs, its SQL answers, and what it shows is what is printed."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import duckdb
import pytest

from sonde.run.schema import ALERTS, KEYS, SCALARS, VERSION
from sonde.run.store.disk_writer import Flushing
from sonde.run.store.parts import Part

PAGE = (Path(__file__).parents[2] / "docs" / "run-format.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_block_runs_in_order_and_prints_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    printed = ""
    answers = []
    for number, (language, text) in enumerate(BLOCKS[1:]):  # the first is the tree of files
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, f"block {number}", "exec"), names)
            printed = out.getvalue()
        elif language == "sql":
            answers.append(duckdb.sql(text).fetchall())
        else:
            assert printed == text
    assert answers[0][0] == ("layers.1:output", pytest.approx(0.9**100))
    assert [ratio for _, ratio in answers[0][1:]] == pytest.approx([1.0, 1.0])
    assert answers[1] == [("layers.1:output", 66)]
    assert answers[2] == [(120, "layers.1:output", "92 % dead", 2.0 / 121)]


def test_what_it_says_in_words() -> None:
    for names in (", ".join(SCALARS), ", ".join(ALERTS), f"`version` ({VERSION})", *(f"`{key}`" for key in KEYS)):
        assert names in PAGE
    assert Part.parse(re.search(r"part-r0\S+parquet", PAGE)[0]) == Part(0, 1, 42, 1, 1)  # type: ignore[index]
    usual = Flushing()
    assert (usual.seconds, usual.limit, usual.patience) == (10, 128 << 20, 10)
    assert "Flushing(seconds=10)" in PAGE
    assert "128 MB" in PAGE
