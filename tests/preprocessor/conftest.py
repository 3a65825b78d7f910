"""Events made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from sonde.engine import Event
from sonde.schedule import Tick
from sonde.site import Port, Site


class LayerEvent(Event):
    """An event that carries its layer, or the layer that owns its parameter."""

    module: nn.Module | None = None


@pytest.fixture
def event() -> Callable[..., Event]:
    """``event(port, value, name=..., module=..., ...)`` makes an event as the engine would."""

    def make(
        port: Port,
        value: Any = None,
        *,
        name: str = "layer",
        module: nn.Module | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        call: int = 0,
        step: int = 0,
        micro_step: int = 0,
        phase: Any = "forward",
        model: str = "",
    ) -> Event:
        kind = nn.Parameter if port in ("grad", "param", "update") else type(module) if module is not None else nn.Module
        site = Site(name, port, "", model)
        tick = Tick(0, step, micro_step, 0)
        made = LayerEvent(name, kind, port.startswith("grad"), value, args, kwargs or {}, site, call, phase, tick)
        made.module = module
        return made

    return make
