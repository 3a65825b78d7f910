"""``quiet``: run a model unseen by the observers that are on it, in this thread alone.

Hooks stay where they are, since other threads may train the same model. While any block is open anywhere, each hook asks
``is_quiet``; otherwise it reads one empty list. Observers and blocks are numbered as they come: a block is for the observers
that came before it, so that an instrument of sonde can run a forward that only its own probe sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import nn

from sonde.engine.selection import check_model
from sonde.engine.torch_api import autograd_state
from sonde.engine.torch_api.modules import unwrap

_KEY = "sonde quiet"
_numbers = count()


@dataclass(frozen=True, slots=True)
class _Block:
    """One open ``with quiet(...)`` block.

    Attributes:
        number: observers with a smaller one do not see what runs in the block.
        things: the ids of the modules and parameters at which nothing is seen; None for all.
        clocks: the clocks of observers that were made in the block, by root.
    """

    number: int
    things: frozenset[int] | None
    clocks: WeakKeyDictionary[nn.Module, ref[Any]]


class Observer:
    """Base of objects that observe a model. In a copy or a pickle of anything that holds one, as a model, stands None."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


blocks: list[_Block] = []
"""The blocks that are open, in any thread. Empty, and that is all a hook looks at, where there are none."""


def next_number() -> int:
    """Return the number of an observer that begins to observe now, or of a block that begins now."""
    return next(_numbers)


def is_quiet(number: int, *things: object) -> bool:
    """Return whether the observer with *number* may not see what happens now in this thread, at one of *things*.

    These are modules (also wrappers of the models of a block) and parameters. A backward pass that another thread runs for this
    one is part of this thread.
    """
    return any(
        number < block.number and (block.things is None or any(_is_in(block.things, thing) for thing in things))
        for block in _mine()
    )


def _is_in(things: frozenset[int], thing: object) -> bool:
    return id(thing) in things or (isinstance(thing, nn.Module) and id(unwrap(thing)) in things)


def are_quiet(number: int, ids: Set[int]) -> bool:
    """Return whether *number* may not see what happens now at the parameters with *ids*: none of them can be seen."""
    return any(number < block.number and (block.things is None or block.things >= ids) for block in _mine())


def innermost() -> _Block | None:
    """Return the innermost block of this thread; None outside of any."""
    mine = _mine()
    return mine[-1] if mine else None


def _mine() -> tuple[_Block, ...]:
    """Return the blocks of this thread, the innermost last."""
    return autograd_state.thread_value(_KEY) or ()


@contextmanager
def quiet(*models: nn.Module) -> Iterator[None]:
    """Run *models* unseen by the probes, recorders, trackers and inspectors that are on them, and by their clocks.

    >>> import sonde, torch
    >>> model = torch.nn.Linear(2, 2)
    >>> with sonde.track(model) as tracker:
    ...     with sonde.quiet(model):
    ...         output = model(torch.ones(1, 2))  # a look of your own in the middle of a training
    >>> len(tracker)
    0

    Nothing that happens in the block at one of *models*, or at a module of one, is delivered, recorded or counted: no forward, no
    backward pass (put both into the block), no ``.grad``, and no step. An optimizer that steps in the block moves the parameters,
    but takes no step of the watched training: step numbers go on as if it had not been, and the next logged update is measured
    from the parameters as they are then. Whatever the block leaves in ``.grad`` is observed with the next step. A larger model
    that is called in the block is observed, except for the part that is one of *models*.

    The block holds for the thread that entered, and for observers that were attached before: one that is attached inside
    observes. Blocks may be nested. In compiled code a quiet pass runs the same compiled code.

    Args:
        *models: the models, or parts of models; all without any.

    Raises:
        ModelError: one of *models* is none.
    """
    things: frozenset[int] | None = None
    if models:
        found = [part for model in models for part in (*check_model(model).modules(), *model.parameters())]
        things = frozenset(map(id, found))
    block, before = _Block(next_number(), things, WeakKeyDictionary()), _mine()
    autograd_state.set_thread_value(_KEY, (*before, block))
    blocks.append(block)
    try:
        yield
    finally:
        blocks.remove(block)
        autograd_state.set_thread_value(_KEY, before)
