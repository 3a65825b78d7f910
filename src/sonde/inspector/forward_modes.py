"""Notice a forgotten ``model.train()``, by logged steps in evaluation mode alone, and a forgotten ``model.eval()``."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from sonde import rules
from sonde.rules import Chosen, Finding
from sonde.warn import warn_user

_EVALUATES = (
    "call model.eval() before each evaluation, and model.train() after it: these losses are of a network with units dropped, or of "
    "statistics of the validation batches, which also become running ones; leave it where that is meant, as for Monte Carlo dropout"
)
_ENOUGH = 3  # evaluations in evaluation mode


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
    """The modes of the passes that validation losses come from: those of one model since its last step, from the first loss on.

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

    def begin_pass(self, model: nn.Module, step: int) -> None:
        """Note the mode of a pass of *model* that begins before the *step* ends."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting[2] == step - 1:  # no step has come since, of which the pass was
            self._count(*waiting)
        acts = (f"{name} ({type(each).__name__})" for name, each in (self._acting or {}).items() if each.training)
        self._passes = [*[each for each in self._passes if each[0] == step], (step, next(acts, "") if model.training else "")]

    def take_loss(self, model: nn.Module, epoch: int, step: int) -> bool:
        """Note that a validation loss was given behind *step*; return whether further passes matter."""
        if self._acting is None:
            self._acting = {name: each for name, each in model.named_modules() if acts_by_mode(each)}
        passes, self._passes = [acts for at, acts in self._passes if at == step + 1], []
        if passes and all(passes):
            self._waiting = passes[0], epoch, step
        self._times[0] += bool(passes) and not all(passes)
        return bool(self._acting) and not self._found and self._times[0] < _ENOUGH and self._chosen.is_on("eval_mode")

    def _count(self, acts: str, epoch: int, step: int) -> None:
        self._times[1] += 1
        found = self._chosen.judge("eval_mode", self._times[0], 0, float(self._times[1]), what=acts)
        if found is not None:
            message = f"{self._model}: " * bool(self._model) + found.message
            self._found = (replace(found.at("", epoch, step, message), advice=_EVALUATES),)

    def found(self) -> tuple[Finding, ...]:
        """Return the finding that validation losses come from passes in training mode, once there is one."""
        return self._found


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
