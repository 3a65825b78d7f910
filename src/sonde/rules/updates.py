"""Rules about how far a step moves the weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sonde.rules.finding import Judged, entry
from sonde.rules.window import Window
from sonde.words import percent, short

UPDATE_LARGE, UPDATE_USUAL, UPDATE_SMALL = 0.2, 1e-3, 1e-5
"""Update / weight, both root mean squares or both norms. CS231n, "Babysitting the learning process", ratio of weights and updates:
"this ratio should be somewhere around 1e-3"; torchmortem warns above 1e-1 and below 1e-5; the first
steps of healthy trainings of small networks reach 0.18. Over a run a weight counts as at
least as large as torch would initialise it, 1 / sqrt(3 inputs): Adam's first steps move each element by the learning rate, whatever
the size of the weight."""
UPDATE_HUGE = 0.6
"""Update / weight of a single step; the weight is that after the step, so that the ratio is 1 where the update is all of it."""
FIRST_STEPS = 5
"""Logged steps of a weight that may be larger than those after them: an optimizer divides by what it has seen, which is little."""
IDLE = 0.1
"""Share of the steps of a weight that do not move it, or hardly, at the end of a training: a schedule may end in a rate of 0, and
what it costs is this share."""
LOST, LOST_MOST = 0.5, 0.98
"""Share of a weight's elements that have a gradient, and do not change in a step: from the first on it is a note, since the rest
may well learn; above the second hardly any element moves."""
WRITTEN = 3.0
"""Change of a parameter between two logged steps, of the larger of their updates: what is clamped or projected after each step
takes back a step at most, so that two explain it."""
RETURNED, RETURNS = 0.5, 10
"""Share of a step that is left as the next one begins: all of it is, where nothing but steps moves a weight. And in how many logged
steps, one after the other, less is left, by the same share of most parameters: a clamp takes more of some than of others."""
UNMOVED = 5
"""Logged steps in which a weight has a gradient, and no optimizer moves it."""
RANDOM_FEATURES = 2
"""Frozen layers in a row that were never trained, and may be meant so."""
DECAYED, DECAY, DIVIDED = 0.05, 0.3, 0.05
"""Learning rate x weight decay, the share of a weight that each step takes away, and the decay. Usual settings have 1e-3 and 0.3 at
most."""
LOW_RATE, WARMED, WITHIN = 1e-3, 0.01, 0.1
"""Learning rate, of the largest, at which next to nothing is learnt; how far a warm-up moves the weights at least; and the learning
rate, of the one that the optimizer was given, at which a training ends within its warm-up."""
REMEMBERED, ADDED_UP = 500.0, 10.0
"""Steps that a momentum adds up, 1 / (1 - momentum), and the learning rate times that: usual settings have 100 steps, and 1."""
EPS_MOST, EPS_SOME = 1.0, 1e-3
"""What is added to the root of the mean square of a gradient, which is 1 at most as a rule; and what may be far more than that."""
EPS_LOST = 2.0**-25
"""Half of the smallest number of float16 above 0: what is no larger is rounded to 0."""
GROWN_RATE = 10.0
"""Learning rate against that at which the loss was smallest."""

_LARGE_STEP = "{lr}, warm it up, {clip_grad_norm}; else scale inputs, targets and loss"


@entry(
    f"a step moves a weight by more than {percent(UPDATE_LARGE)} of its size, in 3 of 5 logged steps, beyond the first five",
    "CS231n, Babysitting the learning process; torchmortem; an optimizer that divides by what it has seen begins with larger steps",
    _LARGE_STEP,
    needs=("rms:update", "rms:param"),
    at="updates",
    window=Window(3, 5, after=FIRST_STEPS),
    brings=("update_huge",),
    about=("update", "large"),
    unless=("helped",),
    tries=("lr", "clip_grad_norm"),
)
def update_large(ratio: float, *, most: float = UPDATE_LARGE) -> Judged:
    """Judge the *ratio* of the size of an update to the size of its weight."""
    yield ratio > most
    yield ratio
    yield f"each step moves it by {percent(ratio)} of its size"


@entry(
    f"a step moves a weight by less than {UPDATE_SMALL:g} of its size, while its gradient is 1/1000 of its first one or more, in "
    f"{percent(IDLE)} of the steps so far or more",
    "CS231n, Babysitting the learning process; torchmortem",
    "where no finding explains it, look in this order at the optimizer that holds it and its learning rate, at what makes its "
    "gradient small (a divided loss, a temperature, clipping), and at the optimizer's eps",
    needs=("rms:update", "rms:param"),
    window=Window(4, 5, smallest=True),
    brings=("loss_stuck",),
    about=("update", "small"),
    unless=("converged", "falls"),
    symptom=True,
)
def update_small(ratio: float, *, least: float = UPDATE_SMALL) -> Judged:
    """Judge the *ratio* of the size of an update to the size of its weight."""
    yield ratio < least
    yield ratio
    yield f"each step moves it by {ratio:.0e} of its size" if ratio > 0 else "no step moves it"


@entry(
    f"one step makes more than {percent(UPDATE_HUGE)} of a weight",
    "our own; in healthy trainings 37 % at most",
    _LARGE_STEP,
    needs=("rms:update", "rms:param"),
    at="updates",
    window=Window(1, 1),
    about=("update", "large"),
    unless=("helped",),
    tries=("lr", "clip_grad_norm"),
)
def update_huge(ratio: float, *, most: float = UPDATE_HUGE) -> Judged:
    """Judge the *ratio* of the size of one update to the size of its weight after that."""
    yield ratio > most
    yield ratio
    yield f"one step moves it by {percent(ratio)} of its size"


@entry(
    f"one step moves half of the weights by more than {percent(UPDATE_LARGE)} of their size",
    "CS231n, Babysitting the learning process; in healthy trainings 5 % at most",
    "lower the learning rate, warm it up, clip gradients; else scale inputs, targets and loss",
)
def step_large(ratio: float, *, most: float = UPDATE_LARGE) -> Judged:
    """Judge the median *ratio* of update to weight over the weights in one step."""
    yield ratio > most
    yield ratio
    yield f"one step moved half of the weights by {percent(ratio)} of their size or more"


@entry(
    f"{percent(LOST)} of the elements of a weight in bfloat16 or float16, or more, have a gradient and do not change, "
    f"in 3 of 5 logged steps (a note), more than {percent(LOST_MOST)} (warn)",
    "IEEE 754, rounding to nearest: an update below half of the last digit is lost; bfloat16 has 8 digits",
    "keep the parameters in float32 (autocast for the forward pass), or round stochastically",
    needs=("zeros:update", "zeros:grad"),
    note_until="most",
    evidence=("lost",),
    at="halves",
    window=Window(3, 5),
    brings=("loss_stuck", "update_small"),
    about=("update", "small"),
)
def update_lost(share: float, *, some: float = LOST, most: float = LOST_MOST) -> Judged:
    """Judge the *share* of the elements of a weight that a step leaves as they are, beyond those without gradient.

    From *some* on it is a note, above *most* a fault.
    """
    yield share >= some
    yield share
    yield f"{percent(share)} of its updates are lost to rounding"


@entry(
    f"parameters whose size or mean has changed by more than {WRITTEN:g} x their update since the logged step before, from the "
    "sixth on: a note, but where the loss is 1.2 x as large behind it, or in 3 of 5 logged steps (warn); or of "
    f"{RETURNS} steps, one after the other, {percent(RETURNED)} or less is left as the next begins, the same of most parameters",
    "triangle inequality: a step alone moves size and mean of a tensor by its own size at most, and the mean by its own mean",
    "look for what writes into parameters between steps: load_state_dict(), an initialisation, an average that is copied back",
    needs=("rms:update", "rms:param"),
    evidence=("moved", "update", "left"),
    least=UNMOVED + 1,
    window=Window(3, 5),
    about=("weight", "jump"),
)
def overwritten(shift: float, update: float, left: float = math.nan, *, factor: float = WRITTEN, most: float = RETURNED) -> Judged:
    """Judge the *shift* of the size or the mean of a parameter between two steps; *update* is the most that these explain.

    *left* is the share of a step that is left as the next one begins; NaN where that is not known, or differs.
    """
    is_back: Any = np.less_equal(left, most)
    yield is_back | (shift > factor * update)
    value: Any = np.where(is_back, left, shift)
    yield value
    yield (
        f"{percent(1 - max(left, 0.0))} of each step is taken back before the next one begins: something else writes into it"
        if is_back
        else f"changed by {short(shift)} in size or mean, where its step is of size {short(update)}: something else wrote into it"
    )


@entry(
    f"a weight with a gradient that no optimizer has moved in {UNMOVED} logged steps or more, where others move; of half of the "
    "layers or more a note, but where most are as drawn (warn; more than two of them, or the last one too: bad)",
    "a parameter outside of every optimizer",
    "give it to the optimizer, and call its step(); or freeze it with requires_grad_(False) if that is meant",
    needs=("rms:update", "rms:grad"),
    severity="bad",
    least="least",
    about=("setup", "still"),
)
def unmoved(steps: float, *, least: float = UNMOVED) -> Judged:
    """Judge in how many logged *steps* a weight had a gradient while others moved, and it was in no optimizer's step."""
    yield steps >= least
    yield steps
    yield "gets a gradient, and no optimizer moves it"


