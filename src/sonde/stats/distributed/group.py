"""Find the other ranks, agree with them, and name a missing rank: all by the store of the default process group."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sonde.errors import ArgumentError, RankError
from sonde.warn import warn_user

if TYPE_CHECKING:
    from sonde.stats.distributed.torch_c10d import Store


T = TypeVar("T")

_NAP = 0.005  # seconds between two looks into the store, at first
_LONGEST_NAP = 0.1
_LONGEST = 120  # characters of a value in an error


def in_words(ranks: Sequence[int]) -> str:
    """Return ``rank 0``, ``ranks 0, 1 and 3`` or ``ranks 0 to 7``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    shown = [str(rank) for rank in ranks[:8]]
    if len(ranks) > 8:
        return f"ranks {', '.join(shown)} and {len(ranks) - 8} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def _met(store: Store, rank: int, size: int, seconds: float) -> tuple[int, list[int]]:
    """Return the number of the meeting, and the ranks that missed it.

    Rank 0 opens each meeting and, when all have come or the time is over, says who was there. A rank that comes too late waits
    for the next meeting; so ranks need not have called as often as each other before.
    """
    if rank == 0:
        meeting = store.add("meetings", 1)
        keys = [f"{meeting}/here/{each}" for each in range(1, size)]
        _until(lambda: store.has(*keys), seconds)
        missing = [each for each, key in enumerate(keys, start=1) if not store.has(key)]
        store.set(f"{meeting}/missing", json.dumps(missing))
        return meeting, missing

    def joined() -> int:
        meeting = store.add("meetings", 0)
        known = [f"{meeting}/here/{rank}", f"{meeting}/missing"]
        return 0 if not meeting or any(store.has(key) for key in known) else meeting

    meeting = _until(joined, seconds)
    if not meeting:
        return 0, [0]
    store.set(f"{meeting}/here/{rank}", "")
    if not _until(lambda: store.has(f"{meeting}/missing"), 2 * seconds):
        return meeting, [0]
    missing = json.loads(store.get(f"{meeting}/missing"))
    return meeting, missing


def _until(found: Callable[[], T], seconds: float) -> T:
    """Return what *found* gives, once that is true or *seconds* are over."""
    end, nap = time.monotonic() + seconds, _NAP
    while True:
        got = found()
        if got or time.monotonic() >= end:
            return got
        time.sleep(min(nap, max(end - time.monotonic(), 0.0)))
        nap = min(2 * nap, _LONGEST_NAP)


