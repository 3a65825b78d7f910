"""Put the numbers of a run on the page of its execution graph."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sonde.answer import in_frame, write_page
from sonde.errors import ArgumentError, MissingExtraError, UnknownSiteError
from sonde.paths import absolute_path
from sonde.run import PlainGraph, Run
from sonde.site import PORTS, Site
from sonde.view.graph.page import to_html
from sonde.view.graph.save import save
from sonde.view.graph.series import join
from sonde.view.plots.layer_names import spaced
from sonde.view.plots.layer_series import Known, Matrix, matrix
from sonde.view.plots.number_names import main_number
from sonde.view.scales import DIVERGING, SEQUENTIAL

_DEFECT, _ZERO = "#d62728", "#bbbbbb"
_PAGES = (".html", ".htm")
_MOST_STEPS = 400  # of more, so many are on the page, evenly through the run

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class GraphPage:
    """The page of a graph with the numbers of a run. A notebook shows the page in a frame.

    >>> import tempfile
    >>> from sonde.view import plots
    >>> page = plots.GraphPage("net", "<p>net</p>", ("rms",))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page.save(f"{folder}/net.html").name
    'net.html'

    Attributes:
        title: of the page.
        html: the page, one file that loads nothing.
        numbers: the numbers that a reader of the page can choose.
    """

    title: str
    html: str = field(repr=False)
    numbers: tuple[str, ...]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to *path*, whose folder is made if it does not exist, and return the path.

        Raises:
            ArgumentError: *path* does not end in ``.html``.
        """
        return write_page(self.html, path)

    def _repr_html_(self) -> str:
        return in_frame(self.html, self.title, 560)


def graph_page(
    run: Run,
    number: str | Sequence[str] | None = None,
    port: str | None = None,
    *,
    only: bool = False,
    where: str | None = None,
    depth: int | None = None,
) -> GraphPage:
    """Return the page of the run's execution graph, coloured by its numbers, with a slider over the steps.

    >>> import sonde, tempfile, torch
    >>> from sonde.view import plots
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> with sonde.watch(net, every=1, to="memory", verbose=False) as inspector:
    ...     net(torch.ones(1, 2)).sum().backward()
    ...     inspector.keep_graph(sonde.capture(net, torch.ones(1, 2)))
    ...     inspector.step()
    >>> page = plots.graph_page(inspector.run, "rms")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page.save(f"{folder}/graph.html").name
    'graph.html'

    ``graph_page(run, "rms").save("graph.html")``. Number and port can be chosen on the page: *number* and the main number of each
    family, at each port at which they were recorded. Modules without the number, as containers, are marked "not recorded";
    tensors with NaN or infinite elements "NaN" and "infinite", also if the number, which leaves them out, is finite. Of more than
    400 logged steps, 400 are on the page.

    Args:
        run: a run with a graph, of ``watch(..., graph=...)``.
        number: the number that colours the graph at first, as ``rms``, or several, of these the first; by default the root
            mean square.
        port: the port that is shown at first, as ``grad_output``; by default the first at which the number was recorded.
        only: nothing else is on the page: *number* alone, and, where *port* is given, at this port alone.
        where: an SQL condition on the rows, as ``"rank = 0"``.
        depth: how many levels of modules are open at first; by default as many as can be read.

    Raises:
        ArgumentError: the run has no graph, or *depth* is no number from 0.
        UnknownSiteError: a number was not recorded; the message names the lens that records it.
        MissingExtraError: the package with the layout engine is not installed.
    """
    graph, known = _graph_of(run), Known.of(run)
    given = [number] if isinstance(number, str) else [*(number or ())]
    asked = dict.fromkeys([*given, *([] if only and given else _main_numbers(known))])
    there = {each: _ports_of(each, known, port if only else None) for each in asked}
    if port is not None and there and not only:
        first = next(iter(there))
        if port not in there[first]:
            there[first] = [port]  # the reading raises, and says what there is
        there[first].sort(key=lambda each: each != port)
    needed = given if only or port is None else [*asked][:1]
    return _page(run, graph, known, there, where, depth, needed=needed)


def save_graph(
    run: Run,
    path: str | os.PathLike[str],
    number: str | None = None,
    port: str | None = None,
    *,
    where: str | None = None,
    depth: int | None = None,
) -> tuple[str, ...]:
    """Write the run's execution graph to *path*, and return the numbers that it shows.

    A page (``.html``) is that of :func:`graph_page`. A drawing (``.svg``, ``.png``, ``.pdf``, ``.dot``) has the colours of
    *number*, where one is given, at the last step: red is NaN or infinite, grey is 0 on a logarithmic scale, and what was not
    recorded has the colour of its kind. Data (``.json``) has no colours.

    Raises:
        ArgumentError: the run has no graph, a *port* or *where* is given for a drawing without a number, no module has a finite
            value, or the ending of *path* is unknown.
        UnknownSiteError: the number was not recorded; the message names the lens that records it.
        MissingExtraError: a package or program that the format needs is not installed.
    """
    file = absolute_path(path)
    if file.suffix.lower() in _PAGES:
        page = graph_page(run, number, port, where=where, depth=depth)
        page.save(file)
        return page.numbers
    graph = _graph_of(run)
    if number is None:
        if port is not None or where is not None:
            raise ArgumentError("port and steps say nothing to a drawing without numbers: give a number, as rms")
        save(graph, file, depth)
        return ()
    fills, caption = _node_colours(run, graph, number, port, where=where)
    save(graph, file, depth, fills=fills, caption=caption)
    return (number,)


