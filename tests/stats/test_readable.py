"""What a statistic reads: tensors of every kind that have values, and an error that names the kind of those without."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.stats.subclasses import Counted, Marked, Opaque, Quantised, quantised
from tests.stats.test_laws import MEMBERS
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from sonde.errors import ArgumentError
from sonde.stats import (
    Accumulator,
    History,
    Moments,
    PairStatistic,
    RowStatistic,
    RunningMeanVar,
    Table,
    Updates,
    cosine,
    elements,
    vanished_share,
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Without what torch says about prototypes and about what it will remove."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.ones(3, 3)


def released() -> Tensor:
    """A tensor whose memory was given back."""
    made = torch.ones(3, 3)
    made.untyped_storage().resize_(0)
    return made


WITHOUT: dict[str, tuple[Callable[[], Tensor], str]] = {
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(3, 3), 0.1, 0, torch.qint8), "quantised"),
    "quantised by channel": (
        lambda: torch.quantize_per_channel(torch.ones(3, 3), torch.ones(3), torch.zeros(3), 0, torch.quint8),
        "quantised",
    ),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
    "ragged": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested"),
    "meta": (lambda: torch.ones(3, 3, device="meta"), "meta"),
    "fake": (fake, "fake"),
    "lazy": (nn.UninitializedParameter, "lazy"),
    "released": (released, "released"),
    "bits": (lambda: torch.zeros(3, 3, dtype=torch.uint8).view(torch.bits8), r"torch\.bits8"),
    "opaque": (lambda: Opaque(torch.ones(3, 3)), "tensor of class Opaque"),
    "masked": (lambda: torch.masked.masked_tensor(torch.ones(3, 3), torch.eye(3) > 0), "tensor of class MaskedTensor"),
}


@pytest.mark.parametrize("kind", WITHOUT)
def test_every_statistic_refuses_a_tensor_without_values(kind: str) -> None:
    """Added by hand, to a table, as a predecessor, or to be kept: the error names the kind, and nothing was added."""
    make, named = WITHOUT[kind]
    tensor, plain = make(), torch.ones(3, 3)
    calls: dict[str, Callable[[], object]] = {
        "elements": lambda: elements(tensor),
        "cosine": lambda: cosine(plain, tensor),
        "vanished_share": lambda: vanished_share(plain, tensor, plain),
        "remember": lambda: History().remember("a", tensor),
        "load": lambda: Accumulator(Updates()).load_state_dict(Accumulator(Updates()).state_dict() | {"previous": tensor}),
    }
    for statistic, _ in MEMBERS:
        accumulator, table = Accumulator(statistic), Table(statistic)
        (row,) = table.allocate(1, "cpu")
        before = plain if isinstance(statistic, PairStatistic) else None
        calls[f"update {statistic}"] = lambda to=accumulator: to.update(tensor)
        calls[f"add {statistic}"] = lambda to=table, row=row, before=before: to.add(row, tensor, before)
    for name, call in calls.items():
        with pytest.raises(ArgumentError, match=rf"a {named} (tensor )?cannot be measured"):
            pytest.fail(f"{name}: {call()!r}")
    accumulator = Accumulator(Moments()).update(plain)
    with pytest.raises(ArgumentError):
        accumulator.update(tensor)
    assert accumulator.compute().count == 9


@pytest.mark.parametrize("kind", WITHOUT)
def test_an_aggregate_of_numbers_refuses_a_tensor_without_values(kind: str) -> None:
    """Also where the tensor has no shape to name."""
    with pytest.raises(ArgumentError, match="a real number or a tensor of one element is needed, not a"):
        RunningMeanVar().update(WITHOUT[kind][0]())


X = torch.tensor([[0.5, -2.0, 0.0], [4.0, 1.0, -8.0], [0.25, 3.0, math.nan]])
SAME: dict[str, Callable[[], Tensor]] = {
    "a class without code": lambda: X.as_subclass(Marked),
    "its parameter": lambda: nn.Parameter(X.as_subclass(Marked)),
    "a class that wraps": lambda: Counted(X),
    "in float64": lambda: Counted(X.double()),
    "sparse": X.to_sparse,
    "compressed": X.to_sparse_csr,
    "oneDNN's": X.to_mkldnn,
    "negated when read": lambda: torch._neg_view(-X),
}


@pytest.mark.parametrize("kind", SAME)
def test_values_are_read_whatever_the_tensor_is_made_of(kind: str) -> None:
    """Each statistic has the numbers of the plain tensor, and runs no code of a class that has memory of its own."""
    tensor = SAME[kind]()
    same = X.to(tensor.dtype)
    Marked.calls.clear()
    for statistic, _ in MEMBERS:
        found, expected = _numbers(statistic, tensor), _numbers(statistic, same)
        assert found == pytest.approx(expected, rel=1e-12, nan_ok=True), statistic
    assert not Marked.calls


def _numbers(statistic: RowStatistic, tensor: Tensor) -> dict[str, float]:
    before = torch.ones(3, 3) if isinstance(statistic, PairStatistic) else None
    try:
        return Accumulator(statistic).update(tensor, before).compute().as_dict()
    except ArgumentError as error:  # another number of features than the statistic reads
        return {str(error): 0.0}


def test_of_a_quantised_weight_what_it_stands_for_is_read() -> None:
    """A class that says its values by ``dequantize()`` and knows no other operation."""
    weight = quantised(X.nan_to_num())
    assert isinstance(weight, Quantised)
    whole = weight.dequantize()
    assert Accumulator(Moments()).update(weight).compute().as_dict() == Accumulator(Moments()).update(whole).compute().as_dict()
