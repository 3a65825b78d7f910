"""The lenses: what an inspector looks at. ``sonde.lens.OutputNorm()``, or ``sonde.lens.Lens("name", statistic)`` for your own."""

# A name that is imported as itself is public.

from types import ModuleType as _Module

from sonde.inspector.lenses.builtin import AnyLens as AnyLens
from sonde.inspector.lenses.builtin import EffectiveRank as EffectiveRank
from sonde.inspector.lenses.builtin import OutputActivation as OutputActivation
from sonde.inspector.lenses.builtin import OutputGradientGeometry as OutputGradientGeometry
from sonde.inspector.lenses.builtin import OutputNorm as OutputNorm
from sonde.inspector.lenses.builtin import ParameterCond as ParameterCond
from sonde.inspector.lenses.builtin import ParameterGradientActivation as ParameterGradientActivation
from sonde.inspector.lenses.builtin import ParameterGradientGeometry as ParameterGradientGeometry
from sonde.inspector.lenses.builtin import ParameterNorm as ParameterNorm
from sonde.inspector.lenses.builtin import ParameterUpdateGeometry as ParameterUpdateGeometry
from sonde.inspector.lenses.builtin import default_lenses as default_lenses
from sonde.inspector.lenses.builtin import exponents as exponents
from sonde.inspector.lenses.builtin import moments as moments
from sonde.inspector.lenses.lens import Lens as Lens
from sonde.inspector.lenses.lens import LossMetrics as LossMetrics

__all__ = [name for name, value in vars().items() if name[0] != "_" and not isinstance(value, _Module)]
