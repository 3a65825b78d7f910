"""The page is served: at a free port, with a token to other machines, beside a training, with new rows within two seconds."""

from __future__ import annotations

import http.client
import json
import re
import socket
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from tests.view.app import made_runs
from tests.view.app.conftest import asked
from torch import nn

import sonde
from sonde.cli import main
from sonde.errors import ArgumentError, MissingExtraError

pytest.importorskip("uvicorn")

from sonde.view.app.serving import LivePage


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        yield int(held.getsockname()[1])


def events(address: str) -> Generator[Any, None, None]:
    """Yield the events of a page, until the server ends."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    connection.request("GET", "/api/events")
    with closing(connection), connection.getresponse() as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        while line := answer.readline().decode():
            if line.startswith("data: "):
                yield json.loads(line[6:])


def test_new_rows_are_told_within_two_seconds_of_their_flush(tmp_path: Path) -> None:
    """The bound of two seconds is not tested, but that the event comes by itself, and that answers have the new rows then."""
    with made_runs.growing_run(tmp_path / "run") as writer, LivePage(tmp_path) as page:
        made_runs.small(writer, range(2))
        writer.flush()
        told = events(page.address)
        first = next(told)
        made_runs.small(writer, range(2, 5))
        writer.flush()
        (run,) = asked(page.address, "/api/runs").json["runs"]
        while asked(page.address, f"/api/runs/{run['id']}/flow?number=rms").json["step"] < 4:
            assert "run" in next(told) or first
        told.close()


def test_a_taken_port_is_said_with_a_free_one(tmp_path: Path) -> None:
    with taken_port() as port, pytest.raises(ArgumentError, match=rf"port {port} is taken by another program: \d+ is free"):
        LivePage(tmp_path, port=port)


def test_without_a_port_the_next_free_one_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with taken_port() as port:
        monkeypatch.setattr("sonde.view.app.serving.PORT", port)
        with LivePage(tmp_path) as page:
            assert page.address != f"http://127.0.0.1:{port}/"
            assert asked(page.address, "/api/runs").json["runs"] == []


def test_a_host_that_is_none_of_this_machine_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"no page can be served at '192\.0\.2\.1'"):
        LivePage(tmp_path, host="192.0.2.1")


def test_other_machines_need_the_token(runs: Path) -> None:
    """Any host may be written then; the token in the address becomes a cookie."""
    with LivePage(runs, host="0.0.0.0") as page:
        found = re.fullmatch(r"http://[^/]+:(\d+)/\?token=([\w-]{20,})", page.address)
        assert found is not None
        address, token = f"http://127.0.0.1:{found[1]}", found[2]
        assert asked(address, "/api/runs").status == 401
        assert "token" in asked(address, "/api/runs").json["error"]
        assert asked(address, "/").headers["content-type"].startswith("text/html")
        assert asked(address, "/?token=wrong").status == 401
        assert asked(address, "/api/runs", Cookie="sonde=wrong").status == 401
        assert asked(address, "/api/runs", Cookie='sonde="unclosed; \\x').status == 401
        entered = asked(address, f"/?token={token}&a=1", Host="workstation.example:80")
        assert (entered.status, entered.headers["location"]) == (303, "/?a=1")
        assert entered.headers["set-cookie"] == f"sonde={token}; Path=/; HttpOnly; SameSite=Strict"
        assert asked(address, "/api/runs", Cookie=f"other=1; sonde={token}").status == 200
        assert asked(address, f"//evil.example/?token={token}").headers["location"] == "/evil.example/"
        assert asked(address, "/api/runs", method="POST", Cookie=f"sonde={token}").status == 405


def test_without_the_extra_its_name_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sonde\[ui\]'"):
        LivePage(tmp_path)
    assert main(["ui", str(tmp_path)]) == 2
    assert "sonde[ui]" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", str(tmp_path / "nothing")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("sonde ui: no runs can be shown")
    assert said.count("\n") == 1


@pytest.mark.slow
def test_control_c_ends_the_command_quietly(tmp_path: Path) -> None:
    import signal
    import subprocess

    command = [sys.executable, "-m", "sonde", "ui", str(tmp_path), "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = [process.stdout.readline() for _ in range(3)]
    assert "no runs; those to come appear by themselves" in printed[0]
    address = printed[1].split()[0]
    threading.Timer(1.0, process.send_signal, [signal.SIGINT]).start()
    assert list(events(address)) == []  # an open stream does not hold the end up
    rest, errors = process.communicate(timeout=30)
    assert (process.returncode, rest, errors) == (0, "", "")


def test_an_inspector_opens_the_page_of_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The training goes on beside it; a second call gives the same page; the page stays after the end of the training."""
    model = nn.Sequential(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, to=tmp_path / "run") as inspector:
        page = inspector.open(browser=False)
        try:
            assert inspector.open(browser=False) is page
            assert page.address in capsys.readouterr().out
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            inspector.detach()
            (entry,) = asked(page.address, "/api/runs").json["runs"]
            assert (entry["name"], entry["state"]) == ("run", "ended")
            assert asked(page.address, f"/api/runs/{entry['id']}/heatmap?number=rms").json["sites"] == ["0:output"]
            assert f'src="{page.address}"' in page._repr_html_()
        finally:
            page.close()
    assert inspector.open(browser=False) is not page
    inspector.open(browser=False).close()


def test_a_run_in_memory_is_shown_while_it_grows() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector, inspector.open(browser=False) as page:
        (entry,) = asked(page.address, "/api/runs").json["runs"]
        assert entry["state"] == "running"
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        inspector.tick_epoch()
        assert len(inspector.run.families)
        assert asked(page.address, f"/api/runs/{entry['id']}/flow?number=rms@grad").json["step"] == 1


def test_without_a_run_there_is_no_page() -> None:
    inspector = sonde.Inspector()
    with pytest.raises(ArgumentError, match="no run is written"):
        inspector.open()
