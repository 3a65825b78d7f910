"""Who counts: the owners of pieces, found one rank after the other, against all pieces in one matrix."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sonde.stats import Key, Moments
from sonde.stats.distributed.layout import Ints, KeyList, KeyUnion


@dataclass(frozen=True)
class Part:
    """Stands as a piece of a parameter."""

    number: int
    shape: tuple[int, ...] = (1,)


def unions(lists: Sequence[KeyList]) -> list[KeyUnion]:
    """Return what each rank makes of the key *lists* of all ranks; what they add up together is known once all have added."""
    texts = list(dict.fromkeys(each.text for each in lists))
    of_rank = [texts.index(each.text) for each in lists]
    alike: dict[tuple[bytes, bytes], list[int]] = {}
    for rank, each in enumerate(lists):
        alike.setdefault((each.text, each.pieces.tobytes()), []).append(rank)
    if len(alike) == 1:
        return [KeyUnion(rank, texts, of_rank, each.pieces) for rank, each in enumerate(lists)]

    def pieces() -> Iterator[tuple[Sequence[int], Ints]]:
        yield from ((ranks, lists[ranks[0]].pieces) for ranks in alike.values())

    added: list[torch.Tensor] = []

    def made(rank: int, add_up: Any) -> KeyUnion:
        return KeyUnion(rank, texts, of_rank, lists[rank].pieces, pieces(), add_up)

    for rank in range(len(lists)):
        made(rank, lambda numbers: added.append(numbers.clone()))
    total = torch.stack(added).sum(0)
    return [made(rank, lambda numbers: numbers.copy_(total)) for rank in range(len(lists))]


def held(union: KeyUnion, each: KeyList, keys: Sequence[Key], empty: Sequence[bool]) -> npt.NDArray[np.int64]:
    """Return the pieces of *keys* by their place in the union; 0 for what the rank does not hold."""
    found = np.zeros(len(union._expected[repr(Moments())]), np.int64)
    for key, is_empty in zip(keys, empty, strict=True):
        if key.piece is not None and not is_empty:
            found[union._places[repr(Moments())][(*key.place, key.group)]] = key.piece.number + 1
    return found


@pytest.mark.parametrize("seed", range(12))
def test_owners_are_those_of_a_matrix_of_all_pieces(seed: int) -> None:
    chance = np.random.default_rng(seed)
    ranks, parts = int(chance.integers(1, 9)), int(chance.integers(1, 4))
    of_ranks: list[list[Key]] = []
    empties: list[list[bool]] = []
    for rank in range(ranks):
        here = [number for number in range(20) if chance.random() < 0.9 or seed % 3 == 0]
        numbers = [int(chance.integers(parts)) if seed % 2 else rank % parts for _ in here]
        empty = [bool(chance.random() < 0.1) and parts > 1 for _ in here]
        of_ranks.append(
            [
                Key(("param", f"layer {number}"), piece=Part(part, (0,) if no else (1,)) if number % 5 else None)
                for number, part, no in zip(here, numbers, empty, strict=True)
            ]
        )
        empties.append(empty)
    lists = [KeyList([(Moments(), keys)]) for keys in of_ranks]
    name = repr(Moments())
    made = unions(lists)
    if len({(each.text, each.pieces.tobytes()) for each in lists}) == 1:
        empties = [[False] * len(each) for each in empties]  # a parameter without elements is one for all ranks
    matrix = np.stack([held(*each) for each in zip(made, lists, of_ranks, empties, strict=True)])
    expected = np.array([len(set(column) - {0}) for column in matrix.T.tolist()])
    holders = (matrix != 0).sum(axis=0)
    copies = np.zeros(len(expected))
    for rank, union in enumerate(made):
        mine = matrix[rank]
        lower = ((matrix[:rank] == mine) & (mine != 0)).any(axis=0)
        no_part = np.zeros(len(mine), bool)
        for key, is_empty in zip(of_ranks[rank], empties[rank], strict=True):
            if key.piece is not None and is_empty:
                no_part[union._places[name][(*key.place, key.group)]] = True
        assert union._expected[name].tolist() == expected.tolist()
        assert union._counts[name].tolist() == (~(lower | no_part)).tolist()
        assert union._is_replica[name].tolist() == ((mine != 0) & (expected == 1)).tolist()
        assert union._holders[name].tolist() == np.where((expected > 1) & (holders > expected), holders, 0).tolist()
        copies += union._copies[name]
        assert ((union._copies[name] != 0) <= ((mine != 0) & (union._holders[name] > 0))).all()
    assert np.allclose(copies, 0, atol=1e-12)  # the weights of the holders of one part make up for each other


def test_the_pieces_of_a_thousand_ranks_are_not_held_at_once() -> None:
    ranks, keys = 1024, 10_000
    mine = KeyList([(Moments(), [Key(("param", f"layers.{number}.weight"), piece=Part(0)) for number in range(keys)])])

    def pieces() -> Iterator[tuple[Sequence[int], Ints]]:
        for rank in range(ranks):
            yield [rank], mine.pieces if not rank else np.full(keys, rank, np.int64)

    def add_up(numbers: torch.Tensor) -> None:
        numbers[:] = ranks

    before = KeyUnion(0, [mine.text], [0] * ranks, mine.pieces)  # what the keys themselves take
    tracemalloc.start()
    try:
        KeyUnion(0, [mine.text], [0] * ranks, mine.pieces)
        alone = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        made = KeyUnion(0, [mine.text], [0] * ranks, mine.pieces, pieces(), add_up)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made._expected[repr(Moments())].tolist() == [ranks] * keys
    assert before._expected[repr(Moments())].tolist() == [1] * keys
    assert peak - alone < 10 << 20
