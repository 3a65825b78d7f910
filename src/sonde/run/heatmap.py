"""Read one number of all layers over all steps as a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.escape import encodable
from sonde.number import Number
from sonde.run.folder.duckdb_sql import numbers_of, quoted
from sonde.suggest import unknown_name

if TYPE_CHECKING:
    import duckdb


Reduce = Literal["worst", "mean", "min", "max", "sum"]
_SPARSE = 64  # steps for each logged one, up to which a table of all steps is small
_PIECE = 1 << 14  # rows that are held at once beside the matrix, in the cache of a core
_EMPTY = np.array(0x7FF8_0000_0000_E0E0, np.int64).view(np.float64)[()]
_EMPTY_SINGLE = np.array(0x7FC0_E0E0, np.int32).view(np.float32)[()]
"""The NaN of a cell without a row: no other has these bits, so that no mask is held beside the matrix."""
_ROUNDING = 1e-7  # of a value that a float32 can hold, at most: 2^-24
_FUNCTIONS: dict[str, str] = {"mean": "avg", "min": "min", "max": "max", "sum": "sum"}


@dataclass(frozen=True, eq=False)
class Heatmap:
    """A matrix with its labels.

    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> found = writer.run().heatmap("rms")
    >>> found.values.shape, found.number, found.port, found.family
    ((2, 1), 'rms', 'output', 'moments')

    Attributes:
        values: float64, or where it was asked for float32, of shape (sites, steps); NaN where nothing was recorded.
        sites: the rows, in the order of execution.
        steps: the columns, int64, ascending: steps at which any of the sites has a row.
        number, port, family: the number, the port and the family that it was read from.
    """

    values: npt.NDArray[np.float64]
    sites: tuple[str, ...]
    steps: npt.NDArray[np.int64]
    number: str
    port: str
    family: str

    def __repr__(self) -> str:
        return f"Heatmap of {self.number} at {self.port} in {self.family}: {len(self.sites)} sites x {len(self.steps)} steps"


def heatmap_of(
    connection: duckdb.DuckDBPyConnection,
    family: str,
    number: Number,
    port: str,
    reduce: Reduce,
    condition: str,
    run: str,
    exact: float,
) -> Heatmap:
    """The heat-map of one family; see :meth:`sonde.run.run.Run.heatmap`. *condition* is SQL that begins with AND, or empty.

    DuckDB translates sites to row numbers, and the cells are filled in numpy: grouping millions of (site, step) pairs takes
    several times longer, and is needed only where a cell has several rows.
    """
    if reduce not in ("worst", *_FUNCTIONS):
        raise ArgumentError(f"reduce={reduce!r}: it is one of 'worst', {', '.join(map(repr, _FUNCTIONS))}")
    found = connection.execute(
        f'SELECT site, min("order") AS place FROM {quoted(family)} WHERE port = $port GROUP BY site ORDER BY place, site',
        {"port": encodable(port)},
    ).fetchall()
    sites = tuple([site for site, _ in found])
    if not sites:
        ports = connection.execute(f"SELECT DISTINCT port FROM {quoted(family)} ORDER BY port").fetchall()
        raise unknown_name("port", port, (known for (known,) in ports), f"{family} in {run}")
    value = quoted(number.name)
    connection.execute("CREATE OR REPLACE TEMP TABLE sonde_lines (sonde_site VARCHAR, sonde_line INTEGER)")
    connection.execute(
        "INSERT INTO sonde_lines SELECT unnest($sites::VARCHAR[]), unnest(range(len($sites::VARCHAR[])))", {"sites": list(sites)}
    )
    rows_of_port = f"FROM {quoted(family)} JOIN sonde_lines ON site = sonde_site WHERE {value} IS NOT NULL{condition}"
    kind = connection.execute(f"SELECT typeof({value}) {rows_of_port} LIMIT 1").fetchall()
    if kind and kind[0][0].endswith("]"):
        raise ArgumentError(f"{number.name!r} of {family} is a list in each row, which no cell can show: use series()")
    logged = f"SELECT DISTINCT step FROM {quoted(family)} WHERE port = $port AND {value} IS NOT NULL{condition} ORDER BY step"
    steps = np.array([step for (step,) in connection.execute(logged, {"port": encodable(port)}).fetchall()], np.int64)
    cells = f"SELECT sonde_line, step, {value}::DOUBLE AS sonde_value {rows_of_port}"
    values, unique = _filled(connection, cells, len(sites), steps, exact)
    if not unique:
        function = _FUNCTIONS[(number.worst or "mean") if reduce == "worst" else reduce]
        some = f" FILTER (NOT isnan({value}::DOUBLE))" if reduce == "worst" and number.worst else ""  # NaN is no number
        reduced = f"coalesce({function}({value}::DOUBLE){some}, 'nan') AS sonde_value"
        cells = f"SELECT sonde_line, step, {reduced} {rows_of_port} GROUP BY sonde_line, step"
        values, _ = _filled(connection, cells, len(sites), steps, exact)
    return Heatmap(values, sites, steps, number.name, port, family)


def _filled(
    connection: duckdb.DuckDBPyConnection, query: str, sites: int, steps: npt.NDArray[np.int64], exact: float
) -> tuple[npt.NDArray[np.float64], bool]:
    """The matrix of (line, step, value), put together piece by piece as Arrow has them, and whether no cell had two of them."""
    column_of, empty = _columns_of(steps), _EMPTY if sites * len(steps) <= exact else _EMPTY_SINGLE
    matrix: npt.NDArray[Any] = np.full(sites * len(steps), empty)
    rows = 0
    for piece in connection.sql(query).to_arrow_reader(_PIECE):
        line, step, value = map(numbers_of, piece.columns)
        cells = line.astype(np.int64) * len(steps) + column_of(step)
        with np.errstate(over="ignore", invalid="ignore"):
            held = value.astype(matrix.dtype)
            if (np.abs(held - value) > _ROUNDING * np.abs(value)).any():
                break
        matrix[cells] = held
        rows += len(cells)
    else:
        lines, bits = matrix.reshape(sites, len(steps)), np.dtype(f"i{matrix.itemsize}")
        filled = sum(int(np.count_nonzero(line.view(bits) != empty.view(bits))) for line in lines)
        return lines, rows == filled
    return _filled(connection, query, sites, steps, math.inf)  # a value is beyond the range of a float32


def _columns_of(steps: npt.NDArray[np.int64]) -> Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]:
    """Return the function from steps to their columns: a table of all steps, unless the logged ones lie far apart."""
    first, span = (int(steps[0]), int(steps[-1]) - int(steps[0]) + 1) if len(steps) else (0, 0)
    if span > _SPARSE * len(steps) + 1024:
        return lambda asked: np.searchsorted(steps, asked)
    column_of = np.zeros(span, np.int64)
    column_of[steps - first] = np.arange(len(steps))
    return lambda asked: column_of[asked - first]
