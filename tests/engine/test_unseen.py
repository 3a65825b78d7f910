"""``quiet``: what runs inside is not delivered, recorded or counted, and everything else is."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.quick import quick
from tests.torch_words import words_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.engine import unseen
from sonde.errors import ModelError
from sonde.graph import Recorder
from sonde.recorders import BackwardOutput, ForwardOutput
from sonde.stats import Moments


class Net(nn.Module):
    """A layer that is called twice, a shared layer under two names, and a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.again = self.first
        self.part = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(self.act(self.first(x)))
        out: Tensor = checkpoint(self.part, x, use_reentrant=False)
        return out


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


BATCH = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)
Observed = Callable[[], Any]
PORTS = ("input", "output", "grad_output", "grad", "param", "update")


def events(model: nn.Module) -> Observed:
    seen: list[Any] = []

    def note(event: sonde.types.Event) -> None:
        values = [tensor.detach().clone() for _, tensor in event.leaves]
        seen.append((str(event.site), event.call, event.phase, event.tick, event.alias, [value.tolist() for value in values]))

    probe = sonde.observe(model, note, ports=PORTS)
    return lambda: probe.detach() or seen


def rows(model: nn.Module) -> Observed:
    probe = sonde.observe(model, Moments(), ports=PORTS)
    return lambda: repr(probe.rows()) + str(probe.detach())


def stashes(model: nn.Module) -> Observed:
    tracker = sonde.track(model)
    return lambda: (
        tracker.detach() or [(stash.name, stash.grad, str(stash.value), stash.tick, stash.call) for stash in tracker.stashes]
    )


def recorded(model: nn.Module) -> Observed:
    forward, backward = ForwardOutput().modules(model), BackwardOutput().modules(model)
    return lambda: (forward.remove(), backward.remove(), str(list(forward)), str(list(backward)), forward.samples)


def calls(model: nn.Module) -> Observed:
    seen: list[Any] = []
    note = [lambda call, moment=moment: seen.append((moment, call.name, call.call)) for moment in ("in", "out", "back", "end")]
    tracker = sonde.ModuleTracker(enter=note[0], leave=note[1], enter_backward=note[2], leave_backward=note[3]).__enter__()
    return lambda: tracker.__exit__() or seen


def watched(model: nn.Module) -> Observed:
    inspector = sonde.watch(model, every=1, to="memory", verbose=False, gradients="both", evaluation=True)

    def read() -> Any:
        inspector.detach()
        run = inspector.run
        return [run.sql(f"SELECT * FROM {family} ORDER BY ALL").fetchall() for family in sorted(run.numbers)]

    return read


def graphed(model: nn.Module) -> Observed:
    recorder = Recorder()
    recorder.register_hooks(model, name="Net")
    return lambda: recorder.remove_hooks() or [len(recorder.nodes), len(recorder.edges)]


INSTRUMENTS: list[Callable[[nn.Module], Observed]] = [events, rows, stashes, recorded, calls, watched, graphed]


def a_look(model: nn.Module) -> None:
    """Forwards in both modes, one that raises, and a backward pass: with no trace in the model."""
    torch.autograd.grad(model(BATCH * 3).sum(), list(model.parameters()), allow_unused=True)
    model.eval()
    with torch.no_grad():
        model(BATCH[:1])
    model.train()
    with pytest.raises(RuntimeError, match=words_of(lambda: model(torch.ones(2, 7)))):
        model(torch.ones(2, 7))


