"""The processes that fill one store together: how they find each other, which share each has, and how all of them end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import nn

from sonde.engine import communicates, data_parallel_ranks, holds_parameters_elsewhere, parameters_in, ranks_of
from sonde.errors import ArgumentError, RankError
from sonde.stats import Channel, LostError, Meeting, MissingRankError

T = TypeVar("T")

Together: TypeAlias = Literal["together", "alone"] | Any
"""``ranks``: which processes fill the store: all of the job, this one alone, or those of a process group or a ``DeviceMesh``."""

_COMING = 300.0  # seconds that a rank may come later than another, or take to answer
_SILENT = 60.0  # seconds without a sign of life, after which a rank is lost
_LOOK = 5.0  # seconds between two looks whether a rank has raised
_GO_ON = "Whole shards stay, and the same call goes on behind, on as many ranks as there are then"


class Crew:
    """The processes that fill one store together; without others, this one. Every method is called on all of them alike.

    A replica is one copy of the models, held by one process or, as under tensor parallelism, by several *partners*. Each replica
    runs batches of its own, and the first of its processes writes.

    In a ``with`` block an error of one process ends the others, each with a :class:`RankError` that names it, when they wait for
    each other next or look.

    Attributes:
        number, of: of this process's replica among how many.
        partners: the ranks of the replica.
        writes: whether this process writes what its replica runs.
        in_step: whether a forward may need the other processes, so that all run as many.
    """

    def __init__(self, channel: Channel | None = None) -> None:
        self.number, self.of = 0, 1
        self.partners: tuple[int, ...] = ()
        self.writes, self.in_step = True, False
        self._channel = channel
        self._looked = time.monotonic()

    @classmethod
    def gathered(cls, ranks: Together) -> Crew:
        """Return the crew of the processes that *ranks* names, once all of them have come.

        Raises:
            ArgumentError: *ranks* cannot be read; or ``WORLD_SIZE`` names several processes, and there is no process group.
            RankError: not all have come.
        """
        if ranks == "alone":
            return cls()
        members = None if ranks == "together" else ranks_of(ranks)
        if members is not None and (not members or torch.distributed.get_rank() not in members):
            raise ArgumentError(
                f"ranks={ranks!r}: it is 'together', 'alone', or the process group or DeviceMesh of the ranks that fill the store, "
                "this one among them"
            )
        meeting = Meeting.of("sonde.extract", members)
        if meeting is None:
            return cls()
        if meeting.wait(_COMING, leave=True) != "all":
            raise RankError(
                f"{meeting.who_is_missing()} sonde.extract within {_COMING:.4g} s: call it on all ranks, or with ranks='alone', "
                "and this process runs all batches"
            )
        crew = cls(Channel(meeting.group(_COMING), _SILENT))
        crew.wait()  # so that all are connected before one is busy
        return crew

    @property
    def is_alone(self) -> bool:
        """Whether there are no other processes."""
        return self._channel is None

    @property
    def is_first(self) -> bool:
        """Whether this process makes the folder and its index."""
        return self.rank == 0

    @property
    def rank(self) -> int:
        """Of this process among those of the crew."""
        return 0 if self._channel is None else self._channel.group.rank

    @property
    def size(self) -> int:
        """How many processes there are."""
        return 1 if self._channel is None else self._channel.group.size

    def share(self, models: Iterable[nn.Module]) -> None:
        """Find which processes hold one replica of *models*, and which share is this one's.

        Raises:
            ArgumentError: the models are not spread over the same processes.
        """
        if self._channel is None:
            return
        mine = [self._held(model) for model in models]
        told = self.all(mine)
        members = self._channel.group.members
        found = {tuple(_replicas([each[at][:2] for each in told], members)) for at in range(len(mine))}
        if len(found) > 1:
            raise ArgumentError("the models are spread over the ranks in different ways: extract from one after the other")
        replicas = found.pop()
        own = members[self._channel.group.rank]
        self.number, self.of = next(at for at, each in enumerate(replicas) if own in each), len(replicas)
        self.partners = replicas[self.number]
        self.writes = own == self.partners[0]
        self.in_step = any(each[2] for rank in told for each in rank)

    def _held(self, model: nn.Module) -> list[Any]:
        """Return the ranks that run *model* on batches of their own, those over which its parameters are spread, each None where
        that is not known, and whether a forward needs other ranks.
        """
        if any(map(holds_parameters_elsewhere, model.modules())):
            raise ArgumentError(
                "FSDP1 keeps the parameters in tensors of its own, so that a store could not say what it was made from: use FSDP2, "
                "torch.distributed.fsdp.fully_shard"
            )
        own = data_parallel_ranks(model)
        meshes = [ranks_of(each.device_mesh) for each in parameters_in(model) if hasattr(each, "device_mesh")]
        return [own, max(meshes, key=len, default=None), own is not None or bool(communicates(model))]

    # Wait and agree

    def wait(self) -> None:
        """Wait for the others.

        Raises:
            RankError: one is lost, or has raised.
        """
        self.minimum([0])

    def minimum(self, numbers: Sequence[int]) -> list[int]:
        """Return the least of each of *numbers* on all processes. Wait for the others.

        Raises:
            RankError: one is lost, or has raised.
        """
        found = torch.tensor(list(numbers), dtype=torch.int64, device="cpu")
        if self._channel is not None:
            self._done(lambda channel: channel.minimum(found))
        return found.tolist()

    def gathered_numbers(self, numbers: torch.Tensor) -> list[torch.Tensor]:
        """Return the whole *numbers* of the first process of each replica, which are as many on each."""
        if self._channel is None:
            return [numbers]
        numbered = torch.cat([torch.tensor([self.number if self.writes else -1], device="cpu"), numbers])
        told = self._done(lambda channel: channel.gathered(numbered))
        return [each[1:] for each in sorted((each for each in told if each[0] >= 0), key=lambda each: int(each[0]))]

    def all(self, value: T) -> list[T]:
        """Return the *value* of each process, plain data. Wait for the others.

        Raises:
            RankError: one is lost, or has raised.
        """
        self.wait()
        return [value] if self._channel is None else self._done(lambda channel: channel.group.all(value))

    def agree(self, what: Mapping[str, Any], make: Callable[[], T]) -> T:
        """Return on all what *make* returns on the first, if *what*, plain data, is equal on all. Wait for the others.

        Raises:
            RankError: it is not equal; or one is lost, or has raised.
        """
        self.wait()
        return make() if self._channel is None else self._done(lambda channel: channel.group.agree(what, make))

    def check(self) -> None:
        """Look now and then whether another process has raised.

        Raises:
            RankError: one has.
        """
        if self._channel is not None and time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            self._done(lambda channel: channel.check())

    @contextmanager
    def needed(self) -> Iterator[None]:
        """Say of an error in the block, which may need other processes, that one of them is lost, if it is.

        Raises:
            RankError: one is.
        """
        try:
            yield
        except RuntimeError as error:
            if self._channel is None or not self.in_step or isinstance(error, RankError):
                raise
            lost = self._channel.cause(error)
            if not lost.ranks:
                raise
            raise _said(lost) from error

    def _done(self, do: Callable[[Channel], T]) -> T:
        assert self._channel is not None
        try:
            return do(self._channel)
        except (LostError, MissingRankError) as lost:
            raise _said(lost) from None

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._channel is not None:
            named = self._channel.group.named()
            why = "" if error is None or isinstance(error, RankError) else f"{named}: {type(error).__name__}: {error}"
            self._channel.close(why)


def _said(lost: Exception) -> RankError:
    why = str(lost)
    return RankError(f"{why}{'' if why.endswith('.') else '.'} {_GO_ON}")


def _replicas(held: Sequence[Any], members: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the ranks of each replica, by what each of *members* has told: who has batches of his own, who holds parameters."""
    own = {rank: list(told[0] or [rank]) for rank, told in zip(members, held, strict=True)}
    found = set()
    for rank, (_, spread) in zip(members, held, strict=True):
        at = own[rank].index(rank)
        found.add(tuple(each for each in spread or [rank] if own.get(each, [each]).index(each) == at))
    outside = {rank for each in found for rank in each} - set(members)
    if outside:
        raise ArgumentError(f"the model is spread over ranks {sorted(outside)}, too: they have to call sonde.extract as well")
    return sorted(found)
