"""Find the operation, in the code of a module, by which the sides part, and let that of ``a`` stand in its place in ``b``."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor

from sonde.diagnosis.compare.cuts import cut_otherwise
from sonde.diagnosis.compare.operation_words import (
    ALIKE,
    LINE,
    MOST_NAMES,
    arguments_text,
    line_text,
    list_text,
    operation_names,
    operation_text,
    operations_text,
    picks,
)
from sonde.diagnosis.compare.other_arguments import OTHERS, of_blocks, of_constants, of_counts, of_indices, of_numbers
from sonde.diagnosis.compare.recorded_operations import (
    LONGEST,
    MOST_STEPS,
    Code,
    Fingerprint,
    InParts,
    Source,
    Step,
    Way,
    found_in,
    is_detach,
    tensors_in,
    turned,
    turns_between,
    way_to,
)
from sonde.diagnosis.compare.relations import as_laid_out, relation_of
from sonde.diagnosis.compare.scene import Scene
from sonde.diagnosis.compare.sides import Side
from sonde.diagnosis.compare.suspects import Change, Suspect, Undo
from sonde.diagnosis.compare.weights import EXACT
from sonde.diagnosis.distance import as_numbers, readable
from sonde.engine import OperatorCall, remap
from sonde.words import names_text, shape_text

_MOST_TRIED, _FEW = 16, 2
"""How many changes are tried, and how many operations one side may lack, so that this is told as the cause."""

_ADVICE = "compute the same on both sides"

_Make = Callable[[Mapping[Source, Tensor]], list[Tensor]]

_Put = tuple[Source, Set[Source], _Make]
"""A tensor of ``b``, what of ``b`` is needed for another in its place, and the function that makes that.

