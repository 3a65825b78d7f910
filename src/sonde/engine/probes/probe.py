"""``observe`` a model, and the ``Probe`` that people hold meanwhile."""

from __future__ import annotations

import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from torch import nn

from sonde.answer import Cell, Grid, ShownAsTable, frame
from sonde.checked import checked
from sonde.engine.event import Subscriber
from sonde.engine.failures import ProbeError
from sonde.engine.inventory import inventory_of
from sonde.engine.probes import dataframes
from sonde.engine.probes.attachment import Attachment
from sonde.engine.probes.coverage import Coverage
from sonde.engine.probes.merged_rows import merged_rows
from sonde.engine.probes.statistic_hooks import Calls, rows_for_calls
from sonde.engine.probes.targets import choose
from sonde.engine.selection import Where, check_model
from sonde.engine.unseen import Observer
from sonde.errors import ArgumentError
from sonde.schedule import Steps, schedule_of
from sonde.site import OTHER_CALLS, PARAMETER_PORTS, PORTS, Port, Site
from sonde.stats import Statistic
from sonde.warn import warn_user
from sonde.words import many, number_text

if TYPE_CHECKING:
    import pandas


class Probe(Observer, ShownAsTable):
    """An instrument on a model: attached when it is made; leaves no trace when it is detached or deleted.

    >>> import sonde, torch
    >>> from sonde.stats import Norm
    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.ones_(net.weight)
    >>> with sonde.observe(net, Norm()) as probe:
    ...     for value in (3.0, 4.0):
    ...         _ = net(torch.tensor([[value, 0.0]]))
    ...         probe.step()
    >>> [(row["name"], row["norm"], row["count"]) for row in probe.rows()]
    [('', 5.0, 2.0)]
    >>> probe.to_frame()[["port", "norm"]].values.tolist()
    [['output', 5.0]]

    Use a probe in a ``with`` block, which detaches the probe at the end and observes only the thread that entered, or call
    ``detach`` yourself. A backward pass that runs while the probe is detached delivers nothing.

    """

    def __init__(self, attachment: Attachment, do: object = None) -> None:
        self._attachment = attachment
        self._do = do  # hooks may hold it weakly
        replace_former(self)

    # Life

    def __del__(self) -> None:
        # not weakref.finalize, which would hold the subscriber for ever where that knows the probe
        attachment = getattr(self, "_attachment", None)
        if attachment is None or sys.is_finalizing():
            return
        try:
            if attachment.attached and attachment.roots and not attachment.ran and not self._has_any():
                kind = type(self).__name__
                warn_user(f"a {kind} was deleted before its model ran, and {self._as_held}, for as long as it is to observe")
        finally:
            attachment.dispose()

    _as_held = "observes nothing: hold it in a variable, as in probe = sonde.observe(model, ...)"

    def _has_any(self) -> bool:
        """Return whether the probe has got anything, though no call of its model was seen."""
        added = self._attachment.hooks.additions()
        return any(any(hook.counts(added).values()) for hook in self._attachment.hooks)

    def __reduce__(self) -> tuple[Any, ...]:
        warn_user(f"a {type(self).__name__} cannot be copied or pickled, and None stands in its place: save what it holds")
        return super().__reduce__()

    def attach(self) -> Self:
        """Put the hooks (back) in. Idempotent.

        >>> import sonde, torch
        >>> net = torch.nn.Identity()
        >>> probe = sonde.observe(net, lambda event: print(event.value))
        >>> probe.detach()
        >>> _ = net(torch.ones(1))
        >>> _ = probe.attach()
        >>> _ = net(torch.ones(1))
        tensor([1.])
        >>> probe.detach()
        """
        self._attachment.attach()
        return self

    def detach(self) -> None:
        """Take the hooks out; everything recorded stays. Idempotent."""
        self._attachment.detach()

    def pause(self) -> None:
        """Observe nothing for a while; inside compiled code the graph without observation runs.

        >>> import sonde, torch
        >>> net = torch.nn.Identity()
        >>> with sonde.observe(net, lambda event: print(event.value)) as probe:
        ...     probe.pause()
        ...     _ = net(torch.zeros(1))
        ...     probe.resume()
        ...     _ = net(torch.ones(1))
        tensor([1.])

        Forwards and micro-steps go on being counted, which costs two hooks on the model and one on each parameter. A
        *schedule* rests between whole steps and needs but one hook on the model.
        """
        self._attachment.pause()

    def resume(self) -> None:
        """Observe again after ``pause``."""
        self._attachment.resume()

    def __enter__(self) -> Self:
        self.attach()
        self._attachment.delivery.thread = threading.get_ident()
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    # Other names of the same
    unregister = remove = remove_hooks = detach

    def step(self) -> None:
        """Count an optimizer step, in a loop without a ``torch.optim`` optimizer; the steps of these are counted anyway."""
        for clock in self._clocks():
            clock.end_step()

    def tick_epoch(self, epoch: int | None = None) -> None:
        """Count an epoch that has ended; *epoch* sets the number of the next.

        >>> import sonde, torch
        >>> net = torch.nn.Identity()
        >>> with sonde.observe(net, lambda event: print(event.tick.epoch, event.tick.step)) as probe:
        ...     _ = net(torch.ones(1))
        ...     probe.tick_epoch()
        ...     _ = net(torch.ones(1))
        0 0
        1 0
        """
        for clock in self._clocks():
            clock.end_epoch(epoch)

    def _clocks(self) -> list[Any]:
        return self._attachment.clocks

    # Reading

    @property
    def attached(self) -> bool:
        """Whether the hooks are in."""
        return self._attachment.attached

    @property
    def sites(self) -> tuple[Site, ...]:
        """The observed sites, in the order of ``named_modules()``."""
        return tuple(self._attachment.sites())

    @property
    def errors(self) -> tuple[ProbeError, ...]:
        """Errors of the observer: one stops the site where it was raised, one of the schedule detaches the probe."""
        return tuple(self._attachment.delivery.errors)

    def coverage(self) -> Coverage:
        """Return how often each site delivered, and why the others did not. A model that has changed is looked through again.

        >>> import sonde, torch
        >>> net = torch.nn.Linear(2, 1)
        >>> with sonde.observe(net, sonde.stats.Norm()) as probe:
        ...     _ = net(torch.ones(1, 2))
        ...     [(str(line.site), line.count) for line in probe.coverage()]
        [('(root):output', 1)]
        """
        if self.attached:
            self._attachment.rescan()
        return Coverage.of(self._attachment)

    def reset(self) -> None:
        """Empty the statistic's rows; the probe stays attached, and its coverage counts on.

        >>> import sonde, torch
        >>> net = torch.nn.Identity()
        >>> with sonde.observe(net, sonde.stats.Norm()) as probe:
        ...     _ = net(torch.ones(1))
        ...     probe.reset()
        ...     _ = net(torch.tensor([2.0]))
        >>> probe.rows()[0]["norm"]
        2.0
        """
        if self._attachment.hooks.table is not None:
            self._attachment.hooks.table.reset(counts_on=True)

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per site: name, type, port, number of events, the statistic's numbers, and joining columns.

        Of a statistic there is one for each leaf of a site and each ``call`` that has a row of its own.
        """
        return dataframes.rows_of(self._attachment)

    def to_frame(self) -> pandas.DataFrame:
        """Return the rows as a table, with the columns on which all frames of sonde join.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return frame(self.rows())

    def merged(self, *, group: Any = None, seconds: float = 20.0) -> pandas.DataFrame:
        """Return the rows of all ranks of a distributed training, joined, as a table. On all ranks; the probe stays attached.

        >>> import sonde, torch
        >>> net = torch.nn.Identity()
        >>> with sonde.observe(net, sonde.stats.Norm()) as probe:
        ...     _ = net(torch.ones(1))
        ...     probe.merged()[["name", "norm", "scope", "ranks"]].values.tolist()
        [['', 1.0, 'global', 1]]

        Rows of a module's ports are of the batches of all ranks that train the model with batches of their own, as if one process
        had seen the joined batch (a gradient of an output is of the mean loss of its rank: so many times that of the joined mean).
        Rows of a parameter are of the whole parameter, each part and each replica once. The column ``scope`` says so:
        ``"data-parallel"``, ``"global"``, or ``"rank"`` for what cannot be joined: gradients between the optimizer's steps
        (``grad_at_step=False``), modules and replicas that differ between ranks, and statistics that read an axis where a rank
        holds a part of it. The column ``ranks`` is the number of ranks whose tensors are in the row. In one process the rows are
        those of :meth:`rows`.

        Args:
            group: a process group or a ``DeviceMesh``: the ranks with batches of their own. By default those of DDP, or of FSDP's
                mesh; this rank alone if parameters are distributed otherwise; else all ranks.
            seconds: how long to wait for other ranks to call this.

        Raises:
            ArgumentError: the probe observes with a function, or with a statistic of pairs; *group* is no group of this rank.
            RankError: not all ranks called this, or they observe with different statistics.
            MissingExtraError: pandas is not installed.
        """
        frame([])  # raises before other ranks wait
        return frame(merged_rows(self._attachment, group, seconds))

    def _grid(self) -> Grid:
        rows = self.rows()
        numbers = dataframes.numbers_of(rows)
        tells_calls = any(row["call"] not in (None, OTHER_CALLS, 0) for row in rows)
        columns = ["layer", *(["call"] if tells_calls else []), "port", "events", *numbers]
        lines = []
        for row in rows:
            call = [Cell("others" if row["call"] == OTHER_CALLS else str(row["call"]))] if tells_calls else []
            texts = [_number(row.get(name)) if row["calls"] else "" for name in numbers]
            shown = [Cell(text, align="right") for text in (str(row["calls"]), *texts)]
            lines.append([Cell(Site.parse(row["site"]).name), *call, Cell(row["port"]), *shown])
        optional = tuple([name for name in reversed(numbers[1:]) if name not in ("nan", "inf")])
        return Grid(title=self._title(), columns=columns, rows=lines, empty="no site is observed", optional=optional)

    def _title(self) -> str:
        table = self._attachment.hooks.table
        what = self._attachment.delivery.observer if table is None else table.statistic
        state = "attached" if self.attached else "detached"
        modules = len({site.layer for site in self.sites})
        return f"{type(self).__name__}({what}, {many(len(self.sites), 'site')} of {many(modules, 'module')}, {state})"


