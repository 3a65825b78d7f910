"""Thin a run that has ended: keep one step of many, take out whole families, and say so in the run."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sonde.errors import ArgumentError, StoreError
from sonde.paths import short_path
from sonde.run.folder.alone import alone, ranks_of, refuse_if_written
from sonde.run.folder.duckdb_sql import quoted
from sonde.run.folder.files import folder_size, remove_leftovers
from sonde.run.folder.parts import parts_in, prefix_of
from sonde.run.folder.prunings import Pruning
from sonde.run.folder.records import write_records
from sonde.run.folder.run_json import Description
from sonde.run.folder.written import Written
from sonde.run.record import Record
from sonde.run.recorded_findings import chosen_in, judged_again
from sonde.run.run import Run, open_run
from sonde.run.run_summary import keep_summary
from sonde.run.schema import whole_number
from sonde.run.store.compaction import Merger, sweep
from sonde.suggest import unknown_name

_KEPT = ("scalars",)


@dataclass(frozen=True)
class PrunedFamily:
    """What pruning takes out of one family: counts before and after.

    Attributes:
        family: its name.
        steps, rows, size: logged steps, rows and bytes, each as it was and as it is; bytes of a dry run are estimated by rows.
    """

    family: str
    steps: tuple[int, int]
    rows: tuple[int, int]
    size: tuple[int, int]


@dataclass(frozen=True)
class PrunedRun:
    """What :func:`prune` takes out of a run.

    >>> import tempfile
    >>> from sonde.run import Layout, prune, start_run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with start_run(f"{folder}/a") as writer:
    ...         writer.append("moments", Layout(["0:output"]), {"rms": [1.0]}, step=0)
    ...     prune(f"{folder}/a", every=5, dry_run=True).dry_run
    True

    Attributes:
        path: the folder of the run.
        families: those that lose rows.
        size: bytes of the whole folder before and after; after a dry run, estimated.
        dry_run: whether nothing was changed.
    """

    path: Path
    families: tuple[PrunedFamily, ...]
    size: tuple[int, int]
    dry_run: bool

    def __repr__(self) -> str:
        verb = "would go" if self.dry_run else "went"
        lines = [f"{short_path(self.path)}: {self.size[0]:,} bytes before, {'about ' * self.dry_run}{self.size[1]:,} after"]
        for each in self.families:
            gone = each.rows[0] - each.rows[1]
            lines.append(
                f"{each.family}: {gone:,} of {each.rows[0]:,} rows {verb}, {each.steps[1]:,} of {each.steps[0]:,} steps stay"
            )
        return "\n".join(lines)


def prune(
    run: Run | str | os.PathLike[str],
    *,
    every: int | None = None,
    families: Collection[str] | None = None,
    drop: Collection[str] = (),
    keep_last: int = 0,
    dry_run: bool = False,
) -> PrunedRun:
    """Take rows out of a run that has ended, and return what went.

    >>> import sonde, tempfile
    >>> from sonde.run import Layout, prune, start_run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with start_run(f"{folder}/a") as writer:
    ...         for step in range(10):
    ...             writer.append("moments", Layout(["0:output"]), {"rms": [1.0]}, step=step)
    ...     gone = prune(f"{folder}/a", every=5)
    ...     sonde.open_run(f"{folder}/a").series("0", "rms")[0].tolist(), gone.dry_run
    ([0, 5, 9], False)

    Of each *every* steps one logged step is left, the same in all families as far as they have it. The first and the last logged
    step of each family stay, and so do the steps that findings name. Losses and other scalars stay whole. All rows are judged
    before, and up to the last step of that time the record of findings stays as it is from then on.

    New files take the place of old ones whole: after a kill at any moment the run can be read, and pruning again ends the work.

    Args:
        run: a run on disk, or its folder.
        every: keep one of so many steps of the training.
        families: thin these families alone; by default all families of numbers. ``scalars`` is thinned if it is named here.
        drop: take these families out as a whole.
        keep_last: leave so many of the last logged steps whole.
        dry_run: change nothing, and return what would go; bytes are estimated.

    Raises:
        ArgumentError: nothing is to be taken out, a number cannot be used, or nothing would be left.
        UnknownSiteError: the run has no such family; the message names the nearest.
        StoreError: there is no run, somebody is writing it, or it cannot be written.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    folder = opened.path
    if folder is None:
        raise ArgumentError("a run in memory is not pruned: only one on disk is")
    _check(opened, every, families, drop, keep_last)
    wish = _Wish(every, families, drop, keep_last)
    if dry_run:
        refuse_if_written(folder)
        return _planned(folder, _plan(opened, wish, _judged(opened)), dry_run=True)
    try:
        with alone(folder):
            return _prune(opened, folder, wish)
    except OSError as error:
        raise StoreError(f"{folder} could not be pruned: {error}. It can be read; pruning it again ends the work") from error


