"""Tallies: taps of the lane for statistics. What passes is added to a row of sums, and that is all.

In compiled code the addition is traced and fused with the user's own operations, so the hook may do nothing but pure
tensor arithmetic on a row it owns. A row takes the first floating-point tensor of a structured value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine import structure
from sonde.engine.probes.event_hooks import EventHook
from sonde.engine.torch_api import compiled, hooks
from sonde.engine.torch_api.input_alias import alias, aliased_in_trace
from sonde.site import Port
from sonde.stats import Table

__all__ = ["InputStatisticHook", "OutputStatisticHook", "ParameterStatisticHook", "StatisticHook"]

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_with_gradients: Callable[[], bool] = torch.is_grad_enabled
_is_traced = compiled.is_traced

_anchors: dict[torch.device, Tensor] = {}


def _anchor(device: torch.device) -> Tensor:
    """One tensor per device, shared by all tallies, so that a compiled region asks once whether it recomputes."""
    if device not in _anchors:
        with torch.inference_mode(False):
            _anchors[device] = torch.zeros((), device=device)
    return _anchors[device]


class StatisticHook(EventHook):
    """What the taps of this lane have in common: rows, and how to add to them."""

    __slots__ = ("addresses", "anchor", "kernel", "rows", "table")

    def hold(self, table: Table, rows: dict[Port, Tensor]) -> None:
        """The rows to add to, by port."""
        self.table = table
        self.rows = rows
        self.kernel = table.statistic.kernel
        self.addresses = {port: self._address(row) for port, row in rows.items()}
        self.anchor = _anchor(next(iter(rows.values())).device)

    def take_over(self, old: EventHook) -> None:
        if isinstance(old, StatisticHook):
            self.hold(old.table, old.rows)

    def counts(self) -> dict[Port, int]:
        return {port: int(row[0]) for port, row in self.rows.items()}

    def _address(self, row: Tensor) -> int:
        """Where *row* lies, if the kernel for the CPU can add to it there; else 0."""
        return row.data_ptr() if self.kernel is not None and self.kernel.fits(row, led=1) else 0

    def _add(self, port: Port, tensor: Tensor) -> None:
        address = self.addresses[port]
        if address and self.kernel is not None and self.kernel.add_at(address, tensor, 1):
            return
        if tensor.is_meta or tensor.is_nested:
            kind = "nested" if tensor.is_nested else "meta"
            self.attachment.note(self, f"a {kind} tensor, which the statistic cannot be taken of")
            return
        try:
            row = self.rows[port]
            if row.device != tensor.device:  # the model was moved
                row = self.rows[port] = self.table.move(row, tensor.device)
                self.addresses[port] = self._address(row)
            self.table.add(row, tensor.detach())
        except Exception as error:
            self.attachment.failed(self.sites[port], error)

    @staticmethod
    def add_each(
        taps: Sequence[StatisticHook], port: Port, tensors: Sequence[Tensor], minus: Sequence[Tensor] | None = None
    ) -> None:
        """Add to each tap's row one of *tensors*, or its difference to one of *minus*: in one go where the kernel takes them."""
        kernel = taps[0].kernel
        left: Sequence[int] = range(len(taps))
        if kernel is not None:
            left = kernel.add_each([tap.addresses[port] for tap in taps], tensors, minus, 1)
        for place in left:
            tensor = tensors[place].detach()
            taps[place]._add(port, tensor if minus is None else _difference(tensor, minus[place]))

    def _add_traced(self, port: Port, tensor: Tensor) -> None:
        row = self.rows[port].data
        merged = self.table.merged(row, self.table.measured(tensor.detach()))
        row.copy_(torch.where(compiled.recomputing(self.anchor), row, merged))

    def _add_traced_gradient(self, port: Port, gradient: Tensor) -> None:
        compiled.add_to_row(self.token, self.table.measured(gradient.detach()), port)

    def add_to_row(self, port: Port, measured: Tensor) -> None:
        """Add a row that compiled code has measured of a gradient."""
        try:
            self.table.merge(self.rows[port], measured)
        except Exception as error:
            self.attachment.failed(self.sites[port], error)

    def _add_gradient(self, port: Port, gradient: Tensor | None) -> None:
        if gradient is not None and self.switch.on:  # the engine says None for an output of its node that nothing used
            self._add(port, gradient)

    def _trace(self, value: Any, port: Port, gradient_port: Port) -> None:
        if compiled.is_exported() or self.switch.refuses_traced():
            return
        compiled.trace_hooks()
        leaf = _first_floating(value)
        if leaf is None:
            return
        if port in self.rows:
            self._add_traced(port, leaf)
        if gradient_port in self.rows and leaf.requires_grad:
            leaf.register_hook(lambda gradient: self._add_traced_gradient(gradient_port, gradient))

    def _leaf(self, value: Any) -> Tensor | None:
        """The tensor of *value* that a row takes; what it leaves out is said in the coverage."""
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            return value
        leaves = structure.walk(value)
        chosen = next(((path, leaf) for path, leaf in leaves if leaf.is_floating_point() or leaf.is_complex()), None)
        if chosen is None:
            self.attachment.note(self, "no floating-point tensor in its value")
            return None
        if len(leaves) > 1:
            self.attachment.note(self, f"of {len(leaves)} tensors only the first floating-point one is added")
        return chosen[1]

    def _pass(self, value: Any, port: Port, gradient_port: Port) -> None:
        try:
            forward = self._admitted()
            if forward is None:
                return
            leaf = value if type(value) is Tensor and value.is_floating_point() else self._leaf(value)
            if leaf is None:
                return
            rows = self.rows
            if port in rows and _graph_task() == -1:
                self._add(port, leaf)
            if gradient_port in rows and leaf.requires_grad and _with_gradients():
                listener = partial(self._add_gradient, gradient_port)
                if leaf.is_leaf:
                    self.attachment.listen_to_leaf(self, forward.index, leaf, listener)
                else:
                    hooks.on_result(leaf, listener)  # sums do not ask in which order the modules hear of it
        except Exception as error:
            self.attachment.failed(self._any_site(), error)


