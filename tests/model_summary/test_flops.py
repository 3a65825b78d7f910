"""FLOPs and memory of a summary: of each module against torch's own counter, and by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from sonde.graph import capture
from sonde.model_summary import Summary, summary


class Attention(nn.Module):
    """Attention by torch's function, behind a projection that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8, bias=False)
        self.out = self.mix

    def forward(self, x: Tensor) -> Tensor:
        held = self.mix(x)
        mixed: Tensor = self.out(nn.functional.scaled_dot_product_attention(held, held, held))
        return mixed


class Blocks(nn.Module):
    """Convolutions, attention, a recurrent layer, and a matrix product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.ReLU())
        self.attention = Attention()
        self.lstm = nn.LSTM(8, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).mT
        x = x + checkpoint(self.attention, x, use_reentrant=False)
        x, _ = self.lstm(x)
        product: Tensor = x @ x.mT
        return product


def by_name(found: Summary) -> dict[str, int]:
    return {row.name: row.flops for row in found.rows if row.same_as is None}


def test_flops_of_each_module_are_those_of_torch_s_counter() -> None:
    """Modules below, calls of a shared module, and functions outside of all layers; a backward pass adds nothing."""
    model, x = Blocks(), torch.randn(2, 3, 5)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(x)
    found = by_name(summary(model, x, loss_fn=lambda y: y.square().mean()))
    counts: Any = counter.get_flop_counts()
    lstm = 2 * 2 * 5 * (4 * 4 * 8 + 4 * 4 * 4)  # samples x positions x (input and state weights), a product and a sum each
    assert found["lstm"] == lstm
    for name in ("conv", "conv.0", "attention"):
        assert found[name] == sum(counts[f"Blocks.{name}"].values()) > 0
    assert found["attention.mix"] == 2 * (2 * 2 * 5 * 8 * 8)  # twice: the module has two names
    assert found[""] == found["conv"] + found["attention"] + lstm + 2 * 2 * 5 * 5 * 4
    assert "conv.1" in found
    assert found["conv.1"] == 0


def test_the_sum_is_that_of_a_graph() -> None:
    model, x = Blocks(), torch.randn(2, 3, 5)
    assert summary(model, x).flops == capture(model, x)["(root)"][0].flops


def test_memory_of_a_module_is_that_of_the_outputs_below_it_each_once() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Sequential(nn.Linear(6, 2), nn.Flatten()))
    found = summary(model, torch.randn(3, 4))
    assert [row.output_bytes for row in found.rows] == [3 * 6 * 4 + 3 * 2 * 4, 3 * 6 * 4, 0, 3 * 2 * 4, 3 * 2 * 4, 0]
    assert found.output_bytes == found.rows[0].output_bytes


def test_the_line_below_the_table_says_what_counts() -> None:
    text = repr(summary(nn.Linear(4, 3), torch.randn(2, 4)))
    assert "FLOPs: 48 in this forward; a multiplication and an addition are two" in text
    assert "FLOPs" not in repr(summary(nn.ReLU(), torch.randn(2, 4)))


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_what_a_narrow_terminal_leaves_out_is_named(width: int) -> None:
    text = summary(Blocks(), torch.randn(2, 3, 5)).to_text(width)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    gone = [name for name in ("input", "memory", "mean ± std", "type", "FLOPs") if name not in lines[1]]
    named = next((line for line in lines if line.startswith(f"left out to fit {width} columns: ")), "")
    assert all(name in " ".join(lines[lines.index(named) :]) for name in gone)
    assert "layer" in lines[1]
    assert "params" in lines[1]
