"""Rows of a statistic: one for each leaf of a structured value, and for each call of a module in one forward."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.errors import ArgumentError, ObservationWarning
from sonde.site import Site
from sonde.stats import Activation, ChannelActivation, Column, Field, Moments, Statistic

BACKENDS = [None, "eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def called(model: nn.Module, backend: str | None) -> Callable[..., Any]:
    return model if backend is None else torch.compile(model, backend=backend)


def by_place(probe: sonde.types.Probe, number: str = "mean") -> dict[tuple[str, int], float]:
    """A number of every row to which something was added."""
    return {(row["site"], row["call"]): row[number] for row in probe.rows() if row["calls"]}


# Calls


class Reused(nn.Module):
    """Calls one layer so many times, each time on the input times the number of the call, from 1."""

    def __init__(self, calls: int = 2) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        outputs = [self.layer(x * (call + 1)) for call in range(self.calls)]
        return torch.stack(outputs).sum(0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_call_of_a_module_has_a_row(backend: str | None) -> None:
    """Of its outputs and of their gradients; several forwards add to the same rows."""
    model = Reused()
    with sonde.observe(model, Moments(), ports=("output", "grad_output"), strict=True) as probe:
        run = called(model, backend)
        for _ in range(3):
            out = run(torch.ones(4, requires_grad=True))
            (out * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert by_place(probe) == {
        ("(root):output", 0): 3.0,
        ("(root):grad_output", 0): 2.5,
        ("layer:output", 0): 1.0,
        ("layer:output", 1): 2.0,
        ("layer:grad_output", 0): 2.5,
        ("layer:grad_output", 1): 2.5,
    }
    assert {row["calls"] for row in probe.rows()} == {3}
    assert probe.coverage().missing == ()


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_calls_beyond_the_bound_share_a_row(backend: str | None) -> None:
    """Its call is -1; with ``joined`` all calls are in it, and by default the first eight are apart."""
    for calls, expected in (
        (2, {0: 1.0, 1: 2.0, -1: 7.0}),
        ("joined", {-1: 6.0}),
        (0, {-1: 6.0}),
        ("each", {**{call: call + 1.0 for call in range(8)}, -1: 10.0}),
    ):
        torch.compiler.reset()
        model = Reused(11)
        with sonde.observe(model, Moments(), include=["layer"], calls=calls, strict=True) as probe:  # type: ignore[arg-type]
            called(model, backend)(torch.ones(4))
        assert by_place(probe) == {("layer:output", call): mean for call, mean in expected.items()}


@pytest.mark.parametrize("calls", ["all", -1, True, 1.5, None])
def test_a_wrong_choice_of_calls_is_refused(calls: Any) -> None:
    """At once, with what can be given."""
    with pytest.raises(ArgumentError, match=r"'each'.*'joined'"):
        sonde.observe(nn.Linear(2, 2), Moments(), calls=calls)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputed_call_is_the_call_that_it_repeats(reentrant: bool) -> None:
    """A checkpoint around the second call alone: gradients are of the same call, and outputs are added once."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1, bias=False)
            nn.init.constant_(self.layer.weight, 2.0)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.layer, self.layer(x), use_reentrant=reentrant) * 5  # type: ignore[no-any-return]

    model = Net()
    with sonde.observe(model, Moments(), include=["layer"], ports=("output", "grad_output"), strict=True) as probe:
        for _ in range(2):
            model(torch.ones(3, 1, requires_grad=True)).sum().backward()
    assert by_place(probe) == {
        ("layer:output", 0): 2.0,
        ("layer:output", 1): 4.0,
        ("layer:grad_output", 0): 10.0,
        ("layer:grad_output", 1): 5.0,
    }
    assert {row["calls"] for row in probe.rows()} == {2}


def test_calls_have_the_numbers_of_events() -> None:
    """Also of a module that is called outside of a forward of the model, and of a shared one."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.b = nn.Linear(2, 2)
            self.head = nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.b(self.a(x)))  # type: ignore[no-any-return]

    model, seen = Net(), []
    with sonde.observe(model, Moments(), strict=True) as probe, sonde.observe(model, seen.append, strict=True):
        for _ in range(2):
            model.head(model(torch.randn(3, 2)).expand(3, 2))
    assert sorted(by_place(probe)) == sorted({(str(event.site), event.call) for event in seen})


def test_threads_take_one_row_for_one_place() -> None:
    """Several threads that call a module for the first time add to the same row."""
    model = Reused(4)
    barrier = threading.Barrier(6)

    def work() -> None:
        barrier.wait()
        for _ in range(20):
            model(torch.ones(2))

    with sonde.observe(model, Moments(), include=["layer"], strict=True) as probe:
        probe._attachment.delivery.thread = None  # as without a with block
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert by_place(probe, "count") == {("layer:output", call): 6 * 20 * 2 for call in range(4)}


# Leaves


class Pair(NamedTuple):
    first: Tensor
    second: Any


@dataclass
class Result:
    logits: Tensor
    hidden: Any = None
    lengths: Any = None


class Returns(nn.Module):
    """Returns one of several structured values, whose tensors are 1, 2, ... times the input."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Any:
        integers = torch.ones(2, dtype=torch.long)
        if self.form == "tuple":
            return x * 1, None, [x * 2, integers]
        if self.form == "dict":
            return {"a": x * 1, "b": {"c": x * 2}, "n": None}
        if self.form == "named":
            return Pair(x * 1, (x * 2,))
        if self.form == "dataclass":
            return Result(x * 1, [x * 2, x * 3], integers)
        return integers, x * 1  # the first tensor is not measured


