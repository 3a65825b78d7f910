"""Say which axis of a layer's output holds the samples, which the units, and which axis of a parameter holds the neurons.

Units are the channels of a convolution and the features of everything else. All other axes of an output, but the one of the
samples, are positions: pixels, tokens, time steps. The answer comes from, in this order:

1. the layer's kind: a convolution, pooling or padding over k dimensions has its units before the last k axes; a linear,
   recurrent, attention, embedding or layer normalisation layer has them last; a batch or group normalisation on axis 1;
2. for layers that take any shape (activations, dropout, modules of the user's own), from the layer that feeds them: read
   from the autograd graph of the output at a call (the operation, or a vector of parameters that the output was multiplied
   with or added to), and remembered for later calls of that module with as many dimensions;
3. without a graph, from the model's structure (:func:`learn`): the layer before in a ``Sequential``, else the one kind of
   units that all layers of the same parent have, else the layer that is registered next before or after;
4. where nothing is known: axis 1, torch's ``(batch, channel, ...)``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn
from torch.autograd.graph import Node

from sonde.engine.inventory import Inventory
from sonde.engine.torch_api.modules import BatchNorm, ConvTranspose

_SECOND = 1
_LAST = -1

_FEATURES_LAST = (
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
_NORMS = (nn.LayerNorm, nn.RMSNorm)
_CHANNELS_SECOND = (BatchNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.Upsample, nn.PixelShuffle, nn.PixelUnshuffle)
_SEQUENCES = (
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
"""Layers whose input is (time, batch, feature), unless they or the attention inside them say ``batch_first``."""
_OVER_POSITIONS = re.compile(r"\w+([123])d")  # Conv2d, MaxPool1d, Dropout3d, ReflectionPad2d, InstanceNorm1d


@dataclass(frozen=True, slots=True)
class LayerAxes:
    """What the axes of one output are, each counted from 0.

    Attributes:
        samples: the axis of the batch; None if the output is a single sample.
        units: the axis of the channels or features; None if the output has none, as a batch of numbers has not.
        rule: how the units were found: ``layer``, ``graph``, ``structure``, ``given`` or ``default``.
    """

    samples: int | None
    units: int | None
    rule: str

    @staticmethod
    def of(
        output: Tensor, module: nn.Module | None = None, *, channel_last: bool | None = None, batched: bool | None = None
    ) -> LayerAxes:
        """Return the axes of *output*, which *module* returned.

        Args:
            output: any tensor.
            module: the layer; None if it is not known.
            channel_last: the units are on the last axis (True), on the one after the samples (False), or as the rules above say.
            batched: there is (True) or is not (False) a batch axis; None: there is, except in the output of a convolution with
                ``(channel, ...)``, of a linear layer with one vector, and of a recurrent or attention layer with one sequence.
        """
        dims = output.dim()
        axis, rule = _units(output, module)
        single = _is_single(dims, module, axis) if batched is None else not batched
        samples = None if single or dims == 0 else 1 if dims == 3 and LayerAxes.is_time_first(module) else 0
        if channel_last is not None:
            axis, rule = (_LAST if channel_last else None), "given"
        if axis is None or (-dims <= axis < dims and axis % dims == samples):
            axis = 0 if samples != 0 else _SECOND
        return _axes_that_are(samples, axis % dims if -dims <= axis < dims and axis % dims != samples else None, rule)

    @staticmethod
    def is_time_first(module: nn.Module | None) -> bool:
        """Return whether the outputs of *module*, where they have three dimensions, are ``(time, batch, feature)``."""
        if module is None:
            return False
        if isinstance(module, nn.Sequential) and len(module):
            return LayerAxes.is_time_first(module[-1])  # whose output it returns
        if not isinstance(module, _SEQUENCES):
            return getattr(module, "batch_first", True) is False
        attention = next((part for part in module.modules() if hasattr(part, "batch_first")), None)
        return attention is not None and not attention.batch_first

    def units_first(self, output: Tensor) -> Tensor | None:
        """Return *output* as a matrix ``(unit, everything else)``; None where it has no units."""
        if self.units is None:
            return None
        moved = output.movedim(self.units, 0)
        return moved.reshape(moved.shape[0], math.prod(moved.shape[1:]))

    def samples_first(self, output: Tensor) -> Tensor:
        """Return *output* as ``(sample, unit, ...)``."""
        units = self.units
        if output.dim() == 0:
            return output
        if self.samples is None:
            arranged, units = output.unsqueeze(0), None if units is None else units + 1
        else:
            arranged = output.movedim(self.samples, 0) if self.samples else output  # sparse tensors cannot be rearranged
            if units is not None and units < self.samples:
                units += 1
        return arranged if units in (None, 1) or arranged.dim() < 3 else arranged.movedim(units, 1)

    @staticmethod
    def neurons_first(tensor: Tensor, owner: nn.Module | None) -> Tensor:
        """Return a parameter, or its gradient, with the neurons (output channels) of the layer on the first axis.

        torch keeps nearly all parameters in this way. The weight of a transposed convolution is kept as ``(in, out / groups, ...)``
        and that of an embedding as ``(entry, feature)``: both are rearranged if *owner*, the layer with the parameter, is given.
        """
        if isinstance(owner, ConvTranspose) and tensor.dim() > 1:
            inputs, outputs = tensor.shape[0] // owner.groups, tensor.shape[1]
            grouped = tensor.reshape(owner.groups, inputs, outputs, *tensor.shape[2:])
            return grouped.transpose(1, 2).reshape(owner.groups * outputs, inputs, *tensor.shape[2:])
        if isinstance(owner, nn.Embedding | nn.EmbeddingBag) and tensor.dim() == 2:
            return tensor.T
        return tensor


_axes_that_are = cache(LayerAxes)  # of few values, and making one costs a third of finding them

_fed: WeakKeyDictionary[nn.Module, dict[int, int]] = WeakKeyDictionary()
"""Of modules that take any shape, by the number of dimensions: the axis of the units, as a graph showed it."""
_learnt: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""Of such modules the axis of the units as the model's structure has it, from the end or 1."""


