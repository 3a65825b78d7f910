"""Rules about single tensors: what is not finite, dead, constant, saturated, or at the end of its format."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sonde.rules.finding import Judged, entry
from sonde.rules.window import Window
from sonde.words import percent, short

DEAD_SOME, DEAD_MOST = 0.25, 0.9
"""Share of a layer's units without any output: from the first on it is a note, above the second it is bad."""
DEAD_SAMPLES = 8
"""A unit is judged from this number of samples and positions on."""
FEW_SAMPLES = 128
"""Samples that are all that a model is trained with, and too few."""
SATURATED_AT, SATURATED_SHARE = 0.99, 0.5
"""Magnitude beyond which a tanh is saturated (a sigmoid: as near to its limits); share of a layer's elements that is a note."""
CONSTANT = 1e-7
"""Standard deviation / mean of an output that is one value: the rounding of float32."""
FLAT = 0.05
"""Mean slope of a tanh or sigmoid, of its largest one. The slope is 1 - y^2 of a tanh and y (1 - y) of a sigmoid with the output y,
so that its mean over a batch follows exactly from mean and root mean square. A tanh at its ends in 95 of 100 elements has 0.05."""
AT_BOUNDS, APART, PULLED = 0.25, 0.6, 0.5
"""Mean slope of the last sigmoid of a model, of its largest one, and the standard deviation of its outputs, as a share of
half of its range: outputs at one end alone may be those of a rare class. And the mean of a gradient, of its size, that is no
chance."""
SHUT = 5.0
"""Bias of a gate: a sigmoid of -5 lets 0.7 % through. That of a forget gate is 1 to 3 as a rule, or log(1 .. T)."""
ONE_DIRECTION = 1.1
"""Effective rank of a layer's outputs: all other directions together hold two hundredths of the singular values, for which the
entropy is 0.1 = ln(1.1). Features of a classifier that has converged use about as many directions as there are classes."""
VECTORS = 8
"""Vectors from which on their effective rank is judged: one vector has one direction."""
SCORES = 100.0
"""Size of attention scores. Of n normal scores of size s the largest two are s / sqrt(2 ln n) apart on average. The gradient of a
softmax is below the rounding of float32 where they are 16.6 = ln(2**24) apart: at s = 68 for n = 4,096. Scores of trained language
models are about 10 at most."""
SHARP = 0.95
"""Largest weight of an attention, on average over its rows, that leaves next to nothing to the other places."""
EPS_LARGE = 0.1
"""What a normalisation adds to a variance of about 1."""
NORM_LEFT = 0.05
"""Size of what a normalisation returns beside its bias, of that of its weight: of a single element nothing is left."""
DROPPED = 0.85
"""Share that a dropout layer sets to zero."""
NEAR_END = 0.5
"""Largest magnitude / largest number of the format: one doubling before an overflow."""
WOULD_VANISH = 0.25
"""Share of a tensor's values that another format would round to zero."""
VANISHED = 0.5
"""Share of a gradient's elements that are zero, or too small for the normal numbers of a half precision."""


@entry(
    "any NaN or infinity",
    "IEEE 754: neither comes from finite numbers by a valid operation",
    "look at what goes into this place: a log or root of 0, a division by 0, an overflow of half precision",
    needs=("nan:output|nan:grad|loss",),
    severity="bad",
    about=("output", "broken"),
)
def nonfinite(nan: float, inf: float, count: float, *, what: str = "") -> Judged:
    """Judge *nan* and *inf* of *count* elements; NaN if that number is not known.

    *what* names them (``gradient``, ``weights``), ``""`` is a layer's output.
    """
    yield nan + inf > 0
    yield nan + inf
    parts = ", ".join(f"{number:,.0f} {word}" for number, word in ((nan, "NaN"), (inf, "inf")) if number)
    yield f"{what} not finite: {parts}".lstrip()


