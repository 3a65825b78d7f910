"""Rules about the sizes of gradients."""

from __future__ import annotations

from sonde.rules.finding import Judged, entry
from sonde.rules.window import Window
from sonde.words import short

GRADIENT_LARGE, GRADIENT_SMALL = 100.0, 1e-3
"""A gradient's size against the median over its kind; behind a small initial weight, a healthy branch may get a hundredth."""
GRADIENT_GROWTH = 1000.0
"""Growth of the norm of all gradients, before clipping, against its first value and its smallest one so far: in
fourteen healthy trainings 5-fold at most, and 401-fold towards targets of size 134."""
GRADIENT_ADDED = 100.0
"""Norm of all gradients as an optimizer steps, against that which backward passes have left. Noise for privacy may have 20 x."""
DEPTH = 1e4
"""Size of the gradients of the first quarter of the weights against those of the last quarter, both medians. A weight's gradient is
taken as root mean square of gradient x root mean square of weight, in which a scale common to a weight and its inputs cancels."""
ALONE = 1e3
"""Size of the gradient of one inner weight against that of every other one, taken as above, times the root of its elements: that is
between what it may be where gradient and weight point one way, and where they point anywhere. The product, summed over a layer, is
alike from layer to layer, since what goes through one comes out of it; a factor in one backward pass is seen."""
ALONG = 0.7
"""Rank correlation of a size with the depth, above which it changes from layer to layer."""


@entry(
    "a gradient that is zero throughout, or is to be, since a loss subtracts equals; or in six training passes or more second "
    "derivatives of the outputs by what goes in that are, or a term of the loss without a graph, where such derivatives are taken "
    "without one, or it changes by 0.2 % from pass to pass and is a tenth of the loss or more; or that of a part is zero or none "
    "in 50 logged steps, where others of three or more that are alike have one, and a layer before them has one output for each; "
    "or the loss is one number in 90 steps or more, and the norm of all gradients 1e-05 of it or less",
    "nothing before it learns",
    "look for a detach(), a layer without effect on the loss, or dead units behind it",
    needs=("rms:grad",),
    severity="bad",
    at="gradients",
    window=Window(3, 5),
    brings=("update_small", "gradient_vanishing"),
    about=("gradient", "lost"),
    unless=("converged",),
)
def gradient_zero(size: float) -> Judged:
    """Judge the *size* of a gradient that arrived."""
    yield size == 0
    yield size
    yield "gradient is zero"


@entry(
    f"a gradient of {GRADIENT_LARGE:g} x the median or more",
    "AutoTrainer has 70 x (last / first layer), torchmortem 100 x",
    "look at its initialisation and its scale; {clip_grad_norm}",
    tries=("clip_grad_norm",),
)
def gradient_large(size: float, median: float, *, factor: float = GRADIENT_LARGE) -> Judged:
    """Judge the *size* of a gradient; *median* is that of its kind."""
    yield (median > 0) & (size >= factor * median)
    yield size / median
    yield f"gradient {size / median:,.0f} x the median"


@entry(
    f"a gradient of {GRADIENT_SMALL:g} of the median or less, though not zero",
    "AutoTrainer has 1e-3 (first / last layer)",
    "look at the layers behind it: saturated units, small weights, no residual path",
)
def gradient_small(size: float, median: float, *, factor: float = GRADIENT_SMALL) -> Judged:
    """Judge the *size* of a gradient; *median* is that of its kind."""
    yield (median > 0) & (size > 0) & (size <= factor * median)
    yield size / median
    yield f"gradient 1/{median / size:,.0f} of the median"


