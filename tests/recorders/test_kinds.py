"""What the five recorders record, against values computed by hand."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.errors import ObservationWarning
from sonde.recorders import BackwardInput, BackwardOutput, ForwardInput, ForwardOutput, ForwardPre

KINDS = [ForwardPre, ForwardInput, ForwardOutput, BackwardInput, BackwardOutput]


def linear(weight: list[list[float]]) -> nn.Linear:
    """A linear layer without bias, of this weight (out, in)."""
    made = nn.Linear(len(weight[0]), len(weight), bias=False)
    made.weight.data = torch.tensor(weight)
    return made


def test_the_five_kinds_of_one_layer() -> None:
    """For x = (1, 2), y = W x = (5, 11) for W = ((1, 2), (3, 4)); the loss y . (1, 10) gives (1, 10) and W' (1, 10)."""
    model = linear([[1.0, 2.0], [3.0, 4.0]])
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    recorders = [kind(strict=True).modules(model) for kind in KINDS]
    (model(x) * torch.tensor([1.0, 10.0])).sum().backward()
    expected = [[[1.0, 2.0]], [[1.0, 2.0]], [[5.0, 11.0]], [[31.0, 42.0]], [[1.0, 10.0]]]
    for recorder, value in zip(recorders, expected, strict=True):
        assert len(recorder[0]) == 1
        assert torch.equal(recorder[0][0], torch.tensor(value)), type(recorder).__name__
        assert recorder.samples(0) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_batch_is_kept(kind: type[sonde.recorders.Recorder]) -> None:
    """Five samples in, five kept; ``data_method="sample"`` keeps the first."""
    model = nn.Linear(4, 3)
    whole, first = kind(strict=True).modules(model), kind(data_method="sample", strict=True).modules(model)
    model(torch.randn(5, 4, requires_grad=True)).square().sum().backward()
    assert whole[0][0].shape[0] == 5
    assert torch.equal(first[0][0], whole[0][0][0])


