"""Read off the graph of a pass what its layers do: attention, activations that are dead or shut, dropout, sums, normalisations."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine import graph_nodes, padded

_NOTHING = 1e-6  # of a gradient, rounding
# operations between products and their softmax
_SCORES = (*graph_nodes.KEEPS, "Div", "Mul", "MaskedFill", "Add", "Where", "Expand")
_NEAR, _HALF = 40, 0.5  # nodes behind an attention among which a layer is looked for; share of the rows that read one place
_FEW_SAMPLES, _FEW_ELEMENTS = 2, 512  # of a batch that is normalised, whose statistics say little of others
_ELEMENTS = 32  # of a channel of a batch normalisation
_FEATURES = 1 << 22  # elements of a tensor that is read
BEHIND = (*graph_nodes.KEEPS, "Div", "Mul")
"""Operations that leave elements as they are, but for a factor."""
_SUMS, _CANDIDATES = 8, 16  # first inputs of layers that are compared with what may be added; and how many of these
_ZERO_BELOW = {"Relu": 0.0, "Gelu": -6.0, "Silu": -20.0}  # what goes into an activation that returns nothing for it, nor a slope
_BEHIND = 500  # operations behind a layer of one unit
_PRODUCTS = ("Addmm", "Mm")
_ROWS, _FEWEST, _KNOWN = 256, 8, 0.25  # rows and columns that are read, the fewest that tell something, and the share without zeros
_FEW_COLUMNS = 4  # of a table
_ROUNDS, _TINY = 3, 1e-300
_RECURRENT = ("MkldnnRnnLayer", "CudnnRnn", "MiopenRnn", "Stack")  # operations that return all steps of a recurrent layer
_SHUTS = ("Tanh", "Sigmoid", "Softmax")
_NEAR_LAYER = 12  # operations between a layer and its activation, as sums over the neighbours in a graph
_DEAD_ELEMENTS = 64  # of an activation, of which one that is not zero would be seen


def attention_numbers(nodes: Sequence[Any], names: Mapping[int, str], tokens: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return how large the largest weight of each attention is on average (*sharp*), and of how many (*attended*).

    It is 0 where most rows have it at one place. *on padding*: which share the padding of *tokens* has, of samples that have some;
    *first on*: of the first query alone, and *room of* what share of places that is, where samples have different ones.

    *over*: the axis over which weights add up to 1, from the last, where that is not the one over which they weigh something.
    """
    found: dict[str, Tensor] = {}
    for node in nodes:
        found |= _other_axis(node, names) if graph_nodes.operation_of(node) in ("Bmm", "Mm") else {}
        weights = graph_nodes.attention_of(node)
        if weights is None and graph_nodes.operation_of(node) == "Softmax":
            scores = [graph_nodes.behind(each, _SCORES) for each in graph_nodes.sources_of(node)]
            is_last = graph_nodes.axis_of(node) == len(graph_nodes.shape_of(node)) - 1
            is_attention = is_last and bool(scores) and graph_nodes.operation_of(scores[0]) in ("Bmm", "Mm")
            weights = graph_nodes.result_of(node) if is_attention else None
        if weights is not None and weights.numel() <= _FEATURES:
            largest, place = weights.detach().double().max(-1)
            usual = (place == place.flatten().mode().values).double().mean()
            name = graph_nodes.layer_near(node, names)
            found[f"sharp {name}"] = torch.where(usual < _HALF, largest.mean(), 0.0)
            found[f"attended {name}"] = usual.new_full((), weights.shape[-1])
            for share, *_ in _on_padding(weights, tokens):
                found[f"on padding {name}"] = torch.maximum(share, found.get(f"on padding {name}", share))
        first = _of_first_query(node)
        known = list(_on_padding(first, tokens)) if first is not None and first.numel() <= _FEATURES else []
        if known:
            name = graph_nodes.layer_near(node, names)
            share, room, is_varied = torch.stack([torch.stack(each) for each in known]).amin(0)
            found |= {f"first on {name}": share, f"room of {name}": room * is_varied}
    return found


def attentions_in_a_row(nodes: Sequence[Any]) -> int:
    """Return how many attentions an output goes through, if no way leads around any of them; else 0.

    *nodes* are of its graph, the nearest to it first. A way around is that of a residual connection.
    """
    mixing = [each for each in nodes if graph_nodes.operation_of(each).startswith("ScaledDotProduct") or _weighs_values(each)]
    for at, each in enumerate(mixing[:-1]):
        around = set(graph_nodes.nodes_before(nodes[0], len(nodes), [each]))
        if not around.isdisjoint(mixing[at + 1 :]):
            return 0
    return len(mixing)


