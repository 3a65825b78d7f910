"""``doctor``: say what observing does to a model; the answer has a verdict on each question, and what each lens costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from sonde.answer import Cell, Check, Grid, ModelChecks, Part, Verdict
from sonde.checked import checked
from sonde.checkup.examination import Cost, Examination
from sonde.checkup.judgements import CHECKS, numbers_of
from sonde.diagnosis import Subject
from sonde.engine import Where, check_model, communicates
from sonde.errors import ArgumentError
from sonde.lens import AnyLens, Lens, LossMetrics
from sonde.preprocessor import AbstractPreprocessor
from sonde.view import progress
from sonde.words import size_text, time_text

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(repr=False)
class Checkup(ModelChecks):
    """What observing does to one model; printed as a table of verdicts, and one of what each lens costs.

    >>> import sonde, torch
    >>> net = torch.nn.Linear(2, 1)
    >>> found = sonde.doctor(net, torch.ones(1, 2), seconds=0.1)
    >>> found.verdict, len(found.to_text(width=80).splitlines()) > 5
    ('ok', True)

    Attributes:
        model: class of the model.
        checks: one for each question.
        costs: what each lens costs at each port.
        numbers: by name of a check, what was measured, in seconds, bytes and counts.
        seconds: how long the checks took.
        notes: what else the reader must know.
    """

    model: str
    checks: list[Check]
    costs: list[Cost] = field(default_factory=list)
    numbers: dict[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    _source = "sonde.doctor"
    _about = "What observing does to"
    _headlines: ClassVar[Mapping[Verdict, str]] = {
        "bad": "observing is not safe here",
        "warn": "observing has an effect",
        "note": "observing changes nothing",
        "ok": "observing changes nothing",
        "unknown": "no check could be made",
    }

    def _content(self) -> dict[str, Any]:
        return {**super()._content(), "numbers": self.numbers, "costs": [asdict(each) for each in self.costs]}

    def to_text(self, width: int | None = None) -> str:
        """The tables as plain text, at most *width* characters wide; None is the width of the terminal."""
        return "\n\n".join(grid.to_text(width) for grid in self._grids())

    def __repr__(self) -> str:
        return self.to_text()

    def __rich__(self) -> Group:  # type: ignore[override]  # two tables
        from rich.console import Group

        first, *others = self._grids()
        return Group(first, *(part for grid in others for part in ("", grid)))

    def _more_parts(self) -> list[Part]:
        return [Part("Each lens at each port", self._cost_grid())] if self.costs else []

    def _grids(self) -> list[Grid]:
        return [self._grid(), *([self._cost_grid()] if self.costs else [])]

    def _cost_grid(self) -> Grid:
        rows = []
        for cost in self.costs:
            apart = cost.difference
            often = "" if cost.one_in == 1 else f"in one of {cost.one_in} logged steps"
            each = "" if apart is None or not cost.rows else time_text(apart.seconds / cost.rows)
            if apart is not None and apart.is_noise:
                each, often = "", "; ".join(filter(None, [f"below its noise, {time_text(apart.noise)} a step", often]))
            rows.append(
                [
                    Cell(cost.lens, "strong"),
                    Cell(cost.port),
                    Cell(f"{cost.rows:,}", align="right"),
                    Cell(each, align="right"),
                    Cell(size_text(cost.bytes / cost.rows) if cost.rows else "", align="right"),
                    Cell(often, "quiet"),
                ]
            )
        measured = any(cost.difference is not None for cost in self.costs)
        footer = ["time: what a step saves without the lens at the port, divided by its rows"] if measured else []
        return Grid("Each lens at each port", ["lens", "port", "rows", "time a row", "bytes a row", ""], rows, footer)


@checked("model", "loss_fn", "optimizer", "include", "exclude")
def doctor(
    model: nn.Module,
    batch: Any,
    loss_fn: Callable[[Any], Any] | None = None,
    optimizer: Any = None,
    *,
    lenses: Iterable[AnyLens] | AnyLens | None = None,
    include: Where = None,
    exclude: Where = None,
    every: int = 10,
    compile: bool | None = None,  # noqa: A002  # as the function of torch is called
    seconds: float = 20.0,
    verbose: bool = True,
) -> Checkup:
    """Check the instrument on a model: say what ``watch`` changes in *model*, what is seen, and what it costs.

    A model is asked before its training by :func:`sonde.preflight`, and a run by :func:`sonde.check`.

    >>> import sonde, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    >>> found = sonde.doctor(model, torch.randn(8, 4), seconds=0.1)
    >>> found["unchanged"].verdict, found.ok
    ('ok', True)

    Copies run without an observer and with one, from the present random state; the model, its gradients and buffers, the batch, the
    optimizer and the random state stay as they are. A model in training mode makes training steps; one in evaluation mode runs
    its forward without gradients, under ``watch(evaluation=True)``. A wrapper of DDP is left out.

    Args:
        model: any module.
        batch: the arguments of the call: a tuple or list holds the positional arguments, a dict or another mapping the keyword
            arguments, and anything else is its only argument.
        loss_fn: from the model's output to a scalar. Without it, the output's own ``loss`` (an attribute or a key) is taken;
            without either, the mean square of the output.
        optimizer: the optimizer of the model, or a function from a list of parameters to one; SGD by default.
        lenses, include, exclude: what is looked at, as ``watch`` takes them.
        every: which steps a training would log: every n-th. For the share of time that observing would take.
        compile: count graphs, graph breaks and recompilations, on copies that are compiled anew; None: where the model, or a
            part of it, is compiled. Torch keeps what was compiled until ``torch.compiler.reset()``.
        seconds: the time that timing may take.
        verbose: show the progress.

    Returns:
        A check for each question, with the verdict ``bad``, ``warn``, ``note``, ``ok``, or ``unknown`` where it could not be made,
        with findings and their numbers; and what each lens costs at each port.

    Raises:
        ModelError: *model* is no module.
        ArgumentError: an argument cannot be used, the model has no numbers (device ``meta``, or lazy parameters), several ranks
            hold it (FSDP, tensor parallel), this is not rank 0, or the loss is no scalar.
        Exception: what the model raises without an observer.
    """
    check_model(model)
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:  # type: ignore[redundant-expr]
        raise ArgumentError(f"every={every!r}: give the number of steps from one logged step to the next, 1 or more")
    if compile not in (None, True, False):
        raise ArgumentError(f"compile={compile!r}: give True, False, or None for models that are compiled")
    if reason := communicates(model):
        raise ArgumentError(
            f"{reason}, and doctor runs copies on one rank alone, which would wait for the others: ask about the same model in one "
            "process, before it is divided"
        )
    if _rank():
        raise ArgumentError(
            f"this is rank {_rank()}: call doctor on rank 0 alone, which runs a copy and communicates with no other"
        )
    began = time.monotonic()
    subject = Subject(model, batch, loss_fn, optimizer, 1, seconds)
    single = isinstance(lenses, Lens | LossMetrics | AbstractPreprocessor)
    chosen: Any = (lenses,) if single else None if lenses is None else tuple(lenses)  # type: ignore[arg-type]
    given = {"include": include, "exclude": exclude}
    checks = []
    with progress("doctor", verbose=verbose) as show:
        examined = Examination(subject, chosen, every, seconds, compile, given)
        for place, (name, check) in enumerate(CHECKS.items(), 1):
            show(f"{name}, {place} of {len(CHECKS)}")
            unjudged = Check(name, "the model raises under watch", judged=False)
            checks.append(check(examined) if examined.raised is None else unjudged)
    known = examined.raised is None
    costs, numbers = (examined.costs, numbers_of(examined)) if known else ([], {})
    return Checkup(subject.name, checks, costs, numbers, time.monotonic() - began, [*examined.notes, *subject.notes])


def _rank() -> int:
    """Return the rank of this process; 0 in a training of one."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
