"""Recognise the formula by which a tensor was made, on each side: activations, normalisations, residuals, positions, masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from sonde.diagnosis.compare.attention import of_attention
from sonde.diagnosis.compare.scene import Scene
from sonde.diagnosis.compare.weights import factor_between, order_of_rows, words_of_order
from sonde.diagnosis.distance import as_numbers, distance, readable
from sonde.rules import Finding


def of_formulas(scene: Scene) -> Iterator[Finding]:
    """Return the differences of formulas that explain the place, the most certain first."""
    if scene.tensors is None or scene.tensors[0].numel() < _LEAST:
        return
    for look in (
        _of_normalisation,
        _of_activation,
        _of_factor,
        _of_residual,
        _of_parameter,
        _of_order,
        _of_shift,
        of_attention,
        _of_positions,
    ):
        found = list(look(scene))
        yield from found
        if found:
            return


_LEAST = 4
"""Elements of a tensor from which a formula is recognised."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "no activation": lambda x: x,
    "relu": functional.relu,
    "gelu (erf)": functional.gelu,
    "gelu (tanh)": lambda x: functional.gelu(x, approximate="tanh"),
    "quick gelu, x sigmoid(1.702 x)": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": functional.silu,
    "elu": functional.elu,
    "leaky relu, slope 0.01": lambda x: functional.leaky_relu(x, 0.01),
    "leaky relu, slope 0.2": lambda x: functional.leaky_relu(x, 0.2),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": functional.softplus,
    "mish": functional.mish,
    "hardswish": functional.hardswish,
    "relu6": functional.relu6,
    "squared relu": lambda x: functional.relu(x) ** 2,
    "softmax over the last axis": lambda x: x.softmax(-1),
    "log softmax over the last axis": lambda x: x.log_softmax(-1),
}
"""Functions of one tensor that are tried, by name."""


def _equal(scene: Scene, made: Tensor, wanted: Tensor) -> bool:
    return made.shape == wanted.shape and distance(made, wanted).relative <= max(4 * scene.tolerance, 1e-6)


def _of_activation(scene: Scene) -> Iterator[Finding]:
    """An activation on each side, of a tensor that both agree on, or of that with a gate."""
    assert scene.tensors is not None
    here, there = (_activation(scene, side, wanted) for side, wanted in enumerate(scene.tensors))
    if here and there and here != there:
        rule = "activation" if here[0] != there[0] else "inputs"
        words = [f"{name} of {source}" + (f" times {gate}" if gate else "") for name, source, gate in (here, there)]
        if here[1:] == there[1:]:
            words[1] = there[0]
        yield scene.finding(rule, f"{words[0]} in a, {words[1]} in b", "use the same formula on both sides")


def _activation(scene: Scene, side: int, wanted: Tensor) -> tuple[str, str, str] | None:
    """Return the name of an activation, its input, and the gate or ``""``, that make *wanted*; None for another formula."""
    tensors = [(source.name, source.a if side == 0 else source.b) for source in scene.sources]
    alike = [(name, held) for name, held in tensors if held.shape == wanted.shape]
    for source, given in alike:
        for name, function in ACTIVATIONS.items():
            made = function(given)
            if _equal(scene, made, wanted):
                return name, source, ""
            for gate, held in alike:
                if held is not given and _equal(scene, made * held, wanted):
                    return name, source, gate
    return None


# Normalisation


def _of_normalisation(scene: Scene) -> Iterator[Finding]:
    """Both sides normalise the last axis; the small number, the mean, or the kind of variance differs."""
    assert scene.tensors is not None
    module_a, module_b = scene.modules
    if module_a is None or module_b is None or scene.frame.is_code:
        return
    for source in scene.sources:
        if source.a.shape != scene.tensors[0].shape or source.a.size(-1) < 3:
            continue
        found = [
            _normalisation(held, wanted, module)
            for held, wanted, module in ((source.a, scene.tensors[0], module_a), (source.b, scene.tensors[1], module_b))
        ]
        here, there = found
        if here is None or there is None:
            continue
        if here[0] != there[0]:
            yield scene.finding("normalisation", f"{source.name} is normalised by {here[0]} in a, by {there[0]} in b")
        elif abs(here[1] - there[1]) > 0.02 * max(abs(here[1]), abs(there[1]), 1e-12):
            said = [_eps_of(module) for module in scene.modules]
            eps = [
                known if known is not None and _near(known, fitted) else fitted
                for known, fitted in zip(said, (here[1], there[1]), strict=True)
            ]
            if eps[0] != eps[1]:
                yield scene.finding(
                    "eps",
                    f"eps is {eps[0]:.3g} in a and {eps[1]:.3g} in b",
                    "give both normalisations the same eps",
                    {"eps_a": eps[0], "eps_b": eps[1], "fitted_a": here[1], "fitted_b": there[1]},
                )
        return


