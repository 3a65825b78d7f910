"""Tell the columns of a history apart by what they are, take numbers of many columns together, and word findings about several."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sonde.rules.finding import Finding
from sonde.rules.model_facts import ModelFacts
from sonde.rules.place_history import History
from sonde.rules.window import Columns, Mask, Numbers
from sonde.site import Site

_NAMED = 3
_FEW = 3


@dataclass
class Groups:
    """Columns by what they are, for as long as the columns stay the same.

    Attributes:
        inner: outputs of hidden layers.
        first_to_last: of these, the first tensor of each call, in the order of execution; others are masks or states.
        weights, updates, gradients: matrices that have all three, column by column.
        moved: updates and parameters, of biases and the like, too, column by column.
        usual: the sizes of weights as torch would initialise them.
        normed: which of the updates are of weights before a normalisation, whose outputs do not depend on how large these are.
        deep: columns of weights and of their gradients, in the order of execution.
        scored: which of these make queries or keys.
        tanh, sigmoid, relu, dropout: hidden activations by their kind.
        ends: the output of an activation that runs last, and the gradient there.
        halves: which of the updates are of weights in a half precision.
        queries, keys: outputs of attention, pair by pair.
        lookups: the gradients and the outputs of embeddings, pair by pair: the largest, and others of a quarter of its rows.
        first_recurrent: output and the gradients of the input weight and bias of the layer that runs first, if it is recurrent.
        first_layer: output, weight and bias (or -1) of the layer that runs first, if it mixes inputs; the output (or -1) of a
            normalisation that runs next.
        first_gradients: the gradients of this weight and bias; None where there are none.
        float16: outputs, parameters or gradients in this format.
    """

    inner: Mask
    first_to_last: Columns
    updates: Columns
    weights: Columns
    gradients: Columns
    moved: tuple[Columns, ...]
    usual: Numbers
    normed: Mask
    deep: Columns
    scored: Mask
    tanh: Columns
    sigmoid: Columns
    ends: Columns
    zeros: Columns
    dropout: Columns
    float16: Columns
    halves: Mask
    queries: Columns
    keys: Columns
    lookups: tuple[Columns, Columns]
    first_recurrent: tuple[int, int, int] | None
    first_layer: tuple[int, int, int, int] | None
    first_gradients: tuple[int, int] | None

    @staticmethod
    def of(history: History, facts: ModelFacts) -> Groups:
        outputs = history.at("output")
        inner = outputs & ~history.is_output_of_model()
        ordered = np.array(sorted(np.flatnonzero(inner).tolist(), key=history.rank), np.intp)
        kinds = [fact.kind for fact in history.facts]

        def of_kind(*names: str) -> Columns:
            return np.array([c for c in ordered.tolist() if kinds[c] in names], np.intp)

        updates, weights, gradients = history.beside("update", "param", "grad")
        usual = np.array([history.facts[c].usual for c in weights.tolist()])
        ran = _first_outputs(history)
        before = {history.sites[c].path for c, then in itertools.pairwise(ran) if "Norm" in history.facts[then].kind}
        normed = np.array([history.sites[c].path.rpartition(".")[0] in before for c in weights.tolist()], bool)
        by_depth = sorted(
            zip(*[each.tolist() for each in history.beside("param", "grad")], strict=True), key=lambda two: history.rank(two[0])
        )
        deep = np.array(by_depth, np.intp).reshape(-1, 2).T
        last = max(np.flatnonzero(outputs).tolist(), key=history.rank, default=-1)
        pulled = history.column_at(history.sites[last].path, "grad_output", history.calls[last]) if last >= 0 else None
        is_end = pulled is not None and kinds[last] in ("Sigmoid", "Tanh", "ReLU")
        ends = np.array([[last], [pulled]] if is_end else [[], []], np.intp)
        dropout = np.array([c for c in ordered.tolist() if kinds[c].startswith("Dropout")], np.intp)
        first = {(history.sites[c].path, history.calls[c]): c for c in sorted(ordered.tolist(), reverse=True)}
        main = np.array(sorted(first.values(), key=history.rank), np.intp)
        zeros = np.array(
            [*[c for c in main.tolist() if "Drop" not in kinds[c]], *[c for c in ends[0].tolist() if kinds[c] == "ReLU"]], np.intp
        )
        halves = {fact.dtype for fact in facts.parameters.values()}
        half = np.flatnonzero(outputs | history.at("grad")) if halves == {"float16"} else np.empty(0, np.intp)
        in_half = np.array([history.facts[c].dtype in ("float16", "bfloat16") for c in weights.tolist()], bool)
        queries, keys = queries_and_keys(history, facts)
        moved = history.beside("update", "param", every=True)
        layers = [history.sites[c].path.rpartition(".")[0] for c in deep[0].tolist()]
        scoring = {each for query in layers if (key := _key_of(query)) != query and key in layers for each in (query, key)}
        scored = np.array([each in scoring for each in layers], bool)
        recurrent, plain = (_first_gradients(history, *names) for names in (("weight_ih_l0", "bias_ih_l0"), ("weight", "bias")))
        return Groups(
            inner, main, updates, weights, gradients, moved, usual, normed, deep, scored, of_kind("Tanh", "RNN"),
            of_kind("Sigmoid"), ends, zeros, dropout, half, in_half, queries, keys, _lookups(history),
            recurrent, _first_layer(history), plain and plain[1:],
        )  # fmt: skip


_QUERY = {"q": "k", "query": "key", "queries": "keys", "wq": "wk", "Wq": "Wk"}
_SCALES = ("scale", "temperature", "tau")
_KEEPS = ("Flatten", "Unflatten", "Identity")  # layers that return the elements that they are given


def queries_and_keys(history: History, facts: ModelFacts) -> tuple[Columns, Columns]:
    """Return the columns of the outputs that are the queries and keys of an attention, by their names, pair by pair.

    Normalised ones are taken where there are any. An attention with a scale of its own that it learns is left out, and one whose
    queries and keys are parts of one output, or of no layer's, cannot be seen.
    """
    at = {(history.sites[c].path, history.calls[c]): c for c in np.flatnonzero(history.at("output"))[::-1].tolist()}
    pairs: dict[tuple[str, int], list[tuple[bool, int, int]]] = {}
    for (path, call), column in at.items():
        key = at.get((_key_of(path), call))
        if _key_of(path) != path and key is not None:
            pairs.setdefault((path.rpartition(".")[0], call), []).append(
                ("norm" in history.facts[column].kind.lower(), -column, key)
            )
    scaled = {path.rpartition(".")[0] for _, path in facts.parameters if any(word in path.rpartition(".")[2] for word in _SCALES)}
    chosen = [max(found) for (parent, _), found in pairs.items() if parent not in scaled]
    found = np.array([[-query, key] for _, query, key in chosen], np.intp).reshape(-1, 2).T
    return found[0], found[1]


def _key_of(path: str) -> str:
    """Return the name of the layer of the keys, if that at *path* makes queries; *path* itself if it does not, by its name."""
    parent, dot, name = path.rpartition(".")
    return parent + dot + "_".join(_QUERY.get(part, part) for part in name.split("_"))


def _first_outputs(history: History) -> list[int]:
    """Return the columns of outputs of first calls, in the order of execution, but for those that return what they are given."""
    outputs = [c for c in np.flatnonzero(history.at("output")).tolist() if history.facts[c].kind not in _KEEPS]
    return sorted([c for c in outputs if history.calls[c] <= 0], key=history.rank)


def _first_gradients(history: History, *names: str) -> tuple[int, int, int] | None:
    """Return the columns of the output of the layer that runs first, and of the gradients of its weight and bias."""
    for output in _first_outputs(history)[:1]:
        weight, bias = (history.column_at(parameter_of(history.sites[output].path, name), "grad") for name in names)
        if weight is not None and bias is not None:
            return output, weight, bias
    return None


def _first_layer(history: History) -> tuple[int, int, int, int] | None:
    """Return the columns of output, weight and bias of the layer that runs first; None where its output is no size of its input.

    That is where it is no layer with a weight that mixes inputs. The last is the output of a normalisation that runs next, or -1.
    """
    outputs = _first_outputs(history)
    if not outputs:
        return None
    weight, bias = (history.column_at(parameter_of(history.sites[outputs[0]].path, name), "param") for name in ("weight", "bias"))
    norm = outputs[1] if len(outputs) > 1 and "Norm" in history.facts[outputs[1]].kind else -1
    if weight is None or not history.matrix[weight] or history.calls[outputs[0]] < 0:  # of several calls one alone takes the data
        return None
    return outputs[0], weight, -1 if bias is None else bias, norm


def parameter_of(path: str, name: str) -> str:
    """Return the path of the parameter *name* of the module at *path*."""
    return f"{path}.{name}" if path else name


def _lookups(history: History) -> tuple[Columns, Columns]:
    """Return the columns of the gradients and of the outputs of embeddings that run: of the largest, and of large ones beside it.

    Small tables, as of kinds of tokens, may well have one row in use.
    """
    at = {str(site): column for column, site in enumerate(history.sites) if history.calls[column] <= 0}
    called = []
    for column in np.flatnonzero(history.at("grad")).tolist():
        fact, site = history.facts[column], history.sites[column]
        output = at.get(str(Site(site.path.rpartition(".")[0], "output", model=site.model)))
        if fact.kind.startswith("Embedding") and fact.shape is not None and len(fact.shape) == 2 and output is not None:
            called.append((fact.shape[0], column, output))
    large = [each[1:] for each in called if 4 * each[0] >= max(called)[0]]
    found = np.array(large, np.intp).reshape(-1, 2).T
    return found[0], found[1]


def first_of(values: Numbers, reduce: Callable[..., float]) -> float:
    """*reduce* of the first line of *values* that has any; NaN if none has."""
    lines = np.flatnonzero(np.isfinite(values).any(axis=1))
    return float(reduce(values[lines[0]])) if len(lines) else math.nan


def medians(values: Numbers) -> Numbers:
    """Return the median of each line; NaN of a line without numbers, without the warning, whose filters are of all threads."""
    found = np.full(len(values), np.nan)
    missing = np.isnan(values)
    if not missing.any() and values.size:
        return np.asarray(np.median(values, axis=1))
    known = ~missing.all(axis=1)
    if known.any():
        found[known] = np.nanmedian(values[known], axis=1)
    return found


def rank_correlation(values: Numbers) -> float:
    """Return Spearman's correlation of *values* with their positions, without those that are no numbers."""
    values = values[np.isfinite(values)]
    return float(_correlations(values[None])[0]) if len(values) >= _FEW else 0.0


