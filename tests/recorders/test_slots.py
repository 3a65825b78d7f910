"""A slot belongs to its module: registration, names, removal, conditions, several models."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.errors import ArgumentError, ModelError, ObservationWarning, SelectionError, UnknownSlotError
from sonde.recorders import ForwardOutput, ForwardPre

# many tests look at the slots of a recorder whose model never runs
pytestmark = pytest.mark.filterwarnings("ignore:a Forward(Output|Pre) was deleted before its model ran")


class Adds(nn.Module):
    """Adds a number to its input, so that an output names the module that made it."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return x + self.number


def adders(*numbers: float) -> nn.Sequential:
    return nn.Sequential(*map(Adds, numbers))


def nested() -> nn.Sequential:
    """Positions in modules(): 0 root, 1 '0' Linear, 2 '1' Sequential, 3 '1.0' Linear, 4 '1.1' ReLU, 5 '2' Linear."""
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))


def names(recorder: sonde.recorders.Recorder) -> list[str]:
    return [slot.name for slot in recorder.subrecorders]


# Registration


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, ["", "0", "1", "1.0", "1.1", "2"]),
        ({"types": nn.Linear}, ["0", "1.0", "2"]),
        ({"types": (nn.ReLU, nn.Linear)}, ["0", "1.0", "1.1", "2"]),
        ({"indices": (0, 3, 4)}, ["", "1.0", "1.1"]),
        ({"indices": range(1, 6, 2)}, ["0", "1.0", "2"]),
        ({"indices": 5}, ["2"]),
        ({"indices": [-1]}, ["2"]),
        ({"types": nn.Linear, "indices": (2, 3, 4)}, ["1.0"]),
        ({"types": nn.Linear, "exclude": r"\."}, ["0", "2"]),
        ({"include": ["1.0", "1.1"], "types": nn.ReLU}, ["1.1"]),
        ({"include": lambda name, module: len(name) == 1, "indices": (0, 1, 2, 3)}, ["0", "1"]),
    ],
)
def test_what_modules_registers(how: dict[str, Any], expected: list[str]) -> None:
    """Every condition has to admit a module; without any all have a slot, in the order of ``modules()``."""
    recorder = ForwardOutput(strict=True).modules(nested(), **how)
    assert names(recorder) == expected
    assert len(recorder) == len(recorder.subrecorders) == len(recorder.handles) == len(recorder.data) == len(expected)
    assert [slot.index for slot in recorder.subrecorders] == list(range(len(expected)))


@pytest.mark.parametrize(
    ("how", "expected"),
    [({}, ["0", "1", "2"]), ({"indices": (1, 2), "types": nn.Linear}, ["2"]), ({"indices": (-3,)}, ["0"])],
)
def test_what_children_registers(how: dict[str, Any], expected: list[str]) -> None:
    """The direct children, with positions among them."""
    assert names(ForwardOutput(strict=True).children(nested(), **how)) == expected


def test_positions_are_those_of_torch() -> None:
    """With lists, shared modules and several names, slot i is module i of ``model.modules()``."""
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": nn.ModuleList([shared, nn.ReLU()]), "b": nn.Sequential(shared, nn.Tanh()), "c": shared})
    recorder = ForwardOutput(strict=True).modules(model)
    expected = {module: name for name, module in model.named_modules()}
    assert names(recorder) == [expected[module] for module in model.modules()]
    assert names(ForwardOutput(strict=True).children(model, indices=(2,))) == ["a.0"]


def test_positions_in_a_wrapped_model_are_those_of_the_model(fresh_compiler: None) -> None:
    """The wrapper that torch.compile adds is not counted, and not named; with and without it is the same model."""
    model = nested()
    compiled = torch.compile(model, backend="eager")
    recorder = ForwardOutput(strict=True).modules(compiled, indices=(0, 3)).children(model)
    compiled(torch.ones(1, 2))
    assert names(recorder) == ["", "1.0", "0", "1", "2"]
    assert list(recorder.iter_samples()) == [1] * 5


