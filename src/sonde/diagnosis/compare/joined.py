"""Put together what several ranks have saved of one model: by placements, by ids, or as it fits a tensor of the other side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sonde.diagnosis.compare.sides import Kept, Key, Side, of_records
from sonde.diagnosis.distance import as_numbers, distance
from sonde.engine import is_floating
from sonde.errors import ArgumentError
from sonde.run import TensorStore
from sonde.site import PARAMETER_PORTS, Site
from sonde.stats import Piece
from sonde.words import many

Region = tuple[Tensor, ...]
"""Of each axis of a whole tensor, the entries that a part holds."""

_MOST_TURNS = 16
"""Groups of features that may be shared out one by one, as queries, keys and values of one projection."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank has kept at one place, of one forward.

    Attributes:
        rank: its number.
        forward: which forward of the rank.
        leaves: the tensors by leaf path.
        pieces: of distributed ones, which part the rank has.
        addend: of an addend of a sum, which; None for a value.
        ids: of the entries along an axis, their numbers, by axis.
    """

    rank: int
    forward: int
    leaves: Mapping[str, Tensor]
    pieces: Mapping[str, Piece]
    addend: tuple[int, ...] | None
    ids: Mapping[int, Sequence[int]]


@dataclass(slots=True)
class Whole:
    """A tensor that parts were put into.

    Attributes:
        tensor: the tensor.
        parts: the ranks whose parts are in it, each with the entries of its part; None where nothing says how they lie.
    """

    tensor: Tensor
    parts: list[tuple[int, Region | None]]
    _filled: Tensor = field(default_factory=lambda: torch.empty(0, device="cpu"))

    @property
    def ranks(self) -> list[int]:
        """The ranks whose parts are in it."""
        return [rank for rank, _ in self.parts]

    @property
    def cells(self) -> int:
        """Into how many parts the tensor is divided; 0 if it is the tensor of a rank as it was."""
        return len({str([each.tolist() for each in region]) for _, region in self.parts if region is not None})

    def put(self, rank: int, part: Tensor, region: Region) -> bool:
        """Put *part* of *rank* in where there is nothing yet; return False if there is something else in its place."""
        index = tuple(each.view([-1 if at == axis else 1 for at in range(part.dim())]) for axis, each in enumerate(region))
        there = self._filled[index]
        fits = torch.equal(self.tensor[index][there], part[there])
        self.tensor[index] = torch.where(there, self.tensor[index], part)
        self._filled[index] = True
        if fits:
            self.parts.append((rank, index))
        return fits


class Joined(Mapping[str, Tensor]):
    """Tensors that several ranks hold shares of, by leaf path: each is put together when it is asked for.

    Where ranks hold different tensors in one place, it is the one that is furthest from that of the other side.

    Attributes:
        shares: what the ranks hold.
        like: the event of the other side at this place; None where there is none.
        ids: of the entries of that along an axis, their numbers, by axis.
        parts: into how many parts the batch is divided; 1 where that is not known. What is of the whole batch, as a loss, or the
            gradient of a table, is the mean, or the sum, of what the parts have.
        means: each part has a loss of its own, so that gradients are so many times those of their mean.
    """

    def __init__(self, shares: list[Share]) -> None:
        self.shares = shares
        self.like: Kept | None = None
        self.ids: Mapping[int, Sequence[int]] = {}
        self.parts = self.means = 1

    def __getitem__(self, leaf: str) -> Tensor:
        wanted, all_wholes = self.wanted(leaf), self.wholes(leaf)
        if not all_wholes:
            raise KeyError(leaf)
        if self.like is not None and isinstance(self.like.leaves, Joined) and not all_wholes[0].cells:
            return torch.cat([share.leaves[leaf].flatten() for share in self.shares if leaf in share.leaves])
        wholes = [whole.tensor for whole in all_wholes]
        if self.parts > 1 and wanted is not None and is_floating(wanted) and len(_distinct(self.shares, leaf)) > 1:
            held = [share.leaves[leaf] for share in self.shares if leaf in share.leaves]
            if {each.shape for each in held} == {wanted.shape}:
                mean = torch.stack(held).mean(0)
                return min((mean, mean * self.parts / self.means), key=lambda each: _apart(each, wanted))
        found = wholes[0] if wanted is None else max(wholes, key=lambda held: _apart(held, wanted))
        return found / self.means if self.means > 1 and all_wholes[0].cells > 1 else found

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(leaf for share in self.shares for leaf in share.leaves))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def wanted(self, leaf: str) -> Tensor | None:
        """Return the tensor of the other side."""
        if self.like is None or isinstance(self.like.leaves, Joined):
            return None
        main = self.like.main
        return self.like.leaves[leaf] if leaf in self.like.leaves else None if main is None else main[1]

    def wholes(self, leaf: str) -> list[Whole]:
        """Return the tensors that the ranks hold: one where they agree."""
        shares = [share for share in self.shares if leaf in share.leaves]
        first = [share for share in shares if share.forward == min(each.forward for each in shares if each.rank == share.rank)]
        wanted = self.wanted(leaf)
        pieces = [_piece_of(share, leaf) for share in first]
        if all(piece is not None and (wanted is None or piece.whole == tuple(wanted.shape)) for piece in pieces):
            summed = _summed(first, leaf)
            if not summed or wanted is None or summed[0].tensor.shape == wanted.shape:
                return summed  # else the pieces overlap, as those of a placement in strides do that tells its first place alone
        found: list[list[Whole]] = []
        for chosen in (first, shares) if len(shares) > len(first) else (first,):
            tensors = [share.leaves[leaf] for share in chosen]
            if wanted is not None:
                of_parameter = self.like is not None and self.like.site.port in PARAMETER_PORTS
                layouts = _layouts(chosen, tensors, wanted.shape, self.ids, of_parameter=of_parameter)
                made = (_laid(chosen, tensors, wanted.shape, each) for each in layouts)
                found += filter(None, made)
        if not found or wanted is None:
            return _distinct(first, leaf)
        return min(found, key=lambda each: _apart(each[0].tensor, wanted))


def _piece_of(share: Share, leaf: str) -> Piece | None:
    piece = share.pieces.get(leaf)
    return piece if piece is not None and piece.shape == tuple(share.leaves[leaf].shape) else None


def _apart(one: Tensor, other: Tensor) -> float:
    return distance(as_numbers(one), as_numbers(other)).relative if one.shape == other.shape else math.inf


def _distinct(shares: list[Share], leaf: str) -> list[Whole]:
    """Return the tensors of *shares*, each that is there once."""
    found: list[Whole] = []
    for share in shares:
        if leaf not in share.leaves:
            continue
        held = share.leaves[leaf]
        same = next((each for each in found if each.tensor.shape == held.shape and torch.equal(each.tensor, held)), None)
        if same is None:
            found.append(Whole(held, [(share.rank, None)]))
        else:
            same.parts.append((share.rank, None))
    return found


def _summed(shares: list[Share], leaf: str) -> list[Whole]:
    """Return the wholes of parts whose places are known: of addends their sum, each addend once."""
    pieces = [piece for share in shares if (piece := _piece_of(share, leaf)) is not None]
    regions: list[Region] = [
        tuple(torch.arange(start, start + size, device="cpu") for start, size in zip(piece.offset, piece.shape, strict=True))
        for piece in pieces
    ]
    total: list[Whole] = []
    for addend in dict.fromkeys(share.addend for share in shares):
        mine = [at for at, share in enumerate(shares) if share.addend == addend]
        tensors = [shares[at].leaves[leaf] for at in mine]
        laid = _laid([shares[at] for at in mine], tensors, torch.Size(pieces[0].whole), [regions[at] for at in mine])
        if not laid:  # a rank is missing
            return _distinct(shares, leaf)
        if addend is not None and total:
            total[0].tensor = total[0].tensor + laid[0].tensor
        else:
            total += laid
    return total


def _laid(shares: list[Share], tensors: list[Tensor], shape: torch.Size, regions: list[Region]) -> list[Whole]:
    """Return the wholes of *tensors* in their *regions*: several where ranks hold other values; none where a part is missing."""
    wholes: list[Whole] = []
    for share, part, region in zip(shares, tensors, regions, strict=True):
        if not any(whole.put(share.rank, part, region) for whole in wholes):
            made = Whole(torch.zeros(shape, dtype=part.dtype, device="cpu"), [], torch.zeros(shape, dtype=torch.bool, device="cpu"))
            made.put(share.rank, part, region)
            wholes.append(made)
    if not wholes or not bool(wholes[0]._filled.all()):
        return []
    for whole in wholes[1:]:
        whole.tensor = torch.where(whole._filled, whole.tensor, wholes[0].tensor)
    return wholes


def _layouts(
    shares: list[Share], tensors: list[Tensor], shape: torch.Size, wanted: Mapping[int, Sequence[int]], *, of_parameter: bool
) -> Iterator[list[Region]]:
    """Yield how *tensors* may lie in a tensor of *shape*: by ids, else one after the other along axes that are too short."""
    if any(held.dim() != len(shape) for held in tensors):
        return
    by_id: dict[int, list[Tensor]] = {}
    for axis in range(len(shape)):
        ids = [share.ids.get(axis, ()) for share in shares]
        known = {each for held in ids for each in held}
        there = wanted.get(axis, ())
        order = {each: place for place, each in enumerate(there if known == {*there} else sorted(known))}
        if len(order) == shape[axis] and all(len(held) == each.shape[axis] for held, each in zip(ids, tensors, strict=True)):
            by_id[axis] = [torch.tensor([order[each] for each in held], device="cpu") for held in ids]
    short = [axis for axis in range(len(shape)) if axis not in by_id and any(held.shape[axis] != shape[axis] for held in tensors)]
    for starts in _starts(short, tensors, shape):
        for turns in _turns(short, tensors, any_axis=of_parameter):
            yield [
                tuple(
                    by_id[axis][at] if axis in by_id else _entries(starts.get(axis, {}).get(at, 0), size, shape[axis], turns)
                    for axis, size in enumerate(held.shape)
                )
                for at, held in enumerate(tensors)
            ]


def _starts(short: list[int], tensors: list[Tensor], shape: torch.Size) -> Iterator[dict[int, dict[int, int]]]:
    """Yield where the parts begin, by axis and by the number of the part."""
    if not short:
        yield {}
        return
    if len(short) == 1:
        (axis,), at, found = short, 0, {}
        for number, held in enumerate(tensors):
            found[number] = at
            at = (at + held.shape[axis]) % shape[axis] if 0 <= at <= shape[axis] - held.shape[axis] else -1
        if at == 0:
            yield {axis: found}
    sizes = {held.shape for held in tensors}
    counts = [-(-shape[axis] // tensors[0].shape[axis]) if tensors[0].shape[axis] else 0 for axis in short]
    cells = math.prod(counts)
    if len(sizes) > 1 or not cells or len(tensors) % cells:
        return
    ways: list[tuple[int | None, int]] = [*zip(short, counts, strict=True)]
    ways += [(None, len(tensors) // cells)] if len(tensors) > cells else []
    for order in itertools.permutations(ways):
        places = itertools.product(*(range(count) for _, count in order))
        rows = [dict(zip((axis for axis, _ in order), place, strict=True)) for place in places]
        yield {axis: {number: row[axis] * tensors[0].shape[axis] for number, row in enumerate(rows)} for axis in short}


def _turns(short: list[int], tensors: list[Tensor], *, any_axis: bool) -> list[int]:
    """Return in how many groups the features of a part may lie apart, of the last axis or *any_axis*; 1 for neighbours."""
    if len(short) != 1 or not (any_axis or short == [tensors[0].dim() - 1]) or len({held.shape for held in tensors}) > 1:
        return [1]
    return [each for each in range(1, _MOST_TURNS + 1) if tensors[0].shape[short[0]] % each == 0]


def _entries(start: int, size: int, whole: int, turns: int) -> Tensor:
    """Return the entries of a part of *size* that begins at *start*; in *turns* groups, those of its share of each group."""
    if turns == 1 or size == whole:
        return torch.arange(start, start + size, device="cpu")
    share = size // turns
    return torch.cat([torch.arange(share, device="cpu") + start // turns + group * (whole // turns) for group in range(turns)])


# A side of several ranks


def of_ranks(name: str, stores: Sequence[TensorStore]) -> Side:
    """Return the side that the ranks of one model have saved, each in a folder of its own."""
    numbers = [store.about.get("rank") for store in stores]
    ranks = [place if number is None else int(number) for place, number in enumerate(numbers)]
    if len(set(ranks)) < len(ranks):
        raise ArgumentError(f"{name}: two of the folders are of rank {next(each for each in ranks if ranks.count(each) > 1)}")
    side = Side(name, f"{many(len(stores), 'rank')} of {stores[0].path.parent.name or stores[0].path}", ranks=len(stores))
    shares: dict[Key, list[Share]] = {}
    first: dict[Key, Kept] = {}
    paths: dict[int, set[str]] = {rank: set() for rank in ranks}
    for rank, store in sorted(zip(ranks, stores, strict=True), key=lambda each: each[0]):
        side.unseen |= {Site.parse(text) for text in store.about.get("addends", ())}
        ids = {int(axis): held for axis, held in store.about.get("ids", {}).items()}
        began: int | None = None  # the first step
        for record, kept in of_records(name, store):
            tick = record.get("tick") or {}
            began = tick.get("step", 0) if began is None else began
            is_early = kept.site.port in ("grad", "update") and kept.call >= 0  # before the ranks have added it up
            if is_early or tick.get("step", began) != began:
                continue
            of_parameter = kept.site.port in PARAMETER_PORTS
            pieces = {leaf: Piece(*map(tuple, held)) for leaf, held in (record.get("pieces") or {}).items() if held}
            addend = None if record.get("addend") is None else tuple(record["addend"])
            share = Share(rank, tick.get("forward", 0), kept.leaves, pieces, addend, {} if of_parameter else ids)
            first.setdefault(kept.key, kept)
            if not of_parameter:
                paths[rank].add(kept.site.path)
            shares.setdefault(kept.key, []).append(share)
            if (moved := record.get("rounding")) is not None:
                side.scatter[kept.key] = max(side.scatter.get(kept.key, 0.0), float(moved))
    for key, kept in first.items():
        side.add(replace(kept, leaves=Joined(_of_stages(kept, shares[key], paths))))
    return side


def _of_stages(kept: Kept, shares: list[Share], paths: Mapping[int, set[str]]) -> list[Share]:
    """Return those of *shares* that are of the whole module: where ranks hold other parts of it, its first or its last part.

    So a pipeline divides the model: its input comes in on the first rank, and its output leaves on the last.
    """
    if kept.site.port in PARAMETER_PORTS:
        return shares
    inside = f"{kept.site.path}." if kept.site.path else ""
    held = {share.rank: frozenset(path for path in paths[share.rank] if path.startswith(inside)) for share in shares}
    end = min(held) if kept.site.port in ("input", "grad_input") else max(held)
    return [share for share in shares if held[share.rank] == held[end]]


def liken(a: Side, b: Side, pairs: Mapping[Key, Key]) -> None:
    """Tell the tensors of ranks which event of the other side is theirs: *pairs* are places of ``b`` by those of ``a``."""
    known = {id(side): {kept.key: kept for kept in side.kept} for side in (a, b)}
    back = {other: one for one, other in pairs.items()}
    for side, beside, names in ((a, b, pairs), (b, a, back)):
        for key, kept in known[id(side)].items() if side.ranks else ():
            if isinstance(kept.leaves, Joined) and (other := names.get(key)) in known[id(beside)]:
                kept.leaves.like, kept.leaves.ids = known[id(beside)][other], beside.ids


def settle_gradients(side: Side) -> str:
    """Let gradients at outputs be compared that parts of a batch have, each for a loss of its own; say in words what was done.

    A loss of its own, the mean over a part, is recognised by gradients that are so many times those of the other side as there are
    parts of the batch, on ranks or one after the other. What becomes of that is seen at the gradients of parameters.
    """
    every = [(kept, kept.leaves) for kept in side.forward if isinstance(kept.leaves, Joined) and kept.leaves.like is not None]
    every.sort(key=lambda each: each[0].key != (Site("", "input"), 0))
    divided = next((_divided(kept, leaves) for kept, leaves in every if len(leaves)), 1)
    for _, each in every:
        each.parts = divided
    joined = [(kept, kept.leaves) for kept in side.backward if isinstance(kept.leaves, Joined) and len(kept.leaves)]
    at_outputs = [leaves for kept, leaves in joined if kept.site.port != "grad" and leaves.like is not None]
    if not at_outputs:
        return ""
    shared = ((leaves.wanted(leaf), leaves.wholes(leaf)[0]) for leaves in at_outputs for leaf in leaves)
    wanted, whole = next((each for each in shared if each[1].cells > 1), (None, None))
    if wanted is None or whole is None or whole.tensor.shape != wanted.shape:
        return ""
    factor = _times(whole.tensor, wanted)
    times = round(factor)
    have_own = times > 1 and whole.cells % times == 0 and _apart(whole.tensor / times, wanted) < _SAME
    if not have_own and _apart(whole.tensor / (factor or 1.0), wanted) < _SAME:  # a loss of its own, which is scaled as well
        averaged = (leaves for kept, leaves in joined if kept.site.port == "grad" and leaves.like is not None)
        scales = [_times(leaves[""], of) for leaves in averaged if "" in leaves and (of := leaves.wanted("")) is not None]
        scale = sorted(scales)[len(scales) // 2] if scales else 1.0
        times = round(factor / (scale or 1.0))
        have_own = times == whole.cells and abs(factor / (scale or 1.0) - times) < _SAME
    if not have_own and divided == 1:
        return ""
    for each in at_outputs:
        each.parts, each.means = whole.cells, times if have_own else 1
    asked = "" if len(joined) > len(at_outputs) else "; whether they are averaged is not known: save with parameters=True"
    said = (
        f"{side.name}: parts of the batch have losses of their own, and gradients at outputs are {times} times those of the mean: "
        f"they were divided by {times}{asked}"
    )
    return said if have_own else ""


def _times(one: Tensor, other: Tensor) -> float:
    """Return by which factor *other* comes nearest to *one*; 0 where the shapes differ."""
    x, y = as_numbers(one).flatten(), as_numbers(other).flatten()
    return float(x @ y) / (float(y @ y) or 1.0) if x.shape == y.shape else 0.0


def _divided(kept: Kept, leaves: Joined) -> int:
    """Return into how many parts the batch is divided, as the input of the model shows, or the first axis of another tensor."""
    leaf = next(iter(leaves))
    wanted, share = leaves.wanted(leaf), leaves.shares[0].leaves[leaf]
    is_input = kept.site == Site("", "input")
    if wanted is None or wanted.dim() < 1 or share.dim() != wanted.dim() or not (is_input or share.shape[0] < wanted.shape[0]):
        return 1
    return max(1, leaves.wholes(leaf)[0].cells)


_SAME = 1e-2
"""Relative distance below which a gradient counts as a multiple of another: of numbers that differ by factors."""


ADDENDS = "addends"
"""The beginning of the remark about a place at which ranks hold addends of the tensor of the other side."""


def among_ranks(kept: Kept, leaf: str, floor: float) -> tuple[list[Tensor], str]:
    """Return the different tensors that ranks hold at a place, and in words how they are related to that of the other side."""
    if not isinstance(kept.leaves, Joined) or kept.main is None:
        return [], ""
    leaf = leaf or kept.main[0]
    wholes, wanted = kept.leaves.wholes(leaf), kept.leaves.wanted(leaf)
    if wanted is None:
        return [], ""
    if len(wholes) < 2:
        return [], _among_parts(wholes[0], wanted, kept.leaves.means, floor)
    if {whole.tensor.shape for whole in wholes} == {wanted.shape}:
        total = as_numbers(wholes[0].tensor) + sum(as_numbers(whole.tensor) for whole in wholes[1:])
        if distance(total, as_numbers(wanted)).relative <= floor:
            return [whole.tensor for whole in wholes], f"{ADDENDS} on {_ranks(sorted({each for w in wholes for each in w.ranks}))}"
    agree = [rank for whole in wholes if _apart(whole.tensor, wanted) <= floor for rank in whole.ranks]
    differ = sorted({rank for whole in wholes for rank in whole.ranks} - set(agree))
    words = f"{_ranks(sorted(set(agree)))} alone agree with the other side" if agree and differ else ""
    words = words.replace(" agree", " agrees") if len(set(agree)) == 1 else words
    return [whole.tensor for whole in wholes], words or f"{_ranks(differ)} hold tensors that differ from each other"


def _among_parts(whole: Whole, wanted: Tensor, means: int, floor: float) -> str:
    """Return in words which of the parts alone differ from the tensor of the other side, or that they are all the same."""
    if whole.cells < 2 or whole.tensor.shape != wanted.shape:
        return ""
    places = [(rank, region) for rank, region in whole.parts if region is not None]
    parts = [whole.tensor[region] for _, region in places]
    if all(each.shape == parts[0].shape and torch.equal(each, parts[0]) for each in parts):
        return f"the parts of {_ranks(sorted(set(whole.ranks)))} are equal"
    differ = {rank for rank, at in places if _apart(whole.tensor[at] / means, wanted[at]) > floor}
    return f"only what {_ranks(sorted(differ))} holds differs" if 0 < len(differ) < len(set(whole.ranks)) else ""


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
