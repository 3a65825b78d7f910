"""Every check over every model of the zoo, the table of what is recorded, and the checks' own ability to fail."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import bounds
from torch import Tensor, nn

import sonde
from sonde.engine import Coverage, Covered, structure
from sonde.errors import ArgumentError
from sonde.keep import Tracker
from sonde.recorders import BackwardInput, BackwardOutput, ForwardInput, ForwardOutput, ForwardPre, Recorder, open_recorded
from sonde.recorders.reductions import Last
from sonde.stats import Moments
from sonde.testing import (
    PROBES,
    ZOO,
    Entry,
    MakeProbe,
    assert_complete,
    assert_healthy,
    assert_no_hooks_left,
    assert_undisturbed,
    complete,
    mean_square,
    same_bits,
    zoo_report,
)
from sonde.testing.zoo import Net

UNHEALTHY = {"empty_batch", "not_finite"}  # by intent

RECORDERS = [ForwardPre, ForwardInput, ForwardOutput, BackwardOutput, BackwardInput]

every_entry = pytest.mark.parametrize("entry", ZOO.values(), ids=str)


def run(entry: Entry, model: nn.Module) -> None:
    """One forward and backward pass."""
    args, kwargs = entry.batch()
    output = model(*args, **kwargs)
    if entry.loss is not None:
        entry.loss(output).backward()
    elif isinstance(output, Iterator):
        list(output)


# The zoo is walked once for each property: what the instruments have in common is asked of all of them in one pass


def tracked_modules(model: nn.Module) -> sonde.ModuleTracker:
    ignore = dict.fromkeys(("enter", "leave", "enter_backward", "leave_backward"), lambda call: None)
    return sonde.ModuleTracker(model, **ignore, strict=True)


def watched(model: nn.Module) -> sonde.Inspector:
    return sonde.watch(model, every=1, to="memory", quiet=True, strict=True, evaluation=True)


INSTRUMENTS: dict[str, MakeProbe] = {
    **PROBES,
    **{
        kind.__name__: lambda model, kind=kind: kind(strict=True).modules(model)  # type: ignore[misc]
        for kind in RECORDERS
        if kind is not BackwardInput  # which adds a node to the graph
    },
    "watch": watched,
    "ModuleTracker": tracked_modules,
}


@every_entry
def test_observing_changes_nothing(entry: Entry) -> None:
    """Under every instrument, outputs, gradients, buffers, flags, hooks and random states have the same bits."""
    args, kwargs = entry.batch()
    # torch itself leaves its fused path where a layer has hooks; the next test holds what sonde says then
    instruments = INSTRUMENTS if entry.name != "transformer_fused" else {"ModuleTracker": tracked_modules}
    assert_undisturbed(entry.build(), *args, loss_fn=entry.loss, probes=instruments, **kwargs)


def test_the_fused_path_that_torch_leaves_when_observed_is_said() -> None:
    """The one model whose last bits change: torch itself takes another path when a layer has hooks, and coverage says so."""
    entry = ZOO["transformer_fused"]
    args, kwargs = entry.batch()
    model = entry.build()
    with torch.no_grad():
        alone = model(*args, **kwargs)
        with sonde.track(model, strict=True) as tracker:
            observed = model(*args, **kwargs)
    deep = 8 + 4 + 5 + 8 + 8 + 16 + 20  # terms of the six products one after the other; softmax, two normalisations
    torch.testing.assert_close(observed, alone, rtol=0, atol=bounds.relative(deep, torch.float32) * alone.abs().max().item())
    assert not torch.equal(observed, alone)
    assert any("fused path" in line.reason for line in tracker.coverage() if line.site.path == "")
    model.train()
    assert not any("fused path" in line.reason for line in tracker.coverage())


@every_entry
def test_nothing_is_missed(entry: Entry) -> None:
    """What is kept equals what plain hooks see, call by call, and the coverage gives a reason for the rest."""
    args, kwargs = entry.batch()
    assert_complete(entry.build(), *args, loss_fn=entry.loss, **kwargs)


def unwrapped(gradients: tuple[Any, ...]) -> Any:
    return gradients[0] if len(gradients) == 1 else gradients


def tensors(value: Any) -> list[Tensor]:
    return [tensor for _, tensor in structure.walk(value)]


@every_entry
def test_what_is_kept_is_the_same_in_all_instruments(entry: Entry, tmp_path: Path) -> None:
    """One pass under ``track``, all recorders and a statistic.

    Recorders keep what ``track`` keeps, module by module and call by call, with the same bits; what was kept is shown, saved
    and read again; and no hook is left.
    """
    model = entry.build()
    kinds = RECORDERS if entry.name != "nested_jagged" else RECORDERS[:3]  # torch has no alias of such a tensor, for its uses
    with (
        sonde.observe(model, Moments(), ports=("output", "grad_output", "grad"), strict=True),
        sonde.track(model, strict=True) as tracker,
        ForwardOutput(reduction=Last(), strict=True).modules(model) as last,
        contextlib.ExitStack() as stack,
    ):
        recorders: dict[type[Recorder], Recorder] = {kind: stack.enter_context(kind(strict=True).modules(model)) for kind in kinds}
        run(entry, model)
    assert_no_hooks_left(model)

    for kind, grad in ((ForwardOutput, False), (BackwardOutput, True)):
        for slot in recorders[kind].subrecorders if kind in recorders else ():
            stashes = [s for s in tracker if s.name == slot.name and s.grad is grad and s.phase != "recompute"]
            expected = [unwrapped(stash.value) if grad else stash.value for stash in stashes]
            assert slot.samples == len(expected)
            for one, other in zip(recorders[kind][slot.index], expected, strict=True):
                assert type(one) is type(other)
                assert len(tensors(one)) == len(tensors(other))
                assert all(map(same_bits, tensors(one), tensors(other)))
    for value, values in zip(last, recorders[ForwardOutput], strict=True):
        assert all(map(same_bits, tensors(value), tensors(values[-1] if values else None)))

    assert len(tracker.to_frame()) == len(tracker) > 0
    assert repr(tracker)
    assert tracker._repr_html_()
    assert repr(tracker.coverage())
    assert len(sonde.open_tensors(tracker.save(tmp_path / "kept")).records) == len(tracker)
    for kind, recorder in recorders.items():
        recorded = open_recorded(recorder.save(tmp_path / kind.__name__, mkdir=True))
        assert list(recorded.iter_samples()) == list(recorder.iter_samples())
        assert len(recorded[:]) == len(recorder) == len(repr(recorder).splitlines()) - 3
        recorder.load_state_dict(recorder.state_dict())


@every_entry
def test_health(entry: Entry) -> None:
    """All models of the zoo are healthy but those that are there to be ill."""
    args, kwargs = entry.batch()
    if entry.name not in UNHEALTHY:
        assert_healthy(entry.build(), args or kwargs, entry.loss)
        return
    with pytest.raises(AssertionError, match="is not healthy"):
        assert_healthy(entry.build(), args or kwargs, entry.loss)


def pickled(model: nn.Module) -> nn.Module:
    """A copy by way of a pickle."""
    twin: nn.Module = pickle.loads(pickle.dumps(model))
    return twin


@pytest.mark.parametrize(
    ("entry", "copied"),
    [
        pytest.param(entry, copied, id=f"{copied.__name__}-{entry}")
        for copied in (copy.deepcopy, pickled)
        for entry in ZOO.values()
        if copied is copy.deepcopy or entry.name != "parametrized"  # which torch refuses to pickle
    ],
)
def test_a_copy_is_not_observed(entry: Entry, copied: Callable[[nn.Module], nn.Module]) -> None:
    """A copy that is made of an observed model runs without delivering anything."""
    model = entry.build()
    events: list[sonde.Event] = []
    with sonde.observe(model, events.append, ports=("output", "grad_output"), strict=True):
        twin = copied(model)
        run(entry, twin)
    assert events == []
    assert_no_hooks_left(twin)


@every_entry
def test_entries_are_the_same_each_time(entry: Entry) -> None:
    """Model and batch are made of the same numbers each time, and draw none of the caller's."""
    before = torch.get_rng_state()
    one, other = entry.build(), entry.build()
    batches = [entry.batch(), entry.batch()]
    assert torch.equal(torch.get_rng_state(), before)
    for here, there in zip(one.parameters(), other.parameters(), strict=True):
        assert nn.parameter.is_lazy(here) or same_bits(here, there)
    tensors = [[held for held in (*args, *kwargs.values()) if isinstance(held, Tensor)] for args, kwargs in batches]
    assert all(same_bits(here, there) for here, there in zip(*tensors, strict=True))
    assert not (batches[0][0] and batches[0][1])  # so that a batch is a tuple or a dict