def training(instrument: Callable[[nn.Module], Observed], look: Callable[[nn.Module], None], model: nn.Module) -> Any:
    """Return what *instrument* has observed of two steps, with a *look* at each place where one may be."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    observed = instrument(model)
    for _ in range(2):
        look(model)
        loss = model(BATCH).square().mean()
        look(model)
        loss.backward()
        look(model)
        optimizer.step()
        look(model)
        optimizer.zero_grad()
    return observed()


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_a_quiet_look_is_as_if_it_had_not_been(instrument: Callable[[nn.Module], Observed], named: bool) -> None:
    """Everything that an instrument has seen of a training is the same with and without looks in a quiet block."""

    def quietly(model: nn.Module) -> None:
        with sonde.quiet(*[model][:named]):
            a_look(model)

    assert str(training(instrument, quietly, net())) == str(training(instrument, lambda model: None, net()))


@pytest.mark.parametrize(
    ("instrument", "whole"),
    quick(itertools.product((events, rows, stashes, recorded, watched), (True, False)), (events, True), (rows, False)),
)
def test_a_quiet_look_through_compiled_code(instrument: Callable[[nn.Module], Observed], whole: bool) -> None:
    """The same for a model that is compiled as a whole, or in blocks: the compiled code is the same, and delivers nothing."""

    def compiled() -> nn.Module:
        torch.compiler.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
        if whole:
            made: nn.Module = torch.compile(model, backend="aot_eager")
            return made
        for block in model:
            block.compile(backend="aot_eager")
        return model

    def quietly(model: nn.Module) -> None:
        with sonde.quiet(model):
            torch.autograd.grad(model(BATCH).sum(), list(model.parameters()))

    assert str(training(instrument, quietly, compiled())) == str(training(instrument, lambda model: None, compiled()))


def test_a_quiet_step_is_no_step() -> None:
    """The parameters move, and the next update begins where they are then."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ticks, updates = [], []

    def note(event: sonde.types.Event) -> None:
        ticks.append(event.tick)
        updates.append([tensor.clone() for tensor in event.value])

    def step() -> None:
        optimizer.zero_grad()
        model(BATCH).square().mean().backward()
        optimizer.step()

    with sonde.observe(model, note, include=["first.weight"], ports="update"):
        step()
        with sonde.quiet(model):
            step()
        between = model.get_parameter("first.weight").detach().clone()
        step()
    assert [tick.step for tick in ticks] == [0, 1]
    assert [tick.forward for tick in ticks] == [0, 1]
    assert torch.equal(updates[1][0], between)
    assert not torch.equal(updates[0][1], between)


def test_an_observer_that_comes_inside_observes() -> None:
    """It counts for itself from 0, also while another one is on the model, and goes on after the block."""
    model = net()
    with sonde.track(model) as outer:
        model(BATCH)
        with sonde.quiet(model), sonde.track(model) as inner:
            model(BATCH)
            with sonde.quiet(), sonde.track(model) as innermost:
                model(BATCH)
            model(BATCH)
        model(BATCH)
    assert [stash.tick.forward for stash in outer if stash.name == ""] == [0, 1]
    assert [stash.tick.forward for stash in inner if stash.name == ""] == [0, 1]
    assert [stash.tick.forward for stash in innermost if stash.name == ""] == [0]


def test_a_part_is_quiet_in_a_model_that_is_not() -> None:
    """Of a larger model everything but the part is observed; the part alone is silent, and its steps are none."""
    model = net()
    part = model.get_submodule("part")
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    with sonde.observe(model, lambda event: seen.append(str(event.site))) as probe:
        seen: list[str] = []
        with sonde.quiet(part):
            model(BATCH)
            part(BATCH).sum().backward()
            optimizer.step()
    assert seen == ["first:output", "act:output", "first:output", "(root):output"]
    assert probe._clocks()[0].now() == (0, 0, 0, 0)


def test_a_model_beside_is_observed() -> None:
    """The block is for the models that it names."""
    quiet, loud = nn.Linear(4, 4), nn.Linear(4, 4)
    with sonde.track(quiet) as nothing, sonde.track(loud) as tracker, sonde.quiet(quiet):
        loud(quiet(BATCH)).sum().backward()
    assert (len(nothing), len(tracker)) == (0, 2)


def test_the_block_is_of_one_thread() -> None:
    """While one thread looks, another one's training is observed."""
    model, inside, done = nn.Linear(4, 4), threading.Event(), threading.Event()

    def look() -> None:
        with sonde.quiet(model):
            inside.set()
            done.wait(20)
            model(BATCH).sum().backward()

    seen: list[str] = []
    probe = sonde.observe(model, lambda event: seen.append(str(event.site)), ports=("output", "grad_output", "grad"))
    thread = threading.Thread(target=look)
    thread.start()
    assert inside.wait(20)
    model(BATCH).sum().backward()
    done.set()
    thread.join()
    probe.detach()
    assert sorted(seen) == ["(root):grad_output", "(root):output", "bias:grad", "weight:grad"]


def test_a_block_that_raises_is_over() -> None:
    """So is one inside another; a function can be quiet as well."""
    model = nn.Linear(4, 4)

    @sonde.quiet(model)
    def look() -> None:
        model(BATCH)

    with sonde.track(model) as tracker:
        with pytest.raises(ZeroDivisionError), sonde.quiet(model), sonde.quiet():
            _ = 1 / 0
        look()
        look()
        assert len(tracker) == 0
        model(BATCH)
    assert len(tracker) == 1
    assert not unseen.blocks


def test_what_is_no_model() -> None:
    """The message of every function that takes a model."""
    with pytest.raises(ModelError, match="must be a torch"), sonde.quiet("model"):  # type: ignore[arg-type]
        pass
