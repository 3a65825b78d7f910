"""The first seed's demonstrated defects, T1 to T30, each as a test of what holds here (T21, compile, has its own suite)."""

from __future__ import annotations

import collections
import copy
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.engine import structure
from sonde.errors import ObservationWarning, StaleTensorError


class Returns(nn.Module):
    """A linear layer (4 to 3) and a function that makes the output of its result."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 3)
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.lin(x))


Pair = collections.namedtuple("Pair", "a b")


Slotted = dataclasses.make_dataclass("Slotted", ["a", ("n", int, 3)], slots=True)


@dataclasses.dataclass
class Derived:
    a: Tensor
    b: Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.b = self.a * 2


Frozen = dataclasses.make_dataclass("Frozen", ["a"], frozen=True)


class Fork(nn.Sequential):
    """Returns the outputs of both of its layers."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(layer(x) for layer in self)


def tracked(model: nn.Module, x: Any, loss: Callable[[Any], Tensor] | None = None, **how: Any) -> sonde.Tracker:
    """A tracker that has seen one forward of *model*, and a backward if there is a *loss*."""
    with sonde.track(model, strict=True, **how) as tracker:
        output = model(x)
        if loss is not None:
            loss(output).backward()
    return tracker


def order(tracker: sonde.Tracker, grad: bool) -> list[str]:
    return [stash.name for stash in tracker if stash.grad is grad]


def test_t01_inplace_relu_after_a_tracked_module() -> None:
    """The original's wrapping view made ReLU_ and ``y += x`` raise; here they run, and gradients equal plain torch's."""

    class Adds(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            y += x
            return y

    model = Adds(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Identity(), nn.ReLU(inplace=True), nn.Linear(4, 4))
    x = torch.randn(3, 4)
    tracker = tracked(model, x, lambda y: y.square().sum())
    linear = model[0](x)
    relu = linear.relu()
    (gradient,) = torch.autograd.grad((model[5](model[2](relu).relu()) + x).square().sum(), [linear])
    assert torch.equal(tracker["0:output"][0].value, linear)
    assert torch.equal(tracker["1:output"][0].value, relu)
    torch.testing.assert_close(tracker["0:grad_output"][0].value[0], gradient)


def test_t02_namedtuple_output() -> None:
    """The original raised TypeError; here the stash is the same named tuple of copies, and both gradients are kept."""
    forward, backward = tracked(Returns(lambda y: Pair(y, y * 2)), torch.ones(2, 4), lambda out: (out.a + out.b).sum())["(root)"]
    assert type(forward.value) is Pair
    assert torch.equal(forward.value.b, forward.value.a * 2)
    assert torch.equal(backward.value[1], torch.ones(2, 3))


def test_t03_packed_sequence() -> None:
    """The original raised AssertionError on an LSTM with a PackedSequence; here it is kept as one, with its gradient."""
    lstm = nn.LSTM(4, 3, batch_first=True)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(2, 5, 4), torch.tensor([5, 3]), batch_first=True)
    forward, backward = tracked(lstm, packed, lambda out: out[0].data.sum())
    assert isinstance(forward.value[0], nn.utils.rnn.PackedSequence)
    assert torch.equal(forward.value[0].data, lstm(packed)[0].data)
    assert torch.equal(backward.first_value, torch.ones(8, 3))


def test_t04_torch_return_types() -> None:
    """The original raised TypeError on what torch.max and svd return; here the return type stays, and gradients come."""
    for make, name in ((lambda y: torch.max(y, 1), "values"), (torch.linalg.svd, "S")):
        forward, backward = tracked(Returns(make), torch.randn(3, 4), lambda out, name=name: getattr(out, name).sum())["(root)"]
        assert type(forward.value) is type(make(torch.ones(3, 3)))
        assert torch.equal(backward.leaves[f".{name}"], torch.ones(3))


@pytest.mark.parametrize("make", [lambda y: {"a": y}, lambda y: [y], Frozen, lambda y: {"h": [(None, y)]}])
def test_t05_every_structure_has_its_gradient(make: Callable[[Tensor], Any]) -> None:
    """The original lost the gradient of dicts, lists and dataclasses; here each module has one event each way."""
    tracker = tracked(Returns(make), torch.ones(2, 4), lambda out: (structure.walk(out)[0][1] * 5).sum())
    assert order(tracker, False) == ["lin", ""]
    assert order(tracker, True) == ["", "lin"]
    assert torch.equal(tracker["(root):grad_output"][0].first_value, torch.full((2, 3), 5.0))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=100, n_positions=32, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).train()


