"""Read off the gradient at an output which targets a loss has given it: labels, their place in the input, and their range."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from sonde.engine import autograd_state, graph_nodes
from sonde.inspector.dependence import padded

AHEAD = (-1, 0, 1, 2, 3)
"""By how many places labels are compared with the tokens of the input."""
Loss: TypeAlias = list[graph_nodes.Node]
"""Operations next to the loss whose backward pass runs, the nearest first."""
SHAPES = ("View", "UnsafeView", "Squeeze", "Unsqueeze", "ToCopy", "Clone")
"""Operations that leave elements as they are."""
_ALIKE = 1e-3  # of a number that is the same for all samples, rounding
_BINARY = 1 << 14  # elements that are compared with targets of 0 and 1
_SQUARES = (("MseLoss",), ("Mean", "Pow", "Sub"))  # operations of a loss that is the mean of squared errors
_MOST = 0.75  # of the samples; one all of whose classes are labels is not read
_SCALES = ("Mul", "Div", "Add", "Sub", "Neg", "Rsub")
_ERRORS = ("MseLoss", "SmoothL1Loss", "HuberLoss")
_LOSSES = (*_ERRORS, "L1Loss", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits")
_LAYERS = ("Addmm", "Mm", "Bmm", "Convolution", "Embedding", "NativeLayerNorm", "NativeBatchNorm")
_COMPARES = (*_ERRORS, "Sub", "Rsub", "L1Loss")
_SERIES, _SERIES_AHEAD = 8, (0, 1)  # places of a series; how far ahead of an output a target is looked for
_OFF = 0.02  # of a gradient in half precision, rounding of its sum
_CHOICES = (*SHAPES, "Gather", "Select", "Index", "Slice", "Transpose", "Permute")  # behind which a target is compared
_SOFTMAX = ("Softmax", "LogSoftmax", "Logsumexp", "Exp")
_VARIES = 0.1  # of the squares of a gradient, those about its mean over the samples
_SURE = 0.9  # probability of the likeliest class on average
_PUSHED = 8  # elements that are pushed one way, if others get no gradient
_COLUMNS = 16  # of an output, of which one may be idle
_HALF, _WAYS = 0.5, 4  # of the own distance, that of the nearest; columns of an output that may each be pushed one way
_NEAR = 60  # nodes of a graph next to the loss
_BOUNDS = {"Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Relu": (0.0, math.inf), "Softmax": (0.0, 1.0), "Softplus": (0.0, math.inf)}
_BEYOND = 0.05  # of the width of a range, or of the deviation of targets


class Range(NamedTuple):
    """What an output can be.

    Attributes:
        activation: the operation that keeps it there.
        made_by: the last one, which may scale its result.
        low, high: the ends.
    """

    activation: str
    made_by: str
    low: Tensor | float
    high: Tensor | float


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
        "across": scale_numbers(output, gradient)["across"],
        "compares": torch.full((), float(any(graph_nodes.operation_of(each) in _COMPARES for each in nodes)), device=output.device),
    }
    for axis in axes:
        found |= _label_numbers(output.movedim(axis, -1), gradient.movedim(axis, -1), axis, tokens, looked_at)
    return found | _binary_numbers(made[:_BINARY], held[:_BINARY], nodes)


def compared_in(loss: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield what a *loss* compares with targets, as it keeps it for its backward pass, and these, where they are known.

    It is what a loss function of torch was given, a cross-entropy as logarithms, and what a last activation has returned, if the
    loss is written by hand.
    """
    layers = [each for each in graph_nodes.nodes_before(loss.grad_fn, _NEAR) if graph_nodes.operation_of(each) in _LAYERS]
    nodes = list(graph_nodes.nodes_before(loss.grad_fn, _NEAR, layers))
    for node in nodes:
        name = graph_nodes.operation_of(node)
        held = graph_nodes.result_of(node) if name in _BOUNDS or name == "LogSoftmax" else None
        held = next(graph_nodes.taken_by(node), None) if name in _LOSSES else held
        if held is not None and held.grad_fn is not None and held.dim() > 0:
            yield held, graph_nodes.target_of(node) if name in _LOSSES else _squared_target(nodes, node, held)


