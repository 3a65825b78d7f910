"""Recognise the formula by which a tensor was made, on each side: activations, normalisations, residuals, positions, masks."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from sonde.diagnosis.compare.attention import of_attention
from sonde.diagnosis.compare.scene import Scene
from sonde.diagnosis.compare.sides import Side
from sonde.diagnosis.compare.suspects import Suspect, Undo
from sonde.diagnosis.compare.weights import (
    factor_between,
    fitted,
    is_addend,
    matched,
    of_equal_parameters,
    order_of_rows,
    words_of_order,
)
from sonde.diagnosis.distance import as_numbers, distance, laid_out_alike, readable
from sonde.rules import Finding
from sonde.site import Site
from sonde.words import names_text

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


def _of_activation(scene: Scene) -> Iterator[Suspect]:
    """An activation on each side, of a tensor that both agree on, or of that with a gate."""
    if not _is_large_enough(scene):
        return
    assert scene.tensors is not None
    here, there = (_activation(scene, side, wanted) for side, wanted in enumerate(scene.tensors))
    if here and there and here != there:
        rule = "activation" if here[0] != there[0] else "inputs"
        words = [f"{name} of {source}" + (f" times {gate}" if gate else "") for name, source, gate in (here, there)]
        if here[1:] == there[1:]:
            words[1] = there[0]
        said = f"{words[0]} in a, {words[1]} in b"
        if here[0] == there[0] == "no activation" and not here[2] and not there[2]:
            said = f"it is {_made_by(scene, here[1], 'a')} in a, {_made_by(scene, there[1], 'b')} in b"
        held = {source.name: source.b for source in scene.sources}
        made = ACTIVATIONS[here[0]](held[here[1]]) * (held[here[2]] if here[2] else 1.0)  # the formula of a on the tensors of b
        yield scene.suspect(rule, said, Undo(made=lambda _: made), "use the same formula on both sides")


def _made_by(scene: Scene, name: str, side: str) -> str:
    """Return the name of the output that the tensor *name* is; *name* where it is none."""
    held = {source.name: source.a if side == "a" else source.b for source in scene.sources}
    alike = (other for other, each in held.items() if other.endswith(":output") and each.shape == held[name].shape)
    return next((other for other in alike if torch.equal(held[other], held[name])), name)


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


def _of_normalisation(scene: Scene) -> Iterator[Suspect]:
    """Both sides normalise the last axis; the small number, the mean, or the kind of variance differs."""
    module_a, module_b = scene.modules
    if module_a is None or module_b is None or not _is_large_enough(scene) or scene.frame.is_code:
        return
    assert scene.tensors is not None
    for source in scene.sources:
        if source.a.shape != scene.tensors[0].shape or source.a.size(-1) < 3:
            continue
        here, there = (
            _normalisation(
                scene,
                held,
                wanted,
                _scales(side, owner),
                next((eps for name, eps in vars(module).items() if "eps" in name and isinstance(eps, float)), None),
            )
            for held, wanted, side, owner, module in (
                (source.a, scene.tensors[0], scene.a, scene.frame.owner, module_a),
                (source.b, scene.tensors[1], scene.b, scene.owner_b or "", module_b),
            )
        )
        if here is None or there is None:
            continue
        made = replace(there, kind=here.kind, eps=here.eps).of(source.b)  # the formula of a with the parameters of b
        undo = Undo(made=lambda _, made=made: made)  # type: ignore[misc]  # a tensor
        if here.kind != there.kind:
            words = f"{source.name} is normalised by {here.kind} in a, by {there.kind} in b"
            yield scene.suspect("normalisation", words, undo, "use the same normalisation on both sides")
        elif abs(here.eps - there.eps) > 0.02 * max(abs(here.eps), abs(there.eps), 1e-12):
            words = f"eps is {here.eps:.3g} in a and {there.eps:.3g} in b"
            evidence = {"eps_a": here.eps, "eps_b": there.eps, "fitted_a": here.fitted, "fitted_b": there.fitted}
            yield scene.suspect("eps", words, undo, "give both normalisations the same eps", evidence)
        return


def _scales(side: Side, owner: str) -> tuple[Tensor, Tensor]:
    """Return what a normalisation multiplies by and adds: its parameters, or 1 and 0."""
    held = {name: as_numbers(tensor) for name, tensor in side.tensors_of(owner).items() if not tensor.is_meta and tensor.dim() == 1}
    scale = next((tensor for name, tensor in held.items() if not is_addend(name)), torch.ones(1, dtype=torch.float64, device="cpu"))
    return scale, next(
        (tensor for name, tensor in held.items() if is_addend(name)), torch.zeros(1, dtype=torch.float64, device="cpu")
    )


@dataclass(frozen=True)
class _Normalisation:
    """A normalisation of the last axis.

    Attributes:
        kind: by what, in words.
        eps: the small number: that which the module holds, or the fitted one.
        fitted: the small number that fits best.
        scale, shift: what the result is multiplied by, or 1 plus that, and what is added.
    """

    kind: str
    eps: float
    fitted: float
    scale: Tensor
    shift: Tensor

    def of(self, given: Tensor) -> Tensor:
        """Return *given* normalised."""
        centred = given - given.mean(-1, keepdim=True) if self.kind.startswith(_CENTRED) else given
        freedom = given.size(-1) - (_LESS in self.kind)
        variance = (centred * centred).sum(-1, keepdim=True) / freedom
        root = variance.sqrt() + self.eps if self.kind.endswith(_BESIDE) else (variance + self.eps).sqrt()
        return centred / root * (1 + self.scale if _PLUS in self.kind else self.scale) + self.shift


_CENTRED, _RMS, _LESS, _PLUS = "mean and variance", "root mean square", ", divided by n - 1", " with 1 + weight"
_BESIDE = ", eps added to the root"


def _normalisation(
    scene: Scene, given: Tensor, wanted: Tensor, scales: tuple[Tensor, Tensor], eps: float | None
) -> _Normalisation | None:
    """Return how *wanted* was made from *given* by a normalisation of the last axis; None for another formula.

    With ``y = (x - m) / sqrt(v + eps)`` the sums of squares of a row give ``v + eps = |x - m|^2 / |y|^2``.
    """
    weight, shift = scales
    count = given.size(-1)
    if shift.numel() not in (1, count):
        return None
    for words, scale in (("", weight), (_PLUS, 1 + weight)):
        if bool((scale == 0).any()) or scale.numel() not in (1, count):
            continue
        normal = (wanted - shift) / scale
        for name, centred in ((_CENTRED, given - given.mean(-1, keepdim=True)), (_RMS, given)):
            squares, sums = (centred * centred).sum(-1, keepdim=True), (normal * normal).sum(-1, keepdim=True)
            if not bool((sums > 0).all()):
                continue
            total = squares / sums
            if distance(centred / total.sqrt(), normal).relative > 1e-3:
                continue
            for (kind, freedom), beside in itertools.product((("", count), (_LESS, count - 1)), ("", _BESIDE)):
                variance = squares / freedom
                fitted = float((total.sqrt() - variance.sqrt() if beside else total - variance).median())
                round_one = min((10.0**-power for power in range(3, 13)), key=lambda each: abs(each - fitted))
                for each in (
                    *(
                        each
                        for each in (eps, round_one)
                        if each is not None and abs(each - fitted) <= 0.3 * max(abs(each), abs(fitted))
                    ),
                    fitted,
                ):
                    found = _Normalisation(name + words + kind + beside, each, fitted, weight, shift)
                    if each > -1e-9 and _equal(scene, found.of(given), wanted):
                        return found
    return None


# Relations of the two tensors


def factor_of(scene: Scene, words: str) -> Iterator[Suspect]:
    """Suspect that the tensor of ``b`` is that of ``a`` times a number, which *words* name ``{factor}``."""
    if scene.tensors is None:
        return
    factor = factor_between(*scene.tensors, max(scene.tolerance, 1e-6))
    if factor is not None:
        undo = Undo(made=lambda b: b / factor)
        advice = "look for a scale that one side lacks"
        yield scene.suspect("scaled", words.format(factor=factor) + _root(factor), undo, advice, {"factor": factor})


def _of_factor(scene: Scene) -> Iterator[Suspect]:
    if _is_large_enough(scene):
        yield from factor_of(scene, "b is {factor:.6g} times a")


def of_branch(scene: Scene) -> Iterator[Suspect]:
    """What ``b`` adds to a tensor before is a multiple of what ``a`` adds to it: a branch with a factor."""
    if scene.tensors is None or not _is_large_enough(scene):
        return
    one, other = scene.tensors
    for source in scene.sources[::-1]:
        if source.a.shape != one.shape:
            continue
        mine, theirs = one - source.a, other - source.b
        size = float(mine.norm())
        tolerance = max(scene.tolerance, 1e-6) * float(one.norm()) / size if size else 1.0
        factor = factor_between(mine, theirs, tolerance) if tolerance < _MOST_BLURRED else None
        if factor is not None:
            made = source.b + theirs / factor
            yield scene.suspect(
                "scaled",
                f"what b adds to {source.name} is {factor:.6g} times what a adds",
                Undo(made=lambda _, made=made: made),  # type: ignore[misc]  # a tensor
                "look for a factor of the branch that one side lacks",
                {"factor": factor},
            )
            return


_MOST_BLURRED = 1e-3
"""Rounding of a branch, relative to its size, with which its factor is told."""


def _root(factor: float) -> str:
    square = factor * factor
    for value, words in ((square, f" = sqrt({square:.0f})"), (1 / square, f" = 1 / sqrt({1 / square:.0f})")):
        if value > 1.5 and abs(value - round(value)) < 1e-3 * value and abs(math.sqrt(value) - round(math.sqrt(value))) > 1e-3:
            return words
    return ""


def _of_limit(scene: Scene) -> Iterator[Suspect]:
    """One side limits the tensor of the other softly: to ``c tanh(x / c)``."""
    if scene.tensors is None or not _is_large_enough(scene):
        return
    most = max(4 * scene.tolerance, 1e-6)
    for side, (own, limited) in (("a", scene.tensors[::-1]), ("b", scene.tensors)):
        largest = float(limited.abs().max())
        if not 0 < largest < float(own.abs().max()) < math.inf or distance(own, limited).relative <= 4 * most:
            continue

        def off(limit: float, own: Tensor = own, limited: Tensor = limited) -> float:
            return distance(limit * (own / limit).tanh(), limited).relative

        limit = fitted(off, largest, 100 * largest, most)
        if limit is not None:
            back, forth = (lambda b: limit * (b / limit).atanh()), (lambda b: limit * (b / limit).tanh())  # noqa: B023
            words = f"{side} limits it to {limit:g} by tanh: {limit:g} tanh(x / {limit:g}), the other side does not"
            undo = Undo(made=back if side == "b" else forth)
            yield scene.suspect("activation", words, undo, "limit it on both sides, or on none", {"limit": limit})
            return


def _of_module(scene: Scene) -> Iterator[Suspect]:
    """A module that the other side does not run, or runs later, made the tensor of the tensor that the other side has."""
    if scene.tensors is None or not _is_large_enough(scene):
        return
    for side, lacking, (own, beside) in (("a", "b", scene.tensors), ("b", "a", scene.tensors[::-1])):
        held, other, key = (scene.a, scene.b, scene.place.other_key) if side == "a" else (scene.b, scene.a, scene.place.key)
        ran = {kept.site.path for kept in itertools.takewhile(lambda kept: kept.key != key, other.forward)}  # noqa: B023
        met = {two[side == "b"] for two in scene.names.pairs() if two[side == "a"] in ran}
        alone = {kept.site.path for kept in held.forward} - met
        inputs = {
            (kept.site.path, kept.call): kept for kept in held.forward if kept.site.port == "input" and kept.site.path in alone
        }
        for kept in held.forward:
            given = inputs.get((kept.site.path, kept.call))
            if kept.site.port != "output" or given is None or kept.main is None or given.main is None:
                continue
            made, of = (laid_out_alike(own, as_numbers(each.main[1])) for each in (kept, given) if each.main is not None)
            if made is None or of is None or not _equal(scene, made[0], own) or not _equal(scene, of[0], beside):
                continue
            result, what = made[0] if side == "a" else of[0], f"{kept.site.path} ({kept.type})"
            words = f"{what} is not called here in {lacking}: {side} goes on with its output, the other with its input"
            if kept.call:
                words = (
                    f"{side} calls {what} {kept.call + 1} times: {lacking} goes on with what {side} has after {kept.call} of them"
                )
            yield scene.suspect(
                "module_missing",
                words,
                Undo(made=lambda _, result=result: result),  # type: ignore[misc]  # a tensor
                f"call it here in {lacking}, or leave it out in {side}",
            )
            return


def _of_sum(scene: Scene) -> Iterator[Suspect]:
    """Each side is a sum of tensors that it has made before, with factors, and the sums differ."""
    if scene.tensors is None or not _is_large_enough(scene):
        return
    common = [{name: held[name] for name in held if name in beside} for held, beside in (scene.made_of, scene.made_of[::-1])]
    here = _sum_of(scene, common[0], scene.tensors[0])  # a sum that can be made of the tensors of b too
    there = _sum_of(scene, common[1], scene.tensors[1])
    alone = {} if here else _sum_of(scene, scene.made_of[0], scene.tensors[0])
    here = here or alone
    there = there or _sum_of(scene, scene.made_of[1], scene.tensors[1])
    is_itself = [*there.values()] == [1.0] and not there.keys() <= common[1].keys()  # the tensor at the place, by another name
    if not here or not there or here == there or (is_itself and len(here) > 1):
        return
    lacking = [name for name, factor in here.items() if name not in common[1] and there.get(name) != factor]
    if not all(_is_left_out(scene, name) for name in lacking):
        return  # the tensor of a would stand for itself, and b may have it by another name
    held = scene.made_of[0] | {name: scene.made_of[1][name] for name in common[1]}
    made = sum((factor * held[name] for name, factor in here.items()), torch.zeros_like(scene.tensors[1]))
    sums = _with_later(scene, here, there)
    made = made if sums == (here, there) else scene.tensors[0]
    here, there = sums
    if here == there:
        return
    rule = "residual" if len(here) > 1 or len(there) > 1 else "inputs" if here.keys() != there.keys() else "scaled"
    yield scene.suspect(
        rule,
        f"{_words_of_sum(here)} in a, {_words_of_sum(there)} in b",
        Undo(made=lambda _: made),
        "add the same tensors on both sides" if rule == "residual" else "use the same tensor on both sides",
        {f"{name}, {side}": factor for side, held in (("a", here), ("b", there)) for name, factor in held.items()},
    )


def _with_later(scene: Scene, here: dict[str, float], there: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Return two sums; for the one of fewer terms that which its side makes of all of them further on, as outside of the module."""
    if len(here) == len(there) or scene.tensors is None:
        return here, there
    number, terms = (0, there) if len(here) < len(there) else (1, here)
    side, key = ((scene.a, scene.place.key), (scene.b, scene.place.other_key))[number]
    if not terms.keys() <= scene.made_of[number].keys():
        return here, there
    held = {name: scene.made_of[number][name] for name in terms}
    behind = itertools.dropwhile(lambda kept: kept.key != key, side.forward)
    for kept in itertools.islice(behind, 1, _MOST_BEHIND):
        tensor = None if kept.main is None or kept.main[1].is_meta or kept.main[1].is_nested else as_numbers(kept.main[1])
        laid = None if tensor is None else laid_out_alike(scene.tensors[0], tensor)
        found = {} if laid is None else _sum_of(scene, held, laid[0])
        if found.keys() == terms.keys():
            return (found, there) if number == 0 else (here, found)
    return here, there


