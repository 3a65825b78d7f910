"""A loss of each output with each target, as of shapes (N, 1) and (N,), is told where the model or a factor brings it about."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde


class WideAndDeep(nn.Module):
    """A network of numbers beside a table; *of_table* gives what the table returns another shape."""

    def __init__(self, of_table: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.deep, self.wide = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)), nn.Embedding(9, 1)
        self.of_table = of_table

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        return self.deep(x) + self.of_table(self.wide(place))


class Gated(nn.Module):
    """Two numbers of a recurrent layer, one of which opens the other."""

    def __init__(self, of_gate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.head, self.of_gate = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 2), of_gate

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.head(self.layer(x)[0][:, -1]).split(1, 1)
        return value * self.of_gate(gate.sigmoid())


def told(model: nn.Module, batch: object, loss_fn: Callable[[Tensor], Tensor]) -> list[tuple[str, str]]:
    found = sonde.preflight(model, batch, loss_fn, checks=["loss_shape"], verbose=False)["loss_shape"].findings
    return [(each.severity, each.message) for each in found]


@pytest.mark.parametrize("is_wrong", [True, False])
def test_an_output_of_samples_by_samples_is_told_whatever_the_loss(is_wrong: bool) -> None:
    torch.manual_seed(0)
    y, change = torch.randn(24), (lambda held: held[:, 0]) if is_wrong else (lambda held: held)
    batch = torch.randn(24, 6), torch.randint(9, (24,))
    found = told(WideAndDeep(change), batch, lambda made: (made - y if is_wrong else made[:, 0] - y).abs().mean())
    words = "a difference compares each output with each target: 576 pairs of 24 samples; the model itself returns 24 x 24 numbers"
    assert found == [("warn", words)] * is_wrong
    found = told(Gated(change), torch.randn(24, 5, 3), lambda made: functional.mse_loss(made if is_wrong else made[:, 0], y))
    assert found == [("bad", words.replace("a difference", "mse_loss"))] * is_wrong


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_as_many_columns_as_samples_are_no_pairs() -> None:
    torch.manual_seed(0)
    means = torch.randn(16)
    model, x = nn.Sequential(nn.Linear(6, 16)), torch.randn(16, 6)
    assert told(model, x, lambda made: (made - means).square().mean()) == []
    assert told(model, x, lambda made: (made @ made.T - torch.eye(16)).square().mean()) == []


@pytest.mark.parametrize("is_wrong", [True, False])
def test_a_factor_of_the_loss_that_meets_each_sample_is_told(is_wrong: bool) -> None:
    torch.manual_seed(0)
    x, actions = torch.randn(24, 6), torch.randint(3, (24,))
    gains, kept = torch.rand(24, 1) if is_wrong else torch.rand(24), torch.rand(24, 1)

    def policy(made: Tensor) -> Tensor:
        logs = made.log_softmax(-1).gather(1, actions[:, None])[:, 0]
        return -(gains * logs).mean()

    def masked(made: Tensor) -> Tensor:
        return (made.square().mean(1) * (kept if is_wrong else kept[:, 0])).mean()

    for loss_fn in (policy, masked):
        found = told(nn.Linear(6, 3), x, loss_fn)
        assert [message.partition(":")[0] for _, message in found] == [
            "the loss multiplies each of 24 samples with each"
        ] * is_wrong


def test_weights_of_classes_are_no_factor_of_samples() -> None:
    """They are as many as samples by chance, and both sides are made by the model, or none is."""
    torch.manual_seed(0)
    x = torch.randn(24, 6)
    assert told(nn.Linear(6, 24), x, lambda made: (made[:, :1] * made[:, 1]).mean()) == []
    assert told(nn.Linear(6, 3), x, lambda made: (made.mean(1) * torch.rand(24)).mean()) == []
