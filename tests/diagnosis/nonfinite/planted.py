"""Faults with known truth, planted in architectures written by hand: layer, phase, operation, line and cause.

The line of each fault ends with the comment ``# fault``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Planted:
    """A fault and its truth."""

    name: str
    operation: str
    cause: str
    function: Callable[[Tensor], Tensor]
    phase: str = "forward"
    kind: str = "NaN"
    dtype: torch.dtype = torch.float32


FAULTS: dict[str, Planted] = {}


def fault(operation: str, cause: str, phase: str = "forward", kind: str = "NaN", dtype: torch.dtype = torch.float32) -> Any:
    def listed(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        name = function.__name__
        FAULTS[name] = Planted(name, operation, cause, function, phase, kind, dtype)
        return function

    return listed


# Forward


@fault("softmax", "softmax of a row of -inf")
def masked_row(x: Tensor) -> Tensor:
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask[0] = True
    scores = x.masked_fill(mask, -math.inf)
    return functional.softmax(scores, dim=-1)  # fault


@fault("softmax", "softmax of a row of -inf")
def additive_mask(x: Tensor) -> Tensor:
    mask = torch.full((x.shape[-1],), -math.inf)
    return (x + mask).softmax(-1)  # fault


@fault("log_softmax", "softmax of a row of -inf")
def masked_log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(torch.where(x > -1e9, -math.inf, x), dim=-1)  # fault


@fault("log", "log of zero", kind="inf")
def log_of_zero(x: Tensor) -> Tensor:
    return torch.relu(-x.abs()) * torch.log(torch.relu(x))  # fault


@fault("log", "log of a negative")
def log_of_a_negative(x: Tensor) -> Tensor:
    y = x - x.mean()
    return y.log()  # fault


@fault("log1p", "log of a negative")
def log1p_below_its_border(x: Tensor) -> Tensor:
    return torch.log1p(-2 - x.abs())  # fault


@fault("sqrt", "sqrt of a negative")
def variance_by_hand(x: Tensor) -> Tensor:
    y = x.detach() * 0 + 4097.3
    variance = (y * y).mean() - y.mean() ** 2 - 1e-3
    return x * torch.sqrt(variance)  # fault


@fault("rsqrt", "division by zero", kind="inf")
def norm_without_eps(x: Tensor) -> Tensor:
    y = x * 0
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True))  # fault


@fault("truediv", "0 / 0")
def zero_by_zero(x: Tensor) -> Tensor:
    weights = torch.relu(-x.abs())
    return weights / weights.sum(-1, keepdim=True)  # fault


@fault("truediv", "division by a std of zero")
def std_of_equal_numbers(x: Tensor) -> Tensor:
    y = x * 0 + 0.5
    return (y - y.mean()) / y.std()  # fault


@fault("div", "division by zero", kind="inf")
def division_by_zero(x: Tensor) -> Tensor:
    return torch.div(x.abs() + 1, torch.relu(-x.abs()))  # fault


@fault("reciprocal", "division by zero", kind="inf")
def reciprocal_of_zero(x: Tensor) -> Tensor:
    return torch.reciprocal(x - x)  # fault


@fault("exp", "exp overflow", kind="inf")
def exponential(x: Tensor) -> Tensor:
    return torch.exp(x.abs() + 100)  # fault


@fault("exp", "exp overflow", kind="inf")
def log_sum_exp_by_hand(x: Tensor) -> Tensor:
    return (x + 100 * x.abs().sign()).exp().sum(-1, keepdim=True).log().expand_as(x)  # fault


@fault("sub", "inf - inf")
def infinity_minus_infinity(x: Tensor) -> Tensor:
    y = x.masked_fill(x > -1e9, -math.inf)
    return y - y  # fault


@fault("mul", "0 x inf")
def zero_times_infinity(x: Tensor) -> Tensor:
    mask = torch.tensor([0.0, -math.inf]).repeat(x.shape[-1] // 2)
    return mask * torch.relu(-x.abs())  # fault


@fault("pow", "pow of zero", kind="inf")
def negative_power_of_zero(x: Tensor) -> Tensor:
    return torch.relu(-x.abs()) ** -0.5  # fault


@fault("pow", "pow of a negative")
def root_of_a_negative(x: Tensor) -> Tensor:
    return torch.pow(-x.abs() - 1, 0.5)  # fault


@fault("acos", "acos out of range")
def arc_cosine(x: Tensor) -> Tensor:
    return torch.acos(x.sign() * 1.0000002)  # fault


@fault("atanh", "atanh at its border", kind="inf")
def area_tangent(x: Tensor) -> Tensor:
    return torch.atanh(x.sign())  # fault


@fault("std", "std of one value")
def std_of_one_value(x: Tensor) -> Tensor:
    return x * x[:1].std(dim=0)  # fault


@fault("mean", "mean of nothing")
def mean_of_nothing(x: Tensor) -> Tensor:
    return x * x[x > 1e9].mean()  # fault


@fault("matmul", "overflow of float16", kind="inf", dtype=torch.float16)
def half_precision_scores(x: Tensor) -> Tensor:
    q = x.sign() * 200
    return (q @ q.transpose(-1, -2)).sum() * x  # fault


@fault("half", "overflow of float16", kind="inf")
def cast_to_half(x: Tensor) -> Tensor:
    y = (x.sign() * 70000).half()  # fault
    return y.float()


@fault("mul", "overflow of float16", kind="inf", dtype=torch.float16)
def half_precision_product(x: Tensor) -> Tensor:
    return (x.sign() * 300) * (x.sign() * 300)  # fault


@fault("mul", "overflow of float32", kind="inf")
def product_of_large_numbers(x: Tensor) -> Tensor:
    return (x.sign() * 1e20) * (x.sign() * 1e20)  # fault


@fault("sum", "overflow of float16", kind="inf", dtype=torch.float16)
def sum_in_half_precision(x: Tensor) -> Tensor:
    return x * (x.sign().abs() * 30000).sum(-1, keepdim=True)  # fault


@fault("mul_", "overflow of float32", kind="inf")
def in_place_product(x: Tensor) -> Tensor:
    y = x.sign() * 1e30
    y *= 1e30  # fault
    return y + x


@fault("remainder", "remainder by zero")
def remainder_by_zero(x: Tensor) -> Tensor:
    return torch.remainder(x, x - x)  # fault


@fault("logit", "logit at its border", kind="inf")
def logit_of_one(x: Tensor) -> Tensor:
    return torch.logit(x.sign().abs())  # fault


@fault("layer_norm", "normalisation of equal numbers")
def layer_norm_without_eps(x: Tensor) -> Tensor:
    return functional.layer_norm(torch.ones_like(x) * x.mean().detach(), x.shape[-1:], eps=0.0)  # fault


# Backward


@fault("sqrt", "sqrt'(0)", "backward", "inf")
def distance_to_itself(x: Tensor) -> Tensor:
    y = x - x.detach()
    return x + y.square().sum(-1, keepdim=True).sqrt()  # fault


@fault("sqrt", "sqrt'(0) behind where", "backward")
def root_behind_where(x: Tensor) -> Tensor:
    y = x - x.detach()
    root = torch.sqrt(y)  # fault
    return x + torch.where(y > 0, root, 0.0)


@fault("log", "log'(0) behind where", "backward")
def log_behind_where(x: Tensor) -> Tensor:
    y = x - x.detach()
    logs = y.log()  # fault
    return x + torch.where(y > 0, logs, 0.0)


@fault("truediv", "(1/x)'(0)", "backward", "inf")
def quotient_behind_where(x: Tensor) -> Tensor:
    y = x - x.detach()
    quotient = (x.detach() + 9) / y  # fault
    return x + torch.where(y > 0, quotient, 0.0)


@fault("pow", "pow'(0)", "backward", "inf")
def power_below_one(x: Tensor) -> Tensor:
    y = x - x.detach()
    return x + y.abs().pow(0.5)  # fault


@fault("acos", "acos'(±1)", "backward", "inf")
def angle_to_itself(x: Tensor) -> Tensor:
    cosine = x - x.detach() + 1
    return x + torch.acos(cosine)  # fault


@fault("asin", "asin'(±1)", "backward", "inf")
def arc_sine_at_its_border(x: Tensor) -> Tensor:
    return x + torch.asin(x - x.detach() - 1)  # fault


@fault("float", "overflow of float16", "backward", "inf")
def gradient_in_half_precision(x: Tensor) -> Tensor:
    y = x.half()
    wide = y.float()  # fault
    return x + (wide - wide.detach()) * 1e12  # the gradient alone is large, so that no normalisation behind it divides it


class Loud(torch.autograd.Function):
    """An identity whose gradient divides by zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return (gradient.abs() + 1) / (gradient - gradient)  # fault


