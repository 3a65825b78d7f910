"""Apply the rules about losses and norms to the values of a run, one after the other, in bounded memory."""

from __future__ import annotations

import itertools
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from statistics import fmean, median, pvariance

import numpy as np

from sonde.rules.chosen import Chosen
from sonde.rules.finding import Finding
from sonde.rules.loop import (
    BY_HEART,
    FAR_OFF,
    HELD_OUT,
    LOSS_VALUES,
    METRIC_FEW,
    METRIC_LONG,
    METRIC_MEAN,
    METRIC_STEPS,
    METRIC_VALUES,
    NEAR_CHANCE,
    NEGATED_VALUES,
    RESTED,
    SCORES_END,
    SLOW_RATE,
    SMOOTH,
    SPIKE_FEW,
    SPIKE_VALUES,
    STANDS,
    STUCK,
    STUCK_FAR,
    STUCK_LONG,
    STUCK_STEPS,
    STUCK_VALUES,
    UNBOUNDED_VALUES,
)  # fmt: skip
from sonde.rules.updates import LOW_RATE, WARMED
from sonde.rules.window import Held
from sonde.words import percent, short

_GRADIENTS = ("grad_norm", "grad_norm_raw")
_LOSSES = ("loss", "val_loss")
_JUDGED = (*_LOSSES, *_GRADIENTS, "update_norm")
_RISING_NAMES = frozenset(
    (
        "acc", "accuracy", "reward", "rewards", "return", "returns", "score", "f1", "auc", "auroc", "iou", "miou", "dice", "recall",
        "precision", "psnr", "ssim", "bleu", "rouge", "map", "top1", "top5", "win", "wins", "success",
    )
)  # fmt: skip
_REWARD_NAMES = frozenset(("reward", "rewards", "return", "returns", "success", "win", "wins"))
_QUANTITIES = ("", "loss", "gradient", "update")  # in the order of a step
_KEPT, _START, _LEAST_SPREAD = 128, 10, 0.02
_NO_GRADIENT = 1e-8  # a norm of gradients below which they are as good as none
_FELL = 0.9  # of its first value, to which a validation loss comes down that follows the training
_DIFFERS = (
    "nothing recorded says why: look first at what differs in evaluation (running statistics, a mode, how its data are made and "
    "its classes numbered; weights that are an average, or old), and what the training can learn in place of the task (labels of "
    "one class, or of other samples; targets that are in the inputs, or made by what is trained; masks or edges that are wrong)"
)
_NEARLY_A_GUESS = 0.5  # of the cross-entropy of a guess, from which on a training loss falls as by heart
_NOT_LEARNT_EITHER = (
    "nothing recorded says why: look first whether labels belong to their samples (two shuffles, a sort of one alone, an index, "
    "wrong labels) and whether the inputs tell them; then at what differs in evaluation (a mode, how its data are made)"
)
_FELL_BEFORE = 0.8  # of the first training loss, a first validation loss that says that much has been learnt
_JUMP, _JUMP_OF_NORM = 3.0, 10.0  # times the median, below which nothing is a spike, and no norm is
_AT_ONCE = 3.0  # times as far above all before as needs few values, from where on the next ones of a loss are not waited for
_CHANGES = 33  # of a loss, that tell its scatter
_MOST = 256  # means that stand for a whole history
_NOT_LEARNT = (
    "look in this order at the sign of the loss of the policy and of the advantages, at the weight of a bonus for entropy beside "
    "it, at returns (the discount, ends of episodes, which action and reward belong together), at whether target networks are "
    "updated, and at the learning rate"
)
_NEVER_ABOVE = (
    "look at how it is counted (a threshold, a column, an index), and whether the outputs are all of what is most frequent: weigh "
    "what is rare (pos_weight, class weights), or draw it more often"
)
_OF_TRAINING = {"acc", "accuracy", "train", "training"}  # words of a name, if it has no other
_OF_HELD_OUT = {"acc", "accuracy", "val", "valid", "validation", "test", "eval"}
_MISCOUNTED, _HALF_OFF = 0.3, 0.5  # of an accuracy, too low; of the loss of a guess, by which the first one may be off
_COUNTED = (
    "the accuracy is counted wrongly: look at the axis of its argmax, at shapes (N, 1) beside (N,), at what it is divided by, and "
    "at which labels it is given"
)
_EVEN = 0.02  # of ln(2), by which a guess of two may be off
_GUESSED = 0.9  # of the cross-entropy of a guess, from which on nothing has been learnt, before this training either
_MANY_MEDIANS = 60  # values, whose medians of five are so many that the smallest and the largest lie far apart by chance
_CONVERGED = 0.01  # loss, of the first ones, from which on there is little left to learn
_LEARNT = 0.7  # loss, of the first ones, below which a network is on its way to its targets
_SLOWLY = 0.8  # loss, of the first ones, below which it falls at whatever rate
_WORSE = 1.2  # the least of three losses, of the median of five before: what was done between them did harm
_LEVEL = 0.1  # of the fall from the first third to the last, what one that comes to an end falls within the last one
_PASSED = 2  # evaluations in a row after which a training no longer overfits
_OFTEN = 10  # steps whose gradients are compared with those of their backward passes
_ADDED = (
    "look at what is done to gradients between backward() and step(): noise that is added (its norm is its deviation times the "
    "root of the number of parameters), a factor, a sum over ranks"
)
_UNMOVED = 3e-4  # of the norm of all weights, what a usual step moves them by at least
_CLIPPED, _MOSTLY = 100.0, 0.9  # times as large as what is left at the step gradients were, and the share of steps
_UNCLIPPED = (
    "raise the limit of the norm first (0.5 to 10 is usual), and under a GradScaler clip behind scaler.unscale_(optimizer); else "
    "look at what divides gradients between backward() and step()"
)
_CREPT = 0.05  # of the size of all weights, what steps move them by that hardly learn
_CREEPS = 0.01  # of a loss, by which it falls at least in each third
_FASTER = "raise the learning rate, tenfold at first, as long as the loss falls faster by that; or train for longer"
_AT_FIRST = 30.0  # times the first losses, up to which the very first one may be that of a network that knows nothing
_FAR_ABOVE = 4.0  # times what logarithms of a loss scatter, by which its very first value is far above the next
_FAR_DOWN = 0.6  # of its very first value, to which a loss comes that has learnt in its first steps
_NOISE = 3.0  # times what values of a loss scatter around those next to them, its first ones do at most
_SWINGS, _SWING, _RISES = 4, 20, 3  # lows in a row of a rate, the most steps from one to the next, and those of a rise
_SHORT_BATCH = 0.5  # of the usual one
_ONE_LOSS = 1e-5  # of a loss, by which it differs from step to step by rounding alone
_CANCELS = (
    "look in this order at what the loss compares (a reference that is the model itself, so that it cancels), at what cuts it off "
    "(a clamp, a margin, a mask of nothing), and at what has taken it off the outputs (detach(), a constant)"
)
_SURE = 4.0  # times what two thirds are apart by chance, from which on a reward has risen
_COIN = math.log(2)  # the cross-entropy of a guess of two classes
_DOWN = 40  # values behind its peak, from which on a loss that has risen comes down again
_EVALUATED = 4  # validation losses, from which on they tell that nothing is learnt
_TOLD = 1e-3  # by which what a schedule keeps may be off what was pushed: its threshold, and a type of less precision
_AFTER, _HELPED = 3, 0.9  # losses after a step, and their least one against that of the step, that say that the step was a good one

