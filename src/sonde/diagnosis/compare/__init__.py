"""Compare two models, two saved trackers or two runs: the first place where they part, and why."""

from sonde.diagnosis.compare.aligned import Place
from sonde.diagnosis.compare.compare import compare
from sonde.diagnosis.compare.comparison import Comparison

__all__ = ["Comparison", "Place", "compare"]
