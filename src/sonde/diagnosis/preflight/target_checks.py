"""Checks of targets: whether the model sees them, whether they are the inputs themselves, and whether the loss depends on them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from sonde import rules
from sonde.answer import Check
from sonde.diagnosis.preflight.loss_calls import REGRESSION, LossCall, LossCalls
from sonde.diagnosis.preflight.sample_checks import inputs_of, normalise_apart, paddings_of
from sonde.diagnosis.preflight.subject import Subject, UnjudgedError, distance_of, rounding_of
from sonde.engine import Trial, as_arguments, holds_graph, is_floating, parameters, remap, unwrap, walk
from sonde.graph import named_inputs
from sonde.rules import Finding
from sonde.words import percent, short

_TARGET = re.compile(r"label|target|(^|_)y($|_)", re.IGNORECASE)
_ROUNDING = 1e-5  # of a loss, where its terms are added in another order
_FEWEST = 8  # labels that are all predicted rightly by no chance


def future_unseen(subject: Subject) -> Check:
    """Judge, of a model that is to predict the next element of its input, whether it sees that element."""
    _ = subject.ran
    given = _sequences(subject)
    if not given:
        raise UnjudgedError("needs an input with an axis of positions beside that of samples: two samples, three positions or more")
    shifted = [(*one, axes) for call in subject.first.calls for one in given if (axes := _shifted_along(call, one[1])) is not None]
    if not shifted:
        raise UnjudgedError("the targets are not the inputs, shifted by one: the model may see the whole input")
    name, inputs, axes = shifted[0]
    far = _reaches_back(subject, inputs, *axes)
    if far is None:
        raise UnjudgedError(f"no output has the axis of {inputs.shape[axes[0]]:,} positions")
    found = []
    if far[0] > far[1]:
        moved = percent(min(far[0], 1.0))
        words = f"the model sees what it is to predict: outputs change by {moved} where only later elements of {name} do"
        found += _told("future_seen", words, far[0], 1.0)
    said = f"changing later elements of {name}" + ("" if found else " changes no earlier output")
    return Check("future_unseen", said, tuple(found))


def targets_apart(subject: Subject) -> Check:
    """Judge whether the targets are something else than the inputs, position by position, and than the model's own predictions."""
    _ = subject.loss
    calls = subject.ran.calls
    if not calls:
        raise UnjudgedError("no loss function of torch was seen")
    found = []
    made = _made_by_model(subject)
    if len(made) == len(calls) and all(map(_is_predicted, calls)):
        words = "all targets are the classes that the model itself predicts: the loss teaches it nothing"
        advice = "give the labels of the batch as target"
        found.append(Finding("target_predicted", words, severity="bad", advice=advice))
    elif len(calls) == 1 and made and _is_own_output(subject, calls[0]):
        words = f"all targets of {calls[0].name} are outputs of the model for the same sample: nothing that is given teaches it"
        advice = "give targets of the batch, or of what comes next: rewards and the next state, another view, another model"
        found.append(Finding("target_predicted", words, severity="warn", advice=advice))
    elif any(_is_copy(subject, call) for call in calls):
        found += _told(
            "target_shifted", "the targets are the inputs themselves, and the model sees no later ones: it learns to copy", 0.0
        )
    given = inputs_of(subject).values()
    columns = [column for call in calls for held in given if (column := _column_of(call, held)) is not None]
    found += [seen for column in columns[:1] if (seen := rules.judge("label_seen", 0.0, column, is_number=True)) is not None]
    are_inputs = any(torch.equal(call.target, held) for call in calls for held in given if held.shape == call.target.shape)
    said = "the inputs, as those of an autoencoder" if are_inputs else "neither inputs nor predictions"
    if made or any(call.is_predicted for call in calls):
        count = len({*made, *(place for place, call in enumerate(calls) if call.is_predicted)})
        whose = "" if count == len(calls) else f", in {count} of {len(calls)} calls"
        said = f"made by the model itself, and change with its parameters{whose}"
    return Check("targets_apart", "" if found else f"the targets are {said}", tuple(found))


