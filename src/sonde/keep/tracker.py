"""``track``: keep copies of the outputs of modules and of their gradients (tensor_tracker)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, overload

import torch
from torch import Tensor, distributed, nn

from sonde.answer import Grid, frame
from sonde.checked import checked
from sonde.engine import Event, LayerAxes, Where, check_model, class_of, key_columns, name_of, walk
from sonde.errors import ArgumentError, UnknownSiteError
from sonde.keep import layers
from sonde.keep.repeated_step import Key, key_of, moved_by_rounding, parameters_of_all
from sonde.keep.stash import Copying, Guarded, Stash, StashFn, StashValueFn, default_stash, get_stash_fn, leaves_of
from sonde.recorders import Keeper, KeepingProbe, Subrecorder, entry_of
from sonde.run import Entry, write_tensors
from sonde.site import OTHER_CALLS, Port, Site
from sonde.stats import Piece
from sonde.suggest import nearest

if TYPE_CHECKING:
    import pandas


Ports: TypeAlias = Iterable[Port] | Port | None
"""Which tensors are kept; None: the outputs and, with ``grad=True``, their gradients."""


class Tracker(KeepingProbe):
    """A list of stashes that fills while the model runs; see :func:`track`.

    >>> import sonde, torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> tracker = sonde.Tracker()
    >>> tracker.register(net[1], name="relu", grad=False)
    >>> tracker.register_all(net[0])
    >>> _ = net(torch.ones(1, 2))
    >>> [stash.name for stash in tracker]
    ['', 'relu']
    >>> tracker.clear()
    >>> len(tracker)
    0
    >>> tracker.detach()

    ``tracker[i]`` is a stash, ``tracker[i:j]`` a list of them, ``tracker["layers.3.mlp"]`` all stashes of one module and
    ``tracker["layers.3.mlp:grad_output"]`` all of one site. In a console or notebook it shows a table of the layers.

    Args:
        stash: makes the object to keep of each event; the default keeps copies in main memory.
        strict: raise what *stash* raises, instead of keeping nothing more at that site with a warning.
    """

    def __init__(self, stash: StashFn | None = None, *, strict: bool = False) -> None:
        self._stash: Copying | Guarded = Copying() if stash is None else Guarded(stash)
        self._slot = Subrecorder(0, Site(""), "", [])
        function = default_stash if stash is None else getattr(stash, "keywords", {}).get("stash_value", stash)
        self._axes: dict[str, LayerAxes] = {}  # of each module's first output, for the table
        self._rounding: dict[Key, float] = {}
        take = _with_axes(self._stash, self._axes)
        keeper = Keeper(name_of(function), take, only_slot=self._slot, leaves_what_it_is_lent=stash is None)
        super().__init__(keeper, strict=strict)

    @property
    def stashes(self) -> list[Any]:
        """All stashes in the order of their events: children before parents forward, mirrored backward.

        Raises:
            StaleTensorError: the model has written into a tensor that was kept without a copy.
        """
        for stash in self._held:
            self._stash.check(stash)
        return self._held

    @stashes.setter
    def stashes(self, stashes: list[Any]) -> None:
        self._slot.held = stashes

    @property
    def _held(self) -> list[Any]:
        held: list[Any] = self._slot.held
        return held

    # Registering

    def register(self, module: nn.Module, name: str = "", grad: bool = True, *, ports: Ports = None) -> None:
        """Track one module, without its children, as *name*; *grad* and *ports* as in :func:`track`.

        Raises:
            ModelError: *module* is not an ``nn.Module``.
        """
        self._begin_again()
        self._attachment.observe_one(check_model(module), name, _ports(grad, ports))

    def register_all(
        self, module: nn.Module, grad: bool = True, include: Where = None, exclude: Where = None, *, ports: Ports = None
    ) -> None:
        """Track those of *module* and its submodules that *include* and *exclude* select; see :func:`track`.

        Raises:
            ModelError, SelectionError: see :func:`sonde.observe`.
        """
        self._begin_again()
        self._attachment.observe(module, include, exclude, _ports(grad, ports))

    def _begin_again(self) -> None:
        """After ``unregister``, forget the modules that were tracked, so that only those registered from now on are."""
        if not self.attached:
            self._attachment.forget()
            self._attachment.attach()

    def clear(self) -> None:
        """Forget all stashes; the hooks stay."""
        self._keeper.clear()
        self._stash.clear()
        self._rounding.clear()

    def measure_rounding(self, step: Callable[[], object]) -> None:
        """Run *step* three times more, two of them disturbed, and note for ``save`` how far rounding alone moves each tensor.

        >>> import sonde, torch
        >>> net = torch.nn.Linear(2, 1)
        >>> def step():
        ...     net.zero_grad()
        ...     net(torch.ones(1, 2)).sum().backward()
        >>> with sonde.track(net) as tracker:
        ...     step()
        ...     tracker.measure_rounding(step)
        >>> len(tracker)
        2

        Call it in the ``with`` block, behind the step that was tracked. *step* is a forward and, for gradients, a backward pass of
        the same batch, without a step of an optimizer; where it draws random numbers, it sets the seed first. Where ranks wait for
        each other, all of them call this. Stashes, ``.grad``, buffers and the random state stay as they are.

        Raises:
            ArgumentError: nothing was tracked yet, the tracker is detached, or *step* made other tensors than were tracked.
        """
        first = {key_of(stash): stash for stash in reversed(self.stashes) if isinstance(stash, Stash)}
        if not first or not self.attached:
            raise ArgumentError(
                "measure_rounding(step) comes behind the tracked step and inside of the with block: "
                + ("the tracker is detached" if first else "nothing was tracked yet")
            )
        models = [root.model for root in self._attachment.roots]

        def run() -> list[Any]:
            self._slot.held = []
            step()
            return self._held

        held = self._held
        try:
            self._rounding = moved_by_rounding(first, run, models)
        finally:
            self._slot.held = held

    # Reading

    def __iter__(self) -> Iterator[Any]:
        for stash in self._held:
            self._stash.check(stash)
            yield stash

    def __len__(self) -> int:
        return len(self._held)

    @overload
    def __getitem__(self, key: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, key: slice | str | Site) -> list[Any]: ...
    def __getitem__(self, key: SupportsIndex | slice | str | Site) -> Any:
        """A stash by position; a list of them by slice, module name or site.

        >>> import sonde, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
        >>> with sonde.track(model) as tracker:
        ...     model(torch.ones(2, 4)).sum().backward()
        >>> tracker["1:output"][0].value.shape, tracker["1:grad_output"][0].first_value.tolist()
        (torch.Size([2, 3]), [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])

        Raises:
            UnknownSiteError: there is no stash of that name; the message names the nearest.
            SiteError: the text is the site of one module and the name of another.
            StaleTensorError: the model has written into a tensor that was kept without a copy.
        """
        if isinstance(key, SupportsIndex):
            found = self._held[key]
            self._stash.check(found)
            return found
        if isinstance(key, slice):
            chosen = self._held[key]
        elif isinstance(key, str | Site):
            known = [*self._attachment.sites(), *(Site(name) for name in {str(getattr(stash, "name", "")) for stash in self._held})]
            asked, whole_module = Site.asked(key, known, self._attachment.hooks.canonical)
            chosen = [stash for stash in self._held if _is_at(stash, asked, whole_module)]
            if not chosen:
                raise UnknownSiteError(self._why_nothing(str(key), asked, whole_module))
        else:
            raise ArgumentError(f"a stash is found by position, slice, module name or site, not by {key!r}")
        for stash in chosen:
            self._stash.check(stash)
        return chosen

    def _why_nothing(self, asked: str, site: Site, whole_module: bool) -> str:
        of_module = [stash for stash in self._held if getattr(stash, "name", None) == site.path]
        if of_module and not whole_module:
            held = [str(place.at(path)) for s in of_module for place in [s.site] for path in getattr(s, "paths", ()) or ("",)]
            return f"nothing was kept at {asked!r}; of that module there is {', '.join(dict.fromkeys(held))}"
        observed = [place.path for place in self._attachment.sites()]
        if site.path in observed:
            reason = next((line.reason for line in self.coverage() if line.site.path == site.path and line.reason), "")
            return f"nothing was kept of {asked!r}{': ' + reason if reason else ' yet'}"
        return f"{asked!r} is not tracked. {nearest(site.path, observed)}"

    def to_frame(self, stat: Callable[[Tensor], Any] | None = None, stat_name: str | None = None) -> pandas.DataFrame:
        """A pandas table with a row for each stash: ``stat`` of its first tensor, and where and when the tensor was kept.

        >>> import sonde, torch
        >>> model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU())
        >>> with sonde.track(model, grad=False) as tracker:
        ...     output = model(torch.tensor([-1.0, 2.0]))
        >>> tracker.to_frame(torch.sum)[["name", "sum"]].values.tolist()
        [['0', 1.0], ['1', 2.0], ['', 2.0]]

        The columns are name, type, grad, the statistic, then those by which all frames of sonde join, then the attributes
        that a custom stash function has set. A number that was kept in place of a tensor is put in unchanged. A cell is
        empty where *stat* raises (the standard deviation of integers, say).

        Args:
            stat: from a tensor to a number or a tensor of one element. None: ``torch.std``.
            stat_name: the column's name; the default is the name of *stat*.

        Raises:
            Exception: *stat* has raised for every tensor; the first of its errors.
            MissingExtraError: pandas is not installed.
            StaleTensorError: the model has written into a tensor that was kept without a copy.
        """
        stat = torch.std if stat is None else stat
        column = getattr(stat, "__name__", "value") if stat_name is None else stat_name
        cells, errors = [], []
        for stash in self.stashes:
            cell = _statistic(stash, stat)
            if isinstance(cell, Exception):
                errors.append(cell)
            cells.append(None if isinstance(cell, Exception) else cell)
        if errors and stat is not torch.std and all(cell is None for cell in cells):
            raise errors[0]
        return frame([_frame_row(stash, column, cell) for stash, cell in zip(self._held, cells, strict=True)])

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        parameters: bool = False,
        ids: Sequence[int] | Mapping[int, Sequence[int]] = (),
        overwrite: bool = False,
    ) -> Path:
        """Write all stashes to the folder *path*, as safetensors shards and a JSON index, and return *path*. No pickle.

        >>> import sonde, tempfile, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with sonde.track(net, grad=False) as tracker, tempfile.TemporaryDirectory() as folder:
        ...     _ = net(torch.ones(1, 2))
        ...     path = tracker.save(f"{folder}/seen")
        ...     sonde.open_tensors(path)["0:output"].shape
        torch.Size([1, 2])

        ``sonde.open_tensors(path)`` reads the folder. Missing folders are made. All is written or nothing. Beside the tensors stand
        the rank, where a rank holds a part of a distributed tensor, and what ``measure_rounding`` has measured.

        Args:
            parameters: write what the parameters and their gradients are now, too: of distributed ones what this rank holds.
            ids: numbers of the samples of the batch, in order; or of the entries along any axis, by the axis, as
                ``{0: samples, 1: positions}``. By them ``sonde.compare`` puts together what ranks hold, in whatever order.
            overwrite: replace tensors that are there.

        Raises:
            StoreError: the folder cannot be written, or holds something already and *overwrite* is false.
            StaleTensorError: the model has written into a tensor that was kept without a copy.
        """
        aliases = {stash.alias: stash.name for stash in self._held if getattr(stash, "alias", "")}
        along = ids if isinstance(ids, Mapping) else {0: ids} if len(ids) else {}
        about: dict[str, Any] = {
            "kind": type(self).__name__,
            "aliases": aliases,
            "rank": distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else None,
            "ids": {str(axis): [int(each) for each in held] for axis, held in along.items()},
            "addends": [str(site) for site, held in self._attachment.delivery.pieces.items() if None in held.values()],
        }
        entries = _entries_of(self.stashes, self._rounding, self._attachment.delivery.pieces)
        if parameters:
            models = [root.model for root in self._attachment.roots]
            entries = chain(entries, _entries_of_parameters(models, len(self._held), self._rounding))
        return write_tensors(path, entries, about, overwrite=overwrite)

    def _grid(self) -> Grid:
        fresh = [stash for stash in self._held if self._stash.stale_site(stash) is None]
        return layers.grid(fresh, self._axes, title=self._title(), empty=self._why_empty(), coverage=self.coverage)

    def _why_empty(self) -> str:
        modules = len({site.path for site in self._attachment.sites()})
        if self.errors:
            return f"nothing: {self.errors[-1]}"
        if not modules:
            return "nothing is tracked: register(module) or register_all(model)"
        if self._attachment.ran:
            return f"nothing of {modules} modules; coverage() says why"
        return (
            f"nothing yet of {modules} modules: call the model"
            if self.attached
            else f"nothing of {modules} modules: the model did not run"
        )

    def _title(self) -> str:
        modules = len({getattr(stash, "name", "") for stash in self._held})
        stale = sum(self._stash.stale_site(stash) is not None for stash in self._held)
        left_out = f", {stale} left out: no copies, and written into since" if stale else ""
        return f"Tracker: {len(self)} stashes of {modules} modules{left_out}" + ("" if self.attached else " (detached)")


@checked("module", "grad", "include", "exclude")
def track(
    module: nn.Module,
    grad: bool = True,
    include: Where = None,
    exclude: Where = None,
    stash_value: StashValueFn | None = None,
    stash: StashFn | None = None,
    *,
    ports: Ports = None,
    strict: bool = False,
) -> Tracker:
    """Return a tracker that keeps copies of the outputs of every module of a model, and of the outputs' gradients.

    >>> import sonde, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(inplace=True))
    >>> with sonde.track(model) as tracker:
    ...     model(torch.ones(2, 4)).sum().backward()
    >>> [(stash.name, stash.grad) for stash in tracker]
    [('0', False), ('1', False), ('', False), ('', True), ('1', True), ('0', True)]

    Copies take memory: select modules with *include* and *exclude*, or keep less of each tensor with *stash_value*.

    Args:
        module: the model. Tracking begins at once and ends with the ``with`` block, with ``unregister()``, or when the
            tracker is deleted: hold it in a variable. A ``backward`` that runs after the end keeps nothing.
        grad: keep gradients of the outputs too. A batch is no argument: call the model in the ``with`` block.
        include, exclude: which modules: a regular expression (searched in the name), a callable ``(name, module) -> bool``,
            a list of exact names, a module type or a tuple of types.
        stash_value: from each tensor to the object to keep; the default is a detached copy in main memory. A tensor that is
            returned without a copy cannot be read any more after the model has written into its memory
            (:class:`StaleTensorError`).
        stash: from a whole event to the object to keep, in place of *stash_value*.
        ports: which tensors, in place of the outputs and what *grad* says, as ``("input", "output")``: see :func:`sonde.observe`.
        strict: raise what *stash_value* or *stash* raises, instead of keeping nothing more at that site with a warning.

    Returns:
        The tracker: a list of stashes in the order of their events.

    Raises:
        ModelError, SelectionError, ArgumentError: at once, saying what was asked, what was found and what to do.
    """
    tracker = Tracker(get_stash_fn(stash_value, stash) if stash_value or stash else None, strict=strict)
    try:
        tracker.register_all(module, grad=grad, include=include, exclude=exclude, ports=ports)
    except Exception:
        tracker.detach()
        raise
    return tracker


def _ports(grad: bool, ports: Ports) -> tuple[Port, ...]:
    given: object = grad
    if not isinstance(given, bool):
        raise ArgumentError(
            f"grad={type(given).__name__}: True or False, whether gradients are kept; track() runs no model. Call the model with "
            "its batch inside of the block: with sonde.track(model) as tracker: model(batch)"
        )
    if ports is not None:
        return (ports,) if isinstance(ports, str) else tuple(ports)
    return ("output", "grad_output") if grad else ("output",)


def _with_axes(stash: StashFn, axes: dict[str, LayerAxes]) -> StashFn:
    """*stash*, which also notes the axes of each module's first output."""

    def take(event: Event) -> Any:
        if event.name not in axes and event.site.port == "output":
            value = event.value
            output = value if type(value) is Tensor and value.is_floating_point() else layers.first_measurable(event.leaves)
            if output is not None:
                axes[event.name] = LayerAxes.of(output, event.module)
        return stash(event)

    return take


