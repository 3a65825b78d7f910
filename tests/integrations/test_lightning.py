"""The callback for Lightning, in real trainings of the real package."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sonde
from sonde.errors import ArgumentError
from sonde.inspector import Inspector
from sonde.integrations import LightningCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"),  # as about workers
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),  # of a callback that only saves
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),  # Lightning's own call
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


class Module(pl.LightningModule):  # type: ignore[misc]
    """A regression whose step calls a part of the module, as most do; ``calls_itself`` calls the module."""

    def __init__(self, calls_itself: bool = False, fails: Callable[[int], None] = lambda step: None) -> None:
        super().__init__()
        self.save_hyperparameters({"width": 8})
        self.calls_itself, self.fails = calls_itself, fails
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def loss(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self(x) if self.calls_itself else self.net(x), y)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        self.fails(index)
        loss = self.loss(batch)
        self.log("train_loss", loss)
        self.log("grad_norm", 7.0)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def module(**given: Any) -> Module:
    torch.manual_seed(1)
    return Module(**given)


def loader() -> Any:
    return DataLoader(TensorDataset(X, Y), batch_size=4)


def trainer(tmp_path: Path, *callbacks: Any, **given: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    saves = any(isinstance(each, ModelCheckpoint) for each in callbacks)
    settings = {"max_epochs": 2, "default_root_dir": tmp_path, "enable_checkpointing": saves} | quiet | given
    return pl.Trainer(callbacks=list(callbacks), **settings)


def callback(**given: Any) -> Any:
    return LightningCallback(**{"every": 2, "to": "memory", "verbose": False} | given)


def rows(inspector: Inspector, family: str = "moments") -> list[Any]:
    """Return what was measured, without the root's own values, which only a call of the module has."""
    return inspector.run.sql(f"SELECT * FROM {family} WHERE layer <> '(root)' AND layer <> '' ORDER BY ALL").fetchall()


def scalars(inspector: Inspector, name: str) -> list[tuple[int, int, float]]:
    return inspector.run.sql(f"SELECT epoch, step, value FROM scalars WHERE name = '{name}' ORDER BY step").fetchall()


def by_hand(accumulate: int = 1, clip: float | None = None, bfloat16: bool = False, **given: Any) -> tuple[Module, Inspector]:
    """Train the same without Lightning."""
    model = module(**given)
    model.log = lambda *_: None
    optimizer = model.configure_optimizers()
    with sonde.watch(model, optimizer, every=2, to="memory", verbose=False) as inspector:
        for index, batch in enumerate([*loader(), *loader()]):
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                loss = model.training_step(batch, index)
            (loss / accumulate).backward()
            if index % 6 == 5:
                inspector.tick_epoch() if (index + 1) % accumulate else None
            if (index + 1) % accumulate == 0:
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
                if index == 5:
                    inspector.tick_epoch()
    return model, inspector


@pytest.mark.parametrize(
    ("settings", "alike", "model"),
    [
        pytest.param({}, {}, {}, id="plain", marks=pytest.mark.slow),
        pytest.param({}, {}, {"calls_itself": True}, id="calls the module", marks=pytest.mark.slow),
        pytest.param(
            {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}, {"accumulate": 2, "clip": 0.1}, {}, id="accumulation"
        ),
        pytest.param({"accumulate_grad_batches": 2}, {"accumulate": 2}, {"calls_itself": True}, id="both", marks=pytest.mark.slow),
        pytest.param({"precision": "bf16-mixed"}, {"bfloat16": True}, {}, id="bfloat16", marks=pytest.mark.slow),
    ],
)
def test_numbers_are_those_of_the_same_loop_by_hand(
    settings: dict[str, Any], alike: dict[str, Any], model: dict[str, Any], tmp_path: Path
) -> None:
    """With validation between the steps, and the same bits in the parameters as without the callback."""
    recorded, observed, bare = callback(), module(**model), module(**model)
    trainer(tmp_path, recorded, **settings).fit(observed, loader(), loader())
    trainer(tmp_path, **settings).fit(bare, loader(), loader())
    mine, inspector = by_hand(**alike, **model)
    for one, other, third in zip(observed.parameters(), bare.parameters(), mine.parameters(), strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)
    assert rows(recorded.inspector) == rows(inspector)
    assert len(rows(inspector)) > 50
    for name in ("grad_norm", "grad_norm_raw", "update_norm", "lr"):
        assert scalars(recorded.inspector, name) == scalars(inspector, name)


