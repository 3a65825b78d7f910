"""How numbers wait on their device, and become aggregates."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sonde.errors import UnknownSiteError
from sonde.preprocessor import (
    ExplicitCall,
    GradientActivation,
    GradientGeometry,
    InMemory,
    LossModule,
    OutputActivation,
    OutputNorm,
    ParameterDifferenceGeometry,
    ParameterNorm,
    RunningMeanVar,
    UpdateRatio,
    UpdateRounding,
)
from sonde.preprocessor.interval import MOST_PENDING, IntervalAggregates, NumberSpec
from sonde.stats.samples import MatrixCondition, SampleNorm, Single


class Reads(TorchDispatchMode):
    """Counts the operations that wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.reads += name in ("_local_scalar_dense", "item", "nonzero", "equal", "is_nonzero", "masked_select", "unique")
        return func(*args, **(kwargs or {}))


def feed(step: int) -> list[Any]:
    """One step of every kind whose numbers need no decomposition."""
    tensor = torch.randn(3, 4)
    out, norm, loss = FEEDS[:3]
    out.process_fw("a", RELU, None, tensor)
    norm.process_fw("a", RELU, None, tensor)
    loss.process_fw("a", RELU, None, tensor.sum())
    for one in FEEDS[3:7]:
        one.process_tensor("a", tensor)
    FEEDS[7].process_module("a", LINEAR)
    FEEDS[8].process_update("a", tensor, tensor + 1, tensor)
    FEEDS[9].push_running("a", tensor.sum())
    FEEDS[9].push_memory("b", tensor.sum())
    return FEEDS


RELU, LINEAR = nn.ReLU(), nn.Linear(2, 2)
SCALER = torch.amp.GradScaler("cpu")
SCALER.scale(torch.ones(1))
FEEDS: list[Any] = [
    OutputActivation(),
    OutputNorm(),
    LossModule(),
    GradientGeometry(scaler=SCALER),
    GradientActivation(scaler=SCALER),
    ParameterDifferenceGeometry(),
    UpdateRatio(),
    ParameterNorm(),
    UpdateRounding(),
    ExplicitCall("train", "test"),
]


def test_n33_nothing_waits_for_the_device_until_value_is_read() -> None:
    for one in FEEDS:
        one.clear()
    with Reads() as counted:
        for step in range(3):
            feed(step)
    assert counted.reads == 0
    for one in FEEDS:
        assert "count=" in repr(one.value)


@pytest.mark.slow
def test_memory_does_not_grow_with_steps() -> None:
    interval = IntervalAggregates([NumberSpec(SampleNorm(), {"norm": "norm"})], inplace=True)
    for _ in range(3 * MOST_PENDING + 5):
        interval.add("a", torch.ones(2, 2))
    assert len(interval._rows[0].pending) == 5
    assert interval.read()["a"][0].count == 3 * MOST_PENDING + 5


def test_numbers_are_in_order_across_the_times_they_are_read() -> None:
    kept = IntervalAggregates([NumberSpec(Single(), {"x": "value"})], inplace=False)
    for number in range(2 * MOST_PENDING + 1):
        kept.add("a", torch.tensor(float(number)))
        if number % 1000 == 0:
            kept.read()
    assert kept.read()["a"][0] == list(range(2 * MOST_PENDING + 1))


def test_a_later_version_of_a_step_stands_in_place_of_the_earlier() -> None:
    interval = IntervalAggregates([NumberSpec(Single(), {"x": "value"})], inplace=False)
    for step, number in ((0, 1.0), (0, 2.0), (1, 3.0), (1, 4.0), (1, 5.0), (0, 6.0)):
        interval.add("a", torch.tensor(number), step=step)
        interval.read()
    assert interval.read()["a"][0] == [2, 5, 6]
    interval.reset()
    assert interval.read()["a"][0] == []


def test_what_is_undefined_is_left_out_and_what_is_spoiled_is_counted() -> None:
    seen = GradientGeometry(inplace=False)
    for gradient in (torch.zeros(2), torch.ones(2), torch.tensor([torch.nan, 1.0])):
        seen.process_tensor("w", gradient)
    assert (len(seen.value["w"].norm), seen.value["w"].norm.nonfinite) == (3, 1)
    assert (len(seen.value["w"].correlation), seen.value["w"].correlation.nonfinite) == (1, 1)


