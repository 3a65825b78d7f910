"""What the graph of a loss says: a softmax twice or over the samples, shapes that broadcast, and layers that no module holds."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.quick import quick
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.rules import Finding

pytestmark = pytest.mark.first_is_quick


def trained(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], steps: int = 12, **settings: Any) -> dict[str, Finding]:
    """The findings of a training, by rule, each of which is told once."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with sonde.watch(model, optimizer, **{"every": 1, **settings}, to="memory", verbose=False) as inspector:
        for _ in range(steps):
            x = torch.randn(12, 8)
            value = loss(model(x), x)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            inspector.push_loss(value.item(), train=True)
    assert len({each.rule for each in inspector.findings}) == len(inspector.findings)
    return {each.rule: each for each in inspector.findings}


def aligned(axis: int, *, turned: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    """A CTC loss of four steps of four samples and three classes."""
    of_all = torch.full((4,), 4), torch.full((4,), 2)

    def loss(y: Tensor, x: Tensor) -> Tensor:
        made = y.repeat(2, 1)[:16].reshape(4, 4, 3).log_softmax(axis)
        made = made.transpose(0, 1) if turned else made
        return functional.ctc_loss(made, torch.ones(4, 2, dtype=torch.int64).cumsum(1), *of_all)

    return loss


def policy(weight: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A policy gradient of choices, and an entropy of a weight."""

    def loss(y: Tensor, x: Tensor) -> Tensor:
        chances = torch.distributions.Categorical(logits=y)
        return -(chances.log_prob(classes(x)) * x[:, 0]).mean() - weight * chances.entropy().mean()

    return loss


def ratio(*, is_kept: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """A policy gradient of ratios of likelihoods: to those that were *kept*, or to the very same."""

    def loss(y: Tensor, x: Tensor) -> Tensor:
        chances = y.log_softmax(1).gather(1, classes(x)[:, None])[:, 0]
        return -((chances - (chances.detach() if is_kept else chances)).exp() * x[:, 0]).mean()

    return loss


def valued(y: Tensor, x: Tensor, advantage: Tensor) -> Tensor:
    """A policy gradient of choices among three, and the error of a value."""
    chances = y[:, :3].log_softmax(1).gather(1, classes(x)[:, None])[:, 0]
    return (y[:, 3] - x[:, 0]).square().mean() - (chances * advantage).mean()


def ctc(*, is_view: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """A CTC loss of three steps of samples, which the model returns first."""

    def loss(y: Tensor, x: Tensor) -> Tensor:
        made = y.reshape(12, 3, 3)
        made = made.reshape(3, 12, 3) if is_view else made.transpose(0, 1)
        labels = torch.ones(12, 1, dtype=torch.int64)
        return functional.ctc_loss(made.log_softmax(-1), labels, torch.full((12,), 3), torch.full((12,), 1))

    return loss


def flow(sign: float, *, is_inverse: bool = False, is_normal: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    """How unlikely what a flow makes is, which scales its data by exponentials; with so much of the log-determinant."""

    def loss(y: Tensor, x: Tensor) -> Tensor:
        log, shift = 2 * (y[:, :4] / 2).tanh(), y[:, 4:]
        made = (x[:, :4] - shift) / log.exp() if is_inverse else x[:, :4] * log.exp() + shift
        normal = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
        likely = normal.log_prob(made).sum(1) if is_normal else -0.5 * made.square().sum(1)
        return -(likely + sign * log.sum(1)).mean()

    return loss


def encoder(sign: float) -> Callable[[Tensor, Tensor], Tensor]:
    """How far means and logarithms of variances are from a normal distribution, beside an error, with a sign."""

    def loss(y: Tensor, x: Tensor) -> Tensor:
        mean, wide = y[:, :4], y[:, 4:]
        return (mean - x[:, :4]).square().mean() - sign * 0.5 * (1 + wide - mean**2 - wide.exp()).sum(1).mean()

    return loss


def turned(y: Tensor) -> Tensor:
    """Three classes of three places of four samples, classes before places."""
    return y.reshape(4, 3, 3).transpose(1, 2)


def mlp(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs))


def classes(x: Tensor) -> Tensor:
    return x[:, :3].argmax(-1)


BOTH = "all that the loss compares is trained on both sides: the target moves too, and outputs that are all alike fit"
LOGARITHMS = "and takes logarithms of probabilities"
LARGE = "errors, of size 8,000, make "
TURNED = "the probabilities that are the target of a cross-entropy or kl_div add up to 1 over the samples, not the classes"
VALUED = (
    "the loss multiplies log-probabilities of choices by a difference that is trained, too: it moves the values, to where choices "
    "are likely"
)
WEIGHED = "errors, of size 0.97, weighed by 300, make 247 x as much"
UNSIGNED = " of the labels of a loss that takes -1 and 1 are 0: it asks nothing of them"
OVERLAP = "a Dice or IoU loss is given the outputs of a layer as they are, and takes probabilities"
SUBTRACTED = "the loss subtracts squares and exponentials of outputs, as of a divergence: each step makes them larger, without end"
VOLUME = (
    "the loss adds the logarithm of a scale with the sign by which it falls as the square of what is scaled does: both shrink, "
    "without end"
)
CANCELLED = "the loss subtracts what was made of the same outputs by the same operations: nothing is left of it"
DROPPED = "a dropout makes what the loss compares: 50 % of the outputs are zero in training"
MIXED = "a view between the model and a softmax of 18×2 mixes classes with the other axes"
LOSSES: dict[str, tuple[int, Callable[[Tensor, Tensor], Tensor], str, str]] = {
    "a divergence of probabilities": (
        3, lambda y, x: functional.kl_div(y.softmax(-1), x[:, :3].softmax(-1), reduction="batchmean"), "softmax_twice",
        f"kl_div is given what a softmax has made, of shape 12×3, {LOGARITHMS}",
    ),
    "a likelihood of probabilities": (
        3, lambda y, x: functional.nll_loss(y.softmax(-1), classes(x)), "softmax_twice",
        f"nll_loss is given what a softmax has made, of shape 12×3, {LOGARITHMS}",
    ),
    "a likelihood of outputs": (
        3, lambda y, x: functional.nll_loss(y, classes(x)), "softmax_twice",
        f"nll_loss is given the outputs of a layer as they are, of shape 12×3, {LOGARITHMS}",
    ),
    "a CTC loss of outputs": (
        3, lambda y, x: functional.ctc_loss(
            y.reshape(4, 3, 3), torch.ones(3, 2, dtype=torch.int64).cumsum(1), torch.full((3,), 4), torch.full((3,), 2)
        ), "softmax_twice", f"ctc_loss is given the outputs of a layer as they are, of shape 12×3, {LOGARITHMS}",
    ),
    "a view in the place of a transposition": (
        3, lambda y, x: functional.cross_entropy(y.view(3, 12).T.reshape(-1, 2), torch.arange(18) % 2), "samples_mixed", MIXED,
    ),
    "a softmax outside of the model": (
        3, lambda y, x: functional.cross_entropy(y.softmax(-1), classes(x)), "softmax_twice",
        "cross_entropy is given what a softmax has made, of shape 12×3",
    ),
    "a softmax, seen through a view": (
        3, lambda y, x: functional.cross_entropy(y.softmax(-1).reshape(12, 3).float(), classes(x)), "softmax_twice",
        "cross_entropy is given what a softmax has made, of shape 12×3",
    ),
    "a sigmoid twice": (
        1, lambda y, x: functional.binary_cross_entropy_with_logits(y.sigmoid(), (x[:, :1] > 0).float()), "softmax_twice",
        "binary_cross_entropy_with_logits is given what a sigmoid has made, of shape 12×1",
    ),
    "a softmax, and a sigmoid in the loss": (
        3, lambda y, x: functional.binary_cross_entropy_with_logits(y.softmax(-1), (x[:, :3] > 0).float()), "softmax_twice",
        "binary_cross_entropy_with_logits is given what a softmax has made, of shape 12×3",
    ),
    "a sigmoid, and one loss for each of several labels": (
        3, lambda y, x: functional.multilabel_soft_margin_loss(y.sigmoid(), (x[:, :3] > 0).float()), "softmax_twice",
        "logsigmoid is given what a sigmoid has made, of shape 12×3",
    ),
    "a sigmoid, and a loss of margins": (
        1, lambda y, x: functional.soft_margin_loss(y.sigmoid(), x[:, :1].sign()), "softmax_twice",
        "soft_margin_loss is given what a sigmoid has made, of shape 12×1",
    ),
    "two parts of one output": (4, lambda y, x: (y[:6] - y[6:]).square().mean(), "target_trained", BOTH),
    "a softmax over the samples": (
        3, lambda y, x: functional.nll_loss(functional.log_softmax(y, 0), classes(x)), "samples_mixed",
        "nll_loss is given a softmax over axis 0 of 12×3, and not over its classes",
    ),
    "the logarithm of a softmax over the samples": (
        3, lambda y, x: functional.nll_loss((y.softmax(0) + 1e-9).log(), classes(x)), "samples_mixed",
        "nll_loss is given a softmax over axis 0 of 12×3, and not over its classes",
    ),
    "a softmax over the samples of images": (
        8, lambda y, x: functional.cross_entropy(y.reshape(12, 2, 2, 2).softmax(0).log(), (x[:, :4] > 0).long().reshape(12, 2, 2)),
        "samples_mixed", "cross_entropy is given a softmax over axis 0 of 12×2×2×2, and not over its classes",
    ),
    "a softmax over the samples, one column of which is picked by hand": (
        3, lambda y, x: -functional.log_softmax(y, 0).gather(1, classes(x)[:, None]).mean(), "samples_mixed",
        "the loss takes a softmax over axis 0 of 12×3: over the samples, and not over the classes",
    ),
    "classes of a CTC loss along time": (
        3, aligned(0), "samples_mixed", "ctc_loss is given a softmax over axis 0 of 4×4×3, and not over its classes",
    ),
    "classes of a CTC loss along time, turned behind the softmax": (
        3, aligned(1, turned=True), "samples_mixed", "ctc_loss is given a softmax over axis 1 of 4×4×3, and not over its classes",
    ),
    "a likelihood of a part of the probabilities": (
        3, lambda y, x: functional.nll_loss(y.softmax(-1)[x[:, 3] > -1], classes(x)[x[:, 3] > -1]), "softmax_twice",
        f"nll_loss is given what a softmax has made, of shape 12×3, {LOGARITHMS}",
    ),
    "targets that are a softmax over the samples": (
        3, lambda y, x: functional.kl_div(y.log_softmax(-1), x[:, :3].softmax(0), reduction="batchmean"), "samples_mixed", TURNED,
    ),
    "classes whose targets are a softmax over the samples": (
        3, lambda y, x: functional.cross_entropy(y, x[:, :3].softmax(0)) + functional.cross_entropy(y, classes(x)), "samples_mixed",
        TURNED,
    ),
    "numbers beyond an activation that is made smaller, whose errors are written by hand": (
        4, lambda y, x: (y.tanh() / -10 - x[:, :4].sign()).square().sum() / 12, "target_beyond",
        "100 % of the targets, -1 to 1, are beyond what the last tanh can return",
    ),
    "errors in other units than a cross-entropy": (
        4, lambda y, x: functional.cross_entropy(y[:, :3], classes(x)) + functional.smooth_l1_loss(y[:, 3], 8e3 + 0 * x[:, 0]),
        "target_large", LARGE,
    ),
    "errors in other units than a cross-entropy, squared by hand": (
        4, lambda y, x: functional.cross_entropy(y[:, :3], classes(x)) + (1e-4 * (y[:, 3] - 8e3).square()).mean(), "target_large",
        LARGE,
    ),
    "an entropy that is added": (
        3, policy(-0.1), "penalty_alone",
        "the loss lowers the entropy of the outputs, at a weight of 0.1, beside a policy gradient",
    ),
    "an entropy of a large weight": (
        3, policy(4.0), "penalty_alone",
        "the loss raises the entropy of the outputs, at a weight of 4: other terms are drowned by it",
    ),
    "a hinge of labels that are 0 and 1": (
        1, lambda y, x: (1 - y[:, 0] * (x[:, 0] > 0)).clamp(min=0).mean(), "target_beyond", UNSIGNED,
    ),
    "a ranking of labels that are 0 and 1": (
        2, lambda y, x: functional.margin_ranking_loss(*y.unbind(1), (x[:, 0] > 0).float(), margin=0.1), "target_beyond", UNSIGNED,
    ),
    "pairs whose labels are 0 and 1": (
        3, lambda y, x: functional.cosine_embedding_loss(y, x[:, :3], (x[:, 0] > 0).float()), "target_beyond", UNSIGNED,
    ),
    "errors that are weighed far more than a cross-entropy": (
        4, lambda y, x: functional.cross_entropy(y[:, :3], classes(x)) + 300 * functional.mse_loss(y[:, 3], x[:, 0]),
        "terms_uneven", WEIGHED,
    ),
    "scores that end at 0 and 1": (
        2, lambda y, x: y[:, 0].sigmoid().mean() - y[:, 1].sigmoid().mean(), "target_beyond",
        "the loss is a difference of means of what a sigmoid has made: such scores end at 0 and 1, where no gradient is left",
    ),
    "an advantage that is trained": (
        4, lambda y, x: valued(y, x, x[:, 0] - y[:, 3]), "target_trained", VALUED,
    ),
    "an advantage that is trained, of deviation 1": (
        4, lambda y, x: valued(y, x, (x[:, 0] - y[:, 3]) / (x[:, 0] - y[:, 3]).std()), "target_trained", VALUED,
    ),
    "numbers beyond an activation of the loss alone": (
        1, lambda y, x: functional.mse_loss(y.sigmoid(), 9 * x[:, :1].sign()) + y.square().mean(), "target_beyond",
        "100 % of the targets, -9 to 9, are beyond what the last sigmoid can return",
    ),
    "numbers beyond an activation, whose errors are written by hand": (
        4, lambda y, x: (y.tanh() - 9 * x[:, :4].sign()).abs().mean(), "target_beyond",
        "100 % of the targets, -9 to 9, are beyond what the last tanh can return",
    ),
    "a view in the place of a transposition before a CTC loss": (
        9, ctc(is_view=True), "samples_mixed",
        "ctc_loss is given 3×12×3, times first, by a view of samples first: it mixes samples and times",
    ),
    "a view behind a part in the place of a transposition": (
        3, lambda y, x: functional.cross_entropy(y.view(3, 4, 3)[:, :-1].transpose(1, 2).reshape(-1, 3)[:8].reshape(-1, 2),
                                                 torch.arange(12) % 2),
        "samples_mixed", "a view between the model and a softmax of 12×2 mixes classes with the other axes",
    ),
    "an overlap of outputs as they are": (
        3, lambda y, x: 1 - (2 * (y * (x[:, :3] > 0)).sum() + 1) / (y.sum() + (x[:, :3] > 0).sum() + 1), "softmax_twice", OVERLAP,
    ),
    "an overlap of each sample over the union, of outputs as they are": (
        3, lambda y, x: 1 - ((y * (m := (x[:, :3] > 0).float())).sum(1) / (y.sum(1) + m.sum(1) - (y * m).sum(1) + 1e-6)).mean(),
        "softmax_twice", OVERLAP,
    ),
    "a class that the loss leaves out": (
        3, lambda y, x: functional.cross_entropy(y, torch.arange(12) % 3, ignore_index=2), "target_beyond",
        "33 % of the labels, one of each sample, are 2, which cross_entropy leaves out (ignore_index=2): "
        "this class is never learnt",
    ),
    "a label smoothing that leaves nothing of the labels": (
        3, lambda y, x: functional.cross_entropy(y, classes(x), label_smoothing=0.9), "labels_alike",
        "label_smoothing=0.9: so much of each target is the same for all classes",
    ),
    "one partner for all samples": (
        8, lambda y, x: functional.cross_entropy(y @ x.T / 8, torch.zeros(12, dtype=torch.int64)), "labels_alike",
        "all labels of a cross-entropy of 12 x 12 scores are one: each sample has the same partner",
    ),
    "a log-determinant with the wrong sign": (8, flow(-1.0), "loss_unbounded", VOLUME),
    "a log-determinant with the wrong sign, of what is divided": (8, flow(1.0, is_inverse=True), "loss_unbounded", VOLUME),
    "a log-determinant with the wrong sign, beside a distribution": (8, flow(-1.0, is_normal=True), "loss_unbounded", VOLUME),
    "a divergence that is subtracted": (8, encoder(-1.0), "loss_unbounded", SUBTRACTED),
    "negatives that are the positives": (
        8, lambda y, x: functional.triplet_margin_loss(y[:4], y[4:8], y[4:8].clone()), "gradient_zero", CANCELLED
    ),
    "the log-probabilities of choices and the same ones": (3, ratio(is_kept=False), "gradient_zero", CANCELLED),
    "the largest value in the place of one": (
        3, lambda y, x: functional.smooth_l1_loss(y.max(1).values, x[:, 0]), "target_of_another",
        "an error compares the largest of the 3 outputs of each sample with its target, whichever that is",
    ),
    "a dropout of what the loss compares": (
        8, lambda y, x: functional.cross_entropy(functional.dropout(y), classes(x)), "dropped", DROPPED
    ),
    "a dropout of numbers": (8, lambda y, x: functional.mse_loss(functional.dropout(y), x), "dropped", DROPPED),
    "a relu of logits": (
        3, lambda y, x: functional.cross_entropy(y.relu(), classes(x)), "target_beyond",
        "cross_entropy is given what a relu has made, of shape 12×3: no output is below zero",
    ),
    "an overlap as loss": (
        3, lambda y, x: 2 * (y.sigmoid() * (x[:, :3] > 0)).sum() / (y.sigmoid().sum() + (x[:, :3] > 0).sum()), "loss_unbounded",
        "the loss is an overlap of outputs and masks (Dice or IoU), and each step makes it small",
    ),
    "a cosine as loss": (
        4, lambda y, x: functional.cosine_similarity(y, x[:, :4]).mean() / 2, "loss_unbounded",
        "the loss is a cosine of outputs and targets, and each step makes it small: outputs turn away from what they should be",
    ),
    "a factor of another shape": (
        1, lambda y, x: (y.exp() * x[:, 0]).mean(), "loss_broadcast",
        "the loss multiplies each of 12 samples with each: one factor has the shape (N, 1) beside (N,)",
    ),
    "images of another shape": (
        4, lambda y, x: (y.reshape(12, 1, 2, 2) - x[:, :4].reshape(12, 2, 2)).square().mean(), "loss_broadcast",
        "the loss (Sub) of outputs of shape 12×1×2×2 compares each output with each target: 144 pairs of 12 samples",
    ),
    "targets of another shape": (
        1, lambda y, x: (y - x[:, 0]).square().mean(), "loss_broadcast",
        "the loss (Sub) of outputs of shape 12×1 compares each output with each target: 144 pairs of 12 samples",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOSSES)
def test_what_is_wrong_in_a_loss_is_read_from_its_graph(case: str) -> None:
    """At its first backward pass; what is pushed is nothing but a number."""
    outputs, loss, rule, message = LOSSES[case]
    found = trained(mlp(outputs), loss)
    said = found[rule].message
    assert said == message or (
        said.startswith(message) if message in (LARGE, WEIGHED) else said.endswith(message) and message == UNSIGNED
    )
    assert found[rule].first_step == 0
    assert rule not in trained(mlp(outputs), loss, rules={rule: False})


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_function_of_torch_that_broadcasts() -> None:
    found = trained(mlp(1), lambda y, x: functional.mse_loss(y, x[:, 0]))
    assert found["loss_broadcast"].message.startswith("the loss (MseLoss) of outputs of shape 12×1")


SOUND: dict[str, tuple[int, Callable[[Tensor, Tensor], Tensor]]] = {
    "cross-entropy": (3, lambda y, x: functional.cross_entropy(y, classes(x))),
    "log softmax twice, which changes nothing": (3, lambda y, x: functional.cross_entropy(y.log_softmax(-1), classes(x))),
    "pairs of samples, both ways": (8, lambda y, x: functional.cross_entropy(y @ x.T, torch.arange(12))
                                    - (y @ x.T).log_softmax(0).diagonal().mean()),
    "every output against every other": (1, lambda y, x: (y - y.T).square().mean()),
    "a CTC loss": (3, aligned(2)),
    "a CTC loss of what is turned": (3, aligned(2, turned=True)),
    "the logarithm of a softmax, turned to classes in front": (
        9, lambda y, x: functional.nll_loss(y.view(12, 3, 3).softmax(-1).log().transpose(1, 2), torch.arange(36).view(12, 3) % 3)
    ),
    "axes that a softmax takes in turns": (12, lambda y, x: -y.log_softmax(0).log_softmax(1).diagonal().mean()),
    "a target that weighs classes alike": (
        3, lambda y, x: -(functional.one_hot(classes(x), 3) / 4.0 * y.log_softmax(-1)).sum(-1).mean()
    ),
    "numbers within an activation that is made larger": (1, lambda y, x: (-4 * y.sigmoid() - x[:, :1].sign() + 2).square().mean()),
    "numbers within an activation times another": (4, lambda y, x: (3 * y.tanh() - 2.5 * x[:, :4].sign()).abs().mean()),
    "errors that are weighed beside a cross-entropy": (
        4, lambda y, x: functional.cross_entropy(y[:, :3], classes(x)) + 1e-6 * (y[:, 3] - 8e3).square().mean()
    ),
    "errors that are weighed as much as they are smaller": (
        4, lambda y, x: functional.cross_entropy(y[:, :3], classes(x)) + 300 * (0.1 * y[:, 3] - 0.1 * x[:, 0]).square().mean()
    ),
    "an entropy that is subtracted": (3, policy(0.1)),
    "a hinge of labels that are -1 and 1": (1, lambda y, x: (1 - y[:, 0] * x[:, 0].sign()).clamp(min=0).mean()),
    "pairs whose labels are -1 and 1": (3, lambda y, x: functional.cosine_embedding_loss(y, x[:, :3], x[:, 0].sign())),
    "pairs in the wrong order": (1, lambda y, x: (y[1:, 0] - y[:-1, 0]).sigmoid().mean()),
    "gates that are to be few": (
        2, lambda y, x: (y[:, 0] - x[:, 0]).square().mean() + 0.01 * y[:, 1].sigmoid().mean()
    ),
    "outputs of a mask": (3, lambda y, x: (y * (x[:, :3] > 0)).relu().mean()),
    "an advantage of values": (4, lambda y, x: valued(y, x, x[:, 0] - y[:, 3].detach())),
    "a loss that weighs what is sure less": (
        3, lambda y, x: ((y.softmax(1) - 1) * y.log_softmax(1)).gather(1, classes(x)[:, None]).mean()
        - ((1 - y.softmax(1)[:, 0]) * y.log_softmax(1).gather(1, classes(x)[:, None])[:, 0]).mean()
    ),
    "an entropy that is lowered beside labels": (
        3, lambda y, x: functional.cross_entropy(y, classes(x)) - 0.1 * (y.softmax(-1) * y.log_softmax(-1)).sum(-1).mean()
    ),
    "numbers within an activation": (1, lambda y, x: functional.mse_loss(1 + 4 * y.sigmoid(), 3 + 2 * x[:, :1].sign())),
    "quantiles": (1, lambda y, x: (y - torch.tensor([0.1, 0.5, 0.9])).abs().mean()),
    "variances beside means": (2, lambda y, x: ((y[:, 0] - x[:, 0]).square() * (-y[:, 1]).exp() + y[:, 1]).mean()),
    "an entropy": (3, lambda y, x: (y.softmax(-1) * y.log_softmax(-1)).sum(-1).mean()),
    "errors of weighted probabilities": (3, lambda y, x: (2 * x[:, :3].softmax(-1) - 2 * y.softmax(-1)).square().mean()),
    "boxes of a grid": (6, lambda y, x: functional.cross_entropy(y.reshape(-1, 3), torch.arange(24) % 3)),
    "classes in front": (3, lambda y, x: functional.cross_entropy(turned(y), torch.arange(12).reshape(4, 3) % 3)),
    "positions that are pointed at": (3, lambda y, x: functional.cross_entropy(turned(y).reshape(12, 3), torch.arange(12) % 3)),
    "a CTC loss of samples first, turned": (9, ctc(is_view=False)),
    "an overlap of probabilities": (
        3, lambda y, x: 1 - 2 * (y.sigmoid() * (x[:, :3] > 0)).sum() / (y.sigmoid().sum() + (x[:, :3] > 0).sum())
    ),
    "a weighted mean of outputs": (3, lambda y, x: (y * x[:, :3]).sum() / (y.sum() + x[:, :3].sum()).exp().clamp(1, 9)),
    "labels that are mostly left out": (
        3, lambda y, x: functional.cross_entropy(y.reshape(36, 1).repeat(1, 3), torch.arange(36) % 3, ignore_index=0)
    ),
    "a usual label smoothing": (3, lambda y, x: functional.cross_entropy(y, classes(x), label_smoothing=0.3)),
    "as many samples as classes": (12, lambda y, x: functional.cross_entropy(y, torch.zeros(12, dtype=torch.int64))),
    "the flow of data": (8, flow(1.0)),
    "the divergence of an encoder": (8, encoder(1.0)),
    "the flow of data, divided": (8, flow(-1.0, is_inverse=True)),
    "the flow of data, of a distribution": (8, flow(1.0, is_normal=True)),
    "negatives of other samples": (8, lambda y, x: functional.triplet_margin_loss(y[:4], y[4:8], y[8:])),
    "the log-probabilities of choices and those that were kept": (3, ratio(is_kept=True)),
    "the value of a choice": (3, lambda y, x: functional.smooth_l1_loss(y.gather(1, classes(x)[:, None])[:, 0], x[:, 0])),
    "a target that is the largest value, and trained": (
        3, lambda y, x: functional.mse_loss(y.gather(1, classes(x)[:, None])[:, 0], x[:, 0] + 0.9 * y.max(1).values)
    ),
    "a target that is the largest value": (3, lambda y, x: functional.mse_loss(y[:, 0], y.max(1).values.detach() + x[:, 0])),
    "the same shape": (1, lambda y, x: functional.mse_loss(y, x[:, :1])),
    "a dropout of features, and a mask of outputs": (
        3, lambda y, x: functional.mse_loss(y * (x[:, :3] > 0), functional.dropout(x[:, :3]) * (x[:, :3] > 0))
    ),
    "a relu of numbers": (1, lambda y, x: functional.mse_loss(y.relu(), x[:, :1].abs())),
    "weights of samples": (3, lambda y, x: (functional.cross_entropy(y, classes(x), reduction="none") * x[:, 0].abs()).mean()),
    "pairs that are told from each other": (1, lambda y, x: (y * (x[:, 0] > x[:, :1]).float()).mean()),
    "a distance of masks": (
        3, lambda y, x: (y.sigmoid().sum() + (x[:, :3] > 0).sum() - 2 * (y.sigmoid() * (x[:, :3] > 0)).sum())
        / (y.sigmoid().sum() + (x[:, :3] > 0).sum())
    ),
    "several labels": (3, lambda y, x: functional.multilabel_soft_margin_loss(y, (x[:, :3] > 0).float())),
    "pairs in an order": (1, lambda y, x: -functional.logsigmoid((y[:6] - y[6:]) * (x[:6, :1] - x[6:, :1]).sign()).mean()),
    "distillation": (3, lambda y, x: functional.kl_div(y.log_softmax(-1), x[:, :3].softmax(-1), reduction="batchmean")),
}  # fmt: skip


@pytest.mark.parametrize("case", SOUND)
def test_losses_that_look_alike_are_sound(case: str) -> None:
    outputs, loss = SOUND[case]
    found = trained(mlp(outputs), loss)
    assert (
        not {"softmax_twice", "samples_mixed", "loss_broadcast", "target_trained", "unmoved", "target_beyond", "target_large"}
        & found.keys()
    )
    assert found.keys().isdisjoint(("labels_alike", "loss_unbounded", "gradient_zero", "target_of_another"))
    assert "penalty_alone" not in found or "policy gradient" not in found["penalty_alone"].message


class Pair(nn.Module):
    """Two networks of one shape; the outputs of both."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = mlp(4), mlp(4)

    def forward(self, x: Tensor) -> Any:
        return self.one(x), self.other(x.flip(1))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (1 - functional.cosine_similarity(a, b)).mean()


def spread(a: Tensor) -> Tensor:
    return functional.relu(1 - (a.var(0) + 1e-4).sqrt()).mean()


PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a squared error": functional.mse_loss,
    "a squared error by hand": lambda a, b: (a - b).square().sum(-1).mean(),
    "a norm": lambda a, b: (a - b).norm(dim=-1).mean(),
    "a cosine": cosine,
    "a cosine by hand": lambda a, b: -(functional.normalize(a, dim=-1) * functional.normalize(b, dim=-1)).sum(-1).mean(),
    "two terms": lambda a, b: (cosine(a, b) + functional.huber_loss(a, b)) / 2,
    "a matrix of cosines": lambda a, b: (
        -(functional.normalize(a, dim=-1) @ functional.normalize(b, dim=-1).T).diagonal().mean() / 2
    ),
    "a divergence": lambda a, b: functional.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean"),
    "a cross-entropy": lambda a, b: functional.cross_entropy(a, b.softmax(-1)),
}


@pytest.mark.parametrize(
    "case", quick(PAIRS, "a squared error by hand", "a cosine", "two terms", "a matrix of cosines", "a divergence")
)
def test_a_target_that_is_trained_is_told(case: str) -> None:
    """Where nothing else is in the loss; a target without a gradient is one."""
    found = trained(Pair(), lambda y, x: PAIRS[case](*y))
    assert found["target_trained"].message == BOTH
    assert "target_trained" not in trained(Pair(), lambda y, x: PAIRS[case](y[0], y[1].detach()))
    assert "target_trained" not in trained(Pair(), lambda y, x: PAIRS[case](*y) + spread(y[0]))


@pytest.mark.parametrize("is_twice", [True, False])
def test_a_distribution_of_logits_that_is_given_a_softmax_is_told(is_twice: bool) -> None:
    def policy(y: Tensor, x: Tensor) -> Tensor:
        made = torch.distributions.Categorical(logits=y.softmax(-1) if is_twice else y)
        return -(made.log_prob(made.sample()) * x[:, 0]).mean()

    found = trained(mlp(3), policy)
    assert ("softmax_twice" in found) is is_twice
    assert not is_twice or found["softmax_twice"].message.startswith("a distribution of logits is given what a softmax has made")


@pytest.mark.parametrize("is_pair", [True, False])
def test_trained_outputs_may_be_set_against_each_other(is_pair: bool) -> None:
    """A critic's means, the products of a ranking, and the derivatives of an equation are no targets."""

    def ranking(y: Any, x: Tensor) -> Tensor:
        a, b = y
        return -functional.logsigmoid((a * b).sum(-1) - (a * b.roll(1, 0)).sum(-1)).mean()

    assert "target_trained" not in trained(Pair(), ranking if is_pair else lambda y, x: y[0].mean() - y[1].mean())
    model = mlp(1)

    def equation(y: Tensor, x: Tensor) -> Tensor:
        at = x.detach().requires_grad_()
        made = torch.tanh(model(at))
        return (torch.autograd.grad(made.sum(), at, create_graph=True)[0].sum(-1, keepdim=True) - made).square().mean()

    assert "target_trained" not in trained(model, equation)


class Listed(nn.Module):
    """Layers between two others, in a list or in one that is registered."""

    def __init__(self, *, is_registered: bool, bias: bool) -> None:
        super().__init__()
        layers = [nn.Linear(16, 16, bias=bias) for _ in range(2)]
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)
        self.layers: Any = nn.ModuleList(layers) if is_registered else layers

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for layer in self.layers:
            x = layer(x).relu()
        y: Tensor = self.last(x)
        return y


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("bias", [True, False])
def test_layers_in_a_list_are_told(bias: bool, every: int) -> None:
    """As soon as some steps have left their parameters as they were; what another optimizer moves is nobody's business."""

    def loss(y: Tensor, x: Tensor) -> Tensor:
        return functional.cross_entropy(y, classes(x))

    found = trained(Listed(is_registered=False, bias=bias), loss, 12 * every, every=every)["unmoved"]
    count = 4 if bias else 2
    assert found.message.startswith(f"{count} parameters that no module of the model holds, the first of shape 16")
    assert found.message.endswith("get gradients in its passes, and no optimizer moves them")
    assert found.advice.startswith("register what is made of layers: nn.ModuleList")
    assert "unmoved" not in trained(Listed(is_registered=True, bias=bias), loss)


