"""Every statistic against a slow, obvious oracle: keep every tensor, and ask plain torch in float64 at the end."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.stats import Accumulator, Moments, Statistic

Numbers = dict[str, float]


def moments(kept: list[Tensor]) -> Numbers:
    """What ``Moments`` says it gives, from all tensors at once, in plain torch."""
    dense = [tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach() for tensor in kept]
    every = torch.cat([(tensor.abs() if tensor.is_complex() else tensor).double().flatten() for tensor in dense])
    finite = every[every.isfinite()]
    some = len(finite) > 0
    return {
        "count": float(len(every)),
        "finite": float(len(finite)),
        "mean": finite.mean().item() if some else math.nan,
        "std": finite.std(correction=0).item() if some else math.nan,
        "rms": finite.square().mean().sqrt().item() if some else math.nan,
        "norm": torch.linalg.vector_norm(finite).item(),
        "min": finite.min().item() if some else math.nan,
        "max": finite.max().item() if some else math.nan,
        "absmax": finite.abs().max().item() if some else math.nan,
        "zeros": float((every == 0).sum()),
        "nan": float(every.isnan().sum()),
        "inf": float(every.isinf().sum()),
    }


ORACLES: dict[type[Statistic], tuple[Statistic, Callable[[list[Tensor]], Numbers]]] = {Moments: (Moments(), moments)}
"""Of every statistic: an instance, and its oracle. ``test_laws.py`` fails where a statistic of ``sonde.stats`` has no row."""


def values(*shape: int, dtype: torch.dtype = torch.float32, spread: float = 1.0, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape) + 1)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * spread + shift).to(dtype)


def with_defects(dtype: torch.dtype) -> Tensor:
    tensor = values(40, dtype=dtype)
    tensor[::7] = float("nan")
    tensor[1::9] = float("inf")
    tensor[2::11] = float("-inf")
    tensor[3::5] = 0.0
    return tensor


# situation: the tensors of several updates
SITUATIONS: dict[str, list[Tensor]] = {
    "float32": [values(5, 7), values(3)],
    "float64": [values(5, 7, dtype=torch.float64), values(2, 2, 2, dtype=torch.float64)],
    "bfloat16": [values(64, 9, dtype=torch.bfloat16), values(3, dtype=torch.bfloat16)],
    "float16": [values(64, 9, dtype=torch.float16), values(3, dtype=torch.float16)],
    "float8": [values(8, 8).to(torch.float8_e4m3fn)],
    "dtypes in turn": [values(4, dtype=torch.float16), values(4, dtype=torch.float64), torch.arange(3)],
    "int64": [torch.tensor([[-3, 0, 2], [7, 0, 10**9]])],
    "int8 and uint8": [torch.tensor([-128, 127, 0], dtype=torch.int8), torch.tensor([255, 0], dtype=torch.uint8)],
    "bool": [torch.tensor([True, False, False, True, True])],
    "complex64": [torch.complex(values(6), values(6, shift=2.0)), torch.zeros(2, dtype=torch.complex64)],
    "scalar": [torch.tensor(-2.5), torch.tensor(4.0)],
    "empty": [torch.empty(0), torch.empty(3, 0, 2)],
    "empty and full": [torch.empty(0), values(4), torch.empty(0)],
    "nan and inf": [with_defects(torch.float32), values(3)],
    "nan and inf in bfloat16": [with_defects(torch.bfloat16)],
    "nan and inf in float16": [with_defects(torch.float16)],
    "nothing finite": [torch.tensor([float("nan"), float("inf"), float("-inf")])],
    "all zeros, of both signs": [torch.tensor([0.0, -0.0, 0.0])],
    "one value": [torch.full((1000,), 3.25)],
    "tiny": [torch.full((50,), 1e-20), torch.full((50,), -1e-20)],
    "subnormal": [torch.tensor([1e-42, -1e-44, 0.0])],
    "huge": [torch.full((50,), 3e38), torch.full((50,), -3e38)],
    "large offset": [values(10_000, shift=1e4), values(10_001, shift=1e4)],
    "transposed": [values(6, 5).T, values(4, 4)[::2, 1::2]],
    "expanded": [torch.tensor([[1.5], [-2.0]]).expand(2, 50)],
    "channels last": [values(2, 3, 4, 4).to(memory_format=torch.channels_last)],
    "requires grad": [values(5).requires_grad_(), values(5).requires_grad_() * 2],
    "parameter": [nn.Parameter(values(5))],
    "sparse": [torch.sparse_coo_tensor([[0, 2, 2]], [[1.0, 2.0], [3.0, -4.0], [0.5, 0.5]], (4, 2), check_invariants=True)],
}

TABLE = [
    pytest.param(statistic, oracle, tensors, id=f"{kind.__name__}: {situation}")
    for kind, (statistic, oracle) in ORACLES.items()
    for situation, tensors in SITUATIONS.items()
]


def assert_numbers(found: Numbers, expected: Numbers) -> None:
    """The same names, and values as near as float64 sums allow."""
    assert found.keys() == expected.keys()
    for name, number in expected.items():
        largest = max((abs(expected.get("absmax", 1.0)), 1e-300)) if not math.isnan(expected.get("absmax", 1.0)) else 1.0
        tolerance = 1e-6 * largest if name == "std" else 1e-14 * largest  # std from sums of squares: half the digits
        assert found[name] == pytest.approx(number, rel=1e-9, abs=tolerance, nan_ok=True), name


def test_every_statistic_has_an_oracle() -> None:
    """A statistic that sonde.stats offers and that has no row in the table fails the suite."""
    import importlib
    import pkgutil

    found: set[type] = set()
    for module in pkgutil.walk_packages(sonde.stats.__path__, "sonde.stats."):
        held = vars(importlib.import_module(module.name)).values()
        found |= {kind for kind in held if isinstance(kind, type) and issubclass(kind, Statistic) and not kind.__abstractmethods__}
    assert found == set(ORACLES)


@pytest.mark.parametrize(("statistic", "oracle", "tensors"), TABLE)
def test_numbers_are_those_of_the_oracle(
    statistic: Statistic, oracle: Callable[[list[Tensor]], Numbers], tensors: list[Tensor]
) -> None:
    """Updates with the tensors of a situation, one after the other, give what the oracle says of all of them."""
    accumulator = Accumulator(statistic)
    for tensor in tensors:
        accumulator.update(tensor)
    assert_numbers(accumulator.compute().as_dict(), oracle(tensors))


@pytest.mark.parametrize(("statistic", "oracle", "tensors"), TABLE)
def test_merged_numbers_are_those_of_the_oracle(
    statistic: Statistic, oracle: Callable[[list[Tensor]], Numbers], tensors: list[Tensor]
) -> None:
    """The same tensors seen by one accumulator each, as by ranks, and merged backwards."""
    merged = Accumulator(statistic)
    for tensor in reversed(tensors):
        merged.merge(Accumulator(statistic).update(tensor))
    assert_numbers(merged.compute().as_dict(), oracle(tensors))


# Moments by hand: numbers that anybody can check


def test_moments_by_hand() -> None:
    """Every number of 3, -4, 0 as on paper."""
    assert Accumulator(Moments()).update(torch.tensor([3.0, -4.0, 0.0])).compute().as_dict() == pytest.approx(
        {
            "count": 3.0,
            "finite": 3.0,
            "mean": -1 / 3,
            "std": math.sqrt(25 / 3 - 1 / 9),
            "rms": math.sqrt(25 / 3),
            "norm": 5.0,
            "min": -4.0,
            "max": 3.0,
            "absmax": 4.0,
            "zeros": 1.0,
            "nan": 0.0,
            "inf": 0.0,
        },
        rel=1e-14,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_does_not_overflow(dtype: torch.dtype) -> None:
    """A hundred thousand times 300, whose squares and sums no float16 holds: rms 300, norm 300 sqrt(100000), std 0."""
    numbers = Accumulator(Moments()).update(torch.full((100_000,), 300.0, dtype=dtype)).compute()
    assert numbers.rms == 300.0
    assert numbers.mean == 300.0
    assert numbers.norm == pytest.approx(300 * math.sqrt(100_000), rel=1e-14)
    assert numbers.std == 0.0
    assert numbers.absmax == 300.0
    assert numbers.inf == 0.0


@pytest.mark.parametrize("size", [1e-20, 1e-25])
def test_small_gradients_do_not_vanish(size: float) -> None:
    """A million gradients of 1e-20 or less, whose squares float32 holds badly or not at all: rms 1e-20, norm 1e-17."""
    gradient = torch.full((1000, 1000), size)
    numbers = Accumulator(Moments()).update(gradient).compute()
    assert gradient.square().mean().sqrt().item() != pytest.approx(size, rel=1e-6, abs=0.0), "in float32 this goes wrong"
    assert numbers.rms == pytest.approx(size, rel=1e-7, abs=0.0)
    assert numbers.norm == pytest.approx(1000 * size, rel=1e-7, abs=0.0)
    assert numbers.zeros == 0.0


def test_a_large_mean_leaves_the_spread() -> None:
    """Values of 10000 and 10002 in turn, over many updates: mean 10001, std 1."""
    accumulator = Accumulator(Moments())
    for _ in range(50):
        accumulator.update(torch.tensor([1e4, 1e4 + 2]).repeat(1000))
    numbers = accumulator.compute()
    assert numbers.mean == pytest.approx(10_001.0, rel=1e-14)
    assert numbers.std == pytest.approx(1.0, rel=1e-6)


def test_the_promised_precision_of_the_spread() -> None:
    """A mean of a million times the spread leaves it a relative error of 1e-4, as the docstring says."""
    exact = torch.tensor([1e6 - 1, 1e6 + 1], dtype=torch.float64).repeat(50_000)
    accumulator = Accumulator(Moments())
    for piece in exact.chunk(7):
        accumulator.update(piece)
    assert accumulator.compute().std == pytest.approx(1.0, rel=2e-4)


def test_defects_are_counted_and_left_out() -> None:
    """NaN and infinities are counted apart and do not poison the numbers of the rest."""
    tensor = torch.tensor([float("nan"), 1.0, float("inf"), 3.0, float("-inf"), float("nan"), 0.0, float("nan")])
    numbers = Accumulator(Moments()).update(tensor).compute()
    assert (numbers.count, numbers.finite, numbers.nan, numbers.inf, numbers.zeros) == (8, 3, 3, 2, 1)
    assert numbers.mean == pytest.approx(4 / 3)
    assert (numbers.min, numbers.max, numbers.absmax) == (0.0, 3.0, 3.0)


def test_nothing_seen_is_said_without_a_warning() -> None:
    """Where there is nothing to average, the numbers are NaN and the sums 0."""
    numbers = Accumulator(Moments()).compute()
    assert (numbers.count, numbers.finite, numbers.norm, numbers.zeros) == (0, 0, 0, 0)
    assert all(math.isnan(getattr(numbers, name)) for name in ("mean", "std", "rms", "min", "max", "absmax"))


def test_autocast_does_not_lower_the_precision() -> None:
    """Under autocast the sums are still formed in float64."""
    tensor = values(999, shift=100.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = Accumulator(Moments()).update(tensor).compute().as_dict()
    assert_numbers(inside, moments([tensor]))


def test_integers_beyond_float32_are_exact() -> None:
    """Integers keep their value: 2^24 + 1 is not rounded to a float32."""
    numbers = Accumulator(Moments()).update(torch.tensor([2**24 + 1, 0])).compute()
    assert numbers.max == 2.0**24 + 1
    assert numbers.mean == (2.0**24 + 1) / 2


def test_the_largest_doubles_are_said_without_a_warning() -> None:
    """Doubles whose squares overflow float64 keep count, mean, extremes; nothing warns in the user's program."""
    numbers = Accumulator(Moments()).update(torch.tensor([1e200, -1e200, 1e200], dtype=torch.float64)).compute()
    assert (numbers.count, numbers.finite, numbers.inf) == (3, 3, 0)
    assert numbers.mean == pytest.approx(1e200 / 3)
    assert (numbers.min, numbers.max) == (-1e200, 1e200)


def test_a_probe_adds_up_what_passes_at_each_site() -> None:
    """A statistic given to ``observe`` sees every tensor of a site, over calls and steps, in both directions."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2))
    batches = [values(5, 4), values(2, 4)]
    kept: dict[str, list[Tensor]] = {}
    with sonde.observe(model, Moments(), ports=("input", "output", "grad_output", "grad"), strict=True) as probe:
        for x in batches:
            model(x).sum().backward()
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                kept.setdefault(f"{name}:grad", []).append(parameter.grad.clone())
        rows = {row["site"]: row for row in probe.rows()}
    kept |= {"0:output": [model[0](x) for x in batches], "(root):input": batches, "2:output": [model(x) for x in batches]}
    kept |= {"(root):grad_output": [torch.ones(5, 2), torch.ones(2, 2)]}
    assert len(rows) == 4 * 3 + 4
    for site, tensors in kept.items():
        expected = moments(tensors)
        assert rows[site]["calls"] == 2
        assert_numbers({name: rows[site][name] for name in expected}, expected)