@entry(
    f"the gradients of the step before are there as the next backward pass adds to them, or those that a pass has left which "
    f"another optimizer has stepped, in the first {UNMOVED} logged steps; or in these they are written into behind the step that "
    "has used them, and then dropped (warn)",
    "torch.optim.Optimizer.zero_grad: a backward pass adds to the gradients that there are",
    "call optimizer.zero_grad() in each step",
    needs=("rms:grad",),
    severity="bad",
    least="least",
    about=("setup", "large"),
)
def gradient_kept(steps: float, *, least: float = UNMOVED) -> Judged:
    """Judge before how many logged *steps* nobody had cleared the gradients."""
    yield steps >= least
    yield steps
    yield "its gradient is never cleared, and adds up"


@entry(
    f"trainable weights that an optimizer holds and no gradient reaches in {UNMOVED} logged steps: all of a model, those before "
    "all that are reached, those without a graph, those of one block among others, those behind a rounding or a sign that no other "
    "way leads around (bad); those before others, of one of several "
    "outputs, of a part that is never called and is like no other, or of a table that its module does not read, where the model is "
    "no library's (warn); and weights whose "
    "layers do not run, run last, or return what may be unused (a note)",
    "a graph that is cut: detach(), no_grad(), .data, a conversion to numpy, an argmax",
    "look for what cuts the graph behind these layers, or leaves what they return unused; freeze them with requires_grad_(False) "
    "if that is meant",
    needs=("rms:param", "rms:grad"),
    severity="bad",
    least="least",
    brings=("unmoved", "loss_stuck", "gradient_zero", "input_unused"),
    about=("setup", "still"),
)
def unreached(steps: float, *, least: float = UNMOVED) -> Judged:
    """Judge in how many logged *steps* no gradient reached a weight."""
    yield steps >= least
    yield steps
    yield "no gradient reaches it"


