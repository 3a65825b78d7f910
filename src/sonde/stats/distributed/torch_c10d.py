"""The private name of torch that ranks need to find each other, and gloo groups that torch's own list of groups does not hold."""

from __future__ import annotations

import ctypes
import os
import socket
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from math import inf
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from torch import distributed

_c10d: Any = distributed
T = TypeVar("T")

_PATIENCE = 10.0  # seconds that a request to the store may take
_CONNECTING = 30.0  # the same with a new connection: of many that are made at once some stall for 5 or 10 s
_LEAST = 0.05  # the same when the time is over
_SLICE = 0.2
_LONG = timedelta(days=20)  # a wait that ends in the store writes to the standard error
_SILENT = "the process that holds the store of the job (rank 0, as a rule) does not answer"
HOLDER_ENDED = "the process that held the store of the job has ended (rank 0, as a rule)"


class SilentStoreError(RuntimeError):
    """The store does not answer, and its connection is open: the process that holds it is stopped, or its machine is frozen."""


class _Line:
    """A connection with the store, and the thread that uses it: a request ends, answered or not.

    A call of torch's has no deadline where the process that holds the store is stopped: the system accepts its connections. The
    thread then stays behind, until the store answers or the process ends; meanwhile each request raises at once.

    Attributes:
        patience: seconds that a request may take.
        until: when the last request is to end, at the latest.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self.patience = _PATIENCE
        self.until = inf
        self._process = os.getpid()
        self._stuck: Future[Any] | None = None
        self._connect = connect
        self._asking = _Asking(connect)
        self._waiting: list[_Asking] = []
        self._finish = weakref.finalize(self, self._asking.rest)

    def ask(self, request: Callable[[Any], T]) -> T:
        """Return what *request* returns of the connection.

        Raises:
            SilentStoreError: it has not returned in time. Time in which this process was stopped does not count.
            RuntimeError: the store cannot be used.
        """
        self.check()
        answer: Future[T] = Future()
        self._asking.put(answer, request)
        if self._has_come(answer, self._patience_with(self._asking)):
            return answer.result()
        self._stuck = answer
        raise SilentStoreError(_SILENT)

    def wait(self, key: str, seconds: float) -> bool:
        """Return True once *key* is set, as the store tells by a connection of its own; False if it is not in *seconds*.

        Another thread asks meanwhile. A thread stays behind where *key* was not set in time, until it is.

        Raises:
            RuntimeError: the store cannot be used.
        """
        self.check()
        answer: Future[None] = Future()
        asking = self._waiting.pop() if self._waiting else _Asking(self._connect)
        asking.put(answer, lambda store: store.wait([key], _LONG))
        asking.rest()
        if not self._has_come(answer, seconds):
            return False
        answer.result()
        self._waiting.append(asking)
        return True

    def given(self) -> Any:
        """Return a connection for others to use: the one that was waited by, since a server may take long to accept a new one."""
        asking = self._waiting.pop() if self._waiting else _Asking(self._connect)
        answer: Future[Any] = Future()
        asking.put(answer, lambda store: store)
        asking.rest()
        if self._has_come(answer, self._patience_with(asking)):
            return answer.result()
        raise SilentStoreError(_SILENT)

    def _patience_with(self, asking: _Asking) -> float:
        return self.patience if asking.is_connected else max(self.patience, _CONNECTING)

    def _has_come(self, answer: Future[Any], seconds: float) -> bool:
        """Return whether *answer* comes in *seconds* in which this process is not stopped, and before all is to end."""
        left = max(seconds, _LEAST)
        least = time.monotonic() + _LEAST
        while True:
            begin = time.monotonic()
            left = min(left, max(self.until, least) - begin)
            done, _ = wait([answer], max(min(left, _SLICE), 0.0))
            if done or left <= 0:
                return bool(done)
            left -= min(time.monotonic() - begin, 2 * _SLICE)

    def rest(self) -> None:
        """Keep no thread any more, and no connection to wait by."""
        self._waiting.clear()
        self._finish()

    def check(self) -> None:
        """Raise if a request waits for its answer beyond the time, or where no request can be made."""
        if os.getpid() != self._process:
            raise RuntimeError("this process was forked from the one that is connected with the store")
        if self._stuck is not None and not self._stuck.done():
            raise SilentStoreError(_SILENT)


class _Asking:
    """Requests, and the thread that makes them, for as long as there may be more."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._store: Any = None
        self._requests: SimpleQueue[tuple[Future[Any], Callable[[Any], Any]] | None] = SimpleQueue()
        self._lock = Lock()
        self._runs = self._rests = False

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection already."""
        return self._store is not None

    def put(self, answer: Future[Any], request: Callable[[Any], Any]) -> None:
        with self._lock:
            self._requests.put((answer, request))
            if not self._runs:
                self._runs = True
                Thread(target=self._run, name="sonde store", daemon=True).start()

    def rest(self) -> None:
        """End the thread now, and from now on after each request."""
        with self._lock:
            self._rests = True
            self._requests.put(None)

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._rests and self._requests.empty():
                    self._runs = False
                    return
            given = self._requests.get()
            if given is None:
                continue
            answer, request = given
            try:
                self._store = self._connect() if self._store is None else self._store
                answer.set_result(request(self._store))
            except BaseException as error:
                answer.set_exception(error)
            del given, answer, request


class Store:
    """The store of the default process group, by a connection of its own, with keys that begin with a prefix.

    Such a connection is not blocked by a thread that waits for a key, and lives on after ``destroy_process_group``. Where a process
    of the job holds the store, the store ends with that process, and torch writes pages to the standard error where it is used
    then: :meth:`check_held` comes before uses that may come so late. Every method may raise a RuntimeError, and ends: where the
    process that holds the store is stopped, with a :class:`SilentStoreError`.
    """

    def __init__(self, line: _Line, prefix: str, held_by: tuple[str, int] | None) -> None:
        self._line = line
        self._prefix = prefix
        self._held_by = held_by

    @classmethod
    def of_job(cls, prefix: str) -> Store:
        """Return the store of the default process group, which there is.

        ``torchrun`` keeps one store for all attempts at a job: the keys of each are apart.
        """
        from torch.distributed import distributed_c10d

        base: Any = distributed_c10d._get_default_store()
        store = base
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        is_held = hasattr(store, "port") and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(_Line(base.clone), f"sonde/{attempt}/{prefix}", (store.host, store.port) if is_held else None)

    def part(self, prefix: str) -> Store:
        """Return the keys that begin with *prefix* as a store."""
        return Store(self._line, f"{self._prefix}/{prefix}", self._held_by)

    def connected(self) -> Any:
        """Return the store for torch itself, with a connection of its own, which may be waited with."""
        return _c10d.PrefixStore(self._prefix, self._line.given())

    def be_patient(self, seconds: float) -> None:
        """Wait *seconds* for an answer, and no longer than usually."""
        self._line.patience = min(seconds, _PATIENCE)

    def hurry(self, seconds: float) -> None:
        """Wait for no answer longer than *seconds* from now on."""
        self._line.until = time.monotonic() + seconds

    def rest(self) -> None:
        """Keep no thread any more: little will be asked."""
        self._line.rest()

    def check_held(self) -> None:
        """Raise if the process that held the store has ended, or is stopped.

        Raises:
            RuntimeError: it has ended.
        """
        self._line.check()
        if self._held_by is not None:
            try:
                socket.create_connection(self._held_by, timeout=1.0).close()
            except TimeoutError as error:
                raise SilentStoreError(_SILENT) from error
            except OSError as error:
                raise RuntimeError(HOLDER_ENDED) from error

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def add(self, key: str, number: int) -> int:
        """Add *number* to the number at *key*, which is 0 at first; return the sum."""
        return int(self._line.ask(lambda store: store.add(self._key(key), number)))

    def set(self, key: str, text: str) -> None:
        """Set *key*."""
        self._line.ask(lambda store: store.set(self._key(key), text))

    def change(self, key: str, before: str, after: str) -> str:
        """Set *key* to *after* if it is *before*, ``""`` for a key that is not set; return what it is then."""
        text: bytes = self._line.ask(lambda store: store.compare_set(self._key(key), before, after))
        return text.decode()

    def wait(self, key: str, seconds: float) -> bool:
        """Return True once *key* is set, by :meth:`set`, and False if it is not in *seconds*: the store tells, nothing asks again.

        The one that gives up sets *key* where it can: a thread waits for it until then.
        """
        return self._line.wait(self._key(key), seconds)

    def read(self, key: str) -> str:
        """Return the text of *key*, ``""`` where it is not set."""
        return self.change(key, "", "")  # one request, which never waits

    def has(self, key: str) -> bool:
        """Return whether *key* is set."""
        return bool(self._line.ask(lambda store: store.check([self._key(key)])))

    def get(self, key: str) -> str:
        """Return the text of *key*, which is set."""
        return self.get_all([key])[0]

    def get_all(self, keys: list[str]) -> list[str]:
        """Return the texts of *keys*, which are set."""
        named = list(map(self._key, keys))
        return self._line.ask(lambda store: [text.decode() for text in _texts(store, named)])


def _texts(store: Any, keys: list[str]) -> list[bytes]:
    found: list[bytes] = store.multi_get(keys) if len(keys) > 1 and store.has_extended_api() else list(map(store.get, keys))
    return found


class Gloo:
    """A gloo process group over the *size* ranks that meet in *store*; torch's own list of groups does not hold it.

    So it changes no group's name, no other rank need make it, and ``destroy_process_group`` leaves it alone. A process can end at
    any moment, also while an operation waits for a rank that never comes: the group is then left to the operating system, since
    its destructor would wait for the operation.

    Two ranks connect when an operation first needs it: each with a handful of others, as operations go along rings and trees. So
    all ranks make their part before the first operation.

    Args:
        seconds: how long two ranks may take to connect.

    Raises:
        RuntimeError: gloo finds no network, or the store cannot be used.
    """

    def __init__(self, store: Store, rank: int, size: int, seconds: float) -> None:
        self.group: Any = None  # if the ranks do not meet
        self.pending: Any = None
        if not distributed.is_gloo_available():
            raise RuntimeError("this torch was built without gloo")
        self._process = os.getpid()
        self.group = _c10d.ProcessGroupGloo(store.connected(), rank, size, _options(timedelta(seconds=seconds)))
        _groups.add(self)

    def reduce(self, tensor: Any, operation: Any) -> Any:
        """Begin to reduce *tensor* over all ranks, in place; return torch's handle."""
        return self._begun(self._open().allreduce(tensor, operation, _EVER))

    def gather(self, tensors: list[Any], tensor: Any) -> Any:
        """Begin to collect *tensor* of each rank in *tensors*; return torch's handle."""
        return self._begun(self._open().allgather(tensors, tensor, _EVER))

    def broadcast(self, tensor: Any, root: int) -> Any:
        """Begin to send *tensor* of the rank *root* to all; return torch's handle."""
        return self._begun(self._open().broadcast(tensor, root, _EVER))

    def _open(self) -> Any:
        group = self.group
        if group is None:
            raise RuntimeError("closed")
        return group

    def _begun(self, work: Any) -> Any:
        self.pending = work
        return work

    def close(self) -> None:
        """Close the connections, or leave them to the operating system where an operation still runs. Idempotent."""
        group, self.group = self.group, None
        if group is not None and (os.getpid() != self._process or not (self.pending is None or self.pending.is_completed())):
            _leave(group)
        self.pending = None

    def __del__(self) -> None:
        self.close()


def _options(seconds: timedelta) -> Any:
    """Return the options of a gloo group, with the devices that torch chooses by default."""
    gloo = _c10d.ProcessGroupGloo
    named = [{"interface": name} for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    make = gloo.create_device if named else gloo.create_default_device
    devices = [make(**each, lazy_init=True) for each in named or [{}]]
    options = gloo._Options()
    options._devices, options._threads, options._timeout = devices, 2 * len(devices), seconds
    return options


_EVER = timedelta(days=365)
_groups: weakref.WeakSet[Gloo] = weakref.WeakSet()


def _leave(group: Any) -> None:
    """Keep *group* for as long as the process lives, also when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _leave_all() -> None:
    """In a forked child the threads of the groups are missing, and destructors would wait for them for ever."""
    for gloo in _groups:
        gloo.close()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_leave_all)
