"""Find the operation, in the code of a module, by which the sides part, and let that of ``a`` stand in its place in ``b``."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sonde.diagnosis.compare.changes import putting
from sonde.diagnosis.compare.relations import as_laid_out, relation_of
from sonde.diagnosis.compare.scene import Scene
from sonde.diagnosis.compare.sides import Kept, Key, Side
from sonde.diagnosis.compare.suspects import CannotChangeError, Change, Suspect, Undo
from sonde.diagnosis.compare.weights import EXACT, order_of_rows, words_of_order
from sonde.diagnosis.distance import as_numbers, readable
from sonde.diagnosis.nonfinite.source_lines import calling_frames, line_of, lines_of
from sonde.engine import OperatorCall, OperatorMode, remap
from sonde.words import names_text, shape_text

_MOST_STEPS, _LONGEST, _MOST_TRIED, _MOST_NAMES, _FEW = 2000, 12, 16, 6, 2
"""Operations of one call that are looked at; of ``a`` that stand in the place of one of ``b``; how many are tried; names; and what
of a list one side may lack, so that this is told as the cause."""

_ADVICE = "compute the same on both sides"

_Source = tuple[int, int]
"""Where a tensor comes from: the number of an operation, and which tensor it made; of one that it was given, counted from -1."""


@dataclass(frozen=True)
class _Print:
    """Numbers that tell tensors apart, in any order of axes: how many elements, and finite ones, and their sums. And the shape.

    Of tensors of one shape, up to the order of axes, so do the sums along each axis, weighed by the position: entries in reverse,
    shifted, or dealt to axes otherwise are others.
    """

    shape: tuple[int, ...]
    count: int
    finite: int
    total: float
    magnitude: float
    square: float
    placed: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, tensor: Tensor) -> _Print:
        shape, whole = tuple(tensor.shape), as_numbers(tensor)
        finite = whole.isfinite()
        numbers = whole[finite]
        sums = float(numbers.sum()), float(numbers.abs().sum()), float(numbers.square().sum())
        long, filled = [axis for axis, length in enumerate(shape) if length > 1], whole.where(finite, 0.0)
        filled = filled + filled.abs() / 2  # behind a normalisation the sums of all positions are 0
        placed = [
            (shape[axis], float(filled.movedim(axis, -1).reshape(-1, shape[axis]).sum(0) @ _weights(shape[axis]))) for axis in long
        ]
        return cls(shape, whole.numel(), numbers.numel(), *sums, tuple(placed))

    def is_like(self, other: _Print, within: float) -> bool:
        """Return whether two tensors may be equal, up to a relative difference of *within*."""
        return self.has_sums_of(other, within) and self.is_placed_as(other, within) is not False

    def has_sums_of(self, other: _Print, within: float) -> bool:
        """Return whether two tensors may hold the same numbers in any order."""
        return (
            (self.count, self.finite) == (other.count, other.finite)
            and abs(self.total - other.total) <= within * (self.magnitude + other.magnitude)
            and abs(self.magnitude - other.magnitude) <= within * (self.magnitude + other.magnitude)
            and abs(self.square - other.square) <= 2 * within * (self.square + other.square)
        )

    def is_placed_as(self, other: _Print, within: float) -> bool | None:
        """Return whether two tensors of the same lengths have the same numbers at the same places; None of other lengths."""
        own, beside = sorted(self.placed), sorted(other.placed)
        if [size for size, _ in own] != [size for size, _ in beside]:
            return None
        most = within * (self.magnitude + other.magnitude)
        return all(abs(x - y) <= most for (_, x), (_, y) in zip(own, beside, strict=True))

    def is_turned_from(self, other: _Print, within: float) -> bool:
        """Return whether the axes of two tensors of the same numbers, of the same lengths in order, are in another order."""
        most = within * (self.magnitude + other.magnitude)
        is_same = [size for size, _ in self.placed] == [size for size, _ in other.placed]
        return is_same and any(abs(x - y) > most for (_, x), (_, y) in zip(self.placed, other.placed, strict=True))


@functools.cache
def _weights(count: int) -> Tensor:
    """Return numbers from -1 to 1, one for each position of an axis, of no regular order."""
    return torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu") * 2 - 1


@dataclass(frozen=True)
class _Step:
    """One operation: its number in the run, the tensors that it was given with their sources, and those that it made."""

    number: int
    call: OperatorCall
    given: list[_Print]
    sources: list[_Source]
    made: list[_Print]
    line: str

    @functools.cached_property
    def name(self) -> str:
        return _name_of(self.call)

    @property
    def role(self) -> tuple[str, str, int]:
        """What it has in common with the same operation of the code in another round of a loop."""
        return self.name, self.line, len(self.given)

    @property
    def is_layout(self) -> bool:
        """Whether it only lays the same numbers out in another way."""
        return self.call.is_view or self.name in ("clone", "unsafe_view")

    @property
    def is_constant(self) -> bool:
        """Whether it makes a tensor of a number in the code."""
        return self.name == "lift_fresh" and all(each.count == 1 for each in self.given)

    @property
    def plain(self) -> dict[str, Any]:
        """The arguments that are no tensors, by name, with the defaults."""
        given = {name: held for name, held in (self.call.defaults | self.call.given).items() if not _tensors(held)}
        return {name: tuple(held) if isinstance(held, list) else held for name, held in given.items()}


def _name_of(call: OperatorCall) -> str:
    held = str(getattr(call.function, "name", lambda: call.function)())
    return held.rpartition("::")[2].partition(".")[0].strip("_").removeprefix("native_").removesuffix("_with_indices")


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        found.append(OperatorMode.with_memory(tensor))
        return tensor

    remap(value, take)
    return found


def _is_detach(call: OperatorCall) -> bool:
    """Return whether autograd or a factory may have called it, which they do where somebody holds the tensor: it is no step."""
    return call.function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class _InParts(OperatorMode):
    """While entered, a recurrent layer and attention of torch's own run as the operations that they consist of."""

    def __init__(self) -> None:
        super().__init__()
        self._before: list[tuple[Any, AbstractContextManager[None]]] = []
        self._fused: Any = torch.backends.mkldnn

    def __enter__(self) -> Self:
        attention = sdpa_kernel(SDPBackend.MATH)
        self._before.append((self._fused.enabled, attention))
        self._fused.enabled = False
        attention.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._fused.enabled, attention = self._before.pop()
        attention.__exit__(*raised)


