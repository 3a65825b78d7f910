"""Settings of an optimizer that are wrong by themselves, or do harm: the root of what follows, and silent where they are usual."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.quick import quick
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

import sonde
from sonde.rules import Finding

pytestmark = pytest.mark.first_is_quick

RULES = ("rate_negative", "decay_large", "momentum_large", "rate_grown")


def trained(
    make: Callable[[nn.Module], Optimizer],
    steps: int = 20,
    before: Callable[[Optimizer, int], object] = lambda optimizer, step: None,
) -> list[Finding]:
    """Train a network with the optimizer that *make* returns; *before* is called before each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = make(model)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        for step in range(steps):
            before(optimizer, step)
            x = torch.randn(32, 8)
            loss = functional.cross_entropy(model(x), (x[:, 0] > 0).long())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            inspector.push_loss(loss, train=True)
    found = inspector.findings
    assert [each.message for each in sonde.check(inspector.run).findings] == [each.message for each in found]
    return found


def of_settings(found: list[Finding]) -> list[tuple[str, str]]:
    return [(each.rule, each.severity) for each in found if each.rule in RULES]


def with_rate(optimizer: Optimizer, *rates: float) -> Optimizer:
    """Set learning rates that no constructor takes."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return optimizer


EPS = [(1e-3, 10.0, True), (1e-3, 1.0, True), (0.3, 1.0, False), (1e-3, 1e-4, False), (1e-3, 1e-8, False)]


@pytest.mark.parametrize(("rate", "eps", "is_found"), quick(EPS, *EPS[1:3]))
def test_an_eps_that_is_larger_than_gradients_is_the_root_of_small_steps(rate: float, eps: float, is_found: bool) -> None:
    """One of 1 or less, where the loss does not fall, and not where a rate as large goes with it."""
    found = trained(lambda model: AdamW(model.parameters(), rate, eps=eps), 120)
    assert ("eps_large" in [each.rule for each in found]) is is_found
    assert not is_found or (found[0].rule == "eps_large" and {each.follows for each in found[1:]} <= {"eps_large"})


@pytest.mark.parametrize(
    ("dtype", "make", "is_found"),
    [
        (torch.float16, Adam, True),
        (torch.float16, partial(RMSprop, lr=1e-3), True),
        (torch.float16, partial(AdamW, eps=1e-4), False),
        (torch.float16, partial(Adam, fused=True), False),  # computes in float32
        (torch.float16, partial(SGD, lr=1e-3), False),
        (torch.bfloat16, Adam, False),
        (torch.float32, Adam, False),
    ],
)
def test_an_eps_that_is_zero_in_float16_is_the_root_of_a_nan(dtype: torch.dtype, make: Any, is_found: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(dtype)
    optimizer = make(model.parameters())
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        for _ in range(6):
            optimizer.zero_grad()
            functional.cross_entropy(model(torch.zeros(32, 8, dtype=dtype)), torch.zeros(32).long()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert [each.rule for each in inspector.findings if each.rule == "eps_lost"] == ["eps_lost"] * is_found
    assert not is_found or inspector.findings[0].rule == "eps_lost"
    assert {each.follows for each in inspector.findings if each.rule == "nonfinite"} <= {"eps_lost"}


@pytest.mark.parametrize(("steps", "severity"), [(2, "warn"), (4, "note"), (100, "")])
def test_an_optimizer_that_is_made_anew_again_and_again_is_told(steps: int, severity: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = Adam(model.parameters(), 1e-3)
    with sonde.watch(model, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        for step in range(32):
            optimizer = optimizer if step % steps else Adam(model.parameters(), 1e-3)
            functional.cross_entropy(model(torch.randn(32, 8)), torch.zeros(32).long()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    told = [(each.severity, each.message) for each in inspector.findings if each.rule == "optimizer_renewed"]
    assert told == [(severity, f"the optimizer was made anew every {steps} steps, 5 times: its averages begin anew")] * bool(
        severity
    )


@pytest.mark.parametrize(("kind", "is_found"), [(Adam, True), (SGD, False)])
@pytest.mark.parametrize("every", [1, 4])
def test_an_optimizer_that_is_made_anew_in_each_step_is_found_where_it_keeps_averages(
    kind: Any, is_found: bool, every: int
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    with sonde.watch(model, every=every, to="memory", verbose=False, bad_steps=None) as inspector:
        for _ in range(24):
            optimizer = kind(model.parameters(), 1e-3)
            functional.cross_entropy(model(torch.randn(32, 8)), torch.zeros(32).long()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    assert ("optimizer_renewed" in [each.rule for each in inspector.findings]) is is_found


@pytest.mark.parametrize(("shared", "is_found"), [(True, True), (False, False)])
@pytest.mark.parametrize("every", [1, 3])
def test_two_optimizers_that_hold_one_part_in_common_are_found(shared: bool, is_found: bool, every: int) -> None:
    """A generator's optimizer that was made of all parameters; or one for each part."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"G": nn.Linear(4, 2), "D": nn.Linear(2, 1)})
    of_d = Adam(model["D"].parameters(), 1e-3)
    of_g = Adam((model if shared else model["G"]).parameters(), 1e-3)
    with sonde.watch(model, [of_g, of_d], every=every, to="memory", verbose=False, bad_steps=None) as inspector:
        for _ in range(40):
            for optimizer, sign in ((of_d, 1.0), (of_g, -1.0)):
                model.zero_grad()
                (sign * model["D"](model["G"](torch.randn(16, 4))).mean()).backward()
                optimizer.step()
    assert ("held_twice" in [each.rule for each in inspector.findings]) is is_found


