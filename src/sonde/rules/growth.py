"""Rules about how sizes of outputs and weights change over a run, and through the depth of a network."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sonde.rules.finding import Judged, entry
from sonde.rules.window import Window
from sonde.words import short

OUTPUT_GROWTH, WEIGHT_GROWTH = 100.0, 10.0
"""Growth of an output over a run, against the largest output of the network at the beginning; and of a weight (torchmortem: 10).
In two dozen healthy trainings outputs of hidden layers grew 12-fold at most (56-fold towards targets of size 134) and weights
5-fold; in a GPT under AdamW with a learning rate of 3e-2 outputs grew 230-fold."""
OUTPUT_LARGE = 1000.0
"""An output's size against that of the first layer, or 1; float16 ends at 65,504."""
WEIGHT_LARGE = 300.0
"""Size of a weight as training begins, against that of PyTorch's own initialisation, 1 / sqrt(3 inputs). He's initialisation is
2.5 x as large, and a standard deviation of 1, as in the head of T5, 111 x with 4,096 inputs."""
WEIGHT_HARMS = 30.0
"""That of a weight which is told where another finding shows what may come of it: a deviation of 1 has 28 x with 256 inputs."""
WEIGHT_BEYOND, MADE_LARGE = 2.0, 10.0
"""Size of a weight, and of what its layer returns, from which on it is told by itself: scales of an equalised learning rate, and of
heads that a factor follows, are 1 in size; and where what goes in is as much smaller, a large weight is right."""
TABLE_LARGE = 10.0
"""Size of an embedding as training begins: PyTorch's own is normal, of size 1."""
ADDED_LARGE, ADDED_SIZE = 100.0, 10.0
"""Size of what is added to activations as training begins, such as places, against these; and its size, from which on it is told.
Tokens of a deviation of 0.02 and places of 1, a sine, are 35 x apart."""
WEIGHT_SMALL, SMALL_TOGETHER, SMALL_ROW = 0.2, 1e-4, 2
"""Size of a weight as training begins, against that of PyTorch's own initialisation; the product over layers in a row, and how many
these are at least. A deviation of 0.02, as of transformers, has 0.2 with 32 inputs, and they normalise between layers."""
INPUT_LARGE, INPUT_UNSCALED, INPUT_GROWTH = 1000.0, 30.0, 100.0
"""Size of what goes into the first layer as training begins, by itself and where another finding shows that it does harm; and in
one step, against the steps before. Pixels from 0 to 255 are 150 in size. torch initialises a layer for inputs of size 1."""
BEGINS_LARGE, BEGINS_FAR, BEGINS_WEIGHT, BEGINS_SIZE = 2.0, 4.0, 5.0, 3.0
"""First loss against that of a guess, where a weight begins so many times as large as torch would initialise it, and where none
does; that multiple; and the size of the outputs, which are 1 at most in the usual initialisations."""
TARGET_LARGE = 30.0
"""Root mean square of what outputs are off their targets at the first step, against the size of the outputs, or 1: as that of an
input that is not scaled."""
SUMMED_OFF, HALF_A_MEAN, LINEAR = 100.0, 0.4, 0.05
"""What a sum of squares is off by that says so of a loss of parts. The least weight of a squared error, of that of a mean: half of
a mean has 0.5. And how far the gradient of a mean of absolute errors is from 1 / count."""
OUTPUT_SMALL = 1e3
"""Sizes of the outputs of the first quarter of the layers against those of the last, both medians, at the first logged step."""


@entry(
    f"an output {OUTPUT_GROWTH:g} x as large as it was and as any output was at the beginning",
    "our own, measured on healthy trainings",
    "look in this order at the loss (its sign, what multiplies it, whether it takes probabilities and is given logits), and at "
    "what goes in; {lr}, or normalise between layers",
    needs=("rms:output",),
    severity="bad",
    least=2,
    about=("output", "large"),
    unless=("learnt",),
    tries=("lr",),
    symptom=True,
)
def output_growth(size: float, before: float, *, factor: float = OUTPUT_GROWTH) -> Judged:
    """Judge the *size* of an output; *before* is the larger of its smallest size so far and the largest output at the beginning."""
    yield (before > 0) & (size >= factor * before)
    yield size / before
    yield f"output grew {short(size / before)}-fold, to {short(size)}"


