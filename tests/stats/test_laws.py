"""Every statistic obeys the laws, and the harness that says so notices one that does not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import hypothesis
import pytest
import torch
from torch import Tensor

import sonde
import sonde.stats
from sonde.errors import MissingExtraError
from sonde.stats import (
    Accumulator,
    Activation,
    ChannelActivation,
    Cosine,
    ExponentHistogram,
    Field,
    Moments,
    Norm,
    PairStatistic,
    RowStatistic,
    Spectrum,
    Statistic,
    Updates,
)
from sonde.stats.samples import MatrixCondition, SampleNorm, Single
from sonde.stats.statistic import Column
from sonde.testing.laws import assert_laws, assert_traceable, members

MEMBERS: list[tuple[RowStatistic, tuple[int, ...]]] = [
    (Moments(), ()),
    (Norm(), (2,)),
    (ExponentHistogram(), ()),
    (Activation(), (3,)),
    (Activation(eps=1.0, channel_axis=-1), (2, 3)),
    (ChannelActivation(3), (3, 2)),
    (Spectrum(3), (3,)),
    (Spectrum(4, sketch=2, axis=1, centered=True), (4, 2)),
    (Cosine(), ()),
    (Updates(), (2,)),
    (Updates(torch.bfloat16), ()),
    (SampleNorm(), (2,)),
    (Single(), ()),
    (MatrixCondition(), (3,)),
]
"""Instances of every statistic in ``sonde.stats``, with the shape of one sample."""

EVERY = pytest.mark.parametrize(("statistic", "sample"), MEMBERS, ids=str)


def test_every_statistic_is_registered() -> None:
    """A statistic of ``sonde.stats`` that no law is tried on fails the suite."""
    assert members(sonde.stats) == {type(statistic) for statistic, _ in MEMBERS}


def test_a_new_statistic_would_be_noticed() -> None:
    """The search finds a subclass of a subclass, of either family, that says it belongs to ``sonde.stats``."""
    for base in (Moments, Cosine):
        new = type("New", (base,), {"__module__": "sonde.stats.new"})
        assert new in members(sonde.stats)
        del new
        gc.collect()
    assert Honest not in members(sonde.stats)


@pytest.mark.parametrize("examples", [10, pytest.param(100, marks=pytest.mark.slow)])
@EVERY
def test_every_statistic_obeys_the_laws(statistic: RowStatistic, sample: tuple[int, ...], examples: int) -> None:
    """Identity, associativity, commutativity, chunks, order, round trips, purity; for pairs, what they are instead."""
    assert_laws(statistic, sample=sample, examples=examples)


@EVERY
def test_doubles_whose_squares_overflow_never_raise(statistic: RowStatistic, sample: tuple[int, ...]) -> None:
    """The largest doubles, beside a sample of ones: numbers may be infinite or none, nothing raises or warns, counts stand."""
    tensor = torch.ones(4, *sample, dtype=torch.float64)
    tensor[0], tensor[1], tensor[2] = 1e308, -1e308, 1e200
    numbers = Accumulator(statistic).update(tensor).update(tensor.neg()).compute().as_dict()
    counts = {name: numbers[name] for name in ("count", "elements", "positions", "vectors", "nan", "nonfinite") if name in numbers}
    assert counts
    assert all(number >= 0 and number.is_integer() for number in counts.values())


@EVERY
def test_autocast_does_not_lower_the_precision(statistic: RowStatistic, sample: tuple[int, ...]) -> None:
    """Under autocast rows are the same, bit by bit."""
    tensors = [torch.randn(6, *sample) + 100, torch.randn(6, *sample)]
    rows = []
    for enabled in (False, True):
        accumulator = Accumulator(statistic)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            for tensor in tensors:
                accumulator.update(tensor)
        rows.append(accumulator.state_dict()["row"])
    assert torch.equal(*rows)


@pytest.mark.slow
@EVERY
def test_every_statistic_can_be_traced(statistic: RowStatistic, sample: tuple[int, ...]) -> None:
    """What ``torch.compile`` traces, without a graph break, measures what eager code measures; defects and types included."""
    plain = torch.randn(6, *sample)
    spoiled = plain.clone()
    spoiled.view(-1)[:4] = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0])
    assert_traceable(statistic, plain, spoiled, plain.bfloat16(), plain[:0], plain.double(), plain > 0)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_every_statistic_compiles_to_machine_code() -> None:
    """``add`` of all of them, in one graph given to inductor: the same rows as in eager mode."""
    spoiled = torch.randn(6, 12)
    spoiled[0, :4] = torch.tensor([float("nan"), float("inf"), 0.0, 1e-40])
    samples = [(spoiled.reshape(-1, *sample), spoiled.neg().reshape(-1, *sample)) for _, sample in MEMBERS]

    def add(rows: list[Tensor]) -> None:
        for row, (statistic, _), (tensor, previous) in zip(rows, MEMBERS, samples, strict=True):
            given = (tensor, previous) if isinstance(statistic, PairStatistic) else (tensor,)
            statistic.add(row, *given)  # type: ignore[attr-defined]

    eager, compiled = ([statistic.empty(1)[0] for statistic, _ in MEMBERS] for _ in range(2))
    run = torch.compile(add, fullgraph=True)
    for _ in range(2):
        add(eager)
        run(compiled)
    for (statistic, _), one, other in zip(MEMBERS, eager, compiled, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12, msg=lambda text, name=str(statistic): f"{name}: {text}")


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_statistics_are_the_same_in_a_compiled_model() -> None:
    """A model compiled whole, observed with statistics of every kind of row, leaves the rows that it leaves in eager mode."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3))
    batches = [torch.randn(5, 4), torch.randn(5, 4)]
    for statistic in (ExponentHistogram(), Activation(), ChannelActivation(3), Spectrum(3, sketch=2)):
        found = []
        for called in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
            torch._dynamo.reset()
            with sonde.observe(model, statistic, ports=("output", "grad_output")) as probe:
                for batch in batches:
                    called(batch).sum().backward()
                found.append({row["site"]: row for row in probe.rows()})
        eager, compiled = found
        assert eager.keys() == compiled.keys()
        assert len(eager) == 8
        for site, row in eager.items():
            numbers = {name: number for name, number in row.items() if isinstance(number, float)}
            assert {name: compiled[site][name] for name in numbers} == pytest.approx(numbers, rel=1e-6, abs=1e-6, nan_ok=True), site


