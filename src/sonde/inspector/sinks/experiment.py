"""The part that sinks for experiment trackers share: few charts however large the model, findings, and files at the end."""

from __future__ import annotations

import hashlib
import math
import tempfile
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nlargest
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from sonde.errors import ArgumentError
from sonde.inspector.sinks.base import LoggedRows, Sink
from sonde.inspector.sinks.charts import Charts, Numbers, Point
from sonde.library_calls import LibraryCalls
from sonde.rows import Rows, Scalar
from sonde.rules import Finding
from sonde.run import RunFolder
from sonde.site import Site
from sonde.words import many

if TYPE_CHECKING:
    from sonde.run import Run


_reporting = LibraryCalls()
_DRAWING = 0.5  # share of the time-out after which no further picture is begun


class ExperimentSink(Sink):
    """Sends the numbers of a training to an experiment tracker, in charts whose count does not grow with the model.

    Of each number there are the greatest, the median and the least value over all layers, as ``output_rms.max``, and charts of
    single layers, as ``output_rms/layers.3``: of every layer where there are no more than *layers* of them; else of the worst half
    as many at the first logged step, and of the worst layer at each later one, from that step on, until *layers* have a chart. A
    layer with a finding has one, too. The worst is the greatest or the least value, as the number says of itself, or the value that
    is furthest from the median; NaN before all.
    Losses, metrics and norms over all parameters have no layer.

    Args:
        layers: how many layers have a chart of their own, for each number.
        numbers: which numbers of a layer, see :class:`~sonde.inspector.sinks.charts.Charts`.
        pictures: whether the heat-maps and curves of the run are sent at the end; they need matplotlib.
        report: whether the report of the run, one HTML file, is sent at the end.
        timeout: the seconds that the end of the training waits for the tracker; half of them may be spent on drawing.
        prefix: stands before every name.

    Raises:
        ArgumentError: an argument does not fit.
    """

    may_block = True
    needs_run = True

    def __init__(self, *, layers: int, numbers: Numbers, pictures: bool, report: bool, timeout: float, prefix: str) -> None:
        if isinstance(layers, bool) or layers < 0:
            raise ArgumentError(f"layers={layers!r}: give the number of layers that have a chart of their own, from 0")
        if not timeout > 0:
            raise ArgumentError(f"timeout={timeout!r}: give the seconds that the end of the training waits, above 0")
        self.timeout = timeout
        self._charts = Charts(numbers)
        self._shown = _Shown(layers)
        self._prefix = prefix
        self._pictures = pictures
        self._report = report

    def open(self, description: Mapping[str, Any]) -> None:
        self._charts.about = description
        self._begin(description)

    def calls_for(self, entries: LoggedRows) -> Sequence[tuple[Callable[[], None], int]]:
        if type(self).write_all is not Sink.write_all:
            return super().calls_for(entries)
        steps: dict[int, list[Rows | Scalar]] = defaultdict(list)
        for entry in entries:
            steps[entry.step].append(entry)
        return [(partial(self._write_step, step, together), len(together)) for step, together in steps.items()]

    def _write_step(self, step: int, together: Sequence[Rows | Scalar]) -> None:
        self._log(step, {self._prefix + name: value for name, value in self._numbers(together)})

    def write(self, rows: Rows) -> None:
        self._write_step(rows.step, [rows])

    def scalar(self, scalar: Scalar) -> None:
        self._write_step(scalar.step, [scalar])

    def alert(self, finding: Finding) -> None:
        if finding.site:
            self._shown.add(Site.parse(finding.site).name)
        self._tell(finding)

    def finish(self, run: Run | None, *, failed: bool) -> None:
        try:
            missing = 0
            if run is not None and run.families:
                with tempfile.TemporaryDirectory(prefix="sonde-") as folder:
                    pictures, report, missing = self._files(run, Path(folder))
                    self._send(pictures, report)
        finally:
            self._end(failed=failed)
        if missing:
            within = f"{self.timeout * _DRAWING:g} seconds: give a longer timeout="
            raise TimeoutError(f"{many(missing, 'picture')} of the run could not be drawn within {within}")

    # What a tracker does

    @abstractmethod
    def _begin(self, description: Mapping[str, Any]) -> None:
        """Find the tracker's run, or begin one."""

    @abstractmethod
    def _log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log *numbers* of one step; others of the same step may come later, those of two logged steps mixed."""

    @abstractmethod
    def _tell(self, finding: Finding) -> None:
        """Show *finding*."""

    @abstractmethod
    def _send(self, pictures: Mapping[str, Path], report: Path | None) -> None:
        """Send the files, which are removed afterwards."""

    @abstractmethod
    def _end(self, *, failed: bool) -> None:
        """End the tracker's run, if this sink has begun it."""

    # The rest

    def _numbers(self, together: Iterable[Rows | Scalar]) -> Iterator[tuple[str, float]]:
        for entry in together:
            if isinstance(entry, Scalar):
                yield entry.name, entry.value
                continue
            charts: dict[str, list[Point]] = defaultdict(list)
            for point in self._charts.points(entry):
                charts[point.chart].append(point)
            model = f"{entry.models[0]}." if len(entry.rows) and entry.models[0] else ""
            for chart, points in charts.items():
                yield from self._shown.of(model + chart, points)

    def _files(self, run: Run, folder: Path) -> tuple[dict[str, Path], Path | None, int]:
        """Write the pictures and the report of *run* into *folder*; return also how many pictures there was no time for."""
        pictures: dict[str, Path] = {}
        missing = 0
        if self._pictures and find_spec("matplotlib") is not None:
            from sonde.view import plots

            pictures = {path.stem: path for path in plots.save(run, folder / "pictures", seconds=self.timeout * _DRAWING)}
            missing = len(plots.plan(run)) - len(pictures)
        report = None
        if self._report:
            from sonde.view import save_report

            name = "run" if run.path is None else run.path.name
            with _reporting:
                report = save_report(run, folder / f"{name}.html")
        return pictures, report, missing


