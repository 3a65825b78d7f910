"""What the numbers of a run are called, in which unit they are, how they are best coloured, and which lens records them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sonde.site import PARAMETER_PORTS, PORTS, PortInfo

__all__ = ["Kind", "Words", "of_port", "recorded_by", "title_of", "unit_of", "words_of"]

Kind = Literal["size", "share", "signed", "cosine", "power", "count"]
"""``size``: not negative, over many decades; ``share``: 0 to 1; ``signed``: about zero; ``cosine``: -1 to 1; ``power``: of two."""


_EXPONENT = re.compile(r"p\d\d|(underflow|overflow)_\w+")


@dataclass(frozen=True)
class Words:
    """What a number is called, in short and whole, of what kind it is, and its unit, if it has another than its tensor's."""

    short: str
    whole: str
    kind: Kind
    unit: str | None = None


_NUMBERS = {
    "rms": Words("rms", "Root mean square", "size"),
    "norm": Words("norm", "Euclidean norm", "size"),
    "std": Words("std", "Standard deviation", "size"),
    "absmax": Words("max |x|", "Largest magnitude", "size"),
    "mean": Words("mean", "Mean", "signed"),
    "min": Words("min", "Least element", "signed"),
    "max": Words("max", "Greatest element", "signed"),
    "zeros": Words("zeros", "Zeros", "count", "elements"),
    "nan": Words("NaN", "NaN", "count", "elements"),
    "inf": Words("infinite", "Infinities", "count", "elements"),
    "count": Words("elements", "Elements", "count", "elements"),
    "activation": Words("active", "Active elements", "share", "share of elements"),
    "call_activation": Words("active", "Active elements", "share", "share of elements"),
    "death": Words("dead", "Dead units", "share", "share of units"),
    "call_death": Words("dead", "Dead units", "share", "share of units"),
    "unchanged": Words("unchanged", "Elements left unchanged", "share", "share of elements"),
    "vanished": Words("vanished", "Updates that were rounded away", "share", "share of elements"),
    "ratio": Words("update / weight", "Update / weight", "size", "no unit"),
    "cosine": Words("cosine", "Cosine between steps", "cosine", "no unit"),
    "lowest": Words("lowest power", "Lowest power of two", "power", "power of 2"),
    "highest": Words("highest power", "Highest power of two", "power", "power of 2"),
    "dynamic_range": Words("dynamic range", "Dynamic range", "power", "octaves"),
}
_FORMATS = {"underflow": "Would be rounded to zero", "overflow": "Would be beyond the range"}
_PORTS: Mapping[str, PortInfo] = {port: info for port, info in PORTS.items()}  # noqa: C416


def words_of(number: str) -> Words:
    """What *number* is called. One that a user's own statistic gives is called by its name."""
    if number in _NUMBERS:
        return _NUMBERS[number]
    what, _, form = number.partition("_")
    if what in _FORMATS and form:
        return Words(f"{what} in {form}", f"{_FORMATS[what]} in {form}", "share", "share of elements")
    if _EXPONENT.fullmatch(number):
        return Words(f"{int(number[1:])} %", f"Magnitude that {int(number[1:])} % stay below", "size")
    return Words(number.replace("_", " "), number.replace("_", " ").capitalize(), "size", "")


def of_port(port: str) -> str:
    """The tensors at *port*, in words."""
    return _PORTS[port].words if port in _PORTS else port


def unit_of(number: str, port: str) -> str:
    """The unit of *number* at *port*: that of the tensor, or none."""
    unit = words_of(number).unit
    return unit if unit is not None else _PORTS[port].unit if port in _PORTS else ""


def title_of(number: str, port: str) -> str:
    """A headline, as "Root mean square of outputs"."""
    words = words_of(number)
    return f"{words.whole} {'in' if words.kind in ('share', 'count') else 'of'} {of_port(port)}"


def recorded_by(number: str, port: str) -> str:
    """Which lens records *number* of the tensors at *port*, as a user writes it."""
    on_parameters = port in PARAMETER_PORTS
    if "activation" in number or "death" in number:
        return "lens.ParameterGradientActivation()" if on_parameters else "lens.OutputActivation()"
    if number in ("ratio", "unchanged", "vanished"):
        return "lens.ParameterUpdateGeometry()"
    if number == "cosine":
        geometry = {"grad": "ParameterGradientGeometry", "update": "ParameterUpdateGeometry"}
        return f"lens.{geometry.get(port, 'OutputGradientGeometry')}()"
    if number in ("powers", "lowest", "highest", "dynamic_range") or _EXPONENT.fullmatch(number):
        return f'lens.Lens("exponents", stats.ExponentHistogram(), ("{port}",))'
    if number in _NUMBERS:
        return "lens.moments(), one of the default lenses"
    return "a lens with a statistic of your own"
