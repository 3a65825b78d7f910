"""The sink: the interface of a place where rows go, the rows of several moments, and the sink that writes a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from sonde.rows import RowBlock, Rows, Scalar, Scope
from sonde.rules import Finding
from sonde.run import RunWriter, memory_run

if TYPE_CHECKING:
    from sonde.run import Run

_SCALAR_BYTES = 128


@dataclass(frozen=True, eq=False)
class LoggedRows:
    """All that was logged in a while. Iterate for the rows of each moment and the scalars, in the order in which they came.

    >>> from sonde.inspector import LoggedRows, Scalar
    >>> logged = LoggedRows([], [], [])
    >>> logged.add_scalars([Scalar("loss", 1.5, epoch=0, step=0)])
    >>> [(each.name, each.value) for each in LoggedRows.joined([logged, logged])]
    [('loss', 1.5), ('loss', 1.5)]

    Attributes:
        sequence: in that order a block and the position of a moment in it, or a scalar.
        blocks: all rows, a block for each family of each model.
        scalars: all scalars, in order.
    """

    sequence: list[tuple[RowBlock, int] | Scalar]
    blocks: list[RowBlock]
    scalars: list[Scalar]

    @classmethod
    def joined(cls, parts: Sequence[LoggedRows]) -> LoggedRows:
        """Return what was logged in one while after the other as one, in which blocks of one layout are one."""
        if len(parts) == 1:
            return parts[0]
        alike: dict[tuple[str, int, tuple[str, ...]], list[RowBlock]] = {}
        for block in (block for part in parts for block in part.blocks):
            alike.setdefault((block.family, id(block.layout), tuple(block.numbers)), []).append(block)
        places: dict[int, tuple[RowBlock, int]] = {}  # by the id of a block: the block that it is in, and its first moment there
        for first, *others in alike.values():
            whole, start = first.followed_by(others), 0
            for block in (first, *others):
                places[id(block)] = whole, start
                start += len(block)
        found = cls([], [], [])
        for entry in (entry for part in parts for entry in part.sequence):
            if isinstance(entry, Scalar):
                found.add_scalars([entry])
            else:
                whole, start = places[id(entry[0])]
                found.add_moment(whole, start + entry[1])
        return found

    def add_scalars(self, scalars: Sequence[Scalar]) -> None:
        """Add *scalars* at the end."""
        self.sequence.extend(scalars)
        self.scalars.extend(scalars)

    def add_moment(self, block: RowBlock, moment: int) -> None:
        """Add one moment of *block* at the end; the moments of each block in order.

        >>> from sonde.inspector import LoggedRows, Sink
        >>> class Copies(Sink):
        ...     def write_all(self, entries):
        ...         copy = LoggedRows([], [], [])
        ...         for block in entries.blocks:
        ...             for moment in range(len(block.moments)):
        ...                 copy.add_moment(block, moment)
        ...         print([(rows.family, rows.step) for rows in copy])
        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> writer.run().send_to(Copies())
        [('moments', 0)]
        """
        self.sequence.append((block, moment))
        if moment == 0:
            self.blocks.append(block)

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take in memory, roughly."""
        return sum(block.nbytes for block in self.blocks) + _SCALAR_BYTES * len(self.scalars)

    @property
    def lines(self) -> int:
        """The number of rows and scalars."""
        return sum([block.lines for block in self.blocks]) + len(self.scalars)

    def __iter__(self) -> Iterator[Rows | Scalar]:
        return (entry if isinstance(entry, Scalar) else Rows.of(*entry) for entry in self.sequence)


