"""``summary``: every number against a count by hand or plain torch, and nothing changed by asking."""

from __future__ import annotations

import contextlib
import io
import random
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from tests.torch_words import words_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sonde.errors import ArgumentError, ModelError
from sonde.model_summary import Summary, SummaryRow, summary


def row(found: Summary, name: str) -> SummaryRow:
    return next(row for row in found.rows if row.name == name)


def text_of(found: Summary, layer: str) -> str:
    """The printed line of a layer, by the last part of its name."""
    return next(line for line in repr(found).splitlines() if line.split()[:1] == [layer])


def mean_square(output: Tensor) -> Tensor:
    return output.pow(2).mean()


class Net(nn.Module):
    """A shared layer, a tied weight, a list of layers that is never called, and a frozen layer that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Linear(4, 4)
        self.act = nn.Tanh()
        self.dec = self.enc
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.enc.weight
        self.more = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2, bias=False)])
        self.more[1].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.more[0](self.tied(self.dec(self.act(self.enc(x)))))


class Recursive(nn.Module):
    """Holds itself and calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self._modules["again"] = self

    def forward(self, x: Tensor, times: int = 2) -> Tensor:
        x = self.lin(x)
        return x if times == 0 else self.again(x, times - 1)


class WithLoss(nn.Module):
    """Answers as Hugging Face models do."""

    def __init__(self, *, as_attribute: bool = False) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 2)
        self.as_attribute = as_attribute

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.lin(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        if self.as_attribute:
            return type("Answer", (), {"loss": loss, "logits": logits})()
        return {"logits": logits, "loss": loss}


def raise_backward(gradient: Tensor) -> None:
    raise ArithmeticError("cannot go back")


class Calls(nn.Module):
    """A module around any function, with children to call."""

    def __init__(self, function: Callable[[Any, Tensor], Any], **children: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def mismatched() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 2), nn.Softmax(-1))


# What the rows say


def test_rows_are_the_modules_in_tree_order_with_shapes_and_parameters() -> None:
    """Parents come before children, each with what it took, gave back and holds."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False)))
    found = summary(model, torch.randn(5, 3))
    assert [(r.name, r.type, r.depth, r.params) for r in found.rows] == [
        ("", "Sequential", 0, 24),
        ("0", "Linear", 1, 16),
        ("1", "Sequential", 1, 8),
        ("1.0", "ReLU", 2, 0),
        ("1.1", "Linear", 2, 8),
    ]
    assert (row(found, "1").input_shapes, row(found, "1").output_shapes) == (((5, 4),), ((5, 2),))
    assert (found.total_params, found.trainable_params, found.param_bytes) == (24, 24, 96)


def test_scale_is_that_of_the_output() -> None:
    """Mean, population std and zero share equal those of the outputs 0, 0, 1, 3 by hand."""
    model = nn.Sequential(nn.ReLU())
    found = row(summary(model, torch.tensor([[-1.0, 0.0], [1.0, 3.0]])), "0")
    assert (found.mean, found.zeros) == (1.0, 0.5)
    assert found.std == pytest.approx(1.5**0.5)


def test_gradient_is_the_norm_at_the_output() -> None:
    """Against ``retain_grad`` in plain torch."""
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(6, 3)
    found = summary(model, x, loss_fn=mean_square)
    outputs = []
    for layer in model:
        x = layer(x)
        x.retain_grad()
        outputs.append(x)
    mean_square(x).backward()
    for index, output in enumerate(outputs):
        assert output.grad is not None
        assert row(found, str(index)).gradient == pytest.approx(output.grad.norm().item(), rel=1e-6)
    assert found.loss == pytest.approx(mean_square(x).item())


@pytest.mark.parametrize("as_attribute", [False, True])
def test_loss_of_the_output_is_used_where_there_is_one(as_attribute: bool) -> None:
    """A ``loss`` key or attribute goes backward; without labels there is none, and no column of gradients."""
    model, x, labels = WithLoss(as_attribute=as_attribute), torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
    found = summary(model, x, labels=labels)
    logits = model.lin(x).detach().requires_grad_()
    nn.functional.cross_entropy(logits, labels).backward()
    assert logits.grad is not None
    assert row(found, "lin").gradient == pytest.approx(logits.grad.norm().item(), rel=1e-6)
    assert "gradient" in repr(found)
    without = summary(model, x)
    assert without.loss is None
    assert row(without, "lin").gradient is None
    assert "gradient" not in repr(without)


def test_no_gradient_inside_no_grad() -> None:
    """The caller's ``no_grad`` is respected, unless a loss is asked for."""
    model, x, labels = WithLoss(), torch.randn(2, 3), torch.tensor([0, 1])
    with torch.no_grad():
        assert summary(model, x, labels).loss is None
        assert summary(model, x, labels, loss_fn=lambda output: output["loss"]).loss is not None


