"""Train a classifier of digits with Accelerate, in bfloat16 with accumulation, and record it with a tracker.

``pip install 'sonde[accelerate]' scikit-learn``; ``accelerate launch --num_processes 2 --cpu accelerate_digits.py`` trains on two
processes, which become one run.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sonde
from sonde.integrations import AccelerateTracker


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)

    tracker = AccelerateTracker(every=10)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2, log_with=tracker)
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.init_trackers("digits", config={"lr": 3e-3, "batch_size": 50})
    with tracker.watch(model):
        for _ in range(5):
            for inputs, labels in loader:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(inputs), labels)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                accelerator.log({"loss": loss})
    accelerator.end_training()

    if accelerator.is_main_process:
        run = sonde.open_run(tracker.inspector.path)
        for name in ("loss", "grad_norm"):
            steps, values = run.scalar(name)
            print(f"{name}: {values[0]:.3f} at step {steps[0]}, {values[-1]:.3f} at step {steps[-1]}")


if __name__ == "__main__":
    main()