def _weighs_values(node: Any) -> bool:
    """Return whether the operation multiplies what a softmax has made by something."""
    made = [graph_nodes.behind(each, (*_SCORES, "NativeDropout")) for each in graph_nodes.sources_of(node)]
    return graph_nodes.operation_of(node) in ("Bmm", "Mm") and any("Softmax" in graph_nodes.operation_of(each) for each in made)


def _of_first_query(node: Any) -> Tensor | None:
    """Return the weights of the first query of an attention, ``(samples or more, keys)``; None of another operation."""
    weights = graph_nodes.attention_of(node, of_first=True)
    if weights is not None:
        return weights.flatten(0, -2)
    made, axis = graph_nodes.result_of(node), graph_nodes.axis_of(node)
    if (
        graph_nodes.operation_of(node) not in ("Softmax", "SafeSoftmax")
        or made is None
        or axis is None
        or made.dim() < 2
        or not axis
    ):
        return None
    rows = made.detach().double().movedim(axis, -1)
    scores = [graph_nodes.behind(each, _SCORES) for each in graph_nodes.sources_of(node)]
    is_product = bool(scores) and graph_nodes.operation_of(scores[0]) == "Bmm"
    if is_product and axis == made.dim() - 1:
        return rows[..., 0, :].flatten(0, -2) if rows.dim() > 2 else rows
    return rows.reshape(len(rows), -1) if rows.numel() == len(rows) * rows.shape[-1] else None


