"""What belongs together: layers, arguments and outputs of two models that are written otherwise, equal or with one difference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde


def seeded(kind: type[nn.Module], *args: object) -> nn.Module:
    torch.manual_seed(0)
    return kind(*args)


class Steps(nn.Module):
    """A network of layers, with an activation among them, and a head on another scale."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + 0.5 * self.net(x))


class Listed(nn.Module):
    """The same with a list of its layers, and the activation as a function."""

    def __init__(self, of: Steps, factor: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([of.net[0], of.net[2]])
        self.out, self.factor = of.last, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.factor * self.layers[1](torch.tanh(self.layers[0](x))))


def test_an_activation_is_no_counterpart_of_a_layer_that_stands_at_its_number() -> None:
    """The name of the second layer in the list is that of the activation in the network."""
    one = Steps()
    assert sonde.compare(one, Listed(one, 0.5), torch.randn(5, 6)).ok
    found = sonde.compare(one, Listed(one, 1.0), torch.randn(5, 6))
    assert found.culprit is not None
    assert found.cause is not None
    assert (str(found.culprit.site), found.cause.rule) == ("last:input", "residual")


class Mixer(nn.Module):
    """Mixes positions by a table that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 4))
        self.given, self.made = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.made(self.table @ self.given(x))


class Block(nn.Module):
    """A norm, a mixer, and a layer behind it, which change the order of positions in between."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(8), Mixer()
        self.wide, self.narrow = nn.Linear(8, 24), nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.norm(x).roll(-1, 1)).roll(1, 1)
        return x + self.narrow(self.wide(x).relu())


class InOne(nn.Module):
    """The same with all layers and the table in one module."""

    def __init__(self, of: Block, places: int) -> None:
        super().__init__()
        self.table, self.places = of.mixer.table, places
        self.n, self.i, self.o, self.up, self.down = of.norm, of.mixer.given, of.mixer.made, of.wide, of.narrow

    def forward(self, x: Tensor) -> Tensor:
        y = self.o(self.table @ self.i(self.n(x).roll(-self.places, 1)))
        x = x + y.roll(self.places, 1)
        return x + self.down(self.up(x).relu())


def test_a_module_is_no_counterpart_of_one_that_holds_a_block_around_it() -> None:
    """Both hold the same table as their own, and one of them the norm and the layers behind as well."""
    one = nn.Sequential(Block(), nn.Linear(8, 3))
    assert sonde.compare(one, nn.Sequential(InOne(one[0], 1), one[1]), torch.randn(2, 4, 8)).ok
    found = sonde.compare(one, nn.Sequential(InOne(one[0], 2), one[1]), torch.randn(2, 4, 8))
    assert found.culprit is not None
    assert str(found.culprit.site) == "0.mixer.given:input"
    assert "0.mixer" not in found.match


class Told(nn.Module):
    """Scales what it looks up itself, or leaves it to the code behind; then a layer, whose result it doubles or not."""

    def __init__(self, within: bool, factor: float = 1.0) -> None:
        super().__init__()
        self.words = Scaled(9, 8) if within else nn.Embedding(9, 8)
        self.layer, self.out = nn.Linear(8, 8), nn.Linear(8, 2)
        self.within, self.factor = within, factor

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) if self.within else 3.0 * self.words(ids)
        return self.out(self.layer(x) * self.factor)


class Scaled(nn.Embedding):
    """An embedding with a factor."""

    def forward(self, ids: Tensor) -> Tensor:
        return 3.0 * super().forward(ids)


@pytest.mark.parametrize("within", [True, False])
def test_a_factor_inside_of_a_layer_explains_nothing_behind_it(within: bool) -> None:
    """The sides meet where the next layer is given the tensor, whichever of them has the factor inside."""
    one, ids = seeded(Told, within), torch.arange(9).reshape(3, 3)
    assert sonde.compare(one, seeded(Told, not within), ids).ok
    found = sonde.compare(one, seeded(Told, not within, 2.0), ids)
    assert found.culprit is not None
    assert found.cause is not None
    assert (str(found.culprit.site), found.cause.rule) == ("out:input", "setting")
    part = seeded(Told, not within)
    part.words.weight.data[2] += 1.0  # a difference of the layer itself stays its own
    found = sonde.compare(one, part, ids)
    assert found.culprit is not None
    assert str(found.culprit.site) == "words:output"


