"""Run one model of a comparison apart from the user's: its tensors, how far rounding moves them, and which of them are random."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from sonde.diagnosis.compare.copies import Copies
from sonde.diagnosis.compare.sides import Kept, Key, Side
from sonde.diagnosis.compare.suspects import CannotChangeError, Change
from sonde.diagnosis.compare.written_out import as_written_out, attentions, write_out
from sonde.diagnosis.distance import as_numbers, distance, held_of_both, readable, spacing
from sonde.engine import (
    Event,
    RoundingMode,
    Trial,
    as_arguments,
    buffers_of,
    class_of,
    communicates,
    first_floating,
    members,
    observe,
    parameters,
    parameters_of,
    unwrap,
)
from sonde.errors import ArgumentError
from sonde.keep import Copying
from sonde.site import Site
from sonde.stats import PLAIN, Piece, unreadable
from sonde.words import names_text

Loss: TypeAlias = Callable[[Any], Tensor]
MakeOptimizer: TypeAlias = Callable[[Any], Any]

_REPEATS = 2
"""Runs that rounding is measured by."""


@dataclass(frozen=True)
class Request:
    """What to run.

    Attributes:
        model: the user's model.
        batch: the arguments of its call.
        loss_fn: from the output to a scalar; None is the output's own ``loss``, or the mean square of its first floating tensor.
        optimizer: an optimizer of the model, or a function that makes one of parameters; None for no step.
        backward: compute gradients.
        copies: makes the copies of tensors.
        of_saved: the other side was saved: parameters are kept, too, and no loss is made up.
        is_written_out: attention of torch's own is written out in the copies.
    """

    model: nn.Module
    batch: Any
    loss_fn: Loss | None = None
    optimizer: Any = None
    backward: bool = True
    copies: Copies = field(default_factory=Copies)
    of_saved: bool = False
    is_written_out: bool = False


def live_side(name: str, request: Request, *, measure: bool, progress: Callable[[str], None]) -> Side:
    """Return the side of a live model: one run that is kept, and with *measure* the runs that measure its scatter."""
    model = as_written_out(request.model) if request.is_written_out else request.model
    side = Side(name, class_of(unwrap(request.model)).__name__, model=model, loss_fn=request.loss_fn)
    if request.is_written_out and (found := attentions(request.model)):
        which = names_text([each or "(root)" for each in found])
        side.notes.append(f"{which} ran as q_proj, k_proj and v_proj, the thirds of in_proj_weight, and out_proj")
    progress(f"run {name}")
    drew = _run(request, _Keeper(side, request.copies), side)
    if measure:
        known = {kept.key: kept for kept in side.kept}
        for repeat in range(_REPEATS):
            progress(f"measure the rounding of {name}")
            _repeat(request, side, known, seed=repeat)
        if drew:
            progress(f"look for what is random in {name}")
            _find_random(request, side, known)
    if not communicates(request.model):  # else the ranks would have to try the same changes

        def again(change: Change, backward: bool, take: Callable[[Kept], object]) -> bool:
            return _again(request, side, change, backward, take)

        side.again = again
    return side


def _again(request: Request, side: Side, change: Change, backward: bool, take: Callable[[Kept], object]) -> bool:
    """Run once more with *change*, and hand each event to *take*. Return whether the change could be made."""
    loss_fn = change.loss_fn[0] if change.loss_fn else request.loss_fn
    wanted = replace(request, loss_fn=loss_fn, backward=request.backward and backward)
    try:
        _run(wanted, _Comparer(side.expanding(take)), Side(side.name, side.title), change=change)
    except CannotChangeError:
        return False
    return True


def _repeat(request: Request, side: Side, known: dict[Key, Kept], seed: int) -> None:
    """Run again with every operation's result disturbed by one rounding, and note how far each event moves."""
    mode = RoundingMode(seed)

    def compare(kept: Kept) -> None:
        first = known.get(kept.key)
        if first is not None:
            side.scatter[kept.key] = max(side.scatter.get(kept.key, 0.0), _moved(first, kept))

    _run(request, _Comparer(compare), Side(side.name, side.title), mode)


def _find_random(request: Request, side: Side, known: dict[Key, Kept]) -> None:
    """Run again from another random state, and note the events that differ."""

    def compare(kept: Kept) -> None:
        first = known.get(kept.key)
        least = max((side.scatter.get(kept.key, 0.0), *map(spacing, kept.leaves.values())))
        if first is not None and _moved(first, kept) > _RANDOM * least:
            side.random.add(kept.key)

    _run(request, _Comparer(compare), Side(side.name, side.title), reseed=True)


_RANDOM = 8.0
"""An event that moves by more than so many roundings with the random state is random."""


def _moved(first: Kept, again: Kept) -> float:
    shared = [(first.leaves[leaf], tensor) for leaf, tensor in again.leaves.items() if leaf in first.leaves]
    kept = [(one, other) for one, other in shared if not (one.is_meta or other.is_meta)]
    held = [both for one, other in kept if (both := held_of_both(one, other)) is not None]
    numbers = [(as_numbers(one), as_numbers(other)) for one, other in held]
    moved = [distance(one, other).relative for one, other in numbers if one.shape == other.shape]
    return max(moved, default=0.0)


