"""What a page is that a run returns: pages are made above runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

__all__ = ["WebPage"]


class WebPage(Protocol):
    """A page in one file, which a notebook shows.

    Attributes:
        html: the page.
        numbers: the numbers that a reader of the page can choose.
    """

    html: str
    numbers: tuple[str, ...]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to *path*, an ``.html`` file, and return the path."""
