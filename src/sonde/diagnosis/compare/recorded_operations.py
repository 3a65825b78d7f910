"""Record the operations that the code of a module runs in one call, and find those that make a tensor of others."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sonde.diagnosis.compare.sides import Kept, Key, Side
from sonde.diagnosis.compare.suspects import CannotChangeError, Change
from sonde.diagnosis.distance import as_numbers
from sonde.diagnosis.nonfinite.source_lines import calling_frames, line_of, lines_of
from sonde.engine import OperatorCall, OperatorMode, remap

MOST_STEPS, LONGEST = 2000, 12
"""Operations of one call that are looked at, and those of ``a`` that stand in the place of one of ``b``."""

Source = tuple[int, int]
"""Where a tensor comes from: the number of an operation, and which tensor it made; of one that it was given, counted from -1."""


@dataclass(frozen=True)
class Fingerprint:
    """Numbers that tell tensors apart, in any order of axes: how many elements, and finite ones, and their sums. And the shape.

    The greatest numbers of a type count as infinite: a mask may be filled with either.

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
    def of(cls, tensor: Tensor) -> Fingerprint:
        shape, whole = tuple(tensor.shape), as_numbers(tensor)
        finite = whole.abs() < greatest(tensor)
        numbers = whole[finite]
        sums = float(numbers.sum()), float(numbers.abs().sum()), float(numbers.square().sum())
        long, filled = [axis for axis, length in enumerate(shape) if length > 1], whole.where(finite, 0.0)
        filled = filled + filled.abs() / 2  # behind a normalisation the sums of all positions are 0
        placed = [
            (shape[axis], float(filled.movedim(axis, -1).reshape(-1, shape[axis]).sum(0) @ _weights(shape[axis]))) for axis in long
        ]
        return cls(shape, whole.numel(), numbers.numel(), *sums, tuple(placed))

    def is_like(self, other: Fingerprint, within: float) -> bool:
        """Return whether two tensors may be equal, up to a relative difference of *within*."""
        return self.has_sums_of(other, within) and self.is_placed_as(other, within) is not False

    def has_sums_of(self, other: Fingerprint, within: float) -> bool:
        """Return whether two tensors may hold the same numbers in any order."""
        return (
            (self.count, self.finite) == (other.count, other.finite)
            and abs(self.total - other.total) <= within * (self.magnitude + other.magnitude)
            and abs(self.magnitude - other.magnitude) <= within * (self.magnitude + other.magnitude)
            and abs(self.square - other.square) <= 2 * within * (self.square + other.square)
        )

    def is_placed_as(self, other: Fingerprint, within: float) -> bool | None:
        """Return whether two tensors of the same lengths have the same numbers at the same places; None of other lengths."""
        own, beside = sorted(self.placed), sorted(other.placed)
        if [size for size, _ in own] != [size for size, _ in beside]:
            return None
        most = within * (self.magnitude + other.magnitude)
        return all(abs(x - y) <= most for (_, x), (_, y) in zip(own, beside, strict=True))

    def is_turned_from(self, other: Fingerprint, within: float) -> bool:
        """Return whether the axes of two tensors of the same numbers, of the same lengths in order, are in another order."""
        most = within * (self.magnitude + other.magnitude)
        is_same = [size for size, _ in self.placed] == [size for size, _ in other.placed]
        return is_same and any(abs(x - y) > most for (_, x), (_, y) in zip(self.placed, other.placed, strict=True))


def greatest(tensor: Tensor) -> float:
    """Return from which magnitude a number stands for an infinite one: half of the largest of the type of *tensor*."""
    return torch.finfo(tensor.dtype).max / 2 if tensor.is_floating_point() else math.inf


@functools.cache
def _weights(count: int) -> Tensor:
    """Return numbers from -1 to 1, one for each position of an axis, of no regular order."""
    return torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu") * 2 - 1


@dataclass(frozen=True)
class Step:
    """One operation: its number in the run, the tensors that it was given with their sources, and those that it made."""

    number: int
    call: OperatorCall
    given: list[Fingerprint]
    sources: list[Source]
    made: list[Fingerprint]
    line: str

    @functools.cached_property
    def name(self) -> str:
        return name_of(self.call)

    @property
    def role(self) -> tuple[str, str, int]:
        """What it has in common with the same operation of the code in another round of a loop."""
        return self.name, self.line, len(self.given)

    @property
    def is_layout(self) -> bool:
        """Whether it only lays the same numbers out in another way, or gives whole numbers another type."""
        is_of_whole = self.name == "to_copy" and not tensors_in(self.call.args)[0].is_floating_point()
        return self.call.is_view or self.name in ("clone", "unsafe_view") or is_of_whole

    @property
    def is_constant(self) -> bool:
        """Whether it makes a tensor of a number in the code."""
        return self.name == "lift_fresh" and all(each.count == 1 for each in self.given)

    @property
    def plain(self) -> dict[str, Any]:
        """The arguments that are no tensors, by name, with the defaults."""
        given = {name: held for name, held in (self.call.defaults | self.call.given).items() if not tensors_in(held)}
        return {name: tuple(held) if isinstance(held, list) else held for name, held in given.items()}


