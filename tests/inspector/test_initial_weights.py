"""What is told of initial weights and biases, of weights that no optimizer moves, and of gradients in float16."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.optim.optimizer import Optimizer

import sonde
from sonde.rules import Finding

Loss = Callable[[nn.Module], Tensor]


def told(
    model: nn.Module,
    loss: Loss,
    *,
    steps: int = 12,
    parameters: Iterable[nn.Parameter] | None = None,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = Adam,
    meanwhile: Callable[[], object] = lambda: None,
) -> dict[str, Finding]:
    """Train a model; return what is found by rule, without notes. *meanwhile* is called when it is watched."""
    stepper = optimizer(parameters if parameters is not None else model.parameters())
    with sonde.watch(model, stepper, every=1, to="memory", verbose=False) as inspector:
        meanwhile()
        for _ in range(steps):
            of = loss(model)
            stepper.zero_grad()
            of.backward()  # type: ignore[no-untyped-call]
            stepper.step()
            inspector.push_loss(of, train=True)
    assert not inspector.errors
    return {each.rule: each for each in inspector.findings[::-1] if each.severity != "note"}


def product(model: nn.Module) -> Tensor:
    x = torch.randn(32, 16)
    return functional.mse_loss(model(x)[:, 0], x[:, 0] * x[:, 1])


class Scaled(nn.Linear):
    """An equalised learning rate: weights that begin at any size, and a factor that makes them usual."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight / self.weight.square().mean().sqrt().detach() / 8, self.bias)


def wide(middle: nn.Module, *, std: float, before: float = 1.0) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(Times(before), nn.Linear(16, 64), nn.Tanh(), middle, nn.ReLU(), nn.Linear(64, 1))
    for module in middle.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=std)
    return model


class Times(nn.Module):
    """A factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@pytest.mark.parametrize(
    ("middle", "std", "before", "is_found"),
    [
        (nn.Linear(64, 64), 5.0, 1.0, True),
        (nn.Linear(64, 64), 1.5, 1.0, False),
        (nn.Linear(64, 64), 5.0, 0.01, False),
        (nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)), 5.0, 1.0, False),
        (Scaled(64, 64), 5.0, 1.0, False),
    ],
    ids=["large", "less large", "small inputs", "normalised next", "an equalised learning rate"],
)
def test_a_hidden_weight_that_begins_large_is_told_where_nothing_makes_up_for_it(
    middle: nn.Module, std: float, before: float, is_found: bool
) -> None:
    found = told(wide(middle, std=std, before=before), product)
    assert ("weight_large" in found) is is_found
    assert not is_found or (found["weight_large"].site, found["weight_large"].follows) == ("3.weight:param", "")


class Reader(nn.Module):
    """A recurrent layer over tokens."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer, self.head = nn.Embedding(20, 16), kind(16, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(self.table(x))[0][:, -1])
        return out


def third(model: nn.Module) -> Tensor:
    x = torch.randint(20, (32, 6))
    return functional.cross_entropy(model(x), x[:, 2] % 4)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(("std", "is_found"), [(4.0, True), (1.0, False)])
def test_weights_of_a_recurrent_layer_that_begin_large_are_told(kind: Callable[..., nn.Module], std: float, is_found: bool) -> None:
    model = Reader(kind)
    for name, parameter in model.layer.named_parameters():
        if "weight" in name:
            nn.init.normal_(parameter, std=std)
    found = told(model, third)
    assert ("weight_large" in found) is is_found
    assert not is_found or found["weight_large"].site == "layer.weight_hh_l0:param"


@pytest.mark.parametrize(
    ("kind", "name", "place", "bias", "words"),
    [
        (nn.LSTM, "bias_ih_l0", 1, -9.0, "the bias of its forget gate begins at -9: its cells keep nothing from step to step"),
        (nn.LSTM, "bias_hh_l0", 0, -9.0, "the bias of its input gate begins at -9: nothing that goes in is kept"),
        (nn.LSTM, "bias_ih_l0", 1, 9.0, ""),
        (nn.LSTM, "bias_ih_l0", 1, -2.0, ""),
        (nn.GRU, "bias_hh_l0", 1, 9.0, "the bias of its update gate begins at 9: what goes in changes next to nothing"),
        (nn.GRU, "bias_hh_l0", 1, -9.0, ""),
    ],
)
def test_a_gate_that_its_biases_shut_is_told_by_its_name(
    kind: Callable[..., nn.Module], name: str, place: int, bias: float, words: str
) -> None:
    model = Reader(kind)
    with torch.no_grad():
        for each in ("bias_ih_l0", "bias_hh_l0"):
            model.layer.get_parameter(each)[32 * place : 32 * place + 32] = bias if each == name else 0.0
    found = told(model, third)
    assert ("gate_shut" in found) is bool(words)
    assert not words or found["gate_shut"].message == f"layer.bias_ih_l0: {words}"


