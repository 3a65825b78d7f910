"""What ``observe`` delivers at every port, compared with torch's own; what it does when things go wrong; what it leaves."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import re
import subprocess
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.errors import ObservationWarning
from sonde.site import Port
from sonde.types import Event

HARMLESS: tuple[Port, ...] = ("input", "output", "grad_output", "grad")


class Apply(nn.Module):
    """A module whose forward is a function of its children, so that each test shows its own network."""

    def __init__(self, forward: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self.function = forward
        self._modules.update(children)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, tuple | list):
        return tuple(copied(item) for item in value)
    return {key: copied(item) for key, item in value.items()} if isinstance(value, dict) else value


@contextlib.contextmanager
def watched(model: nn.Module, include: Any = None, *ports: Port) -> Iterator[list[Event]]:
    """The events of a strict probe, their values copied as they come."""
    events: list[Event] = []

    def keep(event: Event) -> None:
        event.value = copied(event.value)
        event.kwargs = copied(event.kwargs)
        events.append(event)

    with sonde.observe(model, keep, include, ports=ports or ("output",), strict=True):
        yield events


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def labels(events: list[Event]) -> list[str]:
    return [f"{event.site}#{event.call}" for event in events]


# Ports


def test_outputs_are_what_each_module_returned() -> None:
    """One event per module call, children before parents, with name, type, site, arguments and phase."""
    model, x = mlp(), torch.randn(5, 4)
    with watched(model) as events:
        model(x)
    hidden = model[0](x)
    assert labels(events) == ["0:output#0", "1:output#0", "2:output#0", "(root):output#0"]
    for event, expected in zip(events, [hidden, hidden.relu(), model(x), model(x)], strict=True):
        assert torch.equal(event.value, expected)
        assert (event.grad, event.phase, event.passthrough) == (False, "forward", False)
    assert [event.type for event in events] == [nn.Linear, nn.ReLU, nn.Linear, nn.Sequential]
    assert events[0].args == (x,)


def test_inputs_are_what_each_module_was_given() -> None:
    """Positional arguments are the value, keyword arguments stand beside it, and the leaves name both."""
    x, mask = torch.randn(2, 3), torch.ones(2, 3)
    inner = Apply(lambda self, x, *, mask, scale=1.0: x * mask * scale)
    model = Apply(lambda self, x, mask: self.inner(x, mask=mask, scale=2.0), inner=inner)
    with watched(model, ["inner"], "input") as events:
        model(x, mask)
    (event,) = events
    assert torch.equal(event.value[0], x)
    assert torch.equal(event.kwargs["mask"], mask)
    assert [path for path, _ in event.leaves] == ["[0]", "['mask']"]


def test_output_gradients_are_those_of_retain_grad() -> None:
    """``grad_output`` equals ``.grad`` of the retained output of each module, and comes parents before children."""
    model, x = mlp(), torch.randn(5, 4)
    with watched(model, None, "grad_output") as events:
        model(x).square().sum().backward()
    kept, value = [], x
    for module in model:
        value = module(value)
        value.retain_grad()
        kept.append(value)
    value.square().sum().backward()
    assert labels(events) == [f"{name}:grad_output#0" for name in ("(root)", "2", "1", "0")]
    for event, expected in zip(events, [kept[2], kept[2], kept[1], kept[0]], strict=True):
        assert torch.equal(event.value[0], expected.grad)  # type: ignore[arg-type]  # retained
        assert (event.grad, event.phase, event.args, len(event.value)) == (True, "backward", (), 1)


def test_an_input_gradient_is_that_through_the_module_alone() -> None:
    """``grad_input`` of Linear(4, 3) at batch 5 has shape (5, 4), and leaves a skip connection around the layer out."""
    x = torch.randn(5, 4, requires_grad=True)
    model = Apply(lambda self, x: self.linear(x).sum() + x.sum(), linear=nn.Linear(4, 3))
    with watched(model, ["linear"], "grad_input", "grad_output") as events:
        model(x).backward()
    found = {event.site.port: event.value[0] for event in events}
    assert found["grad_input"].shape == (5, 4)
    assert torch.equal(found["grad_output"], torch.ones(5, 3))
    assert torch.equal(found["grad_input"], torch.ones(5, 3) @ model.linear.weight)  # type: ignore[operator,union-attr]
    torch.testing.assert_close(x.grad, found["grad_input"] + 1)


def test_input_gradients_of_structured_arguments() -> None:
    """Nested positional and keyword arguments give their gradients in the same structure, None where there is none."""
    a, b, c = (torch.randn(3, requires_grad=True) for _ in range(3))
    inner = Apply(lambda self, pair, index, *, more: pair[0] * 2 + more["c"] * pair[0].detach() + pair[1].detach())
    model = Apply(lambda self, *args, **kwargs: self.inner(*args, **kwargs), inner=inner)
    with watched(model, ["inner"], "grad_input") as events:
        model([a, b], torch.arange(3), more={"c": c}).sum().backward()
    (event,) = events
    assert torch.equal(event.value[0][0], torch.full((3,), 2.0))
    assert (event.value[0][1], event.value[1]) == (None, None)
    assert torch.equal(event.kwargs["more"]["c"], a.detach())
    assert [path for path, _ in event.leaves] == ["[0][0]", "['more']['c']"]


def test_parameter_gradients_are_what_was_accumulated() -> None:
    """``grad`` delivers ``parameter.grad`` after each backward pass, under the parameter's own name, tied ones once."""
    model = mlp()
    model[2].bias.requires_grad_(False)
    model.add_module("tied", nn.Linear(4, 3))
    model.tied.weight = model[0].weight
    with watched(model, ["0.weight", "2.weight", "2.bias"], "grad") as events:
        for _ in range(2):
            model[:3](torch.ones(5, 4)).sum().backward()
            grads = {name: parameter.grad for name, parameter in model.named_parameters()}
            last = {event.name: event for event in events}
            assert set(last) == {"2.weight", "0.weight"}
            for name, event in last.items():
                assert torch.equal(event.value, grads[name])
                assert (event.type, event.grad, str(event.site)) == (nn.Parameter, True, f"{name}:grad")
    assert len(events) == 4