class _Recorder(_InParts):
    """Keeps the operations that the code of some modules runs between two events."""

    def __init__(self, own: Collection[str], call: Key, until: Key, wanted: Collection[_Source] = ()) -> None:
        super().__init__()
        self.steps: list[_Step] = []
        self.tensors: dict[_Source, Tensor] = {}
        self._wanted = {number: [place for each, place in wanted if each == number] for number, _ in wanted}
        self._own, self._call, self._until = own, call, until
        self._running: list[str] = []
        self._is_on = False
        self._number = -1
        self._known: dict[int, tuple[Tensor, _Source]] = {}

    def event(self, kept: Kept) -> None:
        """Take note of a module that begins, or ends."""
        path = kept.site.path
        if kept.site.port == "input":
            self._running.append(path)
        elif path in self._running:
            del self._running[len(self._running) - 1 - self._running[::-1].index(path) :]
        self._is_on = (self._is_on or kept.key == self._call) and kept.key != self._until

    def operator(self, call: OperatorCall) -> Any:
        if _is_detach(call):
            result = call.run()
            known = [self._known[id(held)][1] for held in _tensors(call.args) if id(held) in self._known]
            self._known |= {id(held): (held, source) for held, source in zip(_tensors(result), known, strict=False)}
            return result
        self._number += 1
        if not self._is_on or len(self.steps) >= _MOST_STEPS or (self._running and self._running[-1] not in self._own):
            return call.run()
        given, number = _tensors((call.args, call.kwargs)), self._number
        sources = [self._known.get(id(held), (held, (number, -1 - place)))[1] for place, held in enumerate(given)]
        prints = [_Print.of(held) for held in given]
        line = line_of(lines_of(calling_frames()))
        keep = self._wanted.get(number, [])
        self.tensors |= {(number, place): as_numbers(given[-1 - place]).clone() for place in keep if place < 0}
        result = call.run()
        made = _tensors(result)
        self.tensors |= {(number, place): as_numbers(made[place]).clone() for place in keep if place >= 0}
        self._known |= {id(held): (held, (number, place)) for place, held in enumerate(made)}
        self.steps.append(
            _Step(number, call, prints, sources, [_Print.of(held) for held in made], "" if line is None else line.name)
        )
        return result


_Make = Callable[[Mapping[_Source, Tensor]], list[Tensor]]
_Put = tuple[_Source, Set[_Source], _Make]
"""A tensor of ``b``, what of ``b`` is needed for another in its place, and the function that makes that."""
_Replaced = tuple[list[_Put], str, bool]
"""What is put in the place of tensors of ``b``, words, and if it is all code in front of the place."""


@dataclass(frozen=True)
class _Way:
    """Operations of ``a`` whose first operands ``b`` has.

    Attributes:
        steps: in order.
        operands: of each step where its operands are: in ``b``, or else among what steps before have made.
    """

    steps: list[_Step]
    operands: list[list[tuple[bool, _Source]]]

    @property
    def needed(self) -> set[_Source]:
        """What ``b`` has to give."""
        return {source for each in self.operands for is_of_b, source in each if is_of_b}

    @property
    def given(self) -> list[_Print]:
        """What both sides have, as often as an operation is given it."""
        pairs = [pair for step, each in zip(self.steps, self.operands, strict=True) for pair in zip(step.given, each, strict=False)]
        return [held for held, (is_of_b, _) in pairs if is_of_b]

    def made(self, held: Mapping[_Source, Tensor]) -> list[Tensor]:
        """Return what the operations make of the tensors *held* of ``b``."""
        results: dict[_Source, Tensor] = {}
        made: list[Tensor] = []
        for step, operands in zip(self.steps, self.operands, strict=True):
            if step.is_constant:
                results[step.number, 0] = step.call.args[0].clone()
                continue
            given = [held[source].clone() if is_of_b else results[source] for is_of_b, source in operands]
            if any(_turns(tensor.shape, each.shape) is None for tensor, each in zip(given, step.given, strict=True)):
                raise CannotChangeError(f"{step.name} is given tensors in another layout")  # a kernel need not look
            left = iter([_turned(tensor, each.shape) for tensor, each in zip(given, step.given, strict=True)])
            args, kwargs = remap((step.call.args, step.call.kwargs), functools.partial(_next, left))
            made = _tensors(step.call.function(*args, **kwargs))
            results |= {(step.number, place): tensor for place, tensor in enumerate(made)}
        return made


class _Replacing(_InParts):
    """While entered, tensors that operations make are others: what is *put*, of tensors before it, itself, and *held*."""

    def __init__(self, put: Sequence[_Put], held: Mapping[_Source, Tensor]) -> None:
        super().__init__()
        self._put = {number: (place, needed, make) for (number, place), needed, make in put}
        self._needed = {source for _, needed, _ in put for source in needed}
        self._held = dict(held)
        self._now = -1

    def operator(self, call: OperatorCall) -> Any:
        if _is_detach(call):
            return call.run()
        self._now += 1
        if self._now > max(self._put):
            return call.run()
        self._keep((-1 - at, tensor) for at, tensor in enumerate(_tensors((call.args, call.kwargs))))
        result = call.run()
        made = _tensors(result)
        self._keep(enumerate(made))
        place, needed, make = self._put.get(self._now, (0, set[_Source](), None))
        if make is None or not needed <= self._held.keys():
            return result
        others = make(self._held)
        pairs = list(zip(made, others, strict=True)) if len(made) == len(others) else [(made[place], others[0])]
        if call.written:
            return pairs[0][0].copy_(pairs[0][1].reshape(pairs[0][0].shape))
        instead = {id(one): _shaped(other, one) for one, other in pairs}
        return remap(result, lambda tensor: instead.get(id(tensor), tensor))

    def _keep(self, tensors: Iterable[tuple[int, Tensor]]) -> None:
        self._held |= {(self._now, at): tensor.detach().clone() for at, tensor in tensors if (self._now, at) in self._needed}


def _next(left: Iterator[Tensor], _: Tensor) -> Tensor:
    return next(left)


def _shaped(tensor: Tensor, like: Tensor) -> Tensor:
    made = tensor.to(like.dtype)
    if _turns(made.shape, like.shape) is not None:
        return _turned(made, like.shape)
    return made.reshape(like.shape if like.numel() == tensor.numel() else tensor.shape)


