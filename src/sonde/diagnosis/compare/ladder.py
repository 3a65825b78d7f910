"""Gather the places of a comparison into a ladder of layers: a rung for each that agrees, opened along the way to the culprit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from sonde.diagnosis.compare.aligned import Place

_MOST_AGREEING = 3  # neighbouring numbered layers that have a rung each


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


def rungs(places: Sequence[Place], culprit: Place | None) -> list[Rung]:
    """Return the lines of the ladder of *places*, down to the culprit."""
    shown = list(places)
    if culprit is not None:
        shown = shown[: shown.index(culprit) + 1]
    opened = _opened(shown, culprit)
    types = {place.site.path: place.type for place in places if place.site.port == "output"}
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
    return _gathered(found)


def _opened(shown: list[Place], culprit: Place | None) -> set[str]:
    """Return the layers that are shown by their children: those around the culprit, or the model alone."""
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


def _gathered(found: list[Rung]) -> list[Rung]:
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
