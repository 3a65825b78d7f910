"""Try one step with one thing changed: whether it stays finite, how far it moves the weights, what becomes of the loss."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sonde.answer import Answer, Cell, Grid, Part, Report
from sonde.engine import Trial, is_floating, parameters, remap, walk
from sonde.errors import ArgumentError
from sonde.rules import RULES, Finding
from sonde.suggest import nearest
from sonde.words import many, percent, short

LOSS = "the loss"
CHANGES = {
    "lr": "a learning rate",
    "eps": "the optimizer's eps",
    "clip_grad_norm": "the largest norm of all gradients",
    "dtype": "a floating-point type of parameters and inputs, as torch.float32",
    "autocast": "False, or the type of an autocast block, as torch.bfloat16",
    "without": "the indices of samples that are left out",
}
"""What can be changed in one step, and what is given for it."""

Run = Callable[[Trial, "dict[str, torch.dtype]"], "dict[str, Tensor]"]
"""Runs a trial forward and backward, under autocast by device type; returns what it made: ``the loss`` and others, by words."""


def checked_change(change: Any, *, with_optimizer: bool) -> dict[str, Any]:
    """Return *change* with its types as torch has them.

    Raises:
        ArgumentError: it is no mapping, names what cannot be changed (the message names the nearest), or has a strange value.
    """
    if not isinstance(change, Mapping) or not change:
        raise ArgumentError(f'change={change!r}: give what is changed by name, as {{"lr": 0.1}}. It may be {_named()}')
    found: dict[str, Any] = {}
    for name, value in change.items():
        if name not in CHANGES:
            raise ArgumentError(f"change={{{name!r}: ...}}: this cannot be changed in a step. {nearest(str(name), CHANGES)}")
        if name in ("lr", "eps") and not with_optimizer:
            raise ArgumentError(
                f"change={{{name!r}: {value!r}}} needs the optimizer: give optimizer=, or a function that makes one"
            )
        wanted = _value(name, value)
        if wanted is None:
            raise ArgumentError(f"change={{{name!r}: {value!r}}}: give {CHANGES[name]}")
        found[name] = wanted
    return found


def _named() -> str:
    return ", ".join(f"{name} ({what})" for name, what in CHANGES.items())


def _value(name: str, value: Any) -> Any:
    """Return *value* as it is used; None for one of another kind."""
    if name in ("lr", "eps", "clip_grad_norm"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number and math.isfinite(value) and value >= 0 else None
    if name == "without":
        given = [value] if type(value) is int else value
        is_list = isinstance(given, list | tuple) and given and all(type(each) is int and each >= 0 for each in given)
        return list(given) if is_list else None
    if name == "autocast" and value is False:
        return value
    wanted = getattr(torch, value, None) if isinstance(value, str) else value
    return wanted if isinstance(wanted, torch.dtype) and wanted.is_floating_point else None


@dataclass(frozen=True)
class Attempt:
    """What became of a step.

    Attributes:
        broken: what was not finite, in words; ``""`` if all was.
        loss, after: the loss, and that of the same batch after the step; NaN where there is none.
        gradient: the norm of all gradients as the optimizer uses them.
        moved: the largest update of a weight, as a share of its size before; NaN where no optimizer has stepped. Weights are
            matrices and kernels that are no embeddings, and count as at least as large as PyTorch would initialise them.
        parameter: the name of that weight.
    """

    broken: str
    loss: float
    after: float
    gradient: float
    moved: float
    parameter: str

    @property
    def fault(self) -> str:
        """What is wrong with the step, in words: ``""`` if nothing is."""
        if self.broken:
            return f"{self.broken} not finite"
        if self.moves_too_far:
            return f"it moves {self.parameter} by {percent(self.moved)} of its size"
        if self.after > RULES["loss_rising"].thresholds["factor"] * self.loss > 0:
            return f"the loss of its batch goes from {short(self.loss)} to {short(self.after)}"
        return ""

    @property
    def moves_too_far(self) -> bool:
        """Whether a weight is moved by more than the rule ``update_large`` allows."""
        return self.moved > RULES["update_large"].thresholds["most"]

    @property
    def words(self) -> str:
        """What became of it."""
        if self.broken:
            return f"{self.broken} not finite"
        said = "the step stays finite"
        if not math.isnan(self.moved):
            said += f" and moves {self.parameter} by {percent(self.moved)} of its size"
        if not math.isnan(self.after):
            said += f"; the loss of its batch goes from {short(self.loss)} to {short(self.after)}"
        return said


def attempted(
    trial: Trial, change: Mapping[str, Any], run: Run, optimizer: Any, autocast: Mapping[str, torch.dtype] | None = None
) -> Attempt:
    """Take one step of *trial* with what *change* says, and return what became of it.

    Args:
        trial: of a model in the state before the step, with the random state of its pass; its parameters must be copies.
        change: as :func:`checked_change` returns it.
        run: runs it forward and backward.
        optimizer: as :meth:`Trial.make_optimizer` takes it; None: no step is taken.
        autocast: by device type, the autocast block that the step was in.

    Raises:
        ArgumentError: the model could not be copied, or the optimizer has no number that is changed.
    """
    if not trial.is_free:
        raise ArgumentError("the model is too large to be copied, and no step is tried on the model itself: free some memory")
    casts = dict(autocast or {})
    if "dtype" in change:
        _convert(trial, change["dtype"])
        casts = {}
    if "autocast" in change:
        kind = next((each.device.type for each in trial.model.parameters()), "cpu")
        casts = {} if change["autocast"] is False else {kind: change["autocast"]}
    if "without" in change:
        _leave_out(trial, change["without"])
    made = None if optimizer is None else trial.make_optimizer(optimizer)
    for group in () if made is None else made.param_groups:
        for name in ("lr", "eps"):
            if name in change and name not in group:
                raise ArgumentError(f"change={{{name!r}: ...}}: a {type(made).__name__} has no {name}")
            group.update({name: change[name]} if name in change else {})
    made_of_it = run(trial, casts)
    loss = made_of_it.get(LOSS)
    own = {name: parameter for name, parameter, _ in parameters(trial.model)}
    gradients = {name: each.grad for name, each in own.items() if each.grad is not None}
    broken = _broken(made_of_it, "is") or _broken(gradients, "gradient")
    moved, worst = math.nan, ""
    if "clip_grad_norm" in change:
        nn.utils.clip_grad_norm_(list(own.values()), change["clip_grad_norm"])
    norm = math.sqrt(sum(float(each.double().square().sum()) for each in gradients.values()))
    after: Tensor | None = None
    if made is not None and not broken:
        tables = {id(each.weight) for each in trial.model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)}
        weights = {name: own[name] for name in gradients if own[name].dim() > 1 and id(own[name]) not in tables}
        before = {name: each.detach().clone() for name, each in weights.items()}
        trial.step(made)
        broken = _broken(own, "parameter")
        ratios = {name: _ratio(before[name], own[name].detach()) for name in before}
        worst = max(ratios, key=ratios.__getitem__, default="")
        moved = ratios.get(worst, math.nan)
        if loss is not None and not broken:
            with torch.no_grad(), cast_as(casts):
                after = trial.loss()
            broken = _broken({} if after is None else {"the loss after the step": after}, "is")
    first, then = (math.nan if each is None else float(each.detach()) for each in (loss, after))
    return Attempt(broken, first, then, norm, moved, worst)


@contextlib.contextmanager
def cast_as(casts: Mapping[str, torch.dtype]) -> Any:
    """Enter autocast blocks by device type."""
    with contextlib.ExitStack() as stack:
        for kind, dtype in casts.items():
            stack.enter_context(torch.autocast(kind, dtype=dtype))
        yield


def run_with_loss(trial: Trial, casts: dict[str, torch.dtype]) -> dict[str, Tensor]:
    """Run *trial* forward, and backward from its loss; return the loss.

    Raises:
        ArgumentError: there is none.
    """
    with cast_as(casts):
        loss = trial.loss()
    if loss is None:
        raise ArgumentError("there is no loss to send backward: give loss_fn, a function from the model's output to a scalar")
    torch.autograd.backward(loss)
    return {LOSS: loss.detach()}


def _convert(trial: Trial, dtype: torch.dtype) -> None:
    trial.model.to(dtype)
    trial.args, trial.kwargs = remap((trial.args, trial.kwargs), lambda each: each.to(dtype) if is_floating(each) else each)


def _leave_out(trial: Trial, indices: list[int]) -> None:
    """Take the samples at *indices* out of every argument that has as many samples as the first."""
    size = next((each.shape[0] for _, each in walk((trial.args, trial.kwargs)) if each.dim()), 0)
    if not all(index < size for index in indices) or len(set(indices)) >= size:
        raise ArgumentError(f"change={{'without': {indices}}}: the batch has {many(size, 'sample')}, from 0 on; leave one at least")

    def kept(each: Tensor) -> Tensor:
        if not each.dim() or each.shape[0] != size:
            return each
        return each[kept_of(size, indices, each.device)]

    trial.args, trial.kwargs = remap((trial.args, trial.kwargs), kept)


def kept_of(size: int, indices: list[int], device: torch.device) -> Tensor:
    """Return the places of *size* samples without *indices*."""
    return torch.tensor([place for place in range(size) if place not in set(indices)], device=device)


def _broken(held: Mapping[str, Tensor], kind: str) -> str:
    """Say which of *held* are not finite; ``""`` if all are."""
    bad = [name for name, each in held.items() if not bool(torch.isfinite(each.detach()).all())]
    if not bad:
        return ""
    return f"{bad[0]} is" if kind == "is" else f"{many(len(bad), kind)} of {len(held):,} {'is' if len(bad) == 1 else 'are'}"


def _ratio(before: Tensor, after: Tensor) -> float:
    """Return an update as a share of its weight, which counts as at least as large as PyTorch would initialise it."""
    usual = math.sqrt(before.shape[0] / 3)  # root of the sum of squares of numbers of size 1 / sqrt(3 inputs)
    return float((after.double() - before.double()).norm()) / max(float(before.double().norm()), usual)


class Tried(Answer):
    """One step as it was, and with something changed.

    Attributes:
        change: what was changed, by name.
        as_it_was, changed: what became of the step.
        notes: what the reader must know of how it was run.
    """

    def __init__(self, change: Mapping[str, Any], as_it_was: Attempt, changed: Attempt, notes: list[str]) -> None:
        self.change, self.as_it_was, self.changed, self.notes = dict(change), as_it_was, changed, notes

    @property
    def proved(self) -> bool:
        """Whether the step is at fault as it was, and not with the change."""
        return bool(self.as_it_was.fault) and not self.changed.fault

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with the step that was changed."""
        if not self.changed.fault:
            return ()
        rule = "nonfinite" if self.changed.broken else "step_large"
        return (
            Finding(rule, f"with {words_of(self.change)}: {self.changed.fault}", severity="bad" if self.changed.broken else "warn"),
        )

    def _content(self) -> dict[str, Any]:
        sides = {"as_it_was": vars(self.as_it_was), "changed": vars(self.changed)}
        return {"change": {name: str(value) for name, value in self.change.items()}, "proved": self.proved, **sides}

    def _headline(self) -> str:
        start = "proved, " if self.proved else "the fault stays, " if self.as_it_was.fault else ""
        norms = (
            "" if self.changed.broken else f"; gradient norm {_number(self.as_it_was.gradient)} -> {_number(self.changed.gradient)}"
        )
        return f"{start}with {words_of(self.change)}: {self.changed.words}{norms}"

    def _grid(self) -> Grid:
        numbers = [
            ("loss", "loss"),
            ("loss after it", "after"),
            ("gradient norm", "gradient"),
            ("largest update / weight", "moved"),
        ]
        both = (self.as_it_was, self.changed)
        rows = [
            [
                Cell("not finite", "quiet"),
                *(Cell(each.broken.removesuffix(" is").removesuffix(" are") or "nothing") for each in both),
            ]
        ]
        rows += [[Cell(label, "quiet"), *(Cell(_number(getattr(each, name))) for each in both)] for label, name in numbers]
        return Grid(self._headline(), ["", "as it was", words_of(self.change)], rows, [*self.notes])

    def _report(self) -> Report:
        return Report(
            "sonde.replay", words_of(self.change), self.verdict, self._headline(), [Part("", self._grid())], [*self.notes]
        )


def _number(value: float) -> str:
    return "–" if math.isnan(value) else short(value)


def words_of(change: Mapping[str, Any]) -> str:
    """Return a change in words.

    >>> words_of({"lr": 0.1, "autocast": False})
    'lr 0.1, no autocast'
    """
    said = []
    for name, value in change.items():
        if name == "autocast":
            said.append("no autocast" if value is False else f"autocast to {str(value).removeprefix('torch.')}")
        elif name == "without":
            said.append(f"{'sample' if len(value) == 1 else 'samples'} {', '.join(map(str, value))} left out")
        else:
            said.append(f"{name} {value:g}" if isinstance(value, float) else f"{name} {str(value).removeprefix('torch.')}")
    return ", ".join(said)
