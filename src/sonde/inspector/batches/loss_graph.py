"""Notice how a loss was made: shapes that broadcast, a softmax twice or over the batch, targets that learn, lone weights."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine import backward_calls, communicates, graph_nodes, moved_axes, raise_if_foreign, version_of, walk
from sonde.inspector.batches.findings import TEMPERATURE
from sonde.inspector.batches.layer_reading import dropped_numbers
from sonde.inspector.batches.look import without_recomputing
from sonde.inspector.batches.regression_targets import beyond_numbers, range_of
from sonde.inspector.batches.target_reading import BOUNDS, compared_in, errors_in
from sonde.rules import Chosen, Finding
from sonde.stats import HostCopy
from sonde.words import many, percent, shape_text, short

Node = graph_nodes.Node
Read = tuple[str, Tensor, int]
"""Of what a number is, the number on its device, and one that is known."""

_LOOKS = 3  # backward passes: those of a generator and a discriminator, which sees two batches
_NODES, _OF_LOSS = 20_000, 60  # nodes of one graph that are read; those nearest to the loss, among which its function is
_STEPS = 6  # from the first loss on, after which a parameter that has not been written into is trained by nobody
_MANY = 4  # samples
_COMPARES = ("Sub", "Rsub", "MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits")
_PICKED = (*moved_axes.MOVES, *graph_nodes.TAKES, "Gather", "IndexSelect", "MaskedSelect")
_VIEWS = (*graph_nodes.MOVES, "Expand")
_REDUCES = ("Mean", "Sum", "Div", "Mul", "Neg", "Rsub", "Diagonal", *(_DISTANCES := ("Pow", "Abs", "Norm", "LinalgVectorNorm")))
_SQUARES = ("MseLoss", "SmoothL1Loss", "HuberLoss")
_DISTANCE, _ENTROPY = "a distance of outputs and targets", "a cross-entropy"
_DESCEND = "leave maximize=True out"
_CLIMBS = "the optimizer has maximize=True, so that each step makes it larger"
_LINEAR = ("Addmm", "Mm", "Bmm", "Convolution")
_OF_LOGARITHMS = {"NllLoss": "nll_loss", "NllLoss2D": "nll_loss", "CtcLoss": "ctc_loss"}
_OF_LOGITS = {
    "LogSoftmax": "cross_entropy",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
    "LogSigmoid": "logsigmoid",
    "SoftMarginLoss": "soft_margin_loss",
}
_CLASSES = {"NllLoss": 1, "NllLoss2D": 1, "CtcLoss": -1}  # their axis
_OVER = "take the softmax over the classes: axis 1 for nll_loss and cross_entropy, the last one for ctc_loss"
_OF_LABELS = ("NllLoss", "NllLoss2D", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits")
_HEAVY, _OUTWEIGHS = 0.5, 2.0  # weight of an entropy, by itself (0.01 is usual), and beside advantages
_DROWNS = 1e3  # times as much of a loss as a cross-entropy is
_DROWNED, _WEIGHTY = 100.0, 50.0  # times as much, where a factor of the term is so large
_LOWERED = "subtract the entropy: loss - 0.01 * entropy; added to a loss, it is made small, and one choice is all that is tried"
_SHORT = (
    "look at input_lengths and target_lengths: an input has to be as long as its labels, and one longer for each pair of equal "
    "neighbours (a network that makes time shorter, lengths of the inputs before it, times and samples exchanged)"
)
_BENT = "it takes logits: leave the activation out behind the last layer; no gradient comes to a class whose output is zero"
_OF_OUTPUTS = ("LogSoftmax", "BinaryCrossEntropyWithLogits", "BinaryCrossEntropy", "MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
_FAR_SCORES = (
    "look at what makes the scores: scale down initial weights or embeddings that are large, or inputs; normalise what is "
    "multiplied, or divide a product by the square root of its length"
)
_OF_ALL = "what is pushed as the loss is the sum of all so far: it grows by the loss of each step, whatever is learnt"
_OF_STEP = "push the loss of the step, loss.item(), or its mean over the steps since the last value; set a sum to 0 in each epoch"
_VALUED = (
    "the loss multiplies log-probabilities of choices by a difference that is trained, too: it moves the values, to where choices "
    "are likely"
)
_APART = (
    "detach() the advantage in the loss of the policy: (log_prob * advantage.detach()).mean(); values have an error of their own"
)
_HINGES = ("Relu", "ClampMin", "Clamp")
_MEAN = 1  # the number by which torch knows that a loss function returns the mean
_MASKS = ("MaskedFill", "Where", "IndexPut", "FillDiagonal")
_PICKS = ("Neg", "Mean", "Index", "Gather", "NllLoss", "NllLoss2D")  # what makes a cross-entropy of logarithms
_CHOOSES = ("NllLoss", "NllLoss2D", "Gather", "Index", "Diagonal")  # what picks those of labels
_BEYOND = 300.0  # times the cross-entropy of a guess
_UNMASKED = (
    "look at the labels and at the mask: with the diagonal left out, the label of each of 2n views is the other view of it "
    "(torch.arange(2 * n).roll(n)), and not its own place; or the mask is the wrong way round"
)
_SCALED = ("LogSoftmax", "Div", "Mul", "Neg", *_VIEWS)  # what is done to similarities
_AS_MANY = 3.0  # labels of one class, as a multiple of an equal share
_OF_PICKS = 12  # operations between a product and what picks the log-probabilities of choices
_OF_SUMS = 12  # operations between a division and the sums that it divides
_LEFT_OUT = 0.3  # of labels
_SMOOTHED = 0.8  # of a target, what a label smoothing takes
_AS_NUMBER = "look for what makes a number of it: item(), float(), detach(), .data, numpy(), torch.tensor(), or no_grad() around it"
_CHANGES, _PART = 2e-3, 0.1  # of what a loss adds up, its deviation from pass to pass; and its share of the loss
_STEPS_ALONE = ("Round", "Floor", "Ceil", "Trunc", "Sign", "Sgn")  # operations whose slope is zero
_ROUNDED = (
    "leave it out of the loss, or let gradients pass as if it were not there: x + (x.round() - x).detach(); what is counted or "
    "chosen so is a metric, beside a loss that has a slope"
)
_UNSCALED = (
    "where a GradScaler multiplies it, step by scaler.step(optimizer) and scaler.update() in the place of optimizer.step(), and "
    "clip behind scaler.unscale_(optimizer); else take the factor out of the loss, or divide the learning rate by it"
)
_UNDIVIDED = "divide each loss by the number of passes that make a step, or the learning rate"
_SAME_LOSS = 1e-3  # rounding
_DECAYS, _HEAVY_DECAY = 0.5, 0.05  # of a loss, a penalty on weights, and what it is multiplied with
_LIGHTER = "multiply the penalty by less (1e-5 to 1e-2 is usual), or leave it to the weight_decay of AdamW"
_OFF = 0.05  # what targets add up to
_ONE_FACTOR = 2.0  # between two steps, of a loss that is the mean of several passes
_LISTED = (
    "register what is made of layers: nn.ModuleList, nn.ModuleDict or nn.ParameterList in the place of a list or a dict; and make "
    "layers in __init__, not in forward; what is to stay as it is: requires_grad_(False)"
)
_BEYOND_ALL: tuple[float, ...] = (1.0, 0.0, math.inf)
_PLAIN: dict[str, tuple[str, tuple[float, ...], str, str]] = {
    "blank": (
        "target_beyond",
        _BEYOND_ALL,
        "{share} of the labels of ctc_loss are its blank, {of}: what is decoded holds none of it",
        "give ctc_loss a blank= that is no label (0 where labels are from 1 on, or one class more than there are labels); and look "
        "whether target_lengths count what labels are padded with",
    ),
    "ignored": (
        "target_beyond",
        _BEYOND_ALL,
        "{share} of the labels, one of each sample, are {of}, which cross_entropy leaves out (ignore_index={of}): this class is "
        "never learnt",
        "leave ignore_index out where no label stands for padding, or give it a number that is no class (-100)",
    ),
    "alone": (
        "labels_alike",
        (math.inf, math.inf, 1.0),
        "all labels that cross_entropy counts are one class, and it leaves out the others, of class {of} (ignore_index={of})",
        "leave ignore_index out where this class is to be learnt, too; what does not count has a number that is no class (-100)",
    ),
    "alike": (
        "labels_alike",
        (math.inf, math.inf, 1.0),
        "all labels of a cross-entropy of {of} x {of} scores are one: each sample has the same partner",
        "the partner of sample i stands in column i: cross_entropy(scores, torch.arange(len(scores)))",
    ),
    "signs": (
        "target_beyond",
        _BEYOND_ALL,
        "{share} of the labels of a loss that takes -1 and 1 are 0: it asks nothing of them",
        "give it labels of -1 and 1: 2 * labels - 1, of labels that are 0 and 1",
    ),
    "scores": (
        "target_beyond",
        _BEYOND_ALL,
        "the loss is a difference of means of what a sigmoid has made: such scores end at 0 and 1, where no gradient is left",
        "leave the sigmoid out (the scores of a Wasserstein critic have no ends), or take binary_cross_entropy_with_logits",
    ),
    "volume": (
        "loss_unbounded",
        (math.nan,) * 4,
        "the loss adds the logarithm of a scale with the sign by which it falls as the square of what is scaled does: both shrink, "
        "without end",
        "turn the sign of the log-determinant: of z = x * exp(s) the loss is z ** 2 / 2 - s, and of z = (x - t) * exp(-s) it is "
        "z ** 2 / 2 + s",
    ),
    "divergence": (
        "loss_unbounded",
        (math.nan,) * 4,
        "the loss subtracts squares and exponentials of outputs, as of a divergence: each step makes them larger, without end",
        "add the divergence of an encoder, -0.5 * (1 + logvar - mu**2 - logvar.exp()), and do not subtract it",
    ),
    "dropout": (
        "dropped",
        (1.0,),
        "a dropout makes what the loss compares: {share} of the outputs are zero in training",
        "leave it out behind the last layer; a dropout belongs to hidden features, in front of that",
    ),
    "spread": (
        "loss_broadcast",
        (1, 2),
        "the loss multiplies each of {of} samples with each: one factor has the shape (N, 1) beside (N,)",
        "give both the same shape, by squeeze(1) or unsqueeze(1): advantages, weights or masks as the outputs that they multiply",
    ),
    "overlapped": (
        "loss_unbounded",
        (math.nan,) * 4,
        "the loss is an overlap of outputs and masks (Dice or IoU), and each step makes it small",
        "subtract it from 1: the loss is 1 - dice",
    ),
    "cosine": (
        "loss_unbounded",
        (math.nan,) * 4,
        "the loss is a cosine of outputs and targets, and each step makes it small: outputs turn away from what they should be",
        "subtract it from 1: the loss is 1 - cosine_similarity(outputs, targets).mean()",
    ),
    "cancelled": (
        "gradient_zero",
        (0.0,),
        "the loss subtracts what was made of the same outputs by the same operations: nothing is left of it",
        "look whether negatives are the positives themselves, whether two views, or two networks, are one, and whether the "
        "log-probabilities of a policy are compared with their own, and not with those that were kept as the choices were made",
    ),
    "best": (
        "target_of_another",
        (1.0,),
        "an error compares the largest of the {of} outputs of each sample with its target, whichever that is",
        "of values of actions take that of the one which was chosen, values.gather(1, actions[:, None]); the largest of those of "
        "the next state belongs into the target",
    ),
    "overlap": (
        "softmax_twice",
        (math.inf, math.nan),
        "a Dice or IoU loss is given the outputs of a layer as they are, and takes probabilities",
        "give it sigmoid(outputs), or softmax(outputs, 1) of several classes",
    ),
    "turned": (
        "samples_mixed",
        (math.inf, 0.0),
        "the probabilities that are the target of a cross-entropy or kl_div add up to 1 over the samples, not the classes",
        "take its softmax over the classes: softmax(-1), or 1 of images",
    ),
}
"""By what was read, the rule that a number above 0 in each of the first passes breaks, what it is given, words, and advice."""


class LossGraph:
    """Looks at what the first backward passes of a training begin from, and at the graph of that.

    Args:
        chosen: the rules that are applied.
        model: the model.
        name: its name in messages; ``""`` where there is one model.
    """

    def __init__(self, chosen: Chosen, model: nn.Module, name: str) -> None:
        self._chosen, self._model, self._prefix = chosen, model, f"{name}: " * bool(name)
        self._looks = 0
        self._first = -1  # the step of the first loss
        self._strangers: list[tuple[Tensor, int]] = []  # parameters that the model does not hold, and their counts of writes
        self._used: set[int] = set()  # the identities of those that a pass of the model has used
        self._is_judged = False  # the strangers were
        self._samples: set[int] = set()  # how many the last pass was given
        self._found: dict[str, Finding] = {}
        self._passes: dict[int, int] = {}  # by step, of those that were looked at
        self._sent: Tensor | None = None  # the loss that was sent backward last
        self._pushed: list[tuple[HostCopy, int, int]] = []  # such losses, with those that the loop gives, and the moment
        self._noted: tuple[int, list[Read]] = 0, []  # the identity of what is sent backward now, and what was read of it before
        self._read: list[tuple[str, int, HostCopy, int, int]] = []  # what was read, with the moment
        self.climbs = False  # an optimizer with maximize=True has made a step

    @property
    def looks(self) -> bool:
        """Whether the backward passes of the logged step that comes are looked at."""
        return self._looks < _LOOKS

    def before_backward(self, sent: list[Tensor]) -> None:
        """Read what the graph of a loss that is *sent* backward keeps, by whatever model it was made."""
        loss, looks = sent[0], self.looks and type(sent[0]) is Tensor and sent[0].grad_fn is not None
        if looks and loss.numel() == 1 and not communicates(self._model):  # else numbers are of several ranks
            with torch.inference_mode(False), torch.no_grad(), without_recomputing():
                nodes = graph_nodes.nodes_before(loss.grad_fn, _OF_LOSS)
                read = [each for node in nodes for each in _constants_of(node, loss.device, self._samples)]
                self._noted = id(loss), [*_lost_of(loss), *_beyond_of(loss), *_of_terms(loss), *read]

    def look_at_pass(self, args: Any, kwargs: Any, output: Any) -> None:
        """Look which parameters that the model does not hold a training pass has used, whose *output* this is."""
        try:
            given = [each for _, each in (*walk(list(args)), *walk(dict(kwargs)))] if self.looks else []
            ends = [each.grad_fn for each in given if each.grad_fn is not None]
            self._samples = {each.shape[0] for each in given if each.dim()}
            known = {id(each) for each in (*given, *self._model.parameters())}
            for start in [each.grad_fn for _, each in walk(output) if each.grad_fn is not None] if self.looks else ():
                leaves = map(graph_nodes.leaf_of, graph_nodes.nodes_before(start, _NODES, ends))
                self._used |= {id(each) for each in leaves if isinstance(each, nn.Parameter) and id(each) not in known}
        except Exception as error:
            raise_if_foreign(error)

    def look(self, epoch: int, step: int) -> None:
        """Look at what the backward pass that runs, of a logged step, was begun from."""
        if self._strangers and step - self._first >= _STEPS:
            self._judge_strangers(epoch, step)
        if step not in self._passes and self._looks >= _LOOKS:
            return
        self._passes[step] = self._passes.get(step, 0) + 1
        try:
            sent = backward_calls.sent_backward()[:1]
            self._sent = next((each.detach() for each in sent if each.numel() == 1), None)
            if self._looks >= _LOOKS:
                return
            self._first = step if self._first < 0 else self._first
            nodes = [node for each in sent for node in graph_nodes.nodes_before(each.grad_fn, _NODES)]
            for found in (*self._of_function(nodes[:_OF_LOSS]), *self._of_sides(nodes), *self._of_slopes(nodes)):
                self._found.setdefault(
                    found.rule, replace(found.at("", epoch, step, self._prefix + found.message), first_step=step)
                )
            of, noted = self._noted
            for kind, number, extra in (*(noted if sent and id(sent[0]) == of else ()), *_numbers_of(nodes, sent)):
                if type(number) is Tensor:
                    self._read.append((kind, extra, HostCopy.of([number.double().reshape(-1)]), epoch, step))
            if not (self._strangers or self._is_judged):
                self._strangers = [(each, version_of(each)) for each in self._between(nodes)]
            self._looks += 1  # and not before all is read: findings are asked for in another thread, too
        except Exception as error:
            raise_if_foreign(error)
            self._looks = _LOOKS

    def take_loss(self, value: Any, epoch: int, step: int) -> None:
        """Compare a *value* that the loop gives as its loss with what was sent backward last, of a step that was looked at."""
        sent, self._sent = self._sent, None
        if sent is not None and isinstance(value, int | float | Tensor):
            given = value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")
            if given.numel() == 1 and given.layout == torch.strided:
                copy = HostCopy.of([sent.double().reshape(()), given.double().reshape(())])
                self._pushed.append((copy, epoch, step))

    def _of_factor(self) -> None:
        """Judge how many times the losses that the loop gives those are which are sent backward."""
        numbers = [[float(number) for number in copy.unpack()] for copy, *_ in self._pushed]
        pairs = itertools.pairwise(numbers)
        is_sum = len(numbers) >= _LOOKS and all(
            abs(now - before - sent) <= _SAME_LOSS * abs(sent) < abs(before) for (_, before), (sent, now) in pairs
        )
        found = self._chosen.judge("loss_rising", math.inf, 1.0, 1.0, 0.0, math.nan, 0.0, math.inf) if is_sum else None
        if found is not None:
            told = found.at("", *self._pushed[0][1:], self._prefix + _OF_ALL)
            self._found["loss_rising"] = replace(told, first_step=self._pushed[0][2], severity="warn", advice=_OF_STEP)
        times = [sent / given if given > 0 else 0.0 for sent, given in numbers if math.isfinite(sent + given)]
        is_one = bool(times) and max(times) <= _ONE_FACTOR * min(times)
        known = [self._passes[step] for *_, step in self._pushed if step in self._passes]
        added = min(known) if is_one and len(known) == len(times) and abs(max(times) - 1) < _SAME_LOSS else math.nan
        found = self._chosen.judge("loss_summed", *[math.nan] * 5, times[0], added) if is_one else None
        if found is not None:
            _, epoch, step = self._pushed[0]
            told = found.at("", epoch, step, self._prefix + found.message)
            advice = _UNSCALED if math.isnan(added) else _UNDIVIDED
            self._found["loss_summed"] = replace(told, first_step=step, advice=advice)
        else:
            self._found.pop("loss_summed", None)

    def found(self) -> tuple[Finding, ...]:
        """Return the findings so far. Waits for the device."""
        self._of_factor()
        held, self._read = ([], self._read) if self.looks else (self._read, [])
        for name in dict.fromkeys(kind for kind, *_ in held):
            numbers = [float(one) for kind, _, copy, *_ in held if kind == name for each in copy.unpack() for one in each]
            of, first = next((extra, step) for kind, extra, *_, step in held if kind == name)
            epoch, step = max((epoch, step) for kind, *_, epoch, step in held if kind == name)
            found = self._of_numbers(name, numbers, of)
            if found is not None:
                self._found[found.rule] = replace(found.at("", epoch, step, self._prefix + found.message), first_step=first)
        return tuple(self._found.values())

    def _of_numbers(self, kind: str, numbers: Sequence[float], of: int) -> Finding | None:
        """Judge the *numbers* of one *kind* that the first passes have shown; see :func:`_numbers_of` and :func:`_constants_of`."""
        found, message, advice, judge = None, "", None, self._chosen.judge
        if kind == "lengths" and not any(numbers):
            found, advice = judge("gradient_zero", 0.0), _SHORT
            message = "ctc_loss returns 0 and no gradient: its inputs are shorter than their labels (zero_infinity=True)"
        elif kind == "begun" and numbers[0] < _BEYOND * numbers[1]:
            found, advice = judge("begins_large", numbers[0], numbers[1], math.inf), _FAR_SCORES
            message = f"the first loss is {short(numbers[0])}, and a guess has {short(numbers[1])}: its scores begin far too large"
            found = found and replace(found, quantity="output")
        elif len(numbers) < _LOOKS - (kind == "scores"):  # of which one is the generator's
            return None
        elif kind in (_DISTANCE, _ENTROPY) and (min(numbers) > 0 if self.climbs else max(numbers) < 0 and kind == _DISTANCE):
            found, advice = judge("loss_unbounded", *[math.nan] * 4, is_maximised=True), _DESCEND if self.climbs else None
            why = _CLIMBS if self.climbs else f"what is sent backward is below zero, {short(numbers[0])} at first"
            message = f"{kind} is maximised: {why}"
        elif kind in _PLAIN and min(numbers) > 0:
            rule, given, message, advice = _PLAIN[kind]
            more = {"is_maximised": True} if rule == "loss_unbounded" else {}
            found, message = judge(rule, *given, **more), message.format(share=percent(numbers[0]), of=of)
        elif kind == "lost" and statistics.pstdev(numbers[::2]) >= _CHANGES * abs(statistics.mean(numbers[::2])):
            most, whole = statistics.median(map(abs, numbers[::2])), statistics.median(numbers[1::2])
            found, advice = judge("gradient_zero", 0.0) if most >= _PART * whole else None, _AS_NUMBER
            message = f"a term of the loss, {short(most)} of {short(whole)}, has no graph: no gradient of it comes to the weights"
        elif kind == "several" and min(numbers) > 0:
            found = judge("labels_several", statistics.mean(numbers))
        elif kind == "masked" and min(numbers) >= _BEYOND * math.log(of):
            found, advice = judge("target_beyond", 1.0, 0.0, math.inf), _UNMASKED
            what = f"a cross-entropy of {of:,} classes is {short(numbers[0])}, and that of a guess {short(math.log(of))}"
            message = f"labels point at scores that a mask has put far below all others: {what}"
        elif kind == "smoothed" and min(numbers) >= _SMOOTHED:
            found, advice = judge("labels_alike", math.inf, math.inf, 1.0), "label_smoothing=0.1 is usual"
            message = f"label_smoothing={short(numbers[0])}: so much of each target is the same for all classes"
        elif kind.startswith("beyond") and len(numbers) >= 3 * _LOOKS and min(numbers[::3]) > 0:
            ends = min(numbers[::3]), min(numbers[1::3]), max(numbers[2::3])
            found = judge("target_beyond", *ends, what=kind.split()[1])
        elif kind in ("errors", "decayed", "entropy"):
            return self._of_weights(kind, numbers)
        elif kind == "width" and max(numbers) <= graph_nodes.SHRUNK:
            found, advice = judge("target_beyond", 1.0, 0.0, math.inf), TEMPERATURE
            message = (
                f"cosines times {short(numbers[0])} go into a cross-entropy: whatever the outputs are, it stays within "
                f"{short(2 * numbers[0])} of that of a guess"
            )
        return found and replace(found, message=message or found.message, advice=advice or found.advice)

    def _of_weights(self, kind: str, numbers: Sequence[float]) -> Finding | None:
        """Judge the *numbers* of one *kind* that say how much of a loss one of its terms makes."""
        found, message, advice, judge = None, "", None, self._chosen.judge
        if kind == "errors" and len(numbers) >= 3 * _LOOKS and min(numbers[1::3]) >= _DROWNED:
            size, times, weight = numbers[0], min(numbers[1::3]), min(numbers[2::3])
            found = judge("target_large", size**2, 1.0, 1.0) if times >= _DROWNS else None
            weighs = f"weighed by {short(weight)}, " * (found is None)
            found = found or (judge("terms_uneven", math.inf) if weight >= _WEIGHTY else None)
            what = f"errors, of size {short(size)}, {weighs}make {short(times)} x as much of the loss"
            message = f"{what} as the cross-entropy beside them: the loss hears one term alone"
        elif kind == "decayed" and min(numbers[::2]) >= _DECAYS and max(numbers[::2]) <= 1 and min(numbers[1::2]) >= _HEAVY_DECAY:
            found, advice = judge("terms_uneven", math.inf), _LIGHTER
            what = f"the squares of weights, times {short(numbers[1])}, make {percent(numbers[0])} of the loss"
            message = f"{what}: this penalty takes the weights to 0, whatever outputs become of it"
        elif kind == "entropy" and len(numbers) >= 2 * _LOOKS and _raises(numbers[::2], numbers[1::2]):
            found = judge("penalty_alone", 0.0, 0.0, numbers[0], is_entropy=True)
        elif kind == "entropy" and max(numbers[::2]) < 0:
            found, advice = judge("penalty_alone", 0.0, 0.0, numbers[0], is_entropy=True), _LOWERED
            message = f"the loss lowers the entropy of the outputs, at a weight of {short(-numbers[0])}, beside a policy gradient"
        return found and replace(found, message=message or found.message, advice=advice or found.advice, severity="warn")

    def _of_function(self, nodes: Sequence[Node]) -> Iterator[Finding]:
        """Yield what is wrong in the *nodes* of the loss function."""
        seen: set[str] = set()
        for node in nodes:
            name, before = graph_nodes.operation_of(node), graph_nodes.sources_of(node)
            shape = graph_nodes.shape_of(node)
            if name in _COMPARES and len(before) == 1:
                yield from self._compared(name, before[0], shape)
            if before:
                yield from self._aligned(node, before[0])
            is_distribution = (graph_nodes.normalised_by(node) or ("", 0))[0] == "LogSoftmax"
            source = _behind_moves(before[0]) if len(before) == 1 or is_distribution else None
            picked = None if source is None else _behind_moves(source, _PICKED)
            if picked is not None and (is_distribution or name in _OF_LOGITS):
                yield from self._logits("a distribution of logits" if is_distribution else _OF_LOGITS[name], picked)
            seen.add(name)
            is_sum = name == "Sub" and len(before) == 1 and seen.isdisjoint(_DISTANCES)
            is_divergence = is_sum and graph_nodes.operation_of(before[0]) == "Mul"
            taken = _behind_moves(graph_nodes.sources_of(before[0])[0]) if is_divergence else picked
            if taken is not None and (is_divergence or name in _OF_LOGARITHMS):
                yield from self._logarithms("kl_div" if is_divergence else _OF_LOGARITHMS[name], taken, only=is_divergence)
            is_softmax = source is not None and graph_nodes.operation_of(source) == "Softmax"
            rows = source if name == "Log" and is_softmax else node if name == "LogSoftmax" else None
            if rows is not None and moved_axes.mixes_classes(rows):
                scrambled = self._chosen.judge("samples_mixed", math.inf, 0.0)
                if scrambled is not None:
                    message = f"a view between the model and a softmax of {_of(rows)} mixes classes with the other axes"
                    yield replace(scrambled, message=message, advice=moved_axes.CLASSES_LAST)
            if name == "CtcLoss" and before and _mixes_samples(before[0]):
                stirred = self._chosen.judge("samples_mixed", math.inf, 0.0)
                if stirred is not None:
                    message = (
                        f"ctc_loss is given {_of(before[0])}, times first, by a view of samples first: it mixes samples and times"
                    )
                    yield replace(stirred, message=message, advice="exchange these axes: transpose(0, 1) in the place of a view")
            valued = self._chosen.judge("target_trained", 2.0) if _trains_advantage(node) else None
            yield from () if valued is None else (replace(valued, message=_VALUED, advice=_APART),)
            if name == "LogSoftmax" and _holds_itself(node):
                itself = self._chosen.judge("target_own", math.inf)
                if itself is not None:
                    message = f"the softmax of the loss, of {_of(node)} similarities, holds that of each sample to itself"
                    yield replace(itself, message=message, advice="mask the diagonal: masked_fill(torch.eye(n).bool(), -inf)")
            size = () if rows is None else graph_nodes.shape_of(rows)
            if len(size) == 2 and graph_nodes.axis_of(rows) == 0 and size[0] != size[1] and min(size) > 1:
                mixed = self._chosen.judge("samples_mixed", math.inf, 0.0)
                if mixed is not None:
                    message = f"the loss takes a softmax over axis 0 of {_of(rows)}: over the samples, and not over the classes"
                    yield replace(mixed, message=message, value=float(size[0]))

    def _logits(self, function: str, picked: Node) -> Iterator[Finding]:
        """Yield that a *function* of logits is given what a softmax, a sigmoid or a relu has made."""
        made = graph_nodes.operation_of(picked)
        given = f"{function} is given what a {made.lower()} has made, of shape {_of(picked)}"
        if made in ("Softmax", "Sigmoid"):
            found = self._chosen.judge("softmax_twice", math.prod(graph_nodes.shape_of(picked)[:1]), math.nan)
            yield from () if found is None else (replace(found, message=given),)
        elif made == "Relu" and function == _OF_LOGITS["LogSoftmax"]:
            found = self._chosen.judge("target_beyond", 1.0, 0.0, math.inf)
            yield from () if found is None else (replace(found, message=f"{given}: no output is below zero", advice=_BENT),)

    def _logarithms(self, function: str, taken: Node, *, only: bool) -> Iterator[Finding]:
        """Yield that a *function* of logarithms of probabilities has *taken* probabilities, or, but with *only*, logits."""
        made, rows = graph_nodes.operation_of(taken), graph_nodes.shape_of(taken)
        if made == "Softmax" or (made in _LINEAR and not only):
            what = "what a softmax has made" if made == "Softmax" else "the outputs of a layer as they are"
            twice = self._chosen.judge("softmax_twice", math.prod(rows[:1]), math.nan)
            if twice is not None:
                message = f"{function} is given {what}, of shape {_of(taken)}, and takes logarithms of probabilities"
                yield replace(twice, message=message, advice="give it log_softmax of the outputs of the last layer")

    def _of_sides(self, nodes: Sequence[Node]) -> Iterator[Finding]:
        """Yield that all of a loss compares two outputs that are both trained.

        Data that require a gradient, as those of a differential equation, are no weights: derivatives may well be compared.
        """
        leaves = [graph_nodes.leaf_of(each) for each in nodes if graph_nodes.operation_of(each) == "AccumulateGrad"]
        if len(nodes) <= _NODES and all(isinstance(each, nn.Parameter) for each in leaves) and _is_trained_twice(nodes[0]):
            found = self._chosen.judge("target_trained", 2.0)
            yield from () if found is None else (found,)

    def _of_slopes(self, nodes: Sequence[Node]) -> Iterator[Finding]:
        """Yield that all which a loss takes of parameters goes through operations whose slope is zero."""
        flat = [each for each in nodes if graph_nodes.operation_of(each) in _STEPS_ALONE]
        sloped = graph_nodes.nodes_before(nodes[0], _NODES, flat) if flat and len(nodes) <= _NODES else nodes
        if flat and all(graph_nodes.operation_of(each) != "AccumulateGrad" for each in sloped):
            found = self._chosen.judge("gradient_zero", 0.0)
            names = " and ".join(dict.fromkeys(graph_nodes.operation_of(each).lower() for each in flat))
            message = f"the loss takes the parameters through {names} alone, whose slope is zero: so are all gradients"
            yield from () if found is None else (replace(found, message=message, advice=_ROUNDED),)

    def _aligned(self, node: Node, source: Node) -> Iterator[Finding]:
        """Yield that a loss function is given what a softmax over another axis than that of its classes has made."""
        name, shape = graph_nodes.operation_of(node), graph_nodes.shape_of(source)
        axis = graph_nodes.axis_of(node) if name == "LogSoftmax" else _CLASSES.get(name)
        softmax, rows = _softmax_behind(source) if axis is not None and len(shape) > 1 else (source, None)
        if axis is None or rows is None or not bool((rows != rows.narrow(axis, 0, 1)).any()):
            return
        made = graph_nodes.axis_of(softmax) or 0
        are_pairs = graph_nodes.shape_of(softmax)[made] == shape[axis] and (len(shape) == 2 or name == "LogSoftmax")
        mixed = None if are_pairs else self._chosen.judge("samples_mixed", math.inf, 0.0)
        if mixed is not None:
            what = _OF_LOGARITHMS.get(name, "cross_entropy")
            message = f"{what} is given a softmax over axis {made} of {_of(softmax)}, and not over its classes"
            yield replace(mixed, message=message, advice=_OVER)

    def _compared(self, name: str, source: Node, shape: tuple[int, ...]) -> Iterator[Finding]:
        """Yield that outputs of shape ``(N, 1, ...)`` are compared with targets of ``(N, ...)``."""
        if graph_nodes.operation_of(source) == "Expand" and graph_nodes.sources_of(source):
            shape, (source, *_) = graph_nodes.shape_of(source), graph_nodes.sources_of(source)
        given = graph_nodes.shape_of(source)
        if _is_spread(shape, given):
            what = f"the loss ({name}) of outputs of shape {shape_text(given)}"
            found = self._chosen.judge("loss_broadcast", shape[0], shape[0] ** 2, what=what)
            yield from () if found is None else (found,)

    def _between(self, nodes: Sequence[Node]) -> list[Tensor]:
        """Return the parameters that the model does not hold, and that lie between its layers, or are of its passes.

        Several layers in a row before all of its own may be an encoder that is to stay as it is.
        """
        own = {id(each) for each in self._model.parameters()}
        leaves = {node: graph_nodes.leaf_of(node) for node in nodes if graph_nodes.operation_of(node) == "AccumulateGrad"}
        strange = [node for node, leaf in leaves.items() if isinstance(leaf, nn.Parameter) and id(leaf) not in own]
        if not strange or communicates(self._model):  # what ranks share is computed with by parameters that stand in for it
            return []
        before = {node: graph_nodes.sources_of(node) for node in nodes}
        above: dict[Node, list[Node]] = {}
        for node, sources in before.items():
            for each in sources:
                above.setdefault(each, []).append(node)
        users = {user for node, leaf in leaves.items() if id(leaf) in own for user in _users(node, before, above)}
        behind, ahead = _reached(before, users), _reached(above, users)
        by = {node: _users(node, before, above) for node in strange}
        is_used = {node: id(leaves[node]) in self._used for node in strange}
        first = [node for node in strange if is_used[node] and ahead.isdisjoint(by[node])]
        further = _reached(above, {user for node in first for user in by[node]})
        first = first if all(further.isdisjoint(by[node]) for node in first) else []
        inside = [node for node in strange if (is_used[node] or node in behind) and not ahead.isdisjoint(by[node])]
        return [leaf for node in (*first, *inside) if (leaf := leaves[node]) is not None]

    def _judge_strangers(self, epoch: int, step: int) -> None:
        left = [each for each, version in self._strangers if version_of(each) == version]
        self._strangers, self._is_judged = [], True
        found = self._chosen.judge("unmoved", float(step - self._first)) if left else None
        if found is not None:
            does, them = ("gets a gradient", "it") if len(left) == 1 else ("get gradients", "them")
            which = (
                f"{many(len(left), 'parameter')} that no module of the model holds, the first of shape {shape_text(left[0].shape)}"
            )
            where = "in its passes" if self._used else "between its layers"
            told = found.at("", epoch, step, f"{self._prefix}{which}, {does} {where}, and no optimizer moves {them}")
            self._found["unmoved"] = replace(told, advice=_LISTED, first_step=self._first)


def _users(leaf: Node, before: Mapping[Node, list[Node]], above: Mapping[Node, list[Node]]) -> list[Node]:
    """Return the operations that take the tensor of a *leaf*, or what one that takes nothing else has made of it."""
    users = above.get(leaf, [])
    while len(users) == 1 and len(before.get(users[0], ())) == 1 and above.get(users[0]):
        users = above[users[0]]
    return users


def _reached(following: dict[Node, list[Node]], begin: set[Node]) -> set[Node]:
    """Return what follows the nodes *begin*, without these unless they follow another."""
    seen: set[Node] = set()
    waiting = [each for node in begin for each in following.get(node, ())]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += following.get(node, ())
    return seen


def _is_spread(made: Sequence[int], given: Sequence[int]) -> bool:
    """Return whether ``(N, 1, ...)`` or ``(N, ...)`` was *given*, and each sample *made* beside each: ``(N, N, ...)``."""
    (samples, *_), rest = made or (0,), tuple(made[2:])
    is_square = len(made) > 1 and made[1] == samples >= _MANY
    return is_square and tuple(given) in ((samples, 1, *rest), (1, samples, *rest), (samples, *rest))


def _behind_moves(node: Node, moves: Sequence[str] = moved_axes.MOVES) -> Node:
    """Return the operation that has made the elements, behind those that change shape, order or type, or add an eps."""
    return graph_nodes.behind(node, moves, moved_axes.made_of)


def _mixes_samples(given: Node) -> bool:
    """Return whether what is *given* to ``ctc_loss``, times first, holds several samples in the place of one, by a view."""
    path, shape = [given], graph_nodes.shape_of(given)
    while (
        graph_nodes.operation_of(path[-1]) in (*moved_axes.MOVES, "LogSoftmax", "Slice")
        and len(before := moved_axes.made_of(path[-1])) == 1
    ):
        path += before
    known = [place for place, each in enumerate(path) if len(graph_nodes.shape_of(each)) == len(shape) == 3]
    size = graph_nodes.shape_of(path[known[-1]]) if known else ()
    moves = [each for each in path[: known[-1]] if graph_nodes.operation_of(each) != "LogSoftmax"] if known else []
    found = []
    for axis in (0, 1) if 1 < math.prod(size) <= moved_axes.ELEMENTS else ():
        if size[axis] == shape[1]:
            samples = torch.arange(shape[1], device="cpu").reshape([-1 if at == axis else 1 for at in range(3)]).expand(size)
            places = moved_axes.moved(moves, samples)
            found.append(places is not None and bool((places != places[:1]).any()))
    return bool(found) and all(found)


def _softmax_behind(node: Node) -> tuple[Node, Tensor | None]:
    """Return the softmax behind moves and a logarithm, and which of its sums each element belongs to then; None where unknown."""
    moves = []
    while graph_nodes.operation_of(node) in (*moved_axes.MOVES, "Log") and len(before := moved_axes.made_of(node)) == 1:
        moves.append(node)
        (node,) = before
    axis, made = graph_nodes.axis_of(node), graph_nodes.shape_of(node)
    if (
        graph_nodes.operation_of(node) not in ("Softmax", "LogSoftmax")
        or axis is None
        or not 1 < math.prod(made) <= 16 * moved_axes.ELEMENTS
    ):
        return node, None
    others = [1 if at == axis else size for at, size in enumerate(made)]
    return node, moved_axes.moved(moves, torch.arange(math.prod(others), device="cpu").reshape(others).expand(made))


def _trains_advantage(product: Node) -> bool:
    """Return whether a *product* is of log-probabilities of choices and of a difference that layers make, which is trained, too."""
    sides = graph_nodes.sources_of(product)
    if graph_nodes.operation_of(product) != "Mul" or len(sides) != 2 or graph_nodes.shape_of(product) == ():
        return False
    for likely, other in (sides, sides[::-1]):
        picks = [each for each in graph_nodes.nodes_before(likely, _OF_PICKS) if graph_nodes.operation_of(each) in _CHOOSES]
        soft = {graph_nodes.behind(graph_nodes.sources_of(each)[0], graph_nodes.KEEPS) for each in picks}
        logits = {one for each in soft for one in graph_nodes.sources_of(each)}
        held = [*graph_nodes.nodes_before(other, _OF_LOSS)]
        layers = [each for each in held if graph_nodes.operation_of(each) in graph_nodes.WEIGHTED]
        near = {graph_nodes.operation_of(each) for each in graph_nodes.nodes_before(other, _OF_LOSS, layers)}
        is_chance = any(
            (graph_nodes.normalised_by(each) or (graph_nodes.operation_of(each), 0))[0] == "LogSoftmax" for each in soft
        )
        if is_chance and layers and not near.isdisjoint(("Sub", "Rsub")) and logits.isdisjoint(held):
            return True
    return False


def _holds_itself(softmax: Node) -> bool:
    """Return whether a *softmax* is that of the products of all outputs with all outputs, and nothing leaves out any."""
    node = graph_nodes.behind(softmax, _SCALED, _but_numbers)
    before, shape = _but_numbers(node), graph_nodes.shape_of(node)
    if graph_nodes.operation_of(node) not in ("Mm", "Bmm", "CdistForward", "Cdist") or shape[-1:] != shape[-2:-1]:
        return False
    sides = {graph_nodes.behind(each, ("Div", *_VIEWS), lambda node: graph_nodes.sources_of(node)[:1]) for each in before}
    return len(before) == 2 and len(sides) == 1 and graph_nodes.operation_of(*sides) not in ("AccumulateGrad", *graph_nodes.TAKES)


def _but_numbers(node: Node) -> list[Node]:
    """Return the operations that an operation takes the results of, but for single numbers."""
    return [each for each in graph_nodes.sources_of(node) if graph_nodes.leaf_of(each) is None and graph_nodes.shape_of(each) != ()]


def _is_trained_twice(node: Node) -> bool:
    """Return whether a loss is a distance of two outputs with a gradient that share weights alone, or of two parts of one output.

    So is a sum of such losses, one minus a cosine, and the cross-entropy of one distribution against another.
    """
    above: set[str] = set()
    while (name := graph_nodes.operation_of(node)) in _REDUCES:
        before = graph_nodes.sources_of(node)
        before = (
            [each for each in before if graph_nodes.shape_of(each) != ()] if name == "Mul" and len(before) > 1 else before
        )  # without a scale
        if len(before) != 1:
            break
        above.add(name)
        (node,) = before
    before = [_behind_moves(each, graph_nodes.TURNS) for each in graph_nodes.sources_of(node)]
    name, made = graph_nodes.operation_of(node), {graph_nodes.operation_of(each) for each in before}
    if len(before) != 2:
        return False
    if len(terms := list(graph_nodes.terms_of(node))) > 1:
        return all(map(_is_trained_twice, terms))
    is_distance = name in _SQUARES or (name == "Sub" and not above.isdisjoint(_DISTANCES) and graph_nodes.shape_of(before[0]) != ())
    is_distance |= name == "Mul" and made == {"LogSoftmax", "Softmax"}
    are_units = made == {"Div"} and all(map(graph_nodes.is_unit, before))
    is_distance |= are_units and (name == "Mul" or (name == "Mm" and "Diagonal" in above))
    left, right = (set(graph_nodes.nodes_before(_behind_moves(each, graph_nodes.TAKES), _NODES)) for each in before)
    shared = {graph_nodes.operation_of(each) for each in left & right}
    is_apart = (
        shared <= {"AccumulateGrad", "T"}
        or (left == right and made <= set(graph_nodes.TAKES))
        or _are_parts(left - right, right - left)
    )
    return (is_distance and is_apart) or _is_divergence(node, trained=2)


def _is_divergence(node: Node, *, trained: int) -> bool:
    """Return whether an operation is kl_div, of whose two sides so many are *trained*, its target among them."""
    before = moved_axes.made_of(node)
    product = next((each for each in before if graph_nodes.operation_of(each) == "Mul"), None)
    is_divergence = graph_nodes.operation_of(node) == "Sub" and {*map(graph_nodes.operation_of, before)} == {"Xlogy", "Mul"}
    return is_divergence and product is not None and len(graph_nodes.sources_of(product)) >= trained


def _numbers_of(nodes: Sequence[Node], sent: Sequence[Tensor]) -> Iterator[Read]:
    """Yield what is *sent* backward, by what it is: ctc_loss has made it, it is never below zero, or of masked scores."""
    if any(graph_nodes.operation_of(node) == "CtcLoss" for node in nodes[:_OF_LOSS]):
        yield "lengths", sent[0].detach().abs().double().sum(), 0
    loss = next((each.detach() for each in sent if each.numel() == 1), None)
    if loss is not None and (kind := _distance(nodes[0])):
        yield kind, loss, 0
    if loss is not None and (classes := _masked_classes(nodes[0])):
        yield "masked", loss, classes


def _lost_of(loss: Tensor) -> Iterator[Read]:
    """Yield what a *loss* adds to the one of its terms that has a graph, a loss function of torch as it is, and how large it is."""
    terms = list(graph_nodes.terms_of(loss.grad_fn)) if graph_nodes.lacks_term(loss.grad_fn) else []
    own = graph_nodes.value_of(terms[0]) if len(terms) == 1 else None
    if own is not None and own.numel() == 1:
        whole = loss.detach().double().reshape(())
        yield "lost", torch.stack([whole - own.double(), whole.abs()]), 0


def _beyond_of(loss: Tensor) -> Iterator[Read]:
    """Yield how many targets of a *loss* are beyond what an activation returns which it compares with them, and their ends."""
    known = [(targets, range_of(made)) for made, targets in compared_in(loss) if targets is not None]
    held = [(targets.detach(), each.activation, each.low, each.high) for targets, each in known if each is not None]
    for at, (targets, name, low, high) in enumerate((*held, *_scaled_in(loss))):
        yield f"beyond {name.lower()} {at}", torch.stack([each.double() for each in beyond_numbers(targets, low, high).values()]), 0


def _scaled_in(loss: Tensor) -> Iterator[tuple[Tensor, str, Tensor, Tensor]]:
    """Yield targets that a *loss* written by hand subtracts from an activation times a number, its name, and what the ends are."""
    for node in graph_nodes.nodes_before(loss.grad_fn, _OF_LOSS):
        sides = list(errors_in(node)) if graph_nodes.target_of(node) is None else []
        if len(sides) != 1:
            continue
        ((first, error),) = sides
        made, width, is_trained = graph_nodes.scaled_by(first, error.device, graph_nodes.KEEPS)
        result, name = graph_nodes.result_of(made), graph_nodes.operation_of(made)
        if result is not None and name in BOUNDS and not is_trained and made is not first and result.numel() == error.numel():
            ends = torch.stack([width * each for each in BOUNDS[name]])
            yield width * result.detach().reshape(error.shape) - error.detach(), name, ends.min(), ends.max()


def _of_terms(loss: Tensor) -> Iterator[Read]:
    """Yield what stands beside each other in a *loss*: an entropy and a policy gradient, errors and a cross-entropy.

    Of the entropy it is the weight of p log(p), and the size of what the policy gradient weighs choices with; of errors their size,
    and how many times as much of the loss they make.
    """
    terms = list(graph_nodes.weighed_in(loss.grad_fn))
    labelled = [(node, weight) for node, weight in terms if graph_nodes.operation_of(node) in _OF_LABELS]
    known = [(weight * made).abs().sum() for node, weight in labelled if (made := graph_nodes.value_of(node)) is not None]
    errors = [one for each in graph_nodes.nodes_before(loss.grad_fn, _OF_LOSS) for _, one in errors_in(each)] if known else ()
    if errors and len(known) == len(labelled):
        beside, size = (
            torch.stack(known).sum().double(),
            torch.stack([each.double().square().mean().sqrt() for each in errors]).max(),
        )
        others = [weight.abs().to(loss.device) for node, weight in terms if graph_nodes.operation_of(node) not in _OF_LABELS]
        weight = torch.stack(others).max() if others else torch.ones((), device=loss.device)
        times = (loss.detach().double().abs().reshape(()) - beside) / beside
        yield "errors", torch.stack([size, times, weight.double()]), 0
    squares = [(leaf, weight) for node, weight in terms if (leaf := graph_nodes.squared_leaf(node)) is not None]
    if squares and len(squares) < len(terms):
        decay = torch.stack(
            [(weight.to(leaf.device) * leaf.detach().double().square().sum()).to(loss.device) for leaf, weight in squares]
        )
        heaviest = torch.stack([weight for _, weight in squares]).max().to(loss.device)
        yield "decayed", torch.stack([decay.sum() / loss.detach().double().reshape(()), heaviest]), 0
    yield from _begun_of(loss, terms)
    for share in _smoothed_in(terms):
        yield "smoothed", share.to(loss.device), 0
    for node, weight in terms:
        masks = _masks_of(node, by_layer=False) if graph_nodes.operation_of(node) == "Div" else []
        if masks:
            is_mask = torch.stack([((each == 0) | (each == 1)).all() for each in masks]).all()
            yield "overlapped", is_mask & (weight > 0).to(is_mask.device), 0
    if terms and all(_is_cosine_of_target(node) for node, _ in terms):
        yield "cosine", torch.stack([weight.to(loss.device) for _, weight in terms]).min() > 0, 0
    if len(terms) > 1 and all(graph_nodes.operation_of(node) == "Sigmoid" for node, _ in terms):
        signs = torch.stack([weight.to(loss.device).sign() for _, weight in terms])
        yield "scores", (signs.min() < 0) & (signs.max() > 0), 0  # one alone may be a share of pairs in the wrong order
    if ways := list(graph_nodes.scales_alike(loss.grad_fn, _OF_LOSS)):
        yield "volume", torch.stack([each.to(loss.device) for each in ways]).min(), 0
    kinds = ("Pow", "Exp")
    below = [[weight.to(loss.device) for node, weight in terms if graph_nodes.operation_of(node) == kind] for kind in kinds]
    if all(below):
        yield "divergence", torch.stack([torch.stack(each).min() < 0 for each in below]).all(), 0
    weights = [weight.to(loss.device) for node, weight in terms if graph_nodes.is_entropy(node)]
    nodes = [one for each, _ in terms for one in graph_nodes.nodes_before(each, _OF_LOSS)] if weights else ()
    held = [each for each in map(graph_nodes.constant_factor_of, nodes) if each is not None and each.numel() > 1]
    if held and not {"Gather", "Index"}.isdisjoint(map(graph_nodes.operation_of, nodes)):
        sizes = [torch.where(((each == 0) | (each == 1)).all(), 0.0, each.double().square().mean().sqrt()) for each in held]
        size = torch.stack(sizes).max()
        yield "entropy", torch.stack([torch.where(size == 0, 0.0, torch.stack(weights).sum()), size]), 0


def _begun_of(loss: Tensor, terms: Sequence[tuple[Node, Tensor]]) -> Iterator[Read]:
    """Yield a *loss*, and what a guess has of it; infinite where its labels are beyond 0 and 1, which make it large themselves."""
    if (guess := _guess_of(terms)) > 0:
        labels = [held for node, _ in terms if (held := graph_nodes.target_of(node)) is not None and held.is_floating_point()]
        beyond = [((each < 0) | (each > 1)).any() for each in labels]
        usual = torch.full((), guess, device=loss.device)
        usual = torch.where(torch.stack(beyond).any(), math.inf, usual) if beyond else usual
        yield "begun", torch.stack([loss.detach().double().reshape(()), usual]), 0


def _raises(weights: Sequence[float], sizes: Sequence[float]) -> bool:
    """Return whether an entropy of these *weights* drowns what a policy gradient weighs choices with, of these *sizes*."""
    return min(weights) >= _HEAVY and all(weight >= _OUTWEIGHS * size for weight, size in zip(weights, sizes, strict=True))


def _guess_of(terms: Sequence[tuple[Node, Tensor]]) -> float:
    """Return what a guess has of a loss that is a mean cross-entropy, or several halves of one, by its *terms*; 0 of another one.

    Nor is it known of cosines times a scale, or of labels that weigh more; logits that a layer makes are judged by its outputs.
    """
    if not terms or abs(float(sum(weight for _, weight in terms)) - 1) > _SAME_LOSS:
        return 0.0
    guesses: set[float] = set()
    for node, _ in terms:
        soft = graph_nodes.behind(next(iter(graph_nodes.sources_of(node)), node), graph_nodes.KEEPS)
        is_soft = graph_nodes.operation_of(node) == "NllLoss" and graph_nodes.operation_of(soft) == "LogSoftmax"
        scores = graph_nodes.behind(graph_nodes.sources_of(soft)[0], graph_nodes.KEEPS) if is_soft else soft
        is_mean = getattr(node, "_saved_reduction", 0) == _MEAN and not graph_nodes.is_weighed(node)
        is_layer = graph_nodes.operation_of(scores) in (*graph_nodes.WEIGHTED, "Add") and graph_nodes.takes_leaf(scores)
        if not is_mean or (is_soft and is_layer):
            guesses.add(0.0)
        elif is_soft:
            is_scaled = any(
                map(graph_nodes.is_unit, graph_nodes.nodes_before(scores, _OF_LOSS))
            )  # cosines, with a margin or without
            guesses.add(0.0 if is_scaled else math.log(graph_nodes.shape_of(soft)[-1]))
        else:
            guesses.add(math.log(2) if graph_nodes.operation_of(node) == "BinaryCrossEntropyWithLogits" else 0.0)
    return min(guesses)


def _smoothed_in(terms: Sequence[tuple[Node, Tensor]]) -> Iterator[Tensor]:
    """Yield how much of each target a label smoothing takes, of the *terms* of a loss and their weights."""
    for node, weight in terms:
        sums, mask = graph_nodes.behind(node, ("MaskedFill", "Neg")), getattr(node, "_saved_mask", None)
        logs = graph_nodes.sources_of(sums) if isinstance(mask, Tensor) and graph_nodes.operation_of(sums) == "Sum" else []
        for other, beside in terms:
            if mask is not None and logs and graph_nodes.operation_of(other) == "NllLoss" and graph_nodes.sources_of(other) == logs:
                part = weight * mask.logical_not().sum() * graph_nodes.shape_of(*logs)[-1]
                yield part / (part + beside)


def _constants_of(node: Node, device: torch.device, samples: Collection[int]) -> Iterator[Read]:
    """Yield what an operation keeps before its backward pass: how many labels are the blank, and how wide cosines are.

    *samples*: how many a pass was given.
    """
    name, before = graph_nodes.operation_of(node), graph_nodes.sources_of(node)
    if (blanks := graph_nodes.blanks_of(node)) is not None:
        yield "blank", *blanks
    if name == "NllLoss":
        yield from _labels_of(node, samples)
    if (labels := graph_nodes.target_of(node)) is not None and name in _CLASSES:
        left_out, counted = graph_nodes.left_out_of(node), labels != graph_nodes.left_out_of(node)
        one = torch.where(counted, labels, -1).max()
        is_class = left_out in range(graph_nodes.shape_of(before[0])[1])
        alone = ((labels == one) | ~counted).all() & (one >= 0) & ((~counted).double().mean() >= _LEFT_OUT)
        yield from (("alone", alone, left_out),) if is_class else ()
    if name in _OF_OUTPUTS and before:
        yield from (
            ("dropout", share, 0) for share in dropped_numbers([graph_nodes.behind(before[0], graph_nodes.KEEPS)], {}).values()
        )
    yield from (("signs", share, 0) for share in _without_sign(node))
    best = graph_nodes.behind(before[0], graph_nodes.KEEPS) if name in _SQUARES and len(before) == 1 else None
    scores = graph_nodes.sources_of(best)[:1] if best is not None and graph_nodes.operation_of(best) in ("Max", "Amax") else []
    rows = [
        graph_nodes.shape_of(each) for each in scores if graph_nodes.operation_of(each) in (*graph_nodes.WEIGHTED, "Add", "Sub")
    ]
    if rows and len(rows[0]) == 2 and graph_nodes.shape_of(best)[:1] == rows[0][:1]:
        yield "best", torch.ones((), device=device), rows[0][1]
    factor, made = graph_nodes.constant_factor_of(node), graph_nodes.shape_of(node)
    if factor is not None and _is_spread(made, factor.shape) and _is_spread(made, graph_nodes.shape_of(before[0])):
        yield "spread", torch.ones((), device=device), made[0]
    if name == "Div" and (mask := _overlap_of(node)) is not None:
        yield "overlap", ((mask == 0) | (mask == 1)).all(), 0
    sides = [graph_nodes.behind(each, (*graph_nodes.KEEPS, "Add")) for each in before]
    is_difference = name == "Sub" and len(sides) == 2 and len(graph_nodes.shape_of(node)) <= 1
    if is_difference and (
        node.next_functions[0] == node.next_functions[1] or (sides[0] is not sides[1] and graph_nodes.are_equal(*sides))
    ):
        yield "cancelled", torch.ones((), device=device), 0
    target, logs = graph_nodes.constant_factor_of(node), graph_nodes.behind(node, ("Mul", "Sub", "Neg", *graph_nodes.KEEPS))
    if target is not None and graph_nodes.operation_of(logs) == "LogSoftmax" and graph_nodes.shape_of(logs) == target.shape:
        off, off_samples = ((target.sum(axis) - 1).abs().max() for axis in (graph_nodes.axis_of(logs) or 0, 0))
        sums = target.double().sum(graph_nodes.axis_of(logs) or 0)
        are_labels = ((target == 0) | (target == 1)).all() & (sums.mean() > 1)
        are_classes = len(set(target.shape)) == target.dim()  # and no pairs of samples, of which one may have several
        yield "several", torch.where(are_labels, sums.mean(), 0.0) * are_classes, 0
        yield "turned", (target.min() > 0) & (off > _OFF) & (off_samples < _OFF / 10), 0
    soft = graph_nodes.behind(before[0], graph_nodes.KEEPS) if name in _CHOOSES and before else node
    if graph_nodes.operation_of(soft) == ("Logsumexp" if soft is node else "LogSoftmax"):
        width = graph_nodes.width_of_cosines(graph_nodes.sources_of(soft)[0], device, (*graph_nodes.MOVES, *_MASKS))
        if width is not None:
            yield "width", width, 0


def _without_sign(node: Node) -> Iterator[Tensor]:
    """Yield which share of the labels that an operation takes for -1 or 1, as a hinge does, are neither; 0 of some other ones."""
    before, name = graph_nodes.sources_of(node), graph_nodes.operation_of(node)
    labels = graph_nodes.target_of(node) if name == "SoftMarginLoss" else None
    margin = graph_nodes.behind(before[0], graph_nodes.KEEPS) if name in _HINGES and before else node
    if (
        margin is not node
        and graph_nodes.operation_of(margin) in ("Rsub", "Sub", "Add")
        and len(made := moved_axes.made_of(margin)) == 1
    ):
        labels = graph_nodes.constant_factor_of(graph_nodes.behind(made[0], (*graph_nodes.KEEPS, "Neg")))
    if labels is not None and labels.numel() > 1:
        labels = labels.double()
        top = labels.abs().max()
        are_two = ((labels == 0) | (labels == top)).all() | ((labels == 0) | (labels == -top)).all()
        yield torch.where(are_two & (top == 1), (labels == 0).double().mean(), 0.0)
    sides = {graph_nodes.operation_of(one) in _HINGES: each for each in before for one in graph_nodes.sources_of(each)}
    masks = [graph_nodes.condition_of(each) for each in sides.values()] if name == "Add" and len(sides) == len(before) == 2 else []
    if len(masks) == 2 and all(each is not None and each.dim() == 1 for each in masks):
        yield torch.eq(*masks).double().mean()  # type: ignore[arg-type]


def _overlap_of(division: Node) -> Tensor | None:
    """Return the mask whose product with the outputs of a layer a *division* by their sum begins with; None of another one."""
    return next(iter(_masks_of(division, by_layer=True)), None)


def _masks_of(division: Node, *, by_layer: bool) -> list[Tensor]:
    """Return the masks whose products with outputs, of a layer as they are or of anything, a *division* by their sum adds up."""
    sides = [list(graph_nodes.nodes_before(each, _OF_SUMS)) for each in graph_nodes.sources_of(division)]
    products = [each for each in sides[0] if graph_nodes.constant_factor_of(each) is not None] if len(sides) == 2 else []
    found = []
    for each in products:
        made = graph_nodes.behind(graph_nodes.sources_of(each)[0], graph_nodes.KEEPS)
        sums = [one for one in sides[1] if graph_nodes.operation_of(one) == "Sum"]
        summed = (graph_nodes.behind(one, ("Sum", *graph_nodes.KEEPS)) for one in sums)
        is_summed = any(made is one or graph_nodes.are_equal(made, one) for one in summed)
        mask = graph_nodes.constant_factor_of(each)
        is_wanted = not by_layer or graph_nodes.operation_of(made) in _LINEAR
        found += [mask] if is_summed and mask is not None and mask.numel() > 1 and is_wanted else []
    is_rest = any(graph_nodes.operation_of(each) in ("Sub", "Rsub", "Neg") for each in sides[0]) if len(sides) == 2 else True
    return [] if is_rest and not by_layer else found


def _labels_of(node: Node, samples: Collection[int]) -> Iterator[Read]:
    """Yield of the labels of a cross-entropy whether all are one, of pairs, and how many it leaves out, of single *samples*."""
    labels, left_out = graph_nodes.target_of(node), graph_nodes.left_out_of(node)
    (logs, *_), size = graph_nodes.sources_of(node), 0 if labels is None else labels.numel()
    classes = graph_nodes.shape_of(logs)[-1:]
    if labels is not None and size in samples and left_out in range(*classes):
        share = (labels == left_out).sum() / size
        yield "ignored", torch.where(share * classes[0] <= _AS_MANY, share, 0.0), left_out
    scores = graph_nodes.behind(logs, _SCALED, _but_numbers)
    are_pairs = classes == (size,) and graph_nodes.operation_of(scores) in ("Mm", "CdistForward", "Cdist")
    if labels is not None and are_pairs and size >= _MANY and not graph_nodes.takes_leaf(scores):
        yield "alike", (labels == labels[0]).all(), size


def _masked_classes(node: Node) -> int:
    """Return of how many classes a loss is a mean cross-entropy, some of whose scores a mask has replaced; 0 for another one."""
    node = graph_nodes.behind(node, (*graph_nodes.KEEPS, *_PICKS))
    axis, shape = graph_nodes.axis_of(node), graph_nodes.shape_of(node)
    scores = graph_nodes.behind(graph_nodes.sources_of(node)[0], (*graph_nodes.MOVES, "Div", "Mul")) if axis is not None else node
    is_masked = graph_nodes.operation_of(node) == "LogSoftmax" and graph_nodes.operation_of(scores) in _MASKS
    return shape[axis] if is_masked and axis is not None else 0


def _is_cosine_of_target(node: Node) -> bool:
    """Return whether an operation multiplies outputs that are divided by their norms with numbers that have no graph."""
    before = graph_nodes.sources_of(node)
    is_product = graph_nodes.operation_of(node) == "Mul" and len(before) == 1
    factor = graph_nodes.constant_factor_of(node) if is_product else None
    is_of_vectors = factor is not None and factor.shape == graph_nodes.shape_of(node) and factor.dim() > 1
    return is_of_vectors and graph_nodes.is_unit(graph_nodes.behind(before[0], graph_nodes.MOVES))


def _distance(node: Node) -> str:
    """Return what a loss is a multiple of that is never below zero: a squared error, Huber's or a divergence, or a cross-entropy.

    ``""`` of another one.
    """
    while graph_nodes.operation_of(node) in ("Mul", "Div", "Neg") and graph_nodes.shape_of(node) == ():
        before = graph_nodes.sources_of(node)
        if len(before) != 1:
            return ""
        (node,) = before
    node = graph_nodes.behind(node, ("Mean", "Sum", "Div"))
    name = graph_nodes.operation_of(node)
    is_distance = name in _SQUARES or _is_divergence(node, trained=1)
    return _DISTANCE if is_distance else _ENTROPY if _OF_LOGARITHMS.get(name) == "nll_loss" else ""


def _are_parts(one: Collection[Node], other: Collection[Node]) -> bool:
    """Return whether the nodes of *one* side and of the *other* begin with parts of one output."""
    of_one, of_other = (
        {graph_nodes.sources_of(each)[0] for each in side if graph_nodes.operation_of(each) in graph_nodes.TAKES}
        for side in (one, other)
    )
    return bool(of_one) and of_one == of_other


def _of(node: Node) -> str:
    return shape_text(graph_nodes.shape_of(node))