class HasStatistic(Protocol):
    """A lens: it names a statistic, and the layers to observe where none are given."""

    def as_observed(self, model: nn.Module, include: Where, exclude: Where) -> tuple[Statistic, Where, Where]:
        """Return the statistic, include and exclude to observe *model* with."""


@checked("model", "do", "include", "exclude", "every", "calls")
def observe(
    model: nn.Module,
    do: Subscriber | Statistic | HasStatistic,
    include: Where = None,
    exclude: Where = None,
    *,
    ports: Iterable[Port] | Port | None = None,
    every: Steps | None = None,
    grad_at_step: bool = False,
    passes: Literal["all", "training", "evaluation"] = "all",
    calls: Calls = "each",
    strict: bool = False,
    name: str = "",
) -> Probe:
    """Observe *model* at the selected sites: every instrument is built on this function.

    >>> import sonde, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    >>> with sonde.observe(model, lambda event: print(event.site, tuple(event.value.shape)), include="1"):
    ...     output = model(torch.ones(2, 4))
    1:output (2, 3)

    Args:
        model: any ``nn.Module``, also compiled or wrapped.
        do: a subscriber, called with each :class:`Event`; or a statistic, to whose row for the site each tensor is added.
            A statistic also runs inside compiled code, as part of it. Or a lens: its statistic, at its ports and layers.
        include, exclude: a regular expression (searched), a callable ``(name, module) -> bool``, a list of exact names, a
            module type or a tuple of types.
        ports: which tensors: ``output``, ``input``, ``grad_output``, ``grad_input`` of a module; of a parameter its ``grad``,
            and at each step of an optimizer ``param``, the parameter after the step, and ``update``, the parameter before and
            after the step (a statistic takes the difference). By default those in the attribute ``ports`` of *do*, else
            ``output``.
            ``grad_input`` adds a node to the user's graph and may change the last bits of gradient sums; with
            ``create_graph=True`` those of second derivatives, too, and so of the parameters after a step.
        every: which steps are observed, as in :func:`sonde.watch`: every *n*-th (where optimizers alternate, every n-th of each),
            ``"10s"`` for a time between them, those of a range or a list, or a callable ``Tick -> bool`` that is called as each
            step begins. Between observed steps the hooks are taken out.
        grad_at_step: observe ``grad`` as the optimizer sees it before each step (accumulated, reduced over ranks, unscaled,
            clipped), and not after each backward pass.
        passes: which forwards are observed: in a training pass the root is in training mode and gradients are enabled.
        calls: which calls of a module within one forward have rows of their own in a statistic: ``"each"``, the first 8; a
            number, the first so many; ``"joined"``, none. All others share a row, whose ``call`` is -1.
        strict: raise what a subscriber or a statistic raises (and a :class:`DeadHookError`). Otherwise an error
            stops the site where it was raised, with a warning, and the other sites go on; one of *every* detaches the probe.
        name: the model's name in its sites, for observing several models.

    Returns:
        The probe, attached. Keep it: a probe that is deleted detaches itself.

    Raises:
        ModelError, SelectionError, ArgumentError: at once, saying what was asked, what was found and what to do.
    """
    declared: Iterable[Port] = getattr(do, "ports", ("output",))
    if hasattr(do, "as_observed"):
        do, include, exclude = do.as_observed(model, include, exclude)
    if not isinstance(do, Statistic) and not callable(do):
        raise ArgumentError(f"do={do!r} can observe nothing: give a callable that takes an Event, or a statistic such as Moments()")
    attachment = Attachment(
        do,
        schedule=None if every is None else schedule_of(every),
        strict=strict,
        grad_at_step=grad_at_step,
        training=_TRAINING[passes],
        calls_apart=rows_for_calls(calls),
    )
    attachment.observe(model, include, exclude, _ports(declared if ports is None else ports), name)
    attachment.attach(just_observed=True)
    expect: Callable[[Iterable[Site]], object] | None = getattr(do, "expect", None)
    if expect is not None:  # a subscriber that wants to know the sites beforehand
        expect(attachment.sites())
    return Probe(attachment, do)