@entry(
    f"{percent(DEAD_SOME)} of a layer's units or more without output for any sample of a batch (a note), more than "
    f"{percent(DEAD_MOST)} (bad)",
    "smdebug, DeadRelu, has 50 % of units inactive; the limits are our own",
    "look in this order at what goes in (its mean, its scale), at weights and bias of what comes before, and at the steps before "
    "it died; or use another activation",
    needs=("call_death:output|zeros:output",),
    severity="bad",
    note_until="most",
    evidence=("dead",),
    at="output",
    window=Window(3, 5),  # measured in few logged steps: units that live again in the next ones were not dead
    brings=(
        "loss_stuck",
        "all_zero",
        "constant",
        "gradient_zero",
        "update_small",
        "gradient_vanishing",
        "rank_collapse",
        "outputs_alike",
        "input_unused",
    ),
    about=("output", "lost"),
)
def dead(call_death: float, *, some: float = DEAD_SOME, most: float = DEAD_MOST) -> Judged:
    """Judge the share of the units that are zero at every sample and position: from *some* on a note, above *most* bad."""
    yield call_death >= some
    yield call_death
    yield f"{percent(call_death)} dead" if call_death > most else f"{percent(call_death)} dead in a batch"


@entry(
    "all elements of an output are exactly 0",
    "the layers behind get the same input for every sample",
    "look for a multiplication by 0, a normalisation whose weight is 0, a mask over everything, weights never initialised",
    needs=("zeros:output",),
    severity="bad",
    at="zeros",
    window=Window(3, 5),
    brings=("constant", "gradient_zero", "update_small", "gradient_vanishing", "rank_collapse", "outputs_alike", "input_unused"),
    about=("output", "lost"),
)
def all_zero(zeros: float, count: float) -> Judged:
    """Judge the number of *zeros* among *count* elements."""
    yield (count > 1) & (zeros >= count)
    yield zeros / count
    yield "all zero"


@entry(
    f"std of an output at most {CONSTANT:g} of its mean, in 3 of 5 logged steps, beyond the first five",
    "the rounding of float32",
    "look for a layer whose weights are equal, or an input that is the same for every sample",
    needs=("std:output",),
    evidence=("mean", "std", ""),
    at="hidden",
    window=Window(3, 5, after=5),  # a layer may begin at zero
    about=("output", "lost"),
)
def constant(mean: float, std: float, count: float, *, spread: float = CONSTANT) -> Judged:
    """Judge the mean and the standard deviation of *count* elements; *spread* is the limit of std / mean."""
    yield (count > 1) & (std <= spread * np.maximum(abs(mean), 1e-30))
    yield mean
    yield "constant"


@entry(
    f"{percent(SATURATED_SHARE)} of a tanh or sigmoid or more beyond {SATURATED_AT}",
    "Glorot and Bengio, 2010, section 3",
    "scale down what goes in: smaller initial weights, a normalisation before it",
    severity="note",
    evidence=("saturated",),
    about=("output", "lost"),
)
def saturated(share: float, *, most: float = SATURATED_SHARE) -> Judged:
    """Judge the *share* of the elements that are saturated; from *most* on it is a note."""
    yield share >= most
    yield share
    yield f"{percent(share)} saturated"


@entry(
    f"a hidden tanh or sigmoid whose mean slope is below {FLAT:g} of its largest, in 3 of 5 logged steps; or of one, or of a "
    "softmax, 0.001 in the first two training passes, by a bias that is larger than what its layer makes of its inputs (bad)",
    "Glorot and Bengio, 2010, section 3; the slope is measured, smdebug takes limits of the input",
    "scale down what goes in: smaller initial weights, a lower learning rate, a normalisation before it",
    needs=("rms:output",),
    at="slopes",
    window=Window(3, 5, smallest=True),
    about=("output", "lost"),
    unless=("low",),
)
def flat(slope: float, *, least: float = FLAT) -> Judged:
    """Judge the mean *slope* of an activation over its outputs, as a share of the largest slope it can have."""
    yield slope < least
    yield slope
    yield f"saturated: its mean slope is {max(slope, 0.0):.2g} of the largest"