@entry(
    f"gradients that a backward pass has left are gone, or all zero, as the optimizer steps, in most of {UNMOVED} logged steps, or "
    f"each of several passes finds none as it comes, in {UNMOVED} logged steps whose gradient is that of the last of them",
    "torch.optim.Optimizer.zero_grad: a step without gradients, or with zeros, learns nothing",
    "call optimizer.zero_grad() before backward() or after step(), not between them",
    needs=("rms:grad",),
    severity="bad",
    least="least",
    brings=("gradient_zero", "update_small", "unreached", "unmoved", "loss_stuck", "gradient_vanishing"),
    about=("setup", "still"),
)
def gradient_cleared(steps: float, *, least: float = UNMOVED) -> Judged:
    """Judge in how many logged *steps* a gradient was there after the backward pass, and none at the step."""
    yield steps >= least
    yield steps
    yield "its gradient is cleared between backward() and step(), so that no step learns anything"


@entry(
    "a weight between trained ones that is frozen, or that had a gradient and gets none any more in 20 logged steps, where most "
    "weights are trained",
    "our own: backbones and adapters freeze the beginning, or most of a network",
    "requires_grad_(True), if that is not meant; rules={'frozen': False} otherwise",
    needs=("rms:grad",),
    evidence=("frozen", "trained"),
    least=UNMOVED,
)
def frozen(weights: float, trained: float, *, most: float = 0.34) -> Judged:
    """Judge a number of frozen *weights* that run between *trained* ones; above a share of *most* they are meant."""
    yield (weights > 0) & (weights <= most * (weights + trained))
    yield weights
    yield "is frozen, between weights that are trained"


