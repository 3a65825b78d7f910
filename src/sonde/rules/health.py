"""Rules about values: what is not finite, dead, constant or saturated."""

from __future__ import annotations

import math

from sonde.rules.finding import Finding, Severity, percent, rule

__all__ = ["DEAD_MOST", "DEAD_SAMPLES", "DEAD_SOME", "SATURATED_AT", "all_zero", "constant", "dead", "nonfinite", "saturated"]

DEAD_SOME, DEAD_MOST = 0.25, 0.9
"""Share of a layer's units without any output: from the first on it is a note, above the second it is bad."""
DEAD_SAMPLES = 8
"""A unit is judged from this number of samples and positions on."""
SATURATED_AT, SATURATED_SHARE = 0.99, 0.5
"""Magnitude beyond which a tanh is saturated (a sigmoid: as near to its limits); share of a layer's elements that is a note."""
CONSTANT = 1e-7
"""Standard deviation / mean of an output that is one value: the rounding of float32."""


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
