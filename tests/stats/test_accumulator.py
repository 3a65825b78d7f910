"""One row for people: what it says, what it refuses, and how pairs come about."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.stats import Accumulator, Activation, Cosine, ExponentHistogram, Field, Moments, Norm, RowStatistic, Statistic, reduce
from sonde.stats.statistic import Column


class Extremes(Statistic):
    """A statistic of this file: how many, the least and the greatest, to try the merge kinds by themselves."""

    fields: ClassVar[tuple[Field, ...]] = (Field("n"), Field("low", "min", size=2), Field("high", "max"))

    def measure(self, tensor: Tensor) -> Tensor:
        values = tensor.double()
        return torch.stack([torch.tensor(float(values.numel()), dtype=torch.float64), values.min(), -values.max(), values.max()])

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        return {"n": columns["n"], "spread": columns["high"] - columns["low"][:, 0]}


# Rows


def test_each_field_is_merged_in_its_own_way() -> None:
    """Sums add, minima take the least and maxima the greatest, number by number; an empty row holds 0, inf and -inf."""
    statistic = Extremes()
    one = torch.tensor([2.0, -1.0, 7.0, 5.0], dtype=torch.float64)
    other = torch.tensor([3.0, 0.5, 6.0, 4.0], dtype=torch.float64)
    assert statistic.width == 4
    assert statistic.layout() == (("n", 1), ("low", 2), ("high", 1))
    assert statistic.merged(one, other).tolist() == [5.0, -1.0, 6.0, 5.0]
    assert statistic.merged(torch.stack([one, other]), torch.stack([other, other])).tolist() == [[5, -1, 6, 5], [6, 0.5, 6, 4]]
    assert statistic.empty(2).tolist() == [[0.0, float("inf"), float("inf"), float("-inf")]] * 2
    assert reduce(statistic, torch.stack([one, other, one])).tolist() == [7.0, -1.0, 6.0, 5.0]
    assert reduce(statistic, statistic.empty(0)).tolist() == statistic.empty(1)[0].tolist()
    numbers = Accumulator(statistic).update(torch.tensor([4.0, 1.0])).update(torch.tensor([9.0])).compute()
    assert numbers.as_dict() == {"n": 3.0, "spread": 8.0}


def test_a_field_of_several_numbers_is_one_column_of_rows() -> None:
    """Columns have an axis of rows, and a second one only where a field has more than one number."""
    columns = Extremes().columns(torch.arange(8.0, dtype=torch.float64).reshape(2, 4))
    assert {name: column.tolist() for name, column in columns.items()} == {"n": [0, 4], "low": [[1, 2], [5, 6]], "high": [3, 7]}


def test_fields_in_the_wrong_order_raise_when_the_class_is_made() -> None:
    """Sums come first, then minima, then maxima: a class that lists them otherwise is refused."""
    with pytest.raises(ArgumentError, match=r"Wrong\.fields must list sums first"):
        type("Wrong", (Statistic,), {"fields": (Field("low", "min"), Field("n"))})


# Merging what does not merge


def test_different_statistics_do_not_merge() -> None:
    """Merging accumulators of two kinds, or of one kind with other arguments, raises and names both."""
    with pytest.raises(ArgumentError, match=r"Extremes.*Moments"):
        Accumulator[Statistic](Moments()).merge(Accumulator[Statistic](Extremes()))
    with pytest.raises(ArgumentError, match=r"eps=0\.5.*eps=0\.1"):
        Accumulator(Activation(eps=0.1)).merge(Accumulator(Activation(eps=0.5)))
    other: Any = Moments()
    with pytest.raises(ArgumentError, match="cannot merge Moments into Moments"):
        Accumulator(Moments()).merge(other)


def test_pairs_do_not_merge_or_reduce() -> None:
    """Neither accumulators nor rows of a pair statistic add up, and the error says why."""
    one: Any = Accumulator(Cosine()).update(torch.ones(2))
    with pytest.raises(
        ArgumentError, match=r"cannot merge accumulators of Cosine\(\): it compares each tensor with the one before"
    ):
        one.merge(one)
    statistic: Any = Cosine()
    with pytest.raises(ArgumentError, match=r"cannot reduce rows of Cosine\(\): it compares each tensor with the one before"):
        reduce(statistic, statistic.empty(2))


def test_rows_of_another_width_do_not_reduce() -> None:
    """Rows that are not the statistic's raise and say what was found."""
    with pytest.raises(ArgumentError, match=r"rows of shape \(2, 3\): Norm\(\) has rows of 4 numbers"):
        reduce(Norm(), torch.zeros(2, 3))
    with pytest.raises(ArgumentError, match=r"rows of shape \(4,\)"):
        reduce(Norm(), torch.zeros(4))