@pytest.mark.parametrize(("kind", "rate"), quick([(SGD, -0.1), (Adam, -1e-2)], (SGD, -0.1)))
def test_a_learning_rate_below_zero_is_the_root_of_a_loss_that_rises(kind: Any, rate: float) -> None:
    root, *behind = trained(lambda model: with_rate(kind(model.parameters(), 0.1), rate), 60)
    assert (root.rule, root.severity, root.first_step, root.follows) == ("rate_negative", "bad", 0, "")
    assert root.message == f"lr {rate:g} is below zero: each step goes up the loss"
    assert "loss_rising" in [each.rule for each in behind]
    assert {each.follows for each in behind if each.severity != "note"} == {"rate_negative"}


def test_a_schedule_that_goes_on_beyond_its_end_is_told_from_the_step_at_which_it_does() -> None:
    found = trained(
        lambda model: SGD(model.parameters(), 0.1), 20, lambda optimizer, step: with_rate(optimizer, 0.1 * (1 - step / 12))
    )
    assert [each.first_step for each in found if each.rule == "rate_negative"] == [13]


def test_a_rate_below_zero_is_meant_with_maximize_and_a_note_of_one_group() -> None:
    assert not trained(lambda model: with_rate(SGD(model.parameters(), 0.1, maximize=True), -0.1))
    groups = [{"params": each.parameters()} for each in (torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))]

    def two(model: nn.Module) -> Optimizer:
        groups[0]["params"] = list(model.parameters())[:-1]
        groups[1]["params"] = list(model.parameters())[-1:]
        return with_rate(SGD(groups, 0.1), 0.1, -1e-4)

    assert of_settings(trained(two)) == [("rate_negative", "note")]


@pytest.mark.parametrize(
    "make",
    [
        lambda model: AdamW(model.parameters(), 1e-2, weight_decay=60.0),
        lambda model: SGD(model.parameters(), 0.1, weight_decay=3.0),
        lambda model: SGD(model.parameters(), 0.1, weight_decay=30.0),
    ],
)
def test_a_decay_that_takes_the_weights_away_is_the_root_and_not_the_learning_rate(make: Callable[[nn.Module], Optimizer]) -> None:
    found = trained(make, 40)
    assert (found[0].rule, found[0].first_step) == ("decay_large", 0)
    assert "weight decay" in found[0].advice
    assert [each.rule for each in found if not each.follows and each.severity != "note"] == ["decay_large"]


