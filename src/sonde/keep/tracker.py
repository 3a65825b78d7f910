"""``track``: keep copies of activations and gradients at module outputs (the first seed)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import torch
from torch import Tensor, nn

from sonde.engine import Event, Port, Probe
from sonde.engine.layer_axes import LayerAxes, axes_of, learn
from sonde.engine.probes import dataframes
from sonde.engine.probes.attachment import Attachment
from sonde.engine.selection import Where, check_model
from sonde.errors import ArgumentError, ObservationWarning, SiteError, UnknownSiteError
from sonde.keep import layers, storing
from sonde.keep.stash import SharedCopies, Stash, StashFn, StashValueFn, get_stash_fn, leaves_of
from sonde.site import Site
from sonde.suggest import nearest
from sonde.view.table import Grid

if TYPE_CHECKING:
    import pandas

__all__ = ["Tracker", "track"]


class _Keeper:
    """The subscriber: holds the stashes, and is held by the hooks in the tracker's place."""

    def __init__(self, stash: StashFn, copies: SharedCopies | None = None) -> None:
        self.stash = stash
        self.copies = copies
        self.references: list[tuple[str, Tensor, int]] = []
        self.stashes: list[Any] = []
        self.axes: dict[str, LayerAxes] = {}  # of each module's first output, for the table
        function = getattr(stash, "keywords", {}).get("stash_value", stash)
        self.__qualname__: str = getattr(function, "__qualname__", type(function).__qualname__)  # named if it fails

    def __call__(self, event: Event) -> None:
        if event.name not in self.axes and not event.grad:
            output = layers.first_measurable(event.leaves)
            if output is not None:
                self.axes[event.name] = axes_of(output, event.module)
        if self.copies is not None:
            self.copies.begin(event.tick.forward)
            self.stashes.append(self.stash(event))
            return
        stash = self.stash(event)
        self.stashes.append(stash)
        self._remember_references(stash, event)

    def _remember_references(self, stash: Any, event: Event) -> None:
        """Note tensors that were kept without a copy: they change when the model writes into them."""
        given = {tensor.untyped_storage().data_ptr() for _, tensor in event.leaves if _has_storage(tensor)}
        for held in leaves_of(stash).values():
            if isinstance(held, Tensor) and _has_storage(held) and held.untyped_storage().data_ptr() in given:
                self.references.append((str(event.site), held, held._version))

    def warn_of_stale(self) -> None:
        """Say, once for each, which kept references the model has written into since."""
        stale = [site for site, tensor, version in self.references if tensor._version != version]
        self.references = [held for held in self.references if held[1]._version == held[2]]
        if stale:
            shown = ", ".join(dict.fromkeys(stale[:4])) + (", ..." if len(stale) > 4 else "")
            warnings.warn(
                f"what was kept at {shown} is a reference, and the model has written into it since: it is no longer what was "
                "returned there. Copy it, as the default stash_value does.",
                ObservationWarning,
                stacklevel=4,
            )


