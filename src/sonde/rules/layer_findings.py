"""Apply the rules about sizes and shares of tensors to the rows of one model, while they are written or afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from sonde.rows import RowBlock
from sonde.rules.chosen import Chosen
from sonde.rules.finding import Finding
from sonde.rules.health import DEAD_SAMPLES, FORMATS
from sonde.rules.layer_groups import Groups, among, first_of, joined, medians, rank_correlation
from sonde.rules.model_facts import ModelFacts
from sonde.rules.place_history import Columns, Growth, Held, History, Mask, Numbers, extended
from sonde.rules.updates import UNMOVED
from sonde.site import Site

_FEW = 3  # weights: with fewer, none can be far from the others
_DEEP = 6  # layers: with fewer, a quarter of them is no more than one
_ALONG = 0.7  # rank correlation of a size with the depth
_RELU = ("ReLU", "ReLU6", "Threshold", "Hardtanh")
_EARLY = 6  # logged steps of a weight before its steps can be too small
_MEASURED = 16  # logged steps before a step that it is compared with

Steps = npt.NDArray[np.int64]

HELD: dict[str, tuple[int, int, bool]] = {
    "weight_shrinking": (3, 5, True),
    "update_large": (3, 5, False),
    "update_huge": (1, 1, False),
    "update_small": (4, 5, True),
    "update_lost": (3, 5, False),
    "gradient_zero": (3, 5, False),
    "gradient_vanishing": (3, 5, True),
    "gradient_exploding": (3, 5, False),
    "flat": (3, 5, True),
    "all_zero": (3, 5, False),
    "constant": (3, 5, False),
    "constant_weight": (3, 5, False),
    "dropped": (3, 5, False),
    "attention_large": (3, 5, False),
    "one_index": (5, 5, False),
    "overflow_near": (3, 5, False),
    "underflow": (3, 5, False),
}
"""By rule, in how many of the last so many logged steps its condition must hold, and whether a smaller value is further off."""


class LayerFindings:
    """The rules about sizes (root mean squares) and shares of elements, for one family and model.

    The class is large because each kind of rule has its own memory: sixteen attributes, and most belong to one method.

    Args:
        facts: about the layers.
        chosen: the rules that are applied.
    """

    def __init__(self, facts: ModelFacts, chosen: Chosen) -> None:
        self.history = History("rms", facts)
        self._facts = facts
        self._chosen = chosen
        self._groups: Groups | None = None
        self._known = -1
        self._outputs = Growth(chosen.limit("output_growth", "factor"))
        self._weights = Growth(chosen.limit("weight_growth", "factor"))
        self._first = np.empty(0)  # the first value of each column, and its step
        self._first_step = np.empty(0)
        self._held = {rule: Held(most, of, smallest=smallest) for rule, (most, of, smallest) in HELD.items()}
        self._marks = np.empty((4, 0))  # of each update: how many, update / weight at the last two powers of 2, and the largest
        self._small_since = np.empty(0)  # of each update, the step from which on it was too small
        self._still = np.empty(0)  # of each column of a gradient or parameter, steps in which others moved and it had no update
        self._step: Finding | None = None  # the largest of those steps that are too large
        self._steps = 0  # how many of these there were
        self._begins: list[Finding] = []  # about outputs and weights at the first logged step
        self._looked = False

    def add(self, block: RowBlock) -> None:
        """Add rows."""
        history, steps = self.history, block.moments[:, 1]
        values = history.add(block)
        if self._groups is None or self._known != history.changes:
            self._groups, self._known = Groups.of(history, self._facts), history.changes
        groups = self._groups
        self._remember_first(values, steps)
        weights = history.at("param") & history.matrix
        if math.isnan(self._outputs.common):
            self._outputs.common = first_of(values[:, groups.inner], np.nanmax)
        if math.isnan(self._weights.common):
            self._weights.common = first_of(values[:, weights], np.nanmedian)
        self._outputs.add(np.where(groups.inner, values, np.nan), steps)
        self._weights.add(np.where(weights, values, np.nan), steps)
        with np.errstate(all="ignore"):
            self._look_at_weights(values, weights, block)
            self._look_at_gradients(values, steps, groups)
            self._look_at_outputs(values, steps, groups)
            self._look_at_attention(values, steps, groups)
            self._look_at_formats(steps, groups)
        if not self._looked:
            self._look_at_first(values, steps, groups)

    # Rows

    def _hold(self, rule: str, columns: Columns, holds: Mask, values: Numbers, steps: Steps, *others: Numbers) -> None:
        """Add to the rule's record what holds at *columns*, of *values* of shape ``(moments, columns)``."""
        if not self._chosen.is_on(rule) or not len(columns):
            return
        record = self._held[rule]
        if not holds.any() and not record.is_waiting:
            return
        shape = len(steps), len(self.history)
        every = np.zeros(shape, bool)
        every[:, columns] = holds
        spread = [np.full(shape, np.nan) for _ in range(1 + len(others))]
        for whole, part in zip(spread, (values, *others), strict=True):
            whole[:, columns] = part
        record.add(every, spread[0], steps, *spread[1:])

    def _remember_first(self, values: Numbers, steps: Steps) -> None:
        width = values.shape[1]
        self._first, self._first_step = extended(self._first, width), extended(self._first_step, width, -1)
        new = np.isnan(self._first) & np.isfinite(values).any(axis=0)
        if new.any():
            line = np.isfinite(values).argmax(axis=0)
            self._first[new] = values[line, np.arange(width)][new]
            self._first_step[new] = steps[line][new]

    def _look_at_weights(self, values: Numbers, weights: Mask, block: RowBlock) -> None:
        groups, steps, chosen = self._groups, block.moments[:, 1], self._chosen
        assert groups is not None
        matrices = np.flatnonzero(weights)
        sizes, first = values[:, matrices], self._first[matrices]
        factor = chosen.limit("weight_shrinking", "factor")
        self._hold("weight_shrinking", matrices, sizes * factor <= first, sizes, steps, np.broadcast_to(first, sizes.shape))
        mean, std = self.history.of("mean"), self.history.of("std")
        gradients, updates = groups.gradients, groups.updates
        if not len(updates):
            return
        gradient, update, weight = values[:, gradients], values[:, updates], values[:, groups.weights]
        weight_mean, weight_std = mean[:, groups.weights], std[:, groups.weights]
        meant = np.isfinite(gradient)
        begins = steps[:, None] == self._first_step[groups.weights]
        if begins.any():
            self._look_at_first_weights(begins & meant, weight, update, weight_mean, weight_std)
        alike = weight_std <= chosen.limit("constant_weight", "spread") * np.maximum(np.abs(weight_mean), 1e-30)
        self._hold("constant_weight", groups.weights, alike & meant, weight_mean, steps, weight_std)
        ratio = np.where(meant, update / np.fmax(weight, groups.usual), np.nan)
        exact = np.where(meant & (weight > 0), update / weight, np.nan)
        self._hold("update_large", updates, ratio > chosen.limit("update_large", "most"), ratio, steps)
        self._hold("update_huge", updates, ratio > chosen.limit("update_huge", "most"), ratio, steps)
        self._look_at_small(exact, steps, updates)
        zeros, count = self.history.of("zeros"), self.history.of("count")
        if groups.halves.any():  # in float32 a step that is lost is too small in any format
            lost = (zeros[:, updates] - zeros[:, gradients]) / count[:, updates]
            steps_at_all = (update > 0).any(axis=1, keepdims=True)
            lost_most = (lost >= chosen.limit("update_lost", "most")) & steps_at_all & groups.halves
            self._hold("update_lost", updates, lost_most, lost, steps)
        self._look_for_still(values, np.asarray(np.isfinite(update).any(axis=1), bool))
        self._judge_steps(ratio, block)

    def _look_at_first_weights(self, begins: Mask, weight: Numbers, update: Numbers, mean: Numbers, std: Numbers) -> None:
        """Judge weights at their first logged step, *begins*: their size, and whether all elements were equal before the step."""
        assert self._groups is not None
        columns, found = self._groups.weights, []
        for line, place in np.argwhere(begins).tolist():
            size, moved = float(weight[line, place]), float(update[line, place])
            column = int(columns[place])
            middle = float(mean[line, place])
            equal = self._chosen.judge("constant_weight", middle, float(std[line, place]), moved) if middle else None
            large = self._chosen.judge("weight_large", size, self.history.facts[column].usual) if 2 * moved < size else None
            found += [(column, replace(each, step=int(self._first_step[column]))) for each in (equal, large) if each is not None]
        found.sort(key=lambda each: self.history.rank(each[0]))
        for rule in ("constant_weight", "weight_large"):
            self._begins += joined(self.history, [each for each in found if each[1].rule == rule])

    def _look_at_small(self, ratio: Numbers, steps: Steps, updates: Columns) -> None:
        """Steps are too small that do not move a weight at all, or hardly and without growing, as those of a warm-up do.

        A ratio grows if it is 1.8 x what it was when there were half to a quarter as many logged steps. Only then is it followed:
        in most trainings no weight has ever moved so little.
        """
        self._marks = extended(self._marks, len(self.history), 0)
        self._small_since = extended(self._small_since, len(self.history), -1)
        least = self._chosen.limit("update_small", "least")
        small = (ratio < least) | (ratio == 0)
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
            holds[line] = (values == 0) | (small[line] & (count >= _EARLY) & never_more)
        self._hold("update_small", updates, holds, ratio, steps)

    def _look_for_still(self, values: Numbers, moved: Mask) -> None:
        """Count the steps in which some weights moved, for weights without an update, and for those without a gradient."""
        self._still = extended(self._still, len(self.history), 0)
        self._still += (np.isfinite(values) & moved[:, None]).sum(axis=0)

    def _judge_steps(self, ratios: Numbers, block: RowBlock) -> None:
        """Keep the step that moves half of all weights furthest, if it is one that moves them too far."""
        assert self._groups is not None
        many = np.isfinite(ratios).sum(axis=1) >= _FEW
        if not many.any():
            return
        middle = medians(ratios[many])
        if not (middle > self._chosen.limit("step_large", "most")).any():
            return
        for line, ratio in zip(np.flatnonzero(many).tolist(), middle.tolist(), strict=True):
            found = self._chosen.judge("step_large", ratio)
            if found is None:
                continue
            self._steps += 1
            if self._step is None or found.value > self._step.value:
                column = int(self._groups.updates[np.nanargmax(ratios[line])])
                epoch, step = block.moments[line, :2].tolist()
                first = step if self._step is None else self._step.first_step
                self._step = replace(found.at(str(self.history.sites[column]), epoch, step), first_step=first)

    def _look_at_gradients(self, values: Numbers, steps: Steps, groups: Groups) -> None:
        weights, gradients = groups.deep
        if not len(gradients):
            return
        size = values[:, gradients]
        self._hold("gradient_zero", gradients, size == 0, size, steps)
        usual = np.array([self.history.facts[c].usual for c in weights.tolist()])
        score = size * np.fmax(values[:, weights], usual)
        if len(gradients) < _DEEP:
            return
        quarter = len(gradients) // 4
        first, last = (medians(part) for part in (score[:, :quarter], score[:, -quarter:]))
        for rule, holds, sign in (
            ("gradient_vanishing", first * self._chosen.limit("gradient_vanishing", "factor") <= last, 1),
            ("gradient_exploding", first >= self._chosen.limit("gradient_exploding", "factor") * last, -1),
        ):
            if holds.any() or self._held[rule].is_waiting:
                along = np.array([sign * rank_correlation(line) > _ALONG for line in score])
                column = gradients[:1]
                self._hold(rule, column, (holds & along)[:, None], (first / last)[:, None], steps, first[:, None], last[:, None])

    def _look_at_outputs(self, values: Numbers, steps: Steps, groups: Groups) -> None:
        history, chosen = self.history, self._chosen
        mean, std = history.of("mean"), history.of("std")
        for columns, slope in (
            (groups.tanh, 1 - values[:, groups.tanh] ** 2),
            (groups.sigmoid, 4 * (mean[:, groups.sigmoid] - values[:, groups.sigmoid] ** 2)),
        ):
            bounded = history.of("absmax")[:, columns] <= 1  # an RNN may have ReLU, and a Tanh a wrapper
            self._hold("flat", columns, (slope < chosen.limit("flat", "least")) & bounded, np.where(bounded, slope, np.nan), steps)
        zeros, count = history.of("zeros"), history.of("count")
        share = zeros / count
        silent = (share[:, groups.zeros] == 1) & (count[:, groups.zeros] >= DEAD_SAMPLES)
        self._hold("all_zero", groups.zeros, silent, share[:, groups.zeros], steps, count[:, groups.zeros])
        inner = groups.first_to_last
        even = (std[:, inner] <= chosen.limit("constant", "spread") * np.abs(mean[:, inner])) & (count[:, inner] > DEAD_SAMPLES)
        self._hold("constant", inner, even & (mean[:, inner] != 0), mean[:, inner], steps, std[:, inner], count[:, inner])
        if len(groups.dropout):
            given = np.where(groups.before_dropout != groups.dropout, share[:, groups.before_dropout], 0.0)
            added = (share[:, groups.dropout] - given) / (1 - np.minimum(given, 1 - 1e-9))
            self._hold("dropped", groups.dropout, added > chosen.limit("dropped", "most"), added, steps)

    def _look_at_attention(self, values: Numbers, steps: Steps, groups: Groups) -> None:
        """Judge the sizes of queries and keys, and whether the largest embedding is asked for one index alone."""
        if len(groups.queries):
            query, key = values[:, groups.queries], values[:, groups.keys]
            large = query * key >= self._chosen.limit("attention_large", "most")
            self._hold("attention_large", groups.queries, large, query, steps, key)
        if groups.lookups is None or not np.isfinite(values[:, groups.deep[1]]).any():
            return  # a new word may be trained alone, and nothing else
        gradient, output = groups.lookups
        shape = self.history.facts[gradient].shape
        assert shape is not None
        count = self.history.of("count")
        elements = count[:, [gradient]] - self.history.of("zeros")[:, [gradient]]
        width = np.full(elements.shape, float(shape[1]))
        indices = count[:, [output]] / width
        one = (elements > 0) & (elements <= width) & (indices >= 8)
        self._hold("one_index", np.array([gradient]), one, elements, steps, width, indices)

    def _look_at_formats(self, steps: Steps, groups: Groups) -> None:
        columns = groups.float16
        if not len(columns):
            return
        largest, smallest = FORMATS["float16"]
        absmax = self.history.of("absmax")[:, columns]
        limit = np.full(absmax.shape, largest)
        self._hold("overflow_near", columns, absmax > self._chosen.limit("overflow_near", "share") * largest, absmax, steps, limit)
        gradient = self.history.at("grad")[columns] & self.history.matrix[columns]
        zeros = self.history.of("zeros")[:, columns] / self.history.of("count")[:, columns]
        under = (absmax < smallest) & ((zeros >= self._chosen.limit("underflow", "share")) | (absmax == 0)) & gradient
        self._hold("underflow", columns, under, zeros, steps, absmax, np.full(absmax.shape, smallest))

    def _look_at_first(self, values: Numbers, steps: Steps, groups: Groups) -> None:
        """Judge how outputs shrink through the layers at the first logged step that has outputs."""
        columns = groups.first_to_last
        known = columns[np.isfinite(values[0, columns]) & (values[0, columns] > 0)] if len(values) else columns
        if not len(columns):
            return
        self._looked = True
        quarter = len(known) // 4
        if len(known) < _DEEP or rank_correlation(values[0, known]) > -_ALONG:
            return
        first, last = (float(np.median(values[0, part])) for part in (known[:quarter], known[-quarter:]))
        found = self._chosen.judge("output_small", first, last)
        if found is not None:
            self._begins += joined(self.history, [(int(known[-1]), replace(found, step=int(steps[0])))])

    # What is found

    def findings(self) -> Iterator[Finding]:
        """Yield the findings, one for each rule."""
        yield from self._begins
        yield from self._growth()
        yield from self._of_records()
        if not any(len(self._held[rule].columns()) for rule in ("update_large", "update_huge")):
            yield from self._of_steps()
        yield from self._of_still()
        yield from self._of_frozen()

    def _of_steps(self) -> Iterator[Finding]:
        if self._step is None:
            return
        first, step = self._step.first_step, self._step.step
        since = "" if first == step else f"; too far from step {first:,} on, in {self._steps:,} logged steps"
        yield replace(self._step, message=f"{self._step.message}: step {step:,}{since}")

    def _growth(self) -> Iterator[Finding]:
        history = self.history
        first_layer = [c for c in np.flatnonzero(history.at("output")).tolist() if not math.isnan(self._first[c])]
        if first_layer:
            size = float(self._first[min(first_layer, key=history.rank)])
            large = [
                (c, found)
                for c in first_layer
                if (found := self._chosen.judge("output_large", float(self._first[c]), size)) is not None
            ]
            large.sort(key=lambda each: history.rank(each[0]))
            yield from joined(history, [(c, replace(found, step=int(self._first_step[c]))) for c, found in large])
        for growth, rule in ((self._outputs, "output_growth"), (self._weights, "weight_growth")):
            hits = sorted(np.flatnonzero(growth.first >= 0).tolist(), key=lambda c: (growth.first[c], history.rank(c)))
            grown: list[tuple[int, Finding]] = []
            for column in hits:
                each = self._chosen.judge(rule, float(growth.peak[column]), float(growth.before[column]))
                if each is not None:
                    step, first = int(growth.step[column]), int(growth.first[column])
                    when = f" at step {step:,}" + (f", {growth.limit:,.0f}-fold from step {first:,} on" if first != step else "")
                    grown.append((column, replace(each, message=each.message + when, step=step, first_step=first)))
            yield from joined(history, grown)

    def _of_records(self) -> Iterator[Finding]:
        for rule, record in self._held.items():
            found = []
            for column in record.columns().tolist():
                numbers = [float(record.worst[column]), *(float(other[column]) for other in record.others)]
                judged = self._judged(rule, column, numbers)
                if judged is not None:
                    step, first = int(record.step[column]), int(record.since[column])
                    if rule == "update_small" and 0 <= self._small_since[column] < first:
                        first = int(self._small_since[column])
                    found.append((column, replace(judged, step=step, first_step=first)))
            if rule in ("update_large", "update_huge", "update_small", "update_lost"):
                sign = 1 if record.smallest else -1
                found.sort(key=lambda each: (sign * float(record.worst[each[0]]), self.history.rank(each[0])))
            else:
                found.sort(key=lambda each: (each[1].first_step or 0, self.history.rank(each[0])))
            yield from joined(self.history, found)

    def _judged(self, rule: str, column: int, numbers: list[float]) -> Finding | None:
        judge = partial(self._chosen.judge, rule)
        if rule == "all_zero":
            share, count = numbers
            if self.history.facts[column].kind in _RELU:
                return self._chosen.judge("dead", share)
            return judge(share * count, count)
        if rule in ("gradient_vanishing", "gradient_exploding"):
            return judge(*numbers[1:])
        return judge(*numbers)

    def _of_still(self) -> Iterator[Finding]:
        """Weights with a gradient that nothing moves; weights that no gradient reaches."""
        history = self.history
        if not len(self._still) or self._groups is None:
            return
        at = {(history.sites[c].path, history.ports[c]) for c in range(len(history))}
        gradients = [c for c in np.flatnonzero(history.at("grad")).tolist() if np.isfinite(self._first[c])]
        lone = [c for c in gradients if (history.sites[c].path, "update") not in at]
        still = [(c, found) for c in lone if (found := self._chosen.judge("unmoved", float(self._still[c]))) is not None]
        still.sort(key=lambda each: (not history.matrix[each[0]], history.rank(each[0])))
        yield from joined(history, [(c, replace(found, step=int(self._first_step[c]))) for c, found in still])
        if not gradients:
            return
        begins = min(int(history.order[c]) for c in gradients)
        without = [
            c
            for c in np.flatnonzero(history.at("param") & history.matrix).tolist()
            if history.facts[c].trainable and history.order[c] < begins and (history.sites[c].path, "grad") not in at
        ]
        cut = [(c, found) for c in without if (found := self._chosen.judge("unreached", float(self._still[c]))) is not None]
        cut.sort(key=lambda each: history.rank(each[0]))
        yield from joined(history, [(c, replace(found, step=int(self._first_step[c]))) for c, found in cut])

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
        if len(trained) < _FEW - 1 or len(trained) == len(known) or not (self._still.max(initial=0) >= UNMOVED):
            return
        begin, end = min(trained), max(trained)
        between = [(place, path) for place, path, fact in known if not fact.trainable and begin < place < end]
        found = self._chosen.judge("frozen", len(between), len(trained))
        if found is not None:
            names = [path for _, path in sorted(between)]
            site = Site(names[0], "param", model=model)
            yield replace(found.at(str(site), 0, 0, among(names, found.message)), first_step=0)

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