_MOST_BEHIND = 24


def _is_left_out(scene: Scene, name: str) -> bool:
    """Return whether a tensor of ``a`` is the output of a module that ``b`` has as well, and does not call."""
    path, here, there = name.partition(":")[0], scene.a.modules(), scene.b.modules()
    idle = [module for other, module in there.items() if other not in scene.b.types()]
    return ":output" in name and any(module is there.get(path) or of_equal_parameters(here.get(path), module) for module in idle)


def _sum_of(scene: Scene, held: Mapping[str, Tensor], wanted: Tensor) -> dict[str, float]:
    """Return factors by name with which at most three of the tensors *held* make *wanted*; nothing where none do."""
    names: list[str] = []
    for name, tensor in held.items():
        if bool(tensor.isfinite().all()) and bool(tensor.any()) and not any(torch.equal(tensor, held[other]) for other in names):
            names.append(name)
    names = names[-_MOST_TERMS:]
    if not bool(wanted.isfinite().all()):
        return {}
    flat = {name: held[name].flatten() for name in names}
    goal = wanted.flatten()
    square = float(goal @ goal)
    gram = (
        torch.stack([torch.stack([flat[one] @ flat[other] for other in names]) for one in names])
        if names
        else torch.zeros(0, 0, device="cpu")
    )
    right = torch.stack([flat[name] @ goal for name in names]) if names else torch.zeros(0, device="cpu")
    for count in (1, 2, 3):
        if goal.numel() < 4 * count:
            return {}
        for chosen in itertools.combinations(range(len(names)), count):
            block = gram[list(chosen)][:, list(chosen)]
            exact = torch.linalg.lstsq(block, right[list(chosen)][:, None]).solution[:, 0]
            rest = square - float(right[list(chosen)] @ exact)  # the square of what the sum lacks
            if bool((exact.abs() < _SMALLEST_FACTOR).any()) or rest > _MOST_LEFT * square:
                continue
            terms = [flat[names[place]] for place in chosen]
            for factors in (exact.round(decimals=3), exact):
                if _equal(scene, torch.stack(terms, -1) @ factors, goal):
                    return {names[place]: float(factor) for place, factor in zip(chosen, factors, strict=True)}
    return {}