@entry(
    "frozen layers (Linear, Conv, recurrent) whose weights are as drawn: uniform up to their bounds, or normal of deviation 0.02, "
    f"or of one that three have in common, beside norms of 1 and biases of 0: more than {RANDOM_FEATURES} in a row, or fewer where "
    "the loss has not fallen by a fifth in 200 steps, before a trained one that takes what they return, or where norms alone are "
    "trained (warn), else a note; or tables of normal numbers, where nothing but biases is trained (bad)",
    "torch.nn.Linear.reset_parameters; transformers, initializer_range; random features that are meant are a layer or two",
    "where random features are not meant, load the trained weights (look at what load_state_dict() says of missing keys), or train "
    "these layers: requires_grad_(True)",
    needs=("rms:param",),
    note_until="few",
    evidence=("layers",),
    least=UNMOVED,
    brings=("loss_stuck",),
    about=("setup", "still"),
)
def frozen_raw(layers: float, *, few: float = RANDOM_FEATURES) -> Judged:
    """Judge how many frozen *layers* in a row were never trained; up to a *few* they may be random features."""
    yield layers >= 1
    yield layers
    yield "is frozen, and was never trained: it is exactly as initialised"


@entry(
    "the learning rate of all parameters is below zero, of an optimizer without maximize=True (bad), or that of a group (a note)",
    "torch.optim refuses such a rate, but does not look again when a schedule or a program sets one",
    "look at what computes the rate: a schedule that goes on beyond its last step, a difference with its sides exchanged",
    needs=("lr",),
    severity="bad",
    about=("setup", "large"),
)
def rate_negative(rate: float) -> Judged:
    """Judge a learning *rate*."""
    yield rate < 0
    yield rate
    yield f"lr {rate:g} is below zero: each step goes up the loss"


@entry(
    f"eps of an optimizer that divides by the size of gradients is above {EPS_MOST:g}; or above {EPS_SOME:g} and ten times "
    "their size, where steps are small and the loss has not fallen by a fifth in 90 of them",
    "torch.optim.Adam: eps is 1e-8; the largest usual one is 1, of RMSprop for Inception",
    "lower eps (1e-8 is usual): it stands beside the size of a gradient, and where it is more, steps are small",
    needs=("lr",),
    evidence=("eps", "elements"),
    brings=("update_small", "loss_stuck"),
    about=("setup", "small"),
)
def eps_large(eps: float, elements: float = 0.0, *, some: float = EPS_SOME, most: float = EPS_MOST) -> Judged:
    """Judge the *eps* of an optimizer that steps so many *elements*; up to *most* what it does decides."""
    yield eps > min(some, most)
    yield eps
    yield f"the optimizer's eps is {eps:g}: it divides each step"


@entry(
    "of an optimizer that divides by the size of gradients, in the type of its parameters (Adam, AdamW, NAdam, Adamax, RMSprop, "
    "Adagrad; not fused): eps is 0 in float16, the type of parameters that it steps",
    "IEEE 754: numbers of float16 end at 2**-24, about 6e-8, and half of that is rounded to 0",
    "keep the parameters that are stepped in float32 (torch.autocast for the forward pass), or in bfloat16; else give eps=1e-4",
    needs=("lr",),
    severity="bad",
    about=("setup", "large"),
)
def eps_lost(eps: float, *, most: float = EPS_LOST) -> Judged:
    """Judge the *eps* of an optimizer that computes in float16."""
    yield eps <= most
    yield eps
    yield f"eps {eps:g} is 0 in float16, the type of the parameters: a gradient of 0 gives 0 / 0, and a small one an infinite step"


@entry(
    "of an optimizer's betas the second is no larger than the square of the first",
    "Reddi, Kale and Kumar, On the convergence of Adam and beyond, 2018: the first has to be smaller than the root of the second",
    "give betas=(0.9, 0.999), as usual: the first for the mean of the gradients, the second for that of their squares",
    needs=("rms:update",),
    evidence=("second", "first"),
    least=1,
    brings=("update_large", "update_huge", "loss_rising", "loss_stuck", "weight_growth", "spike"),
    about=("setup", "large"),
)
def betas_odd(second: float, first: float) -> Judged:
    """Judge the *first* and the *second* of the betas of an optimizer that keeps averages of gradients and of their squares."""
    yield (first * first >= second) & (first > 0)
    yield second
    yield f"the optimizer's betas are ({first:g}, {second:g}): it divides by fewer gradients than it adds up"


@entry(
    f"each of {UNMOVED} logged steps was made by an optimizer that had made none before, and that keeps averages; or {UNMOVED} "
    "times in a row one is made anew behind 3 steps or fewer (behind more a note)",
    "torch.optim.Adam: what it divides by, and a momentum, are averages over the steps of one optimizer",
    "make the optimizer once, before the loop",
    needs=("rms:update",),
    least="least",
    about=("setup", "still"),
)
def optimizer_renewed(steps: float, *, least: float = UNMOVED) -> Judged:
    """Judge how many logged *steps*, one after the other, each had an optimizer of its own."""
    yield steps >= least
    yield steps
    yield f"each of {steps:.0f} logged steps was made by a new optimizer: its averages begin anew"


EACH_LAYER = "make each layer of a list anew, as [Layer() for _ in range(n)]; leave it where weights are to be shared"
"""What to do where a list holds one layer several times."""


@entry(
    f"two optimizers, of which one holds all parameters of the other and more, make {UNMOVED} logged steps in turns; or a layer "
    "stands at several places of one list",
    "torch.optim.Optimizer moves all parameters of its groups that have a gradient; [layer] * n is a list of one layer",
    "give each optimizer the parameters of its own part: a step for one part moves the other against its own loss",
    needs=("rms:update",),
    least="least",
    about=("setup", "large"),
)
def held_twice(steps: float, *, least: float = UNMOVED, layer: str = "") -> Judged:
    """Judge how many logged *steps* were made behind one of an optimizer that holds more, or fewer, of the same parameters.

    *layer*: one that stands at so many places of a list, in words.
    """
    yield (steps >= least) | bool(layer)
    yield steps
    if layer:
        yield f"{layer} are one layer, at {steps:.0f} places of a list: they share their weights"
    else:
        yield "two optimizers step in turns, and one holds all parameters of the other"


@entry(
    f"learning rate x weight decay is {DECAYED:g} or more, and the decay {DECAY:g}, of SGD, AdamW or another optimizer that "
    f"takes it off the weights; or of that size, or of {DIVIDED:g} where weights shrink, in one that adds it to gradients and "
    "divides by their size, as Adam does, where the loss does not fall",
    "Loshchilov and Hutter, Decoupled weight decay regularization, 2019, equation 9: usual products are 1e-3 or less",
    "lower the weight decay; the learning rate may be right",
    needs=("lr",),
    severity="bad",
    brings=(
        "update_huge",
        "update_large",
        "update_small",
        "weight_shrinking",
        "dead",
        "loss_stuck",
        "gradient_vanishing",
    ),
    about=("setup", "large"),
)
def decay_large(rate: float, decay: float, *, most: float = DECAYED, is_divided: bool = False) -> Judged:
    """Judge the *decay* of the weights at a learning *rate*; where the decay is a usual one, the rate is what is too large.

    *is_divided*: it is added to the gradients, and divided by their size, as Adam does: then the rate is no matter.
    """
    yield (decay >= DIVIDED) if is_divided else (decay >= DECAY) & (rate * decay >= most)
    yield rate * decay
    if is_divided:
        yield f"weight_decay {decay:g} is added to gradients, and outweighs them: steps of one size take the weights to 0"
        yield "warn"
        return
    yield f"weight_decay {decay:g} at lr {rate:g} takes {percent(rate * decay)} off the weights in each step"


@entry(
    f"a momentum that adds up {REMEMBERED:,.0f} steps or more, 1 / (1 - momentum), at a learning rate below 1 that comes to "
    f"{ADDED_UP:g} or more by that, and another finding shows that something has become too large since, or the loss has not come "
    "down to half of its first values in 200 steps",
    "Goh, Why momentum really works, 2017: steps that agree come to lr / (1 - momentum)",
    "lower the momentum (0.9 is usual), or the learning rate by as much as it adds up",
    needs=("lr",),
    evidence=("lr", "steps"),
    about=("setup", "large"),
)
def momentum_large(rate: float, steps: float, *, most: float = ADDED_UP, least: float = REMEMBERED) -> Judged:
    """Judge a momentum that adds up so many *steps*, at a learning *rate*."""
    yield (steps >= least) & (rate * steps >= most) & (rate < 1)
    yield rate * steps
    yield f"momentum {1 - 1 / steps:.6g} adds up {steps:,.0f} steps: lr {rate:g} comes to {short(rate * steps)}"


