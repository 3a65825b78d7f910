"""A kept step is run again with one thing changed; a spike says which sample is large."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sonde
from sonde.errors import ArgumentError, ObservationWarning

BAD, SAMPLE = 33, 5


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(step)
    x = torch.randn(16, 4, generator=made)
    y = x.sum(1, keepdim=True)
    if step == BAD:
        y[SAMPLE] = 1e4
    return x, y


def spiked(folder: Path) -> tuple[Path, nn.Module, str]:
    """Train with one bad label whose loss is given behind the optimizer's step; return the kept step and what was said."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    options: dict[str, Any] = {"bad_steps": sonde.BadSteps(None, on_spike=8), "rules": False, "verbose": False}
    with (
        pytest.warns(ObservationWarning, match=f"step {BAD}") as warned,
        sonde.watch(model, optimizer, to=folder, **options) as inspector,
    ):
        for step in range(BAD + 1):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            inspector.push_loss(loss, train=True)
    assert len(warned) == 1
    (kept,) = (folder / "spikes").iterdir()
    return kept, network(), (kept / "report.txt").read_text()


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output, batch(BAD)[1])


def test_a_step_whose_loss_and_gradients_jump_is_kept_once_and_names_the_sample(tmp_path: Path) -> None:
    kept, model, said = spiked(tmp_path / "run")
    assert "the gradient norm jumped" in said
    assert "the loss jumped" in said
    assert f"the gradient at the model's output is largest in sample {SAMPLE}" in said
    notes = " ".join(sonde.replay(kept, model).notes)
    assert f"the gradient at the model's output is largest in sample {SAMPLE}" in notes
    assert "of the squares of all gradients" in notes


def test_what_became_of_the_changed_step_is_what_plain_torch_makes_of_it(tmp_path: Path) -> None:
    kept, model, _ = spiked(tmp_path / "run")
    weights = sonde.run.read_tensor_file(kept / "model.safetensors", [], None)
    for change, lr, limit in (({"lr": 0.5}, 0.5, math.inf), ({"clip_grad_norm": 0.25}, 0.1, 0.25)):
        plain = network()
        plain.load_state_dict(weights)
        sgd = torch.optim.SGD(plain.parameters(), lr=lr)
        loss = loss_of(plain(batch(BAD)[0]))
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(plain.parameters(), limit))
        before = {name: each.detach().clone() for name, each in plain.named_parameters() if each.dim() > 1}
        sgd.step()
        moved = {
            name: float((plain.state_dict()[name] - each).norm() / max(float(each.norm()), math.sqrt(each.shape[0] / 3)))
            for name, each in before.items()
        }
        tried = sonde.replay(kept, model, loss_of, change=change, optimizer=lambda own: torch.optim.SGD(own, lr=0.1)).changed
        rough = pytest.approx
        assert tried.loss == rough(float(loss.detach()), rel=1e-5)
        assert tried.after == rough(float(loss_of(plain(batch(BAD)[0])).detach()), rel=1e-4)
        assert tried.gradient == rough(min(norm, limit), rel=1e-4)
        assert tried.moved == rough(max(moved.values()), rel=1e-4)
        assert moved[tried.parameter] == max(moved.values())


def test_a_sample_that_is_left_out_takes_its_gradient_with_it(tmp_path: Path) -> None:
    kept, model, _ = spiked(tmp_path / "run")
    answer = sonde.replay(kept, model, change={"without": SAMPLE})
    assert answer.changed.gradient < answer.as_it_was.gradient / 100
    assert str(answer).splitlines()[0].strip().startswith(f"with sample {SAMPLE} left out: the step stays finite")


def test_a_change_that_mends_a_step_is_proved_and_one_that_does_not_is_not(tmp_path: Path) -> None:
    kept, model, _ = spiked(tmp_path / "run")
    for change, proved in (({"lr": 1e-6}, True), ({"lr": 10.0}, False), ({"clip_grad_norm": 1e-3}, True)):
        answer = sonde.replay(kept, model, loss_of, change=change, optimizer=lambda own: torch.optim.SGD(own, lr=1.0))
        assert (answer.proved, answer.ok) == (proved, proved)
        assert answer.to_dict()["proved"] == proved


