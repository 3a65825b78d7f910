"""Passes inside passes, threads beside threads, and what must not stay alive."""

from __future__ import annotations

import collections
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.errors import ObservationWarning
from sonde.stats import Moments


class Pair(nn.Module):
    """Two tensors out, of which the second often gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(x)
        return y, y * 2


class Nested(nn.Module):
    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.checkpointed = checkpointed
        self.first, self.inner, self.last = nn.Linear(3, 3), Pair(), Pair()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        part = lambda value: self.inner(value)[0]  # noqa: E731
        x = checkpoint(part, x, use_reentrant=True) if self.checkpointed else part(x)
        return self.last(x)


def test_a_backward_inside_a_backward_loses_no_gathered_gradient() -> None:
    """A reentrant checkpoint's own pass leaves alone what the outer pass has begun to gather."""
    found = []
    for checkpointed in (False, True):
        model = Nested(checkpointed=checkpointed)
        events: list[sonde.types.Event] = []
        with sonde.observe(model, events.append, ports="grad_output", strict=True):
            model(torch.ones(2, 3, requires_grad=True))[0].sum().backward()
        found.append(sorted((event.name, len(event.leaves)) for event in events))
    assert found[0] == found[1]
    assert len(found[0]) == 6


def test_threads_gather_each_their_own() -> None:
    """Four threads at once: one event for each call of each module, and every element is counted."""
    model = nn.Sequential(nn.Linear(3, 3), Pair())
    seen: collections.Counter[str] = collections.Counter()
    lock = threading.Lock()

    def count(event: sonde.types.Event) -> None:
        with lock:
            seen[event.name] += 1

    def work() -> None:
        for _ in range(100):
            torch.autograd.grad(model(torch.randn(2, 3))[0].sum(), list(model.parameters()))

    with sonde.observe(model, Moments(), strict=True) as sums:
        sums._attachment.delivery.thread = None  # as without ``with``
        probe = sonde.observe(model, count, ports="grad_output", strict=True)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        probe.detach()
        rows = {row["name"]: (row["calls"], row["count"]) for row in sums.rows()}
    assert seen == dict.fromkeys(("", "0", "1", "1.linear"), 400)
    assert set(rows.values()) == {(400, 2400.0)}


@pytest.mark.usefixtures("fresh_compiler")
def test_gradients_through_one_module_alone_in_compiled_code() -> None:
    """Nested and keyword arguments are aliased there as well: no other consumer's gradient is added."""

    class Inner(nn.Module):
        def forward(self, x: tuple[Tensor], y: Tensor) -> Tensor:
            return x[0] + 5 * y

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Tensor) -> Tensor:
            z = x * 2
            return self.inner((z,), y=z) + 7 * z

    def gradients(compiled: bool) -> tuple[list[float], dict[str, float]]:
        model = Outer()
        events: list[sonde.types.Event] = []
        with (
            sonde.observe(model, events.append, include=["inner"], ports="grad_input", strict=True),
            sonde.observe(model, Moments(), include=["inner"], ports="grad_input", strict=True) as sums,
        ):
            call = torch.compile(model, backend="aot_eager") if compiled else model
            call(torch.ones(1, requires_grad=True)).sum().backward()
            means = {row["site"]: row["mean"] for row in sums.rows()}
        return [tensor.item() for _, tensor in events[0].leaves], means

    means = {"inner:grad_input[0][0]": 1.0, "inner:grad_input['y']": 5.0}
    assert gradients(compiled=False) == gradients(compiled=True) == ([1.0, 5.0], means)


def test_an_alias_where_the_root_itself_holds_a_module_twice() -> None:
    """Calls through the root's own two names are told apart."""
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    aliases: list[str] = []
    with sonde.observe(model, lambda event: aliases.append(event.alias), include=["0"], strict=True):
        model(torch.randn(2, 3))
        model(torch.randn(2, 3))
    assert aliases == ["0", "2"] * 2


def test_what_a_deleted_tracker_kept_is_freed_at_once() -> None:
    """Neither activations nor the model wait for the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        model = nn.Linear(4, 4)
        with sonde.track(model) as tracker:
            model(torch.randn(2, 4)).sum().backward()
        kept, held = weakref.ref(tracker[0].value), weakref.ref(model)
        del tracker, model
        assert kept() is None
        assert held() is None
    finally:
        gc.enable()


def test_a_write_past_the_version_counter_is_seen() -> None:
    """A parent that changes its child's tensor through ``.data`` returned something else, and that is kept."""

    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.child(x)
            y.data.mul_(10)
            return y

    with sonde.track(Parent(), strict=True) as tracker:
        tracker._attachment.roots[0].model(torch.ones(2))
    assert [stash.value.tolist() for stash in tracker] == [[1.0, 1.0], [10.0, 10.0]]


def test_a_value_that_cannot_be_walked_does_not_stop_the_training() -> None:
    """What goes wrong in sonde itself ends the observation, with a warning, and not the forward."""

    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    class Takes(nn.Module):
        def forward(self, x: Any) -> tuple[Any, ...]:
            return (next(iter(x.values())),)

    model = Takes()
    with sonde.observe(model, lambda event: None) as probe, pytest.warns(ObservationWarning, match="no repr"):
        out = model({Odd(): torch.ones(1)})
    assert out[0].item() == 1
    assert len(probe.errors) == 1


def test_a_probe_that_is_resumed_while_a_forward_runs() -> None:
    """Calls that had begun before are ended without having been seen to begin."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    events: list[sonde.types.Event] = []
    probe = sonde.observe(model, events.append, ports=("input", "output"), strict=True)
    probe.pause()
    handle = model[0].register_forward_hook(lambda *_: probe.resume())
    model(torch.randn(2, 3))
    handle.remove()
    probe.detach()
    assert {event.name for event in events} <= {"", "1"}
