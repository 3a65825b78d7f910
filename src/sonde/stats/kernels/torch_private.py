"""The private name of torch that statistics use; all others are in ``engine/torch_api``, which stands above this folder."""

from __future__ import annotations

from collections.abc import Callable

import torch

count_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
"""Return how many ``__torch_dispatch__`` modes run. Where a torch lacks the function: 1, so that kernels are not used."""
