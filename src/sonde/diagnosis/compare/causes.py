"""Look for what may explain the place where two sides part: modes, arguments, parameters, settings, types; gradients and updates.

Each look yields suspects; ``proof`` tries them.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sonde.diagnosis.compare import changes, written_out
from sonde.diagnosis.compare.formulas import FORMULAS, RELATIONS, factor_of, of_branch, of_function, of_given
from sonde.diagnosis.compare.joined import among_ranks
from sonde.diagnosis.compare.parting_operation import of_operation
from sonde.diagnosis.compare.portions import layouts
from sonde.diagnosis.compare.recorded_operations import long_axes
from sonde.diagnosis.compare.scene import Scene
from sonde.diagnosis.compare.sides import Side
from sonde.diagnosis.compare.suspects import Change, Suspect, Undo
from sonde.diagnosis.compare.undoing import Explained, explained
from sonde.diagnosis.compare.weights import EXACT, Relation, factor_between, is_addend, matched, of_equal_parameters, relation
from sonde.diagnosis.distance import as_numbers, distance, held_of_both, laid_out_alike, readable, spacing
from sonde.diagnosis.nonfinite.source_lines import lines_of
from sonde.diagnosis.preflight.loss_calls import LossCall, LossCalls
from sonde.engine import class_of, is_floating, parameters_of
from sonde.rules import Finding
from sonde.site import PARAMETER_PORTS, Site
from sonde.words import many, names_text, shape_text

Look = Callable[[Scene], Iterator[Suspect]]


def causes_of(scene: Scene) -> Explained:
    """Return what explains the place where the sides part; nothing where nothing that is known makes them equal."""
    looks: list[list[Look]]
    if scene.place.stage == "forward":
        looks = [
            [_of_random, _of_batch, _of_modes, _of_arguments, _of_parameters, _of_stacks, _of_settings, _of_draws, _of_types],
            *([look] for look in FORMULAS),
            [_of_order],
            [_of_gates],
            [_of_edges],
            [_of_class],
            *([look] for look in RELATIONS),
            [of_operation],
            [of_branch],
            [of_function],
            [of_given],
        ]
    elif scene.place.stage == "backward":
        looks = [
            [_of_loss, _of_frozen, _of_tie, _of_cut, _of_random, _of_modes, _of_parameters, _of_settings, _of_draws, _of_types],
            [_of_class],
            [_of_gradient_factor],
            [_of_gradient_part],
        ]
    elif scene.place.site.port == "param":
        looks = [[partial(factor_of, words="the parameter of b is {factor:.6g} times that of a")]]
    else:
        factor = partial(factor_of, words="the update of b is {factor:.6g} times that of a")
        looks = [[_of_optimizer, _of_frozen, _of_modes, _of_settings], [factor], [_of_class], [_of_decay], [_of_statistics]]
    if any(kept is not None and among_ranks(kept, scene.place.leaf, scene.tolerance)[0] for kept in scene.kept):
        looks = []  # what the tensor of one rank is like says nothing of the others
    both = scene.a.model is not None and scene.b.model is not None
    return explained(scene, looks if both else [[_of_addends], [_of_saved_parameters], *looks])


# Saved sides


def _of_addends(scene: Scene) -> Iterator[Suspect]:
    """The ranks hold different tensors in one place, and their sum or mean is that of the other side."""
    for side, kept in zip("ab", scene.kept, strict=True):
        held = [] if kept is None else among_ranks(kept, scene.place.leaf, scene.tolerance)[0]
        if kept is None or not held or scene.tensors is None or any(each.shape != held[0].shape for each in held):
            continue
        total = as_numbers(held[0]) + sum(as_numbers(each) for each in held[1:])
        for made, words in ((total, "sum"), (total / len(held), "mean")):
            laid = laid_out_alike(scene.tensors[0], made)
            if laid is not None:
                other = "b" if side == "a" else "a"
                yield scene.suspect(
                    "addends",
                    f"the ranks of {side} hold {len(held)} tensors here that differ, and their {words} equals that of {other}",
                    Undo(made=_instead(scene.tensors, laid[0], side)),
                    "look for a sum over the ranks (all-reduce) that is missing",
                    {"ranks": float(len(held))},
                )


_LAYERS: dict[str, Callable[..., Tensor]] = {
    "Linear": lambda x, weight, bias=None: functional.linear(x, weight, bias),
    "Conv1D": lambda x, weight, bias: x @ weight + bias,
    "Embedding": lambda x, weight: weight[x.long()],
    "LayerNorm": lambda x, weight, bias=None: functional.layer_norm(x, weight.shape, weight, bias),
}
"""What a layer gives of its input and its parameters, by its class."""


def _of_saved_parameters(scene: Scene) -> Iterator[Suspect]:
    """The parameters that were saved differ: with those of ``a``, the layer of ``b`` gives what ``a`` has."""
    layer, differing = _LAYERS.get(scene.place.type), _differing(scene)
    if layer is None or not differing or scene.tensors is None:
        return
    pairs = _saved_pairs(scene)
    if any(one is None or other is None for _, one, other in pairs):
        return
    made = _made_of_saved(scene, layer, [{name.rpartition(".")[2]: both[side] for name, *both in pairs} for side in (0, 1)])
    if made is None:
        return
    names = [name for name, _ in differing]
    is_one = len(differing) == 1
    message = f"{names_text(names)} {'differs' if is_one else 'differ'}: with a's in its place the output of b equals that of a"
    found = differing[0][1]
    if is_one and found.rule != "weight_differs":
        message = found.words.format(a=f"a's {names[0]}", b=f"b's {names[0]}")
    yield scene.suspect(
        found.rule if is_one else "weight_differs",
        message,
        Undo(made=lambda _: made),
        "check that it was loaded or sent, and, where it is tied to another parameter, that both are updated",
        found.evidence if is_one else {},
    )


def _made_of_saved(scene: Scene, layer: Callable[..., Tensor], sides: list[dict[str, Any]]) -> Tensor | None:
    """Return what *layer* of ``b`` gives with the parameters of ``a``; None if it makes what ``b`` has of no tensor that is saved.

    Its input, or where inputs are not saved, the output of a module before it.
    """
    assert scene.tensors is not None
    place, events = scene.place, scene.b.forward
    end = next((number for number, kept in enumerate(events) if kept.key == place.other_key), 0)
    own = [kept for kept in events if kept.key == (Site(place.other.path, "input"), place.call)]
    for kept in own or [kept for kept in events[:end][::-1] if kept.site.port == "output"][:_MOST_BEFORE]:
        main = kept.main
        if main is None or main[1].is_meta or main[1].is_nested:
            continue
        try:
            given = as_numbers(main[1])
            here, there = (laid_out_alike(scene.tensors[0], layer(given, **held)) for held in sides)
        except (RuntimeError, IndexError, TypeError):  # a class of the same name, or of other parameters; another tensor
            continue
        if here is not None and there is not None and scene.equal(there[0], scene.tensors[1]):
            return here[0]
    return None


_MOST_BEFORE = 16


def _saved_pairs(scene: Scene) -> list[tuple[str, Any, Any]]:
    """Return the parameters of the layer at the place that were saved: name in ``a``, and the numbers of each side or None."""
    own = [each for each in scene.places if each.site.port == "param" and each.site.owner.path == scene.place.site.path]
    held = [{kept.key: kept.main for kept in side.update} for side in (scene.a, scene.b)]
    return [(each.site.path, _numbers(held[0][each.key]), _numbers(held[1][each.other_key])) for each in own]


def _numbers(main: tuple[str, Tensor] | None) -> Tensor | None:
    return None if main is None or main[1].is_meta or main[1].is_nested else as_numbers(main[1])


def _differing(scene: Scene) -> list[tuple[str, Relation]]:
    """Return which saved parameters of the layer at the place differ, and how."""
    if scene.place.site.port != "output":
        return []
    pairs = [(name, one, other) for name, one, other in _saved_pairs(scene) if one is not None and other is not None]
    return [(name, found) for name, x, y in pairs if x.shape == y.shape and (found := relation(x, y)) is not None]


def differing_parameters(scene: Scene) -> Iterator[Finding]:
    """Yield, of saved sides, which parameters of the layer at the place differ, and what to save for a proof: as notes."""
    for name, found in _differing(scene) if scene.a.model is None else ():
        words = found.words.format(a=f"a's {name}", b=f"b's {name}")
        more = "; whether this explains the place could be told of the input of the layer, which is not saved"
        key = Site(scene.place.other.path, "input"), scene.place.call
        is_saved = any(kept.key == key for kept in scene.b.forward)
        advice = 'save inputs too: sonde.track(model, ports=("input", "output", "grad_output"))'
        message = words if is_saved or scene.place.type not in _LAYERS else f"{words}{more}: {advice}"
        yield scene.finding(found.rule, message, "", found.evidence, "note")


def _instead(tensors: tuple[Tensor, Tensor], made: Tensor, side: str) -> Callable[[Tensor], Tensor]:
    """Return the change of the tensor of ``b`` that stands for *made* in the place of the tensor of *side*."""
    return lambda b: made if side == "b" else tensors[0] + b - made


# Modes and arguments


def _of_random(scene: Scene) -> Iterator[Suspect]:
    """Dropout that is on in one side alone."""
    one, other = scene.modules
    random = {"a": scene.place.key in scene.a.random, "b": scene.place.other_key in scene.b.random}
    if one is None or other is None or random["a"] == random["b"]:
        return
    training = {"a": one.training, "b": other.training}
    side, rest = ("a", "b") if random["a"] else ("b", "a")
    kind = class_of(one if side == "a" else other).__name__
    where = "is in training mode" if training[side] else "draws random numbers in evaluation mode"
    why = f"dropout is on in {side}" if training[side] else f"{side} is random"
    yield from _quiet(
        scene,
        f"{why}: its {kind} {where}, and gives other results from another random state; {rest} gives the same",
        f"compare both in evaluation mode: {side}.eval()",
        {"training_a": float(training["a"]), "training_b": float(training["b"])},
    )


def _of_draws(scene: Scene) -> Iterator[Suspect]:
    """Both sides draw random numbers, but others."""
    if scene.place.key in scene.a.random and scene.place.other_key in scene.b.random and None not in scene.modules:
        message = "both sides are random here, and draw other numbers from the same random state"
        yield from _quiet(scene, message, "compare both in evaluation mode: a.eval(), b.eval()", {})


def _quiet(scene: Scene, message: str, advice: str, evidence: Mapping[str, float]) -> Iterator[Suspect]:
    still = Change(contexts=(changes.Still,))
    quiet = [changes.mode(side, name, training=False, inside=True) for side, name in _owners(scene)]
    for undo in (Undo(still, still), Undo(quiet[0], quiet[1])):
        yield scene.suspect("random", message, undo, advice, evidence, instead="random")


def _of_batch(scene: Scene) -> Iterator[Suspect]:
    """The batches that were given differ in one tensor."""
    place, here = scene.place, scene.kept[0]
    if here is not None and place.leaf and not place.site.path and not place.other.path and place.site.port == "input":
        undo = Undo(b=changes.given(place.leaf, here.leaves[place.leaf]))
        yield scene.suspect("batch", f"the batches differ in {place.leaf}", undo, "give both sides the same batch")


def _owners(scene: Scene) -> list[tuple[Side, str]]:
    assert scene.owner_b is not None
    return [(scene.a, scene.frame.owner), (scene.b, scene.owner_b)]


def _of_modes(scene: Scene) -> Iterator[Suspect]:
    """Statistics of the batch in one side, running statistics in the other."""
    one, other = scene.modules
    if one is None or other is None or one.training == other.training:
        return
    side = "a" if one.training else "b"
    assert scene.owner_b is not None
    yield scene.suspect(
        "training_mode",
        f"the {class_of(one).__name__} is in training mode in {side} alone",
        Undo(b=changes.mode(scene.b, scene.owner_b, training=one.training)),
        "put both into the same mode: a.eval(), b.eval()",
        {"training_a": float(one.training), "training_b": float(other.training)},
    )


def _of_arguments(scene: Scene) -> Iterator[Suspect]:
    """The module is called with another plain argument, a flag or a number, or with a tensor in one side alone."""
    owner = scene.owner_b
    if owner is None or scene.place.site.port != "output":
        return
    here, there = _arguments(scene, scene.a, scene.frame.owner), _arguments(scene, scene.b, owner)
    for name in here | there:
        value, beside = here.get(name), there.get(name)
        is_tensor = isinstance(value, Tensor), isinstance(beside, Tensor)
        if is_tensor[0] != is_tensor[1] or (is_tensor == (False, False) and name in here and name in there and value != beside):
            yield scene.suspect(
                "argument",
                f"its argument {name} is {_short(value)} in a and {_short(beside)} in b",
                Undo(b=changes.argument(scene.b, owner, name, value)),
                "call it with the same arguments",
            )


def _arguments(scene: Scene, side: Side, path: str) -> dict[int | str, Any]:
    """Return the flags, numbers, texts and tensors with which a module was called at the place, by position or name."""
    key = Site(side.real(path), "input"), scene.place.call
    kept = next((each for each in side.forward if each.key == key), None)
    if kept is None:
        return {}
    names = {leaf: re.fullmatch(r"\[(\d+)\]|\['(\w+)'\]", leaf) for leaf in kept.leaves}
    return {**kept.plain, **{int(found[1]) if found[1] else found[2]: kept.leaves[leaf] for leaf, found in names.items() if found}}


# Parameters


def _of_parameters(scene: Scene) -> Iterator[Suspect]:
    one, other = scene.modules
    owner, owner_b = scene.frame.owner, scene.owner_b
    if one is None or other is None or owner_b is None:
        return
    mine, theirs = scene.a.tensors_of(owner), scene.b.tensors_of(owner_b)
    pairs = matched(mine, theirs)
    for name, label in pairs:
        held = held_of_both(mine[name], theirs[label])
        if held is None or held[0].is_meta or held[1].is_meta:
            continue
        yield from _of_pair(scene, name, label, *held)
    for side, where, named, own, rest in (
        (scene.a, owner, "a", mine, {name for name, _ in pairs}),
        (scene.b, owner_b, "b", theirs, {label for _, label in pairs}),
    ):
        for name, tensor in own.items():
            inner = _path(where, name.rpartition(".")[0]) if "." in name else ""
            if name not in rest and isinstance(tensor, nn.Parameter) and inner not in side.alone:
                yield from _of_lonely(scene, side, where, named, name, tensor)


def _of_pair(scene: Scene, name: str, label: str, x: Tensor, y: Tensor) -> Iterator[Suspect]:
    """Put the tensor of ``a`` into ``b``: as it is, transposed, and that of a convolution with its axes in another order."""
    if y.shape == x.shape and x.dtype != y.dtype and distance(as_numbers(x), as_numbers(y)).relative <= max(spacing(x), spacing(y)):
        return  # the difference of the types is told apart
    assert scene.owner_b is not None
    is_long = long_axes(x.shape) == long_axes(y.shape)
    for order, given in () if is_long else _with_other_axes(x, y):
        words = f"the input of b has the axes of {name} in the order {names_text(order)}, and its {label} has them as they stand"
        undo = Undo(b=changes.putting(scene.b, scene.owner_b, label, given))
        yield replace(scene.suspect("weight_permuted", words, undo, "order both alike"), is_guess=True)
    for turned, words in ((x.reshape(y.shape) if is_long else x, ""), (x.mT if x.dim() == 2 else None, ".T")):
        if turned is None or turned.shape != y.shape:
            continue
        found = relation(as_numbers(turned), as_numbers(y))
        if found is None:
            continue
        found = _mixed_up(scene, name, y) or found
        undo = Undo(b=changes.putting(scene.b, scene.owner_b, label, turned))
        yield _of_relation(scene, found, name, label, words, undo)


def _with_other_axes(x: Tensor, y: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Yield *x*, of a convolution or its axes joined, in the shape of *y*, with the axes behind the first in other orders."""
    long: Tensor = x if x.dim() > y.dim() else y
    if x.dim() == y.dim() or 0 in (x.dim(), y.dim()) or x.numel() != y.numel() or len(x) != len(y) or long.dim() > _MOST_EXCHANGED:
        return
    for order in itertools.islice(itertools.permutations(range(1, long.dim())), 1, None):
        turned = (0, *order)
        back = sorted(range(long.dim()), key=turned.__getitem__)
        given = x.permute(turned) if long is x else x.reshape([y.size(axis) for axis in turned]).permute(back)
        yield order, given.reshape(y.shape)


