"""Run models on one batch after the other, and put the rows of each column where there is place for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from sonde.engine import walk
from sonde.errors import ArgumentError, SelectionError, StoreError
from sonde.extraction.forwards import Forwards
from sonde.extraction.place import Columns, Place
from sonde.extraction.rows import Chooser, Rows
from sonde.extraction.stored_forms import Forms
from sonde.site import Site
from sonde.warn import warn_user
from sonde.words import many, names_text


class Intake:
    """Takes the rows of batches from hooks into a place.

    Attributes:
        items: of the whole data, before the present batch.
        rows: of the present batch; None where they are not known yet.
        device: an accelerator that tensors come from.
        left_out: why a tensor has no rows, by column.
        place: where the rows go; None before the first batch.

    Args:
        forwards, chooser, forms: what runs, which rows are kept, and in which form.
        beside: by the name of a column: a key of the batch, or a function.
        place_for: makes the place for the columns that the first batch has shown.
    """

    def __init__(
        self,
        forwards: Forwards,
        chooser: Chooser,
        forms: Forms,
        beside: Mapping[str, str | Callable[[Any], Any]],
        place_for: Callable[[Columns], Place],
    ) -> None:
        self.items = 0
        self.rows: Rows | None = None
        self.device: torch.device | None = None
        self.left_out: dict[str, str] = {}
        self.place: Place | None = None
        self._forwards = forwards
        self._chooser = chooser
        self._forms = forms
        self._beside = beside
        self._place_for = place_for
        # of the present batch
        self._batch: Any = None
        self._keep: Tensor | None = None
        self._numbers: Tensor | None = None
        self._stores = True
        self._has_place = False
        self._filled: dict[str, Tensor | None] = {}
        forwards.take = self._take

    def add(self, batch: Any, keep: Tensor | None = None, numbers: Tensor | None = None) -> None:
        """Run the models on *batch*, and put its rows into the place.

        Args:
            batch: as the user gives it.
            keep: of each item, whether it is wanted; None for all.
            numbers: of each item; None for numbers that follow each other.
        """
        self._numbers = numbers
        if self.place is None:
            found = self._begun(batch, keep)
            if self.rows is not None and len(self.rows):
                for name, held in found.items():
                    self._target(name, tuple(held.shape[1:])).copy_(held)
        else:
            self._begin(batch, keep)
            self._forwards.run(batch)
            self._put_beside()
        rows = self.rows
        assert self.place is not None
        missing = [] if rows is not None and not len(rows) else [name for name in self.place.columns if name not in self._filled]
        if missing:
            raise ArgumentError(
                f"nothing came of {names_text(missing)}, which had rows in the first batch: what is kept must come in each"
            )
        assert rows is not None
        self.place.end(len(rows) if self._has_place else 0)
        self.items += rows.items if keep is None else int(keep.sum())

    def look(self, batch: Any) -> tuple[int, dict[str, Tensor]]:
        """Run the first *batch*, whole, and make the place, without a row in it; return how many items there are, and the rows."""
        found = self._begun(batch, None)
        self._forms.losses.clear()
        assert self.rows is not None
        return self.rows.items, found

    def run_along(self, batch: Any) -> None:
        """Run the models on *batch*, and keep nothing of it."""
        self._stores = False
        try:
            self._forwards.run(batch)
        finally:
            self._stores = True

    def _begun(self, batch: Any, keep: Tensor | None) -> dict[str, Tensor]:
        found = self.first(batch, keep)
        self.place = self._place_for({name: (held.dtype, tuple(held.shape[1:])) for name, held in found.items()})
        return found

    def first(self, batch: Any, keep: Tensor | None = None) -> dict[str, Tensor]:
        """Run the first *batch*, whole; return the rows of each column.

        Raises:
            SelectionError: a selected site did not run.
            ArgumentError: nothing of a site has rows.
        """
        self._begin(batch, keep)
        if self._forwards.draws(batch):
            warn_user(
                "the model draws random numbers as it runs, as dropout in training mode does: what comes is one of many, "
                "and another the next time. model.eval() ends that, in most models"
            )
        missing = [line for coverage in self._forwards.coverage() for line in coverage.missing]
        if missing:
            said = "; ".join(f"{line.site}: {line.reason}" for line in missing[:3])
            raise SelectionError(
                f"{many(len(missing), 'selected site')} delivered nothing in the first batch: {said}. "
                "Leave out what does not run, by exclude="
            )
        for site in self._forwards.sites:
            if not any(_is_of(column, site) for column in self._filled):
                why = next((why for column, why in self.left_out.items() if _is_of(column, site)), "it holds no tensor")
                cure = "" if self._chooser.is_by_item else ", or leave out positions="
                raise ArgumentError(f"{site} has no rows: {why}. Leave it out by exclude={cure}")
        self._forms.check(list(self._filled))
        self._put_beside()
        return {name: held for name, held in self._filled.items() if held is not None}

    def _begin(self, batch: Any, keep: Tensor | None) -> None:
        self._batch, self._keep, self._has_place, self._filled = batch, keep, False, {}
        self.rows = self._chooser.rows(batch, keep)

    def _take(self, column: str, tensor: Tensor) -> None:
        """Keep what is wanted of a tensor that has come at a site; it is borrowed."""
        if column in self.left_out or not self._stores:
            return
        if self.rows is None:
            self.rows = self._told_by(tensor)
        rows = self.rows
        why = f"it has the shape {tuple(tensor.shape)}, and no items × positions" if rows is None else rows.why_not(tensor)
        if why or rows is None:
            if self.place is None:
                self.left_out[column] = why
                return
            raise ArgumentError(f"{column}: {why}")
        if self.place is None:
            if tensor.device.type != "cpu":
                self.device = tensor.device
            for name, part in self._forms.of(column, rows.of(tensor)).items():
                self._fill(name, part.to(self._forms.stored_type(part)).cpu().clone())
        elif len(rows) and self._forms.is_plain(column):
            self._fill(column, None)
            rows.into(tensor, self._target(column, tuple(tensor.shape[1 if rows.positions is None else 2 :])))
        elif len(rows):
            self._make_place(rows)  # first: what is lost by this batch counts in its shard
            for name, part in self._forms.of(column, rows.of(tensor)).items():
                self._fill(name, None)
                target = self._target(name, tuple(part.shape[1:]))
                target.copy_(part if part.device == target.device else part.to(target.dtype), non_blocking=True)

    def _told_by(self, tensor: Tensor) -> Rows | None:
        """Return the rows of the batch, as a tensor at a site tells them, and a tensor of the batch confirms."""
        rows = self._chooser.rows_like(tuple(tensor.shape), self._batch, self._keep)
        given = [held for _, held in walk(self._batch) if held.dim()]
        if rows is None or not given or any(len(held) == rows.items for held in given) or not self._forwards.passes_on:
            return rows
        raise ArgumentError(
            f"a tensor of the shape {tuple(tensor.shape)} came, and no tensor of the batch has {many(rows.items, 'item')}: axis 0 "
            "is to be that of the items. Select other sites, or give a batch whose first axis is that of the model"
        )

    def _put_beside(self) -> None:
        """Fill the columns that do not come from a model."""
        rows = self.rows
        if rows is None or (self.place is not None and not len(rows)):
            return
        item = rows.item
        if self._numbers is not None:
            item = self._numbers[item]
        else:
            item = self.items + (item if self._keep is None else (self._keep.cumsum(0) - 1)[item])
        found = {"item": item}
        if rows.position is not None:
            found["position"] = rows.position
        for name, given in self._beside.items():
            found[name] = rows.of_items(_column(name, given, self._batch, rows.items))
        for name, held in found.items():
            if self.place is None:
                self._fill(name, held.detach().cpu())
            else:
                self._fill(name, None)
                self._target(name, tuple(held.shape[1:])).copy_(held)

    def _fill(self, name: str, held: Tensor | None) -> None:
        if name in self._filled:
            raise ArgumentError(f"there are two columns called {name!r}: give one another name by columns={{name: function}}")
        self._filled[name] = held

    def _target(self, column: str, shape: tuple[int, ...]) -> Tensor:
        assert self.place is not None
        assert self.rows is not None
        self._make_place(self.rows)
        return self.place.target(column, len(self.rows), shape)

    def _make_place(self, rows: Rows) -> None:
        """Make place for the *rows* of the present batch, once."""
        assert self.place is not None
        if self._has_place:
            return
        self.place.begin(len(rows))
        self._has_place = True


@contextmanager
def named(number: int, of: str) -> Iterator[None]:
    """Say of an error from which batch it came, and *of* which call."""
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(f"batch {number:,}: {error}") from error.__cause__
    except (SelectionError, StoreError):
        raise
    except Exception as error:
        with suppress(TypeError):
            error.add_note(
                f"raised in batch {number:,} (from 0) of {of}. A batch is passed as model(**batch) if it is a mapping, "
                "model(*batch) if it is a tuple or list, else model(batch): give call=lambda model, batch: ... where that does "
                "not do"
            )
        raise


def _is_of(column: str, site: Site) -> bool:
    return column == str(site) or column.startswith(tuple(f"{site}{mark}" for mark in ".[@{"))


def _column(name: str, given: str | Callable[[Any], Any], batch: Any, items: int) -> Tensor:
    """Return the values of one column: a row for each item of *batch*."""
    if callable(given):
        found = given(batch)
    elif isinstance(batch, Mapping) and given in batch:
        found = batch[given]
    else:
        held = names_text(batch) if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
        raise ArgumentError(
            f"columns: the batch has no key {given!r}, it holds {held}; give columns={{{name!r}: function of the batch}}"
        )
    try:
        tensor = found if isinstance(found, Tensor) else torch.as_tensor(found, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"columns: {name!r} is a {type(found).__name__} that cannot be a tensor; give numbers") from None
    if not tensor.dim() or len(tensor) != items:
        raise ArgumentError(f"columns: {name!r} has the shape {tuple(tensor.shape)}, and the batch {many(items, 'item')}")
    return tensor