def _units(output: Tensor, module: nn.Module | None) -> tuple[int | None, str]:
    """The axis of the units, from the end or 1, and the rule it follows from; None for the first axis that holds no samples."""
    dims = output.dim()
    own = None if module is None else _own_axis(module)
    if own == _LAST and isinstance(module, _NORMS) and dims > 2 and output.shape[-1] != module.normalized_shape[0]:
        own = _SECOND  # a subclass that moves the channels for the time of its work, as for images
    if own is not None and -own <= dims:
        return own, "layer"
    if not isinstance(module, nn.Module):
        fed = _fed_by(output)
    elif (fed := note(module, output)) is None and (fed := _fed.get(module, {}).get(dims)) is None:
        learnt = _learnt.get(module)
        if learnt is not None and dims > 1 and (learnt >= _LAST or dims in (-learnt, 1 - learnt)):
            return learnt, "structure"
    return (fed, "graph") if fed is not None else (None, "default")


def _own_axis(module: nn.Module) -> int | None:
    """The axis of the units in every output of *module*, counted from the end, or 1; None for layers that take any shape."""
    if isinstance(module, _NORMS) and len(module.normalized_shape) > 1:
        return None
    kind: Any = type(module)
    try:
        return _axes[kind]
    except KeyError:
        found = _axes[kind] = _axis_of_kind(kind)
        return found


_axes: WeakKeyDictionary[type, int | None] = WeakKeyDictionary()
"""By class. A class that is held holds the module that it stands in, and so everything there."""


