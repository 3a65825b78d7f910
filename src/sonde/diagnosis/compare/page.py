"""The report of a comparison: the cause, the ladder, a picture of the distance through the model, and every place."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sonde.answer import Cell, Chart, Fact, Grid, Line, Mark, Part, Report, Tone
from sonde.diagnosis.compare.aligned import Place
from sonde.diagnosis.compare.facts import Facts
from sonde.diagnosis.compare.ladder import ladder, relative_text
from sonde.rules import Finding

__all__ = ["report_of"]

_MOST_PLACES = 2000
_HOW_FAR = (
    "Euclidean norm of the difference, divided by that of the larger tensor. Above the dashed line is more than rounding explains."
)


def report_of(comparison: Facts) -> Report:
    """Return the report."""
    culprit = comparison.culprit
    parts = [Part("", facts)] if (facts := _facts(comparison)) else []
    parts.append(Part("Down to where the sides part" if culprit else "Layer by layer", ladder(comparison, with_causes=False)))
    if any(place.relative for place in comparison.places):
        parts.append(Part("How far the sides are apart, through the model", _chart(comparison), _HOW_FAR))
    if comparison.places:
        parts.append(Part(f"All {len(comparison.places):,} places", _all_places(comparison.places), folded=True))
    tone: Tone = "bad" if culprit is not None else "warn" if comparison.errors else "good"
    return Report("sonde.compare", f"a: {comparison.a} · b: {comparison.b}", tone, _headline(comparison), parts)


def _headline(comparison: Facts) -> str:
    culprit = comparison.culprit
    if culprit is not None:
        return f"the sides part in the {culprit.stage} at {culprit.site}"
    if not comparison.places:
        return "no place was compared"
    raised = ", then a side raised" if comparison.errors else ""
    return f"no difference beyond rounding in {len(comparison.places):,} places{raised}"


def _facts(comparison: Facts) -> list[Fact]:
    place = comparison.culprit
    if place is None:
        return []
    facts = []
    for number, cause in enumerate(comparison.causes):
        facts.append(Fact("also" if number else "cause", cause.message, "plain" if number else "bad"))
        numbers = _evidence(cause)
        facts += [Fact("", numbers, "quiet")] if numbers else []
        facts += [Fact("do", cause.advice, "good")] if cause.advice and not number else []
    if not comparison.causes:
        facts.append(Fact("cause", "none was recognised", "warn"))
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


def _evidence(cause: Finding) -> str:
    return " · ".join(f"{name} {value:.6g}" for name, value in cause.evidence.items())


def _chart(comparison: Facts) -> Chart:
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