class Ends(nn.Module):
    """Layers in a list in front of a body, or behind it."""

    def __init__(self, make: Callable[[int, int], nn.Module], *, are_first: bool) -> None:
        super().__init__()
        self.ends, self.body, self.are_first = [make(8, 8) for _ in range(2)], mlp(8), are_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.are_first else self.body(x).relu()
        made: Tensor = sum(each(x) for each in self.ends)  # type: ignore[assignment]
        return self.body(made) if self.are_first else made


@pytest.mark.parametrize(("make", "are_first", "is_told"), [
    (nn.Linear, False, True), (nn.Linear, True, True), (lambda *_: mlp(8), False, True), (lambda *_: mlp(8), True, False),
    (lambda *_: mlp(8).requires_grad_(False), False, False),
])  # fmt: skip
def test_layers_in_a_list_at_the_ends_of_a_model(make: Callable[[int, int], nn.Module], are_first: bool, is_told: bool) -> None:
    """Several in a row at its beginning may be an encoder that is to stay as it is."""
    found = trained(Ends(make, are_first=are_first), lambda y, x: functional.cross_entropy(y, classes(x)))
    assert ("unmoved" in found) == is_told


def test_networks_in_front_of_the_model_and_behind_it_are_somebody_else_s() -> None:
    """As features that are given to it, and what a loss compares its outputs by."""
    features, judge = mlp(8), mlp(4)
    model = mlp(8)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.model(features(x))
            return made

    found = trained(Whole(), lambda y, x: (judge(y) - judge(x)).square().mean())
    assert "unmoved" not in found


