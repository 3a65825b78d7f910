"""Join the data of logged steps with those of other ranks, in the writer thread, before rows are finished."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sonde.inspector.measurement.row_index import RowIndex
from sonde.inspector.pipeline.batch import NORMS, Batch, Join, PendingScalar, RawRows
from sonde.inspector.pipeline.finishing import Arrays
from sonde.inspector.ranks import Participation
from sonde.rows import Scalar, Scope
from sonde.site import Site
from sonde.stats import HostCopy, Joining, Key, Merged, MergedRows, Offer, Piece, RankRows, Total, unmerged
from sonde.warn import WarnOnce

WITHIN_STEP = 1024
"""How far the places of two steps in the training are apart: further moments of a step lie between."""

AT_THE_END = WITHIN_STEP - 1

_INTERVAL, _END = "every", "end"
_AT_ONCE = 3  # how often in a row what others wait for is tried
Made = TypeVar("Made")
_ALIKE = 1e-9  # relative difference up to which squares are the same: of parameters that are, see KeyUnion.differing
_Taken = tuple[Batch, Arrays]


class Merging:
    """Joins batches with those of other ranks: the batches of a logged step become one offer, which all ranks make.

    What comes between two logged steps waits for the second, since a rank may evaluate alone while the others wait for it to go
    on with the training. A number joins the numbers of the same step, whatever offer it was in.

    Args:
        part: how this process takes part in the run.
        joining: the way to the merger of the offers. Until the ranks have met, rows are of this rank.
        norms: returns the norms of the steps before some batches (None: all norms), as squares.
        problems: notes each loss of ranks, and why nothing is joined any more.
        lost: called with an error that does not go away, and the number of batches that are lost by it.
        begun: returns what is called once rows are joined, or None.

    Attributes:
        counted: by row index, how often something was added here to each row.
        interval: the place of a logged step, and the number of steps between logged ones that rank 0 has chosen then.
        has_failed: whether ranks were lost, so that nothing is joined from then on.
        all_have_ended: whether all ranks that are left have made their last offers, and they were joined.
        apart: by family and site, why its rows stay of this rank: other ranks hold other values under its name.
    """

    def __init__(
        self,
        part: Participation,
        joining: Joining,
        norms: Callable[[Sequence[Batch] | None], list[PendingScalar]],
        problems: WarnOnce,
        lost: Callable[[Exception, int], None],
        begun: Callable[[], Callable[[], None] | None],
    ) -> None:
        self.counted: dict[RowIndex, npt.NDArray[np.float64]] = {}
        self.interval = (-1, 0)
        self.has_failed = False
        self.all_have_ended = False
        self.apart: dict[tuple[str, Site], str] = {}
        self._noted: set[tuple[str, str]] = set()
        self._told: set[str] = set()  # the norms of which each rank tells the others its own
        self._joining = joining
        self._begun = begun
        self._own_until = -1  # the place of the last offer that was not merged with those of other ranks
        self._joined_after: int | None = None  # the place after which offers are merged
        self._members: Sequence[int] = ()  # those that have joined the last offer
        self._silence = ""  # why this rank records nothing more
        self._is_apart = True  # the last offer was not merged, and the ranks may still meet
        self._norms = norms
        self._problems = problems
        self._lost = lost
        self._part = part
        self._waiting: list[_Taken] = []
        self._last = self._step = -1
        self._base = (0, 0)  # the epoch and the step that were logged last

    def add(self, batch: Batch, arrays: Arrays) -> Iterator[_Taken]:
        """Take a batch; yield what is joined with it. Finish each before the next is asked for."""
        self._waiting.append((batch, arrays))
        if batch.ends_interval:
            yield from self._joined()

    def end(self) -> Iterator[_Taken]:
        """Yield all that waits, and the last norms. The other ranks go on without this one."""
        yield from self._joined(is_end=True)
        self._joining.close(self._ending if self._step >= 0 else "")

    @property
    def joins(self) -> bool:
        """Whether rows are joined now, or the next ones will be."""
        return self._joining.merger is not None and not self.has_failed

    @property
    def has_begun(self) -> bool:
        """Whether the ranks have met and agreed from when on rows are joined."""
        return self._joined_after is not None

    @property
    def members(self) -> Sequence[int]:
        """The ranks whose rows are joined: all, but those that were lost."""
        merger = self._joining.merger
        return range(self._part.size) if merger is None else merger.members

    @property
    def _ending(self) -> str:
        return f"{self._part.name} ended after step {self._step}"

    def _joined(self, *, is_end: bool = False) -> Iterator[_Taken]:
        waiting, self._waiting = self._waiting, []
        together: list[_Taken] = []
        for batch, arrays in waiting:
            together.append((batch, arrays))
            if batch.when is not None:
                before = [each for each, _ in together]
                yield from self._offered(together, batch.when, steadily(partial(self._norms, before)))
                together = []
        if is_end:
            norms, when = steadily(lambda: self._norms(None)), self._last // WITHIN_STEP * WITHIN_STEP + AT_THE_END
            yield from self._offered(together, when, norms, is_end=True)
        elif together:  # without other ranks nothing need wait
            yield from self._offered(together, self._last, [])

    def _offered(
        self, together: Sequence[_Taken], when: int, norms: Sequence[PendingScalar], *, is_end: bool = False
    ) -> Iterator[_Taken]:
        """Offer batches as the data of one moment, *when*; yield them joined with those of the other ranks."""
        try:
            yield from self._merged_with_others(together, when, norms, is_end=is_end)
        except Exception as error:
            self._lost(error, len(together))

    def _merged_with_others(
        self, together: Sequence[_Taken], when: int, norms: Sequence[PendingScalar], *, is_end: bool
    ) -> Iterator[_Taken]:
        """As :meth:`_offered`; whatever raises before or after the data is merged is tried again at once."""
        self._last = when
        self._step = max([self._step, *(batch.moment[1] for batch, _ in together)])
        base = self._base
        self._base = next((batch.moment for batch, _ in reversed(together) if batch.ends_interval), base)
        found = [_Norm(each) for each in _by_name(norms)]
        own, of_all = (found, []) if self._is_apart else ([], found)  # of the step before
        offer, counted = steadily(lambda: self._offer(together, when, of_all, base, is_end=is_end))
        for index, counts in counted:
            self.counted[index] = self.counted[index] + counts if index in self.counted else counts
        merged = self._merged(offer)
        if merged.members and self._members and merged.members != self._members:
            of_all = []  # who was lost has taken its squares of the step before with it
        yield from steadily(lambda: self._found(together, when, of_all, own, merged, is_end=is_end))
        self._members = merged.members

    def _offer(
        self, together: Sequence[_Taken], when: int, of_all: Sequence[_Norm], base: tuple[int, int], *, is_end: bool
    ) -> tuple[Offer, list[tuple[RowIndex, npt.NDArray[np.float64]]]]:
        """Return what is offered, and how often something was added to each row of it."""
        counted: list[tuple[RowIndex, npt.NDArray[np.float64]]] = []
        blocks: list[RankRows] = []
        totals: list[Total] = []
        for batch, arrays in together:
            for raw in batch.rows:
                rows = raw.index.rows_in(arrays[raw.blocks])
                counted.append((raw.index, rows[:, 0].copy()))
                keys = raw.index.keys
                blocks.append(RankRows(raw.index.statistic, (None,) * len(rows) if keys is None else keys, rows))
            totals += [_total(scalar, scalar.read_total(arrays), base) for scalar in _pending(batch)]
            if batch.interval:
                totals.append(Total(_INTERVAL, batch.interval if self._part.rank == min(self.members) else math.nan, how="lowest"))
        if is_end:
            totals.append(Total(_END, 1.0, how="sum"))
        totals += [total for norm in of_all for total in norm.totals(base, self._part, self._told)]
        return Offer(when, blocks, totals, label=f"step {self._step}", is_last=is_end), counted

    def _found(
        self,
        together: Sequence[_Taken],
        when: int,
        of_all: Sequence[_Norm],
        own: Sequence[_Norm],
        joined: Merged,
        *,
        is_end: bool,
    ) -> list[_Taken]:
        """Return batches with what has become of their rows and scalars, and the norms."""
        merged, numbers = iter(joined.blocks), (_Number(*total) for total in joined.totals)
        taken: list[_Taken] = []
        for batch, arrays in together:
            made: list[npt.NDArray[np.float64]] = list(arrays)
            found = [each for raw in batch.rows for each in self._rows(raw, next(merged), made, arrays)]
            scalars = [next(numbers).of(scalar) for scalar in _pending(batch)]
            if batch.interval:
                chosen = next(numbers).value  # NaN where the first rank that is left did not log this step
                self.interval = when, self.interval[1] if math.isnan(chosen) else round(chosen)
            taken.append((replace(batch, rows=found, scalars=[each for each in scalars if each is not None]), made))
        self.all_have_ended = is_end and next(numbers).value == len(joined.members)
        last = [norm.scalar(numbers, self._part, joined.members, self._told) for norm in of_all] + [norm.alone for norm in own]
        if last:
            taken.append((Batch(HostCopy.of([]), scalars=[each for each in last if each is not None]), ()))
        return taken

    def _merged(self, offer: Offer) -> Merged:
        """Return what has become of *offer*."""
        merger = self._joining.merger
        if merger is not None and self._joined_after is None:
            self._joined_after = merger.begin(self._own_until, f"step {self._base[1]}")
            if not merger.failed and (begun := self._begun()) is not None:
                begun()
        if merger is None or self._joined_after is None or (offer.when <= self._joined_after and not merger.failed):
            self._own_until = max(self._own_until, offer.when)
            self._is_apart = True
            merged = replace(unmerged(offer, self._part.rank), failed=self._joining.failed)
        else:
            self._is_apart = False
            merged = merger.merge(offer)
        if merged.lost and not merged.failed:
            left = self._part.named(*self.members)
            self._problems.add(f"{merged.lost}: from step {self._step} on {left} go on joined")
        if merged.failed and not (offer.is_last and merged.failed == self._ending):
            self.has_failed = True
            who = "each rank records numbers of its own"
            if merger is not None and len(merger.sample) < len(merger.members):
                who = f"{len(merger.sample)} of {len(merger.members):,} ranks record numbers of their own, and the others none"
                if merger.is_silent:
                    self._silence = f"nothing of this rank from step {self._step} on: {who}"
            self._problems.note(f"{merged.failed}: from step {self._step} on {who}")
        return merged

    def _rows(self, raw: RawRows, merged: MergedRows, made: list[npt.NDArray[np.float64]], arrays: Arrays) -> Iterator[RawRows]:
        """Yield the rows that have become of *raw*, and add them to the arrays *made*: joined ones, and those of this rank."""

        def rows(index: RowIndex, values: npt.NDArray[np.float64], chosen: npt.NDArray[np.bool_] | None) -> RawRows:
            if chosen is not None and not chosen.all():
                values = values.copy()
                values[~chosen, 0] = 0  # as if nothing had been added
            made.append(values)
            return replace(raw, index=index, blocks=slice(len(made) - 1, len(made)), ranks=merged.ranks)

        def keys(chosen: npt.NDArray[np.bool_]) -> list[Key | None]:
            return [None if raw.index.keys is None else raw.index.keys[place] for place in np.flatnonzero(chosen).tolist()]

        written = merged.ranks > 0
        joined, own_rows = written & merged.is_merged, written & ~merged.is_merged
        if joined.any():
            yield rows(raw.index.joined, merged.rows, joined)
        if own_rows.any():
            yield replace(rows(raw.index.alone, merged.rows, own_rows), alone=_join_of(keys(own_rows)))
        if merged.differs.any() and raw.role == "hooks":
            for place, key in zip(np.flatnonzero(merged.differs).tolist(), keys(merged.differs), strict=True):
                site = raw.index.layout.site[place]
                if (raw.index.family, site) not in self._noted:
                    self._noted.add((raw.index.family, site))
                    self.apart[raw.index.family, Site.parse(site).at("")] = _WHY[_join_of([key])]
        if self._silence and raw.role == "hooks":
            self.apart.update({(raw.index.family, Site.parse(site).at("")): self._silence for site in raw.index.layout.site})
        if self._part.rows_beside and raw.index.joins and not raw.hidden:
            beside = rows(raw.index.beside, raw.index.rows_in(arrays[raw.blocks]), None)
            yield replace(beside, norms=frozenset(), ranks=None)


def steadily(make: Callable[[], Made]) -> Made:
    """Return what *make* returns. Where it raises it is called again at once, three times in all; then the error is raised."""
    for _ in range(_AT_ONCE - 1):
        try:
            return make()
        except Exception:
            continue
    return make()


_HOW: Mapping[Join, Literal["mean", "lowest", "max"]] = {"mean": "mean", "lowest": "lowest", "max": "max"}
_WHY: Mapping[Join, str] = {
    "part": "numbers of this rank alone: ranks hold other parts of the model under its name. Norms over all parameters are of all",
    "own": "numbers of this rank alone: other ranks hold other values of it. Norms over all parameters are each rank's own",
    "shard": "numbers of this rank's part alone: other ranks hold other values of it. There are no norms over all parameters",
}


def _join_of(keys: Sequence[Key | None]) -> Join:
    """Return how the squares of rows that join none join those of other ranks, by the keys of the rows."""
    held = [key for key in keys if key is not None]
    if len(held) < len(keys) or any(isinstance(key.piece, Piece) and not key.piece.is_whole for key in held):
        return "shard"
    return "part" if all(key.is_spread for key in held) else "own"


def _by_name(norms: Sequence[PendingScalar]) -> list[list[PendingScalar]]:
    """Return *norms* of one name and step together."""
    found: dict[tuple[str, int, int], list[PendingScalar]] = {}
    for norm in norms:
        found.setdefault((norm.name, norm.epoch, norm.step), []).append(norm)
    return list(found.values())


class _Norm:
    """A norm over all parameters at one step, on its way to those of the other ranks.

    Args:
        parts: its squares: those that ranks add up, and those that are of this rank alone.
    """

    def __init__(self, parts: Sequence[PendingScalar]) -> None:
        squares = {part.join: part.total for part in parts}
        self._scalar = replace(parts[0], join="sum", total=squares.pop("sum", 0.0))
        self._own = sum(squares.values())
        self._kind = max((NORMS.index(join) for join in squares), default=0)
        self._tells = False

    @property
    def alone(self) -> Scalar:
        """The norm of what this rank has."""
        return self._scalar.of(self._scalar.total + self._own, "rank")

    def totals(self, base: tuple[int, int], part: Participation, told: set[str]) -> Iterator[Total]:
        """Yield what the other ranks need: the squares to add up, whether others are this rank's own, and if so these."""
        common = _total(self._scalar, self._scalar.total, base)
        yield common
        yield Total(f"{common.name} apart", self._kind, how="max")
        if self._kind:
            told.add(self._scalar.name)
        self._tells = self._scalar.name in told
        if self._tells:
            for rank in range(part.size):
                yield Total(f"{common.name} of {rank}", self._own if rank == part.rank else 0.0, how="sum")

    def scalar(self, numbers: Iterator[_Number], part: Participation, members: Sequence[int], told: set[str]) -> Scalar | None:
        """Return the norm from what has become of the totals; None where another rank writes it.

        It is of all parameters, each once, where they make up one model. Where ranks have models of their own, it is that of this
        rank's, written by the first of the ranks whose models are alike; there is none where these models are in shards.
        """
        common, kind = next(numbers), next(numbers)
        each = [next(numbers).value for _ in range(part.size)] if self._tells else []
        if not common.is_merged:  # other ranks were lost
            return self.alone if common.ranks else None
        if not kind.value:
            return common.of(self._scalar)
        told.add(self._scalar.name)
        join = NORMS[round(kind.value)]
        if join == "shard" or not each:  # at a step at which this rank did not know yet that others hold what it does not
            return None
        if join == "part":
            held = [each[rank] for rank in members]
            apart = [own for place, own in enumerate(held) if not any(_is_alike(own, other) for other in held[:place])]
            return common._replace(value=common.value + sum(apart)).of(self._scalar)
        alike = [rank for rank in members if rank == part.rank or _is_alike(each[rank], self._own)]
        return self._scalar.of(common.value + self._own, "rank", len(alike)) if min(alike) == part.rank else None


def _is_alike(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_ALIKE, abs_tol=0.0)


class _Number(NamedTuple):
    """What has become of a total: its value; the number of ranks that it is of, 0 where another rank writes it; if it is joined."""

    value: float
    ranks: int
    is_merged: bool

    def of(self, scalar: PendingScalar) -> Scalar | None:
        """Return *scalar* with this value; None where another rank writes it."""
        scope: Scope = "global" if self.is_merged else "rank"
        return scalar.of(self.value, scope, self.ranks) if self.ranks else None


def _pending(batch: Batch) -> list[PendingScalar]:
    return [each for each in batch.scalars if isinstance(each, PendingScalar)]


def _total(scalar: PendingScalar, total: float, base: tuple[int, int]) -> Total:
    """Return *scalar* as a total; its name holds when it is, seen from *base*, so that names stay the same from step to step.

    The *base* is the logged step before: a rank that has ended after it names its last numbers as the others do that go on.
    """
    name = f"{scalar.name} {scalar.epoch - base[0]} {scalar.step - base[1]}"
    return Total(name, total, scalar.count, _HOW.get(scalar.join, "sum"))
