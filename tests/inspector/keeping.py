"""An oracle for whole trainings: it keeps every tensor, with hooks of its own, and computes in float64 at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sonde.inspector import Inspector, watch

Key = tuple[str, str, int, int, int]
"""Family, site, step, micro-step, call."""
Place = tuple[str, int]
"""Site and call."""


def moments(tensors: list[Tensor]) -> dict[str, float]:
    """What ``Moments`` gives, from all elements at once."""
    values = torch.cat([tensor.double().flatten() for tensor in tensors])
    finite = values[values.isfinite()]
    empty = not len(finite)
    return {
        "count": len(values),
        "finite": len(finite),
        "mean": math.nan if empty else finite.mean().item(),
        "std": math.nan if empty else finite.std(unbiased=False).item(),
        "rms": math.nan if empty else finite.square().mean().sqrt().item(),
        "norm": finite.norm().item(),
        "min": math.nan if empty else finite.min().item(),
        "max": math.nan if empty else finite.max().item(),
        "absmax": math.nan if empty else finite.abs().max().item(),
        "zeros": (finite == 0).sum().item(),
        "nan": values.isnan().sum().item(),
        "inf": values.isinf().sum().item(),
    }


class Keeper:
    """The oracle. The training tells it when a step begins and ends; it is asked nothing while it runs."""

    def __init__(self) -> None:
        self.kept: dict[Key, list[Tensor]] = {}
        self._now: dict[str, dict[Place, list[Tensor]]] = {}
        self._evaluation: dict[str, dict[Place, list[Tensor]]] = {}
        self._calls: dict[str, dict[str, int]] = {}
        self._micro: dict[str, list[dict[str, Tensor]]] = {}
        self.steps: dict[str, int] = {}
        self._models: dict[str, nn.Module] = {}
        self._handles: list[Any] = []
        self._before: dict[int, Tensor] = {}
        self.scale = 1.0

    def watch(self, models: nn.Module | Mapping[str, nn.Module], *, first_step: int = 0, gradients: str = "step", **_: Any) -> None:
        self._keeps_micro = gradients != "step"
        self._models = dict(models) if isinstance(models, Mapping) else {"": models}
        for name, model in self._models.items():
            self._now[name], self._evaluation[name], self._micro[name] = {}, {}, []
            self.steps.setdefault(name, first_step)
            calls = self._calls[name] = {}
            self._handles.append(model.register_forward_pre_hook(lambda *_, calls=calls: calls.clear()))
            for path, module in model.named_modules():
                if type(module) not in (nn.Sequential, nn.ModuleList):
                    self.hook(name, path, module)

    def hook(self, name: str, path: str, module: nn.Module) -> None:
        """Keep what *module* returns; also called for one that comes later."""
        site = f"{name}/{path or '(root)'}" if name else path or "(root)"
        model = self._models[name]

        def keep(module: nn.Module, args: Any, output: Tensor) -> None:
            if not (model.training and torch.is_grad_enabled()):
                place = f"{site}:output", self._call(name, site)
                self._evaluation[name].setdefault(place, []).append(output.detach().clone())
                return
            now, scale, call = self._now[name], self.scale, self._call(name, site)
            now.setdefault((f"{site}:output", call), []).append(output.detach().clone())
            if output.requires_grad:
                output.register_hook(lambda grad: now.setdefault((f"{site}:grad_output", call), []).append(grad.double() / scale))

        self._handles.append(module.register_forward_hook(keep))

    def _call(self, name: str, site: str) -> int:
        """Number a call that ends within the forward of the root."""
        calls = self._calls[name]
        call = calls[site] = calls.get(site, -1) + 1
        return call

    def backward_ended(self) -> None:
        for name, model in self._models.items() if self._keeps_micro else ():
            prefix = f"{name}/" if name else ""
            found = {
                f"{prefix}{path}:grad": parameter.grad.double() / self.scale
                for path, parameter in model.named_parameters()
                if parameter.grad is not None and parameter.requires_grad
            }
            self._micro[name].append(found)

    def before(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._before[id(parameter)] = parameter.detach().clone()

    def after(self, optimizer: torch.optim.Optimizer, *names: str) -> None:
        """*optimizer* has stepped, and with it a step of the models *names* has ended."""
        for name in names or ("",):
            model, now = self._models[name], self._now[name]
            prefix = f"{name}/" if name else ""
            for path, parameter in model.named_parameters():
                if id(parameter) not in self._before:
                    continue
                site = f"{prefix}{path}"
                if parameter.grad is not None:
                    now.setdefault((f"{site}:grad", -1), []).append(parameter.grad.clone())
                now.setdefault((f"{site}:param", -1), []).append(parameter.detach().clone())
                now.setdefault((f"{site}:update", -1), []).append(
                    parameter.detach().double() - self._before.pop(id(parameter)).double()
                )

    def end(self, *names: str) -> None:
        for name in names or ("",):
            step = self.steps[name]
            for (site, call), tensors in self._now[name].items():
                self.kept["moments", site, step, 0, call] = list(tensors)
            for micro, found in enumerate(self._micro[name]):
                for site, tensor in found.items():
                    self.kept["moments_micro", site, step, micro, -1] = [tensor]
            self._now[name], self._micro[name] = {}, []
            self.steps[name] += 1

    def skipped(self) -> None:
        for name in self._models:
            self._now[name], self._micro[name] = {}, []

    def evaluated(self) -> None:
        for name in self._models:
            for (site, call), tensors in self._evaluation[name].items():
                self.kept["moments_eval", site, max(self.steps[name] - 1, 0), 0, call] = list(tensors)
            self._evaluation[name] = {}

    def tick_epoch(self) -> None:
        """Epochs are no business of the numbers."""

    def step_by_hand(self) -> None:
        """Only ``watch`` must be told."""

    def replaced(self, path: str, module: nn.Module) -> None:
        self.hook("", path, module)

    def finish(self) -> None:
        for handle in self._handles:
            handle.remove()

    def numbers(self) -> dict[Key, dict[str, float]]:
        return {key: moments(tensors) for key, tensors in self.kept.items()}

    def norms(self) -> dict[tuple[str, int], float]:
        """The norms over all parameters, by name and step."""
        words = {"grad": "grad_norm", "param": "param_norm", "update": "update_norm"}
        squares: dict[tuple[str, int], float] = {}
        for (family, site, step, _, _), tensors in self.kept.items():
            path, _, port = site.rpartition(":")
            if port in words and family == "moments":
                name = f"{path.partition('/')[0]}/{words[port]}" if "/" in path else words[port]
                squares[name, step] = squares.get((name, step), 0.0) + moments(tensors)["norm"] ** 2
        return {key: math.sqrt(square) for key, square in squares.items()}


class Watcher:
    """``sonde.watch`` behind the same words."""

    def __init__(self) -> None:
        self.inspector: Inspector | None = None
        self.scale = 1.0

    def watch(self, models: Any, *, first_step: int = 0, **settings: Any) -> None:
        settings = {"every": 1, "to": "memory", "verbose": False, "strict": True} | settings
        self.inspector = watch(models, **settings)

    def tick_epoch(self) -> None:
        assert self.inspector is not None
        self.inspector.tick_epoch()

    def finish(self) -> None:
        assert self.inspector is not None
        self.inspector.detach()

    def numbers(self) -> dict[Key, dict[str, float]]:
        assert self.inspector is not None
        run = self.inspector.run
        found = {}
        for family in run.families:
            if family.startswith("moments"):
                for row in run.table(family).to_pylist():
                    key = family, row["site"], row["step"], row["micro_step"], row["call"]
                    assert key not in found, f"{key} was written twice"
                    found[key] = {name: row[name] for name in run.numbers[family]}
        return found

    def norms(self) -> dict[tuple[str, int], float]:
        assert self.inspector is not None
        run = self.inspector.run
        rows = run.table("scalars").to_pylist() if "scalars" in run.families else []
        return {(row["name"], row["step"]): row["value"] for row in rows if row["name"].endswith("_norm")}

    def nothing(self, *_: Any, **__: Any) -> None:
        """What only the oracle must be told."""

    before = after = end = skipped = evaluated = backward_ended = replaced = nothing

    def step_by_hand(self) -> None:
        assert self.inspector is not None
        self.inspector.step()
