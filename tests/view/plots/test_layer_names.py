"""Names of layers beside a picture, and the places of labels."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonde.site import Site
from sonde.view.plots.layer_names import Include, chosen, labels, spaced, spread_apart

NAME = st.lists(st.text("abcdef0123456789_", min_size=1, max_size=14), min_size=1, max_size=6).map(".".join)


@given(st.lists(NAME, min_size=1, max_size=30, unique=True))
def test_short_names_are_as_different_as_the_names(names: list[str]) -> None:
    short, prefix = labels(names)
    assert len(set(short)) == len(names)
    assert all(name.startswith(prefix) for name in names)
    assert all(text for text in short)


@pytest.mark.parametrize("include", ["a/b", ["a/b"], re.compile("^a/"), "a%2Fb", ["a%2Fb"]])
def test_a_name_with_a_slash_is_chosen_as_the_model_has_it_and_as_its_site_has_it(include: Include) -> None:
    names = [Site("a/b").name, Site("c").name]
    assert chosen(names, include) == [0]
    assert chosen(names, None, include) == [1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0.001, 0.2))
def test_labels_keep_their_order_and_distance_within_the_picture(places: list[float], gap: float) -> None:
    places.sort()
    moved = spread_apart(places, gap)
    room = min(gap, 1 / max(len(places) - 1, 1))
    assert len(moved) == len(places)
    assert all(after - before >= room - 1e-9 for before, after in pairwise(moved))
    assert min(moved) >= -1e-9
    assert max(moved) <= 1 + 1e-9
    if all(after - before >= gap for before, after in pairwise(places)):
        assert moved == pytest.approx(places)


@given(st.integers(1, 500), st.integers(2, 60))
def test_evenly_spaced_positions_have_both_ends(count: int, room: int) -> None:
    chosen = spaced(count, room)
    assert chosen[0] == 0
    assert chosen[-1] == count - 1
    assert len(chosen) == min(count, room)
    gaps = np.diff(chosen)
    assert not len(gaps) or gaps.max() - gaps.min() <= math.ceil(count / room)
