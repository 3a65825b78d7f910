"""Run one step of a training and find the first operation that made a NaN or an infinity."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sonde.checked import checked
from sonde.diagnosis.nonfinite.causes import SOFTMAX_OF_NOTHING
from sonde.diagnosis.nonfinite.derivatives import not_left_out, safe_choice
from sonde.diagnosis.nonfinite.non_finite import NonFinite
from sonde.diagnosis.nonfinite.operation_observer import OperationObserver
from sonde.diagnosis.nonfinite.origins import Origin, ancestors, descendants
from sonde.diagnosis.nonfinite.reproduction import first_that_works
from sonde.diagnosis.nonfinite.source_lines import is_of_users, until_here
from sonde.diagnosis.nonfinite.tensor_facts import largest
from sonde.engine import (
    ModuleTracker,
    Scaling,
    Trial,
    as_arguments,
    buffers_of,
    check_loss_fn,
    check_model,
    check_numbers,
    class_of,
    members,
    parameters,
    regions,
    unwrap,
    walk,
)
from sonde.errors import ObservationWarning
from sonde.graph import named_inputs
from sonde.view import progress
from sonde.words import names_text, number_text

Outcomes = list[tuple[str, Tensor]]
"""What a step has made, each tensor with the word for its kind: ``the loss``."""


@checked("model", "loss_fn", "optimizer")
def why_nan(
    model: nn.Module,
    batch: Any,
    loss_fn: Callable[[Any], Any] | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: Any = None,
) -> NonFinite:
    """Run a copy of *model* forward and backward, and return the first operation that made a NaN or an infinity.

    >>> import sonde, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softmax(-1))
    >>> found = sonde.why_nan(model, torch.ones(1, 2), lambda p: (p - p).sqrt().sum())
    >>> found.phase, found.operation, found.cause.name
    ('backward', 'sqrt', "sqrt'(0)")

    Every operation below autograd is looked at. An infinity that the code writes on purpose (``masked_fill(mask, -inf)``, a
    buffer or an argument of -inf) is not blamed, and neither is a bad value that reaches nothing: the answer is the first
    operation whose NaN or infinity has reached the output, the loss, a gradient, a parameter or a buffer.

    In a training of several processes each one calls this: under FSDP the operations of all ranks belong together. The answer is
    about the batch of the rank; a bad value that a collective has brought from another rank is said to be one.

    The model, the batch, the optimizer and the random state stay as they are; see :func:`sonde.summary`. The model runs in
    its present mode; compiled modules run as plain Python.

    Args:
        model: any module.
        batch: the arguments of the call: a tuple or list holds the positional arguments, a dict or another mapping the keyword
            arguments, and anything else is its only argument.
        loss_fn: from the model's output to a scalar, which is sent backward. Without it, the output's own ``loss`` (an
            attribute or a key) is; without either there is no backward pass.
        optimizer: a copy of it takes one step after the backward pass, which is looked at, too.
        scaler: a ``GradScaler``: the loss is multiplied by its scale, as in the training.

    Raises:
        ModelError: *model* is no module.
        ArgumentError: the model has no numbers (device ``meta``), or *loss_fn* is no function or returned no scalar.
    """
    check_model(model)
    check_loss_fn(loss_fn)
    check_numbers(model, may_be_lazy=True)
    Scaling(scaler)  # refuses what is none
    is_compiled = bool(regions(model))
    notes = ["compiled modules ran as plain Python"] if is_compiled else []
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        notes.append(f"this is rank {rank} of {size}: the answer is about its batch")
    scale = 1.0 if scaler is None or not scaler.is_enabled() else float(scaler.get_scale())
    left = [name for name, held, _ in parameters(model) if held.grad is not None and not math.isfinite(largest(held.grad) or 0.0)]
    if left:
        notes.append(
            f"the gradient of {names_text(left)} that is there already is not finite, and this step began without it: "
            "zero_grad() takes it away"
        )
    with Trial.of(model, *as_arguments(batch), loss_fn, optimizer) as trial, progress("why_nan") as show:
        if optimizer is not None and not trial.is_free:
            notes.append("the optimizer took no step, since the parameters are not copies")
        if trial.hooks_left:
            notes.append(
                f"the copy runs without {names_text(trial.hooks_left)}: hooks on gradients that reach what no copy replaces"
            )
        outcomes: Outcomes = []
        found = observe_step(
            trial.model,
            lambda: _step(trial, scale, outcomes, notes),
            outcomes=outcomes,
            notes=notes,
            batch=(trial.args, trial.kwargs),
            loss_scale=scale,
            optimizer=trial.optimizer if trial.is_free else None,
            progress=show,
        )
        if is_compiled and found.origin is None:
            found.notes.append(
                'if the compiled model gives NaN on this batch, its compiler does: try torch.compile(model, backend="aot_eager"), '
                "then torch._inductor.config.emulate_precision_casts = True"
            )
        return found


def _step(trial: Trial, scale: float, outcomes: Outcomes, notes: list[str]) -> None:
    """Run forward, loss, backward, and the step of an optimizer; put what they make into *outcomes*."""
    output = trial.output()
    outcomes += [("the output", tensor) for _, tensor in walk(output)]
    loss = trial.loss_of(output)
    if loss is None:
        notes.append("no loss_fn was given, and the output has no loss: only the forward ran")
        return
    outcomes.append(("the loss", loss))
    if not loss.requires_grad:
        notes.append("the loss does not require a gradient: there was no backward pass")
        return
    torch.autograd.backward(loss if scale == 1.0 else loss * scale)
    if trial.optimizer is not None and trial.is_free:
        for parameter in trial.model.parameters():
            if scale != 1.0 and parameter.grad is not None:
                parameter.grad.div_(scale)
        trial.step(trial.optimizer)


def observe_step(
    model: nn.Module,
    step: Callable[[], Any],
    *,
    outcomes: Outcomes | None = None,
    notes: list[str] | None = None,
    batch: tuple[tuple[Any, ...], dict[str, Any]] = ((), {}),
    loss_scale: float = 1.0,
    optimizer: torch.optim.Optimizer | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> NonFinite:
    """Call *step* once, look at every operation in it, and return the first one that made a bad value.

    *step* runs *model* itself, forward and backward, in whatever way; nothing is copied or restored here.

    Args:
        model: whose modules, parameters and buffers are named.
        step: called without arguments. The tensors that it returns count as reached if they are bad, as do gradients,
            parameters and buffers of *model* afterwards.
        outcomes: tensors that *step* puts here count as well, each with a word for its kind.
        notes: shown with the answer; *step* may add to them.
        batch: the positional and the keyword arguments that *model* is called with, for answers about the data.
        loss_scale: by which *step* multiplies the loss before it is sent backward.
        optimizer: whose step *step* takes; its state is named by the parameters that it is of.
        progress: called now and then with words for what runs.

    Raises:
        Exception: what *step* raised, if nothing bad was found before; else it is the answer's ``error``.
    """
    outcomes, notes = [] if outcomes is None else outcomes, [] if notes is None else notes
    error: Exception | None = None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is compiled: no Python runs inside", category=ObservationWarning)
        with ModuleTracker(model) as tracker:
            observer = OperationObserver(model, tracker, loss_scale, progress)
            inputs = [(name, tensor) for name, _, tensor in named_inputs(unwrap(model), *batch)]
            _give_all(observer, model, inputs)
            for parameter, key, tensor in _optimizer_state(model, optimizer):
                observer.give_state(parameter, key, tensor, type(optimizer).__name__)
            with observer, torch.set_grad_enabled(torch.is_grad_enabled()):
                try:
                    returned = _called(step)
                    outcomes += [("the result", tensor) for _, tensor in walk(returned)]
                except Exception as raised:
                    error = raised
    outcomes += [("a gradient of the input", tensor.grad) for _, tensor in inputs if tensor.is_leaf and tensor.grad is not None]
    outcomes += _state_of(model)
    outcomes += [("the optimizer's state", tensor) for _, _, tensor in _optimizer_state(model, optimizer)]
    found = _judge(model, observer, outcomes, notes, error)
    if error is not None and found.origin is None:
        raise error
    return found


@until_here
def _called(step: Callable[[], Any]) -> Any:
    return step()


def _give_all(observer: OperationObserver, model: nn.Module, inputs: Outcomes) -> None:
    observer.give_parameters([(name, parameter) for name, parameter, _ in parameters(model)])
    for name, parameter, _ in parameters(model):
        if parameter.grad is not None:
            observer.give("gradient", name, parameter.grad, name.rpartition(".")[0], "")
    for name, buffer in _buffers(model):
        observer.give("buffer", name, buffer, name.rpartition(".")[0], "")
    for name, tensor in inputs:
        observer.give("input", name, tensor, "", "")


def _optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> list[tuple[str, str, Tensor]]:
    """Return the tensors that *optimizer* holds for each parameter: the parameter's name, the name of the tensor, the tensor."""
    found = []
    for name, parameter, _ in parameters(model) if optimizer is not None else ():
        state = optimizer.state.get(parameter, {}) if optimizer is not None else {}
        found += [(name, str(key), tensor) for key, tensor in state.items() if isinstance(tensor, Tensor)]
    return found


