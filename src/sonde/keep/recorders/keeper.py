"""The subscriber of a recorder: which slot an event belongs to, what of it is kept, and how values are reduced."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from sonde.engine import Event, Site, structure
from sonde.engine.failures import name_of
from sonde.errors import ArgumentError
from sonde.keep.recorders.slots import Subrecorder
from sonde.keep.reductions.base import Accumulated, Reduction, own, shape_text

__all__ = ["NOTHING", "Condition", "DataMethod", "Keeper", "Reducer", "Source", "name_of_reduction"]

Condition: TypeAlias = Callable[[], object]
"""Asked, without arguments, whenever something could be recorded: if what it returns is true, it is."""

Reducer: TypeAlias = Callable[[Any, Any], Any]
"""From what was kept so far and what is new to what is kept, as in ``functools.reduce``."""

DataMethod: TypeAlias = Literal["batch", "sample"]

NOTHING = object()
"""What a source says of an event that there is nothing to record of."""


class Source(ABC):
    """From an event to the value to record."""

    @abstractmethod
    def __call__(self, event: Event) -> Any:
        """The value, borrowed; or ``NOTHING``."""


class Keeper:
    """Holds the slots and fills them. Hooks hold it in the recorder's place."""

    def __init__(
        self, name: str, source: Source, condition: Condition | None, reduction: Reducer | None, data_method: DataMethod
    ) -> None:
        self.__qualname__ = name  # by which the engine names it if it fails
        self.source = source
        self.condition = condition
        self.reduction = reduction
        self.data_method = data_method
        self.slots: list[Subrecorder] = []
        self._by_site: dict[Site, Subrecorder] = {}
        self._by_id: dict[int, tuple[Site, Subrecorder]] = {}  # the same by the site object, which costs less than its hash
        self._lock = threading.RLock()

    # Slots

    def add(self, site: Site, type_name: str, events: Iterable[Site]) -> Subrecorder:
        """One more slot, for *site*, filled by events at the sites *events*."""
        slot = Subrecorder(len(self.slots), site, type_name, self.empty())
        self.slots.append(slot)
        self._by_site |= dict.fromkeys(events, slot)
        return slot

    def remove(self, slot: Subrecorder) -> None:
        """Forget *slot*; those behind it move up."""
        with self._lock:
            del self.slots[slot.index]
            for position, other in enumerate(self.slots):
                other.index = position
            self._by_site = {site: held for site, held in self._by_site.items() if held is not slot}
            self._by_id.clear()

    def empty(self) -> Any:
        """What a slot holds before anything was recorded."""
        return [] if self.reduction is None else None

    # Filling

    def __call__(self, event: Event) -> None:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # else what is kept could not be used outside
                self._receive(event)
        else:
            self._receive(event)

    def _receive(self, event: Event) -> None:
        known = self._by_id.get(id(event.site))
        slot = known[1] if known is not None else self._look_up(event.site)
        if slot is None:
            return
        value = self.source(event)
        if value is NOTHING:
            return
        with self._lock:
            slot.seen += 1
            if self.condition is not None and not self.condition():
                return
            if self.data_method == "sample":
                value = _first_sample(value) if isinstance(value, Tensor) else structure.remap(value, _first_sample)
            self._record(slot, value)
            slot.samples += 1
            slot.tick = event.tick

    def _look_up(self, site: Site) -> Subrecorder | None:
        slot = self._by_site.get(site)
        if slot is not None:
            self._by_id[id(site)] = site, slot  # which keeps the object, so that no other can have its id
        return slot

    def _record(self, slot: Subrecorder, value: Any) -> None:
        reduction = self.reduction
        if reduction is None:
            if not isinstance(slot.held, list):
                kind = type(slot.held).__name__
                raise ArgumentError(
                    f"slot {slot.index} ({slot.site}) was made a {kind} by apply or an assignment, and no value can be "
                    "appended to that: remove the slot or detach the recorder first, or assign a list"
                )
            slot.held.append(own(value))
        elif value is None:
            return  # no gradient: nothing that could be reduced
        elif slot.held is None and not isinstance(reduction, Reduction):
            slot.held = own(value)
        else:
            slot.held = self._reduced(slot, reduction, value)

    def _reduced(self, slot: Subrecorder, reduction: Reducer, value: Any) -> Any:
        """What *reduction* makes of what the slot holds and *value*; if that fails, the slot keeps what it has."""
        try:
            if isinstance(reduction, Reduction):
                return reduction.begin(value) if slot.held is None else reduction(slot.held, value)
            with torch.no_grad():
                result = reduction(slot.held, own(value))
        except Exception as error:
            reason = f"raised {type(error).__name__}: {str(error).rstrip('.')}"
            raise _failure(slot, reduction, reason) from error
        changed = _change_of_shape(slot.held, value, result)
        if changed:
            raise _failure(slot, reduction, changed)
        return result


def name_of_reduction(reduction: Reducer) -> str:
    """``Mean(axis=0)`` of a ready-made one; of any other callable what it is called where it was defined."""
    return repr(reduction) if isinstance(reduction, Reduction) else name_of(reduction)


def _failure(slot: Subrecorder, reduction: Reducer, reason: str) -> ArgumentError:
    return ArgumentError(
        f"the reduction {name_of_reduction(reduction)} in slot {slot.index} ({slot.site}) {reason}. "
        f"The slot keeps what it made of the {slot.samples} calls before"
    )


def _first_sample(tensor: Tensor) -> Tensor:
    return tensor.select(0, 0) if tensor.ndim and tensor.shape[0] else tensor


def _change_of_shape(so_far: Any, new: Any, result: Any) -> str:
    """How a reduction has changed the shape of what it keeps; ``""`` if it has not, or has joined the new value to it."""
    if isinstance(so_far, Tensor) and isinstance(result, Tensor) and so_far.shape == result.shape:
        return ""
    if isinstance(so_far, Accumulated) or isinstance(result, Accumulated):
        return ""
    before, after, added = (dict(structure.walk(value)) for value in (so_far, result, new))
    if before.keys() != after.keys():
        return ""
    for path, tensor in before.items():
        if tensor.shape != after[path].shape and not _is_joined(tensor, added.get(path), after[path]):
            return (
                f"changed the shape from {shape_text(tensor)} to {shape_text(after[path])}, given a value of shape "
                f"{shape_text(added.get(path, new))}; the shape may stay, or grow along one axis by the value's length"
            )
    return ""


def _is_joined(before: Tensor, added: Tensor | None, after: Tensor) -> bool:
    """Whether *after* is as long as *before* and *added* together, along one axis."""
    if added is None or not before.ndim == added.ndim == after.ndim:
        return False
    changed = [axis for axis in range(before.ndim) if before.shape[axis] != after.shape[axis]]
    return len(changed) == 1 and after.shape[changed[0]] == before.shape[changed[0]] + added.shape[changed[0]]
