"""Validation losses of inputs that are prepared otherwise, or of another model, are told where they rise or stand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde


def findings(
    prepare: Any = None, *, of_copy: bool = False, worsens: bool = False, draw: Callable[[Tensor], Tensor] = lambda x: x
) -> list[tuple[str, str]]:
    """Train a small network with validation losses of what *prepare* makes of its inputs, or of a copy that is never trained.

    They rise if what is to be learnt in them *worsens*. *draw* makes inputs of normal numbers.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    other, optimizer, weights = copy.deepcopy(model), torch.optim.Adam(model.parameters(), lr=1e-2), torch.randn(6, 1)

    def loss_of(network: nn.Module, x: Tensor, given: Tensor, more: float = 0.0) -> Tensor:
        return (network(given) - x @ weights - more).square().mean()

    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for step in range(160):
            x = draw(torch.randn(64, 6))
            loss = loss_of(model, x, x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            inspector.push_loss(loss, train=True)
            if step % 10 == 9:
                model.eval()
                with torch.no_grad():
                    x = draw(torch.randn(64, 6))
                    far, network = step / 20 * worsens, other if of_copy else model
                    inspector.push_loss(loss_of(network, x, x if prepare is None else prepare(x), far), train=False)
                model.train()
    return [(each.rule, each.message) for each in inspector.findings if each.severity != "note"]


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda x: 20 * x, "in evaluation what goes in is "),
        (lambda x: x / 50, "in evaluation what goes in is 0.02"),
        (lambda x: x + 5, "in evaluation what goes in has a mean of "),
    ],
)
def test_other_inputs_in_evaluation_are_told_first(prepare: Any, said: str) -> None:
    (rule, message), *rest = findings(prepare)
    assert rule == "eval_mode"
    assert message.startswith(said)
    assert {rule for rule, _ in rest} <= {"overfitting", "loss_stuck"}


@pytest.mark.parametrize(("sign", "is_told"), [(-1.0, True), (1.0, False)])
def test_inputs_that_are_inverted_in_evaluation_are_told(sign: float, is_told: bool) -> None:
    """Of mean 0 and deviation 1, as of images that are dark for the most part: only what lies above and below is exchanged."""
    told = findings(lambda x: sign * x, draw=lambda x: (x.square() - 1) / 2**0.5)
    assert (
        any(message.startswith("in evaluation what goes in is as if inverted: its skewness is -") for _, message in told) is is_told
    )


def test_validation_losses_of_another_model_are_told() -> None:
    (rule, message), *_ = findings(of_copy=True)
    assert rule == "eval_mode"
    assert message.startswith("validation losses come without a pass of the whole model")


def test_where_the_validation_loss_follows_nothing_is_told() -> None:
    assert findings() == []


def test_a_validation_loss_that_rises_by_itself_is_of_the_model() -> None:
    """After some passes no further ones are looked at."""
    assert {rule for rule, _ in findings(worsens=True)} == {"overfitting"}
