"""Print a comparison as a ladder of layers: one rung for each layer that agrees, opened along the way to the culprit."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from sonde.answer import Cell, Grid, Tone
from sonde.diagnosis.compare.aligned import Place
from sonde.diagnosis.compare.facts import Facts

__all__ = ["Rung", "ladder", "rungs"]

_MOST_AGREEING = 3  # neighbouring numbered layers that have a rung each
_HINTS = 6
_LEAST = 1e-16  # relative distance at which a bar begins
_ROOT = "(root)"


@dataclass
class Rung:
    """One line: the places of one layer, or of neighbouring layers, in one stage.

    Attributes:
        stage: ``forward``, ``backward`` or ``update``.
        name: the layer, or the first of several.
        last: the last of several layers; ``""`` for one.
        type: the layer's class.
        places: its places.
        culprit: the sides part here.
    """

    stage: str
    name: str
    last: str = ""
    type: str = ""
    places: list[Place] = field(default_factory=list)
    culprit: bool = False

    @property
    def largest(self) -> Place:
        """The place where the sides are furthest apart."""
        return max(self.places, key=lambda place: place.relative)


def rungs(comparison: Facts) -> list[Rung]:
    """Return the lines of the ladder, down to the culprit."""
    culprit = comparison.culprit
    shown = list(comparison.places)
    if culprit is not None:
        shown = shown[: shown.index(culprit) + 1]
    opened = _opened(comparison, shown)
    types = {place.site.path: place.type for place in comparison.places if place.site.port == "output"}
    found: list[Rung] = []
    for place in shown:
        if place is culprit:
            found.append(Rung(place.stage, str(place.site), type=place.type, places=[place], culprit=True))
            continue
        if place.site.port == "input":
            continue
        name = _folded(place.site.owner.path, opened)
        at = next((rung for rung in found[::-1] if rung.stage == place.stage and rung.name == name), None)
        if at is None:
            at = Rung(place.stage, name, type=types.get(name, "") or ("" if name else place.type))
            found.append(at)
        at.places.append(place)
    return _joined(found)


def _opened(comparison: Facts, shown: list[Place]) -> set[str]:
    """Return the layers that are shown by their children: those around the culprit, or the model alone."""
    culprit = comparison.culprit
    layers = {place.site.owner.path for place in shown}
    if culprit is not None:
        parts = culprit.site.owner.path.split(".")
        return {".".join(parts[:count]) for count in range(len(parts) + 1)}
    opened = {""}
    while True:
        names = {_folded(layer, opened) for layer in layers if layer}
        if len(names) != 1 or not any(layer.startswith(f"{next(iter(names))}.") for layer in layers):
            return opened
        opened |= names


def _folded(layer: str, opened: set[str]) -> str:
    """Return the outermost part of *layer* that is not opened; *layer* itself if all of it is."""
    parts = layer.split(".") if layer else []
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        if name not in opened:
            return name
    return layer


def _joined(found: list[Rung]) -> list[Rung]:
    """Return the rungs with neighbouring numbered layers of one parent joined, where there are many."""
    result: list[Rung] = []
    start = 0
    while start < len(found):
        end = start + 1
        while end < len(found) and _are_numbered(found[start], found[end]) and not found[end].culprit and not found[start].culprit:
            end += 1
        group = found[start:end]
        if len(group) > _MOST_AGREEING:
            places = [place for rung in group for place in rung.places]
            result.append(Rung(group[0].stage, group[0].name, group[-1].name, group[0].type, places))
        else:
            result += group
        start = end
    return result


def _are_numbered(one: Rung, other: Rung) -> bool:
    numbered = re.compile(r"((?:.*\.)?)\d+")
    here, there = numbered.fullmatch(one.name), numbered.fullmatch(other.name)
    return bool(here and there and here[1] == there[1] and one.stage == other.stage and one.type == other.type)


def ladder(comparison: Facts, *, with_causes: bool = True) -> Grid:
    """Return the ladder as a table; without causes, its footer has neither those behind the first one nor what to do."""
    found = rungs(comparison)
    stages = list(dict.fromkeys(rung.stage for rung in found))
    rows = []
    for rung in found:
        rows.append(_cells(rung, comparison))
    columns = ["stage", "layer", "type", "places", "difference", "rounding", ""]
    if stages == ["forward"] or len(stages) < 2:
        columns, rows = columns[1:], [row[1:] for row in rows]
    return Grid(
        _title(comparison),
        columns,
        rows,
        _footer(comparison, with_causes=with_causes),
        empty="no place was compared",
        optional=("places", "type"),
    )


def _cells(rung: Rung, comparison: Facts) -> list[Cell]:
    worst = rung.largest
    tone: Tone = "bad" if rung.culprit else "good"
    name = f"{rung.name or _ROOT} … {rung.last}" if rung.last else rung.name or _ROOT
    words = _words(rung, comparison)
    return [
        Cell(rung.stage, "quiet"),
        Cell(name, "bad" if rung.culprit else "strong"),
        Cell(rung.type, "quiet"),
        Cell(str(len(rung.places)), "quiet", "right"),
        Cell(relative_text(worst.relative), tone if rung.culprit else "plain", bar=_share(worst.relative)),
        Cell(relative_text(max(place.floor for place in rung.places)), "quiet", "right"),
        Cell(words, tone),
    ]


def _words(rung: Rung, comparison: Facts) -> str:
    if not rung.culprit:
        return "equal" if rung.largest.relative == 0 else "agrees"
    place = rung.places[0]
    said = [f"call {place.call}"] if place.call > 0 else []
    said += [place.remark] if place.remark else []
    if comparison.cause is not None:
        said.append(comparison.cause.message)
    own = comparison.owner == place.site.owner.path
    where = "" if own else f", in the code of {comparison.owner or _ROOT}"
    return f"parts here{where}" + (f": {'; '.join(said)}" if said else "")


def relative_text(relative: float) -> str:
    """Return a relative distance as text: ``0``, ``3.1e-07``, ``0.83``."""
    if relative == 0:
        return "0"
    return f"{relative:.2g}" if 1e-2 <= relative < 1e3 else "inf" if math.isinf(relative) else f"{relative:.1e}"


def _share(relative: float) -> float:
    """Return the length of the bar: 0 at 1e-16, 1 at 1."""
    if relative <= _LEAST:
        return 0.0
    return min(1.0, 1 + math.log10(min(relative, 1.0)) / -math.log10(_LEAST))


def _title(comparison: Facts) -> str:
    culprit = comparison.culprit
    sides = f"a: {comparison.a}, b: {comparison.b}"
    if culprit is None:
        if not comparison.places:
            return f"Comparison of {sides}: no place was compared"
        raised = ", then a side raised" if comparison.errors else ""
        return f"Comparison of {sides}: no difference beyond rounding in {len(comparison.places)} places{raised}"
    return f"Comparison of {sides}: they part in the {culprit.stage} at {culprit.site}"


def _footer(comparison: Facts, *, with_causes: bool) -> list[str]:
    lines = []
    culprit = comparison.culprit
    if culprit is not None:
        if with_causes:
            lines += [f"also: {found.message}" for found in comparison.causes[1:]]
        if with_causes and comparison.cause is not None and comparison.cause.advice:
            lines.append(f"to do: {comparison.cause.advice}")
        if with_causes and comparison.cause is None:
            lines.append("no cause was recognised: look at the code of the layer, between the last place that agrees and this one")
        after = comparison.places[comparison.places.index(culprit) + 1 :]
        parted = [place for place in after if place.parts]
        if parted:
            lines.append(f"{len(parted)} of {len(after)} places behind it differ as well")
    lines += [f"hint: {found.message}" for found in comparison.hints[:_HINTS]]
    if len(comparison.hints) > _HINTS:
        lines.append(f"and {len(comparison.hints) - _HINTS} more hints")
    for side, names in (("a", comparison.only_a), ("b", comparison.only_b)):
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            lines.append(f"in {side} alone: {', '.join(name or _ROOT for name in names[:4])}{more}")
    lines += [*comparison.errors, *comparison.notes]
    lines.append(
        "difference: norm of the difference / norm of the tensor; rounding: the largest difference that rounding explains, measured"
    )
    return lines
