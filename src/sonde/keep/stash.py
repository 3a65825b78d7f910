"""The stash, which ``track`` keeps of an event, and the functions that make one (tensor_tracker)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from sonde.engine import Event, remap, version_of, walk
from sonde.errors import ArgumentError, StaleTensorError
from sonde.escape import printable_line
from sonde.schedule import Tick
from sonde.site import Phase, Site
from sonde.stats import in_memory
from sonde.words import shape_text

_MOST_LEAVES, _MOST_ELEMENTS, _LONGEST = 4, 3, 60  # of a stash on one line


@dataclass(repr=False)
class Stash:
    """The kept value of one event.

    >>> import sonde, torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> with sonde.track(net, grad=False) as tracker:
    ...     _ = net(torch.ones(1, 2))
    >>> stash = tracker[1]
    >>> stash.name, stash.type.__name__, stash.grad, stash.value.shape
    ('1', 'ReLU', False, torch.Size([1, 2]))

    Attributes:
        name: the module's name, ``""`` for the root.
        type: the module's class.
        grad: whether ``value`` holds gradients.
        value: of an output the value that the module returned, of gradients always a tuple, as torch's own backward hooks
            have it: one item per item of a returned tuple or list, a single item for anything else, None where no gradient
            arrived. In the place of each tensor stands its copy, or the result of *stash_value*.
        site: the module, and which of its tensors.
        call, phase, tick: which call of the module, in which phase, when (see :class:`sonde.types.Event`).
        passthrough: whether the module returned one of its inputs.
        alias: the name by which a module with several names was called.
        paths: the leaf path of each tensor of the value, in order.
        kept: the copies, or results of *stash_value*, in the same order.

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
    passthrough: bool = False
    alias: str = ""
    paths: tuple[str, ...] = ()
    kept: tuple[Any, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        """The place and the time on one line, with the shape, the type and the first elements of each kept tensor."""
        place = str(self.site) if self.site is not None else f"{self.name or '(root)'}:{'grad_output' if self.grad else 'output'}"
        tick = self.tick
        when = [f"call {self.call}"] * (self.call > 0) + [self.phase] * (self.phase == "recompute")
        when += [f"epoch {tick.epoch}, step {tick.step}, forward {tick.forward}"]
        leaves = list(self.leaves.items()) or [("", self.value)]
        held = [f"{leaf} {short_repr(kept)}".lstrip() for leaf, kept in leaves[:_MOST_LEAVES]]
        held += [f"... ({len(leaves)} in all)"] * (len(leaves) > _MOST_LEAVES)
        return printable_line(f"Stash({place}, {self.type.__name__}, {', '.join(when)}: {'; '.join(held)})")

    @property
    def first_value(self) -> Any:
        """The first kept tensor; where there is none, the first item of nested tuples and lists."""
        leaves = walk(self.value)
        if leaves:
            return leaves[0][1]
        value = self.value
        while isinstance(value, tuple | list) and len(value) >= 1:
            value = value[0]
        return value

    @property
    def leaves(self) -> dict[str, Any]:
        """The kept tensors, or results of *stash_value*, by leaf path (``""`` where the value was a tensor itself)."""
        return dict(zip(self.paths, self.kept, strict=True)) if self.paths else dict(walk(self.value))


def short_repr(value: Any) -> str:
    """*value* in at most a line; of a tensor the shape, the type, a device other than the CPU, and the first elements."""
    if not isinstance(value, Tensor):
        text = f"{value:.4g}" if isinstance(value, float) else repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    shape = f"{value.size(0)} nested" if value.is_nested else shape_text(value.shape)
    device = "" if value.device.type == "cpu" else f" on {value.device}"
    head = f"{shape} {str(value.dtype).removeprefix('torch.')}{device}"
    if value.is_meta or value.is_nested or value.layout is not torch.strided:
        return head
    try:
        first = value.detach().flatten()[:_MOST_ELEMENTS].tolist()
    except Exception:  # a tensor of a class of its own need not give its elements
        return head
    numbers = ", ".join(str(each) if isinstance(each, int) else f"{each:.4g}" for each in first)
    return f"{head} [{numbers}{', ...' if value.numel() > len(first) else ''}]"


StashFn: TypeAlias = Callable[[Event], Any]
"""From an event to the object to keep, usually a :class:`Stash`."""

StashValueFn: TypeAlias = Callable[[Tensor], Any]
"""From a tensor to the object to keep in its place."""


def rmap_tensor(value: Any, fn: StashValueFn) -> Any:
    """*value* with ``fn(tensor)`` for each tensor in it, in tuples, lists, dicts, dataclasses and the like.

    >>> import torch
    >>> from sonde import keep
    >>> keep.rmap_tensor({"hidden": (torch.ones(2), 5)}, torch.sum)
    {'hidden': (tensor(2.), 5)}

    Every container keeps its own type. A value without tensors is returned unchanged.
    """
    return remap(value, fn)


def default_stash_value(tensor: Tensor) -> Any:
    """A copy of *tensor* in main memory: ``tensor.detach().cpu().clone()``.

    >>> import torch
    >>> from sonde import keep
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> copy = keep.default_stash_value(weight)
    >>> copy, copy.requires_grad, copy.data_ptr() == weight.data_ptr()
    (tensor([1., 1.]), False, False)

    A tensor without data (on the meta device) is detached only.
    """
    if tensor.is_cpu:  # asking for the device makes an object, which costs a fifth of the copy of a small tensor
        return tensor.detach().clone() if tensor.requires_grad else tensor.clone()
    tensor = tensor.detach()
    return tensor if tensor.is_meta else tensor.cpu()


def default_stash(event: Event, stash_value: StashValueFn) -> Stash:
    """The stash of *event* with ``stash_value(tensor)`` for each tensor.

    >>> import sonde, torch
    >>> from sonde import keep
    >>> net = torch.nn.Identity()
    >>> seen = []
    >>> def keep_half(event):
    ...     seen.append(keep.default_stash(event, lambda tensor: tensor / 2))
    >>> with sonde.observe(net, keep_half):
    ...     _ = net(torch.ones(2))
    >>> seen[0].name, seen[0].value
    ('', tensor([0.5000, 0.5000]))

    Instances of unknown classes that hold tensors (a key-value cache, for example) are copied as well.
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

        held = remap(value, once, objects=True)
        leaves = event.leaves
        kept = tuple([by_tensor[id(tensor)] if id(tensor) in by_tensor else once(tensor) for _, tensor in leaves])
        paths = tuple([path for path, _ in leaves])  # of keyword arguments too, which are not in the value
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
    """The stash function for the two arguments of ``track``: *stash* itself, or ``default_stash`` with *stash_value*.

    >>> import sonde, torch
    >>> from sonde import keep
    >>> stash_fn = keep.get_stash_fn(stash_value=torch.sum)
    >>> with sonde.track(torch.nn.Identity(), stash=stash_fn) as tracker:
    ...     pass
    >>> len(tracker)
    0

    Raises:
        ArgumentError: both are given.
    """
    if stash_value and stash:
        raise ArgumentError(
            "stash_value= and stash= exclude each other: stash_value makes the object to keep of each tensor, stash that of a "
            "whole event. Give one of them."
        )
    if stash:
        return stash
    return partial(default_stash, stash_value=stash_value or default_stash_value)


def leaves_of(stash: Any) -> dict[str, Any]:
    """The kept tensors of *stash*, by leaf path. *stash* is any object that a stash function has made."""
    if isinstance(stash, Stash):
        return stash.leaves
    value = getattr(stash, "value", stash)
    found: dict[str, Any] = dict(walk(value))
    return found or {"": value}


class Copying:
    """The stash function ``default_stash``, which copies a tensor once, however many modules return it.

    A container returns its last child's tensor, and a model may return every layer's; all their stashes then hold the same
    copy. A tensor is recognised until the next forward begins.

    Args:
        copy: makes the copy of a tensor.
    """

    def __init__(self, copy: Callable[[Tensor], Any] | None = None) -> None:
        self._make = copy or default_stash_value
        self._copies: dict[int, tuple[weakref.ref[Tensor], int, Any]] = {}
        self._forward = -1

    def __call__(self, event: Event) -> Stash:
        if event.tick.forward != self._forward:
            self._begin(event)
        return default_stash(event, self._copy)

    def leaves(self, event: Event) -> dict[str, Any]:
        """The copies of all tensors of *event*, those of keyword arguments too, by leaf path."""
        if event.tick.forward != self._forward:
            self._begin(event)
        return {leaf: self._copy(tensor) for leaf, tensor in event.leaves}

    def _begin(self, event: Event) -> None:
        self._forward = event.tick.forward
        self._copies.clear()

    def stale_site(self, stash: Any) -> str | None:
        """None: copies do not change."""

    def check(self, stash: Any) -> None:
        """Do nothing: copies do not change."""

    def clear(self) -> None:
        """Do nothing: copies are forgotten with the forward."""

    def _copy(self, tensor: Tensor) -> Any:
        if tensor.is_inference():  # has no version by which an in-place change would show
            return self._make(tensor)
        known = self._copies.get(id(tensor))
        version = version_of(tensor)
        if known is not None and known[0]() is tensor and known[1] == version and _still_equal(known[2], tensor):
            return known[2]
        kept = self._make(tensor)
        if len(self._copies) >= _MOST_COPIES:
            self._copies.clear()
        self._copies[id(tensor)] = weakref.ref(tensor), version, kept
        return kept


def _still_equal(copy: Tensor, tensor: Tensor) -> bool:
    """Whether nothing has written past the version counter, through ``.data`` or NumPy. On other devices asking would wait."""
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_nested:
        return True
    kept, now = in_memory(copy), in_memory(tensor)
    return kept is not None and now is not None and torch.equal(kept, now)


# A model of which only submodules are called has no next forward.
_MOST_COPIES = 4096


class Guarded:
    """A stash function of the user's own, with a note of each tensor that it keeps without a copy.

    Such a tensor changes when the model writes into the memory that it shares; ``check`` raises then.
    """

    def __init__(self, stash: StashFn) -> None:
        self._stash = stash
        self._aliases: dict[int, list[tuple[Site, str, Tensor, int]]] = {}  # site, leaf, seen tensor, version, by id of the stash

    def __call__(self, event: Event) -> Any:
        stash = self._stash(event)
        seen = [(tensor, *_memory_of(tensor)) for _, tensor in event.leaves if _has_storage(tensor)]
        for path, held in leaves_of(stash).items():
            for address in _addresses(held):
                for tensor, start, end in seen:
                    if start <= address < end:
                        note = event.site, path, tensor.detach(), version_of(tensor)  # of a NumPy array this is the only version
                        self._aliases.setdefault(id(stash), []).append(note)
        return stash

    def stale_site(self, stash: Any) -> str | None:
        """The site of a tensor of *stash* that the model has written into since it was kept; None if there is none."""
        noted = self._aliases.get(id(stash), ())
        return next((f"{site}{leaf}" for site, leaf, tensor, version in noted if version_of(tensor) != version), None)

    def check(self, stash: Any) -> None:
        """Raise if the model has written into a tensor of *stash* since it was kept.

        Raises:
            StaleTensorError: names the site and the cure.
        """
        site = self.stale_site(stash)
        if site is not None:
            raise StaleTensorError(
                f"the tensor kept at {site} is no copy, and the model has written into its memory since: its elements are no "
                "longer those that were seen there. Keep a copy: stash_value=lambda t: t.detach().clone()"
            )

    def clear(self) -> None:
        """Forget all notes."""
        self._aliases.clear()


def _memory_of(tensor: Tensor) -> tuple[int, int]:
    """Where the storage of *tensor* begins and ends."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _addresses(kept: Any) -> Iterator[int]:
    """Yield where the tensors in *kept* lie, and NumPy arrays that are *kept* itself or one of its items."""
    for _, tensor in walk(kept):
        if _has_storage(tensor):
            yield tensor.data_ptr()
    for each in kept.values() if isinstance(kept, Mapping) else kept if isinstance(kept, tuple | list) else (kept,):
        if isinstance(each, np.ndarray):
            yield each.__array_interface__["data"][0]


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_inference()
