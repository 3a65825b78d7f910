"""Collectives that end: with the result, or with an error that names the lost rank and the cause."""

from __future__ import annotations

import contextlib
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
_GONE = "gone"


class LostError(Exception):
    """The end of all merging; the text is the cause, a sentence about ranks."""


class Channel:
    """A gloo group of the ranks of *group*, with which nothing else is done, and signs of life in the store.

    A rank that is busy elsewhere, as with a long evaluation, keeps the others waiting, since its signs of life go on. A rank that
    shows none for *timeout* seconds is lost, as is one whose connection closes. From then on every operation raises
    :class:`LostError` with the same words on all ranks.

    Args:
        timeout: seconds.
        place: returns how far the training of this rank has come.

    Attributes:
        ending: a sentence that says where this rank has ended, once the last wait has begun: from then on this rank does not wait
            for others that have come further.

    Raises:
        RankError: not all ranks came.
    """

    def __init__(self, group: Group, timeout: float, place: Callable[[], int] = lambda: 0) -> None:
        self.group = group
        self.timeout = timeout
        self.deadline: tuple[float, float] | None = None
        self.lost: LostError | None = None
        self.ending = ""
        group.store.be_patient(timeout / 4)
        self.beats = _Beats(group, place, min(_BEAT * max(1.0, group.size / _MANY), timeout / 4))
        try:
            self._gloo = group.together(self._connected)
        except MissingRankError:
            self.beats.stop()
            raise
        except RuntimeError as error:
            self.beats.stop()
            raise RankError(f"the {group.size} ranks could not connect with each other (gloo): {_first_line(error)}") from error
        weakref.finalize(self, Channel._exit, weakref.ref(self))  # when the program ends, after the exit functions

    def _connected(self) -> Gloo:
        """Return this rank's part of the group, with a first sign of life, for which others look from then on."""
        self.beats.start()
        return Gloo(self.group.store.part("gloo"), self.group.rank, self.group.size, self.group.seconds)

    @staticmethod
    def _exit(reference: weakref.ref[Channel]) -> None:
        channel = reference()
        if channel is not None:
            channel.close()

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
        numbers = torch.frombuffer(bytearray(text), dtype=torch.uint8) if mine else torch.empty(size, dtype=torch.uint8)
        self._done(lambda: self._gloo.broadcast(numbers, root))
        return numbers.numpy().tobytes()

    def _done(self, begin: Callable[[], Any]) -> None:
        if self.lost is not None:
            raise self.lost
        try:
            self._wait(begin)
        except LostError as error:
            self.close(str(error), wait=True)
            raise

    def _wait(self, begin: Callable[[], Any]) -> None:
        wait = _Wait(self)
        try:
            work = begin()
        except RuntimeError as error:
            raise LostError(wait.who_left(error)) from error
        while True:
            had_ended = work.is_completed()
            try:
                work.wait(_SLICE)
            except RuntimeError as error:
                if had_ended:
                    raise LostError(wait.who_left(error)) from error
                if not work.is_completed():  # else it has ended since the slice was over: whether well, the next wait says
                    wait.check()
            else:
                return

    def close(self, why: str = "", *, wait: bool = False) -> None:
        """Leave, so that other ranks wait no more. Idempotent.

        Args:
            why: a sentence about ranks; by default this rank has ended.
            wait: the other ranks leave, too: wait a moment for the end of an operation.
        """
        if self.lost is not None:
            return
        self.lost = LostError(why or f"{self.group.named()} has ended")
        self.beats.stop()
        with contextlib.suppress(RuntimeError):  # the store went with the process that held it
            self.group.store.check_held()
            self.group.store.change(_GONE, "", str(self.lost))
        pending = self._gloo.pending
        if wait and pending is not None and self.deadline is None:
            until = time.monotonic() + _LOOK
            while not pending.is_completed() and time.monotonic() < until:
                time.sleep(0.01)
        self.group.store.rest()
        self._gloo.close()

    def why_gone(self) -> str:
        """Return why a rank has left, ``""`` if none has."""
        store = self.group.store
        store.check_held()
        return store.get(_GONE) if store.has(_GONE) else ""


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
            raise LostError(f"{self._who_is_behind()} did not come to the last steps within {channel.deadline[1]:.4g} s of the end")
        if now < self._next:
            return
        self._next = now + min(_LOOK, channel.beats.every)
        reads_signs = now >= self._next_signs
        try:
            if why := channel.why_gone():
                if self._was_gone:  # what it had still sent has come by now
                    raise LostError(why)
                self._was_gone = True
            self._silent_since = None
            if not reads_signs:
                return
            self._next_signs = now + (channel.beats.every if channel.ending else channel.timeout / _SELDOM)
            signs = channel.beats.read()
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
                raise LostError(channel.ending)
            self._was_ahead = is_ahead
        for rank, sign in signs.items():
            if rank not in self._seen or self._seen[rank][0] != sign.number:
                self._seen[rank] = sign.number, now
        still = [rank for rank, (_, since) in self._seen.items() if now - since > channel.timeout]
        if still:
            raise LostError(
                f"{channel.group.named(*still)} showed no sign of life for {channel.timeout:.4g} s{_place(still, signs)}"
            )

    def _who_is_behind(self) -> str:
        """Return in words the ranks whose last sign of life is of a step before that of this rank."""
        beats = self._channel.beats
        with contextlib.suppress(RuntimeError):
            signs = beats.read()
            behind = [rank for rank, sign in signs.items() if sign.when < beats.when]
            if behind:
                return f"{self._channel.group.named(*behind)}{_place(behind, signs)}"
        return "another rank"

    def who_left(self, error: Exception) -> str:
        """Return in words which rank has left, after a connection was closed with *error*."""
        channel = self._channel
        time.sleep(_DYING)
        try:
            if why := channel.why_gone():
                return why
            before = channel.beats.read()
            until = time.monotonic() + 1.5 * channel.beats.every
            while time.monotonic() < until:
                time.sleep(_DYING)
                if why := channel.why_gone():
                    return why
            signs = channel.beats.read()
            still = [rank for rank, sign in signs.items() if sign.number == before[rank].number]
        except RuntimeError as gone:
            return str(gone) if isinstance(gone, SilentStoreError) else HOLDER_ENDED
        if still:
            return f"{channel.group.named(*still)} died, or closed the connection{_place(still, signs)}"
        return f"a connection was closed ({_first_line(error)})"


