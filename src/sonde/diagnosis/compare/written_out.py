"""Write attention that holds its projections as one parameter out as the modules that others make of it: places of their own."""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.overrides import TorchFunctionMode

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


class _Linear(nn.Linear):
    """A projection of attention by hand, whose own operation is not taken for one that :class:`_Calling` looks for."""

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.ops.aten.linear(x, self.weight, self.bias)
        return made


_Linear.__name__ = "Linear"


class _Calling(TorchFunctionMode):
    """While entered, ``functional.linear`` with the parameters of projections of *owner* calls these: one, or neighbours."""

    def __init__(self, owner: nn.Module) -> None:
        super().__init__()
        layers = [getattr(owner, name) for name in _NAMES]
        weight, bias = (_joined(owner, last) for last in ("weight", "bias"))
        self.held = {"weight": weight, "bias": bias}
        self._calls = {
            self._key(out.weight, out.bias): [out] for out in (getattr(owner, "out_proj", None),) if type(out) is _Linear
        }
        for first, behind in itertools.combinations(range(4), 2):
            rows = slice(first * len(weight) // 3, behind * len(weight) // 3)
            self._calls[self._key(weight[rows], None if bias is None else bias[rows])] = layers[first:behind]

    @staticmethod
    def _key(weight: Tensor, bias: Tensor | None) -> tuple[Any, ...]:
        return weight.data_ptr(), weight.shape, weight.stride(), None if bias is None else bias.data_ptr()

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is functional.linear:
            given = dict(zip(("input", "weight", "bias"), args, strict=False)) | (kwargs or {})
            if layers := self._calls.get(self._key(given["weight"], given.get("bias"))):
                made = [layer(given["input"]) for layer in layers]
                return made[0] if len(made) == 1 else torch.cat(made, -1)
        return func(*args, **(kwargs or {}))


def _joined(owner: Any, last: str) -> Any:
    """Return the weights, or the biases, of the projections of *owner* as the one parameter that they were."""
    running = vars(owner).get("_running")
    held = [getattr(getattr(owner, name), last) for name in _NAMES]
    return running.held[last] if running is not None else None if held[0] is None else torch.cat(held)


@functools.cache
def _by_hand(kind: Any) -> Any:
    """Return a class of attention by hand that calls its projections, which *kind* holds as one parameter, as modules."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # which does not follow such a mode
            return kind.forward(self, *args, **kwargs)
        with _Calling(self) as self.__dict__["_running"]:
            try:
                return kind.forward(self, *args, **kwargs)
            finally:
                self.__dict__.pop("_running", None)

    read = {f"in_proj_{last}": property(functools.partial(_joined, last=last)) for last in ("weight", "bias")}
    return type(kind.__name__, (kind,), {**read, "forward": forward, "__module__": kind.__module__})


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attention in *model* that does not call its projections, by name.

    That is torch's own, no subclass, and nothing with a forward of somebody's own; and what holds a parameter ``in_proj_weight``.
    """
    return {item.name: item.module for item in members(model) if "forward" not in vars(item.module) and _is_joined(item.module)}


def _is_joined(module: nn.Module) -> bool:
    weight = parameters_of(module).get("in_proj_weight")
    is_by_hand = weight is not None and weight.dim() == 2 and len(weight) % 3 == 0 and not hasattr(module, _NAMES[0])
    return type(module) is nn.MultiheadAttention or (is_by_hand and not isinstance(module, nn.MultiheadAttention))


def write_out(model: nn.Module) -> nn.Module:
    """Write the attention in *model*, a copy, out in place. Its parameters are views of those that it had. Return *model*."""
    for module in attentions(model).values():
        held, is_of_torch = parameters_of(module), type(module) is nn.MultiheadAttention
        weight, bias = held["in_proj_weight"], held.get("in_proj_bias")
        weights = [held[f"{name}_weight"] for name in _NAMES] if weight is None else list(weight.chunk(3))
        biases = [None] * 3 if bias is None else list(bias.chunk(3))
        for name, matrix, addend in zip(_NAMES, weights, biases, strict=True):
            assert matrix is not None
            layer = (nn.Linear if is_of_torch else _Linear)(matrix.size(1), len(matrix), bias=addend is not None, device="meta")
            layer.weight = nn.Parameter(matrix.detach(), matrix.requires_grad)
            if addend is not None:
                layer.bias = nn.Parameter(addend.detach(), addend.requires_grad)
            setattr(module, name, layer.train(module.training))
        for name in ("in_proj_weight", "in_proj_bias", *(f"{name}_weight" for name in _NAMES)):
            if is_of_torch:
                setattr(module, name, None)
            elif name in held:
                delattr(module, name)
        last: Any = getattr(module, "out_proj", None)
        if isinstance(module, nn.MultiheadAttention):
            module._qkv_same_embed_dim = False  # so that no faster path of a layer around it reads them
            module.__class__ = MultiheadAttention
        else:
            kind: Any = type(module)
            module.__class__ = _by_hand(kind)
        if type(last) in (nn.Linear, NonDynamicallyQuantizableLinear):
            last.__class__ = nn.Linear if is_of_torch else _Linear  # its class says that it is not quantised
    return model


def as_written_out(model: nn.Module) -> nn.Module:
    """Return *model* with its attention written out: other modules, with the tensors of *model* or views of them."""
    with Trial.of(model, (), {}) as trial:
        for copied, own in zip(members(trial.model), members(model), strict=True):
            for name, held in (parameters_of(own.module) | buffers_of(own.module)).items():
                setattr(copied.module, name, held)
        return write_out(trial.model)
