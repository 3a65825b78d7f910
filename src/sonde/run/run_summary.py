"""What a list of runs shows of one: made from its scalars, its record of findings and its description, and kept beside them.

``summary.json`` names the files it was made of: the content of small ones, and the names of the parts with scalars, which
hold checksums. A run that was written, pruned or judged again since has other files, and its summary is not used: a reader makes
one anew. So it may be missing or old, and is never wrong.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sonde.answer import Verdict
from sonde.errors import StoreError
from sonde.run import form
from sonde.run.folder.checksum import checksum
from sonde.run.folder.duckdb_sql import connect, numbers_of, quoted
from sonde.run.folder.end import End, decisive
from sonde.run.folder.files import FILE, SUMMARY, check_regular
from sonde.run.folder.json_file import read_bytes, read_json, write_json
from sonde.run.folder.source import DiskSource, Source
from sonde.run.record import Record, counted, damage_told, health_of
from sonde.run.run_settings import joined_settings
from sonde.run.schema import may_be_family

if TYPE_CHECKING:
    import duckdb
    import pyarrow


_LARGEST = 2**62
_FORM = 1  # of the file; what another sonde wrote in another form is not read
_OF = ("written-", "findings")  # how the names of the other documents begin that a summary is made of


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a list shows of a run: what its scalars, its record of findings and its description say.

    >>> from sonde.run import RunSummary
    >>> summary = RunSummary(first=0, last=9, loss=0.5, verdict="ok")
    >>> summary.loss, summary.health([]), summary.doubts(damaged=1), summary.health(summary.doubts(damaged=1))
    (0.5, 'ok', ['1 part of the run cannot be read'], 'unknown')

    Attributes:
        first, last: the steps of its scalars; of a run without any, None and the last step with rows, if there is one.
        loss: the last value of ``loss``, or of the scalar that is most like it; None without any.
        course: means of its finite values over equal parts of its steps, at most 40; NaN for a part without any.
        scalars: by name the last value, and the least and the greatest finite one; NaN without any.
        settings: the configuration by dotted names, with the first learning rates, as :attr:`Run.settings` without the environment.
        verdict: the gravest of the findings, as :attr:`Run.verdict`.
        findings: how many there are; ``counted``: in words; ``root``: the rule of the first, ``""`` without any.
        judged: the last step that was judged; -1 where none was.
        shortfalls: what the findings leave out, in words, but for damage; ``losses``: those of them that were never written.
        attempts: how many wrote the run; ``started``: when the first began, in seconds since 1970; ``ended``: whether the last has.
        end: the error or interrupt that ended it, if one did.
        pruned: what was taken out, in words.
        model: the class of the model, ``layers``: how many modules it has, as far as the run says.
    """

    first: int | None = None
    last: int | None = None
    loss: float | None = None
    course: tuple[float, ...] = ()
    scalars: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    verdict: Verdict = "unknown"
    findings: int = 0
    counted: str = "no findings"
    root: str = ""
    judged: int = -1
    shortfalls: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    attempts: int = 0
    started: float | None = None
    ended: bool = False
    end: End | None = None
    pruned: str = ""
    model: str = ""
    layers: int = 0

    def doubts(self, damaged: int) -> list[str]:
        """Return in words what the findings leave out, where so many parts were found *damaged*."""
        return [*self.shortfalls, *damage_told(damaged)]

    def health(self, doubts: Sequence[str]) -> Verdict:
        """Return the verdict as a list shows it: ``ok`` only where no *doubts* are left."""
        return health_of(self.verdict, doubts)


def kept_summary(folder: Path) -> RunSummary | None:
    """Return the summary that is kept in *folder*; None where there is none, or the run has other files now."""
    with suppress(OSError, StoreError):
        held = _SUMMARY(read_json(folder / SUMMARY), SUMMARY)
        if held.pop("form") == _FORM and held.pop("of") == _made_of(folder):
            given = held.pop("end")
            end = None if given is None else End.read(given, form.count(given.get("rank"), "rank"))
            return RunSummary(**held, end=end) if (end is None) == (given is None) else None
    return None


