"""The sink that writes TensorBoard's event files, under tags that put the number first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sonde.errors import MissingExtraError
from sonde.inspector.sinks.base import Sink
from sonde.inspector.sinks.charts import Charts, Numbers, layer_names
from sonde.paths import absolute_path
from sonde.rows import Rows, Scalar
from sonde.run import flat
from sonde.site import Site

if TYPE_CHECKING:
    from sonde.run import Run

_FIRST_POWER = -149  # of ``powers``, the counts of an exponent histogram


class TensorBoard(Sink):
    """Writes scalars for TensorBoard, one chart for each tag.

    Tags of layers put the number first, so that one section holds all layers: ``grad_norm/layers.3.weight``,
    ``output_rms/layers.3``, ``update_ratio/layers.3.weight`` (update / weight). Those of a lens of another kind begin with its
    family: ``activation.output_call_death/layers.3.act``. Losses, metrics and the norms over all parameters have no layer:
    ``loss``, ``grad_norm``, ``param_norm``, ``update_norm``. Of a layer that is called several times in a forward the second
    call has the tag ``output_rms/layers.3.act.call_1``, and so on. ``grad_nonfinite/...`` counts NaN and infinite elements, from
    the first step with any; the other numbers leave these elements out, and are NaN where no element was finite. The counts of an
    exponent histogram become a histogram over powers of two. The x-axis is the optimizer's step. At the end the ``config`` of the
    training becomes hyperparameters, beside the last value of each scalar.

    A folder that holds events already is continued: its events from the first new step on are superseded.

    Args:
        folder: where TensorBoard looks: ``tensorboard --logdir folder``.
        numbers: which numbers of a layer: names, or ``"all"``. By default of moments the norm of what belongs to parameters and the
            rms of other tensors, and of other lenses all but the minor ones: counts and outer percentiles.

    Raises:
        MissingExtraError: tensorboard is not installed.
        ArgumentError: *numbers* is a text other than ``"all"``.
    """

    def __init__(self, folder: str | os.PathLike[str], *, numbers: Numbers = None) -> None:
        MissingExtraError.import_or_raise("tensorboard", "writing for TensorBoard", "tensorboard")
        self.folder = absolute_path(folder)
        self._charts = Charts(numbers)
        self._writer: Any = None
        self._last: dict[str, float] = {}  # the value of each scalar

    def open(self, description: Mapping[str, Any]) -> None:
        self._charts.about = description

    def write(self, rows: Rows) -> None:
        writer = self._begun(rows.step)
        for point in self._charts.points(rows):
            writer.add_scalar(point.tag, point.value, rows.step)
        for number, column in rows.numbers.items():
            if number == "powers" and column.ndim == 2:
                for site, name, counts in zip(map(Site.parse, rows.sites), layer_names(rows), column, strict=True):
                    _add_powers(writer, f"{site.port}_powers/{name}", counts, rows.step)

    def scalar(self, scalar: Scalar) -> None:
        self._last[scalar.name] = scalar.value
        self._begun(scalar.step).add_scalar(scalar.name, scalar.value, scalar.step)

    def finish(self, run: Run | None, *, failed: bool) -> None:
        config = self._charts.about.get("config")
        if self._writer is None or not isinstance(config, Mapping) or not config:
            return
        from torch.utils.tensorboard import summary

        make: Any = summary.hparams
        plain = {name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in flat(config).items()}
        for each in make(plain, self._last):
            self._writer.file_writer.add_summary(each)

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
