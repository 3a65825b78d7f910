"""Print the table of a run: a row for each layer in the order of execution, at the last logged step or another."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sonde.errors import ArgumentError
from sonde.site import Site

if TYPE_CHECKING:
    from sonde.run.run import Run
    from sonde.view.table import Cell, Grid

Numbers = Mapping[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    parser.add_argument("run", help="the folder of a run, as runs/quiet-otter")
    parser.add_argument("--step", type=int, help="the step to show (default: the last that was logged)")
    parser.add_argument("--family", help="show all numbers of one family, site by site, in place of the layers")


def run(options: argparse.Namespace) -> int:
    """Print what the run holds, then the table, then what was found."""
    from rich.console import Console

    from sonde.run.run import open_run

    console = Console()
    opened = open_run(options.run)
    console.print(repr(opened), markup=False, highlight=False)
    family = options.family or ("moments" if "moments" in opened.families else _first(opened))
    if family is None:
        return 0
    step = _step(opened, family, options.step)
    console.print()
    console.print(_of_sites(opened, family, step) if options.family or family != "moments" else _of_layers(opened, step))
    for alert in opened.alerts:
        console.print(f"{alert['severity']}: {alert['message']}", style="red", markup=False, highlight=False)
    return 0


def _first(opened: Run) -> str | None:
    return next((family for family in opened.families if family not in ("scalars", "alerts")), None)


def _step(opened: Run, family: str, asked: int | None) -> int:
    """The step to show.

    Raises:
        ArgumentError: *asked* was not logged; the message names the nearest.
    """
    logged = sorted(set(opened.table(family).column("step").to_pylist()))
    if asked is None:
        return int(logged[-1])
    if asked not in logged:
        nearest = ", ".join(map(str, sorted(sorted(logged, key=lambda step: abs(step - asked))[:4])))
        raise ArgumentError(f"--step={asked}: {family} has no rows of that step; the nearest are {nearest}")
    return asked


def _rows(opened: Run, family: str, step: int) -> list[dict[str, Any]]:
    if family not in opened.families:
        return []
    names = f'SELECT * FROM "{family}" WHERE step = {step} ORDER BY micro_step, rank, "order", site'
    rows: list[dict[str, Any]] = opened.sql(names).to_arrow_table().to_pylist()
    return rows


def _of_layers(opened: Run, step: int) -> Grid:
    """One row for each layer: its output, its gradients, its parameters and what the step did to them."""
    from sonde.view.table import Grid

    layers: dict[str, dict[str, list[Numbers]]] = {}
    for row in _rows(opened, "moments", step):
        site = Site.parse(row["site"])
        layers.setdefault(site.owner.name, {}).setdefault(site.port, []).append(row)
    deaths = {Site.parse(row["site"]).owner.name: row["call_death"] for row in _last(opened, "activation", step)}
    types = {line["name"] or "(root)": line["type"] for line in opened.info.get("model", ())}
    columns = ["layer", "type", "output rms", "zeros", "dead", "output grad", "weight norm", "gradient norm", "update / weight"]
    rows = [list(_layer(name, types.get(name.rpartition("/")[2], ""), ports, deaths.get(name))) for name, ports in layers.items()]
    return Grid(title=f"layers at step {step:,}", columns=columns, rows=rows, optional=("output grad", "weight norm", "type"))


def _last(opened: Run, family: str, step: int) -> list[dict[str, Any]]:
    """The rows of the last step up to *step* that the family has."""
    if family not in opened.families:
        return []
    found = opened.sql(f'SELECT max(step) FROM "{family}" WHERE step <= {step}').fetchall()[0][0]
    return [] if found is None else _rows(opened, family, found)


def _layer(name: str, kind: str, ports: Mapping[str, list[Numbers]], death: float | None) -> Iterator[Cell]:
    from sonde.view.table import Cell

    output = ports.get("output", [None])[0]
    gradient = ports.get("grad_output", [None])[0]
    weight, update = _norm(ports.get("param")), _norm(ports.get("update"))
    bad = [row for rows in ports.values() for row in rows if row["nan"] or row["inf"]]
    yield Cell(name, "bad" if bad else "plain")
    yield Cell(kind, "quiet")
    yield _number(None if output is None else output["rms"])
    yield _share(None if output is None or not output["finite"] else output["zeros"] / output["finite"])
    yield _share(death, alarm=0.9)
    yield _number(None if gradient is None else gradient["rms"])
    yield _number(weight)
    yield _number(_norm(ports.get("grad")))
    yield _number(None if not weight or update is None else update / weight)


def _norm(rows: list[Numbers] | None) -> float | None:
    return None if not rows else math.sqrt(sum(row["norm"] ** 2 for row in rows))


def _number(value: float | None) -> Cell:
    from sonde.view.table import Cell

    return Cell("" if value is None else f"{value:.3g}", align="right")


def _share(value: float | None, alarm: float = 2.0) -> Cell:
    from sonde.view.table import Cell

    known = value is not None and not math.isnan(value)
    return Cell(f"{value:.0%}" if known else "", "bad" if known and value > alarm else "plain", "right")  # type: ignore[operator]


def _of_sites(opened: Run, family: str, step: int) -> Grid:
    """All numbers of one family, a row for each site; what is a list of numbers is not shown."""
    from sonde.view.table import Cell, Grid

    rows = _rows(opened, family, step)
    lists = {name for row in rows for name, value in row.items() if isinstance(value, list)}  # as an exponent histogram's counts
    names = [name for name in opened.numbers.get(family, ()) if name not in lists]
    cells = [[Cell(row["site"]), *(_number(row[name]) for name in names)] for row in rows]
    return Grid(title=f"{family} at step {step:,}", columns=["site", *names], rows=cells)
