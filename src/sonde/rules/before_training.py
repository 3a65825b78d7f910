"""Rules about a model, a batch and a loss before a training begins."""

from __future__ import annotations

from sonde.rules.finding import Finding, Severity, rule
from sonde.words import percent, short

__all__ = [
    "cut_off",
    "eval_mode",
    "initial_error",
    "initial_loss",
    "input_unused",
    "labels_outside",
    "loss_broadcast",
    "missing_in_optimizer",
    "not_overfit",
    "random_output",
    "samples_mixed",
    "softmax_twice",
    "step_lost",
    "zeroed_as_good",
]


@rule(
    "a module is in evaluation mode",
    "nn.Module.eval(): dropout is off, batch normalisation uses running statistics",
    "call model.train() before the training, unless these modules are kept in evaluation mode on purpose",
)
def eval_mode(evaluated: int, modules: int) -> Finding | None:
    """Judge how many of the *modules* are *evaluated*, which means in evaluation mode."""
    if not evaluated:
        return None
    severity: Severity = "warn" if evaluated == modules else "note"
    words = "the model is in eval mode" if evaluated == modules else f"{evaluated:,} of {modules:,} modules are in eval mode"
    return Finding("", words, value=float(evaluated), severity=severity, evidence={"evaluated": evaluated, "modules": modules})


@rule(
    "a class index below 0 or beyond the last class",
    "torch.nn.functional.cross_entropy: 0 <= target < classes, or ignore_index",
    "count the classes of the data, and make the last layer as wide; classes begin at 0; ignore_index is -100 by default",
)
def labels_outside(low: int, high: int, classes: int) -> Finding | None:
    """Judge the smallest and the largest class index against the number of *classes*."""
    if low >= 0 and high < classes:
        return None
    words = f"class indices from {low} to {high}, and the loss has {classes} classes (0 to {classes - 1})"
    return Finding("", words, value=float(high), severity="bad", evidence={"low": low, "high": high, "classes": classes})


@rule(
    "a loss of two tensors of shapes (N, 1) and (N,), which broadcast to (N, N)",
    "torch warns: this will likely lead to incorrect results due to broadcasting",
    "give both the same shape: output.squeeze(1), or target.unsqueeze(1)",
)
def loss_broadcast(samples: int, compared: int, *, what: str = "the loss", is_sure: bool = True) -> Finding | None:
    """Judge how many elements are *compared* in the loss of so many *samples*; *what* names the function."""
    if compared <= samples:
        return None
    words = f"{what} compares each output with each target: {compared:,} pairs of {samples:,} samples"
    evidence = {"samples": samples, "compared": compared}
    return Finding("", words, value=float(compared), severity="bad" if is_sure else "warn", evidence=evidence)


@rule(
    "what goes into a cross-entropy is already a probability: rows of softmax, or outputs of a sigmoid",
    "torch.nn.functional.cross_entropy and binary_cross_entropy_with_logits take logits; nll_loss takes log-probabilities",
    "leave out the softmax (or sigmoid) in the model; before nll_loss use log_softmax",
)
def softmax_twice(rows: int, sums: float, *, what: str = "cross_entropy") -> Finding | None:
    """Judge *rows* whose elements all lie between 0 and 1; *sums* is their mean sum. *what* names the function."""
    if not rows:
        return None
    words = f"{what} is given probabilities: all of them from 0 to 1, rows sum to {short(sums)}"
    return Finding("", words, value=sums, severity="bad", evidence={"rows": rows, "sum": sums})


@rule(
    "the first cross-entropy is 1.5 x that of a guess or more",
    "Karpathy, A recipe for training neural networks, 2019: verify loss @ init, -log(1 / classes); the factor is our own",
    "make the last layer's initial weights smaller, so that no class is preferred; look for outputs that grow through the layers",
)
def initial_loss(loss: float, guess: float, *, factor: float = 1.5) -> Finding | None:
    """Judge the first *loss*; *guess* is the loss where all classes are equally likely, ln(classes)."""
    if not loss >= factor * guess:
        return None
    words = f"the first loss is {short(loss)}, and a guess has {short(guess)}"
    return Finding("", words, value=loss, evidence={"loss": loss, "guess": guess})


@rule(
    "the first regression loss is 10 x that of a constant prediction or more",
    "Karpathy, A recipe for training neural networks, 2019: init well; the factor is our own",
    "scale the targets to mean 0 and deviation 1, or begin with the last bias at their mean",
)
def initial_error(loss: float, constant: float, *, factor: float = 10.0) -> Finding | None:
    """Judge the first *loss* against that of predicting the mean of the targets, their variance for a squared error."""
    if not (constant > 0 and loss >= factor * constant):
        return None
    words = f"the first loss is {short(loss)}, and the mean of the targets alone has {short(constant)}"
    return Finding("", words, value=loss, evidence={"loss": loss, "constant": constant})


@rule(
    "the loss changes with a parameter, and no gradient reaches it",
    "a graph that is cut: detach(), no_grad(), .data, .item(), a conversion to numpy, an argmax",
    "look for what cuts the graph between this layer and the loss",
)
def cut_off(change: float, loss: float, *, least: float = 0.0) -> Finding | None:
    """Judge the *change* of the *loss* after a change of a parameter without gradient; more than *least* is a finding."""
    if not change > least:
        return None
    return Finding(
        "",
        "the loss depends on it, and no gradient reaches it",
        value=change,
        severity="bad",
        evidence={"change": change, "loss": loss},
    )


