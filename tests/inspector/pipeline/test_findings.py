"""What is found in the last rows: models made ill on purpose, each in one way, and healthy ones in which nothing is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.inspector.pipeline import trainings
from tests.quick import quick
from torch import nn
from torch.optim import SGD, AdamW

import sonde
from sonde import lens
from sonde.inspector import watch
from sonde.rules import Finding
from sonde.run.findings import Findings


def deep(width: int = 16) -> nn.Sequential:
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def found(prepare: Callable[[nn.Sequential], object], *, lr: float = 1e-3, steps: int = 25, spoil: int = -1) -> tuple[Finding, ...]:
    torch.manual_seed(0)
    model = deep()
    prepare(model)
    optimizer = AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    lenses = (lens.moments(), lens.OutputActivation())
    with watch(model, every=1, to="memory", verbose=False, bad_steps=None, lenses=lenses) as inspector:
        for step in range(steps):
            loss = model(torch.randn(32, 16)).square().mean()
            optimizer.zero_grad()
            (loss * float("nan") if step == spoil else loss).backward()
            optimizer.step()
    assert tuple(inspector.run.findings) == inspector.findings
    assert all(each.first_step is not None and each.evidence and each.advice for each in inspector.findings)
    return inspector.findings


def test_nothing_is_found_in_a_healthy_training() -> None:
    """No alarm in a plain network under AdamW."""
    assert [each for each in found(lambda model: None) if each.severity != "note"] == []


def test_a_dead_layer() -> None:
    """A bias that silences it."""
    findings = found(lambda model: nn.init.constant_(model[2].bias, -50.0))
    dead = next(each for each in findings if each.rule == "dead")
    assert (dead.site, dead.value) == ("3:output", 1.0)
    assert dead.message == "3: 100 % dead"


def test_the_first_defect_and_where_it_began() -> None:
    """A NaN in the loss of step 7: the first logged place with one, in order of step and execution."""
    first = found(lambda model: None, spoil=7)[0]
    assert (first.rule, first.step) == ("nonfinite", 7)
    assert "at step 7, the first logged step with any" in first.message
    assert first.site.endswith(("grad_output", "grad", "param", "update"))


def test_a_pushed_loss_that_is_nan_is_found() -> None:
    """Also where no layer was looked at."""
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, every=1, to="memory", verbose=False, bad_steps=None, lenses=lens.ParameterNorm()) as inspector:
        for step in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            inspector.push_loss(float("nan") if step == 1 else 1.0, train=True)
    assert [each.message for each in inspector.findings] == ["loss is nan from step 1 on"]


def test_gradients_that_vanish_towards_the_input() -> None:
    """Each of eight sigmoids has a slope of a quarter at most."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Sigmoid())]
    model = nn.Sequential(*layers, nn.Linear(16, 1))
    optimizer = SGD(model.parameters(), lr=0.01)
    with watch(model, every=1, to="memory", verbose=False) as inspector:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(32, 16)).square().mean().backward()
            optimizer.step()
    (finding,) = (each for each in inspector.findings if each.rule == "gradient_vanishing")
    assert (finding.site, finding.first_step) == ("0.weight:grad", 0)
    assert finding.evidence["first"] * 1e4 <= finding.evidence["last"]


@pytest.mark.parametrize(("lr", "rule"), [(0.2, "update_huge"), (1e-8, "update_small")])
def test_steps_far_from_a_thousandth(lr: float, rule: str) -> None:
    """A learning rate that is too large, and one that is too small."""
    findings = {each.rule: each for each in found(lambda model: None, lr=lr, steps=12)}
    assert rule in findings
    assert findings[rule].site.endswith(".weight:update")
    assert "(also " in findings[rule].message


def test_a_frozen_layer_is_no_finding() -> None:
    """It has neither gradient nor update."""
    assert {each.rule for each in found(lambda model: model[0].requires_grad_(False))} <= {"dead"}


