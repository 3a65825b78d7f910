"""The norm of the gradients before clipping, whoever clips, and gradients under a GradScaler that was not given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD, AdamW

from sonde.errors import ObservationWarning
from sonde.inspector import Inspector, watch


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def norm_of(model: nn.Module) -> float:
    gradients = [parameter.grad.double().flatten() for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.cat(gradients).norm())


def by_hand(model: nn.Module) -> None:
    """Through ``.data``, which autograd does not notice."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.data.mul_(0.01)


def by_foreach(model: nn.Module) -> None:
    torch._foreach_mul_([parameter.grad for parameter in model.parameters() if parameter.grad is not None], 0.01)


def by_new_tensors(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad = parameter.grad * 0.01


CLIPS: dict[str, Callable[[nn.Module], object]] = {
    "norm": lambda model: clip_grad_norm_(model.parameters(), 0.01),
    "value": lambda model: clip_grad_value_(model.parameters(), 0.001),
    "data": by_hand,
    "foreach": by_foreach,
    "new tensors": by_new_tensors,
    "nothing": lambda model: None,
}


def scalars(inspector: Inspector, name: str) -> list[float]:
    found: list[float] = inspector.run.scalar(name)[1].tolist()
    return found


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("clip", CLIPS)
def test_the_norm_before_clipping(clip: str, passes: int) -> None:
    """Of the accumulated gradients, beside the norm of those that the optimizer uses."""
    model = network()
    optimizer = AdamW(model.parameters(), 1e-3)
    raw, used = [], []
    with watch(model, every=1, to="memory", verbose=False, strict=True) as inspector:
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(passes):
                model(torch.randn(5, 4)).square().sum().backward()
            raw.append(norm_of(model))
            CLIPS[clip](model)
            used.append(norm_of(model))
            optimizer.step()
    assert scalars(inspector, "grad_norm_raw") == pytest.approx(raw, rel=1e-12)
    assert scalars(inspector, "grad_norm") == pytest.approx(used, rel=1e-12)
    assert not any(family in inspector.run.families for family in ("gradients before clipping", "parameters before a step"))


def test_an_explosion_under_clipping_is_found() -> None:
    """The norm that the optimizer uses is 1 all the time."""
    model = network()
    optimizer = SGD(model.parameters(), 1e-4)
    with watch(model, every=1, to="memory", verbose=False) as inspector:
        for step in range(100):
            optimizer.zero_grad()
            (model(torch.randn(64, 4)).square().mean() * (1e4 if step == 90 else 1e2)).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert scalars(inspector, "grad_norm") == pytest.approx([1.0] * 100, abs=1e-3)
    (found,) = (each for each in inspector.findings if each.rule == "spike")
    assert found.first_step == 90
    assert found.message.startswith("grad_norm_raw jumped to ")


def test_only_the_gradients_that_an_optimizer_uses_count() -> None:
    """Two optimizers, each after a backward pass of its own; the gradients of the first stay where they are."""
    model = network()
    first, second = SGD(model[0].parameters(), 0.1), SGD(model[2].parameters(), 0.1)
    raw = []
    with watch(model, every=1, to="memory", verbose=False, strict=True) as inspector:
        for optimizer, part in [(first, model[0]), (second, model[2])] * 2:
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().sum().backward()
            raw.append(norm_of(part))
            optimizer.step()
    assert scalars(inspector, "grad_norm_raw") == pytest.approx(raw, rel=1e-12)


def test_two_optimizers_on_one_backward_pass() -> None:
    model = network()
    optimizers = [SGD(layer.parameters(), 0.1) for layer in (model[0], model[2])]
    raw = []
    with watch(model, every=1, to="memory", verbose=False, strict=True) as inspector:
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(5, 4)).square().sum().backward()
            raw.append(norm_of(model))
            clip_grad_norm_(model.parameters(), 0.01)
            for optimizer in optimizers:
                optimizer.step()
    assert scalars(inspector, "grad_norm_raw") == pytest.approx(raw, rel=1e-12)


def test_gradients_that_are_reduced_at_the_end_of_the_backward_pass() -> None:
    """As by DDP: its callback is queued when the last gradient is there, after the clock's own."""
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    left = len(list(model.parameters()))

    def reduce() -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)

    def accumulated(_: Tensor) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            torch.autograd.Variable._execution_engine.queue_callback(reduce)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(accumulated)
    with watch(model, every=1, to="memory", verbose=False, strict=True) as inspector:
        model(torch.randn(5, 4)).square().sum().backward()
        raw = norm_of(model)
        optimizer.step()
    assert scalars(inspector, "grad_norm_raw") == pytest.approx([raw], rel=1e-12)


def test_sparse_gradients() -> None:
    model = nn.Sequential(nn.Embedding(6, 3, sparse=True))
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, every=1, to="memory", verbose=False, strict=True) as inspector:
        model(torch.tensor([0, 1, 1])).sum().backward()
        optimizer.step()
    assert scalars(inspector, "grad_norm_raw") == pytest.approx([(3 * 1 + 3 * 4) ** 0.5])


def scaled(scaler_given: bool, *, fused: bool, unscale: bool) -> Inspector:
    model = network()
    optimizer = AdamW(model.parameters(), 1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    with watch(model, every=1, to="memory", verbose=False, scaler=scaler if scaler_given else None) as inspector:
        for _ in range(5):
            optimizer.zero_grad()
            loss: Tensor = model(torch.randn(5, 4)).square().sum()
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
    return inspector


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_that_was_not_given_is_noticed_and_used(fused: bool, unscale: bool) -> None:
    """Its scale is taken out of all gradients, from the first step on, with one warning."""
    expected = scaled(True, fused=fused, unscale=unscale)
    with pytest.warns(ObservationWarning, match="scaled by a GradScaler that was not given") as warned:
        found = scaled(False, fused=fused, unscale=unscale)
    assert len(warned) == 1
    for name in ("grad_norm", "grad_norm_raw", "update_norm"):
        assert scalars(found, name) == scalars(expected, name)
    for site in ("0:grad_output", "0.weight:grad"):
        assert np.array_equal(found.run.series(site, "rms")[1], expected.run.series(site, "rms")[1])
