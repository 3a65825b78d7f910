"""The private names of torch that statistics use; all others are in ``engine/torch_api``, which stands above this folder."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

count_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
"""Return how many ``__torch_dispatch__`` modes run. Where a torch lacks the function: 1, so that kernels are not used."""

_is_excluded: Callable[[Any], bool] | None = getattr(torch._C, "_dispatch_tls_is_dispatch_key_excluded", None)
_COUNTING: Any = getattr(getattr(torch._C, "DispatchKey", None), "ADInplaceOrView", None)


def are_writes_counted() -> bool:
    """Return whether a write into a tensor that has a count of writes raises it here; not in Python that compiled code calls."""
    if _is_excluded is not None and _COUNTING is not None:
        return not _is_excluded(_COUNTING)
    with torch.inference_mode(False):
        tried = torch.empty(0, device="cpu")
        before = version_of(tried)
        return version_of(tried.zero_()) != before


version_of: Callable[[Tensor], int] = attrgetter("_version")
"""Return how often the memory of a tensor was written into; an inference tensor has no such count."""