def test_modules_that_are_never_called_have_a_slot_that_says_so() -> None:
    """A ModuleList keeps its position, and nothing in it."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Adds(1), Adds(2)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    model = Model()
    recorder = ForwardOutput(strict=True).modules(model)
    model(torch.zeros(1))
    assert names(recorder) == ["", "layers", "layers.0", "layers.1"]
    assert recorder["layers"] == []
    assert [value.item() for (value,) in recorder[2:]] == [1, 3]
    assert {line.site.path: line.reason for line in recorder.coverage() if line.reason} == {
        "layers": "is never called: it only holds other modules"
    }
    with pytest.raises(SelectionError, match=r"ever called.*layers \(ModuleList\)"):
        ForwardOutput(strict=True).modules(model, types=nn.ModuleList)


def test_registering_again_adds_only_what_has_no_slot() -> None:
    """A module has one slot, however often it is registered."""
    model = adders(1, 2)
    recorder = ForwardOutput(strict=True).modules(model, indices=(1,)).modules(model).children(model)
    model(torch.zeros(1))
    assert names(recorder) == ["0", "", "1"]
    assert list(recorder.iter_samples()) == [1, 1, 1]


def test_a_part_of_a_registered_model_goes_by_its_names_there() -> None:
    """Positions are those in the part, names those in the model."""
    model = nested()
    recorder = ForwardOutput(strict=True).modules(model, indices=(0,)).children(model[1], indices=(1,))
    assert names(recorder) == ["", "1.1"]


def test_wrong_selections_are_refused_at_once() -> None:
    """Each says what was asked, and what there is."""
    model = nested()
    for how, text in [
        ({"types": nn.Conv2d}, "of type Conv2d"),
        ({"types": nn.Linear, "indices": (2, 4)}, r"of type Linear at 2, 4. There is 2: 1 \(Sequential\), 4: 1.1 \(ReLU\)"),
        ({"indices": (6,)}, "index 6: there are 6 modules"),
        ({"indices": ("a",)}, "'a' is no position"),
        ({"types": ("Linear",)}, "'Linear' is no class"),
        ({"include": ["1.2"]}, "Nearest: 1.1, 1.0"),
    ]:
        with pytest.raises(SelectionError, match=text):
            ForwardOutput(strict=True).modules(model, **how)
    with pytest.raises(ModelError, match="is a class, not a model"):
        ForwardOutput(strict=True).modules(nn.Linear)  # type: ignore[arg-type]


def test_wrong_arguments_are_refused_at_once() -> None:
    """A class where one of its objects is meant, and what cannot be called."""
    for how, text in [
        ({"reduction": sonde.recorders.reductions.Mean}, "Mean is a class"),
        ({"reduction": "sum"}, "cannot be called"),
        ({"condition": True}, "cannot be called"),
        ({"data_method": "first"}, "'batch'.*'sample'"),
    ]:
        with pytest.raises(ArgumentError, match=text):
            ForwardOutput(**how)  # type: ignore[arg-type]


# Whose data it is


class Routed(nn.Module):
    """Runs its parts in the order it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Adds(1), Adds(10), Adds(100)])

    def forward(self, x: Tensor, order: tuple[int, ...]) -> Tensor:
        for place in order:
            x = self.parts[place](x)
        return x


@pytest.mark.parametrize("order", [*itertools.permutations(range(3)), (1,), (2, 2, 0), ()])
@pytest.mark.parametrize("reduce", [False, True])
def test_order_repetition_and_absence_move_nothing(order: tuple[int, ...], reduce: bool) -> None:
    """Each slot has what its own module added, whatever ran when; a module that did not run has an empty slot."""
    model = Routed()
    recorder = ForwardOutput(reduction=(lambda x, y: x + y) if reduce else None, strict=True).children(model.parts)
    inputs = ForwardPre(reduction=(lambda x, y: x + y) if reduce else None, strict=True).children(model.parts)
    model(torch.zeros(()), order)
    for place in range(3):
        calls = order.count(place)
        assert recorder.samples(place) == calls
        if calls == 0:
            assert recorder[place] in ([], None)
        else:
            added = [
                out - into for out, into in zip(*([r[place]] if reduce else r[place] for r in (recorder, inputs)), strict=True)
            ]
            assert sum(added).item() == calls * 10**place