def _buffers(model: nn.Module) -> Outcomes:
    found = []
    for item in members(model):
        for name, buffer in buffers_of(item.module).items():
            if buffer is not None:
                found.append((f"{item.name}.{name}".lstrip("."), buffer))
    return found


def _state_of(model: nn.Module) -> Outcomes:
    """Return gradients, parameters and buffers of *model*, each with the word for its kind."""
    held = [parameter for _, parameter, _ in parameters(model)]
    found = [("gradients", parameter.grad) for parameter in held if parameter.grad is not None]
    return [*found, *(("parameters", parameter) for parameter in held), *(("buffers", buffer) for _, buffer in _buffers(model))]


def _around(error: Exception | None) -> Iterator[Tensor]:
    """Yield the tensors among the local variables of the functions that *error* came out of, outside of torch and sonde."""
    trace = None if error is None else error.__traceback__
    while trace is not None:
        if is_of_users(trace.tb_frame.f_code):
            yield from (tensor for _, tensor in walk(dict(trace.tb_frame.f_locals)))
        trace = trace.tb_next


def _is_alike(one: Origin, other: Origin) -> bool:
    """Return whether two origins are of one operation, as of its two results, or the same one of an update, on two parameters."""
    if one.forward is not None and one.forward is other.forward and one.derivative == other.derivative:
        return True
    same = (one.place, one.operator, one.name) == (other.place, other.operator, other.name)
    is_update = other.place.phase == "step" or (one.parameter and other.parameter)
    return bool(same and is_update and one.source == other.source == "operation")


