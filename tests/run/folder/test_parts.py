"""Names of parts say which rows count: whatever was merged, left behind or resumed, each row once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sonde.run.folder.parts import Part, cutoffs, live_parts

whole = st.integers(0, 12)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    first = draw(whole)
    return Part(draw(whole), first, first + draw(whole), draw(whole), draw(whole), f"{draw(st.integers(0, 2**32 - 1)):08x}")


@given(parts())
def test_a_name_parses_back(part: Part) -> None:
    assert Part.parse(part.name) == part
    assert Part.parse(f".{part.name}.17.tmp") is None
    assert Part.parse(part.name.replace("part", "sorted")) is None


def flushed(count: int, rank: int = 0) -> list[Part]:
    return [Part(rank, number, number, 0, 1) for number in range(1, count + 1)]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 8), st.booleans()), max_size=8))
def test_after_any_merges_each_flush_counts_exactly_once(merges: list[tuple[int, int, bool]]) -> None:
    """Neighbours are merged at random; what was merged is removed or, as after a kill, left behind."""
    there = flushed(30) + flushed(3, rank=1)
    for start, more, removed in merges:
        together = [part for part in live_parts(there) if part.rank == 0 and start <= part.first and part.last <= start + more]
        if not together:
            continue
        made = Part(0, together[0].first, together[-1].last, 1 + max(part.generation for part in together), 1)
        there = [part for part in there if not (removed and part in together)] + [made]
    counted = [flush for part in live_parts(there) if part.rank == 0 for flush in range(part.first, part.last + 1)]
    assert counted == list(range(1, 31))
    assert [part for part in live_parts(there) if part.rank == 1] == flushed(3, rank=1)


def test_a_part_is_not_held_by_another_rank_or_by_its_own_generation() -> None:
    part = Part(0, 2, 3, 0, 1)
    assert not Part(1, 1, 9, 1, 1).holds(part)
    assert not Part(0, 1, 9, 0, 1).holds(part)
    assert not Part(0, 3, 9, 1, 1).holds(part)
    assert Part(0, 2, 3, 1, 1).holds(part)


def test_rows_are_superseded_from_the_lowest_step_at_which_a_later_life_began() -> None:
    assert cutoffs([(1, 0), (2, 500), (3, 200), (4, 900)]) == {1: 200, 2: 200, 3: 900, 4: None}
    assert cutoffs([]) == {}
