"""Statistics: tensors in, numbers out. Nothing here knows of modules or hooks."""

from sonde.stats.accumulator import Accumulator, Result
from sonde.stats.activation import Activation, ChannelActivation
from sonde.stats.exponents import ExponentHistogram
from sonde.stats.geometry import Cosine, Norm, cosine
from sonde.stats.moments import Moments
from sonde.stats.pair import PairStatistic
from sonde.stats.quantiles import magnitude_quantiles
from sonde.stats.running import RunningMeanVar
from sonde.stats.spectrum import Spectrum
from sonde.stats.statistic import Field, RowStatistic, Statistic, reduce
from sonde.stats.table import Table
from sonde.stats.updates import Updates, vanished_share

__all__ = [
    "Accumulator",
    "Activation",
    "ChannelActivation",
    "Cosine",
    "ExponentHistogram",
    "Field",
    "Moments",
    "Norm",
    "PairStatistic",
    "Result",
    "RowStatistic",
    "RunningMeanVar",
    "Spectrum",
    "Statistic",
    "Table",
    "Updates",
    "cosine",
    "magnitude_quantiles",
    "reduce",
    "vanished_share",
]
