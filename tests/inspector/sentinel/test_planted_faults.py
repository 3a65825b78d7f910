"""A fault in a step that is not logged is named by its layer, step and cause, from ``watch`` alone."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.inspector.sentinel.faults import BAD, Planted, batch, train, trained, watched
from torch import Tensor, nn

import sonde
from sonde.errors import NonFiniteError, ObservationWarning
from sonde.inspector.sentinel.kept_step import read_step


def log_of_negative(x: Tensor, switch: Tensor) -> Tensor:
    return torch.log(x.sigmoid() - 2 * switch)


def overflow(x: Tensor, switch: Tensor) -> Tensor:
    return (x.half() * (1 + 6e4 * switch) * 4).float() if switch else x


def root_in_backward(x: Tensor, switch: Tensor) -> Tensor:
    return (x * (1 - switch)).square().sum(-1, keepdim=True).sqrt() + x


def half_of_nothing(x: Tensor, switch: Tensor) -> Tensor:
    return x / (1 - switch)


FAULTS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str, str]] = {
    "log of a negative": (log_of_negative, "log", "fault:output"),
    "overflow of float16": (overflow, "mul", "fault:output"),
    "sqrt'(0)": (root_in_backward, "sqrt", "fault:grad_input"),
    "division by 0": (half_of_nothing, "div", "fault:output"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_between_logged_steps_is_named_by_layer_step_and_operation(name: str, tmp_path: Path) -> None:
    fault, operation, site = FAULTS[name]
    model = Planted(fault)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watched(model, optimizer, tmp_path / "run") as inspector, pytest.warns(ObservationWarning, match=f"step {BAD}: "):
        train(model, optimizer)
    found = inspector.findings[0]
    assert (found.rule, found.step, found.first_step, found.site) == ("nonfinite", BAD, BAD, site)
    assert sum(each.rule == "nonfinite" for each in inspector.findings) == 1
    assert any(each.step == BAD and each.site == site for each in inspector.run.findings)
    report = sonde.replay(tmp_path / "run" / "nonfinite" / f"step-{BAD:08d}", Planted(fault))
    assert report.operation is not None
    assert operation in report.operation
    assert report.line is not None
    assert Path(__file__).name in str(report.line)


def test_a_run_that_is_replaced_takes_its_kept_steps_along(tmp_path: Path) -> None:
    """And no file of the user's."""
    for fault in (log_of_negative, half_of_nothing):
        model = Planted(fault)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with (
            watched(model, optimizer, tmp_path / "run", exists="replace"),
            pytest.warns(ObservationWarning),
        ):
            train(model, optimizer)
        (folder,) = (tmp_path / "run" / "nonfinite").iterdir()
        assert sonde.replay(folder, Planted(fault)).operation == ("log" if fault is log_of_negative else "truediv")
    (folder / "notes.txt").write_text("mine")
    watched(Planted(log_of_negative), None, tmp_path / "run", exists="replace").detach()
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_the_culprit_runs_alone_without_sonde(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Planted(log_of_negative)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watched(model, optimizer, tmp_path / "run"), pytest.warns(ObservationWarning):
        train(model, optimizer)
    script = tmp_path / "run" / "nonfinite" / f"step-{BAD:08d}" / "reproduce.py"
    assert [line for line in script.read_text().splitlines() if "import" in line] == ["import torch"]
    runpy.run_path(str(script))
    assert "nan" in capsys.readouterr().out


def test_stop_raises_before_any_parameter_has_changed(tmp_path: Path) -> None:
    model = Planted(log_of_negative)
    optimizer = torch.optim.AdamW(model.parameters())
    twin = Planted(log_of_negative)
    twin.load_state_dict(model.state_dict())
    train(twin, torch.optim.AdamW(twin.parameters()), range(BAD))
    inspector = watched(model, optimizer, tmp_path / "run", bad_steps="stop")
    with pytest.raises(NonFiniteError, match=rf"step {BAD}: 4 of 4 gradients hold NaN.*step-{BAD:08d}"), inspector:
        train(model, optimizer)
    for own, expected in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(own, expected)
    assert inspector.run.scalar("grad_norm")[0].tolist() == [0, 10, 20, 30]
    assert inspector.findings[0].step == BAD


@pytest.mark.parametrize("policy", ["warn", None])
def test_a_training_is_the_same_with_and_without(policy: str | None) -> None:
    for own, expected in zip(trained(25, watch=True, bad_steps=policy), trained(25, watch=False), strict=True):
        assert torch.equal(own, expected)


def test_a_bad_loss_of_good_outputs_is_laid_to_the_loss_function() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watched(model, optimizer) as inspector, pytest.warns(ObservationWarning, match="the loss function has made it"):
        loss = (model(torch.zeros(3, 4)) * 0).sqrt().sum()
        loss.backward()
        optimizer.step()
    assert inspector.findings[0].site == "(root):grad_output"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (torch.sqrt, "made it, as where a slope is infinite: that of sqrt at 0"),
        (lambda made: made**0.5, "that of a power of 0.5 at 0"),
        (lambda made: torch.acos((made + 1).clamp(-1, 1)), "that of acos at -1 and 1"),
        (lambda made: torch.where(made > 0, made.log(), 0 * made), "that of log at 0"),
        (lambda made: (made + 1e-8).sqrt() * (made / made).nan_to_num(), r"the loss function has made it\."),
    ],
)
def test_slopes_of_a_loss_function_that_are_infinite_are_named(function: Callable[[Tensor], Tensor], said: str) -> None:
    model = nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watched(model, optimizer) as inspector, pytest.warns(ObservationWarning, match=said):
        loss = function(model(torch.zeros(3, 4))).sum()
        loss.backward()
        optimizer.step()
    assert inspector.findings[0].site == "(root):grad_output"


def test_parameters_that_an_optimizer_broke_are_laid_to_the_step_before() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0)
    with watched(model, optimizer) as inspector, pytest.warns(ObservationWarning, match="'weight' was not finite before this step"):
        for _ in range(3):
            loss = model(torch.zeros(3, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert [(each.site, each.step) for each in inspector.findings] == [("weight:param", 0), ("weight:param", 1)]
    assert "'weight' was not finite before this step" in inspector.findings[1].message


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


def test_the_state_before_the_step_is_what_is_kept(tmp_path: Path) -> None:
    model = normalised()
    optimizer = torch.optim.AdamW(model.parameters())
    x = batch(0)["x"]
    with watched(model, optimizer, tmp_path / "run", bad_steps="stop"):
        for step in range(6):
            if step == 5:
                before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                random = torch.get_rng_state()
                x[2, 1] = torch.nan
            model(x).square().mean().backward()
            if step < 5:
                optimizer.step()
                optimizer.zero_grad()
        with pytest.raises(NonFiniteError):
            optimizer.step()
    folder = tmp_path / "run" / "nonfinite" / "step-00000005"
    kept = read_step(folder)
    assert {**kept.parameters, **kept.buffers}.keys() == before.keys()
    for name, tensor in {**kept.parameters, **kept.buffers}.items():
        assert torch.equal(tensor, before[name])
    (only,) = kept.passes
    assert torch.allclose(only.args[0], x, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(only.random.cpu, random)
    assert not only.is_changed
    assert sonde.replay(folder, normalised()).origin.source == "input"
