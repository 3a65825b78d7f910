"""``track``: keep copies of outputs and of their gradients, and judge each layer by them.

A ``Tracker`` is a list of stashes. A ``Tally`` adds up outputs and gradients of one layer into a ``Layer``, which rules
``annotate``; other instruments do so, too.
"""

from types import ModuleType as _Module

# isort: split
# Track a model
from sonde.keep.stash import Stash as Stash
from sonde.keep.stash import StashFn as StashFn
from sonde.keep.stash import StashValueFn as StashValueFn
from sonde.keep.stash import default_stash as default_stash
from sonde.keep.stash import default_stash_value as default_stash_value
from sonde.keep.stash import get_stash_fn as get_stash_fn
from sonde.keep.stash import rmap_tensor as rmap_tensor
from sonde.keep.tracker import Tracker as Tracker
from sonde.keep.tracker import track as track

__all__ = [name for name, value in vars().items() if name[0] != "_" and not isinstance(value, _Module)]

# isort: split
# For other rooms of sonde: what a stash holds, and the numbers of a layer
from sonde.keep.layers import Layer as Layer
from sonde.keep.layers import Tally as Tally
from sonde.keep.layers import annotate as annotate
from sonde.keep.layers import first_measurable as first_measurable
from sonde.keep.layers import layers_of as layers_of
from sonde.keep.layers import numbers_of as numbers_of
from sonde.keep.stash import Copying as Copying
from sonde.keep.stash import leaves_of as leaves_of
