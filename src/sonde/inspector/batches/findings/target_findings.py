"""Judge the targets of outputs: their range, their scale, what stands in them, and what they are made of."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sonde.inspector.batches.findings.pass_history import (
    EXACT,
    HALF,
    INPUTS,
    KEPT,
    LAST,
    LONG,
    MATCHES,
    SEEN,
    SETTLED,
    History,
    PassFindings,
)
from sonde.inspector.batches.look import Look
from sonde.inspector.batches.regression_targets import COSINE
from sonde.rules import Chosen, Finding
from sonde.words import percent, short

_SPARE = 8  # samples more than there are classes
_OWN, _VARIED = 1e-10, 0.05  # of a gradient that is no multiple of outputs, rounding; of the size of outputs that vary
_DIFFERENCES = ("Sub", "Rsub", "Abs", "Pow", "Mul")  # what makes an error, which may be what is returned
TEMPERATURE = (
    "look at what multiplies the similarities: divide them by a temperature (0.05 to 0.1 is usual), or multiply them by its inverse"
)
_LOGITS = "leave the last activation out: the loss takes logits, and makes probabilities of them itself; or scale what it returns"
_BINARY = (
    "make targets of 0 and 1, or shares between, of what they are: mask > 0, or mask / 255; for other numbers use a squared error"
)
_UNMADE = 0.1  # of what is given, numbers that a generator cannot make
_OF_GENERATOR = (
    "let the generator end with what can make all of the data (tanh for -1 to 1, no activation), or scale them into its range"
)
_NORMED = (
    "leave the last normalisation out, or let it have a weight and a bias that are trained (affine=True); or scale the targets to "
    "mean 0 and deviation 1"
)
_HIDES = 1e3  # size of outputs, beside which rounding leaves little of targets of size 1
_CUT_OFF = 0.05  # of the labels, those whose logit is cut
_UNREACHED = 0.25  # of the variance of targets, the squares that no output of mean 0 and deviation 1 can be without
_UNSCALED = 30.0  # times as large as what a generator makes
_FAR = 8.0  # times as large as all targets of its shape
_SENTINEL = ("code", "coded", "nearest", "alone")
_ROUNDING = 1e-3  # of a number that is read off gradients
_TRIED = 100  # steps in which outputs have come nearer to their targets
_EXPLAINED = 0.02  # of what targets vary
_GUESS = "outputs explain {share} of what the targets vary: the error is that of returning their mean for all samples"
_DRAWN = "targets are like drawn numbers, of mean 0 and deviation 1 in each look, and outputs explain nothing of them"
_UNSEEN = "targets are like drawn numbers, of mean 0 and deviation 1 in each look, and nothing of them is in what is given"
_DRAWN_ONCE = (
    "look whether the noise that is to be predicted is the one in the input (draw it once, and use it for both), and whether "
    "enough of it is there (the sizes of betas, roots, an axis over which it is averaged)"
)
_SURELY = 2.0  # of their deviations outputs for samples of two kinds are apart
_OUTRUN = 30.0  # times as far as the generator, of equal rates at most a few, steps move a discriminator that it cannot follow
_RATES = (
    "bring the learning rates nearer to each other (that of a discriminator is one to five times that of its generator as a rule), "
    "or step the generator more often"
)
_STILL_OFF = 0.6  # of the first error, what is left behind these where outputs still go for the size of their targets


class TargetFindings(PassFindings):
    """Judges the targets that outputs are compared with."""

    def __init__(self, chosen: Chosen, part: str, history: History) -> None:
        super().__init__(chosen, part, history)
        self._outputs: list[str] = []  # names of those of the last pass

    def of(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield what one pass shows, beside those before it."""
        self._outputs = look.outputs
        yield from self._of_range(look, numbers)
        yield from self._of_columns(numbers)
        yield from self._of_own(look, numbers)
        yield from self._of_regression(look, numbers)
        yield from self._of_generated(look, numbers)

    def at_end(self) -> Iterator[Finding | None]:
        """Yield what the last passes of a training show."""
        for at, name in enumerate(self._outputs):
            for found in (self._told_unexplained(at), self._told_drawn(at)):
                yield found and replace(found, site=f"{self._part}:output{name if at else ''}")

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
            if len(unlikely) >= KEPT:
                chances = [numbers.get(f"{each} chance {at}", math.nan) for each in ("least", "most")]
                found = judge("target_beyond", statistics.median(unlikely), *chances, what=what, is_chance=True)
                advice = TEMPERATURE if look.activations[at] == COSINE else _LOGITS
                yield found and replace(found, site=site, advice=advice)
            cut = self._so_far("cut", at, look.number, value=numbers.get(f"cut {at}"))
            if len(cut) > SEEN and min(cut[-KEPT:]) >= _CUT_OFF:
                found = judge("target_beyond", cut[-1], 0.0, math.inf, what=what)
                message = (
                    f"a {what} cuts the logits of a cross-entropy at 0: {percent(cut[-1])} of the labels are cut, with no gradient"
                )
                yield found and replace(found, message=message, advice=_LOGITS, site=site)
            unreached = self._so_far("unreached", at, look.number, value=numbers.get(f"unreached {at}"))
            if len(unreached) >= KEPT and min(unreached) >= _UNREACHED:
                found = judge("target_beyond", 1.0, 0.0, math.inf, what=what)
                centre, deviation = (short(numbers[f"{each} {at}"]) for each in ("centre", "deviation"))
                message = (
                    f"outputs have mean 0 and deviation 1 whatever is learnt; targets have mean {centre}, deviation {deviation}"
                )
                yield found and replace(found, message=message, advice=_NORMED, site=site)
        known = [numbers.get(each, 0.0) for each in ("target share", "target low", "target")]
        beyond = judge("target_beyond", *known, what="binary cross-entropy")
        yield beyond and replace(beyond, advice=_BINARY)
        yield judge("weight_of_ones", numbers.get("times", 0.0), numbers.get("together", 0.0))

    def _of_own(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that targets are the outputs' own."""
        if "across" in numbers:
            is_own = numbers["across"] <= _OWN and bool(numbers.get("compares")) and look.made_by not in _DIFFERENCES
            is_own &= numbers.get("apart", math.inf) > _VARIED * numbers.get("size", 0.0) and not _hides_targets(numbers)
            own = self._so_far("own", value=is_own)
            yield self._chosen.judge("target_own", float(len(own))) if all(own) else None

    def _of_regression(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield what is wrong with the targets of a squared error: their scale, a sentinel, classes; what explains them not."""
        self._so_far("weighs choices", value="entropy" in numbers)
        for at, name in enumerate(look.outputs):
            found = [self._told_sentinel(f"targets {at}", [numbers.get(f"{each} {at}") for each in _SENTINEL])]
            errors = self._so_far("error", at, value=None if look.number else numbers.get(f"error {at}"))
            sizes = self._so_far("size", at, value=None if look.number else numbers.get(f"size {at}" if at else "size"))
            firsts, lasts = (statistics.median(each) if each else math.nan for each in (errors[:LAST], errors[-LAST:]))
            if sizes and look.step >= _TRIED and lasts >= _STILL_OFF * firsts:
                found.append(self._chosen.judge("target_large", errors[0] ** 2, sizes[0], 1.0))
            classed = self._so_far("classed", at, value=numbers.get(f"classed {at}"))
            found.append(self._chosen.judge("class_regressed", float(len(classed)), float(all(classed))))
            self._so_far("drawn", at, value=numbers.get(f"drawn {at}"))
            self._so_far(
                "unseen", at, value=next((numbers[each] for of in range(INPUTS) if (each := f"unseen {of}") in numbers), None)
            )
            self._so_far("explained", at, value=numbers.get(f"explained {at}") if look.step >= SETTLED else None)
            found.append(self._told_unexplained(at) if look.step >= LONG else None)
            yield from (each and replace(each, site=f"{self._part}:output{name if at else ''}") for each in found)
        for at in range(INPUTS):
            yield self._told_sentinel(f"inputs {at}", [numbers.get(f"input {each} {at}") for each in _SENTINEL])

    def _told_unexplained(self, at: int) -> Finding | None:
        """Return that an output has come to explain nothing of its targets."""
        explained = self._so_far("explained", at)
        if any(each < -HALF for each in explained[-LAST:]):
            return None  # the error is not that of their mean, but larger
        found = self._told_stuck(explained, _EXPLAINED, _GUESS.format(share=percent(max([0.0, *explained[-LAST:]]))), at)
        is_of_critic = at > 0 and any(self._so_far("weighs choices"))  # of rewards that follow no state there is nothing to explain
        return found and replace(found, severity="note" if is_of_critic else found.severity)

    def _told_drawn(self, at: int) -> Finding | None:
        """Return that outputs explain nothing of targets that are like drawn numbers: a note, unless nothing of them is given."""
        explained, drawn, unseen = (self._so_far(each, at) for each in ("explained", "drawn", "unseen"))
        explained = explained[-LAST:]
        if len(explained) < LAST or not all(-HALF <= each <= _EXPLAINED for each in explained) or not all(drawn):
            return None
        found = self._chosen.judge("target_of_another", 1.0)
        told = found and replace(found, message=_DRAWN, advice=_DRAWN_ONCE, severity="note")
        if told is None or not unseen or not all(unseen):
            return told
        return replace(told, message=_UNSEEN, severity="warn", evidence={"drawn": 1.0})

    def _told_sentinel(self, what: str, read: Sequence[float | None]) -> Finding | None:
        """Return that one number, far from all others, stands in *what* of most passes.

        *read*: that number, its share, the nearest other, and whether it is there once. One that is there once in each of all
        passes is a sample far off the others, of data that are the same in each.
        """
        code, share, nearest, alone = read
        shares = [each for each in self._so_far("coded", what, value=share) if not math.isnan(each)]
        codes = [each for each in self._so_far("code", what, value=code) if not math.isnan(each)]
        is_one = len(codes) >= KEPT and max(codes) - min(codes) <= _ROUNDING * abs(codes[0])
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
            yield found if len(columns) >= KEPT and all(each == columns[0] for each in columns) else None
        for at, kind in itertools.product(range(INPUTS), ("is", "scales")):
            names = ("off column", "target column") if kind == "is" else ("scaled column", "column scaled")
            if f"{names[0]} {at}" in numbers:
                off, column = (numbers[f"{name} {at}"] for name in names)
                is_told = off <= EXACT and numbers["reached"] >= _SPARE and not _hides_targets(numbers)
                told = self._so_far("target column", kind, at, value=column if is_told else math.nan)
                if len(told) >= KEPT and all(each == told[0] for each in told):
                    how = {"is_number": True, "is_scaled": kind == "scales", "is_last": bool(numbers[f"last column {at}"])}
                    yield self._chosen.judge("label_seen", 0.0, column, **how)
        for at in range(INPUTS):
            given, target = (
                numbers.get(f"given {at}", 0.0),
                max(-numbers.get("least 0", -math.inf), numbers.get("largest 0", math.inf)),
            )
            if given >= _FAR * target > 0:
                found = self._chosen.judge("input_large", given, does_harm=True)
                sizes = f"what goes in is of size {short(given)}, and what is to be returned at most {short(target)}"
                yield found and replace(found, message=sizes)
            if f"another {at}" in numbers:
                another = self._so_far("another", value=min(numbers[f"another {at}"], numbers[f"stand {at}"]) >= MATCHES)
                if len(another) >= KEPT and all(another):
                    yield self._chosen.judge("target_of_another", numbers[f"another {at}"])

    def _of_generated(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that samples which a model is given are not as a generator makes them for it: beyond its range, or far larger."""
        shares = self._so_far("unmade", value=numbers.get("given beyond"))
        if "given beyond" in numbers and len(shares) >= KEPT and min(shares[-KEPT:]) >= _UNMADE:
            share, *ends = (numbers[f"given {each}"] for each in ("beyond", "least", "largest"))
            beyond = self._chosen.judge("target_beyond", share, *ends, what=look.generated)
            of_data = f"{percent(share)} of what is given, {short(ends[0])} to {short(ends[1])}, are beyond what"
            message = f"{of_data} the last {look.generated} of the generator can make"
            yield beyond and replace(beyond, message=message, advice=_OF_GENERATOR, site=f"{self._part}:input")
        if look.taken is None or not numbers.get("taken", 0.0) > 0:
            return
        _, is_trained, is_made = look.taken
        is_known = "spread 0 0" in numbers and not is_trained
        self._so_far("told", is_made, value=(look.step, numbers["level 0 0"], numbers["spread 0 0"]) if is_known else None)
        yield self._told_game(look)
        held = {each: self._so_far("given", each)[-1:] for each in (False, True)}
        held[is_made] = self._so_far("given", is_made, value=(look.step, numbers["taken"]))[-1:]
        (step, given), (other, made) = ((held[each] or [(-1, math.nan)])[0] for each in (False, True))
        before = self._so_far("unlike")
        if step == other and len(before) < LAST and (not before or before[-1][0] != step):
            unlike = self._so_far("unlike", value=(step, given / made))
            found = self._chosen.judge("input_large", given, does_harm=True)
            if found is not None and len(unlike) == LAST and min(times for _, times in unlike) >= _UNSCALED:
                message = f"what is given is of size {short(given)}, and what a generator makes of size {short(made)}"
                yield replace(found, message=message, site=f"{self._part}:input")

    def _told_game(self, look: Look) -> Finding | None:
        """Return that a discriminator tells what it is given from what a generator makes, look by look, if steps bear it out."""
        given, made = ({step: (level, spread) for step, level, spread in self._so_far("told", each)} for each in (False, True))
        steps = [step for step in given if step in made][-KEPT:]
        is_sure = all(abs(given[each][0] - made[each][0]) >= _SURELY * (given[each][1] + made[each][1]) for each in steps)
        found = self._chosen.judge("rate_small", 1 / _OUTRUN, math.inf, 1.0, math.nan)
        if found is None or look.step < _TRIED or len(steps) < KEPT or not is_sure or given[steps[-1]] == made[steps[-1]]:
            return None
        one, other = given[steps[-1]][0], made[steps[-1]][0]
        message = (
            f"it tells what it is given from what a generator makes, in {len(steps)} looks of {len(steps)} ({short(one)} and "
            f"{short(other)} on average), and steps have moved it {_OUTRUN:.0f} x as far as the other or more"
        )
        return replace(found, message=message, advice=_RATES, evidence={"given": one, "made": other})


def _hides_targets(numbers: Mapping[str, float]) -> bool:
    """Return whether outputs are so large that their gradient has next to nothing of targets of a usual size."""
    return numbers.get("size", 0.0) >= _HIDES
