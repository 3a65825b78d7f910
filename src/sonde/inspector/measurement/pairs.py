"""Statistics of a tensor and the one before it: fed by events, since the one before has to be kept."""

from __future__ import annotations

from torch import Tensor

from sonde.engine import Event, Site
from sonde.stats import PairStatistic, Table

__all__ = ["Pairs"]


class Pairs:
    """A subscriber that adds pairs to rows of *table*.

    At the port ``update`` the pair is the parameter after and before the step. Elsewhere it is a tensor and its predecessor at
    the same site, of which a copy is kept until :meth:`forget`. Of a structured value the first floating-point tensor counts.

    Attributes:
        rows: by site.
    """

    def __init__(self, statistic: PairStatistic, table: Table) -> None:
        self.rows: dict[Site, Tensor] = {}
        self.__qualname__ = type(statistic).__qualname__  # by which it is named if it fails
        self._statistic = statistic
        self._table = table
        self._previous: dict[Site, Tensor] = {}

    def forget(self) -> None:
        """The next tensor of each site has no predecessor."""
        self._previous.clear()

    def __call__(self, event: Event) -> None:
        if event.phase == "recompute":
            return
        if event.site.port == "update":
            before, after = event.value
            self._add(event.site, after, before)
            return
        tensor = next((leaf for _, leaf in event.leaves if leaf.is_floating_point() or leaf.is_complex()), None)
        if tensor is None:
            return
        previous = self._previous.get(event.site)
        if previous is not None:
            self._add(event.site, tensor, previous)
        self._previous[event.site] = tensor.detach().clone()

    def _add(self, site: Site, tensor: Tensor, previous: Tensor) -> None:
        row = self.rows.get(site)
        if row is None:
            row = self.rows[site] = self._table.allocate(1, tensor.device)[0]
        elif row.device != tensor.device:
            row = self.rows[site] = self._table.move(row, tensor.device)
        self._table.add(row, tensor.detach(), previous.detach())
