"""Folders of small runs, and programs of a user, in which commands are run."""

from __future__ import annotations

import shutil
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD

import sonde
from sonde.inspector import watch

SOURCE = """
import torch
from torch import nn


def setup():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return model, torch.randn(6, 4), lambda output: output.square().mean(), torch.optim.SGD(model.parameters(), lr=0.1)
"""
MODEL = """
import torch
from torch import nn


def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
"""
RUNS = ("quiet-otter", "calm-heron")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs (each with a graph, the first with a dead layer), saved tensors of two models, and three programs."""
    folder = tmp_path_factory.mktemp("project")
    for seed, name in enumerate(RUNS):
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        model = nn.Sequential(OrderedDict(layers=layers, head=nn.Linear(8, 2)))
        nn.init.constant_(layers[0].bias, -100.0 * (1 - seed))  # type: ignore[arg-type]
        optimizer = SGD(model.parameters(), lr=0.1)
        with watch(
            model, optimizer, every=2, to=folder / "runs" / name, verbose=False, graph=torch.randn(5, 4), config={"seed": seed}
        ) as inspector:
            for _ in range(6):
                loss = model(torch.randn(5, 4)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                inspector.push_loss(loss, train=True)
    for seed, name in enumerate(("mine", "theirs")):
        torch.manual_seed(seed)
        side = nn.Sequential(OrderedDict({("layers", "blocks")[seed]: nn.Sequential(nn.Linear(4, 8), nn.ReLU())}))
        with sonde.track(side) as tracker:
            side(torch.ones(2, 4)).sum().backward()
        tracker.save(folder / name)
    (folder / "train.py").write_text(SOURCE)
    (folder / "mine.py").write_text(SOURCE)
    (folder / "theirs.py").write_text(MODEL)
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the current folder."""
    shutil.copytree(made, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"
