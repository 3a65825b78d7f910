"""The lenses: what an inspector looks at. ``sonde.lens.OutputNorm()``, or ``sonde.lens.Lens("name", statistic)`` for your own."""

# A name that is imported as itself is public.

from types import ModuleType as _Module

from sonde.inspector import AnyLens as AnyLens
from sonde.inspector import EffectiveRank as EffectiveRank
from sonde.inspector import Lens as Lens
from sonde.inspector import LossMetrics as LossMetrics
from sonde.inspector import OutputActivation as OutputActivation
from sonde.inspector import OutputGradientGeometry as OutputGradientGeometry
from sonde.inspector import OutputNorm as OutputNorm
from sonde.inspector import ParameterCond as ParameterCond
from sonde.inspector import ParameterGradientActivation as ParameterGradientActivation
from sonde.inspector import ParameterGradientGeometry as ParameterGradientGeometry
from sonde.inspector import ParameterNorm as ParameterNorm
from sonde.inspector import ParameterUpdateGeometry as ParameterUpdateGeometry
from sonde.inspector import default_lenses as default_lenses
from sonde.inspector import exponents as exponents
from sonde.inspector import moments as moments

__all__ = [name for name, value in vars().items() if name[0] != "_" and not isinstance(value, _Module)]