def test_shared_and_tied_parameters_are_counted_once() -> None:
    """20 + 4 + 10 + 8 by hand: the shared layer's second place and the tied weight add nothing."""
    found = summary(Net(), torch.randn(8, 4))
    assert [(r.name, r.params, r.params_before, r.same_as) for r in found.rows] == [
        ("", 42, 0, None),
        ("enc", 20, 0, None),
        ("act", 0, 0, None),
        ("dec", 0, 20, "enc"),
        ("tied", 4, 16, None),
        ("more", 18, 0, None),
        ("more.0", 10, 0, None),
        ("more.1", 8, 0, None),
    ]
    assert (found.total_params, found.trainable_params) == (42, 34)
    assert row(found, "enc").calls == 2
    assert row(found, "dec").words == "same module as enc"
    assert row(found, "tied").words == "weight shared with enc"
    assert "(20)" in text_of(found, "dec")


def test_what_was_not_called_says_so() -> None:
    """A container is no call; a layer that nobody calls has its reason, and a frozen one is marked."""
    found = summary(Net(), torch.randn(8, 4))
    assert row(found, "more").words == ""
    unused = row(found, "more.1")
    assert unused.calls == 0
    assert "call" in unused.words
    assert unused.words.endswith("frozen")


def test_recursive_module() -> None:
    """Three calls of one module that holds itself: 12 parameters, and a place that refers back."""
    found = summary(Recursive(), torch.randn(2, 3))
    assert [(r.name, r.params, r.calls, r.same_as) for r in found.rows] == [
        ("", 12, 3, None),
        ("lin", 12, 3, None),
        ("again", 0, 0, ""),
    ]
    assert row(found, "again").words == "same module as (root)"
    assert "calls" in repr(found)


def test_all_calls_are_in_the_numbers() -> None:
    """A layer called on ones and on twos has the mean of both, and says that the shapes differ."""
    model = Calls(lambda self, x: self.id(x) + self.id(2 * x[:1]).sum(), id=nn.Hardtanh(-9, 9))
    found = row(summary(model, torch.ones(3, 2)), "id")
    assert found.calls == 2
    assert found.mean == pytest.approx((6 * 1 + 2 * 2) / 8)
    assert found.output_shapes == ((1, 2),)
    assert "shapes vary" in found.words


def test_words_are_those_of_the_tracker() -> None:
    """Dead units, NaN and pass-through modules are named as in the tracker's table."""
    dead = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True))
    nn.init.constant_(dead[0].bias, -100.0)
    assert row(summary(dead, torch.randn(16, 4)), "1").words == "100 % dead; returns its input"
    spoiled = nn.Sequential(nn.Identity(), nn.Softplus())
    assert "not finite: 2 NaN" in row(summary(spoiled, torch.tensor([[float("nan"), 1.0]] * 2)), "1").words


def test_bytes_of_outputs_count_each_piece_of_memory_once() -> None:
    """10x4 floats of the first layer (160 B); in-place, view, input and container add nothing; 10x2 of the last (80 B)."""
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Unflatten(1, (2, 2)), nn.Flatten(), nn.Linear(4, 2)
    )
    found = summary(model, torch.randn(10, 3))
    assert found.output_bytes == 160 + 80