def test_a_condition_that_is_false_at_first() -> None:
    """It is asked at each module call; slots keep what it was true for, each its own."""
    model = adders(1, 10, 100)
    answers = iter([False, False, True, True, False, True])
    recorder = ForwardOutput(lambda: next(answers), strict=True).children(model)
    model(torch.zeros(1))
    model(torch.zeros(1))
    assert [[value.item() for value in values] for values in recorder] == [[1], [], [111, 111]]
    assert list(recorder.iter_samples()) == [1, 0, 2]
    assert "true for none of 2 calls" in next(line.reason for line in recorder.coverage() if line.site.path == "1")


def test_a_removed_slot_takes_its_hooks_and_leaves_the_others_alone() -> None:
    """Slots behind it move up with their data; its module is no longer recorded."""
    model = adders(1, 10, 100)
    recorder = ForwardOutput(strict=True).children(model)
    model(torch.zeros(1))
    assert [value.item() for value in recorder.remove(0)] == [1]
    assert len(model[0]._forward_hooks) == 0
    model(torch.zeros(1))
    assert [[value.item() for value in values] for values in recorder] == [[11, 11], [111, 111]]
    assert [slot.index for slot in recorder.subrecorders] == [0, 1]
    assert recorder.remove("2") == recorder.remove("1")[:0] + [torch.tensor([111.0])] * 2
    assert len(recorder) == 0
    with pytest.raises(UnknownSlotError):
        recorder.remove(0)


def test_remove_before_any_data() -> None:
    """There is a slot, so it can be removed; what it kept is nothing."""
    assert ForwardOutput(strict=True).children(adders(1)).remove(0) == []
    assert ForwardOutput(reduction=max, strict=True).children(adders(1)).remove(0) is None


def test_a_removed_module_can_be_registered_again() -> None:
    """It has a new slot, behind the others."""
    model = adders(1, 10)
    recorder = ForwardOutput(strict=True).children(model)
    recorder.remove(0)
    recorder.children(model)
    model(torch.zeros(1))
    assert names(recorder) == ["1", "0"]
    assert [value.item() for (value,) in recorder] == [11, 1]


def test_a_handle_ends_the_recording_and_leaves_the_data() -> None:
    """Also when the recorder is attached again; removing twice is no error."""
    model = adders(1, 10)
    recorder = ForwardOutput(strict=True).children(model)
    model(torch.zeros(1))
    recorder.handles[0].remove()
    recorder.handles[0].remove()
    model(torch.zeros(1))
    recorder.detach()
    recorder.attach()
    model(torch.zeros(1))
    assert list(recorder.iter_samples()) == [1, 3]


def test_two_models_have_slots_of_their_own() -> None:
    """Also with the same names in them: the second model is called 2, or as it is told."""
    one, two, three = adders(1), adders(10), adders(100)
    recorder = ForwardOutput(strict=True).children(one).children(two).children(three, name="third")
    for model in (three, one, two):
        model(torch.zeros(1))
    assert [values[0].item() for values in recorder] == [1, 10, 100]
    assert [str(site) for site in recorder.sites] == ["0:output", "2/0:output", "third/0:output"]
    assert recorder["2/0"][0].item() == 10
    assert recorder[sonde.Site("0", model="third")][0].item() == 100
    recorder.remove("0")
    one(torch.zeros(1))
    two(torch.zeros(1))
    assert list(recorder.iter_samples()) == [2, 1]
    with pytest.raises(ArgumentError, match="name of another model"):
        recorder.children(adders(1), name="third")
    with pytest.raises(ArgumentError, match="registered as 'third'"):
        recorder.children(three, name="other")


