"""Read off the gradient at an output which targets a loss has given it: labels, their place in the input, and their range."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from sonde.engine import autograd_state, backward_calls, graph_nodes, padded

AHEAD = (-1, 0, 1, 2, 3)
"""By how many places labels are compared with the tokens of the input."""
Loss: TypeAlias = list[graph_nodes.Node]
"""Operations next to the loss whose backward pass runs, the nearest first."""
ALIKE = 1e-3
"""Of a number that is the same for all samples, rounding."""
_RAISED = 20.0  # the largest number whose exponential is taken
_ALL = 1e-9  # rounding of a share
_BINARY = 1 << 14  # elements that are compared with targets of 0 and 1
_FIRST = 256  # rows, whose targets are one distribution if all are
_UNEVEN = 2.0  # times as often, classes that are no more alike by chance
_FEW = 3  # of either kind, whose weights are not alike by chance
_SEVERAL = 4  # samples of each class, on average, whose weights are not alike by chance
_MOST = 0.75  # of the samples; one all of whose classes are labels is not read
ERRORS = ("MseLoss", "SmoothL1Loss", "HuberLoss")
"""Losses of differences whose gradient depends on their size."""
_NUMBERS = (*ERRORS, "L1Loss")  # losses of targets that are numbers
_LOSSES = (*_NUMBERS, "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits")
_LAYERS = ("Addmm", "Mm", "Bmm", "Convolution", "Embedding", "NativeLayerNorm", "NativeBatchNorm")
_COMPARES = (*ERRORS, "Sub", "Rsub", "L1Loss")
_OFF = 0.02  # of a gradient in half precision, rounding of its sum
CHOICES = (*graph_nodes.MOVES, "Gather", "Select", "Index", "Slice")
"""Operations behind which a target is compared with what they pick."""
_SOFTMAX = ("Softmax", "LogSoftmax", "Logsumexp", "Exp")
_SOFTMAX_OF_CLASSES = frozenset(("Softmax", "LogSoftmax", "Logsumexp"))
_VARIES = 0.1  # of the squares of a gradient, those about its mean over the samples
_CERTAIN = -0.1  # logarithm of a probability of a label that has been learnt
_SURE = 0.9  # probability of the likeliest class on average
_PUSHED = 8  # elements that are pushed one way, if others get no gradient
_COLUMNS = 16  # of an output, of which one may be idle
_WAYS = 4  # columns of an output that may each be pushed one way
NEAR = 60
"""Nodes of a graph next to the loss."""
_TERM = 300  # and of one of its terms
_WEIGHS = ("Div", "Mul", "Neg")  # what the sum of terms goes through
BOUNDS = {"Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Relu": (0.0, math.inf), "Softmax": (0.0, 1.0), "Softplus": (0.0, math.inf)}
"""Between which activations keep their results."""
BEYOND = 0.05
"""Of the width of a range, or of the deviation of targets, what is no rounding."""


def numbers_of(
    output: Tensor,
    gradient: Tensor,
    axes: Iterable[int],
    tokens: Sequence[Tensor],
    looked_at: tuple[Tensor, Tensor] | None,
    nodes: Loss,
) -> dict[str, Tensor]:
    """Return what the *gradient* at an *output* says of targets, as numbers by name. No host sync.

    *reached*: samples with any; *which*: a number that tells these from others; *across*: the share of it that is no multiple of
    the output; *compares*: the loss is one of differences; of classes, binary targets: see there.

    Args:
        output, gradient: ``(samples, ...)``, both without a graph.
        axes: those that may be of classes.
        tokens: what goes into the model, ``(samples, places)`` each.
        looked_at: the sample and the place whose label counts, or not.
        nodes: see :func:`nodes_of_loss`.
    """
    made, held = output.flatten().double(), gradient.flatten().double()
    reached = (gradient != 0).reshape(len(gradient), -1).any(1)
    found = {
        "reached": reached.sum(),
        "which": reached.double() @ torch.arange(1.0, len(reached) + 1, dtype=torch.float64, device=output.device).sqrt(),
        "across": (scales := scale_numbers(output, gradient))["across"],
        "loose": scales["loose"],
        "compares": torch.full((), float(any(graph_nodes.operation_of(each) in _COMPARES for each in nodes)), device=output.device),
    }
    names = {graph_nodes.operation_of(each) for each in nodes}
    for axis in axes:
        logs, slopes = output.movedim(axis, -1).double().log_softmax(-1), gradient.movedim(axis, -1)
        found |= _label_numbers(logs, slopes, axis, tokens, looked_at)
        if names and names.isdisjoint(_SOFTMAX):  # the two coordinates of a point may be pushed as two logits are
            del found[f"sure {axis}"]
        if gradient.shape[axis] > 2 and not names.isdisjoint(_SOFTMAX):
            found |= _distribution_numbers(logs, slopes, axis)
    return found | _binary_numbers(made[:_BINARY], held[:_BINARY])


def compared_in(loss: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield what a *loss* compares with targets, as it keeps it for its backward pass, and these, where they are known.

    It is what a loss function of torch was given, a cross-entropy as logarithms, and what a last activation has returned, if the
    loss is written by hand.
    """
    layers = [each for each in graph_nodes.nodes_before(loss.grad_fn, NEAR) if graph_nodes.operation_of(each) in _LAYERS]
    nodes = list(graph_nodes.nodes_before(loss.grad_fn, NEAR, layers))
    for node in nodes:
        name = graph_nodes.operation_of(node)
        held = graph_nodes.result_of(node) if name in BOUNDS or name == "LogSoftmax" else None
        held = next(graph_nodes.taken_by(node), None) if name in _LOSSES else held
        if held is not None and held.grad_fn is not None and held.dim() > 0:
            by_hand = [one for each in nodes if graph_nodes.target_of(each) is None for one in errors_in(each)]
            aims = [(held - error).detach() for side, error in by_hand if side is node and error.shape == held.shape]
            yield held, graph_nodes.target_of(node) if name in _NUMBERS else next(iter(aims), None)


