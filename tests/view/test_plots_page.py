"""docs/pictures.md is true: its code runs, and what it shows is what is printed."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

import sonde.inspector.sinks
from sonde.view import plots

PAGE = (Path(__file__).parents[2] / "docs" / "pictures.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_block_runs_in_order_and_prints_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    printed, shown = "", 0
    for number, (language, text) in enumerate(BLOCKS):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, f"block {number}", "exec", dont_inherit=True), names)
            printed = out.getvalue()
        else:
            assert printed == text
            shown += 1
    assert shown == 3
    assert "update / weight" in printed  # of Print
    assert [line.split()[0] for line in printed.splitlines()[:3]] == ["19", "39", "59"]
    assert len(list((tmp_path / "pictures").iterdir())) == len(plots.plan(names["run"]))  # type: ignore[arg-type]
    assert (tmp_path / "flow.png").exists()


@pytest.mark.parametrize("name", [*plots.__all__, *sonde.inspector.sinks.__all__])
def test_every_public_name_is_on_the_page(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE)
