"""Run a kept step again, looking at every operation, and say which one made the first bad value."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

from sonde.checked import checked
from sonde.diagnosis import (
    Attempt,
    NonFinite,
    TensorFacts,
    Tried,
    attempted,
    cast_as,
    checked_change,
    kept_of,
    observe_step,
)
from sonde.engine import Event, Trial, check_model, is_floating, observe, parameters, remap, returned_loss, walk
from sonde.errors import ArgumentError, SondeError
from sonde.inspector.sentinel.bad_step import BadStep
from sonde.inspector.sentinel.gradients import is_finite
from sonde.inspector.sentinel.kept_step import KeptStep, Pass, is_spread, joined, read_step
from sonde.rules import RULES
from sonde.words import names_text, percent, shape_text, short

Made = TypeVar("Made")

_FEW_SAMPLES = 3  # that have a median to stand out of


@dataclass(slots=True)
class Replayed:
    """What was found when a step was run again.

    Attributes:
        report: the answer for the pass that made the bad values; None if no pass could be run.
        summary: in a sentence or two; ends with a full stop.
        site: where the bad values began; ``""`` if that is not known.
        advice: what to do; may be empty.
        joins: a whole model is needed to run the step again, with the parts of all ranks.
    """

    summary: str
    report: NonFinite | None = None
    site: str = ""
    advice: str = ""
    joins: bool = False


@overload
def replay(path: str | os.PathLike[str], model: nn.Module, loss_fn: Callable[[Any], Any] | None = None) -> NonFinite: ...


@overload
def replay(
    path: str | os.PathLike[str],
    model: nn.Module,
    loss_fn: Callable[[Any], Any] | None = None,
    *,
    change: Mapping[str, Any],
    optimizer: Any = None,
) -> Tried: ...


@checked("model")
def replay(
    path: str | os.PathLike[str],
    model: nn.Module,
    loss_fn: Callable[[Any], Any] | None = None,
    *,
    change: Mapping[str, Any] | None = None,
    optimizer: Any = None,
) -> NonFinite | Tried:
    """Run a step again that a watched training has kept, and return the first operation that made a NaN or an infinity.

    A copy of *model* is given the parameters and buffers from before the step, and runs under the same autocast and random state.
    The parameters of FSDP are joined from the folders of all ranks that lie beside *path*; *model* is a whole one then.

    With *change*, the last pass of the step is run twice, as it was and changed, and the answer says what became of both.

    Args:
        path: the folder of the step, ``RUN/nonfinite/step-...`` or ``RUN/spikes/step-...``.
        model: a model of the same class and sizes, as the program makes it. It stays as it is.
        loss_fn: from the model's output to a scalar, which is sent backward. Without it the gradients are sent backward that had
            arrived at the model's outputs.
        change: what is changed, by name: ``lr``, ``eps``, ``clip_grad_norm``: numbers; ``dtype``: of parameters and inputs;
            ``autocast``: False, or a type; ``without``: indices of samples that are left out.
        optimizer: takes the step: an optimizer of *model*, which is copied with its state, or a function from a list of parameters
            to one. The state that it had in the training is not kept. Without one no step is taken.

    Raises:
        StoreError: the folder holds no kept step.
        ArgumentError: the model is another one, no arguments were kept, or it cannot be run with those that were; or *change* names
            what cannot be changed.
        ModelError: *model* is no module.
        Exception: what *loss_fn* raised.
    """
    wanted = None if change is None else checked_change(change, with_optimizer=optimizer is not None)
    step = read_step(path)
    check_model(model)
    _check_fit(step, model)
    step = joined(step, path)
    if not step.passes:
        raise ArgumentError(
            f"{path} holds no arguments of the model ({'; '.join(step.notes)}): give them to sonde.why_nan(model, batch)"
        )
    own: list[Exception] = []
    kept_loss = None if loss_fn is None else _keeping(loss_fn, own)
    try:
        if wanted is not None:
            return _tried(step, model, kept_loss, wanted, optimizer)
        reports = _reports(step, model, kept_loss, whole=True)
    except Exception as error:
        if isinstance(error, SondeError) or error in own:
            raise
        raise ArgumentError(
            f"this {type(model).__name__} cannot be run with what {path} holds: {type(error).__name__}: {error}. Make the model "
            "as the training does; what is no tensor or plain data was not kept: give it to sonde.why_nan(model, batch)"
        ) from error
    report = next((report for report in reports if report.origin is not None), reports[-1])
    if is_spike(step):
        report.notes += [*standing_out(step.passes[-1]), *standing_out_in(step, model)]
    return report


def _tried(step: KeptStep, model: nn.Module, loss_fn: Any, change: dict[str, Any], optimizer: Any) -> Tried:
    """Return what became of the last pass of *step*, as it was and with *change*."""
    kept, notes = step.passes[-1], list(step.notes)
    if loss_fn is None and not (kept.gradients and all(map(is_finite, kept.gradients.values()))):
        raise ArgumentError(
            "the gradient that arrived at the model's output was not kept, or is not finite: give loss_fn=, a function from the "
            "output to the loss, so that the step can be tried whole"
        )
    if len(step.passes) > 1:
        notes.append(f"the last of {len(step.passes):,} passes of the step")
    if optimizer is not None:
        notes.append("the optimizer's state of that step is not kept: it has that of the optimizer that is given")
    as_it_was, changed = (_attempt(step, kept, model, each, loss_fn, optimizer) for each in ({}, change))
    return Tried(change, as_it_was, changed, notes)


def _attempt(
    step: KeptStep,
    kept: Pass,
    model: nn.Module,
    change: dict[str, Any],
    loss_fn: Any = None,
    optimizer: Any = None,
    *,
    whole: bool = True,
) -> Attempt:
    """Return what becomes of a pass of *step* with *change*; without *whole*, *model* has the parameters of the step."""

    def run(trial: Trial, casts: dict[str, torch.dtype]) -> dict[str, Tensor]:
        outcomes: list[tuple[str, Tensor]] = []
        with cast_as(casts):
            _pass(trial, _without(replace(kept, autocast=casts), change.get("without", [])), outcomes, [])
        return {name: tensor.detach() for name, tensor in outcomes}

    with _loaded(step, kept, model, loss_fn, optimizer, whole=whole) as (trial, _):
        return attempted(trial, change, run, optimizer, kept.autocast)


def _in_float32(step: KeptStep, model: nn.Module, *, whole: bool) -> str:
    """Say whether the last pass of a step in half precision stays finite in float32; ``""`` if not, or if it is none."""
    kept = step.passes[-1]
    halves = (torch.float16, torch.bfloat16)
    if not kept.autocast and not any(each.dtype in halves for each in model.parameters()):
        return ""
    if _attempt(step, kept, model, {"dtype": torch.float32}, whole=whole).broken:
        return ""
    ran = "step" if kept.gradients and all(map(is_finite, kept.gradients.values())) else "forward"
    return f" Tried in float32, the same {ran} stays finite."


def _without(kept: Pass, samples: list[int]) -> Pass:
    """Return *kept* without the gradients of *samples*."""
    if not samples:
        return kept
    held = {
        place: each[kept_of(each.shape[0], samples, each.device)] if each.dim() else each for place, each in kept.gradients.items()
    }
    return replace(kept, gradients=held)


def _keeping(loss_fn: Callable[[Any], Any], raised: list[Exception]) -> Callable[[Any], Any]:
    """Return *loss_fn*, which puts what it raises into *raised*."""

    def called(output: Any) -> Any:
        try:
            return loss_fn(output)
        except Exception as error:
            raised.append(error)
            raise

    return called


def _check_fit(step: KeptStep, model: nn.Module) -> None:
    """Check that *model* has the parameters of *step*, and no others."""
    own = {name: parameter for name, parameter, _ in parameters(model)}
    kept = {name: (tuple(each.shape), each.dtype) for name, each in step.parameters.items()}
    kept |= {name: (piece.whole, part.dtype) for name, (part, piece) in step.parts.items()}
    strange = [f"it has no parameter {name!r}" for name in kept if name not in own]
    if not (step.lost or step.parts):
        strange += [f"the step has no parameter {name!r}" for name in own if name not in kept and name not in step.left_out]
    for name, here in own.items():
        if name not in kept:
            continue
        shape, dtype = kept[name]
        if tuple(here.shape) != shape:
            strange.append(f"its parameter {name!r} is {shape_text(tuple(here.shape))}, in the step {shape_text(shape)}")
        elif here.dtype != dtype:
            strange.append(f"its parameter {name!r} is {_name(here.dtype)}, in the step {_name(dtype)}")
    if strange:
        more = f" (and {len(strange) - 1:,} more)" if len(strange) > 1 else ""
        raise ArgumentError(
            f"this {type(model).__name__} differs from the model of the step, a {step.type}: {strange[0]}{more}. "
            "Make the model as the training does"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def replayed(step: KeptStep, found: BadStep) -> Replayed:
    """Run *step* again on a copy of the model of *found*. Whatever fails is said in the summary."""
    model = found.model
    own = {name: parameter for name, parameter, _ in parameters(model)}
    before = own | step.parameters | {name: part for name, (part, _) in step.parts.items()}
    broken = [name for name in own if not is_finite(before[name])]
    if broken and not (step.lost or (found.is_taken and found.parameters is None)):
        return Replayed(
            f"The parameter {broken[0]!r} was not finite before this step"
            f"{f' ({len(broken):,} in all)' if len(broken) > 1 else ''}: by an update, or by code that wrote it.",
            site=f"{broken[0]}:param",
            advice="lower the learning rate or raise the optimizer's eps; load the last good checkpoint",
        )
    if found.in_backward:
        return Replayed("It was not run again: the optimizer steps inside the backward pass, and has changed parameters already.")
    if any(map(is_spread, own.values())):
        return Replayed("It was not run again: parameters are spread over ranks, which would all have to take part.", joins=True)
    if step.lost:
        return Replayed(f"It was not run again: {step.lost}.")
    if not step.passes:
        return Replayed("It was not run again: no call of the whole model was seen, or in compiled code alone.")
    try:
        reports = _alone(lambda: _reports(step, model, None, whole=found.parameters is not None))
    except Exception as error:
        return Replayed(f"It could not be run again ({type(error).__name__}: {error}).")
    report = next((report for report in reports if report.origin is not None), None)
    if report is not None:
        found_first = report.findings[0]
        line = f" ({report.line.name})" if report.line is not None else ""
        try:
            proof = _alone(lambda: _in_float32(step, model, whole=found.parameters is not None))
        except Exception:  # it could not be tried: what was found stands without it
            proof = ""
        return Replayed(f"{found_first.message}{line}.{proof}", report, found_first.site, found_first.advice)
    bad = next((each for kept in step.passes for each in kept.gradients.values() if not is_finite(each)), None)
    if bad is not None:
        return Replayed(
            f"The model's outputs are finite and the gradient that arrived at them is not ({TensorFacts.of(bad)}): the loss "
            f"function has made it{_as_slopes(found.slopes)}.",
            reports[-1],
            "(root):grad_output",
            _WITH_THE_LOSS,
        )
    if step.loss is not None and not step.gradients:
        return Replayed(
            "The model's outputs are finite and the loss is not: the loss function has made it.",
            reports[-1],
            "(root):output",
            _WITH_THE_LOSS,
        )
    lost = next((origin for each in reports for origin in each.harmless), None)
    if lost is not None:  # as on the way to a gradient that is sparse
        layer = "" if lost.place.path is None else f" in {lost.place.path or '(root)'}"
        return Replayed(
            f"Run again, {lost.kind} was made by {lost.name}{layer}, and could not be followed any further.", reports[-1]
        )
    if not any(kept.gradients for kept in step.passes):
        return Replayed(
            "Run again, the model was finite, forward and backward; what the loss function does, and the gradient that it gave the "
            "model, were not kept: look there first (a division by 0, a log or root of 0, a mean over nothing).",
            reports[-1],
            "(root):grad_output",
            _WITH_THE_LOSS,
        )
    return Replayed(
        "Run again, everything was finite: another rank's batch, code between the backward pass and the step, or an operation "
        "without a fixed order has made the difference.",
        reports[-1],
    )


def _as_slopes(slopes: Sequence[str]) -> str:
    """Return in words that slopes of a loss function are infinite somewhere; ``""`` for none."""
    return f", as where a slope is infinite: that of {names_text(slopes)}" if slopes else ""


_WITH_THE_LOSS = "run sonde.why_nan(model, batch, loss_fn) with the loss function, or sonde.replay(path, model, loss_fn)"


def _alone(run: Callable[[], Made]) -> Made:
    """Return what *run* returns, run by a thread of its own: not inside the optimizer's step, nor inside a backward pass."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, run).result()


