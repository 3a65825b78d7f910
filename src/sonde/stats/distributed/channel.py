"""Collectives that end: with the result, or with an error that names the lost rank and the cause."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from sonde.errors import RankError
from sonde.stats.distributed.group import Group, MissingRankError
from sonde.stats.distributed.torch_c10d import HOLDER_ENDED, Gloo, SilentStoreError

_SLICE = timedelta(seconds=0.2)  # between two looks whether the wait is to end
_LOOK = 1.0  # seconds between two looks into the store, in a wait
_BEAT = 2.0  # seconds between two signs of life, of up to _MANY ranks
_SELDOM = 8  # times in the time-out that a rank which waits reads the signs of life of all others: they are many
_DYING = 0.1  # seconds in which all connections of a process close that dies
_MANY = 256
_LEAST = 0.1  # seconds to connect in, however little is left
_GONE = "gone"
LEFT = -1
"""The number of the last sign of life of a rank that has left the others."""


class LostError(Exception):
    """The end of a channel; the text is the cause, a sentence about ranks.

    Attributes:
        ranks: those of the group that are gone, as far as they are known.
    """

    def __init__(self, why: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(why)
        self.ranks = tuple(ranks)


class Channel:
    """A gloo group of the ranks of *group*, with which nothing else is done, and signs of life in the store.

    A rank that is busy elsewhere, as with a long evaluation, keeps the others waiting, since its signs of life go on. A rank that
    shows none for *timeout* seconds is lost, as is one whose connection closes. From then on every operation raises
    :class:`LostError` with the same words on all ranks; the signs of life go on, for the channel of the ranks that are left.

    Args:
        timeout: seconds.
        place: returns how far the training of this rank has come.
        before: the channel of more ranks that was lost; the signs of life are its.

    Attributes:
        beats: the signs of life.
        deadline: when the wait for other ranks ends, and how many seconds it may take, once the training has ended.
        lost: why nothing more can be done; None while all is well.
        ending: a sentence that says where this rank has ended, once the last wait has begun: from then on this rank does not wait
            for others that have come further.

    Raises:
        RankError: not all ranks came.
    """

    def __init__(self, group: Group, timeout: float, place: Callable[[], int] = lambda: 0, before: Channel | None = None) -> None:
        self.group = group
        self.timeout = timeout
        self.deadline: tuple[float, float] | None = None
        self.lost: LostError | None = None
        self.ending = ""
        group.store.be_patient(timeout / 4)
        every = min(_BEAT * max(1.0, group.size / _MANY), timeout / 4)
        self.beats: Beats = Beats(group, place, every) if before is None else before.beats
        if before is not None:
            self.deadline = before.deadline
        try:
            self._gloo = group.together(lambda: self._connected(begins=before is None))
        except MissingRankError:
            if before is None:
                self.beats.stop()
            raise
        except RuntimeError as error:
            if before is None:
                self.beats.stop()
            raise RankError(f"the {group.size} ranks could not connect with each other (gloo): {_first_line(error)}") from error
        weakref.finalize(self, Channel._exit, weakref.ref(self))  # when the program ends, after the exit functions

    def _connected(self, *, begins: bool) -> Gloo:
        """Return this rank's part of the group; with a first sign of life where the job *begins*."""
        if begins:
            self.beats.start()
        group = self.group
        seconds = max(min(group.seconds, self.seconds_left), _LEAST)
        return Gloo(group.store.part("gloo"), group.rank, group.size, seconds)

    @staticmethod
    def _exit(reference: weakref.ref[Channel]) -> None:
        channel = reference()
        if channel is not None:
            channel.close()

    @property
    def seconds_left(self) -> float:
        """How long other ranks may be waited for."""
        return math.inf if self.deadline is None else self.deadline[0] - time.monotonic()

    def hurry(self, seconds: float) -> None:
        """Wait for other ranks no longer than *seconds* from now on: the training has ended. Called in any thread."""
        self.deadline = time.monotonic() + seconds, seconds
        self.group.store.hurry(seconds)

    def minimum(self, numbers: Tensor) -> None:
        """Reduce *numbers* to the minimum over all ranks, in place."""
        self._done(lambda: self._gloo.reduce(numbers, distributed.ReduceOp.MIN))

    def sum(self, numbers: Tensor) -> None:
        """Add up *numbers* over all ranks, in place."""
        self._done(lambda: self._gloo.reduce(numbers, distributed.ReduceOp.SUM))

    def gathered(self, numbers: Tensor) -> list[Tensor]:
        """Return the *numbers* of each rank, as many on each."""
        found = [torch.empty_like(numbers) for _ in range(self.group.size)]
        self._done(lambda: self._gloo.gather(found, numbers))
        return found

    def sent(self, text: bytes, size: int, root: int) -> bytes:
        """Return the *size* bytes of *text* on the rank *root*."""
        if size == 0:
            return b""
        mine = self.group.rank == root
        numbers = (
            torch.frombuffer(bytearray(text), dtype=torch.uint8) if mine else torch.empty(size, dtype=torch.uint8, device="cpu")
        )
        self._done(lambda: self._gloo.broadcast(numbers, root))
        return numbers.numpy().tobytes()

    def check(self) -> None:
        """Raise, without waiting, if a rank has said that it has left.

        Raises:
            LostError: it has.
        """
        if self.lost is None:
            with contextlib.suppress(RuntimeError):  # the store went with the process that held it: the next operation says so
                if gone := told(self.group):
                    self._leave(gone)
        if self.lost is not None:
            raise self.lost

    def cause(self, error: Exception) -> LostError:
        """Return which rank is lost, if one is, after an operation of others has failed with *error*. Waits for a sign of life."""
        return self.lost or _Wait(self).who_left(error)

    def _done(self, begin: Callable[[], Any]) -> None:
        if self.lost is not None:
            raise self.lost
        try:
            self._wait(begin)
        except LostError as error:
            self._leave(error, wait=True)
            raise

    def _wait(self, begin: Callable[[], Any]) -> None:
        wait = _Wait(self)
        try:
            work = begin()
        except RuntimeError as error:
            raise wait.who_left(error) from error
        while True:
            had_ended = work.is_completed()
            try:
                work.wait(_SLICE)
            except RuntimeError as error:
                if had_ended:
                    raise wait.who_left(error) from error
                if not work.is_completed():  # else it has ended since the slice was over: whether well, the next wait says
                    wait.check()
            else:
                return

    def close(self, why: str = "") -> None:
        """Leave for good, so that other ranks wait no more. Idempotent.

        Args:
            why: a sentence about ranks; by default this rank has ended.
        """
        self._leave(LostError(why or f"{self.group.named()} has ended", [self.group.rank]))
        self.beats.stop()
        self.group.store.rest()

    def _leave(self, lost: LostError, *, wait: bool = False) -> None:
        """Leave the group, and say why, if no rank has before. Idempotent.

        Args:
            lost: why.
            wait: the other ranks leave, too: wait a moment for the end of an operation.
        """
        if self.lost is not None:
            return
        self.lost = lost
        with contextlib.suppress(RuntimeError):  # the store went with the process that held it
            self.group.store.check_held()
            tell(self.group, lost)
        pending = self._gloo.pending
        if wait and pending is not None and self.deadline is None:
            until = time.monotonic() + _LOOK
            while not pending.is_completed() and time.monotonic() < until:
                time.sleep(0.01)
        self._gloo.close()


