"""Gradients that nobody clears, and the loops that clear them in other ways."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from sonde.inspector import Inspector, watch


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def kept(inspector: Inspector) -> list[tuple[str, int | None]]:
    return [(each.site, each.first_step) for each in inspector.findings if each.rule == "gradient_kept"]


def trained(
    clear: Callable[[nn.Module, Adam, int], object],
    *,
    every: int = 1,
    steps: int = 12,
    clip: bool = False,
    passes: int = 1,
    model: nn.Sequential | None = None,
) -> Inspector:
    """Train; *clear* is called between the forward and the backward of each pass, with its number."""
    model = net() if model is None else model
    optimizer = Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer, every=every, to="memory", verbose=False) as inspector:
        for _ in range(steps):
            for number in range(passes):
                loss = model(torch.randn(16, 4)).square().mean()
                clear(model, optimizer, number)
                loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    return inspector


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("every", [1, 3])
def test_a_loop_that_never_clears_is_named_from_its_first_logged_step(every: int, clip: bool) -> None:
    inspector = trained(lambda *_: None, every=every, steps=6 * every, clip=clip)
    assert kept(inspector) == [("2.bias:grad", 0)]
    assert [each for each in inspector.run.findings if each.rule == "gradient_kept"] == [
        each for each in inspector.findings if each.rule == "gradient_kept"
    ]


CLEARED: dict[str, Callable[[nn.Module, Adam, int], object]] = {
    "to None": lambda model, optimizer, number: optimizer.zero_grad(),
    "to zeros": lambda model, optimizer, number: optimizer.zero_grad(set_to_none=False),
    "by the model": lambda model, optimizer, number: model.zero_grad(),
    "by hand": lambda model, optimizer, number: [each.grad.zero_() for each in model.parameters() if each.grad is not None],
    "in the first of three passes": lambda model, optimizer, number: optimizer.zero_grad() if number == 0 else None,
}  # fmt: skip


@pytest.mark.parametrize("how", CLEARED)
@pytest.mark.parametrize("every", [1, 3])
def test_a_loop_that_clears_is_not(how: str, every: int) -> None:
    model = net()
    inspector = trained(CLEARED[how], every=every, steps=7 * every, passes=3 if "three" in how else 1, model=model)
    assert kept(inspector) == []
    assert all(not parameter._backward_hooks for parameter in model.parameters())


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_of_another_loss_that_are_cleared_before_their_own_are_not_kept(to_none: bool) -> None:
    """A generator's loss goes back through the discriminator, whose gradients are cleared before its own backward pass."""
    torch.manual_seed(0)
    both = nn.ModuleDict({"made": nn.Linear(2, 2), "judge": nn.Linear(2, 1)})
    made, judge = both["made"], both["judge"]
    one, other = Adam(judge.parameters(), 1e-3), Adam(made.parameters(), 1e-3)
    with watch(both, every=1, to="memory", verbose=False) as inspector:
        for _ in range(9):
            drawn = made(torch.randn(8, 2))
            one.zero_grad(set_to_none=to_none)
            (judge(drawn.detach()).mean() - judge(torch.randn(8, 2)).mean()).backward()
            one.step()
            other.zero_grad(set_to_none=to_none)
            (-judge(drawn).mean()).backward()
            other.step()
    assert kept(inspector) == []


@pytest.mark.parametrize("order", ["both at the top", "own before its pass", "steps behind both passes"])
def test_gradients_that_a_pass_for_another_optimizer_has_left_are_told(order: str) -> None:
    """As those of an actor in the step of its critic. Where both step behind both passes, they may be meant."""
    torch.manual_seed(0)
    both = {"made": nn.Linear(2, 2), "judge": nn.Linear(2, 1)}
    made, judge = both["made"], both["judge"]
    one, other = Adam(made.parameters(), 1e-3), Adam(judge.parameters(), 1e-3)
    with watch(both, every=1, to="memory", verbose=False) as inspector:
        for _ in range(9):
            drawn = made(torch.randn(8, 2))
            one.zero_grad()
            other.zero_grad()
            (-judge(drawn).mean()).backward()
            if order != "steps behind both passes":
                one.step()
            if order == "own before its pass":
                other.zero_grad()
            judge(drawn.detach()).square().mean().backward()
            if order == "steps behind both passes":
                one.step()
            other.step()
    messages = [each.message for each in inspector.findings if each.rule == "gradient_kept"]
    assert ["another optimizer steps" in each for each in messages] == ([True] if order == "both at the top" else [])


def attack(model: nn.Module, optimizer: SGD, x: Tensor) -> Tensor:
    """Return *x*, moved against the model: the gradients of that pass are cleared."""
    x = x.clone().requires_grad_()
    model(x).square().mean().backward()
    assert x.grad is not None
    optimizer.zero_grad()
    return (x + 0.1 * x.grad.sign()).detach()


