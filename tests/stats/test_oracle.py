"""Every statistic against a slow, obvious oracle: keep every tensor, and ask plain torch in float64 at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from tests import bounds
from torch import Tensor, nn

import sonde.stats
from sonde.stats import (
    Activation,
    ChannelActivation,
    Cosine,
    ExponentHistogram,
    Moments,
    Norm,
    RowStatistic,
    Spectrum,
    Updates,
)
from sonde.stats.samples import MatrixCondition, SampleNorm, Single
from sonde.testing.laws import members
from sonde.testing.oracle import Oracle, assert_oracle, situations

Numbers = dict[str, float]
NAN = math.nan


def plain(tensor: Tensor) -> Tensor:
    """Any tensor as float64 numbers of the same shape."""
    tensor = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    return tensor.to(torch.complex128).abs() if tensor.is_complex() else tensor.double()


def everything(kept: list[Tensor]) -> Tensor:
    return torch.cat([plain(tensor).flatten() for tensor in kept])


def share(part: float, whole: float) -> float:
    return part / whole if whole else NAN


def spread(finite: Tensor) -> float:
    """The standard deviation of the population, in two passes with exact sums: off by a few roundings, whatever the mean."""
    values = finite.tolist()
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def moments(kept: list[Tensor]) -> Numbers:
    every = everything(kept)
    finite = every[every.isfinite()]
    some = len(finite) > 0
    return {
        "count": float(len(every)),
        "finite": float(len(finite)),
        "mean": finite.mean().item() if some else NAN,
        "std": spread(finite) if some else NAN,
        "rms": finite.square().mean().sqrt().item() if some else NAN,
        "norm": torch.linalg.vector_norm(finite).item() if some or not len(every) else NAN,
        "min": finite.min().item() if some else NAN,
        "max": finite.max().item() if some else NAN,
        "absmax": finite.abs().max().item() if some else NAN,
        "zeros": float((every == 0).sum()),
        "nan": float(every.isnan().sum()),
        "inf": float(every.isinf().sum()),
    }


def norm(kept: list[Tensor]) -> Numbers:
    numbers = moments(kept)
    return {name: numbers[name] for name in ("count", "finite", "nan", "inf", "norm", "rms")}


FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def overflows(magnitude: Tensor, name: str) -> Tensor:
    """Where a real cast leaves the finite values. The cast to e4m3 saturates: above 464 that is not rounding any more."""
    return magnitude > 464 if name == "e4m3" else ~magnitude.to(FORMATS[name]).double().isfinite()


def power(magnitude: float) -> int:
    """The e with ``2**(e-1) < magnitude <= 2**e``."""
    mantissa, exponent = math.frexp(magnitude)
    return exponent - 1 if mantissa == 0.5 else exponent


def exponents(kept: list[Tensor]) -> Numbers:
    every = everything(kept)
    finite = every[every.isfinite()]
    magnitudes = finite.abs().sort().values
    powers = [power(size) for size in magnitudes[magnitudes > 0].tolist()]
    numbers = {
        "count": float(len(every)),
        "finite": float(len(finite)),
        "zeros": float((every == 0).sum()),
        "negative": float((finite < 0).sum()),
        "nan": float(every.isnan().sum()),
        "inf": float(every.isinf().sum()),
    }
    for percent in (1, 5, 25, 50, 75, 95, 99):
        if len(magnitudes):
            size = magnitudes[max(math.ceil(percent / 100 * len(magnitudes)), 1) - 1].item()
            numbers[f"p{percent:02}"] = 2.0 ** (power(size) - 0.5) if size else 0.0
        else:
            numbers[f"p{percent:02}"] = NAN
    numbers["lowest"] = float(powers[0]) if powers else NAN
    numbers["highest"] = float(powers[-1]) if powers else NAN
    numbers["dynamic_range"] = float(powers[-1] - powers[0]) if powers else NAN
    for name, dtype in FORMATS.items():
        gone = (magnitudes > 0) & (magnitudes.to(dtype).double() == 0)
        numbers[f"underflow_{name}"] = share(float(gone.sum()), len(finite))
    for name in FORMATS:
        numbers[f"overflow_{name}"] = share(float(overflows(magnitudes, name).sum()), len(finite))
    return numbers


def channels(tensor: Tensor, axis: int) -> list[Tensor]:
    """The elements of each channel."""
    values = plain(tensor)
    if values.dim() <= axis:
        return [values.flatten()]
    return [values.select(axis, index).flatten() for index in range(values.shape[axis])]


def rate(elements: Tensor, eps: float) -> float:
    finite = elements[elements.isfinite()]
    return share(float((finite.abs() > eps).sum()), len(finite))


def is_dead(elements: Tensor, eps: float) -> bool:
    return len(elements) > 0 and all(abs(element) <= eps for element in elements.tolist())


def mean(numbers: list[float]) -> float:
    known = [number for number in numbers if not math.isnan(number)]
    return share(math.fsum(known), len(known))


def activation(kept: list[Tensor], eps: float = 1e-8, axis: int = 1) -> Numbers:
    every = everything(kept)
    calls = [channels(tensor, axis) for tensor in kept if plain(tensor).isfinite().any()]
    return {
        "count": float(len(every)),
        "finite": float(every.isfinite().sum()),
        "nan": float(every.isnan().sum()),
        "inf": float(every.isinf().sum()),
        "activation": rate(every, eps),
        "judged": float(len(calls)),
        "call_activation": mean([mean([rate(channel, eps) for channel in call]) for call in calls]),
        "call_death": mean([share(sum(is_dead(channel, eps) for channel in call), len(call)) for call in calls]),
    }


def channel_activation(kept: list[Tensor]) -> Numbers:
    each = [torch.cat(parts) for parts in zip(*(channels(tensor, 1) for tensor in kept), strict=True)]
    every = everything(kept)
    rates = [rate(channel, 0.5) for channel in each]
    known = [number for number in rates if not math.isnan(number)]
    dead = sum(is_dead(channel, 0.5) for channel in each)
    return {
        "channels": float(len(each)),
        "positions": float(len(each[0])),
        "nan": float(every.isnan().sum()),
        "inf": float(every.isinf().sum()),
        "activation": mean(rates),
        "least": min(known, default=NAN),
        "most": max(known, default=NAN),
        "dead": float(dead),
        "death": dead / len(each) if len(each[0]) else NAN,
    }


def spectrum(kept: list[Tensor], *, centered: bool = False) -> Numbers:
    vectors = torch.cat([plain(tensor).reshape(-1, 5) for tensor in kept])
    matrix = vectors[vectors.isfinite().all(1)]
    if centered and len(matrix):
        size = torch.linalg.vector_norm(matrix)
        matrix = matrix - matrix.mean(0)
        if torch.linalg.vector_norm(matrix) <= bounds.relative(len(matrix)) * size:  # equal vectors: what is left is rounding
            matrix = torch.zeros_like(matrix)
    singular = torch.linalg.svdvals(matrix)
    shares = singular[singular > 0] / singular.sum()
    return {
        "vectors": float(len(matrix)),
        "left_out": float(len(vectors) - len(matrix)),
        "norm": torch.linalg.matrix_norm(matrix).item() if len(matrix) else NAN if len(vectors) else 0.0,
        "captured": 1.0 if len(shares) else NAN,
        "top": singular.max().item() if len(singular) else NAN if len(vectors) else 0.0,
        "effective_rank": math.exp(-(shares * shares.log()).sum()) if len(shares) else NAN,
    }


def pairs(kept: list[Tensor]) -> tuple[list[tuple[Tensor, Tensor]], Numbers]:
    """Each tensor and the one before it, where they have one shape, and how many those are."""
    every = list(zip(kept[1:], kept, strict=False))
    formed = [(after, before) for after, before in every if after.shape == before.shape]
    return formed, {"pairs": float(len(formed)), "skipped": float(len(every) - len(formed))}


def both_parts(after: Tensor, before: Tensor) -> tuple[Tensor, Tensor, int]:
    """A pair as real vectors without the elements that are not finite in both, and how many those are."""
    is_complex = after.is_complex() or before.is_complex()

    def parts(tensor: Tensor) -> Tensor:
        tensor = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
        tensor = tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()
        if not is_complex:
            return tensor.flatten()
        return torch.cat([tensor.real.flatten(), (tensor.imag if tensor.is_complex() else torch.zeros_like(tensor)).flatten()])

    one, other = parts(after), parts(before)
    finite = one.isfinite() & other.isfinite()
    return one[finite], other[finite], int((~finite).sum())


def cosine(kept: list[Tensor]) -> Numbers:
    formed, numbers = pairs(kept)
    cosines, elements, nonfinite = [], 0, 0
    for after, before in formed:
        one, other, left_out = both_parts(after, before)
        elements, nonfinite = elements + len(one), nonfinite + left_out
        lengths = math.hypot(*one.tolist()) * math.hypot(*other.tolist())
        cosines.append(share(math.fsum((one * other).tolist()), lengths))
    undefined = sum(math.isnan(number) for number in cosines)
    return numbers | {
        "undefined": float(undefined),
        "cosine": mean(cosines),
        "elements": float(elements),
        "nonfinite": float(nonfinite),
    }


def sample_norm(kept: list[Tensor], axis: int = 0) -> Numbers:
    samples = []
    for tensor in map(plain, kept):
        values = tensor.transpose(0, 1) if axis and tensor.dim() == 3 else tensor
        samples += [sample.flatten() for sample in (values if values.dim() else [values])]
    parts = [finite.tolist() for sample in samples if len(finite := sample[sample.isfinite()])]
    norms = [math.hypot(*part) for part in parts]
    return {
        "nonfinite": float(sum(int((~sample.isfinite()).sum()) for sample in samples)),
        "samples": float(len(parts)),
        "norm": mean(norms),
        "rms": mean([norm / math.sqrt(len(part)) for norm, part in zip(norms, parts, strict=True)]),
    }


def single(kept: list[Tensor]) -> Numbers:
    every = everything(kept)
    values = every.tolist()
    infinite = set(filter(math.isinf, values))
    spoiled = any(map(math.isnan, values)) or len(infinite) == 2
    value = NAN if spoiled or not values else infinite.pop() if infinite else math.fsum(values) / len(values)
    return {"count": float(len(values)), "value": value, "nonfinite": float((~every.isfinite()).sum())}


def condition(kept: list[Tensor]) -> Numbers:
    conditions, ranks, nonfinite = [], [], 0
    for tensor in kept:
        held = (tensor.to_dense() if tensor.layout != torch.strided else tensor).detach()
        matrix = held.flatten(1) if held.dim() > 1 else held.reshape(1, -1)
        matrix = matrix.to(torch.complex128 if matrix.is_complex() else torch.float64)
        nonfinite += int((~matrix.isfinite()).sum())
        matrix = torch.where(matrix.isfinite(), matrix, 0.0)
        if matrix.abs().sum():
            singular = np.linalg.svd(matrix.resolve_conj().numpy(), compute_uv=False)
            singularity = singular[-1] <= max(matrix.shape) * np.finfo(np.float64).eps * singular[0]
            conditions.append(math.inf if singularity else float(singular[0] / singular[-1]))
            ranks.append(float(np.square(singular / singular[0]).sum()))
    return {
        "nonfinite": float(nonfinite),
        "matrices": float(len(conditions)),
        "condition": mean(conditions),
        "stable_rank": mean(ranks),
    }


MANTISSA = {torch.float8_e4m3fn: 3, torch.bfloat16: 7, torch.float16: 10, torch.float32: 23, torch.complex64: 23, torch.float64: 52}


def updates(kept: list[Tensor], precision: torch.dtype | None = None) -> Numbers:
    formed, numbers = pairs(kept)
    norms, weights, ratios = [], [], []
    elements = nonfinite = unchanged = vanished = judged = 0
    for after, before in formed:
        one, other, left_out = both_parts(after, before)
        elements, nonfinite = elements + len(one), nonfinite + left_out
        norms.append(NAN if left_out and not len(one) else math.hypot(*(one - other).tolist()))
        weights.append(NAN if left_out and not len(one) else math.hypot(*other.tolist()))
        ratios.append(share(norms[-1], weights[-1]))
        unchanged += int((one == other).sum())
        if after.dtype in MANTISSA and before.dtype in MANTISSA:
            target = precision or min(after.dtype, before.dtype, key=MANTISSA.__getitem__)
            if MANTISSA[target] < MANTISSA[after.dtype]:
                judged += len(one)
                vanished += int(((one != other) & (one.to(target) == other.to(target))).sum())
    return numbers | {
        "elements": float(elements),
        "nonfinite": float(nonfinite),
        "update_norm": mean(norms),
        "weight_norm": mean(weights),
        "ratio": mean(ratios),
        "unchanged": share(unchanged, elements),
        "vanished": share(vanished, judged),
    }


SUMS = bounds.relative(2 * bounds.SUM + 10)
"""A sum of ours and one of torch's, and the products, quotients and roots around them, of terms of one sign."""


