"""The lenses: what an inspector looks at. ``sonde.lens.OutputNorm()``, or ``sonde.lens.Lens("name", statistic)`` for your own."""

from sonde.inspector.lenses.builtin import (
    AnyLens,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterGradientActivation,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
    default_lenses,
    exponents,
    moments,
)
from sonde.inspector.lenses.lens import Lens, LossMetrics

__all__ = [
    "AnyLens",
    "Lens",
    "LossMetrics",
    "OutputActivation",
    "OutputGradientGeometry",
    "OutputNorm",
    "ParameterGradientActivation",
    "ParameterGradientGeometry",
    "ParameterNorm",
    "ParameterUpdateGeometry",
    "default_lenses",
    "exponents",
    "moments",
]