def tell(group: Group, lost: LostError) -> None:
    """Tell the ranks of *group* why it is at an end, unless a rank has told them before."""
    group.store.change(_GONE, "", f"{' '.join(map(str, lost.ranks))}|{lost}")


def told(group: Group) -> LostError | None:
    """Return why *group* is at an end, None if it is not."""
    group.store.check_held()
    if not group.store.has(_GONE):
        return None
    ranks, why = group.store.get(_GONE).split("|", 1)
    return LostError(why, list(map(int, ranks.split())))


class _Wait:
    """One wait for other ranks, and its limits."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._next = time.monotonic() + min(_LOOK, channel.beats.every)
        self._next_signs = self._next
        self._silent_since: float | None = None  # the store
        self._looked = time.monotonic()
        self._was_gone = False
        self._was_ahead = False
        self._seen: dict[int, tuple[int, float]] = {}  # of each rank: the number of the last sign, and when it was new

    def check(self) -> None:
        """Raise if the wait is to end. Time in which this process was stopped, as the whole job may have been, does not count.

        Raises:
            LostError: a rank has left or shows no sign of life, or the time is over.
        """
        stopped = time.monotonic() - self._looked
        if stopped > _LOOK:
            self._seen = {rank: (number, since + stopped) for rank, (number, since) in self._seen.items()}
            if self._silent_since is not None:
                self._silent_since += stopped
        try:
            self._check()
        finally:
            self._looked = time.monotonic()

    def _check(self) -> None:
        channel, now = self._channel, time.monotonic()
        if channel.lost is not None:  # closed by another thread
            raise channel.lost
        if channel.deadline is not None and now > channel.deadline[0]:
            why = f"{self._who_is_behind()} did not come to the last steps within {channel.deadline[1]:.4g} s of the end"
            raise LostError(why, [channel.group.rank])
        if now < self._next:
            return
        self._next = now + min(_LOOK, channel.beats.every)
        reads_signs = now >= self._next_signs
        try:
            if gone := told(channel.group):
                if self._was_gone:  # what it had still sent has come by now
                    raise gone
                self._was_gone = True
            self._silent_since = None
            if not reads_signs:
                return
            self._next_signs = now + (channel.beats.every if channel.ending else channel.timeout / _SELDOM)
            signs = channel.beats.read(channel.group)
        except SilentStoreError as error:
            self._silent_since = self._silent_since or now
            if now - self._silent_since > channel.timeout:
                raise LostError(f"{error} for {channel.timeout:.4g} s") from error
            return
        except RuntimeError:
            return  # the store went with the process that held it: its connections close, too
        if channel.ending:
            is_ahead = any(sign.place > channel.beats.place() for sign in signs.values())
            if is_ahead and self._was_ahead:  # it may wait for this rank, and offers no more
                raise LostError(channel.ending, [channel.group.rank])
            self._was_ahead = is_ahead
        for rank, sign in signs.items():
            if rank not in self._seen or self._seen[rank][0] != sign.number:
                self._seen[rank] = sign.number, now
        still = [rank for rank, (_, since) in self._seen.items() if now - since > channel.timeout]
        if still:
            raise LostError(
                f"{channel.group.named(*still)} showed no sign of life for {channel.timeout:.4g} s{_place(still, signs)}", still
            )

    def _who_is_behind(self) -> str:
        """Return in words the ranks whose last sign of life is of a step before that of this rank."""
        with contextlib.suppress(RuntimeError):
            signs = self._channel.beats.read(self._channel.group)
            behind = [rank for rank, sign in signs.items() if sign.when < self._channel.beats.when]
            if behind:
                return f"{self._channel.group.named(*behind)}{_place(behind, signs)}"
        return "another rank"

    def who_left(self, error: Exception) -> LostError:
        """Return which rank has left, and that in words, after a connection was closed with *error*."""
        channel = self._channel
        time.sleep(_DYING)
        try:
            if gone := told(channel.group):
                return gone
            before = channel.beats.read(channel.group)
            until = time.monotonic() + 1.5 * channel.beats.every
            while time.monotonic() < until:
                time.sleep(_DYING)
                if gone := told(channel.group):
                    return gone
            signs = channel.beats.read(channel.group)
            still = [rank for rank, sign in signs.items() if sign.number == before[rank].number]
        except RuntimeError as gone_store:
            return LostError(str(gone_store) if isinstance(gone_store, SilentStoreError) else HOLDER_ENDED)
        if still:
            why = f"{channel.group.named(*still)} died, or closed the connection{_place(still, signs)}"
            return LostError(why, still)
        return LostError(f"a connection was closed ({_first_line(error)})")


class Sign(NamedTuple):
    """A sign of life: its number, LEFT of the last; how far the training had come; and the step of the rank's last offer."""

    number: int
    place: int
    when: int
    label: str


