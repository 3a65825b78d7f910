"""Runs for tests of the page: a small one by hand, a large one, one with defects, a hostile one, and one that grows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sonde.rows import Layout
from sonde.run import check
from sonde.run.store.disk_writer import DiskWriter, Flushing
from sonde.run.store.open import start_run
from sonde.run.store.writer import RunWriter

LAYERS = ("blocks.0.fc", "blocks.1.fc", "head")
MODEL = [
    {"name": "", "type": "Net", "parameters": 0},
    *({"name": name, "type": "Linear", "parameters": 12, "shapes": {"weight": [4, 3]}} for name in LAYERS),
]
HOSTILE = "\"'><img src=x onerror=alert(1)></script><script>alert(2)</script>"


def small(writer: RunWriter, steps: range = range(0, 20, 2)) -> None:
    """Write three layers: the rms of layer i at step s is 10^-i (1 + s); parameters are 10, updates 0.01 * (1 + s)."""
    writer.describe(model=MODEL, environment={"torch": "2.13"}, config={"lr": 0.1, "batch": 8})
    outputs = Layout([f"{layer}:output" for layer in LAYERS])
    parameters = [Layout([f"{layer}.weight:{port}" for layer in LAYERS]) for port in ("grad", "param", "update")]
    for step in steps:
        rms = np.array([10.0**-place * (1 + step) for place in range(3)])
        none = np.zeros(3)
        writer.append("moments", outputs, {"rms": rms, "mean": rms - 1, "nan": none, "inf": none, "count": none + 32}, step=step)
        for layout, values in zip(parameters, (rms, none + 10.0, none + 0.01 * (1 + step)), strict=True):
            writer.append(
                "moments", layout, {"rms": values, "mean": values, "nan": none, "inf": none, "count": none + 12}, step=step
            )
        writer.scalar("loss", 1 / (1 + step), step=step)
        writer.scalar("val_loss", 2 / (1 + step), step=step)
        writer.scalar("grad_norm", float(step), step=step)
        writer.scalar("lr", 0.1, step=step)


def small_run(folder: Path, steps: range = range(0, 20, 2), *, closed: bool = True) -> DiskWriter:
    """Write the small run to *folder*."""
    writer = start_run(folder)
    small(writer, steps)
    writer.flush()
    if closed:
        writer.close()
        check(folder)
    return writer


def with_defects(folder: Path) -> None:
    """Write a run of four layers and 12 steps: NaN elements from step 6 on, infinite ones at step 3, exact zeros, a late layer."""
    layout = Layout([f"{name}:output" for name in ("healthy", "broken", "zero", "late")])
    with start_run(folder, about={"model": [{"name": "", "type": "Net"}]}) as writer:
        for step in range(12):
            rms = np.array([1.0 + step, np.nan if step > 8 else 1.0, 0.0, 5.0])
            nan = np.array([0.0, 4.0 if step >= 6 else 0.0, 0.0, 0.0])
            inf = np.array([0.0, 2.0 if step == 3 else 0.0, 0.0, 0.0])
            rows = np.array([True, True, True, step >= 8])
            writer.append("moments", layout, {"rms": rms, "nan": nan, "inf": inf}, step=step, rows=rows)
            writer.scalar("loss", np.nan if step > 8 else 1.0, step=step)
        writer.alert("broken: NaN", step=6, severity="bad", rule="nonfinite", site="broken:output", value=4.0)
    check(folder)


def hostile_run(folder: Path) -> None:
    """Write a run with hostile text wherever a run can hold text."""
    from sonde.site import Site

    site = Site(HOSTILE)
    with start_run(
        folder, about={"model": [{"name": HOSTILE, "type": HOSTILE}], HOSTILE: HOSTILE, "config": {HOSTILE: HOSTILE}}
    ) as writer:
        for step in range(3):
            writer.append("moments", Layout([site, site.port_of("grad_output")]), {"rms": [1.0, 2.0]}, step=step)
            writer.scalar(HOSTILE, 1.0, step=step)
        writer.alert(HOSTILE, step=0, severity=HOSTILE, rule=HOSTILE, site=str(site))
        writer.alert(HOSTILE, step=0, severity="bad", rule="", site=HOSTILE)


@contextmanager
def growing_run(folder: Path) -> Iterator[DiskWriter]:
    """Give a writer whose rows come to disk within a tenth of a second; :func:`small` writes more to it."""
    with start_run(folder, flushing=Flushing(seconds=0.1, first=0.1, sync=False)) as writer:
        yield writer


def large_values(sites: int, steps: int, seed: int = 0) -> npt.NDArray[np.float64]:
    """Return what a large run holds: decaying sizes of shape (sites, steps) with noise and rare spikes."""
    random = np.random.default_rng(seed)
    depth = np.linspace(0, 2, sites)[:, None]
    fall = np.exp(-np.arange(steps) / steps * 2)[None]
    values = 10.0**-depth * fall * random.lognormal(0, 0.1, (sites, steps))
    values[random.integers(0, sites, 50), random.integers(0, steps, 50)] *= 1e3
    return np.asarray(values)


def large_run(
    folder: Path, sites: int = 1000, steps: int = 10_000, ports: tuple[str, ...] = ("output",)
) -> npt.NDArray[np.float64]:
    """Write a run of many sites and steps, each step logged; return its values of rms, of shape (sites, steps)."""
    values = large_values(sites, steps)
    names = [f"blocks.{place // 10}.{'abcdefghij'[place % 10]}" for place in range(sites)]
    about = {"model": [{"name": "", "type": "Large"}, *({"name": name, "type": "Linear"} for name in names)]}
    with start_run(folder, about=about, flushing=Flushing(seconds=60, first=60, sync=False, patience=600)) as writer:
        layouts = [Layout([f"{name}:{port}" for name in names]) for port in ports]
        for begin in range(0, steps, 100):
            here = range(begin, min(begin + 100, steps))
            moments = np.array([(0, step, 0) for step in here])
            flat = values[:, begin : begin + len(here)].T.reshape(-1)
            for layout in layouts:
                zeros = np.zeros(len(flat))
                writer.extend(
                    "moments",
                    layout,
                    {
                        "rms": flat,
                        "mean": flat - 1,
                        "std": flat,
                        "absmax": 4 * flat,
                        "count": zeros + 64,
                        "nan": zeros,
                        "inf": zeros,
                    },
                    moments=moments,
                    lengths=np.full(len(here), sites),
                    rows=np.tile(np.arange(sites), len(here)),
                )
            writer.scalars([("loss", float(np.exp(-step / steps * 2)), step, 0) for step in here])
    return values
