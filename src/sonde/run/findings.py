"""Apply the rules to the rows of a run, while it is written or afterwards: over its whole history, in bounded memory."""

from __future__ import annotations

import copyreg
import io
import math
import pickle
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from sonde.rows import Layout, RowBlock
from sonde.rules import (
    RULES,
    Chosen,
    Finding,
    FirstDefect,
    LayerFindings,
    ModelFacts,
    PortFindings,
    Rule,
    ScalarFindings,
    gravity,
    implied,
    others,
    related,
)
from sonde.run.schema import main_families
from sonde.site import Site
from sonde.words import short

PlainScalar = tuple[str, float, int, int]
"""A scalar: its name, value, epoch and step."""
Identity = tuple[str, str, int, bool]

_GRAVEST = ("bad", "warn", "note")
_HARMED = {"output", "loss", "gradient", "update", "weight"}  # what an input that is not scaled can do harm to
_FAR_DECAY = 0.3  # that outweighs gradients, whether weights are seen to shrink or not
_OF_DECAY = {"loss_stuck", "weight_shrinking", "update_small", "output_small"}  # what a decay does that outweighs gradients
_TOO_FAR: set[object] = {("output", "large"), ("loss", "large"), ("gradient", "large"), ("update", "large"), ("weight", "large")}
_OF_TARGETS: set[object] = {*_TOO_FAR, ("loss", "still")}  # what targets that are far larger than outputs can do
_OF_FADING: set[object] = {
    *((quantity, way) for quantity in ("output", "gradient", "update") for way in ("small", "lost")),
    ("loss", "still"),
}  # what weights that begin too small can do
_GROWN = (("output", "large"), ("weight", "large"))  # what a loss that falls without bound makes grow
# rules whose findings are taken back where the loss comes down again, or units live again
_PASSING = ("loss_rising", "loss_stuck", "loss_unbounded", "overfitting", "output_growth", "weight_growth", "dead")
_BY_OTHERS = (
    "rate_grown",
    "momentum_large",
    "target_large",
    "loss_summed",
    "bounded",
)  # by what other findings, or the loss, say
_STANDS, _HALF, _THIRD = 0.8, 0.5, 1 / 3  # smallest loss, of the first ones: that has hardly fallen, not by half, not by two thirds
_NOTHING_ARRIVES = (
    "no gradient arrives at the outputs of the model: look first at what stands between them and the loss (an argmax or another "
    "index, a rounding, a comparison, a factor of 0, a clamp or a margin beyond which all outputs are, a sigmoid or a softmax that "
    "is saturated, a mask, a detach())"
)
_EQUAL = (
    "both sides of what the loss compares are equal. Look whether negatives are the positives themselves, and whether two views, "
    "or two networks, are one"
)
_ALL = 2  # parameters, none of which has a gradient
_TINY_INPUT = 1e-2  # size of inputs that are not scaled
_FAR_LOSS = 100.0  # a first loss, of the squares of the first outputs, or 1: targets of the size of the outputs are not so far off
_LARGE_LOSS = 1000.0  # that of outputs around 0 whose targets are of size 30
_EARLY = 20  # steps in which a loss that is too large by itself does harm, beside what may do it later
_USUAL_STEPS = 10  # that a momentum of 0.9 adds up
_CAUSES = ("setup", "input", "initialisation")
_USUAL_PACE = 3e-4  # update / weight of half of the weights, from which on a learning rate is not too small
_SMALL_PACE = 1e-4  # update / weight that a learning rate of 1 would come to, where a smaller one of plain SGD is too small
_PLAIN = "raise the learning rate: it is a small one of plain SGD (0.01 to 1 is usual), or let Adam divide by the gradients' size; "
_TINY_RATE, _USUAL_RATE, _SLOW = 1e-6, 1e-3, 300  # rates that are small for any optimizer, and for none; steps of a slow training
_FAR_EPS = 10.0  # times as large as gradients an eps makes steps that much smaller
_CUT = 5.0  # times as far as steps ever went, a norm that clipping has cut
_NO_ENTROPY = 3.0  # times that of a guess, at which no cross-entropy begins
_FOLLOWS = 4.0  # times its first value, beyond which a loss follows nothing that has an end
_ERROR, _SAME = 0.25, 0.1  # of the squares of outputs, an error that is small; of their size, by how much a loss is not that size
_LOST = 20.0  # times its first value, as which no loss of a game stands, either
_HALF_PRECISION = 1e-5  # of gradients, beside which those that are smaller are zero in float16
_FAR_DOWN, _SETTLED = 0.3, 100  # of its first value, to which a loss falls that steps have helped, whatever they do; and values
_NEVER = 2**62
_FEW = 8  # steps that are judged one by one, rather than in halves