@pytest.mark.slow
def test_several_threads_lose_nothing() -> None:
    seen = OutputNorm()
    tensor = torch.ones(1, 1)

    def work(name: str) -> None:
        for _ in range(2000):
            seen.process_fw(name, RELU, None, tensor)
            if name == "0":
                seen.value  # noqa: B018

    threads = [threading.Thread(target=work, args=(str(index),)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: held.count for name, held in seen.value.items()} == dict.fromkeys("0123", 2000)


@pytest.mark.parametrize("inplace", [False, True])
def test_value_is_a_copy_and_reset_keeps_the_names(inplace: bool) -> None:
    seen = OutputNorm(inplace=inplace)
    for name in ("a", "b"):
        seen.process_fw(name, RELU, None, torch.ones(1, 4))
    value = seen.value
    seen.process_fw("a", RELU, None, torch.ones(1, 9))
    assert len(value["a"]) == 1
    seen.reset()
    seen.process_fw("a", RELU, None, torch.ones(1, 9))
    assert (len(value["b"]), len(seen.value["b"]), seen.value["a"].mean) == (1, 0, 3.0)
    assert type(seen.value["b"]) is (RunningMeanVar if inplace else InMemory)
    assert "no data" in repr(seen.value["b"])
    seen.clear()
    assert dict(seen.value) == {}


def test_unknown_names_name_what_is_near() -> None:
    seen = ParameterNorm("weight")
    seen.process_module("layers.0", LINEAR)
    with pytest.raises(UnknownSiteError, match=r"Nearest: layers\.0"):
        seen.value["layer.0"]
    with pytest.raises(KeyError):
        OutputNorm().value["a"]
    assert seen.value.get("layer.0") is None


def test_copies_and_pickles_hold_what_was_seen() -> None:
    for one in feed(0):
        for held in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert repr(held.value) == repr(one.value)
            held.reset()
            assert repr(held.value) != repr(one.value)


def test_a_preprocessor_shows_itself_as_a_table() -> None:
    seen = OutputActivation()
    assert repr(seen) == "OutputActivation: 0 names\n  nothing was processed yet"
    seen.process_fw("relu", RELU, None, torch.tensor([[0.0, 2.0]]))
    seen.process_fw("relu", RELU, None, torch.tensor([[torch.nan, 2.0]]))
    seen.expect(["other"])
    lines = [line.split() for line in repr(seen).splitlines()]
    assert lines[0] == ["OutputActivation:", "2", "names"]
    assert lines[3] == ["relu", "activation", "1", "0.5", "0", "0.5", "0.5", "1", "not", "finite"]
    assert lines[5] == ["other", "activation", "no", "data"]
    assert "<table" in seen._repr_html_()


# The statistics of the first level that are this package's own


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_the_sample_norm_adds_up_over_samples(pieces: int) -> None:
    statistic, tensor = SampleNorm(), torch.randn(5, 3)
    tensor[2, 1] = torch.inf
    row = statistic.empty(1)[0]
    for piece in tensor.chunk(pieces):
        statistic.add(row, piece)
    found = {name: float(column[0]) for name, column in statistic.finish(statistic.columns(row[None])).items()}
    finite = [sample[sample.isfinite()].double() for sample in tensor]
    assert found["norm"] == pytest.approx(sum(float(s.norm()) for s in finite) / 5)
    assert found["rms"] == pytest.approx(sum(float(s.square().mean().sqrt()) for s in finite) / 5)
    assert (found["nonfinite"], found["samples"]) == (1, 5)


def test_rows_that_nothing_was_added_to() -> None:
    for statistic in (Single(), MatrixCondition(), SampleNorm()):
        row = statistic.empty(2)
        assert row.shape == (2, statistic.width)
        numbers = statistic.finish(statistic.columns(row))
        assert all(column.shape == (2,) for column in numbers.values())


def test_rows_measured_under_inference_mode_can_be_read_later() -> None:
    seen = OutputNorm(record_eval=True)
    differences = ParameterDifferenceGeometry()
    with torch.inference_mode():
        seen.process_fw("a", RELU, None, torch.ones(1, 4))
        differences.process_tensor("w", torch.zeros(2))
    seen.process_fw("a", RELU, None, torch.ones(1, 4))
    differences.process_tensor("w", torch.ones(2))
    differences.process_tensor("w", torch.zeros(2))
    assert seen.value["a"].count == 2
    assert differences.value["w"].correlation.mean == pytest.approx(-1)


def test_what_is_measured_keeps_no_graph() -> None:
    tensor = torch.ones(2, 2, requires_grad=True)
    for step in range(2):
        feed(step)
        for one in FEEDS[:3]:
            one.process_fw("a", RELU, None, (tensor * 2).sum().reshape(1, 1))
        for one in FEEDS[3:7]:
            one.process_tensor("a", tensor * 2)
        FEEDS[8].process_update("a", tensor * 2, tensor * 3, tensor)
    entries = [row for one in FEEDS[:9] for rows in one._interval._rows for _, row in rows.pending]
    assert len(entries) > 30
    assert not any(row.requires_grad for row in entries)
