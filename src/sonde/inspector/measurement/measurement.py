"""One statistic of one lens on one model: its hooks, its rows, and when it observes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Literal

import numpy as np
from torch import Tensor, nn

from sonde.engine import Event, structure
from sonde.engine.probes.attachment import Attachment
from sonde.engine.probes.coverage import Coverage
from sonde.engine.probes.site_hook import SiteHook
from sonde.engine.probes.statistic_hooks import StatisticHook
from sonde.engine.probes.step_hooks import size_factor
from sonde.engine.selection import Where
from sonde.inspector.lenses.lens import Lens
from sonde.inspector.measurement.row_index import RowIndex
from sonde.run.schema import Layout
from sonde.site import Port, Site
from sonde.stats import PairStatistic, RowStatistic, Table
from sonde.stats.history import History

__all__ = ["Kind", "Measurement"]

Kind = Literal["step", "micro_step", "evaluation"]
"""When rows are taken: at the end of each logged step, after each backward pass in it, or after evaluation passes."""

_SUFFIX: dict[Kind, str] = {"step": "", "micro_step": "_micro", "evaluation": "_eval"}
_PASSES: dict[Kind, bool | None] = {"step": True, "micro_step": None, "evaluation": False}
_ALL_CALLS = -1  # a row is of all calls of a module in the step together


class _Pairs:
    """A subscriber that adds pairs to the rows of a table, which it allocates site by site.

    At the port ``update`` the pair is the parameter after and before the step. At other ports it is a tensor and its predecessor at
    the same site. Of a structured value the first floating-point tensor is measured.

    Attributes:
        rows: by site.
        history: the tensor before, by site.
    """

    def __init__(self, table: Table) -> None:
        self.rows: dict[Site, Tensor] = {}
        self.history = History()
        self.__qualname__ = type(table.statistic).__qualname__  # the name in the warning if it fails
        self._table = table

    def __call__(self, event: Event) -> None:
        if event.phase == "recompute":
            return
        if event.site.port == "update":
            before, after = event.value
            self._add(event.site, after, before)
            return
        tensor = structure.first_floating(event.value)
        if tensor is None:
            return
        previous = self.history.previous(event.site)
        if previous is not None:
            self._add(event.site, tensor, previous)
        self.history.remember(event.site, tensor)

    def _add(self, site: Site, tensor: Tensor, previous: Tensor) -> None:
        row = self.rows.get(site)
        if row is None:
            row = self.rows[site] = self._table.allocate(1, tensor.device)[0]
        elif row.device != tensor.device:
            row = self.rows[site] = self._table.move(row, tensor.device)
        self._table.add(row, tensor.detach(), previous.detach())


class Measurement:
    """The attachment of one statistic of a lens, the table that it fills, and the steps in which it observes.

    Attributes:
        family: the family of its rows in the run.
        kind: when its rows are taken.
        statistic: the statistic.
        table: the table of its rows.
        attachment: the hooks.
        norms: the ports of parameters whose norms over all parameters come from its rows.
        hidden: whether its rows are for these norms alone.
        is_sequence: whether each tensor is compared with the tensor of the step before.
    """

    def __init__(self, lens: Lens, statistic: RowStatistic, kind: Kind, ports: tuple[Port, ...], *, hidden: bool = False) -> None:
        self.family = lens.name + _SUFFIX[kind]
        self.kind = kind
        self.statistic = statistic
        self.hidden = hidden
        self.norms: frozenset[str] = frozenset()
        self.is_sequence = isinstance(statistic, PairStatistic) and any(port != "update" for port in ports)
        self._one_in = lens.one_in
        self._logged = -1  # how many steps were logged before this one
        self._ports = ports
        self.table = Table(statistic)
        self._pairs = _Pairs(self.table) if isinstance(statistic, PairStatistic) else None
        self._index: RowIndex | None = None
        self._known: tuple[int, int] = (-1, -1)

    def prepare(self, model: nn.Module, include: Where, name: str, *, strict: bool, update_memory: float) -> None:
        """Choose the modules and parameters to hook; :meth:`attach` hooks them.

        Args:
            model: whose.
            include: which.
            name: of the model, in sites.
            strict: raise what the statistic raises.
            update_memory: the bytes that copies of parameters for updates may take.

        Raises:
            SelectionError: there is nothing to hook.
        """
        self.attachment = Attachment(
            self.statistic if self._pairs is None else self._pairs,  # type: ignore[arg-type]
            strict=strict,
            grad_at_step=self.kind == "step",
            training=_PASSES[self.kind],
            update_memory=update_memory if self.statistic.can_sample else inf,
            table=self.table if self._pairs is None else None,
        )
        self.attachment.observe(model, include, None, self._ports, name)

    # Time

    def attach(self, *, logged: bool, in_pair: bool) -> None:
        """Put the hooks in. A first step begins; see :meth:`begin_step`."""
        self.attachment.attach(resting=not self._is_active(logged, in_pair))

    def begin_step(self, *, logged: bool, in_pair: bool) -> None:
        """Observe the step that begins, or rest in it.

        Args:
            logged: rows of the step are written.
            in_pair: this step or the next one is logged, or may be.
        """
        self.attachment.go_on(self._is_active(logged, in_pair))

    def _is_active(self, logged: bool, in_pair: bool) -> bool:
        if self.kind == "evaluation":
            return True
        if self.is_sequence:
            return in_pair
        self._logged += logged
        return logged and self._logged % self._one_in == 0

    def forget_previous(self) -> None:
        """Let the next tensor of each site have no predecessor."""
        if self._pairs is not None:
            self._pairs.history.clear()

    # Rows

    def parameters(self, port: Port) -> set[int]:
        """Return the ids of the parameters that are observed at *port*."""
        return {id(hook.target) for hook in self.attachment.hooks if port in hook.sites}

    def row_index(self, order: Mapping[str, int]) -> RowIndex:
        """Return the row of each site now; *order* gives the place of each module."""
        known = (self.table.changes, len(self.attachment.hooks))
        if self._index is None or self._known != known:
            self._known = known
            self._index = self._look(order)
        return self._index

    def forget_order(self) -> None:
        """Make a new index at the next moment, since the order of execution is known better now."""
        self._index = None

    def _look(self, order: Mapping[str, int]) -> RowIndex:
        sites: list[Site] = []
        rows: list[Tensor] = []
        orders: list[int] = []
        matrices: list[bool] = []
        sizes: list[float] = []
        for site, row, hook in self._rows():
            sites.append(site)
            rows.append(row)
            orders.append(order.get(hook.name, order.get(hook.name.rpartition(".")[0], len(order))))
            matrices.append(isinstance(hook.target, nn.Parameter) and hook.target.dim() >= 2)
            sizes.append(size_factor(hook, site.port))
        layout = Layout(sites, _ALL_CALLS, orders)
        return RowIndex(
            self.family,
            self.statistic,
            layout,
            self.table.positions(rows),
            tuple(site.port for site in sites),
            np.array(matrices, bool),
            np.array(sizes),
        )

    def _rows(self) -> Iterator[tuple[Site, Tensor, SiteHook]]:
        """Yield every site that has a row, with its row and hook."""
        for hook in self.attachment.hooks:
            if isinstance(hook, StatisticHook):
                yield from ((hook.sites[port], row, hook) for port, row in hook.rows.items())
            elif self._pairs is not None:
                yield from ((site, self._pairs.rows[site], hook) for site in hook.sites.values() if site in self._pairs.rows)

    def coverage(self) -> Coverage:
        """Return which sites were really observed, and why the others were not."""
        if self.attachment.attached:
            self.attachment.rescan()
        return Coverage.of(self.attachment)
