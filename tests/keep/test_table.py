"""The table that a tracker shows: a row per layer in execution order, and words where something is notable."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.keep.layers import Layer, layers_of
from sonde.testing import assert_healthy
from sonde.view import plots


class Apply(nn.Module):
    """Any function of one tensor as a layer."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Page(HTMLParser):
    """Checks that every tag is closed in order, and collects the rows of the table as texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.caption = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data
        elif "caption" in self.open:
            self.caption += data


def run(model: nn.Module, x: Any, *, backward: bool = True, **how: Any) -> sonde.Tracker:
    with sonde.track(model, strict=True, **how) as tracker:
        output = model(x)
        if backward:
            output.sum().backward()
    return tracker


def notes(tracker: sonde.Tracker) -> dict[str, str]:
    """The last column, by layer, as the HTML has it."""
    return {row[0]: row[-1] for row in Page(tracker._repr_html_()).rows[1:] if len(row) > 2}


def layer(tracker: sonde.Tracker, name: str) -> Layer:
    return next(found for found in layers_of(tracker) if found.name == name)


def dead_linear(dead: int, units: int) -> nn.Linear:
    """A layer whose first *dead* units are far below zero and the others far above, whatever comes in."""
    linear = nn.Linear(4, units)
    with torch.no_grad():
        linear.bias[:dead] = -100.0
        linear.bias[dead:] = 100.0
    return linear


def small_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


# Numbers


def test_numbers_equal_plain_torch() -> None:
    """Mean, spread, zeros and the size of the gradient of each layer are those of the tensors themselves."""
    model = small_net()
    x = torch.randn(10, 4)
    tracker = run(model, x)
    hidden = model[0](x)
    active = hidden.relu()
    out = model[2](active)
    gradients = torch.autograd.grad(out.sum(), [hidden, active, out])
    for name, value, gradient in zip("012", (hidden, active, out), gradients, strict=True):
        seen = layer(tracker, name)
        assert seen.output is not None
        assert seen.gradient is not None
        wide = value.detach().double()
        assert seen.output.mean == pytest.approx(float(wide.mean()))
        assert seen.output.std == pytest.approx(float(wide.std(correction=0)))
        assert seen.output.zeros == int((wide == 0).sum())
        assert seen.gradient.rms == pytest.approx(float(gradient.double().square().mean().sqrt()))


def test_printed_numbers_are_those_numbers() -> None:
    """The text of a row shows shape, mean, spread, share of zeros and gradient, rounded."""
    values = torch.tensor([[0.0, 2.0], [0.0, 4.0]])
    gradient = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    model = Apply(lambda x: x * 1)
    with sonde.track(model) as tracker:
        model(values.clone().requires_grad_()).backward(gradient)
    row = next(line for line in repr(tracker).splitlines() if line.startswith("(root)"))
    assert re.search(r"Apply +2×2 +1\.50 ± 1\.66 +50 % +\S+ +5\.0e\+00", row)  # std of 0 0 2 4 is 1.658, the norm of 3 0 0 4 is 5


def test_several_calls_are_one_row_with_all_their_numbers() -> None:
    """A module that is called twice has one row, its calls counted and its numbers over both outputs."""
    lin = nn.Linear(4, 4)
    model = nn.Sequential(lin, lin)
    x = torch.randn(5, 4)
    seen = layer(run(model, x), "0")
    both = torch.cat([lin(x), lin(lin(x))]).detach().double()
    assert (seen.calls, seen.shape) == (2, "5×4")
    assert seen.output is not None
    assert seen.output.mean == pytest.approx(float(both.mean()))
    assert seen.output.std == pytest.approx(float(both.std(correction=0)))


class SharedActivation(nn.Module):
    """Three calls of one ReLU; the third one is fed by a layer that is far below zero."""

    def __init__(self) -> None:
        super().__init__()
        self.alive, self.low, self.act = nn.Linear(4, 8), dead_linear(8, 8), nn.ReLU()

    def forward(self, x: Tensor) -> Any:
        return self.act(self.alive(x)), self.act(-self.alive(x)), self.act(self.low(x))


def test_a_module_that_is_dead_in_one_of_its_calls_is_said_to_be_dead_there() -> None:
    """All calls together have no unit that is zero throughout."""
    torch.manual_seed(0)
    model, x = SharedActivation(), torch.randn(64, 4)
    found = layer(run(model, x, backward=False), "act")
    assert found.dead == 0
    assert [found.by_call[call].dead for call in range(3)] == [0, 0, 1]
    assert [(finding.message, finding.call, finding.severity) for finding in found.findings] == [("100 % dead in call 2", 2, "bad")]
    assert found.output is not None
    assert found.output.count == sum(each.moments.count for each in found.by_call.values()) == 3 * 64 * 8
    assert "100 % dead in call 2" in repr(sonde.summary(model, x))
    with pytest.raises(AssertionError, match=r"act \(ReLU\): 100 % dead in call 2"):
        assert_healthy(model, x)


def test_calls_after_the_eighth_are_judged_together() -> None:
    act = nn.ReLU()
    model = Apply(lambda x: [act(x) for _ in range(8)] + [act(x - 100), act(x - 200)])
    model.act = act
    found = layer(run(model, torch.rand(16, 4) + 1, backward=False), "act")
    assert [finding.message for finding in found.findings] == ["100 % dead in call 8 or later"]


def test_all_calls_dead_are_told_once() -> None:
    act = nn.ReLU()
    model = Apply(lambda x: (act(x), act(x)))
    model.act = act
    assert [finding.message for finding in layer(run(model, -torch.ones(16, 4), backward=False), "act").findings] == ["100 % dead"]


def test_an_empty_batch_is_said_to_have_no_elements() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    tracker = run(model, torch.empty(0, 4))
    assert notes(tracker) == {"0": "no elements", "1": "no elements", "(root)": "no elements; same tensor as 1"}
    assert "NaN" not in repr(tracker)
    assert repr(sonde.summary(model, torch.empty(0, 4))).count("no elements") == 3
    with sonde.watch(model, every=1, to="memory", verbose=False) as inspector:
        model(torch.empty(0, 4)).sum().backward()
        inspector.step()
    shown = repr(plots.table(inspector.run))
    assert "NaN" not in shown
    assert shown.count("no elements") == 2


def test_recomputed_outputs_are_not_counted_twice() -> None:
    """Checkpointing runs a layer again; its row counts one call and says so."""
    body = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model = Apply(lambda x: torch.utils.checkpoint.checkpoint(model.body, x, use_reentrant=False))
    model.body = body
    tracker = run(model, torch.randn(3, 4))
    seen = layer(tracker, "body.0")
    assert seen.calls == 1
    assert seen.output is not None
    assert seen.output.count == 12
    assert "recomputed" in notes(tracker)["body.0"]


def test_the_row_speaks_of_one_tensor_of_several() -> None:
    """Of an output of two tensors, output and gradient columns are about the same one; the others are counted."""
    lin = nn.Linear(4, 3)
    model = nn.Sequential(lin, Apply(lambda y: (y * 2, y * 3)))
    with sonde.track(model) as tracker:
        model(torch.ones(2, 4))[1].sum().backward()
    seen = layer(tracker, "1")
    assert seen.shape == "2×3 (+1)"
    assert seen.gradient is None  # nothing used the first tensor, whose numbers the row shows


# Rows


def test_rows_are_in_execution_order() -> None:
    """Rows come in the order in which modules first returned, children before their container."""
    model = small_net()
    model.late = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    lines = repr(run(model, torch.ones(9, 4))).splitlines()
    assert [line.split()[0] for line in lines[3:9]] == ["0", "1", "2", "late.0", "late.1", "late"]
    assert lines[9].startswith("(root)")


def test_title_counts_stashes_and_modules() -> None:
    """The first line says how much was kept and whether the tracker is attached."""
    model = small_net()
    tracker = sonde.track(model)
    model(torch.ones(1, 4))
    assert repr(tracker).splitlines()[0] == "Tracker: 4 stashes of 4 modules"
    tracker.unregister()
    assert repr(tracker).splitlines()[0] == "Tracker: 4 stashes of 4 modules (detached)"


def test_an_empty_tracker_says_so() -> None:
    """Before the first forward the table says that nothing is there and what to do."""
    with sonde.track(small_net()) as tracker:
        for text in (repr(tracker), tracker._repr_html_()):
            assert "nothing yet" in text
            assert "call the model" in text
    assert Page(tracker._repr_html_()).tags >= {"table", "caption"}


def test_a_failed_tracker_does_not_ask_to_call_the_model() -> None:
    """When ``stash_value`` raised at once, the empty table gives the error as the reason."""

    def broken(tensor: Tensor) -> Tensor:
        raise ValueError("no copy")

    model = small_net()
    with pytest.warns(sonde.errors.ObservationWarning), sonde.track(model, stash_value=broken) as tracker:
        model(torch.ones(1, 4))
    assert "no copy" in repr(tracker)
    assert "call the model" not in repr(tracker)


def test_modules_that_were_not_called_are_in_the_footer() -> None:
    """A tracked module without an event is named below the table."""
    model = small_net()
    model.forward = model[0].__call__  # type: ignore[method-assign]
    assert "not seen: 1, 2" in repr(run(model, torch.ones(9, 4)))


# Words


def test_dead_units() -> None:
    """``63 % dead in a batch``: 5 of 8 units are zero for every sample; the bar beside the zeros shows the same share."""
    model = nn.Sequential(dead_linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    tracker = run(model, torch.randn(16, 4))
    assert notes(tracker)["1"] == "63 % dead in a batch"
    assert layer(tracker, "1").dead == 5 / 8
    assert "dead" not in notes(tracker)["0"]


def test_dead_channels_of_images() -> None:
    """The units of an image are its channels."""
    relu = nn.ReLU()
    x = torch.ones(2, 4, 3, 3)
    x[:, 1:] = -1.0
    assert layer(run(relu, x, backward=False), "").dead == 3 / 4


def test_few_samples_say_nothing_about_dead_units() -> None:
    """Zeros in two samples are zeros, not dead units."""
    model = nn.Sequential(dead_linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    tracker = run(model, torch.randn(2, 4))
    assert layer(tracker, "1").dead is None
    assert "dead" not in notes(tracker)["1"]


def test_not_finite() -> None:
    """``not finite: 3 NaN, 1 inf`` counts them, and the numbers beside it are those of the rest."""

    def spoil(x: Tensor) -> Tensor:
        bad = torch.zeros_like(x)
        bad[0, :3] = float("nan")
        bad[1, 0] = float("inf")
        return x + bad

    model = nn.Sequential(nn.Linear(4, 4), Apply(spoil))
    x = torch.randn(3, 4)
    tracker = run(model, x, backward=False)
    seen = layer(tracker, "1").output
    assert notes(tracker)["1"] == "not finite: 3 NaN, 1 inf"
    assert seen is not None
    expected = model[1](model[0](x)).detach()
    assert seen.mean == pytest.approx(float(expected[expected.isfinite()].mean()))


def test_gradient_not_finite() -> None:
    """An infinite gradient is called so at the layer it arrives at."""
    model = nn.Sequential(nn.Linear(4, 4), Apply(lambda x: (x * 0).sqrt()))
    tracker = run(model, torch.randn(3, 4))
    assert "gradient not finite" in notes(tracker)["0"]


def test_gradient_against_the_median() -> None:
    """``gradient 400 x the median``, and 1/5,000 of it, measured over the layers."""
    large = nn.Sequential(*[Apply(lambda x, by=by: x * by) for by in (1.0, 400.0, 1.0, 1.0)])
    tracker = run(large, torch.randn(3, 4, requires_grad=True))
    assert notes(tracker)["0"] == "gradient 400 x the median"
    assert "median" not in notes(tracker)["2"]
    small = nn.Sequential(*[Apply(lambda x, by=by: x * by) for by in (1.0, 1 / 5000, 1.0, 1.0)])
    assert notes(run(small, torch.randn(3, 4, requires_grad=True)))["0"] == "gradient 1/5,000 of the median"


def test_all_zero_and_zero_gradient() -> None:
    """A layer that returns only zeros is ``all zero``; one whose gradient is zero everywhere has ``gradient is zero``."""
    model = nn.Sequential(nn.Linear(4, 4), Apply(lambda x: x * 0.0), nn.Linear(4, 4))
    tracker = run(model, torch.randn(2, 4))
    assert "all zero" in notes(tracker)["1"]
    assert "gradient is zero" in notes(tracker)["0"]


def test_no_gradient_where_nothing_used_the_output() -> None:
    """A layer that the loss does not depend on has ``no gradient``; without any backward nobody has."""
    model = Apply(lambda x: (model.used(x), model.unused(x))[0])
    model.used, model.unused = nn.Linear(4, 2), nn.Linear(4, 2)
    tracker = run(model, torch.randn(2, 4))
    assert notes(tracker)["unused"] == "no gradient"
    assert notes(tracker)["used"] == ""
    assert "no gradient" not in repr(run(model, torch.randn(2, 4), backward=False))


def test_constant_and_saturated() -> None:
    """A layer of one value is ``constant``; a tanh near its limits says how much of it is saturated."""
    model = nn.Sequential(nn.Linear(4, 4), Apply(lambda x: x * 0 + 2.0), nn.Sequential(dead_linear(4, 8), nn.Tanh()))
    tracker = run(model, torch.randn(9, 4))
    assert "constant" in notes(tracker)["1"]
    assert "100 % saturated" in notes(tracker)["2.1"]


def test_the_same_tensor() -> None:
    """A container that returns its child's tensor says whose, and a layer that returns what it was given says that."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 2), nn.Sigmoid()), nn.Identity())
    tracker = run(model, torch.randn(9, 4))
    said = notes(tracker)
    assert "same tensor as" in said["0"]
    assert layer(tracker, "0").same_as == "0.1"
    assert said["1"] == "returns its input"
    assert said["0.1"] == ""
    assert layer(tracker, "").same_as in ("0.1", "1")


