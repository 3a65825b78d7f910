"""Which call of which forward an event belongs to, and what stands beside our hooks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.stats import Moments


class Shared(nn.Module):
    """One layer called twice, with something between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).tanh())


def gradients(events: list[sonde.types.Event], name: str) -> list[tuple[int, int, Tensor]]:
    return [(event.tick.forward, event.call, event.value[0]) for event in events if event.grad and event.name == name]


def expected(model: Shared, x: Tensor) -> list[Tensor]:
    """The gradients at both calls of the layer, by plain torch."""
    first = model.layer(x)
    second = model.layer(first.tanh())
    return list(torch.autograd.grad(second.square().sum(), [first, second]))


def test_gradients_name_their_call_when_two_graphs_run_backward_out_of_order() -> None:
    """Two forwards, the second one's backward first: each gradient carries its own forward and call."""
    model = Shared()
    one, two = torch.randn(2, 3), torch.randn(2, 3)
    events: list[sonde.types.Event] = []
    with sonde.observe(model, events.append, ports=("output", "grad_output"), strict=True):
        first, second = model(one).square().sum(), model(two).square().sum()
        second.backward()
        first.backward()
    wanted = {(0, 0): expected(model, one)[0], (0, 1): expected(model, one)[1]}
    wanted |= {(1, 0): expected(model, two)[0], (1, 1): expected(model, two)[1]}
    found = gradients(events, "layer")
    assert [(forward, call) for forward, call, _ in found] == [(1, 1), (1, 0), (0, 1), (0, 0)]
    for forward, call, value in found:
        torch.testing.assert_close(value, wanted[forward, call], rtol=0, atol=0)


def test_one_graph_that_runs_backward_twice_delivers_twice() -> None:
    """With ``retain_graph`` each pass delivers every gradient, and each pass is a micro-step."""
    model = Shared()
    events: list[sonde.types.Event] = []
    with sonde.observe(model, events.append, ports="grad_output", strict=True):
        loss = model(torch.randn(2, 3)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert [(event.name, event.call, event.tick.micro_step) for event in events] == [
        (name, call, step) for step in (0, 1) for name, call in (("", 0), ("layer", 1), ("layer", 0))
    ]


def test_several_losses_on_one_forward() -> None:
    """Each loss's backward delivers its own gradient."""
    model = nn.Sequential(nn.Linear(3, 3))
    events: list[sonde.types.Event] = []
    with sonde.observe(model, events.append, include=["0"], ports="grad_output", strict=True):
        out = model(torch.randn(2, 3))
        out.sum().backward(retain_graph=True)
        (2 * out).sum().backward()
    assert [event.value[0].unique().tolist() for event in events] == [[1.0], [2.0]]


def test_the_same_module_in_two_models() -> None:
    """Each model's probe sees the calls made through its own model, under its own name for the module."""
    shared = nn.Linear(3, 3)
    left, right = nn.Sequential(shared, nn.ReLU()), nn.Sequential(nn.Tanh(), shared)
    seen: list[tuple[str, str, int]] = []
    with (
        sonde.observe(left, lambda event: seen.append(("left", str(event.site), event.call)), include=nn.Linear, name="L"),
        sonde.observe(right, lambda event: seen.append(("right", str(event.site), event.call)), include=nn.Linear, name="R"),
    ):
        left(torch.randn(2, 3))
    assert ("left", "L/0:output", 0) in seen


def test_an_alias_says_by_which_name_a_shared_module_was_called() -> None:
    """The name is the canonical one; the alias is the one that this call went through."""

    class Half(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * 0.5

    layer = nn.Linear(3, 3)
    model = nn.ModuleDict({"enc": Half(layer), "dec": Half(layer)})

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            return self.parts["enc"](self.parts["dec"](x))

    events: list[sonde.types.Event] = []
    with sonde.observe(Model(), events.append, include=["parts.enc.layer"], ports=("output", "grad_output"), strict=True) as probe:
        whole = probe._attachment.roots[0].model
        whole(torch.randn(2, 3)).sum().backward()
    assert [(event.name, event.alias, event.call) for event in events] == [
        ("parts.enc.layer", "parts.dec.layer", 0),
        ("parts.enc.layer", "parts.enc.layer", 1),
        ("parts.enc.layer", "parts.enc.layer", 1),
        ("parts.enc.layer", "parts.dec.layer", 0),
    ]


@pytest.mark.parametrize("kind", ["full", "full pre", "legacy"])
def test_backward_hooks_of_the_user_go_on_working(kind: str) -> None:
    """Module backward hooks of every kind see what they saw, and we see what we saw without them."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    x = torch.randn(4, 3, requires_grad=True)

    def run(*, observed: bool, hooked: bool) -> tuple[list[Tensor], list[Tensor]]:
        users: list[Tensor] = []
        ours: list[Tensor] = []
        handles = []
        if hooked:
            register = {
                "full": model[1].register_full_backward_hook,
                "full pre": model[1].register_full_backward_pre_hook,
                "legacy": model[1].register_backward_hook,
            }[kind]
            handles.append(register(lambda module, *given: users.append(given[-1][0].clone())))
        probe = sonde.observe(model, lambda event: ours.append(event.value[0].clone()), include=["1"], ports="grad_output")
        if not observed:
            probe.detach()
        model.zero_grad()
        model(x).square().sum().backward()
        probe.detach()
        for handle in handles:
            handle.remove()
        return users, ours

    both, ours_with = run(observed=True, hooked=True)
    alone, _ = run(observed=False, hooked=True)
    _, ours = run(observed=True, hooked=False)
    assert len(both) == len(ours) == 1
    assert all(map(torch.equal, both, alone))
    assert all(map(torch.equal, ours_with, ours))


def test_inference_mode_and_no_grad() -> None:
    """Outputs are kept and counted under both; the rows go on working in training afterwards."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    x = torch.randn(4, 3)
    with (
        sonde.observe(model, Moments(), ports=("output", "grad_output"), strict=True) as probe,
        sonde.track(model, strict=True) as kept,
    ):
        with torch.inference_mode():
            model(x)
        with torch.no_grad():
            model(x)
        model(x).sum().backward()
        rows = {row["site"]: row["calls"] for row in probe.rows()}
    assert rows == {
        "(root):output": 3, "(root):grad_output": 1, "0:output": 3, "0:grad_output": 1, "1:output": 3, "1:grad_output": 1,
    }  # fmt: skip
    plain = nn.functional.linear(x, model[0].weight, model[0].bias).detach()
    assert all(torch.equal(stash.value, plain) for stash in kept["0:output"])
