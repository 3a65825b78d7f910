"""Models that change after a probe was attached, or that were never as they seem."""

from __future__ import annotations

import gc
import subprocess
import sys
import types
import weakref

import pytest
import torch
from tests.torch_words import words_of
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.data import DataLoader, Dataset

import sonde
from sonde.engine.probes.attachment import Attachment
from sonde.errors import ObservationWarning
from sonde.stats import Moments


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def step(model: nn.Module, x: Tensor | None = None) -> None:
    model.zero_grad()
    model(torch.randn(3, 4) if x is None else x).square().sum().backward()


def counts(probe: sonde.types.Probe) -> dict[str, int]:
    return {str(line.site): line.count for line in probe.coverage()}


def test_a_replaced_module_is_followed_and_named() -> None:
    """What takes the place of an observed module is observed from the next look on, with a warning that names it."""
    model = net()
    with sonde.observe(model, lambda event: None, ports=("output", "grad_output", "grad"), strict=True) as probe:
        step(model)
        model[2] = nn.Linear(4, 2)
        with pytest.warns(ObservationWarning, match=r"the model has changed .* 2\.?.* are observed from now on"):
            probe.coverage()
        step(model)
        found = counts(probe)
    assert found["2:output"] == found["2:grad_output"] == found["2.weight:grad"] == 2
    assert [line.reason for line in probe.coverage() if str(line.site) == "2:output"] == [
        "came or was replaced after the probe was attached"
    ]


@pytest.mark.parametrize("forwards", [1, 3, 100])
def test_the_first_forward_after_a_change_is_observed(forwards: int) -> None:
    """Without anybody asking, however many forwards have been before."""
    model = net()
    with sonde.observe(model, Moments(), strict=True) as probe:
        for _ in range(forwards):
            model(torch.ones(1, 4))
        model[0] = nn.Linear(4, 4)
        with pytest.warns(ObservationWarning, match="the model has changed"):
            model(torch.ones(1, 4))
        assert counts(probe)["0:output"] == forwards + 1


