"""The base of sonde's own preprocessors: the aggregates of an interval, read as ``value`` by name and shown as a table."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sonde.answer import Cell, Grid, ShownAsTable
from sonde.errors import ArgumentError, UnknownSiteError
from sonde.preprocessor.aggregates import Aggregate, aggregate
from sonde.preprocessor.base import AbstractPreprocessor, name_of
from sonde.preprocessor.interval import IntervalAggregates, NumberSpec
from sonde.site import Site
from sonde.stats import PLAIN, dense
from sonde.suggest import nearest
from sonde.words import number_text

_SHOWN = ("mean", "std", "min", "max")


class Values(dict[str, Any]):
    """The value of a preprocessor: by name, in the order in which the names were first met.

    >>> from sonde.preprocessor import ExplicitCall, Values
    >>> isinstance(ExplicitCall().value, Values)
    True
    """

    def __missing__(self, name: str) -> Any:
        raise UnknownSiteError(f"nothing called {name!r} was ever processed. {nearest(name, self)}")


class Measured(AbstractPreprocessor, ShownAsTable):
    """A preprocessor whose numbers are read from rows of statistics.

    A subclass declares the statistics and their numbers; it defines ``_arranged`` if the statistic needs the tensor in another
    layout, and ``_keys`` and ``_path`` if ``value`` is not by site.

    Args:
        specs: the statistics, and which of their numbers are read.
        inplace: aggregate the numbers as they come, instead of keeping all of them.
        form: makes the entry of ``value`` from the aggregates of a name; None for a single number, whose aggregate is the entry.
        always: the keys that are known before anything is processed.
    """

    def __init__(
        self,
        specs: Iterable[NumberSpec],
        inplace: bool,
        form: Callable[..., Any] | None = None,
        always: Iterable[Hashable] = (),
    ) -> None:
        self._interval = IntervalAggregates(specs, inplace)
        self._form = form
        self._always = tuple(always)
        self._expect_always()

    def _measure(
        self, key: Hashable, tensor: Any, owner: nn.Module | None = None, *, what: str = "a tensor", step: int | None = None
    ) -> None:
        """Make *key* known, and measure *tensor* unless there is nothing to measure.

        Args:
            key: key of the numbers.
            tensor: a tensor, or None.
            owner: the layer that returned the tensor or has the parameter.
            what: words for the tensor in an error.
            step: see :meth:`IntervalAggregates.add`.
        """
        self._interval.expect(key)
        if nothing_to_measure(tensor, what):
            return
        if type(tensor) not in PLAIN and (tensor := dense(tensor)).numel() == 0:  # this rank holds nothing of it
            return
        arranged = self._arranged(tensor, owner)
        if arranged is not None:
            self._add(key, arranged, step)

    def _arranged(self, tensor: Tensor, owner: nn.Module | None) -> Tensor | None:
        """Return *tensor* in the layout that the statistic measures; None if there is no such number."""
        return tensor

    def _add(self, key: Any, tensor: Tensor, step: int | None) -> None:
        """Add an arranged tensor to the numbers of *key*."""
        self._interval.add(key, tensor, step=step)

    @property
    def value(self) -> dict[str, Any]:
        """Copies of the aggregates since the preprocessor was made or last reset, by name. Reading waits for the device.

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

    def _path(self, key: Any) -> tuple[str, ...]:
        """Return the place of the numbers of *key* in ``value``."""
        return (key,)

    def expect(self, sites: Iterable[Site | str]) -> None:
        """Make sites, or layers and tensors by name, known: they have no data until they are processed."""
        for site in sites:
            for key in self._keys(site):
                self._interval.expect(key)

    def _keys(self, site: Site | str) -> Iterable[Hashable]:
        """Return the keys whose numbers belong to *site*."""
        return (site if isinstance(site, str) else name_of(site),)

    def reset(self) -> None:
        """Begin a new interval: every name that is known has no data.

        The last tensor of each name is kept, to compare the next tensor with.
        """
        self._interval.reset()

    def clear(self) -> None:
        """Begin anew, as for another model: forget names, numbers and the last tensors."""
        self._interval.clear()
        self._expect_always()

    def _expect_always(self) -> None:
        for key in self._always:
            self._interval.expect(key)

    # Showing

    def _grid(self) -> Grid:
        rows = []
        aggregates = list(self._aggregates())
        for path, held in aggregates:
            for label, one in zip(self._interval.labels, held, strict=True):
                spoiled = f"{one.nonfinite} not finite" if one.nonfinite else ""
                shown = [f"{one.finite}", *(number_text(aggregate(one, method)) for method in _SHOWN)]
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
    """Return whether *tensor* is None (no gradient, no such parameter), uninitialised or empty, so that there is no number.

    Raises:
        ArgumentError: *tensor* is no tensor.
    """
    if tensor is None:
        return True
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"{what} must be a tensor, not {type(tensor).__name__}")
    return torch.nn.parameter.is_lazy(tensor) or tensor.numel() == 0
