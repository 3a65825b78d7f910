"""Checks that train a copy: is one batch learnt, are inputs better than zeros, and which learning rates work."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch

from sonde import rules
from sonde.answer import Check
from sonde.diagnosis.preflight.loss_calls import REGRESSION, LossCall, LossCalls, is_probability
from sonde.diagnosis.preflight.parameter_checks import frozen_end
from sonde.diagnosis.preflight.sample_checks import inputs_of, zero_inputs
from sonde.diagnosis.preflight.subject import Subject, UnjudgedError, norm_of, take_gradient
from sonde.engine import Trial, graph_nodes, parameters
from sonde.rules import Finding
from sonde.words import names_text, percent, short

_HALF, _WELL = 0.5, 0.9  # falls of a cross-entropy: expected of a batch that is learnt, and of one that is learnt well
_LEARNT = 1e-3  # loss, as a share of a cross-entropy's guess, that is as good as 0
_FACTORS = (0.01, 0.1, 1.0, 10.0, 100.0)  # of the learning rate
_SHORT = 12  # steps for each of these
_NOISE = 0.02  # rise of the loss, as a share of it, that dropout and small batches explain
_WARM = 5  # part of the steps, in which the learning rate of a schedule is reached
_FEWEST = 20  # steps after which a training is judged
_FAR = 1.5  # times the loss that needs no inputs, from which on the training has not come to its end
_LONGER = 4  # times the steps, in which real inputs may be learnt better than zeros after all
_SLIGHT = 0.01  # of the fall of the loss
_RATES = (1e-3, 1e-2)  # of Adam

Make = Callable[[Trial], torch.optim.Optimizer]


def train(subject: Subject, make: Make, steps: int, change: Callable[[Trial], None] | None = None, *, warm: int = 0) -> list[float]:
    """Return the loss of each step of a training on the one batch, on a copy, as long as there is time.

    In the first *warm* steps the learning rates rise to those of the optimizer.

    Raises:
        UnjudgedError: the parameters are no copies, or the loss requires no gradient.
    """
    curve: list[float] = []
    with subject.trial() as trial:
        if not trial.is_free:
            raise UnjudgedError("needs a copy of the parameters, which are too large, or cannot be copied")
        if change is not None:
            change(trial)
        optimizer = make(trial)
        rates: list[Any] = [group["lr"] for group in optimizer.param_groups] if warm else []
        while len(curve) < steps and (subject.time_left > 0 or not curve):
            loss = trial.loss()
            if loss is None or not loss.requires_grad:
                raise UnjudgedError("the loss requires no gradient")
            curve.append(float(loss.detach()))
            if not math.isfinite(curve[-1]) or (len(curve) > _FEWEST and abs(curve[-1]) < _LEARNT * abs(curve[0])):
                break
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            for group, rate in zip(optimizer.param_groups, rates, strict=True) if len(curve) <= warm else ():
                group["lr"] = rate * (len(curve) / warm)
            trial.step(optimizer)
        with LossCalls() as calls:
            trial.loss()
        subject.last_calls = calls.found
        for call in calls.found:
            call.let_go()
    return curve


def _is_scheduled(subject: Subject) -> bool:
    """Return whether a schedule has lowered the learning rate of the optimizer."""
    if subject.optimizer is not None and not subject.scheduled:
        with subject.trial() as trial:
            subject.make_optimizer(trial)
    return bool(subject.scheduled)


def _adam(rate: float) -> Make:
    def make(trial: Trial) -> torch.optim.Optimizer:
        trained = [each for each in trial.model.parameters() if each.requires_grad]
        if any(getattr(module, "sparse", False) for module in trial.model.modules()):  # gradients that Adam does not take
            return torch.optim.Adagrad(trained, lr=10 * rate)
        return torch.optim.Adam(trained, lr=rate)

    return make


def overfit(subject: Subject) -> Check:
    """Judge whether a training on the one batch lowers its loss.

    With the given optimizer the loss must fall; with Adam, at one of two rates, a cross-entropy must halve as well.
    """
    _ = subject.finite_loss
    if not any(size is not None for size in subject.first.gradients.values()):
        raise UnjudgedError("no parameter has a gradient")
    warm = max(1, subject.steps // _WARM) if _is_scheduled(subject) else 0
    whose = f"the optimizer at {subject.scheduled}" if warm else "the optimizer"
    given: list[tuple[str, Make]] = [(whose, subject.make_optimizer)] if subject.optimizer is not None else []
    found: list[Finding] = []
    said: list[str] = []
    ends: list[float] = []  # the losses to which the trainings of these have come
    falls = False  # the loss of the last training, at its end
    guess = _guess(subject)
    for name, make in [*given, *((f"Adam at {rate:g}", _adam(rate)) for rate in _RATES)]:
        run = partial(train, subject, make, warm=warm * (make == subject.make_optimizer))
        curve = run(subject.steps)
        if len(curve) < min(_FEWEST, subject.steps) and math.isfinite(curve[-1]) and abs(curve[-1]) > _LEARNT * abs(curve[0]):
            if not said:
                raise UnjudgedError(f"only {len(curve)} steps in the time: give more seconds=")
            break
        of_given = _of_given(subject)
        said.append(f"{short(curve[0])} to {short(_last(curve))} in {len(curve)} steps with {name}{of_given}")
        subject.curve = subject.curve or curve
        is_small, half = abs(curve[0]) <= _LEARNT, _expected(subject)
        judged = None if is_small or of_given else rules.judge("not_overfit", curve[0], _last(curve), half=half, guess=guess)
        if is_small or rules.judge("not_overfit", curve[0], _last(curve), half=half) is None:
            subject.learnt = curve, run
        if judged is None:
            break
        found.append(judged)
        ends.append(_last(curve))
        falls = _still_falls(curve)
    words = f"one batch: {'; '.join(said)}"
    below = _below_bound(subject)
    if below is not None:
        subject.learnt = None
        return Check("overfit", words, (below,))
    is_learnt = len(found) < len(said)
    is_better = any(each.severity == "warn" and end < _NEAR * guess for each, end in zip(found[1:], ends[1:], strict=True))
    if given and found and found[0].severity == "bad" and (is_learnt or is_better):
        advice = (
            _maximized(subject)
            or _summed(subject)
            or _of_eps(subject)
            or frozen_end(subject)
            or "look at the learning rate of the optimizer, and at the parameters that it holds"
        )
        if warm:  # the rate that a schedule is made from may be one that it never reaches
            advice = "look at which learning rates the schedule sets"
        words_of = f"{found[0].message} with {whose}; Adam learns it"
        wrong = replace(found[0], message=words_of, advice=advice, severity="note" if warm else "bad")
        return Check("overfit", words, (wrong,))
    if is_learnt:
        return Check("overfit", f"{words}{_endless(subject.curve)}")
    best = max(found, key=lambda each: each.value if math.isfinite(each.value) else -math.inf)
    if best.severity == "warn" and falls:
        best = replace(best, message=f"{best.message}, and still falls: give more steps=", severity="note")
    elif _NEAR * guess <= min(ends) < math.inf:
        best = replace(best, message=f"{best.message}; a guess that is equal for all samples has {short(guess)} at best")
    if subject.drawn:
        best = replace(best, advice=f"look at the loss function: {subject.drawn}")
    return Check("overfit", words, (best,))


def _of_given(subject: Subject) -> str:
    """Return that those terms of a loss fall whose targets were given, beside others, as of codes; ``""`` where that is not so."""
    both = [[call for call in calls if not call.is_predicted] for calls in (subject.first.calls, subject.last_calls)]
    if not 0 < len(both[0]) < len(subject.first.calls):
        return ""
    ends = [sum(call.mean(call.input) for call in calls) for calls in both]
    is_learnt = rules.judge("not_overfit", *ends) is None
    return f" (its terms with given targets: {short(ends[0])} to {short(ends[1])})" if is_learnt else ""


def _still_falls(curve: list[float]) -> bool:
    return curve[0] - _last(curve) > (1 + _NOISE) * (curve[0] - _last(curve[: len(curve) * 4 // 5]))


def _endless(curve: list[float]) -> str:
    """Return that a loss falls far below 0 and comes to no end, in words; ``""`` of another one."""
    is_far = bool(curve) and _last(curve) < min(0.0, 2 * curve[0]) and _still_falls(curve)
    return "; it falls below 0, and still falls" if is_far else ""


def _maximized(subject: Subject) -> str:
    """Return the advice about an optimizer that makes the loss larger; ``""`` of another one."""
    with subject.trial() as trial:
        is_up = any(group.get("maximize") for group in trial.make_optimizer(subject.optimizer).param_groups)
    return "leave maximize=True out of the optimizer: it makes the loss larger" if is_up else ""


def _of_eps(subject: Subject) -> str:
    """Return the advice about an optimizer whose eps is far larger than usual; ``""`` of another one."""
    with subject.trial() as trial:
        held = [float(group.get("eps") or 0.0) for group in trial.make_optimizer(subject.optimizer).param_groups]
    return f"its eps is {max(held):g}, and gradients are divided by it: 1e-8 is usual" if max(held) >= _EPS else ""


_EPS = 1e-3


def _summed(subject: Subject) -> str:
    """Return the advice about a loss that is the sum over its samples, whose gradients grow with their number; ``""`` of a mean."""
    count = subject.first.summed
    if not count:
        return ""
    call = next((call for call in subject.first.calls if call.summed), None)
    what = "the loss function adds" if call is None else f'{call.name} has reduction="sum", and adds'
    return f"{what} {count:,} samples: take the mean, or divide the loss, or the learning rate, by their number"


def _below_bound(subject: Subject) -> Finding | None:
    """Return the finding of a loss that a training brings below its bound: one that grows, or whose arguments are wrong."""
    last = subject.curve[-1] if subject.curve else math.nan
    calls = [call for call in subject.first.calls if not call.is_predicted]
    grown = [call for call in calls if call.is_reversed]
    if grown and (last < 0 or (len(grown) == len(calls) and last < subject.curve[0])):
        call = grown[0]
        is_sure = any(call.input.untyped_storage().data_ptr() == place for place in subject.first.memory)
        words = f"the loss falls to {short(last)} as {call.name} grows, which measures the error"
        advice = f"take the minus sign before {call.name} away; leave it where another model is trained against this loss"
        return Finding("loss_reversed", words, value=last, severity="bad" if is_sure else "warn", advice=advice)
    if subject.first.raised and _endless(subject.curve):
        words = f"the loss falls to {short(last)}, and still falls, since it makes {subject.first.raised}"
        advice = "take minus their mean; leave it where what they belong to is to become unlikely"
        if "differences" in subject.first.raised:
            advice = "turn the sign of the loss; leave it where outputs are to become other than what is given"
        return Finding("loss_reversed", words, value=last, severity="warn", advice=advice)
    for call in subject.last_calls:
        if call.least is not None and call.least < -_TINY:
            words = f"{call.name} falls below 0, to {short(call.least)}, which no right argument brings it to"
            return Finding("loss_below_bound", words, value=call.least, severity="bad", advice=_WANTED.get(call.name, ""))
    if not _endless(subject.curve) or len(subject.curve) < _THIRDS:
        return None
    third = len(subject.curve) // 3
    early, middle, late = (median(subject.curve[begin : begin + third]) for begin in (0, third, 2 * third))
    found = rules.judge("loss_unbounded", late, middle, early, subject.curve[0], highest=max(subject.curve))
    if found is None or not _subtracts_divergence(subject):
        return found and replace(found, severity="note")
    words = f"{found.message}: it subtracts squares and exponentials of outputs, as of a divergence"
    advice = "add the divergence of an encoder, -0.5 * (1 + logvar - mu**2 - logvar.exp()), and do not subtract it"
    return replace(found, message=words, severity="warn", advice=advice)


def _subtracts_divergence(subject: Subject) -> bool:
    """Return whether a loss subtracts squares and exponentials, which have no upper end, as a divergence."""
    with subject.trial() as trial:
        loss = trial.loss()
        terms = [] if loss is None or loss.grad_fn is None else list(graph_nodes.weighed_in(loss.grad_fn))
        below = {graph_nodes.operation_of(node): node for node, weight in terms if float(weight) < 0}
        return "Exp" in below and getattr(below.get("Pow"), "_saved_exponent", 0) == _SQUARE


_SQUARE = 2


_THIRDS = 60  # steps, of whose thirds it is said that the last one falls fastest


_TINY = 1e-3  # below 0, that rounding explains
_WANTED = {
    "cross_entropy": "targets that are probabilities lie from 0 to 1",
    "nll_loss": "nll_loss takes log-probabilities: log_softmax before it, or cross_entropy in its place",
    "kl_div": "kl_div takes log-probabilities as input, and probabilities as target, each of which sums to 1",
    "binary_cross_entropy": "targets lie from 0 to 1",
    "binary_cross_entropy_with_logits": "targets lie from 0 to 1",
}


def _expected(subject: Subject) -> float:
    """Return the fall that is expected of the loss, as a share of it: that of a cross-entropy over classes is known.

    It halves that of a guess, where it begins above it. One over samples, whose labels are their places, may not halve: its logits
    are similarities, which have a bound; nor one beside a divergence, whose targets may be others.
    """
    calls = [call for call in subject.first.calls if call.name in ("cross_entropy", "nll_loss")]
    if not calls or all(_is_of_pairs(call) for call in calls) or any(call.name == "kl_div" for call in subject.first.calls):
        return 0.0
    whole = _whole_loss(subject)
    return _HALF if whole is None else 1 - _HALF * min(1.0, whole.scale / subject.loss)


def _guess(subject: Subject) -> float:
    """Return the loss of the best outputs that are all equal; infinite where it is not known, or small by imbalanced labels."""
    call = None if subject.first.over_samples else _whole_loss(subject)
    found = None if call is None or _is_of_pairs(call) else _without_inputs(subject, call.target.numel())
    if call is None or found is None:
        return math.inf
    least = (_LEARNT if call.name in REGRESSION else _SHARE) * min(subject.loss, call.scale)
    return found if found > least else math.inf


_SHARE = 0.1  # of the loss, which imbalanced labels may have as a guess
_NEAR = 0.98  # of a guess, to which outputs that are all equal come


def _is_of_pairs(call: LossCall) -> bool:
    indices = call.indices
    return indices is not None and call.input.dim() == 2 and call.input.shape[0] == call.classes == len(indices.unique())


def _whole_loss(subject: Subject) -> LossCall | None:
    """Return the call of a loss function of torch whose mean is the loss; None where there is none."""
    calls = subject.first.calls
    if len(calls) != 1 or calls[0].is_predicted or calls[0].name == "kl_div" or not math.isfinite(subject.loss):
        return None
    return calls[0] if abs(calls[0].mean(calls[0].input) - subject.loss) <= 1e-3 * abs(subject.loss) else None


def _without_inputs(subject: Subject, samples: int) -> float | None:
    """Return the loss of the best outputs that are equal for all samples, position by position; None where it is not known.

    A model whose inputs are zeros alone has no better ones: a recurrent one may still have another output at each position.
    """
    call = _whole_loss(subject)
    if call is None or call.target.numel() % samples:
        return None
    rows = call.target.reshape(samples, -1)
    if call.name in REGRESSION:
        middle = rows.mean(0) if call.name == "mse_loss" else rows.median(0).values
        return call.mean(middle.expand_as(rows).reshape(call.target.shape)) if call.input.shape == call.target.shape else None
    if any(call.kwargs.get(name) is not None for name in ("weight", "pos_weight")) or call.kwargs.get("label_smoothing"):
        return None
    if call.name.startswith("binary") and is_probability(call.target):
        ones = rows.double().mean(0)
        return float((torch.special.entr(ones) + torch.special.entr(1 - ones)).mean())
    if call.indices is None:
        return None
    counted = (rows >= 0) & (rows != call.kwargs.get("ignore_index", -100))
    labels, place = rows[counted].unique(return_inverse=True)
    column = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)[counted]
    size = len(labels) * rows.shape[1]
    counts = torch.bincount(place * rows.shape[1] + column, minlength=size).reshape(len(labels), -1).double()
    total = counts.sum(0)
    entropy = -(torch.xlogy(counts, counts / total.clamp(min=1))).sum()
    return float(entropy / total.sum().clamp(min=1))


def _last(curve: list[float]) -> float:
    return curve[-1] if not math.isfinite(curve[-1]) else median(curve[-5:])


def zeroed_inputs(subject: Subject) -> Check:
    """Judge whether a training on the real inputs reaches a lower loss than the same on zeroed ones."""
    _ = subject.loss
    if subject.learnt is None:
        raise UnjudgedError("needs a batch that is learnt (overfit)")
    curve, run = subject.learnt
    wanted = _WELL if _expected(subject) else _HALF
    if rules.judge("not_overfit", curve[0], _last(curve), least=wanted) is not None:
        raise UnjudgedError(f"needs a batch whose loss falls by {percent(wanted)} or more: give more steps=")
    names = set(inputs_of(subject))
    real = _last(curve)
    held = {tensor.shape[0] for tensor in inputs_of(subject).values() if tensor.dim()}
    if not names or max(held, default=0) < 2:
        raise UnjudgedError("needs inputs of two samples or more")
    constant = _without_inputs(subject, max(held))
    if constant is not None and constant <= _LEARNT * min(curve[0], subject.first.calls[0].scale):
        raise UnjudgedError(f"the targets differ too little: outputs that are equal for all samples have {short(constant)}")
    if constant is not None and real < _HALF * constant:
        said = f"real inputs are learnt to {short(real)}; outputs that are equal for all samples have {short(constant)} at best"
        return Check("zeroed_inputs", said)
    if constant is not None and real < _WELL * constant:
        raise UnjudgedError(f"needs a batch that is learnt better than {short(constant)}, which needs no inputs: give more steps=")
    if constant is not None and real > _FAR * constant:
        raise UnjudgedError(
            f"needs a batch that is learnt to {short(constant)}, which needs no inputs, or better: give more steps="
        )
    zeroed = run(len(curve), zero_inputs(subject, names))
    if not math.isfinite(_last(zeroed)) or len(zeroed) < min(_FEWEST, len(curve)):
        raise UnjudgedError("the training on zeroed inputs came to no end")
    found = rules.judge("zeroed_as_good", max(curve[0], zeroed[0]), real, _last(zeroed))
    if found is not None and _last(run(_LONGER * len(curve))) < _WELL * _last(zeroed):
        raise UnjudgedError(
            f"real inputs are learnt better than zeros, to {short(_last(zeroed))}, in more steps alone: give more steps="
        )
    if real - _last(zeroed) > _SLIGHT * (curve[0] - real):  # zeros are easier to model: the inputs are what is learnt
        found = None
    if found is not None and constant is None:
        words = f"{found.message}; so it is as well where the targets are nearly the same for all samples"
        found = replace(found, message=words, severity="note")
    said = f"zeroed inputs are learnt to {short(_last(zeroed))}, real ones to {short(_last(curve))}"
    return Check("zeroed_inputs", said, () if found is None else (found,))


def learning_rate(subject: Subject) -> Check:
    """Try learning rates around the given one, a few steps each, and name those with which the loss falls."""
    if subject.optimizer is None:
        raise UnjudgedError("needs optimizer=")
    _ = subject.finite_loss
    rate = 0.0
    falls: dict[float, float] = {}
    for factor in _FACTORS:

        def make(trial: Trial, factor: float = factor) -> torch.optim.Optimizer:
            nonlocal rate
            made = subject.make_optimizer(trial)
            rate = next((float(group["lr"]) for group in made.param_groups if group["lr"] > 0), 0.0)
            for group in made.param_groups:
                scaled: Any = group["lr"] * factor
                group["lr"] = scaled
            return made

        curve = train(subject, make, _SHORT)
        if subject.time_left <= 0:
            break
        falls[factor] = (curve[0] - min(curve[-3:])) / max(abs(curve[0]), 1e-30) if all(map(math.isfinite, curve)) else -math.inf
    if len(falls) < len(_FACTORS) or rate == 0:
        raise UnjudgedError("no time is left: give more seconds=" if rate else "the learning rate is 0 at the first step")
    best = max(falls, key=lambda factor: falls[factor])
    wrong = [factor for factor in _FACTORS if factor > best and falls[factor] < -_NOISE]
    limit = f"; it rises from {short(rate * min(wrong))} on" if wrong else ""
    most = percent(max(falls[best], 0.0))
    given = subject.scheduled or short(rate)
    said = f"given {given}; in {_SHORT} steps the loss falls most ({most}) at {short(rate * best)}{limit}"
    found: list[Finding] = []
    if falls[1.0] < -_NOISE and falls[best] > 0:
        words = f"at the given rate of {given} the loss rises, at {short(rate * best)} it falls by {percent(falls[best])}"
        found.append(
            Finding(
                "step_large",
                words,
                value=rate,
                evidence={"rate": rate, "best": rate * best},
                advice=_summed(subject) or "lower the learning rate, or warm it up",
            )
        )
    elif falls[1.0] < -_NOISE and falls[best] < _SLIGHT:
        found += _against(subject, rate)
    if subject.scheduled:  # as above: what is said is enough
        found = [each for each in found if each.rule != "step_large"]
    return Check("learning_rate", said, tuple(found))


def _against(subject: Subject, rate: float) -> list[Finding]:
    """Return why a loss rises at the given *rate* and falls at none: a gradient of the wrong sign, else the steps.

    The gradient is tried by steps against it that should lower the loss by hundredths, from one random state: of each parameter.
    """
    before = subject.finite_loss

    def make_change(share: float, only: str = "") -> Callable[[Trial], None]:
        def change(trial: Trial) -> None:
            take_gradient(trial)
            held = [(each, each.grad) for name, each, _ in parameters(trial.model) if only in ("", name)]
            pairs = [(each, gradient) for each, gradient in held if gradient is not None]
            square = sum(norm_of(gradient) ** 2 for _, gradient in pairs)
            for each, gradient in pairs:
                each.sub_(gradient, alpha=share * abs(before) / max(square, 1e-30))

        return change

    if subject.loss_after(make_change(0.0)) != before:  # random, or of buffers that a forward writes
        return []
    words = f"the loss rises at the given rate of {short(rate)}, and falls at none that was tried"
    sizes = {name: size for name, size in subject.first.gradients.items() if size}
    main = sorted(sizes, key=lambda name: -sizes[name])[:_MOST]
    reversed_ = [
        name
        for name in main
        if sizes[name] >= _PART * sizes[main[0]]
        and all(before - subject.loss_after(make_change(share, name)) < -_REVERSED * share * abs(before) for share in _SHARES)
    ]
    if reversed_:
        words += f"; a small step against the gradient of {names_text(reversed_)} alone raises it: the gradient has the wrong sign"
        advice = "look for a gradient reversal, a hook or a backward of your own; leave it where a part is to make the loss larger"
        share = len(reversed_) / len(main)
        return [Finding("gradient_reversed", words, f"{reversed_[0]}:grad", value=share, severity="warn", advice=advice)]
    falls = [before - subject.loss_after(make_change(share)) for share in _SHARES]
    if all(fall > _REVERSED * share * abs(before) for fall, share in zip(falls, _SHARES, strict=True)):
        advice = _maximized(subject) or _summed(subject) or "lower the learning rate; look at the other settings of the optimizer"
        words += "; small steps against its gradient lower it"
        return [Finding("step_large", words, value=rate, evidence={"rate": rate}, severity="bad", advice=advice)]
    return []


_SHARES = (1e-2, 1e-3)  # of the loss, by which a step against the gradient should lower it
_MOST, _PART = 24, 0.03  # parameters that are tried one by one, and the size of their gradient beside the largest
_REVERSED = 0.1  # of that, which no curvature and no rounding explain in both steps
