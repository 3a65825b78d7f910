"""Copies of parameters, and samples where copies of the whole would take too much memory."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sonde import Limits, lens, watch
from sonde.engine.clock.parameter_copies import LEAST, _positions, copies, length_error, one_in_each, positions, sample, size_of
from sonde.engine.probes.attachment import Attachment
from sonde.site import OTHER_CALLS
from sonde.stats import Moments


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape).to(dtype))


def test_the_positions_of_a_sample_are_chosen_alike_whatever_device_torch_makes_tensors_on() -> None:
    expected = positions(torch.ones(1_000), 7).clone()
    _positions.clear()
    with torch.device("meta"):
        found = positions(torch.ones(1_000, device="cpu"), 7)
    assert torch.equal(found, expected)


def test_the_numbers_that_tell_rows_apart_are_taken_whatever_device_torch_makes_tensors_on() -> None:
    rows = Moments().empty(2)
    with torch.device("meta"):
        assert Moments().marks(rows).is_cpu


@given(st.integers(1, 10_000), st.integers(2, 300))
def test_a_sample_has_one_element_of_each_block(elements: int, one_in: int) -> None:
    """Blocks adjoin in the order of memory; the choice is the same each time."""
    tensor = torch.arange(elements)
    found = sample(tensor, one_in)
    assert (found // one_in).tolist() == list(range(size_of(elements, one_in)))
    assert torch.equal(sample(tensor.clone(), one_in), found)


def test_a_sample_follows_the_order_of_memory() -> None:
    """Of a tensor in channels-last order, a transposed one, and one that begins in the middle of its memory."""
    image = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert torch.equal(sample(image, 7), sample(image.permute(0, 2, 3, 1).flatten(), 7))
    matrix = torch.arange(35.0).reshape(5, 7)
    assert torch.equal(sample(matrix.t(), 3), sample(matrix.flatten(), 3))
    assert torch.equal(sample(matrix[2:], 3), sample(matrix[2:].flatten(), 3))
    assert sample(matrix, 1) is matrix


def test_positions_are_kept_while_they_are_held() -> None:
    """Tensors of one size share them; they go with the last holder, and drawing them leaves the user's random state alone."""
    state = torch.get_rng_state()
    one, other = torch.zeros(1000), torch.zeros(10, 100)
    held = positions(one, 7)
    assert positions(other, 7) is held
    assert torch.equal(torch.get_rng_state(), state)
    gone = weakref.ref(held)
    del held
    assert gone() is None


@given(
    st.lists(st.sampled_from([10, 70_000, 131_072, 262_144, 1_000_000, 4_000_000]), min_size=1, max_size=6),
    st.integers(1, 40_000_000),
)
def test_copies_stay_within_the_limit(sizes: list[int], limit: int) -> None:
    """Unless every parameter is down to the least; and nothing is left out that there is room for."""
    parameters = [nn.Parameter(torch.empty(size)) for size in sizes]
    every = one_in_each(parameters, limit)
    taken = sum(size_of(size, one_in) * 4 for size, one_in in zip(sizes, every, strict=True))
    least = sum(min(size, 2 * LEAST) * 4 for size in sizes)
    assert taken <= max(limit, least)
    assert all(size_of(size, one_in) >= min(size, LEAST) for size, one_in in zip(sizes, every, strict=True))
    assert (sum(sizes) * 4 <= limit) == (every == [1] * len(sizes)) or max(sizes) <= 2 * LEAST


def sampled_length(tensor: torch.Tensor, one_in: int) -> float:
    """The length that a sample gives for the whole."""
    seen = sample(tensor, one_in).double()
    return seen.norm().item() * math.sqrt(tensor.numel() / len(seen))


