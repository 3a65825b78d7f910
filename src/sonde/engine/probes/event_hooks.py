"""Taps: what sits on one module (or parameter) for one probe and turns what passes into events.

This is the lane for Python subscribers. In eager code the event is built in the hook and delivered at once; in compiled
code the hook is traced, and ``replay`` is called from there at run time. The lane for statistics is in ``tallies.py``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.engine import structure
from sonde.engine.clock.clock import Clock, transformed
from sonde.engine.clock.forward import Forward
from sonde.engine.event import Event
from sonde.engine.probes.aliases import Aliases
from sonde.engine.probes.gradients import GradientCollector, listen, sequence_of
from sonde.engine.selection import Named
from sonde.engine.torch_api import compiled, hooks
from sonde.engine.torch_api.input_alias import alias, aliased_in_trace, of_inputs
from sonde.site import Phase, Port, Site

if TYPE_CHECKING:
    from sonde.engine.probes.attachment import Attachment

__all__ = ["EventHook", "InputEventHook", "OutputEventHook", "ParameterEventHook"]

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_is_traced = compiled.is_traced
_is_exported = compiled.is_exported
_thread: Callable[[], int] = threading.get_ident
_compiler = hooks.compiler_at_work
_transforms: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack


class EventHook(hooks.Hook):
    """A hook of one probe on one module.

    Attributes:
        sites: what it delivers, by port.
        fired: how often, by port.
        was_eager: it has run outside compiled code, so that it can be taken out while the probe rests.
        is_in: the hook is in.
        handle: of the hook, if it ever was in.
        one_in: of how many elements of an update it is given one; see ``sampling.py``.
    """

    __slots__ = (
        "aliases",
        "attachment",
        "clock",
        "fired",
        "handle",
        "is_in",
        "module",
        "name",
        "one_in",
        "sites",
        "switch",
        "target",
        "token",
        "was_eager",
    )

    register: ClassVar[Callable[..., hooks.Handle]]

    def __init__(
        self, attachment: Attachment, clock: Clock, item: Named, sites: dict[Port, Site], parameter: nn.Parameter | None = None
    ) -> None:
        self.attachment = attachment
        self.switch = attachment.switch
        self.clock = clock
        self.name = item.name
        self.module: nn.Module = item.module
        self.target = self.module if parameter is None else parameter
        self.sites = sites
        self.fired: dict[Port, int] = dict.fromkeys(sites, 0)
        self.was_eager = False
        self.aliases: Aliases | None = None
        self.is_in = False
        self.one_in = 1
        self.handle: hooks.Handle | None = None
        self.token = compiled.token_for(self)

    def attach(self) -> None:
        """Put the hook in, if it is not."""
        ready = self.target is self.module or (self.target.requires_grad and not is_lazy(self.target))
        if self.is_in or not ready:
            return
        if self.handle is None or not self.handle.put_back(self):
            self.handle = self._register()
        self.is_in = True

    def _register(self) -> hooks.Handle:
        return type(self).register(self.target, self)

    def detach(self) -> None:
        """Take the hook out, if it is in."""
        if self.handle is not None and self.is_in:
            self.handle.remove()
        self.is_in = False

    def take_over(self, old: EventHook) -> None:
        """Go on counting where *old* stopped, whose module this one's has replaced."""
        self.fired = old.fired

    def counts(self) -> dict[Port, int]:
        """How often something was delivered or added, by port."""
        return self.fired

    def _admitted(self) -> Forward | None:
        """The forward that an eager module call belongs to; None if nothing of it may be delivered."""
        self.was_eager = True
        thread = self.attachment.thread
        if (thread is not None and thread != _thread() and _graph_task() == -1) or _transforms() is not None or _is_exported():
            self._refuse()
            return None
        forward = self.clock.local.forward or self.clock.current()
        training = self.switch.training
        if training is not None and self.clock.is_training(forward, _graph_task()) is not training:
            return None
        return forward

    def _refuse(self) -> None:
        """Say why an eager module call is not observed."""
        if transformed():  # its tensors are wrappers that must not outlive the transform
            self.attachment.note(self, "called inside a torch.func transform, where nothing is delivered")
        elif _is_exported():
            self.attachment.note(self, "called by torch.export, where nothing is delivered")
        else:
            self.attachment.note(self, "called in another thread than the one that entered the probe")

    def _any_site(self) -> Site:
        return next(iter(self.sites.values()))

    def _deliver(self, event: Event) -> None:
        self.fired[event.site.port] += 1
        event.module = self.module
        self.attachment.deliver(event)

    # Gradients, of whichever tensors a subclass watches

    def _watch(self, port: Port, forward: Forward, call: int, value: Any, passthrough: bool, alias: str) -> None:
        """Listen to the gradients of the tensors in *value*."""
        if isinstance(value, Tensor):
            if value.requires_grad:
                listener = partial(self._single, port, forward, call, passthrough, alias)
                if value.is_leaf:
                    self.attachment.listen_to_leaf(self, forward.index, value, listener)
                else:
                    listen(forward, value, listener)
            return
        leaves, outline = structure.outline(value)
        sequence = [sequence_of(tensor) for _, tensor in leaves]
        if not any(number is not None for number in sequence):
            return
        context = (port, [path for path, _ in leaves], outline.fill_as_gradients, passthrough, alias)
        gathering = GradientCollector(self, self.attachment.pending, forward, call, context, sequence)
        for index, (_, tensor) in enumerate(leaves):
            if tensor.requires_grad:
                self._listen(forward, tensor, partial(gathering.arrive, index))

    def _listen(self, forward: Forward, tensor: Tensor, listener: Callable[[Tensor], None]) -> None:
        if tensor.is_leaf:
            self.attachment.listen_to_leaf(self, forward.index, tensor, listener)
        else:
            listen(forward, tensor, listener)

    def _single(self, port: Port, forward: Forward, call: int, passthrough: bool, alias: str, gradient: Tensor) -> None:
        if not self.switch.on:
            return
        attachment = self.attachment
        if attachment.pending.passes:
            attachment.pending.advance()
        tick = forward.tick if forward.stamp == self.clock.stamp else self.clock.tick_of(forward)
        site = self.sites[port]
        self.fired[port] += 1
        leaves = (("", gradient),)
        try:
            attachment.subscriber(
                Event(
                    self.name,
                    type(self.module),
                    True,
                    (gradient,),
                    (),
                    {},
                    site,
                    call,
                    "backward",
                    tick,
                    passthrough,
                    alias,
                    leaves,
                    self.module,
                )
            )
        except Exception as error:
            attachment.failed(site, error)

    def gathered(self, gathering: GradientCollector) -> None:
        """All gradients of one call's structured value that will come have come."""
        if not self.switch.on:
            return
        port, paths, fill, passthrough, alias = gathering.context
        leaves = tuple((path, tensor) for path, tensor in zip(paths, gathering.gradients, strict=True) if tensor is not None)
        self._gradient(port, gathering.forward, gathering.call, passthrough, alias, fill(gathering.gradients), leaves)

    def _gradient(
        self,
        port: Port,
        forward: Forward,
        call: int,
        passthrough: bool,
        alias: str,
        value: tuple[Any, ...],
        leaves: tuple[tuple[str, Tensor], ...],
    ) -> None:
        kwargs: dict[str, Any] = {}
        if port == "grad_input":  # gathered as (args, kwargs)
            value, kwargs = value
            leaves = of_inputs(leaves)
        tick = forward.tick if forward.stamp == self.clock.stamp else self.clock.tick_of(forward)
        self._deliver(
            Event(
                self.name,
                type(self.module),
                True,
                value,
                (),
                kwargs,
                self.sites[port],
                call,
                "backward",
                tick,
                passthrough,
                alias,
                leaves,
            )
        )

    # Compiled code

    def replay(self, leaves: list[Tensor], form: int, port: Port | str) -> tuple[int, int]:
        """Compiled code has reached this module: deliver *leaves* as its value at *port*, and say which call it is."""
        forward = self.clock.current()
        task = _graph_task()
        entrance = getattr(self, "entrance", None)
        entered = forward.entered.get(entrance) if entrance is not None and task == -1 else None
        call = entered.pop() if entered else forward.call_of(self, task)
        if task == -1 and isinstance(self, InputEventHook):
            forward.entered.setdefault(self, []).append(call)
        thread = self.attachment.thread
        if port and self.switch.on and (thread is None or thread == _thread() or task != -1):
            value = compiled.rebuild(form, leaves)
            named = tuple(zip(compiled.paths_of(form), leaves, strict=True))
            args: tuple[Any, ...] = ()
            kwargs: dict[str, Any] = {}
            if port == "input":
                args, kwargs = value
                value, named = args, of_inputs(named)
            phase: Phase = "forward" if task == -1 else "recompute"
            tick = self.clock.tick_of(forward)
            site = self.sites[port]  # type: ignore[index]  # a port, since it is not ""
            self._deliver(
                Event(self.name, type(self.module), False, value, args, kwargs, site, call, phase, tick, False, "", named)
            )
        return forward.index, call

    def replay_gradient(self, forward_index: int, call: int, gradient: Tensor, leaf: int, form: int, port: Port) -> None:
        """Compiled code has computed the gradient of one tensor of the value that call number *call* returned."""
        if not self.switch.on:
            return
        forward = self.clock.current()
        if forward.index != forward_index:
            forward = Forward(forward_index, forward.tick, -1)
        paths = compiled.paths_of(form)

        def fill(gradients: list[Tensor | None]) -> tuple[Any, ...]:
            return structure.as_gradients(compiled.rebuild(form, gradients))

        if len(paths) == 1:
            self._gradient(port, forward, call, False, "", fill([gradient]), ((paths[0], gradient),))
            return
        pending = self.attachment.pending
        node = torch._C._current_autograd_node()  # one node for the whole region
        sequence: list[int | None] = [node._sequence_nr()] * len(paths)
        context = (port, paths, fill, False, "")
        key = (id(self), port, forward_index, call)
        pending.of(key, lambda: GradientCollector(self, pending, forward, call, context, sequence)).arrive(leaf, gradient)


