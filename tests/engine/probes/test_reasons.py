"""The reasons in a coverage are true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.engine.probes.reasons import lies
from tests.stats.subclasses import Opaque
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.stats import Moments
from sonde.testing.zoo import ZOO, Net

LOST = {name: entry for name, entry in ZOO.items() if entry.loss is not None}


@pytest.mark.parametrize("name", LOST)
def test_the_reasons_of_the_zoo_are_true(name: str) -> None:
    """Checked against plain hooks and gradients."""
    entry = LOST[name]
    args, kwargs = entry.batch()

    def loss(output: Any) -> Tensor:
        assert entry.loss is not None
        return entry.loss(list(output) if isinstance(output, Iterator) else output)

    assert lies(entry.build(), args, kwargs, loss) == []


class Tied(nn.Module):
    """A head that has its weight from the embedding and is used by a function, and parts that are never called."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.layer = nn.Linear(4, 4)
        self.unrolled = nn.Sequential(nn.Tanh(), nn.Linear(4, 4))
        self.functional = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(self.embedding(x))
        for layer in self.unrolled:
            hidden = layer(hidden)
        hidden = nn.functional.linear(hidden, self.functional.weight, self.functional.bias)
        return nn.functional.linear(hidden, self.embedding.weight)


def test_each_reason_is_the_one_that_holds() -> None:
    """Of modules and parameters that deliver nothing for one reason each."""
    model = Tied()
    optimizer = torch.optim.SGD([*model.embedding.parameters(), *model.unused.parameters()], lr=0.1)
    ports = ("output", "grad_output", "grad", "update")
    with sonde.observe(model, lambda event: None, ports=ports, grad_at_step=True, strict=True) as probe:
        model.unused.register_forward_hook(lambda *_: None)  # after ours: it never matters, as nothing is delivered
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
        found = {str(line.site): line.reason for line in probe.coverage().missing}
    never = "never called, and no gradient came to its parameters: a branch not taken"
    other = "not called itself, though modules in it were: by another module, or because its .forward() is called directly"
    assert found["head:output"] == "never called: the gradients of its parameters came by embedding, which has them too"
    assert found["unrolled:output"] == other
    assert found["functional:output"].startswith("never called, though its parameters were used")
    assert found["unused:output"] == never
    assert found["unused.weight:grad"] == "an optimizer that holds it has stepped, and it got no gradient"
    assert found["functional.weight:grad"] == "no optimizer that was seen to step holds it"
    assert found["frozen:output"].startswith("never called: a branch not taken, or a fused or functional path")
    assert "embedding:output" not in found


def test_before_any_step_or_pass_the_reasons_say_so() -> None:
    """Of a model that was not called, that ran without a backward pass, whose parts alone were called, and that never stepped."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with sonde.observe(model, lambda event: None, ports=("output", "grad", "update"), strict=True) as probe:

        def reasons() -> dict[str, str]:
            return {str(line.site): line.reason for line in probe.coverage().missing}

        no_step = "no step of an optimizer was seen while it was observed"
        assert set(reasons().values()) == {"the model was not seen to run", no_step}
        model[0](torch.ones(1, 2))
        assert reasons()["(root):output"].startswith("not called itself, though modules in it were")
        assert reasons()["1:output"].startswith("never called")
        model(torch.ones(1, 2))
        assert reasons()["0.weight:grad"] == "no backward pass was seen that accumulates into parameters"
        model(torch.ones(1, 2)).sum().backward()
        assert set(reasons().values()) == {no_step}


@pytest.mark.parametrize("kind", [nn.Linear, lambda *sizes: nn.Sequential(nn.Linear(*sizes))])
def test_a_compiled_module_that_is_never_called_is_not_called_dead(kind: Any, fresh_compiler: None) -> None:
    """It is a branch not taken, and nothing is warned of."""
    model = Net(lambda self, x: self.used(x), used=nn.Linear(2, 2), unused=kind(2, 2))
    model.unused.compile(backend="eager")  # type: ignore[operator]  # a module
    with sonde.observe(model, lambda event: None, strict=True) as probe:
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
        reasons = {str(line.site): line.reason for line in probe.coverage().missing}
    assert reasons["unused:output"] == "never called, and no gradient came to its parameters: a branch not taken"


def test_a_compiled_branch_is_not_called_dead_once_gradients_are_dropped(fresh_compiler: None) -> None:
    """Both branches have code, of the same class; the gradients are gone before the check that the second forward makes."""
    model = Net(
        lambda self, x: self.used(x),
        used=nn.Sequential(nn.Linear(2, 2), nn.Tanh()),
        unused=nn.Sequential(nn.Linear(2, 2), nn.Tanh()),
    )
    model.used.compile(backend="eager")  # type: ignore[operator]  # a module
    model.unused.compile(backend="eager")  # type: ignore[operator]
    with sonde.observe(model, lambda event: None, strict=True) as probe:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            model.zero_grad(set_to_none=True)
        reasons = {str(line.site): line.reason for line in probe.coverage().missing}
    assert reasons["unused:output"] == "never called, and no gradient came to its parameters: a branch not taken"
    assert "used:output" not in reasons


class InCheckpoints(nn.Module):
    """Calls two layers in reentrant checkpoints, then one outside."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.last = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            x = checkpoint(layer, x, use_reentrant=True)
        out: torch.Tensor = self.last(x)
        return out


