"""Join numbers over steps, given by site, with the nodes of a graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sonde.errors import ArgumentError
from sonde.number import Kind, Number, number_of
from sonde.run import PlainGraph
from sonde.site import PARAMETER_PORTS, PORTS, PortInfo, Site
from sonde.suggest import unknown_name
from sonde.view.scales import DIVERGING, scale_for

_PORTS: Mapping[str, PortInfo] = {str(port): info for port, info in PORTS.items()}

Series = Mapping[str, Mapping[str, Sequence[tuple[float, float]] | tuple[Any, Any]]]
"""Numbers over steps: ``{name: {site: [(step, value), ...]}}``, or an array of steps and one of values in place of the pairs."""


def join(graph: PlainGraph, values: Series, described: Mapping[str, Number] | None = None) -> list[dict[str, Any]]:
    """Return *values* as the page reads them, one entry for each number and port.

    An entry is ``{"name": ..., "label": ..., "unit": ..., "steps": [...], "of": {"module layers.0": [value or None, ...]},
    "scale": ...}``, aligned with the steps. A number that was taken at several ports gives one entry for each, ``rms
    (grad_output)``. Of several leaves of a site the first counts. The scale, for the colours of all nodes and steps, is that of a
    heat-map: it leaves out far outliers. *described* describes numbers that are not standard ones.

    Raises:
        ArgumentError: *values* does not have that form.
        UnknownSiteError: no site of a number is in the graph.
    """
    known = {f"module {node.path}" for node in graph.nodes if node.kind == "module"}
    known |= {f"tensor {node.path}" for node in graph.nodes if node.kind in ("parameter", "buffer")}
    found: list[dict[str, Any]] = []
    for name, by_site in _items(values, "values"):
        ports: dict[str, dict[str, dict[float, float]]] = {}
        asked = list(_items(by_site, f"values[{name!r}]"))
        for site, pairs in asked:
            key, port = _read_site(str(site), known)
            if key in known:
                ports.setdefault(port, {}).setdefault(key, _series(pairs, f"values[{name!r}][{str(site)!r}]"))
        if asked and not ports:
            paths = [key.partition(" ")[2] or "(root)" for key in sorted(known)]
            asked_path = str(asked[0][0]).partition(":")[0]
            raise unknown_name("site", asked_path, paths, f"this graph, and neither is another of values[{name!r}]")
        for port, of in ports.items():
            steps = sorted({step for series in of.values() for step in series})
            title = f"{name} ({port})" if len(ports) > 1 else str(name)
            aligned = {key: [series.get(step) for step in steps] for key, series in of.items()}
            number = (described or {}).get(str(name)) or number_of(str(name))
            info = _PORTS.get(port)
            unit = number.unit if number.unit is not None else info.unit if info is not None else ""
            label = (
                f"{number.short} {'in' if number.kind in ('share', 'count') else 'of'} {info.words if info is not None else port}"
            )
            scale = _scale(aligned.values(), number.kind)
            found.append({"name": title, "label": label, "unit": unit, "steps": steps, "of": aligned, "scale": scale})
    return found


def _scale(aligned: Iterable[Sequence[float | None]], kind: Kind) -> dict[str, Any] | None:
    """Return the scale as the page reads it, with the extremes where values lie beyond its ends; None without a finite value."""
    values = np.array([math.nan if value is None else value for series in aligned for value in series])
    there = values[np.isfinite(values)]
    if not len(there):
        return None
    scale = scale_for(there, kind)
    on_scale = there[there > 0] if scale.log else there
    least = float(on_scale.min()) if scale.extend in ("min", "both") else None
    most = float(on_scale.max()) if scale.extend in ("max", "both") else None
    signed = scale.colours == DIVERGING
    return {"log": scale.log, "signed": signed, "low": scale.low, "high": scale.high, "least": least, "most": most}


def _items(held: Any, what: str) -> Iterable[tuple[Any, Any]]:
    if not isinstance(held, Mapping):
        raise ArgumentError(
            f"{what} must be a mapping, as {{'rms': {{'layers.0:output': [(step, value), ...]}}}}; it is {held!r:.80}"
        )
    return held.items()


def _series(pairs: Any, what: str) -> dict[float, float]:
    """Return values by step, from pairs or from two arrays; of several values in a step the last counts."""
    try:
        if isinstance(pairs, tuple) and len(pairs) == 2 and all(hasattr(part, "dtype") for part in pairs):
            pairs = list(zip(*pairs, strict=True))
        return {(int(step) if float(step).is_integer() else float(step)): float(value) for step, value in pairs}
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"{what} must be pairs (step, value); it is {pairs!r:.80}") from error


def _read_site(text: str, known: set[str]) -> tuple[str, str]:
    """Return the page's key of the module or tensor at a site, and the port. A text that is no site is a path."""
    site, whole_module = Site.asked(text, (Site(key.partition(" ")[2]) for key in known))
    of_module = f"module {site.path}"
    if whole_module and of_module not in known:  # a parameter's name, without a port
        return f"tensor {site.path}", "param"
    return (f"tensor {site.path}" if site.port in PARAMETER_PORTS else of_module), site.port
