"""Make the rows of a summary from the records of one run of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.engine import (
    Probe,
    autograd_state,
    children_of,
    class_of,
    parameters,
    parameters_in,
    parameters_of,
    sharded_parameters,
    unwrap,
)
from sonde.keep import Tally, annotate, numbers_of
from sonde.model_summary.table import Shapes, Summary, SummaryRow, is_within
from sonde.view import Note, notes_of
from sonde.words import many, names_text

_LONGEST_MESSAGE = 120


@dataclass
class Outcome:
    """How a run ended: its last stage, the exception raised there, and the modules that were running, outermost first."""

    stage: Literal["forward", "loss_fn", "backward"] = "forward"
    loss: float | None = None
    error: Exception | None = None
    running: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)  # parameters that the forward wrote into
    undone: bool = True  # into those of a copy


@dataclass
class Seen:
    """The record of one module: its running sums, the shapes of its last call, and whether another call returned other shapes.

    ``flops`` and ``output_bytes`` are those of all its calls, the modules below it included.
    """

    tally: Tally
    inputs: Shapes = ()
    outputs: Shapes = ()
    varies: bool = False
    flops: int = 0
    output_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _TreeEntry:
    """One place in the tree of modules; *first* names the place where its module stood before, None if this is the first."""

    name: str
    module: nn.Module
    depth: int
    first: str | None


def assemble(
    model: nn.Module, seen: dict[str, Seen], outcome: Outcome, probe: Probe, output_bytes: int, flops: int, depth: int | None
) -> Summary:
    """The summary of a run; *seen* holds the record of each module by its name."""
    finished = [held.tally.finish() for held in seen.values()]
    annotate([layer for layer in finished if layer.calls])
    places = _places(model)
    failed = _failing(places, outcome)
    owners = {id(parameter): owner.name for _, parameter, owner in parameters(model)}
    reasons = {line.site.path: line.reason for line in probe.coverage().missing if line.site.port == "output"}
    if outcome.error is not None and outcome.stage == "forward":
        reasons = dict.fromkeys(reasons, "not reached")
    sharded = sharded_parameters(model)
    rows = [_row(place, seen.get(place.name), owners, sharded) for place in places]
    held: list[Tensor] = list(parameters_in(model))
    buffers = list(model.buffers())
    return Summary(
        title=_title(places, outcome, failed),
        rows=tuple(_with_outcome(row, place, outcome, failed, reasons) for row, place in zip(rows, places, strict=True)),
        total_params=sum(map(_numel, held)),
        trainable_params=sum(_numel(parameter) for parameter in held if parameter.requires_grad),
        param_bytes=sum(map(_bytes, held)),
        buffer_bytes=sum(map(_bytes, buffers)),
        output_bytes=output_bytes,
        flops=flops,
        dtypes=_largest_first(held or buffers, lambda tensor: str(tensor.dtype).removeprefix("torch.")),
        devices=_largest_first(held or buffers, lambda tensor: str(tensor.device)),
        loss=outcome.loss,
        error=outcome.error,
        remarks=tuple(_remarks(outcome, probe, reasons)),
        depth=depth,
    )


def _places(model: nn.Module) -> list[_TreeEntry]:
    """The tree in the order of ``named_modules()``; a module that comes again is a place with nothing below it."""
    found: list[_TreeEntry] = []
    names: dict[nn.Module, str] = {}

    def visit(module: nn.Module, name: str, depth: int) -> None:
        module = unwrap(module)
        found.append(_TreeEntry(name, module, depth, names.get(module)))
        if module in names:
            return
        names[module] = name
        for step, child in children_of(module).items():
            if child is not None:
                visit(child, f"{name}.{step}" if name else step, depth + 1)

    visit(model, "", 0)
    return found


def _row(place: _TreeEntry, seen: Seen | None, owners: dict[int, str], sharded: dict[int, nn.Parameter]) -> SummaryRow:
    """The row with all its numbers; *owners* names the module that each parameter is counted at.

    Args:
        sharded: by the ids of parameters that FSDP2 has gathered, those that are counted in their place.
    """
    own = (sharded.get(id(parameter), parameter) for parameter in place.module.parameters())
    held = {id(parameter): parameter for parameter in own}
    new = {key for key in held if place.first is None and is_within(owners.get(key, ""), place.name)}
    row = SummaryRow(
        place.name,
        class_of(place.module).__name__,
        place.depth,
        same_as=place.first,
        params=sum(_numel(held[key]) for key in new),
        params_before=sum(_numel(held[key]) for key in held.keys() - new),
        trainable=sum(_numel(parameter) for parameter in held.values() if parameter.requires_grad),
        notes=tuple(_of_parameters(place, owners)),
    )
    return row if seen is None else _with_numbers(row, seen)


def _with_numbers(row: SummaryRow, seen: Seen) -> SummaryRow:
    layer = seen.tally.layer
    numbers = numbers_of(layer)
    output, zeros, gradient = (numbers.get(heading) for heading in ("mean ± std", "zeros", "gradient"))
    varies = ["shapes vary between calls"] if seen.varies else []
    return replace(
        row,
        input_shapes=seen.inputs,
        output_shapes=seen.outputs,
        calls=layer.calls,
        mean=output.value if output is not None else None,
        std=output.spread if output is not None else None,
        zeros=zeros.value if zeros is not None else None,
        gradient=gradient.value if gradient is not None else None,
        notes=(*notes_of(layer.findings, [*layer.notes, *varies]), *row.notes),
        nan=output.nan if output is not None else 0.0,
        inf=output.inf if output is not None else 0.0,
        gradient_nan=gradient.nan if gradient is not None else 0.0,
        gradient_inf=gradient.inf if gradient is not None else 0.0,
        flops=seen.flops,
        output_bytes=seen.output_bytes,
    )


def _of_parameters(place: _TreeEntry, owners: dict[int, str]) -> list[Note]:
    if place.first is not None:
        return [(f"same module as {place.first or '(root)'}", "quiet")]
    notes: list[Note] = [
        (f"{step} shared with {owners[id(parameter)] or '(root)'}", "quiet")
        for step, parameter in parameters_of(place.module).items()
        if parameter is not None and owners.get(id(parameter), place.name) != place.name
    ]
    held = list(place.module.parameters())
    if held and not any(parameter.requires_grad for parameter in held):
        notes.append(("frozen", "quiet"))
    return notes


def _with_outcome(row: SummaryRow, place: _TreeEntry, outcome: Outcome, failed: str | None, reasons: dict[str, str]) -> SummaryRow:
    """The row with a remark on how its module's call ended, where it did not return."""
    if row.same_as is not None:
        return row
    if row.name == failed:
        raised: Note = (f"raised {type(outcome.error).__name__}", "bad")  # the title has the message
        return replace(row, notes=(raised, *row.notes), failed=True)
    note = ""
    if row.name in outcome.running:
        note = "did not return"
    elif not row.calls and row.name in reasons:
        note = reasons[row.name].partition(": ")[0]  # the whole reason stands below the table
    elif isinstance(place.module, torch.jit.ScriptModule):
        note = "TorchScript, which cannot be observed"
    return replace(row, notes=((note, "quiet"), *row.notes)) if note else row


