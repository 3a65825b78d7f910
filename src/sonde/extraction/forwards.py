"""Run models on batches under probes, and hand each observed tensor on; end a forward where nothing more is wanted of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from sonde.engine import (
    Coverage,
    Event,
    Probe,
    RandomState,
    Where,
    as_arguments,
    hooks,
    observe,
    quiet,
    regions,
    remap,
    unwrap,
    walk,
)
from sonde.site import Port, Site
from sonde.stats import PLAIN

Call: TypeAlias = Callable[[nn.Module, Any], object] | None
"""``call``: runs a model on a batch, where ``model(*batch)`` or ``model(**batch)`` does not do."""


class _End(BaseException):
    """Ends a forward from within the hook of the last site. No ``Exception``: a model may catch those."""


class Forwards:
    """The forwards of models on the same batches; their tensors go to *take*.

    In a ``with`` block the models are observed. No other observer sees what runs in it, no graph is recorded, and at its end random
    generators, and buffers of modules in training mode, are as they were before. The block may be entered again: its random
    numbers go on where they were left, since data that draw them would come twice otherwise.

    Gradients are off by ``no_grad``: a cache that a model makes in inference mode could not be trained with afterwards.

    Attributes:
        take: called with the column's name and the tensor, which is borrowed, for each observed tensor.
        whole: returns the whole of a tensor, given its module and port.
        passes_on: a batch is passed to the models as it is.
        buffers: copies of the buffers that a forward may write into, by the id of the buffer.

    Args:
        models: by name; ``""`` for a single one.
        include, exclude, ports: as of ``observe``.
        call: see ``Call``.
        own: keys of the batch that are for the store, and not for a model without such an argument.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        include: Where,
        exclude: Where,
        ports: tuple[Port, ...],
        call: Call,
        own: Collection[str],
    ) -> None:
        self.take: Callable[[str, Tensor], None] = lambda column, tensor: None
        self.whole: Callable[[Tensor, nn.Module | None, Port], Tensor] = lambda tensor, module, port: tensor
        self.passes_on = call is None
        self._runs = [_Run(name, model, call, own) for name, model in models.items()]
        self._choice = include, exclude, ports
        self._stack = ExitStack()
        self._counts: dict[str, int] = {}
        self._names: dict[tuple[Site, str], str] = {}
        self._error: Exception | None = None
        self._running: _Run | None = None
        self._state: RandomState | None = None
        self._remember()

    def __enter__(self) -> Forwards:
        with ExitStack() as stack:
            stack.callback(RandomState.now(self._parameters()).restore)
            if self._state is not None:
                self._state.restore()
            self._remember()
            stack.callback(self._put_back)
            stack.enter_context(quiet())
            include, exclude, ports = self._choice
            for run in self._runs:
                run.look()
                run.probe = stack.enter_context(
                    observe(run.model, partial(self._see, run), include, exclude, ports=ports, name=run.name, strict=True)
                )
            stack.enter_context(torch.no_grad())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._state = RandomState.now(self._parameters())
        self._stack.close()

    @property
    def sites(self) -> list[Site]:
        """The selected sites."""
        return [site for run in self._runs for site in run.the_probe.sites]

    def coverage(self) -> list[Coverage]:
        """Return the coverage of each model."""
        return [run.the_probe.coverage() for run in self._runs]

    def run(self, batch: Any) -> None:
        """Run every model on *batch*.

        Raises:
            Exception: what a model or ``take`` has raised.
        """
        self._counts.clear()
        for run in self._runs:
            self._running = run
            try:
                run.run(batch)
            except Exception:
                if self._error is None:
                    raise
            finally:
                self._running = None
            if self._error is not None:
                error, self._error = self._error, None
                raise error

    def draws(self, batch: Any) -> bool:
        """Run every model on *batch*, and return whether one has drawn random numbers."""
        before = RandomState.now(self._parameters(), with_python=False)
        self.run(batch)
        after = RandomState.now(self._parameters(), with_python=False)
        same = all(torch.equal(state, after.accelerators[place]) for place, state in before.accelerators.items())
        return not (same and torch.equal(before.cpu, after.cpu))

    def _parameters(self) -> Iterable[Tensor]:
        return (tensor for run in self._runs for tensor in run.model.parameters())

    def _see(self, run: _Run, event: Event) -> None:
        if run is not self._running or self._error is not None:  # models may share modules
            return
        try:
            for path, tensor in event.leaves:
                self.take(self._name(event.site, path), self.whole(tensor, event.module, event.site.port))
        except Exception as error:  # kept for the caller: the model may catch what is raised here
            self._error = error
            return
        if run.ends_after(str(event.site)):
            raise _End

    def _name(self, site: Site, path: str) -> str:
        name = self._names.get((site, path))
        if name is None:
            name = self._names[site, path] = str(site.at(path))
        self._counts[name] = count = self._counts.get(name, 0) + 1
        return name if count == 1 else f"{name}@{count - 1}"

    def _remember(self) -> None:
        written = {
            id(held): held
            for run in self._runs
            for part in run.model.modules()
            if part.training
            for held in part.buffers(recurse=False)
        }
        self._written = list(written.values())
        self.buffers = {key: held.detach().clone() for key, held in written.items()}

    def _put_back(self) -> None:
        with torch.no_grad():
            for held in self._written:
                held.copy_(self.buffers[id(held)])


