"""``on_alert=`` tells a function, a webhook or a command of what is found, and the training never waits for it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sonde
from sonde.errors import ArgumentError, ObservationWarning
from sonde.types import Finding


def train(on_alert: Any, to: Any = "memory", steps: int = 12) -> sonde.Inspector:
    """Train a net with a dead layer; return its inspector, detached."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    nn.init.constant_(model[2].bias, -9.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 8), torch.randint(2, (64,))
    with sonde.watch(model, optimizer, every=1, to=to, verbose=False, on_alert=on_alert) as inspector:
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return inspector


def grave(inspector: sonde.Inspector) -> set[tuple[str, str]]:
    """Return rule and site of the findings that are no notes and follow from no other."""
    return {(each.rule, each.site) for each in inspector.findings if each.severity != "note" and not each.follows}


def test_a_function_is_called_with_each_finding_once_and_not_in_the_training_thread() -> None:
    told: list[tuple[Finding, int]] = []
    inspector = train(lambda finding: told.append((finding, threading.get_ident())))
    assert grave(inspector)
    assert grave(inspector) <= {(each.rule, each.site) for each, _ in told}
    assert len({(each.rule, each.site, each.step) for each, _ in told}) == len(told)
    assert all(each.severity in ("warn", "bad") for each, _ in told)
    assert threading.get_ident() not in {thread for _, thread in told}


def test_a_command_has_the_finding_as_its_input(tmp_path: Path) -> None:
    """One call for each; the JSON is that of the page on schemas."""
    file = tmp_path / "alerts.jsonl"
    script = f"import sys; open({str(file)!r}, 'a').write(sys.stdin.read() + '\\n')"
    inspector = train([sys.executable, "-c", script], to=tmp_path / "run")
    told = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert grave(inspector) <= {(each["finding"]["rule"], each["finding"]["site"]) for each in told}
    assert {each["schema"] for each in told} == {1}
    assert {each["run"] for each in told} == {str(tmp_path / "run")}
    assert all(each["text"].startswith(f"sonde: step {each['finding']['step']:,}: {each['finding']['message']}") for each in told)


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """A server that keeps what it is sent, on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            held.told.append((self.path, self.headers["Content-Type"], body))  # type: ignore[attr-defined]
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    held = HTTPServer(("127.0.0.1", 0), Handler)
    held.told = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=held.serve_forever, daemon=True)
    thread.start()
    yield held
    held.shutdown()
    held.server_close()
    thread.join()


def test_a_webhook_is_sent_json(server: HTTPServer) -> None:
    inspector = train(f"http://127.0.0.1:{server.server_port}/hook?key=1")
    told: list[Any] = server.told  # type: ignore[attr-defined]
    assert grave(inspector) <= {(body["finding"]["rule"], body["finding"]["site"]) for _, _, body in told}
    assert {(path, kind) for path, kind, _ in told} == {("/hook?key=1", "application/json")}
    assert {body["run"] for _, _, body in told} == {None}


def test_what_raises_costs_the_training_nothing_and_is_said_once() -> None:
    def broken(finding: Finding) -> None:
        raise RuntimeError("the pager is off")

    with pytest.warns(ObservationWarning, match="AlertSink raised RuntimeError: the pager is off") as caught:
        inspector = train(broken)
    assert len([each for each in caught if "pager" in str(each.message)]) == 1
    assert inspector.run.last_step == 11


@pytest.mark.parametrize("target", [3, [], [3], "", "no-such-command-anywhere --now", {"a": 1}])
def test_what_is_no_way_to_tell_is_refused_before_the_folder_is_made(target: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="on_alert="):
        train(target, to=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
