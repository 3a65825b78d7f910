"""``track`` as the first seed documents it, and the names and coordinates that sonde adds to it."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.torch_words import words_of
from torch import Tensor, nn

import sonde
from sonde.errors import ArgumentError, ModelError, ObservationWarning, SelectionError, UnknownSiteError
from sonde.keep import default_stash, default_stash_value, get_stash_fn, rmap_tensor


class Loss(nn.Module):
    """The usage notebook's model: embedding, two linear layers, cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.down(self.up(self.embed(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, -2), tokens.flatten())


class Block(nn.Module):
    """A transformer-like block: the hidden state, and attention weights that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + self.lin(x), self.lin(x).softmax(-1)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.layers = nn.ModuleList([Block(), Block(), Block()])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)[0]
        return x + 0


class Many(nn.Module):
    """Returns a dict of a tensor and a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.b = nn.Linear(4, 2)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        return {"first": self.a(x) * scale, "rest": (self.b(x), None)}


TOKENS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh())


def names(stashes: Any, grad: bool) -> list[str]:
    return [stash.name for stash in stashes if stash.grad is grad]


# The seed's documentation, in its order


def test_notebook_usage_gives_a_stash_for_each_output_and_each_gradient() -> None:
    """The documented block works as written and holds forward values and gradients equal to plain torch's."""
    model = Loss()
    with sonde.track(model) as tracker:
        model(TOKENS).backward()

    embedded = model.embed(TOKENS)
    up = model.up(embedded)
    down = model.down(up)
    loss = nn.functional.cross_entropy(down.flatten(0, -2), TOKENS.flatten())
    gradients = torch.autograd.grad(loss, [embedded, up, down])
    assert len(tracker) == len(list(tracker)) == 8
    assert names(tracker, False) == ["embed", "up", "down", ""]
    assert names(tracker, True) == ["", "down", "up", "embed"]
    assert str(list(tracker)).startswith("[Stash(embed:output, Embedding, epoch 0, step 0, forward 0: 2×3×4 float32 [")
    for stash, expected in zip(tracker[:4], [embedded, up, down, loss], strict=True):
        assert torch.equal(stash.value, expected)
    assert torch.equal(tracker[4].value[0], torch.tensor(1.0))
    for stash, expected in zip(tracker[5:], reversed(gradients), strict=True):
        assert isinstance(stash.value, tuple)
        assert len(stash.value) == 1
        torch.testing.assert_close(stash.value[0], expected)


def test_to_frame_begins_with_name_type_grad_and_the_statistic() -> None:
    """One row per stash, the seed's columns in its order with torch.std of the first tensor, then where and when."""
    model = two_layers()
    x = torch.randn(5, 4)
    with sonde.track(model) as tracker:
        model(x).square().sum().backward()
    frame = tracker.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns[:4]) == ["name", "type", "grad", "std"]
    assert frame["name"].tolist() == ["0", "1", "", "", "1", "0"]
    assert frame["type"].tolist()[:2] == ["torch.nn.modules.linear.Linear", "torch.nn.modules.activation.Tanh"]
    assert frame["grad"].tolist() == [False, False, False, True, True, True]
    hidden = model[0](x).detach()
    assert frame["std"].tolist()[:2] == pytest.approx([float(hidden.std()), float(hidden.tanh().std())])
    assert {"model", "site", "call", "phase", "epoch", "step", "micro_step", "forward", "rank"} <= set(frame.columns)
    assert frame["site"].tolist()[:4] == ["0:output", "1:output", "(root):output", "(root):grad_output"]


def test_to_frame_takes_another_statistic_and_name() -> None:
    """The statistic's column is named after the function, or by ``stat_name``."""
    model = two_layers()
    x = torch.randn(5, 4)
    with sonde.track(model, grad=False) as tracker:
        model(x)
    hidden = model[0](x).detach()
    assert tracker.to_frame(torch.mean)["mean"].tolist()[0] == pytest.approx(float(hidden.mean()))
    by_name = tracker.to_frame(lambda tensor: tensor.abs().max(), stat_name="largest")
    assert by_name["largest"].tolist()[0] == pytest.approx(float(hidden.abs().max()))
    assert "std" not in by_name