# One run


class _Keeper:
    """Keep every event in a side."""

    def __init__(self, side: Side, copies: Copies) -> None:
        self._side = side
        self._copies = copies
        self._copying = Copying(copies.copy)

    def __call__(self, event: Event) -> None:
        if event.phase != "recompute":
            if event.site.port == "input" and event.module is not None:
                self._side.split |= parts_of(event.module)
            plain = _plain(event) if event.site.port == "input" else {}
            leaves = self._copying.leaves(event)
            kept = Kept(event.site.at(""), event.call, event.type.__name__, leaves, event.passthrough, plain)
            (self._side.backward if event.grad else self._side.forward).append(kept)

    def parameter(self, kept: Kept) -> None:
        """Keep a gradient or an update."""
        kept = replace(kept, leaves={leaf: self._copies.copy(tensor) for leaf, tensor in kept.leaves.items()})
        (self._side.backward if kept.site.port == "grad" else self._side.update).append(kept)


def _plain(event: Event) -> dict[int | str, Any]:
    """Return the arguments that are flags, numbers and texts, by position or name."""
    given: list[tuple[int | str, Any]] = [*enumerate(event.args), *event.kwargs.items()]
    return {name: value for name, value in given if isinstance(value, bool | int | float | str | None)}


class _Comparer:
    """Hand every event to a function, and keep nothing."""

    def __init__(self, compare: Callable[[Kept], None]) -> None:
        self._compare = compare

    def __call__(self, event: Event) -> None:
        if event.phase != "recompute":
            site = event.site.at("")
            self._compare(
                Kept(site, event.call, event.type.__name__, {leaf: readable(held.detach()) for leaf, held in event.leaves})
            )

    def parameter(self, kept: Kept) -> None:
        """Compare a gradient or an update."""
        self._compare(kept)


def _run(
    request: Request,
    take: _Keeper | _Comparer,
    side: Side,
    mode: RoundingMode | None = None,
    *,
    reseed: bool = False,
    change: Change | None = None,
) -> bool:
    """Run the model once apart; errors are noted in *side*. Return whether the forward has drawn random numbers."""
    given = (*as_arguments(request.batch), request.loss_fn, request.optimizer)
    with Trial.of(request.model, *given) as trial, ExitStack() as stack:
        if request.is_written_out:
            write_out(trial.model)
        if reseed:
            torch.manual_seed(torch.initial_seed() + 1)

        for each in () if change is None else change.trial:
            try:
                each(trial)
            except Exception as error:
                raise CannotChangeError(str(error)) from error
        modes = [mode, *((make() for make in change.contexts) if change is not None else ())]
        failures: list[Exception] = []

        def deliver(event: Event) -> None:
            try:
                with _unseen(modes):
                    take(event)
            except Exception as error:  # not one of the model
                failures.append(error)

        model, compiled = trial.compile() if mode is None and not reseed and change is None else (trial.model, "")
        if compiled:  # the run that is kept is that of compiled code; rounding is measured in plain Python
            stack.enter_context(torch.compiler.set_stance("default"))
            side.notes.append(compiled)
        before = torch.get_rng_state()
        stack.enter_context(observe(model, deliver, ports=("input", "output", "grad_output"), strict=True))
        written = _written_buffers(trial)
        for each in modes:
            if each is not None:
                stack.enter_context(each)
        for kept in _parameters(trial) if request.of_saved else ():
            take.parameter(kept)
        loss = _forward(request, model, trial, side, modes)
        with _unseen(modes):
            drew = not torch.equal(before, torch.get_rng_state())
        if loss is not None:
            _backward(side, loss)
        with _unseen(modes):
            is_told = loss is not None or (request.backward and side.error is None and not request.of_saved)
            for kept in (*(_gradients(trial) if is_told else ()), *written()):
                take.parameter(kept)
        if loss is not None and side.error is None and request.optimizer is not None:
            for kept in _updates(request, trial, side, modes, change):
                take.parameter(kept)
    if failures:
        raise failures[0]
    return drew


def _unseen(modes: Iterable[Any]) -> AbstractContextManager[Any]:
    """Return a context in which none of *modes* sees what is done."""
    stack = ExitStack()
    for mode in modes:
        if mode is not None:
            stack.enter_context(mode.unseen())
    return stack


def _written_buffers(trial: Trial) -> Callable[[], Iterator[Kept]]:
    """Return a function that yields, as updates, what the buffers have changed by since now: as running statistics do."""
    held = [(item, name) for item in members(trial.model) for name in buffers_of(item.module)]
    before = {}
    for item, name in held:
        tensor = buffers_of(item.module)[name]
        if tensor is None or type(tensor) not in PLAIN or tensor.layout is not torch.strided or unreadable(tensor):
            continue
        if tensor.is_floating_point():
            before[item.name, name] = tensor.detach().clone()

    def updates() -> Iterator[Kept]:
        for item, name in held:
            tensor, was = buffers_of(item.module).get(name), before.get((item.name, name))
            if tensor is None or was is None or tensor.shape != was.shape or torch.equal(tensor.detach(), was):
                continue
            moved = tensor.detach().to(torch.float64) - was.to(torch.float64)
            path = f"{item.name}.{name}" if item.name else name
            yield Kept(Site(path, "update"), -1, class_of(item.module).__name__, {"": moved, "before": was})

    return updates


