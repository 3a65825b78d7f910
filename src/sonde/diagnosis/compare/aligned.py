"""Compare two sides event by event, and find the first place where they part beyond rounding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from sonde.diagnosis.compare.joined import ADDENDS, among_ranks
from sonde.diagnosis.compare.names import Names
from sonde.diagnosis.compare.sides import Kept, Key, Side, mains, partners
from sonde.diagnosis.distance import as_numbers, distance, held_of_both, laid_out_alike, repeats, spacing
from sonde.engine import is_floating
from sonde.site import OTHER_CALLS, PARAMETER_PORTS, Site
from sonde.words import shape_text

Stage = Literal["forward", "backward", "update"]

NOT_COMPARED = "not compared"
"""The beginning of the remark about a place of which this rank does not hold the same in both sides."""
ANOTHER_LAYOUT = "another layout"
"""In the remark about a place where the sides have equal tensors with their axes in another order."""
DIFFERS_INSIDE = "differs inside, meets again at "
"""The beginning of the remark about a place that differs inside of a module whose output agrees, as where a norm is folded away."""
BEYOND = 16.0
"""Sides part where they are further apart than so many times the distance by which rounding was measured to move one side."""
_JUMP, _UNMEASURED = 16.0, 128.0
"""Without a measurement: growth against the largest distance before, and roundings that are always allowed."""

_STEPPED = 1e-3
"""Parameters that are further apart have not taken the same steps; not so where rounding moves the gradient by as much."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far the sides are apart at one site and call.

    Attributes:
        stage: ``forward``, ``backward`` or ``update``.
        site: the site in ``a``.
        other: the site in ``b``.
        call: which call of the module; -1 for a parameter.
        type: name of the module's class in ``a``; for a parameter of its owner's class.
        shape: of the tensor in ``a``, as text.
        relative: Euclidean norm of the difference, divided by the larger norm of the two sides.
        cosine: of the angle between the sides; NaN where one is zero.
        largest: largest magnitude of a difference of two elements, in the unit of the elements.
        floor: the largest *relative* that rounding explains here.
        parts: the sides are further apart than that, or only one has the tensor.
        remark: why the tensors could not be subtracted, or other facts in words.
        leaf: which tensor of a structured value is furthest apart, where it is not the first: its leaf path.
    """

    stage: Stage
    site: Site
    other: Site
    call: int
    type: str
    shape: str
    relative: float
    cosine: float = math.nan
    largest: float = 0.0
    floor: float = 0.0
    parts: bool = False
    remark: str = ""
    leaf: str = ""

    @property
    def key(self) -> Key:
        """The site in ``a`` and the call."""
        return self.site, self.call

    @property
    def other_key(self) -> Key:
        """The site in ``b`` and the call."""
        return self.other, self.call


class Judge:
    """Decide whether a distance is more than rounding.

    Args:
        a, b: the sides, with their scatter where it was measured.
        noise: the largest relative distance that counts as equal everywhere; None takes the measurements.
    """

    def __init__(self, a: Side, b: Side, noise: float | None) -> None:
        self._a, self._b, self._noise = a, b, noise
        self._before = 0.0
        self._largest: dict[str, float] = {}
        self._called = {(kept.site.path, kept.call) for kept in b.forward}

    def floor(self, one: Kept, other: Kept, tensors: tuple[Tensor, Tensor]) -> float:
        """Return the largest relative distance between two events that rounding explains."""
        if self._noise is not None:
            return self._noise
        least = max(map(spacing, tensors))
        scatter = [side.scatter.get(kept.key) for side, kept in ((self._a, one), (self._b, other))]
        known = [moved for moved in scatter if moved is not None]
        moved = [0.0]
        if one.site.port == "param" or (one.site.port == "grad" and not known):
            moved += [self._of_gradient(side, kept.site.path) for side, kept in ((self._a, one), (self._b, other))]
        if one.site.port == "param":
            return math.inf if max(moved) > _STEPPED else max(_UNMEASURED * least, _STEPPED)
        if not known:
            return max(_UNMEASURED * least, _JUMP * self._before, *moved, *_rounding_of_updates(one, other))
        few = 4.0 if tensors[0].numel() < _FEW else 1.0  # of few elements a repeat may move by chance less than most repeats do
        return max(BEYOND * few * max(least, *known), *_rounding_of_updates(one, other))

    def _of_gradient(self, side: Side, path: str) -> float:
        """Return how far rounding moves the gradient of a parameter: as measured, or by the largest gradient of the side."""
        kept = next((kept for kept in side.backward if kept.key == (Site(path, "grad"), OTHER_CALLS)), None)
        if kept is None or kept.main is None:
            return 0.0
        if kept.key in side.scatter:
            return side.scatter[kept.key]
        if side.name not in self._largest:
            norms = [float(as_numbers(each.main[1]).norm()) for each in side.backward if each.site.port == "grad" and each.main]
            self._largest[side.name] = max(norms)
        norm = float(as_numbers(kept.main[1]).norm())
        return _UNMEASURED * spacing(kept.main[1]) * self._largest[side.name] / norm if norm else 0.0

    def is_lacking(self, kept: Kept, there: Site) -> bool:
        """Return whether what is *kept* in ``a`` would be kept *there* in ``b``, were it not lacking.

        It is not kept of an addend that a rank held, nor of a call that ``b`` does not make, as where it has a module for each.
        """
        is_called = kept.call == OTHER_CALLS or not self._called or (there.path, kept.call) in self._called
        return is_called and kept.site not in self._a.unseen and there not in self._b.unseen

    @property
    def are_whole(self) -> bool:
        """Whether the outputs of both models are there to be compared, as of live ones."""
        return self._a.model is not None and self._b.model is not None

    def is_part(self, x: Tensor, y: Tensor) -> bool:
        """Return whether one of the two has the shape of one rank's part of the other, in a model whose layers are so divided."""
        apart = [each for each in zip(x.shape, y.shape, strict=False) if each[0] != each[1]]
        if x.dim() != y.dim() or len(apart) != 1:
            return False
        part, whole = sorted(apart[0])
        size = {number: -(-whole // number) for number in self._a.split | self._b.split}
        return any(part in (each, whole % each) for each in size.values())

    def note(self, relative: float) -> None:
        """Take note of a distance that was within the floor."""
        self._before = max(self._before, relative)


_FEW = 16


def _rounding_of_updates(one: Kept, other: Kept) -> list[float]:
    """Return how far the rounding of the parameters after a step moves each update, relative to the larger norm of the two."""
    if one.site.port != "update":
        return [0.0, 0.0]
    largest = max(float(as_numbers(kept.leaves[""]).norm()) for kept in (one, other))
    parameters = [kept.leaves["before"] for kept in (one, other)]
    return [spacing(held) * float(as_numbers(held).norm()) / largest if largest else 0.0 for held in parameters]


def compared(a: Side, b: Side, names: Names, noise: float | None) -> list[Place]:
    """Return the places that both sides have, in the order in which ``a`` executed them."""
    judge = Judge(a, b, noise)
    found: list[Place] = []
    gradients = _in_order(_of_one_call(a, b, names.pairs())), _of_one_call(b, a, [(other, name) for name, other in names.pairs()])
    for stage, one, other in (("forward", a.forward, b.forward), ("backward", *gradients)):
        found += _of_stage(stage, one, {kept.key: kept for kept in other}, names, judge)  # type: ignore[arg-type]  # literals
        found = _with_folded(found, a, b, judge) if stage == "forward" else found
    found = [_as_parameters_lie(_but_for_padding(place, a, b, judge), a, b) for place in found]
    found += _of_stage("update", a.update, {kept.key: kept for kept in b.update}, names, judge)
    return _without_met(_without_inner(found, {kept.key: kept for kept in a.kept}, {kept.key: kept for kept in b.forward}), a, b)


def _but_for_padding(place: Place, a: Side, b: Side, judge: Judge) -> Place:
    """Return *place*; the output of a layer does not part where one side's has the entries of the other's, and more at an end."""
    if not place.parts or place.site.port not in ("output", "grad_output") or not place.site.path:
        return place
    if not place.remark.startswith("shape"):
        return place
    one, other = (next(each for each in side.kept if each.key == key) for side, key in ((a, place.key), (b, place.other_key)))
    held = [None if each.main is None else each.main[1] for each in (one, other)]
    if (
        not judge.are_whole
        or held[0] is None
        or held[1] is None
        or any(each.is_nested or each.is_meta for each in (held[0], held[1]))
    ):
        return place
    remark = _cut_off(as_numbers(held[0]), as_numbers(held[1]), judge.floor(one, other, (held[0], held[1])))
    return replace(place, parts=False, remark=remark) if remark else place


def _as_parameters_lie(place: Place, a: Side, b: Side) -> Place:
    """Return *place*; the gradient of a parameter of ``b`` is turned back as the parameter is turned from that of ``a``.

    As a kernel of a transposed convolution, and of one that is given zeros between the pixels. Of other sizes they say nothing.
    """
    if not place.parts or place.stage != "backward" or place.site.port != "grad" or a.model is None or b.model is None:
        return place
    both = [side.tensors_of(site.layer).get(site.path.rpartition(".")[2]) for side, site in ((a, place.site), (b, place.other))]
    kept = [{each.key: each for each in side.backward}.get(key) for side, key in ((a, place.key), (b, place.other_key))]
    held = [None if each is None or each.main is None else each.main[1] for each in kept]
    if any(each is None or each.is_meta or each.is_nested for each in (*both, *held)):
        return place
    x, y, mine, theirs = (as_numbers(each) for each in (*both, *held) if each is not None)
    if x.numel() != y.numel():
        return replace(place, parts=False, remark=f"of parameters of {shape_text(x.shape)} in a, {shape_text(y.shape)} in b")
    for order, axes in _turns_of(x, y):
        made = theirs.permute(order).flip(axes)
        apart = distance(mine, made)
        if apart.relative <= place.floor:
            remark = f"{ANOTHER_LAYOUT}, axes of b in the order {', '.join(map(str, order))}" + f", reversed along {axes}" * bool(
                axes
            )
            return replace(place, relative=apart.relative, cosine=apart.cosine, largest=apart.largest, parts=False, remark=remark)
    return place


def _turns_of(x: Tensor, y: Tensor) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield other orders of the axes of *y*, and axes along which it is reversed then, that make *x* of it."""
    if x.dim() != y.dim() or not 2 <= x.dim() <= _MOST_TURNED or x.numel() > _LARGEST_TURNED:
        return
    flips = [axes for count in range(x.dim() + 1) for axes in itertools.combinations(range(x.dim()), count)]
    for order, axes in itertools.product(itertools.permutations(range(y.dim())), flips):
        turned = y.permute(order)
        if turned.shape == x.shape and (axes or order != tuple(range(y.dim()))) and torch.equal(x, turned.flip(axes)):
            yield order, axes


_MOST_TURNED, _LARGEST_TURNED = 5, 1 << 24
"""Axes of a parameter, and numbers that it holds, with which its layout is looked for."""


def _with_folded(places: list[Place], a: Side, b: Side, judge: Judge) -> list[Place]:
    """Return *places*; behind a layer whose outputs part, what one side's next layer, which the other lacks, makes of its output.

    A normalisation is so folded into the parameters of the layer in front of it, and the outputs of that are not meant to be equal.
    """
    held = [{kept.key: kept for kept in side.forward} for side in (a, b)]
    behind, found, limit = [_next_alone(side) for side in (a, b)], list[Place](), _NEARER
    for place in places:
        found.append(place)
        for pair in ((behind[0], held[1]), (held[0], behind[1])) if place.parts and place.site.port == "output" else ():
            one, other = pair[0].get(place.key), pair[1].get(place.other_key)
            folded = None if one is None or other is None else place_of("forward", one, other, judge)
            if folded is not None and folded.relative < limit * place.relative:
                met = folded.site if folded.site != place.site else folded.other
                found[-1:] = [replace(place, parts=False, remark=f"{DIFFERS_INSIDE}{met}"), folded]
                limit = limit if folded.parts else 1.0
                break
    return found


_NEARER = 0.5
"""A layer is folded into the one in front of it if its output is nearer than that one's by this factor; by any behind another."""


def _without_met(places: list[Place], a: Side, b: Side) -> list[Place]:
    """Return *places*; the output of a layer does not part where what is made of it in one side is its output in the other.

    A factor of an embedding so belongs to the layer in one side, and to the code behind it in the other. The tensor is new: one
    that was there before the layer says nothing of it.
    """
    found = list(places)
    held = [{kept.key: kept for kept in side.forward} for side in (a, b)]
    parted = [at for at, each in enumerate(places) if each.parts and each.site.port == "output" and each.site.path]
    ran = [place for place in places if place.stage == "forward"]
    for number, kept in itertools.product(parted[:_MOST_MET], held):
        keys = [place.key if kept is held[0] else place.other_key for place in ran]
        main = kept[keys[number]].main
        if main is None or main[1].is_meta or main[1].is_nested or not bool(main[1].any()):
            continue
        same = [at for at, key in enumerate(keys) if at != number and _is_same(kept[key], main[1])]
        met = next((ran[at] for at in same if _is_agreed(ran[at])), None)
        if met is not None and min(same) > number:
            path, remark = ran[number].site.path, f"{DIFFERS_INSIDE}{met.site}"
            of_layer = [at for at, each in enumerate(found) if each.site.layer == path and each.stage != "forward" and each.parts]
            for at in (number, *of_layer):
                found[at] = replace(found[at], parts=False, remark=remark)
    return found


_MOST_MET = 8
"""So many places, the first ones that part, are looked for behind."""


def _is_same(kept: Kept, tensor: Tensor) -> bool:
    held = None if kept.main is None else kept.main[1]
    if held is None or held.is_nested or tensor.is_nested or held.is_meta or tensor.is_meta:
        return False
    return held.shape == tensor.shape and held.dtype == tensor.dtype and torch.equal(held, tensor)


def _is_agreed(place: Place) -> bool:
    return not place.parts and not place.remark and place.relative <= place.floor


def _next_alone(side: Side) -> dict[Key, Kept]:
    """Return the output of the layer, one that the other side lacks, that is given the output of a layer, by the key of that."""
    events, found = side.forward, {}
    for one, given, last in zip(events, events[1:], events[2:], strict=False):
        is_next = (one.site.port, given.site.port, last.site) == ("output", "input", Site(given.site.path, "output"))
        if is_next and last.site.path in side.alone and one.main is not None and given.main is not None:
            x, y = one.main[1], given.main[1]
            if x.shape == y.shape and not x.is_meta and not x.is_nested and torch.equal(x, y):
                found[one.key] = last
    return found


def _of_one_call(side: Side, other: Side, pairs: Iterable[tuple[str, str]]) -> list[Kept]:
    """Return the backward events of *side*; of a module that it calls several times on one tensor, and *other* once, their sum."""
    outputs: list[dict[str, list[Kept]]] = [{}, {}]
    for found, each in zip(outputs, (side, other), strict=True):
        for kept in each.forward if each.backward else ():
            if kept.site.port == "output":
                found.setdefault(kept.site.path, []).append(kept)
    often = {
        name
        for name, beside in pairs
        if len(outputs[0].get(name, ())) > 1 == len(outputs[1].get(beside, ()))
        and (main := outputs[0][name][0].main) is not None
        and all(_is_same(kept, main[1]) for kept in outputs[0][name][1:])
    }
    calls: dict[str, list[Kept]] = {name: [] for name in often}
    for kept in side.backward:
        if kept.site.port == "grad_output" and kept.site.path in calls:
            calls[kept.site.path].append(kept)
    summed: dict[Site, dict[str, Tensor]] = {}
    for name, made in calls.items():
        if len(made) == len(outputs[0][name]) and len({(*kept.leaves,) for kept in made}) == 1:
            rows = {leaf: [kept.leaves[leaf] for kept in made] for leaf in made[0].leaves}
            summed[made[0].site] = {leaf: torch.stack(held).sum(0) for leaf, held in rows.items()}
    return [replace(kept, leaves=summed[kept.site]) if kept.site in summed else kept for kept in side.backward]


def _in_order(events: list[Kept]) -> list[Kept]:
    """Return *events* with the gradients of a module's parameters behind the last gradient of its output."""
    last = {kept.site.path: place for place, kept in enumerate(events) if kept.site.port not in PARAMETER_PORTS}
    order = {id(kept): (last.get(kept.site.layer, len(events)), place) for place, kept in enumerate(events)}
    return sorted(events, key=lambda kept: order[id(kept)])


def _of_stage(stage: Stage, events: list[Kept], others: dict[Key, Kept], names: Names, judge: Judge) -> list[Place]:
    there = [site.path for site, _ in others]
    found: list[Place] = []
    pairs: list[tuple[Kept, Kept]] = []
    for kept in events:
        site = names.site_of_b(kept.site, there)
        other = None if site is None else others.get((site, kept.call))
        if site is not None and other is None and stage == "backward" and kept.leaves and others and judge.is_lacking(kept, site):
            other = replace(kept, site=site, leaves={})
        place = None if other is None else place_of(stage, kept, other, judge)
        if place is not None and other is not None:
            found.append(place)
            pairs.append((kept, other))
    return _without_layouts(_without_addends(found), pairs, judge)


def _without_addends(places: list[Place]) -> list[Place]:
    """Return *places*; where ranks hold addends of a tensor, that does not count if the next place, behind the sum, agrees."""
    found = list(places)
    for number, place in enumerate(places):
        if place.parts and place.remark.startswith(ADDENDS) and place.site.port not in PARAMETER_PORTS:
            behind = next(
                (each.parts for each in places[number + 1 :] if not each.remark.startswith(ADDENDS)), place.stage == "forward"
            )
            found[number] = replace(place, parts=behind)
    return found


def _without_layouts(places: list[Place], pairs: list[tuple[Kept, Kept]], judge: Judge) -> list[Place]:
    """Return *places*; one does not part where the sides have equal tensors with the axes in another order, and all behind agrees.

    Shapes that differ tell the order of the axes, whatever is behind. Of one shape, with axes of one length, it may be the fault.
    """
    found = list(places)
    for number in reversed(range(len(found))):
        place = found[number]
        if not place.parts:
            continue
        if number == len(found) - 1 or place.site.port in PARAMETER_PORTS:
            break
        turned = place_of(place.stage, *pairs[number], judge, turned=True)
        if turned is None or turned.parts or turned.relative > _LIKE * place.relative:
            break
        found[number] = turned
    return _without_carried(found, pairs, judge) if found and found[0].stage == "forward" else found


def _without_carried(places: list[Place], pairs: list[tuple[Kept, Kept]], judge: Judge) -> list[Place]:
    """Return *places*; one does not part whose axes are in another order if all agrees again where ``a`` carries its tensor next.

    That is where a module is given it, or the output of the one that is; so layers of one side have channels last. Nor does the
    output of a layer that is given its input in that order. Where an axis is exchanged by mistake, what is behind is another thing.
    """
    found, keys = list(places), {place.key: at for at, place in enumerate(places)}

    def turn(number: int) -> None:
        turned = place_of("forward", *pairs[number], judge, turned=True)
        if turned is not None and not turned.parts and turned.relative <= _LIKE * found[number].relative:
            found[number] = turned

    parted = [at for at, place in enumerate(found) if place.parts and pairs[at][0].main is not None]
    for number in parted[::-1]:
        place, main = found[number], pairs[number][0].main
        behind = (at for at in range(number + 1, len(found)) if main is not None and _is_same(pairs[at][0], main[1]))
        of_layer = keys.get((Site(place.site.path, "output"), place.call)) if place.site.port == "input" else None
        met = next(behind, of_layer)
        if met is not None and not found[met].parts:
            turn(number)
    for number in parted:
        given = keys.get((Site(found[number].site.path, "input"), found[number].call))
        is_turned = given is not None and not found[given].parts and found[given].remark.startswith(ANOTHER_LAYOUT)
        if found[number].site.port == "output" and is_turned:
            turn(number)
    return found


_LIKE = 0.1
"""A layout makes two tensors equal if it brings them nearer by this factor, where rounding alone explains much."""


def _without_inner(places: list[Place], a: Mapping[Key, Kept], b: Mapping[Key, Kept]) -> list[Place]:
    """Return *places*; what differs inside of a module whose output agrees does not count, nor do the gradients of what lies there.

    Inside also lies a layer whose output is its input. The input itself does not count in any case. What comes nearer step by step
    has not met again, nor what differs where the output does not depend on it, as the gradients show.
    """
    found = list(places)
    inner = {place.site.path: place.remark for place in places if place.remark.startswith(DIFFERS_INSIDE)}
    for number, meeting in enumerate(places):
        if (
            meeting.stage != "forward"
            or meeting.site.port != "output"
            or meeting.parts
            or meeting.remark.startswith(DIFFERS_INSIDE)
        ):
            continue
        parted = {at: found[at] for at in _within(places, number) if found[at].parts}
        least = _MUCH_NEARER * min((place.relative for place in parted.values()), default=0.0)
        is_undone = meeting.relative <= least and any(
            place.site.port == "output" and _matters(place, a, b) for place in parted.values()
        )
        for at, place in parted.items():
            if is_undone:
                inner[place.site.path] = f"{DIFFERS_INSIDE}{meeting.site}"
                found[at] = replace(place, parts=False, remark=inner[place.site.path])
            elif place.site == Site(meeting.site.path, "input"):
                found[at] = replace(place, parts=False, remark="the output agrees nevertheless")
                inner.setdefault(place.site.path, found[at].remark)
    before = ""
    for place in found:  # a portion of a module has no input of its own: its input is that of the module around, or an output
        if "[" not in place.site.path + place.other.path:
            before = place.remark
        elif place.stage == "forward" and before.startswith(DIFFERS_INSIDE):
            inner[place.site.path] = before
    return [
        replace(place, parts=False, remark=inner[place.site.layer])
        if place.parts and place.stage != "forward" and place.site.layer in inner
        else place
        for place in found
    ]


def _matters(place: Place, a: Mapping[Key, Kept], b: Mapping[Key, Kept]) -> bool:
    """Return whether there is a gradient where the sides differ."""
    gradient = a.get((Site(place.site.path, "grad_output"), place.call))
    held = [each.main[1] for each in (gradient, a[place.key], b[place.other_key]) if each is not None and each.main is not None]
    if len(held) < 3 or held[1].shape != held[2].shape or held[0].shape != held[1].shape:
        return gradient is not None and _is_nonzero(gradient)
    off = (as_numbers(held[1]) - as_numbers(held[2])).abs()
    return bool(((off > _MUCH_NEARER * off.max()) & (held[0] != 0)).any())


_MUCH_NEARER = 1e-3
"""The output of a module is nearer than all that differs inside by this factor: not where that is small beside other addends."""


def _within(places: list[Place], end: int) -> Iterator[int]:
    """Yield which places lie within the module call that ends at *end*, last ones first, and the output that is its input."""
    path, at = places[end].site.path, end - 1
    while at >= 0 and places[at].site.path.startswith(f"{path}." if path else ""):
        yield at
        at -= 1
    if path and at >= 0 and places[at].site == Site(path, "input"):
        yield at
        given, before = places[at], places[at - 1]
        if at and before.site.port == "output" and (given.relative, given.largest) == (before.relative, before.largest):
            yield at - 1


def without_made_up(places: list[Place], a: Side, b: Side, depends: Callable[[Place, Place, Tensor], bool]) -> list[Place]:
    """Return *places*; the first ones do not part where the code behind them makes up for it, and the sides part further on.

    As where rows of queries and keys lie in another order for another rotary embedding: what the code around makes of them agrees.
    Nor does one of the same two classes as such a place where nothing behind it agrees, as in the last of several blocks.

    Args:
        places: all places.
        a, b: the sides.
        depends: whether one place moves in ``a`` if entries of another do, those where the factor is not 1.
    """
    found, events = list(places), [{kept.key: kept for kept in side.kept} for side in (a, b)]
    inside = [place for place in places if place.stage == "forward" and place.remark.startswith(DIFFERS_INSIDE)]
    # where layers of two classes meet again
    kinds = {_kind_of(place, events): place.remark.removeprefix(DIFFERS_INSIDE) for place in inside}
    for _ in range(_MOST_MADE_UP):
        parted = [at for at, place in enumerate(found) if place.parts and place.stage == "forward"]
        first = found[parted[0]] if len(parted) > 1 else None
        if first is None or not first.site.path or not math.isfinite(first.relative):
            break
        behind = found[parted[0] + 1 : parted[-1]]
        kind = _kind_of(first, events)
        met = _met_again(first, found[: parted[0]], behind, events, a, depends) or (
            kinds.get(kind, "") if kind[0] != kind[1] else ""
        )
        if not met:
            break
        kinds[kind] = met
        for at, place in enumerate(found):
            if at == parted[0] or (place.parts and place.stage != "forward" and place.site.layer == first.site.path):
                found[at] = replace(place, parts=False, remark=f"{DIFFERS_INSIDE}{met}")
    return found


def _met_again(
    first: Place,
    before: list[Place],
    behind: list[Place],
    events: list[dict[Key, Kept]],
    a: Side,
    depends: Callable[[Place, Place, Tensor], bool],
) -> str:
    """Return where *behind* the first place that parts the sides agree on what follows from it; ``""`` where they do not."""
    held = [events[0][first.key].main, events[1][first.other_key].main]
    made = events[0].get((Site(first.site.path, "output"), first.call))
    if held[0] is None or held[1] is None or held[0][1].shape != held[1][1].shape or made is None or made.main is None:
        return ""
    if first.site.port == "output":
        if not _matters(first, *events):
            return ""
        off = (as_numbers(held[0][1]) - as_numbers(held[1][1])).abs()
        factor = torch.where(off > _MUCH_NEARER * off.max(), 1 + _DISTURBED, 1.0)
    else:
        factor = 1 + _DISTURBED * torch.arange(made.main[1].numel(), device="cpu").cos().reshape(made.main[1].shape)
    agreed = (each for each in behind if _is_agreed(each) and each.site.port == "input")
    near = [each for each in agreed if each.relative <= _MUCH_NEARER * first.relative]
    met = next((each for each in near if _is_made_of(each, first, before, events[0], a)), None)
    main = None if met is None else events[0][met.key].main
    if met is None or main is None:
        return ""
    return str(met.site) if _is_same(events[0][first.key], main[1]) or depends(first, met, factor) else ""


def _kind_of(place: Place, events: list[dict[Key, Kept]]) -> tuple[str, str, str]:
    """Return the classes of the layers of a place, and its port."""
    return place.type, events[1][place.other_key].type, place.site.port


def _is_made_of(place: Place, first: Place, before: list[Place], events: Mapping[Key, Kept], side: Side) -> bool:
    """Return whether code behind *first* may have made the tensor at *place* of it: in one call, and none that was there before.

    What a call is given counts as made where its first layer is given it.
    """
    main = events[place.key].main
    if main is None or any(
        _is_same(events[each.key], main[1])
        for each in before
        if each.stage == "forward" and not each.remark.startswith(DIFFERS_INSIDE)
    ):
        return False
    forward, key = [kept for kept in side.forward if kept.site.path not in side.alone], place.key
    while first.key not in (frame := frame_of(key, forward)).before:
        if [each[0] for each in frame.before] != [Site(frame.owner, "input")] or key == frame.before[0]:
            return False
        key = frame.before[0]
    return True


_MOST_MADE_UP, _DISTURBED = 16, 0.25
"""So many places, the first ones that part, may be made up for; by how much their entries are moved, to see what follows them."""


def _is_nonzero(kept: Kept) -> bool:
    return any(tensor.is_meta or bool((as_numbers(tensor) != 0).any()) for tensor in kept.leaves.values())


def _shape(tensor: Tensor) -> str:
    return f"{tensor.size(0)} nested" if tensor.is_nested else shape_text(tensor.shape)


def place_of(stage: Stage, one: Kept, other: Kept, judge: Judge, *, turned: bool = False) -> Place | None:
    """Return how far two events are apart, with *turned* with the axes of one in another order; None where that says nothing."""
    port, blank = one.site.port, Place(stage, one.site, other.site, one.call, one.type, "", 0.0)
    if not one.leaves or not other.leaves:
        if not one.leaves and not other.leaves:
            return None
        held, lacking = (other, "a") if not one.leaves else (one, "b")
        shape = "" if held.main is None else _shape(held.main[1])
        remark = f"no {'gradient' if stage == 'backward' else 'tensor'} in {lacking}"
        return replace(blank, shape=shape, relative=math.inf, parts=_is_nonzero(held), remark=remark)
    pairs = list(_pairs(one, other, only_main=stage == "update"))
    if not pairs:
        return None
    (_, x, y), *rest = pairs
    shape = _shape(x)
    blank = replace(blank, shape=shape)
    if x.is_meta or y.is_meta:
        return replace(blank, relative=0.0 if x.shape == y.shape else math.inf, parts=x.shape != y.shape, remark="no data")
    shared = held_of_both(x, y)
    if shared is None:
        return replace(blank, remark=f"{NOT_COMPARED}: this rank does not hold the same part in both sides")
    x, y = shared
    numbers = as_numbers(x), as_numbers(y)
    laid = laid_out_alike(*(_summed(*numbers) if port == "grad_output" else numbers), turned=turned)
    if laid is None:
        if turned or (port == "input" and x.shape[1:] != y.shape[1:]):
            return None
        if judge.is_part(x, y):
            remark = f"of {shape} and {_shape(y)} one is this rank's part of a distributed tensor"
            return replace(blank, remark=f"{NOT_COMPARED}: {remark}")
        if one.type != other.type and (pooled := _pooled(*numbers)):
            return replace(blank, remark=pooled)
        if one.site.path and judge.are_whole and (few := _entries_among(x, y)):  # of a model's output all entries are wanted
            return replace(blank, remark=f"the entries of {few} are among those of the other side, {_shape(x)} and {_shape(y)}")
        return replace(blank, relative=math.inf, parts=True, remark=f"shape {shape} in a, {_shape(y)} in b")
    apart = distance(numbers[0] if numbers[0].shape == laid[0].shape else _summed(*numbers)[0], laid[0])
    floor = judge.floor(one, other, (x, y))
    if (
        apart.relative > floor
        and one.type != other.type
        and port in PARAMETER_PORTS
        and x.dim() == y.dim() == 2
        and x.shape == y.mT.shape
    ):
        beside = distance(as_numbers(x), as_numbers(y).mT)  # as between the Conv1D of GPT-2 and a Linear
        if beside.relative < apart.relative:
            apart, laid = beside, (laid[0].mT, "transposed")
    leaf = ""
    for path, left, right in rest:
        both = held_of_both(left, right)
        if both is not None:
            beside = distance(as_numbers(both[0]), as_numbers(both[1]))
            if beside.relative > max(apart.relative, floor):
                apart, leaf = beside, path
    parts = apart.relative > floor
    if not parts:
        judge.note(apart.relative)
    if parts and laid[1] and port == "input" and sorted(x.shape) != sorted(y.shape):
        return None  # other tensors of as many elements: a layer may be given images, or patches of them; or one for all samples
    words = laid[1]
    if words.startswith("axes"):
        words = f"shape {shape} in a, {_shape(y)} in b; nearest with {words}" if parts else f"{ANOTHER_LAYOUT}, {words}"
    among = next(filter(None, (among_ranks(kept, leaf, floor)[1] for kept in (one, other) if parts)), "")
    remark = (
        f"{leaf} differs"
        if leaf
        else among
        or words
        or (f"{apart.nonfinite} elements are finite in one side alone" if apart.nonfinite else "")
        or _of_types(x, y)
    )
    return replace(
        blank,
        relative=apart.relative,
        cosine=apart.cosine,
        largest=apart.largest,
        floor=floor,
        parts=parts,
        remark=remark,
        leaf=leaf,
    )


def _summed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return two gradients; where one side holds a tensor once and the other one for each sample, the other's sum over these."""
    if repeats(x, y):
        return x.sum(0).reshape(y.shape), y
    return (x, y.sum(0).reshape(x.shape)) if repeats(y, x) else (x, y)


def _pooled(x: Tensor, y: Tensor) -> str:
    """Return which side has the mean, the sum or the largest entries of the other's tensor, as of a layer that pools itself."""
    few, many, side, other = (x, y, "a", "b") if x.dim() < y.dim() else (y, x, "b", "a")
    for axis in range(1, many.dim() if many.dim() == few.dim() + 1 else 0):
        if many.shape[:axis] + many.shape[axis + 1 :] == few.shape:
            for what, made in (("mean", many.mean(axis)), ("sum", many.sum(axis)), ("largest", many.amax(axis))):
                if distance(few, made).relative <= _MUCH_NEARER:
                    return f"{side} has the {what} of what {other} has, over axis {axis}"
    return ""


def _entries_among(x: Tensor, y: Tensor) -> str:
    """Return which side's entries along the first axis are some of the other's, as where experts are given all positions.

    Of other numbers of axes those along all but the last, as where one token of each sequence is picked in front of a norm.
    """
    if x.dim() < 2 or y.dim() < 2 or not x.numel() or not y.numel():
        return ""
    one, other = (as_numbers(each).flatten(1) for each in (x, y))
    if x.shape[1:] != y.shape[1:]:
        if x.dim() == y.dim() or x.size(-1) != y.size(-1) or x.size(-1) < _FEWEST_TOLD:
            return ""
        one, other = (as_numbers(each).reshape(-1, each.size(-1)) for each in (x, y))
    few, many = sorted((one, other), key=len)
    if len(few) == len(many):
        return ""
    is_among = float(torch.cdist(few, many).amin(1).max()) <= _MUCH_NEARER * float(many.norm(dim=1).max())
    return ("a" if few is one else "b") if is_among else ""


_FEWEST_TOLD = 4
"""Numbers of an entry that is looked for among others of any place: fewer may be alike by chance."""


def _cut_off(x: Tensor, y: Tensor, floor: float) -> str:
    """Return which side has the first, last or middle entries along an axis of the other's tensor, padded otherwise."""
    apart = [axis for axis, (one, other) in enumerate(zip(x.shape, y.shape, strict=False)) if one != other]
    if x.dim() != y.dim() or len(apart) != 1 or apart[0] == 0 or not min(x.numel(), y.numel()):
        return ""
    (axis,) = apart
    (few, side), (many, other) = sorted(((x, "a"), (y, "b")), key=lambda each: each[0].numel())
    length, more = few.size(axis), many.size(axis) - few.size(axis)
    starts = {0: "first", more: "last", more // 2: "middle"} if more % 2 == 0 else {0: "first", more: "last"}
    for start, words in starts.items():
        if distance(few, many.narrow(axis, start, length)).relative <= floor:
            return f"{side} has the {length} {words} of {many.size(axis)} entries that {other} has, over axis {axis}"
    return ""


def _of_types(x: Tensor, y: Tensor) -> str:
    one, other = (str(tensor.dtype).removeprefix("torch.") for tensor in (x, y))
    return "" if one == other else f"{one} in a, {other} in b"


def _pairs(one: Kept, other: Kept, *, only_main: bool) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the tensors that belong together, with the leaf path: the main ones, then :func:`partners` of one shape.

    Of an input, and of what the model returns, whole numbers and truth values count too: masks, positions, labels.
    """
    main = mains(one, other)
    if main is None or is_floating(main[0][1]) != is_floating(main[1][1]):
        return
    yield main[0][0], main[0][1], main[1][1]
    if only_main:
        return
    for leaf, path in partners(one, other).items():
        tensor, beside = one.leaves[leaf], other.leaves[path]
        if tensor.is_nested or beside.is_nested or beside.shape != tensor.shape:
            continue
        is_compared = is_floating(tensor) == is_floating(beside) and not tensor.is_meta and not beside.is_meta
        if is_compared and (is_floating(tensor) or one.site.port == "input" or one.site == Site("", "output")):
            yield leaf, tensor, beside


# Where a place lies


@dataclass(frozen=True, slots=True)
class Frame:
    """A place of the forward within the module call that was running.

    Attributes:
        owner: the module whose own code made the tensor.
        call: which call of it.
        is_code: the tensor was made by code of *owner* between calls of its children; otherwise by a module without children.
        before: the tensors within the call of *owner*: its input, and inputs and outputs of its children, as keys in ``a``.
    """

    owner: str
    call: int
    is_code: bool
    before: tuple[Key, ...]


def frame_of(wanted: Key, events: Iterable[Kept]) -> Frame:
    """Return where the place *wanted*, one of the forward, lies among *events* of its side."""
    stack: list[tuple[str, int, list[Key]]] = []
    for kept in events:
        site, call = kept.key
        if site.port == "input":
            if kept.key == wanted:
                owner, number, before = stack[-1] if stack else ("", 0, [])
                return Frame(owner, number, True, tuple(before))
            if stack:
                stack[-1][2].append(kept.key)
            stack.append((site.path, call, [kept.key]))
            continue
        before = []
        if any((path, number) == (site.path, call) for path, number, _ in stack):  # a portion of a module has no call of its own
            while stack:
                path, number, before = stack.pop()
                if (path, number) == (site.path, call):
                    break
        if kept.key == wanted:
            return Frame(site.path, call, any(key[0].path != site.path for key in before), tuple(dict.fromkeys(before)))
        if stack:
            stack[-1][2].append(kept.key)
    site, call = wanted
    return Frame(site.path if site.port == "output" else site.path.rpartition(".")[0], call, site.port == "input", ())
