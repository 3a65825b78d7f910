"""The second seed's demonstrated defects, F1 to F21, each as a test of what holds here."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sonde import open_tensors
from sonde.recorders import BackwardInput, BackwardOutput, ForwardInput, ForwardOutput, ForwardPre, open_recorded
from sonde.recorders.reductions import Sum


def layers() -> nn.Sequential:
    """Linear layers from 1 to 2 to 3 to 4 features, whose outputs tell by their shape whose they are."""
    return nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 3), nn.Linear(3, 4))


def widths(recorder: ForwardOutput) -> list[list[int]]:
    return [[value.shape[-1] for value in values] for values in recorder]


def test_f01_apply_changes_the_data() -> None:
    """The original's ``apply`` and ``apply_sample`` changed nothing."""
    model = nn.Identity()
    recorder = ForwardOutput(reduction=lambda x, y: x + y, strict=True).modules(model)
    for _ in range(4):
        model(torch.tensor([3.0]))
    recorder.apply_sample(lambda data, samples: data / samples)
    assert recorder[0].item() == 3
    recorder.apply(lambda data: data * 2)
    assert recorder[0].item() == recorder.data[0].item() == 6


def test_f02_a_condition_true_for_part_of_a_pass() -> None:
    """The original put the second layer's data into the first one's slot."""
    model, answers = layers(), iter([False, True, True, True, True, True])
    recorder = ForwardOutput(condition=lambda: next(answers), strict=True).children(model)
    model(torch.ones(1, 1))
    model(torch.ones(1, 1))
    assert widths(recorder) == [[2], [3, 3], [4, 4]]


class Reversed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.late, self.unused, self.early = nn.Linear(2, 3), nn.Linear(9, 9), nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.late(self.early(x))
        return out


@pytest.mark.parametrize("reduction", [None, lambda x, y: x + y])
def test_f03_f04_execution_order_and_modules_that_do_not_run(reduction: object) -> None:
    """The original added one layer's data to another's, or raised in the user's forward."""
    model = Reversed()
    recorder = ForwardOutput(reduction=reduction, strict=True).children(model)  # type: ignore[arg-type]
    model(torch.ones(1, 1))
    model(torch.ones(1, 1))
    shapes = [
        (values[0] if reduction is None else values).shape[-1] if values is not None and len(values) else 0 for values in recorder
    ]
    assert shapes == [3, 0, 2]
    assert list(recorder.iter_samples()) == [2, 0, 2]


def test_f05_f06_f07_remove() -> None:
    """The original wrote to wrong slots afterwards, removed dead handles, and raised before any data."""
    model = layers()
    recorder = ForwardOutput(strict=True).children(model)
    assert recorder.remove(0) == []
    model(torch.ones(1, 1))
    assert widths(recorder) == [[3], [4]]
    recorder.remove(0)
    model(torch.ones(1, 1))
    assert widths(recorder) == [[4, 4]]
    assert [len(layer._forward_hooks) for layer in model] == [0, 0, 1]
    assert len(recorder.handles) == len(recorder.subrecorders) == len(recorder.data) == len(recorder) == 1


def test_f08_two_models_and_two_registrations() -> None:
    """The original wrote both models' first layers into one slot."""
    one, two = layers(), nn.Sequential(nn.Linear(1, 7))
    recorder = ForwardOutput(strict=True).children(one, indices=(0,)).children(two).children(one, indices=(2,))
    two(torch.ones(1, 1))
    one(torch.ones(1, 1))
    assert widths(recorder) == [[2], [7], [4]]


def test_f09_types_and_indices_together() -> None:
    """The original registered everything."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    recorder = ForwardOutput().children(model, types=nn.Linear, indices=(1, 2))
    assert [slot.name for slot in recorder.subrecorders] == ["2"]
    recorder.detach()


def test_f10_the_whole_batch() -> None:
    """The original kept the first sample of five without being asked."""
    model = nn.Linear(4, 3)
    recorder = ForwardOutput(strict=True).modules(model)
    model(torch.ones(5, 4))
    assert recorder[0][0].shape == (5, 3)


def test_f11_input_gradients() -> None:
    """The original kept the gradient of the bias, of shape (3,)."""
    model = nn.Linear(4, 3)
    recorder = BackwardInput(strict=True).modules(model)
    x = torch.ones(5, 4, requires_grad=True)
    model(x).square().sum().backward()
    assert recorder[0][0].shape == (5, 4)
    assert torch.equal(recorder[0][0], x.grad)


def test_f12_f13_with_full_backward_hooks_and_without_a_warning() -> None:
    """The original used hooks that torch has deprecated, and could not be used beside a full backward hook."""
    model, seen = nn.Linear(4, 3), []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle = model.register_full_backward_hook(lambda module, given, returned: seen.append(given[0]))
        recorders = [kind(strict=True).modules(model) for kind in (BackwardInput, BackwardOutput)]
        model(torch.ones(5, 4, requires_grad=True)).sum().backward()
        handle.remove()
    assert torch.equal(recorders[0][0][0], seen[0])
    assert torch.equal(recorders[1][0][0], torch.ones(5, 3))


def test_f14_an_inplace_operation_behind_the_module() -> None:
    """The original's stored output of Linear was overwritten by ReLU_."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    nn.init.constant_(model[0].weight, -1)
    nn.init.zeros_(model[0].bias)
    recorder = ForwardOutput(strict=True).children(model)
    model(torch.ones(1, 2))
    assert recorder[0][0].tolist() == [[-2, -2]]


