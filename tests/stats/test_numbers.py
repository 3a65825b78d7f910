"""What a statistic declares of its numbers is complete and true, and everything that shows or unscales them reads it there."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.stats.test_laws import MEMBERS
from torch import Tensor, nn

import sonde
from sonde.errors import ArgumentError, ObservationWarning
from sonde.number import STANDARD, Number, described
from sonde.stats import Accumulator, Activation, Field, PairStatistic, RowStatistic, Statistic
from sonde.stats.statistic import Column, elements
from sonde.view import plots

EVERY = pytest.mark.parametrize("statistic", [*(statistic for statistic, _ in MEMBERS), Activation(eps=0.0)], ids=str)


def numbers_of(statistic: RowStatistic, tensor: Tensor, previous: Tensor) -> dict[str, float]:
    """What *statistic* finishes of one tensor, or of one pair."""
    seen = Accumulator(statistic)
    if isinstance(statistic, PairStatistic):
        seen.update(tensor, previous)
    else:
        seen.update(tensor)
    return seen.compute().as_dict()


def some(statistic: RowStatistic, samples: int) -> tuple[Tensor, Tensor]:
    """A tensor with zeros and units that never act, and its predecessor."""
    sample = next(sample for each, sample in MEMBERS if each == statistic or type(each) is type(statistic) is Activation)
    draw = torch.Generator().manual_seed(1)
    first, second = (torch.randn(samples, *sample, generator=draw, dtype=torch.float64) for _ in range(2))
    first.view(-1)[0] = 0.0
    return first.relu() if sample and isinstance(statistic, Activation) else first, second


@EVERY
def test_every_number_is_described_once(statistic: RowStatistic) -> None:
    """The names of ``numbers`` are those that ``finish`` gives."""
    names = [number.name for number in statistic.numbers]
    assert sorted(names) == sorted(statistic.finish(statistic.columns(statistic.empty(1))))


@EVERY
@pytest.mark.parametrize("factor", [2.0**10, 2.0**-7])
def test_a_number_follows_a_factor_as_it_declares(statistic: RowStatistic, factor: float) -> None:
    """Of a tensor that is multiplied by a power of two, which rounds nothing."""
    tensor, previous = some(statistic, 6)
    found = numbers_of(statistic, tensor, previous)
    scaled = numbers_of(statistic, tensor * factor, previous * factor)
    histogram = "ExponentHistogram" in str(statistic)  # declares that its numbers are meant of the scaled tensor
    for number in statistic.numbers:
        if number.scaling is not None and not histogram:
            # a singular value is computed up to about the rounding of the largest
            expected = found[number.name] * factor**number.scaling
            assert scaled[number.name] == pytest.approx(expected, rel=1e-9, abs=1e-9 * factor**number.scaling, nan_ok=True), (
                number.name
            )


@pytest.mark.parametrize("statistic", [statistic for statistic, _ in MEMBERS if statistic.can_sample], ids=str)
def test_a_number_follows_the_size_as_it_declares(statistic: RowStatistic) -> None:
    """A tensor laid out four times has four times as many of each element."""
    tensor, previous = some(statistic, 6)
    found = numbers_of(statistic, tensor, previous)
    large = numbers_of(statistic, torch.cat([tensor] * 4), torch.cat([previous] * 4))
    for number in statistic.numbers:
        assert number.growth is not None
        # a hundred float64 roundings
        assert large[number.name] == pytest.approx(found[number.name] * 4**number.growth, rel=1e-13, nan_ok=True), number.name


@dataclass(frozen=True)
class MeanMagnitude(Statistic):
    """A newcomer's statistic; ``bare`` is the same number, of which nothing is declared."""

    fields: ClassVar[tuple[Field, ...]] = (Field("sum"), Field("count"))
    numbers: ClassVar[tuple[Number, ...]] = (Number("l1", "mean |x|", "Mean magnitude", "size", None, scaling=1.0),)

    def measure(self, tensor: Tensor) -> Tensor:
        magnitudes = elements(tensor).abs()
        return torch.stack([magnitudes.sum(), torch.full_like(magnitudes.sum(), magnitudes.numel())])

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        mean = columns["sum"] / np.where(columns["count"] > 0, columns["count"], np.nan)
        return {"l1": mean, "bare": mean}


