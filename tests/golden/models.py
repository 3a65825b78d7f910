"""Ten small models whose answers are kept: from the zoo where it has one, with weights and inputs that sum without rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sonde.testing import ZOO
from sonde.testing.zoo import Batch, Net, mean_square


@dataclass(frozen=True)
class Case:
    """One model.

    Attributes:
        name: also the folder of its files.
        make: builds the model; its weights are replaced by :func:`fill`.
        batch: makes the arguments of the call.
        parts_at: the layer whose last parameter the second model of a comparison has otherwise.
        planted: by question, words that its answer must hold: what was planted in the model.
        loss: from the output to a scalar.
        prepare: plants the defect in the filled model.
        runs: whether all questions about its runs are asked, which takes a second or two, or the two that are cheap.
    """

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    parts_at: str
    planted: Mapping[str, str] = field(default_factory=dict)
    loss: Callable[[Any], Tensor] = mean_square
    prepare: Callable[[Any], object] = lambda model: None
    runs: bool = False

    def build(self) -> nn.Module:
        """Return the model, the same each time, without dropout."""
        model = self.make()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        with torch.no_grad():
            for position, parameter in enumerate(model.parameters()):
                parameter.copy_(fill(tuple(parameter.shape), position))
            self.prepare(model)
        return model

    def twin(self) -> nn.Module:
        """Return the model with another bias, or weight, in the layer :attr:`parts_at`."""
        model = self.build()
        *_, last = model.get_submodule(self.parts_at).parameters()
        with torch.no_grad():
            last.add_(fill(tuple(last.shape), 5))
        return model


def fill(shape: tuple[int, ...], start: int = 0) -> Tensor:
    """Return sixteenths from -8/16 to 8/16 in an order without symmetry; sums of their products have few bits."""
    count = torch.Size(shape).numel()
    return ((((torch.arange(count) + 3 * start) * 5) % 17 - 8) / 16).reshape(shape)


def _rows(*shape: int) -> Callable[[], Batch]:
    return lambda: ((fill(shape, 2) * 2,), {})


def _ids(*shape: int) -> Callable[[], Batch]:
    return lambda: (((torch.arange(torch.Size(shape).numel()) * 3 % 7).reshape(shape),), {})


def block(net: Any, x: Tensor) -> Tensor:
    """Compute one block of a GPT."""
    h = net.norm_1(x)
    x = x + net.attention(h, h, h, need_weights=False)[0]
    return x + net.down(torch.relu(net.up(net.norm_2(x))))  # type: ignore[no-any-return]


def gpt(net: Any, ids: Tensor) -> Tensor:
    """Compute logits of each position."""
    x = net.embed(ids)
    for each in net.blocks:
        x = each(x)
    return net.head(net.norm(x))  # type: ignore[no-any-return]


def _block() -> nn.Module:
    return Net(
        block,
        norm_1=nn.LayerNorm(8),
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
        norm_2=nn.LayerNorm(8),
        up=nn.Linear(8, 16),
        down=nn.Linear(16, 8),
    )


def _gpt() -> nn.Module:
    blocks = nn.ModuleList([_block(), _block()])
    return Net(gpt, embed=nn.Embedding(7, 8), blocks=blocks, norm=nn.LayerNorm(8), head=nn.Linear(8, 7, bias=False))


def _loss_of_first(output: Any) -> Tensor:
    return output[0].square().mean()  # type: ignore[no-any-return]


def takes_logarithm(net: Any, x: Tensor) -> Tensor:
    """Take the logarithm of values of which some are negative."""
    return net.b(torch.log(net.a(x)))  # type: ignore[no-any-return]


def takes_root(net: Any, x: Tensor) -> Tensor:
    """Take the root of squares of which some are zero: the derivative of the root is infinite, that of the square zero."""
    return net.b(torch.sqrt(net.a(x) ** 2))  # type: ignore[no-any-return]


def _two(forward: Callable[..., Any]) -> Callable[[], nn.Module]:
    return lambda: Net(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 2))


def _cnn() -> nn.Module:
    model: Any = ZOO["conv_batchnorm"].build()
    model[0].register_parameter("bias", None)  # before batch statistics its gradient is what rounding leaves of zero
    return model  # type: ignore[no-any-return]


def _deep() -> nn.Module:
    return nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(6)))


def _grow(model: Any) -> None:
    for parameter in model.parameters():
        parameter.mul_(16.0)


def _vanish(model: Any) -> None:
    model.a.weight[0] = 0.0
    model.a.bias[0] = 0.0


def _kill(model: Any) -> None:
    model[0].bias.fill_(-64.0)


CASES = (
    Case("mlp", ZOO["mlp"].build, _rows(3, 4), "2", runs=True),
    Case("cnn", _cnn, _rows(4, 3, 8, 8), "6"),
    Case("gpt", _gpt, _ids(2, 3), "blocks.1.up", runs=True),
    Case("lstm", ZOO["lstm"].build, _rows(6, 3, 4), "", loss=_loss_of_first),
    Case("shared", ZOO["shared_parents"].build, _rows(3, 4), "x.1"),
    Case("tied", ZOO["tied_weights"].build, _ids(2, 3), "body"),
    Case("nan_forward", _two(takes_logarithm), _rows(3, 4), "a", {"why_nan": "log", "check": "NaN"}),
    Case("nan_backward", _two(takes_root), _rows(3, 4), "a", {"why_nan": "sqrt", "check": "NaN"}, prepare=_vanish),
    Case("dead", ZOO["mlp"].build, _rows(3, 4), "2", {"check": "100 % dead", "show": "dead"}, prepare=_kill, runs=True),
    Case("exploding", _deep, _rows(3, 4), "3", {"check": "nonfinite", "watch": "inf"}, prepare=_grow, runs=True),
)
"""The models: what is ordinary first, what is ill last."""
