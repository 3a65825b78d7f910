"""Every instrument that speaks of dead units means the same axis: one network, half of its units dead, one answer."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde import lens

NETWORKS = {
    "linear on tokens": (lambda: [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)], (32, 10, 8)),
    "linear on vectors": (lambda: [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)], (32, 8)),
    "conv1d": (lambda: [nn.Conv1d(4, 16, 3), nn.ReLU(), nn.Conv1d(16, 4, 3)], (32, 4, 20)),
    "conv2d": (lambda: [nn.Conv2d(4, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3)], (8, 4, 9, 9)),
    "conv3d": (lambda: [nn.Conv3d(2, 16, 2), nn.ReLU(), nn.Conv3d(16, 4, 2)], (8, 2, 4, 4, 4)),
    "transposed conv1d": (lambda: [nn.ConvTranspose1d(4, 16, 3), nn.ReLU(), nn.Conv1d(16, 4, 3)], (32, 4, 20)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_instrument_calls_the_same_units_dead(name: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = nn.Sequential(*make())
    with torch.no_grad():
        model[0].bias[:8] = -100.0
    x = torch.randn(shape)

    def words(table: str) -> list[str]:
        row = next(line for line in table.splitlines() if " ReLU " in line)
        return re.findall(r"\d+ % dead", row)

    with sonde.track(model) as tracker:
        model(x).square().mean().backward()
    assert words(repr(tracker)) == ["50 % dead"]
    assert words(repr(sonde.summary(model, x))) == ["50 % dead"]
    preprocessor = sonde.preprocessor.OutputActivation()
    with sonde.observe(model, preprocessor, include=nn.ReLU, strict=True):
        model(x).square().mean().backward()
    assert preprocessor.value["1"].death.mean == 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(
        model, optimizer, every=1, to="memory", verbose=False, lenses=lens.OutputActivation(dropout=False)
    ) as inspector:
        model(x).square().mean().backward()
        optimizer.step()
    assert inspector.run.series("1", "call_death")[1].tolist() == [0.5]


class Mixed(nn.Module):
    """A convolution and linear layers under one parent, registered in another order than that in which they run."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens_act = nn.ReLU()
        self.conv_act = nn.ReLU(inplace=True)
        self.shared_act = nn.ReLU()
        self.head = nn.Linear(6, 8)
        self.conv = nn.Conv1d(3, 6, 1)
        with torch.no_grad():
            self.conv.bias[:3] = -100.0  # type: ignore[index]  # half of the channels
            self.head.bias[:2] = -100.0  # a quarter of the features

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared_act(self.conv_act(self.conv(x)))
        return self.shared_act(self.tokens_act(self.head(x.transpose(1, 2))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("every", [1, 2])
def test_the_units_are_those_of_the_tensor_that_flows(every: int) -> None:
    """At each call of a layer, whatever the order in which layers are registered; in training and in evaluation."""
    torch.manual_seed(0)
    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(16, 3, 10).abs() + 5  # no unit dies by chance
    with torch.no_grad():
        model.conv.weight.abs_()
        model.head.weight.abs_()
        model.conv.bias[3:] = model.head.bias[2:] = 1.0
    watched = sonde.watch(
        model, optimizer, every=every, to="memory", verbose=False, strict=True, evaluation=True, lenses=lens.OutputActivation()
    )
    with watched as inspector:
        for _ in range(2):
            model(x).square().mean().backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()
    expected = {("conv_act", 0): 0.5, ("shared_act", 0): 0.5, ("shared_act", 1): 0.25, ("tokens_act", 0): 0.25}
    for family in ("activation", "activation_eval"):
        rows = inspector.run.sql(f"SELECT layer, call, call_death FROM {family} WHERE step = 0").fetchall()
        # without a graph two calls on tensors of as many dimensions cannot be told apart
        known = {place: death for place, death in expected.items() if place[0] != "shared_act" or family == "activation"}
        found = {(layer, call): death for layer, call, death in rows}
        assert {place: found[place] for place in known} == known, family
    with sonde.observe(model, lens.OutputActivation(), strict=True) as probe:
        model(x)
    assert {(row["name"], row["call"]): row["call_death"] for row in probe.rows()} == expected


def test_padding_is_no_dead_unit() -> None:
    """Half of the positions are always zero, and every channel is alive."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 16, 1), nn.ReLU(), nn.Conv1d(16, 4, 1))
    with torch.no_grad():
        model[0].bias.fill_(-0.1)
    x: Tensor = torch.randn(32, 4, 20)
    x[:, :, 10:] = 0
    with sonde.track(model) as tracker:
        model(x)
    assert "dead" not in repr(tracker)
    with torch.no_grad(), sonde.track(model) as tracker:
        model(x)
    assert "dead" not in repr(tracker)


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_norm_per_sample_is_over_the_samples_of_sequences_in_both_layouts(batch_first: bool) -> None:
    """Of an encoder layer, which has no ``batch_first`` itself, in the preprocessor and in the lens; in float64, to rounding."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first).double()
    x = torch.randn(5, 3, 8, dtype=torch.float64)
    preprocessor = sonde.preprocessor.OutputNorm()
    with sonde.observe(model, preprocessor, include=[""], strict=True):
        output = model(x)
    samples = output if batch_first else output.transpose(0, 1)
    wanted = samples.flatten(1).norm(dim=1).mean().item()
    # each of 40 squares and 5 norms is rounded once, and so is each sum: below 100 roundings of 2**-53
    assert preprocessor.value[""].mean == pytest.approx(wanted, rel=100 * 2**-53)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False, lenses=lens.OutputNorm(include=[""])) as inspector:
        model(x).sum().backward()
        optimizer.step()
    assert inspector.run.series("(root)", "norm")[1].tolist() == [pytest.approx(wanted, rel=100 * 2**-53)]
