"""A training of a model that calls a layer several times: rows, findings, pictures and tables tell the calls apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.inspector import Inspector
from sonde.inspector.sinks.tensorboard import TensorBoard
from sonde.view import plots


class Block(nn.Module):
    """A residual block with one ReLU, as torchvision's: the first call of the ReLU is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.relu = nn.ReLU(inplace=True)
        nn.init.constant_(self.conv1.bias, -50.0)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.conv2(self.relu(self.conv1(x))) + x)  # type: ignore[no-any-return]


def train(backend: str | None = None, **settings: Any) -> Inspector:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Block(), nn.Flatten(), nn.Linear(16, 2))
    run = model if backend is None else torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, strict=True, **settings) as inspector:
        for _ in range(3):
            for _ in range(2):  # two micro-batches
                run(torch.randn(16, 3, 2, 2)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                run(torch.randn(16, 3, 2, 2))
            model.train()
    return inspector


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_a_call_that_is_dead_is_found_by_default(backend: str | None) -> None:
    """Though half of the units of both calls together are alive; rows, evaluation and micro-batches have the call."""
    inspector = train(backend, evaluation=True)
    dead = [finding for finding in inspector.findings if finding.rule == "dead"]
    assert [(finding.site, finding.call, finding.value) for finding in dead] == [("1.relu:output", 0, 1.0)]
    run = inspector.run
    for family in ("activation", "activation_eval"):
        rows = run.sql(f"SELECT call, call_death FROM {family} WHERE site = '1.relu:output' ORDER BY step, call").fetchall()
        assert rows[0] == (0, 1.0)
        assert rows[1][0] == 1
        assert rows[1][1] < 0.5
    counts = run.sql("SELECT call, count FROM moments WHERE site = '1.relu:output' AND step = 1 ORDER BY call").fetchall()
    assert counts == [(call, 2 * 16 * 4 * 4) for call in (0, 1)]
    assert {call for (call,) in run.sql("SELECT DISTINCT call FROM moments WHERE port = 'param'").fetchall()} == {-1}


def test_calls_can_be_joined() -> None:
    """As numbers of both calls, under call -1."""
    inspector = train(calls="joined")
    assert {call for (call,) in inspector.run.sql("SELECT DISTINCT call FROM moments").fetchall()} == {-1}
    assert not [finding for finding in inspector.findings if finding.rule == "dead"]


def test_one_line_of_a_site_shows_its_worst_call() -> None:
    """In heat-maps and in the table of layers; of numbers without a worst the mean."""
    run = train().run
    assert run.heatmap("call_death").values.tolist() == [[1.0]]  # one in ten logged steps
    assert run.heatmap("call_death", reduce="min").values.max() < 0.5
    sizes = run.heatmap("rms")
    (row,) = np.flatnonzero([site == "1.relu:output" for site in sizes.sites])
    steps, values = run.series("1.relu", "rms")
    assert sizes.values[row].tolist() == pytest.approx([values[steps == step].mean() for step in range(3)])
    line = next(line for line in plots.table(run).to_text(200).splitlines() if "relu" in line)
    assert "100 % dead" in line


def test_tensorboard_has_a_tag_for_each_call(tmp_path: Path) -> None:
    """The first keeps the layer's name."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    torch.manual_seed(0)
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    sink = TensorBoard(tmp_path)
    with sonde.watch(model, optimizer, every=1, to=sink, verbose=False, calls=1):
        model(torch.randn(2, 4, 2, 2)).sum().backward()
        optimizer.step()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if "relu" in tag and "output_rms" in tag and "grad" not in tag]
    assert sorted(tags) == ["output_rms/relu", "output_rms/relu.other_calls"]


def test_every_tensor_of_a_structured_output_is_recorded() -> None:
    """A NaN in the cell state of an LSTM alone is found, at its leaf."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = Poisoned(3, 4, batch_first=True)
            self.head = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]

    class Poisoned(nn.LSTM):
        def forward(self, *args: Any) -> Any:
            output, (hidden, cell) = super().forward(*args)
            return output, (hidden, cell.detach() * torch.nan)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        model(torch.randn(2, 5, 3)).sum().backward()
        optimizer.step()
    assert "lstm:output[1][1]" in {finding.site for finding in inspector.findings}
    leaves = inspector.run.sql(
        "SELECT DISTINCT leaf FROM moments WHERE layer = 'lstm' AND port = 'output' ORDER BY leaf"
    ).fetchall()
    assert leaves == [("[0]",), ("[1][0]",), ("[1][1]",)]


def test_a_module_that_returns_several_tensors_has_delivered() -> None:
    """The coverage has one line for its output, with the events of the tensor that came most often: one in each of two steps."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0])  # type: ignore[no-any-return]

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(2):
            model(torch.randn(2, 5, 3)).sum().backward()
            optimizer.step()
    coverage = inspector.coverage()
    assert [str(line.site) for line in coverage if not line.count or line.reason] == []
    assert {str(line.site): line.count for line in coverage if line.site.path == "lstm"} == {
        "lstm:output": 2,
        "lstm:grad_output": 2,
    }


class Checkpointed(nn.Module):
    """Two layers and a checkpoint; ``by_parts`` calls what the forward calls, and not the model, as a Lightning module does."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.by_parts(x)

    def by_parts(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.second(self.first(x))  # type: ignore[no-any-return]
        return checkpoint(self.second, self.first(x), use_reentrant=self.reentrant)  # type: ignore[no-any-return]


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_loop_that_calls_parts_of_the_model_has_the_rows_of_one_that_calls_the_model(reentrant: bool | None) -> None:
    """Also with accumulation, evaluations in between, and checkpoints: the calls of each micro-batch are numbered from 0."""

    def rows(by_parts: bool) -> list[tuple[Any, ...]]:
        torch.manual_seed(0)
        model = Checkpointed(reentrant)
        call = model.by_parts if by_parts else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lenses = [
            sonde.lens.Lens("moments", sonde.stats.Moments(), ("output", "grad_output", "grad"), include=(nn.Linear, nn.Tanh))
        ]
        with sonde.watch(model, optimizer, every=2, lenses=lenses, to="memory", verbose=False) as inspector:
            for _ in range(3):
                optimizer.zero_grad()
                for batch in torch.randn(2, 4, 3):
                    call(batch).square().sum().backward()
                optimizer.step()
                with torch.no_grad():
                    model.second(model.first(torch.randn(4, 3)))
        return inspector.run.sql("SELECT site, call, step, count, mean, std FROM moments ORDER BY ALL").fetchall()

    found = rows(by_parts=True)
    assert found == rows(by_parts=False)
    assert {(site, call): count for site, call, step, count, *_ in found if step == 2 and ":output" in site} == {
        ("first:output", 0): 24,
        ("second.0:output", 0): 24,
        ("second.1:output", 0): 24,
    }
