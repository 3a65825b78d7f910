"""Train a classifier of digits with Lightning, and record it with one more callback.

``pip install 'sonde[lightning]' scikit-learn``
"""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sonde
from sonde.integrations import LightningCallback


class Classifier(pl.LightningModule):
    """Two hidden layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        logits = self.layers(x)
        self.log("val_loss", nn.functional.cross_entropy(logits, y))
        self.log("accuracy", (logits.argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    pl.seed_everything(0, verbose=False)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    training, validation = TensorDataset(x[:1500], y[:1500]), TensorDataset(x[1500:], y[1500:])
    callback = LightningCallback(every=10)
    trainer = pl.Trainer(max_epochs=5, gradient_clip_val=1.0, callbacks=[callback], logger=False, enable_progress_bar=False)
    trainer.fit(Classifier(), DataLoader(training, batch_size=50, shuffle=True), DataLoader(validation, batch_size=100))

    run = sonde.open_run(callback.inspector.path)
    for name in ("loss", "val_loss", "accuracy", "grad_norm"):
        steps, values = run.scalar(name)
        print(f"{name}: {values[0]:.3f} at step {steps[0]}, {values[-1]:.3f} at step {steps[-1]}")


if __name__ == "__main__":
    main()
