"""Rules about a model, a batch and a loss before a training begins."""

from __future__ import annotations

import math

import numpy as np

from sonde.rules.finding import Judged, entry
from sonde.words import percent, short


@entry(
    "a module is in evaluation mode; or, in a training, two validation losses or more, and most of them, come from passes in "
    "training mode, of a model that has a dropout or a batch normalisation; or what goes in is 5 x as large in evaluation as in "
    "training, or a fifth of that, or its means are 3 deviations apart, or three validation losses come without a pass of the "
    "model, where the validation loss rises or stands",
    "nn.Module.eval(): dropout is off, batch normalisation uses running statistics",
    "call model.train() before the training, unless these modules are kept in evaluation mode on purpose",
    brings=("overfitting", "loss_stuck"),
)
def eval_mode(evaluated: int, modules: int, forgotten: float = 0.0, *, what: str = "") -> Judged:
    """Judge how many of the *modules* are *evaluated*, which means in evaluation mode.

    Where losses were *forgotten*, which means taken in training mode, judge these beside others that were evaluated; *what* acts.
    """
    yield ((evaluated > 0) & (forgotten == 0)) | ((forgotten >= 2) & (forgotten > evaluated))
    yield np.maximum(forgotten, evaluated)
    yield (
        f"validation losses come from passes in training mode, in which {what} acts as in training"
        if forgotten
        else "the model is in eval mode"
        if evaluated == modules
        else f"{evaluated:,} of {modules:,} modules are in eval mode"
    )
    yield "warn" if forgotten or evaluated == modules else "note"


@entry(
    "a class index below 0 or beyond the last class",
    "torch.nn.functional.cross_entropy: 0 <= target < classes, or ignore_index",
    "count the classes of the data, and make the last layer as wide; classes begin at 0; ignore_index is -100 by default",
    severity="bad",
)
def labels_outside(low: int, high: int, classes: int) -> Judged:
    """Judge the smallest and the largest class index against the number of *classes*."""
    yield (low < 0) | (high >= classes)
    yield high
    yield f"class indices from {low} to {high}, and the loss has {classes} classes (0 to {classes - 1})"


@entry(
    "a loss of two tensors of shapes (N, 1, ...) and (N, ...), or a product with one in it, which broadcast to (N, N, ...)",
    "torch warns: this will likely lead to incorrect results due to broadcasting",
    "give both the same shape: output.squeeze(1), or target.unsqueeze(1)",
    brings=("loss_stuck", "bounded"),
    about=("setup", "lost"),
)
def loss_broadcast(samples: int, compared: int, *, what: str = "the loss", is_sure: bool = True) -> Judged:
    """Judge how many elements are *compared* in the loss of so many *samples*; *what* names the function."""
    yield compared > samples
    yield compared
    yield f"{what} compares each output with each target: {compared:,} pairs of {samples:,} samples"
    yield "bad" if is_sure else "warn"


@entry(
    "what goes into a cross-entropy is already a probability: rows of softmax, or outputs of a sigmoid; or what goes into a loss "
    "of logarithms of probabilities, or into a Dice or IoU loss, is none",
    "torch.nn.functional.cross_entropy and binary_cross_entropy_with_logits take logits; nll_loss takes log-probabilities",
    "leave out the softmax (or sigmoid) in the model; before nll_loss use log_softmax",
    needs=("loss", "rms:grad_output"),
    severity="bad",
    evidence=("rows", "sum"),
    brings=("loss_stuck", "bounded"),
    about=("setup", "small"),
)
def softmax_twice(rows: int, sums: float, *, what: str = "cross_entropy") -> Judged:
    """Judge *rows* whose elements all lie between 0 and 1; *sums* is their mean sum. *what* names the function."""
    yield rows > 0
    yield sums
    sum_of = "with a mean of" if what.startswith("binary") else "rows sum to"
    yield f"{what} is given probabilities: all of them from 0 to 1, {sum_of} {short(sums)}"


@entry(
    "the first cross-entropy is 1.5 x that of a guess or more",
    "Karpathy, A recipe for training neural networks, 2019: verify loss @ init, -log(1 / classes); the factor is our own",
    "make the last layer's initial weights smaller, so that no class is preferred; look for outputs that grow through the layers",
)
def initial_loss(loss: float, guess: float, *, factor: float = 1.5) -> Judged:
    """Judge the first *loss*; *guess* is the loss where all classes are equally likely, ln(classes)."""
    yield loss >= factor * guess
    yield loss
    yield f"the first loss is {short(loss)}, and a guess has {short(guess)}"


