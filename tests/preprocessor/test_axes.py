"""Which axis holds the samples, and which the neurons."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sonde.engine.layer_axes import as_matrix, neurons_first, samples_first

TRANSPOSED = [
    pytest.param(nn.ConvTranspose1d(4, 6, 3), (2, 4, 5), id="1d"),
    pytest.param(nn.ConvTranspose2d(4, 6, 3), (2, 4, 5, 5), id="2d"),
    pytest.param(nn.ConvTranspose2d(4, 6, (3, 2), groups=2), (2, 4, 5, 5), id="2d in groups"),
    pytest.param(nn.ConvTranspose3d(4, 4, 2, groups=4), (2, 4, 3, 3, 3), id="3d depthwise"),
]
PLAIN = [
    pytest.param(nn.Linear(4, 6), (2, 4), id="linear"),
    pytest.param(nn.Conv2d(4, 6, 3, groups=2), (2, 4, 5, 5), id="conv in groups"),
    pytest.param(nn.Bilinear(4, 4, 6), (2, 4), id="bilinear"),
]


@pytest.mark.parametrize(("layer", "shape"), TRANSPOSED + PLAIN)
def test_a_neuron_of_a_weight_is_an_output_channel(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """What an output channel gives gradients to is one row, whatever the layer's way of keeping its weight."""
    given = [torch.randn(shape)] * (2 if isinstance(layer, nn.Bilinear) else 1)
    channels = layer(*given).shape[1]
    for channel in range(channels):
        layer.zero_grad()
        layer(*given)[:, channel].sum().backward()
        rows = as_matrix(layer.weight.grad, layer)
        assert rows.shape == (channels, layer.weight.numel() // channels)
        assert rows.abs().sum(1).nonzero().flatten().tolist() == [channel]
    assert neurons_first(layer.bias, layer) is layer.bias


@pytest.mark.parametrize("layer", [nn.Embedding(10, 3), nn.EmbeddingBag(10, 3)])
def test_the_neurons_of_an_embedding_are_its_features(layer: nn.Module) -> None:
    assert as_matrix(layer.weight, layer).shape == (3, 10)


def test_without_its_layer_a_parameter_is_taken_as_it_is() -> None:
    weight = torch.ones(2, 3, 4)
    assert neurons_first(weight, None) is weight
    assert as_matrix(torch.empty(3, 0, 2), None).shape == (3, 0)


def shape_of(output: Tensor, module: nn.Module | None, channel_last: bool | None = None, batched: bool | None = None) -> list[int]:
    return list(samples_first(output, module, channel_last, batched).shape)


def test_layers_tell_where_their_samples_are() -> None:
    conv = nn.Conv2d(1, 8, 3)
    assert shape_of(torch.ones(5, 8, 4, 4), conv) == [5, 8, 4, 4]
    assert shape_of(torch.ones(8, 4, 4), conv) == [1, 8, 4, 4]
    assert shape_of(torch.ones(8, 4, 4), None) == [8, 4, 4]
    assert shape_of(torch.ones(8, 4, 4), nn.ReLU(), batched=False) == [1, 8, 4, 4]
    assert shape_of(torch.ones(8, 4, 4), conv, batched=True) == [8, 4, 4]
    assert shape_of(torch.ones(7), nn.Linear(3, 7)) == [1, 7]
    assert shape_of(torch.ones(7), nn.Flatten()) == [7]
    assert shape_of(torch.ones(()), None) == []


def test_layers_tell_where_their_channels_are() -> None:
    tokens = torch.ones(2, 5, 3)
    assert shape_of(tokens, nn.Linear(3, 3)) == shape_of(tokens, nn.LayerNorm(3)) == [2, 3, 5]
    assert shape_of(tokens, nn.Linear(3, 3), channel_last=False) == [2, 5, 3]
    assert shape_of(tokens, nn.ReLU()) == [2, 5, 3]
    assert shape_of(tokens, nn.ReLU(), channel_last=True) == [2, 3, 5]
    assert shape_of(torch.ones(5, 2, 3), nn.LSTM(3, 3)) == [2, 3, 5]
    assert shape_of(tokens, nn.LSTM(3, 3, batch_first=True)) == [2, 3, 5]
    assert shape_of(tokens, nn.MultiheadAttention(3, 1, batch_first=True), channel_last=False) == [2, 5, 3]
