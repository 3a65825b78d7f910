"""Make the changes by which a difference is undone on a copy: parameters, settings, modes, random draws, cuts, ties, code."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sonde.diagnosis.compare.sides import Side, feature_axis
from sonde.diagnosis.compare.suspects import CannotChangeError, Change
from sonde.diagnosis.nonfinite.source_lines import RawFrame, calling_frames, is_of_users
from sonde.engine import OperatorCall, OperatorMode, Trial, autograd_state, members, parameters, remap, walk


def module_in(model: nn.Module, name: str) -> nn.Module:
    """Return the module *name* of a copy."""
    found: nn.Module | None = next((item.module for item in members(model) if item.name == name), None)
    if found is None:
        raise CannotChangeError(name)
    return found


def putting(side: Side, owner: str, name: str, value: Tensor) -> Change:
    """Return the change that *value* stands in the place of the tensor *name* of the module *owner*."""

    def put(trial: Trial) -> None:
        _check_free(trial)
        side.write(trial.model, owner, name, value)

    return Change((put,))


def moved(side: Side, module: str, old: Tensor, new: Tensor) -> Change:
    """Return the change that the features *old* of the output of a linear layer stand at the places *new*."""
    change = Change()
    for leaf, held in side.tensors_of(module).items():
        order = old[new.argsort()].to(held.device)
        change += putting(side, module, leaf, held.index_select(feature_axis(side.modules()[module], held), order))
    return change


def _check_free(trial: Trial) -> None:
    if not trial.is_free:
        raise CannotChangeError("the parameters of the copy are those of the user")


def setting(side: Side, owner: str, names: Mapping[str, Any]) -> Change:
    """Return the change that attributes of the module *owner* have other values; ``config.x`` is one of its ``config``."""
    real = side.real(owner)

    def put(trial: Trial) -> None:
        for name, value in names.items():
            held: Any = module_in(trial.model, real)
            *path, last = name.split(".")
            for part in path:
                held = getattr(held, part)
            if isinstance(held, dict):
                held[last] = value
            else:
                setattr(held, last, value)
            if last == "padding" and isinstance(value, tuple) and hasattr(held, "_reversed_padding_repeated_twice"):
                held._reversed_padding_repeated_twice = [each for each in reversed(value) for _ in range(2)]

    return Change((put,))


def mode(side: Side, owner: str, *, training: bool, inside: bool = False) -> Change:
    """Return the change that *owner* is in training mode, or is not; with *inside* all modules inside of it, too."""
    real = side.real(owner)

    def put(trial: Trial) -> None:
        module = module_in(trial.model, real)
        if inside:
            module.train(training)
        module.training = training

    return Change((put,))


def requiring(flags: Mapping[str, bool]) -> Change:
    """Return the change that parameters, by their names, require a gradient or do not."""

    def put(trial: Trial) -> None:
        _check_free(trial)
        for name, parameter, _ in parameters(trial.model):
            if name in flags:
                parameter.requires_grad_(flags[name])

    return Change((put,))


def tied(names: Sequence[str]) -> Change:
    """Return the change that the parameters *names* are one: the first."""

    def put(trial: Trial) -> None:
        _check_free(trial)
        first = trial.model.get_parameter(names[0])
        for name in names[1:]:
            layer, _, own = name.rpartition(".")
            setattr(trial.model.get_submodule(layer), own, first)

    return Change((put,))


def typed(kind: torch.dtype) -> Change:
    """Return the change that the model computes in another type, and is given the batch in it."""

    def put(trial: Trial) -> None:
        _check_free(trial)

        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(kind) if tensor.is_floating_point() else tensor

        trial.model = trial.model.to(kind)
        trial.args, trial.kwargs = remap(trial.args, cast), remap(trial.kwargs, cast)

    return Change((put,))


def disturbed(side: Side, name: str, call: int, factor: Tensor) -> Change:
    """Return the change that the first floating-point tensor which the module *name* returns in one *call* is multiplied."""
    real, calls = side.real(name), itertools.count()

    def put(trial: Trial) -> None:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            left = [factor] * (next(calls) == call)

            def times(tensor: Tensor) -> Tensor:
                is_it = left and tensor.is_floating_point() and tensor.shape == left[0].shape
                return tensor * left.pop().to(tensor.device, tensor.dtype) if is_it else tensor

            return remap(output, times)

        module_in(trial.model, real).register_forward_hook(hook)

    return Change((put,))


def given(leaf: str, value: Tensor) -> Change:
    """Return the change that the tensor of the batch at a leaf path of the model's input is another."""

    def put(trial: Trial) -> None:
        leaves = [*walk(trial.args), *walk(trial.kwargs)]
        wanted = next(tensor for path, tensor in leaves if path == leaf)

        def replaced(tensor: Tensor) -> Tensor:
            return value.to(tensor.device, tensor.dtype) if tensor is wanted else tensor

        trial.args, trial.kwargs = remap(trial.args, replaced), remap(trial.kwargs, replaced)

    return Change((put,))


