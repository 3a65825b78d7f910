"""Training and evaluation passes told apart."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.errors import ArgumentError
from sonde.stats import Moments


class Net(nn.Module):
    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.enc = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2).eval()  # frozen, as in fine-tuning
        self.head = nn.Linear(2, 2)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.enc(x) if self.reentrant is None else checkpoint(self.enc, x, use_reentrant=self.reentrant)
        return self.head(self.norm(h))


def events_by_pass(model: nn.Module) -> dict[str, dict[str, int]]:
    """Train once, evaluate twice in two ways, call a part alone; how often each module was seen, by kind of pass."""
    x = torch.ones(3, 2, requires_grad=True)
    found = {}
    kinds = ("all", "training", "evaluation")
    probes = {kind: sonde.observe(model, Moments(), passes=kind, strict=True) for kind in kinds}
    loss = model(x).sum()
    model.eval()
    model(x)  # in evaluation mode, though gradients are enabled
    model.train()
    model.norm.eval()
    with torch.no_grad():
        model(x)
        model.enc(x)
    loss.backward()
    for kind, probe in probes.items():
        found[kind] = dict(sum((Counter({row["name"]: row["calls"]}) for row in probe.rows()), Counter()))
        probe.detach()
    return found


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_training_and_evaluation_passes_are_told_apart(reentrant: bool | None) -> None:
    """By the root's mode and enabled gradients; a frozen layer, and a block that a reentrant checkpoint runs without, count."""
    found = events_by_pass(Net(reentrant))
    assert found["training"] == {"": 1, "enc": 1, "norm": 1, "head": 1}
    assert found["evaluation"] == {"": 2, "enc": 3, "norm": 2, "head": 2}
    assert found["all"] == {"": 3, "enc": 4, "norm": 3, "head": 3}


def test_gradients_belong_to_the_training_pass_that_made_them() -> None:
    """An evaluation between forward and backward does not keep the gradients from being seen."""
    model, seen = Net(), []
    with sonde.observe(model, lambda e: seen.append(str(e.site)), ports=("output", "grad_output"), passes="training", strict=True):
        loss = model(torch.ones(3, 2)).sum()
        with torch.no_grad():
            model(torch.ones(3, 2))
        loss.backward()
    names = ["enc", "norm", "head", "(root)"]
    assert seen == [f"{name}:output" for name in names] + [f"{name}:grad_output" for name in reversed(names)]


class Checkpointed(nn.Module):
    """A reentrant checkpoint, which runs its part without gradients, and one of the other kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = Net(), Net(), Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.first, x, use_reentrant=True)
        x = checkpoint(self.second, x, use_reentrant=False)
        out: torch.Tensor = self.last(x)
        return out


@pytest.mark.parametrize("passes", ["all", "training", pytest.param("evaluation", marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["blocks", "whole"])
def test_passes_are_told_apart_in_compiled_code(passes: Any, is_whole: bool, fresh_compiler: None) -> None:
    """As in eager code: by the mode of the root and the gradients with which it is called, also inside checkpoints."""
    found = []
    for backend in (None, "aot_eager"):
        torch.manual_seed(0)
        model = Checkpointed()
        for part in (model,) if is_whole else (model.first, model.second, model.last):
            if backend is not None:
                part.compile(backend=backend)
        seen: Counter[tuple[str, str]] = Counter()
        x = torch.randn(3, 2, requires_grad=True)
        with (
            sonde.observe(model, lambda e, s=seen: s.update([str(e.site)]) if e.phase != "recompute" else None, passes=passes),
            sonde.observe(model, Moments(), passes=passes, ports=("output", "grad_output"), strict=True) as probe,
        ):
            for _ in range(2):
                model.train()
                model.first.eval()  # frozen
                model(x).sum().backward()
                with torch.no_grad():
                    model(x)
                model.eval()
                model(x).sum().backward()
        found.append((seen, {row["site"]: row["calls"] for row in probe.rows()}))
    eager, compiled = found
    assert compiled == eager


def test_a_model_that_only_evaluates_is_said_to() -> None:
    """Coverage names the reason."""
    model = Net().eval()
    with sonde.observe(model, Moments(), "head", passes="training") as probe:
        model(torch.ones(3, 2))
    assert [line.reason for line in probe.coverage()] == ["called, but in no training pass"]
    with pytest.raises(ArgumentError, match="'all', 'training' or 'evaluation'"):
        sonde.observe(model, Moments(), passes="train")  # type: ignore[arg-type]
