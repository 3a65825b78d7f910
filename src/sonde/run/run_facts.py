"""Say what a run holds, as plain data: settings, environment, families with their rows and bytes, files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.escape import encodable
from sonde.run.folder.duckdb_sql import quoted
from sonde.run.folder.end import decisive
from sonde.run.folder.files import folder_size
from sonde.run.record import counted

if TYPE_CHECKING:
    from sonde.run.run import Run


_SINGLE = ("scalars",)


def facts_of_run(run: Run) -> dict[str, Any]:
    """Return what *run* holds, as plain data.

    >>> from sonde.run import facts_of_run, memory_run
    >>> facts_of_run(memory_run({"config": {"lr": 0.1}}).run())["settings"]
    {'lr': 0.1}

    Returns:
        ``run`` (its name), ``path``, ``state``; ``end``: the error that ended the run, or None; ``attempts``: of each its first
        step, when it began and ended, in seconds since 1970, its lost rows, and the error that ended it, in words; ``steps``:
        how many are logged, the first and the last; ``epochs``, ``sites``, ``layers``, ``ranks``: how many; ``families``: of each
        ``rows``, ``steps``, ``sites``, ``numbers``, ``bytes`` and ``bytes_per_row`` on disk; ``scalars``: their names;
        ``settings`` by dotted name; ``lenses``; ``findings``: how many; ``counted``: in words; ``verdict``; ``judged``: the last
        ``step`` that was judged and how many ``steps``; ``shortfalls``: what the findings leave out, in words; ``documents``;
        ``files``: bytes by the first part of the path; ``bytes`` of all; ``lost``: damaged or missing parts, in words; ``pruned``,
        in words.
    """
    families = {family: _family(run, family) for family in run.families}
    numbers, ends = run.numbers, run.ends
    for family, found in families.items():
        found["numbers"] = list(numbers.get(family, ()))
    union = " UNION ".join(f"SELECT step, epoch FROM {quoted(family)}" for family in families)
    spans = "count(DISTINCT step), min(step), max(step), count(DISTINCT epoch)"
    steps = run.sql(f"SELECT {spans} FROM ({union})").fetchall()[0] if families else (0, None, None, 0)
    scalars = run.sql("SELECT DISTINCT name FROM scalars ORDER BY name").fetchall() if "scalars" in families else []
    files = {} if run.path is None else _files(run.path)
    info, record = run.info, run.record
    lenses, modules = info.get("lenses"), info.get("model")
    return {
        "run": "run" if run.path is None else run.path.name,
        "path": None if run.path is None else str(run.path),
        "state": run.state,
        "end": None if (end := run.end) is None else end.to_data(),
        "attempts": [
            {
                "first_step": each.first_step,
                "began": each.started,
                "ended": each.ended,
                "lost": each.lost,
                "end": None if (end := decisive(ends, each.attempt)) is None else end.words,
            }
            for each in run.description.attempts
        ],
        "steps": {"logged": steps[0], "first": steps[1], "last": steps[2]},
        "epochs": steps[3],
        "sites": len(run.sites),
        "layers": len(modules) if isinstance(modules, list) else 0,
        "ranks": len(run.ranks),
        "meaning_of_ranks": run.described_ranks,
        "families": families,
        "scalars": [name for (name,) in scalars],
        "settings": run.settings,
        "lenses": lenses if isinstance(lenses, list) else [],
        "findings": len(record.findings),
        "counted": counted(record.findings),
        "verdict": record.verdict,
        "judged": {"step": record.step, "steps": record.steps},
        "shortfalls": run.shortfalls,
        "documents": [name for name in ("graph", "coverage") if run.document(name) is not None],
        "files": files,
        "bytes": sum(files.values()),
        "lost": {family: list(said) for family, said in run.lost.items()},
        "pruned": run.pruned,
    }


def _family(run: Run, family: str) -> dict[str, Any]:
    sites = "NULL" if family in _SINGLE else "count(DISTINCT site)"
    rows, steps, first, last, places = run.sql(
        f"SELECT count(*), count(DISTINCT step), min(step), max(step), {sites} FROM {quoted(family)}"
    ).fetchall()[0]
    taken = None if run.path is None else folder_size(run.path / family)
    return {
        "rows": rows,
        "steps": steps,
        "first": first,
        "last": last,
        "sites": places,
        "bytes": taken,
        "bytes_per_row": None if taken is None or not rows else taken / rows,
    }


def _files(folder: Path) -> dict[str, int]:
    return dict(sorted(_sizes(folder), key=lambda entry: (-entry[1], entry[0])))


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    for path in folder.iterdir():
        if path.is_dir():
            yield f"{encodable(path.name)}/", folder_size(path)
        else:
            try:
                yield encodable(path.name), path.stat().st_size
            except OSError:  # merged or removed meanwhile
                continue