def test_include_and_exclude_search_the_name() -> None:
    """A string is a regular expression that is searched in the name; a compiled pattern works too."""
    model = Loss()
    with sonde.track(model, include="up|down", exclude=re.compile("^d")) as tracker:
        model(TOKENS).backward()
    assert [(stash.name, stash.grad) for stash in tracker] == [("up", False), ("up", True)]


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        (["embed", "down"], ["embed", "down"]),
        (nn.Linear, ["up", "down"]),
        ((nn.Embedding, Loss), ["embed", ""]),
        (lambda name, module: isinstance(module, nn.Linear) and name != "up", ["down"]),
        ("", ["embed", "up", "down", ""]),
    ],
)
def test_include_takes_names_types_and_callables(include: Any, expected: list[str]) -> None:
    """A list means exact names, types mean instances, a callable decides by name and module, an empty text is no condition."""
    model = Loss()
    with sonde.track(model, include=include, exclude="", grad=False) as tracker:
        model(TOKENS)
    assert [stash.name for stash in tracker] == expected


def test_stash_value_says_what_is_kept_of_each_tensor() -> None:
    """``stash_value=lambda t: t.std().detach().cpu()`` keeps the standard deviation in the place of each tensor."""
    model = Many()
    x = torch.randn(6, 4)
    with sonde.track(model, stash_value=lambda t: t.std().detach().cpu()) as tracker:
        model(x)["first"].sum().backward()
    kept = tracker["(root):output"][0].value
    assert list(kept) == ["first", "rest"]
    torch.testing.assert_close(kept["first"], model.a(x).std().detach())
    torch.testing.assert_close(kept["rest"][0], model.b(x).std().detach())
    assert kept["rest"][1] is None


def test_ports_says_which_tensors_are_kept(tmp_path: Path) -> None:
    """Inputs, gradients through the module, and gradients of parameters are those of plain torch, by site and on disk."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3, requires_grad=True)
    with sonde.track(model, ports=("input", "output", "grad_input", "grad_output", "grad"), include=["2", "2.weight"]) as tracker:
        model(x).square().sum().backward()
    hidden = model[1](model[0](x)).detach().requires_grad_()
    output = model[2](hidden)
    output.retain_grad()
    output.square().sum().backward()
    expected = {"2:input": hidden, "2:output": output, "2:grad_input": hidden.grad, "2:grad_output": output.grad}
    for site, tensor in expected.items():
        assert tensor is not None
        torch.testing.assert_close(tracker[site][0].first_value, tensor.detach())
    torch.testing.assert_close(tracker["2.weight:grad"][0].first_value, model[2].weight.grad / 2)  # of two passes
    assert sorted(stash.site.port for stash in tracker if stash.grad) == ["grad", "grad_input", "grad_output"]
    stored = sonde.open_tensors(tracker.save(tmp_path / "kept"))
    torch.testing.assert_close(stored.at("2:input")[0], hidden.detach())
    assert {"2:input", "2:grad_input", "2.weight:grad"} <= set(tracker.to_frame()["site"])


def test_the_table_of_a_tracker_says_which_other_tensors_it_has() -> None:
    """The numbers of a layer are those of its output and its gradient alone; a layer without them has none."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    x = torch.full((2, 3), 1e6)
    with sonde.track(model, ports=("input", "output"), include="1") as tracker:
        model(x)
    with sonde.track(model, ports="output", include="1") as plain:
        model(x)
    (row,), (same,) = tracker._grid().rows, plain._grid().rows
    assert [cell.text for cell in row[:-1]] == [cell.text for cell in same[:-1]]
    assert "input kept" in row[-1].text
    with sonde.track(model, ports="input", include="1") as tracker:
        model(x)
    assert [stash.site.port for stash in tracker] == ["input"]
    assert "input kept" in str(tracker)


@pytest.mark.parametrize("make", [sonde.track, lambda model, x: sonde.Tracker().register_all(model, x)])
def test_a_batch_is_no_argument_of_track(make: Any) -> None:
    """The second argument of tensor_tracker is *grad*; the message says where a batch goes, and nothing is left on the model."""
    model = nn.Linear(3, 4)
    with pytest.raises(ArgumentError, match=r"model\(batch\)"):
        make(model, torch.ones(2, 3))
    assert not model._forward_hooks


def test_stash_makes_what_is_kept_of_an_event_and_its_attributes_become_columns() -> None:
    """A custom stash sees the module's arguments, and what it sets on the stash is in the frame."""

    def keep(event: sonde.types.Event) -> sonde.types.Stash:
        stash = default_stash(event, default_stash_value)
        stash.scale = event.kwargs.get("scale")  # type: ignore[attr-defined]
        stash.inputs = len(event.args)  # type: ignore[attr-defined]
        return stash

    model = Many()
    with sonde.track(model, stash=keep) as tracker:
        model(torch.ones(2, 4), scale=3.0)["first"].sum().backward()
    frame = tracker.to_frame()
    root = frame[(frame["name"] == "") & ~frame["grad"]]
    assert root["scale"].tolist() == [3.0]
    assert frame["inputs"].tolist() == [1, 1, 1, 0, 0]


