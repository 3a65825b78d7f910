"""Hooks that build events for a Python subscriber.

In eager code an event is built in the hook and delivered at once; in compiled code the hook is traced, and ``replay`` is called
from there at run time. Hooks for statistics are in ``statistic_hooks.py``, hooks around optimizer steps in ``step_hooks.py``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sonde.engine import structure
from sonde.engine.clock.clock import Clock
from sonde.engine.clock.forward import Forward
from sonde.engine.event import Event
from sonde.engine.probes.aliases import Aliases
from sonde.engine.probes.delivery import Delivery, Switch
from sonde.engine.probes.gradients import GradientCollector, sequence_of
from sonde.engine.probes.site_hook import SiteHook
from sonde.engine.probes.targets import Sites
from sonde.engine.torch_api import compiled, compiler_state, hooks, operators
from sonde.engine.torch_api.autograd_state import current_node, graph_task, sequence_of_node, transforms
from sonde.engine.torch_api.forms import paths_of, rebuild
from sonde.engine.torch_api.input_alias import alias, aliased_in_trace, of_inputs
from sonde.engine.torch_api.modules import class_of
from sonde.engine.unseen import blocks
from sonde.site import Phase, Port
from sonde.stats import PLAIN, Piece, local

_graph_task: Callable[[], int] = graph_task
_is_traced = compiler_state.is_traced
_trace_value = compiled.trace_value  # what traced code reaches by two names has a guard for each use
_thread: Callable[[], int] = threading.get_ident
_compiler = hooks.compiler_at_work
_UNSEEN = (-1, -1)  # the forward and the call that compiled code runs unseen


class EventHook(SiteHook):
    """A hook that delivers events; abstract.

    Attributes:
        fired: how many events were delivered, by port.
    """

    __slots__ = ("fired",)

    def begin(self, delivery: Delivery, clock: Clock, module: nn.Module, parameter: nn.Parameter | None) -> None:
        super().begin(delivery, clock, module, parameter)
        self.fired: dict[Port, int] = dict.fromkeys(self.sites, 0)

    def counts(self, added: Mapping[int, int]) -> dict[Port, int]:
        return self.fired

    def take_over(self, old: SiteHook) -> None:
        self.fired = old.counts({})

    def _parts(self, port: Port, value: Any) -> Any:
        """Return *value* with what this rank holds of each distributed tensor, noted in the coverage; None for a partial sum."""
        parts = structure.local_parts(value)
        if parts is not value:
            for path, tensor in structure.walk(value):
                if type(tensor) not in PLAIN:
                    self.note_part(port, tensor)
                    self.delivery.pieces.setdefault(self.sites[port], {})[path] = Piece.of(tensor)
        return parts

    def _deliver(self, event: Event) -> None:
        port = event.site.port
        self.fired[port] = count = self.fired[port] + 1
        event.module = self.module
        self.delivery.deliver(event, count)


class ModuleEventHook(EventHook):
    """A hook on a module, which also listens to the gradients of the tensors that pass there; abstract.

    Attributes:
        value_port, gradient_port: of the observed value, and of its gradient (None: the gradient cannot be observed).
        aliases: the names of a module that has several; None for one name.
        plan: what compiled code delivers.
        token: names this hook in compiled code.
        entrance: the hook that sees calls of the same module begin, if there is one.
    """

    __slots__ = ("_gradients", "_kind", "_seen", "_site", "aliases", "entrance", "plan", "token")

    value_port: ClassVar[Port]
    gradient_port: ClassVar[Port | None]

    def __init__(self, name: str, sites: Sites) -> None:
        super().__init__(name, sites)
        self._site = sites.get(self.value_port)
        self._gradients = self.gradient_port if self.gradient_port in sites else None
        self.entrance: InputEventHook | None = None
        self.plan = compiled.plan_of(self.value_port if self._site is not None else "", self._gradients or "")
        self.token = operators.Token(self)

    def begin(self, delivery: Delivery, clock: Clock, module: nn.Module, parameter: nn.Parameter | None) -> None:
        super().begin(delivery, clock, module, parameter)
        self._seen: type = type(module)
        self._kind: type[nn.Module] = class_of(module)
        self.aliases: Aliases | None = None

    def give_up(self) -> None:
        super().give_up()
        self._seen = self._kind = nn.Module  # a class that is held holds the module that it stands in
        self.aliases = None
        self.token.forget()

    @property
    def kind(self) -> type[nn.Module]:
        """The class of the module, which parametrising, sharding, or the first call of a lazy module exchanges."""
        if type(self.module) is not self._seen:
            self._seen, self._kind = type(self.module), class_of(self.module)
        return self._kind

    # Gradients

    def _listen_all(self, port: Port, forward: Forward, call: int, value: Any, passthrough: bool, alias: str) -> None:
        """Deliver the gradients of the tensors in *value* when they come."""
        if isinstance(value, Tensor):
            if value.requires_grad:
                if not self.has_looked:
                    self.look_at_border(port, value)
                listener = hooks.Bound(self._single, self.switch, port, forward, call, passthrough, alias)
                if value.is_leaf:
                    self.delivery.listen_to_leaf(self, forward.index, value, listener)
                else:
                    hooks.listen(forward.watched, value, listener)
            return
        leaves, outline = structure.outline(value)
        sequence = [sequence_of(tensor) for _, tensor in leaves]
        if not any(number is not None for number in sequence):
            return
        self.note_border(port, (tensor for _, tensor in leaves))
        context = (self.switch, port, [path for path, _ in leaves], outline.fill_as_gradients, passthrough, alias)
        collector = GradientCollector(self, self.delivery.pending, forward, call, context, sequence)
        for index, (_, tensor) in enumerate(leaves):
            if tensor.requires_grad:
                self._listen(forward, tensor, hooks.Bound(collector.arrive, index))

    def _listen(self, forward: Forward, tensor: Tensor, listener: hooks.Listener) -> None:
        if tensor.is_leaf:
            self.delivery.listen_to_leaf(self, forward.index, tensor, listener)
        else:
            hooks.listen(forward.watched, tensor, listener)

    def _single(
        self, switch: Switch, port: Port, forward: Forward, call: int, passthrough: bool, alias: str, gradient: Tensor
    ) -> None:
        if not switch.on or switch is not self.switch or (blocks and self.is_quiet()):
            return  # the last: of a forward that another probe has seen, which the hook worked for before
        delivery = self.delivery
        site = self.sites[port]
        try:
            if delivery.pending.passes:
                delivery.pending.advance()
            if type(gradient) is not Tensor:
                part: Tensor | None = self._parts(port, gradient)
                if part is None:
                    return
                gradient = part
            tick = forward.tick if forward.stamp == self.clock.stamp else self.clock.tick_of(forward)
            self.fired[port] = count = self.fired[port] + 1
            leaves = (("", gradient),)
            (delivery.subscriber if count & (count - 1) else delivery.looking)(
                Event(
                    self.name,
                    self._kind if type(self.module) is self._seen else self.kind,
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
            delivery.refuse(site, error)

    def receive(self, collector: GradientCollector) -> None:
        """Deliver the gradients of one call's structured value: all that will come have come."""
        switch, port, paths, fill, passthrough, alias = collector.context
        if not switch.on or switch is not self.switch or (blocks and self.is_quiet()):
            return
        leaves = tuple([(path, tensor) for path, tensor in zip(paths, collector.gradients, strict=True) if tensor is not None])
        self._gradient(port, collector.forward, collector.call, passthrough, alias, fill(collector.gradients), leaves)

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
        if forward.is_on_ranks and any(type(tensor) not in PLAIN for _, tensor in leaves):
            value, kwargs = self._parts(port, value), structure.local_parts(kwargs)
            leaves = tuple([(path, part) for path, tensor in leaves if (part := local(tensor)) is not None])
        tick = forward.tick if forward.stamp == self.clock.stamp else self.clock.tick_of(forward)
        self._deliver(
            Event(
                self.name,
                self.kind,
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
        """Deliver *leaves* as the module's value at *port*, where compiled code has reached the module.

        Returns:
            The indices of the forward and of the call; -1 where nothing may be delivered, of gradients either.
        """
        forward = self._admitted_compiled()
        if forward is None:
            return _UNSEEN
        task = _graph_task()
        entrance = self.entrance
        entered = forward.entered.get(entrance) if entrance is not None and task == -1 else None
        has_begun = bool(entered)
        call = entered.pop() if entered else forward.call_of(self, task)
        if has_begun:
            forward.note_checkpoint(self, call)
        if task == -1 and isinstance(self, InputEventHook):
            forward.entered.setdefault(self, []).append(call)
        thread = self.delivery.thread
        if port and self.switch.on and (thread is None or thread == _thread() or task != -1):
            value = rebuild(form, leaves)
            named = (*zip(paths_of(form), leaves, strict=True),)
            args: tuple[Any, ...] = ()
            kwargs: dict[str, Any] = {}
            if port == "input":
                args, kwargs = value
                value, named = args, of_inputs(named)
            phase: Phase = "forward" if task == -1 else "recompute"
            tick = self.clock.tick_of(forward)
            site = self.sites[port]  # type: ignore[index]  # a port, since it is not ""
            self._deliver(Event(self.name, self.kind, False, value, args, kwargs, site, call, phase, tick, False, "", named))
        return forward.index, call

    def replay_gradient(self, forward_index: int, call: int, gradient: Tensor, leaf: int, form: int, port: Port) -> None:
        """Deliver the gradient, computed by compiled code, of tensor number *leaf* of the value of call number *call*."""
        if not self.switch.on or forward_index == _UNSEEN[0] or (blocks and self.is_quiet()):
            return
        forward = self.clock.current()
        if forward.index != forward_index:
            forward = Forward(forward_index, forward.tick, -1)
        paths = paths_of(form)

        def fill(gradients: list[Tensor | None]) -> tuple[Any, ...]:
            return structure.as_gradients(rebuild(form, gradients))

        if len(paths) == 1:
            self._gradient(port, forward, call, False, "", fill([gradient]), ((paths[0], gradient),))
            return
        pending = self.delivery.pending
        node = current_node()  # one node for the whole region
        sequence: list[int | None] = [sequence_of_node(node)] * len(paths)
        context = (self.switch, port, paths, fill, False, "")
        key = (id(self), port, forward_index, call)
        pending.of(key, lambda: GradientCollector(self, pending, forward, call, context, sequence)).arrive(leaf, gradient)


class OutputEventHook(ModuleEventHook):
    """The forward hook of one module: delivers the output, and the gradient of the output.

    A subclass with other ports delivers another value: its ``__call__`` calls this one with the value in place of the output.
    Where an ``InputEventHook`` sees calls begin, that hook numbers them; a module that calls itself ends them in another order.

    Attributes:
        returned: events of the value delivered in eager code; those of compiled code are in ``fired``.
    """

    __slots__ = ("returned",)

    value_port: ClassVar[Port] = "output"
    gradient_port: ClassVar[Port | None] = "grad_output"

    def begin(self, delivery: Delivery, clock: Clock, module: nn.Module, parameter: nn.Parameter | None) -> None:
        super().begin(delivery, clock, module, parameter)
        self.returned = 0

    def counts(self, added: Mapping[int, int]) -> dict[Port, int]:
        port = self.value_port
        return self.fired if self._site is None else self.fired | {port: self.fired[port] + self.returned}

    def _register(self) -> hooks.Handle:
        return hooks.on_forward(self.module, self, always=self.entrance is not None)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any = hooks.NOT_GIVEN) -> None:
        if _is_traced():
            _trace_value(self, output)
            return
        if not self.switch.on or output is hooks.NOT_GIVEN:
            return
        if (compiler := _compiler()) is not None:
            hooks.undisturbed(compiler, self, module, args, kwargs, output)
            return
        # the hot path: written out, since each call of a function costs as much as a tenth of the hook
        try:
            self.was_eager = True
            if blocks and self.is_quiet():
                return
            delivery, task = self.delivery, _graph_task()
            thread = delivery.thread
            if (thread is not None and thread != _thread() and task == -1) or transforms() is not None:
                self._refuse()
                return
            clock = self.clock
            forward = held if (held := clock.local.forward) is not None and held.began == clock.stamp else clock.current()
            if (
                (forward.is_on_ranks and clock.is_for_shapes())
                or (forward.may_be_recorded and self.is_recorded())
                or ((training := self.switch.training) is not None and clock.is_training(forward, task) is not training)
            ):
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
                    forward.note_checkpoint(self, call)
            else:
                call = forward.repeated_call(self, task)
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
                passthrough = structure.passes_through(output, args, kwargs)
            if forward.is_on_ranks:
                self._deliver_parts(forward, task, (output, args, kwargs), call, passthrough, alias)
            elif self._site is not None:
                self.returned = count = self.returned + 1
                try:
                    (delivery.subscriber if count & (count - 1) else delivery.looking)(
                        Event(  # positions, in the order of its fields: keywords cost as much again
                            self.name,
                            self._kind if type(module) is self._seen else self.kind,
                            False,
                            output,
                            args,
                            kwargs,
                            self._site,
                            call,
                            "forward" if task == -1 else "recompute",
                            forward.tick if forward.stamp == clock.stamp else clock.tick_of(forward),
                            passthrough,
                            alias,
                            None,
                            module,
                        )
                    )
                except Exception as error:
                    delivery.refuse(self._site, error)
            if self._gradients is not None:
                self._listen_all(self._gradients, forward, call, output, passthrough, alias)
        except Exception as error:  # ours, over a value that cannot be walked; or the subscriber's, if strict
            self.failed(error)

    def _deliver_parts(self, forward: Forward, task: int, given: tuple[Any, ...], call: int, passthrough: bool, alias: str) -> None:
        """Deliver output, arguments and keyword arguments where they may be distributed: what this rank holds of them."""
        self.note_units(given[0])
        if self._site is None:
            return
        value, args, kwargs = self._parts(self.value_port, given[0]), *map(structure.local_parts, given[1:])
        if value is None and given[0] is not None:
            return  # a partial sum
        phase: Phase = "forward" if task == -1 else "recompute"
        tick = self.clock.tick_of(forward)
        self._deliver(Event(self.name, self.kind, False, value, args, kwargs, self._site, call, phase, tick, passthrough, alias))


class InputEventHook(ModuleEventHook):
    """The forward pre-hook of one module: delivers the input, and the gradient of the input through this module alone.

    ``grad_input`` needs an alias of each input that only this module uses, so it is the one port that adds a node to the
    user's graph: where an input has several consumers, sums of gradients may be formed in another order.
    """

    __slots__ = ()

    value_port: ClassVar[Port] = "input"
    gradient_port: ClassVar[Port | None] = "grad_input"
    register = staticmethod(hooks.on_forward_pre)

    def begin(self, delivery: Delivery, clock: Clock, module: nn.Module, parameter: nn.Parameter | None) -> None:
        super().begin(delivery, clock, module, parameter)
        if self._gradients is not None and getattr(module, "inplace", False):
            delivery.note(
                [self.sites["grad_input"]], "its module writes into its input, whose gradient through it alone is not defined"
            )

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] = hooks.NOT_GIVEN) -> Any:
        if _is_traced():
            return self._traced(args, kwargs)
        if not self.switch.on or kwargs is hooks.NOT_GIVEN:
            return None
        if (compiler := hooks.compiler_at_work()) is not None:
            return hooks.undisturbed(compiler, self._eager, module, args, kwargs)
        return self._eager(module, args, kwargs)

    def _eager(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._observe(module, args, kwargs)
        except Exception as error:
            self.failed(error)
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
            tick, shown, named = self.clock.tick_of(forward), args, kwargs
            if forward.is_on_ranks:
                shown, named = self._parts("input", args), self._parts("input", kwargs)
            self._deliver(Event(self.name, self.kind, False, shown, shown, named, self._site, call, phase, tick))
        if self._gradients is None or not torch.is_grad_enabled():
            return None
        aliased = structure.remap((args, kwargs), alias)
        self._listen_all("grad_input", forward, call, self._without_nested(aliased), False, "")
        return aliased

    def _without_nested(self, value: Any) -> Any:
        """Return *value* without nested tensors, which have no alias, and so no gradient through this module alone."""
        if not any(tensor.is_nested for _, tensor in structure.walk(value)):
            return value
        self.note("a nested tensor, whose gradient through this module alone cannot be observed")
        return structure.remap(value, lambda tensor: None if tensor.is_nested else tensor)

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._gradients is None or compiler_state.is_exported() or self.rests_in_trace():
            _trace_value(self, (args, kwargs))
            return None
        given, seen = aliased_in_trace((args, kwargs))
        _trace_value(self, seen)
        return given


class ParameterEventHook(EventHook):
    """The post-accumulate hook of one parameter: delivers ``.grad`` after a backward pass."""

    __slots__ = ("_last",)

    register = staticmethod(hooks.on_accumulated)

    def begin(self, delivery: Delivery, clock: Clock, module: nn.Module, parameter: nn.Parameter | None) -> None:
        super().begin(delivery, clock, module, parameter)
        self._last = (-1, -1, 0)  # the pass in which the last gradient came

    def __call__(self, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        if not self.switch.on or gradient is None or _is_traced() or (blocks and self.is_quiet()):
            return
        self.was_eager = True
        try:
            self._last = self.look_at_pass("grad", self._last)
            if type(gradient) is not Tensor:
                gradient = self.gradient_part(gradient)
                if gradient is None:
                    return
            self._deliver(
                Event(self.name, nn.Parameter, True, gradient, (), {}, self.sites["grad"], 0, "backward", self.clock.now(), False)
            )
        except Exception as error:
            self.failed(error)