def test_bytes_of_outputs_without_gradients() -> None:
    """Memory that is freed and used again is still another output."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(5)))
    with torch.no_grad():
        assert summary(model, torch.randn(8, 64)).output_bytes == 5 * 8 * 64 * 4


def test_leaf_is_what_calls_no_other() -> None:
    """Multi-head attention computes by itself past its ``out_proj``: its own output counts."""
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8)
    found = summary(model, x, x, x, need_weights=False, loss_fn=lambda output: output[0].sum())
    assert found.output_bytes == 2 * 5 * 8 * 4
    assert row(found, "out_proj").calls == 0
    assert "parameters were used" in row(found, "out_proj").words


def test_footer_of_buffers_dtypes_and_devices() -> None:
    """Two float buffers of 4 and a counter: 40 bytes; most of the parameters are float16."""
    model = nn.ModuleDict({"norm": nn.BatchNorm1d(4), "wide": nn.Linear(4, 64).half()})
    wrapped = Calls(lambda self, x: self.inner["norm"](x), inner=model)
    found = summary(wrapped, torch.randn(3, 4))
    assert found.buffer_bytes == 4 * 4 + 4 * 4 + 8
    assert found.dtypes == ("float16", "float32")
    assert found.devices == ("cpu",)


# What it leaves alone


class Restless(nn.Module):
    """Changes all it can while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.renormed = nn.Embedding(3, 4, max_norm=0.1)
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("cache", None, persistent=False)
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        self.last = x
        self.seen = self.seen + 1
        self.cache = torch.ones(3)
        x.add_(random.random() + np.random.rand())
        self.train(not self.training)
        return self.drop(self.norm(x)) + self.renormed(torch.tensor(0))


def test_model_batch_and_random_state_are_as_they_were() -> None:
    """Buffers, attributes, flags, weights, input and three random states are bit-equal afterwards."""
    model, x = Restless(), torch.randn(6, 4)
    before, x_before = {key: value.clone() for key, value in model.state_dict().items()}, x.clone()
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    identities = {name: id(buffer) for name, buffer in model.named_buffers()}
    summary(model, x, loss_fn=mean_square)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert {name: id(buffer) for name, buffer in model.named_buffers()} == identities
    assert torch.equal(x, x_before)
    assert (model.runs, model.training, model.norm.training, model.cache) == (0, True, True, None)
    assert not hasattr(model, "last")
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]
    assert np.random.get_state()[1].tolist() == state[2]


def test_everything_is_restored_when_the_model_raises() -> None:
    """The same when the forward fails halfway."""
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(4, 1))
    before, x = {key: value.clone() for key, value in model.state_dict().items()}, torch.randn(4, 3)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        summary(model, x)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_gradients_of_parameters_and_inputs_are_the_same_objects() -> None:
    """What was there stays, what was None stays None, and hooks on accumulation do not run."""
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)), torch.randn(2, 3, requires_grad=True)
    model[0].weight.grad = held = torch.full((3, 3), 7.0)
    steps: list[nn.Parameter] = []
    handle = model[1].weight.register_post_accumulate_grad_hook(steps.append)
    outside = torch.ones(1, requires_grad=True)
    found = summary(model, x, loss_fn=lambda output: (output * outside).sum())
    handle.remove()
    assert row(found, "0").gradient is not None
    assert model[0].weight.grad is held
    assert torch.equal(held, torch.full((3, 3), 7.0))
    assert (model[0].bias.grad, model[1].weight.grad, x.grad, outside.grad) == (None, None, None, None)
    assert steps == []


def test_graph_before_the_batch_can_still_go_backward() -> None:
    """An input with a history of its own keeps it."""
    start = torch.randn(2, 3, requires_grad=True)
    x = start.exp()
    summary(nn.Linear(3, 1), x, loss_fn=mean_square)
    x.sum().backward()
    assert start.grad is not None


