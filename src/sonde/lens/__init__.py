"""The lenses: what an inspector looks at. ``sonde.lens.OutputNorm()``, or ``sonde.lens.Lens("name", statistic)`` for your own.

A lens is data: a statistic, the ports and layers that it measures, and how its numbers are shown. A new one is a file here and a
line below. An inspector takes ``AnyLens``: a lens, losses and metrics, or a preprocessor, whose lens ``lens_of`` makes; it looks at
the layers of its ``Choice``.
"""

from types import ModuleType as _Module

# isort: split
# What a lens is
from sonde.lens.builtin import AnyLens as AnyLens
from sonde.lens.lens import Lens as Lens
from sonde.lens.lens import LossMetrics as LossMetrics

# isort: split
# Ready-made lenses
from sonde.lens.builtin import EffectiveRank as EffectiveRank
from sonde.lens.builtin import OutputActivation as OutputActivation
from sonde.lens.builtin import OutputGradientGeometry as OutputGradientGeometry
from sonde.lens.builtin import OutputNorm as OutputNorm
from sonde.lens.builtin import ParameterCond as ParameterCond
from sonde.lens.builtin import ParameterGradientActivation as ParameterGradientActivation
from sonde.lens.builtin import ParameterGradientGeometry as ParameterGradientGeometry
from sonde.lens.builtin import ParameterNorm as ParameterNorm
from sonde.lens.builtin import ParameterUpdateGeometry as ParameterUpdateGeometry
from sonde.lens.builtin import default_lenses as default_lenses
from sonde.lens.builtin import exponents as exponents
from sonde.lens.builtin import moments as moments

__all__ = [name for name, value in vars().items() if name[0] != "_" and not isinstance(value, _Module)]

# isort: split
# For the inspector: the lens of a preprocessor, and the layers that are looked at
from sonde.lens.from_preprocessor import lens_of as lens_of
from sonde.lens.layer_choice import Choice as Choice