LEAVES = {
    "tuple": ["[0]", "[2][0]"],
    "dict": ["['a']", "['b']['c']"],
    "named": [".first", ".second[0]"],
    "dataclass": [".logits", ".hidden[0]", ".hidden[1]"],
    "integers": ["[1]"],
}


@pytest.mark.parametrize("backend", [None, "aot_eager"])
@pytest.mark.parametrize("form", LEAVES)
def test_each_leaf_of_an_output_has_a_row(form: str, backend: str | None) -> None:
    """Tuples, dicts, named tuples, dataclasses and nested ones, with their gradients; the site names the leaf."""
    model = Returns(form)
    x = torch.ones(2, requires_grad=True)
    with sonde.observe(model, Moments(), ports=("output", "grad_output"), strict=True) as probe:
        out = called(model, backend)(x)
        floating = [
            leaf for leaf in torch.utils._pytree.tree_leaves(_plain(out)) if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        sum((leaf * 10 * (place + 1)).sum() for place, leaf in enumerate(floating)).backward()  # type: ignore[union-attr]
    expected = {}
    for place, leaf in enumerate(LEAVES[form]):
        expected[str(Site("", "output", leaf)), 0] = place + 1.0
        expected[str(Site("", "grad_output", leaf)), 0] = 10 * (place + 1.0)
    assert by_place(probe) == expected
    assert probe.coverage().missing == ()


def _plain(value: Any) -> Any:
    return vars(value) if isinstance(value, Result) else value


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_nan_in_any_leaf_is_counted(backend: str | None) -> None:
    """In the cell state of an LSTM, which is the third of its tensors."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.poison = Poison()

        def forward(self, x: Tensor) -> Tensor:
            out, (hidden, _) = self.poison(x)
            return out + hidden  # type: ignore[no-any-return]

    class Poison(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x * 1, (x * 2, x / 0 - x / 0)

    model = Net()
    with sonde.observe(model, Moments(), include=["poison"], strict=True) as probe:
        called(model, backend)(torch.ones(3))
    assert by_place(probe, "nan") == {("poison:output[0]", 0): 0, ("poison:output[1][0]", 0): 0, ("poison:output[1][1]", 0): 3}


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_inputs_are_named_by_their_arguments(backend: str | None) -> None:
    """The first positional argument is the input; others by their places and names, with gradients through this module alone."""

    class Inner(nn.Module):
        def forward(self, x: Tensor, y: Tensor, *, scale: Tensor, mask: Tensor) -> Tensor:
            return x + 2 * y + 3 * scale

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Tensor) -> Tensor:
            z = x * 1
            return self.inner(z, z * 4, scale=z, mask=torch.ones(2, dtype=torch.bool)) + z  # type: ignore[no-any-return]

    model = Outer()
    with sonde.observe(model, Moments(), include=["inner"], ports=("input", "grad_input"), strict=True) as probe:
        called(model, backend)(torch.ones(2, requires_grad=True)).sum().backward()
    assert by_place(probe) == {
        ("inner:input", 0): 1.0,
        ("inner:input[1]", 0): 4.0,
        ("inner:input['scale']", 0): 1.0,
        ("inner:grad_input", 0): 1.0,
        ("inner:grad_input[1]", 0): 2.0,
        ("inner:grad_input['scale']", 0): 3.0,
    }


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_leaves_beyond_the_bound_are_said(backend: str | None) -> None:
    """The first sixteen have rows, and the coverage says so."""

    class Many(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return [x * place for place in range(20)]

    model = Many()
    with sonde.observe(model, Moments(), strict=True) as probe:
        called(model, backend)(torch.ones(2))
    assert by_place(probe) == {(f"(root):output[{place}]", 0): float(place) for place in range(16)}
    (line,) = probe.coverage()
    assert line.reason == "of 20 floating-point tensors the first 16 are added"


def test_leaves_that_come_and_go_have_rows_when_they_come() -> None:
    """A value that is a tensor at first and a tuple later; an optional part that is there in one call of two."""

    class Sometimes(nn.Module):
        def forward(self, x: Tensor, parts: int) -> Any:
            return x if not parts else tuple(x * (place + 2) for place in range(parts))

    model = Sometimes()
    with sonde.observe(model, Moments(), strict=True) as probe:
        for parts in (0, 1, 2, 1):
            model(torch.ones(2), parts)
    assert by_place(probe, "count") == {("(root):output", 0): 2, ("(root):output[0]", 0): 6, ("(root):output[1]", 0): 2}


def test_a_statistic_that_reads_axes_is_of_the_first_leaf() -> None:
    """The axis of the units is that of a layer's first tensor; the coverage says that others are left out."""
    model = nn.LSTM(2, 3, batch_first=True)
    with sonde.observe(model, Activation(channel_axis=-1), strict=True) as probe:
        model(torch.randn(4, 5, 2))
    assert [row["site"] for row in probe.rows()] == ["(root):output[0]"]
    (line,) = probe.coverage()
    assert "the first floating-point one is added" in line.reason


def test_a_site_at_which_nothing_came_has_an_empty_row() -> None:
    """Under its plain name, so that it is seen to be missing."""
    model = nn.Sequential(nn.Linear(2, 2))
    with sonde.observe(model, Moments(), ports=("output", "grad_output"), strict=True) as probe:
        model[0](torch.ones(1, 2))
    assert {(row["site"], row["call"]): row["calls"] for row in probe.rows()} == {
        ("(root):output", 0): 0,
        ("(root):grad_output", 0): 0,
        ("0:output", 0): 1,
        ("0:grad_output", 0): 0,
    }


# Printing


class Total(Statistic):
    """A statistic of a user's own: the sum, and a number that is missing where it is negative."""

    fields = (Field("sum"),)

    def __init__(self, factor: float = 1.0, declared: int = 1) -> None:
        self.factor = factor
        self.fields = tuple(Field(f"sum{place or ''}") for place in range(declared))  # type: ignore[misc, assignment]

    def measure(self, tensor: Tensor) -> Tensor:
        return tensor.double().sum().reshape(1) * self.factor

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        return {"total": columns["sum"], "root": np.where(columns["sum"] < 0, np.nan, np.abs(columns["sum"]) ** 0.5)}


def cells(probe: sonde.types.Probe) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in str(probe).splitlines() if "─" not in line]


