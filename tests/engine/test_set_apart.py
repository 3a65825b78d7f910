"""``summary``, ``capture``, ``record`` and ``watch(graph=)`` run a copy: the model and other observers notice nothing."""

from __future__ import annotations

import copy
import functools
import gc
import io
import os
import pickle
import threading
import warnings
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    SegformerConfig,
    SegformerForSemanticSegmentation,
)
from transformers.cache_utils import DynamicCache

import sonde
from sonde.engine import structure
from sonde.engine.restore import set_apart
from sonde.engine.stand_in import StandIn
from sonde.errors import ObservationWarning
from sonde.testing import assert_complete, assert_healthy, assert_undisturbed, same_bits

X = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)


def summarise(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    sonde.summary(model, *args, **kwargs)


def capture(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    sonde.capture(model, *args, **kwargs)


def record(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    sonde.graph.record(model, "model", None, kwargs or args)


def watch(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    sonde.watch(model, every=1, to="memory", verbose=False, graph=kwargs or args).detach()


def check(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    assert_healthy(model, kwargs or args)


WAYS = [summarise, capture, record, watch]
Run = Callable[..., None]


# Libraries that put hooks in at the first forward

SMALL: dict[str, Any] = {"vocab_size": 50, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
IDS = torch.arange(12).reshape(2, 6)


def segformer() -> tuple[nn.Module, dict[str, Any]]:
    config = SegformerConfig(
        hidden_sizes=[4, 8], depths=[1, 1], num_encoder_blocks=2, num_attention_heads=[1, 1], sr_ratios=[2, 1], patch_sizes=[7, 3],
        strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=8, num_labels=3,
    )  # fmt: skip
    return SegformerForSemanticSegmentation(config), {"pixel_values": torch.ones(2, 3, 32, 32).cumsum(3) / 32}


def mixtral() -> tuple[nn.Module, dict[str, Any]]:
    config = MixtralConfig(**SMALL, **HEADS, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True)
    return MixtralForCausalLM(config), {"input_ids": IDS, "labels": IDS}


def llama() -> tuple[nn.Module, dict[str, Any]]:
    config = LlamaConfig(**SMALL, **HEADS)
    return LlamaForCausalLM(config), {"input_ids": IDS, "labels": IDS, "output_hidden_states": True, "use_cache": False}


def llama_with_a_cache() -> tuple[nn.Module, dict[str, Any]]:
    config = LlamaConfig(**SMALL, **HEADS)
    return LlamaForCausalLM(config), {"input_ids": IDS, "past_key_values": DynamicCache(config=config), "use_cache": True}


@pytest.mark.parametrize("run", WAYS)
@pytest.mark.parametrize("make", [segformer, mixtral, llama, llama_with_a_cache])
def test_the_first_forward_of_a_lazily_hooked_model(make: Callable[[], tuple[nn.Module, dict[str, Any]]], run: Run) -> None:
    """What the library puts on the model in its first forward is put on it once: outputs are those of a twin, to the bit."""
    torch.manual_seed(0)
    model, kwargs = make()
    twin = copy.deepcopy(model)
    run(model, **kwargs)
    for _ in range(2):
        outputs = []
        for each in (model, twin):
            torch.manual_seed(1)
            outputs.append(structure.walk(each(**copy.deepcopy(kwargs)).to_tuple()))
        assert [path for path, _ in outputs[0]] == [path for path, _ in outputs[1]]
        assert all(same_bits(one, other) for (_, one), (_, other) in zip(*outputs, strict=True))
        assert count_of_hooks(model) == count_of_hooks(twin)


def count_of_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_a_cache_does_not_grow() -> None:
    """Nor does a list among the arguments."""
    model, kwargs = llama_with_a_cache()
    for run in WAYS:
        run(model, **kwargs)
    assert kwargs["past_key_values"].get_seq_length() == 0


# Modules that keep things


class Opaque:
    """An object with a list, and one that leads back to the model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = [model]
        self.seen: list[Tensor] = []


class Keeping(nn.Module):
    """Changes everything that can be reached from it, and the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.hidden = [nn.Linear(4, 4)]  # known to no parent
        self.log: list[Any] = []
        self.counts = {"calls": 0, "nested": [set(), deque([1], maxlen=2), OrderedDict(a=1)]}
        self.opaque = Opaque(self)
        self.lock = threading.Lock()
        self.state: Tensor | None = None
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor, given: list[Tensor]) -> Tensor:
        with self.lock, torch.no_grad():
            self.first.weight.mul_(0.5)
            self.hidden[0].weight.add_(torch.rand(4, 4, generator=self.generator))
        self.opaque.model[0].first.bias.data.fill_(3.0)
        if not hasattr(self, "made"):
            self.made = nn.Linear(4, 4)
            self.register_buffer("late", torch.ones(1))
            self.made.register_forward_hook(lambda module, args, output: output * 2)
        self.counts["calls"] += 1
        self.counts["nested"][0].add(len(given))
        self.counts["nested"][1].append(2)
        self.counts["nested"][2]["b"] = 2
        self.log.append(x)
        self.opaque.seen.append(x)
        given.append(x)
        x.add_(1.0)
        out: Tensor = self.made(self.norm(self.hidden[0](self.first(x))))
        self.state = out if self.state is None else self.state.detach() + out
        return out


def facts(model: Keeping) -> Any:
    tensors = [*model.state_dict().values(), *model.hidden[0].state_dict().values(), model.generator.get_state()]
    plain = [model.log, model.opaque.seen, model.state, str(model.counts), sorted(vars(model)), count_of_hooks(model)]
    return [tensor.tolist() for tensor in tensors], plain


@pytest.mark.filterwarnings("ignore:the model has changed since it was observed")
@pytest.mark.parametrize("run", WAYS)
def test_nothing_that_a_model_reaches_changes(run: Run) -> None:
    """Weights, buffers, lists, nested containers, objects, hidden modules, generators, new layers, arguments: all as before."""
    model, given, x = Keeping(), [torch.ones(1)], X.clone()
    before, random = facts(model), torch.get_rng_state()
    run(model, x, given)
    assert facts(model) == before
    assert torch.equal(x, X)
    assert len(given) == 1
    assert torch.equal(torch.get_rng_state(), random)
    model(x, given)
    before = facts(model)  # now with a kept result of the graph, which copy.deepcopy refuses
    run(model, x, given)
    assert facts(model) == before


def doubled(linear: nn.Linear, x: Tensor) -> Tensor:
    return nn.Linear.forward(linear, x) * 2


class Doubled:
    """A callable object that holds a module."""

    def __init__(self, linear: nn.Linear) -> None:
        self.linear = linear

    def __call__(self, x: Tensor) -> Tensor:
        return nn.Linear.forward(self.linear, x) * 2


def closing_over(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    old, seen = linear.forward, []

    def forward(x: Tensor) -> Tensor:
        seen.append(x)
        linear.calls = len(seen)
        return old(x) * 2

    return forward


@pytest.mark.parametrize("make", [lambda linear: functools.partial(doubled, linear), Doubled, closing_over])
@pytest.mark.parametrize("run", WAYS)
def test_a_replaced_forward_runs_on_the_copy(run: Run, make: Callable[[nn.Linear], Any]) -> None:
    """A partial, an object or a closure that leads to the module leads to its copy in the copy."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].forward = make(model[0])
    touched: list[Any] = []
    model[0].weight.register_hook(touched.append)
    run(model, X)
    with set_apart(model) as apart:
        (-apart.model(X)).sum().backward()
        assert apart.model[0].weight.grad is not None
    assert (touched, model[0].weight.grad) == ([], None)
    assert not hasattr(model[0], "calls")
    assert torch.equal(model[0](X), nn.functional.linear(X, model[0].weight, model[0].bias) * 2)


def test_hooks_of_the_user_run_on_the_copy_and_keep_what_they_keep() -> None:
    """A hook that changes the output is a part of the model; the list that another one fills is not filled."""
    seen: list[Tensor] = []
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(lambda module, args, output: output + 1000.0)
    model[1].register_forward_hook(lambda module, args, output: seen.append(output))
    found = sonde.summary(model, X)
    mean = next(row.mean for row in found.rows if row.name == "1")
    assert mean is not None
    assert mean > 900
    assert seen == []


def weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.utils.weight_norm(nn.Linear(4, 4))


@pytest.mark.parametrize(
    "make",
    [
        weight_norm,
        lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
        lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
        lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: nn.GRU(4, 4),
        lambda: nn.MultiheadAttention(4, 2),
        lambda: torch.compile(nn.Linear(4, 4), backend="eager"),
        lambda: nn.Sequential(nn.DataParallel(nn.Linear(4, 4)), nn.ReLU()),
        lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))),
    ],
)
def test_models_of_every_making(make: Callable[[], nn.Module]) -> None:
    """Called before or not: the copy computes what the model computes, to the bit, and shares no memory with it."""
    model = make()
    args = (X, X, X) if isinstance(model, nn.MultiheadAttention) else (X,)
    for _ in range(2):
        with set_apart(model, args) as apart:
            mine = [*model.parameters(), *model.buffers()]
            theirs = [*apart.model.parameters(), *apart.model.buffers()]
            assert len(mine) == len(theirs)
            assert not {held.untyped_storage().data_ptr() for held in mine} & {held.untyped_storage().data_ptr() for held in theirs}
            output = apart.model(*apart.args)
        expected = model(*args)
        for (_, one), (_, other) in zip(structure.walk(output), structure.walk(expected), strict=True):
            assert same_bits(one.detach(), other.detach())


def test_tied_weights_and_views_stay_tied() -> None:
    """One parameter in two places is one in the copy; a buffer that is a view of another writes through."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model.register_buffer("all", torch.zeros(4))
    model.register_buffer("some", model.get_buffer("all")[:2])
    copied = StandIn(model).copied(model)
    assert copied[0].weight is copied[1].weight
    assert copied[0].weight is not model[0].weight
    copied.some.fill_(1.0)
    assert copied.all.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert model.get_buffer("all").tolist() == [0.0, 0.0, 0.0, 0.0]


def test_what_cannot_be_copied_is_said_before_the_run() -> None:
    """The warning names the attribute; all the rest is copied."""

    class Streaming(nn.Linear):
        lines = iter(())

        def forward(self, x: Tensor) -> Tensor:
            next(self.lines)
            out: Tensor = super().forward(x)
            return out

    model = Streaming(4, 4)
    model.lines = (index for index in range(3))
    with pytest.warns(ObservationWarning, match=r"Streaming.lines \(a generator\) cannot be copied"):
        sonde.summary(model, X)
    assert next(model.lines) == 1


def test_a_model_that_cannot_be_copied_is_put_back() -> None:
    """With a warning; its hooks, attributes, buffers and gradients are as before, and its probes have seen nothing."""

    class Whole(nn.Sequential):
        """Says that it is a part of something larger, as a module of FSDP does."""

        def unshard(self) -> None: ...
        def reshard(self) -> None: ...

        def forward(self, x: Tensor) -> Tensor:
            self.seen = x
            self[0].register_forward_hook(lambda *_: None)
            out: Tensor = super().forward(x)
            return out

    model = Whole(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: held.clone() for name, held in model.state_dict().items()}
    with sonde.track(model) as tracker:
        hooks = count_of_hooks(model)
        for run in WAYS:
            with pytest.warns(ObservationWarning, match="Whole cannot be copied"):
                run(model, X)
        assert count_of_hooks(model) == hooks
        assert not hasattr(model, "seen")
        assert all(torch.equal(held, before[name]) for name, held in model.state_dict().items())
        assert len(tracker) == 0
        del Whole.forward
        model(X)
        assert len(tracker) == 3
        assert tracker[0].tick.forward == 0


def test_a_buffer_of_one_element_of_a_slice_is_put_back() -> None:
    """Its stride is that of the slice."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.arange(9.0)[8::4])

        def forward(self, x: Tensor) -> Any:
            return x + self.count.add_(1)

        def unshard(self) -> None: ...
        def reshard(self) -> None: ...

    model = Counts()
    with pytest.warns(ObservationWarning, match="Counts cannot be copied"), set_apart(model, (X,)) as apart:
        apart.model(*apart.args)
    assert model.count.item() == 8.0


def test_parameters_too_large_to_copy_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have other names and no gradient of the user's; what the forward writes into them is said not to be undone."""
    monkeypatch.setattr("sonde.engine.stand_in._MOST_OF_MEMORY", 0.0)

    class Clamped(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.clamp_(-0.1, 0.1)
            out: Tensor = super().forward(x)
            return out

    model = nn.Sequential(Clamped(4, 4), nn.BatchNorm1d(4))
    with set_apart(model) as apart:
        assert apart.model[0].weight.data_ptr() == model[0].weight.data_ptr()
        assert apart.model[1].running_mean.data_ptr() != model[1].running_mean.data_ptr()
        apart.model(X).sum().backward()
    assert model[0].weight.grad is None
    assert "which was not undone: 0.weight" in " ".join(sonde.summary(model, X).remarks)


# Other observers


@pytest.mark.parametrize("run", [*WAYS, check, assert_undisturbed, assert_complete])
def test_other_observers_see_nothing(run: Run) -> None:
    """Neither probes nor trackers nor a watched training; and the run sees nothing of these."""
    model, called = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = sonde.recorders.ForwardOutput().modules(model)
    with (
        sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector,
        sonde.track(model) as tracker,
        sonde.ModuleTracker(enter=called.append),
    ):
        for _ in range(2):
            run(model, X)
            optimizer.zero_grad()
            loss = model(X).square().mean()
            run(model, X)
            loss.backward()
            run(model, X)
            optimizer.step()
        run(model, X)
    recorder.remove()
    assert inspector.run.sql("SELECT count FROM moments WHERE site = '0:output'").fetchall() == [(12.0,), (12.0,)]
    assert [stash.tick.forward for stash in tracker if stash.name == "0" and not stash.grad] == [0, 1]
    assert len(called) == 6
    assert len(recorder["0"]) == 2
    assert len(tracker) == 12


def test_a_summary_inside_a_quiet_block_and_inside_a_forward() -> None:
    """It sees all of its own run, wherever it is asked for."""

    class Asking(nn.Sequential):
        found: Any = None

        def forward(self, x: Tensor) -> Tensor:
            type(self).found = sonde.summary(self[0], x)
            out: Tensor = super().forward(x)
            return out

    model = Asking(nn.Linear(4, 4), nn.ReLU())
    with sonde.quiet(), sonde.track(model) as tracker:
        found = sonde.summary(model, X)
    assert [row.calls for row in found.rows] == [1, 1, 1]
    assert [row.calls for row in Asking.found.rows] == [1]
    assert len(tracker) == 0


def test_a_training_in_another_thread_goes_on_being_observed() -> None:
    """While one thread captures again and again, every step of another one's training is recorded, and computes the same."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    twin, stop = copy.deepcopy(model), threading.Event()

    def look() -> None:
        while not stop.is_set():
            sonde.capture(model, X)

    def train(each: nn.Module) -> None:
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            each(X).square().mean().backward()
            optimizer.step()

    seen: list[str] = []
    probe = sonde.observe(model, lambda event: seen.append(event.name))
    thread = threading.Thread(target=look)
    thread.start()
    try:
        train(model)
    finally:
        stop.set()
        thread.join()
        probe.detach()
    train(twin)
    assert len(seen) == 20 * 4
    assert all(torch.equal(one, other) for one, other in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    "observe",
    [
        lambda model: sonde.watch(model, every=1, to="memory", verbose=False),
        sonde.track,
        lambda model: sonde.observe(model, sonde.stats.Moments()),
        lambda model: sonde.recorders.ForwardOutput().modules(model),
    ],
)
@pytest.mark.filterwarnings("ignore:a .* cannot be copied or pickled")
def test_a_model_that_holds_its_observer(observe: Callable[[nn.Module], Any]) -> None:
    """It can be copied, pickled and saved, summarised without a word, and goes when nobody holds it."""
    model: Any = nn.Linear(4, 4)
    model.watcher = observe(model)
    model(X).sum().backward()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(X), model(X))
        assert copied.watcher is None or isinstance(copied.watcher, sonde.recorders.ForwardOutput)
    torch.save(model, io.BytesIO())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sonde.summary(model, X)
    gone = weakref.ref(model)
    del model, copied
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_runs_after_a_copy_was_made_if_it_ran_before(enabled: bool) -> None:
    class Refuses(nn.Module):
        def __deepcopy__(self, memo: Any) -> Any:
            raise ValueError("no copy")

    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        for model in (nn.Linear(2, 2), Refuses()):
            with set_apart(model):
                assert gc.isenabled() is enabled
            assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_a_collector_that_is_switched_off_while_a_copy_is_made_stays_off() -> None:
    """Another thread, or the model's own way of being copied, may say so."""

    class SwitchesOff:
        def __deepcopy__(self, memo: Any) -> Any:
            gc.disable()
            return self

    model = nn.Linear(2, 2)
    model.note = SwitchesOff()  # type: ignore[assignment]
    before, thresholds = gc.isenabled(), gc.get_threshold()
    gc.enable()
    try:
        with set_apart(model):
            pass
        assert not gc.isenabled()
        assert gc.get_threshold() == thresholds
    finally:
        (gc.enable if before else gc.disable)()
