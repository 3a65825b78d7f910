"""Work done by several threads at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def in_threads(work: Callable[[], None], workers: int) -> None:
    """Call *work* in so many threads, which take turns as often as they can."""
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        running = [threading.Thread(target=work) for _ in range(workers)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
