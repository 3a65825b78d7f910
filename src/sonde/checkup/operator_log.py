"""See every operator of one step: whose it is, whether it makes the host wait, and how much memory is in use."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine import OperatorCall, OperatorMode, backward_calls, members, walk

_OBSERVERS = ("sonde.engine.", "sonde.inspector.", "sonde.stats.", "sonde.keep.", "sonde.preprocessor.", "sonde.recorders.")
_READING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


@dataclass(frozen=True, slots=True)
class Read:
    """One value that the host has read from a tensor.

    Attributes:
        operator: its name.
        by: the module of the model, or the file of sonde.
        by_sonde: sonde has read it.
        waits: the tensor is on an accelerator, for which the host waits.
    """

    operator: str
    by: str
    by_sonde: bool
    waits: bool


@dataclass
class _Memory:
    """The bytes of the tensors that operators have made and that are still there."""

    now: int = 0
    peak: int = 0
    _known: dict[int, weakref.ref[Any]] = field(default_factory=dict)

    def add(self, tensor: Tensor) -> None:
        try:
            storage = tensor.untyped_storage()
            size = storage.nbytes()
        except (RuntimeError, NotImplementedError):  # sparse, nested and wrapped tensors have none of their own
            return
        key = id(storage)
        if key in self._known and self._known[key]() is storage:
            return

        def gone(_: object) -> None:
            self.now -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)


class OperatorLog(OperatorMode):
    """Notes each operator that runs while the mode is entered.

    Attributes:
        model: how often each operator of the model ran, by layer and name: forward, backward and optimizer.
        sonde: how often each operator ran that an observer of sonde has called.
        reads: the values that the host has read.

    Args:
        model: whose modules name the layers.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Counter[tuple[str, str]] = Counter()
        self.sonde: Counter[str] = Counter()
        self.reads: list[Read] = []
        self._memory = _Memory()
        self._names: Mapping[int, str] = {id(item.module): item.name for item in members(model)}

    @property
    def peak(self) -> int:
        """The most bytes at one time of the tensors that operators made meanwhile."""
        return self._memory.peak

    def operator(self, call: OperatorCall) -> Any:
        function, result = call.function, call.run()
        name = str(getattr(function, "name", lambda: function)()).removeprefix("aten::")
        place, by_sonde = self._caller()
        if by_sonde:
            self.sonde[name] += 1
        else:
            self.model[place, name] += 1
        given = [tensor for _, tensor in walk((call.args, call.kwargs))]
        made = [tensor for _, tensor in walk(result)]
        with self.unseen():
            for tensor in made:
                self._memory.add(tensor)
        afar = any(not tensor.is_cpu and not tensor.is_meta for tensor in given)
        arrives = afar and any(tensor.is_cpu for tensor in made) and not (call.kwargs.get("non_blocking") or True in call.args[2:])
        if arrives or not _READING.isdisjoint(getattr(function, "tags", ())):
            self.reads.append(Read(name, place, by_sonde, afar))
        return result

    def _caller(self) -> tuple[str, bool]:
        """Return the innermost layer that runs, and False; or the file of sonde that runs, and True."""
        frame: FrameType | None = sys._getframe(3)  # above operator() and the mode
        layer = None
        while frame is not None:
            file = frame.f_globals.get("__name__", "")
            if file.startswith(_OBSERVERS) and not backward_calls.passes_through(frame):
                return file.removeprefix("sonde."), True
            if layer is None:
                held = frame.f_locals.get("self")
                if isinstance(held, nn.Module):
                    layer = self._names.get(id(held))
            frame = frame.f_back
        return layer or "", False
