"""Norms of all parameters of a model, or of their gradients, at a moment that no hook sees: before a step, before clipping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.parameter import is_lazy

from sonde.engine import RowKeys, SiteHook, raise_if_foreign
from sonde.errors import ArgumentError
from sonde.inspector.measurement.row_index import RowIndex
from sonde.rows import Layout, Scope
from sonde.site import OTHER_CALLS, Port
from sonde.stats import PLAIN, Norm, Piece, Table, in_memory, surely_in_memory, unreadable
from sonde.warn import warn_user


class ParameterRows:
    """A row of :class:`sonde.stats.Norm` for each parameter, which :meth:`look` fills.

    Attributes:
        port: of the sites: ``param`` or ``grad``.
        table: holds the rows.
        step: the step in which the rows were filled; -1 before.
        keys: says which rows of other ranks join; None if none do.

    Args:
        name: what is measured, in words; no rows are written under it.
        tensor_of: returns what is measured of a parameter, or None.
    """

    def __init__(self, name: str, port: Port, tensor_of: Callable[[Any], Tensor | None]) -> None:
        self.port: Port = port
        self.table = Table(Norm())
        self.step = -1
        self._name = name
        self._tensor_of = tensor_of
        self._rows: dict[int, Tensor] = {}  # by the hook's id
        self._addresses: list[int] = []  # of the rows of _hooks
        self._has_failed = False
        self._refused: set[int] = set()  # by the hook's id
        self._hooks: list[SiteHook] = []
        self._given: Sequence[SiteHook] = ()  # the list whose hooks all were measured last, and the parameters of these
        self._targets: list[Any] = []
        self._index: tuple[tuple[int, frozenset[int] | None], RowIndex] | None = None
        self.keys: RowKeys | None = None

    def measure(self, hooks: Sequence[SiteHook], step: int) -> None:
        """Measure the parameters of *hooks* as they are now, in *step*, in place of what was measured before. No host sync.

        Args:
            hooks: of the parameters; the same list as the last time as long as it has the same hooks, which is cheaper.
            step: the step.
        """
        if self._has_failed:
            return
        try:
            if not (hooks is self._given and self._measured_as_before()):
                self._given = ()
                self._measure(hooks, [self._held_by(hook.target) for hook in hooks])
                if len(self._hooks) == len(hooks) and all(self._addresses):
                    self._given, self._targets = hooks, [hook.target for hook in hooks]
            self.step = step
        except Exception as error:
            raise_if_foreign(error)
            self._has_failed, self.step = True, -1
            warn_user(f"sonde stopped measuring {self._name}: {type(error).__name__}: {error}. The training goes on without it")

    def _measured_as_before(self) -> bool:
        """Measure all parameters by one call of the kernel, as the last time; return whether it has taken them all."""
        tensors = list(map(self._tensor_of, self._targets))
        kernel = self.table.statistic.kernel
        if kernel is None or not surely_in_memory(tensors):
            return False
        self.table.reset()
        return not kernel.add_each(self._addresses, tensors, None, 1)

    def _held_by(self, parameter: Any) -> Tensor | None:
        """What this rank holds of what is measured of *parameter*; None if that has no values, as where it is lazy.

        None, too, for a frozen one of a class that computes its values, as quantised weights do: it stays as it is.
        """
        tensor = None if is_lazy(parameter) else self._tensor_of(parameter)
        if tensor is None or unreadable(tensor):
            return None
        part = Piece.like(tensor, parameter)
        is_computed = part is not None and type(part) not in PLAIN and in_memory(part) is None
        return None if is_computed and not parameter.requires_grad else part

    def _measure(self, hooks: Sequence[SiteHook], found: Sequence[Tensor | None]) -> None:
        tensors = [tensor for tensor in found if tensor is not None]
        if len(tensors) < len(hooks):
            hooks = [hook for hook, tensor in zip(hooks, found, strict=True) if tensor is not None]
        if hooks != self._hooks:
            self._addresses = [self._address(hook, tensor) for hook, tensor in zip(hooks, tensors, strict=True)]
            self._hooks, self._index = list(hooks), None  # last: a signal may have interrupted what comes before
        if self.table.blocks:
            self.table.reset()
        kernel = self.table.statistic.kernel
        left: Sequence[int] = range(len(hooks))
        if kernel is not None:
            left = kernel.add_each(self._addresses, tensors, None, 1)
        for place in left:
            hook, tensor = hooks[place], tensors[place].detach()
            if self._rows[id(hook)].device != tensor.device:
                self._rows[id(hook)] = self.table.move(self._rows[id(hook)], tensor.device)
                self._addresses[place] = self._address(hook, tensor)
            try:
                self.table.add(self._rows[id(hook)], tensor)
            except ArgumentError as error:  # of a class that does not tell its values
                self._refuse(hook, error)

    def _refuse(self, hook: SiteHook, error: ArgumentError) -> None:
        """Say once that nothing is measured of the parameter of *hook*."""
        if id(hook) not in self._refused:
            self._refused.add(id(hook))
            warn_user(
                f"{hook.sites[self.port]} is left out of {self._name}: {error}. The others are measured, and the training goes on"
            )

    def _address(self, hook: SiteHook, tensor: Tensor) -> int:
        """Where the row of a parameter lies, if the kernel for the CPU can add to it there; else 0."""
        row = self._rows.get(id(hook))
        if row is None:
            row = self._rows[id(hook)] = self.table.allocate(1, tensor.device)[0]
        kernel = self.table.statistic.kernel
        return row.data_ptr() if kernel is not None and tensor.is_cpu and kernel.fits(row, led=1) else 0

    def row_index(self, order: Mapping[str, int], held: frozenset[int] | None) -> RowIndex:
        """Return the row of each parameter whose id is in *held* (None: of all); *order* gives the place of each module."""
        key = self.table.changes, held
        if self._index is None or self._index[0] != key:
            hooks = [hook for hook in self._hooks if held is None or id(hook.target) in held]
            orders = [order.get(hook.name, order.get(hook.name.rpartition(".")[0], len(order))) for hook in hooks]
            places = [(hook.sites[self.port], OTHER_CALLS, hook) for hook in hooks]
            scope: Scope = "global" if self.keys is None else "rank"
            self._index = (
                key,
                RowIndex(
                    self._name,
                    self.table.statistic,
                    Layout([hook.sites[self.port] for hook in hooks], OTHER_CALLS, orders, scope),
                    self.table.positions([self._rows[id(hook)] for hook in hooks]),
                    (self.port,) * len(hooks),
                    np.ones(len(hooks)),
                    None if self.keys is None else self.keys.of(self._name, self.table.statistic, places, moment=self._name),
                ),
            )
        return self._index[1]