@entry(
    f"the norm of all gradients {GRADIENT_GROWTH:g} x as large as at the first logged step and as it ever was, or, as the "
    f"optimizer steps, {GRADIENT_ADDED:g} x as large as backward passes have left it, in each of 10 logged steps or more, and the "
    "loss has not fallen by a fifth in 100 steps (warn)",
    "our own, measured on healthy trainings",
    "look in this order at the sign of the loss, its scale, and that of inputs and targets; {lr}, or warm it up; or "
    "{clip_grad_norm}, between backward() and step()",
    needs=("grad_norm",),
    severity="bad",
    least=2,
    about=("gradient", "large"),
    tries=("lr", "clip_grad_norm"),
    symptom=True,
)
def gradient_growth(size: float, before: float, *, factor: float = GRADIENT_GROWTH, is_of_step: bool = False) -> Judged:
    """Judge a norm *size*; *before* is the larger of its first value and of its smallest so far.

    *is_of_step*: or that which the backward passes of one step have left.
    """
    yield (before > 0) & (size >= (GRADIENT_ADDED if is_of_step else factor) * before)
    yield size / before
    times = short(size / before)
    yield f"gradients grow {times}-fold between backward and step" if is_of_step else f"grew {times}-fold, to {short(size)}"
    yield "warn" if is_of_step else "bad"


@entry(
    f"gradients of the first quarter of the weights {DEPTH:g} x smaller than those of the last, and smaller from layer to layer; "
    "or, of a recurrent network, the outputs depend so much less on the first eighth of the steps than on the last, in two "
    "training passes, where the loss stands (a note, but where 1e-7 is left or less, and the loss has stood for long)",
    "Glorot and Bengio, 2010; AutoTrainer has 1e3 (first / last layer)",
    "use activations that do not saturate, larger initial weights, residual paths, a normalisation",
    needs=("rms:grad", "rms:param"),
    evidence=("first", "last", ""),
    at="depth",
    window=Window(3, 5, smallest=True),
    brings=("input_unused", "outputs_alike", "rank_collapse", "loss_stuck"),
    about=("gradient", "small"),
    unless=("low",),
)
def gradient_vanishing(first: float, last: float, along: float = 1.0, *, factor: float = DEPTH) -> Judged:
    """Judge the median size of the gradients of the *first* quarter of the weights against that of the *last*.

    *along* is the rank correlation of the sizes with the depth.
    """
    yield (last > 0) & (first * factor <= last) & (along > ALONG)
    yield first / last
    yield f"gradients vanish towards the input: 1/{short(last / first) if first > 0 else 'inf'} of those of the last layers"


@entry(
    f"gradients of the first quarter of the weights {DEPTH:g} x larger than those of the last, and larger from layer to layer",
    "Pascanu et al., 2013; AutoTrainer has 70 (first / last layer)",
    "{clip_grad_norm}, use smaller initial weights, a normalisation, or scale residual branches",
    needs=("rms:grad", "rms:param"),
    evidence=("first", "last", ""),
    at="depth",
    window=Window(3, 5),
    about=("gradient", "large"),
    tries=("clip_grad_norm",),
)
def gradient_exploding(first: float, last: float, along: float = -1.0, *, factor: float = DEPTH) -> Judged:
    """Judge the median size of the gradients of the *first* quarter of the weights against that of the *last*.

    *along* is the rank correlation of the sizes with the depth.
    """
    yield (last > 0) & (first >= factor * last) & (along < -ALONG)
    yield first / last
    yield f"gradients explode towards the input: {short(first / last)} x those of the last layers"


@entry(
    f"the gradient of one weight, neither the first nor the last, {ALONE:g} x as large as that of any other, at the "
    "first logged step",
    "Du et al., Algorithmic regularization, 2018, theorem 2.1: gradient x weight, summed over a layer, is alike in all of them",
    "look at what changes this gradient alone: a hook, a custom backward, a factor on one output",
    needs=("rms:grad", "rms:param"),
    evidence=("gradient", "largest"),
    at="inner",
    window=Window(1, 1),
    brings=("update_small",),
    about=("gradient", "large"),
)
def gradient_alone(size: float, largest: float, *, factor: float = ALONE) -> Judged:
    """Judge the *size* of the gradient of a weight; *largest* is that of all others."""
    yield (largest > 0) & (size >= factor * largest)
    yield size / largest
    yield f"its gradient is {short(size / largest)} x as large as that of any other weight"