_MOST_EXCHANGED = 4


def _of_lonely(scene: Scene, side: Side, owner: str, named: str, name: str, tensor: Tensor) -> Iterator[Suspect]:
    """A parameter that one side has alone: without it the sides are equal."""
    neutral = 0.0 if is_addend(name) else 1.0
    if tensor.is_meta or (neutral and tensor.dim() > 1) or bool((tensor == neutral).all()):
        return
    lacking, kind = "b" if named == "a" else "a", "weight" if neutral else "bias"
    change = changes.putting(side, owner, name, torch.full_like(as_numbers(tensor), neutral))
    twin = _twin(scene.b if named == "a" else scene.a, tensor)
    words = f"and {lacking}, which holds it as {twin}, makes no use of it" if twin else f"and none in {lacking}"
    suspect = scene.suspect(
        f"{kind}_missing",
        f"there is a {name} in {named} {words}",
        Undo(a=change) if named == "a" else Undo(b=change),
        f"use the {name} in {lacking}" if twin else f"add the {name} in {lacking}",
    )
    yield replace(suspect, is_guess=bool(twin))


def _of_stacks(scene: Scene) -> Iterator[Suspect]:
    """Layers of a list in one side hold what one tensor of the other holds, one behind the other, but not in this order."""
    if scene.owner_b is None or None in scene.modules:
        return
    mine, theirs = scene.a.tensors_of(scene.frame.owner), scene.b.tensors_of(scene.owner_b)
    for in_a, lists, rest in ((True, mine, theirs), (False, theirs, mine)):
        stacked, patterns = _stacked(lists), {_NUMBER.sub("*", name) for name in lists}
        for name, held in rest.items():
            found = [(which, made) for which, made in stacked.items() if made.numel() == held.numel() and not held.is_meta]
            pairs = [(which, made.reshape(held.shape), as_numbers(held)) for which, made in found if _fits(made, held)]
            related = [(which, x, y, relation(*((x, y) if in_a else (y, x)))) for which, x, y in pairs]
            if any(found is None for *_, found in related):
                continue  # it is one of them
            orders = [each for each in related if each[3] is not None and each[3].rule != "weight_differs"]
            for which, x, y, how in (orders or related)[:1]:
                changed = [(name, x)] if in_a else [*zip(_members(theirs, which), y.reshape(x.shape), strict=True)]
                if how is None or (not in_a and which not in patterns):
                    continue
                puts = [changes.putting(scene.b, scene.owner_b, own, value) for own, value in changed]
                own = [_path(scene.frame.owner, which if in_a else name), _path(scene.owner_b, name if in_a else which)]
                words = how.words.format(a=f"a.{own[0]}", b=f"b.{own[1]}").replace("rows", "entries")
                suspect = scene.suspect(how.rule, words, Undo(b=sum(puts, Change())), "put them in one order", how.evidence)
                yield replace(suspect, is_guess=True)