def test_a_parameter_that_is_unfrozen_later_is_observed() -> None:
    """Gradual unfreezing: a parameter that requires a gradient only after the probe came delivers it all the same."""
    model = mlp().requires_grad_(False)
    with watched(model, None, "grad") as events:
        model[2].requires_grad_(True)
        model(torch.ones(5, 4)).sum().backward()
    assert {event.name for event in events} == {"2.weight", "2.bias"}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_lazy_module_is_observed_from_its_first_call() -> None:
    """A module that makes its parameters in its first call can be observed before it, at every port."""
    model = nn.Sequential(nn.LazyLinear(3), nn.Tanh())
    with watched(model, r"^0($|\.weight)", *HARMLESS) as events:
        model(torch.randn(2, 4)).sum().backward()
    assert sorted(str(event.site) for event in events) == ["0.weight:grad", "0:grad_output", "0:input", "0:output"]
    assert torch.equal(next(event.value for event in events if event.name == "0.weight"), model[0].weight.grad)


def test_an_in_place_relu_is_observed_as_its_twin() -> None:
    """An in-place ReLU after a watched layer trains bit-equal to the out-of-place twin, and copies keep the value before."""
    x, twin, model = torch.randn(6, 4), mlp(), mlp()
    model[1].inplace = True
    hidden = twin[0](x)
    hidden.retain_grad()
    twin[2](hidden.relu()).square().sum().backward()
    with watched(model, None, *HARMLESS) as events:
        model(x).square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True))  # type: ignore[arg-type]
    found = {str(event.site): event.value for event in events}
    assert torch.equal(found["0:output"], hidden)
    assert torch.equal(found["1:output"], hidden.relu())
    assert torch.equal(found["0:grad_output"][0], hidden.grad)  # type: ignore[arg-type]  # retained
    assert not torch.equal(found["1:grad_output"][0], found["0:grad_output"][0])


def test_an_unused_output_is_none_in_one_event() -> None:
    """Of a tuple with one tensor unused exactly one event comes, with None in its place; of a module nothing used, none."""
    children = {"split": Apply(lambda self, x: (*(x * 2).chunk(2), x * 3, 7)), "unused": nn.LSTM(3, 3)}
    model = Apply(lambda self, x: (self.split(x)[0], self.unused(x))[0], **children)
    with watched(model, ["split", "unused"], "grad_output") as events:
        model(torch.randn(2, 3, requires_grad=True)).sum().backward()
    (event,) = events
    assert torch.equal(event.value[0], torch.ones(1, 3))
    assert event.value[1:] == (None, None, None)
    assert [path for path, _ in event.leaves] == ["[0]"]


