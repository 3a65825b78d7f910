"""Judge numbers: every rule's threshold, its words, its severity and its source, for tables, findings and checks alike.

A rule is a small pure function: numbers in, a :class:`Finding` out, or None where nothing is wrong. Nothing here needs a model,
a tensor or a run. :data:`RULES` lists the rules; a new one is a function under ``@rule`` and a line where its numbers are known.
Sizes (norms, root mean squares) and limits have no unit: each size is compared with another one of the same unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Literal, ParamSpec

__all__ = [
    "DEAD_MOST",
    "DEAD_SAMPLES",
    "DEAD_SOME",
    "GRADIENT_GROWTH",
    "GRADIENT_LARGE",
    "GRADIENT_SMALL",
    "OUTPUT_GROWTH",
    "OUTPUT_LARGE",
    "RULES",
    "SATURATED_AT",
    "SPIKE",
    "UPDATE_LARGE",
    "UPDATE_SMALL",
    "UPDATE_USUAL",
    "WEIGHT_GROWTH",
    "Finding",
    "Rule",
    "Severity",
    "all_zero",
    "constant",
    "dead",
    "gradient_growth",
    "gradient_large",
    "gradient_small",
    "gradient_zero",
    "no_training_forward",
    "nonfinite",
    "of_gradient",
    "of_output",
    "of_size",
    "of_update",
    "output_growth",
    "output_large",
    "percent",
    "saturated",
    "short",
    "spike",
    "step_large",
    "update_large",
    "update_small",
    "weight_growth",
]

Severity = Literal["note", "warn", "bad"]
"""``note``: worth a look, shown in tables; ``warn``: unusual; ``bad``: wrong in any training. Findings are ``warn`` and ``bad``."""

DEAD_SOME, DEAD_MOST = 0.25, 0.9
"""Share of a layer's units without any output: from the first on it is a note, above the second it is bad."""
DEAD_SAMPLES = 8
"""A unit is judged from this number of samples and positions on."""
GRADIENT_LARGE, GRADIENT_SMALL = 100.0, 1e-3
"""A gradient's size against the median over its kind; behind a small initial weight, a healthy branch may get a hundredth."""
UPDATE_LARGE, UPDATE_USUAL, UPDATE_SMALL = 1e-1, 1e-3, 1e-5
"""Update / weight, both root mean squares or both norms. CS231n, "Babysitting the learning process", ratio of weights and updates:
"this ratio should be somewhere around 1e-3"; torchmortem warns outside of these limits."""
SATURATED_AT, SATURATED_SHARE = 0.99, 0.5
"""Magnitude beyond which a tanh is saturated (a sigmoid: as near to its limits); share of a layer's elements that is a note."""
OUTPUT_GROWTH, WEIGHT_GROWTH = 100.0, 10.0
"""Growth of an output over a run, against the largest output of the network at the beginning; and of a weight (torchmortem: 10).
In two dozen healthy trainings outputs of hidden layers grew 12-fold at most (56-fold towards targets of size 134) and weights
5-fold; in a GPT under AdamW with a learning rate of 3e-2 outputs grew 230-fold."""
GRADIENT_GROWTH = 1000.0
"""Growth of the norm of all gradients, before clipping, against its first value and its smallest one so far: in
fourteen healthy trainings 5-fold at most, and 401-fold towards targets of size 134."""
OUTPUT_LARGE = 1000.0
"""An output's size against that of the first layer, or 1; float16 ends at 65,504."""
SPIKE, SPIKE_VALUES = 10.0, 64
"""Deviations from the median of the last 128 values, both of logarithms, and the fewest values. OLMo-core's SpikeScore has 6
standard deviations above the mean of 128 values; healthy trainings on small batches, with losses of all sizes, reach 8."""
CONSTANT = 1e-7
"""Standard deviation / mean of an output that is one value: the rounding of float32."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and where.

    Attributes:
        rule: its name in ``RULES``.
        message: what is wrong, in words.
        site: the first or worst place; ``""`` if it is no place in the network.
        epoch, step: when, or of the last row that was looked at.
        value: the number that the rule is about.
        severity: ``note``, ``warn`` or ``bad``.
        call: which call of the module; -1 is all calls together.
        first_step: the first step at which it was seen; None if that is not known.
        evidence: the numbers that the rule compared, by name.
        advice: one line on what to do; may be empty.
    """

    rule: str
    message: str
    site: str = ""
    epoch: int = 0
    step: int = 0
    value: float = math.nan
    severity: Severity = "warn"
    call: int = -1
    first_step: int | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)
    advice: str = ""

    def at(self, site: str, epoch: int, step: int, message: str = "") -> Finding:
        """The same finding at a place and a time, with *message* if one is given."""
        return replace(self, site=site, epoch=epoch, step=step, message=message or self.message)


