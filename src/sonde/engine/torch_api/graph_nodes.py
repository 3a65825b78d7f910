"""Read what autograd keeps of how a tensor was made: operations, shapes, axes and parameters. Reads no value."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

Node: TypeAlias = Any
"""A node of autograd's graph, which keeps its place behind a backward pass."""
Given: TypeAlias = list[tuple[Node, Tensor]]
"""Gradients, each with the operation that made what it is the gradient of."""
VIEWS = ("View", "UnsafeView", "ReshapeAlias")
"""Operations that give the same elements another shape."""
KEEPS = (*VIEWS, "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias")
"""Operations that leave elements, and their order, as they are."""
TURNS = ("T", "Transpose", "Permute")
"""Operations that exchange axes."""
MOVES = (*KEEPS, *TURNS)
"""Operations that make no other numbers."""
TAKES = ("Split", "Unbind", "Slice", "Select", "Index")
"""Operations that take a part of the elements."""
WEIGHTED = ("Addmm", "Mm", "Convolution")
"""Operations of layers with weights."""
SHRUNK = 0.1
"""By what a number that is trained multiplies cosines, so that it shrinks them."""
LINEAR = frozenset(
    (
        "AccumulateGrad", "Embedding", *WEIGHTED, "Add", "Sub", "Neg", "T", "Transpose", "Permute", "View",
        "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Expand", "Clone", "ToCopy", "Slice", "Select", "Cat", "Stack",
        "Mean", "Sum", "AvgPool2D", "NativeBatchNorm", "CudnnBatchNorm", "ConstantPadNd", "NativeDropout",
    )
)  # fmt: skip
"""Operations that are linear in what they take."""
_LOSSES = {
    "MseLoss": ("mse_loss", ("reduction",)),
    "SmoothL1Loss": ("smooth_l1_loss", ("reduction", "beta")),
    "HuberLoss": ("huber_loss", ("reduction", "delta")),
    "NllLoss": ("nll_loss", ("weight", "reduction", "ignore_index")),
    "NllLoss2D": ("nll_loss2d", ("weight", "reduction", "ignore_index")),
    "BinaryCrossEntropy": ("binary_cross_entropy", ("weight", "reduction")),
    "BinaryCrossEntropyWithLogits": ("binary_cross_entropy_with_logits", ("weight", "pos_weight", "reduction")),
}  # loss functions, and what they are given beside two tensors
_DETERMINANTS = ("LinalgSlogdet", "Logdet")
_PATHS = 20_000  # through a sum
_PAIR = 8  # operations between two scores and what is returned of them
_EXACT = 1e-5  # rounding of a number that is computed again
_NEAR = 40  # nodes behind an operation, among which a layer is looked for
_FEWEST, _MOST, _CHANCE = 64, 1 << 22, 0.5  # elements of a mask that is read; how far its share of zeros is off its rate by chance
_FUSED = ("CudnnRnn", "MiopenRnn")  # recurrent layers, of which the first axis may be of samples
_STEPS = ("Round", "Floor", "Ceil", "Trunc", "Sign")
_BATCH_NORMS = ("NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm")


def operation_of(node: Node) -> str:
    """Return the name of the operation, as ``MseLoss``; ``AccumulateGrad`` for a leaf."""
    name: str = node.name().rpartition("::")[2].rstrip("0123456789")
    return name.removesuffix("Backward")


def sources_of(node: Node) -> list[Node]:
    """Return the nodes of the tensors that the operation took, of those that have one."""
    return [each for each, _ in node.next_functions if each is not None]


def with_turned(node: Node) -> Iterator[Node]:
    """Yield the nodes of what the operation took, and behind those that were turned or cast, as a weight is, theirs."""
    for each in sources_of(node):
        yield from (each, *(sources_of(each) if operation_of(each) in (*TURNS, "ToCopy") else ()))


