"""A device whose numbers come to the host only when more have been sent, and on which nobody may wait while a training runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from sonde.inspector.sentinel import pending_steps, sentinel, training_passes
from sonde.stats import HostCopy


class Device:
    """Stands for an accelerator.

    Attributes:
        delay: a copy has arrived once so many more were sent.
        may_wait: the training has ended.
        sent: the number of copies so far.
    """

    def __init__(self, delay: int) -> None:
        self.delay = delay
        self.may_wait = False
        self.sent = 0

    def copy(self, tensors: Sequence[Tensor]) -> Any:
        self.sent += 1
        return Copy(self, HostCopy.of(tensors))


class Copy:
    """A copy that arrives late."""

    def __init__(self, device: Device, copy: HostCopy) -> None:
        self.device, self.copy, self.number = device, copy, device.sent

    def has_arrived(self) -> bool:
        return self.device.sent >= self.number + self.device.delay

    def unpack(self) -> Any:
        assert self.has_arrived() or self.device.may_wait, "the training has waited for the device"
        return self.copy.unpack()


@contextmanager
def device(patch: pytest.MonkeyPatch, delay: int = 1) -> Iterator[Device]:
    """Let all parameters be on a device whose numbers come *delay* copies later."""
    made = Device(delay)
    with patch.context() as inside:
        inside.setattr(sentinel, "answers_at_once", lambda _: False)
        inside.setattr(pending_steps, "HostCopy", SimpleNamespace(of=made.copy))
        inside.setattr(training_passes, "HostCopy", SimpleNamespace(of=made.copy))
        yield made
