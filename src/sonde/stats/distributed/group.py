"""Find the other ranks, agree with them, and name a missing rank: all by the store of the default process group."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from sonde.errors import ArgumentError, RankError

if TYPE_CHECKING:
    from sonde.stats.distributed.torch_c10d import Store


T = TypeVar("T")

_LONGEST = 120  # characters of a value in an error
_MOMENT = 0.1  # seconds
_TELLING = 30.0  # seconds between two messages that say who is missing
_TURN = 2.0  # seconds in which rank 0, if it is here, begins, before another rank does
_LOOKS = 320  # a second, of all ranks that train meanwhile, at most
_SELDOM = 16  # times in which a rank has looked for as long as it waits then for the next time

State = Literal["", "all", "ahead", "late", "over", "closed"]
"""Of a meeting: it waits; all came in time; a rank went ahead without the others; then all came; then no longer; a rank left."""

_LEFT = "left"  # the key of a meeting that is set once its state is not "" any more
_BEGUN = "begun"
_OPEN: tuple[State, ...] = ("", "ahead", "over")


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


class MissingRankError(RankError):
    """A rank that had come did not answer: it is stopped, or gone."""


class Meeting:
    """Where ranks find each other. No rank opens it, and a rank that comes late finds what those have left that went ahead.

    Each rank comes to the first meeting that it was not at and that no rank has left; so ranks need not have called as often as
    each other before. A key in the store holds the state, which changes for all ranks at once.

    Attributes:
        rank: of this process among the *members*, counted from 0.
        size: how many ranks meet.
        members: their ranks in the job, as messages name them.
        state: as this rank has seen it last.
        begins: whether no other rank can have begun what this one is to begin.
    """

    @staticmethod
    def of(name: str, members: Sequence[int] | None = None) -> Meeting | None:
        """Return the meeting of all ranks of this job, or of some, for what *name* says: ``"sonde.watch"``.

        Args:
            name: what the ranks meet for.
            members: the ranks of the job that meet, ascending, this one among them; None: all.

        Returns:
            The meeting; None where it is of one process.

        Raises:
            ArgumentError: ``WORLD_SIZE`` says that there are several processes, but there is no process group.
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
        return Meeting(store, members.index(distributed.get_rank()), members)

    def __init__(self, store: Store, rank: int, members: Sequence[int]) -> None:
        self.rank = rank
        self.size = len(members)
        self.members = tuple(members)
        self.state: State = ""
        self.begins = True
        self._job = store
        self._store = store
        try:
            self._come()
        except RuntimeError:  # without the store no rank finds another
            self.state = "closed"

    def _come(self) -> None:
        """Come to the first meeting that this rank was not at and that is open."""
        last = f"last/{self.rank}"
        number = int(self._job.read(last) or 0)
        while True:
            number += 1
            self._store = self._job.part(str(number))
            if self._look() in ("closed", "all", "late"):
                continue
            self._store.set(f"here/{self.rank}", "")
            if self._store.add("count", 1) == self.size and self._complete() == "closed":
                continue
            self._job.set(last, str(number))
            return

    def _complete(self) -> State:
        """Note that all are here; return the state."""
        if not self._change("", "all"):
            self._change("ahead", "late")
        return self.state

    def _look(self) -> State:
        """Return the state as it is now."""
        self.state = cast(State, self._store.read("state"))
        return self.state

    def _change(self, before: State, after: State) -> bool:
        """Change the state from *before* to *after*, if it is *before*; return whether it is *after* now."""
        self.state = cast(State, self._store.change("state", before, after))
        if self.state == after and not before:
            self._store.set(_LEFT, "")  # not every store wakes those that wait for a key as it changes
        return self.state == after

    def wait(self, seconds: float, *, leave: bool = False) -> State:
        """Wait for the others; where they have not come after *seconds*, go ahead, or *leave*; return the state.

        A meeting that a rank has gone ahead of is waited for no more.
        """
        try:
            if not self.state and not (self._store.wait(_LEFT, seconds) and self._look()):
                self._change("", "closed" if leave else "ahead")
        except RuntimeError:
            self.state = "closed"
        return self.state

    def arrived(self, seconds: float, leaving: threading.Event, tell: Callable[[float], None]) -> bool:
        """Return whether all ranks are here, in a thread while this rank trains. Wait until *leaving*, or a rank leaves.

        Args:
            seconds: how long to wait.
            leaving: ends the waiting.
            tell: called every half minute with the seconds since the beginning.
        """
        begin = time.monotonic()
        told, least = begin + _TELLING, max(_MOMENT, self.size / _LOOKS)
        while self.state == "ahead" and not leaving.is_set():
            now = time.monotonic()
            try:
                if now >= told:
                    told += _TELLING
                    tell(now - begin)
                self._job.check_held()
                state = self._look()
                if state == "ahead" and now - begin > seconds:
                    self._change("ahead", "over")
            except RuntimeError:
                if now - begin > seconds:
                    return False
            leaving.wait(max(least, min((time.monotonic() - begin) / _SELDOM, _TELLING)))
        return self.state == "late"

    def leave(self, seconds: float) -> bool:
        """Leave within *seconds*; return whether all have come before that. Who comes later finds no open meeting. Idempotent."""
        self._job.hurry(seconds)
        with contextlib.suppress(RuntimeError):
            if self.state not in ("all", "late"):
                self._job.check_held()
                any(self._change(state, "closed") for state in _OPEN)
        self._job.rest()
        return self.state in ("all", "late")

    def group(self, seconds: float) -> Group:
        """Return the group of the ranks, which are all here; *seconds*: how long to wait for an answer of one of them."""
        return Group(self._store.part(self.state), self.rank, self.members, seconds)

    def named(self, *ranks: int) -> str:
        """Return *ranks* of those that meet in words, by their numbers in the job; without *ranks*, this one."""
        return in_words([self.members[rank] for rank in ranks or (self.rank,)])

    @property
    def here(self) -> int:
        """How many ranks have come, as far as the store answers."""
        try:
            return self._store.add("count", 0)
        except RuntimeError:
            return 1

    def who_is_missing(self) -> str:
        """Return the beginning of a sentence: ``only rank 0 of 2 called``, or ``rank 0 of 2 did not call``."""
        try:
            here = [each for each in range(self.size) if each == self.rank or self._store.has(f"here/{each}")]
        except RuntimeError:
            here = [self.rank]
        if 0 in here:
            return f"only {self.named(*here)} of {self.size} called"
        return f"{self.named(*[each for each in range(self.size) if each not in here])} of {self.size} did not call"

    # What those have begun that went ahead

    def begun(self, named: str | None, seconds: float) -> dict[str, Any] | None:
        """Return what another rank has begun and this one takes part in; None: it is on this rank to begin, and to tell.

        Args:
            named: what this rank would begin by itself, as a folder. Ranks of an earlier meeting, which this rank was not at, may
                have begun it.
            seconds: how long to wait for a rank that is about to begin.
        """
        self.begins = self.state != "closed"
        try:
            if self.begins:
                if self.rank and self._store.has("here/0"):
                    self._store.wait(_BEGUN, _TURN)
                if self._store.change("first", "", str(self.rank)) != str(self.rank):
                    self.begins = False
                    return self._taken(json.loads(self._store.get(_BEGUN))) if self._store.wait(_BEGUN, seconds) else None
            known = f"begun/{named}"
            if named is not None and self._job.has(known) and not self._job.has(f"{known}/{self.rank}"):
                told = self._job.get(known)
                self._store.set(_BEGUN, told)
                return self._taken(json.loads(told))
        except RuntimeError:
            self.begins = False
        return None

    def _taken(self, told: dict[str, Any]) -> dict[str, Any]:
        """Note that this rank takes its part in what was *told*, once."""
        self._job.set(f"begun/{told['named']}/{self.rank}", "")
        return told

    def tell(self, named: str | None, told: Mapping[str, Any]) -> None:
        """Tell the others, and those that come later, what this rank has begun: plain data."""
        data = json.dumps({**told, "named": named})
        with contextlib.suppress(RuntimeError):
            self._job.set(f"begun/{named}", data)
            self._job.set(f"begun/{named}/{self.rank}", "")
            self._store.set(_BEGUN, data)


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
    def join(name: str, *, seconds: float = 20.0) -> Group | None:
        """Return the group of all ranks of this job, which call ``join`` with the same *name* at about the same time.

        Args:
            name: what the ranks meet for, in words for the error: ``"probe.merged()"``.
            seconds: how long to wait for the others.

        Returns:
            The group; None where there is one process.

        Raises:
            ArgumentError: ``WORLD_SIZE`` says that there are several processes, but there is no process group.
            RankError: not all ranks came.
        """
        meeting = Meeting.of(name)
        if meeting is None:
            return None
        if meeting.wait(seconds, leave=True) == "all":
            return meeting.group(seconds)
        raise RankError(f"{meeting.who_is_missing()} {name} within {seconds:.4g} s: call it on all ranks")

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

    def agree(self, what: Mapping[str, Any], make: Callable[[], T] | None = None) -> T:
        """Return on all ranks what *make*, called on rank 0 alone, returns there, if *what* is equal on all: JSON.

        Raises:
            RankError: *what* is not: the message names the first key that differs, the ranks, and both values. Or *make* has raised
                on rank 0 (there the exception itself is raised).
        """
        raised: list[BaseException] = []

        def judged(answers: list[dict[str, Any]]) -> Any:
            self._refuse_difference(answers)
            try:
                return None if make is None else make()
            except BaseException as error:
                raised.append(error)
                raise RankError(f"{self.named(0)}: {type(error).__name__}: {error}") from error

        try:
            found: T = self._concluded({key: json.loads(json.dumps(value)) for key, value in what.items()}, judged)
        except RankError:
            if raised:
                raise raised[0] from None
            raise
        return found

    def all(self, value: T) -> list[T]:
        """Return on all ranks the *value* of each: JSON, in the order of the ranks.

        Raises:
            RankError: a rank did not answer.
        """
        found: list[T] = self._concluded(value, lambda answers: answers)
        return found

    def together(self, do: Callable[[], T]) -> T:
        """Call *do* on each rank; return what it returns there once all have returned.

        Raises:
            RankError: *do* has raised on another rank; the message names the rank and the error (on that rank the exception itself
                is raised).
        """
        raised: BaseException | None = None
        said = ""
        try:
            found = do()
        except BaseException as error:
            raised, said = error, f"{type(error).__name__}: {error}"
        try:
            self._concluded(said, self._refuse_error)
        except RankError:
            if raised is not None:
                raise raised from None
            raise
        return found

    def gather(self, value: Any, *, seconds: float | None = None, of: Sequence[int] | None = None) -> dict[int, Any]:
        """Return on rank 0 the *value* of each rank that has answered within *seconds*; on other ranks nothing, without waiting.

        The one method that suits the end of a program: nothing is raised where other ranks are gone.

        Args:
            of: the ranks that are waited for; None: all. Of the others, what is there is returned.
        """
        asked = self._ask()
        try:
            self.store.check_held()
            self._answer(asked, value)
            return self._answers(asked, self.seconds if seconds is None else seconds, of) if self.rank == 0 else {}
        except RuntimeError:  # the store went with the process that held it
            return {self.rank: value} if self.rank == 0 else {}

    def _concluded(self, value: Any, judge: Callable[[list[Any]], Any]) -> Any:
        """Return on every rank what rank 0 concludes from the values of all ranks, or raise the same error on every rank."""
        try:
            return self._answered(value, judge)
        except RuntimeError as error:
            if isinstance(error, RankError):
                raise
            raise MissingRankError(f"the store of the job cannot be used: {error}") from error

    def _answered(self, value: Any, judge: Callable[[list[Any]], Any]) -> Any:
        """Return what *judge* makes on rank 0 of the values of all ranks. The requests of a rank are as many of any size."""
        asked = self._ask()
        self._answer(asked, value)
        verdict, judged = f"{asked}/verdict", f"{asked}/judged"
        found: dict[str, Any]
        if self.rank == 0:
            answers = self._answers(asked, self.seconds)
            missing = [rank for rank in range(self.size) if rank not in answers]
            try:
                if missing:
                    raise MissingRankError(f"{self.named(*missing)} of {self.size} did not answer within {self.seconds:.4g} s")
                found = {"value": judge([answers[rank] for rank in range(self.size)])}
            except RankError as error:
                found = {"error": str(error), "missing": missing}
        elif self.store.wait(judged, 2 * self.seconds):
            found = {}
        else:
            found = {"error": f"{self.named(0)} of {self.size} did not answer within {2 * self.seconds:.4g} s", "missing": [0]}
        if found:
            self.store.change(verdict, "", json.dumps(found))  # the first holds for all
            self.store.set(judged, "")
        found = json.loads(self.store.get(verdict))
        if "error" in found:
            raise (MissingRankError if found["missing"] else RankError)(found["error"])
        return found["value"]

    def _ask(self) -> int:
        """Return the number of the next question, which is the same on all ranks."""
        self._asked += 1
        return self._asked

    def _answer(self, asked: int, value: Any) -> None:
        """Give this rank's answer; the last rank that does says so."""
        self.store.set(f"{asked}/{self.rank}", json.dumps(value))
        if self.store.add(f"{asked}/count", 1) == self.size:
            self.store.set(f"{asked}/all", "")

    def _answers(self, asked: int, seconds: float, of: Sequence[int] | None = None) -> dict[int, Any]:
        """Return the answers of the ranks that have given one within *seconds*; wait for those *of* some alone, or of all."""
        keys = {rank: f"{asked}/{rank}" for rank in range(self.size)}
        everyone = of is None or len(of) == self.size
        if not everyone:
            self._wait_for([keys[rank] for rank in of or ()], seconds)
        if not (everyone and self.store.wait(f"{asked}/all", seconds)):
            self.store.set(f"{asked}/all", "")
            keys = {rank: key for rank, key in keys.items() if self.store.has(key)}
        return dict(zip(keys, map(json.loads, self.store.get_all(list(keys.values()))), strict=True))

    def _wait_for(self, keys: Sequence[str], seconds: float) -> None:
        """Wait until *keys* are set, *seconds* at most: after a loss no rank knows that it is the last."""
        end = time.monotonic() + seconds
        for key in keys:
            while not self.store.has(key) and time.monotonic() < end:
                time.sleep(_MOMENT)

    def _refuse_error(self, answers: list[str]) -> None:
        """Raise if one of *answers* tells of an error."""
        for rank, said in enumerate(answers):
            if said:
                raise RankError(f"{self.named(rank)}: {said}")

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
