"""Judge the numbers of training passes: what outputs depend on, which targets they are given, if they tell samples apart."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.multiprocessing.reductions import StorageWeakRef

from sonde.inspector.batch_look import EACH, PASSES, Depends, Look, Table, class_axes
from sonde.inspector.dependence import is_graph_operation, is_statistic
from sonde.inspector.regression_targets import COSINE
from sonde.inspector.target_reading import AHEAD
from sonde.rules import DEAD_SAMPLES, Chosen, Finding, among
from sonde.words import percent, shape_text, short

_ALONG, _ACROSS, _TURNED = 0, 1, 2  # tokens as (samples, places), as (places, samples), and labels of outputs in the other order
_OTHER_ORDER = "the loss compares the outputs of one place with the targets of another: one goes by samples, the other by places"
_TRANSPOSED = "transpose or permute its axes, where view or reshape is called"
_UNUSED = (
    "look at what stands between the input and the outputs: a mean or maximum over samples, a detach or no_grad, noise in the "
    "place of a sample, a product with zero, what is subtracted from itself, samples that are taken for places (batch_first)"
)
_SAME_ORDER = "look for a transposition before a view that is made of outputs and not of targets, or the other way round"
_MATCHES, _DIFFERS = 0.99, 0.9  # share of the labels that are tokens at one place, and that are not at any other
_SEVERAL = 1.5  # labels of a sample, beside one of its softmax
_LABELS = 16  # of a pass, with fewer no place is known
_OFF = 0.02  # of a gradient in half precision, rounding of its sum
_NOTHING = 1e-6  # of a gradient, rounding
_BOUNDED = ("Sigmoid", "Tanh")
_DOMINATES = 100.0  # times as large as at another output is a gradient of targets that are not scaled
_DROWNS, _STEADY = 2.0, 0.1  # weight of an entropy, beside rewards of size 1; by which it differs from pass to pass
_SURELY = 3.0  # errors of a number that is read off a gradient with noise
_ENTROPY = 0.1  # of a gradient that is no entropy's
_MOST = 0.7  # of the passes
_HARDLY = 1e-3  # of what an output depends on
_SPARE = 8  # samples more than there are classes
_OWN, _VARIED = 1e-10, 0.05  # of a gradient that is no multiple of outputs, rounding; of the size of outputs that vary
_DIFFERENCES = ("Sub", "Rsub", "Abs", "Pow", "Mul")  # what makes an error, which may be what is returned
_SCALED = ("Mm", "Mul", "Div", "Bmm", "UnsafeView", "Add", "Sub")  # by which logits are made that no layer has made
_SCALES = "look at what multiplies the outputs: a temperature, a scale, a missing 1 / sqrt(size)"
_IDLE = (
    "look at what picks a column: an index that is always the same, a slice, a mask; and whether more columns are made than needed"
)
_PLACES_READ = (
    "look at the lengths, the slice or the mask that picks what the loss reads (input_lengths of ctc_loss count the places of the "
    "output): what the model returns at the others is never learnt"
)
_TEMPERATURE = (
    "look at what multiplies the similarities: divide them by a temperature (0.05 to 0.1 is usual), or multiply them by its inverse"
)
_LOGITS = "leave the last activation out: the loss takes logits, and makes probabilities of them itself; or scale what it returns"
_CUT_OFF = (
    "look whether what else is to train the outputs is cut off (log-probabilities behind a detach or no_grad), whether rewards or "
    "advantages are zero, and at the weight of the entropy"
)
_LAST_RELU = "leave the last activation out: outputs below zero are cut, and get no gradient"
_LAST_CUT = "leave it out while training: what is cut off gets no gradient; cut predictions where they are used"
_CUTS = ("Relu", "Clamp", "ClampMin", "ClampMax", "Hardtanh")
_RATE = "lower its rate, which is the share that is dropped, and not that which is kept; and give it training=self.training"
_SHARP = (
    "look at what multiplies the scores of the attention (a missing 1 / sqrt(size), a temperature), at initial weights, and at a "
    "missing normalisation"
)
_ONE_LABEL = "all targets of the first {passes:,} training passes are {label}: each of them pushes the output the same way"
_WEIGHTLESS = (
    "look for a weight of zero, a mask that holds nothing, an argmax or a detach() in that term, a bound that all samples keep, a "
    "clamp"
)
_ADDED = "scale it to the size of what it is added to: its initial values, a missing division, a normalisation of each side"
_FEW = 0.1  # of the samples of a pass
_PICKED = "look at the mask or index that picks what the loss reads: some classes are never learnt"
SHUT_LOOKS = 2
"""First looks, in which a tanh or sigmoid has next to no slope: that it has begun so."""
_PIECEWISE = (
    "the second derivative of the outputs by what goes in, which the training asks for, is zero everywhere: all activations are "
    "made of straight pieces"
)
_SMOOTH = "use an activation that has a second derivative, as nn.Tanh, nn.SiLU or nn.Softplus, or the sine"
_UNGRAPHED = (
    "a term of the loss has no graph, and derivatives of the outputs by what goes in are taken without one: no gradient of that "
    "term comes to the weights"
)
_GRAPHED = "take the derivatives by torch.autograd.grad(..., create_graph=True)"
_AS_NUMBER = "look for what makes a number of it: item(), float(), detach(), .data, numpy(), torch.tensor(), or no_grad() around it"
_CHANGES, _PART = 2e-3, 0.1  # of what a loss adds up, its deviation from pass to pass; and its share of the loss
_SHUT = 1e-3  # mean slope, of the largest: of a sigmoid of -8
_DEAD_LOOKS = 2  # one after the other, in which all units of a layer were dead
_TABLE = 2  # by which a table of similarities may be no square, as without those to itself
_SQUARE = 8  # samples whose similarities are a table of classes
_ALIKE = 3e-7  # of the size of outputs, rounding
_SEEN = 17  # looks, after which it is told that outputs are alike
_UNLIKE = 0.8  # as far as any two are samples apart that stand next to each other, and are in no order
_INPUTS = 8  # that are compared with targets
_UNSCALED = 30.0  # times as large as what a generator makes
_FAR = 8.0  # times as large as all targets of its shape
_EXACT = 1e-8  # of a gradient that is the difference to a target, rounding
_OFTEN = 10  # looks at the rows of an embedding that are needed
_MOST_AXES = 8
_PLACES = 30.0  # times as near to each other outputs with places must have come
_STEPS = (
    "look at batch_first: the layer takes (steps, samples, features), and (samples, steps, features) where it is True; and at a "
    "transposition before it"
)
_ALONE = "an output depends on the token at its own place alone, though the model has attention: no place reads another"
_PADDING_TRAINED = "what is trained of the model reads the padding of a sample, and not its tokens"
_AXES = (
    "look along which axis a softmax, a normalisation, a mean, a sum or a sort runs: of the two of what goes in one is that of "
    "samples; at dim=, at batch_first, and at views between them"
)
_MASK = "look at the mask of the attention (which way round it is), and along which axis its softmax runs"
_SOME = (
    "look at what stands between the input and the outputs: a mask, a place of padding that is read, units that are dead, an index "
    "or a choice that is the same for these samples"
)
_EVEN = "look at label_smoothing, at a temperature, and at what makes the targets: a teacher or a labeller that is sure of nothing"
_SIGN = "look at the sign of the loss, and at maximize=True of the optimizer"
_NO_LOSS = (math.nan,) * 4  # of which the gradient tells
_PADDING = (10.0, 3.0)  # times as much as on a token depends on a place of padding what reads it; where attention can leave it out
_SENTINEL = ("code", "coded", "nearest", "alone")
_ROUNDING = 1e-3  # of a number that is read off gradients
_HALF, _HARDLY_LESS = 0.5, 0.9  # of the samples; of the first error, as is left where a loss of squares has not fallen by a fifth
_TRIED = 100  # steps in which outputs have come nearer to their targets
_SETTLED, _LONG = 50, 1000  # steps after which a training has begun to learn, and after which it should have
_EXPLAINED = 0.02  # of what targets vary
_NO_BETTER = "the cross-entropy is no less than that of a guess by how often each label comes"
_GUESS = "outputs explain {share} of what the targets vary: the error is that of returning their mean for all samples"
_KEPT, _LAST = 6, 3  # looks at distances that are needed; of these the last


class BatchFindings:
    """Judges training passes, in their order.

    Attributes:
        axes: of an output those that may be of classes, as far as is known.

    Args:
        chosen: the rules that are applied.
        part: the module whose passes these are.
        tables: its embeddings, by the name of the parameter.
    """

    def __init__(self, chosen: Chosen, part: str, tables: Mapping[str, Table]) -> None:
        self._chosen, self._part, self._tables = chosen, part, tables
        self._first_step: int | None = None
        self._outputs: list[str] = []  # names of those of the last pass
        self._history: dict[tuple[Any, ...], list[Any]] = defaultdict(list)  # what was read of each pass, see _so_far
        # what passes took, whether a gradient comes to it, whether a model has made it, and their one label
        self._kinds: deque[tuple[StorageWeakRef, bool, bool, float]] = deque(maxlen=2 * PASSES)
        self._dead: dict[str, list[int]] = {}  # by layer: the steps in a row up to now in which its activation was zero throughout
        self._before: Look | None = None
        self.axes = {*range(1, _MOST_AXES)}
        self._has_attention = False
        self._padded = self._mixed = self._unread = 0  # looks that found the padding read alone, samples mixed, and no input read
        self._is_cut = False  # no input was read by the first output, and one by others
        self._viewed = 0  # and an input whose axes a view has exchanged

    def of(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield what one pass shows, beside those before it."""
        self._first_step = look.step if self._first_step is None else self._first_step
        self._outputs = look.outputs
        yield from self._of_labels(look, numbers)
        yield from self._of_other_labels(look, numbers)
        yield from self._of_sums(numbers)
        yield from self._of_dead(look, numbers)
        yield from self._of_shut(look, numbers)
        yield from self._of_derivatives(look, numbers)
        yield from self._of_lost(look, numbers)
        yield from self._of_distances(look, numbers)
        yield from self._of_dependence(look, numbers)
        yield from self._of_range(look, numbers)
        yield from self._of_regression(look, numbers)
        yield from self._of_ways(look, numbers)
        yield from self._of_repeats(look, numbers)
        yield from self._of_generated(look, numbers)
        yield from self._of_few(look, numbers)
        yield from self._of_indices(numbers)
        yield from self._of_norms(numbers)
        yield from self._of_attention(numbers)
        yield from self._of_dropped(numbers)

    def _so_far(self, *name: Any, value: Any = None) -> list[Any]:
        """Return all values that were given by this *name*, of the passes in their order, this one last, if there is one."""
        values = self._history[name]
        if value is not None:
            values.append(value)
        return values

    def _by(self, name: str) -> dict[tuple[Any, ...], list[Any]]:
        """Return all values whose name begins with *name*, by the rest of it."""
        return {key[1:]: values for key, values in self._history.items() if key[0] == name and values}

    def _of_labels(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that labels are alike: how many each pass had, and their one class, NaN of several; of first passes, of others."""
        axis, labels_of_pass = _class_axis(look, numbers), self._so_far("labels", look.number)
        yield from self._of_all_classes(look, numbers)
        labels = numbers.get(f"labels {len(look.shape) - 1}", 0.0)
        shared = numbers.get("shared", 0.0)
        several = self._so_far("several", value=labels or (shared if shared >= _SEVERAL else None))
        if len(several) >= _OFTEN:
            yield self._chosen.judge("labels_several", statistics.mean(several), 1.0, math.inf, 0.0, is_read=True)
        if axis is not None:
            self.axes = {axis}
            if look.step == self._first_step and look.number == 0 and look.made_by in _SCALED:
                begun = numbers[f"loss {axis}"], math.log(look.shape[axis]), numbers["size"]
                found = self._chosen.judge("begins_large", *begun)
                yield None if found is None else replace(found, advice=_SCALES, quantity="output")
            won = numbers[f"won {axis}"]
            self._so_far("won", value=None if look.number or look.step < _SETTLED or math.isnan(won) else won)
            yield self._told_guess() if look.step >= _LONG else None
            low, high = numbers[f"low {axis}"], numbers[f"high {axis}"]
            labels_of_pass.append((numbers["reached"], low if low == high else math.nan))
            times, top, heavy, often = (numbers[f"{name} {axis}"] for name in ("times", "top", "heavy", "often"))
            found = self._chosen.judge("weight_of_many", times, top) or self._chosen.judge("weight_of_many", 0.0, often, heavy)
            weighs = self._so_far("weighs", value=found or False)
            yield weighs[-1] if len(weighs) >= _OFTEN and all(weighs) else None
        elif self.axes and (sure := max(numbers.get(f"sure {each}", -1.0) for each in self.axes)) >= 0:
            labels_of_pass.append((numbers["reached"], sure))
        elif "one 0" in numbers:
            labels_of_pass.append((numbers["reached"], float(f"{numbers['least 0']:.3g}") if numbers["one 0"] else math.nan))
        elif "zeros" in numbers:
            same = 0.0 if numbers["zeros"] else 1.0 if numbers["ones"] else math.nan
            yield from self._of_kinds(look, same)
            labels_of_pass.append((numbers["reached"], same))
        else:
            return
        firsts, *rest = [each for _, each in sorted(self._by("labels").items())]  # the first pass of a step may train nothing
        others = [each for held in rest for each in held]
        singles = [each for _, each in firsts if not math.isnan(each)]
        classes, are_all = set(singles), len(singles) == len(firsts)
        if len(singles) < _MOST * len(firsts):
            return
        is_sorted = (
            len(classes) > 1 and "one 0" not in numbers and axis is not None and all(count >= DEAD_SAMPLES for count, _ in firsts)
        )
        if is_sorted or (are_all and len(classes) == 1 and classes >= {each for _, each in others}):
            counts = sum(count for count, _ in (*firsts, *others))
            yield self._chosen.judge("labels_alike", counts, float(len(firsts)), float(len(classes)), is_each=are_all)

    def _of_all_classes(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that the targets of a cross-entropy are one distribution, or that it is maximised."""
        axis = len(look.shape) - 1
        if f"even {axis}" in numbers:
            even = self._so_far("even", look.number, value=numbers[f"even {axis}"])
            if len(even) >= _OFTEN and not any(map(math.isnan, even)):
                found = self._chosen.judge("labels_alike", math.inf, float(len(even)), 1.0)
                message = f"the targets of all samples are one distribution over the classes, the likeliest of {short(even[-1])}"
                yield found and replace(found, message=message, advice=_EVEN)
        down = self._so_far("down", look.number, value=numbers.get(f"raised {axis}", 0.0) >= _MATCHES)
        if len(down) >= _OFTEN and all(down):
            found = self._chosen.judge("loss_unbounded", *_NO_LOSS, is_maximised=True)
            yield found and replace(found, advice=_SIGN)

    def _of_other_labels(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that the labels of a further output are alike."""
        for at in range(1, len(look.outputs)):
            if numbers.get(f"labelled {at}", 0.0) > 0:
                labels = self._so_far("labelled", at, look.number, value=(numbers[f"labelled {at}"], numbers[f"label {at}"]))
                firsts = self._so_far("labelled", at, 0) or labels
                classes = {each for _, each in firsts}
                if len(classes) == 1 and not any(map(math.isnan, classes)):
                    counts = sum(count for count, _ in firsts)
                    found = self._chosen.judge("labels_alike", counts, float(len(firsts)), 1.0)
                    yield found and replace(found, site=f"{self._part}:output{look.outputs[at]}")

    def _of_sums(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that something which is added to activations leaves nothing of these."""
        for name in (each.removeprefix("added ") for each in numbers if each.startswith("added ")):
            found = self._chosen.judge("weight_large", numbers[f"added {name}"], numbers[f"beside {name}"], is_added=True)
            yield found and replace(found, message=f"{name}: {found.message}", advice=_ADDED, site=f"{name}:param")

    def _of_dead(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that all units of layers are dead, by the activation behind them, in one look after the other."""
        for name in (each.removeprefix("dead ") for each in numbers if each.startswith("dead ")):
            self._dead[name] = [*self._dead.get(name, ()), look.step] if numbers[f"dead {name}"] else []
        names = [name for name, steps in self._dead.items() if len(steps) >= _DEAD_LOOKS and steps[-1] == look.step]
        found = self._chosen.judge("dead", 1.0) if names else None
        if found is not None:
            bias, rest = (numbers.get(f"{each} {names[0]}", math.nan) for each in ("bias", "rest"))
            does = f"look at what sets its bias first: it is {short(bias)} on average, where the weight adds {short(rest)} in size"
            advice = f"{does}; then {found.advice}" if -bias > rest else found.advice
            message = among(names, f"{found.message}: all that the activation behind it returns is zero")
            first = self._dead[names[0]][0]
            yield replace(found, message=message, site=f"{names[0]}:output", advice=advice, places=tuple(names), first_step=first)

    def _of_shut(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that the bias of layers shuts the tanh, sigmoid or softmax behind them from the beginning."""
        for name in (each.removeprefix("shut ") for each in numbers if each.startswith("shut ")):
            slope, bias, rest = (numbers[f"{each} {name}"] for each in ("shut", "bias of", "rest"))
            looks = self._so_far("shut", name, value=slope if slope < _SHUT and bias > rest else math.inf)
            found = self._chosen.judge("flat", max(looks)) if len(looks) == SHUT_LOOKS else None
            if found is not None:
                message = f"{name}: what the tanh, sigmoid or softmax behind it returns is {found.message}"
                does = f"look at what sets its bias: it is of size {short(bias)}, where the weight adds {short(rest)}"
                yield replace(found, message=message, site=f"{name}:output", advice=does, severity="bad")

    def _of_derivatives(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that second derivatives of the outputs are zero, or that first ones are in a loss that has no graph of them."""
        sizes = [numbers[f"derivative {at}"] for at in range(look.derivatives)]
        is_zero = look.is_piecewise and 0 in sizes and max(sizes) > 0
        zeros = self._so_far("second", look.number, value=is_zero or (False if sizes else None))
        if len(zeros) >= _KEPT and all(zeros):
            found = self._chosen.judge("gradient_zero", 0.0)
            yield found and replace(found, message=_PIECEWISE, advice=_SMOOTH, site=f"{self._part}:input")
        lacks = self._so_far("lacks", look.number, value=look.lacks_term or (False if look.is_ungraphed else None))
        if len(lacks) >= _KEPT and all(lacks):
            found = self._chosen.judge("gradient_zero", 0.0)
            yield found and replace(found, message=_UNGRAPHED, advice=_GRAPHED, site=f"{self._part}:input")

    def _of_lost(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that a loss adds up a number that changes from pass to pass and has no graph."""
        is_read = math.isfinite(numbers.get("lost", math.nan))
        losses = self._so_far("lost", look.number, value=(numbers["lost"], numbers["whole"]) if is_read else None)
        added, wholes = zip(*losses, strict=True) if len(losses) >= _KEPT else ((), ())
        if added and statistics.pstdev(added) >= _CHANGES * abs(statistics.mean(added)):
            most, whole = statistics.median(map(abs, added)), statistics.median(wholes)
            found = self._chosen.judge("gradient_zero", 0.0) if most >= _PART * whole else None
            message = f"a term of the loss, {short(most)} of {short(whole)}, has no graph: no gradient of it comes to the weights"
            yield found and replace(found, message=message, advice=_AS_NUMBER)

    def _of_distances(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that outputs are alike, from the first pass on, or have come to be."""
        if "apart" not in numbers or not math.isfinite(numbers["size"]):
            return
        distances = self._so_far("apart", value=(numbers["apart"], numbers["size"]))
        if len(distances) >= _KEPT:
            more = _PLACES if len(look.shape) > 2 else 1.0  # places first learn what comes anywhere
            judged = [
                self._chosen.judge("outputs_alike", more * apart, size, distances[0][0]) for apart, size in distances[-_LAST:]
            ]
            yield replace(judged[-1], first_step=look.step) if judged[-1] is not None and all(judged) else None
            are_one = numbers.get("differ", 0.0) > 0 and numbers["size"] > 0
            are_one &= all(apart <= _ALIKE * size for apart, size in distances)
            same = self._so_far("same", value=numbers.get("same"))
            is_known = len(distances) > _SEEN  # by then it is known what is dead, which explains it
            if is_known and len(same) >= _KEPT and all(each >= _HALF for each in same[:_KEPT]) and not are_one:
                found = self._chosen.judge("input_unused", 2, 1, name="what it is given", has_layers=True)
                share = percent(statistics.mean(same[:_KEPT]))
                is_cut, what = look.activations[0] in _CUTS, look.activations[0].lower()
                cut = f"the {what} that makes the outputs returns the same for {share} of the samples"
                alike = f"what the model returns is the same for {share} of the samples, though what they are given differs"
                yield found and replace(found, message=cut if is_cut else alike, advice=_LAST_CUT if is_cut else _SOME)
            if is_known and (are_one or self._unread > 1):
                yield self._told_unused(look, numbers, is_cut=self._is_cut)

    def _of_range(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that targets are beyond what outputs can be, are made of these, or weigh too much."""
        judge = self._chosen.judge
        for at, name in enumerate(look.outputs):
            what = look.activations[at].lower() or "activation"
            site = f"{self._part}:output{name if at else ''}"
            found = judge(
                "target_beyond", *[numbers.get(f"{each} {at}", math.nan) for each in ("beyond", "least", "largest")], what=what
            )
            yield found if found is None else replace(found, site=site)
            unlikely = self._so_far("unlikely", at, look.number, value=numbers.get(f"unlikely {at}"))
            if len(unlikely) >= _KEPT:
                chances = [numbers.get(f"{each} chance {at}", math.nan) for each in ("least", "most")]
                found = judge("target_beyond", statistics.median(unlikely), *chances, what=what, is_chance=True)
                advice = _TEMPERATURE if look.activations[at] == COSINE else _LOGITS
                yield found and replace(found, site=site, advice=advice)
            sides = self._so_far("side", at, look.number, value=numbers.get(f"side {at}", 0.0))
            if len(sides) > EACH and abs(sum(sides)) == len(sides):
                found = judge("target_beyond", 1.0, math.nan, math.nan, what=what, side=-sides[0])
                yield found if found is None else replace(found, site=site)
        known = [numbers.get(each, 0.0) for each in ("target share", "target low", "target")]
        yield judge("target_beyond", *known, what="binary cross-entropy")
        yield judge("weight_of_ones", numbers.get("times", 0.0), numbers.get("together", 0.0))
        yield from self._of_columns(numbers)
        yield from self._of_fading(look, numbers)
        yield judge("all_linear", float(look.is_linear))
        yield from self._of_entropy(look, numbers)
        if "across" in numbers:
            is_own = numbers["across"] <= _OWN and bool(numbers.get("compares")) and look.made_by not in _DIFFERENCES
            is_own &= numbers.get("apart", math.inf) > _VARIED * numbers.get("size", 0.0)
            own = self._so_far("own", value=is_own)
            yield judge("target_own", float(len(own))) if all(own) else None
        yield from self._of_parts(look, numbers)
        yield from self._of_passes(look, numbers)

    def _of_entropy(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that an entropy is all that trains the outputs, or weighs too much."""
        if "entropy" in numbers and _class_axis(look, numbers) is None:  # of a label that is sure, both slopes are alike
            weights = self._so_far("entropy weight", value=numbers["entropy weight"])
            firsts = self._so_far("entropy", value=numbers["entropy"])[:_OFTEN]
            errors = self._so_far("entropy error", value=numbers["entropy error"])[:_LAST]
            first = weights[:_LAST]
            is_most = firsts[0] <= _HALF  # what is left of an entropy that has been raised is no measure of its weight
            apart = max(_STEADY * abs(first[0]), _SURELY * max(errors) if is_most else 0.0)
            is_steady = len(weights) >= _LAST and max(first) - min(first) <= apart
            if is_steady and min(map(abs, first)) >= _DROWNS and min(first) * max(first) > 0:
                yield self._chosen.judge("penalty_alone", 0.0, 0.0, first[0], is_entropy=True)
            is_alone = len(firsts) == _OFTEN and statistics.median(firsts) <= _ENTROPY
            alone = self._chosen.judge("penalty_alone", 0.0, max(firsts), is_entropy=True) if is_alone else None
            yield alone and replace(alone, advice=_CUT_OFF)

    def _of_parts(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that the gradients at outputs are of very different sizes."""
        judge = self._chosen.judge
        parts = [numbers.get(f"part {at}", 0.0) for at in range(len(look.outputs))]
        largest, least = (each(range(len(parts)), key=parts.__getitem__) for each in (max, min))
        if look.number == 0 and parts[least] > 0 and math.isfinite(parts[largest]):
            uneven = self._so_far("uneven", value=(largest, least, parts[largest] / parts[least]))[:EACH]
            if len(uneven) >= _KEPT and all(each[:2] == uneven[0][:2] for each in uneven):
                times = min(each for *_, each in uneven)
                yield judge("terms_uneven", times, one=_named(look, largest), other=_named(look, least))
                errors, sizes = self._so_far("error", largest), self._so_far("size", largest)
                found = judge("target_large", errors[0] ** 2, sizes[0], 1.0) if errors and sizes and times >= _DOMINATES else None
                beside = f"and their gradient is {short(times)} x that at {_named(look, least)}"
                site = f"{self._part}:output{look.outputs[largest] if largest else ''}"
                yield found and replace(found, message=f"{found.message}, {beside}", site=site)

    def _of_passes(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that the gradients in two passes of one loss are of very different sizes."""
        now = (look.step, look.loss, numbers.get("part 0", 0.0))
        if look.number == 0:
            self._so_far("first part", value=now)
            return
        step, loss, first = (self._so_far("first part") or [(-1, None, 0.0)])[-1]
        if now[:2] == (step, loss) and loss is not None and min(first, now[2]) > 0 and math.isfinite(first + now[2]):
            times = self._so_far("times", look.number, value=first / now[2])[:EACH]
            least = min(max(each, 1 / each) for each in times) if (max(times) < 1 or min(times) > 1) else 1.0
            one, other = (_named(look, 0, number) for number in ((0, look.number) if times[0] > 1 else (look.number, 0)))
            yield self._chosen.judge("terms_uneven", least, one=one, other=other) if len(times) >= _KEPT else None

    def _of_fading(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that an output has shrunk whose gradient is mostly that of a penalty: a further one, or that of a part."""
        for at in range(self._part == "(root)", len(look.outputs)):
            name = f" {at}" if at else ""
            size, across, loose = (numbers.get(f"{each}{name}") for each in ("size", "across", "loose"))
            fades = self._so_far("fading", at, value=None if None in (size, across) else (size, across, loose))
            if len(fades) > EACH and fades[0][0]:
                own, what = statistics.median(each for _, each, _ in fades[_LAST:]), look.outputs[at] or self._part
                most = max(each for *_, each in fades) if fades[0][0] <= 1 else 1.0  # what begins larger may be on its way to 1
                judged = [
                    self._chosen.judge("penalty_alone", size / fades[0][0], own, what=what, at_most=most) for size, *_ in fades[-2:]
                ]
                yield judged[-1] if all(judged) else None

    def _of_regression(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield what is wrong with the targets of a squared error: their scale, a sentinel, classes; what explains them not."""
        for at, name in enumerate(look.outputs):
            found = [self._told_sentinel(f"targets {at}", [numbers.get(f"{each} {at}") for each in _SENTINEL])]
            errors = self._so_far("error", at, value=None if look.number else numbers.get(f"error {at}"))
            sizes = self._so_far("size", at, value=None if look.number else numbers.get(f"size {at}" if at else "size"))
            firsts, lasts = (statistics.median(each) if each else math.nan for each in (errors[:_LAST], errors[-_LAST:]))
            if sizes and look.step >= _TRIED and lasts >= _HARDLY_LESS * firsts:
                found.append(self._chosen.judge("target_large", errors[0] ** 2, sizes[0], 1.0))
            classed = self._so_far("classed", at, value=numbers.get(f"classed {at}"))
            found.append(self._chosen.judge("class_regressed", float(len(classed)), float(all(classed))))
            self._so_far("explained", at, value=numbers.get(f"explained {at}") if look.step >= _SETTLED else None)
            found.append(self._told_unexplained(at) if look.step >= _LONG else None)
            yield from (each and replace(each, site=f"{self._part}:output{name if at else ''}") for each in found)
        for at in range(_INPUTS):
            yield self._told_sentinel(f"inputs {at}", [numbers.get(f"input {each} {at}") for each in _SENTINEL])

    def at_end(self) -> Iterator[Finding | None]:
        """Yield what the last passes of a training show."""
        yield self._told_guess()
        for at, name in enumerate(self._outputs):
            found = self._told_unexplained(at)
            yield found and replace(found, site=f"{self._part}:output{name if at else ''}")

    def _told_guess(self) -> Finding | None:
        """Return that a cross-entropy has come to be no less than that of a guess."""
        return self._told_stuck(self._so_far("won"), 0.0, _NO_BETTER)

    def _told_unexplained(self, at: int) -> Finding | None:
        """Return that an output has come to explain nothing of its targets."""
        explained = self._so_far("explained", at)
        if any(each < -_HALF for each in explained[-_LAST:]):
            return None  # the error is not that of their mean, but larger
        return self._told_stuck(explained, _EXPLAINED, _GUESS.format(share=percent(max([0.0, *explained[-_LAST:]]))))

    def _told_stuck(self, values: Sequence[float], most: float, message: str) -> Finding | None:
        """Return that a loss stands still, as a *message* says, if the last *values* are no more than *most*, and do not rise."""
        last = list(values[-_LAST:])
        if len(last) < _LAST or not all(each <= most for each in last) or sorted(set(last)) == last:
            return None  # or what is slow has begun
        found = self._chosen.judge("loss_stuck", 1.0, 1.0, 1.0, 0.0, math.nan)
        return found and replace(found, message=message)

    def _told_sentinel(self, what: str, read: Sequence[float | None]) -> Finding | None:
        """Return that one number, far from all others, stands in *what* of most passes.

        *read*: that number, its share, the nearest other, and whether it is there once. One that is there once in each of all
        passes is a sample far off the others, of data that are the same in each.
        """
        code, share, nearest, alone = read
        shares = [each for each in self._so_far("coded", what, value=share) if not math.isnan(each)]
        codes = [each for each in self._so_far("code", what, value=code) if not math.isnan(each)]
        is_one = len(codes) >= _KEPT and max(codes) - min(codes) <= _ROUNDING * abs(codes[0])
        once = [each for each in self._so_far("alone", what, value=alone) if not math.isnan(each)]
        if not is_one or 2 * len(codes) < len(self._so_far("code", what)) or code is None or math.isnan(code):
            return None
        if len(codes) == len(self._so_far("code", what)) and all(once):
            return None
        return self._chosen.judge(
            "sentinel", statistics.mean(shares), codes[0], float(nearest or 0.0), what=what.rpartition(" ")[0]
        )

    def _of_columns(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that a column of the input tells the label."""
        for at in itertools.takewhile(lambda at: f"within {at}" in numbers, itertools.count()):
            read = [numbers[f"{name} {at}"] for name in ("within", "column", "second", "between")]
            found = self._chosen.judge("label_seen", *read) if numbers[f"spare {at}"] >= _SPARE else None
            columns = self._so_far("column", at, value=math.nan if found is None else read[1])
            yield found if len(columns) >= _KEPT and all(each == columns[0] for each in columns) else None
        for at, kind in itertools.product(range(_INPUTS), ("is", "scales")):
            names = ("off column", "target column") if kind == "is" else ("scaled column", "column scaled")
            if f"{names[0]} {at}" in numbers:
                off, column = (numbers[f"{name} {at}"] for name in names)
                is_told = off <= _EXACT and numbers["reached"] >= _SPARE
                told = self._so_far("target column", kind, at, value=column if is_told else math.nan)
                if len(told) >= _KEPT and all(each == told[0] for each in told):
                    how = {"is_number": True, "is_scaled": kind == "scales", "is_last": bool(numbers[f"last column {at}"])}
                    yield self._chosen.judge("label_seen", 0.0, column, **how)
        for at in range(_INPUTS):
            given, target = (
                numbers.get(f"given {at}", 0.0),
                max(-numbers.get("least 0", -math.inf), numbers.get("largest 0", math.inf)),
            )
            if given >= _FAR * target > 0:
                found = self._chosen.judge("input_large", given, does_harm=True)
                sizes = f"what goes in is of size {short(given)}, and what is to be returned at most {short(target)}"
                yield found and replace(found, message=sizes)
            if f"another {at}" in numbers:
                another = self._so_far("another", value=min(numbers[f"another {at}"], numbers[f"stand {at}"]) >= _MATCHES)
                if len(another) >= _KEPT and all(another):
                    yield self._chosen.judge("target_of_another", numbers[f"another {at}"])

    def _of_ways(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that nothing holds an output, which each sample of each pass pushes the same way, or that one gets no gradient."""
        is_read = _class_axis(look, numbers) is not None or any(map(numbers.get, ("zeros", "ones", "target", "is binary")))
        for at in range(len(look.outputs)):
            if f"part {at}" in numbers:
                self._so_far("silent", at, look.number, value=numbers[f"part {at}"] == 0)
            for column in itertools.takewhile(lambda each, at=at: f"way {each} {at}" in numbers, itertools.count()):  # type: ignore[misc]
                self._so_far("pushed size", at, value=numbers.get(f"size {at}", numbers.get("size", 0.0)))
                way = 0.0 if is_read and not at else numbers[f"way {column} {at}"]
                self._so_far("way", at, column, value=(way, numbers[f"level {column} {at}"]))
        yield from self._of_silence(look)
        yield from self._of_columns_idle(look, numbers)
        every = self._by("way")
        one_way = {each: ways for each, ways in every.items() if len({way for way, _ in ways}) == 1 and ways[0][0]}
        for (at, column), ways in one_way.items():
            levels = [level for _, level in ways]
            is_alone = len(one_way) == 1  # where several move, they may be on the way to targets that are far off
            if len(ways) > _SEEN and look.activations[at] in _BOUNDED and numbers.get(f"toward {at}"):
                found = self._chosen.judge(
                    "target_beyond", 1.0, math.nan, math.nan, what=look.activations[at].lower(), side=-ways[0][0]
                )
                yield found and replace(found, site=f"{self._part}:output{look.outputs[at] if at else ''}")
            elif (
                len(ways) > _SEEN and numbers.get(f"logistic {at}") and (numbers[f"taken {at}"] or len(look.outputs) == 1)
            ):  # of labels that are none alike, some push the other way
                found = self._chosen.judge("labels_alike", math.inf, float(len(ways)), 1.0)
                yield found and replace(found, message=_ONE_LABEL.format(passes=len(ways), label="0" if ways[0][0] > 0 else "1"))
            elif len(ways) > _SEEN and is_alone and look.number == 0 and look.terms[at] and not numbers.get(f"toward {at}"):
                which = _named(look, at) + f"[:, {column}]" * (len(every) > len(look.outputs))
                yield self._chosen.judge(
                    "pushed_one_way", float(len(ways)), abs(levels[-1] - levels[0]), self._so_far("pushed size", at)[0], what=which
                )

    def _of_columns_idle(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that a column of the first output gets no gradient, or that the errors of samples cancel."""
        for name, what in (("idle", "column {:.0f} of the output gets"), ("alone", "all columns of the output but {:.0f} get")):
            columns = self._so_far("columns", name, look.number, value=numbers.get(name))
            if len(columns) > _SEEN and columns[0] >= 0 and len(set(columns)) == 1:
                found = self._chosen.judge("terms_uneven", math.inf)
                message = f"{what.format(columns[0])} no gradient, in {len(columns)} passes: what stands there is never learnt"
                yield found and replace(found, message=message, advice=_IDLE)
        for axis in (0, 1):
            read = self._so_far("read places", axis, look.number, value=numbers.get(f"reads {axis}"))
            if len(read) > _SEEN and read[0] and len(set(read)) == 1:
                found = self._chosen.judge("terms_uneven", math.inf)
                message = (
                    f"the loss reads the first {read[0]:.0f} of the {look.shape[axis]} places of each output, in {len(read)} passes"
                )
                yield found and replace(found, message=message, advice=_PLACES_READ)
        if (
            "same gradient" in numbers and not look.number and not (look.taken is not None and any(look.taken[1:]))
        ):  # as a discriminator's
            cancels = self._so_far("cancels", value=numbers["same gradient"])
            signs = [each > 0 for each in cancels]
            if all(cancels) and min(signs.count(True), signs.count(False)) >= _LAST:
                yield self._chosen.judge("errors_cancel", float(len(signs)))

    def _of_silence(self, look: Look) -> Iterator[Finding | None]:
        """Yield that one output, or one pass of a step, gets a gradient of zero, and others do not."""
        every = self._by("silent")
        silent = [each for each, zeros in every.items() if len(zeros) > _SEEN and all(zeros)]
        heard = [each for each, zeros in every.items() if len(zeros) > _SEEN and not any(zeros)]
        if silent and heard and (look.number == silent[0][1]):
            several = any(number for _, number in every)
            one, other = (_named(look, at, number if several else None) for at, number in (heard[0], silent[0]))
            found = self._chosen.judge("terms_uneven", math.inf, one=one, other=other)
            yield found and replace(found, advice=_WEIGHTLESS)

    def _of_repeats(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that two views of each sample are the same: two passes of one loss return the same, or two halves of a batch."""
        before = self._before
        is_one_loss = before is not None and before.loss == look.loss and not before.terms[0].isdisjoint(look.terms[0])
        is_again = bool(numbers.get("again")) and is_one_loss and numbers.get("reached", 0.0) > 0
        if "differ" in numbers or look.number:
            equal = self._so_far("equal", value=not look.number and numbers["differ"] == 0)  # a game may begin alike, and go on
            if len(equal) >= _OFTEN and all(equal):
                yield self._chosen.judge("input_same", float(len(equal)), 0.0)
        for name, is_same in (("again", is_again), ("halves", bool(numbers.get("halves")))):
            if name in numbers and look.made_by != "Embedding":  # positions are the same each time
                repeats = self._so_far(name, value=is_same)
                yield self._chosen.judge("views_same", float(len(repeats))) if all(repeats) else None
        self._before = look

    def _of_kinds(self, look: Look, label: float) -> Iterator[Finding | None]:
        """Yield that samples which a generator makes are given one label when it is trained and when a discriminator is."""
        if look.taken is None or math.isnan(label):
            return
        storage, is_trained, is_made = look.taken
        others = [each for each in self._kinds if each[1] != is_trained]
        same = [other for held, was_trained, was_made, other in others if held == storage or (is_made if was_trained else was_made)]
        self._kinds.append((storage, is_trained, is_made, label))
        if same:
            misled = self._so_far("misled", value=same[-1] == label)
            yield self._chosen.judge("generator_misled", float(len(misled)), label) if all(misled) else None

    def _of_generated(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that samples which are given to a model are far larger than those that a generator makes for it."""
        if look.taken is None or not numbers.get("taken", 0.0) > 0:
            return
        is_made = look.taken[2]
        held = {each: self._so_far("given", each)[-1:] for each in (False, True)}
        held[is_made] = self._so_far("given", is_made, value=(look.step, numbers["taken"]))[-1:]
        (step, given), (other, made) = ((held[each] or [(-1, math.nan)])[0] for each in (False, True))
        before = self._so_far("unlike")
        if step == other and len(before) < _LAST and (not before or before[-1][0] != step):
            unlike = self._so_far("unlike", value=(step, given / made))
            found = self._chosen.judge("input_large", given, does_harm=True)
            if found is not None and len(unlike) == _LAST and min(times for _, times in unlike) >= _UNSCALED:
                message = f"what is given is of size {short(given)}, and what a generator makes of size {short(made)}"
                yield replace(found, message=message, site=f"{self._part}:input")

    def _of_few(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that a loss reads the same few samples of each pass, fewer than there are classes."""
        axis = _class_axis(look, numbers)
        if axis is None or look.number:
            return
        count, classes = numbers["reached"], look.shape[axis]
        few = self._so_far("few", value=numbers["which"] if count < min(classes, _FEW * look.samples) else 0.0)
        if len(few) >= _OFTEN and few[0] and len(set(few)) == 1:
            found = self._chosen.judge("input_same", float(len(few)), 0.0, name="what the loss reads")
            message = f"the loss reads the same {count:.0f} of {look.samples:,} samples, in {len(few)} passes"
            yield found and replace(found, message=f"{message}, and there are {classes} classes", advice=_PICKED)

    def _of_indices(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that an embedding is asked for few of its rows."""
        for name, table in self._tables.items():
            if f"most {name}" in numbers:
                table.looks += 1
                found = self._chosen.judge(
                    "few_indices",
                    numbers[f"most {name}"],
                    numbers[f"rows {name}"],
                    float(len(table.counts)),
                    numbers[f"count {name}"],
                    is_sequence=table.is_sequence,
                )
                if found is not None and table.looks >= _OFTEN:
                    yield replace(found, message=f"{name}: {found.message}", site=f"{name}:param")

    def _of_attention(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that attention begins with one place alone."""
        for name in (each.removeprefix("sharp ") for each in numbers if each.startswith("sharp ")):
            places = numbers[f"attended {name}"]
            if places >= _SQUARE:
                sharp = numbers[f"sharp {name}"]
                found = self._chosen.judge("attention_large", math.nan, math.nan, sharp=sharp, places=places)
                yield found and replace(found, advice=_SHARP, site=name and f"{name}:output")

    def _of_dropped(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that a dropout which is no module drops nearly all, in two looks."""
        for name in (each.removeprefix("dropped ") for each in numbers if each.startswith("dropped ")):
            found = self._chosen.judge("dropped", numbers[f"dropped {name}"])
            times = self._so_far("dropped", name, value=found or False)
            if found is not None and len(times) > 1 and all(times[-2:]):
                message = f"{found.message} behind {name or 'the input'}, by functional.dropout"
                yield replace(found, message=message, site=name and f"{name}:output", advice=_RATE)

    def _of_norms(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that running statistics are not those of the batches, or that eps is more than what goes in varies."""
        for key in numbers:
            what, _, name = key.partition(" ")
            if what not in ("mean", "varies"):
                continue
            read = (numbers[f"mean {name}"], numbers[f"variance {name}"]) if what == "mean" else (numbers[key],)
            found = self._chosen.judge("running_off" if what == "mean" else "norm_starved", *read)
            judged = self._so_far("norm", key, value=found or False)
            if found is not None and len(judged) >= _LAST and all(judged[-_LAST:]):
                yield replace(found, message=f"{name}: {found.message}", site=f"{name}:output")

    def _of_dependence(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield what outputs depend on that they should not."""
        axis = _class_axis(look, numbers)
        is_sequence = (
            axis is not None and look.tokens and any(_ahead(numbers, axis, each, 0) is not None for each in range(look.tokens))
        )
        if look.viewed is not None:
            self._viewed += 1
            found = self._chosen.judge("samples_mixed", math.inf, 0.0) if self._viewed > 1 else None
            where, what = look.viewed
            site = f"{self._part}:{where}" if where.startswith("input") else where and f"{where}:output"
            yield found and replace(found, message=f"{what}: its elements stand at other places", advice=_TRANSPOSED, site=site)
        yield self._told_recurrent(look)
        padded = numbers.get(f"padded {axis}", 0.0)
        yield self._chosen.judge("padding_counted", padded) if is_sequence or padded >= _DIFFERS else None
        yield self._chosen.judge("padding_counted", numbers.get(f"at padding {axis}", 0.0), is_given=True)
        for place in range(look.tokens):
            real, padding = (numbers.get(f"{name} {place}", math.nan) for name in ("real", "padding"))
            is_apart = numbers.get(f"others {place}", 0.0) <= _NOTHING * padding  # where samples are mixed, that is what is wrong
            self._padded += is_apart and real <= _HARDLY * padding and padding > 0
            if self._padded > 1 and is_apart:
                found = self._chosen.judge("padding_alone", real, padding)
                is_whole = look.depends is not None and look.depends.inputs[place][1]
                yield found if is_whole or found is None else replace(found, message=_PADDING_TRAINED)
            yield from self._of_places(look, numbers, place)
            yield self._told_crossed(look, numbers, place)
            if axis is None:
                continue
            ways = {way: _ahead(numbers, axis, place, way) for way in (_ALONG, _ACROSS, _TURNED)}
            for way, ahead in ways.items():
                if ahead is not None and way != _TURNED and not self._viewed:  # a view that mixes places lets later ones be seen
                    yield from self._of_sequence(numbers, axis, place, way, ahead, look.depends)
                elif ahead is not None and ways[_ALONG] is None:
                    turned = self._chosen.judge("samples_mixed", math.inf, 0.0)
                    yield None if turned is None else replace(turned, message=_OTHER_ORDER, advice=_SAME_ORDER)
        if look.depends is not None:
            yield from self._of_samples(look, look.depends, numbers)
            yield from self._of_series(look.depends, numbers)

    def _told_recurrent(self, look: Look) -> Finding | None:
        """Return that a recurrent layer takes samples for steps, as two looks have found it."""
        if look.recurrent is None or len(self._so_far("recurrent", value=1.0)) < 2:
            return None
        found = self._chosen.judge("samples_mixed", math.inf, 0.0)
        message = f"{look.recurrent} takes the samples for steps: each sample's outputs depend on those before it"
        return found and replace(found, message=message, advice=_STEPS, site=f"{look.recurrent}:output")

    def _of_places(self, look: Look, numbers: Mapping[str, float], place: int) -> Iterator[Finding | None]:
        """Yield that padding is read more than what is none, or that attention reads no other place."""
        if look.depends is None or f"read {place}" not in numbers or not look.depends.inputs[place][1]:
            return
        times = self._so_far("read", place, value=numbers[f"read {place}"])
        self._has_attention |= any(name.startswith("attended ") and size > 2 for name, size in numbers.items())
        if len(times) > 1 and all(_PADDING[self._has_attention] <= each < math.inf for each in times[-2:]):
            found = self._chosen.judge("padding_alone", 0.0, 1.0)
            message = f"what the model returns depends {short(times[-1])} x as much on a place of padding as on one of its tokens"
            yield found and replace(found, message=message, severity="warn")
        places = [at for at, (_, is_argument) in enumerate(look.depends.inputs) if f"read {at}" in numbers and is_argument]
        others = sum(numbers[f"{name} {at} {way}"] for at in places for way in (0, 1) for name in ("before", "next", "later"))
        here = numbers[f"here {place} 0"]
        is_alone = self._has_attention and len(look.shape) > 2 and others <= _NOTHING * here and here > 0
        alone = self._so_far("alone", place, value=float(is_alone))
        if len(alone) > 2 and all(alone[-2:]):  # a branch may begin at zero
            found = self._chosen.judge("input_unused", 2, 1, name="other places", has_layers=True)
            yield found and replace(found, message=_ALONE, advice=_MASK)

    def _of_samples(self, look: Look, depends: Depends, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that samples are mixed, or that no input is read."""
        are_all = numbers.get("reached", 0.0) == look.samples  # as labels for each sample do
        for place, (shape, is_argument) in enumerate(depends.inputs):
            own, near = numbers[f"own {place}"], numbers.get(f"near {place}", math.nan)
            is_one = len(look.shape) < 3 and shape[0] != shape[1]  # output for each sample, and its axis is no other's
            is_one &= len(look.shape) < 2 or abs(look.shape[1] - look.shape[0]) > _TABLE  # similarities are of two samples each
            is_one &= len(shape) > 2 or not near < _UNLIKE  # and it is no sequence without a batch
            if is_one and are_all and (is_argument or (own > 0 and shape[0] == look.shape[0])):
                yield self._told_mixed(place, depends, numbers)
        parts = [numbers[f"{name} {place}"] for place in range(len(depends.inputs)) for name in ("own", "others")]
        is_blank = not any(parts) and numbers.get("differ", 0.0) > 0
        self._is_cut = depends.is_cut
        self._unread += depends.sought and is_blank and (depends.is_cut or numbers["apart"] <= _ALIKE * numbers["size"])

    def _of_sequence(
        self, numbers: Mapping[str, float], axis: int, place: int, way: int, ahead: int, depends: Depends | None
    ) -> Iterator[Finding | None]:
        """Yield what is wrong where labels are tokens of the input at *place*, so many places *ahead*, along the axis *way*."""
        at = f"{place} {way}"
        before, here, following, later, others = (
            numbers.get(f"{name} {at}", 0.0) for name in ("before", "here", "next", "later", "beside")
        )
        whole = before + here + following + later
        is_counted = bool(numbers.get(f"is counted {axis}"))
        if whole > 0 and ahead == 1 and is_counted:
            yield self._chosen.judge("future_seen", following / whole, before)
        if whole > 0 and others > _NOTHING * whole and way == _ALONG and depends is not None:
            yield self._told_mixed(place, depends, numbers)
        if ahead == 0 and whole > 0 and before <= _NOTHING * whole:
            return  # each place by itself, as of an autoencoder of tokens
        is_part = self._part != "(root)"  # as a head of several, each for a token further ahead
        if (ahead > 1 and not is_part) or (ahead < 1 and whole > 0):
            is_causal = ahead != 0 or following + later <= _NOTHING * whole
            is_picked = numbers.get(f"pieces {axis}", 0.0) > 1  # some places here and there, as of masked tokens
            yield self._chosen.judge("target_shifted", float(ahead), is_causal=is_causal, is_picked=is_picked)

    def _of_series(self, depends: Depends, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that a model of series sees the value it is to predict, or is to return the value it is given."""
        aheads = [ahead for ahead in (0, 1) for at in range(_INPUTS) if numbers.get(f"series {ahead} {at}", 1.0) <= _EXACT]
        for place in range(len(depends.inputs)):
            before, here, following, later = (numbers.get(f"{name} {place} 0", 0.0) for name in ("before", "here", "next", "later"))
            whole = before + here + following + later
            if aheads == [1] and whole > 0:
                yield self._chosen.judge("future_seen", (following + later) / whole, before + here, what="values")
            if aheads == [0] and before > 0 and following + later <= _NOTHING * whole:
                yield self._chosen.judge("target_shifted", 0.0)

    def _told_unused(self, look: Look, numbers: Mapping[str, float], *, is_cut: bool = False) -> Finding | None:
        """Return that outputs do not depend on what they are made of; *is_cut*: the first one does not, others do."""
        found = self._chosen.judge("input_unused", 1 + is_cut, 1, name="what it is given", has_layers=True)
        message, advice = "what the model returns is the same for all samples, though what it is given differs", _UNUSED
        if is_cut:
            message = "no gradient comes from what the model returns first to what it is given, but for other outputs"
        elif look.activations[0] == "Relu" and numbers["size"] == 0:
            message, advice = "the relu that makes the outputs returns 0 for all samples", _LAST_RELU
        elif look.activations[0] in _CUTS:
            message = f"the {look.activations[0].lower()} that makes the outputs returns the same for all samples"
            advice = _LAST_CUT
        return found and replace(found, message=message, advice=advice)

    def _told_crossed(self, look: Look, numbers: Mapping[str, float], place: int) -> Finding | None:
        """Return that outputs depend on tokens of other rows and other columns: whichever are samples, they are mixed."""
        depends = look.depends
        if depends is None or f"cross {place}" not in numbers or len(look.shape) < 3:
            return None
        shape, is_argument = depends.inputs[place]
        whole = numbers[f"own {place}"] + numbers[f"others {place}"]
        ways = (("mixed", depends.operations, "rows"), ("spread", depends.spreading, "columns"))
        by = [[each for at, each in enumerate(known) if numbers[f"{what} {at}"]] for what, known, _ in ways]
        is_meant = any(all(is_statistic(name) or is_graph_operation(name) for name, *_ in each) for each in by)
        is_same = is_argument and shape == look.shape[:2] and shape[0] != shape[1]
        if not is_same or not depends.sought or is_meant or depends.is_graph:
            return None
        crossed = self._so_far("crossed", place, value=numbers[f"cross {place}"] > _NOTHING * whole > 0)
        found = self._chosen.judge("samples_mixed", numbers[f"few {place}"] / whole, _NOTHING) if sum(crossed) > 1 else None
        message = f"samples of a batch are mixed: an output depends on tokens of other rows and columns of the {shape_text(shape)}"
        return found and replace(found, message=f"{message} that go in", advice=_AXES)

    def _told_mixed(self, place: int, depends: Depends, numbers: Mapping[str, float]) -> Finding | None:
        """Return that samples are mixed, by which operation and where, if two looks have found it so."""
        own, others = numbers[f"own {place}"], numbers[f"others {place}"]
        mixing = [each for at, each in enumerate(depends.operations) if numbers[f"mixed {at}"]]
        is_meant = bool(mixing) and all(is_graph_operation(name) for name, *_ in mixing)
        are_less = all(is_statistic(name) for name, *_ in mixing) and numbers[f"most {place}"] < _DIFFERS * own
        if depends.is_graph or is_meant or others <= _NOTHING * own or (depends.sought and bool(mixing) and are_less):
            return None
        self._mixed += 1
        found = self._chosen.judge("samples_mixed", others / (own + others), _NOTHING)
        if found is None or self._mixed < 2 or not depends.sought:
            return None
        message = f"samples of a batch are mixed: {percent(found.value)} of the gradient of one sample's outputs goes to others"
        if not mixing:
            return replace(found, message=message)
        name, before, behind = mixing[-1]
        site = _common(before, behind)
        where = f"in {site}" if site else "between " + " and ".join(each or "the outputs" for each in (before, behind))
        return replace(found, message=f"{message}, by its {name.lower()} {where}", site=site and f"{site}:output")


def _named(look: Look, at: int, number: int | None = None) -> str:
    """Return what an output is called in messages, and if its *number* is given, the pass of a step."""
    name = ("the output " + look.outputs[at].strip(".[]'")).strip()
    return name if number is None else f"{name} of pass {number + 1} of each step"


def _common(one: str, other: str) -> str:
    """Return the name of the innermost module that holds both; ``""`` for the root."""
    parts = zip(one.split("."), other.split("."), strict=False)
    return ".".join(first for first, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], parts))


def _class_axis(look: Look, numbers: Mapping[str, float]) -> int | None:
    """Return the axis of classes, if the gradient at the output is that of a cross-entropy against one label each; else None."""
    for axis in sorted(class_axes(look), reverse=True):
        counted = numbers.get(f"counted {axis}", 0.0)
        is_one = counted > 0 and numbers[f"single {axis}"] >= _MATCHES * counted
        if is_one and numbers[f"off {axis}"] <= _OFF:
            return axis
    is_square = len(look.shape) == 2 and look.shape[0] == look.shape[1] and look.shape[0] >= _SQUARE
    return 1 if is_square and numbers.get("single 1", 0.0) >= _DIFFERS * look.shape[0] else None  # as of pairs, asked for both ways


def _ahead(numbers: Mapping[str, float], axis: int, place: int, way: int) -> int | None:
    """Return how many places ahead of their output the labels stand in the tokens at *place*; None where they are others."""
    shares = {ahead: numbers.get(f"match {place} {way} {ahead} {axis}", -1.0) for ahead in AHEAD}
    best = max(AHEAD, key=lambda ahead: shares[ahead])
    is_clear = shares[best] >= _MATCHES and all(shares[each] < _DIFFERS for each in AHEAD if each != best)
    return best if is_clear and numbers[f"telling {axis}"] >= _LABELS else None
