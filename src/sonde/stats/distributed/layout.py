"""The layout of a round: where in the numbers that ranks reduce each key has its place, who counts, and what is left alone."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sonde.stats.distributed.rows import Array, Key, MergedRows, RankRows
from sonde.stats.statistic import Statistic

Ints = npt.NDArray[np.int64]

_POSITIVE = np.int64(2**63 - 1)
_NAN = np.int64(-(2**63))
_OWN = -1
_PART = 2
_UNKNOWN = 2**31  # into so many pieces a parameter is cut of which it is not known: they are never all here
_ALIKE = 1e-10  # difference of marks up to which replicas are the same: another processor forms a sum in another order, see _marks
_LEAD = 2  # numbers before the sums of a row: see _Span
_COPIES = 2  # numbers after them, where several ranks hold one part of a parameter: see _Span
_GOLDEN = (math.sqrt(5) - 1) / 2
_FAR = 1100.0  # beyond the logarithms of all numbers


def digest(text: bytes) -> int:
    """Return a hash of 63 bits; never 0."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1 or 1


def own(block: RankRows, rank: int) -> MergedRows:
    """Return *block* as rows of *rank*, which is this one, alone."""
    has = (block.rows[:, 0] > 0).astype(np.intp)
    no = np.zeros(len(has), bool)
    return MergedRows(block.rows.copy(), has, no, has.copy(), np.full(len(has), rank), no.copy())


@dataclass(frozen=True)
class _Form:
    """How many numbers of a statistic's row are sums, minima and maxima."""

    sums: int
    minima: int
    maxima: int

    @classmethod
    def of(cls, statistic: Statistic) -> _Form:
        sums, minima = statistic._cuts()
        return cls(sums, minima - sums, statistic.width - minima)


class KeyList:
    """The keys that one rank has: by statistic the form of its rows, and each key with its piece.

    Attributes:
        text: the keys without the pieces, as they are sent; equal texts mean equal keys.
        pieces: of each key in the order of the text, a number for its piece: 0 for an empty one, which counts nothing.
    """

    def __init__(self, blocks: Iterable[tuple[Statistic, Sequence[Key | None]]]) -> None:
        forms: dict[str, _Form] = {}
        held: dict[str, dict[tuple[Any, ...], Any]] = {}
        for statistic, keys in blocks:
            name = repr(statistic)
            forms[name] = _Form.of(statistic)
            of_name = held.setdefault(name, {})
            for key in keys:
                if key is not None:
                    of_name[(*key.place, key.group, key.sort, _kind(key.piece))] = key.piece
        plain = []
        pieces = []
        for name in sorted(held):
            found = sorted(held[name].items(), key=lambda item: json.dumps(item[0]))
            form = forms[name]
            plain.append([name, [form.sums, form.minima, form.maxima], [parts for parts, _ in found]])
            pieces += [_number(piece) for _, piece in found]
        self.text = zlib.compress(json.dumps(plain).encode(), 1)
        self.pieces: Ints = np.array(pieces, np.int64)


def _kind(piece: Any) -> int:
    """Return 0 without a *piece*, _PART for one that is not the whole tensor, else 1."""
    return 0 if piece is None else 1 if getattr(piece, "is_whole", True) else _PART


def _number(piece: Any) -> int:
    return 0 if piece is None or 0 in piece.shape else digest(repr(piece).encode())


class _Span:
    """The place of one statistic's keys in the numbers that are reduced.

    Attributes:
        form: of a row.
        minima: where the minima are: for each key the lowest rank that has added, the minima, the negated maxima, and of replicas a
            number that tells them apart, and that number negated.
        sums: where the sums are: for each key the number of ranks that have added, the additions and the sums; where *has_copies*,
            a number that is 0 if all holders of each part have the same, and how many ranks have added, whether they count or not.
    """

    def __init__(self, form: _Form, low: int, total: int, keys: int, *, has_copies: bool) -> None:
        self.form = form
        self.keys = keys
        self.has_copies = has_copies
        self._width = _LEAD + form.sums + (_COPIES if has_copies else 0)
        self.minima = slice(low, low + keys * (3 + form.minima + form.maxima))
        self.sums = slice(total, total + keys * self._width)

    def low(self, numbers: Ints) -> Ints:
        return numbers[self.minima].reshape(self.keys, 3 + self.form.minima + self.form.maxima)

    def total(self, numbers: Array) -> Array:
        return numbers[self.sums].reshape(self.keys, self._width)


