"""Judge the gradients at outputs: how large they are beside each other, which way they push, and what gets none."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sonde.inspector.batches.findings.pass_history import KEPT, LAST, OFTEN, SEEN, PassFindings, has_room, weighed
from sonde.inspector.batches.look import EACH, Look, label_axis
from sonde.rules import Finding
from sonde.words import short

_BOUNDED = ("Sigmoid", "Tanh")
_DOMINATES = 100.0  # times as large as at another output is a gradient of targets that are not scaled
_MEANT = 3e-4  # weight of a term, from which on it is a usual one
_LATE, _PULLED = 100, 0.7  # steps; share of a first gradient that is not a divergence's
_GONE, _LESS = 0.1, 0.7  # size of what is as good as 0, and of its first one
_COLLAPSED = "pulled by a divergence: they say nothing of the sample (a posterior that is the prior)"
_VOLUME = "subtract the log-determinant of a flow from the loss that its outputs have: without it all outputs shrink to one point"
_ENTROPY = 0.1  # of a gradient that is no entropy's
_IDLE = (
    "look at what picks a column: an index that is always the same, a slice, a mask; and whether more columns are made than needed"
)
_PLACES_READ = (
    "look at the lengths, the slice or the mask that picks what the loss reads (input_lengths of ctc_loss count the places of the "
    "output): what the model returns at the others is never learnt"
)
_CUT_OFF = (
    "look whether what else is to train the outputs is cut off (log-probabilities behind a detach or no_grad), whether rewards or "
    "advantages are zero, and at the weight of the entropy"
)
_ONE_LABEL = "all targets of the first {passes:,} training passes are {label}: each of them pushes the output the same way"
_WEIGHTLESS = (
    "look for a weight of zero, a mask that holds nothing, an argmax or a detach() in that term, a bound that all samples keep, a "
    "clamp"
)
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


class GradientFindings(PassFindings):
    """Judges the gradients that come to outputs."""

    def of(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield what one pass shows, beside those before it."""
        yield from self._of_derivatives(look, numbers)
        yield from self._of_fading(look, numbers)
        yield from self._of_entropy(look, numbers)
        yield from self._of_parts(look, numbers)
        yield from self._of_volume(look, numbers)
        yield from self._of_passes(look, numbers)
        yield from self._of_ways(look, numbers)

    def _of_derivatives(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that second derivatives of the outputs are zero, or that first ones are in a loss that has no graph of them."""
        sizes = [numbers[f"derivative {at}"] for at in range(look.derivatives)]
        is_zero = look.is_piecewise and 0 in sizes and max(sizes) > 0
        zeros = self._so_far("second", look.number, value=is_zero or (False if sizes else None))
        if len(zeros) >= KEPT and all(zeros):
            found = self._chosen.judge("gradient_zero", 0.0)
            yield found and replace(found, message=_PIECEWISE, advice=_SMOOTH, site=f"{self._part}:input")
        lacks = self._so_far("lacks", look.number, value=look.lacks_term or (False if look.is_ungraphed else None))
        if len(lacks) >= KEPT and all(lacks):
            found = self._chosen.judge("gradient_zero", 0.0)
            yield found and replace(found, message=_UNGRAPHED, advice=_GRAPHED, site=f"{self._part}:input")

    def _of_fading(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that an output has shrunk whose gradient is mostly that of a penalty: a further one, or that of a part."""
        for at in range(self._part == "(root)", len(look.outputs)):
            name = f" {at}" if at else ""
            size, across, loose = (numbers.get(f"{each}{name}") for each in ("size", "across", "loose"))
            fades = self._so_far("fading", at, value=None if None in (size, across) else (size, across, loose))
            if len(fades) > EACH and fades[0][0]:
                own, what = statistics.median(each for _, each, _ in fades[LAST:]), look.outputs[at] or self._part
                most = max(each for *_, each in fades) if fades[0][0] <= 1 else 1.0  # what begins larger may be on its way to 1
                judged = [
                    self._chosen.judge("penalty_alone", size / fades[0][0], own, what=what, at_most=most) for size, *_ in fades[-2:]
                ]
                yield judged[-1] if all(judged) else None
        gone = [at for at in range(1, len(look.outputs)) if look.step >= _LATE and _is_gone(self._so_far("fading", at))]
        found = self._chosen.judge("penalty_alone", 0.0, 0.0, at_most=0.0) if len(gone) > 1 else None
        if found is not None:
            names = [look.outputs[at].strip(".[]") for at in gone]
            sizes = [short(self._so_far("fading", at)[-1][0]) for at in gone]  # this pass may have brought no gradient to one
            message = f"outputs {' and '.join(names)} have come to 0 (of size {', '.join(sizes)}), {_COLLAPSED}"
            yield replace(found, message=message, site=f"{self._part}:output{look.outputs[gone[0]]}")

    def _of_entropy(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that an entropy is all that trains the outputs."""
        if "entropy" in numbers and label_axis(look, numbers) is None:  # of a label that is sure, both slopes are alike
            firsts = self._so_far("entropy", value=numbers["entropy"])[:OFTEN]
            is_alone = len(firsts) == OFTEN and statistics.median(firsts) <= _ENTROPY
            alone = self._chosen.judge("penalty_alone", 0.0, max(firsts), is_entropy=True) if is_alone else None
            yield alone and replace(alone, advice=_CUT_OFF)

    def _of_parts(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that the gradients at outputs are of very different sizes."""
        judge = self._chosen.judge
        parts = [numbers.get(f"part {at}", 0.0) for at in range(len(look.outputs))]
        largest, least = (each(range(len(parts)), key=parts.__getitem__) for each in (max, min))
        if look.number == 0 and parts[least] > 0 and math.isfinite(parts[largest]):
            weights = [numbers.get(f"weight {look.loss} {min(look.terms[at], default=0)}", 0.0) for at in (largest, least)]
            weights = weights if len(look.terms[largest]) == len(look.terms[least]) == 1 else [0.0, 0.0]
            meant = weights[1] if _MEANT <= weights[1] < 1 else 1.0  # the weight of a small term, as of an entropy
            uneven = self._so_far("uneven", value=(largest, least, weights, meant * parts[largest] / parts[least]))[:EACH]
            if len(uneven) >= KEPT and all(each[:2] == uneven[0][:2] for each in uneven):
                times = min(each for *_, each in uneven)
                found = judge("terms_uneven", times, one=_named(look, largest), other=_named(look, least))
                yield found and replace(found, message=found.message + weighed(weights))
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
            yield self._chosen.judge("terms_uneven", least, one=one, other=other) if len(times) >= KEPT else None

    def _of_ways(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that nothing holds an output, which each sample of each pass pushes the same way, or that one gets no gradient."""
        is_read = label_axis(look, numbers) is not None or any(map(numbers.get, ("zeros", "ones", "target", "is binary")))
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
            if len(ways) > SEEN and look.activations[at] in _BOUNDED and numbers.get(f"toward {at}"):
                has_end = f"floor {at}" in numbers and not has_room(numbers, at, levels[-1], ways[0][0])
                what = look.activations[at].lower()
                found = self._chosen.judge("target_beyond", float(has_end), math.nan, math.nan, what=what, side=-ways[0][0])
                yield found and replace(found, site=f"{self._part}:output{look.outputs[at] if at else ''}")
            elif (
                len(ways) > SEEN and numbers.get(f"logistic {at}") and (numbers[f"taken {at}"] or len(look.outputs) == 1)
            ):  # of labels that are none alike, some push the other way
                found = self._chosen.judge("labels_alike", math.inf, float(len(ways)), 1.0)
                yield found and replace(found, message=_ONE_LABEL.format(passes=len(ways), label="0" if ways[0][0] > 0 else "1"))
            elif len(ways) > SEEN and is_alone and look.number == 0 and look.terms[at] and not numbers.get(f"toward {at}"):
                which = _named(look, at) + f"[:, {column}]" * (len(every) > len(look.outputs))
                yield self._chosen.judge(
                    "pushed_one_way", float(len(ways)), abs(levels[-1] - levels[0]), self._so_far("pushed size", at)[0], what=which
                )

    def _of_columns_idle(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that a column of the first output gets no gradient, or that the errors of samples cancel."""
        for name, what in (("idle", "column {:.0f} of the output gets"), ("alone", "all columns of the output but {:.0f} get")):
            columns = self._so_far("columns", name, look.number, value=numbers.get(name))
            if len(columns) > SEEN and columns[0] >= 0 and len(set(columns)) == 1:
                found = self._chosen.judge("terms_uneven", math.inf)
                message = f"{what.format(columns[0])} no gradient, in {len(columns)} passes: what stands there is never learnt"
                yield found and replace(found, message=message, advice=_IDLE)
        for axis in (0, 1):
            read = self._so_far("read places", axis, look.number, value=numbers.get(f"reads {axis}"))
            if len(read) > SEEN and read[0] and len(set(read)) == 1:
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
            if all(cancels) and min(signs.count(True), signs.count(False)) >= LAST:
                yield self._chosen.judge("errors_cancel", float(len(signs)))

    def _of_volume(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that the volume which a flow has changed, one of its outputs, never gets a gradient, where the first one does."""
        for at in (at for at, is_volume in enumerate(look.volumes) if is_volume):
            unheld = self._so_far("unheld", at, value=look.is_heard and f"part {at}" not in numbers)
            found = self._chosen.judge("terms_uneven", math.inf) if len(unheld) > SEEN and all(unheld) else None
            message = f"no term of the loss holds {_named(look, at)}, which adds up logarithms of what outputs are multiplied by"
            yield found and replace(found, message=message, advice=_VOLUME)

    def _of_silence(self, look: Look) -> Iterator[Finding | None]:
        """Yield that one output, or one pass of a step, gets a gradient of zero, and others do not."""
        every = self._by("silent")
        silent = [each for each, zeros in every.items() if len(zeros) > SEEN and all(zeros)]
        heard = [each for each, zeros in every.items() if len(zeros) > SEEN and not any(zeros)]
        if silent and heard and (look.number == silent[0][1]):
            several = any(number for _, number in every)
            one, other = (_named(look, at, number if several else None) for at, number in (heard[0], silent[0]))
            found = self._chosen.judge("terms_uneven", math.inf, one=one, other=other)
            yield found and replace(found, advice=_WEIGHTLESS)


def _named(look: Look, at: int, number: int | None = None) -> str:
    """Return what an output is called in messages, and if its *number* is given, the pass of a step."""
    name = " ".join(["the output", ".".join(re.findall(r"[^][.']+", look.outputs[at]))]).strip()
    return name if number is None else f"{name} of pass {number + 1} of each step"


def _is_gone(fades: Sequence[tuple[float, float, float]]) -> bool:
    """Return whether an output whose gradient was a divergence's at first has come to 0, by its size and shares in each pass."""
    (begun, _, loose), lasts = fades[0] if fades else (0.0, 0.0, 1.0), [size for size, *_ in fades[-LAST:]]
    return len(fades) > EACH and loose <= _PULLED and 0 < max(lasts) <= min(_GONE, _LESS * begun)