def targets_used(subject: Subject) -> Check:
    """Judge whether the loss changes where the targets are exchanged among the samples."""
    before = subject.finite_loss
    shuffled = _shuffled(subject)
    if shuffled is not None:
        return Check("targets_used", "", (shuffled,))
    names: list[str] = []
    with subject.trial() as trial:
        names = [name for name, _ in _targets(trial)]
    if not names:
        return _used_by_calls(subject)

    def exchange(trial: Trial) -> None:
        targets = [tensor for _, tensor in _targets(trial)]
        kept = {id(tensor) for tensor in targets}
        trial.args, trial.kwargs = remap(
            (trial.args, trial.kwargs), lambda tensor: tensor if id(tensor) in kept else tensor.clone()
        )
        trial.kwargs |= {
            key: value.clone() for key, value in trial.kwargs.items() if id(value) in kept and not _TARGET.search(str(key))
        }
        for tensor in targets:  # may be a view of the inputs, as of a language model
            tensor.copy_(tensor.roll(1, 0))

    if subject.loss_after(lambda trial: None) != before:
        raise UnjudgedError("the loss is random")
    outputs = [tensor for tensor in subject.outputs() if tensor.dim() and tensor.shape[0] > 1]
    if not any(distance_of(tensor, tensor.roll(1, 0)) > rounding_of(tensor) for tensor in outputs):
        raise UnjudgedError("the outputs of all samples are equal: a layer begins at zero, or nothing of the samples reaches them")
    calls = [call for call in subject.first.calls if call.name in REGRESSION and call.target.numel()]
    if any(float(call.input.abs().max()) <= _ROUNDING * float(call.target.abs().max()) for call in calls):
        raise UnjudgedError("the targets are so large that rounding hides what the outputs do to the loss")
    after = subject.loss_after(exchange)
    if abs(after - before) <= _ROUNDING * abs(before) and _is_hidden(subject, exchange):
        raise UnjudgedError("where the targets are exchanged the loss stays with these weights alone, and changes with random ones")
    unread = _unread(subject)
    found = [] if unread is None else [unread]
    if unread is None and abs(after - before) <= _ROUNDING * abs(before):
        words = f"the loss stays what it is where {' and '.join(names)} of the samples are exchanged"
        advice = "give each output its own target; leave this be where the loss compares sets, and not samples"
        found.append(Finding("target_unused", words, value=abs(after - before), severity="warn", advice=advice))
    is_changed = abs(after - before) > _ROUNDING * abs(before)
    said = f"exchanging {' and '.join(names)} among the samples" + (" changes the loss" if is_changed else "")
    return Check("targets_used", said, tuple(found))


def _is_hidden(subject: Subject, exchange: Callable[[Trial], None]) -> bool:
    """Return whether an *exchange* of targets changes the loss of a model with random weights."""

    def make_change(seed: int, *, exchanged: bool) -> Callable[[Trial], None]:
        def change(trial: Trial) -> None:
            torch.manual_seed(seed)
            for parameter in trial.model.parameters() if trial.is_free else ():
                if parameter.is_floating_point():
                    parameter.add_(torch.randn_like(parameter), alpha=1 / math.sqrt(max(parameter[:1].numel(), 1)))
            if exchanged:
                exchange(trial)

        return change

    for seed in range(_TRIES):
        one, other = (subject.loss_after(make_change(seed, exchanged=exchanged)) for exchanged in (False, True))
        if abs(one - other) > _ROUNDING * abs(one):
            return True
    return False


_FEW_SAMPLES = 16  # of which a target may be a column by chance, as labels of 0 and 1
_TRIES = 4  # of random weights, with all of which a loss of integers, as one of an argmax, is no other by chance


def _shuffled(subject: Subject) -> Finding | None:
    """Return the finding of a loss function that puts all targets in another order at each call; None of another one."""
    if not subject.drawn:
        return None
    with subject.trial() as trial:
        output = trial.output()
        with LossCalls() as one:
            trial.loss_of(output)
        with LossCalls() as other:
            trial.loss_of(output)
    pairs = list(zip(one.found, other.found, strict=False))
    if not pairs or not all(_is_another_order(*pair) for pair in pairs):
        return None
    words = f"{pairs[0][0].name} is given its targets in another order at each call, and the outputs in the same one"
    advice = "give each output its own target: exchange both or neither"
    return Finding("target_unused", words, severity="bad", advice=advice)


def _is_another_order(one: LossCall, other: LossCall) -> bool:
    if one.target.shape != other.target.shape or torch.equal(one.target, other.target) or not torch.equal(one.input, other.input):
        return False
    return torch.equal(one.target.flatten().sort().values, other.target.flatten().sort().values)


