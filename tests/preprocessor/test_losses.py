"""Losses that modules return, and numbers that loops push."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import sonde
from sonde.errors import ArgumentError
from sonde.preprocessor import ExplicitCall, LossModule, RunningMeanVar


def test_losses_in_training_and_in_evaluation() -> None:
    seen = LossModule(inplace=False, evaluation_from_grad=False)
    seen.set_loss_strs("train", "test")
    loss = nn.MSELoss()
    for value, training in ((1.0, True), (2.0, True), (9.0, False)):
        seen.process_fw("ignored", loss.train(training), None, torch.tensor(value))
    assert seen.value == {"train": [1.0, 2.0], "test": [9.0]}


def test_evaluation_by_gradients() -> None:
    seen = LossModule(evaluation_from_grad=True)
    loss = nn.CrossEntropyLoss()
    scores = torch.zeros(2, 4, requires_grad=True)
    with sonde.observe(loss, seen, strict=True):
        loss(scores, torch.tensor([0, 1]))
        with torch.no_grad():
            loss(scores * 100, torch.tensor([0, 1]))
    assert seen.value["train_loss"].mean == pytest.approx(math.log(4))
    assert seen.value["val_loss"].count == 1


@pytest.mark.parametrize("output", [torch.ones(2), torch.empty(0), torch.tensor(1j), None, 1.0])
def test_what_is_no_loss_is_an_attribute_error_as_in_the_seed(output: Any) -> None:
    seen = LossModule()
    for kind in (AttributeError, ArgumentError):
        with pytest.raises(kind, match=r"mse must return a loss of one element.*reduction='mean'"):
            seen.process_fw("mse", nn.MSELoss(), None, output)
    assert not seen.value["train_loss"]


@pytest.mark.parametrize("output", [torch.tensor(2.0), torch.tensor([[2.0]]), torch.tensor(2), (torch.tensor(2.0), "more")])
def test_any_tensor_of_one_element_is_a_loss(output: Any) -> None:
    seen = LossModule()
    seen.process_fw("", nn.MSELoss(), None, output)
    assert seen.value["train_loss"].mean == 2


def test_n16_n21_a_loss_that_was_not_computed_has_no_data() -> None:
    seen, pushed = LossModule(), ExplicitCall("train_loss", "val_loss")
    seen.process_fw("", nn.MSELoss().eval(), None, torch.tensor(9.0))
    pushed.push_loss(9.0, train=False)
    for one in (seen, pushed):
        assert repr(one.value["train_loss"]) == "RunningMeanVar(no data)"
        assert one.value["val_loss"].mean == 9
        one.reset()
        assert repr(one.value["val_loss"]) == "RunningMeanVar(no data)"
        one.clear()
        assert set(one.value) == {"train_loss", "val_loss"}


def test_a_loss_that_is_not_finite_is_counted_and_kept() -> None:
    running, kept = LossModule(), LossModule(inplace=False)
    for seen in (running, kept):
        for value in (1.0, math.nan, math.inf):
            seen.process_fw("", nn.MSELoss(), None, torch.tensor(value))
    assert (running.value["train_loss"].mean, running.value["train_loss"].nonfinite) == (1, 2)
    assert math.isnan(kept.value["train_loss"][1])
    assert kept.value["train_loss"][2] == math.inf


def test_the_two_losses_need_two_names() -> None:
    with pytest.raises(ArgumentError, match="two names"):
        ExplicitCall("loss", "loss")
    with pytest.raises(ArgumentError, match="two names"):
        LossModule().set_loss_strs("loss", "loss")


# Pushing


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=20))
def test_both_ways_of_pushing_hold_the_same_numbers(values: list[float]) -> None:
    pushed = ExplicitCall("train", "test")
    for value in values:
        pushed.push_loss(value, train=True)
        pushed.push_loss(torch.tensor([value], dtype=torch.float64), train=False, running=False)
    running, kept = pushed.value["train"], pushed.value["test"]
    if values:
        assert kept == values
        assert (running.mean, running.var) == pytest.approx((kept.mean, kept.var), rel=1e-6, abs=1e-4)
    assert (running.count, running.min_, running.max_) == pytest.approx((len(kept), kept.min_, kept.max_), nan_ok=True)


def test_what_is_pushed_as_a_tensor_is_a_copy_without_a_graph() -> None:
    pushed = ExplicitCall("train", "test")
    loss = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    returned = LossModule()
    returned.process_fw("", nn.MSELoss(), None, loss)
    pushed.push_running("a", loss * 2)
    pushed.push_running("c", loss)
    pushed.push_memory("b", loss)
    image = torch.zeros(2, requires_grad=True)
    pushed.push_memory("image", image)
    with torch.no_grad():
        loss.add_(5)
        image.add_(5)
    assert pushed.value["a"].mean == 2
    assert pushed.value["c"].mean == returned.value["train_loss"].mean == 1
    assert pushed.state["b"] == [1.0]
    assert pushed.value["image"][0].tolist() == [0, 0]
    assert not pushed.value["image"][0].requires_grad


def test_order_is_kept_and_anything_can_be_remembered() -> None:
    pushed = ExplicitCall("train", "test")
    for value in (1, torch.tensor(2), "three", None):
        pushed.push_memory("things", value)
    assert pushed.value["things"] == [1, 2.0, "three", None]


def test_a_name_is_pushed_in_one_way_within_an_interval() -> None:
    pushed = ExplicitCall("train", "test")
    pushed.push_running("accuracy", torch.tensor(0.5))
    with pytest.raises(ArgumentError, match="'accuracy' is a running aggregate in this interval"):
        pushed.push_memory("accuracy", 0.5)
    pushed.push_memory("kept", 0.5)
    with pytest.raises(ArgumentError, match="'kept' is a list in this interval"):
        pushed.push_running("kept", 0.5)
    pushed.reset()
    pushed.push_memory("accuracy", 0.5)
    assert pushed.value["accuracy"] == [0.5]


@pytest.mark.parametrize("value", ["0.5", None, torch.ones(2), torch.tensor(1j)])
def test_what_is_no_number_cannot_be_aggregated(value: Any) -> None:
    pushed = ExplicitCall("train", "test")
    with pytest.raises(ArgumentError, match="a real number"):
        pushed.push_running("a", value)
    with pytest.raises(ArgumentError, match="a real number"):
        pushed.push_loss(value, train=True)
    assert "a" not in pushed.value


def test_value_is_a_copy_and_state_is_not() -> None:
    pushed = ExplicitCall("train", "test")
    pushed.push_loss(1.0, train=True)
    value = pushed.value
    pushed.push_loss(3.0, train=True)
    assert value["train"].mean == 1
    assert pushed.state["train"].mean == 2
    pushed.reset()
    assert value["train"].mean == 1
    with pytest.raises(sonde.errors.UnknownSiteError, match="Nearest: train"):
        pushed.value["trian"]


def test_pushing_for_ever_takes_no_memory_and_copies_survive() -> None:
    pushed = ExplicitCall("train", "test")
    for step in range(10_000):
        pushed.push_loss(torch.tensor(float(step % 2)), train=True)
    assert len(pushed._pending) < 5_000
    for held in (copy.deepcopy(pushed), pickle.loads(pickle.dumps(pushed))):
        assert held.value["train"].count == 10_000
    assert pushed.value["train"].mean == 0.5
    assert "train: RunningMeanVar(count=10000, mean=0.5" in repr(pushed)
    assert isinstance(pushed.state["test"], RunningMeanVar)