class _Sign(NamedTuple):
    """A sign of life: its number; how far the training had come; and the step of the rank's last offer."""

    number: int
    place: int
    when: int
    label: str


class _Beats:
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
        self._group = group
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sonde sign of life", daemon=True)

    def start(self) -> None:
        self._beat(0)
        self._thread.start()

    def tell(self, when: int, label: str) -> None:
        """Tell *when* and *label* of this rank's last offer in the next sign."""
        self.when, self._label = when, label

    def _beat(self, number: int) -> None:
        self._group.store.set(f"alive/{self._group.rank}", f"{number} {self.place()} {self.when} {self._label}")

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(self.every):
            number += 1
            try:
                self._group.store.check_held()
                self._beat(number)
            except SilentStoreError:
                continue
            except RuntimeError:
                return  # the store went with the process that held it

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def read(self) -> dict[int, _Sign]:
        """Return the last sign of each other rank."""
        others = [rank for rank in range(self._group.size) if rank != self._group.rank]
        signs = [text.split(" ", 3) for text in self._group.store.get_all([f"alive/{rank}" for rank in others])]
        return {rank: _Sign(int(sign[0]), int(sign[1]), int(sign[2]), sign[3]) for rank, sign in zip(others, signs, strict=True)}


def _place(ranks: Sequence[int], signs: Mapping[int, _Sign]) -> str:
    """Return in words, in brackets, how far one of *ranks* has come; ``""`` if it is not known."""
    labels = {signs[rank].label for rank in ranks} - {""}
    return f" (last seen at {labels.pop()})" if len(labels) == 1 else ""


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].split(". This is typically")[0] if str(error).strip() else type(error).__name__
