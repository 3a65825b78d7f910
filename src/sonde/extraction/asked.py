"""What a call of ``extract`` or ``stream`` asks for, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from sonde.engine import Where, check_model, check_numbers, sites
from sonde.errors import ArgumentError
from sonde.extraction.forwards import Call, Forwards
from sonde.extraction.rows import Chooser, Positions
from sonde.extraction.stored_forms import Forms, Transform
from sonde.site import Port
from sonde.words import names_text

Beside = Iterable[str] | Mapping[str, Callable[[Any], Any]]
"""``columns``: keys of the batch, or functions from the batch by column."""

_PORTS = ("input", "output")


class Asked:
    """The arguments that ``extract`` and ``stream`` have in common, which ``extract`` describes.

    Attributes:
        models: by name; ``""`` for a single one.
        sites: the selected sites of all models.
        chooser, forms, forwards: which rows are kept, in which form, and what runs.
        beside: by the name of a column: a key of the batch, or a function.

    Raises:
        ModelError, SelectionError, ArgumentError: an argument cannot be used.
    """

    def __init__(
        self,
        model: nn.Module | Mapping[str, nn.Module],
        batches: Iterable[Any],
        include: Where,
        exclude: Where,
        ports: Iterable[Port] | Port,
        positions: Positions,
        columns: Beside,
        dtype: torch.dtype | str | None,
        transform: Transform | Mapping[str, Transform] | None,
        call: Call,
        order: str | Callable[[Any], Any] | None = None,
    ) -> None:
        self.models = {"": model} if isinstance(model, nn.Module) or not isinstance(model, Mapping) else dict(model)
        if not self.models:
            raise ArgumentError("model: there is none in the mapping; give one, or several by name")
        for name, each in self.models.items():
            check_numbers(check_model(each), name or "the model")
        chosen = _ports(ports)
        if isinstance(batches, str | bytes | nn.Module | torch.Tensor) or not isinstance(batches, Iterable):
            raise ArgumentError(
                f"batches: a list, a loader or any iterable of batches is wanted; this is a {type(batches).__name__}"
            )
        self.chooser, self.forms = Chooser(positions), Forms(transform, dtype)
        self.beside: dict[str, str | Callable[[Any], Any]] = (
            dict(columns) if isinstance(columns, Mapping) else {name: name for name in _names(columns)}
        )
        own_names = {"item", "position"} | (set() if order is None else {"id"})
        reserved = own_names & self.beside.keys()
        if reserved:
            raise ArgumentError(
                f"columns: {names_text(sorted(reserved))} is a name of the store's own; give another by columns={{name: function}}"
            )
        self.sites = [site for name, each in self.models.items() for site in sites(each, include, exclude, ports=chosen, name=name)]
        own = {key for key in (*self.beside.values(), self.chooser.key, order) if isinstance(key, str)}
        self.forwards = Forwards(self.models, include, exclude, chosen, call, own)


def _ports(ports: Iterable[Port] | Port) -> tuple[Port, ...]:
    chosen: tuple[Port, ...] = (ports,) if isinstance(ports, str) else tuple(dict.fromkeys(ports))
    wrong = [port for port in chosen if port not in _PORTS]
    if wrong or not chosen:
        raise ArgumentError(f"ports={ports!r}: only forwards run, which have {' and '.join(map(repr, _PORTS))}")
    return chosen


def _names(columns: Iterable[str]) -> list[str]:
    names = [columns] if isinstance(columns, str) else list(columns)
    wrong: list[object] = [name for name in names if type(name) is not str]
    if wrong:
        raise ArgumentError(
            f"columns: {wrong[0]!r} is no key of a batch; give names, or functions by name: columns={{'label': function}}"
        )
    return names
