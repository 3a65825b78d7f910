"""List the sites of a probe with how often each delivered, and why the others did not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from sonde.answer import Cell, Grid, ShownAsTable
from sonde.engine import selection
from sonde.engine.probes.attachment import Attachment
from sonde.engine.probes.dead_hooks import dead_among
from sonde.engine.probes.hook_set import LATER_HOOK, REPLACED
from sonde.engine.probes.site_hook import SiteHook
from sonde.engine.probes.step_hooks import SAMPLED, StepHook
from sonde.engine.torch_api.data_parallel import is_averaged_later
from sonde.engine.torch_api.modules import parameters_in, parameters_of
from sonde.site import Port, Site


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
    """The sites of a probe, each with how often it delivered. Iterate over it, or print it.

    >>> import sonde, torch
    >>> net = torch.nn.Linear(2, 1)
    >>> with sonde.observe(net, sonde.stats.Norm()) as probe:
    ...     _ = net(torch.ones(1, 2))
    >>> [(str(line.site), line.count) for line in probe.coverage()]
    [('(root):output', 1)]
    """

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
        return tuple([line.site for line in self._lines if line.count])

    @property
    def missing(self) -> tuple[Covered, ...]:
        """Sites that delivered nothing, each with the reason."""
        return tuple([line for line in self._lines if not line.count])

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
    def of(cls, attachment: Attachment, added: Mapping[int, int] | None = None) -> Coverage:
        """Return the coverage of *attachment* so far; *added* are the additions to its rows, where they were read already.

        >>> import sonde, torch
        >>> net = torch.nn.Linear(2, 1)
        >>> with sonde.observe(net, sonde.stats.Norm()) as probe:
        ...     _ = net(torch.ones(1, 2))
        >>> len(probe.coverage())
        1
        """
        added = attachment.hooks.additions() if added is None else added
        held, notes = attachment.hooks, attachment.delivery.notes
        dead = {id(hook) for hook in dead_among(attachment.roots, held.held)} if attachment.ran else set()
        if attachment.attached:
            held.note_later_hooks()
        called = {hook.module for hook in held if hook.is_on_module and (hook.was_eager or hook.has_fired)}
        unfused = _kept_from_fusing(attachment)
        averaged = any(is_averaged_later(root.model) for root in attachment.roots)
        lines = []
        for hook in held:
            for port, delivered in hook.counts(added).items():
                site = hook.sites[port]
                count = max(delivered - attachment.delivery.refused[site], 0)
                reason = attachment.delivery.why_stopped(site) or notes.get(site, "")
                if count:
                    reason = reason or (_UNFUSED if hook.module in unfused else "")
                    if averaged and not hook.is_on_module and not isinstance(hook, StepHook):
                        reason = reason or _OF_THIS_RANK
                elif not reason or reason.startswith(_OF_WHAT_CAME):
                    why = _why_nothing(attachment, hook, port, called, dead=id(hook) in dead)
                    reason = f"{why}; {reason}" if reason.startswith(REPLACED) else why
                lines.append(Covered(site, count, reason))
        lines += [Covered(site, 0, reason) for site, reason in held.unhooked.items()]
        return cls(lines, attached=attachment.attached)


def _why_nothing(attachment: Attachment, hook: SiteHook, port: Port, called: set[nn.Module], *, dead: bool) -> str:
    """Return why *hook* has delivered nothing at *port*, as far as the model shows the cause."""
    if dead:
        return "compiled before it was observed: its hook never ran"
    stopped_by, training = attachment.delivery.stopped_by, attachment.delivery.switch.training
    if stopped_by is not None:
        return f"observation stopped: {type(stopped_by).__name__}: {stopped_by}"
    if isinstance(hook, StepHook):
        return _why_no_step(hook)
    if not hook.is_on_module:
        return _why_no_gradient(attachment, hook)
    if not attachment.ran and not called:
        return "the model was not seen to run"
    if hook.module in called and training is not None and port in ("input", "output"):
        return f"called, but in no {'training' if training else 'evaluation'} pass"
    if hook.module in called:
        return _NO_GRADIENT.get(port, "called, but nothing of it could be recorded")
    if hook.clock.forward_counter.raised:
        return "not reached, or did not return: the forward raised"
    below = set(hook.module.modules()) - {hook.module}
    if below & called:
        return "not called itself, though modules in it were: by another module, or because its .forward() is called directly"
    used = [parameter for parameter in parameters_in(hook.module) if any(root.was_used(parameter) for root in attachment.roots)]
    if used:
        return _why_used(attachment, hook, used, called)
    if any(root.has_trained for root in attachment.roots) and any(each.requires_grad for each in hook.module.parameters()):
        return "never called, and no gradient came to its parameters: a branch not taken"
    return "never called: a branch not taken, or a fused or functional path (without gradients these two look alike)"


def _why_no_step(hook: StepHook) -> str:
    """Return why *hook* has delivered nothing around the steps of its parameter."""
    if hook.was_stepped():
        return "an optimizer that holds it has stepped, and it got no gradient"
    if not hook.target.requires_grad:
        return "frozen: no optimizer that was seen to step holds it"
    if hook.around.has_stepped:
        return "no optimizer that was seen to step holds it"
    return "no step of an optimizer was seen while it was observed"


def _why_no_gradient(attachment: Attachment, hook: SiteHook) -> str:
    """Return why *hook* has delivered no gradient of its parameter after a backward pass."""
    if not hook.target.requires_grad:
        return "frozen"
    if any(root.has_trained for root in attachment.roots):
        return "no gradient was accumulated into it"
    return "no backward pass was seen that accumulates into parameters" if attachment.ran else "the model was not seen to run"


def _why_used(attachment: Attachment, hook: SiteHook, used: Sequence[nn.Parameter], called: set[nn.Module]) -> str:
    """Return why gradients came to the parameters *used* of the module of *hook*, though the module was never called."""
    mine, ids = set(hook.module.modules()), {id(parameter) for parameter in used}
    others = [
        (item.name, item.module)
        for root in attachment.roots
        for item in selection.members(root.model)
        if item.module not in mine and any(id(held) in ids for held in parameters_of(item.module).values())
    ]
    shared = {id(held) for _, other in others for held in parameters_of(other).values()}
    if not ids <= shared:
        return "never called, though its parameters were used: by a fused or functional path, or .forward() directly"
    user = next((name for name, other in others if other in called), others[0][0])
    return f"never called: the gradients of its parameters came by {user or '(root)'}, which has them too"


_OF_WHAT_CAME = (LATER_HOOK, REPLACED, SAMPLED)
"""The beginnings of notes on what was delivered, which do not say why nothing was."""


_OF_THIS_RANK = "of this rank's samples, before DDP has averaged it over the ranks: with grad_at_step=True it is the average"
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