def test_each_backward_pass_over_an_lstm_is_one_event() -> None:
    """Passes over a retained graph deliver an event each, with torch's own gradients, None for what was not used."""
    model, x = nn.LSTM(3, 2), torch.randn(5, 1, 3)
    with watched(model, None, "grad_output") as events:
        output, (h, c) = model(x)
        losses = [output.sum(), (h * 2).sum(), (c * 3).sum(), output.sum() + h.square().sum() + c.sum()]
        for loss in losses:
            loss.backward(retain_graph=True)
    for event, loss in zip(events, losses, strict=True):
        expected = torch.autograd.grad(loss, [output, h, c], allow_unused=True, retain_graph=True)
        for found, wanted in zip((event.value[0], *event.value[1]), expected, strict=True):
            assert (found is None) == (wanted is None)
            assert found is None or torch.equal(found, wanted)


def test_dict_outputs_are_delivered_in_both_directions() -> None:
    """A dict goes through as it is, and its gradients come as a dict in a tuple of one."""
    model = Apply(lambda self, x: {"loss": x.sum(), "extra": [x * 2], "name": "text"})
    x = torch.ones(3, requires_grad=True)
    with watched(model, None, "output", "grad_output") as events:
        model(x)["loss"].backward()
    output, gradient = events
    assert [path for path, _ in output.leaves] == ["['loss']", "['extra'][0]"]
    assert output.value["name"] == "text"
    assert gradient.value == ({"loss": 1.0, "extra": (None,), "name": None},)  # copied() makes tuples of lists
    assert [path for path, _ in gradient.leaves] == ["['loss']"]


# Life


class Failing(list[Event]):
    """A subscriber that raises at its third event."""

    def __call__(self, event: Event) -> None:
        self.append(event)
        if len(self) == 3:
            raise KeyError("broken")


def hook_counts(model: nn.Module) -> list[int]:
    counts = [len(d) for m in model.modules() for d in (m._forward_hooks, m._forward_pre_hooks, m._forward_hooks_with_kwargs)]
    return counts + [len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()]


@pytest.mark.parametrize("ports", [("output",), ("grad_output",), ("grad",)])
def test_a_subscriber_that_raises_does_not_stop_the_training(ports: tuple[Port, ...]) -> None:
    """One warning names subscriber, site and cause; the error is kept, and the other sites go on; ``strict=True`` raises it."""
    model, twin, x, failing = mlp(), mlp(), torch.randn(5, 4), Failing()
    probe = sonde.observe(model, failing, ports=ports)
    with pytest.warns(ObservationWarning) as caught:
        model(x).sum().backward()
    (twin(x).sum()).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True))  # type: ignore[arg-type]
    (error,), (warning,) = probe.errors, caught
    assert re.search(f"Failing.*KeyError at {re.escape(str(error.site))}: 'broken'", str(warning.message))
    assert isinstance(error.error, KeyError)
    assert error.site == failing[2].site
    model(x).sum().backward()
    assert sum(event.site == error.site for event in failing) == 1
    counts = {line.site: (line.count, line.reason) for line in probe.coverage()}
    assert counts.pop(error.site) == (0, "stopped: KeyError: 'broken'")
    assert set(counts.values()) == {(2, "")}
    assert {row["site"]: row["calls"] for row in probe.rows()}[str(error.site)] == 0
    probe.detach()
    assert hook_counts(model) == hook_counts(twin)
    with sonde.observe(model, Failing(), ports=ports, strict=True), pytest.raises(KeyError, match="broken"):
        model(x).sum().backward()


def test_detaching_leaves_nothing_and_may_be_done_twice() -> None:
    """``detach`` and its aliases may be called again and again, and take out every hook; what comes later is not delivered."""
    model, events = mlp(), list[Event]()
    clean = hook_counts(model)
    probe = sonde.observe(model, events.append, ports=HARMLESS)
    loss = model(torch.randn(2, 4)).sum()
    assert hook_counts(model) != clean
    for verb in (probe.detach, probe.detach, probe.unregister, probe.remove, probe.remove_hooks):
        verb()
        assert hook_counts(model) == clean
    before = len(events)
    loss.backward()
    model(torch.randn(2, 4)).sum().backward()
    assert len(events) == before
    with probe:
        model(torch.randn(2, 4))
    assert len(events) == 2 * before


