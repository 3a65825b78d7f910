"""Recognise attention on each side: which heads, scale, mask and rotary embedding make the tensor from queries, keys and values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sonde.diagnosis.compare.scene import Scene, Source
from sonde.diagnosis.compare.suspects import Suspect, Undo
from sonde.diagnosis.compare.weights import fitted
from sonde.diagnosis.distance import as_numbers, distance
from sonde.rules import Finding
from sonde.words import names_text

_HEAD_SIZES = (64, 128, 32, 96, 80, 16, 8, 256, 4)
_BASES = (10_000.0, 500_000.0, 1_000_000.0)
_MOST_QUERIES = 48
"""Rows of the scores that are computed, at even distances."""

_SCALES = ("1 / sqrt(head size)", "no scale", "1 / head size", "1 / sqrt(width)", "sqrt(head size)", "1 / sqrt(heads)")
_CAUSAL, _NO_MASK = "no position sees later ones", "each position sees all"
_MASKS = (
    _CAUSAL,
    _NO_MASK,
    "each position sees one later one too",
    "no position sees earlier ones",
    "no position sees itself or later ones",
)
_WINDOW = "no position sees later ones, nor any before the last "
_WEIGHINGS = ("softmax over keys", "softmax over queries", "softmax over heads", "sigmoid")
_UNSEENS = ("their scores are -inf", "their scores are 0", "their weights are 0, behind the softmax")
_SPLITS = (
    "features side by side",
    "features that lie as far apart as there are heads",
    "a part of the positions, as view(heads, positions, features) makes it with no transposition",
    "a part of the positions, as view(heads, positions, features) makes it with no transposition, and so joined again",
    "features that lie beside those of its keys and values, as view(heads, 3, features) makes it of a joined projection",
)
_TURNED = ("queries alone", "keys alone", "queries, keys and values")
_ROTATIONS = ("halves", "interleaved", "halves, the other way round", "interleaved, the other way round")


@dataclass(frozen=True)
class Form:
    """One way to compute attention.

    Attributes:
        heads, groups: numbers of heads of queries, and of keys and values.
        scale: an entry of the list of scales, or a number that the module holds.
        mask: an entry of the list of masks, or the words of one that was given.
        rotary: ``none``, or an entry of the list of rotations with the source of the angles.
        sharing: which heads of queries share a head of keys.
        cap: the size to which tanh limits the scores; 0 for no limit.
        part: how many features of a head are turned, the first ones; 0 for all.
        ahead: by how many positions keys are turned further than queries.
        alone: what is turned, an entry of the list; ``""`` for queries and keys.
        weighing: an entry of the list of ways to make weights of scores.
        unseen: an entry of the list of what becomes of positions that are not seen.
        split: an entry of the list of ways to split features into heads.
    """

    heads: int
    groups: int
    scale: str
    mask: str
    rotary: str
    sharing: str = "neighbouring heads"
    cap: float = 0.0
    part: int = 0
    ahead: int = 0
    alone: str = ""
    weighing: str = _WEIGHINGS[0]
    unseen: str = _UNSEENS[0]
    split: str = _SPLITS[0]

    @property
    def scaling(self) -> str:
        """What becomes of the scores before the mask, in words."""
        return self.scale + (f", then limited to {self.cap:g} by tanh" if self.cap else "")

    @property
    def numbers(self) -> str:
        """How many heads there are, in words."""
        return f"{self.heads} and {self.groups}"

    @property
    def turning(self) -> str:
        """The rotary embedding, in words."""
        part = f", of {self.part} features of each head" if self.part else ""
        alone = f", of {self.alone}" if self.alone else ""
        return self.rotary + part + alone + (f", keys {self.ahead:+d} positions from queries" if self.ahead else "")


@dataclass(frozen=True)
class Given:
    """The tensors of one side, of one sample: queries, keys and values (positions, width), and the result.

    Attributes:
        q, k, v, result: the tensors.
        masks: masks among the inputs of the module, boolean or added, by what they mean, in words.
        angles: cosines and sines among these inputs.
        numbers: whole numbers among the attributes of the module, which may be numbers of heads.
        bases: numbers among its attributes that may be the base of a rotary embedding.
        scales: numbers among its attributes that are named as a scale, as ``scaling`` or ``softmax_scale``.
        caps: 0, and numbers among its attributes that may limit scores softly, as ``attn_logit_softcapping``.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    result: Tensor
    masks: dict[str, Tensor]
    angles: tuple[Tensor, Tensor] | None
    numbers: tuple[int, ...]
    bases: tuple[float, ...]
    scales: tuple[float, ...]
    caps: tuple[float, ...] = (0.0,)


