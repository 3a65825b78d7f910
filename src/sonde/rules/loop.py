"""Rules about the training as a whole: its loss, its norms, its loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sonde.rules.finding import Judged, entry
from sonde.rules.window import Window
from sonde.words import percent, short

SPIKE, SPIKE_VALUES = 10.0, 24
"""Deviations from the median of the last 128 values, both of logarithms, and the fewest values. OLMo-core's SpikeScore has 6
standard deviations above the mean of 128 values; healthy trainings on small batches, with losses of all sizes, reach 8."""
SPIKE_ABOVE, SPIKE_FEW = 10.0, 8
"""A loss or a gradient norm so many times as large as any before is a spike, too, and the fewest values before. Megatron-LM's
monitor takes 10 x the largest of the first 100 values."""
BACK = 1.25  # x the first loss: one that learns from its own estimates, or against another one, comes back to it
RISING, RISING_EARLY, EARLY = 1.5, 3.0, 100
"""Median of the last 5 logged losses against the first ones; against them in the first steps, and how many these are: a codebook,
or an estimate of one's own, is learnt at the cost of the loss at first."""
RESTED = 15
"""Values whose median says where a noisy loss is: the smallest and the largest of many medians of five lie far off it by chance."""
LOST_AGAIN = 0.8
"""Share of the fall of a loss that is lost where it is that of a guess again."""
STUCK, STUCK_STEPS, STUCK_LONG = 0.02, 100, 1000
"""Fall of the loss, of its size at the beginning, and the fewest steps after which it is judged: at the end, and before it."""
STUCK_FAR, SLOW_RATE = 0.1, 1e-5
"""How far all steps together have moved the weights, of their size, while the learning rate still grows. And a learning rate at
which few steps are a slow training, as likely as not meant."""
STUCK_VALUES, STUCK_MANY = 12, 150
"""The fewest values of a loss that may be stuck, and how many are many."""
SMOOTH = 5
"""Values of a median of a loss."""
LOSS_VALUES = SMOOTH + 3
"""The fewest values of a loss that may rise: the first median is the beginning, and three of the last five must be above it."""
UNBOUNDED_VALUES = 30
"""The fewest values of a loss that tell whether its fall slows down."""
NEGATED_VALUES, NEGATED_FALL = 9, 3.0
"""The fewest values of a loss that begins at minus the cross-entropy of a guess, and its fall, of its first value, from which on so
few tell that it goes on."""
SCORES_END = -1.0
"""A loss that falls no lower is a score with a minus sign, as a share or a cosine, and may end there."""
FASTER = 1.5
"""Fall of a loss from the middle third to the last, of that from the first to the middle one. What falls by logarithms of a scale
falls evenly at most (1); the product of two weights that grow evenly has 2, that of four 6.8 (thirds of a run around 1/6, 1/2 and
5/6 of it)."""
FAR_OFF, FAR_EVALUATED = 10.0, 3
"""Validation loss, of the first training loss, in so many evaluations: what is evaluated is something else."""
NEAR_CHANCE = 0.1
"""Distance of a loss that falls no more from ln(outputs of the last layer), the cross-entropy of a guess, as a share of that."""
SUMMED, EXACTLY = 10.0, 1e-3
"""Gradient of a loss at the outputs, of that of a mean over samples; and how near a sum of squares comes to its own."""
ADDED_PASSES = 4.0
"""Backward passes of one step whose gradients are added up, as where batches are accumulated."""
SCALED = 256.0
"""A constant by which a loss is multiplied, as that of a GradScaler: weights of terms are smaller."""
OVERFIT = 1.15
METRIC_VALUES, METRIC_MEAN = 30, 10
"""The fewest values of a metric that falls, and how many of the first and of the last are compared."""
METRIC_FEW, METRIC_STEPS, METRIC_LONG = 5, 100, 60
"""The fewest values, and steps, of a metric that is 0 throughout; and the fewest values of one that does not rise."""
STANDS, FALLS, LEVEL = 0.75, 0.25, 1.1  # of the first value, and of the smallest validation loss, at which one stands still
HELD_OUT, BY_HEART = 0.4, 0.01  # of it, where one stays, and a training loss that knows its samples by heart
MISLED = 2.0  # times that of a guess, as no loss is of a network that knows nothing
BELOW, LIKE_GUESS, EVALUATED = 0.05, 0.3, 5  # of a guess, what a loss is below it by chance, and a first one off it; evaluations
"""Validation loss against its smallest value."""


