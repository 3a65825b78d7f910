"""Start and stop the server of a page: its address, its port, and its thread."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import sys
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sonde.errors import ArgumentError, MissingExtraError
from sonde.escape import escape_html
from sonde.run import Run
from sonde.view.app.followed_runs import FollowedRuns
from sonde.view.app.guard import LOOPBACK, Guard

if TYPE_CHECKING:
    import uvicorn


PORT = 8420
_NEXT = 20  # ports that are tried after the first
_LOOPBACKS = {*LOOPBACK, "::1"}


class LivePage:
    """The live page of runs, served until :meth:`close`; as a notebook's last line it shows itself.

    Args:
        runs: a folder with runs, however deep, or one run.
        host: the name or address to listen at. Anything but this machine itself needs the token that is part of ``address``.
        port: None takes 8420 or the next free one.

    Attributes:
        address: to open in a browser.
        followed: the runs.

    Raises:
        MissingExtraError: starlette or uvicorn is not installed.
        StoreError: there is no such folder.
        ArgumentError: the port is taken, or the host cannot be listened at.
    """

    def __init__(self, runs: Path | Run, *, host: str = "127.0.0.1", port: int | None = None) -> None:
        for package in ("starlette", "uvicorn"):
            MissingExtraError.import_or_raise(package, "the live page", "ui")
        self.followed = FollowedRuns(runs)
        self._socket = _listen(host, port)
        is_open = host not in _LOOPBACKS
        token = secrets.token_urlsafe(18) if is_open else None
        shown = socket.gethostname() if host in ("0.0.0.0", "::", "") else f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._socket.getsockname()[1]}/" + (f"?token={token}" if token else "")
        self._server = _server(self.followed, token=token, any_host=is_open)
        self._thread: threading.Thread | None = None

    def serve(self) -> None:
        """Answer requests until the process is interrupted."""
        with suppress(KeyboardInterrupt):
            self._server.run(sockets=[self._socket])

    def start(self) -> Self:
        """Answer requests in a thread of this process, and return when the first can come."""
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="sonde page", daemon=True)
        self._thread.start()
        return self

    @property
    def is_closed(self) -> bool:
        """Whether the page was closed."""
        return bool(self._server.should_exit)

    def close(self) -> None:
        """End the server. Idempotent."""
        self._server.should_exit = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5)
        self._socket.close()

    def __enter__(self) -> Self:
        return self if self._thread is not None else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"page of {self.followed.shown}: {self.address}"

    def _repr_html_(self) -> str:
        address = escape_html(self.address)
        return (
            f'<p><a href="{address}" target="_blank" rel="noopener">{escape_html(self)}</a></p>'
            f'<iframe title="sonde" src="{address}" style="width:100%;height:720px;border:1px solid #8886"></iframe>'
        )


def open_page(runs: Path | Run, *, port: int | None, browser: bool, verbose: bool) -> LivePage:
    """Serve a page beside other work of this process; print its address, and open a browser if one can be seen.

    Args:
        runs, port: see :class:`LivePage`.
        browser: open one, unless this is a notebook, which shows the page itself.
        verbose: print where the page is.
    """
    page = LivePage(runs, port=port).start()
    if verbose:
        sys.stdout.write(f"{page}\n")
    if browser and has_screen() and "ipykernel" not in sys.modules:
        webbrowser.open(page.address)
    return page


def has_screen() -> bool:
    """Return whether a browser that is opened can be seen: a text browser in the terminal would hide what is printed there."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens at *port*, or at the first free one from 8420 on."""
    tried = [port] if port is not None else [*range(PORT, PORT + _NEXT), 0]
    for each in tried:
        try:
            return _bound(host, each)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise ArgumentError(f"no page can be served at {host!r}: {error.strerror or error}") from None
            if port is not None:
                why = "is taken by another program" if error.errno == errno.EADDRINUSE else "needs the rights of an administrator"
                raise ArgumentError(f"port {port} {why}: {_free_port(host)} is free, or leave the port out") from None
    raise AssertionError("port 0 is always free")


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(64)
    except BaseException:
        made.close()
        raise
    return made


def _free_port(host: str) -> int:
    for port in [*range(PORT, PORT + _NEXT), 0]:
        with suppress(OSError), _bound(host, port) as found:
            return int(found.getsockname()[1])
    return 0


def _server(followed: FollowedRuns, *, token: str | None, any_host: bool) -> uvicorn.Server:
    import uvicorn

    from sonde.view.app.server import Changes, make_app

    changes = Changes(followed)

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            changes.end()
            await super().shutdown(sockets)

    app = Guard(make_app(followed, changes), hosts=None if any_host else LOOPBACK, token=token)
    config = uvicorn.Config(
        app, log_config=None, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    return Server(config)
