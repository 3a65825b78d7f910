"""Rules about weights as a training begins, about attention, indices and spikes: with the healthy trainings that tempt them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

from sonde import lens
from sonde.inspector import watch
from sonde.rows import Layout, RowBlock
from sonde.rules import Finding
from sonde.run.findings import Findings


def found(
    model: nn.Module,
    loss: Callable[[], Tensor],
    optimizer: Optimizer | None = None,
    *,
    steps: int = 8,
    every: int = 1,
    rates: Callable[[int], float] | None = None,
) -> dict[str, Finding]:
    """Train *model*; return the findings by rule."""
    optimizer = optimizer or AdamW(model.parameters(), lr=1e-3)
    base = optimizer.param_groups[0]["lr"]
    with watch(model, optimizer, every=every, to="memory", verbose=False) as inspector:
        for step in range(steps):
            if rates is not None:
                optimizer.param_groups[0]["lr"] = base * rates(step)
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    return {each.rule: each for each in inspector.findings}


def mlp() -> tuple[nn.Sequential, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    return model, lambda: (model(torch.randn(32, 8)) - 1).square().mean()


# Weights at the beginning


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_a_weight_whose_elements_were_equal_is_named_after_its_first_step(kind: str, every: int) -> None:
    model, loss = mlp()
    nn.init.constant_(model[2].weight, 0.1)  # type: ignore[arg-type]  # a parameter
    optimizer: Optimizer = AdamW(model.parameters(), lr=1e-3) if kind == "AdamW" else SGD(model.parameters(), lr=0.1, momentum=0.9)
    each = found(model, loss, optimizer, steps=3, every=every)["constant_weight"]
    assert (each.site, each.first_step, each.step, each.severity) == ("2.weight:param", 0, 0, "bad")


def test_a_head_of_zeros_whose_first_step_is_the_same_everywhere_is_no_constant_weight() -> None:
    """Behind positive features a regression moves each weight of its head by the learning rate: all are equal, and learn."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 1))
    nn.init.zeros_(model[2].weight)  # type: ignore[arg-type]  # a parameter
    assert found(model, lambda: (model(torch.randn(32, 8)) - 3).square().mean()) == {}


def test_a_warm_up_that_begins_at_zero_tells_nothing_of_weights_of_zeros() -> None:
    model, loss = mlp()
    nn.init.zeros_(model[4].weight)  # type: ignore[arg-type]  # a parameter
    assert found(model, loss, rates=lambda step: step / 8) == {}


