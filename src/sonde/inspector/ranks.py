"""How the processes of a training share one run: which of them record, where each writes, and what they must have in common."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, Literal, Protocol, TypeAlias

from sonde.checked import checked
from sonde.engine import ranks_of
from sonde.errors import ArgumentError, StoreError
from sonde.inspector.sinks.base import RunSink
from sonde.inspector.sinks.destinations import Destinations
from sonde.inspector.sinks.job import this_job
from sonde.inspector.sinks.to_argument import folders_named
from sonde.paths import absolute_path
from sonde.rows import Scope
from sonde.run import Record, join_run
from sonde.stats import Group, Meeting, MissingRankError
from sonde.warn import warn_user


class RankGroup(Protocol):
    """A process group, or a ``DeviceMesh``: torch may be built without either."""

    def size(self) -> int:
        """Return the number of its ranks."""


How: TypeAlias = Literal["merged", "each", "first"] | RankGroup
"""What the ranks of a training record: numbers of all of them, joined; each its own, in one run; rank 0 alone; or, of a process
group or a mesh, numbers of its ranks, joined in a run of their own."""

_RANKS = ("merged", "each", "first")
_ANSWER = 20.0  # seconds that a rank that has come may take to answer another


@checked("what")
@dataclass(frozen=True)
class Ranks:
    """What the processes of a training (``torchrun``) record, where each calls ``watch``.

    >>> import sonde
    >>> sonde.Ranks(per_rank=True, timeout=60).timeout
    60

    Args:
        what: ``"merged"``, one run of the joined numbers of all; ``"each"``, one run in which each writes its own, without any
            communication after the call of ``watch``; ``"first"``, rank 0 records alone, and nothing communicates. Or a process
            group, or a ``DeviceMesh``: the joined numbers of its ranks, in a run of their own; the other ranks, which may train
            another model, need not call ``watch``.
        group: the process group, or the ``DeviceMesh``, of the ranks that run the model on batches of their own; by default that
            of DDP or FSDP, or all ranks.
        per_rank: write the rows of each process too, in families with the suffix ``_rank``.
        wait: the seconds that ``watch`` waits for the others at most, so that numbers are joined from the first step on. Those who
            come later are waited for while this process trains.
        timeout: the seconds after which a process is given up that does not come, or shows no sign of life.
        exit_timeout: the seconds that the end may wait for other processes. The others then record their own numbers.

    Raises:
        ArgumentError: *what* is none of these, or *per_rank* has no joined rows to stand beside.
    """

    what: How = "merged"
    group: Any = None
    per_rank: bool = False
    wait: float = 10.0
    timeout: float = 300.0
    exit_timeout: float = 20.0

    def __post_init__(self) -> None:
        if self.what not in _RANKS if isinstance(self.what, str) else not ranks_of(self.what):
            names = ", ".join(map(repr, _RANKS))
            raise ArgumentError(
                f"ranks={self.what!r}: give one of {names}, or a process group or DeviceMesh that this rank belongs to; "
                "or sonde.Ranks, for times and more"
            )
        if self.per_rank and self.what in ("each", "first"):
            raise ArgumentError(f"per_rank=True writes rows of each rank beside joined ones, and ranks={self.what!r} joins none")


@dataclass(frozen=True)
class Participation:
    """How this process takes part in a run.

    Attributes:
        rank: of this process among those that record one run together, 0 where it is alone.
        size: how many processes record one run together.
        meeting: of these processes; None where this one is alone.
        group: of these processes, if all came in time.
        first: the rank that has begun the run that this process writes to.
        merges: whether rows of the processes are joined.
        records: whether this process records anything.
        scope: how much of the training the rows are of that this process has taken, before any are joined.
        rows_beside: whether rows of this process are written beside joined ones.
        timeout, exit_timeout: seconds to wait for a sign of life of another process, and for other processes at the end.
    """

    rank: int = 0
    size: int = 1
    meeting: Meeting | None = None
    group: Group | None = None
    first: int = 0
    merges: bool = False
    records: bool = True
    scope: Scope = "global"
    rows_beside: bool = False
    timeout: float = 300.0
    exit_timeout: float = 20.0

    @property
    def name(self) -> str:
        """This process in words, by its rank in the job: ``rank 3``."""
        return self.named(self.rank)

    @property
    def leader(self) -> str:
        """The process that leads, in words."""
        return self.named(self.first)

    def named(self, *ranks: int) -> str:
        """*ranks* in words, by their numbers in the job."""
        return f"rank {ranks[0]}" if self.meeting is None else self.meeting.named(*ranks)

    @property
    def leads(self) -> bool:
        """Whether this process describes the run, shows it and prints: it has begun the run."""
        return self.records and self.rank == self.first

    @property
    def all_are_here(self) -> bool:
        """Whether all processes had come when this one did, or while it waited."""
        return self.meeting is not None and self.meeting.state in ("all", "late")

    def ranks_of_batches(self, group: Any) -> tuple[int, ...] | None:
        """Return the ranks of *group*, which run the model on batches of their own; None: they are to be found.

        Raises:
            ArgumentError: *group* is no group of ranks, or this rank is not in it.
        """
        if group is None or not self.merges:
            return None
        ranks = ranks_of(group)
        _check_member("Ranks(group=) is the process group, or the DeviceMesh, that this rank's batches belong to", group, ranks)
        return ranks

    def described(self, *, joined: bool | None = None) -> dict[str, Any]:
        """Return plain data for run.json: ``ranks``, how many and whether they are joined; ``job``, that of ``torchrun``.

        The ranks of a group that is not the first of the job have ``members``, their numbers there.

        Args:
            joined: whether rows of all ranks are joined; None: whether they will be from the first on.
        """
        joined = self.merges and self.group is not None if joined is None else joined
        size = self.size if joined or self.group is not None else 1 if self.meeting is None else self.meeting.here
        ranks: dict[str, Any] = {"size": size, "rank": self.rank, "joined": joined}
        if size > 1 and self.meeting is not None and self.meeting.members != tuple(range(self.size)):
            ranks["members"] = list(self.meeting.members)
        return ({"ranks": ranks} if self.scope == "rank" else {}) | ({"job": job} if (job := this_job()) else {})

    def meet(self, tell: Callable[[str], None]) -> Callable[[Event], Group | None]:
        """Return a function that returns the group of all processes once they are here, for a thread: see ``Joining``.

        Args:
            tell: called with messages about those who are missing, while they are waited for.
        """
        meeting, group, timeout = self.meeting, self.group, self.timeout

        def found(leaving: Event) -> Group | None:
            if meeting is None or group is not None:
                return group

            def waiting(seconds: float) -> None:
                tell(f"{meeting.who_is_missing()} sonde.watch within {seconds:.0f} s. They are waited for until {timeout:.4g} s")

            if meeting.arrived(timeout, leaving, waiting):
                return meeting.group(_ANSWER)
            if not leaving.is_set():
                why = "and a rank has ended" if meeting.state == "closed" else f"within {timeout:.4g} s"
                tell(f"{meeting.who_is_missing()} sonde.watch {why}: each rank records rows of its own to the end")
            return None

        return found

    def leave(self, seconds: float = 0.0) -> bool:
        """Leave the meeting within *seconds*, since the training has ended; return whether all processes have come."""
        return self.meeting is not None and self.meeting.leave(seconds or self.exit_timeout)

    def records_of_others(self, own: Record, group: Group | None, seconds: float, left: Sequence[int]) -> list[Record]:
        """Return on rank 0 the records of findings of other ranks that have written rows; send rank 0 one's *own*.

        Args:
            own: of this rank.
            group: of all ranks, if they have met.
            seconds: how long to wait for the others.
            left: those of the ranks that are waited for.
        """
        if group is None or not self.merges:
            return []
        told = group.gather(own.to_data(), seconds=seconds, of=left)
        read = [Record.read(given) for rank, given in sorted(told.items()) if rank != self.rank]
        return [each for each in read if each is not None]

    def open(
        self, make: Callable[..., Destinations], asked: Any, in_common: Mapping[str, Any], check: Callable[[], None]
    ) -> tuple[Participation, Destinations]:
        """Return the destinations of this process, and how it takes part now that it is known who has begun the run.

        First *check* is called once, and what it raises leaves no folder behind on any rank.
        The destinations are made by *make* on rank 0 where all came in time, else on the first rank that goes ahead. The others
        write to that rank's run alone. Warn where *asked*, the ``to=`` of another rank, names another folder.

        Raises:
            RankError, StoreError, ArgumentError: of every rank where all came in time, if they differ in what they should have
                *in_common*, if *check* or *make* has raised, or if one rank cannot write.
        """
        if not self.records:
            return self, Destinations()
        refused: BaseException | None = None
        try:
            check()
        except Exception as error:
            refused = error

        def checked() -> None:
            if refused is not None:
                raise refused

        if self.group is None:
            checked()
            return self._open_ahead(make, asked)
        made: list[Destinations] = []
        try:
            self.group.agree(in_common)
            self.group.together(checked)
            self._open_together(self.group, make, asked, made)
        except MissingRankError as error:  # a rank that came and does not answer
            checked()
            warn_user(f"{error}: {self.name} records rows of its own. The training goes on")
            alone = replace(self, group=None, meeting=None, first=0 if made else self.rank)
            return alone, made[0] if made else self._own(make, is_first=False)
        except BaseException as error:
            for destinations in made:
                destinations.close(error)
            raise
        return self, made[0]

    def _open_ahead(self, make: Callable[..., Destinations], asked: Any) -> tuple[Participation, Destinations]:
        """Open without waiting for all ranks: begin the run, or take part in that of a rank that has gone ahead."""
        meeting, own = self.meeting, _folder(asked)
        named = None if own is None else str(absolute_path(own))
        told = None if meeting is None else meeting.begun(named, _ANSWER)
        if told is not None and told["path"] is not None:
            try:
                return replace(self, first=told["first"]), self._join(told)
            except StoreError as error:
                warn_user(f"{error}. Until then {self.name} records a run of its own. The training goes on")
        destinations = self._own(make, is_first=told is None and (meeting is None or meeting.begins))
        if meeting is not None and told is None:
            meeting.tell(named, {**_plain(destinations), "first": self.rank})
        return replace(self, first=self.rank), destinations

    def _own(self, make: Callable[..., Destinations], *, is_first: bool) -> Destinations:
        """Return destinations of this process alone; where another rank may have the folder, beside it."""
        try:
            destinations = make()
        except StoreError:
            if is_first:
                raise
            destinations = make(exists="unique")
        if destinations.recorded is not None:
            destinations.recorded.writer.process = self.rank
        return destinations

    def _open_together(
        self,
        group: Group,
        make: Callable[..., Destinations],
        asked: Any,
        made: list[Destinations],
    ) -> None:
        """Add the destinations to *made*: on rank 0 those of *make*."""

        def first() -> dict[str, Any]:
            made.append(make())
            return {**_plain(made[0]), "first": 0, "asked": _folder(asked)}

        told = group.agree({}, first)
        group.together(lambda: None if made else made.append(self._join(told)))
        own, wanted = _folder(asked), told["asked"]
        if own is not None and wanted is not None and own != wanted:
            warn_user(
                f"to= names {own} on {self.name}, and {wanted} on {self.leader}: the ranks write one run, that of {self.leader}. "
                "Give all of them the same path; or ranks=, the process group of those that train together"
            )

    def _join(self, told: Mapping[str, Any]) -> Destinations:
        """Return the destinations of another rank than the first, which has *told* what it has opened.

        The parts of the rank that has begun the run have the number 0; where that is not rank 0, rank 0 has its number in turn.
        """
        destinations = Destinations(first_step=told["first_step"], epoch=told["epoch"])
        if told["path"] is not None:
            try:
                writer = join_run(told["path"], rank=self.rank or told["first"], attempt=told["attempt"])
                writer.process = self.rank
            except (StoreError, OSError) as error:
                raise StoreError(
                    f"{socket.gethostname()} cannot write to the run that {self.named(told['first'])} has begun in "
                    f"{told['path']}: {error}. Give a folder that all ranks share in to=, or ranks='first', "
                    "and rank 0 records alone"
                ) from None
            destinations.recorded = RunSink(writer)
            destinations.sinks.append(destinations.recorded)
        return destinations


def _folder(asked: Any) -> str | None:
    """Return the folder that a ``to=``, or the first of a list, names, as it was given; None if none does."""
    return next(map(str, folders_named(asked)), None)


def _plain(destinations: Destinations) -> dict[str, Any]:
    """Return what other ranks need to know of rank 0's destinations."""
    path = destinations.path
    attempt = None if destinations.recorded is None else getattr(destinations.recorded.writer, "attempt", None)
    where = None if path is None else str(path)
    return {"path": where, "attempt": attempt, "first_step": destinations.first_step, "epoch": destinations.epoch}


