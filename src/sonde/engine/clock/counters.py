"""The numbers of one root's time (epoch, step, micro-step, forward), and the forward that each thread runs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Set
from contextlib import AbstractContextManager

import torch
from torch import nn

from sonde.engine.clock.forward import Forward
from sonde.engine.failures import raise_if_foreign
from sonde.engine.torch_api.autograd_state import graph_task, is_in_reentrant_checkpoint, is_shape_inference
from sonde.engine.torch_api.modules import unwrap
from sonde.engine.unseen import are_quiet, is_quiet, next_number
from sonde.schedule import Tick


class _Current(threading.local):
    forward: Forward | None = None
    depth: int = 0  # calls of the root that run inside each other
    silence: AbstractContextManager[None] | None = None  # a quiet block, around a call that is not counted


class Counters:
    """Numbers that the parts of a clock move.

    Attributes:
        root: the model, held weakly.
        module: the same without wrappers, for code that is traced: Dynamo cannot read a wrapper of the module that it traces.
        epoch, step, micro_step: the tick of this moment.
        forwards: calls of the root begun.
        stamp: changes with epoch, step and micro-step, so that a forward can keep the tick it has made.
        is_observed: a probe observes; else only forwards and steps are counted.
        has_begun: a forward of the root, or a backward pass, was seen since the last step.
        evaluated_alone: calls of modules in evaluation outside of any call of the root, as of ``ddp.module``.
        looked: the step in which the root was last looked at for changes; -1 before.
        local: the forward of each thread.
        number: of this observer, see ``unseen.py``.
        on_error: called with an error of the clock itself, which stops an observer; each with whether the observer is strict.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = weakref.ref(root)
        self.module = weakref.ref(unwrap(root))
        self.epoch = 0
        self.step = 0
        self.micro_step = 0
        self.forwards = 0
        self.stamp = 0
        self.is_observed = False
        self.has_begun = True
        self.evaluated_alone = 0
        self.looked = -1
        self.local = _Current()
        self.number = next_number()
        self.on_error: dict[Callable[[Exception], None], bool] = {}

    def failed(self, error: Exception) -> None:
        """Stop every observer of the root: what counts for all of them has raised *error*. If one is strict, raise it again.

        A hook of the clock ends here, and never in the user's forward, backward pass or step.
        """
        raise_if_foreign(error)
        if any(self.on_error.values()):
            raise error
        for stop in tuple(self.on_error):
            stop(error)

    def is_quiet(self, *things: object) -> bool:
        """Return whether what happens now in this thread, at the root or at *things*, is not counted.

        Asked only while ``unseen.blocks`` has any.
        """
        return is_quiet(self.number, self.root(), *things)

    def is_quiet_for(self, held: Set[int]) -> bool:
        """Return whether a step that an optimizer of the parameters with the ids *held* takes now in this thread is not counted.

        Asked only while ``unseen.blocks`` has any.
        """
        return self.is_quiet() or are_quiet(self.number, held)

    def look(self) -> None:
        """Look whether the root has changed; as a clock does."""

    def current(self) -> Forward:
        """Return the forward of this thread that runs or ran last.

        Module calls outside of any call of the root share one, until a backward pass or a step ends: the calls after it are
        numbered from 0 again, as after a call of the root.
        """
        local = self.local
        forward = local.forward
        if forward is None or (forward.began != self.stamp and not local.depth and graph_task() == -1):
            if forward is not None:
                forward.watched.clear()
            forward = local.forward = self.new_forward()
            if self.is_observed and not local.depth:
                self.look()
        return forward

    def is_for_shapes(self) -> bool:
        """Return whether a pipeline calls a part of the root to learn shapes, outside of any call of the root."""
        return not self.local.depth and is_shape_inference()

    def new_forward(self) -> Forward:
        """Return a forward for the call of the root that was begun last."""
        index = max(self.forwards - 1, 0)
        root = self.root()
        training = root is None or root.training
        return Forward(index, Tick(self.epoch, self.step, self.micro_step, index), self.stamp, training=training)

    def tick_of(self, forward: Forward) -> Tick:
        """Return the tick of something that happens now and belongs to *forward*."""
        if forward.stamp != self.stamp:
            forward.stamp = self.stamp
            forward.tick = Tick(self.epoch, self.step, self.micro_step, forward.index)
        return forward.tick

    def tick_now(self) -> Tick:
        """Return the tick of this moment, and begin no forward."""
        forward = self.local.forward
        if forward is None or forward.began != self.stamp:
            return Tick(self.epoch, self.step, self.micro_step, max(self.forwards - 1, 0) if forward is None else forward.index)
        return self.tick_of(forward)

    def is_training(self, forward: Forward, task: int) -> bool:
        """Return whether a module call of *forward*, made in the backward pass *task* (else -1), is part of a training pass.

        That is a call of the root in training mode with gradients enabled; or such a call of a module that is called alone.
        """
        if self.local.depth or task != -1:
            return forward.training
        root = self.root()
        is_training = (root is None or root.training) and (torch.is_grad_enabled() or is_in_reentrant_checkpoint())
        if is_training:
            forward.recording = forward.training = True  # it may have begun as an evaluation
        else:
            self.evaluated_alone += 1
        return is_training

    def forget_forwards(self) -> None:
        """Drop every thread's forward, which refers to hooks, and through them to the model."""
        self.local = _Current()
