"""Padding that is read in the place of what it pads is told: by the model, and by the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde

LENGTHS = 4 + torch.arange(16) % 8
IS_PADDING = torch.arange(11) >= LENGTHS[:, None]
TOKENS = torch.where(IS_PADDING, 0, torch.randint(1, 30, (16, 11), generator=torch.Generator().manual_seed(1)))
SERIES = torch.where(IS_PADDING[..., None], 0.0, torch.randn(16, 11, 3, generator=torch.Generator().manual_seed(1)))
Y = torch.arange(16) % 3


class Mean(nn.Module):
    """A mean of embeddings over places that *counts* chooses, as it is given the tokens."""

    def __init__(self, counts: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.places, self.head, self.counts = nn.Embedding(30, 16), nn.Embedding(11, 16), nn.Linear(16, 3), counts

    def forward(self, tokens: Tensor) -> Tensor:
        share = self.counts(tokens).float()[..., None]
        made = (self.table(tokens) + self.places.weight) * share
        return self.head(made.sum(1) / share.sum(1).clamp(min=1))


class Attending(nn.Module):
    """Attention of one query to a series whose padding, or all else, is masked."""

    def __init__(self, is_turned: bool) -> None:
        super().__init__()
        self.into, self.query, self.head = nn.Linear(3, 8), nn.Parameter(torch.randn(1, 1, 8)), nn.Linear(8, 3)
        self.layer, self.is_turned = nn.MultiheadAttention(8, 2, batch_first=True), is_turned

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        left_out = torch.arange(x.shape[1]) >= lengths[:, None]
        left_out = ~left_out if self.is_turned else left_out
        keys = self.into(x)
        return self.head(self.layer(self.query.expand(len(x), 1, 8), keys, keys, key_padding_mask=left_out)[0][:, 0])


class LastPlace(nn.Module):
    """What a convolution makes of the last place of a row, or of the last token."""

    def __init__(self, is_wrong: bool) -> None:
        super().__init__()
        self.table, self.conv, self.head, self.is_wrong = nn.Embedding(30, 8), nn.Conv1d(8, 8, 1), nn.Linear(8, 3), is_wrong

    def forward(self, tokens: Tensor) -> Tensor:
        made = self.conv(self.table(tokens).mT).relu()
        at = torch.full((len(tokens),), -1) if self.is_wrong else (tokens != 0).sum(1) - 1
        return self.head(made[torch.arange(len(tokens)), :, at])


def told(model: nn.Module, batch: Any, loss_fn: Callable[[Tensor], Tensor], check: str) -> list[tuple[str, str]]:
    torch.manual_seed(0)
    found = sonde.preflight(model, batch, loss_fn, checks=[check], verbose=False)[check].findings
    return [(each.rule, each.severity) for each in found if each.rule == "padding_alone"]


def classify(made: Tensor) -> Tensor:
    return functional.cross_entropy(made, Y)


@pytest.mark.parametrize("is_wrong", [True, False])
def test_a_model_that_reads_padding_alone_is_told(is_wrong: bool) -> None:
    wanted = [("padding_alone", "bad")] * is_wrong
    assert told(Mean(lambda tokens: (tokens == 0) == is_wrong), TOKENS, classify, "input_used") == wanted
    assert told(LastPlace(is_wrong), TOKENS, classify, "input_used") == wanted


def test_attention_to_the_zeros_behind_a_series_is_told() -> None:
    """Where they are zeros, which nothing can be in the place of, no output depends on the series at all."""
    torch.manual_seed(0)
    found = [
        sonde.preflight(Attending(is_turned), (SERIES, LENGTHS.clamp(max=10)), classify, checks=["input_used"], verbose=False)[
            "input_used"
        ]
        for is_turned in (True, False)
    ]
    assert [each.verdict for each in found] == ["bad", "ok"]


def test_ones_and_zeros_and_sequences_without_padding_are_none() -> None:
    kinds = (TOKENS != 0).long()
    assert told(Mean(torch.ones_like), kinds, classify, "input_used") == []
    assert told(Mean(torch.ones_like), TOKENS.clamp(min=1), classify, "input_used") == []


def tagger() -> nn.Module:
    return nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 5))


@pytest.mark.parametrize("is_wrong", [True, False])
def test_a_loss_that_reads_outputs_at_padding_alone_is_told(is_wrong: bool) -> None:
    torch.manual_seed(0)
    tags, goal = torch.randint(5, (16, 11)), torch.randn(16, 11)
    counts = is_wrong == IS_PADDING
    labels = torch.where(counts, tags, -100)

    def ignored(made: Tensor) -> Tensor:
        return functional.cross_entropy(made.mT, labels)

    def masked(made: Tensor) -> Tensor:
        return ((made.mean(2) - goal).square() * counts).sum() / counts.sum()

    for loss_fn in (ignored, masked):
        assert told(tagger(), TOKENS, loss_fn, "targets_used") == [("padding_alone", "bad")] * is_wrong