def errors_in(node: graph_nodes.Node) -> Iterator[tuple[graph_nodes.Node, Tensor]]:
    """Yield what an operation of a loss compares with targets, and by how much that is off them, as it keeps it.

    It is a loss function of torch, or makes squares or sizes of a difference.
    """
    target, taken, difference = graph_nodes.target_of(node), next(graph_nodes.taken_by(node), None), node
    if graph_nodes.operation_of(node) in _NUMBERS and target is not None and taken is not None and taken.shape == target.shape:
        taken = taken - target
    elif graph_nodes.operation_of(node) == "Abs" or graph_nodes.is_square(node):
        difference = graph_nodes.sources_of(node)[0]
        taken = taken if graph_nodes.operation_of(difference) == "Sub" else None
    else:
        return
    for place, (side, _) in enumerate(difference.next_functions if taken is not None else ()):
        if side is not None and taken is not None:
            yield side, -taken if place else taken


def as_logits(output: Tensor, gradient: Tensor, made_by: str, axis: int | None) -> tuple[Tensor, Tensor]:
    """Return what a softmax along *axis* was given, but for a number of each row, and the gradient there; else both as they are."""
    if axis is None or made_by not in ("LogSoftmax", "Softmax"):
        return output, gradient
    chance = output.exp() if made_by == "LogSoftmax" else output
    given = gradient if made_by == "LogSoftmax" else gradient * chance
    return (output if made_by == "LogSoftmax" else output.log()), given - chance * given.sum(axis, keepdim=True)


