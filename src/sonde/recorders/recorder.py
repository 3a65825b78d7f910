"""The base of the five recorders (torchfunc): registration, slots, reading and saving."""

from __future__ import annotations

import os
import weakref
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias, overload

from torch import Tensor, nn

from sonde.answer import Grid
from sonde.engine import (
    Attachment,
    Coverage,
    Covered,
    Event,
    Where,
    check_model,
    class_of,
    key_columns,
    remap,
    tell_of_globs,
    unwrap,
)
from sonde.errors import ArgumentError, SelectionError
from sonde.recorders import registration, state, table
from sonde.recorders.data import Data
from sonde.recorders.keeper import NOTHING, Condition, Keeper, KeepingProbe, Take
from sonde.recorders.reductions.base import Reduction
from sonde.recorders.reductions.function import FunctionReduction, Reducer
from sonde.recorders.registration import Indices, Iteration, Types
from sonde.recorders.saving import entries_of_slots, slots_as_data
from sonde.recorders.slots import Key, SlotReader, Subrecorder
from sonde.run import write_tensors
from sonde.site import Phase, Port, Site
from sonde.words import many

DataMethod: TypeAlias = Literal["batch", "sample"]


@dataclass(frozen=True)
class Handle:
    """Ends the recording of one slot, whose data stays; ``Recorder.remove`` takes the whole slot away.

    >>> import torch
    >>> from sonde.recorders import ForwardOutput
    >>> net = torch.nn.Sequential(torch.nn.Identity())
    >>> recorder = ForwardOutput().children(net)
    >>> _ = net(torch.ones(1))
    >>> recorder.handles[0].remove()
    >>> _ = net(torch.zeros(1))
    >>> recorder["0"]
    [tensor([1.])]
    """

    subrecorder: Subrecorder
    _attachment: Attachment

    def remove(self) -> None:
        """Take the slot's hooks out for good. Idempotent."""
        place = self.subrecorder.site
        hooks = self._attachment.hooks
        hooks.remove([hook for hook in hooks if any(place.covers(site, whole_module=True) for site in hook.sites.values())])


