"""Preprocessors: a statistic of one tensor of a layer, for many layers by name, aggregated over an interval (as in monitorch)."""

from types import ModuleType as _Module

# isort: split
# Of outputs and inputs
from sonde.preprocessor.outputs import Activity as Activity
from sonde.preprocessor.outputs import InputNorm as InputNorm
from sonde.preprocessor.outputs import OutputActivation as OutputActivation
from sonde.preprocessor.outputs import OutputNorm as OutputNorm

# isort: split
# Of gradients
from sonde.preprocessor.gradients import Geometry as Geometry
from sonde.preprocessor.gradients import GradientActivation as GradientActivation
from sonde.preprocessor.gradients import GradientGeometry as GradientGeometry
from sonde.preprocessor.gradients import OutputGradientGeometry as OutputGradientGeometry

# isort: split
# Of parameters and their updates
from sonde.preprocessor.parameters import Condition as Condition
from sonde.preprocessor.parameters import Conditioning as Conditioning
from sonde.preprocessor.parameters import ParameterNorm as ParameterNorm
from sonde.preprocessor.updates import ParameterDifferenceGeometry as ParameterDifferenceGeometry
from sonde.preprocessor.updates import UpdateRatio as UpdateRatio
from sonde.preprocessor.updates import UpdateRounding as UpdateRounding

# isort: split
# Of losses
from sonde.preprocessor.losses import ExplicitCall as ExplicitCall
from sonde.preprocessor.losses import LossModule as LossModule

# isort: split
# For your own: bases, and aggregates of numbers
from sonde.preprocessor.aggregates import Aggregate as Aggregate
from sonde.preprocessor.aggregates import InMemory as InMemory
from sonde.preprocessor.aggregates import aggregate as aggregate
from sonde.preprocessor.aggregates import aggregate_range as aggregate_range
from sonde.preprocessor.base import AbstractBackwardPreprocessor as AbstractBackwardPreprocessor
from sonde.preprocessor.base import AbstractForwardPreprocessor as AbstractForwardPreprocessor
from sonde.preprocessor.base import AbstractModulePreprocessor as AbstractModulePreprocessor
from sonde.preprocessor.base import AbstractPreprocessor as AbstractPreprocessor
from sonde.preprocessor.base import AbstractTensorPreprocessor as AbstractTensorPreprocessor
from sonde.preprocessor.measured import Values as Values
from sonde.stats import RunningMeanVar as RunningMeanVar

__all__ = [name for name, value in vars().items() if name[0] != "_" and not isinstance(value, _Module)]

# isort: split
# For other rooms of sonde
from sonde.preprocessor.updates import difference as difference