def test_scales_that_have_further_dimensions_are_no_weights() -> None:
    """The gain of a convolution without norms, as NFNets have it, begins as ones."""

    class Scaled(nn.Conv2d):
        def __init__(self) -> None:
            super().__init__(3, 8, 3)
            self.gain = nn.Parameter(torch.ones(8, 1, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return functional.conv2d(x, self.weight * self.gain, self.bias)

    torch.manual_seed(0)
    model = nn.Sequential(Scaled(), nn.GELU(), nn.Flatten(), nn.Linear(8 * 36, 1))
    assert found(model, lambda: model(torch.randn(4, 3, 8, 8)).square().mean()) == {}


def test_a_weight_that_begins_far_too_large_is_named_in_the_first_logged_step() -> None:
    model, loss = mlp()
    with torch.no_grad():
        model[2].weight.mul_(1000)  # type: ignore[operator]  # a parameter
    each = found(model, loss, steps=2)["weight_large"]
    assert (each.site, each.first_step) == ("2.weight:param", 0)
    assert each.value == pytest.approx(1000, rel=0.2)  # of 256 uniform numbers the root mean square is this sure


# Attention


class Attention(nn.Module):
    """Attention of one head over eight vectors, with a norm of queries and keys, or without."""

    def __init__(self, *, norm: bool = False, scale: bool = False) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(16, 16) for _ in range(3))
        self.q_norm, self.k_norm = (nn.LayerNorm(16) if norm else nn.Identity() for _ in range(2))
        if scale:
            self.logit_scale = nn.Parameter(torch.tensor(0.1))
        with torch.no_grad():
            self.q_proj.weight.mul_(20)
            self.k_proj.weight.mul_(20)

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.q_norm(self.q_proj(x)), self.k_norm(self.k_proj(x))
        if hasattr(self, "logit_scale"):
            query, key = functional.normalize(query, dim=-1), functional.normalize(key, dim=-1) * self.logit_scale
        mixed: Tensor = functional.scaled_dot_product_attention(query, key, self.v_proj(x))
        return mixed


@pytest.mark.parametrize(("settings", "told"), [({}, True), ({"norm": True}, False), ({"scale": True}, False)])
def test_attention_scores_are_judged_by_queries_and_keys_unless_these_are_normalised(settings: dict[str, bool], told: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Attention(**settings), nn.Linear(16, 1))
    findings = found(model, lambda: model(torch.randn(4, 8, 16)).square().mean())
    assert ("attention_large" in findings) is told
    if told:
        each = findings["attention_large"]
        assert (each.site, each.first_step) == ("0.q_proj:output", 0)
        assert each.value == pytest.approx(each.evidence["query"] * each.evidence["key"])


# Indices


class Reader(nn.Module):
    """Words and the kinds of their segments, of which there is one, added up."""

    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.kinds, self.words = nn.Embedding(2, 8), nn.Embedding(32, 8, sparse=sparse)
        self.head = nn.Linear(8, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.words(tokens) + self.kinds(torch.zeros_like(tokens)))
        return logits


@pytest.mark.parametrize("sparse", [False, True])
def test_tokens_that_are_all_the_same_are_named(sparse: bool) -> None:
    torch.manual_seed(0)
    model = Reader(sparse=sparse)
    tokens = torch.zeros(4, 8, dtype=torch.int64)
    each = found(model, lambda: model(tokens).logsumexp(-1).mean(), SGD(model.parameters(), lr=0.1))["one_index"]
    assert (each.site, each.first_step, each.evidence) == ("words.weight:grad", 0, {"elements": 8, "width": 8, "indices": 32})


def test_one_kind_of_segment_beside_many_words_is_no_finding() -> None:
    torch.manual_seed(0)
    model = Reader()
    assert found(model, lambda: model(torch.randint(32, (4, 8))).logsumexp(-1).mean()) == {}


def test_one_new_word_that_is_trained_alone_is_no_finding() -> None:
    """All other weights are frozen, and the gradients of the other words set to zero."""
    torch.manual_seed(0)
    model = Reader()
    model.requires_grad_(False)
    model.words.weight.requires_grad_(True)
    only = torch.zeros(32, 1).index_fill_(0, torch.tensor([3]), 1.0)
    model.words.weight.register_hook(lambda gradient: gradient * only)
    optimizer = AdamW([model.words.weight], lr=1e-3)
    assert found(model, lambda: model(torch.randint(32, (4, 8))).logsumexp(-1).mean(), optimizer) == {}


# Scalars


def spikes(values: list[float], name: str = "grad_norm") -> list[tuple[str, int | None]]:
    history = Findings()
    for step, value in enumerate(values):
        history.judge([], [(name, value, 0, step)])
    return [(each.rule, each.first_step) for each in history.judged()]


def test_a_value_ten_times_as_large_as_any_before_is_a_spike_after_eight_values() -> None:
    """Megatron-LM's factor; an update norm follows the learning rate, which may jump."""
    calm = [1.0, 0.5, 1.5, 0.7, 1.1, 0.9, 1.2, 0.8]
    assert spikes([*calm, 15.0, 1.0]) == [("spike", 8)]
    assert spikes([*calm, 14.9, 1.0]) == []
    assert spikes([*calm[:7], 15.0, 1.0]) == []
    assert spikes([*calm, 15.0, 1.0], "update_norm") == []


def test_a_loss_that_was_far_below_a_guess_from_the_beginning_is_not_stuck() -> None:
    """The network was trained before: ten outputs guess with 2.3. Where that is not known, a loss that does not fall is told."""
    about = {"model": [{"name": "head", "type": "Linear", "shapes": {"weight": [10, 4]}}]}
    for value, description, rules in ((0.2, about, []), (2.3, about, ["loss_stuck"]), (0.2, {}, ["loss_stuck"])):
        assert stuck(value, description) == rules


def test_a_last_weight_that_does_not_make_the_output_tells_no_guess() -> None:
    """A layer that is registered last and runs before the end; a gradient that is not that of a softmax; outputs of two sizes."""
    layers = [{"name": name, "type": "Linear", "shapes": {"weight": [size, 4]}} for name, size in (("head", 2), ("side", 10))]
    rows = {"side:output": (40, 0.5), "head:output": (8, 0.5)}
    assert stuck(1.0, {"model": layers}, rows) == ["loss_stuck"]  # two outputs guess with 0.7, ten with 2.3
    assert stuck(0.2, {"model": layers}, rows) == []
    for others in ({"head:grad_output": (8, 0.5)}, {"(root):output[0]": (8, 0.5), "(root):output[1]": (40, 0.5)}):
        assert stuck(0.2, {"model": layers}, rows | others) == ["loss_stuck"]
    assert stuck(0.2, {"model": layers}, rows | {"head:grad_output": (8, 0.0)}) == []


def stuck(value: float, about: dict[str, Any], rows: dict[str, tuple[int, float]] | None = None) -> list[str]:
    """Return what is found where a loss has one *value* in 150 steps, by the count and the mean of each of the *rows*."""
    history, held = Findings(about), rows or {"head:output": (40, 0.5)}
    layout = Layout(list(held), order=list(range(len(held))))
    counts, means = zip(*held.values(), strict=True)
    numbers: dict[str, Any] = {"rms": np.ones(len(held)), "count": np.array(counts), "mean": np.array(means)}
    lines = np.arange(len(held))
    history.judge(
        [RowBlock("moments", layout, lines, np.zeros((1, 3), int), np.array([0, len(held)]), np.ones(len(held)), numbers)]
    )
    for step in range(150):
        history.judge([], [("loss", value, 0, step)])
    history.end()
    return [each.rule for each in history.judged()]


# Rounding


def test_a_step_that_bfloat16_loses_is_told_as_that_and_not_as_a_small_step() -> None:
    model, loss = mlp()
    model.to(torch.bfloat16)
    x = torch.randn(32, 8).to(torch.bfloat16)
    findings = found(model, lambda: model(x).float().square().mean(), SGD(model.parameters(), lr=3e-4), steps=12)
    assert (findings["update_lost"].first_step, "update_small" in findings) == (0, False)
    model, loss = mlp()
    findings = found(model, loss, SGD(model.parameters(), lr=1e-8), steps=12)
    assert (findings["update_small"].first_step, "update_lost" in findings) == (0, False)


# Structures


def test_a_mask_beside_an_output_may_be_all_zero() -> None:
    """As the position bias that T5's cross-attention returns; the output itself may not."""

    class Both(nn.Module):
        def __init__(self, order: int) -> None:
            super().__init__()
            self.order = order

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return (x.tanh(), x * 0)[:: self.order]

    for order, rules in ((1, set()), (-1, {"all_zero"})):
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(4, 4), Both(order), nn.Linear(4, 1)])
        root = Sequence(model, order)
        assert set(found(root, lambda root=root: root(torch.randn(8, 4)).square().mean())) == rules  # type: ignore[misc]  # of this turn


