"""The keeper: the subscriber under ``track`` and under the recorders, and the probe that both are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch

from sonde.engine import Attachment, Event, Probe, raise_if_foreign
from sonde.errors import ArgumentError
from sonde.recorders.reductions.base import Reduction, own
from sonde.recorders.reductions.function import FunctionReduction
from sonde.recorders.slots import Subrecorder
from sonde.site import Site
from sonde.warn import warn_user

Condition: TypeAlias = Callable[[], object]
"""Called without arguments before a value is kept: the value is kept if the result is true."""

Take: TypeAlias = Callable[[Event], Any]
"""From an event to the value to keep, borrowed; or ``NOTHING``."""

_is_inference = torch.is_inference_mode_enabled

NOTHING = object()
"""Returned by a ``Take`` if no value of the event is kept."""


class Keeper:
    """Keep values of events: find the event's slot, take the value, and add the value to the slot by the reduction.

    A recorder has one slot for each module, a tracker one slot for everything. Hooks hold the keeper in the probe's place,
    so that a probe that is deleted can be noticed.

    Args:
        name: names the keeper in warnings.
        take: makes the value to keep of an event.
        reduction: combines a value with what a slot holds; without one a slot holds a list of all values.
        condition: asked before a value is kept.
        only_slot: the slot of all events, whose list gets each value as *take* makes it.
        leaves_what_it_is_lent: *take* is sonde's own, and writes into nothing of an event.

    Attributes:
        slots: the slots, in order.
        stopped: sites whose values raised an error; nothing more is kept there. The reason, as text, by site.
        attachment: where the keeper's hooks are.
    """

    def __init__(
        self,
        name: str,
        take: Take,
        reduction: Reduction | None = None,
        *,
        condition: Condition | None = None,
        only_slot: Subrecorder | None = None,
        leaves_what_it_is_lent: bool = False,
    ) -> None:
        self.__qualname__ = name
        self.leaves_what_it_is_lent = leaves_what_it_is_lent
        self.take = take
        self.reduction = reduction
        self.condition = condition
        self.slots: list[Subrecorder] = [] if only_slot is None else [only_slot]
        self.stopped: Mapping[Site, str] = {}
        self.attachment: Attachment | None = None
        self._only_slot = only_slot
        self._filling = only_slot
        self._by_site: dict[Site, Subrecorder] = {}
        self._by_id: dict[int, tuple[Site, Subrecorder]] = {}  # the same by the site object, which costs less than its hash
        self._lock = threading.RLock()
        if isinstance(reduction, FunctionReduction):
            reduction.on_broadcast = self._warn_of_broadcast

    # Slots

    def add(self, site: Site, type_name: str, events: Iterable[Site]) -> Subrecorder:
        """Add a slot for *site*, filled by events at the sites *events*; return the slot."""
        slot = Subrecorder(len(self.slots), site, type_name, self.empty())
        self.slots.append(slot)
        self._by_site |= dict.fromkeys(events, slot)
        return slot

    def remove(self, slot: Subrecorder) -> None:
        """Remove *slot*; those behind it move up."""
        with self._lock:
            del self.slots[slot.index]
            for position, other in enumerate(self.slots):
                other.index = position
            self._by_site = {site: held for site, held in self._by_site.items() if held is not slot}
            self._by_id.clear()

    def empty(self) -> Any:
        """The content of a new slot: an empty list, or None with a reduction."""
        return [] if self.reduction is None else None

    def clear(self) -> None:
        """Empty every slot, and count from 0 again."""
        for slot in self.slots:
            slot.held, slot.samples, slot.seen, slot.tick = self.empty(), 0, 0, None

    # Filling

    def __call__(self, event: Event) -> None:
        if _is_inference():
            with torch.inference_mode(False):  # else the kept tensors could not be used outside
                self(event)
            return
        slot = self._only_slot
        if slot is None:
            known = self._by_id.get(id(event.site))
            slot = known[1] if known is not None else self._look_up(event.site)
            if slot is None:
                return
        if self.stopped and self._place(event, slot) in self.stopped:
            self._refuse(event)
            return
        try:
            value = self.take(event)
            if self._only_slot is not None:
                slot.held.append(value)
            elif value is not NOTHING:
                self._add_to(slot, value, event)
        except Exception as error:
            raise_if_foreign(error)
            self._refuse(event)
            self._stop(self._place(event, slot), error)

    def _look_up(self, site: Site) -> Subrecorder | None:
        slot = self._by_site.get(site)
        if slot is not None:
            self._by_id[id(site)] = site, slot  # which keeps the object, so that no other can have its id
        return slot

    def _place(self, event: Event, slot: Subrecorder) -> Site:
        """The site that stops if the value of *event* raises."""
        return event.site if self._only_slot is not None else slot.site

    def _add_to(self, slot: Subrecorder, value: Any, event: Event) -> None:
        with self._lock:
            slot.seen += 1
            if self.condition is not None and not self.condition():
                return
            if self.reduction is not None:
                if value is not None:  # no gradient came: there is nothing to combine
                    slot.held = self._combined(self.reduction, slot, value)
            elif isinstance(slot.held, list):
                slot.held.append(own(value))
            else:
                raise ArgumentError(
                    f"slot {slot.index} ({slot.site}) was made a {type(slot.held).__name__} by apply or an assignment, and "
                    "no value can be appended to that: remove the slot or detach the recorder first, or assign a list"
                )
            slot.samples += 1
            slot.tick = event.tick

    def _combined(self, reduction: Reduction, slot: Subrecorder, value: Any) -> Any:
        """The result of *reduction* for the content of *slot* and *value*. If it raises, the slot is not changed."""
        self._filling = slot
        try:
            return reduction.begin(value) if slot.held is None else reduction(slot.held, value)
        except Exception as error:
            raise ArgumentError(
                f"the reduction {reduction} in slot {slot.index} ({slot.site}) raised {type(error).__name__}: "
                f"{str(error).rstrip('.')}. The slot keeps what it made of the {slot.samples} calls before"
            ) from error

    # Failures

    def _stop(self, site: Site, error: Exception) -> None:
        """Keep nothing more at *site*, and record why; raise *error* if the probe is strict."""
        if self.attachment is None:
            raise error
        self.attachment.delivery.failed_at(site, error, self, was="kept")

    def _refuse(self, event: Event) -> None:
        """Note that nothing is kept of *event*: the coverage does not count it."""
        if self.attachment is not None:
            self.attachment.delivery.refused[event.site] += 1

    def _warn_of_broadcast(self, text: str) -> None:
        place = "" if self._filling is None else f" in slot {self._filling.index} ({self._filling.site})"
        warn_user(f"the reduction {self.reduction}{place} {text}")


class KeepingProbe(Probe):
    """A probe whose subscriber is a keeper."""

    def __init__(self, keeper: Keeper, *, strict: bool) -> None:
        self._keeper = keeper
        super().__init__(Attachment(keeper, strict=strict))
        keeper.attachment = self._attachment
        keeper.stopped = self._attachment.delivery.stopped
        self._attachment.attach()

    _as_held = "keeps nothing: hold it in a variable, as in tracker = sonde.track(model)"

    def _has_any(self) -> bool:
        return any(slot.seen or slot.held for slot in self._keeper.slots)