@pytest.mark.parametrize("one_in", [2, 3, 4, 7, 8, 13, 16])
@pytest.mark.parametrize("period", [2, 3, 4, 8, 13, 16, 256, 512])
def test_no_pattern_in_a_parameter_hides_from_a_sample(period: int, one_in: int) -> None:
    """One column in each period alone moves, whichever it is: its length is right within 6 of its standard errors."""
    for column in {0, 1, period // 2, period - 1}:
        update = torch.zeros(1 << 20)
        update[column::period] = 1.0
        bound = 6 * length_error(one_in) / update.norm().item()
        assert sampled_length(update, one_in) == pytest.approx(update.norm().item(), rel=bound)


@pytest.mark.parametrize(
    "update",
    [
        pytest.param(torch.randn(300_000), id="normal"),
        pytest.param(torch.randn(300_000).pow(5), id="heavy tails"),
        pytest.param(torch.cat([torch.randn(32, 768).flatten(), torch.zeros(300_000)]), id="32 rows of an embedding"),
        pytest.param(torch.ones(300_000), id="equal"),
        pytest.param((torch.rand(300_000) < 0.001).float(), id="few"),
        pytest.param(torch.eye(1, 300_000).flatten(), id="one alone"),
    ],
)
def test_the_bound_on_lengths_holds_for_any_tensor(update: torch.Tensor) -> None:
    """The root mean square error over many random choices, of which torch's generator makes other ones for other sizes."""
    length, largest, one_in = update.norm().item(), update.abs().max().item(), 13
    errors = []
    for more in range(0, 13 * 100, 13):  # zeros behind, whole blocks of them: other choices, the same length
        found = sample(torch.cat([update, update.new_zeros(more)]), one_in).double().norm().item() * math.sqrt(one_in)
        errors.append((found / length - 1) ** 2)
    bound = length_error(one_in) * largest / length
    # the mean of 100 squares, each at most (sqrt(13) - 1)^2 < 7 and of that mean: within 5 standard errors of it
    assert math.fsum(errors) / len(errors) <= bound**2 + 5 * math.sqrt(7 * bound**2 / len(errors))


def test_dead_inputs_of_every_other_column_do_not_hide_the_update() -> None:
    """A layer whose even inputs are zero moves its odd columns alone: the norm of its update is right, by the stated bound."""
    torch.manual_seed(0)
    model = nn.Linear(512, 256, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().double()
    lenses = [lens.Lens("moved", Moments(), ("update",))]
    with watch(model, optimizer, every=1, to="memory", verbose=False, limits=Limits(memory=500_000), lenses=lenses) as inspector:
        x = torch.randn(64, 512)
        x[:, ::2] = 0
        model(x).square().sum().backward()
        optimizer.step()
    (row,) = inspector.run.table("moved").to_pylist()
    whole = (model.weight.detach().double() - before).flatten()
    (one_in,) = one_in_each([model.weight], 500_000)
    assert one_in == 2
    bound = length_error(one_in) * whole.abs().max().item() / whole.norm().item()
    assert row["norm"] == pytest.approx(whole.norm().item(), rel=6 * bound)
    assert row["count"] == len(whole)


def test_what_does_not_lie_densely_is_taken_whole() -> None:
    """As is a parameter of another class, or without memory."""
    gaps = nn.Parameter(torch.zeros(400, 800)[:, ::2])
    afar = nn.Parameter(torch.empty(1000, 1000, device="meta"))
    assert one_in_each([gaps, afar, nn.UninitializedParameter(), weight(1000, 1000)], 1_000_000)[:3] == [1, 1, 1]


def test_copies_are_copies() -> None:
    """Of the whole and of samples; they do not follow what is written afterwards, and hold no graph."""
    one, other = weight(3, 4), weight(100)
    before = other.detach().clone()
    seen = sample(before, 7)
    made = copies({(id(one), 1): one, (id(other), 7): other, (id(other), 1): other})
    with torch.no_grad():
        one.zero_()
        other.zero_()
    assert made[id(one), 1].abs().sum() > 0
    assert torch.equal(made[id(other), 7], seen)
    assert torch.equal(made[id(other), 1], before)
    assert not any(copy.requires_grad for copy in made.values())
    assert copies({}) == {}


def test_an_update_beyond_the_limit_is_measured_on_a_sample() -> None:
    """Of its elements before and after; the coverage says so, with the error. Smaller parameters are measured whole."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = Attachment(Moments(), strict=True, update_memory=400_000)
    attachment.observe(model, None, None, ("param", "update"))
    attachment.attach()
    before = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    model(torch.randn(8, 512)).square().sum().backward()
    optimizer.step()
    taps = {hook.name: hook for hook in attachment.hooks}
    one_in = taps["0.weight"].one_in
    assert one_in == 4  # 1 MB of weights and as many positions, for which there are 390 kB beside the others
    for name, parameter in model.named_parameters():
        tap = taps[name]
        difference = sample((parameter.detach().double() - before[name]).flatten(), tap.one_in)
        row = tap.rows["update", "", OTHER_CALLS]
        assert row[1] == len(difference)
        assert row[5] == pytest.approx(difference.sum().item(), rel=1e-9, abs=1e-12)
        assert row[6] == pytest.approx(difference.square().sum().item(), rel=1e-9)
        assert tap.rows["param", "", OTHER_CALLS][1] == parameter.numel()
    said = {str(site): note for site, note in attachment.delivery.notes.items()}
    assert list(said) == ["0.weight:update"]
    assert f"of one in {one_in} elements" in said["0.weight:update"]
    assert f"{length_error(one_in):.3g} * absmax / norm" in said["0.weight:update"]
    attachment.detach()


def test_observers_of_one_step_share_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each parameter is copied once, however many look at its update."""
    from sonde.engine.clock import step_counter

    made: list[int] = []

    def counted(wanted: dict[tuple[int, int], nn.Parameter]) -> dict[tuple[int, int], torch.Tensor]:
        made.append(len(wanted))
        return copies(wanted)

    monkeypatch.setattr(step_counter, "copies", counted)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wirings = [Attachment(Moments(), strict=True), Attachment(lambda event: None, strict=True), Attachment(Moments(), strict=True)]
    for attachment in wirings:
        attachment.observe(model, None, None, ("update",))
        attachment.attach()
    for _ in range(2):
        made.clear()  # before the first step copies are also made in case that the loop has no optimizer
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()
    for attachment in wirings:
        added = attachment.hooks.additions()
        assert all(count == 2 for hook in attachment.hooks for count in hook.counts(added).values())
        attachment.detach()
    assert made == [2]
