"""The interface of everything that writes a run: numbers, scalars, findings and documents, to disk or to memory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError, StoreError
from sonde.escape import encodable
from sonde.rows import Column, Layout, RowBlock, Scope
from sonde.rules import Finding
from sonde.run.folder.end import End
from sonde.run.folder.json_file import json_text, parse_json
from sonde.run.record import Record, severity_of
from sonde.run.schema import check_family, check_number, whole_number
from sonde.run.store.tables import Lines, column_of, kind_of
from sonde.run.store.writer_thread import WriterThread

if TYPE_CHECKING:
    from sonde.run.run import Run


_BLOCK = 1 << 20  # bytes; what comes at once is handed on in blocks of no more, or of a quarter of the room that there is


class RunWriter(ABC):
    """Takes the rows that one process records. Any thread may call.

    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.describe(config={"lr": 0.1})
    >>> writer.append("moments", Layout(["0:output"]), {"rms": [1.0]}, step=0)
    >>> writer.scalar("loss", 2.0, step=0)
    >>> writer.scalars([("loss", 1.5, 1, 0), ("accuracy", 0.5, 1, 0)])
    >>> writer.alert("looks odd", step=1, site="0:output")
    >>> writer.document("coverage", {"0:output": 1})
    >>> writer.flush()
    >>> run = writer.run()
    >>> run.families, run.scalar("loss")[1].tolist(), run.document("coverage")
    (('moments', 'scalars'), [2.0, 1.5], {'0:output': 1})
    >>> writer.close()

    :func:`sonde.run.store.open.start_run` and :func:`sonde.run.store.memory_writer.memory_run` make one.

    Attributes:
        rank: of this process among those that write the run.
        process: the rank in rows: ``rank``, but for a process that records a run alone, whatever its rank in the training is.
        attempt: the number of this process among those that wrote this run one after another, from 1.
        first_step: the step that this process begins at.
        lost: rows that could not be kept so far.
        before: what earlier processes found before the step that this one begins at.
        thread: the thread that writes to disk; None in memory.
    """

    thread: WriterThread | None = None
    lost = 0
    attempt = 1

    def __init__(self, rank: int, first_step: int, *, room: int | None = None) -> None:
        self.rank = self.process = rank
        self.first_step = first_step
        self._block = _BLOCK if room is None else min(_BLOCK, room // 4)
        self._kinds: dict[tuple[str, str], str] = {}  # by family and column, in small letters: number, list or text
        self._accepted: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
        self._closed = self._has_end = False
        self.before = Record()
        self._rows = 0
        self._form: Callable[[], Record] | None = None  # of what judges the rows
        self._told: tuple[Finding, ...] = ()  # by the program that writes

    def append(
        self,
        family: str,
        layout: Layout,
        columns: Mapping[str, Any],
        *,
        step: int,
        epoch: int = 0,
        micro_step: int = 0,
        rows: Any = None,
    ) -> None:
        """Add the numbers of one moment to a family: all places at once. The arrays are copied.

        Args:
            family: which statistic: ``moments``, ``exponents``, ... A name that was not used before is a new family.
            layout: which place each row belongs to.
            columns: by name, an array of shape ``(len(layout),)``, or ``(len(layout), k)`` for a list in each row, or a number
                or text for all rows, or a text for each. Half precision is written as float32.
            step, epoch, micro_step: when.
            rows: a mask of the layout's rows, or their indices, where not all of them were seen.

        Raises:
            ArgumentError: a name or a column that cannot be written, or a column that held another kind of thing before.
            StoreError: the writer is closed.
        """
        self._must_be_open()
        picked = layout.rows if rows is None else _picked(rows, layout)
        what = f"the {len(layout)} sites of the layout"
        made = {name: column_of(name, values, len(layout), what) for name, values in columns.items()}
        self._check(family, made)
        moment = [whole_number("epoch", epoch), whole_number("step", step), whole_number("micro_step", micro_step)]
        made = {name: _copied(column) if rows is None else _at(column, picked) for name, column in made.items()}
        edges = np.array([0, len(picked)], np.intp)
        self._add(RowBlock(family, layout, picked, np.array([moment], np.int64), edges, _unknown(len(picked)), made))

    def extend(
        self,
        family: str,
        layout: Layout,
        columns: Mapping[str, Any],
        *,
        moments: Any,
        lengths: Any,
        rows: Any,
        ranks: Any = None,
    ) -> None:
        """Add the numbers of several moments to a family, as an :meth:`append` for each moment does. The arrays are copied.

        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> moments = [(0, step, 0) for step in range(2)]
        >>> writer.extend("moments", Layout(["0:output"]), {"rms": [1.0, 2.0]}, moments=moments, lengths=[1, 1], rows=[0, 0])
        >>> writer.run().series("0", "rms")[1].tolist()
        [1.0, 2.0]

        Args:
            family: as for :meth:`append`.
            layout: which place each row belongs to.
            columns: by name, an array of shape ``(n,)`` over the n rows of all moments, one moment after the other, or ``(n, k)``
                for a list in each row, or a number or text for all rows, or a text for each. Half precision is written as float32.
            moments: epoch, step and micro-step of each moment: whole numbers of shape ``(moments, 3)``.
            lengths: how many rows each moment has: whole numbers of shape ``(moments,)`` that add up to n.
            rows: the index of each row's place in the layout, of shape ``(n,)``.
            ranks: the number of processes whose tensors are in each row, of shape ``(n,)``, or one number; None: one.

        Raises:
            ArgumentError: as for :meth:`append`, or the arguments do not fit each other.
            StoreError: the writer is closed.
        """
        picked = _indices(rows, layout)
        when, edges = _moments(moments, lengths, len(picked))
        made = {name: _copied(column_of(name, values, len(picked), f"{len(picked)} rows")) for name, values in columns.items()}
        joined = None if ranks is None else np.array(np.broadcast_to(np.asarray(ranks, np.int32), picked.shape))
        self.write(RowBlock(family, layout, picked, when, edges, _unknown(len(picked)), made, joined))

    def write(self, block: RowBlock) -> None:
        """Add finished rows. The arrays are not copied: nobody may change them afterwards.

        >>> from sonde.inspector import Sink
        >>> from sonde.run import memory_run
        >>> copy = memory_run()
        >>> class Copy(Sink):
        ...     def write(self, rows):
        ...         copy.write(rows.block())
        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> writer.run().send_to(Copy())
        >>> copy.run().series("1", "rms")[1].tolist()
        [0.5]

        Raises:
            ArgumentError: as for :meth:`append`.
            StoreError: the writer is closed.
        """
        self._must_be_open()
        rows = f"{block.lines} rows"
        made = {name: column_of(name, values, block.lines, rows) for name, values in block.numbers.items()}
        self._check(block.family, made)
        self._add(replace(block, numbers=made))

    def _add(self, block: RowBlock) -> None:
        for piece in [piece for piece in block.pieces(self._block) if piece.lines]:  # all of them, or where that raises none
            self._rows += piece.lines
            self._take(piece)

    def _check(self, family: str, columns: Mapping[str, Column]) -> None:
        """Raise if the family may not have these columns. Each set of names and kinds is checked once."""
        given = tuple([(name, kind_of(column)) for name, column in columns.items()])
        if (family, given) in self._accepted:
            return
        check_family(family)
        if not given:
            raise ArgumentError(f"no columns were given for the family {family!r}: give at least one number")
        kinds = {name: kind if kind in ("list", "text") else "number" for name, kind in given}
        for name, kind in kinds.items():
            check_number(name)
            before = self._kinds.get((family, name.lower()))
            if before not in (None, kind):
                raise ArgumentError(f"{name!r} of the family {family!r} held a {before} in each row before, and now a {kind}")
        if len({name.lower() for name in kinds}) < len(kinds):
            raise ArgumentError(f"two columns of the family {family!r} differ only in case, which SQL does not tell apart")
        self._kinds.update({(family, name.lower()): kind for name, kind in kinds.items()})
        self._accepted.add((family, given))

    def scalar(self, name: str, value: float, *, step: int, epoch: int = 0, scope: Scope = "global", ranks: int = 1) -> None:
        """Add one number that belongs to no site: ``loss``, ``grad_norm``, ``overhead``, a metric.

        Args:
            name, value: the number.
            step, epoch: when.
            scope: how much of the training the number is of.
            ranks: the number of processes that the number is of.

        Raises:
            ArgumentError: *value* is no number.
            StoreError: the writer is closed.
        """
        self.scalars([(name, value, step, epoch, scope, ranks)])

    def scalars(self, given: Iterable[tuple[str, float, int, int] | tuple[str, float, int, int, Scope, int]]) -> None:
        """Add several scalars, each as name, value, step, epoch, and perhaps scope and ranks. Either all are added or none.

        Raises:
            ArgumentError: a value is no number.
            StoreError: the writer is closed.
        """
        self._must_be_open()
        lines = [
            (
                whole_number("epoch", epoch),
                whole_number("step", step),
                self.process,
                *(origin or ("global", 1)),
                encodable(str(name)),
                _number(name, value),
            )
            for name, value, step, epoch, *origin in given
        ]
        if lines:
            self._take(Lines("scalars", tuple(lines)))

    def alert(
        self,
        message: str,
        *,
        step: int,
        epoch: int = 0,
        severity: str = "warn",
        rule: str = "",
        site: str = "",
        value: float | None = None,
        call: int | None = None,
        first_step: int | None = None,
        evidence: Mapping[str, float] | None = None,
        advice: str = "",
    ) -> None:
        """Add one finding of your own, in words: one that no row holds. It is in the record of findings from the next flush on.

        Args:
            message: what is wrong.
            step, epoch: when it was seen.
            severity: ``"note"``, ``"warn"`` or ``"bad"``; another word counts as ``"warn"``.
            rule: the name of the rule that found it.
            site: where; ``""`` is no place in the network.
            value: the number that the rule is about.
            call: which call of the module; -1 is all calls together.
            first_step: the first logged step at which the condition held.
            evidence: the numbers that the rule compared, by name.
            advice: one line on what to do.

        Raises:
            ArgumentError: *value*, or a value of *evidence*, is no number.
            StoreError: the writer is closed.
        """
        self._must_be_open()
        opened = whole_number("step", step)
        found = Finding(
            encodable(rule),
            encodable(message),
            encodable(str(site)),
            whole_number("epoch", epoch),
            opened,
            math.nan if value is None else _number("value", value),
            severity_of(severity),
            -1 if call is None else call,
            None if first_step is None else whole_number("first_step", first_step),
            {str(name): _number(name, number) for name, number in (evidence or {}).items()},
            encodable(advice),
            opened=opened,
        )
        self._told = (*self._told, found)
        self._record_changed()

    def told(self, found: Finding) -> None:
        """Add a finding of whoever sends the rows, unless they are judged here.

        >>> from sonde.rules import Finding
        >>> from sonde.run import Record, memory_run
        >>> writer = memory_run()
        >>> writer.told(Finding("dead", "0 is dead", "0:output", step=3))
        >>> writer.flush()
        >>> [found.message for found in writer.run().records()[0].seen]
        ['0 is dead']
        """
        if self._form is None:
            self._told = (*self._told, found)
            self._record_changed()

    def judged(self, form: Callable[[], Record]) -> None:
        """Take what forms the record of what the rules have found in the rows so far, and in those that come next.

        >>> from sonde.run import Record, memory_run
        >>> writer = memory_run()
        >>> writer.judged(lambda: Record(step=9, steps=10))
        >>> writer.flush()
        >>> writer.run().records()[0].steps
        10

        It is written with these; *form* is called then, in the thread that writes.
        """
        self._form = form
        self._record_changed()

    @property
    def record(self) -> Record:
        """What is to be written down of the findings so far."""
        judged = None if self._form is None else self._form()
        record = self.before if judged is None else judged
        before = self.before.seen if judged is not None else ()
        known = {each.identity for each in before}
        seen = (*before, *[each for each in record.seen if judged is None or each.identity not in known], *self._told)
        rows, lost, steps = self.before.rows + self._rows, self.before.lost_rows + self.lost, self.before.lost_steps
        steps += 0 if judged is None else judged.lost_steps
        return replace(record, seen=seen, fixed=self.before.fixed, rows=rows, lost_rows=lost, lost_steps=steps)

    def document(self, name: str, data: Any) -> None:
        """Write plain data as a file of its own, ``graph`` or ``coverage``, in place of an earlier one.

        Raises:
            ArgumentError: another name, or *data* is not plain data.
            StoreError: the writer is closed.
        """
        self._must_be_open()
        if name not in ("graph", "coverage"):
            raise ArgumentError(f"{name!r} is no document of a run that is written so; they are graph and coverage")
        try:
            plain, _ = parse_json(json_text(data).encode(), f"{name}.json")
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(f"{name}.json holds a dict of plain data (numbers, text, lists, dicts; no NaN): {error}") from None
        self._write_document(name, plain)

    @abstractmethod
    def describe(self, **about: Any) -> None:
        """Describe the run in plain data: ``model=``, ``environment=``, ``lenses=``, ... Names given again are replaced.

        Raises:
            ArgumentError: a value is not plain data, or this is not rank 0.
            StoreError: the writer is closed.
        """

    @abstractmethod
    def flush(self) -> None:
        """Return when all rows that were added so far can be read."""

    @abstractmethod
    def run(self) -> Run:
        """Return the run, to read. Rows that are written later appear in it."""

    def note_end(self, error: BaseException, *, step: int | None = None, epoch: int | None = None) -> None:
        """Note in the run that *error* ends the training; the run is ``failed`` or ``interrupted`` then. Call ``close`` as well.

        >>> import sonde, tempfile
        >>> from sonde.run import start_run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     writer = start_run(f"{folder}/a")
        ...     writer.note_end(ValueError("no more data"), step=3)
        ...     writer.close()
        ...     sonde.open_run(f"{folder}/a").state
        'failed'

        The first error counts. After the end of a ``with`` block by an error this has been done. ``sys.exit()`` is no error.

        Args:
            error: the exception.
            step, epoch: those that were running; None if unknown.
        """
        end = End.of(error, self.attempt, self.rank, step=step, epoch=epoch)
        if end is not None and not (self._closed or self._has_end):
            self._has_end = True
            self._keep_end(end)

    def close(self) -> None:
        """End the writing; all rows can be read then. Idempotent."""
        if not self._closed:
            self._closed = True
            self._end()

    @abstractmethod
    def _end(self) -> None: ...

    @abstractmethod
    def _keep_end(self, end: End) -> None: ...

    @abstractmethod
    def _take(self, item: RowBlock | Lines) -> None: ...

    @abstractmethod
    def _record_changed(self) -> None: ...

    @abstractmethod
    def _write_document(self, name: str, data: Any) -> None: ...

    def _must_be_open(self) -> None:
        if self._closed:
            raise StoreError("this writer is closed: start_run(path, exists='resume') continues its run")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.note_end(error)
        self.close()


def _picked(rows: Any, layout: Layout) -> npt.NDArray[np.intp]:
    """A mask of the layout's rows, or indices, as indices."""
    picked = np.asarray(rows)
    if picked.dtype != bool:
        return _indices(picked, layout)
    if picked.shape != (len(layout),):
        raise ArgumentError(f"a mask of the shape {picked.shape} does not fit a layout of {len(layout)} sites")
    return np.flatnonzero(picked)


