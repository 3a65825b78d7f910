"""Where rows go, a run, print, pictures, TensorBoard, W&B, MLflow, OpenTelemetry, nothing."""

from sonde.inspector.sinks.base import Nothing, memory
from sonde.inspector.sinks.mlflow import MLflowSink
from sonde.inspector.sinks.opentelemetry import OpenTelemetrySink
from sonde.inspector.sinks.tensorboard import TensorBoard
from sonde.inspector.sinks.visualizers import Pictures, Print
from sonde.inspector.sinks.wandb import WandbSink

__all__ = ["MLflowSink", "Nothing", "OpenTelemetrySink", "Pictures", "Print", "TensorBoard", "WandbSink", "memory"]
