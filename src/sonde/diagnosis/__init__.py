"""Say what is wrong with a model: run it, look at everything that it does, and name the place and the cause.

``why_nan``, ``compare`` and ``preflight`` ask; each returns an :class:`sonde.answer.Answer`. A step that a training has kept is
looked at by ``observe_step``. A ``Subject`` is a model with batch, loss and optimizer that is tried again and again; a ``Proof`` is
one on which an advice is tried, in an ``Attempt`` at one step.
"""

from sonde.diagnosis.attempt import Attempt, Tried, attempted, cast_as, checked_change, kept_of
from sonde.diagnosis.compare import Comparison, compare
from sonde.diagnosis.distance import distance_between, readable
from sonde.diagnosis.nonfinite.non_finite import NonFinite
from sonde.diagnosis.nonfinite.source_lines import written_at
from sonde.diagnosis.nonfinite.tensor_facts import TensorFacts
from sonde.diagnosis.nonfinite.why_nan import observe_step, why_nan
from sonde.diagnosis.preflight.preflight import Preflight, preflight
from sonde.diagnosis.preflight.subject import Subject
from sonde.diagnosis.proof import Proof

__all__ = [
    "Attempt",
    "Comparison",
    "NonFinite",
    "Preflight",
    "Proof",
    "Subject",
    "TensorFacts",
    "Tried",
    "attempted",
    "cast_as",
    "checked_change",
    "compare",
    "distance_between",
    "kept_of",
    "observe_step",
    "preflight",
    "readable",
    "why_nan",
    "written_at",
]
