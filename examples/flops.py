"""Count the floating-point operations of each module, forward and backward: ``python examples/flops.py``."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import sonde

aten = torch.ops.aten
FORMULAS = flop_registry | {  # torch's own formulas, and those that it lacks: attention on a CPU
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[aten._scaled_dot_product_flash_attention],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[aten._scaled_dot_product_flash_attention_backward],
}


class FlopCounter(TorchDispatchMode):
    """Counts operations in ``counts[name][phase]``, for each module that was running and for ``"Global"``."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = sonde.ModuleTracker()
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def __enter__(self) -> FlopCounter:
        self.tracker.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.tracker.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if formula := FORMULAS.get(getattr(func, "overloadpacket", func)):
            flops = formula(*args, **(kwargs or {}), out_val=out)
            for name in dict.fromkeys(["Global", *(call.name for call in self.tracker.stack)]):  # a recursive module once
                self.counts[name][self.tracker.phase] += flops
        return out

    def __str__(self) -> str:
        lines = [f"{'':<32}{'forward':>12}{'recompute':>12}{'backward':>12}{'share':>8}"]
        for name, found in self.counts.items():
            label = "  " * name.count(".") + name.rsplit(".", 1)[-1]
            columns = "".join(f"{found[phase]:>12,}" for phase in ("forward", "recompute", "backward"))
            lines.append(f"{label:<32}{columns}{found.total() / self.counts['Global'].total():>8.1%}")
        return "\n".join(lines)


if __name__ == "__main__":
    block = nn.TransformerEncoderLayer(d_model=64, nhead=4, dim_feedforward=256, batch_first=True)
    with FlopCounter() as counter:
        block(torch.randn(8, 32, 64)).sum().backward()
    print(counter)
