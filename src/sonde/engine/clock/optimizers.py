"""Subscribe to the steps of every torch optimizer in the process."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from torch.optim.optimizer import Optimizer

from sonde.engine.torch_api import compiler_state, hooks


class Follower(Protocol):
    """A receiver of the steps of optimizers. *args* and *kwargs* are those of ``step``, *args* led by the optimizer."""

    def precede(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Prepare for the step that *optimizer* is about to make."""

    def follow(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the step that *optimizer* has made."""

    def failed(self, error: Exception) -> None:
        """Handle an *error* of the calls above. It must not reach the user's step, unless an observer is strict."""


class StepGuard(Protocol):
    """Judges the gradients of an optimizer before a step."""

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Judge the step that *optimizer* is about to make. What this raises leaves ``step``: the parameters are not changed."""


_followers: dict[int, weakref.ref[Follower]] = {}
_guards: dict[int, weakref.ref[StepGuard]] = {}
_announced: set[int] = set()  # followers that are called before a step as well
_hooks: dict[str, hooks.Handle] = {}
_lock = threading.RLock()  # probes come and go in several threads


def follow(follower: Follower) -> None:
    """Call *follower*, which is held weakly, after every step that was taken from now on."""
    key = id(follower)
    with _lock:
        _followers[key] = weakref.ref(follower, lambda _: _drop(key))
        if "after" not in _hooks:
            _hooks["after"] = hooks.on_optimizer_step(_stepped)


def announce(follower: Follower) -> None:
    """Call *follower* before every step, too."""
    with _lock:
        _announced.add(id(follower))
        if "before" not in _hooks:
            _hooks["before"] = hooks.on_before_optimizer_step(_steps)


def guard_steps(guard: StepGuard) -> None:
    """Call *guard*, which is held weakly, before every step, and before any follower."""
    key = id(guard)
    with _lock:
        _guards[key] = weakref.ref(guard, lambda _: _drop_guard(key))
        if "before" not in _hooks:
            _hooks["before"] = hooks.on_before_optimizer_step(_steps)


def stop_guarding(guard: StepGuard) -> None:
    """Stop calling *guard*. Idempotent."""
    _drop_guard(id(guard))


def _drop_guard(key: int) -> None:
    with _lock:
        _guards.pop(key, None)
        _take_out_unused()


def stop_announcing(follower: Follower) -> None:
    """Stop calling *follower* before steps. Idempotent."""
    with _lock:
        _announced.discard(id(follower))
        _take_out_unused()


def leave(follower: Follower) -> None:
    """Stop calling *follower*. Idempotent."""
    _drop(id(follower))


def _drop(key: int) -> None:
    with _lock:
        _followers.pop(key, None)
        _announced.discard(key)
        _take_out_unused()


def _take_out_unused() -> None:
    """Remove the hooks that no follower and no guard needs."""
    for hook, users in (("before", _announced or _guards), ("after", _followers)):
        if not users and hook in _hooks:
            _hooks.pop(hook).remove()


def _steps(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not (compiler_state.is_traced() or compiler_state.is_recorded()):
        hooks.apart(_tell_before, optimizer, args, kwargs)


def _tell_before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for held in tuple(_guards.values()):
        guard = held()
        if guard is not None:
            guard.before_step(optimizer, args, kwargs)
    for reference in tuple(_followers.values()) if _announced else ():
        follower = reference()
        if follower is not None:
            try:
                follower.precede(optimizer, args, kwargs)
            except Exception as error:
                follower.failed(error)


def _stepped(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not (compiler_state.is_traced() or compiler_state.is_recorded()):
        hooks.apart(_tell_after, optimizer, args, kwargs)


def _tell_after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for reference in tuple(_followers.values()):
        follower = reference()
        if follower is not None:
            try:
                follower.follow(optimizer, args, kwargs)
            except Exception as error:
                follower.failed(error)


def has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a step with these arguments computes its gradients itself."""
    given = [argument for argument in args if argument is not None and not isinstance(argument, Optimizer)]
    return bool(given) or kwargs.get("closure") is not None


_known: dict[int, tuple[weakref.ref[Optimizer], list[int], frozenset[int]]] = {}  # by the id of the optimizer


def held_by(optimizer: Optimizer) -> frozenset[int]:
    """Return the ids of the parameters that *optimizer* steps; the same object as long as the set is the same."""
    key = id(optimizer)
    held: list[int] = []
    for group in optimizer.param_groups:
        held += map(id, group["params"])
    known = _known.get(key)
    if known is None or known[0]() is not optimizer or known[1] != held:
        reference = weakref.ref(optimizer, lambda _: _known.pop(key, None))
        known = _known[key] = reference, held, frozenset(held)
    return known[2]


def may_nest(optimizer: Optimizer) -> bool:
    """Return whether one step of *optimizer* may be seen several times, as its class extends ``step`` of another class.

    torch wraps ``step`` of each class as the first optimizer of it is made, also where the class has inherited it.
    """
    return _are_several(tuple([vars(kind).get("step") for kind in type(optimizer).__mro__ if kind is not Optimizer]))


@lru_cache(maxsize=64)
def _are_several(steps: tuple[Callable[..., Any] | None, ...]) -> bool:
    return len({inspect.unwrap(step) for step in steps if step is not None}) > 1
