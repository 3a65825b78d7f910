"""What a forward or a backward pass does beside its layers: modules left out by chance, axes by a view, gradients made small."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde

Y = torch.arange(16) % 3


def classify(made: Tensor) -> Tensor:
    return functional.cross_entropy(made, Y)


def rules_of(model: nn.Module, x: Any, check: str) -> list[tuple[str, str]]:
    torch.manual_seed(0)
    random.seed(0)
    found = sonde.preflight(model, x, classify, checks=[check], verbose=False)[check].findings
    return [(each.rule, each.severity) for each in found]


class Deep(nn.Module):
    """Residual layers, of which *chosen* says which run."""

    def __init__(self, chosen: Callable[[nn.Module, int], list[int]]) -> None:
        super().__init__()
        self.first, self.layers, self.head = nn.Linear(6, 16), nn.ModuleList(nn.Linear(16, 16) for _ in range(4)), nn.Linear(16, 3)
        self.chosen = chosen

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for at in self.chosen(self, 4):
            x = x + self.layers[at](x).relu()
        return self.head(x)


def one_left_out(_: nn.Module, count: int) -> list[int]:
    left_out = random.randrange(count)
    return [at for at in range(count) if at != left_out]


def by_chance(_: nn.Module, count: int) -> list[int]:
    return [at for at in range(count) if float(torch.rand(())) < 0.7]


@pytest.mark.parametrize("chosen", [one_left_out, by_chance])
def test_modules_that_evaluation_leaves_out_by_chance_are_told(chosen: Callable[[nn.Module, int], list[int]]) -> None:
    x = torch.randn(16, 6)
    assert rules_of(Deep(chosen), x, "mode") == [("dropped", "warn")]
    assert rules_of(Deep(lambda model, count: chosen(model, count) if model.training else list(range(count))), x, "mode") == []


def test_noise_in_evaluation_and_modules_that_take_turns_leave_none_out() -> None:
    turns: list[int] = []

    def in_turn(_: nn.Module, count: int) -> list[int]:
        turns.append(len(turns))
        return [turns[-1] % count]

    def all_with_noise(_: nn.Module, count: int) -> list[int]:
        torch.rand(())
        return list(range(count))

    assert rules_of(Deep(all_with_noise), torch.randn(16, 6), "mode") == []
    assert rules_of(Deep(in_turn), torch.randn(16, 6), "mode") == []


def test_layers_that_a_training_leaves_out_by_chance_are_not_said_to_be_unused() -> None:
    torch.manual_seed(0)
    model = Deep(lambda _, count: [at for at in range(count) if float(torch.rand(())) < 0.5])
    assert rules_of(model, torch.randn(16, 6), "gradients") == []
    assert rules_of(Deep(lambda _, count: [0]), torch.randn(16, 6), "gradients") == [("unreached", "warn")]


def images() -> Tensor:
    up, along = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    draw = torch.Generator().manual_seed(0)
    waves = [torch.rand(16, 1, 1, 3, generator=draw) for _ in range(3)]
    return (0.3 * (up[..., None] * waves[0] + along[..., None] * waves[1]) + 6 * waves[2]).sin()


class OfImages(nn.Module):
    """A convolution over images that are given channels last, or in a row."""

    def __init__(self, turn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.turn, self.conv, self.head = turn, nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(self.turn(x)).relu().mean((2, 3)))


def test_images_whose_axes_the_model_exchanges_by_a_view_are_told() -> None:
    x = images()
    wrong, right = OfImages(lambda x: x.reshape(-1, 3, 24, 24)), OfImages(lambda x: x.permute(0, 3, 1, 2))
    assert rules_of(wrong, x, "input_used") == [("samples_mixed", "warn")]
    assert rules_of(right, x, "input_used") == []
    assert rules_of(OfImages(lambda x: x.reshape(-1, 3, 24, 24)), x.flatten(1), "input_used") == [("samples_mixed", "warn")]
    assert rules_of(OfImages(lambda x: x.reshape(-1, 24, 24, 3).movedim(-1, 1)), x.flatten(1), "input_used") == []


class Scaled(torch.autograd.Function):
    """A factor that gradients alone are multiplied with."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.factor * gradient, None


class Hooked(nn.Module):
    """Two layers, between which gradients, or outputs as well, are made smaller."""

    def __init__(self, factor: float, how: str) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32)), nn.Linear(32, 3)
        self.factor, self.how = factor, how

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).tanh()
        if self.how == "hook" and x.requires_grad:
            x.register_hook(lambda gradient: self.factor * gradient)
        elif self.how == "function":
            x = Scaled.apply(x, self.factor)
        elif self.how == "outputs":
            x = self.factor * x
        return self.head(x)


@pytest.mark.parametrize(("how", "told"), [("hook", True), ("function", True), ("outputs", False)])
def test_gradients_that_are_made_small_on_their_way_are_told(how: str, told: bool) -> None:
    assert rules_of(Hooked(1e-6, how), torch.randn(16, 6), "gradients") == [("gradient_scaled", "warn")] * told
    assert rules_of(Hooked(0.1, how), torch.randn(16, 6), "gradients") == []


def test_rounded_weights_whose_gradients_pass_as_they_are_are_no_fault() -> None:
    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 32, bias=False), nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            weight = self.first.weight
            coarse = weight + ((weight * 4).round() / 4 - weight).detach()
            return self.last(1e-4 * functional.linear(x, coarse).relu())

    assert rules_of(Rounded(), torch.randn(16, 6), "gradients") == []


class Block(nn.Module):
    """A feed-forward of a transformer, with *between* in front of its second layer."""

    def __init__(self, between: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.into, self.norm, self.first, self.last = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.between, self.head = between(), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for _ in range(2):
            x = x + self.last(self.between(self.first(self.norm(x))))
        return self.head(x.mean(1))


def test_layers_with_a_normalisation_alone_between_them_are_told() -> None:
    layers: list[nn.Module] = [nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.LayerNorm(16)]
    x, tokens = torch.randn(16, 6), torch.randn(16, 5, 6)
    assert rules_of(nn.Sequential(*layers, nn.Linear(16, 3)), x, "depth") == [("all_linear", "warn")]
    assert rules_of(nn.Sequential(*layers, nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)), x, "depth") == [("all_linear", "note")]
    assert rules_of(Block(lambda: nn.LayerNorm(32)), tokens, "depth") == [("all_linear", "warn")]
    assert rules_of(Block(lambda: nn.Sequential(nn.LayerNorm(32), nn.GELU())), tokens, "depth") == []
    assert rules_of(nn.Sequential(*layers[:2], nn.ReLU(), *layers[2:], nn.ReLU(), nn.Linear(16, 3)), x, "depth") == []


class Coarse(nn.Module):
    """Layers whose outputs are rounded to a few levels of a scale that the batch sets, which *kept* keeps a gradient of or not."""

    def __init__(self, kept: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.kept = nn.Linear(6, 32), nn.Linear(32, 3), kept

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        scale = self.kept(hidden.abs().amax()) / 3
        return self.last(hidden + ((hidden / scale).round() * scale - hidden).detach())


def test_a_coarse_scale_that_a_batch_sets_is_a_note_and_a_mean_of_samples_none() -> None:
    x = torch.randn(16, 6) * torch.linspace(0.5, 3, 16)[:, None]
    assert rules_of(Coarse(Tensor.detach), x, "samples_apart") == [("samples_mixed", "note")]

    class Mixed(Coarse):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x).relu()
            return self.last(hidden - hidden.mean(0, keepdim=True))

    assert rules_of(Mixed(Tensor.detach), x, "samples_apart") == [("samples_mixed", "bad")]