# States


STATES: list[dict[str, Any]] = [
    {},
    {"row": torch.zeros(1, 8)},
    {"statistic": "Moments()", "row": torch.zeros(1, 3)},
    {"statistic": "Moments()", "row": [0.0]},
    {"statistic": "Moments()", "row": None},
    {"statistic": "Norm()", "row": torch.zeros(1, 8)},
    {"statistic": "Moments()", "row": torch.zeros(1, 8), "previous": 3},
]


@pytest.mark.parametrize("state", STATES)
def test_a_foreign_state_raises(state: dict[str, Any]) -> None:
    """A state that is not one of the statistic raises and says what it needs; nothing is taken over."""
    accumulator = Accumulator(Moments()).update(torch.ones(2))
    with pytest.raises(ArgumentError, match="not the state of Moments"):
        accumulator.load_state_dict(state)
    assert accumulator.compute().as_dict()["count"] == 2.0


def test_a_state_of_other_arguments_raises() -> None:
    """Sums of activity above 0.5 are not those of activity above 0.1, though the rows look alike."""
    state = Accumulator(Activation(eps=0.5)).update(torch.ones(2)).state_dict()
    with pytest.raises(ArgumentError, match=r"eps=0\.1.*is of Activation\(eps=0\.5"):
        Accumulator(Activation(eps=0.1)).load_state_dict(state)


def test_accumulators_pickle_and_copy() -> None:
    """A copy and a pickle go on by themselves."""
    first = Accumulator(Cosine()).update(torch.tensor([1.0, 0.0])).update(torch.tensor([1.0, 0.0]))
    for other in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert other.update(torch.tensor([0.0, 1.0])).compute().cosine == 0.5
    assert first.compute().cosine == 1.0


# Pairs


def test_the_first_tensor_is_no_pair() -> None:
    """Equal gradients, n of them, make n - 1 pairs of cosine 1; the first is not a pair of cosine 0."""
    accumulator = Accumulator(Cosine())
    gradient = torch.tensor([3.0, -4.0])
    assert accumulator.update(gradient).compute().pairs == 0
    for _ in range(3):
        accumulator.update(gradient)
    assert (accumulator.compute().pairs, accumulator.compute().cosine) == (3, 1.0)


def test_a_pair_that_is_given_stands_by_itself() -> None:
    """Explicit pairs neither use nor replace the tensor that is kept."""
    accumulator = Accumulator(Cosine()).update(torch.tensor([1.0, 0.0]))
    accumulator.update(torch.tensor([0.0, 1.0]), torch.tensor([0.0, -1.0]))
    assert accumulator.compute().cosine == -1.0
    accumulator.update(torch.tensor([1.0, 0.0]))
    assert (accumulator.compute().pairs, accumulator.compute().cosine) == (2, 0.0)


def test_a_changed_batch_size_is_counted_and_never_raises() -> None:
    """Batches of 4, 4, 2, 1, 1: two pairs and two that are none; nothing broadcasts."""
    accumulator = Accumulator(Cosine())
    for size in (4, 4, 2, 1, 1):
        accumulator.update(torch.ones(size, 3))
    numbers = accumulator.compute()
    assert (numbers.pairs, numbers.skipped, numbers.cosine) == (2, 2, 1.0)


