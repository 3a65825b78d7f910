"""The text of a stash: one line, whatever it keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import sonde
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
