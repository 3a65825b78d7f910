"""The inspector: through which lenses a training is looked at, when, and where it is written."""

from sonde.inspector.closing import Finding
from sonde.inspector.inspector import Inspector
from sonde.inspector.lenses import Lens, LossMetrics
from sonde.inspector.schedule import Schedule, Warmup
from sonde.inspector.sink import Entries, Rows, RunSink, Scalar, Sink, Stretch
from sonde.inspector.watch import watch

PyTorchInspector = Inspector
"""The fifth seed's name for it."""

__all__ = [
    "Entries",
    "Finding",
    "Inspector",
    "Lens",
    "LossMetrics",
    "PyTorchInspector",
    "Rows",
    "RunSink",
    "Scalar",
    "Schedule",
    "Sink",
    "Stretch",
    "Warmup",
    "watch",
]
