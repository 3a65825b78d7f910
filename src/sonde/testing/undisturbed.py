"""Check that observing changes nothing: compare a model with and without a probe to the last bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from sonde.engine import observe, structure
from sonde.engine.torch_api import pytree
from sonde.engine.torch_api.hooks import hooks_on
from sonde.keep import track
from sonde.stats import Moments
from sonde.testing.trial import Loss, Trial, difference, listed, random_state, same_chance, settled

__all__ = ["PROBES", "MakeProbe", "assert_undisturbed"]

MakeProbe: TypeAlias = Callable[[nn.Module], AbstractContextManager[Any]]
"""Attaches an observer to a model and returns a context whose end removes the observer."""

Facts: TypeAlias = dict[str, Any]

_PASSES = 2  # some changes appear only at the second forward


def _ignore(event: object) -> None:
    """Do nothing with *event*."""


PROBES: Mapping[str, MakeProbe] = {
    "observe, outputs": lambda model: observe(model, _ignore, strict=True),
    "observe, every port": lambda model: observe(
        model, _ignore, ports=("input", "output", "grad_output", "grad"), strict=True
    ),
    "observe with Moments": lambda model: observe(
        model, Moments(), ports=("input", "output", "grad_output", "grad"), strict=True
    ),
    "track": lambda model: track(model, strict=True),
}  # fmt: skip
"""The kinds of probe, by name. None has the port ``grad_input``, which adds a node to the graph."""


def assert_undisturbed(
    model: nn.Module,
    /,
    *args: Any,
    loss_fn: Loss | None = None,
    probes: Mapping[str, MakeProbe] | None = None,
    factory: Callable[[], nn.Module] | None = None,
    **kwargs: Any,
) -> None:
    """Assert that observing *model* changes nothing in its forward and backward passes.

    Two passes of a copy without a probe are compared with two passes of a copy under each kind of probe: the output (values,
    types, strides, the graph behind it), the loss, gradients of parameters and of argument leaves, buffers and
    ``state_dict``, training flags, attributes and hooks of every module, the state of all random generators. Floating-point
    numbers are compared bit by bit; any NaN equals any other. *model*, the arguments and the random generators do not
    change.

    >>> import torch
    >>> from sonde.testing import assert_undisturbed
    >>> assert_undisturbed(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout()), torch.ones(2, 4))

    Args:
        model: any model in eager mode, in training or evaluation.
        args, kwargs: the arguments of the call.
        loss_fn: maps the output to a scalar; the default is the sum of the mean squares of all tensors that need a gradient.
        probes: the probes to attach, by name, in place of :data:`PROBES`.
        factory: makes the same model again, for a model that cannot be deep-copied.

    Raises:
        AssertionError: something differs; the message names the probe, the value and the place. Also if the model gives
            different results in two unobserved runs.
        ArgumentError: the model cannot be copied and there is no *factory*.
    """
    trial = Trial(model, args, kwargs, loss_fn, factory)
    with same_chance() as rewind:
        rewind()
        plain = _facts(trial, None)
        for name, make in (PROBES if probes is None else probes).items():
            rewind()
            try:
                observed = _facts(trial, make)
            except Exception as error:
                raise AssertionError(f"under the probe {name!r} the model raised {type(error).__name__}: {error}") from error
            changed = _changes(plain, observed)
            if not changed:
                continue
            rewind()
            unsteady = _changes(plain, _facts(trial, None))
            if unsteady:
                raise AssertionError(
                    listed(f"{type(model).__name__} gives other results when it is run again unobserved", unsteady)
                )
            raise AssertionError(listed(f"the probe {name!r} changes {type(model).__name__}", changed))


def _changes(plain: Facts, observed: Facts) -> list[str]:
    """Return the differences between two runs, in words."""
    lines = []
    for key in dict.fromkeys([*plain, *observed]):
        if key not in observed or key not in plain:
            lines.append(f"{key}: only {'with' if key in observed else 'without'} the probe")
            continue
        here, there = plain[key], observed[key]
        if isinstance(here, Tensor) and isinstance(there, Tensor):
            text = difference(here, there)
        else:
            text = "" if _equal(here, there) else f"{_shown(here)} and {_shown(there)}"
        if text:
            lines.append(f"{key}: {text} (without, with)")
    return lines


def _shown(held: Any) -> str:
    text = f"a tensor of shape {tuple(held.shape)}" if isinstance(held, Tensor) else repr(held)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


_LONGEST = 400


def _equal(here: Any, there: Any) -> bool:
    leaves, form = pytree.flatten(here)
    others, other_form = pytree.flatten(there)
    return form == other_form and all(map(_equal_leaves, leaves, others))


def _equal_leaves(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and difference(one, other) == ""
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


# ------------------------------------------------------------------------------------------------------------ gathering


def _facts(trial: Trial, make: MakeProbe | None) -> Facts:
    """Return all observable facts of two passes of a fresh copy of the model, under the probe that *make* attaches."""
    model = trial.fresh_model()
    facts: Facts = {}
    batches = []
    with nullcontext() if make is None else make(model):
        for number in range(_PASSES):
            args, kwargs = trial.fresh_batch()
            batches.append((args, kwargs))
            output = settled(model(*args, **kwargs))
            facts |= {f"pass {number}: {key}": held for key, held in _of_output(output).items()}
            loss = trial.loss(output)
            if loss is not None:
                facts[f"pass {number}: loss"] = loss.detach().clone()
                facts[f"pass {number}: nodes of the graph"] = _nodes(loss)
                torch.autograd.backward(loss)
    for number, (args, kwargs) in enumerate(batches):
        facts |= {f"pass {number}: {key}": held for key, held in _of_arguments(args, kwargs).items()}
    return facts | _of_model(model) | {f"random state, {name}": held for name, held in random_state().items()}


def _of_output(output: Any) -> Facts:
    leaves, form = pytree.flatten(output)
    kinds = [leaf if isinstance(leaf, bool | int | float | str) else type(leaf).__name__ for leaf in leaves]
    facts: Facts = {"types of the output": str(form), "leaves of the output": kinds}
    for path, tensor in structure.walk(output):
        facts[f"output{path}"] = tensor.detach().clone()
        facts[f"output{path}, made by"] = type(tensor.grad_fn).__name__
        facts[f"output{path}, needs a gradient"] = tensor.requires_grad
        if tensor.layout == torch.strided and not tensor.is_nested:
            facts[f"output{path}, stride"] = tensor.stride()
    return facts


def _of_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Facts:
    facts: Facts = {}
    for path, tensor in (*structure.walk(args), *structure.walk(kwargs)):
        facts[f"argument{path}"] = tensor.detach().clone()
        if tensor.is_leaf:
            facts[f"gradient of argument{path}"] = tensor.grad
        facts[f"hooks of argument{path}"] = len(hooks_on(tensor)["_backward_hooks"])
    return facts


def _of_model(model: nn.Module) -> Facts:
    facts: Facts = {}
    for name, module in model.named_modules():
        where = name or "(root)"
        facts[f"training flag of {where}"] = module.training
        facts[f"attributes of {where}"] = sorted(vars(module))
        facts[f"hooks of {where}"] = {kind: len(held) for kind, held in hooks_on(module).items()}
    for name, parameter in model.named_parameters():
        facts[f"gradient of {name}"] = parameter.grad
        facts[f"hooks of {name}"] = {kind: len(held) for kind, held in hooks_on(parameter).items()}
    for name, buffer in model.named_buffers():
        facts[f"buffer {name}"] = buffer.detach().clone()
    return facts | {f"state_dict {key}": held for key, held in model.state_dict().items()}


def _nodes(loss: Tensor) -> dict[str, int]:
    """Return the number of nodes of each kind in the graph behind *loss*."""
    counts: Counter[str] = Counter()
    pending: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        counts[type(node).__name__] += 1
        pending += [following for following, _ in node.next_functions]
    return dict(sorted(counts.items()))
