"""Checks of the loss: its shapes, what goes into it, and its first value."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import nn

from sonde import rules
from sonde.answer import Check
from sonde.diagnosis.preflight.label_checks import is_of_layer
from sonde.diagnosis.preflight.loss_calls import DIFFERENCE, PRODUCT, REGRESSION, LossCall, LossCalls, is_probability
from sonde.diagnosis.preflight.sample_checks import DROPOUTS, inputs_of
from sonde.diagnosis.preflight.subject import Subject, UnjudgedError
from sonde.engine import Trial, as_arguments, moved_axes, parameters, remap, unwrap, walk
from sonde.graph import named_inputs
from sonde.rules import Finding
from sonde.words import many, names_text, percent, shape_text, short

_WHY = "sonde.why_nan(model, batch, loss_fn) names the operation"
_HALF = "float16 ends at 65,504: scale what goes in, or compute in bfloat16, or keep float32 weights and use autocast"
_FEWEST = 16  # elements from 0 to 1 that are no chance


def runs(subject: Subject) -> Check:
    """Judge whether a forward and backward pass ends, with finite numbers."""
    found = subject.first
    if found.error is not None:
        text = str(found.error).strip().splitlines()
        words = f"{type(found.error).__name__}: {text[0] if text else ''}"
        finding = Finding(
            "raises", words, severity="bad", advice="sonde.summary(model, batch, on_error='partial') shows how far it came"
        )
        return Check("runs", "forward, loss and backward", (finding,))
    wrong = []
    if found.loss is not None and not math.isfinite(found.loss):
        wrong.append(Finding("nonfinite", f"the loss is {found.loss}", severity="bad", advice=_WHY))
        places = [(layer.name, each) for layer in found.layers for each in layer.findings if each.rule == "nonfinite"]
        places.sort(key=lambda place: place[1].message.startswith("gradient"))
        for name, each in places[:1]:  # what others hold comes from there
            kind = found.limits.get(name, (0.0, torch.float32))[1]
            others = many(len(places) - 1, "other place")
            more = f"; so {'is' if len(places) == 2 else 'are'} {others}" * (len(places) > 1)
            advice = _HALF if kind is torch.float16 and "inf" in each.message else each.advice
            wrong.append(replace(each, message=f"{each.message}{more}", site=f"{name}:output", advice=advice))
    broken = [name for name, size in found.gradients.items() if size is not None and not math.isfinite(size)]
    if broken:
        words = f"the gradients of {many(len(broken), 'parameter')} are not finite: {names_text(broken)}"
        wrong.append(Finding("nonfinite", words, f"{broken[0]}:grad", severity="bad", advice=_WHY))
    said = "forward, no loss" if found.loss is None else f"forward and backward; the loss is {short(found.loss)}"
    return Check("runs", said, tuple(wrong))


def loss_shape(subject: Subject) -> Check:
    """Judge whether the loss compares each output with its own target."""
    _ = subject.loss
    found = [_told_pairs(subject, *pair) for pair in dict.fromkeys(subject.first.pairs)]
    count = subject.first.summed
    if count:
        words = f"the loss adds up {count:,} samples, so that its gradients grow with their number"
        found.append(Finding("loss_summed", words, value=float(count), severity="note", advice="take the mean over the samples"))
    mixed = next((call.name for call in subject.first.calls if call.is_mixed), None)
    if mixed is not None:
        words = f"a view between the model and {mixed} mixes classes with the other axes"
        found.append(Finding("samples_mixed", words, severity="bad", advice=moved_axes.CLASSES_LAST))
    calls = ", ".join(dict.fromkeys(call.name for call in subject.first.calls))
    return Check("loss_shape", calls or "a loss function of your own", _some(found))


def _told_pairs(subject: Subject, what: str, samples: int, pairs: int) -> Finding | None:
    """Return the finding that a loss compares each output with each target, or multiplies each with each.

    An ``(N, N)`` tensor of the model is one of samples by samples if it has N - 1 rows and columns where it is given one less.
    """
    found = rules.judge("loss_broadcast", samples, abs(pairs), what=what, is_sure=what not in (DIFFERENCE, PRODUCT))
    batch = {tensor.shape[0] for _, tensor in walk(as_arguments(subject.batch)) if tensor.dim()}
    if found is None or (what == PRODUCT and samples not in batch):
        return None
    if what == PRODUCT:
        words = f"the loss multiplies each of {samples:,} samples with each: one factor has the shape (N, 1) beside (N,)"
        return replace(found, message=words, advice=_ONE_SHAPE)
    if pairs > 0:
        return found

    def shorten(trial: Trial) -> None:
        trial.args, trial.kwargs = remap(
            (trial.args, trial.kwargs), lambda tensor: tensor[1:] if tensor.dim() and len(tensor) == samples else tensor
        )

    with contextlib.suppress(RuntimeError, ValueError, IndexError):  # of a model that takes no other number of samples
        shapes = [[tuple(tensor.shape) for tensor in subject.outputs(change)] for change in (None, shorten)]
        if (samples, samples) in shapes[0] and (samples - 1, samples - 1) in shapes[1]:
            words = f"{found.message}; the model itself returns {samples:,} x {samples:,} numbers"
            return replace(found, message=words, advice=f"look for (N, 1) beside (N,) in the forward: {_ONE_SHAPE}")
    return None


_ONE_SHAPE = "give both the same shape, by squeeze(1) or unsqueeze(1)"


def loss_input(subject: Subject) -> Check:
    """Judge whether logits go where logits are wanted."""
    judged = [call for call in subject.first.calls if call.name not in (*REGRESSION, "binary_cross_entropy", "kl_div")]
    over, logs = subject.first.over_samples, subject.first.given_logs
    if not judged and not over and not logs:
        raise UnjudgedError("no cross-entropy was seen")
    found = _some(_of_input(call) or _told_bounded(subject, call) for call in judged)
    found = _some(_told_logs(*each) for each in dict.fromkeys(logs) if not over) or found
    mixed = rules.judge("samples_mixed", math.inf, 0.0) if over else None
    if mixed is not None:
        words = f"the loss takes a softmax over axis 0 of {shape_text(over)}: over the samples, and not over the classes"
        found = (replace(mixed, message=words, value=float(over[0]), advice="take it over the classes: log_softmax(-1)"), *found)
    if not judged:
        return Check("loss_input", "log-probabilities" if logs and not found else "a softmax of your own", found)
    said = "" if found else "log-probabilities" if judged[0].name == "nll_loss" else "logits"
    return Check("loss_input", said or judged[0].name, found)


def _told_logs(function: str, given: str) -> Finding | None:
    """Return the finding that a *function* of logarithms of probabilities is *given* something else."""
    if "softmax" in given:
        found, advice = rules.judge("samples_mixed", math.inf, 0.0), "take it over the axis of classes, where it then stands"
    else:
        found, advice = rules.judge("softmax_twice", bool(given), math.nan), "give it log_softmax of them"
    return found and replace(found, message=f"{function} is given {given}", advice=advice)


def _told_bounded(subject: Subject, call: LossCall) -> Finding | None:
    """Return the finding that what makes the logits keeps all probabilities far off the labels.

    Not of samples that are compared with each other, whose labels are places.
    """
    (what, low, high), classes = call.reaches, call.classes
    labels, is_binary = call.indices, call.name.startswith("binary")
    if not what or not math.isfinite(high - low) or call.is_predicted:
        return None
    if is_binary and bool(((call.target == 0) | (call.target == 1)).all()):
        ends = [1 / (1 + math.exp(-each)) for each in (low, high)]
        share = float(((call.target == 1) * (1 - ends[1] > _UNLIKELY) + (call.target == 0) * (ends[0] > _UNLIKELY)).double().mean())
    elif labels is not None and len(labels.unique()) < len(labels) and is_of_layer(subject, classes):
        ends = [1 / (1 + (classes - 1) * math.exp(each)) for each in (high - low, low - high)]
        share = float(1 - ends[1] - float(call.kwargs.get("label_smoothing") or 0.0) > _UNLIKELY)
    else:
        return None
    found = rules.judge("target_beyond", share, *ends, what=what, is_chance=True)
    return found and replace(found, advice=_WIDER)


_UNLIKELY = 0.2  # a label is by which it is more likely, or less, than logits can say
_WIDER = "leave it out behind the last layer, or multiply what it returns by 10 or more, or by a number that is trained"


def _of_input(call: LossCall) -> Finding | None:
    given = call.input.float()
    rows = given.movedim(1, -1) if given.dim() > 1 else given[None]
    sums, is_wrong = rows.sum(-1), is_probability(rows)
    if call.name == "binary_cross_entropy_with_logits":
        sums, is_wrong = given, given.numel() >= _FEWEST and float(given.max()) > float(given.min()) and is_probability(given)
    elif call.name == "nll_loss":
        is_wrong = is_wrong and bool((rows.exp().sum(-1) - 1).abs().max() >= 0.05)
    else:
        tolerance = max(rows.shape[-1] * torch.finfo(call.input.dtype).eps, 1e-5)
        is_wrong = is_wrong and bool(((sums - 1).abs() <= tolerance).all())
    if is_wrong:
        return rules.judge("softmax_twice", sums.numel(), float(sums.mean()), what=call.name)
    is_cut = call.made_by in _CUTS and given.numel() >= _FEWEST and float(given.min()) == 0 < float(given.max())
    share = float((given == 0).float().mean()) if is_cut else 0.0
    dropped = float((given == 0).float().mean()) if call.made_by == "NativeDropout" else 0.0
    if dropped > _CUT:
        words = f"{call.name} is given logits of which {percent(dropped)} are 0: a dropout stands behind the last layer"
        return Finding(
            "dropped", words, value=dropped, severity="warn", advice="leave it out, or put it in front of the last layer"
        )
    words = (
        f"{call.name} is given no logit below 0, and {percent(share)} of them are 0: a relu or a clamp stands behind the last layer"
    )
    advice = "leave it out: a logit below 0 says that a class is unlikely"
    return Finding("logits_cut", words, value=share, severity="warn", advice=advice) if share > _CUT else None


_CUT = 0.05
_FAR_TARGETS = 100.0  # times the size of outputs, or 1, that targets are off them
_SHARP = 100.0
_CUTS = ("Relu", "Clamp", "ClampMin", "Maximum", "Hardtanh", "Threshold", "Where")


def initial_loss(subject: Subject) -> Check:
    """Judge the first loss against a guess: equal classes, or the mean of the targets."""
    _ = subject.loss
    found: list[Finding | None] = []
    said = ""
    for place, call in enumerate(subject.first.calls):
        if not call.is_predicted and (judged := _of_first(call)) is not None:
            found.append(None if judged[0] is None else _with_cause(subject, place, judged[0]))
            said = said or judged[1]
    if not said:
        raise UnjudgedError("no loss function of torch was seen whose guess is known")
    return Check("initial_loss", said, _some(found))


def _of_first(call: LossCall) -> tuple[Finding | None, str] | None:
    """Return the finding about the value of a call, and the value beside that of a guess in words; None if no guess is known."""
    if call.name in ("cross_entropy", "nll_loss"):
        loss, guess = call.mean(call.input), math.log(max(call.classes, 1))
        guess *= 1.0 if call.added_up is None else max(float(call.added_up.mean()), 0.0)
        if call.classes > 1 and math.isfinite(loss):
            said = f"{short(loss)}; a guess among {call.classes:,} classes has {short(guess)}"
            is_sharp = call.of_cosines and float(call.input.abs().max()) <= _SHARP  # a scale, as of pairs or margins, is meant
            return None if is_sharp else rules.judge("initial_loss", loss, guess), said
    elif call.name.startswith("binary"):
        loss, guess = call.mean(call.input), math.log(2)
        if call.kwargs.get("pos_weight") is None and call.kwargs.get("weight") is None:
            return rules.judge("initial_loss", loss, guess), f"{short(loss)}; a guess has {short(guess)}"
    elif call.name != "kl_div" and call.input.shape == call.target.shape and call.target.numel() > 1:
        target = call.target
        middle = target.mean() if call.name == "mse_loss" else target.median()
        loss, constant = call.mean(call.input), call.mean(torch.full_like(call.input, float(middle)))
        said = f"{short(loss)}; the mean of the targets alone has {short(constant)}"
        count, size = call.target.numel(), float(call.input.square().mean().sqrt())
        far = rules.judge("target_large", loss * count, size, count, factor=_FAR_TARGETS) if call.name == "mse_loss" else None
        return rules.judge("initial_error", loss, constant) or far, said
    return None


def _with_cause(subject: Subject, place: int, found: Finding) -> Finding:
    """Return the finding with its cause: a softmax over the samples, or large inputs or weights without which it would not be."""
    if subject.first.over_samples:
        return replace(found, advice="look at the finding about loss_input: the softmax is one over the samples")
    call = subject.first.calls[place]
    if call.name.startswith("binary") and not is_probability(call.target):
        return replace(found, advice="look at the finding about labels: the targets are not all from 0 to 1")
    for change, what, advice in _causes(subject):
        with subject.trial() as trial:
            with torch.no_grad():
                change(trial)
            with LossCalls() as calls:
                trial.loss()
        judged = _of_first(calls.found[place]) if place < len(calls.found) else None
        if judged is not None and judged[0] is None:
            loss = calls.found[place].mean(calls.found[place].input)
            return replace(found, message=f"{found.message}; with {what} it is {short(loss)}", advice=advice)
    return found


def _causes(subject: Subject) -> Iterator[tuple[Callable[[Trial], None], str, str]]:
    """Yield a change that takes a cause of large outputs away, what there is then, and an advice: of inputs, then of weights."""
    drops = [float(each.p) for each in subject.model.modules() if isinstance(each, DROPOUTS) and each.training and each.p > 0.5]
    if drops:
        yield _drop_nothing, "no dropout", f"lower the dropout, which leaves out {percent(max(drops))}"
    inputs = {name: held for name, held in inputs_of(subject).items() if held.is_floating_point() and held.isfinite().all()}
    large = {name: float(held.abs().max()) for name, held in inputs.items() if float(held.abs().max()) >= _LARGE_INPUT}
    if large:

        def scale(trial: Trial) -> None:
            for name, _, held in named_inputs(unwrap(subject.model), trial.args, trial.kwargs):
                if name in large:
                    held.detach().div_(_size(held).clamp(min=1.0))

        name = max(large, key=lambda each: large[each])
        columns = (
            (_size(inputs[name]).flatten() >= _LARGE_INPUT).nonzero()[:, 0]
            if inputs[name].dim() == 2
            else inputs[name].new_zeros(0)
        )
        where = ""
        if inputs[name].dim() == 2 and 0 < 2 * len(columns) < inputs[name].shape[1]:
            which = names_text([str(each) for each in columns.tolist()])
            where = f" in column{'s' * (len(columns) > 1)} {which} of {inputs[name].shape[1]:,}"
        advice = f"scale the inputs to mean 0 and deviation 1: {name} has magnitudes up to {short(large[name])}{where}"
        yield scale, "inputs of size 1", advice
    weights = {
        name: factor
        for name, held, owner in parameters(subject.model)
        if held.dim() > 1
        and held.is_floating_point()
        and not isinstance(owner.module, nn.Embedding)
        and (factor := _factor(held.detach())) >= _LARGE_WEIGHT
    }
    if len(weights) > 1 or (weights and next(iter(weights)).rpartition(".")[0] != subject.first.last):

        def shrink(trial: Trial) -> None:
            for name, held, _ in parameters(trial.model) if trial.is_free else ():
                if name in weights:
                    held.div_(weights[name])

        least = short(min(weights.values()))
        advice = f"begin with smaller weights: those of {names_text(weights)} are {least} times 1 / sqrt(inputs), or more"
        yield shrink, "weights of 1 / sqrt(inputs)", advice


_LARGE_INPUT, _LARGE_WEIGHT = 100.0, 4.0


def _drop_nothing(trial: Trial) -> None:
    for each in trial.model.modules():
        if isinstance(each, DROPOUTS):
            each.eval()


def _size(held: torch.Tensor) -> torch.Tensor:
    """Return the root mean square of each element over the samples."""
    return held.detach().double().square().mean(0, keepdim=True).sqrt().to(held.dtype)


def _factor(weight: torch.Tensor) -> float:
    """Return the root mean square of a weight over that which keeps the size of its inputs."""
    return float(weight.double().square().mean().sqrt()) * math.sqrt(weight[0].numel()) if weight.numel() else 0.0


def _some(found: Iterable[Finding | None]) -> tuple[Finding, ...]:
    return tuple(each for each in found if each is not None)
