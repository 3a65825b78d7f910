"""Write the report of one run or several: the live page with its answers in one file, which loads nothing and needs no server."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sonde.answer import asset, html_page, page_file
from sonde.errors import ArgumentError, SondeError, StoreError, UnknownSiteError
from sonde.run import Run, appearing
from sonde.view.app.answers.against import Against
from sonde.view.app.answers.covered import coverage
from sonde.view.app.answers.distribution import distribution
from sonde.view.app.answers.found import findings
from sonde.view.app.answers.layer_pictures import heatmap, ratio
from sonde.view.app.answers.number_list import numbers
from sonde.view.app.answers.opened_run import BINS, OpenedRun, graph_text
from sonde.view.app.answers.overview import overview
from sonde.view.app.answers.questions import json_of
from sonde.view.app.answers.stored_sample import kept_sites, sample
from sonde.view.app.answers.two_sides import comparison
from sonde.view.app.followed_runs import FollowedRuns

_ROOM = 5 << 20  # bytes of compressed answers; a third more as text, and the file stays far below 10 MB
_DISTRIBUTIONS = 60  # sites
_SAMPLES = 8  # sites, of each some 20 kB
_OF_NUMBERS = ("overview", "numbers", "heatmap", "ratio")  # the answers that can be differences
_ASSETS = Path(__file__).parents[1] / "assets" / "app"
_BODY = re.compile(r"<!-- body -->\n(.*?)<!-- /body -->", re.DOTALL)


def save_report(run: Run | Sequence[Run], path: str | os.PathLike[str], *, against: Run | None = None) -> Path:
    """Write the report of *run*, one or several, to *path*, whose folder is made if it does not exist, and return the path.

    Args:
        run: the run, or several.
        path: of the file.
        against: another run, from which the numbers of the one *run* are shown as differences; the report has both runs, too.

    Raises:
        ArgumentError: *path* does not end in ``.html``, or cannot be written; or several runs are given *against* one, or one with
            which the run has no step or site in common.
        StoreError: a run cannot be read.
    """
    file = page_file(path, "a report")
    runs = [run] if isinstance(run, Run) else [*run]
    if against is not None and len(runs) != 1:
        raise ArgumentError(f"{len(runs)} runs are to be shown against another one: a report shows one run so")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with appearing(file, sync=False) as temporary:  # there is no report, or a whole one
            temporary.touch()  # what cannot be written is said before the work
            temporary.write_text(report_html(*runs, against=against), encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"the report cannot be written to {file}: {error.strerror or error}") from None
    return file


def report_html(*runs: Run, against: Run | None = None) -> str:
    """Return the report of *runs*: the views of the live page over a recording of its answers, in one page.

    A report of several runs begins with all of them together, the first compared with each of the others. Heat-maps are there of as
    many numbers as five megabytes hold, in equal parts for each run, the main number of each family and port first; the page says
    which are not. Heat-maps of more than 80,000 cells are rounded to three and a half digits.
    """
    held: list[dict[str, Any]] = []
    opened: list[OpenedRun] = []
    runs = runs if against is None else (*runs, against)
    room = _ROOM // (len(runs) + (against is not None))
    for place, run in enumerate(runs):
        followed = FollowedRuns(run)
        (entry,) = followed.entries()
        opened.append(followed.opened(entry["id"]))
        known = recording(opened[-1], {**entry, "id": f"{entry['id']}{place}"}, room)
        held.append({**known, **_graph(opened[-1])})
    names = [each["run"]["name"] for each in held]
    for each in held:
        if names.count(each["run"]["name"]) > 1:  # of several folders
            each["run"]["name"] = each["run"]["path"]
    if against is not None:
        held[0]["against"] = {held[1]["run"]["id"]: _differences(opened[0], opened[1], room)}
    compared = {
        f"{held[0]['run']['id']} {each['run']['id']}": _compared(opened[0], other)
        for each, other in zip(held[1:], opened[1:], strict=True)
    }
    graphs = [each["graph"] for each in held if each["graph"]]
    return html_page(
        f"{', '.join(each['run']['name'] for each in held)}: report",
        body=_BODY.findall(asset("index.html", _ASSETS))[0],
        styles=("common.css", "app.css"),
        assets=_ASSETS,
        module="main.js",
        compressed={"recording": gzip.compress(json_of({"runs": held, "comparisons": compared}), 6, mtime=0)},
        framed=graphs,
    )


def _differences(own: OpenedRun, other: OpenedRun, room: int) -> dict[str, Any]:
    """Return the answers about numbers as differences from the *other* run.

    Raises:
        ArgumentError: nothing of a number is in both runs.
    """
    found = recording(Against(own, other), {}, room)
    if not found["heatmap"]:
        raise ArgumentError(
            f"{own.name} has no number at a site and step of {other.name}: give both as runs, each with its own axis"
        )
    return {name: found[name] for name in _OF_NUMBERS}


def _compared(a: OpenedRun, b: OpenedRun) -> dict[str, Any]:
    """Return the comparison of two runs, or why there is none, in words."""
    try:
        return comparison(a, b)
    except SondeError as error:
        return {"error": str(error)}


def recording(opened: OpenedRun, entry: dict[str, Any], room: int = _ROOM) -> dict[str, Any]:
    """Return the answers that a report holds, whose compressed size is about *room* bytes at most."""
    sites, why = kept_sites(opened)
    held: dict[str, Any] = {
        "run": entry,
        "overview": overview(opened, points=BINS * 2),
        "numbers": numbers(opened),
        "findings": findings(opened),
        "coverage": coverage(opened),
        "heatmap": {},
        "distribution": {},
        "sample": {},
        "unread": why
        or (f"Not in this report, which has values of {_SAMPLES} sites. The live page has all: sonde ui" if sites else ""),
        "ratio": None,
    }
    left = room - _size(held)
    for place, name, answer in _pictures(opened, held["numbers"]["ratio"] is not None):
        left -= _size(answer)
        if left < 0:
            break
        if name:
            held[place][name] = answer
        else:
            held[place] = answer
    return held


def _pictures(opened: OpenedRun, has_ratio: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the answers of pictures, the most telling first: the main number of each family and port, the ratio, other numbers."""
    first: dict[tuple[str, str], str] = {}
    for name, (family, _, port, _) in opened.drawable.items():
        first.setdefault((family, port), name)
    for name in first.values():
        yield from _heatmap_of(opened, name)
    if has_ratio:
        with suppress(ArgumentError, UnknownSiteError):  # of a difference: the other run lacks it
            yield "ratio", "", ratio(opened, rounded=True)
    for site in [] if isinstance(opened, Against) else kept_sites(opened)[0][:_SAMPLES]:
        with suppress(StoreError):  # damaged: the live page says so
            yield "sample", site, sample(opened, site)
    if not isinstance(opened, Against) and any("powers" in names for names in opened.known.numbers.values()):
        answer = distribution(opened)
        for site in answer["sites"][:_DISTRIBUTIONS]:
            yield "distribution", site, distribution(opened, site=site)
    for name in opened.drawable:
        if name not in first.values():
            yield from _heatmap_of(opened, name)


def _heatmap_of(opened: OpenedRun, name: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    with suppress(ArgumentError):  # of a difference: no step, or no site, is in both
        yield "heatmap", name, heatmap(opened, name, rounded=True)


def _size(answer: dict[str, Any]) -> int:
    return len(zlib.compress(json_of(answer), 1))


def _graph(opened: OpenedRun) -> dict[str, str | None]:
    """Return the page of the run's graph, or in words why there is none: none was recorded, or the layout engine is missing."""
    try:
        return {"graph": graph_text(opened).decode()}
    except SondeError as error:
        return {"graph": None, "without_graph": str(error)}