Where = Callable[[int, float], tuple[str, float] | None]
"""Which layer moved first at a step, by so many deviations."""


class ScalarFindings:
    """The findings about scalars.

    >>> from sonde.rules import Chosen, ScalarFindings
    >>> found = ScalarFindings(Chosen())
    >>> for step in range(40):
    ...     found.add("loss", 1.0 / (1 + step), epoch=0, step=step)
    >>> loss = found.loss_of("")
    >>> loss.begun, loss.has_converged, loss.is_learnt, loss.has_helped(0), loss.has_worsened(0), loss.falls(), loss.stands(0.5)
    (1.0, False, True, True, False, True, False)
    >>> list(found.findings()), list(found.of_rates(""))
    ([], [])

    Args:
        chosen: the rules that are applied.
        moved_first: names the layer that moved first.
        chance: the cross-entropy of a guess of a model, by its name; NaN if that is not known.
        share: how large the batch of a step is, as a share of the usual one.
    """

    def __init__(
        self,
        chosen: Chosen,
        moved_first: Where = lambda step, deviations: None,
        chance: Callable[[str], float] = lambda model: math.nan,
        share: Callable[[int], float] = lambda step: 1.0,
    ) -> None:
        self._chosen = chosen
        self._moved_first = moved_first
        self._chance_of = chance
        self._share_of = share
        self._nothing = _Loss(chosen)
        self._scalars: dict[str, _Scalar] = {}
        self._held_out: dict[str, _HeldOut] = {}
        self._cleared: dict[str, _Cleared] = {}
        self._metrics: dict[str, _Metric] = {}
        self._latest: dict[tuple[str, str], float] = {}  # by model the norm of all parameters, the steps that a momentum adds up
        self._rates: dict[str, list[tuple[int, float]]] = {}  # by model the last two learning rates, with their steps
        self._swings: dict[str, _Swings] = {}  # by model how its rate goes up and down
        self._moved: dict[str, list[tuple[int, float]]] = {}  # by model how far its steps have moved them, at the last two of these

    def add(self, name: str, value: float, epoch: int, step: int) -> None:
        """Look at a pushed value or a norm."""
        model, _, kind = name.rpartition("/")
        if "lr" in (kind, model.rpartition("/")[2]):
            known = self._rates.setdefault(model if kind == "lr" else model.rpartition("/")[0], [])
            _keep_two(known, step, max([value, *[rate for at, rate in known if at == step]]))  # of several groups the largest
            if kind == "lr":
                self._swings.setdefault(model, _Swings()).add(value, step)
        if kind in ("param_norm", "momentum_steps"):
            self._latest[model, kind] = value
        if kind == "update_norm" and (size := self._latest.get((model, "param_norm"), 0.0)) > 0:
            moved = self._moved.setdefault(model, [])
            last, far = moved[-1] if moved else (step - 1, 0.0)
            _keep_two(moved, step, far + value / size * (step - last))
        if _is_to_rise(kind):
            self._metrics.setdefault(name, _Metric(name, self._chosen)).add(value, epoch, step)
        if kind not in _JUDGED:
            return
        if kind == "val_loss":
            held_out = self._held_out.setdefault(name, _HeldOut(name, self._chosen))
            held_out.add(value, epoch, step, self.loss_of(model), self._chance_of(model))
            return
        if kind in _GRADIENTS:
            self._cleared.setdefault(model, _Cleared(model, self._chosen)).add(kind, value, epoch, step)
        scalar = self._scalars.get(name)
        if scalar is None:
            scalar = self._scalars[name] = _Scalar(
                name, self._chosen, self._moved_first, partial(self.loss_of, model), partial(self._chance_of, model), self._share_of
            )
        scalar.add(value, epoch, step)
        if kind == "loss" and scalar.loss is not None:
            scalar.loss.go_with(*_before(self._rates, model, step), _before(self._moved, model, step)[1])

    def loss_of(self, model: str) -> _Loss:
        """Return what is known of the training loss of a *model*, or of all: nothing where none was pushed."""
        scalar = self._scalars.get(f"{model}/loss") or self._scalars.get("loss")
        return self._nothing if scalar is None or scalar.loss is None else scalar.loss

    def of_rates(self, model: str, *, at_end: bool = False) -> Iterator[Finding]:
        """Yield what may be wrong with the learning rates of a model; whether it did harm another finding says.

        *at_end*: no values come, so that a loss which falls slowly has not fallen any further.
        """
        loss = self.loss_of(model)
        found = self._chosen.judge("rate_grown", loss.rate, loss.best_rate)
        yield from (replace(each, step=loss.steps[1], first_step=loss.grown_at) for each in (found,) if each is not None)
        found = (
            self._chosen.judge("rate_small", loss.rate, loss.largest_rate, loss.low_share, loss.warmed)
            if loss.stands(_SLOWLY) or loss.idles
            else None
        )
        found = found or self._of_clipping(model, loss) or (self._of_creeping(loss) if at_end else None)
        yield from (replace(each, step=loss.steps[1], first_step=loss.steps[0]) for each in (found,) if each is not None)
        swings = self._swings.get(model, _Swings())
        if swings.period:
            low, high = swings.ends
            found = self._chosen.judge("rate_small", 0.0, high, 1.0, math.nan)
            message = f"the learning rate goes from {high:.3g} to {low:.3g} and back every {swings.period} steps"
            yield from (replace(each, message=message, step=loss.steps[1], first_step=0) for each in (found,) if each is not None)
        for step, rate in self._rates.get(model, [])[-1:]:
            found = self._chosen.judge("momentum_large", rate, self.added_up(model))
            yield from (replace(each, step=step, first_step=0) for each in (found,) if each is not None)

    def _of_creeping(self, loss: _Loss) -> Finding | None:
        """Return the finding that steps have hardly moved the weights, while the loss still falls, by little, at one pace."""
        thirds = loss.thirds() if loss.stands(_SLOWLY) and loss.moved < _CREPT else None
        if thirds is None:
            return None
        late, middle, early, error = thirds
        least = max(2 * error, _CREEPS * early)
        if early - middle < least or middle - late < max(least, (early - middle) / 2):
            return None
        found = self._chosen.judge("rate_small", loss.rate, math.inf, 1.0, math.nan)
        way = f"{early:.4g} in the first third, {late:.4g} in the last"
        message = f"all steps together have moved the weights by {percent(loss.moved)}, and the loss still falls at one pace: {way}"
        return found and replace(found, message=message, advice=_FASTER)

    def _of_clipping(self, model: str, loss: _Loss) -> Finding | None:
        """Return the finding that clipping has left next to nothing of the gradients in most steps, which are small by that."""
        cleared, steps = self._cleared.get(model), loss.steps[1] - loss.steps[0]
        if cleared is None or not cleared.is_cut or not loss.stands(_SLOWLY) or not loss.moved < _UNMOVED * steps:
            return None
        norm, raw = cleared.norms
        found = self._chosen.judge("rate_small", loss.rate * norm / raw, math.inf, 1.0, math.nan)
        message = f"steps hardly move the weights: gradients are clipped to {short(norm)} from a norm of {short(raw)}"
        return found and replace(found, message=message, advice=_UNCLIPPED, evidence={"grad_norm": norm, "grad_norm_raw": raw})

    def added_up(self, model: str) -> float:
        """Return how many steps the momentum of a model adds up, where these are many; 0 where they are not.

        >>> from sonde.rules import Chosen, ScalarFindings
        >>> ScalarFindings(Chosen()).added_up("")
        0.0
        """
        return self._latest.get((model, "momentum_steps"), 0.0)

    def clipped(self, model: str) -> tuple[float, float]:
        """Return the last gradient norm of a model, and that before clipping; NaN where they are not known.

        >>> from sonde.rules import Chosen, ScalarFindings
        >>> ScalarFindings(Chosen()).clipped("")
        (nan, nan)
        """
        known = self._cleared.get(model)
        return (math.nan, math.nan) if known is None else known.norms

    def is_clipped(self, model: str) -> bool:
        """Return whether at the last step of a model next to nothing was left of its gradients.

        >>> from sonde.rules import Chosen, ScalarFindings
        >>> ScalarFindings(Chosen()).is_clipped("")
        False
        """
        return model in self._cleared and self._cleared[model].is_clipped

    def is_by_heart(self, model: str) -> bool:
        """Return whether the last validation loss of a model is of the size of its first losses, and the training loss a hundredth.

        >>> from sonde.rules import Chosen, ScalarFindings
        >>> ScalarFindings(Chosen()).is_by_heart("")
        False
        """
        loss, known = self.loss_of(model), self._held_out.get(f"{model}/val_loss".lstrip("/")) or self._held_out.get("val_loss")
        return known is not None and known.last >= HELD_OUT * loss.begun > 0 and loss.smooth <= BY_HEART * loss.begun

    def goes_the_other_way(self, model: str, value: float, *, largest: bool) -> bool:
        """Return whether *value* is the largest of a loss that falls, or the smallest of a metric that rises, of a model.

        >>> from sonde.rules import Chosen, ScalarFindings
        >>> ScalarFindings(Chosen()).goes_the_other_way("", 1.0, largest=True)
        False

        Args:
            model: its name; ``""`` where there is one.
            value: what a schedule was given that waits for the opposite.
            largest: it is the largest that the schedule was given, else the smallest.
        """
        if not largest:
            return any(each.rises_from(value) for each in self._metrics.values())
        loss, known = self.loss_of(model), self._held_out.get(f"{model}/val_loss".lstrip("/")) or self._held_out.get("val_loss")
        falls_held_out = known is not None and known.falls_from(value)
        return falls_held_out or (loss.smooth <= _FELL * value and loss.has_begun_with(value))

    @property
    def has_risen(self) -> bool:
        """Whether a reward has risen, from the first third to the last, by more than by chance: no loss has to fall then."""
        return any(each.has_risen for each in self._metrics.values())

    def largest_norm(self, model: str) -> float:
        """Return the largest gradient norm with which an optimizer has stepped a model so far; infinite where none is known.

        >>> from sonde.rules import Chosen, ScalarFindings
        >>> ScalarFindings(Chosen()).largest_norm("")
        inf
        """
        known = self._scalars.get(f"{model}/grad_norm".lstrip("/"))
        return math.inf if known is None else known.largest

    def findings(self, *, at_end: bool = False) -> Iterator[Finding]:
        """Yield one finding for all scalars by each rule: the first, with the names of the others.

        *at_end* says that no values come: a loss may be stuck then that might still have fallen.
        """
        clipped = {f"{name}_raw" for name in self._scalars}  # the norm after clipping says nothing where that before is known
        raw = {name.removesuffix("_raw") for name in self._scalars if name in clipped or name.endswith("_raw")}
        judged = [each for name, each in self._scalars.items() if name not in raw]
        stuck = [each.stuck or (each.stuck_at(each.loss, 0, at_end=True) if at_end and each.loss else None) for each in judged]
        rises = [each.rises or (each.risen_at_end() if at_end else None) for each in judged]
        held = [
            (each.grown, each.spike or (each.jumped if at_end else None), risen, each.falls or each.sinks)
            for each, risen in zip(judged, rises, strict=True)
        ]
        for found in (*zip(*held, strict=True), stuck):
            known = [each for each in found if each is not None]
            first, *others = sorted(known, key=lambda each: (each.first_step or 0, _QUANTITIES.index(each.quantity))) or (None,)
            if first is not None:
                names = ", ".join(f"{each.message.partition(' ')[0]} at step {each.first_step:,}" for each in others)
                yield replace(first, message=first.message + (f" (also {names})" if names else ""))
        watched: tuple[_HeldOut | _Cleared | _Metric, ...] = (
            *self._held_out.values(),
            *self._cleared.values(),
            *(self._metrics.values() if not at_end else ()),
        )
        told = [each.found for each in watched]
        told += [each.at_end() for each in self._metrics.values()] if at_end else []
        told += [each.at_end() for each in self._held_out.values()] if at_end else []
        told += [self._miscounted(name, each) for name, each in self._metrics.items()] if at_end else []
        yield from (each for each in told if each is not None)
        yield from self._cancelled() if at_end else ()
        yield from (each.added for each in self._cleared.values() if each.added is not None)

    def _cancelled(self) -> Iterator[Finding]:
        """Yield that a loss is one number, step by step, with gradients that are rounding: what it compares cancels."""
        for name, scalar in self._scalars.items():
            model, loss = name.rpartition("/")[0], scalar.loss
            norm = self.largest_norm(model)
            is_one = loss is not None and loss.is_one and norm <= _ONE_LOSS * abs(loss.least)
            found = self._chosen.judge("gradient_zero", 0.0) if is_one else None
            if found is not None and loss is not None:
                message = f"the loss is {loss.least:.4g} in each step, whatever goes in, and gradients are rounding: {short(norm)}"
                known = {"loss": loss.least, "grad_norm": norm}
                yield replace(found, message=message, advice=_CANCELS, evidence=known, step=loss.steps[1], first_step=loss.steps[0])

    def _miscounted(self, name: str, metric: _Metric) -> Finding | None:
        """Return the finding of an accuracy far below what a cross-entropy leaves: each wrong label costs ln 2 or more."""
        model, _, kind = name.rpartition("/")
        words, loss, chance = _words_of(kind), self.loss_of(model), self._chance_of(model)
        is_of_two = math.isnan(chance) and abs(loss.begun / math.log(2) - 1) <= 2 * _EVEN
        chance, held_out = math.log(2) if is_of_two else chance, self._held_out.get(f"{model}/val_loss".lstrip("/"))
        now = loss.smooth if words <= _OF_TRAINING else held_out.last if words <= _OF_HELD_OUT and held_out else math.nan
        least, last = 1 - now / math.log(2), metric.last_mean
        is_known = abs(loss.begun - chance) <= _HALF_OFF * chance and last <= 1 and metric.found is None
        found = self._chosen.judge("metric_falls", last, least, 0.0) if is_known and last < least - _MISCOUNTED else None
        if found is None:
            return None
        message = f"{name} is {short(last)}, and a cross-entropy of {short(now)} leaves {short(least)} or more"
        return replace(found, message=message, advice=_COUNTED, step=loss.steps[1], first_step=loss.steps[0])