# Selections and pools


def _of_selection(scene: Scene) -> Iterator[Suspect]:
    """Each side takes one entry of an axis of a tensor before, or its mean, sum or largest: not the same."""
    if scene.tensors is None or not _is_large_enough(scene):
        return
    for source in scene.sources:
        here, there = (_taken(scene, held, wanted) for held, wanted in zip((source.a, source.b), scene.tensors, strict=True))
        if here is None or there is None or here[0] == there[0]:
            continue
        made = here[1](source.b).reshape(scene.tensors[1].shape)
        words = f"of {source.name} {here[0]} in a, {there[0]} in b"
        yield scene.suspect("inputs", words, Undo(made=lambda _, made=made: made), "take the same on both sides")  # type: ignore[misc]  # a tensor
        return


_POOLS: dict[str, Callable[..., Tensor]] = {
    "the mean": lambda x, axes: x.mean(axes),
    "the sum": lambda x, axes: x.sum(axes),
    "the largest": lambda x, axes: x.amax(axes),
    "the smallest": lambda x, axes: x.amin(axes),
}


def _taken(scene: Scene, held: Tensor, wanted: Tensor) -> tuple[str, Callable[[Tensor], Tensor]] | None:
    """Return what of *held* is *wanted*, in words and as a function; None for another formula."""
    size = [length for length in wanted.shape if length != 1]
    for axes in [(axis,) for axis in range(held.dim())] + [(axis, axis + 1) for axis in range(1, held.dim() - 1)]:
        rest = [length for axis, length in enumerate(held.shape) if axis not in axes]
        if [length for length in rest if length != 1] != size or math.prod(held.shape[axis] for axis in axes) < 2:
            continue
        goal = wanted.reshape(rest)
        where = f"over axis {axes[0]}" if len(axes) == 1 else f"over axes {axes[0]} and {axes[1]}"
        for name, pool in _POOLS.items():
            if _equal(scene, pool(held, axes), goal):
                return f"{name} {where}", functools.partial(pool, axes=axes)
        if len(axes) > 1:
            continue
        (axis,) = axes
        apart = (held.movedim(axis, 0) - goal).square()
        if axis == 1 and goal.dim() > 1:  # each sample may take an entry of its own: the last one before its padding
            chosen = apart.flatten(2).sum(2).argmin(0)
        else:
            chosen = apart.flatten(1).sum(1).argmin(0).expand(len(goal))
        take = functools.partial(_entries, axis=axis, chosen=chosen)
        if _equal(scene, take(held), goal):
            numbers = dict.fromkeys(chosen.tolist())
            last = " (the last)" if numbers.keys() == {held.size(axis) - 1} else ""
            which = (
                f"entry {next(iter(numbers))}{last}" if len(numbers) == 1 else f"entries {names_text(map(str, chosen.tolist()), 8)}"
            )
            return f"{which} of axis {axis}", take
    return None