@entry(
    f"an output {OUTPUT_LARGE:g} x as large as the first layer's, and {OUTPUT_LARGE:g} or more, from the beginning on",
    "our own; AutoTrainer has an absolute mean of 10",
    "scale the initial weights by 1 / sqrt(inputs), normalise between layers, or scale the data",
    needs=("rms:output",),
    about=("output", "large"),
)
def output_large(size: float, first: float, *, factor: float = OUTPUT_LARGE) -> Judged:
    """Judge the *size* of an output at its first logged step; *first* is that of the layer that runs first."""
    yield size >= factor * np.maximum(first, 1.0)
    yield size
    yield f"output of size {short(size)} from the beginning, {short(first)} in the first layer"


@entry(
    f"what goes into the first layer is {INPUT_LARGE:g} or more in size from the beginning on ({INPUT_UNSCALED:g} where another "
    f"finding shows harm, or a generator makes samples {INPUT_UNSCALED:g} x smaller), and no normalisation "
    f"follows, or one that leaves it so, or in one step {INPUT_GROWTH:g} x as large as before: the size of its output / (size of "
    f"its weights x sqrt(inputs)); or a table of {INPUT_UNSCALED:g} or more in size has a column 30 x as large as half of them",
    "our own; LeCun et al., Efficient backprop, 1998, section 4.3: inputs of mean 0 and variance 1",
    "scale the data: subtract the mean of each feature and divide by its standard deviation; look for a sample far off the others",
    needs=("rms:output", "rms:param"),
    evidence=("input", "before"),
    brings=("output_growth", "gradient_growth", "spike", "output_large"),
    about=("input", "large"),
)
def input_large(
    size: float,
    before: float = math.nan,
    *,
    most: float = INPUT_LARGE,
    some: float = INPUT_UNSCALED,
    factor: float = INPUT_GROWTH,
    does_harm: bool = False,
) -> Judged:
    """Judge the *size* of the input of the first layer; *before* is that of the steps before, NaN at the beginning."""
    yield ((size >= (some if does_harm else most)) & np.isnan(before)) | (size >= factor * np.maximum(before, 0.01))
    yield size
    usual = (
        "from the beginning on"
        if math.isnan(before)
        else f"{short(size / before if before > 0 else math.inf)} x as large as before"
    )
    yield f"what goes into it is of size {short(size)}, {usual}"


@entry(
    f"a weight {WEIGHT_GROWTH:g} x as large as it was, as half of the weights were at the beginning, and as PyTorch's own "
    "initialisation",
    "torchmortem; a weight that begins smaller than usual has to grow",
    "where no finding explains it, look in this order at the sign of the loss, at labels and targets outside of its range, and at "
    "the scale of inputs and targets; then {lr}, or decay the weights",
    needs=("rms:param",),
    least=2,
    about=("weight", "large"),
    unless=("learnt", "falls"),
    tries=("lr",),
    symptom=True,
)
def weight_growth(size: float, before: float, *, factor: float = WEIGHT_GROWTH) -> Judged:
    """Judge the *size* of a weight; *before* is the largest of its smallest so far, its usual one, and the median at first."""
    yield (before > 0) & (size >= factor * before)
    yield size / before
    yield f"weight grew {short(size / before)}-fold, to {short(size)}"


