"""An inspector comes and goes without a trace; what it says of itself is true."""

from __future__ import annotations

import argparse
import copy
import gc
import inspect
import math
import pickle
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.inspector.training import small, train
from torch import nn
from torch.optim import SGD

from sonde import lens
from sonde.cli import main
from sonde.errors import ArgumentError, ModelError, ObservationWarning
from sonde.inspector import Inspector, PyTorchInspector, watch
from sonde.inspector.sinks.visualizers import Pictures
from sonde.run.run import Run, open_run
from sonde.view.plots import plan


def test_a_training_ends_at_the_same_bits() -> None:
    """Parameters after twenty steps, watched at some of them, and unwatched."""
    ends = []
    for watched in (False, True):
        torch.manual_seed(0)
        model, optimizer = small()
        inspector = watch(model, optimizer, every=3, to="memory", verbose=False) if watched else None
        train(model, optimizer, 20)
        if inspector is not None:
            inspector.detach()
        ends.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_three_lines_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the run is, what was found, what it cost."""
    monkeypatch.chdir(tmp_path)
    model, optimizer = small()
    with watch(model, optimizer, every=1):
        train(model, optimizer, 3)
    first, second, third = capsys.readouterr().out.splitlines()
    found = re.fullmatch(r"run (runs/[a-z]+-[a-z]+) · 3 of 3 steps logged", first)
    assert found is not None
    assert second == "no findings"
    assert third == "overhead not measured: every step is logged, so there is none to compare with"
    assert open_run(found[1]).last_step == 2


def test_an_error_in_the_loop_leaves_a_whole_run(tmp_path: Path) -> None:
    """What was logged before is there, and no hook is left."""
    model, optimizer = small()

    def interrupted() -> None:
        with watch(model, optimizer, every=1, to=tmp_path / "run", verbose=False):
            train(model, optimizer, 3)
            model(torch.randn(5, 4)).sum().backward()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert open_run(tmp_path / "run").scalar("grad_norm")[0].tolist() == [0, 1, 2]
    assert not any(module._forward_hooks for module in model.modules())


def test_a_forgotten_inspector_takes_its_hooks_along(tmp_path: Path) -> None:
    """Deleted without an end: no hook is left, and what was logged is in the run."""
    model, optimizer = small()
    inspector = watch(model, optimizer, every=1, to=tmp_path / "run", verbose=False)
    train(model, optimizer, 2)
    threads = threading.active_count()
    del inspector
    gc.collect()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert threading.active_count() < threads
    assert open_run(tmp_path / "run").scalar("grad_norm")[0].tolist() == [0, 1]


def test_an_inspector_that_nobody_holds_says_that_nothing_is_recorded() -> None:
    """As of ``watch`` on a line of its own; after a forward, to let the inspector go is a way to end."""
    model, optimizer = small()
    with pytest.warns(
        ObservationWarning, match="an Inspector was deleted before its model ran, and records nothing: hold it in a var"
    ):
        watch(model, optimizer, to="memory", verbose=False)
    assert not any(module._forward_hooks for module in model.modules())
    inspector = watch(model, optimizer, to="memory", verbose=False)
    model(torch.ones(2, 4))
    del inspector


def test_optimizers_come_in_any_iterable() -> None:
    """As in the values of a dict, or from a generator."""
    model, optimizer = small()
    for given in ({"one": optimizer}.values(), (each for each in [optimizer])):
        with watch(model, given, every=1, to="memory", verbose=False) as inspector:
            train(model, optimizer, 1)
        assert inspector.run.scalar("lr")[0].tolist() == [0]


def test_copies_and_pickles_of_a_watched_model_are_not_watched() -> None:
    """And can be made."""
    model, optimizer = small()
    with watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        train(model, optimizer, 1)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            train(twin, SGD(twin.parameters(), lr=0.1), 2)
        train(model, optimizer, 1)
    assert inspector.run.scalar("grad_norm")[0].tolist() == [0, 1]


def test_two_inspectors_on_one_model_do_not_mind_each_other() -> None:
    """Each has its own pace and run."""
    model, optimizer = small()
    with watch(model, every=1, to="memory", verbose=False) as one, watch(model, every=2, to="memory", verbose=False) as other:
        train(model, optimizer, 5)
    assert one.run.scalar("grad_norm")[0].tolist() == [0, 1, 2, 3, 4]
    assert other.run.scalar("grad_norm")[0].tolist() == [0, 2, 4]
    same = one.run.series("0:output", "rms", family="moments")[1][::2]
    assert same.tolist() == other.run.series("0:output", "rms", family="moments")[1].tolist()


def test_it_sees_every_thread() -> None:
    """Attached in one, trained in another."""
    model, optimizer = small()
    with watch(model, every=1, to="memory", verbose=False) as inspector:
        thread = threading.Thread(target=train, args=(model, optimizer, 2))
        thread.start()
        thread.join()
    assert inspector.run.series("0:output", "count", family="moments")[1].tolist() == [40.0, 40.0]


def test_attached_later_and_again(tmp_path: Path) -> None:
    """The seed's way: made first, attached to a model, detached, and attached again, which continues its run."""
    assert PyTorchInspector is Inspector
    model, optimizer = small()
    inspector = PyTorchInspector(to=tmp_path / "run", exists="resume", verbose=False)
    for _ in range(2):
        assert not inspector.attached
        inspector.attach(model)
        train(model, optimizer, 2)
        inspector.detach()
        inspector.detach()
    assert inspector.run.scalar("grad_norm")[0].tolist() == [0, 1, 2, 3]