def of_attention(scene: Scene) -> Iterator[Suspect]:
    """Return how attention differs, where both sides are recognised; the form of ``a`` is put into ``b`` for every sample."""
    if not scene.frame.is_code or scene.tensors is None or scene.tensors[0].dim() != 3:
        return
    tolerance = max(scene.tolerance, 3e-7)
    is_turned = any(vars(module).get("batch_first") is False for side in (scene.a, scene.b) for module in side.modules().values())
    apart = scene.tensors[0] - scene.tensors[1]
    farthest = [int(apart.transpose(0, axis).flatten(1).norm(dim=1).argmax()) for axis in (0, 1)]
    sizes = scene.tensors[0].shape[: 1 + is_turned]  # of what may be samples, in all of a triple
    for triple in _triples(scene):
        if any(each.size(at) < size for held in triple for each in (held.a, held.b) for at, size in enumerate(sizes)):
            continue  # as of windows, into which samples are cut behind
        given = [[_given(scene, triple, side, farthest[axis], axis) for axis in (0, 1)[: 1 + is_turned]] for side in (0, 1)]
        forms = [
            [_form(each, tolerance, _beside(scene, triple, side, farthest[axis], axis)) for axis, each in enumerate(held)]
            for side, held in enumerate(given)
        ]
        for axis, beside in ((0, 0), (1, 1), (0, 1), (1, 0))[: 4 if is_turned else 1]:
            here, there = forms[0][axis], forms[1][beside]
            if axis != beside and here is not None and there is not None and _makes(given[1][beside], here, tolerance):
                there = here  # of entries that are alike any form makes the same
            if (here is None) != (there is None) and axis == beside:
                one, other = given[0][axis], given[1][axis]
                here, there = here or _near(one, there, tolerance), there or _near(other, here, tolerance)
            if here is None or there is None:
                continue
            seen = [_seen(each, form.mask) for each, form in ((given[0][axis], here), (given[1][beside], there))]
            if axis != beside or here != there or not torch.equal(*seen):
                break
        else:
            continue
        pairs = [[_given(scene, triple, side, sample, axis) for side in (0, 1)] for sample in range(scene.tensors[1].size(axis))]
        made = [_attended(replace(theirs, masks=own.masks, angles=own.angles), here) for own, theirs in pairs]
        if any(each is None for each in made):
            continue
        result = torch.stack([each for each in made if each is not None], axis)
        is_opposite = torch.equal(seen[0], ~seen[1])
        every = [torch.stack([_seen(each[side], form.mask)[0] for each in pairs]) for side, form in enumerate((here, there))]
        there = replace(there, mask=f"{there.mask}: what a does not") if is_opposite else there
        for finding in _differences(scene, here, there, (1 - axis, 1 - beside), "" if is_opposite else _seen_otherwise(*every)):
            yield Suspect(finding, Undo(made=lambda _, result=result: result))  # type: ignore[misc]  # a tensor
        return


