"""Keep what the training passes of a step began with: arguments, random states, buffers, and the gradients at the outputs."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine import RandomState, buffers_of, hooks, members, remap, walk
from sonde.graph import version_of
from sonde.stats import HostCopy, in_memory

MOST_PASSES = 8
"""So many passes of one step are kept, the latest: of accumulated micro-batches, or of a model that is called several times."""

_MOST_BYTES = 1 << 28  # of the gradients at the outputs of one pass


class KeptPass:
    """One training pass: references to the arguments of the root, and everything else that is needed to run it again.

    Attributes:
        args, kwargs: of the call of the root.
        random: the random state before it.
        autocast: by device type, the dtype of the autocast block that the call is in.
        thread: in which it was made.
        has_returned: the call has returned.
        gradients: the gradients that have arrived at the outputs, by the position of the output among the tensors of the output.
        too_large: gradients were not kept, as they take too much memory.
    """

    __slots__ = (
        "__weakref__",
        "_versions",
        "args",
        "autocast",
        "gradients",
        "has_returned",
        "kwargs",
        "random",
        "thread",
        "too_large",
    )

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, *, with_python: bool) -> None:
        self.args = args
        self.kwargs = kwargs or {}
        self._versions = _versions((*args, *self.kwargs.values()) if self.kwargs else args)
        self.random = RandomState.now((tensor for tensor, _ in self._versions), with_python=with_python)
        self.autocast = _autocast()
        self.thread = threading.get_ident()
        self.has_returned = False
        self.gradients: dict[int, Tensor] = {}
        self.too_large = False

    @property
    def nbytes(self) -> int:
        """The bytes of arguments and gradients."""
        held = sum(tensor.nbytes for tensor, _ in self._versions if tensor.layout is torch.strided)
        return held + sum(gradient.nbytes for gradient in self.gradients.values())

    def let_go_of_graph(self) -> None:
        """Hold arguments that other code has computed without their graphs, which would live longer."""
        if any(tensor.grad_fn is not None for tensor, _ in self._versions):
            self.args, self.kwargs = remap((self.args, self.kwargs), _without_graph)
            self._versions = [(_without_graph(tensor), version) for tensor, version in self._versions]

    def is_changed(self) -> bool:
        """Return whether the program has written into an argument since the call began."""
        return any(version_of(tensor) != version for tensor, version in self._versions if version >= 0)

    def listen(self, output: Any, arrived: Callable[[], None]) -> None:
        """Keep the gradients that arrive at the tensors of *output*, and call *arrived* as the first one does.

        A leaf, as an argument that the model returns, is the program's own: a hook would stay on it.
        """
        self.has_returned = True
        held = weakref.ref(self)  # a graph may live longer
        for place, (_, tensor) in enumerate(walk(output)):
            if tensor.grad_fn is not None and type(tensor) is Tensor:
                hooks.on_result(tensor, _Arrives(held, place, arrived))


@hooks.not_saved
class _Arrives:
    """The hook on one output of a root."""

    __slots__ = ("arrived", "kept", "place")

    def __init__(self, kept: weakref.ref[KeptPass], place: int, arrived: Callable[[], None]) -> None:
        self.kept = kept
        self.place = place
        self.arrived = arrived

    @hooks.not_compiled
    def __call__(self, gradient: Tensor | None) -> None:
        hooks.apart(self._keep, gradient)

    def _keep(self, gradient: Tensor | None) -> None:
        kept = self.kept()
        if kept is None or gradient is None:
            return
        is_first = not kept.gradients and not kept.too_large
        if gradient.nbytes > _MOST_BYTES:
            kept.too_large = True
        else:
            kept.gradients[self.place] = gradient.detach()
        if is_first:
            self.arrived()


def _without_graph(tensor: Tensor) -> Tensor:
    return tensor if tensor.grad_fn is None else tensor.detach()


def _versions(values: Iterable[Any]) -> list[tuple[Tensor, int]]:
    """Return the tensors in *values*, each with its version; -1 for one that has none."""
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append((value, version_of(value)))
        elif value is not None and type(value) not in _PLAIN:
            found += [(tensor, version_of(tensor)) for _, tensor in walk(value)]
    return found


_PLAIN = {bool, int, float, str}


def _autocast() -> dict[str, torch.dtype]:
    return {kind: torch.get_autocast_dtype(kind) for kind in _devices() if torch.is_autocast_enabled(kind)}


@cache
def _devices() -> tuple[str, ...]:
    """Return the types of the devices of this machine."""
    device = torch.accelerator.current_accelerator()
    return ("cpu",) if device is None else ("cpu", device.type)


class BufferCopies:
    """Copies of the buffers that steps change, as the running means of a normalisation, made before each step.

    Which these are is seen in the first steps: all buffers are copied before, and compared after. A version does not tell, since
    torch's normalisations write without raising it. Buffers whose copies would take more than *limit* bytes are not kept, nor those
    that are no plain memory, as sparse, nested and quantised ones.
    """

    def __init__(self, model: nn.Module, limit: float) -> None:
        self._places = [
            (f"{item.name}.{name}" if item.name else name, buffers_of(item.module), name)
            for item in members(model)
            for name in buffers_of(item.module)
        ]
        self._copies: dict[str, Tensor] = {}
        self._changing: set[str] = set()
        self._compared: deque[tuple[list[str], HostCopy, bool]] = deque()  # on their way to the host
        self._limit = limit

    def copy(self) -> None:
        """Copy the buffers."""
        if self._compared:
            self._learn_from_arrived()
        before, left = self._copies, self._limit
        self._copies = {}
        for place, held, name in self._places:
            buffer, copy = held.get(name), before.get(place)
            if buffer is None:
                continue
            fits = copy is not None and copy.shape == buffer.shape and copy.dtype == buffer.dtype and copy.device == buffer.device
            source = buffer if fits else in_memory(buffer)
            if source is None or source.nbytes > left:
                continue
            left -= source.nbytes
            if copy is not None and fits:
                with torch.no_grad():
                    self._copies[place] = copy.copy_(source)
            else:
                self._copies[place] = source.detach().clone()

    def learn(self, *, last: bool) -> None:
        """See which buffers the step has changed; with *last*, the others are not copied any more. Waits for no device."""
        pairs = [(place, held.get(name), self._copies.get(place)) for place, held, name in self._places]
        known = [(place, now, copy) for place, now, copy in pairs if now is not None and copy is not None]
        differ = [(now != copy).any().to(torch.float64) for _, now, copy in known]
        self._compared.append(([place for place, *_ in known], HostCopy.of(differ), last))

    def _learn_from_arrived(self) -> None:
        while self._compared and self._compared[0][1].has_arrived():
            places, differ, last = self._compared.popleft()
            self._changing |= {place for place, number in zip(places, differ.unpack(), strict=True) if number.item()}
            if last:
                self._places = [each for each in self._places if each[0] in self._changing]
                self._copies = {place: copy for place, copy in self._copies.items() if place in self._changing}

    def values(self) -> dict[str, Tensor]:
        """Return the copies by the names of the buffers."""
        return dict(self._copies)

    def give(self) -> dict[str, Tensor]:
        """Return the copies, which are not written into again."""
        copies, self._copies = self._copies, {}
        return copies
