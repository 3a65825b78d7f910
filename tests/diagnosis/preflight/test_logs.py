"""A loss of logarithms of probabilities is told to be given something else: another axis, or what a layer returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde

TAGS = torch.randint(5, (6, 9), generator=torch.Generator().manual_seed(0))


class Tagger(nn.Module):
    """A network over tokens, ``(samples, times, classes)``; *last* makes logarithms of what it returns."""

    def __init__(self, last: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.head, self.last = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 5), last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.head(self.layer(x)[0]))


def turned(made: Tensor) -> Tensor:
    return functional.nll_loss(made.mT, TAGS)


def in_a_row(made: Tensor) -> Tensor:
    return functional.nll_loss(made.flatten(0, 1), TAGS.flatten())


def ctc(made: Tensor) -> Tensor:
    return functional.ctc_loss(made.transpose(0, 1), TAGS[:, :3].clamp(min=1), [9] * 6, [3] * 6)


def judged(last: Callable[[Tensor], Tensor], loss_fn: Callable[[Tensor], Tensor]) -> Any:
    torch.manual_seed(0)
    return sonde.preflight(Tagger(last), torch.randn(6, 9, 4), loss_fn, checks=["loss_input"], verbose=False)["loss_input"]


@pytest.mark.parametrize("loss_fn", [turned, in_a_row, ctc])
def test_a_softmax_over_time_is_told(loss_fn: Callable[[Tensor], Tensor]) -> None:
    found = judged(lambda made: made.log_softmax(1), loss_fn)
    name = "ctc_loss" if loss_fn is ctc else "nll_loss"
    words = f"{name} is given a softmax over axis 1 of 6×9×5, which is not that of its classes"
    assert [(each.rule, each.severity, each.message) for each in found.findings] == [("samples_mixed", "bad", words)]
    right = judged(lambda made: made.log_softmax(-1), loss_fn)
    assert (right.verdict, right.words) == ("ok", "log-probabilities")


@pytest.mark.parametrize("loss_fn", [turned, in_a_row, ctc])
def test_outputs_of_a_layer_are_told_to_be_no_logarithms(loss_fn: Callable[[Tensor], Tensor]) -> None:
    found = judged(lambda made: made, loss_fn)
    assert [each.rule for each in found.findings] == ["softmax_twice"]
    assert "the outputs of a layer as they are" in found.findings[0].message


def test_a_logarithm_of_shares_and_a_smoothed_one_are_no_fault() -> None:
    assert judged(lambda made: made.softmax(-1).log(), turned).verdict == "ok"
    assert judged(lambda made: (made.softmax(-1) + 1e-3).log(), in_a_row).verdict == "ok"
    assert judged(lambda made: made.log_softmax(-1).masked_fill(made > 9, -9.0), ctc).verdict == "ok"
