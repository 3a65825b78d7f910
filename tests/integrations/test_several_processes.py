"""Trainings on two processes (gloo): each library's own way to start them leads to one run of joined numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sonde

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"

LIGHTNING = """
import lightning.pytorch as pl, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from sonde.integrations import LightningCallback

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == "__main__":
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(48, 4)), batch_size=6)
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", accumulate_grad_batches=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, callbacks=[LightningCallback(every=1, to="runs/run", verbose=False)])
    trainer.fit(Module(), data)
"""


def run_of(folder: Path, *command: str | Path) -> sonde.Run:
    """Run *command* in *folder*, and return the only run that it wrote."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, env=environment, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "runs").iterdir()
    return sonde.open_run(path)


def outputs(run: sonde.Run, layer: str) -> list[tuple[int, int, float]]:
    query = f"SELECT step, ranks, count FROM moments WHERE layer = '{layer}' AND port = 'output' ORDER BY ALL"
    return run.sql(query).fetchall()


def test_lightning_with_ddp(tmp_path: Path) -> None:
    """The rows of a step hold two micro-batches of 6 on each of two processes, with 8 numbers a sample."""
    (tmp_path / "train.py").write_text(LIGHTNING)
    run = run_of(tmp_path, "train.py")
    assert run.state == "ended"
    assert outputs(run, "net.0") == [(step, 2, 2 * 2 * 6 * 8) for step in range(4)]
    assert run.scalar("loss")[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("example", "layer", "first"),
    [
        ("torchrun_loop.py", "0", 2 * 32 * 64),
        ("accelerate_digits.py", "0", 2 * 2 * 50 * 64),
        ("transformers_language_model.py", "model.norm", 2 * 2 * 16 * 16 * 64),
    ],
)
def test_examples_under_torchrun(example: str, layer: str, first: int, tmp_path: Path) -> None:
    """The first row holds the micro-batches of both processes."""
    run = run_of(tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLES / example)
    assert run.state == "ended"
    assert outputs(run, layer)[0] == (0, 2, first)
    losses = run.scalar("loss")[1]
    assert losses[-1] < losses[0]


def test_the_example_of_a_plain_loop_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """One run, whose steps go on."""
    for _ in range(2):
        run = run_of(tmp_path, EXAMPLES / "torchrun_loop.py")
    assert run.scalar("grad_norm")[0].tolist() == list(range(0, 200, 10))


ACCELERATE = """
import sys
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import sonde
from sonde.integrations import AccelerateTracker

torch.manual_seed(0)
tracker = AccelerateTracker(every=1, to="runs/run", verbose=False) if sys.argv[1] == "tracker" else None
accelerator = Accelerator(cpu=True, log_with=tracker, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
data = DataLoader(TensorDataset(torch.randn(48, 4)), batch_size=6)
model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
if tracker is not None:
    accelerator.init_trackers("name", config={"lr": 0.1})
    observed = tracker.watch(model)
else:
    observed = sonde.watch(model, optimizer, every=1, to="runs/run", verbose=False)
with observed as inspector:
    for (x,) in data:
        with accelerator.accumulate(model):
            loss = model(x).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if tracker is None:
            inspector.push_loss(loss, train=True)
        elif accelerator.sync_gradients:
            accelerator.log({"loss": float(loss)})
accelerator.end_training()
"""


@pytest.mark.parametrize("how", ["watch", "tracker"])
def test_accelerate_launch_with_two_processes(tmp_path: Path, how: str) -> None:
    """The rows of a step hold two micro-batches of 6 on each of two processes, with 8 numbers a sample."""
    (tmp_path / "train.py").write_text(ACCELERATE)
    launch = (
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
    )  # else it starts one
    chosen = ("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")
    run = run_of(tmp_path, *launch, *chosen, "train.py", how)
    assert run.state == "ended"
    assert outputs(run, "0") == [(step, 2, 2 * 2 * 6 * 8) for step in range(2)]
    assert run.scalar("loss")[0].tolist() == [0, 1]
