"""Rules about how far a step moves the weights."""

from __future__ import annotations

from sonde.rules.finding import Finding, percent, rule

__all__ = ["UPDATE_LARGE", "UPDATE_SMALL", "UPDATE_USUAL", "step_large", "update_large", "update_small"]

UPDATE_LARGE, UPDATE_USUAL, UPDATE_SMALL = 1e-1, 1e-3, 1e-5
"""Update / weight, both root mean squares or both norms. CS231n, "Babysitting the learning process", ratio of weights and updates:
"this ratio should be somewhere around 1e-3"; torchmortem warns outside of these limits."""


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
