"""Activation and death: of each call and over an interval, by hand."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import sonde
from sonde import lens
from sonde.errors import ArgumentError
from sonde.stats import Accumulator, Activation, ChannelActivation, reduce

# Two samples of three channels: the first always active, the second in one sample, the third never
OUTPUT = torch.tensor([[1.0, 0.0, 0.0], [2.0, 3.0, 0.0]])


def test_one_call_by_hand() -> None:
    """Rates 1, 1/2 and 0: activation 1/2, one channel of three dead."""
    numbers = Accumulator(Activation()).update(OUTPUT).compute()
    assert numbers.as_dict() == {
        "count": 6,
        "finite": 6,
        "nan": 0,
        "inf": 0,
        "activation": 0.5,
        "judged": 1,
        "call_activation": 0.5,
        "call_death": pytest.approx(1 / 3),
    }


def test_a_call_is_not_an_interval() -> None:
    """Two samples in one call and in two: the share of active elements is the same; more channels are dead in smaller calls."""
    together = Accumulator(Activation()).update(OUTPUT).compute()
    apart = Accumulator(Activation()).update(OUTPUT[:1]).update(OUTPUT[1:]).compute()
    assert together.activation == apart.activation == 0.5
    assert apart.judged == 2
    assert apart.call_death == pytest.approx((2 / 3 + 1 / 3) / 2)
    over_all = Accumulator(ChannelActivation(3)).update(OUTPUT[:1]).update(OUTPUT[1:]).compute()
    assert (over_all.dead, over_all.death) == (1, pytest.approx(1 / 3))


def test_a_small_call_weighs_as_much_as_a_large_one_only_where_it_says_per_call() -> None:
    """Nine active samples in one call and one inactive in another: 0.9 over all elements, 0.5 as a mean of calls."""
    numbers = Accumulator(Activation()).update(torch.ones(9, 2)).update(torch.zeros(1, 2)).compute()
    assert numbers.activation == 0.9
    assert numbers.call_activation == 0.5
    assert numbers.call_death == 0.5


def test_positions_belong_to_channels() -> None:
    """In ``(batch, channel, height, width)`` a channel is dead if it is so in all samples and at all positions."""
    output = torch.zeros(2, 3, 4, 4)
    output[1, 0, 3, 2] = 1.0
    numbers = Accumulator(ChannelActivation(3)).update(output).compute()
    assert (numbers.channels, numbers.positions, numbers.dead) == (3, 32, 2)
    assert (numbers.least, numbers.most) == (0.0, 1 / 32)
    statistic = ChannelActivation(3)
    columns = Accumulator(statistic).update(output).columns()
    assert statistic.dead(columns).tolist() == [[False, True, True]]
    assert statistic.rates(columns).tolist() == [[1 / 32, 0.0, 0.0]]


def test_the_channel_axis() -> None:
    """Channels last; the neurons of a weight's gradient; and a convolution without a batch axis."""
    last = OUTPUT.reshape(2, 1, 3)
    assert Accumulator(ChannelActivation(3, channel_axis=-1)).update(last).compute().dead == 1
    gradient = OUTPUT.T.contiguous()  # three neurons of two weights each
    assert Accumulator(Activation(channel_axis=0)).update(gradient).compute().call_death == pytest.approx(1 / 3)
    unbatched = torch.zeros(3, 4, 4)
    unbatched[0] = 1.0
    assert Accumulator(Activation(channel_axis=0)).update(unbatched).compute().call_death == pytest.approx(2 / 3)


def test_the_neurons_of_a_transposed_convolution() -> None:
    """Its weight is ``(in, out, ...)``: with axis 1 a dead output channel is one."""
    layer = nn.ConvTranspose2d(2, 3, 2)
    mask = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
    (layer(torch.randn(1, 2, 4, 4)) * mask).square().sum().backward()
    assert layer.weight.grad is not None
    assert Accumulator(Activation(channel_axis=1)).update(layer.weight.grad).compute().call_death == pytest.approx(2 / 3)


def test_a_batch_of_scalars_is_one_channel() -> None:
    """One dimension, or none, has no channel axis 1."""
    numbers = Accumulator(Activation()).update(torch.tensor([0.0, 1.0, 0.0, 0.0])).compute()
    assert (numbers.activation, numbers.call_activation, numbers.call_death) == (0.25, 0.25, 0.0)
    assert Accumulator(Activation()).update(torch.tensor(0.0)).compute().call_death == 1.0


def test_nan_is_neither_active_nor_dead() -> None:
    """A NaN or an infinity is in no rate, and a channel that gives one is not dead."""
    output = torch.tensor([[float("nan"), 0.0, float("inf")], [0.0, 0.0, 0.0]])
    numbers = Accumulator(Activation()).update(output).compute()
    assert (numbers.nan, numbers.inf, numbers.finite, numbers.activation) == (1, 1, 4, 0.0)
    assert numbers.call_death == pytest.approx(1 / 3)
    assert Accumulator(ChannelActivation(3)).update(output).compute().dead == 1


def test_eps_is_a_strict_bound() -> None:
    """Active is greater than eps; the default takes 1e-8 for inactive and 0 takes only zero for it."""
    values = torch.tensor([[1e-9, 0.5, -0.5, 0.0]], dtype=torch.float64)
    assert Accumulator(Activation(eps=0.5)).update(values).compute().activation == 0.0
    assert Accumulator(Activation()).update(values).compute().activation == 0.5
    assert Accumulator(Activation(eps=0)).update(values).compute().activation == 0.75


