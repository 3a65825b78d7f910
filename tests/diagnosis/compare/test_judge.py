"""How far two sides may be apart before they part: roundings counted by hand, and inputs that do not matter."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sonde

EPS = torch.finfo(torch.float32).eps


class Scale(nn.Module):
    """Multiplies by 1 and so many roundings: of ones, the result is exact, and so far away from ones."""

    def __init__(self, roundings: int) -> None:
        super().__init__()
        self.factor = 1 + roundings * EPS

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@pytest.mark.parametrize(("elements", "most"), [(1, 64), (15, 64), (16, 16), (100, 16)])
def test_sides_part_beyond_16_roundings_and_where_elements_are_few_beyond_64(elements: int, most: int) -> None:
    """Rounding moves each side by one rounding at most. Of fewer than 16 elements all may by chance have moved less."""
    for roundings, is_same in ((most - 1, True), (most + 2, False)):
        found = sonde.compare(Scale(0), Scale(roundings), torch.ones(elements), backward=False)
        assert found.ok is is_same, (elements, roundings)


def saved(path: Path, *roundings: int) -> str:
    """Save the outputs of layers, each of which moves ones by so many roundings, and return the folder."""
    model = nn.Sequential(*map(Scale, roundings))
    with sonde.track(model) as tracker:
        model(torch.ones(100))
    return str(tracker.save(path))


@pytest.mark.parametrize(
    ("first", "second", "culprit"),
    [
        (127, 0, None),
        (130, 0, "0:output"),
        (0, 127, None),
        (0, 130, "1:output"),
        (100, 1490, None),  # 1,590 in all
        (100, 1520, "1:output"),
    ],
)
def test_what_was_saved_parts_beyond_128_roundings_and_16_times_what_was_seen_before(
    tmp_path: Path, first: int, second: int, culprit: str | None
) -> None:
    """There nobody has measured how far rounding moves the numbers."""
    found = sonde.compare(saved(tmp_path / "a", 0, 0), saved(tmp_path / "b", first, second))
    assert (None if found.culprit is None else str(found.culprit.site)) == culprit


@pytest.mark.parametrize(("noise", "is_same"), [(1e-3, True), (1e-5, False), (0.0, False)])
def test_noise_that_is_given_replaces_all_measurements(noise: float, is_same: bool) -> None:
    """The sides are 1,000 roundings apart, 1.2e-4."""
    assert sonde.compare(Scale(0), Scale(1000), torch.ones(100), backward=False, noise=noise).ok is is_same


class First(nn.Module):
    """Returns the first element of each row."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1]


class Takes(nn.Module):
    """Gives a layer the input with additions, one after the other."""

    def __init__(self, *added: list[float]) -> None:
        super().__init__()
        self.first = First()
        self.added = torch.tensor(added)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.first(x + each) for each in self.added], 1)


def test_an_input_that_parts_does_not_count_where_the_output_of_its_module_agrees() -> None:
    """As values at masked positions."""
    found = sonde.compare(Takes([0.0, 0.0]), Takes([0.0, 9.0]), torch.ones(3, 2), backward=False)
    assert found.ok
    (place,) = (each for each in found.places if str(each.site) == "first:input")
    assert place.relative > 0.5
    assert (place.parts, place.remark) == (False, "the output agrees nevertheless")


def test_of_two_calls_the_input_of_that_one_counts_whose_output_parts() -> None:
    """The first call is given other numbers where it does not look, the second where it does."""
    found = sonde.compare(Takes([0.0, 0.0], [0.0, 0.0]), Takes([0.0, 9.0], [9.0, 0.0]), torch.ones(3, 2), backward=False)
    assert found.culprit is not None
    assert (str(found.culprit.site), found.culprit.call) == ("first:input", 1)
    assert [place.parts for place in found.places if str(place.site) == "first:input"] == [False, True]


class Normed(nn.Module):
    """A convolution and its normalisation, which may be folded into it, and what follows times a gate."""

    def __init__(self, gate: float = 1.0) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3)
        self.norm.running_var.mul_(3)  # type: ignore[union-attr]  # a tensor
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.norm(self.conv(x)).relu())
        return x[:, :1, 4:, 4:] + self.gate * made