@entry(
    f"a loss or norm {SPIKE:g} deviations above the median of 128 logged values (of logarithms), and as large as at the beginning; "
    f"or a loss or gradient norm {SPIKE_ABOVE:g} x as large as any before; a norm of gradients 10 x its median at least; a loss "
    f"that is not {3 * SPIKE_ABOVE:g} x as large as any before, where none of the next 3 is back; not in a step whose batch is "
    "half as large as others or less; a norm of gradients is a note where no loss behind it is 1.2 x as large",
    "OLMo-core, SpikeScore; Megatron-LM, 10 x the largest of the first 100",
    "look at the batch of this step, and at what has changed in the data from then on; {clip_grad_norm}, {lr}",
    needs=("loss|grad_norm",),
    evidence=("value", "median", "deviations", "largest"),
    least=SPIKE_FEW + 1,
    about=("loss", "jump"),
    tries=("lr", "clip_grad_norm"),
    symptom=True,
)
def spike(
    value: float,
    median: float,
    away: float,
    largest: float = math.inf,
    *,
    deviations: float = SPIKE,
    above: float = SPIKE_ABOVE,
) -> Judged:
    """Judge a *value*, so many deviations *away* from the *median* of the values before; *largest* is the largest of these."""
    yield (away >= deviations) | (value >= above * largest)
    yield value
    yield f"jumped to {short(value)}, {short(value / median)} x its median"


@entry(
    f"a metric with a name as accuracy, reward, return, score, F1, AUC or IoU, of {METRIC_VALUES} values or more, falls: the mean "
    f"of the last {METRIC_MEAN} is a quarter below that of the first, and five times what it scatters (3 of 5); or at the end of "
    f"{METRIC_STEPS} steps or more it has been 0 in {METRIC_FEW} values or more, and never anything else; or a reward, return or "
    f"share of successes of {METRIC_LONG} values or more is then no higher in the last third than at first and in the first third, "
    "but by chance; or an accuracy is 0.3 below the least that a cross-entropy leaves, 1 less its value / ln 2",
    "our own: what is named so is to rise; a wrong label has a probability below 1/2, and costs ln 2 or more",
    "the steps make it worse, whatever the loss says: look at the sign of the loss, of an advantage or of a reward, at which "
    "labels or rewards belong to which samples, and at how the metric is counted",
    needs=("loss|grad_norm",),
    window=Window(3, 5),
    brings=("gradient_zero",),
    about=("loss", "still"),
    unless=("in turns",),
)
def metric_falls(
    last: float, first: float, scatter: float, *, is_level: bool = False, share: float = 0.25, times: float = 5.0
) -> Judged:
    """Judge the mean of the *last* values of a metric, and of the *first* ones; by chance two such differ by *scatter*.

    *is_level*: these are those of the last third and of the first, and a rise of less than 2 times that, or of a tenth, is none.
    """
    falls = (first - last >= share * abs(first)) & (first - last >= times * scatter)
    stays = (last - first <= 2 * scatter) & (last - first <= 0.1 * abs(first))
    yield stays if is_level else falls
    yield last
    yield (
        f"does not rise: {short(first)} in the first third, {short(last)} in the last"
        if is_level
        else f"falls: {short(last)}, where it was {short(first)} at first"
    )


@entry(
    "logged steps with a backward pass and no forward pass in training mode: two, or all that there are (of a model that is "
    "frozen for the most part, and wherever the mode matters, a note)",
    "outputs and their gradients are recorded in training passes alone",
    "call model.train() after each evaluation; watch(evaluation=True) records evaluation passes too",
    severity="bad",
)
def no_training_forward(missed: int, logged: int) -> Judged:
    """Judge how many of the *logged* steps *missed* a forward pass in training mode, though there was one in evaluation mode."""
    yield missed >= np.clip(logged, 1, 2)
    yield missed
    yield f"{logged - missed:,} of {logged:,} logged steps had a training forward: is the model in eval()?"


