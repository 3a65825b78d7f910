"""Apply the rules about sizes and shares of tensors to the rows of one model, while they are written or afterwards."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median

import numpy as np
import numpy.typing as npt

from sonde.rows import RowBlock
from sonde.rules.chosen import Chosen
from sonde.rules.experts import Experts, experts_of
from sonde.rules.finding import RULES, Finding
from sonde.rules.gradients import ALONG
from sonde.rules.growth import BEGINS_SIZE, BEGINS_WEIGHT, MADE_LARGE, WEIGHT_BEYOND, WEIGHT_SMALL
from sonde.rules.layer_groups import Groups, among, first_of, joined, medians, parameter_of, rank_correlation
from sonde.rules.model_facts import Fact, ModelFacts
from sonde.rules.place_history import RECENT, Growth, History
from sonde.rules.readings import DEEP, PLACES, Reading, Sizes, updates
from sonde.rules.updates import IDLE, RETURNS, UNMOVED
from sonde.rules.window import Columns, Mask, Numbers, extended
from sonde.site import Site
from sonde.words import short

_FEW = 3  # weights: with fewer, none can be far from the others
_RELU = ("ReLU", "ReLU6", "Threshold", "Hardtanh")
_EARLY = 6  # logged steps of a weight before its steps can be too small
_CONVERGED = 1e-3  # size of a gradient, of its first one, below which small steps are meant: there is little left to do
_MOVED = 0.1  # of a weight: by more than this a step makes another one of it
_FOLLOWS = 3.0  # times as large, at least, gradients are where what goes in is ten times as large
_UNNORMALISED = 10  # size of what a normalisation returns with statistics that are not those of what goes in
_GROWN = 10  # times as large as its first size what goes in did not begin so
_INPUTS, _EARLY_INPUTS = 32, 3  # sizes of inputs that are remembered, and the fewest that one is compared with
_ENDED = 20  # logged steps without a gradient, from which on a weight that had one gets none any more
_WRITES, _APART = 8, 4.0  # moments of writes that are remembered; how far steps between logged ones may differ from these
_MEAN_STEP, _SAME_SHARE = 1e-6, 0.02  # mean of a step, of the size of its parameter, that is no rounding; how far shares differ
_SUMS_TO_ZERO = 1e-3  # mean of a gradient, of its size, below which it sums to zero but for rounding
_NEAR, _AROUND = 0.1, 0.15  # how near a loss and its gradient come to those of a guess, and probabilities to 1/2
_SIGMOID_OF_HALF = 1 / (1 + math.exp(-0.5))
_MOST_OF_IT = 0.8  # of the size of an output, that of a bias
_AMPLIFIED = 5.0  # times as large as any output before it, what goes into a layer has been summed or multiplied
_TABLE = "scale its initial values down to a deviation of 1 (0.1, where vectors are multiplied with each other)"
_PADDED = (
    "look first at the tokens that go in: the row of padding_idx is zero, and all may be padding (a mask the wrong way round, a "
    "vocabulary without these words, what pads or cuts a sequence); else at weights never initialised"
)
_TABLES = ("Embedding", "EmbeddingBag")
_RECURRENT = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")
_PLAIN = ("Linear", "Conv1d", "Conv2d", "Conv3d")  # layers that return the product of weight and input as it is
_FEATURES, _COLUMNS = 8, 4  # fewer inputs may be coordinates, which a sine takes; and fewer columns of a table may be plain numbers
_USUAL_WEIGHT = 3.0  # size of a weight, of torch's own, up to which it is a usual one: He's is 2.5 x, and a small one varies
_STATISTICS = 3.0  # size of what a normalisation over samples returns, of its weight and bias: with those of what goes in it is 1
_ELSEWHERE = (
    "a sum or a product between layers (over neighbours or positions, an exponential, a factor), and at a normalisation in "
    "evaluation mode whose running statistics are not those of the data"
)
_BOUND = 1.05  # of weight and bias, which a normalisation of two elements returns; a step moves both
_TWO = "give larger batches, or normalise within each sample (LayerNorm, GroupNorm): how far two elements are apart is lost"
_NO_SIZE = 0.1  # no output counts as smaller: a hundredfold of less is no large one
_ALIKE = 1.05  # ratios of updates to gradients that differ by less are one learning rate
_LARGE_RATE, _LARGE_STEP = 0.5, 0.03  # learning rates that are no usual ones: of gradients, and of steps of that size
_MEASURED = 16  # logged steps before a step that it is compared with
_FEW_STEPS = 4  # steps, from which on it is known how many elements outputs have

_ZEROS = (
    "look at what goes into this layer, and what of it is used: padding of zeros that a mask the wrong way round leaves alone, an "
    "index that picks it, an input that is zero"
)
_FROM_ZERO = 1 + 1e-5  # times its first step, rounding, as which a weight is that began at zero
_RETURNED, _SPELL = 5, 50  # rows, in most of which a gradient that was zero has come again; steps for which it may be zero
_CANCELS = "the loss, or a normalisation, may cancel what is added to all it compares: then the parameter is of no use"
_FIRST_STEPS = ", and that of the weight beside it is not: only first steps, whose state is zero, reach the loss"
_ROUTED = (
    "look at what {router} makes, which has one output for each of these parts: a term that is to balance them (its sign, its "
    "weight), noise, how many of them take part, and how large its weights have become; those that it never picks learn nothing"
)
_ONE_STEP = (
    "look in this order at which steps of its output are used (the last one, of a layer that reads both ways, is the first of its "
    "reverse), at the axis of time (batch_first), and at sequences of one step, or a state that is never passed on"
)

Steps = npt.NDArray[np.int64]


def _is_near(value: float, other: float) -> bool:
    return abs(value - other) < _NEAR * other


def _in_order(history: History, port: str) -> list[int]:
    """Return the columns at a *port* in the order of execution."""
    return sorted(np.flatnonzero(history.at(port)).tolist(), key=history.rank)


class LayerFindings:
    """The rules about sizes (root mean squares) and shares of elements, for one family and model.

    >>> from sonde.rules import Chosen, LayerFindings, ModelFacts
    >>> found = LayerFindings(ModelFacts({}), Chosen())
    >>> list(found.findings()), found.of_first_loss(2.0), found.moved_first(0, 3.0)
    ([], [], None)
    >>> found.chance, found.dead_since("1:output"), found.share_of_batch(0)
    (nan, {}, 1.0)

    Rules about single steps say in their entries where they are judged, and how often they must hold. A rule that compares steps
    has a memory of its own here.

    Args:
        facts: about the layers.
        chosen: the rules that are applied.

    Attributes:
        chance: the cross-entropy of a guess; NaN if that is not known.
    """

    def __init__(self, facts: ModelFacts, chosen: Chosen) -> None:
        self.history = History("rms", facts)
        self._facts = facts
        self._chosen = chosen
        self._groups: Groups | None = None
        self._known = -1
        self._counts: list[tuple[int, Numbers]] = []  # of the last steps, how many elements each column has
        self._usual = np.empty(0)  # of each weight its size as torch would initialise it, 0 of what is none
        self._outputs = Growth(chosen.limit("output_growth", "factor"))
        self._weights = Growth(chosen.limit("weight_growth", "factor"))
        self._firsts = np.empty((5, 0))  # of each column; count: of elements
        self._first, self._first_step, self._first_count, self._first_mean, self._first_max = self._firsts
        self.chance = math.nan
        on = [name for name, rule in chosen.applied().items() if rule.at in PLACES or name == "update_small"]
        self._held = {name: chosen.held(name) for name in on}
        self._marks = np.empty((4, 0))  # of each update: how many, update / weight at the last two powers of 2, and the largest
        self._small_since = self._still = np.empty(0)  # of each update, the step from which on it was too small; of each column of
        # a gradient or parameter, steps in which others moved and it had no update
        self._last_weight = -1, math.nan  # of the first layer: the last logged step, and the size behind it
        self._inputs: deque[float] = deque(maxlen=_INPUTS)  # sizes of what went into the first layer
        self._ratios: deque[float] = deque(maxlen=_INPUTS)  # sizes of the gradients of its weight, of those of its bias
        self._first_input = math.nan  # what went into the first layer at first is no larger
        self._large_input: Finding | None = None
        self._unscaled: Finding | None = None  # about an input that is too large only where it does harm
        self._follows_gradient: bool | None = None  # whether the first updates are one multiple of the gradients, as those of SGD
        self._last_layer: tuple[int, list[int]] = 0, []  # units of the weight that makes the outputs of the model; gradients there
        self._of_first: tuple[tuple[str, int, int], list[Finding]] = ("", -1, -1), []  # what was asked, and what was found
        self._norms: list[Finding] = []  # about settings of normalisations
        self._first_move = math.nan  # size of the first update of half of the weights
        self._heavy: list[tuple[int, float]] = []  # weights that begin large, and how large they are beside torch's own
        self._written = np.empty((5, 0))  # of each parameter: last step, size and mean, largest update, and logged steps
        self._writes: list[Finding] = []  # each time that parameters were written into
        self._often = chosen.held("overwritten")
        self._between = 0  # steps before which parameters had moved that steps do not move
        self._steps_made = np.empty((3, 0))  # of each parameter: last step, its mean before that, and the mean of its update
        self._returns: list[int] = []  # steps, one after the other, that were taken back
        self._returned: Finding | None = None
        self.takes_turns = False  # whether parts are trained against each other: each moves in steps of its own, and runs in them
        self._turns: list[Columns] = []  # which updates there were in the first such step, and in the first with others
        self.pace, self.way = math.nan, 0.0  # update / weight of half of the weights, in the last step, and the sum of all steps
        self.first_pace = math.nan  # and in the first logged step
        # of each gradient and output: rows, steps since the last, the longest gap before, the last step, and steps of zeros or none
        self._gaps = np.empty((5, 0))
        self._experts: list[Experts] = []
        self._begins: list[Finding] = []  # about outputs and weights at the first logged step
        self._looked = False

    def add(self, block: RowBlock) -> None:
        """Add rows.

        >>> from sonde.inspector import Sink
        >>> from sonde.rules import Chosen, LayerFindings, ModelFacts
        >>> class Judge(Sink):
        ...     def write(self, rows):
        ...         found = LayerFindings(ModelFacts({}), Chosen())
        ...         found.add(rows.block())
        ...         print(list(found.findings()))
        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> writer.run().send_to(Judge())
        []
        """
        history, steps = self.history, block.moments[:, 1]
        values = history.add(block)
        if self._groups is None or self._known != history.changes:
            self._groups, self._known = Groups.of(history, self._facts), history.changes
            self._usual = np.array([fact.usual for fact in history.facts])
            order = {history.sites[c].path: int(history.order[c]) for c in np.flatnonzero(history.at("output")).tolist()}
            self._experts = list(experts_of(dict(self._of_model()), order))
            self._norms = list(self._of_norms())
        groups = self._groups
        self._counts = [*self._counts[-RECENT:], *zip(steps.tolist(), history.of("count"), strict=True)]
        self._remember_first(values, steps)
        weights = history.at("param") & history.matrix
        if math.isnan(self._outputs.common):
            self._outputs.common = max(first_of(values[:, groups.inner], np.nanmax), _NO_SIZE)
        if math.isnan(self._weights.common):
            self._weights.common = first_of(values[:, weights], np.nanmedian)
        self._outputs.add(np.where(groups.inner, values, np.nan), steps)
        self._weights.add(np.where(weights, np.maximum(values, self._usual), np.nan), steps)
        sizes = Sizes(history, groups, values, self._first)
        with np.errstate(all="ignore"):
            self._look_at_recurrent_input(sizes, steps)
            self._look_at_input(sizes, steps)
            self._look_for_gaps(values, steps)
            self._look_for_turns(values)
            self._look_for_writes(sizes, steps)
            self._look_for_returns(sizes, steps)
            self._look_at_steps(sizes, steps)
            self._look_at_updates(sizes, block)
        if not self._looked:
            self._look_at_first(values, steps, groups)

    # Rows

    def _look_at_steps(self, sizes: Sizes, steps: Steps) -> None:
        """Judge each step by the rules that say where."""
        read: dict[str, Reading] = {}
        for name in self._held:
            place = RULES[name].at
            if place not in PLACES:
                continue
            if place not in read:
                read[place] = PLACES[place](sizes)
            reading = read[place]
            numbers = [reading.numbers[number] for number in RULES[name].reads if number in reading.numbers]
            if len(reading.columns):
                holds, values = self._chosen.measure(name, *numbers)
                self._hold(name, reading.columns, holds & reading.where, values, steps, *numbers)

    def _hold(self, rule: str, columns: Columns, holds: Mask, values: Numbers, steps: Steps, *others: Numbers) -> None:
        """Add to the rule's record where it holds at *columns*, the values, and the numbers: of shape ``(moments, columns)``."""
        record = self._held[rule]
        if not holds.any() and not record.is_waiting:
            record.count(columns, np.isfinite(values))
            return
        shape = len(steps), len(self.history)
        every = np.zeros(shape, bool)
        every[:, columns] = holds
        spread = [np.full(shape, np.nan) for _ in range(1 + len(others))]
        for whole, part in zip(spread, (values, *others), strict=True):
            whole[:, columns] = part
        record.add(every, spread[0], steps, *spread[1:])

    def _look_at_input(self, sizes: Sizes, steps: Steps) -> None:
        """Judge what goes into the first layer: the median of the first sizes by itself, each later one against those before.

        A weight is recorded behind the step, and an output is of the weight before it: where the step moves the weight by more than
        a tenth, that of the step before counts; where that was not logged, the gradient of the weight against that of the bias says
        how much larger the input is than it was, and at first how large it is at most.
        """
        if sizes.groups.first_layer is None or self._large_input is not None:
            return
        output, weight, bias, norm = sizes.groups.first_layer
        is_normalised = norm >= 0 and not self._first[norm] >= _UNNORMALISED
        values, inputs = sizes.values, self.history.facts[weight].inputs
        moved = values[:, sizes.groups.updates[sizes.groups.weights == weight]].max(axis=1, initial=0.0)
        added = np.nan_to_num(values[:, bias]) if bias >= 0 else np.zeros(len(steps))
        rest = values[:, output] - added  # what a bias adds is at most its size; where it is most, nothing is known of the rest
        made_of_input = np.where(rest > added, rest, np.nan)
        sums = values[:, output] + added
        pair = sizes.groups.first_gradients
        ratios = np.full(len(steps), np.nan) if pair is None else np.divide(*values[:, pair].T)
        lines = zip(steps.tolist(), sums, made_of_input, values[:, weight], moved, ratios.tolist(), strict=True)
        for step, at_most, made, now, by, ratio in lines:
            last_step, last = self._last_weight
            has_moved = by > _MOVED * now
            of = now if not has_moved else last if step == last_step + 1 else math.nan
            of = self.history.facts[weight].usual if last_step < 0 and not math.isfinite(now) else of
            self._last_weight = step, float(now)
            most, size = ((each / (of * inputs**0.5) if of > 0 else math.nan) for each in (at_most, made))
            self._first_input = most if math.isnan(self._first_input) else self._first_input
            if (has_moved or math.isnan(of)) and math.isfinite(ratio + at_most) and not is_normalised:  # a norm leaves a bias none
                is_known = bool(self._inputs and self._ratios)
                usual = made / (self.history.facts[weight].usual * inputs**0.5)  # by the weights that torch would begin with
                size = ratio * median(self._inputs) / median(self._ratios) if is_known else np.minimum(ratio, usual)
            usual_ratio = median(self._ratios) if len(self._ratios) >= _EARLY_INPUTS else math.nan
            if math.isfinite(ratio) and ratio > 0:
                self._ratios.append(ratio)
            last_size = self._inputs[-1] if self._inputs else math.nan
            is_tried = not is_normalised and ratio < _FOLLOWS * usual_ratio and size >= _GROWN * last_size
            if is_tried or not math.isfinite(size):
                continue  # an output may be of weights that a search has tried: gradients would follow a larger input
            is_known = len(self._inputs) >= _EARLY_INPUTS
            before = max(median(self._inputs), self._inputs[-1]) if is_known else math.nan  # in one step, and not little by little
            self._inputs.append(float(size))
            if math.isnan(before) and is_normalised:
                continue
            usual, began = median(self._inputs) if math.isnan(before) else float(size), min(self._inputs[0], self._first_input)
            at = began if math.isnan(before) and usual >= _GROWN * began else usual  # what makes it has grown, and it is no data
            is_early = len(self._inputs) < _EARLY_INPUTS
            found = None if is_early else self._chosen.judge("input_large", at, before)
            first = step if not math.isnan(before) else int(self._first_step[output])
            if found is not None:
                (self._large_input,) = joined(self.history, [(output, replace(found, step=step, first_step=first))])
                return
            unscaled = self._chosen.judge("input_large", at, before, does_harm=True)
            if unscaled is not None:
                (self._unscaled,) = joined(self.history, [(output, replace(unscaled, step=step, first_step=first))])

    def _look_at_recurrent_input(self, sizes: Sizes, steps: Steps) -> None:
        """Judge what goes into a recurrent layer: as much larger as the gradient of its input weight is than that of the bias."""
        if sizes.groups.first_recurrent is not None and len(self._inputs) < _EARLY_INPUTS:
            output, *gradients = sizes.groups.first_recurrent
            ratio = np.divide(*sizes.values[:, gradients].T)
            self._inputs.extend(ratio[np.isfinite(ratio)][: _EARLY_INPUTS - len(self._inputs)].tolist())
            found = self._chosen.judge("input_large", median(self._inputs)) if len(self._inputs) >= _EARLY_INPUTS else None
            if found is not None:
                found = replace(found, step=int(steps[-1]), first_step=int(self._first_step[output]))
                (self._large_input,) = joined(self.history, [(output, found)])

    def _look_for_gaps(self, values: Numbers, steps: Steps) -> None:
        """Count for each gradient and output its rows, and the steps since the last in which other gradients came."""
        if self._gaps.shape[1] < values.shape[1]:
            self._gaps = extended(self._gaps, values.shape[1], 0)
        gradients = self.history.at("grad")
        counted = gradients | self.history.at("output")
        for step, line, now in zip(steps.tolist(), np.isfinite(values), values, strict=True):
            here = line & counted
            if not (line & gradients).any():
                continue
            rows, gap, longest, last, quiet = self._gaps
            longest[here] = np.maximum(longest, gap)[here]
            rows[here] += 1
            last[here] = step
            gap[here] = 0
            gap[counted & ~line] += 1
            quiet[counted] += 1
            quiet[(now > 0) & counted] = 0

    def _look_for_turns(self, values: Numbers) -> None:
        """See whether steps with a forward pass move some weights, then others alone, and then the first again.

        Where several optimizers hold the parts of one network, the steps of all but the first have no forward pass of their own.
        """
        moved = np.isfinite(values[:, self.history.at("update")])
        ran = np.isfinite(values[:, self.history.at("output")]).any(axis=1) & moved.any(axis=1)
        lines = moved[ran]
        lines = lines[: 1 if (lines == lines[:1]).all() else None]  # the same again says nothing new
        for line in lines if not self.takes_turns else ():
            where = np.flatnonzero(self.history.at("update"))[line]
            if not self._turns or (len(self._turns) == 1 and not np.isin(where, self._turns[0]).any()):
                self._turns.append(where)
            elif len(self._turns) > 1 and not np.isin(where, self._turns[1]).any():
                self.takes_turns = bool(np.isin(where, self._turns[0]).any())

    def _look_for_writes(self, sizes: Sizes, steps: Steps) -> None:
        """Judge whether parameters have moved by more than their updates since the logged step before.

        Where there were steps between, their updates are not known: then most parameters must have, by far more than any known one.
        """
        updates, parameters = sizes.groups.moved
        self._written = extended(self._written, len(self.history))
        mean = self.history.of("mean")
        if not len(updates) or not self._chosen.is_on("overwritten"):
            return
        values, means, moved = sizes.values[:, parameters], mean[:, parameters], sizes.values[:, updates]
        written = self._written[:, parameters]
        for step, size, middle, update in zip(steps.tolist(), values, means, moved, strict=True):
            last, size_before, middle_before, largest, rows = written
            shift = np.maximum(np.abs(size - size_before), np.abs(middle - middle_before))
            gap, explained = step - last, np.fmax(largest, update)
            is_apart = np.fmax.reduce(gap) > 1
            explained = (explained * np.where(gap > 1, _APART * gap, 1.0) if is_apart else explained) + 1e-4 * np.abs(size)
            hit = (rows >= UNMOVED) & self._chosen.measure("overwritten", shift, explained)[0]
            own = (update == 0) & (shift > 0)  # the loop itself makes its steps there
            self._between += int(2 * np.count_nonzero(own) > np.count_nonzero(np.isfinite(update)))
            hit &= ~own
            is_written = bool(hit.any()) and not (is_apart and 2 * hit.sum() < np.isfinite(explained).sum())
            if is_written and len(self._writes) < _WRITES:
                self._note_writes(parameters[hit], shift[hit], update[hit], step)
            self._often.add_one(step, holds=is_written)
            known = np.isfinite(update) & np.isfinite(size)
            kept = np.fmax(largest, update) if is_apart else np.fmax(0.0, update)
            new = np.stack([np.full(len(update), float(step)), size, middle, kept, np.where(rows > 0, rows, 0) + 1])
            written = np.where(known, new, written)
        self._written[:, parameters] = written

    def _note_writes(self, columns: Columns, shift: Numbers, update: Numbers, step: int) -> None:
        """Keep the finding that parameters were written into between *step* and the logged step before."""
        found = [
            (column, judged)
            for column, by, own in zip(columns.tolist(), shift.tolist(), update.tolist(), strict=True)
            if (judged := self._chosen.judge("overwritten", by, own)) is not None
        ]
        found.sort(key=lambda each: (not self.history.matrix[each[0]], self.history.rank(each[0])))
        self._writes += joined(self.history, [(column, replace(each, step=step)) for column, each in found])

    def _look_for_returns(self, sizes: Sizes, steps: Steps) -> None:
        """Judge whether steps are taken back: but for that, the mean of a parameter has moved by the mean of the last step.

        Where there were steps between, their updates are not known: then all of them must have been taken back.
        """
        updates, parameters = sizes.groups.moved
        if self._returned is not None or not len(updates) or not self._chosen.is_on("overwritten"):
            return
        self._steps_made = extended(self._steps_made, len(self.history))
        mean, made = self.history.of("mean"), self._steps_made[:, parameters]
        lines = zip(steps.tolist(), sizes.values[:, parameters], mean[:, parameters], mean[:, updates], strict=True)
        for step, size, after, moved in lines:
            last, before, by = made
            left = np.where(np.abs(by) > _MEAN_STEP * size, (after - moved - before) / by, np.nan)
            known = np.isfinite(left)
            new = np.stack([np.full(len(size), float(step)), after - moved, moved])
            made = np.where(np.isfinite(new).all(axis=0), new, made)
            if known.sum() < 2:
                continue
            share = float(np.median(left[known]))
            alike = known & (np.abs(left - share) <= _SAME_SHARE)
            is_next = bool((step - last[known] == 1).all()) or abs(share) <= _SAME_SHARE
            found = self._chosen.judge("overwritten", math.nan, math.nan, share)
            is_back = found is not None and share >= -_SAME_SHARE and is_next and 2 * alike.sum() > known.sum()
            self._returns = [*self._returns, step] if is_back else []
            if is_back and found is not None and len(self._returns) >= RETURNS:
                columns = sorted(parameters[alike].tolist(), key=lambda c: (not self.history.matrix[c], self.history.rank(c)))
                told = replace(found, step=step, first_step=self._returns[0])
                (self._returned,) = joined(self.history, [(column, told) for column in columns])
                break
        self._steps_made[:, parameters] = made

    def _remember_first(self, values: Numbers, steps: Steps) -> None:
        width = values.shape[1]
        self._firsts = extended(self._firsts, width)
        self._first, self._first_step, self._first_count, self._first_mean, self._first_max = self._firsts
        new = np.isnan(self._first) & np.isfinite(values).any(axis=0)
        if new.any():
            line, own = np.isfinite(values).argmax(axis=0), np.arange(width)
            more = [self.history.of(number)[line, own] for number in ("count", "mean", "absmax")]
            self._firsts[:, new] = np.stack([values[line, own], steps[line], *more])[:, new]
            self._last_layer = self._read_last_layer()
            self.chance = self._read_chance()
            self._look_at_tables(np.flatnonzero(new & self.history.at("param")).tolist(), values[line, own])

    def _look_at_tables(self, columns: list[int], sizes: Numbers) -> None:
        """Judge the first *sizes* of parameters: of embeddings, where one runs first and no normalisation comes next.

        One that the first step has made large did not begin so.
        """
        history = self.history
        columns = [c for c in columns if not 2 * self._moved(c, sizes) >= sizes[c]]
        outputs = _in_order(history, "output")[:2]
        kinds = [history.facts[column].kind for column in outputs]
        tables = ((c, history.facts[c]) for c in columns if history.facts[c].kind in _TABLES)
        own = [c for c, fact in tables if fact.trainable and (fact.shape is None or fact.inputs >= _COLUMNS)]
        if kinds and kinds[0] in _TABLES and "Norm" not in kinds[-1]:
            found = [(c, self._chosen.judge("weight_large", float(self._first[c]), 1.0, 1.0)) for c in own]
            self._begins += joined(
                history,
                [(c, replace(each, step=int(self._first_step[c]), advice=_TABLE)) for c, each in found if each is not None],
            )

    def _look_at_updates(self, sizes: Sizes, block: RowBlock) -> None:
        groups, values, steps = sizes.groups, sizes.values, block.moments[:, 1]
        if not len(groups.updates):
            return
        gradient, update, weight = (values[:, each] for each in (groups.gradients, groups.updates, groups.weights))
        meant = np.isfinite(gradient)
        begins = steps[:, None] == self._first_step[groups.weights]
        if begins.any():
            if self._follows_gradient is None:
                at = begins & meant & (gradient > 0)
                rates = (update / gradient)[at]
                self._follows_gradient = len(rates) > 0 and bool(rates.max() <= _ALIKE * rates.min())
                self._first_move = float(np.median(update[at])) if len(rates) else math.nan
            mean, std = (self.history.of(number)[:, groups.weights] for number in ("mean", "std"))
            self._look_at_first_weights(begins & meant, weight, update, mean, std)
        if "update_small" in self._held:
            first = self._first[groups.gradients]
            is_needed = meant & (weight > 0) & (gradient >= _CONVERGED * first)
            self._look_at_small(np.where(is_needed, update / weight, np.nan), steps, groups.updates, first > 0)
        self._look_for_still(values, np.asarray(np.isfinite(update).any(axis=1), bool))
        ratios = updates(sizes).numbers["ratio"]
        if (many := np.isfinite(ratios).sum(axis=1) >= _FEW).any():
            paces = medians(ratios[many])
            self.pace, self.way = float(paces[-1]), self.way + float(paces.sum())
            self.first_pace = float(paces[0]) if math.isnan(self.first_pace) else self.first_pace

    def _look_at_first_weights(self, begins: Mask, weight: Numbers, update: Numbers, mean: Numbers, std: Numbers) -> None:
        """Judge weights at their first logged step, *begins*: their size, and whether all elements were equal before the step."""
        assert self._groups is not None
        columns, found = self._groups.weights, []
        for line, place in np.argwhere(begins).tolist():
            size, moved = float(weight[line, place]), float(update[line, place])
            column = int(columns[place])
            middle = float(mean[line, place])
            fact = self.history.facts[column]
            many = middle and fact.units != 1 and not self._varies_beside(column, columns[std[line] > 2 * update[line]])
            equal = self._chosen.judge("constant_weight", middle, float(std[line, place]), moved) if many else None
            made = self._made(column, size) if size - moved >= WEIGHT_BEYOND else math.nan
            given, recurs = (size, fact.usual, 0.0, made), fact.kind in _RECURRENT
            large = self._chosen.judge("weight_large", *given, does_harm=True, recurs=recurs) if 2 * moved < size else None
            if fact.usual and size - moved >= BEGINS_WEIGHT * fact.usual:
                self._heavy.append((column, (size - moved) / fact.usual))
            found += [(column, replace(each, step=int(self._first_step[column]))) for each in (equal, large) if each is not None]
        found.sort(key=lambda each: ("output" not in each[1].evidence, self.history.rank(each[0])))
        for rule in ("constant_weight", "weight_large"):
            self._begins += joined(self.history, [each for each in found if each[1].rule == rule])
        if not any(each.rule == "weight_small" for each in self._begins):
            is_zero = weight <= _FROM_ZERO * update  # all that they are is their first step
            self._begins += self._fading(begins, np.where(is_zero, 0.0, weight + update))

    def _varies_beside(self, weight: int, varying: Columns) -> bool:
        """Return whether another parameter of the same module and shape is among those *varying*, as means beside deviations."""
        (owner, _, _), facts = self.history.sites[weight].path.rpartition("."), self.history.facts
        others = [each for each in varying.tolist() if self.history.sites[each].path.rpartition(".")[0] == owner]
        return any(each != weight and facts[each].shape == facts[weight].shape for each in others)

    def _made(self, weight: int, size: float) -> float:
        """Return the first size of what the layer of a *weight* of a *size* returns, where that says that the weight is too large.

        Of a recurrent layer, the size of the sums that go into its state. NaN where what is returned is usual, is what the model
        returns, or is normalised next; of few inputs, which a sine may take; and where the layer is of no known kind.
        """
        history, (path, _, name) = self.history, self.history.sites[weight].path.rpartition(".")
        fact, at = history.facts[weight], history.column_at(path, "output")
        if fact.kind in _RECURRENT and name.startswith(("weight_ih", "weight_hh")):
            return size * math.sqrt(fact.inputs)
        if fact.kind not in _PLAIN or name != "weight" or fact.inputs < _FEATURES or at is None:
            return math.nan
        order = [c for c in _in_order(history, "output") if c == at or not f"{path}.".startswith(f"{history.sites[c].path}.")]
        order = [c for c in order if history.sites[c].path or c == at]
        after = order[order.index(at) + 1 :][:2]
        is_hidden = not history.is_output_of_model()[at] and not any("Norm" in history.facts[c].kind for c in after)
        return float(self._first[at]) if is_hidden and self._first[at] >= MADE_LARGE else math.nan

    def _fading(self, begins: Mask, most: Numbers) -> Iterator[Finding]:
        """Yield the finding that weights of layers in a row, which begin no larger than *most*, are far too small."""
        assert self._groups is not None
        history, weights = self.history, self._groups.weights
        outputs = _in_order(history, "output")
        if not outputs or any("Norm" in history.facts[c].kind for c in outputs):
            return
        first = {int(weights[place]): float(most[line, place]) for line, place in np.argwhere(begins).tolist()}
        sizes = [
            (c, first[c] / history.facts[c].usual) for c in self._groups.deep[0].tolist() if c in first and history.facts[c].usual
        ]
        rows = [list(held) for is_small, held in itertools.groupby(sizes, lambda each: 0 < each[1] <= WEIGHT_SMALL) if is_small]
        row = max(rows, key=len, default=[])
        ratios = [each[1] for each in row]
        found = self._chosen.judge("weight_small", float(len(row)), math.prod(ratios), median(ratios)) if row else None
        if found is not None:
            yield from joined(history, [(c, replace(found, step=int(self._first_step[c]))) for c, _ in row])

    def _look_at_small(self, ratio: Numbers, steps: Steps, updates: Columns, begun_at_once: Mask) -> None:
        """Steps are too small that do not move a weight at all, or hardly and without growing, as those of a warm-up do.

        A ratio grows if it is 1.8 x what it was when there were half to a quarter as many logged steps. Only then is it followed:
        in most trainings no weight has ever moved so little. Where the first gradient was zero, as before a layer of zeros,
        the first steps say nothing. Nor do the last ones of a schedule, until they are a share of all steps.
        """
        self._marks = extended(self._marks, len(self.history), 0)
        self._small_since = extended(self._small_since, len(self.history), -1)
        least = self._chosen.limit("update_small", "least")
        small = self._chosen.measure("update_small", ratio)[0] | (ratio == 0)
        if not small.any() and not self._held["update_small"].is_waiting:
            self._marks[0, updates] += np.isfinite(ratio).sum(axis=0)
            self._marks[1:3, updates], self._small_since[updates] = least, -1
            self._marks[3, updates] = np.fmax(self._marks[3, updates], np.fmax.reduce(ratio, axis=0))
            return
        holds = np.zeros(ratio.shape, bool)
        for line, values in enumerate(ratio):
            seen = np.isfinite(values)
            count, before, last, largest = self._marks[:, updates]
            count, largest = count + seen, np.fmax(largest, values)
            is_power = seen & (np.exp2(np.floor(np.log2(np.maximum(count, 1)))) == count)
            before, last = np.where(is_power, last, before), np.where(is_power, values, last)
            self._marks[:, updates] = count, before, last, largest
            begun, held = self._small_since[updates], self._held["update_small"].since
            fired = held[updates] >= 0 if len(held) else np.zeros(len(updates), bool)
            begun = np.where(small[line] & (begun < 0), steps[line], np.where(small[line] | ~seen | fired, begun, -1))
            self._small_since[updates] = begun
            never_more = (largest < 10 * least) & (values < 1.8 * before)  # a schedule may end in small steps
            is_late = count >= _EARLY
            is_long = steps[line] - begun + 1 >= IDLE * (steps[line] - self._first_step[updates] + 1)
            holds[line] = (((values == 0) & (begun_at_once | is_late)) | (small[line] & is_late & never_more)) & is_long
        self._hold("update_small", updates, holds, ratio, steps, ratio)

    def _look_for_still(self, values: Numbers, moved: Mask) -> None:
        """Count the steps in which some weights moved, for weights without an update, and for those without a gradient."""
        self._still = extended(self._still, len(self.history), 0)
        self._still += (np.isfinite(values) & moved[:, None]).sum(axis=0)

    def _look_at_first(self, values: Numbers, steps: Steps, groups: Groups) -> None:
        """Judge how outputs shrink through the layers at the first logged step that has outputs."""
        columns = groups.first_to_last
        known = columns[np.isfinite(values[0, columns]) & (values[0, columns] > 0)] if len(values) else columns
        if not len(columns):
            return
        self._looked = True
        quarter = len(known) // 4
        if len(known) < DEEP or rank_correlation(values[0, known]) > -ALONG:
            return
        first, last = (float(np.median(values[0, part])) for part in (known[:quarter], known[-quarter:]))
        found = self._chosen.judge("output_small", first, last)
        if found is not None:
            self._begins += joined(self.history, [(int(known[-1]), replace(found, step=int(steps[0])))])

    # What is found

    @property
    def sees_no_scores(self) -> bool:
        """Whether the model has attention, and its queries and keys are outputs of no layers of their own."""
        model = self.history.sites[0].model if len(self.history) else ""
        return self._groups is not None and not len(self._groups.queries) and self._facts.has_attention(model)

    def findings(self, *, all_of_them: bool = False) -> Iterator[Finding]:
        """Yield the findings, one for each rule; *all_of_them*: also what has come again, which it may not have some steps ago."""
        yield from self._begins
        yield from self._norms
        yield from self._of_blank_norms()
        yield from (each for each in (self._large_input or self._unscaled,) if each is not None)
        is_often = len(self._often.columns()) > 0
        yield from [self._returned] if self._returned is not None and not is_often else []
        yield from (each if is_often else replace(each, severity="note") for each in self._writes[: 1 if is_often else _WRITES])
        yield from self._growth()
        yield from self._of_records(all_of_them=all_of_them)
        yield from self._of_still()
        yield from self._of_frozen()

    def _of_norms(self) -> Iterator[Finding]:
        """Settings of normalisations that run."""
        history = self.history
        columns = [c for c in _in_order(history, "output") if "Norm" in history.facts[c].kind and history.calls[c] <= 0]
        judged = [(c, self._chosen.judge("norm_setting", history.facts[c].eps, history.facts[c].momentum)) for c in columns]
        yield from joined(history, [(c, replace(each, step=0)) for c, each in judged if each is not None])

    def _of_blank_norms(self) -> Iterator[Finding]:
        """Normalisations within a sample that return their bias alone, first and in the last steps, though what goes in varies."""
        history, found = self.history, []
        outputs = [c for c in _in_order(history, "output") if history.calls[c] <= 0 and len(history.recent) >= _EARLY]
        for before, column in itertools.pairwise(outputs):
            path, varies = history.sites[column].path, self._first_max[before] > abs(self._first_mean[before])
            weight, bias = (history.column_at(parameter_of(path, name), "param") for name in ("weight", "bias"))
            kind = history.facts[column].kind
            if kind in ("GroupNorm", "LayerNorm") and varies and weight is not None and bias is not None:
                rows = np.vstack([self._first[[column, weight, bias]], history.recent[-_FEW:, [column, weight, bias]]])
                made, size, own = rows.T
                most = history.of("absmax")[
                    -1, [column, bias]
                ]  # features that are alike in all samples may take off what a bias adds
                beside = np.append(np.abs(made - own), most[0] - most[1]) / np.append(size, size[-1])
                share = float(np.max(beside))  # NaN where a step has no row, or the weight is zero
                found.append((column, self._chosen.judge("norm_setting", math.nan, math.nan, share)))
            counts, is_batch = {float(self._first_count[column]), float(history.of("count")[-1, column])}, "Batch" in kind
            if is_batch and weight is not None and bias is not None and counts == {2 * (history.facts[weight].shape or (0,))[0]}:
                most = history.of("absmax")[-1, [column, weight, bias]]  # those of statistics from elsewhere are not bound by it
                two = self._chosen.judge("norm_setting", math.nan, math.nan, are_two=bool(most[0] <= _BOUND * most[1:].sum()))
                found.append((column, two and replace(two, advice=_TWO)))
        yield from joined(history, [(c, replace(each, step=0)) for c, each in found if each is not None])

    def _read_chance(self) -> float:
        """Return ln(outputs) of the weight that makes the outputs of the model, if these go into a cross-entropy; NaN otherwise.

        That is the weight whose layer runs last, of those that return as many elements as the model does, in outputs of one size.
        The gradient there tells a cross-entropy: it sums to zero over the classes, since a softmax forgets what is common to them.
        """
        units, gradients = self._last_layer
        is_zero = all(abs(self._first_mean[c]) <= _SUMS_TO_ZERO * self._first[c] for c in gradients)
        return math.log(units) if units > 1 and is_zero else math.nan

    def _read_last_layer(self) -> tuple[int, list[int]]:
        """Return of the weight that makes the outputs of the model its units, and the gradients there; 0 where there is none."""
        history, count = self.history, self._first_count
        outputs = [c for c in _in_order(history, "output") if count[c] > 1]
        sizes = {float(count[c]) for c in [c for c in outputs if not history.sites[c].path] or outputs[-1:]}
        own = {path.rpartition(".")[0]: fact for path, fact in self._of_model() if fact.is_matrix}
        made = [path for c in outputs if (path := history.sites[c].path) in own and {float(count[c])} == sizes][-1:]
        gradients = [c for c in _in_order(history, "grad_output") if history.sites[c].path in made]
        return (own[made[0]].units if made else 0), gradients

    def dead_since(self, site: str) -> dict[str, float]:
        """Return of an output whose units are dead the first mean of what goes into it, and that of the bias which makes this."""
        history, outputs = self.history, _in_order(self.history, "output")
        here = [c for c in outputs if str(history.sites[c]) == site][:1]
        before = [c for at in here for c in outputs[: outputs.index(at)] if self._first_count[c] == self._first_count[at]][-1:]
        paths = [parameter_of(history.sites[c].path, "bias") for c in before]
        biases = [c for c in _in_order(history, "param") if history.sites[c].path in paths]
        return {name: float(self._first_mean[c]) for name, held in (("before", before), ("bias", biases)) for c in held}

    def of_first_loss(self, loss: float) -> list[Finding]:
        """Return what the first *loss* says of initial weights, targets, labels and itself. Asked again, little is judged again."""
        asked = repr(loss), self._known, int(np.isfinite(self._first).sum())
        if self._of_first[0] != asked:
            self._of_first = asked, [*self._begins_large(loss), *self._of_loss(loss)]
        return self._of_first[1]

    def _begins_large(self, loss: float) -> Iterator[Finding]:
        """Yield what the first *loss*, against that of a guess, and the first outputs of the model say of the initial weights."""
        history, guess = self.history, self.chance
        outputs = self._model_outputs()
        if not outputs or math.isnan(guess) or any(not fact.trainable for _, fact in self._matrices()):
            return  # what is frozen was trained before, for other outputs
        last = max(outputs, key=history.rank)
        large = np.flatnonzero(history.at("output") & (self._first[: len(history)] >= BEGINS_SIZE)).tolist()
        times = max((each[1] for each in self._heavy), default=0.0)
        found = self._chosen.judge("begins_large", loss, guess, float(self._first[last]), times)
        if found is not None:
            found = replace(found, quantity="" if times >= BEGINS_WEIGHT else "output")  # no weight explains it: what goes in may
            columns = sorted([column for column, _ in self._heavy] or large, key=history.rank)
            found = found if times >= BEGINS_WEIGHT else self._told_where(found)
            yield from joined(history, [(column, replace(found, step=int(self._first_step[column]))) for column in columns])

    def _model_outputs(self) -> list[int]:
        """Return the columns of the first outputs of the model, but for a loss that it returns beside others."""
        history, count = self.history, self._first_count[: len(self.history)]
        known = history.is_output_of_model() & np.isfinite(self._first[: len(history)])
        found: list[int] = np.flatnonzero(known & (count > 1)).tolist() or np.flatnonzero(known).tolist()
        return found

    def _told_where(self, found: Finding) -> Finding:
        """Return a finding about first outputs that are too large with what makes them so, as far as the weights do not."""
        if biased := self._biased_at():
            return replace(found, advice=f"{biased}; else {found.advice}", quantity="initialisation")
        (least, most), place = self._begun_between(), self._amplified_at()
        size = self._inputs[0] if self._inputs else math.nan
        goes_in = "what goes in" + f" (of size {short(size)})" * bool(size >= _USUAL_WEIGHT)
        advice = found.advice
        if most < _USUAL_WEIGHT:
            found = replace(found, message=f"{found.message}, though no weight begins larger than usual")
            advice = f"look at {goes_in}" if place else f"look at {goes_in}, at {_ELSEWHERE}"
        elif least < _USUAL_WEIGHT:  # the first step may have moved them far, and what they were before is not known
            weights = "the weights as they begin (scaled by 1 / sqrt(inputs), as usual)"
            is_input = bool(place) or size >= _GROWN
            first, then = (goes_in, weights) if is_input else (weights, goes_in)
            advice = f"look at {first}, at {then}" + f", at {_ELSEWHERE}" * (not place)
        return replace(found, advice=f"{place}; else {advice}", quantity="output") if place else replace(found, advice=advice)

    def _biased_at(self) -> str:
        """Return in words the first layer that returns what its bias makes large from the beginning; ``""`` where none does."""
        history, first = self.history, self._first
        for column in [c for c in _in_order(history, "output") if first[c] >= BEGINS_SIZE and history.calls[c] >= 0]:
            bias = history.column_at(parameter_of(history.sites[column].path, "bias"), "param")
            size = 0.0 if bias is None else float(first[bias]) - self._moved(bias, first)
            if size >= _MOST_OF_IT * first[column]:
                made = f"the {short(float(first[column]))} that {history.name(column)} returns"
                return f"look first at the bias of {history.name(column)}, which begins at size {short(size)}, of {made}"
        return ""

    def _begun_between(self) -> tuple[float, float]:
        """Return how large the parameter that begins largest is beside a usual one, at least and at most; infinite if not known."""
        history, sizes = self.history, self._first
        columns = [c for c in np.flatnonzero(history.at("param")).tolist() if math.isfinite(sizes[c])]
        known, between = {history.sites[c].path for c in columns}, [(0.0, 0.0)]
        for column in columns:
            fact, moved = history.facts[column], self._moved(column, sizes)
            usual = fact.usual if history.matrix[column] and fact.usual else 1.0
            between.append(((sizes[column] - moved) / usual, (sizes[column] + moved) / usual))
        least, most = (float(max(each)) for each in zip(*between, strict=True))
        return least, most if known.issuperset(path for path, _ in self._of_model()) else math.inf

    def _amplified_at(self) -> str:
        """Return in words the first place that makes what goes through it far larger, and is no weight; ``""`` where none does."""
        history, first, before = self.history, self._first, math.nan
        owners = {path.rpartition(".")[0] for path, _ in self._of_model()}  # modules with parameters of their own
        at = [c for c in _in_order(history, "output") if math.isfinite(first[c]) and self._first_count[c] > 1]  # and no loss
        for column in [c for c in at if history.calls[c] >= 0]:  # nor the calls of a layer together
            names = (parameter_of(history.sites[column].path, name) for name in ("weight", "bias"))
            weight, bias = (history.column_at(name, "param") for name in names)
            own = sum(first[c] + self._moved(c, first) for c in (weight, bias) if c is not None)
            is_norm = weight is not None and history.facts[column].kind.startswith("BatchNorm")
            if is_norm and first[column] >= _STATISTICS * max(own, 1.0):
                return (
                    f"{history.name(column)} returns what is of size {short(first[column])}: its running statistics are not those "
                    "of what goes in, look there for evaluation mode, and at the scale of the data"
                )
            is_layer = weight is not None and history.matrix[weight]
            goes_in = self._goes_in(column, weight, bias) if weight is not None and is_layer else math.nan
            if not is_layer and history.sites[column].path not in owners:
                goes_in = float(first[column])
            if goes_in >= _AMPLIFIED * before:
                what = "what goes into " * bool(is_layer) + history.name(column) + " returns what" * (not is_layer)
                return (
                    f"{what} is {short(goes_in / before)} x as large as any output before it: look there for a sum over neighbours "
                    "or positions, an exponential or a factor"
                )
            before = np.fmax(before, first[column])
        return ""

    def _goes_in(self, output: int, weight: int, bias: int | None) -> float:
        """Return the size of what went into a layer at first: its *output* / (size of the *weight* x root of its inputs).

        Where the first step has moved the weight far, its size before that is not known. Then the gradient of the weight against
        that of the bias says it, and no more than a weight of a usual size would.
        """
        history, first = self.history, self._first
        fact, moved = history.facts[weight], self._moved(weight, first)
        made = float(first[output] - (0.0 if bias is None else max(0.0, first[bias] - self._moved(bias, first))))
        if not (fact.inputs and first[weight] + moved > 0):
            return math.nan  # not known, or all zero
        least = made / ((float(first[weight]) + moved) * math.sqrt(fact.inputs))
        if moved <= _MOVED * first[weight]:
            return least
        at = [c if c is None else history.column_at(history.sites[c].path, "grad") for c in (weight, bias)]
        if at[0] is None or at[1] is None or not first[at[1]] > 0:
            return least
        return min(float(first[at[0]] / first[at[1]]), made / (fact.usual * math.sqrt(fact.inputs)))

    @property
    def input_scale(self) -> float:
        """How many times as large as that of its bias the gradient of the first layer's weight is: the size of what goes in."""
        return median(self._ratios) if self._ratios else math.nan

    @property
    def gets_nothing(self) -> bool:
        """Whether the first gradient at what runs last is zero throughout."""
        ends = [column for column in _in_order(self.history, "grad_output") if math.isfinite(self._first[column])][-1:]
        return any(self._first[column] == 0 for column in ends)

    @property
    def first_gradient(self) -> float:
        """The largest of the first gradients of all parameters; 0 where none is known."""
        first = self._first[np.flatnonzero(self.history.at("grad"))] if len(self.history) else np.empty(0)
        return float(np.max(first[np.isfinite(first)], initial=0.0))

    @property
    def without_gradient(self) -> int:
        """How many parameters there are, if no gradient of any has been anything but zero so far; else 0.

        >>> from sonde.rules import Chosen, LayerFindings, ModelFacts
        >>> found = LayerFindings(ModelFacts({}), Chosen())
        >>> found.without_gradient, found.repeats(), found.gets_nothing
        (0, '', False)
        """
        at = np.flatnonzero(self.history.at("grad")) if len(self.history) else np.empty(0, np.intp)
        sizes = np.concatenate([self._first[None, at], self.history.recent[:, at]])
        return int(np.isfinite(sizes).any(axis=0).sum()) if np.all(sizes[np.isfinite(sizes)] == 0) else 0

    def repeats(self) -> str:
        """Return the name of a layer that has returned the same in two calls of the first step; ``""`` without one.

        A gradient has come to both, of the same size.
        """
        known: dict[tuple[str, ...], str] = {}
        for column in _in_order(self.history, "output"):
            site, call = self.history.sites[column], self.history.calls[column]
            gradient = self.history.column_at(site.path, "grad_output", call)
            numbers = [*self._firsts[[0, 2, 3, 4], column].tolist(), math.nan if gradient is None else float(self._first[gradient])]
            if all(map(math.isfinite, numbers)) and numbers[-1] > 0:
                key = (str(site), *map(repr, numbers))
                if key in known:
                    return site.name
                known[key] = site.name
        return ""

    def output_sizes(self) -> tuple[float, float]:
        """Return the largest size of the outputs of the model at first and in the last logged step; NaN where it is not known.

        >>> from sonde.rules import Chosen, LayerFindings, ModelFacts
        >>> LayerFindings(ModelFacts({}), Chosen()).output_sizes()
        (nan, nan)
        """
        at = np.flatnonzero(self.history.is_output_of_model()) if len(self.history) else np.empty(0, np.intp)
        first, last = self._first[at], self.history.recent[-1:, at].ravel()
        return float(np.fmax.reduce(first, initial=math.nan)), float(np.fmax.reduce(last, initial=math.nan))

    @property
    def has_one_matrix(self) -> bool:
        """Whether one layer of the model is trained, on what others make of the inputs, or on these."""
        columns = np.flatnonzero(self.history.matrix & self.history.at("param")).tolist()
        return sum(self.history.facts[each].trainable for each in columns) == 1

    def heaviest(self) -> str:
        """Return in words which weight or bias begins largest beside torch's own initialisation; ``""`` where none is much larger.

        >>> from sonde.rules import Chosen, LayerFindings, ModelFacts
        >>> LayerFindings(ModelFacts({}), Chosen()).heaviest()
        ''
        """
        begun = np.nanmin(self._first_step, initial=math.inf)
        known = [each for each in (*self._heavy, *self._biases()) if self._first_step[each[0]] == begun]  # others had moved before
        column, times = max(known, key=lambda each: each[1], default=(-1, 0.0))
        return f"{self.history.name(column)} begins {short(times)} x as large as usual" if times else ""

    def _biases(self) -> Iterator[tuple[int, float]]:
        """Yield biases that begin at a size of 1 or more, as a sum of inputs has, and how large that is beside torch's own.

        That of the last layer is left out: it may begin at the mean of the targets.
        """
        history, size = self.history, self._first
        own = {path.rpartition(".")[0] for path, fact in self._of_model() if fact.is_matrix} if len(history) else set()
        last = [path for c in _in_order(history, "output") if (path := history.sites[c].path) in own][-1:]
        for column in [c for c in np.flatnonzero(history.at("param")).tolist() if size[c] >= 1]:
            parent, _, name = history.sites[column].path.rpartition(".")
            if parent in last:
                continue
            weight = history.column_at(parameter_of(parent, name.replace("bias", "weight")), "param") if "bias" in name else None
            usual = 0.0 if weight is None else history.facts[weight].usual
            began = size[column] - self._moved(column, size)
            if began >= max(1.0, _GROWN * usual) and usual:
                yield column, float(began / usual)

    def _moved(self, parameter: int, sizes: Numbers) -> float:
        """Return the size of the update of a *parameter* among the *sizes* of all columns; 0 of what has none."""
        update = self.history.column_at(self.history.sites[parameter].path, "update")
        return 0.0 if update is None else float(sizes[update])

    @property
    def follows_gradient(self) -> bool:
        """Whether the first step was a multiple of the gradients."""
        return bool(self._follows_gradient)

    def is_large_rate(self, rate: float) -> bool:
        """Return whether a learning *rate* is no usual one, by what the first step was: a multiple of the gradients or the rate.

        >>> from sonde.rules import Chosen, LayerFindings, ModelFacts
        >>> LayerFindings(ModelFacts({}), Chosen()).is_large_rate(10.0)
        False
        """
        is_relative = self._first_move > 0 and 1 / _ALIKE <= self._first_move / rate <= _ALIKE
        return rate >= (_LARGE_RATE if self._follows_gradient else _LARGE_STEP if is_relative else math.inf)

    def _of_loss(self, loss: float) -> Iterator[Finding]:
        """Yield what the first *loss* and its gradient at the outputs of the model say of targets and of a sum over samples."""
        history = self.history
        outputs = self._model_outputs()
        if not outputs or not math.isfinite(loss):
            return
        last = max(outputs, key=history.rank)
        several = [c for c in outputs if not history.sites[c].path]
        if len(several) > 1:  # nobody knows what the loss makes of each, so that all of it counts for all of them
            size, count = float(self._first[several].max()), float(self._first_count[several].sum())
            of_all = self._chosen.judge("target_large", loss, size, count, math.inf)
            yield from joined(history, [(last, replace(of_all, step=0))] if of_all is not None else [])
            return
        at = history.column_at(history.sites[last].path, "grad_output", history.calls[last])
        gradient, count = math.nan if at is None else float(self._first[at]), float(self._first_count[last])
        found = [
            self._chosen.judge("target_large", loss, float(self._first[last]), count, gradient),
            self._of_probabilities(last, at, loss),
        ]
        if self._follows_gradient:
            found.append(self._chosen.judge("loss_summed", loss, gradient, count, self.chance, math.exp(self.chance)))
        for each in found:
            yield from joined(history, [(last, replace(each, step=0))] if each is not None else [])

    def _of_probabilities(self, output: int, gradient: int | None, loss: float) -> Finding | None:
        """Return the finding that outputs which are probabilities go into a loss of logits, as its gradient there says.

        That of a cross-entropy of logits sums to zero over the classes, and has a size of sqrt(classes - 1) / elements where all
        are as likely; a loss that takes log-probabilities, of sqrt(classes) / elements, and is minus the mean. At probabilities
        around 1/2 a binary one is log(1 + exp(1/2)) - 1/2 for a one, 1/2 more for a zero. What a layer has made as it is are none.
        """
        plain = [c for c in np.flatnonzero(self.history.at("output")).tolist() if self.history.facts[c].kind in _PLAIN]
        is_plain = any(
            _is_near(self._first[c], self._first[output]) and self._first_mean[c] == self._first_mean[output] for c in plain
        )
        if gradient is None or is_plain or not self._first_max[output] <= 1:
            return None
        count, classes = float(self._first_count[output]), math.exp(self.chance)
        size, mean, sums = (
            float(self._first[gradient]),
            float(self._first_mean[gradient]),
            float(self._first_mean[output]) * classes,
        )
        if abs(sums - 1) < 1e-4:
            is_zero = abs(mean) <= _SUMS_TO_ZERO * size
            of_logits = is_zero and _is_near(loss, self.chance) and _is_near(count * size, math.sqrt(classes - 1))
            of_logs = not is_zero and _is_near(-loss * classes, 1.0) and _is_near(count * size, math.sqrt(classes))
            what = "cross_entropy" if of_logits else "nll_loss"
            return self._chosen.judge("softmax_twice", count / classes, sums, what=what) if of_logits or of_logs else None
        ones = 2 * (math.log1p(math.exp(0.5)) - loss)  # the share of targets that are one
        squares = (1 - ones) * _SIGMOID_OF_HALF**2 + ones * (1 - _SIGMOID_OF_HALF) ** 2
        middle = float(self._first_mean[output])
        is_half = abs(middle - 0.5) < _AROUND and self._first[output] ** 2 - middle**2 < _AROUND**2
        if is_half and 0 <= ones <= 1 and _is_near(math.sqrt(squares), count * size):
            return self._chosen.judge("softmax_twice", count, middle, what="binary_cross_entropy_with_logits")
        return None

    def _growth(self) -> Iterator[Finding]:
        history = self.history
        columns = np.flatnonzero(history.at("output")).tolist()
        known = [c for c in columns if not math.isnan(self._first[c])]
        first_layer = [c for c in known if self._first_count[c] > 1] or known  # a loss that is returned is no output
        if first_layer:
            size = float(self._first[min(first_layer, key=history.rank)])
            large = [
                (c, found)
                for c in first_layer
                if (found := self._chosen.judge("output_large", float(self._first[c]), size)) is not None
            ]
            large.sort(key=lambda each: history.rank(each[0]))
            large = [(c, self._told_where(found)) for c, found in large[:1]] + large[1:]
            yield from joined(history, [(c, replace(found, step=int(self._first_step[c]))) for c, found in large])
        for growth, rule in ((self._outputs, "output_growth"), (self._weights, "weight_growth")):
            hits = sorted(np.flatnonzero(growth.first >= 0).tolist(), key=lambda c: (growth.first[c], history.rank(c)))
            grown: list[tuple[int, Finding]] = []
            for column in hits:
                each = self._chosen.judge(rule, float(growth.peak[column]), float(growth.before[column]))
                if each is not None:
                    step, first = int(growth.step[column]), int(growth.first[column])
                    when = f" at step {step:,}" + (f", {growth.limit:,.0f}-fold from step {first:,} on" if first != step else "")
                    grown.append((column, replace(each, message=each.message + when, step=step, first_step=first, last_step=step)))
            yield from joined(history, grown)

    def _of_experts(self, still: set[int]) -> Iterator[Finding]:
        """Yield that some of several experts get no gradient any more; add to *still* the columns of those without one now."""
        history = self.history
        for experts in self._experts if self._gaps.shape[1] == len(history) else ():
            columns = {
                part: [c for path in paths if (c := history.column_at(path, "grad")) is not None]
                for part, paths in experts.weights.items()
            }
            quiet = {part: min(self._gaps[4, held], default=math.inf) for part, held in columns.items()}
            heard = [column for part, held in columns.items() if not quiet[part] for column in held]
            lost = [part for part, steps in quiet.items() if steps >= _SPELL]
            if not heard:
                continue
            still.update(column for part, held in columns.items() if quiet[part] for column in held)
            is_long = max(self._gaps[0, heard]) >= _SPELL  # of what never ran nothing was counted
            found = self._chosen.judge("gradient_zero", 0.0) if lost and is_long else None
            if found is not None:
                first, step = Site(experts.weights[lost[0]][0], "grad", model=history.sites[0].model), int(history.moments[-1, 1])
                message = among(lost, f"no gradient, for {_SPELL} steps, and others of {len(quiet)} that are alike have one")
                begun = 0 if quiet[lost[0]] >= max(self._gaps[0, heard]) else step
                placed = found.at(str(first), int(history.moments[-1, 0]), step, message)
                advice = _ROUTED.format(router=experts.router.removesuffix(".weight"))
                evidence = {"lost": float(len(lost))}
                yield replace(placed, severity="warn", advice=advice, evidence=evidence, places=tuple(lost), first_step=begun)

    def _of_records(self, *, all_of_them: bool) -> Iterator[Finding]:
        still: set[int] = set()
        yield from self._of_experts(still) if "gradient_zero" in self._held else ()
        for rule, record in self._held.items():
            found = []
            for column in record.columns().tolist():
                if rule == "gradient_zero" and column in still:
                    continue
                judged = self._judged(rule, column, [float(number[column]) for number in record.others])
                if judged is not None:
                    step, first = int(record.step[column]), int(record.since[column])
                    is_long = all_of_them or int(record.last[column]) - first >= _SPELL
                    if rule == "gradient_zero" and not is_long and self._is_back(column):
                        continue  # as to an expert that few samples choose
                    if rule == "update_small" and 0 <= self._small_since[column] < first:
                        first = int(self._small_since[column])
                    found.append((column, replace(judged, step=step, first_step=first, last_step=int(record.last.max()))))
            if rule in ("update_large", "update_huge", "update_small", "update_lost"):
                sign = 1 if record.window.smallest else -1
                found.sort(key=lambda each: (sign * float(record.worst[each[0]]), self.history.rank(each[0])))
            else:
                found.sort(key=lambda each: (each[1].first_step or 0, self.history.rank(each[0])))
            if rule == "gradient_zero" and all(self.history.facts[column].is_offset for column, _ in found):
                found = [(column, replace(each, severity="note", advice=_CANCELS)) for column, each in found]
            yield from joined(self.history, found)

    @property
    def moves_between(self) -> bool:
        """Whether parameters that no step moves have moved between two of them or more: by a loop that steps in another place."""
        return self._between > 1

    def has_come_again(self, site: str) -> bool:
        """Return whether a gradient that was zero is none in most of the last rows.

        >>> from sonde.rules import Chosen, LayerFindings, ModelFacts
        >>> LayerFindings(ModelFacts({}), Chosen()).has_come_again("0.weight:grad")
        False
        """
        return any(self._is_back(column) for column, each in enumerate(self.history.sites) if str(each) == site)

    def _is_back(self, column: int) -> bool:
        return bool(np.count_nonzero(self.history.recent[-_RETURNED:, column] > 0) > _RETURNED // 2)

    def _judged(self, rule: str, column: int, numbers: list[float]) -> Finding | None:
        """Return what *rule* says of *numbers*; a ReLU whose output is all zero is dead, and offsets may begin at zero."""
        if rule == "all_zero" and self.history.facts[column].kind in _RELU:
            return self._chosen.judge("dead", numbers[0] / numbers[1])
        if rule == "all_zero" and self.history.facts[column].kind in _TABLES and self._table_of(column).is_offset:
            return None
        if rule == "all_zero" and self.history.calls[column] >= 0 and self._is_made_elsewhere(column):
            return None
        found = self._chosen.judge(rule, *numbers)
        if rule == "all_zero" and found is not None and self.history.facts[column].kind in _TABLES:
            return replace(found, advice=_PADDED)
        if rule == "gradient_zero" and found is not None and self._learns_beside(column):
            return replace(found, message=f"{found.message}{_FIRST_STEPS}", advice=_ONE_STEP)
        if rule == "gradient_zero" and found is not None and self._groups is not None and self._groups.first_layer is not None:
            weight, bias = self._groups.first_gradients or (-1, -1)
            output, _, added, _ = self._groups.first_layer
            made, gradient, own = self.history.recent[-1, [output, bias, added]].tolist()
            if column == weight and gradient > 0 and _is_near(made, own):  # all that it returns is its bias
                message = f"{found.message}, and that of its bias is not: what goes in is zero"
                advice = "look at what has changed in the data: an index, a normalisation to 0, a buffer that is no longer filled"
                return replace(found, message=message, advice=advice, quantity="input")
        if rule == "gradient_zero" and found is not None and self.history.matrix[column] and self._gradient_of_bias(column) > 0:
            message = f"{found.message}, and that of its bias is not: what comes to the loss through it is made of zeros"
            return replace(found, message=message, advice=_ZEROS, quantity="input")
        return found

    def _is_made_elsewhere(self, column: int) -> bool:
        """Return whether another call of the layer of a *column* returns something, as of a state that begins at 0."""
        same = [c for c, site in enumerate(self.history.sites) if site == self.history.sites[column] and c != column]
        return bool(np.any(self.history.recent[-1:, same] > 0))

    def _table_of(self, column: int) -> Fact:
        """Return what is known of the weight of an embedding whose output a *column* is of."""
        site = self.history.sites[column]
        return self._facts.parameters.get((site.model, f"{site.path}.weight"), Fact())

    def _gradient_of_bias(self, column: int) -> float:
        """Return the size of the gradient of the bias beside a weight without one, at the last logged step; else 0."""
        bias = self.history.column_at(parameter_of(self.history.sites[column].path.rpartition(".")[0], "bias"), "grad")
        is_zero = self.history.recent[-1, column] == 0
        return float(self.history.recent[-1, bias]) if bias is not None and is_zero else 0.0

    def _learns_beside(self, column: int) -> bool:
        """Return whether the weight of a state has no gradient, where that of the input of the same layer has one."""
        site = self.history.sites[column]
        beside = self.history.column_at(site.path.replace("weight_hh", "weight_ih"), "grad")
        return "weight_hh" in site.path and beside is not None and bool(self.history.recent[-1, beside] > 0)

    def _of_still(self) -> Iterator[Finding]:
        """Weights with a gradient that nothing moves; weights that no gradient reaches."""
        history = self.history
        if not len(self._still) or self._groups is None:
            return
        gradients = [c for c in np.flatnonzero(history.at("grad")).tolist() if np.isfinite(self._first[c])]
        lone = [c for c in gradients if history.column_at(history.sites[c].path, "update") is None]
        begins = min((int(history.order[c]) for c in gradients), default=-1)
        without = [
            c
            for c in np.flatnonzero(history.at("param") & history.matrix).tolist()
            if history.facts[c].trainable and history.order[c] < begins and history.column_at(history.sites[c].path, "grad") is None
        ]
        for rule, columns in (("unmoved", lone), ("unreached", without)):
            judged = [(c, found) for c in columns if (found := self._chosen.judge(rule, float(self._still[c]))) is not None]
            judged.sort(key=lambda each: (not history.matrix[each[0]], history.rank(each[0])))
            yield from joined(history, [(c, replace(found, step=int(self._first_step[c]))) for c, found in judged])

    def _of_frozen(self) -> Iterator[Finding]:
        """Frozen weights that run between trained ones."""
        history = self.history
        model = history.sites[0].model if len(history) else ""
        order = {history.sites[c].path: int(history.order[c]) for c in np.flatnonzero(history.at("output")).tolist()}
        known = [
            (order[path.rpartition(".")[0]], path, fact)
            for (of, path), fact in self._facts.parameters.items()
            if of == model and fact.is_matrix and path.rpartition(".")[0] in order
        ]
        trained = [place for place, _, fact in known if fact.trainable]
        if len(trained) >= _FEW - 1:
            yield from self._of_frozen_later({path: place for place, path, fact in known if fact.trainable})
        if len(trained) < _FEW - 1 or len(trained) == len(known) or not (self._still.max(initial=0) >= UNMOVED):
            return
        begin, end = min(trained), max(trained)
        held = [(place, path, fact) for place, path, fact in known if not fact.trainable and begin < place < end]
        if any(self._has_low_rank_path(path, fact) for _, path, fact in held):
            return  # adapters are trained, and what has none is frozen as well
        if all(self._is_low_rank(path, fact) for place, path, fact in known if fact.trainable and place < end):
            return  # what is trained are adapters between frozen layers, and the last layer
        between = [(place, path) for place, path, _ in held]
        found = self._chosen.judge("frozen", len(between), len(trained))
        if found is not None:
            names = [path for _, path in sorted(between)]
            site = Site(names[0], "param", model=model)
            yield replace(found.at(str(site), 0, 0, among(names, found.message)), first_step=0)

    def _is_low_rank(self, path: str, own: Fact) -> bool:
        """Return whether a trained matrix is half of a path of low rank, whose other half is beside its layer."""
        around, shape = path.rpartition(".")[0].rpartition(".")[0], own.shape or ()
        beside = [other.shape for name, other in self._matrices() if around and other.trainable and name.startswith(f"{around}.")]
        return len(shape) == 2 and shape[0] != shape[1] and shape[::-1] in beside

    def _has_low_rank_path(self, path: str, frozen: Fact) -> bool:
        """Return whether two trained matrices beside the *frozen* one, in the module around its layer, make a path of low rank."""
        around = path.rpartition(".")[0].rpartition(".")[0]
        inside = [fact.shape for other, fact in self._matrices() if around and fact.trainable and other.startswith(f"{around}.")]
        shapes = [
            each for shape in inside if shape is not None for each in (shape, shape[::-1])
        ]  # a path may be written either way
        return any(
            (into[1], out[0], into[0]) == (frozen.inputs, frozen.units, out[1]) and into[0] < max(frozen.inputs, frozen.units)
            for into in shapes
            for out in shapes
        )

    def _matrices(self) -> Iterator[tuple[str, Fact]]:
        """Yield the parameters of the model that have two axes, by path."""
        yield from ((path, fact) for path, fact in self._of_model() if fact.shape is not None and len(fact.shape) == 2)

    def _of_model(self) -> Iterator[tuple[str, Fact]]:
        """Yield the parameters of the model, by path."""
        model = self.history.sites[0].model
        yield from ((path, fact) for (of, path), fact in self._facts.parameters.items() if of == model)

    def _of_frozen_later(self, places: Mapping[str, int]) -> Iterator[Finding]:
        """Weights that had a gradient and have none any more, between those that have one; *places* are of trained weights."""
        history = self.history
        columns = np.flatnonzero(history.at("grad") & history.matrix)
        if self._gaps.shape[1] < len(history) or not len(columns):
            return
        rows, gap, longest, last, _ = self._gaps[:, columns]
        ended = (rows >= UNMOVED) & (gap >= _ENDED) & (gap > 3 * longest)
        if not ended.any():
            return
        runs = {history.sites[c].path for c in np.flatnonzero(history.at("output") & (self._gaps[1] == 0)).tolist()}
        path = [history.sites[column].path for column in columns.tolist()]
        ended &= np.array([each.rpartition(".")[0] in runs for each in path], bool)
        learn = [places[each] for each, has, over in zip(path, rows, ended, strict=True) if has and not over and each in places]
        known = zip(path, columns.tolist(), last.tolist(), ended, strict=True)
        over = [each for each in known if each[3] and each[0] in places and min(learn, default=0) < places[each[0]]]
        over = [each for each in over if places[each[0]] < max(learn, default=0)]
        found = self._chosen.judge("frozen", len(over), len(learn))
        if found is not None:
            step = int(min(each[2] for each in over))
            message = f"gets no gradient after step {step:,}, between weights that are trained"
            later = [(column, replace(found, message=message, step=step, first_step=step)) for _, column, _, _ in over]
            yield from joined(history, sorted(later, key=lambda each: history.rank(each[0])))

    def share_of_batch(self, step: int) -> float:
        """Return how many elements outputs have at *step*, as a share of what they have as a rule; 1 where that is not known."""
        held = [extended(each, len(self.history)) for at, each in self._counts if at <= step][-RECENT - 1 :]
        if len(held) <= _FEW_STEPS or all(at != step for at, _ in self._counts):
            return 1.0
        outputs = self.history.at("output") & np.isfinite(held[-1])
        before = np.array(held[:-1])[:, outputs]
        known = np.isfinite(before).sum(0) >= _FEW_STEPS
        return float(np.median(held[-1][outputs][known] / np.nanmedian(before[:, known], 0))) if known.any() else 1.0

    def moved_first(self, step: int, deviations: float) -> tuple[str, float] | None:
        """Return the first site in the order of execution whose size at *step* is so many *deviations* above its sizes before."""
        history = self.history
        lines = np.flatnonzero(history.window_moments[:, 1] == step)
        if not len(lines) or lines[0] < 3:
            return None
        line = int(lines[0])
        with np.errstate(all="ignore"):
            logs = np.log(history.window[max(0, line - _MEASURED) : line + 1])
        best: tuple[tuple[int, ...], int, float] | None = None
        for column in np.flatnonzero(history.at("output") | history.at("grad")).tolist():
            before = logs[:-1, column][np.isfinite(logs[:-1, column])]
            if len(before) < 3 or not np.isfinite(logs[-1, column]):
                continue
            middle = float(np.median(before))
            spread = max(1.4826 * float(np.median(np.abs(before - middle))), 0.05)
            away = (float(logs[-1, column]) - middle) / spread
            key = (
                int(history.ports[column] != "output"),
                int(history.order[column]) * (1 if history.ports[column] == "output" else -1),
            )
            if away >= deviations and (best is None or key < best[0]):
                best = key, column, away
        return None if best is None else (str(history.sites[best[1]]), best[2])
