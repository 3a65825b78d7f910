"""Measure the live page in a real browser: the first heat-map of 1,000 sites x 10,000 steps, and frames while it zooms and moves.

Run alone (``make bench``): any other program distorts the numbers. Without chromium or playwright nothing is measured. The first
picture counts from opening the address to the drawn heat-map, with the server's answer: once with nothing read yet, then with the
answer kept. Frames are the times between two pictures of the screen while wheel events come as fast as these.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from sonde.run import Layout, start_run
from sonde.view.app.serving import LivePage

SITES, STEPS, ROUNDS = 1_000, 10_000, 3

FRAMES = """async ([first, turn]) => {
  const heat = document.querySelector(".heat");
  const box = heat.getBoundingClientRect();
  const at = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true, cancelable: true };
  const frames = [];
  let last = performance.now();
  for (let event = 0; event < 120; event += 1) {
    const deltaY = event < 60 ? first : turn;
    heat.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY, ctrlKey: first < 0, shiftKey: first > 0 }));
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - last);
    last = now;
  }
  return frames;
}"""


def write(folder: Path) -> None:
    """Write a run of many sites and steps: sizes that fall with depth and time, with noise."""
    random = np.random.default_rng(0)
    values = 10.0 ** -np.linspace(0, 2, SITES) * random.lognormal(0, 0.1, (STEPS, SITES))
    layout = Layout([f"blocks.{site // 10}.layer{site % 10}:output" for site in range(SITES)])
    with start_run(folder) as writer:
        for step in range(STEPS):
            writer.append("moments", layout, {"rms": values[step]}, step=step)


def measure(folder: Path, program: str, playwright: Any) -> dict[str, float]:
    """Return seconds of the first pictures and milliseconds of frames."""
    found: dict[str, list[float]] = {}
    with LivePage(folder) as served:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for round_ in range(ROUNDS):
            context = browser.new_context(viewport={"width": 1400, "height": 900})
            page = context.new_page()
            page.goto(served.address)
            href = page.locator("td a.name").get_attribute("href")
            start = time.perf_counter()
            page.goto(f"{served.address}{href}/layers")
            page.reload()  # an address that differs in its hash alone opens no new page
            page.locator(".legend .ramp").wait_for()
            found.setdefault("first picture, nothing read yet" if round_ == 0 else "first picture, answer kept", []).append(
                time.perf_counter() - start
            )
            for name, wheel in (("zoom", [-12, 12]), ("move", [60, -60])):
                frames = page.evaluate(FRAMES, wheel)
                found.setdefault(f"{name}: median frame", []).append(statistics.median(frames) / 1e3)
                found.setdefault(f"{name}: 95 % of frames", []).append(statistics.quantiles(frames, n=20)[-1] / 1e3)
            context.close()
        browser.close()
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        print(f"The live page is left out: {error}")
        return
    if program is None:
        print("The live page is left out: no chromium on this machine")
        return
    folder = Path(tempfile.mkdtemp()) / "runs"
    write(folder / "large")
    with sync_playwright() as playwright:
        found = measure(folder, program, playwright)
    print(f"The live page: {SITES:,} sites x {STEPS:,} steps")
    for name, seconds in found.items():
        print(f"  {name:<36} {seconds * 1e3:9.1f} ms")
    print("\n" + json.dumps(found))
    shutil.rmtree(folder.parent)


if __name__ == "__main__":
    main()