def test_t05_tiny_gpt2_has_as_many_gradients_as_outputs() -> None:
    """The original gave 31 forward and 29 gradient events, without ``transformer`` and the root; here 31 and 31, mirrored."""
    model, ids = gpt2(), torch.randint(0, 100, (2, 16))
    with sonde.track(model) as tracker:
        model(input_ids=ids, labels=ids).loss.backward()
    assert len(order(tracker, False)) == 31
    assert order(tracker, True) == order(tracker, False)[::-1]
    assert {"", "transformer"} <= set(order(tracker, True))
    assert tracker["(root):grad_output"][0].leaves[".loss"].item() == 1.0


def test_t06_output_types_stay_and_a_cache_is_copied() -> None:
    """The original turned a ModelOutput into a dict and kept the cache by reference; here types stay, all is copied."""
    model, ids = gpt2().eval(), torch.randint(0, 100, (1, 5))
    with sonde.track(model, include=[""], grad=False) as tracker, torch.no_grad():
        output = model(input_ids=ids)
    kept = tracker[0].value
    assert type(kept) is type(output)
    assert torch.equal(kept.logits, output.logits)
    assert kept.past_key_values.layers[0].keys.shape == (1, 4, 5, 8)
    output.past_key_values.layers[0].keys.zero_()
    assert kept.past_key_values.layers[0].keys.abs().sum() > 0
    assert type(tracked(Returns(lambda y: collections.OrderedDict(a=y)), torch.ones(1, 4))[-1].value) is collections.OrderedDict
    default = tracked(Returns(lambda y: collections.defaultdict(list, a=y)), torch.ones(1, 4))[-1].value
    assert type(default) is collections.defaultdict
    assert default["new"] == []


def test_t07_dataclasses_of_every_kind() -> None:
    """The original raised on slots, on fields with init=False and on a dataclass as a class; here they come back as they are."""
    x = torch.ones(2, 4)
    slotted = tracked(Returns(Slotted), x)[-1].value
    assert (type(slotted), slotted.n) == (Slotted, 3)
    derived = tracked(Returns(Derived), x)[-1].value
    assert type(derived) is Derived
    assert torch.equal(derived.b, derived.a * 2)
    assert not derived.b.requires_grad
    assert tracked(Returns(lambda y: (y, Slotted)), x)[-1].value[1] is Slotted


def test_t08_sets_of_tensors_are_copied() -> None:
    """The original kept the live tensors of a set; here they are detached copies in a set of the same type."""
    for kind in (set, frozenset):
        output: list[Any] = []
        tracker = tracked(Returns(lambda y, kind=kind, output=output: output.append(kind([y])) or output[0]), torch.ones(2, 4))
        (kept,), (live,) = tracker[-1].value, output[0]
        assert type(tracker[-1].value) is kind
        assert torch.equal(kept, live)
        assert not kept.requires_grad
        assert kept.data_ptr() != live.data_ptr()


def test_t09_a_list_that_holds_itself() -> None:
    """The original raised RecursionError; here the list is kept once, without a live tensor of the model inside."""

    def make(y: Tensor) -> list[Any]:
        made: list[Any] = [y]
        made.append(made)
        return made

    kept = tracked(Returns(make), torch.ones(2, 4), lambda out: out[0].sum())["(root):output"][0].value
    assert not kept[0].requires_grad
    found = [tensor for _, tensor in structure.walk(kept)]
    assert [tensor.requires_grad for tensor in found] == [False]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_t10_integer_and_nested_outputs_in_the_frame(layout: torch.layout) -> None:
    """The original's to_frame raised on integers and nested tensors; here the cell is empty, the others hold, and it prints."""
    x = torch.randn(3, 4)
    ragged = Returns(lambda y: torch.nested.nested_tensor([y[0], y[1, :2]], layout=layout))
    for model in (Returns(lambda y: y.argmax(1)), Returns(lambda y: y > 0), ragged):
        tracker = tracked(model, x)
        cells = tracker.to_frame()["std"]
        assert cells[0] == pytest.approx(float(model.lin(x).detach().std()))
        assert cells.isna().tolist() == [False, True]
        assert "(root)" in repr(tracker)


