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

from types import ModuleType as _Module

# isort: split
# Watch a training
from sonde.inspector.inspector import Inspector as Inspector
from sonde.inspector.inspector import PyTorchInspector as PyTorchInspector
from sonde.inspector.sentinel.replayed_step import replay as replay
from sonde.inspector.watch import watch as watch

# isort: split
# What watch() takes beside plain values
from sonde.inspector.ranks import Ranks as Ranks
from sonde.inspector.settings import BadSteps as BadSteps
from sonde.inspector.settings import Limits as Limits

# isort: split
# Where rows go, and what they are to a sink
from sonde.inspector import sinks as sinks
from sonde.inspector.sinks.base import LoggedRows as LoggedRows
from sonde.inspector.sinks.base import RunSink as RunSink
from sonde.inspector.sinks.base import Sink as Sink
from sonde.rows import RowBlock as RowBlock
from sonde.rows import Rows as Rows
from sonde.rows import Scalar as Scalar

__all__ = [name for name, value in vars().items() if name[0] != "_" and not isinstance(value, _Module)]

# isort: split
# For other rooms of sonde: sinks of other projects, and values as run.json has them
from sonde.inspector.arguments import flat as flat
from sonde.inspector.arguments import plain_config as plain_config
from sonde.inspector.sinks import MLflowSink as MLflowSink
from sonde.inspector.sinks import OpenTelemetrySink as OpenTelemetrySink
from sonde.inspector.sinks import TensorBoard as TensorBoard
from sonde.inspector.sinks import WandbSink as WandbSink
from sonde.inspector.sinks.to_argument import folders_named as folders_named