def test_visualizers_are_called_at_each_epoch_and_at_the_end() -> None:
    """With the run, in which everything before is."""
    model, optimizer = small()
    seen: list[int] = []

    def count(run: Run) -> None:
        seen.append(run.last_step)

    with watch(model, every=1, to=count, verbose=False) as inspector:
        for _ in inspector.iter("ab"):
            train(model, optimizer, 2)
    assert seen == [1, 3, 3]


def test_epochs_are_counted_and_can_be_set() -> None:
    """A row has the epoch that it was in."""
    model, optimizer = small()
    with watch(model, every=1, to="memory", verbose=False) as inspector:
        train(model, optimizer, 1)
        inspector.tick_epoch()
        train(model, optimizer, 1)
        inspector.tick_epoch(7)
        train(model, optimizer, 1)
    rows = {(row["epoch"], row["step"]) for row in inspector.run.table("moments").to_pylist()}
    assert rows == {(0, 0), (1, 1), (7, 2)}


def test_the_coverage_is_in_the_run_after_the_first_logged_step() -> None:
    """What was not reached is named with its reason; on request the same, with how often each site was seen."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.used(x)
            return out

    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        train(model, optimizer, 3)
        inspector.run  # noqa: B018  # everything so far is written
        train(model, optimizer, 1)
        written = inspector.run.coverage
        coverage = inspector.coverage()
    assert {line.site.path: line.count for line in coverage if line.site.port == "output"} == {"": 4, "used": 4, "spare": 0}
    missing = {line.site.path for line in coverage.missing}
    assert {"spare", "spare.weight", "spare.bias"} >= missing >= {"spare"}
    assert "spare:output" in {line["site"] for line in written["missing"]}
    assert all(line["reason"] for line in written["missing"])


def test_the_order_is_that_of_execution() -> None:
    """Not that of ``named_modules()``; parameters stand with their module."""

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.first = nn.Linear(3, 2), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.last(self.first(x))
            return out

    model = Backwards()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        train(model, optimizer, 2)
    assert inspector.run.heatmap("rms", "output").sites == ("first:output", "last:output", "(root):output")
    assert inspector.run.heatmap("rms", "grad").sites == (
        "first.bias:grad",
        "first.weight:grad",
        "last.bias:grad",
        "last.weight:grad",
    )


def test_what_the_run_says_of_itself() -> None:
    """Model, environment and lenses, as plain data."""
    model, optimizer = small()
    with watch(model, optimizer, to="memory", verbose=False) as inspector:
        info = inspector.run.info
        assert "attached" in repr(inspector)
    assert [line["type"] for line in info["model"]] == ["Sequential", "Linear", "ReLU", "Linear"]
    assert info["model"][1] == {
        "name": "0",
        "type": "Linear",
        "parameters": 40,
        "trainable": 40,
        "shapes": {"weight": [8, 4], "bias": [8]},
    }
    assert info["environment"]["torch"] == torch.__version__
    assert [shown["family"] for shown in info["lenses"]] == ["moments", "activation", "scalars"]


class Twice(nn.Module):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def test_a_run_says_where_the_class_of_a_layer_is_written() -> None:
    """The line of its forward, behind decorators; nothing of torch's own classes."""
    with watch(nn.Sequential(Twice(), nn.Linear(2, 2)), to="memory", lenses=lens.moments(), verbose=False) as inspector:
        info = inspector.run.info
    code = inspect.unwrap(Twice.forward).__code__
    assert [line.get("code") for line in info["model"]] == [None, f"test_life.py:{code.co_firstlineno}", None]


