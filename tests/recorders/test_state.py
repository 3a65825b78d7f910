"""The state of a recorder: to go on from, to pickle, to copy."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sonde.errors import ArgumentError
from sonde.recorders import BackwardInput, ForwardOutput
from sonde.recorders.reductions import Concatenate, First, Last, Max, Mean, Reservoir, Sum


def add(so_far: Tensor, new: Tensor) -> Tensor:
    return so_far + new


REDUCTIONS = [None, add, Sum(axis=0), Mean(axis=0), Max(axis=0), Last(), First(7), Reservoir(4, seed=2), Concatenate()]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Identity(), nn.LSTM(3, 2))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype is other.dtype and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_going_on_from_a_state_is_going_on(reduction: Any) -> None:
    """Three batches, a state through torch.save with weights_only, two batches more: as five batches in one go."""
    model, batches = network()[:1], list(torch.randn(5, 6, 3))
    whole, first = (ForwardOutput(reduction=reduction, strict=True).children(model) for _ in range(2))
    for batch in batches[:3]:
        model(batch)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    first.detach()
    file.seek(0)
    second = ForwardOutput(reduction=reduction, strict=True).children(model)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert same(second[0], first[0])
    for batch in batches[3:]:
        model(batch)
    assert same(second[0], whole[0])
    assert second.samples(0) == 5
    assert first.samples(0) == 3


@pytest.mark.parametrize("reduction", [reduction for reduction in REDUCTIONS if not isinstance(reduction, Reservoir | type(add))])
def test_a_state_is_a_copy(reduction: Any) -> None:
    """Of structured values as well: what comes later does not change it, nor does loading it share anything."""
    model = network()
    recorder = ForwardOutput(reduction=reduction, strict=True).children(model)
    model(torch.ones(1, 3))
    state = recorder.state_dict()
    before = copy.deepcopy(list(recorder))
    model(torch.zeros(1, 3))
    other = ForwardOutput(reduction=reduction, strict=True).children(network())
    other.load_state_dict(state)
    assert same(list(other), before)
    other.reset()
    other.load_state_dict(state)
    assert same(list(other), before)


@pytest.mark.parametrize("way", [lambda r: pickle.loads(pickle.dumps(r)), copy.deepcopy])
def test_pickles_and_copies(way: Any) -> None:
    """They have the data and no hooks; registered on the model again they go on in the same slots."""
    model = network()
    recorder = ForwardOutput(reduction=Mean(axis=0), strict=True).children(model)
    model(torch.ones(1, 3))
    made = way(recorder)
    assert same(list(made), list(recorder))
    assert [str(site) for site in made.sites] == ["0:output", "1:output"]
    model(torch.full((3, 3), 5.0))
    assert made[0].tolist() == [1, 1, 1]
    assert recorder[0].tolist() == [4, 4, 4]
    assert "registered on no model" in repr(made)
    made.children(model)
    model(torch.full((1, 3), 3.0))
    assert made[0].tolist() == [2, 2, 2]
    assert len(made) == 2


def test_a_model_that_is_recorded_is_copied_without_its_recorder() -> None:
    """A deep copy of the model records nothing."""
    model = network()
    recorder = ForwardOutput(strict=True).children(model)
    copy.deepcopy(model)(torch.ones(1, 3))
    assert list(recorder.iter_samples()) == [0, 0]
    recorder.detach()


def test_a_state_that_does_not_fit() -> None:
    """Each says what it is of and what there is; nothing is changed."""
    model = network()
    recorder = ForwardOutput(reduction=Sum(), strict=True).children(model)
    model(torch.ones(1, 3))
    state, kept = recorder.state_dict(), list(recorder)
    for wrong, text in [
        ({}, "no kind and no reduction and no slots"),
        (state | {"kind": "ForwardPre"}, "kind=ForwardPre, and this one has kind=ForwardOutput"),
        (state | {"reduction": "Mean(axis=0)"}, r"reduction=Mean\(axis=0\)"),
        (state | {"slots": state["slots"][:1]}, "it lacks 1:output"),
        (state | {"slots": [*state["slots"], state["slots"][0] | {"site": "9:output"}]}, "it has 9:output"),
    ]:
        with pytest.raises(ArgumentError, match=text):
            recorder.load_state_dict(wrong)
    assert same(list(recorder), kept)
    assert list(recorder.iter_samples()) == [1, 1]


def test_a_state_of_gradients() -> None:
    """With None among them."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    recorder, other = (BackwardInput(strict=True).children(model) for _ in range(2))
    model(torch.ones(1, 3)).sum().backward()
    other.reset()
    other.load_state_dict(recorder.state_dict())
    assert other[0] == [None]
    assert same(list(other), list(recorder))
