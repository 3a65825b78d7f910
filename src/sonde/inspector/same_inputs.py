"""Notice that nothing tells samples apart: all that goes into a model is one value, the same for every sample, or in every pass."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine import raise_if_foreign, walk
from sonde.rules import DEAD_SAMPLES, Chosen, Finding
from sonde.stats import HostCopy, in_memory

_SAMPLE = 4096  # elements of a tensor whose places count
_DRAW = (
    "draw other samples in each step: look for a batch that is made once, before the loop, or by next(iter(loader)) in it, and for "
    "a seed that is set anew; a full batch that is meant has too few samples"
)
_TIMES = ("t", "time", "times", "timestep", "timesteps", "sigma", "sigmas", "noise_level", "noise_levels", "log_snr", "logsnr")
_DRAW_TIME = (
    "draw one for each sample in each step: look for an index that is always the same, a seed that is set anew, and a rounding; "
    "and give the model those with which its inputs were made"
)


class SameInputs:
    """Looks at what goes into a model in its first training pass, and in some that follow a logged step. No host sync.

    Args:
        chosen: the rules that are applied.
        model: whose passes these are.
        name: the name of the model in the sites.
    """

    def __init__(self, chosen: Chosen, model: nn.Module, name: str) -> None:
        self._chosen, self._model = chosen, model
        self._name = f"{name}/(root)" if name else "(root)"
        self._times: list[str] = []  # of each tensor of a pass its name, if it is a time of each sample; else ""
        self._seen: list[tuple[HostCopy, HostCopy]] = []  # of each pass and tensor: whether samples differ, whether elements do
        self._prints: list[HostCopy] = []  # of each pass and tensor two sums, which are the same where the tensor is
        self._samples = 0
        self._has_floats = False
        self._first = (0, 0)  # epoch and step of the first pass
        self._found: tuple[Finding, ...] | None = None if chosen.is_on("input_same") else ()

    @property
    def looks(self) -> bool:
        """Whether further passes matter."""
        return self._found is None and len(self._seen) < self._chosen.least("input_same")

    def look(self, args: Sequence[Any], kwargs: Mapping[str, Any], epoch: int, step: int) -> None:
        """Compare the samples in the arguments of a pass that begins."""
        self._first = self._first if self._seen else (epoch, step)
        try:
            with torch.inference_mode(False), torch.no_grad():
                named = walk([list(args), dict(kwargs)])
                self._measure([in_memory(tensor.detach()) for _, tensor in named])
                samples = {len(tensor) for _, tensor in named if tensor.dim() > 1}
                held = [(path, tensor) for path, tensor in named if tensor.numel() > 1]
                self._times = [self._time_at(path) if _is_of_each(tensor, samples) else "" for path, tensor in held]
        except Exception as error:
            raise_if_foreign(error)
            self._found = ()

    def _measure(self, every: Sequence[Tensor | None]) -> None:
        tensors = [each for each in every if each is not None and each.layout is torch.strided]
        if len(tensors) < len(every) or not any(each.dim() > 1 and len(each) >= DEAD_SAMPLES for each in tensors):
            self._found = ()  # not known, or one sample alone
            return
        tensors = [each for each in tensors if each.numel() > 1]
        samples = [(each != each[:1]).any().double() for each in tensors]
        elements = [(each != each.flatten()[0]).any().double() for each in tensors]
        self._has_floats = any(each.is_floating_point() for each in tensors)
        self._seen.append((HostCopy.of(samples), HostCopy.of(elements)))
        self._samples = max(len(each) for each in tensors)
        self._prints.append(HostCopy.of([_print_of(each) for each in tensors]))

    def _one_time(self, prints: Sequence[Sequence[list[float]]]) -> Finding | None:
        """Return the finding that a time is one number for all samples, in all passes, whose *prints* these are."""
        for at, name in enumerate(self._times):
            is_one = name and all(len(each) == len(self._times) and each[at] == prints[0][at] for each in prints)
            if is_one and not any(bool(float(samples.unpack()[at])) for samples, _ in self._seen):
                found = self._chosen.judge("input_same", float(len(self._seen)), 0.0, name=name)
                return found and replace(found, advice=_DRAW_TIME)
        return None

    def _time_at(self, path: str) -> str:
        """Return the name of the argument at a *path*, if it is called as a time or a noise level is; else ``""``."""
        keys = re.findall(r"\[([^]]*)\]", path)
        names = list(inspect.signature(self._model.forward).parameters)
        name = keys[-1].strip("'\"") if len(keys) > 1 else ""
        if name.isdigit() and len(keys) == 2:
            name = names[int(name)] if int(name) < len(names) else ""
        return name if name in _TIMES else ""

    def found(self) -> tuple[Finding, ...]:
        """Return the finding, if there is one so far. Waits for the device, once there were enough passes."""
        if self._found is None and not self.looks:
            samples, elements = ([float(one) for two in self._seen for one in two[at].unpack()] for at in (0, 1))
            first, *others = ([each.tolist() for each in one.unpack()] for one in self._prints)
            again = float(self._samples) if any(samples) and all(each == first for each in others) else math.nan
            found = self._chosen.judge("input_same", float(len(self._seen)), any(samples), again, is_blank=not any(elements))
            found = found if found is None or not any(samples) else replace(found, advice=_DRAW)
            found = self._one_time([first, *others]) if found is None else found
            self._found = ()
            if found is not None and (self._has_floats or any(elements)):  # one index throughout is told of the embedding
                placed = found.at(f"{self._name}:input", *self._first, f"{self._name}: {found.message}")
                self._found = (replace(placed, first_step=self._first[1]),)
        return self._found or ()


def _is_of_each(tensor: Tensor, samples: Collection[int]) -> bool:
    """Return whether a *tensor* holds one number for each of so many *samples*."""
    return tensor.dim() > 0 and tensor.numel() == len(tensor) >= DEAD_SAMPLES and len(tensor) in samples


def _print_of(tensor: Tensor) -> Tensor:
    """Return the sum of a *tensor*, and one of some elements times their places."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    some = real.flatten()[:: max(1, real.numel() // _SAMPLE)].double()
    return torch.stack(
        [real.sum(dtype=torch.float64), some @ torch.arange(1.0, len(some) + 1, dtype=torch.float64, device=some.device)]
    )