def test_a_deleted_probe_leaves_no_hook() -> None:
    """``del probe`` without leaving the ``with`` block takes every hook out at once."""
    model = mlp()
    clean = hook_counts(model)
    probe = sonde.observe(model, print, ports=HARMLESS).__enter__()
    assert hook_counts(model) != clean
    with pytest.warns(ObservationWarning, match="a Probe was deleted before its model ran, and observes nothing: hold it"):
        del probe
    assert hook_counts(model) == clean


def test_resuming_a_detached_probe_attaches_nothing() -> None:
    """``resume`` undoes ``pause`` only: after ``detach`` it puts no hook in that nothing would take out again."""
    model = mlp()
    clean = hook_counts(model)
    probe = sonde.observe(model, print)
    probe.detach()
    probe.resume()
    left = hook_counts(model)
    probe.attach().detach()
    assert left == clean == hook_counts(model)


def saved_and_loaded(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), saved_and_loaded])
def test_a_copy_of_an_observed_model_is_not_observed(way: Callable[[nn.Module], nn.Module]) -> None:
    """Copying works while observed; the copy computes the same, delivers nothing, and the original is still observed."""
    model, events, x = mlp(), list[Event](), torch.randn(2, 4)
    with sonde.observe(model, events.append, ports=(*HARMLESS, "grad_input"), strict=True):
        twin = way(model)
        for other in (copy.deepcopy(twin), twin):
            other(x).sum().backward()
            assert torch.equal(other(x), mlp()(x))
        assert events == []
        model(x).sum().backward()
        assert len(events) == 3 * 4 + 2 + 4  # the gradient of x is wanted by no one; four parameters


class OwnState(nn.Linear):
    """Makes its state itself: a hook that cannot be pickled is left out."""

    def __getstate__(self) -> dict[str, Any]:
        kept = OrderedDict((key, hook) for key, hook in self._forward_hooks.items() if hook not in self.fixed)
        return {**vars(self), "_forward_hooks": kept}

    fixed: tuple[Any, ...] = ()


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), saved_and_loaded])
def test_a_copy_of_an_observed_model_has_the_users_hooks_only(way: Callable[[nn.Module], nn.Module]) -> None:
    """Neither a hook nor a mark of sonde is left in a copy that was made while observed, before its first call."""
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), nn.Sequential(shared, nn.Linear(4, 3)))
    model[1].register_forward_hook(saved_and_loaded, with_kwargs=True)  # any function of a module; the copy is not called
    clean = held_by(model)
    with sonde.track(model), sonde.observe(model, print, ports=(*HARMLESS, "grad_input")):
        observed = held_by(model)
        assert observed != clean
        assert held_by(way(model)) == held_by(way(way(model))) == clean
        assert held_by(model) == observed


def test_a_model_that_makes_its_state_itself_is_saved_as_without_sonde() -> None:
    """What a ``__getstate__`` of the user's leaves out does not come into the file by way of a hook of sonde."""
    model = OwnState(4, 3)
    model.register_forward_hook(unpicklable := lambda *_: None)
    OwnState.fixed = (unpicklable,)
    x = torch.randn(2, 4)
    with sonde.observe(model, print):
        twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(twin(x), model(x))


def held_by(model: nn.Module) -> list[Any]:
    """Return keys of all hooks and marks of hooks in the modules of *model*."""
    return [list(vars(module)[name]) for module in model.modules() for name in sorted(vars(module)) if "hooks" in name]


def test_a_saved_model_loads_where_sonde_is_not_installed(tmp_path: Path) -> None:
    """A file saved while observed, also by way of a deep copy (as an average of weights is), needs no sonde to load."""
    model = mlp()
    with sonde.observe(model, print, ports=(*HARMLESS, "grad_input")):
        torch.save(model, tmp_path / "model.pt")
        torch.save(copy.deepcopy(model), tmp_path / "copy.pt")
    script = (
        "import sys; sys.modules['sonde'] = None; import torch\n"
        "for file in sys.argv[1:]: print(torch.load(file, weights_only=False)(torch.ones(1, 4)).tolist())"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "model.pt"), str(tmp_path / "copy.pt")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-300:]
    assert run.stdout.splitlines() == [str(mlp()(torch.ones(1, 4)).tolist())] * 2


