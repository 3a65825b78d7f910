"""The lens: a statistic, the ports and layers that it measures, and how its numbers are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from sonde.engine import Where
from sonde.errors import ArgumentError
from sonde.run import check_family
from sonde.site import PORTS, Port
from sonde.stats import RowStatistic, Statistic
from sonde.view import bands_named, points_named, summarised


@dataclass(frozen=True)
class Lens:
    """A statistic, the ports and layers that it measures, and how its numbers are shown.

    >>> import torch
    >>> from sonde import lens
    >>> from sonde.stats import Norm
    >>> length = lens.Lens("length", Norm(), ("output",), include=torch.nn.Linear)
    >>> length.described()["ports"]
    ['output']
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> [(statistic, where) for statistic, where in length.parts(net)][0][0]
    Norm()
    >>> length.as_observed(net, None, None)[0]
    Norm()

    Attributes:
        name: name of its family in the run: small letters, digits and underscores.
        statistic: a statistic of :mod:`sonde.stats`, or your own.
        ports: the tensors to measure, as ``("output", "grad")``.
        include, exclude: the layers to measure, among those that the inspector observes.
        evaluation: also record evaluation passes, in the family ``<name>_eval``.
        show: how the numbers are drawn, as plain data for run.json: ``picture`` (``"heatmap"`` or ``"lines"``), ``number``,
            ``log``, ``ranges``, ``compare`` (shares of the layers), ``worst`` (the worst layer on its own).
        one_in: measure in one of so many logged steps, for statistics that cost much and change slowly; where optimizers
            alternate, in one of so many of each.
        also: further lenses that belong to this lens.
        optional: a model without a layer for this lens is no error: the lens warns, and records nothing.

    Raises:
        ArgumentError: an argument cannot be used.
    """

    name: str
    statistic: RowStatistic
    ports: tuple[Port, ...] = ("output",)
    include: Where = None
    exclude: Where = None
    evaluation: bool = False
    show: Mapping[str, Any] = field(default_factory=dict, hash=False)
    one_in: int = field(default=1, kw_only=True)
    also: tuple[Lens, ...] = field(default=(), kw_only=True)
    optional: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_family(self.name)
        if not isinstance(self.statistic, RowStatistic):
            raise ArgumentError(f"{self.name}: a lens looks through a statistic such as Moments(), not {self.statistic!r}")
        if self.one_in < 1:
            raise ArgumentError(
                f"{self.name}: one_in={self.one_in!r}: one in so many logged steps is looked at, so it is 1 or more"
            )
        given: Any = self.ports
        ports = (given,) if isinstance(given, str) else tuple(given)
        unknown = [port for port in ports if port not in PORTS]
        if unknown or not ports:
            raise ArgumentError(f"{self.name}: ports={self.ports!r}: give one or more of {', '.join(PORTS)}")
        object.__setattr__(self, "ports", ports)

    def parts(self, model: nn.Module) -> Iterator[tuple[RowStatistic, Where]]:
        """Yield the statistics to use in *model*, each with a condition on layers."""
        yield self.statistic, None

    def as_observed(self, model: nn.Module, include: Where, exclude: Where) -> tuple[Statistic, Where, Where]:
        """Return what ``sonde.observe`` observes of *model* for this lens: its statistic, and its layers where none are given.

        Raises:
            ArgumentError: the lens compares tensors, or its statistic differs from layer to layer.
        """
        parts = list(self.parts(model))
        statistic = parts[0][0] if len(parts) == 1 else None
        if not isinstance(statistic, Statistic):
            raise ArgumentError(
                f"the lens {self.name!r} is not one statistic of single tensors in this model, which is all that observe() can add "
                "up: give the preprocessor of the same name to observe(), or the lens to watch()"
            )
        return statistic, self.include if include is None else include, self.exclude if exclude is None else exclude

    def described(self) -> dict[str, Any]:
        """Return plain data for run.json: the ports, the numbers, and how they are shown."""
        numbers = [number.plain() for number in self.statistic.numbers]
        shown = {"number": next((number["name"] for number in numbers if not number["minor"]), None)}
        about = {"family": self.name, "statistic": repr(self.statistic), "ports": list(self.ports), "numbers": numbers}
        return {**about, **shown, **self.show}


_AGGREGATIONS = {"loss_line": points_named, "metrics_line": points_named, "loss_range": bands_named, "metrics_range": bands_named}


@dataclass(frozen=True)
class LossMetrics:
    """The loss and the metrics of a training, as scalars.

    >>> import sonde, torch
    >>> from sonde import lens
    >>> net = torch.nn.Linear(2, 1)
    >>> losses = lens.LossMetrics(metrics=("accuracy",))
    >>> with sonde.watch(net, every=1, lenses=losses, to="memory", verbose=False) as inspector:
    ...     net(torch.ones(1, 2)).sum().backward()
    ...     inspector.push_loss(0.25, train=True)
    ...     inspector.step()
    ...     inspector.tick_epoch()
    >>> losses.loss(train=True), losses.described()["metrics"]
    (0.25, ['accuracy'])

    Values pushed with ``push_loss`` and ``push_metric`` are recorded without this lens too. The lens also records every value
    that a loss module returns, and sets how the scalars are drawn.

    Attributes:
        loss_fn: a loss module, such as ``nn.CrossEntropyLoss()``: each returned value is a loss.
        metrics: names that ``push_metric`` accepts; an empty tuple or None accepts every name.
        evaluation_from_grad: with True, a loss belongs to evaluation if gradients are switched off; with False, if the loss
            module's ``training`` is false.
        loss_line, metrics_line: the lines that are drawn: one or several aggregates of each interval, of ``"mean"``, ``"median"``,
            ``"min"``, ``"max"``, ``"std"``, ``"Q1"``, ``"Q3"``, ``"IQR"``.
        loss_range, metrics_range: the bands that are drawn: of ``"std"``, ``"min-max"``, ``"Q1-Q3"``; None for no band.
        separate_loss_and_metrics: draw each loss and metric on a panel of its own, otherwise all on one.
        loss_fn_inplace: makes no difference: a run keeps the loss of each logged step, and aggregates are computed from these.

    Raises:
        ArgumentError: *loss_fn* is no module, or there is no such aggregation.
    """

    loss_fn: nn.Module | None = None
    metrics: tuple[str, ...] = ()
    evaluation_from_grad: bool = True
    loss_line: str | Sequence[str] = "mean"
    loss_range: str | Sequence[str] | None = "std"
    metrics_line: str | Sequence[str] = "mean"
    metrics_range: str | Sequence[str] | None = None
    separate_loss_and_metrics: bool = True
    loss_fn_inplace: bool = True
    _read: Callable[[bool], list[float]] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.loss_fn is not None and not isinstance(self.loss_fn, nn.Module):
            raise ArgumentError(
                f"loss_fn={self.loss_fn!r}: what returns the loss is an nn.Module, such as nn.CrossEntropyLoss(); of a function, "
                "give what it returns to push_loss()"
            )
        given: Any = self.metrics
        object.__setattr__(self, "metrics", (given,) if isinstance(given, str) else tuple(given or ()))
        for name, named in _AGGREGATIONS.items():
            names = named(name, getattr(self, name))
            if not names and name.endswith("line"):
                raise ArgumentError(f"{name}={getattr(self, name)!r}: at least one line is drawn, as 'mean'")
            object.__setattr__(self, name, names)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_read"}  # a copy belongs to no inspector

    def read_by(self, read: Callable[[bool], list[float]]) -> None:
        """Let :meth:`loss` read by *read*: whether losses of training are wanted -> the losses of the last epoch.

        >>> from sonde import lens
        >>> losses = lens.LossMetrics()
        >>> losses.read_by(lambda train: [2.0, 4.0] if train else [])
        >>> losses.loss(train=True)
        3.0
        """
        object.__setattr__(self, "_read", read)

    def loss(self, *, train: bool, method: str | None = None) -> float:
        """Return the loss of the last epoch that has ended, aggregated over its logged steps.

        Args:
            train: the loss of training, otherwise of evaluation.
            method: ``"mean"``, ``"std"``, ``"min"``, ``"max"``, ``"median"``, ``"Q1"``, ``"Q3"``, ``"IQR"``; the default is the
                first of *loss_line*.

        Raises:
            ArgumentError: no inspector has this lens, no epoch has ended, no such loss was recorded in it, or there is no such
                method.
        """
        (method,) = points_named("method", self.loss_line[0] if method is None else method)
        if self._read is None:
            raise ArgumentError("no inspector has this lens: give it one in lenses=, and attach the inspector to a model")
        values = np.array(self._read(train))
        return summarised(values, method)

    def described(self) -> dict[str, Any]:
        """Return plain data for run.json."""
        return {
            "family": "scalars",
            "picture": "lines",
            "metrics": list(self.metrics),
            "loss": {"line": list(self.loss_line), "range": list(self.loss_range or ())},
            "of_metrics": {"line": list(self.metrics_line), "range": list(self.metrics_range or ())},
            "separate": self.separate_loss_and_metrics,
        }
