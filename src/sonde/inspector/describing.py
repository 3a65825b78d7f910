"""What run.json says of a training: its models, its environment, and how the lenses are shown."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

import sonde
from sonde.engine import selection
from sonde.engine.torch_api.modules import parameters_of
from sonde.inspector.lenses.builtin import AnyLens

__all__ = ["described"]


def described(models: Mapping[str, nn.Module], lenses: Iterable[AnyLens]) -> dict[str, Any]:
    """Plain data: ``model`` (its modules, in the order of ``named_modules()``), ``environment``, ``lenses``."""
    modules = [line for name, model in models.items() for line in _modules(model, name)]
    return {"model": modules, "environment": _environment(), "lenses": [lens.described() for lens in lenses]}


def _modules(model: nn.Module, name: str) -> list[dict[str, Any]]:
    lines = []
    for item in selection.members(model):
        own = [parameter for parameter in parameters_of(item.module).values() if parameter is not None and not is_lazy(parameter)]
        line = {
            "name": item.name,
            "type": type(item.module).__name__,
            "parameters": sum(parameter.numel() for parameter in own),
            "trainable": sum(parameter.numel() for parameter in own if parameter.requires_grad),
        }
        lines.append({"model": name, **line} if name else line)
    return lines


def _environment() -> dict[str, str]:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return {
        "sonde": sonde.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "accelerator": str(accelerator or "none"),
    }