def _fits(made: Tensor, held: Tensor) -> bool:
    """Return whether *held* is of the shape of what is *made* of several tensors, or has the first axes joined."""
    return made.shape == held.shape or (held.dim() == made.dim() - 1 and made.shape[2:] == held.shape[1:])


def _members(held: Mapping[str, Tensor], pattern: str) -> list[str]:
    """Return the names of *held* that a *pattern* with ``*`` for numbers has, in order."""
    return [name for name in held if _NUMBER.sub("*", name) == pattern]


_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def _stacked(held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of one shape, whose names differ in a number, as one: alone, and with the rows of others of a list beside."""
    patterns = dict.fromkeys(_NUMBER.sub("*", name) for name in held)
    groups = {pattern: [held[name] for name in _members(held, pattern)] for pattern in patterns if pattern.count("*") == 1}
    groups = {
        pattern: each
        for pattern, each in groups.items()
        if len(each) > 1 and not any(one.is_meta or one.shape != each[0].shape for one in each)
    }
    made = {pattern: torch.stack([as_numbers(one) for one in each]) for pattern, each in groups.items()}
    made |= {f"{pattern}.T": each.mT for pattern, each in made.items() if each.dim() == 3}
    beside = [(x, y) for x, y in itertools.permutations(made, 2) if made[x].shape == made[y].shape and made[x].dim() > 2]
    return made | {f"{x} + {y}": torch.cat([made[x], made[y]], 1) for x, y in beside[:_MOST_BESIDE]}


_MOST_BESIDE = 12


def _twin(side: Side, tensor: Tensor) -> str:
    """Return the name of the parameter of *side* that has the shape and the values of *tensor*; ``""`` for none."""
    for name, parameter in () if side.model is None else side.model.named_parameters():
        if not parameter.is_nested and parameter.shape == tensor.shape:
            held = readable(parameter)
            if not held.is_meta and distance(as_numbers(held), as_numbers(tensor)).relative <= EXACT:
                return name
    return ""


def _of_relation(scene: Scene, found: Relation, name: str, label: str, turned: str, undo: Undo) -> Suspect:
    layer, beside = scene.frame.owner, scene.owner_b or ""
    same = layer == beside and name == label
    texts = ("a." + _path(layer, name), "b." + _path(beside, label))
    words = found.words.format(a=(f"a's {name}" if same else texts[0]) + turned, b=f"b's {label}" if same else texts[1])
    words = words.replace(".T.T", ", and its transpose is needed")
    suspect = scene.suspect(found.rule, words, undo, _ADVICE.get(found.rule, ""), found.evidence, instead=f"put {label}")
    return replace(suspect, is_guess=bool(turned) or (name != label and "." in name + label))


_ADVICE = {
    "weight_transposed": "transpose the weight where it is converted",
    "weight_reshaped": "transpose the weight where it is converted, instead of changing its shape",
    "weight_permuted": "put the rows in the order of the other side where the weight is converted",
    "weight_flipped": "turn the weight round where it is converted",
    "weight_scaled": "load the weight without the factor",
    "weight_rounded": "keep the weight in the wider type",
    "weight_shifted": "check the first row of the table of embeddings, and the offset of its indices",
    "weight_differs": "check that this tensor was loaded, and that nothing trained or initialised it afterwards",
    "weight_of_another": "check the names by which the weights are converted",
}


def _mixed_up(scene: Scene, name: str, y: Tensor) -> Relation | None:
    """Return the relation of a tensor of ``b`` to another parameter of ``a`` that it equals."""
    numbers = as_numbers(y)
    if y.numel() < 2 or bool((numbers == numbers.flatten()[0]).all()):
        return None
    own = _path(scene.frame.owner, name)
    assert scene.a.model is not None
    every = {other: readable(held) for other, held in scene.a.model.named_parameters() if not held.is_nested}
    for portion in scene.a.portions:
        every |= {_path(portion, leaf): held for leaf, held in scene.a.tensors_of(portion).items()}
    for other, held in every.items():
        for given, words in ((held, ""), (held.mT if held.dim() == 2 else held, ".T")):
            is_like = other != own and given.shape == y.shape and not given.is_meta
            if is_like and distance(as_numbers(given), numbers).relative <= EXACT:
                return Relation("weight_of_another", f"{{b}} equals a.{other}{words}")
    return None


def _of_order(scene: Scene) -> Iterator[Suspect]:
    """The code reads the parts of the last joined projection in another order than its parameters have them in."""
    ways = (scene.b, scene.owner_b, scene.place.other_key), (scene.a, scene.frame.owner, scene.place.key)
    for side, owner, end in ways if scene.frame.is_code else ():
        until = [kept.key for kept in side.forward].index(end)
        ran = [kept.site.path for kept in side.forward[:until] if kept.site.port == "output" and kept.site.path in side.portions]
        module = side.real(ran[-1]) if ran else ""
        if not ran or owner is None or not module.startswith(f"{owner}." if owner else ""):
            continue
        names = [name for name, portion in side.portions.items() if portion.module == module]
        other = {y: x for x, y in scene.names.pairs()} if side is scene.b else dict(scene.names.pairs())
        held = [side.portions[name].features for name in names]
        for layout in layouts([len(each) for each in held]):
            change = changes.moved(side, module, torch.cat(held), torch.cat(layout))
            order = [other[names[number]] for number in sorted(range(len(names)), key=lambda at: int(layout[at][0]))]
            turns = "" if bool((layout[0].diff() == 1).all()) else " by turns"
            what = f"the parts of {side.name}.{module} lie in another order than its code takes them"
            suspect = scene.suspect(
                "weight_permuted",
                f"{what}, which is {names_text(order)}{turns}",
                Undo(b=change) if side is scene.b else Undo(a=change),
                "put the parts into this order where the weight is converted",
            )
            yield replace(suspect, is_guess=True)


def not_called(a: Side, b: Side) -> Iterator[Finding]:
    """Yield which modules one side has, and does not call, that ran in the other: of one name, or of equal parameters. As notes."""
    for side, lacking in ((a, b), (b, a)):
        here, ran = side.modules(), lacking.types()
        modules = {
            name: module for name, module in lacking.modules().items() if class_of(module).__module__ != written_out.__name__
        }
        idle = {name: module for name, module in modules.items() if name not in ran}
        for name in (each for each in side.types() if each in side.alone):
            twins = [other for other, module in idle.items() if of_equal_parameters(here.get(name), module)]
            same = [name] if name in idle and class_of(idle[name]) is class_of(here[name]) else twins if len(twins) == 1 else []
            for twin in same:
                what = "it" if twin == name else f"{name}, of the same parameters,"
                message = f"{twin} is not called in {lacking.name} as a module; {what} ran in {side.name}"
                yield Finding("module_missing", message, name, severity="note", advice=f"check that {lacking.name} calls {twin}")


# Settings


def _of_settings(scene: Scene) -> Iterator[Suspect]:
    one, other = scene.modules
    if one is None or other is None or scene.owner_b is None:
        return
    there = _settings(other)
    is_part = scene.frame.owner in scene.a.portions or scene.owner_b in scene.b.portions
    for name, here, beside in setting_differences(one, other):
        if is_part and name in _SIZES:
            continue
        numbers = {f"{name}_a": here, f"{name}_b": beside}
        evidence = {key: float(held) for key, held in numbers.items() if isinstance(held, int | float)}
        yield scene.suspect(
            "eps" if name == "eps" else "setting",
            f"{name} is {_short(here)} in a and {_short(beside)} in b",
            Undo(b=changes.setting(scene.b, scene.owner_b, {there[name][0]: here})),
            f"give both the same {name}",
            evidence,
        )
    if scene.place.stage == "backward":
        yield from _of_settings_elsewhere(scene)


_SIZES = ("out_features", "out_channels", "nf")
"""Settings that a layer and a portion of one do not share."""


def _of_settings_elsewhere(scene: Scene) -> Iterator[Suspect]:
    """Settings of other modules that act on gradients alone: factors, as in a reversal, and hooks."""
    here, there = scene.a.modules(), scene.b.modules()
    for name, other in scene.names.pairs():
        if name in (scene.frame.owner, *scene.a.portions) or other in scene.b.portions or name not in here or other not in there:
            continue
        own = _settings(there[other])
        for setting, x, y in setting_differences(here[name], there[other]):
            undo = Undo(b=changes.setting(scene.b, other, {own[setting][0]: x}))
            words = words_of_setting(name, setting, x, y)
            yield replace(scene.suspect("setting", words, undo, f"give both the same {setting}"), is_guess=True)


def words_of_setting(name: str, setting: str, x: Any, y: Any) -> str:
    """Return that a setting of the module *name* differs."""
    return f"{name or '(root)'}: {setting} is {_short(x)} in a and {_short(y)} in b"


def setting_differences(one: nn.Module, other: nn.Module) -> list[tuple[str, Any, Any]]:
    """Return the plain attributes that two modules have both and that differ: name, value in ``a``, value in ``b``.

    Different names for the small number of a normalisation (``eps``, ``variance_epsilon``) are one name.
    """
    here, there = _settings(one), _settings(other)
    pairs = [(name, here[name][1], there[name][1]) for name in here if name in there]
    return [(name, x, y) for name, x, y in pairs if _differ(x, y)]


def _differ(x: Any, y: Any) -> bool:
    if callable(x) and callable(y):
        names = [(getattr(held, "__module__", ""), getattr(held, "__qualname__", "")) for held in (x, y)]
        return x is not y and names[0] != names[1]
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return x.shape != y.shape or not torch.equal(x.cpu(), y.cpu())
    return bool(x != y)


def _settings(module: nn.Module) -> dict[str, tuple[str, Any]]:
    """Return the plain attributes, and those of ``config``: the name of the attribute and the value, by the name of the setting."""
    held = dict(vars(module))
    for name, value in vars(module).items():
        if isinstance(value, dict) and not name.startswith("_"):
            held |= {f"{name}.{key}": each for key, each in value.items()}
        elif name in ("config", "cfg", "args"):
            held |= {f"{name}.{key}": each for key, each in getattr(value, "__dict__", {}).items()}
    found: dict[str, tuple[str, Any]] = {}
    for name, value in held.items():
        last = name.rpartition(".")[2]
        parts = value if isinstance(value, tuple) else ()
        is_plain = isinstance(value, _PLAIN) and all(isinstance(part, bool | int | float | str) for part in parts)
        if last.startswith("_") or last in _NO_SETTINGS or not is_plain:
            continue
        found.setdefault("eps" if "eps" in name else name, (name, value))
    return found


_PLAIN = (bool, int, float, str, tuple, type(None), types.FunctionType, types.BuiltinFunctionType)
_NO_SETTINGS = {"training", "call_super_init", "dump_patches", "layer_idx", "name", "device", "forward"}


def _short(value: Any) -> str:
    if callable(value):
        return str(getattr(value, "__name__", value))
    if isinstance(value, Tensor):
        return f"a tensor of {shape_text(value.shape)}"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


# Types and code


def _of_types(scene: Scene) -> Iterator[Suspect]:
    one, other = (None if kept is None else kept.main for kept in scene.kept)
    if one is None or other is None or one[1].dtype == other[1].dtype or scene.b.model is None:
        return
    kinds = [str(held[1].dtype).removeprefix("torch.") for held in (one, other)]
    undo = Undo(b=changes.typed(one[1].dtype))
    yield scene.suspect("dtype", f"{kinds[0]} in a, {kinds[1]} in b", undo, "compute both in the same type", severity="warn")


def _of_class(scene: Scene) -> Iterator[Suspect]:
    """The code of the layer: with that of ``a``, and the parameters and settings of ``b``, the sides are equal."""
    one, other = scene.modules
    if scene.frame.is_code or one is None or other is None or scene.owner_b is None or class_of(one) is class_of(other):
        return
    if scene.frame.owner in scene.a.portions or scene.owner_b in scene.b.portions or not scene.frame.owner:
        return  # two models of other classes are what is compared
    kinds = [class_of(module).__name__ for module in (one, other)]
    words = f"{kinds[0]} in a, {kinds[1]} in b" if kinds[0] != kinds[1] else f"two classes {kinds[0]} of different code"
    mine, theirs = scene.a.tensors_of(scene.frame.owner), scene.b.tensors_of(scene.owner_b)
    held = {name: theirs[label] for name, label in matched(mine, theirs) if mine[name].numel() == theirs[label].numel()}
    if not held.keys() <= {*dict(one.named_parameters()), *dict(one.named_buffers())}:
        return  # one is made of other parameters
    if len(held) < len(theirs) and any(name not in held for name, _ in one.named_parameters()):
        return  # with parameters of a in the place of others of b it would be no wonder
    here = _settings(one)
    settings = {here[name][0]: y for name, _, y in setting_differences(one, other)}
    undo = Undo(b=changes.code(scene.b, scene.owner_b, one, held, settings))
    yield scene.suspect("class", words, undo, "use the same code on both sides", severity="note")


_GATES = {"LSTM": "ifgo", "GRU": "rzn"}
"""The gates of torch's recurrent layers, in the order in which their weights have them."""


def _of_gates(scene: Scene) -> Iterator[Suspect]:
    """A recurrent layer of torch against one by hand, which takes the gates in another order, or adds 1 to one."""
    if scene.owner_b is None or scene.a.model is None or scene.b.model is None:
        return
    inside = scene.a.computing(scene.frame.owner, scene.a.model), scene.b.computing(scene.owner_b, scene.b.model)
    kinds = [{class_of(item.module).__name__.removesuffix("Cell") for item in items} & _GATES.keys() for items in inside]
    if len(kinds[0] ^ kinds[1]) != 1:
        return
    (kind,) = kinds[0] ^ kinds[1]
    gates, side, by_hand = _GATES[kind], scene.b, "b" if kinds[0] else "a"
    held = {(item.name, own): tensor for item in inside[1] for own, tensor in parameters_of(item.module).items()}
    blocks = {
        key: readable(tensor.detach()).unflatten(0, (len(gates), -1))
        for key, tensor in held.items()
        if tensor is not None and tensor.dim() and len(tensor) % len(gates) == 0
    }
    for order in itertools.islice(itertools.permutations(range(len(gates))), 1, None):  # the first is their own
        undo = sum((changes.putting(side, *key, each[list(order)].flatten(0, 1)) for key, each in blocks.items()), Change())
        taken = order if by_hand == "b" else [order.index(place) for place in range(len(gates))]
        words = f"the gates are {', '.join(gates[place] for place in taken)} in {by_hand}, and {', '.join(gates)} in the other side"
        yield replace(scene.suspect("gates", words, Undo(b=undo), "take the gates in one order", instead="gates"), is_guess=True)
    for place in (place for place, gate in enumerate(gates) if gate not in "gn"):  # 1 - sigmoid(x) = sigmoid(-x)
        signs = [-1.0 if each == place else 1.0 for each in range(len(gates))]
        turned = {key: torch.cat([sign * part for sign, part in zip(signs, each, strict=True)]) for key, each in blocks.items()}
        undo = sum((changes.putting(side, *key, each) for key, each in turned.items()), Change())
        words = f"b takes the gate {gates[place]} for what is 1 - {gates[place]} in a"
        yield replace(scene.suspect("gates", words, Undo(b=undo), "weigh old and new alike", instead="gates"), is_guess=True)
    addends: dict[str, tuple[str, str]] = {}
    for key in (key for key, each in blocks.items() if each.dim() == 2 and is_addend(key[1])):
        addends.setdefault(_cell_of(*key), key)  # one of the two of each cell
    groups = dict.fromkeys(((*addends.values(),), (*addends.values(),)[:1]) if addends else ())
    for (place, gate), sign, group in itertools.product(enumerate(gates), (1.0, -1.0), groups):
        more = torch.zeros_like(blocks[group[0]])
        more[place] = sign
        adding, lacking = "ba" if sign < 0 else "ab"
        given = {key: (blocks[key] + (more if blocks[key].shape == more.shape else 0.0)).flatten(0, 1) for key in group}
        undo = sum((changes.putting(side, key[0], key[1], each) for key, each in given.items()), Change())
        where = " in one cell alone" if len(group) < len(addends) else ""
        words = f"{adding} adds 1 to the gate {gate} (of {', '.join(gates)}){where}, {lacking} does not"
        suspect = scene.suspect("gates", words, Undo(b=undo), "add it on both sides, or on none", instead="gates")
        yield replace(suspect, is_guess=True)


def _cell_of(module: str, own: str) -> str:
    """Return which cell a parameter is of: of a layer of torch its number and direction, of one by hand the module around."""
    number = re.search(r"_l\d+(_reverse)?$", own)
    return f"{module}{number[0]}" if number else module.rpartition(".")[0]


def _of_edges(scene: Scene) -> Iterator[Suspect]:
    """The edges of a graph: one side lacks those from each node to itself or those back, or takes them turned round."""
    root = Site("", "input")
    kept = next((kept for kept in scene.b.forward if kept.site == root), None)
    for leaf, edges in () if kept is None else kept.leaves.items():
        if is_floating(edges) or edges.is_meta or edges.dim() != 2 or 2 not in edges.shape or edges.numel() < _FEWEST_EDGES:
            continue
        pairs = edges if edges.size(0) == 2 else edges.mT
        nodes = next((len(each) for each in kept.leaves.values() if is_floating(each) and each.dim() > 1), 0) if kept else 0
        if not 0 <= int(pairs.min()) <= int(pairs.max()) < nodes:
            continue
        loops = torch.arange(nodes, device=pairs.device).expand(2, -1)
        more = {
            f"the edges {leaf} of {{side}} lack one from each node to itself, which the other side adds": torch.cat(
                [pairs, loops], 1
            ),
            f"the edges {leaf} of {{side}} lack those back, which the other side adds": torch.cat([pairs, pairs.flip(0)], 1).unique(
                dim=1
            ),
            f"of the edges {leaf} {{side}} takes the sources for targets": pairs.flip(0),
        }
        for words, made in more.items():
            given = changes.given(leaf, made if edges.size(0) == 2 else made.mT)
            for side, undo in (("b", Undo(b=given)), ("a", Undo(a=given))):
                suspect = scene.suspect("inputs", words.format(side=side), undo, "take the same edges on both sides")
                yield replace(suspect, is_guess=True)


_FEWEST_EDGES = 8
"""Numbers in a tensor of edges: of fewer, it may be something else."""


# Gradients


def _of_loss(scene: Scene) -> Iterator[Suspect]:
    """The outputs agree, and the losses do not."""
    here, there = scene.a.loss, scene.b.loss
    if here is None or there is None or scene.a.loss_fn is scene.b.loss_fn:
        return
    yield scene.suspect(
        "loss",
        f"the loss is {here:.6g} in a and {there:.6g} in b, of outputs that agree: {_between_losses(scene, here, there)}",
        Undo(b=Change(loss_fn=(scene.a.loss_fn,))),
        "use the same loss function, with the same reduction, weights and smoothing",
        {"loss_a": here, "loss_b": there},
    )


def _between_losses(scene: Scene, here: float, there: float) -> str:
    """Return how the loss of ``b`` follows from that of ``a``, in words: by a factor, if that is between the gradients, too."""
    tensors, within = scene.tensors, max(scene.tolerance, _SAME_FACTOR)
    factor = None if tensors is None else factor_between(*tensors, max(scene.tolerance, EXACT))
    if tensors is None or factor is None or not math.isclose(there, factor * here, rel_tol=within):
        return _between_calls(_loss_calls(scene.a), _loss_calls(scene.b)) or "the loss functions differ"
    times, sides = (factor, "ba") if factor > 1 else (1 / factor, "ab")
    sizes = {"samples": tensors[0].size(0) if tensors[0].dim() else 1, "elements": tensors[0].numel()}
    sizes["samples and positions"] = tensors[0].shape[:2].numel()
    what = next((name for name, size in sizes.items() if size > 1 and math.isclose(times, size, rel_tol=_SAME_FACTOR)), "")
    summed = f", as a sum over {times:.0f} {what} in {sides[0]} is of a mean in {sides[1]}" if what else ""
    return f"that of {sides[0]} is {times:.6g} x as large{summed}"


def _loss_calls(side: Side) -> list[LossCall]:
    """Return the calls of torch's loss functions that the loss function of a *side* makes, in one more run."""
    calls, loss_fn = LossCalls(), side.loss_fn

    def noted(output: Any) -> Any:
        with calls:
            return None if loss_fn is None else loss_fn(output)

    if side.again is not None and loss_fn is not None:
        side.again(Change(loss_fn=(noted,)), True, lambda kept: None)
    return calls.found


def _between_calls(here: list[LossCall], there: list[LossCall]) -> str:
    """Return in words how the loss functions differ that are called; ``""`` where that is not seen."""
    pairs = zip(here, there, strict=True) if len(here) == len(there) else ()
    return "; ".join(filter(None, itertools.starmap(_between_two, pairs)))


def _between_two(one: LossCall, other: LossCall) -> str:
    if one.name != other.name:
        return f"{one.name} in a, {other.name} in b"
    known = inspect.signature(one.function).parameters.items()
    held = [{name: call.kwargs.get(name, each.default) for name, each in known} for call in (one, other)]
    apart = [name for name in held[0] if _differ(held[0][name], held[1][name])]
    if apart:
        said = [", ".join(f"{name}={_short(each[name])}" for name in apart) for each in held]
        return f"{one.name} has {said[0]} in a, {said[1]} in b"
    if _differ(one.target, other.target):
        return f"{one.name} is given other targets"
    inputs = as_numbers(one.input), as_numbers(other.input)
    factor = factor_between(*inputs, _SAME_FACTOR) if inputs[0].shape == inputs[1].shape else None
    return "" if factor is None else f"what {one.name} is given in b is {factor:.6g} times what it is given in a"


_SAME_FACTOR = 1e-4
"""Relative difference of two factors between losses, which are sums in float32, that count as one."""


def _of_frozen(scene: Scene) -> Iterator[Suspect]:
    """Parameters require a gradient in one side alone."""
    one, other = scene.modules
    if one is None or other is None or scene.owner_b is None or scene.a.model is None or scene.b.model is None:
        return
    place = scene.place
    if place.site.port in PARAMETER_PORTS:
        pairs = [(_of_whole(scene.a, place.site.path), _of_whole(scene.b, place.other.path))]
    else:
        pairs = [
            (_path(scene.a.real(scene.frame.owner), name), _path(scene.b.real(scene.owner_b), label))
            for name, label in matched(dict(one.named_parameters()), dict(other.named_parameters()))
        ]
    flags = [dict(model.named_parameters(remove_duplicate=False)) for model in (scene.a.model, scene.b.model)]
    known = [(name, label) for name, label in pairs if name in flags[0] and label in flags[1]]
    differing = [pair for pair in known if flags[0][pair[0]].requires_grad != flags[1][pair[1]].requires_grad]
    if not differing:
        return
    at = int(flags[0][differing[0][0]].requires_grad)  # the side in which it is frozen
    side, lacking, names = "ab"[at], flags[at], [pair[at] for pair in differing]
    above = ["", *itertools.accumulate(names[0].split(".")[:-1], _path)]
    whole = next((layer for layer in above if not any(held.requires_grad for held in _below(lacking, layer).values())), None)
    what = f"{names_text(names)} {'is' if len(names) == 1 else 'are'}" if whole is None else f"all of {whole or '(root)'} is"
    told = names if whole is None else _below(lacking, whole)
    every = [(name, label) for name in flags[0] if (label := scene.names.parameter_of_b(name, flags[1])) is not None]
    others = [pair[at] for pair in every if not lacking[pair[at]].requires_grad and flags[1 - at][pair[1 - at]].requires_grad]
    rest = sum(name not in told for name in others)
    more = f"; so {'is' if rest == 1 else 'are'} {many(rest, 'more parameter')}" if rest else ""
    wanted = changes.requiring({label: flags[0][name].requires_grad for name, label in differing})
    asked = changes.requiring({name: flags[1][label].requires_grad for name, label in differing})
    is_part = place.other.layer in scene.b.portions or scene.owner_b in scene.b.portions  # in b it would be more than this one
    yield scene.suspect(
        "frozen",
        f"{what} frozen in {side}: requires_grad is False there, and True in the other side{more}",
        Undo(a=asked) if is_part else Undo(b=wanted),
        f"call requires_grad_(True) on it in {side}, before the optimizer is made",
    )


def _below(held: Mapping[str, nn.Parameter], layer: str) -> dict[str, nn.Parameter]:
    return {name: each for name, each in held.items() if not layer or name.startswith(f"{layer}.")}


def _of_whole(side: Side, path: str) -> str:
    """Return the name of a parameter, of a portion that of the whole one."""
    layer, _, own = path.rpartition(".")
    return _path(side.real(layer), own)


def _of_tie(scene: Scene) -> Iterator[Suspect]:
    """The parameter has several names in one side, and fewer in the other."""
    if scene.a.model is None or scene.b.model is None or scene.place.site.port not in PARAMETER_PORTS:
        return
    here, there = _names_of(scene.a.model, scene.place.site.path), _names_of(scene.b.model, scene.place.other.path)
    if len(here) == len(there):
        return
    side, names = ("a", here) if len(here) > len(there) else ("b", there)
    lacking = "b" if side == "a" else "a"
    every = [[name for name, _ in model.named_parameters(remove_duplicate=False)] for model in (scene.a.model, scene.b.model)]
    known = {name: scene.names.parameter_of_b(name, every[1]) or name for name in every[0]}
    if side == "b":
        known = {other: name for name, other in known.items()}
    change = changes.tied([known.get(name, name) for name in names])
    yield scene.suspect(
        "tied",
        f"{' and '.join(names)} are one parameter in {side}, and are not in {lacking}",
        Undo(a=change) if lacking == "a" else Undo(b=change),
        f"tie the parameters in {lacking}, so that their gradients are added",
        {"names_a": float(len(here)), "names_b": float(len(there))},
    )


def _names_of(model: nn.Module, name: str) -> list[str]:
    """Return all names of the parameter *name*."""
    held = dict(model.named_parameters(remove_duplicate=False))
    wanted = held.get(name)
    return [other for other, parameter in held.items() if parameter is wanted]


def _of_cut(scene: Scene) -> Iterator[Suspect]:
    """Something keeps gradients from flowing in one side."""
    if scene.owner_b is None and scene.place.site.port not in PARAMETER_PORTS:
        return
    place = scene.place
    lacking = place.remark[-1] if place.remark.startswith("no gradient") else ""
    flowing = Change(contexts=(changes.Flowing,))
    for side in (scene.b, scene.a):
        calls = changes.cuts(side)
        tried = [(lines_of((call,))[0], Change(contexts=(partial(changes.Flowing, call),))) for call in calls]
        for line, change in tried if len(tried) <= _MOST_CUTS else ():
            yield _cut(scene, side, change, f"{line.expression or line.text} ({line.name})", is_loss=side.name == lacking)
        if len(tried) != 1:
            yield _cut(scene, side, flowing, "detach(), .data or torch.no_grad()", is_loss=side.name == lacking)
    if lacking:
        yield _cut(scene, None, flowing, "detach(), .data or torch.no_grad()", is_loss=True)


_MOST_CUTS = 4
"""So many calls that keep gradients back are tried one by one."""


def _cut(scene: Scene, side: Side | None, change: Change, what: str, *, is_loss: bool) -> Suspect:
    """Return that *what* keeps gradients back in one side, or in both: whether more or less arrives for it is not said."""
    name = scene.place.remark[-1] if side is None else side.name
    before, behind = (
        (f"no gradient reaches it in {name}", "") if is_loss else ("the forward agrees", ": without it the gradients agree")
    )
    suspect = scene.suspect(
        "graph_cut",
        f"{before}: {what} cuts the graph of {name}{behind}",
        Undo(change if side is not scene.b else Change(), change if side is not scene.a else Change()),
        "decide which gradient is meant, and compute it alike: x + (q - x).detach() passes it on as it is, q.detach() ends it",
        instead="cut",  # without any cut in both sides all gradients may agree, whatever differs
    )
    return replace(suspect, is_guess=True)


def _of_gradient_factor(scene: Scene) -> Iterator[Suspect]:
    words = "the gradient of b is {factor:.6g} times that of a"
    yield from factor_of(scene, words)
    here, there = scene.kept
    if scene.tensors is None or scene.tensors[0].numel() > 1 or here is None or there is None:
        return
    for leaf in here.leaves.keys() & there.leaves.keys():  # the output has a loss, and what else it has shows the factor
        pair = as_numbers(here.leaves[leaf]), as_numbers(there.leaves[leaf])
        factor = factor_between(*pair, max(scene.tolerance, 1e-6)) if pair[0].shape == pair[1].shape else None
        if factor is not None:
            undo = Undo(made=lambda b, factor=factor: b / factor)  # type: ignore[misc]  # a number
            yield scene.suspect(
                "scaled", words.format(factor=factor), undo, "look for a scale that one side lacks", {"factor": factor}
            )
            return


def _of_gradient_part(scene: Scene) -> Iterator[Suspect]:
    """The gradients differ by a multiple of one that came before, on which both sides agree: one of several ways has a factor."""
    if scene.tensors is None or scene.tensors[0].numel() < _LEAST:
        return
    one, other = scene.tensors
    for place in scene.places[: scene.places.index(scene.place)][::-1]:
        kept = next((each for each in scene.a.backward if each.key == place.key), None)
        if kept is None or kept.main is None or place.parts or place.site.port != "grad_output" or kept.main[1].is_meta:
            continue
        laid = laid_out_alike(one, as_numbers(kept.main[1]))
        square = 0.0 if laid is None else float((laid[0] * laid[0]).sum())
        if laid is None or not square:
            continue
        factor = float(((other - one) * laid[0]).sum()) / square
        if factor and scene.equal(one + factor * laid[0], other):
            off, way = factor * laid[0], place.site.path or "(root)"
            words = f"{'plus' if factor > 0 else 'less'} {abs(factor):.6g} times the gradient at {place.site}"
            yield scene.suspect(
                "scaled",
                f"the gradient of b is that of a {words}",
                Undo(made=lambda b, off=off: b - off),  # type: ignore[misc]  # a tensor
                f"look for a factor of the gradient that {way} passes back",
                {"factor": factor},
            )
            return


_LEAST = 16
"""Elements of a gradient that is a sum with one factor: of fewer, it may be one by chance."""


# Updates


def _of_optimizer(scene: Scene) -> Iterator[Suspect]:
    """The optimizer of one side does not hold the parameter, or steps with other settings."""
    name, label = scene.place.site.path, scene.place.other.path
    here, there = scene.a.optimizer.get(name), scene.b.optimizer.get(label)
    if (here is None) != (there is None):
        side, lacking, given = ("b", label, here) if there is None else ("a", name, there)
        change = Change(optimizer=(_adding(lacking, given or {}),))
        yield scene.suspect(
            "not_updated",
            f"the parameter does not move in {side}, though its gradient agrees: the optimizer of {side} does not hold it",
            Undo(b=change) if side == "b" else Undo(a=change),
            f"give it to the optimizer of {side}",
        )
        return
    for key in here.keys() & there.keys() if here is not None and there is not None else ():
        x, y = here[key], there[key]  # type: ignore[index]  # both are there
        if x == y:
            continue
        evidence = {f"{key}_{side}": float(held) for side, held in (("a", x), ("b", y)) if isinstance(held, int | float)}
        yield scene.suspect(
            "setting",
            f"{key} is {_short(x)} in the optimizer of a and {_short(y)} in that of b",
            Undo(b=Change(optimizer=(_stepping(label, key, x),))),
            f"give both optimizers the same {key}",
            evidence,
        )


def _adding(name: str, settings: Mapping[str, Any]) -> Callable[[Any, Any], None]:
    def add(optimizer: Any, trial: Any) -> None:
        known = {key: held for key, held in settings.items() if key in optimizer.defaults}
        optimizer.add_param_group({"params": [trial.model.get_parameter(name)], **known})

    return add


def _stepping(name: str, key: str, value: Any) -> Callable[[Any, Any], None]:
    def change(optimizer: Any, trial: Any) -> None:
        wanted = trial.model.get_parameter(name)
        for group in optimizer.param_groups:
            if any(held is wanted for held in group["params"]):
                group[key] = value

    return change


def _of_decay(scene: Scene) -> Iterator[Suspect]:
    """The difference of the updates is a multiple of the parameter: weight decay."""
    kept = scene.kept[0]
    if kept is None or "before" not in kept.leaves or scene.tensors is None:
        return
    parameter = as_numbers(kept.leaves["before"])
    off = scene.tensors[1] - scene.tensors[0]
    square = float((parameter * parameter).sum())
    factor = float((off * parameter).sum()) / square if square else 0.0
    if factor:
        yield scene.suspect(
            "weight_decay",
            f"the updates differ by {factor:.3g} times the parameter: weight decay",
            Undo(made=lambda b: b - factor * parameter),
            "give both optimizers the same weight decay",
            {"factor": factor},
        )


def _of_statistics(scene: Scene) -> Iterator[Suspect]:
    """Running statistics move towards multiples of each other: as variances that are divided by n, and by n - 1.

    With ``u = m (s - before)`` that of ``b`` is ``f u + m (f - 1) before``, where its statistic is f times that of ``a``.
    """
    kept = scene.kept[0]
    if kept is None or "before" not in kept.leaves or scene.tensors is None or scene.tensors[0].numel() < _LEAST:
        return
    before, (one, other) = as_numbers(kept.leaves["before"]), scene.tensors
    terms = torch.stack([one.flatten(), before.flatten()], -1)
    factor, share = torch.linalg.lstsq(terms, other.flatten()[:, None]).solution.flatten().tolist()
    if not factor > 0 or abs(factor - 1) <= _SAME_FACTOR or not 0 < share / (factor - 1) < 1:
        return
    less, more, count = ("b", "a", 1 / (1 - factor)) if factor < 1 else ("a", "b", factor / (factor - 1))
    is_count = count > 1 and abs(count - round(count)) <= _SAME_FACTOR * count
    why = f": that of {less} is divided by n, that of {more} by n - 1, with n = {count:.0f}" if is_count else ""
    yield scene.suspect(
        "scaled",
        f"what b keeps a running mean of is {factor:.6g} times that of a{why}",
        Undo(made=lambda b: (b - share * before) / factor),
        "take the same statistic on both sides",
        {"factor": factor},
    )


def _path(layer: str, name: str) -> str:
    return f"{layer}.{name}" if layer else name
