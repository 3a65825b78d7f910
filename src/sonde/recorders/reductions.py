"""Ready-made reductions for recorders: callables ``(so far, new)`` that keep running sums or some of the values."""

from sonde.keep import Accumulated, Concatenate, First, Last, Max, Mean, Reduction, Reservoir, Sum

__all__ = ["Accumulated", "Concatenate", "First", "Last", "Max", "Mean", "Reduction", "Reservoir", "Sum"]
