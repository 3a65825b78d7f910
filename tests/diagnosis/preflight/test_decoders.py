"""A decoder that is given a source and its own past is judged as one that is given its past alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde


class Captions(nn.Module):
    """Attention to features of an image; *is_causal*: a token sees those before it alone."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.table, self.head, self.is_causal = nn.Embedding(20, 16), nn.Linear(16, 20), is_causal
        self.places = nn.Parameter(torch.randn(12, 16))
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, features: Tensor, target: Tensor) -> Tensor:
        count = target.shape[1]
        mask = torch.full((count, count), -torch.inf).triu(1) if self.is_causal else None
        return self.head(self.layer(self.table(target) + self.places[:count], features, mask))


class Residuals(nn.Module):
    """Convolutions over a series, beside another one; padded on both sides they see the next value."""

    def __init__(self, padding: tuple[int, int]) -> None:
        super().__init__()
        self.first, self.last, self.padding = nn.Conv1d(2, 8, 3), nn.Conv1d(8, 1, 1), padding

    def forward(self, weather: Tensor, y: Tensor) -> Tensor:
        x = functional.pad(torch.stack([weather, y], 1), self.padding)
        return self.last(self.first(x).relu())[:, 0]


def captions(is_causal: bool) -> tuple[nn.Module, tuple[Tensor, Tensor], Tensor]:
    tokens = torch.randint(20, (8, 11))
    return Captions(is_causal), (torch.randn(8, 5, 16), tokens[:, :-1]), tokens[:, 1:]


@pytest.mark.parametrize("is_right", [True, False])
def test_a_decoder_beside_another_input_that_sees_the_next_element_is_told(is_right: bool) -> None:
    torch.manual_seed(0)
    model, batch, goal = captions(is_right)
    found = sonde.preflight(model, batch, lambda made: functional.cross_entropy(made.mT, goal), checks=["future_unseen"])
    assert (found["future_unseen"].verdict, found["future_unseen"].words) == (
        ("ok", "changing later elements of target changes no earlier output")
        if is_right
        else ("bad", "changing later elements of target")
    )
    series, weather = torch.randn(8, 14), torch.randn(8, 13)
    loss = lambda made: functional.mse_loss(made, series[:, 1:])  # noqa: E731
    model = Residuals((2, 0) if is_right else (1, 1))
    found = sonde.preflight(model, (weather, series[:, :-1]), loss, checks=["future_unseen"])
    assert found["future_unseen"].verdict == ("ok" if is_right else "bad")


@pytest.mark.parametrize("is_right", [True, False])
def test_a_decoder_whose_targets_are_not_shifted_is_told(is_right: bool) -> None:
    torch.manual_seed(0)
    model, (features, tokens), goal = captions(is_causal=True)
    goal = goal if is_right else tokens
    found = sonde.preflight(
        model, (features, tokens), lambda made: functional.cross_entropy(made.mT, goal), checks=["targets_apart"]
    )
    assert [each.rule for each in found.findings] == ["target_shifted"] * (not is_right)


def test_targets_that_a_model_is_given_and_does_not_read_are_no_copy() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 9)

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            made = self.layer(x)
            return {"loss": functional.mse_loss(made, y), "made": made}

    torch.manual_seed(0)
    found = sonde.preflight(Own(), (torch.randn(8, 6), torch.randn(8, 9)), checks=["future_unseen", "targets_apart"])
    assert [each.verdict for each in found.checks] == ["unknown", "ok"]
