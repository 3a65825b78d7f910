"""Laws that every statistic obeys, and how rows of them are held.

Each statistic of ``sonde.stats`` is registered in ``STATISTICS``; one that is not fails ``test_every_statistic_is_registered``.
"""

from __future__ import annotations

import gc
import importlib
import io
import pkgutil
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sonde.stats
from sonde.errors import ArgumentError
from sonde.stats import Accumulator, Field, Moments, Slab, Statistic
from sonde.stats.statistic import Column

STATISTICS: dict[type[Statistic], Statistic] = {Moments: Moments()}
"""One instance of every statistic in ``sonde.stats``. A new one needs its line here and an oracle in ``test_oracle.py``."""


def every_statistic() -> set[type[Statistic]]:
    """Every concrete statistic that is defined anywhere in ``sonde.stats``."""
    for found in pkgutil.walk_packages(sonde.stats.__path__, "sonde.stats."):
        importlib.import_module(found.name)
    known: set[type[Statistic]] = set()
    pending: list[type[Statistic]] = [Statistic]
    while pending:
        below = pending.pop().__subclasses__()
        known |= {kind for kind in below if kind.__module__.startswith("sonde.stats") and not kind.__abstractmethods__}
        pending += below
    return known


def test_every_statistic_is_registered() -> None:
    """A statistic of ``sonde.stats`` that no law is tried on fails the suite."""
    assert every_statistic() == set(STATISTICS)
    assert all(type(instance) is kind for kind, instance in STATISTICS.items())


def test_a_new_statistic_would_be_noticed() -> None:
    """The search finds a subclass of a subclass that says it belongs to ``sonde.stats``."""
    new = type("New", (Moments,), {"__module__": "sonde.stats.new"})
    assert new in every_statistic()
    del new
    gc.collect()


# What is added: float32 values whose sums and squares stay far from the limits of float64, with every special value

ELEMENTS = st.one_of(
    st.floats(-1e4, 1e4, width=32), st.sampled_from([0.0, -0.0, 1e-20, -1e-30, float("nan"), float("inf"), float("-inf")])
)
TENSORS = st.lists(ELEMENTS, max_size=12).map(lambda values: torch.tensor(values, dtype=torch.float32))
NO_DEADLINE = settings(deadline=None)  # nothing here is about time
LAWS = pytest.mark.parametrize("statistic", STATISTICS.values(), ids=lambda statistic: type(statistic).__name__)


def seen(statistic: Statistic, *tensors: Tensor) -> Accumulator[Statistic]:
    made = Accumulator(statistic)
    for tensor in tensors:
        made.update(tensor)
    return made


def row(accumulator: Accumulator[Statistic]) -> Tensor:
    return accumulator.state_dict()["row"]  # type: ignore[no-any-return]


def assert_same(one: Accumulator[Statistic], other: Accumulator[Statistic]) -> None:
    """The same sums up to the rounding of float64, which depends on their order."""
    torch.testing.assert_close(row(one), row(other), rtol=1e-12, atol=1e-9)


def assert_identical(one: Accumulator[Statistic], other: Accumulator[Statistic]) -> None:
    assert torch.equal(row(one), row(other))


@LAWS
@NO_DEADLINE
@given(x=TENSORS)
def test_an_empty_row_changes_nothing(statistic: Statistic, x: Tensor) -> None:
    """Merging with an accumulator that saw nothing, from either side, leaves the very same sums."""
    assert_identical(seen(statistic, x).merge(seen(statistic)), seen(statistic, x))
    assert_identical(seen(statistic).merge(seen(statistic, x)), seen(statistic, x))


@LAWS
@NO_DEADLINE
@given(x=TENSORS, y=TENSORS)
def test_merging_is_commutative(statistic: Statistic, x: Tensor, y: Tensor) -> None:
    """It does not matter which accumulator is merged into which."""
    assert_identical(seen(statistic, x).merge(seen(statistic, y)), seen(statistic, y).merge(seen(statistic, x)))


@LAWS
@NO_DEADLINE
@given(x=TENSORS, y=TENSORS, z=TENSORS)
def test_merging_is_associative(statistic: Statistic, x: Tensor, y: Tensor, z: Tensor) -> None:
    """It does not matter how ranks, steps or files are grouped."""
    left = seen(statistic, x).merge(seen(statistic, y)).merge(seen(statistic, z))
    right = seen(statistic, x).merge(seen(statistic, y).merge(seen(statistic, z)))
    assert_same(left, right)


