"""Preprocessors: a statistic of one tensor of a layer, for many layers by name, aggregated over an interval (seed 5)."""

from sonde.preprocessor.aggregates import Aggregate, InMemory, aggregate, aggregate_range
from sonde.preprocessor.base import (
    AbstractBackwardPreprocessor,
    AbstractForwardPreprocessor,
    AbstractModulePreprocessor,
    AbstractPreprocessor,
    AbstractTensorPreprocessor,
)
from sonde.preprocessor.explicit import ExplicitCall
from sonde.preprocessor.geometry import Geometry
from sonde.preprocessor.gradients import GradientActivation, GradientGeometry, OutputGradientGeometry
from sonde.preprocessor.losses import LossModule
from sonde.preprocessor.measured import Values
from sonde.preprocessor.outputs import Activity, InputNorm, OutputActivation, OutputNorm
from sonde.preprocessor.parameters import Condition, Conditioning, ParameterNorm
from sonde.preprocessor.updates import ParameterDifferenceGeometry, UpdateRatio, UpdateRounding
from sonde.stats.running import RunningMeanVar

__all__ = [
    "AbstractBackwardPreprocessor",
    "AbstractForwardPreprocessor",
    "AbstractModulePreprocessor",
    "AbstractPreprocessor",
    "AbstractTensorPreprocessor",
    "Activity",
    "Aggregate",
    "Condition",
    "Conditioning",
    "ExplicitCall",
    "Geometry",
    "GradientActivation",
    "GradientGeometry",
    "InMemory",
    "InputNorm",
    "LossModule",
    "OutputActivation",
    "OutputGradientGeometry",
    "OutputNorm",
    "ParameterDifferenceGeometry",
    "ParameterNorm",
    "RunningMeanVar",
    "UpdateRatio",
    "UpdateRounding",
    "Values",
    "aggregate",
    "aggregate_range",
]
