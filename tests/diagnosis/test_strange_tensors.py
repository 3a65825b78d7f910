"""Models that hold or return tensors which are no plain memory, as quantised weights: each question about them is answered."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.inspector.sentinel.test_strange_tensors import OF_TORCH
from tests.stats.subclasses import Counted, Marked, Opaque, Quantised, Uncopied, quantised
from torch import Tensor, nn

import sonde
from sonde.checkup import doctor, same_bits
from sonde.errors import ObservationWarning

VALUES = torch.tensor([[0.5, -1.0], [2.0, 0.25]])
X = torch.tensor([[1.0, 2.0], [-1.0, 0.5], [0.0, 3.0]])
KINDS: dict[str, Callable[[], Tensor]] = {
    **OF_TORCH,
    "in 8 bits": lambda: quantised(VALUES),
    "uncopied": lambda: Uncopied(VALUES),
    "counted": lambda: Counted(VALUES),
    "marked": lambda: VALUES.as_subclass(Marked),
}


class Base(nn.Module):
    """A frozen layer with the given weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.inner if isinstance(self.weight, Opaque) else self.weight)


class Giving(nn.Module):
    """Holds a tensor and returns it."""

    def __init__(self, held: Tensor) -> None:
        super().__init__()
        self.register_buffer("held", held)

    def forward(self) -> Tensor:
        return self.held  # type: ignore[return-value]


class Beside(nn.Module):
    """A layer beside a module that returns a strange tensor."""

    def __init__(self, made: Tensor, factor: float) -> None:
        super().__init__()
        self.giving = Giving(made)
        self.linear = nn.Linear(2, 2, bias=False)
        self.linear.weight = nn.Parameter(VALUES * factor)

    def forward(self, x: Tensor) -> Tensor:
        self.giving()
        return self.linear(x)  # type: ignore[no-any-return]


def with_head(weight: Tensor) -> nn.Sequential:
    head = nn.Linear(2, 1)
    nn.init.ones_(head.weight)
    return nn.Sequential(Base(weight), head)


@pytest.fixture(autouse=True)
def _prototypes() -> Iterator[None]:
    """Torch calls some of these kinds prototypes; sonde says which cannot be copied."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", ObservationWarning)
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_return_strange_tensors_are_compared(kind: str) -> None:
    """A weight that was scaled beside them is found."""
    found = sonde.compare(Beside(KINDS[kind](), 1.0), Beside(KINDS[kind](), 2.0), X, verbose=False)
    assert found.cause is not None
    assert (found.cause.rule, found.cause.site) == ("weight_scaled", "linear:output")


@pytest.mark.parametrize("kind", ["in 8 bits", "counted", "uncopied", "marked"])
def test_weights_that_are_computed_are_compared_by_their_values(kind: str) -> None:
    """With a plain weight twice as large: the factor is found."""
    weight = KINDS[kind]()
    plain = weight.dequantize() if isinstance(weight, Quantised) else VALUES
    found = sonde.compare(with_head(weight), with_head(plain * 2), X, verbose=False)
    assert found.cause is not None
    assert (found.cause.rule, found.cause.site) == ("weight_scaled", "0:output")


def test_weights_without_values_are_left_out_of_a_comparison() -> None:
    """The place where the models part is found, and how the outputs differ; of the weights nothing is said."""
    found = sonde.compare(with_head(Opaque(VALUES)), with_head(VALUES * 2), X, verbose=False)
    assert [each.rule for each in found.findings] == ["scaled"]
    assert found.culprit is not None
    assert str(found.culprit.site) == "0:output"


@pytest.mark.parametrize(
    ("weight", "unread"), [(quantised(VALUES), ""), (Opaque(VALUES), "state_dict 0.weight")], ids=["in 8 bits", "opaque"]
)
def test_the_doctor_compares_what_can_be_read_and_names_the_rest(weight: Tensor, unread: str) -> None:
    """Of a frozen base with a trained head."""
    model = with_head(weight)
    optimizer = torch.optim.SGD(model.get_submodule("1").parameters(), lr=0.1)
    check = doctor(model, X, lambda out: out.square().mean(), optimizer, seconds=0.1, verbose=False)["unchanged"]
    assert check.verdict == "ok"
    assert check.words.endswith(f"facts compared, and {unread} cannot be read" if unread else "facts compared")


def test_bits_of_computed_values_are_compared() -> None:
    """Of a class that computes its values these count."""
    assert same_bits(quantised(VALUES), quantised(VALUES))
    assert not same_bits(quantised(VALUES), quantised(VALUES * 2))


def test_a_returned_tensor_in_8_bits_is_kept_at_each_module_and_measured() -> None:
    """``track`` copies it where a container returns it, too, and ``summary`` has its moments."""
    model = nn.Sequential(nn.Identity(), nn.Identity())
    given = quantised(VALUES)
    with sonde.track(model, strict=True) as tracker:
        model(given)
    assert [stash.name for stash in tracker] == ["0", "1", ""]
    row = next(row for row in sonde.summary(model, given).rows if row.name == "0")
    assert row.mean == pytest.approx(float(given.dequantize().double().mean()))
