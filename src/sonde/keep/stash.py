"""What is kept of an event: the first seed's stash and the functions that make one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from sonde.engine import Event, Phase, Site, Tick, structure
from sonde.errors import ArgumentError

__all__ = ["Stash", "StashFn", "StashValueFn", "default_stash", "default_stash_value", "get_stash_fn", "rmap_tensor"]


@dataclass
class Stash:
    """What was kept of one event.

    Attributes:
        name: the module's name, ``""`` for the root.
        type: the module's class.
        grad: whether ``value`` holds gradients.
        value: the module's output with each tensor replaced by what was kept of it; for gradients a tuple, as torch's own
            backward hooks have it, with None where no gradient arrived.
        site: where; call, phase, tick: which call of the module, in which phase, when (see :class:`sonde.Event`).
        passthrough: the module returned one of its inputs.
        alias: the name by which a module with several names was called.
        paths: the leaf path of each tensor there was, in order.
        kept: what was kept of each of them.

    A custom stash function may set further attributes; they become columns of ``Tracker.to_frame``.
    """

    name: str
    type: type[nn.Module] | type[nn.Parameter]
    grad: bool
    value: Any
    site: Site | None = None
    call: int = 0
    phase: Phase = "forward"
    tick: Tick = Tick()
    passthrough: bool = field(default=False, repr=False)
    alias: str = field(default="", repr=False)
    paths: tuple[str, ...] = field(default=(), repr=False)
    kept: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @property
    def first_value(self) -> Any:
        """The first tensor that was kept; without any, the first item of nested tuples and lists, as it is."""
        leaves = structure.walk(self.value)
        if leaves:
            return leaves[0][1]
        value = self.value
        while isinstance(value, tuple | list) and len(value) >= 1:
            value = value[0]
        return value

    @property
    def leaves(self) -> dict[str, Any]:
        """What was kept of each tensor, by its leaf path (``""`` where the value was a tensor itself)."""
        return dict(zip(self.paths, self.kept, strict=True)) if self.paths else dict(structure.walk(self.value))


StashFn: TypeAlias = Callable[[Event], Any]
"""Makes what is kept of an event; usually a :class:`Stash`."""

StashValueFn: TypeAlias = Callable[[Tensor], Any]
"""Makes what is kept of one tensor."""


def rmap_tensor(value: Any, fn: StashValueFn) -> Any:
    """*value* with ``fn(tensor)`` for each tensor in it, in tuples, lists, dicts, dataclasses and the like.

    Every container keeps its own type; what is no tensor is returned as it is.
    """
    return structure.remap(value, fn)


def default_stash_value(tensor: Tensor) -> Any:
    """A copy in main memory that nothing later can change: ``tensor.detach().cpu().clone()``.

    A tensor without data (on the meta device) is kept as it is.
    """
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return tensor.clone()
    return tensor if tensor.is_meta else tensor.cpu()


def default_stash(event: Event, stash_value: StashValueFn) -> Stash:
    """The stash of *event* with ``stash_value(tensor)`` for each tensor.

    Instances of classes that sonde does not know, but that hold tensors (a key-value cache, say), are copied as well.
    """
    value = event.value
    if isinstance(value, Tensor):
        held = stash_value(value)
        kept, paths = (held,), _ONE
    elif event.grad and len(value) == 1 and isinstance(value[0], Tensor):
        held = kept = (stash_value(value[0]),)
        paths = (event.leaves[0][0],)
    else:
        by_tensor: dict[int, Any] = {}

        def once(tensor: Tensor) -> Any:
            made = by_tensor[id(tensor)] = stash_value(tensor)
            return made

        held = structure.remap(value, once, objects=True)
        leaves = event.leaves
        kept, paths = tuple([by_tensor[id(tensor)] for _, tensor in leaves]), tuple([path for path, _ in leaves])
    return Stash(
        event.name,
        event.type,
        event.grad,
        held,
        event.site,
        event.call,
        event.phase,
        event.tick,
        event.passthrough,
        event.alias,
        paths,
        kept,
    )


_ONE: tuple[str, ...] = ("",)  # the leaf path of a value that is a tensor itself


def get_stash_fn(stash_value: StashValueFn | None = None, stash: StashFn | None = None) -> StashFn:
    """The stash function that the two arguments of ``track`` mean.

    Raises:
        ArgumentError: both are given.
    """
    if stash_value and stash:
        raise ArgumentError(
            "stash_value= and stash= exclude each other: stash_value says what is kept of each tensor, stash makes the whole "
            "stash of an event itself. Give one of them."
        )
    if stash:
        return stash
    return partial(default_stash, stash_value=stash_value or default_stash_value)


def leaves_of(stash: Any) -> dict[str, Any]:
    """What *stash* keeps of each tensor, by leaf path; of whatever a custom stash function made, as far as it tells."""
    if isinstance(stash, Stash):
        return stash.leaves
    value = getattr(stash, "value", stash)
    found: dict[str, Any] = dict(structure.walk(value))
    return found or {"": value}


class SharedCopies:
    """``default_stash_value`` that copies a tensor once, however many modules return it.

    A container returns its last child's tensor, and a model may return every layer's; all their stashes then hold the same
    copy. Tensors are recognised until the next forward begins.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[weakref.ref[Tensor], int, Any]] = {}
        self._forward = -1

    def begin(self, forward: int) -> None:
        """An event of this forward comes: forget the copies of the one before."""
        if forward != self._forward:
            self._forward = forward
            self._copies.clear()

    def __call__(self, tensor: Tensor) -> Any:
        if tensor.is_inference():  # has no version by which an in-place change would show
            return default_stash_value(tensor)
        known = self._copies.get(id(tensor))
        version = tensor._version
        if known is not None and known[0]() is tensor and known[1] == version and _still_equal(known[2], tensor):
            return known[2]
        kept = default_stash_value(tensor)
        if len(self._copies) >= _MOST_COPIES:
            self._copies.clear()
        self._copies[id(tensor)] = weakref.ref(tensor), version, kept
        return kept


def _still_equal(copy: Tensor, tensor: Tensor) -> bool:
    """Whether nothing has written past the version counter, through ``.data`` or NumPy. On other devices asking would wait."""
    return tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_nested or torch.equal(copy, tensor)


# A model of which only submodules are called has no next forward.
_MOST_COPIES = 4096
