"""Propose which layers of two models belong together when their names differ: by order, class, shapes, and values."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from sonde.diagnosis.compare.names import Names
from sonde.diagnosis.compare.sides import Side
from sonde.diagnosis.compare.weights import of_equal_parameters, same_values
from sonde.diagnosis.distance import as_numbers, readable
from sonde.engine import parameters_of
from sonde.stats import PLAIN

_CERTAIN = 100.0
"""Score of two layers that alone hold the same numbers."""
_LEAST = 3.5
"""Score from which two layers may belong together."""
_NEAR = 1e-3
"""Relative difference of two root mean squares that count as one value."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """One module that ran: what is known of it but its place in the order.

    Attributes:
        name: its path.
        type: name of its class, in lower case.
        elements: of its output.
        parameters: the sorted shapes of its own parameters; None where they are not known.
        size, given: root mean square of the output, and of the input; 0 where there is none.
        is_container: other modules ran inside.
        held: how many numbers its parameters have, with those of modules inside; None where they are not known.
    """

    name: str
    type: str
    elements: int
    parameters: tuple[tuple[int, ...], ...] | None
    size: float
    given: float
    is_container: bool
    held: int | None = None


def proposed_match(a: Side, b: Side, without: Collection[str] = ()) -> dict[str, str]:
    """Return patterns of names for modules of ``a`` and ``b`` that seem to belong together, as ``match=`` takes them.

    Modules *without* are left out: those that belong together in parts. Where many names are in both sides, these belong together,
    and of the others those may that have the same parent, or equal parameters.

    Modules that alone hold the same numbers belong together, in whatever order they run. The others that ran are aligned in the
    order of execution, so that the sum of scores of pairs is largest (Needleman and Wunsch 1970, gaps are free). A pair scores by
    the size of its output, class, parameters, name, and value of the output.
    """
    common = set() if few_in_common(a, b) else set(a.types()) & set(b.types())
    one, other = ([layer for layer in _layers(side) if layer.name not in {*without, *common}] for side in (a, b))
    if not one or not other:
        return {}
    here, there = a.modules(), b.modules()

    def are_equal(mine: _Layer, theirs: _Layer) -> bool:
        is_matrix = mine.parameters == theirs.parameters and any(len(shape) > 1 for shape in mine.parameters or ())
        return is_matrix and of_equal_parameters(here.get(mine.name), there.get(theirs.name))

    scores = _scores(one, other, are_equal)
    numbers = _of_same_numbers([here.get(each.name) for each in one], [there.get(each.name) for each in other])
    numbers = {_given_alike(one, i, other[j]): _given_alike(other, j, one[i]) for i, j in numbers.items()}
    same = {i: j for i, j in numbers.items() if _hold_alike(one[i], other[j])}
    for i, j in same.items():
        scores[i, :] = scores[:, j] = 0.0
        scores[i, j] = _CERTAIN
    order = dict(_aligned(scores)) | same
    for _ in range(_MOST_ALIGNED):
        crossing = [(i, j) for i, j in order.items() if _is_crossed(i, j, order, one, other, here, there)]
        for i, j in crossing:
            scores[i, j] = 0.0
        order = dict(_aligned(scores)) | same if crossing else order
    order = {i: j for i, j in order.items() if not _is_crossed(i, j, order, one, other, here, there)}
    pairs = [(one[i].name, other[j].name) for i, j in sorted(order.items()) if one[i].name and other[j].name]
    pairs = [
        each
        for each in pairs
        if not common
        or len({name.rpartition(".")[0] for name in each}) == 1
        or of_equal_parameters(here.get(each[0]), there.get(each[1]))
    ]
    match = _without_strangers(_patterns(pairs), pairs, one, other)
    names = Names(match, [layer.name for layer in one], [layer.name for layer in other])
    exact = {name: beside for name, beside in pairs if names.of_b(name) != beside}
    return {**exact, **match}


_MOST_ALIGNED = 3
"""So often layers are aligned again without pairs that cannot be."""


def _is_crossed(
    i: int,
    j: int,
    order: Mapping[int, int],
    one: Sequence[_Layer],
    other: Sequence[_Layer],
    here: Mapping[str, nn.Module],
    there: Mapping[str, nn.Module],
) -> bool:
    """Return whether two blocks hold layers of others: of two of equal parameters one lies in one block, and the other not.

    As of a norm before a block. So it is where as many pairs of layers lie in one of the blocks alone as in both.
    """
    if not (one[i].is_container and one[i].name and other[j].is_container and other[j].name):
        return False
    inside = {
        (x, y): (one[x].name.startswith(f"{one[i].name}."), other[y].name.startswith(f"{other[j].name}.")) for x, y in order.items()
    }
    crossing = [pair for pair, is_inside in inside.items() if is_inside[0] != is_inside[1]]
    if any(of_equal_parameters(here.get(one[x].name), there.get(other[y].name)) for x, y in crossing):
        return True
    return len(crossing) >= max(1, sum(map(all, inside.values())))


def _given_alike(layers: Sequence[_Layer], at: int, beside: _Layer) -> int:
    """Return which of *layers* is given what *beside* is: that *at* a place, or a module around it that holds no other parameters.

    As a table of codes in a module that finds the nearest ones, against a module that holds the codes itself. So it is with a
    module around that holds a bias besides, as *beside* does.
    """
    own = layers[at]
    whole = [
        place for place, each in enumerate(layers) if own.name.startswith(f"{each.name}.") and own.held != beside.held == each.held
    ]
    if whole:
        return max(whole, key=lambda place: len(layers[place].name))
    around = [
        place
        for place, each in enumerate(layers)
        if own.name.startswith(f"{each.name}.") and each.held == own.held and _is_near(each.given, beside.given)
    ]
    return at if _is_near(own.given, beside.given) else max(around, key=lambda place: len(layers[place].name), default=at)


def _of_same_numbers(one: Sequence[nn.Module | None], other: Sequence[nn.Module | None]) -> dict[int, int]:
    """Return which modules hold the same numbers in their largest parameter, which no further module of either side holds.

    Both have as many matrices: a recurrent layer is not the layer by which another one makes its gates.
    """
    found: list[dict[tuple[int, int, str], list[int]]] = [{}, {}]
    held = [[_largest(module) for module in side] for side in (one, other)]
    for largest, places in zip(held, found, strict=True):
        for place, (matrices, tensor) in enumerate(largest):
            if tensor is not None:
                places.setdefault((matrices, tensor.numel(), f"{float(as_numbers(tensor).norm()):.5g}"), []).append(place)
    both = {key: (here[0], there[0]) for key, here in found[0].items() if len(here) == len(there := found[1].get(key, [])) == 1}
    pairs = {(i, j): (held[0][i][1], held[1][j][1]) for i, j in both.values()}
    return {i: j for (i, j), (x, y) in pairs.items() if x is not None and y is not None and same_values(x, y)}


def _largest(module: nn.Module | None) -> tuple[int, Tensor | None]:
    """Return how many matrices *module* itself has, and its largest parameter; None for one that is constant, or not to be read."""
    own = [] if module is None else [readable(each) for each in module.parameters(recurse=False) if not each.is_nested]
    largest = max(own, key=Tensor.numel, default=None)
    is_known = largest is not None and not largest.is_meta and type(largest) in PLAIN and largest.numel() > 1
    is_own = is_known and largest is not None and bool((largest != largest.flatten()[0]).any())
    return sum(each.dim() > 1 for each in own), largest if is_own else None


def _layers(side: Side) -> list[_Layer]:
    modules = side.modules()
    found: dict[str, _Layer] = {}
    inputs: dict[str, float] = {}
    for kept in side.forward:
        name = kept.site.path
        if kept.site.port == "input" and name not in inputs:
            inputs[name] = _size(None if kept.main is None else kept.main[1])
        if kept.site.port != "output" or name in found:
            continue
        module, main = modules.get(name), kept.main
        shapes = None
        if module is not None:
            own = [tuple(sorted(held.shape)) for held in parameters_of(module).values() if held is not None]
            shapes = tuple(sorted(own))
        tensor = None if main is None else main[1]
        elements = 0 if tensor is None else tensor.numel()
        found[name] = _Layer(
            name,
            kept.type.lower(),
            elements,
            shapes,
            _size(tensor),
            inputs.get(name, 0.0),
            not name or any(other.startswith(f"{name}.") for other in found),
            None if module is None else sum(each.numel() for each in module.parameters() if not each.is_nested),
        )
    return list(found.values())


def _size(tensor: Tensor | None) -> float:
    if tensor is None or tensor.is_meta or not tensor.numel():
        return 0.0
    return float(as_numbers(tensor).square().mean().sqrt())


def _scores(one: list[_Layer], other: list[_Layer], are_equal: Callable[[_Layer, _Layer], bool]) -> np.ndarray:
    scores = np.zeros((len(one), len(other)))
    for i, here in enumerate(one):
        for j, there in enumerate(other):
            scores[i, j] = _score_of_two(here, there, are_equal=here.elements == there.elements or are_equal(here, there))
    return scores


def _score_of_two(here: _Layer, there: _Layer, *, are_equal: bool) -> float:
    """Return how well two layers match, whose outputs have as many elements, or whose weights *are_equal*; 0 of strangers."""
    score = _score(here, there) if are_equal and _hold_alike(here, there) else 0.0  # a stride or a padding may be another
    return score if score >= _LEAST else 0.0


def _score(here: _Layer, there: _Layer) -> float:
    if any((word in here.type) != (word in there.type) for word in _BESIDE):
        return 0.0
    score = 2.0 + _same_kind(here.type, there.type) + (1.0 if here.is_container == there.is_container else -2.0)
    if here.parameters is not None and there.parameters is not None:
        is_same = here.held == there.held and (here.is_container or there.is_container)  # however it lies in layers inside
        if here.parameters == there.parameters or is_same:
            score += 3.0 if here.parameters or is_same else 0.5
        elif bool(here.parameters) != bool(there.parameters):
            score -= _MORE_IN_FRONT if _has_more_in_front(here, there) else 3.0
        else:
            score -= 1.0
    mine, theirs = here.name.split("."), there.name.split(".")
    score += 1.0 * (mine[-1] == theirs[-1]) + 0.5 * (_digits(mine) == _digits(theirs))
    return score + 2.0 * _is_near(here.size, there.size) + 1.5 * _is_near(here.given, there.given)


def _hold_alike(here: _Layer, there: _Layer) -> bool:
    """Return whether two layers hold about as many numbers, if that tells them apart: a block is no counterpart of its part."""
    is_told = here.is_container or there.is_container or here.type == there.type == "linear"  # not of a table, which may be longer
    if not here.held or not there.held or not is_told:
        return True
    return max(here.held, there.held) <= _MOST_TIMES * min(here.held, there.held)


_MOST_TIMES = 1.5

_BESIDE = ("dropout", "droppath", "identity")
"""What a model may have or lack anywhere: no counterpart of a layer that computes something."""


def _is_near(one: float, other: float) -> bool:
    return one > 0 and abs(one - other) <= _NEAR * max(one, other)


def _same_kind(one: str, other: str) -> float:
    if one == other:
        return 2.0
    words = ("norm", "linear", "conv", "embedding", "dropout", "att", "mlp", "relu", "elu", "pool", "block", "layer")
    return 1.0 if any(word in one and word in other for word in words) else 0.0


def _has_more_in_front(here: _Layer, there: _Layer) -> bool:
    """Return whether the one of two blocks that has own parameters does what is in front of the other, too."""
    is_given_alike = abs(here.given - there.given) <= _SAME * max(here.given, there.given)
    return here.is_container and there.is_container and not is_given_alike


_MORE_IN_FRONT, _SAME = 8.0, 1e-5
"""What a pair of blocks loses, which is all; relative difference of root mean squares that are one but for rounding."""


def _digits(parts: list[str]) -> list[str]:
    return [part for part in parts if part.isdigit()]


def _aligned(scores: np.ndarray) -> list[tuple[int, int]]:
    """Return the pairs of rows and columns, both growing, with the largest sum of scores."""
    rows, columns = scores.shape
    best = np.zeros((rows + 1, columns + 1))
    for row in range(rows):
        best[row + 1, 1:] = np.maximum(best[row, 1:], best[row, :-1] + scores[row])
        np.maximum.accumulate(best[row + 1], out=best[row + 1])
    pairs = []
    row, column = rows, columns
    while row and column:
        if best[row, column] == best[row - 1, column]:
            row -= 1
        elif best[row, column] == best[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((row, column))
    return pairs[::-1]


def _patterns(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Return patterns that give all *pairs*: numbers that both names have in the same order become ``*``."""
    made: dict[str, str] = {}
    conflicts: set[str] = set()
    for name, beside in pairs:
        pattern, other = _starred(name, beside)
        if made.setdefault(pattern, other) != other:
            conflicts.add(pattern)
    return {pattern: other for pattern, other in made.items() if pattern not in conflicts and pattern != other}