@entry(
    f"the loss is {RISING:g} x as large as at the beginning ({RISING_EARLY:g} x in the first {EARLY} steps of more), or has lost "
    f"more than it had won ({BACK:g} x the beginning), or is that of a guess again (3 of 5 medians of 5 values; of a noisy one "
    f"also the median of {RESTED}); not one that has come halfway down again from its peak, in 40 values or more, and still falls; "
    "a note below 20 x the beginning where there are several optimizers, whose losses may be against each other; or what is pushed "
    "grows in each of the first three steps by the loss that is sent backward",
    "TheDeepChecker has 2 x the smallest loss, five times",
    "look in this order at the sign of the loss (and maximize=True), at what changed in the data, and at targets that the model "
    "makes itself (values of a next state, with a discount of 1 or more or beyond an end); {lr}, or {clip_grad_norm}",
    needs=("loss",),
    severity="bad",
    evidence=("loss", "first", "lowest", "", "", "", "", "", "", ""),
    window=Window(3, 5),
    least=LOSS_VALUES,
    about=("loss", "large"),
    unless=("in turns", "learnt"),
    tries=("lr", "clip_grad_norm"),
    symptom=True,
)
def loss_rising(
    loss: float,
    first: float,
    lowest: float,
    scatter: float = 0.0,
    chance: float = math.nan,
    about: float = 0.0,
    steps: float = math.inf,
    rested: float = 0.0,
    lately: float = math.inf,
    begun: float = 0.0,
    *,
    factor: float = RISING,
) -> Judged:
    """Judge the median *loss* of the last values; *first* is that of the first values, *lowest* the smallest median so far.

    *steps* is how many there were; infinite where no more come. *rested* is the smallest median of more values, *lately* that
    of the last ones, and *begun* that of the first ones: what is said of a noisy loss holds of these, too.

    *scatter* is the standard deviation of the logarithm of single values from one to the next. Logarithms of two medians of five
    values differ by 0.8 of that by chance, and the smallest of twenty medians lies 1.1 of that lower: less than 3 times as much as
    by chance is no rise, as where a loss near 0 goes up and down tenfold. *chance* is the cross-entropy of a guess: a loss that has
    come back near it has forgotten what was learnt, where one of values that are learnt from their own estimates goes up and down.
    *about* is the standard deviation of the first values: where they are around 0, they have no size to compare with.
    """
    by_chance, by_chance_from_lowest = (np.exp(np.minimum(each * scatter, 700.0)) for each in (2.4, 3.5))
    is_noisy = by_chance > factor
    now: Any = np.where(is_noisy, np.fmin(loss, lately), loss)
    begins: Any = np.where(is_noisy, np.fmax(begun, first), first)
    far = now > np.maximum(2.0, by_chance_from_lowest) * lowest
    guesses_again = (abs(loss - chance) < NEAR_CHANCE * chance) & (now > LOST_AGAIN * first + (1 - LOST_AGAIN) * lowest)
    has_won: Any = np.where(is_noisy, np.maximum(lowest, rested), lowest) < 0.7 * first
    came_back = has_won & ((now >= BACK * first) | guesses_again) & far
    says_something = (first > 0) & (lowest >= 0)  # not a loss around 0, as that of a policy
    has_size = (first > about) | (now > first + 3 * about)
    least = np.where(np.less(steps, EARLY), max(factor, RISING_EARLY), factor)
    is_larger = has_size & (now > np.maximum(least, by_chance) * begins)
    yield says_something & (is_larger | came_back)
    yield loss
    yield f"the loss rises: {short(loss)}, where it was {short(first)} at first and {short(lowest)} at best"


