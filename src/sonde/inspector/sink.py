"""Where rows go: what a sink is, and the sink that writes a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sonde.run.schema import Layout
from sonde.run.writer import RunWriter

if TYPE_CHECKING:
    from sonde.run.run import Run

__all__ = ["Rows", "RunSink", "Scalar", "Sink"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Numbers of one family at one moment, a row for each site that something was added at.

    Attributes:
        family: as ``moments``.
        layout: all sites that could have a row.
        rows: which of them have one: indices into *layout*.
        epoch, step, micro_step: when.
        counts: how often something was added to each row.
        numbers: by name, float64 of the shape of *rows*.
    """

    family: str
    layout: Layout
    rows: npt.NDArray[np.intp]
    epoch: int
    step: int
    micro_step: int
    counts: npt.NDArray[np.float64]
    numbers: Mapping[str, npt.NDArray[np.float64]]

    @property
    def sites(self) -> list[str]:
        """The text of each row's site."""
        return [self.layout.site[row] for row in self.rows]

    @property
    def models(self) -> list[str]:
        """Each row's model."""
        return [self.layout.model[row] for row in self.rows]

    def columns(self) -> dict[str, Any]:
        """All columns that the family has in a run, keys first."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "micro_step": self.micro_step,
            "model": self.models,
            "site": self.sites,
            "order": np.asarray(self.layout.order)[self.rows],
            **self.numbers,
        }


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that belongs to no site.

    Attributes:
        name: as ``loss``.
        value: the number.
        epoch, step: when.
    """

    name: str
    value: float
    epoch: int
    step: int


class Sink:
    """Where rows go. Write one by overriding what it needs; it is called in a thread of its own, never in two at once.

    A sink that raises is not called again: the training goes on, with one warning.
    """

    def open(self, description: Mapping[str, Any]) -> None:
        """The training begins; *description* is plain data: ``model``, ``environment``, ``lenses``."""

    def write(self, rows: Rows) -> None:
        """Rows of one family."""

    def scalar(self, scalar: Scalar) -> None:
        """One loss, metric, norm or share."""

    def close(self) -> None:
        """Nothing more will come."""


class RunSink(Sink):
    """Writes a run, on disk or in memory.

    Attributes:
        writer: of the run.
    """

    def __init__(self, writer: RunWriter, *, owned: bool = True) -> None:
        self.writer = writer
        self._owned = owned

    def open(self, description: Mapping[str, Any]) -> None:
        self.writer.describe(**description)

    def write(self, rows: Rows) -> None:
        size = len(rows.layout)
        if len(rows.rows) == size:
            numbers = dict(rows.numbers)
        else:
            numbers = {}
            for name, column in rows.numbers.items():
                numbers[name] = np.full((size, *column.shape[1:]), np.nan)
                numbers[name][rows.rows] = column
        self.writer.append(
            rows.family, rows.layout, numbers, step=rows.step, epoch=rows.epoch, micro_step=rows.micro_step, rows=rows.rows
        )

    def scalar(self, scalar: Scalar) -> None:
        self.writer.scalar(scalar.name, scalar.value, step=scalar.step, epoch=scalar.epoch)

    def close(self) -> None:
        if self._owned:
            self.writer.close()
        else:
            self.writer.flush()

    def run(self) -> Run:
        """The run so far, to read."""
        return self.writer.run()
