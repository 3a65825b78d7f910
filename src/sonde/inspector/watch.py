"""``watch``: make an inspector and attach it, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim.optimizer import Optimizer

from sonde.engine import Calls, Where, as_arguments
from sonde.errors import ArgumentError
from sonde.inspector.inspector import Inspector
from sonde.inspector.ranks import How, Ranks
from sonde.inspector.settings import BadSteps, Gradients, Limits, OnNonFinite
from sonde.inspector.sinks.alerts import OnAlert
from sonde.lens import AnyLens
from sonde.rules import Given
from sonde.run import Existing
from sonde.schedule import Steps

if TYPE_CHECKING:
    from sonde.graph import Graph


def watch(
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    every: Steps = 10,
    to: Any = None,
    lenses: Iterable[AnyLens] | AnyLens | None = None,
    include: Where = None,
    exclude: Where = None,
    depth: int = -1,
    rules: Given = None,
    config: Any = None,
    *,
    scaler: Any = None,
    gradients: Gradients = "step",
    evaluation: bool = False,
    calls: Calls = "each",
    exists: Existing = "error",
    step: int | None = None,
    epoch: int | None = None,
    strict: bool = False,
    verbose: bool = True,
    graph: Any = None,
    ranks: Ranks | How = "merged",
    bad_steps: BadSteps | OnNonFinite | None = "warn",
    limits: Limits | None = None,
    on_alert: OnAlert = None,
) -> Inspector:
    """Record what happens in *model* while it is trained, until the end of a ``with`` block or ``detach()``.

    >>> import torch
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with watch(model, optimizer, every=10, to="memory", verbose=False) as inspector:
    ...     for _ in range(21):
    ...         loss = model(torch.ones(2, 4)).square().mean()
    ...         optimizer.zero_grad()
    ...         loss.backward()
    ...         optimizer.step()
    ...         inspector.push_loss(loss, train=True)
    >>> steps, losses = inspector.run.scalar("loss")
    >>> steps.tolist(), bool(losses[-1] < losses[0])
    ([0, 10, 20], True)

    At the end three lines say where the run is, what was found and what watching cost. A script that ends without ``detach()`` is
    detached when the interpreter ends. Hold the inspector for as long as it is to record: one that nobody holds is detached.

    The arguments are explained in this order: what is recorded and judged, when, where it goes, and what several processes do.

    Args:
        model: any ``nn.Module``, also compiled or wrapped; several as ``{"G": generator, "D": discriminator}``. Each
            counts its own steps.
        optimizer: only checked to step the model. The steps of all ``torch.optim`` optimizers are seen by themselves.
        lenses: what is looked at, as :func:`sonde.lens.moments` or a list; by default outputs, gradients, parameters and updates of
            all layers, and activations where there are any.
        include, exclude: which layers, for all lenses: a regular expression that is searched in their names, exact names, types,
            or a callable ``(name, module) -> bool``.
        depth: how many levels below the root are observed; a module at the last level stands for all that is in it. -1 is all.
        gradients: which gradients of parameters: ``"step"``, as the optimizer sees them (accumulated, unscaled, clipped);
            ``"micro_step"``, those accumulated after each backward pass, in families with the suffix ``_micro``; ``"both"``.
        evaluation: record evaluation passes (the root in evaluation mode, or without gradients) too, in families with the
            suffix ``_eval``, at the step before them. Keeps the hooks in between logged steps.
        calls: which calls of a module within one forward have rows of their own: ``"each"``, the first 8; a number, the first so
            many; ``"joined"``, none. All others share a row, whose ``call`` is -1.
        scaler: the ``GradScaler`` of the loop: gradients are recorded unscaled, and skipped attempts are no steps.
        graph: an example of the model's input: a tuple or list of positional arguments, a mapping of keyword arguments (as a
            dict or the ``BatchEncoding`` of a tokenizer), or the only argument. The execution graph is captured on it before the
            training begins, and kept in the run: ``run.graph`` reads it back, and ``sonde.view.plots.graph_page`` draws it with the
            run's numbers on its nodes. The model is left as it was.
        rules: the rules watch each logged step, and print a line as soon as one finds something: by name False to leave a
            rule out, or its thresholds, as ``{"dead": False, "spike": {"deviations": 6}}``; False alone leaves out all. See
            ``sonde.rules.RULES`` and :func:`sonde.rule`.
        bad_steps: what is done about a step with NaN or infinity: ``"warn"``, ``"stop"``, ``"wait"`` or None; or a
            :class:`sonde.BadSteps`, also about spikes.
        every: which steps are logged: n for every n-th; ``"10s"`` for a time between them; a range, step numbers, or an iterator of
            ascending ones; a callable ``Tick -> bool``; a :class:`sonde.Warmup`. Between logged steps the hooks are taken out.
        step, epoch: the numbers of the first step and of the first epoch. A run that is resumed goes on with its last epoch, or, if
            that had ended, with the next one.
        limits: a :class:`sonde.Limits`: the share of the time, and the memory, that watching may take.
        to: where rows go: None for a new folder in runs/, a path, ``"memory"``, a :class:`sonde.Run` on disk to continue; a
            logger, as a :class:`~sonde.integrations.TensorBoard` or another sink; a visualizer (``Callable[[Run], None]``, called
            at the end of each epoch and of the training); the name of one of these, ``"print"``, ``"matplotlib"``,
            ``"tensorboard"``, ``"wandb"``, ``"mlflow"`` or ``"opentelemetry"``, whose files are in the folder of the run; or a
            list.
        on_alert: what is done about each finding that is ``warn`` or ``bad`` while the training goes on: a function, called with
            the :class:`~sonde.types.Finding`; the URL of a webhook, which is sent JSON; or a command, as a text or a list, which
            gets this JSON as its input. In a thread of its own, on the rank that leads.
        exists: what to do where the folder holds a run: ``"error"``; ``"resume"`` to continue it, after its last step or at *step*;
            ``"unique"`` to write beside it; ``"replace"`` to delete it.
        config: hyperparameters and notes, kept in the run as ``run.config``: a mapping, a dataclass or an ``argparse.Namespace``.
            What is no number, text, list or mapping is kept as its text.
        verbose: print alarms, and three lines at the end.
        strict: raise what a statistic raises, instead of going on without it with a warning.
        ranks: what several processes record: ``"merged"``, numbers of all of them, joined; ``"each"``, each its own; ``"first"``,
            rank 0 alone; a process group, its ranks in a run of their own; or a :class:`sonde.Ranks`, for times and more.

    Returns:
        The inspector, attached.

    Raises:
        ArgumentError: *graph* is given for several models, or another argument cannot be used.
        ModelError: *model* is no ``nn.Module``.
        SelectionError: the lenses, *include* and *exclude* leave nothing to observe.
        StoreError: the folder in *to* cannot be used.
        RankError: the processes of the training, which came together, were given different arguments, or one cannot write.
    """
    captured = None if graph is None else _captured(model, graph)
    inspector = Inspector(
        lenses,
        optimizer=optimizer,
        every=every,
        to=to,
        include=include,
        exclude=exclude,
        depth=depth,
        rules=rules,
        config=config,
        scaler=scaler,
        gradients=gradients,
        evaluation=evaluation,
        calls=calls,
        exists=exists,
        step=step,
        epoch=epoch,
        strict=strict,
        verbose=verbose,
        ranks=ranks,
        bad_steps=bad_steps,
        limits=limits,
        on_alert=on_alert,
    )
    inspector.attach(model)
    if captured is not None:
        inspector.keep_graph(captured)
    return inspector


def _captured(model: nn.Module | Mapping[str, nn.Module], batch: Any) -> Graph:
    if not isinstance(model, nn.Module):
        raise ArgumentError("graph= goes with one model: of several, capture each with sonde.capture(model, batch)")
    from sonde.graph import capture  # slow to import, and rarely wanted

    args, kwargs = as_arguments(batch)
    return capture(model, *args, **kwargs)