def _axis_of_kind(kind: type) -> int | None:
    if issubclass(kind, _FEATURES_LAST):
        return _LAST
    if issubclass(kind, _CHANNELS_SECOND):
        return _SECOND
    for each in kind.__mro__:
        if each.__module__.startswith("torch.nn.") and (found := _OVER_POSITIONS.fullmatch(each.__name__)):
            return -int(found[1]) - 1
    return None


def _is_single(dims: int, module: nn.Module | None, axis: int | None) -> bool:
    if isinstance(module, _SEQUENCES):
        return dims == 2
    return axis is not None and axis < 0 and dims == -axis


# What feeds a layer


def note(module: nn.Module, output: Tensor) -> int | None:
    """Remember, and return, where the units of *module*, which takes any shape, are, if the graph of *output* shows it."""
    if output.grad_fn is None or output.dim() < 2 or _own_axis(module) is not None or (axis := _fed_by(output)) is None:
        return None
    _fed.setdefault(module, {})[output.dim()] = axis
    return axis


_MOST_NODES = 32
_OPERATIONS: Mapping[str, re.Pattern[str]] = {
    "elementwise": re.compile(
        r"(Add|Sub|Rsub|Mul|Div|Neg|Abs|Exp|Pow|Sqrt|Rsqrt|Clamp\w*|Where|MaskedFill|Clone|ToCopy|Alias|NativeDropout"
        r"|\w*(Relu|Elu|Gelu|Silu|Mish|Tanh|Sigmoid|Swish|Softplus|shrink|Threshold|Softmax|Prelu\w*))Backward\d*",
        re.IGNORECASE,
    ),
    "by channel": re.compile(r"\w*(Convolution|BatchNorm|GroupNorm|Pool\dD\w*|Upsample\w*)Backward\d*"),
    "matmul": re.compile(r"(Addmm|Mm|Bmm|Baddbmm|Addmv|Mv|Linear)Backward\d*"),
    "by feature": re.compile(r"(NativeLayerNorm|FusedRmsNorm|Embedding\w*)Backward\d*"),
    "view": re.compile(r"(View|UnsafeView|ReshapeAlias|AsStrided)Backward\d*"),
    "squeeze": re.compile(r"SqueezeBackward\d*"),
    "write": re.compile(r"torch::autograd::CopySlices"),  # an in-place operation on a view
    "leaf": re.compile(r"torch::autograd::AccumulateGrad"),
}
"""Names of autograd nodes, by how the operation treats the axes of its input."""


@cache
def _operation(name: str) -> str:
    return next((kind for kind, pattern in _OPERATIONS.items() if pattern.fullmatch(name)), "")


def _fed_by(output: Tensor) -> int | None:
    """The axis of the units, counted from the end, by the operation that *output* comes from through elementwise ones."""
    dims = output.dim()
    pending = [output.grad_fn] if output.grad_fn is not None else []
    for _ in range(_MOST_NODES):
        if not pending:
            return None
        node = pending.pop()
        operation = _operation(node.name())
        if operation == "by channel":
            return 1 - dims
        if operation in ("matmul", "by feature"):
            return _LAST
        before = _before(node)
        if operation == "elementwise":
            if (axis := _axis_of_factor(node, output)) is not None:
                return axis
            pending += reversed(before)
        elif operation == "squeeze" and any(_operation(each.name()) == "by channel" for each in before):
            return -dims  # a convolution of a single sample
        elif operation == "view":  # of a linear layer on more than two dimensions; any other view may have mixed axes
            written = [each for view in before if _operation(view.name()) == "write" for each in _before(view)]
            if any(_operation(each.name()) == "matmul" for each in (*before, *written)):
                return _LAST
    return None


def _axis_of_factor(node: Node, output: Tensor) -> int | None:
    """The axis, counted from the end, of a vector of parameters that the elementwise *node* takes, as a norm's scale or a bias."""
    for each, _ in node.next_functions:
        if each is not None and _operation(each.name()) == "leaf":
            shape = each.variable.shape  # type: ignore[attr-defined]  # the stubs do not know it
            axes = [axis - len(shape) for axis, size in enumerate(shape) if size > 1]
            if len(axes) == 1 and len(shape) <= output.dim() and shape[axes[0]] == output.shape[axes[0]]:
                return axes[0]
    return None