def test_the_same_tensor_in_a_tuple() -> None:
    """A container whose first output is a child's tensor says so also if that child did not return last."""
    model = Apply(lambda x: (model.a(x), model.b(x)))
    model.a, model.b = nn.Linear(4, 2), nn.Linear(4, 2)
    assert layer(run(model, torch.randn(9, 4), backward=False), "").same_as == "a"


def test_an_lstm_does_not_return_its_input() -> None:
    """A PackedSequence goes in and out with the same batch sizes, but its data are new."""
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(2, 5, 4), torch.tensor([5, 3]), batch_first=True)
    tracker = run(nn.LSTM(4, 3, batch_first=True), packed, backward=False)
    assert layer(tracker, "").shape.startswith("8×3")
    assert "returns its input" not in notes(tracker)["(root)"]


def test_numbers_kept_in_place_of_tensors_are_shown() -> None:
    """With ``stash_value=lambda t: t.std().item()`` the rows show the kept numbers."""
    model = nn.Sequential(nn.Linear(4, 3), Apply(lambda y: {"y": y * 2}))
    x = torch.randn(50, 4)
    tracker = run(model, x, backward=False, stash_value=lambda tensor: tensor.std().item())
    expected = float(model[0](x).detach().std())
    assert layer(tracker, "0").value == pytest.approx(expected)
    assert layer(tracker, "1").value == pytest.approx(2 * expected, rel=1e-5)


