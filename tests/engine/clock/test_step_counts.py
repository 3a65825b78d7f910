"""Steps are counted as a hand-written twin counts them, whatever the loop is, and whether or not a step is observed."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from tests import bounds
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.engine import Event
from sonde.errors import ObservationWarning
from sonde.inspector import watch

X = torch.ones(2, 3)
Step = str
"""The first letters of the parts whose parameters one step changes, as ``"a"`` or ``"ab"``."""


class Parts(nn.Module):
    """Two networks in one root, which the loop may also call without the root."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)

    def forward(self, x: Tensor, names: str = "ab") -> Tensor:
        return torch.stack([self.get_submodule(name)(x) for name in names]).sum(0)


def optimizers(model: Parts, kind: Any = SGD) -> dict[str, torch.optim.Optimizer]:
    return {name: kind(model.get_submodule(name).parameters(), lr=0.01) for name in "ab"}


def call(model: Parts, name: str, root: bool) -> Tensor:
    found = model(X, name) if root else model.get_submodule(name)(X)
    return found.square().mean()


# Loops: each yields what every step of its twin changes


def alternating(model: Parts, root: bool, pattern: str = "ab") -> Iterator[Step]:
    held = optimizers(model)
    for _ in range(8):
        for name in pattern:
            held[name].zero_grad()
            call(model, name, root).backward()
            held[name].step()
            yield name


def several_critic_steps(model: Parts, root: bool) -> Iterator[Step]:
    return alternating(model, root, "aaab")


def three_in_turn(model: Parts, root: bool) -> Iterator[Step]:
    return alternating(model, root, "abaab")


def on_one_backward(model: Parts, root: bool) -> Iterator[Step]:
    held = optimizers(model, Adam)
    for _ in range(12):
        (call(model, "a", root) + call(model, "b", root)).backward()
        for optimizer in held.values():
            optimizer.step()
            optimizer.zero_grad()
        yield "ab"


def with_something_between(model: Parts, root: bool) -> Iterator[Step]:
    """A forward, a gradient that is not accumulated, and clipping between two steps on the same gradients."""
    held = optimizers(model)
    for _ in range(12):
        model.zero_grad()
        (call(model, "a", root) + call(model, "b", root)).backward()
        held["a"].step()
        torch.autograd.grad(call(model, "b", root), model.b.weight)
        nn.utils.clip_grad_norm_(model.b.parameters(), 1e-3)
        held["b"].step()
        yield "ab"


def adversarial(model: Parts, root: bool) -> Iterator[Step]:
    """Of two optimizers in one root, each on its own loss; the gradients of the other's parameters are left over."""
    held = optimizers(model, Adam)
    for _ in range(8):
        for name in "ba":
            held[name].zero_grad()
            (call(model, "a", root) * call(model, "b", root)).backward()
            held[name].step()
            yield name


def accumulated(model: Parts, root: bool) -> Iterator[Step]:
    held = optimizers(model)
    for _ in range(8):
        for name in "ab":
            for _ in range(3):
                call(model, name, root).backward()
            held[name].step()
            held[name].zero_grad()
            yield name


