"""Say what is wrong with a model: run it, look at everything that it does, and name the place and the cause."""

from sonde.diagnosis.nonfinite.non_finite import NonFinite
from sonde.diagnosis.nonfinite.why_nan import why_nan
from sonde.diagnosis.preflight.preflight import Preflight, preflight

__all__ = ["NonFinite", "Preflight", "preflight", "why_nan"]
