"""Notice what is wrong with an optimizer by itself: a rate below zero, a decay that takes the weights away, a new one each step."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, optim
from torch.optim.optimizer import Optimizer

from sonde.engine import SiteHook
from sonde.rules import Chosen, Finding, among

_LONG = 1000  # steps
_DECOUPLED = "lower the weight decay, or use AdamW, which takes it off the weights themselves; the learning rate may be right"
_WARM_UP, _SHORT, _FAR = 190, 60, 0.01  # steps of more than a trial, and of one whose rate is so far below the one that was given
_RETURNS_RATE = "have the function of the schedule (LambdaLR) return a factor of the rate, which is 1 for the rate as it was given"
_GIVE_RATE = (
    "give this group a learning rate in the optimizer, or freeze its parameters with requires_grad_(False), if that is meant"
)
_NEARER = (
    "give it a learning rate nearer to that of the others (a tenth to a hundredth is usual of what was trained before), or freeze "
    "its parameters with requires_grad_(False), if they are to stay as they are"
)
_TINY, _BELOW = 1e-6, 1e-3  # a rate that is small for any optimizer, and its share of that of another group
_FACTOR, _SAME = 0.1, 1e-3  # a rate that is no factor of one, as 1 is; and how near a rate comes to its square
_IN_TYPE = (optim.Adam, optim.AdamW, optim.NAdam, optim.Adamax, optim.RMSprop, optim.Adagrad)  # compute as their parameters are
_RENEWED, _SHORT_LIFE = 5, 3  # optimizers, one after the other; steps, in which averages of an optimizer do not settle
_MODES = "'min' waits for a loss that no longer falls, 'max' for a metric that no longer rises"
_CUT = 0.5  # of a rate, to which a schedule cuts it at once that waits for a loss
_ALIVE = 2  # optimizers: where more are kept, they are many, and none is made anew


class OddSettings:
    """Looks at the groups of the optimizers of one model after each logged step. On an accelerator no value is read.

    Args:
        chosen: the rules that are applied.
        model: its name in messages; ``""`` where there is one model.

    Attributes:
        climbs: steps were made up what is sent backward, as maximize=True says.
    """

    def __init__(self, chosen: Chosen, model: str) -> None:
        self._chosen = chosen
        self._prefix = f"{model}: " * bool(model)
        self._found: dict[str, Finding] = {}
        self._judged: dict[tuple[int, int], tuple[float, float]] = {}  # by optimizer and group: the largest rate, and the decay
        self._warms: tuple[int, float, float, float] | None = None  # first step, first and last rate, and the one that was given
        self._highest = 0.0  # rate of all steps
        self._epoch = self._step = 0
        self.climbs = False
        self._renewed: list[int] = []  # first steps of optimizers that keep averages
        self._new = 0  # logged steps, one after the other, of optimizers that were not seen before
        self._held: WeakKeyDictionary[Optimizer, frozenset[int]] = WeakKeyDictionary()  # by optimizer, ids of its parameters
        self._last: frozenset[int] = frozenset()  # of the optimizer that made the logged step before
        self._still: WeakKeyDictionary[Optimizer, set[int]] = (
            WeakKeyDictionary()
        )  # by optimizer, numbers of the groups whose rate has been 0 so far
        self._tops: WeakKeyDictionary[Optimizer, dict[int, float]] = WeakKeyDictionary()  # by optimizer, the largest of each group
        self._rates: WeakKeyDictionary[Optimizer, float] = WeakKeyDictionary()  # that of the first group, at the logged step before
        self._shared = 0  # logged steps behind one of another optimizer that holds all of the same parameters, and others

    def look(self, optimizer: Optimizer, hooks: Sequence[SiteHook], epoch: int, step: int) -> None:
        """Look at the *optimizer*, which has made a step; *hooks* are those of all parameters."""
        groups = optimizer.param_groups
        self.climbs |= any(group.get("maximize") and _number(group.get("lr")) >= 0 for group in groups)
        self._look_for_still(optimizer, hooks, epoch, step)
        self._look_at_warm_up(groups[0], epoch, step)
        for found in filter(None, self._of_steps(optimizer, step)):
            self._keep(found, epoch, step, first=0)
        self._look_for_cut(optimizer, epoch, step)
        self._look_for_far(optimizer, hooks, epoch, step)
        for number, group in enumerate(groups):
            rate, decay = (_number(group.get(name)) for name in ("lr", "weight_decay"))
            largest, known = self._judged.get((id(optimizer), number), (-1.0, decay))
            if 0 <= rate <= largest and decay == known:
                continue
            self._judged[id(optimizer), number] = max(rate, largest), decay
            in_float16 = largest < 0 and type(optimizer) in _IN_TYPE and _is_in_float16(group)
            lost = self._chosen.judge("eps_lost", _number(group.get("eps"))) if in_float16 else None
            for found in filter(None, (lost, *self._judge(group, rate, decay))):
                is_meant = found.rule == "rate_negative" and any(_number(each.get("lr")) >= 0 for each in groups)
                self._keep(replace(found, severity="note") if is_meant else found, epoch, step, first=step)

    def _look_at_warm_up(self, group: Mapping[str, Any], epoch: int, step: int) -> None:
        """Note the rate of a *group*, as long as it has a schedule and its rate does not fall."""
        rate, given = _number(group.get("lr")), _number(group.get("initial_lr"))
        self._highest = max(self._highest, rate)
        first, begun, last, _ = self._warms or (step, rate, rate, given)
        self._warms, self._epoch, self._step = (first, begun, rate if rate >= last else math.inf, given), epoch, step

    def _look_for_cut(self, optimizer: Optimizer, epoch: int, step: int) -> None:
        """Keep the value that a ReduceLROnPlateau was given which has cut the rate of an *optimizer*; the run says what it is."""
        rate = _number(optimizer.param_groups[0].get("lr"))
        before, self._rates[optimizer] = self._rates.get(optimizer, rate), rate
        plateau = _plateau_of(optimizer) if 0 < rate <= _CUT * before else None
        found = self._chosen.judge("rate_small", rate, math.inf, 1.0, math.nan)
        if plateau is None or found is None:
            return
        is_max = plateau.mode == "max"
        told = "a loss, which falls" if is_max else "a metric, which rises"
        way = f"cuts the learning rate, from {before:.3g} to {rate:.3g}: it is told {told}"
        message = f"{self._prefix}ReduceLROnPlateau(mode={plateau.mode!r}) {way}"
        known = {"told": _number(plateau.best), "of mode max": float(is_max), "lr": rate}
        cut = replace(found, advice=f"give it mode={'min' if is_max else 'max'!r}: {_MODES}", evidence=known)
        self._found.setdefault("cut", replace(cut.at("", epoch, step, message), first_step=step))

    def _look_for_still(self, optimizer: Optimizer, hooks: Sequence[SiteHook], epoch: int, step: int) -> None:
        """Keep what is said of groups whose rate has been 0 in every step; forget that where one has got a rate."""
        groups, before = optimizer.param_groups, self._still.get(optimizer)
        rates = [group.get("lr") for group in groups]
        still = {number for number, rate in enumerate(rates) if isinstance(rate, int | float) and not rate}
        self._still[optimizer] = still = still if before is None else still & before
        if still == (before or set()):
            return
        self._found = {name: each for name, each in self._found.items() if "still" not in name}
        held = {id(each) for number in still for each in groups[number]["params"] if each.requires_grad}
        sites = [hook.sites["param"] for hook in hooks if id(hook.target) in held]
        found = self._chosen.judge("rate_small", 0.0, 0.0, 1.0, math.nan) if sites else None
        if found is not None:
            of = f", of parameter group {', '.join(map(str, sorted(still)))} (of {len(groups)})" * (len(groups) > 1)
            names = tuple(dict.fromkeys(each.name for each in sites))
            told = found.at(str(sites[0]), epoch, step, among(names, found.message + of))
            part = "part" if len(still) < len(groups) else "all"
            self._found[f"still {part}"] = replace(told, places=names, first_step=step, advice=_GIVE_RATE)

    def _look_for_far(self, optimizer: Optimizer, hooks: Sequence[SiteHook], epoch: int, step: int) -> None:
        """Keep that a group has only had next to nothing of the rate of another one, of this *optimizer* or of others."""
        tops = self._tops.setdefault(optimizer, {})
        for number, group in enumerate(optimizer.param_groups):
            tops[number] = max(tops.get(number, 0.0), _number(group.get("lr")))
        largest = max(rate for held in self._tops.values() for rate in held.values())
        far = {number for number, rate in tops.items() if 0 < rate <= min(_TINY, _BELOW * largest)}
        groups, name = optimizer.param_groups, f"far {id(optimizer)}"
        if not far or name in self._found:
            return
        held = {id(each) for number in far for each in groups[number]["params"] if each.requires_grad}
        sites = [hook.sites["param"] for hook in hooks if id(hook.target) in held]
        rate = max(tops[number] for number in far)
        found = self._chosen.judge("rate_small", rate, math.inf, 1.0, math.nan) if sites else None
        if found is not None:
            of = f"parameter group {', '.join(map(str, sorted(far)))} (of {len(groups)})" if len(groups) > 1 else "one optimizer"
            message = f"the learning rate of {of} is {rate:.3g}, and that of another {largest:.3g}"
            names = tuple(dict.fromkeys(each.name for each in sites))
            told = found.at(str(sites[0]), epoch, step, among(names, message))
            known = {"lr": rate, "beside": largest}
            self._found[name] = replace(told, places=names, first_step=0, advice=_NEARER, evidence=known)

    def end(self) -> None:
        """Judge whether the training ends within a warm-up, or a schedule has multiplied a rate by itself; note a group at rest."""
        if "still part" in self._found:  # as a network that was trained before, which the loss says, if that is not meant
            self._found["still"] = replace(self._found["still part"], severity="note")
        first, begun, rate, given = self._warms or (0, 0.0, math.inf, 0.0)
        is_squared = 0 < given <= _FACTOR and abs(self._highest / given**2 - 1) <= _SAME
        if (begun < rate < math.inf or is_squared) and self._step - first >= (_SHORT if rate < _FAR * given else _WARM_UP):
            rate = self._highest if is_squared else rate
            found = self._chosen.judge("rate_small", rate, rate, 0.0, math.nan, given, given if is_squared else math.nan)
            if found is not None:
                found = replace(found, advice=_RETURNS_RATE) if is_squared else found
                self._keep(found, self._epoch, self._step, first=first)

    def _of_steps(self, optimizer: Optimizer, step: int) -> Iterator[Finding | None]:
        """Judge which optimizers make the steps: one that had made none, or one that holds all parameters of another."""
        is_known = optimizer in self._held
        if not is_known and optimizer.state:
            self._renewed.append(step)
        self._new = 0 if is_known or not optimizer.state else self._new + 1
        if not is_known:
            self._held[optimizer] = frozenset(id(each) for group in optimizer.param_groups for each in group["params"])
        held, last = self._held[optimizer], self._last
        self._last = held
        self._shared += is_known and bool(last) and (held < last or last < held)
        yield self._chosen.judge("optimizer_renewed", self._new) if len(self._held) <= _ALIVE else None
        lives = [later - each for each, later in itertools.pairwise(self._renewed)][-_RENEWED:]
        if len(lives) == _RENEWED and len(self._held) <= _ALIVE and held == last and max(lives) > 1:
            found = self._chosen.judge("optimizer_renewed", float(_RENEWED))
            message = f"the optimizer was made anew every {max(lives)} steps, {_RENEWED} times: its averages begin anew"
            yield found and replace(found, message=message, severity="note" if max(lives) > _SHORT_LIFE else found.severity)
        yield self._chosen.judge("held_twice", self._shared)

    def _keep(self, found: Finding, epoch: int, step: int, *, first: int) -> None:
        """Keep the first finding of a rule, which holds from the step *first* on."""
        self._found.setdefault(found.rule, replace(found.at("", epoch, step, self._prefix + found.message), first_step=first))

    def _judge(self, group: Mapping[str, Any], rate: float, decay: float) -> Iterator[Finding | None]:
        yield self._chosen.judge("eps_large", _number(group.get("eps")), float(sum(each.numel() for each in group["params"])))
        fades = _number(group.get("lr_decay"))  # of Adagrad
        faded = self._chosen.judge("rate_small", rate / (1 + _LONG * fades), rate, 1.0, math.nan) if fades else None
        yield faded and replace(
            faded, message=f"lr_decay {fades:g} leaves a learning rate of {faded.value:.3g} after {_LONG:,} steps"
        )
        betas = group.get("betas")
        if isinstance(betas, tuple | list) and len(betas) == 2:  # of the mean and of the squares
            yield self._chosen.judge("betas_odd", _number(betas[1]), _number(betas[0]))
        yield None if group.get("maximize") else self._chosen.judge("rate_negative", rate)
        if "dampening" in group or group.get("decoupled_weight_decay"):
            yield self._chosen.judge("decay_large", rate, decay)
        elif group.get("decoupled_weight_decay") is False:
            found = self._chosen.judge("decay_large", rate, decay, is_divided=True)
            yield found and replace(found, advice=_DECOUPLED)

    def found(self) -> tuple[Finding, ...]:
        """Return the findings so far."""
        return tuple(self._found.values())


def _is_in_float16(group: Mapping[str, Any]) -> bool:
    """Return whether an optimizer computes in float16 for a *group*: a fused step computes in float32."""
    is_plain = not group.get("fused") and isinstance(group.get("eps"), float)
    return is_plain and any(each.dtype == torch.float16 and each.requires_grad for each in group["params"])


def _plateau_of(optimizer: Optimizer) -> optim.lr_scheduler.ReduceLROnPlateau | None:
    """Return the schedule that waits for a loss to stand, and changes the rates of an *optimizer*; None without one.

    An optimizer does not know its schedules: who refers to it is asked, which takes as long as a look at all objects.
    """
    referring = gc.get_referrers(optimizer)
    for each in referring:
        for one in (each, *(gc.get_referrers(each) if isinstance(each, dict) and "num_bad_epochs" in each else ())):
            if isinstance(one, optim.lr_scheduler.ReduceLROnPlateau):
                return one
    return None


def _number(given: Any) -> float:
    """Return a setting; 0 where it is none, or where reading it would wait for a device."""
    if isinstance(given, Tensor):
        return float(given) if given.numel() == 1 and given.device.type == "cpu" else 0.0
    return float(given) if isinstance(given, int | float) else 0.0