def _entries(held: Tensor, axis: int, chosen: Tensor) -> Tensor:
    """Return one entry of *axis*; of axis 1 that of each sample."""
    if axis == 1:
        return held[torch.arange(len(held), device="cpu"), chosen]
    return held.select(axis, int(chosen.flatten()[0]))


_MOST_TERMS, _SMALLEST_FACTOR, _MOST_LEFT = 12, 1e-3, 1e-3


def _words_of_sum(factors: Mapping[str, float]) -> str:
    return " + ".join(name if factor == 1 else f"{factor:.4g} {name}" for name, factor in factors.items())


def _of_parameter(scene: Scene) -> Iterator[Suspect]:
    """The tensors differ by a parameter of the module, which one side alone adds, or multiplies by: a bias, a gain."""
    if scene.tensors is None or not _is_large_enough(scene):
        return
    one, other = scene.tensors
    for side, module in zip("ab", scene.modules, strict=True):
        for name, parameter in () if module is None else module.named_parameters():
            given = readable(parameter)
            if given.is_meta:
                continue
            held = as_numbers(given)
            if held.numel() < 2 or held.dim() > one.dim() or not float(held.norm()):
                continue
            for wide, (what, made) in itertools.product(_along_each_axis(held, one), _WITH_A_PARAMETER.items()):
                result = made(other, wide)
                if not _equal(scene, one, result):
                    continue
                with_it, lacking = ("a", "b") if what in ("adds", "multiplies by") else ("b", "a")
                verb = what.removeprefix("other ")
                yield scene.suspect(
                    "parameter_missing",
                    f"{with_it} {verb} {side}.{_full(scene, side, name)}, {lacking} does not",
                    Undo(made=lambda _, result=result: result),  # type: ignore[misc]  # a tensor
                    f"{'add' if verb == 'adds' else 'multiply by'} {name} on both sides, or on none",
                )
                return


