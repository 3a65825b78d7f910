"""Recorders: keep inputs, outputs or their gradients at chosen modules, all of them or reduced (torchfunc)."""

from sonde.keep import (
    BackwardInput,
    BackwardOutput,
    ForwardInput,
    ForwardOutput,
    ForwardPre,
    Handle,
    Recorded,
    Recorder,
    Subrecorder,
    open_recorded,
)
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
