"""What observing does to one model: whether anything changes, what is seen, and what it costs.

``doctor`` asks, and :class:`Checkup` is the answer. What it compares of two passes, the laws of :mod:`sonde.testing` compare, too.
"""

from sonde.checkup.bits import difference, same_bits
from sonde.checkup.copied_training import mean_square
from sonde.checkup.doctor import Checkup, doctor
from sonde.checkup.pass_facts import changes, facts_of_passes, fresh, random_state, settled

__all__ = [
    "Checkup",
    "changes",
    "difference",
    "doctor",
    "facts_of_passes",
    "fresh",
    "mean_square",
    "random_state",
    "same_bits",
    "settled",
]