def argument(side: Side, owner: str, place: int | str, value: Any) -> Change:
    """Return the change that *owner* is called with another positional (by number) or keyword argument."""
    real = side.real(owner)

    def put(trial: Trial) -> None:
        module = module_in(trial.model, real)
        forward: Callable[..., Any] = module.forward

        def called(*args: Any, **kwargs: Any) -> Any:
            if isinstance(place, int):
                return forward(*args[:place], value, *args[place + 1 :], **kwargs)
            return forward(*args, **{**kwargs, place: value})

        module.forward = called

    return Change((put,))


def code(side: Side, owner: str, given: nn.Module, held: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Change:
    """Return the change that a copy of the module *given* stands in the place of *owner*, with other tensors and settings."""
    real = side.real(owner)

    def put(trial: Trial) -> None:
        _check_free(trial)
        before = module_in(trial.model, real)
        made = copy.deepcopy(given)
        own = dict(made.named_parameters()) | dict(made.named_buffers())
        with torch.no_grad():
            for name, value in held.items():
                is_turned = value.dim() == 2 and value.shape != own[name].shape and value.mT.shape == own[name].shape
                own[name].copy_(value.mT if is_turned else value.reshape(own[name].shape))
        for name, setting in settings.items():
            setattr(made, name, setting)
        made.train(before.training)
        if not real:
            trial.model = made
            return
        layer, _, last = real.rpartition(".")
        setattr(module_in(trial.model, layer), last, made)

    return Change((put,))


class Still(OperatorMode):
    """While entered, each draw of random numbers gives its mean: a dropout passes on what it is given."""

    def operator(self, call: OperatorCall) -> Any:
        result = call.run()
        name = str(call.function.name()).removeprefix("aten::").partition(".")[0]
        given = call.given
        if name in ("bernoulli", "bernoulli_"):
            share = given.get("p", 0.5 if name == "bernoulli_" else given["self"])  # a default is not among the arguments
            return result.copy_(share) if isinstance(share, Tensor) else result.fill_(share)
        if name == "native_dropout":
            return given["input"].clone(), torch.ones_like(result[1])
        mean = _MEANS.get(name)
        return result if mean is None else result.copy_(torch.as_tensor(mean(given), device=result.device))


_MEANS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "rand": lambda given: 0.5,
    "rand_like": lambda given: 0.5,
    "randn": lambda given: 0.0,
    "randn_like": lambda given: 0.0,
    "uniform_": lambda given: (given.get("from", 0.0) + given.get("to", 1.0)) / 2,
    "normal_": lambda given: given.get("mean", 0.0),
    "normal": lambda given: given.get("mean", 0.0),
    "exponential_": lambda given: 1 / given.get("lambd", 1.0),
}
"""The means of what operators draw, from their arguments."""


class Flowing(TorchFunctionMode):
    """While entered, ``detach()``, ``.data`` and ``torch.no_grad()`` do not keep gradients from flowing.

    Args:
        only: the call that does not; None for all.
        seen: is given the calls of users and libraries.
    """

    def __init__(self, only: RawFrame | None = None, seen: dict[RawFrame, None] | None = None) -> None:
        super().__init__()
        self._only, self._seen = only, {} if seen is None else seen
        self._is_paused = False

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if not self._is_paused and func in (*_CUTS, autograd_state.set_gradient_mode):
            called = next((frame for frame in calling_frames() if is_of_users(frame.code)), None)
            self._seen |= {} if called is None else {called: None}
            if self._only in (None, called):
                return args[0] if func in _CUTS else None
        return func(*args, **(kwargs or {}))

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Let operations have their usual effect meanwhile."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before


def cuts(side: Side) -> list[RawFrame]:
    """Return which calls of a model's code keep gradients back, as one more run shows."""
    seen: dict[RawFrame, None] = {}
    if side.again is not None:
        side.again(Change(contexts=(lambda: Flowing(seen=seen),)), True, lambda kept: None)
    return list(seen)


_CUTS = (torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__)  # type: ignore[attr-defined]  # a descriptor