def test_a_forward_that_writes_into_parameters_is_named() -> None:
    """The remark says which; the model itself is as it was."""

    def clamp(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.lin.weight.clamp_(-0.1, 0.1)
        return self.lin(x)

    model = Calls(clamp, lin=nn.Linear(3, 3))
    before = model.lin.weight.detach().clone()
    found = summary(model, torch.randn(2, 3))
    assert torch.equal(model.lin.weight, before)
    assert any("lin.weight" in remark for remark in found.remarks)
    assert "lin.weight" in repr(found)


class Chain(nn.Sequential):
    """Checks at each layer that no output is alive but the last."""

    alive: ClassVar[list[weakref.ref[Tensor]]] = []

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
            assert sum(held() is not None for held in self.alive) <= 1
            self.alive.append(weakref.ref(x))
        return x


def test_activations_are_not_kept() -> None:
    """Without gradients every output is freed as soon as the model lets go of it."""
    alive = Chain.alive
    alive.clear()
    with torch.no_grad():
        summary(Chain(*(nn.Linear(4, 4) for _ in range(5))), torch.randn(2, 4))
    assert len(alive) == 5
    assert all(held() is None for held in alive)


# Models of every kind


def test_lazy_model_stays_lazy() -> None:
    """A copy is run: its table is complete, and the model itself is not made."""
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 1))
    found = summary(model, torch.randn(5, 3))
    assert found.total_params == 16 + 8 + 5
    assert model[0].has_uninitialized_params()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_part(reentrant: bool) -> None:
    """One call, its gradient, and a word about the recomputation; no gradient is left in either mode."""
    model = Calls(
        lambda self, x: self.head(checkpoint(self.body, self.stem(x), use_reentrant=reentrant)),
        stem=nn.Linear(3, 4),
        body=nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
        head=nn.Linear(4, 1),
    )
    outside = torch.ones(1, requires_grad=True)
    found = summary(model, torch.randn(2, 3), loss_fn=lambda output: (output * outside).sum())
    assert row(found, "body.0").calls == 1
    assert "recomputed" in row(found, "body.0").words
    assert row(found, "stem").gradient is not None
    assert [p.grad for p in (*model.parameters(), outside)] == [None] * 7


def test_meta_and_inference_and_half() -> None:
    """Shapes without data, tensors without versions, and half precision are all summarised."""
    found = summary(nn.Linear(3, 4, device="meta"), torch.randn(2, 3, device="meta"), loss_fn=mean_square)
    assert (found.rows[0].output_shapes, found.rows[0].mean, found.output_bytes) == (((2, 4),), None, 32)
    with torch.inference_mode():
        found = summary(nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True)), torch.randn(2, 3))
    assert row(found, "1").mean is not None
    found = summary(nn.Linear(3, 4).bfloat16(), torch.ones(2, 3, dtype=torch.bfloat16))
    assert found.dtypes == ("bfloat16",)


def test_recurrent_network_and_integer_input() -> None:
    """Several tensors of an output are all there; the first is measured."""
    model = nn.Sequential(nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True))
    found = summary(model, torch.randint(9, (2, 7)))
    assert row(found, "1").output_shapes == ((2, 7, 5), (1, 2, 5), (1, 2, 5))
    assert "2×7×5 (+2)" in repr(found)
    assert row(found, "0").input_shapes == ((2, 7),)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_model_runs_as_plain_python() -> None:
    """A model that was compiled and used before is complete, under its own names."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    compiled = torch.compile(model, backend="eager")
    x = torch.randn(2, 3)
    compiled(x)
    found = summary(compiled, x, loss_fn=mean_square)
    assert [(r.name, r.type, r.calls) for r in found.rows] == [("", "Sequential", 1), ("0", "Linear", 1), ("1", "ReLU", 1)]
    assert row(found, "0").gradient is not None


def test_transformers_model() -> None:
    """A tiny GPT-2: its own count of parameters, its own loss, and the tied head in parentheses."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=100, n_positions=32, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(100, (4, 16))
    found = summary(model, input_ids=tokens, labels=tokens)
    assert found.total_params == model.num_parameters() == 29_696
    assert row(found, "lm_head").params_before == 3_200
    assert row(found, "lm_head").words == "weight shared with transformer.wte"
    assert row(found, "transformer.wte").gradient is not None
    assert found.loss is not None
    assert all(parameter.grad is None for parameter in model.parameters())


# When something raises


def test_the_models_own_exception_carries_the_table() -> None:
    """The same exception, with the rows up to the failing call as its note."""
    with pytest.raises(RuntimeError, match=words_of(lambda: mismatched()(torch.randn(2, 3)))) as caught:
        summary(mismatched(), torch.randn(2, 3))
    (note,) = caught.value.__notes__
    assert f"2 (Linear) raised RuntimeError: {str(caught.value)[:20]}" in note
    assert "not reached" in note


