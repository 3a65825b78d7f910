"""Rules about the sizes of gradients."""

from __future__ import annotations

from sonde.rules.finding import Finding, rule
from sonde.words import short

__all__ = [
    "DEPTH",
    "GRADIENT_GROWTH",
    "GRADIENT_LARGE",
    "GRADIENT_SMALL",
    "gradient_exploding",
    "gradient_growth",
    "gradient_large",
    "gradient_small",
    "gradient_vanishing",
    "gradient_zero",
]

GRADIENT_LARGE, GRADIENT_SMALL = 100.0, 1e-3
"""A gradient's size against the median over its kind; behind a small initial weight, a healthy branch may get a hundredth."""
GRADIENT_GROWTH = 1000.0
"""Growth of the norm of all gradients, before clipping, against its first value and its smallest one so far: in
fourteen healthy trainings 5-fold at most, and 401-fold towards targets of size 134."""
DEPTH = 1e4
"""Size of the gradients of the first quarter of the weights against those of the last quarter, both medians. A weight's gradient is
taken as root mean square of gradient x root mean square of weight, in which a scale common to a weight and its inputs cancels."""


@rule(
    "a gradient that is zero throughout",
    "nothing before it learns",
    "look for a detach(), a layer without effect on the loss, or dead units behind it",
    needs=("rms:grad",),
)
def gradient_zero(size: float) -> Finding | None:
    """Judge the *size* of a gradient that arrived."""
    return Finding("", "gradient is zero", value=0.0, severity="bad", evidence={"size": size}) if size == 0 else None


@rule(
    f"a gradient of {GRADIENT_LARGE:g} x the median or more",
    "AutoTrainer has 70 x (last / first layer), torchmortem 100 x",
    "look at its initialisation and its scale; clip the gradient norm",
)
def gradient_large(size: float, typical: float, *, factor: float = GRADIENT_LARGE) -> Finding | None:
    """Judge the *size* of a gradient; *typical* is the median of its kind."""
    if not (typical > 0 and size >= factor * typical):
        return None
    evidence = {"size": size, "median": typical}
    return Finding("", f"gradient {size / typical:,.0f} x the median", value=size / typical, evidence=evidence)


@rule(
    f"a gradient of {GRADIENT_SMALL:g} of the median or less, though not zero",
    "AutoTrainer has 1e-3 (first / last layer)",
    "look at the layers behind it: saturated units, small weights, no residual path",
)
def gradient_small(size: float, typical: float, *, factor: float = GRADIENT_SMALL) -> Finding | None:
    """Judge the *size* of a gradient; *typical* is the median of its kind."""
    if not (typical > 0 and 0 < size <= factor * typical):
        return None
    words = f"gradient 1/{typical / size:,.0f} of the median"
    return Finding("", words, value=size / typical, evidence={"size": size, "median": typical})


@rule(
    f"the norm of all gradients {GRADIENT_GROWTH:g} x as large as at the first logged step and as it ever was",
    "our own, measured on healthy trainings",
    "lower the learning rate, or warm it up; look at the loss and at its scale",
    needs=("grad_norm",),
)
def gradient_growth(size: float, before: float, *, factor: float = GRADIENT_GROWTH) -> Finding | None:
    """Judge a norm *size*; *before* is the larger of its first value and of its smallest so far."""
    if not (before > 0 and size >= factor * before):
        return None
    words = f"grew {short(size / before)}-fold, to {short(size)}"
    return Finding("", words, value=size / before, severity="bad", evidence={"size": size, "before": before})


@rule(
    f"gradients of the first quarter of the weights {DEPTH:g} x smaller than those of the last, and smaller from layer to layer",
    "Glorot and Bengio, 2010; AutoTrainer has 1e3 (first / last layer)",
    "use activations that do not saturate, larger initial weights, residual paths, a normalisation",
    needs=("rms:grad", "rms:param"),
)
def gradient_vanishing(first: float, last: float, *, factor: float = DEPTH) -> Finding | None:
    """Judge the median size of the gradients of the *first* quarter of the weights against that of the *last*."""
    if not (last > 0 and first * factor <= last):
        return None
    words = f"gradients vanish towards the input: 1/{short(last / first) if first > 0 else 'inf'} of those of the last layers"
    return Finding("", words, value=first / last, evidence={"first": first, "last": last})


@rule(
    f"gradients of the first quarter of the weights {DEPTH:g} x larger than those of the last, and larger from layer to layer",
    "Pascanu et al., 2013; AutoTrainer has 70 (first / last layer)",
    "clip the gradient norm, use smaller initial weights, a normalisation, or scale residual branches",
    needs=("rms:grad", "rms:param"),
)
def gradient_exploding(first: float, last: float, *, factor: float = DEPTH) -> Finding | None:
    """Judge the median size of the gradients of the *first* quarter of the weights against that of the *last*."""
    if not (last > 0 and first >= factor * last):
        return None
    words = f"gradients explode towards the input: {short(first / last)} x those of the last layers"
    return Finding("", words, value=first / last, evidence={"first": first, "last": last})
