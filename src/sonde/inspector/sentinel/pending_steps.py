"""Keep the steps of an accelerator until their numbers have come to the host: nothing waits for the device.

Before an optimizer steps, the largest magnitude of each gradient and the loss are put on their way to the host, and the parameters
are copied on the device. As the numbers arrive, most often one or two steps later, the copies of a good step are used again, and
those of a bad one are what its parameters were. In all they take no more than a limit; beyond it only the numbers are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from sonde.engine import torch_tensors
from sonde.inspector.sentinel.bad_step import Parameters
from sonde.inspector.sentinel.training_passes import KeptPass
from sonde.stats import PLAIN, HostCopy, in_memory, local

_NO_MEMORY = (
    "its parameters were not kept, since copies of them for each step that the accelerator has not ended would take more than "
    "Limits(memory=)"
)

_NO_COPY = "some of its parameters were not kept, since they are no plain memory: of a class that computes its values, or sparse"


class PendingStep:
    """A step that was looked at on an accelerator before its optimizer changed anything.

    Attributes:
        epoch, step: when.
        passes: the training passes of the step, in order.
        buffers: as they were before the step, by name.
        in_backward: the optimizer runs inside the backward pass.
        is_kept: there was memory for passes and parameters.
        nbytes: what the step holds.
        losses: that the program knows on the host.
    """

    __slots__ = (
        "_changed",
        "_copies",
        "_copy",
        "_meanings",
        "_numbers",
        "buffers",
        "epoch",
        "in_backward",
        "is_kept",
        "losses",
        "nbytes",
        "passes",
        "step",
    )

    def __init__(self, epoch: int, step: int, passes: list[KeptPass], buffers: Mapping[str, Tensor]) -> None:
        self.epoch = epoch
        self.step = step
        self.passes = passes
        self.buffers = buffers
        self.in_backward = False
        self.is_kept = True
        self.nbytes = sum(each.nbytes for each in passes) + sum(buffer.nbytes for buffer in buffers.values())
        self.losses: list[float] = []
        self._changed: list[Sequence[Tensor]] = []  # the parameters of each optimizer of the step
        self._copies: dict[int, list[Tensor]] = {}  # by the identity of such a list
        self._numbers: list[Tensor] = []
        self._meanings: list[Sequence[Tensor] | str] = []
        self._copy: HostCopy | None = None

    def add(self, meaning: Sequence[Tensor] | str, numbers: Tensor) -> None:
        """Add numbers that go to the host: the largest magnitudes in the gradients of parameters, or what a word says."""
        self._meanings.append(meaning)
        self._numbers.append(numbers.detach().reshape(-1).to(torch.float64))

    @property
    def looks_at_some(self) -> bool:
        """Whether an optimizer of the step changes parameters whose gradients were not looked at."""
        looked_at = sum(len(each) for each in self._meanings if not isinstance(each, str))
        return looked_at < sum(len(each) for each in self._changed)

    def send(self) -> None:
        """Begin the copy to the host. Idempotent."""
        if self._copy is None:
            self._copy = HostCopy.of(self._numbers)
            self._numbers = []

    def has_arrived(self) -> bool:
        """Return whether the numbers are on the host. Waits for nothing."""
        return self._copy is not None and self._copy.has_arrived()

    def read(self) -> tuple[dict[int, float], dict[str, list[float]]]:
        """Return the largest magnitudes by the ids of the parameters, and other numbers by their words. Waits for the device."""
        self.send()
        assert self._copy is not None
        magnitudes: dict[int, float] = {}
        others: dict[str, list[float]] = {}
        for meaning, array in zip(self._meanings, self._copy.unpack(), strict=True):
            values = array.tolist()
            if isinstance(meaning, str):
                others.setdefault(meaning, []).extend(values)
            else:
                magnitudes |= {id(each): value for each, value in zip(meaning, values, strict=True)}
        return magnitudes, others

    def let_go(self) -> None:
        """Keep the numbers alone."""
        self.passes, self.buffers, self.is_kept, self.nbytes = [], {}, False, 0


class PendingSteps:
    """The steps whose numbers are on their way, oldest first.

    Attributes:
        open: the step that was looked at last: more may be added until the next one begins. None in between.

    Args:
        limit: bytes that arguments, copies and gradients of all these steps may take.
    """

    def __init__(self, limit: float) -> None:
        self.open: PendingStep | None = None
        self._limit = limit
        self._sent: deque[PendingStep] = deque()
        self._free: dict[int, list[list[Tensor]]] = {}
        self._copied = 0  # bytes of all copies, in use or free

    def begin(self, epoch: int, step: int, passes: list[KeptPass], buffers: Mapping[str, Tensor]) -> PendingStep:
        """Open a step; what was open is sent."""
        self.send()
        opened = self.open = PendingStep(epoch, step, passes, buffers)
        if self._used() > self._limit:
            opened.let_go()
        return opened

    def _used(self) -> int:
        opened = 0 if self.open is None else self.open.nbytes
        return self._copied + opened + sum(each.nbytes for each in self._sent)

    def keep(self, parameters: Sequence[Tensor]) -> None:
        """Copy *parameters*, which an optimizer is about to change, for the open step, if there is memory for all of them.

        *parameters* is one list per optimizer, the same object each time.
        """
        opened, key = self.open, id(parameters)
        if opened is None or key in opened._copies:
            return
        opened._changed.append(parameters)
        if not opened.is_kept:
            return
        parts = list(_parts(parameters).values())
        free = self._free.get(key)
        copies = free.pop() if free else []
        size = sum(each.nbytes for each in parts)
        with torch.no_grad():
            if len(copies) == len(parts) and all(map(_are_alike, copies, parts)):
                torch_tensors.copy_each(copies, parts)
            elif self._used() + size <= self._limit:
                self._copied += size
                copies = torch_tensors.clone_each(parts)
            else:
                self._take_back(opened)
                opened.let_go()
                return
        opened._copies[key] = copies

    def send(self) -> None:
        """Begin to send the numbers of the open step. Idempotent."""
        if self.open is not None:
            self.open.send()
            self._sent.append(self.open)
            self.open = None

    def arrived(self, *, wait: bool = False) -> Iterator[PendingStep]:
        """Yield each step whose numbers have arrived, oldest first; with *wait* all, as they arrive.

        The step that is yielded stays as it was until the next one is wanted; then its copies are used again.
        """
        while self._sent and (wait or self._sent[0].has_arrived()):
            step = self._sent.popleft()
            try:
                yield step
            finally:
                self._take_back(step)

    def _take_back(self, step: PendingStep) -> None:
        for key, copies in step._copies.items():
            self._free.setdefault(key, []).append(copies)
        step._copies.clear()

    def parameters_before(self, step: PendingStep) -> Parameters:
        """Return the parameters as they were before *step*, which was yielded last.

        A parameter that only a later step changes was the same before *step*.
        """
        known: dict[int, Tensor] = {}
        lost: set[int] = set()
        strange: set[int] = set()
        for each in (step, *self._sent, *(() if self.open is None else (self.open,))):
            for parameters in each._changed:
                copies = each._copies.get(id(parameters))
                if copies is None:
                    lost |= {id(parameter) for parameter in parameters} - known.keys()
                    continue
                for key, copy in zip(_parts(parameters), copies, strict=True):
                    if key not in lost:
                        known.setdefault(key, copy)
                strange |= {id(parameter) for parameter in parameters} - known.keys() - lost
        reason = _NO_MEMORY if lost else _NO_COPY if strange else ""
        return Parameters(known, frozenset(lost | strange), reason)

    def clear(self) -> None:
        """Let go of everything."""
        self.open = None
        self._sent.clear()
        self._free.clear()
        self._copied = 0


def _parts(parameters: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return what this rank holds of each of *parameters*, by its id."""
    found = {id(each): each if type(each) in PLAIN else local(each) for each in parameters}
    plain = {key: None if part is None else in_memory(part) for key, part in found.items()}
    return {key: part.detach() for key, part in plain.items() if part is not None}


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