def _unread(subject: Subject) -> Finding | None:
    """Return the finding of samples whose output the loss does not read: it has no gradient there, and stays where they change.

    Judged where there is one output, as long as some targets, and no graph says which samples belong together.
    """
    with subject.trial() as trial:
        output = trial.output()
        held = [tensor for _, tensor in walk(output) if is_floating(tensor) and tensor.requires_grad and tensor.dim()]
        targets = {tensor.shape[0] for _, tensor in _targets(trial)}
        given = [tensor for _, tensor in walk((trial.args, trial.kwargs)) if tensor.dim()]
        if trial.loss_fn is None or len(held) != 1 or held[0].shape[0] not in targets - {*held[0].shape[1:]}:
            return None
        samples = held[0].shape[0]
        if samples < _FEWEST or holds_graph(subject.model, given, samples):
            return None

        def loss_of(given: Tensor) -> Tensor | None:
            return trial.loss_of(remap(output, lambda tensor: given if tensor is held[0] else tensor))

        leaf = held[0].detach().clone().requires_grad_()
        loss = loss_of(leaf)
        gradient = torch.autograd.grad(loss, leaf, allow_unused=True)[0] if loss is not None and loss.requires_grad else None
        if loss is None or gradient is None:
            return None
        for mask in paddings_of(subject).values():
            read = (gradient != 0).flatten(2).any(2) if gradient.dim() > 2 else gradient != 0
            if mask.shape == read.shape and bool(read.any()) and not bool((read & ~mask).any()):
                found = rules.judge("padding_alone", 0.0, float(read.double().mean()))
                return found and replace(
                    found, message="the loss reads the outputs at the padding of a sample, and not at its tokens"
                )
        is_read = (gradient != 0).reshape(samples, -1).any(1)
        count = int(is_read.sum())
        if not 0 < 2 * count < samples:
            return None
        for shift in (0.1, 1e4, -1e4):  # a hinge has no gradient, and reads what is beyond its margin
            other = leaf.detach().clone()
            other[~is_read] = other[~is_read] * -1.5 + shift
            after = loss_of(other.requires_grad_())
            if after is None or float(after.detach()) != float(loss.detach()):
                return None
    words = f"the loss reads the outputs of {count:,} of {samples:,} samples, and of the others none"
    advice = "give the loss all outputs and targets; leave this be where the others have no label"
    return Finding("samples_unread", words, value=float(count), severity="warn" if count == 1 else "note", advice=advice)


def _used_by_calls(subject: Subject) -> Check:
    """Judge the same of the targets that torch's loss functions were given: all that is known where they are global variables."""
    calls = [call for call in subject.first.calls if not call.is_predicted and call.target.dim() and len(call.target) > 1]
    constant = [call for call in calls if call.target.numel() >= _FEWEST and bool((call.target == call.target.flatten()[0]).all())]
    if constant and len(constant) == len(subject.first.calls) and all(call.indices is None for call in constant):
        call = constant[0]
        words = f"all {call.target.numel():,} targets of {call.name} are {short(float(call.target.flatten()[0]))}"
        advice = "give it the targets of the batch; leave this be where all outputs are to become this number"
        finding = Finding("target_constant", f"{words}: they do not depend on the sample", severity="note", advice=advice)
        return Check("targets_used", "", (finding,))
    calls = [call for call in calls if bool((call.target != call.target.roll(1, 0)).any())]
    if not calls:
        raise UnjudgedError("needs targets: labels in the batch, tensors that loss_fn closes over, or a loss function of torch")
    found = []
    for call in calls:
        before, after = call.mean(call.input), replace(call, target=call.target.roll(1, 0)).mean(call.input)
        if abs(after - before) <= _ROUNDING * abs(before) and bool((call.input != call.input.roll(1, 0)).any()):
            words = f"{call.name} stays what it is where its targets are exchanged among the samples"
            found.append(Finding("target_unused", words, value=abs(after - before), severity="warn"))
    names = " and ".join(dict.fromkeys(call.name for call in calls))
    return Check("targets_used", f"exchanging the targets of {names}" + ("" if found else " changes the loss"), tuple(found))


def _told(rule: str, words: str, *numbers: float) -> list[Finding]:
    """Return what a *rule* finds in *numbers*, in other *words*."""
    found = rules.judge(rule, *numbers)
    return [] if found is None else [replace(found, message=words)]


# Sequences


def _sequences(subject: Subject) -> list[tuple[str, Tensor]]:
    """Return name and tensor of inputs that may have positions: ``(samples, positions, ...)``, or along a later axis.

    What a decoder is given is often called a target, and is an input all the same.
    """
    args, kwargs = as_arguments(subject.batch)
    others = [(name, held) for name, _, held in named_inputs(unwrap(subject.model), args, kwargs) if _TARGET.search(name)]
    named = [*inputs_of(subject).items(), *others]
    return [(name, held) for name, held in named if held.dim() >= 2 and held.shape[0] > 1 and max(held.shape[1:]) >= 3]