def with_closures(model: Parts, root: bool) -> Iterator[Step]:
    """LBFGS and SGD, both with closures that make several passes, or one."""
    held = {"a": torch.optim.LBFGS(model.a.parameters(), max_iter=3), "b": SGD(model.b.parameters(), lr=0.1)}
    for _ in range(6):
        for name, optimizer in held.items():

            def closure(name: str = name, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
                optimizer.zero_grad()
                loss = call(model, name, root)
                loss.backward()
                return loss

            optimizer.step(closure)
            yield name


def with_idle_closures(model: Parts, root: bool) -> Iterator[Step]:
    """As Lightning gives every optimizer a closure, in manual optimization one that does nothing."""
    held = optimizers(model)
    for _ in range(10):
        model.zero_grad()
        (call(model, "a", root) + call(model, "b", root)).backward()
        for optimizer in held.values():
            optimizer.step(closure=lambda: None)  # type: ignore[arg-type]  # as Lightning does
        yield "ab"


def anew(model: Parts, root: bool) -> Iterator[Step]:
    """A new optimizer at each step."""
    for _ in range(12):
        model.zero_grad()
        (call(model, "a", root) + call(model, "b", root)).backward()
        SGD(model.parameters(), lr=0.1).step()
        yield "ab"


def second_phase(model: Parts, root: bool) -> Iterator[Step]:
    """One optimizer takes over from another, of all parameters, and then one of a part."""
    for optimizer, changed in (
        (SGD(model.parameters(), lr=0.1), "ab"),
        (Adam(model.parameters()), "ab"),
        (optimizers(model)["b"], "b"),
    ):
        for _ in range(4):
            model.zero_grad()
            (call(model, "a", root) + call(model, "b", root)).backward()
            optimizer.step()
            yield changed


def with_adapters(model: Parts, root: bool) -> Iterator[Step]:
    """A part is frozen and gets a new layer, which an optimizer of its own trains; and so does the other."""
    for name in ("", "a", "b"):
        if name:
            model.requires_grad_(False)
            part = model.get_submodule(name)
            part.register_module("adapter", nn.Linear(3, 3))
            part.register_forward_hook(lambda part, args, output: part.get_submodule("adapter")(output))
        optimizer = SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
        for _ in range(4):
            (call(model, "a", root) + call(model, "b", root)).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield name or "ab"


def overlapping(model: Parts, root: bool) -> Iterator[Step]:
    """Actor and critic have a layer in common, which both of their optimizers hold; one backward pass for both."""
    held = [SGD(model.parameters(), lr=0.1), SGD(model.a.parameters(), lr=0.1)][::-1]
    for _ in range(10):
        model.zero_grad()
        (call(model, "a", root) + call(model, "b", root)).backward()
        for optimizer in held:
            optimizer.step()
        yield "ab"


def frozen_in_turn(model: Parts, root: bool) -> Iterator[Step]:
    """As Lightning toggles optimizers: the parameters of the other one need no gradient meanwhile."""
    held = optimizers(model)
    for _ in range(8):
        for name in "ab":
            for part in "ab":
                model.get_submodule(part).requires_grad_(part == name)
            call(model, name, root).backward()
            held[name].step()
            held[name].zero_grad()
            yield name
    model.requires_grad_(True)


def scaled(model: Parts, root: bool) -> Iterator[Step]:
    """One ``GradScaler`` for two optimizers on one backward pass: it unscales the second one's gradients after the first's step."""
    held = optimizers(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in range(12):
        model.zero_grad()
        loss = (call(model, "a", root) + call(model, "b", root)) * (float("inf") if number == 5 else 1.0)
        scaler.scale(loss).backward()
        for optimizer in held.values():
            scaler.step(optimizer)
        scaler.update()
        if number != 5:
            yield "ab"


def sharpness_aware(model: Parts, root: bool) -> Iterator[Step]:
    """SAM: two passes to a step, the second at disturbed parameters."""
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        disturbed: list[tuple[Tensor, Tensor]] = []
        for half in range(2):
            model.zero_grad()
            (call(model, "a", root) + call(model, "b", root)).backward()
            if half == 0:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    disturbed.append((parameter.data, 0.05 * parameter.grad))
                    parameter.data.add_(disturbed[-1][1])
        for value, disturbance in disturbed:
            value.sub_(disturbance)
        optimizer.step()
        yield "ab"


def by_hand_gradients(model: Parts, root: bool) -> Iterator[Step]:
    """Gradients are computed by ``autograd.grad`` and written: no backward pass accumulates anything."""
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        loss = call(model, "a", root) + call(model, "b", root)
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            parameter.grad = gradient
        optimizer.step()
        yield "ab"


def stepping_in_backward(parameters: Iterable[nn.Parameter]) -> None:
    """Let a hook on each parameter call an optimizer of its own after accumulation: the recipe in torch's tutorials."""
    held = {parameter: SGD([parameter], lr=0.1) for parameter in parameters}

    def hook(parameter: Tensor) -> None:
        optimizer = held[parameter]  # type: ignore[index]  # it is one
        optimizer.step()
        optimizer.zero_grad()

    for parameter in held:
        parameter.register_post_accumulate_grad_hook(hook)


def disturbed(model: Parts, root: bool) -> Iterator[Step]:
    """SAM in place; weights are clamped after a step; an average takes their place for an evaluation."""
    optimizer = SGD(model.parameters(), lr=0.1)
    for number in range(8):
        for half in (0.05, -0.05):
            model.zero_grad()
            (call(model, "a", root) + call(model, "b", root)).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(half)
        optimizer.step()
        with torch.no_grad():
            model.a.weight.clamp_(-1, 1)
            if number % 3 == 0:
                kept = model.a.weight.clone()
                model.eval()
                model.a.weight.zero_()
                model(X)
                model.a.weight.copy_(kept)
                model.train()
        yield "ab"


def in_backward(model: Parts, root: bool) -> Iterator[Step]:
    stepping_in_backward(model.parameters())
    for _ in range(12):
        (call(model, "a", root) + call(model, "b", root)).backward()
        yield "ab"


def in_backward_by_torch(model: Parts, root: bool) -> Iterator[Step]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what is imported with it
        from torch.distributed.optim import _apply_optimizer_in_backward
    _apply_optimizer_in_backward(SGD, model.parameters(), {"lr": 0.1})
    for _ in range(12):
        (call(model, "a", root) + call(model, "b", root)).backward()
        yield "ab"


def in_backward_and_after(model: Parts, root: bool) -> Iterator[Step]:
    """One part steps inside the backward pass, the other after it."""
    stepping_in_backward(model.a.parameters())
    optimizer = SGD(model.b.parameters(), lr=0.1)
    for _ in range(12):
        (call(model, "a", root) + call(model, "b", root)).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield "ab"


def in_backward_in_turn(model: Parts, root: bool) -> Iterator[Step]:
    """Each of two backward passes is a step."""
    stepping_in_backward(model.parameters())
    for _ in range(6):
        for name in "ab":
            call(model, name, root).backward()
            yield name


def in_backward_of_checkpoints(model: Parts, root: bool) -> Iterator[Step]:
    """All parameters are in reentrant checkpoints, whose backward passes are parts of the pass that nothing else is known of."""
    stepping_in_backward(model.parameters())
    x = X.clone().requires_grad_()
    for _ in range(12):
        model(X)  # the former step ends with it
        parts = [checkpoint(model.get_submodule(name), x, use_reentrant=True) for name in "ab"]
        torch.stack(parts).sum().backward()
        yield "ab"


LOOPS: list[Callable[[Parts, bool], Iterator[Step]]] = [
    alternating,
    several_critic_steps,
    three_in_turn,
    on_one_backward,
    with_something_between,
    adversarial,
    accumulated,
    with_closures,
    with_idle_closures,
    anew,
    second_phase,
    overlapping,
    frozen_in_turn,
    scaled,
    sharpness_aware,
    by_hand_gradients,
    disturbed,
    in_backward,
    in_backward_by_torch,
    in_backward_and_after,
    in_backward_in_turn,
    in_backward_of_checkpoints,
]


def steps_of(events: Iterable[Event]) -> dict[int, Step]:
    """By step, the parts whose parameters were seen to be updated."""
    found: dict[int, set[str]] = {}
    for event in events:
        found.setdefault(event.tick.step, set()).add(event.name[0])
    return {step: "".join(sorted(parts)) for step, parts in found.items()}


def test_the_first_step_counts_gradients_once_that_came_in_reentrant_checkpoints_alone() -> None:
    """The end of their pass is noticed as late as at the step, which nobody has said before."""
    model = Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = sonde.observe(model, sonde.stats.Moments(), ports="grad", grad_at_step=True, strict=True)
    x = X.clone().requires_grad_()
    torch.stack([checkpoint(model.get_submodule(name), x, use_reentrant=True) for name in "ab"]).sum().backward()
    optimizer.step()
    assert {row["site"]: row["calls"] for row in probe.rows() if row["site"][0] in "ab"} == dict.fromkeys(
        (f"{name}:grad" for name, _ in model.named_parameters() if name[0] in "ab"), 1
    )
    probe.detach()


@pytest.mark.parametrize("root", [True, False], ids=["root called", "parts called"])
@pytest.mark.parametrize("every", [1, 2, 3, 10, "never", "late"])
@pytest.mark.parametrize("loop", LOOPS)
def test_steps_are_those_of_a_twin(loop: Callable[[Parts, bool], Iterator[Step]], every: Any, root: bool) -> None:
    """Their number does not depend on which are observed; an observed one has the updates of all its optimizers, in that step."""
    model = Parts()
    events: list[Event] = []

    def keep(event: Event) -> None:
        event.value = None
        events.append(event)

    schedule = {"never": lambda tick: False, "late": lambda tick: tick.step in (5, 6, 7)}.get(every, every)
    with sonde.observe(model, keep, ports="update", every=schedule, strict=True) as probe:
        expected = list(loop(model, root))
        (clock,) = probe._attachment.clocks
        clock.now()
        assert clock.step == len(expected)
    found = steps_of(events)
    assert found == {step: expected[step] for step in found}
    if every == 1:
        assert len(found) == len(expected)
    if every == "late":
        assert list(found) == [5, 6, 7]


@pytest.mark.filterwarnings("ignore:the model has changed")
@pytest.mark.parametrize("root", [True, False], ids=["root called", "parts called"])
@pytest.mark.parametrize("every", [1, 3, "never"])
def test_a_layer_that_comes_with_its_own_optimizer_belongs_to_no_step_before_it(every: Any, root: bool) -> None:
    """Its gradients were not seen in its first step, and the former step has not changed it either."""
    model = Parts()
    events: list[Event] = []
    schedule = (lambda tick: False) if every == "never" else every
    with sonde.observe(model, events.append, ports="update", every=schedule, strict=True) as probe:
        expected = list(with_adapters(model, root))
        (clock,) = probe._attachment.clocks
        assert clock.step == len(expected)
    found = steps_of(events)
    assert found == {step: expected[step] for step in found}
    assert every == "never" or found.keys() >= {0, 3}


@pytest.mark.parametrize("every", [2, 3, 5])
@pytest.mark.parametrize("pattern", ["ab", "aaab", "abaab", "aabb"])
def test_each_of_several_optimizers_has_its_own_interval(pattern: str, every: int) -> None:
    """Once the order has been seen, every n-th step of each is observed, and no other."""
    model = Parts()
    events: list[tuple[int, str]] = []
    rounds = 12 * every

    def keep(event: Event) -> None:
        events.append((event.tick.step, event.name[0]))

    held = optimizers(model)
    with sonde.observe(model, keep, ["a.bias", "b.bias"], ports="update", every=every, strict=True):
        for _ in range(rounds):
            for name in pattern:
                held[name].zero_grad()
                call(model, name, True).backward()
                held[name].step()
    learned = 3 * len(pattern)  # by then each turn has been seen to come and go
    for name in "ab":
        own = [step for step, letter in enumerate(pattern * rounds) if letter == name]
        numbers = [own.index(step) for step, letter in events if letter == name]
        late = [number for number in numbers if own[number] >= learned]
        assert late == list(range(late[0], len(own), every))[: len(late)]
        assert len(own) - late[-1] <= every


UNSEEN = "the parameters have changed 2 times and no optimizer was seen to step"


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_steps_that_nobody_says_are_recognised(every: int, accumulated: int) -> None:
    """A loop changes its parameters itself. Of the third step on there is everything, and each update is that of its own step."""
    model = nn.Linear(2, 1, bias=False)
    with watch(model, every=every, to="memory", verbose=False, strict=True) as inspector:
        for step in range(9):
            with pytest.warns(ObservationWarning, match=UNSEEN) if step == 2 else contextlib.nullcontext():
                for _ in range(accumulated):
                    model(torch.ones(1, 2)).sum().backward()
            with torch.no_grad():
                assert model.weight.grad is not None
                model.weight -= model.weight.grad * step
            model.weight.grad = None
            model.eval()
            model(torch.ones(1, 2))
            model.train()
        (watched,) = inspector._training.watched  # type: ignore[union-attr]  # it is attached
    assert watched.steps == 9
    rows = inspector.run.table("moments").to_pylist()
    found = {(row["step"], row["port"]): row["mean"] for row in rows}
    steps = range(2, 9) if every == 1 else (3, 6)
    assert sorted({step for step, _ in found}) == list(steps)
    for step in steps:
        assert found[step, "grad"] == accumulated
        assert found[step, "update"] == pytest.approx(-step * accumulated, rel=1e-5)
    assert sorted({row["step"] for row in rows if row["port"] == "output"}) == list(steps)


@pytest.mark.parametrize("said", [True, False])
def test_backward_passes_of_a_compiled_model_are_counted_at_each_observed_step(said: bool, fresh_compiler: None) -> None:
    """Its clock stays awake between these steps, and sees gradients again."""
    model = nn.Sequential(nn.Linear(3, 3))
    model.compile(backend="eager")
    optimizer, ticks = SGD(model.parameters(), lr=0.01), set[tuple[int, int]]()
    with sonde.observe(model, lambda event: ticks.add(event.tick[1:3]), ports="grad", every=2) as probe:
        for _ in range(6):
            for _ in range(2):
                model(X).sum().backward()
            if said:
                with torch.no_grad():
                    model[0].weight.sub_(0.01)
                probe.step()
            else:
                optimizer.step()
            model.zero_grad()
    assert ticks == {(step, micro_step) for step in (0, 2, 4) for micro_step in (0, 1)}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("whole", [False, True])
def test_steps_of_a_compiled_optimizer_are_recognised(backend: str, whole: bool, fresh_compiler: None) -> None:
    """Alone, or in a training step that is compiled as a whole: from the third step on its rows are those of the eager training."""
    runs = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        step: Callable[[], Any] = optimizer.step

        def train(step: Callable[[], Any] = step, model: nn.Module = model, optimizer: SGD = optimizer) -> None:
            model(X).square().mean().backward()
            step()
            optimizer.zero_grad()

        with contextlib.ExitStack() as stack:
            if compiled:
                stack.enter_context(pytest.warns(ObservationWarning, match=UNSEEN))
                stack.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", category=DeprecationWarning)
            inspector = stack.enter_context(watch(model, every=1, to="memory", verbose=False))
            made = torch.compile(train if whole else step, backend=backend) if compiled else train
            for _ in range(6):
                if whole or not compiled:
                    made()
                else:
                    train(made)
        runs.append({(row["step"], row["site"]): row for row in inspector.run.table("moments").to_pylist() if row["step"] > 1})
    eager, found = runs  # five steps, in each of them at most 40 operations on one element one after another
    assert found.keys() == eager.keys()
    for key, row in eager.items():
        assert found[key]["norm"] == pytest.approx(row["norm"], rel=bounds.relative(200, torch.float32), abs=1e-6), key
