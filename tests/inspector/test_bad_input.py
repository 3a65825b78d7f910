"""What cannot be done is refused at once, with what was asked, what was found and what to do; the model is left as it was."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.inspector.training import small, train
from torch import Tensor, nn

from sonde import Limits, lens
from sonde.errors import ArgumentError, MissingExtraError, ModelError, ObservationWarning, SelectionError, StoreError
from sonde.inspector import Inspector, Sink, watch
from sonde.run.run import Run, open_run
from sonde.schedule import Warmup
from sonde.stats import Field, Moments, Statistic
from sonde.stats.statistic import Column

REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "zero every": ({"every": 0}, ArgumentError, "every=0: every n-th step"),
    "negative every": ({"every": -1}, ArgumentError, "every=-1: every n-th step"),
    "a bool": ({"every": True}, ArgumentError, "every=True"),
    "a fraction": ({"every": 1.5}, ArgumentError, "give a number of steps, a time"),
    "a time of nothing": ({"every": "0s"}, ArgumentError, "is above 0"),
    "no time": ({"every": "10 parsecs"}, ArgumentError, 'such as "10s"'),
    "no step": ({"every": []}, ArgumentError, "holds no step"),
    "no step in an array": ({"every": np.array([])}, ArgumentError, "holds no step"),
    "fractions in an array": ({"every": np.array([0.5])}, ArgumentError, "0.5 is none"),
    "a negative step": ({"every": [3, -3]}, ArgumentError, "-3 is none"),
    "an unknown layer": ({"include": "fc"}, SelectionError, r"nothing is selected by include='fc'. There are 8: \(root\), 0"),
    "a misspelt layer": ({"include": ["0.weigth"]}, SelectionError, "no module called '0.weigth'. Nearest: 0.weight"),
    "a lens on nothing": ({"lenses": lens.OutputNorm(include="conv")}, SelectionError, "lens 'output_norm' finds nothing"),
    "no lens": ({"lenses": [Moments()]}, ArgumentError, "is no lens"),
    "no scaler": ({"scaler": 2.0}, ArgumentError, "give the torch.amp.GradScaler"),
    "other gradients": ({"gradients": "all"}, ArgumentError, "give 'step', 'micro_step' or 'both'"),
    "no limits": ({"limits": 3}, ArgumentError, "limits=3: give a Limits or None"),
    "a depth in words": ({"depth": "all"}, ArgumentError, "depth='all': give a whole number"),
    "a step in words": ({"step": "last"}, ArgumentError, "step='last': give a whole number or None"),
    "no way out": ({"exists": "overwrite"}, ArgumentError, "exists='overwrite': give 'error', 'resume', 'unique' or 'replace'"),
    "a number for a lens": ({"lenses": 3}, ArgumentError, "lenses=3: give a list, a Lens"),
    "a budget by the clock": ({"limits": Limits(budget="1%"), "every": "10s"}, ArgumentError, "is none"),
    "no ranks": ({"ranks": "all"}, ArgumentError, "give one of 'merged', 'each', 'first'"),
    "no policy": ({"bad_steps": "raise"}, ArgumentError, "give one of 'warn', 'stop', 'wait', None"),
    "a depth below all": ({"depth": -2}, ArgumentError, "or -1 for all"),
    "nowhere": ({"to": 3}, ArgumentError, "rows go to a folder"),
    "two runs": ({"to": ["memory", "runs/b"]}, ArgumentError, "names two runs"),
    "nothing to resume": ({"exists": "resume"}, ArgumentError, "nothing to resume"),
    "no optimizer": ({"optimizer": 3}, ArgumentError, r"call inspector.step\(\)"),
}


REFUSED_BEFORE_THE_FOLDER = [case for case in REFUSED if "to" not in REFUSED[case][0] and case != "nothing to resume"]
"""All that has nothing to do with the folder."""


@pytest.mark.parametrize("case", REFUSED_BEFORE_THE_FOLDER)
def test_a_start_that_is_refused_leaves_no_folder_behind(case: str, tmp_path: Path) -> None:
    """So that the second try may have the same name, and the last good run stays the newest."""
    settings, error, _ = REFUSED[case]
    model, optimizer = small()
    with pytest.raises(error):
        watch(model, to=tmp_path / "run", **settings)
    assert list(tmp_path.iterdir()) == []
    with watch(model, to=tmp_path / "run", every=1, verbose=False) as inspector:
        train(model, optimizer, 1)
    assert inspector.run.last_step == 0


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("matplotlib", "matplotlib")])
def test_a_logger_that_is_not_installed_leaves_no_folder_behind(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands in the list."""
    monkeypatch.setitem(sys.modules, package, None)
    model, _ = small()
    with pytest.raises(MissingExtraError, match="pip install"):
        watch(model, to=[tmp_path / "run", name], verbose=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_argument_is_refused(case: str) -> None:
    """At the call, before anything is attached or written."""
    settings, error, match = REFUSED[case]
    model, _ = small()
    with pytest.raises(error, match=match):
        watch(model, **{"to": "memory"} | settings)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_optimizer_of_another_model_is_refused() -> None:
    """Its steps would never be seen."""
    model, _ = small()
    _, other = small()
    with pytest.raises(ArgumentError, match="holds no parameter of the model"):
        watch(model, other, to="memory")


@pytest.mark.parametrize("model", [3, nn.Linear, None])
def test_what_is_no_model_is_refused(model: Any) -> None:
    """A class, a number, nothing."""
    with pytest.raises(ModelError):
        watch(model, to="memory")


@pytest.mark.parametrize("models", [{}, {"": nn.Linear(2, 2)}, {1: nn.Linear(2, 2)}])
def test_several_models_need_names(models: Any) -> None:
    """An empty dictionary and names that are none."""
    with pytest.raises(ArgumentError, match="given by name"):
        watch(models, to="memory")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: lens.Lens("Norms", Moments()), "small letters"),
        (lambda: lens.Lens("scalars", Moments()), "something else"),
        (lambda: lens.Lens("norms", Moments), "looks through a statistic"),
        (lambda: lens.Lens("norms", Moments(), ("weights",)), "give one or more of input, output"),
        (lambda: lens.Lens("norms", Moments(), one_in=0), "is 1 or more"),
        (lambda: lens.OutputActivation(activation=False, dropout=False), "give include="),
        (lambda: lens.LossMetrics(loss_fn=nn.functional.mse_loss), "give what it returns to push_loss"),
        (lambda: Warmup(-1), "dense_until=-1"),
        (lambda: Warmup(10, then=0), "every=0"),
        (lambda: Inspector(train_loss_str="x", non_train_loss_str="x"), "cannot both be called 'x'"),
    ],
)
def test_a_lens_that_cannot_be_is_refused(make: Callable[[], object], match: str) -> None:
    """Where it is made."""
    with pytest.raises(ArgumentError, match=match):
        make()