class _Judges:
    """What all rules remember of the rows and scalars so far."""

    def __init__(self, about: Mapping[str, object], chosen: Chosen) -> None:
        self.chosen = chosen
        self.facts = ModelFacts(about)
        self.defect = FirstDefect()
        self.seen: dict[str, int] = {}  # of each number at a port, and each scalar, at how many steps
        self._layers: dict[tuple[str, str], LayerFindings] = {}  # by family and model
        self._scalars = ScalarFindings(chosen, self._moved_first, self._chance, self._share_of_batch)
        self._ports = PortFindings(self.facts, chosen)
        self._families: set[str] = set()
        self._rates: dict[str, float] = {}  # by model the learning rate, NaN where it has several
        self._idle: dict[str, dict[str, bool]] = {}  # by optimizer and group of several, whether its rate has been 0 so far

    def look(self, block: RowBlock) -> None:
        """Look at finished rows of one model."""
        self.defect.look(block)
        self._families.add(block.family)
        if block.family not in main_families(self._families) or not len(block):
            return
        key = block.family, next(iter(block.layout.model), "")
        moments, ports = len(block.moments), set(block.layout.port)
        for place in [f"{number}:{port}" for number in block.numbers for port in ports]:
            self.seen[place] = self.seen.get(place, 0) + moments
        if "rms" in block.numbers:
            if key not in self._layers:
                self._layers[key] = LayerFindings(self.facts, self.chosen)
            self._layers[key].add(block)
        self._ports.look(block)

    def look_at_scalar(self, name: str, value: float, epoch: int, step: int) -> None:
        """Look at a pushed value or a norm."""
        model, _, kind = name.rpartition("/")
        is_of_group = model.rpartition("/")[2] == "lr"
        self.seen["lr" if is_of_group else kind] = self.seen.get("lr" if is_of_group else kind, 0) + 1
        if kind == "lr" or kind.startswith("lr_"):
            self._rates[model] = value if kind == "lr" else math.nan
        if is_of_group:
            self._idle.setdefault(model, {})[kind] = self._idle.get(model, {}).get(kind, True) and not value
        self.defect.look_at_scalar(name, value, epoch, step)
        self._scalars.add(name, value, epoch, step)
        self._ports.look_at_scalar(name, value, epoch, step)

    def findings(self, *, all_of_them: bool = False, at_end: bool = False) -> list[Finding]:
        """Return what every rule finds so far, the gravest first: one finding of a rule for each model, with all its places.

        Args:
            all_of_them: also what the loss says to be right as it is, which it may not have said some steps ago.
            at_end: also what waits for later steps: none come.
        """
        defect = self.defect.finding() if self.chosen.is_on("nonfinite") else None
        found = [] if defect is None else [defect]
        found += sorted(self._ports.findings(), key=lambda each: each.rule)
        found += [each for key in sorted(self._layers) for each in self._layers[key].findings(all_of_them=all_of_them)]
        found += self._scalars.findings(at_end=at_end)
        for (_, model), layers in sorted(self._layers.items()):
            begun = self._scalars.loss_of(model).begun
            found += layers.of_first_loss(begun)
        models = dict.fromkeys(model for _, model in self._layers) or {"": None}
        found += [each for model in models for each in self._scalars.of_rates(model, at_end=at_end)]
        if not all_of_them:
            found = [each for each in found if not (self.has_helped(each) or self._is_contradicted(each))]
            found = [weighed for each in found if (weighed := self._weighed(each, found, at_end=at_end)) is not None]
        first: dict[Identity, Finding] = {}
        for each in found:
            known = first.get(each.identity)
            first[each.identity] = each if known is None else grown(known, each)
        return sorted(first.values(), key=gravity)

    def is_left_scaled(self, each: Finding, *, divides: bool) -> bool:
        """Whether large steps are made of gradients of a loss that was multiplied, as *each* says.

        *divides*: those that a backward pass has left were divided before they were recorded. Some of it may be clipped.
        """
        norm, raw = self._scalars.clipped(each.model)
        layers = [held for (_, of), held in self._layers.items() if of == each.model]
        is_left = norm >= math.sqrt(each.value) * raw if divides else norm * math.sqrt(each.value) >= raw
        rate = self._rates.get(each.model, math.nan)
        is_large = self._is_large(each.model, rate * each.value) and not (
            "passes" in each.evidence and self._is_large(each.model, rate)
        )
        return is_left and is_large and any(held.follows_gradient for held in layers)

    def completed(self, each: Finding) -> Finding:
        """Return a finding with what is known of the steps: about too large or too small updates the learning rate.

        Of a loss that does not fall, where steps move the weights as usual: that the learning rate is not too small. Of dead
        units, what their bias has to do with it, or the step at which they died. Of a symptom, an unusual learning rate.
        """
        if each.rule in ("dead", "all_zero") and each.severity != "note" and (each.begun or each.rule == "dead"):
            return self.with_rate(self._of_dead(each))
        rate, is_small = self._rates.get(each.model, math.nan), each.rule == "update_small"
        highest = rate if math.isnan(most := self._scalars.loss_of(each.model).largest_rate) else most
        if each.rule == "loss_stuck" and highest <= 10 * _TINY_RATE:  # of all steps, where a schedule ends near 0
            why = each.advice.rpartition("says why: ")[2]  # not known, but for that
            return replace(
                each, advice=f"raise the learning rate first: {highest:.3g} is a small one for any optimizer; then {why}"
            )
        each = self._with_pace(each)
        if each.rule in ("update_small", "loss_stuck") and (scaled := self._of_tiny_input(each)) is not each:
            return scaled
        if each.rule == "loss_stuck" and each.evidence.get("early", 0.0) >= _LARGE_LOSS:
            size = f"a loss of {short(each.evidence['early'])} is that of targets far from what the outputs are, or of a sum"
            each = replace(each, advice=f"{size}: look at the scale of the targets first; then {each.advice}")
        if "lost" in each.evidence or (each.rule == "gradient_zero" and "loss" in each.evidence):
            return each  # experts, whose router is named, or what cancels
        if each.rule == "gradient_zero" and (told := self._of_no_gradient(each)) is not None:
            return told
        if each.rule == "gradient_zero" and any(held.gets_nothing for (_, of), held in self._layers.items() if of == each.model):
            return replace(each, advice=f"{_NOTHING_ARRIVES}; else {each.advice}")
        if each.rule == "gradient_zero" and each.begun:
            return self._of_lost_gradient(each)
        if each.rule == "gradient_zero":
            largest = max((held.first_gradient for (_, of), held in self._layers.items() if of == each.model), default=0.0)
            if 0 < largest <= _HALF_PRECISION:
                size = f"the largest of the other gradients is of size {short(largest)}, and float16 holds nothing below 6e-08"
                return replace(each, advice=f"{size}: scale the loss (torch.amp.GradScaler) where it is used; else {each.advice}")
        if each.rule != "loss_stuck" and each.rule in RULES and RULES[each.rule].about in _TOO_FAR:
            each = self._of_first_loss(each)
        (norm, raw), is_clipped = self._scalars.clipped(each.model), self._scalars.is_clipped(each.model)
        if each.rule in ("update_small", "loss_stuck") and is_clipped and not self._pace(each.model) >= _USUAL_PACE:
            clipped = f"gradients are clipped to {short(norm)} from a norm of {short(raw)}"
            first = "raise that limit first, and under a GradScaler clip behind scaler.unscale_(optimizer)"
            advice = f"{clipped}: {first}; else {each.advice}"
            return replace(each, advice=advice, evidence={**each.evidence, "grad_norm": norm, "grad_norm_raw": raw})
        if each.rule not in RULES or math.isnan(rate):
            return each
        said, *others = each.message.partition(" (also ")
        if RULES[each.rule].symptom and not is_small:
            if (lowered := self.with_rate(each)) is not each:
                return lowered
            heavy = next((held.heaviest() for (_, of), held in self._layers.items() if of == each.model), "")
            is_far = heavy and RULES[each.rule].about in (*_GROWN, ("gradient", "large"), ("loss", "still"), ("loss", "jump"))
            return replace(each, advice=f"{heavy}: look at its initial values first; then {each.advice}") if is_far else each
        if not is_small and RULES[each.rule].about != ("update", "large"):
            return each
        is_plain = any(held.follows_gradient for (_, of), held in self._layers.items() if of == each.model)
        advice = (
            _PLAIN + each.advice
            if is_small and is_plain and rate >= _USUAL_RATE and each.value >= _SMALL_PACE * rate
            else each.advice
            if not is_small or _TINY_RATE < rate < _USUAL_RATE
            else f"lr {rate:.3g} is no small one: look in this order at what makes its gradient small (a divided loss, a "
            "temperature, a factor between layers, clipping), and at the optimizer's eps"
            if rate >= _USUAL_RATE
            else "raise the learning rate, or look at the schedule that has brought it down, if that is not meant"
        )
        message = "".join([f"{said}, at lr {rate:.3g}", *others])
        return replace(each, message=message, advice=advice, evidence={**each.evidence, "lr": rate})

    def _with_pace(self, each: Finding) -> Finding:
        """Return that a loss stands with how far steps move the weights, where that is usual: the rate is not too small."""
        why, then, _ = each.advice.partition("; then at how far")
        if each.rule != "loss_stuck" or not then or not (pace := self._pace(each.model)) >= _USUAL_PACE:
            return each
        moved = f"steps move the weights by {pace:.1g} of their size, as usual: the learning rate is not too small"
        return replace(each, advice=f"{moved}; {why}", evidence={**each.evidence, "update_ratio": pace})

    def with_rate(self, each: Finding) -> Finding:
        """Return a symptom, or what steps have made of outputs, with the learning rate, where that is a large one.

        That a loss stands says how far steps move the weights, where that is usual. Findings on outputs that are as good as equal
        say the size of what goes in, where that is next to nothing.
        """
        each = self._with_pace(self._of_tiny_input(each) if "alike" in each.evidence else each)
        rate, steps = self._rates.get(each.model, math.nan), self._scalars.added_up(each.model)
        is_made = RULES[each.rule].symptom or (RULES[each.rule].about == ("output", "lost") and each.begun > 0)
        if not is_made or math.isnan(rate) or not self._is_large(each.model, rate * max(1.0, steps / _USUAL_STEPS)):
            return each
        momentum = f", with a momentum that adds up {steps:.0f} steps" if steps else ""
        advice = f"lower the learning rate first: {rate:.3g} is a large one{momentum}; then {each.advice}"
        return replace(each, advice=advice, evidence={**each.evidence, "lr": rate})

    def _of_tiny_input(self, each: Finding) -> Finding:
        """Return a finding with the size of what goes into the first layer, where that is next to nothing."""
        if not (tiny := self._input_scale(each.model)) < _TINY_INPUT:
            return each
        size = f"what goes into the first layer is of size {short(tiny)}, as the gradients of its weight and bias show"
        return replace(each, advice=f"{size}: scale the inputs first; then {each.advice}")

    def _of_no_gradient(self, each: Finding) -> Finding | None:
        """Return the finding that no parameter has had a gradient so far, and why; None where one has had one."""
        held = next((layers for (_, of), layers in sorted(self._layers.items()) if of == each.model), None)
        count = 0 if held is None else held.without_gradient
        if held is None or count < _ALL:
            return None
        said, also, others = each.message.partition(" (also ")
        twice = held.repeats()
        why = ", though one comes to what layers return: in two calls it cancels" if twice else ""
        advice = f"two calls of {twice} return the same in each step: {_EQUAL}" if twice else each.advice
        advice = f"{_NOTHING_ARRIVES}; else {each.advice}" if held.gets_nothing and not twice else advice
        return replace(each, message=f"{said}, as is that of all {count} parameters{why}{also}{others}", advice=advice)

    def _of_lost_gradient(self, each: Finding) -> Finding:
        """Return the finding that a gradient is zero which was not at first: nothing has cut the graph meanwhile."""
        began, now = self._output_sizes(each.model)
        grew = f" (of size {short(now)}, where it was {short(began)} at first)" if now > began else ""
        saturated = f"outputs{grew} that are saturated or cut off (a softmax or a sigmoid that is sure, as by the wrong sign of a "
        saturated += "loss, a clamp, a hinge)"
        nothing = (
            "the loss is 0, too, so that nothing tells good outputs from bad ones: look in this order at what it is made of "
            "(rewards that are all alike, as where a wrong sign has unlearnt the task, a margin, a mask)"
        )
        is_zero = self._scalars.loss_of(each.model).is_zero
        advice = f"{nothing}, at {saturated}" if is_zero else f"it was not zero before: look in this order at {saturated}"
        return replace(each, advice=f"{advice}, and at dead units")

    def _of_first_loss(self, each: Finding) -> Finding:
        """Return a finding about what is too large with what a first loss says that is far larger than the first outputs."""
        (began, _), loss = self._output_sizes(each.model), self._scalars.loss_of(each.model).begun
        is_of_classes = math.isfinite(self._chance(each.model))  # whose targets have no scale
        is_told = is_of_classes or each.rule in ("target_large", "loss_summed")
        if is_told or not loss >= _FAR_LOSS * max(began * began, 1.0):
            return each
        says = f"a first loss of {short(loss)}, at outputs of size {short(began)}, is that of targets far larger than these"
        return replace(each, advice=f"{says}, or of a sum over samples: look at the scale of the targets first; then {each.advice}")

    def _output_sizes(self, model: str) -> tuple[float, float]:
        """Return the first and the last size of the outputs of a *model*; NaN where these are not known."""
        return next((held.output_sizes() for (_, of), held in sorted(self._layers.items()) if of == model), (math.nan, math.nan))

    def _is_large(self, model: str, rate: float) -> bool:
        """Whether a learning *rate* is no usual one for the steps of a *model*."""
        return any(layers.is_large_rate(rate) for (_, of), layers in self._layers.items() if of == model)

    def _of_dead(self, each: Finding) -> Finding:
        layers = [held for _, held in sorted(self._layers.items()) if not each.begun]
        known = next(filter(None, (held.dead_since(each.site) for held in layers)), {})
        own, whole = known.get("bias", 0.0), known.get("before", math.nan)
        advice = (
            f"look at the steps before step {each.begun:,}: how far they moved the weights, what went in, the learning rate, and a "
            "penalty in the loss; or use another activation"
            if each.begun
            else f"look at what sets the bias before it: {short(own)} of the {short(whole)} that go in, on average"
            if own <= 0.5 * whole < 0
            else "no step has made it so: look in this order at what goes in (its mean, its scale), at the weights and the bias "
            "before it as they begin; or use another activation"
        )
        return replace(each, advice=advice, evidence={**each.evidence, **known})

    def _input_scale(self, model: str) -> float:
        """Return the size of what goes into the first layer of a *model*; NaN if that is not known."""
        return min((layers.input_scale for (_, of), layers in self._layers.items() if of == model), default=math.nan)

    def _pace(self, model: str) -> float:
        """Return how far the last step has moved half of the weights of a *model*, of their size; NaN if that is not known."""
        return max((layers.pace for (_, of), layers in self._layers.items() if of == model), default=math.nan)

    def outruns(self, model: str, share: float) -> bool:
        """Whether steps have moved the weights of all other models by this *share*, at most, of the way that a *model* has come."""
        ways = {of: max(held.way for (_, each), held in self._layers.items() if each == of) for _, of in self._layers}
        own = ways.pop(model, 0.0)
        return bool(ways) and all(0 < each <= share * own for each in ways.values())

    def _chance(self, model: str) -> float:
        """Return the cross-entropy of a guess of a *model*; NaN if that is not known."""
        return next((layers.chance for (_, of), layers in sorted(self._layers.items()) if of == model), math.nan)

    def falls(self, each: Finding) -> bool | None:
        """Whether the loss says of a weight that grows, or hardly moves, that it learns; None while that is not known.

        Steps that move nothing, or next to nothing, are no slow training; nor are small ones where those of half of the weights are
        usual: it is these that learn. Those of a warm-up are small at first.
        """
        loss, least = self._scalars.loss_of(each.model), self.chosen.limit("update_small", "least")
        is_slow = each.rule == "update_small" and each.value >= least / 100 and not self._pace(each.model) >= 10 * least
        if "falls" not in RULES[each.rule].unless or (each.rule == "update_small" and not is_slow):
            return False
        return (is_slow and not loss.rests and loss.peak > loss.steps[0]) or loss.falls(_SLOW if is_slow else 0)

    def _weighed(self, each: Finding, found: Sequence[Finding], *, at_end: bool) -> Finding | None:
        """Return a finding as grave as what it does: without harm it is a note, or none; None, too, while that is not known.

        *at_end*: no values come that could tell it.
        """
        is_measured = not {"before", "middle"}.isdisjoint(each.evidence)
        if each.rule == "input_large" and not is_measured and each.value < self.chosen.limit("input_large", "most"):
            harms = {_quantity(other) for other in found if other.severity != "note" and related(each, other)}
            return each if harms & _HARMED else None
        is_matrix = each.rule == "weight_large" and each.evidence["usual"] < 1  # that of an embedding is 1
        if each.rule == "weight_small":
            early = (other for other in found if other.severity != "note" and other.begun < each.begun + _EARLY)
            fades = any(RULES[other.rule].about in _OF_FADING and related(each, other) for other in early)
            return each if fades or self._scalars.loss_of(each.model).stands(_HALF) else None
        if is_matrix and "output" not in each.evidence and each.value < self.chosen.limit("weight_large", "factor"):
            small = {place for other in found if RULES[other.rule].about == ("update", "small") for place in other.places}
            return each if ("output", "lost") in self._harms(each, found) or small & set(each.places) else None
        if (
            each.rule == "update_small"
            and not each.value
            and {True, False} <= {*self._idle.get(f"{each.model}/lr".lstrip("/"), {}).values()}
        ):
            return each if self._scalars.loss_of(each.model).stands(_STANDS) else replace(each, severity="note")
        if each.rule == "update_small" and not each.value and any(held.moves_between for held in self._layers.values()):
            return None
        if each.rule == "one_index" and each.begun >= _EARLY:
            return replace(each, quantity="output")  # other rows had a gradient before: units may have died meanwhile
        if each.rule == "target_large":
            return each if self._harms(each, found) & _OF_TARGETS or self._scalars.loss_of(each.model).stands(_STANDS, 2) else None
        if each.rule == "loss_summed":
            if not self._is_large(each.model, self._rates.get(each.model, math.nan) * each.value):
                return None  # such a mean would be learnt at this rate
            others = [other for other in found if RULES[other.rule].about != RULES[each.rule].about]
            has_cause = any(_quantity(other) in _CAUSES and other.severity != "note" for other in others)
            return (
                each if self._harms(each, [other for other in others if other.begun < _EARLY or not has_cause]) & _TOO_FAR else None
            )
        if each.rule == "gradient_growth" and "grad_norm_raw" in each.evidence:
            return each if self._scalars.loss_of(each.model).stands(_STANDS) else None
        if each.rule == "bounded":
            share = _THIRD if "pull" in each.evidence else _HALF
            return each if self._scalars.loss_of(each.model).stands(share) else None
        if each.rule == "spike" and _quantity(each) == "gradient":
            if _CUT * self._scalars.largest_norm(each.model) <= each.value:
                return replace(each, severity="note")
            loss = self._scalars.loss_of(each.model)
            breaks = any(other.rule == "nonfinite" and other.begun >= each.begun for other in found)
            is_worse = True if breaks or not loss.count else loss.has_worsened(each.step, behind=True)
            return each if is_worse else replace(each, severity="note") if is_worse is False or at_end else None
        is_game = each.rule == "loss_stuck" or (each.rule == "loss_rising" and each.value < _LOST * each.evidence["first"])
        if is_game and (self._scalars.has_risen or (each.rule == "loss_rising" and self._follows_values(each))):
            return None  # values that are learnt from their own estimates grow as the policy gets better
        if is_game and (len(self._rates) > 1 or any(map(math.isnan, self._rates.values()))):
            return replace(each, severity="note")  # of several optimizers: it may be one loss of several against each other
        if each.rule in ("rate_grown", "momentum_large"):
            stands = each.rule == "momentum_large" and self._scalars.loss_of(each.model).stands(_HALF, 2)
            return each if stands or self._harms(each, found, each.begun) & _TOO_FAR else None
        if each.rule == "gradient_zero" and each.begun and "lost" not in each.evidence:
            is_solved = self._scalars.loss_of(each.model).is_low or self._scalars.has_risen
            return replace(each, severity="note") if is_solved else each  # as of batches whose samples are all beyond a margin
        if each.rule == "weight_growth" and not self._scalars.loss_of(each.model).count:
            is_one = any(held.has_one_matrix for (_, of), held in self._layers.items() if of == each.model)
            return replace(each, severity="note") if is_one else each  # a linear model, which grows as it learns
        if each.rule == "loss_unbounded" and self._crosses_zero(each):
            grown = (RULES[other.rule].about for other in found if other.severity != "note" and related(each, other))
            return each if any(about in _GROWN for about in grown) else None
        if each.rule == "overwritten" and each.severity == "note":
            is_worse = self._scalars.loss_of(each.model).has_worsened(each.step)
            return None if is_worse is None else replace(each, severity="warn") if is_worse else each
        return each

    def _follows_values(self, each: Finding) -> bool:
        """Whether outputs have grown, and the loss is an error far smaller than they are: what they are compared with has grown.

        It has not become many times as large itself, as where values are learnt from their own estimates without an end.

        Outputs of a network that diverges are as large as its error. A cross-entropy begins at that of a guess, or below it where
        the network was trained before, whose outputs grow little; where outputs are logarithms of densities, the loss is the mean.
        """
        sizes = [held.output_sizes() for (_, of), held in sorted(self._layers.items()) if each.model in ("", of)]
        chance, first, loss = self._chance(each.model), each.evidence["first"], self._scalars.loss_of(each.model).smooth
        is_error = math.isnan(chance) or first >= _NO_ENTROPY * chance
        least = 2.0 if is_error else 5.0 if first <= _HALF * chance else math.inf
        return any(
            now >= least * began and loss <= min(_ERROR * now * now, _FOLLOWS * first) and abs(loss - now) > _SAME * now
            for began, now in sizes
        )

    def _harms(self, each: Finding, found: Sequence[Finding], since: int = 0) -> set[object]:
        """Return what the findings are about that may have come of *each*, from the step *since* on; not what may yet be good."""
        grave = (other for other in found if other.severity != "note" and other.begun >= since and related(each, other))
        return {RULES[other.rule].about for other in grave if self.has_helped(other) is not None}

    def _crosses_zero(self, each: Finding) -> bool:
        """Whether a loss that falls without bound was above 0, and is not so far below that this says it by itself."""
        first, least = each.evidence["first"], self.chosen.limit("loss_unbounded", "factor") ** 2
        return each.evidence["highest"] > 0 and each.value >= -least * abs(first)

    @property
    def sees_no_scores(self) -> bool:
        """Whether a model has attention whose queries and keys are outputs of no layers of their own."""
        return any(layers.sees_no_scores for layers in self._layers.values())

    def has_passed(self, each: Finding) -> bool:
        """Return whether a finding that does not hold any more is taken back: the loss came down, or the gradient came again."""
        return each.rule in _PASSING or (
            each.rule == "gradient_zero" and any(layers.has_come_again(each.site) for layers in self._layers.values())
        )

    def is_by_heart(self, model: str) -> bool:
        """Whether a *model* knows its samples by heart, and no others: see :meth:`ScalarFindings.is_by_heart`."""
        return self._scalars.is_by_heart(model)

    def goes_the_other_way(self, model: str, value: float, *, largest: bool) -> bool:
        """Whether a loss has fallen from *value*, or a metric risen: see :meth:`ScalarFindings.goes_the_other_way`."""
        return self._scalars.goes_the_other_way(model, value, largest=largest)

    def should_have_learnt(self, each: Finding) -> bool:
        """Whether steps have moved the weights far, behind a warm-up or within it, and the loss falls no more, of *each* or of all.

        That of an output beside another one, which weighs so many *times* as much, says nothing of it.
        """
        loss = self._scalars.loss_of(each.model)
        return loss.has_gone_far and ("times" in each.evidence or not loss.goes_on)

    def stands(self, model: str, times: int = 1) -> bool:
        """Whether the loss of a *model* has hardly come down in many steps, or in so many *times* as many."""
        return self._scalars.loss_of(model).stands(_STANDS, times)

    def is_divided(self, each: Finding) -> bool:
        """Whether steps are small, and the eps of their optimizer, as *each* says, is far larger than the last gradients."""
        size = self._scalars.clipped(each.model)[0] / math.sqrt(max(each.evidence["elements"], 1))
        return each.value >= _FAR_EPS * size and self._pace(each.model) < _USUAL_PACE

    def may_learn(self, model: str) -> bool:
        """Whether the loss of a *model* has ever been lower than at first, if only a little, or is not known."""
        loss = self._scalars.loss_of(model)
        return loss.lowest < loss.first or not loss.count

    def has_helped(self, each: Finding) -> bool | None:
        """Whether *each* is about a step that is too large, and the loss fell behind that; None while no later loss is known.

        Where the first step has made most of half of the weights, nothing is left of how they were drawn: that helps only a
        training that comes far down.
        """
        loss = self._scalars.loss_of(each.model)
        helped = "helped" in RULES[each.rule].unless and loss.has_helped(each.step)
        if not helped or each.rule != "update_huge" or not self._is_undone(each) or loss.smooth < _FAR_DOWN * loss.begun:
            return helped
        return None if loss.count < _SETTLED else False

    def _is_undone(self, each: Finding) -> bool:
        """Whether the first step has made most of half of the weights, or more."""
        most = self.chosen.limit("update_huge", "most")
        return not each.step and any(held.first_pace > most for (_, of), held in self._layers.items() if of == each.model)

    def _is_contradicted(self, each: Finding) -> bool:
        """Whether the training says that *each* is right as it is: by the loss, or because no loss has to fall in a game."""
        unless, loss = RULES[each.rule].unless, self._scalars.loss_of(each.model)
        return (
            ("learnt" in unless and loss.is_learnt)
            or ("low" in unless and loss.is_low)
            or bool(self.falls(each))
            or ("converged" in unless and loss.has_converged)
            or ("in turns" in unless and any(layers.takes_turns for layers in self._layers.values()))
        )

    def _share_of_batch(self, step: int) -> float:
        return min((each.share_of_batch(step) for each in self._layers.values()), default=1.0)

    def _moved_first(self, step: int, deviations: float) -> tuple[str, float] | None:
        found = (self._layers[key].moved_first(step, deviations) for key in sorted(self._layers))
        return next((each for each in found if each is not None), None)