def _page(
    run: Run,
    graph: PlainGraph,
    known: Known,
    asked: Mapping[str, list[str]],
    where: str | None,
    depth: int | None,
    *,
    needed: Collection[str],
) -> GraphPage:
    """Return the page with those of the *asked* numbers that have values; one that is *needed* and has none is an error."""
    found: dict[str, list[Matrix]] = {}
    failed: UnknownSiteError | None = None
    for number, ports in asked.items():
        there = []
        for port in ports:
            try:
                there.append(matrix(run, number, port, where=where, known=known))
            except UnknownSiteError as error:  # as of a family that has no rows of these steps
                failed = error
        if there:
            found[number] = there
        elif failed is not None and number in needed:
            raise failed
    if failed is not None and not found:
        raise failed
    values = {number: series for number, matrices in found.items() if (series := _series(matrices, graph))}
    described = {number: matrices[0].described for number, matrices in found.items() if matrices}
    name = run.path.name if run.path is not None else "in memory"
    title = f"{graph.model}, run {name}"
    return GraphPage(title, to_html(graph, depth, values=values, title=title, described=described), tuple(found))


def _node_colours(
    run: Run, graph: PlainGraph, number: str, port: str | None = None, *, where: str | None = None
) -> tuple[dict[str, str], str]:
    """Return the colour of each node at the last step, by ``module PATH`` or ``tensor PATH``, and what the colours mean."""
    mpl = MissingExtraError.import_or_raise("matplotlib", "the colours of a drawing", "plots")
    colours = MissingExtraError.import_or_raise("matplotlib.colors", "the colours of a drawing", "plots")
    known = Known.of(run)
    found = matrix(run, number, _ports_of(number, known, port)[0], where=where, known=known)
    step = int(found.steps[-1])
    last = {site: [point for point in points if point[0] == step] for site, points in _series([found], graph).items()}
    joined = join(graph, {number: {site: points for site, points in last.items() if points}}, {number: found.described})
    if not joined or joined[0]["scale"] is None:
        raise ArgumentError(f"no module of the graph has a finite {number} at step {step:,}")
    scale = joined[0]["scale"]
    norm = (colours.LogNorm if scale["log"] else colours.Normalize)(scale["low"], scale["high"], clip=True)
    shades = mpl.colormaps[DIVERGING if scale["signed"] else SEQUENTIAL]

    def colour(value: float) -> str:
        if not np.isfinite(value):
            return _DEFECT
        return _ZERO if scale["log"] and value <= 0 else str(colours.to_hex(shades(norm(value))))

    named = {node: colour(values[-1]) for node, values in joined[0]["of"].items() if values and values[-1] is not None}
    more = "".join(f"; {word}" for shade, word in ((_ZERO, "grey: 0"), (_DEFECT, "red: not finite")) if shade in named.values())
    words = f"{joined[0]['label']} at step {step:,}: from {scale['low']:.3g} (dark) to {scale['high']:.3g} (bright)"
    return named, words + more


def _graph_of(run: Run) -> PlainGraph:
    """Return the execution graph of *run*; raise if the run has none."""
    graph = run.graph
    if graph is None:
        raise ArgumentError("the run has no graph: give one batch of inputs to watch(..., graph=...), which captures it")
    return graph


def _main_numbers(known: Known) -> Iterator[str]:
    """Yield the main number of each family once, and the share of dead units."""
    families = {family: known.numbers[family] for family in known.main}
    mains = [main_number(names, {}, known.described[family]) for family, names in families.items()]
    dead = ["call_death"] if any("call_death" in names for names in families.values()) else []
    yield from sorted(dict.fromkeys([*(name for name in mains if name is not None), *dead]), key=lambda name: name != "rms")


def _ports_of(number: str, known: Known, port: str | None = None) -> list[str]:
    """Return *port*, or all ports at which *number* was recorded."""
    there = {each for family, names in known.numbers.items() if number in names for each in known.ports[family]}
    return [port] if port is not None else sorted(there, key=_place) or ["output"]  # without any, the reading raises


def _series(found: list[Matrix], graph: PlainGraph) -> Mapping[str, Points]:
    """Return the steps and values of a number by site, of the model that the graph is of."""
    paths = {node.path for node in graph.nodes}
    models = Counter(site.model for each in found for site in each.sites if site.path in paths)
    model = max(models, key=models.__getitem__, default="")
    return {str(site): points for each in found for site, points in _points(each) if site.model == model}


def _place(port: str) -> int:
    """Return where *port* stands in the list: outputs first, then what comes back to them, then parameters."""
    first = ("output", "grad_output", "input", *PORTS)
    return first.index(port) if port in first else len(first)


def _points(found: Matrix) -> Iterator[tuple[Site, Points]]:
    """Yield each site with its values; NaN and infinity stand for the elements that the value leaves out."""
    columns = spaced(len(found.steps), _MOST_STEPS)
    steps = found.steps[columns].tolist()
    marked = np.where(found.defects == 1, np.inf, np.where(found.defects > 1, np.nan, found.values))[:, columns]
    there = (found.defects > 0)[:, columns] | np.isfinite(marked)
    for site, values, kept in zip(found.sites, marked.tolist(), there.tolist(), strict=True):
        yield site, [(step, value) for step, value, is_there in zip(steps, values, kept, strict=True) if is_there]