def test_an_interval_can_go_on_from_the_last_one() -> None:
    """``reset`` forgets the kept tensor, and with ``keep_previous`` the first pair reaches back over the boundary."""
    one = Accumulator(Cosine()).update(torch.tensor([1.0, 0.0])).reset().update(torch.tensor([1.0, 0.0]))
    assert one.compute().pairs == 0
    assert one.reset(keep_previous=True).update(torch.tensor([1.0, 0.0])).compute().pairs == 1


def test_the_kept_tensor_travels_with_the_state() -> None:
    """A restored accumulator compares its first tensor with the last one before it was saved."""
    first = Accumulator(Cosine()).update(torch.tensor([1.0, 0.0]))
    assert Accumulator(Cosine()).load_state_dict(first.state_dict()).update(torch.tensor([-1.0, 0.0])).compute().cosine == -1.0


# Bad input


def bad_tensors() -> dict[str, Any]:
    return {
        "a list": [1.0, 2.0],
        "a number": 3.0,
        "None": None,
        "meta": torch.empty(3, device="meta"),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    }


@pytest.mark.parametrize("statistic", [Moments(), ExponentHistogram(), Activation(), Cosine()], ids=str)
@pytest.mark.parametrize("kind", bad_tensors())
def test_what_is_no_tensor_of_values_raises(statistic: RowStatistic, kind: str) -> None:
    """Lists, numbers, meta and nested tensors raise an error that says what to do, and leave the row as it was."""
    accumulator = Accumulator(statistic).update(torch.ones(2))
    before = accumulator.compute().as_dict()
    with pytest.raises(ArgumentError, match=r"give torch\.as_tensor|unbind\(\)|real device"):
        accumulator.update(bad_tensors()[kind])
    assert accumulator.compute().as_dict() == pytest.approx(before, nan_ok=True)


def test_what_is_no_statistic_raises() -> None:
    """The class instead of an instance, the usual slip, is named in the error."""
    given: Any = Moments
    with pytest.raises(ArgumentError, match=r"needs an instance of a statistic.*make one: Moments\(\.\.\.\)"):
        Accumulator(given)
    given = "moments"
    with pytest.raises(ArgumentError, match=r"not 'moments'; sonde\.stats has them"):
        Accumulator(given)


def test_a_previous_tensor_is_for_pairs_only() -> None:
    """A statistic that measures tensors one by one refuses a second one."""
    with pytest.raises(ArgumentError, match=r"Moments\(\) measures tensors one by one"):
        Accumulator(Moments()).update(torch.ones(2), torch.ones(2))


# Results


def test_a_number_that_does_not_exist_names_those_that_do() -> None:
    """A misspelt number of a result raises ``AttributeError`` with the names there are."""
    with pytest.raises(AttributeError, match=r"no number 'spraed'; there are n, spread"):
        _ = Accumulator(Extremes()).update(torch.ones(1)).compute().spraed


def test_a_short_result_is_one_line() -> None:
    """Counts are whole numbers, however large; the rest has six digits."""
    result = Accumulator(Norm()).update(torch.full((2_000_000,), 0.1)).compute()
    assert repr(result) == "Result(count=2000000, finite=2000000, nan=0, inf=0, norm=141.421, rms=0.1)"
    assert repr(Accumulator(Cosine())) == (
        "Accumulator(Cosine(), Result(pairs=0, skipped=0, undefined=0, cosine=nan, elements=0, nonfinite=0))"
    )


def test_a_long_result_has_a_line_per_number() -> None:
    """Names stand in a column, and every number is shown."""
    lines = repr(Accumulator(ExponentHistogram()).update(torch.tensor([0.0, 1.0, float("nan")])).compute()).splitlines()
    assert lines[:3] == ["Result(", "    count          = 3", "    finite         = 2"]
    assert len(lines) == 26
    assert {"count", "p50", "overflow_e5m2"} <= set(dir(Accumulator(ExponentHistogram()).compute()))
