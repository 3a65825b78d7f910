"""The first day of a plain training loop: look inside, check before the training, watch it, read what is wrong, mend it.

``python first_day_loop.py``; nothing but sonde is needed. The mistake is planted: gradients are cleared between ``backward()`` and
``step()``, so that nothing is learnt.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import sonde


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Points in a plane, in three classes by their angle."""
    points = torch.randn(count, 64, 2)
    return [(x, ((torch.atan2(x[:, 1], x[:, 0]) + torch.pi) / (2 * torch.pi) * 3).long().clamp_max(2)) for x in points]


def train(name: str, *, mended: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with sonde.watch(model, optimizer, every=5, to=f"runs/{name}", exists="unique") as inspector:
        for x, y in batches(150):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if not mended:
                optimizer.zero_grad()  # the mistake: it belongs after the step
            optimizer.step()
            optimizer.zero_grad()
            inspector.push_loss(loss, train=True)
    steps, losses = inspector.run.scalar("loss")
    print(f"{name}: loss {losses[0]:.2f} at step {steps[0]}, {losses[-1]:.2f} at step {steps[-1]}")
    found = sonde.check(inspector.run)
    print(f"{name}: {found.verdict}", *(f"{each.rule} ({each.site}): {each.message}" for each in found.findings))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    ((x, y),) = batches(1)
    with sonde.track(model) as tracker:  # what happens in one pass
        nn.functional.cross_entropy(model(x), y).backward()
    print(tracker)
    ready = sonde.preflight(model, x, lambda logits: nn.functional.cross_entropy(logits, y), verbose=False)
    print("before the training:", ready.verdict)  # the model is right; the mistake is in the loop
    train("first", mended=False)
    train("mended", mended=True)


if __name__ == "__main__":
    main()
