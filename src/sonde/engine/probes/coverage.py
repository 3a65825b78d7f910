"""List the sites of a probe with how often each delivered, and why the others did not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from sonde.engine.probes.attachment import Attachment
from sonde.engine.probes.dead_hooks import dead_among
from sonde.engine.probes.site_hook import SiteHook
from sonde.engine.probes.step_hooks import StepHook
from sonde.site import Port, Site
from sonde.view.table import Cell, Grid, ShownAsTable

__all__ = ["Coverage", "Covered"]


@dataclass(frozen=True, slots=True)
class Covered:
    """One site of a coverage.

    Attributes:
        site: the place.
        count: how often something was delivered or added.
        reason: why nothing, or not everything, was delivered; ``""`` without one.
    """

    site: Site
    count: int
    reason: str = ""


class Coverage(ShownAsTable):
    """The sites of a probe, each with how often it delivered. Iterate over it, or print it."""

    def __init__(self, lines: list[Covered], *, attached: bool) -> None:
        self._lines = lines
        self._attached = attached

    def __iter__(self) -> Iterator[Covered]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def observed(self) -> tuple[Site, ...]:
        """Sites that delivered something."""
        return tuple(line.site for line in self._lines if line.count)

    @property
    def missing(self) -> tuple[Covered, ...]:
        """Sites that delivered nothing, each with the reason."""
        return tuple(line for line in self._lines if not line.count)

    def _grid(self) -> Grid:
        rows = [
            [Cell(str(line.site)), Cell(str(line.count), align="right"), Cell(line.reason, tone="quiet" if line.count else "bad")]
            for line in self._lines
            if line.reason or not line.count
        ]
        seen = len(self.observed)
        state = "" if self._attached else ", detached"
        return Grid(
            title=f"coverage: {seen} of {len(self)} sites delivered{state}",
            columns=["site", "events", "why"],
            rows=rows,
            empty="every selected site has delivered",
        )

    @classmethod
    def of(cls, attachment: Attachment) -> Coverage:
        """Return the coverage of *attachment* so far."""
        held, notes = attachment.hooks, attachment.delivery.notes
        dead = {id(hook) for hook in dead_among(attachment.roots, held.held)} if attachment.ran else set()
        if attachment.attached:
            held.note_later_hooks()
        called = {hook.module for hook in held if hook.is_on_module and (hook.was_eager or hook.has_fired)}
        unfused = _kept_from_fusing(attachment)
        lines = []
        for hook in held:
            for port, count in hook.counts().items():
                site = hook.sites[port]
                reason = notes.get(site, "") or (_UNFUSED if hook.module in unfused else "")
                if not count and not reason:
                    reason = _why_nothing(attachment, hook, port, called, dead=id(hook) in dead)
                lines.append(Covered(site, count, reason))
        lines += [Covered(site, 0, reason) for site, reason in held.unhooked.items()]
        return cls(lines, attached=attachment.attached)


def _why_nothing(attachment: Attachment, hook: SiteHook, port: Port, called: set[nn.Module], *, dead: bool) -> str:
    """Return why *hook* has delivered nothing at *port*, as far as the model itself tells."""
    if dead:
        return "compiled before it was observed: its hook never ran"
    stopped_by, training = attachment.delivery.stopped_by, attachment.delivery.switch.training
    if stopped_by is not None:
        return f"observation stopped: {type(stopped_by).__name__}: {stopped_by}"
    if not attachment.ran:
        return "the model was not seen to run"
    if not hook.is_on_module:
        if isinstance(hook, StepHook):
            return "no step was seen of an optimizer that holds it"
        return "frozen" if not hook.target.requires_grad else "no gradient was accumulated into it"
    if hook.module in called and training is not None and port in ("input", "output"):
        return f"called, but in no {'training' if training else 'evaluation'} pass"
    if hook.module in called:
        return _NO_GRADIENT.get(port, "called, but nothing of it could be recorded")
    if hook.clock.forward_counter.raised:
        return "not reached, or did not return: the forward raised"
    below = set(hook.module.modules()) - {hook.module}
    if below & called:
        return "not called itself, though modules in it were: its .forward() is called directly"
    if any(root.was_used(parameter) for root in attachment.roots for parameter in hook.module.parameters()):
        return "never called, though its parameters were used: by a fused or functional path, or .forward() directly"
    return "never called: a branch not taken, or a fused or functional path (without gradients these two look alike)"


_UNFUSED = "while it is observed, torch does not use its fused path for this layer: in evaluation the last bits may differ"


def _kept_from_fusing(attachment: Attachment) -> set[nn.Module]:
    """Return transformer layers in evaluation, whose fused path torch does not take while a module in them has hooks."""
    observed = {hook.module for hook in attachment.hooks}
    layers = {
        module for root in attachment.roots for module in root.model.modules() if isinstance(module, nn.TransformerEncoderLayer)
    }
    return {layer for layer in layers if not layer.training and observed & set(layer.modules())}


_NO_GRADIENT: dict[Port, str] = {
    "grad_output": "no gradient reached its output",
    "grad_input": "no gradient reached its input through it alone (none was needed, or it wrote into its input)",
}