@entry(
    f"a sigmoid or tanh that makes the outputs of a model has a mean slope below {AT_BOUNDS:g} of its largest, and outputs at both "
    "ends, or a ReLU has outputs that are zero, or either outputs at one end where the gradient asks for what lies beyond "
    f"({PULLED:g} of its size is its mean), in 5 of 5 logged steps, beyond the first five, while the loss has not fallen by half "
    "in 100 steps (by two thirds, where the gradient says it)",
    "our own: outputs that stand at both ends and fit have a small loss; else the targets lie beyond the ends",
    "leave out the last activation, or scale the targets to its range; look at the targets where they should be within it",
    needs=("rms:output", "loss"),
    at="ends",
    window=Window(5, 5, after=5),
    brings=("loss_stuck", "dead", "flat"),
    about=("setup", "still"),
    unless=("in turns",),
)
def bounded(slope: float, spread: float, pull: float = math.nan, *, most: float = AT_BOUNDS, least: float = APART) -> Judged:
    """Judge the mean *slope* of the last activation, and how far its outputs *spread*, as a share of half of the range.

    *pull* is the mean of the gradient at outputs that stand at one end, of its size, above zero where the loss would be less beyond
    that end: no such mean is left where they are those of a rare class.
    """
    yield ((slope < most) & (spread >= least)) | (pull >= PULLED)
    yield slope
    where = "one end of its range, where the gradient asks for more" if pull >= PULLED else "both ends of its range"
    yield f"outputs stand at {where} (mean slope {max(slope, 0.0):.2g} of the largest), and the loss does not fall by that"


@entry(
    "a weight of two units or more whose elements are all one value, in 3 of 5 logged steps or before the first logged step, "
    "though it has a gradient, and no parameter of its shape beside it varies; or a frozen one that is zero, where "
    "no gradient comes to what is trained right before",
    "Goodfellow et al., Deep Learning, 8.4: units with equal weights stay equal",
    "initialise it at random",
    needs=("std:param",),
    severity="bad",
    at="weights",
    window=Window(3, 5),
    least=1,  # judged at the first logged step, too
    about=("initialisation", "lost"),
)
def constant_weight(mean: float, std: float, update: float = 0.0, *, spread: float = CONSTANT) -> Judged:
    """Judge the mean and the standard deviation of a weight; *spread* is the limit of std / mean.

    *update* is the size of the first logged step, of a weight of that time: elements that were equal before a step differ after it
    by the step alone, so that their standard deviation is no larger than its size. A mean of twice that size was there before.
    """
    alike = np.maximum(spread * np.maximum(abs(mean), 1e-30), 1.001 * update)
    yield (std <= alike) & (abs(mean) >= 2 * update)
    yield mean
    yield f"all elements {'were' if update else 'are'} {mean:.3g}: its units are all alike, and learn alike"


@entry(
    f"outputs of a layer, 8 vectors or more, with an effective rank of {ONE_DIRECTION:g} or less, in 3 of 5 logged steps; or what "
    "goes into a layer is one direction but for 0.001 of its squares, in three passes, where a tenth is left of what goes into one "
    "before it, and the loss has not fallen by a fifth; or all that the last layer is given goes through one unit",
    "Roy and Vetterli, The effective rank, 2007; Jing et al., 2022, section 2; torchmortem has half of the first rank",
    "look for a loss that only draws outputs together, inputs that are all alike, or a deep network without norms",
    needs=("effective_rank:output",),
    evidence=("rank", ""),
    at="output",
    window=Window(3, 5, smallest=True),
    about=("output", "lost"),
)
def rank_collapse(effective_rank: float, vectors: float = math.inf, *, most: float = ONE_DIRECTION) -> Judged:
    """Judge the effective rank of so many *vectors*, the outputs of a layer; it is 1 where all are parallel, as one vector is."""
    yield (effective_rank <= most) & ~np.less(vectors, VECTORS)
    yield effective_rank
    yield f"its outputs all point in one direction (effective rank {effective_rank:.3g})"