def test_manual_register_and_unregister() -> None:
    """``Tracker()`` takes modules one by one under any name, gives them back, and can take others then."""
    first, second = nn.Linear(4, 3), nn.Linear(3, 2)
    tracker = sonde.Tracker()
    tracker.register(first, "mine")
    tracker.register(second, name="yours", grad=False)
    second(first(torch.ones(1, 4))).sum().backward()
    tracker.unregister()
    second(first(torch.ones(1, 4))).sum().backward()
    assert [(stash.name, stash.grad) for stash in tracker] == [("mine", False), ("yours", False), ("mine", True)]
    tracker.register(second, "later", grad=False)
    second(first(torch.ones(1, 4)))
    tracker.unregister()
    assert [stash.name for stash in tracker[3:]] == ["later"]


def test_tracker_takes_a_stash_function() -> None:
    """The seed's constructor: ``Tracker(stash)``, with ``register_all`` on top of it."""
    model = two_layers()
    tracker = sonde.Tracker(get_stash_fn(stash_value=lambda tensor: tensor.shape))
    tracker.register_all(model, grad=False, include="0")
    model(torch.ones(2, 4))
    tracker.unregister()
    assert [stash.value for stash in tracker] == [torch.Size([2, 3])]


def test_tracking_without_a_with_block_lasts_until_unregister() -> None:
    """``track`` begins at once."""
    model = two_layers()
    tracker = sonde.track(model, grad=False)
    model(torch.ones(1, 4))
    tracker.unregister()
    tracker.unregister()
    model(torch.ones(1, 4))
    assert names(tracker, False) == ["0", "1", ""]


def test_printing_shows_the_table() -> None:
    """``print(tracker)`` shows what a console shows; its first line counts stashes and modules."""
    model = two_layers()
    with sonde.track(model) as tracker:
        assert str(tracker).splitlines()[0] == "Tracker: 0 stashes of 0 modules"
        model(torch.ones(1, 4))
        assert str(tracker) == repr(tracker)
    assert str(tracker).splitlines()[0] == "Tracker: 3 stashes of 3 modules (detached)"


def test_iteration_indexing_slices_and_clear() -> None:
    """A tracker is a list of stashes; ``clear`` empties it and the hooks stay."""
    model = two_layers()
    with sonde.track(model, grad=False) as tracker:
        model(torch.ones(1, 4))
        assert tracker[0] is tracker.stashes[0]
        assert tracker[np.int64(0)] is tracker[0]
        assert tracker[-1].name == ""
        assert [stash.name for stash in tracker[:2]] == ["0", "1"]
        assert [stash.name for stash in tracker[::-1]] == ["", "1", "0"]
        with pytest.raises(IndexError):
            tracker[3]
        tracker.clear()
        assert len(tracker) == 0
        model(torch.ones(1, 4))
    assert len(tracker) == 3


def test_get_stash_fn_refuses_both() -> None:
    """``stash_value`` and ``stash`` exclude each other, in ``get_stash_fn`` and in ``track``."""
    with pytest.raises(ValueError, match="stash_value") as caught:
        get_stash_fn(stash_value=lambda t: t, stash=lambda event: event)
    assert isinstance(caught.value, ArgumentError)
    with pytest.raises(ValueError, match="stash_value"):
        sonde.track(two_layers(), stash_value=lambda t: t, stash=lambda event: event)


def test_get_stash_fn_and_default_stash() -> None:
    """The default is ``default_stash`` with ``default_stash_value``: a detached copy in each tensor's place."""
    value = torch.ones(2, requires_grad=True) * 2
    event = sonde.types.Event("n", nn.Linear, False, (value, "text"), (), {})
    stash = get_stash_fn()(event)
    assert (stash.name, stash.type, stash.grad) == ("n", nn.Linear, False)
    assert torch.equal(stash.value[0], torch.tensor([2.0, 2.0]))
    assert not stash.value[0].requires_grad
    assert stash.value[0].data_ptr() != value.data_ptr()
    assert stash.value[1] == "text"
    assert default_stash(event, lambda t: "kept").value == ("kept", "text")
    assert get_stash_fn(stash=repr) is repr


def test_rmap_tensor_maps_tensors_and_leaves_the_rest() -> None:
    """Tensors in tuples, lists and dicts are replaced, all else comes back as it was."""
    marker = object()
    value = ([torch.tensor(1), 2], {"a": torch.tensor(3), "b": ("c", None)}, marker)
    assert rmap_tensor(value, lambda tensor: tensor.item() * 10) == ([10, 2], {"a": 30, "b": ("c", None)}, marker)
    assert (rmap_tensor(torch.tensor(4), float), rmap_tensor(marker, float)) == (4.0, marker)