def _shifted_along(call: LossCall, inputs: Tensor) -> tuple[int, int] | None:
    """Return the axis of *inputs* along which the target of *call* is the next element, and the target's own; None without one."""
    for axis in range(1, inputs.dim()):
        moved = inputs.movedim(axis, 1)
        if moved.shape[1] < 3:
            continue
        if _is_shifted(call, moved):
            return axis, 1
        for other in range(1, call.target.dim()):
            if call.target.dim() == inputs.dim() and _is_shifted(replace(call, target=call.target.movedim(other, 1)), moved):
                return axis, other
    return None


def _positions(call: LossCall, inputs: Tensor) -> Tensor | None:
    """Return the target of *call* in the shape of *inputs*, or with a position less: ``(samples, positions, ...)``; else None."""
    target, (samples, positions) = call.target, inputs.shape[:2]
    for length in (positions, positions - 1):
        shape = (samples, length, *inputs.shape[2:])
        if target.numel() == math.prod(shape) and target.is_floating_point() == inputs.is_floating_point():
            return target.reshape(shape)
    return None


def _is_shifted(call: LossCall, inputs: Tensor) -> bool:
    """Return whether the target of *call* is, wherever it counts, the next element of *inputs*."""
    target = _positions(call, inputs)
    if target is None:
        return False
    later, given = inputs[:, 1:], target[:, : inputs.shape[1] - 1]
    counts = given != call.kwargs.get("ignore_index", -100)
    differs = (later != inputs[:, :-1]) & counts
    return bool(differs.any()) and bool(((later == given) | ~counts).all())


def _is_same(call: LossCall, inputs: Tensor) -> bool:
    target = _positions(call, inputs)
    if target is None or target.shape != inputs.shape:
        return False
    counts = target != call.kwargs.get("ignore_index", -100)
    return bool(counts.any()) and bool(((target == inputs) | ~counts).all()) and bool((inputs[:, 1:] != inputs[:, :-1]).any())


def _column_of(call: LossCall, given: Tensor) -> float | None:
    """Return which column of the *given* samples, of several, is the target: one number of each sample, which varies."""
    target, rows = call.target.detach().flatten(), given.detach()
    are_many = (
        rows.dim() == 2 and rows.shape[1] > 1 and len(rows) == len(target) >= _FEW_SAMPLES and bool((target != target[0]).any())
    )
    equal = (rows.double() == target.double()[:, None]).all(0).nonzero() if are_many else target.new_zeros(0)
    return float(equal[0]) if len(equal) else None


def _is_copy(subject: Subject, call: LossCall) -> bool:
    inputs = next((held for _, held in _sequences(subject) if held.shape[1] >= 3 and _is_same(call, held)), None)
    if inputs is None:
        return False
    far = _reaches_back(subject, inputs)
    if far is None or far[0] > far[1]:
        return False
    own = _reaches_back(subject, inputs, ahead=1)  # an output may see earlier ones alone
    return own is not None and own[0] > own[1]