def _frames(origin: Origin) -> tuple[Any, ...]:
    """Return the call in the code of users of the operation that *origin* is a part of; ``()`` where it is not known."""
    frames = () if origin.forward is None else origin.forward.frames
    inside = [*itertools.takewhile(lambda frame: not is_of_users(frame.code), frames)]
    return frames[: len(inside) + 1]


_MATTERS = {"the loss", "gradients", "a gradient of the input", "parameters", "the optimizer's state"}
"""An infinity that was written on purpose may stand in an output or a buffer; in one of these it does harm."""

_OF_BACKWARD = {"gradients", "a gradient of the input", "parameters", "the optimizer's state"}
"""What a value may reach through the backward pass alone."""

_OF_INFINITIES = {"inf - inf", "0 x inf", "inf / inf", SOFTMAX_OF_NOTHING}
"""The names of causes of a NaN that is made of infinities."""


def _blamed(bad: list[tuple[str, tuple[Origin, ...]]], behind: list[Origin], origins: list[Origin]) -> Origin | None:
    """Return the origin that is to blame: the first one behind the loss, if that is bad; else the first behind anything.

    An infinity of a target, or one that was written on purpose, is blamed if the loss is bad for no other reason. Where nothing bad
    has come through, an overflow is that a later operation has turned into 0.

    Args:
        bad: outcomes that are bad, each with the word for its kind and with its origins.
        behind: all that is behind them.
        origins: all that there are.
    """
    behind_loss = ancestors(origin for word, found in bad if word == "the loss" for origin in found)
    rests = [origin for origin in behind_loss if origin.is_rest]
    blamed = [origin for origin in behind_loss if not (origin.is_mask or origin.is_rest)]
    is_of_infinities = bool(blamed) and blamed[0].cause is not None and blamed[0].cause.name in _OF_INFINITIES
    if is_of_infinities and (found := [origin for origin in ancestors(blamed[:1]) if origin.is_rest]):
        return found[0]
    blamed = blamed or rests or behind_loss
    rows = [origin for origin in blamed if origin.cause is not None and origin.cause.name == SOFTMAX_OF_NOTHING] + rests
    if blamed and blamed[0].source == "outside" and blamed[0].given == -math.inf and rows:
        return rows[0]  # a mask of the loss function
    blamed = blamed or [origin for origin in behind if not origin.is_intended]
    if blamed and blamed[0].cause is not None and blamed[0].cause.name in _OF_INFINITIES:  # of a buffer that is no mask
        blamed = [each for each in ancestors(blamed[:1]) if each.source == "buffer" and not each.is_mask] + blamed
    blamed = blamed or ancestors(origin for word, found in bad if word in _MATTERS for origin in found)
    blamed = blamed or [origin for origin in origins if origin.lost]
    return blamed[0] if blamed else None