@entry(
    "a loss that was never above zero falls below ten times its first value, or begins at minus ln(outputs) or ln 2 and falls by "
    "half of that (twice, in fewer than 30 values); one that was, below minus a hundred times (ten where an output or a weight "
    f"has grown too large); all below -1, and {FASTER:g} x as fast in the last third as in the middle one (from minus ln(outputs): "
    "no slower); or in the first ten training passes the gradient of a softmax is above zero at one class alone: it is maximised; "
    "or a logarithm is added by whose sign it shrinks with the square of what its exponential scales, or a squared error or a "
    "divergence is sent backward below zero, or an overlap of outputs and masks above it, or a cosine of outputs and targets that "
    "each step makes small, in the first three passes, or, as a cross-entropy, above zero and the optimizer has maximize=True",
    "our own: outputs grow by a product of weights, each of which grows evenly at most; the loss of a density falls by logarithms "
    "of a scale, evenly at most, and then slower; a score ends at -1",
    "look at the sign of the loss, at targets beyond its range (from 0 to 1 in a binary cross-entropy), and whether it takes "
    "logarithms",
    needs=("loss",),
    evidence=("loss", "middle", "early", "first", "", "", "highest", "", ""),
    window=Window(3, 5),
    least=UNBOUNDED_VALUES + 2,
    about=("setup", "large"),
    unless=("in turns",),
)
def loss_unbounded(
    late: float,
    middle: float,
    early: float,
    first: float,
    scatter: float = 0.0,
    chance: float = math.nan,
    highest: float = 0.0,
    now: float = math.nan,
    count: float = math.inf,
    *,
    factor: float = 10.0,
    faster: float = FASTER,
    grows: bool = False,
    is_maximised: bool = False,
) -> Judged:
    """Judge the median loss of the last third (*late*), of the *middle* one and of the first (*early*).

    *first* is the median of the first values, and *scatter* their standard deviation: a loss that begins around 0, as that of a
    policy or of a critic, has the size of its scatter. One that begins at minus *chance*, the cross-entropy of a guess, is a
    cross-entropy with the wrong sign: it need not fall that far, and may do so at last, *now*; among few, a *count* of values, it
    must have fallen further. *highest* is the largest value:
    where a loss crosses 0, its first value may have been near 0 by chance, and says less of its size, unless another finding says
    that an output or a weight *grows* too large: a part of such a loss has the wrong sign. *is_maximised*: its gradient says so.
    """
    is_below, size = np.less_equal(highest, 0), np.maximum(abs(first), 3 * scatter)
    is_negated = is_below & (abs(first + chance) < NEAR_CHANCE * chance) & (abs(first) > 3 * scatter)
    far = (late < -np.where(is_below | grows, factor, factor**2) * size) & (late < 2 * first)
    speeds_up = far & (middle - late >= faster * (early - middle))
    lowest: Any = np.fmin(late, np.where(is_negated, now, late))
    enough = np.where(np.less(count, UNBOUNDED_VALUES), NEGATED_FALL, 1.5)
    goes_on = is_negated & (lowest < enough * first) & (middle - lowest >= early - middle)
    yield (((speeds_up & ~np.less(count, UNBOUNDED_VALUES)) | goes_on) & (lowest < SCORES_END) & (early > middle)) | is_maximised
    yield lowest
    if is_maximised:
        yield "the loss is a cross-entropy that is maximised: each step makes the label of each sample less likely"
        return
    yield f"the loss falls without bound: from {short(first)} to {short(float(lowest))}"


_LOOK_WHY = (
    "nothing recorded says why: look in this order at the data (labels of other samples, a mask the wrong way round, inputs "
    "that are alike), at activations, at parts without gradient, and at the loss (a sign, a softmax, a broadcast, a term that is "
    "missing)"
)
"""Where to look where no rule names a cause."""


@entry(
    f"after {STUCK_LONG:,} steps, or {STUCK_STEPS} or more at the end (counted from the end of a warm-up, until all steps have "
    f"moved the weights by {percent(STUCK_FAR)}; at a learning rate of {SLOW_RATE:g} or less a note, but of a guess at half of it) "
    f"the loss has fallen by less than {percent(STUCK)} ({percent(2.5 * STUCK)}, no more than by chance, of {STUCK_MANY} values or "
    f"more), since the first values and since the first third, or stays at ln(outputs), as a guess, or is one number while steps "
    f"move the weights, or outputs explain 2 % or less of what the targets of a squared error vary, or fit the labels of other "
    f"samples as well as their own (but for 2 % of the entropy of the labels, in six looks together), at the end or after 1,000 "
    f"steps; not that of a network that had been trained before, far below a guess",
    "smdebug, LossNotDecreasing; TheDeepChecker has 5 % of the loss in five checks",
    f"{_LOOK_WHY}; then at how far steps move the weights (a thousandth is usual)",
    needs=("loss",),
    least=STUCK_VALUES,
    about=("loss", "still"),
    unless=("in turns", "low"),
    symptom=True,
)
def loss_stuck(
    late: float,
    middle: float,
    early: float,
    error: float,
    chance: float,
    first: float = math.nan,
    lowest: float = math.nan,
    count: float = 0.0,
    *,
    fall: float = STUCK,
    near: float = NEAR_CHANCE,
) -> Judged:
    """Judge the mean loss of the last third (*late*), of the *middle* one and of the first (*early*).

    *error* is that of the difference of two thirds; *chance* is the cross-entropy of a guess, NaN if that is not known. A loss that
    is far below that of a guess and does not fall is that of a network that had been trained before; one that is below it by more
    than *fall* has won something, if only how often each class comes, and may rest there. *first* is what the first
    values are at least, as far as their scatter says: a loss below that has fallen, if only at the very beginning of a long run.
    *lowest* is the smallest median of some values: a loss that has been far below that of a guess did not stay there. *count* is
    how many values there are: of many, whose scatter alone explains that much, the fall may be 2.5 x as large.
    """
    falls_by_chance = np.greater_equal(count, STUCK_MANY) & (early - late < 2 * error)
    most = np.where(falls_by_chance, 2.5 * fall, fall) * early
    has_not_fallen = (abs(early - late) + 2 * error < most) & ~np.less(late, (1 - near) * chance)
    has_not_fallen &= ~np.less(late, (1 - fall) * first)
    is_a_guess = (late - chance < near * chance) & (late > (1 - fall) * chance) & ~np.less(lowest, (1 - near) * chance)
    guesses = (middle - late + error < fall * late) & is_a_guess
    yield (early > 0) & (has_not_fallen | guesses)
    yield late / early
    fell = early - late >= fall * early and not np.isnan(chance)
    what = f"the loss stays at that of a guess, {short(chance)}" if fell else "the loss does not fall"
    yield f"{what}: {early:.4g} in the first third, {late:.4g} in the last"