def _is_at(stash: Any, asked: Site, whole_module: bool) -> bool:
    if whole_module:
        return bool(getattr(stash, "name", None) == asked.path)
    site = getattr(stash, "site", None)
    return site is not None and asked.at("").covers(site) and asked.leaf in ("", *getattr(stash, "paths", ()))


def _frame_row(stash: Any, column: str, cell: Any) -> dict[str, Any]:
    kind = getattr(stash, "type", None)
    row: dict[str, Any] = {
        "name": getattr(stash, "name", None),
        "type": f"{kind.__module__}.{kind.__name__}" if isinstance(kind, type) else None,
        "grad": getattr(stash, "grad", None),
        column: cell,
    }
    if isinstance(stash, Stash):
        row |= key_columns(stash.site, stash.call, stash.phase, stash.tick)
    own = {"name", "type", "grad", "value", "site", "call", "phase", "tick", "passthrough", "alias", "paths", "kept"}
    return row | {name: held for name, held in getattr(stash, "__dict__", {}).items() if name not in own}


def _statistic(stash: Any, stat: Callable[[Tensor], Any]) -> Any:
    """*stat* of the first tensor of *stash*, or the error that *stat* has raised; None where there is no tensor with data."""
    value = next(iter(leaves_of(stash).values()), None)
    if isinstance(value, bool | int | float):
        return value
    if not isinstance(value, Tensor) or value.is_meta:
        return None
    if stat is torch.std and value.numel() < 2:
        return float("nan")  # as torch does, without its warning
    try:
        number = stat(value)
        return number.item() if isinstance(number, Tensor) else number
    except Exception as error:
        return error