def test_depth_and_selection() -> None:
    """At the last level a module stands for what is in it; a container among them too."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    for depth, expected in ((0, {"(root)"}), (1, {"0", "1", "2"}), (-1, {"0", "1.0", "1.1", "2"})):
        with watch(model, to="memory", depth=depth, lenses=lens.moments(), verbose=False) as inspector:
            assert {site.path or "(root)" for site in inspector.sites if site.port == "output"} == expected
    with watch(model, to="memory", include=r"^1", exclude=nn.ReLU, lenses=lens.moments(), verbose=False) as inspector:
        assert {site.path for site in inspector.sites} == {"1.0", "1.0.weight", "1.0.bias"}


def test_the_norms_are_over_all_parameters_whatever_is_selected() -> None:
    """A lens on one layer does not make a smaller ``grad_norm``."""
    norms = []
    for settings in ({}, {"include": "^0$"}, {"lenses": lens.OutputNorm()}, {"gradients": "micro_step"}):
        torch.manual_seed(0)
        model, optimizer = small()
        with watch(model, every=1, to="memory", verbose=False, **settings) as inspector:  # type: ignore[arg-type]
            train(model, optimizer, 3)
        norms.append([inspector.run.scalar(name)[1].tolist() for name in ("grad_norm", "param_norm", "update_norm")])
    for other in norms[1:]:
        np.testing.assert_allclose(norms[0], other, rtol=1e-12)
    assert "norms" not in inspector.run.families


def test_attached_to_a_second_model_it_ends_the_first_run(capsys: pytest.CaptureFixture[str]) -> None:
    """With its closing lines; the second run begins at step 0 and knows nothing of the first."""
    (first, optimizer), (second, other) = small(), small()
    inspector = Inspector(module=first, to="memory")
    train(first, optimizer, 3)
    run = inspector.run
    assert inspector.attach(second) is inspector
    assert "3 of 3 steps logged" in capsys.readouterr().out
    train(first, optimizer, 1)
    train(second, other, 2)
    assert run.scalar("grad_norm")[0].tolist() == [0, 1, 2]
    assert inspector.run.scalar("grad_norm")[0].tolist() == [0, 1]
    assert inspector.detach() is inspector.detach() is inspector
    assert not inspector.attached


def test_what_is_no_model_leaves_an_attached_inspector_as_it_is() -> None:
    model, _ = small()
    with watch(model, to="memory", verbose=False) as inspector:
        with pytest.raises(ModelError):
            inspector.attach("no model")  # type: ignore[arg-type]
        assert inspector.attached


@pytest.mark.slow
def test_the_visualizer_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name or as an object; of several all; and of matplotlib one figure with every picture."""
    monkeypatch.chdir(tmp_path)
    model, optimizer = small()
    assert Inspector().visualizer is None
    with Inspector(module=model, visualizer="matplotlib", verbose=False) as inspector:
        assert isinstance(inspector.visualizer, Pictures)
        with pytest.raises(ArgumentError, match="before the first tick_epoch"):
            inspector.visualizer.show_fig()
        train(model, optimizer, 2, inspector)
        inspector.tick_epoch()
        figure = inspector.visualizer.show_fig()
    figure.savefig(tmp_path / "all.png")
    assert len(figure.axes) == len(plan(inspector.run)) > 3

    def mine(run: Run) -> None: ...

    with watch(model, to=["memory", "tensorboard", mine, "print"], verbose=False) as inspector:
        kinds = [type(each).__name__ for each in inspector.visualizer]
    assert kinds == ["TensorBoard", "function", "Print"]


