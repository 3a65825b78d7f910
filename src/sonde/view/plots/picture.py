"""Define the figure that every plot function returns. This file imports matplotlib; it is imported when a picture is drawn."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure


class Picture(Figure):
    """A matplotlib figure that is in no global list: it is freed when it is dropped, and a notebook shows it.

    Attributes:
        settings: rcParams that hold whenever the figure is drawn, since matplotlib makes ticks only then.
    """

    settings: Mapping[Any, Any] = {}

    def draw(self, renderer: RendererBase) -> None:
        """Draw the figure with its own settings."""
        with mpl.rc_context(dict(self.settings)):
            super().draw(renderer)

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png")
        return out.getvalue()
