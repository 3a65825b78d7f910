"""Train a network on scikit-learn's digits, and log to Weights & Biases, offline: your own metrics, and sonde's beside them.

``wandb sync wandb/offline-run-...`` uploads the run later. Without ``mode="offline"`` it is uploaded while the network learns.
"""

from __future__ import annotations

import torch
import wandb
from sklearn.datasets import load_digits
from torch import nn

import sonde
from sonde.integrations import WandbSink


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train, test = torch.randperm(len(x)).split([1500, len(x) - 1500])
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with (
        wandb.init(project="digits", mode="offline", config={"lr": 3e-3}) as run,
        sonde.watch(model, optimizer, every=5, to=["runs/digits-wandb", WandbSink()], config={"lr": 3e-3}) as inspector,
    ):
        for epoch in inspector.range(4):
            for batch in train[torch.randperm(len(train))].split(50):
                loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                inspector.push_loss(loss, train=True)
                run.log({"loss": loss.item(), "epoch": epoch})  # yours; sonde's numbers ride on these rows
            with torch.no_grad():
                right = (model(x[test]).argmax(1) == y[test]).float().mean()
            inspector.push_metric("accuracy", right)
            print(f"epoch {epoch}: {right:.1%} right")


if __name__ == "__main__":
    main()
