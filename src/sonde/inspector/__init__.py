"""The inspector: through which lenses a training is looked at, when, and where it is written."""

from sonde.inspector.inspector import Inspector
from sonde.inspector.lenses.lens import Lens, LossMetrics
from sonde.inspector.pipeline.findings import Finding
from sonde.inspector.schedule import Schedule, Warmup
from sonde.inspector.sinks.base import LoggedRows, RowBlock, Rows, RunSink, Scalar, Sink
from sonde.inspector.watch import watch

PyTorchInspector = Inspector
"""The fifth seed's name for it."""

__all__ = [
    "Finding",
    "Inspector",
    "Lens",
    "LoggedRows",
    "LossMetrics",
    "PyTorchInspector",
    "RowBlock",
    "Rows",
    "RunSink",
    "Scalar",
    "Schedule",
    "Sink",
    "Warmup",
    "watch",
]
