"""Record the trainings of a Hugging Face ``Trainer``."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable
from enum import Enum
from functools import wraps
from types import FrameType
from typing import Any

from sonde.errors import ArgumentError
from sonde.inspector import Inspector
from sonde.integrations.foreign import base_class
from sonde.integrations.session import Session

__all__ = ["TransformersCallback"]

_EVENTS = ("on_init_end", "on_train_begin", "on_epoch_begin", "on_step_end", "on_log", "on_train_end")
_KEY = "sonde"  # in the state that the trainer saves with each checkpoint

_TrainerCallback: Any = base_class("TransformersCallback", ["transformers"], "TrainerCallback", _EVENTS, extra="transformers")


class TransformersCallback(_TrainerCallback):  # type: ignore[misc]  # the base is imported late
    """Records each ``train()`` of a Hugging Face ``Trainer`` as a run::

        trainer = Trainer(model, args, train_dataset=data, callbacks=[sonde.integrations.TransformersCallback(every=10)])

    The run ends with the training, also where an error or a keyboard interrupt ends it. It has the numbers of :func:`sonde.watch`,
    the loss of each step as ``loss`` (as the trainer counts it: after ``compute_loss``, over all micro-batches), and what the
    trainer logs, under its names: ``learning_rate``, ``eval_loss``, ... Two are renamed, since sonde has numbers of these names:
    ``trainer/loss``, the mean since the trainer logged last, and ``trainer/grad_norm``, the norm before clipping. ``eval_loss``
    is recorded as ``val_loss``, too. Epochs are the trainer's. Evaluations are no steps. A training that continues from a
    checkpoint continues the run of that checkpoint.

    A callback that is given with ``trainer.add_callback`` sees errors in a training step alone: an error elsewhere leaves the run
    open until the next training or the end of the process.

    Args:
        arguments: those of :func:`sonde.watch`, as ``every=10`` or ``to="runs/name"``, except the model and the optimizer. By
            default ``scaler`` is the trainer's, and ``config`` holds the training arguments that are not the default.

    Attributes:
        inspector: the :class:`~sonde.inspector.inspector.Inspector` of the training that runs or ran last; None before.

    Raises:
        ArgumentError: ``watch`` has no such argument; or the trainer has a second callback of this class.
        MissingExtraError: transformers is not installed.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self._session = Session("TransformersCallback", arguments)
        self._loss: Any = None  # of the micro-batches of this step so far
        self._has_loss = False  # the loss of each step is seen
        self._wrapped: list[weakref.ref[Any]] = []  # trainers whose ``train`` ends the run when it raises
        self._trains: weakref.ref[Any] | None = None  # the trainer whose ``training_step`` is followed

    @property
    def inspector(self) -> Inspector | None:
        """The inspector of the training that runs or ran last."""
        return self._session.inspector

    def on_init_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Let an error that leaves ``trainer.train()`` end the run: the trainer has no event for that."""
        trainer = self._trainer()
        if trainer is not None and not any(each() is trainer for each in self._wrapped):
            self._wrapped.append(weakref.ref(trainer))
            trainer.train = self._guarded(trainer.train)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begin the run: the model is on its device, wrapped, and restored."""
        trainer = self._trainer()
        if trainer is not None and sum(isinstance(each, TransformersCallback) for each in trainer.callback_handler.callbacks) > 1:
            raise ArgumentError("the trainer has two TransformersCallbacks, and each would record all of it: leave one out")
        optimizer = given.get("optimizer")
        saved = state.stateful_callbacks.get(_KEY, {}).get("attributes") if state.global_step else None
        self._session.begin(
            given["model"],
            optimizers=[getattr(optimizer, "optimizer", optimizer)],
            scaler=getattr(optimizer, "scaler", None),
            config=_settings(args),
            step=state.global_step,
            epoch=int(state.epoch or 0),
            saved=saved,
            again=bool(getattr(args, "auto_find_batch_size", False)),
        )
        self._loss, self._has_loss = None, trainer is not None
        if trainer is not None and self._trains is None:
            self._trains = weakref.ref(trainer)
            trainer.training_step = self._followed(trainer.training_step)
        self._save(state)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begin the trainer's epoch."""
        self._begin_epoch(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Record the loss of the step; tell the trainer's state, which a checkpoint holds, which step comes next."""
        inspector = self.inspector
        if inspector is not None and inspector.attached:
            if self._loss is not None:
                inspector.push_loss(self._loss, train=True)
            self._loss = None
            self._save(state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        """Record what the trainer logs."""
        inspector = self.inspector
        if inspector is None or not inspector.attached or not logs:
            return
        if "loss" in logs and not self._has_loss:
            inspector.push_loss(logs["loss"], train=True, running=False)
        if "eval_loss" in logs:
            inspector.push_loss(logs["eval_loss"], train=False, running=False)
        self._session.push({name: value for name, value in logs.items() if name not in ("epoch", "step")})

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """End the run."""
        if self._session.is_on:
            self._begin_epoch(state)
        self._end(None)

    def _begin_epoch(self, state: Any) -> None:
        inspector, epoch = self.inspector, int(state.epoch or 0)
        if inspector is not None and inspector.attached and inspector.moment[0] != epoch:
            inspector.tick_epoch(epoch)

    def _save(self, state: Any) -> None:
        if isinstance(state.stateful_callbacks, dict):
            state.stateful_callbacks[_KEY] = {"args": {}, "attributes": self._session.state()}

    def _end(self, error: BaseException | None) -> None:
        self._session.end(error)
        trainer, self._trains = None if self._trains is None else self._trains(), None
        if trainer is not None:
            vars(trainer).pop("training_step", None)

    # The trainer, which events do not give

    def _trainer(self) -> Any:
        """Return the trainer whose method has called this callback; None if there is none."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            found = frame.f_locals.get("self")
            handler = None if found is self else getattr(found, "callback_handler", None)
            if handler is not None and any(each is self for each in getattr(handler, "callbacks", ())):
                return found
            frame = frame.f_back
        return None

    def _guarded(self, train: Callable[..., Any]) -> Callable[..., Any]:
        """Return *train*, the trainer's method, that ends the run when it raises."""

        @wraps(train)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return train(*args, **kwargs)
            except BaseException as error:
                self._end(error)
                raise

        return guarded

    def _followed(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return *training_step*, the trainer's method, that notes the loss of each micro-batch."""

        @wraps(training_step)
        def followed(*args: Any, **kwargs: Any) -> Any:
            try:
                loss = training_step(*args, **kwargs)
            except BaseException as error:
                self._end(error)
                raise
            if self._session.is_on:
                self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
            return loss

        return followed

    def __repr__(self) -> str:
        return repr(self._session)


def _settings(args: Any) -> dict[str, Any] | None:
    """Return the training arguments that are numbers, texts or choices, and not the default; None where there are none."""
    found = {}
    for each in dataclasses.fields(args) if dataclasses.is_dataclass(args) else ():
        value = getattr(args, each.name, None)
        value = value.value if isinstance(value, Enum) else value
        if isinstance(value, bool | int | float | str) and value != each.default and not each.name.endswith("_token"):
            found[each.name] = value
    return found or None