@entry(
    "the first regression loss is 10 x that of a constant prediction or more",
    "Karpathy, A recipe for training neural networks, 2019: init well; the factor is our own",
    "scale the targets to mean 0 and deviation 1, or begin with the last bias at their mean",
)
def initial_error(loss: float, constant: float, *, factor: float = 10.0) -> Judged:
    """Judge the first *loss* against that of predicting the mean of the targets, their variance for a squared error."""
    yield (constant > 0) & (loss >= factor * constant)
    yield loss
    yield f"the first loss is {short(loss)}, and the mean of the targets alone has {short(constant)}"


@entry(
    "the loss changes with a parameter, and no gradient reaches it",
    "a graph that is cut: detach(), no_grad(), .data, .item(), a conversion to numpy, an argmax",
    "look for what cuts the graph between this layer and the loss",
    severity="bad",
)
def cut_off(change: float, loss: float, *, least: float = 0.0) -> Judged:
    """Judge the *change* of the *loss* after a change of a parameter without gradient; more than *least* is a finding."""
    yield change > least
    yield change
    yield "the loss depends on it, and no gradient reaches it"


@entry(
    "a parameter with a gradient that no parameter group of the optimizer holds, or one that is there twice",
    "torch.optim.Optimizer moves the parameters of its groups alone",
    "make the optimizer from model.parameters(), after the last layer was added or replaced; each parameter once",
    severity="bad",
)
def missing_in_optimizer(times: int) -> Judged:
    """Judge how many *times* a parameter is in the optimizer."""
    yield times != 1
    yield times
    yield "is not in the optimizer" if times == 0 else f"is {times} times in the optimizer"


@entry(
    "the median first update of the weights is below the rounding of their type",
    "IEEE 754, rounding to nearest; torch.finfo(dtype).eps",
    "raise the learning rate; keep parameters in float32 (autocast for the forward pass)",
)
def step_lost(ratio: float, eps: float) -> Judged:
    """Judge the median *ratio* of update to weight against the *eps* of the weights' type."""
    yield ratio < eps
    yield ratio
    yield f"the first step moves half of the weights by less than {short(eps)} of their size" if ratio else "no weight moves"


@entry(
    "one batch again and again, and the loss falls by less than 2 % (bad), or a cross-entropy by less than half, or to no less "
    "than that of outputs that are all equal (warn)",
    "Karpathy, A recipe for training neural networks, 2019: overfit one batch; the limits are our own",
    "look at the other findings first; then at the labels, the loss function and what is between them and the last layer",
)
def not_overfit(
    first: float, last: float, *, least: float = 0.02, half: float = 0.0, guess: float = math.inf, near: float = 0.98
) -> Judged:
    """Judge the *last* loss against the *first*; *half* is the fall that is expected of this loss, 0 if none is.

    *guess* is the loss of the best outputs that are all equal.
    """
    fall = (first - last) / np.maximum(abs(first), 1e-30)
    yield ~np.greater_equal(fall, max(least, half)) | (last >= near * guess)
    yield fall
    yield f"one batch is not learnt: the loss goes from {short(first)} to {short(last)}"
    yield "warn" if fall >= least else "bad"


@entry(
    "a training on zeroed inputs makes 0.9 x of the fall of the loss or more, and ends at no more than twice the loss",
    "Karpathy, A recipe for training neural networks, 2019: input-independent baseline; the limits are our own",
    "look at what happens to the input: a wrong index, a mask, a normalisation to 0, a layer without effect",
)
def zeroed_as_good(first: float, real: float, zeroed: float, *, share: float = 0.9, times: float = 2.0) -> Judged:
    """Judge the losses after equal trainings on the *real* and on the *zeroed* inputs; both began near *first*."""
    fall = first - real
    yield (fall > 0) & (first - zeroed >= share * fall) & ((real <= 0) | (zeroed <= times * real))
    yield zeroed
    yield f"zeroed inputs are learnt as well as real ones: {short(zeroed)} and {short(real)}"