def test_first_value() -> None:
    """``first_value`` is the first tensor at any depth; without tensors the first item of nested tuples and lists."""
    tensor = torch.ones(1)
    assert sonde.types.Stash("", nn.Linear, False, tensor).first_value is tensor
    assert sonde.types.Stash("", nn.Linear, False, ((tensor, 1), 2)).first_value is tensor
    assert sonde.types.Stash("", nn.Linear, False, (None, {"x": tensor})).first_value is tensor
    assert sonde.types.Stash("", nn.Linear, True, ([3.5], 2)).first_value == 3.5
    assert sonde.types.Stash("", nn.Linear, True, ()).first_value == ()


def test_umap_example_access_pattern() -> None:
    """``t.value[0]`` is the hidden state forward and its gradient backward, in mirrored order and equal number."""
    model = Stack()
    with sonde.track(model, include=r"layers\.\d+$") as tracker:
        model(TOKENS).square().sum().backward()
    hiddens = [t.value[0] for t in tracker if not t.grad]
    grads = [t.value[0] for t in tracker if t.grad][::-1]
    states = [model.embed(TOKENS)]
    for layer in model.layers:
        states.append(layer(states[-1])[0])
    expected = torch.autograd.grad(states[-1].square().sum(), states[1:])
    assert len(hiddens) == len(grads) == 3
    for hidden, grad, state, gradient in zip(hiddens, grads, states[1:], expected, strict=True):
        assert torch.equal(hidden, state)
        torch.testing.assert_close(grad, gradient)


# Order and coordinates


def test_children_come_before_parents_and_backward_mirrors() -> None:
    """Forward events come as modules return; backward events in exactly the reverse order."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()))
    with sonde.track(model) as tracker:
        model(torch.ones(2, 4)).sum().backward()
    assert names(tracker, False) == ["0.0", "0.1", "0", "1.0", "1.1", "1", ""]
    assert names(tracker, True) == names(tracker, False)[::-1]


def test_site_call_phase_and_tick_of_each_stash() -> None:
    """Every stash carries its site, call, phase and the tick with step, micro-step and forward."""
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.track(model) as tracker:
        for _ in range(2):
            for _ in range(2):
                model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    where = [(str(s.site), s.call, s.phase, s.tick.step, s.tick.micro_step, s.tick.forward) for s in tracker if s.name == "0"]
    assert where == [
        ("0:output", 0, "forward", 0, 0, 0),
        ("0:grad_output", 0, "backward", 0, 0, 0),
        ("0:output", 0, "forward", 0, 1, 1),
        ("0:grad_output", 0, "backward", 0, 1, 1),
        ("0:output", 0, "forward", 1, 0, 2),
        ("0:grad_output", 0, "backward", 1, 0, 2),
        ("0:output", 0, "forward", 1, 1, 3),
        ("0:grad_output", 0, "backward", 1, 1, 3),
    ]


def test_ticks_do_not_depend_on_a_detached_tracker_that_is_still_held() -> None:
    """The same run gives the same ticks whether an earlier tracker's variable still exists or not."""
    model = two_layers()

    def ticks() -> tuple[sonde.Tracker, list[sonde.types.Tick]]:
        with sonde.track(model) as tracker:
            model(torch.ones(1, 4)).sum().backward()
        return tracker, [stash.tick for stash in tracker]

    kept, first = ticks()
    while_held = ticks()[1]
    assert len(kept) == 6
    del kept
    gc.collect()
    assert ticks()[1] == first
    assert while_held == first


def test_leaves_have_paths() -> None:
    """What was kept of each tensor is found by its path, forward and for the gradients that came."""
    model = Many()
    x = torch.ones(2, 4)
    with sonde.track(model) as tracker:
        model(x)["rest"][0].sum().backward()
    forward, backward = tracker["(root)"]
    assert forward.paths == ("['first']", "['rest'][0]")
    assert list(forward.leaves) == ["['first']", "['rest'][0]"]
    assert torch.equal(forward.leaves["['rest'][0]"], model.b(x))
    assert list(backward.leaves) == ["['rest'][0]"]
    assert torch.equal(backward.leaves["['rest'][0]"], torch.ones(2, 2))
    assert backward.value == ({"first": None, "rest": (backward.leaves["['rest'][0]"], None)},)


# Looking up


