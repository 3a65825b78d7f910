"""Merge the rows of logged steps over all ranks, in rounds of two collectives."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sonde.errors import RankError
from sonde.stats.distributed.channel import Channel, LostError
from sonde.stats.distributed.group import Group
from sonde.stats.distributed.layout import Ints, KeyList, KeyUnion, digest, own
from sonde.stats.distributed.regrouping import regrouped
from sonde.stats.distributed.rows import Array, Key, Merged, MergedRows, Offer, RankRows, rows_of, totals_of
from sonde.stats.statistic import Statistic

_MOST = 512  # lists of keys that are remembered
_HEAD = 5  # when, minus when, 0 if the keys of a rank have no place in the layout; when and minus when of offers that are the last
_NEVER = 2**62
_SAMPLE = 16  # ranks that keep rows of their own, where nothing can be merged
_MOMENT = 1.0  # seconds in which a thread ends, as a rule
_KEPT = 64  # rounds for which keys that are not offered keep their place


class Merger:
    """Merges the offers of all ranks; one thread of each rank calls :meth:`merge` with one offer after the other.

    A round has two collectives, whatever the number of keys: of the minima, which are led by the step's number, and of the sums.
    Where a rank has new keys, all exchange their keys before; where a rank has no offer for the step that the others are at, its
    rows are empty, and its offer waits for its turn. The last offer of a rank that ends before the others joins the next one of
    these: there they have what belongs to the step before.

    Where a rank is lost, the others regroup, and go on without it: a round that some of them had finished is finished on all of
    them, any other is repeated. Of a parameter whose parts went with the lost rank each keeps its own rows. Where the ranks cannot
    regroup, nothing is merged any more: each of up to 16 ranks, evenly spread, keeps its rows, and the others keep none.

    Args:
        group: of all ranks; on each, a Merger is made at the same place.
        timeout: how many seconds a rank may show no sign of life.
        place: returns how far the training of this rank has come, a number that grows; called in another thread.

    Raises:
        RankError: the ranks could not connect with each other.

    Attributes:
        members: the ranks of *group* that merge, ascending.
    """

    def __init__(self, group: Group, *, timeout: float = 300.0, place: Callable[[], int] = lambda: 0) -> None:
        self._channel = Channel(group.again(), timeout, place)
        self._process = os.getpid()
        self._rank = group.rank
        self.members: tuple[int, ...] = tuple(range(group.size))
        self._failed = ""
        self._lost: list[str] = []  # whom, since the last offer
        self._deadline: tuple[float, float] | None = None
        self._is_leaving = False
        self._why = ""
        self._layout = self._first_layout()
        self._expected: Mapping[tuple[Any, ...], int] | None = None  # before the last loss; None without one
        self._latest = _NEVER  # that all ranks began with
        self._summed = self._exchanges = 0  # how often sums and keys were merged, on the way to one ...
        self._sums = torch.zeros(0, dtype=torch.float64, device="cpu")  # ... and what came of the last sum
        self._held: dict[int, tuple[Statistic, Sequence[Key | None], int]] = {}  # by the id of the keys: the round, too
        self._rounds = 0
        self._total_keys: dict[tuple[str, ...], list[Key]] = {}

    @property
    def failed(self) -> str:
        """Why nothing is merged any more, in words; ``""`` while all is well."""
        if os.getpid() != self._process:
            return "this process was forked from the one that merges"
        return self._failed or ("" if self._channel.lost is None else str(self._channel.lost))

    @property
    def sample(self) -> frozenset[int]:
        """The ranks that keep rows of their own where nothing is merged any more, by their places in :attr:`members`."""
        size = len(self.members)
        chosen = min(size, _SAMPLE)
        return frozenset(number * size // chosen for number in range(chosen))

    @property
    def is_silent(self) -> bool:
        """Whether this rank keeps no rows, since nothing is merged any more and there are many ranks."""
        return bool(self.failed) and self._channel.group.rank not in self.sample

    def begin(self, when: int, label: str = "") -> int:
        """Return the latest *when* of all ranks, after which they merge: each has kept its rows up to its own. Wait for the others.

        Called before the first offer, on all ranks or on none.
        """
        while not self.failed and self._latest == _NEVER:
            latest = torch.tensor([-when], device="cpu")
            try:
                self._channel.beats.tell(when, label)
                self._channel.minimum(latest)
                self._latest = -int(latest)
            except LostError:
                self._regroup()
        return when if self._latest == _NEVER else self._latest

    def merge(self, offer: Offer) -> Merged:
        """Return the rows of *offer*, merged with those of the other ranks of the same step. Wait for these ranks."""
        blocks = [*offer.blocks, rows_of(offer.totals, self._total_keys)]
        while not self.failed:
            try:
                self._channel.beats.tell(offer.when, offer.label)
                if offer.is_last:
                    self._channel.ending = f"{self._channel.group.named()} ended after {offer.label}"
                try:
                    members, merged = self._merged(offer, blocks)
                    return Merged(merged[:-1], totals_of(offer.totals, merged[-1]), lost=self._news(), members=members)
                except LostError:
                    self._regroup()
            except Exception as error:  # the others wait for collectives that this rank would not be in
                self.close(f"{self._channel.group.named()} could not join {offer.label}: {type(error).__name__}: {error}")
        return replace(unmerged(offer, self._rank, is_silent=self.is_silent), failed=self.failed, lost=self._news())

    def _news(self) -> str:
        """Return which ranks were lost since the last offer, in words."""
        lost, self._lost = self._lost, []
        return "; ".join(lost)

    def hurry(self, seconds: float) -> None:
        """Wait no longer than *seconds* from now on for other ranks: the training has ended. Called in any thread."""
        self._deadline = time.monotonic() + seconds, seconds
        self._channel.hurry(seconds)

    def close(self, why: str = "") -> None:
        """Leave the other ranks, which go on without this one, and do not wait for it. Idempotent.

        Args:
            why: a sentence for the other ranks, as ``"rank 1 ended after step 30"``.
        """
        if os.getpid() == self._process:
            self._why, self._is_leaving = self._why or why, True
            self._channel.close(why)

    # Losses

    def _regroup(self) -> None:
        """Go on with the ranks that are left, or for good without them."""
        if self._failed:
            return
        self._expected = {**(self._expected or {}), **self._layout.pieces}
        while True:
            before = self._channel
            channel, why = regrouped(before, lambda: self._is_leaving)
            if channel is None:
                self._failed = why
                before.close()
                return
            self._channel = channel
            channel.deadline = self._deadline or channel.deadline
            if self._is_leaving:  # said in another thread, of the channel before
                channel.close(self._why)
            places = dict(zip(before.group.members, self.members, strict=True))
            self.members = tuple([places[rank] for rank in channel.group.members])
            self._lost.append(why)
            try:
                self._catch_up()
            except LostError:
                continue
            self._layout = self._first_layout()
            return

    def _first_layout(self) -> KeyUnion:
        """Return the layout of no keys."""
        group = self._channel.group
        nothing = KeyList([])
        return KeyUnion(group.rank, [nothing.text], [0] * group.size, nothing.pieces)

    def _catch_up(self) -> None:
        """Take from the ranks that had come further than this one before the loss what they have: one step, at most."""
        channel = self._channel
        sums = self._sums.numpy().tobytes()
        expected = json.dumps([[*key, pieces] for key, pieces in (self._expected or {}).items()]).encode()
        head = torch.tensor([-self._latest, self._summed, self._exchanges, len(sums), len(expected)], device="cpu")
        heads = torch.stack(channel.gathered(head)).numpy()
        self._latest = -int(heads[:, 0].max())
        root = int(heads[:, 1].argmax())
        if (heads[:, 1] < heads[root, 1]).any():
            found = channel.sent(sums, int(heads[root, 3]), root)
            self._sums, self._summed = torch.frombuffer(bytearray(found), dtype=torch.float64), int(heads[root, 1])
        root = int(heads[:, 2].argmax())
        if (heads[:, 2] < heads[root, 2]).any():
            found = channel.sent(expected, int(heads[root, 4]), root)
            self._expected = {tuple(key): pieces for *key, pieces in json.loads(found)}
            self._exchanges = int(heads[root, 2])

    # Rounds

    def _merged(self, offer: Offer, blocks: Sequence[RankRows]) -> tuple[tuple[int, ...], list[MergedRows]]:
        """Return the ranks that have merged *offer*, and its rows."""
        when = offer.when
        self._rounds += 1
        for block in blocks:
            if isinstance(block.statistic, Statistic):
                self._held[id(block.keys)] = block.statistic, block.keys, self._rounds
        if len(self._held) > _MOST:  # a caller makes new lists of keys at every step
            self._forget()
        while True:
            fits = all(self._layout.positions(block) is not None for block in blocks)
            head = [_NEVER, _NEVER, fits, when, -when] if offer.is_last else [when, -when, fits, _NEVER, _NEVER]
            minima = self._layout.minima(blocks if fits else (), head)
            self._channel.minimum(minima)
            least, most, all_fit, least_ending, most_ending = minima[:_HEAD].tolist()
            if not all_fit:
                self._exchange()
                continue
            first = least if least != _NEVER else least_ending
            has_turn = when == first or (offer.is_last and when < first)
            here = blocks if has_turn else ()
            if (least != _NEVER and -most > first) or (least_ending != _NEVER and -most_ending > first):
                minima = self._layout.minima(here, head)  # of those whose turn it is
                self._channel.minimum(minima)
            low: Ints = minima.numpy()[_HEAD:]
            sums = self._layout.sums(here, low)
            layout, members, summed = self._layout, self.members, self._summed
            try:
                self._channel.sum(sums)
                self._sums, self._summed = sums, summed + 1
            except LostError:
                self._regroup()
                if self._summed == summed:  # no rank that is left has finished the round
                    if self.failed:
                        raise
                    continue
            if has_turn:
                total: Array = self._sums.numpy()
                differing = layout.differing(low, total)
                return members, [layout.merged(block, low, total, differing) for block in blocks]

    def _forget(self) -> None:
        """Forget keys that were not offered for long."""
        self._held = {key: held for key, held in self._held.items() if held[2] > self._rounds - _KEPT}
        self._layout.forget(self._held)

    def _exchange(self) -> None:
        """Make a layout of the keys of all ranks."""
        self._forget()
        channel = self._channel
        mine = KeyList((statistic, keys) for statistic, keys, _ in self._held.values())
        head = torch.tensor([digest(mine.text), len(mine.text), digest(mine.pieces.tobytes()), len(mine.pieces)], device="cpu")
        heads = [tuple(each.tolist()) for each in channel.gathered(head)]
        digests = [each[0] for each in heads]
        different = list(dict.fromkeys(digests))
        roots = [digests.index(each) for each in different]
        texts = [channel.sent(mine.text, heads[root][1], root) for root in roots]
        alike: dict[tuple[int, ...], list[int]] = {}
        for rank, each in enumerate(heads):
            alike.setdefault(each, []).append(rank)

        def pieces() -> Iterator[tuple[Sequence[int], Ints]]:
            for (_, _, _, keys), ranks in alike.items():
                sent = channel.sent(mine.pieces.tobytes(), keys * mine.pieces.itemsize, ranks[0])
                yield ranks, np.frombuffer(sent, np.int64)

        others, add_up = (pieces(), channel.sum) if len(alike) > 1 else (None, None)
        numbers = [different.index(each) for each in digests]
        self._layout = KeyUnion(channel.group.rank, texts, numbers, mine.pieces, others, add_up, self._expected)
        self._exchanges += 1


def unmerged(offer: Offer, rank: int, *, is_silent: bool = False) -> Merged:
    """Return what becomes of *offer* where nothing is merged: the rows stay those of *rank*; one that *is_silent* writes none."""
    alone = [own(block, rank) for block in (*offer.blocks, rows_of(offer.totals, {}))]
    if is_silent:
        alone = [replace(block, ranks=np.zeros_like(block.ranks)) for block in alone]
    return Merged(alone[:-1], totals_of(offer.totals, alone[-1]))


class Joining:
    """The way to a merger, in a thread of its own: this rank trains, whatever another rank does or leaves undone.

    Args:
        meet: returns the group, once all ranks are here; ends soon when the event is set that it is given. Called in the thread.
        in_common: what must be alike on all ranks; None: it is.
        leave: leaves the meeting within some seconds, and returns whether all ranks are here.
        timeout, place: of the merger.

    Attributes:
        group: of all ranks; None until they have met.
        merger: None until the ranks are connected.
        failed: why they will not be, in words; ``""`` while they may.
    """

    def __init__(
        self,
        meet: Callable[[threading.Event], Group | None],
        in_common: Mapping[str, Any] | None,
        leave: Callable[[float], bool],
        timeout: float,
        place: Callable[[], int],
    ) -> None:
        self.group: Group | None = None
        self.merger: Merger | None = None
        self.failed = ""
        self._meet = meet
        self._in_common = in_common
        self._leave = leave
        self._timeout = timeout
        self._place = place
        self._leaving = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="sonde ranks meet", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            group = self._meet(self._leaving)
            if group is None:
                return
            self.group = group
            if self._in_common is not None:
                group.agree(self._in_common)
            merger = Merger(group, timeout=self._timeout, place=self._place)
        except RankError as error:
            self.failed = str(error)
        except Exception as error:
            self.failed = f"the ranks could not connect with each other: {type(error).__name__}: {error}"
        else:
            with self._lock:
                if self._leaving.is_set():
                    merger.close()
                else:
                    self.merger = merger

    def wait(self, seconds: float) -> None:
        """Return when the ranks are connected, when they will not be, or after *seconds*."""
        self._thread.join(seconds)

    def hurry(self, seconds: float) -> None:
        """The training has ended: meet no more, and wait for ranks that were met no longer than *seconds*."""
        begin = time.monotonic()
        if self.merger is None:
            if self._leave(seconds):
                self._thread.join(seconds)  # it connects: the others wait for that
            else:
                self._leaving.set()
        if self.merger is not None:
            self.merger.hurry(max(seconds - (time.monotonic() - begin), 0.0))

    def close(self, why: str = "") -> None:
        """Leave the other ranks; *why*: a sentence for them. Idempotent."""
        self._leaving.set()
        with self._lock:
            merger = self.merger
        if merger is None:
            self._thread.join(_MOMENT)
        else:
            merger.close(why)
