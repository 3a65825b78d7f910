"""List and save the pictures of a run: those that its lenses name, and those that its numbers allow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sonde.errors import ArgumentError
from sonde.library_calls import LibraryCalls
from sonde.paths import absolute_path
from sonde.run import Run
from sonde.view.aggregation import BANDS, POINTS
from sonde.view.plots.activation import activation
from sonde.view.plots.canvas import Theme
from sonde.view.plots.exponents import exponents
from sonde.view.plots.gradient_flow import gradient_flow
from sonde.view.plots.heatmap import heatmap
from sonde.view.plots.layer_series import Known
from sonde.view.plots.lines import lines
from sonde.view.plots.number_names import main_number
from sonde.view.plots.scalars import scalars
from sonde.view.plots.shares import shares
from sonde.view.plots.update_ratio import update_ratio

if TYPE_CHECKING:
    from sonde.view.plots.picture import Picture


Drawing: TypeAlias = "Callable[..., Picture]"
"""A function that draws one picture; takes ``theme=``."""

_FORMS = ("png", "svg", "pdf")


_drawing = LibraryCalls()


def plan(run: Run) -> dict[str, Drawing]:
    """Return the pictures that *run* has, by name; each is drawn when it is called.

    >>> from sonde.view import plots
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> list(plots.plan(writer.run()))
    ['moments-output']

    ``run.info["lenses"]`` names the picture that each lens asks for; a family without an entry is shown by its numbers.
    """
    listed = run.info.get("lenses", ())
    lenses = [lens for lens in listed if isinstance(lens, Mapping)] if isinstance(listed, list | tuple) else []
    wishes = {str(lens["family"]): lens for lens in lenses if "family" in lens}
    found: dict[str, Drawing] = {}
    if "scalars" in run.families:
        found["scalars"] = _scalars(run, wishes.get("scalars", {}))
    known = Known.of(run)
    for family in known.main:
        for port in known.ports[family]:
            for name, drawing in _of_family(run, family, port, known, wishes.get(family, {})):
                found.setdefault(name, drawing)
    if (known.has("rms", "update") and known.has("rms", "param")) or known.has("ratio", "update"):
        found["update_ratio"] = partial(update_ratio, run)
    return found


def known_names(given: Any, known: Iterable[str], count: int = 0) -> tuple[Any, ...]:
    """Return the names in *given*, from a run's description, that are *known*; None for each other, and up to *count*."""
    listed = list(given) if isinstance(given, list | tuple) else []
    found = [name if isinstance(name, str) and name in known else None for name in listed]
    return tuple(found[: count or None] + [None] * (count - len(found)))


def _scalars(run: Run, wish: Mapping[str, Any]) -> Drawing:
    """Return the drawing of scalars that a lens of losses requests."""
    styles: dict[str, Any] = {"separate": wish.get("separate", True) is not False}
    for name, key in (("loss", "loss"), ("metrics", "of_metrics")):
        drawn = wish.get(key)
        if isinstance(drawn, Mapping):
            points = tuple(each for each in known_names(drawn.get("line"), POINTS) if each)
            bands = tuple(each for each in known_names(drawn.get("range"), BANDS) if each)
            styles[name] = points or ("mean",), bands
    return partial(scalars, run, **styles)


def save(
    run: Run, folder: str | PathLike[str], *, form: str = "png", theme: Theme = "light", seconds: float = math.inf
) -> list[Path]:
    """Draw every picture of :func:`plan` into *folder*, which is made if it does not exist, and return the files.

    >>> import tempfile
    >>> from sonde.view import plots
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> writer.scalar("loss", 1.5, step=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in plots.save(writer.run(), folder)]
    ['scalars.png', 'moments-output.png']

    The end of the program waits for the picture that a thread is drawing.

    Args:
        run: the run.
        folder: where to.
        form: ``"png"``, ``"svg"`` or ``"pdf"``.
        theme: ``"light"`` or ``"dark"``.
        seconds: after so many no further picture is begun.

    Raises:
        ArgumentError: *form* is none of png, svg, pdf.
        MissingExtraError: matplotlib is not installed.
    """
    if form not in _FORMS:
        raise ArgumentError(f"form={form!r}: pictures are written as {', '.join(_FORMS)}")
    into = absolute_path(folder)
    into.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    until = time.monotonic() + seconds
    for name, draw in plan(run).items():
        if time.monotonic() >= until:
            break
        with _drawing:
            draw(theme=theme).savefig(into / f"{name}.{form}")
        files.append(into / f"{name}.{form}")
    return files


def _of_family(run: Run, family: str, port: str, known: Known, wish: Mapping[str, Any]) -> Iterator[tuple[str, Drawing]]:
    """Yield the pictures of one port of a family, with their names."""
    numbers = known.numbers[family]
    if "powers" in numbers:
        yield f"exponents-{port}", partial(exponents, run, port, family=family)
    if {"call_activation", "call_death"} <= set(numbers) and port in ("output", "grad"):
        active, dead = known_names(wish.get("columns", ()), POINTS, 2)
        worst = wish.get("worst", True) is not False
        yield f"activation-{port}", partial(activation, run, port, family=family, worst=worst, active=active, dead=dead)
        return
    number = main_number(numbers, wish, known.described[family])
    if number is None or number == "ratio":
        return
    named = f"{family}-{port}"
    if wish.get("picture") == "lines" and number != "cosine":
        points = tuple(name for name in known_names(wish.get("lines"), POINTS) if name) or ("mean",)
        ranges = tuple(name for name in known_names(wish.get("ranges", ("std", "min-max")), BANDS) if name)
        drawing = partial(lines, run, number, port, family=family, aggregates=points, ranges=ranges, log=wish.get("log") or None)
        yield named, drawing
        if wish.get("compare"):
            (compared,) = known_names([wish.get("compared")], POINTS, 1)
            chosen = compared or (points[0] if points != ("mean",) else None)
            yield f"{named}-shares", partial(shares, run, number, port, family=family, aggregate=chosen)
    else:
        yield named, partial(heatmap, run, number, port, family=family)
    if port in ("grad", "grad_output") and number in ("rms", "norm"):
        yield f"gradient_flow-{port}", partial(gradient_flow, run, port, number, family=family)
