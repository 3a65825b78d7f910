"""Copies of parameters, and samples where copies of the whole would take too much memory."""

from __future__ import annotations

from math import gcd

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sonde.engine.clock.parameter_copies import LEAST, copies, error_of, one_in_each, sample, size_of
from sonde.engine.probes.attachment import Attachment
from sonde.site import OTHER_CALLS
from sonde.stats import Moments


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape).to(dtype))


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_a_sample_is_every_nth_element(elements: int, one_in: int) -> None:
    """From the first on, in the order of memory."""
    tensor = torch.arange(elements)
    found = sample(tensor, one_in)
    assert torch.equal(found, tensor[::one_in])
    assert len(found) == size_of(elements, one_in)


def test_a_sample_follows_the_order_of_memory() -> None:
    """Of a tensor in channels-last order, a transposed one, and one that begins in the middle of its memory."""
    image = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert torch.equal(sample(image, 7), image.permute(0, 2, 3, 1).flatten()[::7])
    matrix = torch.arange(35.0).reshape(5, 7)
    assert torch.equal(sample(matrix.t(), 3), matrix.flatten()[::3])
    assert torch.equal(sample(matrix[2:], 3), matrix[2:].flatten()[::3])
    assert sample(matrix, 1) is matrix


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


def test_a_sample_has_elements_of_all_columns() -> None:
    """Its step has no divisor in common with the length of a row."""
    (one_in,) = one_in_each([weight(4096, 1024)], 4096 * 1024)  # a quarter
    assert one_in > 4
    assert gcd(one_in, 1024) == 1
    assert len(set((torch.arange(0, 4096 * 1024, one_in) % 1024).tolist())) == 1024


def test_what_does_not_lie_densely_is_taken_whole() -> None:
    """As is a parameter of another class, or without memory."""
    gaps = nn.Parameter(torch.zeros(400, 800)[:, ::2])
    afar = nn.Parameter(torch.empty(1000, 1000, device="meta"))
    assert one_in_each([gaps, afar, nn.UninitializedParameter(), weight(1000, 1000)], 1_000_000)[:3] == [1, 1, 1]


def test_copies_are_copies() -> None:
    """Of the whole and of samples; they do not follow what is written afterwards, and hold no graph."""
    one, other = weight(3, 4), weight(100)
    before = other.detach().clone()
    made = copies({(id(one), 1): one, (id(other), 7): other, (id(other), 1): other})
    with torch.no_grad():
        one.zero_()
        other.zero_()
    assert made[id(one), 1].abs().sum() > 0
    assert torch.equal(made[id(other), 7], before[::7])
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
    assert one_in == 3  # 1 MB of weights, of which 66 kB are beside the others
    for name, parameter in model.named_parameters():
        tap = taps[name]
        difference = (parameter.detach().double() - before[name]).flatten()[:: tap.one_in]
        row = tap.rows["update", "", OTHER_CALLS]
        assert row[1] == len(difference)
        assert row[5] == pytest.approx(difference.sum().item(), rel=1e-9, abs=1e-12)
        assert row[6] == pytest.approx(difference.square().sum().item(), rel=1e-9)
        assert tap.rows["param", "", OTHER_CALLS][1] == parameter.numel()
    said = {str(site): note for site, note in attachment.delivery.notes.items()}
    assert list(said) == ["0.weight:update"]
    assert f"of every {one_in}-th element" in said["0.weight:update"]
    assert f"{error_of(size_of(512 * 512, one_in)):.1%}" in said["0.weight:update"]
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
        assert all(count == 2 for hook in attachment.hooks for count in hook.counts().values())
        attachment.detach()
    assert made == [2]
