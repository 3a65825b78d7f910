"""One statistic of one lens on one model: its hooks, its rows, and when it observes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Literal

import numpy as np
from torch import Tensor, nn

from sonde.engine import (
    Attachment,
    Coverage,
    Event,
    Pace,
    RowKeys,
    SiteHook,
    Where,
    is_floating,
)
from sonde.inspector.measurement.row_index import RowIndex
from sonde.lens import Lens
from sonde.preprocessor import difference
from sonde.rows import Layout, Scope
from sonde.site import OTHER_CALLS, PARAMETER_PORTS, PORTS, Port, Site
from sonde.stats import History, PairStatistic, RowStatistic, Table

Kind = Literal["step", "micro_step", "evaluation"]
"""When rows are taken: at the end of each logged step, after each backward pass in it, or after evaluation passes."""

_SUFFIX: dict[Kind, str] = {"step": "", "micro_step": "_micro", "evaluation": "_eval"}
_PASSES: dict[Kind, bool | None] = {"step": True, "micro_step": None, "evaluation": False}


class _Pairs:
    """A subscriber that adds pairs to the rows of a table: a row for each leaf and call of a site, as a statistic's hook has them.

    At the port ``update`` the pair is the parameter after and before the step, unless the statistic compares updates. At other
    ports it is a tensor and its predecessor in the same place.

    Attributes:
        history: the tensor before, by place.
    """

    def __init__(self, table: Table, apart: int) -> None:
        self.history = History()
        self.__qualname__ = type(table.statistic).__qualname__  # the name in the warning if it fails
        self._rows: dict[Site, dict[tuple[str, int], Tensor]] = {}
        self._table = table
        self._apart = apart
        self._compares_updates = isinstance(table.statistic, PairStatistic) and table.statistic.compares_updates

    def __call__(self, event: Event) -> None:
        if event.phase == "recompute":
            return
        site = event.site
        if site.port == "update":
            before, after = event.value
            if self._compares_updates:
                self._add_next(site, ("", OTHER_CALLS), difference(after, before))
            else:
                self._add(site, ("", OTHER_CALLS), after, before)
            return
        is_apart = site.port not in PARAMETER_PORTS and event.call < self._apart
        call = event.call if is_apart else OTHER_CALLS
        for path, tensor in event.leaves:
            if not is_floating(tensor):
                continue
            leaf = "" if path == "[0]" and PORTS[site.port].of == "input" else path  # as a statistic's hook names the leaf
            self._add_next(site, (leaf, call), tensor)

    def _add_next(self, site: Site, place: tuple[str, int], tensor: Tensor) -> None:
        """Add the pair of *tensor* and its predecessor in the same place."""
        previous = self.history.previous((site, *place))
        if previous is not None:
            self._add(site, place, tensor, previous)
        self.history.remember((site, *place), tensor)

    def _add(self, site: Site, place: tuple[str, int], tensor: Tensor, previous: Tensor) -> None:
        rows = self._rows.setdefault(site, {})
        row = rows.get(place)
        if row is None:
            row = rows[place] = self._table.allocate(1, tensor.device)[0]
        elif row.device != tensor.device:
            row = rows[place] = self._table.move(row, tensor.device)
        self._table.add(row, tensor.detach(), previous.detach())

    def places(self, site: Site) -> list[tuple[str, int, Tensor]]:
        """Return the leaf, the call and the row of each row at *site*."""
        return [(leaf, call, row) for (leaf, call), row in self._rows.get(site, {}).items()]


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
        scope: how much of the training the rows are of.
        keys: says which rows of other ranks join; None if none do.
    """

    scope: Scope = "global"
    keys: RowKeys | None = None

    def __init__(
        self,
        lens: Lens,
        statistic: RowStatistic,
        kind: Kind,
        ports: tuple[Port, ...],
        *,
        calls_apart: int = 0,
        hidden: bool = False,
    ) -> None:
        self.family = lens.name + _SUFFIX[kind]
        self.kind = kind
        self.statistic = statistic
        self.hidden = hidden
        self.norms: frozenset[str] = frozenset()
        self.is_sequence = isinstance(statistic, PairStatistic) and (
            statistic.compares_updates or any(port != "update" for port in ports)
        )
        self._one_in = lens.one_in
        self._ports = ports
        self.table = Table(statistic)
        self._apart = calls_apart
        self._pairs = _Pairs(self.table, calls_apart) if isinstance(statistic, PairStatistic) else None
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
            calls_apart=self._apart,
        )
        self.attachment.observe(model, include, None, self._ports, name)

    # Time

    def attach(self, pace: Pace) -> None:
        """Put the hooks in. A first step begins; see :meth:`begin_step`."""
        self.attachment.attach(resting=not self._is_active(pace))

    def begin_step(self, pace: Pace, *, in_code: bool) -> None:
        """Observe the step that begins, or rest in it, by *pace*.

        Args:
            pace: of the model.
            in_code: any lens may observe the step. Compiled code has one graph for such steps, and one for all others, whatever
                number of lenses rest in it.
        """
        self.attachment.go_on(self._is_active(pace), in_code=in_code)

    def _is_active(self, pace: Pace) -> bool:
        if self.kind == "evaluation":
            return True
        return pace.in_pair if self.is_sequence else pace.is_chosen(self._one_in)

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
        calls: list[int] = []
        rows: list[Tensor] = []
        orders: list[int] = []
        sizes: list[float] = []
        hooks: list[SiteHook] = []
        for site, call, row, hook in self._rows():
            sites.append(site)
            calls.append(call)
            rows.append(row)
            orders.append(order.get(hook.name, order.get(hook.name.rpartition(".")[0], len(order))))
            sizes.append(hook.size_factor(site.port))
            hooks.append(hook)
        layout = Layout(sites, calls, orders, self.scope)
        joined = zip(sites, calls, hooks, strict=True)
        micro_step = self.kind == "micro_step"
        keys = None if self.keys is None else self.keys.of(self.family, self.table.statistic, joined, micro_step=micro_step)
        return RowIndex(
            self.family,
            self.table.statistic,
            layout,
            self.table.positions(rows),
            tuple([site.port for site in sites]),
            np.array(sizes),
            keys,
        )

    def _rows(self) -> Iterator[tuple[Site, int, Tensor, SiteHook]]:
        """Yield the site, the call, the row and the hook of each row that has a place."""
        if self._pairs is None:
            yield from self.attachment.rows()
            return
        for hook in self.attachment.hooks:
            for site in hook.sites.values():
                yield from ((site.at(leaf), call, row, hook) for leaf, call, row in self._pairs.places(site))

    def rows_by_port(self) -> Mapping[Port, tuple[int, int]]:
        """Return how many rows there are for each port, and their bytes."""
        found: dict[Port, tuple[int, int]] = {}
        for site, _, row, _ in self._rows():
            rows, size = found.get(site.port, (0, 0))
            found[site.port] = rows + 1, size + row.numel() * row.element_size()
        return found

    def coverage(self, added: Mapping[int, int]) -> Coverage:
        """Return which sites were really observed, and why the others were not; *added* are the additions to rows of its table."""
        if self.attachment.attached:
            self.attachment.rescan()
        return Coverage.of(self.attachment, added)