def test_partial_summary_marks_the_failing_module() -> None:
    """Rows before it are complete, its own has the input that it refused, those after it were not reached."""
    found = summary(mismatched(), torch.randn(2, 3), on_error="partial")
    assert isinstance(found.error, RuntimeError)
    assert not hasattr(found.error, "__notes__")
    assert [r.name for r in found.rows if r.failed] == ["2"]
    assert (row(found, "2").input_shapes, row(found, "2").output_shapes) == (((2, 4),), ())
    assert row(found, "1").mean is not None
    assert [row(found, name).words for name in ("", "3")] == ["did not return", "not reached"]
    assert found.total_params == 16 + 12


def test_failing_module_is_not_one_whose_exception_was_caught() -> None:
    """An exception that the parent swallowed is forgotten, whether it goes on or fails by itself."""

    def tries(self: Any, x: Tensor) -> Tensor:
        with contextlib.suppress(RuntimeError):
            self.first(x)
        return self.second(x)

    found = summary(Calls(tries, first=nn.Linear(9, 9), second=nn.Linear(8, 8)), torch.randn(2, 3), on_error="partial")
    assert [r.name for r in found.rows if r.failed] == ["second"]

    def tries_itself(self: Any, x: Tensor) -> Tensor:
        with contextlib.suppress(RuntimeError):
            return self.first(x)
        raise KeyError("mine")

    found = summary(Calls(tries_itself, first=nn.Linear(9, 9)), torch.randn(2, 3), on_error="partial")
    assert [r.name for r in found.rows if r.failed] == [""]
    fine = summary(Calls(tries, first=nn.Linear(9, 9), second=nn.Linear(3, 3)), torch.randn(2, 3))
    assert (fine.error, row(fine, "second").calls, row(fine, "first").calls) == (None, 1, 0)


def test_exception_that_replaces_another_is_of_the_inner_module() -> None:
    """The module whose call fails is marked also when its parent raises something else from that."""

    def translates(self: Any, x: Tensor) -> Tensor:
        try:
            return self.first(x)
        except RuntimeError as error:
            raise ValueError("bad batch") from error

    found = summary(Calls(translates, first=nn.Linear(9, 9)), torch.randn(2, 3), on_error="partial")
    assert isinstance(found.error, ValueError)
    assert row(found, "first").failed


def test_loss_that_raises() -> None:
    """The forward is complete, no module is blamed, and the exception is the loss's own."""

    def bad_loss(output: Tensor) -> Tensor:
        raise ZeroDivisionError("no loss")

    with pytest.raises(ZeroDivisionError, match="no loss"):
        summary(nn.Linear(3, 1), torch.randn(2, 3), loss_fn=bad_loss)
    found = summary(nn.Linear(3, 1), torch.randn(2, 3), loss_fn=bad_loss, on_error="partial")
    assert not any(r.failed for r in found.rows)
    assert found.rows[0].calls == 1
    assert found.title == "Linear, partial: loss_fn raised ZeroDivisionError: no loss"


def test_backward_that_raises() -> None:
    """Gradients that came before it are there."""

    def forward(self: Any, x: Tensor) -> Tensor:
        between = self.a(x).exp()
        if between.requires_grad:
            between.register_hook(raise_backward)
        return self.b(between)

    model = Calls(forward, a=nn.Linear(3, 3), b=nn.Linear(3, 1))
    found = summary(model, torch.randn(2, 3), loss_fn=mean_square, on_error="partial")
    assert isinstance(found.error, ArithmeticError)
    assert "the backward pass raised ArithmeticError" in found.title
    assert row(found, "b").gradient is not None
    assert row(found, "a").gradient is None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_arguments_that_the_model_refuses() -> None:
    """No batch at all is the model's own TypeError."""
    with pytest.raises(TypeError, match="forward"):
        summary(nn.Linear(3, 1))


