"""Sinks and visualizers in a real training: they see what the run has."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from sonde.inspector import watch
from sonde.inspector.sinks import Print, TensorBoard, memory
from sonde.run.run import Run


def train(to: Any, epochs: int = 2) -> Run:
    """Two epochs of five steps under ``watch``, every step logged."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1, to=to, verbose=False) as inspector:
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
    run.send_to(TensorBoard(tmp_path / "played"))
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


def test_tensorboard_gets_nan_where_no_element_is_finite_and_counts_what_a_number_leaves_out(tmp_path: Path) -> None:
    """Never a norm of 0; the count begins with the first element that is not finite, and goes on when all are finite again."""
    layer = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with watch(layer, optimizer, every=1, to=["memory", TensorBoard(tmp_path / "tb")], verbose=False, bad_steps=None) as inspector:
        for bad in (0, 4, 2, 0):
            nn.init.ones_(layer.weight)
            optimizer.zero_grad()
            factor = torch.ones(2, 2)
            factor.view(-1)[:bad] = torch.nan
            hook = layer.weight.register_hook(factor.mul)
            layer(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            hook.remove()
    found = scalars(tmp_path / "tb")
    norms = [value for _, value in found["grad_norm/weight"]]
    assert norms == pytest.approx([2.0, float("nan"), 2**0.5, 2.0], nan_ok=True)
    assert found["grad_nonfinite/weight"] == [(1, 4.0), (2, 2.0), (3, 0.0)]
    _, values = inspector.run.series("weight:grad", "norm")
    assert values.tolist() == pytest.approx(norms, nan_ok=True)


def test_the_update_ratio_of_a_weight_without_a_finite_element_is_nan(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with watch(layer, optimizer, every=1, to=[TensorBoard(tmp_path / "tb")], verbose=False, bad_steps=None):
        for factor in (1.0, float("nan"), 1.0):
            optimizer.zero_grad()
            (layer(torch.ones(1, 2)) * factor).sum().backward()
            optimizer.step()
    first, *others = scalars(tmp_path / "tb")["update_ratio/weight"]
    assert first[1] > 0
    assert [step for step, value in others if math.isnan(value)] == [1, 2]


def test_tensorboard_has_the_configuration_as_hyperparameters_with_the_last_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    model = nn.Linear(4, 2)
    config = {"lr": 0.1, "deep": {"name": "small"}, "sizes": [1, 2], "fast": True}
    with watch(model, every=1, to=["memory", TensorBoard(tmp_path)], verbose=False, config=config) as inspector:
        model(torch.ones(1, 4)).sum().backward()
        inspector.push_loss(2.5, train=True)
        inspector.step()
    events = EventAccumulator(str(tmp_path)).Reload()
    found = {tag: HParamsPluginData.FromString(data) for tag, data in events.PluginTagToContent("hparams").items()}
    values = found["_hparams_/session_start_info"].session_start_info.hparams
    assert {name: value.WhichOneof("kind") for name, value in values.items()} == {
        "lr": "number_value",
        "deep.name": "string_value",
        "sizes": "string_value",
        "fast": "number_value",  # as torch writes it
    }
    assert values["lr"].number_value == 0.1
    metrics = {info.name.tag for info in found["_hparams_/experiment"].experiment.metric_infos}
    assert {"loss", "grad_norm"} <= metrics <= set(events.Tags()["scalars"])
