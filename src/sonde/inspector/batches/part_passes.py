"""See the training passes of a model's parts, where these are called and the model itself is not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sonde.engine import Event, Probe, observe
from sonde.inspector.batches.batch_checks import BatchChecks
from sonde.inspector.batches.look import PASSES
from sonde.rules import Chosen, Finding


class PartPasses:
    """Looks at the passes of parts as :class:`~sonde.inspector.batches.batch_checks.BatchChecks` does at those of a model.

    Args:
        chosen: the rules that are applied.
        model: the model.
        name: its name in the sites.
    """

    def __init__(self, chosen: Chosen, model: nn.Module, name: str) -> None:
        self._chosen, self._model, self._name = chosen, model, name
        self._checks: dict[str, BatchChecks] = {}  # by the name of the part
        self._passes: dict[str, int] = {}  # of the step that runs
        self._probe: Probe | None = None

    @property
    def looks(self) -> bool:
        """Whether passes are looked at."""
        return self._probe is not None

    def begin_step(self, parts: tuple[str, ...]) -> None:
        """Look at the passes of the logged step that begins; of *parts*, if the model was never called."""
        self._passes = {}
        for part in parts:
            self._checks.setdefault(part, BatchChecks(self._chosen, self._model, self._name, part))
        looks = any(each.looks_soon for each in self._checks.values())  # a probe sees from the next step on
        if looks and self._probe is None:
            self._probe = observe(self._model, self._returned, include=list(self._checks), name=self._name)
        elif not looks:
            self.rest()

    def end_step(self) -> None:
        """Count a logged step."""
        for each in self._checks.values():
            each.end_step()

    def before_backward(self, sent: list[Tensor]) -> None:
        """Note what a loss that is *sent* backward says of the passes that it may be of."""
        for each in self._checks.values():
            each.before_backward(sent)

    def look_at_loss(self) -> None:
        """Look what the loss adds up whose backward pass has ended."""
        for each in self._checks.values():
            each.look_at_loss()

    def end(self) -> None:
        """See no more passes, and judge the last."""
        self.rest()
        for each in self._checks.values():
            each.end()

    def found(self) -> tuple[Finding, ...]:
        """Return the findings so far. Waits for the device."""
        return tuple([found for each in [*self._checks.values()] for found in each.found()])

    def _returned(self, event: Event) -> None:
        checks = self._checks[event.name]
        if event.phase == "forward" and torch.is_grad_enabled() and event.module is not None and event.module.training:
            number = self._passes[event.name] = self._passes.get(event.name, -1) + 1
            if checks.looks and number < PASSES:
                checks.look(event.args, event.kwargs, event.value, (event.tick.epoch, event.tick.step), number)

    def rest(self) -> None:
        """See no passes up to the next logged step."""
        if self._probe is not None:
            self._probe.detach()
            self._probe = None
