"""Ready-made reductions for recorders: each is a callable ``(so far, new)`` that keeps running sums or some of the values."""

from sonde.recorders.reductions.base import Accumulated, Reduction
from sonde.recorders.reductions.folds import Max, Mean, Sum
from sonde.recorders.reductions.joins import Concatenate, First, Last
from sonde.recorders.reductions.reservoir import Reservoir

__all__ = ["Accumulated", "Concatenate", "First", "Last", "Max", "Mean", "Reduction", "Reservoir", "Sum"]