@pytest.mark.parametrize(
    "make",
    [
        lambda model: AdamW(model.parameters(), 1e-2, weight_decay=0.3),
        lambda model: AdamW(model.parameters(), 3e-3, weight_decay=1.0),
        lambda model: SGD(model.parameters(), 0.05, weight_decay=1e-2),
        lambda model: Adam(model.parameters(), 1e-2, weight_decay=30.0),  # part of a gradient that is divided by its size
        lambda model: SGD(model.parameters(), 1e-4, momentum=0.999),
        lambda model: SGD(model.parameters(), 0.05, momentum=0.9995, dampening=0.9995),
        lambda model: SGD(model.parameters(), 0.01, momentum=0.99, nesterov=True),
    ],
)
def test_usual_decays_and_momentums_are_none(make: Callable[[nn.Module], Optimizer]) -> None:
    assert of_settings(trained(make)) == []


def test_a_momentum_that_adds_up_thousands_of_steps_is_the_root_where_something_grows() -> None:
    def make(model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), 0.9, momentum=0.9999)

    assert of_settings(trained(make, 6)) == []  # so far it has done no harm
    root, *behind = trained(make, 100)
    assert (root.rule, root.first_step) == ("momentum_large", 0)
    assert root.message == "momentum 0.9999 adds up 10,000 steps: lr 0.9 comes to 9,000"
    assert all(each.follows == "momentum_large" for each in behind if each.severity != "note")


def test_a_rate_that_grows_in_each_step_is_the_root_of_what_grows_by_that() -> None:
    found = trained(
        lambda model: AdamW(model.parameters(), 1e-3), 70, lambda optimizer, step: with_rate(optimizer, 1e-3 * 1.2**step)
    )
    (grown,) = [each for each in found if each.rule == "rate_grown"]
    assert grown.follows == ""
    assert grown.evidence["lr"] >= 10 * grown.evidence["best"]
    assert all("rate_grown" in each.follows for each in found if each.rule in ("loss_rising", "weight_growth", "output_growth"))


def test_warm_ups_and_restarts_are_none() -> None:
    def warmed(optimizer: Optimizer, step: int) -> object:
        return with_rate(optimizer, 1e-2 * min(step / 20, 1) + 1e-9)

    def restarted(optimizer: Optimizer, step: int) -> object:
        return with_rate(optimizer, 1e-2 * (1 - step % 20 / 20) ** 4)

    for schedule in (warmed, restarted):
        assert of_settings(trained(lambda model: AdamW(model.parameters(), 1e-3), 60, schedule)) == []


BETAS = [
    ((0.9, 0.1), True),
    ((0.999, 0.9), True),
    ((0.9, 0.999), False),
    ((0.9, 0.95), False),
    ((0.5, 0.9), False),
    ((0.0, 0.1), False),
]


@pytest.mark.parametrize(("betas", "is_odd"), quick(BETAS, ((0.999, 0.9), True), ((0.9, 0.999), False), ((0.0, 0.1), False)))
def test_betas_in_the_wrong_order_are_told(betas: tuple[float, float], is_odd: bool) -> None:
    """The mean of the squares has to be of more gradients than that of the gradients."""
    found = {each.rule: each for each in trained(lambda model: Adam(model.parameters(), 1e-3, betas=betas))}
    assert ("betas_odd" in found) is is_odd
    assert not is_odd or found["betas_odd"].message.startswith(f"the optimizer's betas are ({betas[0]:g}, {betas[1]:g})")


