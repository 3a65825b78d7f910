"""Notice that parameters change between steps: averaged over ranks, stepped by an outer optimizer, clamped, or exchanged."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from sonde.engine import SiteHook
from sonde.stats import HostCopy, bits_of, in_memory, local
from sonde.words import many

_WATCHED = 3  # parameters: one alone may be equal on all ranks, as a bias before a normalisation is
_EACH = 16  # logged steps that are looked at each; of later ones a quarter, in no step with any period
_SHARE, _GOLDEN = 0.25, (5**0.5 - 1) / 2


class BetweenSteps:
    """Compares the smallest parameters after a logged step with the same as the next training pass begins. No host sync.

    Their bits are compared: whoever writes into ``parameter.data``, as averages over ranks do, leaves versions as they are.
    """

    def __init__(self) -> None:
        self._chosen: tuple[frozenset[int], int, list[Tensor]] = frozenset(), 0, []  # for an optimizer, among so many hooks
        self._held: list[tuple[list[Tensor], Tensor]] = []  # parameters of one device and type, and their bits after the step
        self._times: dict[torch.device, Tensor] = {}  # by device, at how many looks some parameter had changed
        self._logged = self._looks = 0

    @property
    def waits(self) -> bool:
        """Whether parameters are remembered that the next training pass is to be compared with."""
        return bool(self._held)

    def begin(self, hooks: Sequence[SiteHook], held: frozenset[int]) -> None:
        """Remember some parameters after a logged step.

        Args:
            hooks: of all parameters.
            held: the ids of the parameters of the optimizer that has made the step.
        """
        self._held = []
        self._logged += 1
        if self._logged > _EACH and self._logged * _GOLDEN % 1 > _SHARE:
            return
        of, among, chosen = self._chosen
        if of is not held or among != len(hooks) or not chosen:
            own = [hook.target for hook in hooks if id(hook.target) in held and not is_lazy(hook.target)]
            chosen = sorted((each for each in own if each.grad is not None), key=torch.numel)[:_WATCHED]
            self._chosen = held, len(hooks), chosen
        with torch.inference_mode(False), torch.no_grad():
            kinds: dict[object, list[Tensor]] = {}
            for parameter in chosen:
                kinds.setdefault((parameter.device, parameter.dtype), []).append(parameter)
            for each in kinds.values():
                alike = [parameter for parameter in each if _held_of(parameter) is not None]
                if (before := _bits(alike)) is not None:
                    self._held.append((alike, before))

    def look(self) -> None:
        """Compare, as a training pass begins."""
        held, self._held = self._held, []
        if not held:
            return
        self._looks += 1
        found: dict[torch.device, Tensor] = {}
        with torch.inference_mode(False), torch.no_grad():
            for parameters, before in held:
                now = _bits(parameters)
                if now is not None and (now.shape, now.device, now.dtype) == (before.shape, before.device, before.dtype):
                    changed = (now != before).any()
                    found[now.device] = found[now.device] | changed if now.device in found else changed
            for device, changed in found.items():
                self._times[device] = self._times[device] + changed if device in self._times else changed.to(torch.float64)

    def said(self) -> str:
        """Return in words how often parameters have changed between steps; ``""`` for never. Waits for the device."""
        times = max((int(each) for each in HostCopy.of(list(self._times.values())).unpack()), default=0)
        if not times:
            return ""
        steps = many(self._looks, "logged step")
        return (
            f"of the optimizer's step alone: after {times} of {steps} parameters were changed again before the next forward, as by "
            "an average over ranks, an outer optimizer or an exchange, and no row has that change"
        )


def _bits(parameters: Sequence[Tensor]) -> Tensor | None:
    """Return a copy of the bits of *parameters*, of one device and type; None if one is not plain, or there are none."""
    parts = [_held_of(parameter) for parameter in parameters]
    plain = [bits_of(part).reshape(-1) for part in parts if part is not None]
    return torch.cat(plain) if plain and len(plain) == len(parts) else None


def _held_of(parameter: Tensor) -> Tensor | None:
    """Return what this rank holds of *parameter* in plain memory; None for what is not plain."""
    part = local(parameter)
    return None if part is None else in_memory(part.detach())