@dataclass
class _Scalar:
    """The history of one scalar.

    Attributes:
        name: as it was pushed.
        chosen: the rules that are applied.
        moved_first: names the layer that moved first.
        loss_of_model: returns the training loss of the model, whose gradients these may be.
        spike: the first value that stands out of those before it.
        jumped: a value that does, and may be back in the next ones.
        grown: the growth of a norm of gradients, if that was too much.
        chance_of_model: returns the cross-entropy of a guess; NaN if that is not known.
        share_of_batch: returns how large the batch of a step is, as a share of the usual one.
        rises, falls, stuck: a loss that rises, falls without bound, or had not fallen at some step.
        sinks: a loss that falls without bound if an output or a weight grows too large.
        largest: the largest size so far.
        loss: what is known of a loss; None for other scalars.
    """

    name: str
    chosen: Chosen
    moved_first: Where
    loss_of_model: Callable[[], _Loss]
    chance_of_model: Callable[[], float]
    share_of_batch: Callable[[int], float]
    spike: Finding | None = None
    jumped: Finding | None = None
    grown: Finding | None = None
    rises: Finding | None = None
    falls: Finding | None = None
    sinks: Finding | None = None
    stuck: Finding | None = None
    _after: list[float] = field(default_factory=list)
    _last: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _first: list[float] = field(default_factory=list)
    _least: float = math.inf
    largest: float = 0.0
    loss: _Loss | None = None

    @property
    def kind(self) -> str:
        """The name without that of a model."""
        return self.name.rpartition("/")[2]

    def add(self, value: float, epoch: int, step: int) -> None:
        """Compare *value* with those before it."""
        if self.kind in _LOSSES:
            self.loss = self.loss or _Loss(self.chosen)
            self.loss.note(value, step)
        if not math.isfinite(value):
            return
        if self.loss is not None:
            self._look_at_loss(self.loss, value, epoch, step)
        if value <= 0:
            self.largest = max(self.largest, -value)
            return
        if self.spike is None and len(self._last) >= SPIKE_FEW:
            self._look_for_spike(value, epoch, step)
        if self._first and self.kind in _GRADIENTS:
            self._grow(value, epoch, step)
        self._last.append(math.log(value))
        self._least, self.largest = min(self._least, value), max(self.largest, value)
        if len(self._first) < 100:
            self._first.append(value)

    def _look_for_spike(self, value: float, epoch: int, step: int) -> None:
        """Note that *value* is a spike: of a loss that is not far above all before once the next values are not back.

        A loss of few samples that matter, as of sparse rewards, jumps for one batch again and again.
        """
        if self.jumped is None:
            found, self._after = self._judged(value, epoch, step), []
            may_pass = found and self.kind in _LOSSES and value < _AT_ONCE * self.chosen.limit("spike", "above") * self.largest
            self.spike, self.jumped = (None, found) if may_pass else (found, None)
            return
        self._after.append(value)
        if min(self._after) < math.sqrt(self.jumped.value * self.jumped.evidence["median"]):
            self.jumped = None
        elif len(self._after) == _AFTER:
            self.spike, self.jumped = self.jumped, None

    def _look_at_loss(self, loss: _Loss, value: float, epoch: int, step: int) -> None:
        loss.add(value, step)
        if math.isnan(loss.smooth):
            return
        chance = self.chance_of_model()
        # what has been learnt since may rise again, and did not long ago
        if self.rises is None or loss.is_learnt or loss.is_low_again:
            self.rises = self._at_last(loss.risen, self._risen(loss, step - loss.steps[0]), epoch, step)
        guess = chance if abs(loss.first + chance) < abs(loss.first + _COIN) else _COIN  # a guess of two, in one number
        negated = loss.highest < 0 and abs(loss.first + guess) < NEAR_CHANCE * guess
        least = NEGATED_VALUES if negated else UNBOUNDED_VALUES
        thirds = loss.level_of_thirds(least) if loss.least < SCORES_END else None
        if thirds is not None and loss.last_fall() < _LEVEL * (thirds[2] - thirds[0]):
            self.falls = self.sinks = None  # it comes to an end, as that of a density does
        elif thirds is not None and self.falls is None:
            numbers = (*thirds, loss.first, loss.first_scatter, guess, loss.highest, loss.smooth, float(loss.count))
            self.falls = self._at_last(loss.fallen, self.chosen.judge("loss_unbounded", *numbers), epoch, step)
            sinks = self.chosen.judge("loss_unbounded", *numbers, grows=True) if self.sinks is None else None
            self.sinks = self.sinks or self._at_last(loss.sunk, sinks, epoch, step)
        self.stuck = self.stuck or self.stuck_at(loss, epoch)

    def _risen(self, loss: _Loss, steps: float) -> Finding | None:
        if loss.comes_down:
            return None
        lowest, chance = loss.lowest if loss.least >= 0 else loss.least, self.chance_of_model()
        known = loss.scatter(), chance, loss.first_scatter, steps
        more = (loss.rested, loss.lately, loss.early) if loss.count >= _MANY_MEDIANS else ()
        is_above = 0 < loss.first <= loss.begun <= _AT_FIRST * loss.first
        falls_at_once = is_above and math.log(loss.begun / loss.first) >= _FAR_ABOVE * loss.scatter()
        first = loss.begun if falls_at_once else loss.first
        return self.chosen.judge("loss_rising", loss.smooth, first, lowest, *known, *more)

    def risen_at_end(self) -> Finding | None:
        """Return the finding about a loss that has risen by the end of few steps, when no values come."""
        loss = self.loss
        found = None if loss is None or self.rises is not None else self._risen(loss, math.inf)
        if loss is None or found is None or loss.count < LOSS_VALUES:
            return None
        first, last = loss.steps
        return replace(found, message=f"{self.name}: {found.message}, at step {last:,}", step=last, first_step=first)

    def _at_last(self, held: Held, found: Finding | None, epoch: int, step: int) -> Finding | None:
        """Return what was *found* at *step*, once there was something often enough."""
        if not held.add_one(step, holds=found is not None) or found is None:
            return None
        message = f"{self.name}: {found.message}, at step {step:,}"
        return replace(found, message=message, epoch=epoch, step=step, first_step=int(held.since[0]))

    def stuck_at(self, loss: _Loss, epoch: int, *, at_end: bool = False) -> Finding | None:
        """Return the finding about a *loss* that has not fallen so far; of a slow one *at_end* alone, when no values come."""
        is_long = at_end or loss.steps[1] - loss.steps[0] >= STUCK_LONG
        thirds = loss.thirds() if is_long else None
        around = loss.first_scatter
        if loss.smooth <= _FAR_DOWN * loss.begun:  # first values that fall far and fast scatter by that
            around = min(around, _NOISE * loss.scatter() * loss.first)
        rest = self.chance_of_model(), loss.first - 2 * around, loss.lowest, float(loss.count)
        found = None if thirds is None else self.chosen.judge("loss_stuck", *thirds, *rest)
        if is_long and loss.is_one and loss.least and loss.moved >= _CREPT:
            found = self.chosen.judge("loss_stuck", *[loss.least] * 3, 0.0, math.nan)
            message = f"the loss is {loss.least:.4g} in each step, though steps have moved the weights by {percent(loss.moved)}"
            found = found and replace(found, message=message, advice=_CANCELS)
        if found is None:
            return None
        first, last = loss.steps
        is_even = abs(loss.first / math.log(2) - 1) <= _EVEN
        is_guess = (loss.first >= _GUESSED * rest[0] or is_even) and loss.rate <= SLOW_RATE / 2
        message = f"{self.name}: {found.message}, from step {first:,} to {last:,}"
        return replace(
            found, message=message, epoch=epoch, step=last, first_step=first,
            severity="note" if at_end and loss.rate <= SLOW_RATE and not is_guess else found.severity,
        )  # fmt: skip

    def _grow(self, value: float, epoch: int, step: int) -> None:
        if self._goes_with_a_density():
            return
        found = self.chosen.judge("gradient_growth", value, max(self._first[0], self._least, _NO_GRADIENT))
        if found is None or (self.grown is not None and found.value <= self.grown.value):
            return
        first = step if self.grown is None else self.grown.first_step
        since = "" if first == step else f", {self.chosen.limit('gradient_growth', 'factor'):,.0f}-fold from step {first:,} on"
        message = f"{self.name} {found.message} at step {step:,}{since}"
        self.grown = replace(found, message=message, epoch=epoch, step=step, first_step=first, last_step=step)

    def _goes_with_a_density(self) -> bool:
        """Whether this is of gradients of a loss that has been below zero, and is no larger than at first.

        It is that of a density, or of a policy: its gradients follow the precision that is reached, or the rewards.
        """
        loss = self.loss_of_model()
        return self.kind not in _LOSSES and loss.least < 0 and loss.smooth <= loss.first + loss.first_scatter

    def _judged(self, value: float, epoch: int, step: int) -> Finding | None:
        """The finding if *value* is a spike that brings the training back to its beginning: other jumps are the noise of batches.

        A loss must be as large as the first ones, a gradient norm twice as large, and an update norm ten times as large as all of
        the first hundred, since a learning rate may begin anew. A loss or gradient norm far above all before needs few values.
        """
        is_none = self.kind in _GRADIENTS and value < _NO_GRADIENT
        if is_none or value < _JUMP * math.exp(min(self._last)) or self._goes_with_a_density():
            return None  # the median is no smaller
        largest = math.inf if self.kind == "update_norm" else self.largest
        if self.loss is not None and self.loss.least < 0 and value < self.chosen.limit("spike", "above") * largest:
            return None  # logarithms say nothing of a loss around 0
        if len(self._last) < SPIKE_VALUES and value < self.chosen.limit("spike", "above") * largest:
            return None
        begin = median(self._first[:_START])
        least = 10 * max(self._first) if self.kind == "update_norm" else begin if self.kind == "loss" else 2 * begin
        if value < least:
            return None
        logs = np.array(self._last)
        middle = median(self._last)
        if value < (_JUMP_OF_NORM if self.kind in _GRADIENTS else _JUMP) * math.exp(middle):
            return None
        around = np.polynomial.Polynomial.fit(np.arange(len(logs)), logs, 1)(np.arange(len(logs)))  # the loss falls meanwhile
        levels = (middle, around) if self.kind == "loss" else (middle,)
        noise = min(float(np.median(np.abs(logs - level))) for level in levels)
        spread = max(1.4826 * noise, _LEAST_SPREAD)  # of a normal distribution the standard deviation
        found = self.chosen.judge("spike", value, math.exp(middle), (math.log(value) - middle) / spread, largest)
        if found is None or self.share_of_batch(step) < _SHORT_BATCH:
            return None  # of few samples, as the last of an epoch has, gradients scatter more
        found = replace(found, quantity="gradient" if self.kind in _GRADIENTS else self.kind.removesuffix("_norm"))
        message = f"{self.name} {found.message} at step {step:,}"
        moved = self.moved_first(step, self.chosen.limit("spike", "deviations"))
        if moved is not None:
            site, away = moved
            message += f"; {site} moved first"
            found = replace(found, site=site, evidence={**found.evidence, "deviations_at_site": away})
        return replace(found, message=message, epoch=epoch, step=step, first_step=step)