@pytest.mark.parametrize("make", [lambda y: y, lambda y: {"x": y}, lambda y: (None, y)])
def test_t11_numbers_kept_in_place_of_tensors_are_in_the_frame(make: Callable[[Tensor], Any]) -> None:
    """The original dropped kept floats and the tensors of dicts and of (None, x); here the cell holds the first of them."""
    x = torch.randn(5, 4)
    model = Returns(make)
    expected = float(model.lin(x).detach().std())
    assert tracked(model, x).to_frame()["std"].tolist() == pytest.approx([expected] * 2)
    numbers = tracked(model, x, stash_value=lambda tensor: tensor.std().item())
    assert list(numbers[-1].leaves.values()) == pytest.approx([expected])
    assert numbers.to_frame()["std"].tolist() == pytest.approx([expected] * 2)


class Bare:
    __slots__ = ("grad", "name", "type", "value")

    def __init__(self, event: sonde.types.Event) -> None:
        self.name, self.type, self.grad, self.value = event.name, event.type, event.grad, 1.5


@pytest.mark.parametrize("make", [Bare, lambda event: event.name, lambda event: (event.name, 1), lambda event: None])
def test_t12_a_stash_of_any_kind_can_be_shown(make: Callable[[sonde.types.Event], Any]) -> None:
    """The original's to_frame raised for stashes without __dict__; here whatever ``stash=`` makes has a row and prints."""
    tracker = tracked(Returns(lambda y: y * 1), torch.ones(2, 4), torch.sum, stash=make)
    assert "4 stashes" in repr(tracker)
    assert "4 stashes" in tracker._repr_html_()
    frame = tracker.to_frame()
    assert len(frame) == 4
    assert make is not Bare or frame[["name", "std"]].values.tolist() == [["lin", 1.5], ["", 1.5], ["", 1.5], ["lin", 1.5]]