def _on_padding(weights: Tensor, tokens: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield of each of the *tokens* that *weights* are of the share that their padding has, that of places, and whether it varies.

    Of samples that have some.
    """
    for each in [each for each in tokens if each.shape[1] == weights.shape[-1] and not weights.shape[0] % len(each)]:
        padding = _padding_of(each)
        shares = (weights.detach().double().reshape(len(each), -1, each.shape[1]) * padding[:, None]).sum(-1).mean(1)
        have = padding.amax(1)
        share, room = ((one * have).sum() / have.sum().clamp(min=1) for one in (shares, padding.mean(1)))
        counts = padding.sum(1)
        yield share, room, (counts.max() > counts.min()).double()


def of_one(nodes: Iterable[Any], names: Mapping[int, str]) -> dict[str, str]:
    """Return the operations that are over one element, and return the same whatever it is, each with the layer it stands behind.

    An attention over one place is none of them.
    """
    found: dict[str, str] = {}
    for node in nodes:
        name, axis, sizes = graph_nodes.operation_of(node), graph_nodes.axis_of(node), graph_nodes.shape_of(node)
        if name in ("Softmax", "LogSoftmax") and axis is not None and sizes[axis : axis + 1] == (1,) and math.prod(sizes) > 1:
            scores = [graph_nodes.operation_of(graph_nodes.behind(each, _SCORES)) for each in graph_nodes.sources_of(node)]
            found |= {"softmax": graph_nodes.layer_near(node, names)} if scores != ["Bmm"] else {}
        elif graph_nodes.is_norm_of_one(node):
            found["normalisation"] = graph_nodes.layer_near(node, names)
    return found


def last_numbers(nodes: Iterable[Any], names: Mapping[int, str], given: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the share of samples whose last step is padding, of recurrent layers that are read at that step alone."""
    found: dict[str, Tensor] = {}
    for node in nodes:
        made = graph_nodes.behind(next(iter(graph_nodes.sources_of(node)), node), graph_nodes.MOVES)
        steps = graph_nodes.last_of(node) if graph_nodes.operation_of(made) in _RECURRENT else 0
        for each in given if steps else ():
            if each.dim() == 3 and each.is_floating_point() and each.shape[1] == steps:
                found[f"last of {graph_nodes.layer_near(made, names)}"] = padded(each)[:, -1].double().mean()
    return found


def _padding_of(given: Tensor) -> Tensor:
    """Return which places of *given* tokens, or of features, are padding; tokens that are 0 and 1 are a mask."""
    if given.dim() == 2:
        return (given == torch.where(padded(given) > 0, given, -1).max()).double() * (given.max() > 1)
    return padded(given).double()


def _other_axis(product: Any, names: Mapping[int, str]) -> dict[str, Tensor]:
    """Return the axis of the softmax whose result a *product* adds up over the last axis, where that is another one."""
    left, _ = product.next_functions[0]
    soft = product if left is None else graph_nodes.behind(left, (*BEHIND, "Expand", "NativeDropout"))
    axis = graph_nodes.axis_of(soft) if graph_nodes.operation_of(soft) == "Softmax" else None
    scores = product if axis is None else graph_nodes.behind(graph_nodes.sources_of(soft)[0], _SCORES)
    if axis is None or graph_nodes.operation_of(scores) not in ("Bmm", "Mm") or graph_nodes.takes_leaf(scores):
        return {}
    off = axis - len(graph_nodes.shape_of(soft))
    return {} if off == -1 else {f"over {graph_nodes.layer_near(soft, names)}": torch.full((), off, device="cpu")}


def narrow_layer(nodes: Sequence[Any], names: Mapping[int, str]) -> str:
    """Return the name of a layer of one unit through which all goes that the last layer is given; ``""`` for none.

    *nodes* are of the graph of an output, the nearest to it first. Where something may come by another way, as what a graph does
    not hold or tokens do, there is none.
    """
    for node in (each for each in nodes if graph_nodes.operation_of(each) == "Addmm"):
        (_, _), (made, _), (weight, _) = node.next_functions
        is_part = made is not None and graph_nodes.operation_of(made) in graph_nodes.TAKES  # the other parts go another way
        if made is not None and not is_part and weight is not None and graph_nodes.shape_of(weight)[:1] == (1,):
            beyond = [each for each in graph_nodes.nodes_before(nodes[0], _BEHIND, [made]) if each is not made]
            is_whole = all(graph_nodes.operation_of(each) != "Embedding" and not _takes_data(each) for each in beyond)
            leaves = map(graph_nodes.leaf_of, graph_nodes.nodes_before(made, _BEHIND))
            name = next((names[id(leaf)] for leaf in leaves if id(leaf) in names), "")
            return name.rpartition(".")[0] if is_whole and len(beyond) < _BEHIND else ""
    return ""


def _takes_data(node: Any) -> bool:
    """Return whether something without a graph may go into what an operation adds, puts together or multiplies by a weight."""
    into = [each for each, _ in node.next_functions]
    name = graph_nodes.operation_of(node)
    return None in into and name not in ("Mul", "Div") and (name in graph_nodes.WEIGHTED or len(into) > 1)


def dead_numbers(nodes: Sequence[Any], names: Mapping[int, str], last: Any) -> dict[str, Tensor]:
    """Return of each layer before an activation, but for the *last* one, whether all of this is zero, its bias, and all else.

    The bias is the mean of it, *rest* the size of what inputs and weight make; NaN where that is not known. *nodes* come in the
    order of execution.
    """
    found: dict[str, Tensor] = {}
    for node in nodes:
        low = _ZERO_BELOW.get(graph_nodes.operation_of(node))
        if low is None or node is last:
            continue
        with suppress(RuntimeError):  # as of what has been written into
            made = graph_nodes.result_of(node) if low == 0 else next(graph_nodes.taken_by(node), None)
            before = graph_nodes.nodes_before(graph_nodes.sources_of(node)[0], _NEAR_LAYER)
            layer, held, name = _layer_behind(node, before, names)
            if made is not None and name and made.numel() >= _DEAD_ELEMENTS and len(made) > 1:
                has_any = torch.stack([each.detach().any() for each in held]).any()  # else it is the layer that returns zero
                is_dead = (made.detach().amax() <= low) & has_any
                found[f"dead {name}"] = is_dead & found[f"dead {name}"] if f"dead {name}" in found else is_dead
                found |= _bias_numbers(name, held, next(graph_nodes.taken_by(layer), None))
    return found


def shut_numbers(nodes: Sequence[Any], names: Mapping[int, str], last: Any) -> dict[str, Tensor]:
    """Return of each layer before a tanh or sigmoid that another layer follows the mean slope of it, of the largest, and its bias.

    So of each before a softmax, but for the *last* operation, by its largest probability. Of several such activations the largest
    slope. *bias of* is how far the bias is from 0, or by softmax from its mean, and *rest* the size of all else. *nodes* come in
    the order of execution.
    """
    found: dict[str, Tensor] = {}
    ahead: dict[Any, list[Any]] = {}
    for node in nodes:
        for before in graph_nodes.sources_of(node):
            ahead.setdefault(before, []).append(node)
    for node in (each for each in nodes if graph_nodes.operation_of(each) in _SHUTS):
        is_softmax = graph_nodes.operation_of(node) == "Softmax"
        first = graph_nodes.sources_of(node)[0]
        before = [graph_nodes.behind(first, BEHIND)] if is_softmax else graph_nodes.nodes_before(first, _NEAR_LAYER)
        layer, held, name = _layer_behind(node, before, names)
        with suppress(RuntimeError):  # as of what has been written into
            made = graph_nodes.result_of(node)
            numbers = _bias_numbers(name, held, next(graph_nodes.taken_by(layer), None))
            if made is not None and name and numbers and (node is not last if is_softmax else _is_followed(node, ahead)):
                made = made.detach().double()
                axis = graph_nodes.axis_of(node)
                made = made.amax(axis) if is_softmax and axis is not None else made
                slope = (1 - made.square() if graph_nodes.operation_of(node) == "Tanh" else 4 * made * (1 - made)).mean()
                bias = next(each.detach().double() for each in held if each.dim() == 1)
                known = found.get(f"shut {name}", slope)
                found |= {f"shut {name}": torch.maximum(slope, known), f"rest {name}": numbers[f"rest {name}"]}
                found[f"bias of {name}"] = (bias - is_softmax * bias.mean()).square().mean().sqrt()
    return found


def _is_followed(node: Any, ahead: Mapping[Any, Sequence[Any]]) -> bool:
    """Return whether a layer takes what the operation *node* has made, or what is made of that; *ahead*: what takes what."""
    seen, waiting = {node}, [node]
    while waiting and len(seen) <= _NEAR:
        new = [each for each in ahead.get(waiting.pop(), ()) if each not in seen]
        if any(_leaves_of(each) for each in new):
            return True
        seen.update(new)
        waiting += new
    return False


def _layer_behind(node: Any, nodes: Iterable[Any], names: Mapping[int, str]) -> tuple[Any, list[Tensor], str]:
    """Return the first of *nodes* behind a *node* that takes parameters, these, and the path of the module that holds them.

    The node itself, none and ``""`` where there is no such.
    """
    layer, held = next(((each, held) for each in nodes if (held := _leaves_of(each))), (node, []))
    return layer, held, next((names[id(each)].rpartition(".")[0] for each in held if id(each) in names), "")


def _leaves_of(layer: Any) -> list[Tensor]:
    """Return the parameters that an operation takes, as they are, turned or cast."""
    return [one for each in graph_nodes.with_turned(layer) if (one := graph_nodes.leaf_of(each)) is not None]


def dropped_numbers(nodes: Iterable[Any], names: Mapping[int, str]) -> dict[str, Tensor]:
    """Return the share that each dropout sets to zero, by the name of the layer it stands behind; 0 where it is no dropout."""
    found: dict[str, Tensor] = {}
    for node in nodes:
        share = graph_nodes.dropped_by(node)
        if share is not None:
            name = graph_nodes.layer_near(node, names)
            found[f"dropped {name}"] = torch.maximum(found.get(f"dropped {name}", share), share)
    return found


def direction_numbers(nodes: Iterable[Any], names: Mapping[int, str]) -> dict[str, Tensor]:
    """Return of what each layer takes the share of its squares that is left of one direction times a factor for each row.

    Zeros say nothing, as those of a dropout. *nodes* come in the order of execution.
    """
    found: dict[str, Tensor] = {}
    for node in nodes:
        with suppress(RuntimeError):  # as of what has been written into
            given = next(graph_nodes.taken_by(node), None)
            name = _layer_behind(node, [node], names)[2]
            if name and f"aside {name}" not in found and given is not None and given.is_floating_point() and given.dim() > 1:
                rows = given.detach().reshape(-1, given.shape[-1])[:_ROWS, :_ROWS].double()
                if min(rows.shape) >= _FEWEST and graph_nodes.operation_of(node) in _PRODUCTS:
                    found[f"aside {name}"] = _left_of_direction(rows)
    return found


def apart_numbers(nodes: Iterable[Any], names: Mapping[int, str], samples: int) -> dict[str, Tensor]:
    """Return of what each layer with weights takes, of so many *samples*, how far these are apart, of their size.

    *nodes* come in the order of execution; so do the layers.
    """
    found: dict[str, Tensor] = {}
    for node in (each for each in nodes if graph_nodes.operation_of(each) in graph_nodes.WEIGHTED):
        with suppress(RuntimeError):  # as of what has been written into
            given = next(graph_nodes.taken_by(node), None)
            name = _layer_behind(node, [node], names)[2]
            if name and given is not None and given.is_floating_point() and given.dim() > 1 and len(given) == samples:
                rows = given.detach()[:_ROWS].flatten(1)
                rows = rows[:, :: -(-rows.shape[1] // _ROWS)].double()
                size = rows.square().mean().sqrt()
                found.setdefault(f"apart at {name}", (rows - rows.mean(0)).square().mean().sqrt() / size)
    return found


def lost_by_step(outputs: Sequence[Tensor], names: Mapping[int, str], most: int) -> tuple[str, str, list[str]] | None:
    """Return which operation without a slope *outputs* go through, the layer before it, and the parameters that have no other way.

    None where there are none. So many operations are read at *most*.
    """
    step, leaves = graph_nodes.lost_behind_step([each.grad_fn for each in outputs], most) or (None, [])
    lost = {id(each) for each in leaves}
    held = [name for of, name in names.items() if of in lost]
    return (graph_nodes.operation_of(step).lower(), graph_nodes.layer_near(step, names), held) if held else None


def input_numbers(nodes: Iterable[Any], names: Mapping[int, str]) -> dict[str, Tensor]:
    """Return the size of what the first layer takes, if no parameter has made it, and of a table the largest and the middle column.

    *nodes* come in the order of execution.
    """
    first = next((each for each in nodes if graph_nodes.operation_of(each) in graph_nodes.WEIGHTED), None)
    name = "" if first is None else _layer_behind(first, [first], names)[2]
    with suppress(RuntimeError):  # as of what has been written into
        given = next(graph_nodes.taken_by(first), None) if name else None
        if given is None or not given.is_floating_point() or len(_made_before(first)) > 0:
            return {}
        squares = given.detach().double().square()
        numbers = {f"first {name}": squares.mean().sqrt()}
        if graph_nodes.operation_of(first) in _PRODUCTS and given.shape[-1] >= _FEW_COLUMNS:
            columns = squares.flatten(0, -2).mean(0).sqrt()
            numbers |= {"largest column": columns.max(), "middle column": columns.median()}
        return numbers
    return {}


def _made_before(layer: Any) -> list[Any]:
    """Return the operations that have made what a *layer* takes, but for its parameters."""
    leaves = {id(each) for each in _leaves_of(layer)}
    return [
        each
        for each in graph_nodes.sources_of(layer)
        if not leaves & {id(one) for one in (graph_nodes.leaf_of(each), *_leaves_of(each))}
    ]


def _left_of_direction(rows: Tensor) -> Tensor:
    """Return the share of the squares of *rows* that is left of the nearest product of a column and a row, without their zeros."""
    known, factors = (rows != 0).double(), rows.norm(dim=1, keepdim=True)
    for _ in range(_ROUNDS):
        direction = (rows * factors).sum(0) / (known * factors.square()).sum(0).clamp(min=_TINY)
        factors = (rows @ direction / (known @ direction.square()).clamp(min=_TINY)).unsqueeze(1)
    left = ((rows - factors * direction) * known).square().sum() / rows.square().sum().clamp(min=_TINY)
    is_binary = (rows.max() - torch.where(rows != 0, rows, rows.max()).min()) <= _TINY  # whose zeros alone tell rows apart
    return torch.where((known.mean() >= _KNOWN) & ~is_binary, left, 1.0)


def added_by(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and buffers that may be added to activations, by name: those of no layer of torch's own, and tables."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) or not type(module).__module__.startswith("torch.nn.modules"):
            for own, each in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if type(each) in (Tensor, nn.Parameter) and each.is_floating_point() and 1 < each.numel() <= _FEATURES:
                    yield f"{name}.{own}".removeprefix("."), each


def sum_numbers(nodes: Iterable[Any], candidates: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return of each of *candidates* its size, and that of what else is left of an input of a layer, the least of a few.

    *nodes* come in the order of execution.
    """
    found: dict[str, Tensor] = {}
    sums: list[Tensor] = []
    for node in nodes if candidates else ():
        with suppress(RuntimeError):  # as of what has been written into
            sums += [each.detach() for each in graph_nodes.taken_by(node) if each.is_floating_point() and each.dim() > 1]
    for given in [each for each in sums if each.numel() <= _FEATURES][:_SUMS]:
        for name, each in list(candidates.items())[:_CANDIDATES]:
            added = _fitted(each.detach(), given)
            if added is not None:
                size = (_rows_of(given, added) - added).double().square().mean().sqrt()
                found[f"added {name}"] = added.double().square().mean().sqrt()
                found[f"beside {name}"] = torch.minimum(size, found[f"beside {name}"]) if f"beside {name}" in found else size
    return found


def _fitted(added: Tensor, given: Tensor) -> Tensor | None:
    """Return what of *added* may be a part of the sums that are *given*, of a table of more places the first; None for nothing."""
    while added.dim() > 1 and len(added) == 1:
        added = added[0]
    if added.dim() == given.dim() == 2 and added.shape[1] == given.shape[1] and not len(given) % len(added):
        return added  # samples and places in a row
    if added.dim() > given.dim():
        return None
    if added.dim() > 1:
        added = added[: given.shape[-added.dim()]]
    return added if all(one in (1, other) for one, other in zip(added.shape[::-1], given.shape[::-1], strict=False)) else None


def _rows_of(given: Tensor, added: Tensor) -> Tensor:
    """Return sums that are *given*, with the places apart from the samples where what is *added* has places."""
    return given.reshape(-1, *added.shape) if given.dim() == added.dim() == 2 and len(added) > 1 else given


def _bias_numbers(name: str, held: Sequence[Tensor], given: Tensor | None) -> dict[str, Tensor]:
    """Return the mean bias of a layer that takes the parameters *held*, and the size of what its weight makes of the *given*."""
    biases = [each.detach().double() for each in held if each.dim() == 1]
    weights = [each.detach().double() for each in held if each.dim() > 1]
    if given is None or len(biases) != 1 or len(weights) != 1:
        return {}
    size, inputs = weights[0].square().mean(), weights[0][0].numel()
    made = (given.detach().double().square().mean() * size * inputs).sqrt()
    return {f"bias {name}": biases[0].mean(), f"rest {name}": made}


def repeated_norm(nodes: Sequence[Any], names: Mapping[int, str]) -> str:
    """Return the name of a batch normalisation that is given what has gone through itself before; ``""`` for none."""
    held: dict[str, list[Any]] = {}
    for node in nodes if any(map(graph_nodes.is_batch_norm, nodes)) else ():
        leaves = [graph_nodes.leaf_of(each) for each in graph_nodes.sources_of(node)] if graph_nodes.is_batch_norm(node) else []
        if name := next((names[id(leaf)] for leaf in leaves if id(leaf) in names), ""):
            held.setdefault(name.rpartition(".")[0], []).append(node)
    for name, found in held.items():
        if any(not {*found}.isdisjoint([*graph_nodes.nodes_before(each)][1:]) for each in found[: len(found) - 1]):
            return name
    return ""


def norm_numbers(nodes: Sequence[Any], names: Mapping[int, str], slow: Collection[str]) -> dict[str, Tensor]:
    """Return of each batch normalisation the variance that goes in, of its eps, and of *slow* ones how far they are off.

    *two of* is how many elements of each channel it has, where these are of two samples or fewer, and several of each.
    """
    found: dict[str, Tensor] = {}
    for node in nodes:
        held = graph_nodes.batch_statistics(node)
        leaf = next((one for each in graph_nodes.sources_of(node) if (one := graph_nodes.leaf_of(each)) is not None), None)
        name = names.get(id(leaf), "").rpartition(".")[0]
        samples = [len(each) for each in graph_nodes.taken_by(node)] if held is not None else []
        if held is not None and name and samples and samples[0] <= _FEW_SAMPLES and samples[0] < held.elements <= _FEW_ELEMENTS:
            found[f"two of {name}"] = held.var.new_full((), held.elements)
        if held is None or not name or held.elements < _ELEMENTS:
            continue
        if held.eps:
            var = (held.var - held.eps).clamp(min=0)  # what is the same for all samples is no matter of its scale
            found[f"varies {name}"] = torch.where(
                (var > _NOTHING * held.eps) & (held.mean.square() <= held.eps), var / held.eps, math.inf
            ).median()
        if name in slow:
            off = ((held.running_mean - held.mean).square() / held.var).mean().sqrt()
            found |= {f"mean {name}": off, f"variance {name}": (held.running_var / held.var).log().abs().mean().exp()}
    return found