class Recorder(SlotReader, KeepingProbe):
    """A recorder of torchfunc: a list with one slot for each module; the values that pass there are kept in the slot.

    >>> import torch
    >>> from sonde.recorders import ForwardOutput
    >>> net = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU())
    >>> with ForwardOutput(reduction=torch.add).children(net) as recorder:
    ...     for value in (-1.0, 2.0):
    ...         _ = net(torch.tensor([value]))
    >>> recorder[1], recorder.samples(1), len(recorder)
    (tensor([2.]), 2, 2)
    >>> recorder.apply(lambda value: value * 10)
    >>> recorder.apply_sample(lambda value, samples: value / samples)
    >>> recorder["1"]
    tensor([10.])
    >>> state = recorder.state_dict()
    >>> recorder.reset()
    >>> recorder["1"]
    >>> recorder.load_state_dict(state)
    >>> recorder["1"]
    tensor([10.])

    A slot belongs to its module: neither the order of execution, nor a call that was not recorded, nor a slot that was
    removed changes that. ``recorder[i]``, ``recorder["layers.3"]`` and ``recorder[site]`` are the kept values: a list of all
    values, or with a reduction one value, None before the first. Kept tensors are detached copies on their device.
    (``sonde.graph.Recorder``, of torchrecorder, records the execution graph.)

    Args:
        condition: called without arguments at each call of a module; the call is recorded if the result is true.
        reduction: a function from the value kept so far and the new one to the value to keep, as for ``functools.reduce``.
            The first value is kept as it is. For a structured value (a tuple, a dict, ...) the function is called tensor by
            tensor. A missing gradient (None) is not passed to it. ``sonde.recorders.reductions`` has
            ready-made ones. Without a reduction every value is kept, which takes memory.
        data_method: ``"batch"`` keeps tensors whole; ``"sample"`` keeps of each tensor its first item, the first sample.
        strict: raise what *condition* or *reduction* raises into the training, instead of recording nothing more in that
            slot with a warning.

    Raises:
        ArgumentError: an argument cannot be used.
    """

    ports: ClassVar[tuple[Port, ...]]  # whose events are observed
    port: ClassVar[Port]  # of the slots

    def __init__(
        self,
        condition: Condition | None = None,
        reduction: Reducer | None = None,
        *,
        data_method: DataMethod = "batch",
        strict: bool = False,
    ) -> None:
        _check_callable("condition", condition)
        _check_callable("reduction", reduction)
        if data_method not in ("batch", "sample"):
            raise ArgumentError(
                f"data_method={data_method!r}: give 'batch' to keep tensors whole, or 'sample' for the first sample"
            )
        self._reduction = reduction
        self._data_method: DataMethod = data_method
        self._models: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._aliases: dict[str, str] = {}
        keeper = Keeper(type(self).__name__, _take_nothing, _reducing(reduction), condition=condition)
        source = self._source(keeper)
        keeper.take = source if data_method == "batch" else _first_samples(source)
        super().__init__(keeper, strict=strict)

    @abstractmethod
    def _source(self, keeper: Keeper) -> Take:
        """Return the function that makes the values to record of events."""

    @property
    def condition(self) -> Condition | None:
        """The condition, which may be replaced."""
        return self._keeper.condition

    @condition.setter
    def condition(self, condition: Condition | None) -> None:
        _check_callable("condition", condition)
        self._keeper.condition = condition

    @property
    def reduction(self) -> Reducer | None:
        """The reduction, which may be replaced while no slot keeps anything: a value has been reduced in one way."""
        return self._reduction

    @reduction.setter
    def reduction(self, reduction: Reducer | None) -> None:
        _check_callable("reduction", reduction)
        if not all(slot.is_empty for slot in self._keeper.slots):
            raise ArgumentError(f"{type(self).__name__} has reduced values already: reset() it before it has another reduction")
        self._reduction = reduction
        self._keeper.reduction = _reducing(reduction)
        self._keeper.clear()  # an empty slot has another form with a reduction

    @property
    def data_method(self) -> DataMethod:
        """``"batch"`` or ``"sample"``, as the recorder was made."""
        return self._data_method

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
        """Record at *module* and all modules in it that satisfy every condition; return the recorder. A module has one slot.

        >>> import torch
        >>> from sonde.recorders import ForwardOutput
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU()))
        >>> with ForwardOutput().modules(net, types=torch.nn.ReLU) as recorder:
        ...     [str(each.site) for each in recorder.subrecorders]
        ['1.0:output', '1.1:output']

        What takes the place of a module is recorded in its slot. Modules that come under new names have none: call this again.

        Args:
            module: usually the model. A part of a registered model keeps its names in that model.
            types: instances of these classes.
            indices: positions in ``module.modules()``, which has *module* itself at 0.
            include, exclude: as everywhere in sonde: see :func:`sonde.observe`.
            name: the model's name in sites, ``name/layers.3:output``. Without one, the first model has no name, the second
                is called ``2``, and so on.

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
        """Record at the direct children of *network*; return the recorder. *indices* are positions in ``network.children()``.

        >>> import torch
        >>> from sonde.recorders import ForwardOutput
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
        >>> with ForwardOutput().children(net, indices=[0, 2]) as recorder:
        ...     [str(each.site) for each in recorder.subrecorders]
        ['0:output', '2:output']

        All else as in ``modules``.
        """
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
        root = self._root_of(unwrap(check_model(module)), module)
        items = registration.choose(registration.candidates(module, root, iteration), types, indices, include, exclude)
        tell_of_globs(root, include=include, exclude=exclude)
        model = self._name_of(root, name)
        names = frozenset(item.name for item in items)
        try:
            self._attachment.observe(root, lambda known, _: known in names, None, self.ports, model)
        except SelectionError:
            held = ", ".join(f"{item.name or '(root)'} ({class_of(item.module).__name__})" for item in items)
            raise SelectionError(f"nothing of what is selected is ever called, so nothing could be recorded: {held}") from None
        self._models[root] = model
        self._aliases |= {alias: item.name for item in items for alias in item.aliases if not model}
        known, hooked = {slot.site for slot in self._keeper.slots}, set(self._attachment.sites())
        for item in items:
            events = [Site(item.name, port, "", model) for port in self.ports]
            site = Site(item.name, self.port, "", model)
            if site not in known:
                kind = class_of(item.module)
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
        """The values of all slots, in order.

        The list follows the recorder, and holds it, so that recording goes on while the list lives. Assigning to an item sets
        the value of the slot.
        """
        return Data(self)

    @property
    def subrecorders(self) -> list[Subrecorder]:
        """The slots."""
        return list(self._keeper.slots)

    @property
    def handles(self) -> list[Handle]:
        """For each slot the handle that ends its recording."""
        return [Handle(slot, self._attachment) for slot in self._keeper.slots]

    def _canonical(self, name: str) -> str:
        return self._attachment.hooks.canonical(name)

    def _value_of(self, slot: Subrecorder) -> Any:
        return slot.value

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
        """Take one slot away with its hooks, and return its value; without *index* detach, as ``Probe.remove`` does.

        >>> import torch
        >>> from sonde.recorders import ForwardOutput
        >>> net = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU())
        >>> with ForwardOutput().children(net) as recorder:
        ...     _ = net(torch.ones(1))
        ...     recorder.remove("1")
        ...     len(recorder)
        [tensor([1.])]
        1
        """
        if index is None:
            self.detach()
            return None
        slot, _ = self._find(index)
        Handle(slot, self._attachment).remove()
        self._keeper.remove(slot)
        return slot.value

    def apply(self, function: Callable[[Any], Any]) -> None:
        """Replace the value of each slot by ``function(value)``; slots that keep nothing are left out.

        If *function* raises, no slot is changed. Whether recording can go on afterwards depends on *function*.
        """
        self.apply_sample(lambda data, _: function(data))

    def apply_sample(self, function: Callable[[Any, int], Any]) -> None:
        """Replace the value of each slot by ``function(value, samples)``; see ``apply``."""
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
        """Forget all values, and count from 0 again; the hooks stay."""
        self._keeper.clear()

    clear = reset

    # Saving

    def save(self, path: str | os.PathLike[str], mkdir: bool = False, *args: Any, overwrite: bool = False, **kwargs: Any) -> Path:
        """Write all values to the folder *path*, as safetensors shards and a JSON index, and return *path*. No pickle.

        >>> import sonde, tempfile, torch
        >>> from sonde.recorders import ForwardOutput
        >>> net = torch.nn.Sequential(torch.nn.Identity())
        >>> with ForwardOutput().children(net) as recorder, tempfile.TemporaryDirectory() as folder:
        ...     _ = net(torch.ones(1))
        ...     sonde.open_tensors(recorder.save(f"{folder}/seen")).at("0:output")
        [tensor([1.])]

        ``sonde.recorders.open_recorded(path)`` reads the slots, ``sonde.open_tensors(path)`` the tensors. All is written or
        nothing.

        Args:
            mkdir: has no effect: missing folders are made in any case. torchfunc has this argument.
            args, kwargs: of ``Path.mkdir``. Missing parents are made and an existing folder is no error, unless
                ``parents=False`` or ``exist_ok=False`` is given.
            overwrite: replace a store of tensors that is there.

        Raises:
            StoreError: the folder cannot be written, or holds something already and *overwrite* is false.
        """
        made = dict(zip(("mode", "parents", "exist_ok"), args, strict=False)) | kwargs
        slots = self._keeper.slots
        about = self._described() | {"slots": slots_as_data(slots), "aliases": self._aliases}
        return write_tensors(path, entries_of_slots(slots), about, overwrite=overwrite, **made)

    def _described(self) -> dict[str, Any]:
        reduction = self._keeper.reduction
        return {"kind": type(self).__name__, "reduction": None if reduction is None else repr(reduction)}

    def state_dict(self) -> dict[str, Any]:
        """A copy of the values and counts of all slots, for ``load_state_dict``."""
        return self._described() | {"slots": [state.of_slot(slot) for slot in self._keeper.slots]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over values and counts from the ``state_dict`` of a recorder of the same kind; slots are matched by site.

        Raises:
            ArgumentError: the recorder was of another kind, or had another reduction or other slots; nothing is changed.
        """
        state.load(self._keeper, self._described(), state_dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle has the slots and their values, and is on no model; registered again it records on."""
        made = (type(self), self.condition, self.reduction, self.data_method, self._attachment.delivery.strict)
        return _remade, (*made, self.state_dict())

    # What a probe has

    @property
    def sites(self) -> tuple[Site, ...]:
        """The site of each slot."""
        return tuple(slot.site for slot in self._keeper.slots)

    def coverage(self) -> Coverage:
        """The number of calls that each slot has recorded, and why not more.

        >>> import torch
        >>> from sonde.recorders import ForwardOutput
        >>> net = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU())
        >>> with ForwardOutput().children(net) as recorder:
        ...     _ = net[1](torch.ones(1))
        ...     [(str(line.site), line.count) for line in recorder.coverage()]
        ...     [(row["name"], row["samples"]) for row in recorder.rows()]
        [('0:output', 0), ('1:output', 1)]
        [('0', 0), ('1', 1)]
        """
        observed = {line.site: line for line in super().coverage()}
        stopped = self._keeper.stopped
        lines = []
        for slot in self._keeper.slots:
            found = [observed[site] for port in self.ports if (site := slot.site.port_of(port)) in observed]
            of_value = next((line for line in found if line.site.port == self.port), found[0] if found else None)
            if slot.site in stopped:
                reason = stopped[slot.site]
            elif slot.seen and not slot.samples:
                reason = f"the condition was true for none of {slot.seen} calls"
            elif of_value is None:
                reason = "its hooks were taken out" if self._models else "registered on no model"
            else:
                reason = of_value.reason if not slot.samples or of_value.count else ""
            lines.append(Covered(slot.site, slot.samples, reason))
        return Coverage(lines, attached=self.attached)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per slot: site, number of calls, a description of its value, and when the last call was recorded."""
        phase: Phase = "backward" if self.port.startswith("grad") else "forward"
        return [table.row_of(slot) | key_columns(slot.site, None, phase, slot.tick) for slot in self._keeper.slots]

    def _grid(self) -> Grid:
        reasons = {line.site: line.reason for line in self.coverage()}
        stopped = [f"stopped: {failure.error}" for failure in self.errors[-1:]]
        return table.grid(self._keeper.slots, title=self._title(), reasons=reasons, footer=stopped)

    def _title(self) -> str:
        reduction = self._described()["reduction"]
        how = f", reduced by {reduction}" if reduction is not None else ""
        state = "" if self.attached else " (detached)"
        slots = len(self)
        return f"{type(self).__name__}: {many(slots, 'slot')}{how}{state}"


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


def _check_callable(word: str, function: Any) -> None:
    if isinstance(function, type):
        raise ArgumentError(f"{word}={function.__name__} is a class: make one first, {function.__name__}(...)")
    if function is not None and not callable(function):
        raise ArgumentError(f"{word}={function!r} cannot be called")


def _reducing(reduction: Reducer | None) -> Reduction | None:
    return reduction if reduction is None or isinstance(reduction, Reduction) else FunctionReduction(reduction)


def _take_nothing(event: Event) -> Any:
    return NOTHING


def _first_samples(source: Take) -> Take:
    """*source* with the first sample in the place of each tensor."""

    def take(event: Event) -> Any:
        value = source(event)
        return value if value is NOTHING else remap(value, _first_sample)

    return take


def _first_sample(tensor: Tensor) -> Tensor:
    return tensor.select(0, 0) if tensor.ndim and tensor.shape[0] else tensor