@LAWS
@NO_DEADLINE
@given(x=TENSORS, cuts=st.lists(st.integers(0, 12), max_size=3))
def test_chunks_give_what_the_whole_gives(statistic: Statistic, x: Tensor, cuts: list[int]) -> None:
    """A tensor in pieces, empty ones included, adds up to the tensor in one, by updates and by merges."""
    ends = sorted(min(cut, len(x)) for cut in cuts)
    pieces = [x[start:end] for start, end in zip([0, *ends], [*ends, len(x)], strict=True)]
    assert_same(seen(statistic, *pieces), seen(statistic, x))
    merged = seen(statistic)
    for piece in pieces:
        merged.merge(seen(statistic, piece))
    assert_same(merged, seen(statistic, x))


@LAWS
@NO_DEADLINE
@given(x=TENSORS, order=st.randoms(use_true_random=False))
def test_neither_order_nor_layout_matters(statistic: Statistic, x: Tensor, order: Any) -> None:
    """Elements in another order, and in a strided view, give the same sums."""
    indices = list(range(len(x)))
    order.shuffle(indices)
    assert_same(seen(statistic, x[indices]), seen(statistic, x))
    strided = torch.zeros(len(x), 3)
    strided[:, 1] = x
    assert_same(seen(statistic, strided[:, 1]), seen(statistic, x))


@LAWS
@NO_DEADLINE
@given(x=TENSORS, y=TENSORS)
def test_a_state_round_trip_loses_nothing(statistic: Statistic, x: Tensor, y: Tensor) -> None:
    """A state saved without pickle and loaded again goes on as if nothing had happened; it is a copy, not a view."""
    before = seen(statistic, x)
    state = before.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    after = Accumulator(statistic).load_state_dict(torch.load(file, weights_only=True))
    assert_identical(after, before)
    assert_identical(after.update(y), before.update(y))
    assert_identical(Accumulator(statistic).load_state_dict(state), seen(statistic, x))


@LAWS
@NO_DEADLINE
@given(x=TENSORS, y=TENSORS)
def test_nothing_but_the_row_changes(statistic: Statistic, x: Tensor, y: Tensor) -> None:
    """The tensor that is added, the accumulator that is merged in, and the numbers read twice all stay as they were."""
    bits = x.clone().view(torch.int32)
    first, second = seen(statistic, x), seen(statistic, y)
    other = row(second)
    first.merge(second)
    assert torch.equal(x.view(torch.int32), bits)
    assert torch.equal(row(second), other)
    assert repr(first.compute().as_dict()) == repr(first.compute().as_dict())


@LAWS
@NO_DEADLINE
@given(x=TENSORS)
def test_reset_forgets_everything(statistic: Statistic, x: Tensor) -> None:
    """After ``reset`` an accumulator is as new."""
    assert_identical(seen(statistic, x).reset(), seen(statistic))


@LAWS
def test_merging_with_itself_doubles(statistic: Statistic) -> None:
    """An accumulator merged into itself has seen everything twice."""
    x = torch.tensor([1.0, -2.0, 0.0])
    one = seen(statistic, x)
    assert_same(one.merge(one), seen(statistic, x, x))


@LAWS
def test_sums_made_in_inference_mode_can_be_added_to_later(statistic: Statistic) -> None:
    """Evaluating under ``inference_mode`` leaves an accumulator that training can go on with, however it was touched."""
    x, y = torch.tensor([1.0, -2.0]), torch.tensor([3.0])
    with torch.inference_mode():
        touched = {
            "made": seen(statistic),
            "updated": seen(statistic, x),
            "merged": seen(statistic).merge(seen(statistic, x)),
            "loaded": seen(statistic).load_state_dict(seen(statistic, x).state_dict()),
            "reset": seen(statistic, x).reset(),
        }
    failed = {}
    for name, accumulator in touched.items():
        try:
            accumulator.update(y)
        except RuntimeError as error:
            failed[name] = str(error)
            continue
        assert_same(accumulator, seen(statistic, y) if name in ("made", "reset") else seen(statistic, x, y))
    assert failed == {}


# Errors


class Extremes(Statistic):
    """A statistic of this file: how many, the least and the greatest, to try the merge kinds by themselves."""

    fields: ClassVar[tuple[Field, ...]] = (Field("n"), Field("low", "min"), Field("high", "max"))

    def measure(self, tensor: Tensor) -> Tensor:
        values = tensor.double()
        return torch.stack([torch.tensor(float(values.numel()), dtype=torch.float64), values.min(), values.max()])

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        return {"n": columns["n"], "spread": columns["high"] - columns["low"]}


