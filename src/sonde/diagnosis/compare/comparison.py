"""The result of a comparison: every place, the first one where the sides part, and the cause."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, overload

from sonde.answer import Grid, Report, ShownAsReport, frame
from sonde.diagnosis.compare.aligned import Place
from sonde.diagnosis.compare.facts import Facts
from sonde.diagnosis.compare.ladder import ladder
from sonde.diagnosis.compare.page import report_of
from sonde.errors import UnknownSiteError
from sonde.escape import readable_json
from sonde.rules import Finding
from sonde.site import Site
from sonde.suggest import nearest

if TYPE_CHECKING:
    import pandas

__all__ = ["Comparison"]


@dataclass(repr=False)
class Comparison(Facts, ShownAsReport):
    """Two sides, compared place by place; printed as a ladder of layers that stops at the culprit.

    Attributes:
        a, b: the sides in words: the model's class, or the folder.
        places: every place that both sides have, in the order in which ``a`` executed them: forward, backward, update.
        culprit: the first place where the sides part beyond rounding; None where they do not.
        owner: the module in ``a`` whose own code made the tensor of the culprit: that of its site, or where the input of a layer
            parts, the module around the layer; ``""`` without a culprit.
        causes: what explains the culprit, the most certain cause first; empty where no cause is known.
        hints: settings, modes and types that differ and have no effect beyond rounding, or come after the culprit.
        match: the patterns of names that were used.
        only_a, only_b: modules that ran in one side alone.
        notes: how the sides were run, in words.
        errors: the sides that raised, which were compared up to there, in words.
    """

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The causes, then the hints; without a cause, that the sides part."""
        if self.causes or self.culprit is None:
            return (*self.causes, *self.hints)
        place = self.culprit
        message = f"the sides part at {place.site}: relative distance {place.relative:.3g}, and rounding explains {place.floor:.1g}"
        parted = Finding("part", message, str(place.site), value=place.relative, severity="bad", call=place.call)
        return (parted, *self.hints)

    @overload
    def __getitem__(self, site: int) -> Place: ...
    @overload
    def __getitem__(self, site: str | Site) -> list[Place]: ...
    def __getitem__(self, site: str | Site | int) -> list[Place] | Place:
        """The places of a module, a parameter, or a site, by its name in ``a``; or one place, by position.

        Raises:
            UnknownSiteError: there is no such place; the message names the nearest.
        """
        if isinstance(site, int):
            return self.places[site]
        asked, whole = Site.asked(site, (place.site.path for place in self.places))
        found = [place for place in self.places if asked.covers(place.site, whole_module=whole)]
        if not found:
            names = dict.fromkeys(place.site.name if whole else str(place.site) for place in self.places)
            raise UnknownSiteError(f"{str(site)!r} was not compared. {nearest(str(site), names)}")
        return found

    def __iter__(self) -> Iterator[Place]:
        return iter(self.places)

    def to_frame(self) -> pandas.DataFrame:
        """A pandas table with a row for each place.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return frame([_row(place) for place in self.places])

    def to_json(self) -> str:
        """Return the comparison as JSON: ``same``, the ``culprit`` as a row of :meth:`to_frame`, ``findings``, ``notes``."""
        culprit = None if self.culprit is None else _row(self.culprit)
        held = {"a": self.a, "b": self.b, "same": self.same, "places": len(self.places), "culprit": culprit, "owner": self.owner}
        told = {name: getattr(self, name) for name in ("only_a", "only_b", "notes", "errors")}
        return readable_json({**held, "findings": [asdict(each) for each in self.findings], **told})

    def _grid(self) -> Grid:
        return ladder(self)

    def _report(self) -> Report:
        return report_of(self)


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