def test_a_name_or_a_site_selects_stashes() -> None:
    """A module's name means all of its stashes, a site's text or a Site those of one port."""
    model = Stack()
    with sonde.track(model) as tracker:
        model(TOKENS).sum().backward()
    forward, backward = (next(s for s in tracker if s.name == "layers.1" and s.grad is grad) for grad in (False, True))
    assert tracker["layers.1"] == [forward, backward]
    assert tracker["layers.1:output"] == [forward]
    assert tracker["layers.1:grad_output"] == tracker[sonde.Site("layers.1", "grad_output")] == [backward]
    assert tracker["layers.1:output[0]"] == tracker[sonde.Site("layers.1", leaf="[0]")] == [forward]
    assert tracker["(root)"] == tracker[""]
    assert {stash.name for stash in tracker[""]} == {""}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("layers.1.lim", "layers.1.lin"),
        ("layer.2", "layers.2"),
        ("layers.1:input", "layers.1:grad_output"),
        ("layers.1:output[7]", "layers.1:output"),
        (sonde.Site("embod"), "embed"),
    ],
)
def test_an_unknown_name_is_a_key_error_that_names_the_nearest(key: Any, said: str) -> None:
    """Asking for what was not kept raises a KeyError whose message repeats the question and says what there is."""
    model = Stack()
    with sonde.track(model) as tracker:
        model(TOKENS).sum().backward()
    with pytest.raises(KeyError) as caught:
        tracker[key]
    assert isinstance(caught.value, UnknownSiteError)
    assert str(key) in str(caught.value)
    assert said in str(caught.value).replace(str(key), "")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"include": "dwon"}, SelectionError, "include='dwon'.*down"),
        ({"include": "("}, SelectionError, r"'\(' is not a regular expression"),
        ({"include": ["upp"]}, SelectionError, "'upp'.*up"),
        ({"include": "up", "exclude": "up"}, SelectionError, "exclude='up'"),
        ({"include": 3}, SelectionError, "include=3"),
        ({"include": int}, SelectionError, "int"),
    ],
)
def test_a_wrong_selection_raises_at_once(arguments: Any, error: type[Exception], said: str) -> None:
    """What cannot be read or selects nothing raises at attach, says what was asked, and leaves no hook."""
    with pytest.raises(error, match=said):
        sonde.track(Loss(), **arguments)


@pytest.mark.parametrize("model", [nn.Linear, torch.ones(1), "model", None])
def test_what_is_no_module_is_refused(model: Any) -> None:
    """A class, a tensor or a text in the model's place is a TypeError that says what it got, also in ``register``."""
    with pytest.raises(ModelError, match=re.escape(getattr(model, "__name__", type(model).__name__))):
        sonde.track(model)
    with pytest.raises(TypeError):
        sonde.Tracker().register(model)


# Failing aloud


def test_a_tracker_that_nobody_holds_says_that_it_keeps_nothing() -> None:
    """A stash function is not called for a tracker that was dropped, and a warning says so once."""
    model, seen = two_layers(), []
    with pytest.warns(ObservationWarning, match="a Tracker was deleted before its model ran.*hold it in a variable") as caught:
        sonde.track(model, stash=seen.append)
    model(torch.ones(1, 4))
    assert (len(caught), seen) == (1, [])


def test_a_statistic_that_fails_for_every_tensor_raises() -> None:
    """The user's own error, where no cell could be filled; one that fails for some leaves these empty."""
    model = two_layers()
    with sonde.track(model, grad=False) as tracker:
        model(torch.ones(2, 4))
    with pytest.raises(TypeError, match="quantile"):
        tracker.to_frame(torch.quantile)
    with pytest.raises(RuntimeError, match=words_of(lambda: torch.ones(6).item())):
        tracker.to_frame(lambda tensor: tensor)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with sonde.track(model, grad=False) as tracker:
        model(torch.ones(2, 4))
    assert tracker.to_frame(lambda tensor: tensor[:, 2].sum(), stat_name="third")["third"].isna().tolist() == [False, True, True]


def test_what_is_kept_in_inference_mode_can_be_used_outside() -> None:
    """Copies are ordinary tensors, to which more can be added in place."""
    model = nn.Linear(2, 2)
    with sonde.track(model, grad=False) as tracker, torch.inference_mode():
        output = model(torch.ones(1, 2))
    kept = tracker[0].value
    assert not kept.is_inference()
    assert torch.equal(kept, output)


def test_stashes_can_be_replaced() -> None:
    """The list is an attribute, as the seed's."""
    model = two_layers()
    with sonde.track(model, grad=False) as tracker:
        model(torch.ones(1, 4))
        tracker.stashes = tracker.stashes[:1]
        model(torch.ones(1, 4))
    assert names(tracker, False) == ["0", "0", "1", ""]