def _reports(step: KeptStep, model: nn.Module, loss_fn: Callable[[Any], Any] | None, *, whole: bool) -> list[NonFinite]:
    """Run the passes of *step*, the last one first, up to one that is bad; return the answer for each that ran.

    Args:
        whole: *model* lacks the parameters of the step.
    """
    reports: list[NonFinite] = []
    for each in reversed(step.passes):
        reports.append(_report(step, each, model, loss_fn, whole=whole))
        if reports[-1].origin is not None:
            break
    return reports


@contextlib.contextmanager
def _loaded(
    step: KeptStep, each: Pass, model: nn.Module, loss_fn: Any, optimizer: Any = None, *, whole: bool = True
) -> Iterator[tuple[Trial, list[str]]]:
    """Yield a trial of *model* in the state before *step*, with the arguments and the random state of a pass, and notes."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with Trial.of(model, each.args, each.kwargs, loss_fn, optimizer) as trial:
        if whole and not trial.is_free:
            raise ArgumentError("the model is too large to be copied: give a new one, and load the step with KeptStep.load_into")
        missing = step.load_into(trial.model, with_parameters=whole)
        if whole:
            trial.args, trial.kwargs = remap((trial.args, trial.kwargs), lambda tensor: tensor.to(device))
        each.random.restore()  # the trial puts the present state back
        yield trial, [*step.notes, *([f"the model has no buffer {missing[0]!r} ({len(missing):,} in all)"] if missing else [])]


def _report(step: KeptStep, each: Pass, model: nn.Module, loss_fn: Any, *, whole: bool) -> NonFinite:
    with _loaded(step, each, model, loss_fn, whole=whole) as (trial, notes), cast_as(each.autocast):
        outcomes: list[tuple[str, Tensor]] = []
        batch = trial.args, trial.kwargs
        return observe_step(trial.model, lambda: _pass(trial, each, outcomes, notes), outcomes=outcomes, notes=notes, batch=batch)


def _pass(trial: Trial, kept: Pass, outcomes: list[tuple[str, Tensor]], notes: list[str]) -> None:
    """Run one pass: forward, and backward from a loss or from the gradients that had arrived at the outputs.

    What it makes is put into *outcomes*.
    """
    output = trial.output()
    tensors = [tensor for _, tensor in walk(output)]
    own = returned_loss(output)
    outcomes += [("the loss" if tensor is own else "the output", tensor) for tensor in tensors]
    if trial.loss_fn is not None:
        loss = trial.loss_fn(output)
        outcomes.append(("the loss", loss))
        with torch.autocast(loss.device.type, enabled=False):
            torch.autograd.backward(loss)
        return
    gradients = {place: gradient for place, gradient in kept.gradients.items() if place < len(tensors)}
    if not gradients:
        gradients = {place: torch.ones_like(tensor) for place, tensor in enumerate(tensors) if tensor.requires_grad}
        notes.append("the gradient at the model's output was not kept: ones went backward in its place")
    ready = {place: gradient.to(tensors[place]) for place, gradient in gradients.items() if tensors[place].requires_grad}
    if not ready or any(not is_finite(gradient) for gradient in ready.values()):
        return  # the bad values come from the loss, or from the forward: the backward has no news
    roots: list[Tensor] = [tensors[place] for place in ready]
    with contextlib.ExitStack() as stack:
        for kind in kept.autocast:
            stack.enter_context(torch.autocast(kind, enabled=False))
        torch.autograd.backward(roots, list(ready.values()))


# Spikes


def is_spike(step: KeptStep) -> bool:
    """Return whether everything in *step* was finite: it was kept since its loss or gradient norm was a spike."""
    return not step.gradients and step.loss is None


def standing_out(kept: Pass) -> list[str]:
    """Say which samples of the arguments of a pass, and of the gradients at the model's outputs, stand out of the batch."""
    said = []
    for name, tensor in walk((kept.args, kept.kwargs)):
        said += _sample(f"the argument {name}", tensor)
    for tensor in kept.gradients.values():
        said += _sample("the gradient at the model's output", tensor)
    return said or ["no sample of the batch stands out in the arguments, or in the gradient at the model's output"]


