"""Rules about how sizes of outputs and weights change over a run, and through the depth of a network."""

from __future__ import annotations

from sonde.rules.finding import Finding, rule, short

__all__ = ["OUTPUT_GROWTH", "OUTPUT_LARGE", "WEIGHT_GROWTH", "output_growth", "output_large", "weight_growth"]

OUTPUT_GROWTH, WEIGHT_GROWTH = 100.0, 10.0
"""Growth of an output over a run, against the largest output of the network at the beginning; and of a weight (torchmortem: 10).
In two dozen healthy trainings outputs of hidden layers grew 12-fold at most (56-fold towards targets of size 134) and weights
5-fold; in a GPT under AdamW with a learning rate of 3e-2 outputs grew 230-fold."""
OUTPUT_LARGE = 1000.0
"""An output's size against that of the first layer, or 1; float16 ends at 65,504."""


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