class OutputEventHook(EventHook):
    """The forward hook of one module: what it returns, and the gradient of that.

    Where an ``InputEventHook`` sees calls begin, it numbers them; a module that calls itself ends them in another order.
    """

    __slots__ = ("_gradients", "_site", "entrance", "returned")

    def __init__(self, attachment: Attachment, clock: Clock, item: Named, sites: dict[Port, Site]) -> None:
        super().__init__(attachment, clock, item, sites)
        self._site = sites.get("output")
        self._gradients = "grad_output" in sites
        self.returned = 0  # events delivered from here at the port output; those of compiled code are in ``fired``
        self.entrance: InputEventHook | None = None  # the tap that sees the same module's calls begin, if there is one

    def counts(self) -> dict[Port, int]:
        return self.fired if self._site is None else self.fired | {"output": self.fired["output"] + self.returned}

    def take_over(self, old: EventHook) -> None:
        self.fired = old.counts()

    def _register(self) -> hooks.Handle:
        return hooks.on_forward(self.module, self, always=self.entrance is not None)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not self.switch.on:
            return
        if _is_traced():
            if self.switch.refuses_traced():
                return
            port = "output" if self._site is not None else ""
            compiled.trace_value(self.token, output, port, "grad_output" if self._gradients else "")
            return
        if (compiler := _compiler()) is not None:
            hooks.undisturbed(compiler, self, module, args, kwargs, output)
            return
        # the hot path: written out, since each call of a function costs as much as a tenth of the hook
        try:
            self.was_eager = True
            attachment = self.attachment
            task = _graph_task()
            thread = attachment.thread
            if (thread is not None and thread != _thread() and task == -1) or _transforms() is not None or _is_exported():
                self._refuse()
                return
            clock = self.clock
            forward = clock.local.forward or clock.current()
            training = self.switch.training
            if training is not None and clock.is_training(forward, task) is not training:
                return
            if task == -1:
                begun = forward.entered.get(self.entrance) if self.entrance is not None else None
                if begun:
                    call = begun.pop()
                    if output is None and sys.exc_info()[0] is not None:
                        return  # called only to learn that the module has raised
                else:
                    call = forward.calls.get(self, 0)
                    forward.calls[self] = call + 1
                    if forward.recording:
                        forward.mark(self, call)
            else:
                call = forward.recall_of(self, task)
            alias = "" if self.aliases is None else self.aliases.used(forward, self)
            if isinstance(output, Tensor):
                passthrough = False
                for given in args:
                    if given is output:
                        passthrough = True
                        break
                if kwargs and not passthrough:
                    passthrough = any(given is output for given in kwargs.values())
            else:
                passthrough = _passes_through(output, args, kwargs)
            if self._site is not None:
                tick = forward.tick if forward.stamp == clock.stamp else clock.tick_of(forward)
                phase: Phase = "forward" if task == -1 else "recompute"
                self.returned += 1
                attachment.subscriber(
                    Event(  # positions, in the order of its fields: keywords cost as much again
                        self.name,
                        type(module),
                        False,
                        output,
                        args,
                        kwargs,
                        self._site,
                        call,
                        phase,
                        tick,
                        passthrough,
                        alias,
                        None,
                        module,
                    )
                )
            if self._gradients:
                self._watch("grad_output", forward, call, output, passthrough, alias)
        except Exception as error:  # the subscriber's; or ours, over a value that cannot be walked
            self.attachment.failed(self._any_site(), error)


