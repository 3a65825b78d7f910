"""Run a model and leave it as it was: run a copy that cannot reach it, or where there can be none, put everything back."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.engine import structure
from sonde.engine.random_state import RandomState
from sonde.engine.selection import members, parameters
from sonde.engine.stand_in import StandIn
from sonde.engine.torch_api import hooks
from sonde.engine.torch_api.modules import buffers_of, class_of, holds_parameters_elsewhere, parameters_in
from sonde.engine.torch_api.torch_tensors import version_of
from sonde.engine.unseen import quiet
from sonde.warn import warn_user


@dataclass(frozen=True, slots=True)
class Apart:
    """A model and the arguments of its call, set apart to be run.

    Attributes:
        model, args, kwargs: copies; the model and the arguments themselves where these cannot be copied.
        undoes_writes: a forward that writes into a parameter leaves the user's parameter as it is.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    undoes_writes: bool
    _stand_in: StandIn | None = None

    @property
    def hooks_left(self) -> list[tuple[Tensor, str]]:
        """The hooks on tensors that the copies do not have, each with the tensor of the user."""
        return [] if self._stand_in is None else self._stand_in.hooks_left

    def original(self, made: Any) -> Any:
        """Return the user's module or parameter that *made* stands for; *made* itself if it stands for none."""
        return made if self._stand_in is None else self._stand_in.original(made)


_NOTHING: Mapping[str, Any] = MappingProxyType({})


@contextlib.contextmanager
def set_apart(model: nn.Module, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = _NOTHING) -> Iterator[Apart]:
    """Yield copies of *model* and of the arguments of its call; whatever runs on them inside changes nothing outside.

    Inside, the observers that were attached before see nothing in this thread, and compiled functions run as plain Python, so that
    hooks and tracebacks are those of modules. At the end the random state is restored. A model that cannot be copied, as one
    of FSDP, is yielded itself, with a warning beforehand; at the end it is put back as it was, as far as possible.
    """
    stand_in: StandIn | None = StandIn(model)
    apart = Apart(model, args, dict(kwargs), False)
    try:
        assert stand_in is not None
        with _collector_at_rest():
            copied = stand_in.copied(model), stand_in.copied(args), stand_in.copied(dict(kwargs))
        apart = Apart(*copied, not stand_in.shares_parameters, stand_in)
    except Exception as error:
        stand_in = None
        warn_user(
            f"{class_of(model).__name__} cannot be copied ({type(error).__name__}: {error}), so that the model itself runs. "
            "Buffers, attributes, hooks, gradients and random state are put back afterwards; anything else that its forward "
            "changes stays."
        )
    if stand_in is not None and stand_in.kept:
        shown = ", ".join(f"{place} (a {kind})" for place, kind in list(stand_in.kept.items())[:4])
        warn_user(
            f"a copy of {class_of(model).__name__} runs, but {shown} cannot be copied: what the forward changes there stays changed"
        )
    given = [tensor for _, tensor in structure.walk((apart.args, apart.kwargs))]
    used = (*apart.model.parameters(), *apart.model.buffers(), *given)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_random_state(used))
        stack.enter_context(quiet())
        stack.enter_context(_plain_python())
        if stand_in is None:
            stack.enter_context(_preserved(model, given))
        yield apart


@contextlib.contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Keep Python's collector from walking again and again over what is made inside: nothing becomes garbage there."""
    before = gc.get_threshold()
    gc.set_threshold(0)  # and not gc.disable(), which another thread may call meanwhile, and mean
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*before)


@contextlib.contextmanager
def _preserved(model: nn.Module, given: list[Tensor]) -> Iterator[None]:
    """Take sonde's hooks off *model*; restore *model* and the tensors *given* at the end, whatever runs inside."""
    leaves = [*parameters_in(model), *(tensor for tensor in given if tensor.is_leaf)]
    with hooks.taken_out(list(model.modules())), gradients_put_aside(leaves):
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
    held = tensor.resolve_conj().resolve_neg().contiguous()
    return held.as_strided((held.numel(),), (1,)).view(torch.uint8)  # the one element of a slice keeps the stride of the slice


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
    before = RandomState.now(used)
    try:
        yield
    finally:
        before.restore()


def _plain_python() -> contextlib.AbstractContextManager[Any]:
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