def tens(step: int) -> float:
    return 0.1 ** (step // 10)


SCHEDULES: dict[str, tuple[Callable[[int], float], str]] = {
    "a plateau that is none": (tens, "the learning rate is 1e-11, where it was 0.001: next to nothing is learnt since"),
    "a warm-up of 200,000 steps": (
        lambda step: step / 200_000,
        "the learning rate is 9.45e-07 and still grows: so far the weights have moved by <1 %",
    ),
    "a warm-up of 400 steps": (lambda step: min(1.0, step / 400), ""),
    "a rate that ends at 0": (lambda step: 1 - step / 220, ""),
    "a decay in each step, behind a loss that has fallen": (
        lambda step: 30 * 0.9**step,
        "the learning rate is 2.74e-08, where it was 0.03: next to nothing is learnt since",
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_that_leaves_next_to_no_rate_is_told(schedule: str) -> None:
    """Where the loss has not fallen; a rate that falls to nothing at the end of a training is one as well."""
    of, message = SCHEDULES[schedule]

    def before(optimizer: Optimizer, step: int) -> None:
        with_rate(optimizer, 1e-3 * of(step))

    found = {each.rule: each for each in trained(lambda model: AdamW(model.parameters(), 1e-3), 220, before)}
    assert found["rate_small"].message == message if message else "rate_small" not in found


CASES = [(kind, rate, scale) for kind, rate in ((SGD, 0.05), (Adam, 1e-4)) for scale in (1e-5, 1.0)]


@pytest.mark.parametrize(("kind", "rate", "scale"), quick(CASES, (SGD, 0.05, 1.0), (Adam, 1e-4, 1e-5)))
def test_inputs_that_are_next_to_zero_are_looked_at_first(kind: Any, rate: float, scale: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = kind(model.parameters(), rate)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(150):
            x = torch.randn(32, 8)
            loss = functional.cross_entropy(model(scale * x), (x[:, 0] > 0).long())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            inspector.push_loss(loss, train=True)
    stuck = {"update_small", "loss_stuck"}
    told = {each.rule: each.advice for each in inspector.findings if each.rule in {*stuck, "input_unused"}}
    tiny = {rule for rule, advice in told.items() if advice.startswith("what goes into the first layer is of size ")}
    assert bool(tiny & stuck) is (scale < 1)
    assert ("input_unused" in told) is ("input_unused" in tiny)


@pytest.mark.parametrize(("rate", "is_told"), [(0.3, True), (0.003, False)])
def test_a_first_step_that_makes_most_of_the_weights_is_told_though_the_loss_falls(rate: float, is_told: bool) -> None:
    """Of classes that the least network tells apart by a bias: the loss falls at any rate, and not far."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for width in (8, 64, 64) for layer in (nn.Linear(width, 64), nn.Tanh())), nn.Linear(64, 10))
    optimizer = Adam(model.parameters(), rate)
    labels = torch.distributions.Categorical(logits=-torch.arange(10.0) / 2)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(120):
            loss = functional.cross_entropy(model(torch.randn(256, 8)), labels.sample((256,)))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            inspector.push_loss(loss, train=True)
    found = {each.rule: each for each in inspector.findings}
    assert ("update_huge" in found) is is_told


@pytest.mark.parametrize(("kind", "limit", "is_told"), [(SGD, 1e-3, True), (SGD, 1.0, False), (Adam, 1e-3, False)])
def test_clipping_that_leaves_next_to_nothing_of_gradients_is_told(kind: Any, limit: float, is_told: bool) -> None:
    """Where steps are multiples of them: Adam divides by their size."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = kind(model.parameters(), 0.05)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(120):
            x = torch.randn(32, 8)
            loss = functional.cross_entropy(3 * model(x), (x[:, 0] > 0).long())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            inspector.push_loss(loss, train=True)
    told = [each.message for each in inspector.findings if each.rule == "rate_small"]
    assert [each[:62] for each in told] == ["steps hardly move the weights: gradients are clipped to 0.001 "] * is_told


@pytest.mark.parametrize(("decay", "is_told"), [(10.0, True), (1e-3, False), (0.0, False)])
def test_a_decay_of_the_rate_that_leaves_nothing_is_told(decay: float, is_told: bool) -> None:
    found = {each.rule: each for each in trained(lambda model: Adagrad(model.parameters(), 0.01, lr_decay=decay))}
    assert ("rate_small" in found) is is_told
    assert not is_told or found["rate_small"].message == "lr_decay 10 leaves a learning rate of 1e-06 after 1,000 steps"


LENGTHS = [
    (20_000, 220, True),
    (20_000, 60, False),
    (1_000, 220, False),
    (200_000, 120, True),
    (4_000, 120, False),
    (50, 220, False),
]


@pytest.mark.parametrize(("length", "steps", "is_told"), quick(LENGTHS, *LENGTHS[:4]))
def test_a_training_that_ends_within_its_warm_up_is_told_at_its_end(length: int, steps: int, is_told: bool) -> None:
    def warmed(optimizer: Optimizer, step: int) -> None:
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])  # as a scheduler of torch notes it
            group["lr"] = group["initial_lr"] * min(1.0, step / length)

    found = {each.rule: each for each in trained(lambda model: Adam(model.parameters(), lr=3e-2), steps, warmed)}
    assert ("rate_small" in found) is is_told
    message = f"the training ended within its warm-up: the learning rate is {0.03 * (steps - 1) / length:.3g}, "
    assert not is_told or (found["rate_small"].message.startswith(message) and found["rate_small"].severity == "warn")


def test_a_rate_that_has_fallen_once_is_no_warm_up() -> None:
    def falls(optimizer: Optimizer, step: int) -> None:
        for group in optimizer.param_groups:
            group["initial_lr"], group["lr"] = 1e-2, 1e-4 * (2 if step == 0 else 1 + step / 1000)

    assert "rate_small" not in {each.rule for each in trained(lambda model: Adam(model.parameters(), lr=1e-2), 220, falls)}


@pytest.mark.parametrize(("given", "kind"), [(1e-2, "rate"), (1e-2, "factor"), (1e-2, "warm-up"), (1.0, "rate"), (0.1, "decayed")])
def test_a_schedule_that_returns_a_rate_in_the_place_of_a_factor_is_told(given: float, kind: str) -> None:
    factors: dict[str, Callable[[int], float]] = {
        "rate": lambda step: given * (1 - step / 220),
        "factor": lambda step: 1 - step / 220,
        "warm-up": lambda step: min(1.0, (step + 1) / 100),  # begins at the square of the rate
        "decayed": lambda step: 1.0 if step < 110 else 0.1,
    }

    def scheduled(optimizer: Optimizer, step: int) -> None:
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", given)  # as a scheduler of torch notes it
            group["lr"] = given * factors[kind](step)

    found = {each.rule: each for each in trained(lambda model: Adam(model.parameters(), lr=given), 220, scheduled)}
    is_told = kind == "rate" and given < 1
    assert ("rate_small" in found) is is_told
    message = "a schedule has multiplied the learning rate, 0.01, by itself: its largest is 0.0001"
    assert not is_told or found["rate_small"].message == message


@pytest.mark.parametrize(
    ("mode", "of", "is_told"),
    [
        ("max", "validation", True),
        ("max", "epoch", True),
        ("min", "accuracy", True),
        ("min", "validation", False),
        ("max", "accuracy", False),
    ],
)
def test_a_schedule_that_waits_for_the_opposite_of_what_it_is_told_is_told(mode: Any, of: str, is_told: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode, patience=1)
    x = torch.randn(128, 8)
    y = x[:, :1] + x[:, 1:2] * x[:, 2:3]
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(8):
            losses = []
            for rows in range(0, 128, 16):
                loss = functional.mse_loss(model(x[rows : rows + 16]), y[rows : rows + 16])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                inspector.push_loss(loss, train=True)
                losses.append(loss.item())
            told = {"validation": 0.5 * losses[-1], "epoch": sum(losses) / 8, "accuracy": 1 - losses[-1] / 5}
            if of != "epoch":
                inspector.push_loss(told["validation"], train=False)
                inspector.push_metric("accuracy", told["accuracy"])
            schedule.step(told[of])
    found = {each.rule: each for each in inspector.findings}
    assert ("rate_small" in found) is is_told
    what = "a loss, which falls" if mode == "max" else "a metric, which rises"
    message = f"ReduceLROnPlateau(mode={mode!r}) cuts the learning rate, from 0.05 to 0.005: it is told {what}"
    assert not is_told or found["rate_small"].message == message


@pytest.mark.parametrize(("decay", "is_told"), [(1e-2, False), (2.0, True)])
def test_a_decay_that_outweighs_gradients_in_adam_is_told_of_a_loss_that_does_not_fall(decay: float, is_told: bool) -> None:
    torch.manual_seed(0)
    users, items = nn.Embedding(20, 8), nn.Embedding(30, 8)
    model = nn.ModuleList([users, items])
    for each in model.parameters():
        each.data.mul_(0.1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=decay)
    likes = torch.randn(20, 4) @ torch.randn(4, 30) > 0
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(300):
            user, item = torch.randint(20, (64,)), torch.randint(30, (64,))
            score = (users(user) * items(item)).sum(1)
            loss = nn.functional.binary_cross_entropy_with_logits(score, likes[user, item].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            inspector.push_loss(loss, train=True)
    told = [each for each in inspector.findings if each.severity != "note"]
    assert [each.rule for each in told if not each.follows] == (["decay_large"] if is_told else [])
    assert not is_told or "is added to gradients, and outweighs them" in told[0].message


@pytest.mark.parametrize(
    ("rates", "until", "told"), [((1e-5, 0.0), 140, "4.weight"), ((0.0, 1e-5), 140, "0.weight"), ((0.0, 1e-2), 2, "")]
)
def test_a_group_whose_rate_is_zero_is_named_with_what_it_holds(rates: tuple[float, float], until: int, told: str) -> None:
    """Where it stays so: a warm-up may begin with it."""

    def groups(model: nn.Module) -> Optimizer:
        parts = list(model.children())
        return AdamW(
            [
                {"params": nn.Sequential(*part).parameters(), "lr": rate}
                for part, rate in zip((parts[:3], parts[3:]), rates, strict=True)
            ]
        )

    def before(optimizer: Optimizer, step: int) -> None:
        with_rate(optimizer, *(rates if step < until else (1e-2, 1e-2)))

    found = {each.rule: each for each in trained(groups, 100, before)}
    assert ("rate_small" in found) is bool(told)
    if told:
        message = found["rate_small"].message
        assert message.startswith(
            f"{told}: the learning rate has been 0 in every step so far, of parameter group {rates.index(0)} (of 2) (also "
        )
        assert {each.follows for rule, each in found.items() if rule == "update_small"} == {"rate_small"}


@pytest.mark.parametrize(("rates", "severity"), [((0.0, 1e-2), "note"), ((1e-6, 0.0), "warn"), ((0.0, 0.0), "warn")])
def test_a_group_at_rest_is_a_note_where_the_others_learn(rates: tuple[float, float], severity: str) -> None:
    """It may be what was trained before; where the loss stands still, or all groups are at rest, it is not meant."""

    def groups(model: nn.Module) -> Optimizer:
        parts = [{"params": part.parameters(), "lr": rate} for part, rate in zip((model[:4], model[4]), rates, strict=True)]  # type: ignore[index]
        return AdamW(parts)

    found = {each.rule: each for each in trained(groups, 110)}
    assert (found["rate_small"].severity, found["update_small"].severity) == (severity, severity)


@pytest.mark.parametrize(
    ("rates", "several", "told"),
    [
        ((1e-8, 1e-2), False, "parameter group 0 (of 2) is 1e-08"),
        ((1e-8, 1e-2), True, "one optimizer is 1e-08"),
        ((1e-5, 1e-2), False, ""),  # as of what was trained before
        ((1e-7, 1e-5), False, ""),
    ],
)
def test_a_rate_that_is_far_below_that_of_others_is_the_root_of_steps_that_are_lost(
    rates: tuple[float, float], several: bool, told: str
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    parts = [{"params": part.parameters(), "lr": rate} for part, rate in zip((model[0], model[2]), rates, strict=True)]
    optimizers = [AdamW([part]) for part in parts] if several else [AdamW(parts)]
    with sonde.watch(model, optimizers, every=1, to="memory", verbose=False) as inspector:
        for _ in range(60):
            x = torch.randn(32, 8)
            loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
            for each in optimizers:
                each.zero_grad()
            loss.backward()
            for each in optimizers:
                each.step()
            inspector.push_loss(loss, train=True)
    found = {each.rule: each for each in inspector.findings}
    assert ("rate_small" in found) is bool(told)
    if told:
        root = found["rate_small"]
        assert f"the learning rate of {told}, and that of another 0.01" in root.message
        assert root.places == ("0.weight", "0.bias")
        assert found["update_small"].follows == "rate_small"
    assert not {"rate_small", "decay_large"} & inspector.run.record.not_judged.keys()  # which need a rate, of whatever group
