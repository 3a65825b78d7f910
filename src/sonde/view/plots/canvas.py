"""The empty figure that every picture is drawn on, with its headline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sonde.errors import MissingExtraError
from sonde.run.run import Run
from sonde.view.plots.theme import Look, Theme, look_of, settings_of

if TYPE_CHECKING:
    from matplotlib.artist import Artist

    from sonde.view.plots.figures import Picture

__all__ = ["canvas", "key", "named", "need_matplotlib"]

_HEADER = 0.62  # inches above the axes, for two lines
_DPI = 150


@contextmanager
def canvas(
    width: float, height: float, theme: Theme, title: str, subtitle: str, *, header: float = _HEADER
) -> Iterator[tuple[Picture, Look]]:
    """An empty figure with a headline, in inches; draw within the block.

    Raises:
        ArgumentError: there is no such theme.
        MissingExtraError: matplotlib is not installed.
    """
    look = look_of(theme)
    need_matplotlib()
    import matplotlib as mpl
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from sonde.view.plots.figures import Picture

    settings = settings_of(look)
    with mpl.rc_context(settings):
        layout = ConstrainedLayoutEngine(rect=(0.0, 0.0, 1.0, 1.0 - header / height), w_pad=0.08, h_pad=0.06)
        figure = Picture(figsize=(width, height), dpi=_DPI, layout=layout)
        figure.settings = settings
        left = 0.12 / width
        figure.text(left, 1 - 0.11 / height, title, fontsize=12.5, fontweight="bold", va="top", color=look.ink)
        figure.text(left, 1 - 0.37 / height, subtitle, fontsize=8.5, va="top", color=look.quiet)
        yield figure, look


def key(figure: Picture, handles: Sequence[Artist]) -> None:
    """Say what *handles* stand for, in the headline's second line, at its right end."""
    if handles:
        height = figure.get_figheight()
        legend = figure.legend(
            handles=list(handles),
            loc="upper right",
            bbox_to_anchor=(1.0, 1 - 0.33 / height),
            ncols=len(handles),
            borderaxespad=0.1,
            handlelength=1.4,
            columnspacing=1.4,
        )
        legend.set_in_layout(False)


def need_matplotlib() -> None:
    """Import matplotlib.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtraError.of("a picture of a run", "matplotlib", "plots") from None
    assert mpl is not None


def named(run: Run, *facts: str) -> str:
    """A subtitle: the run's name and what else is to be known."""
    name = run.path.name if run.path is not None else "in memory"
    return "  ·  ".join([f"run {name}", *(fact for fact in facts if fact)])
