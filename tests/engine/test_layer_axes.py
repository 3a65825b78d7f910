"""Which axes of an output hold the samples and the units, for kinds of layers and layouts; which of a parameter the neurons."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sonde.engine import layer_axes
from sonde.engine.inventory import inventory_of
from sonde.engine.layer_axes import LayerAxes, learn, unit_axis

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
        rows = LayerAxes.neurons_first(layer.weight.grad, layer).flatten(1)
        assert rows.shape == (channels, layer.weight.numel() // channels)
        assert rows.abs().sum(1).nonzero().flatten().tolist() == [channel]
    assert LayerAxes.neurons_first(layer.bias, layer) is layer.bias


@pytest.mark.parametrize("layer", [nn.Embedding(10, 3), nn.EmbeddingBag(10, 3)])
def test_the_neurons_of_an_embedding_are_its_features(layer: nn.Module) -> None:
    assert LayerAxes.neurons_first(layer.weight, layer).flatten(1).shape == (3, 10)


def test_without_its_layer_a_parameter_is_taken_as_it_is() -> None:
    weight = torch.ones(2, 3, 4)
    assert LayerAxes.neurons_first(weight, None) is weight
    assert LayerAxes.neurons_first(torch.empty(3, 0, 2), None).flatten(1).shape == (3, 0)


# What the axes of each output are: (samples, units), counted from 0, None where there is none

T, B = 5, 2  # tokens or time steps, and samples; every layer below returns 6 units

LAYERS: list[tuple[str, nn.Module, tuple[int, ...], tuple[int | None, int | None]]] = [
    ("linear, one vector", nn.Linear(4, 6), (4,), (None, 0)),
    ("linear", nn.Linear(4, 6), (B, 4), (0, 1)),
    ("linear on tokens", nn.Linear(4, 6), (B, T, 4), (0, 2)),
    ("linear on an image", nn.Linear(4, 6), (B, 7, 7, 4), (0, 3)),
    ("conv1d", nn.Conv1d(4, 6, 3), (B, 4, 9), (0, 1)),
    ("conv1d, one sample", nn.Conv1d(4, 6, 3), (4, 9), (None, 0)),
    ("conv2d", nn.Conv2d(4, 6, 3), (B, 4, 9, 9), (0, 1)),
    ("conv2d, one sample", nn.Conv2d(4, 6, 3), (4, 9, 9), (None, 0)),
    ("conv3d", nn.Conv3d(4, 6, 3), (B, 4, 5, 5, 5), (0, 1)),
    ("conv3d, one sample", nn.Conv3d(4, 6, 3), (4, 5, 5, 5), (None, 0)),
    ("transposed conv1d", nn.ConvTranspose1d(4, 6, 3), (B, 4, 9), (0, 1)),
    ("transposed conv2d", nn.ConvTranspose2d(4, 6, 3), (B, 4, 9, 9), (0, 1)),
    ("transposed conv2d, one sample", nn.ConvTranspose2d(4, 6, 3), (4, 9, 9), (None, 0)),
    ("transposed conv3d", nn.ConvTranspose3d(4, 6, 2), (B, 4, 3, 3, 3), (0, 1)),
    ("batch norm of vectors", nn.BatchNorm1d(6), (B, 6), (0, 1)),
    ("batch norm of sequences", nn.BatchNorm1d(6), (B, 6, T), (0, 1)),
    ("batch norm of images", nn.BatchNorm2d(6), (B, 6, 3, 3), (0, 1)),
    ("instance norm", nn.InstanceNorm2d(6), (B, 6, 3, 3), (0, 1)),
    ("instance norm, one sample", nn.InstanceNorm2d(6), (6, 3, 3), (None, 0)),
    ("group norm", nn.GroupNorm(2, 6), (B, 6, T), (0, 1)),
    ("layer norm", nn.LayerNorm(6), (B, T, 6), (0, 2)),
    ("layer norm of an image's features", nn.LayerNorm(6), (B, 3, 3, 6), (0, 3)),
    ("rms norm", nn.RMSNorm(6), (B, T, 6), (0, 2)),
    ("max pool", nn.MaxPool2d(2), (B, 6, 4, 4), (0, 1)),
    ("adaptive pool, one sample", nn.AdaptiveAvgPool1d(2), (6, 8), (None, 0)),
    ("padding", nn.ReflectionPad2d(1), (B, 6, 4, 4), (0, 1)),
    ("dropout of channels", nn.Dropout2d(), (B, 6, 4, 4), (0, 1)),
    ("upsampling", nn.Upsample(scale_factor=2), (B, 6, 4), (0, 1)),
    ("lstm", nn.LSTM(4, 6), (T, B, 4), (1, 2)),
    ("lstm, batch first", nn.LSTM(4, 6, batch_first=True), (B, T, 4), (0, 2)),
    ("lstm, one sequence", nn.LSTM(4, 6), (T, 4), (None, 1)),
    ("gru", nn.GRU(4, 6), (T, B, 4), (1, 2)),
    ("rnn cell", nn.RNNCell(4, 6), (B, 4), (0, 1)),
    ("encoder layer", nn.TransformerEncoderLayer(6, 1, 8), (T, B, 6), (1, 2)),
    ("encoder layer, batch first", nn.TransformerEncoderLayer(6, 1, 8, batch_first=True), (B, T, 6), (0, 2)),
    ("encoder", nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 1, 8), 1, enable_nested_tensor=False), (T, B, 6), (1, 2)),
    ("flattened", nn.Flatten(), (B, 6), (0, 1)),
    ("a batch of numbers", nn.Flatten(0), (T,), (0, None)),
    ("unknown, two dimensions", nn.Identity(), (B, 6), (0, 1)),
    ("unknown, four dimensions", nn.Identity(), (B, 6, 3, 3), (0, 1)),
]


def found(output: Tensor, module: nn.Module | None, **given: Any) -> tuple[int | None, int | None]:
    axes = LayerAxes.of(output, module, **given)
    return axes.samples, axes.units


@pytest.mark.parametrize(("layer", "shape", "wanted"), [pytest.param(*row[1:], id=row[0]) for row in LAYERS])
@pytest.mark.parametrize("grad", [True, False])
def test_a_layer_says_which_axes_its_output_has(layer: nn.Module, shape: tuple[int, ...], wanted: Any, grad: bool) -> None:
    """By the layer's kind and the dimensions at the call, with or without a graph; an activation behind it says the same."""
    with torch.set_grad_enabled(grad):
        returned = layer(torch.randn(shape))
    output = returned[0] if isinstance(returned, tuple) else returned
    assert found(output, layer) == wanted
    if wanted[1] is not None:
        assert output.shape[wanted[1]] == 6
        units = LayerAxes.of(output, layer).units_first(output)
        assert units is not None
        assert list(units.shape) == [6, output.numel() // 6]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_attention_and_embeddings_have_their_units_last() -> None:
    for batch_first in (False, True):
        tokens = torch.randn((B, T, 6) if batch_first else (T, B, 6))
        attention = nn.MultiheadAttention(6, 2, batch_first=batch_first)
        assert found(attention(tokens, tokens, tokens)[0], attention) == ((0, 2) if batch_first else (1, 2))
        decoder = nn.TransformerDecoderLayer(6, 1, 8, batch_first=batch_first)
        assert found(decoder(tokens, tokens), decoder) == ((0, 2) if batch_first else (1, 2))
        whole = nn.Transformer(6, 1, 1, 1, 8, batch_first=batch_first)
        assert found(whole(tokens, tokens), whole) == ((0, 2) if batch_first else (1, 2))
    one = torch.randn(T, 6)
    assert found(attention(one, one, one)[0], attention) == (None, 1)
    assert found(nn.Embedding(9, 6)(torch.ones(B, T, dtype=torch.long)), nn.Embedding(9, 6)) == (0, 2)
    assert found(nn.EmbeddingBag(9, 6)(torch.ones(B, T, dtype=torch.long)), nn.EmbeddingBag(9, 6)) == (0, 1)


SHAPELESS = {
    "relu": nn.ReLU(),
    "relu in place": nn.ReLU(inplace=True),
    "gelu": nn.GELU(),
    "tanh": nn.Tanh(),
    "dropout": nn.Dropout(0.5),
    "identity": nn.Identity(),
    "hardswish": nn.Hardswish(),
}
FEEDING = [
    pytest.param(layer, activation, shape, wanted, id=f"{name} and {word}")
    for name, layer, shape, wanted in LAYERS
    for word, activation in SHAPELESS.items()
    if wanted[1] is not None
    and any(True for _ in layer.parameters())
    and not isinstance(layer, nn.RNNBase)
    # the graph does not say of which view a single sample was, when it was written into
    and not (word == "relu in place" and "one sample" in name)
]


@pytest.mark.parametrize(("layer", "activation", "shape", "wanted"), FEEDING)
def test_an_activation_has_the_units_of_the_layer_that_feeds_it(
    layer: nn.Module, activation: nn.Module, shape: tuple[int, ...], wanted: Any
) -> None:
    """Told by the graph of its output, whatever is registered where; the same module behind another layer says that layer's."""
    activation = copy.deepcopy(activation)  # nothing was remembered of it
    output = activation(layer(torch.randn(shape)))
    assert LayerAxes.of(output, activation).units == (wanted[1] if output.dim() > 1 else None)


def test_an_activation_behind_a_sum_or_a_channels_last_tensor_has_the_units_of_what_is_summed() -> None:
    conv, relu = nn.Conv2d(4, 6, 3, padding=1), nn.ReLU()
    image = torch.randn(B, 4, 5, 5).to(memory_format=torch.channels_last)
    assert found(relu(conv(image) + conv(image)), relu) == (0, 1)
    gate = nn.SiLU()
    linear = nn.Linear(4, 6)
    assert found(gate(linear(torch.randn(B, T, 4))) * linear(torch.randn(B, T, 4)), nn.Identity()) == (0, 2)


@pytest.mark.parametrize(
    ("shape", "parameter", "wanted"),
    [
        ((B, T, 6), (6,), 2),  # a norm of the user's own, or a bias
        ((B, 6, T, T), (6, 1, 1), 1),  # the scale of each channel
        ((B, 6, T, T), (1, 6, 1, 1), 1),
        ((B, T, 6), (T, 6), 1),  # of positions and units: nothing is known
        ((B, T, 6), (1,), 1),
    ],
)
@pytest.mark.parametrize("how", [torch.mul, torch.add], ids=["a factor", "a summand"])
def test_a_vector_of_parameters_lies_along_the_units(
    how: Any, shape: tuple[int, ...], parameter: tuple[int, ...], wanted: int
) -> None:
    output = torch.relu(how(torch.randn(shape), nn.Parameter(torch.ones(parameter))))
    assert found(output, nn.ReLU()) == (0, wanted)


def test_what_a_graph_showed_is_remembered_for_calls_without_one() -> None:
    linear, relu = nn.Linear(4, 6), nn.ReLU()
    with torch.no_grad():
        assert LayerAxes.of(relu(linear(torch.randn(B, T, 4))), relu).rule == "default"
    assert LayerAxes.of(relu(linear(torch.randn(B, T, 4))), relu).rule == "graph"
    with torch.no_grad():
        assert found(relu(linear(torch.randn(B, T, 4))), relu) == (0, 2)
        assert found(torch.randn(B, 6, 3, 3), relu) == (0, 1)  # of other dimensions nothing is known


class ChannelNorm(nn.LayerNorm):
    """A layer normalisation of channels that are not last, as ConvNeXt has it."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # the name of the method that is overridden
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def test_a_layer_norm_of_channels_that_are_not_last_is_told_by_the_sizes_at_the_call() -> None:
    norm = ChannelNorm(6)
    assert found(norm(torch.randn(B, 6, 3, 4)), norm) == (0, 1)


class Mixed(nn.Module):
    """Activations that are registered before the layers that feed them, or behind other ones."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()
        self.patches = nn.Sequential(nn.Conv1d(4, 6, 1), nn.ReLU())
        self.mlp = nn.ModuleDict({"act": nn.ReLU(), "fc1": nn.Linear(6, 6), "fc2": nn.Linear(6, 6)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).transpose(1, 2)
        out: Tensor = self.mlp["fc2"](self.mlp["act"](self.mlp["fc1"](x)))
        return out


def test_the_structure_of_a_model_says_where_units_are_without_a_graph() -> None:
    model = Mixed()
    learn(inventory_of(model))
    with torch.no_grad():
        assert LayerAxes.of(torch.randn(B, 6, 9), model.patches[1]).units == 1
        assert LayerAxes.of(torch.randn(B, 9, 6), model.mlp["act"]).units == 2
        assert LayerAxes.of(torch.randn(B, 6, 9), model.act).units == 1  # by its neighbour, the only thing that is known
    assert [unit_axis(module) for module in (model.patches[1], model.mlp["act"], model.mlp["fc1"], model)] == [-2, -1, -1, 1]
    model(torch.randn(B, 4, 9))


def test_arguments_go_before_what_a_layer_says() -> None:
    tokens = torch.randn(B, T, 6)
    assert found(tokens, nn.Linear(6, 6), channel_last=False) == (0, 1)
    assert found(tokens, nn.Conv1d(4, 6, 1), channel_last=True) == (0, 2)
    assert found(tokens, None, channel_last=False, batched=False) == (None, 0)
    assert LayerAxes.of(tokens, None, channel_last=True).rule == "given"


def shape_of(output: Tensor, module: nn.Module | None, channel_last: bool | None = None, batched: bool | None = None) -> list[int]:
    return list(LayerAxes.of(output, module, channel_last=channel_last, batched=batched).samples_first(output).shape)


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


def test_a_sequential_has_its_samples_where_its_last_layer_has_them() -> None:
    """It returns the output of that layer."""
    layer = nn.TransformerEncoderLayer(4, 2, 8)
    first = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    assert LayerAxes.is_time_first(nn.Sequential(nn.Linear(4, 4), layer))
    assert LayerAxes.is_time_first(nn.Sequential(nn.Sequential(layer)))
    assert not LayerAxes.is_time_first(nn.Sequential(layer, first))
    assert not LayerAxes.is_time_first(nn.Sequential())


@pytest.mark.parametrize("kind", [nn.Identity, nn.ReLU, lambda: nn.Sequential(nn.ReLU(), nn.Identity())])
def test_each_module_is_looked_at_a_few_times(kind: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: a model of 2,000 took four seconds."""
    asked: list[nn.Module] = []
    own = layer_axes._own_axis

    def counted(module: nn.Module) -> int | None:
        asked.append(module)
        return own(module)

    monkeypatch.setattr(layer_axes, "_own_axis", counted)
    model = nn.ModuleList(kind() for _ in range(300))
    layer_axes.learn(inventory_of(model))
    assert 0 < len(asked) < 20 * len(list(model.modules()))