@entry(
    "an embedding, the largest of the network or one with a quarter of its rows, gets a gradient in one row alone, in 5 of 5 "
    "logged steps, for 8 indices or more, while most other weights are trained",
    "the gradient of an embedding is zero in the rows of all indices that were not looked up",
    "look at the indices, which may all be padding, or what a tokenizer gives for words it lacks, and at what the loss uses",
    needs=("zeros:grad", "count:output"),
    severity="bad",
    at="lookups",
    window=Window(5, 5),
    brings=("loss_stuck", "rank_collapse"),
    about=("input", "lost"),
)
def one_index(elements: float, width: float, indices: float) -> Judged:
    """Judge an embedding of vectors of *width* numbers: *elements* of its gradient are not zero, after *indices* were looked up."""
    yield (elements > 0) & (elements <= width) & (indices >= 8)
    yield indices
    yield f"of {indices:,.0f} indices of a step a gradient reaches one row alone: they are all the same, or the loss uses one alone"


@entry(
    f"all that goes into a model is one value, or the same for each sample of a batch of {DEAD_SAMPLES} or more, in 5 of 5 "
    f"training passes (of smaller ones in ten); or the same {FEW_SAMPLES} samples or fewer in each of these, where the training "
    "overfits (warn); or an argument of one number for each sample that is named as a time or a noise level is (t, timestep, sigma "
    "and the like) is one number in all of them, or a cross-entropy reads the same samples in ten passes, a tenth of them or less "
    "and fewer than there are classes (warn); or what the first layer takes is of size 1e-5 or less, in six passes (warn)",
    "a function of its inputs: outputs cannot tell apart what the inputs do not",
    "look at how a batch is made: an index, a normalisation to 0, a buffer that is filled once, images that cannot be read",
    needs=("rms:output",),
    severity="bad",
    least=5,
    brings=("loss_stuck", "rank_collapse", "gradient_zero", "output_growth", "constant", "overfitting"),
    about=("input", "lost"),
)
def input_same(
    passes: float, differ: float, again: float = math.nan, *, few: float = FEW_SAMPLES, is_blank: bool = False, name: str = ""
) -> Judged:
    """Judge so many *passes*, and whether any two samples *differ* in one of them; *is_blank* says that not even elements do.

    *again* is how many samples each of them has, where these are the same in all passes; NaN where they are not. *name*: it is one
    argument alone, of one number for each sample, which is the same in all passes.
    """
    yield (passes >= 5) & ((differ == 0) | (again <= few))
    yield passes
    what = "one value throughout" if is_blank else "the same for every sample of a batch"
    what = f"the same {again:.0f} samples" if differ else what
    yield (
        f"{name} is one number for all samples, in {passes:.0f} passes"
        if name
        else f"what goes in is {what}, in {passes:.0f} passes"
    )
    yield "warn" if differ or name else "bad"


@entry(
    f"the biases (bias_ih + bias_hh) of all units of a gate are {SHUT:g} or more in size at the first logged step, and 3 x what "
    "inputs of size 1 add: they shut the input, forget or output gate of an LSTM, or have the update gate of a GRU keep all",
    "sigmoid(-5) is 0.007; Jozefowicz et al., 2015, begin with a forget bias of 1, and Tallec and Ollivier, 2018, with log(1 .. T)",
    "begin with a bias of 0, and of 1 or more for the forget gate; the gates of torch's LSTM are in the order input, forget, cell, "
    "output, those of its GRU in the order reset, update, new, and two biases are added",
    needs=("rms:param",),
    evidence=("least", "bias", ""),
    least=1,
    about=("initialisation", "lost"),
)
def gate_shut(
    least: float, bias: float, spread: float, *, most: float = SHUT, gate: str = "gate", effect: str = "nothing goes through it"
) -> Judged:
    """Judge the *least* bias of the units of a *gate*, in the direction that shuts it; their mean is *bias*.

    *spread* is how far inputs of size 1 move it; *effect* says what follows.
    """
    yield (least >= most) & (least >= 3 * spread)
    yield bias
    yield f"the bias of its {gate} begins at {short(bias)}: {effect}"


