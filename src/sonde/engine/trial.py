"""Run a copy of a model on a batch, with its loss and its optimizer; the originals stay as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.engine.loss_function import check_loss, own_loss
from sonde.engine.restore import Apart, gradients_put_aside, set_apart
from sonde.engine.selection import parameters
from sonde.engine.structure import walk
from sonde.engine.torch_api.modules import compile_parts_like, compiled_like, parameters_in, without_parallel_wrappers
from sonde.errors import ArgumentError


@dataclass
class Trial:
    """A copy of a model, its batch, its loss and its optimizer, to be run.

    Attributes:
        model, args, kwargs, loss_fn: the copies.
        optimizer: the copy of an optimizer; None if none was given.
        is_free: the parameters are copies, so that they may be written into.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss_fn: Callable[[Any], Any] | None
    optimizer: torch.optim.Optimizer | None
    is_free: bool
    _apart: Apart
    _given: nn.Module

    @classmethod
    @contextlib.contextmanager
    def of(
        cls,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        loss_fn: Any = None,
        optimizer: Any = None,
    ) -> Iterator[Trial]:
        """Yield a trial of *model* from the present random state, which is restored at the end.

        Inside, the observers that were attached before see nothing in this thread, compiled modules run as plain Python, gradients
        are enabled, and no parameter and no leaf of the batch has one. What cannot be copied is named in a warning beforehand, runs
        itself, and is put back as far as possible.

        Args:
            model: the model.
            args, kwargs: of its call.
            loss_fn: a function from the output to a scalar; None for the output's own loss.
            optimizer: an optimizer, which is copied with its state; a function is left to :meth:`make_optimizer`.
        """
        given = optimizer if hasattr(optimizer, "step") and not isinstance(optimizer, type) else None
        leaves = [*parameters_in(model), *(tensor for _, tensor in walk((args, kwargs)) if tensor.is_leaf)]
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))  # else the copies could not be differentiated
            apart = stack.enter_context(set_apart(model, (args, dict(kwargs), loss_fn, given)))
            stack.enter_context(gradients_put_aside(leaves))
            stack.enter_context(torch.enable_grad())
            args, kwargs, loss_fn, given = apart.args
            for leaf in (*parameters_in(apart.model), *(tensor for _, tensor in walk((args, kwargs)) if tensor.is_leaf)):
                leaf.grad = None
            yield cls(apart.model, args, dict(kwargs), loss_fn, given, apart.undoes_writes, apart, model)

    @property
    def hooks_left(self) -> list[str]:
        """The hooks on gradients of parameters that the copy does not have, in words: those that would reach the originals."""
        names = {id(parameter): name for name, parameter, _ in parameters(self._given)}
        return [f"{hook} of {names.get(id(tensor), 'a tensor')}" for tensor, hook in self._apart.hooks_left]

    def compile(self) -> tuple[nn.Module, str]:
        """Compile of the copy what is compiled of the model; return what is to be called, and words for what was compiled."""
        own = without_parallel_wrappers(self._given)
        whole = compiled_like(self.model, own)
        if whole is not None:
            return whole, "ran compiled"
        count = compile_parts_like(own, {id(self._apart.original(module)): module for module in self.model.modules()})
        return self.model, f"ran with {count} compiled part{'' if count == 1 else 's'}" if count else ""

    def output(self) -> Any:
        """Run the model."""
        return self.model(*self.args, **self.kwargs)

    def loss(self) -> Tensor | None:
        """Run the model and the loss function; None without a loss.

        Raises:
            ArgumentError: the loss is no scalar.
        """
        return self.loss_of(self.output())

    def loss_of(self, output: Any) -> Tensor | None:
        """Return the loss of *output*, without a loss function its own; None if there is none.

        Raises:
            ArgumentError: the loss is no scalar.
        """
        return own_loss(output) if self.loss_fn is None else check_loss(self.loss_fn(output))

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take a step; an optimizer that evaluates the loss itself, as LBFGS does, is given a function for that."""
        if not isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step()
            return

        def evaluate() -> float:
            optimizer.zero_grad()
            loss = self.loss()
            assert loss is not None
            torch.autograd.backward(loss)
            return float(loss.detach())

        optimizer.step(evaluate)

    def make_optimizer(self, given: Any) -> torch.optim.Optimizer:
        """Return the optimizer of the copy: the copied one, or what the function *given* returns for the copy's parameters.

        Raises:
            ArgumentError: *given* is neither an optimizer nor a function that returns one.
        """
        if self.optimizer is not None:
            return self.optimizer
        made: Any = given(list(self.model.parameters())) if callable(given) else given
        if not hasattr(made, "step"):
            returned = f" returned a {type(made).__name__}" if callable(given) else ""
            raise ArgumentError(
                f"optimizer={given!r}{returned}: give an optimizer, or a function from a list of parameters to one, as "
                "lambda parameters: torch.optim.AdamW(parameters, lr=3e-4)"
            )
        optimizer: torch.optim.Optimizer = made
        return optimizer


def check_numbers(model: nn.Module, name: str = "the model", *, may_be_lazy: bool = False) -> None:
    """Check that the parameters and buffers of a model, called *name* in words, have numbers.

    Raises:
        ArgumentError: some have none, as on the device ``meta``; the message names the first.
    """
    held = [*model.named_parameters(), *model.named_buffers()]
    lazy = [] if may_be_lazy else [own for own, tensor in held if is_lazy(tensor)]
    if lazy:
        raise ArgumentError(f"{lazy[0]} of {name} is lazy, and has no numbers yet: run {name} once on a batch first")
    meta = [own for own, tensor in held if tensor.is_meta]
    if meta:
        raise ArgumentError(
            f"{len(meta):,} of {len(held):,} parameters and buffers of {name} are on the device 'meta', as {meta[0]}, where "
            "tensors have no numbers: load its weights first, with to_empty(device='cpu') and load_state_dict(...)"
        )
