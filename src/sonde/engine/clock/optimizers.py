"""Steps of optimizers, of whichever there are in the process: nobody has to hand one over."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torch import Tensor
from torch.optim.optimizer import Optimizer

from sonde.engine.torch_api import compiled, hooks

__all__ = ["announce", "follow", "has_closure", "held_by", "hush", "is_skipped", "leave"]


class Follower(Protocol):
    """What wants to know of steps."""

    def precede(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """*optimizer* is about to step, called with *args* (itself first, as torch has it) and *kwargs*."""

    def follow(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """It has stepped."""


_followers: dict[int, weakref.ref[Follower]] = {}
_heralded: set[int] = set()  # of them, those that are told before a step as well
_hooks: dict[str, hooks.Handle] = {}


def follow(follower: Follower) -> None:
    """Tell *follower*, which is held weakly, of every step that was taken from now on."""
    key = id(follower)
    _followers[key] = weakref.ref(follower, lambda _: _drop(key))
    if "after" not in _hooks:
        _hooks["after"] = hooks.on_optimizer_step(_stepped)


def announce(follower: Follower) -> None:
    """Tell it of every step before it is taken as well."""
    _heralded.add(id(follower))
    if "before" not in _hooks:
        _hooks["before"] = hooks.on_before_optimizer_step(_steps)


def hush(follower: Follower) -> None:
    """Tell it after steps alone. Again does nothing."""
    _heralded.discard(id(follower))
    if not _heralded:
        _take_out("before")


def _take_out(hook: str) -> None:
    handle = _hooks.pop(hook, None)
    if handle is not None:
        handle.remove()


def leave(follower: Follower) -> None:
    """Tell it no more. Hooks are there while anybody follows, and not a moment longer."""
    _drop(id(follower))


def _drop(key: int) -> None:
    _followers.pop(key, None)
    _heralded.discard(key)
    if not _heralded:
        _take_out("before")
    if not _followers:
        _take_out("after")


def _steps(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if compiled.is_traced():
        return
    for reference in tuple(_followers.values()):
        follower = reference()
        if follower is not None:
            follower.precede(optimizer, args, kwargs)


def _stepped(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if compiled.is_traced():
        return
    for reference in tuple(_followers.values()):
        follower = reference()
        if follower is not None:
            follower.follow(optimizer, args, kwargs)


def has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a step that is called so computes its gradients itself."""
    given = [argument for argument in args if argument is not None and not isinstance(argument, Optimizer)]
    return bool(given) or kwargs.get("closure") is not None


# What an optimizer holds changes rarely and is asked at every step: it is built again when the lists have other lengths or ends.
_Ends = list[tuple[int, int, int]]
_known: dict[int, tuple[weakref.ref[Optimizer], _Ends, frozenset[int]]] = {}


def held_by(optimizer: Optimizer) -> frozenset[int]:
    """The parameters that *optimizer* steps, by their ids; the same object as long as it is the same set."""
    key = id(optimizer)
    ends = [(len(held), id(held[0]), id(held[-1])) for group in optimizer.param_groups if (held := group["params"])]
    known = _known.get(key)
    if known is None or known[0]() is not optimizer or known[1] != ends:
        reference = weakref.ref(optimizer, lambda _: _known.pop(key, None))
        known = reference, ends, frozenset(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
        _known[key] = known
    return known[2]


def is_skipped(optimizer: Optimizer) -> bool:
    """Whether a fused optimizer under a ``GradScaler`` found infinities and left the parameters as they were."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and bool(found)