def test_a_shared_module_has_one_slot_that_answers_to_all_its_names() -> None:
    """Both of its calls are in it."""
    shared = Adds(1)
    model = nn.Sequential(shared, nn.Sequential(shared))
    recorder = ForwardOutput(strict=True).modules(model, types=Adds)
    model(torch.zeros(1))
    assert [value.item() for value in recorder["0"]] == [1, 2]
    assert recorder["1.0"] is recorder["0"]


# Asking


def test_positions_names_and_sites() -> None:
    """All of them name the same slot."""
    model = nested()
    recorder = ForwardOutput(strict=True).modules(model)
    model(torch.ones(1, 2))
    assert recorder[3] is recorder[-3] is recorder["1.0"] is recorder["1.0:output"] is recorder[sonde.Site("1.0")]
    assert recorder[0] is recorder["(root)"] is recorder[""]
    assert recorder.samples("1.0") == 1
    assert "1.0" in recorder
    assert "1.5" not in recorder
    assert [len(values) for values in recorder[1:3]] == [1, 1]


def test_wrong_positions_and_names() -> None:
    """An error that is an IndexError and a KeyError alike, and says what there is."""
    recorder = ForwardOutput(strict=True).modules(nested(), types=nn.Linear)
    for key, text in [(3, "there are 3, 0 to 2"), (-4, "no slot -4"), ("1.1", "Nearest: 1.0"), ("0:input", "keeps 0:output")]:
        for ask in (recorder.__getitem__, recorder.samples, recorder.remove):
            with pytest.raises(UnknownSlotError, match=text) as caught:
                ask(key)
            assert isinstance(caught.value, IndexError)
            assert isinstance(caught.value, KeyError)
    with pytest.raises(ArgumentError, match="by position, module name or site"):
        recorder[1.5]  # type: ignore[index]
    with pytest.raises(UnknownSlotError, match="register modules first"):
        ForwardOutput(strict=True)[0]


def test_length_and_iteration_agree_before_any_data() -> None:
    """Three slots are three items, empty."""
    assert list(ForwardOutput(strict=True).children(adders(1, 2, 3))) == [[], [], []]
    assert list(ForwardOutput(reduction=max, strict=True).children(adders(1, 2, 3))) == [None, None, None]


def test_assignment() -> None:
    """Through the recorder, by name and slice, and through ``data``; the list of data cannot be resized."""
    recorder = ForwardOutput(reduction=lambda x, y: x + y, strict=True).children(adders(1, 2, 3))
    recorder[0] = "a"
    recorder["1"] = "b"
    recorder.data[2] = "c"
    assert recorder.data == list(recorder) == ["a", "b", "c"]
    recorder[:2] = [1, 2]
    recorder.data[1:] = [3, 4]
    assert recorder.data == [1, 3, 4]
    with pytest.raises(ArgumentError, match="1 values cannot be assigned to 2 slots"):
        recorder[:2] = [1]
    with pytest.raises(ArgumentError, match=r"recorder.remove\(index\)"):
        recorder.data.pop(0)
    with pytest.raises(ArgumentError, match="assign to 0:output"):
        recorder["0:output[0]"] = 1
    assert torch.equal(torch.stack(ForwardOutput(reduction=max).data or [torch.ones(1)]), torch.ones(1, 1))


def test_an_assigned_value_is_reduced_on() -> None:
    """The next value is added to what was assigned."""
    model = adders(1)
    recorder = ForwardOutput(reduction=lambda x, y: x + y, strict=True).children(model)
    recorder[0] = torch.tensor([100.0])
    model(torch.zeros(1))
    assert recorder[0].item() == 101


def test_apply_changes_what_is_kept() -> None:
    """Both kinds; slots that keep nothing are left out."""
    model = Routed()
    recorder = ForwardOutput(reduction=lambda x, y: x + y, strict=True).children(model.parts)
    for _ in range(4):
        model(torch.zeros(()), (0, 1))
    recorder.apply_sample(lambda data, samples: data / samples)
    assert [value if value is None else value.item() for value in recorder] == [1, 11, None]
    recorder.apply(torch.neg)
    assert recorder[1].item() == -11