def _near(known: float, fitted: float) -> bool:
    return abs(known - fitted) <= 0.3 * max(abs(known), abs(fitted))


def _eps_of(module: object) -> float | None:
    return next((held for name, held in vars(module).items() if "eps" in name and isinstance(held, float)), None)


def _normalisation(given: Tensor, wanted: Tensor, module: object) -> tuple[str, float] | None:
    """Return how *wanted* was made from *given* by a normalisation of the last axis, and the fitted eps; None for another formula.

    With ``y = (x - m) / sqrt(v + eps)`` the sums of squares of a row give ``v + eps = |x - m|^2 / |y|^2``.
    """
    held = (getattr(module, name, None) for name in ("weight", "bias"))
    weight, bias = (readable(each) if isinstance(each, Tensor) else None for each in held)
    if any(each is not None and each.is_meta for each in (weight, bias)):
        return None
    scales = [("", as_numbers(weight) if weight is not None else torch.ones(1, dtype=torch.float64))]
    if weight is not None:
        scales.append((" with 1 + weight", 1 + scales[0][1]))
    shift = as_numbers(bias) if bias is not None else 0.0
    count = given.size(-1)
    for words, scale in scales:
        if bool((scale == 0).any()) or (scale.numel() not in (1, count)):
            continue
        normal = (wanted - shift) / scale
        for name, centred in (("mean and variance", given - given.mean(-1, keepdim=True)), ("root mean square", given)):
            squares, sums = (centred * centred).sum(-1, keepdim=True), (normal * normal).sum(-1, keepdim=True)
            if not bool((sums > 0).all()):
                continue
            total = squares / sums
            if distance(centred / total.sqrt(), normal).relative > 1e-3:
                continue
            for kind, freedom in (("", count), (", divided by n - 1", count - 1)):
                fitted = float((total - squares / freedom).median())
                if abs(fitted) < 0.2 * float((squares / freedom).median()) and fitted > -1e-9:
                    return name + kind + words, fitted
    return None


# Relations of the two tensors


def _of_factor(scene: Scene) -> Iterator[Finding]:
    assert scene.tensors is not None
    factor = factor_between(*scene.tensors, max(scene.tolerance, 1e-6))
    if factor is None:
        return
    yield scene.finding(
        "scaled",
        f"b is {factor:.6g} times a{_root(factor)}",
        "look for a scale that one side lacks",
        {"factor": factor},
    )


def _root(factor: float) -> str:
    square = factor * factor
    for value, words in ((square, f" = sqrt({square:.0f})"), (1 / square, f" = 1 / sqrt({1 / square:.0f})")):
        if value > 1.5 and abs(value - round(value)) < 1e-3 * value and abs(math.sqrt(value) - round(math.sqrt(value))) > 1e-3:
            return words
    return ""


def _of_residual(scene: Scene) -> Iterator[Finding]:
    """The tensors differ by one that both sides agree on."""
    assert scene.tensors is not None
    one, other = scene.tensors
    off = one - other
    for source in scene.sources:
        if source.a.shape != off.shape or not float(source.a.norm()):
            continue
        factor = float((off * source.a).sum()) / float((source.a * source.a).sum())
        if abs(factor) < _SMALLEST_SHARE or distance(off, factor * source.a).relative > _OF_DIFFERENCE:
            continue
        side, lacking = ("a", "b") if factor > 0 else ("b", "a")
        times = "" if abs(abs(factor) - 1) < _OF_DIFFERENCE else f"{abs(factor):.4g} times "
        yield scene.finding(
            "residual",
            f"{side} adds {times}{source.name}, {lacking} does not: a residual connection is missing or scaled",
            f"add {source.name} in {lacking}",
            {"factor": factor},
        )
        return


