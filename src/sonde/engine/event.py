"""The event that a hook delivers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, TypeAlias
from weakref import WeakMethod

from torch import Tensor, nn

from sonde.engine import structure
from sonde.schedule import Tick
from sonde.site import Phase, Site


@dataclass(slots=True)  # not frozen: that doubles the cost of building one, and one is built per module call
class Event:
    """One delivery of a hook. Its tensors are borrowed: copy those that you keep.

    >>> import sonde, torch
    >>> net = torch.nn.Linear(2, 1)
    >>> def show(event):
    ...     print(event.name, event.type.__name__, event.grad, str(event.site), event.phase, event.call)
    >>> with sonde.observe(net, show):
    ...     _ = net(torch.ones(1, 2))
     Linear False (root):output forward 0

    Attributes:
        name: the module's (or parameter's) canonical name, ``""`` for the root.
        type: the module's class; ``nn.Parameter`` for a parameter.
        grad: whether ``value`` holds gradients.
        value: at ``output`` the output of the module; at ``input`` its positional arguments; at ``grad_output`` and
            ``grad_input`` always a tuple, as torch's own backward hooks have it: one item per item of a returned tuple or
            list, a single item for anything else, ``None`` where no gradient arrived; at ``grad`` the tensor; at ``param``
            the parameter after an optimizer step, at ``update`` a tuple of the parameter before and after the step.
        args: the module's positional arguments (empty for gradients and inside compiled code).
        kwargs: its keyword arguments; at ``grad_input`` the gradients of the keyword arguments.
        site: the place in the network.
        call: index of the module's call within one forward of the root, from 0; calls after a forward, or without any, count on
            until a step. Calls are numbered as they end; where the probe observes inputs too, as they begin, which differs for a
            module that calls itself.
        phase: ``forward``, ``recompute`` (checkpointing running the forward again), ``backward`` or ``step``.
        tick: the moment.
        alias: the name under which a module with several names was called; ``""`` if it has one, or the name is not known.
        passthrough: the module returned one of its own input tensors, so this site names the same tensor as another.
        module: the module itself; for a parameter the one that owns it. Borrowed like the tensors.
    """

    name: str
    type: type[nn.Module] | type[nn.Parameter]
    grad: bool
    value: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    site: Site = Site("")
    call: int = 0
    phase: Phase = "forward"
    tick: Tick = Tick()
    passthrough: bool = False
    alias: str = ""
    _leaves: tuple[tuple[str, Tensor], ...] | None = field(default=None, repr=False, compare=False)
    module: nn.Module | None = field(default=None, repr=False, compare=False)

    @property
    def leaves(self) -> tuple[tuple[str, Tensor], ...]:
        """The tensors of the value with their leaf paths, in order; for gradients those that arrived."""
        if self._leaves is None:
            found = structure.walk(self.value)
            if self.site.port == "input":
                found += structure.walk(self.kwargs)
            self._leaves = tuple(found)
        return self._leaves


Subscriber: TypeAlias = Callable[[Event], object]
"""Any callable that takes an event. What it returns is not used, and what it is given is not to be written into."""


def weakly(subscriber: Subscriber) -> Subscriber:
    """Return *subscriber*; a method as a function that holds the method's object weakly.

    The hooks would else keep an object alive for ever that observes with its own method and holds the probe.
    """
    if not isinstance(subscriber, MethodType):
        return subscriber
    method = WeakMethod(subscriber)

    def deliver(event: Event) -> object:
        bound = method()
        return None if bound is None else bound(event)

    deliver.__qualname__ = subscriber.__qualname__
    return deliver
