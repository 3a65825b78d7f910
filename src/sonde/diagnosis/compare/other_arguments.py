"""Give operations of one side the arguments of the other: counts of picks, numbers, indices, the order of gates."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sonde.diagnosis.compare.changes import putting
from sonde.diagnosis.compare.operation_words import OPERANDS, arguments_text, line_text, value_text
from sonde.diagnosis.compare.recorded_operations import Source, Step, name_of, tensors_in
from sonde.diagnosis.compare.scene import Scene
from sonde.diagnosis.compare.suspects import Change, Undo
from sonde.diagnosis.compare.weights import EXACT, order_of_rows, words_of_order
from sonde.diagnosis.distance import as_numbers
from sonde.engine import OperatorCall, OperatorMode, remap
from sonde.words import names_text


def of_blocks(scene: Scene, there: Sequence[Step]) -> Iterator[tuple[Undo, str]]:
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


_SORTED, _COUNTED = ("sort", "msort"), ("topk", "kthvalue")

_CHOSEN = ("argmax", "argmin", "max", "min")


def _counts(steps: Sequence[Step]) -> dict[int, Step]:
    """Return how many of the largest entries operations pick: by ``topk``, or as a part of what was sorted, with the last one."""
    ordered, found = {step.number for step in steps if step.name in _SORTED}, dict[int, Step]()
    for step in steps:
        count = _picked(step.call) if step.name in _COUNTED or (step.sources and step.sources[0][0] in ordered) else None
        count = 1 if step.name in _CHOSEN and step.plain.get("dim") is not None else count
        found |= {} if count is None else {count: step}
    return found


def _picked(call: OperatorCall) -> int | None:
    """Return how many entries a call picks of an axis, or which one; None for a call that picks none."""
    name, given = name_of(call), call.defaults | call.given
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
        name, args = name_of(call), call.args
        is_of_ordered = bool(args) and id(args[0]) in self._ordered
        if (name in _COUNTED or (is_of_ordered and name in ("slice", "select"))) and _picked(call) == self._count:
            args = tuple(self._changed(name, place, each) for place, each in enumerate(args))
        elif self._divides and name in ("div", "mul") and len(args) > 1:
            is_number = not isinstance(args[1], Tensor) or args[1].dim() == 0
            args = (args[0], self._wanted, *args[2:]) if is_number and args[1] == self._count else args
        result = call.function(*args, **call.kwargs)
        if name in _SORTED:
            self._ordered |= {id(each): each for each in tensors_in(result)}
        return result

    def _changed(self, name: str, place: int, value: Any) -> Any:
        is_it = place == {"slice": 3, "select": 2}.get(name, 1) or (name == "slice" and place == 2)
        if not is_it or not isinstance(value, int):
            return value
        off = self._count - self._wanted
        return value - off if value > 0 or (name == "select" and value == self._count - 1) else value + off * (value < 0)


def of_counts(here: Sequence[Step], there: Sequence[Step]) -> Iterator[tuple[Undo, str]]:
    """Yield that one side picks more of the largest entries than the other, undone on each side."""
    counts = _counts(here), _counts(there)
    pairs = [(x, y) for x in counts[0] for y in counts[1] if x != y][:_FEW_COUNTS]
    for (x, y), divides in itertools.product(pairs, (False, True)):
        step, beside = counts[0][x], counts[1][y]
        words = arguments_text(step, beside) if step.name == beside.name and step.name in _COUNTED and not divides else ""
        ordered = f"the {x} first are taken of what is ordered by size in a{line_text(step)}, the {y} first in b{line_text(beside)}"
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
        if name_of(call) != self._operation or held != self._count:
            return call.run()
        at, args = call.names.index(self._argument), list(call.args)
        args[at : at + 1] = [self._wanted] * (at < len(args))
        return call.function(*args, **call.kwargs | ({} if at < len(args) else {self._argument: self._wanted}))


def of_numbers(here: Sequence[Step], there: Sequence[Step]) -> Iterator[tuple[Undo, str]]:
    """Yield that an operation has another number in each of its calls, whatever it is given, as the slope of a leaky relu."""
    for name in dict.fromkeys(step.name for step in there if any(each.name == step.name for each in here)):
        one, other = ([step for step in steps if step.name == name] for steps in (here, there))
        for argument in (each for each in other[0].plain if each not in OPERANDS):
            held = [[step.plain.get(argument) for step in steps] for steps in (one, other)]
            values = [{each for each in given if isinstance(each, float)} for given in held]
            if all(len(each) == 1 for each in values) and values[0] != values[1]:
                (x,), (y,) = values
                sides = [f"{argument}={value_text(each)} in {side}" for side, each in (("a", x), ("b", y))]
                words = f"{name} has {sides[0]}{line_text(one[0])}, {sides[1]}{line_text(other[0])}"
                yield Undo(b=Change(contexts=(functools.partial(_Numbered, name, argument, y, x),))), words


class _Filled(OperatorMode):
    """While entered, tensors that one operation fills with some number hold another one."""

    def __init__(self, operation: str, count: float, wanted: float) -> None:
        super().__init__()
        self._operation, self._count, self._wanted = operation, count, wanted

    def operator(self, call: OperatorCall) -> Any:
        result = call.run()
        if name_of(call) == self._operation and isinstance(result, Tensor) and _is_full_of(result, self._count):
            return result.fill_(self._wanted)
        return result


def _is_full_of(tensor: Tensor, count: float) -> bool:
    return tensor.numel() > 0 and bool((tensor == torch.full_like(tensor[(0,) * tensor.dim()], count)).all())


_FILLED = frozenset({"zeros", "new_zeros", "zeros_like", "ones", "new_ones", "ones_like", "full", "new_full", "full_like"})
"""Operations that make a tensor of one number."""


def of_constants(here: Sequence[Step], there: Sequence[Step]) -> Iterator[tuple[Undo, str]]:
    """Yield that a number in the code of ``b``, which ``a`` has not, is one of those of ``a``, or very small where it leaves out.

    The number with which a tensor is filled, as the first state of a recurrent layer, or one by which scores are masked.
    """
    mine, theirs = _constants(here), _constants(there)
    known = {number for _, number in mine}
    apart = {key: step for key, step in theirs.items() if key[1] not in known}
    instead = [key for key in mine if not any(key[1] == number for _, number in theirs)]
    for (argument, number), step in [*apart.items()][:_FEW_CONSTANTS]:
        wanted = {value: mine[each, value] for each, value in instead if (each == _FILL) == (argument == _FILL)}
        wanted = dict([*wanted.items()][:_FEW_CONSTANTS])
        if number < 0 and argument != _FILL and any(value <= _HIDING for _, value in mine):
            wanted = {_HIDING: step, **wanted}
        for value, beside in wanted.items():
            own = f"{step.name} has {value_text(number)} in b{line_text(step)}"
            words = f"{own}, where {beside.name} has {value_text(value)} in a"
            words = (
                f"{own}, which is not enough to mask: with {value_text(value)} all is masked, as in a" * (value == _HIDING) or words
            )
            mode = (
                functools.partial(_Filled, step.name, number, value)
                if argument == _FILL
                else functools.partial(_Numbered, step.name, argument, number, value)
            )
            yield Undo(b=Change(contexts=(mode,))), words + line_text(beside) * (value != _HIDING)


_FILL, _HIDING, _FEW_CONSTANTS = "fill", -1e9, 4
"""What names the number of a tensor that is filled with it; a number that masks whatever it is added to; how many are tried."""


def _constants(steps: Sequence[Step]) -> dict[tuple[str, float], Step]:
    """Return the numbers in the code, but 0 and 1 that are no tensors, with what they are and the first operation that has them."""
    found: dict[tuple[str, float], Step] = {}
    for step in steps:
        if step.name in _FILLED and step.made[0].count:
            found.setdefault((_FILL, step.made[0].total / step.made[0].count), step)
        for name, held in step.plain.items():
            if name in OPERANDS and type(held) in (int, float) and held not in (0, 1) and step.name not in _FILLED:
                found.setdefault((name, float(held)), step)
        if step.name in ("lift_fresh", "scalar_tensor") and step.made[0].count == 1:
            number = float(step.plain.get("s", step.made[0].total))
            found |= {} if number in (0, 1) or ("other", number) in found else {("other", number): step}
    return found


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
        if name_of(call) not in _INDEXING:
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


def of_indices(here: Sequence[Step], there: Sequence[Step]) -> Iterator[tuple[Undo, str]]:
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
            both = f"{step.name} in a{line_text(step)} and {beside.name} in b{line_text(beside)}"
            said = f"{both} find entries by other indices{words}: {what}"
            yield Undo(b=Change(contexts=(functools.partial(_Indexing, [(y, given)]),))), said
    for side, held in (("b", other), ("a", one)):
        for (x, step), (y, beside) in itertools.combinations(held, 2) if len(held) <= _FEW_INDICES else ():
            if x.shape == y.shape:
                change = Change(contexts=(functools.partial(_Indexing, [(x, y), (y, x)]),))
                said = (
                    f"the indices by which {step.name}{line_text(step)} and {beside.name}{line_text(beside)} of {side} find entries"
                )
                said += " have their roles exchanged in the other side, as sources and targets of edges"
                yield Undo(b=change) if side == "b" else Undo(a=change), said


_FEW_INDICES = 4


def _indices(steps: Sequence[Step]) -> list[tuple[Tensor, Step]]:
    """Return by which indices operations find entries, each once: those that are given, or follow from positions alone."""
    found: list[tuple[Tensor, Step]] = []
    by_number = {step.number: step for step in steps}
    for step in steps:
        if step.name not in _INDEXING:
            continue
        for tensor, source in zip(tensors_in((step.call.args, step.call.kwargs)), step.sources, strict=True):
            if not _is_index(tensor) or not _is_of_positions(source, tensor, by_number):
                continue
            first = tensor.flatten(1)[:, 0] if tensor.dim() > 1 else tensor
            own = first if _repeats(tensor, first) else tensor
            if not any(_are_same(own, held) for held, _ in found):
                found.append((own.clone(), step))
    return found


def _is_of_positions(source: Source, tensor: Tensor, steps: Mapping[int, Step]) -> bool:
    """Return whether a tensor is made of whole numbers alone, or of what the code makes of nothing: not of what a layer gave."""
    left, seen = [(source, tensor)], {source}
    while left:
        (number, place), held = left.pop()
        step = steps.get(number)
        if place < 0 or step is None:
            if held.is_floating_point() and held.numel() > 1:
                return False
            continue
        pairs = zip(step.sources, tensors_in((step.call.args, step.call.kwargs)), strict=True)
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
        f"{count} of {off.numel()} are {int(most):+d} from those of a" if 2 * same > count else f"{count} of {off.numel()}{OTHERS}"
    )


OTHERS = " are others"
"""Of indices that follow from those of the other side in no way that is known: an operation that makes them may tell more."""