def test_what_the_module_logs_is_in_the_run(tmp_path: Path) -> None:
    """Under its name, at its step, once; the loss of evaluation where rules look for it; sonde's own names are not taken."""
    recorded = callback()
    model = module()
    trainer(tmp_path, recorded).fit(model, loader(), loader())
    inspector = recorded.inspector
    assert [(epoch, step) for epoch, step, _ in scalars(inspector, "train_loss")] == [(step // 6, step) for step in range(12)]
    assert [(epoch, step) for epoch, step, _ in scalars(inspector, "val_loss")] == [(0, 5), (1, 11)]
    with torch.no_grad():
        last = sum(model.loss(batch) for batch in loader()) / 6
    assert scalars(inspector, "val_loss")[-1][2] == pytest.approx(float(last))
    assert {value for _, _, value in scalars(inspector, "trainer/grad_norm")} == {7.0}
    assert {value for _, _, value in scalars(inspector, "grad_norm")} != {7.0}
    assert len(scalars(inspector, "lr")) == 6
    assert inspector.run.config == {"width": 8}
    train = [value for _, _, value in scalars(inspector, "train_loss")]
    losses = scalars(inspector, "loss")
    assert [step for _, step, _ in losses][:2] == [0, 2]
    assert losses[1][2] == pytest.approx((train[1] + train[2]) / 2)


@pytest.mark.slow
def test_the_loss_is_that_of_the_step_and_not_divided_for_accumulation(tmp_path: Path) -> None:
    """Lightning divides the loss of each micro-batch before the backward pass."""
    recorded = callback(every=1)
    trainer(tmp_path, recorded, accumulate_grad_batches=2, max_epochs=1).fit(module(), loader())
    model, losses = module(), []
    optimizer = model.configure_optimizers()
    for index, batch in enumerate(loader()):
        loss = model.loss(batch)
        (loss / 2).backward()
        losses.append(float(loss.detach()))
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()
    expected = [(losses[step] + losses[step + 1]) / 2 for step in (0, 2, 4)]
    assert [value for _, _, value in scalars(recorded.inspector, "loss")] == pytest.approx(expected)


@pytest.mark.slow
def test_a_training_from_a_checkpoint_goes_on_with_its_run(tmp_path: Path) -> None:
    """In another process, as here with another callback: steps and epochs go on, and the rows are those of one long training."""
    saves = ModelCheckpoint(tmp_path / "saved", save_top_k=-1, every_n_train_steps=8)
    trainer(tmp_path, callback(to=tmp_path / "run"), saves).fit(module(), loader(), loader())
    (saved,) = (tmp_path / "saved").glob("*step=8*")
    second = callback(to=tmp_path / "run")
    trainer(tmp_path, second, max_epochs=3).fit(module(), loader(), loader(), ckpt_path=saved)
    whole = callback()
    trainer(tmp_path, whole, max_epochs=3).fit(module(), loader(), loader())
    run = second.inspector.run
    assert [attempt.first_step for attempt in run.description.attempts] == [0, 8]
    found = run.sql("SELECT DISTINCT epoch, step FROM moments ORDER BY ALL").fetchall()
    assert found == [(step // 6, step) for step in range(0, 18, 2)]
    query = "SELECT site, epoch, step, count, mean, std FROM moments WHERE step <> 8 ORDER BY ALL"  # a new loader began at step 8
    assert len(run.sql(query).fetchall()) == len(whole.inspector.run.sql(query).fetchall())
    assert scalars(second.inspector, "val_loss")[0] == scalars(whole.inspector, "val_loss")[0]


@pytest.mark.slow
def test_without_a_place_of_its_own_a_training_goes_on_in_the_run_of_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where ``to`` is not given, the checkpoint says where the run is; where the run is gone, a new one begins at its step."""
    monkeypatch.chdir(tmp_path)
    first = LightningCallback(every=2, verbose=False)
    saves = ModelCheckpoint(tmp_path / "saved", save_last=True)
    trainer(tmp_path, first, saves, max_epochs=1).fit(module(), loader())
    second = LightningCallback(every=2, verbose=False)
    trainer(tmp_path, second).fit(module(), loader(), ckpt_path=tmp_path / "saved" / "last.ckpt")
    assert second.inspector.path == first.inspector.path
    Path(first.inspector.path).rename(tmp_path / "elsewhere")
    third = LightningCallback(every=2, verbose=False)
    with pytest.warns(UserWarning, match="is not there any more"):
        trainer(tmp_path, third).fit(module(), loader(), ckpt_path=tmp_path / "saved" / "last.ckpt")
    assert third.inspector.run.scalar("grad_norm")[0].tolist() == [6, 8, 10]


@pytest.mark.slow
def test_a_second_fit_of_a_trainer_goes_on_with_the_run(tmp_path: Path) -> None:
    """As the trainer goes on with its steps; another trainer begins another run."""
    recorded, model = callback(to=tmp_path / "run"), module()
    one = trainer(tmp_path, recorded, max_epochs=1)
    one.fit(model, loader())
    one.fit_loop.max_epochs = 2
    one.fit(model, loader())
    assert recorded.inspector.run.scalar("grad_norm")[0].tolist() == [0, 2, 4, 6, 8, 10]
    with pytest.raises(sonde.errors.StoreError, match="exists="):
        trainer(tmp_path, recorded).fit(module(), loader())


@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()])
def test_an_error_ends_the_run(error: BaseException, tmp_path: Path) -> None:
    """The rows up to there are kept, and no hook is left on the module."""

    def fails(step: int) -> None:
        if step == 3:
            raise error

    recorded, model = callback(every=1), module(fails=fails)
    with pytest.raises((RuntimeError, SystemExit)):  # Lightning ends the process after an interrupt
        trainer(tmp_path, recorded).fit(model, loader())
    assert not recorded.inspector.attached
    run = recorded.inspector.run
    assert run.state == ("failed" if isinstance(error, RuntimeError) else "interrupted")
    assert (run.end.error, run.end.message, run.end.step) == (type(error).__name__, str(error), 3)
    assert recorded.inspector.run.scalar("grad_norm")[0].tolist() == [0, 1, 2]


@pytest.mark.slow
def test_early_stopping_ends_the_run(tmp_path: Path) -> None:
    """After the epoch in which the trainer stops."""
    recorded = callback()
    stops = EarlyStopping("val_loss", patience=0, min_delta=1e6)
    trainer(tmp_path, recorded, stops, max_epochs=9).fit(module(), loader(), loader())
    assert not recorded.inspector.attached
    assert recorded.inspector.run.scalar("grad_norm")[0].tolist() == [0, 2, 4, 6, 8, 10]


class Adversaries(pl.LightningModule):  # type: ignore[misc]
    """Two optimizers that alternate, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.one, self.other = nn.Linear(4, 1), nn.Linear(4, 1)

    def training_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        for part, optimizer in zip((self.one, self.other), self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(nn.functional.mse_loss(part(x), y))
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.one.parameters(), lr=0.1), torch.optim.SGD(self.other.parameters(), lr=0.01)]


@pytest.mark.slow
def test_several_optimizers_that_the_module_steps_itself(tmp_path: Path) -> None:
    """Each optimizer's step is a step, as for ``watch``; Lightning counts both, too."""
    recorded, model = callback(every=1), Adversaries()
    one = trainer(tmp_path, recorded, max_epochs=1)
    one.fit(model, loader())
    run = recorded.inspector.run
    assert one.global_step == 12
    found = run.sql("SELECT step, layer FROM moments WHERE port = 'update' AND norm > 0 AND site LIKE '%weight%' ORDER BY step")
    assert found.fetchall() == [(step, "other" if step % 2 else "one") for step in range(12)]


class Silent(Module):
    """Logs nothing: torch 2.13 cannot compile Lightning's ``log``."""

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return self.loss(batch)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("calls_itself", [False, True])
def test_a_module_that_was_compiled(tmp_path: Path, calls_itself: bool) -> None:
    """``torch.compile(module)``: Lightning compiles its steps."""
    recorded, model = callback(every=1), Silent(calls_itself)
    model.load_state_dict(module().state_dict())
    trainer(tmp_path, recorded, max_epochs=2).fit(torch.compile(model, backend="aot_eager"), loader())
    _, inspector = by_hand(calls_itself=calls_itself)
    query = "SELECT site, step, count, mean, std FROM moments WHERE layer <> '' AND layer <> '(root)' AND step % 2 = 0 ORDER BY ALL"
    found = recorded.inspector.run.sql(query).fetchall()
    assert found == inspector.run.sql(query).fetchall()
    assert len(found) > 50


def test_arguments_are_those_of_watch_and_checked_at_once(tmp_path: Path) -> None:
    """Before any training; and a trainer with two callbacks raises as its training begins."""
    with pytest.raises(ArgumentError, match=r"takes the arguments of sonde.watch. Nearest: every"):
        LightningCallback(evry=3)
    with pytest.raises(ArgumentError, match="the trainer has the model"):
        LightningCallback(model=nn.Linear(1, 1))
    with pytest.raises(ArgumentError, match="two LightningCallbacks"):
        trainer(tmp_path, callback(), callback()).fit(module(), loader())
    assert repr(callback(every=5)) == "LightningCallback(every=5, to='memory', verbose=False)"


def test_alerts_are_passed_on_while_the_trainer_trains(tmp_path: Path) -> None:
    """``on_alert=`` is an argument of ``watch``, as all others."""
    told: list[Any] = []
    dead, recorded = module(), callback(every=1, on_alert=told.append)
    nn.init.constant_(dead.net[0].bias, -1e6)
    trainer(tmp_path, recorded).fit(dead, loader())
    assert "dead" in {finding.rule for finding in told}