def of_moments(tensors: list[Tensor]) -> Numbers:
    """A mean, whose terms may cancel, as a share of the largest magnitude; and a standard deviation, as a share of itself."""
    numbers = moments(tensors)
    smallest = min((int(plain(tensor).isfinite().sum()) for tensor in tensors if plain(tensor).isfinite().any()), default=0)
    if not smallest:
        return {}
    return {"mean": SUMS * numbers["absmax"], "std": numbers["std"] * bounds.of_std(numbers["finite"] / smallest)}


def of_spectrum(tensors: list[Tensor], *, centered: bool = False) -> Numbers:
    """Squares of singular values, which are off by a share of all squares before the mean is taken away."""
    vectors = torch.cat([plain(tensor).reshape(-1, 5) for tensor in tensors])
    all_squares = vectors[vectors.isfinite().all(1)].square().sum().item()
    found = spectrum(tensors, centered=centered)
    if not found["norm"]:
        return {}
    error = bounds.of_decomposition(*vectors.shape) * all_squares
    share = error / found["norm"] ** 2
    return {
        "top": error / found["top"],
        "norm": error / found["norm"],
        "captured": share,
        "effective_rank": bounds.of_effective_rank(5, share),
    }


def of_single(tensors: list[Tensor]) -> Numbers:
    """A mean, whose terms may cancel, as a share of the largest magnitude."""
    largest = moments(tensors)["absmax"]
    return {} if math.isnan(largest) else {"value": SUMS * largest}