def _turned(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Return *tensor* in *shape*, which may have its axes in another order, if their lengths tell it."""
    return tensor.reshape(_long(tensor.shape)).permute(_turns(tensor.shape, shape) or ()).reshape(tuple(shape))


def _turns(given: Sequence[int], wanted: Sequence[int]) -> list[int] | None:
    """Return the order of axes of *given*, but for those of length 1, that *wanted* has; None where lengths do not tell it."""
    here, there = _long(given), _long(wanted)
    if here == there:
        return list(range(len(here)))
    is_told = sorted(here) == sorted(there) and len(set(here)) == len(here)
    return [here.index(length) for length in there] if is_told else None


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
        _Code(scene.a, own, scene.frame.owner, call, scene.place.key),
        _Code(scene.b, beside, scene.owner_b, call, scene.place.other_key),
    )
    here, there = ([] if (run := code.recorded()) is None else run.steps for code in codes)
    in_a = {each: (0, 0) for step in here for each in (*step.given, *step.made)}
    in_b: dict[_Print, _Source] = {}
    for step in there:
        prints = [*((-1 - place, each) for place, each in enumerate(step.given)), *enumerate(step.made)]
        for place, each in prints:
            in_b.setdefault(each, (step.number, place))
    own_tensors = list(scene.b.tensors_of(scene.owner_b).values())
    device = next((tensor.device for tensor in scene.b.model.parameters()), torch.device("cpu"))
    made = [source.b.to(device, _type_of(scene)) for source in scene.sources]  # outputs that the code of b may lay aside
    tensors = [*own_tensors, *made]
    held = {(-1, -1 - place): tensor.detach() for place, tensor in enumerate(tensors)}
    idle = {each: at for at, tensor in held.items() if not tensor.is_meta and (each := _Print.of(tensor)) not in in_b}
    ends, told = [_Print.of(tensor) for tensor in scene.tensors], set[str]()
    one, other = (float(tensor.flatten()[0]) if tensor.numel() == 1 else 0.0 for tensor in scene.tensors)
    times = f": b is {other / one:.6g} times a" if one and other and _is_factor(other / one, loose) else ""
    for within in (max(scene.tolerance, 1e-6), loose):  # a small addend is hardly seen
        last, behind = (
            next((step for step in steps[::-1] if step.made and step.made[0].is_like(end, within)), None)
            for steps, end in zip((here, there), ends, strict=True)
        )
        certain, vague = _instead(scene, codes, here, there, in_a, in_b, idle, last, behind, within)
        replacing = [
            [
                (Undo(b=Change(contexts=(functools.partial(_Replacing, put, held),))), words, is_whole)
                for put, words, is_whole in each
            ]
            for each in (certain, vague)
        ]
        picks = [
            (undo, words, False) for undo, words in (*_of_counts(here, there), *_of_numbers(here, there), *_of_indices(here, there))
        ]
        first, others = [each for each in picks if _SOME not in each[1]], [each for each in picks if _SOME in each[1]]
        others += [(undo, words, False) for undo, words in _of_blocks(scene, there)]
        for undo, words, is_whole in (*first, *replacing[0], *others, *replacing[1]):
            if words not in told:
                told.add(words)
                suspect = scene.suspect("operation", words.rstrip() + times * (not is_whole), undo, _ADVICE, instead="operation")
                yield replace(suspect, is_guess=True, is_whole=is_whole)
    if last is not None and behind is None:  # b goes on with a tensor that both have
        kind = torch.float32 if any(each.call.written for each in here) else torch.float64
        sources = {(-1, place): source.b.to(kind) for place, source in enumerate(scene.sources)}
        sources |= {at: tensor.to("cpu", kind) for at, tensor in held.items() if tensor.is_floating_point() and not tensor.is_meta}
        way = _way(last, here, {_Print.of(tensor): at for at, tensor in sources.items()}, loose)
        if way is not None:
            undo = Undo(made=lambda _: as_numbers(way.made(sources)[0]))
            yield scene.suspect("operation", f"{_names(way.steps)} in a{_at(last)}, and not in b", undo, _ADVICE)


def _type_of(scene: Scene) -> torch.dtype:
    """Return the type of the tensor of ``b`` at the place."""
    main = None if scene.kept[1] is None else scene.kept[1].main
    return torch.float32 if main is None else main[1].dtype


def _instead(
    scene: Scene,
    codes: tuple[_Code, _Code],
    here: Sequence[_Step],
    there: Sequence[_Step],
    in_a: Mapping[_Print, _Source],
    in_b: Mapping[_Print, _Source],
    idle: Mapping[_Print, _Source],
    last: _Step | None,
    behind: _Step | None,
    within: float,
) -> tuple[list[_Replaced], list[_Replaced]]:
    """Return what of ``a`` may stand in the place of operations of ``b``, and what of that may be no cause.

    The last of the latter is what makes the result of *last* there.
    """
    lacking = [step for step in here if step.made and _found(step.made[0], in_b, within) is None]
    apart = [step for step in there if step.made and _found(step.made[0], in_a, within) is None]
    back = _way(behind, there, in_a, within, _MOST_STEPS) if behind is not None and behind in apart else None
    own = (
        apart if back is None else [step for step in back.steps if step in apart]
    )  # what comes out alike in the end does not count
    first = [step for step in own if all(_found(each, in_a, within) for each in step.given)][:_MOST_FIRST]
    in_b = {**in_b, **idle}
    around = [_around(step, here, there, lacking, in_b, within) for step in first]
    often = [_in_all_rounds(way, step, there, in_b) for way, step in zip(around[:_FEW], first, strict=False)]
    found = [*(each for way in often for each in way), *_at_all(around)]
    vague = [each for each in found if _OF_OTHERS in each[1] or "view in a" in each[1]]
    foreign = [(step.number, -1 - at) for step in here for at, each in enumerate(step.given) if _found(each, in_b, within) is None]
    of_a = [*((step.number, 0) for step in lacking), *foreign, *(source for step in lacking for source in step.sources)]
    of_b = [*((step.number, 0) for step in own if step.made), *(source for step in first for source in step.sources)]
    related = _related(codes, (here, there), (of_a, of_b), within)
    told = [each for each in found if each not in vague]
    if last is None or behind is None:
        return [*told, *related], vague
    known = {each: at for each, at in in_b.items() if at[0] <= behind.number}
    known = known if behind not in apart else _before(behind, in_b)
    way = _way(last, here, known, within, _MOST_STEPS)
    if way is not None:
        rest = (
            [step for step in apart if not step.is_layout]
            if behind in apart
            else [behind] * (behind.call.is_view and _picks(behind))
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
        for words, replaced in {_LINE.sub("", each[1]): each for each in each[::-1]}.items():
            same.setdefault(words, []).append(replaced)
    found = [({put[0]: put for puts, _, _ in every for put in puts}, every[0][1]) for every in same.values()]
    return [([*puts.values()], f"{words}, at {len(puts)} places", False) for puts, words in found if len(puts) > 1][:_MOST_TRIED]


def _related(
    codes: tuple[_Code, _Code],
    steps: tuple[Sequence[_Step], Sequence[_Step]],
    wanted: tuple[Sequence[_Source], Sequence[_Source]],
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
            what = f"what {one.name} {'makes' if place >= 0 else 'is given'} in a{_at(one)}"
            words = f"what {other.name} makes in b{_at(other)} is {relation.format(a=what)}"
            found.setdefault(relation, []).append(((at, frozenset(), functools.partial(_constant, tensor=laid)), words))
    replaced: list[_Replaced] = []
    for each in found.values():
        replaced += [([put], words, False) for put, words in each]
        every = {put[0]: put for put, _ in each}
        replaced += [([*every.values()], f"{each[0][1]}, at {len(every)} places", False)] if len(every) > 1 else []
    return replaced[:_MOST_TRIED]


def _distinct(steps: Mapping[int, _Step], sources: Sequence[_Source]) -> list[tuple[_Source, _Print]]:
    """Return those of *sources* that are known, with what they hold, each tensor once: of a size that is compared."""
    kept: dict[_Print, _Source] = {}
    for number, place in sources:
        if number in steps:
            held = steps[number].made if place >= 0 else steps[number].given
            kept.setdefault(held[place if place >= 0 else -1 - place], (number, place))
    return [(at, each) for each, at in kept.items() if _FEWEST <= each.count <= _MOST_KEPT]


_FEWEST, _MOST_KEPT, _MOST_COMPARED = 4, 1 << 20, 48
"""Elements of a tensor that is related to another, at least and at most, and how many of each side are compared."""


def _constant(held: Mapping[_Source, Tensor], tensor: Tensor) -> list[Tensor]:
    return [tensor.clone()]


def _in_all_rounds(
    found: Sequence[_Replaced], first: _Step, there: Sequence[_Step], in_b: Mapping[_Print, _Source]
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


def _latest(first: _Step, there: Sequence[_Step], in_b: Mapping[_Print, _Source]) -> dict[_Source, _Source]:
    """Return the last one in front of *first* of the tensors that are equal to one, by where the first of them is."""
    found = dict[_Source, _Source]()
    for step in there:
        made = [] if step.number >= first.number else [(each, (step.number, place)) for place, each in enumerate(step.made)]
        made += [(each, (step.number, -1 - place)) for place, each in enumerate(step.given) if step is first]
        found |= {in_b[each]: source for each, source in made if each in in_b}
    return {source: last for source, last in found.items() if source != last}


_MOST_ROUNDS = 100


def _is_again(one: _Step, other: _Step) -> bool:
    """Return whether two operations may be one of a loop in two of its rounds."""
    return bool(one.line) and one.role == other.role


def _is_given_again(one: _Step, other: _Step, last: Mapping[tuple[str, str, int], int], by_number: Mapping[int, _Step]) -> bool:
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


def _is_moved(number: int, ahead: int, steps: Mapping[int, _Step]) -> bool:
    """Return whether an operation is done again so many operations later, or there is none with that number."""
    return number not in steps or (number + ahead in steps and _is_again(steps[number], steps[number + ahead]))


def _moved(source: _Source, ahead: int, first: _Step, there: Sequence[_Step], by_number: Mapping[int, _Step]) -> _Source:
    """Return where in a later round the tensor is that has the role of *source*; *source* where it is the same in all rounds."""
    if source[0] in by_number and _is_moved(source[0], ahead, by_number):
        return source[0] + ahead, source[1]
    steps = [step for step in there if step.number <= first.number and _is_moved(step.number, ahead, by_number)]
    given = [(step.number, -1 - place) for step in steps for place, each in enumerate(step.sources) if each == source]
    return (given[-1][0] + ahead, given[-1][1]) if given else source


def _made_of(held: Mapping[_Source, Tensor], make: _Make, where: Mapping[_Source, _Source]) -> list[Tensor]:
    """Return what *make* makes of tensors that are held elsewhere."""
    return make({source: held[other] for source, other in where.items()})


_ROUNDS = "goes on with what"


def _of_rounds(
    way: _Way, back: _Way | None, here: Sequence[_Step], there: Sequence[_Step], last: _Step, behind: _Step, within: float
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
            words = f"{side} does {_listed(_told(more))}{_at(more[-1])} {len(ran)} times, {other} {fewer} times"
            return f"{words}: {other} {_ROUNDS} {side} has after {fewer} rounds"
    return ""


def _of_blocks(scene: Scene, there: Sequence[_Step]) -> Iterator[tuple[Undo, str]]:
    """Yield that the code of a recurrent layer takes the parts of its weights, one for each gate, in another order."""
    if scene.tensors is None or scene.owner_b is None or not {"sigmoid", "tanh"} <= {step.name for step in there}:
        return
    width, held = scene.tensors[1].size(-1), scene.b.tensors_of(scene.owner_b)
    for count in (3, 4):
        axes = {name: [axis for axis, size in enumerate(each.shape) if size == count * width][:1] for name, each in held.items()}
        blocks = {name: (held[name], axis[0]) for name, axis in axes.items() if axis}
        for order in itertools.islice(itertools.permutations(range(count)), 1, None) if blocks else ():
            changes = [
                putting(scene.b, scene.owner_b, name, torch.cat([each.chunk(count, axis)[part] for part in order], axis))
                for name, (each, axis) in blocks.items()
            ]
            which = f"{names_text(blocks)}, one for each gate, in another order: {', '.join(map(str, order))}"
            said = f"b takes the {count} parts of {which}"
            yield Undo(b=sum(changes, Change())), said


def _is_round(one: _Step, other: _Step, steps: Sequence[_Step]) -> bool:
    """Return whether two operations, and those in front of them, are those of a loop in two of its rounds."""
    ends = [next(at for at, each in enumerate(steps, 1) if each is step) for step in (one, other)]
    return all(itertools.starmap(_is_again, zip(*(steps[max(end - 4, 0) : end][::-1] for end in ends), strict=False)))


_SORTED, _COUNTED = ("sort", "msort"), ("topk", "kthvalue")
_CHOSEN = ("argmax", "argmin", "max", "min")


def _counts(steps: Sequence[_Step]) -> dict[int, _Step]:
    """Return how many of the largest entries operations pick: by ``topk``, or as a part of what was sorted, with the last one."""
    ordered, found = {step.number for step in steps if step.name in _SORTED}, dict[int, _Step]()
    for step in steps:
        count = _picked(step.call) if step.name in _COUNTED or (step.sources and step.sources[0][0] in ordered) else None
        count = 1 if step.name in _CHOSEN and step.plain.get("dim") is not None else count
        found |= {} if count is None else {count: step}
    return found


def _picked(call: OperatorCall) -> int | None:
    """Return how many entries a call picks of an axis, or which one; None for a call that picks none."""
    name, given = _name_of(call), call.defaults | call.given
    if name in _COUNTED:
        return int(given["k"])
    if name == "select":
        index = int(given["index"])
        return index + 1 if index >= 0 else -index
    if name == "slice" and given.get("step", 1) == 1:
        start, end = given.get("start") or 0, given.get("end")
        length = given["self"].size(given.get("dim", 0))
        whole = end is None or end >= length
        if start < 0 and whole:
            return -int(start)
        return int(end) if start == 0 and not whole and end is not None else None
    return None


class _Counting(OperatorMode):
    """While entered, code picks *wanted* entries where it would pick *count*, and divides by as many where it divides by these."""

    def __init__(self, count: int, wanted: int, *, divides: bool) -> None:
        super().__init__()
        self._count, self._wanted, self._divides = count, wanted, divides
        self._ordered: dict[int, Tensor] = {}

    def operator(self, call: OperatorCall) -> Any:
        name, args = _name_of(call), call.args
        is_of_ordered = bool(args) and id(args[0]) in self._ordered
        if (name in _COUNTED or (is_of_ordered and name in ("slice", "select"))) and _picked(call) == self._count:
            args = tuple(self._changed(name, place, each) for place, each in enumerate(args))
        elif self._divides and name in ("div", "mul") and len(args) > 1:
            is_number = not isinstance(args[1], Tensor) or args[1].dim() == 0
            args = (args[0], self._wanted, *args[2:]) if is_number and args[1] == self._count else args
        result = call.function(*args, **call.kwargs)
        if name in _SORTED:
            self._ordered |= {id(each): each for each in _tensors(result)}
        return result

    def _changed(self, name: str, place: int, value: Any) -> Any:
        is_it = place == {"slice": 3, "select": 2}.get(name, 1) or (name == "slice" and place == 2)
        if not is_it or not isinstance(value, int):
            return value
        off = self._count - self._wanted
        return value - off if value > 0 or (name == "select" and value == self._count - 1) else value + off * (value < 0)


def _of_counts(here: Sequence[_Step], there: Sequence[_Step]) -> Iterator[tuple[Undo, str]]:
    """Yield that one side picks more of the largest entries than the other, undone on each side."""
    counts = _counts(here), _counts(there)
    pairs = [(x, y) for x in counts[0] for y in counts[1] if x != y][:_FEW_COUNTS]
    for (x, y), divides in itertools.product(pairs, (False, True)):
        step, beside = counts[0][x], counts[1][y]
        words = _of_arguments(step, beside) if step.name == beside.name and step.name in _COUNTED and not divides else ""
        ordered = f"the {x} first are taken of what is ordered by size in a{_at(step)}, the {y} first in b{_at(beside)}"
        words = words or ordered
        words += ", and it is divided by as many" * divides
        yield Undo(b=Change(contexts=(functools.partial(_Counting, y, x, divides=divides),))), words
        yield Undo(a=Change(contexts=(functools.partial(_Counting, x, y, divides=divides),))), f"{words} "


class _Numbered(OperatorMode):
    """While entered, each call of one operation with some number has another in its place."""

    def __init__(self, operation: str, argument: str, count: float, wanted: float) -> None:
        super().__init__()
        self._operation, self._argument, self._count, self._wanted = operation, argument, count, wanted

    def operator(self, call: OperatorCall) -> Any:
        held = (call.defaults | call.given).get(self._argument)
        if _name_of(call) != self._operation or held != self._count:
            return call.run()
        at, args = call.names.index(self._argument), list(call.args)
        args[at : at + 1] = [self._wanted] * (at < len(args))
        return call.function(*args, **call.kwargs | ({} if at < len(args) else {self._argument: self._wanted}))


def _of_numbers(here: Sequence[_Step], there: Sequence[_Step]) -> Iterator[tuple[Undo, str]]:
    """Yield that an operation has another number in each of its calls, whatever it is given, as the slope of a leaky relu."""
    for name in dict.fromkeys(step.name for step in there if any(each.name == step.name for each in here)):
        one, other = ([step for step in steps if step.name == name] for steps in (here, there))
        for argument in (each for each in other[0].plain if each not in _OPERANDS):
            held = [[step.plain.get(argument) for step in steps] for steps in (one, other)]
            values = [{each for each in given if isinstance(each, float)} for given in held]
            if all(len(each) == 1 for each in values) and values[0] != values[1]:
                (x,), (y,) = values
                words = f"{name} has {argument}={_short(x)} in a{_at(one[0])}, {argument}={_short(y)} in b{_at(other[0])}"
                yield Undo(b=Change(contexts=(functools.partial(_Numbered, name, argument, y, x),))), words


_FEW_COUNTS = 4

_INDEXING = {"index", "index_select", "gather", "embedding", "take", "index_add", "index_copy", "index_put", "index_fill"}
_INDEXING |= {"scatter", "scatter_add", "scatter_reduce", "index_reduce", "unsafe_index", "unsafe_index_put"}
"""Operations that are given whole numbers by which they find entries."""


class _Indexing(OperatorMode):
    """While entered, operations find entries by other indices in the place of equal ones of some."""

    def __init__(self, instead: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._instead = instead

    def operator(self, call: OperatorCall) -> Any:
        if _name_of(call) not in _INDEXING:
            return call.run()
        args, kwargs = remap((call.args, call.kwargs), self._replaced)
        return call.function(*args, **kwargs)

    def _replaced(self, tensor: Tensor) -> Tensor:
        if not _is_index(tensor):
            return tensor
        for own, given in self._instead:
            if _are_same(own, tensor):
                return given.to(tensor.dtype)
            if _repeats(tensor, own):
                return given.to(tensor.dtype).reshape(-1, *[1] * (tensor.dim() - 1)).expand_as(tensor)
        return tensor


def _is_index(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32) and tensor.numel() > 1


def _are_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.long(), other.long())


def _repeats(tensor: Tensor, own: Tensor) -> bool:
    """Return whether *tensor* has the entries of *own*, of one axis, along its first one, and repeats them along others."""
    is_long = own.dim() == 1 and tensor.dim() > 1 and tensor.size(0) == own.size(0)
    return is_long and torch.equal(tensor.long(), own.long().reshape(-1, *[1] * (tensor.dim() - 1)).expand_as(tensor))


def _of_indices(here: Sequence[_Step], there: Sequence[_Step]) -> Iterator[tuple[Undo, str]]:
    """Yield that entries are found by other indices in the two sides, which do not follow from what the model computes."""
    one, other = _indices(here), _indices(there)
    mine = [each for each in one if not any(_are_same(each[0].flatten(), held.flatten()) for held, _ in other)]
    theirs = [each for each in other if not any(_are_same(each[0].flatten(), held.flatten()) for held, _ in one)]
    pairs = [(x, y) for x in mine for y in theirs if x[0].numel() == y[0].numel()][:_FEW_INDICES]
    for (x, step), (y, beside) in pairs:
        laid = x.reshape(y.shape)
        turned = [laid.mT.contiguous()] if laid.dim() == 2 and laid.shape == laid.mT.shape else []
        for given, words in ((laid, ""), *((each, ", which are its own with axes exchanged") for each in turned)):
            what = _between_indices(given, y)
            said = f"{step.name} in a{_at(step)} and {beside.name} in b{_at(beside)} find entries by other indices{words}: {what}"
            yield Undo(b=Change(contexts=(functools.partial(_Indexing, [(y, given)]),))), said
    for side, held in (("b", other), ("a", one)):
        for (x, step), (y, beside) in itertools.combinations(held, 2) if len(held) <= _FEW_INDICES else ():
            if x.shape == y.shape:
                change = Change(contexts=(functools.partial(_Indexing, [(x, y), (y, x)]),))
                said = f"the indices by which {step.name}{_at(step)} and {beside.name}{_at(beside)} of {side} find entries"
                said += " have their roles exchanged in the other side, as sources and targets of edges"
                yield Undo(b=change) if side == "b" else Undo(a=change), said


_FEW_INDICES = 4


def _indices(steps: Sequence[_Step]) -> list[tuple[Tensor, _Step]]:
    """Return by which indices operations find entries, each once: those that are given, or follow from positions alone."""
    found: list[tuple[Tensor, _Step]] = []
    by_number = {step.number: step for step in steps}
    for step in steps:
        if step.name not in _INDEXING:
            continue
        for tensor, source in zip(_tensors((step.call.args, step.call.kwargs)), step.sources, strict=True):
            if not _is_index(tensor) or not _is_of_positions(source, tensor, by_number):
                continue
            first = tensor.flatten(1)[:, 0] if tensor.dim() > 1 else tensor
            own = first if _repeats(tensor, first) else tensor
            if not any(_are_same(own, held) for held, _ in found):
                found.append((own.clone(), step))
    return found


def _is_of_positions(source: _Source, tensor: Tensor, steps: Mapping[int, _Step]) -> bool:
    """Return whether a tensor is made of whole numbers alone, or of what the code makes of nothing: not of what a layer gave."""
    left, seen = [(source, tensor)], {source}
    while left:
        (number, place), held = left.pop()
        step = steps.get(number)
        if place < 0 or step is None:
            if held.is_floating_point() and held.numel() > 1:
                return False
            continue
        pairs = zip(step.sources, _tensors((step.call.args, step.call.kwargs)), strict=True)
        new = [each for each in pairs if each[0] not in seen]
        seen |= {each for each, _ in new}
        left += new
    return True


def _between_indices(a: Tensor, b: Tensor) -> str:
    """Return in words how the indices *b* follow from *a*, of its shape."""
    one, other = a.long(), b.long()
    off = other - one
    count = int((off != 0).sum())
    if bool((off == off.flatten()[0]).all()):
        return f"those of b are {int(off.flatten()[0]):+d} from those of a"
    if bool((one + other == (one + other).flatten()[0]).all()):
        return "those of b count from the other end"
    if one.dim() == 2 and one.shape == one.mT.shape and torch.equal(one.mT, other):
        return "those of b are those of a with axes 0 and 1 exchanged"
    if one.dim() == 1 and torch.equal(one.argsort(), other):
        return "those of b are the order by which that of a is undone"
    order = order_of_rows(as_numbers(one), as_numbers(other), EXACT)
    if order is not None:
        return f"those of b are those of a with {words_of_order(order, 'rows')}"
    most = off[off != 0].mode().values
    same = int((off == most).sum())
    return (
        f"{count} of {off.numel()} are {int(most):+d} from those of a" if 2 * same > count else f"{count} of {off.numel()}{_SOME}"
    )


_SOME = " are others"
"""Of indices that follow from those of the other side in no way that is known: an operation that makes them may tell more."""


_LINE = re.compile(r" \([^()]*:\d+\)")


def _of_both(scene: Scene, way: _Way, back: _Way | None, rest: Sequence[_Step], behind: _Step, within: float) -> tuple[str, bool]:
    """Return in words what operations the code of one side has that the other lacks, and whether they are too many for a cause."""
    one, other = _told(way.steps), _told(rest, with_picks=rest == [behind])
    if one == other:
        one, other = _told(way.steps, with_picks=True), _told(rest, with_picks=True)
    at_a, at_b = _at(way.steps[-1]), _at(behind)
    named = _parameters(scene.a, way.steps, within), _parameters(scene.b, rest, within)
    if one == other and (back is not None or named[0] != named[1]):
        tensors = named if all(named) and named[0] != named[1] else None
        tensors = tensors if back is None or tensors else _operands(way, back, within)
        if tensors is None:
            return "", False
        return f"{_listed(one)} of {tensors[0]} in a{at_a}, of {tensors[1]} in b{at_b}", False
    if len({*one} ^ {*other}) > len(_ALIKE):  # else a row without any entry may be what differs
        one, other = ([_ALIKE.get(name, name) for name in each] for each in (one, other))
    in_full, (one, other) = (one, other), (list(dict.fromkeys(one)), list(dict.fromkeys(other)))
    changes = [each for each in SequenceMatcher(None, one, other, autojunk=False).get_opcodes() if each[0] != "equal"]
    less, more = [name for _, i, j, _, _ in changes for name in one[i:j]], [name for *_, i, j in changes for name in other[i:j]]
    otherwise = _otherwise(way.steps, rest, within)
    if otherwise and not changes:
        return otherwise, False
    is_long = max(map(len, in_full)) > _LONGEST and not _JOINING.isdisjoint((*less, *more))
    if not changes or is_long or set(less) & set(more) or max(len(less), len(more)) > (1 if rest and back is None else _FEW):
        is_whole = sorted(in_full[0]) != sorted(in_full[1])  # in another order it is the order
        if not is_whole and [name for name in in_full[0] if name not in _LAYING] == [
            name for name in in_full[1] if name not in _LAYING
        ]:
            return "", False  # numbers may be joined and turned in any order
        said = in_full if one == other else (one, other)
        if said[0] == said[1] or (one == other and max(map(len, said)) > _MOST_NAMES):
            return "", False  # which tensors these are would be the cause
        texts = [names_text(names, _MOST_NAMES) for names in said]
        both = f"{texts[0]} in a{at_a}, {f'{texts[1]} in b{at_b}' if rest else 'and not in b'}"
        return f"between this and what both sides have: {both}" if is_whole else both, is_whole
    first = f"{otherwise}; " * bool(otherwise)
    if less and more:
        are_products = all("sum" in names or not _PRODUCTS.isdisjoint(names) for names in (less, more))
        rest_a, rest_b = ([name for name in names if name not in _PRODUCTS | {"sum"}] for names in (less, more))
        if are_products and rest_a and rest_b:
            less, more = rest_a, rest_b
        if {*less, *more} <= _PRODUCTS | _SUMS | _ONES and not _SUMS.isdisjoint((*less, *more)):
            return (
                f"{_listed(less)} in a{at_a}, {_listed(more)} in b{at_b}",
                True,
            )  # a product with ones below the diagonal is the same
        same = ": the same, of other tensors or over other axes" if are_products and {*less, *more} <= _PRODUCTS | {"sum"} else ""
        return f"{first}{_listed(less)} in a{at_a}, {_listed(more)} in b{at_b}{same}", False
    alone = f"{_listed(less)} in a{at_a}, and not in b" if less else f"{_listed(more)} in b{at_b}, and not in a"
    return first + alone, False


_ALIKE = {"safe_softmax": "softmax", "softmax": "softmax"}
"""Operations that differ only where all entries of a row are left out."""


_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "mv", "dot", "mul"})
"""Operations that, with sums, may be one product of two tensors, summed over an axis."""


_SUMS, _ONES = frozenset({"cumsum"}), frozenset({"sum", "ones", "new_ones"})
"""Running sums, which one side may make by a product, as with ones."""


_LAYING = frozenset({"stack", "cat", "transpose", "permute", "clone", "contiguous"})
"""Operations that only lay numbers out, in whatever order they are done."""


_JOINING = _PRODUCTS | {"sum", "stack", "cat"}
"""Operations that one side may have and the other lack where both compute the same, in long code."""


def _parameters(side: Side, steps: Sequence[_Step], within: float) -> str:
    """Return the names of the parameters of the model that operations are given; ``""`` for none."""
    given = [each for step in steps for each in step.given]
    sizes = {each.count for each in given}
    held = () if side.model is None else side.model.named_parameters()
    prints = ((name, _Print.of(readable(tensor.detach()))) for name, tensor in held if tensor.numel() in sizes)
    return names_text([name for name, own in prints if any(own.is_like(each, within) for each in given)])


def _operands(one: _Way, other: _Way, within: float) -> tuple[str, str] | None:
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
    first: _Step,
    here: Sequence[_Step],
    there: Sequence[_Step],
    lacking: Sequence[_Step],
    in_b: Mapping[_Print, _Source],
    within: float,
) -> list[_Replaced]:
    """Return what of ``a`` may stand in the place of *first*, the first operation of ``b`` that ``a`` has not, or before it.

    It leaves out several operations of ``a`` where ``b`` does half of them somewhere else: what differs would be another thing.
    """
    own = {_said(step) for step in there if step is not first}
    known, found = _before(first, in_b), list[_Replaced]()
    ways = [way for step in lacking if (way := _way(step, here, known, within)) is not None]
    ways.sort(key=lambda way: (len(way.steps), not _are_given_alike(way.steps[0], first, within)))
    sizes = {source: each.count for each, source in in_b.items()}
    said = [{*_told(way.steps)} for way in ways]
    for way in (way for way, names in zip(ways, said, strict=True) if len(names) <= _FEW or 2 * len(names & own) < len(names)):
        found.append(([((first.number, 0), way.needed, way.made)], _words(way, first), False))
        behind = [at for at in way.needed if at[1] >= 0 and sizes.get(at) == way.steps[-1].made[0].count]
        words = f"{_names(way.steps)} in a{_at(way.steps[-1])}, and not in b"
        found += [([(at, way.needed, way.made)], words, False) for at in behind]
    for place, each in enumerate(first.given):
        if each.count == first.made[0].count:
            at = (first.number, -1 - place)
            words = f"{_names([first])} in b{_at(first)}, and not in a"
            found.append(([((first.number, 0), {at}, functools.partial(_itself, at=at))], words, False))
    return found[:_MOST_TRIED]


def _are_given_alike(one: _Step, other: _Step, within: float) -> bool:
    """Return whether two operations are given the same tensors."""
    return len(one.given) == len(other.given) and all(x.is_like(y, within) for x, y in zip(one.given, other.given, strict=True))


def _otherwise(steps: Sequence[_Step], others: Sequence[_Step], within: float) -> str:
    """Return in words which operations of both sides are done otherwise on the same tensors; ``""`` for none."""
    pairs = ((x, y) for x in steps for y in others if x.name == y.name and _are_given_alike(x, y, within))
    found = {
        _LINE.sub("", said): said for x, y in pairs if (said := _of_arguments(x, y)) and not x.made[0].is_like(y.made[0], within)
    }
    return "; ".join(found.values())


def _itself(held: Mapping[_Source, Tensor], at: _Source) -> list[Tensor]:
    return [held[at]]


def _before(step: _Step, held: Mapping[_Print, _Source]) -> dict[_Print, _Source]:
    """Return what is there when *step* begins."""
    return {each: (number, place) for each, (number, place) in held.items() if number < step.number + (place < 0)}


@dataclass(frozen=True)
class _Code:
    """What the code of a module runs in one call, down to the place.

    Attributes:
        side: the side.
        own: the modules whose code it is.
        owner: the module.
        call: which call of it.
        until: the event at which it ends.
    """

    side: Side
    own: set[str]
    owner: str
    call: int
    until: Key

    def recorded(self, wanted: Collection[_Source] = ()) -> _Recorder | None:
        """Run the side once more, and return its operations, and the tensors *wanted*; None where it cannot run again."""
        keys = (kept.key for kept in self.side.forward if kept.site.port == "input")
        begins = next((key for key in keys if key[0].path == self.owner and key[1] == self.call), None)
        if self.side.again is None or begins is None:
            return None
        recorder = _Recorder(self.own, begins, self.until, wanted)
        self.side.again(Change(contexts=(lambda: recorder,)), False, recorder.event)
        return recorder


def _way(
    target: _Step, steps: Sequence[_Step], known: Mapping[_Print, _Source], within: float, longest: int = _LONGEST
) -> _Way | None:
    """Return the operations of ``a`` that make what *target* makes, of tensors that ``b`` has; None where it lacks some."""
    by_number = {step.number: step for step in steps}
    operands: dict[int, list[tuple[bool, _Source]]] = {}
    left = [target]
    while left:
        step = left.pop()
        held = operands[step.number] = []
        for each, source in () if step.is_constant else zip(step.given, step.sources, strict=True):
            of_b = _found(each, known, within, is_laid_out=True)
            held.append((of_b is not None, of_b or source))
            if of_b is None and (source[1] < 0 or source[0] not in by_number or len(operands) > longest):
                return None
            if of_b is None and source[0] not in operands:
                left.append(by_number[source[0]])
    return _Way([by_number[number] for number in sorted(operands)], [operands[number] for number in sorted(operands)])


def _found(wanted: _Print, held: Mapping[_Print, _Source], within: float, *, is_laid_out: bool = False) -> _Source | None:
    """Return where the *wanted* tensor is among those *held*: the first of its shape, else the first in another order of axes.

    One that *is_laid_out* as wanted has its shape, up to axes of length 1.
    """
    alike = [(each, source) for each, source in held.items() if each.has_sums_of(wanted, within)]
    placed = [each.is_placed_as(wanted, within) for each, _ in alike]
    least = True if False in placed else None  # the same numbers at other places: then it is no other layout of the wanted ones
    found = [
        (each.shape == wanted.shape, source)
        for (each, source), is_placed in zip(alike, placed, strict=True)
        if (is_placed or is_placed is least) and not (is_laid_out and _turns(each.shape, wanted.shape) is None)
        if not (is_laid_out and each.is_turned_from(wanted, within))
    ]
    return max(found, key=lambda each: each[0], default=(False, None))[1]


def _long(shape: Sequence[int]) -> list[int]:
    return [length for length in shape if length != 1]


def _words(way: _Way, step: _Step) -> str:
    """Return what ``a`` and ``b`` compute, in words: of one operation with other arguments what differs."""
    (last, *others), where = way.steps[::-1], (_at(way.steps[-1]), _at(step))
    if others or _ALIKE.get(last.name, last.name) != _ALIKE.get(step.name, step.name):
        return f"{_names(way.steps)} in a{where[0]}, {_names([step])} in b{where[1]}"
    return _of_arguments(last, step) or f"{step.name}{_OF_OTHERS}a{where[0]} and in b{where[1]}"


_OF_OTHERS = " of other tensors in "


def _of_arguments(here: _Step, there: _Step) -> str:
    """Return in words which arguments of one operation that are no tensors differ; ``""`` for none."""
    one, other = here.plain, there.plain
    axes = [len(step.given[0].shape) if step.given else 0 for step in (here, there)]
    if axes[0] == axes[1]:  # an axis may be counted from the end
        one, other = ({name: _from_first(name, each, axes[0]) for name, each in held.items()} for held in (one, other))
    apart = [name for name in one if name in other and one[name] != other[name]]
    if not apart:
        return _of_overloads(here, there, one, other)
    said = [
        {name: _REDUCTIONS[held[name]] if name == "reduction" else _short(held[name]) for name in apart} for held in (one, other)
    ]
    sides = [", ".join(f"{name}={each}" for name, each in held.items()) for held in said]
    return f"{here.name} has {sides[0]} in a{_at(here)}, {sides[1]} in b{_at(there)}"


def _of_overloads(here: _Step, there: _Step, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return in words that one operation is done over some axes in one side, and over all in the other."""
    axes = [next((held.get(name) for name in _AXES if held.get(name) is not None), None) for held in (one, other)]
    if (axes[0] is None) == (axes[1] is None) or len(here.given) != len(there.given):
        return ""
    lengths = [shape_text(step.given[0].shape) if step.given else "" for step in (here, there)]
    said = ["all axes" if held is None else f"axes {held}" if isinstance(held, tuple) else f"axis {held}" for held in axes]
    of = f", of {lengths[0]}," if lengths[0] == lengths[1] else ""
    return f"{here.name}{of} is over {said[0]} in a{_at(here)}, over {said[1]} in b{_at(there)}"


_AXES = ("dim", "dims", "axis")
"""Arguments that tell over which axes an operation is done."""


def _from_first(name: str, value: Any, axes: int) -> Any:
    """Return an axis, or several, counted from the first of so many; other arguments as they are."""
    if name not in _AXES or not axes:
        return value
    if type(value) is int:
        return value % axes
    return tuple(each % axes if type(each) is int else each for each in value) if isinstance(value, tuple) else value


_REDUCTIONS = ("none", "mean", "sum")
"""What operators name by its number."""


def _names(steps: Sequence[_Step]) -> str:
    """Return the operations in words, with the numbers by which they add, multiply, divide, or take powers."""
    return _listed(_told(steps) or [_said(steps[-1])])


def _told(steps: Sequence[_Step], *, with_picks: bool = False) -> list[str]:
    """Return what the operations are called, but for those of layout; *with_picks* those that pick entries as well."""
    return [_said(each) for each in steps if not each.is_layout or (with_picks and each.call.is_view and _picks(each))]


def _picks(step: _Step) -> bool:
    return step.given[0].count != step.made[0].count


def _listed(names: Sequence[str]) -> str:
    return names_text(dict.fromkeys(names), _MOST_NAMES)


def _said(step: _Step) -> str:
    held = [each for name, each in step.plain.items() if name in _OPERANDS and type(each) in (int, float)]
    most = max((each.count for each in step.made), default=1)
    held = held[:1] or [each.total for each in step.given if each.count == 1 < most]
    return " ".join([step.name, *map(_short, held)])


_OPERANDS = ("other", "exponent", "value", "self")
"""Arguments that are operands, where they are numbers: of ``x * 0.5`` the half."""


def _at(step: _Step) -> str:
    return f" ({step.line})" if step.line else ""


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
