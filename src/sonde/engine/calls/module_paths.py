"""Name modules as they are really called: by the hierarchy of the model, and by the module that called them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from sonde.engine import selection
from sonde.engine.inventory import Inventory, inventory_of
from sonde.engine.torch_api import modules
from sonde.engine.torch_api.modules import unwrap


class ModuleNode:
    """A module under the module that called it. A module called from two modules has two nodes, and one path.

    Attributes:
        module: the module without wrappers, held weakly.
        held: the called module, held weakly.
        name: as it was called, from the root's label down: ``GPT.blocks.0.mlp``.
        path: the module's canonical name, as in its sites: ``blocks.0.mlp``, ``""`` for the root.
        key: the id of the called module.
        compiles: the id of the module that ``torch.compile`` was given; 0 for anything but its wrapper.
        children: the nodes of modules that this one calls, by their ids.
        was_checked: compiled regions were looked for.
    """

    __slots__ = ("children", "compiles", "held", "key", "module", "name", "path", "was_checked")

    def __init__(self, module: nn.Module, name: str, path: str) -> None:
        inner = unwrap(module)
        self.module = weakref.ref(inner)
        self.held = weakref.ref(module)
        self.name = name
        self.path = path
        self.key = id(module)
        self.compiles = id(inner) if inner is not module else 0
        self.children: dict[int, ModuleNode] = {}
        self.was_checked = False

    def __repr__(self) -> str:
        return f"ModuleNode({self.name})"


class ModuleNames:
    """The models that were called, each with a label of its own, and the names of all their modules."""

    def __init__(self) -> None:
        self._labels: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._homes: weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref[nn.Module], tuple[str, ...]]]
        self._homes = weakref.WeakKeyDictionary()
        self._tops: weakref.WeakKeyDictionary[nn.Module, ModuleNode] = weakref.WeakKeyDictionary()
        self._inventory: Inventory | None = None  # of the only model, if the names follow from that alone
        self._owners: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by parameter: the nodes from the root to its module

    @staticmethod
    def of(module: nn.Module) -> ModuleNames:
        """Return the names for a tracker that meets *module* first: those that a former one has left, if nothing has changed."""
        root = unwrap(module)
        inventory = inventory_of(root)
        names = inventory.take(ModuleNames, lambda _: True)
        if names is None:
            names = ModuleNames()
            names.register(root)
        names._inventory = None if modules.has_compiled_part(module) else inventory  # of a compiled one each tracker has to warn
        return names

    def leave(self) -> None:
        """Leave these names to a later tracker, if they are those of one model, as it is, alone. They are used no more here."""
        inventory, self._inventory = self._inventory, None
        if inventory is not None:
            inventory.keep(self)

    @property
    def are_none(self) -> bool:
        """Whether no model is known."""
        return not self._labels

    def register(self, root: nn.Module) -> None:
        """Name *root* and all modules below it. A module that was called alone before gets its name in the larger model."""
        root = unwrap(root)
        self._inventory = None
        taken = set(self._labels.values())
        label = kind = type(root).__name__
        number = 1
        while label in taken:
            number += 1
            label = f"{kind}-{number}"
        self._labels[root] = label
        met = {item.module: (item.name, *item.aliases) for item in selection.members(root)}
        for module, names in met.items():
            self._homes[module] = weakref.ref(root), names
            if module is not root:
                self._labels.pop(module, None)
        known = {top: place for top, place in self._tops.items() if unwrap(top) not in met}
        self._tops = weakref.WeakKeyDictionary(known)
        self._owners.clear()

    def at_top(self, module: nn.Module) -> ModuleNode | None:
        """Return the node of *module*, called from outside of any module; None for a wrapper, whose module counts instead."""
        place = self._tops.get(module)
        if place is None:
            if is_transparent(module):
                return None
            inner = unwrap(module)
            if inner not in self._homes:
                self.register(inner)
            root, path = self._home(inner)
            place = self._tops[module] = ModuleNode(module, self._join(root, path), path)
        return place

    def below(self, place: ModuleNode, module: nn.Module) -> ModuleNode:
        """Return the node of *module*, called by the module of *place*; *place* itself where one of the two wraps the other."""
        return place if is_transparent(module) or place.compiles == id(module) else self._below(place, module)

    def _below(self, place: ModuleNode, module: nn.Module) -> ModuleNode:
        inner, caller = unwrap(module), place.module()
        if inner not in self._homes:
            self.register(inner)  # added after its parent was named, or part of no module that runs
            self._adopt(caller, inner)
        root, path = self._home(inner)
        step = self._step(caller, inner) if caller is not None else None
        if step is not None:
            name = f"{place.name}.{step}"
        else:
            names = [self._join(root, alias) for alias in self._homes[inner][1]]
            name = max(names, key=lambda known: _shared(known, place.name))
        return ModuleNode(module, name, self._path_below(place, caller, root, path))

    def _step(self, caller: nn.Module, inner: nn.Module) -> str | None:
        """Return the name of *inner* in *caller*, of several that of a direct child or the first; None if it is not in there."""
        above, below = (self._homes[each][1] if each in self._homes else () for each in (caller, inner))
        found = [
            name[len(prefix) :]
            for outer in above
            for prefix in [f"{outer}." if outer else ""]
            for name in below
            if name.startswith(prefix)
        ]
        for step in sorted(filter(None, found), key=lambda step: "." in step):
            if modules.submodule(caller, step) is inner:
                return step
        return next((step for step, held in _names_below(caller) if held is inner), None)  # it was moved

    def _path_below(self, place: ModuleNode, caller: nn.Module | None, root: nn.Module, path: str) -> str:
        """Return the path of the module at *path* in *root*, called by *caller*, which may be a part of another model.

        A model that is called inside another one, as a module that was made in the forward, has a step with ``()`` there.
        """
        home = self._homes.get(caller) if caller is not None else None
        if home is None or home[0]() is root:
            before = "" if home is None else place.path.removesuffix(home[1][0]).rstrip(".")
            steps = [before, path]
        else:
            steps = [place.path, f"{type(root).__name__}()", path]
        return ".".join(filter(None, steps))

    def _adopt(self, caller: nn.Module | None, module: nn.Module) -> None:
        """Name the model of *caller* again, if *module* has become a part of it."""
        if caller is None or caller not in self._homes:
            return
        root = self._homes[caller][0]()
        if root is not None and any(held is module for held in root.modules()):
            self._labels.pop(module, None)
            label = self._labels.pop(root)
            self.register(root)
            self._labels[root] = label

    def owners(self, parameter: Tensor) -> list[ModuleNode]:
        """Return the nodes from the root down to the module that owns *parameter*; none if it is unknown."""
        known: list[ModuleNode] | None = self._owners.get(parameter)
        if known is None:
            known = self._owners[parameter] = self._owners_of(parameter)
        return known

    def _owners_of(self, parameter: Tensor) -> list[ModuleNode]:
        for root in self._labels:
            found = {item.name: item.module for item in selection.members(root)}
            for name, module in found.items():
                if any(held is parameter for held in modules.parameters_of(module).values()):
                    steps = name.split(".") if name else []
                    paths = [".".join(steps[:end]) for end in range(len(steps) + 1)]
                    return [ModuleNode(found[path], self._join(root, path), path) for path in paths if path in found]
        return []

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield every named module under its canonical name with the root's label, parents before children."""
        for module, (root, names) in self._homes.items():
            top = root()
            if top is not None:
                yield self._join(top, names[0]), module

    def _home(self, module: nn.Module) -> tuple[nn.Module, str]:
        root, names = self._homes[module]
        top = root()
        if top is None:  # the larger model is gone, the part lives on
            self.register(module)
            return module, ""
        return top, names[0]

    def _join(self, root: nn.Module, path: str) -> str:
        label = self._labels[root]
        return f"{label}.{path}" if path else label


def is_transparent(module: nn.Module) -> bool:
    """Return whether *module* is a wrapper whose module is called as a module: any but that of ``torch.compile``."""
    return not modules.is_compiled_wrapper(module) and unwrap(module) is not module


def _names_below(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield all names below *module*, direct children first."""
    yield from ((step, unwrap(child)) for step, child in modules.named_children(module))
    for item in selection.members(module):
        yield from ((name, item.module) for name in (item.name, *item.aliases) if name)


def _shared(one: str, other: str) -> int:
    """Return how many steps two names have in common from the root."""
    count = 0
    for a, b in zip(one.split("."), other.split("."), strict=False):
        if a != b:
            break
        count += 1
    return count
