"""In a model with tensors that are no plain memory, as quantised weights, a bad step is found, kept without them, and run again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from tests.inspector.sentinel.delayed import device
from tests.inspector.sentinel.faults import BAD, Planted, train, watched
from tests.inspector.sentinel.test_planted_faults import log_of_negative
from tests.stats.subclasses import Counted, Marked, Opaque, Packed, Uncopied, quantised
from torch import Tensor, nn

import sonde
from sonde.errors import ObservationWarning, UnknownSiteError
from sonde.inspector.sentinel.kept_step import read_step

X = torch.tensor([[0.5, -1.0], [2.0, 0.0]])
OF_TORCH: dict[str, Callable[[], Tensor]] = {
    "quantised": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([X, X[:1]]),
    "ragged": lambda: torch.nested.nested_tensor([X, X[:1]], layout=torch.jagged),
    "sparse": X.to_sparse,
    "compressed": X.to_sparse_csr,
    "onednn": X.to_mkldnn,
    "bits": lambda: torch.zeros(2, 2, dtype=torch.uint8).view(torch.bits8),
    "opaque": lambda: Opaque(X),
    "masked": lambda: torch.masked.masked_tensor(X, X > 0),
}


def with_buffers(model: Planted) -> None:
    for name, make in OF_TORCH.items():
        model.before.register_buffer(name, make())


def with_parameters(model: Planted) -> None:
    for name, make in OF_TORCH.items():
        if name != "onednn":
            model.before.register_parameter(name, nn.Parameter(make(), requires_grad=False))


def as_weight(make: Callable[[Tensor], Tensor], *, frozen: bool = True) -> Callable[[Planted], None]:
    def put(model: Planted) -> None:
        made = make(model.before.weight.detach())
        model.before.weight = made if isinstance(made, nn.Parameter) else nn.Parameter(made, requires_grad=not frozen)

    return put


KINDS: dict[str, tuple[Callable[[Planted], None], set[str]]] = {
    "buffers": (with_buffers, {f"before.{name}" for name in OF_TORCH}),
    "parameters": (with_parameters, {f"before.{name}" for name in OF_TORCH if name != "onednn"}),
    "a weight in 8 bits": (as_weight(quantised), {"before.weight"}),
    "a wrapped weight": (as_weight(Counted), {"before.weight"}),
    "a weight of a subclass": (as_weight(lambda weight: weight.as_subclass(Marked)), set()),
    "a weight without view": (as_weight(Packed), set()),
    "a wrapped weight that is trained": (as_weight(Counted, frozen=False), {"before.weight"}),
    "a weight of a subclass that is trained": (as_weight(lambda weight: weight.as_subclass(Marked), frozen=False), set()),
}


def built(kind: str) -> Planted:
    torch.manual_seed(0)
    model = Planted(log_of_negative)
    KINDS[kind][0](model)
    return model


@pytest.mark.filterwarnings("ignore")  # torch's, about prototypes and what it will remove
@pytest.mark.parametrize("delay", [None, 1], ids=["at once", "later"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_step_is_found_kept_and_run_again(
    kind: str, delay: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no plain memory is left out by name; all else is kept, and nothing else is said."""
    left_out = KINDS[kind][1]
    model = built(kind)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    with ExitStack() as stack:
        far = None if delay is None else stack.enter_context(device(monkeypatch, delay))
        heard = stack.enter_context(pytest.warns(ObservationWarning, match="step 4: "))
        inspector = stack.enter_context(watched(model, optimizer, tmp_path / "run", rules=False))
        train(model, optimizer, range(BAD - 4, BAD + 2))
        if far is not None:
            far.may_wait = True
    assert not [text for each in heard if ("given up" in (text := str(each.message)) or "is left out of" in text)]
    assert not inspector.errors
    found = inspector.findings[0]
    assert (found.rule, found.step) == ("nonfinite", 4)
    folder = tmp_path / "run" / "nonfinite" / "step-00000004"
    kept = read_step(folder)
    assert set(kept.left_out) == left_out
    assert all(any(kind in note for note in kept.notes) for kind in list(kept.left_out.values())[:3])
    assert {*kept.parameters, *kept.buffers, *kept.left_out} == {
        *(name for name, _ in model.named_parameters()),
        *(name for name, _ in model.named_buffers()),
    }
    assert "log" in str(sonde.replay(folder, built(kind)).operation)
    if kept.lost:  # a trained weight that cannot be copied on its device
        assert "trained" in kind
        assert "not kept" in found.message
    else:
        assert found.site == "fault:output"


def test_no_norm_of_updates_lacks_a_parameter() -> None:
    """Where one that was stepped could not be copied before, there is none; that of the parameters holds both."""
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(Uncopied(torch.ones(2, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, bad_steps=None) as inspector:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert inspector.run.scalar("param_norm")[1] == pytest.approx(
        [float(torch.cat([p.detach().flatten() for p in model.parameters()]).norm())]
    )
    with pytest.raises(UnknownSiteError, match="update_norm"):
        inspector.run.scalar("update_norm")