# The harness notices what it says it notices: one right statistic, and one for each way to get it wrong


@dataclass(frozen=True)
class Honest(Statistic):
    """Count, sum, least and greatest of the finite elements."""

    fields: ClassVar[tuple[Field, ...]] = (Field("n"), Field("sum"), Field("low", "min"), Field("high", "max"))

    def measure(self, tensor: Tensor) -> Tensor:
        values = tensor.detach().double().flatten()
        values = values[values.isfinite()]
        if not len(values):
            return self.empty(1)[0]
        return torch.stack([values.new_tensor(float(len(values))), values.sum(), values.min(), values.max()])

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        return {"n": columns["n"], "sum": columns["sum"], "low": columns["low"], "high": columns["high"]}


@dataclass(frozen=True)
class HonestPair(PairStatistic):
    """How many elements a pair has."""

    sums: ClassVar[tuple[str, ...]] = ("elements",)

    def measure(self, tensor: Tensor, previous: Tensor) -> Tensor:
        return torch.tensor([tensor.numel()], dtype=torch.float64)

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        return {"pairs": columns["pairs"], "elements": columns["elements"]}


def counting_calls(self: Any, tensor: Tensor) -> Tensor:
    measured = Honest.measure(Honest(), tensor)
    return measured + torch.tensor([1.0, 0.0, 0.0, 0.0])


def first_element(self: Any, tensor: Tensor) -> Tensor:
    measured = Honest.measure(Honest(), tensor)
    measured[1] = tensor.double().flatten()[:1].nan_to_num(0, 0, 0).sum()
    return measured


def clamping(self: Any, tensor: Tensor) -> Tensor:
    return Honest.measure(Honest(), tensor.nan_to_num_(0.0, 0.0, 0.0))


def in_single_precision(self: Any, tensor: Tensor) -> Tensor:
    return Honest.measure(Honest(), tensor).float()


def last_wins(self: Any, row: Tensor, other: Tensor) -> Tensor:
    return other.clone()


def halves(self: Any, row: Tensor, other: Tensor) -> Tensor:
    return (row + other) / 2


def of_the_first_row(self: Any, columns: Mapping[str, Column]) -> dict[str, Column]:
    return {name: column[:1].repeat(len(column)) for name, column in columns.items()}


def dividing_by_nothing(self: Any, columns: Mapping[str, Column]) -> dict[str, Column]:
    return {"mean": columns["sum"] / columns["n"]}


