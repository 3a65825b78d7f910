"""The server gives the answers as they are computed, refuses who may not read, and says every error in words."""

from __future__ import annotations

import gzip

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


@pytest.mark.parametrize("question", ["layer?layer=head", "lines?number=rms&site=head:output&site=head", "ratio", "coverage"])
def test_questions_with_arguments_are_answered(ask: Ask, question: str) -> None:
    assert ask(f"/api/runs/{id_of(ask, 'small')}/{question}").status == 200


@pytest.mark.parametrize(
    ("question", "status", "said"),
    [
        ("heatmap", 400, "lacks 'number'"),
        ("heatmap?number=rsm", 404, "moments.rms@output"),
        ("heatmap?number=rms&columns=x", 400, "whole number"),
        ("heatmap?number=rms&from=90", 400, "The nearest are"),
        ("heatmpa", 404, "heatmap"),
        ("graph.html", 400, "the run has no graph: give one batch"),
        ("distribution", 404, "ExponentHistogram"),
    ],
)
def test_errors_are_said_in_words(ask: Ask, question: str, status: int, said: str) -> None:
    answer = ask(f"/api/runs/{id_of(ask, 'small')}/{question}")
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    assert said in answer.json["error"]


def test_lines_come_in_the_order_in_which_they_were_asked_for(ask: Ask) -> None:
    asked = ["head:output", "blocks.0.fc:output", "blocks.1.fc:output"]
    answer = ask(f"/api/runs/{id_of(ask, 'small')}/lines?number=rms&" + "&".join(f"site={each}" for each in asked))
    assert [line["site"] for line in answer.json["lines"]] == asked


def test_two_runs_are_compared(ask: Ask) -> None:
    small = id_of(ask, "small")
    assert ask(f"/api/compare?a={small}&b={small}").json["identical"]
    assert ask(f"/api/compare?a={small}&b=nobody").status == 404


# Who may read, and what


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[::2]:8420"])
def test_another_host_is_refused(ask: Ask, host: str) -> None:
    """What a page elsewhere reaches that lets its own name point here."""
    answer = ask("/api/runs", Host=host)
    assert answer.status == 400
    assert b"runs" not in answer.body.replace(b"runs.", b"")


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8420", "LOCALHOST"])
def test_this_machine_has_several_names(ask: Ask, host: str) -> None:
    assert ask("/api/runs", Host=host).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_done(ask: Ask, method: str) -> None:
    answer = ask("/api/runs", method=method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../server.py",
        "/assets/..%2f..%2fserver.py",
        "/assets/%2e%2e/%2e%2e/app/server.py",
        "/assets/%2e%2e%2fapp/server.py",
        "/assets//etc/passwd",
        "/assets/app/../../app/server.py",
        "/assets/..%5c..%5cserver.py",
        "/..%2f..%2frun.json",
        "/api/runs/../../../etc/passwd/overview",
        "/api/runs/..%2fsmall/overview",
        "/api/runs/small/overview",
        "/api/runs/%2fetc/overview",
    ],
)
def test_no_path_leads_outside(ask: Ask, path: str) -> None:
    """Files and runs are looked up in tables; the name of a folder is no id."""
    answer = ask(path)
    assert answer.status == 404
    assert b"import" not in answer.body
    assert b"root:" not in answer.body


def test_the_browser_is_held_to_a_strict_policy(ask: Ask) -> None:
    for path in ("/", "/api/runs", "/assets/page.css", "/nowhere"):
        headers = ask(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe-eval" not in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert ask("/assets/page.css").headers["content-type"].startswith("text/css")


def test_text_of_a_hostile_run_is_json_and_nothing_else(ask: Ask) -> None:
    """No answer has a type that a browser would show as a page."""
    hostile = id_of(ask, "hostile")
    for question in ("overview", "numbers", "heatmap?number=rms", "findings", "coverage", "flow?number=rms"):
        answer = ask(f"/api/runs/{hostile}/{question}")
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert ask("/api/runs/%3Cscript%3E/overview").headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/api/runs", "/api/runs/{small}/heatmap?number=rms", "/assets/page.css", "/"])
def test_answers_are_compressed_for_who_can_read_that(ask: Ask, path: str) -> None:
    path = path.format(small=id_of(ask, "small"))
    plain, packed = ask(path), ask(path, **{"Accept-Encoding": "br, gzip"})
    assert ("content-encoding" in plain.headers, packed.headers["content-encoding"]) == (False, "gzip")
    unpacked = gzip.decompress(packed.body)
    assert unpacked[:5] == plain.body[:5]
    assert len(packed.body) < len(unpacked)


def test_a_file_of_the_page_that_a_browser_has_is_not_sent_again(ask: Ask) -> None:
    tag = ask("/assets/page.css").headers["etag"]
    again = ask("/assets/page.css", **{"If-None-Match": tag})
    assert (again.status, again.body) == (304, b"")
    assert "content-security-policy" in again.headers