def test_losses_without_any_step_are_told(tmp_path: Any) -> None:
    """Whoever looks at gradients alone pushes no losses."""
    for pushes in (True, False):
        model = mlp(3)
        path = tmp_path / str(pushes)
        with sonde.watch(model, torch.optim.Adam(model.parameters()), every=1, to=path, verbose=False) as inspector:
            for _ in range(30):
                x = torch.randn(12, 8)
                value = functional.cross_entropy(model(x), classes(x))
                value.backward()
                if pushes:
                    inspector.push_loss(value, train=True)
        found = sonde.check(path).findings
        assert [each.rule for each in found] == ["unmoved"] * pushes
        assert [each.rule for each in inspector.findings] == ["unmoved"] * pushes


def test_a_gradient_that_is_zero_at_the_outputs_is_looked_for_behind_them() -> None:
    found = trained(mlp(1), lambda y, x: ((30 * y + 200).sigmoid() - (x[:, :1] > 0).float()).square().mean())
    assert found["gradient_zero"].advice.startswith("no gradient arrives at the outputs of the model")


@pytest.mark.parametrize(("length", "is_short"), [(1, True), (4, False)])
def test_a_ctc_loss_of_inputs_that_are_shorter_than_their_labels_is_what_gives_no_gradient(length: int, is_short: bool) -> None:
    def loss(y: Tensor, x: Tensor) -> Tensor:
        made = y.repeat(2, 1)[:16].reshape(4, 4, 3).log_softmax(-1)
        lengths = torch.full((4,), length), torch.full((4,), 2)
        return functional.ctc_loss(made, torch.ones(4, 2, dtype=torch.int64).cumsum(1), *lengths, zero_infinity=True)

    found = trained(mlp(3), loss)
    assert ("gradient_zero" in found) is is_short
    assert not is_short or found["gradient_zero"].message.startswith("ctc_loss returns 0 and no gradient: its inputs are shorter")


