"""Rules about training passes: what outputs depend on, which targets they are given, and whether they tell samples apart."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sonde.rules.finding import Judged, entry
from sonde.words import percent, short

ATTENTIONS = 3
"""In a row, that make positions alike where nothing leads around them; a network of fewer may learn all the same."""


@entry(
    "the labels of a cross-entropy, of 256 samples or more in 10 training passes or more, are one class in all of them, or one in "
    "each of most, or one distribution over classes; or in the first three passes all labels of pairs are one partner, or all that "
    "count are one class where ignore_index leaves out another one, or 0.8 of each target is label smoothing; or all that the loss "
    "reads are one class in ten passes, nine tenths of the samples or fewer in each; or 90 % of them are "
    "one class, and of the others, 8 or more in the last three looks, the "
    "model returns another class for next to none",
    "the gradient of a cross-entropy at the outputs is the probabilities less the labels: below zero at the label alone",
    "look at how labels are made and read: an index, a mask, a threshold, a column; shuffle data that are sorted by class",
    needs=("rms:output",),
    evidence=("samples", "passes", "classes"),
    brings=(
        "overfitting",
        "loss_stuck",
        "loss_rising",
        "gradient_zero",
        "outputs_alike",
        "output_growth",
        "spike",
        "bounded",
        "dead",
    ),
    about=("setup", "lost"),
)
def labels_alike(
    samples: float, passes: float, classes: float, *, least: float = 256.0, often: float = 10.0, is_each: bool = True
) -> Judged:
    """Judge how many *samples* were seen in so many *passes*, each or most of one class; all together there are *classes*."""
    yield (samples >= least) & (passes >= often)
    yield samples
    if classes == 1:
        yield f"all labels of the first {passes:,.0f} training passes, {samples:,.0f} samples, are one class"
    else:
        which = "each" if is_each else "most"
        yield f"all labels of a batch are one class, in {which} of {passes:,.0f} training passes, and {classes:,.0f} classes in all"


@entry(
    "half of the labels of a model of tokens or more are one token at the ends of their rows; a fifth, where the input is padded",
    "torch.nn.functional.cross_entropy: ignore_index (-100); transformers: labels of padding are to be -100",
    "set the labels of padding to -100 (or give its token as ignore_index)",
    needs=("rms:output",),
    brings=("overfitting", "loss_stuck", "spike"),
    about=("setup", "lost"),
)
def padding_counted(share: float, *, most: float = 0.5, at_padding: float = 0.2, is_given: bool = False) -> Judged:
    """Judge the *share* of the labels that stand at the end of their row behind others, and are the same token in all rows.

    *is_given*: where the input is padded, too.
    """
    yield share >= (at_padding if is_given else most)
    yield share
    yield f"{percent(share)} of the labels that count are one token at the ends of rows: padding"


@entry(
    "outputs depend on the padding of a sample, and not a thousandth as much on all else of it, in two training passes of two; or "
    "on a place of padding ten times as much as on a place of a token or more, three times in a model with attention; or 0.99 of "
    "the weights of an attention are at padding, in samples that have some, or as large a share as that of the places, as no mask "
    "leaves it out; or the last step of a recurrent layer is read, which is padding",
    "a mask the wrong way round: transformers takes 1 for what is read, torch's key_padding_mask True for what is left out",
    "turn the mask round; take the last element of a sequence before its padding (pack_padded_sequence, lengths), not that of the "
    "row",
    needs=("rms:output",),
    severity="bad",
    brings=("loss_stuck", "overfitting"),
    about=("setup", "lost"),
)
def padding_alone(real: float, padding: float, *, least: float = 1e-3) -> Judged:
    """Judge how much outputs depend on the *real* tokens of a sample, and on its *padding*."""
    yield (real <= least * padding) & (padding > 0)
    yield padding
    hardly = "not" if real <= 0 else "hardly"
    yield f"what the model returns depends on the padding of a sample, and {hardly} on its tokens"


@entry(
    "the labels are the next tokens of the input, or the targets of a squared error its next values, and outputs depend on these",
    "Karpathy, A recipe for training neural networks, 2019: use backprop to chart dependencies",
    "mask the attention to later positions, pad convolutions on the left alone, normalise no position by later ones, and let no "
    "recurrent layer run backwards",
    needs=("rms:output",),
    severity="bad",
    brings=("overfitting",),
    about=("setup", "lost"),
)
def future_seen(share: float, past: float, *, least: float = 1e-6, what: str = "tokens") -> Judged:
    """Judge which *share* of the gradient of an output comes to later tokens (*what* there is), and how much to the *past* ones."""
    yield share > least
    yield share
    alone = "" if past > 0 else ", and none of those before"
    of = f" ({percent(share)} of its gradient)" if share >= 0.01 or alone else ""
    yield f"the model sees what it is to predict: an output depends on later {what}{of}{alone}"


@entry(
    "the labels are tokens of the input at the same place or before it, which the model sees, or two places or more behind it; or "
    "the targets of a squared error are the values of a series, which a causal model sees; or 70 % of the labels or more are the "
    "tokens at their place, and the others are hidden by one token there",
    "transformers shifts labels inside of its models; a loop of one's own gives inputs [:, :-1] and targets [:, 1:]",
    "shift the targets once, by one place, in the model or outside of it; of a model that fills gaps, give it the masked tokens",
    needs=("rms:output",),
    brings=("overfitting",),
    about=("setup", "lost"),
)
def target_shifted(ahead: float, *, is_causal: bool = True, is_picked: bool = False) -> Judged:
    """Judge how many places *ahead* of its output a label stands in the input.

    *is_causal*: outputs see no later tokens; *is_picked*: labels count at some places here and there.
    """
    yield (ahead < 1) | (ahead > 1)
    yield ahead
    if ahead == 0 and is_picked and not is_causal:
        yield "the targets, at chosen places, are the very tokens that go in: these are not masked, and the model copies them"
    elif ahead < 1:
        where = "the inputs themselves" if ahead == 0 else "tokens that stand before"
        yield f"the targets are {where}, which the model sees: it learns to copy"
    else:
        yield f"the targets are the tokens {ahead:.0f} places ahead: shifted more than once"
    yield "warn" if is_causal or is_picked else "note"


@entry(
    f"an output goes through {ATTENTIONS} attentions or more in a row, and no way leads around any of them, as that of a residual "
    "connection; and the loss has not fallen by a fifth in 200 steps",
    "Dong et al., Attention is not all you need, 2021: attention alone makes all positions alike, the more the deeper it is",
    "add what goes into each attention, and into each part behind it, to what it returns: x = x + attention(norm(x))",
    needs=("rms:output",),
    evidence=("bare",),
    brings=("outputs_alike", "loss_stuck", "gradient_vanishing", "rank_collapse"),
    about=("setup", "lost"),
)
def residual_missing(attentions: float, *, least: float = ATTENTIONS) -> Judged:
    """Judge how many *attentions* stand in a row that nothing leads around."""
    yield attentions >= least
    yield attentions
    yield f"no addition leads around any of the {attentions:.0f} attentions in a row: each averages what the one before has made"


@entry(
    "outputs of different samples have come to be alike: they differ by 0.03 of their size or less (0.001 of outputs with places), "
    "a tenth of what they did at first, in the last three of six training passes or more, though inputs differ",
    "Chen and He, Exploring simple Siamese representation learning, 2021, section 4.1: a collapse shows in their deviation",
    "look at what holds outputs apart: negatives, a stop-gradient, a term for their variance; at a decay or step that is too "
    "large, and whether labels belong to their samples",
    needs=("rms:output",),
    brings=("rank_collapse", "loss_stuck"),
    about=("output", "lost"),
    symptom=True,
)
def outputs_alike(apart: float, size: float, first: float, *, spread: float = 0.03, share: float = 0.1) -> Judged:
    """Judge how far outputs of different samples are *apart* against their *size*, and against how far they were at *first*."""
    yield (first > 0) & (size > 0) & (apart <= spread * size) & (apart <= share * first)
    yield apart / size
    yield f"what the model returns has come to be the same for all samples: outputs differ by {short(apart / size)} of their size"


@entry(
    "5 % of the targets of an error or more are beyond what the activation that makes the outputs can return, or all push outputs "
    "one way in 16 passes, and these have come to the end of their range, or those of a binary cross-entropy are beyond 0 to 1, "
    "or 5 % of its labels or more off by 0.2 from all probabilities that the activation leaves it, in six passes or more; or 5 % "
    "of its labels have logits that are cut at 0, in 18 passes; or those of a squared error are off by half of their deviation "
    "from the mean 0 and deviation 1 that outputs always have; or in the first three passes a cross-entropy of masked scores is "
    "300 x that of a guess, or takes cosines times 0.1 or less, or what a relu has made, or labels of ctc_loss are its blank, or "
    "single ones the class that ignore_index names; or 10 % of what a critic is given in six passes is beyond what the activation "
    "that a generator ends with can return",
    "the range of the activation: sigmoid and softmax 0 to 1, tanh -1 to 1, ReLU and softplus 0 and more, clamp as it is given",
    "leave the last activation out, or scale the targets into its range",
    needs=("rms:output",),
    brings=(
        "bounded",
        "loss_stuck",
        "dead",
        "flat",
        "loss_unbounded",
        "overfitting",
        "input_unused",
        "gradient_zero",
        "outputs_alike",
        "all_zero",
        "target_large",
        "gradient_growth",
        "loss_rising",
    ),
    about=("setup", "lost"),
)
def target_beyond(
    share: float,
    least: float,
    largest: float,
    *,
    most: float = 0.05,
    what: str = "activation",
    side: float = 0.0,
    is_chance: bool = False,
) -> Judged:
    """Judge the *share* of the targets, from the *least* to the *largest*, that outputs cannot reach; *what* makes them.

    *side*: whether all targets are above the outputs (1) or below (-1), as gradients say. *is_chance*: the targets are labels,
    and the others the ends of the probabilities that the activation leaves a cross-entropy.
    """
    yield (share >= most) & ((side != 0) | np.not_equal(largest, 0))
    yield share
    if is_chance:
        ends = f"all probabilities are from {short(least)} to {short(largest)}"
        yield f"what the last {what} returns goes into a cross-entropy: {ends}, which {percent(share)} of the labels are far beyond"
    elif side:
        where = "above" if side > 0 else "below"
        yield f"all targets, in all passes, are {where} what the last {what} returns"
    elif what == "binary cross-entropy":
        which = short(largest) if short(least) == short(largest) else f"{short(least)} to {short(largest)}"
        yield f"{percent(share)} of the targets of a binary cross-entropy are {which}, and not 0 or 1"
    else:
        yield f"{percent(share)} of the targets, {short(least)} to {short(largest)}, are beyond what the last {what} can return"


@entry(
    "of the targets of a squared error, or of what is given, one number is ten deviations away from all others or more, the same "
    "in six training passes or more, and in half of all",
    "our own; pandas: missing values are NaN; a code as -999 is learnt as a value",
    "leave out what is missing (a mask, rows without it), or fill in the mean of the others, and add a column that says so",
    needs=("rms:output",),
    brings=("input_large", "output_large", "target_large", "begins_large", "gradient_growth", "spike", "loss_stuck"),
    about=("setup", "large"),
)
def sentinel(share: float, code: float, nearest: float, *, what: str = "inputs") -> Judged:
    """Judge the *share* of numbers that are one *code*, and the *nearest* of all others."""
    yield share > 0
    yield code
    yield f"{percent(share)} of {what} are {short(code)}, and no other is beyond {short(nearest)}: a code for what is missing"


@entry(
    "all columns of an output, three or more, have one target in each sample, an integer that is less than their number, in six "
    "training passes or more",
    "torch.nn.functional.cross_entropy takes class indices; a squared error compares each column with a number",
    "use cross_entropy for classes; for a number return one column",
    needs=("rms:output",),
    brings=("outputs_alike", "loss_stuck"),
    about=("setup", "lost"),
)
def class_regressed(passes: float, are_all: float = 1.0, *, often: float = 6.0) -> Judged:
    """Judge so many *passes*, if of all of them (*are_all*) a class index is the target of each column."""
    yield (passes >= often) & (are_all == 1)
    yield passes
    yield "a squared error compares all columns of the output with the index of a class: each learns the same number"


@entry(
    "in ten training passes or more the gradient at outputs that vary is a multiple of these outputs, of eight elements or more",
    "our own: of a squared error the gradient is the output less its target, which then is zero, or a part of the output",
    "look at what the loss compares: targets that are all zero, a prediction in the place of its target",
    needs=("rms:output",),
    brings=("outputs_alike", "gradient_vanishing", "gradient_zero", "weight_shrinking", "update_small", "output_small"),
    about=("setup", "lost"),
)
def target_own(passes: float, *, often: float = 10.0) -> Judged:
    """Judge so many *passes* whose gradient is a multiple of the outputs."""
    yield passes >= often
    yield passes
    yield "the gradient at the outputs is a multiple of the outputs: their targets are zero, or made of them"


@entry(
    "the gradient at one output, or in one pass of a step, is 3,000 x that at another or more, in the first six training passes or "
    "more, or that at another is zero in 18 and more; or that at one column of the output is, or at all but one of three or more, "
    "or at all places of each sample but the first two or more, half of them at most; or a log-determinant of a flow has none "
    "in 18; or errors weighed by 50 or more make 100 x as much of the loss as a cross-entropy, in three passes; or squares of "
    "weights, times 0.05 or more, make half of it",
    "Kendall et al., Multi-task learning using uncertainty to weigh losses, 2018: the weights of terms; the factor is our own",
    "weigh the terms of the loss so that their gradients are of one size: look at a weight, a sum for a mean, units of a target",
    needs=("rms:output",),
    brings=("gradient_zero",),
    about=("setup", "large"),
)
def terms_uneven(times: float, *, most: float = 3e3, one: str = "one output", other: str = "another") -> Judged:
    """Judge how many *times* as large the gradient at *one* output is as that at the *other*."""
    yield times >= most
    yield times
    if times == math.inf:
        yield f"the gradient at {other} is zero, and that at {one} is not: a term of the loss weighs nothing"
    else:
        yield f"the gradient at {one} is {short(times)} x that at {other}: the loss hears one term alone"


@entry(
    "a further output, or that of a part, has shrunk to 0.15 of its first size or less, in the last two of 16 training passes or "
    "more, and most of its gradient is a multiple of it, as that of a penalty (or to half of a size of 1 or less, and next to all "
    "of its gradient is, or that of a divergence, in each pass; or two further outputs whose first gradient is a divergence's have "
    "come to a size of 0.1 or less after 100 steps); or 90 % of the gradient at the outputs, of the first ten passes "
    "(by their median), is that of the entropy of their softmax; or the loss adds an entropy to a policy gradient, and so lowers "
    "it, or subtracts one of a weight of 0.5, and 2 x the size of the advantages, or more",
    "Bowman et al., Generating sentences from a continuous space, 2016: a posterior that is the prior; the numbers are our own",
    "lower the weight of the penalty (a KL term, an entropy), or let it grow; look whether anything else reads this output, or is "
    "cut off it by a detach(), and whether its targets are zero throughout",
    needs=("rms:output",),
    brings=("outputs_alike", "output_small", "gradient_vanishing"),
    about=("setup", "large"),
)
def penalty_alone(
    size: float,
    across: float,
    weight: float = 0.0,
    *,
    least: float = 0.15,
    most: float = 0.7,
    half: float = 0.5,
    alone: float = 0.02,
    at_most: float = 1.0,
    what: str = "",
    is_entropy: bool = False,
) -> Judged:
    """Judge the *size* of an output, of its first, and which share of its gradient is no multiple of it (*across*).

    What is none, nor that of a divergence, is *at_most* so large in any pass. *is_entropy*: or is not that of the entropy of a
    softmax of it, whose *weight* is below 0 where the loss lowers it.
    """
    is_alone = (size <= half) & (at_most <= alone)
    yield ((size <= least) & (across <= most)) | is_alone
    yield size
    if is_entropy and weight:
        how = "lowers" if weight < 0 else "raises"
        yield f"the loss {how} the entropy of the outputs, at a weight of {short(abs(weight))}: other terms are drowned by it"
        return
    if is_entropy:
        yield "all that trains the outputs is the entropy of their softmax: other terms do not reach them, or weigh nothing"
        return
    shrunk = f"the output {what.strip('.[]')} has shrunk to {short(size)} of its first size"
    yield (
        f"{shrunk}: all that trains it is a penalty on it, or targets that are zero"
        if is_alone
        else f"{shrunk}: a penalty on it outweighs all else"
    )


@entry(
    "a column of the input, or what it holds at its last place, is the target of a squared error (or of one number a line of it), "
    "or the same for all samples of a class, and another for other classes, or nearly so (0.005 of how it varies is within "
    "classes, these are 8 deviations apart, and a fifth of any other column or more is within them), in all of six training passes "
    "or more",
    "Kaufman et al., Leakage in data mining, 2012",
    "leave that column out, or take a later target, if it is not known where the model is used",
    needs=("rms:output",),
    brings=("overfitting",),
    about=("setup", "lost"),
)
def label_seen(
    within: float,
    column: float,
    second: float = 0.0,
    between: float = 0.0,
    *,
    least: float = 1e-6,
    nearly: float = 0.005,
    others: float = 0.2,
    apart: float = 8.0,
    is_number: bool = False,
    is_scaled: bool = False,
    is_last: bool = False,
) -> Judged:
    """Judge how much a *column* varies *within* classes, of how it varies at all, and the *second* of all columns.

    *between*: by how many deviations within classes these are apart; *is_number*: the column is the target itself; *is_scaled*: or
    that times a number, and another number; *is_last*: at the last place.
    """
    yield (within <= least) | ((within <= nearly) & (second >= others) & (between >= apart))
    yield column
    where = f"the last place of the input (its column {column:.0f})" if is_last else f"column {column:.0f} of the input"
    if is_number:
        yield f"{where} is the target" + ", but for a factor and an offset" * is_scaled
    elif within <= least:
        yield f"{where} tells the label: it is the same for all samples of a class"
    else:
        of_others = f"; of any other {short(second)} or more" if np.isfinite(second) else ""
        yield f"{where} tells the label: {short(within)} of how it varies is within classes{of_others}"


@entry(
    "the targets of a squared error are what was given of other samples of the batch, each of one, in six training passes or more; "
    "or it compares the largest output of each sample; at the end, where outputs explain nothing of targets that are like drawn "
    "numbers, a note, but where what is given, of their shape, has nothing of them and the loss does not fall",
    "our own: the gradient of a squared error is the output less its target",
    "look at what brings inputs and targets together: two shuffles, a roll, a sort, an index, a loader of each",
    needs=("rms:output",),
    brings=("outputs_alike", "loss_stuck", "overfitting"),
    about=("setup", "lost"),
)
def target_of_another(share: float, *, least: float = 0.99) -> Judged:
    """Judge the *share* of the samples whose target belongs to another one."""
    yield share >= least
    yield share
    yield "the target of each sample is another sample of the batch: inputs and targets are in different orders"


@entry(
    "outputs of two training passes whose loss is one are the same, or those of two halves of a batch, in ten steps or more",
    "Chen et al., A simple framework for contrastive learning, 2020, section 3: the composition of augmentations; "
    "Gao et al., SimCSE, 2021: of dropout",
    "augment each view by itself: draw anew for each, and look whether dropout, where it makes the views, is in training mode",
    needs=("rms:output",),
    brings=("outputs_alike",),
    about=("setup", "lost"),
)
def views_same(steps: float, *, often: float = 10.0) -> Judged:
    """Judge so many *steps* in which all samples went in twice and came out the same."""
    yield steps >= often
    yield steps
    yield "each sample goes in twice and comes out the same: its two views are equal"


@entry(
    "all samples of all of 18 training passes or more push one output the same way, each by another amount, and it has moved by "
    "five times its first size; not of labels, nor of what the loss compares with targets",
    "our own: at a minimum the gradients of samples add up to zero",
    "look for what is to hold this output: a term of the loss that is missing (the log of a deviation, negatives, a penalty), "
    "a sign, a bound",
    needs=("rms:output",),
    brings=("output_growth", "loss_unbounded", "gradient_growth"),
    about=("setup", "lost"),
)
def pushed_one_way(passes: float, moved: float, first: float, *, times: float = 5.0, what: str = "the output") -> Judged:
    """Judge how far an output has *moved* in so many *passes*, and how large it was at *first*."""
    yield (passes > 0) & (first > 0) & (moved >= times * first)
    yield passes
    yield f"each sample of each pass pushes {what} the same way: nothing in the loss holds it"


@entry(
    "in each of six training passes or more the gradient at the outputs is one number for all samples, above zero in three of them "
    "or more, and below in three",
    "our own: the mean of errors is zero where they cancel, whatever each is",
    "take the absolute value, or the square, of the error of each sample, and the mean of these: not of the mean error",
    needs=("rms:output",),
    about=("setup", "lost"),
)
def errors_cancel(passes: float, *, often: float = 6.0) -> Judged:
    """Judge so many *passes* whose gradient is one number, now up and now down."""
    yield passes >= often
    yield passes
    yield "the loss sees the mean of the outputs alone: the errors of samples cancel each other"


@entry(
    "in ten steps or more samples that a generator has made are given the same label when it is trained as when a discriminator "
    "is, or their scores are all pushed the same way",
    "Goodfellow et al., Generative adversarial nets, 2014, section 3",
    "a discriminator tells generated samples from real ones, and a generator asks for the label of real ones",
    needs=("rms:output",),
    brings=("loss_rising", "loss_stuck", "outputs_alike"),
    about=("setup", "lost"),
)
def generator_misled(steps: float, label: float, *, often: float = 10.0) -> Judged:
    """Judge so many *steps* in which the same samples were given one *label* both with and without a gradient to the generator."""
    yield steps >= often
    yield steps
    wrong = "the generator is" if label < 1 else "the discriminator is"  # that of real samples is 1 most often
    yield f"{wrong} given the wrong label for generated samples: they get {label:.0f} where either of the two is trained"


@entry(
    "three layers with weights or more, and nothing but linear operations",
    "Goodfellow et al., Deep learning, 2016, section 6.1: linear layers in a row are one linear layer",
    "put an activation between the layers",
    needs=("rms:output",),
    about=("setup", "lost"),
)
def all_linear(is_linear: float) -> Judged:
    """Judge whether all that stands between input and output is linear."""
    yield is_linear > 0
    yield is_linear
    yield "what the model returns is a linear function of its input: no activation stands between its layers"


@entry(
    "in a binary cross-entropy each target of 1 weighs 20 x one of 0 or more, and all of them 20 x all others or more",
    "torch.nn.BCEWithLogitsLoss: pos_weight is negatives / positives, so that both weigh the same",
    "set pos_weight to the number of negatives for each positive, or leave it out",
    needs=("rms:output",),
    brings=("loss_rising", "output_growth", "gradient_growth"),
    about=("setup", "large"),
)
def weight_of_ones(times: float, together: float, *, most: float = 20.0) -> Judged:
    """Judge how many *times* as much a target of 1 weighs as one of 0, and all of them *together*."""
    yield (times >= most) & (together >= most)
    yield times
    yield f"each target of 1 weighs {short(times)} x one of 0, and all of them {short(together)} x all others"


@entry(
    "in a cross-entropy each sample of the most frequent class, or of classes that come often, half of all or more, weighs 2 x one "
    "of the others or more, in ten training passes or more; or those of one class, 0.8 of all or less, have 0.99 of the weight",
    "torch.nn.CrossEntropyLoss: weight, of each class; King and Zeng, Logistic regression in rare events data, 2001",
    "weigh rare classes more, by the inverse of how often they come, or all the same",
    needs=("rms:output",),
    about=("setup", "large"),
)
def weight_of_many(
    times: float, share: float, whole: float = 0.0, *, most: float = 2.0, half: float = 0.5, nearly: float = 0.99, few: float = 0.8
) -> Judged:
    """Judge how many *times* as much a label weighs as others; it has this *share* of all, and of the *whole* weight."""
    is_alone = (whole >= nearly) & (share <= few)
    yield ((times >= most) & (share >= half)) | is_alone
    yield times
    if is_alone:
        yield f"the samples of one class, {percent(share)} of all, have {percent(whole)} of the weight: others hardly count"
        return
    yield f"each sample of the most frequent class, {percent(share)} of all, weighs {short(times)} x one of the others"


@entry(
    "an embedding of 20 rows or more is asked for 5 % of them or less, by ten times as many indices as it has rows; or, of 8 or "
    "more, 90 % of the tokens of sequences are one, without padding; in 10 training passes; or 15 % are, 1.9 x as many as of any "
    "other, and rows are never asked for, or tokens ask for a quarter of the rows or less, where the loss stands (a note)",
    "our own",
    "look at how indices are made: a vocabulary of another tokenizer, a hash, a clamp, a column, a mask that hides nearly all",
    needs=("rms:output",),
    evidence=("share", "used", "rows", "indices"),
    brings=("one_index", "loss_stuck", "outputs_alike"),
    about=("input", "lost"),
)
def few_indices(share: float, used: float, rows: float, indices: float, *, most: float = 0.9, is_sequence: bool = True) -> Judged:
    """Judge of so many *indices* the *share* of the most frequent one, and how many of the *rows* are *used*."""
    few = (rows >= 20) & (used <= 0.05 * rows) & (indices >= 10 * rows)
    yield (used > 1) & (few | (is_sequence & (rows >= 8) & (share >= most)))
    value: Any = np.where(few, used / np.maximum(rows, 1), share)
    yield value
    if few:
        yield f"of its {rows:,.0f} rows {indices:,.0f} indices ask for {used:,.0f}"
    else:
        yield f"{percent(share)} of the tokens are one"


@entry(
    "the running mean of a batch normalisation with a momentum below 0.005 is off that of its batches by their deviation or more, "
    "or its variance is 2 x off, on average over channels of 32 elements or more, in three training passes in a row, "
    "after 50 logged steps; or it is given what has gone through itself before",
    "torch.nn.BatchNorm2d: running = (1 - momentum) x running + momentum x batch; in evaluation the running ones are used",
    "in evaluation this layer returns something else: set its momentum to 0.1",
    needs=("rms:output",),
    brings=("overfitting",),
    about=("setup", "lost"),
)
def running_off(mean: float, variance: float, *, most: float = 1.0, times: float = 2.0) -> Judged:
    """Judge how many deviations of a batch the running *mean* is off, and how many times the *variance*."""
    yield (mean >= most) | (variance >= times)
    value: Any = np.where(mean >= most, mean, variance)
    yield value
    off = f"its running mean is {short(mean)} deviations" if mean >= most else f"its running variance is {short(variance)} x"
    yield f"{off} off that of its batches"


@entry(
    "what goes into a batch normalisation varies by a tenth of its eps or less, in half of the channels (of 32 elements or more), "
    "in three training passes in a row",
    "torch.nn.BatchNorm2d: (x - mean) / sqrt(variance + eps): where eps is most of that, next to nothing is normalised",
    "scale what goes in: look for a division that is made twice, a factor, weights that begin small; or lower eps",
    needs=("rms:output",),
    brings=("loss_stuck", "update_small", "gradient_vanishing"),
    about=("input", "lost"),
)
def norm_starved(varies: float, *, least: float = 0.1) -> Judged:
    """Judge the variance that goes into a normalisation, as a share of its eps."""
    yield varies <= least
    yield varies
    yield f"what goes in varies by {short(varies)} of its eps: it is lost"