def _quantity(each: Finding) -> str:
    """Return what a finding is about; ``""`` where its rule does not say that."""
    about = RULES[each.rule].about
    return each.quantity or ("" if about is None else about[0])


class _Saved:
    """The judges as they were at one moment: written down, which takes a fraction of copying them, and read only where needed.

    What never changes, as a finding, a site or a rule, is not written: the judges that are read have the same.
    """

    def __init__(self, judges: _Judges) -> None:
        self._shared: list[object] = []
        written = io.BytesIO()
        pickler = pickle.Pickler(written, pickle.HIGHEST_PROTOCOL)
        pickler.dispatch_table = {**copyreg.dispatch_table, **dict.fromkeys(_UNCHANGING, self._share)}
        pickler.dump(judges)
        self._written = written.getvalue()

    def _share(self, each: object) -> tuple[Any, ...]:
        self._shared.append(each)
        return _shared, (len(self._shared) - 1,)

    def judges(self) -> _Judges:
        """Return judges that go on from that moment by themselves."""
        _reading.shared = self._shared
        try:
            found: _Judges = pickle.loads(self._written)
        finally:
            del _reading.shared
        return found


_UNCHANGING = (Chosen, ModelFacts, Finding, Rule, Layout, RowBlock, Site)
_reading = threading.local()


