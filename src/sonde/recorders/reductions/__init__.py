"""Ready-made reductions for recorders: callables ``(so far, new)`` that keep running sums or some of the values."""

from sonde.recorders.reductions.base import Accumulated, Reduction
from sonde.recorders.reductions.concatenate import Concatenate, First, Last
from sonde.recorders.reductions.reservoir import Reservoir
from sonde.recorders.reductions.sum_mean_max import Max, Mean, Sum

__all__ = ["Accumulated", "Concatenate", "First", "Last", "Max", "Mean", "Reduction", "Reservoir", "Sum"]
