"""Hooks come and go while other threads run the model, and inside ``functional_call``; the user's call is never disturbed."""

from __future__ import annotations

import io
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import sonde
from sonde.stats import Moments


class Interrupted(OrderedDict[int, Any]):
    """A dictionary of hooks in which another thread runs the model at each change, as the interpreter may decide."""

    def __init__(self, run: Callable[[], object]) -> None:
        super().__init__()
        self.run = run

    def __setitem__(self, key: int, value: Any) -> None:
        super().__setitem__(key, value)
        self.run()

    def __delitem__(self, key: int) -> None:
        super().__delitem__(key)
        self.run()


class Scaled(nn.Module):
    """Takes a keyword."""

    def forward(self, x: Tensor, *, by: float) -> Tensor:
        return x * by


PORTS = ("input", "output", "grad_input", "grad_output")


@pytest.mark.parametrize("do", [lambda event: None, Moments()], ids=["events", "statistic"])
def test_a_forward_runs_at_any_moment_of_attaching_and_detaching(do: Any) -> None:
    """Between a hook and its marks, in either order, a call of the module gives what it gives without sonde."""
    model = Scaled()
    given: list[float] = []

    def run() -> None:
        given.append(model(torch.ones(1, requires_grad=True), by=3.0).item())

    for name in vars(model):
        if "_hooks" in name and isinstance(getattr(model, name), OrderedDict):
            setattr(model, name, Interrupted(run))
    probe = sonde.observe(model, do, ports=PORTS, strict=True)
    for change in (probe.pause, probe.resume, probe.detach, probe.attach, probe.detach):
        change()
    assert len(given) > 20
    assert set(given) == {3.0}


def test_a_hook_that_lost_its_mark_lets_the_call_pass() -> None:
    """As another thread sees it that has read the hooks just before they were taken out."""
    model = Scaled()
    events: list[Any] = []
    probe = sonde.observe(model, events.append, ports=PORTS, strict=True)
    for hook in (*model._forward_pre_hooks.values(), *model._forward_hooks.values()):
        x = torch.ones(1)
        result = hook(model, (x,)) if hook in model._forward_pre_hooks.values() else hook(model, (x,), x)
        assert result is None
    probe.detach()
    assert not events


@pytest.mark.parametrize("do", [lambda event: None, Moments(), "watch"], ids=["events", "statistic", "watch"])
def test_a_tensor_with_gradient_hooks_of_ours_is_saved_as_without(do: Any, tmp_path: Path) -> None:
    """Torch warns of a hook that is not saved (warnings are errors here). Results of operations, leaves, during and after."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Identity())
    x = torch.ones(2, 2, requires_grad=True)
    bare = io.BytesIO()
    torch.save((x, model(x)), bare)
    if do == "watch":
        observer: Any = sonde.watch(model, torch.optim.SGD(model.parameters(), 0.1), to=tmp_path / "run", verbose=False)
    else:
        observer = sonde.observe(model, do, ports=PORTS)
    out = model(x)
    leaf = model[2](x)  # a module that returns a leaf
    for moment in range(2):
        saved = io.BytesIO()
        torch.save((x, out), saved)
        torch.save(leaf, io.BytesIO())
        torch.save(model, io.BytesIO())
        assert saved.getvalue() == bare.getvalue()
        if not moment:
            observer.detach()


def test_threads_that_track_their_own_calls_do_not_disturb_each_other() -> None:
    """Six threads enter and leave probes on one model; each sees its own calls."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    failures: list[BaseException] = []
    seen: list[int] = []

    def work() -> None:
        try:
            for _ in range(30):
                with sonde.track(model) as tracker:
                    model(torch.ones(2, 4))
                seen.append(len(tracker))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(seen) == 180
    assert min(seen) == 4


class TestFunctionalCall:
    """``torch.func.functional_call`` lets a model run with other tensors in the place of its parameters."""

    @staticmethod
    def fast_weights(model: nn.Module, x: Tensor) -> Tensor:
        """One step of MAML: the loss after a step of gradient descent, as a function of the parameters."""
        named = dict(model.named_parameters())
        inner = functional_call(model, named, (x,)).square().mean()
        gradients = torch.autograd.grad(inner, list(named.values()), create_graph=True)
        moved = {name: p - 0.1 * g for (name, p), g in zip(named.items(), gradients, strict=True)}
        return functional_call(model, moved, (x,)).square().mean()

    def train(self, model: nn.Module, steps: int) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(3)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = self.fast_weights(model, torch.randn(5, 3))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    @pytest.mark.parametrize("passes", ["all", "training"])
    @pytest.mark.parametrize("do", [lambda event: None, Moments()], ids=["events", "statistic"])
    def test_computed_parameters_are_not_taken_for_new_ones(self, do: Any, passes: Any) -> None:
        """Losses are those without sonde, nothing is warned of, and every port goes on being observed."""
        torch.manual_seed(0)
        bare = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        expected = self.train(bare, 9)
        ports = ("output", "grad_output", "grad", "param", "update")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            probe = sonde.observe(model, do, ports=ports, passes=passes, strict=True)
            assert self.train(model, 9) == expected
            coverage = probe.coverage()
            probe.detach()
        counts = {str(line.site): line.count for line in coverage}
        assert not coverage.missing
        assert counts["0:output"] == 18
        assert counts["0.weight:grad"] == counts["0.weight:param"] == counts["0.weight:update"] == 9

    def test_parameters_of_another_model_leave_the_hooks_where_they_are(self) -> None:
        """A target network: the model is called with the (leaf) parameters of its average."""
        model = nn.Linear(2, 1)
        average = {name: nn.Parameter(torch.zeros_like(p)) for name, p in model.named_parameters()}
        with sonde.observe(model, Moments(), ports=("output", "grad"), strict=True) as probe:
            for _ in range(9):
                loss = model(torch.ones(1, 2)) - functional_call(model, average, (torch.ones(1, 2),)).detach()
                loss.sum().backward()
            counts = {str(line.site): line.count for line in probe.coverage()}
        assert counts == {"(root):output": 18, "weight:grad": 9, "bias:grad": 9}
        assert not any(p._post_accumulate_grad_hooks for p in average.values())

    def test_every_instrument_runs_in_it(self) -> None:
        """``track`` and ``watch`` beside each other."""
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        with sonde.track(model, strict=True), sonde.watch(model, to="memory", every=1, verbose=False, strict=True) as inspector:
            self.train(model, 9)
            assert list(inspector.run.series("0:output", "rms")[0]) == list(range(9))
