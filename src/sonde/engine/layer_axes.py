"""Which axis is which: the samples and neurons of a layer's output, and the neurons of its parameters."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

__all__ = ["as_matrix", "neurons_first", "samples_first"]

_FEATURES_LAST = (
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)


def samples_first(output: Tensor, module: nn.Module | None, channel_last: bool | None, batched: bool | None) -> Tensor:
    """A layer's output as ``(sample, channel, ...)``.

    Args:
        output: any output. One of less than two dimensions is a batch of scalars, if it is not the output of a ``Linear``.
        module: the layer, whose type may tell its axes: convolutions may be given a single sample ``(channel, ...)``, linear
            layers a single vector, and recurrent ones and attention have the sequence first unless ``batch_first``.
        channel_last: the channel is the last axis (True), the second (False), or as the layer's type says (None).
        batched: there is (True) or is not (False) a batch axis; None: as the layer's type says, and else there is.
    """
    if batched is False or (batched is None and _is_single(output, module)):
        output = output.unsqueeze(0)
    elif getattr(module, "batch_first", True) is False and output.dim() == 3:
        output = output.transpose(0, 1)
    if channel_last is None:
        channel_last = isinstance(module, _FEATURES_LAST)
    return output.movedim(-1, 1) if channel_last and output.dim() > 2 else output


def _is_single(output: Tensor, module: nn.Module | None) -> bool:
    if isinstance(module, _ConvNd):
        return output.dim() == len(module.kernel_size) + 1
    return isinstance(module, nn.Linear) and output.dim() == 1


def neurons_first(tensor: Tensor, owner: nn.Module | None) -> Tensor:
    """A parameter, or its gradient, with the neurons (output channels) of the layer on the first axis.

    That is how torch keeps nearly all parameters. The weight of a transposed convolution is kept as
    ``(in, out / groups, ...)`` and that of an embedding as ``(entry, feature)``: they are rearranged, if *owner*, the
    layer that has the parameter, is given.
    """
    if isinstance(owner, _ConvTransposeNd) and tensor.dim() > 1:
        inputs, outputs = tensor.shape[0] // owner.groups, tensor.shape[1]
        grouped = tensor.reshape(owner.groups, inputs, outputs, *tensor.shape[2:])
        return grouped.transpose(1, 2).reshape(owner.groups * outputs, inputs, *tensor.shape[2:])
    if isinstance(owner, nn.Embedding | nn.EmbeddingBag) and tensor.dim() == 2:
        return tensor.T
    return tensor


def as_matrix(tensor: Tensor, owner: nn.Module | None) -> Tensor:
    """A parameter as ``(neuron, everything else)``."""
    arranged = neurons_first(tensor, owner)
    return arranged.reshape(arranged.shape[0], math.prod(arranged.shape[1:]))
