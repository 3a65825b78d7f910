"""The private names of torch that statistics use; all others are in ``engine/torch_api``, which stands above this folder."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import torch
from torch import Tensor

count_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
"""Return how many ``__torch_dispatch__`` modes run. Where a torch lacks the function: 1, so that kernels are not used."""

version_of: Callable[[Tensor], int] = attrgetter("_version")
"""Return how often the memory of a tensor was written into; an inference tensor has no such count."""
