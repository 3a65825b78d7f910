"""The sinks that write no file: one keeps everything in memory, one drops it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sonde.inspector.sinks.base import RunSink, Sink
from sonde.run.store.memory_writer import memory_run

__all__ = ["Nothing", "memory"]


class Nothing(Sink):
    """Drops everything: a training is watched for its findings alone, or an inspector is switched off in one place."""


def memory(about: Mapping[str, Any] | None = None) -> RunSink:
    """A sink that keeps a run in memory; ``memory().run()`` reads it, also after it is closed.

    >>> from sonde.inspector.sinks.base import Scalar
    >>> sink = memory()
    >>> sink.scalar(Scalar("loss", 0.5, epoch=0, step=3))
    >>> sink.run().scalar("loss")
    (array([3]), array([0.5]))
    """
    return RunSink(memory_run(about))