@dataclass(frozen=True, slots=True)
class Rule:
    """An entry of ``RULES``: name, condition in words, source of the threshold, a line of advice, and the function."""

    name: str
    condition: str
    source: str
    advice: str
    judge: Callable[..., Finding | None]


RULES: dict[str, Rule] = {}
"""Every rule by its name."""

_Numbers = ParamSpec("_Numbers")


def rule(
    condition: str, source: str, advice: str
) -> Callable[[Callable[_Numbers, Finding | None]], Callable[_Numbers, Finding | None]]:
    """List the decorated function in ``RULES``, under its own name; the findings that it returns have this name and *advice*."""

    def listed(judge: Callable[_Numbers, Finding | None]) -> Callable[_Numbers, Finding | None]:
        name = judge.__name__

        @wraps(judge)
        def judged(*args: _Numbers.args, **kwargs: _Numbers.kwargs) -> Finding | None:
            found = judge(*args, **kwargs)
            return None if found is None else replace(found, rule=name, advice=advice)

        RULES[name] = Rule(name, condition, source, advice, judged)
        return judged

    return listed


def percent(share: float) -> str:
    """A share between 0 and 1 in words; 100 % and 0 % mean exactly that."""
    if 0 < share < 0.01:
        return "<1 %"
    return f"{math.floor(share * 100 + 0.5) if share < 0.995 or share == 1 else 99} %"


def short(number: float) -> str:
    """A number in few characters: ``899``, ``65,504``, ``1.5``, ``1.4e+37``."""
    return f"{number:,.0f}" if 100 <= abs(number) < 1e6 else f"{number:.2g}"


# Values


@rule(
    "any NaN or infinity",
    "IEEE 754: neither comes from finite numbers by a valid operation",
    "look at what goes into this place: a log or root of 0, a division by 0, an overflow of half precision",
)
def nonfinite(nan: float, inf: float, count: float, *, what: str = "") -> Finding | None:
    """Judge *nan* and *inf* of *count* elements; NaN if that number is not known.

    *what* names them (``gradient``, ``weights``), ``""`` is a layer's output.
    """
    if not (nan or inf):
        return None
    parts = ", ".join(f"{number:,.0f} {word}" for number, word in ((nan, "NaN"), (inf, "inf")) if number)
    evidence = {"nan": nan, "inf": inf} | ({} if math.isnan(count) else {"count": count})
    return Finding("", f"{what} not finite: {parts}".lstrip(), value=nan + inf, severity="bad", evidence=evidence)


@rule(
    f"{percent(DEAD_SOME)} of a layer's units or more without output",
    "smdebug, DeadRelu, has 50 % of units inactive; the limits are our own",
    "lower the learning rate, look at the bias and the scale of what comes before, or use an activation that is never flat",
)
def dead(share: float) -> Finding | None:
    """Judge the *share* of the units that are zero at every sample and position."""
    if not share >= DEAD_SOME:
        return None
    severity: Severity = "bad" if share > DEAD_MOST else "note"
    return Finding("", f"{percent(share)} dead", value=share, severity=severity, evidence={"dead": share})


@rule(
    "all elements of an output are exactly 0",
    "the layers behind get the same input for every sample",
    "look for a multiplication by 0, a mask that covers everything, or weights that were never initialised",
)
def all_zero(zeros: float, count: float) -> Finding | None:
    """Judge the number of *zeros* among *count* elements."""
    if count <= 1 or zeros < count:
        return None
    return Finding("", "all zero", value=1.0, severity="bad", evidence={"zeros": zeros, "count": count})


@rule(
    f"std of an output at most {CONSTANT:g} of its mean",
    "the rounding of float32",
    "look for a layer whose weights are equal, or an input that is the same for every sample",
)
def constant(mean: float, std: float, count: float) -> Finding | None:
    """Judge the mean and the standard deviation of *count* elements."""
    if count <= 1 or not std <= CONSTANT * max(abs(mean), 1e-30):
        return None
    return Finding("", "constant", value=mean, evidence={"mean": mean, "std": std})


@rule(
    f"{percent(SATURATED_SHARE)} of a tanh or sigmoid or more beyond {SATURATED_AT}",
    "Glorot and Bengio, 2010, section 3",
    "scale down what goes in: smaller initial weights, a normalisation before it",
)
def saturated(share: float) -> Finding | None:
    """Judge the *share* of the elements that are saturated."""
    if not share >= SATURATED_SHARE:
        return None
    return Finding("", f"{percent(share)} saturated", value=share, severity="note", evidence={"saturated": share})