def scale_numbers(output: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """Return the *size* of an *output*, and which share of its *gradient* goes *across* it, and is no multiple of it.

    *loose*: which share is neither that nor a multiple of exp(output) - 1, as of the divergence of a logarithm of variances.
    """
    made, held = output.flatten().double(), gradient.flatten().double()
    of_made, of_held = made.square().sum(), held.square().sum()
    across = torch.where(of_made * of_held > 0, 1 - (made * held).sum().square() / (of_made * of_held), 1.0)
    raised = made.clamp(max=_RAISED).expm1()
    raised = raised - made * (raised * made).sum() / of_made.clamp(min=1e-300)
    along = (raised * held).sum().square() / (raised.square().sum() * of_held).clamp(min=1e-300)
    return {"size": made.square().mean().sqrt(), "across": across, "loose": across - along}


def column_numbers(gradient: Tensor, features: Tensor) -> dict[str, Tensor]:
    """Return how much the *column* of *features* that varies least *within* classes does so, of how it varies at all.

    Classes are read off the *gradient* at outputs, ``(samples, classes)``: that of a cross-entropy is least at the label. Of one
    output for each sample its sign tells them apart. *spare*: samples more than there are classes. *second*: the next least of
    another column; *between*: how far the classes of that column are from each other at least, in deviations within them.
    """
    held = gradient.reshape(len(gradient), -1)
    labels = held.argmin(1) if held.shape[1] > 1 else (held[:, 0] < 0).long()
    is_of = (
        labels[:, None] == torch.arange(max(held.shape[1], 2), device=labels.device)
    ).double()  # one_hot() waits for the device
    count, rows = is_of.sum(0), features.detach().double()
    means = (is_of.T @ rows) / count.clamp(min=1)[:, None]
    whole = (rows - rows.mean(0)).square().sum(0)
    share = torch.where(whole > 0, (rows - is_of @ means).square().sum(0) / whole, 1.0)
    within, column = share.min(0)[0], (share <= share.min() + _ALL).long().argmax()  # of several that tell it the first
    is_several = (count > 0).sum() > 1
    own = column.reshape(1)
    middles = torch.where(count > 0, means.index_select(1, own)[:, 0], math.nan).sort().values  # those of no sample stand last
    gaps = (middles[1:] - middles[:-1]).nan_to_num(math.inf)
    deviation = (within * whole.index_select(0, own)[0] / len(rows)).sqrt()
    return {
        "within": torch.where(is_several, within, 1.0),
        "column": column,
        "spare": len(rows) - (count > 0).sum(),
        "second": share.index_fill(0, own, math.inf).min(),
        "between": gaps.min() / deviation.clamp(min=1e-300),
    }


def way_numbers(output: Tensor, gradient: Tensor, number: int, nodes: Loss) -> dict[str, Tensor]:
    """Return which *way* all samples push each column of an *output* (1: down; 0: several), of four or less, *level* and *spread*.

    *toward*: the loss compares it with a target, as the operation with this *number* has made it, or takes a softmax, where a
    column may be a class that no label is of; *logistic*: one of the loss is a
    binary cross-entropy, which takes the output (*taken*), or what one number for each sample is a part of.
    """
    columns = output.shape[1] if output.dim() == 2 else 1
    if columns > _WAYS:
        return {}
    made, held = (each.reshape(-1, columns).double() for each in (output, gradient))
    signs, size = held.sign(), held.abs()
    varies = size.amax(0) - size.amin(0) > 10 * ALIKE * size.amax(0)  # as no term does that is added as it is
    count = (held != 0).sum(0)
    way = torch.where(
        (signs.sum(0).abs() == count) & ((2 * count > len(held)) | (count >= _PUSHED)) & varies, signs.sum(0).sign(), 0.0
    )
    toward = is_compared(number, nodes)
    taken = [one for each in nodes if _is_logistic(each) for one in graph_nodes.sources_of(each)]
    is_taken = any(is_picked_of(each, number) for each in taken)
    is_logistic = bool(taken) and (is_taken or output.numel() == len(output))
    is_softmax = columns > 1 and not _SOFTMAX_OF_CLASSES.isdisjoint(map(graph_nodes.operation_of, nodes))
    known = {"toward": toward or is_softmax, "logistic": is_logistic, "taken": is_taken}
    known_of = {"way": way, "level": made.mean(0), "spread": made.std(0, correction=0)}
    numbers = {f"{name} {at}": each[at] for name, each in known_of.items() for at in range(columns)}
    return numbers | {name: torch.full((), float(each), device=output.device) for name, each in known.items()}


def terms_with(number: int) -> frozenset[int]:
    """Return which of the terms of the loss that is sent backward have an output, with no layer between: by their place.

    Args:
        number: that of the operation which has made the output.
    """
    loss = sent_loss()
    if loss is None:
        return frozenset()
    return frozenset(place for place, term in enumerate(terms_of_loss(loss.grad_fn)) if _has(term, number))


def terms_of_loss(node: graph_nodes.Node) -> Loss:
    """Return the terms of a loss that *node* has made, also of one that is a multiple of their sum."""
    return list(graph_nodes.terms_of(graph_nodes.behind(node, _WEIGHS)))


def is_compared(number: int, nodes: Loss) -> bool:
    """Return whether the loss compares what the operation with this *number* has made, or a pick of it, with something."""
    return any(is_picked_of(one, number) for each in nodes if _compares(each) for one in graph_nodes.sources_of(each))


def is_picked_of(node: graph_nodes.Node, number: int) -> bool:
    """Return whether a *node* is the operation with this *number*, or picks from what it has made, which may be a pick itself.

    Or puts it together with others, as the values of several steps.
    """
    before = [node]
    while before:
        node = before.pop()
        if autograd_state.sequence_of_node(node) == number:
            return True
        sources = graph_nodes.sources_of(node)
        is_pick = graph_nodes.operation_of(node) in CHOICES and len(sources) == 1
        before += sources if is_pick or graph_nodes.operation_of(node) in ("Stack", "Cat") else []
    return False


def _has(term: graph_nodes.Node, number: int) -> bool:
    """Return whether a *term* of a loss is made of what the operation with this *number* has made, with no layer between."""
    return any(autograd_state.sequence_of_node(each) == number for each in _behind_layers(term))


def _behind_layers(term: graph_nodes.Node) -> Loss:
    """Return the operations that have made what a *term* of a loss has, up to the last layers."""
    layers = [each for each in graph_nodes.nodes_before(term, _TERM) if _is_layer(each)]
    return list(graph_nodes.nodes_before(term, _TERM, layers))


def _is_layer(node: graph_nodes.Node) -> bool:
    """Return whether the operation has a parameter."""
    return graph_nodes.operation_of(node) in _LAYERS and graph_nodes.takes_leaf(node)


def _compares(node: graph_nodes.Node) -> bool:
    return graph_nodes.operation_of(node) in _COMPARES


def one_label(output: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """Return the one *label* of all samples of a cross-entropy, NaN of several, and how many are *labelled*, 0 of another loss."""
    made, held = (each.reshape(len(output), -1).double() for each in (output, gradient))
    binary = _binary_numbers(made.flatten()[:_BINARY], held.flatten()[:_BINARY])
    is_binary = binary["zeros"] | binary["ones"]
    label, count = torch.where(binary["ones"], 1.0, 0.0), (held != 0).any(1).sum()
    if output.dim() != 2 or output.shape[1] < 2:
        return {"label": label, "labelled": count * is_binary}
    classes = _label_numbers(output.double().log_softmax(1), gradient, 1, (), None)
    low, high = (classes[f"{name} 1"].double() for name in ("low", "high"))
    is_class = (classes["single 1"] == classes["counted 1"]) & (classes["off 1"] <= _OFF) & (count > 0)
    of_class = torch.where(low == high, low, math.nan)
    return {"label": torch.where(is_class, of_class, label), "labelled": count * (is_class | is_binary)}


def column_gradients(output: Tensor, gradient: Tensor, nodes: Loss) -> dict[str, Tensor]:
    """Return which column of an *output*, of two to sixteen, is *idle*: the one without a *gradient*, or -1; or *alone* has one.

    Of one output for each sample, its gradient, if that is the *same gradient* for all of them, or 0; of logits that differ, whose
    loss takes a softmax times what else they make, which share of it is not that of the *entropy* of that softmax.
    """
    columns = output.numel() // len(output)
    made, held = (each.reshape(len(output), -1).double() for each in (output, gradient))
    if columns == 1:
        is_same = is_alike(held) & (held.abs().min() > 0)
        return {"same gradient": torch.where(is_same, held[0, 0], 0.0)}
    if columns > _COLUMNS or output.dim() != 2:
        return {}
    is_idle = (held == 0).all(0)
    idle = {"idle": torch.where(is_idle.sum() == 1, is_idle.long().argmax(), -1)}
    if columns > 2:
        idle["alone"] = torch.where(is_idle.sum() == columns - 1, (~is_idle).long().argmax(), -1)
    loss = sent_loss()
    nodes = [] if loss is None else _behind_layers(loss.grad_fn)  # of the passes of many moments there are many
    names = {graph_nodes.operation_of(each) for each in nodes}
    if names.isdisjoint(_SOFTMAX) or not any(_is_product(each) for each in nodes):
        return idle
    logs = made.log_softmax(1)
    slope = logs.exp() * (logs - (logs.exp() * logs).sum(1, keepdim=True))
    across = 1 - (slope * held).sum().square() / (slope.square().sum() * held.square().sum()).clamp(min=1e-300)
    is_open = logs.exp().amax(1).mean() <= _SURE  # of what is sure, the slopes of an entropy and of a label are alike
    is_own = (slope - slope.mean(0)).square().sum() > _VARIES * slope.square().sum()  # rows that are equal fit many a loss
    return {**idle, "entropy": torch.where(is_open & is_own, across, 1.0)}


def places_read(gradient: Tensor, nodes: Loss) -> dict[str, Tensor]:
    """Return how many places a loss reads of each sample that it reads, if these are the first two or more, and half at most; or 0.

    Places are the second axis of a *gradient* (*reads 1*), or the first (*reads 0*) where ``ctc_loss`` is among the *nodes*.
    """
    is_aligned = any(graph_nodes.operation_of(each) == "CtcLoss" for each in nodes)
    has_any = (gradient != 0).flatten(2).any(2) if gradient.dim() > 2 else gradient[:0]
    found: dict[str, Tensor] = {}
    for axis, table in ((1, has_any), (0, has_any.T if is_aligned and has_any.dim() == 2 else gradient[:0])):
        if table.dim() == 2 and len(table) > 1:
            count = table.any(0).sum()
            is_first = (table == (torch.arange(table.shape[1], device=table.device) < count)).all(1)
            is_first = (is_first | ~table.any(1)).all()
            found[f"reads {axis}"] = torch.where(is_first & (count > 1) & (2 * count <= table.shape[1]), count, 0)
    return found


def _is_product(node: graph_nodes.Node) -> bool:
    return graph_nodes.operation_of(node) == "Mul" and len(graph_nodes.sources_of(node)) == 2


def _binary_numbers(made: Tensor, held: Tensor) -> dict[str, Tensor]:
    """Return whether a gradient *held* is that of binary cross-entropies, of logits or probabilities, with targets all 0, or all 1.

    Of targets of both kinds: how many times as much those of 1 weigh, for each and all together; 0 where that is not known.
    """
    chance = made.sigmoid()
    is_share = ((made > 0) & (made < 1)).all()
    varies = (chance.max() - chance.min() > 10 * ALIKE * chance.max()) & (held != 0).all()
    zeros = is_alike(held / chance) | (is_share & is_alike(held * (1 - made)))
    ones = is_alike(held / (1 - chance)) | (is_share & is_alike(held * made))
    is_one = held < 0
    of_one, of_zero = torch.where(is_one, held / (chance - 1), math.nan), torch.where(is_one, math.nan, held / chance)
    is_each = varies & (spread(of_one) <= ALIKE) & (spread(of_zero) <= ALIKE)
    are_several = torch.minimum(is_one.sum(), (~is_one).sum()) >= _FEW
    times = torch.where(is_each & are_several, of_one.nanmean() / of_zero.nanmean(), 0.0).nan_to_num(0.0)
    all_of_one = times * is_one.sum() / (~is_one).sum().clamp(min=1)
    return {
        "zeros": varies & zeros & (held > 0).all(),
        "ones": varies & ones & (held < 0).all(),
        "times": times,
        "together": all_of_one,
    }


def binary_targets_in(loss: Tensor, number: int) -> Iterator[tuple[Tensor, int | None]]:
    """Yield the targets of the binary cross-entropies in a *loss* of what the operation with this *number* has made.

    Or of its sigmoid or softmax, with the axis of that. The loss keeps them for its backward pass, which has not begun.
    """
    for node in graph_nodes.nodes_before(loss.grad_fn, NEAR):
        target = graph_nodes.target_of(node) if _is_logistic(node) else None
        for each in graph_nodes.sources_of(node) if target is not None else ():
            made = graph_nodes.behind(each, graph_nodes.KEEPS)
            is_softmax = graph_nodes.operation_of(made) == "Softmax"
            taken = graph_nodes.behind(made, (*graph_nodes.KEEPS, "Sigmoid", "Softmax"))
            if target is not None and (is_picked_of(made, number) or is_picked_of(taken, number)):
                yield target.detach().double(), graph_nodes.axis_of(made) if is_softmax else None
                break


def binary_numbers(targets: Tensor, output: Tensor, axis: int | None, *, is_chance: bool = False) -> dict[str, Tensor]:
    """Return of the *targets* of a binary cross-entropy which share is off 0 to 1, and the ends of these; 0 of none.

    And whether they are all 0, or all 1, and which are rare; *is_chance*: the *output* is a probability.
    *shared*: what targets of an *output* that a softmax has made add up to along its *axis*, on average.
    """
    is_beyond = (targets < -BEYOND) | (targets > 1 + BEYOND)
    known = {
        "target": torch.where(is_beyond, targets, -math.inf).max(),
        "target low": torch.where(is_beyond, targets, math.inf).min(),
    }
    found = {name: torch.where(each.isfinite(), each, 0.0) for name, each in known.items()}
    is_shared = axis is not None and targets.numel() == output.numel()
    shared = {"shared": targets.reshape(output.shape).sum(axis).mean()} if is_shared else {}
    places = math.prod(output.shape[:1] + output.shape[2:])  # of several labels of one all may be rare
    is_each = targets.numel() == output.numel() == places
    returned = (output.reshape(targets.shape) > (0.5 if is_chance else 0.0)).long() if is_each else None
    rare = {} if returned is None else _rare_numbers((targets > 0.5).long(), returned) | _binary_gain(targets, output, is_chance)
    return {
        **found,
        **{f"{name} binary": each for name, each in rare.items()},
        "target share": is_beyond.double().mean(),
        "is binary": torch.ones_like(targets.sum()),
        "all 0": (targets == 0).all(),
        "all 1": (targets == 1).all(),
        **shared,
    }


def _binary_gain(targets: Tensor, output: Tensor, is_chance: bool) -> dict[str, Tensor]:
    """Return what :func:`_gain` does of an *output* for each target of 0 or 1."""
    made = output.reshape(targets.shape).double()
    logs = torch.stack(
        [(1 - made).log(), made.log()] if is_chance else [functional.logsigmoid(-made), functional.logsigmoid(made)], -1
    )
    labels, is_label = (targets > 0.5).long(), (targets == 0) | (targets == 1)
    count = logs.new_zeros(2).index_add(0, labels.flatten(), is_label.flatten().double())
    return {name: torch.where(is_label.all(), each, math.nan) for name, each in _gain(logs, labels, count, is_label).items()}


def _is_logistic(node: graph_nodes.Node) -> bool:
    return graph_nodes.operation_of(node).startswith("BinaryCrossEntropy")


def spread(numbers: Tensor) -> Tensor:
    """Return the deviation of *numbers* that are no NaN, as a share of their mean."""
    middle = numbers.nanmean()
    return (numbers - middle).square().nanmean().sqrt() / middle.abs()


def is_alike(numbers: Tensor) -> Tensor:
    """Return whether *numbers* are one, but for rounding."""
    return numbers.max() - numbers.min() <= ALIKE * numbers.abs().max()


def _label_numbers(
    logs: Tensor, gradient: Tensor, axis: int, tokens: Sequence[Tensor], looked_at: tuple[Tensor, Tensor] | None
) -> dict[str, Tensor]:
    """Return what a *gradient* at outputs, classes last, says of labels; *logs*: logarithms of their softmax, float64.

    That of a cross-entropy is below zero at the label alone.

    So many rows are *counted*; some have a *single* such class; *off* is what the classes add up to, of the size of all; *loss* is
    their cross-entropy, *low* and *high* are the smallest and the largest label. *sure*: the one label of all rows where outputs
    are so sure of it that its gradient is rounded to 0, which is the least there; -1 of others. Of labels of sequences follows how
    many are each of the *tokens*.
    """
    is_counted = (gradient != 0).any(-1)
    is_single = (gradient < 0).sum(-1) == 1
    labels = gradient.argmin(-1)
    count = is_counted.sum()
    likely, (most, top) = logs.gather(-1, labels[..., None])[..., 0], logs.max(-1)
    is_sure = (gradient >= 0).all(-1) & (most > _CERTAIN) & (gradient.gather(-1, top[..., None])[..., 0] == 0)
    known = torch.where(is_single, labels, torch.where(is_sure, top, -1))
    first = torch.where(is_counted, known, -1).max()
    found = {
        "counted": count,
        "single": is_single.sum(),
        "off": gradient.sum(-1).abs().sum() / gradient.abs().sum().clamp(min=1e-30),
        "loss": -likely.mean(),
        "low": torch.where(is_single, labels, gradient.shape[-1]).min(),
        "high": torch.where(is_single, labels, -1).max(),
        "sure": torch.where(((known == first) | ~is_counted).all(), first, -1),
    } | _weight_numbers(logs, gradient, labels, is_counted)
    found |= _rare_numbers(torch.where(is_single, labels, -1), torch.where(is_counted, top, -1))
    if labels.dim() == 2:
        if looked_at is not None:
            row, column = (each.reshape(1) for each in looked_at)
            found["is counted"] = is_counted.index_select(0, row).index_select(1, column.clamp(max=labels.shape[1] - 1)).any()
        found["pieces"] = (is_counted[:, 1:] & ~is_counted[:, :-1]).double().sum(1).mean()
        usual = torch.where(is_counted, labels, -1).flatten().mode().values  # as padding: no place is told by it
        tells = is_counted & (labels != usual)
        found["telling"] = tells.sum()
        turned = [each.T.reshape(labels.shape) for each in (labels, tells)]  # as of outputs in the order of places, samples
        for place, each in enumerate(given[: len(labels)] for given in tokens):
            ways = ((labels, tells, each), (labels.T, tells.T, each.T), (*turned, each))
            found |= {f"masked {place}": _masked(labels, is_counted, each)} if labels.shape == each.shape else {}
            for way, (own, counted, given) in enumerate(ways):
                found |= {f"match {place} {way} {ahead}": _match(own, counted, given, ahead) for ahead in AHEAD}
        if tokens:
            found["padded"] = _padded(labels, is_counted) / count.clamp(min=1)
            found["at padding"] = _at_padding(labels, is_counted, tokens)
    return {f"{name} {axis}": each for name, each in found.items()}


def _rare_numbers(labels: Tensor, returned: Tensor) -> dict[str, Tensor]:
    """Return which of the *labels*, -1 where there is none, is *usual*, its share, and how many *rare* ones are there and *met*.

    One is met where what is *returned* for it is not the usual label.
    """
    there = labels >= 0
    usual = torch.where(there, labels, labels.max()).flatten().mode().values
    rare = there & (labels != usual)
    share = (there & ~rare).sum() / there.sum().clamp(min=1)
    return {"usual": usual, "usual share": share, "rare": rare.sum(), "met": (rare & (returned != usual)).sum()}


def _distribution_numbers(logs: Tensor, gradient: Tensor, axis: int) -> dict[str, Tensor]:
    """Return the largest probability of the one distribution that all samples have as target (*even*), NaN of several.

    That is read off the mean of cross-entropies, of its first rows. *raised*: the share of these with a single class that has a
    gradient above zero, as the label of one that is maximised. Of outputs that are sure of a wrong class, all other probabilities
    are 0, and it is this class that has one where the label has the only one below zero.
    """
    rows = gradient.reshape(-1, gradient.shape[-1])
    count, held = (rows != 0).any(-1).sum(), rows[:_FIRST].double()
    made = logs.reshape(rows.shape)[:_FIRST].exp()
    targets = made - held * count
    is_one = (targets - targets.mean(0)).abs().max() <= ALIKE
    is_one &= (targets.min() >= -ALIKE) & (targets.max() < 1 - BEYOND) & ((made - made.mean(0)).abs().max() > 10 * ALIKE)
    is_sure = ((held < 0).sum(-1) == 1) & (held.argmax(-1) == made.argmax(-1))
    return {
        f"even {axis}": torch.where(is_one, targets.max(), math.nan),
        f"raised {axis}": (((held > 0).sum(-1) == 1) & ~is_sure).double().mean(),
    }


def _weight_numbers(logs: Tensor, gradient: Tensor, labels: Tensor, is_counted: Tensor) -> dict[str, Tensor]:
    """Return the share of the most frequent label (*top*), and how many *times* as much each of it weighs as one of the others.

    *logs* are the logarithms of the probabilities. See :func:`_gain`, which is known where samples of a class weigh as much as each
    other, and :func:`_heaviest`, too.
    """
    likely = logs.gather(-1, labels[..., None])[..., 0]
    usual = torch.where(is_counted, labels, -1).flatten().mode().values
    slope = (1 - likely.exp()).clamp(min=1e-6)
    weight = -gradient.double().gather(-1, labels[..., None])[..., 0] / slope
    is_top, is_other = is_counted & (labels == usual), is_counted & (labels != usual)
    of_top, of_other = ((weight * each).sum() / each.sum().clamp(min=1) for each in (is_top, is_other))
    is_each = spread(torch.where(is_top, weight, math.nan)) <= 10 * ALIKE  # one of all samples of a class, as no reward is
    times = torch.where((of_other > 0) & is_other.any() & is_each, of_top / of_other, 1.0)
    count = weight.new_zeros(gradient.shape[-1]).index_add(0, labels.flatten(), is_counted.flatten().double())
    heaviest, is_each = _heaviest(weight * is_counted, labels, is_counted, count)
    gain = _gain(logs, labels, count, is_counted)
    is_plain = spread(torch.where(is_counted, weight, math.nan)) <= 10 * ALIKE
    is_plain |= is_each & (gain["told of"] >= _SEVERAL * (count > 0).sum())
    return {
        "top": is_top.sum() / is_counted.sum().clamp(min=1),
        "times": times,
        **heaviest,
        **{name: torch.where(is_plain, each, math.nan) for name, each in gain.items()},
    }


def _heaviest(weight: Tensor, labels: Tensor, is_counted: Tensor, count: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return of the class with the most *weight* its part of it (*heavy*), and of the samples (*often*); 0 where these differ.

    *grows*: how many times as much a class weighs that comes as often as on average or more than another one, each its own weight
    and some twice as often as others; and which share of the samples are of such classes. Also whether all classes have a weight
    of their own, as no reward has.
    """
    sums = torch.zeros_like(count).index_add(0, labels.flatten(), weight.flatten())
    heavy = sums.argmax()
    is_each = spread(torch.where(is_counted & (labels == heavy), weight, math.nan)) <= 10 * ALIKE
    found = {"heavy": sums.max() / sums.sum().clamp(min=1e-300), "often": count.index_select(0, heavy.reshape(1))[0] / count.sum()}
    found = {name: torch.where(is_each, each, 0.0) for name, each in found.items()}
    own, known = sums / count.clamp(min=1), count > 0
    is_one = (
        (weight - own.gather(0, labels.clamp(min=0).flatten()).reshape(labels.shape)).abs() <= 10 * ALIKE * own.max()
    ) | ~is_counted
    usual = known & (count * known.sum() >= count.sum())
    rare = known & ~usual
    often, seldom = (torch.stack([own, count]) @ each.double() / each.sum().clamp(min=1) for each in (usual, rare))
    grows = is_one.all() & rare.any() & (known.sum() > 2) & (often[1] >= _UNEVEN * seldom[1])
    times = torch.where(grows, often[0] / seldom[0].clamp(min=1e-300), 1.0)
    return found | {"grows": times, "usual classes": (count * usual).sum() / count.sum().clamp(min=1)}, is_one.all()


def _gain(logs: Tensor, labels: Tensor, count: Tensor, is_counted: Tensor) -> dict[str, Tensor]:
    """Return by how much outputs fit their own labels better than those of other samples (*gain*), of how much there is to tell.

    *logs*, ``(..., classes)``, are logarithms of probabilities, and *count* says how often each label comes. The gain is the mean
    of what the own label has, less that of a label that is drawn from all of the pass, so that outputs which are the same for all
    samples gain nothing whatever they are. *noise*: its variance where labels are dealt out by chance, as of a sum over a
    permutation (Hoeffding, 1951). *to tell*: the entropy of the labels; *told of*: how many samples have them.
    """
    total = is_counted.sum().clamp(min=1)
    often, row = count / total, is_counted[..., None] / total  # each sums to 1
    known = torch.where(count > 0, logs, 0.0)
    by_row, by_class = known @ often, (known * row).flatten(0, -2).sum(0)
    middle, own = by_class @ often, known.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    whole = (known.square() @ often * row[..., 0]).sum()
    apart = whole - by_class.square() @ often - (by_row.square() * row[..., 0]).sum() + middle.square()
    return {
        "gain": ((own - by_row) * row[..., 0]).sum(),
        "noise": apart.clamp(min=0) / (total - 1).clamp(min=1),
        "to tell": -torch.special.xlogy(often, often).sum(),
        "told of": total,
    }


def _match(labels: Tensor, counted: Tensor, tokens: Tensor, ahead: int) -> Tensor:
    """Return the share of the labels that count that are the token *ahead* of their place; -1 where shapes do not fit."""
    rows, places = labels.shape
    start, end = max(-ahead, 0), min(places, tokens.shape[1] - ahead)
    if rows != tokens.shape[0] or end - start < 2 or abs(places - tokens.shape[1]) > 1:
        return torch.full((), -1.0, device=labels.device)
    given = tokens[:, start + ahead : end + ahead]
    if ahead > 0:  # the last label of a row ends a sequence: it need not be in what goes in
        counted = counted & (counted.flip(1).cumsum(1).flip(1) > 1)
    is_counted = counted[:, start:end]
    return ((labels[:, start:end] == given) & is_counted).sum() / is_counted.sum().clamp(min=1)


def _masked(labels: Tensor, is_counted: Tensor, tokens: Tensor) -> Tensor:
    """Return of the labels that are no token at their place the share that has one token there, which no label is; 1 of none.

    They are 0 where the labels are one, as of a task that replaces one token by another.
    """
    differs = is_counted & (labels != tokens)
    usual = torch.where(differs, tokens.double(), math.nan).nanmedian()
    share = (differs & (tokens == usual)).sum() / differs.sum().clamp(min=1)
    own = torch.where(differs, labels.double(), math.nan)
    is_one = ((own == own.nanmedian()) | ~differs).all() | (is_counted & (labels == usual)).any()
    return torch.where(differs.sum() < 2, 1.0, torch.where(is_one, 0.0, share))


def _at_padding(labels: Tensor, is_counted: Tensor, tokens: Sequence[Tensor]) -> Tensor:
    """Return the share of the labels that count where the input is padded, and are one label there."""
    shares = [torch.zeros((), dtype=torch.float64, device=labels.device)]
    for given in (each[: len(labels)] for each in tokens if each[: len(labels)].shape == labels.shape):
        is_there = is_counted & padded(given).bool()
        usual = torch.where(is_there, labels, -1).flatten().sort().values[-1]  # the largest: all are it, or none
        shares.append((is_there & (labels == usual)).sum() / is_counted.sum().clamp(min=1))
    return torch.stack(shares).max()


def _padded(labels: Tensor, counted: Tensor) -> Tensor:
    """Return how many labels that count stand at the end of their row, two or more, and are what rows end with most often."""
    place = torch.arange(labels.shape[1], device=labels.device)
    last = (place * counted).argmax(1, keepdim=True)
    padding = labels.gather(1, last).flatten().mode().values
    is_end = ((labels == padding) | ~counted).flip(1).long().cumprod(1).flip(1)
    run = (is_end * counted).sum(1)
    return (run * (run > 1)).sum()


def nodes_of_loss() -> Loss:
    """Return the operations next to the loss whose backward pass runs."""
    loss = sent_loss()
    return [] if loss is None else list(graph_nodes.nodes_before(loss.grad_fn, NEAR))


def sent_loss() -> Tensor | None:
    """Return what the backward pass that runs was begun from; None where that is not known, or has no graph."""
    first = next(iter(backward_calls.sent_backward()), None)
    return None if first is None or first.grad_fn is None else first