def _others(first: set[Origin], behind: list[Origin], of_loss: list[Origin]) -> list[Origin]:
    """Return what has made bad values of its own, and neither is behind *first* nor comes out of it; the roots alone.

    Args:
        first: the origin that is blamed, with those that count as the same.
        behind: all that is behind bad outcomes.
        of_loss: the origins of a bad loss.
    """
    known = first | {*ancestors(first, of_forward=True)} | descendants(behind, first)
    is_of_loss = {*ancestors(of_loss)}
    found = {
        origin
        for origin in behind
        if not (origin in known or origin.is_rest or (origin.is_mask if origin in is_of_loss else origin.is_intended))
    }
    return sorted(found - descendants(found, found), key=lambda origin: origin.number)


def _judge(
    model: nn.Module, observer: OperationObserver, outcomes: Outcomes, notes: list[str], error: Exception | None
) -> NonFinite:
    """Return the answer: which origin comes first among those of the bad values that have reached anything."""
    bad: list[tuple[str, tuple[Origin, ...]]] = []
    counts: dict[str, int] = {}
    for word, tensor in outcomes:
        counts[word] = counts.get(word, 0) + 1
        size = largest(tensor)
        if size is not None and not math.isfinite(size):
            stored = observer.flow.of(tensor)
            origins = () if stored is None else stored.origins
            bad.append((word, origins or (observer.unexplained(word, tensor),)))
    for tensor in (*_around(error), *(observer.refused if error is not None else ())):
        if not math.isfinite(largest(tensor) or 0.0):
            stored = observer.flow.of(tensor)
            bad.append(("an exception", () if stored is None else stored.origins))
    behind = ancestors(origin for _, origins in bad for origin in origins)
    first = _blamed(bad, behind, observer.origins)
    if first is not None and first not in behind:
        behind = [first]
    intended = [
        origin for origin in {*behind, *observer.origins} if origin.is_intended and not origin.is_rest and origin is not first
    ]
    alike = set() if first is None else {first, *(each for each in (*behind, *observer.origins) if _is_alike(each, first))}
    out_of_first = alike | descendants((origin for _, origins in bad for origin in origins), alike)
    through = [(word, origins) for word, origins in bad if out_of_first & {*origins}]
    reached = []
    for word in dict.fromkeys(word for word, _ in bad) if first is not None else ():
        number, every = (sum(word == each for each, _ in found) for found in (through, bad))
        if word == "gradients" and number < every:
            of_them = f"{number_text(every - number)} of them " if number else ""
            reached.append(f"{every} of {counts[word]} {word} ({of_them}by another origin)")
        elif number:
            reached.append(f"{number} of {counts[word]} {word}" if word in ("gradients", "parameters", "buffers") else word)
    if first is not None and first.lost:
        reached.append(first.lost)
    of_loss = [origin for word, origins in bad if word == "the loss" for origin in origins]
    called = {_frames(origin) for origin in behind} - {()}
    if first is not None and first.cause is not None and first.left_out and {word for word, _ in through} <= _OF_BACKWARD:
        sentence = f"{first.cause.sentence}; {not_left_out(first.left_out)}"
        first.cause = first.cause._replace(sentence=sentence, advice=safe_choice(first.left_out))
    return NonFinite(
        class_of(model).__name__,
        first,
        reached,
        [origin for origin in behind if origin in out_of_first and origin not in alike],
        _others(alike, behind, of_loss) if first is not None else [],
        counts.get("gradients", 0 if "a gradient of the input" in counts else None),
        [origin for origin in observer.origins if not (origin in behind or origin.is_intended or _frames(origin) in called)],
        sorted(intended, key=lambda origin: origin.number),
        list(observer.largest.values()),
        observer.operations,
        notes,
        error,
        first_that_works(first.reproductions, first.kind) if first is not None else "",
        "" if observer.failure is None else f"sonde failed in the middle: {type(observer.failure).__name__}: {observer.failure}",
    )
