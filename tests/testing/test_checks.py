"""Each check of ``sonde.testing`` fails where it should: it finds the fault and names the place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.torch_words import words_of
from torch import Tensor, nn

import sonde
from sonde.engine import Coverage, Covered
from sonde.errors import ArgumentError
from sonde.keep import Tracker
from sonde.testing import (
    assert_complete,
    assert_healthy,
    assert_no_hooks_left,
    assert_undisturbed,
    complete,
    mean_square,
    same_bits,
)
from sonde.testing.zoo import Net

# Observing that disturbs


@contextmanager
def hooked(model: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module in model.modules()]
    yield
    for handle in handles:
        handle.remove()


@contextmanager
def leaves_a_hook(model: nn.Module) -> Iterator[None]:
    model.register_forward_hook(lambda *_: None)
    yield


@contextmanager
def hangs_something_on(model: nn.Module) -> Iterator[None]:
    model.observed = True  # type: ignore[assignment]
    yield


@contextmanager
def switches_to_evaluation(model: nn.Module) -> Iterator[None]:
    yield
    model[1].eval()  # type: ignore[index]


@contextmanager
def leaves_a_gradient(model: nn.Module) -> Iterator[None]:
    yield
    next(model.parameters()).grad.mul_(1 + 1e-6)  # type: ignore[union-attr]


@contextmanager
def counts_a_batch(model: nn.Module) -> Iterator[None]:
    yield
    model[1].num_batches_tracked += 1  # type: ignore[index, operator]


@contextmanager
def raises(model: nn.Module) -> Iterator[None]:
    raise RuntimeError("cannot observe this")
    yield


DISTURBANCES: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "value": (lambda model: hooked(model, lambda module, args, out: out * (1 + 1e-6)), r"output: \d+ of 6 elements, first at"),
    "graph": (lambda model: hooked(model, lambda module, args, out: out.view_as(out)), r"nodes of the graph: .*ViewBackward"),
    "chance": (lambda model: hooked(model, lambda *_: torch.rand(1) and None), "random state, torch on cpu"),
    "detached": (lambda model: hooked(model, lambda module, args, out: out.detach()), "output, needs a gradient"),
    "hook": (leaves_a_hook, r"hooks of \(root\)"),
    "attribute": (hangs_something_on, r"attributes of \(root\)"),
    "flag": (switches_to_evaluation, "training flag of 1: True and False"),
    "gradient": (leaves_a_gradient, r"gradient of 0\.weight: \d+ of 12 elements"),
    "buffer": (counts_a_batch, r"state_dict 1\.num_batches_tracked: 2 and 3"),
    "error": (raises, "model raised RuntimeError: cannot observe this"),
}


def normalised() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


@pytest.mark.parametrize("kind", DISTURBANCES)
def test_a_disturbance_is_found_and_named(kind: str) -> None:
    """Whatever a probe changes is reported with the probe's name and the place."""
    probe, message = DISTURBANCES[kind]
    with pytest.raises(AssertionError, match=message) as raised:
        assert_undisturbed(normalised(), torch.randn(2, 4), probes={"a bad one": probe})
    assert "'a bad one'" in str(raised.value)


def test_a_model_that_is_not_steady_is_told_from_a_disturbance() -> None:
    """A model that gives other results each time is named as the cause, not the probe."""
    calls: list[int] = []

    def forward(net: Any, x: Tensor) -> Tensor:
        calls.append(1)
        return x * len(calls)

    with pytest.raises(AssertionError, match="gives other results when it is run again unobserved"):
        assert_undisturbed(Net(forward), torch.ones(2))


def test_the_checks_leave_model_arguments_and_chance_alone() -> None:
    """They work on copies: no gradient, no batch statistic, no random number of the caller's is touched."""
    model, x = normalised(), torch.randn(5, 4, requires_grad=True)
    state = copy.deepcopy(model.state_dict())
    chance = torch.get_rng_state()
    assert_undisturbed(model, x)
    assert_complete(model, x)
    assert_healthy(model, x, lambda output: output.pow(3).mean())
    assert torch.equal(torch.get_rng_state(), chance)
    assert x.grad is None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(held, state[key]) for key, held in model.state_dict().items())


@pytest.mark.parametrize("check", [assert_undisturbed, assert_complete, assert_healthy])
def test_the_models_own_error_comes_through(check: Callable[..., None]) -> None:
    """A batch that the model refuses raises what the model raises."""
    with pytest.raises(RuntimeError, match=words_of(lambda: nn.Linear(4, 3)(torch.ones(2, 5)))):
        check(nn.Linear(4, 3), torch.ones(2, 5))