_WITH_A_PARAMETER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "adds": lambda b, held: b + held,
    "other adds": lambda b, held: b - held,
    "multiplies by": lambda b, held: b * held,
    "other multiplies by": lambda b, held: b / held,
}
"""What one side alone does with a parameter, and from the tensor of ``b`` to that of ``a``."""


def _along_each_axis(held: Tensor, like: Tensor) -> Iterator[Tensor]:
    """Yield *held* in the shape of *like*: as broadcasting has it, and a vector along each axis of its length."""
    with contextlib.suppress(RuntimeError):
        yield held.expand_as(like)
    if held.dim() == 1:
        for axis in range(like.dim() - 1):
            if like.size(axis) == held.numel():
                yield held.reshape([-1 if place == axis else 1 for place in range(like.dim())]).expand_as(like)


def _full(scene: Scene, side: str, name: str) -> str:
    layer = scene.frame.owner if side == "a" else scene.owner_b or ""
    return f"{layer}.{name}" if layer else name


def _of_affine(scene: Scene) -> Iterator[Suspect]:
    """``b`` is ``a`` times a number plus a number, the same everywhere or for each entry of an axis."""
    if scene.tensors is None or not _is_large_enough(scene):
        return
    one, other = scene.tensors
    if not bool(one.isfinite().all() & other.isfinite().all()):
        return
    for axis in (None, *range(1, one.dim())):
        rest = [place for place in range(one.dim()) if place != axis]
        if not rest or math.prod(one.shape[place] for place in rest) < _MANY or (axis is not None and one.size(axis) < 2):
            continue
        centred = one - one.mean(rest, keepdim=True)
        square = (centred * centred).sum(rest, keepdim=True)
        if not bool((square > 0).all()):
            continue
        factor = (centred * other).sum(rest, keepdim=True) / square
        addend = other.mean(rest, keepdim=True) - factor * one.mean(rest, keepdim=True)
        if bool((factor == 0).any()) or not _equal(scene, factor * one + addend, other):
            continue
        is_added = not _equal(scene, factor * one, other)
        where = "" if axis is None else f", for each entry of axis {axis}"
        texts = [", ".join(f"{float(each):.4g}" for each in held.flatten()[:4]) for held in (factor, addend)]
        more = ", ..." if factor.numel() > 4 else ""
        yield scene.suspect(
            "affine",
            f"b is a times {texts[0]}{more}{f' plus {texts[1]}{more}' * is_added}{where}",
            Undo(made=lambda b, factor=factor, addend=addend: (b - addend) / factor),  # type: ignore[misc]  # two values
            f"look for a normalisation or {'an addend' if is_added else 'a scale'} that one side lacks",
        )
        return


