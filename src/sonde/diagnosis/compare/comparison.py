"""The answer of a comparison: every place, the first one where the sides part, and the cause."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from sonde.answer import Answer, Cell, Chart, Fact, Grid, Line, Mark, Part, Report, Tone, worst_first
from sonde.diagnosis.compare.aligned import ANOTHER_LAYOUT, DIFFERS_INSIDE, NOT_COMPARED, Place
from sonde.diagnosis.compare.ladder import Rung, rungs
from sonde.errors import UnknownSiteError
from sonde.rules import Finding
from sonde.site import Site
from sonde.suggest import nearest
from sonde.words import names_text

_HINTS = 6
_LEAST = 1e-16  # relative distance at which a bar begins
_ROOT = "(root)"
_MOST_PLACES = 2000
_HOW_FAR = (
    "Euclidean norm of the difference, divided by that of the larger tensor. Above the dashed line is more than rounding explains."
)


@dataclass(repr=False)
class Comparison(Answer):
    """Two sides, compared place by place; printed as a ladder of layers that stops at the culprit.

    >>> import sonde, torch
    >>> a, b = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> found = sonde.compare(a, b, torch.ones(1, 2))
    >>> found.verdict, found.culprit is not None
    ('bad', True)

    Attributes:
        a, b: the sides in words: the model's class, or the folder.
        places: every place that both sides have, in the order in which ``a`` executed them: forward, backward, update.
        culprit: the first place where the sides part beyond rounding; None where they do not.
        owner: the module in ``a`` whose own code made the tensor of the culprit: that of its site, or where the input of a layer
            parts, the module around the layer; ``""`` without a culprit.
        causes: what explains the culprit: with all of these undone on a copy the sides were equal there, and with none left out;
            empty where nothing that is known to differ makes them equal.
        hints: what differs and does not explain the culprit, with how far the sides are apart without it; settings, modes and types
            that differ and have no effect beyond rounding, or come after the culprit.
        match: the patterns of names that were used.
        only_a, only_b: modules that ran in one side alone.
        notes: how the sides were run, in words.
        errors: the sides that raised, which were compared up to there, in words.
    """

    a: str
    b: str
    places: tuple[Place, ...]
    culprit: Place | None = None
    owner: str = ""
    causes: tuple[Finding, ...] = ()
    hints: tuple[Finding, ...] = ()
    match: Mapping[str, str] = field(default_factory=dict)
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def cause(self) -> Finding | None:
        """The most certain cause; None where none is known."""
        return self.causes[0] if self.causes else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The causes, or without one that the sides part: ``bad``; that a side raised; the hints. The worst first."""
        found = [Finding("raised", text) for text in self.errors]
        place = self.culprit
        if self.cause is not None:  # it explains that the sides part, whatever its own weight
            found = [replace(self.cause, severity="bad"), *self.causes[1:], *found]
        elif place is not None:
            far = f"relative distance {place.relative:.3g}, and rounding explains {place.floor:.1g}"
            message = f"the sides part at {place.site}: {far}; not explained"
            found.append(Finding("part", message, str(place.site), value=place.relative, severity="bad", call=place.call))
        return worst_first([*found, *self.hints])

    @property
    def _has_judged(self) -> bool:
        return bool(self.places)

    @overload
    def __getitem__(self, site: int) -> Place: ...
    @overload
    def __getitem__(self, site: str | Site) -> list[Place]: ...
    def __getitem__(self, site: str | Site | int) -> list[Place] | Place:
        """The places of a module, a parameter, or a site, by its name in ``a``; or one place, by position.

        Raises:
            UnknownSiteError: there is no such place; the message names the nearest.
            SiteError: the text is the site of one module and the name of another.
        """
        if isinstance(site, int):
            return self.places[site]
        asked, whole = Site.asked(site, (place.site for place in self.places))
        found = [place for place in self.places if asked.covers(place.site, whole_module=whole)]
        if not found:
            names = dict.fromkeys(place.site.name if whole else str(place.site) for place in self.places)
            raise UnknownSiteError(f"{str(site)!r} was not compared. {nearest(str(site), names)}")
        return found

    def __iter__(self) -> Iterator[Place]:
        return iter(self.places)

    def _rows(self) -> list[dict[str, Any]]:
        return [_row(place) for place in self.places]

    def _content(self) -> dict[str, Any]:
        culprit = None if self.culprit is None else _row(self.culprit)
        held = {"a": self.a, "b": self.b, "places": len(self.places), "culprit": culprit, "owner": self.owner}
        return {**held, "only_a": self.only_a, "only_b": self.only_b}

    def _grid(self) -> Grid:
        return _ladder(self)

    def _report(self) -> Report:
        return _report_of(self)


