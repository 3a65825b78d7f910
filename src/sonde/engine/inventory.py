"""Remember the modules and parameters of each model by their names, as long as the model does not change.

Walking over a model is cheap, naming its modules is not. ``inventory_of`` walks, and returns the inventory of the last walk
if both have met the same objects under the same names.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

from torch import nn

from sonde.engine.torch_api.modules import Walk, is_scripted, named_children, outline, parameters_of, unwrap, walk

_T = TypeVar("_T")


class Named(NamedTuple):
    """A module (or parameter) under its canonical name, with the other names that lead to it."""

    name: str
    module: Any
    aliases: tuple[str, ...] = ()


class Owned(NamedTuple):
    """A parameter under its canonical name, and the module that owns it."""

    name: str
    parameter: nn.Parameter
    owner: Named


class Inventory:
    """The names of a model's modules and parameters at one moment. Every module and parameter is held weakly.

    Attributes:
        fingerprint: of the walk.
    """

    def __init__(self, model: nn.Module, met: Walk) -> None:
        self.fingerprint = met.fingerprint
        self._lost: list[Any] = []  # references to what was freed since: another object may have its id by now
        lost = self._lost.append
        self._kinds = [weakref.ref(kind, lost) for kind in {type(module) for module in met.modules}]
        self._modules: list[weakref.ref[nn.Module]] = []
        self._scripted: list[weakref.ref[nn.Module]] = []
        for module in met.modules:
            (self._scripted if is_scripted(module) else self._modules).append(weakref.ref(module, lost))
        self._outlines = [self._outline()]
        self._all = [weakref.ref(parameter, lost) for parameter in met.parameters]
        self._memory: dict[Hashable, Any] = {}
        self._spare: list[Any] = []
        of_parameter = {id(parameter): reference for parameter, reference in zip(met.parameters, self._all, strict=True)}
        names: dict[nn.Module, list[str]] = {}
        _name(model, "", frozenset(), names)
        self._members = [(found[0], weakref.ref(module), tuple(found[1:])) for module, found in names.items()]
        self._owned: list[tuple[str, weakref.ref[nn.Parameter], int]] = []
        for position, (module, found) in enumerate(names.items()):
            for step, parameter in parameters_of(module).items():
                key = id(met.sharded.get(id(parameter), parameter))
                if parameter is not None and (reference := of_parameter.pop(key, None)) is not None:
                    self._owned.append((f"{found[0]}.{step}" if found[0] else step, reference, position))

    @property
    def is_whole(self) -> bool:
        """Whether every module and parameter lives."""
        return not self._lost

    @property
    def is_current(self) -> bool:
        """Whether the model still has these modules and parameters, and no others, in the same places. Cheaper than a walk.

        Says nothing of what a walk sees besides: classes, frozen parameters, compiled modules.
        """
        return not self._lost and self._outline() in self._outlines

    def know(self) -> None:
        """Remember that what the modules hold now is of the same names: FSDP2 exchanges parameters for a while."""
        self._outlines = [*self._outlines[-_MOST_OUTLINES:], self._outline()]

    def _outline(self) -> list[int]:
        return outline([module for held in self._modules if (module := held()) is not None])

    @property
    def members(self) -> list[Named]:
        """Every module once, without wrappers, parents before children, as ``named_modules()`` orders them."""
        return [Named(name, module, aliases) for name, held, aliases in self._members if (module := held()) is not None]

    @property
    def owned(self) -> list[Owned]:
        """The parameters of these modules, each once, in the order of the modules."""
        members = self.members
        return [
            Owned(name, parameter, members[position])
            for name, held, position in self._owned
            if (parameter := held()) is not None and position < len(members)
        ]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Every parameter once, also those of wrappers, in any order."""
        return [parameter for held in self._all if (parameter := held()) is not None]

    def remembered(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return what *make* has returned for *key*, or returns now. It follows from names and classes, and holds no module."""
        try:
            found: _T = self._memory[key]
        except KeyError:
            if len(self._memory) >= _MOST:
                self._memory.clear()
            found = self._memory[key] = make()
        return found

    def keep(self, spare: Any) -> None:
        """Keep *spare*, made for these modules and no longer in use, to be used again. It holds no module, parameter or class."""
        with _keeping:
            self._spare = [*self._spare[-_MOST_SPARE:], spare]

    def take(self, kind: type[_T], fits: Callable[[_T], bool]) -> _T | None:
        """Return what was kept of *kind* and *fits*, and keep it no longer; None without any."""
        with _keeping:
            found = next((spare for spare in self._spare if type(spare) is kind and fits(spare)), None)
            self._spare = [spare for spare in self._spare if spare is not found]
        return found


_MOST_SPARE = 7  # besides the last one
_keeping = threading.RLock()  # the collector may delete a probe at any moment, which keeps its hooks then
_MOST = 32  # results that one inventory remembers
_MOST_OUTLINES = 3  # besides the last one

_known: weakref.WeakKeyDictionary[nn.Module, Inventory] = weakref.WeakKeyDictionary()


def inventory_of(model: nn.Module) -> Inventory:
    """Return the inventory of *model* as it is now: the same object as at the last call, if nothing has changed since.

    A change is a module or parameter that came, went, was replaced, renamed or given another class, frozen or unfrozen, or a module
    that was compiled.
    """
    met = walk(model)
    known = _known.get(model)
    if known is None or not known.is_whole or known.fingerprint != met.fingerprint:
        known = _known[model] = Inventory(model, met)
    elif not known.is_current:
        known.know()
    return known


def _name(module: nn.Module, name: str, above: frozenset[nn.Module], names: dict[nn.Module, list[str]]) -> None:
    """Note the name of *module*, and of all modules below it."""
    module = unwrap(module)
    known = names.setdefault(module, [])
    known.append(name)
    if module in above or len(known) > _MANY_NAMES:
        return
    above |= {module}
    for step, child in named_children(module):
        _name(child, f"{name}.{step}" if name else step, above, names)


# A module shared n times under modules that are themselves shared has exponentially many names; these are enough.
_MANY_NAMES = 16