class Group:
    """Ranks that act together. Every method is called on all ranks, in the same order, and raises the same error on each.

    Values travel as JSON through the store of the job, so that a rank that does not answer costs *seconds* and is named.

    Attributes:
        rank: of this process in the group, counted from 0.
        size: the number of ranks.
        members: the ranks of the job that the group is of, as messages name them.
        seconds: how long to wait for an answer.
        store: where the ranks of this group leave notes for each other.
    """

    @staticmethod
    def join(name: str, *, members: Sequence[int] | None = None, seconds: float = 20.0, alone: bool = True) -> Group | None:
        """Return the group of all ranks of this job, or of some, which call ``join`` with the same *name* at about the same time.

        Args:
            name: what the ranks meet for, in words for the error: ``"sonde.watch"``.
            members: the ranks of the job that the group is of, ascending, this one among them; None: all.
            seconds: how long to wait for the others.
            alone: where not all ranks come: warn and return None, instead of raising an error.

        Returns:
            The group; None where it is of one process, or where not all ranks came.

        Raises:
            ArgumentError: ``WORLD_SIZE`` says that there are several processes, but there is no process group.
            RankError: not all ranks came, and *alone* is false.
        """
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            world = os.environ.get("WORLD_SIZE", "1")
            if world.isdecimal() and int(world) > 1:
                raise ArgumentError(
                    f"WORLD_SIZE is {world}, but torch.distributed has no process group: call "
                    f"torch.distributed.init_process_group() before {name}, or unset WORLD_SIZE if the processes do not train "
                    "together"
                )
            return None
        everyone = range(distributed.get_world_size())
        members = tuple(everyone if members is None else members)
        if len(members) == 1:
            return None
        from sonde.stats.distributed.torch_c10d import Store

        of_some = hashlib.blake2b(repr(members).encode(), digest_size=8).hexdigest()  # a name of any number of ranks is short
        store = Store.of_job(name if len(members) == len(everyone) else f"{name} {of_some}")
        rank, size = members.index(distributed.get_rank()), len(members)
        meeting, missing = _met(store, rank, size, seconds)
        if not missing:
            return Group(store.part(str(meeting)), rank, members, seconds)
        who = (
            f"{in_words([members[each] for each in missing])} of {size} did not call"
            if 0 in missing
            else f"only {in_words([members[each] for each in range(size) if each not in missing])} of {size} called"
        )
        problem = f"{who} {name} within {seconds:.4g} s"
        if not alone:
            raise RankError(f"{problem}: call it on all ranks")
        warn_user(f"{problem}: what rank {members[rank]} records is of this rank alone")
        return None

    def __init__(self, store: Store, rank: int, members: Sequence[int], seconds: float) -> None:
        self.store = store
        self.rank = rank
        self.size = len(members)
        self.members = tuple(members)
        self.seconds = seconds
        self._asked = 0
        self._parts = 0

    def again(self) -> Group:
        """Return a group of the same ranks, whose notes are apart. All ranks call this in the same order."""
        self._parts += 1
        return Group(self.store.part(f"part {self._parts}"), self.rank, self.members, self.seconds)

    def named(self, *ranks: int) -> str:
        """Return *ranks* of the group in words, by their numbers in the job: ``rank 3``; without *ranks*, this one."""
        return in_words([self.members[rank] for rank in ranks or (self.rank,)])

    def agree(self, what: Mapping[str, Any]) -> None:
        """Return if *what* is equal on all ranks.

        Raises:
            RankError: it is not: the message names the first key that differs, the ranks, and both values.
        """
        self._concluded({key: json.loads(json.dumps(value)) for key, value in what.items()}, self._refuse_difference)

    def broadcast(self, make: Callable[[], T]) -> T:
        """Return on all ranks what *make*, called on rank 0 alone, returns there: JSON.

        Raises:
            RankError: *make* has raised on rank 0 (there the exception itself is raised).
        """
        found: T = self._called(make if self.rank == 0 else None, lambda answers: answers[0])
        return found

    def together(self, do: Callable[[], T]) -> T:
        """Call *do* on each rank; return what it returns there once all have returned.

        Raises:
            RankError: *do* has raised on another rank; the message names the rank and the error (on that rank the exception itself
                is raised).
        """
        mine: list[T] = []
        self._called(lambda: mine.append(do()), lambda answers: None)
        return mine[0]

    def gather(self, value: Any, *, seconds: float | None = None) -> dict[int, Any]:
        """Return on rank 0 the *value* of each rank that has answered within *seconds*; on other ranks nothing, without waiting.

        The one method that suits the end of a program: nothing is raised where other ranks are gone.
        """
        self._asked += 1
        keys = [f"{self._asked}/{rank}" for rank in range(self.size)]
        try:
            self.store.check_held()
            self.store.set(keys[self.rank], json.dumps(value))
            if self.rank > 0:
                return {}
            _until(lambda: self.store.has(*keys), self.seconds if seconds is None else seconds)
            return {rank: json.loads(self.store.get(key)) for rank, key in enumerate(keys) if self.store.has(key)}
        except RuntimeError:  # the store went with the process that held it
            return {self.rank: value} if self.rank == 0 else {}

    def _called(self, do: Callable[[], T] | None, judge: Callable[[list[Any]], Any]) -> Any:
        """Call *do*, if it is given; return on all ranks what *judge* makes of the answers of all."""
        raised: BaseException | None = None
        answer: dict[str, Any] = {}
        if do is not None:
            try:
                answer["value"] = do()
            except BaseException as error:
                raised = error
                answer["error"] = f"{type(error).__name__}: {error}"

        def judged(answers: list[dict[str, Any]]) -> Any:
            for rank, given in enumerate(answers):
                if "error" in given:
                    raise RankError(f"{self.named(rank)}: {given['error']}")
            return judge([given.get("value") for given in answers])

        try:
            return self._concluded(answer, judged)
        except RankError:
            if raised is not None:
                raise raised from None
            raise

    def _concluded(self, value: Any, judge: Callable[[list[Any]], Any]) -> Any:
        """Return on every rank what rank 0 concludes from the values of all ranks, or raise the same error on every rank."""
        self._asked += 1
        keys = [f"{self._asked}/{rank}" for rank in range(self.size)]
        verdict = f"{self._asked}/verdict"
        self.store.set(keys[self.rank], json.dumps(value))
        if self.rank == 0:
            _until(lambda: self.store.has(*keys), self.seconds)
            missing = [rank for rank, key in enumerate(keys) if not self.store.has(key)]
            try:
                if missing:
                    raise RankError(f"{self.named(*missing)} of {self.size} did not answer within {self.seconds:.4g} s")
                found = {"value": judge([json.loads(self.store.get(key)) for key in keys])}
            except RankError as error:
                found = {"error": str(error)}
            self.store.set(verdict, json.dumps(found))
        elif not _until(lambda: self.store.has(verdict), 2 * self.seconds):
            raise RankError(f"{self.named(0)} of {self.size} did not answer within {2 * self.seconds:.4g} s")
        found = json.loads(self.store.get(verdict))
        if "error" in found:
            raise RankError(found["error"])
        return found["value"]

    def _refuse_difference(self, answers: list[dict[str, Any]]) -> None:
        """Raise if not all *answers* are equal."""
        first = answers[0]
        for key in dict.fromkeys(key for answer in answers for key in answer):
            mine = _shown(first, key)
            others = [rank for rank, answer in enumerate(answers) if not _are_alike(answer, first, key)]
            if others:
                alike = [rank for rank in others if _are_alike(answers[rank], answers[others[0]], key)]
                has = "has" if len(alike) == 1 else "have"
                here, there = _from_difference(mine, _shown(answers[others[0]], key))
                raise RankError(
                    f"the ranks do not agree on {key}: {self.named(0)} has {here}, {self.named(*alike)} {has} {there}; give all "
                    "ranks the same"
                )

    def __repr__(self) -> str:
        return f"Group({self.named()}, {self.rank} of {self.size})"


def _are_alike(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    return (key in one) == (key in other) and json.dumps(one.get(key), sort_keys=True) == json.dumps(other.get(key), sort_keys=True)


def _shown(answer: Mapping[str, Any], key: str) -> str:
    if key not in answer:
        return "nothing"
    value = answer[key]
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _from_difference(one: str, other: str) -> tuple[str, str]:
    """Return both texts, of long ones only a piece around the first character in which they differ."""
    at = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other)))

    def piece(text: str) -> str:
        if len(text) <= _LONGEST:
            return text
        start = max(0, at - _LONGEST // 4)
        shown = text[start : start + _LONGEST]
        return f"{'...' if start else ''}{shown}{'...' if start + _LONGEST < len(text) else ''}"

    return piece(one), piece(other)
