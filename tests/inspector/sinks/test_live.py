"""Sinks and visualizers in a real training: they see what the run has."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from sonde.inspector import watch
from sonde.inspector.sinks import Print, TensorBoard, memory, play
from sonde.run.run import Run


def train(to: Any, epochs: int = 2) -> Run:
    """Two epochs of five steps under ``watch``, every step logged."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1, to=to, quiet=True) as inspector:
        for _ in range(epochs):
            for _ in range(5):
                x = torch.randn(16, 4)
                loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                inspector.push_loss(loss, train=True)
            inspector.tick_epoch()
    return inspector.run


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), {"scalars": 0}).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_gets_what_the_run_gets_and_the_global_scalars_are_there(tmp_path: Path) -> None:
    run = train(["memory", TensorBoard(tmp_path / "tb")])
    found = scalars(tmp_path / "tb")
    for name in ("loss", "grad_norm", "param_norm", "update_norm"):
        steps, values = run.scalar(name)
        assert len(steps) == 10
        assert found[name] == [(step, pytest.approx(value)) for step, value in zip(steps, values, strict=True)]
    for tag, site, number in (
        ("output_rms/0", "0:output", "rms"),
        ("grad_norm/2.weight", "2.weight:grad", "norm"),
        ("activation.output_call_death/1", "1:output", "call_death"),
    ):
        steps, values = run.series(site, number)
        assert found[tag] == [(step, pytest.approx(value)) for step, value in zip(steps, values, strict=True)]


def test_the_same_training_live_and_played_is_the_same_for_tensorboard(tmp_path: Path) -> None:
    run = train(["memory", TensorBoard(tmp_path / "live")])
    play(run, TensorBoard(tmp_path / "played"))
    assert scalars(tmp_path / "played") == scalars(tmp_path / "live")


def test_print_prints_at_each_tick_epoch() -> None:
    out = io.StringIO()
    train(["memory", Print(console=Console(file=out, width=120))], epochs=3)
    text = out.getvalue()
    assert [text.count(f"epoch {epoch} ·") for epoch in range(3)] == [1, 1, 1]


def test_a_sink_alone_needs_no_run() -> None:
    sink = memory()
    train([sink])
    assert len(sink.run().scalar("grad_norm")[0]) == 10