_MANY = 16


def _of_order(scene: Scene) -> Iterator[Suspect]:
    """The same elements in another order along one axis: heads, channels, positions, samples."""
    if scene.tensors is None or not _is_large_enough(scene):
        return
    one, other = scene.tensors
    for mine, theirs, added, less in _less_a_parameter(scene):
        for axis in [one.dim() - 1, *range(one.dim() - 1)]:
            order = order_of_rows(mine.transpose(0, axis), theirs.transpose(0, axis), max(scene.tolerance, 1e-6))
            if order is None or _is_moved(mine.transpose(0, axis), order):
                continue
            what = "channels" if axis == one.dim() - 1 else f"entries of axis {axis}"
            back = torch.tensor(order, device="cpu").argsort()
            made = theirs.index_select(axis, back) + added
            yield scene.suspect(
                "permuted",
                f"b has the elements of a in another order{less}: {words_of_order(order, what)}",
                Undo(made=lambda _, made=made: made),  # type: ignore[misc]  # a tensor
                "look for heads, patches, or parts of a joined projection, that are in another order",
                {"axis": float(axis)},
            )
            return
    pairs = sorted(itertools.combinations(range(one.dim()), 2), key=lambda axes: axes[0] == 0)  # samples last
    for axes, (turn, words) in itertools.product(pairs, _TURNS):
        turned = functools.partial(turn, axes=axes)
        if _equal(scene, turned(one), other):
            yield scene.suspect(
                "permuted",
                f"b has the elements of a with axes {axes[0]} and {axes[1]} {words}",
                Undo(made=turned),
                "look for a transposition, or a flip, that one side lacks",
            )
            return
    for heads in range(2, one.size(-1) // 2 + 1) if one.dim() == 3 else ():
        if one.size(-1) % heads:
            continue

        for named, from_a, undone in (("b", _merged, _divided), ("a", _divided, _merged)):
            if _equal(scene, from_a(one, heads), other):
                yield scene.suspect(
                    "permuted",
                    f"{named} joins the {heads} heads without exchanging the axes of heads and positions",
                    Undo(made=functools.partial(undone, heads=heads)),
                    "transpose heads and positions before they are reshaped",
                )
                return


def _is_moved(rows: Tensor, order: list[int]) -> bool:
    """Return whether *order* moves all *rows* on by one or two places, and those at the edge are padding: one number each."""
    ahead, count = order[0], len(order)
    away = range(ahead) if 2 * ahead <= count else range(ahead, count)
    is_circle = order == [(place + ahead) % count for place in range(count)]
    return is_circle and len(away) <= 2 and all(bool((rows[place] == rows[place].flatten()[0]).all()) for place in away)


def _exchanged(tensor: Tensor, axes: tuple[int, int]) -> Tensor:
    return tensor.transpose(*axes)


def _reversed(tensor: Tensor, axes: tuple[int, int]) -> Tensor:
    return tensor.flip(axes)


_TURNS = ((_exchanged, "exchanged"), (_reversed, "reversed"))
"""What undoes itself."""


def _less_a_parameter(scene: Scene) -> Iterator[tuple[Tensor, Tensor, Tensor, str]]:
    """Yield the two tensors, what was taken from that of ``a``, and its name in words: nothing, then each parameter of the code.

    One that is shorter than the tensor along an axis belongs to the last entries: a class token stands before the patches.
    """
    assert scene.tensors is not None
    one, other = scene.tensors
    yield one, other, torch.zeros_like(one), ""
    if scene.owner_b is None or None in scene.modules:
        return
    mine, theirs = scene.a.tensors_of(scene.frame.owner), scene.b.tensors_of(scene.owner_b)
    for name, label in matched(mine, theirs):
        pair = [_at_the_end(as_numbers(held), one) for held in (mine[name], theirs[label]) if not held.is_meta]
        if len(pair) == 2 and pair[0] is not None and pair[1] is not None and bool(pair[0].any()):
            yield one - pair[0], other - pair[1], pair[0], f", less {_full(scene, 'a', name)}"


def _at_the_end(held: Tensor, like: Tensor) -> Tensor | None:
    """Return *held* in the shape of *like*, with zeros before it where it is shorter along one axis; None if it does not fit."""
    if held.dim() < 2 or held.dim() > like.dim():
        return None
    held = held.reshape([1] * (like.dim() - held.dim()) + list(held.shape))
    short = [axis for axis in range(like.dim()) if held.size(axis) not in (1, like.size(axis))]
    if len(short) > 1 or any(held.size(axis) > like.size(axis) for axis in short):
        return None
    made = torch.zeros_like(like)
    part = made
    for axis in short:
        part = made.narrow(axis, like.size(axis) - held.size(axis), held.size(axis))
    part.copy_(held.expand_as(part))
    return made


def _merged(tensor: Tensor, heads: int) -> Tensor:
    """Return features of heads (samples, positions, features) as they lie if heads are joined without exchanging the axes."""
    made: Tensor = tensor.unflatten(-1, (heads, -1)).transpose(1, 2).reshape(tensor.shape)
    return made


def _divided(tensor: Tensor, heads: int) -> Tensor:
    """Undo :func:`_merged`."""
    made: Tensor = tensor.reshape(tensor.size(0), heads, tensor.size(1), -1).transpose(1, 2).flatten(2)
    return made


def _of_shift(scene: Scene) -> Iterator[Suspect]:
    """Entry i of one side equals entry i + 1 of the other, along one axis."""
    if scene.tensors is None or not _is_large_enough(scene):
        return
    one, other = scene.tensors
    for axis in range(one.dim()):
        for places in (1, 2, -1, -2):
            length = one.size(axis) - abs(places)
            if length < 3:
                continue
            here = one.narrow(axis, max(0, -places), length)
            there = other.narrow(axis, max(0, places), length)
            if _equal(scene, here, there) and float(here.std()) > 0:
                yield scene.suspect(
                    "shifted",
                    f"entry i of b equals entry i{-places:+d} of a along axis {axis}",
                    Undo(made=_moved_back(one, axis, places, length)),
                    "look for an offset of positions or indices",
                    {"places": float(places), "axis": float(axis)},
                )
                return


def _moved_back(one: Tensor, axis: int, places: int, length: int) -> Callable[[Tensor], Tensor]:
    """Return a function that moves entries back; those at the edge, which the other side does not have, stay as in ``a``."""

    def moved(other: Tensor) -> Tensor:
        made = one.clone()
        made.narrow(axis, max(0, -places), length).copy_(other.narrow(axis, max(0, places), length))
        return made

    return moved


def of_function(scene: Scene) -> Iterator[Suspect]:
    """One side has what a function of one tensor makes of that of the other: a rounding, a limit, an activation."""
    if scene.tensors is None or not _is_large_enough(scene):
        return
    for side, (own, beside) in (("b", scene.tensors), ("a", scene.tensors[::-1])):
        low, high = float(beside.min()), float(beside.max())
        at = [
            f" {where} {end:.4g}" for where, end, cut in (("below", low, own < low), ("above", high, own > high)) if bool(cut.any())
        ]
        limited = {f"what the other side has, cut off{' and'.join(at)}": lambda x: x.clamp(low, high)}  # noqa: B023
        for words, function in {**_ROUNDED, **ACTIVATIONS, **limited}.items():
            made = function(own)
            if low < high and _equal(scene, made, beside) and not _equal(scene, own, beside):
                what = words if words in limited else f"what {words} makes of that of the other"
                undo = Undo(made=lambda b, own=own, made=made, side=side: own if side == "b" else made)  # type: ignore[misc]
                yield scene.suspect("activation", f"{side} has {what}", undo, "do it on both sides, or on none")
                return


_ROUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "rounding": torch.round, "cutting off the decimals": torch.trunc, "rounding down": torch.floor, "abs": torch.abs,
}  # fmt: skip


