"""Serve the page and its answers: what each address gives, and events for readers where there is something new."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gzip
import hashlib
import json
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from sonde.answer import KIT
from sonde.errors import ArgumentError, MissingExtraError, SelectionError, SiteError, SondeError, StoreError, UnknownSiteError
from sonde.view.app.answers.against import Against
from sonde.view.app.answers.opened_run import graph_text
from sonde.view.app.answers.questions import answer_text, json_of
from sonde.view.app.answers.two_sides import comparison
from sonde.view.app.bounded_cache import BoundedCache
from sonde.view.app.followed_runs import FollowedRuns
from sonde.view.app.guard import NOTEBOOKS

_LOOK = 0.7  # seconds between two looks while somebody reads
_PATIENCE = 0.5  # seconds in which a list of runs is read; what is left follows
_ALIVE = 15.0  # seconds after which a stream says that it is still there
_ANSWERS = 128 << 20  # bytes of answers that stay in memory
_THREADS = 4
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_STATUS: tuple[tuple[type[SondeError], int], ...] = (
    (UnknownSiteError, 404),
    (ArgumentError, 400),
    (SelectionError, 400),
    (SiteError, 400),
    (StoreError, 422),
    (MissingExtraError, 501),
)


class Changes:
    """Sends every reader the changes of the followed runs, for as long as there is a reader."""

    def __init__(self, followed: FollowedRuns) -> None:
        self._followed = followed
        self._readers: set[asyncio.Queue[str | None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self.ended = False

    async def read(self) -> AsyncIterator[str]:
        """Yield server-sent events: one for each run that has changed, and one where the list of runs has."""
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._readers.add(queue)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield "retry: 1000\n\n"
            while not self.ended:
                try:
                    said = await asyncio.wait_for(queue.get(), _ALIVE)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if said is None:
                    return
                yield f"data: {said}\n\n"
        finally:
            self._readers.discard(queue)

    async def _look(self) -> None:
        while self._readers and not self.ended:
            changed, list_changed = await to_thread.run_sync(self._followed.news)
            said = [{"run": each, "version": self._followed.version(each)} for each in changed]
            for each in [*said, *([{"runs": True}] if list_changed else [])]:
                for queue in self._readers:
                    queue.put_nowait(json.dumps(each))
            await asyncio.sleep(_LOOK)

    def end(self) -> None:
        """End all streams; in the thread of the server."""
        self.ended = True
        for queue in self._readers:
            queue.put_nowait(None)


def make_app(followed: FollowedRuns, changes: Changes | None = None) -> Starlette:
    """Return the application of a page over *followed* runs. :class:`~sonde.view.app.guard.Guard` belongs in front of it."""
    changes = changes or Changes(followed)
    pages = _Answers(followed)
    return Starlette(
        routes=[
            Route("/", functools.partial(_asset, "app/index.html")),
            Route("/assets/{name:path}", _named_asset),
            Route("/api/runs", pages.of(pages.runs)),
            Route("/api/events", lambda request: StreamingResponse(changes.read(), media_type="text/event-stream")),
            Route("/api/runs/{run}/graph.html", pages.of(pages.graph)),
            Route("/api/runs/{run}/{question}", pages.of(pages.question)),
            Route("/api/compare", pages.of(pages.compare)),
        ]
    )


class _Answers:
    """Answers requests outside of the event loop, a few at a time, and keeps the answers of a version."""

    def __init__(self, followed: FollowedRuns) -> None:
        self._followed = followed
        self._cache = BoundedCache(_ANSWERS)
        self._threads = CapacityLimiter(_THREADS)

    def of(self, answer: Callable[[Request], Response]) -> Callable[[Request], Any]:
        """Return the endpoint that gives *answer*, or its error in words."""

        async def endpoint(request: Request) -> Response:
            return await to_thread.run_sync(functools.partial(_answered, answer, request), limiter=self._threads)

        return endpoint

    def runs(self, request: Request) -> Response:
        self._followed.refresh()
        answer = {"folder": self._followed.shown, "now": time.time(), "runs": self._followed.entries(seconds=_PATIENCE)}
        return _sent(request, _compressed(json_of(answer)), "application/json")

    def question(self, request: Request) -> Response:
        run, name = request.path_params["run"], request.path_params["question"]
        self._followed.refresh()
        opened = self._followed.opened(run)
        query = sorted(request.query_params.multi_items(), key=lambda item: item[0])  # values of one name keep their order
        if others := [other for given, other in query if given == "against"]:
            opened = Against(opened, self._followed.opened(others[-1]))
        query = [item for item in query if item[0] != "against"]
        key = (run, *others, opened.version, name, *query)
        return self._kept(request, key, lambda: answer_text(name, opened, query), "application/json")

    def graph(self, request: Request) -> Response:
        """The page of the run's graph: it has a policy of its own, for its own script alone."""
        run = request.path_params["run"]
        opened = self._followed.opened(run)
        numbers = tuple(text for name, text in request.query_params.multi_items() if name == "number" and text)
        answer = self._kept(request, (run, opened.version, "graph", *numbers), lambda: graph_text(opened, numbers), "text/html")
        answer.headers["content-security-policy"] = f"frame-ancestors 'self' {NOTEBOOKS}"
        return answer

    def compare(self, request: Request) -> Response:
        self._followed.refresh()
        asked = [request.query_params.get(name, "") for name in ("a", "b")]
        a, b = map(self._followed.opened, asked)
        key = ("compare", *asked, a.version, b.version)
        return self._kept(
            request, key, lambda: json_of({"version": f"{a.version}-{b.version}", **comparison(a, b)}), "application/json"
        )

    def _kept(self, request: Request, key: tuple[Any, ...], make: Callable[[], bytes], kind: str) -> Response:
        return _sent(request, self._cache.get(key, lambda: _made(make), len), kind)


