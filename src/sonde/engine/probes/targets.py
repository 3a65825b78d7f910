"""Choose the modules and parameters that a selection means, and choose again when the model has changed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from sonde.engine import selection
from sonde.engine.selection import Named, Where
from sonde.errors import ArgumentError, SelectionError
from sonde.site import MODULE_PORTS, PARAMETER_PORTS, PORTS, Port
from sonde.suggest import nearest

__all__ = ["Target", "Wanted", "choose"]


@dataclass(frozen=True, slots=True)
class Target:
    """A module, or one of its parameters, under the name that its sites have."""

    item: Named
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
            return choose(self.model, selection.lenient(self.include), selection.lenient(self.exclude), self.ports)
        except SelectionError:
            return []


def choose(model: nn.Module, include: Where, exclude: Where, ports: tuple[Port, ...]) -> list[Target]:
    """Return the modules (and, for the ports of parameters, parameters) of *model* that a selection means.

    In the order of ``named_modules()``, modules first.

    Raises:
        ModelError: *model* is no ``nn.Module``.
        SelectionError: the selection cannot be read or leaves nothing.
        ArgumentError: a port is unknown.
    """
    selection.check_model(model)
    for port in ports:
        if port not in PORTS:
            near = nearest(str(port), PORTS)
            raise ArgumentError(f"port {port!r} cannot be observed by a probe; its ports are {', '.join(PORTS)}. {near}")
    if not ports:
        raise ArgumentError("no port to observe: give at least one, as ports=('output',)")
    members = [item for item in selection.members(model) if _can_be_hooked(item.module)]
    aliases = {item.name: item.aliases for item in members if item.aliases}
    of_parameters = any(port in PARAMETER_PORTS for port in ports)
    owned = list(selection.parameters(model)) if of_parameters else []
    chosen: list[Target] = []
    found: list[SelectionError] = []
    if any(port in MODULE_PORTS for port in ports):
        modules = [(item.name, item.module) for item in members]
        try:
            positions = selection.select(modules, include, exclude, aliases=aliases, also=[name for name, _, _ in owned])
            chosen += [Target(members[position]) for position in positions]
        except SelectionError as error:
            found.append(error)
    if of_parameters:
        names = [(name, owner.module) for name, _, owner in owned]
        others = [name for item in members for name in (item.name, *item.aliases)]
        try:
            positions = selection.select(names, include, exclude, also=others)
            chosen += [Target(Named(owned[at][0], owned[at][2].module), owned[at][1]) for at in positions]
        except SelectionError as error:
            found.append(error)
    if not chosen:
        raise found[0]
    return chosen


def _can_be_hooked(module: nn.Module) -> bool:
    """Return whether *module* can be called and hooked: a ``ModuleList`` only holds others, TorchScript takes no such hooks."""
    return not isinstance(module, torch.jit.ScriptModule) and type(module).forward is not nn.Module.forward
