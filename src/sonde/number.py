"""A number of a statistic, described: label, unit, kind of scale, and how it follows the size of its tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

Kind = Literal["size", "share", "signed", "cosine", "power", "count"]
"""The scale of a number: ``size``, not negative and over many decades (logarithmic); ``share``, from 0 to 1 (linear);
``signed``, about zero; ``cosine``, from -1 to 1; ``power``, of two; ``count``, how many."""


@dataclass(frozen=True, slots=True)
class Number:
    """One number that a statistic gives.

    >>> from sonde.stats import Number
    >>> number = Number("death", "dead", "Dead units", "share", "units")
    >>> Number.read(number.plain()) == number
    True

    Attributes:
        name: of the number, and of its column in a run.
        label: in a few words, for an axis; by default the name.
        title: for a headline, as "Root mean square"; by default the label.
        kind: of its scale.
        unit: None is the unit of the tensor; ``""`` is unknown; a number without a unit says ``"no unit"``.
        scaling: the power of the factor: where a tensor is multiplied by c, the number is multiplied by ``c ** scaling``. 1 for a
            length, 2 for a sum of squares, 0 for a count or a share. None: unknown. Numbers of gradients under a ``GradScaler`` are
            divided by this power of its scale; an unknown one becomes NaN, with one warning.
        growth: the power of the size: for a tensor of n times as many, alike elements the number is ``n ** growth`` times as large.
            1 for a count, 0.5 for a length, 0 for a mean. None: the number of a sample says nothing of the whole.
        minor: it stands beside other numbers and is not drawn on its own, as the outer percentiles; every count is minor.
        worst: which of several values stands for all where only one is shown, as of the calls of a layer in one step: the
            greatest (``"max"``) or the least (``"min"``) one; ``""`` is their mean.
    """

    name: str
    label: str = ""
    title: str = ""
    kind: Kind = "size"
    unit: str | None = ""
    scaling: float | None = None
    growth: float | None = None
    minor: bool = False
    worst: Literal["max", "min", ""] = ""

    @property
    def short(self) -> str:
        """The label, or the name in words."""
        return self.label or self.name.replace("_", " ")

    @property
    def whole(self) -> str:
        """The title, or the label with a capital letter."""
        return self.title or self.short[:1].upper() + self.short[1:]

    @property
    def is_minor(self) -> bool:
        """Whether the number is a count, or stands beside others."""
        return self.minor or self.kind == "count"

    def plain(self) -> dict[str, Any]:
        """Return what a reader of a run needs, as plain data for run.json."""
        return {
            "name": self.name,
            "label": self.short,
            "title": self.whole,
            "kind": self.kind,
            "unit": self.unit,
            "minor": self.is_minor,
            "worst": self.worst,
        }

    @classmethod
    def read(cls, plain: object) -> Number | None:
        """Return the number that :meth:`plain` described; None if *plain* is no such description."""
        if not isinstance(plain, Mapping):
            return None
        name, label, title, kind, unit = (plain.get(key) for key in ("name", "label", "title", "kind", "unit"))
        texts = all(isinstance(text, str) for text in (name, label, title)) and isinstance(unit, str | None)
        if not texts or kind not in get_args(Kind):
            return None
        worst = plain.get("worst")
        worst = worst if worst in ("max", "min") else ""
        return cls(str(name), str(label), str(title), kind, unit, minor=plain.get("minor") is True, worst=worst)  # type: ignore[arg-type]


def count(name: str, label: str = "", title: str = "", unit: str = "elements", growth: float | None = 1.0) -> Number:
    """Return a number that counts, mostly elements."""
    return Number(name, label, title, "count", unit, scaling=0.0, growth=growth)


def share(
    name: str,
    label: str = "",
    title: str = "",
    unit: str = "share of elements",
    *,
    scaling: float | None = 0.0,
    growth: float | None = None,
) -> Number:
    """Return a number that is a share, from 0 to 1."""
    return Number(name, label, title, "share", unit, scaling, growth)


def _length(name: str, label: str, title: str, growth: float) -> Number:
    return Number(name, label, title, "size", None, 1.0, growth)


_WORST: Mapping[str, Literal["max", "min"]] = {
    **dict.fromkeys(("death", "call_death", "vanished", "absmax", "max", "zeros", "nan", "inf", "nonfinite"), "max"),
    **dict.fromkeys(("activation", "call_activation", "min"), "min"),
}
_STANDARD = (
    _length("rms", "rms", "Root mean square", 0.0),
    _length("norm", "norm", "Euclidean norm", 0.5),
    Number("cosine", "cosine", "Cosine between steps", "cosine", "no unit", 0.0),
    Number("ratio", "update / weight", "Update / weight", "size", "no unit", 0.0, 0.0),
    _length("std", "std", "Standard deviation", 0.0),
    _length("absmax", "max |x|", "Largest magnitude", 0.0),
    Number("mean", "mean", "Mean", "signed", None, 1.0, 0.0),
    Number("min", "min", "Least element", "signed", None, 1.0, 0.0),
    Number("max", "max", "Greatest element", "signed", None, 1.0, 0.0),
    share("activation", "active", "Active elements"),
    share("call_activation", "active", "Active elements"),
    share("death", "dead", "Dead units", "share of units"),
    share("call_death", "dead", "Dead units", "share of units"),
    share("unchanged", "unchanged", "Elements left unchanged", growth=0.0),
    share("vanished", "vanished", "Updates that were rounded away", growth=0.0),
    count("zeros", "zeros", "Zeros"),
    count("nan", "NaN", "NaN"),
    count("inf", "infinite", "Infinities"),
    count("nonfinite", "NaN or infinite", "NaN and infinities"),
    count("count", "elements", "Elements"),
    count("finite", "finite", "Finite elements"),
    count("elements", "elements", "Elements"),
    count("negative", "negative", "Negative elements"),
)

STANDARD: Mapping[str, Number] = MappingProxyType(
    {number.name: replace(number, worst=_WORST.get(number.name, "")) for number in _STANDARD}
)
"""The numbers that several statistics give under one name, the most telling first."""


def number_of(name: str) -> Number:
    """Return the standard description of the number *name*; a bare one if there is none."""
    return STANDARD.get(name) or Number(name)


def described(info: Mapping[str, Any], family: str) -> dict[str, Number]:
    """Return the numbers of *family* as its lens describes them in run.json, whose content *info* is; none if it does not."""
    lenses = info.get("lenses")
    of_family = family.removesuffix("_eval").removesuffix("_micro")
    for lens in lenses if isinstance(lenses, list | tuple) else ():
        plain = lens.get("numbers") if isinstance(lens, Mapping) and lens.get("family") == of_family else None
        if isinstance(plain, list):
            return {number.name: number for number in map(Number.read, plain) if number is not None}
    return {}