# Gradients


@rule(
    "a gradient that is zero throughout",
    "nothing before it learns",
    "look for a detach(), a layer without effect on the loss, or dead units behind it",
)
def gradient_zero(size: float) -> Finding | None:
    """Judge the *size* of a gradient that arrived."""
    return Finding("", "gradient is zero", value=0.0, severity="bad", evidence={"size": size}) if size == 0 else None


@rule(
    f"a gradient of {GRADIENT_LARGE:g} x the median or more",
    "AutoTrainer has 70 x (last / first layer), torchmortem 100 x",
    "look at its initialisation and its scale; clip the gradient norm",
)
def gradient_large(size: float, typical: float) -> Finding | None:
    """Judge the *size* of a gradient; *typical* is the median of its kind."""
    if not (typical > 0 and size >= GRADIENT_LARGE * typical):
        return None
    evidence = {"size": size, "median": typical}
    return Finding("", f"gradient {size / typical:,.0f} x the median", value=size / typical, evidence=evidence)


@rule(
    f"a gradient of {GRADIENT_SMALL:g} of the median or less, though not zero",
    "AutoTrainer has 1e-3 (first / last layer)",
    "look at the layers behind it: saturated units, small weights, no residual path",
)
def gradient_small(size: float, typical: float) -> Finding | None:
    """Judge the *size* of a gradient; *typical* is the median of its kind."""
    if not (typical > 0 and 0 < size <= GRADIENT_SMALL * typical):
        return None
    words = f"gradient 1/{typical / size:,.0f} of the median"
    return Finding("", words, value=size / typical, evidence={"size": size, "median": typical})


# Updates


@rule(
    f"a step moves a weight by more than {percent(UPDATE_LARGE)} of its size",
    "CS231n, Babysitting the learning process; torchmortem",
    "lower the learning rate of this weight, or warm it up",
)
def update_large(ratio: float) -> Finding | None:
    """Judge the *ratio* of the size of an update to the size of its weight."""
    if not ratio > UPDATE_LARGE:
        return None
    return Finding("", f"each step moves it by {percent(ratio)} of its size", value=ratio, evidence={"ratio": ratio})


@rule(
    f"a step moves a weight by less than {UPDATE_SMALL:g} of its size",
    "CS231n, Babysitting the learning process; torchmortem",
    "raise the learning rate of this weight, or see whether it is meant to be frozen",
)
def update_small(ratio: float) -> Finding | None:
    """Judge the *ratio* of the size of an update to the size of its weight."""
    if not ratio < UPDATE_SMALL:
        return None
    words = f"each step moves it by {ratio:.0e} of its size" if ratio > 0 else "no step moves it"
    return Finding("", words, value=ratio, evidence={"ratio": ratio})


# The whole history of a run


@rule(
    f"an output {OUTPUT_GROWTH:g} x as large as it was and as any output was at the beginning",
    "our own, measured on healthy trainings",
    "lower the learning rate, or warm it up; normalise between layers",
)
def output_growth(size: float, before: float) -> Finding | None:
    """Judge the *size* of an output; *before* is the larger of its smallest size so far and the largest output at the beginning."""
    if not (before > 0 and size >= OUTPUT_GROWTH * before):
        return None
    words = f"output grew {short(size / before)}-fold, to {short(size)}"
    return Finding("", words, value=size / before, severity="bad", evidence={"size": size, "before": before})


@rule(
    f"an output {OUTPUT_LARGE:g} x as large as the first layer's, and {OUTPUT_LARGE:g} or more, from the beginning on",
    "our own; AutoTrainer has an absolute mean of 10",
    "scale the initial weights by 1 / sqrt(inputs), normalise between layers, or scale the data",
)
def output_large(size: float, first: float) -> Finding | None:
    """Judge the *size* of an output at its first logged step; *first* is that of the layer that runs first."""
    if not size >= OUTPUT_LARGE * max(first, 1.0):
        return None
    words = f"output of size {short(size)} from the beginning, {short(first)} in the first layer"
    return Finding("", words, value=size, evidence={"size": size, "first": first})


@rule(
    f"a weight {WEIGHT_GROWTH:g} x as large as it was and as half of the weights were at the beginning",
    "torchmortem",
    "lower the learning rate, or decay the weights",
)
def weight_growth(size: float, before: float) -> Finding | None:
    """Judge the *size* of a weight; *before* is the larger of its smallest size so far and the median weight at the beginning."""
    if not (before > 0 and size >= WEIGHT_GROWTH * before):
        return None
    words = f"weight grew {short(size / before)}-fold, to {short(size)}"
    return Finding("", words, value=size / before, evidence={"size": size, "before": before})


