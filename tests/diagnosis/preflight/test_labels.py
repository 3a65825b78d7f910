"""Which classes count is told: outputs without a class, a class that is ignored, weights of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde


def classifier(out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, out))


class Bag(nn.Module):
    """A mean of embeddings, and log-probabilities of classes."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16), nn.Linear(16, out)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens).mean(1)).log_softmax(-1)


def judged(model: nn.Module, batch: Any, loss_fn: Callable[[Tensor], Tensor]) -> Any:
    return sonde.preflight(model, batch, loss_fn, checks=["labels"], verbose=False)["labels"]


def of_linear(out: int, y: Tensor, **settings: Any) -> Any:
    return judged(classifier(out), torch.randn(len(y), 6), lambda made: functional.cross_entropy(made, y, **settings))


def of_bag(out: int, y: Tensor, **settings: Any) -> Any:
    return judged(Bag(out), torch.randint(50, (len(y), 7)), lambda made: functional.nll_loss(made, y, **settings))


@pytest.mark.parametrize("of", [of_linear, of_bag])
@pytest.mark.parametrize(
    ("out", "classes", "told"), [(1000, 8, True), (10, 2, True), (10, 5, False), (10, 10, False), (1000, 24, False)]
)
def test_far_more_outputs_than_classes_are_a_note(of: Callable[..., Any], out: int, classes: int, told: bool) -> None:
    torch.manual_seed(0)
    found = of(out, torch.arange(32) % classes)
    assert [each.message.partition(",")[0] for each in found.findings] == [f"all 32 labels are below {classes}"] * told
    assert found.verdict == ("note" if told else "ok")


def test_many_columns_without_a_label_are_no_classes_where_no_layer_makes_them() -> None:
    """As of samples that are compared with many others, whose labels are places."""
    torch.manual_seed(0)
    places = torch.arange(32) % 8

    def loss_fn(made: Tensor) -> Tensor:
        return functional.cross_entropy(made @ torch.randn(3, 99), places)

    assert judged(classifier(3), torch.randn(32, 6), loss_fn).verdict == "ok"


@pytest.mark.parametrize("of", [of_linear, of_bag])
@pytest.mark.parametrize(("left_out", "told"), [(0, True), (2, True), (-100, False), (3, False)])
def test_a_class_that_is_ignored_is_told(of: Callable[..., Any], left_out: int, told: bool) -> None:
    torch.manual_seed(0)
    found = of(3, torch.arange(18) % 3, ignore_index=left_out)
    words = f"33 % of the labels, one of each sample, are {left_out}"
    assert [each.message[: len(words)] for each in found.findings if each.severity != "note"] == [words] * told


def test_one_class_of_two_that_is_ignored_leaves_one() -> None:
    torch.manual_seed(0)
    maps = torch.randint(2, (2, 8, 8))
    model, x = nn.Conv2d(3, 2, 3, padding=1), torch.randn(2, 3, 8, 8)
    found = judged(model, x, lambda made: functional.cross_entropy(made, maps, ignore_index=0)).findings
    assert "counts are one class, and it leaves out the others, of class 0" in found[0].message
    assert "leaves out the others, of class 1" in of_linear(2, torch.arange(40) % 2, ignore_index=1).findings[0].message


def test_padding_that_is_ignored_is_no_class() -> None:
    """One label of each token; and samples without a label, which are more than a class has."""
    torch.manual_seed(0)
    tags = torch.randint(1, 5, (8, 12))
    tags[:, 9:] = 0
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 5))
    tokens = torch.randint(50, (8, 12))
    found = judged(model, tokens, lambda made: functional.cross_entropy(made.transpose(1, 2), tags, ignore_index=0))
    assert found.verdict == "ok"
    assert of_linear(5, (torch.arange(48) % 4 + 1) * (torch.arange(48) < 8), ignore_index=0).verdict == "ok"


@pytest.mark.parametrize("of", [of_linear, of_bag])
@pytest.mark.parametrize(
    ("weight", "verdict", "words"),
    [
        ([0.0, 0.0, 1.0], "warn", "the samples of one class, 20 % of all, have 100 % of the weight"),
        ([2.0, 0.5, 0.5], "warn", "each sample of the most frequent class, 60 % of all, weighs 4 x"),
        ([1.0, 0.0, 1.0], "note", "20 % of the labels are of 1 class whose weight is 0"),
        ([0.3, 1.0, 1.0], "ok", ""),
        ([1.0, 1.0, 1.0], "ok", ""),
        ([1.0, 1.3, 1.7], "ok", ""),
    ],
)
def test_what_classes_weigh_is_judged(of: Callable[..., Any], weight: list[float], verdict: str, words: str) -> None:
    torch.manual_seed(0)
    y = torch.tensor([0, 0, 0, 1, 2] * 16)
    found = of(3, y, weight=torch.tensor(weight))
    assert (found.verdict, [each.message[: len(words)] for each in found.findings]) == (verdict, [words] * bool(words))


def test_a_background_of_weight_0_may_be_left_out_and_two_classes_are_a_note() -> None:
    torch.manual_seed(0)
    maps, x = torch.randint(4, (2, 8, 8)), torch.randn(2, 3, 8, 8)
    for weight, verdict in (([0.0, 1.0, 1.0, 1.0], "ok"), ([0.0, 0.0, 1.0, 1.0], "note")):
        model = nn.Conv2d(3, 4, 3, padding=1)
        loss_fn = nn.CrossEntropyLoss(torch.tensor(weight))
        assert judged(model, x, lambda made, loss_fn=loss_fn: loss_fn(made, maps)).verdict == verdict  # type: ignore[misc]


@pytest.mark.parametrize(("times", "verdict"), [(100.0, "warn"), (3.0, "ok")])
def test_a_positive_weight_that_outweighs_all_others_is_told(times: float, verdict: str) -> None:
    torch.manual_seed(0)
    y = (torch.arange(80) % 4 == 0).float()[:, None]
    settings = {"pos_weight": torch.tensor([times])}
    found = judged(classifier(1), torch.randn(80, 6), lambda made: functional.binary_cross_entropy_with_logits(made, y, **settings))
    assert found.verdict == verdict
