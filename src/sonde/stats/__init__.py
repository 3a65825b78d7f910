"""Statistics: tensors in, numbers out. Nothing here knows of modules or hooks."""

from sonde.stats.accumulator import Accumulator, Result
from sonde.stats.moments import Moments
from sonde.stats.slab import Slab
from sonde.stats.statistic import Field, Statistic

__all__ = ["Accumulator", "Field", "Moments", "Result", "Slab", "Statistic"]