@rule(
    "a parameter with a gradient that no parameter group of the optimizer holds, or one that is there twice",
    "torch.optim.Optimizer moves the parameters of its groups alone",
    "make the optimizer from model.parameters(), after the last layer was added or replaced; each parameter once",
)
def missing_in_optimizer(times: int) -> Finding | None:
    """Judge how many *times* a parameter is in the optimizer."""
    if times == 1:
        return None
    words = "is not in the optimizer" if times == 0 else f"is {times} times in the optimizer"
    return Finding("", words, value=float(times), severity="bad", evidence={"times": times})


@rule(
    "the median first update of the weights is below the rounding of their type",
    "IEEE 754, rounding to nearest; torch.finfo(dtype).eps",
    "raise the learning rate; keep parameters in float32 (autocast for the forward pass)",
)
def step_lost(ratio: float, eps: float) -> Finding | None:
    """Judge the median *ratio* of update to weight against the *eps* of the weights' type."""
    if not ratio < eps:
        return None
    words = f"the first step moves half of the weights by less than {short(eps)} of their size" if ratio else "no weight moves"
    return Finding("", words, value=ratio, evidence={"ratio": ratio, "eps": eps})


@rule(
    "one batch again and again, and the loss falls by less than 2 % (bad), or a cross-entropy by less than half (warn)",
    "Karpathy, A recipe for training neural networks, 2019: overfit one batch; the limits are our own",
    "look at the other findings first; then at the labels, the loss function and what is between them and the last layer",
)
def not_overfit(first: float, last: float, *, least: float = 0.02, half: float = 0.0) -> Finding | None:
    """Judge the *last* loss against the *first*; *half* is the fall that is expected of this loss, 0 if none is."""
    fall = (first - last) / max(abs(first), 1e-30)
    if fall >= max(least, half):
        return None
    severity: Severity = "bad" if not fall >= least else "warn"
    words = f"one batch is not learnt: the loss goes from {short(first)} to {short(last)}"
    return Finding("", words, value=fall, severity=severity, evidence={"first": first, "last": last})


@rule(
    "a training on zeroed inputs makes 0.9 x of the fall of the loss or more, and ends at no more than twice the loss",
    "Karpathy, A recipe for training neural networks, 2019: input-independent baseline; the limits are our own",
    "look at what happens to the input: a wrong index, a mask, a normalisation to 0, a layer without effect",
)
def zeroed_as_good(first: float, real: float, zeroed: float, *, share: float = 0.9, times: float = 2.0) -> Finding | None:
    """Judge the losses after equal trainings on the *real* and on the *zeroed* inputs; both began near *first*."""
    fall = first - real
    if not (fall > 0 and first - zeroed >= share * fall and (real <= 0 or zeroed <= times * real)):
        return None
    words = f"zeroed inputs are learnt as well as real ones: {short(zeroed)} and {short(real)}"
    return Finding("", words, value=zeroed, evidence={"first": first, "real": real, "zeroed": zeroed})


@rule(
    "no element of the output changes where an input is zeroed",
    "the output is a function of its inputs",
    "look at where the forward uses this input",
)
def input_unused(inputs: int, unused: int, *, name: str = "") -> Finding | None:
    """Judge the number of *unused* inputs of all *inputs*; *name* says which."""
    if not unused:
        return None
    severity: Severity = "bad" if unused == inputs else "note"
    words = f"the output does not depend on {name}"
    return Finding("", words, value=float(unused), severity=severity, evidence={"inputs": inputs, "unused": unused})


@rule(
    "the outputs of a sample change where another sample of the batch is exchanged",
    "Karpathy, A recipe for training neural networks, 2019: use backprop to chart dependencies",
    "look for a view or reshape where a transpose is meant, a softmax or mean over the batch axis, batch_first=False",
)
def samples_mixed(distance: float, limit: float, *, is_sure: bool = True) -> Finding | None:
    """Judge the relative *distance* of a sample's outputs before and after; *limit* is what rounding explains."""
    if not distance > limit:
        return None
    words = f"samples of a batch are mixed: exchanging one moves the outputs of others by {percent(min(distance, 1.0))}"
    severity: Severity = "bad" if is_sure else "note"
    return Finding("", words, value=distance, severity=severity, evidence={"distance": distance, "limit": limit})


@rule(
    "two forwards from one random state give different outputs",
    "torch.use_deterministic_algorithms; docs: Reproducibility",
    "look for a random generator of its own, state that is kept between calls, or atomic additions on a GPU",
)
def random_output(distance: float, limit: float) -> Finding | None:
    """Judge the relative *distance* of the outputs of two forwards; *limit* is what rounding explains."""
    if not distance > 0:
        return None
    severity: Severity = "warn" if distance > limit else "note"
    words = f"two forwards from one random state differ by {distance:.1e}"
    return Finding("", words, value=distance, severity=severity, evidence={"distance": distance, "limit": limit})
