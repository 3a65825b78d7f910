"""A folder with runs, and a page that is served from it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.view.app import made_runs


@dataclass(frozen=True)
class Answered:
    """What a server sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Ask = Callable[..., Answered]


def asked(address: str, path: str, *, method: str = "GET", **headers: str) -> Answered:
    """Send one request to *path*, as it is written, and return what came back."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = Answered(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    connection.close()
    return found


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run, one with defects, one with hostile text; nobody writes to it."""
    top = tmp_path_factory.mktemp("page") / "runs"
    made_runs.small_run(top / "small")
    made_runs.with_defects(top / "deep" / "defects")
    made_runs.hostile_run(top / "hostile")
    return top


@pytest.fixture(scope="session")
def ask(runs: Path) -> Iterator[Ask]:
    """Ask the page of ``runs``: ``ask(path)``."""
    pytest.importorskip("uvicorn")
    from sonde.view.app.serving import LivePage

    with LivePage(runs) as page:
        yield lambda path, **more: asked(page.address, path, **more)
