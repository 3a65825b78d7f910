"""Steps of optimizers, of whichever there are in the process: nobody has to hand one over."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torch import Tensor
from torch.optim.optimizer import Optimizer

from sonde.engine import compiled, hooks

__all__ = ["follow", "held_by", "is_skipped", "leave"]


class Follower(Protocol):
    """What wants to know of steps."""

    def precede(self, optimizer: Optimizer, *, closure: bool) -> None:
        """*optimizer* is about to step; with *closure*, computing its gradients meanwhile."""

    def follow(self, optimizer: Optimizer, *, closure: bool) -> None:
        """It has stepped."""


_followers: dict[int, weakref.ref[Follower]] = {}
_handles: list[hooks.Handle] = []


def follow(follower: Follower) -> None:
    """Tell *follower*, which is held weakly, of every step from now on."""
    key = id(follower)
    _followers[key] = weakref.ref(follower, lambda _: _drop(key))
    if not _handles:
        _handles[:] = hooks.on_before_optimizer_step(_steps), hooks.on_optimizer_step(_stepped)


def leave(follower: Follower) -> None:
    """Tell it no more. Hooks are there while anybody follows, and not a moment longer."""
    _drop(id(follower))


def _drop(key: int) -> None:
    _followers.pop(key, None)
    if not _followers:
        for handle in _handles:
            handle.remove()
        _handles.clear()


def _steps(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if compiled.is_traced():
        return
    closure = _has_closure(args, kwargs)
    for reference in tuple(_followers.values()):
        follower = reference()
        if follower is not None:
            follower.precede(optimizer, closure=closure)


def _stepped(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if compiled.is_traced():
        return
    closure = _has_closure(args, kwargs)
    for reference in tuple(_followers.values()):
        follower = reference()
        if follower is not None:
            follower.follow(optimizer, closure=closure)


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = [argument for argument in args if argument is not None and not isinstance(argument, Optimizer)]
    return bool(given) or kwargs.get("closure") is not None


# What an optimizer holds changes rarely and is asked at every step: it is built again when the lists have other lengths or ends.
_known: weakref.WeakKeyDictionary[Optimizer, tuple[tuple[tuple[int, int, int], ...], frozenset[int]]] = weakref.WeakKeyDictionary()


def held_by(optimizer: Optimizer) -> frozenset[int]:
    """The parameters that *optimizer* steps, by their ids; the same object as long as it is the same set."""
    ends = tuple([(len(held), id(held[0]), id(held[-1])) for group in optimizer.param_groups if (held := group["params"])])
    known = _known.get(optimizer)
    if known is None or known[0] != ends:
        known = ends, frozenset(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
        _known[optimizer] = known
    return known[1]


def is_skipped(optimizer: Optimizer) -> bool:
    """Whether a fused optimizer under a ``GradScaler`` found infinities and left the parameters as they were."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and bool(found)
