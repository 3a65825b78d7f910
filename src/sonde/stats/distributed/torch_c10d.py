"""The private name of torch that ranks need to find each other, and gloo groups that torch's own list of groups does not hold."""

from __future__ import annotations

import ctypes
import os
import socket
import weakref
from datetime import timedelta
from typing import Any

from torch import distributed

_c10d: Any = distributed


class Store:
    """The store of the default process group, by a connection of its own, with keys that begin with a prefix.

    Such a connection is not blocked by a thread that waits for a key, and lives on after ``destroy_process_group``. Where a process
    of the job holds the store, the store ends with that process, and torch writes pages to the standard error where it is used
    then: :meth:`check_held` comes before uses that may come so late. Every method may raise a RuntimeError.
    """

    def __init__(self, store: Any, prefix: str) -> None:
        self.store: Any = _c10d.PrefixStore(prefix, store)
        self._held_by: tuple[str, int] | None = None
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if hasattr(store, "port") and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
            self._held_by = store.host, store.port

    @classmethod
    def of_job(cls, prefix: str) -> Store:
        """Return the store of the default process group, which there is.

        ``torchrun`` keeps one store for all attempts at a job: the keys of each are apart.
        """
        from torch.distributed import distributed_c10d

        store: Any = distributed_c10d._get_default_store()
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(store.clone(), f"sonde/{attempt}/{prefix}")

    def part(self, prefix: str) -> Store:
        """Return the keys that begin with *prefix* as a store."""
        return Store(self.store, prefix)

    def check_held(self) -> None:
        """Raise if the process that held the store has ended.

        Raises:
            RuntimeError: it has ended.
        """
        if self._held_by is not None:
            try:
                socket.create_connection(self._held_by, timeout=1.0).close()
            except OSError as error:
                raise RuntimeError("the process that held the store of the job has ended (rank 0, as a rule)") from error

    def add(self, key: str, number: int) -> int:
        """Add *number* to the number at *key*, which is 0 at first; return the sum."""
        return int(self.store.add(key, number))

    def set(self, key: str, text: str) -> None:
        """Set *key*."""
        self.store.set(key, text)

    def set_first(self, key: str, text: str) -> None:
        """Set *key*, unless it is set."""
        self.store.compare_set(key, "", text)

    def has(self, *keys: str) -> bool:
        """Return whether all *keys* are set."""
        return bool(self.store.check(list(keys)))

    def get(self, key: str) -> str:
        """Return the text of *key*, which is set."""
        text: bytes = self.store.get(key)
        return text.decode()

    def get_all(self, keys: list[str]) -> list[str]:
        """Return the texts of *keys*, which are set."""
        return (
            [text.decode() for text in self.store.multi_get(keys)] if self.store.has_extended_api() else list(map(self.get, keys))
        )


class Gloo:
    """A gloo process group over the *size* ranks that meet in *store*; torch's own list of groups does not hold it.

    So it changes no group's name, no other rank need make it, and ``destroy_process_group`` leaves it alone. A process can end at
    any moment, also while an operation waits for a rank that never comes: the group is then left to the operating system, since
    its destructor would wait for the operation.

    Args:
        seconds: how long the ranks may take to meet.

    Raises:
        RuntimeError: a rank did not come in time.
    """

    def __init__(self, store: Store, rank: int, size: int, seconds: float) -> None:
        self.group: Any = None  # if the ranks do not meet
        self.pending: Any = None
        if not distributed.is_gloo_available():
            raise RuntimeError("this torch was built without gloo")
        self._process = os.getpid()
        self.group = _c10d.ProcessGroupGloo(store.store, rank, size, timedelta(seconds=seconds))
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