def identity(path: Path) -> str | None:
    """Return a text that names the run in the folder *path* in all its attempts, wherever the folder is moved to."""
    about = RunFolder(path).description
    return hashlib.sha256(repr(about.attempts[0].started).encode()).hexdigest()[:16] if about and about.attempts else None


class _Shown:
    """The layers that have a chart of their own, by number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._layers: dict[str, set[str]] = defaultdict(set)
        self._found: set[str] = set()

    def add(self, layer: str) -> None:
        """Give *layer* charts, beyond the number of layers that have one."""
        if len(self._found) < self._most:
            self._found.add(layer)

    def of(self, chart: str, points: Collection[Point]) -> Iterator[tuple[str, float]]:
        """Yield name and value of what is drawn of *points*, those of all layers at one moment."""
        finite = [point.value for point in points if math.isfinite(point.value)]
        middle = median(finite) if finite else math.nan
        if len(points) > 1:
            yield f"{chart}.max", max(finite, default=math.nan)
            yield f"{chart}.median", middle
            yield f"{chart}.min", min(finite, default=math.nan)
        shown = self._layers[chart]
        if len(points) <= self._most:
            shown |= {point.layer for point in points}
        elif len(shown) < self._most:
            several = 1 if shown else (self._most + 1) // 2
            shown |= {point.layer for point in nlargest(several, points, key=lambda point: _badness(point, middle))}
        yield from ((point.tag, point.value) for point in points if point.layer in shown or point.layer in self._found)


def _badness(point: Point, middle: float) -> float:
    """Return a number that is greater the worse the value of *point* is, where *middle* is the median of all layers."""
    value, number = point.value, point.number
    if not math.isfinite(value):
        return math.inf
    if number.worst:
        return value if number.worst == "max" else -value
    if number.kind == "size" and middle > 0:
        return math.inf if value <= 0 else abs(math.log(value / middle))
    return abs(value - middle)