class Tracker(Probe):
    """A list of stashes that fills while the model runs; see :func:`track`.

    ``tracker[i]`` is a stash, ``tracker[i:j]`` a list of them, ``tracker["layers.3.mlp"]`` all of one module and
    ``tracker["layers.3.mlp:grad_output"]`` all of one site. In a console or notebook it shows a table of the layers.

    Args:
        stash: makes what is kept of each event; the default keeps copies in main memory.
        strict: raise what *stash* raises, instead of detaching with a warning.
    """

    def __init__(self, stash: StashFn | None = None, *, strict: bool = False) -> None:
        copies = SharedCopies()
        self._keeper = _Keeper(get_stash_fn(copies), copies) if stash is None else _Keeper(stash)
        super().__init__(Attachment(self._keeper, strict=strict))
        self._attachment.attach()

    @property
    def stashes(self) -> list[Any]:
        """What was kept, in the order it happened: children before parents forward, mirrored backward."""
        self._keeper.warn_of_stale()
        return self._keeper.stashes

    # Registering

    def register(self, module: nn.Module, name: str = "", grad: bool = True) -> None:
        """Track one module, without its children, as *name*; with *grad*, the gradient of its output as well.

        Raises:
            ModelError: *module* is none.
        """
        self._begin_again()
        self._attachment.observe_one(check_model(module), name, _ports(grad))

    def register_all(self, module: nn.Module, grad: bool = True, include: Where = None, exclude: Where = None) -> None:
        """Track *module* and its submodules, by their names, where *include* and *exclude* admit them.

        Raises:
            ModelError, SelectionError: see :func:`sonde.observe`.
        """
        self._begin_again()
        self._attachment.observe(module, include, exclude, _ports(grad))
        learn(module)

    def _begin_again(self) -> None:
        """After ``unregister``, what is registered next is all that is tracked."""
        if not self.attached:
            self._attachment.forget()
            self._attachment.attach()

    def clear(self) -> None:
        """Forget what was kept; the hooks stay."""
        self._keeper.stashes.clear()
        self._keeper.references.clear()

    # Reading

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stashes)

    def __len__(self) -> int:
        return len(self.stashes)

    @overload
    def __getitem__(self, key: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, key: slice | str | Site) -> list[Any]: ...
    def __getitem__(self, key: SupportsIndex | slice | str | Site) -> Any:
        """A stash by position, a list of them by slice, module name or site.

        Raises:
            UnknownSiteError: nothing was kept under that name; the message names the nearest.
        """
        if isinstance(key, slice | SupportsIndex):
            return self.stashes[key]
        if not isinstance(key, str | Site):
            raise ArgumentError(f"a tracker is asked by position, slice, module name or site, not by {key!r}")
        site, whole_module = _as_site(key)
        site = replace(site, path=self._attachment.hooks.canonical(site.path))
        found = [stash for stash in self.stashes if _is_at(stash, site, whole_module)]
        if found:
            return found
        raise UnknownSiteError(self._why_nothing(str(key), site, whole_module))

    def _why_nothing(self, asked: str, site: Site, whole_module: bool) -> str:
        of_module = [stash for stash in self.stashes if getattr(stash, "name", None) == site.path]
        if of_module and not whole_module:
            held = [str(place.at(path)) for s in of_module for place in [s.site] for path in getattr(s, "paths", ()) or ("",)]
            return f"nothing was kept at {asked!r}; of that module there is {', '.join(dict.fromkeys(held))}"
        observed = [place.path for place in self._attachment.sites()]
        if site.path in observed:
            reason = next((line.reason for line in self.coverage() if line.site.path == site.path and line.reason), "")
            return f"nothing was kept of {asked!r}{': ' + reason if reason else ' yet'}"
        return f"{asked!r} is not tracked. {nearest(site.path, observed)}"

    def to_frame(self, stat: Callable[[Tensor], Any] = torch.std, stat_name: str | None = None) -> pandas.DataFrame:
        """A pandas table with a row for each stash: ``stat`` of its first tensor, and where and when it was kept.

        The columns are name, type, grad, the statistic, then those by which all frames of sonde join, then whatever
        a custom stash function has set. A number that was kept in place of a tensor is put in as it is; a cell that *stat*
        cannot fill (the standard deviation of integers, say) is empty.

        Args:
            stat: from a tensor to a number or a tensor of one element.
            stat_name: the column's name; the default is the name of *stat*.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        column = getattr(stat, "__name__", "value") if stat_name is None else stat_name
        return dataframes.frame([_frame_row(stash, stat, column) for stash in self.stashes])

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write everything kept to the folder *path*: safetensors shards and a JSON index. No pickle.

        ``sonde.open_tensors(path)`` reads it. Missing parent folders are made. What is neither tensor, number, text nor
        None in a kept value is written as its type's name.

        Raises:
            StoreError: the folder holds something already and *overwrite* is false.
        """
        return storing.save_stashes(self.stashes, Path(path), overwrite=overwrite)

    def _grid(self) -> Grid:
        return layers.grid(self.stashes, self._keeper.axes, title=self._title(), empty=self._why_empty(), coverage=self.coverage)

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
        modules = len({getattr(stash, "name", "") for stash in self.stashes})
        return f"Tracker: {len(self)} stashes of {modules} modules" + ("" if self.attached else " (detached)")

    def __rich__(self) -> Any:
        return self._grid()

    def __str__(self) -> str:
        tracking = len(self._attachment.sites()) if self.attached else 0
        return f"Tracker(stashes={len(self)}, tracking={tracking})"