class Masked(nn.Module):
    """Positions of a table that a mask counts, or that are given."""

    def __init__(self, off: int = 0) -> None:
        super().__init__()
        self.table, self.off = nn.Embedding(12, 4), off

    def forward(self, mask: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        return self.table(positions + 2 + self.off)


class Placed(nn.Module):
    """Gives its table a mask besides, or positions alone."""

    def __init__(self, with_mask: bool, off: int = 0) -> None:
        super().__init__()
        self.places, self.out, self.with_mask = Masked(off), nn.Linear(4, 3), with_mask

    def forward(self, mask: Tensor) -> Tensor:
        at = (mask.cumsum(1) * mask).long() - 1
        return self.out(self.places(mask, at) if self.with_mask else self.places(positions=at))


def test_of_arguments_those_of_equal_values_belong_together() -> None:
    """A mask that one side alone gives is not compared with positions."""
    mask = torch.ones(3, 6, dtype=torch.long)
    mask[0, :3] = mask[1, :1] = 0
    one = seeded(Placed, True)
    assert sonde.compare(one, seeded(Placed, False), mask).ok
    found = sonde.compare(one, seeded(Placed, False, -1), mask)
    assert found.culprit is not None
    assert str(found.culprit.site) == "places.table:input"
    assert found.cause is None or "cut off" not in found.cause.message


class Two(nn.Module):
    """Returns all positions and their mean, or the mean alone."""

    def __init__(self, both: bool, slope: float = 0.0) -> None:
        super().__init__()
        self.layer, self.both, self.slope = nn.Linear(5, 4), both, slope

    def forward(self, x: Tensor) -> object:
        x = self.layer(x)
        mean = functional.leaky_relu(x.mean(1), self.slope)
        return {"every": x, "mean": mean} if self.both else mean


def mean_of(output: object) -> Tensor:
    return (output["mean"] if isinstance(output, dict) else output).square().mean()  # type: ignore[union-attr,return-value]


def test_of_what_a_model_returns_the_tensor_of_its_shape_is_compared() -> None:
    one, x = seeded(Two, True), torch.randn(3, 6, 5)
    found = sonde.compare(one, seeded(Two, False), x, loss_fn=mean_of)
    assert found.ok, str(found)
    assert "(root):output" in {str(place.site) for place in found.places}
    found = sonde.compare(one, seeded(Two, False, 0.5), x, loss_fn=mean_of)
    assert found.culprit is not None
    assert found.culprit.relative < 1
    assert str(found.culprit.site) == "(root):output"


class Scores(nn.Module):
    """Weighs values by products of two projections, whose features may lie in another order, and be put back before they meet."""

    def __init__(self, order: list[int] | None = None, factor: float = 1.0, *, turns: bool = True) -> None:
        super().__init__()
        self.one, self.two, self.out, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.order, self.factor = list(range(6)) if order is None or not turns else order, factor
        for layer in () if order is None else (self.one, self.two):
            layer.weight.data, layer.bias.data = layer.weight.data[order], layer.bias.data[order]

    def forward(self, x: Tensor) -> Tensor:
        one, two = (layer(x)[..., torch.tensor(self.order).argsort()] for layer in (self.one, self.two))
        weights = (one @ two.mT * torch.arange(1.0, 6.0, device=x.device) + one.cumsum(-1)[..., :5]).softmax(-1)
        return self.last(self.out(weights @ x).tanh() * self.factor)


def test_rows_in_another_order_are_no_cause_of_what_differs_behind_what_makes_up_for_them() -> None:
    """The code of the other side takes the features back into order; where it does not, they are the cause."""
    order, x = [3, 4, 5, 0, 1, 2], torch.randn(2, 5, 6)
    assert sonde.compare(seeded(Scores), seeded(Scores, order), x).ok
    found = sonde.compare(seeded(Scores), seeded(Scores, order, 2.0), x)
    assert found.culprit is not None
    assert str(found.culprit.site) == "last:input"
    one = seeded(Scores)
    torch.manual_seed(0)
    found = sonde.compare(one, Scores(order, turns=False), x)
    assert found.culprit is not None
    assert found.cause is not None
    assert (str(found.culprit.site), found.cause.rule) == ("one:output", "weight_permuted")


class Lists(nn.Module):
    """Gated convolutions, in a list of values and one of gates."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.ModuleList(nn.Conv1d(4, 4, 3, padding=1) for _ in range(2))
        self.gates = nn.ModuleList(nn.Conv1d(4, 4, 3, padding=1) for _ in range(2))
        self.out = nn.Conv1d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        for value, gate in zip(self.values, self.gates, strict=True):
            x = x + value(x).tanh() * gate(x).sigmoid()
        return self.out(x)


class Fused(nn.Module):
    """The same with one convolution for both, in a module for each step, the second of which may be given other gaps."""

    def __init__(self, of: Lists, gap: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.ModuleDict({"both": nn.Conv1d(4, 8, 3, padding=at, dilation=at)}) for at in (1, gap))
        for step, value, gate in zip(self.steps, of.values, of.gates, strict=True):
            step["both"].weight.data = torch.cat((value.weight, gate.weight)).detach()
            step["both"].bias.data = torch.cat((value.bias, gate.bias)).detach()
        self.last = of.out

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            value, gate = step["both"](x).chunk(2, 1)
            x = x + value.tanh() * gate.sigmoid()
        return self.last(x)


def test_layers_of_two_lists_are_parts_of_one_that_holds_the_same_numbers() -> None:
    one, x = Lists(), torch.randn(2, 4, 9)
    assert sonde.compare(one, Fused(one, 1), x).ok
    found = sonde.compare(one, Fused(one, 2), x)
    assert found.culprit is not None
    assert str(found.culprit.site) == "values.1:output"
    assert {cause.message.partition(" is ")[0] for cause in found.causes} == {"dilation", "padding"}


class Gated(nn.Module):
    """A gate and a value of what one norm makes, which is called once, or once for each."""

    def __init__(self, *, is_twice: bool, factor: float = 1.0) -> None:
        super().__init__()
        self.norm, self.gate, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)
        self.is_twice, self.factor = is_twice, factor

    def forward(self, x: Tensor) -> Tensor:
        made = self.norm(x)
        again = self.norm(x) if self.is_twice else made
        return x + self.down(self.gate(made).sigmoid() * self.up(self.factor * again + (1 - self.factor) * again.detach()))


@pytest.mark.parametrize("is_twice", [False, True])
def test_gradients_of_calls_on_one_tensor_are_parts_of_one(is_twice: bool) -> None:
    made = []
    for twice, factor in ((is_twice, 1.0), (not is_twice, 1.0), (not is_twice, 0.5)):
        torch.manual_seed(0)
        made.append(Gated(is_twice=twice, factor=factor))
    x = torch.randn(3, 6)
    assert sonde.compare(made[0], made[1], x).ok
    found = sonde.compare(made[0], made[2], x)
    assert found.culprit is not None
    assert (found.culprit.stage, str(found.culprit.site)) == ("backward", "norm:grad_output")
