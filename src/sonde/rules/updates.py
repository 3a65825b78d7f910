"""Rules about how far a step moves the weights."""

from __future__ import annotations

from sonde.rules.finding import Finding, rule
from sonde.words import percent

__all__ = [
    "LOST",
    "UNMOVED",
    "UPDATE_HUGE",
    "UPDATE_LARGE",
    "UPDATE_SMALL",
    "UPDATE_USUAL",
    "frozen",
    "gradient_kept",
    "step_large",
    "unmoved",
    "unreached",
    "update_huge",
    "update_large",
    "update_lost",
    "update_small",
]

UPDATE_LARGE, UPDATE_USUAL, UPDATE_SMALL = 0.2, 1e-3, 1e-5
"""Update / weight, both root mean squares or both norms. CS231n, "Babysitting the learning process", ratio of weights and updates:
"this ratio should be somewhere around 1e-3"; torchmortem warns above 1e-1 and below 1e-5; the first
steps of healthy trainings of small networks reach 0.18. Over a run a weight counts as at
least as large as torch would initialise it, 1 / sqrt(3 inputs): Adam's first steps move each element by the learning rate, whatever
the size of the weight."""
UPDATE_HUGE = 0.6
"""Update / weight of a single step; the weight is that after the step, so that the ratio is 1 where the update is all of it."""
LOST = 0.5
"""Share of a weight's elements that have a gradient, and do not change in a step."""
UNMOVED = 5
"""Logged steps in which a weight has a gradient, and no optimizer moves it."""


@rule(
    f"a step moves a weight by more than {percent(UPDATE_LARGE)} of its size",
    "CS231n, Babysitting the learning process; torchmortem",
    "lower the learning rate of this weight, or warm it up",
    needs=("rms:update", "rms:param"),
)
def update_large(ratio: float, *, most: float = UPDATE_LARGE) -> Finding | None:
    """Judge the *ratio* of the size of an update to the size of its weight."""
    if not ratio > most:
        return None
    return Finding("", f"each step moves it by {percent(ratio)} of its size", value=ratio, evidence={"ratio": ratio})


@rule(
    f"a step moves a weight by less than {UPDATE_SMALL:g} of its size",
    "CS231n, Babysitting the learning process; torchmortem",
    "raise the learning rate of this weight, or see whether it is meant to be frozen",
    needs=("rms:update", "rms:param"),
)
def update_small(ratio: float, *, least: float = UPDATE_SMALL) -> Finding | None:
    """Judge the *ratio* of the size of an update to the size of its weight."""
    if not ratio < least:
        return None
    words = f"each step moves it by {ratio:.0e} of its size" if ratio > 0 else "no step moves it"
    return Finding("", words, value=ratio, evidence={"ratio": ratio})


@rule(
    f"one step makes more than {percent(UPDATE_HUGE)} of a weight",
    "our own; in healthy trainings 37 % at most",
    "lower the learning rate of this weight, or warm it up; clip the gradient norm",
    needs=("rms:update", "rms:param"),
)
def update_huge(ratio: float, *, most: float = UPDATE_HUGE) -> Finding | None:
    """Judge the *ratio* of the size of one update to the size of its weight after that."""
    if not ratio > most:
        return None
    return Finding("", f"one step moves it by {percent(ratio)} of its size", value=ratio, evidence={"ratio": ratio})


@rule(
    f"one step moves half of the weights by more than {percent(UPDATE_LARGE)} of their size",
    "CS231n, Babysitting the learning process; in healthy trainings 5 % at most",
    "lower the learning rate, or warm it up",
    needs=("rms:update", "rms:param"),
)
def step_large(ratio: float, *, most: float = UPDATE_LARGE) -> Finding | None:
    """Judge the median *ratio* of update to weight over the weights in one step."""
    if not ratio > most:
        return None
    words = f"one step moved half of the weights by {percent(ratio)} of their size or more"
    return Finding("", words, value=ratio, evidence={"ratio": ratio})


@rule(
    f"{percent(LOST)} of the elements of a weight in bfloat16 or float16, or more, have a gradient and do not change, "
    "in 3 of 5 logged steps",
    "IEEE 754, rounding to nearest: an update below half of the last digit is lost; bfloat16 has 8 digits",
    "keep the parameters in float32 (autocast for the forward pass), or round stochastically",
    needs=("zeros:update", "zeros:grad"),
)
def update_lost(share: float, *, most: float = LOST) -> Finding | None:
    """Judge the *share* of the elements of a weight that a step leaves as they are, beyond those without gradient."""
    if not share >= most:
        return None
    return Finding("", f"{percent(share)} of its updates are lost to rounding", value=share, evidence={"lost": share})


@rule(
    f"a weight with a gradient that no optimizer has moved in {UNMOVED} logged steps or more, where others move",
    "a parameter outside of every optimizer",
    "give it to the optimizer, or freeze it with requires_grad_(False) if that is meant",
    needs=("rms:update", "rms:grad"),
)
def unmoved(steps: float, *, least: float = UNMOVED) -> Finding | None:
    """Judge in how many logged *steps* a weight had a gradient while others moved, and it was in no optimizer's step."""
    if not steps >= least:
        return None
    return Finding("", "gets a gradient, and no optimizer moves it", value=steps, severity="bad", evidence={"steps": steps})


@rule(
    f"the gradients of the step before are there as the next backward pass adds to them, in the first {UNMOVED} logged steps",
    "torch.optim.Optimizer.zero_grad: a backward pass adds to the gradients that there are",
    "call optimizer.zero_grad() in each step",
    needs=("rms:grad",),
)
def gradient_kept(steps: float, *, least: float = UNMOVED) -> Finding | None:
    """Judge before how many logged *steps* nobody had cleared the gradients."""
    if not steps >= least:
        return None
    return Finding("", "its gradient is never cleared, and adds up", value=steps, severity="bad", evidence={"steps": steps})


@rule(
    f"trainable weights at the beginning of the network without any gradient in {UNMOVED} logged steps, where later ones have one",
    "a graph that is cut: detach(), no_grad(), .data, a conversion to numpy",
    "look for what cuts the graph behind these layers, or freeze them with requires_grad_(False) if that is meant",
    needs=("rms:param", "rms:grad"),
)
def unreached(steps: float, *, least: float = UNMOVED) -> Finding | None:
    """Judge in how many logged *steps* no gradient reached a weight."""
    if not steps >= least:
        return None
    return Finding("", "no gradient reaches it", value=steps, severity="bad", evidence={"steps": steps})


@rule(
    "a frozen weight between trained ones, where most weights are trained",
    "our own: backbones and adapters freeze the beginning, or most of a network",
    "requires_grad_(True), if that is not meant; rules={'frozen': False} otherwise",
    needs=("rms:grad",),
)
def frozen(weights: float, trained: float, *, most: float = 0.34) -> Finding | None:
    """Judge a number of frozen *weights* that run between *trained* ones; above a share of *most* they are meant."""
    if not 0 < weights <= most * (weights + trained):
        return None
    return Finding(
        "", "is frozen, between weights that are trained", value=weights, evidence={"frozen": weights, "trained": trained}
    )