def test_a_forget_gate_that_keeps_for_as_long_as_a_sequence_is_usual() -> None:
    """Chrono initialisation: log(1 .. T), and the input gate the other way round."""
    model = Reader(nn.LSTM)
    with torch.no_grad():
        bias = model.layer.get_parameter("bias_ih_l0")
        bias[32:64] = torch.empty(32).uniform_(1, 999).log()
        bias[:32] = -bias[32:64]
    assert "gate_shut" not in told(model, third)


class Around(nn.Module):
    """A layer beside which its input goes on."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layer(x)
        return out


@pytest.mark.parametrize(
    ("std", "kind", "is_found"), [(0.005, "plain", True), (None, "plain", False), (0.005, "norm", False), (0.005, "beside", False)]
)
def test_weights_that_begin_small_in_a_row_are_the_root_of_gradients_that_vanish(
    std: float | None, kind: str, is_found: bool
) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for width in (16, *[32] * 9):
        layer = nn.Linear(width, 32)
        if std is not None:
            nn.init.normal_(layer.weight, std=std)
        layers += [Around(layer) if kind == "beside" and width == 32 else layer, nn.Tanh()]
        layers += [nn.BatchNorm1d(32)] if kind == "norm" else []
    found = told(nn.Sequential(*layers, nn.Linear(32, 1)), product)
    assert ("weight_small" in found) is is_found
    if is_found:
        one = found["weight_small"]
        assert (one.site, one.follows, one.evidence["layers"]) == ("0.weight:param", "", 10.0)
        assert found["gradient_vanishing"].follows == "weight_small"


class Encoder(nn.Module):
    """A head on an encoder that begins with normal numbers, biases of 0 and norms of 1."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.first, self.body, self.head = nn.Linear(8, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 3)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.08)
            elif "bias" in name:
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.first(x)).mean(1))
        return out


def largest(model: nn.Module) -> Tensor:
    x = torch.randn(16, 5, 8)
    return functional.cross_entropy(model(x), x.mean(1)[:, :3].argmax(1))


