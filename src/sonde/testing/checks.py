"""Two checks of a model's state: that it is healthy, and that no hook of ours is left on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sonde import rules
from sonde.checkup import settled
from sonde.engine import as_arguments, hooks
from sonde.keep import Tracker, layers_of, track
from sonde.stats import Accumulator, Moments
from sonde.testing.trial import Loss, Trial, listed, same_chance


def assert_no_hooks_left(model: nn.Module, /) -> None:
    """Assert that no hook of ``sonde`` is on *model*, on its submodules, parameters or buffers.

    Hooks of others are not looked at, nor those that models of the zoo have of their own.

    >>> import torch
    >>> from sonde.testing import assert_no_hooks_left
    >>> assert_no_hooks_left(torch.nn.Linear(3, 2))

    Raises:
        AssertionError: there are some; the message names the module or tensor, the kind of hook and the hook.
    """
    found = [
        f"{name or '(root)'}: {kind.strip('_')}: {type(hook).__name__} {getattr(hook, '__qualname__', '')}".rstrip()
        for name, owner in _owners(model)
        for kind, held in hooks.hooks_on(owner).items()
        for hook in held.values()
        if _is_ours(hook)
    ]
    if found:
        raise AssertionError(listed(f"hooks of sonde are left on {type(model).__name__}", found))


def _owners(model: nn.Module) -> Iterator[tuple[str, nn.Module | Tensor]]:
    yield from model.named_modules()
    yield from model.named_parameters()
    yield from model.named_buffers()


def _is_ours(hook: Any) -> bool:
    modules = [getattr(part, "__module__", None) or "" for part in (hook, getattr(hook, "func", None), type(hook))]
    return any(f"{module}.".startswith("sonde.") and not module.startswith("sonde.testing") for module in modules)


def assert_healthy(
    model: nn.Module,
    batch: Any,
    loss_fn: Loss | None = None,
    /,
    *,
    factory: Callable[[], nn.Module] | None = None,
) -> None:
    """Assert that one forward and backward pass of a copy of *model* shows none of the plain diseases.

    These are the rules of ``sonde.rules`` whose severity is ``bad``: a NaN or an infinity in a layer's output, in the output's
    gradient or in a parameter's gradient; a gradient that is zero throughout; a layer that returns only zeros, or most of
    whose units are dead. A layer or parameter that no gradient reaches is healthy. The model stays as it is.

    >>> import torch
    >>> from sonde.testing import assert_healthy
    >>> assert_healthy(torch.nn.Linear(3, 2), torch.ones(4, 3), lambda output: output.square().mean())

    Args:
        model: any model.
        batch: the arguments of the call: a tuple or list holds the positional arguments, a dict or another mapping (as a tokenizer
            returns) the keyword arguments, and anything else is its only argument.
        loss_fn: from its output to a scalar; the default is the sum of the mean squares of all tensors that need a gradient.
        factory: makes the same model again, for one that cannot be deep-copied.

    Raises:
        AssertionError: it is not healthy; the message names each layer and what is wrong with it, the first in execution
            order first.
        ArgumentError: the model cannot be copied and there is no *factory*.
    """
    args, kwargs = as_arguments(batch)
    trial = Trial(model, args, kwargs, loss_fn, factory)
    with same_chance():
        observed = trial.fresh_model()
        observed.zero_grad(set_to_none=True)
        with track(observed, strict=True) as tracker:
            args, kwargs = trial.fresh_batch()
            loss = trial.loss(settled(observed(*args, **kwargs)))
            if loss is not None:
                torch.autograd.backward(loss)
    wrong = [*_of_loss(loss), *_of_layers(tracker), *_of_parameters(observed)]
    if wrong:
        raise AssertionError(listed(f"{type(model).__name__} is not healthy", wrong))


def _of_loss(loss: Tensor | None) -> Iterator[str]:
    if loss is not None and not loss.is_meta and not bool(loss.isfinite().all()):
        yield f"the loss is {loss.item()}"


def _of_layers(tracker: Tracker) -> Iterator[str]:
    for layer in layers_of(tracker):
        reasons = [found.message for found in layer.findings if found.severity == "bad"]
        if reasons:
            yield f"{layer.name or '(root)'} ({layer.kind.__name__}): {', '.join(reasons)}"


def _of_parameters(model: nn.Module) -> Iterator[str]:
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient is None or gradient.is_meta or gradient.numel() == 0:
            continue
        dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
        for found in rules.of_gradient(Accumulator(Moments()).update(dense).compute(), 0.0):
            yield f"{name}: {found.message}"
