"""The base of sonde's own preprocessors: the aggregates of an interval, read as ``value`` by name and shown as a table."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from sonde.engine import Site
from sonde.errors import ArgumentError, UnknownSiteError
from sonde.preprocessor.aggregates import Aggregate, aggregate
from sonde.preprocessor.base import AbstractPreprocessor
from sonde.preprocessor.interval import IntervalAggregates, NumberSpec
from sonde.suggest import nearest
from sonde.view.table import Cell, Grid, ShownAsTable

__all__ = ["Measured", "Values", "nothing_to_measure"]

_SHOWN = ("mean", "std", "min", "max")


class Values(dict[str, Any]):
    """A preprocessor's value: by name, in the order in which the names were first met."""

    def __missing__(self, name: str) -> Any:
        raise UnknownSiteError(f"nothing called {name!r} was ever processed. {nearest(name, self)}")


class Measured(AbstractPreprocessor, ShownAsTable):
    """A preprocessor whose numbers are read from rows of statistics.

    Args:
        specs: of which statistics, and which of their numbers.
        inplace: aggregate the numbers as they come, instead of keeping all of them.
        form: makes what stands in ``value`` of a name's aggregates; with a single number, that is the aggregate itself.
    """

    def __init__(self, specs: Iterable[NumberSpec], inplace: bool, form: Callable[..., Any] | None = None) -> None:
        self._interval = IntervalAggregates(specs, inplace)
        self._form = form

    @property
    def value(self) -> dict[str, Any]:
        """What was computed since the preprocessor was made or last reset, by name, as copies. NumberSpec waits for the device.

        A layer that is known, but has not run since, has no data: an empty aggregate.
        """
        found = Values()
        for path, held in self._aggregates():
            below = found
            for step in path[:-1]:
                below = below.setdefault(step, {})
            below[path[-1]] = held[0] if self._form is None else self._form(*held)
        return found

    def _aggregates(self) -> Iterator[tuple[tuple[str, ...], tuple[Aggregate, ...]]]:
        for key, held in self._interval.read().items():
            yield self._path(key), held

    def _path(self, key: Hashable) -> tuple[str, ...]:
        """Where in ``value`` the numbers of *key* stand."""
        return (str(key),)

    def expect(self, sites: Iterable[Site | str]) -> None:
        """These sites, or layers and tensors by name, have no data until they are processed, instead of being unknown."""
        for site in sites:
            if isinstance(site, str):
                self._interval.expect(site)
            else:
                self._interval.expect(f"{site.model}/{site.path}" if site.model else site.path)

    def reset(self) -> None:
        """Begin a new interval: every name that is known has no data.

        What the next tensor of a name is compared with, its predecessor, is kept.
        """
        self._interval.reset()

    def clear(self) -> None:
        """Begin anew, as for another model: names, numbers and predecessors are forgotten."""
        self._interval.clear()

    # Showing

    def _grid(self) -> Grid:
        rows = []
        aggregates = list(self._aggregates())
        for path, held in aggregates:
            for label, one in zip(self._interval.labels, held, strict=True):
                spoiled = f"{one.nonfinite} not finite" if one.nonfinite else ""
                shown = [f"{one.finite}", *(f"{aggregate(one, method):.4g}" for method in _SHOWN)]
                numbers = shown if one.finite else ["no data"] + [""] * len(_SHOWN)
                cells = [Cell(" ".join(path) or "(root)"), Cell(label), *(Cell(text, align="right") for text in numbers)]
                rows.append([*cells, Cell(spoiled, "bad")])
        return Grid(
            title=f"{type(self).__name__}: {len(aggregates)} {'name' if len(aggregates) == 1 else 'names'}",
            columns=["name", "number", "count", *_SHOWN, ""],
            rows=rows,
            empty="nothing was processed yet",
        )


def nothing_to_measure(tensor: Any, what: str) -> bool:
    """Whether *tensor* is None (no gradient, no such parameter) or has no elements, so that there is no number.

    Raises:
        ArgumentError: it is no tensor.
    """
    if tensor is None:
        return True
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"{what} must be a tensor, not {type(tensor).__name__}")
    return torch.nn.parameter.is_lazy(tensor) or tensor.numel() == 0