def test_nothing_seen() -> None:
    """No call, and calls without an element, give NaN and not 0: no data is no dead channel."""
    for numbers in (
        Accumulator(Activation()).compute(),
        Accumulator(Activation()).update(torch.empty(0, 3)).update(torch.empty(2, 0)).compute(),
    ):
        assert (numbers.count, numbers.judged) == (0, 0)
        assert all(math.isnan(number) for number in (numbers.activation, numbers.call_activation, numbers.call_death))
    numbers = Accumulator(ChannelActivation(3)).update(torch.empty(0, 3)).compute()
    assert (numbers.positions, numbers.dead) == (0, 0)
    assert math.isnan(numbers.death)
    assert math.isnan(numbers.least)


def test_another_number_of_channels_raises() -> None:
    """A tensor whose channels are not those counted raises, says both, and adds nothing."""
    accumulator = Accumulator(ChannelActivation(3)).update(OUTPUT)
    with pytest.raises(ArgumentError, match=r"shape \(2, 4\) has 4 channels on axis 1, and .* counts 3"):
        accumulator.update(torch.ones(2, 4))
    assert accumulator.compute().positions == 2


@pytest.mark.parametrize("arguments", [{"eps": -1e-9}, {"eps": math.nan}, {"eps": math.inf}])
def test_an_impossible_eps_raises(arguments: dict[str, Any]) -> None:
    """A negative eps would make zeros active; it is refused when the statistic is made."""
    for make in (lambda: Activation(**arguments), lambda: ChannelActivation(3, **arguments)):
        with pytest.raises(ArgumentError, match="eps is the magnitude up to which"):
            make()


def test_no_channels_raise() -> None:
    """There is at least one channel."""
    with pytest.raises(ArgumentError, match="channels must be 1 or more, not 0"):
        ChannelActivation(0)


def test_the_number_of_channels_is_that_of_the_tensors() -> None:
    """All numbers are those of the statistic that was told; also of merges in both directions, copies and a state."""
    told, found = Accumulator(ChannelActivation(3)).update(OUTPUT), Accumulator(ChannelActivation()).update(OUTPUT)
    assert found.compute().as_dict() == told.compute().as_dict()
    assert found.statistic.dead(found.columns()).tolist() == told.statistic.dead(told.columns()).tolist()
    for other in (
        copy.deepcopy(found),
        pickle.loads(pickle.dumps(found)),
        Accumulator(ChannelActivation()).load_state_dict(found.state_dict()),
        Accumulator(ChannelActivation()).merge(found),
        Accumulator(ChannelActivation()).update(OUTPUT).merge(Accumulator(ChannelActivation())),
    ):
        assert other.compute().as_dict() == told.compute().as_dict()
    twice = told.merge(told).compute().as_dict()
    assert found.merge(found).compute().as_dict() == twice
    rows = torch.stack([ChannelActivation().measure(OUTPUT)] * 2)
    statistic = ChannelActivation().at_width(rows.shape[1])
    assert isinstance(statistic, ChannelActivation)
    merged = statistic.columns(reduce(statistic, rows)[None])
    assert {name: column[0] for name, column in statistic.finish(merged).items()} == twice
    assert math.isnan(Accumulator(ChannelActivation()).compute().channels)


def test_tensors_with_different_numbers_of_channels_have_no_dead_channels() -> None:
    """Whichever comes first: it is said when the row is finished."""
    for sizes in ((3, 2), (2, 3)):
        seen = Accumulator(ChannelActivation())
        for size in sizes:
            seen.update(torch.zeros(1, size))
        with pytest.raises(ArgumentError, match="different numbers of channels on axis 1"):
            seen.compute()
    with pytest.raises(ArgumentError, match="two for each channel, not 9"):
        Accumulator(ChannelActivation()).load_state_dict({"statistic": repr(ChannelActivation()), "row": torch.zeros(1, 9)})


@pytest.mark.parametrize("wide_first", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_each_place_has_its_own_number_of_channels(wide_first: bool, compiled: bool) -> None:
    """In one table, whose rows grow with the widest; after a reset and in another pass as well."""
    sizes = (6, 2) if wide_first else (2, 6)
    model = nn.Sequential(nn.Linear(4, sizes[0]), nn.ReLU(), nn.Linear(sizes[0], sizes[1]), nn.ReLU())
    with torch.no_grad():
        model[0].bias[0] = model[2].bias[1] = -100.0
    called = torch.compile(model, backend="aot_eager") if compiled else model
    inputs = [torch.randn(5, 4) for _ in range(3)]
    wanted = {}
    for name, part in (("1", model[:2]), ("3", model)):
        output = torch.cat([part(x) for x in inputs])
        wanted[name] = (output.shape[1], int((output == 0).all(0).sum()), len(output))
    with sonde.observe(model, ChannelActivation(), include=nn.ReLU, strict=True) as probe:
        for _ in range(2):
            for x in inputs:
                called(x)
            rows = probe.rows()
            assert {row["name"]: (row["channels"], row["dead"], row["positions"]) for row in rows} == wanted
            probe.reset()


def test_a_training_records_each_place_with_its_own_number_of_channels() -> None:
    """The rows of a run, at every step."""
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 6), nn.ReLU())
    nn.init.constant_(model[0].bias, -100.0)  # type: ignore[arg-type]
    looked = lens.Lens("channels", ChannelActivation(), include=nn.ReLU)
    with sonde.watch(model, every=1, lenses=looked, to="memory", verbose=False) as inspector:
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward()
            inspector.step()
    found = inspector.run.sql("SELECT site, step, channels, positions FROM channels ORDER BY site, step").fetchall()
    assert found == [("1:output", 0, 2, 3), ("1:output", 1, 2, 3), ("3:output", 0, 6, 3), ("3:output", 1, 6, 3)]
    dead = inspector.run.sql("SELECT DISTINCT dead FROM channels WHERE site = '1:output'").fetchall()
    assert dead == [(2.0,)]