def test_folders_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    """A file, a folder with something else in it, one that cannot be made, and a run that is there already."""
    model, _ = small()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    watch(model, to=tmp_path / "run", verbose=False).detach()
    for path, match in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "folder", "holds something that is no run"),
        (Path("/proc/run"), "no run can be written"),
        (tmp_path / "run", "holds a run already: exists='resume' continues it"),
    ):
        with pytest.raises(StoreError, match=match):
            watch(model, to=path)
    assert not any(module._forward_hooks for module in model.modules())


def test_step_without_a_forward_is_refused() -> None:
    """At first, and after a step that was counted already."""
    model, optimizer = small()
    with Inspector(module=model, to="memory", verbose=False) as inspector:
        with pytest.raises(ArgumentError, match="no forward of the model was seen"):
            inspector.step()
        train(model, optimizer, 1)
        with pytest.raises(ArgumentError, match=r"not at all for a torch\.optim optimizer"):
            inspector.step()


def test_an_inspector_without_a_model_says_so() -> None:
    """Whatever is asked of it."""
    inspector = Inspector(to="memory")
    for call in (inspector.step, inspector.tick_epoch, inspector.coverage, inspector.__enter__, lambda: inspector.run):
        with pytest.raises(ArgumentError):
            call()
    assert repr(inspector) == "Inspector(not attached)"
    inspector.detach()


def test_what_is_no_number_is_not_pushed() -> None:
    """Of several elements, complex, a text; and a metric that the lens does not name."""
    model, _ = small()
    with watch(model, to="memory", verbose=False, lenses=[lens.moments(), lens.LossMetrics(metrics="accuracy")]) as inspector:
        for value in (torch.zeros(2), torch.tensor(1j), "much", None):
            with pytest.raises(ArgumentError, match="one real number"):
                inspector.push_loss(value, train=True)
        with pytest.raises(ArgumentError, match="'acuracy' is none of the metrics"):
            inspector.push_metric("acuracy", 0.5)
        inspector.push_metric("accuracy", 0.5)


