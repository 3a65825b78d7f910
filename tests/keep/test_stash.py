"""A stash: its text is one line, whatever it keeps; and what the model has overwritten is never read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.errors import StaleTensorError
from sonde.keep.stash import short_repr


def test_a_stash_is_one_short_line_whatever_it_keeps() -> None:
    """Place, time, shape, type and three elements; never the tensor."""
    model = nn.Sequential(nn.Linear(4, 300), nn.LSTM(300, 8))
    nn.init.ones_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    with sonde.track(model) as tracker:
        model(torch.ones(50, 2, 4))[0].sum().backward()
    expected = "Stash(0:output, Linear, epoch 0, step 0, forward 0: 50×2×300 float32 [4, 4, 4, ...])"
    assert repr(tracker[0]) == str(tracker[0]) == expected
    assert "[1][0] 1×2×8 float32 [" in repr(tracker["1"][0])
    assert all(len(repr(stash)) < 300 for stash in tracker)
    with sonde.track(model, stash_value=lambda tensor: tensor.numel()) as tracker:
        model(torch.ones(50, 2, 4))
    assert repr(tracker[0]).endswith("forward 0: 30000)")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.ones(2, 3, dtype=torch.bool), "2×3 bool [True, True, True, ...]"),
        (torch.tensor(2.0, dtype=torch.float8_e4m3fn), "scalar float8_e4m3fn [2]"),
        (torch.tensor([1 + 2j]), "1 complex64 [1+2j]"),
        (torch.tensor([float("nan"), float("inf")]), "2 float32 [nan, inf]"),
        (torch.zeros(0, 3), "0×3 float32 []"),
        (torch.ones(2, device="meta"), "2 float32 on meta"),
        (torch.eye(3).to_sparse(), "3×3 float32"),
        (torch.ones(2, requires_grad=True), "2 float32 [1, 1]"),
        (0.123456, "0.1235"),
        ("x" * 100, "'" + "x" * 59 + "..."),
    ],
)
def test_a_kept_value_in_a_line(value: Any, text: str) -> None:
    assert short_repr(value) == text


PARTS: dict[str, Callable[[Tensor], Any]] = {
    "all of it": lambda tensor: tensor.detach(),
    "from the second row on": lambda tensor: tensor.detach()[1:],
    "the last element": lambda tensor: tensor.detach()[-1, -1:],
    "every second column": lambda tensor: tensor.detach()[:, 1::2],
    "another shape": lambda tensor: tensor.detach().flatten()[3:],
    "an array": lambda tensor: tensor.detach().numpy(),
    "a part of an array": lambda tensor: tensor.detach().numpy()[1:],
}


@pytest.mark.parametrize("part", PARTS)
def test_a_kept_part_that_the_model_has_overwritten_is_not_read(part: str) -> None:
    """Wherever it begins in the memory that the ReLU writes into."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True))
    with sonde.track(model, stash_value=PARTS[part]) as tracker:
        model(torch.randn(5, 4))
    with pytest.raises(StaleTensorError, match="kept at 0:output is no copy"):
        tracker["0:output"]


@pytest.mark.parametrize("part", PARTS)
def test_a_kept_part_that_nothing_overwrites_is_read(part: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    with sonde.track(model, stash_value=PARTS[part]) as tracker:
        model(x := torch.randn(5, 4))
    kept = tracker["0:output"][0].value
    assert torch.equal(torch.as_tensor(kept), torch.as_tensor(PARTS[part](model[0](x))))


class Neighbours(nn.Module):
    """Returns one half of a memory, and then writes into it; the other half is :attr:`beside`."""

    def __init__(self, *, is_before: bool) -> None:
        super().__init__()
        self.inner = nn.Identity()
        halves = np.split(np.zeros(8, np.float32), 2)
        self.written, self.beside = (torch.from_numpy(half) for half in (halves[::-1] if is_before else halves))

    def forward(self, x: Tensor) -> Tensor:
        self.inner(self.written)
        self.written += x
        return self.written


@pytest.mark.parametrize("is_before", [False, True])
def test_memory_right_beside_that_which_was_overwritten_is_read(is_before: bool) -> None:
    """A tensor that ends where the other begins shares nothing with it."""
    model = Neighbours(is_before=is_before)
    with sonde.track(model, stash_value=lambda tensor: model.beside, include="inner") as tracker:
        model(torch.ones(4))
    assert tracker["inner:output"][0].value.tolist() == [0.0] * 4