def spending(self: Any, columns: Mapping[str, Column]) -> dict[str, Column]:
    columns["n"][:] += 1
    return {name: column - (name == "n") for name, column in columns.items()}


def keeping_the_graph(self: Any, tensor: Tensor) -> Tensor:
    return Honest.measure(Honest(), tensor) * torch.ones(4, requires_grad=True)


MUTANTS: dict[str, tuple[dict[str, Any], str]] = {
    "counts calls in a field per element": ({"measure": counting_calls}, "chunks give what the whole gives"),
    "sees the first element only": ({"measure": first_element}, "chunks give|neither the order|updating is merging"),
    "writes into the tensor": ({"measure": clamping}, "nothing but the row changes|has written into the tensor"),
    "measures in float32": ({"measure": in_single_precision}, "its layout is that of the row it measures"),
    "keeps a graph": ({"measure": keeping_the_graph}, "its layout is that of the row|rows made under|many rows finish"),
    "forgets what it had": ({"merged": last_wins}, "."),
    "averages instead of adding": ({"merged": halves}, "."),
    "finishes the first row only": ({"finish": of_the_first_row}, "many rows finish as each one does"),
    "warns of an empty row": ({"finish": dividing_by_nothing}, "many rows finish as each one does: .*encountered"),
    "has two fields of one name": ({"fields": (Field("n"), Field("n"), Field("l", "min"), Field("h", "max"))}, "one name"),
    "is no value": ({"__eq__": object.__eq__, "__hash__": object.__hash__}, "it is a value"),
    "has no repr": ({"__repr__": object.__repr__}, "a repr of its own"),
    "changes what it reads": ({"finish": spending}, "nothing but the row changes: .*finishing changed the column n"),
}


@pytest.fixture
def first_example() -> Iterator[None]:
    """The first example that breaks a law is the one that is told: none is made smaller, which takes most of the time."""
    hypothesis.settings.register_profile("first", phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
    before = hypothesis.settings.get_current_profile_name()
    hypothesis.settings.load_profile("first")
    yield
    hypothesis.settings.load_profile(before)


@pytest.mark.slow
def test_the_harness_passes_what_is_right() -> None:
    """A statistic and a pair statistic from outside, written as the documentation says."""
    assert_laws(Honest(), examples=20)
    assert_laws(HonestPair(), sample=(2,), examples=20)


@pytest.mark.usefixtures("first_example")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_harness_notices(mutant: str) -> None:
    """A statistic that is wrong in one way breaks a law, and the error names it."""
    attributes, law = MUTANTS[mutant]
    wrong = type("Wrong", (Honest,), attributes)()
    with pytest.raises(AssertionError, match=f"(?s)breaks the law that.*({law})"):
        assert_laws(wrong, examples=20)


def adding_anyway(self: Any, tensor: Tensor, previous: Tensor) -> Tensor:
    return torch.tensor([1.0, 0.0, tensor.numel()], dtype=torch.float64)


def asking_for_one_shape(self: Any, tensor: Tensor, previous: Tensor) -> Tensor:
    return torch.cat([torch.ones(2), (tensor - previous).flatten()[:1]]).double()


@pytest.mark.usefixtures("first_example")
@pytest.mark.parametrize("row_of", [adding_anyway, asking_for_one_shape])
def test_the_harness_notices_a_pair_that_is_none(row_of: Callable[..., Tensor]) -> None:
    """A pair statistic that takes tensors of different shapes for a pair, or raises, breaks a law."""
    wrong = type("Wrong", (HonestPair,), {"row_of": row_of})()
    with pytest.raises(AssertionError, match="breaks the law that"):
        assert_laws(wrong, sample=(2,), examples=20)


class Branching(Honest):
    """Waits for the device to decide, which no trace can."""

    def measure(self, tensor: Tensor) -> Tensor:
        return super().measure(tensor) if tensor.sum() > 0 else self.empty(1)[0]


@pytest.mark.slow
def test_the_harness_notices_what_cannot_be_traced() -> None:
    """A statistic that reads a value on the host is told so."""
    with pytest.raises(AssertionError, match=r"cannot be traced"):
        assert_traceable(Branching(), torch.randn(3))


def test_without_hypothesis_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness needs one optional package, and names it."""
    monkeypatch.setitem(__import__("sys").modules, "hypothesis", None)
    with pytest.raises(MissingExtraError, match=r"assert_laws needs the package 'hypothesis'.*sonde\[testing\]"):
        assert_laws(Moments())