def _sample(name: str, tensor: Tensor) -> list[str]:
    """Say which sample of *tensor* is at least ten times as large as the median of its samples, if one is."""
    if not tensor.dim() or tensor.shape[0] < _FEW_SAMPLES or not is_floating(tensor):
        return []
    sizes = tensor.detach().double().flatten(1).square().mean(1).sqrt() if tensor.dim() > 1 else tensor.detach().double().abs()
    largest, middle = int(sizes.argmax()), float(sizes.median())
    if not float(sizes[largest]) >= RULES["spike"].thresholds["above"] * middle:
        return []
    times = f"{short(float(sizes[largest]) / middle)} x the median of the batch" if middle else "all others are 0"
    share = f", {percent(float(sizes[largest].square() / sizes.square().sum()))} of all squares" if middle else ""
    return [f"{name} is largest in sample {largest}: {short(float(sizes[largest]))}, {times}{share}"]


def standing_out_in(step: KeptStep, model: nn.Module) -> list[str]:
    """Say in which layer of *model* the outputs of a sample stand out first, and which weight gets most of the gradient."""
    kept = step.passes[-1]
    first: list[str] = []

    def look(event: Event) -> None:
        for _, tensor in walk(event.value) if not first else ():
            first.extend(_sample(f"the output of {event.site.name or 'the model'}", tensor)[:1])

    with _loaded(step, kept, model, None) as (trial, _):
        with cast_as(kept.autocast), observe(trial.model, look):
            _pass(trial, kept, [], [])
        squares = {
            name: float(each.grad.double().square().sum()) for name, each, _ in parameters(trial.model) if each.grad is not None
        }
    largest = max(squares, key=squares.__getitem__, default="")
    total = sum(squares.values())
    return [*first, *([f"{largest} has {percent(squares[largest] / total)} of the squares of all gradients"] if total else [])]


def write_report(folder: Path, found: Replayed) -> None:
    """Write what was found into the *folder* of the step: as text, and as a script that runs the operation alone."""
    report = found.report
    text = [found.summary, *([] if report is None else ["", str(report)])]
    (folder / "report.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    if report is not None and report.reproduction:
        comment = found.summary.replace("\n", " ")
        line = "" if report.line is None else f"# {report.line}\n"
        script = f"# {comment}\n{line}import torch\n\nprint({report.reproduction})\n"
        (folder / "reproduce.py").write_text(script, encoding="utf-8")
