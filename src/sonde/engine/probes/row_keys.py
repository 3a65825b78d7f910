"""Say which rows of this process join those of other ranks: a key for each row, or none."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from torch import nn

from sonde.engine.probes.site_hook import SiteHook
from sonde.engine.torch_api.data_parallel import data_parallel_ranks, spread_parameters
from sonde.engine.torch_api.modules import holds_parameters_elsewhere
from sonde.site import GRADIENT_PORTS, MODULE_PORTS, Site
from sonde.stats import Key, Piece, RowStatistic, Statistic


class RowKeys:
    """Makes the keys of the rows of one model.

    Rows at the ports of a module join over the ranks that run the model on batches of their own; rows of parameters over all
    ranks, each piece once. Rows that cannot join have no key: those of statistics that do not merge, those of parts of a
    parameter where each tensor counts as one, and gradients between the steps of the optimizer, which each rank has of its own.

    Args:
        model: whose rows.
        ranks: those that run *model* on batches of their own; None: find them.
        size: the number of all ranks.

    Attributes:
        is_flattened: whether FSDP1 keeps the parameters: each rank has a piece of one flat tensor, and the rows of parameters join
            none.
        reasons: by family and site, why its rows stay of this rank.
    """

    def __init__(self, model: nn.Module, ranks: Sequence[int] | None, size: int) -> None:
        found = data_parallel_ranks(model) if ranks is None else ranks
        self._first = Key.ALL if found is None or len(found) == size else min(found)
        self.is_flattened = any(map(holds_parameters_elsewhere, model.modules()))
        self._spread = spread_parameters(model)
        self._sorts: dict[int, str] = {}
        self.reasons: dict[tuple[str, Site], str] = {}

    def of(
        self,
        family: str,
        statistic: RowStatistic,
        rows: Iterable[tuple[Site, int, SiteHook]],
        *,
        micro_step: bool = False,
        moment: str = "",
    ) -> tuple[Key | None, ...]:
        """Return the key of each row, given by its site, its call and its hook; None for a row that stays of this rank.

        Rows of one site at another *moment* of a step are of another tensor: gradients before and after the loop averages them.
        """
        if not isinstance(statistic, Statistic):
            why = f"numbers of this rank alone: the pairs of {type(statistic).__name__} do not join those of other ranks"
            sites = [site for site, _, _ in rows]
            self.reasons.update({(family, site.at("")): why for site in sites})
            return (None,) * len(sites)
        is_of_whole = any(field.per == "call" and field.merge == "sum" for field in statistic.fields)
        return tuple(
            [self._key((family, str(site), call, moment), site, hook, is_of_whole, micro_step) for site, call, hook in rows]
        )

    def _key(self, place: tuple[str, str, int, str], site: Site, hook: SiteHook, is_of_whole: bool, micro_step: bool) -> Key | None:
        if site.port in MODULE_PORTS:
            return Key(place, self._first, None, self._sort(hook))
        why = "gradients of this rank alone: they are not yet those of all ranks"
        if self.is_flattened:
            why = "numbers of what FSDP1 keeps of it on this rank alone: fully_shard (FSDP2) has rows of whole parameters"
        elif not (micro_step and site.port in GRADIENT_PORTS):
            piece = Piece.of(hook.target)
            if piece is not None and (piece.is_whole or not is_of_whole):
                return Key(place, Key.ALL, piece, str(piece.whole), is_spread=id(hook.target) in self._spread)
            why = "numbers of this rank's part alone: those of parts do not make those of the whole"
        self.reasons[place[0], site.at("")] = why
        return None

    def _sort(self, hook: SiteHook) -> str:
        """Return what a module must have in common with that of another rank: its class, and its parameters with their shapes."""
        module = hook.target
        known = self._sorts.get(id(module))
        if known is None:
            held = [] if self.is_flattened else module.named_parameters()  # each rank has other shapes of them
            shapes = [(name, tuple(parameter.shape)) for name, parameter in held]
            known = self._sorts[id(module)] = f"{type(module).__name__} {zlib.crc32(repr(shapes).encode()):08x}"
        return known
