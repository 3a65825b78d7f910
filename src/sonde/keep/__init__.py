"""``track``: keep copies of outputs and of their gradients, and judge each layer by them."""

from sonde.keep.layers import Layer as Layer
from sonde.keep.layers import Tally as Tally
from sonde.keep.layers import annotate as annotate
from sonde.keep.layers import first_measurable as first_measurable
from sonde.keep.layers import layers_of as layers_of
from sonde.keep.layers import numbers_of as numbers_of
from sonde.keep.stash import Copying as Copying
from sonde.keep.stash import Stash, StashFn, StashValueFn, default_stash, default_stash_value, get_stash_fn, rmap_tensor
from sonde.keep.stash import leaves_of as leaves_of
from sonde.keep.tracker import Tracker, track

__all__ = [
    "Copying",
    "Layer",
    "Stash",
    "StashFn",
    "StashValueFn",
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
    "rmap_tensor",
    "track",
]