def of_condition(tensors: list[Tensor]) -> Numbers:
    """A quotient of singular values, each off by a few roundings of the largest for each element of the shorter side."""
    return {"condition": bounds.relative(100) * condition(tensors)["condition"] ** 2}


@dataclass(frozen=True)
class Case:
    """A statistic, its oracle, the size of the last axis that it needs, and how near its numbers must be.

    Sums are added in another order by each: ``rel`` and ``absolute`` follow from :mod:`tests.bounds`.
    """

    statistic: RowStatistic
    oracle: Oracle
    features: int | None = None
    rel: float = SUMS
    absolute: Callable[[list[Tensor]], Mapping[str, float]] = lambda tensors: {}
    unchecked: tuple[str, ...] = ()


ERRORS = ("top_error", "effective_rank_error")  # bounds, which no oracle gives; test_spectrum.py holds them to their word

CASES: dict[type[RowStatistic], list[Case]] = {
    Moments: [Case(Moments(), moments, absolute=of_moments)],
    Norm: [Case(Norm(), norm)],
    ExponentHistogram: [Case(ExponentHistogram(), exponents)],
    Activation: [
        Case(Activation(), activation),
        Case(Activation(eps=0.5, channel_axis=0), lambda kept: activation(kept, 0.5, 0)),
    ],
    ChannelActivation: [Case(ChannelActivation(3, eps=0.5), channel_activation, 3)],
    Spectrum: [
        Case(Spectrum(5), spectrum, 5, absolute=of_spectrum, unchecked=ERRORS),
        Case(
            Spectrum(5, centered=True),
            partial(spectrum, centered=True),
            5,
            absolute=partial(of_spectrum, centered=True),
            unchecked=ERRORS,
        ),
    ],
    SampleNorm: [Case(SampleNorm(), sample_norm), Case(SampleNorm(sample_axis=1), partial(sample_norm, axis=1))],
    Single: [Case(Single(), single, absolute=of_single)],
    MatrixCondition: [Case(MatrixCondition(), condition, absolute=of_condition)],
    Cosine: [Case(Cosine(), cosine, absolute=lambda tensors: {"cosine": SUMS})],  # a share of the two lengths
    Updates: [
        Case(Updates(), updates),
        Case(Updates(torch.bfloat16), lambda kept: updates(kept, torch.bfloat16)),
    ],
}
"""Of every statistic, at least one instance with its oracle. One that is missing fails ``test_every_statistic_has_an_oracle``."""

