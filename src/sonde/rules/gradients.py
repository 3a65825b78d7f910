"""Rules about the sizes of gradients."""

from __future__ import annotations

from sonde.rules.finding import Finding, rule, short

__all__ = [
    "GRADIENT_GROWTH",
    "GRADIENT_LARGE",
    "GRADIENT_SMALL",
    "gradient_growth",
    "gradient_large",
    "gradient_small",
    "gradient_zero",
]

GRADIENT_LARGE, GRADIENT_SMALL = 100.0, 1e-3
"""A gradient's size against the median over its kind; behind a small initial weight, a healthy branch may get a hundredth."""
GRADIENT_GROWTH = 1000.0
"""Growth of the norm of all gradients, before clipping, against its first value and its smallest one so far: in
fourteen healthy trainings 5-fold at most, and 401-fold towards targets of size 134."""


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
