"""Measure the cost of a graph: capture against TorchLens and torchview, the first picture in a browser against the layout alone.

Run alone (``make bench``): any other program distorts the numbers. All ways are timed in one process, in turn. The table gives
medians; the raw medians are printed as JSON at the end. Peers that are not installed are left out with a message.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models import chain
from sonde.graph import capture

OPERATIONS, MODULES, VISIBLE = 10_000, 1_000, 3_000
ROUNDS, SLOW_ROUNDS, PAGES = 7, 2, 5


class Sequence(nn.Module):
    """A layer and a chain of additions."""

    def __init__(self, operations: int) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.operations = operations

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        for _ in range(self.operations):
            x = x + 1
        return x


class Block(nn.Module):
    """Attention and a two-layer network, each with a residual connection, as in a transformer: 19 operations, 10 drawn.

    Blocks of different *hidden* size are not drawn as one.
    """

    def __init__(self, width: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.norm, self.last_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.body = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.view(2, 4, 2, 4).transpose(1, 2) for part in self.queries(self.norm(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.mix(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.body(self.last_norm(x))


def torchlens(model: nn.Module, x: Tensor) -> Callable[[], Any] | None:
    """Return a function that traces every operation with TorchLens; None if it is not installed."""
    try:
        import torchlens
    except ImportError as error:
        print(f"TorchLens is left out: {error}")
        return None
    return lambda: torchlens.trace(model, x)


def torchview(model: nn.Module, x: Tensor) -> Callable[[], Any] | None:
    """Return a function that draws the modules with torchview; None if it is not installed."""
    try:
        import torchview
    except ImportError as error:
        print(f"torchview is left out: {error}")
        return None
    return lambda: torchview.draw_graph(model, input_data=x, depth=1, device="cpu")


def measure(ways: dict[str, Callable[[], Any] | None], slow: set[str]) -> dict[str, float]:
    """Return the median seconds of each way; the ways run in turn."""
    present = {name: run for name, run in ways.items() if run is not None}
    times: dict[str, list[float]] = {name: [] for name in present}
    for round_ in range(ROUNDS + 1):
        for name, run in present.items():
            if name in slow and round_ > SLOW_ROUNDS:
                continue
            start = time.perf_counter()
            run()
            if round_:  # the first round is not counted: it warms up
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def show(title: str, times: dict[str, float], base: str) -> None:
    print(f"\n{title}\n{'':<44}        ms   ratio")
    for name, value in times.items():
        print(f"  {name:<42} {value * 1e3:9.1f}  {value / times[base]:6.2f}")


def first_picture() -> dict[str, float] | None:
    """Return the seconds of the layout alone, and from opening the file to the first picture, in a headless chromium."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        print(f"The page is left out: {error}")
        return None
    if program is None:
        print("The page is left out: no chromium on this machine")
        return None
    blocks = nn.Sequential(*(Block(hidden=16 + number) for number in range(VISIBLE // 10)))
    graph = capture(blocks, torch.randn(2, 4, 8)).hide(parameters=True)
    path = graph.save(Path(tempfile.mkdtemp()) / "graph.html", depth=graph.depth)
    found: dict[str, list[float]] = {"layout": [], "first picture": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for _ in range(PAGES):
            context = browser.new_context(offline=True)
            page = context.new_page()
            page.goto(path.as_uri())
            page.locator("html[data-ready]").wait_for(state="attached")
            found["layout"].append(float(page.evaluate("document.documentElement.dataset.layout")) / 1e3)
            found["first picture"].append(page.evaluate("performance.getEntriesByName('sonde-drawn')[0].startTime") / 1e3)
            context.close()
        browser.close()
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    x = torch.randn(2, 8)
    print(f"torch {torch.__version__}, 1 thread")
    sequence, many = Sequence(OPERATIONS), chain(MODULES // 2, 8)
    operations = measure(
        {
            "bare model": lambda: sequence(x),
            "sonde.capture": lambda: capture(sequence, x),
            "TorchLens, trace": torchlens(sequence, x),
        },
        slow={"TorchLens, trace"},
    )
    show(f"{OPERATIONS:,} operations in a row", operations, "sonde.capture")
    modules = measure(
        {
            "bare model": lambda: many(x),
            "sonde.capture, operations=False": lambda: capture(many, x, operations=False),
            "sonde.capture": lambda: capture(many, x),
            "torchview, depth=1": torchview(many, x),
        },
        slow=set(),
    )
    show(f"{MODULES:,} modules", modules, "sonde.capture, operations=False")
    picture = first_picture()
    if picture is not None:
        show(f"About {VISIBLE:,} visible nodes in chromium, all modules open", picture, "layout")
    print("\n" + json.dumps({"operations": operations, "modules": modules, "page": picture}))


if __name__ == "__main__":
    main()
