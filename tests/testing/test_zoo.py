"""Every check and instrument over every model of the zoo, and the table of recorded events."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import bounds
from torch import Tensor, nn

import sonde
from sonde.engine import structure
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
    same_bits,
    zoo_report,
)

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
    return sonde.watch(model, every=1, to="memory", verbose=False, strict=True, evaluation=True)


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
    events: list[sonde.types.Event] = []
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