def _reaches_back(
    subject: Subject, inputs: Tensor, axis: int = 1, wanted: int = 1, *, ahead: int = 0
) -> tuple[float, float] | None:
    """Return how far earlier outputs move where later elements of the input change, and what rounding explains.

    None if no output has an axis of so many positions. The random state is the same, and batch normalisation takes its running
    statistics.

    Args:
        subject: that is run.
        inputs: the input.
        axis: of *inputs*, along which there are positions.
        wanted: the axis of outputs that has them, where several are as long.
        ahead: how many outputs count with the earlier ones; with 1 that of the first element that changes.
    """
    length = inputs.shape[axis]

    def change_from(place: int) -> Any:
        def change(trial: Trial) -> None:
            normalise_apart(trial)
            for _, tensor in walk((trial.args, trial.kwargs)):
                if tensor.shape == inputs.shape and tensor.dtype == inputs.dtype and torch.equal(tensor, inputs):
                    held = tensor.detach().movedim(axis, 1)
                    held[:, place:] = held[:, place:].flip(1).roll(1, 0)

        return change

    subject.expect_repeats()
    before = subject.outputs(normalise_apart)
    far: list[tuple[float, float]] = []
    for place in sorted({1, length // 2, length - 1}):
        after = subject.outputs(change_from(place))
        for one, other in zip(before, after, strict=False):
            axes = [each for each in range(1, one.dim()) if one.shape[each] in (length, length - 1)]
            axes.sort(key=lambda each: each != wanted)
            if not axes or one.shape[0] != inputs.shape[0] or one.shape != other.shape or not is_floating(one):
                continue
            early = [each.narrow(axes[0], 0, min(place + ahead, each.shape[axes[0]])) for each in (one, other)]
            far.append((distance_of(*early), rounding_of(one)))
    return max(far, key=lambda pair: pair[0] / pair[1], default=None)


# Targets


def _is_predicted(call: LossCall) -> bool:
    """Return whether the target of a loss call is the classes that the model predicts.

    Right predictions alone are no fault: those of a model that is trained.
    """
    if call.name not in ("cross_entropy", "nll_loss") or call.indices is None or call.classes < 2:
        return False
    counts = call.target != call.kwargs.get("ignore_index", -100)
    labels = call.target[counts]
    return labels.numel() >= _FEWEST and bool((call.input.argmax(1 if call.input.dim() > 1 else 0)[counts] == labels).all())


def _made_by_model(subject: Subject) -> list[int]:
    """Return which loss calls have a target that no gradient reaches, and that changes where the parameters of the model do."""
    calls = subject.first.calls
    if all(call.is_predicted for call in calls):
        return []

    def targets(*, changed: bool) -> list[Tensor]:
        with subject.trial() as trial:
            with torch.no_grad():
                for _, parameter, _ in parameters(trial.model) if changed and trial.is_free else ():
                    parameter.mul_(-1.5).add_(0.1)
            with LossCalls() as seen:
                trial.loss()
        return [call.target for call in seen.found]

    again, after = (targets(changed=changed) for changed in (False, True))
    if len(calls) != len(again) or not all(torch.equal(call.target, each) for call, each in zip(calls, again, strict=True)):
        return []  # they are drawn at each call
    pairs = enumerate(zip(calls, after, strict=False))
    return [place for place, (call, other) in pairs if not call.is_predicted and not torch.equal(call.target, other)]


def _is_own_output(subject: Subject, call: LossCall) -> bool:
    """Return whether a loss is an error whose input and target are, sample by sample, elements of one output of the model."""
    count = len(call.target) if call.target.dim() else 0
    if call.name not in REGRESSION or count < _FEWEST or abs(call.mean(call.input) - subject.loss) > _ROUNDING * abs(subject.loss):
        return False
    for output in subject.outputs():
        if output.dim() != 2 or len(output) != count or max(output.numel(), call.input.numel(), call.target.numel()) > _ELEMENTS:
            continue
        sides = [each.reshape(len(each), -1, 1) for each in (call.input, call.target)]
        if all(len(side) == count and bool((side == output[:, None]).any(-1).all()) for side in sides):
            return True
    return False


_ELEMENTS = 1 << 14  # of outputs that are compared one by one


def _targets(trial: Trial) -> list[tuple[str, Tensor]]:
    """Return the tensors that hold a target for each sample, by name: of the batch, and those that ``loss_fn`` closes over."""
    named = [(str(key), value) for key, value in trial.kwargs.items() if _TARGET.search(str(key)) and isinstance(value, Tensor)]
    sizes = {tensor.shape[0] for _, tensor in walk((trial.args, trial.kwargs)) if tensor.dim()}
    given = {id(tensor) for _, tensor in walk((trial.args, {k: v for k, v in trial.kwargs.items() if not _TARGET.search(str(k))}))}
    named += [(name, tensor) for name, tensor in _closed_over(trial.loss_fn) if id(tensor) not in given]
    return [
        (name, tensor)
        for name, tensor in named
        if tensor.dim()
        and tensor.shape[0] in sizes
        and tensor.shape[0] > 1
        and not isinstance(tensor, nn.Parameter)
        and not tensor.requires_grad
        and bool((tensor != tensor.roll(1, 0)).any())
    ]


def _closed_over(function: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a function closes over, by name, also through functions that it closes over."""
    pending, seen = [function], set()
    while pending:
        held = pending.pop()
        if not isinstance(held, FunctionType) or id(held) in seen:
            continue
        seen.add(id(held))
        for name, cell in zip(held.__code__.co_freevars, held.__closure__ or (), strict=False):
            if cell == CellType():
                continue
            value = cell.cell_contents
            if isinstance(value, Tensor):
                yield name, value
            else:
                pending.append(value)
