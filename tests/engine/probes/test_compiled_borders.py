"""Gradients at the border of compiled code, where autograd sees one node: right, or named in the coverage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.stats import Moments


class WithLoss(nn.Module):
    """Returns a loss and the logits that the loss is computed from, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class WithRouter(nn.Module):
    """Returns an output and router logits, which the output is computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 4)
        self.expert = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.router(x)
        return self.expert(x) * logits.softmax(-1), logits


class WithAttribute(nn.Module):
    """Returns one tensor, and keeps a loss that is computed from the tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.loss = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(x)
        self.loss = result.square().sum()
        return result


class Outer(nn.Module):
    """Returns the results of another module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *given: Tensor) -> Any:
        return self.inner(*given)


def step(model: nn.Module) -> None:
    """One backward pass, of a loss from inside or of one computed from both outputs."""
    x = torch.randn(5, 4)
    if isinstance(model.inner, WithLoss):
        model(x, torch.tensor([0, 1, 2, 0, 1]))["loss"].backward()
        return
    if isinstance(model.inner, WithAttribute):
        (model(x).sum() + model.inner.loss).backward()
        return
    output, logits = model(x)
    (output.square().sum() + 1e-3 * logits.square().sum()).backward()


def into(seen: dict[str, float]) -> Callable[[sonde.types.Event], None]:
    """An observer that keeps the norm of each gradient."""
    return lambda event: seen.update({str(event.site): event.leaves[0][1].norm().item()})


SITES = ("(root):grad_output", "inner:grad_output")


@pytest.mark.parametrize("kind", [WithLoss, WithRouter, WithAttribute])
@pytest.mark.parametrize("events", [False, True], ids=["a statistic", "events"])
def test_a_gradient_at_the_border_of_compiled_code_is_named(kind: type[nn.Module], *, events: bool) -> None:
    """At the outputs of the compiled module, and of the module that passes these on; the modules inside have the whole gradient."""
    norms = []
    for backend in ("", "aot_eager"):
        torch.manual_seed(0)
        model = Outer(kind())
        if backend:
            model.inner.compile(backend=backend)
        seen: dict[str, float] = {}
        with sonde.observe(model, into(seen) if events else Moments(), ports=("grad_output",), strict=True) as probe:
            step(model)
            coverage = {str(line.site): line.reason for line in probe.coverage()}
        named = {site for site, reason in coverage.items() if "uses inside that code" in reason}
        assert named == (set(SITES) if backend else set())
        norms.append(seen if events else {row["site"]: row["norm"] for row in probe.rows()})
    eager, compiled = norms
    inside = [site for site in eager if not site.startswith(("(root)", "inner:"))]
    assert inside
    for site in inside:
        assert compiled[site] == pytest.approx(eager[site], rel=1e-5)


def test_one_result_of_compiled_code_is_not_named() -> None:
    """Nothing inside can use it without being part of it; nor are the results of two compiled modules together."""
    torch.manual_seed(0)
    one, other = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = one, other

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.one(x), self.other(x)

    model = Both()
    for part in (one, other):
        part.compile(backend="aot_eager")
    with sonde.observe(model, Moments(), ports=("grad_output",), strict=True) as probe:
        torch.stack(model(torch.randn(3, 4))).sum().backward()
        assert not any(line.reason for line in probe.coverage())