def test_an_overflow_of_a_half_precision_stays_finite_in_float32(tmp_path: Path) -> None:
    made: list[nn.Module] = []
    for _ in range(2):
        model = network()
        with torch.no_grad():
            model[0].weight.mul_(100)
            model[2].weight.fill_(100.0)
        made.append(model.half())
    model, fresh = made
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with pytest.warns(ObservationWarning, match="step 0"), sonde.watch(model, optimizer, to=tmp_path / "run", verbose=False):
        model(torch.full((4, 4), 90.0, dtype=torch.float16)).square().mean().backward()
        optimizer.step()
    (kept,) = (tmp_path / "run" / "nonfinite").iterdir()
    answer = sonde.replay(kept, fresh, lambda output: output.square().mean(), change={"dtype": "float32"})
    assert answer.proved
    assert (bool(answer.as_it_was.broken), answer.changed.broken) == (True, "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lrr": 0.1}, "Nearest: lr"),
        ({"lr": 0.1}, "needs the optimizer"),
        ({"clip_grad_norm": "1"}, "give the largest norm"),
        ({"dtype": torch.int32}, "give a floating-point type"),
        ({"autocast": True}, "give False, or the type"),
        ({"without": []}, "give the indices"),
        ({"without": [99]}, "16 samples"),
        ({}, "give what is changed by name"),
    ],
)
def test_what_cannot_be_changed_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    kept, model, _ = spiked(tmp_path / "run")
    with pytest.raises(ArgumentError, match=words):
        sonde.replay(kept, model, change=change)


def test_the_model_and_the_optimizer_that_are_given_stay_as_they_are(tmp_path: Path) -> None:
    kept, model, _ = spiked(tmp_path / "run")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    state = torch.get_rng_state()
    sonde.replay(kept, model, loss_of, change={"lr": 5.0}, optimizer=optimizer)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert (optimizer.param_groups[0]["lr"], len(optimizer.state)) == (0.1, 0)
    assert torch.equal(state, torch.get_rng_state())


def trained(lr: float) -> tuple[sonde.Inspector, Any]:
    """A training, and the proof that its program can give afterwards."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        for step in range(12):
            optimizer.zero_grad()
            x, y = batch(step)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    x, y = batch(0)
    return inspector, sonde.Proof(
        network(), x, lambda output: nn.functional.mse_loss(output, y), optimizer=lambda own: torch.optim.SGD(own, lr=lr)
    )


def test_a_check_tries_its_advice_and_says_what_is_proved() -> None:
    inspector, proof = trained(2.0)
    checked = sonde.check(inspector.run, prove=proof)
    root, *behind = checked.findings
    assert root.rule in ("update_huge", "update_large")
    assert root.proof.startswith("proved in the first step: as it is, it moves ")
    assert re.search(r"with lr 0\.\d+, the step stays finite and moves [02].weight by \d+ %", root.proof)
    assert all(not each.proof for each in behind if each.follows)
    assert root.proof in checked.to_text()
    assert not any(each.proof for each in inspector.run.findings)  # the record holds no answer to a question


def test_what_the_first_step_does_not_show_is_likely_alone() -> None:
    inspector, _ = trained(2.0)
    _, sound = trained(1e-3)
    assert sonde.check(inspector.run, prove=sound).findings[0].proof == "likely: the first step of this model does not show it"


def test_a_model_that_the_training_has_broken_proves_nothing() -> None:
    model = network()
    nn.init.constant_(model[0].bias, math.nan)
    with pytest.raises(ArgumentError, match="make the model anew"):
        sonde.Proof(model, batch(0)[0], loss_of, optimizer=lambda own: torch.optim.SGD(own, lr=1.0))
    with pytest.raises(ArgumentError, match="prove="):
        sonde.check(trained(1e-3)[0].run, prove=True)  # type: ignore[arg-type]
