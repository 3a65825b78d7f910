"""Recorders: keep inputs, outputs or their gradients at chosen modules, all of them or reduced (torchfunc)."""

from sonde.keep.recorders.kinds import BackwardInput, BackwardOutput, ForwardInput, ForwardOutput, ForwardPre
from sonde.keep.recorders.recorder import Handle, Recorder
from sonde.keep.saving import Recorded, open_recorded
from sonde.keep.slots import Subrecorder
from sonde.recorders import reductions

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
