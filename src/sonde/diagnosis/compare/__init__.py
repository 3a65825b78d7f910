"""Compare two models, two saved trackers or two runs, and name the first place where they part, and the cause."""

from sonde.diagnosis.compare.compare import compare as compare
from sonde.diagnosis.compare.comparison import Comparison as Comparison