def behind(node: Node, moves: Collection[str], sources: Callable[[Node], list[Node]] = sources_of) -> Node:
    """Return the operation behind those in *moves*, as long as each has one of the *sources* that are asked for."""
    while operation_of(node) in moves and len(before := sources(node)) == 1:
        (node,) = before
    return node


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape of the first tensor that the operation made; ``()`` where torch does not say it."""
    made: Any = getattr(node, "_input_metadata", ())
    return tuple(made[0].shape) if len(made) else ()


def axis_of(node: Node) -> int | None:
    """Return the axis along which a softmax or a slice runs, counted from the start; None where torch does not say it."""
    axis = getattr(node, "_saved_dim", None)
    if not isinstance(axis, int):
        return None  # a sum has several
    return axis if _signed(axis) == axis else _signed(axis) + len(shape_of(node))


def _signed(number: int) -> int:
    """Return a *number* that may be below zero, and was kept without its sign."""
    return number - (1 << 64) if number >= 1 << 63 else number


def last_of(node: Node) -> int:
    """Return the size of the axis whose last place an operation picks alone; 0 of another one."""
    sizes: Sequence[int] = getattr(node, "_saved_self_sym_sizes", ())
    if operation_of(node) != "Select" or not sizes:
        return 0
    size = int(sizes[_signed(node._saved_dim)])
    return size if _signed(node._saved_index) in (-1, size - 1) else 0


def normalised_by(node: Node) -> tuple[str, int] | None:
    """Return which softmax an operation completes, as a distribution makes it of logits or of what it takes for shares; its axis.

    None for another operation.
    """
    name, before = operation_of(node), sources_of(node)
    if name not in ("Sub", "Div") or len(before) != 2:
        return None
    last = len(shape_of(node)) - 1
    if name == "Sub" and operation_of(before[1]) == "Logsumexp" and sources_of(before[1]) == before[:1]:
        return "LogSoftmax", last
    is_of_shares = operation_of(before[0]) == "Softmax" and axis_of(before[0]) == last
    return ("Softmax", last) if is_of_shares and sources_of(behind(before[1], (*KEEPS, "Expand"))) == before[:1] else None


def leaf_of(node: Node) -> Tensor | None:
    """Return the leaf whose ``.grad`` the node writes; None for an operation."""
    held = getattr(node, "variable", None)
    return held if isinstance(held, Tensor) else None


def takes_leaf(node: Node) -> bool:
    """Return whether the operation took a leaf, as it is or with its axes exchanged, as layers do with their parameters."""
    return any(leaf_of(behind(each, MOVES)) is not None for each in sources_of(node))


def nodes_before(node: Node, most: float = math.inf, ends: Collection[Node] = ()) -> Iterator[Node]:
    """Yield *node* and what it was made of, the nearest first; nothing behind the first *most*, nor before one of *ends*."""
    seen, waiting = {node}, deque([node])
    while waiting and len(seen) <= most:
        yield (now := waiting.popleft())
        new = [each for each in sources_of(now) if each not in seen] if now not in ends else []
        seen.update(new)
        waiting += dict.fromkeys(new)


def is_step(node: Node) -> bool:
    """Return whether the slope of the operation is zero wherever it has one, as that of a rounding or a sign."""
    return operation_of(node) in _STEPS or getattr(node, "_saved_rounding_mode", None) in ("floor", "trunc")


def lost_behind_step(outputs: Sequence[Node], most: int) -> tuple[Node, list[Tensor]] | None:
    """Return the nearest operation whose slope is zero, and the leaves that *outputs* have no other way to; None for no such leaf.

    So many of the operations of each output are read at *most*: None where there are more.
    """
    graphs = [list(nodes_before(each, most)) for each in outputs]
    steps = {each: None for nodes in graphs for each in nodes if is_step(each)}
    if not steps or any(len(nodes) >= most for nodes in graphs):
        return None
    ways = (each for output in outputs for each in nodes_before(output, most, steps))
    reached = {id(leaf) for each in ways if (leaf := leaf_of(each)) is not None}
    for step in steps:
        behind_it = (leaf_of(each) for each in nodes_before(step, most))
        lost = [leaf for leaf in behind_it if leaf is not None and id(leaf) not in reached]
        if lost:
            return step, lost
    return None


def layers_in_a_row(nodes: Sequence[Node], model: nn.Module) -> int:
    """Return how many layers with weights stand in a row, if there is nothing else among *nodes* than what is linear; else 0.

    Products with a tensor without a graph are those of dropouts, as many as the *model* has: others may mask what they take.
    """
    others = [each for each in nodes if operation_of(each) not in LINEAR]
    if any(constant_factor_of(each) is None for each in others) or (
        others and len(others) > sum("Dropout" in type(each).__name__ and each.training for each in model.modules())
    ):
        return 0
    depths: dict[Node, int] = {}
    waiting = [nodes[0]]
    while waiting:
        node = waiting[-1]
        left = [each for each in sources_of(node) if each not in depths]
        waiting += left
        if not left:
            has_weight = operation_of(node) in WEIGHTED
            depths[waiting.pop()] = max((depths[each] for each in sources_of(node)), default=0) + has_weight
    return depths[nodes[0]]


def taken_by(node: Node) -> Iterator[Tensor]:
    """Yield what the operation took and keeps for its backward pass, of embeddings, matrix products and convolutions."""
    for name in ("_saved_indices", "_saved_mat1", "_saved_input", "_saved_self"):
        held = getattr(node, name, None)
        if isinstance(held, Tensor):
            yield held


def result_of(node: Node) -> Tensor | None:
    """Return the result that an activation keeps for its backward pass; None for another operation."""
    held = getattr(node, "_saved_result", None)
    return held if isinstance(held, Tensor) else None


def limits_of(node: Node) -> tuple[float, float] | None:
    """Return between which numbers the operation cuts what it takes; None for one that cuts at none, or at those of a tensor."""
    low, high = (
        getattr(node, "_saved_min", getattr(node, "_saved_min_val", None)),
        getattr(node, "_saved_max", getattr(node, "_saved_max_val", None)),
    )
    are_numbers = not any(isinstance(each, Tensor) for each in (low, high)) and (low, high) != (None, None)
    return (-math.inf if low is None else float(low), math.inf if high is None else float(high)) if are_numbers else None


def factor_of(node: Node) -> Tensor | None:
    """Return the one number by which an operation multiplies what it takes, without a graph; None for another operation.

    Of a division it is the inverse.
    """
    held = [getattr(node, each, None) for each in ("_saved_self", "_saved_other")]
    held = [torch.tensor(each, dtype=torch.float64, device="cpu") if isinstance(each, float) else each for each in held]
    numbers = [each.detach() for each in held if isinstance(each, Tensor) and each.numel() == 1]
    if operation_of(node) not in ("Mul", "Div") or len(numbers) != 1:
        return None
    return numbers[0].double() if operation_of(node) == "Mul" else 1 / numbers[0].double()


def multiplied_in(node: Node) -> list[Node]:
    """Return the sides of what multiplies vectors with each other; nothing of another operation."""
    name = operation_of(node)
    product = next(iter(sources_of(node)), node) if name == "Sum" else node
    is_product = name in ("Mm", "Bmm") or (name == "Sum" and operation_of(product) == "Mul")
    return sources_of(product) if is_product else []


def is_of_cosines(node: Node) -> bool:
    """Return whether an operation has made what it returns of as many cosines, a margin or a scale among what is between."""
    count = math.prod(shape_of(node))
    products = [
        sides for each in nodes_before(node, _OF_A_MARGIN) if math.prod(shape_of(each)) == count and (sides := multiplied_in(each))
    ]
    return any(all(any(map(is_unit, nodes_before(side, _OF_A_SCALE))) for side in sides) for sides in products)


_OF_A_MARGIN, _OF_A_SCALE = 32, 6  # operations that what is done to cosines has at most


def width_of_cosines(node: Node, device: torch.device, moves: Collection[str] = MOVES) -> Tensor | None:
    """Return how far from zero can be what is made of cosines times a number, behind *moves*; None for another operation.

    A number that is trained may grow: that is no limit, unless it shrinks them to a tenth or less.
    """
    node, width, is_trained = scaled_by(node, device, moves)
    parts = sources_of(node) if operation_of(node) == "Cat" else ()  # as of one positive and many negatives
    if parts:
        known = [one for each in parts if (one := width_of_cosines(each, device, moves)) is not None]
        return width.abs() * torch.stack(known).max() if len(known) == len(parts) else None
    sides = [scaled_by(each, device) for each in multiplied_in(node)]
    if not sides or not all(is_unit(side) for side, *_ in sides):
        return None
    for _, each, is_own in sides:
        width, is_trained = (width * each).abs(), is_trained or is_own
    return torch.where(width <= SHRUNK, width, math.inf) if is_trained else width


def scaled_by(node: Node, device: torch.device, moves: Collection[str] = (*MOVES, *TAKES, "Expand")) -> tuple[Node, Tensor, bool]:
    """Return what is multiplied by numbers, behind *moves*, by how much, and whether a number of these is trained."""
    node, width, is_trained = behind(node, moves), torch.ones((), dtype=torch.float64, device=device), False
    while (factor := factor_of(node)) is not None:
        before = sources_of(node)
        larger = [each for each in before if math.prod(shape_of(each)) > 1] or before
        if len(larger) != 1:
            break
        width, is_trained = width * factor.to(device).reshape(()), is_trained or len(before) > 1
        node = behind(larger[0], moves)
    return node, width, is_trained


def is_unit(node: Node) -> bool:
    """Return whether the operation divides vectors by their norms, or puts several such ones together, or parts of them."""
    before = sources_of(node)
    if operation_of(node) == "Cat" and axis_of(node) != len(shape_of(node)) - 1:
        return all(is_unit(behind(each, (*KEEPS, *TAKES))) for each in before)
    norm = behind(before[1], (*MOVES, "Expand", "Clamp", "ClampMin", "Add")) if len(before) == 2 else node
    is_root = operation_of(norm) == "Sqrt" or getattr(norm, "_saved_exponent", 0) == 0.5
    sums = sources_of(norm) if is_root else []
    is_by_hand = len(sums) == 1 and operation_of(sums[0]) == "Sum" and all(map(is_square, sources_of(sums[0])))
    return operation_of(node) == "Div" and (is_by_hand or operation_of(norm) in ("LinalgVectorNorm", "Norm"))


def steep_slopes(loss: Tensor) -> list[str]:
    """Return operations of a *loss* behind the last layers whose slope is infinite somewhere, with where, in words.

    One whose number is raised or clamped just before, as by an eps, is none of them.
    """
    if loss.grad_fn is None:
        return []
    layers = [each for each in nodes_before(loss.grad_fn, _OF_LOSS) if takes_leaf(each)]
    found: list[str] = []
    for node in nodes_before(loss.grad_fn, _OF_LOSS, layers):
        name, before = operation_of(node), [behind(each, MOVES) for each in sources_of(node)]
        exponent = getattr(node, "_saved_exponent", None)
        steep = f"a power of {exponent:g} at 0" if name == "Pow" and isinstance(exponent, float) and 0 < exponent < 1 else ""
        is_raised = name not in _AT_ENDS and any(operation_of(each) in _RAISES and len(sources_of(each)) == 1 for each in before)
        found += [said] if node not in layers and not is_raised and (said := _STEEP.get(name, steep)) else []
    return list(dict.fromkeys(found))


_OF_LOSS = 60  # operations in front of a loss
_RAISES = ("Add", "Clamp", "ClampMin", "Sigmoid", "Softmax", "Softplus", "Exp")
_AT_ENDS = {"Acos": "acos", "Asin": "asin", "Atanh": "atanh"}
_STEEP = {name: f"{called} at -1 and 1" for name, called in _AT_ENDS.items()}
_STEEP |= {name: f"{name.lower()} at 0" for name in ("Sqrt", "Rsqrt", "Log", "Log2", "Log10")} | {
    "Atan2": "atan2 at (0, 0)",
    "Exp": "exp beyond 88",
}


def constant_factor_of(node: Node) -> Tensor | None:
    """Return what a product has multiplied its one source with, which has no graph; None for another operation."""
    if operation_of(node) != "Mul" or len(node.next_functions) != 2:
        return None
    (first, _), (second, _) = node.next_functions
    held = None if (first is None) == (second is None) else getattr(node, "_saved_other" if second is None else "_saved_self", None)
    return held if isinstance(held, Tensor) else None


def dropped_by(node: Node, fewest: int = _FEWEST) -> Tensor | None:
    """Return the share that a dropout sets to zero, float64 of no axis; 0 of what may be none, None of another operation.

    On an accelerator it is one operation, which knows its rate. Else it is a product with a mask of zeros and of 1 / (1 - rate),
    of *fewest* elements at least.
    """
    rate, mask = _rate_of(node), constant_factor_of(node)
    if rate is not None:
        return torch.full((), rate, dtype=torch.float64, device="cpu")
    if mask is None or not mask.is_floating_point() or not fewest <= mask.numel() <= _MOST:
        return None
    held = mask.detach().double()
    top, share = held.max(), (held == 0).double().mean()
    is_mask = ((held == 0) | (held == top)).all() & (top > 1) & (share > 0) & ((top * (1 - share) - 1).abs() <= _CHANCE)
    return torch.where(is_mask, 1 - 1 / top, 0.0)


def _rate_of(node: Node) -> float | None:
    rate = getattr(node, "_saved_p" if operation_of(node) == "NativeDropout" else "_saved_dropout_p", None)
    return rate if isinstance(rate, float) else None


def layer_near(node: Node, names: Mapping[int, str]) -> str:
    """Return the name of the layer that is nearest before a *node*, by *names* of parameters; ``""`` for none."""
    leaves = (leaf_of(each) for each in nodes_before(node, _NEAR))
    return next((names[id(each)].rpartition(".")[0] for each in leaves if id(each) in names), "")


def condition_of(node: Node) -> Tensor | None:
    """Return by which mask ``where`` has chosen; None for another operation."""
    held = getattr(node, "_saved_condition", None)
    return held if isinstance(held, Tensor) else None


def target_of(node: Node) -> Tensor | None:
    """Return the target that a loss function keeps for its backward pass; None for another operation."""
    held = getattr(node, "_saved_target", None)
    return held if isinstance(held, Tensor) else None


def left_out_of(node: Node) -> int:
    """Return which label a cross-entropy leaves out (``ignore_index``); -1 of another operation."""
    return _signed(getattr(node, "_saved_ignore_index", -1))


def is_weighed(node: Node) -> bool:
    """Return whether a cross-entropy was given weights, of classes or of elements."""
    return any(getattr(node, name, None) is not None for name in ("_saved_weight", "_saved_pos_weight"))


def blanks_of(node: Node) -> tuple[Tensor, int] | None:
    """Return which share of the labels that ``ctc_loss`` was given is its blank, and that; None for another operation.

    What labels are padded with does not count.
    """
    labels, lengths, blank = (getattr(node, f"_saved_{each}", None) for each in ("targets", "target_lengths", "blank"))
    if not isinstance(labels, Tensor) or lengths is None or not isinstance(blank, int):
        return None
    is_label = torch.ones_like(labels, dtype=torch.bool)
    if labels.dim() == 2:
        places, ends = (torch.as_tensor(each, device=labels.device) for each in (range(labels.shape[1]), lengths))
        is_label = places < ends[:, None]
    return ((labels == blank) & is_label).sum() / is_label.sum().clamp(min=1), blank


def value_of(node: Node) -> Tensor | None:
    """Return what a loss function of torch has returned, from what it was given; None for another operation, or one that rounds."""
    name = operation_of(node)
    given = [getattr(node, f"_saved_{each}", None) for each in ("self", "target", *_LOSSES.get(name, ("", ()))[1])]
    if name not in _LOSSES or not isinstance(given[0], Tensor) or torch.finfo(given[0].dtype).eps > _EXACT:
        return None
    made: Tensor = getattr(torch.ops.aten, _LOSSES[name][0])(*[_signed(each) if type(each) is int else each for each in given])
    return made


def terms_of(node: Node) -> Iterator[Node]:
    """Yield the operations whose results are added up, as they are, to what *node* made: itself, if it adds nothing.

    One number less another one is made of both.
    """
    waiting = [node]  # and no call of itself: a loss may be the sum of a thousand steps
    while waiting:
        node = waiting.pop()
        adds = operation_of(node) == "Add" or (operation_of(node) == "Sub" and shape_of(node) == ())
        if adds and getattr(node, "_saved_alpha", 1) == 1:
            waiting += reversed(sources_of(node))
        else:
            yield node


def weighed_in(node: Node) -> Iterator[tuple[Node, Tensor]]:
    """Yield the operations whose results a loss adds up, and with which number each of them, but for means.

    What is put together, as the losses of several moments, counts by its share.
    """
    waiting, left = [(node, torch.ones((), dtype=torch.float64, device="cpu"))], _PATHS
    while waiting and (left := left - 1):
        node, weight = waiting.pop()
        name, factor = operation_of(node), factor_of(node) if len(sources_of(node)) == 1 else None
        if factor is None and name not in ("Add", "Sub", "Rsub", "Neg", "Mean", "Sum", "Cat", "Stack", *KEEPS):
            yield node, weight
            continue
        weight = weight / len(node.next_functions) if name in ("Cat", "Stack") else weight
        for place, (each, _) in enumerate(node.next_functions):
            is_other = name == "Neg" or (name, place) in (("Sub", 1), ("Rsub", 0))
            times = (-1 if is_other else 1) * (getattr(node, "_saved_alpha", 1) if place else 1)
            waiting += [] if each is None else [(each, weight * times if factor is None else factor * times * weight)]


def is_log_determinant(node: Node, made: Node, most: int) -> bool:
    """Return whether an operation adds up logarithms of what was multiplied to *made*, as the volume that a flow changes.

    So many of the operations that have made it are read at *most*.
    """
    nodes = list(nodes_before(made, most))
    raised = {behind(one, (*KEEPS, "Neg")) for each in nodes if operation_of(each) == "Exp" for one in sources_of(each)}
    scales = {one for each in nodes if operation_of(each) in ("Mul", "Div") for one in sources_of(each)}
    logs = [each for each, _ in weighed_in(node)]
    return bool(logs) and all(
        each in raised
        or operation_of(each) in _DETERMINANTS
        or (operation_of(each) == "Log" and not scales.isdisjoint(sources_of(each)))
        for each in logs
    )


def scales_alike(loss: Node, most: int) -> Iterator[Tensor]:
    """Yield for logarithms that a *loss* adds up, and whose exponentials scale what it squares: above 0 if both shrink together.

    The square is of a positive weight in the loss. So many of the operations before it are read at *most*.
    """
    terms = list(weighed_in(loss))
    logs = dict(_without_signs(node, weight, KEEPS) for node, weight in terms)
    for term, of_term in terms if len(terms) > 1 else ():
        square, weight = _without_signs(term, of_term, ("Sum", "Div", *MOVES))
        for node in nodes_before(square, most) if is_square(square) else ():
            for place, each in enumerate(sources_of(node) if operation_of(node) in ("Mul", "Div") else ()):
                is_inverse = operation_of(node) == "Div"
                if operation_of(each) == "Exp" and (place or not is_inverse):
                    log, way = _without_signs(sources_of(each)[0], weight.sign() * (-1 if is_inverse else 1), KEEPS)
                    if log in logs:
                        yield (weight > 0) * way * logs[log]


def _without_signs(node: Node, weight: Tensor, moves: Collection[str]) -> tuple[Node, Tensor]:
    """Return the operation behind *moves*, numbers and changes of sign, and its *weight*: only its sign is right."""
    while len(before := sources_of(node)) == 1:
        factor = torch.full_like(weight, -1.0) if operation_of(node) == "Neg" else factor_of(node)
        if factor is None and operation_of(node) not in moves:
            break
        weight, (node,) = weight if factor is None else weight * factor.sign(), before
    return node, weight


def are_equal(one: Node, other: Node, most: int = 200) -> bool:
    """Return whether two operations have made the same of the same tensors, by the same operations; so many at *most* are compared.

    What has no graph is not known, and is taken to differ: constants, masks of a dropout, lists of indices.
    """
    waiting, seen = [(one, other)], set[tuple[Node, Node]]()
    while waiting and len(seen) <= most:
        one, other = (behind(each, ("Clone", "Alias")) for each in waiting.pop())
        if one is other or (one, other) in seen:
            continue
        seen.add((one, other))
        name, before, beside = operation_of(one), sources_of(one), sources_of(other)
        is_known = len(before) == len(one.next_functions) > 0 and name not in ("NativeDropout", "Index")
        if not is_known or operation_of(other) != name or len(beside) != len(before) or _numbers_in(one) != _numbers_in(other):
            return False
        waiting += zip(before, beside, strict=True)
    return not waiting


def _numbers_in(node: Node) -> dict[str, float]:
    """Return the numbers that an operation keeps; of indices and masks, where they are."""
    held = {name: getattr(node, name) for name in dir(node) if name.startswith("_saved_")}
    return {
        name: each.data_ptr() if isinstance(each, Tensor) else each
        for name, each in held.items()
        if isinstance(each, int | float) or (isinstance(each, Tensor) and not each.is_floating_point())
    }


def is_entropy(node: Node) -> bool:
    """Return whether the operation multiplies probabilities by their logarithms."""
    made = [behind(each, (*MOVES, "Clamp", "ClampMin")) for each in sources_of(node)]
    names = {(normalised_by(each) or (operation_of(each), 0))[0] for each in made}
    return operation_of(node) == "Mul" and any(
        names == {one, other} for one in ("Softmax", "Exp", "Div") for other in ("LogSoftmax", "Log")
    )


def lacks_term(node: Node) -> bool:
    """Return whether the one number that *node* has made is a sum, and a part of that has no graph."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        name, before = operation_of(node), sources_of(node)
        if shape_of(node) != () or name not in ("Add", "Sub", "Mul", "Div", "Neg", *KEEPS):
            continue
        is_sum = name in ("Add", "Sub")
        if is_sum and len(before) == 1:
            return True
        waiting += before if is_sum or len(before) == 1 else ()
    return False