class Sequence(nn.Module):
    def __init__(self, layers: nn.ModuleList, order: int) -> None:
        super().__init__()
        self.layers, self.order = layers, order

    def forward(self, x: Tensor) -> Tensor:
        first, both, last = self.layers
        pair = both(first(x))
        y: Tensor = last(pair[:: self.order][0])
        return y


# Directions


@pytest.mark.parametrize("collapsed", [True, False])
def test_outputs_that_point_in_one_direction_are_named_where_their_rank_is_recorded(collapsed: bool) -> None:
    """The lens leaves out layers of fewer than 8 features, whose few numbers may well lie in one direction, and single vectors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 12), nn.Linear(12, 1))
    if collapsed:
        nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]  # a parameter
    optimizer = SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, every=1, to="memory", verbose=False, lenses=lens.EffectiveRank(one_in=1)) as inspector:
        for _ in range(4):
            model(torch.randn(32, 8)).mean().backward()
            optimizer.step()
    sites = inspector.run.sql("SELECT DISTINCT site FROM effective_rank ORDER BY site").fetchall()
    assert [site for (site,) in sites] == ["0:output", "1:output"]
    told = [(each.rule, each.site, each.first_step) for each in inspector.findings if each.rule == "rank_collapse"]
    assert told == ([("rank_collapse", "1:output", 0)] if collapsed else [])
    assert [each.rule for each in inspector.run.findings] == [each.rule for each in inspector.findings]


def test_one_vector_in_a_step_tells_nothing_of_its_rank() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
    optimizer = SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, every=1, to="memory", verbose=False, lenses=lens.EffectiveRank(one_in=1)) as inspector:
        for _ in range(4):
            model(torch.randn(1, 8)).mean().backward()
            optimizer.step()
    assert "rank_collapse" not in {each.rule for each in inspector.findings}


@pytest.mark.parametrize(
    ("after", "severity"),
    [([1.0] * 12, "note"), ([3.0] * 12, "warn"), ([1.0, 1.0], "note"), ([], "note")],
)
def test_gradients_that_jump_are_a_note_where_no_later_loss_is_worse(after: list[float], severity: str) -> None:
    history = Findings()
    losses = [*([1.0] * 12), *after]
    for step, loss in enumerate(losses):
        norm = 15.0 if step == 11 else 1.0 + 0.1 * (step % 3)
        history.judge([], [("loss", loss, 0, step), ("grad_norm", norm, 0, step)])
    history.end()
    told = [each for each in history.judged() if each.rule == "spike" and "grad_norm" in each.message]
    assert [(each.severity, each.first_step) for each in told] == [(severity, 11)]
