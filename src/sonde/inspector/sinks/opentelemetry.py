"""The sink that gives numbers and findings to OpenTelemetry, whose exporters take them on: to a collector, or to Prometheus."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.errors import ArgumentError, MissingExtraError
from sonde.inspector.sinks.charts import Numbers
from sonde.inspector.sinks.experiment import ExperimentSink
from sonde.rows import Rows, Scalar
from sonde.rules import Finding

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

_NOT_IN_NAMES = re.compile(r"[^\w.\-/]", re.ASCII)
_NAME = 255  # characters that a name may have


class OpenTelemetrySink(ExperimentSink):
    """Gives the numbers of a training to OpenTelemetry: ``watch(model, to=[path, OpenTelemetrySink()])``.

    The exporters are those of the SDK: the sink uses the providers that the program has set, and leaves them open. Numbers are
    gauges, as ``sonde.loss`` and ``sonde.layers.output_rms``. Of a number that each layer has, there are the greatest, the median
    and the least value over all layers, with the attribute ``of_layers``, and the values of the worst layers, with the attribute
    ``layer``: never a series for each layer. ``sonde.step`` is the optimizer's step. Each finding is a span ``sonde.finding`` with
    its fields as attributes. All have the attribute ``run``.

    Args:
        layers: how many layers have a series of their own, for each number; see
            :class:`~sonde.inspector.sinks.experiment.ExperimentSink`.
        numbers: which numbers of a layer: names, or ``"all"``.
        meter_provider, tracer_provider: by default those that the program has set in ``opentelemetry.metrics`` and ``.trace``.
        attributes: further attributes of all numbers and findings.
        timeout: the seconds that the end of the training waits for the exporters.
        prefix: stands before every name.

    Raises:
        MissingExtraError: the SDK of OpenTelemetry is not installed.
        ArgumentError: no provider of meters is given, and none was set; or an argument does not fit.
    """

    def __init__(
        self,
        *,
        layers: int = 10,
        numbers: Numbers = None,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
        attributes: Mapping[str, str | int | float | bool] | None = None,
        timeout: float = 30.0,
        prefix: str = "sonde.",
    ) -> None:
        MissingExtraError.import_or_raise("opentelemetry.sdk", "OpenTelemetry", "otel")
        from opentelemetry import metrics, trace

        super().__init__(layers=layers, numbers=numbers, pictures=False, report=False, timeout=timeout, prefix=prefix)
        self._meters = metrics.get_meter_provider() if meter_provider is None else meter_provider
        self._tracers = trace.get_tracer_provider() if tracer_provider is None else tracer_provider
        if not hasattr(self._meters, "force_flush"):  # a stand-in of the interface, which passes nothing on
            raise ArgumentError(
                "OpenTelemetry has no provider of meters yet, and would drop every number: call "
                "opentelemetry.metrics.set_meter_provider(MeterProvider(metric_readers=[...])) first, or give meter_provider="
            )
        self._own = dict(attributes or {})
        self._gauges: dict[str, Any] = {}
        self._scalars: set[str] = set()  # names that have no layer, whatever is in them

    def _begin(self, description: Mapping[str, Any]) -> None:
        path = description.get("path")
        self._own = {"run": "" if path is None else Path(path).name, **self._own}

    def _write_step(self, step: int, together: Sequence[Rows | Scalar]) -> None:
        self._scalars |= {self._prefix + entry.name for entry in together if isinstance(entry, Scalar)}
        super()._write_step(step, together)

    def _log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._set(f"{self._prefix}step", step, {})
        for name, value in numbers.items():
            chart, _, layer = name.partition("/")
            if name in self._scalars:
                self._set(name, value, {})
            elif layer:
                self._set(self._of_layers(chart), value, {"layer": layer})
            else:
                chart, _, of = chart.rpartition(".")
                self._set(self._of_layers(chart), value, {"of_layers": of})

    def _of_layers(self, chart: str) -> str:
        """The name of numbers of layers, which no number of the whole has: a sum over its series adds up nothing twice."""
        return f"{self._prefix}layers.{chart.removeprefix(self._prefix)}"

    def _set(self, name: str, value: float, at: Mapping[str, str]) -> None:
        if name not in self._gauges:
            self._gauges[name] = self._meters.get_meter("sonde").create_gauge(_NOT_IN_NAMES.sub("_", name)[:_NAME])
        self._gauges[name].set(value, {**self._own, **at})

    def _tell(self, finding: Finding) -> None:
        fields = {name: value for name, value in asdict(finding).items() if isinstance(value, str | int | float) and value != ""}
        span = self._tracers.get_tracer("sonde").start_span(f"{self._prefix}finding", attributes={**self._own, **fields})
        span.end()

    def _send(self, pictures: Mapping[str, Path], report: Path | None) -> None:
        """Send no files: OpenTelemetry takes none."""

    def _end(self, *, failed: bool) -> None:
        for provider in (self._meters, self._tracers):
            getattr(provider, "force_flush", lambda milliseconds: None)(int(self.timeout * 500))
