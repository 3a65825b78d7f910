"""Where the numbers of a step come later than the next steps begin, the step is found, kept and explained as well."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.inspector.sentinel.delayed import device
from tests.inspector.sentinel.faults import BAD, Planted, batch, train, trained, watched
from tests.inspector.sentinel.test_loops import LOOPS
from tests.inspector.sentinel.test_planted_faults import FAULTS, log_of_negative
from torch import nn

import sonde
from sonde import Limits
from sonde.errors import NonFiniteError, ObservationWarning
from sonde.inspector.sentinel.kept_step import read_step
from sonde.inspector.sentinel.pending_steps import PendingSteps


@pytest.mark.parametrize(("name", "delay"), [*((name, 1) for name in FAULTS), ("log of a negative", 0), ("sqrt'(0)", 4)])
def test_a_fault_is_found_later_and_explained_with_the_parameters_before_it(
    name: str, delay: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault, operation, site = FAULTS[name]
    model, twin = Planted(fault), Planted(fault)
    twin.load_state_dict(model.state_dict())
    train(twin, torch.optim.AdamW(twin.parameters()), range(BAD))
    optimizer = torch.optim.AdamW(model.parameters())
    with (
        device(monkeypatch, delay) as far,
        pytest.warns(ObservationWarning, match=f"step {BAD}: "),
        watched(model, optimizer, tmp_path / "run", rules=False) as inspector,
    ):
        train(model, optimizer)
        far.may_wait = True
    found = inspector.findings[0]
    assert (found.rule, found.step, found.first_step, found.site) == ("nonfinite", BAD, BAD, site)
    folder = tmp_path / "run" / "nonfinite" / f"step-{BAD:08d}"
    kept = read_step(folder)
    for place, parameter in twin.named_parameters():
        assert torch.equal(kept.parameters[place], parameter)
    assert operation in str(sonde.replay(folder, Planted(fault)).operation)


# Of accumulated micro-batches the last eight are kept, and the bad one is not among them.
@pytest.mark.parametrize("loop", [loop for loop in LOOPS if loop.__name__ != "accumulated"])
def test_the_bad_pass_of_each_loop_is_found_later(
    loop: Callable[[nn.Module, sonde.Inspector], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Planted(log_of_negative)
    with (
        device(monkeypatch, 2) as far,
        pytest.warns(ObservationWarning, match="log of"),
        watched(model, None, rules=False) as inspector,
    ):
        loop(model, inspector)
        far.may_wait = True
    assert (inspector.findings[0].step, inspector.findings[0].site) == (13, "fault:output")


@pytest.mark.parametrize("delay", [0, 2])
def test_a_training_is_the_same_with_and_without(delay: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with device(monkeypatch, delay) as far:
        own = trained(15, watch=True, before_end=lambda: setattr(far, "may_wait", True))
        for one, expected in zip(own, trained(15, watch=False), strict=True):
            assert torch.equal(one, expected)


def test_stop_says_how_many_steps_late_it_is_and_goes_on_where_the_loop_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Planted(log_of_negative)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    good = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    steps = []
    with device(monkeypatch, 2) as far, watched(model, optimizer, tmp_path / "run", bad_steps="stop", rules=False):
        for step in range(20):
            loss = model(torch.rand(3, 4), torch.tensor(float(step in (6, 14)))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            try:
                optimizer.step()
            except NonFiniteError as error:
                steps.append((step, str(error)))
                model.load_state_dict(good)
        far.may_wait = True
    assert [step for step, _ in steps] == [9, 17]
    assert re.search(r"step 6: [24] of [24] gradients .*hold NaN.*The training stops 3 steps later", steps[0][1])


def test_wait_stops_before_any_parameter_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Planted(log_of_negative)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with device(monkeypatch, 2), watched(model, optimizer, bad_steps="wait"):
        with pytest.raises(NonFiniteError, match=f"step {BAD}: .*no parameter has changed"):
            train(model, optimizer)
        assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_a_fault_of_the_last_step_is_said_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Planted(log_of_negative)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with (
        device(monkeypatch, 5) as far,
        pytest.warns(ObservationWarning, match=f"step {BAD}: .*log of"),
        watched(model, optimizer, bad_steps="stop", rules=False) as inspector,
    ):
        train(model, optimizer, range(BAD + 1))
        far.may_wait = True
    assert inspector.findings[0].step == BAD


def test_buffers_and_random_state_are_those_before_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))

    model = made()
    optimizer = torch.optim.AdamW(model.parameters())
    with (
        device(monkeypatch, 2) as far,
        pytest.warns(ObservationWarning, match="step 5"),
        watched(model, optimizer, tmp_path / "run", rules=False),
    ):
        for step in range(10):
            if step == 5:
                before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                random = torch.get_rng_state()
            x = batch(step)["x"]
            x[2, 1] = torch.nan if step == 5 else x[2, 1]
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        far.may_wait = True
    folder = tmp_path / "run" / "nonfinite" / "step-00000005"
    kept = read_step(folder)
    assert {**kept.parameters, **kept.buffers}.keys() == before.keys()
    for name, tensor in {**kept.parameters, **kept.buffers}.items():
        assert torch.equal(tensor, before[name])
    (only,) = kept.passes
    assert torch.equal(only.random.cpu, random)
    assert sonde.replay(folder, made()).origin.source == "input"


@pytest.mark.parametrize("pushes", ["before", "after"])
def test_a_bad_loss_is_found_later(pushes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with (
        device(monkeypatch, 1) as far,
        pytest.warns(ObservationWarning, match="step 7: the loss is inf, and the gradients are finite"),
        watched(model, optimizer, rules=False) as inspector,
    ):
        for step in range(12):
            optimizer.zero_grad()
            loss = model(batch(step)["x"]).square().mean() + (torch.inf if step == 7 else 0)
            if pushes == "before":
                inspector.push_loss(loss, train=True)
            loss.backward()
            optimizer.step()
            if pushes == "after":
                inspector.push_loss(loss, train=True)
        far.may_wait = True
    assert [(each.step, each.site) for each in inspector.findings] == [(7, "(root):output")]


def test_of_optimizers_that_take_turns_all_parameters_are_those_before_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second optimizer has changed its parameters since, in a step of its own."""
    model = Planted(log_of_negative)
    parts = [torch.optim.AdamW(model.before.parameters()), torch.optim.AdamW(model.after.parameters())]
    with (
        device(monkeypatch, 3) as far,
        pytest.warns(ObservationWarning, match="step 8"),
        watched(model, None, tmp_path / "run", rules=False),
    ):
        for step in range(14):
            if step == 8:
                before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
            model.zero_grad()
            model(torch.rand(3, 4), torch.tensor(float(step == 8))).square().mean().backward()
            parts[step % 2].step()
        far.may_wait = True
    kept = read_step(tmp_path / "run" / "nonfinite" / "step-00000008")
    for name, parameter in before.items():
        assert torch.equal(kept.parameters[name], parameter)


