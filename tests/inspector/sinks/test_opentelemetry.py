"""The SDK of OpenTelemetry reads back from its own readers what the run holds: few series, and findings as spans."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.inspector.sinks.trackers import deep, learn

from sonde.errors import ArgumentError, MissingExtraError
from sonde.inspector import watch
from sonde.inspector.sinks import OpenTelemetrySink
from sonde.run import open_run

Series = dict[str, list[tuple[dict[str, Any], float]]]


class Memory:
    """Providers of the SDK that export into memory."""

    def __init__(self) -> None:
        pytest.importorskip("opentelemetry.sdk")
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self.reader = InMemoryMetricReader()
        self.spans = InMemorySpanExporter()
        self.meters = MeterProvider(metric_readers=[self.reader])
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))

    def sink(self, **given: Any) -> OpenTelemetrySink:
        return OpenTelemetrySink(meter_provider=self.meters, tracer_provider=self.tracers, **given)

    def series(self) -> Series:
        """Return by the name of each metric the attributes and the last value of each of its series."""
        found: Series = defaultdict(list)
        data = self.reader.get_metrics_data()
        for metric in (each for resource in data.resource_metrics for scope in resource.scope_metrics for each in scope.metrics):
            found[metric.name] += [(dict(point.attributes), point.value) for point in metric.data.data_points]
        return found


@pytest.fixture
def memory() -> Memory:
    return Memory()


def test_the_last_numbers_of_the_run_are_gauges_and_its_findings_are_spans(tmp_path: Path, memory: Memory) -> None:
    model = deep()
    with watch(model, every=2, to=[tmp_path / "run", memory.sink(attributes={"team": "vision"})], verbose=False) as inspector:
        list(learn(model, inspector, 24))
    series, run = memory.series(), open_run(tmp_path / "run")
    own = {"run": "run", "team": "vision"}
    ((last_step,),) = run.sql("SELECT max(step) FROM moments").fetchall()
    assert series["sonde.step"] == [(own, last_step)]
    for name in ("loss", "grad_norm", "param_norm"):
        assert series[f"sonde.{name}"] == [(own, run.scalar(name)[1][-1])]
    sql = f"SELECT rms FROM moments WHERE port = 'output' AND step = {last_step}"
    last = [value for (value,) in run.sql(sql).fetchall()]
    of_layers = {at["of_layers"]: value for at, value in series["sonde.layers.output_rms"] if "of_layers" in at}
    assert (of_layers["max"], of_layers["min"]) == (max(last), min(last))
    spans = memory.spans.get_finished_spans()
    assert {span.name for span in spans} == {"sonde.finding"}
    told = {(span.attributes["rule"], span.attributes["site"], span.attributes["message"]) for span in spans}
    assert {(each.rule, each.site, each.message) for each in inspector.findings} <= told
    assert all(span.attributes["run"] == "run" for span in spans)


def test_there_is_never_a_series_for_each_layer(tmp_path: Path, memory: Memory) -> None:
    model = deep()
    with watch(model, every=2, to=memory.sink(layers=3), verbose=False) as inspector:
        list(learn(model, inspector, 24))
    for name, series in memory.series().items():
        layers = {at["layer"] for at, _ in series if "layer" in at}
        assert len(layers) <= 6, name  # three of the worst, and as many with a finding
        assert {at.get("of_layers") for at, _ in series} <= {None, "max", "median", "min"}
    assert len({at.get("layer") for at, _ in memory.series()["sonde.layers.output_rms"]}) < len(list(model.modules()))


def test_a_scalar_keeps_its_name_whatever_is_in_it(memory: Memory) -> None:
    """A slash names no layer, and what OpenTelemetry takes in no name becomes an underscore."""
    model = deep()
    with watch(model, every=1, to=memory.sink(), verbose=False) as inspector:
        for _ in learn(model, inspector, 3):
            inspector.push_metric("val/acc@1", 0.5)
    assert memory.series()["sonde.val/acc_1"] == [({"run": ""}, 0.5)]


def test_without_a_provider_of_meters_the_start_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    with pytest.raises(ArgumentError, match="no provider of meters yet"):
        watch(deep(), to=[tmp_path / "run", "opentelemetry"], verbose=False)
    assert list(tmp_path.iterdir()) == []


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sonde\[otel\]'"):
        OpenTelemetrySink()
