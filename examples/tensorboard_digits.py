"""Train a network on scikit-learn's digits, and log to TensorBoard: ``tensorboard --logdir runs`` shows all layers."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

import sonde
from sonde import lens


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    lenses = [lens.moments(), lens.exponents()]  # the second becomes histograms
    options = {"to": ["runs/digits-tensorboard", "tensorboard"], "config": {"lr": 3e-3}}
    with sonde.watch(model, optimizer, every=5, lenses=lenses, **options) as inspector:
        for _ in inspector.range(3):
            for batch in torch.randperm(len(x)).split(50):
                loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                inspector.push_loss(loss, train=True)
    print(f"loss {inspector.run.scalar('loss')[1][-1]:.2f}; events in {inspector.visualizer.folder}")


if __name__ == "__main__":
    main()
