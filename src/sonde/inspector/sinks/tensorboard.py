"""The sink that writes TensorBoard's event files, under tags that put the number first."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError, MissingExtraError
from sonde.inspector.sinks.base import Rows, Scalar, Sink
from sonde.number import Number, described, number_of
from sonde.paths import absolute_path
from sonde.site import OTHER_CALLS, PARAMETER_PORTS, Site

__all__ = ["TensorBoard"]

_SHARED = frozenset(["moments", "output_gradient", "parameter_gradient", "parameter_norm", "parameter_update"])
"""Families whose norms and rms of the same tensor are the same number, and so have the same tag."""

_DEFECTS = ("nan", "inf", "nonfinite")
_FIRST_POWER = -149  # of ``powers``, the counts of an exponent histogram


class TensorBoard(Sink):
    """Writes scalars for TensorBoard, one chart for each tag.

    Tags of layers put the number first, so that one section holds all layers: ``grad_norm/layers.3.weight``,
    ``output_rms/layers.3``, ``update_ratio/layers.3.weight`` (update / weight). Those of a lens of another kind begin with its
    family: ``activation.output_call_death/layers.3.act``. Losses, metrics and the norms over all parameters have no layer:
    ``loss``, ``grad_norm``, ``param_norm``, ``update_norm``. Of a layer that is called several times in a forward the second
    call has the tag ``output_rms/layers.3.act.call_1``, and so on. ``grad_nonfinite/...`` counts NaN and infinite elements, from
    the first step with any; the other numbers leave these elements out, and are NaN where no element was finite. The counts of an
    exponent histogram become a histogram over powers of two. The x-axis is the optimizer's step.

    A folder that holds events already is continued: its events from the first new step on are superseded.

    Args:
        folder: where TensorBoard looks: ``tensorboard --logdir folder``.
        numbers: which numbers of a layer: names, or ``"all"``. By default of moments the norm of what belongs to parameters and the
            rms of other tensors, and of other lenses all but the minor ones: counts and outer percentiles.

    Raises:
        MissingExtraError: tensorboard is not installed.
        ArgumentError: *numbers* is a text other than ``"all"``.
    """

    def __init__(self, folder: str | os.PathLike[str], *, numbers: Collection[str] | Literal["all"] | None = None) -> None:
        MissingExtraError.import_or_raise("tensorboard", "writing for TensorBoard", "tensorboard")
        if isinstance(numbers, str) and numbers != "all":
            raise ArgumentError(f"numbers={numbers!r}: give names, as ('rms', 'mean'), or 'all'")
        self.folder = absolute_path(folder)
        self._numbers = numbers
        self._writer: Any = None
        self._owners: dict[str, str] = {}
        self._info: Mapping[str, Any] = {}
        self._described: dict[str, dict[str, Number]] = {}

    def open(self, description: Mapping[str, Any]) -> None:
        self._info = description

    def write(self, rows: Rows) -> None:
        writer = self._begun(rows.step)
        for tag, value in self._scalars(rows):
            if self._owners.setdefault(tag, rows.family) == rows.family:
                writer.add_scalar(tag, value, rows.step)
        for number, column in rows.numbers.items():
            if number == "powers" and column.ndim == 2:
                for site, name, counts in zip(map(Site.parse, rows.sites), _names(rows), column, strict=True):
                    _add_powers(writer, f"{site.port}_powers/{name}", counts, rows.step)

    def scalar(self, scalar: Scalar) -> None:
        self._begun(scalar.step).add_scalar(scalar.name, scalar.value, scalar.step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _begun(self, step: int) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            held = any(self.folder.glob("events.out.tfevents.*"))
            self._writer = SummaryWriter(str(self.folder), purge_step=step if held else None)
        return self._writer

    def _scalars(self, rows: Rows) -> Iterator[tuple[str, float]]:
        """Tags and values, in the order of the rows."""
        family = "" if rows.family in _SHARED else f"{rows.family}."
        columns = {name: column for name, column in rows.numbers.items() if np.ndim(column) == 1}
        defects = sum((columns[name] for name in _DEFECTS if name in columns), np.zeros(len(rows.rows)))
        norms = dict(zip(rows.sites, columns["norm"].tolist(), strict=True)) if "norm" in columns else {}
        for row, (site, name) in enumerate(zip(rows.sites, _names(rows), strict=True)):
            place = Site.parse(site)
            port = place.port
            for number, column in columns.items():
                if self._wants(number, port, rows.family):
                    yield f"{family}{port}_{number}/{name}", float(column[row])
            nonfinite = f"{family}{port}_nonfinite/{name}"
            if defects[row] > 0 or nonfinite in self._owners:
                yield nonfinite, float(defects[row])
            weight = norms.get(str(place.port_of("param")), 0.0) if port == "update" else 0.0
            if weight != 0:  # NaN if no element is finite, and then the ratio too
                yield f"update_ratio/{name}", norms[site] / weight

    def _wants(self, number: str, port: str, family: str) -> bool:
        if self._numbers is not None:
            return self._numbers == "all" or number in self._numbers
        return number == ("norm" if port in PARAMETER_PORTS else "rms") if family in _SHARED else not self._is_minor(number, family)

    def _is_minor(self, number: str, family: str) -> bool:
        if family not in self._described:
            self._described[family] = described(self._info, family)
        return (self._described[family].get(number) or number_of(number)).is_minor


def _names(rows: Rows) -> list[str]:
    """Return the name of each row's layer, with the number of the call where the layer is called more than once."""
    calls = np.asarray(rows.layout.columns["call"])[rows.rows].tolist()
    called = Counter(rows.sites)
    return [
        Site.parse(site).name
        + ("" if call == 0 or called[site] == 1 else ".other_calls" if call == OTHER_CALLS else f".call_{call}")
        for site, call in zip(rows.sites, calls, strict=True)
    ]


def _add_powers(writer: Any, tag: str, counts: npt.NDArray[np.float64], step: int) -> None:
    """A histogram whose axis is the power of two: the count of power e is of magnitudes in (2**(e-1), 2**e]."""
    filled = np.flatnonzero(counts > 0)
    if not len(filled):
        return
    powers = np.arange(filled[0], filled[-1] + 1) + _FIRST_POWER
    kept = counts[filled[0] : filled[-1] + 1]
    middles = powers - 0.5
    writer.add_histogram_raw(
        tag,
        min=float(powers[0] - 1),
        max=float(powers[-1]),
        num=float(kept.sum()),
        sum=float((kept * middles).sum()),
        sum_squares=float((kept * middles**2).sum()),
        bucket_limits=powers.astype(float).tolist(),
        bucket_counts=kept.tolist(),
        global_step=step,
    )
