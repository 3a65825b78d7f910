"""Read which numbers a regression loss compares an output with, how far it is off them, and what kind of numbers they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sonde.engine import autograd_state, graph_nodes
from sonde.inspector.batches.target_reading import (
    ALIKE,
    BEYOND,
    BOUNDS,
    CHOICES,
    NEAR,
    Loss,
    errors_in,
    is_picked_of,
    spread,
)

_SERIES, _SERIES_AHEAD = 8, (0, 1)  # places of a series; how far ahead of an output a target is looked for
_WAYS = (graph_nodes.KEEPS, (*graph_nodes.KEEPS, "Select", "Slice"))  # of a part, the order of elements, if none is left out
_SCALES = ("Mul", "Div", "Add", "Sub", "Neg", "Rsub")
_HALF = 0.5  # of the own distance, that of the nearest
_SIGNS = 64  # elements, whose signs are not alike by chance
_ROWS, _COLUMNS = 8, 64  # samples whose targets tell how they vary; columns that are looked through for a sentinel
_FAR = 10.0  # deviations of the others, as which a sentinel is at least away from the nearest of them
_VALUES = 16  # different ones, as numbers that are no counts have
_CHANCE = 4.0  # deviations that a mean of drawn numbers is off by chance
_EXACT, _READ = 1e-4, 1e-5  # of a number, as what is read off a gradient may differ from it, and deviations that are rounding
_ELEMENTS = 1 << 12
_CURVED = 1e-3  # of the squares of an output, or a gradient, that are no line of a column
_RISING: dict[str, Callable[[Tensor], Tensor]] = {
    "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Relu": torch.relu, "Softplus": functional.softplus, "Exp": torch.exp,
    "LogSigmoid": functional.logsigmoid, "Hardsigmoid": functional.hardsigmoid, "Elu": functional.elu, "Sqrt": torch.sqrt,
}  # fmt: skip
_ENDS = {  # of activations that do not rise throughout: those that let most through below zero end near it
    "Abs": (0.0, math.inf), "Gelu": (-0.17, math.inf), "Silu": (-0.28, math.inf), "Mish": (-0.31, math.inf),
    "Hardswish": (-0.38, math.inf),
}  # fmt: skip
_SHARES = ("Softmax", "LogSoftmax")
_LABELLED = ("BinaryCrossEntropyWithLogits", "BinaryCrossEntropy", "NllLoss", "NllLoss2D")
COSINE = "Cosine"
"""What products of unit vectors are, beside activations."""
CUTS = ("Relu", "Clamp", "ClampMin", "ClampMax", "Hardtanh")
"""Operations that return one number for all that is beyond it."""
_CHANCES = ("Softmax", "Sigmoid")  # what these make is no logit: see softmax_twice
_UNLIKELY = 0.2  # a label is by which it is more likely, or less, than outputs can say


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


def range_of(output: Tensor) -> Range | None:
    """Return what an *output* can be, if an activation has made it, or one whose result was scaled by numbers; else None."""
    node = graph_nodes.behind(output.grad_fn, graph_nodes.KEEPS)
    if (known := _ends_of(node)) is not None:
        return Range(name := graph_nodes.operation_of(node), name, *known)
    if (width := graph_nodes.width_of_cosines(output.grad_fn, output.device)) is not None:
        return Range(COSINE, graph_nodes.operation_of(node), -width, width)
    before = graph_nodes.behind(output.grad_fn, (*graph_nodes.KEEPS, *_SCALES))
    name, result = graph_nodes.operation_of(before), graph_nodes.result_of(before)
    if name not in BOUNDS or result is None or result.numel() != output.numel():
        return None
    made, held = (each.detach().flatten().double() for each in (output, result))
    ends = torch.stack([held.argmin(), held.argmax()])
    (low, high), (least, largest) = (each.index_select(0, ends) for each in (held, made))
    slope = (largest - least) / (high - low)
    start = least - slope * low
    fits = (made - slope * held - start).abs().max() <= ALIKE * made.abs().max()
    reached = torch.stack([slope * each + start for each in BOUNDS[name]])
    low, high = (torch.where(fits, each, end) for each, end in ((reached.min(), -math.inf), (reached.max(), math.inf)))
    return Range(name, graph_nodes.operation_of(node), low, high)


def _ends_of(node: graph_nodes.Node) -> tuple[float, float] | None:
    """Return between which numbers an operation keeps what it returns, given what it was given; None for one that keeps nothing."""
    name, before = graph_nodes.operation_of(node), graph_nodes.sources_of(node)
    limits = graph_nodes.limits_of(node)
    if limits is not None or name in _ENDS or graph_nodes.is_square(node):
        return limits or _ENDS.get(name, (0.0, math.inf))
    if not before or name not in (*_RISING, *_SHARES):
        return None
    low, high = _ends_of(graph_nodes.behind(before[0], graph_nodes.KEEPS)) or (-math.inf, math.inf)
    if name in _SHARES:
        others = graph_nodes.shape_of(node)[graph_nodes.axis_of(node) or 0] - 1
        ends = (1 / (1 + others * torch.tensor((high - low, low - high), dtype=torch.float64, device="cpu").exp())).clamp(0, 1)
        ends = ends.log() if name == "LogSoftmax" else ends
    else:
        given = torch.tensor((low, high), dtype=torch.float64, device="cpu")
        ends = _RISING[name](given.clamp(min=0) if name == "Sqrt" else given)
    low, high = ends.tolist()
    return low, high


def chance_numbers(output: Tensor, gradient: Tensor, reaches: Range, number: int, nodes: Loss) -> dict[str, Tensor]:
    """Return the share of the labels that an output which has a range cannot make likely (*unlikely*), and the ends of its chances.

    Of logits that are cut at zero also the share of the labels whose own is (*cut*). The *least chance* and the *most* are what a
    cross-entropy makes of the ends of the range: by a sigmoid, or by a softmax over classes, where it takes logits. Nothing of
    other losses.

    Args:
        output, gradient: of one shape.
        reaches: what the output can be.
        number: that of the operation which has made the output.
        nodes: the operations next to the loss.
    """
    for node in nodes:
        if (name := graph_nodes.operation_of(node)) not in _LABELLED:
            continue
        taken = graph_nodes.behind(graph_nodes.sources_of(node)[0], CHOICES)
        is_own = autograd_state.sequence_of_node(taken) == number
        is_class, of_logits = name in _LABELLED[2:], name == _LABELLED[0]
        if not is_own:  # what the loss takes may be a sigmoid or softmax of it
            is_made = graph_nodes.operation_of(taken) == ("LogSoftmax" if is_class else "Sigmoid") and not of_logits
            before = graph_nodes.behind(graph_nodes.sources_of(taken)[0], CHOICES) if is_made else taken
            if autograd_state.sequence_of_node(before) != number:
                continue
        if (of_logits or not is_own) and reaches.activation in _CHANCES:
            continue
        low, high = (torch.as_tensor(each, dtype=torch.float64, device=output.device) for each in (reaches.low, reaches.high))
        if is_class and not is_own:
            others = graph_nodes.shape_of(taken)[graph_nodes.axis_of(taken) or 0] - 1
            low, high = torch.zeros_like(low), 1 / (1 + others * (low - high).exp())
        elif is_class:
            low, high = low.exp(), high.exp()
        elif of_logits or not is_own:
            low, high = low.sigmoid(), high.sigmoid()
        unlikely = (
            high < 1 - _UNLIKELY if is_class else _share_beyond(output, gradient, low, high, is_logit=of_logits or not is_own)
        )
        found = {"unlikely": unlikely, "least chance": low, "most chance": high}
        if name in _LABELLED[2:] and not is_own and reaches.low == 0 and reaches.activation == reaches.made_by in CUTS:
            is_label = gradient < 0
            found["cut"] = ((output <= 0) & is_label).sum() / is_label.sum().clamp(min=1)
        return found
    return {}


def _share_beyond(output: Tensor, gradient: Tensor, low: Tensor, high: Tensor, *, is_logit: bool) -> Tensor:
    """Return the share of the labels 0 and 1 of a binary cross-entropy that are off by far from chances of *low* to *high*.

    It is 0 where the *gradient* is not that of such labels, all those of one kind with one weight.
    """
    made, held = output.double(), gradient.double()
    chance, held = (made.sigmoid(), held) if is_logit else (made, held * made * (1 - made))
    weights = torch.where(held < 0, held / (chance - 1), math.nan), torch.where(held > 0, held / chance, math.nan)
    are_labels = torch.stack([spread(each).nan_to_num(0.0) <= ALIKE for each in weights]).all()
    return are_labels * (((held > 0) & (low > _UNLIKELY)) | ((held < 0) & (high < 1 - _UNLIKELY))).double().mean()


def errors_of(loss: Tensor, number: int) -> Iterator[tuple[Tensor, bool]]:
    """Yield by how much a *loss* says that what the operation with this *number* has made, or a part of it, is off its targets.

    And whether the elements are in the same order. The loss has kept it for its backward pass, which has not begun.
    """
    for side, error in (one for node in graph_nodes.nodes_before(loss.grad_fn, NEAR) for one in errors_in(node)):
        if is_picked_of(side, number):
            yield (
                error.detach().double(),
                any(autograd_state.sequence_of_node(graph_nodes.behind(side, by)) == number for by in _WAYS),
            )


def regression_numbers(output: Tensor, errors: Tensor, reaches: Range | None, *, is_plain: bool = False) -> dict[str, Tensor]:
    """Return what an *output* says of its targets together with what it is off them by, the *errors*.

    *error*: how far they are off, by root mean square; *explained*: the share of their variance that outputs explain; *classed*:
    all columns of each sample are asked for one number, that of a class; *drawn*: targets have the mean 0 and the deviation 1
    that as many drawn numbers have; also what :func:`beyond_numbers` and :func:`sentinel_numbers` return of them.

    Args:
        output, errors: of one shape.
        reaches: what the output can be.
        is_plain: the operation that has made the output has no parameter.
    """
    low, high = (-math.inf, math.inf) if reaches is None else (reaches.low, reaches.high)
    targets = output.double() - errors
    rows, count = targets.reshape(len(targets), -1), targets.numel()
    total = (rows - rows.mean(0)).square().sum()
    are_two = ((rows - rows.min()) * (rows.max() - rows)).abs().max() <= ALIKE * total  # as those of a discriminator
    is_told = (total > 0) & (len(rows) >= _ROWS) & ~are_two
    return {
        **beyond_numbers(targets, low, high),
        **sentinel_numbers(rows, rounding=_READ),
        "error": errors.square().mean().sqrt(),
        "one": targets.max() - targets.min() <= ALIKE * output.double().std(),
        "explained": torch.where(is_told, 1 - errors.square().sum() / total.clamp(min=1e-300), math.nan),
        "classed": _are_classes(targets),
        "drawn": (targets.mean().abs() <= _CHANCE * count**-0.5) & ((targets.std() - 1).abs() <= _CHANCE * (2 * count) ** -0.5),
        **(_unreached_numbers(output.double(), targets) if is_plain else {}),
    }


def _unreached_numbers(output: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return what *targets* have that an *output* of mean 0 and deviation 1 cannot, of their variance (*unreached*).

    That is 0 of an output which is not standardised, neither along the samples nor in each of them. *centre*, *deviation*: those
    of the targets.
    """
    shares = []
    rows, asked = (each.reshape(-1, each.shape[-1] if each.dim() > 1 else 1) for each in (output, targets))
    for held, wanted in ((rows, asked), (rows.T, asked.T)):
        if len(held) < _ROWS:
            continue
        mean, deviation = held.mean(0), held.std(0, correction=0)
        is_so = (mean.abs().max() <= ALIKE) & ((deviation - 1).abs().max() <= 1 / len(held) + ALIKE)
        off = wanted.mean(0).square() + (wanted.std(0, correction=0) - 1).square()
        shares.append(torch.where(is_so, off.mean() / targets.var(correction=0).clamp(min=1e-300), 0.0))
    numbers = {"unreached": torch.stack(shares).max()} if shares else {}
    return numbers and numbers | {"centre": targets.mean(), "deviation": targets.std(correction=0)}