def _check(run: Run, every: int | None, families: Collection[str] | None, drop: Collection[str], keep_last: int) -> None:
    """Raise for what cannot be asked of *run*."""
    if every is not None and whole_number("every", every) < 2:
        raise ArgumentError(f"every={every} leaves all steps: give 2 or more")
    whole_number("keep_last", keep_last)
    for name, given in (("families", families), ("drop", drop)):
        if isinstance(given, str):
            raise ArgumentError(f"{name}={given!r}: give a list of names, as [{given!r}]")
    if every is None and not drop:
        raise ArgumentError("say what is to be taken out: every=10 keeps one step of ten, drop=['exponents'] takes a family out")
    there = run.families
    for family in (*(families or ()), *drop):
        if family not in there and not any(family in each.dropped for each in run.description.pruned):
            raise unknown_name("family", family, there, short_path(run.path) if run.path else "")
        if family == "scalars" and family in drop:
            raise ArgumentError("scalars stay: they hold the loss of the training, and its last step")


@dataclass(frozen=True)
class _Wish:
    """The arguments of :func:`prune`."""

    every: int | None
    families: Collection[str] | None
    drop: Collection[str]
    keep_last: int


@dataclass(frozen=True)
class _Plan:
    """The steps that stay, by family, and how many rows each step of each family has."""

    kept: Mapping[str, frozenset[int]]
    there: Mapping[str, Mapping[int, int]]
    dropped: tuple[str, ...]
    last: int


def _judged(run: Run) -> dict[int, Record]:
    """Return by rank the records of the run, with what the rules find in all rows that there are."""
    return judged_again(run, chosen_in(run))


def _plan(run: Run, wish: _Wish, records: Mapping[int, Record]) -> _Plan:
    there = {}
    for family in run.families:
        counted = run.sql(f"SELECT step, count(*) FROM {quoted(family)} GROUP BY step ORDER BY step").fetchall()
        there[family] = dict(counted)
    dropped = tuple([family for family in wish.drop if family in there])
    left = {family: steps for family, steps in there.items() if family not in dropped and steps}
    last = max((max(steps) for steps in there.values() if steps), default=-1)
    if dropped and last > max((max(steps) for steps in left.values()), default=-1):
        raise ArgumentError(
            f"{', '.join(dropped)} alone has rows of the last step, {last:,}: thin it with every= to keep that step"
        )
    kept: dict[str, set[int]] = {}
    if wish.every is not None:
        wanted = [family for family in left if family not in _KEPT] if wish.families is None else [*wish.families]
        thinned = {family: list(left[family]) for family in wanted if family in left}
        kept = steps_left(thinned, wish.every, wish.keep_last, _named(records.values()))
    fewer = {family: frozenset(steps) for family, steps in kept.items() if len(steps) < len(there[family])}
    return _Plan(fewer, there, dropped, last)


def _named(records: Iterable[Record]) -> set[int]:
    """Return the steps that findings name."""
    every = (each for record in records for each in (*record.seen, *record.judged))
    return {step for each in every for step in (each.step, each.first_step, each.last_step) if step is not None}


