"""Find, after a loss, which ranks are left, and connect these: through the store of the job, for as long as it answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable

from sonde.errors import RankError
from sonde.stats.distributed.channel import LEFT, Beats, Channel, LostError, Sign, tell, told
from sonde.stats.distributed.group import Group

_BEATS = 2.5  # signs of life that a rank may be late with, where the others are to go on without it
_WINDOW = 5.0  # seconds that it may be late with them, at least
_NAP, _LONGEST_NAP = 0.01, 1.0
_BLIPS = 3  # how often in a row ranks connect again that have lost none: their network lets nothing through
_STOPPED = 1.0  # seconds between two looks, of which more do not count: this process was stopped

_CAME, _DECIDES, _MEMBERS, _HERE = "came", "decides", "members", "here"


def regrouped(channel: Channel, is_leaving: Callable[[], bool]) -> tuple[Channel | None, str]:
    """Return a channel of the ranks that are left of one that is lost, None where this rank goes on alone; and why, in words.

    A rank is left if it gives signs of life and was not told to be gone: it need not have noticed the loss. The ranks that have
    noticed choose one that decides who is left, and follow it; who is not among those goes on alone. Then all of them are waited
    for, and whoever is lost meanwhile costs another decision.

    Args:
        channel: the lost one.
        is_leaving: returns whether this rank is about to leave for good.
    """
    group, lost, whys, blips = channel.group, channel.lost, list[str](), 0
    try:
        while lost is not None:
            if not whys or group.rank not in lost.ranks:
                whys.append(str(lost))
            if is_leaving() or channel.seconds_left <= 0:
                break
            left, also = _left(group, lost, channel)
            whys += also
            if left is None or left.size == 1:
                break
            blips = blips + 1 if left.size == group.size else 0
            if blips > _BLIPS:
                break
            group = left
            lost = _awaited(group, channel, is_leaving)
            if lost is None:
                try:
                    return Channel(group, channel.timeout, before=channel), _joined(whys)
                except RankError as error:
                    lost = LostError(str(error))
            tell(group, lost)
            lost = told(group)
    except RuntimeError:  # the store does not answer, or went with the process that held it
        pass
    return None, _joined(whys)


def _joined(whys: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(whys))


class _Watch:
    """Which ranks of a group are silent. Time in which this process was stopped does not count.

    Attributes:
        seconds: after which a rank that gives no sign is silent.
        alive: the ranks that have given one.
        left: those that have said with one that they leave, by rank.
        passed: seconds since the beginning.
    """

    def __init__(self, group: Group, beats: Beats, timeout: float) -> None:
        self.seconds = min(max(_BEATS * beats.every, _WINDOW), timeout)
        self.alive: set[int] = set()
        self.left: dict[int, Sign] = {}
        self.passed = 0.0
        self._group = group
        self._beats = beats
        self._looked = time.monotonic()
        self._next = 0.0
        self._numbers: dict[int, int] = {}
        self._since: dict[int, float] = {}

    def tick(self) -> None:
        """Note that time has passed."""
        now = time.monotonic()
        self.passed += min(now - self._looked, 2 * _STOPPED)
        self._looked = now

    def look(self) -> list[int]:
        """Read the signs, if it is time to; return the ranks that are silent now."""
        self.tick()
        if self.passed >= self._next:
            self._next = self.passed + self._beats.every / 2
            for rank, sign in self._beats.read(self._group).items():
                if sign.number == LEFT:
                    self.left[rank] = sign
                elif self._numbers.setdefault(rank, sign.number) != sign.number:
                    self.alive.add(rank)
                if sign.number != self._numbers.get(rank) or rank not in self._since:
                    self._numbers[rank], self._since[rank] = sign.number, self.passed
        return [rank for rank, since in self._since.items() if rank in self.left or self.passed - since > self.seconds]


def _left(group: Group, lost: LostError, channel: Channel) -> tuple[Group | None, list[str]]:
    """Return the group of the ranks that are left of *group*, None where this one is not of them; and who else has left."""
    store = group.store.part("left")
    store.check_held()
    if group.rank in lost.ranks:
        return None, []
    store.add(_CAME, 1)
    watch, mine, nap = _Watch(group, channel.beats, channel.timeout), str(group.rank), _NAP
    others = set(range(group.size)) - {group.rank, *lost.ranks}
    first, begin = store.change(_DECIDES, "", mine), 0.0
    while not store.has(_MEMBERS):
        if channel.seconds_left <= 0:
            return None, []
        if first == mine:
            silent = set(watch.look())
            if store.add(_CAME, 0) > len(others) or others <= watch.alive | silent:
                also = [_how_left(group, rank, sign) for rank, sign in watch.left.items() if rank in others]
                store.change(_MEMBERS, "", json.dumps([sorted({group.rank, *others} - silent), also]))
        else:
            watch.tick()
            if watch.passed - begin > 2 * watch.seconds:  # the rank that was to decide is lost, too
                first, begin = store.change(_DECIDES, first, mine), watch.passed
        time.sleep(nap)
        nap = min(2 * nap, _LONGEST_NAP, channel.beats.every)
    members, also = json.loads(store.get(_MEMBERS))
    if group.rank not in members:
        return None, also
    named = [group.members[rank] for rank in members]
    return Group(store.part("group"), members.index(group.rank), named, group.seconds), also


def _how_left(group: Group, rank: int, sign: Sign) -> str:
    return f"{group.named(rank)} ended after {sign.label}" if sign.label else f"{group.named(rank)} has ended"


def _awaited(group: Group, channel: Channel, is_leaving: Callable[[], bool]) -> LostError | None:
    """Wait until all ranks of *group* have come: one that is busy comes with its next offer, and gives signs of life until then.

    Returns:
        Who is lost, None if all have come.
    """
    store = group.store
    store.check_held()
    store.add(_HERE, 1)
    watch, nap = _Watch(group, channel.beats, channel.timeout), _NAP
    while store.add(_HERE, 0) < group.size:
        if is_leaving() or channel.seconds_left <= 0:
            return LostError(f"{group.named()} has ended", [group.rank])
        if lost := told(group):
            return lost
        if silent := watch.look():
            left = [_how_left(group, rank, watch.left[rank]) for rank in silent if rank in watch.left]
            still = [rank for rank in silent if rank not in watch.left]
            why = [f"{group.named(*still)} showed no sign of life for {watch.seconds:.4g} s"] if still else []
            return LostError(_joined([*left, *why]), silent)
        time.sleep(nap)
        nap = min(2 * nap, _LONGEST_NAP, channel.beats.every)
    return None
