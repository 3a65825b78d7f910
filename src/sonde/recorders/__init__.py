"""Recorders: keep what flows through chosen modules, one slot for each, all of it or reduced (the second seed)."""

from sonde.recorders import reductions
from sonde.recorders.kinds import BackwardInput, BackwardOutput, ForwardInput, ForwardOutput, ForwardPre
from sonde.recorders.reading import Recorded, open_recorded
from sonde.recorders.recorder import Handle, Recorder
from sonde.recorders.slots import Subrecorder

__all__ = [
    "BackwardInput",
    "BackwardOutput",
    "ForwardInput",
    "ForwardOutput",
    "ForwardPre",
    "Handle",
    "Recorded",
    "Recorder",
    "Subrecorder",
    "open_recorded",
    "reductions",
]
