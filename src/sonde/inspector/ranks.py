"""How the processes of a training share one run: which of them record, where each writes, and what they must have in common."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

from sonde.engine import ranks_of
from sonde.errors import ArgumentError, StoreError
from sonde.inspector.sinks.base import RunSink
from sonde.inspector.sinks.destinations import Destinations
from sonde.inspector.sinks.job import this_job
from sonde.inspector.sinks.to_argument import folders_named
from sonde.rows import Scope
from sonde.run import Record, join_run
from sonde.stats import Group
from sonde.warn import warn_user


class RankGroup(Protocol):
    """A process group, or a ``DeviceMesh``: torch may be built without either."""

    def size(self) -> int:
        """Return the number of its ranks."""


How: TypeAlias = Literal["merged", "each", "first"] | RankGroup
"""What the ranks of a training record: numbers of all of them, joined; each its own, in one run; rank 0 alone; or, of a process
group or a mesh, numbers of its ranks, joined in a run of their own."""

_RANKS = ("merged", "each", "first")


@dataclass(frozen=True)
class Ranks:
    """What the processes of a training (``torchrun``) record, where each calls ``watch``.

    Args:
        what: ``"merged"``, one run of the joined numbers of all; ``"each"``, one run in which each writes its own, without any
            communication after the call of ``watch``; ``"first"``, rank 0 records alone, and nothing communicates. Or a process
            group, or a ``DeviceMesh``: the joined numbers of its ranks, in a run of their own; the other ranks, which may train
            another model, need not call ``watch``.
        group: the process group, or the ``DeviceMesh``, of the ranks that run the model on batches of their own; by default that
            of DDP or FSDP, or all ranks.
        per_rank: write the rows of each process too, in families with the suffix ``_rank``.
        timeout: the seconds after which a process is given up that shows no sign of life.
        exit_timeout: the seconds that the end may wait for other processes. The others then record their own numbers.

    Raises:
        ArgumentError: *what* is none of these, or *per_rank* has no joined rows to stand beside.
    """

    what: How = "merged"
    group: Any = None
    per_rank: bool = False
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
        group: of these processes; None where each is alone.
        merges: whether rows of the processes are joined.
        records: whether this process records anything.
        scope: how much of the training the rows are of that this process has taken, before any are joined.
        rows_beside: whether rows of this process are written beside joined ones.
        timeout, exit_timeout: seconds to wait for a sign of life of another process, and for other processes at the end.
    """

    rank: int = 0
    size: int = 1
    group: Group | None = None
    merges: bool = False
    records: bool = True
    scope: Scope = "global"
    rows_beside: bool = False
    timeout: float = 300.0
    exit_timeout: float = 20.0

    @property
    def name(self) -> str:
        """This process in words, by its rank in the job: ``rank 3``."""
        return f"rank {self.rank}" if self.group is None else self.group.named()

    @property
    def leader(self) -> str:
        """The process that leads, in words."""
        return "rank 0" if self.group is None else self.group.named(0)

    @property
    def leads(self) -> bool:
        """Whether this process describes the run, shows it and prints: it is the first of those that record one."""
        return self.records and (self.rank == 0 or self.group is None)

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

    def described(self) -> dict[str, Any]:
        """Return plain data for run.json: ``ranks``, how many and whether they are joined; ``job``, that of ``torchrun``.

        The ranks of a group that is not the first of the job have ``members``, their numbers there.
        """
        ranks: dict[str, Any] = {"size": self.size, "rank": self.rank, "joined": self.merges}
        if self.group is not None and self.group.members != tuple(range(self.size)):
            ranks["members"] = list(self.group.members)
        return ({"ranks": ranks} if self.scope == "rank" else {}) | ({"job": job} if (job := this_job()) else {})

    def records_of_others(self, own: Record, *, have_ended: bool) -> list[Record]:
        """Return on rank 0 the records of findings of other ranks that have written rows; send rank 0 one's *own*.

        Args:
            own: of this rank.
            have_ended: all other ranks have ended, too: they are waited for.
        """
        if self.group is None or not self.merges:
            return []
        told = self.group.gather(own.to_data(), seconds=self.exit_timeout if have_ended else 0.0)
        read = [Record.read(given) for rank, given in sorted(told.items()) if rank != self.rank]
        return [each for each in read if each is not None]

    def open(self, make: Callable[[], Destinations], asked: Any = None) -> Destinations:
        """Return the destinations of this process. Those of rank 0 are made by *make*; other ranks write to rank 0's run alone.

        Warn where *asked*, the ``to=`` of another rank, names another folder than that of rank 0.

        Raises:
            RankError, StoreError, ArgumentError: of every rank, if *make* has raised, or if one rank cannot write.
        """
        if not self.records:
            return Destinations()
        if self.group is None:
            alone = make()
            if alone.recorded is not None:
                alone.recorded.writer.process = self.rank
            return alone
        made: list[Destinations] = []

        def first() -> dict[str, Any]:
            made.append(make())
            return {**_plain(made[0]), "asked": _folder(asked)}

        try:
            told = self.group.broadcast(first)
            self.group.together(lambda: None if made else made.append(self._join(told)))
        except BaseException as error:
            for destinations in made:
                destinations.close(error)
            raise
        own, wanted = _folder(asked), told["asked"]
        if own is not None and wanted is not None and own != wanted:
            warn_user(
                f"to= names {own} on {self.name}, and {wanted} on {self.leader}: the ranks write one run, that of {self.leader}. "
                "Give all of them the same path; or ranks=, the process group of those that train together"
            )
        return made[0]

    def _join(self, told: Mapping[str, Any]) -> Destinations:
        """Return the destinations of another rank than 0, which has *told* what it has opened."""
        destinations = Destinations(first_step=told["first_step"], epoch=told["epoch"])
        if told["path"] is not None:
            try:
                writer = join_run(told["path"], rank=self.rank, attempt=told["attempt"])
            except (StoreError, OSError) as error:
                raise StoreError(
                    f"{socket.gethostname()} cannot write to the run that {self.leader} has begun in {told['path']}: {error}. "
                    f"Give a folder that all ranks share in to=, or ranks='first', and {self.leader} records alone"
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


def participate(ranks: Ranks, *, seconds: float = 20.0) -> Participation:
    """Find the other processes of this training, if there are any, and return how this one takes part.

    Args:
        ranks: what is recorded.
        seconds: how long to wait for the others.

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
    group = Group.join("sonde.watch", members=members, seconds=seconds)
    if group is None:
        return replace(part, rank=rank, scope="rank", rows_beside=False)
    return replace(part, rank=group.rank, size=size, group=group, merges=ranks.what != "each", scope="rank")


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
