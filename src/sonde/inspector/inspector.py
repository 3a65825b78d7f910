"""The inspector that people hold: models, lenses, a schedule, and the places where rows go."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from torch import nn
from torch.optim.optimizer import Optimizer

from sonde.checked import checked
from sonde.engine import Calls, Coverage, Observer, Probe, ProbeError, Scaling, Where, observe, replace_former, rows_for_calls
from sonde.errors import ArgumentError
from sonde.inspector.arguments import check_optimizer, flat, in_words, models_of, optimizers_of, plain_config
from sonde.inspector.budget import share_of
from sonde.inspector.loss_listeners import LossListener, LossReader
from sonde.inspector.measurement.fitting import fit_all
from sonde.inspector.measurement.measurement import Measurement
from sonde.inspector.ranks import How, Ranks, participate
from sonde.inspector.report import described
from sonde.inspector.settings import BadSteps, Gradients, Limits, OnNonFinite, Settings
from sonde.inspector.sinks.alerts import AlertSink, OnAlert
from sonde.inspector.sinks.base import RunSink
from sonde.inspector.sinks.destinations import Destinations, open_destinations
from sonde.inspector.sinks.to_argument import with_visualizers
from sonde.inspector.training import WatchedTraining
from sonde.lens import AnyLens, Choice, Lens, LossMetrics, default_lenses
from sonde.preprocessor import AbstractPreprocessor
from sonde.rules import Chosen, Finding, Given
from sonde.run import Existing, Run
from sonde.schedule import Every, InEpochs, Schedule, Steps, in_epochs, schedule_of
from sonde.site import Site
from sonde.view import LivePage, open_page

if TYPE_CHECKING:
    import pandas

    from sonde.graph import Graph

Item = TypeVar("Item")


class Inspector(Observer):
    """Records through lenses what happens in a model while it is trained.

    >>> import sonde, torch
    >>> net = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    >>> inspector = sonde.Inspector(module=net, optimizer=optimizer, every=1, to="memory", verbose=False)
    >>> for epoch in inspector.range(2):
    ...     loss = net(torch.ones(1, 2)).sum()
    ...     loss.backward()
    ...     inspector.push_loss(loss.detach(), train=True)
    ...     inspector.push_metric("accuracy", 0.5)
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> _ = inspector.detach()
    >>> inspector.run.scalar("accuracy")[1].tolist()
    [0.5, 0.5]
    >>> inspector.run.sql("SELECT DISTINCT step FROM moments ORDER BY step").fetchall()
    [(0,), (1,)]

    An inspector is attached at once if a *module* is given, otherwise by :meth:`attach`, until the end of a ``with`` block,
    :meth:`detach`, or the end of the process, for as long as something holds it. Sees every thread. :func:`sonde.watch` makes one.


    Args:
        module: the model, or several by name, to which the inspector is attached at once.
        every: which steps are logged: here all.
        train_loss_str, non_train_loss_str: the names of losses of training and of evaluation.
        is_active_fn: in which epochs steps are logged: a callable that is given the number of the epoch, counted from 1; or n for
            the epochs whose number n divides.
        module_name_prefix: the delimiter in the names of layers: a dot, and no other.
        visualizer: monitorch's word for *to*, to which it adds. A text is the name of a visualizer. Alone, the run is in memory.
        optimizer, to, lenses, include, exclude, depth, rules, config, ...: all others are those of :func:`sonde.watch`.

    Raises:
        ArgumentError, ModelError, SelectionError, StoreError: at once, with what was asked, what was found and what to do.
    """

    @checked("module", "optimizer", "every", "include", "exclude", "calls", "rules", "ranks", "bad_steps")
    def __init__(
        self,
        lenses: Iterable[AnyLens] | AnyLens | None = None,
        *,
        module: nn.Module | Mapping[str, nn.Module] | None = None,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        every: Steps = 1,
        to: Any = None,
        include: Where = None,
        exclude: Where = None,
        depth: int = -1,
        rules: Given = None,
        config: Any = None,
        scaler: Any = None,
        gradients: Gradients = "step",
        evaluation: bool = False,
        calls: Calls = "each",
        exists: Existing = "error",
        step: int | None = None,
        epoch: int | None = None,
        strict: bool = False,
        verbose: bool = True,
        ranks: Ranks | How = "merged",
        bad_steps: BadSteps | OnNonFinite | None = "warn",
        limits: Limits | None = None,
        on_alert: OnAlert = None,
        visualizer: Any = None,
        train_loss_str: str = "loss",
        non_train_loss_str: str = "val_loss",
        is_active_fn: int | Callable[[int], bool] = 1,
        module_name_prefix: str = ".",
    ) -> None:
        if train_loss_str == non_train_loss_str:
            raise ArgumentError(f"the losses of training and of evaluation cannot both be called {train_loss_str!r}")
        Scaling(scaler)  # refuses what is none
        limits = Limits() if limits is None else limits
        self._ranks = ranks if isinstance(ranks, Ranks) else Ranks(ranks)
        self._to = with_visualizers(to, visualizer)
        self._alerts = [] if on_alert is None else [AlertSink(on_alert)]
        self._lenses = (
            None
            if lenses is None
            else (lenses,)
            if isinstance(lenses, Lens | LossMetrics | AbstractPreprocessor)
            else tuple(lenses)
        )
        self._schedule: Schedule = schedule_of(every)
        self._every = in_words(every)
        self._budget = share_of(limits.budget)
        if self._budget is not None:
            if not isinstance(self._schedule, Every):
                raise ArgumentError(f"Limits(budget=) adapts the number of steps between logged ones, and every={every!r} is none")
            self._schedule = Every(max(self._schedule.n, 2))  # a step that is not logged is what logged ones are compared with
        if module_name_prefix != ".":
            raise ArgumentError(
                f"module_name_prefix={module_name_prefix!r}: layers have one name everywhere, that of model.named_modules(), with "
                f"dots: write name.replace('.', {module_name_prefix!r}) where you show names"
            )
        self._schedule = in_epochs(self._schedule, is_active_fn)
        if self._budget is not None and not isinstance(self._schedule, Every):
            raise ArgumentError("Limits(budget=) adapts the steps between logged ones in all epochs: leave is_active_fn= out")
        self._is_active_fn = is_active_fn
        self._settings = Settings(
            (),
            Choice(include, exclude, depth),
            gradients,
            evaluation,
            scaler,
            strict,
            limits.memory_bytes(),
            rows_for_calls(calls),
            bad_steps=bad_steps if isinstance(bad_steps, BadSteps) else BadSteps(bad_steps),
            rules=Chosen.of(rules),
        )
        self._optimizers = list(map(weakref.ref, optimizers_of(optimizer)))  # a loop that makes a new one lets the old one go
        self._open = partial(open_destinations, self._to, exists=exists, step=step, epoch=epoch, beside=self._alerts)
        self._config = {} if config is None else {"config": plain_config(config)}
        self._loss_names = train_loss_str, non_train_loss_str
        self._verbose = verbose
        self._training: WatchedTraining | None = None
        self._losses: list[Probe] = []
        self._metrics: set[str] = set()
        self._ended_epoch: int | None = None
        self._at_exit: Callable[[], None] = lambda: None
        self._page: LivePage | None = None
        self._page_of: RunSink | None = None
        replace_former(self)
        if module is not None:
            self.attach(module)

    # Life

    def attach(self, module: nn.Module | Mapping[str, nn.Module]) -> Self:
        """Begin to record *module*, or several models by name. An inspector that is attached is detached first, and ends its run.

        >>> import sonde, torch
        >>> net = torch.nn.Linear(2, 1)
        >>> inspector = sonde.Inspector(every=1, to="memory", verbose=False)
        >>> with inspector.attach(net):
        ...     net(torch.ones(1, 2)).sum().backward()
        ...     inspector.step()
        >>> inspector.run.families
        ('moments', 'scalars')

        Raises:
            ArgumentError: an argument does not fit the model.
            ModelError, SelectionError, StoreError: see the class; the folder of the run that ended is not written to again.
        """
        models = models_of(module)
        self.detach()
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                check_optimizer(optimizer, models)
        lenses = default_lenses(*models.values()) if self._lenses is None else self._lenses
        every = (*flat(lenses),)
        observed = tuple([lens for lens in every if isinstance(lens, Lens)])
        part = participate(self._ranks)
        batch_ranks = part.ranks_of_batches(self._ranks.group)
        by_default = self._lenses is None
        settings = replace(self._settings, lenses=observed, by_default=by_default, part=part, batch_ranks=batch_ranks)
        own = {"ranks=": "merged" if part.merges else "each", "Limits(budget=)": self._budget, "every=": self._every}
        in_common = own | settings.in_common()
        rules = {"rules": given} if (given := settings.rules.described()) != {} else {}
        about = described(models, every)
        models = models if part.records else {}
        fitted: dict[str, list[Measurement]] = {}
        destinations = Destinations()
        try:
            part, destinations = part.open(self._open, self._to, in_common, lambda: fitted.update(fit_all(models, settings)))
            settings = replace(settings, part=part)
            about |= part.described() | self._config | rules
            if part.leads:
                destinations.begin(about)
            training = WatchedTraining(
                models, settings, self._schedule, self._budget, destinations, about, in_common, verbose=self._verbose
            )
        except BaseException as error:
            part.leave()
            destinations.close(error)
            raise
        self._training = training
        self._at_exit = partial(_detach_at_exit, weakref.ref(self), os.getpid())  # before the run is closed and threads end
        atexit.register(self._at_exit)
        training.attach(fitted)
        self._listen_to_losses(every)
        return self

    def __del__(self) -> None:  # not weakref.finalize, which would hold a model for ever that holds its inspector
        if (training := getattr(self, "_training", None)) is not None and not sys.is_finalizing():
            training.let_go()

    def detach(self, error: BaseException | None = None) -> Self:
        """Take every hook out, write what is left, close the run, and print three closing lines. Idempotent.

        >>> import sonde, torch
        >>> inspector = sonde.Inspector(module=torch.nn.Linear(2, 1), to="memory", verbose=False)
        >>> inspector.detach() is inspector
        True

        Args:
            error: the exception that ends the training, which the run keeps. By default that of a surrounding ``finally`` or
                ``except``, or that which has stopped the script or the notebook's cell. A ``with`` block knows its own.
        """
        training = self._training
        if training is None or not training.attached:
            return self
        for probe in self._losses:
            probe.detach()
        self._losses.clear()
        atexit.unregister(self._at_exit)
        training.stop(training.last_error() if error is None else error)
        self._show()
        if self._verbose and training.part.leads:
            sys.stdout.write("\n".join(training.closing_lines()) + "\n")
        return self

    def __enter__(self) -> Self:
        if not self.attached:
            raise ArgumentError("this inspector is not attached: give it a model first, Inspector(module=model) or attach(model)")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self.detach(error)

    remove = unregister = detach

    def _listen_to_losses(self, lenses: Iterable[Lens | LossMetrics]) -> None:
        for lens in lenses:
            if isinstance(lens, LossMetrics):
                self._metrics |= set(lens.metrics)
                lens.read_by(LossReader(weakref.ref(self)))
                if lens.loss_fn is not None:
                    listener = LossListener(weakref.ref(self), lens)
                    self._losses.append(observe(lens.loss_fn, listener, include=lambda name, module: name == ""))

    # Time

    @property
    def every(self) -> Steps:
        """Which steps are logged. Can be set while the inspector records; holds from the next step on."""
        schedule = self._schedule if self._training is None else self._training.schedule
        schedule = schedule.schedule if isinstance(schedule, InEpochs) else schedule
        return schedule.n if isinstance(schedule, Every) else schedule

    @every.setter
    def every(self, every: Steps) -> None:
        self._schedule = in_epochs(schedule_of(every), self._is_active_fn)
        if self._training is not None:
            self._training.schedule_by(self._schedule)

    def step(self) -> None:
        """Count a step, in a loop without a ``torch.optim`` optimizer, whose steps are seen by themselves.

        >>> import sonde, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with sonde.watch(net, every=1, to="memory", verbose=False) as inspector:
        ...     net(torch.ones(1, 2)).sum().backward()
        ...     inspector.step()
        >>> inspector.run.sql("SELECT DISTINCT step FROM moments ORDER BY step").fetchall()
        [(0,)]

        Raises:
            ArgumentError: no forward of a model was seen since the last step.
        """
        self._attached().step()

    def tick_epoch(self, epoch: int | None = None) -> None:
        """End an epoch: write what belongs to it, and call the visualizers; *epoch* sets the number of the next.

        >>> import sonde, torch
        >>> net = torch.nn.Linear(2, 1)
        >>> with sonde.watch(net, every=1, to="memory", verbose=False) as inspector:
        ...     for _ in range(2):
        ...         net(torch.ones(1, 2)).sum().backward()
        ...         inspector.step()
        ...         inspector.tick_epoch()
        >>> inspector.run.sql("SELECT DISTINCT epoch, step FROM moments ORDER BY step").fetchall()
        [(0, 0), (1, 1)]
        """
        self._ended_epoch = self._attached().end_epoch(epoch)
        self._show()

    tick = tick_epoch

    def iter(self, epochs: Iterable[Item]) -> Iterator[Item]:
        """Iterate over *epochs*, with ``tick_epoch()`` after each.

        >>> import sonde, torch
        >>> inspector = sonde.Inspector(module=torch.nn.Linear(2, 1), to="memory", verbose=False)
        >>> [name for name in inspector.iter(["warm-up", "training"])]
        ['warm-up', 'training']
        >>> _ = inspector.detach()
        """
        for item in epochs:
            yield item
            self.tick_epoch()

    def range(self, *arguments: int) -> Iterator[int]:
        """``iter(range(...))``.

        >>> import sonde, torch
        >>> inspector = sonde.Inspector(module=torch.nn.Linear(2, 1), to="memory", verbose=False)
        >>> list(inspector.range(3))
        [0, 1, 2]
        >>> _ = inspector.detach()
        """
        return self.iter(range(*arguments))

    def _show(self) -> None:
        training = self._last()
        if training.destinations.visualizers and training.part.leads:
            run = self.run
            for visualizer in training.destinations.visualizers:
                training.try_to_show(visualizer, run)

    # Pushing

    def push_loss(self, value: Any, *, train: bool | None = None, running: bool = True) -> None:
        """Record a loss: a number, or a tensor of one element, which stays on its device until a logged step.

        >>> import sonde, torch
        >>> net = torch.nn.Linear(2, 1)
        >>> with sonde.watch(net, every=1, to="memory", verbose=False) as inspector:
        ...     net(torch.ones(1, 2)).sum().backward()
        ...     inspector.push_loss(0.25)
        ...     inspector.step()
        >>> inspector.run.scalar("loss")[1].tolist()
        [0.25]

        Args:
            value: the loss of one batch.
            train: whether it is a loss of training, recorded as ``loss``; otherwise it is recorded as ``val_loss``, at the step
                before. By default, whether the model (of several, the first) is in training mode now.
            running: record the mean over the steps from one logged step to the next; otherwise each value by itself.

        Raises:
            ArgumentError: *value* is not one real number.
        """
        self._attached().push_loss(self._loss_names, value, train=train, running=running)

    def push_metric(self, name: str, value: Any, *, running: bool = True) -> None:
        """Record a metric; see :meth:`push_loss`. It belongs to training if the model is in training mode.

        >>> import sonde, torch
        >>> net = torch.nn.Linear(2, 1)
        >>> with sonde.watch(net, every=1, to="memory", verbose=False) as inspector:
        ...     net(torch.ones(1, 2)).sum().backward()
        ...     inspector.push_metric("accuracy", 0.75)
        ...     inspector.step()
        >>> inspector.run.scalar("accuracy")[1].tolist()
        [0.75]

        Raises:
            ArgumentError: *value* is not one real number, or a :class:`LossMetrics` lens names other metrics.
        """
        if self._metrics and name not in self._metrics:
            raise ArgumentError(f"{name!r} is none of the metrics of LossMetrics: {', '.join(sorted(self._metrics))}")
        self._attached().push(name, value, train=None, running=running)

    def keep_graph(self, graph: Graph) -> None:
        """Keep an execution graph in the run, in place of an earlier one; see ``watch(graph=)``. Of several ranks, that of rank 0.

        >>> import sonde, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with sonde.watch(net, every=1, to="memory", verbose=False) as inspector:
        ...     net(torch.ones(1, 2)).sum().backward()
        ...     inspector.keep_graph(sonde.capture(net, torch.ones(1, 2)))
        ...     inspector.step()
        >>> len(inspector.run.graph.nodes)
        9

        Raises:
            ArgumentError: no run is written.
        """
        training = self._training
        if training is None or training.part.leads:  # one graph is enough, and other ranks may have no run
            self._recorded().writer.document("graph", graph.to_data())

    # Reading

    @property
    def attached(self) -> bool:
        """Whether the inspector records."""
        return self._training is not None and self._training.attached

    @property
    def run(self) -> Run:
        """The run so far, to read.

        Raises:
            ArgumentError: no run is written.
        """
        recorded = self._recorded()
        if self.attached:
            self._attached().flush()
        return recorded.run()

    def open(self, *, port: int | None = None, browser: bool = True) -> LivePage:
        """Show the run that is being recorded on a live page, and return the page, which a notebook shows in a frame.

        Threads of this process answer, with one core; what they raise never reaches the training. The page stays until its
        ``close()`` or the end of the process. ``sonde ui`` in another terminal shows the same and takes no time from this process.

        Args:
            port: of the page; None takes 8420 or the next free one.
            browser: open a browser, where there is a screen and no notebook.

        Raises:
            ArgumentError: no run is written, or the port is taken.
            MissingExtraError: starlette or uvicorn is not installed.
        """
        recorded, folder = self._recorded(), self.path
        if self._page is None or self._page.is_closed or self._page_of is not recorded:
            runs = recorded.run() if folder is None else Path(folder)
            self._page, self._page_of = open_page(runs, port=port, browser=browser, verbose=self._verbose), recorded
        return self._page

    @property
    def moment(self) -> tuple[int, int]:
        """The numbers of the epoch and of the step that run, or that come next, for ``watch(epoch=, step=)`` of a resumed run."""
        return self._last().moment

    @property
    def path(self) -> os.PathLike[str] | None:
        """The folder of the run; None if there is none on disk."""
        return None if self._training is None else self._training.destinations.path

    @property
    def visualizer(self) -> Any:
        """The visualizer or sink that rows go to beside the run, several as a tuple; None without any, or before a model."""
        shown = () if self._training is None else tuple(self._training.destinations.shown)
        return shown[0] if len(shown) == 1 else shown or None

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites that are observed."""
        measurements = () if self._training is None else self._training.measurements()
        return tuple(dict.fromkeys(site for each in measurements for site in each.attachment.sites()))

    @property
    def errors(self) -> tuple[ProbeError, ...]:
        """The errors of statistics, schedules, visualizers and sinks."""
        return () if self._training is None else self._training.errors

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the rules, the gravest first; at the end also in the run's record."""
        return () if self._training is None else tuple(self._training.findings)

    @property
    def overhead(self) -> float | None:
        """The share of training time that observing takes; None where this is not known."""
        return None if self._training is None else self._training.overhead()

    def coverage(self) -> Coverage:
        """Return which sites delivered, and why the others did not.

        >>> import sonde, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with sonde.watch(net, every=1, to="memory", verbose=False) as inspector:
        ...     net(torch.ones(1, 2)).sum().backward()
        ...     inspector.step()
        ...     covered = {str(line.site): line.count for line in inspector.coverage()}
        >>> covered["1:output"]
        1
        """
        return self._last().coverage()

    def to_frame(self, family: str = "moments") -> pandas.DataFrame:
        """A family of the run so far as a table.

        >>> import sonde, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with sonde.watch(net, every=1, to="memory", verbose=False) as inspector:
        ...     net(torch.zeros(1, 2)).sum().backward()
        ...     inspector.step()
        >>> frame = inspector.to_frame("activation")
        >>> frame[["site", "step", "count"]].values.tolist()
        [['1:output', 0, 2.0]]

        Raises:
            MissingExtraError: pandas is not installed.
            UnknownSiteError: there is no such family.
        """
        return self.run.to_pandas(family)

    def _attached(self) -> WatchedTraining:
        if self._training is None or not self._training.attached:
            raise ArgumentError("this inspector is not attached: give it a model first, with attach(model)")
        return self._training

    def _last(self) -> WatchedTraining:
        if self._training is None:
            raise ArgumentError("this inspector was never attached: give it a model first, with attach(model)")
        return self._training

    def _recorded(self) -> RunSink:
        if self._training is not None and self._training.destinations.recorded is None and not self._training.part.leads:
            raise ArgumentError(
                f"{self._training.part.name} has no run: {self._training.part.leader} has it, in memory or with ranks='first'"
            )
        if self._training is None or self._training.destinations.recorded is None:
            raise ArgumentError('no run is written: give a path or "memory" in to=')
        return self._training.destinations.recorded

    def __repr__(self) -> str:
        if self._training is None:
            return f"{type(self).__name__}(not attached)"
        return "\n".join(self._training.lines(attached=self.attached))

    def _repr_html_(self) -> str:
        return f"<pre>{self!r}</pre>" if self._training is None else self._training.report(attached=self.attached).to_fragment()


def _detach_at_exit(held: weakref.ref[Inspector], process: int) -> None:
    """Detach an inspector that was not detached when the interpreter ends; in a forked child do nothing."""
    inspector = held()
    if inspector is not None and os.getpid() == process:
        inspector.detach()


PyTorchInspector = Inspector
"""monitorch's name of the inspector."""