def test_copies_take_no_more_than_the_limit_and_what_was_not_kept_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Planted(log_of_negative)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with (
        device(monkeypatch, 3) as far,
        pytest.warns(ObservationWarning, match=f"step {BAD}: .*not run again: its parameters were not kept.*Limits\\(memory="),
        watched(model, optimizer, limits=Limits(memory=300), rules=False) as inspector,
    ):
        train(model, optimizer)
        far.may_wait = True
    assert inspector.findings[0].step == BAD


def test_copies_of_good_steps_are_used_again() -> None:
    parameters = [nn.Parameter(torch.randn(10)), nn.Parameter(torch.randn(3))]
    size = sum(parameter.nbytes for parameter in parameters)
    pending = PendingSteps(2.5 * size)
    memory: set[int] = set()
    for step in range(20):
        opened = pending.begin(0, step, [], {})
        pending.keep(parameters)
        assert opened.is_kept
        opened.add(parameters, torch.zeros(2))
        pending.send()
        for arrived in pending.arrived():
            before = pending.parameters_before(arrived)
            assert not before.lost
            memory |= {copy.data_ptr() for copy in before.copies.values()}
            assert all(torch.equal(before.copies[id(parameter)], parameter) for parameter in parameters)
    assert len(memory) == len(parameters)


def test_a_step_that_a_fused_optimizer_skips_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Planted(log_of_negative)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    with device(monkeypatch, 1) as far, watched(model, optimizer, rules=False) as inspector:
        for step in range(8):
            optimizer.zero_grad()
            model(torch.rand(3, 4), torch.tensor(float(step == 5))).square().mean().backward()
            optimizer.found_inf = torch.tensor(float(step == 5))  # type: ignore[attr-defined]  # as a GradScaler sets it
            optimizer.step()
        far.may_wait = True
    assert not inspector.findings
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs a GPU")
def test_on_an_accelerator_nothing_waits_and_the_fault_is_found(tmp_path: Path) -> None:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    model = Planted(log_of_negative).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batches = [{name: value.to(device) for name, value in batch(step).items()} for step in range(BAD + 8)]
    with (
        pytest.warns(ObservationWarning, match=f"step {BAD}: .*log of"),
        watched(model, optimizer, tmp_path / "run", rules=False) as inspector,
    ):
        for step, given in enumerate(batches):
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("error" if step < BAD else "default")
            loss = model(**given).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            inspector.push_loss(loss, train=True)
    assert (inspector.findings[0].step, inspector.findings[0].site) == (BAD, "fault:output")
    kept = read_step(tmp_path / "run" / "nonfinite" / f"step-{BAD:08d}")
    assert all(bool(parameter.isfinite().all()) for parameter in kept.parameters.values())
