"""One side of a comparison: the tensors of one model, in the order of execution, from a run, a tracker or a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sonde.diagnosis.distance import as_numbers, distance, readable, repeats
from sonde.engine import Named, buffers_of, class_of, is_floating, members, parameters_of
from sonde.errors import ArgumentError
from sonde.keep import Stash, leaves_of
from sonde.run import TensorStore
from sonde.site import PARAMETER_PORTS, Site
from sonde.stats import PLAIN

Key = tuple[Site, int]
"""A site, as a whole, and the call."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The tensors of one event.

    Attributes:
        site: the place, as a whole.
        call: which call of the module.
        type: name of the module's class.
        leaves: the tensors by leaf path, in main memory or on disk.
        passthrough: the module returned one of its inputs.
        plain: of an input the arguments that are flags, numbers and texts, by position or name.
    """

    site: Site
    call: int
    type: str
    leaves: Mapping[str, Tensor]
    passthrough: bool = False
    plain: Mapping[int | str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """The site and the call."""
        return self.site, self.call

    @property
    def main(self) -> tuple[str, Tensor] | None:
        """The first floating-point tensor with its leaf path; without one the first tensor; None if there is none."""
        found = list(self.leaves.items())
        return next((each for each in found if is_floating(each[1])), next(iter(found), None))


def mains(one: Kept, other: Kept) -> tuple[tuple[str, Tensor], tuple[str, Tensor]] | None:
    """Return the main tensors of both, each with its leaf path; None where one has none, or is given others than the other.

    Where one of the two cannot be the other, by its type or its number of elements, they are the two nearest that can. Of whole
    numbers that a module is given, as a mask and positions, one side may have more: then only equal ones belong together.
    """
    main, beside = one.main, other.main
    if main is None or beside is None or main[1].is_nested or beside[1].is_nested:
        return None if main is None or beside is None else (main, beside)
    is_number = [sum(not is_floating(held) for held in kept.leaves.values()) for kept in (one, other)]
    is_open = one.site.port == "input" and not is_floating(main[1]) and is_number[0] != is_number[1]
    is_alike = _are_alike(main[1], beside[1]) or len(one.leaves) == len(other.leaves)
    if (is_alike and not is_open) or one.site.port in PARAMETER_PORTS:
        return main, beside
    pairs = [
        (distance(as_numbers(x), as_numbers(y).reshape(x.shape)).relative, (leaf, x), (path, y))
        for leaf, x in one.leaves.items()
        for path, y in other.leaves.items()
        if x.numel() == y.numel() and all(type(each) in PLAIN and not each.is_meta for each in (x, y)) and _are_alike(x, y)
    ]
    nearest = min(pairs, key=lambda each: each[0], default=None)
    if nearest is None or (is_open and nearest[0]):
        return None if is_open and nearest is not None else (main, beside)
    return nearest[1], nearest[2]


def _are_alike(x: Tensor, y: Tensor) -> bool:
    """Return whether one tensor may be the other: by its type and its lengths, in any order, or for each sample."""
    lengths = [sorted(length for length in held.shape if length != 1) for held in (x, y)]
    is_same = x.numel() == y.numel() and (lengths[0] == lengths[1] or len(lengths[0]) != len(lengths[1]))
    return is_floating(x) == is_floating(y) and (is_same or repeats(x, y) or repeats(y, x))


def partners(one: Kept, other: Kept) -> dict[str, str]:
    """Return which tensor of *other* belongs to each of *one*, by leaf path, but for the main ones.

    Those of one path. Of outputs of another structure, as a tuple and a mapping, each remaining one with the nearest of its shape,
    if there are as many of each shape; of what a model returns, also if there is one of a shape in both.
    """
    found = {leaf: leaf for leaf in one.leaves if leaf in other.leaves}
    rest, others = (
        {leaf: tensor for leaf, tensor in each.items() if not (tensor.is_nested or tensor.is_meta)}
        for each in _unpaired(one, other, found)
    )
    shapes = [Counter(tensor.shape for tensor in each.values()) for each in (rest, others)]
    is_same, is_model = shapes[0] == shapes[1], one.site.path == ""
    if one.site.port in ("output", "grad_output") and (is_same or is_model):
        apart = {
            (leaf, beside): distance(as_numbers(held), as_numbers(like)).relative
            for leaf, held in rest.items()
            for beside, like in others.items()
            if held.shape == like.shape and (is_same or shapes[0][held.shape] == shapes[1][held.shape] == 1)
        }
        for leaf, beside in sorted(apart, key=lambda pair: apart[pair]):
            if leaf not in found and beside not in found.values():
                found[leaf] = beside
    main = mains(one, other)
    return {leaf: path for leaf, path in found.items() if main is None or (leaf != main[0][0] and path != main[1][0])}


def _unpaired(one: Kept, other: Kept, pairs: Mapping[str, str]) -> Iterator[dict[str, Tensor]]:
    """Yield of both the floating-point tensors that are in none of *pairs*, by leaf path, but for the main one."""
    main = mains(one, other)
    both: list[tuple[Kept, list[str]]] = [(one, [*pairs]), (other, [*pairs.values()])]
    for place, (kept, known) in enumerate(both):
        first = "" if main is None else main[place][0]
        yield {leaf: kept.leaves[leaf] for leaf in kept.leaves if leaf not in (first, *known) and is_floating(kept.leaves[leaf])}


def without_partner(one: Kept, other: Kept) -> tuple[list[str], list[str]]:
    """Return the floating-point tensors of both that belong to none of the other side, by leaf path."""
    own, beside = map(list, _unpaired(one, other, partners(one, other)))
    return own, beside


@dataclass(frozen=True, slots=True)
class Portion:
    """Some output features of one module, to which a module of the other side corresponds: the queries of a joined projection.

    Attributes:
        module: the name of the module.
        features: their numbers along *axis* of its output.
        axis: the last one; of a convolution that of its channels, counted from the end.
    """

    module: str
    features: Tensor
    axis: int = -1

    def of(self, tensor: Tensor, axis: int | None = None) -> Tensor:
        """Return the features out of *tensor*."""
        return tensor.index_select(self.axis if axis is None else axis, self.features.to(tensor.device))


@dataclass(frozen=True, slots=True)
class Cut:
    """How a tensor of one call is divided into those of several calls of the other side: as where it decodes step by step.

    Attributes:
        axis: along which they lie.
        sizes: how many entries each has; none where each has one, and no such axis.
    """

    axis: int
    sizes: tuple[int, ...]

    def of(self, tensor: Tensor, count: int) -> list[Tensor]:
        """Return the *count* parts of *tensor*; the whole for each where it does not fit."""
        length = tensor.size(self.axis) if tensor.dim() > self.axis else 0
        if length != (sum(self.sizes) or count):
            return [tensor] * count
        return list(tensor.split(list(self.sizes), self.axis) if self.sizes else tensor.unbind(self.axis))


@dataclass
class Side:
    """One side.

    Attributes:
        name: ``a`` or ``b``.
        title: the model's class, or the folder.
        forward, backward, update: the events of each phase, in order.
        model: the user's model; None for tensors of a tracker or a folder.
        scatter: of each event how far rounding moves it: relative norm of the difference, the larger of repeats.
        random: events that differ between two runs from different random states.
        error: raised by the forward, the loss, or the backward pass.
        stage: where *error* was raised.
        loss: the loss; None without one.
        loss_fn: the user's loss function; None for the default.
        notes: facts about how the side was run, in words.
        split: into how many parts layers of the model are divided among ranks while they run.
        portions: features of modules that are compared like modules of their own, by the names that they have in the comparison.
        optimizer: the settings with which the optimizer steps, by the name of each parameter that it holds.
        again: runs the side once more with a change, with a backward pass or without, and hands each event to a function; returns
            False where the change cannot be made. None where the side cannot run again.
        ranks: how many ranks have saved the side; 0 for one process.
        unseen: sites at which ranks held addends, which are not kept.
        ids: of one saved side, the numbers of the entries of the batch along an axis, by axis.
        alone: modules to which none of the other side corresponds: what they compute is code of the module around them.
        cuts: of modules that are called once, and on parts of that in the other side, how the tensors of each port are cut.
        calls: how many calls of the other side these are, by module.
    """

    name: str
    title: str
    forward: list[Kept] = field(default_factory=list)
    backward: list[Kept] = field(default_factory=list)
    update: list[Kept] = field(default_factory=list)
    model: nn.Module | None = None
    scatter: dict[Key, float] = field(default_factory=dict)
    random: set[Key] = field(default_factory=set)
    error: BaseException | None = None
    stage: str = ""
    loss: float | None = None
    loss_fn: Any = None
    notes: list[str] = field(default_factory=list)
    split: set[int] = field(default_factory=set)
    portions: dict[str, Portion] = field(default_factory=dict)
    optimizer: dict[str, dict[str, Any]] = field(default_factory=dict)
    again: Callable[[Any, bool, Callable[[Kept], object]], bool] | None = None
    ranks: int = 0
    unseen: set[Site] = field(default_factory=set)
    ids: dict[int, list[int]] = field(default_factory=dict)
    alone: set[str] = field(default_factory=set)
    cuts: dict[tuple[str, str], Cut] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def add(self, kept: Kept) -> None:
        """Add an event that was kept, behind those of its phase."""
        port = kept.site.port
        events = self.forward if port in ("input", "output") else self.update if port in ("param", "update") else self.backward
        events.append(kept)

    @property
    def kept(self) -> list[Kept]:
        """All events."""
        return [*self.forward, *self.backward, *self.update]

    def modules(self) -> dict[str, nn.Module]:
        """Return the modules of the model by name, those of portions too; none without a model."""
        if self.model is None:
            return {}
        found = {item.name: item.module for item in members(self.model)}
        return found | {name: found[portion.module] for name, portion in self.portions.items()}

    def real(self, name: str) -> str:
        """Return the name of the module *name*, of a portion that of the module that it is of."""
        portion = self.portions.get(name)
        return name if portion is None else portion.module

    def tensors_of(self, name: str, model: nn.Module | None = None) -> dict[str, Tensor]:
        """Return the parameters and buffers by which the module *name* computes, of the side's model or of a copy.

        They are its own, and those of modules inside of it that did not run as modules, or are alone, by their names inside; of a
        portion the rows that make its features. All are tensors that can be read, or on the meta device.
        """
        model = self.model if model is None else model
        assert model is not None
        portion, real = self.portions.get(name), self.real(name)
        found = {}
        for item in self.computing(real, model):
            inside = item.name[len(real) :].lstrip(".")
            if isinstance(item.module, parametrize.ParametrizationList):
                continue  # the module around has the tensor that is made of these
            made = {own: getattr(item.module, own).detach() for own in _parametrized(item.module)}
            for own, held in (*parameters_of(item.module).items(), *buffers_of(item.module).items(), *made.items()):
                if held is not None and not held.is_nested:
                    tensor = readable(held)
                    found[f"{inside}.{own}" if inside else own] = tensor if portion is None else _rows(portion, item.module, tensor)
        return found

    def write(self, model: nn.Module, name: str, own: str, value: Tensor) -> None:
        """Write *value* into the tensor *own* of :meth:`tensors_of` of a copy of the model."""
        portion, real = self.portions.get(name), self.real(name)
        inside, _, last = own.rpartition(".")
        path = ".".join(filter(None, (real, inside)))
        module = next(item.module for item in self.computing(real, model) if item.name == path)
        if last in _parametrized(module):
            setattr(module, last, value.to(getattr(module, last)))
            return
        held: Tensor | None = {**buffers_of(module), **parameters_of(module)}.get(last)
        assert held is not None
        value = value.to(held.device, held.dtype)
        with torch.no_grad():
            if portion is None:
                held.copy_(value)
            else:
                held.index_copy_(feature_axis(module, held), portion.features.to(held.device), value)

    def computing(self, real: str, model: nn.Module) -> list[Named]:
        """Return the module *real* and those inside of it that compute within its own code: that did not run, or are alone."""
        ran = self.types().keys() - self.alone
        found = []
        for item in members(model):
            if item.name == real:
                found.append(item)
            elif not real or item.name.startswith(f"{real}."):
                inside = item.name[len(real) :].lstrip(".").split(".")
                above = (".".join(filter(None, (real, *inside[:count]))) for count in range(1, len(inside) + 1))
                if not any(name in ran for name in above):
                    found.append(item)
        return found

    def expanded(self, kept: Kept, portions: Mapping[str, Portion] | None = None) -> list[Kept]:
        """Return *kept*, and of a module with portions theirs: outputs, parameters, gradients, and of the first the input."""
        portions = self.portions if portions is None else portions
        if kept.site.port == "input":
            first = next((name for name, portion in portions.items() if portion.module == kept.site.path), None)
            return [kept] if first is None else [replace(kept, site=replace(kept.site, path=first)), kept]
        of_parameter = kept.site.port in PARAMETER_PORTS
        layer, _, own = kept.site.path.rpartition(".") if of_parameter else (kept.site.path, "", "")
        found = [kept]
        for name, portion in portions.items():
            if portion.module != layer:
                continue
            module = self.modules().get(layer)
            if of_parameter and module is not None:
                parts = {leaf: _rows(portion, module, held) for leaf, held in kept.leaves.items()}
            else:
                have_features = (each for each in kept.leaves.items() if each[1].dim() >= -portion.axis and is_floating(each[1]))
                parts = {leaf: portion.of(held) for leaf, held in have_features}
            found.append(replace(kept, site=replace(kept.site, path=f"{name}.{own}" if own else name), leaves=parts))
        return found

    def expanding(self, take: Callable[[Kept], object]) -> Callable[[Kept], None]:
        """Return a function that hands an event, and those of portions, to *take*."""

        def taking(kept: Kept) -> None:
            for whole in self.expanded(kept):
                for each in self._parts(whole):
                    take(each)

        return taking

    def divide(self, portions: Mapping[str, Portion]) -> None:
        """Add portions, and their events to those of the side."""
        self.portions |= portions
        for events in (self.forward, self.backward, self.update):
            events[:] = [each for kept in events for each in self.expanded(kept, portions)]
        of_portions = [(name, portion.module) for name, portion in portions.items()]
        for name, module in of_portions:
            for (site, call), moved in list(self.scatter.items()):
                if site.owner.path == module:
                    self.scatter[replace(site, path=name + site.path[len(module) :]), call] = moved

    def _parts(self, kept: Kept) -> list[Kept]:
        """Return *kept* as so many calls as the other side makes."""
        cut, count = self.cuts.get((kept.site.path, kept.site.port)), self.calls.get(kept.site.path, 1)
        if cut is None or kept.call:
            return [kept]
        parts = {leaf: [held] * count if held.is_nested else cut.of(held, count) for leaf, held in kept.leaves.items()}
        return [replace(kept, call=call, leaves={leaf: held[call] for leaf, held in parts.items()}) for call in range(count)]

    def cut(self, calls: Mapping[str, int], cuts: Mapping[tuple[str, str], Cut]) -> None:
        """Let calls be compared like several: behind the first, which has all inside, each with its input and output."""
        self.calls, self.cuts = dict(calls), dict(cuts)
        for events in (self.forward, self.backward):
            found: list[Kept] = []
            given: dict[str, list[Kept]] = {}
            for kept in events:
                first, *rest = self._parts(kept)
                found.append(first)
                if kept.site.port == "input":
                    given[kept.site.path] = rest
                    continue
                inputs = given.pop(kept.site.path, [])
                found += [each for call in range(len(rest)) for each in (*inputs[call : call + 1], rest[call])]
            events[:] = found
        for (site, call), moved in list(self.scatter.items()):
            if (site.path, site.port) in cuts and not call:
                self.scatter |= {(site, part): moved for part in range(calls[site.path])}
        self.random |= {(site, part) for site, _ in self.random if site.path in calls for part in range(calls[site.path])}

    def types(self) -> dict[str, str]:
        """Return the class name of every module that ran, in order of execution."""
        return {each.site.path: each.type for each in self.forward if each.site.port == "output"}


def _parametrized(module: nn.Module) -> tuple[str, ...]:
    """Return which tensors of *module* are made of others, as a weight of its direction and length (``parametrize``)."""
    return tuple(module.parametrizations) if parametrize.is_parametrized(module) else ()  # type: ignore[arg-type]


def feature_axis(module: nn.Module, tensor: Tensor) -> int:
    """Return the axis of a parameter of *module*, a linear layer or a convolution, along which the features of its output lie."""
    return -1 if class_of(module).__name__ == "Conv1D" or tensor.dim() == 1 else 0


def _rows(portion: Portion, module: nn.Module, tensor: Tensor) -> Tensor:
    has_features = tensor.dim() in (1, 2) or tensor.dim() == 1 - portion.axis
    return portion.of(tensor, feature_axis(module, tensor)) if has_features else tensor


def of_stashes(name: str, stashes: list[Any], title: str) -> Side:
    """Return the side that a tracker has kept."""
    side = Side(name, title)
    for stash in stashes:
        if not isinstance(stash, Stash) or stash.site is None or stash.phase == "recompute":
            continue
        side.add(kept_of(stash))
    return _at_first_forward(side)


def kept_of(stash: Stash) -> Kept:
    """Return the event that *stash* holds."""
    assert stash.site is not None
    leaves = {leaf: held for leaf, held in leaves_of(stash).items() if isinstance(held, Tensor)}
    return Kept(stash.site.at(""), stash.call, stash.type.__name__, leaves, stash.passthrough)


def of_store(name: str, store: TensorStore) -> Side:
    """Return the side that a folder holds; a tensor is read when it is compared."""
    side = Side(name, str(store.path), ids={int(axis): held for axis, held in store.about.get("ids", {}).items()})
    for record, kept in of_records(name, store):
        side.add(kept)
        if record.get("rounding") is not None:
            side.scatter[kept.key] = float(record["rounding"])
    return _at_first_forward(side)


def of_records(name: str, store: TensorStore) -> Iterator[tuple[dict[str, Any], Kept]]:
    """Yield the records of a folder with what they hold, but for what was computed again for a backward pass."""
    if store.columns:
        raise ArgumentError(
            f"{name}: {store.path} holds rows of many forwards; compare folders of Tracker.save, or store[column][:]"
        )
    keys: dict[int, dict[str, str]] = {}
    for key in store:
        digits, _, text = key.partition("/")
        keys.setdefault(int(digits), {})[text] = key
    for number, record in enumerate(store.records):
        if record.get("phase") == "recompute":
            continue
        site = Site.parse(record["site"])
        leaves = {text[len(str(site)) :]: held for text, held in keys.get(number, {}).items()}
        kind = str(record.get("type", "")).rpartition(".")[2]
        yield record, Kept(site.at(""), int(record.get("call", 0)), kind, _OnDisk(store, leaves))


class _OnDisk(Mapping[str, Tensor]):
    """Tensors of a folder by leaf path, each read when it is asked for."""

    def __init__(self, store: TensorStore, keys: dict[str, str]) -> None:
        self._store = store
        self._keys = keys

    def __getitem__(self, leaf: str) -> Tensor:
        tensor: Tensor = self._store[self._keys[leaf]]
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def _at_first_forward(side: Side) -> Side:
    """Keep the first event of each site and call; a tracker may have seen many forwards."""
    for events in (side.forward, side.backward, side.update):
        first = {kept.key: kept for kept in reversed(events)}
        events[:] = [kept for kept in events if first[kept.key] is kept]
    return side
