"""Choose layers by name, and write their names beside a picture: without the shared beginning, shortened in the middle."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from sonde.errors import SelectionError
from sonde.escape import printable_line
from sonde.suggest import nearest, told_of_glob
from sonde.warn import warn_user

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Include: TypeAlias = "str | re.Pattern[str] | Collection[str] | None"
"""A choice of layers: a regular expression that is searched in their names, or exact names."""

_LONGEST = 30
_LABEL = 0.15  # inches that a label needs


def chosen(names: Sequence[str], include: Include, exclude: Include = None) -> list[int]:
    """Return the positions of the names that *include* selects and *exclude* does not.

    Raises:
        SelectionError: no name is left, and the message names the nearest; or a text is no regular expression.
    """
    for word, where in (("include", include), ("exclude", exclude)):
        try:
            re.compile(where) if isinstance(where, str) else None
        except re.error as error:
            raise SelectionError(f"{where!r} is no regular expression: {error}") from None
        if said := told_of_glob(word, where, names, "layer"):
            warn_user(said)
    kept = [
        place
        for place, name in enumerate(names)
        if (include is None or _matches(name, include)) and not (exclude is not None and _matches(name, exclude))
    ]
    if not kept:
        asked = f"include={include!r}" + (f", exclude={exclude!r}" if exclude is not None else "")
        wanted = include if isinstance(include, str) else next(iter(include), "") if isinstance(include, Collection) else ""
        raise SelectionError(f"{asked} selects none of {len(names)} layers. {nearest(wanted, names)}")
    return kept


def _matches(name: str, where: str | re.Pattern[str] | Collection[str]) -> bool:
    spellings = {name, unquote(name)}  # a slash in a module's name is %2F in its site
    if isinstance(where, str | re.Pattern):
        return any(re.search(where, each) is not None for each in spellings)
    return any(each in where for each in spellings)


def labels(names: Sequence[str], longest: int = _LONGEST) -> tuple[list[str], str]:
    """Return short texts for *names*, different where the names are, and the prefix that was taken off all of them."""
    prefix = _shared(names)
    rest = [plain(name[len(prefix) :]) for name in names]
    while True:
        short = [_shortened(name, longest) for name in rest]
        if len(set(short)) == len(set(rest)):
            return short, prefix
        longest += 6


def prefix_fact(names: Sequence[str]) -> str:
    """Return which prefix :func:`labels` takes off, in words for a subtitle; empty for none."""
    prefix = _shared(names)
    return f"names within {plain(prefix.rstrip('.'))}" if prefix else ""


def plain(text: str) -> str:
    """Return *text* so that a picture shows it as it is: no control character, and no formula between dollar signs."""
    return printable_line(text).replace("$", r"\$")


def _shared(names: Sequence[str]) -> str:
    """Return the dotted beginning that all names have and that is not the whole of any."""
    if len(names) < 2:
        return ""
    paths = [name.split(".") for name in names]
    shared: list[str] = []
    for parts in zip(*(path[:-1] for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared) + "." if shared else ""


def _shortened(name: str, longest: int) -> str:
    if len(name) <= longest:
        return name
    head = longest // 3
    return f"{name[:head]}…{name[-(longest - head - 1) :]}"


def label_layers(axes: Axes, names: Sequence[str], height: float) -> None:
    """Name the rows of *axes*, which is *height* inches high; of too many rows, only some."""
    short, _ = labels(names)
    shown = range(0, len(names), -(-len(names) // max(int(height / _LABEL), 1)))
    axes.set_yticks([place + 0.5 for place in shown], [short[place] for place in shown], fontsize=7.5)
    axes.tick_params(axis="y", length=0 if len(shown) == len(names) else 3)


def name_at(axes: Axes, text: str, place: float, point: tuple[float, float], colour: Any) -> None:
    """Write *text* to the right of *axes*, at *place* of its height, with a stroke to the *point* where its line ends."""
    ended = point[0] < axes.get_xlim()[1]  # the stroke crosses the axes, and must not look like a line of data
    style = {"linewidth": 0.6, "linestyle": (0, (1, 3))} if ended else {"linewidth": 0.9}
    axes.annotate(
        text,
        point,
        (1.03, place),
        textcoords="axes fraction",
        fontsize=7.5,
        va="center",
        arrowprops={"arrowstyle": "-", "color": colour, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5), **style},
    )


def spread_apart(places: Sequence[float], gap: float) -> list[float]:
    """Return *places* (between 0 and 1, ascending) moved as little as needed for each to be *gap* from the next.

    Where they do not all fit between 0 and 1, they are as far apart as they can be.
    """
    gap = min(gap, 1 / max(len(places) - 1, 1))
    groups: list[tuple[float, int]] = []  # labels that touch: the sum of the best places of the first, and their number
    for index, place in enumerate(places):
        groups.append((place - index * gap, 1))
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] > groups[-1][0] / groups[-1][1]:
            total, count = groups.pop()
            groups[-1] = groups[-1][0] + total, groups[-1][1] + count
    firsts = [total / count for total, count in groups for _ in range(count)]
    room = max(1 - gap * (len(places) - 1), 0.0)
    return [min(max(first, 0.0), room) + index * gap for index, first in enumerate(firsts)]


def spaced(count: int, room: int) -> list[int]:
    """Return at most *room* (2 or more) of *count* positions, evenly spaced, with the first and the last."""
    if count <= room:
        return list(range(count))
    return sorted({round(place * (count - 1) / (room - 1)) for place in range(room)})
