"""A model is left as it was, also where its forwards end early; and they end early where that changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.engine import hooks
from sonde.errors import ArgumentError


class Counting(nn.Module):
    """Three layers; counts how far its forwards come, and which blocks they leave."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.ended = self.entered = self.left = 0

    @contextmanager
    def block(self) -> Iterator[None]:
        self.entered += 1
        try:
            yield
        finally:
            self.left += 1

    def forward(self, x: Tensor) -> Tensor:
        with self.block(), torch.autocast("cpu", torch.bfloat16, enabled=False):
            x = self.c(self.b(self.a(x)))
        self.ended += 1
        return x


def counting() -> Counting:
    torch.manual_seed(0)
    return Counting().eval()


BATCHES = [torch.randn(4, 3, generator=torch.Generator().manual_seed(each)) for each in range(20)]


def test_a_forward_ends_behind_the_last_site(tmp_path: Path) -> None:
    """But for every forward whose number is a power of two; blocks are left, and the values are those of whole forwards."""
    model = counting()
    store = sonde.extract(model, BATCHES, ["a", "b"], tmp_path / "t")
    assert (model.entered, model.left, model.ended) == (20, 20, 5)
    assert not torch.is_autocast_enabled("cpu")
    with torch.no_grad():
        whole = torch.cat([model.b(model.a(batch)) for batch in BATCHES])  # batch by batch: the size chooses the kernel
        assert torch.equal(torch.as_tensor(store["b:output"][:]), whole)
    with sonde.track(model, grad=False) as tracker:
        model(BATCHES[0])
    assert [stash.name for stash in tracker] == ["a", "b", "c", ""]


def hooked() -> Counting:
    model = counting()
    model.c.register_forward_hook(lambda *_: None)
    return model


def replaced() -> Counting:
    model = counting()
    forward = model.c.forward
    model.c.forward = forward  # type: ignore[method-assign]
    return model


def compiled() -> Counting:
    model = counting()
    model.c.compile(backend="eager")
    return model


WHOLE: dict[str, Callable[[], Counting]] = {
    "a hook of another": hooked,
    "a replaced forward": replaced,
    "a compiled part": compiled,
    "training mode": lambda: counting().train(),
    "a part in training mode": lambda: (model := counting(), model.c.train())[0],
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_forward_runs_whole_where_ending_it_is_not_safe(tmp_path: Path, case: str) -> None:
    model = WHOLE[case]()
    sonde.extract(model, BATCHES, ["a"], tmp_path / "t")
    assert model.ended == 20


def test_a_forward_runs_whole_under_a_call_of_the_users(tmp_path: Path) -> None:
    model = counting()
    sonde.extract(model, BATCHES, ["a"], tmp_path / "t", call=lambda model, batch: model(batch))
    assert model.ended == 20


def test_the_last_site_may_change(tmp_path: Path) -> None:
    """Where calls come in another order later, forwards run whole, and all is stored."""

    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(self.b(x)) if x.sum() > 0 else self.b(self.a(x))

    torch.manual_seed(0)
    model = Turning().eval()
    store = sonde.extract(model, BATCHES, ["a", "b"], tmp_path / "t")
    seen: dict[str, list[Tensor]] = {"a": [], "b": []}
    handles = [getattr(model, name).register_forward_hook(lambda m, i, o, name=name: seen[name].append(o)) for name in seen]
    with torch.no_grad():
        for batch in BATCHES:
            model(batch)
    for handle in handles:
        handle.remove()
    for name, outputs in seen.items():
        assert torch.equal(torch.as_tensor(store[f"{name}:output"][:]), torch.cat(outputs))


def test_a_module_that_is_called_more_often_later(tmp_path: Path) -> None:
    """It is refused: a column would lack rows."""

    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.calls = nn.Linear(3, 3), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            for _ in range(1 + (self.calls > 3)):
                x = self.a(x)
            return x

    with pytest.raises(ArgumentError, match="batch 3: a:output@1 came, which had nothing in the first batch"):
        sonde.extract(Grows().eval(), BATCHES, ["a"], tmp_path / "t")


class Everything(nn.Module):
    """Draws, counts batches, writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.norm, self.drop, self.head = nn.ReLU(inplace=True), nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.drop(self.norm(self.relu(x + 0))))
        return found


@pytest.mark.filterwarnings("ignore:the model draws random numbers")
@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_behind(tmp_path: Path, training: bool) -> None:
    """No hook, no number, no flag, no state of a generator; and other observers have seen nothing."""
    torch.manual_seed(0)
    model = Everything().train(training)
    model.drop.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    state, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    with sonde.track(model) as tracker, sonde.ModuleTracker() as modules:
        sonde.extract(model, BATCHES, ["norm", "drop"], tmp_path / "t", ports=("input", "output"))
        assert modules.parents == {"Global"}
    assert not len(tracker)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python
    assert np.array_equal(np.random.get_state()[1], numpy)
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(held for module in model.modules() for held in hooks.hooks_on(module).values())
    assert torch.is_grad_enabled()
    model(BATCHES[0]).sum().backward()
    assert model.head.weight.grad is not None


def test_a_model_that_is_trained_goes_on_as_it_would(tmp_path: Path) -> None:
    """A training with an extraction in its middle ends in the same bits, and counts the same steps."""

    def trained(between: Callable[[nn.Module], Any]) -> tuple[list[Tensor], list[Any]]:
        torch.manual_seed(0)
        model = Everything()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ticks: list[Any] = []
        with sonde.observe(model, lambda event: ticks.append(event.tick), include="head"):
            for step, batch in enumerate(BATCHES[:6]):
                if step == 3:
                    between(model)
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
        return [tensor.detach().clone() for tensor in model.state_dict().values()], ticks

    plain = trained(lambda model: None)
    batches = torch.utils.data.DataLoader(torch.cat(BATCHES), batch_size=4, shuffle=True)
    with pytest.warns(sonde.errors.ObservationWarning, match="draws random numbers"):
        other = trained(lambda model: sonde.extract(model, batches, ["norm"], tmp_path / "t"))
    assert all(torch.equal(one, two) for one, two in zip(plain[0], other[0], strict=True))
    assert plain[1] == other[1]


def test_a_cache_that_a_model_makes_can_be_trained_with(tmp_path: Path) -> None:
    """As a table of angles: a tensor that is made in inference mode could not."""

    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.table = nn.Linear(3, 3), None

        def forward(self, x: Tensor) -> Tensor:
            if self.table is None:
                self.table = torch.arange(3.0).cos()
            return self.a(x * self.table)

    model = Caching().eval()
    sonde.extract(model, BATCHES, ["a"], tmp_path / "t")
    model(BATCHES[0]).sum().backward()


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    model = counting()

    def interrupted() -> Iterator[Tensor]:
        yield from BATCHES[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sonde.extract(model, interrupted(), ["a"], tmp_path / "t", shard=100)
    assert not any(held for module in model.modules() for held in hooks.hooks_on(module).values())
    assert torch.is_grad_enabled()
    assert list((tmp_path / "t").glob("*.safetensors"))