def test_a_module_that_is_added_or_removed() -> None:
    """A new module that the selection means is observed; one that is gone says so."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with sonde.observe(model, lambda event: None, strict=True) as probe:
        model.append(nn.Linear(4, 4))
        del model[1]
        with pytest.warns(ObservationWarning, match="the model has changed"):
            probe.coverage()
        step(model)
        found = {str(line.site): (line.count, line.reason) for line in probe.coverage()}
    assert found["(root):output"] == (1, "")
    assert found["1:output"][0] == 1  # the new layer has moved up to the name of the one that is gone


def test_a_model_that_is_moved_or_reloaded_goes_on_being_observed() -> None:
    """``half`` / ``double``, ``load_state_dict`` and ``load_state_dict(assign=True)`` lose nothing."""
    model = net()
    with sonde.observe(model, Moments(), ports=("output", "grad_output", "grad"), strict=True) as probe:
        step(model)
        model.load_state_dict(net().state_dict())
        step(model)
        model.double()
        step(model, torch.randn(3, 4, dtype=torch.float64))
        model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)
        with pytest.warns(ObservationWarning, match=r"0\.weight"):
            probe.coverage()
        step(model, torch.randn(3, 4, dtype=torch.float64))
        assert set(counts(probe).values()) == {4}


def test_a_module_parametrised_after_attaching() -> None:
    """Its class changes and modules come: its own events go on, the parametrisation's begin."""
    model = net()

    class Twice(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight * 2

    events: list[sonde.types.Event] = []
    with sonde.observe(model, events.append, strict=True) as probe:
        parametrize.register_parametrization(model[0], "weight", Twice())
        with pytest.warns(ObservationWarning, match="parametrizations"):
            probe.coverage()
        step(model)
    assert [event.name for event in events if "parametrizations" in event.name]
    assert [event.type.__name__ for event in events if event.name == "0"] == ["ParametrizedLinear"]


def test_a_parameter_that_is_unfrozen_is_observed_from_then_on() -> None:
    """A frozen parameter gives no gradient and coverage says frozen; unfrozen, it does."""
    model = net()
    model[0].requires_grad_(False)
    with sonde.observe(model, lambda event: None, ports="grad", strict=True) as probe:
        step(model)
        assert counts(probe)["0.weight:grad"] == 0
        assert {line.reason for line in probe.coverage() if line.site.path == "0.weight"} == {"frozen"}
        model[0].requires_grad_(True)
        step(model)
        assert counts(probe)["0.weight:grad"] == 1


# Why a site is silent


class Reasons(nn.Module):
    """One child for each way not to be called."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Linear(4, 4)
        self.functional = nn.Linear(4, 4)
        self.direct = nn.Sequential(nn.Linear(4, 4))
        self.branch = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.linear(self.plain(x), self.functional.weight)
        x = self.direct.forward(x)
        return self.attention(x, x, x, need_weights=False)[0] if x.numel() else self.branch(x)


def test_coverage_says_why_a_module_was_silent() -> None:
    """Parameters used without the module, ``.forward()`` called directly, a branch not taken, and all that was seen."""
    model = Reasons()
    with sonde.observe(model, lambda event: None, strict=True) as probe:
        step(model, torch.randn(2, 3, 4))
        reasons = {line.site.path: line.reason for line in probe.coverage()}
    assert reasons["plain"] == reasons["attention"] == reasons["direct.0"] == ""
    assert "parameters were used" in reasons["functional"]
    assert "parameters were used" in reasons["attention.out_proj"]
    assert ".forward() is called directly" in reasons["direct"]
    assert "a branch not taken" in reasons["branch"]


def test_coverage_before_the_model_runs_and_after_it_raises() -> None:
    """Nothing is blamed on the model that it did not do."""
    model = net()
    with sonde.observe(model, lambda event: None, strict=True) as probe:
        assert {line.reason for line in probe.coverage()} == {"the model was not seen to run"}
        with pytest.raises(RuntimeError, match=words_of(lambda: net()(torch.randn(3, 5)))):
            model(torch.randn(3, 5))
        assert {line.reason for line in probe.coverage()} == {"not reached, or did not return: the forward raised"}
        model(torch.randn(3, 4))
        assert probe.coverage().missing == ()


# Trouble of the user's own


def test_a_backward_that_raises_leaves_the_probe_working() -> None:
    """An exception in backward, swallowed or not, loses that pass and nothing after it."""

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *gradients: Tensor) -> Tensor:
            raise ArithmeticError("bad")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.LSTM(4, 4), nn.Linear(4, 4)
            self.broken = True

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.a(x)[0]
            return self.b(Bad.apply(x) if self.broken else x), x

    model = Model()
    events: list[sonde.types.Event] = []
    with sonde.observe(model, events.append, ports="grad_output", strict=True):
        with pytest.raises(ArithmeticError):
            sum(part.sum() for part in model(torch.randn(2, 4))).backward()
        events.clear()
        model.broken = False
        model(torch.randn(2, 4))[0].sum().backward()
    assert [event.name for event in events] == ["b", "", "a"]  # the second tensor that the root returned got its gradient after b
    assert [path for path, _ in events[1].leaves] == ["[0]", "[1]"]


class Numbers(Dataset[Tensor]):
    """Rows of numbers, for a loader."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((4,), float(index))


@pytest.mark.slow
def test_workers_of_a_data_loader_do_not_disturb() -> None:
    """Processes forked while a probe is attached deliver nothing here, and end well."""
    model = net()
    seen: list[int] = []
    with sonde.observe(model, lambda event: seen.append(event.tick.forward), include=["0"], strict=True):
        for batch in DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
            model(batch)
    assert seen == [0, 1]


# what Jupyter and IPython in a terminal call the code of a cell in its first and in its second run
@pytest.mark.parametrize("names", [("<cell>", "<cell>"), ("<ipython-input-1-0a1b2c>", "<ipython-input-2-0a1b2c>")])
def test_a_notebook_cell_that_is_run_again_replaces_its_probes(names: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run of the same line detaches what the first made, though the notebook holds it; the same run does not."""
    shell = types.SimpleNamespace(user_ns={"sonde": sonde, "model": net()}, execution_count=1)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    for run, name in enumerate(names):
        shell.execution_count = run + 1
        former = shell.user_ns.get("made", [])
        exec(compile("made = [sonde.track(model) for _ in range(2)]", name, "exec"), shell.user_ns)
        assert [tracker.attached for tracker in shell.user_ns["made"]] == [True, True]
        assert not any(tracker.attached for tracker in former)
    for tracker in shell.user_ns["made"]:
        tracker.detach()


GROWTH = """
import gc, torch, sonde
from torch import nn
from sonde.stats import Moments

model, x = nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2)), torch.randn(1, 2)
ports = ("input", "output", "grad_output", "grad")

