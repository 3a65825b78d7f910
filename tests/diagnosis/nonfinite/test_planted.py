"""``why_nan`` names layer, phase, operation, line and cause of every planted fault, in every architecture."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.diagnosis.nonfinite.planted import FAULTS, HOSTS, Extra, loss_of
from tests.quick import quick

import sonde

OTHERWISE = {("distance_to_itself", "cnn"): ("NaN", "sqrt'(0)")}
"""At positions that a stride leaves out the gradient is 0, and 0 x inf is NaN."""

WITHOUT_WARNING = pytest.mark.filterwarnings(r"ignore:std\(\)")
"""torch warns once of a std of one value, which is one of the faults."""

HOST_OF = dict(zip(FAULTS, itertools.cycle(HOSTS), strict=False))


def check(name: str, host: str) -> sonde.types.NonFinite:
    fault, kind = FAULTS[name], HOSTS[host]
    torch.manual_seed(0)
    model = kind(Extra(fault.function)).to(fault.dtype)
    batch = model.batch()
    found = sonde.why_nan(model, batch.to(fault.dtype) if batch.is_floating_point() else batch, loss_of)
    assert found.origin is not None
    assert found.cause is not None
    answer = (found.phase, found.operation, found.kind, found.cause.name)
    assert answer == (fault.phase, fault.operation, *OTHERWISE.get((name, host), (fault.kind, fault.cause)))
    assert (found.layer, found.origin.place.call) == (model.site, 0)
    assert found.line is not None
    assert found.line.text.endswith("# fault"), found.line
    assert found.line.file == __file__.replace("test_planted", "planted")
    return found


@WITHOUT_WARNING
@pytest.mark.parametrize(("name", "host"), quick(itertools.product(FAULTS, HOSTS), *HOST_OF.items(), *OTHERWISE))
def test_the_truth_of_every_fault_is_found_in_every_architecture(name: str, host: str) -> None:
    """The line of Python that is offered makes such a value, in fact; it is run in one of the architectures, in turn."""
    found = check(name, host)
    if found.reproduction and host == HOST_OF[name]:
        made = eval(found.reproduction, {"torch": torch})
        parts = made if isinstance(made, tuple | list) else [made]
        assert any(bool((part.isnan() if found.kind == "NaN" else part.isinf()).any()) for part in parts)
