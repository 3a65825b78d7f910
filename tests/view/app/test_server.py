"""The server gives the answers as they are computed, refuses who may not read, and says every error in words."""

from __future__ import annotations

import pytest
from tests.view.app.conftest import Ask


def id_of(ask: Ask, name: str) -> str:
    """The id of the run with this name."""
    found: str = next(run["id"] for run in ask("/api/runs").json["runs"] if run["name"] == name)
    return found


def test_it_lists_the_runs_with_state_and_health(ask: Ask) -> None:
    runs = {run["name"]: run for run in ask("/api/runs").json["runs"]}
    assert list(runs) == ["deep/defects", "hostile", "small"]
    assert [runs[name]["state"] for name in runs] == ["ended"] * 3
    assert (runs["small"]["health"], runs["deep/defects"]["health"]) == ("ok", "bad")
    assert (runs["small"]["first"], runs["small"]["last"], runs["small"]["loss_last"]) == (0, 18, 1 / 19)
    assert runs["deep/defects"]["loss_last"] is None  # NaN


@pytest.mark.parametrize("question", ["overview", "numbers", "heatmap?number=rms", "flow?number=rms", "findings"])
@pytest.mark.parametrize("name", ["small", "deep/defects", "hostile"])
def test_every_question_is_answered_for_every_run(ask: Ask, name: str, question: str) -> None:
    answer = ask(f"/api/runs/{id_of(ask, name)}/{question}")
    assert answer.status == 200, answer.body
    assert answer.json["version"]