def test_two_probes_do_not_disturb_each_other() -> None:
    """Two probes on one model both see everything, and one that goes leaves the other."""
    with watched(model := mlp(), None, "grad_output", "grad") as outer:
        with watched(model, None, "grad_output", "grad") as inner:
            model(torch.randn(2, 4)).sum().backward()
        model(torch.randn(2, 4)).sum().backward()
    assert labels(outer) == labels(inner) * 2
    assert len(inner) == 8


def test_the_users_own_hooks_are_left_alone() -> None:
    """Hooks that were there before, or come while a probe is attached, run as ever and stay when it goes."""
    model, ran = mlp(), list[str]()
    model[0].register_forward_hook(lambda *_: ran.append("before"))
    model[0].weight.register_post_accumulate_grad_hook(lambda _: ran.append("gradient"))  # type: ignore[union-attr]  # a Parameter
    with watched(model, None, *HARMLESS):
        model[0].register_forward_pre_hook(lambda *_: ran.append("during"))
        model(torch.randn(2, 4)).sum().backward()
    model(torch.randn(2, 4)).sum().backward()
    assert ran == ["during", "before", "gradient"] * 2


def test_hooks_that_are_put_back_are_last_and_as_they_were() -> None:
    """Between observed steps hooks go and come back; others keep their places; where all were cleared it gets a new one."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    events: list[tuple[int, str]] = []

    def train() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    with sonde.observe(model, lambda event: events.append((event.tick.step, event.name)), ["0"], every=2, strict=True):
        train()
        assert not model[0]._forward_hooks
        assert not model[0]._forward_hooks_with_kwargs
        users = model[0].register_forward_hook(lambda module, args, output: None)
        train()
        assert next(iter(model[0]._forward_hooks)) == users.id
        assert len(model[0]._forward_hooks) == 2
        assert len(model[0]._forward_hooks_with_kwargs) == 1
        train()
        model[0]._forward_hooks = OrderedDict()  # somebody has cleared all hooks
        train()
        train()
    assert events == [(0, "0"), (2, "0"), (4, "0")]
    assert not model[0]._forward_hooks


def test_observing_changes_nothing() -> None:
    """Outputs, gradients, random state, modes and state_dict are bit-equal with every port but ``grad_input``, and without."""

    def train(ports: tuple[Port, ...]) -> tuple[list[Tensor], list[str]]:
        torch.manual_seed(3)
        model = Apply(
            lambda self, x: {"a": (h := self.lstm(self.drop(self.bn(x)))[0]) + x, "b": self.act(self.lin(h)), "x": self.lin(x)},
            bn=nn.BatchNorm1d(4), drop=nn.Dropout(), lstm=nn.LSTM(4, 4), lin=nn.Linear(4, 4), act=nn.ReLU(inplace=True),
        )  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        seen: list[Tensor] = []
        with watched(model, None, *ports) if ports else contextlib.nullcontext([]) as events:
            for _ in range(3):
                optimizer.zero_grad()
                out = model(torch.randn(6, 4))
                (out["a"].square().mean() + out["b"].sum() * out["x"].mean()).backward()
                optimizer.step()
                seen += [out["a"], out["b"], *(p.grad.clone() for p in model.parameters()), torch.get_rng_state()]
            seen += model.state_dict().values()
        assert bool(events) == bool(ports)
        return seen, [f"{name} {module.training}" for name, module in model.named_modules()] + list(model.state_dict())

    (plain, names), (observed, names_observed) = train(()), train(HARMLESS)
    assert names == names_observed
    assert all(map(torch.equal, plain, observed))


def test_a_probe_that_its_subscriber_knows_is_let_go() -> None:
    """A closure over its own probe, as in a script run by another one, keeps neither alive."""

    def run() -> weakref.ref[Any]:
        model = nn.Linear(2, 2)
        probe = sonde.observe(model, lambda event: probe.sites, strict=True)
        model(torch.ones(1, 2))
        return weakref.ref(probe)

    held = run()
    gc.collect()
    assert held() is None