def beyond_numbers(targets: Tensor, low: Tensor | float, high: Tensor | float) -> dict[str, Tensor]:
    """Return the share of the *targets* that is *beyond* what is reached, from *low* to *high*, and the *least* and *largest*."""
    width = torch.as_tensor(high - low, dtype=torch.float64, device=targets.device)
    margin = BEYOND * torch.where(width.isfinite(), width, targets.double().std())
    beyond = ((targets < low - margin) | (targets > high + margin)).double().mean()
    return {"beyond": beyond, "least": targets.min(), "largest": targets.max()}


def _are_classes(targets: Tensor) -> Tensor:
    """Return whether all *targets* of each sample are one and the same number of a class, of as many as there are columns."""
    columns, rows = targets.shape[-1], targets.reshape(-1, targets.shape[-1])
    if targets.dim() < 2 or columns < 3:
        return torch.zeros((), dtype=torch.bool, device=targets.device)
    first = rows[:, 0].round()
    is_class = ((rows - first[:, None]).abs() <= 10 * ALIKE).all() & (first >= 0).all() & (first < columns).all()
    return is_class & (first.max() > first.min())


def sentinel_numbers(values: Tensor, rounding: float = 0.0) -> dict[str, Tensor]:
    """Return the number (*code*) that some of *values* are, ``(samples, columns)``, and that is far from all others; else NaN.

    *coded*: their share of the column; *nearest*: the value of that column that is the least far away; *alone*: there is one of
    them. *rounding*, of the number, is by how much values may differ that are one.
    """
    held = values.detach()[:, :_COLUMNS].double()
    number, share, near, gap, once = [], [], [], [], []
    for code in (held.amin(0), held.amax(0)):
        is_code = (held - code).abs() <= _EXACT * code.abs()
        rest = torch.where(is_code, math.nan, held)
        deviation = (rest - rest.nanmean(0)).square().nanmean(0).sqrt()
        away = torch.where(is_code, math.inf, (held - code).abs())
        ordered = held.sort(0).values
        least = rounding * code.abs()
        different = ((ordered[1:] - ordered[:-1]).abs() > least / len(held)).sum(0)
        is_far = (
            (away.amin(0) >= _FAR * deviation) & (deviation > least) & (different >= _VALUES) & (is_code.sum(0) * 2 < len(held))
        )
        number.append(code)
        share.append(is_code.double().mean(0))
        once.append(is_code.sum(0) == 1)
        near.append(held.gather(0, away.argmin(0, keepdim=True))[0])
        gap.append(torch.where(is_far, away.amin(0) / deviation, 0.0))
    numbers, shares, nearest, gaps, alone = (torch.cat(each) for each in (number, share, near, gap, once))
    best = gaps.argmax().reshape(1)
    is_so = gaps.max() > 0
    known = {"code": numbers, "coded": shares, "nearest": nearest, "alone": alone.double()}
    return {name: torch.where(is_so, each.index_select(0, best)[0], math.nan) for name, each in known.items()}


