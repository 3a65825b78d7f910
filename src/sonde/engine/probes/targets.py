"""Choose the modules and parameters that a selection means, and choose again when the model has changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from sonde.engine import selection
from sonde.engine.inventory import Inventory, Named, inventory_of
from sonde.engine.selection import Where
from sonde.engine.torch_api.modules import is_scripted
from sonde.errors import ArgumentError, SelectionError
from sonde.site import MODULE_PORTS, PARAMETER_PORTS, PORTS, Port, Site
from sonde.suggest import nearest

Sites = Mapping[Port, Site]
"""The sites of one module or parameter, by port."""


class Target(NamedTuple):
    """A module, or one of its parameters, under the name that its sites have."""

    item: Named
    sites: Sites
    parameter: nn.Parameter | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Name and identity: equal for two targets that are the same object under the same name."""
        return self.item.name, id(self.item.module if self.parameter is None else self.parameter)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A selection on a model, to be chosen from again when the model has changed."""

    model: nn.Module
    include: Where
    exclude: Where
    ports: tuple[Port, ...]
    name: str = ""

    def targets(self) -> list[Target]:
        """Return what the selection means now; nothing where nothing is left of it."""
        try:
            return choose(
                inventory_of(self.model), selection.lenient(self.include), selection.lenient(self.exclude), self.ports, self.name
            )
        except SelectionError:
            return []


def choose(inventory: Inventory, include: Where, exclude: Where, ports: tuple[Port, ...], name: str = "") -> list[Target]:
    """Return the modules (and, for the ports of parameters, parameters) of a model that a selection means.

    In the order of ``named_modules()``, modules first. In sites the model is called *name*. Names and sites are made once for each
    inventory; conditions are asked each time, since a callable may answer otherwise.

    Raises:
        SelectionError: the selection cannot be read or leaves nothing.
        ArgumentError: a port is unknown.
    """
    for port in ports:
        if port not in PORTS:
            near = nearest(str(port), PORTS)
            raise ArgumentError(f"port {port!r} cannot be observed by a probe; its ports are {', '.join(PORTS)}. {near}")
    if not ports:
        raise ArgumentError("no port to observe: give at least one, as ports=('output',)")
    of_parameters = any(port in PARAMETER_PORTS for port in ports)
    members, owned = inventory.members, inventory.owned if of_parameters else []
    callable_at: list[int] = inventory.remembered(
        "callable", lambda: [at for at, each in enumerate(members) if _is_called(each.module)]
    )
    chosen: list[Target] = []
    found: list[SelectionError] = []
    if any(port in MODULE_PORTS for port in ports):
        names = [each.name for each in members]
        sites = inventory.remembered(("modules", ports, name), lambda: sites_of(names, MODULE_PORTS, ports, name))
        modules = [(names[at], members[at].module) for at in callable_at]
        aliases = {names[at]: members[at].aliases for at in callable_at if members[at].aliases}
        try:
            positions = selection.select(modules, include, exclude, aliases=aliases, also=[each.name for each in owned])
            chosen += [Target(members[at], sites[at]) for at in map(callable_at.__getitem__, positions)]
        except SelectionError as error:
            found.append(error)
    if of_parameters:
        names = [each.name for each in owned]
        sites = inventory.remembered(("parameters", ports, name), lambda: sites_of(names, PARAMETER_PORTS, ports, name))
        candidates = [(each.name, each.owner.module) for each in owned]
        others = [known for at in callable_at for known in (members[at].name, *members[at].aliases)]
        try:
            positions = selection.select(candidates, include, exclude, also=others)
            chosen += [Target(Named(names[at], owned[at].owner.module), sites[at], owned[at].parameter) for at in positions]
        except SelectionError as error:
            found.append(error)
    if not chosen:
        raise found[0]
    return chosen


def sites_of(names: Sequence[str], kind: Collection[Port], ports: Iterable[Port], model: str = "") -> list[Sites]:
    """Return the sites of the modules or parameters called *names*, at those of *ports* that are of this *kind*."""
    here = [port for port in ports if port in kind]
    return [{port: Site(name, port, "", model) for port in here} for name in names]


def _is_called(module: nn.Module) -> bool:
    """Return whether *module* can be called and hooked: a ``ModuleList`` only holds others, TorchScript takes no such hooks."""
    return not is_scripted(module) and type(module).forward is not nn.Module.forward
