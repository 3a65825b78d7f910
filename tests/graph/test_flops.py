"""FLOPs, bytes and parameters: against torch's own counter, and by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sonde.graph import Graph, capture
from sonde.testing import ZOO
from sonde.testing.zoo import Entry, Net

UNCOUNTED = {
    **dict.fromkeys(("lazy", "root_returns_int", "root_returns_generator"), "torch's counter or capture refuses it"),
    **dict.fromkeys(("nested_jagged", "nested_strided"), "torch's counter fails on nested tensors"),
    **dict.fromkeys(("transformer_fused", "attention_fused"), "torch's counter does not know the fused operation"),
    "parametrized": "torch's counter does not know products with a vector, of which spectral norm has three",
    "gradient_penalty": "torch's counter counts the backward pass in it, which is one operation here",
    "vmapped": "inside a transform nothing is recorded",
}
"""What torch cannot be the oracle for, and why."""


def total(graph: Graph) -> int:
    """The FLOPs of the whole forward."""
    return graph["(root)"][0].flops


def counted(model: nn.Module, *args: Any, **kwargs: Any) -> int:
    """What torch counts."""
    # torch's counter does not know the attention kernel of the CPU, but what that is made of
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(*args, **kwargs)
    return int(counter.get_total_flops())


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "linear": (F.linear, (rand(2, 5, 3), rand(4, 3))),
    "bmm": (torch.bmm, (rand(2, 3, 4), rand(2, 4, 5))),
    "matmul, broadcast": (torch.matmul, (rand(7, 2, 3, 4), rand(4, 5))),
    "@": (lambda a, b: a @ b, (rand(3, 4), rand(4, 5))),
    "addmm": (torch.addmm, (rand(5), rand(3, 4), rand(4, 5))),
    "baddbmm": (torch.baddbmm, (rand(2, 3, 5), rand(2, 3, 4), rand(2, 4, 5))),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bik", a, b), (rand(2, 3, 4), rand(2, 4, 5))),
    "einsum, nothing summed": (lambda a, b: torch.einsum("bi,bi->bi", a, b) @ b.T, (rand(2, 3), rand(2, 3))),
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=2, padding=1), (rand(2, 4, 9), rand(6, 4, 3))),
    "conv2d, groups": (lambda x, w: F.conv2d(x, w, groups=2), (rand(2, 4, 9, 8), rand(6, 2, 3, 3))),
    "conv2d, one image": (F.conv2d, (rand(4, 9, 8), rand(6, 4, 3, 3))),
    "conv3d": (F.conv3d, (rand(1, 2, 4, 5, 6), rand(3, 2, 2, 2, 2))),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2), (rand(2, 4, 5, 6), rand(4, 3, 3, 3))),
    "attention": (F.scaled_dot_product_attention, (rand(2, 4, 5, 8), rand(2, 4, 7, 8), rand(2, 4, 7, 8))),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_counts_as_torch_counts_it(name: str) -> None:
    """Shapes, groups, strides and broadcasts."""
    function, args = CALLS[name]
    model = Net(lambda net, *given: function(*given))
    assert total(capture(model, *args)) == counted(model, *args) > 0


def is_counted(entry: Entry) -> bool:
    """Whether torch's counter is an oracle for it: it does not know recurrent layers on the CPU."""
    recurrent = (nn.RNNBase, nn.RNNCellBase)
    return entry.name not in UNCOUNTED and not any(isinstance(module, recurrent) for module in entry.build().modules())


@pytest.mark.parametrize("entry", list(filter(is_counted, ZOO.values())), ids=str)
def test_the_zoo_counts_as_torch_counts_it(entry: Entry) -> None:
    """Whatever is in it."""
    (args, kwargs), model = entry.batch(), entry.build()
    expected = counted(model, *args, **kwargs)
    args, kwargs = entry.batch()
    assert total(capture(entry.build(), *args, **kwargs)) == expected


def test_products_with_a_vector_by_hand() -> None:
    """Two for each element of the matrix; torch's counter leaves them out."""
    assert total(capture(Net(lambda net, a, b: torch.mv(a, b) + torch.dot(b, b)), rand(3, 4), rand(4))) == 2 * 12 + 2 * 4


def test_multi_head_attention_by_hand() -> None:
    """Three projections in, scores, values, one projection out."""
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = rand(3, 5, 8)
    project = 2 * (3 * 5) * 8 * 8
    mix = 2 * 3 * 5 * 5 * 8
    assert total(capture(model, x, x, x)) == 4 * project + 2 * mix == counted(model, x, x, x)


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_by_hand(kind: Any, gates: int) -> None:
    """Each step multiplies its input (3, then 5 from both directions) and its state (5) into all gates."""
    model = kind(3, 5, num_layers=2, bidirectional=True)
    per_step = 2 * gates * 5 * ((3 + 5) + (10 + 5)) * 2
    assert total(capture(model, rand(7, 2, 3))) == 7 * 2 * per_step


def test_bytes_are_of_new_memory_only() -> None:
    """A product makes 24 bytes; a view of it and a write into it make none; each part of a module counts in it."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Flatten(0))
    graph = capture(model, rand(2, 4))
    assert [node.bytes for node in graph.modules()] == [24, 24, 0, 0]


def test_a_module_s_time_is_without_that_of_recording() -> None:
    """It is no less than that of what ran in it, and recording 500 operations is not in it."""

    def many(net: Net, x: torch.Tensor) -> torch.Tensor:
        for _ in range(500):
            x = x + 1
        return x

    graph = capture(Net(many), rand(2))
    inside = sum(node.seconds for node in graph.nodes if node.kind == "operation")
    assert inside <= graph["(root)"][0].seconds