class Beats:
    """Signs of life: a thread that counts in the store.

    Attributes:
        every: seconds between two signs.
        when: the step that this rank merges.
        place: returns how far the training of this rank has come.
    """

    def __init__(self, group: Group, place: Callable[[], int], every: float) -> None:
        self.every = every
        self.place = place
        self.when = -1
        self._label = ""
        self._store = group.store
        self._name = f"alive/{group.members[group.rank]}"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sonde sign of life", daemon=True)

    def start(self) -> None:
        self._beat(0)
        self._thread.start()

    def tell(self, when: int, label: str) -> None:
        """Tell *when* and *label* of this rank's last offer in the next sign."""
        self.when, self._label = when, label

    def _beat(self, number: int) -> None:
        self._store.set(self._name, f"{number} {self.place()} {self.when} {self._label}")

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(self.every):
            number += 1
            try:
                self._store.check_held()
                self._beat(number)
            except SilentStoreError:
                continue
            except RuntimeError:
                return  # the store went with the process that held it

    def stop(self) -> None:
        """Give no sign any more, and say so. Idempotent."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(1.0)
        with contextlib.suppress(RuntimeError):
            self._store.check_held()
            self._beat(LEFT)

    def read(self, group: Group) -> dict[int, Sign]:
        """Return the last sign of each other rank of *group*, which is of ranks that give signs."""
        others = [rank for rank in range(group.size) if rank != group.rank]
        texts = self._store.get_all([f"alive/{group.members[rank]}" for rank in others])
        signs = [text.split(" ", 3) for text in texts]
        return {rank: Sign(int(sign[0]), int(sign[1]), int(sign[2]), sign[3]) for rank, sign in zip(others, signs, strict=True)}


def _place(ranks: Sequence[int], signs: Mapping[int, Sign]) -> str:
    """Return in words, in brackets, how far one of *ranks* has come; ``""`` if it is not known."""
    labels = {signs[rank].label for rank in ranks} - {""}
    return f" (last seen at {labels.pop()})" if len(labels) == 1 else ""


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].split(". This is typically")[0] if str(error).strip() else type(error).__name__