TABLE = [
    pytest.param(case, situation, id=f"{case.statistic}: {situation}")
    for cases in CASES.values()
    for case in cases
    for situation in situations(case.features)
]


def test_every_statistic_has_an_oracle() -> None:
    """A statistic of ``sonde.stats`` that has no row in the table fails the suite."""
    assert members(sonde.stats) == set(CASES)
    assert all(type(case.statistic) is kind for kind, cases in CASES.items() for case in cases)
    assert all(CASES.values())


@pytest.mark.parametrize(("case", "situation"), TABLE)
def test_numbers_are_those_of_the_oracle(case: Case, situation: str) -> None:
    """Tensors added one after the other, and seen by an accumulator each and merged, give what the oracle says of all of them."""
    tensors = situations(case.features)[situation]
    absolute = case.absolute(tensors)
    assert_oracle(case.statistic, case.oracle, tensors, rel=case.rel, absolute=absolute, unchecked=case.unchecked)


def test_a_wrong_number_is_noticed() -> None:
    """The comparison fails where a number is off, missing or too many, in either way of adding up."""
    tensors = [torch.tensor([3.0, 4.0])]
    right = norm(tensors)
    assert_oracle(Norm(), lambda kept: right, tensors)
    with pytest.raises(AssertionError, match=r"Norm\(\), added one after the other: rms is 3\.53\d+, and 3\.5 by the oracle"):
        assert_oracle(Norm(), lambda kept: right | {"rms": 3.5}, tensors)
    with pytest.raises(AssertionError, match="rms is"):
        assert_oracle(Norm(), lambda kept: right | {"rms": NAN}, tensors)
    with pytest.raises(AssertionError, match=r"the oracle gives count, finite, nan, inf, norm$"):
        assert_oracle(Norm(), lambda kept: {name: right[name] for name in right if name != "rms"}, tensors)
    assert_oracle(Norm(), lambda kept: right | {"rms": 3.5}, tensors, absolute={"rms": 0.04})


def test_a_probe_adds_up_what_passes_at_each_site() -> None:
    """A statistic given to ``observe`` sees every tensor of a site, over calls and steps, in both directions."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2))
    batches = [torch.randn(5, 4), torch.randn(2, 4)]
    kept: dict[str, list[Tensor]] = {}
    for statistic, oracle in ((ExponentHistogram(), exponents), (Activation(), activation)):
        kept.clear()
        with sonde.observe(model, statistic, ports=("input", "output", "grad_output", "grad"), strict=True) as probe:
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
            assert rows[site]["calls"] == 2
            for name, number in oracle(tensors).items():
                assert rows[site][name] == pytest.approx(number, rel=SUMS, nan_ok=True), f"{site} {name}"