def test_names_of_layers_have_one_delimiter() -> None:
    """The message says what to write instead."""
    with pytest.raises(ArgumentError, match=re.escape("name.replace('.', '/')")):
        Inspector(module_name_prefix="/")
    Inspector(module_name_prefix=".")


# What goes wrong while the training runs does not reach it


class _Full(Sink):
    def write(self, rows: object) -> None:
        raise OSError("the disk is full")


def test_a_sink_that_fails_is_left_out_with_one_warning() -> None:
    """The training and the other sinks go on."""
    model, optimizer = small()
    inspector = watch(model, every=1, to=[_Full(), "memory"], verbose=False)
    with pytest.warns(ObservationWarning, match="_Full raised OSError: the disk is full") as warned:
        train(model, optimizer, 3)
        inspector.detach()
    assert len(warned) == 1
    assert inspector.run.scalar("grad_norm")[0].tolist() == [0, 1, 2]


@dataclass(frozen=True)
class _Odd(Statistic):
    fields: ClassVar[tuple[Field, ...]] = (Field("sum"),)

    def measure(self, tensor: Tensor) -> Tensor:
        return tensor.sum(dtype=torch.float64).reshape(1)

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        if len(columns["sum"]) > 2:
            raise ValueError("odd")
        return {"inverse": 1 / (0 * columns["sum"])}


def test_a_statistic_that_fails_loses_its_own_rows_alone() -> None:
    """With one warning; one that divides by zero has no number there, and that is no failure."""
    model, optimizer = small()
    lenses = [lens.Lens("odd", _Odd()), lens.Lens("infinite", _Odd(), include="^0$"), lens.moments()]
    inspector = watch(model, every=1, to="memory", lenses=lenses, verbose=False)
    with pytest.warns(ObservationWarning, match="of odd raised ValueError: odd") as warned:
        train(model, optimizer, 3)
        inspector.detach()
    assert len(warned) == 1
    assert inspector.run.families == ("infinite", "moments", "scalars")
    assert inspector.run.scalar("grad_norm")[0].tolist() == [0, 1, 2]


def test_a_full_disk_does_not_stop_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning; what was written before stays readable."""
    model, optimizer = small()
    inspector = watch(model, every=1, to=tmp_path / "run", verbose=False)
    train(model, optimizer, 2)
    assert inspector.run.last_step == 1

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sonde.run.store.disk_writer.publish", full)
    with pytest.warns(ObservationWarning, match="No space left on device") as warned:
        losses = train(model, optimizer, 3)
        inspector.detach()
    assert len(warned) == 1
    assert len(losses) == 3
    assert open_run(tmp_path / "run").scalar("grad_norm")[0].tolist() == [0, 1]


def test_a_visualizer_that_fails_is_called_once() -> None:
    """With one warning; what it raised is kept."""
    model, optimizer = small()

    def broken(run: Run) -> None:
        raise ValueError("no display")

    inspector = watch(model, every=1, to=broken, verbose=False)
    train(model, optimizer, 1)
    with pytest.warns(ObservationWarning, match="broken raised ValueError: no display"):
        inspector.tick_epoch()
    inspector.tick_epoch()
    inspector.detach()
    assert [str(error.error) for error in inspector.errors] == ["no display"]


def test_a_schedule_that_fails_logs_nothing_in_that_step() -> None:
    """With one warning; it is asked again."""
    model, optimizer = small()

    def odd(tick: Any) -> bool:
        if tick.step % 2:
            raise ValueError("odd")
        return True

    with watch(model, every=odd, to="memory", verbose=False) as inspector:
        with pytest.warns(ObservationWarning, match="the schedule raised ValueError: odd") as warned:
            train(model, optimizer, 5)
        assert len(warned) == 1
    assert inspector.run.scalar("grad_norm")[0].tolist() == [0, 2, 4]


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_part_of_torchscript_is_named_and_all_others_are_watched() -> None:
    """It has buffers, which are kept for a step that goes wrong, and which it does not hold in a dictionary."""
    model = nn.Sequential(torch.jit.script(nn.BatchNorm1d(3)), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1, to="memory", verbose=False, strict=True) as inspector:
        for _ in range(2):
            model(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).sum().backward()
            optimizer.step()
    ports = {line.site.port for line in inspector.coverage() if line.site.layer == "1" and line.count == 2 and not line.reason}
    assert ports == {"output", "grad_output", "param", "grad", "update"}
    reasons = {line.reason for line in inspector.coverage() if line.site.layer == "0" and line.site.port == "output"}
    assert reasons == {"TorchScript, which takes no hooks"}
    assert inspector.errors == ()