def objects_after(steps):
    for _ in range(steps):
        model(x)[0].sum().backward()
    gc.collect()
    return len(gc.get_objects())

with (
    sonde.observe(model, lambda event: None, ports=ports, strict=True),
    sonde.observe(model, Moments(), ports=("output", "grad_output"), every=2000, strict=True),
):
    objects_after(100)
    print(objects_after(100), objects_after(9_800))
"""


@pytest.mark.slow
def test_nothing_grows_over_ten_thousand_steps() -> None:
    """Objects, handles and watched tensors are as many after ten thousand steps as after a hundred.

    Counted in a process of its own: other tests' compilers and threads come and go in this one.
    """
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after - before < 10


def test_nothing_grows_with_leaves_that_come_and_go() -> None:
    """A module that returns its input leaf is watched anew for each leaf, and forgets those that are gone."""
    model = nn.Sequential(nn.Identity(), nn.Linear(2, 2))
    with sonde.observe(model, lambda event: None, ports="grad_output", strict=True) as probe:
        for _ in range(200):
            model(torch.randn(1, 2, requires_grad=True)).sum().backward()
        assert len(probe._attachment.delivery._leaves) <= 4


def test_a_warning_points_at_the_users_line() -> None:
    """However deep in torch an observer fails, the warning names the file and line from which the model was called."""
    model = net()
    with sonde.observe(model, lambda event: 1 / 0), pytest.warns(ObservationWarning, match="ZeroDivisionError at 0:output") as said:
        model(torch.randn(3, 4))
    assert [warning.filename for warning in said] == [__file__]


def test_a_listed_module_that_is_removed_takes_no_other_with_it() -> None:
    """The rest of the list stays observed; also if the list could be gone through only once."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    with sonde.observe(model, lambda event: None, include=iter(["0", "2"]), strict=True) as probe:
        model(torch.ones(1, 2))
        del model[2]
        assert {str(line.site): line.reason for line in probe.coverage()} == {
            "0:output": "",
            "2:output": "was removed from the model after the probe was attached",
        }
        assert [str(site) for site in probe.sites] == ["0:output"]


def test_what_is_removed_from_one_model_stays_in_the_other() -> None:
    """Two models in one attachment have modules of the same name."""
    a, b = (nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(2))
    attachment = Attachment(lambda event: None, strict=True)
    for name, model in (("a", a), ("b", b)):
        attachment.observe(model, None, None, ("output",), name)
    attachment.attach()
    del a[1]
    attachment.rescan()
    attachment.detach()
    assert [str(site) for site in attachment.sites()] == [
        "a/(root):output",
        "a/0:output",
        "b/(root):output",
        "b/0:output",
        "b/1:output",
    ]


def test_a_failure_keeps_nothing_alive() -> None:
    """The error is kept without its frames, which hold the probe, the model and the user's tensors."""

    def run() -> weakref.ref[nn.Module]:
        model = nn.Linear(2, 2)
        probe = sonde.observe(model, lambda event: 1 / 0)
        model(torch.ones(1, 2))
        assert "ZeroDivisionError" in probe.errors[0].traceback
        return weakref.ref(model)

    with pytest.warns(ObservationWarning, match="ZeroDivisionError"):
        model = run()
    gc.collect()
    assert model() is None


def test_a_compiled_model_that_was_never_called_is_not_called_dead(fresh_compiler: None) -> None:
    """Attaching and detaching without a call says nothing."""

    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    sonde.observe(torch.compile(Own(), backend="eager"), lambda event: None, strict=True).detach()


def test_the_gradient_through_one_module_of_a_nested_tensor_is_left_out() -> None:
    """There is no alias of it; the rest is observed, and the coverage says so."""
    model = nn.Linear(2, 2)
    given = torch.nested.nested_tensor([torch.ones(1, 2), torch.ones(3, 2)], layout=torch.jagged, requires_grad=True)
    with sonde.observe(model, lambda event: None, ports=("output", "grad_input"), strict=True) as probe:
        model(given).values().sum().backward()
    assert {line.site.port: (line.count, line.reason) for line in probe.coverage()} == {
        "grad_input": (0, "a nested tensor, whose gradient through this module alone cannot be observed"),
        "output": (1, ""),
    }
