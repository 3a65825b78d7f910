"""The engine: the only part of sonde that hooks a running model. README.md in this folder tells a tensor's way through it.

Observe a model with ``observe``, or with an ``Attachment`` in an instrument; ask its ``Clock`` when something happens, and its
``Coverage`` what was not seen. Run a model unseen in ``quiet``, or a copy of it in a ``Trial``.
"""

# Observe a model, and what is delivered
from sonde.engine.event import Event as Event
from sonde.engine.event import Subscriber as Subscriber
from sonde.engine.failures import ProbeError as ProbeError
from sonde.engine.probes.coverage import Coverage as Coverage
from sonde.engine.probes.coverage import Covered as Covered
from sonde.engine.probes.probe import Probe as Probe
from sonde.engine.probes.probe import observe as observe
from sonde.engine.probes.probe import sites as sites

# isort: split
# What an instrument is made of: hooks, their rows, and errors that stay inside
from sonde.engine.failures import name_of as name_of
from sonde.engine.failures import raise_if_foreign as raise_if_foreign
from sonde.engine.probes.attachment import Attachment as Attachment
from sonde.engine.probes.dataframes import key_columns as key_columns
from sonde.engine.probes.probe import replace_former as replace_former
from sonde.engine.probes.row_keys import RowKeys as RowKeys
from sonde.engine.probes.site_hook import SiteHook as SiteHook
from sonde.engine.probes.statistic_hooks import Calls as Calls
from sonde.engine.probes.statistic_hooks import rows_for_calls as rows_for_calls
from sonde.engine.unseen import Observer as Observer

# isort: split
# When: epochs, steps and forwards; optimizers and the scale of a loss
from sonde.engine.clock.clock import Clock as Clock
from sonde.engine.clock.loss_scale import Scaling as Scaling
from sonde.engine.clock.optimizers import held_by as held_by
from sonde.engine.clock.pace import Pace as Pace

# isort: split
# Which module call runs
from sonde.engine.calls.call_log import ModuleCall as ModuleCall
from sonde.engine.calls.module_tracker import ModuleTracker as ModuleTracker
from sonde.engine.calls.where import Whereabouts as Whereabouts
from sonde.engine.calls.where import where as where

# isort: split
# Which modules and parameters, under which names
from sonde.engine.compiled_regions import regions as regions
from sonde.engine.inventory import Named as Named
from sonde.engine.selection import Where as Where
from sonde.engine.selection import check_model as check_model
from sonde.engine.selection import condition_of as condition_of
from sonde.engine.selection import members as members
from sonde.engine.selection import parameters as parameters
from sonde.engine.selection import repeated_layers as repeated_layers
from sonde.engine.selection import select as select
from sonde.engine.selection import tell_of_globs as tell_of_globs
from sonde.engine.torch_api.modules import BatchNorm as BatchNorm
from sonde.engine.torch_api.modules import buffers_of as buffers_of
from sonde.engine.torch_api.modules import children_of as children_of
from sonde.engine.torch_api.modules import class_of as class_of
from sonde.engine.torch_api.modules import holds_parameters_elsewhere as holds_parameters_elsewhere
from sonde.engine.torch_api.modules import is_called_compiled as is_called_compiled
from sonde.engine.torch_api.modules import parameters_in as parameters_in
from sonde.engine.torch_api.modules import parameters_of as parameters_of
from sonde.engine.torch_api.modules import sharded_parameters as sharded_parameters
from sonde.engine.torch_api.modules import unwrap as unwrap

# isort: split
# Tensors in structured values, and the axes of an output
from sonde.engine.axis_order import roughness_by_order as roughness_by_order
from sonde.engine.layer_axes import LayerAxes as LayerAxes
from sonde.engine.padding import padded as padded
from sonde.engine.sample_graph import holds_graph as holds_graph
from sonde.engine.structure import as_arguments as as_arguments
from sonde.engine.structure import first_floating as first_floating
from sonde.engine.structure import is_floating as is_floating
from sonde.engine.structure import remap as remap
from sonde.engine.structure import walk as walk
from sonde.engine.torch_api.pytree import flatten as flatten
from sonde.engine.torch_api.torch_tensors import version_of as version_of

# isort: split
# Run a model unseen, or a copy of it
from sonde.engine import unseen as unseen
from sonde.engine.loss_function import check_loss as check_loss
from sonde.engine.loss_function import check_loss_fn as check_loss_fn
from sonde.engine.loss_function import own_loss as own_loss
from sonde.engine.loss_function import returned_loss as returned_loss
from sonde.engine.random_state import RandomState as RandomState
from sonde.engine.restore import gradients_put_aside as gradients_put_aside
from sonde.engine.restore import set_apart as set_apart
from sonde.engine.restore import versions as versions
from sonde.engine.rounding import RoundingMode as RoundingMode
from sonde.engine.stand_in import memory_of as memory_of
from sonde.engine.trial import Trial as Trial
from sonde.engine.trial import check_numbers as check_numbers
from sonde.engine.unseen import quiet as quiet

# isort: split
# Backward passes, FLOPs, and torch's private parts by subject
from sonde.engine import backward_calls as backward_calls
from sonde.engine import flops as flops
from sonde.engine.torch_api import autograd_state as autograd_state
from sonde.engine.torch_api import compiler_state as compiler_state
from sonde.engine.torch_api import graph_nodes as graph_nodes
from sonde.engine.torch_api import hooks as hooks
from sonde.engine.torch_api import moved_axes as moved_axes
from sonde.engine.torch_api import torch_tensors as torch_tensors
from sonde.engine.torch_api.data_parallel import communicates as communicates
from sonde.engine.torch_api.data_parallel import data_parallel_ranks as data_parallel_ranks
from sonde.engine.torch_api.data_parallel import ranks_of as ranks_of
from sonde.engine.torch_api.dispatch import Derivative as Derivative
from sonde.engine.torch_api.dispatch import OperatorCall as OperatorCall
from sonde.engine.torch_api.dispatch import OperatorMode as OperatorMode
from sonde.engine.torch_api.private_names import private_parts as private_parts
