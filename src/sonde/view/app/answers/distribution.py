"""Answer how the elements of one site are spread over time: their powers of two beside the limits of number formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sonde.errors import UnknownSiteError
from sonde.run import quoted
from sonde.site import PORTS, Site
from sonde.suggest import nearest
from sonde.view.app.answers.opened_run import OpenedRun
from sonde.view.app.answers.reduction import Bins
from sonde.view.plots.exponents import FORMATS, LOWEST, SHOWN, Format
from sonde.view.plots.number_names import recorded_by

_ALL_FORMATS = (Format("fp32", -149, -126, 128 + float(np.log2(1 - 2**-24))), *FORMATS)
_NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float8_e5m2": "e5m2", "float8_e4m3fn": "e4m3"}
_DEFECTS = ("nan", "inf", "nonfinite")


def distribution(
    opened: OpenedRun,
    *,
    site: str = "",
    first: int | None = None,
    last: int | None = None,
    columns: int = 200,
    step: int | None = None,
) -> dict[str, Any]:
    """Return which share of a site's elements has which power of two, over bins of steps.

    Args:
        opened: the run.
        site: the site, as ``blocks.0.fc:output``; by default the first output with counts.
        first, last: the steps, both inclusive.
        columns: the most bins.
        step: of the logged step nearest to this one alone.

    Returns:
        ``site``, ``layer``, ``dtype`` (of a parameter, where the run says), ``sites``: all that have counts, in the order of
        execution; ``powers`` (ascending), ``share`` (of each bin, by power: the share of the bin's elements with a magnitude from
        this power of two to the next), ``zeros`` and ``nonfinite`` (shares of each bin), ``steps`` (edges of bins), ``ends``;
        ``limits``: power and text of the ends of number formats, that of the parameter, or those that lie within the powers;
        ``below`` puts the text of an upper limit under its line.

    Raises:
        UnknownSiteError: powers were not counted at all, or not at the site; the message names the lens, or the nearest site.
    """
    counted = counted_sites(opened)
    asked = (
        str(Site.parse(site))
        if site
        else next((each for each in counted if Site.parse(each).port == "output"), next(iter(counted), ""))
    )
    if asked not in counted:
        lens = f"powers of two are counted by {recorded_by('powers', Site.parse(asked).port if asked else 'output')}"
        raise UnknownSiteError(f"{lens}. {nearest(asked, counted) if counted else 'This run has none.'}")
    parsed = Site.parse(asked)
    found = _powers(opened, counted[asked], asked, first, last, columns, step)
    dtype = opened.facts.of(parsed).dtype if PORTS[parsed.port].of == "parameter" else None
    return {
        "site": asked,
        "layer": parsed.owner.name,
        "dtype": dtype,
        "sites": list(counted),
        "limits": list(_limits(found["powers"], _NAMES.get(dtype or ""))),
        **found,
    }


def counted_sites(opened: OpenedRun, among: Sequence[str] | None = None) -> dict[str, str]:
    """Return the sites whose powers of two were counted, in the order of execution, with the family of each.

    Args:
        opened: the run.
        among: the sites to look for; None: all.
    """
    chosen = "" if among is None else "WHERE site IN (SELECT unnest($sites::VARCHAR[]))"
    place = {} if among is None else {"sites": list(among)}
    return {
        each: family
        for family, names in opened.known.numbers.items()
        if "powers" in names
        for (each,) in opened.run.sql(
            f'SELECT site FROM {quoted(family)} {chosen} GROUP BY site ORDER BY min("order"), site', place
        ).fetchall()
    }


def _limits(powers: Sequence[int], name: str | None) -> Iterator[dict[str, Any]]:
    """Yield the ends of the format *name* that lie within *powers*; without any, those of other formats."""
    found = [
        (each.name, {"power": float(power), "text": f"{each.name} {text}", "below": below})
        for each in _ALL_FORMATS
        for power, text, below in (
            (each.greatest, "largest", True),
            (each.normal, "least normal", False),
            (each.subnormal, "least subnormal", False),
        )
        if powers and powers[0] <= power <= powers[-1] + 1
    ]
    own = [limit for of, limit in found if of == name]
    yield from own or [limit for _, limit in found]


def _powers(
    opened: OpenedRun, family: str, site: str, first: int | None, last: int | None, columns: int, step: int | None
) -> dict[str, Any]:
    """Read the counts of one site, add up those of a step, and then those of a bin."""
    names = opened.known.numbers[family]
    defects = [name for name in _DEFECTS if name in names]
    more = "".join(f", {quoted(name)}" for name in ("zeros", *defects) if name in names)
    here = f"FROM {quoted(family)} WHERE site = $site"
    rows = opened.run.sql(f"SELECT step, powers{more} {here} ORDER BY step", {"site": site}).to_arrow_table()
    every = np.array(rows.column("step").to_pylist())
    steps, starts = np.unique(every, return_index=True)
    if step is not None:
        first = last = int(steps[np.abs(steps - step).argmin()])
    bins = Bins.of(steps, first, last, columns)
    lists = [np.asarray(each or [], np.float64) for each in rows.column("powers").to_pylist()]
    width = max(map(len, lists))
    counts = np.add.reduceat(np.array([np.pad(each, (0, width - len(each))) for each in lists]), starts, axis=0)
    held = {name: np.nan_to_num(np.array(rows.column(name).to_pylist(), np.float64)) for name in rows.column_names[2:]}
    of_step = {name: np.add.reduceat(values, starts) for name, values in held.items()}
    inside = bins.within
    of_bins = np.add.reduceat(counts[inside], bins.starts, axis=0)
    zeros = np.add.reduceat(of_step.get("zeros", np.zeros(len(steps)))[inside], bins.starts)
    total = of_bins.sum(axis=1) + zeros
    broken = sum((np.add.reduceat(of_step[name][inside], bins.starts) for name in defects), np.zeros(len(zeros)))
    total = total + broken
    there = np.flatnonzero(of_bins.any(axis=0))
    ends = [SHOWN[0] - LOWEST, SHOWN[1] - LOWEST, *there.tolist()]
    low, high = max(min(ends), 0), min(max(ends) + 1, width)
    divisor = np.where(total > 0, total, np.nan)
    return {
        "powers": list(range(low + LOWEST, high + LOWEST)),
        "share": np.nan_to_num(of_bins[:, low:high] / divisor[:, None]).tolist(),
        "zeros": np.nan_to_num(zeros / divisor).tolist(),
        "nonfinite": np.nan_to_num(broken / divisor).tolist(),
        "unit": "share of elements",
        "steps": bins.edges.tolist(),
        "ends": bins.ends.tolist(),
    }
