"""Show on a terminal what long work is at."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def progress(title: str, *, verbose: bool = True, after: float = 1.0) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text beside *title* on the error stream, from *after* seconds on; in a terminal alone."""
    if not verbose or sys.stderr is None or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.markup import escape

    begun = time.monotonic()
    with ExitStack() as stack:
        status = Console(stderr=True).status(title)
        shown = False

        def show(text: str) -> None:
            nonlocal shown
            if not shown and time.monotonic() - begun >= after:
                stack.enter_context(status)
                shown = True
            if shown:
                status.update(f"{title}: {escape(text)}")

        yield show