def sentinels_of(given: Tensor) -> dict[str, Tensor]:
    """Return what :func:`sentinel_numbers` does of what was *given*: of each column of a table, of all elements of another."""
    return sentinel_numbers(given if given.dim() == 2 else given.detach().flatten()[:_ELEMENTS, None])


def target_column_numbers(output: Tensor, gradient: Tensor, given: Tensor) -> dict[str, Tensor]:
    """Return which *column* of what was *given* is the target of an *output* of few numbers for each sample, and how far off it is.

    Of a squared error the *gradient* is a multiple of the output less its target: *off* is which share of it is none, of several
    numbers the largest, and *scaled* of one number the same of a target that is a column times a number and another number. Of
    sequences those at the last place are asked, along the longer of the axes.
    """
    made, held = (each.reshape(len(output), -1).double() for each in (output, gradient))
    rows = given.detach().double()
    columns = rows if rows.dim() == 2 else (rows[:, -1] if rows.shape[1] >= rows.shape[-1] else rows[..., -1]).flatten(1)
    each = [_off(one[:, None] - columns, other[:, None]).min(0) for one, other in zip(made.T, held.T, strict=True)]
    is_last = torch.full((), float(rows.dim() > 2), device=made.device)
    found = {"off column": torch.stack([off for off, _ in each]).max(), "target column": each[0][1], "last column": is_last}
    if made.shape[1] > 1:
        return found
    scaled, column = _scaled(made[:, 0], held[:, 0], columns).min(0)
    return found | {"scaled column": scaled, "column scaled": column}


