"""The closing lines say where the run is, what was lost, what was found, what failed, and what it cost."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.inspector.training import small, train
from torch import Tensor, nn

from sonde import lens
from sonde.engine import ProbeError
from sonde.errors import ObservationWarning
from sonde.inspector import Inspector, Rows, Sink, watch
from sonde.inspector.report import closing_lines
from sonde.run.store.writer_thread import WriterThread
from sonde.stats import Field, Statistic
from sonde.stats.statistic import Column

ERRORS = [ProbeError.of("Kept", None, OSError("no room")), ProbeError.of("moments", None, ValueError("odd"))]


@pytest.mark.parametrize(
    ("steps", "lost", "errors", "overhead", "expected"),
    [
        ((5, 10), (0, 0), [], 0.012, ["5 of 10 steps logged", "no findings", "overhead 1.2 %"]),
        (
            (5, 10),
            (2, 1300),
            ERRORS,
            0.5,
            ["logged · 2 of these lost · 1,300 rows lost", "no findings · 2 errors, in .errors: Kept: OSError", "50.0 %"],
        ),
        ((9, 9), (0, 0), ERRORS[:1], None, ["9 of 9", "no findings · 1 error, in .errors: Kept: OSError", "every step is logged"]),
        ((0, 0), (0, 0), [], None, ["0 of 0", "no findings", "too few steps"]),
    ],
)
def test_three_lines(
    steps: tuple[int, int], lost: tuple[int, int], errors: list[ProbeError], overhead: float | None, expected: list[str]
) -> None:
    """Nothing that was lost or failed is left out."""
    lines = closing_lines(Path("runs/x"), steps, lost, [], errors, overhead)
    assert len(lines) == 3
    for line, part in zip(lines, expected, strict=True):
        assert part in line


def test_what_ended_early_is_named() -> None:
    lines = closing_lines(None, (5, 10), (0, 0), [], ERRORS[1:], None, ended=["moments"])
    assert lines[1] == "no findings · after an error nothing more of moments · 1 error, in .errors: moments: ValueError"
    lines = closing_lines(None, (5, 10), (0, 0), [], ERRORS[1:], None, ended=["moments"], is_empty=True)
    assert lines[1].startswith("nothing to judge: no lens has recorded anything · after an error nothing more of moments")


# In a training


@dataclass(frozen=True)
class Odd(Statistic):
    """Raises in one of its parts."""

    part: str = "measure"
    fields: ClassVar[tuple[Field, ...]] = (Field("ones"),)

    def measure(self, tensor: Tensor) -> Tensor:
        if self.part == "measure":
            raise ValueError("odd")
        return torch.ones(1, dtype=torch.float64)

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        raise ValueError("odd")


class Full(Sink):
    def write(self, rows: Rows) -> None:
        raise OSError("no room")


def last_lines(capsys: pytest.CaptureFixture[str], **settings: Any) -> tuple[str, Inspector]:
    model, optimizer = small()
    with pytest.warns(ObservationWarning), watch(model, optimizer, every=2, **settings) as inspector:
        train(model, optimizer, 6)
    return capsys.readouterr().out.splitlines()[1], inspector


@pytest.mark.parametrize("part", ["measure", "finish"])
def test_if_the_only_lens_fails_nothing_was_judged(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    line, inspector = last_lines(capsys, lenses=lens.Lens("odd", Odd(part), ("output",)), to="memory")
    errors = (
        len(list(inspector.coverage())) if part == "measure" else 1
    )  # each site stops by itself; all rows are finished together
    assert line.startswith(f"nothing to judge: no lens has recorded anything · after an error nothing more of odd · {errors} error")
    assert len(inspector.errors) == errors
    assert all("ValueError: odd" in covered.reason for covered in inspector.coverage())


def test_a_sink_that_raised_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    line, inspector = last_lines(capsys, to=Full())
    assert line == "no findings · after an error nothing more of Full · 1 error, in .errors: Full: OSError"
    assert isinstance(inspector.errors[0].error, OSError)


def test_a_forgotten_train_is_said_at_the_second_step_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of outputs stop when the evaluation mode is left on; the finding says since when."""
    model, optimizer = small()
    with watch(model, optimizer, every=2, to="memory") as inspector:
        train(model, optimizer, 4)
        model.eval()
        train(model, optimizer, 2)
        with pytest.warns(
            ObservationWarning, match=r"the steps 4 and 6 had no forward pass in training mode: is the model in eval"
        ):
            train(model, optimizer, 4)
    (found,) = inspector.findings
    assert (found.rule, found.severity, found.first_step) == ("no_training_forward", "bad", 4)
    assert found.message == "2 of 5 logged steps had a training forward: is the model in eval()? The first without: step 4."
    assert found.message in capsys.readouterr().out
    assert inspector.run.findings[0].message == found.message


