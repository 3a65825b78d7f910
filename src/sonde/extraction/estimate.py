"""How much a store will take."""

from __future__ import annotations

from dataclasses import dataclass

from sonde.answer import Cell, Grid, ShownAsTable
from sonde.words import many, shape_text, size_text


@dataclass(frozen=True, repr=False)
class Estimate(ShownAsTable):
    """What a store will take, as the first batch shows.

    Attributes:
        columns: of each column the type and the shape of a row, in words, and the bytes of a row.
        rows: of the first batch.
        items: of the first batch.
        batches: in all; None if that is not known.
        nbytes: of the whole store, about; None if the number of batches is not known.
    """

    columns: dict[str, tuple[str, tuple[int, ...], int]]
    rows: int
    items: int
    batches: int | None

    @property
    def nbytes(self) -> int | None:
        return None if self.batches is None else self._of_batch * self.batches

    @property
    def _of_batch(self) -> int:
        return self.rows * sum(size for _, _, size in self.columns.values())

    def _grid(self) -> Grid:
        whole = "in batches of an unknown number" if self.nbytes is None else f"about {size_text(self.nbytes)}"
        first = f"{many(self.items, 'item')} and {many(self.rows, 'row')} of the first batch take {size_text(self._of_batch)}"
        return Grid(
            title=f"extract would write {whole}: {first}",
            columns=["column", "type", "row", "bytes a row"],
            rows=[
                [Cell(name), Cell(kind), Cell(shape_text(shape)), Cell(f"{size:,}", align="right")]
                for name, (kind, shape, size) in self.columns.items()
            ],
            empty="nothing",
        )
