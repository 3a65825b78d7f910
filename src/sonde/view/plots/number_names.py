"""Name the numbers of a run: their titles, their units, and the lens that records each."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from sonde.number import STANDARD, Number
from sonde.site import PARAMETER_PORTS, PORTS, PortInfo
from sonde.view.plots.layer_names import plain

_EXPONENT = re.compile(r"p\d\d|(underflow|overflow)_\w+|powers|lowest|highest|dynamic_range")
_SMOOTH = frozenset(
    ("CELU", "ELU", "GELU", "GLU", "Hardsigmoid", "Hardtanh", "LeakyReLU", "LogSigmoid", "Mish", "PReLU", "RReLU", "SELU", "SiLU")
) | {"Sigmoid", "Softplus", "Softsign", "Tanh", "Tanhshrink"}
"""Activations of torch.nn that ``OutputActivation()`` does not measure by itself."""
_PORTS: Mapping[str, PortInfo] = {port: info for port, info in PORTS.items()}  # noqa: C416


def main_number(numbers: tuple[str, ...], wish: Mapping[str, Any], known: Mapping[str, Number]) -> str | None:
    """Return the number to draw: the one that the lens names, else the first that is described and not minor.

    Args:
        numbers: the columns that there are.
        wish: the picture that the lens asks for.
        known: the numbers described.
    """
    wanted = (wish.get("number"), *(name for numbers in (known, STANDARD) for name, one in numbers.items() if not one.is_minor))
    return next((name for name in wanted if name in numbers), None)


def of_port(port: str) -> str:
    """Return the tensors at *port*, in words."""
    return _PORTS[port].words if port in _PORTS else port


def unit_of(number: Number, port: str) -> str:
    """Return the unit of *number* at *port*: its own, or that of the tensor."""
    return number.unit if number.unit is not None else _PORTS[port].unit if port in _PORTS else ""


def axis_of(number: Number, port: str) -> str:
    """Return the text of an axis: the label of *number*, and its unit."""
    unit = unit_of(number, port)
    return plain(f"{number.short}, {unit}" if unit and unit != "no unit" else number.short)


def title_of(number: Number, port: str) -> str:
    """Return a headline, as "Root mean square of outputs"."""
    return f"{number.whole} {'in' if number.kind in ('share', 'count') else 'of'} {of_port(port)}"


def recorded_by(number: str, port: str, kinds: Collection[str] = ()) -> str:
    """Return the lens that records *number* of the tensors at *port*, as a user writes it; *kinds* are the model's classes."""
    on_parameters = port in PARAMETER_PORTS
    if "activation" in number or "death" in number:
        if on_parameters:
            return "lens.ParameterGradientActivation()"
        smooth = [f"nn.{kind}" for kind in sorted(set(kinds)) if kind in _SMOOTH]
        layers = smooth[0] if len(smooth) == 1 else f"({', '.join(smooth)})" if smooth else "nn.GELU"
        named = "" if smooth else ", with the classes of your activations"
        return (
            f"lens.OutputActivation(include={layers}){named}; without include= it measures only dropout and layers whose outputs "
            "may be exactly zero, as nn.ReLU"
        )
    if number in ("ratio", "unchanged", "vanished"):
        return "lens.ParameterUpdateGeometry()"
    if number == "cosine":
        geometry = {"grad": "ParameterGradientGeometry", "update": "ParameterUpdateGeometry"}
        return f"lens.{geometry.get(port, 'OutputGradientGeometry')}()"
    if _EXPONENT.fullmatch(number):
        return f'lens.Lens("exponents", stats.ExponentHistogram(), ("{port}",))'
    if number in STANDARD:
        return "lens.moments(), one of the default lenses"
    return "a lens with a statistic of your own"