@pytest.mark.parametrize(
    ("layer", "forgets", "every", "with_gradients", "told"),
    [
        (nn.Dropout(0.5), True, 1, False, "1 (Dropout)"),
        (nn.BatchNorm1d(4), True, 5, True, "1 (BatchNorm1d)"),  # also between logged steps
        (nn.Dropout(0.5), False, 1, False, ""),
        (nn.Dropout(0.0), True, 1, False, ""),
        (nn.LayerNorm(4), True, 1, False, ""),
    ],
)
def test_validation_losses_of_passes_in_training_mode_are_told(
    layer: nn.Module, forgets: bool, every: int, with_gradients: bool, told: str
) -> None:
    """Of a model whose layers act otherwise then; those of another model are none of its passes."""
    model = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, every=every, to="memory", verbose=False) as inspector:
        for evaluated in (model, model[0], model, model):
            train(model, optimizer, 3)
            model.train(forgets)
            with torch.set_grad_enabled(with_gradients):
                loss = evaluated(torch.randn(8, 4)).square().mean()
            model.train()
            inspector.push_loss(loss.detach(), train=False)
        train(model, optimizer, 1)
    found = [each.message for each in inspector.findings if each.rule == "eval_mode"]
    message = f"validation losses come from passes in training mode, in which {told} acts as in training"
    assert found == ([message] if told else [])


def test_an_evaluation_inside_the_root_has_rows_of_its_step() -> None:
    """As of ``ddp.module(x)``, which does not call the root."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = {"every": 2, "lenses": lens.moments(), "to": "memory", "verbose": False}
    with watch(model, optimizer, evaluation=True, calls="joined", **said) as inspector:
        for step in range(3):
            train(model, optimizer, 1)
            model.eval()
            with torch.no_grad():
                model[0](torch.randn(5 + step, 4))
                model[0](torch.randn(1, 4))
            model.train()
    for site in ("0.0:output", "0.1:output"):
        steps, counts = inspector.run.series(site, "count", family="moments_eval")
        assert steps.tolist() == [0, 1, 2]
        assert counts.tolist() == [3 * (6 + step) for step in range(3)]


def test_evaluation_between_steps_is_no_finding() -> None:
    """With gradients or without, and whole evaluation epochs."""
    model, optimizer = small()
    with watch(model, optimizer, every=1, to="memory", verbose=False, evaluation=True) as inspector:
        for _ in range(4):
            train(model, optimizer, 2)
            model.eval()
            model(torch.randn(3, 4)).sum().backward()
            with torch.no_grad():
                model(torch.randn(3, 4))
            model.train()
    assert inspector.findings == ()


def test_coverage_is_in_the_run_while_the_training_goes_on_and_no_step_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the writer thread finishes may have to wait for other ranks."""
    model, optimizer = small()
    with watch(model, optimizer, every=1, to=tmp_path / "run", verbose=False) as inspector:
        waits: list[str] = []
        monkeypatch.setattr(WriterThread, "call", lambda thread, request, **_: waits.append(str(request)))
        for _ in range(200):
            train(model, optimizer, 1)
            if (tmp_path / "run" / "coverage.json").exists():
                break
            time.sleep(0.05)
        monkeypatch.undo()
        written = json.loads((tmp_path / "run" / "coverage.json").read_text())
    assert waits == []
    assert written["observed"] == written["sites"] > 0
    assert {name: written[name] for name in inspector.run.coverage} == inspector.run.coverage


def test_in_a_notebook_an_inspector_shows_findings_with_advice_and_the_run() -> None:
    """At any time: the same facts as in the closing lines, and what to do about each finding."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nn.init.constant_(model[0].bias, -100.0)
    with watch(model, every=1, to="memory", verbose=False) as inspector:
        for _ in range(30):
            model(torch.randn(16, 4)).sum().backward()
            inspector.step()
        live = inspector._repr_html_()
    ended = inspector._repr_html_()
    assert "Inspector(attached, in memory)" in live
    assert "Inspector(detached, in memory)" in ended
    for shown in (live, ended):
        assert "30 of 30 steps logged" in shown
        assert "1: 100 % dead" in shown
        assert "look at what sets the bias before it" in shown
    assert Inspector()._repr_html_() == "<pre>Inspector(not attached)</pre>"