def _squared_target(nodes: Sequence[graph_nodes.Node], made: graph_nodes.Node, held: Tensor) -> Tensor | None:
    """Return the target that a loss written by hand has subtracted from what was *made* before it was squared; None without one."""
    for square in (each for each in nodes if graph_nodes.operation_of(each) == "Pow"):
        error = next(graph_nodes.taken_by(square), None)
        for difference in graph_nodes.sources_of(square):
            places = [place for place, (node, _) in enumerate(difference.next_functions) if node is made]
            if graph_nodes.operation_of(difference) == "Sub" and places and error is not None and error.shape == held.shape:
                return (held - error if places == [0] else held + error).detach()
    return None


def as_logits(output: Tensor, gradient: Tensor, made_by: str, axis: int | None) -> tuple[Tensor, Tensor]:
    """Return what a softmax along *axis* was given, but for a number of each row, and the gradient there; else both as they are."""
    if axis is None or made_by not in ("LogSoftmax", "Softmax"):
        return output, gradient
    chance = output.exp() if made_by == "LogSoftmax" else output
    given = gradient if made_by == "LogSoftmax" else gradient * chance
    return (output if made_by == "LogSoftmax" else output.log()), given - chance * given.sum(axis, keepdim=True)


def scale_numbers(output: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """Return the *size* of an *output*, and which share of its *gradient* goes *across* it, and is no multiple of it."""
    made, held = output.flatten().double(), gradient.flatten().double()
    of_made, of_held = made.square().sum(), held.square().sum()
    across = torch.where(of_made * of_held > 0, 1 - (made * held).sum().square() / (of_made * of_held), 1.0)
    return {"size": made.square().mean().sqrt(), "across": across}


def column_numbers(gradient: Tensor, features: Tensor) -> dict[str, Tensor]:
    """Return how much the *column* of *features* that varies least *within* classes does so, of how it varies at all.

    Classes are read off the *gradient* at outputs, ``(samples, classes)``: that of a cross-entropy is least at the label. Of one
    output for each sample its sign tells them apart. *spare*: samples more than there are classes.
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
    within, column = share.min(0)
    is_several = (count > 0).sum() > 1
    return {"within": torch.where(is_several, within, 1.0), "column": column, "spare": len(rows) - (count > 0).sum()}


def target_column_numbers(output: Tensor, gradient: Tensor, given: Tensor) -> dict[str, Tensor]:
    """Return which *column* of what was *given* is the target of an *output* of one number for each sample, and how far off it is.

    Of a squared error the *gradient* is a multiple of the output less its target: *off* is which share of it is none. Of
    sequences those at the last place are asked, along the longer of the axes.
    """
    made, held, rows = output.reshape(-1, 1).double(), gradient.reshape(-1, 1).double(), given.detach().double()
    columns = rows if rows.dim() == 2 else (rows[:, -1] if rows.shape[1] >= rows.shape[-1] else rows[..., -1]).flatten(1)
    off, column = _off(made - columns, held).min(0)
    return {"off column": off, "target column": column}


def other_numbers(output: Tensor, gradient: Tensor, given: Tensor) -> dict[str, Tensor]:
    """Return of how many samples the target is what was *given* of *another* one, and how many *stand* for one.

    Of a squared error the *gradient* is a multiple of the output less its target; here of each sample by itself.
    """
    made, held, rows = (each.detach().flatten(1).double() for each in (output, gradient, given))
    along = (made * held).sum(1, keepdim=True) - held @ rows.T
    error = made.square().sum(1, keepdim=True) + rows.square().sum(1) - 2 * made @ rows.T
    across = 1 - along.square() * (along > 0) / (error * held.square().sum(1, keepdim=True)).clamp(min=1e-300)
    best, nearest = across.min(1)
    own = across.diagonal()
    is_other = (best <= _HALF * own) & (nearest != torch.arange(len(rows), device=rows.device))
    stands = torch.zeros(len(rows), dtype=torch.bool, device=rows.device).index_fill(0, nearest, True)
    return {"another": is_other.double().mean(), "stand": stands.double().mean()}


def series_numbers(output: Tensor, gradient: Tensor, given: Tensor) -> dict[str, Tensor]:
    """Return how far off targets are from being the first channel of a *given* series, so many places ahead of an *output*.

    See :func:`target_column_numbers`. Places are the axis along which both are as long.
    """
    found: dict[str, Tensor] = {}
    axes = [
        (one, other) for one in range(1, output.dim()) for other in (1, 2) if output.shape[one] == given.shape[other] >= _SERIES
    ]
    if len(axes) != 1:
        return found
    (one, other), *_ = axes
    made, held = (each.movedim(one, 1).reshape(len(output), output.shape[one], -1)[..., 0].double() for each in (output, gradient))
    rows = given.detach().movedim(other, 1).double()
    for ahead in _SERIES_AHEAD:
        kept = rows.shape[1] - ahead
        errors = made[:, :kept, None] - rows[:, ahead:]
        found[f"series {ahead}"] = _off(errors.flatten(0, 1), held[:, :kept].reshape(-1, 1)).min()
    return found


def way_numbers(output: Tensor, gradient: Tensor, number: int, nodes: Loss) -> dict[str, Tensor]:
    """Return which *way* all samples push each column of an *output* (1: down; 0: several), of four or less, and its *level*.

    *toward*: the loss compares it with a target, as the operation with this *number* has made it; *logistic*: one of the loss is a
    binary cross-entropy, which takes the output (*taken*), or what one number for each sample is a part of.
    """
    columns = output.shape[1] if output.dim() == 2 else 1
    if columns > _WAYS:
        return {}
    made, held = (each.reshape(-1, columns).double() for each in (output, gradient))
    signs, size = held.sign(), held.abs()
    varies = size.amax(0) - size.amin(0) > 10 * _ALIKE * size.amax(0)  # as no term does that is added as it is
    count = (held != 0).sum(0)
    way = torch.where(
        (signs.sum(0).abs() == count) & ((2 * count > len(held)) | (count >= _PUSHED)) & varies, signs.sum(0).sign(), 0.0
    )
    compared = [graph_nodes.behind(one, _CHOICES) for each in nodes if _compares(each) for one in graph_nodes.sources_of(each)]
    toward = any(autograd_state.sequence_of_node(each) == number for each in compared)
    taken = [graph_nodes.behind(one, _CHOICES) for each in nodes if _is_logistic(each) for one in graph_nodes.sources_of(each)]
    is_taken = any(autograd_state.sequence_of_node(each) == number for each in taken)
    known = {"toward": toward, "logistic": bool(taken) and (is_taken or output.numel() == len(output)), "taken": is_taken}
    numbers = {f"{name} {at}": each[at] for name, each in (("way", way), ("level", made.mean(0))) for at in range(columns)}
    return numbers | {name: torch.full((), float(each), device=output.device) for name, each in known.items()}


def _compares(node: graph_nodes.Node) -> bool:
    return graph_nodes.operation_of(node) in _COMPARES


def one_label(output: Tensor, gradient: Tensor, nodes: Loss) -> dict[str, Tensor]:
    """Return the one *label* of all samples of a cross-entropy, NaN of several, and how many are *labelled*, 0 of another loss."""
    made, held = (each.reshape(len(output), -1).double() for each in (output, gradient))
    binary = _binary_numbers(made.flatten()[:_BINARY], held.flatten()[:_BINARY], nodes)
    is_binary = binary["zeros"] | binary["ones"]
    label, count = torch.where(binary["ones"], 1.0, 0.0), (held != 0).any(1).sum()
    if output.dim() != 2 or output.shape[1] < 2:
        return {"label": label, "labelled": count * is_binary}
    classes = _label_numbers(output, gradient, 1, (), None)
    low, high = (classes[f"{name} 1"].double() for name in ("low", "high"))
    is_class = (classes["single 1"] == classes["counted 1"]) & (classes["off 1"] <= _OFF) & (count > 0)
    of_class = torch.where(low == high, low, math.nan)
    return {"label": torch.where(is_class, of_class, label), "labelled": count * (is_class | is_binary)}


def column_gradients(output: Tensor, gradient: Tensor, nodes: Loss) -> dict[str, Tensor]:
    """Return which column of an *output*, of two to sixteen, is *idle*: the one without a *gradient*, or -1.

    Of one output for each sample, which gradient is the *same* for all of them, or 0; of logits that differ, whose loss takes a
    softmax times what else they make, which share of the gradient is not that of the *entropy* of that softmax.
    """
    columns = output.numel() // len(output)
    made, held = (each.reshape(len(output), -1).double() for each in (output, gradient))
    if columns == 1:
        is_same = _is_alike(held) & (held.abs().min() > 0)
        return {"same": torch.where(is_same, held[0, 0], 0.0)}
    if columns > _COLUMNS or output.dim() != 2:
        return {}
    is_idle = (held == 0).all(0)
    idle = {"idle": torch.where(is_idle.sum() == 1, is_idle.long().argmax(), -1)}
    names = {graph_nodes.operation_of(each) for each in nodes}
    if names.isdisjoint(_SOFTMAX) or not any(_is_product(each) for each in nodes):
        return idle
    logs = made.log_softmax(1)
    slope = logs.exp() * (logs - (logs.exp() * logs).sum(1, keepdim=True))
    across = 1 - (slope * held).sum().square() / (slope.square().sum() * held.square().sum()).clamp(min=1e-300)
    is_open = logs.exp().amax(1).mean() <= _SURE  # of what is sure, the slopes of an entropy and of a label are alike
    is_own = (slope - slope.mean(0)).square().sum() > _VARIES * slope.square().sum()  # rows that are equal fit many a loss
    return {**idle, "entropy": torch.where(is_open & is_own, across, 1.0)}


def _is_product(node: graph_nodes.Node) -> bool:
    return graph_nodes.operation_of(node) == "Mul" and len(graph_nodes.sources_of(node)) == 2


def _off(errors: Tensor, gradient: Tensor) -> Tensor:
    """Return of each column of *errors* which share of a *gradient*, of one column, is no multiple of it."""
    along = (errors * gradient).sum(0)
    return 1 - along.square() * (along > 0) / (errors.square().sum(0) * gradient.square().sum()).clamp(min=1e-300)


def _binary_numbers(made: Tensor, held: Tensor, nodes: Loss) -> dict[str, Tensor]:
    """Return whether a gradient *held* is that of binary cross-entropies, of logits or probabilities, with targets all 0, or all 1.

    Of targets of both kinds: how many times as much those of 1 weigh, for each and all together, and what they are if they are
    no 1, and their share; 0 where that is not known.
    """
    chance = made.sigmoid()
    is_share = ((made > 0) & (made < 1)).all()
    varies = (chance.max() - chance.min() > 10 * _ALIKE * chance.max()) & (held != 0).all()
    zeros = _is_alike(held / chance) | (is_share & _is_alike(held * (1 - made)))
    ones = _is_alike(held / (1 - chance)) | (is_share & _is_alike(held * made))
    is_one = held < 0
    of_one, of_zero = torch.where(is_one, held / (chance - 1), math.nan), torch.where(is_one, math.nan, held / chance)
    is_each = varies & (_spread(of_one) <= _ALIKE) & (_spread(of_zero) <= _ALIKE)
    times = torch.where(is_each, of_one.nanmean() / of_zero.nanmean(), 0.0).nan_to_num(0.0)
    target = torch.where(is_one, chance - held / of_zero.nanmean(), math.nan)  # of the others, as those of 0 say
    is_other = varies & (_spread(of_zero) <= _ALIKE) & (_spread(target) <= _ALIKE) & (target.nanmean() > 1 + _BEYOND)
    is_other &= _spread(of_one) > 10 * _ALIKE  # a weight of ones would look alike, but for that
    given, is_binary = _binary_targets(made, held, is_share, nodes)
    is_beyond = is_binary & ((given < -_BEYOND) | (given > 1 + _BEYOND))
    far, other = torch.where(is_beyond, given, math.nan), torch.where(is_other, target.nanmean(), 0.0).nan_to_num(0.0)
    all_of_one = times * is_one.sum() / (~is_one).sum().clamp(min=1)
    return {
        "zeros": varies & zeros & (held > 0).all(),
        "ones": varies & ones & (held < 0).all(),
        "times": times,
        "together": all_of_one,
        "target": torch.where(is_beyond.any(), far.nan_to_num(-math.inf).max(), other),
        "target low": torch.where(is_beyond.any(), far.nan_to_num(math.inf).min(), other),
        "target share": torch.where(is_beyond.any(), is_beyond.double().mean(), is_one.double().mean()),
        "is binary": is_binary,
    }


def _binary_targets(made: Tensor, held: Tensor, is_share: Tensor, nodes: Loss) -> tuple[Tensor, Tensor]:
    """Return the targets of a mean binary cross-entropy of logits, or of shares, and whether the loss is one."""
    sent = graph_nodes.sent_backward()[:1]
    loss = sent[0].detach().double() if sent and sent[0].numel() == 1 else made.new_full((), math.nan)
    error = held * len(held)
    targets = torch.where(is_share, made - error * made * (1 - made), made.sigmoid() - error)
    of_shares = -(targets * made.log().clamp(min=-100) + (1 - targets) * (1 - made).log().clamp(min=-100)).mean()
    of_logits = (torch.nn.functional.softplus(made) - made * targets).mean()
    is_mean = (torch.where(is_share, of_shares.nan_to_num(), of_logits) - loss).abs() <= _ALIKE * loss.abs()
    taken = [one for each in nodes if _is_logistic(each) for one in graph_nodes.sources_of(each)]
    has_one = any(math.prod(graph_nodes.shape_of(each)) == len(made) for each in taken)
    return targets, is_mean & has_one  # where logits are near zero, whatever targets fit


def _is_logistic(node: graph_nodes.Node) -> bool:
    return graph_nodes.operation_of(node).startswith("BinaryCrossEntropy")


def _spread(numbers: Tensor) -> Tensor:
    """Return the deviation of *numbers* that are no NaN, as a share of their mean."""
    middle = numbers.nanmean()
    return (numbers - middle).square().nanmean().sqrt() / middle.abs()


def _is_alike(numbers: Tensor) -> Tensor:
    return numbers.max() - numbers.min() <= _ALIKE * numbers.abs().max()


def _label_numbers(
    output: Tensor, gradient: Tensor, axis: int, tokens: Sequence[Tensor], looked_at: tuple[Tensor, Tensor] | None
) -> dict[str, Tensor]:
    """Return what a *gradient* at an *output*, classes last, says of labels.

    That of a cross-entropy is below zero at the label alone.

    So many rows are *counted*; some have a *single* such class; *off* is what the classes add up to, of the size of all; *loss* is
    their cross-entropy, *low* and *high* are the smallest and the largest label. Of labels of sequences follows how many are each
    of the *tokens*.
    """
    is_counted = (gradient != 0).any(-1)
    is_single = (gradient < 0).sum(-1) == 1
    labels = gradient.argmin(-1)
    count = is_counted.sum()
    found = {
        "counted": count,
        "single": is_single.sum(),
        "off": gradient.sum(-1).abs().sum() / gradient.abs().sum().clamp(min=1e-30),
        "loss": -output.double().log_softmax(-1).gather(-1, labels[..., None])[..., 0].mean(),
        "low": torch.where(is_single, labels, gradient.shape[-1]).min(),
        "high": torch.where(is_single, labels, -1).max(),
    } | _weight_numbers(output, gradient, labels, is_counted)
    if gradient.dim() == 2:
        found |= _several_numbers(output, gradient)
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
            for way, (own, counted, given) in enumerate(ways):
                found |= {f"match {place} {way} {ahead}": _match(own, counted, given, ahead) for ahead in AHEAD}
        if tokens:
            found["padded"] = _padded(labels, is_counted) / count.clamp(min=1)
            found["at padding"] = _at_padding(labels, is_counted, tokens)
    return {f"{name} {axis}": each for name, each in found.items()}


def _several_numbers(output: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """Return how many labels a sample has on average (*labels*), where one softmax judges several; 0 where that is not known.

    The gradient of one with k labels is k times the probabilities, less 1 at each of these, all of it times one number.
    """
    chance, held = output.double().softmax(-1), gradient.double()
    weight = (held / chance).max(-1, keepdim=True).values  # of a class that is no label: k times the number
    each = torch.where(weight > 0, weight, math.inf).min()
    count = (weight / each).round()
    labels = count * chance - held / each
    fits = ((labels - labels.round()).abs() <= _BEYOND).all(-1) & (labels.amax(-1) <= 1 + _BEYOND) & (weight[:, 0] > 0)
    is_judged = (held != 0).any(-1)
    is_so = (fits.sum() >= _MOST * is_judged.sum()) & ((count[:, 0] > 1) & fits).any()
    return {"labels": torch.where(is_so, (labels.round() * fits[:, None]).sum() / is_judged.sum().clamp(min=1), 0.0)}


def _weight_numbers(output: Tensor, gradient: Tensor, labels: Tensor, is_counted: Tensor) -> dict[str, Tensor]:
    """Return the share of the most frequent label (*top*), and how many *times* as much each of it weighs as one of the others."""
    usual = torch.where(is_counted, labels, -1).flatten().mode().values
    slope = (1 - output.double().softmax(-1).gather(-1, labels[..., None])[..., 0]).clamp(min=1e-6)
    weight = -gradient.double().gather(-1, labels[..., None])[..., 0] / slope
    is_top, is_other = is_counted & (labels == usual), is_counted & (labels != usual)
    of_top, of_other = ((weight * each).sum() / each.sum().clamp(min=1) for each in (is_top, is_other))
    is_each = _spread(torch.where(is_top, weight, math.nan)) <= 10 * _ALIKE  # one of all samples of a class, as no reward is
    times = torch.where((of_other > 0) & is_other.any() & is_each, of_top / of_other, 1.0)
    return {"top": is_top.sum() / is_counted.sum().clamp(min=1), "times": times}


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


def range_of(output: Tensor) -> Range | None:
    """Return what an *output* can be, if an activation has made it, or one whose result was scaled by numbers; else None."""
    node = graph_nodes.behind(output.grad_fn, SHAPES)
    if (name := graph_nodes.operation_of(node)) in _BOUNDS:
        return Range(name, name, *_BOUNDS[name])
    before = graph_nodes.behind(output.grad_fn, (*SHAPES, *_SCALES))
    name, result = graph_nodes.operation_of(before), graph_nodes.result_of(before)
    if name not in _BOUNDS or result is None or result.numel() != output.numel():
        return None
    made, held = (each.detach().flatten().double() for each in (output, result))
    ends = torch.stack([held.argmin(), held.argmax()])
    (low, high), (least, largest) = (each.index_select(0, ends) for each in (held, made))
    slope = (largest - least) / (high - low)
    start = least - slope * low
    fits = (made - slope * held - start).abs().max() <= _ALIKE * made.abs().max()
    reached = torch.stack([slope * each + start for each in _BOUNDS[name]])
    low, high = (torch.where(fits, each, end) for each, end in ((reached.min(), -math.inf), (reached.max(), math.inf)))
    return Range(name, graph_nodes.operation_of(node), low, high)


def range_numbers(output: Tensor, gradient: Tensor, reaches: Range | None, nodes: Loss) -> dict[str, Tensor]:
    """Return what a *gradient* says of targets: if errors are squared, their range, and if they are absolute, their one sign.

    Args:
        output, gradient: of one shape.
        reaches: what the output can be.
        nodes: see :func:`nodes_of_loss`.
    """
    if reaches is None:
        return _squared_numbers(output, gradient, -math.inf, math.inf)
    size = gradient.abs()
    is_read = (
        _is_alike(size) if not _is_squared(output, reaches.made_by, nodes) else torch.ones_like(size[:0].sum(), dtype=torch.bool)
    )
    is_one_sided = is_read & (size.max() > 0) & (gradient.sign().sum().abs() == gradient.numel())
    return {"side": is_one_sided * gradient.sign().flatten()[0]} | _squared_numbers(output, gradient, reaches.low, reaches.high)


def nodes_of_loss() -> Loss:
    """Return the operations next to the loss whose backward pass runs."""
    sent = graph_nodes.sent_backward()[:1]
    return [node for each in sent if each.grad_fn is not None for node in graph_nodes.nodes_before(each.grad_fn, _NEAR)]


def _is_squared(output: Tensor, made_by: str, nodes: Loss) -> bool:
    """Return whether a squared error of *output* is part of the loss that is sent backward."""
    before = [one for node in nodes if graph_nodes.operation_of(node) in _ERRORS for one in graph_nodes.sources_of(node)]
    return any(
        graph_nodes.operation_of(one) == made_by and math.prod(graph_nodes.shape_of(one)) == output.numel() for one in before
    )


def _squared_numbers(output: Tensor, gradient: Tensor, low: Tensor | float, high: Tensor | float) -> dict[str, Tensor]:
    """Return the share of the targets that an activation cannot reach, and their range, where the loss is a mean of squared errors.

    The gradient is 2 / elements of each error; a loss that is scaled, or the sum of several, is not read.
    """
    sent = graph_nodes.sent_backward()[:1]
    if not sent or sent[0].grad_fn is None or sent[0].numel() != 1:
        return {}
    ahead = graph_nodes.nodes_before(sent[0].grad_fn, 3)
    names = tuple([graph_nodes.operation_of(node) for node in ahead])
    if not any(names[: len(each)] == each for each in _SQUARES):
        return {}
    made, loss = output.double(), sent[0].detach().double()
    error = gradient.double() * gradient.numel() / 2
    is_mean = (error.square().mean() - loss).abs() <= _ALIKE * loss
    targets = made - error
    is_one = is_mean & (targets.max() - targets.min() <= _ALIKE * output.double().std())
    numbers = beyond_numbers(targets, low, high)
    return numbers | {"beyond": is_mean * numbers["beyond"], "one": is_one}


def beyond_numbers(targets: Tensor, low: Tensor | float, high: Tensor | float) -> dict[str, Tensor]:
    """Return the share of the *targets* that is *beyond* what is reached, from *low* to *high*, and the *least* and *largest*."""
    width = torch.as_tensor(high - low, dtype=torch.float64, device=targets.device)
    margin = _BEYOND * torch.where(width.isfinite(), width, targets.double().std())
    beyond = ((targets < low - margin) | (targets > high + margin)).double().mean()
    return {"beyond": beyond, "least": targets.min(), "largest": targets.max()}
