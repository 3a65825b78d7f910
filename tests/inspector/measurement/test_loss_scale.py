"""Numbers of gradients under a ``GradScaler`` are those of the gradients without its scale, whatever power of it they follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import sonde
from sonde.errors import ObservationWarning
from sonde.number import Number, count
from sonde.stats import Column, Field, Statistic, elements


@dataclass(frozen=True)
class Powers(Statistic):
    """Sums of powers of the elements, each with the power of a factor that it follows; and one number whose power is not known."""

    fields: ClassVar[tuple[Field, ...]] = tuple(Field(name) for name in ("squares", "sizes", "roots", "inverses", "number"))
    recorded: ClassVar[tuple[str, ...]] = ("squares",)
    numbers: ClassVar[tuple[Number, ...]] = (
        Number("energy", scaling=2),
        Number("length", scaling=1),
        Number("root", scaling=0.5),
        Number("inverse", scaling=-1),
        count("elements"),
        Number("unknown", scaling=None),
    )

    def measure(self, tensor: Tensor) -> Tensor:
        sizes = elements(tensor).abs().double()
        return torch.stack([(sizes**power).sum() for power in (2, 1, 0.5, -1, 0)])

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        found = zip(
            ("energy", "length", "root", "inverse", "elements"), ("squares", "sizes", "roots", "inverses", "number"), strict=True
        )
        return {**{number: columns[field] for number, field in found}, "unknown": columns["sizes"]}


def gradients_of_two(port: str, *, fused: bool, scale: float) -> dict[str, Any]:
    """Return the row of a tensor of four gradients that are 2 each, of one step under a scaler with *scale*."""
    model = nn.Linear(1, 4, bias=False)
    optimizer = SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    given: Any = {"scaler": scaler, "lenses": [sonde.lens.Lens("powers", Powers(), (port,))]}  # type: ignore[arg-type]  # any port
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, **given) as inspector:
        scaler.scale(2 * model(torch.ones(1, 1)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        (row,) = inspector.run.sql("SELECT * FROM powers").to_arrow_table().to_pylist()
    return row


@pytest.mark.parametrize(("port", "fused"), [("grad", False), ("grad", True), ("grad_output", False)])
def test_a_number_is_divided_by_the_power_of_the_scale_that_it_declares(port: str, fused: bool) -> None:
    """A sum of squares by the square, a length once, a root by the root, an inverse is multiplied, a count stays.

    The gradients that a fused optimizer steps with are scaled still, those of another are not.
    """
    is_scaled = fused or port == "grad_output"
    if is_scaled:
        with pytest.warns(ObservationWarning, match="unknown"):
            row = gradients_of_two(port, fused=fused, scale=1024.0)
    else:
        row = gradients_of_two(port, fused=fused, scale=1024.0)
    found = {name: row[name] for name in ("energy", "length", "root", "inverse", "elements")}
    wanted = {"energy": 16.0, "length": 8.0, "root": 4 * 2**0.5, "inverse": 2.0, "elements": 4.0}
    assert found == pytest.approx(wanted, rel=1e-14)  # of a handful of operations in float64
    assert (row["unknown"] != row["unknown"]) == is_scaled  # NaN
    assert row["squares"] == (16.0 * 1024**2 if is_scaled else 16.0)  # recorded as it is added up


def test_a_scale_of_one_changes_nothing_and_warns_of_nothing() -> None:
    """Also of a number that does not say how it follows a factor."""
    row = gradients_of_two("grad_output", fused=False, scale=1.0)
    assert (row["unknown"], row["length"], row["energy"]) == (8.0, 8.0, 16.0)