def _entries_of(stashes: Sequence[Any], rounding: Mapping[Key, float], pieces: Mapping[Site, Mapping[str, Any]]) -> Iterator[Entry]:
    """A record with its tensors for each stash, in order."""
    for number, stash in enumerate(stashes):
        kind = getattr(stash, "type", type(stash))
        name, grad = getattr(stash, "name", ""), bool(getattr(stash, "grad", False))
        site = getattr(stash, "site", None) or Site(name, "grad_output" if grad else "output")
        record: dict[str, Any] = {
            "name": name,
            "type": f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind),
            "grad": grad,
        }
        if isinstance(stash, Stash):
            record |= {"call": stash.call, "phase": stash.phase, "tick": stash.tick._asdict(), "alias": stash.alias}
            record |= {"rounding": rounding.get(key_of(stash)), "pieces": pieces.get(site, {})}
        value, leaves = getattr(stash, "value", stash), leaves_of(stash)
        has_more = sum(isinstance(leaf, Tensor) for leaf in leaves.values()) > len(walk(value))  # those of keyword arguments
        yield entry_of(number, site, leaves if has_more else value, record, leaves)


def _entries_of_parameters(models: Iterable[nn.Module], first: int, rounding: Mapping[Key, float]) -> Iterator[Entry]:
    """A record for each parameter, by every module that holds it, and for its gradient, without a tensor where there is none."""
    number = first
    for item, path, parameter in parameters_of_all(models):
        kind = class_of(item.module)
        for port, tensor in (("param", parameter.detach()), ("grad", parameter.grad)):
            site = Site(path, port)  # type: ignore[arg-type]  # literals
            record = {"name": path, "type": f"{kind.__module__}.{kind.__qualname__}", "grad": port == "grad", "call": OTHER_CALLS}
            record |= {"rounding": rounding.get((site, OTHER_CALLS))}
            held = None
            if tensor is not None:
                held, piece, addend = Piece.held(tensor)
                record |= {"pieces": {"": piece}, "addend": addend}
            yield entry_of(number, site, held, record, {} if held is None else {"": held.cpu()})
            number += 1
