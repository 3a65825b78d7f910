"""What is streamed is what is stored, each row once, in another order; and between two batches nothing of it is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.extraction.test_rows import ragged, text
from tests.torch_words import words_of
from torch import Tensor, nn

import sonde
from sonde.engine import hooks
from sonde.errors import ArgumentError, SelectionError
from sonde.extraction.mixture import Mixture


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval()


def data(count: int = 30) -> list[Tensor]:
    """Batches of one to nine items."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(int(torch.randint(1, 10, (), generator=generator)), 4, generator=generator) for _ in range(count)]


SMALL: dict[str, Any] = {"buffer": 40 * (3 * 4 + 8), "rows": 8}
"""A buffer of 40 rows of the model's last layer."""


def joined(batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([rows[name] for rows in batches]) for name in batches[0]}


def hooked(*models: nn.Module) -> bool:
    return any(held for each in models for module in each.modules() for held in hooks.hooks_on(module).values())


@pytest.mark.parametrize("options", [{}, SMALL, {**SMALL, "rows": 1}, {**SMALL, "buffer": "1 MB"}], ids=str)
def test_each_row_comes_once_and_is_the_one_that_is_stored(tmp_path: Path, options: dict[str, Any]) -> None:
    store = sonde.extract(model(), data(), "2", tmp_path / "t")
    batches = list(sonde.stream(model(), data(), "2", **options))
    sizes = [len(rows["item"]) for rows in batches]
    assert set(sizes[:-1]) <= {options.get("rows")}
    assert 0 < sizes[-1] <= options.get("rows", 4096)
    found = joined(batches)
    assert list(found) == list(store)
    assert torch.equal(found["item"].sort().values, torch.arange(sum(map(len, data()))))
    assert not torch.equal(found["item"], found["item"].sort().values)
    assert torch.equal(found["2:output"], torch.as_tensor(store["2:output"][:])[found["item"]])


def test_positions_columns_and_forms(tmp_path: Path) -> None:
    """Ragged sequences, a transform, whole numbers with a scale; of two models with one permutation."""
    models = {"one": text(), "two": text()}
    with torch.no_grad():
        models["two"].head.weight.mul_(2)
    options: dict[str, Any] = {
        "include": r"layers\.[02]$|head",
        "positions": "attention_mask",
        "columns": ("ids",),
        "transform": {"head": "top-3"},
        "dtype": "int8",
    }
    store = sonde.extract(models, ragged(20), to=tmp_path / "t", **options)
    found = joined(list(sonde.stream(models, ragged(20), rows=16, buffer="20 kB", **options)))
    assert list(found) == list(store)
    key = {name: torch.as_tensor(store[name][:]) for name in ("item", "position")}
    order = (found["item"] * 100 + found["position"]).argsort()
    assert torch.equal(found["item"][order] * 100 + found["position"][order], key["item"] * 100 + key["position"])
    for name in store:
        assert torch.equal(found[name][order], torch.as_tensor(store[name][:])), name