def test_apply_that_fails_changes_nothing_and_names_the_slot() -> None:
    """The first slot could be changed, the second not: both are as they were."""
    model = adders(1, 10)
    recorder = ForwardOutput(reduction=lambda x, y: x + y, strict=True).children(model)
    model(torch.zeros(1))

    def half(data: Tensor) -> Tensor:
        if data.item() > 5:
            raise ZeroDivisionError("no")
        return data / 2

    with pytest.raises(ZeroDivisionError, match="no") as caught:
        recorder.apply(half)
    assert caught.value.__notes__ == ["raised for slot 1, 1:output; no slot was changed"]
    assert [value.item() for value in recorder] == [1, 11]


def test_what_was_applied_may_end_the_recording_with_a_clear_error() -> None:
    """A number in place of the list: nothing can be appended, and the number stays."""
    model = adders(1)
    recorder = ForwardOutput().children(model)
    model(torch.zeros(1))
    recorder.apply(len)
    with pytest.warns(ObservationWarning, match=r"slot 0 \(0:output\) was made a int"):
        model(torch.zeros(1))
    assert recorder[0] == 1


# A probe


def test_life_as_a_probe() -> None:
    """In a ``with`` block, detached after it, attached again, deleted: hooks come and go, data stays."""
    model = adders(1)
    with ForwardOutput(strict=True).children(model) as recorder:
        model(torch.zeros(1))
    model(torch.zeros(1))
    assert recorder.samples(0) == 1
    assert not recorder.attached
    recorder.attach()
    model(torch.zeros(1))
    recorder.remove()  # without a position: as every probe's
    model(torch.zeros(1))
    assert recorder.samples(0) == 2
    recorder.reset()
    assert recorder.data == [[]]
    recorder.attach()
    gone = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert gone() is None
    assert len(model[0]._forward_hooks) == 0


def test_an_entered_recorder_sees_its_own_thread() -> None:
    """As every probe in a ``with`` block."""
    model = adders(1)
    with ForwardOutput(strict=True).children(model) as recorder:
        other = threading.Thread(target=model, args=(torch.zeros(1),))
        other.start()
        other.join()
        assert recorder.samples(0) == 0


def broken() -> bool:
    raise RuntimeError("no label")


def test_a_failing_condition_does_not_reach_the_training() -> None:
    """One warning, and the error is kept in ``errors``."""
    model = adders(1)
    recorder = ForwardOutput(broken).children(model)
    with pytest.warns(ObservationWarning, match="ForwardOutput raised RuntimeError at 0:output: no label"):
        model(torch.zeros(1))
    assert str(recorder.errors[0].error) == "no label"
    assert recorder.samples(0) == 0
    model(torch.zeros(1))
    assert [(line.count, line.reason) for line in recorder.coverage()] == [(0, "stopped: RuntimeError: no label")]


@pytest.mark.filterwarnings("error")
def test_the_data_alone_keeps_a_recorder_recording() -> None:
    """The list follows the recorder, of which nothing else is held."""
    model = adders(1, 10)
    everything = ForwardOutput(strict=True).children(model).data
    total = ForwardOutput(reduction=lambda x, y: x + y, strict=True).children(model).data
    gc.collect()
    for _ in range(2):
        model(torch.zeros(1))
    assert [[value.item() for value in values] for values in everything] == [[1, 1], [11, 11]]
    assert [value.item() for value in total] == [2, 22]
    assert torch.stack(total).tolist() == [[2], [22]]


@pytest.mark.filterwarnings("error")
def test_a_recorder_that_nobody_holds_says_that_it_keeps_nothing() -> None:
    """Once, when it is deleted before its model ran; not after its model ran, nor after it was detached."""
    model = adders(1)
    with pytest.warns(ObservationWarning, match="a ForwardOutput was deleted before its model ran.*hold it in a variable"):
        ForwardOutput(strict=True).children(model)
    ForwardOutput(strict=True).children(model).detach()
    recorder = ForwardOutput(strict=True).children(model)
    model(torch.zeros(1))
    del recorder
    assert len(model[0]._forward_hooks) == 0