@entry(
    f"the first loss and its gradient at the outputs are those of a sum: {SUMMED:g} x the cross-entropy of a guess and its "
    "gradient, or what a sum of squares or of binary cross-entropies has; the first steps are a multiple of the gradients; "
    "the learning rate times that is 0.5 or more, and another finding shows that something becomes too large (within 20 steps, "
    f"where another cause is found); or the loss that is sent backward is {SCALED:g} x the one that is pushed, and nothing has "
    f"divided the gradients of the steps by that; or each step adds up {ADDED_PASSES:g} backward passes or more, whose losses are "
    "those that are pushed, and that many times the learning rate is 0.5 or more, where the rate itself is not",
    "torch.nn.functional.cross_entropy: reduction='sum' has as many times the gradient of the mean as there are samples",
    "average the loss over samples (reduction='mean'), or look for what multiplies it; else {lr}",
    needs=("loss", "rms:output", "rms:grad_output"),
    evidence=("loss", "gradient", "", "guess", "", "scale", "passes"),
    about=("setup", "large"),
    tries=("lr",),
)
def loss_summed(
    loss: float,
    gradient: float,
    count: float,
    guess: float = math.nan,
    units: float = math.nan,
    scale: float = math.nan,
    passes: float = math.nan,
    *,
    factor: float = SUMMED,
    most: float = SCALED,
    several: float = ADDED_PASSES,
) -> Judged:
    """Judge the first *loss* and the size of its *gradient* at a *count* of outputs, of so many *units* for each sample.

    Near the *guess* the mean of cross-entropies has a gradient of size sqrt(units - 1) / count. A sum of squares has one of twice
    the root of loss / count, half of one the root of twice that, and a sum of binary cross-entropies one half at ln 2 for each.
    *scale* is how many times the loss that the loop gives the one was that was sent backward: *most* is more than any weight.
    So many *passes* were added up in one step, of losses that were not divided.
    """
    times: Any = loss / guess
    of_gradient = count * gradient / np.sqrt(np.maximum(units - 1, 1.0))
    is_entropy = (of_gradient > 0.5 * times) & (of_gradient < 2 * times)
    share = count * gradient * gradient / np.maximum(4 * loss, 1e-300)
    is_squares = np.minimum(abs(share - 1), abs(2 * share - 1)) < EXACTLY
    is_coins = (abs(loss / count - math.log(2)) < NEAR_CHANCE * math.log(2)) & (abs(gradient - 0.5) < NEAR_CHANCE / 2)
    times = np.where(is_entropy, times, np.where(is_squares | is_coins, count, 0.0))
    is_scaled: Any = np.greater_equal(scale, most)
    is_added: Any = np.greater_equal(passes, several)
    yield (times >= factor) | is_scaled | is_added
    value: Any = np.where(is_scaled, scale, np.where(is_added, passes, times))
    yield value
    if is_scaled:
        yield f"the loss that is sent backward is {short(scale)} x the one that is logged, and steps are made of gradients as large"
        return
    if is_added:
        yield f"each step adds up the gradients of {passes:.0f} backward passes, and their losses are not divided by that"
        return
    yield f"the loss is {short(times)} x a mean over samples, as its gradient at the outputs shows: it is summed, or multiplied"


