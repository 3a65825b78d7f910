"""Checks of the parameters: which get a gradient, which the optimizer holds, and how far its first step moves them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import nn

from sonde import rules
from sonde.answer import Check
from sonde.diagnosis.preflight.subject import Subject, UnjudgedError, norm_of, take_gradient
from sonde.engine import Trial, parameters, repeated_layers, unwrap
from sonde.rules import Finding, Severity
from sonde.words import names_text, short

_MOST = 24  # parameters that are changed one by one
_LATER = 10  # the step that is judged where the first one is like no other


_STARTS = (
    "only the first step of a sequence goes into the loss, before any state has been passed on: look at which step is taken (the "
    "last is output[:, -1] with batch_first=True, else output[-1]), and at the axis of steps"
)


def gradients(subject: Subject) -> Check:
    """Judge which parameters no gradient reaches, and why."""
    loss = subject.loss
    ran = subject.ran
    missing = [name for name, size in ran.gradients.items() if size is None]
    zero = [name for name, size in ran.gradients.items() if size == 0]
    frozen = [name for name, parameter, _ in parameters(subject.model) if not parameter.requires_grad]
    found = []
    if not ran.gradients:
        found.append(Finding("frozen", "no parameter requires a gradient", severity="bad", advice="requires_grad_(True)"))
    cut = _cut_off(subject, missing, loss)
    found += [replace(each, site=f"{name}:param") for name, each in cut.items()]
    unused = _never_run(subject, [name for name in missing if name not in cut])
    if unused:
        words = f"the loss does not depend on {len(unused)} trainable parameters: {names_text(unused)}"
        advice = (
            "use them, freeze them with requires_grad_(False), or take them away; an expert that this batch does not need may stay"
        )
        found.append(Finding("unreached", words, f"{unused[0]}:param", value=float(len(unused)), severity="warn", advice=advice))
    found += [*_told_zero(subject, zero), *_told_small(subject, loss)]
    if ran.alike:
        words = f"all units of {names_text(ran.alike)} are equal, and so are their gradients: they stay equal"
        found.append(Finding("alike", words, f"{ran.alike[0]}:param", severity="warn", advice="begin with random weights"))
    found += [*_all_one(subject, zero), *_held_twice(subject)]
    if ran.foreign:
        words = f"{len(ran.foreign)} tensors get a gradient and are no parameters of the model: {names_text(ran.foreign)}"
        advice = "keep layers in nn.ModuleList, nn.ModuleDict or as attributes, and tensors in nn.Parameter"
        found.append(Finding("unregistered", words, value=float(len(ran.foreign)), severity="warn", advice=advice))
    if fronts := _frozen_front(subject):
        words = f"all {len(fronts)} weights in front of what is trained are frozen as they were initialised: {names_text(fronts)}"
        advice = "load a checkpoint into them, or train them; leave it where random features are meant"
        found.append(Finding("frozen", words, f"{fronts[0]}:param", value=float(len(fronts)), severity="warn", advice=advice))
    elif end := frozen_end(subject):
        found.append(Finding("frozen", end, f"{ran.last}:output", severity="warn", advice="train it, or load its weights"))
    reached = sum(size is not None and size > 0 for size in ran.gradients.values())
    tied = _tied(unwrap(subject.model))
    said = f"{reached:,} of {len(ran.gradients):,} trainable parameters have one"
    said += f"; {len(frozen):,} frozen" if frozen else ""
    said += f"; tied: {names_text([' = '.join(names) for names in tied])}" if tied else ""
    return Check("gradients", said, tuple(found))


def _held_twice(subject: Subject) -> list[Finding]:
    """Return the findings of layers that a list holds at several places."""
    rows = repeated_layers(unwrap(subject.model))
    found = [(row[0], rules.judge("held_twice", len(row), layer=f"{row[0]} to {row[-1]}")) for row in rows]
    return [replace(each, site=f"{name}:param", advice=rules.updates.EACH_LAYER) for name, each in found if each is not None]


def _all_one(subject: Subject, zero: list[str]) -> list[Finding]:
    """Return the findings of weights that are all one number: 0, and stay so, or another one, which hides differences of inputs.

    *zero* are names of parameters whose gradient is zero throughout. A weight of 0 without one may get one once others have moved.
    """
    layers = {name for name, _, owner in parameters(subject.model) if _is_of_units(owner.module)}
    held = {
        name: float(parameter.detach().max())
        for name, parameter, owner in parameters(subject.model)
        if parameter.dim() > 1
        and parameter.is_floating_point()
        and len(parameter) > 1
        and parameter[0].numel() > 1
        and parameter.layout is torch.strided
        and not isinstance(owner.module, nn.Embedding)
        and subject.first.gradients.get(name) is not None
        and float(parameter.detach().max()) == float(parameter.detach().min())
    }
    found = []
    still = [name for name, number in held.items() if number == 0 and name in zero and name not in subject.awake_later]
    if still:
        words = f"all weights of {names_text(still)} are 0 and stay 0: they get no gradient, nor where others have moved"
        advice = "begin with random weights; zeros are for the last layer of a branch alone"
        found.append(Finding("zero_weights", words, f"{still[0]}:param", value=0.0, severity="warn", advice=advice))
    alike = [name for name, number in held.items() if number != 0 and name in layers and name not in subject.first.alike]
    if alike:
        words = f"all weights of {names_text(alike)} are one number: {short(held[alike[0]])}"
        advice = "begin with random weights"
        found.append(Finding("alike", words, f"{alike[0]}:param", value=held[alike[0]], severity="warn", advice=advice))
    return found


def _is_of_units(module: nn.Module) -> bool:
    """Return whether all units of a layer have the same inputs, so that they must differ in their weights."""
    return isinstance(module, _OF_UNITS) and getattr(module, "groups", 1) == 1


_OF_UNITS = (nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase, nn.MultiheadAttention)


def _frozen_front(subject: Subject) -> list[str]:
    """Return the frozen weights, if all of them, two or more, run before all that are trained, and are as they were initialised.

    A copy of what is trained, as that of a momentum encoder, is none of them.
    """
    order = [layer.name for layer in subject.first.layers]
    weights = [
        (name, held, order.index(layer))
        for name, held, _ in parameters(subject.model)
        if held.dim() > 1 and held.numel() >= _MANY and (layer := name.rpartition(".")[0]) in order
    ]
    still, trained = ([each for each in weights if each[1].requires_grad is moves] for moves in (False, True))
    if len(still) < 2 or not trained or max(at for *_, at in still) > min(at for *_, at in trained):
        return []
    is_copy = any(one.shape == other.shape and torch.equal(one, other) for _, one, _ in still for _, other, _ in trained)
    return [] if is_copy or not all(_is_initial(held.detach()) for _, held, _ in still) else [name for name, *_ in still]


def frozen_end(subject: Subject) -> str:
    """Return that the last layer is frozen with weights as torch initialises them, in words; ``""`` where that is not so."""
    ran = subject.first
    own = [held for name, held, _ in parameters(subject.model) if name.rpartition(".")[0] == ran.last]
    weight = next((held.detach() for held in own if held.dim() > 1 and held.numel() >= _MANY), None)
    if not ran.last or weight is None or not ran.gradients or any(held.requires_grad for held in own):
        return ""
    return f"the last layer, {ran.last}, is frozen, and its weights are as torch initialises them" if _is_initial(weight) else ""


def _is_initial(weight: torch.Tensor) -> bool:
    """Return whether a weight is as torch initialises those of layers, or as transformers does: normal, of deviation 0.02."""
    bound = 1 / math.sqrt(weight[0].numel())
    numbers = weight.double()
    largest, spread = float(numbers.abs().max()), float(numbers.std())
    is_flat = 0.8 * bound < largest <= bound * (1 + 1e-6) and abs(spread - bound / math.sqrt(3)) < 0.15 * bound
    tails = float(numbers.pow(4).mean()) / max(spread, 1e-30) ** 4
    is_normal = abs(spread / 0.02 - 1) < 0.05 + 3 / math.sqrt(2 * weight.numel()) and abs(tails - 3) < 0.5 + 15 / math.sqrt(
        weight.numel()
    )
    return is_flat or is_normal


_MANY = 16


def _never_run(subject: Subject, names: list[str]) -> list[str]:
    """Return those of *names* whose layer is in other forwards as in the first one, and not left out by chance."""
    layers = {name: name.rpartition(".")[0] for name in names}
    idle = [name for name in names if layers[name] not in subject.first.called]
    others = subject.layers_of(_PASSES) if idle else {}
    return [name for name in names if name not in idle or layers[name] not in others]


_PASSES = 8  # forwards, in one of which a layer runs that is left out by chance


def _told_zero(subject: Subject, zero: list[str]) -> list[Finding]:
    """Return the findings of parameters whose gradient is *zero* throughout: biases that cancel out, and others."""
    ran = subject.ran
    every = len(zero) == len(ran.gradients)
    is_dead = any(each.rule in ("dead", "all_zero") for layer in ran.layers for each in layer.findings)
    asleep = [] if every or is_dead else [name for name in zero if name not in subject.awake_later]
    cancelled = _cancelled(subject, asleep)
    groups = [cancelled, [name for name in asleep if name not in cancelled]] if asleep else [zero]
    found = []
    for told in filter(None, groups):
        later = f", nor {'does it' if len(told) == 1 else 'do they'} get one once others have moved" if asleep else ""
        many = "one parameter" if len(told) == 1 else f"{len(told)} parameters"
        words = f"the gradient of {many} is zero throughout{later}: {names_text(told)}"
        starts = all("weight_hh" in each and ran.gradients.get(each.replace("weight_hh", "weight_ih")) for each in told)
        advice = ("look at the findings about dead layers" if is_dead else _BEHIND) if every else ""
        severity: Severity = "bad" if every else "warn" if asleep else "note"
        if asleep:
            advice = _STARTS if starts else _STOPPED
        if told is cancelled:
            words += f"; the loss does not depend on {'it' if len(told) == 1 else 'them'}, as where a distance takes a bias away"
            severity, advice = "note", "leave it be, or leave this bias out (bias=False)"
        found.append(Finding("gradient_zero", words, f"{told[0]}:grad", value=0.0, severity=severity, advice=advice))
    return found


def _told_small(subject: Subject, loss: float) -> list[Finding]:
    """Return the finding of a gradient that is next to nothing of the slope of the loss, as behind a hook that multiplies it.

    Both are compared for the largest of weights whose gradient is small beside that of others, along it.
    """
    sizes = {
        name: size for name, held, _ in parameters(subject.model) if held.dim() > 1 and (size := subject.first.gradients.get(name))
    }
    largest = max(sizes.values(), default=0.0)
    small = sorted((name for name, size in sizes.items() if size <= _SMALL * largest), key=lambda name: -sizes[name])[:_TRIED]
    found: dict[str, float] = {}

    def make_change(name: str, way: float) -> Callable[[Trial], None]:
        def change(trial: Trial) -> None:
            take_gradient(trial)
            held = next(each for own, each, _ in parameters(trial.model) if own == name)
            if trial.is_free and held.grad is not None:
                held.add_(held.grad, alpha=way * _MOVED * norm_of(held) / norm_of(held.grad))

        return change

    for name in small if math.isfinite(loss) and subject.loss_after(lambda trial: None) == loss else ():
        held = next(each for own, each, _ in parameters(subject.model) if own == name)
        slope = (subject.loss_after(make_change(name, 1.0)) - subject.loss_after(make_change(name, -1.0))) / (
            2 * _MOVED * norm_of(held)
        )
        if abs(slope) * _MOVED * norm_of(held) > _SHIFTED * abs(loss) and abs(slope) >= _TIMES * sizes[name]:
            found[name] = sizes[name] / abs(slope)
    if not found:
        return []
    name = next(iter(found))
    words = f"the gradient of {names_text(found)} is {short(found[name])} x the slope of the loss"
    advice = "look for a hook, a factor or a backward of your own that makes gradients small; leave it where a part is to stay"
    return [Finding("gradient_scaled", words, f"{name}:grad", value=found[name], severity="warn", advice=advice)]


_SMALL, _TRIED = 1e-3, 3  # beside the largest gradient; weights that are tried
_MOVED, _TIMES = 0.03, 100.0  # of a weight, by which it is moved both ways; times a gradient, that a slope is by no curvature


_BEHIND = "look for what has no slope behind the last layer: an argmax, a rounding, a comparison, a factor of 0"
_STOPPED = "look for a hook that sets gradients to zero, a factor of 0, a mask, units behind them that are shut"


def _cancelled(subject: Subject, names: list[str]) -> list[str]:
    """Return which of *names* are biases, of layers whose weights get a gradient, if the loss does not change where these do."""
    sizes, loss = subject.first.gradients, subject.loss
    layers = {name.rpartition(".")[0] for name, held, _ in parameters(subject.model) if held.dim() > 1 and sizes.get(name)}
    lines = {name for name, held, _ in parameters(subject.model) if held.dim() == 1 and name.rpartition(".")[0] in layers}
    biases = [name for name in names if name in lines]

    def shift(trial: Trial) -> None:
        for name, parameter, _ in parameters(trial.model) if trial.is_free else ():
            if name in biases:
                parameter.add_(torch.linspace(0.5, 1.5, len(parameter), device=parameter.device).to(parameter))

    is_same = bool(biases) and math.isfinite(loss) and abs(subject.loss_after(shift) - loss) <= _SHIFTED * abs(loss)
    return biases if is_same else []


_SHIFTED = 1e-4  # of a loss, which rounding changes where biases are added and taken away


def _cut_off(subject: Subject, names: list[str], loss: float) -> dict[str, Finding]:
    """Return a finding for each of the parameters *names*, which have no gradient, that the loss depends on."""
    if not names or not math.isfinite(loss):
        return {}

    def change_of(wanted: set[str]) -> Callable[[Trial], None]:
        def change(trial: Trial) -> None:
            if not trial.is_free:
                raise UnjudgedError("needs a copy of the parameters, which are too large, or cannot be copied")
            for name, parameter, _ in parameters(trial.model):
                if name in wanted:
                    parameter.mul_(-1.5).add_(0.1)

        return change

    if subject.loss_after(change_of(set())) != loss:  # the loss is random: a change says nothing
        return {}
    if _same(subject.loss_after(change_of(set(names))), loss):
        return {}
    found = {}
    for name in names[:_MOST]:
        other = subject.loss_after(change_of({name}))
        each = None if _same(other, loss) else rules.judge("cut_off", abs(other - loss) if math.isfinite(other) else math.inf, loss)
        if each is not None:
            found[name] = each
    return found


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-6 * abs(other)


def _tied(model: nn.Module) -> list[list[str]]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [each for each in names.values() if len(each) > 1]


def optimizer(subject: Subject) -> Check:
    """Judge whether the optimizer holds each trained parameter once."""
    given = subject.optimizer
    if not isinstance(given, torch.optim.Optimizer):
        raise UnjudgedError(
            "needs optimizer=, the optimizer itself" if given is None else "a function makes the optimizer from all parameters"
        )
    held = Counter(id(parameter) for group in given.param_groups for parameter in group["params"])
    own = {id(parameter): name for name, parameter, _ in parameters(subject.model)}
    trained = [(name, parameter) for name, parameter, _ in parameters(subject.model) if parameter.requires_grad]
    sizes = subject.first.gradients
    judged = [(name, parameter) for name, parameter in trained if sizes.get(name, 0.0) is not None or id(parameter) in held]
    found = [(name, rules.judge("missing_in_optimizer", held[id(parameter)])) for name, parameter in judged]
    wrong = [replace(each, site=f"{name}:param") for name, each in found if each is not None]
    foreign = sum(key not in own for key in held)
    if foreign:
        words = f"{foreign:,} of its {len(held):,} parameters are none of this model's"
        advice = "make the optimizer after the model is complete, and after it was moved or wrapped"
        wrong.append(
            Finding(
                "missing_in_optimizer",
                words,
                value=float(foreign),
                severity="bad" if foreign == len(held) else "note",
                advice=advice,
            )
        )
    still = {id(parameter) for group in _still(given) for parameter in group["params"]}
    unmoved = [name for name, parameter in judged if id(parameter) in still]
    if unmoved:
        words = f"the learning rate of {len(unmoved)} parameters is 0, and that of others is not: {names_text(unmoved)}"
        advice = "give their group a learning rate, or freeze them with requires_grad_(False)"
        wrong.append(Finding("rate_zero", words, f"{unmoved[0]}:param", value=0.0, severity="warn", advice=advice))
    said = f"{type(given).__name__} holds {len(held):,} parameters"
    return Check("optimizer", said, tuple(wrong))


def _still(given: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the groups that have learning rate 0, and are not to have another later, where another group has a larger one."""
    still = [group for group in given.param_groups if float(group["lr"]) == 0 and not float(group.get("initial_lr", 0.0))]
    return still if any(float(group["lr"]) > 0 for group in given.param_groups) else []


