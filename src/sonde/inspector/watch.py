"""``watch``: make an inspector and attach it, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim.optimizer import Optimizer

from sonde.engine import Calls, Where, as_arguments
from sonde.errors import ArgumentError
from sonde.inspector.inspector import Inspector
from sonde.inspector.lenses.builtin import AnyLens
from sonde.inspector.ranks import Ranks
from sonde.inspector.sentinel.sentinel import OnNonFinite
from sonde.inspector.settings import Gradients
from sonde.rules import Given
from sonde.run import Existing
from sonde.schedule import Steps

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
    calls: Calls = "each",
    budget: str | float | None = None,
    update_memory: str | float | None = "1GB",
    exists: Existing = "error",
    step: int | None = None,
    epoch: int | None = None,
    config: Any = None,
    visualizer: Any = None,
    strict: bool = False,
    verbose: bool = True,
    rules: Given = None,
    graph: Any = None,
    ranks: Ranks = "merged",
    per_rank: bool = False,
    on_nonfinite: OnNonFinite | None = "warn",
    on_spike: float | None = None,
    group: Any = None,
    timeout: float = 300.0,
    exit_timeout: float = 20.0,
) -> Inspector:
    """Record what happens in *model* while it is trained, until the end of a ``with`` block or ``detach()``::

        with sonde.watch(model, optimizer):
            for x, y in batches:
                loss = loss_fn(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    At the end three lines say where the run is, what was found and what watching cost. A script that ends without ``detach()`` is
    detached when the interpreter ends. Hold the inspector for as long as it is to record: one that nobody holds is detached.

    Args:
        model: any ``nn.Module``, also compiled or wrapped; several as ``{"G": generator, "D": discriminator}``. Each
            counts its own steps.
        optimizer: only checked to step the model. The steps of all ``torch.optim`` optimizers are seen by themselves.
        lenses: what is looked at, as :func:`sonde.lens.moments` or a list; by default outputs, gradients, parameters and updates of
            all layers, and activations where there are any.
        every: which steps are logged: n for every n-th; ``"10s"`` for a time between them; a range, step numbers, or an iterator of
            ascending ones; a callable ``Tick -> bool``; a :class:`~sonde.schedule.Warmup`. Between logged steps the
            hooks are taken out.
        to: where rows go: None for a new folder in runs/, a path, ``"memory"``, a :class:`~sonde.run.run.Run` on disk to
            continue, a :class:`~sonde.inspector.sinks.base.Sink`, a visualizer (``Callable[[Run], None]``, called at the end of
            each epoch and of the training), or a list of these.
        include, exclude: which layers, for all lenses: a regular expression that is searched in their names, exact names, types,
            or a callable ``(name, module) -> bool``.
        depth: how many levels below the root are observed; a module at the last level stands for all that is in it. -1 is all.
        scaler: the ``GradScaler`` of the loop: gradients are recorded unscaled, and skipped attempts are no steps.
        gradients: which gradients of parameters: ``"step"``, as the optimizer sees them (accumulated, unscaled, clipped);
            ``"micro_step"``, those accumulated after each backward pass, in families with the suffix ``_micro``; ``"both"``.
        evaluation: record evaluation passes (the root in evaluation mode, or without gradients) too, in families with the
            suffix ``_eval``, at the step before them. Keeps the hooks in between logged steps.
        calls: which calls of a module within one forward have rows of their own: ``"each"``, the first 8; a number, the first so
            many; ``"joined"``, none. All others share a row, whose ``call`` is -1.
        budget: the share of step time that observing may take, as ``"1%"`` or 0.01: *every*, an int, is then adapted.
        update_memory: the memory for copies of parameters, as ``"1GB"``, bytes, or None for any amount. Updates are measured on
            copies that are made before each logged step and dropped after it. Where the copies would take more, they hold every
            n-th element: shares and means are then of these elements, counts and norms are estimates, and the coverage says where.
            On an accelerator *on_nonfinite* keeps copies in as much memory again.
        exists: what to do where the folder holds a run: ``"error"``; ``"resume"`` to continue it, after its last step or at *step*;
            ``"unique"`` to write beside it; ``"replace"`` to delete it.
        step, epoch: the numbers of the first step and of the first epoch. A run that is resumed goes on with its last epoch, or, if
            that had ended, with the next one.
        config: hyperparameters and notes, kept in the run as ``run.config``: a mapping, a dataclass or an ``argparse.Namespace``.
            What is no number, text, list or mapping is kept as its text.
        visualizer: ``"print"``, ``"matplotlib"`` or ``"tensorboard"``; or the same as *to*; or several of these, beside *to*.
            Without *to* the run is in memory.
        strict: raise what a statistic raises, instead of going on without it with a warning.
        verbose: print alarms, and three lines at the end.
        rules: the rules watch each logged step, and print a line as soon as one finds something: by name False to leave a
            rule out, or its thresholds, as ``{"dead": False, "spike": {"deviations": 6}}``; False alone leaves out all. See
            ``sonde.rules.RULES`` and :func:`sonde.rule`.
        graph: an example of the model's input: a tuple or list of positional arguments, a mapping of keyword arguments (as a
            dict or the ``BatchEncoding`` of a tokenizer), or the only argument. The execution graph is captured on it before the
            training begins, and kept in the run: ``sonde.graph.Graph.of(run.graph)`` reads it back, to be drawn with the run's
            numbers on its nodes. The model is left as it was.
        ranks: in a training of several processes (``torchrun``), where each calls ``watch``: ``"merged"``, one run of the joined
            numbers of all; ``"each"``, one run in which each writes its own, without any communication after this call;
            ``"first"``, rank 0 records alone, and nothing communicates. Or a process group, or a ``DeviceMesh``: the joined numbers
            of its ranks, in a run of their own; the other ranks, which may train another model, need not call ``watch``.
        per_rank: write the rows of each process too, in families with the suffix ``_rank``.
        on_nonfinite: what is done about a step with NaN or infinity in its loss, or in the gradients that the optimizer is about to
            use, also between logged steps: ``"warn"``, keep the step, find the operation that made them, and warn; ``"stop"``, the
            same, and raise :class:`~sonde.errors.NonFiniteError` before the optimizer changes any parameter; None, nothing.
            Neither waits for an accelerator: there a step is found as its numbers arrive, most often one or two steps later, and
            ``"stop"`` raises then. ``"wait"`` is ``"stop"`` that waits before each step.
        on_spike: a number, as 6: keep each step, too, whose loss or gradient norm lies so many robust deviations above the median
            of the last 128 steps (both of logarithms; a deviation is 1.4826 times the median distance, at least 2 %), and warn.
            All gradients are then measured before each step. None: no step is kept for that.
        group: the process group, or the ``DeviceMesh``, of the ranks that run the model on batches of their own; by default that
            of DDP or FSDP, or all ranks.
        timeout, exit_timeout: the seconds after which a process is given up that shows no sign of life; and the seconds that the
            end may wait for other processes. The others then record their own numbers.

    Returns:
        The inspector, attached.

    Raises:
        ArgumentError: *graph* is given for several models, or another argument cannot be used.
        ModelError: *model* is no ``nn.Module``.
        SelectionError: the lenses, *include* and *exclude* leave nothing to observe.
        StoreError: the folder in *to* cannot be used.
        RankError: the processes of the training were given different arguments, or one of them cannot write.
    """
    captured = None if graph is None else _captured(model, graph)
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
        calls=calls,
        budget=budget,
        update_memory=update_memory,
        exists=exists,
        step=step,
        epoch=epoch,
        config=config,
        visualizer=visualizer,
        strict=strict,
        verbose=verbose,
        rules=rules,
        ranks=ranks,
        per_rank=per_rank,
        on_nonfinite=on_nonfinite,
        on_spike=on_spike,
        group=group,
        timeout=timeout,
        exit_timeout=exit_timeout,
    )
    inspector.attach(model)
    if captured is not None:
        inspector.keep_graph(captured)
    return inspector


def _captured(model: nn.Module | Mapping[str, nn.Module], batch: Any) -> Graph:
    if not isinstance(model, nn.Module):
        raise ArgumentError("graph= goes with one model: of several, capture each with sonde.graph.capture(model, batch)")
    from sonde.graph import capture  # slow to import, and rarely wanted

    args, kwargs = as_arguments(batch)
    return capture(model, *args, **kwargs)