def climb(model: nn.Module, optimizer: SGD, x: Tensor) -> Tensor:
    """Move the weights up the loss, as a sharpness-aware step does, and return *x*."""
    model(x).square().mean().backward()
    with torch.no_grad():
        for each in model.parameters():
            assert each.grad is not None
            each.add_(0.01 * each.grad)
    optimizer.zero_grad()
    return x


def weigh(model: nn.Module, optimizer: SGD, x: Tensor) -> Tensor:
    """Keep the gradients of one loss beside, to be added to those of another, and return *x*."""
    model(x).mean().backward()
    for each in model.parameters():
        each.kept = each.grad  # type: ignore[attr-defined]
    optimizer.zero_grad()
    return x


def derive(model: nn.Module, optimizer: SGD, x: Tensor) -> Tensor:
    """Return *x*, behind two derivatives that add to no gradient, as those of inner steps."""
    for _ in range(2):
        torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    return x


Pass = Callable[[nn.Module, SGD, Tensor], Tensor]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(
    ("how", "is_fault"),
    [("one by one", True), ("to zeros", True), ("once", False), (attack, False), (climb, False), (weigh, False), (derive, False)],
)
def test_gradients_that_are_cleared_between_the_passes_of_a_step(how: str | Pass, is_fault: bool, every: int) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=1e-2)
    with watch(model, optimizer, every=every, to="memory", verbose=False) as inspector:
        for _ in range(9 * every):
            for number in range(3 if isinstance(how, str) else 1):
                if not number or how != "once":
                    optimizer.zero_grad(set_to_none=how != "to zeros")
                x = torch.randn(16, 4)
                x = x if isinstance(how, str) else how(model, optimizer, x)
                model(x).square().mean().backward()
            for each in model.parameters():
                each.grad = each.grad + each.kept if hasattr(each, "kept") else each.grad
            optimizer.step()
    told = [each for each in inspector.findings if each.rule == "gradient_cleared"]
    assert [(each.site, each.severity, each.first_step) for each in told] == [("2.bias:grad", "warn", 0)] * is_fault
    assert all("only the last of 3 or more counts" in each.message for each in told)
    assert all(not parameter._backward_hooks for parameter in model.parameters())


def test_gradients_that_one_of_two_optimizers_clears_are_meant() -> None:
    model = net()
    optimizers = [SGD(each.parameters(), lr=1e-2) for each in (model[0], model[2])]
    with watch(model, every=1, to="memory", verbose=False) as inspector:
        for _ in range(9):
            for optimizer in optimizers:
                model.zero_grad()
                model(torch.randn(16, 4)).square().mean().backward()
                optimizer.step()
    assert not [each for each in inspector.findings if each.rule == "gradient_cleared"]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("when", ["behind the step", "in front of it", "behind the step, to zeros"])
def test_gradients_that_are_clipped_behind_the_step_are_told(when: str, every: int) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=1e-2)
    with watch(model, optimizer, every=every, to="memory", verbose=False) as inspector:
        for _ in range(9 * every):
            optimizer.zero_grad(set_to_none=not when.endswith("zeros"))
            model(torch.randn(16, 4)).square().mean().backward()
            if when == "in front of it":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            if when == "behind the step":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    told = [each for each in inspector.findings if each.rule == "gradient_kept"]
    assert [(each.site, each.severity, each.first_step) for each in told] == [("2.bias:grad", "warn", 0)] * (
        when == "behind the step"
    )
    assert all("clipping there does nothing" in each.message for each in told)


def test_a_rule_that_is_off_watches_nothing() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=1e-3)
    with watch(
        model, optimizer, every=1, to="memory", verbose=False, rules={"gradient_kept": False, "gradient_cleared": False}
    ) as inspector:
        for _ in range(9):
            model(torch.randn(16, 4)).mean().backward()
            optimizer.step()
            assert all(not parameter._backward_hooks for parameter in model.parameters())
    assert kept(inspector) == []


@pytest.mark.slow
def test_a_compiled_model_is_watched_without_another_compilation() -> None:
    model = net()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = Adam(model.parameters(), lr=1e-3)
    counts = torch._dynamo.utils.counters
    with watch(compiled, optimizer, every=1, to="memory", verbose=False) as inspector:  # type: ignore[arg-type]  # a function to the type checker
        seen = []
        for _ in range(8):
            compiled(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
            seen.append(counts["stats"]["unique_graphs"])
    assert seen[1] == seen[-1]
    assert kept(inspector) == [("2.bias:grad", 0)]
