"""One statistic of one lens on one model: its hooks, its rows, and which site each row is of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sonde.engine.probes.attachment import Attachment
from sonde.engine.probes.coverage import Coverage
from sonde.engine.probes.site_hook import SiteHook
from sonde.engine.probes.statistic_hooks import StatisticHook
from sonde.engine.probes.step_hooks import size_factor
from sonde.engine.selection import Where
from sonde.errors import ArgumentError
from sonde.inspector.lenses.lens import Lens
from sonde.inspector.measurement.pairs import Pairs
from sonde.run.schema import Layout
from sonde.site import Port, Site
from sonde.stats import PairStatistic, RowStatistic, Table

__all__ = ["Kind", "Measurement", "RowIndex"]

Kind = Literal["step", "micro_step", "evaluation"]
"""When rows are taken: at the end of each logged step, after each backward pass in it, or after evaluation passes."""

Numbers = npt.NDArray[np.float64]

_SUFFIX: dict[Kind, str] = {"step": "", "micro_step": "_micro", "evaluation": "_eval"}
_PASSES: dict[Kind, bool | None] = {"step": True, "micro_step": None, "evaluation": False}


@dataclass(frozen=True, eq=False)
class RowIndex:
    """Which row is of which site, as of one moment; the thread that writes reads it.

    Attributes:
        family: where the rows go.
        statistic: finishes them.
        linear: the numbers that grow in proportion to the tensor.
        layout: the sites.
        index: of each site, the position of its row in all blocks joined.
        ports: of each site its port.
        matrices: of which sites the tensor is a parameter of two dimensions or more.
        sizes: how many times as large as what was measured that is which it stands for: 1, or more for a sample. By site.
    """

    family: str
    statistic: RowStatistic
    linear: tuple[str, ...]
    layout: Layout
    index: npt.NDArray[np.intp]
    ports: tuple[Port, ...]
    matrices: npt.NDArray[np.bool_]
    sizes: Numbers

    def finish(self, moments: Sequence[Sequence[Numbers]]) -> tuple[npt.NDArray[np.bool_], Numbers, dict[str, Numbers]]:
        """Finish the rows of several moments at once.

        Args:
            moments: of each all its blocks.

        Returns:
            Which sites were added to, of shape ``(moments, sites)``. Of these, one moment after the other: how often, of shape
            ``(rows,)``; and their numbers, with the fields that the statistic has recorded beside them.

        Raises:
            ArgumentError: the statistic gives numbers for another number of rows.
        """
        every = np.empty((len(moments), len(self.index), moments[0][0].shape[1]))
        for place, blocks in zip(every, moments, strict=True):
            joined = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
            place[:] = joined.take(self.index, axis=0)
        seen = every[..., 0] != 0
        rows: Numbers = every.reshape(-1, every.shape[2]) if seen.all() else every[seen]
        if not len(rows):
            return seen, rows[:, 0], {}
        with np.errstate(all="ignore"):  # where a statistic divides by zero there is no number, which NaN says
            columns = self.statistic.columns(torch.from_numpy(rows[:, 1:]))
            numbers = self.statistic.finish(columns)
        recorded: tuple[str, ...] = getattr(self.statistic, "recorded", ())
        if (self.sizes != 1).any():
            sizes = np.broadcast_to(self.sizes, seen.shape)[seen]
            for name, power in (self.statistic.growth or {}).items():
                numbers[name] = numbers[name] * sizes**power
        found = {**numbers, **{name: columns[name] for name in recorded}}
        return seen, rows[:, 0].copy(), {name: _checked(name, column, len(rows)) for name, column in found.items()}


def _checked(name: str, column: Any, rows: int) -> Numbers:
    """A column that a statistic gave, if it has a number, or a list, for each row; one number stands for all."""
    values = np.asarray(column)
    if values.ndim == 0:
        return np.full(rows, values)
    if len(values) != rows:
        raise ArgumentError(f"{name!r} has the shape {values.shape}, where there are {rows} rows")
    return values


class Measurement:
    """The attachment of one statistic of a lens, and the rows that it fills.

    Attributes:
        family: where its rows go.
        kind: when they are taken.
        norms: the ports of parameters whose norms over all parameters come from its rows.
        hidden: its rows are for these norms alone.
        pairs: what feeds them, if the statistic is one of pairs.
        is_sequence: its rows compare each tensor with the one before it, which is of the step before.
    """

    def __init__(self, lens: Lens, statistic: RowStatistic, kind: Kind, ports: tuple[Port, ...], *, hidden: bool = False) -> None:
        self.family = lens.name + _SUFFIX[kind]
        self.kind = kind
        self.statistic = statistic
        self.hidden = hidden
        self.norms: frozenset[str] = frozenset()
        self.is_sequence = isinstance(statistic, PairStatistic) and any(port != "update" for port in ports)
        self._linear = lens.linear
        self._ports = ports
        self.table = Table(statistic)
        self.pairs = Pairs(statistic, self.table) if isinstance(statistic, PairStatistic) else None
        self._rowed: RowIndex | None = None
        self._known: tuple[int, int] = (-1, -1)

    def prepare(self, model: nn.Module, include: Where, name: str, *, strict: bool, update_memory: float) -> None:
        """Choose what to hook; ``attachment.attach()`` does it. Copies for updates take no more bytes than *update_memory*.

        Raises:
            SelectionError: there is nothing to hook.
        """
        self.attachment = Attachment(
            self.statistic if self.pairs is None else self.pairs,  # type: ignore[arg-type]
            strict=strict,
            grad_at_step=self.kind == "step",
            training=_PASSES[self.kind],
            update_memory=update_memory if self.statistic.growth is not None else inf,
            table=self.table if self.pairs is None else None,
        )
        self.attachment.observe(model, include, None, self._ports, name)

    def parameters(self, port: Port) -> set[int]:
        """The parameters that it observes at *port*, by their ids."""
        return {id(hook.target) for hook in self.attachment.hooks if port in hook.sites}

    @property
    def blocks(self) -> list[Tensor]:
        """All its rows."""
        return self.table.blocks

    def rowed(self, order: Mapping[str, int]) -> RowIndex:
        """Which row is of which site now; *order* gives the place of each module."""
        known = (self.table.changes, len(self.attachment.hooks))
        if self._rowed is None or self._known != known:
            self._known = known
            self._rowed = self._look(order)
        return self._rowed

    def forget_order(self) -> None:
        """The order of execution is known better now."""
        self._rowed = None

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
            self._linear,
            layout,
            self.table.positions(rows),
            tuple(site.port for site in sites),
            np.array(matrices, bool),
            np.array(sizes),
        )

    def _rows(self) -> Iterator[tuple[Site, Tensor, SiteHook]]:
        """Every site that has a row, with what sits there."""
        for hook in self.attachment.hooks:
            if isinstance(hook, StatisticHook):
                yield from ((hook.sites[port], row, hook) for port, row in hook.rows.items())
            elif self.pairs is not None:
                yield from ((site, self.pairs.rows[site], hook) for site in hook.sites.values() if site in self.pairs.rows)

    def coverage(self) -> Coverage:
        """What was really observed, and why the rest was not."""
        if self.attachment.attached:
            self.attachment.rescan()
        return Coverage.of(self.attachment)


_ALL_CALLS = -1  # a row is of all calls of a module in the step together
