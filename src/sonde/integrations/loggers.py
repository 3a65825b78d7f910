"""The sinks that write to loggers of other projects."""

from sonde.inspector import MLflowSink, OpenTelemetrySink, TensorBoard, WandbSink

__all__ = ["MLflowSink", "OpenTelemetrySink", "TensorBoard", "WandbSink"]
