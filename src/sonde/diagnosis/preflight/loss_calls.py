"""Note the calls of torch's loss functions while a model and its loss run: their inputs, targets and settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sonde.engine import graph_nodes, moved_axes
from sonde.words import shape_text

_SEEN: dict[Any, str] = {
    functional.cross_entropy: "cross_entropy",
    functional.nll_loss: "nll_loss",
    functional.binary_cross_entropy: "binary_cross_entropy",
    functional.binary_cross_entropy_with_logits: "binary_cross_entropy_with_logits",
    functional.mse_loss: "mse_loss",
    functional.l1_loss: "l1_loss",
    functional.smooth_l1_loss: "smooth_l1_loss",
    functional.huber_loss: "huber_loss",
    functional.kl_div: "kl_div",
}
REGRESSION = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_OF_LOGITS = ("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits")
_LOGS = (functional.log_softmax, torch.log_softmax, Tensor.log_softmax, functional.logsigmoid)
_MOVES = (*graph_nodes.MOVES, "Slice", "Select")
_NORMS = ("Expand", "Clamp", "ClampMin", "Add")  # between a length and what is divided by it
DIFFERENCE, PRODUCT = "a difference", "a product"
"""What compares outputs with targets, or weighs them, beside loss functions."""
_LESS = ("sub", "__sub__", "subtract")
_COMPARES = dict.fromkeys((*_LESS, "rsub", "__rsub__"), DIFFERENCE)
_COMPARES |= dict.fromkeys(("mul", "__mul__", "__rmul__", "multiply"), PRODUCT)


@dataclass
class LossCall:
    """One call of a loss function.

    Attributes:
        name: of the function in ``torch.nn.functional``.
        input, target: its arguments, detached.
        kwargs: the further arguments by name.
        function: the function itself.
        result: what it returned.
        gradient: of the loss by the result; None before :meth:`let_go`, and where none arrived.
        made_by: the operation that has made the input, ``""`` for a leaf.
        is_predicted: the target is a result of the model, or the input of another call, and no number that was given.
        of_cosines: the input is made of cosines.
        reaches: what keeps the logits between two numbers, in words, and these; ``""`` and infinite ones where nothing does.
        is_mixed: a view in front of a softmax has taken other axes for that of the classes.
    """

    name: str
    input: Tensor
    target: Tensor
    kwargs: dict[str, Any] = field(default_factory=dict)
    function: Callable[..., Tensor] = functional.mse_loss
    result: Tensor | None = None
    gradient: Tensor | None = None
    made_by: str = ""
    is_predicted: bool = False
    of_cosines: bool = False
    reaches: tuple[str, float, float] = ("", -math.inf, math.inf)
    is_mixed: bool = False

    @property
    def least(self) -> float | None:
        """The smallest element of the result, which no right use of the function brings below 0; None where it is not known."""
        held = None if self.result is None else self.result.detach()
        return None if held is None or not held.numel() else float(held.min())

    @property
    def is_reversed(self) -> bool:
        """Whether the training makes this loss larger: its gradient is one negative number. Needs :meth:`let_go`."""
        held = self.gradient
        return held is not None and held.numel() > 0 and bool((held == held.flatten()[0]).all()) and bool(held.flatten()[0] < 0)

    def let_go(self) -> None:
        """Keep the gradient that a backward pass has left on the result, and let the graph behind it go."""
        if self.result is not None:
            self.gradient, self.result = self.result.grad, self.result.detach()

    @property
    def summed(self) -> int:
        """How many samples the function sums up without dividing by their number, so that its gradient is large. Else 0."""
        is_sum = self.kwargs.get("reduction") == "sum" and self.target.dim() and self.gradient is not None
        return len(self.target) if is_sum and is_whole(self.gradient) else 0

    def mean(self, given: Tensor) -> float:
        """Return the loss of *given* in place of the input, with the mean as the reduction."""
        kept = {name: held for name, held in self.kwargs.items() if name not in ("reduction", "size_average", "reduce")}
        return float(self.function(given, self.target, **kept, reduction="mean"))

    @property
    def scale(self) -> float:
        """The loss of outputs that are 0: that of classes that are equally likely, or the size of the targets of a distance."""
        return (
            math.log(max(self.classes, 2))
            if self.name in ("cross_entropy", "nll_loss")
            else self.mean(torch.zeros_like(self.input))
        )

    @property
    def classes(self) -> int:
        """The number of classes of a cross-entropy."""
        return self.input.shape[1 if self.input.dim() > 1 else 0]

    @property
    def indices(self) -> Tensor | None:
        """The class indices that count; None where the target holds probabilities."""
        if self.name not in ("cross_entropy", "nll_loss") or self.target.is_floating_point() or self.target.numel() == 0:
            return None
        kept = self.target[self.target != self.kwargs.get("ignore_index", -100)]
        return kept if kept.numel() else None

    @property
    def added_up(self) -> Tensor | None:
        """What the targets of a cross-entropy add up to for each sample; None where they are class indices."""
        if self.name != "cross_entropy" or not self.target.is_floating_point() or not self.target.numel():
            return None
        return self.target.double().sum(1 if self.target.dim() > 1 else 0)

    @property
    def ignores_all(self) -> bool:
        """Whether the target of a cross-entropy holds nothing but the number that is ignored."""
        is_index = self.name in ("cross_entropy", "nll_loss") and not self.target.is_floating_point() and self.target.numel()
        return bool(is_index) and bool((self.target == self.kwargs.get("ignore_index", -100)).all())


def _reach_of(node: graph_nodes.Node, call: LossCall) -> tuple[str, float, float]:
    """Return what keeps the logits that an operation has made between two numbers, in words, and these.

    Logits of a softmax count by how far two of one sample can be apart: those of a vector of length 1 less than twice its length.
    """
    logs, device = graph_nodes.behind(node, _MOVES), call.input.device
    last = graph_nodes.sources_of(logs)[0] if graph_nodes.operation_of(logs) == "LogSoftmax" else logs
    made, times, is_trained = graph_nodes.scaled_by(last, device, _MOVES)
    width, limits = abs(float(times)), graph_nodes.limits_of(made)
    cosines = graph_nodes.width_of_cosines(last, device)
    if cosines is not None:
        return "cosine", -float(cosines), float(cosines)
    if is_trained:
        return "", -math.inf, math.inf
    if graph_nodes.operation_of(made) == "Tanh":
        return "tanh", -width, width
    if limits is not None:
        ends = sorted(each * float(times) for each in limits)
        return "clamp", ends[0], ends[1]
    axis = min(1, call.input.dim() - 1)
    norm = [graph_nodes.shape_of(graph_nodes.behind(each, _NORMS)) for each in graph_nodes.sources_of(made)[1:]]
    if graph_nodes.is_unit(made) and norm and norm[0][axis : axis + 1] == (1,):
        half = math.sqrt(call.classes / (call.classes - 1)) / 2 if call.classes > 1 and not call.name.startswith("binary") else 1.0
        return "normalisation to length 1", -width * half, width * half
    return "", -math.inf, math.inf


class LossCalls(TorchFunctionMode):
    """While active, note each call of a loss function. A class index outside of the classes raises ``IndexError`` beforehand,
    since the device would stop at it.

    Attributes:
        found: the calls, in order.
        pairs: what an ``(N, 1)`` and an ``(N,)`` tensor, or an ``(N, N)`` one of the model and an ``(N,)`` one, are given to in the
            loss function: its name, N, and the number of pairs; that is below 0 where the model has made them.
        in_loss: the loss function runs now, and no longer the model.
        logs: the log-probabilities that a softmax or a sigmoid has made, or a logarithm of shares.
        errors: the differences in the loss function of what is trained and what is given.
        factors: what the loss function multiplies with what is trained, of several numbers that are given.
        given_logs: of each function that takes logarithms of probabilities its name, and what it is given in their place, in words:
            see :func:`no_logs_in`.
        sums: of each sum of all elements in the loss function the number of elements along its first axis, and the result.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[LossCall] = []
        self.pairs: list[tuple[str, int, int]] = []
        self.in_loss = False
        self.logs: list[Tensor] = []
        self.errors: list[Tensor] = []
        self.factors: list[Tensor] = []
        self.given_logs: list[tuple[str, str]] = []
        self._sums_of_exponentials: list[Tensor] = []
        self.sums: list[tuple[int, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Note the call and run it."""
        given = dict(kwargs or {})
        name = _SEEN.get(func)
        if func is functional.ctc_loss and args and isinstance(args[0], Tensor):
            self.given_logs.append(("ctc_loss", no_logs_in(args[0], args[0].dim() - 1)))
        if name is not None:
            call = self._note(name, func, args, given)
            result = func(*args, **given)
            if call is not None and isinstance(result, Tensor):
                call.result = result
                near = graph_nodes.nodes_before(result.grad_fn, _NEAR) if result.requires_grad else ()
                call.is_mixed = any(map(moved_axes.mixes_classes, (each for each in near if _is_softmax(each))))
                if result.requires_grad:
                    result.retain_grad()
            return result
        what = _COMPARES.get(getattr(func, "__name__", "")) if self.in_loss and len(args) == 2 else None
        if what is not None:
            self._compare(what, *args)
        result = func(*args, **given)
        if isinstance(result, Tensor) and result.requires_grad:
            self._keep_logs(func, args, result)
            if what is not None:
                self._keep_sides(what, args, result)
        is_sum = self.in_loss and func in (torch.sum, Tensor.sum) and isinstance(args[0], Tensor) and args[0].dim() > 0
        if is_sum and result.numel() == 1 and result.requires_grad and args[0].numel() > 1:
            result.retain_grad()
            self.sums.append((len(args[0]), result))
        return result

    def _keep_logs(self, func: Any, args: tuple[Any, ...], result: Tensor) -> None:
        """Keep the *result* of a function if it is log-probabilities: of a softmax, of shares, or less a sum of exponentials."""
        if func in (torch.logsumexp, Tensor.logsumexp):
            self._sums_of_exponentials.append(result)
        is_less = getattr(func, "__name__", "") in _LESS and any(args[-1] is each for each in self._sums_of_exponentials)
        is_of_shares = func in (torch.log, Tensor.log) and bool(args) and is_distribution(args[0])
        if func in _LOGS or is_less or is_of_shares:
            result.retain_grad()
            self.logs.append(result)

    def _keep_sides(self, what: str, args: tuple[Any, ...], result: Tensor) -> None:
        """Keep a difference of what is trained and what is given, and a factor of several numbers that is given."""
        given = [each for each in args if isinstance(each, Tensor) and not each.requires_grad and each.numel() > 1]
        if len(given) == 1 and what == PRODUCT:
            self.factors.append(given[0].detach())
        elif len(given) == 1 and len(args) == 2 and isinstance(args[0], Tensor) and isinstance(args[1], Tensor):
            result.retain_grad()
            self.errors.append(result)

    @property
    def lowers_likelihood(self) -> bool:
        """Whether the gradient of the loss is above 0 at all log-probabilities that it reads, and no factor below 0 makes it so."""
        read = [each.grad[each.grad != 0] for each in self.logs if each.grad is not None]
        if not any(map(len, read)) or not all(bool((each > 0).all()) for each in read):
            return False
        return all(bool((each == read[0][:1]).all()) for each in read) or all(bool((each >= 0).all()) for each in self.factors)

    @property
    def raises_errors(self) -> bool:
        """Whether the loss makes each element of a difference from what is given larger, and makes no other difference smaller."""
        ways = [(each.detach() * each.grad).flatten() for each in self.errors if each.grad is not None]
        ways = [each for way in ways if len(each := way[way != 0]) >= _FEWEST]
        return any(bool((each < 0).all()) for each in ways) and not any(bool((each > 0).all()) for each in ways)

    def _note(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LossCall | None:
        named = dict(zip(("input", "target", "weight"), args[:3], strict=False)) if name not in (*REGRESSION, "kl_div") else {}
        named = named or dict(zip(("input", "target"), args[:2], strict=False))
        named |= kwargs
        if not all(isinstance(named.get(each), Tensor) and not named[each].is_meta for each in ("input", "target")):
            return None
        held = {key: value.detach() if isinstance(value, Tensor) else value for key, value in named.items()}
        is_predicted = bool(named["target"].requires_grad)
        node = named["input"].grad_fn
        last = None if node is None else graph_nodes.behind(node, _MOVES)
        dropped = None if last is None else graph_nodes.dropped_by(last, fewest=2)
        is_dropout = dropped is not None and float(dropped) > 0
        made_by = "" if last is None else "NativeDropout" if is_dropout else graph_nodes.operation_of(last)
        call = LossCall(name, held.pop("input"), held.pop("target"), held, func, made_by=made_by, is_predicted=is_predicted)
        call.of_cosines = node is not None and (
            graph_nodes.is_of_cosines(node) or graph_nodes.width_of_cosines(node, call.input.device) is not None
        )
        if name == "nll_loss":
            self.given_logs.append((name, no_logs_in(named["input"], min(1, named["input"].dim() - 1))))
        if node is not None and name in _OF_LOGITS:
            call.reaches = _reach_of(node, call)
        for each in self.found:  # a term in each direction: what codes are drawn to, and what is drawn to codes
            each.is_predicted |= each.target.data_ptr() == call.input.data_ptr()
            call.is_predicted |= call.target.data_ptr() == each.input.data_ptr()
        self.found.append(call)
        self._compare(name, call.input, call.target)
        indices = call.indices
        if indices is not None and (int(indices.min()) < 0 or int(indices.max()) >= call.classes):
            raise IndexError(f"class indices from {int(indices.min())} to {int(indices.max())}, and {call.classes} classes")
        return call

    def _compare(self, what: str, one: Any, other: Any) -> None:
        if not (isinstance(one, Tensor) and isinstance(other, Tensor) and {one.dim(), other.dim()} == {1, 2}):
            return
        wide, line = (one, other) if one.dim() == 2 else (other, one)
        count = len(line)
        if what in ("cross_entropy", "nll_loss") or len(wide) != count or count < 2:
            return
        if what == PRODUCT and wide.requires_grad == line.requires_grad:  # of two outputs, as of a matrix of pairs
            return
        if wide.shape[1] == 1:
            self.pairs.append((what, count, count**2))
        elif wide.shape[1] == count and what != PRODUCT and not line.requires_grad:
            self.pairs.append((what, count, -(count**2)))


def _is_softmax(node: graph_nodes.Node) -> bool:
    return graph_nodes.operation_of(node) == "LogSoftmax"


_NEAR = 6  # operations in front of a loss, among which its softmax is


def is_whole(gradient: Tensor | None) -> bool:
    """Return whether the loss holds a sum as it is: what is divided by the number of samples has a smaller gradient."""
    return gradient is not None and bool((gradient.abs() >= _WHOLE).all())


_WHOLE = 0.5
_FEWEST = 8  # elements of a difference, all of which become larger by no chance


def is_probability(tensor: Tensor) -> bool:
    """Return whether all elements are finite and lie from 0 to 1."""
    return bool(((tensor >= 0) & (tensor <= 1)).all()) and bool(torch.isfinite(tensor).all())


def is_distribution(tensor: Tensor) -> bool:
    """Return whether all elements are shares, and add up to 1 along the last axis."""
    held = tensor.detach()
    if not held.is_floating_point() or held.dim() == 0 or not 1 < held.shape[-1] <= held.numel() or not is_probability(held):
        return False
    return bool(((held.double().sum(-1) - 1).abs() <= held.shape[-1] * _ROUNDING).all())


_ROUNDING = 1e-4  # of a share


def no_logs_in(given: Tensor, axis: int) -> str:
    """Return what is *given* in place of logarithms of probabilities along *axis*, in words; ``""`` for nothing.

    It is a softmax over another axis, or what a layer has made.
    """
    sums = given.detach().double().exp().sum(axis)
    if given.grad_fn is None or not sums.numel() or float(((sums - 1).abs() < _OFF).double().mean()) > _CHANCE:
        return ""
    made = graph_nodes.behind(given.grad_fn, graph_nodes.MOVES)
    name, shape = graph_nodes.operation_of(made), graph_nodes.shape_of(made)
    if name == "LogSoftmax" and math.prod(shape) == given.numel():
        return f"a softmax over axis {graph_nodes.axis_of(made)} of {shape_text(shape)}, which is not that of its classes"
    is_layer = name in graph_nodes.WEIGHTED or (name == "Add" and graph_nodes.takes_leaf(made))
    return f"the outputs of a layer as they are, of shape {shape_text(shape)}, and takes logarithms of probabilities" * is_layer


_OFF, _CHANCE = 0.05, 0.5  # what probabilities add up to beside 1, and how often by chance
