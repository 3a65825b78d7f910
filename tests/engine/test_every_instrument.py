"""Every instrument in every situation of a training: nothing changes to the last bit, and the numbers are those of plain hooks."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pytest
import torch
from tests import bounds
from torch import Tensor, nn
from torch.func import functional_call

import sonde
from sonde.errors import ObservationWarning
from sonde.recorders import BackwardOutput, ForwardOutput, Recorder
from sonde.stats import Moments

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:Using `torch.compile\\(module\\)` when there are global hooks"),  # torch, of any global hook
]

BACKEND = "aot_eager"
STEPS, ROWS, WIDTH = 3, 5, 4
BLOCKS = ("first", "second")


# Models


class Block(nn.Module):
    """A layer, a nonlinearity, and something random."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.linear(x).tanh())
        return out


class Tower(nn.Module):
    """Two blocks and a head; with a break of the graph between the blocks if wanted."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()
        self.head = nn.Linear(WIDTH, 3)
        self.broken = broken

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x)
        if self.broken:
            torch._dynamo.graph_break()
        out: Tensor = self.head(x + self.second(x))
        return out


class LazilyHooked(Tower):
    """Puts hooks on its blocks in its first forward, and never again, as libraries do that collect hidden states.

    A second set of hooks would change the outputs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_hooked = False
        self.hidden: list[Tensor] = []

    def collect(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        self.hidden.append(output)
        return output * 1.5

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_hooked:
            for name in BLOCKS:
                self.get_submodule(name).register_forward_hook(self.collect)
            self.is_hooked = True
        self.hidden.clear()
        out = super().forward(x)
        return out + sum(hidden.mean() for hidden in self.hidden)


# Situations


def forward_once(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def forward_twice(model: nn.Module, x: Tensor) -> Tensor:
    """Both calls belong to one backward pass."""
    loss: Tensor = model(x).square().mean() + (model(x.flip(1)) * 0.5).exp().mean()
    return loss


def with_computed_parameters(model: nn.Module, x: Tensor) -> Tensor:
    computed = {name: parameter.sin() * 1.25 for name, parameter in model.named_parameters()}
    loss: Tensor = functional_call(model, computed, (x,)).square().mean()
    return loss


def compile_whole(model: Tower) -> None:
    model.compile(backend=BACKEND)


def compile_blocks(model: Tower) -> None:
    for name in BLOCKS:
        model.get_submodule(name).compile(backend=BACKEND)


def wrap_blocks(model: Tower) -> None:
    for name in BLOCKS:
        setattr(model, name, torch.compile(model.get_submodule(name), backend=BACKEND))


@dataclass(frozen=True)
class Situation:
    """How the model is made and called.

    Attributes:
        hooked_later: sites whose modules get hooks after the instrument's; the coverage says so.
    """

    name: str
    build: Callable[[], Tower] = Tower
    prepare: Callable[[Tower], None] | None = None
    loss: Callable[[nn.Module, Tensor], Tensor] = forward_once
    hooked_later: frozenset[str] = frozenset()
    slow: bool = False

    def __str__(self) -> str:
        return self.name


LATER = frozenset(f"{name}:{port}" for name in BLOCKS for port in ("output", "grad_output"))
SITUATIONS = [
    Situation("blocks_compiled_in_place", prepare=compile_blocks),
    Situation("blocks_compiled_and_wrapped", prepare=wrap_blocks, slow=True),
    Situation("graph_break", functools.partial(Tower, broken=True), prepare=compile_whole),
    Situation("called_twice", loss=forward_twice),
    Situation("compiled_and_called_twice", prepare=compile_whole, loss=forward_twice),
    Situation("blocks_compiled_and_called_twice", prepare=compile_blocks, loss=forward_twice, slow=True),
    Situation("computed_parameters", loss=with_computed_parameters),
    Situation("compiled_with_computed_parameters", prepare=compile_whole, loss=with_computed_parameters, slow=True),
    Situation("lazily_hooked", LazilyHooked, hooked_later=LATER),
    Situation("lazily_hooked_and_called_twice", LazilyHooked, loss=forward_twice, hooked_later=LATER),
]

OPERATIONS = STEPS * 2 * 2 * (2 * (WIDTH + 5) + WIDTH + 2 * 3 * ROWS)
"""Roundings in a row in float32: in each step, in two calls, forward and backward, the sums of all layers with five elementwise
operations a block, and the sum of the loss; compiled code may order and fuse them in its own way."""
FLOAT32 = bounds.relative(OPERATIONS, torch.float32)


# A training


class Trace(NamedTuple):
    """All that a training leaves: tensors, bit by bit, and counts of hooks by place."""

    tensors: dict[str, Tensor]
    hooks: dict[str, int]


Between: TypeAlias = Callable[[nn.Module, Tensor], None]
Attach: TypeAlias = Callable[[nn.Module], AbstractContextManager[Between | None]]


def plain_name(name: str) -> str:
    return name.replace("._orig_mod", "")


def shown(name: str) -> str:
    return name or "(root)"


def count_of_hooks(holder: Any) -> int:
    """Return the number of entries in all hook dictionaries of *holder*."""
    names = [name for name in (*vars(holder), "_backward_hooks", "_post_accumulate_grad_hooks") if name.endswith("_hooks")]
    return sum(len(getattr(holder, name, None) or ()) for name in set(names))


def train(situation: Situation, attach: Attach | None = None, *, compiled: bool = True) -> Trace:
    """Train in *situation*, under the instrument that *attach* puts on; it is taken off before hooks are counted."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = situation.build()
    if compiled and situation.prepare is not None:
        situation.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tensors: dict[str, Tensor] = {}
    with nullcontext() if attach is None else attach(model) as between:
        for step in range(STEPS):
            x = torch.randn(ROWS, WIDTH)
            if between is not None:
                between(model, x)
            loss = situation.loss(model, x)
            loss.backward()
            tensors[f"{step} loss"] = loss.detach().clone()
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                tensors[f"{step} {name}.grad"] = parameter.grad.clone()
            optimizer.step()
            optimizer.zero_grad()
            tensors |= {f"{step} {name}": parameter.detach().clone() for name, parameter in model.named_parameters()}
            tensors[f"{step} random state"] = torch.get_rng_state()
    holders = {**dict(model.named_modules()), **dict(model.named_parameters()), "optimizer": optimizer}
    return Trace(tensors, {name: count_of_hooks(holder) for name, holder in holders.items()})


@functools.cache
def unobserved(situation: Situation) -> Trace:
    return train(situation)


# The oracle: an eager twin with plain hooks


class Place(NamedTuple):
    """A site, the step, the root's call in that step, and the module's call in that."""

    site: str
    step: int
    forward: int
    call: int


class Kept(NamedTuple):
    """Copies of tensors in the order of their arrival, and the modules in the order of their calls."""

    tensors: dict[Place, Tensor]
    calls: list[str]


class Hooks:
    """Keeps a copy of each output and each gradient of an output."""

    def __init__(self, model: nn.Module) -> None:
        self.kept = Kept({}, [])
        self.step, self.forward = -1, -1
        self.counts: dict[str, int] = {}
        for name, module in model.named_modules():
            module.register_forward_pre_hook(functools.partial(self.enter, name))
            module.register_forward_hook(functools.partial(self.leave, name))

    def next_step(self, *_: Any) -> None:
        self.step, self.forward = self.step + 1, -1

    def enter(self, name: str, *_: Any) -> None:
        self.kept.calls.append(name)
        if name == "":
            self.forward += 1
            self.counts = {}

    def leave(self, name: str, module: nn.Module, args: Any, output: Tensor) -> None:
        when = self.step, self.forward, self.counts.get(name, 0)
        self.counts[name] = when[2] + 1
        self.kept.tensors[Place(f"{shown(name)}:output", *when)] = output.detach().clone()
        if output.requires_grad:
            output.register_hook(functools.partial(self.keep, Place(f"{shown(name)}:grad_output", *when)))

    def keep(self, place: Place, gradient: Tensor) -> None:
        self.kept.tensors[place] = gradient.clone()


@functools.cache
def oracle(situation: Situation) -> Kept:
    """Return what plain hooks see in the same training of an eager twin, and the gradients of its parameters."""

    @contextmanager
    def attach(model: nn.Module) -> Iterator[Between]:
        nonlocal hooks
        hooks = Hooks(model)
        yield hooks.next_step

    hooks: Hooks
    trace = train(situation, attach, compiled=False)
    gradients = [name for name in trace.tensors if name.endswith(".grad")]
    for name in gradients:
        step, parameter = name.removesuffix(".grad").split(" ")
        hooks.kept.tensors[Place(f"{parameter}:grad", int(step), 0, -1)] = trace.tensors[name]
    return hooks.kept


def moments(tensors: Sequence[Tensor]) -> dict[str, float]:
    """Return the numbers of all elements together, in float64."""
    values = torch.cat([tensor.double().flatten() for tensor in tensors])
    return {
        "count": len(values),
        "mean": values.mean().item(),
        "std": values.std(unbiased=False).item(),
        "norm": values.norm().item(),
        "absmax": values.abs().max().item(),
    }


def assert_moments(found: dict[str, Any], tensors: Sequence[Tensor], place: object) -> None:
    """Compare numbers of ``Moments`` with those of *tensors*, within the bounds of both."""
    expected = moments(tensors)
    rel = FLOAT32 + bounds.relative(expected["count"] + 3)
    for name in expected.keys() & found.keys():
        slack = bounds.of_std(expected["count"]) * expected["std"] if name == "std" else 0.0
        share = rel * math.sqrt(expected["count"]) if name == "norm" else rel
        assert found[name] == pytest.approx(expected[name], rel=rel, abs=share * expected["absmax"] + slack), (place, name)


def assert_close(found: Tensor, expected: Tensor, place: object) -> None:
    """Compare two tensors that float32 operations made in two ways."""
    assert found.shape == expected.shape, place
    assert found.numpy() == pytest.approx(expected.numpy(), rel=FLOAT32, abs=FLOAT32 * expected.abs().max().item()), place


def assert_all_close(found: dict[Place, Tensor], expected: dict[Place, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for place, tensor in found.items():
        assert_close(tensor, expected[place], place)


def of_ports(kept: dict[Place, Tensor], *ports: str) -> dict[Place, Tensor]:
    return {place: tensor for place, tensor in kept.items() if place.site.split(":")[1] in ports}


def by(key: Callable[[Place], Any], kept: dict[Place, Tensor]) -> dict[Any, list[Tensor]]:
    """Return the tensors in lists, one list for each *key* of their places."""
    grouped: dict[Any, list[Tensor]] = {}
    for place, tensor in kept.items():
        grouped.setdefault(key(place), []).append(tensor)
    return grouped


def assert_covered(situation: Situation, coverage: Any) -> None:
    """Every site has delivered, and only those with hooks of others after the instrument's have a remark."""
    assert [str(line.site) for line in coverage if not line.count] == []
    remarks = {str(line.site): line.reason for line in coverage if line.reason}
    assert remarks.keys() <= situation.hooked_later, remarks
    assert all("registered later" in reason for reason in remarks.values())


# The instruments


@dataclass
class Instrument:
    """Attaches to a model, and afterwards compares with the oracle."""

    situation: Situation
    probe: Any = field(default=None)

    @contextmanager
    def attach(self, model: nn.Module) -> Iterator[Between | None]:
        self.probe = self.make(model)
        with self.probe:
            yield None
            assert_covered(self.situation, self.probe.coverage())

    def make(self, model: nn.Module) -> Any:
        raise NotImplementedError

    def compare(self, kept: Kept) -> None:
        raise NotImplementedError


class Keeps(Instrument):
    """``sonde.track``: one copy for each output and each gradient of one."""

    def make(self, model: nn.Module) -> Any:
        return sonde.track(model)

    def compare(self, kept: Kept) -> None:
        found = {}
        for stash in self.probe:
            place = Place(str(stash.site), stash.tick.step, stash.tick.forward, stash.call)
            assert place not in found
            found[place] = stash.first_value
        expected = of_ports(kept.tensors, "output", "grad_output")
        assert_all_close(_forwards_from_0(found), expected)


class Observes(Instrument):
    """``sonde.observe`` with a function."""

    def make(self, model: nn.Module) -> Any:
        self.seen: dict[Place, Tensor] = {}

        def keep(event: sonde.types.Event) -> None:
            ((_, tensor),) = event.leaves
            place = Place(str(event.site), event.tick.step, event.tick.forward, event.call)
            assert place not in self.seen
            self.seen[place] = tensor.detach().clone()

        self.keep = keep
        return sonde.observe(model, keep, ports=("output", "grad_output"))

    def compare(self, kept: Kept) -> None:
        assert self.probe.errors == ()
        assert_all_close(_forwards_from_0(self.seen), of_ports(kept.tensors, "output", "grad_output"))


def _forwards_from_0(found: dict[Place, Tensor]) -> dict[Place, Tensor]:
    """Count the root's calls from the beginning of each step: a tick counts them from the beginning of the training."""
    first: dict[int, int] = {}
    for place in found:
        first[place.step] = min(place.forward, first.get(place.step, place.forward))
    return {place._replace(forward=place.forward - first[place.step]): tensor for place, tensor in found.items()}


class Records(Instrument):
    """A recorder: the values of each module in the order of their arrival."""

    kind: type[Recorder]
    port: str

    def make(self, model: nn.Module) -> Any:
        return self.kind().modules(model)

    def compare(self, kept: Kept) -> None:
        expected = by(lambda place: place.site.split(":")[0], of_ports(kept.tensors, self.port))
        assert len(self.probe) == len(expected)
        for name, tensors in expected.items():
            found = self.probe["" if name == "(root)" else name]
            assert len(found) == len(tensors)
            for number, (one, other) in enumerate(zip(found, tensors, strict=True)):
                assert_close(one, other, (name, number))


class RecordsOutputs(Records):
    kind, port = ForwardOutput, "output"


class RecordsGradients(Records):
    kind, port = BackwardOutput, "grad_output"


class Sums(Instrument):
    """``sonde.observe`` with a statistic: outputs, their gradients and those of parameters."""

    def make(self, model: nn.Module) -> Any:
        return sonde.observe(model, Moments(), ports=("output", "grad_output", "grad"))

    def compare(self, kept: Kept) -> None:
        found = {row["site"]: row for row in self.probe.rows()}
        expected = by(lambda place: place.site, kept.tensors)
        assert found.keys() == expected.keys()
        for site, tensors in expected.items():
            assert found[site]["calls"] == len(tensors), site
            assert_moments(found[site], tensors, site)


class Watches(Instrument):
    """``sonde.watch``, each step logged."""

    def make(self, model: nn.Module) -> Any:
        return sonde.watch(model, every=1, to="memory", verbose=False)

    def compare(self, kept: Kept) -> None:
        rows = [row for row in self.probe.run.table("moments").to_pylist() if row["site"].split(":")[1] in PORTS]
        found = {(row["site"], row["step"], row["call"]): row for row in rows}
        expected = by(lambda place: (place.site, place.step, place.call), kept.tensors)
        assert len(rows) == len(found)
        assert found.keys() == expected.keys()
        for place, tensors in expected.items():
            assert_moments(found[place], tensors, place)


PORTS = ("output", "grad_output", "grad")


class Tracks(Instrument):
    """``sonde.ModuleTracker``: the modules in the order of their calls; a compiled region is one call, and one warning says so."""

    @contextmanager
    def attach(self, model: nn.Module) -> Iterator[None]:
        self.entered: list[str] = []
        self.backward: list[str] = []
        callbacks: dict[str, Any] = {
            "enter": lambda call: self.entered.append(call.name),
            "enter_backward": lambda call: self.backward.append(call.name),
        }
        is_compiled = self.situation.prepare is not None
        said = pytest.warns(ObservationWarning, match="is compiled") if is_compiled else nullcontext()
        with said, sonde.ModuleTracker(model, **callbacks) as tracker:
            yield None
            assert tracker.stack == ()
            assert not tracker.is_bw
            assert tracker.errors == ()

    def compare(self, kept: Kept) -> None:
        label = self.situation.build().__class__.__name__
        names = [f"{label}.{name}".removesuffix(".") for name in kept.calls]
        if self.situation.prepare is compile_whole:
            names = [name for name in names if name == label]
        elif self.situation.prepare is not None:
            names = [name for name in names if name.count(".") < 2]
        assert self.entered == names
        assert set(self.backward) == set(names)


class RunsACopy(Instrument):
    """An instrument that runs a copy, before the first step and after it."""

    @contextmanager
    def attach(self, model: nn.Module) -> Iterator[Between]:
        self.calls = 0

        def between(model: nn.Module, x: Tensor) -> None:
            if self.calls < 2:
                self.look(model, x)
            self.calls += 1

        yield between

    def look(self, model: nn.Module, x: Tensor) -> None:
        raise NotImplementedError

    def twin(self, model: nn.Module, x: Tensor) -> Kept:
        """Return what plain hooks see in one call of an eager twin in the present state; no random state changes."""
        with torch.random.fork_rng():
            twin = self.situation.build()
            twin.load_state_dict({plain_name(name): tensor for name, tensor in model.state_dict().items()})
            if self.calls:
                twin(x)  # a library's hooks are there already
        hooks = Hooks(twin)
        with torch.random.fork_rng():
            twin(x)
        return hooks.kept

    def compare(self, kept: Kept) -> None:
        assert self.calls == STEPS


class Summarises(RunsACopy):
    """``sonde.summary``: mean and std of each module's output."""

    def look(self, model: nn.Module, x: Tensor) -> None:
        found = {shown(row.name): row for row in sonde.summary(model, x).rows if row.calls}
        expected = by(lambda place: place.site.split(":")[0], self.twin(model, x).tensors)
        assert found.keys() == expected.keys()
        for name, tensors in expected.items():
            assert found[name].calls == len(tensors)
            assert_moments({"mean": found[name].mean, "std": found[name].std}, tensors, name)


class Captures(RunsACopy):
    """``sonde.capture``: the module calls in their order."""

    def look(self, model: nn.Module, x: Tensor) -> None:
        graph = sonde.capture(model, x)
        graph.check()
        assert [node.path for node in graph.modules()] == self.twin(model, x).calls


INSTRUMENTS: list[type[Instrument]] = [
    Keeps,
    Observes,
    RecordsOutputs,
    RecordsGradients,
    Sums,
    Watches,
    Tracks,
    Summarises,
    Captures,
]


def cases() -> Iterator[Any]:
    """All cells; in compiled code every other one is slow, so that each instrument is quick in some situation."""
    others = itertools.cycle((False, True))
    for situation in SITUATIONS:
        for instrument in INSTRUMENTS:
            is_slow = situation.slow or (situation.prepare is not None and next(others))
            marks = [pytest.mark.slow] if is_slow else []
            yield pytest.param(situation, instrument, id=f"{situation}-{instrument.__name__}", marks=marks)


@pytest.mark.parametrize(("situation", "instrument"), list(cases()))
def test_nothing_changes_and_the_numbers_are_those_of_plain_hooks(situation: Situation, instrument: type[Instrument]) -> None:
    """Losses, parameters, gradients and random states of three steps have the bits of a twin without sonde; hooks are gone."""
    alone, kept = unobserved(situation), oracle(situation)
    held = instrument(situation)
    observed = train(situation, held.attach)
    assert observed.hooks == alone.hooks
    assert observed.tensors.keys() == alone.tensors.keys()
    assert [name for name, tensor in observed.tensors.items() if not torch.equal(tensor, alone.tensors[name])] == []
    held.compare(kept)
