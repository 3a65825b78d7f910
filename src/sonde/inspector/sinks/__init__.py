"""Where else a training can be shown while it runs, and a finished run once more: print, pictures, TensorBoard, nothing."""

from sonde.inspector.sinks.pictures import Pictures
from sonde.inspector.sinks.plain import Nothing, memory
from sonde.inspector.sinks.printing import Print
from sonde.inspector.sinks.replay import play
from sonde.inspector.sinks.tensorboard import TensorBoard

__all__ = ["Nothing", "Pictures", "Print", "TensorBoard", "memory", "play"]
