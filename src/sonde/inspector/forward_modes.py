"""Notice a forgotten ``model.train()``, by logged steps in evaluation mode, a forgotten ``model.eval()``, and other inputs then."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import nn

from sonde import rules
from sonde.engine import is_floating, raise_if_foreign, walk
from sonde.rules import Chosen, Finding
from sonde.stats import HostCopy
from sonde.warn import warn_user
from sonde.words import short

_EVALUATES = (
    "call model.eval() before each evaluation, and model.train() after it: these losses are of a network with units dropped, or of "
    "statistics of the validation batches, which also become running ones; leave it where that is meant, as for Monte Carlo dropout"
)
_PREPARES = (
    "prepare the inputs of an evaluation as those of the training: the same scaling, with the means and deviations of the training "
    "data; look at the range of images (0 to 255, or 0 to 1)"
)
_OF_ANOTHER = "validation losses come without a pass of the whole model: of an average of its weights, a copy, or parts of it"
_FOLLOWS = (
    "evaluate the model itself as well; an average of weights with a decay of 0.9999 follows in some 10,000 steps: take a smaller "
    "decay, or one that begins small; look whether a copy is brought up to date"
)
_ENOUGH = 3  # evaluations in evaluation mode
_GIVEN, _MOST_GIVEN = 2, 4  # passes of each kind whose inputs are compared, at least and at most
_LOSSES = 12  # validation losses, behind which passes are no more looked at
_SKEWED, _AS_MUCH = 0.5, 0.25  # a skewness that is one, and by how much two are as large
_OFTEN, _APART = 5.0, 3.0  # times as large; deviations between means


class ForwardModes:
    """The modes of the forwards of one model: those of the step that runs, and which logged steps had none in training mode."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._modes: set[bool] = set()
        self._first: list[int] = []  # the first two such steps
        self._missed = 0
        self._last = (0, 0)  # epoch and step of the last one

    def add(self, *, training: bool) -> None:
        """Note the mode of a forward with gradients."""
        self._modes.add(training)

    def end_step(self, epoch: int, step: int, *, logged: bool, training: bool) -> None:
        """End *step* of *epoch*; the model is in *training* mode now. Warn at the second logged step without a training forward."""
        if logged and self._modes == {False} and not training:
            self._missed += 1
            self._last = epoch, step
            if self._missed <= 2:
                self._first.append(step)
            if self._missed == 2:
                warn_user(
                    f"the steps {self._first[0]:,} and {step:,} had no forward pass in training mode: is the model in eval()? "
                    "Outputs and their gradients are recorded in training passes; evaluation=True records the others, too"
                )
        self._modes.clear()

    def finding(self, logged: int, model: nn.Module) -> Finding | None:
        """Return the finding about such steps of a *model* among *logged* ones, if there were enough; a note if it is frozen."""
        found = rules.judge("no_training_forward", self._missed, logged)
        if found is None:
            return None
        found = replace(found, severity="note") if _rests(model) else found
        since = f" The first without: step {self._first[0]:,}." if self._missed < logged else ""
        message = f"{self._model}: " * bool(self._model) + found.message + since
        return replace(found.at("", *self._last, message), first_step=self._first[0])


