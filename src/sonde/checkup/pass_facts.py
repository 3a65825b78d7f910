"""Gather all that can be observed of a few passes of a model, and compare two such gatherings to the last bit."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from sonde.checkup.bits import difference, is_compared
from sonde.diagnosis import distance_between
from sonde.engine import flatten, graph_nodes, hooks, remap, walk

Facts: TypeAlias = dict[str, Any]
"""By name what was observed: tensors, numbers, names."""

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

_LONGEST = 400


@dataclass(frozen=True, slots=True)
class Change:
    """One fact that differs between two runs.

    Attributes:
        name: of the fact.
        words: the difference.
        largest: of two tensors, the largest magnitude of the difference of two elements; None for anything else.
    """

    name: str
    words: str
    largest: float | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.words}"


def changes(plain: Facts, observed: Facts) -> list[Change]:
    """Return the differences between two runs, without and with a probe."""
    found = []
    for key in dict.fromkeys([*plain, *observed]):
        if key not in observed or key not in plain:
            found.append(Change(key, f"only {'with' if key in observed else 'without'} the probe"))
            continue
        here, there = plain[key], observed[key]
        if isinstance(here, Tensor) and isinstance(there, Tensor):
            if text := difference(here, there):
                found.append(Change(key, f"{text} (without, with)", distance_between(here, there).farthest))
        elif not _equal(here, there):
            found.append(Change(key, f"{_shown(here)} and {_shown(there)} (without, with)"))
    return found


def not_compared(facts: Facts) -> list[str]:
    """Return the names of the facts whose values cannot be read: tensors of classes that do not give them."""
    return [name for name, held in facts.items() if isinstance(held, Tensor) and not is_compared(held)]


def _shown(held: Any) -> str:
    text = f"a tensor of shape {tuple(held.shape)}" if isinstance(held, Tensor) else repr(held)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _equal(here: Any, there: Any) -> bool:
    leaves, form = flatten(here)
    others, other_form = flatten(there)
    return form == other_form and all(map(_equal_leaves, leaves, others))


def _equal_leaves(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and difference(one, other) == ""
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


# ------------------------------------------------------------------------------------------------------------ gathering


def facts_of_passes(
    model: nn.Module,
    arguments: Callable[[], Arguments],
    loss_of: Callable[[Any], Tensor | None],
    *,
    passes: int,
    make: Callable[[nn.Module], AbstractContextManager[Any]] | None = None,
    step: Callable[[Any], None] | None = None,
    state: Callable[[], Any] = lambda: None,
    called: nn.Module | None = None,
) -> Facts:
    """Return all observable facts of forward and backward passes of *model*, which they change.

    Args:
        model: a copy, to be run.
        arguments: returns fresh arguments of a call.
        loss_of: returns the loss of an output; None: no backward pass is made.
        passes: how many are made.
        make: attaches an observer to the model, and returns a context whose end removes the observer.
        step: called after each pass with what the context has given: takes an optimizer step.
        called: a wrapper of the model, which is called in its place.
        state: returns what else holds tensors that the passes change, as the state of an optimizer.
    """
    facts: Facts = {}
    batches = []
    with nullcontext() if make is None else make(model) as observer:
        for number in range(passes):
            args, kwargs = arguments()
            batches.append((args, kwargs))
            output = settled((model if called is None else called)(*args, **kwargs))
            facts |= {f"pass {number}: {key}": held for key, held in _of_output(output).items()}
            loss = loss_of(output)
            if loss is not None:
                facts[f"pass {number}: loss"] = loss.detach().clone()
                facts[f"pass {number}: nodes of the graph"] = _nodes(loss)
                torch.autograd.backward(loss)
            if step is not None:
                step(observer)
    for number, (args, kwargs) in enumerate(batches):
        facts |= {f"pass {number}: {key}": held for key, held in _of_arguments(args, kwargs).items()}
    facts |= {f"state of the optimizer{path}": _copied(held) for path, held in walk(state())}
    return facts | _of_model(model) | {f"random state, {name}": held for name, held in random_state().items()}


def settled(output: Any) -> Any:
    """Return *output*; the list of its items if it is a generator."""
    return list(output) if isinstance(output, Iterator) else output


def fresh(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Return a copy of the arguments. One tensor given twice is one copy given twice, and leaves stay leaves."""
    copies: dict[int, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = _copied(tensor).requires_grad_(tensor.requires_grad)
        return copies[id(tensor)]

    args, kwargs = remap((args, kwargs), copied, objects=True)
    return args, kwargs


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy of *tensor*; the tensor itself, without its graph, if its class cannot be copied."""
    held = tensor.detach()
    try:
        return held.clone()
    except NotImplementedError:
        return held


def _of_output(output: Any) -> Facts:
    leaves, form = flatten(output)
    kinds = [leaf if isinstance(leaf, bool | int | float | str) else type(leaf).__name__ for leaf in leaves]
    facts: Facts = {"types of the output": str(form), "leaves of the output": kinds}
    for path, tensor in walk(output):
        facts[f"output{path}"] = _copied(tensor)
        facts[f"output{path}, made by"] = type(tensor.grad_fn).__name__
        facts[f"output{path}, needs a gradient"] = tensor.requires_grad
        if tensor.layout == torch.strided and not tensor.is_nested:
            facts[f"output{path}, stride"] = tensor.stride()
    return facts


def _of_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Facts:
    facts: Facts = {}
    for path, tensor in (*walk(args), *walk(kwargs)):
        facts[f"argument{path}"] = _copied(tensor)
        if tensor.is_leaf:
            facts[f"gradient of argument{path}"] = tensor.grad
        facts[f"hooks of argument{path}"] = len(hooks.hooks_on(tensor)["_backward_hooks"])
    return facts


def _of_model(model: nn.Module) -> Facts:
    facts: Facts = {}
    for name, module in model.named_modules():
        where = name or "(root)"
        facts[f"training flag of {where}"] = module.training
        facts[f"attributes of {where}"] = sorted(vars(module))
        facts[f"hooks of {where}"] = {kind: len(held) for kind, held in hooks.hooks_on(module).items()}
    for name, parameter in model.named_parameters():
        facts[f"gradient of {name}"] = parameter.grad
        facts[f"hooks of {name}"] = {kind: len(held) for kind, held in hooks.hooks_on(parameter).items()}
    for name, buffer in model.named_buffers():
        facts[f"buffer {name}"] = _copied(buffer)
    return facts | {f"state_dict {key}": held for key, held in model.state_dict().items()}


def _nodes(loss: Tensor) -> dict[str, int]:
    """Return the number of nodes of each kind in the graph behind *loss*."""
    nodes = () if loss.grad_fn is None else graph_nodes.nodes_before(loss.grad_fn)
    return dict(sorted(Counter(type(node).__name__ for node in nodes).items()))


def random_state() -> dict[str, Any]:
    """Return the state of every random generator from which a model may draw."""
    state = {"torch on cpu": torch.get_rng_state(), "Python's": random.getstate(), "numpy's": np.random.get_state()}
    if torch.cuda.is_available():
        state |= {f"torch on cuda:{index}": held for index, held in enumerate(torch.cuda.get_rng_state_all())}
    return state
