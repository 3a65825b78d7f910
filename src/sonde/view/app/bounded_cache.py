"""Keep the latest results, up to a number of bytes; a result that two threads need at once is computed once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")


class BoundedCache:
    """Things by key; the least recently used are dropped where there are too many bytes.

    Args:
        limit: bytes. The thing that was made last is kept even if it is larger.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()
        self._making: dict[tuple[Any, ...], threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...], make: Callable[[], Made], size: Callable[[Made], int]) -> Made:
        """Return the thing of *key*, made by *make* if it is not there; *size* gives its bytes. What *make* raises is raised."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            try:
                with self._lock:
                    if key in self._held:
                        self._held.move_to_end(key)
                        known: Made = self._held[key][0]
                        return known
                made = make()
                with self._lock:
                    self._held[key] = made, size(made)
                    while len(self._held) > 1 and sum(held for _, held in self._held.values()) > self._limit:
                        self._held.popitem(last=False)
            finally:
                with self._lock:
                    self._making.pop(key, None)
        return made

    def latest(self, wanted: Callable[[tuple[Any, ...]], bool]) -> Any | None:
        """Return the thing that was used last among those whose key is *wanted*; None without one."""
        with self._lock:
            return next((held for key, (held, _) in reversed(self._held.items()) if wanted(key)), None)
