"""Measure the live page in a real browser: the first heat-map of 1,000 sites x 10,000 steps, and frames while it zooms and moves.

Run alone (``make bench``): any other program distorts the numbers. Without chromium or playwright nothing is measured. The first
picture counts from opening the address to the drawn heat-map, with the server's answer: once with nothing read yet, then with the
answer kept, then over a line of 1 MB a second with nothing kept in the browser. Frames are the times between two pictures of the
screen while wheel events come as fast as these. The server is a process of its own; its seconds on a
core (which other programs disturb less than the clock) and its greatest memory are those that the system counts. The list of 1,000
runs is asked for twice: nothing read yet, and then kept.

Beside it plotly.js, where its package is installed, draws the same sizes as a heat-map: with as many columns as a screen has, as
the server of the live page reduces them, and with all steps. Its first picture has no server in it, and its frames no
events: the range of the axis is set directly. Its page has the policy of the live page.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import sonde
from sonde.run import Layout, start_run

SITES, STEPS, ROUNDS = 1_000, 10_000, 3
RUNS = 1_000
SLOW = {"offline": False, "latency": 20, "downloadThroughput": 1e6, "uploadThroughput": 1e6}

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


PLOTLY = """<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<div id="plot"></div><script src="plotly.js"></script><script src="data.js"></script>"""
DRAW = """async ([columns]) => {
  const start = performance.now();
  const all = new Float32Array(Uint8Array.from(atob(VALUES), (sign) => sign.charCodeAt(0)).buffer);
  const z = Array.from({ length: all.length / columns }, (_, row) => all.subarray(row * columns, (row + 1) * columns));
  const axes = { width: 1400, height: 620, yaxis: { autorange: "reversed" } };
  await Plotly.newPlot("plot", [{ type: "heatmap", z, colorscale: "Viridis" }], axes);
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""
RANGES = """async ([columns, events, isZoom]) => {
  const frames = [];
  let last = performance.now();
  for (let event = 0; event < events; event += 1) {
    const share = event / events;
    const [from, to] = isZoom ? [share * 0.4, 1 - share * 0.4] : [share * 0.5, (1 + share) * 0.5];
    const range = [from * columns, to * columns];
    await Plotly.relayout("plot", { "xaxis.range": range });
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - last);
    last = now;
  }
  return frames;
}"""


def sizes() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return sizes of shape (steps, sites) that fall with depth, with noise."""
    random = np.random.default_rng(0)
    return np.asarray(10.0 ** -np.linspace(0, 2, SITES) * random.lognormal(0, 0.1, (STEPS, SITES)))


def write(folder: Path) -> None:
    """Write a run of many sites and steps."""
    values = sizes()
    layout = Layout([f"blocks.{site // 10}.layer{site % 10}:output" for site in range(SITES)])
    with start_run(folder) as writer:
        for step in range(STEPS):
            writer.append("moments", layout, {"rms": values[step]}, step=step)


def write_many(folder: Path) -> None:
    """Write many small runs."""
    random = np.random.default_rng(0)
    layout = Layout([f"layers.{site}:output" for site in range(12)])
    for run in range(RUNS):
        with start_run(folder / f"run-{run}", about={"config": {"seed": run}}) as writer:
            for step in range(50):
                writer.append("moments", layout, {"rms": random.random(12)}, step=step)
                for name in ("loss", "lr", "val/accuracy"):
                    writer.scalar(name, float(random.random()), step=step)


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """Serve *folder* in a process of its own; give its address, and what returns its seconds on a core and its greatest memory."""
    command = [sys.executable, "-m", "sonde", "ui", str(folder), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        address = next(line.split()[0] for line in server.stdout or () if line.startswith("http"))

        def used() -> dict[str, float]:
            memory = next(line for line in Path(f"/proc/{server.pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
            spent = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
            return {
                "server, seconds on a core": sum(map(int, spent[11:13])) / os.sysconf("SC_CLK_TCK"),
                "server, greatest memory in MB": int(memory.split()[1]) * 1024 / 1e6,
            }

        try:
            yield address, used
        finally:
            server.send_signal(signal.SIGINT)


def measure_list(folder: Path) -> dict[str, float]:
    """Return seconds of the list of many runs."""
    found = {}
    with served(folder) as (address, used):
        for name in ("nothing read yet", "kept"):
            start, spent = time.perf_counter(), used()["server, seconds on a core"]
            with urllib.request.urlopen(f"{address}api/runs") as answer:
                json.load(answer)
            found[f"list of {RUNS:,} runs, {name}"] = time.perf_counter() - start
            found[f"list of {RUNS:,} runs, {name}, on a core"] = used()["server, seconds on a core"] - spent
    return found


def measure(folder: Path, program: str, playwright: Any) -> dict[str, float]:
    """Return seconds of the first pictures and milliseconds of frames."""
    found: dict[str, list[float]] = {}
    with served(folder) as (address, used):
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for round_ in range(ROUNDS + 1):
            context = browser.new_context(viewport={"width": 1400, "height": 900})
            page = context.new_page()
            page.goto(address)
            href = page.locator("td a.name").get_attribute("href")
            is_slow = round_ == ROUNDS
            if is_slow:
                line = context.new_cdp_session(page)
                line.send("Network.setCacheDisabled", {"cacheDisabled": True})
                line.send("Network.emulateNetworkConditions", SLOW)
            start = time.perf_counter()
            page.goto(f"{address}{href}/layers")
            page.reload()  # an address that differs in its hash alone opens no new page
            page.locator(".legend .ramp").wait_for()
            how = "over 1 MB a second" if is_slow else "nothing read yet" if round_ == 0 else "answer kept"
            found.setdefault(f"first picture, {how}", []).append(time.perf_counter() - start)
            if round_ == 0:
                page.wait_for_load_state("networkidle")
                found |= {f"{name}, first picture": [value] for name, value in used().items()}
            for name, wheel in (("zoom", [-12, 12]), ("move", [60, -60])) if not is_slow else ():
                frames = page.evaluate(FRAMES, wheel)
                found.setdefault(f"{name}: median frame", []).append(statistics.median(frames) / 1e3)
                found.setdefault(f"{name}: 95 % of frames", []).append(statistics.quantiles(frames, n=20)[-1] / 1e3)
            context.close()
        found |= {name: [value] for name, value in used().items()}
        browser.close()
    return {name: statistics.median(values) for name, values in found.items()}


def measure_plotly(folder: Path, script: Path, program: str, playwright: Any) -> dict[str, float]:
    """Return seconds of the first picture and of frames of plotly's heat-map, with reduced columns and with all steps."""
    values = np.log10(sizes().T).astype("<f4")
    found = {}
    policy = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data: blob:"
    shutil.copy(script, folder / "plotly.js")
    (folder / "plotly.html").write_text(PLOTLY.replace("{policy}", policy.replace("'self'", "file:")))
    browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
    for columns, events in ((1_000, 60), (STEPS, 10)):
        reduced = np.median(values.reshape(SITES, columns, -1), axis=2).astype("<f4")
        (folder / "data.js").write_text(f"const VALUES = {json.dumps(base64.b64encode(reduced.tobytes()).decode())};")
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        page = context.new_page()
        start = time.perf_counter()
        page.goto((folder / "plotly.html").as_uri())
        page.evaluate(DRAW, [columns])
        name = f"plotly, {columns:,} columns"
        found[f"{name}: first picture"] = time.perf_counter() - start
        for way, is_zoom in (("zoom", True), ("move", False)):
            frames = page.evaluate(RANGES, [columns, events, is_zoom])
            found[f"{name}, {way}: median frame"] = statistics.median(frames) / 1e3
        context.close()
    browser.close()
    return found


def plotly_script() -> Path | None:
    """Return plotly.js of plotly's package; None if it is not installed."""
    spec = importlib.util.find_spec("plotly")
    found = None if spec is None or spec.origin is None else Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return found if found is not None and found.is_file() else None


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
    write_many(folder.parent / "many")
    found = measure_list(folder.parent / "many")
    with sync_playwright() as playwright:
        found |= measure(folder, program, playwright)
        script = plotly_script()
        if script is not None:
            found |= measure_plotly(folder.parent, script, program, playwright)
    package = Path(sonde.__file__).parent
    own = sum(file.stat().st_size for file in [*package.glob("view/assets/app/*.js"), package / "answer" / "assets" / "page.js"])
    print(f"Scripts: {own:,} bytes" + ("" if script is None else f"; plotly.js: {script.stat().st_size:,}"))
    print(f"The live page: {SITES:,} sites x {STEPS:,} steps")
    for name, seconds in found.items():
        print(f"  {name:<44} {seconds:9.1f} MB" if name.startswith("server, greatest") else f"  {name:<44} {seconds * 1e3:9.1f} ms")
    print("\n" + json.dumps(found))
    shutil.rmtree(folder.parent)


if __name__ == "__main__":
    main()