def name_of(call: OperatorCall) -> str:
    """Return what an operator is called, without its namespace and overload."""
    held = str(getattr(call.function, "name", lambda: call.function)())
    return held.rpartition("::")[2].partition(".")[0].strip("_").removeprefix("native_").removesuffix("_with_indices")


def tensors_in(value: Any) -> list[Tensor]:
    """Return all tensors in arguments or results, in order."""
    found: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        found.append(OperatorMode.with_memory(tensor))
        return tensor

    remap(value, take)
    return found


def is_detach(call: OperatorCall) -> bool:
    """Return whether autograd or a factory may have called it, which they do where somebody holds the tensor: it is no step."""
    return call.function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class InParts(OperatorMode):
    """While entered, a recurrent layer and attention of torch's own run as the operations that they consist of."""

    def __init__(self) -> None:
        super().__init__()
        self._undo: list[ExitStack] = []

    def __enter__(self) -> Self:
        fused: Any = torch.backends.mkldnn
        with ExitStack() as undo:
            undo.callback(setattr, fused, "enabled", fused.enabled)
            fused.enabled = False
            undo.enter_context(sdpa_kernel(SDPBackend.MATH))
            super().__enter__()
            self._undo.append(undo.pop_all())
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._undo.pop().close()


class _Recorder(InParts):
    """Keeps the operations that the code of some modules runs between two events."""

    def __init__(self, own: Collection[str], call: Key, until: Key, wanted: Collection[Source] = ()) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.tensors: dict[Source, Tensor] = {}
        self._wanted = {number: [place for each, place in wanted if each == number] for number, _ in wanted}
        self._own, self._call, self._until = own, call, until
        self._running: list[str] = []
        self._is_on = False
        self._number = -1
        self._known: dict[int, tuple[Tensor, Source]] = {}

    def event(self, kept: Kept) -> None:
        """Take note of a module that begins, or ends."""
        path = kept.site.path
        if kept.site.port == "input":
            self._running.append(path)
        elif path in self._running:
            del self._running[len(self._running) - 1 - self._running[::-1].index(path) :]
        self._is_on = (self._is_on or kept.key == self._call) and kept.key != self._until

    def operator(self, call: OperatorCall) -> Any:
        if is_detach(call):
            result = call.run()
            known = [self._known[id(held)][1] for held in tensors_in(call.args) if id(held) in self._known]
            self._known |= {id(held): (held, source) for held, source in zip(tensors_in(result), known, strict=False)}
            return result
        self._number += 1
        if not self._is_on or len(self.steps) >= MOST_STEPS or (self._running and self._running[-1] not in self._own):
            return call.run()
        given, number = tensors_in((call.args, call.kwargs)), self._number
        sources = [self._known.get(id(held), (held, (number, -1 - place)))[1] for place, held in enumerate(given)]
        prints = [Fingerprint.of(held) for held in given]
        line = line_of(lines_of(calling_frames()))
        keep = self._wanted.get(number, [])
        self.tensors |= {(number, place): as_numbers(given[-1 - place]).clone() for place in keep if place < 0}
        result = call.run()
        made = tensors_in(result)
        self.tensors |= {(number, place): as_numbers(made[place]).clone() for place in keep if place >= 0}
        self._known |= {id(held): (held, (number, place)) for place, held in enumerate(made)}
        self.steps.append(
            Step(number, call, prints, sources, [Fingerprint.of(held) for held in made], "" if line is None else line.name)
        )
        return result


