"""Write rows of a run to CSV or Parquet, one file for each family, a few steps at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from sonde.errors import ArgumentError, UnknownSiteError
from sonde.paths import absolute_path
from sonde.rows import KEYS
from sonde.run.folder.duckdb_sql import literal, quoted
from sonde.run.folder.files import appearing
from sonde.run.schema import READ_ORDER
from sonde.suggest import nearest, unknown_name
from sonde.words import percent

if TYPE_CHECKING:
    import duckdb
    import pyarrow


Form = Literal["csv", "parquet"]
Exported = dict[str, Path]
"""The files that were written, by family."""

_SINGLE = ("scalars",)
_AT_ONCE = 200_000  # rows


class _Readable(Protocol):
    """What is read of a :class:`sonde.run.run.Run`."""

    @property
    def families(self) -> tuple[str, ...]: ...

    def sql(self, query: str) -> duckdb.DuckDBPyRelation: ...


def export(
    run: _Readable,
    path: str | os.PathLike[str],
    form: Form | None = None,
    *,
    families: Collection[str] | None = None,
    number: str | Collection[str] | None = None,
    port: str | None = None,
    layers: str | None = None,
    first: int | None = None,
    last: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Exported:
    """Write rows of *run* to files, and return their paths by family.

    >>> import tempfile
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = writer.run().export(folder, "csv")
    ...     {family: path.name for family, path in paths.items()}
    {'moments': 'moments.csv'}

    Each family is one file, in the order of steps, with its columns as the run has them: the keys (``epoch``, ``step``,
    ``micro_step``, ``rank``, ``scope``, ``ranks``, ``model``, ``site``, ``layer``, ``port``, ``leaf``, ``call``, ``order``), then
    its numbers. In CSV a missing number is empty, NaN is ``nan``, and a list of numbers is a JSON array. A file appears when it is
    whole. Memory holds some 200,000 rows at a time, however large the run is.

    Args:
        run: to read.
        path: a folder for the files, made if it does not exist; or one file, ``.csv`` or ``.parquet``, where one family is written.
        form: ``"csv"`` or ``"parquet"``; by default what the end of *path* says, else Parquet.
        families: these alone.
        number: the numbers that are written, as ``"rms"``, of the families that have them; ``scalars`` are then left out
            unless *families* names them.
        port: the rows of this port alone, as ``"grad"``; *number* says what happens to ``scalars``.
        layers: the rows of layers in whose name this regular expression is found; *number* says the same.
        first, last: the first and the last step.
        progress: called with a text now and then.

    Raises:
        ArgumentError: an argument does not fit, several families do not fit into one file, or a file cannot be written.
        UnknownSiteError: there is no such family, number, port or layer; the message names the nearest.
    """
    target = absolute_path(path)
    ending = target.suffix.lower().removeprefix(".")
    chosen_form = form or (ending if ending in get_args(Form) else "parquet")
    if chosen_form not in get_args(Form):
        raise ArgumentError(f"form={form!r}: give 'csv' or 'parquet'")
    if form is not None and ending in get_args(Form) and ending != form:
        raise ArgumentError(f"{target.name!r} is no name for {form}: end it with .{form}, or leave form= out")
    numbers = None if number is None else [number] if isinstance(number, str) else list(number)
    narrowed = numbers is not None or port is not None or layers is not None
    known = run.families
    for family in families or ():
        if family not in known:
            raise unknown_name("family", family, known, "the run")
    wanted = [family for family in known if (family in families if families is not None else not narrowed or family not in _SINGLE)]
    columns = {family: _columns(run, family, numbers) for family in wanted}
    if numbers is not None and not any(columns.values()):
        there = {name for family in wanted for name in _columns(run, family, None) if name not in KEYS}
        raise UnknownSiteError(f"no family has the number {numbers[0]!r}. {nearest(numbers[0], sorted(there))}")
    wanted = [family for family in wanted if columns[family]]
    conditions = {family: _condition(run, family, port, layers, first, last) for family in wanted}
    whole = {family: where for family, where in conditions.items() if where is not None}
    if wanted and not whole:
        asked = " and ".join([*([f"port {port!r}"] if port else []), *([f"layers {layers!r}"] if layers else [])])
        raise UnknownSiteError(f"no row has {asked}. {nearest(port or layers or '', _names(run, wanted, port is not None))}")
    single = ending in get_args(Form)
    if single and len(whole) != 1:
        raise ArgumentError(
            f"{target.name} is one file, and {len(whole)} families are to be written ({', '.join(whole)}): name one of them, or "
            "give a folder"
        )
    try:
        (target.parent if single else target).mkdir(parents=True, exist_ok=True)
        written = {}
        for family, where in whole.items():
            file = target if single else target / f"{family}.{chosen_form}"
            with appearing(file, sync=False) as temporary:
                _write(run, family, columns[family], where, temporary, chosen_form == "csv", progress)
            written[family] = file
    except OSError as error:
        raise ArgumentError(f"{target} cannot be written: {error.strerror or error}") from None
    return written


def _columns(run: _Readable, family: str, numbers: Sequence[str] | None) -> list[str]:
    """Return the columns of *family* that are written; none where it has none of the *numbers*."""
    there = [row[0] for row in run.sql(f"DESCRIBE {quoted(family)}").fetchall()]
    if numbers is None or family in _SINGLE:
        return there
    found = [name for name in there if name in numbers and name not in KEYS]
    return [*(name for name in there if name in KEYS), *found] if found else []


def _condition(
    run: _Readable, family: str, port: str | None, layers: str | None, first: int | None, last: int | None
) -> str | None:
    """Return the SQL condition of the rows of *family* that are asked for; None where no row can meet it."""
    met = ["true"]
    met += [] if first is None else [f"step >= {literal(first)}"]
    met += [] if last is None else [f"step <= {literal(last)}"]
    if family not in _SINGLE and (port is not None or layers is not None):
        try:
            pattern = re.compile(layers or "")
        except re.error as error:
            raise ArgumentError(f"layers={layers!r} is no regular expression: {error}") from None
        places = run.sql(f"SELECT DISTINCT site, layer, port FROM {quoted(family)}").fetchall()
        sites = [site for site, layer, each in places if port in (None, each) and pattern.search(layer)]
        if not sites:
            return None
        met += [f"site IN ({', '.join(literal(site) for site in sites)})"] if len(sites) < len(places) else []
    return " AND ".join(met)


def _names(run: _Readable, families: Iterable[str], ports: bool) -> list[str]:
    """Return the ports, or the layers, of *families*."""
    column = "port" if ports else "layer"
    found = (run.sql(f"SELECT DISTINCT {column} FROM {quoted(family)}").fetchall() for family in families if family not in _SINGLE)
    return sorted({name for rows in found for (name,) in rows})


def _write(
    run: _Readable, family: str, columns: Sequence[str], where: str, file: Path, is_csv: bool, progress: Callable[[str], None]
) -> None:
    """Write the rows of *family* to *file*, some steps at a time."""
    import pyarrow.csv
    import pyarrow.parquet

    ordered = ", ".join(quoted(name) for name in READ_ORDER if name in _columns(run, family, None))
    shown = ", ".join(quoted(name) for name in columns)
    with ExitStack() as stack:
        writer: Any = None
        for low, high, share in _stretches(run, family, where):
            progress(f"{family}, {percent(share)}")
            asked = f"FROM {quoted(family)} WHERE {where} AND step BETWEEN {literal(low)} AND {literal(high)} ORDER BY {ordered}"
            table = run.sql(f"SELECT {shown} {asked}").to_arrow_table()
            table = _flat(table) if is_csv else table
            if writer is None:
                make = pyarrow.csv.CSVWriter if is_csv else pyarrow.parquet.ParquetWriter
                writer = stack.enter_context(make(str(file), table.schema))
            writer.write_table(table)


def _stretches(run: _Readable, family: str, where: str) -> Iterator[tuple[int, int, float]]:
    """Yield first and last step of stretches with few enough rows, and the share of rows before each; one if there are no rows."""
    counts = run.sql(f"SELECT step, count(*) FROM {quoted(family)} WHERE {where} GROUP BY step ORDER BY step").fetchall()
    total, done, rows = sum(count for _, count in counts), 0, 0
    begun = counts[0][0] if counts else 0
    for place, (step, count) in enumerate(counts):
        rows += count
        if rows >= _AT_ONCE or place == len(counts) - 1:
            yield begun, step, done / total
            done, rows = done + rows, 0
            begun = step + 1
    if not counts:
        yield 0, -1, 1.0


def _flat(table: pyarrow.Table) -> pyarrow.Table:
    """Return *table* with each list of numbers as text, as a JSON array."""
    import json

    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            texts = [None if each is None else json.dumps(each) for each in table.column(place).to_pylist()]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
    return table