@fault("Loud", "division by zero", "backward", "inf")
def function_of_ones_own(x: Tensor) -> Tensor:
    made: Tensor = Loud.apply(x)
    return made


# Architectures


class Extra(nn.Module):
    """The module that holds the fault."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(x.shape[-1])
        causal = torch.triu(torch.full(scores.shape[-2:], -math.inf, dtype=x.dtype), 1)
        made: Tensor = self.out((scores + causal).softmax(-1) @ v)
        return made


class Block(nn.Module):
    def __init__(self, width: int, extra: nn.Module | None) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        x = x + self.mlp(x)
        return x if self.extra is None else self.extra(x)


class GPT(nn.Module):
    """Causal, with the fault in its second block; optionally each block is checkpointed."""

    site = "blocks.1.extra"

    def __init__(self, extra: nn.Module, checkpointed: bool | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(Block(8, extra if place == 1 else None) for place in range(2))
        self.head = nn.Linear(8, 11)
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x) if self.checkpointed is None else checkpoint(block, x, use_reentrant=self.checkpointed)
        made: Tensor = self.head(x)
        return made

    @staticmethod
    def batch() -> Tensor:
        return torch.arange(12).reshape(2, 6) % 11


class CNN(nn.Module):
    """Convolutions with batch normalisation, with the fault between two of them."""

    site = "features.3"

    def __init__(self, extra: nn.Module) -> None:
        super().__init__()
        first = (nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.features = nn.Sequential(*first, extra, nn.Conv2d(4, 4, 3, stride=2), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.features(x + 0.1).mean((-1, -2)))
        return made

    @staticmethod
    def batch() -> Tensor:
        return torch.rand(4, 1, 8, 8)


class VAE(nn.Module):
    """An autoencoder with noise, with the fault in its decoder."""

    site = "decoder.extra"

    def __init__(self, extra: nn.Module) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 8)
        self.decoder = nn.ModuleDict({"up": nn.Linear(4, 6), "extra": extra, "out": nn.Linear(6, 6)})

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        made: Tensor = self.decoder["out"](self.decoder["extra"](self.decoder["up"](z)))
        return made

    @staticmethod
    def batch() -> Tensor:
        return torch.rand(3, 6)


class RNN(nn.Module):
    """A recurrent network whose cell is called at each position, with the fault behind the cell."""

    site = "extra"

    def __init__(self, extra: nn.Module) -> None:
        super().__init__()
        self.cell, self.extra, self.head = nn.GRUCell(4, 6), extra, nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 6, dtype=x.dtype)
        for at in range(x.shape[1]):
            state = self.cell(x[:, at], state)
        made: Tensor = self.head(self.extra(state))
        return made

    @staticmethod
    def batch() -> Tensor:
        return torch.rand(3, 5, 4)


HOSTS: dict[str, Any] = {
    "gpt": GPT,
    "gpt checkpointed": functools.partial(GPT, checkpointed=False),
    "gpt checkpointed, reentrant": functools.partial(GPT, checkpointed=True),
    "cnn": CNN,
    "vae": VAE,
    "rnn": RNN,
}


def loss_of(output: Tensor) -> Tensor:
    return output.float().square().mean()