class Uncopied(nn.Linear):
    """A layer that cannot be deep-copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("there is one only")


@pytest.mark.parametrize("check", [assert_undisturbed, assert_complete, assert_healthy])
def test_a_model_that_cannot_be_copied_needs_a_factory(check: Callable[..., None]) -> None:
    """The error says so, and with a factory the check runs."""

    def factory() -> nn.Module:
        torch.manual_seed(0)
        return Uncopied(4, 3)

    with pytest.raises(ArgumentError, match=r"Uncopied cannot be deep-copied \(TypeError: there is one only\).*give factory="):
        check(factory(), torch.ones(2, 4))
    check(factory(), torch.ones(2, 4), factory=factory)


# Recording that is not complete


def tampered(change: Callable[[list[Any]], object]) -> Callable[[Tracker], list[Any]]:
    """In place of what reads a tracker: the same, with *change* made to the records."""
    honest = complete._kept

    def kept(tracker: Tracker) -> list[Any]:
        records = list(honest(tracker))
        change(records)
        return records

    return kept


def set_on(place: int, **values: Any) -> Callable[[list[Any]], object]:
    return lambda records: [setattr(records[place], name, value) for name, value in values.items()]


LIES: dict[str, tuple[Callable[[list[Any]], object], str]] = {
    "lost": (lambda records: records.pop(1), r"1:output, call 0: 1 x not delivered"),
    "twice": (lambda records: records.insert(1, copy.copy(records[0])), r"0:output, call 0: delivered 1 x too often"),
    "order": (lambda records: records.insert(0, records.pop(1)), r"order: delivery 0 is 1:output, call 0"),
    "call": (set_on(0, call=1), r"0:output, call 1: delivered 1 x too often"),
    "phase": (set_on(0, phase="recompute"), r"0:output, call 0 \(recomputed\): delivered"),
    "value": (set_on(0, leaves={"": torch.zeros(2, 3)}), r"0:output, call 0, leaf \(itself\): 6 of 6 elements"),
    "leaf": (set_on(0, leaves={"[0]": torch.zeros(2, 3)}), r"0:output, call 0: leaves \['\[0\]'\], expected \[''\]"),
    "flag": (set_on(0, passthrough=True), r"0:output, call 0: passthrough is True, expected False"),
    "forward": (set_on(0, forward=1), r"0:output, call 0: of forward 1"),
    "gradient lost": (lambda records: records.pop(), r"0:grad_output, call 0: 0 delivered, 1 expected"),
    "gradient twice": (lambda records: records.append(records[-1]), r"0:grad_output, call 0: 2 delivered, 1 expected"),
    "gradient": (set_on(-1, leaves={"": torch.zeros(2, 3)}), r"0:grad_output, call 0, leaf \(itself\)"),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_is_not_right_in_a_recording_is_found(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that is lost, doubled, misplaced, misnumbered or wrong is reported with its site and call."""
    change, message = LIES[lie]
    monkeypatch.setattr(complete, "_kept", tampered(change))
    with pytest.raises(AssertionError, match=message):
        assert_complete(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.ones(2, 4))


@pytest.mark.filterwarnings("ignore:what was kept at:sonde.errors.ObservationWarning")  # said as well when it is read
def test_a_kept_reference_that_goes_stale_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeping the tensor itself in place of a copy is caught where the next layer writes into it."""

    def track_references(model: nn.Module, **how: Any) -> Tracker:
        return sonde.track(model, stash_value=Tensor.detach, **how)

    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True))
    assert_complete(model, torch.ones(2, 4))
    monkeypatch.setattr(complete, "track", track_references)
    with pytest.raises(sonde.errors.StaleTensorError, match="kept at 0:output is no copy"):
        assert_complete(model, torch.ones(2, 4))


def test_a_silent_site_without_a_reason_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coverage must say why, and must count what was delivered."""

    def silent(tracker: Tracker) -> Coverage:
        return Coverage([Covered(site, 0, "") for site in tracker.sites], attached=False)

    monkeypatch.setattr(Tracker, "coverage", silent)
    with pytest.raises(
        AssertionError, match=r"(?s)\(root\):output counts 0 events of 1.*delivered nothing, and no reason is given"
    ):
        assert_complete(nn.Linear(4, 3), torch.ones(2, 4))


