"""The figure that every picture is: matplotlib's own, with a style of its own. Imported where one is drawn, not before."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure

__all__ = ["Picture"]


class Picture(Figure):
    """A matplotlib figure that is in no global list: it goes when it is dropped, and a notebook shows it as it is.

    Attributes:
        settings: rcParams that hold whenever it is drawn: matplotlib makes ticks as late as that.
    """

    settings: Mapping[Any, Any] = {}

    def draw(self, renderer: RendererBase) -> None:
        """Draw it, in its own style."""
        with mpl.rc_context(dict(self.settings)):
            super().draw(renderer)

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png")
        return out.getvalue()