def steps_left(steps_of: Mapping[str, Sequence[int]], every: int, keep_last: int, named: Collection[int]) -> dict[str, set[int]]:
    """Return by family the steps that stay.

    Of each *every* steps the one at which most families have rows stays, the earliest of several; of a family without it, its own
    first. The first, the last, the *keep_last* last logged steps and the *named* ones stay too, each in all families that have
    it. Thinning again changes nothing.

    >>> left = steps_left({"moments": [0, 5, 10, 15, 20, 25], "rare": [5, 15, 25]}, 10, 0, [])
    >>> {family: sorted(steps) for family, steps in left.items()}
    {'moments': [0, 5, 15, 25], 'rare': [5, 15, 25]}
    """
    together = Counter(step for family, steps in steps_of.items() if family not in _KEPT for step in steps)
    together = together or Counter(step for steps in steps_of.values() for step in steps)
    best: dict[int, int] = {}
    for step in sorted(together):
        if step // every not in best or together[step] > together[best[step // every]]:
            best[step // every] = step
    whole_from = sorted(together)[-keep_last:][:1] if keep_last else []
    kept = {*named, *(step for step in together for start in whole_from if step >= start)}
    for steps in steps_of.values():
        own = {step // every: step for step in sorted(steps, reverse=True)}
        logged = set(steps)
        kept |= {best[bucket] if best.get(bucket) in logged else first for bucket, first in own.items()} | {min(steps), max(steps)}
    return {family: kept & set(steps) for family, steps in steps_of.items()}  # at a step that stays, all of them stay


def _planned(folder: Path, plan: _Plan, *, dry_run: bool, before: Mapping[str, int] | None = None) -> PrunedRun:
    """Return what the plan takes out; after the work, with the sizes *before* it."""
    families, saved = [], 0
    for family in (*plan.kept, *plan.dropped):
        rows = plan.there[family]
        left = plan.kept.get(family, frozenset())
        counts = sum(rows.values()), sum(rows[step] for step in left)
        now = folder_size(folder / family)
        size = (now, round(now * counts[1] / counts[0]) if counts[0] else 0) if before is None else (before[family], now)
        saved += size[0] - size[1]
        families.append(PrunedFamily(family, (len(rows), len(left)), counts, size))
    whole = folder_size(folder)
    return PrunedRun(folder, tuple(families), (whole, whole - saved), dry_run)


def _prune(run: Run, folder: Path, wish: _Wish) -> PrunedRun:
    """Do the work; this process holds all locks."""
    ranks = ranks_of(folder)
    remove_leftovers(folder, "")
    for within in [each for each in folder.iterdir() if each.is_dir() and parts_in(each)]:
        for rank in ranks:
            remove_leftovers(within, prefix_of(rank))
            sweep(within, rank)
    size = folder_size(folder)
    records = _judged(run)
    plan = _plan(run, wish, records)
    last = max(plan.last, 0)
    write_records(folder, {rank: replace(record, fixed=max(record.fixed, last)) for rank, record in records.items()})
    before = {family: folder_size(folder / family) for family in (*plan.kept, *plan.dropped)}
    description, pruning = _begun(folder, plan, wish, size)
    description.write(folder, sync=True)
    threads = min(4, os.cpu_count() or 1)
    attempt = description.attempts[-1].attempt if description.attempts else 1
    for rank in ranks:
        with Merger(rank, attempt, description.cutoffs, sync=True, threads=threads) as merger:
            for family, steps in plan.kept.items():
                merger.thin(folder / family, steps)
    for family in plan.dropped:
        _drop(folder, family, ranks)
    done = replace(_planned(folder, plan, dry_run=False, before=before), size=(pruning.size[0], folder_size(folder)))
    pruning = replace(pruning, finished=True, size=done.size)
    replace(description, pruned=(*description.pruned[:-1], pruning)).write(folder, sync=True)
    keep_summary(folder)
    return done


def _begun(folder: Path, plan: _Plan, wish: _Wish, size: int) -> tuple[Description, Pruning]:
    """Return the description of the run while it is pruned. What an interrupted pruning has noted is taken over."""
    description = Description.read(folder)
    former = description.pruned[-1] if description.pruned and not description.pruned[-1].finished else None
    steps = {family: (len(plan.there[family]), len(kept)) for family, kept in plan.kept.items()}
    rows = {
        family: (sum(plan.there[family].values()), sum(plan.there[family][step] for step in kept))
        for family, kept in plan.kept.items()
    }
    dropped, every = plan.dropped, wish.every
    if former is not None:
        steps = {**former.steps, **{name: (former.steps.get(name, pair)[0], pair[1]) for name, pair in steps.items()}}
        rows = {**former.rows, **{name: (former.rows.get(name, pair)[0], pair[1]) for name, pair in rows.items()}}
        size, dropped = (
            former.size[0],
            tuple(dict.fromkeys((*(name for name in former.dropped if name not in plan.there), *dropped))),
        )
        every = every or former.every
    pruning = Pruning(
        time.time(),
        every,
        wish.keep_last,
        max(plan.last, 0),
        steps,
        rows,
        dropped,
        (size, size),
    )
    others = description.pruned if former is None else description.pruned[:-1]
    return replace(description, pruned=(*others, pruning)), pruning


def _drop(folder: Path, family: str, ranks: Sequence[int]) -> None:
    """Take a family out. The list of what was written goes first, so that no part is missing from it at any moment."""
    for rank in ranks:
        with suppress(StoreError):  # damaged: a reader says so
            written = Written.read(folder, rank)
            if family in written.families:
                left = {name: last for name, last in written.families.items() if name != family}
                replace(written, families=left).write(folder, rank, sync=True)
    for part in sorted(parts_in(folder / family), key=lambda part: (part.last, part.generation), reverse=True):
        (folder / family / part.name).unlink(missing_ok=True)
    with suppress(OSError):  # it holds something of the user's
        (folder / family).rmdir()