def test_a_selection_is_compared_alone() -> None:
    """With ``include``, only the selected modules are asked for."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    assert_complete(model, torch.ones(2, 4), include=nn.Tanh)
    with pytest.raises(sonde.errors.SelectionError):
        assert_complete(model, torch.ones(2, 4), include="nowhere")


# Hooks and health


def test_a_left_hook_is_found_and_named() -> None:
    """Hooks of sonde on modules and parameters are named until they are gone; those of others are not looked at."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    model.register_forward_hook(lambda *_: None)
    assert_no_hooks_left(model)
    probe = sonde.observe(model, print, "^0", ports=("output", "grad"))
    with pytest.raises(AssertionError, match=r"(?s)0: forward_hooks: OutputEventHook.*0\.weight: post_accumulate_grad_hooks: Weak"):
        assert_no_hooks_left(model)
    probe.detach()
    assert_no_hooks_left(model)


def ill(change: Callable[[Any], object]) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        change(model)
    return model


ILLNESSES: dict[str, tuple[Callable[[Any], object], str]] = {
    "NaN": (lambda model: model[0].bias[0].fill_(torch.nan), r"0 \(Linear\): not finite: 8 NaN"),
    "infinity": (lambda model: model[2].bias[1].fill_(torch.inf), r"2 \(Linear\): not finite: 8 inf"),
    "dead": (lambda model: model[0].bias.fill_(-100), r"1 \(ReLU\): 100 % dead"),
    "no signal": (
        lambda model: model[2].weight.zero_(),
        r"(?s)0 \(Linear\): gradient is zero.*0\.weight: gradient is zero",
    ),
}


@pytest.mark.parametrize("illness", ILLNESSES)
def test_an_illness_is_found_and_its_layer_named(illness: str) -> None:
    """NaN, infinities, dead layers and gradients that are zero are reported by layer."""
    change, message = ILLNESSES[illness]
    x = torch.randn(8, 4)
    assert_healthy(ill(lambda model: None), x, mean_square)
    with pytest.raises(AssertionError, match=message):
        assert_healthy(ill(change), x, mean_square)


def test_a_gradient_that_is_not_finite_is_found_where_the_output_is() -> None:
    """The square root of zero is finite, its gradient is not."""
    model = Net(lambda net, x: net.lin(x).sub(net.lin(x)).abs().sqrt(), lin=nn.Linear(4, 3))
    with pytest.raises(AssertionError, match=r"lin\.weight: gradient not finite: \d+ NaN"):
        assert_healthy(model, torch.ones(2, 4), lambda output: output.sum())


def test_the_loss_is_among_what_must_be_finite() -> None:
    """A loss that is not finite is reported, however healthy the layers."""
    with pytest.raises(AssertionError, match="the loss is inf"):
        assert_healthy(nn.Linear(4, 3), torch.ones(2, 4), lambda output: (output.square().sum() * 0 + 1) / 0)


def test_a_batch_can_be_positions_names_or_one_thing() -> None:
    """A tuple or list is positional arguments, a dict keyword arguments, anything else the only argument."""
    model = nn.Bilinear(4, 3, 2)
    assert_healthy(model, (torch.ones(2, 4), torch.ones(2, 3)))
    assert_healthy(model, [torch.ones(2, 4), torch.ones(2, 3)])
    assert_healthy(model, {"input1": torch.ones(2, 4), "input2": torch.ones(2, 3)})
    assert_healthy(nn.Linear(4, 2), torch.ones(2, 4))


# Bits


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, -torch.nan]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (torch.tensor([1.0]), torch.tensor([1.0, 1.0]), False),
        (torch.tensor([1.0]), nn.Parameter(torch.tensor([1.0])), True),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 2j]), True),
        (torch.tensor([1 + 2j]), torch.tensor([1 - 2j]).conj(), True),
        (torch.tensor([1 + 2j]), torch.tensor([1 - 2j]), False),
        (torch.tensor([0.0, 1.0]).to_sparse(), torch.tensor([0.0, 1.0]).to_sparse(), True),
        (torch.tensor([0.0, 1.0]).to_sparse(), torch.tensor([0.0, 2.0]).to_sparse(), False),
        (torch.tensor([0.0, 1.0]).to_sparse(), torch.tensor([0.0, 1.0]), False),
        (torch.tensor([True]), torch.tensor([True]), True),
        (torch.empty(2, device="meta"), torch.empty(2, device="meta"), True),
        (torch.empty(2, device="meta"), torch.empty(3, device="meta"), False),
        (torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0078125], dtype=torch.bfloat16), False),
    ],
)
def test_tensors_are_compared_by_their_bits(one: Tensor, other: Tensor, equal: bool) -> None:
    """Any NaN is the same as any other; signs of zero, dtypes, shapes and layouts count."""
    assert same_bits(one, other) is equal
