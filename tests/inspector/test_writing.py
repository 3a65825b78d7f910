"""Rows that are finished and written in bulk are those of one moment after the other; the thread that does it wakes seldom."""

from __future__ import annotations

import math
import os
import threading
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from sonde.errors import ObservationWarning
from sonde.inspector.measurement.measurement import RowIndex
from sonde.inspector.pipeline import waiting, writer_thread
from sonde.inspector.pipeline.findings import Findings
from sonde.inspector.pipeline.finishing import Finished, Finishing
from sonde.inspector.pipeline.waiting import BatchQueue
from sonde.inspector.pipeline.writer_thread import Batch, DeviceScalar, Part, Writing
from sonde.inspector.sinks import memory
from sonde.inspector.sinks.base import LoggedRows, RowBlock, Rows, RunSink, Scalar, Sink
from sonde.run.schema import Layout
from sonde.run.store.memory_writer import memory_run
from sonde.stats import Activation, ChannelActivation, ExponentHistogram, Field, Moments, Norm, RowStatistic, Statistic
from sonde.stats.host_copy import HostCopy, pack
from sonde.stats.statistic import Column


@dataclass(frozen=True)
class Fussy(Statistic):
    """Raises at a sum that is too large, wherever it stands."""

    fields: ClassVar[tuple[Field, ...]] = (Field("sum"),)

    def measure(self, tensor: Tensor) -> Tensor:
        return tensor.nan_to_num().abs().sum(dtype=torch.float64).reshape(1)

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        if (columns["sum"] > 8).any():
            raise ValueError("too much")
        return {"sum": columns["sum"], "one": np.float64(1.0)}  # type: ignore[dict-item]


def rowed(family: str, statistic: RowStatistic, sites: list[str], model: str = "", order: list[int] | None = None) -> RowIndex:
    """Sites whose rows do not lie in the order of the sites; at one of them a sample was measured."""
    names = [f"{model}/{site}" if model else site for site in sites]
    return RowIndex(
        family,
        statistic,
        ("norm", "rms", "sum"),
        Layout(names, -1, order),
        np.arange(len(sites))[::-1] + 1,
        tuple(site.partition(":")[2] for site in sites),  # type: ignore[misc]
        np.array([site.startswith("w") for site in sites]),
        np.array([4.5 if site == "v:update" else 1.0 for site in sites]),
    )


PARAMETERS = ["a:output", "w:grad", "w:param", "w:update", "v:grad", "v:param", "v:update"]
NORMS = frozenset(["grad", "param", "update"])


def measured(draw: np.random.Generator, of: RowIndex, seen: np.ndarray) -> list[Tensor]:
    """The blocks of one moment: a row of random numbers for each site that was seen, and one row too many at each end."""
    statistic: Any = of.statistic
    size = len(of.layout) + 2
    rows = torch.cat([torch.zeros(size, 1, dtype=torch.float64), statistic.empty(size)], dim=1)
    for place in of.index[seen]:
        tensor = torch.from_numpy(draw.normal(size=(3, 4)).round(1))
        if draw.random() < 0.03:
            tensor[0, 0] = draw.choice([math.nan, math.inf])
        rows[place, 0] = int(draw.integers(1, 4))
        rows[place, 1:] = statistic.measure(tensor)
    cut = int(draw.integers(1, len(rows)))
    return [rows] if draw.random() < 0.5 else [rows[:cut], rows[cut:]]


