"""``stream``: run models over data and give out what passes at chosen sites in random order, without a disk."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from sonde.checked import checked
from sonde.engine import Where
from sonde.errors import ArgumentError
from sonde.extraction.asked import Asked, Beside
from sonde.extraction.crew import Crew, Together
from sonde.extraction.forwards import Call
from sonde.extraction.intake import Intake, named
from sonde.extraction.mixture import Mixture
from sonde.extraction.place import Columns
from sonde.extraction.rows import Positions
from sonde.extraction.sharing import Sharing, looked
from sonde.extraction.stored_forms import Transform
from sonde.site import Port
from sonde.sizes import bytes_of

_CALL = "sonde.stream()"


@checked("model", "include", "exclude", "rows", "buffer")
def stream(
    model: nn.Module | Mapping[str, nn.Module],
    batches: Iterable[Any],
    include: Where,
    *,
    exclude: Where = None,
    ports: Iterable[Port] | Port = "output",
    positions: Positions = None,
    columns: Beside = (),
    dtype: torch.dtype | str | None = None,
    transform: Transform | Mapping[str, Transform] | None = None,
    buffer: str | float = "2 GB",
    rows: int = 4096,
    seed: int = 0,
    device: torch.device | str | None = None,
    call: Call = None,
    ranks: Together = "together",
) -> Generator[dict[str, Tensor]]:
    """Return a generator that runs a model over *batches*, and yields shuffled batches of the rows of the selected sites.

    >>> import sonde, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    >>> batches = [torch.randn(8, 4) for _ in range(5)]
    >>> [tuple(part["0:output"].shape) for part in sonde.stream(model, batches, r"^0$", rows=16)]
    [(16, 3), (16, 3), (8, 3)]

    Rows and columns are those of :func:`sonde.extract`, and each row comes once. They wait in a buffer: where it is full, half of
    its rows, chosen at random, are given out before the model runs on. The model runs within ``next`` alone, and is observed then
    alone: between two batches it is as it was, and may be called, trained or observed. The random numbers that data and model draw
    go on from those at the first ``next``, apart from the caller's. The generator may be left, or closed, at any time.

    Where torch.distributed is initialised, each rank yields the rows of its share of the batches, shuffled in a buffer of its own:
    see :func:`sonde.extract`. The ranks wait for each other at the first ``next`` alone, and may have batches of different numbers.

    Args:
        model, batches, include, exclude, ports, positions, columns, dtype, transform, call: as of :func:`sonde.extract`.
        buffer: the size of the buffer. A larger one mixes rows that are further apart in the data.
        rows: how many to yield at a time; the last batch may have fewer.
        seed: of the order. The same seed, data and sizes give the same batches.
        device: of the buffer and of what is yielded; None for the model's, or the CPU where that has no room.
        ranks: which ranks share the batches, as of :func:`sonde.extract`; ``"alone"`` for a rank that has batches of its own.

    Raises:
        RankError: at the first ``next``: a rank has not come, or has raised.
        ModelError, SelectionError, ArgumentError: an argument cannot be used, a selected site does not run in the first batch, or
            tensors of a site cannot be rows of one column.
        Exception: what the model, the data or a given function has raised, with a note of the batch.
    """
    asked = Asked(model, batches, include, exclude, ports, positions, columns, dtype, transform, call)
    size = bytes_of(buffer, "buffer", "that waiting rows may take")
    if size == inf:
        raise ArgumentError(f'buffer={buffer!r}: the rows wait in memory; give its size, as "2 GB"')
    if type(rows) is not int or rows < 1:
        raise ArgumentError(f"rows={rows!r}: give how many to yield at a time")
    return _batches(asked, batches, size, rows, seed, None if device is None else torch.device(device), ranks)


def _batches(
    asked: Asked, batches: Iterable[Any], size: float, rows: int, seed: int, device: torch.device | None, ranks: Together
) -> Generator[dict[str, Tensor]]:
    made: list[Mixture] = []
    number = 0

    def place_for(columns: Columns) -> Mixture:
        made.append(Mixture(columns, size, rows, seed + number, device or intake.device, may_move=device is None))
        return made[0]

    intake = Intake(asked.forwards, asked.chooser, asked.forms, asked.beside, place_for)
    with Crew.gathered(ranks) as crew:
        crew.share(asked.models.values())
        number = crew.number
        if crew.in_step:
            raise ArgumentError(
                "a forward of this model needs other ranks, and ranks that train on a stream are not in step: give model.module "
                "of DDP; of a model that is spread over ranks (FSDP2, tensor parallel) extract a store, and train on that"
            )
        sharing = Sharing(crew, batches, None, 0, partial(torch.zeros, 0, dtype=torch.int64), None, lambda batch: [])
        with asked.forwards:
            given = iter(batches)
            if not crew.is_alone:
                given = looked(given, intake, sharing, crew, _CALL)[0]
            crew.all(0)  # so that none leaves before all have come
    rounds = sharing.rounds(given, full=lambda: False)
    has_ended = False
    while not has_ended:
        with asked.forwards:
            has_ended = True
            for batch, part in rounds:
                assert part is not None
                with named(sharing.read - 1, _CALL):
                    sharing.put(intake, batch, part)
                if made[0].is_full:
                    has_ended = False
                    break
        if not made:
            raise ArgumentError("batches: there is none")
        yield from made[0].rest() if has_ended else made[0].given_out()
    if not made[0].rows and crew.is_alone:
        raise ArgumentError("no row was kept of any batch: positions chose none")