def test_the_zoo_is_large() -> None:
    """There are more than fifty models, each with a reason of its own to be there."""
    assert len(ZOO) > 50
    assert len({entry.why for entry in ZOO.values()}) == len(ZOO)


def test_the_table_of_what_is_recorded() -> None:
    """One row per model, with counts that can be told from the model's code, and reasons for what is not recorded."""
    grid = zoo_report()
    assert grid.to_text()
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in grid.rows}
    assert list(rows) == list(ZOO)
    assert rows["mlp"] == ["4", "8", "4", "4", "", ""]
    assert rows["called_often"] == ["2", "4", "4", "4", "", ""]
    assert rows["recursive_child"] == ["3", "6", "7", "7", "", ""]
    assert rows["checkpointed_reentrant"][2:5] == ["9", "9", "8"]
    assert rows["gradient_penalty"][2:4] == ["4", "7"]  # three once by autograd.grad, all four by the backward pass
    assert rows["attention"][5].startswith("out_proj:output")
    assert all("no reason given" not in row[5] for row in rows.values())


# The checks can fail: observing that disturbs


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
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
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


# The checks can fail: recording that is not complete


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


# The checks can fail: hooks and health


def test_a_left_hook_is_found_and_named() -> None:
    """Hooks of sonde on modules and parameters are named until they are gone; those of others are not looked at."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    model.register_forward_hook(lambda *_: None)
    assert_no_hooks_left(model)
    probe = sonde.observe(model, print, "^0", ports=("output", "grad"))
    with pytest.raises(
        AssertionError, match=r"(?s)0: forward_hooks: OutputEventHook.*0\.weight: post_accumulate_grad_hooks: _Weak"
    ):
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
