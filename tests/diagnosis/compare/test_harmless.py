"""What holds in equal models as well is no cause: sums made elsewhere, halves for masks, layouts, orders in which code joins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.diagnosis.compare.weights import same_values


class Halved(nn.Module):
    """A branch of which a share is added: in the branch itself, or by the model around."""

    def __init__(self, share: float, *, is_inside: bool) -> None:
        super().__init__()
        self._share, self._is_inside = share, is_inside

        class Branch(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm, self.wide, self.back = nn.LayerNorm(6), nn.Linear(6, 12), nn.Linear(12, 6)

            def forward(self, x: Tensor) -> Tensor:
                made: Tensor = self.back(self.wide(self.norm(x)).relu())
                return x + share * made if is_inside else made

        self.first, self.branch, self.out = nn.Linear(5, 6), Branch(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        made: Tensor = self.out(self.branch(x) if self._is_inside else x + self._share * self.branch(x))
        return made


def seeded(make: object, *args: object, **kwargs: object) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = make(*args, **kwargs)  # type: ignore[operator]
    return made


@pytest.mark.parametrize("inside", [(False, True), (True, False)])
def test_an_addition_inside_of_a_module_or_behind_it_is_no_cause_but_its_factor_is(inside: tuple[bool, bool]) -> None:
    batch = torch.randn(4, 7, 5)
    one, same, other = (seeded(Halved, share, is_inside=at) for share, at in ((0.3, inside[0]), (0.3, inside[1]), (1.0, inside[1])))
    assert sonde.compare(one, same, batch, verbose=False).ok
    found = sonde.compare(one, other, batch, verbose=False)
    assert found.cause is not None, found
    assert "branch:input + 0.3 branch.back:output in a, branch:input + branch.back:output in b" in found.cause.message


class Coupled(nn.Module):
    """Two couplings in which each half moves the other: of masked features, or of the halves alone."""

    def __init__(self, *, is_masked: bool, sign: float = 1.0) -> None:
        super().__init__()
        self._is_masked, self._sign = is_masked, sign

        class Net(nn.Sequential):
            def __init__(self) -> None:
                width = 8 if is_masked else 4
                super().__init__(nn.Linear(width, 12), nn.Tanh(), nn.Linear(12, width))

        class Step(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                if is_masked:
                    self.size, self.move = Net(), Net()
                else:
                    self.log, self.add = Net(), Net()

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
                if is_masked:
                    mask = (torch.arange(8) < 4).to(x)
                    size, move = self.size(x * mask) * (1 - mask), self.move(x * mask) * (1 - mask)
                    return (x * mask + (1 - mask) * (x * size.exp() + move)).flip(1), size.sum(1)
                keep, moved = x.chunk(2, 1)
                size = self.log(keep)
                return torch.cat([keep, moved * size.exp() + self.add(keep)], 1).flip(1), size.sum(1)

        self.steps = nn.ModuleList([Step(), Step()])

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x))
        for step in self.steps:
            x, size = step(x)
            total = total + size
        return total - x.square().sum(1) if self._sign > 0 else -total - x.square().sum(1)


def halves_of(masked: Coupled, sign: float) -> Coupled:
    made = Coupled(is_masked=False, sign=sign)
    for whole, half in zip(masked.steps, made.steps, strict=True):
        for name, other in (("size", "log"), ("move", "add")):
            here, there = getattr(whole, name), getattr(half, other)
            for own, value in ((there[0].weight, here[0].weight[:, :4]), (there[0].bias, here[0].bias)):
                own.data.copy_(value)
            there[2].weight.data.copy_(here[2].weight[4:])
            there[2].bias.data.copy_(here[2].bias[4:])
    return made


def test_halves_in_the_place_of_masked_features_are_no_cause_of_another_sign() -> None:
    masked, batch = seeded(Coupled, is_masked=True), torch.randn(10, 8)
    assert isinstance(masked, Coupled)
    found = sonde.compare(masked, halves_of(masked, 1.0), batch, verbose=False)
    assert found.ok, found
    found = sonde.compare(masked, halves_of(masked, -1.0), batch, verbose=False)
    assert not found.ok
    assert found.culprit is not None
    assert str(found.culprit.site) == "(root):output", found
    assert found.cause is None or "neg" in found.cause.message, found


class Patched(nn.Module):
    """Patches of an image as a convolution, or cut by hand: row by row or column by column."""

    def __init__(self, axes: tuple[int, ...] = ()) -> None:
        super().__init__()
        self._axes = axes
        self.patches = nn.Linear(12, 8) if axes else nn.Conv2d(3, 8, 2, 2)
        self.out = nn.Linear(8, 3)
        self.places = nn.Parameter(torch.randn(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        if self._axes:
            made = self.patches(x.reshape(len(x), 3, 4, 2, 4, 2).permute(self._axes).reshape(len(x), 16, 12))
        else:
            made = self.patches(x).flatten(2).mT
        out: Tensor = self.out((made + self.places).relu())
        return out


def test_samples_are_not_exchanged_with_positions_where_rows_are_with_columns() -> None:
    one, batch = seeded(Patched), torch.randn(4, 3, 8, 8)
    for axes, is_same in (((0, 2, 4, 1, 3, 5), True), ((0, 4, 2, 1, 3, 5), False)):
        other = Patched(axes)
        state = {name: held.flatten(1) if held.dim() == 4 else held for name, held in one.state_dict().items()}
        other.load_state_dict(state)
        found = sonde.compare(one, other, batch, verbose=False)
        assert found.ok == is_same, found
        assert is_same or "axes 2 and 3 exchanged" in str(found.cause and found.cause.message), found


class Joined(nn.Module):
    """A state forth and one back, joined and turned in one order or the other; *is_back*: with the second in its own order."""

    def __init__(self, *, is_turned_first: bool, is_back: bool = True) -> None:
        super().__init__()
        self._is_turned_first, self._is_back = is_turned_first, is_back
        self.first, self.out = nn.Linear(5, 6), nn.Linear(12, 3)

    def run(self, x: Tensor) -> list[Tensor]:
        held, made = x.new_zeros(x[:, 0].shape), []
        for at in range(x.size(1)):
            held = (held + x[:, at]).tanh()
            made.append(held)
        return made

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        forth, back = self.run(x), self.run(x.flip(1))
        back = back[::-1] if self._is_back else back
        if self._is_turned_first:
            made = torch.cat([torch.stack(forth).transpose(0, 1), torch.stack(back).transpose(0, 1)], -1)
        else:
            made = torch.cat([torch.stack(forth), torch.stack(back)], -1).transpose(0, 1)
        out: Tensor = self.out(made)
        return out


def test_the_order_in_which_code_joins_and_turns_is_no_cause() -> None:
    one, batch = seeded(Joined, is_turned_first=False), torch.randn(3, 7, 5)
    assert sonde.compare(one, seeded(Joined, is_turned_first=True), batch, verbose=False).ok
    found = sonde.compare(one, seeded(Joined, is_turned_first=True, is_back=False), batch, verbose=False)
    assert found.cause is None or "transpose" not in found.cause.message, found


class Duel(nn.Module):
    """Values of actions, less their mean: of each sample, or of all."""

    def __init__(self, *axes: int) -> None:
        super().__init__()
        self._axes = axes
        self.state, self.actions = nn.Linear(5, 1), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        worth: Tensor = self.actions(x)
        mean = worth.mean(self._axes, keepdim=True) if self._axes else worth.mean()
        made: Tensor = self.state(x) + worth - mean
        return made


def test_the_axes_are_told_over_which_one_side_takes_the_mean() -> None:
    found = sonde.compare(seeded(Duel, 1), seeded(Duel), torch.randn(6, 5), verbose=False)
    assert found.cause is not None, found
    assert "mean, of 6×4, is over axes (1,) in a" in found.cause.message
    assert "over all axes in b" in found.cause.message


class Classed(nn.Module):
    """Attention over the positions behind one that is alike in all samples."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.start = nn.Parameter(torch.randn(8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.start.expand(len(x), 1, -1), self.first(x)], 1)
        out: Tensor = self.out(self.attention(x, x, x, need_weights=False)[0])
        return out