@pytest.mark.parametrize("was_trained", [False, True])
def test_a_body_that_nothing_moves_is_more_than_a_note_where_it_was_never_trained(was_trained: bool) -> None:
    model = Encoder()
    optimizer = Adam(model.parameters(), 1e-3)
    for _ in range(5 if was_trained else 0):
        optimizer.zero_grad()
        largest(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.zero_grad()
    assert ("unmoved" in told(model, largest, parameters=model.head.parameters())) is not was_trained


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(("factor", "is_found"), [(1e-6, True), (1.0, False)])
def test_gradients_that_are_lost_in_float16_are_told_as_such(factor: float, is_found: bool, is_late: bool) -> None:
    """Also where the model is brought to this format when it is watched already."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    if not is_late:
        model.half()

    def loss(model: nn.Module) -> Tensor:
        x = torch.randn(32, 16)
        return functional.cross_entropy(model(x.half()), x[:, :3].argmax(1)) * factor

    found = told(model, loss, optimizer=SGD, meanwhile=model.half if is_late else lambda: None)
    assert ("underflow" in found) is is_found
    assert "gradient_zero" not in found


def test_gradients_of_zero_in_float16_have_another_reason_where_no_other_is_small() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), Times(0.0), nn.Linear(64, 3)).half()

    def loss(model: nn.Module) -> Tensor:
        x = torch.randn(32, 16)
        return functional.cross_entropy(model(x.half()), x[:, :3].argmax(1))

    assert "underflow" not in told(model, loss, optimizer=SGD)


def test_small_gradients_of_float32_do_not_underflow() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    assert "underflow" not in told(model, lambda model: product(model) * 1e-7)


@pytest.mark.parametrize(("size", "width", "is_found"), [(15.0, 8, True), (1.0, 8, False), (15.0, 1, False)])
def test_tables_that_are_multiplied_may_not_begin_large(size: float, width: int, is_found: bool) -> None:
    """A table of single numbers may hold offsets of any size."""
    torch.manual_seed(0)
    tables = [nn.Embedding(30, width), nn.Embedding(30, width)]
    for table in tables:
        nn.init.normal_(table.weight, std=size)

    def loss(model: nn.Module) -> Tensor:
        user, item = torch.randint(30, (2, 32))
        score = (tables[0](user) * tables[1](item)).sum(1)
        return functional.binary_cross_entropy_with_logits(score, (user > item).float())

    assert ("weight_large" in told(nn.ModuleList(tables), loss)) is is_found


@pytest.mark.parametrize(("size", "is_found"), [(12.0, True), (1.0, False)])
def test_a_table_of_bags_may_not_begin_large(size: float, is_found: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(30, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
    for table in model[:1].parameters():
        nn.init.normal_(table, std=size)

    def loss(model: nn.Module) -> Tensor:
        x = torch.randint(30, (32, 6))
        return functional.cross_entropy(model(x), x[:, 0] % 3)

    assert ("weight_large" in told(model, loss)) is is_found


@pytest.mark.parametrize(("std", "is_found"), [(1e-3, True), (0.1, False)])
def test_few_layers_that_begin_small_are_the_root_of_a_loss_that_stands(std: float, is_found: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    for each in model:
        if isinstance(each, nn.Linear):
            nn.init.normal_(each.weight, std=std)
            nn.init.zeros_(each.bias)

    def loss(of: nn.Module) -> Tensor:
        x = torch.randn(40, 8)
        return functional.mse_loss(of(x), x[:, :1].sin() + x[:, 1:2] * x[:, 2:3])

    found = told(model, loss, steps=150, optimizer=lambda weights: SGD(weights, lr=0.02))
    assert ("weight_small" in found) is is_found
    assert not is_found or found["weight_small"].evidence["layers"] == 3


@pytest.mark.parametrize("is_zero", [True, False])
def test_layers_that_begin_at_zero_by_intent_are_not_small(is_zero: bool) -> None:
    """As the last ones of the couplings of a flow: all that they have is their first step."""
    torch.manual_seed(0)
    parts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8, bias=False)) for _ in range(3))
    tables = nn.ParameterList(torch.zeros(4, 8) if is_zero else torch.randn(4, 8) * 1e-3 for _ in range(3))
    model = nn.ModuleDict({"parts": parts, "tables": tables})
    for each in parts:
        nn.init.zeros_(each[2].weight) if is_zero else nn.init.normal_(each[2].weight, std=1e-3)  # type: ignore[index, union-attr]

    def loss(of: Any) -> Tensor:
        x = target = torch.randn(40, 8)
        for part, table in zip(of["parts"], of["tables"], strict=True):
            x = x + part(x) + (torch.ones(1, 4) @ table)
        return functional.mse_loss(x, target.cumsum(1))

    assert not is_zero or "weight_small" not in told(model, loss, steps=20, optimizer=lambda weights: SGD(weights, lr=0.01))


def test_deviations_that_begin_alike_beside_means_are_no_constant_weight() -> None:
    """As of a Gaussian for each weight."""
    torch.manual_seed(0)

    class Gaussian(nn.Module):
        """A layer whose weights are drawn anew for each pass."""

        def __init__(self, inputs: int, outputs: int, *, varies: bool) -> None:
            super().__init__()
            self.mean = nn.Parameter(torch.randn(outputs, inputs) / 3 if varies else torch.full((outputs, inputs), 0.3))
            self.deviation = nn.Parameter(torch.full((outputs, inputs), -4.0))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.mean + functional.softplus(self.deviation) * torch.randn_like(self.mean)).T

    for varies in (True, False):
        model = nn.Sequential(Gaussian(8, 16, varies=varies), nn.Tanh(), Gaussian(16, 1, varies=True))

        def loss(of: nn.Module) -> Tensor:
            x = torch.randn(40, 8)
            return functional.mse_loss(of(x), x[:, :1])

        assert ("constant_weight" in told(model, loss)) is not varies
