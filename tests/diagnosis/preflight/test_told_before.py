"""Faults of a first step that checks before a training name: a divergence, an eps, a view of logits, a mask the wrong way round."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde


def judged(model: nn.Module, batch: Any, loss_fn: Any, check: str, optimizer: Any = None) -> list[tuple[str, str]]:
    torch.manual_seed(0)
    found = sonde.preflight(model, batch, loss_fn, optimizer, checks=[check], verbose=False)[check].findings
    return [(each.rule, each.severity) for each in found]


class Encoder(nn.Module):
    """Means and logarithms of variances of a code, and what is made of a code that is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, wide = self.into(x).chunk(2, 1)
        return self.out(mean + torch.randn_like(mean) * (wide / 2).exp()), mean, wide


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_divergence_that_is_subtracted_is_told(sign: float) -> None:
    x, model = torch.randn(32, 6), Encoder()

    def loss_fn(made: Any) -> Tensor:
        divergence = -0.5 * (1 + made[2] - made[1] ** 2 - made[2].exp()).sum(1).mean()
        return functional.mse_loss(made[0], x) + sign * divergence

    told = judged(model, x, loss_fn, "overfit", torch.optim.Adam(model.parameters(), lr=1e-2))
    assert ("loss_unbounded", "warn") in told if sign < 0 else "loss_unbounded" not in dict(told)


@pytest.mark.parametrize("eps", [1.0, 1e-8])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop])
def test_an_eps_far_above_the_gradients_is_told(kind: Any, eps: float) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    told = judged(
        model,
        torch.randn(32, 6),
        lambda made: functional.cross_entropy(made, torch.arange(32) % 3),
        "first_update",
        kind(model.parameters(), lr=1e-3, eps=eps),
    )
    assert told == ([("eps_large", "warn")] if eps == 1 else [])


@pytest.mark.parametrize("is_turned", [True, False])
def test_a_view_of_logits_that_mixes_classes_is_told(is_turned: bool) -> None:
    y = torch.randint(3, (4, 8, 8))

    def loss_fn(made: Tensor) -> Tensor:
        rows = made.permute(0, 2, 3, 1) if is_turned else made
        return functional.cross_entropy(rows.reshape(-1, 3), y.reshape(-1))

    told = judged(nn.Conv2d(2, 3, 3, padding=1), torch.randn(4, 2, 8, 8), loss_fn, "loss_shape")
    assert told == ([] if is_turned else [("samples_mixed", "bad")])


class Masked(nn.Module):
    """Attention over tokens, of which a mask leaves padding out; the mean over tokens, or the last place, is read."""

    def __init__(self, *, is_turned: bool = False, reads_last: bool = False) -> None:
        super().__init__()
        self.table, self.places, self.head = nn.Embedding(20, 16), nn.Parameter(torch.randn(9, 16)), nn.Linear(16, 2)
        self.layer, self.is_turned, self.reads_last = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), is_turned, reads_last

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        made = self.layer(self.table(tokens) + self.places, src_key_padding_mask=mask == self.is_turned)
        share = mask[..., None].float()
        return self.head(made[:, -1] if self.reads_last else (made * share).sum(1) / share.sum(1))


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (Masked(), []),
        (Masked(is_turned=True), [("padding_alone", "warn")]),
        (Masked(reads_last=True), [("padding_alone", "warn")]),
    ],
)
def test_padding_that_is_read_though_a_mask_is_given_is_told(model: nn.Module, wanted: list[tuple[str, str]]) -> None:
    mask = torch.arange(9) < 3 + torch.arange(16)[:, None] % 6
    tokens = torch.randint(1, 20, (16, 9), generator=torch.Generator().manual_seed(0)) * mask
    told = judged(model, (tokens, mask), lambda made: functional.cross_entropy(made, torch.arange(16) % 2), "input_used")
    assert told == wanted


@pytest.mark.parametrize("labels", [torch.zeros(32, dtype=torch.long), torch.arange(32)])
def test_labels_of_pairs_that_are_all_one_are_told(labels: Tensor) -> None:
    body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))

    def loss_fn(made: Tensor) -> Tensor:
        views = functional.normalize(made, dim=1)
        return functional.cross_entropy(views @ (views + 0.1 * torch.randn(32, 8)).T / 0.1, labels)

    assert judged(body, torch.randn(32, 6), loss_fn, "labels") == ([] if labels.any() else [("labels_alike", "warn")])
