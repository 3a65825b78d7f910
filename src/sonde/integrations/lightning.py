"""Record the trainings of a Lightning ``Trainer``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sonde.errors import ArgumentError
from sonde.inspector import Inspector
from sonde.integrations.foreign import base_class
from sonde.integrations.session import Session

__all__ = ["LightningCallback"]

_HOOKS = (
    "setup",
    "on_load_checkpoint",
    "on_save_checkpoint",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_end",
    "on_validation_end",
    "on_train_end",
    "on_exception",
)
_KEY = "sonde"

# Two packages hold the same classes: the one that the program uses
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
if "lightning.pytorch" not in sys.modules and "pytorch_lightning" in sys.modules:
    _PACKAGES = _PACKAGES[::-1]

_Callback: Any = base_class("LightningCallback", _PACKAGES, "Callback", _HOOKS, extra="lightning")


class LightningCallback(_Callback):  # type: ignore[misc]  # the base is imported late
    """Records each ``fit`` of a Lightning ``Trainer`` as a run::

        trainer = Trainer(callbacks=[sonde.integrations.LightningCallback(every=10)])

    The run ends with the training, also where an exception or a keyboard interrupt ends it. It has the numbers of
    :func:`sonde.watch`, the loss of each training step as ``loss``, and what the module logs, under the names that its loggers
    see. Epochs are Lightning's. Validation and the sanity check before the training are no steps. A training that continues from
    a checkpoint continues the run of that checkpoint; so does a second ``fit`` of the same trainer.

    Args:
        arguments: those of :func:`sonde.watch`, as ``every=10`` or ``to="runs/name"``, except the model and the optimizer. By
            default ``scaler`` is Lightning's, and ``config`` holds the hyperparameters of the module.

    Attributes:
        inspector: the :class:`~sonde.inspector.inspector.Inspector` of the training that runs or ran last; None before.

    Raises:
        ArgumentError: ``watch`` has no such argument; as ``fit`` begins: the trainer has a second callback of this class.
        MissingExtraError: neither lightning nor pytorch-lightning is installed.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self._session = Session("LightningCallback", arguments)
        self._saved: Mapping[str, Any] | None = None
        self._last: tuple[int, dict[str, Any]] | None = None  # where the last fit ended: the trainer's step, and the state

    @property
    def inspector(self) -> Inspector | None:
        """The inspector of the training that runs or ran last."""
        return self._session.inspector

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Forget the checkpoint of an earlier call; raise if the trainer would record everything twice."""
        self._saved = None
        if sum(isinstance(each, LightningCallback) for each in trainer.callbacks) > 1:
            raise ArgumentError("the trainer has two LightningCallbacks, and each would record the whole training: leave one out")

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Remember which run the checkpoint belongs to."""
        self._saved = checkpoint.get(_KEY)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Write into the checkpoint where the run is, and which step comes next."""
        if state := self._session.state():
            checkpoint[_KEY] = state

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the run: the model is on its device, wrapped, and restored; the sanity check is over."""
        step, epoch = trainer.global_step, trainer.current_epoch
        saved = self._saved
        if saved is None and self._last is not None and step and self._last[0] == step:
            saved = self._last[1]
        self._saved = None
        self._session.begin(
            pl_module,
            optimizers=[getattr(each, "optimizer", each) for each in trainer.optimizers],
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            config=dict(pl_module.hparams) or None,
            step=step,
            epoch=epoch,
            saved=saved,
        )

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Record what was logged at the end of the last epoch, and begin the next."""
        self._push(trainer)
        inspector = self.inspector
        if inspector is not None and inspector.attached and inspector.moment[0] != trainer.current_epoch:
            inspector.tick_epoch(trainer.current_epoch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record the loss of the step, and what was logged in it."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if self._session.is_on and isinstance(loss, Tensor) and loss.numel() == 1 and self.inspector is not None:
            if pl_module.automatic_optimization:
                loss = loss * trainer.accumulate_grad_batches  # Lightning has divided it
            self.inspector.push_loss(loss, train=True)
        self._push(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record what the validation has logged; the sanity check records nothing."""
        self._push(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the run."""
        if self._session.is_on and self.inspector is not None:
            self._push(trainer)
            self.inspector.tick_epoch(trainer.current_epoch)
            self._last = trainer.global_step, self._session.state()
            self._session.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run: an exception or a keyboard interrupt has ended the training."""
        self._session.end(exception)

    def _push(self, trainer: Any) -> None:
        if self._session.is_on:
            self._session.push_new(trainer.logged_metrics)

    def __repr__(self) -> str:
        return repr(self._session)
