"""``track`` and the recorders: probes that keep values of tensors."""

from sonde.keep.stash import Stash, StashFn, StashValueFn, default_stash, default_stash_value, get_stash_fn, rmap_tensor
from sonde.keep.tracker import Tracker, track

__all__ = [
    "Stash",
    "StashFn",
    "StashValueFn",
    "Tracker",
    "default_stash",
    "default_stash_value",
    "get_stash_fn",
    "rmap_tensor",
    "track",
]
