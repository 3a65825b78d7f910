"""What is sent backward is seen before the pass runs, and the user's call is never disturbed."""

from __future__ import annotations

import gc
import inspect
import threading
from collections.abc import Iterator

import pytest
import torch
from tests.torch_words import words_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sonde.engine import autograd_state, backward_calls

ORIGINAL = torch.autograd.backward


class Listener:
    """Keeps what it sees before a pass, and the factor that the graph still holds then."""

    def __init__(self, *, fails: bool = False) -> None:
        self.seen: list[list[Tensor]] = []
        self.fails = fails

    def before_backward(self, sent: list[Tensor]) -> None:
        self.seen.append(sent)
        if self.fails:
            raise ValueError("of the listener")


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    backward_calls.listen(made)
    yield made
    backward_calls.listen_no_more(made)
    assert torch.autograd.backward is ORIGINAL


def twice(loss: Tensor) -> None:
    loss.backward()
    loss.backward()


def a_loss() -> Tensor:
    return nn.functional.mse_loss(torch.ones(3, requires_grad=True), torch.zeros(3)) * 3


def test_a_listener_sees_the_loss_before_the_pass_frees_it(listener: Listener) -> None:
    loss = a_loss()
    factors: list[float] = []
    listener.before_backward = lambda sent: factors.append(float(sent[0].grad_fn._saved_other))  # type: ignore[method-assign,union-attr]
    loss.backward()
    assert factors == [3]
    assert backward_calls.sent_backward() == []


def test_it_looks_like_the_function_that_it_stands_for(listener: Listener) -> None:
    assert torch.autograd.backward is not ORIGINAL
    assert inspect.signature(torch.autograd.backward) == inspect.signature(ORIGINAL)
    assert (torch.autograd.backward.__name__, torch.autograd.backward.__doc__) == ("backward", ORIGINAL.__doc__)


def test_what_runs_is_known_while_it_runs(listener: Listener) -> None:
    """Also by name and of several; of derivatives, and of what cannot be given twice, nothing is."""
    leaf, seen = torch.ones(3, requires_grad=True), []
    leaf.register_hook(lambda _: seen.append(backward_calls.sent_backward()))
    one, other = leaf.sum(), leaf.prod()
    torch.autograd.backward(tensors=[one, other], retain_graph=True)
    assert [id(each) for each in seen.pop()] == [id(one), id(other)]
    torch.autograd.grad(one, leaf, retain_graph=True)
    assert seen.pop() == []
    torch.autograd.backward(each for each in (one,))  # type: ignore[arg-type]
    assert seen.pop() == []
    assert [len(each) for each in listener.seen] == [2]


def test_all_listeners_share_one_function_and_the_last_takes_it_off() -> None:
    one, other = Listener(), Listener()
    for each in (one, other, one):
        backward_calls.listen(each)
    standing = torch.autograd.backward
    a_loss().backward()
    backward_calls.listen_no_more(one)
    a_loss().backward()
    assert (len(one.seen), len(other.seen)) == (1, 2)
    assert torch.autograd.backward is standing
    backward_calls.listen_no_more(other)
    backward_calls.listen_no_more(other)
    assert torch.autograd.backward is ORIGINAL
    backward_calls.listen(one)
    assert torch.autograd.backward is standing  # compiled code that names it finds the same one
    backward_calls.listen_no_more(one)


def test_a_listener_that_is_gone_takes_it_off_too() -> None:
    backward_calls.listen(Listener())
    gc.collect()
    a_loss().backward()
    assert torch.autograd.backward is ORIGINAL


def test_errors_of_a_listener_stay_inside_and_those_of_the_pass_do_not(listener: Listener) -> None:
    words = words_of(lambda: twice(a_loss()))
    listener.fails, listener.seen = True, []
    loss = a_loss()
    loss.backward()
    with pytest.raises(RuntimeError, match=words):
        loss.backward()
    assert backward_calls.sent_backward() == []
    assert len(listener.seen) == 2