class EvaluationModes:
    """The passes that validation losses come from, those of one model since its last step, from the first loss on: modes, inputs.

    Args:
        chosen: the rules that are applied.
        model: the name of the model in messages.
    """

    def __init__(self, chosen: Chosen, model: str) -> None:
        self._chosen, self._model = chosen, model
        self._acting: dict[str, nn.Module] | None = None  # what works otherwise in training than in evaluation, by its name
        self._passes: list[tuple[int, str]] = []  # with the step that comes next: what acts as in training, or ""
        self._waiting: tuple[str, int, int] | None = None  # of a loss: what acted, epoch and step
        self._times = [0, 0]  # evaluations in evaluation mode, and in training mode
        self._found: tuple[Finding, ...] = ()
        self._given: dict[bool, list[tuple[HostCopy, int, int]]] = {True: [], False: []}  # sizes of inputs, by what trains; moments
        self._seen = {True: 0, False: 0}  # passes whose inputs were looked at
        self._differing: tuple[Finding, ...] = ()
        self._listens = False  # further passes are told
        self._losses = self._alone = 0  # validation losses, and those in a row without a pass of the model
        self._since = -1  # the step in front of the first validation loss

    def begin_pass(self, model: nn.Module, epoch: int, step: int, given: tuple[Any, Any]) -> None:
        """Note the mode of a pass of *model*, and what it is *given*, that begins before the *step* of an *epoch* ends."""
        trains = model.training and torch.is_grad_enabled()
        if self._seen[trains] < _MOST_GIVEN and (trains or not model.training):
            self._seen[trains] += 1
            self._read_inputs(given, epoch, step, trains=trains)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting[2] == step - 1:  # no step has come since, of which the pass was
            self._count(*waiting)
        acts = (f"{name} ({type(each).__name__})" for name, each in (self._acting or {}).items() if each.training)
        self._passes = [*[each for each in self._passes if each[0] == step], (step, next(acts, "") if model.training else "")]

    def take_loss(self, model: nn.Module, epoch: int, step: int) -> bool:
        """Note that a validation loss was given behind *step*; return whether further passes matter."""
        self._since = step if self._since < 0 else self._since
        if self._acting is None:
            self._acting = {name: each for name, each in model.named_modules() if acts_by_mode(each)}
        passes, self._passes = [acts for at, acts in self._passes if at == step + 1], []
        if passes and all(passes):
            self._waiting = passes[0], epoch, step
        self._times[0] += bool(passes) and not all(passes)
        self._alone = 0 if passes or not (self._seen[True] and self._listens) else self._alone + 1
        self._losses += 1
        if self._alone == _ENOUGH and not self._differing:
            self._differ(_OF_ANOTHER, _FOLLOWS, epoch, step, {"given": 0.0, "trained": float(_ENOUGH)})
        is_open = bool(self._acting) and not self._found and self._times[0] < _ENOUGH
        waits = not self._differing and min(self._seen.values()) < _MOST_GIVEN and self._losses < _LOSSES
        self._listens = (is_open or waits) and self._chosen.is_on("eval_mode")
        return self._listens

    def _read_inputs(self, given: tuple[Any, Any], epoch: int, step: int, *, trains: bool) -> None:
        """Keep the mean, the size and the mean of the cubes of the first input of numbers."""
        try:
            held = next((each for _, each in walk(list(given[0])) if is_floating(each) and each.dim() > 1), None)
            if held is not None and not held.requires_grad and held.layout is torch.strided:
                numbers = held.detach().double()
                copy = HostCopy.of([torch.stack([numbers.mean(), numbers.square().mean().sqrt(), numbers.pow(3).mean()])])
                self._given[trains].append((copy, epoch, step))
        except Exception as error:
            raise_if_foreign(error)
            self._given[trains] = []

    def _judge_inputs(self) -> None:
        """Judge whether what goes in has another scale, or another mean, in evaluation than in training, or is as if inverted."""
        arrived = {trains: [each for each in held if each[0].has_arrived()] for trains, held in self._given.items()}
        if min(map(len, arrived.values())) < _GIVEN:
            return
        known = {trains: [copy.unpack()[0].tolist() for copy, *_ in held] for trains, held in arrived.items()}
        given, trained_on = ([median(column) for column in zip(*known[trains], strict=True)] for trains in (False, True))
        (mean, size, _), (own, trained, _) = given, trained_on
        deviation = math.sqrt(max(trained**2 - own**2, 0.0))
        times = size / trained if trained > 0 else math.nan
        is_apart = deviation > 0 and abs(mean - own) >= _APART * deviation
        skews = _skewness(*given), _skewness(*trained_on)
        is_turned = (
            skews[0] * skews[1] < 0 and abs(sum(skews)) <= _AS_MUCH * min(map(abs, skews)) and min(map(abs, skews)) >= _SKEWED
        )
        if not (is_apart or is_turned or times >= _OFTEN or times <= 1 / _OFTEN):
            return
        what = (
            f"has a mean of {short(mean)}, and of {short(own)} in training"
            if is_apart
            else f"is as if inverted: its skewness is {short(skews[0])}, and {short(skews[1])} in training"
            if is_turned
            else f"is {short(times)} x as large as in training"
        )
        _, epoch, step = arrived[False][_GIVEN - 1]
        self._differ(f"in evaluation what goes in {what}", _PREPARES, epoch, step, {"given": size, "trained": trained})

    def _differ(self, said: str, advice: str, epoch: int, step: int, evidence: dict[str, float]) -> None:
        """Keep the finding that validation losses are of other inputs than the training's, or of another model."""
        found = self._chosen.judge("eval_mode", 0, 0, 2.0)
        if found is not None:
            message = f"{self._model}: " * bool(self._model) + said
            told = replace(found.at("", epoch, step, message), advice=advice, evidence=evidence, first_step=self._since)
            self._differing = (told,)

    def _count(self, acts: str, epoch: int, step: int) -> None:
        self._times[1] += 1
        found = self._chosen.judge("eval_mode", self._times[0], 0, float(self._times[1]), what=acts)
        if found is not None:
            message = f"{self._model}: " * bool(self._model) + found.message
            epoch, step = next(((each.epoch, each.step) for each in self._found), (epoch, step))  # one finding, with more of them
            self._found = (replace(found.at("", epoch, step, message), advice=_EVALUATES),)

    def found(self) -> tuple[Finding, ...]:
        """Return the findings that validation losses come from passes in training mode, or from other inputs."""
        if not self._differing:
            self._judge_inputs()
        return (*self._found, *self._differing)


def _skewness(mean: float, size: float, cubes: float) -> float:
    """Return the skewness of numbers from their *mean*, root mean square and mean of *cubes*; 0 where they do not vary."""
    variance = size**2 - mean**2
    return (cubes - 3 * mean * size**2 + 2 * mean**3) / variance**1.5 if variance > 0 else 0.0


def _rests(model: nn.Module) -> bool:
    """Return whether most of a *model* is frozen, and so is all of it that works otherwise in training, as below a new head."""
    held = list(model.parameters())
    trained = sum(each.numel() for each in held if each.requires_grad)
    acting = [each for module in model.modules() if acts_by_mode(module) for each in module.parameters(recurse=False)]
    return 2 * trained < sum(each.numel() for each in held) and not any(each.requires_grad for each in acting)


def acts_by_mode(module: nn.Module) -> bool:
    """Return whether a module works otherwise in training: a dropout that drops anything, a normalisation with statistics."""
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return float(module.dropout) > 0
    rate = getattr(module, "p", 0) if "Dropout" in type(module).__name__ else 0
    return (isinstance(rate, float) and rate > 0) or getattr(module, "running_mean", None) is not None