class _Swings:
    """How a learning rate goes down and up again, step by step, as a schedule does that is stepped beyond its end.

    Attributes:
        ends: the smallest and the largest rate.
    """

    def __init__(self) -> None:
        self.ends = math.inf, -math.inf
        self._last, self._rises = math.nan, 0
        self._turns: list[int] = []  # steps behind which it has risen for some

    @property
    def period(self) -> int:
        """The most steps from one low to the next, of the last of several, where these are few; 0 elsewhere."""
        periods = [later - each for each, later in itertools.pairwise(self._turns)][-_SWINGS:]
        is_deep = self.ends[0] <= LOW_RATE * 10 * self.ends[1]
        return max(periods) if len(periods) == _SWINGS and max(periods) <= _SWING and is_deep else 0

    def add(self, rate: float, step: int) -> None:
        """Add the *rate* of a *step*."""
        self.ends = min(self.ends[0], rate), max(self.ends[1], rate)
        rises = self._rises + 1 if rate > self._last else 0
        if rises == _RISES:
            self._turns = [*self._turns[-_SWINGS:], step - _RISES]
        self._last, self._rises = rate, rises


class _Loss:
    """The history of a loss: medians of the last values, and the means of a bounded number of spans.

    Attributes:
        first: the median of the first values; NaN before there are so many.
        smooth: the median of the last values; NaN, too.
        first_scatter: the standard deviation of the first values around it.
        lowest: the smallest such median.
        rested, lately: the smallest median of more values, and the last one; infinite before there are so many.
        early: the first one; 0 before that.
        least, highest: the smallest and the largest value.
        begun: the first value.
        steps: the first and the last step.
        rate: the learning rate of the last step before the last value; NaN if that is not known.
        best_rate: the median of those of the values that made the smallest median.
        grown_at: the step from which on the rate has been far above that; -1 while it is not.
        peak: the step at which the rate was last larger than ever before.
        largest_rate: the largest rate.
        moved: how far the steps before the last value have moved the weights, together, of their size; NaN if that is not known.
        risen, fallen, sunk: how often the loss was found to rise, or to fall without bound, by itself or where something grows.
    """

    def __init__(self, chosen: Chosen) -> None:
        self.first = self.smooth = self.begun = self.rate = self.best_rate = self.largest_rate = self.moved = math.nan
        self.first_scatter = self.early = 0.0
        self.lowest = self.rested = self.lately = self.least = self._best = math.inf
        self.highest = -math.inf
        self.steps = (0, 0)
        self.peak = 0
        self._low = [0, 0]  # values behind a step at a rate far below the largest, and all
        self._moved_before = math.nan  # how far the steps before such a rate had moved the weights
        self.grown_at, self._limit = -1, chosen.limit("rate_grown", "factor")
        self._lately: deque[tuple[int, float]] = deque(maxlen=_AFTER)
        self._around: deque[tuple[int, float]] = deque(maxlen=SMOOTH + _AFTER)
        self._good: set[int] = set()  # steps behind which it fell
        self._worse: set[int] = set()  # steps from which on it was higher
        self._last: deque[float] = deque(maxlen=SMOOTH)
        self._more: deque[float] = deque(maxlen=RESTED)
        self._rates: deque[float] = deque(maxlen=SMOOTH)
        self._changes: deque[float] = deque(maxlen=_CHANGES)
        self.risen, self.fallen, self.sunk = map(chosen.held, ("loss_rising", "loss_unbounded", "loss_unbounded"))
        self._values = 0
        self._top, self._since = (-math.inf, 0), (math.inf, 0)  # the largest such median and the least one since, with their places
        self._spans: list[float] = []
        self._width, self._open = 1, [0.0, 0]

    def note(self, value: float, step: int) -> None:
        """Note a value, finite or not; of several of a step the first, since the others may come with later rows."""
        if self._lately and self._lately[-1][0] == step:
            return
        if math.isfinite(value):  # as it comes, and not when it is asked for: what is found must not depend on that
            self._good.update(at for at, before in self._lately if before - value >= (1 - _HELPED) * abs(before) > 0)
        self._lately.append((step, value))
        self.begun = value if math.isnan(self.begun) and not self._around else self.begun
        self._around.append((step, value))
        values = [each for _, each in self._around]
        if len(values) == SMOOTH + _AFTER and min(values[SMOOTH:]) >= _WORSE * median(values[:SMOOTH]) > 0:
            self._worse.add(self._around[SMOOTH][0])

    def has_worsened(self, step: int, *, behind: bool = False) -> bool | None:
        """Return whether the values from *step* on, or *behind* it, are higher than those before; None while that is not known."""
        gap = self._around[1][0] - self._around[0][0] if behind and len(self._around) > 1 else 0
        if any(step <= each <= step + gap for each in self._worse):
            return True
        return None if self._around and self._around[0][0] <= step else False

    def has_helped(self, step: int) -> bool | None:
        """Return whether one of the next values is a tenth less than that of *step*; None while there is none."""
        if step in self._good:
            return True
        return None if self._lately and step == self._lately[-1][0] else False

    @property
    def count(self) -> int:
        """How many values there are, roughly."""
        return len(self._spans) * self._width

    def ends(self) -> bool:
        """Return whether one of the last values is 0, none has been below, and one above: such a batch has no gradient.

        A loss that was never anything but 0 has not been learnt: nothing reaches it.
        """
        return self.least == min(self._last, default=math.nan) == 0 < self.highest

    @property
    def is_zero(self) -> bool:
        """Whether the last value is 0."""
        return bool(self._last) and self._last[-1] == 0

    @property
    def has_converged(self) -> bool:
        """Whether it has come down to a hundredth of what it was, or to 0 for one of the last batches."""
        return self.smooth <= _CONVERGED * self.first > 0 or self.ends()

    @property
    def comes_down(self) -> bool:
        """Whether it has passed its peak for long, and is low again, or has lost half of what it had risen and still falls."""
        (top, begun), (_, last) = self._top, self._since
        is_long = self._values - begun >= _DOWN and self._values - last <= _DOWN // 4
        return self.is_low_again or (is_long and self.smooth <= (self.first + top) / 2)

    @property
    def is_low_again(self) -> bool:
        """Whether it has passed its peak for long, and is well below its first values."""
        return self._values - self._top[1] >= _DOWN and 0 < self.smooth < _LEARNT * self.first

    def stands(self, share: float, times: int = 1) -> bool:
        """Return whether a loss above zero has not come down to a *share*, in so many *times* the steps to be stuck."""
        is_long = self.steps[1] - self.steps[0] >= times * STUCK_STEPS - 10
        return is_long and self.lowest >= share * self.first and self.least > 0

    @property
    def is_low(self) -> bool:
        """Whether it is well below its first values."""
        return self.smooth < _LEARNT * self.first

    def has_begun_with(self, value: float) -> bool:
        """Return whether *value* is its largest one, or the mean of its first ones, as of an epoch, where that is no share of 1."""
        means = (total / number for number, total in enumerate(itertools.accumulate(self._spans), 1))
        return math.isclose(value, self.highest, rel_tol=_TOLD) or (
            value > 1 and any(math.isclose(value, each, rel_tol=_TOLD) for each in means)
        )

    @property
    def is_learnt(self) -> bool:
        """Whether it has fallen well below its first values, and is near its smallest one."""
        return self.is_low and self.smooth <= max(1.5, math.exp(2.4 * self.scatter())) * self.lowest

    def add(self, value: float, step: int) -> None:
        """Add a value."""
        self.least, self.highest = min(self.least, value), max(self.highest, value)
        self._values += 1
        self.steps = (step if not self._last else self.steps[0], step)
        if self._last and value > 0 and self._last[-1] > 0:
            self._changes.append(abs(math.log(value / self._last[-1])))
        self._last.append(value)
        self._more.append(value)
        self.lately = median(self._more) if len(self._more) == RESTED else math.inf
        self.early = self.early or (self.lately if len(self._more) == RESTED else 0.0)
        self.rested = min(self.rested, self.lately)
        if len(self._last) == SMOOTH:
            self.smooth = median(self._last)
            if math.isnan(self.first):
                self.first = self.smooth
                self.first_scatter = float(np.std(self._last, ddof=1))
            self.lowest = min(self.lowest, self.smooth)
            if self.smooth >= self._top[0]:
                self._top = self._since = (self.smooth, self._values)
            elif self.smooth < self._since[0]:
                self._since = (self.smooth, self._values)
        self._open = [self._open[0] + value, self._open[1] + 1]
        if self._open[1] == self._width:
            self._spans.append(self._open[0] / self._width)
            self._open = [0.0, 0]
        if len(self._spans) == _MOST:
            self._spans = [(left + right) / 2 for left, right in zip(self._spans[::2], self._spans[1::2], strict=True)]
            self._width *= 2

    def go_with(self, step: int, rate: float, moved: float) -> None:
        """Note the learning *rate* of the last *step* before that of the value: that of the step itself may come later.

        So with how far the weights have *moved* by then.
        """
        self.rate, self.moved = rate, moved
        if not rate <= self.largest_rate and not math.isnan(rate):
            self.largest_rate, self.peak = rate, step
        is_low = rate <= LOW_RATE * self.largest_rate
        self._low = [self._low[0] + is_low, self._low[1] + 1]
        self._moved_before = self._moved_before if is_low else moved
        self._rates.append(rate)
        if math.isnan(self.best_rate) or self.lowest < self._best:
            self._best, self.best_rate = self.lowest, median(self._rates)
        if not rate >= self._limit * self.best_rate:
            self.grown_at = -1
        elif self.grown_at < 0:
            self.grown_at = step

    @property
    def low_share(self) -> float:
        """How many of the values came at a learning rate far below the largest, as a share of all."""
        return self._low[0] / max(self._low[1], 1)

    @property
    def idles(self) -> bool:
        """Whether the steps at such a rate have moved next to nothing, after others that did, and before all was learnt."""
        is_long = self.steps[1] - self.steps[0] >= STUCK_STEPS - 10
        return is_long and self.moved - self._moved_before < WARMED and not self.has_converged

    @property
    def warmed(self) -> float:
        """How far the steps of a warm-up have moved the weights together, of their size; NaN behind it, and while it is short."""
        lasts = self.peak > self.steps[0] and self.steps[1] - self.peak <= 1 + self.steps[1] // 20
        return self.moved if lasts and self.steps[1] - self.steps[0] >= 2 * STUCK_STEPS - 10 else math.nan

    @property
    def is_one(self) -> bool:
        """Whether all values of many steps are one number, but for rounding."""
        is_long = self.count >= STUCK_VALUES and self.steps[1] - self.steps[0] >= STUCK_STEPS - 10
        return is_long and self.highest - self.least <= _ONE_LOSS * abs(self.least)

    @property
    def rests(self) -> bool:
        """Whether there were steps enough behind a warm-up for a loss to fall; one that has moved the weights far is over, too."""
        begin = self.steps[0] if self.moved >= STUCK_FAR else max(self.steps[0], self.peak)
        return self.steps[1] - begin >= STUCK_STEPS - 10

    @property
    def has_gone_far(self) -> bool:
        """Whether there were steps enough for a loss to fall, and they have moved the weights far."""
        return self.rests and self.moved >= STUCK_FAR

    @property
    def goes_on(self) -> bool:
        """Whether it is lower in the last third than in the middle one, by more than by chance, and more than next to nothing."""
        late, middle, _, error = self.thirds() or (0.0,) * 4
        return middle - late > max(2 * error, STUCK * abs(middle))

    def falls(self, steps: int = 0) -> bool | None:
        """Return whether it is above zero, and lower in the last third than in the first by more than chance.

        None before so many *steps*; False without any value.
        """
        if len(self._spans) < 6 or math.isnan(self.smooth) or self.steps[1] - self.steps[0] < steps:
            return None if self._last else False
        (early, around), (late, around_late) = self.third(0), self.third(2)
        return self.least > 0 and self.smooth < early and early - late > 2 * math.sqrt(around + around_late)

    def scatter(self) -> float:
        """Return the standard deviation of logarithms of values around those next to them, by the median of their changes."""
        return 1.4826 * median(self._changes) / math.sqrt(2) if self._changes else 0.0

    def level_of_thirds(self, least: int) -> tuple[float, float, float] | None:
        """Return the medians of the last, the middle and the first third; None where there are fewer than *least* values."""
        third = len(self._spans) // 3
        if third < least // 3:
            return None
        early, middle, late = (median(self._spans[third * place : third * (place + 1)]) for place in range(3))
        return late, middle, early

    def last_fall(self) -> float:
        """Return by how much the medians of the two halves of the last third are apart."""
        half = len(self._spans) // 6
        return median(self._spans[-2 * half : -half]) - median(self._spans[-half:]) if half else math.inf

    def thirds(self) -> tuple[float, float, float, float] | None:
        """Return the means of the last, the middle and the first third, and the error of a difference; None: it is too early."""
        if self.count < STUCK_VALUES or not self.rests:
            return None
        (early, _), (middle, around_middle), (late, around_late) = map(self.third, range(3))
        return late, middle, early, math.sqrt(around_middle + around_late)

    def third(self, place: int) -> tuple[float, float]:
        """Return the mean of the first third of the run, or of a later one, and the variance of that mean."""
        third = len(self._spans) // 3
        part = self._spans[third * place : third * (place + 1)]
        mean = sum(part) / third
        squares = sum((each - mean) * (each - mean) for each in part)  # infinite where they are too large
        return mean, squares / (third - 1) / third