def test_what_somebody_else_has_put_over_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, calls = Listener(), []
    backward_calls.listen(listener)
    ours = torch.autograd.backward

    def theirs(*args: object, **kwargs: object) -> None:
        calls.append(len(listener.seen))
        ours(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.autograd, "backward", theirs)
    a_loss().backward()
    backward_calls.listen_no_more(listener)
    assert torch.autograd.backward is theirs
    a_loss().backward()  # passes through
    assert (calls, len(listener.seen)) == ([0, 1], 1)
    for _ in range(3):
        backward_calls.listen(listener)
        a_loss().backward()
        backward_calls.listen_no_more(listener)
        assert torch.autograd.backward is theirs
    assert len(listener.seen) == 4  # once each, though ours lies below as well
    monkeypatch.undo()
    assert torch.autograd.backward is ours
    backward_calls.listen(listener)
    a_loss().backward()
    backward_calls.listen_no_more(listener)
    assert len(listener.seen) == 5
    torch.autograd.backward = ORIGINAL


def test_each_thread_knows_its_own(listener: Listener) -> None:
    barrier, seen = threading.Barrier(2, timeout=10), {}

    def run(number: int) -> None:
        leaf = torch.ones(3, requires_grad=True)
        loss = leaf.sum()

        def hook(_: Tensor) -> None:
            barrier.wait()
            seen[number] = backward_calls.sent_backward()[0] is loss

        leaf.register_hook(hook)
        loss.backward()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert seen == {0: True, 1: True}


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_runs_once_more_and_no_oftener(listener: Listener, use_reentrant: bool) -> None:
    calls: list[int] = []

    def part(given: Tensor) -> Tensor:
        calls.append(1)
        return given.tanh()

    leaf = torch.ones(3, requires_grad=True)
    seen = []
    leaf.register_hook(lambda _: seen.append(backward_calls.sent_backward()))
    loss = checkpoint(part, leaf * 1, use_reentrant=use_reentrant).sum()
    loss.backward()
    assert len(calls) == 2
    assert len(seen) == 1
    assert seen[0][0] is loss
    assert len(listener.seen) == 1 + use_reentrant  # which calls it within


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_derivatives_of_second_order(listener: Listener) -> None:
    leaf = torch.ones(2, requires_grad=True)
    (leaf**3).sum().backward(create_graph=True)
    assert leaf.grad is not None
    first, leaf.grad = leaf.grad, None
    first.sum().backward()
    assert leaf.grad.tolist() == [6, 6]  # type: ignore[attr-defined]
    assert len(listener.seen) == 2


class Own(Tensor):
    """A class of tensors of its own."""


def test_a_tensor_of_a_class_of_its_own_is_seen_once(listener: Listener) -> None:
    leaf = torch.ones(2, requires_grad=True).as_subclass(Own)
    leaf.sum().backward()
    assert len(listener.seen) == 1


def test_compiled_code_that_calls_it(listener: Listener) -> None:
    """It breaks its graph there, as without a listener, and goes on when nobody listens any more."""
    layer, compiles = nn.Linear(2, 1), []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> object:
        compiles.append(1)
        return graph.forward

    @torch.compile(backend=backend)
    def step(given: Tensor) -> Tensor:
        loss = layer(given).square().mean()
        torch.autograd.backward(loss)
        return loss * 2

    @torch.compile(backend=backend)
    def other(given: Tensor) -> Tensor:
        loss = layer(given).square().mean()
        loss.backward()
        return loss * 2

    given = torch.ones(3, 2)
    for each in (step, other):
        for _ in range(3):
            backward_calls.listen(listener)
            each(given)
            backward_calls.listen_no_more(listener)
            each(given)
    assert len(listener.seen) == 6
    assert len(compiles) <= 6
    assert layer.weight.grad is not None


def test_what_an_interrupted_call_has_left_is_gone_with_the_next(listener: Listener) -> None:
    """A signal handler may raise in any line, also before the value of the thread is put back."""
    autograd_state.set_thread_value(backward_calls._KEY, [a_loss()])
    assert backward_calls.sent_backward() == []
    a_loss().backward()
    assert autograd_state.thread_value(backward_calls._KEY) == []