class Sink:
    """A place where rows go. Write one by overriding the methods it needs; they are called in the writer thread, one at a time.

    >>> from sonde.inspector import Sink
    >>> class Tell(Sink):
    ...     def prepare(self):
    ...         print("begin")
    ...     def open(self, description):
    ...         print(sorted(description["lenses"]))
    ...     def write(self, rows):
    ...         print(rows.family, rows.step)
    ...     def scalar(self, scalar):
    ...         print(scalar.name, scalar.value)
    ...     def alert(self, finding):
    ...         print(finding.message)
    ...     def document(self, name, data):
    ...         print(name, data)
    ...     def finish(self, run, *, failed):
    ...         print("failed" if failed else "done")
    ...     def close(self):
    ...         print("closed")
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run({"lenses": {"moments": {}}})
    >>> writer.append("moments", Layout(["0:output"]), {"rms": [1.0]}, step=0)
    >>> writer.scalar("loss", 0.5, step=0)
    >>> writer.document("coverage", {"0:output": 1})
    >>> writer.alert("look here", step=0)
    >>> writer.run().send_to(Tell())
    begin
    ['moments']
    coverage {'0:output': 1}
    moments 0
    loss 0.5
    look here
    done
    closed

    While a training runs, the rows of up to a second come together, in the order in which they were logged. A sink that can take
    all of them in one go overrides ``write_all``. A call that raises is made again, with the same rows: at once, and after one, two
    and four seconds (at the end of the training without pauses). A sink that still raises then is not called again: the training
    goes on, with one warning.

    Attributes:
        may_block: the sink talks to a network, or to a program that does: its methods are called in a thread of its own, for
            which neither the training nor the run ever waits. Rows for which there is no room are lost, with one warning.
        needs_run: the sink reads the run at the end; where ``to=`` names no run, one is kept in memory.
        timeout: the seconds that the end of the training waits for a sink that may block.
    """

    may_block: ClassVar[bool] = False
    needs_run: ClassVar[bool] = False
    timeout: float = 120.0

    def prepare(self) -> None:
        """Called first, in the thread that begins the training: note here what only this thread knows. It must not block."""

    def open(self, description: Mapping[str, Any]) -> None:
        """Called before everything that is to be written.

        Args:
            description: plain data: ``model``, ``environment``, ``lenses``, the ``config`` if one was given; and ``path``, the
                folder of the run, or None.
        """

    def write(self, rows: Rows) -> None:
        """Take the rows of one family at one moment."""

    def scalar(self, scalar: Scalar) -> None:
        """Take one loss, metric, norm or share."""

    def write_all(self, entries: LoggedRows) -> None:
        """Take rows and scalars of several moments. Unless it is overridden, it calls ``write`` and ``scalar`` for each.

        >>> from sonde.inspector import Sink
        >>> class Count(Sink):
        ...     def write_all(self, entries):
        ...         print(len(entries.blocks), "block,", len(entries.scalars), "scalars")
        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> writer.run().send_to(Count())
        1 block, 0 scalars
        """
        for entry in entries:
            if isinstance(entry, Scalar):
                self.scalar(entry)
            else:
                self.write(entry)

    def calls_for(self, entries: LoggedRows) -> Sequence[tuple[Callable[[], None], int]]:
        """Return the calls that give *entries* to this sink, and the rows of each. One that raises is made again, alone.

        >>> from sonde.inspector import LoggedRows, Scalar, Sink
        >>> class Print(Sink):
        ...     def scalar(self, scalar):
        ...         print(scalar.name, scalar.value)
        >>> logged = LoggedRows([], [], [])
        >>> logged.add_scalars([Scalar("loss", 1.5, epoch=0, step=0)])
        >>> for call, rows in Print().calls_for(logged):
        ...     call()
        loss 1.5

        Unless it is overridden, it is one call of a ``write_all`` of the sink's own, or a ``write`` or ``scalar`` for each.
        """
        if type(self).write_all is not Sink.write_all:
            return [(partial(self.write_all, entries), entries.lines)]
        return [
            (partial(self.scalar, each), 1) if isinstance(each, Scalar) else (partial(self.write, each), len(each.rows))
            for each in entries
        ]

    def write_step(self, rows: Sequence[Rows], scalars: Sequence[Scalar]) -> None:
        """Take the rows and scalars of one step of a recorded run that is sent: by the call that takes those of a training.

        >>> from sonde.inspector import Scalar, Sink
        >>> class Tell(Sink):
        ...     def scalar(self, scalar):
        ...         print(scalar.name, scalar.value)
        >>> Tell().write_step([], [Scalar("loss", 1.5, epoch=0, step=0)])
        loss 1.5
        """
        entries = LoggedRows([], [], [])
        for each in rows:
            entries.add_moment(each.block(), 0)
        entries.add_scalars(scalars)
        for call, _ in Sink.calls_for(self, entries):
            call()

    def alert(self, finding: Finding) -> None:
        """Take a finding of the rules."""

    def document(self, name: str, data: Any) -> None:
        """Take a document of a recorded run that is sent: the ``graph`` of the model, or the ``coverage``."""

    def finish(self, run: Run | None, *, failed: bool) -> None:
        """Called once when nothing more will come, before ``close``.

        Args:
            run: the whole run, to read; None if none was written.
            failed: whether an exception has ended the training.
        """

    def close(self) -> None:
        """Called at the end, also where the training could not begin."""