def test_t13_to_frame_warns_of_nothing() -> None:
    """The original's way of making a frame is deprecated in pandas; here nothing is."""
    tracker = tracked(Returns(lambda y: y.sum()), torch.ones(2, 4), lambda y: y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(tracker.to_frame()) == 4


def test_t14_calls_pair_each_gradient_with_its_output() -> None:
    """The original had no call index; here (forward, call) says which output each gradient belongs to."""
    lin = nn.Linear(4, 4)
    model = nn.Sequential(lin, lin)
    first, second = torch.randn(2, 4), torch.randn(2, 4)
    with sonde.track(model, include=["0"]) as tracker:
        losses = [model(first).square().sum(), model(second).square().sum()]
        for loss in reversed(losses):
            loss.backward()
    expected: dict[tuple[int, int], Tensor] = {}
    for index, x in enumerate((first, second)):
        one = lin(x)
        two = lin(one)
        gradients = torch.autograd.grad(two.square().sum(), [one, two])
        expected |= {(index, 0): gradients[0], (index, 1): gradients[1]}
    assert [(s.tick.forward, s.call) for s in tracker if s.grad] == [(1, 1), (1, 0), (0, 1), (0, 0)]
    for stash in tracker["0:grad_output"]:
        torch.testing.assert_close(stash.value[0], expected[stash.tick.forward, stash.call])


def test_t15_a_shared_module_answers_to_each_of_its_names() -> None:
    """The original reported a module shared as 0 and 2 as '0' alone; here its calls are counted and its alias finds them."""
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    tracker = tracked(model, torch.randn(2, 4))
    assert [(stash.name, stash.call) for stash in tracker] == [("0", 0), ("1", 0), ("0", 1), ("", 0)]
    assert tracker["2"] == tracker["0"]
    assert {stash.name for stash in tracked(model, torch.ones(1, 4), include=["2"])} == {"0"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_t16_recomputed_outputs_are_marked(reentrant: bool) -> None:
    """The original recorded checkpointing's second forward unmarked; here its phase is ``recompute``."""

    class Checkpointed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(self.body, x, use_reentrant=reentrant)
            return y * 2

    body = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model, x = Checkpointed(collections.OrderedDict(body=body)), torch.randn(2, 4, requires_grad=True)
    tracker = tracked(model, x, torch.sum)
    names = ["body.0", "body.1", "body.2", "body", ""]
    assert [stash.name for stash in tracker if stash.phase == "forward"] == names
    assert [stash.name for stash in tracker if stash.phase == "backward"] == names[::-1]
    again = [stash for stash in tracker if stash.phase == "recompute"]
    assert {stash.name for stash in again} >= {"body.0", "body.1"}
    for stash in again:
        assert torch.equal(stash.value, tracker[f"{stash.name}:output"][0].value)


def test_t17_a_backward_after_the_block_records_nothing() -> None:
    """The original's hooks went on firing after the ``with`` block; here nothing is recorded any more."""
    model = Returns(lambda y: y * 1)
    with sonde.track(model) as tracker:
        loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    assert (order(tracker, False), order(tracker, True)) == (["lin", ""], [])


def test_t18_an_unused_output_has_no_gradient_event() -> None:
    """The original made up a gradient event with None for a branch that nothing used; here there is none."""
    tracker = tracked(Fork(nn.Linear(4, 3), nn.Linear(4, 3)), torch.ones(2, 4), lambda out: out[1].sum())
    assert sorted(order(tracker, True)) == ["", "1"]
    gradients = tracker["(root):grad_output"][0].value
    assert gradients[0] is None
    assert torch.equal(gradients[1], torch.ones(2, 3))


def test_t19_a_deep_copy_is_not_tracked() -> None:
    """The original's copy kept a hook and a tracker of its own; here a copy records nothing, and soon holds no hook."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with sonde.track(model) as tracker:
        twin = copy.deepcopy(model)
        twin(torch.ones(1, 4)).sum().backward()
    assert len(tracker) == 0
    assert [len(module._forward_hooks) for module in twin.modules()] == [0, 0, 0]


def test_t20_a_kept_reference_is_never_stale_in_silence() -> None:
    """The original's detached reference silently became the ReLU's output; here reading it raises, and names the cure."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True))
    x = torch.randn(5, 4)
    tracker = tracked(model, x, stash_value=lambda tensor: tensor.detach())
    stale = pytest.raises(StaleTensorError, match=r"kept at 0:output is no copy.*t.detach\(\).clone\(\)")
    for read in (
        lambda: tracker["0:output"],
        lambda: tracker[0],
        lambda: tracker[:],
        lambda: list(tracker),
        lambda: tracker.stashes,
        tracker.to_frame,
    ):
        with stale:
            read()
    assert torch.equal(tracker["1"][0].value, model(x))
    assert "1 left out: no copies" in repr(tracker)
    copies = tracked(model, x, stash_value=lambda tensor: tensor.detach().clone())
    assert torch.equal(copies["0:output"][0].value, model[0](x))


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_t22_a_torch_func_transform_runs_and_coverage_says_so(transform: str) -> None:
    """The original raised RuntimeError inside torch.func; here the result is right, nothing is kept, and it is said why."""
    model, x = nn.Linear(4, 3), torch.randn(5, 4)

    def run() -> Any:
        weights = dict(model.named_parameters())
        loss = lambda weights: torch.func.functional_call(model, weights, (x,)).square().sum()  # noqa: E731
        return torch.func.vmap(model)(x) if transform == "vmap" else torch.func.grad(loss)(weights)

    expected = run()
    with sonde.track(model) as tracker:
        result = run()
    torch.testing.assert_close(result, expected)
    assert len(tracker) == 0
    assert {"torch.func" in line.reason for line in tracker.coverage().missing} == {True}


def test_t23_meta_device() -> None:
    """The original raised NotImplementedError; here shapes are kept, and the frame and the table work."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        tracker = tracked(model, torch.ones(2, 4), torch.sum)
    assert [tuple(stash.first_value.shape) for stash in tracker] == [(2, 3)] * 6
    assert tracker.to_frame()["std"].isna().all()
    assert "2×3" in repr(tracker)


def test_t24_inputs_without_gradient_warn_of_nothing() -> None:
    """The original warned in every run whose input needs no gradient; here nothing warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracker = tracked(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.ones(2, 4), torch.sum)
    assert order(tracker, True) == ["", "1", "0"]


def test_t25_an_error_in_stash_value_does_not_stop_the_training() -> None:
    """The original aborted the step; here that site ends with one warning that names function and site, and strict raises."""

    def broken(tensor: Tensor) -> Tensor:
        if tensor.shape[-1] == 3:
            raise ValueError("no threes")
        return tensor.clone()

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(3, 2))
    said = "broken.*ValueError.*1:output.*no threes"
    with pytest.warns(ObservationWarning, match=said) as caught, sonde.track(model, stash_value=broken) as tracker:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
    assert (len(caught), model[0].weight.grad is None) == (1, False)
    assert [stash.name for stash in tracker] == ["0", "2", "", "", "2", "0"] * 2
    assert [str(error.site) for error in tracker.errors] == ["1:output", "1:grad_output"]
    reasons = {str(line.site): line.reason for line in tracker.coverage()}
    assert reasons["1:output"] == reasons["1:grad_output"] == "stopped: ValueError: no threes"
    counts = {str(line.site): line.count for line in tracker.coverage()}
    assert counts == {
        f"{name}:{port}": 0 if name == "1" else 2 for name in ("(root)", *"012") for port in ("output", "grad_output")
    }
    assert {str(line.site) for line in tracker.coverage().missing} == {"1:output", "1:grad_output"}
    with pytest.raises(ValueError, match="no threes"), sonde.track(model, stash_value=broken, strict=True):
        model(torch.ones(2, 4))


def test_t26_an_output_that_a_later_hook_replaces() -> None:
    """The original showed a value that the next layer never got; here it is what was handed on, or coverage says it is not."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Identity())
    with sonde.track(model) as tracker:
        handle = model[0].register_forward_hook(lambda module, args, output: torch.zeros_like(output))
        model(torch.ones(2, 4))
    handle.remove()
    said = next(line.reason for line in tracker.coverage() if str(line.site) == "0:output")
    assert torch.equal(tracker["0:output"][0].value, tracker["1:output"][0].value) or said


def test_t27_a_tensor_is_copied_once() -> None:
    """The original copied the last child's output again for each container; here tuple or not, one copy serves all."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8)))
    tracker = tracked(model, torch.ones(2, 8), grad=False)
    assert [stash.name for stash in tracker] == ["0", "1.0", "1", ""]
    assert tracker[1].value is tracker[2].value is tracker[3].value
    fork = tracked(Fork(nn.Linear(4, 3), nn.Linear(4, 3)), torch.ones(2, 4), grad=False)
    assert len({tensor.data_ptr() for stash in fork for _, tensor in structure.walk(stash.value)}) == 2


def test_t28_a_tracker_without_arguments() -> None:
    """The original documented ``Tracker()`` and raised TypeError; here it keeps copies."""
    module = nn.Linear(4, 3)
    with sonde.Tracker() as tracker:
        tracker.register(module, "lin")
        output = module(torch.ones(2, 4))
    assert torch.equal(tracker[0].value, output)
    assert tracker[0].value.data_ptr() != output.data_ptr()


def test_t29_a_module_that_is_replaced_is_followed_and_reported() -> None:
    """The original ignored a replacement silently; here the new module is tracked, and a warning names it."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    with sonde.track(model, grad=False) as tracker:
        model[0] = nn.Linear(4, 3)
        with pytest.warns(ObservationWarning, match=r"0 came or was replaced"):
            model(torch.ones(2, 4))
    assert [stash.name for stash in tracker] == ["0", "1", ""]
    assert [line.reason for line in tracker.coverage()] == ["", "came or was replaced after the probe was attached", ""]


def test_t30_a_script_module_is_passed_over_and_reported() -> None:
    """The original raised on a ScriptModule; here the rest of the model is tracked and the part that is not is named."""
    with pytest.warns((DeprecationWarning, FutureWarning), match="script"):  # the second from torch 2.15 on
        model = nn.Sequential(torch.jit.script(nn.Linear(4, 3)), nn.Tanh())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tracker = tracked(model, torch.ones(2, 4), torch.sum)
    assert [stash.name for stash in tracker] == ["1", "", "", "1"]
    warned = any(issubclass(warning.category, ObservationWarning) for warning in caught)
    assert warned or any(line.site.path == "0" and line.reason for line in tracker.coverage())


@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor.detach().numpy(),
        lambda tensor: tensor.detach()[:1],
        lambda tensor: {"rows": tensor.detach().T},
        lambda tensor: [tensor.detach().numpy()[0]],
    ],
    ids=["numpy", "part", "in a dict", "numpy in a list"],
)
def test_a_view_in_whatever_form_is_not_read_after_a_write(keep: Any) -> None:
    """The memory is what the model has written into, not the object that was kept."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).add_(10)

    model = Shifted()
    with sonde.track(model, grad=False, include="linear", stash_value=keep) as tracker:
        model.linear(torch.randn(2, 3))
        assert len(list(tracker)) == 1  # nothing has been written
        model(torch.randn(2, 3))
    with pytest.raises(StaleTensorError, match="kept at linear:output"):
        tracker[1]