def participate(ranks: Ranks) -> Participation:
    """Find the other processes of this training, if there are any, and return how this one takes part.

    Raises:
        ArgumentError: ``WORLD_SIZE`` names several processes, and there is no process group; this rank is not of the group that
            *ranks* names.
    """
    part = Participation(rows_beside=ranks.per_rank, timeout=ranks.timeout, exit_timeout=ranks.exit_timeout)
    rank, size = _of_this_process()
    members = None if isinstance(ranks.what, str) else ranks_of(ranks.what)
    if members is not None:
        _check_member(
            "ranks= is the process group, or the DeviceMesh, of the ranks that record a run together", ranks.what, members
        )
        size = len(members)
    if size == 1:
        return replace(part, rows_beside=False)
    if ranks.what == "first":
        return replace(part, rank=rank, records=rank == 0, scope="rank")
    meeting = Meeting.of("sonde.watch", members)
    if meeting is None:
        return part
    within = "so far" if meeting.state else f"within {ranks.wait:.4g} s"
    merges, state = ranks.what != "each", meeting.wait(ranks.wait)
    if state not in ("all", "late"):
        until = f", and waits for the others while it trains, {ranks.timeout:.4g} s at most" if merges and state == "ahead" else ""
        warn_user(f"{meeting.who_is_missing()} sonde.watch {within}: {meeting.named()} records rows of its own{until}")
    group = meeting.group(_ANSWER) if state == "all" else None
    return replace(part, rank=meeting.rank, size=size, meeting=meeting, group=group, merges=merges, scope="rank")


def _check_member(what: str, group: Any, ranks: Sequence[int]) -> None:
    """Raise if this process is none of *ranks*, which are those of *group*."""
    rank, _ = _of_this_process()
    if rank not in ranks:
        raise ArgumentError(f"{what}, not {f'ranks {list(ranks)}, and this is rank {rank}' if ranks else repr(group)}")


def _of_this_process() -> tuple[int, int]:
    """Return the rank of this process and the number of all."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    found = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    rank, size = (int(text) if text.isdecimal() else default for text, default in zip(found, (0, 1), strict=True))
    return (rank, size) if size > 1 else (0, 1)