@pytest.mark.parametrize("make", [lambda x: x > 0, lambda x: x.argmax(1), lambda x: None, lambda x: "text"])
def test_outputs_without_numbers_have_a_row(make: Callable[[Tensor], Any]) -> None:
    """Bools, integers, nothing and texts are rows without numbers and without remarks."""
    tracker = run(Apply(make), torch.randn(9, 4), backward=False)
    assert notes(tracker) == {"(root)": ""}


# HTML


def test_html_has_the_same_cells_as_the_text() -> None:
    """The page is well-formed and holds the rows, headings and footer of the text."""
    tracker = run(small_net(), torch.randn(9, 4))
    page = Page(tracker._repr_html_())
    text = repr(tracker)
    assert page.caption == text.splitlines()[0]
    assert page.rows[0][:3] == ["layer", "type", "output"]
    assert [row[0] for row in page.rows[1:5]] == ["0", "1", "2", "(root)"]
    for row in page.rows:
        for cell in row:
            assert cell.replace("\xa0", " ").strip() in text


def test_html_escapes_names() -> None:
    """A module or class with markup in its name is shown as text."""
    kind = type("Odd<i>&amp;", (Apply,), {})
    model = nn.Sequential()
    model.add_module("<script>alert('x')</script>", kind(lambda x: x * 2))
    page = Page(run(model, torch.randn(3, 4), backward=False)._repr_html_())
    assert page.rows[1][:2] == ["<script>alert('x')</script>", "Odd<i>&amp;"]
    assert "script" not in page.tags