def scaled_training(statistic: RowStatistic) -> tuple[sonde.Inspector, float]:
    """Two steps under a scale of 1,024 without an update; and the true mean magnitude of the root's gradient."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen = sonde.lens.Lens("l1", statistic, ("grad_output",))
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, scaler=scaler, lenses=seen) as inspector:
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    y = model(x)
    (gradient,) = torch.autograd.grad(y.square().mean(), y)
    return inspector, gradient.abs().mean().item()


def test_a_newcomers_number_is_unscaled_if_it_says_how_and_nan_if_not() -> None:
    """Never too large by the scale of the loss; one warning names the number and the cure."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inspector, truth = scaled_training(MeanMagnitude())
    found = {name: inspector.run.series("(root):grad_output", name)[1] for name in ("l1", "bare")}
    # a mean of 24 float32 numbers, which the scale of 2**10 does not round
    assert found["l1"].tolist() == pytest.approx([truth] * 2, rel=24 * 2**-24)
    assert np.isnan(found["bare"]).all()
    ours = [str(each.message) for each in caught if issubclass(each.category, ObservationWarning)]
    assert len(ours) == 1
    assert "bare of MeanMagnitude() in l1 is NaN" in ours[0]
    assert "scaling=1" in ours[0]


def test_shares_of_gradients_above_a_limit_are_nan_under_a_scaler() -> None:
    """The limit was compared with scaled gradients; at a limit of 0 only exact zeros count, whatever the scale."""
    for eps, known in ((0.0, True), (1e-8, False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ObservationWarning)
            inspector, _ = scaled_training(Activation(eps))
        assert (inspector.run.series("(root):grad_output", "call_activation")[1] == 1.0).all() == known


def test_a_newcomers_picture_has_its_title_and_unit() -> None:
    """Without a line anywhere else: the lens writes the description into the run."""
    pytest.importorskip("matplotlib")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ObservationWarning)
        run = scaled_training(MeanMagnitude())[0].run
    assert described(run.info, "l1")["l1"] == Number("l1", "mean |x|", "Mean magnitude", "size", None)
    drawn = plots.plan(run)["l1-grad_output"](theme="light")
    texts = [text.get_text() for text in drawn.findobj() if hasattr(text, "get_text")]
    assert any("Mean magnitude of gradients of outputs" in text for text in texts)
    assert any("mean |x|, loss / unit of the output" in text for text in texts)


def test_a_measure_of_another_width_says_so() -> None:
    """Whoever adds: an accumulator, or a hook."""

    @dataclass(frozen=True)
    class Short(MeanMagnitude):
        fields: ClassVar[tuple[Field, ...]] = (Field("sum"), Field("count"), Field("more"))

    with pytest.raises(ArgumentError, match="measure gave 2 numbers, fields say 3"):
        Accumulator(Short()).update(torch.ones(3))
    model = nn.Linear(2, 2)
    with sonde.observe(model, Short(), strict=True), pytest.raises(ArgumentError, match="measure gave 2 numbers, fields say 3"):
        model(torch.ones(1, 2))


def test_descriptions_survive_the_run_and_nonsense_is_left_out() -> None:
    """Plain data there and back; what a stranger's run says wrongly describes nothing."""
    for number in STANDARD.values():
        read = Number.read(number.plain())
        assert read is not None
        assert (read.short, read.whole, read.kind, read.unit) == (number.short, number.whole, number.kind, number.unit)
    for nonsense in (
        None,
        3,
        {},
        {"name": 1},
        {**STANDARD["rms"].plain(), "kind": "colour"},
        {**STANDARD["rms"].plain(), "unit": 1},
    ):
        assert Number.read(nonsense) is None
    assert described({"lenses": [{"family": "a", "numbers": "b"}, 7]}, "a") == {}
    assert described({}, "a") == {}