def _keep_two(known: list[tuple[int, float]], step: int, value: float) -> None:
    """Put the *value* of a *step* behind the last one of an earlier step, and forget the others."""
    known[:] = [*[each for each in known if each[0] < step][-1:], (step, value)]


def _before(held: Mapping[str, list[tuple[int, float]]], model: str, step: int) -> tuple[int, float]:
    """Return the last step before *step*, and its value, of a *model*, or of the first one; *step* and NaN where there is none."""
    return next((each for each in reversed(held.get(model) or next(iter(held.values()), [])) if each[0] < step), (step, math.nan))


class _HeldOut:
    """The history of a validation loss.

    Attributes:
        found: the finding that the training overfits; None so far.
        last: the last value; NaN so far.
    """

    def __init__(self, name: str, chosen: Chosen) -> None:
        self.found: Finding | None = None
        self.last = math.nan
        self._name, self._chosen = name, chosen
        self._lowest, self._then, self._begin = math.inf, math.inf, math.nan
        self._highest, self._begun = -math.inf, math.nan  # the largest one, and the first training loss
        self._count = self._passed = 0  # values, and those of the last that were no overfitting
        self._held = chosen.held("overfitting")
        self._moment, self._first, self._guess = (0, 0), -1, math.nan  # epoch and step of the last value, step of the first one

    def falls_from(self, value: float) -> bool:
        """Return whether *value* is its largest one, and it has come to less."""
        return math.isclose(value, self._highest, rel_tol=_TOLD) and self._lowest <= _FELL * value

    def at_end(self) -> Finding | None:
        """Return the finding that it has never come below that of a guess, if it stands there at the end of a training."""
        if self._count < _EVALUATED or self._moment[1] - self._first < STUCK_STEPS or self.found is not None:
            return None
        if math.isnan(self._guess) and self._begin <= _FELL_BEFORE * self._begun:
            return None  # what could be won was won in front of the first one
        found = self._chosen.judge("loss_stuck", self.last, self.last, self._begin, 0.0, self._guess, math.nan, self._lowest)
        where = (
            f"does not fall from {self._begin:.4g}" if math.isnan(self._guess) else f"stays at that of a guess, {self._guess:.4g}"
        )
        said = f"{self._name} {where}: it is {self.last:.4g}, and was {self._lowest:.4g} at best"
        return found and replace(found, message=said, epoch=self._moment[0], step=self._moment[1], first_step=self._first)

    def add(self, value: float, epoch: int, step: int, loss: _Loss, guess: float) -> None:
        """Compare *value* with its lowest, the training *loss* with what it was then, and both with that of a *guess*."""
        if not math.isfinite(value):
            return
        self._count, self.last = self._count + 1, value
        self._moment, self._first, self._guess = (epoch, step), step if self._first < 0 else self._first, guess
        now = math.inf if math.isnan(loss.smooth) else loss.smooth
        self._begin = value if math.isnan(self._begin) else self._begin
        self._highest, self._begun = max(self._highest, value), loss.begun
        begin = max(self._begin, loss.begun) if math.isfinite(loss.begun) else self._begin  # evaluated late, it has fallen already
        if value < self._lowest:
            self._lowest, self._then, self.found = value, now, None
        known = value, self._lowest, begin, now, self._then, guess, float(self._count), loss.begun
        found = None if not math.isfinite(now) else self._chosen.judge("overfitting", *known)
        self._passed = self._passed + 1 if found is None else 0
        if self._passed >= _PASSED:  # it came down again
            self.found = None
        if self._held.add_one(step, holds=found is not None) and found is not None and self.found is None:
            message = f"{self._name}: {found.message}, at step {step:,}"
            never_fell = self._lowest > min(_FELL * self._begin, STANDS * begin)
            if never_fell or self._lowest > FAR_OFF * loss.begun > 0:  # what is evaluated is something else
                first = _NOT_LEARNT_EITHER if guess > 0 and now >= _NEARLY_A_GUESS * guess else _DIFFERS
                found = replace(found, advice=f"{first}; else {found.advice.partition('; look')[0]}")
                times = f"the validation loss is {short(value)}, {short(value / now)} x the training loss"
                message = message if never_fell else f"{self._name}: {times}, at step {step:,}"
            self.found = replace(found, message=message, epoch=epoch, step=step, first_step=int(self._held.since[0]))


