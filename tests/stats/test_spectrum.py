"""Effective rank and top singular value: exact below the size of the sketch, and within the stated error above it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests import bounds
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.stats import Accumulator, Result, Spectrum
from sonde.stats.spectrum import _signs


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


FEATURES = 60
ROWS = 80

SINGULAR = {
    "flat": torch.ones(FEATURES, dtype=torch.float64),
    "slow": torch.arange(1, FEATURES + 1, dtype=torch.float64) ** -0.5,
    "power law": torch.arange(1, FEATURES + 1, dtype=torch.float64) ** -1.5,
    "geometric": 0.6 ** torch.arange(FEATURES, dtype=torch.float64),
    "ten and a floor": torch.cat([torch.ones(10), torch.full((FEATURES - 10,), 1e-4)]).double(),
    "one": torch.cat([torch.ones(1), torch.zeros(FEATURES - 1)]).double(),
    "rank twenty": torch.cat([torch.arange(20) / 20 + 1, torch.zeros(FEATURES - 20)]).double(),
}


def of_squares(matrix: Tensor) -> float:
    """The largest rounding error of a squared singular value."""
    return bounds.of_decomposition(*matrix.shape) * torch.linalg.matrix_norm(matrix).item() ** 2


def amplification(matrix: Tensor, sketch: int) -> float:
    """How much larger rounding becomes: (Q^T G Q)^+ divides by the square of how little of the rows a direction of Q may see."""
    directions = torch.linalg.qr(Spectrum(matrix.shape[1], sketch=sketch)._directions(torch.device("cpu")).double())[0]
    _, singular, right = torch.linalg.svd(matrix, full_matrices=False)
    shares = torch.linalg.svdvals(right[singular > 1e-9 * singular[0]] @ directions)
    return 1 / shares.min().item() ** 2


def of_rank(matrix: Tensor) -> float:
    """The largest rounding error of an effective rank whose singular values are each off by *features* roundings of the top."""
    features = matrix.shape[1]
    return bounds.relative(2 * features) * features**2 * (1 + math.log(features))


def keeps_its_word(matrix: Tensor, sketch: int) -> None:
    numbers = seen(matrix, sketch=sketch)
    top, rank = true(matrix)
    slack = of_squares(matrix) / top
    assert numbers.top - slack <= top <= numbers.top + numbers.top_error + slack
    assert abs(numbers.effective_rank - rank) <= numbers.effective_rank_error + of_rank(matrix)
    assert 1 - of_rank(matrix) <= numbers.effective_rank <= matrix.shape[1] + of_rank(matrix)
    assert numbers.norm == pytest.approx(torch.linalg.matrix_norm(matrix).item(), rel=bounds.relative(matrix.numel()))


@pytest.mark.parametrize("spectrum", SINGULAR)
@pytest.mark.parametrize("sketch", [1, 8, 32, 59, 60, 200])
@pytest.mark.parametrize("aligned", [False, True], ids=["rotated", "along the axes"])
def test_the_true_values_are_within_the_stated_error(spectrum: str, sketch: int, aligned: bool) -> None:
    """Whatever the spectrum, its directions and the size of the sketch, both numbers keep their word."""
    keeps_its_word(torch.diag(SINGULAR[spectrum]) if aligned else rotated(SINGULAR[spectrum], ROWS), sketch)


@pytest.mark.parametrize("sketch", [128, 299, 300, 1000])
def test_many_features_are_within_the_stated_error(sketch: int) -> None:
    """Of 300 equal singular values, whose rank is the number of features, and of 300 that decay slowly."""
    keeps_its_word(rotated(torch.ones(300, dtype=torch.float64), 400), sketch)
    keeps_its_word(rotated(torch.arange(1, 301, dtype=torch.float64) ** -0.5, 400), sketch)


@pytest.mark.parametrize("sketch", [20, 40, 60])
def test_a_matrix_of_no_higher_rank_than_the_sketch_is_exact(sketch: int) -> None:
    """Rank twenty of sixty features: the errors are those of rounding."""
    matrix = rotated(SINGULAR["rank twenty"], ROWS)
    numbers = seen(matrix, sketch=sketch)
    top, rank = true(matrix)
    rounding = of_squares(matrix) * amplification(matrix, sketch)
    assert numbers.top == pytest.approx(top, abs=rounding / top)
    assert numbers.effective_rank == pytest.approx(rank, abs=numbers.effective_rank_error + of_rank(matrix))
    assert numbers.captured == pytest.approx(1.0, abs=rounding / numbers.norm**2)
    assert numbers.top_error < 2 * rounding / top
    assert numbers.effective_rank_error < bounds.of_effective_rank(FEATURES, bounds.of_decomposition(*matrix.shape))


def test_the_error_says_when_a_sketch_is_too_small() -> None:
    """Of a flat spectrum a sketch of 8 sees little, and says so; a larger sketch never captures less."""
    numbers = [seen(rotated(SINGULAR["flat"], ROWS), sketch=size) for size in (2, 8, 32)]
    assert numbers[1].captured < 0.5
    assert numbers[1].effective_rank_error > FEATURES / 3
    assert [item.captured for item in numbers] == sorted(item.captured for item in numbers)


def test_a_decaying_spectrum_needs_a_small_sketch_only() -> None:
    """Of 60 features with a geometric spectrum, 32 directions give the effective rank to a hundredth."""
    matrix = rotated(SINGULAR["geometric"], ROWS)
    numbers = seen(matrix, sketch=32)
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
    assert numbers.top == pytest.approx(top, abs=of_squares(matrix) / top)
    assert numbers.effective_rank == pytest.approx(rank, abs=numbers.effective_rank_error)
    assert seen(matrix, sketch=sketch).effective_rank < 1.1


@pytest.mark.parametrize("size", [1e-9, 1.0, 44.0])
@pytest.mark.parametrize("centered", [False, True])
def test_vectors_that_no_direction_meets_are_captured_by_nothing(size: float, centered: bool) -> None:
    """No estimate is made of rounding errors: the errors say that nothing is known but the norm."""
    matrix = size * torch.tensor([[0, 0, 1, 1], [1, 0, 0, -1], [0, 0, -1, -1], [-1, 0, 0, 1]], dtype=torch.float64)
    directions = _signs(4, 2, matrix.device)
    assert not (matrix @ directions).any()
    numbers = seen(matrix + (size / 3 if centered else 0.0), centered=centered, sketch=2)
    assert (numbers.captured, numbers.top) == (0.0, 0.0)
    top, rank = true(matrix)
    assert numbers.top_error == pytest.approx(numbers.norm)
    assert numbers.top_error >= top
    assert numbers.effective_rank_error >= rank - numbers.effective_rank


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
