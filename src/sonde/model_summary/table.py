"""The summary of a model as data, one row per place in its tree of modules, and its table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from sonde.answer import Grid, ShownAsTable, Tone, frame
from sonde.engine import key_columns
from sonde.schedule import Tick
from sonde.site import Site
from sonde.view import GRADIENT_IS, LayerRow, Note, Quantity, first_of, layer_table, number
from sonde.words import large_text, shape_text, size_text

if TYPE_CHECKING:
    import pandas

Shapes: TypeAlias = tuple[tuple[int, ...], ...]

_FLOPS_ARE = "a multiplication and an addition are two, and element-wise functions are not counted"
_MOST_ROWS_IN_NOTE = 40  # an exception's note stands in a traceback
_ROWS_BEFORE_FAILURE = 12
_DROPPED_FIRST = ("input", "calls", "zeros", "gradient", "memory", "mean ± std", "FLOPs", "type", "output")
"""The columns that are left out, in this order, where the terminal is too narrow: a summary is read for types and shapes first."""


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One place in the tree of modules.

    >>> import sonde, torch
    >>> row = sonde.summary(torch.nn.Linear(2, 1), torch.ones(3, 2)).rows[0]
    >>> row.type, row.input_shapes, row.output_shapes, row.params
    ('Linear', ((3, 2),), ((3, 1),), 3)

    Attributes:
        name: the place, as ``named_modules()`` names it, wrapper parts removed; ``""`` is the model itself.
        type: the module's class.
        depth: how deep it stands; the model itself is at 0.
        same_as: the name of the place where this very module was listed before; None if this is its first. Such a row
            repeats nothing: neither parameters nor statistics nor the modules below.
        input_shapes, output_shapes: of the tensors of its last call, in order.
        calls: how often it was called and returned.
        params: elements of its parameters, own and below, that no row before or above has counted.
        params_before: elements of those that one has counted.
        trainable: elements of both that require a gradient.
        mean, std: of the finite elements of the first floating-point tensor of its outputs, all calls together (``std`` over
            the population, ddof 0); None without such a tensor, NaN without any finite element.
        nan, inf: shares of NaN and of infinite elements in that tensor, from 0 to 1.
        zeros: share of exact zeros among them, from 0 to 1.
        gradient: Euclidean norm of the finite elements of that output's gradient; None if none was formed, NaN without any
            finite element.
        gradient_nan, gradient_inf: the same shares in that gradient.
        notes: remarks, each with its tone.
        failed: the model's exception was raised in this module.
        flops: floating-point operations of its calls in the forward, those of the modules below it included: matrix products,
            convolutions, attention and recurrent layers; a multiplication and an addition are two. Element-wise functions count 0.
        output_bytes: bytes of the outputs of this module and those below it, of modules that call no other module, each piece of
            memory counted at the module that returned it first.
    """

    name: str
    type: str
    depth: int = 0
    same_as: str | None = None
    input_shapes: Shapes = ()
    output_shapes: Shapes = ()
    calls: int = 0
    params: int = 0
    params_before: int = 0
    trainable: int = 0
    mean: float | None = None
    std: float | None = None
    zeros: float | None = None
    gradient: float | None = None
    notes: tuple[Note, ...] = ()
    failed: bool = False
    nan: float = 0.0
    inf: float = 0.0
    gradient_nan: float = 0.0
    gradient_inf: float = 0.0
    flops: int = 0
    output_bytes: int = 0

    @property
    def words(self) -> str:
        """The notes as one text."""
        return "; ".join(text for text, _ in self.notes)


