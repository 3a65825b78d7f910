"""Train a network on scikit-learn's digits, log to MLflow in a file of SQLite, and read the numbers back.

``mlflow ui --backend-store-uri sqlite:///mlflow.db`` shows the run (with the package mlflow; sonde needs mlflow-skinny alone).
"""

from __future__ import annotations

import mlflow
import torch
from sklearn.datasets import load_digits
from torch import nn

import sonde
from sonde.integrations import MLflowSink


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    to = ["runs/digits-mlflow", MLflowSink(experiment="digits")]
    with sonde.watch(model, optimizer, every=5, to=to, config={"lr": 3e-3}) as inspector:
        for _ in inspector.range(3):
            for batch in torch.randperm(len(x)).split(50):
                loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                inspector.push_loss(loss, train=True)
    (found,) = mlflow.search_runs(experiment_names=["digits"], output_format="list", max_results=1)
    losses = mlflow.MlflowClient().get_metric_history(found.info.run_id, "sonde/loss")
    print(f"{found.info.run_name}: {found.info.status}, loss {losses[0].value:.2f} to {losses[-1].value:.2f}")


if __name__ == "__main__":
    main()