@cache
def _is_to_rise(kind: str, names: frozenset[str] = _RISING_NAMES) -> bool:
    """Return whether a metric is to rise, by the words of its name."""
    return not names.isdisjoint(_words_of(kind))


def _words_of(kind: str) -> set[str]:
    """Return the words of a name."""
    return {*re.split(r"[^a-z0-9]+|(?<=[a-z])(?=[0-9])", kind.lower())}


class _Metric:
    """The history of a metric that rises in a training that goes well, by its name.

    Attributes:
        found: the finding that it falls; None so far.
    """

    def __init__(self, name: str, chosen: Chosen) -> None:
        self.found: Finding | None = None
        self._name, self._chosen = name, chosen
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=METRIC_MEAN)
        self._count = 0
        self._held = chosen.held("metric_falls")
        self._is_zero, self._begun, self._steps = True, -1, 0  # all values were so far, from a step on, and in how many
        self._history = _Loss(chosen) if _is_to_rise(name.rpartition("/")[2], _REWARD_NAMES) else None

    def at_end(self) -> Finding | None:
        """Return the finding about all values; no more come."""
        if self.found is not None or self._steps < METRIC_STEPS:
            return self.found
        end = self._begun + self._steps
        if self._is_zero and self._count >= METRIC_FEW:
            found, advice = self._chosen.judge("metric_falls", 0.0, 0.0, 0.0), _NEVER_ABOVE
            message = f"{self._name} is 0 throughout, in {self._count:,} values up to step {end:,}"
        else:
            found, advice = self._level(), _NOT_LEARNT
            message = f"{self._name} {found.message}, at step {end:,}" if found is not None else ""
        return found and replace(found, message=message, advice=advice, step=end, first_step=self._begun)

    def rises_from(self, value: float) -> bool:
        """Return whether *value* is its first one and its smallest, and it has come to more."""
        is_first = bool(self._first) and math.isclose(value, self._first[0], rel_tol=_TOLD)
        return is_first and min(*self._first, *self._last) >= value * (1 - _TOLD) and self._last[-1] >= value / _FELL

    @property
    def last_mean(self) -> float:
        """The mean of the last values; NaN of few."""
        return fmean(self._last) if self._count >= METRIC_FEW else math.nan

    @property
    def has_risen(self) -> bool:
        """Whether a reward is higher in the last third than in the first, or than at first, by more than by chance."""
        early, late, around_late, error = self._thirds(METRIC_VALUES)
        return late - early > _SURE * error or (late > early and late - fmean(self._first) > _SURE * self._scatter(around_late))

    def _scatter(self, around_late: float) -> float:
        """Return by how much the first values and the last third are apart by chance; *around_late*: the variance of the latter."""
        return math.sqrt(pvariance(self._first) / METRIC_MEAN + around_late)

    def _thirds(self, least: int) -> tuple[float, float, float, float]:
        """Return the means of the first and of the last third, the variance of that, and the error of their difference.

        NaN of what is no reward, or has fewer values than *least*.
        """
        if self._history is None or self._count < least:
            return math.nan, math.nan, math.nan, math.nan
        (early, around), (late, around_late) = self._history.third(0), self._history.third(2)
        return early, late, around_late, math.sqrt(around + around_late)

    def _level(self) -> Finding | None:
        """Return that a reward has not risen, since the first values nor the first third; one that never varies may be the best."""
        if self._history is None:
            return None
        early, late, around_late, error = self._thirds(METRIC_LONG)
        found = self._chosen.judge("metric_falls", late, early, error, is_level=True)
        begun = self._scatter(around_late)
        is_constant = self._history.least == self._history.highest >= 0
        return found if not is_constant and late - fmean(self._first) <= 2 * begun else None

    def add(self, value: float, epoch: int, step: int) -> None:
        """Compare the last values with the first ones."""
        if not math.isfinite(value):
            return
        self._count += 1
        self._begun = step if self._begun < 0 else self._begun
        self._is_zero &= value == 0
        self._steps = step - self._begun
        self._first += [value] * (len(self._first) < METRIC_MEAN)
        if self._history is not None:
            self._history.add(value, step)
        self._last.append(value)
        if self._count < METRIC_VALUES or self.found is not None or self._is_zero:
            return
        scatter = math.sqrt(max(pvariance(self._first), pvariance(self._last)) * 2 / METRIC_MEAN)
        found = self._chosen.judge("metric_falls", fmean(self._last), fmean(self._first), scatter)
        if self._held.add_one(step, holds=found is not None) and found is not None:
            first = int(self._held.since[0])
            self.found = replace(
                found, message=f"{self._name} {found.message}, at step {step:,}", epoch=epoch, step=step, first_step=first
            )