@dataclass
class _Model:
    width: int = 64
    dtype: torch.dtype = torch.bfloat16


def test_the_configuration_is_kept_as_plain_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of dictionaries, dataclasses, namespaces and numbers of any library; ``sonde show`` prints it; a resumed run keeps it."""
    model, optimizer = small()
    config = {
        "lr": 1e-3,
        "model": _Model(),
        "args": argparse.Namespace(path=Path("data"), seeds=(1, 2)),
        "steps": np.int64(5),
        "decay": torch.tensor(0.5),
        "limit": math.inf,
        "note": None,
    }
    with watch(model, optimizer, every=1, to=tmp_path / "run", verbose=False, config=config):
        train(model, optimizer, 2)
    with watch(model, optimizer, every=1, to=tmp_path / "run", verbose=False, exists="resume"):
        train(model, optimizer, 1)
    assert open_run(tmp_path / "run").config == {
        "lr": 1e-3,
        "model": {"width": 64, "dtype": "torch.bfloat16"},
        "args": {"path": "data", "seeds": [1, 2]},
        "steps": 5,
        "decay": 0.5,
        "limit": "inf",
        "note": None,
    }
    assert main(["show", str(tmp_path / "run")]) == 0
    assert "config: lr 0.001 · model {'width': 64" in capsys.readouterr().out
    with pytest.raises(ArgumentError, match="give names and values"):
        watch(model, to="memory", config=[1])


def test_learning_rates_are_recorded() -> None:
    """Of each group of parameters, of each optimizer that steps: the rate that the step used, also where it is a tensor."""
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    groups = [{"params": [model["a"].weight], "lr": 0.5}, {"params": [model["a"].bias]}]
    first = torch.optim.SGD(groups, lr=0.25)  # type: ignore[arg-type]  # parameters of a ModuleDict
    second = torch.optim.Adam(model["b"].parameters(), lr=torch.tensor(0.125), capturable=False, foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(first, 1, gamma=0.5)
    with watch({"m": model}, every=1, to="memory", verbose=False) as inspector:
        for _ in range(3):
            sum(model[name](torch.ones(1, 2)).sum() for name in "ab").backward()  # type: ignore[union-attr]  # a tensor
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
    run = inspector.run
    found = {name: run.scalar(name)[1].tolist() for name in ("m/lr/0", "m/lr/1", "m/lr_1")}
    assert found == {"m/lr/0": [0.5, 0.25, 0.125], "m/lr/1": [0.25, 0.125, 0.0625], "m/lr_1": [0.125] * 3}


def test_a_run_resumed_after_the_end_of_an_epoch_begins_the_next(tmp_path: Path) -> None:
    """Though nothing was logged in it; resumed at an earlier step, it goes on with the epoch of that step; or as it is told."""
    model, optimizer = small()

    def two_epochs(**settings: Any) -> dict[int, int]:
        with watch(model, optimizer, every=1, to=tmp_path / "run", verbose=False, **settings) as inspector:
            for _ in range(2):
                train(model, optimizer, 2)
                inspector.tick_epoch()
        return dict(inspector.run.sql("SELECT step, epoch FROM scalars WHERE name = 'grad_norm' ORDER BY step").fetchall())

    assert list(two_epochs().values()) == [0, 0, 1, 1]
    assert list(two_epochs(exists="resume").values()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert list(two_epochs(exists="resume", step=3).values()) == [0, 0, 1, 1, 1, 2, 2]
    assert list(two_epochs(exists="resume", epoch=9).values()) == [0, 0, 1, 1, 1, 2, 2, 9, 9, 10, 10]


@pytest.mark.parametrize("given", [{"step": -7}, {"epoch": -1}, {"step": 1.5}, {"epoch": True}])
def test_a_step_or_an_epoch_to_continue_at_that_is_no_count_is_refused(given: dict[str, Any], tmp_path: Path) -> None:
    """Before a folder is made, and where rows stay in memory, too."""
    for to in ("memory", tmp_path / "run"):
        with pytest.raises(ArgumentError, match=f"{next(iter(given))}="):
            watch(nn.Linear(2, 1), to=to, verbose=False, **given)
    assert not (tmp_path / "run").exists()