def folded(model: Normed) -> Normed:
    """Return a copy in which the normalisation is part of the convolution."""
    made = copy.deepcopy(model)
    made.conv = nn.utils.fuse_conv_bn_eval(made.conv, made.norm)
    made.norm = nn.Identity()  # type: ignore[assignment]  # in its place
    return made.eval()


def test_a_folded_normalisation_differs_inside_and_meets_again() -> None:
    """Its layer gives other numbers in each side, and so do their gradients; all that follows is equal."""
    model = Normed().eval()
    found = sonde.compare(model, folded(model), torch.randn(2, 3, 8, 8))
    assert found.ok
    assert found["conv:output"][0].relative > 0.1
    assert {place.remark for place in found.places if place.relative > 0.1} == {"differs inside, meets again at norm:output"}
    assert "places differ inside of modules whose outputs agree" in str(found)


class Called(nn.Module):
    """Two layers, each behind an activation: one that is called twice, or two."""

    def __init__(self, names: tuple[str, str]) -> None:
        super().__init__()
        self.one, self.two, self.names = nn.Linear(4, 6), nn.Linear(6, 3), names
        self.add_module("act", nn.GELU())
        self.add_module(names[1], self.act if names[1] == "act" else nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = getattr(self, self.names[1])(self.two(getattr(self, self.names[0])(self.one(x))))
        return made


def test_a_module_called_twice_is_no_difference_where_the_other_side_has_one_for_each_call() -> None:
    one, other = Called(("act", "act")), Called(("act", "later"))
    other.load_state_dict(one.state_dict())
    for pair in ((one, other), (other, one)):
        found = sonde.compare(*pair, torch.randn(5, 4), verbose=False)
        assert found.ok, found
    assert found["one.weight:grad"][0].parts is False


def test_behind_a_folded_normalisation_a_difference_is_found_at_its_place() -> None:
    model = Normed().eval()
    other = folded(model)
    with torch.no_grad():
        other.last.weight[0, 0, 0, 0] += 1
    found = sonde.compare(model, other, torch.randn(2, 3, 8, 8))
    assert found.culprit is not None
    assert found.cause is not None
    assert (str(found.culprit.site), found.cause.rule) == ("last:output", "weight_differs")


def test_what_differs_where_a_gate_is_closed_counts() -> None:
    """The outputs agree only because the layers count for nothing yet."""
    model = Normed(0.0).eval()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.conv.weight[0] += 1
    found = sonde.compare(model, other, torch.randn(2, 3, 8, 8))
    assert found.culprit is not None
    assert str(found.culprit.site) == "conv:output"


def test_what_differs_where_a_relu_is_closed_counts() -> None:
    """Of these samples no output depends on it, and of others it may."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    other = copy.deepcopy(model)
    for each, bias in ((model, -50.0), (other, -60.0)):
        nn.init.constant_(each[0].bias[:1].detach(), bias)
    found = sonde.compare(model, other, torch.randn(9, 4))
    assert found.culprit is not None
    assert str(found.culprit.site) == "0:output"


def test_factors_that_a_joined_projection_has_taken_over_differ_inside() -> None:
    class Attention(nn.Module):
        def __init__(self, joined: bool) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)
            names = {"qkv": 24} if joined else {"q": 8, "k": 8, "v": 8}
            for name, size in names.items():
                self.add_module(name, nn.Linear(8, size))

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(x)
            q, k, v = self.qkv(x).chunk(3, -1) if hasattr(self, "qkv") else (self.q(x), self.k(x), self.v(x))
            made: Tensor = nn.functional.scaled_dot_product_attention(q, k, v)
            return made

    torch.manual_seed(0)
    one, other = Attention(joined=False), Attention(joined=True)
    nn.init.uniform_(one.norm.weight, 0.5, 1.5)
    joined = dict(other.named_parameters())
    for own in ("weight", "bias"):
        held = torch.cat([one.get_parameter(f"{name}.{own}").detach() for name in "qkv"])
        joined[f"qkv.{own}"].data = held * one.norm.weight.detach() if own == "weight" else held
    found = sonde.compare(nn.Sequential(nn.Linear(8, 8), one), nn.Sequential(nn.Linear(8, 8), other), torch.randn(3, 5, 8))
    assert found.culprit is not None  # the layers in front differ
    both = nn.Linear(8, 8)
    found = sonde.compare(nn.Sequential(both, one), nn.Sequential(copy.deepcopy(both), other), torch.randn(3, 5, 8))
    assert found.ok, found