def track(
    module: nn.Module,
    grad: bool = True,
    include: Where = None,
    exclude: Where = None,
    stash_value: StashValueFn | None = None,
    stash: StashFn | None = None,
    *,
    strict: bool = False,
) -> Tracker:
    """Keep copies of what every module of a model returns, and of the gradients of that.

    >>> import sonde, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(inplace=True))
    >>> with sonde.track(model) as tracker:
    ...     model(torch.ones(2, 4)).sum().backward()
    >>> [(stash.name, stash.grad) for stash in tracker]
    [('0', False), ('1', False), ('', False), ('', True), ('1', True), ('0', True)]

    Copies take memory: select modules with *include* and *exclude*, or keep less of each tensor with *stash_value*.

    Args:
        module: the model. Tracking begins at once and ends with the ``with`` block, with ``unregister()``, or when the
            tracker is deleted. A ``backward`` that runs after that records nothing.
        grad: keep gradients too.
        include, exclude: which modules: a regular expression (searched in the name), a callable ``(name, module) -> bool``,
            a list of exact names, a module type or a tuple of types.
        stash_value: what to keep of each tensor; the default is a detached copy in main memory. Returning the tensor
            itself keeps a reference that later in-place operations change.
        stash: what to keep of a whole event, in place of *stash_value*.
        strict: raise what *stash_value* or *stash* raises, instead of detaching with a warning.

    Returns:
        The tracker: a list of stashes in the order things happened.

    Raises:
        ModelError, SelectionError, ArgumentError: at once, saying what was asked, what was found and what to do.
    """
    tracker = Tracker(get_stash_fn(stash_value, stash) if stash_value or stash else None, strict=strict)
    try:
        tracker.register_all(module, grad=grad, include=include, exclude=exclude)
    except Exception:
        tracker.detach()
        raise
    return tracker


def _ports(grad: bool) -> tuple[Port, ...]:
    return ("output", "grad_output") if grad else ("output",)


def _as_site(key: str | Site) -> tuple[Site, bool]:
    """The site that *key* means, and whether it means every port of the module."""
    if isinstance(key, Site):
        return key, False
    try:
        return Site.parse(key), ":" not in key
    except SiteError:
        return Site(key), True


def _is_at(stash: Any, site: Site, whole_module: bool) -> bool:
    if whole_module:
        return bool(getattr(stash, "name", None) == site.path)
    place = getattr(stash, "site", None)
    if place is None or (place.path, place.port, place.model) != (site.path, site.port, site.model):
        return False
    return site.leaf in ("", *getattr(stash, "paths", ()))


def _frame_row(stash: Any, stat: Callable[[Tensor], Any], column: str) -> dict[str, Any]:
    kind = getattr(stash, "type", None)
    row: dict[str, Any] = {
        "name": getattr(stash, "name", None),
        "type": f"{kind.__module__}.{kind.__name__}" if isinstance(kind, type) else None,
        "grad": getattr(stash, "grad", None),
        column: _statistic(stash, stat),
    }
    if isinstance(stash, Stash):
        row |= dataframes.key_columns(stash.site, stash.call, stash.phase, stash.tick)
    own = {"name", "type", "grad", "value", "site", "call", "phase", "tick", "passthrough", "alias", "paths", "kept"}
    return row | {name: held for name, held in getattr(stash, "__dict__", {}).items() if name not in own}


def _statistic(stash: Any, stat: Callable[[Tensor], Any]) -> Any:
    value = next(iter(leaves_of(stash).values()), None)
    if isinstance(value, bool | int | float):
        return value
    if not isinstance(value, Tensor):
        return None
    try:
        if stat is torch.std and value.numel() < 2:
            return float("nan")  # as torch does, without its warning
        number = stat(value)
        return number.item() if isinstance(number, Tensor) else number
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_inference()
