"""``watch``: the one line most people need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim.optimizer import Optimizer

from sonde.engine.selection import Where
from sonde.errors import ArgumentError
from sonde.inspector.inspector import Inspector
from sonde.inspector.lenses.builtin import AnyLens
from sonde.inspector.schedule import Steps
from sonde.inspector.settings import Gradients
from sonde.run.store.open import Existing

if TYPE_CHECKING:
    from sonde.graph import Graph

__all__ = ["watch"]


def watch(
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    *,
    every: Steps = 10,
    to: Any = None,
    include: Where = None,
    exclude: Where = None,
    lenses: Iterable[AnyLens] | AnyLens | None = None,
    scaler: Any = None,
    depth: int = -1,
    gradients: Gradients = "step",
    evaluation: bool = False,
    budget: str | float | None = None,
    update_memory: str | float | None = "1GB",
    exists: Existing = "error",
    resume: bool = False,
    step: int | None = None,
    visualizer: Any = None,
    strict: bool = False,
    quiet: bool = False,
    batch: Any = None,
) -> Inspector:
    """Record what happens in *model* while it is trained, until the end of a ``with`` block or ``detach()``::

        with sonde.watch(model, optimizer):
            for x, y in batches:
                loss = loss_fn(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    At the end it says where the run is, what it found and what it cost. The arguments are those of :class:`Inspector`.

    Args:
        model: any ``nn.Module``, also compiled or wrapped; several as ``{"G": generator, "D": discriminator}``, each of which
            counts its own steps.
        batch: an example of what the model is called with, a tuple for several arguments: the execution graph is captured on it
            before the training begins, and kept in the run. ``sonde.graph.Graph.of(run.graph)`` reads it back, to be drawn
            with the run's numbers on its nodes. The model is left as it was.
        optimizer: only checked to step the model. The steps of all ``torch.optim`` optimizers are seen by themselves.

    Returns:
        The inspector, attached.

    Raises:
        ArgumentError: *batch* is given for several models, or another argument cannot be used.
    """
    graph = None if batch is None else _captured(model, batch)
    inspector = Inspector(
        lenses,
        optimizer=optimizer,
        every=every,
        to=to,
        depth=depth,
        scaler=scaler,
        include=include,
        exclude=exclude,
        gradients=gradients,
        evaluation=evaluation,
        budget=budget,
        update_memory=update_memory,
        exists=exists,
        resume=resume,
        step=step,
        visualizer=visualizer,
        strict=strict,
        quiet=quiet,
    )
    inspector.attach(model)
    if graph is not None:
        inspector.keep_graph(graph)
    return inspector


def _captured(model: nn.Module | Mapping[str, nn.Module], batch: Any) -> Graph:
    if not isinstance(model, nn.Module):
        raise ArgumentError("batch= goes with one model: of several, capture each with sonde.graph.capture(model, batch)")
    from sonde.graph import capture  # slow to import, and rarely wanted

    return capture(model, *(batch if isinstance(batch, tuple) else (batch,)))