class InputEventHook(EventHook):
    """The forward pre-hook of one module: what it is given, and the gradient of that through this module alone.

    ``grad_input`` needs an alias of each input that only this module uses, so it is the one port that adds a node to the
    user's graph: where an input has several consumers, sums of gradients may be formed in another order.
    """

    __slots__ = ("_gradients", "_site")

    register = staticmethod(hooks.on_forward_pre)

    def __init__(self, attachment: Attachment, clock: Clock, item: Named, sites: dict[Port, Site]) -> None:
        super().__init__(attachment, clock, item, sites)
        self._site = sites.get("input")
        self._gradients = "grad_input" in sites
        if self._gradients and getattr(item.module, "inplace", False):
            attachment.notes[sites["grad_input"]] = (
                "its module writes into its input, whose gradient through it alone is not defined"
            )

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.switch.on:
            return None
        if _is_traced():
            return self._traced(args, kwargs)
        if (compiler := hooks.compiler_at_work()) is not None:
            return hooks.undisturbed(compiler, self._eager, module, args, kwargs)
        return self._eager(module, args, kwargs)

    def _eager(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._observe(module, args, kwargs)
        except Exception as error:
            self.attachment.failed(self._any_site(), error)
            return None

    def _observe(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        forward = self._admitted()
        if forward is None:
            return None
        task = _graph_task()
        call = forward.call_of(self, task)
        if task == -1:
            forward.entered.setdefault(self, []).append(call)
        if self._site is not None:
            phase: Phase = "forward" if task == -1 else "recompute"
            self._deliver(
                Event(self.name, type(module), False, args, args, kwargs, self._site, call, phase, self.clock.tick_of(forward))
            )
        if not self._gradients or not torch.is_grad_enabled():
            return None
        aliased = structure.remap((args, kwargs), alias)
        self._watch("grad_input", forward, call, self._without_nested(aliased), False, "")
        return aliased

    def _without_nested(self, value: Any) -> Any:
        """*value* without nested tensors, which have no alias, and so no gradient through this module alone."""
        if not any(tensor.is_nested for _, tensor in structure.walk(value)):
            return value
        self.attachment.note(self, "a nested tensor, whose gradient through this module alone cannot be told")
        return structure.remap(value, lambda tensor: None if tensor.is_nested else tensor)

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.switch.refuses_traced():
            return None
        port = "input" if self._site is not None else ""
        if not self._gradients:
            compiled.trace_value(self.token, (args, kwargs), port, "")
            return None
        given, seen = aliased_in_trace((args, kwargs))
        compiled.trace_value(self.token, seen, port, "grad_input")
        return given


class ParameterEventHook(EventHook):
    """The post-accumulate hook of one parameter: its ``.grad`` after a backward pass."""

    __slots__ = ()

    register = staticmethod(hooks.on_accumulated)

    def __call__(self, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        if not self.switch.on or gradient is None or _is_traced():
            return
        self.was_eager = True
        self._deliver(
            Event(self.name, nn.Parameter, True, gradient, (), {}, self.sites["grad"], 0, "backward", self.clock.now(), False)
        )


def _passes_through(output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if isinstance(output, Tensor):
        for given in args:
            if given is output:
                return True
        return bool(kwargs) and any(given is output for given in kwargs.values())
    given = {id(tensor) for _, tensor in structure.walk((args, kwargs))}
    # an integer tensor that comes along (the lengths of a packed sequence, say) is not the value
    return any(id(tensor) in given for _, tensor in structure.walk(output) if tensor.is_floating_point() or tensor.is_complex())