def _row(place: Place) -> dict[str, object]:
    return {
        "stage": place.stage,
        "site": str(place.site),
        "other": str(place.other),
        "call": place.call,
        "type": place.type,
        "shape": place.shape,
        "relative": place.relative,
        "cosine": None if math.isnan(place.cosine) else place.cosine,
        "largest": place.largest,
        "floor": place.floor,
        "parts": place.parts,
        "remark": place.remark,
    }


def first_parted(places: Iterable[Place]) -> Place | None:
    """Return the first place where the sides part."""
    return next((place for place in places if place.parts), None)


# As a table


def _ladder(comparison: Comparison, *, with_causes: bool = True) -> Grid:
    """Return the ladder as a table; without causes, its footer has neither those behind the first one nor what to do."""
    found = rungs(comparison.places, comparison.culprit)
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


def _cells(rung: Rung, comparison: Comparison) -> list[Cell]:
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


def _words(rung: Rung, comparison: Comparison) -> str:
    if not rung.culprit:
        if all(place.remark.startswith(NOT_COMPARED) for place in rung.places):
            return NOT_COMPARED
        words = "equal" if rung.largest.relative == 0 else "agrees"
        if inside := next((place.remark for place in rung.places if DIFFERS_INSIDE in place.remark), ""):
            return inside
        layouts = any(ANOTHER_LAYOUT in place.remark for place in rung.places)
        return f"{words} in {ANOTHER_LAYOUT}" if layouts else words
    place = rung.places[0]
    message = "" if comparison.cause is None else comparison.cause.message
    said = [*filter(None, (f"call {place.call}" if place.call > 0 else "", place.remark, message))]
    where = "" if comparison.owner == place.site.owner.path else f", in the code of {comparison.owner or _ROOT}"
    text = f"parts here{where}" + (f": {'; '.join(said)}" if said else "")
    return text if comparison.cause is not None else f"{text}; not explained"


def relative_text(relative: float) -> str:
    """Return a relative distance as text: ``0``, ``3.1e-07``, ``0.83``."""
    return f"{relative:.2g}" if relative == 0 or 1e-2 <= relative < 1e3 else "inf" if math.isinf(relative) else f"{relative:.1e}"


def _share(relative: float) -> float:
    """Return the length of the bar: 0 at 1e-16, 1 at 1."""
    return 0.0 if relative <= _LEAST else min(1.0, 1 + math.log10(min(relative, 1.0)) / -math.log10(_LEAST))


def _title(comparison: Comparison) -> str:
    said = _headline(comparison).replace("the sides part", "they part")
    return f"Comparison of a: {comparison.a}, b: {comparison.b}: {said}"


def _footer(comparison: Comparison, *, with_causes: bool) -> list[str]:
    lines = []
    culprit = comparison.culprit
    if culprit is not None:
        if with_causes:
            lines += [f"also: {found.message}" for found in comparison.causes[1:]]
        if with_causes and comparison.cause is not None and comparison.cause.advice:
            lines.append(f"to do: {comparison.cause.advice}")
        if with_causes and comparison.cause is None:
            lines.append(
                "not explained: nothing that is known to differ makes the sides equal here; look at the code in front of it"
            )
        after = comparison.places[comparison.places.index(culprit) + 1 :]
        parted = [place for place in after if place.parts]
        if parted:
            lines.append(f"{len(parted)} of {len(after)} places behind it differ as well")
    lines += [f"hint: {found.message}" for found in comparison.hints[:_HINTS]]
    if len(comparison.hints) > _HINTS:
        lines.append(f"and {len(comparison.hints) - _HINTS} more hints")
    for side, names in (("a", comparison.only_a), ("b", comparison.only_b)):
        if names:
            lines.append(f"in {side} alone: {names_text((name or _ROOT for name in names), 4)}")
    lines += [*comparison.errors, *comparison.notes]
    lines.append(
        "difference: norm of the difference / norm of the tensor; rounding: the largest difference that rounding explains, measured"
    )
    return lines


# As a page


def _report_of(comparison: Comparison) -> Report:
    """Return the report."""
    culprit = comparison.culprit
    parts = [Part("", facts)] if (facts := _facts(comparison)) else []
    parts.append(Part("Down to where the sides part" if culprit else "Layer by layer", _ladder(comparison, with_causes=False)))
    if any(place.relative for place in comparison.places):
        parts.append(Part("How far the sides are apart, through the model", _chart(comparison), _HOW_FAR))
    if comparison.places:
        parts.append(Part(f"All {len(comparison.places):,} places", _all_places(comparison.places), folded=True))
    return Report("sonde.compare", f"a: {comparison.a} · b: {comparison.b}", comparison.verdict, _headline(comparison), parts)