class _Cleared:
    """Whether the gradients of a model that a backward pass has left are zero as the optimizer steps.

    Attributes:
        found: the finding that they are, from most steps so far; None so far.
        added: the finding that they are far larger then, in all steps so far; None where they are not.
        norms: of the last step that has both, and is finite, the norm at the step, and behind the backward pass.
    """

    def __init__(self, model: str, chosen: Chosen) -> None:
        self.found: Finding | None = None
        self.added: Finding | None = None
        self.norms = (math.nan, math.nan)
        self._model, self._chosen = model, chosen
        self._latest: dict[str, tuple[int, float]] = {}
        self._steps = self._cleared = self._compared = self._cut = 0
        self._first = self._begun = -1
        self._least = (math.inf, 0.0)  # how many times as large the norm at the step was, at least; and the norm then

    def add(self, kind: str, value: float, epoch: int, step: int) -> None:
        """Compare the norm at the step with that after the backward pass, once both are known."""
        self._latest[kind] = step, value
        (at, norm), (before, raw) = (self._latest.get(each, (-1, math.nan)) for each in _GRADIENTS)
        if at == before == step:
            self.norms = (norm, raw) if math.isfinite(norm + raw) else self.norms
            self._compare(norm, raw, epoch, step)
        if not at == before == step or self.found is not None:
            return
        self._steps += 1
        if norm == 0 < raw:
            self._cleared += 1
            self._first = step if self._first < 0 else self._first
        found = self._chosen.judge("gradient_cleared", self._cleared) if 2 * self._cleared > self._steps else None
        if found is not None:
            message = f"{self._model}: " * bool(self._model) + found.message
            self.found = replace(found, message=message, epoch=epoch, step=step, first_step=self._first)

    @property
    def is_clipped(self) -> bool:
        """Whether next to nothing of the gradients was left at the last step."""
        norm, raw = self.norms
        return 0 < _CLIPPED * norm <= raw

    @property
    def is_cut(self) -> bool:
        """Whether next to nothing of the gradients is left at the step, in most steps, and in the last one."""
        return self._cut > _MOSTLY * self._compared and self.is_clipped

    def _compare(self, norm: float, raw: float, epoch: int, step: int) -> None:
        """Judge by how much gradients have grown between backward pass and step, in the step in which it was least."""
        self._begun = step if self._begun < 0 else self._begun
        self._compared += 1
        self._cut += self.is_clipped
        self._least = min(self._least, (norm / raw if raw > 0 else 0.0, norm))
        times, size = self._least
        is_known = self._compared >= _OFTEN and times > 0
        found = self._chosen.judge("gradient_growth", size, size / times, is_of_step=True) if is_known else None
        if found is not None:
            message = f"{self._model}: " * bool(self._model) + found.message
            known = {"grad_norm": norm, "grad_norm_raw": raw}
            found = replace(found, message=message, evidence=known, epoch=epoch, step=step, first_step=self._begun, advice=_ADDED)
        self.added = found