def _failing(places: list[_TreeEntry], outcome: Outcome) -> str | None:
    """The innermost module that was running when the exception was raised. One whose own exception was caught is left out."""
    if outcome.error is None or not (outcome.running or outcome.stage == "forward"):
        return None
    modules = {place.name: place.module for place in places if place.first is None}
    traced = _modules_in_trace(outcome.error)
    running = [name for name in outcome.running if modules.get(name) in traced] or outcome.running
    return running[-1] if running else ""


def _modules_in_trace(error: BaseException | None) -> set[nn.Module]:
    """Every module whose call is in the traceback of *error*, or of an exception that it came from."""
    found: set[nn.Module] = set()
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        trace = error.__traceback__
        while trace is not None:
            module = autograd_state.call_of(trace.tb_frame)
            if module is not None:
                found.add(module)
            trace = trace.tb_next
        error = error.__cause__ or error.__context__
    return found


def _title(places: list[_TreeEntry], outcome: Outcome, failed: str | None) -> str:
    kind = class_of(places[0].module).__name__
    if outcome.error is None:
        count = sum(place.first is None for place in places)
        return f"{kind}: {many(count, 'module')}"
    where = {"loss_fn": "loss_fn", "backward": "the backward pass"}.get(outcome.stage, "the model")
    if failed:
        type_ = next(class_of(place.module).__name__ for place in places if place.name == failed)
        where = f"{failed} ({type_})"
    return f"{kind}, partial: {where} raised {_message(outcome.error)}"


def _message(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    first = lines[0] if lines else ""
    text = first if len(first) <= _LONGEST_MESSAGE else f"{first[: _LONGEST_MESSAGE - 3]}..."
    return type(error).__name__ + (f": {text}" if text else "")


def _remarks(outcome: Outcome, probe: Probe, reasons: dict[str, str]) -> list[str]:
    remarks = list(dict.fromkeys(reason for reason in reasons.values() if ": " in reason))
    remarks += [f"observation stopped early: {error}" for error in probe.errors]
    if outcome.written:
        names = names_text(outcome.written, 4)
        ending = "" if outcome.undone else ", which was not undone"
        remarks.append(f"the forward itself writes into parameters{ending}: {names}")
    return remarks


def _numel(tensor: Tensor) -> int:
    return 0 if is_lazy(tensor) else tensor.numel()


def _bytes(tensor: Tensor) -> int:
    return _numel(tensor) * tensor.element_size()


def _largest_first(tensors: list[Tensor], of: Callable[[Tensor], str]) -> tuple[str, ...]:
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[of(tensor)] += _bytes(tensor)
    return tuple(name for name, _ in sizes.most_common())
