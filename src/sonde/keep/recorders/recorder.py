"""What the five recorders have in common: slots, registration, reading, and what a probe has."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, overload

from torch import nn

from sonde.engine import Coverage, Covered, Phase, Port, Probe, Site, selection
from sonde.engine.probes import dataframes
from sonde.engine.probes.attachment import Attachment
from sonde.engine.selection import Where, check_model
from sonde.errors import ArgumentError, SelectionError
from sonde.keep.recorders import registration, saving, state, table
from sonde.keep.recorders.keeper import Condition, DataMethod, Keeper, Reducer, Source, name_of_reduction
from sonde.keep.recorders.registration import Indices, Iteration, Types
from sonde.keep.recorders.slots import Data, Key, Subrecorder, find, leaf_of
from sonde.view.table import Grid

__all__ = ["Handle", "Recorder"]


@dataclass(frozen=True)
class Handle:
    """Ends the recording of one slot, whose data stays; ``Recorder.remove`` takes the whole slot away."""

    subrecorder: Subrecorder
    _attachment: Attachment

    def remove(self) -> None:
        """Take the slot's hooks out for good. Doing so twice is no error."""
        place = self.subrecorder.site
        hooks = self._attachment.hooks
        hooks.remove(
            [hook for hook in hooks if any(site.path == place.path and site.model == place.model for site in hook.sites.values())]
        )


