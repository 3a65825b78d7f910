"""Judge what outputs depend on: other samples, padding, what comes later, or nothing of what goes in."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sonde.inspector.batches.dependence import is_graph_operation, is_statistic
from sonde.inspector.batches.findings.pass_history import (
    DIFFERS,
    EXACT,
    HALF,
    INPUTS,
    KEPT,
    LAST,
    MATCHES,
    NOTHING,
    OFTEN,
    SEEN,
    History,
    PassFindings,
)
from sonde.inspector.batches.look import Depends, Look, label_axis
from sonde.inspector.batches.regression_targets import CUTS
from sonde.inspector.batches.target_reading import AHEAD
from sonde.rules import Chosen, Finding
from sonde.words import percent, shape_text, short

_ALONG, _ACROSS, _TURNED = 0, 1, 2  # tokens as (samples, places), as (places, samples), and labels of outputs in the other order
_OTHER_ORDER = "the loss compares the outputs of one place with the targets of another: one goes by samples, the other by places"
_TRANSPOSED = "transpose or permute its axes, where view or reshape is called"
_UNUSED = (
    "look at what stands between the input and the outputs: a mean or maximum over samples, a detach or no_grad, noise in the "
    "place of a sample, a product with zero, what is subtracted from itself, samples that are taken for places (batch_first)"
)
_SAME_ORDER = "look for a transposition before a view that is made of outputs and not of targets, or the other way round"
_LABELS = 16  # of a pass, with fewer no place is known
_HARDLY = 1e-3  # of what an output depends on
_LAST_RELU = "leave the last activation out: outputs below zero are cut, and get no gradient"
_LAST_DROPOUT = "leave out the dropout of the outputs, or drop what goes into the last layer, at a lower rate"
_LAST_CUT = "leave it out while training: what is cut off gets no gradient; cut predictions where they are used"
_TABLE = 2  # by which a table of similarities may be no square, as without those to itself
_ALIKE = 3e-7  # of the size of outputs, rounding
_NEARLY, _TELLING, _LOST = 1e-4, 1e-2, 0.1  # of their size: outputs that are all but the same; of inputs that are not; the rest
_FADED = 1e-7  # of what outputs depend on the last steps, what their rounding leaves of the first
_REACH = (
    "if what is to be learnt stands in the first steps: use an LSTM or GRU whose forget gates begin open (a bias of 1 or more), "
    "recurrent weights that begin orthogonal, attention or a mean over the steps, or fewer steps"
)
_UNLIKE = 0.8  # as far as any two are samples apart that stand next to each other, and are in no order
_PLACES = 30.0  # times as near to each other outputs with places must have come
_STEPS = (
    "look at batch_first: the layer takes (steps, samples, features), and (samples, steps, features) where it is True; and at a "
    "transposition before it"
)
_ALONE = "an output depends on the token at its own place alone, though the model has attention: no place reads another"
_EVEN_LOOKS = 2  # of samples with equal tokens
_EVEN = 1e-4  # of how much outputs depend on two equal tokens, rounding
_NO_ORDER = "the order of tokens says nothing to the model: an output depends alike on equal ones, wherever they stand"
_POSITIONS = (
    "add what tells places apart (an embedding of positions, sines, rotary ones) before the attention, if their order matters"
)
_PADDING_TRAINED = "what is trained of the model reads the padding of a sample, and not its tokens"
_AXES = (
    "look along which axis a softmax, a normalisation, a mean, a sum or a sort runs: of the two of what goes in one is that of "
    "samples; at dim=, at batch_first, and at views between them"
)
_MASK = "look at the mask of the attention (which way round it is), and along which axis its softmax runs"
_SOME = (
    "look at what stands between the input and the outputs: a mask, a place of padding that is read, units that are dead (as by a "
    "learning rate that was too large), an index or a choice that is the same for these samples"
)
_PADDING = (10.0, 3.0)  # times as much as on a token depends on a place of padding what reads it; where attention can leave it out


_COPIED = 0.7  # of the labels, those that stand in the input; and of the others, those that one token hides
_UNMASKED = "set the labels of tokens that are not masked to -100 (ignore_index): those that are masked are to be predicted"


class DependenceFindings(PassFindings):
    """Judges what outputs depend on, and whether they tell samples apart."""

    def __init__(self, chosen: Chosen, part: str, history: History) -> None:
        super().__init__(chosen, part, history)
        self._before: Look | None = None
        self._has_attention = False
        self._padded = self._mixed = self._unread = 0  # looks that found the padding read alone, samples mixed, and no input read
        self._is_cut = False  # no input was read by the first output, and one by others
        self._apart: dict[str, float] = {}  # by layer: how far samples were apart in what it was given, in the order of execution
        self._viewed = 0  # and an input whose axes a view has exchanged

    def of(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield what one pass shows, beside those before it."""
        yield from self._of_distances(look, numbers)
        yield from self._of_dependence(look, numbers)
        yield from self._of_repeats(look, numbers)

    def _of_distances(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that outputs are alike, from the first pass on, or have come to be: those of one kind in each pass may be."""
        known = {each.removeprefix("apart at "): apart for each, apart in numbers.items() if each.startswith("apart at ")}
        self._apart = known or self._apart
        beside = self._so_far("beside", value=numbers.get("beside"))[-LAST:]
        if "apart" not in numbers or not math.isfinite(numbers["size"]):
            return
        distances = self._so_far("apart", value=(numbers["apart"], numbers["size"]))
        if len(distances) >= KEPT:
            more = _PLACES if len(look.shape) > 2 else 1.0  # places first learn what comes anywhere
            last = [(max([more * apart, *beside]), size) for apart, size in distances[-LAST:]]
            judged = [self._chosen.judge("outputs_alike", *each, distances[0][0]) for each in last]
            yield replace(judged[-1], first_step=look.step) if judged[-1] is not None and all(judged) else None
            are_one = numbers.get("differ", 0.0) > 0 and numbers["size"] > 0
            are_one &= all(apart <= _ALIKE * size for apart, size in distances)
            same = self._so_far("same", value=(look.step, numbers["same"]) if "same" in numbers else None)[:KEPT]
            is_known = len(distances) > SEEN  # by then it is known what is dead, which explains it
            if is_known and len(same) >= KEPT and all(each >= HALF for _, each in same) and not are_one:
                found = self._chosen.judge("input_unused", 2, 1, name="what it is given", has_layers=True)
                share = percent(statistics.mean(each for _, each in same))
                is_cut, what = look.activations[0] in CUTS, look.activations[0].lower()
                is_cut, what = (True, "dropout") if numbers.get("outputs dropped", 0.0) > 0 else (is_cut, what)
                cut = f"the {what} that makes the outputs returns the same for {share} of the samples"
                alike = f"what the model returns is the same for {share} of the samples, though what they are given differs"
                advice = _LAST_DROPOUT if what == "dropout" else _LAST_CUT if is_cut else _SOME
                found = found and replace(found, message=cut if is_cut else alike, advice=advice)
                yield found and replace(found, first_step=same[0][0])
            if is_known and (are_one or self._unread > 1):
                yield self._with_place(self._told_unused(look, numbers, is_cut=self._is_cut))
            elif is_known and numbers.get("differ", 0.0) > 0 and all(0 < apart <= _NEARLY * size for apart, size in distances):
                yield self._told_nearly(max(apart / size for apart, size in distances))

    def _told_nearly(self, share: float) -> Finding | None:
        """Return that outputs have differed by no more than a *share* of their size so far, as the loss may bear out."""
        found = self._chosen.judge("input_unused", 2, 1, name="what it is given", has_layers=True)
        message = (
            f"what the model returns is as good as the same for all samples from the first step on: it differs by {short(share)}"
        )
        message += " of its size, though what it is given differs"
        return self._with_place(found and replace(found, message=message, advice=_UNUSED, evidence={"alike": share}))

    def _with_place(self, found: Finding | None) -> Finding | None:
        """Return the finding that outputs are alike with the layers between which samples have come to be so, if that is known."""
        if found is None or found.advice != _UNUSED or not self._apart:
            return found
        places = list(self._apart.items())
        behind = [(name, alike) for name, alike in places[1:]] + [("", 0.0)]
        for (one, apart), (other, alike) in zip(places, behind, strict=True):
            if apart >= _TELLING and alike <= _LOST * apart:
                rest = f"by {short(alike)} in what goes into {other}" if other else "not in what is returned"
                place = f"samples differ by {short(apart)} of their size in what goes into {one}, and {rest}"
                return replace(found, advice=f"{place}: look behind {one} first; {found.advice}")
        return found

    def _of_repeats(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that two views of each sample are the same: two passes of one loss return the same, or two halves of a batch."""
        before = self._before
        is_one_loss = before is not None and before.loss == look.loss and not before.terms[0].isdisjoint(look.terms[0])
        is_again = bool(numbers.get("again")) and is_one_loss and numbers.get("reached", 0.0) > 0
        if "differ" in numbers or look.number:
            equal = self._so_far("equal", value=not look.number and numbers["differ"] == 0)  # a game may begin alike, and go on
            if len(equal) >= OFTEN and all(equal):
                yield self._chosen.judge("input_same", float(len(equal)), 0.0)
        for name, is_same in (("again", is_again), ("halves", bool(numbers.get("halves")))):
            if name in numbers and look.made_by != "Embedding":  # positions are the same each time
                repeats = self._so_far(name, value=is_same)
                yield self._chosen.judge("views_same", float(len(repeats))) if all(repeats) else None
        self._before = look

    def _of_dependence(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield what outputs depend on that they should not."""
        axis = label_axis(look, numbers)
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
        yield self._told_order(numbers)
        padded = numbers.get(f"padded {axis}", 0.0)
        yield self._chosen.judge("padding_counted", padded) if is_sequence or padded >= DIFFERS else None
        yield self._chosen.judge("padding_counted", numbers.get(f"at padding {axis}", 0.0), is_given=True)
        for place in range(look.tokens):
            real, padding = (numbers.get(f"{name} {place}", math.nan) for name in ("real", "padding"))
            is_apart = numbers.get(f"others {place}", 0.0) <= NOTHING * padding  # where samples are mixed, that is what is wrong
            self._padded += is_apart and real <= _HARDLY * padding and padding > 0
            if self._padded > 1 and is_apart:
                found = self._chosen.judge("padding_alone", real, padding)
                is_whole = look.depends is not None and look.depends.inputs[place][1]
                yield found if is_whole or found is None else replace(found, message=_PADDING_TRAINED)
            yield from self._of_places(look, numbers, place)
            yield self._told_crossed(look, numbers, place)
            if axis is None:
                continue
            yield self._told_copied(numbers, axis, place, look.tokens)
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
            yield from self._of_zeros(look.depends, numbers)
            yield from self._of_reach(look, look.depends, numbers)

    def _told_recurrent(self, look: Look) -> Finding | None:
        """Return that a recurrent layer takes samples for steps, as two looks have found it."""
        if look.recurrent is None or len(self._so_far("recurrent", value=1.0)) < 2:
            return None
        found = self._chosen.judge("samples_mixed", math.inf, 0.0)
        message = f"{look.recurrent} takes the samples for steps: each sample's outputs depend on those before it"
        return found and replace(found, message=message, advice=_STEPS, site=f"{look.recurrent}:output")

    def _told_order(self, numbers: Mapping[str, float]) -> Finding | None:
        """Return that an input would be smoother with its axes in another order, as one that a view has filled."""
        found: list[Finding] = []
        for name in (each for each in numbers if each.startswith("in order ")):
            order = name.removeprefix("in order ").partition(" ")[2]
            judged = self._so_far(name, value=self._chosen.judge("samples_mixed", numbers[name], 0.0, order=order) or False)
            found += judged[-1:] if len(judged) >= LAST and all(judged) else []
        told = min(found, key=lambda each: each.value, default=None)
        return told and replace(told, advice=_TRANSPOSED, site=f"{self._part}:input")

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
        are_even = self._has_attention and numbers[f"twins {place}"] > 1 and numbers[f"uneven {place}"] <= _EVEN
        even = self._so_far("even", place, value=are_even if numbers[f"twins {place}"] > 1 else None)
        if are_even and len(even) >= _EVEN_LOOKS and all(even):
            found = self._chosen.judge("input_unused", 2, 1, name="the order of its tokens", has_layers=True)
            yield found and replace(found, message=_NO_ORDER, advice=_POSITIONS, evidence={"order": 0.0})
        places = [at for at, (_, is_argument) in enumerate(look.depends.inputs) if f"read {at}" in numbers and is_argument]
        others = sum(numbers[f"{name} {at} {way}"] for at in places for way in (0, 1) for name in ("before", "next", "later"))
        here = numbers[f"here {place} 0"]
        is_alone = self._has_attention and len(look.shape) > 2 and others <= NOTHING * here and here > 0
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
        if whole > 0 and others > NOTHING * whole and way == _ALONG and depends is not None:
            yield self._told_mixed(place, depends, numbers)
        if ahead == 0 and whole > 0 and min(before, here) <= NOTHING * whole:
            return  # each place by itself, as of an autoencoder of tokens, or one that is asked for before it is given
        is_part = self._part != "(root)"  # as a head of several, each for a token further ahead
        if (ahead > 1 and not is_part) or (ahead < 1 and whole > 0):
            is_causal = ahead != 0 or following + later <= NOTHING * whole
            is_picked = numbers.get(f"pieces {axis}", 0.0) > 1  # some places here and there, as of masked tokens
            yield self._chosen.judge("target_shifted", float(ahead), is_causal=is_causal, is_picked=is_picked)

    def _told_copied(self, numbers: Mapping[str, float], axis: int, place: int, tokens: int) -> Finding | None:
        """Return that most labels are the tokens at their place, and the others are masked there; no decoder is given them."""
        share, masked = (numbers.get(f"{name} {axis}", 0.0) for name in (f"match {place} {_ALONG} 0", f"masked {place}"))
        is_given = any(_ahead(numbers, axis, each, _ALONG) == 1 for each in range(tokens))
        is_copy = share >= _COPIED and masked >= _COPIED and not is_given
        shares = self._so_far("copied", place, value=share if is_copy else 0.0)
        if len(shares) < LAST or min(shares) < _COPIED or statistics.median(shares) >= 1:
            return None
        found = self._chosen.judge("target_shifted", 0.0)
        message = (
            f"{percent(statistics.median(shares))} of the labels are the tokens that stand there, and the others are masked: the "
            "model learns to copy"
        )
        return found and replace(found, message=message, advice=_UNMASKED)

    def _of_series(self, depends: Depends, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that a model of series sees the value it is to predict, or is to return the value it is given."""
        aheads = [ahead for ahead in (0, 1) for at in range(INPUTS) if numbers.get(f"series {ahead} {at}", 1.0) <= EXACT]
        for place in range(len(depends.inputs)):
            before, here, following, later = (numbers.get(f"{name} {place} 0", 0.0) for name in ("before", "here", "next", "later"))
            whole = before + here + following + later
            if aheads == [1] and whole > 0:
                yield self._chosen.judge("future_seen", (following + later) / whole, before + here, what="values")
            if aheads == [0] and before > 0 and following + later <= NOTHING * whole:
                yield self._chosen.judge("target_shifted", 0.0)

    def _of_zeros(self, depends: Depends, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that steps of zeros at the end of samples, as padding, are read more than those before them."""
        for place, (_, is_argument) in enumerate(depends.inputs):
            times = self._so_far("zeros", place, value=numbers.get(f"zeros {place}", math.nan))
            if is_argument and len(times) > 1 and all(_PADDING[self._has_attention] <= each < math.inf for each in times[-2:]):
                found = self._chosen.judge("padding_alone", 0.0, 1.0)
                message = (
                    f"what the model returns depends {short(times[-1])} x as much on a step of padding, zeros at the end of a "
                    "sample, as on one before"
                )
                yield found and replace(found, message=message, severity="warn")

    def _of_reach(self, look: Look, depends: Depends, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield, as a note, that the first steps of a recurrent network hardly reach what it returns, in each look."""
        for place, (shape, _) in enumerate(depends.inputs):
            reaches = self._so_far("reach", place, value=numbers.get(f"reach {place}"))
            if len(look.shape) == 2 and len(reaches) > 1:  # whose outputs have no steps
                found = self._chosen.judge("gradient_vanishing", max(reaches), 1.0)
                message = (
                    f"what the model returns depends {short(reaches[-1])} x as much on the first of {shape[1]} steps as on the last"
                )
                evidence = {"reach": reaches[-1]}
                is_lost = max(reaches) < _FADED
                yield found and replace(
                    found, message=message, advice=_REACH, severity="warn" if is_lost else "note", evidence=evidence
                )

    def _told_unused(self, look: Look, numbers: Mapping[str, float], *, is_cut: bool = False) -> Finding | None:
        """Return that outputs do not depend on what they are made of; *is_cut*: the first one does not, others do."""
        found = self._chosen.judge("input_unused", 1 + is_cut, 1, name="what it is given", has_layers=True)
        message, advice = "what the model returns is the same for all samples, though what it is given differs", _UNUSED
        if is_cut:
            message = "no gradient comes from what the model returns first to what it is given, but for other outputs"
        elif look.activations[0] == "Relu" and numbers["size"] == 0:
            message, advice = "the relu that makes the outputs returns 0 for all samples", _LAST_RELU
        elif look.activations[0] in CUTS:
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
        crossed = self._so_far("crossed", place, value=numbers[f"cross {place}"] > NOTHING * whole > 0)
        found = self._chosen.judge("samples_mixed", numbers[f"few {place}"] / whole, NOTHING) if sum(crossed) > 1 else None
        message = f"samples of a batch are mixed: an output depends on tokens of other rows and columns of the {shape_text(shape)}"
        return found and replace(found, message=f"{message} that go in", advice=_AXES)

    def _told_mixed(self, place: int, depends: Depends, numbers: Mapping[str, float]) -> Finding | None:
        """Return that samples are mixed, by which operation and where, if two looks have found it so."""
        own, others = numbers[f"own {place}"], numbers[f"others {place}"]
        mixing = [each for at, each in enumerate(depends.operations) if numbers[f"mixed {at}"]]
        is_meant = bool(mixing) and all(is_graph_operation(name) for name, *_ in mixing)
        are_less = all(is_statistic(name) for name, *_ in mixing) and numbers[f"most {place}"] < DIFFERS * own
        if depends.is_graph or is_meant or others <= NOTHING * own or (depends.sought and bool(mixing) and are_less):
            return None
        self._mixed += 1
        found = self._chosen.judge("samples_mixed", others / (own + others), NOTHING)
        if found is None or self._mixed < 2 or not depends.sought:
            return None
        message = f"samples of a batch are mixed: {percent(found.value)} of the gradient of one sample's outputs goes to others"
        if not mixing:
            return replace(found, message=message)
        name, before, behind = mixing[-1]
        site = _common(before, behind)
        where = f"in {site}" if site else "between " + " and ".join(each or "the outputs" for each in (before, behind))
        return replace(found, message=f"{message}, by its {name.lower()} {where}", site=site and f"{site}:output")


def _common(one: str, other: str) -> str:
    """Return the name of the innermost module that holds both; ``""`` for the root."""
    parts = zip(one.split("."), other.split("."), strict=False)
    return ".".join(first for first, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], parts))


def _ahead(numbers: Mapping[str, float], axis: int, place: int, way: int) -> int | None:
    """Return how many places ahead of their output the labels stand in the tokens at *place*; None where they are others."""
    shares = {ahead: numbers.get(f"match {place} {way} {ahead} {axis}", -1.0) for ahead in AHEAD}
    best = max(AHEAD, key=lambda ahead: shares[ahead])
    is_clear = shares[best] >= MATCHES and all(shares[each] < DIFFERS for each in AHEAD if each != best)
    return best if is_clear and numbers[f"telling {axis}"] >= _LABELS else None