@entry(
    f"a weight that begins {WEIGHT_LARGE:g} x as large as PyTorch's own initialisation ({WEIGHT_HARMS:g} x, where another finding "
    f"shows that steps of it are too small, or that outputs are lost; and of size {WEIGHT_BEYOND:g} or more, that of a recurrent "
    f"layer, or of a hidden Linear or Conv whose outputs are of size {MADE_LARGE:g} or more and are not normalised next); the "
    f"table of an embedding, where one runs first, and before no normalisation, {TABLE_LARGE:g} x; or a parameter or buffer of "
    f"size {ADDED_SIZE:g} or more that is added to what is {ADDED_LARGE:g} x smaller",
    "our own; He et al., 2015, is 2.5 x as large",
    "scale its initial values by 1 / sqrt(inputs)",
    needs=("rms:param", "rms:update"),
    evidence=("size", "usual", "", "output"),
    brings=("begins_large",),
    about=("initialisation", "large"),
)
def weight_large(
    size: float,
    usual: float,
    tables: float = 0.0,
    made: float = math.nan,
    *,
    factor: float = WEIGHT_LARGE,
    table: float = TABLE_LARGE,
    some: float = WEIGHT_HARMS,
    does_harm: bool = False,
    recurs: bool = False,
    is_added: bool = False,
) -> Judged:
    """Judge the *size* of a weight at the first logged step; *usual* is that of PyTorch's own initialisation.

    *tables* is 1 for the table of an embedding: nothing divides what it gives by the root of its inputs. *made* is the size of what
    its layer returns, where that says by itself that the weight is too large (of a layer that *recurs*, of the sums that go into
    its state, for inputs of size 1); NaN where not. What *is_added* is compared with what it is added to, of the *usual* size.
    """
    if is_added:
        yield (usual > 0) & (size >= ADDED_LARGE * usual) & (size >= ADDED_SIZE)
        yield size / usual
        yield f"is of size {short(size)}, and added to what is of size {short(usual)}: of that nothing is left"
        return
    yield (usual > 0) & (size >= (table * tables + (some if does_harm else factor) * (1 - tables)) * usual)
    yield size / usual
    begins = f"begins with weights of size {short(size)}, {short(size / usual)} x as large as usual"
    made_of = f"of inputs of size 1, sums of size {short(made)} go into its state" if recurs else f"outputs of size {short(made)}"
    yield begins if math.isnan(made) else f"{begins}: {made_of}"


@entry(
    f"weights of {SMALL_ROW} layers or more in a row begin at {WEIGHT_SMALL:g} of PyTorch's own initialisation or less, and at "
    f"{SMALL_TOGETHER:g} of it taken together, though not at zero, in a model without a normalisation, and another finding "
    "shows from the beginning that outputs, gradients or steps are small or lost, or that the loss stands still",
    "Glorot and Bengio, 2010: what goes through a layer is multiplied by the size of its weights x sqrt(inputs); our own limits",
    "scale the initial weights by 1 / sqrt(inputs) (torch.nn.init.kaiming_uniform_, xavier_uniform_), or normalise between layers",
    needs=("rms:param", "rms:update"),
    evidence=("layers", "together", "usual"),
    brings=("input_unused", "outputs_alike"),
    about=("initialisation", "small"),
)
def weight_small(layers: float, together: float, usual: float, *, row: int = SMALL_ROW, most: float = SMALL_TOGETHER) -> Judged:
    """Judge how many *layers* in a row begin with small weights; *together* is the product of their sizes beside usual ones.

    *usual* is the median of these sizes.
    """
    yield (layers >= row) & (together <= most)
    yield together
    yield f"begins with weights {short(usual)} x as large as usual, as {layers:.0f} layers in a row do: what goes through fades"


@entry(
    f"the first loss is {BEGINS_LARGE:g} x that of a guess or more, of outputs of size {BEGINS_SIZE:g} or more, where a weight "
    f"begins {BEGINS_WEIGHT:g} x as large as PyTorch's own initialisation; {BEGINS_FAR:g} x, where none does, or of other scores "
    "than a layer makes, which are no cosines",
    "Karpathy, A recipe for training neural networks, 2019: verify loss @ init, -log(1 / classes); the factors are our own",
    "scale the initial weights by 1 / sqrt(inputs), so that outputs begin at a size of 1 or less",
    needs=("loss", "rms:output"),
    brings=("output_large",),
    about=("initialisation", "large"),
)
def begins_large(
    loss: float, guess: float, size: float, times: float = 0.0, *, factor: float = BEGINS_LARGE, far: float = BEGINS_FAR
) -> Judged:
    """Judge the first *loss* of outputs of a *size*; *times* is how large the largest weight begins, of torch's own.

    The cross-entropy of random outputs is at most 2.5 sqrt(2 ln(classes)) times their size, and *guess* is ln(classes): a loss
    beyond that is of another kind.
    """
    is_large = (size >= BEGINS_SIZE) & (loss <= 2.5 * np.sqrt(2 * guess) * size)
    yield is_large & (loss >= np.where(times >= BEGINS_WEIGHT, factor, far) * guess)
    yield loss / guess
    weights = f", with weights {short(times)} x as large as usual" if times >= BEGINS_WEIGHT else ""
    begins = f"what the model returns begins at size {short(size)}{weights}"
    yield f"{begins}: the first loss is {short(loss)}, and a guess has {short(guess)}"


