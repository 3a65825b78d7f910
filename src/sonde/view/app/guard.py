"""Admit permitted requests alone (the right host, a token where one is needed, GET), and send the browser its security policy."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
COOKIE = "sonde"

NOTEBOOKS = "http://localhost:* http://127.0.0.1:* https://localhost:* vscode-webview:"
"""Where the page may be shown in a frame, besides in itself."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src 'self' data: blob:; "
    f"frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self' {NOTEBOOKS}"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
_LOCKED = """<!doctype html><html lang="en"><meta charset="utf-8"><title>sonde</title>
<body style="font:16px/1.5 system-ui,sans-serif;max-width:36em;margin:15vh auto;padding:0 1em">
<h1 style="font-size:1.3em">This page needs its token</h1>
<p>It shows runs to other machines than its own. Open the whole address that <code>sonde ui</code> has printed, with
<code>?token=...</code> at its end.</p>"""


class Guard:
    """The first thing that a request meets. Everything but GET and HEAD is refused, and so is a Host that is not ours.

    A page on another site cannot read answers: it has another origin, and where it makes its own name point here (DNS rebinding),
    the Host is its name.

    Args:
        app: answers what passes.
        hosts: the names that a Host header may have, without the port; None: any.
        token: what a reader must know; None: nothing.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None = LOOPBACK, token: str | None = None) -> None:
        self._app = app
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = _without_port(headers.get(b"host", "")).lower()
        if self._hosts is not None and host not in self._hosts:
            await _answer(send, 400, f"the host {host!r} is not this page's: open it as http://127.0.0.1", "")
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, f"{scope['method']} is refused: runs are only read", "", allow="GET, HEAD")
        elif self._token is not None and not _knows(headers.get(b"cookie", ""), self._token):
            await self._without_cookie(scope, send)
        else:
            await self._app(scope, receive, _with_headers(send))

    async def _without_cookie(self, scope: Scope, send: Send) -> None:
        """Take the token from the address: put it in a cookie, and send the reader to the address without it."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), "")
        if self._token is not None and hmac.compare_digest(given.encode(), self._token.encode()):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            path = "/" + str(scope["path"]).lstrip("/")  # two slashes would name another host
            cookie = f"{COOKIE}={self._token}; Path=/; HttpOnly; SameSite=Strict"
            place = path.encode("ascii", "ignore").decode() + (f"?{rest}" if rest else "")
            await _answer(send, 303, "", "", location="".join(each for each in place if each.isprintable()), set_cookie=cookie)
        elif scope["path"] == "/":
            await _answer(send, 401, _LOCKED, "text/html; charset=utf-8")
        else:
            await _answer(send, 401, "the token is missing: open the whole address that sonde ui has printed", "")


def _knows(cookies: str, token: str) -> bool:
    try:
        morsel = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return False
    return morsel is not None and hmac.compare_digest(morsel.value.encode(), token.encode())


def _without_port(host: str) -> str:
    return host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            own = {"content-security-policy": POLICY, **_HEADERS}
            more = [(name.encode(), value.encode()) for name, value in own.items() if name.encode() not in given]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, text: str, kind: str, **headers: str) -> None:
    """Send a whole answer; without a *kind*, an error as JSON."""
    import json

    body = text.encode() if kind or not text else json.dumps({"error": text}).encode()
    listed = [("content-type", kind or "application/json"), ("content-length", str(len(body)))]
    listed += [(name.replace("_", "-"), value) for name, value in headers.items()]
    encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in listed]
    await _with_headers(send)({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