def test_f15_no_graph_is_kept(tmp_path: Path) -> None:
    """The original's sums were chains of graphs, 51 nodes after 50 steps, and its files required gradients."""
    model = nn.Linear(2, 2)
    recorders = [ForwardOutput(reduction=how, strict=True).modules(model) for how in (None, lambda x, y: x + y, Sum())]
    for _ in range(50):
        model(torch.ones(1, 2)).sum().backward()
    kept = [recorders[0][0][-1], recorders[1][0], recorders[2][0], open_recorded(recorders[1].save(tmp_path))[0]]
    assert all(not tensor.requires_grad and tensor.grad_fn is None for tensor in kept)


def test_f16_dicts_and_keywords() -> None:
    """The original raised KeyError and IndexError in the user's forward."""

    class Model(nn.Module):
        def forward(self, *, x: Tensor) -> dict[str, Tensor]:
            return {"y": x + 1}

    model = Model()
    recorders = [kind(strict=True).modules(model) for kind in (ForwardPre, ForwardInput, ForwardOutput)]
    model(x=torch.zeros(1))
    assert [recorder[0] for recorder in recorders] == [[{"x": torch.zeros(1)}]] * 2 + [[{"y": torch.ones(1)}]]


def test_f17_all_of_an_lstm() -> None:
    """The original kept the first element of the output."""
    lstm = nn.LSTM(2, 3)
    recorder = ForwardOutput(strict=True).modules(lstm)
    out, (hidden, cell) = lstm(torch.ones(5, 2))
    kept, states = recorder[0][0]
    assert torch.equal(kept, out)
    assert torch.equal(states[0], hidden)
    assert torch.equal(states[1], cell)


def test_f18_an_inplace_reduction() -> None:
    """The original's first stored tensor was the live activation: the model's output changed."""
    model = nn.Sequential(nn.Identity(), nn.Identity())
    recorder = ForwardOutput(reduction=lambda x, y: x.add_(y), strict=True).children(model)
    x = torch.ones(2)
    outputs = [model(x).clone() for _ in range(3)]
    assert x.tolist() == [1, 1]
    assert all(output.tolist() == [1, 1] for output in outputs)
    assert recorder[0].tolist() == [3, 3]


def test_f19_saving(tmp_path: Path) -> None:
    """The original took no text, made no parents, and did not write the modules' names."""
    model = nn.Sequential()
    model.add_module("head", nn.Linear(1, 1))
    recorder = ForwardOutput(strict=True).children(model)
    model(torch.ones(1, 1))
    folder = recorder.save(str(tmp_path / "deep" / "down"), mkdir=True)
    assert list(open_tensors(folder)) == ["000000/head:output"]


def test_f20_length_pickling_clearing_and_a_with_block() -> None:
    """The original had a length that its iteration did not have, could not be pickled, cleared or removed as a whole."""
    model = layers()
    with ForwardOutput(reduction=max, strict=True).children(model) as recorder:
        assert len(recorder) == len(list(recorder)) == 3
        model(torch.ones(1, 1))
        assert torch.equal(pickle.loads(pickle.dumps(recorder))[0], recorder[0])
        recorder.clear()
        assert list(recorder) == [None] * 3
    assert all(len(layer._forward_hooks) == 0 for layer in model)


def test_f21_the_documented_example(tmp_path: Path) -> None:
    """Indices 2 and 4 are the second and third linear layer (the original's text says 2 and 3), and their sums are saved."""
    model = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
    recorder = ForwardPre(reduction=lambda x, y: x + y, strict=True)
    recorder.children(model, indices=(2, 4))
    x = torch.ones(1, 784)
    for _ in range(2):
        model(x)
    folder = recorder.save(tmp_path / "analysis", mkdir=True)
    assert open_tensors(folder).sites == ("2:input", "4:input")
    torch.testing.assert_close(open_recorded(folder)["2"], 2 * model[:2](x).detach())
    assert recorder[1].shape == (1, 50)
