"""Which optimizers may call ``step`` of each other within one step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sonde.engine.clock.optimizers import may_nest


class Twice(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        return super().step(closure)


class Renamed(torch.optim.Adam):
    """Inherits ``step``."""


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, Renamed])
def test_an_optimizer_whose_class_inherits_its_step_does_not_nest_whichever_was_made_first(kind: Any) -> None:
    parameter = nn.Parameter(torch.ones(1))
    made = kind([parameter], lr=0.1)
    torch.optim.Adam([parameter])
    assert not may_nest(made)
    assert not may_nest(kind([parameter], lr=0.1))


def test_an_optimizer_that_calls_the_step_it_extends_may_nest() -> None:
    assert may_nest(Twice([nn.Parameter(torch.ones(1))], lr=0.1))