def _indices(rows: Any, layout: Layout) -> npt.NDArray[np.intp]:
    picked = np.asarray(rows)
    if picked.ndim != 1 or picked.dtype.kind not in "iu" or (picked.size and not 0 <= picked.min() <= picked.max() < len(layout)):
        raise ArgumentError(f"rows is a mask or the indices of some of {len(layout)} rows, not {rows!r}")
    return picked.astype(np.intp)  # a copy


def _moments(moments: Any, lengths: Any, rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp]]:
    """The moments of an ``extend`` and the edges between their rows, if they can be."""
    when, counts = np.asarray(moments), np.asarray(lengths)
    if when.ndim != 2 or when.shape[1] != 3 or when.dtype.kind not in "iu" or (when.size and when.min() < 0):
        raise ArgumentError(
            f"moments holds epoch, step and micro-step of each moment, whole numbers from 0 of shape (moments, 3), not {moments!r}"
        )
    if counts.shape != (len(when),) or counts.dtype.kind not in "iu" or counts.sum() != rows or (counts.size and counts.min() < 0):
        raise ArgumentError(f"lengths says how many of {rows} rows each of {len(when)} moments has; {lengths!r} was given")
    return when.astype(np.int64), np.concatenate([np.zeros(1, np.intp), np.cumsum(counts, dtype=np.intp)])


def _unknown(rows: int) -> npt.NDArray[np.float64]:
    """Return NaN for each row: how often something was added to it is not known."""
    return np.broadcast_to(np.float64(np.nan), (rows,))


def _copied(column: Column) -> Column:
    return np.array(column) if isinstance(column, np.ndarray) else list(column)


def _at(column: Column, rows: npt.NDArray[np.intp]) -> Column:
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"the number {name!r} is a number, not {value!r}") from None
