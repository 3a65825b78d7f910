"""Which tokens of sequences are padding."""

from __future__ import annotations

import pytest
import torch

from sonde.engine import padded


@pytest.mark.parametrize("fill", [0, 9])
def test_what_rows_end_with_is_padding(fill: int) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(1, 9, (16, 12), device="cpu")
    is_behind = torch.arange(12, device="cpu") >= torch.arange(5, 13, device="cpu").repeat(2)[:, None]
    tokens[is_behind] = fill
    several = is_behind & (is_behind.sum(1, keepdim=True) > 1)  # one alone may be a word
    assert torch.equal(padded(tokens).bool(), several)


@pytest.mark.parametrize("side", ["right", "left"])
def test_of_unknown_words_and_what_stands_beside_them_the_smaller_number_is_padding(side: str) -> None:
    """A vocabulary that lacks nearly all words: these are one token, and more than the padding."""
    torch.manual_seed(0)
    tokens = torch.where(torch.rand(32, 14) < 0.97, 1, torch.randint(2, 20, (32, 14), device="cpu"))
    is_behind = torch.arange(14, device="cpu") >= torch.randint(4, 15, (32, 1), device="cpu")
    tokens[is_behind] = 0
    tokens = tokens if side == "right" else tokens.flip(1)
    found = padded(tokens).bool()
    assert found.any()
    assert not (found & (tokens != 0)).any()