@rule(
    f"one step moves half of the weights by more than {percent(UPDATE_LARGE)} of their size",
    "CS231n, Babysitting the learning process; in healthy trainings 5 % at most",
    "lower the learning rate, or warm it up",
)
def step_large(ratio: float) -> Finding | None:
    """Judge the median *ratio* of update to weight over the weights in one step."""
    if not ratio > UPDATE_LARGE:
        return None
    words = f"one step moved half of the weights by {percent(ratio)} of their size or more"
    return Finding("", words, value=ratio, evidence={"ratio": ratio})


@rule(
    f"the norm of all gradients {GRADIENT_GROWTH:g} x as large as at the first logged step and as it ever was",
    "our own, measured on healthy trainings",
    "lower the learning rate, or warm it up; look at the loss and at its scale",
)
def gradient_growth(size: float, before: float) -> Finding | None:
    """Judge a norm *size*; *before* is the larger of its first value and of its smallest so far."""
    if not (before > 0 and size >= GRADIENT_GROWTH * before):
        return None
    words = f"grew {short(size / before)}-fold, to {short(size)}"
    return Finding("", words, value=size / before, severity="bad", evidence={"size": size, "before": before})


@rule(
    f"a loss or norm {SPIKE:g} deviations above the median of 128 logged values (of logarithms), and as large as at the beginning",
    "OLMo-core, SpikeScore; Megatron-LM, 10 x the largest of the first 100",
    "look at the batch of this step; clip the gradient norm, lower the learning rate",
)
def spike(value: float, median: float, deviations: float) -> Finding | None:
    """Judge a *value*, *deviations* above the *median* of the values before it."""
    if not deviations >= SPIKE:
        return None
    words = f"jumped to {short(value)}, {short(value / median)} x its median"
    evidence = {"value": value, "median": median, "deviations": deviations}
    return Finding("", words, value=value, evidence=evidence)


@rule(
    "logged steps with a backward pass and no forward pass in training mode: two, or all that there are",
    "outputs and their gradients are recorded in training passes alone",
    "call model.train() after each evaluation; watch(evaluation=True) records evaluation passes too",
)
def no_training_forward(missed: int, logged: int) -> Finding | None:
    """Judge how many of the *logged* steps *missed* a forward pass in training mode, though there was one in evaluation mode."""
    if missed < min(2, max(logged, 1)):
        return None
    words = f"{logged - missed:,} of {logged:,} logged steps had a training forward: is the model in eval()?"
    return Finding("", words, value=missed, severity="bad", evidence={"missed": missed, "logged": logged})


# Rules of one place together


def of_output(seen: Any, *, dead_share: float | None = None, saturated_share: float = 0.0) -> list[Finding]:
    """Return the findings about an output; *seen* has ``count``, ``nan``, ``inf``, ``zeros``, ``mean`` and ``std``."""
    if not seen.count:
        return []
    broken = nonfinite(seen.nan, seen.inf, seen.count)
    if broken is not None:
        return [broken]
    silent = all_zero(seen.zeros, seen.count) if dead_share is None else dead(dead_share)
    return _some([silent or constant(seen.mean, seen.std, seen.count), saturated(saturated_share)])


def of_gradient(seen: Any, typical: float, *, what: str = "gradient") -> list[Finding]:
    """Return the findings about a gradient; *seen* has ``count``, ``nan``, ``inf`` and ``norm``.

    *typical* is the median norm of the gradients, 0 if there is none.

    A gradient of one element, as that of a loss, is not compared with those of layers.
    """
    if not seen.count:
        return []
    broken = nonfinite(seen.nan, seen.inf, seen.count, what=what)
    if broken is not None:
        return [broken]
    return _some([gradient_zero(seen.norm)]) or of_size(seen.norm, typical if seen.count > 1 else 0.0)


def of_size(size: float, typical: float) -> list[Finding]:
    """Return the findings about the *size* of a gradient; *typical* is the median of its kind, 0 if there is none."""
    return _some([gradient_large(size, typical) or gradient_small(size, typical)])


def of_update(update: float, weight: float) -> list[Finding]:
    """Return the findings about the size of an update, given the size of the weight; none if that is 0 or NaN."""
    ratio = update / weight if weight > 0 else math.nan
    return _some([update_large(ratio) or update_small(ratio)])


def _some(found: Iterable[Finding | None]) -> list[Finding]:
    return [each for each in found if each is not None]
