"""The first day of a Lightning user with a convolutional network: one more callback, a finding, its layer, the mended training.

``pip install 'sonde[lightning]'``. The mistake is planted: a bias that shuts the second convolution.
"""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sonde
from sonde.integrations import LightningCallback


class Classifier(pl.LightningModule):
    """Three convolutions."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
        self.head = nn.Linear(16, 2)
        nn.init.constant_(self.features[3].bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def data() -> TensorDataset:
    """Pictures of 12 x 12 pixels with a bright bar, which lies or stands."""
    x, y = torch.rand(192, 1, 12, 12) / 4, torch.arange(192) % 2
    for picture, label in zip(x[:, 0], y, strict=True):
        place = int(torch.randint(12, ()))
        (picture if label else picture.T)[place] += 1
    return TensorDataset(x, y)


def main() -> None:
    for name, bias in (("first", -5.0), ("mended", 0.0)):
        pl.seed_everything(0, verbose=False)
        callback = LightningCallback(every=2)
        options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        trainer = pl.Trainer(max_epochs=5, accelerator="cpu", callbacks=[callback], **options)
        trainer.fit(Classifier(bias), DataLoader(data(), batch_size=32, shuffle=True))
        run = callback.inspector.run
        steps, losses = run.scalar("loss")
        print(f"{name}: loss {losses[0]:.2f} at step {steps[0]}, {losses[-1]:.2f} at step {steps[-1]}")
        found = sonde.check(run)
        print(f"{name}: {found.verdict}", *(f"{each.rule} ({each.site}): {each.message}" for each in found.findings))


if __name__ == "__main__":
    main()
