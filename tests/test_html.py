"""No text of a model, folder or run becomes markup in anything that a notebook shows."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import sonde
from sonde.graph import capture
from sonde.run.run import open_run

HOSTILE = "<img src=x onerror=alert(1)>"


def test_hostile_names_are_text_in_every_notebook_table(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module(HOSTILE, nn.Linear(3, 3))
    x = torch.ones(2, 3)
    folder = tmp_path / f"{HOSTILE.replace('/', '')}"
    with sonde.track(model) as tracker:
        model(x).sum().backward()
    with sonde.watch(model, every=1, to=folder, quiet=True) as inspector:
        inspector.push_metric(HOSTILE, 1.0)
        model(x).sum().backward()
        inspector.step()
    shown = {
        "tracker": tracker,
        "coverage": inspector.coverage(),
        "coverage of a tracker": tracker.coverage(),
        "summary": sonde.summary(model, x),
        "inspector": inspector,
        "run": open_run(folder),
        "graph": capture(model, x),
    }
    for name, held in shown.items():
        html = held._repr_html_()
        assert html, name
        assert "<img" not in html, name