@dataclass(frozen=True, repr=False)
class Summary(ShownAsTable):
    """The result of :func:`sonde.summary`: the rows of one run of a model.

    >>> import sonde, torch
    >>> net = torch.nn.Linear(2, 1)
    >>> found = sonde.summary(net, torch.ones(1, 2))
    >>> found.total_params, found.rows[0].output_shapes, found.as_note().splitlines()[0] != ""
    (3, ((1, 1),), True)

    Attributes:
        title: one line: the model's class, and the exception if there was one.
        rows: every place in the tree, parents before children; *depth* folds none of them away here.
        total_params, trainable_params: elements, each parameter tensor counted once.
        param_bytes, buffer_bytes: bytes of parameters and of buffers, each tensor counted once.
        output_bytes: bytes of the outputs of modules that call no other module, each piece of memory counted once.
        flops: of the whole forward, as those of a row.
        dtypes, devices: of the parameters (of the buffers if there are none), the largest part first.
        loss: the loss that was sent backward; None if there was none.
        error: the exception of the model, the loss or the backward pass; the rows then show the modules that ran before.
        remarks: further lines below the table.
        depth: rows deeper than this are folded where the summary is shown.
    """

    title: str
    rows: tuple[SummaryRow, ...]
    total_params: int
    trainable_params: int
    param_bytes: int
    buffer_bytes: int
    output_bytes: int
    flops: int = 0
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    loss: float | None = None
    error: Exception | None = None
    remarks: tuple[str, ...] = ()
    depth: int | None = None

    def to_frame(self) -> pandas.DataFrame:
        """A pandas table of all rows, with the columns by which all frames of sonde join.

        >>> import sonde, torch
        >>> net = torch.nn.Linear(2, 1)
        >>> sonde.summary(net, torch.ones(1, 2)).to_frame()[["type", "params"]].values.tolist()
        [['Linear', 3]]

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return frame([_frame_row(row) for row in self.rows])

    def as_note(self) -> str:
        """The table for an exception's note; a long one is cut to what led to the failing module."""
        shown, left_out = self.rows, 0
        if len(shown) > _MOST_ROWS_IN_NOTE:
            shown = tuple(_near_failure(shown))
            left_out = len(self.rows) - len(shown)
        remark = [f'{left_out} further rows; on_error="partial" returns the whole summary'] if left_out else []
        return self._grid_of(shown, remark).to_text()

    def _grid(self) -> Grid:
        if self.depth is None:
            return self._grid_of(self.rows)
        shown = _folded(self.rows, self.depth)
        left_out = len(self.rows) - len(shown)
        return self._grid_of(shown, [f"{left_out} rows below depth {self.depth} are folded"] if left_out else [])

    def _grid_of(self, rows: Iterable[SummaryRow], remarks: Iterable[str] = ()) -> Grid:
        rows = tuple(rows)
        several = any(row.calls > 1 for row in rows)
        gradients = any(row.gradient is not None for row in rows)
        footer = [*remarks, *self.remarks, *self._footer(gradients)]
        return layer_table(self.title, (_layer_row(row, several) for row in rows), footer, dropped_first=_DROPPED_FIRST)

    def _footer(self, gradients: bool) -> list[str]:
        trainable = "all" if self.trainable_params == self.total_params else f"{self.trainable_params:,}"
        parts = [f"{self.total_params:,} parameters ({size_text(self.param_bytes)}), {trainable} trainable"]
        parts += [f"buffers {size_text(self.buffer_bytes)}"] if self.buffer_bytes else []
        parts += [f"outputs of this batch {size_text(self.output_bytes)}"]
        parts += [", ".join(names) for names in (self.dtypes, self.devices) if names]
        lines = [" · ".join(parts)]
        if self.flops:
            lines.append(f"FLOPs: {large_text(self.flops)} in this forward; {_FLOPS_ARE}")
        if gradients:
            loss = "" if self.loss is None else f"; the loss is {number(self.loss).strip()}"
            lines.append(f"{GRADIENT_IS}{loss}")
        return lines


# How it looks


def _layer_row(row: SummaryRow, several: bool) -> LayerRow:
    shapes = {"input": row.input_shapes, "output": row.output_shapes}
    texts = {heading: first_of([shape_text(shape) for shape in held]) for heading, held in shapes.items()}
    texts["params"] = _count(row)
    texts |= {"FLOPs": large_text(row.flops)} if row.flops else {}
    texts |= {"memory": size_text(row.output_bytes)} if row.output_bytes else {}
    texts |= {"calls": str(row.calls)} if several and row.calls else {}
    numbers: dict[str, Quantity] = {}
    if row.mean is not None:
        numbers["mean ± std"] = Quantity(row.mean, row.std, row.nan, row.inf)
    if row.zeros is not None:
        numbers["zeros"] = Quantity(row.zeros)
    if row.gradient is not None:
        numbers["gradient"] = Quantity(row.gradient, None, row.gradient_nan, row.gradient_inf)
    repeats = row.same_as is not None or any(text.startswith("same tensor as") for text, _ in row.notes)
    tone: Tone = "bad" if row.failed else "strong" if row.calls else "quiet"
    return LayerRow(row.name, row.type, texts, numbers, row.notes, row.depth, tone, repeats)


def _count(row: SummaryRow) -> str:
    if row.params:
        return f"{row.params:,}"
    return f"({row.params_before:,})" if row.params_before else ""


def _folded(rows: tuple[SummaryRow, ...], depth: int) -> list[SummaryRow]:
    """The rows down to *depth* and those that lead to the failing one; a row counts the notable rows folded into it."""
    wanted = _path_to_failure(rows)
    shown: list[SummaryRow] = []
    hidden: dict[int, int] = {}  # position in shown -> notable rows folded into it
    for row in rows:
        if row.depth <= depth or row.name in wanted:
            shown.append(row)
        elif any(tone in ("bad", "warn") for _, tone in row.notes):
            above = max(place for place, held in enumerate(shown) if _is_below(row.name, held.name))
            hidden[above] = hidden.get(above, 0) + 1
    for place, count in hidden.items():
        shown[place] = replace(shown[place], notes=(*shown[place].notes, (f"{count} notable inside", "warn")))
    return shown


def _is_below(name: str, above: str) -> bool:
    return not above or name.startswith(f"{above}.")


def is_within(name: str, place: str) -> bool:
    """Whether the module *name* is the module *place*, or below it."""
    return name == place or _is_below(name, place)


def _path_to_failure(rows: Iterable[SummaryRow]) -> set[str]:
    """The names of the failing module and of all modules that contain it."""
    failed = next((row.name for row in rows if row.failed), None)
    if failed is None:
        return set()
    steps = failed.split(".")
    return {"", *(".".join(steps[: end + 1]) for end in range(len(steps)))}


def _near_failure(rows: tuple[SummaryRow, ...]) -> list[SummaryRow]:
    """The failing row, the rows just before it and the rows that contain it; without a failing row, the first rows."""
    place = next((place for place, row in enumerate(rows) if row.failed), None)
    if place is None:
        return list(rows[:_MOST_ROWS_IN_NOTE])
    wanted = _path_to_failure(rows)
    return [row for at, row in enumerate(rows) if row.name in wanted or place - _ROWS_BEFORE_FAILURE <= at <= place]


def _frame_row(row: SummaryRow) -> dict[str, Any]:
    columns = asdict(row) | {"words": row.words}
    del columns["notes"]
    return columns | key_columns(Site(row.name), None, "forward", Tick())
