"""An observer that writes into what it is lent, or returns something, is named, once, and stopped where it writes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.errors import ArgumentError, ObservationWarning
from sonde.number import Number
from sonde.preprocessor import AbstractForwardPreprocessor
from sonde.site import Port
from sonde.stats import Accumulator, Column, Field, Lent, Statistic
from sonde.types import Event

MODULE_PORTS: tuple[Port, ...] = ("input", "output", "grad_output", "grad_input")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def batch() -> Tensor:
    return torch.linspace(-1, 1, 6).reshape(2, 3)


def doubling(event: Event) -> None:
    for _, tensor in event.leaves:
        tensor.mul_(2)


class Doubling(AbstractForwardPreprocessor):
    """Writes into the input of each layer."""

    value: ClassVar[dict[str, Any]] = {}

    def reset(self) -> None: ...

    def process_fw(self, name: str, module: nn.Module, layer_input: Any, layer_output: Any) -> None:
        layer_input.mul_(2)


class Magnitude(Statistic):
    """Sums magnitudes in place."""

    fields: ClassVar[tuple[Field, ...]] = (Field("total"),)
    numbers: ClassVar[tuple[Number, ...]] = (Number("total", "total", "Total", "size", None),)

    def measure(self, tensor: Tensor) -> Tensor:
        return tensor.abs_().sum(dtype=torch.float64)[None]

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        return {"total": columns["total"]}


def said(run: Callable[[], object]) -> list[str]:
    """Call *run*, and return the texts of sonde's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(each.message) for each in caught if issubclass(each.category, ObservationWarning)]


@pytest.mark.parametrize("port", [*MODULE_PORTS, "grad", "param", "update"])
def test_a_subscriber_that_writes_is_named_once_with_its_site_and_stopped_at_each_site_where_it_does(port: Port) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = sonde.observe(model, doubling, ports=port)

    def train() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            if port in ("input", "output"):
                with torch.no_grad():  # a backward pass would raise, as it needs what was written into
                    model(batch())
                continue
            model(batch().requires_grad_()).square().sum().backward()
            optimizer.step()

    texts = said(train)
    assert len(texts) == 1, texts
    first = probe.errors[0].site
    assert texts[0].startswith(f"doubling has written into {first}")
    assert {error.site for error in probe.errors} == set(probe.sites)
    assert all(line.count == 0 and "has written into" in line.reason for line in probe.coverage())
    probe.detach()


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_write_is_found_also_where_torch_counts_no_writes(
    context: Callable[[], AbstractContextManager[Any]], compiled: bool
) -> None:
    plain = network()
    model: Any = torch.compile(plain, backend="aot_eager") if compiled else plain
    with context():
        expected = plain(batch())
        with sonde.observe(model, doubling, "0") as probe:
            assert any("doubling has written into 0:output" in text for text in said(lambda: model(batch())))
            torch.testing.assert_close(model(batch()), expected, rtol=1e-6, atol=1e-6)  # fused otherwise; the site is stopped
        assert [error.site for error in probe.errors] == list(probe.sites)


@pytest.mark.parametrize("compiled", [False, True])
def test_strict_raises_at_the_first_write_of_any_event(compiled: bool) -> None:
    plain = network()
    model: Any = torch.compile(plain, backend="aot_eager") if compiled else plain
    events = []

    def third(event: Event) -> None:
        events.append(event.name)
        if len(events) == 3:
            event.value.add_(1)

    with sonde.observe(model, third, "0", strict=True):
        model(batch())
        model(batch())
        with pytest.raises(ArgumentError, match="has written into 0:output"):
            model(batch())


def test_a_write_that_begins_late_is_found() -> None:
    events = []

    def late(event: Event) -> None:
        events.append(event.name)
        if len(events) > 5:
            event.value.add_(1)

    model = network()
    with sonde.observe(model, late, "2") as probe:
        texts = [said(lambda: model(batch())) for _ in range(9)]
    assert [len(each) for each in texts] == [0] * 7 + [1, 0]  # the 1st, 2nd, 4th, 8th event are looked at
    assert [str(error.site) for error in probe.errors] == ["2:output"]


@pytest.mark.parametrize(
    "observe",
    [
        lambda model: sonde.observe(model, Doubling()),
        lambda model: sonde.observe(model, lambda event: bool(event.args[0].mul_(2).any())),
        lambda model: sonde.track(model, stash_value=lambda tensor: tensor.mul_(2)),
        lambda model: sonde.track(model, stash=lambda event: event.value.mul_(2)),
    ],
    ids=["preprocessor", "argument", "stash value", "stash"],
)
def test_each_instrument_names_the_function_of_the_user_that_writes(observe: Callable[[nn.Module], Any]) -> None:
    model = network()
    probe = observe(model)
    texts = said(lambda: model(batch()))
    assert len(texts) == 1
    assert "has written into" in texts[0]
    assert "0:output" in texts[0]
    assert "Doubling" in texts[0] or "<lambda>" in texts[0]
    probe.detach()


def test_a_reduction_of_a_recorder_works_on_copies() -> None:
    model = network()
    expected = model(batch())
    recorder = sonde.recorders.ForwardOutput(reduction=lambda kept, new: new.mul_(0)).modules(model)
    model(batch())
    assert torch.equal(model(batch()), expected)
    assert not recorder.errors
    recorder.detach()


def test_a_statistic_that_writes_is_named_and_stopped_where_it_does() -> None:
    model = network()
    with sonde.observe(model, Magnitude(), "0") as probe:
        texts = said(lambda: model(batch()))
    assert len(texts) == 1
    assert "Magnitude() has written into the tensor that it measures" in texts[0]
    assert [str(error.site) for error in probe.errors] == ["0:output"]
    with pytest.raises(ArgumentError, match="has written into"):
        Accumulator(Magnitude()).update(torch.tensor([-1.0]))


def test_what_a_subscriber_returns_for_the_model_or_for_keeping_is_said_once() -> None:
    model = network()
    for given in (
        lambda event: event.value * 0,
        lambda event: {"kept": [event.value.clone()]},
        lambda event: event.value.sum().item(),
    ):
        probe = sonde.observe(model, given)
        texts = said(lambda: (model(batch()), model(batch())))
        assert len(texts) == 1
        assert "has returned a" in texts[0]
        assert "0:output" in texts[0]
        assert not probe.errors
        probe.detach()


def test_what_is_no_answer_is_not_said() -> None:
    model, stack = network(), [str(number) for number in range(100)]
    for given in (
        lambda event: None,
        lambda event: event,
        lambda event: event.value,
        lambda event: stack.pop(),
        lambda event: True,
    ):
        with sonde.observe(model, given):
            assert not said(lambda: model(batch()))


def test_a_tensor_of_any_kind_can_be_lent() -> None:
    kinds = [
        torch.ones(2, 3).t(),
        torch.tensor(True),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(0, 3),
        torch.tensor(float("nan")),
        torch.eye(2).to_sparse(),
        torch.ones(2, device="meta"),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
    ]
    with torch.inference_mode():
        kinds += [torch.ones(2, 3).t(), torch.tensor(True), torch.ones(0, 3), torch.full((2,), float("nan"))]
        lent = Lent([(str(place), tensor) for place, tensor in enumerate(kinds)])
        assert lent.written() is None
        kinds[-1].zero_()
        assert lent.written() == str(len(kinds) - 1)