def is_mean(node: Node) -> bool:
    """Return whether a loss function takes the mean of what it has made of each element."""
    return bool(getattr(node, "_saved_reduction", 1) == 1)


def is_square(node: Node) -> bool:
    """Return whether the operation squares what it takes."""
    before = sources_of(node)
    is_power = operation_of(node) == "Pow" and getattr(node, "_saved_exponent", 0) == 2 and len(before) == 1
    return is_power or (operation_of(node) == "Mul" and len(before) == 2 and before[0] is before[1])


def squared_leaf(node: Node) -> Tensor | None:
    """Return the parameter that an operation squares; None of another one."""
    return leaf_of(sources_of(node)[0]) if is_square(node) else None


def attention_of(node: Node, *, of_first: bool = False) -> Tensor | None:
    """Return the weights of the last query, or *of_first*, of an attention that is one operation, ``(samples, heads, keys)``.

    They are 0 where it may see no key. None for another operation.
    """
    query, key, scale = (getattr(node, each, None) for each in ("_saved_query", "_saved_key", "_saved_scale"))
    mask = getattr(node, "_saved_attn_mask", getattr(node, "_saved_attn_bias", None))
    if not operation_of(node).startswith("ScaledDotProduct") or not isinstance(query, Tensor) or not isinstance(key, Tensor):
        return None
    place = slice(0, 1) if of_first else slice(-1, None)
    last, keys = query.detach()[..., place, :].double(), key.detach().double()
    scale = float(scale) if scale is not None else query.shape[-1] ** -0.5
    if keys.shape[1] != last.shape[1]:
        return None
    scores = last @ keys.transpose(-2, -1) * scale
    if isinstance(mask, Tensor):
        of_last = mask.detach()[..., place, :]
        scores = scores.masked_fill(~of_last, -math.inf) if mask.dtype == torch.bool else scores + of_last.double()
    if of_first and getattr(node, "_saved_is_causal", False):
        scores[..., 1:] = -math.inf
    return scores.softmax(-1).nan_to_num()[..., 0, :]


