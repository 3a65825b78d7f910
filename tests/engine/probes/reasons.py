"""Check every reason in a coverage against the truth: what plain hooks of torch and the gradients of parameters show."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import sonde

PORTS = ("output", "grad_output", "grad", "update")


class Truth:
    """One training step of a model: which modules were called, which tensors had a gradient, which parameters got one."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self.called: set[nn.Module] = set()
        self.handles = [
            module.register_forward_hook(lambda module, *_: self.called.add(module)) for module in set(self.modules.values())
        ]

    def finish(self) -> None:
        for handle in self.handles:
            handle.remove()

    def used(self, module: nn.Module) -> list[nn.Parameter]:
        return [parameter for parameter in module.parameters() if parameter.grad is not None]

    def is_true(self, name: str, reason: str) -> bool | None:
        """Return whether *reason* is true of the module or parameter *name*; None for a reason that says no fact to check."""
        if (found := self.parameters.get(name)) is not None:
            facts: dict[str, bool] = {
                "frozen": not found.requires_grad,
                "an optimizer that holds it has stepped, and it got no gradient": id(found) in self.held and found.grad is None,
                "no optimizer that was seen to step holds it": id(found) not in self.held,
                "no gradient was accumulated into it": found.grad is None,
            }
            return next((fact for said, fact in facts.items() if reason.startswith(said)), None)
        module = self.modules["" if name == "(root)" else name]
        inside = any(below in self.called for below in module.modules() if below is not module)
        facts = {
            "no gradient reached": module in self.called,
            "called, but": module in self.called,
            "not called itself": module not in self.called and inside,
            "never called": module not in self.called and not inside,
            "compiled before": False,
            "the model was not seen to run": not self.called,
        }
        true = next((fact for said, fact in facts.items() if reason.startswith(said)), None)
        if true and "no gradient came to its parameters" in reason:
            return not self.used(module)
        if true and "though its parameters were used" in reason:
            return bool(self.used(module))
        if true and (tied := re.search(r"came by (\S+), which has them too", reason)) is not None:
            other = self.modules["" if tied[1] == "(root)" else tied[1]]
            mine = {id(parameter) for parameter in self.used(module)}
            return bool(mine) and bool(mine & {id(parameter) for parameter in other.parameters()})
        return true


def lies(model: nn.Module, args: Any, kwargs: Any, loss_fn: Callable[[Any], Tensor]) -> list[str]:
    """Return the lines of the coverage whose reason is not true, after one training step of *model*."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters[::2] or [nn.Parameter(torch.zeros(1))], lr=1e-4)  # every second one is left out
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with sonde.observe(model, lambda event: None, ports=PORTS, strict=True) as probe:
            truth = Truth(model, optimizer)
            loss = loss_fn(model(*args, **kwargs))
            if loss.requires_grad:
                loss.backward()
            optimizer.step()
            truth.finish()
            coverage = probe.coverage()
    return [
        f"{line.site}: {line.reason}"
        for line in coverage.missing
        if truth.is_true(str(line.site).rpartition(":")[0], line.reason) is False
    ]