def test_nothing_of_the_program_is_held() -> None:
    """Neither the loss nor its graph lives on where the program lets go of it, without the help of a collector."""
    model = mlp(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gc.collect()
    gc.disable()
    try:
        with sonde.watch(model, optimizer, every=1, to="memory", verbose=False):
            for _ in range(4):
                made = model(torch.randn(4, 8))
                value = made.square().mean()
                value.backward()
                optimizer.step()
                lives = [weakref.ref(value), weakref.ref(made)]
                del value, made
                assert [each() for each in lives] == [None, None]
    finally:
        gc.enable()


def distances(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Losses of outputs, by what they are."""
    made, target = model(x), x.roll(1, 1)
    shares, others = made.softmax(-1), target.log_softmax(-1)
    divergence = functional.kl_div(made.log_softmax(-1), target.softmax(-1), reduction="batchmean")
    rewards = target[:, 0] - 3
    return {
        "squared": -functional.mse_loss(made, target),
        "scaled": functional.huber_loss(made, target) * -4,
        "turned round": -functional.kl_div(others, shares, reduction="batchmean"),
        "right": functional.mse_loss(made, target),
        "right, turned round": functional.kl_div(others, shares, reduction="batchmean"),
        "a divergence": divergence,
        "a term": divergence - 0.5 * functional.mse_loss(made, target),
        "a cross-entropy": functional.cross_entropy(made, target.argmax(-1)),
        "a likelihood": made.log_softmax(-1)[:, 0].mean(),
        "a reward": (shares * (target > 0)).sum(-1).mean(),
        "rewarded": (functional.mse_loss(made, target, reduction="none").mean(1) * rewards).mean(),
    }


@pytest.mark.parametrize("kind", distances(nn.Linear(4, 4), torch.ones(2, 4)))
@pytest.mark.parametrize("climbs", [False, True])
def test_a_distance_that_is_maximised_is_told_from_its_sign(kind: str, climbs: bool) -> None:
    """Or from the setting of the optimizer, which may be meant of what is a distance with a minus, a likelihood or a reward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, maximize=climbs)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(5):
            optimizer.zero_grad()
            distances(model, torch.randn(16, 4))[kind].backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    found = {each.rule: each for each in inspector.findings}
    climbed = ("right", "right, turned round", "a cross-entropy")
    is_told = kind in (climbed if climbs else ("squared", "scaled", "turned round"))
    assert ("loss_unbounded" in found) is is_told
    said = f"{'a cross-entropy' if kind == 'a cross-entropy' else 'a distance of outputs and targets'} is maximised: "
    said += "the optimizer has maximize=True" if climbs else "what is sent backward is below zero"
    assert not is_told or found["loss_unbounded"].message.startswith(said)
    assert "target_trained" not in found


@pytest.mark.parametrize(
    ("turn", "value", "is_told"), [(0, -1e9, True), (6, -1e9, False), (6, -torch.inf, False), (0, -1.0, False)]
)
def test_labels_that_point_at_masked_scores_are_found(turn: int, value: float, is_told: bool) -> None:
    own = torch.arange(12)

    def loss(y: Tensor, _: Tensor) -> Tensor:
        unit = functional.normalize(y, dim=1)
        return functional.cross_entropy((unit @ unit.T).masked_fill(torch.eye(12).bool(), value) / 0.3, own.roll(turn))

    torch.manual_seed(0)
    found = trained(mlp(6), loss)
    assert ("target_beyond" in found) is is_told
    assert not is_told or found["target_beyond"].message.startswith("labels point at scores that a mask has put far below")
    assert "target_large" not in found or found["target_large"].follows


@pytest.mark.parametrize(("every", "steps"), [(1, {*range(17), 24}), (10, {0, 1, 10, 11, 20, 21})])
def test_what_is_sent_backward_is_seen_in_steps_that_are_looked_at_alone(every: int, steps: set[int]) -> None:
    original, seen = torch.autograd.backward, set()
    model = mlp(3)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with sonde.watch(model, optimizer, every=every, to="memory", verbose=False) as inspector:
        for step in range(30):
            value = model(torch.randn(12, 8)).square().mean()
            optimizer.zero_grad()
            seen |= {step} if torch.autograd.backward is not original else set()
            value.backward()
            optimizer.step()
            inspector.push_loss(value, train=True)
    assert seen == steps
    assert torch.autograd.backward is original


def similarities(kind: str, y: Tensor) -> Tensor:
    """Similarities of the halves of a batch, or of what *kind* names, of samples and of others."""
    one, other = functional.normalize(y, dim=1).chunk(2)
    if kind == "all with all":
        both = torch.cat([one, other])
        return (both @ both.T).masked_fill(torch.eye(len(y)).bool(), -1e9)
    if kind == "a queue":
        queue = functional.normalize(torch.randn(9, y.shape[1]), dim=1)
        return torch.cat([torch.einsum("nc,nc->n", one, other.detach())[:, None], torch.einsum("nc,kc->nk", one, queue)], 1)
    made = torch.chunk(y, 2)
    known = {"cosine_similarity": functional.cosine_similarity(made[0][:, None], made[1], dim=-1), "products": made[0] @ made[1].T}
    return known.get(kind, one @ other.T)


@pytest.mark.parametrize(
    ("kind", "times", "is_told"),
    [
        ("all with all", 0.01, True),
        ("all with all", 1.0, False),
        ("a queue", 0.02, True),
        ("a queue", 10.0, False),
        ("cosine_similarity", 0.1, True),
        ("picked by hand", 0.05, True),
        ("products", 0.01, False),  # what is no cosine may grow
        ("squared", 0.01, False),
    ],
)
def test_a_temperature_that_leaves_a_cross_entropy_where_it_is_is_found(kind: str, times: float, is_told: bool) -> None:
    torch.manual_seed(0)

    def loss(y: Tensor, _: Tensor) -> Tensor:
        scores = similarities(kind, y) * times
        if kind in ("picked by hand", "squared"):
            return scores.square().mean() if kind == "squared" else -scores.log_softmax(1).diagonal().mean()
        return functional.cross_entropy(scores, torch.arange(len(scores)).roll(6) % scores.shape[1])

    found = trained(mlp(6), loss)
    assert ("target_beyond" in found) is is_told
    stays = f"cosines times {times:g} go into a cross-entropy: whatever the outputs are, it stays within {2 * times:g} of"
    assert not is_told or found["target_beyond"].message.startswith(stays)


@pytest.mark.parametrize(
    ("blank", "least", "counted", "is_told"),
    [(0, 0, 2, True), (2, 1, 2, True), (0, 1, 2, False), (3, 0, 2, False), (0, 1, 3, True)],
)
@pytest.mark.parametrize("is_flat", [False, True])
def test_labels_of_ctc_that_are_its_blank_are_found(blank: int, least: int, counted: int, is_told: bool, is_flat: bool) -> None:
    """Not those that labels are padded with, unless these count."""
    torch.manual_seed(0)

    def loss(y: Tensor, _: Tensor) -> Tensor:
        made = y.reshape(4, 8, 4).transpose(0, 1).log_softmax(-1)
        labels = functional.pad(least + (torch.arange(8).reshape(4, 2) + torch.randint(3, (4, 1))) % 3, (0, 1))
        given = labels[:, :counted].flatten() if is_flat else labels
        return functional.ctc_loss(made, given, torch.full((4,), 8), torch.full((4,), counted), blank=blank)

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(4):
            optimizer.zero_grad()
            loss(model(torch.randn(32, 8)), torch.ones(1)).backward()
            optimizer.step()
    found = {each.rule: each.message for each in inspector.findings}
    assert ("target_beyond" in found) is is_told
    assert not is_told or f"of the labels of ctc_loss are its blank, {blank}" in found["target_beyond"]


def test_labels_that_are_no_shares_and_not_scores_make_a_first_loss_large() -> None:
    found = trained(mlp(8), lambda y, x: functional.binary_cross_entropy_with_logits(y, 255.0 * (x > 0)))
    assert "target_beyond" in found
    assert "begins_large" not in found


@pytest.mark.parametrize(
    ("times", "is_binary", "is_told"), [(1.0, False, False), (300.0, False, True), (300.0, True, True), (1.0, True, False)]
)
def test_scores_that_begin_far_too_large_are_found_by_the_loss(times: float, is_binary: bool, is_told: bool) -> None:
    """Those of products, of which no layer makes the logits."""

    def loss(y: Tensor, x: Tensor) -> Tensor:
        if is_binary:
            return functional.binary_cross_entropy_with_logits(times * (y * x).sum(1), (x[:, 0] > 0).float())
        return functional.cross_entropy(times * (y @ x.T), torch.arange(12))

    found = trained(mlp(8), loss).get("begins_large")
    assert (found is not None) is is_told
    assert found is None or "its scores begin far too large" in found.message


@pytest.mark.parametrize(
    ("weight", "by_hand", "is_told"), [(2.0, True, True), (2.0, False, True), (1e-3, True, False), (2.0, None, False)]
)
def test_a_penalty_on_weights_that_is_most_of_the_loss_is_told(weight: float, by_hand: bool | None, is_told: bool) -> None:
    """Of squares that are added up, not of their means, which are as small as those of weights."""
    model = mlp(3)

    def loss(y: Tensor, x: Tensor) -> Tensor:
        squares = [each * each if by_hand else each.pow(2) for each in model.parameters()]
        penalty = sum(each.mean() if by_hand is None else each.sum() for each in squares)
        return functional.cross_entropy(y, classes(x)) + weight * penalty

    told = trained(model, loss).get("terms_uneven")
    assert (told is not None) is is_told
    assert told is None or (told.severity == "warn" and told.message.startswith("the squares of weights, times 2, make"))
