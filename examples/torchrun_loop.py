"""Train with a plain loop, alone or on several processes, resume from a checkpoint, and record one run.

``python torchrun_loop.py`` or ``torchrun --nproc-per-node 2 torchrun_loop.py``; a second call goes on where the first has ended.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import sonde

FOLDER = Path("runs/loop")
CHECKPOINT = Path("loop.pt")


def main() -> None:
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        distributed.init_process_group("gloo")
    rank = distributed.get_rank() if several else 0
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    target = torch.randn(16, 16) / 4
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    if several:
        model = DistributedDataParallel(model)

    batches = torch.Generator().manual_seed(1000 * rank + first)
    with sonde.watch(model, optimizer, every=10, to=FOLDER, exists="resume", step=first) as inspector:
        for _ in range(first, first + 100):
            x = torch.randn(32, 16, generator=batches)
            loss = nn.functional.mse_loss(model(x), x @ target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            inspector.push_loss(loss, train=True)

    if rank == 0:
        whole = model.module if isinstance(model, DistributedDataParallel) else model
        torch.save({"model": whole.state_dict(), "optimizer": optimizer.state_dict(), "step": first + 100}, CHECKPOINT)
        steps, values = sonde.open_run(FOLDER).scalar("loss")
        print(f"loss: {values[0]:.3f} at step {steps[0]}, {values[-1]:.3f} at step {steps[-1]}")
    if several:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