def sites(
    model: nn.Module, include: Where = None, exclude: Where = None, *, ports: Iterable[Port] | Port = ("output",), name: str = ""
) -> tuple[Site, ...]:
    """Return the sites that ``observe`` with the same arguments would observe; nothing is attached and nothing runs.

    >>> import sonde, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    >>> [str(site) for site in sonde.sites(model, ports=("output", "grad"), include="0")]
    ['0:output', '0.weight:grad', '0.bias:grad']
    """
    wanted = _ports(ports)
    return tuple(
        [
            Site(target.item.name, port, "", name)
            for target in choose(inventory_of(check_model(model)), include, exclude, wanted)
            for port in _IN_ORDER
            if port in wanted and (port in PARAMETER_PORTS) == (target.parameter is not None)
        ]
    )


def _number(value: Any) -> str:
    return "" if value is None or value != value else number_text(value)  # noqa: PLR0124  # NaN means no number


_TRAINING: dict[str, bool | None] = {"all": None, "training": True, "evaluation": False}
_VALUES = ("input", "output", "parameter")
_IN_ORDER: tuple[Port, ...] = tuple(sorted(PORTS, key=lambda port: _VALUES.index(PORTS[port].of)))  # as probes have them


def _ports(ports: Iterable[Port] | Port) -> tuple[Port, ...]:
    return (ports,) if isinstance(ports, str) else tuple(dict.fromkeys(ports))


# A notebook cell that is run again replaces the probes that the cell made before, which the notebook's history may still hold.
# By file, line and class: the probes made there last, and in which run of the cell
_made: dict[tuple[str, int, type], tuple[list[weakref.ref[Any]], int]] = {}


def replace_former(probe: Any) -> None:
    """Detach the probes that an earlier run of the same line of the same notebook cell made. Outside notebooks do nothing."""
    place = _cell()
    if place is None:
        return
    key, run = (*place[:2], type(probe)), place[2]
    former, former_run = _made.get(key, ([], run))
    if former_run != run:
        for reference in former:
            earlier = reference()
            if earlier is not None:
                earlier.detach()
        former = []
    _made[key] = [*former, weakref.ref(probe)], run


def _cell() -> tuple[str, int, int] | None:
    """Return file and line of the innermost frame that is a notebook cell's, and the number of that run of the cell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return None
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals is shell.user_ns:
            # in a terminal the name of the file has the number of the run, and then a hash of the cell's text
            file = re.sub(r"(?<=^<ipython-input-)\d+-", "", frame.f_code.co_filename)
            return file, frame.f_lineno, int(shell.execution_count)
        frame = frame.f_back
    return None