class OutputStatisticHook(StatisticHook):
    """Adds what a module returns, and the gradient of that."""

    __slots__ = ()

    register = staticmethod(hooks.on_forward)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not self.switch.on:
            return
        if _is_traced():
            self._trace(output, "output", "grad_output")
        elif (compiler := hooks.compiler_at_work()) is not None:
            hooks.undisturbed(compiler, self._pass, output, "output", "grad_output")
        else:
            self._pass(output, "output", "grad_output")


class InputStatisticHook(StatisticHook):
    """Adds what a module is given, and the gradient of that through this module alone."""

    __slots__ = ()

    register = staticmethod(hooks.on_forward_pre)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.switch.on:
            return None
        aliases = "grad_input" in self.rows and torch.is_grad_enabled()
        if _is_traced():
            seen: Any = (args, kwargs)
            if aliases:
                (args, kwargs), seen = aliased_in_trace((args, kwargs))
            self._trace(seen, "input", "grad_input")
        else:
            compiler = hooks.compiler_at_work()
            if aliases:
                args, kwargs = hooks.undisturbed(compiler, structure.remap, (args, kwargs), alias)
            hooks.undisturbed(compiler, self._pass, (args, kwargs), "input", "grad_input")
        return (args, kwargs) if aliases else None


class ParameterStatisticHook(StatisticHook):
    """Adds the gradient that a backward pass has accumulated into a parameter."""

    __slots__ = ()

    register = staticmethod(hooks.on_accumulated)

    def __call__(self, parameter: nn.Parameter) -> None:
        if self.switch.on and parameter.grad is not None and not _is_traced():
            self.was_eager = True
            self._add("grad", parameter.grad)


def _difference(after: Tensor, before: Tensor) -> Tensor:
    """What was added to *before*; not rounded to its precision."""
    if after.is_floating_point() and after.device.type != "mps":  # which has no float64
        after, before = after.to(torch.float64), before.to(torch.float64)
    return after - before


def _first_floating(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value if value.is_floating_point() or value.is_complex() else None
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            found = _first_floating(item)
            if found is not None:
                return found
        return None
    if hasattr(type(value), "__dataclass_fields__"):
        return _first_floating([getattr(value, name) for name in type(value).__dataclass_fields__])
    return None