def _made(make: Callable[[], bytes]) -> bytes:
    try:
        return _compressed(make())
    finally:
        _give_back()


def _give_back() -> None:
    """Give free memory back to the system: what a large answer took, the allocator of Linux keeps for the next one."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _compressed(body: bytes) -> bytes:
    return gzip.compress(body, 1, mtime=0)


def _sent(request: Request, compressed: bytes, kind: str, **headers: str) -> Response:
    """Return *compressed* as it is to a browser that can read it, which each can, and otherwise as it was."""
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(compressed, media_type=kind, headers={"content-encoding": "gzip", "vary": "accept-encoding", **headers})
    return Response(gzip.decompress(compressed), media_type=kind, headers={"vary": "accept-encoding", **headers})


def _json(data: Any, status: int = 200) -> Response:
    return Response(json_of(data), status, media_type="application/json")


def _answered(answer: Callable[[Request], Response], request: Request) -> Response:
    try:
        return answer(request)
    except SondeError as error:
        return _json({"error": str(error)}, next((status for kind, status in _STATUS if isinstance(error, kind)), 500))
    except Exception as error:  # a defect: the page says so, and goes on
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = f"sonde failed here: {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        sys.stderr.write(said + "\n")
        return _json({"error": said}, 500)


@functools.cache
def _assets() -> dict[str, bytes]:
    """Return the files of the page, compressed, by name: what is not in this table is not served."""
    folders = {"": KIT, "app/": Path(__file__).parents[1] / "assets" / "app"}
    files = [(f"{folder}{each.name}", each) for folder, at in folders.items() for each in at.iterdir()]
    return {name: _compressed(each.read_bytes()) for name, each in files if each.is_file() and _kind(name)}


def _kind(name: str) -> str:
    return next((kind for ending, kind in _KINDS.items() if name.endswith(ending)), "")


async def _asset(name: str, request: Request) -> Response:
    held = _assets().get(name)
    if held is None:
        return _json({"error": f"{name!r} is no file of the page"}, 404)
    tag = f'"{hashlib.blake2b(held, digest_size=8).hexdigest()}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    return _sent(request, held, _kind(name), etag=tag)


async def _named_asset(request: Request) -> Response:
    return await _asset(request.path_params["name"], request)