One that an operation is given has the other in its place from that operation on.
"""

_Replaced = tuple[list[_Put], str, bool]
"""What is put in the place of tensors of ``b``, words, and if it is all code in front of the place."""


class _Replacing(InParts):
    """While entered, tensors that operations make are others: what is *put*, of tensors before it, itself, and *held*."""

    def __init__(self, put: Sequence[_Put], held: Mapping[Source, Tensor]) -> None:
        super().__init__()
        self._put = {number: (place, needed, make) for (number, place), needed, make in put}
        self._needed = {source for _, needed, _ in put for source in needed}
        self._held = dict(held)
        self._given: dict[int, tuple[Tensor, Tensor]] = {}
        self._now = -1

    def operator(self, call: OperatorCall) -> Any:
        if is_detach(call):
            return call.run()
        self._now += 1
        if self._now > max(self._put):
            return self._run(call)
        given = tensors_in((call.args, call.kwargs))
        self._keep((-1 - at, tensor) for at, tensor in enumerate(given))
        place, needed, make = self._put.get(self._now, (0, set[Source](), None))
        if make is not None and place < 0 and needed <= self._held.keys():
            own = given[-1 - place]
            self._given[id(own)] = own, _shaped(make(self._held)[0], own)
        result = self._run(call)
        made = tensors_in(result)
        self._keep(enumerate(made))
        if make is None or place < 0 or not needed <= self._held.keys():
            return result
        others = make(self._held)
        pairs = list(zip(made, others, strict=True)) if len(made) == len(others) else [(made[place], others[0])]
        if call.written:
            return pairs[0][0].copy_(pairs[0][1].reshape(pairs[0][0].shape))
        instead = {id(one): _shaped(other, one) for one, other in pairs}
        return remap(result, lambda tensor: instead.get(id(tensor), tensor))

    def _run(self, call: OperatorCall) -> Any:
        if not self._given:
            return call.run()
        args, kwargs = remap((call.args, call.kwargs), lambda tensor: self._given.get(id(tensor), (tensor, tensor))[1])
        return call.function(*args, **kwargs)

    def _keep(self, tensors: Iterable[tuple[int, Tensor]]) -> None:
        self._held |= {(self._now, at): tensor.detach().clone() for at, tensor in tensors if (self._now, at) in self._needed}


def _shaped(tensor: Tensor, like: Tensor) -> Tensor:
    made = tensor.to(like.dtype)
    if turns_between(made.shape, like.shape) is not None:
        return turned(made, like.shape)
    return made.reshape(like.shape if like.numel() == tensor.numel() else tensor.shape)


def of_operation(scene: Scene) -> Iterator[Suspect]:
    """The operations of ``a`` whose operands ``b`` has, and whose result it has not, in the place of one of ``b``, or behind one.

    Where ``a`` lacks one of ``b``, its operand stands in its place. At last the whole code of ``a`` runs on tensors of ``b``.
    """
    if scene.place.stage != "forward" or scene.owner_b is None or scene.tensors is None or scene.b.model is None:
        return
    call, loose = scene.frame.call, max(16 * scene.tolerance, 1e-5)
    calls = [Counter(kept.site.path for kept in side.forward if kept.site.port == "output") for side in (scene.a, scene.b)]
    often = [pair for pair in scene.names.pairs() if calls[0][pair[0]] != calls[1][pair[1]]]  # called once more in one side
    own = {scene.frame.owner, *scene.a.alone, *(name for name, _ in often)}
    beside = {scene.owner_b, *scene.b.alone, *(other for _, other in often)}
    codes = (
        Code(scene.a, own, scene.frame.owner, call, scene.place.key),
        Code(scene.b, beside, scene.owner_b, call, scene.place.other_key),
    )
    here, there = ([] if (run := code.recorded()) is None else run.steps for code in codes)
    in_a = {each: (0, 0) for step in here for each in (*step.given, *step.made)}
    in_b: dict[Fingerprint, Source] = {}
    for step in there:
        prints = [*((-1 - place, each) for place, each in enumerate(step.given)), *enumerate(step.made)]
        for place, each in prints:
            in_b.setdefault(each, (step.number, place))
    own_tensors = list(scene.b.tensors_of(scene.owner_b).values())
    device = next((tensor.device for tensor in scene.b.model.parameters()), torch.device("cpu"))
    made = [source.b.to(device, _type_of(scene)) for source in scene.sources]  # outputs that the code of b may lay aside
    tensors = [*own_tensors, *made]
    held = {(-1, -1 - place): tensor.detach() for place, tensor in enumerate(tensors)}
    idle = {each: at for at, tensor in held.items() if not tensor.is_meta and (each := Fingerprint.of(tensor)) not in in_b}
    ends, told = [Fingerprint.of(tensor) for tensor in scene.tensors], set[str]()
    one, other = (float(tensor.flatten()[0]) if tensor.numel() == 1 else 0.0 for tensor in scene.tensors)
    times = f": b is {other / one:.6g} times a" if one and other and _is_factor(other / one, loose) else ""
    for within in (max(scene.tolerance, 1e-6), loose):  # a small addend is hardly seen
        last, behind = (
            next((step for step in steps[::-1] if step.made and step.made[0].is_like(end, within)), None)
            for steps, end in zip((here, there), ends, strict=True)
        )
        certain, vague = _instead(scene, codes, here, there, in_a, in_b, idle, last, behind, within)
        cuts: list[_Replaced] = [
            ([(at, {source}, make)], words, False) for at, source, make, words in cut_otherwise(here, there, ends, within)
        ]
        replacing = [
            [
                (Undo(b=Change(contexts=(functools.partial(_Replacing, put, held),))), words, is_whole)
                for put, words, is_whole in each
            ]
            for each in ([*cuts, *certain], vague)
        ]
        picks = [
            (undo, words, False) for undo, words in (*of_counts(here, there), *of_numbers(here, there), *of_indices(here, there))
        ]
        first, others = [each for each in picks if OTHERS not in each[1]], [each for each in picks if OTHERS in each[1]]
        others += [(undo, words, False) for undo, words in (*of_constants(here, there), *of_blocks(scene, there))]
        for undo, words, is_whole in (*first, *replacing[0], *others, *replacing[1]):
            if words not in told:
                told.add(words)
                suspect = scene.suspect("operation", words.rstrip() + times * (not is_whole), undo, _ADVICE, instead="operation")
                yield replace(suspect, is_guess=True, is_whole=is_whole)
    if last is not None and behind is None:  # b goes on with a tensor that both have
        kind = torch.float32 if any(each.call.written for each in here) else torch.float64
        sources = {
            (-1, place): tensor.to(kind) for place, tensor in enumerate([*(each.b for each in scene.sources), scene.tensors[1]])
        }
        sources |= {at: tensor.to("cpu", kind) for at, tensor in held.items() if tensor.is_floating_point() and not tensor.is_meta}
        way = way_to(last, here, {Fingerprint.of(tensor): at for at, tensor in sources.items()}, loose)
        if way is not None:
            undo = Undo(made=lambda _: as_numbers(way.made(sources)[0]))
            words = _for_a_constant(scene, way) or f"{operations_text(way.steps)} in a{line_text(last)}, and not in b"
            yield scene.suspect("operation", words, undo, _ADVICE)


def _type_of(scene: Scene) -> torch.dtype:
    """Return the type of the tensor of ``b`` at the place."""
    main = None if scene.kept[1] is None else scene.kept[1].main
    return torch.float32 if main is None else main[1].dtype


def _instead(
    scene: Scene,
    codes: tuple[Code, Code],
    here: Sequence[Step],
    there: Sequence[Step],
    in_a: Mapping[Fingerprint, Source],
    in_b: Mapping[Fingerprint, Source],
    idle: Mapping[Fingerprint, Source],
    last: Step | None,
    behind: Step | None,
    within: float,
) -> tuple[list[_Replaced], list[_Replaced]]:
    """Return what of ``a`` may stand in the place of operations of ``b``, and what of that may be no cause.

    The last of the latter is what makes the result of *last* there.
    """
    lacking = [step for step in here if step.made and found_in(step.made[0], in_b, within) is None]
    apart = [step for step in there if step.made and found_in(step.made[0], in_a, within) is None]
    back = way_to(behind, there, in_a, within, MOST_STEPS) if behind is not None and behind in apart else None
    own = (
        apart if back is None else [step for step in back.steps if step in apart]
    )  # what comes out alike in the end does not count
    first = [step for step in own if all(found_in(each, in_a, within) for each in step.given)][:_MOST_FIRST]
    in_b = {**in_b, **idle}
    around = [_around(step, here, there, lacking, in_b, within) for step in first]
    often = [_in_all_rounds(way, step, there, in_b) for way, step in zip(around[:_FEW], first, strict=False)]
    found = [*(each for way in often for each in way), *_at_all(around)]
    vague = [each for each in found if _OF_OTHERS in each[1] or "view in a" in each[1]]
    foreign = [
        (step.number, -1 - at) for step in here for at, each in enumerate(step.given) if found_in(each, in_b, within) is None
    ]
    of_a = [*((step.number, 0) for step in lacking), *foreign, *(source for step in lacking for source in step.sources)]
    of_b = [*((step.number, 0) for step in own if step.made), *(source for step in first for source in step.sources)]
    related = [*_related(codes, (here, there), (of_a, of_b), within), *_of_one_number(here, lacking, own, within)]
    told = [*_lacking_behind(here, there, lacking, in_b, within), *(each for each in found if each not in vague)]
    if last is None or behind is None:
        return [*told, *related], vague
    known = {each: at for each, at in in_b.items() if at[0] <= behind.number}
    known = known if behind not in apart else _before(behind, in_b)
    way = way_to(last, here, known, within, MOST_STEPS)
    if way is not None:
        rest = (
            [step for step in apart if not step.is_layout]
            if behind in apart
            else [behind] * (behind.call.is_view and picks(behind))
        )
        rest = rest if back is None else back.steps
        words, is_whole = _of_rounds(way, back, here, there, last, behind, within), False
        words, is_whole = (words, is_whole) if words else _of_both(scene, way, back, rest, behind, within)
        whole: _Replaced = ([((behind.number, 0), way.needed, way.made)], words, is_whole)
        if words:
            if _ROUNDS in words:
                return [whole, *told, *related], vague
            (vague if is_whole or _OF_OTHERS in words else told).append(whole)
    return [*told, *related], vague


_MOST_FIRST = 8
"""So many operations of ``b``, the first of its own on tensors of both, are looked at."""


def _at_all(around: Sequence[Sequence[_Replaced]]) -> list[_Replaced]:
    """Return what may stand at several places of ``b`` together: the same change of each but for its line."""
    same: dict[str, list[_Replaced]] = {}
    for each in around:
        for words, replaced in {LINE.sub("", each[1]): each for each in each[::-1]}.items():
            same.setdefault(words, []).append(replaced)
    found = [({put[0]: put for puts, _, _ in every for put in puts}, every[0][1]) for every in same.values()]
    return [([*puts.values()], f"{words}, at {len(puts)} places", False) for puts, words in found if len(puts) > 1][:_MOST_TRIED]


def _related(
    codes: tuple[Code, Code],
    steps: tuple[Sequence[Step], Sequence[Step]],
    wanted: tuple[Sequence[Source], Sequence[Source]],
    within: float,
) -> list[_Replaced]:
    """Return tensors of ``a`` that may stand in the place of those of ``b`` that follow from them: all of one relation together."""
    here, there = ({step.number: step for step in each} for each in steps)
    theirs = [at for at, _ in _distinct(there, [at for at in wanted[1] if at[1] >= 0])]
    sizes = {there[number].made[place].count for number, place in theirs}
    mine = [at for at, each in _distinct(here, wanted[0]) if any(each.count % size == 0 for size in sizes)]
    theirs, mine = theirs[:_MOST_COMPARED], mine[:_MOST_COMPARED]
    runs = [code.recorded(each) for code, each in zip(codes, (mine, theirs), strict=True)] if mine and theirs else [None, None]
    if runs[0] is None or runs[1] is None:
        return []
    found: dict[str, list[tuple[_Put, str]]] = {}
    for at, (number, place) in itertools.product(theirs, mine):
        a, b = runs[0].tensors.get((number, place)), runs[1].tensors.get(at)
        laid = None if a is None or b is None else as_laid_out(a, b)
        relation = "" if laid is None or b is None else relation_of(laid, b, max(within, EXACT))
        if laid is not None and relation:
            one, other = here[number], there[at[0]]
            what = f"what {one.name} {'makes' if place >= 0 else 'is given'} in a{line_text(one)}"
            words = f"what {other.name} makes in b{line_text(other)} is {relation.format(a=what)}"
            found.setdefault(relation, []).append(((at, frozenset(), functools.partial(_constant, tensor=laid)), words))
    replaced: list[_Replaced] = []
    for each in found.values():
        replaced += [([put], words, False) for put, words in each]
        every = {put[0]: put for put, _ in each}
        replaced += [([*every.values()], f"{each[0][1]}, at {len(every)} places", False)] if len(every) > 1 else []
    return replaced[:_MOST_TRIED]


def _distinct(steps: Mapping[int, Step], sources: Sequence[Source]) -> list[tuple[Source, Fingerprint]]:
    """Return those of *sources* that are known, with what they hold, each tensor once: of a size that is compared."""
    kept: dict[Fingerprint, Source] = {}
    for number, place in sources:
        if number in steps:
            held = steps[number].made if place >= 0 else steps[number].given
            kept.setdefault(held[place if place >= 0 else -1 - place], (number, place))
    return [(at, each) for each, at in kept.items() if _FEWEST <= each.count <= _MOST_KEPT]


_FEWEST, _MOST_KEPT, _MOST_COMPARED = 4, 1 << 20, 48
"""Elements of a tensor that is related to another, at least and at most, and how many of each side are compared."""


def _constant(held: Mapping[Source, Tensor], tensor: Tensor) -> list[Tensor]:
    return [tensor.clone()]


def _in_all_rounds(
    found: Sequence[_Replaced], first: Step, there: Sequence[Step], in_b: Mapping[Fingerprint, Source]
) -> list[_Replaced]:
    """Return *found*, what may stand in the place of *first*, each also in the place of what a loop does later at its line.

    In a first round tensors may be equal that are not later on, as where a state is zero: then the last of them is tried, too.
    """
    latest = _latest(first, there, in_b)
    by_number = {step.number: step for step in there}
    again = [step for step in there if step.number > first.number and _is_again(first, step)]
    last = {step.role: step.number for step in there}
    later = [step.number - first.number for step in again[:_MOST_ROUNDS] if _is_given_again(first, step, last, by_number)]
    later = [ahead for ahead in later if any(_is_moved(first.number + near, ahead, by_number) for near in (-1, 1))]
    if not later or len(again) > _MOST_ROUNDS:
        return list(found)
    every: list[_Replaced] = []
    for puts, words, is_whole in found[: _MOST_TRIED // 2]:
        (at, needed, make), *rest = puts
        every += [([(at, needed, make), *rest], words, is_whole)]
        for own in ({}, latest) if not rest and at[0] == first.number else ():
            moved = [
                (ahead, {each: _moved(own.get(each, each), ahead, first, there, by_number) for each in needed}) for ahead in later
            ]
            puts_again = [
                ((at[0] + ahead, at[1]), frozenset(where.values()), functools.partial(_made_of, make=make, where=where))
                for ahead, where in moved
            ]
            every += [([*puts, *puts_again], f"{words}, at {1 + len(later)} places{' ' * bool(own)}", is_whole)]
    return every


def _latest(first: Step, there: Sequence[Step], in_b: Mapping[Fingerprint, Source]) -> dict[Source, Source]:
    """Return the last one in front of *first* of the tensors that are equal to one, by where the first of them is."""
    found = dict[Source, Source]()
    for step in there:
        made = [] if step.number >= first.number else [(each, (step.number, place)) for place, each in enumerate(step.made)]
        made += [(each, (step.number, -1 - place)) for place, each in enumerate(step.given) if step is first]
        found |= {in_b[each]: source for each, source in made if each in in_b}
    return {source: last for source, last in found.items() if source != last}


_MOST_ROUNDS = 100


def _is_again(one: Step, other: Step) -> bool:
    """Return whether two operations may be one of a loop in two of its rounds."""
    return bool(one.line) and one.role == other.role


def _is_given_again(one: Step, other: Step, last: Mapping[tuple[str, str, int], int], by_number: Mapping[int, Step]) -> bool:
    """Return whether an operation is given in a later round what it is given in the first one: the same, or what is made again.

    *last* has the number of the last operation of each role.
    """
    for (number, place), (later, beside) in zip(one.sources, other.sources, strict=True):
        made, again = by_number.get(number), by_number.get(later)
        if (number, place) == (later, beside) or made is None or again is None:
            continue
        is_first = last[made.role] == number  # a state has another source at first
        if not is_first and not (_is_again(made, again) and place == beside):
            return False
    return True


def _is_moved(number: int, ahead: int, steps: Mapping[int, Step]) -> bool:
    """Return whether an operation is done again so many operations later, or there is none with that number."""
    return number not in steps or (number + ahead in steps and _is_again(steps[number], steps[number + ahead]))


def _moved(source: Source, ahead: int, first: Step, there: Sequence[Step], by_number: Mapping[int, Step]) -> Source:
    """Return where in a later round the tensor is that has the role of *source*; *source* where it is the same in all rounds."""
    if source[0] in by_number and _is_moved(source[0], ahead, by_number):
        return source[0] + ahead, source[1]
    steps = [step for step in there if step.number <= first.number and _is_moved(step.number, ahead, by_number)]
    given = [(step.number, -1 - place) for step in steps for place, each in enumerate(step.sources) if each == source]
    return (given[-1][0] + ahead, given[-1][1]) if given else source


def _made_of(held: Mapping[Source, Tensor], make: _Make, where: Mapping[Source, Source]) -> list[Tensor]:
    """Return what *make* makes of tensors that are held elsewhere."""
    return make({source: held[other] for source, other in where.items()})


_ROUNDS = "goes on with what"


def _of_rounds(
    way: Way, back: Way | None, here: Sequence[Step], there: Sequence[Step], last: Step, behind: Step, within: float
) -> str:
    """Return in words that one side goes on with what the other has after fewer rounds of a loop; ``""`` if it does not."""
    ways = (way, back, here, behind, "a", "b"), (back, way, there, last, "b", "a")
    for longer, shorter, steps, start, side, other in ways:
        own, tail = ([] if each is None else [step for step in each.steps if not step.is_layout] for each in (longer, shorter))
        loop, begins = own[: len(own) - len(tail)], [start.made[0]] if shorter is None else shorter.given
        if not loop or [step.name for step in own[len(loop) :]] != [step.name for step in tail]:
            continue
        ran = [step for step in steps if step.number <= loop[-1].number and step.role == loop[-1].role]
        done = [step for step in ran[:-1] if any(each.is_like(step.made[0], within) for each in begins)]
        if done and ran.index(done[-1]) < len(ran) - 2:  # then several may be of one round
            ran = [step for step in ran if _is_round(step, loop[-1], steps)]
        done = [step for step in ran[:-1] if any(each.is_like(step.made[0], within) for each in begins)]
        known = {(step.name, step.line) for step in steps if done and step.number <= done[-1].number}
        more = [step for step in loop if done and step.number > done[-1].number]
        if done and all(step.line and (step.name, step.line) in known for step in more):
            fewer = ran.index(done[-1]) + 1
            words = f"{side} does {list_text(operation_names(more))}{line_text(more[-1])} {len(ran)} times, {other} {fewer} times"
            return f"{words}: {other} {_ROUNDS} {side} has after {fewer} rounds"
    return ""


def _is_round(one: Step, other: Step, steps: Sequence[Step]) -> bool:
    """Return whether two operations, and those in front of them, are those of a loop in two of its rounds."""
    ends = [next(at for at, each in enumerate(steps, 1) if each is step) for step in (one, other)]
    return all(itertools.starmap(_is_again, zip(*(steps[max(end - 4, 0) : end][::-1] for end in ends), strict=False)))


def _of_both(scene: Scene, way: Way, back: Way | None, rest: Sequence[Step], behind: Step, within: float) -> tuple[str, bool]:
    """Return in words what operations the code of one side has that the other lacks, and whether they are too many for a cause."""
    if not rest and (instead := _for_a_constant(scene, way)):
        return instead, False
    one, other = operation_names(way.steps), operation_names(rest, with_picks=rest == [behind])
    if one == other:
        one, other = operation_names(way.steps, with_picks=True), operation_names(rest, with_picks=True)
    at_a, at_b = line_text(way.steps[-1]), line_text(behind)
    named = _parameters(scene.a, way.steps, within), _parameters(scene.b, rest, within)
    if one == other and (back is not None or named[0] != named[1]):
        tensors = named if all(named) and named[0] != named[1] else None
        tensors = tensors if back is None or tensors else _operands(way, back, within)
        if tensors is None:
            return "", False
        return f"{list_text(one)} of {tensors[0]} in a{at_a}, of {tensors[1]} in b{at_b}", False
    if len({*one} ^ {*other}) > len(ALIKE):  # else a row without any entry may be what differs
        one, other = ([ALIKE.get(name, name) for name in each] for each in (one, other))
    in_full, (one, other) = (one, other), (list(dict.fromkeys(one)), list(dict.fromkeys(other)))
    changes = [each for each in SequenceMatcher(None, one, other, autojunk=False).get_opcodes() if each[0] != "equal"]
    less, more = [name for _, i, j, _, _ in changes for name in one[i:j]], [name for *_, i, j in changes for name in other[i:j]]
    otherwise = _otherwise(way.steps, rest, within)
    if otherwise and not changes:
        return otherwise, False
    is_long = max(map(len, in_full)) > LONGEST and not _JOINING.isdisjoint((*less, *more))
    if not changes or is_long or set(less) & set(more) or max(len(less), len(more)) > (1 if rest and back is None else _FEW):
        is_whole = sorted(in_full[0]) != sorted(in_full[1])  # in another order it is the order
        if not is_whole and _order_that_counts(in_full[0]) == _order_that_counts(in_full[1]):
            return "", False  # numbers may be joined, turned and hidden in any order
        said = in_full if one == other else (one, other)
        if said[0] == said[1] or (one == other and max(map(len, said)) > MOST_NAMES):
            return "", False  # which tensors these are would be the cause
        texts = [names_text(names, MOST_NAMES) for names in said]
        both = f"{texts[0]} in a{at_a}, {f'{texts[1]} in b{at_b}' if rest else 'and not in b'}"
        return f"between this and what both sides have: {both}" if is_whole else both, is_whole
    if otherwise and {*less, *more} <= {"mul", "add"}:
        return otherwise, False  # by factors and addends that are parameters
    first = f"{otherwise}; " * bool(otherwise)
    if less and more:
        are_products = all("sum" in names or not _PRODUCTS.isdisjoint(names) for names in (less, more))
        rest_a, rest_b = ([name for name in names if name not in _PRODUCTS | {"sum"}] for names in (less, more))
        if are_products and rest_a and rest_b:
            less, more = rest_a, rest_b
        if {*less, *more} <= _PRODUCTS | _SUMS | _ONES and not _SUMS.isdisjoint((*less, *more)):
            return (
                f"{list_text(less)} in a{at_a}, {list_text(more)} in b{at_b}",
                True,
            )  # a product with ones below the diagonal is the same
        same = ": the same, of other tensors or over other axes" if are_products and {*less, *more} <= _PRODUCTS | {"sum"} else ""
        return f"{first}{list_text(less)} in a{at_a}, {list_text(more)} in b{at_b}{same}", False
    alone = f"{list_text(less)} in a{at_a}, and not in b" if less else f"{list_text(more)} in b{at_b}, and not in a"
    return first + alone, False


def _for_a_constant(scene: Scene, way: Way) -> str:
    """Return in words which tensor ``b`` goes on with, and ``a`` with one that is made of none, as a first state; else ``""``."""
    if scene.tensors is None or any(step.given and not step.is_constant for step in way.steps):
        return ""
    given = next((each.name for each in scene.sources if scene.equal(each.b, scene.tensors[1], 1.0)), "")
    return f"it is {operations_text(way.steps)} in a{line_text(way.steps[-1])}, and {given} in b" if given else ""


_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "mv", "dot", "mul"})
"""Operations that, with sums, may be one product of two tensors, summed over an axis."""

_SUMS, _ONES = frozenset({"cumsum"}), frozenset({"sum", "ones", "new_ones"})
"""Running sums, which one side may make by a product, as with ones."""

_LAYING = frozenset({"stack", "cat", "transpose", "permute", "clone", "contiguous"})
"""Operations that only lay numbers out, in whatever order they are done."""

_HIDING, _MOVING = "masked_fill -inf", frozenset({"add", "sub", "rsub", "mul", "div"})
"""What hides scores, and the operations in front of which that may be done, or behind them."""


def _order_that_counts(names: Sequence[str]) -> list[str]:
    """Return the names of operations without those that only lay numbers out; what hides scores is as far behind as it may be."""
    made: list[str] = []
    for name in names:
        if name in _LAYING:
            continue
        if made and made[-1] == _HIDING and name.partition(" ")[0] in _MOVING:
            made.insert(-1, name)
        else:
            made.append(name)
    return made


_JOINING = _PRODUCTS | {"sum", "stack", "cat"}
"""Operations that one side may have and the other lack where both compute the same, in long code."""


def _parameters(side: Side, steps: Sequence[Step], within: float) -> str:
    """Return the names of the parameters of the model that operations are given; ``""`` for none."""
    given = [each for step in steps for each in step.given]
    sizes = {each.count for each in given}
    held = () if side.model is None else side.model.named_parameters()
    prints = ((name, Fingerprint.of(readable(tensor.detach()))) for name, tensor in held if tensor.numel() in sizes)
    return names_text([name for name, own in prints if any(own.is_like(each, within) for each in given)])


def _operands(one: Way, other: Way, within: float) -> tuple[str, str] | None:
    """Return in words on which tensors the same operations are done, of each side; None where that is not seen."""
    in_turn = [way.given for way in (one, other)]
    given = [sorted(each, key=lambda held: (held.count, held.magnitude, held.total)) for each in in_turn]
    if len(given[0]) == len(given[1]) and all(x.is_like(y, within) for x, y in zip(*given, strict=True)):
        is_in_turn = all(x.is_like(y, within) for x, y in zip(*in_turn, strict=True))
        return "some tensors", f"the same with {'an argument, or axes, otherwise' if is_in_turn else 'their roles exchanged'}"
    shapes = [shape_text(way.steps[0].given[0].shape) for way in (one, other)]
    return (shapes[0], shapes[1]) if shapes[0] != shapes[1] else None


def _is_factor(ratio: float, within: float) -> bool:
    """Return whether *ratio* is a whole number or one part of it, as where something is summed, or taken twice."""
    whole = max(abs(ratio), 1 / abs(ratio))
    return round(whole) > 1 and abs(whole - round(whole)) <= within * whole


def _around(
    first: Step,
    here: Sequence[Step],
    there: Sequence[Step],
    lacking: Sequence[Step],
    in_b: Mapping[Fingerprint, Source],
    within: float,
) -> list[_Replaced]:
    """Return what of ``a`` may stand in the place of *first*, the first operation of ``b`` that ``a`` has not, or before it.

    It leaves out several operations of ``a`` where ``b`` does half of them somewhere else: what differs would be another thing.
    """
    own = {operation_text(step) for step in there if step is not first}
    known, found = _before(first, in_b), list[_Replaced]()
    ways = [way for step in lacking if (way := way_to(step, here, known, within)) is not None]
    ways.sort(key=lambda way: (len(way.steps), not _are_given_alike(way.steps[0], first, within)))
    sizes = {source: each.count for each, source in in_b.items()}
    said = [{*operation_names(way.steps)} for way in ways]
    for way in (way for way, names in zip(ways, said, strict=True) if len(names) <= _FEW or 2 * len(names & own) < len(names)):
        found.append(([((first.number, 0), way.needed, way.made)], _words(way, first), False))
        behind = [at for at in way.needed if at[1] >= 0 and sizes.get(at) == way.steps[-1].made[0].count]
        words = f"{operations_text(way.steps)} in a{line_text(way.steps[-1])}, and not in b"
        found += [([(at, way.needed, way.made)], words, False) for at in behind]
    for place, each in enumerate(first.given):
        if each.count == first.made[0].count:
            at = (first.number, -1 - place)
            words = f"{operations_text([first])} in b{line_text(first)}, and not in a"
            found.append(([((first.number, 0), {at}, functools.partial(_itself, at=at))], words, False))
    return found[:_MOST_TRIED]


def _lacking_behind(
    here: Sequence[Step], there: Sequence[Step], lacking: Sequence[Step], in_b: Mapping[Fingerprint, Source], within: float
) -> list[_Replaced]:
    """Return what ``a`` makes of one tensor of ``b``, of as many elements, which ``b`` goes on with as it is: to put in its place.

    What else it is made of is smaller, as the parameters of a normalisation.
    """
    sizes, found = {source: each.count for each, source in in_b.items()}, list[tuple[Way, Source]]()
    for step in lacking:
        way = None if step.is_layout or step.is_constant or step.made[0].count < 2 else way_to(step, here, in_b, within)
        mains = [] if way is None else [at for at in way.needed if sizes.get(at) == step.made[0].count and at[0] >= 0]
        if len(mains) != 1:
            continue
        known = {each: at for each, at in in_b.items() if at <= mains[0] or at[0] < mains[0][0]}
        way = way_to(step, here, known, within)
        if way is not None and mains[0] in way.needed and len(operation_names(_of_main(way, mains[0]))) <= _FEW_BEHIND:
            found.append((way, mains[0]))
    found.sort(key=lambda each: len(each[0].steps))
    text = "{} in a{}, and not in b"
    return [
        ([(at, way.needed, way.made)], text.format(operations_text(_of_main(way, at)), line_text(way.steps[-1])), False)
        for way, at in found[:_MOST_FIRST]
    ]


def _of_main(way: Way, main: Source) -> list[Step]:
    """Return the operations of *way* that are given the tensor *main* of ``b``, or what was made of it."""
    found, made = list[Step](), set[int]()
    for step, operands in zip(way.steps, way.operands, strict=True):
        if any(source == main if is_of_b else source[0] in made for is_of_b, source in operands):
            found.append(step)
            made.add(step.number)
    return found


def _of_one_number(here: Sequence[Step], lacking: Sequence[Step], own: Sequence[Step], within: float) -> list[_Replaced]:
    """Return a number that ``b`` makes, and that is so many times one of ``a``, or one part of it, as an axis has entries, divided.

    A sum over the axis in one side so is a mean in the other.
    """
    lengths = {length for step in here for each in step.given for length in each.shape if length > 1}
    found: list[_Replaced] = []
    for other, one in itertools.product(own, lacking):
        x, y = one.made[0], other.made[0] if other.made else None
        if y is None or (x.count, y.count) != (1, 1) or not x.total or not y.total or not _is_factor(y.total / x.total, within):
            continue
        ratio = y.total / x.total
        times, (less, more) = round(max(abs(ratio), 1 / abs(ratio))), "ba" if abs(ratio) < 1 else "ab"
        if ratio < 0 or times not in lengths:
            continue
        words = f"what {other.name} makes in b{line_text(other)} is {ratio:.6g} times what {one.name} makes in a{line_text(one)}"
        words += f": as a mean over {times} entries in {less} is of their sum in {more}"
        at = other.number, 0
        found.append(([(at, {at}, functools.partial(_divided, at=at, by=ratio))], words, False))
    return found[::-1][:_MOST_FIRST]


def _divided(held: Mapping[Source, Tensor], at: Source, by: float) -> list[Tensor]:
    return [held[at] / by]


_FEW_BEHIND = 4
"""So many operations of ``a`` may be lacking behind one tensor of ``b``: a normalisation is a root, a limit and a quotient."""


def _are_given_alike(one: Step, other: Step, within: float, *, is_first: bool = False) -> bool:
    """Return whether two operations are given the same tensors; with *is_first* the same first one, where one is given more."""
    if is_first and len(one.given) != len(other.given):
        return bool(one.given and other.given) and one.given[0].is_like(other.given[0], within)
    return len(one.given) == len(other.given) and all(x.is_like(y, within) for x, y in zip(one.given, other.given, strict=True))


def _otherwise(steps: Sequence[Step], others: Sequence[Step], within: float) -> str:
    """Return in words which operations of both sides are done otherwise on the same tensors; ``""`` for none."""
    pairs = ((x, y) for x in steps for y in others if x.name == y.name and _are_given_alike(x, y, within, is_first=True))
    found = {
        LINE.sub("", said): said for x, y in pairs if (said := arguments_text(x, y)) and not x.made[0].is_like(y.made[0], within)
    }
    return "; ".join(found.values())


def _itself(held: Mapping[Source, Tensor], at: Source) -> list[Tensor]:
    return [held[at]]


def _before(step: Step, held: Mapping[Fingerprint, Source]) -> dict[Fingerprint, Source]:
    """Return what is there when *step* begins."""
    return {each: (number, place) for each, (number, place) in held.items() if number < step.number + (place < 0)}


def _words(way: Way, step: Step) -> str:
    """Return what ``a`` and ``b`` compute, in words: of one operation with other arguments what differs."""
    (last, *others), where = way.steps[::-1], (line_text(way.steps[-1]), line_text(step))
    if others or ALIKE.get(last.name, last.name) != ALIKE.get(step.name, step.name):
        return f"{operations_text(way.steps)} in a{where[0]}, {operations_text([step])} in b{where[1]}"
    return arguments_text(last, step) or f"{step.name}{_OF_OTHERS}a{where[0]} and in b{where[1]}"


_OF_OTHERS = " of other tensors in "
