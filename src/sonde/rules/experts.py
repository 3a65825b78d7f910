"""Find the parts of a model, several alike, among which a router chooses, and those that it leaves without any sample."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sonde.rules.model_facts import Fact

_NUMBERED = re.compile(r"\.(\d+)\.")
_FEWEST = 3  # parts: of two, a layer before them may well have two outputs


@dataclass
class Experts:
    """Parts of a model that are alike, and the layer before them that has one output for each.

    Attributes:
        router: the path of the weight of that layer.
        weights: the paths of the weights of each part, by its own path.
    """

    router: str
    weights: Mapping[str, list[str]]


def experts_of(parameters: Mapping[str, Fact], order: Mapping[str, int]) -> Iterator[Experts]:
    """Yield the experts of a model.

    >>> from sonde.rules.model_facts import Fact
    >>> weights = {"gate.weight": Fact("Linear", "weight", (3, 8))}
    >>> weights |= {f"experts.{each}.weight": Fact("Linear", "weight", (8, 8)) for each in range(3)}
    >>> next(experts_of(weights, {"gate": 0, "experts.0": 1})).router
    'gate.weight'

    Args:
        parameters: by path.
        order: of the layers that have run, when in a pass, by path.
    """
    parts: dict[str, dict[str, list[str]]] = {}
    matrices = {path: fact for path, fact in parameters.items() if fact.is_matrix and fact.trainable}
    for path in matrices:
        for found in _NUMBERED.finditer(path):
            parts.setdefault(path[: found.start()], {}).setdefault(path[: found.end() - 1], []).append(path)
    for parent, weights in parts.items():
        around = parent.rpartition(".")[0]
        inside = [
            path for path in matrices if path.startswith(f"{around}." if around else "") and not path.startswith(f"{parent}.")
        ]
        begins = min((at for path, at in order.items() if path.startswith(f"{parent}.")), default=-1)
        before = [path for path in inside if -1 < order.get(path.rpartition(".")[0], -1) < begins]
        routers = [path for path in before if "Linear" in matrices[path].kind and matrices[path].units == len(weights)]
        if routers and len(weights) >= _FEWEST:
            yield Experts(max(routers, key=lambda path: order[path.rpartition(".")[0]]), weights)