def _shared(place: int) -> object:
    """Return what :class:`_Saved`, which is being read, has not written."""
    return _reading.shared[place]


class Findings:
    """The findings in the rows and scalars of one process, from first to last, live and afterwards the same.

    >>> from sonde.run import Findings, judge_rows
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> findings = Findings()
    >>> judge_rows(writer.run(), findings)
    >>> findings.end()
    >>> findings.judged(), findings.fresh(), findings.beyond(), "dead" in findings.not_judged(), "dead" in findings.too_early()
    ([], [], [], True, False)

    Rows that come one step after the other:

    >>> from sonde.inspector import Sink
    >>> class Judge(Sink):
    ...     def write(self, rows):
    ...         findings.look_aside("gradients", rows.block())
    ...         findings.judge([rows.block()])
    >>> findings = Findings()
    >>> writer.run().send_to(Judge())
    >>> findings.judged()
    []

    A finding opens at the first step at which its condition holds, once that is whole: with the first rows or values of a later
    one, or at the end. Asked for, it is there before that. Its rule, place, first step, numbers and words stay as they are
    then; later steps add its last step and further places. None is taken back, but what a loss that comes down after all has
    excused, a gradient of zero where one comes again, and dead units that live again.
    How many steps come at once changes nothing, nor how often is asked: where a finding opens among several, these are judged again
    one by one.

    Args:
        about: the description that the run begins with.
        chosen: the rules that are applied.
        fixed: the findings of rows that are no more: up to the step *until* no others open.
        until: that step; -1 is none.

    Attributes:
        chosen: the rules that are applied.
        step: the last step that was judged; -1 before the first.
        steps: how many logged steps had rows that were judged.
    """

    def __init__(
        self,
        about: Mapping[str, object] | None = None,
        chosen: Chosen | None = None,
        fixed: Iterable[Finding] = (),
        until: int = -1,
    ) -> None:
        self.chosen = Chosen() if chosen is None else chosen
        self.step = self._last_rows = self._reached = -1  # the last step with rows, and of which anything has come
        self.steps = 0
        self._until, self._has_ended = until, False
        self._about = about or {}
        self._judges = _Judges(self._about, self.chosen)
        self._looked_at = _looked_at(self._about)
        self._opened: dict[Identity, Finding] = {each.identity: each for each in fixed}
        self._known: set[Identity] = set(self._opened)  # those that are open, and those that follow from one of them
        self._beyond: set[Identity] = set()  # those that say more than the rows
        self._fresh: list[Finding] = []

    def judge(self, blocks: Sequence[RowBlock], scalars: Iterable[PlainScalar] = ()) -> None:
        """Judge finished rows and scalars. Those of a model come in the order of their steps.

        Where that raises for several steps, they are judged again as if they had not been. Where it raises again, or for one step,
        the rules go on with later rows as if these were the first.
        """
        values = list(scalars)
        rows = np.unique(np.concatenate([block.moments[:, 1] for block in blocks])).tolist() if blocks else []
        steps = sorted({*rows, *(step for *_, step in values)})
        if not steps:
            return
        self.steps += sum(step > self._last_rows for step in rows)
        self.step = max(self.step, steps[-1])
        if len(steps) == 1:
            try:
                self._take(steps[0], blocks, values)
            except Exception:
                self._judges = _Judges(self._about, self.chosen)  # what is half changed may raise whatever comes
                raise
            return
        before = self._state()
        for is_again in (False, True):
            try:
                self._judge_together(steps, blocks, values, before)
                return
            except Exception:
                self._go_back(before)
                if is_again:
                    self._judges = _Judges(self._about, self.chosen)
                    raise

    def _judge_together(
        self,
        steps: Sequence[int],
        blocks: Sequence[RowBlock],
        scalars: Sequence[PlainScalar],
        before: tuple[Any, ...] | None = None,
    ) -> None:
        """Judge several steps at once. Where a finding opens among them, judge each half of them by itself, and few one by one.

        Args:
            before: the state now, if it is known.
        """
        if len(steps) == 1:
            self._take(steps[0], blocks, scalars)
            return
        before = before or self._state()
        if steps[0] > self._reached:
            self._open(self._reached)
        with suppress(Exception):  # once more then, in parts
            self._feed(blocks, scalars)
            if all(each.identity in self._known for each in self._judges.findings(all_of_them=True)):
                self._reached = max(self._reached, steps[-1])
                return
        self._go_back(before)
        size = 1 if len(steps) <= _FEW else -(-len(steps) // 2)
        for part in [steps[start : start + size] for start in range(0, len(steps), size)]:
            rows = [piece for block in blocks for piece in _between(block, part[0], part[-1])]
            self._judge_together(part, rows, [each for each in scalars if part[0] <= each[3] <= part[-1]])

    def _state(self) -> tuple[Any, ...]:
        """Return everything that judging changes, as it is now."""
        opened = dict(self._opened), set(self._known), set(self._beyond), list(self._fresh)
        return _Saved(self._judges), self._last_rows, self._reached, *opened

    def _go_back(self, state: tuple[Any, ...]) -> None:
        """Be as at the moment of *state*, which can be gone back to again."""
        saved, self._last_rows, self._reached, opened, known, beyond, fresh = state
        self._judges = saved.judges()
        self._opened, self._known, self._beyond, self._fresh = dict(opened), set(known), set(beyond), list(fresh)

    def _take(self, step: int, blocks: Iterable[RowBlock], scalars: Iterable[PlainScalar]) -> None:
        """Judge a part of one step, or all of it; before that, open what waited for the steps before, which are whole."""
        if step > self._reached:
            self._open(self._reached)
            self._reached = step
        self._feed(blocks, scalars)

    def _feed(self, blocks: Iterable[RowBlock], scalars: Iterable[PlainScalar]) -> None:
        for block in blocks:
            self._judges.look(block)
            self._last_rows = max(self._last_rows, int(block.moments[:, 1].max(initial=-1)))
        for name, value, epoch, step in sorted(scalars, key=lambda each: each[3]):  # a loss is judged by the rate before it
            self._judges.look_at_scalar(name, value, epoch, step)

    def look_aside(self, role: str, block: RowBlock) -> None:
        """Look at rows that are not written: parameters as they were when a step began, or gradients before clipping.

        They come before the other rows of this step.
        """
        self._judges.defect.look_aside(role, block)

    def end(self) -> None:
        """Open what waits for later steps: none come. Idempotent."""
        self._has_ended = True
        self._open(self.step, at_end=True)

    def _may_open(self, each: Finding, *, at_end: bool) -> bool:
        """Whether a finding is new.

        A step that is too large counts once a later one is whole: its loss tells whether the step was good.
        """
        if each.identity in self._known or at_end:
            return each.identity not in self._known
        if "low" in RULES[each.rule].unless and self._last_rows < _EARLY:
            return False  # a network may have learnt in so few steps
        if "helped" not in RULES[each.rule].unless:
            return each.rule in _BY_OTHERS or self._judges.falls(each) is not None
        return each.step < self._last_rows and self._judges.has_helped(each) is not None

    def _open(self, step: int, *, at_end: bool = False) -> None:
        """Open what is new at *step*.

        Args:
            step: the last one that is whole: its rows, and the loss behind them, have come.
            at_end: no other step comes.
        """
        for identity, each in self._new(self._judges.findings(at_end=at_end), step, at_end=at_end).items():
            self._known.add(identity)
            if each is not None:
                self._opened[identity] = each
                self._fresh.append(each)
                self._beyond |= self._says_more(each)

    def _new(self, every: Sequence[Finding], step: int, *, at_end: bool) -> dict[Identity, Finding | None]:
        """Return what of *every* finding is new at *step*: None for what follows from another, unless it came first."""
        if not any(self._may_open(each, at_end=at_end) for each in every):
            return {}
        stays, found = self._staying({each.identity for each in every}), {}
        there = [*stays, *every]
        for each in every:
            if self._may_open(each, at_end=at_end) and not any(
                _is_graver(known, each) for known in stays
            ):  # a note of others may come
                is_own = not implied(each, there) and step > self._until
                found[each.identity] = self._judges.completed(replace(each, opened=step)) if is_own else None
        return found

    def _says_more(self, each: Finding) -> set[Identity]:
        return {each.identity} if each.rule == "nonfinite" and self._judges.defect.knows_more else set()

    def _now(self) -> tuple[list[Finding], set[Identity]]:
        """Return every finding, with what later steps have added, and which of them say more than the rows. Changes nothing.

        None that later losses have taken back; also what would open if no more came of the last step.
        """
        every = {each.identity: each for each in self._judges.findings(at_end=self._has_ended)}
        new = [each for each in self._new([*every.values()], self._reached, at_end=self._has_ended).values() if each is not None]
        found = [grown(each, every[each.identity]) if each.identity in every else each for each in self._staying(every)] + new
        graver = sorted((each for each in found if not any(_is_graver(known, each) for known in found)), key=gravity)
        return graver, self._beyond.union(*map(self._says_more, new))

    def _staying(self, every: Collection[Identity]) -> list[Finding]:
        """Return the open findings that hold now, as *every* says, or that nothing takes back. Asking changes nothing."""
        return [each for name, each in self._opened.items() if name in every or not self._judges.has_passed(each)]

    def bears_out(self, each: Finding, *, divides: bool = False) -> bool:
        """Return whether what is recorded bears out what a training has seen, of the rules that need that; True of others.

        That nothing is won of what should be, where steps have moved the weights far and no finding says yet that the loss stands
        still; that a label is seen, where the loss has come down; that a rate is 0, or far below that of others, where it has not,
        or where steps move nothing;
        that a discriminator cannot be followed, where steps move it far more than all others; that outputs are as good as the same,
        or hardly depend on first steps, what goes into a layer points in one direction, the order of tokens says nothing, or one
        token stands for many, where the loss stands; that an eps is large, where it does and steps are small; that few layers are
        random, where it has not in more steps; that steps are made of gradients of a loss that was multiplied, where they do harm;
        that a decay outweighs the gradients, where the loss stands still and nothing else explains it; that each step sees the same
        samples, where these are learnt by heart; that inputs of an evaluation are others, where its loss rises or stands; that a
        schedule waits for the opposite of what it is given, where that is a loss that falls, or a metric that rises.

        >>> from sonde.run import Findings
        >>> from sonde.types import Finding
        >>> Findings().bears_out(Finding("loss_stuck", "the loss does not fall"))
        False

        Args:
            each: what was seen.
            divides: gradients that a backward pass has left were divided before they were recorded.
        """
        if each.rule == "loss_stuck":
            return self._judges.should_have_learnt(each) and all(known.rule != each.rule for known in self._opened.values())
        if each.rule == "eps_large" and each.value <= self.chosen.limit("eps_large", "most"):
            return self._judges.stands(each.model) and self._judges.is_divided(each)
        if each.rule == "frozen_raw" and each.severity == "warn" and each.value <= self.chosen.limit("frozen_raw", "few"):
            return self._judges.stands(each.model, 2)
        if each.evidence.keys() & {"reach", "drawn"} and each.severity == "warn":
            return any(other.rule == "loss_stuck" for other in self.judged())
        if not each.evidence.keys().isdisjoint(("aside", "order", "token", "alike", "reach", "bare")):
            return self._judges.stands(each.model, 1 if each.evidence.keys() & {"token", "alike", "reach"} else 2)
        if each.rule == "rate_small" and "made" in each.evidence:
            return self._judges.outruns(each.model, each.value)
        is_of_part = not each.value or "beside" in each.evidence
        if each.rule == "rate_small" and is_of_part and each.severity != "note":
            small = [other.places for other in self.judged() if other.rule == "update_small" and other.severity != "note"]
            return self._judges.stands(each.model) or any(set(places) & set(each.places) for places in small)
        if each.rule == "loss_summed":
            harms = {RULES[other.rule].about for other in self.judged() if other.severity != "note" and related(each, other)}
            return bool(harms & _TOO_FAR) and self._judges.is_left_scaled(each, divides=divides)
        if each.rule == "decay_large" and each.severity == "warn":
            told = {other.rule for other in self.judged() if other.severity != "note"}
            is_sure = each.evidence.get("decay", 0.0) >= _FAR_DECAY or "weight_shrinking" in told
            return "loss_stuck" in told and told <= _OF_DECAY and is_sure
        if "given" in each.evidence and each.rule == "eval_mode":
            return any(other.rule in ("overfitting", "loss_stuck") and "val" in other.message for other in self.judged())
        if "told" in each.evidence:
            is_largest = bool(each.evidence["of mode max"])
            return self._judges.goes_the_other_way(each.model, each.evidence["told"], largest=is_largest)
        if "again" in each.evidence:
            return self._judges.is_by_heart(each.model) or any(other.rule == "overfitting" for other in self.judged())
        return each.rule != "label_seen" or self._judges.may_learn(each.model)

    def with_rate(self, each: Finding) -> Finding:
        """Return what a training has seen with the learning rate, where that is a large one and may have brought it.

        >>> from sonde.run import Findings
        >>> from sonde.types import Finding
        >>> Findings().with_rate(Finding("outputs_alike", "outputs are alike")).advice
        ''
        """
        return self._judges.with_rate(each)

    def judged(self) -> list[Finding]:
        """Return the findings that can be made again from the rows and scalars, the gravest first."""
        found, beyond = self._now()
        return [each for each in found if each.identity not in beyond]

    def beyond(self) -> list[Finding]:
        """Return the findings that say more than the rows that are written: where a NaN began between logged steps."""
        found, beyond = self._now()
        return [each for each in found if each.identity in beyond]

    def fresh(self) -> list[Finding]:
        """Return the findings that were opened since the last call."""
        found, self._fresh = self._fresh, []
        return found

    def not_judged(self) -> dict[str, str]:
        """Return by rule what was not recorded that the rule needs."""
        found = {
            name: ", ".join(missing)
            for name, rule in self.chosen.applied().items()
            if (missing := [need for need in rule.needs if not self._is_recorded(need)])
        }
        if self.chosen.is_on("attention_large") and self._judges.sees_no_scores:
            found.setdefault("attention_large", "queries:output")
        return found

    def _is_recorded(self, need: str) -> bool:
        """Whether a number was recorded, or is by a lens that this run has: it may have had no row so far."""
        return any(one in self._judges.seen or one in self._looked_at for one in need.split("|"))

    def too_early(self) -> dict[str, int]:
        """Return by rule how many logged steps it needs, of rules without a finding whose numbers were recorded at fewer steps."""
        missing = self.not_judged()
        opened = {each.rule for each in self._opened.values()}
        return {
            name: least
            for name, rule in self.chosen.applied().items()
            if name not in missing
            and name not in opened
            and rule.needs
            and self._most_steps(rule) < (least := self.chosen.least(name))
        }

    def _most_steps(self, rule: Rule) -> int:
        """Return at how many steps all numbers that *rule* needs are there, at most; if it reads one of two, the one it reads."""
        seen = self._judges.seen
        counts = []
        for need in rule.needs:
            either = need.split("|")
            own = [one for one in either if one in seen and one.partition(":")[0] in rule.required]
            counts.append(max(seen.get(one, 0) for one in own or either))
        return min(counts)


def _looked_at(about: Mapping[str, object]) -> frozenset[str]:
    """Return the numbers at ports, as ``rms:output``, that the lenses of a run record."""
    found = set()
    lenses = about.get("lenses")
    for lens in lenses if isinstance(lenses, Sequence) else ():
        numbers, ports = (lens.get("numbers"), lens.get("ports")) if isinstance(lens, Mapping) else (None, None)
        for number in numbers if isinstance(numbers, Sequence) else ():
            if isinstance(number, Mapping) and isinstance(ports, Sequence):
                found |= {f"{number.get('name')}:{port}" for port in ports}
    return frozenset(found)


def _between(block: RowBlock, first: int, last: int) -> Iterator[RowBlock]:
    """Yield the moments of *block* from the step *first* to the step *last*."""
    lines = np.flatnonzero((block.moments[:, 1] >= first) & (block.moments[:, 1] <= last))
    for run in np.split(lines, np.flatnonzero(np.diff(lines) > 1) + 1) if len(lines) else ():
        yield block.between(int(run[0]), int(run[-1]) + 1)


def grown(each: Finding, later: Finding) -> Finding:
    """Return a finding with what the same rule has found *later*: its last step, further places, and a graver severity."""
    last = max((step for step in (each.last_step, later.last_step) if step is not None), default=None)
    severity = min(each.severity, later.severity, key=_GRAVEST.index)
    places = (*dict.fromkeys((*each.places, *later.places)),) if each.places else ()
    bare = each.message.removesuffix(others(each.places)) if each.places else each.message
    return replace(each, message=bare + others(places), places=places, last_step=last, severity=severity)


def _is_graver(known: Finding, note: Finding) -> bool:
    """Whether *known* is what a rule says of the same place as in a *note*, and more than that."""
    held = [known.site, *known.places]
    are_held = all(any(each == part or each.startswith(f"{part}.") for part in held) for each in note.places or [note.site])
    return note.severity == "note" != known.severity and known.rule == note.rule and related(known, note) and are_held


def combined(seen: Iterable[Finding], judged: Iterable[Finding]) -> list[Finding]:
    """Return the findings of a training and those of its rows as one list; of two about one thing that of the training.

    It knows more, as what a loss was made of; but not where what it saw began after the rows had shown it.

    Args:
        seen: what the training knew and no row holds.
        judged: what the rows hold.
    """
    of_rows = list(judged)
    opened = {each.identity: each.found_at for each in of_rows}
    every = [*seen]
    of_training = [each for each in every if each.begun <= opened.get(each.identity, _NEVER)]
    of_training = [each for each in of_training if not any(_is_graver(known, each) for known in every)]
    of_rows = [each for each in of_rows if not any(stands_for(known, each) for known in of_training)]
    return [*of_training, *of_rows]


def located(seen: Finding, judged: Iterable[Finding]) -> Finding:
    """Return a NaN that a training has *seen*, with the place that the rows of this step tell where the training knows none.

    That of a gradient of a parameter is where a NaN has come to, and not where it arose.
    """
    if seen.rule != "nonfinite" or (seen.site and not seen.site.endswith(":grad")):
        return seen
    known = next((each for each in judged if each.identity == seen.identity), None)
    if known is None or known.message in seen.message:
        return seen
    message = f"{known.message}; {seen.message}"
    return replace(seen, message=message, site=known.site, call=known.call, order=known.order, advice=known.advice)


def stands_for(seen: Finding, judged: Finding) -> bool:
    """Whether what a training has *seen* is the same as what is *judged* from rows, or the beginning of it."""
    if seen.identity == judged.identity or (seen.rule == judged.rule == "begins_large" and related(seen, judged)):
        return True  # a scale of cosines is meant, which no row says
    if seen.rule == judged.rule == "nonfinite" and related(seen, judged):
        return judged.step >= seen.step  # the rows of later steps only show what has become of it
    # What the rows bear out stands beside it, and when that was asked hangs on how far the rows were written.
    return implied(judged, [seen]) and seen.step < judged.found_at and Findings().bears_out(seen)
