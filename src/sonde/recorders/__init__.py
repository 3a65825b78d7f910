"""Recorders: keep inputs, outputs or their gradients at chosen modules, all of them or reduced (torchfunc).

Below the five recorders lie parts that ``sonde.track`` is made of, too: the probe that keeps values, and its slots.
"""

from sonde.recorders import reductions
from sonde.recorders.keeper import Keeper as Keeper
from sonde.recorders.keeper import KeepingProbe as KeepingProbe
from sonde.recorders.kinds import BackwardInput, BackwardOutput, ForwardInput, ForwardOutput, ForwardPre
from sonde.recorders.recorder import Handle, Recorder
from sonde.recorders.reductions.base import value_text as value_text
from sonde.recorders.saving import Recorded, open_recorded
from sonde.recorders.saving import entry_of as entry_of
from sonde.recorders.slots import Subrecorder
from sonde.recorders.table import is_measurable as is_measurable

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
