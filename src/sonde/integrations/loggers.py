"""The sinks that write to loggers of other projects."""

from sonde.inspector import MLflowSink, TensorBoard, WandbSink

__all__ = ["MLflowSink", "TensorBoard", "WandbSink"]