def test_a_gradient_that_is_not_finite_is_blamed_on_the_layer_that_the_backward_pass_meets_first() -> None:
    """The third layer makes a NaN of the gradient, 0 times the infinite slope of a root; the layers before it only pass that on."""

    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 0).sqrt() + x

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), Root(), nn.Linear(4, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        model(torch.randn(16, 4)).sum().backward()
        optimizer.step()
    assert inspector.findings[0].site == "1:grad_output"  # what Root made of the gradient of its own output, which is finite


def test_a_weight_that_is_nan_does_not_stand_still() -> None:
    """Its update has no size, which is not a size of 0."""
    findings = found(lambda model: None, spoil=3)
    assert "nonfinite" in {each.rule for each in findings}
    assert "update_small" not in {each.rule for each in findings}


def test_a_gradient_whose_finite_elements_are_zero_is_not_zero() -> None:
    """An embedding's unused rows get a zero gradient; the used ones get NaN here, and the first finding says so."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = SGD(model.parameters(), lr=0.0)
    with watch(model, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        for step in range(5):
            optimizer.zero_grad()
            (model(torch.tensor([0, 1])).sum() * (1.0 if step == 0 else float("nan"))).backward()
            optimizer.step()
    rules = [finding.rule for finding in inspector.findings]
    assert rules[0] == "nonfinite"
    assert "gradient_zero" not in rules


# The whole history


QUICK = ("mlp, AdamW", "mlp, batches of 2", "gpt, every 10th step", "gpt, warmup and cosine", "resnet, momentum", "lstm, clipped")
QUICK += ("restarts of the learning rate", "from a trained network")


@pytest.mark.parametrize("kind", quick(trainings.HEALTHY, *QUICK))
def test_nothing_is_found_in_healthy_trainings(kind: str) -> None:
    """Fourteen kinds: networks, optimizers, schedules, batches, precisions, beginnings."""
    torch.manual_seed(0)
    inspector = trainings.HEALTHY[kind]()
    assert [each for each in inspector.findings if each.severity != "note"] == []
    assert len(inspector.run.scalar("loss")[0]) >= 8


@pytest.mark.parametrize("every", [1, 10])
def test_a_learning_rate_that_is_too_high_is_found_from_the_first_step_on(every: int) -> None:
    """A step moves weights by four fifths of their size, and the outputs of blocks grow over a hundredfold."""
    torch.manual_seed(0)
    inspector = trainings.gpt_too_fast(every)
    found = {finding.rule: finding for finding in inspector.findings}
    step, growth = found.get("update_large", found.get("update_huge")), found["output_growth"]
    assert step is not None
    assert step.first_step == 0
    assert 0.2 < step.value <= 1
    assert growth.site.startswith("blocks.")
    assert growth.severity == "bad"
    steps, sizes = inspector.run.series(growth.site, "rms")
    assert sizes[steps == growth.first_step] >= 100 > sizes[steps < growth.first_step].max()  # the largest output at first is 1
    assert growth.evidence["size"] == sizes[steps == growth.step][0] == sizes[steps >= growth.first_step][0]


def test_a_burst_of_large_steps_is_found_long_after() -> None:
    """The norm of the update jumps at step 100, the loss does not come back; the last steps are calm."""
    torch.manual_seed(0)
    found = {finding.rule: finding for finding in trainings.burst().findings}
    assert found["spike"].first_step == found["update_large"].first_step == 100
    assert found["spike"].message.startswith("update_norm jumped to ")


def test_gradients_that_grow_are_found_before_clipping() -> None:
    """The loss grows 3-fold in each step; the norm after clipping is 1, and the norm before it 1,000-fold from step 7 on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = SGD(model.parameters(), lr=0.0)
    x, y = torch.randn(16, 8), torch.randn(16, 1)
    with watch(model, optimizer, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        for step in range(12):
            optimizer.zero_grad()
            (3.0**step * 10 * (model(x) - y).square().mean()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    found = {finding.rule: finding for finding in inspector.findings}["gradient_growth"]
    assert (found.first_step, found.step, found.severity) == (7, 7, "bad")
    assert found.value == pytest.approx(3.0**7, rel=1e-5)  # sums of float32
    assert found.message.startswith("grad_norm_raw grew 2,187-fold, to ")
    assert found.message.endswith(" at step 7")


def test_gradients_that_come_back_after_convergence_are_no_growth() -> None:
    """The norm falls to a millionth of its beginning, and then is as large as then."""
    history = Findings()
    for step, value in enumerate((1.0, 1e-3, 1e-6, 1.0, 900.0)):
        history.judge([], [("grad_norm", value, 0, step)])
    assert history.judged() == []
    history.judge([], [("grad_norm", 1000.0, 0, 5)])
    (found,) = history.judged()
    assert (found.rule, found.first_step) == ("gradient_growth", 5)


def test_one_strange_batch_is_found_at_its_step() -> None:
    """All outputs are a thousand times as large at step 40, and then as before: what goes in is named, and not what follows."""
    torch.manual_seed(0)
    (found,) = (each for each in trainings.strange_batch().findings if each.severity != "note")
    assert (found.rule, found.site, found.first_step, found.step) == ("input_large", "0:output", 40, 40)


def test_outputs_that_are_too_large_from_the_beginning() -> None:
    """Each of ten layers makes its input two or three times as large."""
    torch.manual_seed(0)
    inspector = trainings.unscaled()
    (root,) = (each for each in inspector.findings if each.severity != "note")
    assert (root.rule, root.first_step, root.follows) == ("begins_large", 0, "")
    (found,) = (each for each in sonde.check(inspector.run, rules={"begins_large": False}).findings if each.severity != "note")
    assert (found.rule, found.first_step) == ("output_large", 0)
    assert found.site in ("16:output", "18:output")


def test_a_recurrent_network_that_explodes() -> None:
    """Its layer is blamed, not the head that passes the size on."""
    torch.manual_seed(0)
    found = {finding.rule: finding for finding in trainings.exploding_rnn().findings}
    assert found["nonfinite"].site == found["output_growth"].site == "layer:output[0]"
    assert found["output_growth"].first_step is not None
    assert found["output_growth"].first_step <= 1


def test_units_that_die_are_found_with_the_step_at_which_they_died() -> None:
    torch.manual_seed(0)
    found = {finding.rule: finding for finding in trainings.dying().findings if finding.severity == "bad"}
    assert (found["dead"].site, found["dead"].first_step) == ("3:output", 30)
    assert "gradient_zero" not in found  # which follows from it


# Where a NaN began


def spoiled(spoil: Callable[[nn.Sequential, int], object], *, every: int, clip: bool = False, after: bool = False) -> Finding:
    """The first finding of a training in which *spoil* is called before each forward, or after each backward pass."""
    torch.manual_seed(0)
    model = deep()
    optimizer = SGD(model.parameters(), lr=0.01)
    with watch(model, every=every, to="memory", verbose=False, bad_steps=None, lenses=lens.moments()) as inspector:
        for step in range(45):
            if not after:
                spoil(model, step)
            optimizer.zero_grad()
            model(torch.randn(32, 16)).square().mean().backward()
            if after:
                spoil(model, step)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    found: Finding = inspector.findings[0]
    assert found.rule == "nonfinite"
    return found


def nan_in_weight(model: nn.Sequential, step: int, at: int = 37) -> None:
    if step == at:
        with torch.no_grad():
            model[4].weight[0, 0] = float("nan")  # type: ignore[operator, index]  # a Linear


def test_a_fault_between_logged_steps_is_said_to_have_been_there() -> None:
    """At step 37 of 10, 20, 30, 40: at step 40 everything is NaN, and no layer is to blame."""
    found = spoiled(nan_in_weight, every=10)
    assert (found.site, found.first_step) == ("0.weight:param", 40)
    assert (
        "0.weight, 0.bias and 8 more parameters were not finite when step 40 began: it arose between steps 30 and 40"
        in found.message
    )


def test_weights_that_are_nan_from_the_beginning() -> None:
    found = spoiled(lambda model, step: nan_in_weight(model, step, 0), every=10)
    assert (found.site, found.step) == ("4:output", 0)  # it became NaN after the look at the first parameters
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, float("nan"))
    with watch(model, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        model(torch.ones(1, 2)).sum().backward()
        SGD(model.parameters(), 0.1).step()
    assert inspector.findings[0].message.startswith(
        "weight was not finite when step 0 began: it arose before the first logged step"
    )


def test_a_fault_in_a_logged_step_is_said_to_have_arisen_there() -> None:
    """The layer's output is the first, what came before it was finite."""
    found = spoiled(lambda model, step: nan_in_weight(model, step, 40), every=10)
    assert (found.site, found.step) == ("4:output", 40)
    assert "the outputs of the layers before it are finite" in found.message


def test_a_gradient_is_blamed_that_was_not_finite_before_clipping() -> None:
    """Clipping by the norm divides all gradients by NaN."""

    def spoil(model: nn.Sequential, step: int) -> None:
        if step == 0:
            weight = model[4].weight
            weight.register_hook(lambda gradient: gradient * float("nan"))  # type: ignore[operator, union-attr]

    found = spoiled(spoil, every=1, clip=True)
    assert (found.site, found.step) == ("4.weight:grad", 0)


def test_a_gradient_that_is_spoiled_after_the_backward_pass() -> None:
    def spoil(model: nn.Sequential, step: int) -> None:
        if step == 3:
            assert isinstance(model[2].weight.grad, torch.Tensor)
            model[2].weight.grad[0, 0] = float("inf")

    found = spoiled(spoil, every=1, after=True)
    assert (found.site, found.step) == ("2.weight:grad", 3)
    assert "so were the gradients when the backward pass ended" in found.message


def test_a_fault_in_the_backward_pass_of_a_branch() -> None:
    """A skip connection: the branch makes a NaN of its gradient, the layers before the sum get that through the branch alone."""

    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x + self.out((self.into(x) * 0).sqrt())
            return y

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Branch(), Branch(), nn.Linear(4, 1))
    with watch(model, every=1, to="memory", verbose=False, bad_steps=None, include=nn.Linear) as inspector:
        model(torch.randn(16, 4)).sum().backward()
        SGD(model.parameters(), 0.1).step()
    found = inspector.findings[0]
    assert found.site == "2.into:grad_output"  # the last branch runs first in the backward pass
    assert "the gradient at 2.out, next in the backward pass before it, is finite" in found.message


class Log(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.log()


def test_a_compiled_model_is_blamed_at_the_layer_and_not_at_its_root() -> None:
    """In compiled code the order of execution is that of the modules, children first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Log(), nn.Linear(4, 4)), nn.Linear(4, 1))

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.body(x) + 1
            return y

    whole = torch.compile(Root(), backend="eager")
    with watch(whole, every=1, to="memory", verbose=False, bad_steps=None) as inspector:  # type: ignore[arg-type]  # a function to the type checker
        whole(torch.randn(8, 4)).sum().backward()
        SGD(model.parameters(), 0.1).step()
    assert inspector.findings[0].site == "body.1.0:output"
    assert "it arose here" in inspector.findings[0].message