@entry(
    "no element of the output changes where an input is zeroed, or where columns of it are exchanged among the samples; in a "
    "training, outputs are the same for all samples, though inputs differ, in the first 16 passes or more (or differ by 0.0001 of "
    "their size or less, and the loss has not fallen by a fifth in 100 steps), or because no gradient "
    "of them comes to an input, or for half of them in each of the first six; or none comes from the first output, and from others "
    "does; or in a model with attention no output reads another place than its own, or outputs do not change where tokens change "
    "places (in two training passes one depends on two equal tokens of its sample alike, of all such pairs, and the loss has not "
    "fallen by a fifth in 200 steps); or a softmax or a normalisation is over one element",
    "the output is a function of its inputs",
    "look at where the forward uses this input",
    brings=("outputs_alike", "loss_stuck", "gradient_zero", "rank_collapse", "constant", "penalty_alone"),
    about=("output", "lost"),
)
def input_unused(inputs: int, unused: int, *, name: str = "", has_layers: bool = False) -> Judged:
    """Judge the number of *unused* inputs of all *inputs*; *name* says which. With layers that are not used either, it is worse."""
    yield unused > 0
    yield unused
    yield f"the output does not depend on {name}"
    yield "bad" if unused == inputs else "warn" if has_layers else "note"


@entry(
    "the outputs of a sample change where another sample of the batch is exchanged, or those of a token where one of another "
    "row and column is; a recurrent layer has as many steps as there are samples, and another number of samples; or a loss is "
    "given a softmax over another axis than its classes, or targets that add up to 1 over the samples; or the softmax of an "
    "attention is over another axis than the one over which its values are added up; or in three passes "
    "neighbours of an input differ 0.7 x as much or less in one other order of axes, whose numbers a view has taken in a row",
    "Karpathy, A recipe for training neural networks, 2019: use backprop to chart dependencies",
    "look for a view or reshape where a transpose is meant, a softmax or mean over the batch axis, batch_first=False",
    brings=("loss_stuck", "bounded", "gradient_zero", "outputs_alike", "input_unused", "future_seen"),
    about=("setup", "lost"),
)
def samples_mixed(distance: float, limit: float, *, is_sure: bool = True, order: str = "", smoother: float = 0.7) -> Judged:
    """Judge the relative *distance* of a sample's outputs before and after; *limit* is what rounding explains.

    Or that of neighbours of an input with its axes in another *order*, which is its shape and that: of what it is as given.
    """
    yield distance <= smoother if order else distance > limit
    yield distance
    if order:
        given, _, before = order.partition(" ")
        yield (
            f"what goes in {given} is as if a view, or a reshape, had made it of a tensor {before}: in that order its neighbours "
            f"differ {short(distance)} x as much"
        )
        yield "warn"
        return
    yield f"samples of a batch are mixed: exchanging the others moves the outputs of one by {percent(min(distance, 1.0))}"
    yield "bad" if is_sure else "note"


@entry(
    "all of a loss compares outputs with outputs, by a distance, a cosine or a cross-entropy, and both sides are trained",
    "Chen and He, Exploring simple Siamese representation learning, 2021, section 4.1: without a stop-gradient, outputs collapse",
    "detach() the side that is the target, or compute it under no_grad(); where both are to learn, add what holds samples apart: "
    "other samples as negatives, or a term for the variance of outputs",
    needs=("loss",),
    brings=("rank_collapse", "penalty_alone"),
    about=("setup", "lost"),
)
def target_trained(sides: float) -> Judged:
    """Judge how many *sides* of the only comparison in a loss are trained."""
    yield sides >= 2
    yield sides
    yield "all that the loss compares is trained on both sides: the target moves too, and outputs that are all alike fit"


@entry(
    "two forwards from one random state give different outputs",
    "torch.use_deterministic_algorithms; docs: Reproducibility",
    "look for a random generator of its own, state that is kept between calls, or atomic additions on a GPU",
)
def random_output(distance: float, limit: float) -> Judged:
    """Judge the relative *distance* of the outputs of two forwards; *limit* is what rounding explains."""
    yield distance > 0
    yield distance
    yield f"two forwards from one random state differ by {distance:.1e}"
    yield "warn" if distance > limit else "note"