def test_the_first_sample_of_scalars_and_of_empty_batches_is_the_whole() -> None:
    """What has no first sample is kept as it is."""

    class Loss(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum()

    loss, identity = Loss(), nn.Identity()
    recorder = ForwardOutput(data_method="sample", strict=True).modules(loss).modules(identity)
    loss(torch.ones(3))
    identity(torch.ones(0, 2))
    assert recorder[0][0].item() == 3
    assert recorder[1][0].shape == (0, 2)


def test_backward_input_is_the_gradient_of_the_input_and_not_of_the_bias() -> None:
    """Linear(4, 3) at batch 5 with the sum as loss: each row is the sum of the weight's rows, of shape (5, 4)."""
    model = nn.Linear(4, 3)
    recorder = BackwardInput(strict=True).modules(model)
    model(torch.randn(5, 4, requires_grad=True)).sum().backward()
    assert recorder[0][0].shape == (5, 4)
    torch.testing.assert_close(recorder[0][0], model.weight.sum(0).expand(5, 4))


def test_backward_input_of_a_module_of_several_operations() -> None:
    """Not the last operation's: d/dx of sum(3 (2 x)^2) is 24 x."""

    class Several(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 3 * (2 * x).square()

    model = Several()
    recorder = BackwardInput(strict=True).modules(model)
    model(torch.tensor([1.0, -2.0], requires_grad=True)).sum().backward()
    assert recorder[0][0].tolist() == [24.0, -48.0]


def test_backward_input_does_not_add_the_skip() -> None:
    """Of x + linear(x) with W = ((2,),) the gradient through the linear layer is 2; of x itself it is 3."""

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear([[2.0]])

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(x)

    model, x = Skip(), torch.ones(1, 1, requires_grad=True)
    recorder = BackwardInput(strict=True).modules(model)
    model(x).sum().backward()
    assert recorder["inner"][0].item() == 2
    assert recorder["(root)"][0].item() == 3
    assert x.grad is not None
    assert x.grad.item() == 3


def test_a_frozen_input_gives_none_for_each_backward_pass() -> None:
    """The first layer's input is data: there is None for it, and a gradient for the second layer's."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    recorder = BackwardInput(strict=True).children(model)
    with torch.no_grad():
        model(torch.randn(5, 4))
    for _ in range(2):
        model(torch.randn(5, 4)).sum().backward()
    model(torch.randn(5, 4, requires_grad=True)).sum().backward()
    assert recorder[0][:2] == [None, None]
    assert recorder[0][2].shape == (5, 4)
    assert [tuple(gradient.shape) for gradient in recorder[1]] == [(5, 3)] * 3
    assert list(recorder.iter_samples()) == [3, 3]


def test_one_frozen_argument_of_two() -> None:
    """Bilinear(x, z) with z frozen: a tuple of the gradient and None."""
    model = nn.Bilinear(2, 2, 1, bias=False)
    recorder = BackwardInput(strict=True).modules(model)
    x, z = torch.ones(1, 2, requires_grad=True), torch.ones(1, 2)
    model(x, z).sum().backward()
    first, second = recorder[0][0]
    torch.testing.assert_close(first, model.weight[0].sum(1)[None])
    assert second is None


def test_none_is_not_handed_to_a_reduction() -> None:
    """A sum over gradients of which the first layer never has any: None there, the sum elsewhere, and no error."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    recorder = BackwardInput(reduction=lambda x, y: x + y, strict=True).children(model)
    for _ in range(3):
        model(torch.ones(1, 1)).sum().backward()
    assert recorder[0] is None
    torch.testing.assert_close(recorder[1], 3 * model[1].weight)
    assert list(recorder.iter_samples()) == [3, 3]


class AddsOne(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1)


def test_forward_pre_and_input_differ_exactly_where_the_input_is_written_into() -> None:
    """ReLU_ on (-1, 2) got (-1, 2) and left (0, 2); the plain layers see the same before and after."""
    model = nn.Sequential(nn.Tanh(), nn.ReLU(inplace=True), nn.Identity(), AddsOne(), nn.Tanh())
    before, after = ForwardPre(strict=True).children(model), ForwardInput(strict=True).children(model)
    with torch.no_grad():
        model(torch.tensor([-1.0, 2.0]))
    same = [torch.equal(before[i][0], after[i][0]) for i in range(5)]
    assert same == [True, False, True, False, True]
    tanh = torch.tensor([-1.0, 2.0]).tanh()
    assert torch.equal(before[1][0], tanh)
    assert torch.equal(after[1][0], tanh.relu())
    assert torch.equal(before[3][0], tanh.relu())
    assert torch.equal(after[3][0], tanh.relu() + 1)


def test_a_kept_output_is_not_changed_by_the_next_module() -> None:
    """Linear and then ReLU_: the linear layer's output is kept with its negative numbers."""
    model = nn.Sequential(linear([[-1.0]]), nn.ReLU(inplace=True))
    recorder = ForwardOutput(strict=True).children(model)
    model(torch.ones(1, 1))
    assert recorder[0][0].item() == -1
    assert recorder[1][0].item() == 0


def test_a_module_that_writes_into_its_input_has_no_input_gradient_and_that_is_said() -> None:
    """Neither a gradient nor None is made up for ReLU_; the coverage gives the reason."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    recorder = BackwardInput(strict=True).children(model)
    model(torch.ones(1, 2)).sum().backward()
    assert recorder[1] == []
    assert "writes into its input" in next(line.reason for line in recorder.coverage() if line.site.path == "1")


def test_lstm_is_kept_whole() -> None:
    """Output and both states forward; backward with None for the states, which nothing used."""
    lstm = nn.LSTM(4, 3)
    outputs, gradients, inputs = (kind(strict=True).modules(lstm) for kind in (ForwardOutput, BackwardOutput, BackwardInput))
    x, h, c = torch.randn(5, 2, 4, requires_grad=True), torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)
    expected = lstm(x, (h, c))
    expected[0].sum().backward()
    out, (hidden, cell) = outputs[0][0]
    assert all(torch.equal(a, b) for a, b in zip((out, hidden, cell), (expected[0], *expected[1]), strict=True))
    gradient, states = gradients[0][0]
    assert torch.equal(gradient, torch.ones(5, 2, 3))
    assert states == (None, None)
    to_x, to_states = inputs[0][0]
    assert torch.equal(to_x, x.grad)
    assert to_states == (None, None)
    assert torch.equal(outputs["(root):output[1][0]"][0], expected[1][0])


def test_dict_and_dataclass_outputs_are_kept_whole() -> None:
    """With their types and what is no tensor in them; gradients in the same structure."""

    @dataclass
    class Out:
        a: Tensor
        parts: dict[str, Any]

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Out:
            return Out(2 * x, {"b": 3 * x, "n": 7})

    model = Model()
    outputs, gradients = ForwardOutput(strict=True).modules(model), BackwardOutput(strict=True).modules(model)
    made = model(torch.ones(2, requires_grad=True))
    (made.a + 5 * made.parts["b"]).sum().backward()
    kept, back = outputs[0][0], gradients[0][0]
    assert type(kept) is type(back) is Out
    assert kept.parts["n"] == 7
    assert kept.parts["b"].tolist() == [3, 3]
    assert back.a.tolist() == [1, 1]
    assert back.parts["b"].tolist() == [5, 5]
    assert outputs["(root):output.parts['b']"][0].tolist() == [3, 3]


@pytest.mark.parametrize("kind", [ForwardPre, ForwardInput, BackwardInput])
def test_how_arguments_are_kept(kind: type[sonde.recorders.Recorder]) -> None:
    """One positional argument itself, several as a tuple, with keywords as a dict of positions and keywords."""

    class Takes(nn.Module):
        def forward(self, x: Tensor, y: Tensor | None = None, *, z: Tensor | None = None) -> Tensor:
            return sum(t for t in (x, y, z) if t is not None)  # type: ignore[return-value]

    model, (x, y, z) = Takes(), (torch.full((2,), float(i), requires_grad=True) for i in range(3))
    recorder = kind(strict=True).modules(model)
    for output in (model(x), model(x, y), model(x, z=z), model(x=x)):
        output.sum().backward()
    one, two, mixed, keywords = recorder[0]
    assert isinstance(one, Tensor)
    assert isinstance(two, tuple)
    assert len(two) == 2
    assert list(mixed) == [0, "z"]
    assert list(keywords) == ["x"]
    if kind is not BackwardInput:
        assert torch.equal(mixed["z"], z)
        assert torch.equal(one, x)


def test_an_input_leaf_answers_to_the_name_that_all_of_sonde_has_for_it() -> None:
    """The only argument is ``input[0]`` in every instrument, also where it is kept by itself."""
    model = nn.Identity()
    recorder = ForwardPre(strict=True).modules(model)
    seen: list[str] = []
    with sonde.observe(model, lambda event: seen.extend(str(event.site.at(leaf)) for leaf, _ in event.leaves), ports="input"):
        model(torch.ones(2))
    assert seen == ["(root):input[0]"]
    assert recorder[seen[0]][0].tolist() == [1, 1]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_records_each_call_once(reentrant: bool) -> None:
    """The recomputed forward is not recorded again, and gradients are as without a checkpoint."""
    block = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.randn(2, 3, requires_grad=True)
    recorders = [kind(strict=True).modules(block, types=nn.Linear) for kind in KINDS]
    checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    assert [recorder.samples(0) for recorder in recorders] == [1] * 5
    y = block[0](x)
    (gradient,) = torch.autograd.grad(y.tanh().sum(), y)
    torch.testing.assert_close(recorders[4][0][0], gradient)
    torch.testing.assert_close(recorders[3][0][0], gradient @ block[0].weight)


def test_inside_inference_mode_what_is_kept_can_be_used_outside() -> None:
    """A running sum begun in inference mode goes on outside it."""
    model = nn.Identity()
    kept = ForwardOutput(strict=True).modules(model)
    total = ForwardOutput(reduction=lambda x, y: x.add_(y), strict=True).modules(model)
    ready = ForwardOutput(reduction=sonde.recorders.reductions.Sum(), strict=True).modules(model)
    with torch.inference_mode():
        model(torch.ones(2))
        model(torch.ones(2))
    model(torch.ones(2))
    assert not kept[0][0].is_inference()
    assert total[0].tolist() == ready[0].tolist() == [3, 3]


def test_nothing_is_disturbed() -> None:
    """All five at once leave output, gradients and random state as they are without them."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(4, 2))
    x = torch.randn(3, 4)

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        output = model(x)
        output.square().sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        return [output.detach().clone(), *gradients, torch.get_rng_state()]

    bare = run()
    changing = sonde.recorders.reductions.Reservoir(2, seed=3)
    recorders = [
        kind(reduction=how, strict=True).modules(model) for kind in KINDS for how in (None, lambda x, y: y.mul_(0), changing)
    ]
    observed = run()
    assert len(recorders) == 15
    assert all(torch.equal(a, b) for a, b in zip(bare, observed, strict=True))


@pytest.mark.slow
def test_compiled_code(fresh_compiler: None) -> None:
    """What eager code records, compiled code does too, except for the input after the forward, which it says."""
    inner = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True))
    model = nn.Sequential(inner, nn.Linear(3, 2))
    x = torch.randn(5, 4, requires_grad=True)
    kinds = [ForwardPre, ForwardOutput, BackwardInput, BackwardOutput]
    eager = [kind(strict=True).modules(model, types=nn.Linear) for kind in kinds]
    model(x).sum().backward()
    for recorder in eager:
        recorder.detach()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    recorders = [kind(strict=True).modules(compiled, types=nn.Linear) for kind in kinds]
    after = ForwardInput(strict=True).modules(compiled, types=nn.Linear)
    with pytest.warns(ObservationWarning, match="ForwardPre records it as it was before"):
        compiled(x).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(x).sum().backward()
    for one, other in zip(eager, recorders, strict=True):
        for slot in range(2):
            assert other.samples(slot) == 2
            torch.testing.assert_close(other[slot][0], one[slot][0])
            torch.testing.assert_close(other[slot][1], one[slot][0])
    assert after.data == [[], []]
    assert all("not known after its forward" in line.reason for line in after.coverage())