def training(seed: int) -> list[Batch]:
    """Random batches of two models: several families, micro steps, a second optimizer's part, scales, pushed values, defects."""
    draw = np.random.default_rng(seed)
    moments = rowed("moments", Moments(), PARAMETERS, order=[2, 1, 1, 1, 0, 0, 0])
    families = [
        (moments, NORMS, False),
        (rowed("activation", Activation(), ["a:output", "b:output"]), frozenset(), False),
        (rowed("channels", ChannelActivation(4), ["a:output"]), frozenset(), False),
        (rowed("fussy", Fussy(), ["a:output", "b:output"]), frozenset(), False),
        (rowed("exponents", ExponentHistogram(), ["a:output", "w:grad"]), frozenset(), False),
        (rowed("moments", Moments(), PARAMETERS, "G"), frozenset(["update"]), False),
        (rowed("norms", Norm(), PARAMETERS[1:], "G"), frozenset(["grad", "param"]), True),
    ]
    micro = rowed("moments_micro", Moments(), ["w:grad", "v:grad"])
    batches = []

    def batch(parts: list[tuple[RowIndex, frozenset[str], bool]], epoch: int, step: int, micro_step: int, share: float) -> None:
        tensors: list[Tensor] = []
        made = []
        for of, norms, hidden in parts:
            blocks = measured(draw, of, np.flatnonzero(draw.random(len(of.layout)) < share))
            start = len(tensors)
            tensors += blocks
            scales = {}
            if draw.random() < 0.3:
                scales = {"grad": len(tensors)}
                tensors.append(torch.tensor(2.0 ** draw.integers(1, 9), dtype=torch.float64))
            made.append(Part(of, slice(start, start + len(blocks)), epoch, step, micro_step, scales, norms, hidden=hidden))
        scalars: list[Scalar | DeviceScalar] = []
        if draw.random() < 0.5:
            scalars.append(Scalar("loss", draw.normal(), epoch, step))
        if draw.random() < 0.5:
            scalars.append(DeviceScalar("accuracy", epoch, step, len(tensors), 3))
            tensors.append(torch.tensor(draw.normal(), dtype=torch.float64))
        batches.append(Batch(pack(tensors), made, scalars))

    for step in range(12):
        for micro_step in range(int(draw.integers(0, 3))):
            batch([(micro, frozenset(), False)], step // 5, step, micro_step, 0.9)
        batch([each for each in families if draw.random() < 0.8], step // 5, step, 0, draw.choice([0.0, 0.7, 1.0]))
        if draw.random() < 0.3:
            batch(families[:1], step // 5, step, 0, 0.5)
    return batches


# What is to come out, computed one moment after the other


def one_by_one(batches: list[Batch]) -> Iterator[Rows | Scalar]:
    """The rows of each part and the scalars, in order; the norms of a step before what is of the next one."""
    squares: dict[str, dict[str, float]] = {}
    when: dict[str, tuple[int, int]] = {}

    def norms(models: list[str]) -> Iterator[Scalar]:
        for model in models:
            epoch, step = when.pop(model)
            found = squares.pop(model)
            for port in ("grad", "param", "update"):
                if port in found:
                    yield Scalar(f"{model}/{port}_norm" if model else f"{port}_norm", math.sqrt(found[port]), epoch, step)

    for batch in batches:
        arrays = batch.packet.unpack()
        for part in batch.parts:
            of, model = part.rowed, part.rowed.layout.model[0]
            if when.get(model, (0, part.step))[1] != part.step:
                yield from norms([model])
            rows = np.concatenate(arrays[part.blocks])[of.index]
            seen = np.flatnonzero(rows[:, 0])
            if not len(seen):
                continue
            try:
                columns = of.statistic.columns(torch.from_numpy(rows[seen, 1:]))
                numbers = of.statistic.finish(columns) | {name: columns[name] for name in getattr(of.statistic, "recorded", ())}
            except ValueError:
                continue
            for name, power in (of.statistic.growth or {}).items():
                numbers[name] = numbers[name] * of.sizes[seen] ** power
            for port, place in part.scales.items():
                for name in set(of.linear) & set(numbers):
                    under = [of.ports[row] == port for row in seen]
                    numbers[name] = np.where(under, numbers[name] / float(arrays[place]), numbers[name])
            if part.norms:
                when[model] = part.epoch, part.step
                sums = squares.setdefault(model, {})
                for row, norm, nan, inf in zip(seen, numbers["norm"], numbers["nan"], numbers["inf"], strict=True):
                    port = of.ports[row]
                    if port in part.norms:
                        sums[port] = sums.get(port, 0.0) + (math.nan if nan else math.inf if inf else norm**2)
            if not part.hidden:
                yield Rows(of.family, of.layout, seen, part.epoch, part.step, part.micro_step, rows[seen, 0], numbers)
        for scalar in batch.scalars:
            yield scalar if isinstance(scalar, Scalar) else scalar.read(arrays)
    yield from norms(sorted(when))


def plain(entry: Rows | Scalar, *, digits: int | None = None) -> tuple[Any, ...]:
    """Something that compares by bits; norms, with *digits*, by so many digits."""
    if isinstance(entry, Scalar):
        value = entry.value.hex() if digits is None or "norm" not in entry.name else f"{entry.value:.{digits}e}"
        return entry.name, entry.epoch, entry.step, value
    numbers = {name: np.broadcast_to(column, np.shape(column) or len(entry.rows)) for name, column in entry.numbers.items()}
    listed = {name: (column.shape, np.ascontiguousarray(column).tobytes()) for name, column in numbers.items()}
    when = entry.epoch, entry.step, entry.micro_step
    return entry.family, id(entry.layout), when, entry.rows.tolist(), entry.counts.tolist(), listed


def cut(batches: list[Batch], size: int, findings: Findings | None = None) -> tuple[list[tuple[Any, ...]], list[str]]:
    """What comes out if so many batches are finished together, and the statistics that failed."""
    failed: list[str] = []
    finishing = Finishing(lambda of, error: failed.append(of.family))
    found: list[tuple[Any, ...]] = []

    def take(finished: Finished) -> None:
        entries = finished.entries
        found.extend(plain(entry) for entry in entries)
        if findings is not None:
            for of, stretch in zip(finished.rowed, entries.stretches, strict=True):
                findings.look(of, stretch)
            findings.look_for_defects(entries)

    for start in range(0, len(batches), size):
        take(finishing.finish([(batch, batch.packet.unpack()) for batch in batches[start : start + size]]))
    take(finishing.rest())
    return found, failed


SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_many_moments_together_have_the_rows_of_each_alone(seed: int) -> None:
    """Bit for bit, in the same order; the norms, whose squares may be added in another order, to 14 digits."""
    batches = training(seed)
    found, failed = cut(batches, len(batches))
    expected = list(one_by_one(batches))
    assert [each if len(each) > 4 else each[:3] for each in found] == [
        each if len(each) > 4 else each[:3] for each in map(plain, expected)
    ]
    values = [float.fromhex(each[3]) for each in found if len(each) == 4]
    assert values == pytest.approx([each.value for each in expected if isinstance(each, Scalar)], rel=1e-14, nan_ok=True)
    assert set(failed) <= {"fussy"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_it_does_not_matter_how_many_are_taken_together(seed: int, size: int) -> None:
    """Rows, scalars, their order, what failed and what is found are the same to the last bit."""
    batches = training(seed)
    whole, pieces = Findings(), Findings()
    assert cut(batches, len(batches), whole) == cut(batches, size, pieces)
    assert whole.all() == pieces.all()


def test_the_random_trainings_have_everything_in_them() -> None:
    """A statistic that raised for some moments and not for others, defects, micro steps, norms of two models, scales."""
    entries = [entry for seed in SEEDS for entry in one_by_one(training(seed))]
    families = {entry.family for entry in entries if isinstance(entry, Rows)}
    assert families == {"moments", "activation", "channels", "fussy", "exponents", "moments_micro"}
    assert any(cut(training(seed), 4)[1] for seed in SEEDS)
    names = {entry.name for entry in entries if isinstance(entry, Scalar)}
    assert names == {"loss", "accuracy", *(f"{model}{port}_norm" for model in ("", "G/") for port in NORMS)}
    assert any(not math.isfinite(entry.value) for entry in entries if isinstance(entry, Scalar))
    assert any(part.scales for batch in training(0) for part in batch.parts)


# Findings


def moments_of(values: list[list[float]], first: int = 0) -> list[Batch]:
    """Moments of two sites, a batch for each step: of each the elements of a tensor at both."""
    of = rowed("moments", Moments(), ["a:output", "w:grad"], order=[1, 0])
    return [batch_of(of, step, values) for step, values in enumerate(values, first)]


def batch_of(of: RowIndex, step: int, values: list[float], *scalars: Scalar) -> Batch:
    statistic: Any = of.statistic
    rows = torch.zeros(len(values) + 2, 1 + statistic.width, dtype=torch.float64)
    for place, value in zip(of.index, values, strict=True):
        rows[place, 0] = 1
        rows[place, 1:] = statistic.measure(torch.tensor([value, 1.0]))
    return Batch(pack([rows]), [Part(of, slice(0, 1), 0, step)], scalars)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_first_defect_is_by_step_and_then_by_execution(size: int) -> None:
    """Both sites are broken at step 2; the output comes before the gradient, though its layer ran later."""
    values = [[1.0, 1.0], [1.0, 1.0], [math.nan, math.inf], [math.nan, 1.0]]
    findings = Findings()
    cut(moments_of(values), size, findings)
    (found,) = findings.all()
    assert (found.rule, found.site, found.step, found.value) == ("nonfinite", "a:output", 2, 1.0)


@pytest.mark.parametrize("size", [1, 100])
def test_a_scalar_before_the_rows_is_the_first_defect(size: int) -> None:
    """It came at the end of the step before."""
    batches = moments_of([[1.0, 1.0], [1.0, 1.0], [math.nan, 1.0]])
    batches[1] = Batch(batches[1].packet, batches[1].parts, [Scalar("loss", math.inf, 0, 1)])
    findings = Findings()
    cut(batches, size, findings)
    assert [found.message for found in findings.all()] == ["loss is inf from step 1 on"]


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_medians_are_over_the_last_twenty_logged_steps(size: int) -> None:
    """Eleven of the last twenty have a dead layer; of the last twenty-one it would be as many, and of nineteen too."""
    of = rowed("activation", Activation(), ["a:output"])
    death = [0.0] * 30 + [1.0] * 10 + [0.0] * 9 + [1.0]
    batches = [batch_of(of, step, [1.0]) for step in range(50)]
    for batch, share in zip(batches, death, strict=True):
        rows = batch.packet.unpack()[0]
        rows[1, 5:8] = 1, 1 - share, share
    for last, expected in ((50, True), (49, False)):
        findings = Findings()
        cut(batches[:last], size, findings)
        assert [found.rule for found in findings.all()] == ["dead"] * expected
        assert sum(map(len, findings._last_of(findings._recent[of]))) == 20
        assert sum(map(len, findings._recent[of])) < 20 + max(size, 20)


# What sinks are given


class Kept(Sink):
    """Keeps what it is given, and how much came at once."""

    def __init__(self) -> None:
        self.entries: list[Rows | Scalar] = []
        self.pieces: list[int] = []
        self.closed = 0
        self.came = threading.Event()

    def write_all(self, entries: LoggedRows) -> None:
        self.pieces.append(sum(len(stretch) for stretch in entries.stretches))
        super().write_all(entries)
        self.came.set()

    def write(self, rows: Rows) -> None:
        self.entries.append(rows)

    def scalar(self, scalar: Scalar) -> None:
        self.entries.append(scalar)

    def close(self) -> None:
        self.closed += 1

    @property
    def steps(self) -> list[int]:
        return [entry.step for entry in self.entries if isinstance(entry, Rows)]


class Failing(Kept):
    """Raises at its third rows."""

    def write(self, rows: Rows) -> None:
        if len(self.steps) == 2:
            raise OSError("no room")
        super().write(rows)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written because time has passed."""
    monkeypatch.setattr(waiting, "_PAUSE", 1_000.0)


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_sinks_and_runs_get_every_row(seed: int, patient: None) -> None:
    """A sink of one moment at a time, and a run, through the thread; a run written one moment at a time is the same."""
    batches = training(seed)
    expected = list(one_by_one(batches))
    kept, run, copied = Kept(), memory(), memory()
    thread = Writing([kept, run])
    for batch in batches:
        thread.put(batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ObservationWarning)  # of the statistic that fails
        thread.stop()
    assert [plain(entry, digits=13) for entry in kept.entries] == [plain(entry, digits=13) for entry in expected]
    for entry in kept.entries:
        copied.write(entry) if isinstance(entry, Rows) else copied.scalar(entry)
    assert run.run().families == copied.run().families
    for family in run.run().families:
        found, once = (sorted(map(str, each.run().table(family).to_pylist())) for each in (run, copied))  # as text, NaN is NaN
        assert found == once
    norms, values = run.run().scalar("grad_norm")
    given = [entry for entry in kept.entries if isinstance(entry, Scalar) and entry.name == "grad_norm"]
    assert norms.tolist() == [entry.step for entry in given]
    assert str(values.tolist()) == str([entry.value for entry in given])


def test_a_sink_that_raises_is_not_called_again(patient: None) -> None:
    """It had what came before; the others get everything, and there is one warning."""
    failing, kept = Failing(), Kept()
    thread = Writing([failing, kept])
    for batch in moments_of([[1.0, 1.0]] * 6):
        thread.put(batch)
    with pytest.warns(ObservationWarning, match="Failing raised OSError: no room; nothing more is written to it") as said:
        thread.stop()
    assert len(said) == 1
    assert failing.steps == [0, 1]
    assert failing.closed == 0
    assert kept.steps == [0, 1, 2, 3, 4, 5]
    assert kept.closed == 1


def test_a_run_sink_that_looks_at_each_moment_is_given_each() -> None:
    """A subclass that overrides ``write`` need not know of more."""

    class Doubled(RunSink):
        def write(self, rows: Rows) -> None:
            super().write(rows)
            self.writer.scalar("rows", len(rows.rows), step=rows.step)

    sink = Doubled(memory_run())
    thread = Writing([sink])
    for batch in moments_of([[1.0, 1.0]] * 3):
        thread.put(batch)
    thread.stop()
    assert sink.run().scalar("rows")[1].tolist() == [2.0, 2.0, 2.0]
    assert sink.run().series("a:output", "count")[0].tolist() == [0, 1, 2]


def test_numbers_for_other_rows_are_the_statistics_fault() -> None:
    """Its rows alone are left out; the sink goes on."""

    class Short(Fussy):
        def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
            return {"sum": np.zeros(len(columns["sum"]) + 1)}

    run = memory()
    thread = Writing([run])
    of = rowed("short", Short(), ["a:output", "b:output"])
    for short, batch in zip([batch_of(of, step, [1.0, 1.0]) for step in range(3)], moments_of([[1.0, 1.0]] * 3), strict=True):
        thread.put(short)
        thread.put(batch)
    with pytest.warns(ObservationWarning, match=r"Short\(\) of short raised ArgumentError: 'sum' has the shape"):
        thread.stop()
    assert run.run().families == ("moments",)
    assert run.run().series("w:grad", "count")[0].tolist() == [0, 1, 2]


def test_a_moment_in_a_stretch_and_its_last_moments() -> None:
    """By position, with the rows of that moment."""
    layout = Layout(["a:output", "b:output"])
    when, edges = np.array([[0, 3, 0], [0, 4, 0], [1, 5, 2]]), np.array([0, 2, 3, 5])
    stretch = RowBlock("x", layout, np.array([0, 1, 1, 0, 1]), when, edges, np.ones(5), {"n": np.arange(5.0)})
    rows = stretch.at(1)
    assert (rows.epoch, rows.step, rows.micro_step, rows.sites, rows.numbers["n"].tolist()) == (0, 4, 0, ["b:output"], [2.0])
    last = stretch.last(2)
    assert len(last) == 2
    assert [plain(last.at(place)) for place in range(2)] == [plain(stretch.at(place)) for place in (1, 2)]
    assert stretch.last(3) is stretch


# The thread


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "this never became true"
        time.sleep(0.001)


def counted(monkeypatch: pytest.MonkeyPatch, thread: Writing) -> list[int]:
    """Grows each time that the thread is woken, by the number of batches that wait then."""
    wakes: list[int] = []
    work = thread._waiting._work
    notify = work.notify

    def notified(waiters: int = 1) -> None:
        wakes.append(len(thread._waiting._items))
        notify(waiters)

    monkeypatch.setattr(work, "notify", notified)
    return wakes


def test_the_thread_does_not_wake_for_each_batch(monkeypatch: pytest.MonkeyPatch, patient: None) -> None:
    """Thirty-one batches leave it asleep, the thirty-second is half of what may wait."""
    kept = Kept()
    thread = Writing([kept])
    wakes = counted(monkeypatch, thread)
    batches = moments_of([[1.0, 1.0]] * 100)
    for batch in batches[:31]:
        thread.put(batch)
    assert not kept.steps
    assert not wakes
    thread.put(batches[31])
    assert wakes == [32]
    assert kept.came.wait(30)
    thread.flush()
    assert kept.steps == list(range(32))
    assert kept.pieces == [1, 31]  # the first alone, to see how long one takes
    assert thread._waiting.most == 256  # they are small
    for batch in batches[32:]:
        thread.put(batch)
    assert kept.steps == list(range(32))
    assert wakes == [32, 0]  # the second for the flush
    thread.stop()
    assert kept.steps == list(range(100))


def test_the_first_thing_after_a_quiet_time_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is written though nobody asks."""
    monkeypatch.setattr(waiting, "_PAUSE", 0.001)
    held: BatchQueue[int] = BatchQueue(8)
    taken: list[list[int]] = []
    came = threading.Semaphore(0)

    def take() -> None:
        while found := held.take()[0]:
            taken.append(list(found))
            held.done(len(found))
            came.release()

    thread = threading.Thread(target=take)
    thread.start()
    for number in range(3):
        until(lambda: held._asleep)
        assert held.put(number, 10)
        assert came.acquire(timeout=30)
    held.close()
    thread.join(30)
    assert taken == [[0], [1], [2]]


def test_requests_come_in_order(patient: None) -> None:
    """After all that was put before, and before all that comes later; they need no room."""
    held: BatchQueue[str] = BatchQueue(2)
    said: list[str] = []
    held.put("a", 0)
    held.ask(lambda: said.append("first"))
    held.ask(lambda: said.append("second"))
    held.put("b", 0)
    assert not held.put("c", 0)
    for expected in (["a"], []):
        items, request = held.take()
        assert list(items) == expected
        assert request is not None
        request()
    assert said == ["first", "second"]
    held.done(1)
    assert held.put("c", 0)
    assert held.take() == (deque(["b", "c"]), None)
    held.close()
    assert held.take() == (deque(), None)


def test_a_flush_is_whole_and_what_was_seen_is_counted(patient: None) -> None:
    """Rows, and the norms of a step of which nothing more comes; asked again, nothing comes twice."""
    of = rowed("moments", Moments(), ["w:grad", "v:grad"])
    batches = [batch_of(of, step, [3.0, 4.0]) for step in range(3)]
    batches = [Batch(each.packet, [Part(of, slice(0, 1), 0, step, norms=NORMS)]) for step, each in enumerate(batches)]
    batches[1].packet.unpack()[0][of.index[0], 0] = 5  # of five calls
    kept = Kept()
    thread = Writing([kept])
    assert not thread.has_written
    for batch in batches:
        thread.put(batch)
    assert thread.seen() == {("moments", "w:grad"): 7, ("moments", "v:grad"): 3}
    assert thread.has_written
    assert kept.steps == [0, 1, 2]
    assert [entry.step for entry in kept.entries if isinstance(entry, Scalar)] == [0, 1]
    thread.flush()
    thread.flush()
    scalars = [(entry.name, entry.step, entry.value) for entry in kept.entries if isinstance(entry, Scalar)]
    assert scalars == [("grad_norm", step, pytest.approx(math.sqrt(9 + 1 + 16 + 1))) for step in range(3)]
    thread.stop()
    assert kept.closed == 1
    assert not thread._thread.is_alive()
    thread.stop()
    thread.flush()
    assert thread.seen() == {("moments", "w:grad"): 7, ("moments", "v:grad"): 3}
    assert kept.closed == 1


def test_stop_writes_what_waits(patient: None) -> None:
    """And the norms of the last step before the sinks are closed."""
    of = rowed("moments", Moments(), ["w:grad"])
    kept = Kept()
    thread = Writing([kept])
    thread.put(Batch(batch_of(of, 7, [3.0]).packet, [Part(of, slice(0, 1), 0, 7, norms=NORMS)]))
    thread.stop()
    assert [type(entry) for entry in kept.entries] == [Rows, Scalar]
    assert kept.closed == 1


class Gated(Kept):
    """Waits at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def write(self, rows: Rows) -> None:
        assert self.gate.wait(30)
        super().write(rows)


def test_what_does_not_fit_is_lost_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training waits once, and is told once; when the sink goes on, it waits again where it must, and loses nothing."""
    monkeypatch.setattr(writer_thread, "_WAITING", 4)
    monkeypatch.setattr(writer_thread, "_SMALL", 4)
    monkeypatch.setattr(writer_thread, "_PATIENCE", 0.05)
    sink = Gated()
    thread = Writing([sink])
    batches = moments_of([[1.0, 1.0]] * 20)
    with pytest.warns(ObservationWarning, match="the sinks do not keep up; steps are lost. The training goes on") as said:
        for batch in batches[:10]:
            thread.put(batch)
    assert len(said) == 1
    assert thread.lost == 6
    sink.gate.set()
    thread.flush()
    thread.put(batches[10])
    thread.flush()
    monkeypatch.setattr(writer_thread, "_PATIENCE", 30)
    sink.gate.clear()
    training = threading.Thread(target=lambda: [thread.put(batch) for batch in batches[11:]])
    training.start()
    until(lambda: not training.is_alive() or thread._waiting._room._waiters)  # type: ignore[attr-defined]
    sink.gate.set()
    training.join(30)
    thread.stop()
    assert sink.steps == [0, 1, 2, 3, *range(10, 20)]
    assert thread.lost == 6


def test_the_training_waits_for_a_sink_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """And loses nothing."""
    monkeypatch.setattr(writer_thread, "_WAITING", 2)
    monkeypatch.setattr(writer_thread, "_SMALL", 2)
    sink = Gated()
    thread = Writing([sink])
    batches = moments_of([[1.0, 1.0]] * 20)

    def put() -> None:
        for batch in batches:
            thread.put(batch)

    training = threading.Thread(target=put)
    training.start()
    until(lambda: thread._waiting._room._waiters)  # type: ignore[attr-defined]
    assert training.is_alive()
    sink.gate.set()
    training.join(30)
    thread.stop()
    assert sink.steps == list(range(20))
    assert thread.lost == 0


def test_a_slow_sink_is_given_little_at_a_time(monkeypatch: pytest.MonkeyPatch, patient: None) -> None:
    """Room is made after each piece, so none may take long; how many a piece has follows what the last one took."""
    now = 0.0

    class Slow(Kept):
        def write(self, rows: Rows) -> None:
            nonlocal now
            super().write(rows)
            now += 0.2 if rows.step < 10 else 0.01

    monkeypatch.setattr(writer_thread, "time", types.SimpleNamespace(monotonic=lambda: now))
    sink = Slow()
    thread = Writing([sink])
    for batch in moments_of([[1.0, 1.0]] * 30):
        thread.put(batch)
    thread.stop()
    assert sink.pieces == [1, 2, 2, 2, 2, 2, 4, 15]


def test_little_memory_is_finished_at_once(monkeypatch: pytest.MonkeyPatch, patient: None) -> None:
    """However many batches wait; where they are large, no more than usual may wait."""
    monkeypatch.setattr(writer_thread, "_PIECE", 1_000)  # a batch has 4 rows of 9 numbers
    sink = Kept()
    thread = Writing([sink])
    for batch in moments_of([[1.0, 1.0]] * 12):
        thread.put(batch)
    thread.stop()
    assert max(sink.pieces) == 4
    assert sum(sink.pieces) == 12
    assert thread._waiting.most == 64


class Broken(HostCopy):
    """Never arrives."""

    def __init__(self) -> None:
        pass

    def unpack(self) -> Any:
        raise RuntimeError("the device is lost")


def test_a_batch_that_does_not_arrive_is_left_out(patient: None) -> None:
    """The others are written; there is one warning, and room is made for it."""
    kept = Kept()
    thread = Writing([kept])
    batches = moments_of([[1.0, 1.0]] * 5)
    batches[2] = Batch(Broken(), batches[2].parts)
    for batch in batches:
        thread.put(batch)
    with pytest.warns(ObservationWarning, match="a logged step could not be written: RuntimeError: the device is lost"):
        thread.stop()
    assert kept.steps == [0, 1, 3, 4]
    assert thread._waiting._held == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_writes_nothing_and_says_so(patient: None) -> None:
    """The thread stayed with the parent; nothing in the child waits for it."""
    kept = Kept()
    thread = Writing([kept])
    first, second = moments_of([[1.0, 1.0]] * 2)
    thread.put(first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 on: of threads and fork
        child = os.fork()
    if not child:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            thread.put(second)
            thread.put(second)
            thread.flush()
            thread.stop()
        told = [str(each.message) for each in said]
        os._exit(0 if thread.lost == 2 and len(told) == 1 and "forked" in told[0] and not kept.steps else 1)
    assert os.waitpid(child, 0)[1] == 0
    thread.put(second)
    thread.stop()
    assert kept.steps == [0, 1]
