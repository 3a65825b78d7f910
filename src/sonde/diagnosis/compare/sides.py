"""One side of a comparison: the tensors of one model, in the order of execution, from a run, a tracker or a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from sonde.engine import is_floating, members
from sonde.errors import ArgumentError
from sonde.keep import Stash, leaves_of
from sonde.run import TensorStore
from sonde.site import Site

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
    """

    site: Site
    call: int
    type: str
    leaves: Mapping[str, Tensor]
    passthrough: bool = False

    @property
    def key(self) -> Key:
        """The site and the call."""
        return self.site, self.call

    @property
    def main(self) -> tuple[str, Tensor] | None:
        """The first floating-point tensor with its leaf path; without one the first tensor; None if there is none."""
        found = list(self.leaves.items())
        return next((each for each in found if is_floating(each[1])), next(iter(found), None))


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
        notes: facts about how the side was run, in words.
        split: into how many parts layers of the model are divided among ranks while they run.
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
    notes: list[str] = field(default_factory=list)
    split: set[int] = field(default_factory=set)

    @property
    def kept(self) -> list[Kept]:
        """All events."""
        return [*self.forward, *self.backward, *self.update]

    def modules(self) -> dict[str, nn.Module]:
        """Return the modules of the model by name; none without a model."""
        return {} if self.model is None else {item.name: item.module for item in members(self.model)}

    def types(self) -> dict[str, str]:
        """Return the class name of every module that ran, in order of execution."""
        return {each.site.path: each.type for each in self.forward if each.site.port == "output"}


def of_stashes(name: str, stashes: list[Any], title: str) -> Side:
    """Return the side that a tracker has kept."""
    side = Side(name, title)
    for stash in stashes:
        if not isinstance(stash, Stash) or stash.site is None or stash.phase == "recompute":
            continue
        _add(side, kept_of(stash))
    return _at_first_forward(side)


def kept_of(stash: Stash) -> Kept:
    """Return the event that *stash* holds."""
    assert stash.site is not None
    leaves = {leaf: held for leaf, held in leaves_of(stash).items() if isinstance(held, Tensor)}
    return Kept(stash.site.at(""), stash.call, stash.type.__name__, leaves, stash.passthrough)


def of_store(name: str, store: TensorStore) -> Side:
    """Return the side that a folder holds; a tensor is read when it is compared."""
    if store.columns:
        raise ArgumentError(
            f"{name}: {store.path} holds rows of many forwards; compare folders of Tracker.save, or store[column][:]"
        )
    side = Side(name, str(store.path))
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
        _add(side, Kept(site.at(""), int(record.get("call", 0)), kind, _OnDisk(store, leaves)))
    return _at_first_forward(side)


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


def _add(side: Side, kept: Kept) -> None:
    (side.forward if kept.site.port in ("input", "output") else side.backward).append(kept)


def _at_first_forward(side: Side) -> Side:
    """Keep the first event of each site and call; a tracker may have seen many forwards."""
    for events in (side.forward, side.backward):
        first = {kept.key: kept for kept in reversed(events)}
        events[:] = [kept for kept in events if first[kept.key] is kept]
    return side