def _without_strangers(
    match: dict[str, str], pairs: list[tuple[str, str]], one: Sequence[_Layer], other: Sequence[_Layer]
) -> dict[str, str]:
    """Return the patterns of *match* that lead no layer without a partner to one that another has, or that is unlike it."""
    known, taken = dict(pairs), {beside for _, beside in pairs}
    layers = {layer.name: layer for layer in other}
    kept = {}
    for pattern, beside in match.items():
        names = Names({pattern: beside}, [layer.name for layer in one], layers)
        strangers = [(layer, made) for layer in one if layer.name not in known and (made := names.by_pattern(layer.name))]
        if all(
            made not in taken and _score_of_two(layer, layers[made], are_equal=layer.elements == layers[made].elements)
            for layer, made in strangers
        ):
            kept[pattern] = beside
    return kept


def _starred(name: str, beside: str) -> tuple[str, str]:
    if _digits(name.split(".")) != _digits(beside.split(".")):
        return name, beside
    number = re.compile(r"(?<![^.])\d+(?![^.])")
    return number.sub("*", name), number.sub("*", beside)


def few_in_common(a: Side, b: Side) -> bool:
    """Return whether less than half of the smaller side's modules have a name of the other."""
    here, there = set(a.types()), set(b.types())
    smaller = min(len(here), len(there)) - 1
    return smaller > 0 and len((here & there) - {""}) < smaller / 2