class Nothing(Sink):
    """Drops everything: for a training that is watched for its findings alone.

    >>> import sonde, torch
    >>> from sonde.inspector.sinks import Nothing
    >>> net = torch.nn.Linear(2, 1)
    >>> with sonde.watch(net, every=1, to=Nothing(), verbose=False) as inspector:
    ...     net(torch.ones(1, 2)).sum().backward()
    ...     inspector.step()
    >>> inspector.findings
    ()
    """


class RunSink(Sink):
    """Writes a run, on disk or in memory.

    >>> import sonde, torch
    >>> from sonde.inspector import RunSink
    >>> from sonde.run import memory_run
    >>> net, sink = torch.nn.Linear(2, 1), RunSink(memory_run())
    >>> with sonde.watch(net, every=1, to=sink, verbose=False) as inspector:
    ...     net(torch.ones(1, 2)).sum().backward()
    ...     inspector.step()
    >>> sink.run().families
    ('moments', 'scalars')

    Attributes:
        writer: of the run.
    """

    def __init__(self, writer: RunWriter, *, owned: bool = True) -> None:
        self.writer = writer
        self._owned = owned

    def open(self, description: Mapping[str, Any]) -> None:
        self.writer.describe(**{name: value for name, value in description.items() if name != "path"})

    def document(self, name: str, data: Any) -> None:
        self.writer.document(name, data)

    def write(self, rows: Rows) -> None:
        when = {"moments": [(rows.epoch, rows.step, rows.micro_step)], "lengths": [len(rows.rows)]}
        self.writer.extend(rows.family, rows.layout, rows.numbers, **when, rows=rows.rows, ranks=rows.ranks)

    def scalar(self, scalar: Scalar) -> None:
        self.writer.scalars([_line(scalar)])

    def alert(self, finding: Finding) -> None:
        self.writer.told(finding)

    def calls_for(self, entries: LoggedRows) -> Sequence[tuple[Callable[[], None], int]]:
        own = type(self)
        if own.write is not RunSink.write or own.scalar is not RunSink.scalar or own.write_all is not Sink.write_all:
            return super().calls_for(entries)  # a subclass looks at each, or changes it
        lines = [_line(scalar) for scalar in entries.scalars]
        return [
            *((partial(self.writer.write, block), block.lines) for block in entries.blocks),
            (partial(self.writer.scalars, lines), len(lines)),
        ]

    def close(self) -> None:
        if self._owned:
            self.writer.close()
        else:
            self.writer.flush()

    def run(self) -> Run:
        """The run so far, to read."""
        return self.writer.run()


def _line(scalar: Scalar) -> tuple[str, float, int, int, Scope, int]:
    return scalar.name, scalar.value, scalar.step, scalar.epoch, scalar.scope, scalar.ranks


def memory(about: Mapping[str, Any] | None = None) -> RunSink:
    """Return a sink that keeps a run in memory; ``memory().run()`` reads it, also after it is closed.

    >>> from sonde.rows import Scalar
    >>> sink = memory()
    >>> sink.scalar(Scalar("loss", 0.5, epoch=0, step=3))
    >>> sink.run().scalar("loss")
    (array([3]), array([0.5]))
    """
    return RunSink(memory_run(about))
