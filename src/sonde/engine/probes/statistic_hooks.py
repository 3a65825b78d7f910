"""Hooks that add what passes to rows of a statistic.

In compiled code the addition is traced and fused with the user's own operations, so such a hook does nothing but pure tensor
arithmetic on a row that the hook owns. Of a structured value the first floating-point tensor is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sonde.engine import structure
from sonde.engine.probes.site_hook import SiteHook
from sonde.engine.torch_api import compiled, hooks
from sonde.engine.torch_api.autograd_state import graph_task
from sonde.engine.torch_api.input_alias import alias, aliased_in_trace
from sonde.engine.unseen import blocks
from sonde.site import Port
from sonde.stats import Table

__all__ = ["InputStatisticHook", "OutputStatisticHook", "ParameterStatisticHook", "StatisticHook"]

_graph_task: Callable[[], int] = graph_task
_with_gradients: Callable[[], bool] = torch.is_grad_enabled
_is_traced = compiled.is_traced


class StatisticHook(SiteHook):
    """A hook that adds tensors to rows of a statistic; abstract.

    Attributes:
        rows: by port.
        table: holds the rows.
        kernel: adds to rows on the CPU; None without one.
        addresses: of the rows that the kernel can add to; else 0.
        anchor: see ``compiled.anchor_for``.
        token: names this hook in compiled code.
    """

    __slots__ = ("addresses", "anchor", "kernel", "rows", "table", "token")

    def hold(self, table: Table, rows: dict[Port, Tensor]) -> None:
        """Add to *rows* of *table* from now on."""
        self.table = table
        self.rows = rows
        self.kernel = table.statistic.kernel
        self.addresses = {port: self._address(row) for port, row in rows.items()}
        self.anchor = compiled.anchor_for(self.clock, next(iter(rows.values())).device)
        self.token = compiled.token_for(self)

    def take_over(self, old: SiteHook) -> None:
        if isinstance(old, StatisticHook):
            self.hold(old.table, old.rows)

    def counts(self) -> dict[Port, int]:
        return {port: int(row[0]) for port, row in self.rows.items()}

    def _address(self, row: Tensor) -> int:
        """Return where *row* lies, if the kernel for the CPU can add to it there; else 0."""
        return row.data_ptr() if self.kernel is not None and self.kernel.fits(row, led=1) else 0

    def _add(self, port: Port, tensor: Tensor) -> None:
        address = self.addresses[port]
        if address and self.kernel is not None and self.kernel.add_at(address, tensor, 1):
            return
        if tensor.is_meta or tensor.is_nested:
            kind = "nested" if tensor.is_nested else "meta"
            self.note(f"a {kind} tensor, which the statistic cannot be taken of")
            return
        try:
            row = self.rows[port]
            if row.device != tensor.device:  # the model was moved
                row = self.rows[port] = self.table.move(row, tensor.device)
                self.addresses[port] = self._address(row)
            self.table.add(row, tensor.detach())
        except Exception as error:
            self.delivery.failed(self.sites[port], error)

    @staticmethod
    def add_each(
        hooked: Sequence[StatisticHook], port: Port, tensors: Sequence[Tensor], minus: Sequence[Tensor] | None = None
    ) -> None:
        """Add to each hook's row one of *tensors*, or its difference to one of *minus*; by one kernel call where possible."""
        kernel = hooked[0].kernel
        left: Sequence[int] = range(len(hooked))
        if kernel is not None:
            left = kernel.add_each([hook.addresses[port] for hook in hooked], tensors, minus, 1)
        for place in left:
            tensor = tensors[place].detach()
            hooked[place]._add(port, tensor if minus is None else _difference(tensor, minus[place]))

    def _add_traced(self, port: Port, tensor: Tensor) -> None:
        row = self.rows[port].data
        merged = self.table.merged(row, self.table.measured(tensor.detach()))
        row.copy_(torch.where(compiled.unwanted(self.anchor), row, merged))

    def _add_traced_gradient(self, port: Port, gradient: Tensor) -> None:
        compiled.add_to_row(self.token, self.table.measured(gradient.detach()), port)

    def add_to_row(self, port: Port, measured: Tensor) -> None:
        """Add a row that compiled code has measured of a gradient."""
        if blocks and self.is_quiet():
            return
        try:
            self.table.merge(self.rows[port], measured)
        except Exception as error:
            self.delivery.failed(self.sites[port], error)

    def _add_gradient(self, port: Port, gradient: Tensor | None) -> None:
        # the engine gives None for an output of its node that nothing used
        if gradient is not None and self.switch.on and not (blocks and self.is_quiet()):
            self._add(port, gradient)

    def _trace(self, value: Any, port: Port, gradient_port: Port | None) -> None:
        """Have *value*, and its gradient, added by the code that is being compiled."""
        if compiled.is_exported() or self.switch.refuses_traced():
            return
        compiled.trace_hooks()
        leaf = structure.first_floating(value)
        if leaf is None:
            return
        if port in self.rows:
            self._add_traced(port, leaf)
        if gradient_port is not None and gradient_port in self.rows and leaf.requires_grad:
            leaf.register_hook(lambda gradient: self._add_traced_gradient(gradient_port, gradient))

    def _leaf(self, value: Any) -> Tensor | None:
        """Return the tensor of *value* to measure; note the other tensors in the coverage."""
        leaf = structure.first_floating(value)
        if leaf is None:
            self.note("no floating-point tensor in its value")
        elif leaf is not value and (count := len(structure.walk(value))) > 1:
            self.note(f"of {count} tensors only the first floating-point one is added")
        return leaf

    def _pass(self, value: Any, port: Port, gradient_port: Port | None) -> None:
        """Add *value*, and its gradient when that comes."""
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
            if gradient_port is not None and gradient_port in rows and leaf.requires_grad and _with_gradients():
                listener = partial(self._add_gradient, gradient_port)
                if leaf.is_leaf:
                    self.delivery.listen_to_leaf(self, forward.index, leaf, listener)
                else:
                    hooks.on_result(leaf, listener)  # for sums the order in which modules get a gradient does not matter
        except Exception as error:
            self.failed(error)


