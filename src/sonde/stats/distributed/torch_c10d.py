"""The private name of torch that ranks need to find each other, and gloo groups that torch's own list of groups does not hold."""

from __future__ import annotations

import ctypes
import os
import weakref
from datetime import timedelta
from typing import Any

from torch import distributed

_c10d: Any = distributed

__all__ = ["Gloo", "default_store", "part_of"]


def default_store() -> Any:
    """Return a new connection to the store of the default process group.

    A connection of one's own is not blocked by a thread that waits for a key, and lives on after ``destroy_process_group``.
    """
    from torch.distributed import distributed_c10d

    store: Any = distributed_c10d._get_default_store()
    return store.clone()


def part_of(store: Any, prefix: str) -> Any:
    """Return a view of *store* whose keys begin with *prefix*."""
    return _c10d.PrefixStore(prefix, store)


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

    def __init__(self, store: Any, rank: int, size: int, seconds: float) -> None:
        self.group: Any = _c10d.ProcessGroupGloo(store, rank, size, timedelta(seconds=seconds))
        self.pending: Any = None
        self._process = os.getpid()
        _groups.add(self)
        self._at_exit = weakref.finalize(self, Gloo._let_go, weakref.ref(self))

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

    @staticmethod
    def _let_go(reference: weakref.ref[Gloo]) -> None:
        gloo = reference()
        if gloo is not None:
            gloo.close()

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


os.register_at_fork(after_in_child=_leave_all)