def first_update(subject: Subject) -> Check:
    """Judge how far the first step of the optimizer moves the weights."""
    if subject.optimizer is None:
        raise UnjudgedError("needs optimizer=")
    _ = subject.finite_loss
    with subject.trial() as trial:
        if not trial.is_free:
            raise UnjudgedError("needs a copy of the parameters, which are too large, or cannot be copied")
        stepper = subject.make_optimizer(trial)
        loss = trial.loss()
        if loss is None or not loss.requires_grad:
            raise UnjudgedError("the loss requires no gradient")
        stepper.zero_grad()
        torch.autograd.backward(loss)
        held = {id(parameter) for group in stepper.param_groups for parameter in group["params"]}
        held -= {id(parameter) for group in _still(stepper) for parameter in group["params"]}
        known = [
            (name, parameter, isinstance(owner.module, nn.Embedding))
            for name, parameter, owner in parameters(trial.model)
            if parameter.dim() > 1 and parameter.is_floating_point() and parameter.grad is not None and id(parameter) in held
        ]
        plain = [(name, parameter, None) for name, parameter, is_table in known if not is_table]
        tables = [(name, parameter, _rows_of(parameter)) for name, parameter, is_table in known if is_table and not plain]
        weights = [each for each in (*plain, *tables) if each[1].grad is not None and norm_of(each[1].grad) > 0]
        before = [_taken(parameter, rows).clone() for _, parameter, rows in weights]
        sizes = [norm_of(each.grad) / math.sqrt(each.grad.numel()) for _, each, _ in weights if each.grad is not None]
        trial.step(stepper)
        ratios = {name: _ratio(old, _taken(parameter, rows)) for (name, parameter, rows), old in zip(weights, before, strict=True)}
        eps = max((torch.finfo(parameter.dtype).eps for _, parameter, _ in weights), default=0.0)
        decayed = [each for each in map(rules.judge, itertools.repeat("decay_large"), *_decays(stepper)) if each is not None]
    if not ratios:
        raise UnjudgedError("no weight matrix that the optimizer steps has a gradient")
    if isinstance(stepper, torch.optim.Adagrad):  # the first step is as large as the learning rate, whatever the gradient
        ratios = {name: ratio / math.sqrt(_LATER) for name, ratio in ratios.items()}
    middle, worst = median(ratios.values()), max(ratios, key=lambda name: ratios[name])
    huge = next(iter(decayed), None) or rules.judge("step_large", middle) or rules.judge("update_huge", ratios[worst])
    if subject.scheduled:  # the rate that a schedule is made from may be one that it never reaches
        huge = None
    if huge is not None and len(ratios) == 1 and huge.rule != "decay_large":  # one layer is learnt in steps of any size, as a head
        huge = replace(huge, severity="note")
    if huge is not None and huge.rule == "update_huge":
        huge = replace(huge, site=f"{worst}:update")
    found = [huge, rules.judge("step_lost", middle, eps), _told_eps(stepper, sizes)]
    most = short(100 * ratios[worst])
    said = f"a step moves a weight by {short(100 * middle)} % of its size (median of {len(ratios):,}), {most} % at most"
    said += f", at the learning rate {subject.scheduled}" if subject.scheduled else ""
    return Check("first_update", said, tuple(each for each in found if each is not None))