def _scaled(made: Tensor, gradient: Tensor, columns: Tensor) -> Tensor:
    """Return of each of *columns* how far a target that is a line of it is from explaining a *gradient*, as :func:`_across` does.

    What is *made*, and its gradient, are compared as far as they are no line of the column themselves; 1 where they are one.
    """
    one, other, rows = (each - each.mean(0) for each in (made, gradient, columns))
    size = rows.square().sum(0).clamp(min=1e-300)
    of_one, of_other = one @ rows, other @ rows
    left, held = one @ one - of_one.square() / size, other @ other - of_other.square() / size
    along = one @ other - of_one * of_other / size
    factor = left / along  # of the gradient, which makes it what the output is off by
    varies = (of_one - factor * of_other).square() / size > _CURVED * (one @ one)  # the target, with the column
    is_known = (left > _CURVED * (one @ one)) & (held > _CURVED * (other @ other)) & (along > 0) & (size > 1e-300) & varies
    return torch.where(is_known, 1 - along.square() / (left * held).clamp(min=1e-300), 1.0)


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


def _off(errors: Tensor, gradient: Tensor) -> Tensor:
    """Return of each column of *errors* which share of a *gradient*, of one column, is no multiple of it.

    That of absolute errors has their signs alone, and of Huber's all that is beyond 1: they are compared where signs differ, and
    are many.
    """
    found = [_across(errors, gradient)]
    share = (gradient > 0).double().mean()
    if len(errors) >= _SIGNS:
        differ = (share >= _HALF / 2) & (share <= 1 - _HALF / 2)
        found += [torch.where(differ, _across(each, gradient), 1.0) for each in (errors.sign(), errors.clamp(-1, 1))]
    return torch.stack(found).amin(0)


def _across(errors: Tensor, gradient: Tensor) -> Tensor:
    along = (errors * gradient).sum(0)
    return 1 - along.square() * (along > 0) / (errors.square().sum(0) * gradient.square().sum()).clamp(min=1e-300)