class Recorder(Probe, ABC):
    """A list with one slot for each module that it is registered on; what passes there is kept in the slot.

    A slot belongs to its module: neither the order of execution, nor what was not recorded, nor a slot that was removed
    changes which it is. ``recorder[i]``, ``recorder["layers.3"]`` and ``recorder[site]`` are what it keeps: a list of all
    values, or with a reduction one value, None before the first. Kept tensors are detached copies on the device they were on.

    Args:
        condition: called without arguments whenever something could be recorded; recorded is what it is true for.
        reduction: from the value kept so far and the new one to the one to keep. The first value is kept as it is. None of a
            gradient that did not come is not handed to it. See ``sonde.keep.reductions`` for ready-made ones.
            Without it every value is kept, which takes memory.
        data_method: ``"batch"`` keeps tensors whole; ``"sample"`` of each tensor its first item, the first sample.
        strict: raise what *condition* or *reduction* raises into the training, instead of detaching with a warning.

    Raises:
        ArgumentError: an argument cannot be used.
    """

    ports: ClassVar[tuple[Port, ...]]  # what it listens to
    port: ClassVar[Port]  # what it records

    def __init__(
        self,
        condition: Condition | None = None,
        reduction: Reducer | None = None,
        *,
        data_method: DataMethod = "batch",
        strict: bool = False,
    ) -> None:
        for word, function in (("condition", condition), ("reduction", reduction)):
            if isinstance(function, type):
                raise ArgumentError(f"{word}={function.__name__} is a class: make one first, {function.__name__}(...)")
            if function is not None and not callable(function):
                raise ArgumentError(f"{word}={function!r} cannot be called")
        if data_method not in ("batch", "sample"):
            raise ArgumentError(
                f"data_method={data_method!r}: give 'batch' to keep tensors whole, or 'sample' for the first sample"
            )
        source = self._source()
        self._keeper = Keeper(type(self).__name__, source, condition, reduction, data_method)
        self._models: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        super().__init__(Attachment(self._keeper, strict=strict))
        self._connect(source, self._attachment)
        self._attachment.attach()

    @abstractmethod
    def _source(self) -> Source:
        """What makes the values to record of events."""

    def _connect(self, source: Source, attachment: Attachment) -> None:
        """Tell *source* where its events come from, if it has to know."""

    # Registering

    def modules(
        self,
        module: nn.Module,
        types: Types = None,
        indices: Indices = None,
        *,
        include: Where = None,
        exclude: Where = None,
        name: str | None = None,
    ) -> Self:
        """Record at *module* and all modules in it, where every condition admits them. A module has one slot at most.

        Args:
            module: usually the model. Part of one that is registered already goes by its names there.
            types: instances of these classes.
            indices: positions in ``module.modules()``, which has *module* itself at 0.
            include, exclude: as everywhere in sonde: see :func:`sonde.observe`.
            name: the model's name in sites, ``name/layers.3:output``. The first model needs none; a second one is called
                ``2`` if it is given none, and so on.

        Raises:
            ModelError, SelectionError, ArgumentError: at once, saying what was asked, what was found and what to do.
        """
        return self._register(module, "modules", types, indices, include, exclude, name)

    def children(
        self,
        network: nn.Module,
        types: Types = None,
        indices: Indices = None,
        *,
        include: Where = None,
        exclude: Where = None,
        name: str | None = None,
    ) -> Self:
        """Record at the direct children of *network*; *indices* are positions in ``network.children()``. See ``modules``."""
        return self._register(network, "children", types, indices, include, exclude, name)

    def _register(
        self,
        module: nn.Module,
        iteration: Iteration,
        types: Types,
        indices: Indices,
        include: Where,
        exclude: Where,
        name: str | None,
    ) -> Self:
        root = self._root_of(selection.unwrap(check_model(module)), module)
        items = registration.choose(registration.candidates(module, root, iteration), types, indices, include, exclude)
        model = self._name_of(root, name)
        names = frozenset(item.name for item in items)
        try:
            self._attachment.observe(root, lambda known, _: known in names, None, self.ports, model)
        except SelectionError:
            held = ", ".join(f"{item.name or '(root)'} ({type(item.module).__name__})" for item in items)
            raise SelectionError(f"nothing of what is selected is ever called, so nothing could be recorded: {held}") from None
        self._models[root] = model
        known, hooked = {slot.site for slot in self._keeper.slots}, set(self._attachment.sites())
        for item in items:
            events = [Site(item.name, port, "", model) for port in self.ports]
            site = Site(item.name, self.port, "", model)
            if site not in known:
                kind = type(item.module)
                self._keeper.add(site, f"{kind.__module__}.{kind.__qualname__}", events)
            if hooked.isdisjoint(events):
                for event in events:
                    self._attachment.hooks.unhooked.setdefault(event, "is never called: it only holds other modules")
        self._attachment.attach()
        return self

    def _root_of(self, module: nn.Module, given: nn.Module) -> nn.Module:
        """The model that is registered already and holds *module*; *given* itself if there is none."""
        return next((root for root in self._models if module in root.modules()), given)

    def _name_of(self, root: nn.Module, name: str | None) -> str:
        known = self._models.get(root)
        if known is not None:
            if name not in (None, known):
                raise ArgumentError(f"name={name!r}: this model is registered as {known!r} already")
            return known
        taken = set(self._models.values())
        if name is None:
            return "" if not taken else next(text for text in map(str, range(2, len(taken) + 3)) if text not in taken)
        if name in taken:
            raise ArgumentError(f"name={name!r} is the name of another model in this recorder: give another")
        return name

    # Slots

    @property
    def data(self) -> list[Any]:
        """What every slot keeps, in order, as it is now: the list is made anew each time. Assigning to an item sets the slot."""
        return Data(self._keeper.slots)

    @property
    def subrecorders(self) -> list[Subrecorder]:
        """The slots."""
        return list(self._keeper.slots)

    @property
    def handles(self) -> list[Handle]:
        """For each slot what ends its recording."""
        return [Handle(slot, self._attachment) for slot in self._keeper.slots]

    def _find(self, key: Key) -> tuple[Subrecorder, str]:
        return find(self._keeper.slots, key, self._attachment.hooks.canonical)

    def __len__(self) -> int:
        return len(self._keeper.slots)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __contains__(self, key: object) -> bool:
        """Whether there is a slot of this name or site."""
        if not isinstance(key, str | Site):
            return any(value is key for value in self.data)
        try:
            self._find(key)
        except LookupError:
            return False
        return True

    def __getitem__(self, key: Key | slice) -> Any:
        """What one slot keeps, by position, module name or site; or a list of them, by slice.

        Raises:
            UnknownSlotError: there is no such slot; the message names the nearest.
        """
        if isinstance(key, slice):
            return self.data[key]
        slot, leaf = self._find(key)
        return leaf_of(slot, slot.value, leaf, several=self._keeper.reduction is None)

    def __setitem__(self, key: Key | slice, item: Any) -> None:
        if isinstance(key, slice):
            self.data[key] = item
            return
        slot, leaf = self._find(key)
        if leaf:
            raise ArgumentError(f"{slot.site.at(leaf)} is part of what a slot keeps: assign to {slot.site}")
        slot.held = item

    @overload
    def remove(self) -> None: ...
    @overload
    def remove(self, index: Key) -> Any: ...
    def remove(self, index: Key | None = None) -> Any:
        """Take one slot away with its hooks, and return what it kept; without *index* detach, as ``Probe.remove`` does."""
        if index is None:
            self.detach()
            return None
        slot, _ = self._find(index)
        Handle(slot, self._attachment).remove()
        self._keeper.remove(slot)
        return slot.value

    def samples(self, index: Key) -> int:
        """How many calls the slot has recorded."""
        return self._find(index)[0].samples

    def iter_samples(self) -> Iterator[int]:
        """For each slot, how many calls it has recorded."""
        for slot in self.subrecorders:
            yield slot.samples

    def apply(self, function: Callable[[Any], Any]) -> None:
        """Replace what each slot keeps by ``function(data)``; slots that keep nothing are left out.

        If *function* raises, no slot is changed. Recording on may become impossible afterwards, which depends on *function*.
        """
        self.apply_sample(lambda data, _: function(data))

    def apply_sample(self, function: Callable[[Any, int], Any]) -> None:
        """As ``apply``, with ``function(data, samples)``."""
        made = []
        for slot in self._keeper.slots:
            if slot.is_empty:
                continue
            try:
                made.append((slot, function(slot.value, slot.samples)))
            except Exception as error:
                error.add_note(f"raised for slot {slot.index}, {slot.site}; no slot was changed")
                raise
        for slot, value in made:
            slot.held = value

    def reset(self) -> None:
        """Forget everything that was kept, and begin to count anew; the hooks stay."""
        for slot in self._keeper.slots:
            slot.held, slot.samples, slot.seen, slot.tick = self._keeper.empty(), 0, 0, None

    clear = reset

    # Keeping

    def save(self, path: str | os.PathLike[str], mkdir: bool = False, *args: Any, overwrite: bool = False, **kwargs: Any) -> Path:
        """Write what is kept to the folder *path*: for each slot a safetensors file named after its module, and a JSON index.

        Without pickle; ``sonde.recorders.open_recorded(path)`` reads it. The files appear all together or not at all.

        Args:
            mkdir: make the folder, and those above it, if there is none.
            *args, **kwargs: of ``Path.mkdir``; missing parents are made and an existing folder is no error, unless
                ``parents=False`` or ``exist_ok=False`` say otherwise.
            overwrite: replace what an earlier ``save`` wrote there.

        Raises:
            StoreError: the folder is missing, holds something, or cannot be written.
        """
        return saving.save(self._described(), self._keeper.slots, Path(path), saving.Making.of(mkdir, args, kwargs), overwrite)

    def _described(self) -> dict[str, Any]:
        reduction = self._keeper.reduction
        return {"kind": type(self).__name__, "reduction": None if reduction is None else name_of_reduction(reduction)}

    def state_dict(self) -> dict[str, Any]:
        """A copy of what every slot keeps, with its counts, to go on from with ``load_state_dict``."""
        return self._described() | {"slots": [state.of_slot(slot) for slot in self._keeper.slots]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what ``state_dict`` of a like recorder gave; slots are matched by their sites.

        Raises:
            ArgumentError: it is of another kind of recorder, of another reduction, or of other slots; nothing is changed.
        """
        state.load(self._keeper, self._described(), state_dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle has the slots and what they keep, and is on no model; registered again it goes on."""
        keeper = self._keeper
        made = (type(self), keeper.condition, keeper.reduction, keeper.data_method, self._attachment.delivery.strict)
        return _remade, (*made, self.state_dict())

    # What a probe has

    @property
    def sites(self) -> tuple[Site, ...]:
        """The site of each slot."""
        return tuple(slot.site for slot in self._keeper.slots)

    def coverage(self) -> Coverage:
        """How many calls each slot has recorded, and why not all."""
        listened = {line.site: line for line in super().coverage()}
        lines = []
        for slot in self._keeper.slots:
            found = [listened[site] for port in self.ports if (site := slot.site.port_of(port)) in listened]
            of_value = next((line for line in found if line.site.port == self.port), found[0] if found else None)
            if slot.seen and not slot.samples:
                reason = f"the condition was true for none of {slot.seen} calls"
            elif of_value is None:
                reason = "its hooks were taken out" if self._models else "registered on no model"
            else:
                reason = of_value.reason if not slot.samples or of_value.count else ""
            lines.append(Covered(slot.site, slot.samples, reason))
        return Coverage(lines, attached=self.attached)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per slot: where, how often, what it keeps, and when the last of it was recorded."""
        phase: Phase = "backward" if self.port.startswith("grad") else "forward"
        return [table.row_of(slot) | dataframes.key_columns(slot.site, None, phase, slot.tick) for slot in self._keeper.slots]

    def _grid(self) -> Grid:
        reasons = {line.site: line.reason for line in self.coverage()}
        stopped = [f"stopped: {failure.error}" for failure in self.errors[-1:]]
        return table.grid(self._keeper.slots, title=self._title(), reasons=reasons, footer=stopped)

    def _title(self) -> str:
        reduction = self._described()["reduction"]
        how = f", reduced by {reduction}" if reduction is not None else ""
        state = "" if self.attached else " (detached)"
        slots = len(self)
        return f"{type(self).__name__}: {slots} slot{'s' if slots != 1 else ''}{how}{state}"

    def __rich__(self) -> Grid:
        return self._grid()

    def __str__(self) -> str:
        return f"{type(self).__name__}(slots={len(self)}, samples={sum(self.iter_samples())})"


def _remade(
    kind: type[Recorder],
    condition: Condition | None,
    reduction: Reducer | None,
    data_method: DataMethod,
    strict: bool,
    state_dict: dict[str, Any],
) -> Recorder:
    recorder = kind(condition, reduction, data_method=data_method, strict=strict)
    for slot in state_dict["slots"]:
        site = Site.parse(slot["site"])
        recorder._keeper.add(site, slot["type"], [site.port_of(port) for port in kind.ports])
    recorder.load_state_dict(state_dict)
    return recorder
