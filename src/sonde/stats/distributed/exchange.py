"""Exchange numbers between all ranks while the training runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from sonde.errors import ArgumentError


class Exchange:
    """Numbers on their way: a collective of *group* that all its ranks begin, and later wait for.

    Args:
        numbers: of this rank, as many on each.
        group: a process group of torch; None: the default one, or this process alone if there is none.

    Raises:
        ArgumentError: ``WORLD_SIZE`` names several processes, and there is no process group; or this rank is not in *group*.
    """

    def __init__(self, numbers: Sequence[float], group: Any = None) -> None:
        from torch import distributed

        mine = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        self._found = [mine]
        self._work: Any = None
        if not (distributed.is_available() and distributed.is_initialized()):
            world = os.environ.get("WORLD_SIZE", "1")
            if world.isdecimal() and int(world) > 1:
                raise ArgumentError(
                    f"WORLD_SIZE is {world}, but torch.distributed has no process group: call "
                    "torch.distributed.init_process_group() before start_sync()"
                )
            return
        size = distributed.get_world_size(group)
        if size < 1:
            raise ArgumentError(f"rank {distributed.get_rank()} is not in the given group: call start_sync on its ranks alone")
        if size > 1:
            if distributed.get_backend(group) == "nccl":  # which sends what is on the GPU only
                mine = mine.to(f"cuda:{torch.cuda.current_device()}")
            self._found = [torch.empty_like(mine) for _ in range(size)]
            self._work = distributed.all_gather(self._found, mine, group=group, async_op=True)

    def finish(self) -> list[list[float]]:
        """Return the numbers of each rank, in the order of the ranks. Wait for the other ranks."""
        if self._work is not None:
            self._work.wait()
        return [numbers.tolist() for numbers in self._found]
