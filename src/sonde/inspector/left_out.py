"""Notice trainable parameters that the training leaves as they are: those of no optimizer, and those that no gradient reaches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn.parameter import is_lazy

from sonde.engine import SiteHook, parameters_of, version_of
from sonde.rules import RULES, Chosen, Finding, among

_LOOKS = 2 * int(RULES["unmoved"].thresholds["least"])  # logged steps, from the first on
_MOST = 0.5  # share of the layers without an optimizer; if more are, the others are what is meant to be trained


@dataclass
class _Left:
    """A parameter that was left as it is so far.

    Attributes:
        hook: around the steps of the parameter.
        version: how often the parameter had been changed in place when it was first looked at.
        is_held: an optimizer holds the parameter, and no gradient has come to it; otherwise none is known to hold it.
        steps: how many logged steps left it: with a gradient if it is not held.
    """

    hook: SiteHook
    version: int
    is_held: bool
    steps: int = 0

    def is_left(self) -> bool:
        """Look at the parameter after a logged step; return whether it is still left as it is."""
        parameter = self.hook.target
        if not (parameter.requires_grad and _is_current(self.hook) and version_of(parameter) == self.version):
            return False
        has_gradient = parameter.grad is not None
        self.steps += has_gradient is not self.is_held
        return not has_gradient if self.is_held else not self.hook.was_stepped()


class LeftOut:
    """The parameters of one model that its first logged steps leave as they are. They have no rows, since no step is made of them.

    It is looked at in few logged steps, at the parameters that were left out in all of them so far: no values are read.
    """

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen
        self._left: list[_Left] | None = None
        self._looks = 0
        self._first = (0, 0)  # epoch and step of the first look
        self._layers = 0  # that have trainable parameters
        self._found: tuple[Finding, ...] = ()

    @property
    def looks(self) -> bool:
        """Whether further logged steps matter."""
        return self._looks < _LOOKS and self._left != []

    def check(
        self, hooks: Sequence[SiteHook], held: frozenset[int] | None, epoch: int, step: int, order: Mapping[str, int]
    ) -> None:
        """Look at the parameters after a logged step.

        Args:
            hooks: of all parameters.
            held: the ids of the parameters of the optimizer that has made the step; None if that is not known.
            epoch, step: the moment.
            order: the place of each module that runs in the order of execution.
        """
        if held is None:
            self._left = []
        elif self._left is None:
            self._first = epoch, step
            self._left = list(self._first_left(hooks, held))
        self._left = [each for each in self._left or () if each.is_left()]
        self._looks += 1
        if self._looks == _LOOKS:
            self.end(hooks, order)

    def _first_left(self, hooks: Sequence[SiteHook], held: frozenset[int]) -> Iterator[_Left]:
        trained = [hook for hook in hooks if not hook.is_on_module and _is_trained(hook.target)]
        self._layers = len({id(hook.module) for hook in trained})
        for hook in trained:
            is_held = id(hook.target) in held
            if hook.target.grad is None if is_held else not hook.was_stepped():
                yield _Left(hook, version_of(hook.target), is_held)

    def end(self, hooks: Sequence[SiteHook], order: Mapping[str, int]) -> None:
        """Judge what was seen, unless that is done."""
        left, self._left = self._left or [], []
        if not left:
            return
        loose = [each for each in left if not each.is_held and not each.hook.was_stepped()]
        if len({id(each.hook.module) for each in loose}) > _MOST * self._layers:
            loose = []
        out = {id(each.hook) for each in left}
        reached = (_place(hook, order) for hook in hooks if id(hook) not in out and hook.target.requires_grad)
        begins = min((place for place in reached if place is not None), default=0)
        cut = [each for each in left if each.is_held and (place := _place(each.hook, order)) is not None and place < begins]
        found = (self._judged("unmoved", loose, order), self._judged("unreached", cut, order))
        self._found = tuple([each for each in found if each is not None])

    def found(self) -> tuple[Finding, ...]:
        """Return the findings so far."""
        return self._found

    def _judged(self, rule: str, left: Sequence[_Left], order: Mapping[str, int]) -> Finding | None:
        found = [(each, judged) for each in left if (judged := self._chosen.judge(rule, float(each.steps))) is not None]
        if not found:
            return None
        found.sort(key=lambda two: (two[0].hook.target.dim() < 2, _place(two[0].hook, order) or 0, two[0].hook.name))
        (first, judged), names = found[0], [each.hook.sites["param"].name for each, _ in found]
        told = judged.at(str(first.hook.sites["param"]), *self._first, among(names, judged.message))
        return replace(told, first_step=self._first[1])


def _place(hook: SiteHook, order: Mapping[str, int]) -> int | None:
    """Return the place of the parameter's layer in the order of execution; None if the layer has not run."""
    return order.get(hook.name.rpartition(".")[0])


def _is_trained(parameter: Tensor) -> bool:
    return not is_lazy(parameter) and parameter.requires_grad and not parameter.is_inference()


def _is_current(hook: SiteHook) -> bool:
    """Return whether the layer still has this very parameter."""
    current: Tensor | None = parameters_of(hook.module).get(hook.name.rpartition(".")[2])
    return current is hook.target