@pytest.mark.parametrize("do", [lambda event: None, Moments()], ids=["events", "statistic"])
@pytest.mark.parametrize("shared", [(), (0, 1), (0, 2)], ids=["no layer twice", "in two checkpoints", "inside and outside"])
def test_a_gradient_that_comes_in_parts_is_named(do: Any, shared: tuple[int, ...]) -> None:
    """A pass of its own in each reentrant checkpoint accumulates a part. Passes one after the other bring whole gradients."""
    layers = [nn.Linear(2, 2) for _ in range(3)]
    for place in shared:
        layers[place] = layers[shared[0]]
    model = InCheckpoints(*layers)
    named = {f"{('first', 'second', 'last')[shared[0]]}.{name}:grad" for name in ("weight", "bias")} if shared else set()
    x = torch.ones(3, 2, requires_grad=True)
    with sonde.observe(model, do, ports="grad") as probe, sonde.observe(model, do, ports="grad", grad_at_step=True) as at_step:
        for _ in range(2):
            model(x).sum().backward()
    for each, expected in ((probe, named), (at_step, set())):
        assert {str(line.site) for line in each.coverage() if "came in parts" in line.reason} == expected


@pytest.mark.filterwarnings("ignore")  # torch's, about prototypes and what it will remove
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda x: torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.quint8), "a quantised tensor, which"),
        (lambda x: torch.nested.nested_tensor([x.detach(), x.detach()]), "a nested tensor, which"),
        (lambda x: x.detach().to("meta"), "a meta tensor, which"),
        (lambda x: Opaque(x.detach()), "a tensor of class Opaque cannot be measured"),
        (lambda x: [x.long()], "no floating-point tensor"),
    ],
    ids=["quantised", "nested", "meta", "opaque", "integers"],
)
def test_a_site_whose_tensors_cannot_be_read_says_their_kind(make: Any, reason: str) -> None:
    """The other sites are measured, and the module's output is left as it is."""
    made: list[Any] = []

    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        made.append(self.strange(x))
        return x

    strange = Net(lambda self, x: make(x))
    model = Net(forward, first=nn.Linear(2, 2), strange=strange)
    with sonde.observe(model, Moments(), ports="output") as probe:
        model(torch.ones(1, 2))
        lines = {str(line.site): line for line in probe.coverage()}
    assert reason in lines["strange:output"].reason
    assert lines["strange:output"].count == 0
    assert lines["first:output"].count == 1
    assert len(made) == 1


class _Reads(TorchDispatchMode):
    """Counts reads of one number, for each of which a program waits for the device."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_a_coverage_reads_no_number_one_by_one() -> None:
    """Also of ``param`` and ``update``, of a probe and of an inspector: what was added to all rows is one copy per device."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ports = ("output", "param", "update", "grad")
    with (
        sonde.observe(model, Moments(), ports=ports) as probe,
        sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector,
    ):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        with _Reads() as reads:
            lines = list(probe.coverage())
            inspector.coverage()
    assert {line.count for line in lines} == {3}
    assert reads.count == 0