def _forward(request: Request, model: nn.Module, trial: Trial, side: Side, modes: Iterable[Any]) -> Tensor | None:
    side.stage = "forward"
    try:
        output = model(*trial.args, **trial.kwargs)
        if not request.backward:
            return None
        side.stage = "loss"
        loss = _default_loss(output, request) if trial.loss_fn is None else trial.loss_fn(output)
    except Exception as error:
        side.error = error
        return None
    if loss is None:
        side.notes += ["no gradients: loss_fn= is missing, the loss of the saved side"] if request.of_saved else []
        return None
    given: Any = loss
    if not isinstance(given, Tensor) or given.numel() != 1:
        what = f"one of shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
        raise ArgumentError(f"loss_fn must return a tensor of one element for {side.name}; it returned {what}")
    with _unseen(modes):
        side.loss = None if loss.is_meta else float(loss.detach())
    if loss.requires_grad:
        return loss
    side.notes.append("no backward pass: the loss does not require a gradient")
    return None


def parts_of(module: nn.Module) -> set[int]:
    """Return into how many parts the parameters of *module* itself are divided while it runs, as by tensor parallelism.

    Those that FSDP divides are whole then.
    """
    found: set[int] = set()
    for parameter in parameters_of(module).values():
        if parameter is not None and Piece.is_part(parameter):
            held: Any = parameter
            found |= {held.device_mesh.size(at) for at, placement in enumerate(held.placements) if placement.is_shard()}
    return found - {1}


def _default_loss(output: Any, request: Request) -> Tensor | None:
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor) and own.numel() == 1 and own.requires_grad:
        return own
    first = first_floating(output)
    if first is None or not first.requires_grad or request.of_saved:
        return None
    return (first.abs() if first.is_complex() else first.float() if first.element_size() < 4 else first).square().mean()


def _backward(side: Side, loss: Tensor) -> None:
    side.stage = "backward"
    try:
        torch.autograd.backward(loss)
    except Exception as error:
        side.error = error


def _parameters(trial: Trial) -> Iterator[Kept]:
    for name, parameter, owner in parameters(trial.model):
        yield Kept(Site(name, "param"), -1, class_of(owner.module).__name__, {"": readable(parameter.detach())})


def _gradients(trial: Trial) -> Iterator[Kept]:
    for name, parameter, owner in parameters(trial.model):
        gradient = parameter.grad
        leaves = {} if gradient is None else {"": gradient.detach()}
        yield Kept(Site(name, "grad"), -1, class_of(owner.module).__name__, leaves)


def _updates(request: Request, trial: Trial, side: Side, modes: Iterable[Any], change: Change | None) -> Iterator[Kept]:
    side.stage = "optimizer step"
    if not trial.is_free:
        side.notes.append("no optimizer step: the parameters are too large to be copied, or cannot be")
        return
    with _unseen(modes):
        before = {name: parameter.detach().clone() for name, parameter, _ in parameters(trial.model)}
        optimizer = trial.make_optimizer(request.optimizer)
        if trial.optimizer is not None:
            _check_optimizer(optimizer, trial)
        side.optimizer = _settings_of(optimizer, trial)
        for each in () if change is None else change.optimizer:
            try:
                each(optimizer, trial)
            except Exception as error:
                raise CannotChangeError(str(error)) from error
    try:
        optimizer.step()
    except Exception as error:
        side.error = error
        return
    with _unseen(modes):
        for name, parameter, owner in parameters(trial.model):
            moved = parameter.detach().to(torch.float64 if not parameter.is_complex() else torch.complex128) - before[name]
            yield Kept(Site(name, "update"), -1, class_of(owner.module).__name__, {"": moved, "before": before[name]})


def _settings_of(optimizer: Any, trial: Trial) -> dict[str, dict[str, Any]]:
    """Return the plain settings with which *optimizer* steps, by the name of each parameter that it holds."""
    groups = {id(held): group for group in getattr(optimizer, "param_groups", ()) for held in group["params"]}
    found = {}
    for name, parameter, _ in parameters(trial.model):
        group = groups.get(id(parameter))
        if group is not None:
            found[name] = {key: held for key, held in group.items() if isinstance(held, bool | int | float | str | tuple | None)}
    return found


def _check_optimizer(optimizer: Any, trial: Trial) -> None:
    """Raise if *optimizer* holds no parameter of the model."""
    own = {id(parameter) for parameter in trial.model.parameters()}
    if not any(id(held) in own for group in getattr(optimizer, "param_groups", ()) for held in group["params"]):
        raise ArgumentError("the optimizer holds no parameter of the model: give one that was made from its parameters")
