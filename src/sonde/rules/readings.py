"""What the rules read of a block of rows, place by place: the columns they judge there, and their numbers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sonde.rules.health import AT_BOUNDS, DEAD_SAMPLES, FORMATS
from sonde.rules.layer_groups import Groups, medians, rank_correlations
from sonde.rules.place_history import History
from sonde.rules.window import Columns, Mask, Numbers

DEEP = 6
"""Layers: with fewer, a quarter of them is no more than one."""
_DIGITS = 3  # parameters whose largest elements have more digits than bfloat16
_SPARSE = 0.5  # of a gradient, zeros from which on most inputs of a weight are not there
_TURNS = 0.75  # of its size, by which a step turns a weight far
_INNER = 4  # weights: with fewer, two of them may well differ from the third


@dataclass(frozen=True)
class Sizes:
    """A block of sizes: what is measured of every layer and parameter of one model at several logged steps.

    Attributes:
        history: of the sizes; the block was added last.
        groups: the columns by what they are.
        values: the sizes, of shape ``(moments, columns)``; NaN where a place has no row.
        first: the first size of each column.
    """

    history: History
    groups: Groups
    values: Numbers
    first: Numbers


@dataclass(frozen=True)
class Reading:
    """What a block has at some places.

    Attributes:
        columns: of the history.
        numbers: by the names under which rules take them, each of shape ``(moments, len(columns))``.
        where: where a rule may find something; a number elsewhere counts as one at which it does not.
    """

    columns: Columns
    numbers: Mapping[str, Any]
    where: Mask | bool = True


_NOTHING = Reading(np.empty(0, np.intp), {})

PLACES: dict[str, Callable[[Sizes], Reading]] = {}
"""The places at which rules about sizes are judged: what ``at`` of an entry can be, besides a port."""


def _place(read: Callable[[Sizes], Reading]) -> Callable[[Sizes], Reading]:
    """List the decorated function as a place, under its name."""
    PLACES[read.__name__] = read
    return read


@_place
def matrices(of: Sizes) -> Reading:
    """Return the sizes of weights, now and at the first logged step."""
    columns = np.flatnonzero(of.history.at("param") & of.history.matrix)
    size = of.values[:, columns]
    return Reading(columns, {"size": size, "before": np.broadcast_to(of.first[columns], size.shape)})


@_place
def weights(of: Sizes) -> Reading:
    """Return the values of weights; a rule is about those whose gradient was measured, and of two units or more."""
    columns = of.groups.weights
    numbers = {"mean": of.history.of("mean")[:, columns], "std": of.history.of("std")[:, columns]}
    several = np.array([of.history.facts[column].units != 1 for column in columns.tolist()], bool)
    return Reading(columns, numbers, np.isfinite(of.values[:, of.groups.gradients]) & several)


@_place
def updates(of: Sizes) -> Reading:
    """Return the sizes of steps over those of weights, which count as at least as large as torch would initialise them.

    That is for as many inputs as there are: of sparse ones, where most of the gradient is zero, for those that come. Before a
    normalisation only the direction of a weight counts, which smaller steps than three quarters of its size turn little.
    """
    gradient, update, weight = (of.values[:, each] for each in (of.groups.gradients, of.groups.updates, of.groups.weights))
    zeros = of.history.of("zeros")[:, of.groups.gradients] / of.history.of("count")[:, of.groups.gradients]
    inputs = np.where(zeros >= _SPARSE, np.fmax(1 - zeros, 1e-3), 1.0)
    ratio = np.where(np.isfinite(gradient), update / np.fmax(weight, of.groups.usual / np.sqrt(inputs)), np.nan)
    return Reading(of.groups.updates, {"ratio": ratio}, ~(of.groups.normed & (ratio < _TURNS)))


@_place
def halves(of: Sizes) -> Reading:
    """Return the share of a weight in a half precision that a step leaves: in float32 a lost step is too small in any format."""
    updates = of.groups.updates
    if not of.groups.halves.any():
        return _NOTHING
    zeros, count = of.history.of("zeros"), of.history.of("count")
    steps_at_all = (of.values[:, updates] > 0).any(axis=1, keepdims=True)
    share = (zeros[:, updates] - zeros[:, of.groups.gradients]) / count[:, updates]
    return Reading(updates, {"share": share}, steps_at_all & of.groups.halves)


@_place
def gradients(of: Sizes) -> Reading:
    """Return the sizes of the gradients of weights, and of embeddings: of tables that are looked up, some row has one."""
    tables = [fact.kind.startswith("Embedding") for fact in of.history.facts]
    columns = np.concatenate([of.groups.deep[1], np.flatnonzero(of.history.at("grad") & np.array(tables, bool))])
    return Reading(columns, {"size": of.values[:, columns]})


@_place
def depth(of: Sizes) -> Reading:
    """Return the sizes of gradients in the first quarter of the weights and in the last, at the first weight.

    Without those that make queries and keys: what reaches them has gone through a softmax, and is as small in any layer.
    """
    gradients, score = _scores(of)
    if len(gradients) < DEEP:
        return _NOTHING
    quarter = len(gradients) // 4
    first, last = (medians(part)[:, None] for part in (score[:, :quarter], score[:, -quarter:]))
    return Reading(gradients[:1], {"first": first, "last": last, "along": rank_correlations(score)[:, None]})


def _scores(of: Sizes) -> tuple[Columns, Numbers]:
    """Return the columns of gradients from the first layer to the last, and their sizes times those of the weights."""
    weights, gradients = of.groups.deep[:, ~of.groups.scored]
    usual = np.array([of.history.facts[column].usual for column in weights.tolist()])
    return gradients, of.values[:, gradients] * np.fmax(of.values[:, weights], usual)


@_place
def inner(of: Sizes) -> Reading:
    """Return the first sizes of the gradients of weights between the first and the last, and of each the largest other one."""
    gradients, score = _scores(of)
    if len(gradients) < _INNER:
        return _NOTHING
    facts = [of.history.facts[column] for column in gradients.tolist()]
    score = np.nan_to_num(score) * np.sqrt([fact.units * fact.inputs for fact in facts])
    second, first = np.sort(score, axis=1)[:, -2:].T[:, :, None]
    others = np.where(score == first, second, first)
    is_first = of.values[:, gradients] == of.first[gradients]
    return Reading(gradients[1:-1], {"size": score[:, 1:-1], "largest": others[:, 1:-1]}, is_first[:, 1:-1])


@_place
def slopes(of: Sizes) -> Reading:
    """Return the mean slopes of bounded outputs: an RNN may have ReLU, and a Tanh a wrapper."""
    tanh, sigmoid = of.groups.tanh, of.groups.sigmoid
    columns = np.concatenate([tanh, sigmoid])
    mean = of.history.of("mean")[:, sigmoid]
    slope = np.hstack([1 - of.values[:, tanh] ** 2, 4 * (mean - of.values[:, sigmoid] ** 2)])
    return Reading(columns, {"slope": np.where(of.history.of("absmax")[:, columns] <= 1, slope, np.nan)})


@_place
def ends(of: Sizes) -> Reading:
    """Return of an activation that runs last its mean slope, how far its outputs spread, and the pull outwards."""
    columns, gradients = of.groups.ends
    if not len(columns):
        return _NOTHING
    kind, size = of.history.facts[columns[0]].kind, of.values[:, columns]
    mean, std, some, count = (of.history.of(number)[:, columns] for number in ("mean", "std", "zeros", "count"))
    pull = of.history.of("mean")[:, gradients] / of.values[:, gradients]
    if kind == "ReLU":
        return Reading(columns, {"slope": 1 - some / count, "spread": 0 * std, "pull": np.where(some > 0, pull, np.nan)})
    slope, spread, side = (1 - size**2, std, mean) if kind == "Tanh" else (4 * (mean - size**2), 2 * std, mean - 0.5)
    return Reading(columns, {"slope": slope, "spread": spread, "pull": np.where(slope < AT_BOUNDS, -np.sign(side) * pull, np.nan)})


@_place
def zeros(of: Sizes) -> Reading:
    """Return how many elements of an output are zero."""
    columns = of.groups.zeros
    count = of.history.of("count")[:, columns]
    return Reading(columns, {"zeros": of.history.of("zeros")[:, columns], "count": count}, count >= DEAD_SAMPLES)


@_place
def hidden(of: Sizes) -> Reading:
    """Return the values of hidden outputs."""
    columns = of.groups.first_to_last
    mean, std, count = (of.history.of(number)[:, columns] for number in ("mean", "std", "count"))
    return Reading(columns, {"mean": mean, "std": std, "count": count}, (count > DEAD_SAMPLES) & (mean != 0))


@_place
def dropout(of: Sizes) -> Reading:
    """Return the share that a dropout layer drops: its rate, where its output has as many zeros.

    Zeros alone do not say it: what a layer is given may be sparse, and need not be what the layer before it has returned.
    """
    columns = of.groups.dropout
    rates = np.array([of.history.facts[column].rate for column in columns.tolist()])
    share = of.history.of("zeros")[:, columns] / of.history.of("count")[:, columns]
    return Reading(columns, {"share": np.minimum(share, rates)})


@_place
def attention(of: Sizes) -> Reading:
    """Return the sizes of queries and keys."""
    return Reading(of.groups.queries, {"query": of.values[:, of.groups.queries], "key": of.values[:, of.groups.keys]})


@_place
def lookups(of: Sizes) -> Reading:
    """Return the lookups of large embeddings, while most other weights are trained too: a new word may be trained alone.

    Where most gradients are zero, units are dead, and what reaches a table says nothing of its indices.
    """
    gradients, outputs = of.groups.lookups
    sizes = of.values[:, of.history.at("grad")]
    trained = (sizes > 0).sum(axis=1, keepdims=True)
    are_most = (trained > 1) & (2 * trained > np.isfinite(sizes).sum(axis=1, keepdims=True))
    if not len(gradients):
        return _NOTHING
    count = of.history.of("count")
    elements = count[:, gradients] - of.history.of("zeros")[:, gradients]
    shapes = [of.history.facts[column].shape for column in gradients.tolist()]
    width = np.broadcast_to(np.array([float(shape[1]) if shape else np.nan for shape in shapes]), elements.shape)
    numbers = {"elements": elements, "width": width, "indices": count[:, outputs] / width}
    return Reading(gradients, numbers, np.broadcast_to(are_most, elements.shape))


@_place
def float16(of: Sizes) -> Reading:
    """Return what is in float16, and the limits of the format."""
    columns = of.groups.float16
    if not len(columns):
        return _NOTHING
    absmax = of.history.of("absmax")[:, columns]
    zeros = of.history.of("zeros")[:, columns] / of.history.of("count")[:, columns]
    largest, smallest = (np.full(absmax.shape, limit) for limit in FORMATS["float16"])
    return Reading(columns, {"absmax": absmax, "zeros": zeros, "largest": largest, "smallest": smallest})


@_place
def float16_gradients(of: Sizes) -> Reading:
    """Return the gradients in float16.

    One that is zero underflows only where some other one is below the normal numbers, or none is
    above them. A model that comes to this format behind the begin of the run shows it by its numbers.
    """
    here = float16(of) if len(of.groups.float16) else _turned_to_float16(of)
    if not len(here.columns):
        return _NOTHING
    is_matrix = (of.history.at("grad") & of.history.matrix)[here.columns]
    size = np.where(of.history.at("grad")[here.columns], here.numbers["absmax"], 0.0)
    is_below = (size > 0) & (size < FORMATS["float16"][1])
    fades = np.asarray(is_below.any(axis=1) | ~(size > 0).any(axis=1)).reshape(-1, 1)
    return Reading(here.columns, here.numbers, is_matrix & ((here.numbers["absmax"] > 0) | fades))


def _turned_to_float16(of: Sizes) -> Reading:
    """Return the gradients, where the largest elements of parameters and gradients are numbers of float16, and some of no less.

    Of float32 a number in 8,192 is one of float16 by chance; those of bfloat16 need fewer digits.
    """
    history = of.history
    gradients = np.flatnonzero(history.at("grad"))
    absmax = history.of("absmax")
    if not (absmax[:, gradients] < FORMATS["float16"][1]).any():
        return _NOTHING
    known = absmax[:, np.concatenate([gradients, np.flatnonzero(history.at("param"))])]
    known = np.where(known > 0, known, np.nan)
    missing = np.isnan(known)
    is_half = (missing | (known.astype(np.float16) == known)).all(axis=1)
    digits = np.frexp(np.where(missing, 0.0, known))[0] * 256  # those of bfloat16 are whole numbers
    is_half &= (digits != np.floor(digits)).sum(axis=1) >= _DIGITS
    if not is_half.any():
        return _NOTHING
    zeros = history.of("zeros")[:, gradients] / history.of("count")[:, gradients]
    size = np.where(is_half[:, None], absmax[:, gradients], np.nan)
    return Reading(gradients, {"absmax": size, "zeros": zeros, "smallest": np.full(size.shape, FORMATS["float16"][1])})
