"""Compare measured ratios with those that were committed: what has become dearer since, and what is cheaper."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import torch

__all__ = ["compared", "machine", "read", "write"]

MARGIN = 1.25
"""What two machines, and two hours of one machine, may differ by: a ratio that grew more is reported."""


def machine() -> str:
    """Return the processor of this machine."""
    information = Path("/proc/cpuinfo")
    text = information.read_text(encoding="utf-8") if information.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def read(path: Path) -> tuple[dict[str, float], str]:
    """Return the committed ratios by name, and a line about where and when they were measured; nothing where there are none."""
    if not path.exists():
        return {}, "nothing is committed to compare with"
    held = json.loads(path.read_text(encoding="utf-8"))
    return held["ratios"], f"committed: {held['date']}, {held['machine']}, torch {held['torch']}"


def write(path: Path, ratios: Mapping[str, float]) -> None:
    """Write *ratios* with the machine and the date, to be committed."""
    today = datetime.now(UTC).date().isoformat()
    rounded = {name: round(ratio, 3) for name, ratio in ratios.items()}
    held = {"date": today, "machine": machine(), "torch": torch.__version__, "ratios": rounded}
    path.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")


def compared(ratios: Mapping[str, float], committed: Mapping[str, float], goals: Mapping[str, float]) -> list[str]:
    """Return a table of *ratios* beside the committed ones and the goals, and a last line: how many grew beyond the margin."""
    width = max(map(len, ratios), default=0)
    lines = [f"{'':<{width}}   ratio  committed   goal"]
    dearer = 0
    for name, ratio in ratios.items():
        before, goal = committed.get(name, math.nan), goals.get(name, math.nan)
        said = ""
        if not ratio <= before * MARGIN and name in committed:
            dearer += 1
            said = f"  {ratio / before:.2f} x the committed one"
        elif ratio < before / MARGIN:
            said = f"  cheaper, {ratio / before:.2f} x: commit it"
        numbers = [f"{number:{size}.2f}" if not math.isnan(number) else " " * size for number, size in ((before, 9), (goal, 5))]
        lines.append(f"{name:<{width}}  {ratio:6.2f}  {numbers[0]}  {numbers[1]}{said}".rstrip())
    gone = [name for name in committed if name not in ratios]
    lines += [f"{name:<{width}}  committed, and not measured any more" for name in gone]
    return [
        *lines,
        f"{dearer} of {len(ratios)} ratios are more than {MARGIN} x the committed ones: this is reported, and fails nothing",
    ]
