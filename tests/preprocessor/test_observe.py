"""Preprocessors fed by ``sonde.observe`` from real training, without an inspector."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.preprocessor import (
    Conditioning,
    GradientActivation,
    GradientGeometry,
    InputNorm,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterDifferenceGeometry,
    ParameterNorm,
    UpdateRatio,
    UpdateRounding,
)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 2))


BATCHES = [torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, micro: int = 2) -> None:
    """Three steps of several backward passes each."""
    for start in range(0, len(BATCHES), micro):
        optimizer.zero_grad()
        for batch in BATCHES[start : start + micro]:
            model(batch).square().sum().backward()
        optimizer.step()


def traced(model: nn.Module, micro: int = 2) -> list[tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]]:
    """Of the same training: the parameters before each step, the gradients that it used, the parameters after it."""
    steps = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for start in range(0, len(BATCHES), micro):
        optimizer.zero_grad()
        for batch in BATCHES[start : start + micro]:
            model(batch).square().sum().backward()
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        steps.append((before, gradients, {name: p.detach().clone() for name, p in model.named_parameters()}))
    return steps


def cosine(one: Tensor, other: Tensor) -> float:
    return float((one.double() * other.double()).sum() / (one.double().norm() * other.double().norm()))


def fed(seen: Any, **options: Any) -> dict[str, Any]:
    model = net()
    with sonde.observe(model, seen, strict=True, **options) as probe:
        train(model, torch.optim.SGD(model.parameters(), lr=0.05))
    assert not probe.errors
    return seen.value


@pytest.mark.parametrize("grad_at_step", [False, True])
def test_gradients(grad_at_step: bool) -> None:
    found = fed(GradientGeometry(inplace=False), grad_at_step=grad_at_step)
    activity = fed(GradientActivation(inplace=False), grad_at_step=grad_at_step)
    steps = traced(net())
    for name in steps[0][0]:
        gradients = [step[1][name] for step in steps]
        assert found[name].norm == pytest.approx([float(g.double().norm()) for g in gradients], rel=1e-6)
        pairs = zip(gradients[1:], gradients, strict=False)
        assert found[name].correlation == pytest.approx([cosine(a, b) for a, b in pairs], rel=1e-5)
        dead = [float((g.flatten(1) if g.dim() > 1 else g[:, None]).abs().amax(1).le(1e-8).double().mean()) for g in gradients]
        assert activity[name].death == pytest.approx(dead)


def test_updates() -> None:
    difference = fed(ParameterDifferenceGeometry(inplace=False))
    ratio, lost = fed(UpdateRatio(inplace=False)), fed(UpdateRounding(inplace=False))
    steps = traced(net())
    for name in steps[0][0]:
        moved = [(after[name] - before[name]).double() for before, _, after in steps]
        assert difference[name].norm == pytest.approx([float(m.norm()) for m in moved], rel=1e-5)
        expected = [float(m.norm() / before[name].double().norm()) for m, (before, _, _) in zip(moved, steps, strict=True)]
        assert ratio[name] == pytest.approx(expected, rel=1e-5)
        rounded = [float(((m == 0) & (grad[name] != 0)).double().mean()) for m, (_, grad, _) in zip(moved, steps, strict=True)]
        assert lost[name] == pytest.approx(rounded)


def test_parameters() -> None:
    norms, conditions = fed(ParameterNorm(inplace=False)), fed(Conditioning(inplace=False))
    steps = traced(net())
    for layer in ("0", "2"):
        weights = [after[f"{layer}.weight"].double() for _, _, after in steps]
        assert norms[layer]["weight"] == pytest.approx([float(w.norm()) for w in weights], rel=1e-6)
        assert norms[layer]["bias"] == pytest.approx([float(after[f"{layer}.bias"].double().norm()) for _, _, after in steps])
        assert conditions[layer]["weight"].condition == pytest.approx([float(torch.linalg.cond(w)) for w in weights], rel=1e-5)
    assert set(conditions) == {"0", "2"}


def test_outputs_and_inputs_in_training_passes() -> None:
    seen = {make: make(inplace=False, evaluation_from_grad=True) for make in (OutputActivation, OutputNorm, InputNorm)}
    model = net()
    for one in seen.values():
        probe = sonde.observe(model, one, passes="training", strict=True)
        with torch.no_grad():
            model.eval()(BATCHES[0])
        model.train()(BATCHES[0])
        probe.detach()
    first = model[0](BATCHES[0]).detach().double()
    assert seen[OutputNorm].value["0"] == pytest.approx([float(first.norm(dim=1).mean())])
    assert seen[InputNorm].value["1"] == seen[OutputNorm].value["0"]
    active = (first > 0).double()
    assert seen[OutputActivation].value["1"].activation == pytest.approx([float(active.mean())])
    assert seen[OutputActivation].value["1"].death == pytest.approx([float((active.sum(0) == 0).double().mean())])


def test_output_gradients() -> None:
    found = fed(OutputGradientGeometry(inplace=False))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    expected = []
    for start in (0, 2, 4):
        optimizer.zero_grad()
        for batch in BATCHES[start : start + 2]:
            output = model(batch)
            output.retain_grad()
            output.square().sum().backward()
            expected.append(output.grad.double())
        optimizer.step()
    assert found["2"].norm == pytest.approx([float(g.norm()) for g in expected], rel=1e-6)
    assert found["2"].correlation == pytest.approx([cosine(a, b) for a, b in zip(expected[1:], expected, strict=False)], rel=1e-5)


def test_observing_changes_nothing() -> None:
    bare, observed = net(), net()
    train(bare, torch.optim.AdamW(bare.parameters()))
    every = [
        OutputActivation(evaluation_from_grad=True),
        InputNorm(evaluation_from_grad=True),
        OutputGradientGeometry(),
        GradientGeometry(),
        GradientActivation(),
        ParameterNorm(),
        ParameterDifferenceGeometry(),
        UpdateRatio(),
        UpdateRounding(),
        Conditioning(),
    ]
    random = torch.get_rng_state()
    probes = [sonde.observe(observed, one, strict=True) for one in every]
    train(observed, torch.optim.AdamW(observed.parameters()))
    for probe in probes:
        probe.detach()
    assert torch.equal(random, torch.get_rng_state())
    for mine, theirs in zip(bare.parameters(), observed.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(mine.grad, theirs.grad)
    assert all("no data" not in repr(one) for one in every)


def test_a_step_that_a_scaler_skips_leaves_no_number() -> None:
    """An overflowing step is none: no update, and its gradient gives way to that of the step that is taken."""
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    norms, updates = GradientGeometry(scaler=scaler, inplace=False), ParameterDifferenceGeometry(inplace=False)
    with sonde.observe(model, norms, strict=True), sonde.observe(model, updates, strict=True):
        for batch in (torch.full((1, 2), math.inf), torch.ones(1, 2)):
            optimizer.zero_grad()
            scaler.scale(model(batch).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert norms.value["weight"].norm == pytest.approx([math.sqrt(2)])
    assert updates.value["weight"].norm == pytest.approx([0.1 * math.sqrt(2)])


def test_n35_a_model_that_a_preprocessor_observes_can_be_copied_and_a_preprocessor_too() -> None:
    model, seen = net(), GradientGeometry()
    with sonde.observe(model, seen, strict=True):
        copied = copy.deepcopy(model)
        copied(BATCHES[0]).sum().backward()
        assert all(held.norm.count == 0 for held in seen.value.values())
        model(BATCHES[0]).sum().backward()
    held = copy.deepcopy(seen)
    seen.reset()
    assert held.value["0.weight"].norm.count == 1
    assert seen.value["0.weight"].norm.count == 0


def test_n24_a_gradient_that_is_consumed_during_the_backward_pass_is_measured_before() -> None:
    model, seen = nn.Linear(2, 1, bias=False), GradientGeometry()
    consumer = model.weight.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    with sonde.observe(model, seen, strict=True):
        model(torch.ones(1, 2)).sum().backward()
    consumer.remove()
    assert seen.value["weight"].norm.mean == pytest.approx(2**0.5)


def _on_rank(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = nn.Linear(1, 1, bias=False)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen = GradientGeometry(inplace=False)
    with sonde.observe(wrapped, seen, grad_at_step=True, strict=True):
        for _ in range(2):
            optimizer.zero_grad()
            wrapped(torch.tensor([[10.0 * (rank + 1)]])).sum().backward()
            optimizer.step()
    (Path(folder) / str(rank)).write_text(str(list(seen.value["weight"].norm)))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_n10_two_ranks_report_the_gradient_that_both_use(tmp_path: Path) -> None:
    """Local gradients of 10 and 20; both optimizers step by 15."""
    torch.multiprocessing.spawn(_on_rank, args=(str(tmp_path),), nprocs=2)
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["[15.0, 15.0]"] * 2


def test_two_models_on_one_preprocessor_are_told_apart() -> None:
    seen = ParameterNorm("weight")
    g, d = nn.Linear(2, 2), nn.Linear(2, 2)
    with sonde.observe(g, seen, name="G", strict=True), sonde.observe(d, seen, name="D", strict=True):
        for model in (g, d):
            model(torch.ones(1, 2)).sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert sorted(seen.value) == ["D/", "G/"]


def test_training_is_read_from_the_layers_own_flag() -> None:
    """Events carry the layer, so that calls of a layer in evaluation mode can be told from others."""
    model = net()
    seen = OutputNorm(evaluation_from_grad=False)
    with sonde.observe(model, seen, strict=True):
        model(BATCHES[0])
        model.eval()
        model(BATCHES[0])
    assert seen.value["0"].count == 1


def test_layers_that_did_not_run_have_no_data() -> None:
    """``observe`` says which layers there are, so that value names them all in the order of the model."""
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Linear(2, 2)})
    seen = OutputNorm()
    with sonde.observe(model, seen, nn.Linear, strict=True):
        model["used"](torch.ones(1, 2))
    assert list(seen.value) == ["used", "idle"]
    assert [held.count for held in seen.value.values()] == [1, 0]


def test_a_transposed_convolution_is_seen_by_its_output_channels() -> None:
    """Events of ``grad`` carry the layer that owns the parameter: of a (in, out, k) weight axis 1 is the neurons."""
    model = nn.Sequential(nn.ConvTranspose1d(2, 3, 1, bias=False))
    seen = GradientActivation()
    with sonde.observe(model, seen, strict=True) as probe:
        model(torch.ones(1, 2, 4))[:, :1].sum().backward()  # two of three output channels get no gradient
        probe.step()
    assert seen.value["0.weight"].death.mean == pytest.approx(2 / 3)
