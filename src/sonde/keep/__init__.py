"""``track`` and the recorders: probes that keep values of tensors."""

from sonde.keep.layers import Layer as Layer
from sonde.keep.layers import Tally as Tally
from sonde.keep.layers import annotate as annotate
from sonde.keep.layers import first_measurable as first_measurable
from sonde.keep.layers import layers_of as layers_of
from sonde.keep.layers import numbers_of as numbers_of
from sonde.keep.recorders.kinds import BackwardInput as BackwardInput
from sonde.keep.recorders.kinds import BackwardOutput as BackwardOutput
from sonde.keep.recorders.kinds import ForwardInput as ForwardInput
from sonde.keep.recorders.kinds import ForwardOutput as ForwardOutput
from sonde.keep.recorders.kinds import ForwardPre as ForwardPre
from sonde.keep.recorders.recorder import Handle as Handle
from sonde.keep.recorders.recorder import Recorder as Recorder
from sonde.keep.reductions.base import Accumulated as Accumulated
from sonde.keep.reductions.base import Reduction as Reduction
from sonde.keep.reductions.concatenate import Concatenate as Concatenate
from sonde.keep.reductions.concatenate import First as First
from sonde.keep.reductions.concatenate import Last as Last
from sonde.keep.reductions.reservoir import Reservoir as Reservoir
from sonde.keep.reductions.sum_mean_max import Max as Max
from sonde.keep.reductions.sum_mean_max import Mean as Mean
from sonde.keep.reductions.sum_mean_max import Sum as Sum
from sonde.keep.saving import Recorded as Recorded
from sonde.keep.saving import open_recorded as open_recorded
from sonde.keep.slots import Subrecorder as Subrecorder
from sonde.keep.stash import Copying as Copying
from sonde.keep.stash import Stash, StashFn, StashValueFn, default_stash, default_stash_value, get_stash_fn, rmap_tensor
from sonde.keep.stash import leaves_of as leaves_of
from sonde.keep.tracker import Tracker, track

__all__ = [
    "Accumulated",
    "BackwardInput",
    "BackwardOutput",
    "Concatenate",
    "Copying",
    "First",
    "ForwardInput",
    "ForwardOutput",
    "ForwardPre",
    "Handle",
    "Last",
    "Layer",
    "Max",
    "Mean",
    "Recorded",
    "Recorder",
    "Reduction",
    "Reservoir",
    "Stash",
    "StashFn",
    "StashValueFn",
    "Subrecorder",
    "Sum",
    "Tally",
    "Tracker",
    "annotate",
    "default_stash",
    "default_stash_value",
    "first_measurable",
    "get_stash_fn",
    "layers_of",
    "leaves_of",
    "numbers_of",
    "open_recorded",
    "rmap_tensor",
    "track",
]
