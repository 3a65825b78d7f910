"""The model, batch, loss and optimizer of a pre-flight: run on copies, each time from the same random state."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sonde.diagnosis.distance import as_numbers, distance_between, readable
from sonde.diagnosis.preflight.loss_calls import LossCall, LossCalls, is_whole
from sonde.engine import (
    Event,
    LayerAxes,
    Trial,
    as_arguments,
    check_loss_fn,
    check_model,
    check_numbers,
    class_of,
    communicates,
    graph_nodes,
    is_floating,
    observe,
    parameters,
    unwrap,
    walk,
)
from sonde.errors import ArgumentError, ObservationWarning
from sonde.keep import Layer, Tally, annotate, first_measurable
from sonde.stats import unreadable
from sonde.words import shape_text, short


class UnjudgedError(Exception):
    """A check cannot be made; the message says why."""


@dataclass
class FirstStep:
    """What one forward and backward pass has shown.

    Attributes:
        loss: None without a loss.
        calls: of torch's loss functions.
        pairs, given_logs: see :class:`LossCalls`.
        layers: the numbers of each layer, in order of execution.
        limits: of each output, by layer, its largest magnitude and the largest number of its type.
        gradients: of each trainable parameter the norm of its gradient; None without one.
        largest: of each parameter's gradient the largest magnitude.
        called: names of the modules that ran.
        memory: addresses of the tensors that the model returned.
        summed: of how many samples the loss function adds up elements, without a division by their number; 0 where it does not.
        raised: what the loss makes worse, in words: the log-probabilities, or the differences, that it reads; ``""`` for nothing.
        over_samples: shape of what a softmax of the loss, over axis 0, is given; empty where there is none.
        alike: weights whose rows are equal, and get equal gradients.
        foreign: shapes of tensors that get a gradient in the model and are none of its parameters.
        last: the layer with parameters of its own whose output is the model's; ``""`` without one.
        error: what the model, the loss or the backward pass raised.
    """

    loss: float | None = None
    calls: list[LossCall] = field(default_factory=list)
    pairs: list[tuple[str, int, int]] = field(default_factory=list)
    given_logs: list[tuple[str, str]] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    limits: dict[str, tuple[float, torch.dtype]] = field(default_factory=dict)
    gradients: dict[str, float | None] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    memory: set[int] = field(default_factory=set)
    summed: int = 0
    raised: str = ""
    over_samples: tuple[int, ...] = ()
    alike: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    last: str = ""
    error: Exception | None = None


class Subject:
    """What is checked.

    Attributes:
        model, batch, loss_fn, optimizer: as they were given.
        steps: of a training on the one batch.
        notes: what the reader must know of how the checks ran.
        curve: the losses of the first training on the one batch.
        last_calls: the calls of loss functions at the end of the last training on the one batch.
        learnt: the losses of a training that learnt the batch, and a function that makes such a training again; None as yet.
        scheduled: the learning rate that the optimizer is given in place of one that a schedule has lowered, in words; ``""``
            where none has.

    Args:
        seconds: the time that the trainings may take together.

    Raises:
        ModelError: the model is none.
        ArgumentError: an argument cannot be used, or the model has no numbers.
    """

    def __init__(self, model: nn.Module, batch: Any, loss_fn: Any, optimizer: Any, steps: int, seconds: float) -> None:
        check_model(model)
        _check_arguments(loss_fn, optimizer, seconds)
        check_numbers(model)
        self.model, self.batch, self.loss_fn, self.optimizer, self.steps = model, batch, loss_fn, optimizer, steps
        self.notes: list[str] = []
        self.curve: list[float] = []
        self.learnt: tuple[list[float], Callable[..., list[float]]] | None = None
        self.scheduled = ""
        self.last_calls: list[LossCall] = []
        self._deadline = time.monotonic() + seconds
        self._communicates = bool(communicates(model))

    @property
    def time_left(self) -> float:
        """Seconds until no further training step is taken; of a model on several ranks, whose clocks differ, no end."""
        return math.inf if self._communicates else self._deadline - time.monotonic()

    @property
    def name(self) -> str:
        """The class of the model."""
        return class_of(unwrap(self.model)).__name__

    @contextlib.contextmanager
    def trial(self) -> Iterator[Trial]:
        """Yield a fresh trial. Inside, warnings are not shown; what could not be copied becomes a note."""
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                with Trial.of(self.model, *as_arguments(self.batch), self.loss_fn, self.optimizer) as trial:
                    yield trial
            finally:
                self._note(seen)

    def make_optimizer(self, trial: Trial) -> torch.optim.Optimizer:
        """Return the optimizer of a *trial*; where a schedule has lowered a learning rate, with the one it is made from."""
        made = trial.make_optimizer(self.optimizer)
        for group in made.param_groups:
            now: Any = group.get("lr")
            if now is None:
                continue
            whole = max(float(group.get(name) or 0.0) for name in ("lr", "initial_lr", "max_lr"))
            if float(now) < whole:
                self.scheduled = f"{short(whole)} of its schedule ({short(float(now))} now)"
                group["lr"] = torch.full_like(now, whole) if isinstance(now, Tensor) else whole
        return made

    def _note(self, seen: list[warnings.WarningMessage]) -> None:
        for each in seen:
            if issubclass(each.category, ObservationWarning) and "is compiled: no Python" not in str(each.message):
                self.notes += [text for text in [str(each.message)] if text not in self.notes]

    @property
    def ran(self) -> FirstStep:
        """The first step.

        Raises:
            UnjudgedError: it raised an exception.
        """
        if self.first.error is not None:
            raise UnjudgedError("the first step raised an exception")
        return self.first

    @property
    def loss(self) -> float:
        """The loss of the first step.

        Raises:
            UnjudgedError: there is none, or the step raised an exception.
        """
        found = self.ran.loss
        if found is None:
            raise UnjudgedError("needs a loss: give loss_fn, a function from the model's output to a scalar")
        return found

    @property
    def finite_loss(self) -> float:
        """The loss of the first step.

        Raises:
            UnjudgedError: there is none, or it is NaN or infinite.
        """
        if not math.isfinite(self.loss):
            raise UnjudgedError("the loss is not finite")
        return self.loss

    @cached_property
    def drawn(self) -> str:
        """That the loss function returns another loss of the same output at its next call, in words; ``""`` where it does not."""
        with self.trial() as trial, contextlib.suppress(Exception):
            output = trial.output()
            losses = [float(each.detach()) for each in map(trial.loss_of, [output, output]) if each is not None]
            if trial.loss_fn is not None and len(set(losses)) > 1 and all(map(math.isfinite, losses)):
                what = "it draws random numbers, or changes from call to call"
                return f"of one output it returns {losses[0]:.6g}, and then {losses[1]:.6g}: {what}"
        return ""

    @cached_property
    def apart(self) -> tuple[float, float]:
        """How far the outputs of two forwards from one random state are apart, and by how much rounding may move them."""
        if not (first := self.outputs()):
            raise UnjudgedError("the output holds no floating-point tensor")
        pairs = zip(first, self.outputs(), strict=False)
        return max(((distance_of(one, other), rounding_of(one)) for one, other in pairs), default=(0.0, 0.0))

    def expect_repeats(self) -> None:
        """Raise an error where outputs change by themselves, so that it is not known what another batch changes."""
        far, rounding = self.apart
        if far > rounding:
            raise UnjudgedError("two forwards from one random state differ: what another batch changes is not known")

    @cached_property
    def first(self) -> FirstStep:
        """One forward and backward pass, observed."""
        found, tallies, places = FirstStep(), dict[str, Tally](), dict[str, int]()

        def note(event: Event) -> None:
            found.called.add(event.name)
            floating = first_measurable(event.leaves)
            if floating is None or event.phase == "recompute":
                return
            kind: Any = event.type
            tally = tallies.setdefault(event.name, Tally(Layer(event.name, kind)))
            if event.grad:
                tally.add_gradient(floating)
                return
            tally.layer.calls += 1
            tally.add_output(floating.detach(), LayerAxes.of(floating, event.module), event.call)
            places[event.name] = floating.untyped_storage().data_ptr()
            largest = float(readable(floating.detach()).abs().max()) if floating.numel() else 0.0
            if not largest < found.limits.get(event.name, (0.0, floating.dtype))[0]:
                found.limits[event.name] = largest, floating.dtype

        calls = LossCalls()
        with self.trial() as trial:
            try:
                with observe(trial.model, note, ports=("output", "grad_output")):
                    with calls:
                        output = trial.output()
                        found.memory = {tensor.untyped_storage().data_ptr() for _, tensor in walk(output) if is_floating(tensor)}
                        found.last = _last_layer(trial, places, found.memory)
                        found.foreign = _foreign(trial, output) if trial.is_free else []
                        calls.in_loss = trial.loss_fn is not None
                        loss = trial.loss_of(output)
                    if loss is not None:
                        found.loss = float(loss.detach())
                        found.over_samples = _over_samples(loss, trial)
                        if loss.requires_grad:
                            torch.autograd.backward(loss)
            except ArgumentError:
                raise
            except Exception as error:
                found.error = error
            if loss_is_sent(found):
                for name, parameter, _ in parameters(trial.model):
                    if parameter.requires_grad:
                        gradient = parameter.grad
                        found.gradients[name] = None if gradient is None else norm_of(gradient)
                        found.largest[name] = 0.0 if gradient is None or not gradient.numel() else largest_of(gradient)
                        if gradient is not None and found.largest[name] > 0 and _are_alike(parameter) and _are_alike(gradient):
                            found.alike.append(name)
        self._keep(calls, found)
        found.layers = [tally.finish() for tally in tallies.values()]
        annotate([layer for layer in found.layers if layer.calls])
        return found

    def _keep(self, calls: LossCalls, found: FirstStep) -> None:
        """Put into *found* what the *calls* have shown, and let their graphs go."""
        found.calls, found.pairs, found.given_logs = calls.found, calls.pairs, calls.given_logs
        for call in found.calls:
            call.let_go()
        found.summed = self._summed(calls)
        if calls.lowers_likelihood:
            found.raised = "all log-probabilities that it reads smaller"
        elif calls.raises_errors:
            found.raised = "all differences between outputs and what is given larger"

    @cached_property
    def awake_later(self) -> set[str]:
        """The parameters whose gradient is zero at first, and is not where the others are changed, or these cannot be."""
        first = self.first.gradients
        if not loss_is_sent(self.first) or not any(size == 0 for size in first.values()):
            return set()
        with self.trial() as trial:
            with torch.no_grad():
                for name, parameter, _ in parameters(trial.model) if trial.is_free else ():
                    if first.get(name):
                        parameter.add_(torch.randn_like(parameter), alpha=0.1)
            loss = trial.loss()
            if loss is not None and loss.requires_grad:
                torch.autograd.backward(loss)
            found = {name: parameter.grad for name, parameter, _ in parameters(trial.model) if first.get(name) == 0}
            if not trial.is_free:
                return set(found)
        return {name for name, gradient in found.items() if gradient is not None and largest_of(gradient) > 0}

    def layers_of(self, passes: int) -> dict[str, Layer]:
        """Return the numbers of the outputs of each layer over so many forwards, each with other random numbers."""
        tallies: dict[str, Tally] = {}

        def note(event: Event) -> None:
            floating = first_measurable(event.leaves)
            if floating is not None and event.phase != "recompute":
                kind: Any = event.type
                tally = tallies.setdefault(event.name, Tally(Layer(event.name, kind)))
                tally.layer.calls += 1
                tally.add_output(floating.detach(), LayerAxes.of(floating, event.module), event.call)

        with self.trial() as trial, torch.no_grad(), observe(trial.model, note, ports=("output",)):
            for number in range(passes):
                torch.manual_seed(number)
                trial.output()
        layers = {name: tally.finish() for name, tally in tallies.items()}
        annotate([*layers.values()])
        return layers

    def _summed(self, calls: LossCalls) -> int:
        """Return of how many samples the loss function adds up elements, by hand or not."""
        samples = {tensor.shape[0] for _, tensor in walk(as_arguments(self.batch)) if tensor.dim()}
        hand = [count for count, result in calls.sums if count > 1 and count in samples and is_whole(result.grad)]
        return max([*hand, *(call.summed for call in calls.found)], default=0)

    def outputs(self, change: Callable[[Trial], None] | None = None) -> list[Tensor]:
        """Return the floating-point tensors of the output of a fresh copy, after *change*."""
        with self.trial() as trial, torch.no_grad():
            if change is not None:
                change(trial)
            return [tensor.detach().clone() for _, tensor in walk(trial.output()) if is_floating(tensor)]

    def loss_after(self, change: Callable[[Trial], None]) -> float:
        """Return the loss of a fresh copy, after *change*."""
        with self.trial() as trial:
            with torch.no_grad():
                change(trial)
            loss = trial.loss()  # with gradients, which a loss may have a term of
            return math.nan if loss is None else float(loss.detach())


def take_gradient(trial: Trial) -> None:
    """Take the gradient of the loss of a *trial*; what is drawn next is what was drawn for it."""
    with torch.enable_grad():
        state = torch.get_rng_state()
        loss = trial.loss()
        assert loss is not None
        torch.autograd.backward(loss)
        torch.set_rng_state(state)


def _last_layer(trial: Trial, places: Mapping[str, int], memory: set[int]) -> str:
    """Return the last layer with parameters of its own if its output, at one of *places*, is the model's; else ``""``."""
    held = {name.rpartition(".")[0] for name, _, _ in parameters(trial.model)}
    last = next((name for name in list(places)[::-1] if name in held), "")
    return last if places.get(last) in memory else ""