def test_long_note_is_cut_to_what_led_there() -> None:
    """The note of a deep model holds the failing row and those just before, not the whole table."""
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(80)), nn.Linear(4, 4))
    with pytest.raises(RuntimeError) as caught:
        summary(model, torch.randn(2, 3))
    note = caught.value.__notes__[0]
    assert len(note.splitlines()) < 25
    assert "80 (Linear) raised" in note
    assert "further rows" in note


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss_fn": 3}, "cannot be called"),
        ({"loss_fn": nn.CrossEntropyLoss()}, "CrossEntropyLoss.* output alone .*'target'.*lambda output"),
        ({"loss_fn": nn.functional.mse_loss}, "mse_loss cannot be called with the model's output alone"),
        ({"depth": -1}, "depth=-1"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"loss_fn": lambda output: 3.0}, "returned a float"),
        ({"loss_fn": lambda output: output}, r"shape \(2, 4\)"),
        ({"loss_fn": lambda output: output.sum().detach()}, "does not require a gradient"),
    ],
)
def test_wrong_arguments_say_what_to_give(arguments: dict[str, Any], message: str) -> None:
    """Each names what was given and what is wanted."""
    with pytest.raises(ArgumentError, match=message):
        summary(nn.Linear(3, 4), torch.randn(2, 3), **arguments)


def test_what_is_no_model() -> None:
    """A class, or anything else that is no module, is refused by name."""
    with pytest.raises(ModelError, match="make one first"):
        summary(nn.Linear, torch.ones(1))  # type: ignore[arg-type]


# How it looks


def test_depth_folds_rows_but_not_what_matters() -> None:
    """Folded rows are counted, what is notable in them is told above, and a failing row is never folded."""
    inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    nn.init.constant_(inner[0].bias, -100.0)
    found = summary(nn.Sequential(nn.Linear(4, 4), inner), torch.randn(16, 4), depth=1)
    lines = repr(found).splitlines()
    assert [line.split()[0] for line in lines[3:6]] == ["(root)", "0", "1"]
    assert "1 notable inside" in lines[5]
    assert "2 rows below depth 1 are folded" in repr(found)
    assert len(found.rows) == 5
    partial = summary(nn.Sequential(nn.ReLU(), mismatched()), torch.randn(2, 3), depth=0, on_error="partial")
    assert [line.split()[0] for line in repr(partial).splitlines()[3:6]] == ["(root)", "1", "2"]


def test_narrow_terminal_leaves_out_columns() -> None:
    """Input shapes and measured numbers go first; layers, types, output shapes, parameters and words stay."""
    found = summary(Net(), torch.randn(8, 4), loss_fn=mean_square)
    printed = io.StringIO()
    Console(width=75, file=printed).print(found)
    headings = printed.getvalue().splitlines()[1].split()
    assert headings[:4] == ["layer", "type", "output", "params"]
    assert "left out to fit 75 columns: input" in " ".join(printed.getvalue().split())
    assert "mean" not in headings


def test_html_and_frame() -> None:
    """Notebook and pandas show the same rows, a frame with the joining columns."""
    found = summary(Net(), torch.randn(8, 4))
    assert found._repr_html_().count("<tr>") == 1 + len(found.rows) + len(found._grid().footer)
    frame = found.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame["params"].tolist() == [r.params for r in found.rows]
    assert frame["site"].tolist()[:2] == ["(root):output", "enc:output"]
    assert {"model", "call", "phase", "epoch", "step", "micro_step", "rank"} <= set(frame.columns)


def test_printed_table_of_a_small_model() -> None:
    """The whole text, with numbers that are known: ones through a layer of ones."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    nn.init.ones_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    lines = repr(summary(model, torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))).splitlines()
    assert lines[0] == "Sequential: 3 modules"
    assert lines[1].split() == ["layer", "type", "input", "output", "params", "FLOPs", "memory", "mean", "±", "std", "zeros"]
    assert lines[4].split() == ["0", "Linear", "2×2", "2×3", "9", "24", "24", "B", "0", "±", "2.00"]
    assert lines[5].split() == ["1", "ReLU", "2×3", "2×3", "24", "B", "1.00", "±", "1.00", "50", "%", "███"]
    assert lines[6] == "9 parameters (36 B), all trainable · outputs of this batch 48 B · float32 · cpu"