def _before(node: Node) -> list[Node]:
    return [each for each, _ in node.next_functions if each is not None and _operation(each.name()) != "leaf"]


_learnt_last: list[ref[Inventory]] = []  # the last one that was learnt from


def learn(inventory: Inventory) -> None:
    """Remember, for the modules of a model that take any shape, where their units are, as far as the model's structure shows it."""
    if _learnt_last and _learnt_last[0]() is inventory:
        return
    _learnt_last[:] = [ref(inventory)]
    for held, axis in inventory.remembered("units", lambda: _by_module(inventory)):
        if (module := held()) is not None:  # which another model may have in another place
            _learnt[module] = axis


def _by_module(inventory: Inventory) -> list[tuple[ref[nn.Module], int]]:
    found: dict[nn.Module, int] = {}
    _learn(inventory.members[0].module, (), set(), found, {})
    return [(ref(module), axis) for module, axis in found.items()]


def _learn(
    module: nn.Module,
    above: tuple[nn.Module, ...],
    seen: set[nn.Module],
    found: dict[nn.Module, int],
    common: dict[nn.Module, int | None],
) -> None:
    """Add to *found* what the structure shows of *module* and what is in it; *common* remembers the axis of all that is in one."""
    seen.add(module)
    children = [child for child in module.children() if child not in seen]
    path = (*above, module)
    behind: list[int | None] = [None]  # the axis of the nearest one behind, of which it is known; from the last one to the first
    for child in reversed(children):
        axis = _axis_known(child)
        behind.append(behind[-1] if axis is None else axis)
    near: int | None = None  # the axis of the nearest one before, of which it is known
    for place, child in enumerate(children):
        _learn(child, path, seen, found, common)
        if _own_axis(child) is None:
            beside = near if near is not None else behind[len(children) - 1 - place]
            before = _axis_known(children[place - 1]) if place and isinstance(module, nn.Sequential) else None
            if (axis := _by_structure(child, path, before, beside, common)) is not None:
                found[child] = _learnt[child] = axis
        axis = _axis_known(child)
        near = near if axis is None else axis
    if not above and _own_axis(module) is None and (axis := _common(module, common)) is not None:
        found[module] = _learnt[module] = axis


def _by_structure(
    child: nn.Module, path: tuple[nn.Module, ...], before: int | None, beside: int | None, common: dict[nn.Module, int | None]
) -> int | None:
    inside = _common(child, common)
    if inside is not None:
        return inside
    if before is not None:
        return before
    for parent in reversed(path):
        of_all = _common(parent, common)
        if of_all is not None:
            return of_all
        if parent is path[-1] and beside is not None:
            return beside
    return None


def _axis_known(module: nn.Module) -> int | None:
    own = _LAST if isinstance(module, nn.Flatten) else _own_axis(module)
    return own if own is not None else _learnt.get(module)


def _common(module: nn.Module, common: dict[nn.Module, int | None]) -> int | None:
    """The one axis that all modules of known kind in *module* have; axis 1 agrees with that of a convolution."""
    if module not in common:
        known = {axis for axis in map(_own_axis, module.modules()) if axis is not None}
        if len(known) > 1 and _LAST not in known:
            known.discard(_SECOND)
        common[module] = known.pop() if len(known) == 1 else None
    return common[module]


def unit_axis(module: nn.Module) -> int:
    """The axis of the units in the outputs of *module*, from the end or 1, as far as it is known before a call.

    For statistics whose axis is fixed when they are attached, as those inside compiled code are; after :func:`learn`.
    """
    fed = _fed.get(module)
    axis = fed[max(fed)] if fed else _axis_known(module)
    return _SECOND if axis is None else axis
