"""The inspector: through which lenses a training is looked at, which steps are logged, and where rows go.

A tensor's way to the Parquet row: (1) A hook of the engine adds the tensor to its site's row in the table of a
:class:`~sonde.inspector.measurement.measurement.Measurement`. (2) When a logged step has ended, the rows of all
measurements and the pushed values become one :class:`~sonde.inspector.pipeline.batch.Batch`, which starts one copy per device to
the host, and the rows are emptied. (3) The writer thread, which the inspector shares with its run, takes the batches of half a
second and calls each statistic once for all their rows, which become one block of finished rows per family. (4) Every sink
is given these blocks; the sink of the run keeps them without a copy. (5) After ten seconds, or as soon as eight megabytes wait,
the same thread joins the blocks of each family into one Arrow table, with columns that say when and where, and writes the table
as one Parquet part.
"""

from sonde.inspector.arguments import flat as flat
from sonde.inspector.arguments import plain_config as plain_config
from sonde.inspector.inspector import Inspector
from sonde.inspector.ranks import Ranks
from sonde.inspector.sentinel.replayed_step import replay
from sonde.inspector.settings import BadSteps, Limits
from sonde.inspector.sinks import MLflowSink as MLflowSink
from sonde.inspector.sinks import TensorBoard as TensorBoard
from sonde.inspector.sinks import WandbSink as WandbSink
from sonde.inspector.sinks.base import LoggedRows, RunSink, Sink
from sonde.inspector.sinks.to_argument import folders_named as folders_named
from sonde.inspector.watch import watch
from sonde.rows import RowBlock, Rows, Scalar
from sonde.rules import Finding
from sonde.schedule import Schedule, Warmup

PyTorchInspector = Inspector
"""monitorch's name of the inspector."""

__all__ = [
    "BadSteps",
    "Finding",
    "Inspector",
    "Limits",
    "LoggedRows",
    "MLflowSink",
    "PyTorchInspector",
    "Ranks",
    "RowBlock",
    "Rows",
    "RunSink",
    "Scalar",
    "Schedule",
    "Sink",
    "TensorBoard",
    "WandbSink",
    "Warmup",
    "flat",
    "folders_named",
    "plain_config",
    "replay",
    "watch",
]