def _told_eps(given: torch.optim.Optimizer, sizes: Sequence[float]) -> Finding | None:
    """Return the finding that *eps* of an optimizer is far above the *sizes* of gradients, so that it does not divide by these."""
    divides = [group for group in given.param_groups if "betas" in group or "alpha" in group]  # Adam and its kin, RMSprop
    eps = max((float(group.get("eps") or 0.0) for group in divides), default=0.0)
    size = median(sizes)
    if eps < _EPS or eps < _ABOVE * size:
        return None
    words = (
        f"eps {eps:g} of {type(given).__name__} is {short(eps / size)} x the gradients (median {size:.1e}), so that steps are small"
    )
    return Finding("eps_large", words, value=eps, severity="warn", advice=rules.RULES["eps_large"].advice)


_EPS, _ABOVE = 0.01, 10.0  # smaller ones are set on purpose; times the size of a gradient


def _taken(parameter: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """Return the *rows* of a parameter, without a graph; None: the whole."""
    return parameter.detach() if rows is None else parameter.detach()[rows]


def _rows_of(table: torch.Tensor) -> torch.Tensor:
    """Return the rows of an embedding that have a gradient: no others were looked up."""
    assert table.grad is not None
    return table.grad.to_dense().abs().sum(1).nonzero()[:, 0]


def _decays(given: torch.optim.Optimizer) -> tuple[list[float], list[float]]:
    """Return the learning rates and the decays of the groups whose decay is taken off the weights, as SGD and AdamW do."""
    held = [group for group in given.param_groups if "dampening" in group or group.get("decoupled_weight_decay")]
    return [float(group["lr"]) for group in held], [float(group.get("weight_decay", 0.0)) for group in held]


def _ratio(before: torch.Tensor, after: torch.Tensor) -> float:
    """Update / weight; a weight counts as at least as large as torch would initialise it, 1 / sqrt(3 inputs)."""
    inputs = before[0].numel()
    moved = float((after.double() - before.double()).square().mean().sqrt())
    size = max(float(before.double().square().mean().sqrt()), 1 / math.sqrt(3 * inputs))
    return moved / size
