"""Answer which numbers of a run can be drawn, and which layers it has in the order of execution."""

from __future__ import annotations

from typing import Any

from sonde.site import PORTS
from sonde.view.app.answers.opened_run import RATIO, OpenedRun, number_data


def numbers(opened: OpenedRun) -> dict[str, Any]:
    """Return the numbers that a run has one of in each row, and its layers.

    Returns:
        ``numbers``: of each ``id``, family, port, label, unit, kind of scale; main families and main numbers first.
        ``main``: the id of the number to show first; None without any.
        ``layers``: name, class, depth, ports and parameters of each, in the order of execution.
        ``matched``: how many logged steps are in ``both`` runs and in each, where the run is shown against another one; else None.
        ``times``: steps, ascending, and when the rows up to each came to the disk, in seconds since 1970.
        ``has_ratio``, ``has_powers``: whether update / weight, and counts of powers of two, were recorded.
    """
    listed = [number_data(name, family, port, number) for name, (family, _, port, number) in opened.drawable.items()]
    layers: dict[str, dict[str, Any]] = {}
    for site in opened.sites:
        owner = site.owner
        known = layers.setdefault(
            owner.name,
            {
                "layer": owner.name,
                "kind": opened.facts.of(owner).kind,
                "depth": owner.path.count(".") + 1 if owner.path else 0,
                "sites": [],
                "parameters": [],
            },
        )
        known["sites"].append(str(site))
        if PORTS[site.port].of == "parameter" and site.name not in known["parameters"]:
            known["parameters"].append(site.name)
    known_numbers = opened.known
    has_ratio = known_numbers.has("ratio", "update") or (known_numbers.has("rms", "update") and known_numbers.has("rms", "param"))
    return {
        "numbers": listed,
        "main": next((each["id"] for each in listed), None),
        "layers": list(layers.values()),
        "matched": opened.matched,
        "times": [list(each) for each in opened.run.times],
        "ratio": RATIO if has_ratio else None,
        "has_powers": any("powers" in names for names in known_numbers.numbers.values()),
    }
