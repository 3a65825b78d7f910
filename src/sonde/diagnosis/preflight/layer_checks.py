"""Checks of the layers: their scale through depth, dead units, and the limits of number formats."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from statistics import median

import torch

from sonde import rules
from sonde.answer import Check
from sonde.diagnosis.preflight.sample_checks import DROPOUTS
from sonde.diagnosis.preflight.subject import Subject, UnjudgedError, distance_of
from sonde.engine import Trial, graph_nodes, parameters, walk
from sonde.keep import Layer
from sonde.rules import Finding
from sonde.words import short

_DEEP = 8  # layers, from which on the first and the last quarter are compared
_FLAT = 3  # layers, from which on a growth per layer is given
_SHOWN = ("dead", "all_zero", "constant", "saturated")
_TINY = 2.0**-24  # the smallest number of float16


def depth(subject: Subject) -> Check:
    """Judge how outputs and gradients grow or fade through the layers, and whether an activation stands between them."""
    weighty = {name.rpartition(".")[0] for name, parameter, _ in parameters(subject.model) if parameter.dim() > 1}
    ran = [layer for layer in subject.ran.layers if layer.name in weighty and layer.output is not None and layer.output.count]
    sizes = [layer.output.rms for layer in ran if layer.output is not None]
    back = [layer.gradient.norm for layer in ran if layer.gradient is not None and layer.gradient.norm > 0]
    if len(sizes) < _FLAT:
        raise UnjudgedError("fewer than three layers with weights")
    found: list[Finding | None] = []
    if len(sizes) >= _DEEP:
        quarter = len(sizes) // 4
        found.append(rules.judge("output_small", median(sizes[:quarter]), median(sizes[-quarter:]) or math.nan))  # some begin at 0
        if len(back) >= _DEEP:
            ends = median(back[: len(back) // 4]), median(back[-(len(back) // 4) :])
            found += [rules.judge("gradient_vanishing", *ends), rules.judge("gradient_exploding", *ends)]
    grown = rules.judge("output_large", max(sizes), sizes[0])
    if grown is not None:
        found.append(replace(grown, site=f"{ran[sizes.index(max(sizes))].name}:output"))
    found.append(_told_linear(subject))
    words = [f"outputs x {per_layer(sizes):.3g} per layer"] + ([f"gradients x {per_layer(back):.3g}"] if len(back) >= _FLAT else [])
    return Check("depth", f"{', '.join(words)} ({len(sizes)} layers)", tuple(each for each in found if each is not None))


def _told_linear(subject: Subject) -> Finding | None:
    """Return the finding that no activation stands between layers: between all, three or more, or between two pairs or more.

    Between these stands a normalisation alone; one with filters of each channel in front of it, as in a ConvNeXt, is meant.
    """
    with subject.trial() as trial:
        made = [tensor.grad_fn for _, tensor in walk(trial.output()) if tensor.grad_fn is not None]
        nodes = list(graph_nodes.nodes_before(made[0])) if made else []
        if made and graph_nodes.layers_in_a_row(nodes, subject.model) >= _FLAT:
            return rules.judge("all_linear", 1.0)
        behind = [each for node in nodes if graph_nodes.operation_of(node) in _LAYERS for each in graph_nodes.sources_of(node)]
        norms = {graph_nodes.behind(each, graph_nodes.MOVES) for each in behind}
        before = [graph_nodes.sources_of(each)[0] for each in norms if graph_nodes.operation_of(each) in _NORMS]
        pairs = sum(graph_nodes.operation_of(graph_nodes.behind(each, graph_nodes.MOVES)) in _LAYERS for each in before)
        is_all = {graph_nodes.operation_of(node) for node in nodes} <= {*graph_nodes.LINEAR, *_NORMS}
    found = rules.judge("all_linear", float(pairs > 1))
    words = f"between {pairs} pairs of layers stands a normalisation alone, and no activation"
    return found and replace(found, message=words, value=float(pairs), severity="warn" if is_all else "note")


_LAYERS, _NORMS = ("Addmm", "Mm"), ("NativeLayerNorm", "FusedRmsNorm")


def per_layer(sizes: list[float]) -> float:
    """Return the factor from layer to layer: the slope of the least-squares line through the logarithms; NaN of zeros alone."""
    points = [(place, math.log(size)) for place, size in enumerate(sizes) if size > 0 and math.isfinite(size)]
    if len(points) < 2:
        return math.nan
    x, y = (sum(part) / len(points) for part in zip(*points, strict=True))
    return math.exp(sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points))


def alive(subject: Subject) -> Check:
    """Judge units that are dead, layers that are constant, and activations that are saturated.

    An output of zeros alone whose own layer gets a gradient, now or once others have moved, is none of them: a last layer or a
    branch may begin at zero, and so may the state that one of several calls takes. Nor is a unit that is zero by chance, as behind
    a dropout: in other forwards it is not.
    """
    found, counted = [], 0
    ran = subject.ran
    again = _with_other_numbers(subject)
    for layer in ran.layers:
        counted += layer.output is not None
        begins_at_zero = (
            layer.output is not None
            and layer.output.absmax == 0
            and any(
                size or name in subject.awake_later
                for name, size in ran.gradients.items()
                if not layer.name or name.startswith(f"{layer.name}.")
            )
        )
        same = {each.rule: each for each in again.get(layer.name, layer).findings}
        found += [
            _of_dropout(subject, layer.name, replace(same[each.rule], site=f"{layer.name}:output"))
            for each in layer.findings
            if each.rule in same and each.rule in _SHOWN and not (each.rule != "saturated" and (begins_at_zero or each.call >= 0))
        ]
    return Check("alive", f"{counted:,} layers looked at", tuple(found))


def _of_dropout(subject: Subject, name: str, found: Finding) -> Finding:
    """Return what was *found* of a layer, with the rate of a dropout that leaves out everything."""
    module = dict(subject.model.named_modules()).get(name)
    if not (isinstance(module, DROPOUTS) and module.p >= 1):
        return found
    advice = "lower its rate, p=1, which is the share that is left out and not that which is kept"
    return replace(found, message=f"{found.message}: a dropout that leaves out all", advice=advice)


def _with_other_numbers(subject: Subject) -> dict[str, Layer]:
    """Return the layers over several forwards; nothing where none is said to be dead, or all forwards are the same."""
    if not any(each.rule in _ZERO for layer in subject.ran.layers for each in layer.findings):
        return {}
    one, other = (subject.outputs(partial(_seed, seed)) for seed in (1, 2))
    is_same = len(one) == len(other) and all(distance_of(a, b) == 0 for a, b in zip(one, other, strict=True))
    return {} if is_same else subject.layers_of(_PASSES)


def _seed(seed: int, _: Trial) -> None:
    torch.manual_seed(seed)


_ZERO = ("dead", "all_zero", "constant")
_PASSES = 8  # forwards, in all of which no dropout leaves out the same unit by chance


def dtype(subject: Subject) -> Check:
    """Judge how near outputs are to the end of their format, and what float16 would do."""
    ran = subject.ran
    found: list[Finding] = []
    half = torch.finfo(torch.float16)
    for name, (largest, kind) in ran.limits.items():
        near = rules.judge("overflow_near", largest, torch.finfo(kind).max) if math.isfinite(largest) else None
        if near is not None:
            found.append(replace(near, site=f"{name}:output"))
        elif math.isfinite(largest) and rules.judge("overflow_near", largest, half.max) is not None:
            words = f"magnitudes up to {short(largest)}: float16 ends at {short(half.max)}"
            found.append(Finding("overflow_near", words, f"{name}:output", value=largest, severity="note"))
    small = [name for name, largest in ran.largest.items() if 0 < largest < _TINY]
    if small:
        words = f"gradients of {len(small)} of {len(ran.largest)} parameters would be 0 in float16 without a GradScaler"
        found.append(Finding("underflow", words, f"{small[0]}:grad", value=float(len(small)), severity="note"))
    top = max((largest for largest, _ in ran.limits.values()), default=0.0)
    kinds = ", ".join(dict.fromkeys(str(kind).removeprefix("torch.") for _, kind in ran.limits.values()))
    return Check("dtype", f"{kinds or 'no floating-point output'}; outputs up to {short(top)}", tuple(found))
