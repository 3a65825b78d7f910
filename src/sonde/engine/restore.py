"""Run a model and leave it as it was: buffers, attributes, gradients, random state, and the tensors of the batch."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.engine.selection import members, parameters
from sonde.engine.torch_api.modules import buffers_of, holds_parameters_elsewhere
from sonde.engine.torch_api.tensors import version_of

__all__ = ["gradients_put_aside", "plain_python", "preserved", "versions"]


@contextlib.contextmanager
def preserved(model: nn.Module, given: list[Tensor]) -> Iterator[None]:
    """Restore *model*, the tensors *given* and the random state at the end, whatever runs inside."""
    leaves = [*model.parameters(), *(tensor for tensor in given if tensor.is_leaf)]
    with _random_state((*leaves, *model.buffers(), *given)), gradients_put_aside(leaves):
        contents = [_content(tensor) for tensor in (*model.buffers(), *_renormed(model), *given) if not is_lazy(tensor)]
        attributes = [(module, dict(vars(module)), dict(buffers_of(module))) for module in _own_modules(model)]
        try:
            yield
        finally:
            for module, held, buffers in attributes:
                for name in vars(module).keys() - held.keys():
                    del vars(module)[name]
                vars(module).update(held)
                buffers_of(module).clear()
                buffers_of(module).update(buffers)
            for restore in contents:
                restore()


def _content(tensor: Tensor) -> Callable[[], None]:
    """Return a function that writes the present numbers of *tensor* back if they have changed. The version stays."""
    kept = tensor.detach().clone()

    def restore() -> None:
        if not tensor.is_meta and not _equal(tensor.detach(), kept):
            tensor.data.copy_(kept)

    return restore


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same bits; True where bits cannot be read (sparse, nested, wrapped tensors)."""
    try:
        return one.shape == other.shape and torch.equal(_bits(one), _bits(other))
    except (RuntimeError, NotImplementedError):
        return True


def _bits(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


def _renormed(model: nn.Module) -> list[Tensor]:
    """Return the weights that a forward writes into: those of embeddings with a ``max_norm``."""
    writers = [module for module in model.modules() if getattr(module, "max_norm", None) is not None]
    return [parameter for module in writers for parameter in module.parameters(recurse=False)]


def _own_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules whose attributes are put back: all but wrappers; none where FSDP keeps parameters in attributes."""
    if any(map(holds_parameters_elsewhere, model.modules())):
        return []
    return [item.module for item in members(model) if not isinstance(item.module, torch.jit.ScriptModule)]


@contextlib.contextmanager
def gradients_put_aside(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Take the ``.grad`` of each tensor away inside; give the same object back at the end."""
    kept = [(tensor, tensor.grad) for tensor in tensors]
    try:
        for tensor, _ in kept:
            tensor.grad = None
        yield
    finally:
        for tensor, gradient in kept:
            tensor.grad = gradient


@contextlib.contextmanager
def _random_state(used: Iterable[Tensor]) -> Iterator[None]:
    """Restore the random state of Python, NumPy, torch on the CPU, and accelerators: of *used*, and the current one."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    accelerator = torch.accelerator.current_accelerator()
    device_module: Any = torch.get_device_module(accelerator) if accelerator is not None else None
    places: list[tuple[int, ...]] = []
    if accelerator is not None:
        indices = {tensor.device.index or 0 for tensor in used if tensor.device.type == accelerator.type}
        if indices or getattr(device_module, "is_initialized", bool)():  # never the first to wake a device
            indices.add(torch.accelerator.current_device_index())
        places = [()] if accelerator.type == "mps" else [(index,) for index in sorted(indices)]
    states = [(place, device_module.get_rng_state(*place)) for place in places]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        for place, state in states:
            device_module.set_rng_state(state, *place)


def plain_python() -> contextlib.AbstractContextManager[Any]:
    """Run compiled modules as they were written inside, so that hooks and tracebacks are those of the modules."""
    if "torch._dynamo" not in sys.modules:  # then nothing is compiled, and importing it takes seconds
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def versions(model: nn.Module) -> dict[str, int]:
    """Return the version of each parameter: how often it was written into."""
    skipped = {id(parameter) for parameter in (*_renormed(model), *filter(is_lazy, model.parameters()))}
    return {
        name: version_of(parameter)
        for name, parameter, _ in parameters(model)
        if id(parameter) not in skipped and not parameter.is_inference()
    }