def keep_summary(folder: Path) -> None:
    """Keep the summary of the run in *folder*, if all can be read and nothing changes meanwhile. Nothing is raised or warned of."""
    with suppress(Exception):
        of, source = _made_of(folder), DiskSource(folder, warns=False)
        found = of_source(source)
        if not source.lost and source.describe().intact and _made_of(folder) == of:
            data = {name: _plain(held) for name, held in asdict(replace(found, end=None)).items()}
            end = None if found.end is None else found.end.to_data()
            write_json(folder / SUMMARY, {"form": _FORM, "of": of, **data, "end": end}, sync=False)


def _made_of(folder: Path) -> str:
    """Return a text that differs where a summary of the run would: the content of documents, the names of families and of parts."""
    seen: list[tuple[str, str | int]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name == FILE or (name.startswith(_OF) and name.endswith(".json")):
                seen.append((name, checksum(read_bytes(folder / name))))
            elif may_be_family(name):
                seen.append((name, ""))
    with suppress(FileNotFoundError), os.scandir(folder / "scalars") as entries:
        seen += [(entry.name, entry.stat().st_size) for entry in entries if entry.name.endswith(".parquet")]
    return hashlib.blake2b(repr(sorted(seen)).encode(), digest_size=16).hexdigest()


def _plain(held: Any) -> Any:
    """Return *held* as JSON has it: numbers that are not finite as texts, as ``"nan"``; those of settings are none."""
    if isinstance(held, Mapping):
        return {name: _plain(each) for name, each in held.items()}
    if isinstance(held, tuple | list):
        return [_plain(each) for each in held]
    return str(held) if isinstance(held, float) and not math.isfinite(held) else held


def _number(held: Any, where: str) -> float:
    return held if type(held) is float else float(held) if held in ("nan", "inf", "-inf") else form.number(held, where)


_SUMMARY = form.members(
    form=form.count,
    of=form.text,
    first=form.optional(form.count),
    last=form.optional(form.count),
    loss=form.optional(_number),
    course=form.listed(_number),
    scalars=form.named(form.listed(_number, 3)),
    settings=form.mapping,
    verdict=form.one_of("bad", "warn", "note", "ok", "unknown"),
    findings=form.count,
    counted=form.text,
    root=form.text,
    judged=form.whole(-1),
    shortfalls=form.listed(form.text),
    losses=form.listed(form.text),
    attempts=form.count,
    started=form.optional(form.time),
    ended=form.flag,
    end=form.optional(form.mapping),
    pruned=form.text,
    model=form.text,
    layers=form.count,
)


_PARTS = 40  # of a course
_COLUMNS = ("name", "step", "value")
_ROWS = 1 << 18  # that are read together: of a long run only those of losses stay in memory
_TRIES = 10  # while parts are merged


@dataclass(slots=True)
class _Scalar:
    """What is known of one scalar from the rows so far: the first and the last step with their values, the finite extremes."""

    first: int
    begun: float
    last: int
    ended: float
    least: float = math.nan
    most: float = math.nan

    def take(self, steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> None:
        """Take more rows, at least one."""
        early, late = int(steps.argmin()), int(steps.argmax())
        if steps[early] < self.first:
            self.first, self.begun = int(steps[early]), float(values[early])
        if steps[late] > self.last:
            self.last, self.ended = int(steps[late]), float(values[late])
        finite = values[np.isfinite(values)]
        if len(finite):
            self.least, self.most = float(np.fmin(self.least, finite.min())), float(np.fmax(self.most, finite.max()))


def of_scalars(tables: Iterable[pyarrow.Table]) -> RunSummary:
    """Return what the scalars of one run say: *tables* have their names, steps and values."""
    found: dict[str, _Scalar] = {}
    losses: dict[str, list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]] = {}
    for table in tables:
        encoded = table.column("name").combine_chunks().dictionary_encode()
        codes, steps = numbers_of(encoded.indices), numbers_of(table.column("step"))
        values = np.asarray(numbers_of(table.column("value")), np.float64)
        order = np.argsort(codes, kind="stable")
        edges = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
        for place, name in enumerate(encoded.dictionary.to_pylist()):
            rows = order[edges[place] : edges[place + 1]]
            known = found.setdefault(name, _Scalar(_LARGEST, math.nan, -1, math.nan))
            known.take(steps[rows], values[rows])
            if "loss" in name:
                losses.setdefault(name, []).append((steps[rows], values[rows]))
    likely = min(losses, key=lambda name: (name != "loss", "val" in name, name), default=None)
    return RunSummary(
        min((each.first for each in found.values()), default=None),
        max((each.last for each in found.values()), default=None),
        None if likely is None else found[likely].ended,
        () if likely is None else _course(*map(np.concatenate, zip(*losses[likely], strict=True))),
        {name: (each.ended, each.least, each.most) for name, each in found.items()},
        {name: each.begun for name, each in sorted(found.items()) if name == "lr" or name.startswith("lr/")},
    )


def _course(steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    """Return the means of the finite *values* over equal parts of the *steps*; of a part without steps there is none."""
    first = steps.min()
    parts = (steps - first) * _PARTS // (steps.max() - first + 1)
    finite = np.isfinite(values)
    counts = np.bincount(parts[finite], minlength=_PARTS)
    sums = np.bincount(parts[finite], values[finite], minlength=_PARTS)
    with np.errstate(invalid="ignore", over="ignore"):
        return tuple((sums / counts)[np.unique(parts)].tolist())


def _of_disk(source: DiskSource) -> RunSummary:
    """As :func:`of_scalars`, of the parts of *source*, which are read without a database.

    Raises:
        StoreError: they cannot be read.
    """
    for tries_left in reversed(range(_TRIES)):
        files = source.files(("scalars",))
        try:
            return of_scalars(_tables(files.get("scalars", ())))
        except Exception as error:  # of arrow's and thrift's, or because parts were merged meanwhile
            if not tries_left or (source.files(("scalars",)) == files and not source.find_damaged(files)):
                raise StoreError(f"{source.name} cannot be read: {error}") from error
    raise AssertionError("the last try has returned or raised")


def _tables(parts: Iterable[tuple[Path, int | None]]) -> Iterator[pyarrow.Table]:
    import pyarrow.compute
    import pyarrow.parquet

    for path, limit in parts:
        check_regular(path)
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS, columns=_COLUMNS):
                table = pyarrow.Table.from_batches([batch])
                yield table if limit is None else table.filter(pyarrow.compute.field("step") < limit)


def of_source(source: Source) -> RunSummary:
    """Return what a list shows of the run that *source* reads, as it is now.

    Raises:
        StoreError: its scalars cannot be read.
    """
    if isinstance(source, DiskSource):
        known = _of_disk(source)
    else:
        with connect({"threads": 1}) as connection:
            known = source.ask(connection, lambda duck, families: of_scalars(_registered(duck) if "scalars" in families else ()))
    if known.last is None:
        with connect({"threads": 1}) as connection:
            known = RunSummary(last=source.ask(connection, _last_step))
    return _joined(known, source)


def _joined(known: RunSummary, source: Source) -> RunSummary:
    """Return *known*, which says what the scalars of a run say, with what *source* says of the same run beside its rows."""
    description, record = source.describe(), Record.merged(list(source.records().values()))
    attempts, about, findings = description.attempts, description.about, record.findings
    config, modules = about.get("config"), about.get("model")
    lines = [line for line in modules if isinstance(line, Mapping)] if isinstance(modules, list) else []
    return replace(
        known,
        settings=joined_settings(config if isinstance(config, Mapping) else {}, known.settings, None),
        verdict=record.verdict,
        findings=len(findings),
        counted=counted(findings),
        root=next((each.rule for each in findings), ""),
        judged=record.step,
        shortfalls=tuple(record.shortfalls(-1 if known.last is None else known.last, 0)),
        losses=tuple(record.losses()),
        attempts=len(attempts),
        started=attempts[0].started if attempts else None,
        ended=bool(attempts) and attempts[-1].ended is not None,
        end=decisive(source.ends, attempts[-1].attempt) if attempts else None,
        pruned=description.pruned_words,
        model=str(lines[0].get("type", "")) if lines else "",
        layers=len(lines),
    )


def _registered(connection: duckdb.DuckDBPyConnection) -> list[pyarrow.Table]:
    return [connection.sql("SELECT name, step, value FROM scalars").to_arrow_table()]


def _last_step(connection: duckdb.DuckDBPyConnection, families: tuple[str, ...]) -> int | None:
    ends = [connection.execute(f"SELECT max(step) FROM {quoted(family)}").fetchall()[0][0] for family in families]
    return max((step for step in ends if step is not None), default=None)