def _differences(scene: Scene, here: Form, there: Form, axes: tuple[int, int], seen: str) -> Iterator[Finding]:
    """Yield how two forms differ, and the *axes* whose entries attend to each other in the two sides.

    The words for what is *seen* otherwise stand where the masks differ by more than their names say.
    """
    is_named = here.mask.startswith((*_MASKS, _WINDOW)) and there.mask.startswith((*_MASKS, _WINDOW))
    is_causal = _CAUSAL in (here.mask, there.mask) and {here.mask, there.mask} <= {*_MASKS}
    told: list[tuple[str, str, str, str, str]] = [
        (
            "inputs",
            "attention",
            f"between entries of axis {axes[0]}",
            f"between entries of axis {axes[1]}",
            "put positions in front of samples alike: batch_first",
        ),
        ("causal_mask" if is_causal else "mask", "attention masks", here.mask, there.mask, "give both sides the same mask"),
        ("attention_scale", "scores of attention", here.scaling, there.scaling, "scale the scores alike"),
        ("activation", "weights of attention", here.weighing, there.weighing, "make the weights of the scores alike"),
        ("mask", "what is not seen", here.unseen, there.unseen, "give scores that are not seen -inf, in front of the softmax"),
        ("heads", "a head", here.split, there.split, "split the width into heads alike: view(..., heads, features)"),
        ("rotary", "rotary embedding", here.turning, there.turning, "rotate queries and keys alike on both sides"),
        (
            "heads",
            "keys and values",
            f"{here.sharing} share them",
            f"{there.sharing} share them",
            "repeat each head of keys and values in place (repeat_interleave) on both sides, or all of them in turn (repeat)",
        ),
        ("heads", "heads of queries and of keys", here.numbers, there.numbers, "split the width into the same number of heads"),
    ]
    for rule, what, one, other, advice in told:
        if what == "attention masks" and (one != other or seen):
            yield scene.finding(rule, f"{what}: {_of_masks(one, other, '' if is_named else seen)}", advice)
        elif one != other:
            evidence = {"heads_a": float(here.heads), "heads_b": float(there.heads)}
            yield scene.finding(rule, f"{what}: {one} in a, {other} in b", advice, evidence)


def _of_masks(one: str, other: str, seen: str) -> str:
    """Return in words how masks differ that are called *one* and *other*, and what is *seen* otherwise."""
    both = f"{one} in a, {other} in b"
    return f"{both}: {seen}" if seen and one != other else seen or both


def _seen_otherwise(one: Tensor, other: Tensor) -> str:
    """Return in words what positions see in one side alone, ``(samples, queries, keys)``; ``""`` where that is the same."""
    told = [
        f"{side} alone lets through {_pairs(alone)}"
        for side, alone in (("a", one & ~other), ("b", other & ~one))
        if one.shape == other.shape and bool(alone.any())
    ]
    return " and ".join(told)


def _pairs(alone: Tensor) -> str:
    """Return in words the keys of the pairs that are *alone* in a side, ``(samples, queries, keys)``."""
    queries, keys = (torch.arange(length, device="cpu") for length in alone.shape[1:])
    ahead = (keys - queries[:, None])[alone.any(0)]
    low, high = int(ahead.min()), int(ahead.max())
    if low == high:
        places = f"{abs(low)} place{'s' * (abs(low) > 1)}"
        return f"the key {places} {'later' if low > 0 else 'earlier'}" if low else "its own key"
    if low > 0 or high < 0:
        return "later keys" if low > 0 else "earlier keys"
    held = alone.any(1)
    samples = held.any(1).nonzero()[:, 0].tolist()
    named = names_text(map(str, held[samples[0]].nonzero()[:, 0].tolist()), 6)
    return f"keys {named} of sample {samples[0]}" + f", and some of {len(samples) - 1} more" * (len(samples) > 1)


# What there is