@entry(
    f"the learning rate is {GROWN_RATE:g} x that at which the loss was smallest or more, and another finding shows that steps, "
    "weights, outputs, gradients or the loss have become too large since",
    "Smith, Cyclical learning rates, 2017: a rate that grows is too large where the loss turns",
    "look at the schedule: a warm-up that does not end, a factor applied in each step; stay at the rate of the smallest loss",
    needs=("lr", "loss"),
    evidence=("lr", "best"),
    about=("setup", "large"),
)
def rate_grown(rate: float, best: float, *, factor: float = GROWN_RATE) -> Judged:
    """Judge a learning *rate*; *best* is the one at which the loss was smallest."""
    yield (best > 0) & (rate >= factor * best)
    yield rate
    yield f"the learning rate has grown to {rate:g}: the loss was smallest at {best:g}"


@entry(
    f"half of the losses or more, of 90 steps, came at a learning rate of {LOW_RATE:g} of the largest or less that has moved the "
    f"weights by less than {percent(WARMED)}, or where the loss has not fallen by a fifth; or nor has it in a warm-up of 200 steps "
    f"that moves them no further; or a training of 200 steps ends at a rate that has risen in all of it, and is below "
    f"{percent(WITHIN)} of the one that the optimizer was given (of 60 steps, {percent(WITHIN / 10)}), or its largest rate is the "
    "square of that one; or a discriminator's outputs for what it is given and for what a generator makes are 2 x their deviations "
    "apart in six looks, up to step 100 or later, and steps have moved it 30 x as far as all other models; or 0.01 of the norm "
    "of gradients or less is left at 0.9 of the steps, which move less than 0.0003 of the norm of all weights, and the loss has "
    "not fallen by a fifth in 90 of them; or the rate goes down to 0.01 of the largest and rises again, step by step, every 20 "
    "steps or fewer, four times in a row; or at the end all steps have moved the weights by less than 0.05 of their size, and the "
    "loss, which has not fallen by a fifth, falls at one pace; or ReduceLROnPlateau cuts the rate by half or more, and its mode is "
    "'max' where it is told a loss that falls by a tenth, or 'min' where it is told a metric that rises by one; or a parameter "
    "group, or one optimizer of several, has had 1e-06 at most and 0.001 of the rate of another, and steps move what it holds by "
    "next to nothing, or the loss has not fallen by a fifth",
    "our own: a schedule that is stepped too often, or for the wrong reason, leaves a rate that moves nothing",
    "look at the schedule: how often its step() is called, its length and unit (steps or epochs), the mode of ReduceLROnPlateau",
    needs=("lr", "loss"),
    evidence=("lr", "largest", "share", "moved", "given", "factor"),
    brings=("loss_stuck", "update_small"),
    about=("setup", "small"),
)
def rate_small(
    rate: float,
    largest: float,
    share: float,
    moved: float,
    given: float = math.nan,
    factor: float = math.nan,
    *,
    most: float = WARMED,
) -> Judged:
    """Judge a learning *rate*, and a *share* of losses that came at one far below the *largest*.

    *moved* is how far a warm-up has moved the weights together, of their size; NaN without one. *given* is the rate that the
    optimizer of a training was given whose last rate this is, the largest one; NaN before its end. *factor* is by what a schedule
    has multiplied that, where this is the rate itself.
    """
    has_fallen = (share >= 0.5) & (rate <= LOW_RATE * largest)
    is_within = rate < WITHIN * given
    is_squared: Any = np.greater(factor, 0)
    yield has_fallen | (moved < most) | is_within | is_squared
    yield rate
    yield (
        f"a schedule has multiplied the learning rate, {given:.3g}, by itself: its largest is {rate:.3g}"
        if is_squared
        else "the learning rate has been 0 in every step so far"
        if not largest
        else f"the learning rate is {rate:.3g}, where it was {largest:.3g}: next to nothing is learnt since"
        if has_fallen
        else f"the training ended within its warm-up: the learning rate is {rate:.3g}, {percent(rate / given)} of {given:.3g}"
        if is_within
        else f"the learning rate is {rate:.3g} and still grows: so far the weights have moved by {percent(moved)}"
    )