@dataclass(frozen=True)
class Way:
    """Operations of ``a`` whose first operands ``b`` has.

    Attributes:
        steps: in order.
        operands: of each step where its operands are: in ``b``, or else among what steps before have made.
    """

    steps: list[Step]
    operands: list[list[tuple[bool, Source]]]

    @property
    def needed(self) -> set[Source]:
        """What ``b`` has to give."""
        return {source for each in self.operands for is_of_b, source in each if is_of_b}

    @property
    def given(self) -> list[Fingerprint]:
        """What both sides have, as often as an operation is given it."""
        pairs = [pair for step, each in zip(self.steps, self.operands, strict=True) for pair in zip(step.given, each, strict=False)]
        return [held for held, (is_of_b, _) in pairs if is_of_b]

    def made(self, held: Mapping[Source, Tensor]) -> list[Tensor]:
        """Return what the operations make of the tensors *held* of ``b``."""
        results: dict[Source, Tensor] = {}
        made: list[Tensor] = []
        for step, operands in zip(self.steps, self.operands, strict=True):
            if step.is_constant:
                results[step.number, 0] = step.call.args[0].clone()
                continue
            given = [held[source].clone() if is_of_b else results[source] for is_of_b, source in operands]
            if any(turns_between(tensor.shape, each.shape) is None for tensor, each in zip(given, step.given, strict=True)):
                raise CannotChangeError(f"{step.name} is given tensors in another layout")  # a kernel need not look
            left = iter([turned(tensor, each.shape) for tensor, each in zip(given, step.given, strict=True)])
            args, kwargs = remap((step.call.args, step.call.kwargs), functools.partial(_next, left))
            made = tensors_in(step.call.function(*args, **kwargs))
            results |= {(step.number, place): tensor for place, tensor in enumerate(made)}
        return made


def _next(left: Iterator[Tensor], _: Tensor) -> Tensor:
    return next(left)


def turned(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Return *tensor* in *shape*, which may have its axes in another order, if their lengths tell it."""
    return tensor.reshape(long_axes(tensor.shape)).permute(turns_between(tensor.shape, shape) or ()).reshape(tuple(shape))


def turns_between(given: Sequence[int], wanted: Sequence[int]) -> list[int] | None:
    """Return the order of axes of *given*, but for those of length 1, that *wanted* has; None where lengths do not tell it."""
    here, there = long_axes(given), long_axes(wanted)
    if here == there:
        return list(range(len(here)))
    is_told = sorted(here) == sorted(there) and len(set(here)) == len(here)
    return [here.index(length) for length in there] if is_told else None


@dataclass(frozen=True)
class Code:
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

    def recorded(self, wanted: Collection[Source] = ()) -> _Recorder | None:
        """Run the side once more, and return its operations, and the tensors *wanted*; None where it cannot run again."""
        keys = (kept.key for kept in self.side.forward if kept.site.port == "input")
        begins = next((key for key in keys if key[0].path == self.owner and key[1] == self.call), None)
        if self.side.again is None or begins is None:
            return None
        recorder = _Recorder(self.own, begins, self.until, wanted)
        self.side.again(Change(contexts=(lambda: recorder,)), False, recorder.event)
        return recorder


def way_to(
    target: Step, steps: Sequence[Step], known: Mapping[Fingerprint, Source], within: float, longest: int = LONGEST
) -> Way | None:
    """Return the operations of ``a`` that make what *target* makes, of tensors that ``b`` has; None where it lacks some."""
    by_number = {step.number: step for step in steps}
    operands: dict[int, list[tuple[bool, Source]]] = {}
    left = [target]
    while left:
        step = left.pop()
        held = operands[step.number] = []
        for each, source in () if step.is_constant else zip(step.given, step.sources, strict=True):
            of_b = found_in(each, known, within, is_laid_out=True)
            held.append((of_b is not None, of_b or source))
            if of_b is None and (source[1] < 0 or source[0] not in by_number or len(operands) > longest):
                return None
            if of_b is None and source[0] not in operands:
                left.append(by_number[source[0]])
    return Way([by_number[number] for number in sorted(operands)], [operands[number] for number in sorted(operands)])


def found_in(wanted: Fingerprint, held: Mapping[Fingerprint, Source], within: float, *, is_laid_out: bool = False) -> Source | None:
    """Return where the *wanted* tensor is among those *held*: the first of its shape, else the first in another order of axes.

    One that *is_laid_out* as wanted has its shape, up to axes of length 1.
    """
    alike = [(each, source) for each, source in held.items() if each.has_sums_of(wanted, within)]
    placed = [each.is_placed_as(wanted, within) for each, _ in alike]
    least = True if False in placed else None  # the same numbers at other places: then it is no other layout of the wanted ones
    found = [
        (each.shape == wanted.shape, source)
        for (each, source), is_placed in zip(alike, placed, strict=True)
        if (is_placed or is_placed is least) and not (is_laid_out and turns_between(each.shape, wanted.shape) is None)
        if not (is_laid_out and each.is_turned_from(wanted, within))
    ]
    return max(found, key=lambda each: each[0], default=(False, None))[1]


def long_axes(shape: Sequence[int]) -> list[int]:
    """Return the lengths of the axes of a shape, but for those of length 1."""
    return [length for length in shape if length != 1]
