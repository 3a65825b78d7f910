"""The check of the labels: class indices, the targets of binary losses, and what classes weigh."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from sonde import rules
from sonde.answer import Check
from sonde.diagnosis.preflight.loss_calls import REGRESSION, LossCall
from sonde.diagnosis.preflight.subject import Subject, UnjudgedError
from sonde.engine import as_arguments, parameters, walk
from sonde.rules import Finding
from sonde.words import many, percent, short

_SOME = 8  # samples of one class that are no chance
_OFTEN = 8  # labels of each other class, beside which the lack of one is no chance
_FEWEST = 16  # labels that are all alike by no chance


def labels(subject: Subject) -> Check:
    """Judge the class indices, and the targets of binary losses."""
    calls = subject.first.calls
    judged = [(call, indices) for call in calls if (indices := call.indices) is not None]
    ignored = [call for call in calls if call.indices is None and call.ignores_all]
    if ignored:
        words = f"all {ignored[0].target.numel():,} targets of {ignored[0].name} are {int(ignored[0].target.flatten()[0])}"
        advice = "look at how the labels are made: at masks, at truncation, and at ignore_index"
        return Check("labels", "", (Finding("labels_ignored", f"{words}, which it ignores", severity="bad", advice=advice),))
    binary = [call for call in calls if call.name.startswith("binary") and call.target.numel()]
    others = tuple(each for call in calls for each in (_several(call), _beyond(call)) if each is not None)
    if others:
        return Check("labels", "", others)
    if not judged and not binary:
        raise UnjudgedError("no loss function with class indices was seen")
    found = [rules.judge("labels_outside", int(indices.min()), int(indices.max()), call.classes) for call, indices in judged]
    for call in binary:
        low, high = float(call.target.min()), float(call.target.max())
        if low < 0 or high > 1:
            words = f"the targets of {call.name} go from {short(low)} to {short(high)}: they are probabilities, from 0 to 1"
            found.append(Finding("labels_outside", words, value=high, severity="bad", advice="give 0 and 1, or what is between"))
    for call, indices in judged:
        is_single = _are_single(subject, call)
        found += [_ignored(call, is_single=is_single) or _alike(subject, call, indices), _absent(call, indices)]
        found += [_unneeded(call, indices) if is_single else None, _weighed(call, indices, is_single=is_single)]
    found += [_weighed_ones(call) for call in binary]
    told = tuple(each for each in found if each is not None)
    if not judged:
        return Check("labels", f"{len(torch.unique(binary[0].target)):,} different targets of {binary[0].name}", told)
    call, indices = judged[0]
    return Check("labels", f"{len(torch.unique(indices)):,} different labels of {call.classes:,} classes", told)


def _alike(subject: Subject, call: LossCall, indices: torch.Tensor) -> Finding | None:
    """Return the finding of labels that are all one class, and not the place of the one partner among many others."""
    are_many = len(call.target) >= _SOME and len(indices) >= _FEWEST and call.classes > 1
    is_of_pairs = call.of_cosines and not is_of_layer(subject, call.classes)
    if is_of_pairs and (call.classes != len(indices) or call.made_by == "Cat"):  # else the partner stands first
        return None
    if not are_many or not bool((indices == indices[0]).all()):
        return None
    words = f"all {len(indices):,} labels are {int(indices[0])}, of {call.classes:,} classes"
    advice = (
        "give the place of the partner: torch.arange(n)" if is_of_pairs else "give a batch of several classes; shuffle the data"
    )
    return Finding("labels_alike", words, severity="warn", advice=advice)


def _are_single(subject: Subject, call: LossCall) -> bool:
    """Return whether a cross-entropy is given one label of each sample, of as many classes as a layer has outputs."""
    samples = {tensor.shape[0] for _, tensor in walk(as_arguments(subject.batch)) if tensor.dim()}
    return call.target.dim() == 1 and len(call.target) in samples and is_of_layer(subject, call.classes)


def is_of_layer(subject: Subject, classes: int) -> bool:
    """Return whether a parameter has as many rows or columns as there are *classes*: these are no samples."""
    return any(classes in held.shape for _, held, _ in parameters(subject.model))


def _unneeded(call: LossCall, indices: torch.Tensor) -> Finding | None:
    """Return the finding of far more outputs than classes: all labels, each class with two or more on average, lie at the begin."""
    used, seen = int(indices.max()) + 1, len(indices.unique())
    are_many = len(indices) >= max(_FEWEST, _EACH * seen) and seen > 1
    if not are_many or int(indices.min()) < 0 or call.classes < _TOO_MANY * used:
        return None
    words = (
        f"all {len(indices):,} labels are below {used:,}, and {call.name} has {call.classes:,} classes: the others occur in none"
    )
    advice = "make the last layer as wide as there are classes; leave it where other batches hold the others"
    return Finding("labels_few", words, value=float(used), severity="note", advice=advice)


_EACH, _TOO_MANY = 2, 3  # labels of a class that occurs, on average; outputs of a model for each class that occurs


def _ignored(call: LossCall, *, is_single: bool) -> Finding | None:
    """Return the finding that the number which a cross-entropy leaves out is a class."""
    left_out = call.kwargs.get("ignore_index", -100)
    share = float((call.target == left_out).double().mean())
    if not 0 <= left_out < call.classes or share == 0:
        return None
    counted = call.target[call.target != left_out]
    if call.classes == 2 and len(counted) >= _FEWEST and share >= _LEFT_OUT:
        found = rules.judge("labels_alike", math.inf, math.inf, 1.0)
        words = "all labels that {name} counts are one class, and it leaves out the others, of class {of} (ignore_index={of})"
        advice = (
            "leave ignore_index out where this class is to be learnt, too; what does not count has a number that is no class (-100)"
        )
    elif is_single and share * call.classes <= _AS_MANY:
        found = rules.judge("target_beyond", 1.0, 0.0, math.inf)
        words = "{share} of the labels, one of each sample, are {of}, which {name} leaves out (ignore_index={of}): this class is "
        words += "never learnt"
        advice = "leave ignore_index out where no label stands for padding, or give it a number that is no class (-100)"
    else:
        return None
    return found and replace(
        found, message=words.format(name=call.name, share=percent(share), of=left_out), value=share, advice=advice
    )


_LEFT_OUT, _AS_MANY = 0.3, 3.0  # of labels; labels of one class, as a multiple of an equal share


def _weighed(call: LossCall, indices: torch.Tensor, *, is_single: bool) -> Finding | None:
    """Return the finding of weights by which one class counts alone, or the most frequent one most, or classes not at all."""
    weight = call.kwargs.get("weight")
    is_each = isinstance(weight, torch.Tensor) and weight.shape == (call.classes,) and call.classes > int(indices.max())
    if weight is None or not is_each or int(indices.min()) < 0:
        return None
    counts, each = torch.bincount(indices, minlength=call.classes).double(), weight.detach().double()
    whole, usual, top = counts * each, int(counts.argmax()), int((counts * each).argmax())
    if float(whole.sum()) <= 0 or float(each.min()) < 0:
        return None
    found = rules.judge("weight_of_many", 0.0, float(counts[top] / counts.sum()), float(whole[top] / whole.sum()))
    others = [held.sum() - held[usual] for held in (whole, counts)]
    times = float(each[usual] * others[1] / others[0]) if others[0] > 0 else 0.0
    if is_single and len(indices) >= _MANY and float(each.min()) > 0:
        found = found or rules.judge("weight_of_many", times, float(counts[usual] / counts.sum()))
    idle = (each == 0) & (counts > 0)
    if found is not None or int(idle.sum()) < 2 - is_single:
        return found
    words = f"{percent(float(counts[idle].sum() / counts.sum()))} of the labels are of {many(int(idle.sum()), 'class', 'classes')}"
    advice = "give these classes a weight; leave it where they are not to be learnt"
    return Finding("label_weightless", f"{words} whose weight is 0: they do not count", severity="note", advice=advice)


def _weighed_ones(call: LossCall) -> Finding | None:
    """Return the finding of a ``pos_weight`` by which targets of 1 outweigh all others."""
    weight, target = call.kwargs.get("pos_weight"), call.target
    if not isinstance(weight, torch.Tensor) or target.numel() < _MANY or not bool(((target == 0) | (target == 1)).all()):
        return None
    ones, zeros = float(target.sum()), float((1 - target).sum())
    heavy = float((weight.detach() * target).sum())
    return rules.judge("weight_of_ones", heavy / ones, heavy / zeros) if ones and zeros else None


_MANY = 64  # labels that are no chance


def _several(call: LossCall) -> Finding | None:
    """Return the finding that targets of a cross-entropy, which are no class indices, add up to other numbers than 1."""
    sums = call.added_up
    if sums is None or float((sums - 1).abs().max()) <= _OFF:
        return None
    low, high = short(float(sums.min())), short(float(sums.max()))
    words = f"the targets of {call.name} add up to {low} to {high} for each sample, and one softmax to 1"
    advice = "use binary_cross_entropy_with_logits for several labels of one sample; else divide the targets by their sum"
    return Finding("labels_several", words, value=float(sums.mean()), severity="warn", advice=advice)


def _beyond(call: LossCall) -> Finding | None:
    """Return the finding that targets of a regression lie beyond what the activation in front of the loss returns."""
    ends = _RANGES.get(call.made_by) if call.name in REGRESSION and call.target.shape == call.input.shape else None
    if ends is None or not call.target.numel():
        return None
    share = float(((call.target < ends[0]) | (call.target > ends[1])).double().mean())
    return rules.judge("target_beyond", share, float(call.target.min()), float(call.target.max()), what=call.made_by)


_OFF = 0.05  # what targets add up to, beside 1
_RANGES = {"Tanh": (-1.0, 1.0), "Sigmoid": (0.0, 1.0)}


def _absent(call: LossCall, indices: torch.Tensor) -> Finding | None:
    """Return the finding of one class that never occurs, where each other one occurs often enough that this is no chance."""
    if not 2 < call.classes <= len(indices) or int(indices.min()) < 0 or int(indices.max()) >= call.classes:
        return None
    counts = torch.bincount(indices, minlength=call.classes)
    if int((counts == 0).sum()) != 1:
        return None
    absent, least = int(counts.argmin()), int(counts[counts > 0].min())
    if least < _OFTEN or absent == call.kwargs.get("ignore_index", -100):
        return None
    words = f"class {absent} never occurs among {len(indices):,} labels, and each other class {least:,} times or more"
    advice = "look at whether the labels count from 1" if absent == 0 else "look at whether the model has an output too many"
    return Finding("label_absent", words, value=float(absent), severity="note" if absent else "warn", advice=advice)
