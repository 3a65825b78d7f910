"""The zoo: a registry of small models, one for each thing in ordinary networks that is easily recorded wrongly.

``networks.py`` and ``values.py`` register the models.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sonde.checkup import mean_square

Batch = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call: positional and keyword arguments; in the zoo one of the two is empty."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the zoo.

    >>> from sonde import testing
    >>> entry = testing.ZOO["mlp"]
    >>> arguments, keywords = entry.batch()
    >>> entry.build()(*arguments, **keywords).shape
    torch.Size([3, 2])

    Attributes:
        name: the name, which is also the key in ``ZOO``.
        why: the reason for this model, in a line.
        build: makes the model, with the same weights each time; does not draw from the caller's random generators.
        batch: makes the arguments of the call, with the same values each time.
        loss: maps the output to a scalar that can run backward; None where nothing in the output has a gradient.
    """

    name: str
    why: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[Any], Tensor] | None

    def __str__(self) -> str:
        return self.name


Children = dict[str, nn.Module | nn.Parameter]
Forward = Callable[..., Any]

ZOO: dict[str, Entry] = {}
"""Every entry, by name."""


class Net(nn.Module):
    """A module made of children and a forward function, which is called as ``forward(net, *args, **kwargs)``."""

    def __init__(self, forward: Callable[..., Any], **children: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = forward
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)

    def extra_repr(self) -> str:
        return self.function.__name__


# ---------------------------------------------------------------------------------------------------------- registering


@contextmanager
def _fixed() -> Iterator[None]:
    """Draw the same random numbers each time, none of the caller's; ignore warnings about prototypes and lazy modules."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(0)
        yield


def rows(*shape: int, grad: bool = False) -> Callable[[], Batch]:
    """Return a function that makes a batch of one random tensor; with *grad* the tensor is a leaf that needs a gradient."""
    return lambda: ((torch.randn(*(shape or (3, 4))).requires_grad_(grad),), {})


def add(
    why: str,
    build: Callable[[], nn.Module],
    batch: Callable[[], Batch] | None = None,
    *,
    name: str,
    loss: Callable[[Any], Tensor] | None = mean_square,
) -> None:
    """Add an entry to the zoo."""

    def seeded_build() -> nn.Module:
        with _fixed():
            return build()

    def seeded_batch() -> Batch:
        with _fixed():
            return (batch or rows())()

    ZOO[name] = Entry(name, why, seeded_build, seeded_batch, loss)


def entry(
    why: str,
    children: Callable[[], Children],
    batch: Callable[[], Batch] | None = None,
    loss: Callable[[Any], Tensor] | None = mean_square,
) -> Callable[[Forward], Forward]:
    """Return a decorator that adds a :class:`Net` with the decorated forward function to the zoo, under the function's name."""

    def register(forward: Forward) -> Forward:
        add(why, lambda: Net(forward, **children()), batch, name=forward.__name__, loss=loss)
        return forward

    return register


def one_layer() -> Children:
    """Return one layer ``lin``, 4 to 4."""
    return {"lin": nn.Linear(4, 4)}


def two_layers() -> Children:
    """Return two layers ``a`` and ``b``, 4 to 4."""
    return {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}
