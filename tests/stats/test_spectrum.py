"""Effective rank and top singular value: exact below the size of the sketch, and within the stated error above it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.stats import Accumulator, Result, Spectrum


def seen(matrix: Tensor, **arguments: Any) -> Result:
    """The spectrum of the rows of *matrix*, seen in batches of different sizes."""
    accumulator = Accumulator(Spectrum(matrix.shape[1], **arguments))
    for start, end in ((0, 1), (1, 40), (40, 41), (41, len(matrix))):
        accumulator.update(matrix[start:end])
    return accumulator.compute()


def true(matrix: Tensor) -> tuple[float, float]:
    """Top singular value and effective rank, from a decomposition of everything."""
    singular = torch.linalg.svdvals(matrix.double())
    shares = singular[singular > 0] / singular.sum()
    return singular[0].item(), math.exp(-(shares * shares.log()).sum())


def rotated(singular: Tensor, rows: int) -> Tensor:
    """A matrix with these singular values, in directions that no axis is near."""
    left = torch.linalg.qr(torch.randn(rows, len(singular), dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(len(singular), len(singular), dtype=torch.float64))[0]
    return left * singular @ right


def test_by_hand() -> None:
    """Singular values 3 and 1: top 3, effective rank exp of the entropy of 3/4 and 1/4. Equal ones: their number."""
    numbers = Accumulator(Spectrum(2)).update(torch.tensor([[3.0, 0.0], [0.0, 1.0]])).compute()
    assert numbers.top == pytest.approx(3.0, rel=1e-12)
    assert numbers.effective_rank == pytest.approx(math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25))))
    assert (numbers.vectors, numbers.norm, numbers.captured) == (2, pytest.approx(math.sqrt(10)), 1.0)
    assert Accumulator(Spectrum(5)).update(torch.eye(5)).compute().effective_rank == pytest.approx(5.0)


SINGULAR = {
    "flat": torch.ones(300, dtype=torch.float64),
    "slow": torch.arange(1, 301, dtype=torch.float64) ** -0.5,
    "power law": torch.arange(1, 301, dtype=torch.float64) ** -1.5,
    "geometric": 0.9 ** torch.arange(300, dtype=torch.float64),
    "ten and a floor": torch.cat([torch.ones(10), torch.full((290,), 1e-4)]).double(),
    "one": torch.cat([torch.ones(1), torch.zeros(299)]).double(),
    "rank twenty": torch.cat([torch.rand(20) + 1, torch.zeros(280)]).double(),
}


@pytest.mark.parametrize("spectrum", SINGULAR)
@pytest.mark.parametrize("sketch", [1, 8, 32, 128, 299, 300, 1000])
@pytest.mark.parametrize("aligned", [False, True], ids=["rotated", "along the axes"])
def test_the_true_values_are_within_the_stated_error(spectrum: str, sketch: int, aligned: bool) -> None:
    """Whatever the spectrum, its directions and the size of the sketch, both numbers keep their word."""
    matrix = torch.diag(SINGULAR[spectrum]) if aligned else rotated(SINGULAR[spectrum], 400)
    numbers = seen(matrix, sketch=sketch)
    top, rank = true(matrix)
    slack = 1e-9 * top  # rounding
    assert numbers.top - slack <= top <= numbers.top + numbers.top_error + slack
    assert abs(numbers.effective_rank - rank) <= numbers.effective_rank_error
    assert 1 <= numbers.effective_rank <= 300
    assert numbers.norm == pytest.approx(torch.linalg.matrix_norm(matrix).item())


@pytest.mark.parametrize("sketch", [20, 64, 300])
def test_a_matrix_of_no_higher_rank_than_the_sketch_is_exact(sketch: int) -> None:
    """Rank twenty of 300 features: the errors are those of rounding."""
    matrix = rotated(SINGULAR["rank twenty"], 400)
    numbers = seen(matrix, sketch=sketch)
    top, rank = true(matrix)
    assert numbers.top == pytest.approx(top, rel=1e-9)
    assert numbers.effective_rank == pytest.approx(rank, rel=1e-4)
    assert numbers.captured == pytest.approx(1.0, abs=1e-12)
    assert numbers.top_error < 1e-10
    assert numbers.effective_rank_error < 0.02


def test_the_error_says_when_a_sketch_is_too_small() -> None:
    """Of a flat spectrum a sketch of 32 sees little, and says so; a larger sketch never captures less."""
    numbers = [seen(rotated(SINGULAR["flat"], 400), sketch=size) for size in (8, 32, 128)]
    assert numbers[1].captured < 0.5
    assert numbers[1].effective_rank_error > 100
    assert [item.captured for item in numbers] == sorted(item.captured for item in numbers)


def test_a_decaying_spectrum_needs_a_small_sketch_only() -> None:
    """Of 300 features with a geometric spectrum, 128 directions give the effective rank to a hundredth."""
    matrix = rotated(SINGULAR["geometric"], 400)
    numbers = seen(matrix, sketch=128)
    assert numbers.effective_rank == pytest.approx(true(matrix)[1], rel=1e-2)
    assert numbers.top_error < 1e-5


def test_memory_does_not_grow() -> None:
    """A row has a fixed number of entries, set by features and sketch."""
    assert Spectrum(768, sketch=64).width == 3 + 768 + 768 * 64
    assert Spectrum(10).width == 3 + 10 + 100


@pytest.mark.parametrize("sketch", [4, 128])
def test_centered_is_the_spectrum_around_the_mean(sketch: int) -> None:
    """A large common offset dominates the plain spectrum and leaves the centered one alone."""
    matrix = torch.randn(500, 6, dtype=torch.float64) * torch.tensor([3.0, 2.0, 1.0, 0.0, 0.0, 0.0]) + 1000
    numbers = seen(matrix, centered=True, sketch=sketch)
    top, rank = true(matrix - matrix.mean(0))
    assert numbers.top == pytest.approx(top, rel=1e-6)
    assert numbers.effective_rank == pytest.approx(rank, rel=1e-2)
    assert seen(matrix, sketch=sketch).effective_rank < 1.1


def test_equal_vectors_have_no_spread() -> None:
    """Around their mean there is nothing left, and nothing is made up of rounding."""
    numbers = seen(torch.full((50, 4), 0.1), centered=True)
    assert (numbers.norm, numbers.top) == (0.0, 0.0)
    assert math.isnan(numbers.effective_rank)


def test_vectors_with_defects_are_left_out() -> None:
    """One NaN spoils its vector, not the matrix."""
    tensor = torch.tensor([[3.0, 0.0], [float("nan"), 5.0], [0.0, float("inf")]])
    numbers = Accumulator(Spectrum(2)).update(tensor).compute()
    assert (numbers.vectors, numbers.left_out, numbers.top) == (1, 2, pytest.approx(3.0))


def test_the_axis_of_the_features() -> None:
    """Pixels of a convolution's channels are vectors, and so are the tokens of a transformer."""
    pixels = torch.randn(2, 3, 4, 5)
    vectors = pixels.movedim(1, -1).reshape(-1, 3)
    expected = true(vectors)
    for numbers in (
        Accumulator(Spectrum(3, axis=1)).update(pixels).compute(),
        Accumulator(Spectrum(3)).update(pixels.movedim(1, -1)).compute(),
    ):
        assert numbers.vectors == 40
        assert (numbers.top, numbers.effective_rank) == pytest.approx(expected)


def test_nothing_seen() -> None:
    """No vector, and zeros only, have no rank; nothing warns."""
    for numbers in (Accumulator(Spectrum(3)).compute(), Accumulator(Spectrum(200)).update(torch.zeros(4, 200)).compute()):
        assert (numbers.top, numbers.top_error, numbers.norm) == (0.0, 0.0, 0.0)
        assert np.isnan([numbers.effective_rank, numbers.effective_rank_error, numbers.captured]).all()


def test_another_number_of_features_raises() -> None:
    """What does not fit raises and says what was found; so do sizes that are none."""
    with pytest.raises(ArgumentError, match=r"shape \(2, 4\) has 4 features on axis -1, and .* takes 3"):
        Accumulator(Spectrum(3)).update(torch.ones(2, 4))
    with pytest.raises(ArgumentError, match="features and sketch must be 1 or more, not 0 and 128"):
        Spectrum(0)
    with pytest.raises(ArgumentError, match="not 3 and 0"):
        Spectrum(3, sketch=0)
