"""What compiled graphs hold for an observer: one node for each value and for each gradient, called without a wrapper."""

from __future__ import annotations

from collections import Counter
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.guards import GuardBuilder
from torch._functorch.aot_autograd import make_boxed_compiler
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode

import sonde
from sonde.engine.torch_api import operators
from sonde.stats import Moments

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Network(nn.Module):
    """Its hooks run in eager code, since no class of torch's is outermost."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.other(self.one(x).tanh()).tanh()
        return out


def targets(model: nn.Module) -> list[Counter[str]]:
    """Return how often the forward and the backward graph of *model* call each function, but for taking results apart."""
    found: list[Counter[str]] = []

    def compile_graph(graph: fx.GraphModule, inputs: list[Tensor]) -> Any:
        called = Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        called.pop("<built-in function getitem>", None)
        found.append(called)
        return torch._functorch.aot_autograd.make_boxed_func(graph.forward)

    call = torch.compile(model, backend=aot_autograd(fw_compiler=compile_graph))
    call(torch.ones(2, 3)).sum().backward()
    return found


def test_tensors_of_a_device_are_delivered_beside_a_ticket_on_the_host() -> None:
    """While torch traces, where no device of that kind is needed; what comes back is on the host."""
    with FakeTensorMode():
        written, ticket = torch.empty(1, dtype=torch.int64), torch.empty(2, dtype=torch.int64)
        leaves = [torch.empty(3, device="cuda:0"), torch.empty(3, device="cuda:1"), torch.empty(3)]
        operators.deliver(written, ticket, leaves, 0, False, False)
        assert operators.delivered(written, ticket, leaves, 0, False, False).device.type == "cpu"
        for leaf in leaves:
            assert operators.deliver_gradient(None, ticket, leaf, 0, False, 0).device.type == "cpu"
            assert operators.deliver_gradient(ticket, ticket, leaf, 0, False, 0).device.type == "cpu"


def test_a_graph_has_one_call_for_each_value_and_gradient() -> None:
    bare = targets(Network())
    torch._dynamo.reset()  # type: ignore[no-untyped-call]
    model = Network()
    with sonde.observe(model, Moments(), ports=("output", "grad_output"), include=nn.Linear) as probe:
        forward, backward = targets(model)
    assert forward - bare[0] == {"sonde.delivered.default": 2}
    assert backward - bare[1] == {"sonde.deliver_gradient.default": 2}
    assert [line.count for line in probe.coverage()] == [1, 1, 1, 1]


class Constant(torch.autograd.Function):
    """Passes its input on; its gradient is 3, whatever comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.full((2, 4), 3.0)


class ConstantGradient(nn.Module):
    """Of the two results the last one's gradient is computed first, and needs no gradient of a result."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x).tanh(), Constant.apply(self.other(x))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by Dynamo
@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
@pytest.mark.parametrize("include", ["other", None])
def test_a_gradient_that_needs_no_gradient_of_a_result_is_delivered_once_in_the_backward(partition: Any, include: Any) -> None:
    model = ConstantGradient()
    compiler = aot_autograd(fw_compiler=make_boxed_compiler(lambda graph, inputs: graph.forward), partition_fn=partition)
    called = torch.compile(model, backend=compiler)
    with sonde.observe(model, Moments(), ports="grad_output", include=include) as probe:
        one, other = called(torch.ones(2, 3))
        assert [row["calls"] for row in probe.rows()] == [0] * len(probe.sites)
        (one.sum() + other.sum()).backward()
    of_other = next(row for row in probe.rows() if row["name"] == "other")
    assert (of_other["calls"], of_other["mean"], of_other["std"]) == (1, 3.0, 0.0)


def test_what_traced_hooks_use_has_one_name_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo guards each use of an object that it has met under another name."""
    guarded: list[str] = []
    guard_name = GuardBuilder.DUPLICATE_INPUT

    @wraps(guard_name)
    def guard(builder: Any, created: Any, source_b: Any) -> None:
        guarded.append(created.name)
        guard_name(builder, created, source_b)

    monkeypatch.setattr(GuardBuilder, "DUPLICATE_INPUT", guard)
    model = Network()
    model.compile(backend="eager")
    with sonde.observe(model, Moments(), ports=("output", "grad_output")), sonde.observe(model, lambda event: None):
        model(torch.ones(2, 3)).sum().backward()
    assert [name for name in guarded if guarded.count(name) > 1] == []


class Owner:
    """Keeps what is delivered to the token."""

    def __init__(self) -> None:
        self.token = operators.Token(self)
        self.delivered: list[list[float]] = []

    def replay(self, leaves: list[Tensor], form: int, port: str) -> tuple[int, int]:
        self.delivered += [leaf.tolist() for leaf in leaves]
        return 0, 0


def test_a_function_whose_writes_are_made_results_delivers_what_was_written() -> None:
    owner = Owner()
    version = operators.WRITTEN._version
    what = operators.number_of(operators.Sent("output", "", 0, 0, 0, 0))

    def function(x: Tensor) -> Tensor:
        y = x + 1
        y.mul_(2)
        operators.deliver(operators.WRITTEN, owner.token.ticket, [y], what, False, True)
        return y.mul_(2)

    assert torch.func.functionalize(function)(torch.tensor([1.0, 2.0])).tolist() == [8.0, 12.0]
    assert owner.delivered == [[4.0, 6.0]]
    assert operators.WRITTEN._version == version