class KeyUnion:
    """The union of the keys of all ranks. All ranks make it from the same lists, and get the same.

    Args:
        rank: this one.
        texts: the different key lists, as sent.
        of_rank: of each rank, the number of its list.
        pieces: of this rank, the numbers of its pieces.
        others: of the ranks that have one list and the same pieces, these ranks, and the numbers of their pieces; for all ranks.
            None where all have the same.
        add_up: adds up numbers over all ranks, in place; called where there are *others*.
        before: the *pieces* of the union before ranks were lost: what they held parts of is whole no more. Nor is it known to be
            where there are parts that were not known then. None where no rank was lost.

    Attributes:
        pieces: by the name of the statistic and the place of a parameter that is held in parts, into how many it is cut.
        head: how many integers lead the minima.
        low: how many integers are reduced to their minima, without the head.
        total: how many numbers are added up.
    """

    def __init__(
        self,
        rank: int,
        texts: Sequence[bytes],
        of_rank: Sequence[int],
        pieces: Ints,
        others: Iterable[tuple[Sequence[int], Ints]] | None = None,
        add_up: Callable[[torch.Tensor], None] | None = None,
        before: Mapping[tuple[Any, ...], int] | None = None,
    ) -> None:
        self.rank = rank
        self.ranks = len(of_rank)
        lists = [json.loads(zlib.decompress(text)) for text in texts]
        union, sorts = _union(lists)
        self._parts: dict[str, _Span] = {}
        self._places: dict[str, dict[tuple[Any, ...], int]] = {}
        self._expected: dict[str, npt.NDArray[np.intp]] = {}
        self._counts: dict[str, npt.NDArray[np.bool_]] = {}
        self._is_replica: dict[str, npt.NDArray[np.bool_]] = {}
        self._copies: dict[str, Array] = {}
        self._holders: dict[str, npt.NDArray[np.intp]] = {}
        for name, (_, places) in union.items():
            kept = [place for place in places if sorts[name, place] is not None]
            self._places[name] = {place: number for number, place in enumerate(kept)}
            self._places[name] |= {place: _OWN for place in places if sorts[name, place] is None}
        self._find_owners(lists, of_rank, pieces, others, add_up)
        parts = {(name, *key[:-2]) for each in lists for name, _, keys in each for key in keys if key[-1] == _PART}
        self.pieces: dict[tuple[Any, ...], int] = {}
        for name, *place in parts:
            at = self._places[name][tuple(place)]
            if at != _OWN:
                found = int(self._expected[name][at])
                if before is not None:
                    self._expected[name][at] = found = max(found, before.get((name, *place), _UNKNOWN))
                self.pieces[name, *place] = found
        low = total = 0
        for name, (form, _) in union.items():
            has_copies = bool((self._holders[name] > 0).any())
            self._parts[name] = part = _Span(form, low, total, len(self._expected[name]), has_copies=has_copies)
            low, total = part.minima.stop, part.sums.stop
        self.low, self.total = low, total
        named: dict[tuple[Any, ...], int] = {}
        self._tensors = {
            name: np.array([named.setdefault(place[1:], len(named)) for place, at in places.items() if at != _OWN], np.intp)
            for name, places in self._places.items()
        }
        self._known: dict[int, tuple[Sequence[Key | None], npt.NDArray[np.intp]]] = {}

    def _find_owners(
        self,
        lists: Sequence[Any],
        of_rank: Sequence[int],
        pieces: Ints,
        others: Iterable[tuple[Sequence[int], Ints]] | None,
        add_up: Callable[[torch.Tensor], None] | None,
    ) -> None:
        """Find who counts: of the ranks that hold the same piece, the lowest; and how many ranks count of each key.

        Where all ranks hold the same piece, the lowest counts that has added to its row: an optimizer that is divided among ranks
        steps each parameter on one of them. Where it is cut into parts that several ranks hold each, find how to tell whether all
        holders of a part have the same: each adds its mark with a weight, and the weights of the holders of one part add up to 0.

        The pieces of all ranks are as many numbers as there are ranks times keys: they are taken one after the other.
        """
        sizes = {name: sum(at != _OWN for at in places.values()) for name, places in self._places.items()}
        ends = np.cumsum([0, *sizes.values()])
        spans = {name: slice(ends[at], ends[at + 1]) for at, name in enumerate(sizes)}
        columns = [self._columns(each, spans) for each in lists]
        own = of_rank[self.rank]
        if others is None:
            others, pieces = [(range(self.ranks), np.ones_like(pieces))], np.ones_like(pieces)

        def held(number: int, pieces: Ints) -> Ints:
            at, chosen = columns[number]
            found = np.zeros(ends[-1], np.int64)
            found[at] = pieces[chosen]
            return found

        mine = held(own, pieces)
        alike, lower, holders = (np.zeros(ends[-1], np.intp) for _ in range(3))
        for ranks, numbers in others:
            found = held(of_rank[ranks[0]], numbers)
            is_mine = (found == mine) & (mine != 0)
            alike[is_mine] += len(ranks)
            lower[is_mine] += sum(rank < self.rank for rank in ranks)
            holders[found != 0] += len(ranks)
        different = (mine != 0).astype(np.int64)
        if add_up is not None:
            different[lower > 0] = 0
            add_up(torch.from_numpy(different))
        at, chosen = columns[own]
        is_empty = np.zeros(ends[-1], bool)
        is_empty[at] = pieces[chosen] == 0
        weights = 1 + np.arange(alike.max(initial=1)) * _GOLDEN % 1  # of the holders of a part, after the first
        of_first = np.cumsum(weights)[alike - 1] - weights[0]
        is_cut = (different > 1) & (holders > different)
        counts = ~(is_empty | ((mine != 0) & (lower > 0)))
        copies = np.where((mine != 0) & is_cut, np.where(lower == 0, of_first, -weights[lower]), 0.0)
        for name, span in spans.items():
            self._counts[name] = counts[span]
            self._expected[name] = different[span]
            self._is_replica[name] = (mine[span] != 0) & (different[span] == 1)
            self._holders[name] = np.where(is_cut, holders, 0)[span]
            self._copies[name] = copies[span]

    def _columns(self, keys: Any, spans: Mapping[str, slice]) -> tuple[Ints, Ints]:
        """Return, of the keys of a list that have pieces, the places in the union, and those in the list."""
        found: list[tuple[int, int]] = []
        number = 0
        for name, _, each in keys:
            places, start = self._places[name], int(spans[name].start)
            for parts in each:
                if parts[-1] and (at := places[tuple(parts[:-2])]) != _OWN:
                    found.append((start + at, number))
                number += 1
        pairs = np.array(found, np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def positions(self, block: RankRows) -> npt.NDArray[np.intp] | None:
        """Return the place of each row of *block*, -1 for a row that stays of this rank; None if a key has no place."""
        known = self._known.get(id(block.keys))
        if known is not None:
            return known[1]
        if not isinstance(block.statistic, Statistic):
            return np.full(len(block.keys), _OWN)
        places = self._places.get(repr(block.statistic), {})
        found = []
        for key in block.keys:
            place = _OWN if key is None else places.get((*key.place, key.group))
            if place is None:
                return None
            found.append(place)
        made = np.array(found, np.intp)
        self._known[id(block.keys)] = block.keys, made  # the keys are held, so that no other object gets their id
        return made

    def forget(self, held: Container[int]) -> None:
        """Forget the places of lists of keys whose ids are not in *held*."""
        self._known = {key: known for key, known in self._known.items() if key in held}

    # Numbers

    def minima(self, blocks: Sequence[RankRows], lead: Sequence[int]) -> torch.Tensor:
        """Return the integers to reduce to their minima: *lead*, and the minima and negated maxima of *blocks*."""
        numbers = np.full(len(lead) + self.low, _ordered(np.array([math.inf]))[0], np.int64)
        numbers[: len(lead)] = lead
        for block in blocks:
            part, at, rows, counts, is_replica = self._held(block)
            chosen = counts | is_replica
            at, rows = at[chosen], rows[chosen]
            if part is not None and len(at):
                form = part.form
                low = part.low(numbers[len(lead) :])
                low[at, 0] = self.rank
                low[at, 1 : 1 + form.minima] = _ordered(rows[:, 1 + form.sums : 1 + form.sums + form.minima])
                low[at, 1 + form.minima : -2] = _ordered(-rows[:, 1 + form.sums + form.minima :])
                replicas = is_replica[chosen]
                marks = _marks(block.statistic, rows[replicas])
                low[at[replicas], -2], low[at[replicas], -1] = _ordered(marks), _ordered(-marks)
        return torch.from_numpy(numbers)

    def sums(self, blocks: Sequence[RankRows], minima: Ints) -> torch.Tensor:
        """Return the numbers to add up: of *blocks*, aligned to *minima*, which are reduced and without the head."""
        numbers = np.zeros(self.total)
        for block in blocks:
            part, at, rows, counts, is_replica = self._held(block)
            if part is None or not len(at):
                continue
            low, total = part.low(minima)[at], part.total(numbers)
            if part.has_copies:
                total[at, -2], total[at, -1] = self._copies[repr(block.statistic)][at] * _marks(block.statistic, rows), 1
            counts = np.where(is_replica, low[:, 0] == self.rank, counts)
            at, rows, low = at[counts], rows[counts], low[counts]
            lows = torch.from_numpy(_numbers(low[:, 1 : 1 + part.form.minima]))
            total[at, 0] = 1
            total[at, 1] = rows[:, 0]
            total[at, _LEAD : _LEAD + part.form.sums] = block.statistic.aligned(torch.from_numpy(rows[:, 1:]), lows).numpy()
        return torch.from_numpy(numbers)

    def _held(
        self, block: RankRows
    ) -> tuple[_Span | None, npt.NDArray[np.intp], Array, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return the part of *block*; of each row to which something was added, place and content; whether it counts, or may."""
        at = self.positions(block)
        name = repr(block.statistic)
        if at is None or name not in self._parts or not isinstance(block.statistic, Statistic):
            return None, np.zeros(0, np.intp), block.rows[:0], np.zeros(0, bool), np.zeros(0, bool)
        chosen = (at != _OWN) & (block.rows[:, 0] > 0)
        at = at[chosen]
        return self._parts[name], at, block.rows[chosen], self._counts[name][at], self._is_replica[name][at]

    def differing(self, minima: Ints, sums: Array) -> dict[str, npt.NDArray[np.bool_]]:
        """Return by statistic which keys are of replicas that differ, by the reduced *minima*, without the head, and *sums*.

        Two models may have equal rows of one statistic, as of a histogram: where another tells the replicas apart, all do.
        """
        found = {}
        is_apart = np.zeros(1 + max((ids.max(initial=0) for ids in self._tensors.values()), default=0), bool)
        for name, part in self._parts.items():
            low = part.low(minima)
            least, most = _numbers(low[:, -2]), -_numbers(low[:, -1])
            is_known = most != -math.inf
            differs = is_known & (most > least + _ALIKE)
            if part.has_copies:
                total = part.total(sums)
                has_copies = (self._holders[name] > 0) & (total[:, -1] > 0)
                # a sum over ranks of numbers with errors that do not depend on each other
                is_apart_in_parts = abs(total[:, -2]) > _ALIKE * math.sqrt(self.ranks)
                differs |= has_copies & (total[:, -1] == self._holders[name]) & is_apart_in_parts
                is_known |= has_copies
            is_apart[self._tensors[name][differs]] = True
            found[name] = is_known
        return {name: is_known & is_apart[self._tensors[name]] for name, is_known in found.items()}

    def merged(self, block: RankRows, minima: Ints, sums: Array, differing: Mapping[str, npt.NDArray[np.bool_]]) -> MergedRows:
        """Return the merged rows of *block* from reduced *minima*, without the head, *sums*, and the keys that are *differing*."""
        at = self.positions(block)
        name = repr(block.statistic)
        found = own(block, self.rank)
        if at is None or name not in self._parts or not isinstance(block.statistic, Statistic):
            return found
        part = self._parts[name]
        held = np.flatnonzero(at != _OWN)
        low, total = part.low(minima)[at[held]], part.total(sums)[at[held]]
        found.differs[held] = differs = differing[name][at[held]]
        whole = ((total[:, 0] >= self._expected[name][at[held]]) | (total[:, 0] == 0)) & ~differs
        held, low, total = held[whole], low[whole], total[whole]
        lows = _numbers(low[:, 1:-2])
        lows[:, part.form.minima :] *= -1
        found.rows[held] = np.concatenate([total[:, 1 : _LEAD + part.form.sums], lows], axis=1)
        found.joined[held], found.first[held] = total[:, 0], np.minimum(low[:, 0], self.ranks)
        found.ranks[held] = np.where(low[:, 0] == self.rank, total[:, 0], 0)
        found.is_merged[held] = True
        return found


def _union(
    lists: Sequence[Any],
) -> tuple[dict[str, tuple[_Form, list[tuple[Any, ...]]]], Mapping[tuple[str, tuple[Any, ...]], str | None]]:
    """Return by statistic the form and the places of all keys in *lists*; and the sort of each place, None where lists differ."""
    union: dict[str, tuple[_Form, list[tuple[Any, ...]]]] = {}
    sorts: dict[tuple[str, tuple[Any, ...]], str | None] = {}
    for each in lists:
        for name, form, keys in each:
            places = union.setdefault(name, (_Form(*form), []))[1]
            for parts in keys:
                place = tuple(parts[:-2])
                if (name, place) not in sorts:
                    sorts[name, place] = parts[-2]
                    places.append(place)
                elif sorts[name, place] != parts[-2]:
                    sorts[name, place] = None
    return union, sorts


def _marks(statistic: Statistic, rows: Array) -> Array:
    """Return a number of each of *rows*, as of :class:`RankRows`, that tells replicas apart; always finite.

    The logarithms of all numbers that are the tensor's, as the statistic says, each with a weight between 1 and 2:
    a change of any of them by its own 1e-10 counts, however much larger another is, as the number of elements is. Sums are off by a
    few 1e-14 where they were formed in another order, and the weighted sum of 300 logarithms by as much.
    """
    numbers = statistic.marks(torch.from_numpy(rows[:, 1:])).numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithms = np.sign(numbers) * (np.clip(np.log2(np.abs(numbers)), -_FAR, _FAR) + math.pi / 3)
    logarithms = np.where(numbers == 0, 0.0, np.where(np.isnan(numbers), 2 * _FAR, logarithms))
    # a square, so that what moves from one bin of a histogram to the next is not made up for elsewhere
    weights = 1 + np.arange(numbers.shape[1]) ** 2 * math.sqrt(2) % 1
    found: Array = (logarithms * weights).sum(axis=1)
    return found


def _ordered(numbers: Array) -> Ints:
    """Return integers in the order of *numbers*, with NaN before all others: the minimum of floats must not lose a NaN."""
    bits = np.ascontiguousarray(numbers).view(np.int64)
    return np.where(np.isnan(numbers), _NAN, bits ^ ((bits >> 63) & _POSITIVE))


def _numbers(ordered: Ints) -> Array:
    """Return the numbers of :func:`_ordered`."""
    bits = ordered ^ ((ordered >> 63) & _POSITIVE)
    return np.where(ordered == _NAN, math.nan, np.ascontiguousarray(bits).view(np.float64))