def test_a_probe_shows_the_numbers_of_its_statistic() -> None:
    """Also of a user's own, which is named by its class and arguments; NaN, which means no number, is blank."""
    model = nn.Sequential(nn.Identity())
    with sonde.observe(model, Total(2.0), include=["0"], ports=("output", "grad_output"), strict=True) as probe:
        model(torch.full((2,), 4.0))
    title, *table = cells(probe)
    assert title[0].startswith("Probe(Total(factor=2.0, fields=")
    assert table == [["layer", "port", "events", "total", "root"], ["0", "output", "1", "16", "4"], ["0", "grad_output", "0"]]
    probe.reset()
    model(torch.full((2,), -4.0))
    assert cells(probe)[2] == ["0", "output", "0"]


def test_a_probe_shows_leaves_and_calls() -> None:
    """Calls only where there are several; -1 is the others."""
    model = Reused(4)
    with sonde.observe(model, Total(), calls=2, strict=True) as probe:
        model(torch.ones(1))
    assert cells(probe)[1:] == [
        ["layer", "call", "port", "events", "total", "root"],
        ["(root)", "0", "output", "1", "10", "3.162"],
        ["layer", "0", "output", "1", "1", "1"],
        ["layer", "1", "output", "1", "2", "1.414"],
        ["layer", "others", "output", "2", "7", "2.646"],
    ]
    returns = Returns("tuple")
    with sonde.observe(returns, Total(), strict=True) as probe:
        returns(torch.ones(1))
    assert [line[0] for line in cells(probe)[2:]] == ["(root)[0]", "(root)[2][0]"]


def test_numbers_per_channel_are_left_out_of_the_table() -> None:
    """A list in each row is in ``rows()``; the table has the numbers that are one."""
    model = nn.Sequential(nn.ReLU())
    with sonde.observe(model, ChannelActivation(3), include=["0"], strict=True) as probe:
        model(torch.tensor([[1.0, -1.0, 0.0]]))
    assert cells(probe)[1:] == [
        ["layer", "port", "events", "channels", "positions", "nan", "inf", "activation", "least", "most", "dead", "death"],
        ["0", "output", "1", "3", "1", "0", "0", "0.3333", "0", "1", "2", "0.6667"],
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_measure_of_another_width_than_the_fields_is_said(backend: str | None) -> None:
    """In compiled code too, which runs as it would without; the user's numbers are as ever."""
    model = nn.Sequential(nn.Linear(2, 2))
    x = torch.ones(1, 2)
    expected = model(x)
    with pytest.warns(ObservationWarning, match=r"Total\(.*measure gave 1 numbers?, fields say 3"):
        probe = sonde.observe(model, Total(declared=3))
        run = model if backend is None else torch.compile(model, backend=backend, fullgraph=True)
        torch.testing.assert_close(run(x), expected)
    assert [str(each.site) for each in probe.errors] == ["0:output", "(root):output"]  # each site stops alone
    assert all(isinstance(each.error, ArgumentError) for each in probe.errors)
    probe.detach()