@entry(
    f"attention scores of size {SCORES:g} or more (size of the queries x size of the keys), in 3 of 5 logged steps; or the largest "
    f"weight of an attention over eight places or more is {SHARP:g} on average in the first training pass, and not most often at "
    "one place",
    "softmax of 4,096 normal scores of this size is a one in float32; Dehghani et al., Scaling vision transformers to 22 billion "
    "parameters, 2023: scores grow before a training diverges; Vaswani et al., Attention is all you need, 2017, section 3.2.1",
    "normalise queries and keys, scale down their initial weights; {lr}",
    needs=("rms:output",),
    at="attention",
    window=Window(3, 5),
    about=("output", "large"),
    tries=("lr",),
)
def attention_large(
    query: float, key: float, *, most: float = SCORES, sharp: float = 0.0, places: float = 0.0, least: float = SHARP
) -> Judged:
    """Judge the root mean squares of queries and keys. Their product is the size of scores that are divided by sqrt(head width).

    That holds of queries and keys that point anywhere; where they are parallel, scores are sqrt(head width) x as large. Or judge
    how large the largest weight of so many *places* is on average (*sharp*).
    """
    yield (query * key >= most) | (sharp >= least)
    value: Any = np.where(sharp >= least, sharp, query * key)
    yield value
    if sharp >= least:
        yield f"attention begins with one place alone: the largest of {places:,.0f} weights is {short(sharp)} on average"
        return
    yield f"attention scores of size {short(query * key)}: softmax takes one of them and forgets the others"


@entry(
    f"a normalisation whose eps is {EPS_LARGE:g} or more, or a batch normalisation whose momentum is 0 (0.9 or more: a note), or "
    "that has two elements of each channel (or two samples, of 512 elements or fewer, in six training passes: a note), or one "
    "within a sample that "
    "returns its bias alone from the first step on, though what goes in varies; or one that is "
    "frozen, before all that is trained, and in training mode (of dropouts alone a note below 0.3)",
    "torch.nn.BatchNorm2d: eps is 1e-5, and running statistics become (1 - momentum) x old + momentum x new",
    "set eps to 1e-5 and momentum to 0.1, as usual, or normalise over more elements; freeze statistics with eval(), if that is "
    "meant",
    needs=("rms:output",),
    least=1,
    brings=("overfitting", "loss_stuck"),
    about=("setup", "small"),
)
def norm_setting(
    eps: float,
    momentum: float,
    share: float = math.nan,
    *,
    most: float = EPS_LARGE,
    least: float = NORM_LEFT,
    are_two: bool = False,
) -> Judged:
    """Judge *eps* and *momentum* of a normalisation. What is normalised shrinks where eps is no less than its variance.

    *share* is the size of what it returns beside its bias, of the size of its weight: none is left of a single element, which is
    its own mean. *are_two*: a batch has two elements of each channel.
    """
    is_last, is_other = np.greater_equal(momentum, _OF_LAST_BATCH), are_two | np.greater_equal(eps, most) | np.less(share, least)
    yield is_other | np.equal(momentum, 0) | is_last
    value: Any = np.where(np.isfinite(eps), eps, share)
    yield value
    is_still, is_last_alone = momentum == 0, is_last and not is_other
    yield (
        "it normalises two elements of each channel: one becomes 1 and the other -1, whatever they are"
        if are_two
        else "it returns its bias alone, as of groups of one element (1 x 1 images, one feature), each of which is its own mean"
        if share < least
        else "its momentum is 0: evaluation uses the statistics that it began with"
        if is_still
        else f"its momentum is {momentum:g}: evaluation uses the statistics of the last batch, and 1 - momentum may be meant"
        if is_last_alone
        else f"its eps is {eps:g}: what varies less fades"
    )
    yield "note" if is_last_alone else "warn"


_OF_LAST_BATCH = 0.9
"""Momentum of a batch normalisation that forgets nearly all but the last batch; other libraries give what it keeps."""