def _over_samples(loss: Tensor, trial: Trial) -> tuple[int, ...]:
    """Return the shape of what a softmax near the *loss* is given, that runs over the samples; empty where none does."""
    lengths = {tensor.shape[0] for _, tensor in walk((trial.args, trial.kwargs)) if tensor.dim()}
    for node in [] if loss.grad_fn is None else graph_nodes.nodes_before(loss.grad_fn, _NEAR):
        shape, name = graph_nodes.shape_of(node), graph_nodes.operation_of(node)
        rows = next(iter(graph_nodes.sources_of(node)), node) if name == "Log" else node  # by hand: of what a softmax has made
        is_softmax = {name, graph_nodes.operation_of(rows)} in ({"LogSoftmax"}, {"Log", "Softmax"})
        is_matrix = len(shape) == 2 and shape[0] != shape[1] and min(shape) > 1 and shape[0] in lengths
        if is_softmax and is_matrix and graph_nodes.axis_of(rows) == 0:
            return shape
    return ()


_NEAR = 60  # nodes of a graph, among which the loss function is


def _foreign(trial: Trial, output: Any) -> list[str]:
    """Return the shapes of leaves of the graph behind *output* that are no parameters of the model, nor given or views of that."""
    own = {id(held) for held in trial.model.parameters()} | {id(held) for _, held in walk((trial.args, trial.kwargs))}
    made = [tensor.grad_fn for _, tensor in walk(output) if tensor.grad_fn is not None]
    given = {held.untyped_storage().data_ptr() for _, held in walk((trial.args, trial.kwargs)) if held.layout is torch.strided}
    leaves = map(graph_nodes.leaf_of, dict.fromkeys(node for each in made for node in graph_nodes.nodes_before(each)))
    others = [leaf for leaf in leaves if leaf is not None and id(leaf) not in own]
    is_view = [leaf.layout is torch.strided and leaf.untyped_storage().data_ptr() in given for leaf in others]
    return [shape_text(leaf.shape) for leaf, is_given in zip(others, is_view, strict=True) if not is_given]