def of_given(scene: Scene) -> Iterator[Suspect]:
    """A layer is given a tensor of the batch in ``a``, and another one, or one number in all places, in ``b``."""
    if scene.tensors is None or scene.place.site.port != "input":
        return
    root = Site("", "input")
    batches = [next((kept for kept in side.forward if kept.site == root), None) for side in (scene.a, scene.b)]
    held = [
        {}
        if kept is None
        else {leaf: as_numbers(each) for leaf, each in kept.leaves.items() if not each.is_meta and not each.is_nested}
        for kept in batches
    ]
    here, there = (
        next((leaf for leaf, each in leaves.items() if laid_out_alike(each, own) is not None and torch.equal(each, own)), "")
        for leaves, own in zip(held, scene.tensors, strict=True)
    )
    beside = held[1].get(here)
    if not here or here == there or beside is None or beside.shape != scene.tensors[0].shape:
        return
    one = scene.tensors[1].flatten()[0]
    other = there or (f"{float(one):g} in all places" if bool((scene.tensors[1] == one).all()) else "another tensor")
    words = f"it is {here} of the batch in a, {other} in b"
    yield scene.suspect("inputs", words, Undo(made=lambda _: beside), "give it the same tensor on both sides")


def where_it_differs(scene: Scene) -> Iterator[Finding]:
    """Return at which positions alone the tensors differ, as a note that helps where no cause is known."""
    if scene.tensors is None or not _is_large_enough(scene):
        return
    one, other = scene.tensors
    for axis in range(1, one.dim() - 1):
        length = one.size(axis)
        if length < 3:
            continue
        same = [_equal(scene, one.select(axis, place), other.select(axis, place)) for place in range(length)]
        if any(same) and not all(same):
            wrong = [place for place, equal in enumerate(same) if not equal]
            message = f"the sides differ at {len(wrong)} of {length} positions along axis {axis}: {names_text(map(str, wrong), 8)}"
            yield scene.finding("positions", message, "look at masks and at padding", {"positions": float(len(wrong))}, "note")
            return


def _is_large_enough(scene: Scene) -> bool:
    return scene.tensors is not None and scene.tensors[0].numel() >= _LEAST


FORMULAS: tuple[Callable[[Scene], Iterator[Suspect]], ...] = (_of_normalisation, _of_activation, _of_sum, _of_module, _of_selection)
"""What is looked for in the tensors of a place where the formulas of both sides are recognised, the most certain first."""
RELATIONS: tuple[Callable[[Scene], Iterator[Suspect]], ...] = (
    _of_factor,
    _of_limit,
    _of_parameter,
    _of_affine,
    _of_order,
    _of_shift,
    of_attention,
)
"""What is looked for in the relation of the two tensors."""
