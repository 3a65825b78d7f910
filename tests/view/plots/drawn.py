"""A small run of four layers and ten steps, and readers of what a figure shows."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from sonde.rows import Layout
from sonde.run.run import Run
from sonde.run.store.memory_writer import memory_run

LAYERS = ("blocks.0.fc", "blocks.1.fc", "blocks.2.fc", "head")
STEPS = np.arange(0, 20, 2)
PORTS = ("output", "grad_output")
PARAMETERS = ("param", "grad", "update")


def rms(layer: int, step: int) -> float:
    """The number that the run has for a layer and a step."""
    return float(10.0 ** -(layer + 1) * (1 + step))


def written(**change: Callable[[int, int], float]) -> Run:
    """A run of four layers and ten steps in two epochs; *change* replaces numbers by functions of layer and step."""
    writer = memory_run()
    numbers: dict[str, Callable[[int, int], float]] = {
        "rms": rms,
        "norm": lambda layer, step: 4 * rms(layer, step),
        "mean": lambda layer, step: (layer - 1.5) * 0.1,
        "nan": lambda layer, step: 0.0,
        "inf": lambda layer, step: 0.0,
    } | change
    tensors = Layout([f"{layer}:{port}" for port in PORTS for layer in LAYERS], order=[*range(4)] * 2)
    parameters = Layout(
        [f"{layer}.{name}:{port}" for port in PARAMETERS for layer in LAYERS for name in ("weight", "bias")],
        order=[place for _ in PARAMETERS for place in range(4) for _ in range(2)],
    )
    for step in STEPS.tolist():
        epoch = step // 10
        of_layers = {name: [number(layer, step) for layer in range(4)] for name, number in numbers.items()}
        writer.append("moments", tensors, {n: np.tile(v, 2) for n, v in of_layers.items()}, step=step, epoch=epoch)
        writer.append("moments", parameters, {n: np.tile(np.repeat(v, 2), 3) for n, v in of_layers.items()}, step=step, epoch=epoch)
        rates = {"call_activation": [0.5, 0.4, 0.3], "call_death": [0.0, 0.25, min(1.0, step / 18)]}
        writer.append("activation", Layout([f"blocks.{place}.act:output" for place in range(3)]), rates, step=step, epoch=epoch)
        writer.scalar("loss", 1 / (step + 1), step=step, epoch=epoch)
        writer.scalar("grad_norm", float(step), step=step, epoch=epoch)
    writer.scalar("val_loss", 0.5, step=8)
    writer.scalar("accuracy", 0.9, step=8)
    return writer.run()


def mesh_of(figure: Figure) -> QuadMesh:
    """The cells of a heat-map."""
    return next(each for each in figure.axes[0].collections if isinstance(each, QuadMesh))


def texts_of(figure: Figure) -> str:
    """Everything that is written in a figure."""
    return "\n".join(text.get_text() for text in figure.findobj(lambda each: hasattr(each, "get_text")))


def pixels(figure: Figure) -> np.ndarray[Any, Any]:
    """The figure as it is saved: colours from 0 to 1 of shape (height, width, 3)."""
    import matplotlib.image

    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=80)
    out.seek(0)
    return np.asarray(matplotlib.image.imread(out)[..., :3], np.float64)


def share_of(figure: Figure, colour: str) -> float:
    """Share of the pixels that have about this colour."""
    return float((np.abs(pixels(figure) - to_rgb(colour)).max(axis=-1) < 0.06).mean())