def rank_correlations(values: Numbers) -> Numbers:
    """Return :func:`rank_correlation` of each line."""
    if values.shape[1] >= _FEW and np.isfinite(values).all():
        return _correlations(values)
    return np.array([rank_correlation(line) for line in values])


def _correlations(values: Numbers) -> Numbers:
    """Return the rank correlations of lines of numbers: ranks and positions are the same numbers, so that they vary alike."""
    positions = np.arange(values.shape[1]) - (values.shape[1] - 1) / 2
    ranks = values.argsort(axis=1, kind="stable").argsort(axis=1) - (values.shape[1] - 1) / 2
    return np.asarray(ranks @ positions / (positions @ positions))


def among(names: Sequence[str], message: str) -> str:
    """Return *message* about the first of *names*, with the others behind it: a few by name.

    >>> from sonde.rules import among, others
    >>> among(["0", "1", "2"], "0: dead"), others(["0", "1"])
    ('0: 0: dead (also 1, 2)', ' (also 1)')
    """
    return f"{names[0]}: {message}{others(names)}"


def others(names: Sequence[str]) -> str:
    """Return the end of a message that names all but the first of *names*: a few by name; ``""`` where there is one.

    >>> from sonde.rules import others
    >>> others(["0", "1"]), others(["0"])
    (' (also 1)', '')
    """
    rest = len(names) - _NAMED
    return f" (also {', '.join(names[1:_NAMED])}" + (f" and {rest} more)" if rest > 0 else ")") if len(names) > 1 else ""


def joined(history: History, found: Sequence[tuple[int, Finding]]) -> Iterator[Finding]:
    """Yield the first of *found* at its place, with the names of the others; nothing if there is none."""
    if not found:
        return
    column, first = found[0]
    names = list(dict.fromkeys(history.name(each) for each, _ in found))
    step = max(first.step, 0)
    epochs = history.moments[history.moments[:, 1] <= step, 0]
    epoch = first.epoch or (int(epochs[-1]) if len(epochs) else 0)
    begun = step if first.first_step is None else first.first_step
    site, call = str(history.sites[column]), history.calls[column]
    placed = replace(first, message=among(names, first.message), site=site, call=call, epoch=epoch, first_step=begun)
    yield replace(placed, places=tuple(names), order=min(int(history.order[each]) for each, _ in found))