_SMALLEST_SHARE, _OF_DIFFERENCE = 1e-3, 1e-2


def _of_parameter(scene: Scene) -> Iterator[Finding]:
    """The tensors differ by a parameter of the module, or by a vector that is the same everywhere: a bias."""
    assert scene.tensors is not None
    one, other = scene.tensors
    off = one - other
    for side, module in zip("ab", scene.modules, strict=True):
        for name, parameter in () if module is None else module.named_parameters():
            given = readable(parameter)
            if given.is_meta:
                continue
            held = as_numbers(given)
            if not held.numel() or held.dim() > off.dim() or not float(held.norm()) or held.numel() == 1:
                continue
            try:
                wide = held.expand_as(off)
            except RuntimeError:
                continue
            for sign, words in ((1.0, "adds"), (-1.0, "lacks")):
                if distance(off, sign * wide).relative <= _OF_DIFFERENCE:
                    other_side = "b" if side == "a" else "a"
                    yield scene.finding(
                        "parameter_missing",
                        f"a {words} {side}.{_full(scene, side, name)}, compared with {other_side}",
                        f"add {name} on both sides, or on none",
                    )
                    return


def _full(scene: Scene, side: str, name: str) -> str:
    layer = scene.frame.owner if side == "a" else scene.owner_b or ""
    return f"{layer}.{name}" if layer else name


def _of_order(scene: Scene) -> Iterator[Finding]:
    """The same elements in another order along one axis: heads, channels, positions, samples."""
    assert scene.tensors is not None
    one, other = scene.tensors
    axes = [one.dim() - 1, *range(one.dim() - 1)]
    for axis in axes:
        order = order_of_rows(one.transpose(0, axis), other.transpose(0, axis), max(scene.tolerance, 1e-6))
        if order is not None:
            what = "channels" if axis == one.dim() - 1 else f"entries of axis {axis}"
            yield scene.finding(
                "permuted",
                f"b has the elements of a in another order: {words_of_order(order, what)}",
                "look for heads, or parts of a joined projection, that are in another order",
                {"axis": float(axis)},
            )
            return


def _of_shift(scene: Scene) -> Iterator[Finding]:
    """Entry i of one side equals entry i + 1 of the other, along one axis."""
    assert scene.tensors is not None
    one, other = scene.tensors
    for axis in range(one.dim()):
        for places in (1, 2, -1, -2):
            length = one.size(axis) - abs(places)
            if length < 3:
                continue
            here = one.narrow(axis, max(0, -places), length)
            there = other.narrow(axis, max(0, places), length)
            if _equal(scene, here, there) and float(here.std()) > 0:
                yield scene.finding(
                    "shifted",
                    f"entry i of b equals entry i{-places:+d} of a along axis {axis}",
                    "look for an offset of positions or indices",
                    {"places": float(places), "axis": float(axis)},
                )
                return


def _of_positions(scene: Scene) -> Iterator[Finding]:
    """The tensors differ at some positions alone: a causal mask that is missing, or padding."""
    assert scene.tensors is not None
    one, other = scene.tensors
    for axis in range(1, one.dim() - 1):
        length = one.size(axis)
        if length < 3:
            continue
        same = [_equal(scene, one.select(axis, place), other.select(axis, place)) for place in range(length)]
        if not any(same) or all(same):
            continue
        if same[-1] and not any(same[:-1]):
            yield scene.finding(
                "causal_mask",
                f"the sides agree at the last of {length} positions alone: one lacks a causal mask",
                "look at how attention is masked",
                {"axis": float(axis)},
            )
        else:
            wrong = [place for place, equal in enumerate(same) if not equal]
            yield scene.finding(
                "positions",
                f"the sides differ at {len(wrong)} of {length} positions along axis {axis}: "
                + ", ".join(map(str, wrong[:8]))
                + (", ..." if len(wrong) > 8 else ""),
                "look at masks and at padding",
                {"positions": float(len(wrong))},
                "warn",
            )
        return
