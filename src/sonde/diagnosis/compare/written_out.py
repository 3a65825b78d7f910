"""Write torch's attention, which holds its projections as one parameter, out as the modules that others make of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from sonde.engine import Trial, buffers_of, members, parameters_of

_NAMES = ("q_proj", "k_proj", "v_proj")


class MultiheadAttention(nn.MultiheadAttention):
    """What ``torch.nn.MultiheadAttention`` computes, with a linear layer for each of queries, keys and values, and for the result.

    Torch's own forward runs between them, with projections that change nothing.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        between = nn.MultiheadAttention.__new__(nn.MultiheadAttention)
        nn.Module.__init__(between)
        settings = ("embed_dim", "num_heads", "head_dim", "dropout", "batch_first", "bias_k", "bias_v", "add_zero_attn", "training")
        for name in settings:
            setattr(between, name, getattr(self, name))
        projected = [getattr(self, name)(given) for name, given in zip(_NAMES, (query, key, value), strict=True)]
        same = torch.eye(self.embed_dim, dtype=projected[0].dtype, device=projected[0].device)
        between._qkv_same_embed_dim, between.in_proj_bias = True, None  # type: ignore[assignment]  # torch has none without biases
        between.in_proj_weight = same.repeat(3, 1)  # type: ignore[assignment]  # is read, and not learnt
        between.out_proj = SimpleNamespace(weight=same, bias=None)  # type: ignore[assignment]  # so
        result, weights = between(*projected, *args, **kwargs)
        return self.out_proj(result), weights


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """Return torch's own attention in *model*, no subclass, and nothing with a forward of somebody's own, by name."""
    return {
        item.name: item.module
        for item in members(model)
        if type(item.module) is nn.MultiheadAttention and "forward" not in vars(item.module)
    }


def count_joined(model: nn.Module) -> int:
    """Return how many modules in *model* hold projections as one parameter: torch's own attention, and some by hand."""
    return sum("in_proj_weight" in parameters_of(item.module) for item in members(model))


def write_out(model: nn.Module) -> nn.Module:
    """Write the attention in *model*, a copy, out in place. Its parameters are views of those that it had. Return *model*."""
    for module in attentions(model).values():
        held = parameters_of(module)
        weight, bias = held["in_proj_weight"], held["in_proj_bias"]
        weights = [held[f"{name}_weight"] for name in _NAMES] if weight is None else list(weight.chunk(3))
        biases = [None] * 3 if bias is None else list(bias.chunk(3))
        for name, matrix, addend in zip(_NAMES, weights, biases, strict=True):
            assert matrix is not None
            layer = nn.Linear(matrix.size(1), len(matrix), bias=addend is not None, device="meta")
            layer.weight = nn.Parameter(matrix.detach(), matrix.requires_grad)
            if addend is not None:
                layer.bias = nn.Parameter(addend.detach(), addend.requires_grad)
            setattr(module, name, layer.train(module.training))
        for name in ("in_proj_weight", "in_proj_bias", *(f"{name}_weight" for name in _NAMES)):
            setattr(module, name, None)
        last: Any = module.out_proj
        module._qkv_same_embed_dim = False  # type: ignore[assignment]  # so that no faster path of a layer around it reads them
        module.__class__ = MultiheadAttention
        if type(last) is NonDynamicallyQuantizableLinear:
            last.__class__ = nn.Linear  # type: ignore[assignment]  # its class says that it is not quantised
    return model


def as_written_out(model: nn.Module) -> nn.Module:
    """Return *model* with its attention written out: other modules, with the tensors of *model* or views of them."""
    with Trial.of(model, (), {}) as trial:
        for copied, own in zip(members(trial.model), members(model), strict=True):
            for name, held in (parameters_of(own.module) | buffers_of(own.module)).items():
                setattr(copied.module, name, held)
        return write_out(trial.model)
