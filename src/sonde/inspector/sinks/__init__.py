"""Where rows go, and how a finished run is shown once more: a run, print, pictures, TensorBoard, nothing."""

from sonde.inspector.sinks.base import Nothing, memory
from sonde.inspector.sinks.replay import play
from sonde.inspector.sinks.tensorboard import TensorBoard
from sonde.inspector.sinks.visualizers import Pictures, Print

__all__ = ["Nothing", "Pictures", "Print", "TensorBoard", "memory", "play"]