def test_each_field_is_merged_in_its_own_way() -> None:
    """Sums add, minima take the least and maxima the greatest; an empty row holds 0, inf and -inf."""
    statistic = Extremes()
    one = torch.tensor([2.0, -1.0, 5.0], dtype=torch.float64)
    other = torch.tensor([3.0, 0.5, 4.0], dtype=torch.float64)
    assert statistic.merged(one, other).tolist() == [5.0, -1.0, 5.0]
    assert statistic.merged(torch.stack([one, other]), torch.stack([other, other])).tolist() == [[5, -1, 5], [6, 0.5, 4]]
    assert statistic.empty(2).tolist() == [[0.0, float("inf"), float("-inf")]] * 2
    numbers = Accumulator(statistic).update(torch.tensor([4.0, 1.0])).update(torch.tensor([9.0])).compute()
    assert numbers.as_dict() == {"n": 3.0, "spread": 8.0}


def test_fields_in_the_wrong_order_raise_when_the_class_is_made() -> None:
    """Sums come first, then minima, then maxima: a class that lists them otherwise is refused."""
    with pytest.raises(ArgumentError, match=r"Wrong\.fields must list sums first"):
        type("Wrong", (Statistic,), {"fields": (Field("low", "min"), Field("n"))})


def test_different_statistics_do_not_merge() -> None:
    """Merging accumulators of two statistics raises and names both."""
    with pytest.raises(ArgumentError, match=r"Extremes.*Moments"):
        Accumulator[Statistic](Moments()).merge(Accumulator[Statistic](Extremes()))


@pytest.mark.parametrize("state", [{}, {"row": torch.zeros(1, 3)}, {"row": [0.0]}, {"row": None}])
def test_a_foreign_state_raises(state: dict[str, Any]) -> None:
    """A state that is not one of the statistic raises and says what it needs; nothing is taken over."""
    accumulator = seen(Moments(), torch.ones(2))
    with pytest.raises(ArgumentError, match="not the state of Moments"):
        accumulator.load_state_dict(state)
    assert accumulator.compute().as_dict()["count"] == 2.0


def test_a_number_that_does_not_exist_names_those_that_do() -> None:
    """A misspelt number of a result raises ``AttributeError`` with the names there are."""
    with pytest.raises(AttributeError, match=r"no number 'spraed'; there are n, spread"):
        _ = Accumulator(Extremes()).update(torch.ones(1)).compute().spraed


# Slab


def test_a_slab_reads_all_its_blocks_in_order() -> None:
    """Rows of several allocations come back in the order they were allocated, each with its number of additions."""
    slab = Slab(Moments())
    assert slab.read() == ([], {})
    first, alone, last = slab.allocate(2, "cpu"), slab.allocate(1, "cpu"), slab.allocate(3, "cpu")
    rows = [*first, *alone, *last]
    assert len(slab) == 6
    for index, held in enumerate(rows):
        for _ in range(index):
            slab.add(held, torch.tensor([float(index), float(-index)]))
    counts, columns = slab.read()
    assert counts == [0, 1, 2, 3, 4, 5]
    assert columns["count"].tolist() == [0, 2, 4, 6, 8, 10]
    assert columns["max"][1:].tolist() == [1, 2, 3, 4, 5]
    assert columns["min"][1:].tolist() == [-1, -2, -3, -4, -5]
    assert [held.shape for held in rows] == [(1 + len(Moments.fields),)] * 6


def test_a_reset_slab_is_empty_and_its_rows_have_not_moved() -> None:
    """``reset`` empties rows in place: the views that hooks hold, whose address is built into code, still count."""
    slab = Slab(Moments())
    (held,) = slab.allocate(1, "cpu")
    address = held.data_ptr()
    slab.add(held, torch.tensor([100.0]))
    slab.reset()
    assert slab.read()[0] == [0]
    slab.allocate(2, "cpu")
    slab.add(held, torch.tensor([2.0, 4.0]))
    counts, columns = slab.read()
    assert counts == [1, 0, 0]
    assert [columns[name][0] for name in ("count", "mean", "min", "max")] == [2.0, 3.0, 2.0, 4.0]
    assert held.data_ptr() == address


def test_what_was_read_does_not_change_later() -> None:
    """Numbers read from a slab are a copy: adding more, or emptying it, leaves them as they were."""
    slab = Slab(Moments())
    (held,) = slab.allocate(1, "cpu")
    slab.add(held, torch.tensor([1.0]))
    _, columns = slab.read()
    slab.add(held, torch.tensor([50.0]))
    slab.reset()
    assert columns["count"].tolist() == [1.0]
    assert columns["max"].tolist() == [1.0]


def test_rows_allocated_in_inference_mode_can_be_added_to_in_training() -> None:
    """Rows are ordinary tensors wherever they were allocated, and adding in inference mode works too."""
    slab = Slab(Moments())
    with torch.inference_mode():
        (held,) = slab.allocate(1, "cpu")
        slab.add(held, torch.tensor([1.0]))
    slab.add(held, torch.tensor([3.0]))
    assert slab.read()[1]["mean"].tolist() == [2.0]