def recurrence_of(node: Node) -> tuple[int, int] | None:
    """Return of how many steps and samples a recurrent layer is that the operation runs, or puts its steps together of; or None."""
    name, shape = operation_of(node), shape_of(node)
    if len(shape) != 3 or name not in (*_FUSED, "MkldnnRnnLayer", "Stack"):
        return None
    return (shape[1], shape[0]) if name in _FUSED and getattr(node, "_saved_batch_first", False) else (shape[0], shape[1])


def viewed_of(tensor: Tensor) -> Tensor | None:
    """Return the tensor that another one is a view of; None for one that is none."""
    return tensor._base


def moved(node: Node, places: Tensor) -> Tensor | None:
    """Return *places*, of the elements that went into an operation which moves elements, as it has moved them.

    None for another operation, and where torch does not say how.
    """
    name = operation_of(node)
    first, second, order = (getattr(node, each, None) for each in ("_saved_dim0", "_saved_dim1", "_saved_dims"))
    if name in KEEPS:
        return places.reshape(shape_of(node)) if math.prod(shape_of(node)) == places.numel() else None
    if name == "T":
        return places.t()
    if name == "Transpose" and first is not None and second is not None:
        return places.transpose(_signed(first), _signed(second))
    if name == "Permute" and order is not None:
        return places.permute([*map(_signed, order)])
    if name == "Slice" and getattr(node, "_saved_self_sym_sizes", None) == tuple(places.shape):
        axis = axis_of(node) or 0
        begin, end, step = (_signed(getattr(node, f"_saved_{each}")) for each in ("start", "end", "step"))
        return places[(slice(None),) * axis + (slice(begin, min(end, places.shape[axis]), step),)]  # torch warns of ends far off
    is_kept = name in ("Add", "Log", "Clamp", "ClampMin") and shape_of(node) == tuple(places.shape)  # a sum as of a bias
    return places if is_kept else None


