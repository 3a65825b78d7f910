"""Judge the labels that outputs are given: whether they are alike, and whether the loss reads those of few samples."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import mul

from torch.multiprocessing.reductions import StorageWeakRef

from sonde.inspector.batches.findings.pass_history import KEPT, LAST, LONG, MATCHES, OFTEN, SETTLED, History, PassFindings
from sonde.inspector.batches.look import PASSES, Look, label_axis
from sonde.rules import DEAD_SAMPLES, Chosen, Finding
from sonde.words import percent, short

_SEVERAL = 1.5  # labels of a sample, beside one of its softmax
_MOST = 0.7  # of the passes
_SCALED = ("Mm", "Mul", "Div", "Bmm", "UnsafeView", "Add", "Sub")  # by which logits are made that no layer has made
_SHARP = 100.0  # a scale of cosines; those of margins and of pairs are 16 to 100
_SCALES = "look at what multiplies the outputs: a temperature, a scale, a missing 1 / sqrt(size)"
_FEW = 0.1  # of the samples of a pass
_PICKED = "look at the mask or index that picks what the loss reads: some classes are never learnt"
_READ = 0.9  # of the samples, less than all
_ONE_READ = (
    "look at class weights that are zero, at ignore_index, and at what picks the samples: the other classes are never learnt"
)
_MOST_AXES = 8
_EVEN = "look at label_smoothing, at a temperature, and at what makes the targets: a teacher or a labeller that is sure of nothing"
_ONE_NUMBER = "look at how targets are made and read: a cast to integers, a scale, a mask, an index, a column"
_SIGN = "look at the sign of the loss, and at maximize=True of the optimizer"
_NO_LOSS = (math.nan,) * 4  # of which the gradient tells
_SURE = 2.0  # deviations
_USUAL, _RARE, _MET = 0.9, 8, 0.1  # share of one label among all; others, so many that some would be met; those that are
_SCORES = "let the critic lower its scores of generated samples and raise those of real ones, and the generator raise its own"
_WEIGH = "weigh what is rare (class weights, pos_weight, a focal loss), or draw it more often; judge by recall or F1"
_LEAST, _CLEARLY = 8.0, 0.1  # entropy of all labels that were read, and its share by which outputs gain surely less, to judge it
_NO_GAIN, _BY_CHANCE = 0.02, 3.0  # share of the entropy of labels that is as good as none; deviations of what comes by chance
_NO_BETTER = "outputs fit the labels of other samples as well as their own: nothing is won over how often each label comes"


class LabelFindings(PassFindings):
    """Judges the labels that outputs are given.

    Attributes:
        axes: of an output those that may be of classes, as far as is known.
    """

    def __init__(self, chosen: Chosen, part: str, history: History) -> None:
        super().__init__(chosen, part, history)
        self.axes = {*range(1, _MOST_AXES)}
        self._first_step: int | None = None
        # what passes took, whether a gradient comes to it, whether a model has made it, and their one label
        self._kinds: deque[tuple[StorageWeakRef, bool, bool, float]] = deque(maxlen=2 * PASSES)

    def of(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield what one pass shows, beside those before it."""
        self._first_step = look.step if self._first_step is None else self._first_step
        yield from self._of_labels(look, numbers)
        yield from self._of_other_labels(look, numbers)
        yield from self._of_few(look, numbers)

    def at_end(self) -> Iterator[Finding | None]:
        """Yield what the last passes of a training show."""
        yield self._told_guess()
        yield self._told_rare()

    def _weighed(self, numbers: Mapping[str, float], axis: int) -> Finding | None:
        """Return the finding that one class has the weight of all, or that those which come often weigh more than others."""
        names = ("times", "top", "heavy", "often", "grows", "usual classes")
        times, top, heavy, often, grows, share = (numbers[f"{name} {axis}"] for name in names)
        found = self._chosen.judge("weight_of_many", times, top) or self._chosen.judge("weight_of_many", 0.0, often, heavy)
        if found is not None:
            return found
        found = self._chosen.judge("weight_of_many", grows, share)
        words = f"samples of the frequent classes, {percent(share)} of all, weigh {short(grows)} x those of the others each"
        return found and replace(found, message=words)

    def _of_labels(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that labels are alike: how many each pass had, and their one class, NaN of several; of first passes, of others."""
        axis, labels_of_pass = label_axis(look, numbers), self._so_far("labels", look.number)
        yield from self._of_all_classes(look, numbers)
        kind = axis if axis is not None else "binary"
        rare = [numbers.get(f"{name} {kind}", math.nan) for name in ("usual", "usual share", "rare", "met")]
        self._so_far("rare", value=None if look.number or math.isnan(rare[0]) else rare)
        gain = [numbers.get(f"{name} {kind}", math.nan) for name in ("gain", "noise", "to tell", "told of")]
        gain[1] *= max(1.0, gain[3] / max(1.0, numbers.get("reached", math.nan)))  # those of one sample are no chance of their own
        is_known = not look.number and look.step >= SETTLED and all(map(math.isfinite, gain))
        self._so_far("gain", value=gain if is_known else None)
        yield self._told_guess() if look.step >= LONG else None
        is_number, shared = False, numbers.get("shared", 0.0)
        several = self._so_far("several", value=shared if shared >= _SEVERAL else None)
        if len(several) >= OFTEN:
            yield self._chosen.judge("labels_several", statistics.mean(several))
        if axis is not None:
            self.axes = {axis}
            if look.step == self._first_step and look.number == 0 and look.made_by in _SCALED:
                begun = numbers[f"loss {axis}"], math.log(look.shape[axis]), numbers["size"]
                found = self._chosen.judge("begins_large", *begun)
                found = found and replace(found, advice=_SCALES, quantity="output")
                is_meant = numbers.get("cosines", math.inf) <= _SHARP
                yield found and replace(found, severity="note" if is_meant else found.severity)
            low, high = numbers[f"low {axis}"], numbers[f"high {axis}"]
            labels_of_pass.append((numbers["reached"], low if low == high else math.nan))
            self._so_far("part", value=numbers["reached"] <= _READ * look.samples)
            weighs = self._so_far("weighs", value=self._weighed(numbers, axis) or False)
            yield weighs[-1] if len(weighs) >= OFTEN and all(weighs) else None
        elif self.axes and (sure := max(numbers.get(f"sure {each}", -1.0) for each in self.axes)) >= 0:
            labels_of_pass.append((numbers["reached"], sure))
        elif "one 0" in numbers:
            is_number = True
            labels_of_pass.append((numbers["reached"], float(f"{numbers['least 0']:.3g}") if numbers["one 0"] else math.nan))
        elif "zeros" in numbers and not look.is_difference:  # of a pair the better one stands first
            is_zero, is_one = (numbers[gradient] or numbers.get(kept) for gradient, kept in (("zeros", "all 0"), ("ones", "all 1")))
            same = 0.0 if is_zero else 1.0 if is_one else math.nan
            yield from self._of_kinds(look, same, numbers.get("same gradient", 0.0))
            labels_of_pass.append((numbers["reached"], same))
        else:
            return
        firsts, *rest = [each for _, each in sorted(self._by("labels").items())]  # the first pass of a step may train nothing
        others = [each for held in rest for each in held]
        singles = [each for _, each in firsts if not math.isnan(each)]
        classes, are_all = set(singles), len(singles) == len(firsts)
        further = [numbers[f"label {at}"] for at in range(1, len(look.outputs)) if numbers.get(f"labelled {at}", 0.0) > 0]
        if len(singles) < _MOST * len(firsts) or not {*further} <= {*singles}:  # as scores of pairs, and of others beside them
            return
        is_sorted = (
            len(classes) > 1 and "one 0" not in numbers and axis is not None and all(count >= DEAD_SAMPLES for count, _ in firsts)
        )
        if is_sorted or (are_all and len(classes) == 1 and classes >= {each for _, each in others}):
            yield self._told_alike(look, numbers["reached"], [*firsts, *others], len(firsts), is_number=is_number)

    def _told_alike(
        self, look: Look, reached: float, labels: Sequence[tuple[float, float]], passes: int, *, is_number: bool
    ) -> Finding | None:
        """Return that *labels* are alike: how many each pass had, and their one class, NaN of several; of first *passes* first.

        Few tell, where the loss reads a part of the samples in each pass, and no other class in any.
        """
        singles = [each for _, each in labels[:passes] if not math.isnan(each)]
        are_all, parts = len(singles) == passes, self._so_far("part")
        is_part = are_all and len({*singles}) == 1 and bool(parts) and all(parts)
        counts = math.inf if is_part else sum(count for count, _ in labels)
        found = self._chosen.judge("labels_alike", counts, float(passes), float(len({*singles})), is_each=are_all)
        if found is not None and is_part:
            message = (
                f"the loss reads {reached:.0f} of {look.samples:,} samples, and all of these have the label {short(singles[0])}"
            )
            return replace(found, message=message, advice=_ONE_READ)
        message = f"all targets of the first {passes} training passes, {counts:,.0f} samples, are {short(singles[0])}"
        return found and (replace(found, message=message, advice=_ONE_NUMBER) if is_number else found)

    def _of_all_classes(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that the targets of a cross-entropy are one distribution, or that it is maximised."""
        axis = len(look.shape) - 1
        if f"even {axis}" in numbers:
            even = self._so_far("even", look.number, value=numbers[f"even {axis}"])
            if len(even) >= OFTEN and not any(map(math.isnan, even)):
                found = self._chosen.judge("labels_alike", math.inf, float(len(even)), 1.0)
                message = f"the targets of all samples are one distribution over the classes, the likeliest of {short(even[-1])}"
                yield found and replace(found, message=message, advice=_EVEN)
        down = self._so_far("down", look.number, value=numbers.get(f"raised {axis}", 0.0) >= MATCHES)
        others = [each for (number,), held in self._by("down").items() if number != look.number for each in held]
        if len(down) >= OFTEN and all((*down, *others)):  # what is to be unlearnt stands beside what is learnt
            found = self._chosen.judge("loss_unbounded", *_NO_LOSS, is_maximised=True)
            yield found and replace(found, advice=_SIGN)

    def _of_other_labels(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that the labels of a further output are alike."""
        for at in range(1, len(look.outputs)):
            if numbers.get(f"labelled {at}", 0.0) > 0:
                labels = self._so_far("labelled", at, look.number, value=(numbers[f"labelled {at}"], numbers[f"label {at}"]))
                firsts = self._so_far("labelled", at, 0) or labels
                classes = {each for _, each in firsts}
                every = {label for (output, *_), held in self._by("labelled").items() if output == at for _, label in held}
                others = (("zeros", "all 0") if classes == {1.0} else ("ones", "all 1")) if classes <= {0.0, 1.0} else ()
                beside = any(map(numbers.get, others))  # the first output has them
                if len(classes) == 1 and every == classes and not beside and not any(map(math.isnan, classes)):
                    counts = sum(count for count, _ in firsts)
                    found = self._chosen.judge("labels_alike", counts, float(len(firsts)), 1.0)
                    yield found and replace(found, site=f"{self._part}:output{look.outputs[at]}")

    def _of_kinds(self, look: Look, label: float, push: float) -> Iterator[Finding | None]:
        """Yield that samples which a generator makes are given one label when it is trained and when a discriminator is.

        Where there is no label, which way each score is pushed: down like a 0, or up.
        """
        is_score = math.isnan(label) and push != 0
        label = float(push < 0) if is_score else label
        if look.taken is None or math.isnan(label):
            return
        storage, is_trained, is_made = look.taken
        others = [each for each in self._kinds if each[1] != is_trained]
        same = [other for held, was_trained, was_made, other in others if held == storage or (is_made if was_trained else was_made)]
        self._kinds.append((storage, is_trained, is_made, label))
        if same:
            misled = self._so_far("misled", value=same[-1] == label)
            found = self._chosen.judge("generator_misled", float(len(misled)), label) if all(misled) else None
            way = f"the scores of generated samples are pushed {'up' if label else 'down'} where either of the two is trained"
            yield replace(found, message=f"{way}: a sign is wrong", advice=_SCORES) if found is not None and is_score else found

    def _told_rare(self) -> Finding | None:
        """Return that next to all labels are one class, and that the model has come to return it for nearly all others, too."""
        rare = self._so_far("rare")
        last = [each for each in rare[-LAST:] if each[0] == rare[-1][0] and each[1] >= _USUAL]
        if len(rare) < OFTEN or len(last) < LAST:
            return None
        (usual, share, *now), counts = last[-1], [sum(each[at] for each in last) for at in (2, 3)]
        if counts[0] < _RARE or now[1] > _MET * now[0] or counts[1] > 2 * _MET * counts[0]:
            return None
        gains, _, entropies, _ = zip(*(self._so_far("gain")[-LAST:] or [(0.0,) * 4]), strict=True)
        if sum(gains) > _CLEARLY * sum(entropies) > 0:
            return None  # it tells them apart, and none of them is likely
        found = self._chosen.judge("labels_alike", math.inf, math.inf, 1.0)
        missed = (
            f"the model returns it for nearly all samples, and finds {counts[1]:.0f} of the {counts[0]:.0f} others in {LAST} passes"
        )
        return found and replace(found, message=f"{percent(share)} of the labels are {usual:.0f}: {missed}", advice=_WEIGH)

    def _of_few(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that a loss reads the same few samples of each pass, fewer than there are classes."""
        axis = label_axis(look, numbers)
        if axis is None or look.number:
            return
        count, classes = numbers["reached"], look.shape[axis]
        few = self._so_far("few", value=numbers["which"] if count < min(classes, _FEW * look.samples) else 0.0)
        if len(few) >= OFTEN and few[0] and len(set(few)) == 1:
            found = self._chosen.judge("input_same", float(len(few)), 0.0, name="what the loss reads")
            message = f"the loss reads the same {count:.0f} of {look.samples:,} samples, in {len(few)} passes"
            yield found and replace(found, message=f"{message}, and there are {classes} classes", advice=_PICKED)

    def _told_guess(self) -> Finding | None:
        """Return that the first output fits the labels of other samples as well as their own, in the last passes together."""
        last = self._so_far("gain")[-KEPT:]
        if len(last) < LAST:
            return None
        gains, noises, entropies, counts = zip(*last, strict=True)
        gain, whole, by_chance = sum(gains), sum(entropies), math.sqrt(sum(noises))
        is_none = gain <= min(_NO_GAIN * whole, _BY_CHANCE * by_chance) and gain + _SURE * by_chance <= _CLEARLY * whole
        has_begun = gains[-1] > _BY_CHANCE * math.sqrt(noises[-1]) and gains[-1] > _NO_GAIN * entropies[-1]
        if not is_none or has_begun or sum(map(mul, entropies, counts)) < _LEAST:
            return None
        return self._told_still(_NO_BETTER)