@entry(
    f"outputs of the last quarter of the layers {OUTPUT_SMALL:g} x smaller than those of the first, at the first logged step",
    "Glorot and Bengio, 2010, section 4.2; smdebug has 10 (variances of activation inputs)",
    "scale the initial weights by 1 / sqrt(inputs), or normalise between layers",
    needs=("rms:output",),
    brings=("input_unused", "outputs_alike"),
    about=("output", "small"),
)
def output_small(first: float, last: float, *, factor: float = OUTPUT_SMALL) -> Judged:
    """Judge the median size of the outputs of the *last* quarter of the layers against that of the *first*."""
    yield (first > 0) & (last * factor <= first)
    yield last / first
    yield f"outputs fade through the network from the beginning: from {short(first)} to {short(last)}"


@entry(
    f"a weight shrinks to 1/{WEIGHT_GROWTH:g} of its size at the first logged step, in 3 of 5 logged steps",
    "torchmortem has 10 for growth; our own for its counterpart",
    "look in this order at the weight decay times the learning rate, at a penalty in the loss, and at what clamps or rescales "
    "weights between steps",
    needs=("rms:param",),
    at="matrices",
    window=Window(3, 5, smallest=True),
    least=4,  # compared with the first
    about=("weight", "small"),
    symptom=True,
)
def weight_shrinking(size: float, before: float, *, factor: float = WEIGHT_GROWTH) -> Judged:
    """Judge the *size* of a weight; *before* is its size at the first logged step."""
    yield (before > 0) & (size * factor <= before)
    yield size / before
    yield f"weight shrank to {short(size)}, 1/{short(before / size) if size > 0 else 'inf'} of what it was"


@entry(
    f"outputs are off their targets by {TARGET_LARGE:g} x their size, or 1, at the first step, as loss and gradient say of "
    "a squared or absolute error (as a sum of squares would say, where no gradient is recorded; by "
    f"{SUMMED_OFF:g} x, where most of the loss is something else), and another finding shows harm, or the loss "
    "has not fallen by a fifth in 200 steps; or they are still off by 0.6 of that after 100 steps, or the gradient is "
    "100 x that at another output; or errors of 30 make 1,000 x as much of the loss as a cross-entropy in it, in three passes",
    "a squared error of any weight is half of the product of its gradient and what it is off by, summed over the elements; "
    "Karpathy, A recipe for training neural networks, 2019: init well; the factor is our own",
    "scale the targets to mean 0 and deviation 1, or begin with the last bias at their mean and a last weight of their deviation",
    needs=("loss", "rms:output"),
    evidence=("loss", "output", "", ""),
    brings=("gradient_growth", "output_growth", "loss_stuck"),
    about=("input", "large"),
)
def target_large(loss: float, size: float, count: float, gradient: float = math.nan, *, factor: float = TARGET_LARGE) -> Judged:
    """Judge the first *loss* of a *count* of outputs of a *size*; *gradient* is the size of its gradient there.

    With a loss that is c times the sum of squares of what the outputs are off by, the gradient is 2 c times that, so that 2 loss /
    (count gradient) is its root mean square whatever c is. Where c is less than that of a mean, or of half of one, most of the loss
    is something else, and nothing is known; nor where it is shared by several outputs, which an infinite *gradient* says. The mean
    of absolute errors has a gradient of 1 / count: it is what outputs are off by.
    """
    total = count * gradient
    is_linear = abs(total - 1.0) < LINEAR
    is_squared = total * total >= 4 * HALF_A_MEAN * loss
    off: Any = np.where(is_linear, loss, np.where(is_squared, 2 * loss / np.maximum(total, 1e-300), 0.0))
    total_off = np.sqrt(np.maximum(loss, 0.0) / count)
    off = np.where(
        np.isnan(gradient), total_off, np.where((off == 0) & (total_off >= SUMMED_OFF * np.maximum(size, 1.0)), total_off, off)
    )
    yield off >= factor * np.maximum(size, 1.0)
    yield off
    yield f"outputs of size {short(size)} are off their targets by {short(off)} at first: these are far larger"