class ClassedByHand(Classed):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.start.expand(len(x), 1, -1), self.first(x)], 1)
        held = self.attention
        q, k, v = functional.linear(x, held.in_proj_weight, held.in_proj_bias).reshape(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        made = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out: Tensor = self.out(held.out_proj(made))
        return out


def test_of_samples_for_positions_nothing_is_told_that_is_not_seen() -> None:
    one, other = seeded(Classed, batch_first=True), seeded(Classed, batch_first=False)
    found = sonde.compare(one, other, torch.randn(4, 6, 5), verbose=False)
    messages = [each.message for each in (*found.causes, *found.hints)]
    assert not any("masks" in message or "heads" in message for message in messages), messages


class Enlarged(nn.Module):
    """A transposed convolution, or a convolution of pixels with zeros between them, of the kernel turned round."""

    def __init__(self, *, is_by_hand: bool, times: float = 1.0) -> None:
        super().__init__()
        self._is_by_hand = is_by_hand
        self.first = nn.Conv2d(2, 5, 1)
        self.up = nn.Conv2d(5, 3, 3, padding=2, bias=False) if is_by_hand else nn.ConvTranspose2d(5, 3, 3, 2, bias=False)
        if times != 1:
            self.up.weight.register_hook(lambda gradient: times * gradient)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self._is_by_hand:
            wide = x.new_zeros(*x.shape[:2], 2 * x.size(2) - 1, 2 * x.size(3) - 1)
            wide[:, :, ::2, ::2] = x
            x = wide
        out: Tensor = self.up(x)
        return out.tanh()


@pytest.mark.parametrize(("times", "is_same"), [(1.0, True), (2.0, False)])
def test_gradients_of_kernels_are_compared_as_the_kernels_lie(times: float, is_same: bool) -> None:
    one, other = seeded(Enlarged, is_by_hand=False), Enlarged(is_by_hand=True, times=times)
    state = one.state_dict()
    other.load_state_dict({**state, "up.weight": state["up.weight"].transpose(0, 1).flip(2, 3)})
    found = sonde.compare(one, other, torch.randn(3, 2, 4, 4), verbose=False)
    assert found.ok == is_same, found
    assert is_same or (found.culprit is not None and str(found.culprit.site) == "up.weight:grad")


class Wide(nn.Module):
    """A layer whose last inputs are always zero, or that has none of these."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        self.first, self.out = nn.Linear(width, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.first(functional.pad(x, (0, self._width - 3))).relu())
        return out


def test_gradients_of_parameters_of_other_sizes_are_not_compared() -> None:
    one, other = seeded(Wide, 5), Wide(3)
    state = one.state_dict()
    other.load_state_dict({**state, "first.weight": state["first.weight"][:, :3]})
    assert sonde.compare(one, other, torch.randn(6, 3), verbose=False).ok


class Codes(nn.Module):
    """The nearest of some codes, whose gradient passes to the input; *is_own*: the codes are a parameter, and no table."""

    def __init__(self, *, is_own: bool) -> None:
        super().__init__()
        self._is_own = is_own
        if is_own:
            self.held = nn.Parameter(torch.randn(7, 4))
        else:
            self.table = nn.Embedding(7, 4)

    def forward(self, z: Tensor) -> Tensor:
        if self._is_own:
            code = self.held[torch.cdist(z, self.held).argmin(-1)]
        else:
            weight = self.table.weight
            code = self.table((weight.square().sum(1) - 2 * z @ weight.mT).argmin(-1))
        made: Tensor = z + (code - z).detach() + 0.5 * (code - code.detach())
        return made


class Coded(nn.Module):
    def __init__(self, *, is_own: bool) -> None:
        super().__init__()
        if is_own:
            self.into, self.book, self.back = nn.Linear(6, 4), Codes(is_own=True), nn.Linear(4, 6)
        else:
            self.encode, self.nearest, self.decode = nn.Linear(6, 4), Codes(is_own=False), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x
        for layer in self.children():
            out = layer(out)
        return out


def test_a_module_that_holds_codes_is_no_counterpart_of_a_table_in_one_that_finds_them() -> None:
    one, other = seeded(Coded, is_own=False), Coded(is_own=True)
    for own, held in zip(other.parameters(), one.parameters(), strict=True):
        own.data.copy_(held)
    found = sonde.compare(one, other, torch.randn(12, 6), verbose=False)
    assert found.ok, found
    assert found.match.get("nearest") == "book", found.match


class Terms(nn.Module):
    """Two losses of one value, of which each moves one of two layers: weighed one way or the other."""

    def __init__(self, one: float, other: float) -> None:
        super().__init__()
        self._weights = one, other
        self.first, self.second = nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        here, there = self.first(x), self.second(x)
        terms = (here - there.detach()).square().mean(), (there - here.detach()).square().mean()
        made: Tensor = self._weights[0] * terms[0] + self._weights[1] * terms[1]
        return made


def test_cuts_of_both_sides_together_are_no_cause() -> None:
    found = sonde.compare(seeded(Terms, 1.0, 0.25), seeded(Terms, 0.25, 1.0), torch.randn(8, 5), loss_fn=torch.sum, verbose=False)
    assert not found.ok
    assert "graph_cut" not in [cause.rule for cause in found.causes], found


class Late(nn.Module):
    """A convolution that sees no later positions: padded on both sides and cut, or padded in front."""

    def __init__(self, *, is_cut: bool, with_gate: bool = True) -> None:
        super().__init__()
        self._is_cut, self._with_gate = is_cut, with_gate
        self.mix, self.out = nn.Conv1d(4, 4, 3, padding=2 * is_cut), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        made = self.mix(x)[..., : x.size(-1)] if self._is_cut else self.mix(functional.pad(x, (2, 0)))
        out: Tensor = self.out((made * made.sigmoid() if self._with_gate else made).mT)
        return out


def test_padding_that_is_cut_off_behind_is_no_difference() -> None:
    one, batch = seeded(Late, is_cut=True), torch.randn(3, 4, 9)
    assert sonde.compare(one, seeded(Late, is_cut=False), batch, verbose=False).ok
    found = sonde.compare(one, seeded(Late, is_cut=False, with_gate=False), batch, verbose=False)
    assert found.culprit is not None
    assert str(found.culprit.site) == "out:input"


class Sloped(nn.Module):
    """A sum over pairs of a function with a slope: rows before columns, or columns before rows."""

    def __init__(self, slope: float, *, is_turned: bool) -> None:
        super().__init__()
        self._slope, self._is_turned = slope, is_turned
        self.one, self.two, self.out = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        here, there = self.one(x), self.two(x)
        if self._is_turned:
            made = functional.leaky_relu(there[:, :, None] + here[:, None], self._slope).sum(1)
        else:
            made = functional.leaky_relu(here[:, :, None] - (-there)[:, None], self._slope).sum(2)
        out: Tensor = self.out(made)
        return out


def test_another_number_of_an_operation_is_told_whatever_tensors_it_is_given() -> None:
    one, batch = seeded(Sloped, 0.2, is_turned=False), torch.randn(3, 4, 5)
    assert sonde.compare(one, seeded(Sloped, 0.2, is_turned=True), batch, verbose=False).ok
    found = sonde.compare(one, seeded(Sloped, 0.05, is_turned=True), batch, verbose=False)
    assert found.cause is not None, found
    assert found.cause.message.startswith("leaky_relu has negative_slope=0.2 in a")
    assert "negative_slope=0.05 in b" in found.cause.message


class Parts(nn.Module):
    """A step that adds one part of what a layer makes, or of two layers, with a factor."""

    def __init__(self, factor: float, *, is_joined: bool) -> None:
        super().__init__()
        self._factor, self._is_joined = factor, is_joined

        class Step(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                if is_joined:
                    self.both = nn.Linear(6, 12)
                else:
                    self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
                one, two = self.both(x).chunk(2, -1) if is_joined else (self.one(x), self.two(x))
                return (x + one) * factor, two

        self.step, self.out, self.beside = Step(), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.step(x)
        made: Tensor = self.out(one) + self.beside(two)
        return made


def test_parts_of_a_layer_are_named_as_they_are_written() -> None:
    one, other = seeded(Parts, 0.5, is_joined=True), Parts(1.0, is_joined=False)
    state = one.state_dict()
    for own in ("weight", "bias"):
        state["step.one." + own], state["step.two." + own] = state.pop(f"step.both.{own}").chunk(2)
    other.load_state_dict(state)
    found = sonde.compare(one, other, torch.randn(4, 6), verbose=False)
    assert found.cause is not None, found
    assert "%" not in found.cause.message
    assert "step.both[0]:output" in found.cause.message


def test_of_a_kernel_with_rows_for_columns_the_axes_are_named() -> None:
    one = seeded(nn.Conv2d, 3, 4, 3)
    other = seeded(nn.Conv2d, 3, 4, 3)
    other.weight.data = one.weight.detach().mT.clone()  # type: ignore[operator]
    found = sonde.compare(one, other, torch.randn(2, 3, 8, 8), verbose=False)
    assert found.cause is not None, found
    assert found.cause.message == "b's weight equals a's weight with the last two axes exchanged"
    assert not same_values(torch.arange(6.0), torch.arange(6.0).reshape(1, 6) + 1)
    assert not same_values(torch.arange(6.0).reshape(1, 6) + 1, torch.arange(6.0))


class Running(nn.Module):
    """A running sum of products: as one, or by a product with ones where positions are seen."""

    def __init__(self, *, is_product: bool, sees_all: bool = False) -> None:
        super().__init__()
        self._is_product, self._sees_all = is_product, sees_all
        self.one, self.two, self.out = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.one(x), self.two(x)
        if self._is_product:
            seen = one.new_ones(len(x), x.size(1), x.size(1))
            made = (seen if self._sees_all else seen.tril()) @ (one * two)
        else:
            made = (one * two).cumsum(1)
        out: Tensor = self.out(made)
        return out


def test_a_running_sum_against_a_product_is_no_cause() -> None:
    one, batch = seeded(Running, is_product=False), torch.randn(3, 7, 5)
    assert sonde.compare(one, seeded(Running, is_product=True), batch, verbose=False).ok
    found = sonde.compare(one, seeded(Running, is_product=True, sees_all=True), batch, verbose=False)
    assert found.cause is None, found


class Hiding(nn.Module):
    """Attention that adds a number for each distance, and hides what comes later in the scores, or in what is added to them."""

    def __init__(self, sign: float, *, is_of_scores: bool) -> None:
        super().__init__()
        self._sign, self._is_of_scores = sign, is_of_scores
        self.one, self.two, self.out = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.one(x), self.two(x)
        places = torch.arange(x.size(1))
        if self._is_of_scores:
            ahead = places - places[:, None]
            scores = one @ two.mT + self._sign * 0.3 * ahead
            scores = scores.masked_fill(ahead > 0, torch.finfo(scores.dtype).min)
        else:
            back = (places[:, None] - places).float()
            scores = one @ two.mT + (-self._sign * 0.3 * back).masked_fill(back < 0, -torch.inf)
        out: Tensor = self.out(scores.softmax(-1) @ two)
        return out


def test_masks_filled_by_the_least_number_and_by_infinity_are_no_cause_but_what_is_added_to_them_is() -> None:
    one, batch = seeded(Hiding, 1.0, is_of_scores=True), torch.randn(3, 7, 5)
    assert sonde.compare(one, seeded(Hiding, 1.0, is_of_scores=False), batch, verbose=False).ok
    found = sonde.compare(one, seeded(Hiding, -1.0, is_of_scores=False), batch, verbose=False)
    assert found.cause is not None, found
    assert "is -1 times what mul makes in a" in found.cause.message
    assert not any("masked_fill" in str(each.message) for each in found.hints)


class Halves(nn.Module):
    """A layer that is given one half of the entries: cut by a slice, or as one of two chunks."""

    def __init__(self, *, is_split: bool, second: bool = False) -> None:
        super().__init__()
        self._is_split, self._second = is_split, second
        self.first, self.out = nn.Linear(5, 6), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        halves = x.chunk(2, -1) if self._is_split else (x[:, :3], x[:, 3:])
        one, other = halves[::-1] if self._second else halves
        made: Tensor = self.out(one) * other
        return made


@pytest.mark.parametrize("is_split", [(True, False), (False, True)])
@pytest.mark.parametrize("second", [(True, False), (False, True)])
def test_the_entries_that_are_taken_are_told_however_they_are_cut(is_split: tuple[bool, bool], second: tuple[bool, bool]) -> None:
    one, same, other = (
        seeded(Halves, is_split=cut, second=which)
        for cut, which in ((is_split[0], second[0]), (is_split[1], second[0]), (is_split[1], second[1]))
    )
    batch = torch.randn(4, 5)
    assert sonde.compare(one, same, batch, verbose=False).ok
    found = sonde.compare(one, other, batch, verbose=False)
    assert found.cause is not None, found
    said = ["entries 3 to 5 of axis 1" if each else "entries 0 to 2 of axis 1" for each in second]
    assert found.cause.message.startswith(f"a goes on with {said[0]}")
    assert f"b with {said[1]}" in found.cause.message


class Picked(nn.Module):
    """A norm of one position, picked in front of it or behind, and a layer with a factor."""

    def __init__(self, factor: float, *, is_late: bool) -> None:
        super().__init__()
        self._factor, self._is_late = factor, is_late
        self.first, self.norm, self.out = nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x, rows, last = self.first(x), torch.arange(len(x)), x[..., 0].argmax(1)
        x = self.norm(x)[rows, last] if self._is_late else self.norm(x[rows, last])
        made: Tensor = self.out(x.tanh() * self._factor)
        return made


def test_a_position_that_is_picked_in_front_of_a_norm_or_behind_it_is_no_difference() -> None:
    one, batch = seeded(Picked, 1.0, is_late=False), torch.randn(4, 7, 5)
    assert sonde.compare(one, seeded(Picked, 1.0, is_late=True), batch, verbose=False).ok
    found = sonde.compare(one, seeded(Picked, 0.5, is_late=True), batch, verbose=False)
    assert found.culprit is not None
    assert str(found.culprit.site) == "out:input"
    assert found.cause is not None, found


class Flowing(nn.Module):
    """Steps that scale all and move one half: each in one block, or by a block for the scale and one for the move."""

    def __init__(self, sign: float, *, is_one: bool) -> None:
        super().__init__()
        self._sign = sign

        class Scale(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.log = nn.Parameter(torch.linspace(-0.001, 0.0011, 6))

            def forward(self, x: Tensor) -> Tensor:
                return x * self.log.exp()

        class Move(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.one, self.two = nn.Linear(3, 12), nn.Linear(12, 3)
                if is_one:
                    self.log = nn.Parameter(torch.linspace(-0.001, 0.0011, 6))

            def forward(self, x: Tensor) -> Tensor:
                x = x * self.log.exp() if is_one else x
                keep, moved = x.chunk(2, 1)
                made = torch.cat([keep, moved + self.two(self.one(keep).tanh())], 1)
                return made.flip(1) if is_one else made

        self.scales = nn.ModuleList([] if is_one else [Scale(), Scale()])
        self.steps, self.moves = (nn.ModuleList([Move(), Move()] if each else []) for each in (is_one, not is_one))

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        for scale, move in zip(self.scales, self.moves, strict=True):
            x = move(scale(x)).flip(1)
        return x.sum(1) + self._sign * x.square().sum(1)


def test_a_block_that_does_what_another_one_does_in_front_of_the_other_side_s_is_not_its_counterpart() -> None:
    one, same, other = Flowing(1.0, is_one=True), Flowing(1.0, is_one=False), Flowing(-1.0, is_one=False)
    for each in (same, other):
        for step, move in zip(one.steps, each.moves, strict=True):
            move.load_state_dict({name: held for name, held in step.state_dict().items() if name != "log"})
    batch = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
    assert sonde.compare(one, same, batch, verbose=False).ok
    found = sonde.compare(one, other, batch, verbose=False)
    assert found.culprit is not None
    assert str(found.culprit.site) == "(root):output"
    assert found.cause is None or found.cause.rule != "inputs", found