def test_the_condition_may_be_replaced() -> None:
    """As the seed's attribute."""
    model, condition = adders(1), lambda: False
    recorder = ForwardOutput(condition, strict=True).children(model)
    model(torch.zeros(1))
    assert recorder.condition is condition
    recorder.condition = None
    model(torch.zeros(1))
    assert recorder.samples(0) == 1
    assert recorder.reduction is None


def test_a_failing_condition_is_raised_if_strict() -> None:
    """Into the training, as it is."""
    model = adders(1)
    recorder = ForwardOutput(broken, strict=True).children(model)
    with pytest.raises(RuntimeError, match="no label"):
        model(torch.zeros(1))
    assert recorder.samples(0) == 0


def test_the_table() -> None:
    """A row for each slot; why one is empty, and what stopped the recording."""

    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    model = nn.ModuleDict({"a": Adds(2), "b": Two(), "c": Adds(1)})
    recorder = ForwardOutput(strict=True).children(model)
    for size in (2, 3):
        model["b"](model["a"](torch.zeros(size, 4)))
    lines = [" ".join(line.split()) for line in repr(recorder).splitlines()]
    assert lines[:2] == ["ForwardOutput: 3 slots", "slot layer type samples kept shape mean ± std"]
    assert lines[3:] == [
        "0 a Adds 2 2 tensors 3×4 2.00 ± 0",
        "1 b Two 2 2 tuples of 2 tensors 3×4 (+1) 2.00 ± 0",
        "2 c Adds 0 nothing never called: a branch not taken, or a fused or functional path "
        "(without gradients these two look alike)",
    ]
    assert "2 tuples of 2 tensors" in recorder._repr_html_()
    assert str(recorder) == repr(recorder)
    assert "register modules with" in repr(ForwardOutput())
    frame = recorder.to_frame()
    assert list(frame["samples"]) == [2, 2, 0]
    assert list(frame["site"]) == ["a:output", "b:output", "c:output"]
    assert {"model", "call", "phase", "epoch", "step", "micro_step", "rank"} <= set(frame.columns)


def test_the_table_shows_the_share_of_elements_that_are_no_numbers() -> None:
    """Beside a mean over the finite elements; without a finite element there is no mean."""
    model = nn.Sequential(nn.Identity(), nn.Identity())
    recorder = ForwardOutput(strict=True).children(model)
    model[0](torch.tensor([1.0, torch.nan, 3.0, torch.inf]))
    model[1](torch.tensor([torch.nan]))
    first, second = (" ".join(line.split()) for line in repr(recorder).splitlines()[3:])
    assert "2.00 ± 1.00 (25 % NaN, 25 % inf)" in first
    assert "NaN" in second
    assert recorder.rows()[1]["mean"] is None


def test_the_frame_says_when_a_slot_last_recorded() -> None:
    """After two optimizer steps, in step 2."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = ForwardOutput(strict=True).modules(model)
    for _ in range(3):
        model(torch.ones(1)).sum().backward()
        optimizer.step()
    assert recorder.to_frame()["step"].item() == 2


def test_condition_and_reduction_can_be_replaced_and_are_checked() -> None:
    """The reduction while nothing is kept: else the value in a slot would be neither a list nor a sum."""
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    recorder = ForwardOutput().modules(model)
    recorder.reduction = lambda one, other: one + other
    model(x)
    model(x)
    assert torch.equal(recorder[0], model.forward(x) + model.forward(x))
    with pytest.raises(ArgumentError, match=r"reset\(\) it before"):
        recorder.reduction = None
    recorder.reset()
    recorder.reduction = None
    recorder.condition = lambda: False
    model(x)
    assert recorder.reduction is None
    assert recorder.samples(0) == 0
    recorder.condition = None
    model(x)
    assert torch.equal(recorder[0][0], model.forward(x))
    for word in ("condition", "reduction"):
        with pytest.raises(ArgumentError, match=f"{word}=5 cannot be called"):
            setattr(ForwardOutput(), word, 5)
    with pytest.raises(AttributeError):
        recorder.data_method = "sample"  # type: ignore[misc]