def _headline(comparison: Comparison) -> str:
    culprit = comparison.culprit
    if culprit is not None:
        return f"the sides part in the {culprit.stage} at {culprit.site}"
    if not comparison.places:
        return "no place was compared"
    raised = ", then a side raised" if comparison.errors else ""
    inner = sum(DIFFERS_INSIDE in place.remark for place in comparison.places)
    inside = f"; {inner:,} places differ inside of modules whose outputs agree" if inner else ""
    return f"no difference beyond rounding in {len(comparison.places) - inner:,} places{raised}{inside}"


def _facts(comparison: Comparison) -> list[Fact]:
    place = comparison.culprit
    if place is None:
        return []
    facts = []
    for number, cause in enumerate(comparison.causes):
        facts.append(Fact("also" if number else "cause", cause.message, "plain" if number else "bad"))
        numbers = " · ".join(f"{name} {value:.6g}" for name, value in cause.evidence.items())
        facts += [Fact("", numbers, "quiet")] if numbers else []
        facts += [Fact("do", cause.advice, "good")] if cause.advice and not number else []
    if not comparison.causes:
        facts.append(Fact("cause", "not explained: nothing that is known to differ makes the sides equal here", "warn"))
        facts.append(Fact("do", "look at the code of the layer, between the last place that agrees and this one", "good"))
    kind = f" ({place.type})" if place.type else ""
    call = f", call {place.call}" if place.call > 0 else ""
    other = "" if place.other == place.site else f"; in b {place.other}"
    facts.append(Fact("place", f"{place.site}{kind}{call}{other}", "strong"))
    if comparison.owner != place.site.owner.path:
        facts.append(Fact("code of", comparison.owner or "(root)", "strong"))
    if math.isfinite(place.relative):
        cosine = "" if math.isnan(place.cosine) else f" · cosine {place.cosine:.6g}"
        facts.append(
            Fact("difference", f"{relative_text(place.relative)} of the norm{cosine} · largest element {place.largest:.3g}")
        )
        facts.append(Fact("rounding", f"explains {relative_text(place.floor)}, measured at this place"))
    facts += [Fact("shape", place.shape)] if place.shape else []
    facts += [Fact("note", place.remark)] if place.remark else []
    return facts


def _chart(comparison: Comparison) -> Chart:
    places = comparison.places
    numbers = range(len(places))
    bands, start = [], 0
    for stage in dict.fromkeys(place.stage for place in places):
        count = sum(place.stage == stage for place in places)
        bands.append((float(start), float(start + count - 1), stage))
        start += count
    marks = [] if comparison.culprit is None else [Mark(places.index(comparison.culprit), str(comparison.culprit.site))]
    lines = [Line("rounding", [place.floor for place in places], "limit"), Line("difference", [place.relative for place in places])]
    names = [f"{place.site}{f' (call {place.call})' if place.call > 0 else ''}" for place in places]
    return Chart(
        numbers, lines, "places in the order of execution", "relative difference", log=True, marks=marks, bands=bands, names=names
    )


def _all_places(places: Sequence[Place]) -> Grid:
    columns = ["stage", "place in a", "call", "type", "shape", "difference", "rounding", "cosine", "largest", ""]
    rows = []
    for place in places[:_MOST_PLACES]:
        other = "" if place.other == place.site else f"in b {place.other}"
        words = "; ".join(filter(None, ["parts" if place.parts else "", place.remark, other]))
        tone: Tone = "bad" if place.parts else "plain"
        rows.append(
            [
                Cell(place.stage, "quiet"),
                Cell(str(place.site), "strong"),
                Cell(str(place.call) if place.call > 0 else "", "quiet", "right"),
                Cell(place.type, "quiet"),
                Cell(place.shape),
                Cell(relative_text(place.relative), tone, "right"),
                Cell(relative_text(place.floor), "quiet", "right"),
                Cell("" if math.isnan(place.cosine) else f"{place.cosine:.6g}", align="right"),
                Cell(f"{place.largest:.3g}", align="right"),
                Cell(words, tone),
            ]
        )
    more = len(places) - len(rows)
    return Grid("", columns, rows, [f"and {more:,} more; to_frame() has all"] if more > 0 else [])