class _Run:
    """One model, how it is called, and which events a forward of it has."""

    def __init__(self, name: str, model: nn.Module, call: Call, own: Collection[str]) -> None:
        self.name = name
        self.model = model
        self.probe: Probe | None = None
        self._call = call
        self._own = own
        self._takes = _arguments_of(model)
        self._device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
        self._first: list[str] | None = None  # the sites of the first forward's events
        self._now: list[str] = []
        self._count = 0
        self._may_end = False  # this forward
        self._is_plain = call is None

    @property
    def the_probe(self) -> Probe:
        assert self.probe is not None
        return self.probe

    def look(self) -> None:
        """See whether forwards may end early: the model may have changed since."""
        self._is_plain = self._is_plain and may_end(self.model)

    def run(self, batch: Any) -> None:
        """Run the model. Each forward whose number is a power of two runs whole: it shows whether events still come as at first."""
        self._count += 1
        self._may_end = self._is_plain and self._first is not None and bool(self._count & (self._count - 1))
        self._now = []
        try:
            self._run(batch)
        except _End:
            return
        if self._first is None:
            self._first = self._now
            self._is_plain = self._is_plain and bool(self._now) and not self._now[-1].startswith(str(Site("", model=self.name)))
        elif self._now != self._first:
            self._is_plain = False

    def _run(self, batch: Any) -> None:
        if self._call is not None:
            self._call(self.model, self._moved(batch))
            return
        args, kwargs = as_arguments(batch)
        if self._takes is not None:
            kwargs = {key: value for key, value in kwargs.items() if key not in self._own or key in self._takes}
        args, kwargs = self._moved((args, kwargs))
        self.model(*args, **kwargs)

    def _moved(self, batch: Any) -> Any:
        device = self._device
        if device is None or device.type == "meta" or all(tensor.device == device for _, tensor in walk(batch)):
            return batch
        return remap(batch, lambda tensor: tensor.to(device, non_blocking=True), objects=True)

    def ends_after(self, site: str) -> bool:
        """Note an event at *site*; return whether nothing more is wanted of this forward."""
        self._now.append(site)
        return self._may_end and self._now == self._first


def _arguments_of(model: nn.Module) -> set[str] | None:
    """Return the names of the arguments that the forward of *model* has; None if that cannot be known."""
    try:
        return set(inspect.signature(unwrap(model).forward).parameters)
    except (TypeError, ValueError):
        return None


def may_end(model: nn.Module) -> bool:
    """Return whether a forward of *model* may end before it returns, and leave nothing behind.

    Not in compiled code, not where ranks wait for each other, not in training mode, where what is left out may write into buffers,
    and not under hooks or replaced forwards of others, which may have to see the end.
    """
    if model.training or regions(model):
        return False
    for module in model.modules():
        kind = type(module)
        if kind.__module__.startswith(("torch.nn.parallel", "torch.distributed", "torch.jit")) or "forward" in vars(module):
            return False
        if module.training or any("forward" in name and held for name, held in hooks.without_ours(module).items()):
            return False
        if any(type(tensor) not in PLAIN for tensor in module.parameters(recurse=False)):
            return False
    return True
