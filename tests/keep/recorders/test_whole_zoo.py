"""All recorders over the zoo of small models: nothing is disturbed, and what is kept is what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import sonde
from sonde.engine import structure
from sonde.recorders import BackwardInput, BackwardOutput, ForwardInput, ForwardOutput, ForwardPre, Recorder, open_recorded
from sonde.recorders.reductions import Last
from sonde.testing import ZOO, Entry, assert_undisturbed, same_bits

KINDS = [ForwardPre, ForwardInput, ForwardOutput, BackwardInput, BackwardOutput]

every_entry = pytest.mark.parametrize("entry", ZOO.values(), ids=str)


def run(entry: Entry, model: nn.Module) -> None:
    """One forward and backward pass."""
    args, kwargs = entry.batch()
    output = model(*args, **kwargs)
    if entry.loss is not None:
        entry.loss(output).backward()


def unwrapped(gradients: tuple[Any, ...]) -> Any:
    return gradients[0] if len(gradients) == 1 else gradients


def tensors(value: Any) -> list[Tensor]:
    return [tensor for _, tensor in structure.walk(value)]


@every_entry
def test_what_is_kept_is_what_track_keeps(entry: Entry) -> None:
    """Outputs and their gradients, module by module and call by call, whole and with the same bits."""
    model = entry.build()
    with (
        sonde.track(model, strict=True) as tracker,
        ForwardOutput(strict=True).modules(model) as outputs,
        BackwardOutput(strict=True).modules(model) as gradients,
        ForwardOutput(reduction=Last(), strict=True).modules(model) as last,
    ):
        run(entry, model)
    for recorder, grad in ((outputs, False), (gradients, True)):
        for slot in recorder.subrecorders:
            stashes = [s for s in tracker if s.name == slot.name and s.grad is grad and s.phase != "recompute"]
            expected = [unwrapped(stash.value) if grad else stash.value for stash in stashes]
            assert slot.samples == len(expected)
            for one, other in zip(recorder[slot.index], expected, strict=True):
                assert type(one) is type(other)
                assert len(tensors(one)) == len(tensors(other))
                assert all(map(same_bits, tensors(one), tensors(other)))
    for value, values in zip(last, outputs, strict=True):
        assert all(map(same_bits, tensors(value), tensors(values[-1] if values else None)))


@every_entry
def test_everything_can_be_saved_shown_and_restored(entry: Entry, tmp_path: Path) -> None:
    """Whatever modules take and return."""
    model = entry.build()
    kinds = KINDS if entry.name != "nested_jagged" else KINDS[:3]  # torch has no alias of such a tensor, by which to tell its uses
    recorders: list[Recorder] = [kind(strict=True).modules(model) for kind in kinds]
    run(entry, model)
    for recorder in recorders:
        recorder.detach()
        recorded = open_recorded(recorder.save(tmp_path / type(recorder).__name__, mkdir=True))
        assert list(recorded.iter_samples()) == list(recorder.iter_samples())
        assert len(recorded[:]) == len(recorder) == len(repr(recorder).splitlines()) - 3
        recorder.load_state_dict(recorder.state_dict())


UNDISTURBING = {
    kind.__name__: lambda model, kind=kind: kind(strict=True).modules(model) for kind in KINDS if kind is not BackwardInput
}


@pytest.mark.parametrize("entry", [entry for entry in ZOO.values() if entry.name != "transformer_fused"], ids=str)
def test_recording_changes_nothing(entry: Entry) -> None:
    """Outputs, gradients, buffers, flags and random states have the same bits; ``BackwardInput``, which adds a node, apart."""
    args, kwargs = entry.batch()
    assert_undisturbed(entry.build(), *args, loss_fn=entry.loss, probes=UNDISTURBING, **kwargs)