@entry(
    "the targets of a cross-entropy, 0 or 1 for each class, add up to more than 1 for a sample, in the first three passes; or "
    "those of a binary cross-entropy of one softmax to 1.5 or more, on average of ten",
    "torch.nn.functional.cross_entropy takes probabilities, whose sum is 1",
    "use binary_cross_entropy_with_logits, which judges each label by itself; or divide the targets by their sum",
    needs=("rms:output",),
    evidence=("labels",),
    brings=("loss_stuck",),
    about=("setup", "still"),
)
def labels_several(labels: float) -> Judged:
    """Judge how many *labels* a sample has on average, as its targets say."""
    yield labels > 0
    yield labels
    yield f"each sample has {short(labels)} labels on average, and one softmax for all"


@entry(
    f"the validation loss is {OVERFIT:g} x its smallest value in 2 of 3 evaluations, and the training loss has fallen since; or it "
    f"was never {percent(BELOW)} below the cross-entropy of a guess, from {EVALUATED} evaluations on, and the training loss is "
    f"(nor below {MISLED:g} x that, from {FAR_EVALUATED} on, and the training loss comes to half of it); or "
    f"it stays at {STANDS:g} of the first value or more, and so of the training loss at first, while that falls to {FALLS:g}, or "
    f"at {HELD_OUT:g}, while that falls to {BY_HEART:g}; or it is {FAR_OFF:g} x the first training loss in each of three or more, "
    "and the training loss falls",
    "smdebug, Overfit, has 0.1 (validation - training) / training",
    "stop at the smallest validation loss; more data, weight decay, dropout; look at what differs in evaluation (running "
    "statistics)",
    needs=("val_loss", "loss"),
    evidence=("held_out", "lowest", "", "loss", "then", "", "", ""),
    window=Window(2, 3),
)
def overfitting(
    held_out: float,
    lowest: float,
    first: float,
    loss: float,
    then: float,
    guess: float = math.nan,
    count: float = 0.0,
    begun: float = math.nan,
    *,
    factor: float = OVERFIT,
) -> Judged:
    """Judge the validation loss *held_out*, its *lowest* and the *first* value; the training *loss* was *then* at the lowest.

    A rise of less than a twentieth of the first value, that of the training if it is larger, is none. *guess* is the cross-entropy
    of a guess, near which the first value is, and *count* how often was evaluated. Where it stays where it began, and the
    loss falls far, it is of something else, as of weights that are not trained; or where it is far above what the training has
    *begun* at.
    """
    begins = (count >= EVALUATED) & (abs(first - guess) <= LIKE_GUESS * guess)
    is_guess = begins & (lowest > (1 - BELOW) * guess) & (held_out > guess) & (loss < (1 - BELOW) * guess)
    is_guess |= (
        (count >= FAR_EVALUATED)
        & (lowest >= MISLED * guess)
        & (loss <= guess / MISLED)
        & (abs(begun - guess) <= LIKE_GUESS * guess)
    )
    rises = (lowest > 0) & (held_out >= np.maximum(factor * lowest, lowest + 0.05 * first))
    is_level = (count >= EVALUATED) & (held_out <= LEVEL * lowest) & (first > 0)
    is_still = is_level & (lowest >= STANDS * first) & (loss <= FALLS * first)
    by_heart = is_level & (lowest >= HELD_OUT * first) & (loss <= BY_HEART * first)
    is_far = (count >= FAR_EVALUATED) & (lowest >= FAR_OFF * begun) & (loss < begun) & (begun > 0)
    yield (rises & (held_out > loss) & (loss <= then)) | is_guess | is_still | by_heart | is_far
    rise = held_out / (lowest + (lowest == 0))
    yield rise
    times = short(rise)
    if is_far:
        yield f"the validation loss is {short(held_out)}, {short(held_out / loss)} x the training loss"
    elif is_still and not is_guess:
        yield f"the validation loss stays at {short(held_out)}, where it began, and the loss falls to {short(loss)}"
    elif by_heart and not is_guess and not rises:
        yield f"overfitting: the validation loss stays at {short(held_out)}, and the loss falls to {short(loss)}"
    elif is_guess:
        times = f"{short(float(lowest / guess))} x " if lowest >= MISLED * guess else ""
        never = f"and was never below {times}that of a guess, {short(guess)}"
        yield f"the validation loss is {short(held_out)}, {never}; the loss is {short(loss)}"
    else:
        yield f"overfitting: the validation loss is {short(held_out)}, {times} x its smallest, the loss {short(loss)}"