def _are_alike(rows: Tensor) -> bool:
    """Return whether the rows of a matrix, or the filters of a convolution, are equal."""
    if rows.dim() < 2 or len(rows) < 2 or rows.layout is not torch.strided or unreadable(rows):
        return False
    off, largest = (rows - rows[:1]).abs().max(), rows.abs().max()
    return bool(off <= rounding_of(rows) ** 2 * _ROUNDINGS * largest)


_ROUNDINGS = 64  # of a sum over samples


def loss_is_sent(found: FirstStep) -> bool:
    """Return whether the first step has come to its end with a loss."""
    return found.error is None and found.loss is not None


def norm_of(gradient: Tensor) -> float:
    """Return the Euclidean norm, computed in float64."""
    dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
    return float(torch.linalg.vector_norm(dense.detach().to(torch.complex128 if dense.is_complex() else torch.float64)))


def largest_of(gradient: Tensor) -> float:
    """Return the largest magnitude."""
    dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
    return float(dense.detach().abs().max())


def distance_of(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, as a share of the root mean square of *one*; infinite for other shapes."""
    farthest = distance_between(one, other).farthest
    one = readable(one)
    size = 0.0 if one.is_meta else float(as_numbers(one).norm()) / math.sqrt(max(one.numel(), 1))
    return 0.0 if farthest == 0 else farthest / size if size > 0 else math.inf


def rounding_of(tensor: Tensor) -> float:
    """Return the relative distance that rounding explains: the root of the type's eps."""
    return math.sqrt(torch.finfo(tensor.dtype).eps)


def check_count(name: str, given: Any, what: str) -> None:
    """Raise unless the argument *name* is a whole number above 0; the message says *what* to give."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ArgumentError(f"{name}={given!r}: give {what}, 1 or more")


def _check_arguments(loss_fn: Any, optimizer: Any, seconds: Any) -> None:
    """Raise where an argument cannot be used that says how a model is trained."""
    check_loss_fn(loss_fn)
    if optimizer is not None and not callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
        raise ArgumentError(
            f"optimizer={optimizer!r}: give an optimizer, or a function from a list of parameters to one, as "
            "lambda parameters: torch.optim.AdamW(parameters, lr=3e-4)"
        )
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ArgumentError(f"seconds={seconds!r}: give a time above 0")