@entry(
    f"a dropout layer drops more than {percent(DROPPED)} of what it is given, in 3 of 5 logged steps, or functional.dropout does, "
    "in two training passes; or a dropout makes what a cross-entropy or an error is given, in the first three",
    "Srivastava et al., 2014, section A.4: rates of 0.2 to 0.5; what is left is multiplied by 1 / (1 - rate), and so is its noise",
    "lower the rate",
    needs=("zeros:output",),
    evidence=("zeros",),
    at="dropout",
    window=Window(3, 5),
    brings=("update_small", "input_unused"),
    about=("setup", "large"),
)
def dropped(share: float, *, most: float = DROPPED) -> Judged:
    """Judge the *share* that a dropout layer sets to zero."""
    yield share > most
    yield share
    yield f"{percent(share)} dropped"


@entry(
    "any value of a tensor beyond the largest number of the format that what_if= names",
    "torch.finfo(dtype).max",
    "scale this tensor before it is rounded, by a factor of its own",
    evidence=("overflow", "underflow_scaled"),
)
def would_overflow(share: float, scaled: float, *, most: float = 0.0) -> Judged:
    """Judge the *share* of values that a format cannot hold; *scaled* is what it would lose of the tensor scaled to fit."""
    yield share > most
    yield share
    yield f"{percent(share)} of its values would overflow"


@entry(
    f"more than {percent(WOULD_VANISH)} of the values of a tensor would be rounded to zero in the format that what_if= names",
    "our own; Micikevicius et al., Mixed precision training, 2018, section 3.2, shows trainings that this breaks",
    "scale this tensor before it is rounded, or the loss if it is a gradient",
    evidence=("underflow", "underflow_scaled"),
)
def would_underflow(share: float, scaled: float, *, most: float = WOULD_VANISH) -> Judged:
    """Judge the *share* of values that a format would round to zero; *scaled* is that of the tensor scaled to fit."""
    yield share > most
    yield share
    yield f"{percent(share)} of its values would be rounded to zero"


FORMATS = {"float16": (65504.0, 2.0**-14), "bfloat16": (3.39e38, 2.0**-126), "e4m3": (448.0, 2.0**-6), "e5m2": (57344.0, 2.0**-14)}
"""Of each format the largest number and the smallest normal one (torch.finfo of the formats without infinities: e4m3fn)."""


@entry(
    f"largest magnitude above {NEAR_END:g} of the largest number of float16, where the parameters are in float16",
    "torch.finfo(torch.float16).max is 65,504",
    "scale down: a lower learning rate, a normalisation, or bfloat16, which has the range of float32",
    needs=("absmax:output|absmax:param",),
    at="float16",
    window=Window(3, 5),
    about=("output", "large"),
)
def overflow_near(absmax: float, largest: float, *, share: float = NEAR_END) -> Judged:
    """Judge the magnitude *absmax* against the *largest* number of its format."""
    yield absmax > share * largest
    yield absmax
    yield f"magnitudes up to {short(absmax)}, the format ends at {short(largest)}"


@entry(
    f"{percent(VANISHED)} of a gradient or more is zero in float16, and the rest below its normal numbers, in 3 of 5 logged steps",
    "Micikevicius et al., Mixed precision training, 2018, section 3.2",
    "scale the loss (torch.amp.GradScaler), or use bfloat16",
    needs=("absmax:grad",),
    at="float16_gradients",
    window=Window(3, 5),
    brings=("gradient_zero", "update_small", "gradient_vanishing"),
    about=("gradient", "small"),
)
def underflow(zeros: float, absmax: float, smallest: float, *, share: float = VANISHED) -> Judged:
    """Judge a gradient: its share of *zeros*, and its *absmax* against the *smallest* normal number of its format."""
    yield (absmax < smallest) & ((zeros >= share) | (absmax == 0))
    yield zeros
    yield (
        f"gradient underflows: {percent(zeros)} zero, the rest up to {absmax:.1e}, where normal numbers begin at {smallest:.1e}"
        if absmax > 0
        else f"gradient underflows: all of it is zero in float16, whose smallest number is {smallest / 1024:.1e}"
    )