def test_the_seed_gives_the_order() -> None:
    def order(seed: int) -> list[int]:
        return [item for rows in sonde.stream(model(), data(), "2", seed=seed, **SMALL) for item in rows["item"].tolist()]

    assert order(0) == order(0)
    assert order(0) != order(1)
    assert sorted(order(0)) == sorted(order(1))


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer never holds more rows than its bytes, and the model has never run further ahead."""
    most, taken = 0, 0

    def end(self: Mixture, rows: int, end: Any = Mixture.end) -> None:
        nonlocal most
        end(self, rows)
        most = max(most, self.used)

    def counted() -> Iterator[Tensor]:
        nonlocal taken
        for batch in data():
            taken += len(batch)
            yield batch

    monkeypatch.setattr(Mixture, "end", end)
    given = 0
    for rows in sonde.stream(model(), counted(), "2", **SMALL):
        assert taken - given <= 40 + 9
        given += len(rows["item"])
    assert 30 < most <= 40
    assert given == taken


def test_a_batch_that_is_larger_than_those_before() -> None:
    """It waits until there is room; and one that the buffer could not hold is refused by its number."""
    sizes = [2] * 19 + [20, 30, 32, 1]
    batches = [torch.randn(size, 4) for size in sizes]
    found = joined(list(sonde.stream(model(), batches, "2", **SMALL)))
    assert torch.equal(found["item"].sort().values, torch.arange(sum(sizes)))
    with torch.no_grad():
        torch.testing.assert_close(found["2:output"], model()(torch.cat(batches))[found["item"]])
    with pytest.raises(ArgumentError, match=r"batch 2: buffer=800 B holds 40 rows of 20 bytes, and 33 come at once where 8"):
        list(sonde.stream(model(), [torch.ones(2, 4), torch.ones(2, 4), torch.ones(33, 4)], "2", **SMALL))


def test_a_consumer_trains_and_runs_the_same_model_between() -> None:
    """The model is unobserved and in its own mode there; what comes later is of the model as it then is."""
    observed = model()
    coder = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(coder.parameters(), 0.1)
    losses: list[float] = []
    with sonde.track(observed) as tracker:
        for rows in sonde.stream(observed, data(), "2", **SMALL):
            assert torch.is_grad_enabled()
            loss = nn.functional.mse_loss(coder(rows["2:output"]), rows["2:output"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert not len(tracker)
    assert losses[-1] < losses[0]

    stream = sonde.stream(observed, [torch.ones(8, 4)] * 20, "2", **SMALL)
    first = next(stream)
    assert not hooked(observed)
    with sonde.track(observed) as tracker:
        observed.train()(torch.ones(2, 4)).sum().backward()
        optimizer = torch.optim.SGD(observed.parameters(), 1.0)
        optimizer.step()
    assert len(tracker)
    *_, last = stream
    with torch.no_grad():
        torch.testing.assert_close(last["2:output"], observed(torch.ones(len(last["item"]), 4)))
    assert not torch.allclose(last["2:output"][0], first["2:output"][0])
    assert observed.training


def test_buffers_and_random_numbers_are_the_callers_between() -> None:
    """Those of a model in training mode are put back; data that draw do not draw the same twice, nor from the caller."""
    torch.manual_seed(0)
    norm = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).train()

    def drawn() -> Iterator[Tensor]:
        for _ in range(40):
            yield torch.randn(8, 4)

    before = norm[0].running_mean.clone()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    items = []
    for number, rows in enumerate(sonde.stream(norm, drawn(), "0", ports="input", buffer=40 * 24, rows=8)):
        assert torch.equal(torch.get_rng_state(), state)
        if number == 3:
            norm[0].running_mean.fill_(7)  # the consumer's own work, which stays
            before = norm[0].running_mean.clone()
        assert torch.equal(norm[0].running_mean, before)
        items.append(rows)
    found = joined(items)
    assert len(found["0:input[0]"].unique(dim=0)) == 320
    torch.manual_seed(5)
    assert torch.equal(found["0:input[0]"][found["item"].argsort()], torch.cat(list(drawn())))


@pytest.mark.parametrize("close", [True, False])
def test_a_stream_that_is_left_leaves_nothing(close: bool) -> None:
    observed, threads = model(), threading.active_count()
    state = torch.get_rng_state()
    stream = sonde.stream(observed, data(), "2", **SMALL)
    next(stream)
    next(stream)
    if close:
        stream.close()
    del stream
    assert not hooked(observed)
    assert threading.active_count() == threads
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


def test_an_error_names_the_batch_and_leaves_nothing() -> None:
    observed = model()
    with pytest.raises(RuntimeError, match=words_of(lambda: observed(torch.ones(2, 5)))) as raised:
        list(sonde.stream(observed, [torch.ones(2, 4), torch.ones(2, 4), torch.ones(2, 5)], "2"))
    assert "batch 2 (from 0) of sonde.stream()" in raised.value.__notes__[0]
    with pytest.raises(ArgumentError, match="batch 1: rows of 2:output have the shape 5×3, and had 3"):
        list(sonde.stream(observed, [torch.ones(2, 4), torch.ones(2, 5, 4)], "2"))
    assert not hooked(observed)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "buffer": ({"buffer": "much"}, ArgumentError, "buffer='much'"),
    "no end": ({"buffer": None}, ArgumentError, "wait in memory"),
    "rows": ({"rows": 0}, ArgumentError, "rows=0"),
    "include": ({"include": "^9"}, SelectionError, "nothing is selected"),
    "batches": ({"batches": torch.ones(2, 4)}, ArgumentError, "iterable of batches"),
    "column": ({"columns": {"item": len}}, ArgumentError, "name of the store's own"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused_at_once(case: str) -> None:
    """Before the first ``next``."""
    changed, kind, said = WRONG[case]
    given: dict[str, Any] = {"model": model(), "batches": data(), "include": "2", **changed}
    with pytest.raises(kind, match=said):
        sonde.stream(**given)


def test_no_data() -> None:
    with pytest.raises(ArgumentError, match="there is none"):
        list(sonde.stream(model(), [], "2"))
    with pytest.raises(ArgumentError, match="positions chose none"):
        list(sonde.stream(text(), ragged(), "embed", positions=lambda batch: torch.zeros_like(batch["ids"])))