class OutputStatisticHook(StatisticHook):
    """Adds the output of a module, and the gradient of the output.

    A subclass with other ports adds another value: its ``__call__`` calls this one with the value in place of the output.
    """

    __slots__ = ()

    value_port: ClassVar[Port] = "output"
    gradient_port: ClassVar[Port | None] = "grad_output"
    register = staticmethod(hooks.on_forward)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any = hooks.NOT_GIVEN) -> None:
        if not self.switch.on or output is hooks.NOT_GIVEN:
            return
        if _is_traced():
            self._trace(output, self.value_port, self.gradient_port)
        elif (compiler := hooks.compiler_at_work()) is not None:
            hooks.undisturbed(compiler, self._pass, output, self.value_port, self.gradient_port)
        else:
            self._pass(output, self.value_port, self.gradient_port)


class InputStatisticHook(StatisticHook):
    """Adds the input of a module, and the gradient of the input through this module alone."""

    __slots__ = ()

    value_port: ClassVar[Port] = "input"
    gradient_port: ClassVar[Port | None] = "grad_input"
    register = staticmethod(hooks.on_forward_pre)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] = hooks.NOT_GIVEN) -> Any:
        if not self.switch.on or kwargs is hooks.NOT_GIVEN:
            return None
        aliases = "grad_input" in self.rows and torch.is_grad_enabled()
        if _is_traced():
            seen: Any = (args, kwargs)
            if aliases:
                (args, kwargs), seen = aliased_in_trace((args, kwargs))
            self._trace(seen, "input", "grad_input")
        else:
            if blocks and self.is_quiet():
                return None
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
        if self.switch.on and parameter.grad is not None and not _is_traced() and not (blocks and self.is_quiet()):
            self.was_eager = True
            self._add("grad", parameter.grad)


def _difference(after: Tensor, before: Tensor) -> Tensor:
    """Return ``after - before``, not rounded to the precision of the two."""
    if after.device.type != "mps" and (after.is_floating_point() or after.is_complex()):  # mps has no float64
        wide = torch.complex128 if after.is_complex() else torch.float64
        after, before = after.to(wide), before.to(wide)
    return after - before