class BatchStatistics(NamedTuple):
    """What a batch normalisation has kept of one pass.

    Attributes:
        running_mean, running_var: as evaluation uses them, one of each channel.
        mean, var: those of the batch; the variance with eps.
        eps: the number that is added.
        elements: of each channel.
    """

    running_mean: Tensor
    running_var: Tensor
    mean: Tensor
    var: Tensor
    eps: float
    elements: int


def batch_statistics(node: Node) -> BatchStatistics | None:
    """Return the statistics of a batch normalisation that trains; None for another operation, and where torch does not say them."""
    names = ("_saved_running_mean", "_saved_running_var", "_saved_result1", "_saved_result2", "_saved_input")
    found = [getattr(node, name, None) for name in names] if getattr(node, "_saved_training", False) else []
    held = [each for each in found if isinstance(each, Tensor) and each.numel()]
    if len(held) < len(names):
        return None
    running_mean, running_var, mean, inverse = [each.double() for each in held[:4]]
    eps = float(getattr(node, "_saved_eps", 0.0))
    return BatchStatistics(running_mean, running_var, mean, inverse**-2, eps, held[4].numel() // mean.numel())


def is_norm_of_one(node: Node) -> bool:
    """Return whether an operation normalises each element by itself, so that nothing is left of it."""
    shape: Sequence[int] | None = getattr(node, "_saved_normalized_shape", None)
    channels, groups, places = (getattr(node, f"_saved_{each}", 0) for each in ("C", "group", "HxW"))
    return (shape is not None and math.prod(shape) == 1) or (
        operation_of(node) == "NativeGroupNorm" and channels * places == groups
    )


def is_batch_norm(node: Node) -> bool:
    """Return whether the operation normalises over samples."""
    return operation_of(node) in _BATCH_NORMS


def is_own_difference(node: Node, most: int = 200) -> bool:
    """Return whether the nearest difference before *node*, with no layer between, is of two results of the same parameters."""
    found = next((each for each in nodes_before(node, _PAIR) if operation_of(each) in ("Sub", *WEIGHTED)), None)
    sides = sources_of(found) if found is not None and operation_of(found) == "Sub" else []
    made_by = [{id(leaf) for each in nodes_before(side, most) if (leaf := leaf_of(each)) is not None} for side in sides]
    return len(made_by) > 1 and not made_by[0].isdisjoint(made_by[1])


def is_in_python(node: Node) -> bool:
    """Return whether the backward of the operation is written in Python, or is compiled code: it may not run twice."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def leading_to(nodes: Iterable[Node], wanted: Collection[Node]) -> set[Node]:
    """Return those of *nodes* that were made of one in *wanted*, which are among them."""
    made_of: dict[Node, list[Node]] = {}
    for node in nodes:
        for before in sources_of(node):
            made_of.setdefault(before, []).append(node)
    found, waiting = set(wanted), list(wanted)
    while waiting:
        new = [each for each in made_of.get(waiting.pop(), ()) if each not in found]
        found.update(new)
        waiting += new
    return found


def gradients_at(
    output: Tensor, weight: Tensor, wanted: Collection[Node], see: Callable[[Node, Given], None] | None = None
) -> dict[Node, Tensor]:
    """Return the gradient of ``(output * weight).sum()`` at what each of the operations in *wanted* made, which is one tensor.

    Nodes are called one by one, and not by autograd's engine: no hook of anybody runs, no ``.grad`` is written, nothing is freed.
    A batch normalisation counts as if its statistics were fixed. An operation that the output does not depend on is not in what
    is returned.

    Args:
        output, weight: of the same shape.
        wanted: operations.
        see: called with each operation that is walked, and the gradients that it gives back, each with the operation that made
            what it is the gradient of.

    Raises:
        RuntimeError: a tensor that is needed has been written into.
    """
    start: Node = output.grad_fn
    order = [] if start is None else list(nodes_before(start))
    leading = leading_to(order, [each for each in order if each in wanted])
    waits: dict[Node, int] = {}
    for node in order:
        for before in node.next_functions if node in leading and node not in wanted else ():
            waits[before[0]] = waits.get(before[0], 0) + 1
    held: dict[Node, dict[int, Tensor]] = {start: {output.output_nr: weight}}
    found: dict[Node, Tensor] = {}
    ready: list[Node] = [start] if start in leading else []
    while ready:
        node = ready.pop()
        given = held.pop(node, {})
        if node in wanted:
            if given:
                found[node] = next(iter(given.values()))
            continue
        returned = _called(node, given) if given else ()
        passed: Given = []
        for place, (before, number) in enumerate(node.next_functions):
            if before not in leading:
                continue
            gradient = returned[place] if place < len(returned) else None
            if gradient is not None:
                made_of, there = before._input_metadata[number], held.setdefault(before, {})
                narrow = gradient if gradient.shape == made_of.shape else gradient.sum_to_size(made_of.shape)  # was broadcast
                narrow = narrow.to(made_of.dtype)
                there[number] = there[number] + narrow if number in there else narrow
                passed.append((before, narrow))
            waits[before] -= 1
            if not waits[before]:
                ready.append(before)
        if see is not None and given:
            see(node, passed)
    return found


def _called(node: Node, given: Mapping[int, Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients of what an operation took, from those of what it made, by their places."""
    inverse = getattr(node, "_saved_result2", None)
    if is_batch_norm(node) and getattr(node, "_saved_training", True) and isinstance(inverse, Tensor) and inverse.numel():
        affine = getattr(node, "_saved_weight", None)
        scale = inverse if affine is None else inverse * affine.detach()
        gradient = given[0]
        return ((gradient * scale.reshape(1, -1, *[1] * (gradient.dim() - 2))).to(gradient.dtype),)
    made = node(*[given.get(place) for place in range(len(node._input_metadata))])
    return made if isinstance(made, tuple) else (made,)
