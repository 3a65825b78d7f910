"""Checks that train a copy: is one batch learnt, are inputs better than zeros, and which learning rates work."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from sonde import rules
from sonde.answer import Check
from sonde.diagnosis.preflight.sample_checks import inputs_of, zero_inputs
from sonde.diagnosis.preflight.subject import Subject, UnjudgedError
from sonde.engine import Trial
from sonde.rules import Finding
from sonde.words import percent, short

_HALF, _WELL = 0.5, 0.9  # falls of a cross-entropy: expected of a batch that is learnt, and of one that is learnt well
_LEARNT = 1e-3  # loss, as a share of a cross-entropy's guess, that is as good as 0
_FACTORS = (0.01, 0.1, 1.0, 10.0, 100.0)  # of the learning rate
_SHORT = 12  # steps for each of these
_NOISE = 0.02  # rise of the loss, as a share of it, that dropout and small batches explain
_FEWEST = 20  # steps after which a training is judged
_RATES = (1e-3, 1e-2)  # of Adam

Make = Callable[[Trial], torch.optim.Optimizer]


def train(subject: Subject, make: Make, steps: int, change: Callable[[Trial], None] | None = None) -> list[float]:
    """Return the loss of each step of a training on the one batch, on a copy, as long as there is time.

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
        while len(curve) < steps and (subject.time_left > 0 or not curve):
            loss = trial.loss()
            if loss is None or not loss.requires_grad:
                raise UnjudgedError("the loss requires no gradient")
            curve.append(float(loss.detach()))
            if not math.isfinite(curve[-1]) or (len(curve) > _FEWEST and abs(curve[-1]) < _LEARNT * abs(curve[0])):
                break
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            trial.step(optimizer)
    return curve


def _of_user(subject: Subject) -> Make:
    return lambda trial: trial.make_optimizer(subject.optimizer)


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
    _ = subject.loss
    if not any(size is not None for size in subject.first.gradients.values()):
        raise UnjudgedError("no parameter has a gradient")
    given = [("the optimizer", _of_user(subject))] if subject.optimizer is not None else []
    found: list[Finding] = []
    said: list[str] = []
    falls = False  # the loss of the last training, at its end
    for name, make in [*given, *((f"Adam at {rate:g}", _adam(rate)) for rate in _RATES)]:
        curve = train(subject, make, subject.steps)
        if len(curve) < min(_FEWEST, subject.steps) and math.isfinite(curve[-1]) and abs(curve[-1]) > _LEARNT * abs(curve[0]):
            if not said:
                raise UnjudgedError(f"only {len(curve)} steps in the time: give more seconds=")
            break
        said.append(f"{short(curve[0])} to {short(_last(curve))} in {len(curve)} steps with {name}")
        subject.curve = subject.curve or curve
        judged = rules.judge("not_overfit", curve[0], _last(curve), half=_expected(subject)) if abs(curve[0]) > _LEARNT else None
        if judged is None:
            subject.learnt = curve, make
            break
        found.append(judged)
        falls = curve[0] - _last(curve) > (1 + _NOISE) * (curve[0] - _last(curve[: len(curve) * 4 // 5]))
    words = f"one batch: {'; '.join(said)}"
    is_learnt = subject.learnt is not None or any(each.severity == "warn" for each in found[1:])
    if given and found and found[0].severity == "bad" and is_learnt:
        advice = "look at the learning rate of the optimizer, and at the parameters that it holds"
        wrong = replace(found[0], message=f"{found[0].message} with the optimizer; Adam learns it", advice=advice)
        return Check("overfit", words, (wrong,))
    if subject.learnt is not None or not found:
        return Check("overfit", words)
    best = max(found, key=lambda each: each.value if math.isfinite(each.value) else -math.inf)
    if best.severity == "warn" and falls:
        best = replace(best, message=f"{best.message}, and still falls: give more steps=", severity="note")
    return Check("overfit", words, (best,))


def _expected(subject: Subject) -> float:
    """Return the fall that is expected of the loss, as a share of it: that of a cross-entropy is known."""
    return _HALF if any(call.name in ("cross_entropy", "nll_loss") for call in subject.first.calls) else 0.0


def _last(curve: list[float]) -> float:
    return curve[-1] if not math.isfinite(curve[-1]) else median(curve[-5:])


def zeroed_inputs(subject: Subject) -> Check:
    """Judge whether a training on the real inputs reaches a lower loss than the same on zeroed ones."""
    _ = subject.loss
    if subject.learnt is None:
        raise UnjudgedError("needs a batch that is learnt (overfit)")
    curve, make = subject.learnt
    wanted = _WELL if _expected(subject) else _HALF
    if rules.judge("not_overfit", curve[0], _last(curve), least=wanted) is not None:
        raise UnjudgedError(f"needs a batch whose loss falls by {percent(wanted)} or more: give more steps=")
    names = set(inputs_of(subject))
    held = {tensor.shape[0] for tensor in inputs_of(subject).values() if tensor.dim()}
    if not names or max(held, default=0) < 2:
        raise UnjudgedError("needs inputs of two samples or more")
    zeroed = train(subject, make, len(curve), zero_inputs(subject, names))
    if not math.isfinite(_last(zeroed)) or len(zeroed) < min(_FEWEST, len(curve)):
        raise UnjudgedError("the training on zeroed inputs came to no end")
    found = rules.judge("zeroed_as_good", max(curve[0], zeroed[0]), _last(curve), _last(zeroed))
    said = f"zeroed inputs are learnt to {short(_last(zeroed))}, real ones to {short(_last(curve))}"
    return Check("zeroed_inputs", said, () if found is None else (found,))


def learning_rate(subject: Subject) -> Check:
    """Try learning rates around the given one, a few steps each, and name those with which the loss falls."""
    if subject.optimizer is None:
        raise UnjudgedError("needs optimizer=")
    _ = subject.loss
    rate = 0.0
    falls: dict[float, float] = {}
    for factor in _FACTORS:

        def make(trial: Trial, factor: float = factor) -> torch.optim.Optimizer:
            nonlocal rate
            made = trial.make_optimizer(subject.optimizer)
            rate = float(made.param_groups[0]["lr"])
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
    said = f"given {short(rate)}; in {_SHORT} steps the loss falls most ({most}) at {short(rate * best)}{limit}"
    found: list[Finding] = []
    if falls[1.0] < -_NOISE and falls[best] > 0:
        words = f"at the given rate of {short(rate)} the loss rises, at {short(rate * best)} it falls by {percent(falls[best])}"
        found.append(
            Finding(
                "step_large",
                words,
                value=rate,
                evidence={"rate": rate, "best": rate * best},
                advice="lower the learning rate, or warm it up",
            )
        )
    return Check("learning_rate", said, tuple(found))