def _triples(scene: Scene) -> Iterator[tuple[Source, Source, Source]]:
    """Yield queries, keys and values among the outputs of children: three tensors, or the parts of one."""
    outputs = [source for source in scene.sources[::-1] if ":output" in source.name and source.a.dim() in (3, 4)]
    flat = [Source(held.name, _three(held.a), _three(held.b)) for held in outputs]
    if len(flat) >= 3:
        last = flat[-3:]
        yield (last[0], last[1], last[2])
        letters = {held.name.rpartition(":")[0].rpartition(".")[2].lstrip("_w")[:1]: held for held in flat}
        named = [letters.get(letter) for letter in "qkv"]
        if all(held is not None for held in named):
            yield (named[0], named[1], named[2])  # type: ignore[misc]  # none is None
    assert scene.tensors is not None
    width = scene.tensors[0].size(-1)
    for held in flat[::-1]:
        rest = held.a.size(-1) - width
        if rest > 0 and rest % 2 == 0:
            sizes = [width, rest // 2, rest // 2]
            parts = [Source(held.name, *pair) for pair in zip(held.a.split(sizes, -1), held.b.split(sizes, -1), strict=True)]
            yield (parts[0], parts[1], parts[2])


def _three(tensor: Tensor) -> Tensor:
    return tensor.flatten(2) if tensor.dim() == 4 else tensor


def _beside(scene: Scene, triple: tuple[Source, Source, Source], side: int, sample: int, axis: int) -> list[Given]:
    """Return what one side has of a few other samples, for which a form has to hold, too."""
    assert scene.tensors is not None
    others = [at for at in range(scene.tensors[side].size(axis)) if at != sample]
    return [_given(scene, triple, side, at, axis) for at in others[:_MOST_BESIDE]]


_MOST_BESIDE = 8


def _given(scene: Scene, triple: tuple[Source, Source, Source], side: int, sample: int, axis: int) -> Given:
    """Return what one side has of one sample. The samples lie along *axis*."""
    assert scene.tensors is not None
    one = [(held.a if side == 0 else held.b).select(axis, sample) for held in triple]
    events = (scene.a, scene.b)[side].forward
    owner = scene.frame.owner if side == 0 else scene.owner_b
    leaves = next(
        (kept.leaves for kept in events if kept.site.path == owner and kept.site.port == "input" and kept.call == scene.frame.call),
        {},
    )
    length, keys = one[0].size(0), one[1].size(0)
    samples = scene.tensors[side].size(axis)
    given: dict[str, Tensor] = {}
    for leaf, held in leaves.items():
        if held.shape[-2:] == (length, keys) and length > 1:
            given |= _of_positions(leaf, held.detach(), sample, samples)
        if held.dim() == 2 and held.size(-1) == keys and not held.is_complex():
            is_added = bool(((held == 0) | (held < _UNSEEN_FROM)).all())
            kept = held[min(sample, len(held) - 1)].detach().cpu()
            if is_added or bool(((held == 0) | (held == 1)).all()):
                given |= _of_padding(leaf, kept == 0 if is_added else kept.bool(), length)
    pairs = [held for held in leaves.values() if held.dim() == 3 and held.size(-2) == length and held.is_floating_point()]
    turned = [held for held in pairs if held.size(-1) != one[0].size(-1) and bool((held.abs() <= 1.5).all())]
    angles = (as_numbers(turned[0])[0], as_numbers(turned[1])[0]) if len(turned) == 2 else None
    attributes: dict[str, float] = {}
    for inside in _computing(scene, side):
        attributes = _attributes(inside) | attributes
    bases = tuple(float(held) for held in attributes.values() if held >= 50)
    scales = tuple(dict.fromkeys(float(held) for name, held in attributes.items() if "scal" in name.lower() and held > 0))
    return Given(
        one[0],
        one[1],
        one[2],
        scene.tensors[side].select(axis, sample),
        given,
        angles,
        tuple(int(held) for held in attributes.values() if held == int(held) and 1 <= held <= 512),
        bases,
        scales,
        (0.0, *dict.fromkeys(float(held) for name, held in attributes.items() if "cap" in name.lower() and held > 0)),
    )


def _computing(scene: Scene, place: int) -> Iterator[nn.Module]:
    """Yield the module whose code made the tensor in one side, and those inside of it whose code is its own."""
    side, owner = (scene.a, scene.frame.owner) if place == 0 else (scene.b, scene.owner_b)
    if side.model is not None and owner is not None:
        modules = {item.name: item.module for item in side.computing(owner, side.model)}
        ran = {name: module for name, module in modules.items() if name == owner or name in side.alone}
        yield from ran.values()


def _of_positions(leaf: str, held: Tensor, sample: int, samples: int) -> dict[str, Tensor]:
    """Return the masks that an argument ``(..., queries, keys)`` may stand for at a *sample*, by words.

    It is the same for all samples, or has one for each, or for each head of each: of these the first.
    """
    words = f"each position sees what {_argument(leaf)}"
    if held.dim() == 4:
        return {f"{words} lets through": held[min(sample, len(held) - 1), :1].cpu()}
    if held.dim() > 4 or not (held.dtype is torch.bool or bool(((held == 0) | (held < _UNSEEN_FROM)).all())):
        return {}
    rows = held.reshape(-1, *held.shape[-2:])
    kept = rows[[sample * (len(rows) // samples) if len(rows) % samples == 0 else 0]].cpu()
    both = {f"{words} lets through": kept}
    return both | ({f"{words} leaves out": ~kept} if kept.dtype is torch.bool else {})


def _of_padding(leaf: str, kept: Tensor, queries: int) -> dict[str, Tensor]:
    """Return the masks that a mask of padding may stand for, by words: which positions are seen is said with 1, or with 0."""
    earlier = _allowed(_CAUSAL, torch.arange(queries, device="cpu"), len(kept))
    found: dict[str, Tensor] = {}
    for seen, does in ((kept, "lets through"), (~kept, "leaves out")):
        words = f"each position sees what {_argument(leaf)} {does}"
        found |= {f"{words}, and no later one": (earlier & seen)[None], words: seen.expand_as(earlier)[None]}
    return found


def _argument(leaf: str) -> str:
    """Return the name of an argument by its leaf path, as ``[1]`` or ``['mask']``, in words."""
    name = leaf.strip("[]'")
    return f"argument {name}" if name.isdigit() else name


def _attributes(module: nn.Module) -> dict[str, float]:
    held = dict(vars(module))
    for name in ("config", "cfg", "args"):
        held |= getattr(held.get(name), "__dict__", {})
    return {
        name: value
        for name, value in held.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


# The search


def _form(given: Given, tolerance: float, beside: Sequence[Given] = ()) -> Form | None:
    """Return the form of attention that comes nearest to the result, and makes those *beside*, if any does; None if none does."""
    best, nearest, holds = None, 4 * tolerance, False
    if len(given.result) != len(given.q) or len(given.k) != len(given.v):
        return None  # a result for each query
    rows = torch.linspace(0, len(given.q) - 1, min(len(given.q), _MOST_QUERIES), device="cpu").round().long().unique()
    wanted = given.result[rows]
    for form, made in _forms(given, rows):
        off = distance(made, wanted).relative if made.shape == wanted.shape else math.inf
        if off > (nearest if holds else 4 * tolerance):
            continue
        is_of_all = all(_makes(each, form, tolerance) for each in beside)
        if (is_of_all, -off) >= (holds, -nearest):
            best, nearest, holds = _plain(form, [given, *beside]), off, is_of_all
        if holds and off <= tolerance / 8:  # no other form comes so near by chance
            return best
    return best


def _makes(given: Given, form: Form, tolerance: float) -> bool:
    """Return whether attention of *form* makes the result."""
    made = _attended(given, form)
    is_like = made is not None and made.shape == given.result.shape
    return is_like and made is not None and distance(made, given.result).relative <= 4 * tolerance


def _near(given: Given, beside: Form | None, tolerance: float) -> Form | None:
    """Return a form that makes the result and differs from *beside*, that of the other side, in one number; None if none does."""
    if beside is None:
        return None
    length, size = len(given.q), given.q.size(-1) // beside.heads
    rotation, _, source = beside.rotary.rpartition(", ")
    rows = torch.linspace(0, length - 1, min(length, _MOST_QUERIES), device="cpu").round().long().unique()

    def off(form: Form) -> float:
        made = _attended(given, form, rows)
        return math.inf if made is None or made.shape != given.result[rows].shape else distance(made, given.result[rows]).relative

    forms = [replace(beside, mask=f"{_WINDOW}{seen}") for seen in range(1, min(length, _MOST_WINDOWS))]
    forms += [replace(beside, mask=mask) for mask in _MASKS if beside.mask.startswith(_WINDOW)]
    forms += [replace(beside, sharing=sharing) for sharing in _SHARINGS if 1 < beside.groups < beside.heads]
    forms += [replace(beside, cap=0.0)] if beside.cap else []
    if beside.rotary != "none":
        forms += [replace(beside, rotary=beside.rotary.replace(rotation, other)) for other in _ROTATIONS if other != rotation]
        forms += [replace(beside, part=part) for part in (size // 4, size // 2, 3 * size // 4) if part and part % 2 == 0]
        forms += [replace(beside, ahead=ahead) for ahead in (1, -1, 2, -2)]
        forms += [replace(beside, alone=alone) for alone in _TURNED]
    forms += [replace(beside, weighing=weighing) for weighing in _WEIGHINGS[1:]]
    forms += [replace(beside, unseen=unseen) for unseen in _UNSEENS[1:]] + [replace(beside, split=split) for split in _SPLITS[1:]]
    found = next((form for form in forms if off(form) <= 4 * tolerance), None)
    numbers: list[tuple[Callable[[float], Form], float, float]] = [
        (lambda number: replace(beside, scale=f"{_OWN_SCALE}{number:.12g}"), 1e-3, 1e2),
        (lambda number: replace(beside, cap=number), 1e-1, 1e3),
        *([(lambda number: replace(beside, rotary=f"{rotation}, base {number:.12g}"), 1e1, 1e8)] if "base" in source else []),
    ]
    for form, low, high in () if found else numbers:
        number = fitted(lambda number, form=form: off(form(number)), low, high, 4 * tolerance)  # type: ignore[misc]  # bound now
        if number is not None:
            return form(number)
    return found


_MOST_WINDOWS = 4096


def _attended(given: Given, form: Form, rows: Tensor | None = None) -> Tensor | None:
    """Return what attention of *form* makes of queries, keys and values; None where they do not fit it."""
    every = torch.arange(len(given.q), device="cpu")
    wanted, rows = rows, every if rows is None or form.weighing == _WEIGHINGS[1] or form.split in _SPLITS[2:4] else rows
    if form.split == _SPLITS[4]:
        joined = torch.cat((given.q, given.k, given.v), -1)
        if form.groups != form.heads or joined.size(-1) != 3 * given.q.size(-1):
            return None
        q, k, v = joined.unflatten(-1, (form.heads, 3, -1)).movedim(-2, 0).flatten(2)
        given = replace(given, q=q, k=k, v=v)
    elif form.split != _SPLITS[0]:
        q, k, v = (
            x.unflatten(-1, (-1, heads)).mT.flatten(1)
            if form.split == _SPLITS[1]
            else x.reshape(heads, len(x), -1).transpose(0, 1).flatten(1)
            for x, heads in ((given.q, form.heads), (given.k, form.groups), (given.v, form.groups))
        )
        given = replace(given, q=q, k=k, v=v)
    size = given.q.size(-1) // form.heads
    own = {form.scale: float(form.scale.removeprefix(_OWN_SCALE))} if form.scale.startswith(_OWN_SCALE) else {}
    factor = (_factors(given, form.heads, size) | own).get(form.scale)
    turned = _turned(given, form)
    if factor is None or turned is None or form.mask.partition(_WINDOW)[0] not in ("", *given.masks, *_MASKS):
        return None
    if form.alone == _TURNED[2]:
        both = _turned(replace(given, k=given.v), form)
        given = given if both is None else replace(given, v=both[1].flatten(1))
    scores, v = _scores(given, form, *turned, rows)
    scores = scores * factor
    scores = form.cap * (scores / form.cap).tanh() if form.cap else scores
    result = torch.einsum("hqk,khd->qhd", _weights(scores, _masked(scores, form.mask, given, rows), form), v).flatten(1)
    if form.split == _SPLITS[3]:
        result = result.unflatten(-1, (form.heads, -1)).transpose(0, 1).reshape(result.shape)
    return result if wanted is None or len(wanted) == len(rows) else result[wanted]


def _weights(scores: Tensor, masked: Tensor, form: Form) -> Tensor:
    """Return what *form* makes of scores (heads, queries, keys), which are very low where a position is not seen if *masked*."""
    hidden = masked - scores < _UNSEEN_FROM
    masked = {_UNSEENS[1]: masked.masked_fill(hidden, 0.0), _UNSEENS[2]: scores}.get(form.unseen, masked)
    axis = {_WEIGHINGS[1]: 1, _WEIGHINGS[2]: 0}.get(form.weighing, -1)
    weights = masked.sigmoid() if form.weighing == _WEIGHINGS[3] else masked.softmax(axis)
    return weights.masked_fill(hidden, 0.0) if form.unseen == _UNSEENS[2] else weights


def _scores(given: Given, form: Form, q: Tensor, k: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the products of queries, at *rows*, and keys, and the values, of each head of queries."""
    heads = torch.arange(form.heads, device="cpu")
    wide = heads // (form.heads // form.groups) if form.sharing == _SHARINGS[0] else heads % form.groups
    return torch.einsum("qhd,khd->hqk", q[rows], k[:, wide]), given.v.unflatten(-1, (form.groups, -1))[:, wide]


def _forms(given: Given, rows: Tensor) -> Iterator[tuple[Form, Tensor]]:
    """Yield the forms to try, and what each makes at the queries *rows*."""
    for heads, groups in _head_numbers(given):
        size = given.q.size(-1) // heads
        factors = _factors(given, heads, size)
        for rotary, part in _rotations(given, size):
            plain = Form(heads, groups, "", "", rotary, part=part)
            turned = _turned(given, plain)
            for sharing in (_SHARINGS if 1 < groups < heads else _SHARINGS[:1]) if turned else ():
                assert turned is not None
                scores, v = _scores(given, replace(plain, sharing=sharing), *turned, rows)
                tried = itertools.product(given.caps, factors, (*given.masks, *_MASKS))
                for cap, scale, mask in tried if len(given.caps) == 1 or not given.masks else _with_own(given, factors):
                    scaled = scores * factors[scale]
                    weights = _masked(cap * (scaled / cap).tanh() if cap else scaled, mask, given, rows).softmax(-1)
                    form = replace(plain, scale=scale, mask=mask, sharing=sharing, cap=cap)
                    yield form, torch.einsum("hqk,khd->qhd", weights, v).flatten(1)


def _with_own(given: Given, factors: Mapping[str, float]) -> Iterator[tuple[float, str, str]]:
    """Yield the limits, scales and masks to try where the module holds a limit: with it its own scale, and given masks."""
    own = [scale for scale in factors if scale.startswith(_OWN_SCALE)] or list(factors)
    yield from itertools.product((0.0,), factors, (*given.masks, *_MASKS))
    yield from itertools.product(given.caps[1:], own, given.masks)


_OWN_SCALE = "a scale of "
_SHARINGS = ("neighbouring heads", "heads at equal distances")


def _plain(form: Form, given: Sequence[Given]) -> Form:
    """Return *form* with a given mask in words, where it is one of those in the list for all samples."""
    if form.mask not in given[0].masks:
        return form
    held = [each.masks[form.mask][0] for each in given if form.mask in each.masks]
    allowed = [each if each.dtype is torch.bool else each >= 0 for each in held]
    rows, length = (torch.arange(allowed[0].size(0), device="cpu"), allowed[0].size(-1))
    windows = (f"{_WINDOW}{seen}" for seen in {int(allowed[0][-1].sum())} if 0 < seen < length)
    for mask in (*_MASKS, *windows):
        if all(torch.equal(each, _allowed(mask, rows, length)) for each in allowed):
            return replace(form, mask=mask)
    return form


def _head_numbers(given: Given) -> Iterator[tuple[int, int]]:
    width, narrow = given.q.size(-1), given.k.size(-1)
    sizes = [width // number for number in given.numbers if number > 1 and width % number == 0]
    sizes += [number for number in given.numbers if number > 1 and width % number == 0]
    for size in dict.fromkeys((*sizes, *_HEAD_SIZES, width)):
        if (
            width % size == 0
            and narrow % size == 0
            and (width // size) % (narrow // size) == 0
            and given.v.size(-1) % (narrow // size) == 0
        ):
            yield width // size, narrow // size


def _factors(given: Given, heads: int, size: int) -> dict[str, float]:
    """Return the scales to try, by their words: the usual ones, and those that the module itself holds."""
    values = (size**-0.5, 1.0, 1 / size, (heads * size) ** -0.5, size**0.5, heads**-0.5)
    own = {f"{_OWN_SCALE}{held:g}": held for held in given.scales if not any(math.isclose(held, usual) for usual in values)}
    return dict(zip(_SCALES, values, strict=True)) | own


def _masked(scores: Tensor, mask: str, given: Given, rows: Tensor) -> Tensor:
    if mask in given.masks:
        held = given.masks[mask][:, rows]
        return scores.masked_fill(~held, _UNSEEN) if held.dtype is torch.bool else scores + held.double()
    return scores.masked_fill(~_allowed(mask, rows, scores.size(-1)), _UNSEEN)


def _seen(given: Given, mask: str) -> Tensor:
    """Return which position (row) sees which one (column), of one sample, for each head that differs."""
    rows = torch.arange(len(given.q), device="cpu")
    return _masked(torch.zeros(1, len(rows), len(given.k), dtype=torch.float64, device="cpu"), mask, given, rows) >= 0


_UNSEEN = -1e30  # a row that sees nothing sees all alike
_UNSEEN_FROM = -1e3  # what masks add to scores that do not count, at least


def _allowed(mask: str, rows: Tensor, length: int) -> Tensor:
    """Return which position (row) sees which one (column)."""
    ahead = torch.arange(length, device="cpu")[None, :] - rows[:, None]
    if mask.startswith(_WINDOW):
        return (ahead <= 0) & (ahead > -int(mask.removeprefix(_WINDOW)))
    place = _MASKS.index(mask)
    return (ahead <= 0, ahead < length, ahead <= 1, ahead >= 0, ahead < 0)[place]


def _rotations(given: Given, size: int) -> Iterator[tuple[str, int]]:
    """Yield no rotary embedding, and each one that heads of *size* may have, with how many features it turns; 0 for all."""
    yield "none", 0
    if len(given.q) != len(given.k):
        return
    sources = [f", base {base:g}" for base in dict.fromkeys((*given.bases, *_BASES))]
    turned = size if given.angles is None else min(size, given.angles[0].size(-1))
    if given.angles is not None and given.angles[0].size(-1) == turned:
        known = [_angles(len(given.q), turned, float(source.removeprefix(", base "))).cos() for source in sources]
        alike = [source for source, each in zip(sources, known, strict=True) if bool((given.angles[0] - each).abs().max() < 1e-2)]
        sources = alike or [", given angles"]
    for part in dict.fromkeys((0, turned % size)):
        for source, rotation in itertools.product(sources, _ROTATIONS) if (part or size) % 2 == 0 else ():
            yield rotation + source, part


def _angles(length: int, size: int, base: float, first: int = 0) -> Tensor:
    """Return the angles (positions, features) by which a rotary embedding turns halves of *size* features."""
    powers = base ** (-torch.arange(size // 2, dtype=torch.float64, device="cpu") / (size // 2))
    angles = (first + torch.arange(length, dtype=torch.float64, device="cpu"))[:, None] * powers
    return torch.cat((angles, angles), -1)


def _turned(given: Given, form: Form) -> tuple[Tensor, Tensor] | None:
    """Return queries and keys (positions, heads, features), turned as *form* says; None where there are no such angles."""
    q, k = given.q.unflatten(-1, (form.heads, -1)), given.k.unflatten(-1, (form.groups, -1))
    if form.rotary == "none":
        return q, k
    rotation, _, source = form.rotary.rpartition(", ")
    part = form.part or q.size(-1)
    if source.startswith("base "):
        angles = [_angles(len(q), part, float(source.removeprefix("base ")), first) for first in (0, form.ahead)]
        waves = [(each.cos(), each.sin()) for each in angles]
    elif given.angles is None or given.angles[0].size(-1) != part:
        return None
    else:
        waves = [given.angles] * 2
    made = [
        torch.cat((_turn(x[..., :part], wave[0][:, None], wave[1][:, None], rotation), x[..., part:]), -1)
        for x, wave in zip((q, k), waves, strict=True)
    ]
    return (q if form.alone == _TURNED[1] else made[0]), (k if form.alone == _TURNED[0] else made[1])


def _turn(x: Tensor, cos: Tensor, sin: Tensor, rotation: str) -> Tensor:
    half = x.size(-1) // 2
    sign = -1.0 if rotation.endswith("way round") else 1.0
    if rotation.startswith("halves"):
        return x * cos + sign * torch.cat((-x[..., half:], x[..., :half]), -1) * sin
    cos, sin = (held[..., :half].repeat_interleave(2, -1) for held in (cos, sin))
    return x * cos + sign * torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin
