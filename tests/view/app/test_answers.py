"""Answers say what the rows of a run say: medians and extremes of bins, marks, scales, the layers in order, what was found."""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.view.app.made_runs import LAYERS

from sonde.errors import ArgumentError, SelectionError, UnknownSiteError
from sonde.rows import Layout
from sonde.run.record import Record
from sonde.run.run import open_run
from sonde.run.store.memory_writer import memory_run
from sonde.run.store.open import start_run
from sonde.view.app.answers import layer_pictures, opened_run
from sonde.view.app.answers.against import Against
from sonde.view.app.answers.covered import coverage
from sonde.view.app.answers.distribution import distribution
from sonde.view.app.answers.found import findings
from sonde.view.app.answers.layer_pictures import flow, heatmap, lines, ratio
from sonde.view.app.answers.number_list import numbers
from sonde.view.app.answers.one_layer import layer
from sonde.view.app.answers.opened_run import OpenedRun
from sonde.view.app.answers.overview import overview
from sonde.view.app.answers.questions import answer_text, arguments_of
from sonde.view.app.answers.reduction import BROKEN, INFINITE, MISSING, NAN, NEGATIVE, VALUE, ZERO, Bins, marks_of
from sonde.view.app.answers.two_sides import comparison
from sonde.view.app.followed_runs import FollowedRuns
from sonde.view.scales import Scale


@pytest.fixture
def small(runs: Path) -> OpenedRun:
    return OpenedRun(open_run(runs / "small"))


@pytest.fixture
def defects(runs: Path) -> OpenedRun:
    return OpenedRun(open_run(runs / "deep" / "defects"))


def cells(answer: dict[str, Any], key: str = "values") -> Any:
    """The matrix of a heat-map."""
    kind = np.float32 if key == "values" else np.uint8
    return np.frombuffer(base64.b64decode(answer[key]), kind).reshape(len(answer["sites"]), -1)


def test_a_heatmap_has_the_median_of_each_bin_and_its_edges(small: OpenedRun) -> None:
    """Ten steps 0, 2, ..., 18 in bins of three: the middle one; of the last bin of one step, that."""
    answer = heatmap(small, "rms", columns=4)
    assert answer["sites"] == [f"{name}:output" for name in LAYERS]
    assert answer["kinds"] == ["Linear"] * 3
    assert (answer["steps"], answer["ends"]) == ([0, 6, 12, 18, 20], [4, 10, 16, 18])
    expected = [[10.0**-place * (1 + step) for step in (2, 8, 14, 18)] for place in range(3)]
    assert np.array_equal(cells(answer), np.array(expected, np.float32))
    assert (answer["logged"], answer["range"], answer["unit"]) == (10, [0, 18], "unit of the output")


def test_the_scale_stays_while_a_reader_zooms(small: OpenedRun) -> None:
    whole, part = heatmap(small, "rms"), heatmap(small, "rms", first=3, last=9)
    assert whole["scale"] == part["scale"]
    assert (part["range"], part["logged"], part["reduction"]) == ([4, 8], 3, "")
    assert (whole["scale"]["log"], whole["scale"]["least"], whole["scale"]["most"]) == (True, 0.01, 19.0)


def test_marks_say_nan_infinity_zero_and_what_was_not_recorded(defects: OpenedRun) -> None:
    marks = cells(heatmap(defects, "rms"), "marks")
    assert marks[0].tolist() == [VALUE] * 12
    assert marks[1].tolist() == [VALUE] * 3 + [INFINITE] + [VALUE] * 2 + [NAN] * 6
    assert marks[2].tolist() == [ZERO] * 12
    assert marks[3].tolist() == [MISSING] * 8 + [VALUE] * 4


def test_every_kind_of_number_has_a_mark_of_its_own() -> None:
    """Without rows of defects NaN is a number that was recorded; with them they say what the elements are, and NaN is a gap."""
    values = np.array([1.0, -1.0, 0.0, -0.0, math.nan, math.inf, -math.inf])
    assert marks_of(values).tolist() == [VALUE, VALUE, ZERO, ZERO, NAN, INFINITE, NEGATIVE]
    none = np.zeros(7, np.int8)
    assert marks_of(values, none).tolist() == [VALUE, VALUE, ZERO, ZERO, MISSING, INFINITE, NEGATIVE]
    for code, mark in ((1, INFINITE), (2, BROKEN), (3, NAN)):
        assert marks_of(values, none + np.int8(code)).tolist() == [mark] * 6 + [NEGATIVE]
    assert marks_of(np.array([-math.inf]), np.array([0], np.int8)).tolist() == [NEGATIVE]


def test_the_worst_mark_of_a_bin_wins_and_a_gap_gives_way(defects: OpenedRun) -> None:
    marks = cells(heatmap(defects, "rms", columns=2), "marks")
    assert marks.tolist() == [[VALUE, VALUE], [INFINITE, NAN], [ZERO, ZERO], [MISSING, VALUE]]


@pytest.mark.parametrize("seed", range(3))
def test_bins_equal_a_slow_oracle(seed: int) -> None:
    random = np.random.default_rng(seed)
    steps = np.unique(random.integers(0, 300, 57))
    values = random.lognormal(size=(4, len(steps)))
    values[random.random(values.shape) < 0.3] = np.nan
    values[random.random(values.shape) < 0.05] = np.inf
    values[random.random(values.shape) < 0.05] = -np.inf
    values[random.random(values.shape) < 0.1] = 0
    codes = (random.random(values.shape) < 0.05).astype(np.int8) * random.integers(1, 4, values.shape, dtype=np.int8)
    bins = Bins.of(steps, 20, 280, 7)
    reduced = bins.reduced(values, marks_of(values, codes))
    inside = np.flatnonzero((steps >= 20) & (steps <= 280))
    width = -(-len(inside) // 7)
    order = (MISSING, VALUE, ZERO, NEGATIVE, INFINITE, BROKEN, NAN)
    for place, begin in enumerate(range(0, len(inside), width)):
        columns = inside[begin : begin + width]
        assert (bins.steps[place], bins.ends[place]) == (steps[columns[0]], steps[columns[-1]])
        for row in range(4):
            held = values[row, columns]
            finite = held[np.isfinite(held)]
            expected = (np.median(finite), finite.min(), finite.max()) if len(finite) else (np.nan,) * 3
            found = reduced.middle[row, place], reduced.low[row, place], reduced.high[row, place]
            assert np.allclose(found, expected, rtol=1e-15, atol=0, equal_nan=True)  # a mean of two is rounded once
            worst = max((int(each) for each in marks_of(values, codes)[row, columns]), key=order.index)
            if worst in (VALUE, ZERO):
                worst = ZERO if expected[0] == 0 else VALUE
            assert reduced.marks[row, place] == worst


@pytest.mark.parametrize("seed", range(3))
def test_a_step_that_stands_out_in_its_column_equals_a_slow_oracle(seed: int) -> None:
    """On a logarithmic scale of two decades, with noise, spikes up and down, exact zeros and NaN."""
    random = np.random.default_rng(seed)
    values = 10 ** random.normal(0, 0.05, (5, 60))
    values[0, [7, 33]] = 40.0, 0.02
    values[1, 20], values[2, [5, 41]] = 0.0, np.nan
    values[2, 42], values[3] = 9.0, 10 ** random.uniform(-1, 1, 60)
    values[4, :] = 0.0
    scale = Scale("viridis", 0.1, 10.0, True, "neither")
    bins = Bins.of(np.arange(60), None, None, 10)
    at, shown = bins.reduced(values, marks_of(values)).spikes(scale)
    found = dict(zip(at.tolist(), shown.tolist(), strict=True))

    def log(value: float) -> float:
        return math.log(value) if value else -math.inf

    def far(one: float, other: float) -> float:
        return 0.0 if one == other else abs(log(one) - log(other)) / math.log(100)

    expected = {}
    for row in range(5):
        cells = [values[row, begin : begin + 6] for begin in range(0, 60, 6)]
        reach = [0.0 if np.isnan(held).any() else max(far(float(each), float(np.median(held))) for each in held) for held in cells]
        usual = float(np.median(reach))
        for column, held in enumerate(cells):
            if reach[column] > 1 / 8 and reach[column] > 3 * usual:
                expected[10 * row + column] = max(map(float, held), key=lambda each: far(each, float(np.median(held))))
    assert found == expected
    assert {1, 5, 13} <= found.keys()
    assert (found[1], found[5], found[13]) == (40.0, 0.02, 0.0)
    assert 26 not in found  # its NaN is what the cell shows


@pytest.mark.parametrize("fold", [False, True])
def test_a_heatmap_made_of_pieces_is_the_same_as_made_at_once(monkeypatch: pytest.MonkeyPatch, fold: bool) -> None:
    """With a step that stands out, missing cells, and blocks that are folded."""
    random = np.random.default_rng(0)
    with memory_run() as writer:
        sites = Layout([f"blocks.{place}.{name}:output" for place in range(12) for name in ("a", "b")])
        for step in range(30):
            values = 1.0 + 0.01 * random.random(24)
            values[3] = 50.0 if step == 7 else np.nan if step == 20 else values[3]
            writer.append("moments", sites, {"rms": values}, step=step)
    opened = OpenedRun(writer.run())
    found = []
    for rows in (1000, 1, 5):
        monkeypatch.setattr(layer_pictures, "_ROWS", rows)
        found.append(heatmap(opened, "rms", columns=6, fold=fold))
    assert found[0]["spikes"]["at"]
    assert max(found[0]["folds"]) == (20 if fold else 1)
    assert found[1:] == found[:1] * 2


def test_marks_of_values_without_any_are_one_code_for_all(small: OpenedRun) -> None:
    values = np.array([[1.0, 2.0], [3.0, 1e308]])
    for each in (values, np.array([[np.inf, 1.0]]), np.array([[1e308, 1e308]])):
        slow = [[INFINITE if value == np.inf else VALUE for value in row] for row in each.tolist()]
        assert marks_of(each).tolist() == slow
    assert marks_of(values).strides == (0, 0)
    bins = Bins.of(np.arange(2), None, None, 1)
    assert bins.reduced(values, marks_of(values)).marks.tolist() == [[VALUE], [VALUE]]


def test_single_steps_have_no_spikes(small: OpenedRun) -> None:
    assert heatmap(small, "rms")["spikes"] == {"at": "", "values": ""}


def test_lines_have_the_extremes_so_that_a_spike_never_vanishes(small: OpenedRun) -> None:
    answer = lines(small, "rms", ("head:output", LAYERS[0]), points=2)
    first, second = answer["lines"]
    assert (first["layer"], second["layer"]) == ("head", LAYERS[0])
    assert (second["values"], second["low"], second["high"]) == ([5.0, 15.0], [1.0, 11.0], [9.0, 19.0])
    assert (second["steps"], second["ends"]) == ([0, 10], [8, 18])


def test_flow_takes_the_nearest_logged_step(small: OpenedRun) -> None:
    answer = flow(small, "rms@grad", step=7)
    assert answer["step"] in (6, 8)
    assert answer["values"][0] == 1.0 + answer["step"]
    assert (answer["low"][0], answer["high"][0], answer["middle"][0]) == (1.0, 19.0, 10.0)
    assert answer["steps"] == list(range(0, 20, 2))


def test_the_ratio_is_update_by_weight(small: OpenedRun) -> None:
    answer = ratio(small)
    assert np.array_equal(cells(answer), np.tile(np.array([0.01 * (1 + s) / 10 for s in range(0, 20, 2)], np.float32), (3, 1)))
    assert (answer["usual"], answer["unit"]) == (1e-3, "no unit")


def test_blocks_that_change_alike_are_one_row_with_the_largest_change() -> None:
    """Eight blocks of three layers, each at its own size; the third block stands out at one step, and so is shown."""
    names = [f"h.{block}.{layer}" for block in range(8) for layer in ("a", "b", "c")]
    sizes = np.array([[1.0, 10.0, 100.0] for _ in range(8)]).reshape(-1)
    with memory_run() as writer:
        for step in range(8):
            rms = sizes * np.where(np.arange(24) == 16, 1.5 if step == 4 else 1.0, 1.0)
            rms[7] *= 30.0 if step == 2 else 1.0
            writer.append("moments", Layout([f"{name}:output" for name in names]), {"rms": rms}, step=step)
    answer = heatmap(OpenedRun(writer.run()), "rms", fold=True)
    assert answer["layers"] == [*names[:12], "h.4 to 7"]
    assert answer["folds"] == [1] * 12 + [12]
    assert answer["like"] == [""] * 12 + ["h.3"]
    assert cells(answer)[-1].tolist() == [1.0] * 4 + [1.5] + [1.0] * 3
    assert answer["reference"] == [*sizes[:12].tolist(), 1.0]
    whole = heatmap(OpenedRun(writer.run()), "rms")
    assert whole["layers"] == names
    assert whole["reference"] == sizes.tolist()


def test_change_is_told_against_what_was_before_the_first_finding() -> None:
    """Layers that are wrong for most of a run do not stand for what is usual; a site that comes later has the run's own median."""
    with memory_run() as writer:
        for step in range(20):
            sizes = [1.0 if step < 5 else 1e6, 2.0 if step < 5 else 1e8] + [7.0] * (step > 8)
            sites = ["a:output", "b:output", "c:output"][: len(sizes)]
            writer.append("moments", Layout(sites), {"rms": np.array(sizes)}, step=step)
    grid = OpenedRun(writer.run()).grid("rms")
    assert (grid.before, grid.reference.tolist()) == (None, [1e6, 1e8, 7.0])
    grid = replace(grid, began=5)
    assert (grid.before, grid.reference.tolist()) == (5, [1.0, 2.0, 7.0])
    grid = replace(grid, began=2)  # two steps say too little
    assert (grid.before, grid.reference.tolist()) == (None, [1e6, 1e8, 7.0])


def test_the_steps_without_a_finite_loss_at_the_end_are_said() -> None:
    with memory_run() as writer:
        for step, loss, other in (
            (0, 1.0, math.nan),
            (2, math.nan, math.inf),
            (4, 1.0, math.nan),
            (6, math.inf, 1.0),
            (8, math.nan, 1.0),
        ):
            writer.scalar("loss", loss, step=step)
            writer.scalar("metric", other, step=step)
    found = {each["name"]: each["tail"] for each in overview(OpenedRun(writer.run()))["scalars"]}
    assert found == {"loss": 6, "metric": None}


def test_a_subtree_or_a_pattern_chooses_layers(small: OpenedRun) -> None:
    assert heatmap(small, "rms", layers="blocks.0")["layers"] == ["blocks.0.fc"]
    assert heatmap(small, "rms", layers=r"\.fc$")["layers"] == list(LAYERS[:2])
    with pytest.raises(SelectionError, match="Nearest"):
        heatmap(small, "rms", layers="blosk")
    with pytest.raises(SelectionError, match="no regular expression"):
        heatmap(small, "rms", layers="(")


def test_numbers_come_main_ones_first_and_layers_in_order(small: OpenedRun) -> None:
    answer = numbers(small)
    assert answer["main"] == "moments.rms@output"
    assert answer["ratio"] == "ratio"
    assert not answer["has_powers"]
    assert [each["layer"] for each in answer["layers"]] == list(LAYERS)
    assert answer["layers"][0]["parameters"] == ["blocks.0.fc.weight"]
    assert answer["layers"][0]["depth"] == 3


def test_a_layer_has_its_own_parameters_and_a_parameter_is_a_layer(small: OpenedRun) -> None:
    answer = layer(small, "blocks.1.fc")
    ports = {each["port"] for each in answer["numbers"]}
    assert ports == {"output", "grad", "param", "update"}
    assert (answer["before"], answer["after"], answer["parameters"]) == ("blocks.0.fc", "head", 12)
    of_weight = layer(small, "blocks.1.fc.weight")
    assert {each["port"] for each in of_weight["numbers"]} == {"grad", "param", "update"}
    assert (of_weight["shape"], of_weight["dtype"]) == ("4×3", "float32")
    rms = next(each for each in of_weight["numbers"] if each["number"] == "moments.rms@update")
    assert (rms["last"], rms["low"][0], rms["site"]) == (0.01 * 19, 0.01, "blocks.1.fc.weight:update")


def test_the_overview_has_scalars_settings_and_findings(small: OpenedRun, defects: OpenedRun) -> None:
    answer = overview(small, points=5)
    loss, val_loss, norm, rate = answer["scalars"]
    assert [each["name"] for each in answer["scalars"]] == ["loss", "val_loss", "grad_norm", "lr"]
    assert [each["group"] for each in answer["scalars"]] == ["loss", "loss", "norm", "lr"]
    assert (loss["phase"], val_loss["phase"]) == ("training", "evaluation")
    assert (loss["high"][0], loss["low"][0]) == (1.0, 1 / 3)
    assert norm["unit"] == "loss / unit of the parameter"
    assert rate["values"] == [0.1] * 5
    assert ["lr", "0.1"] in answer["settings"]
    ill = overview(defects)
    assert ill["scalars"][0]["values"][-1] is None
    assert ill["scalars"][0]["marks"][-1] == NAN
    assert ill["findings"][0]["link"] == {"view": "layers", "number": "moments.nan@output", "site": "broken:output", "step": 3}


def test_findings_have_evidence_formula_and_a_picture(defects: OpenedRun) -> None:
    found = findings(defects)["findings"][0]
    assert (found["rule"], found["severity"], found["layer"], found["step"]) == ("nonfinite", "bad", "broken", 3)
    assert found["condition"]
    assert found["advice"]
    assert {"name": "inf", "value": 2.0} in found["evidence"]
    assert found["link"]["view"] == "layers"


LAYERS_OF_THREE = Layout(["0:output", "1:output", "2:output"])


def test_rows_that_nobody_judged_are_judged_when_that_is_asked_for(tmp_path: Path) -> None:
    """The page judges nothing by itself, and never says that such a run is healthy; what is found then is in the record."""
    with start_run(tmp_path / "run") as writer:
        for step in range(4):
            writer.append("moments", LAYERS_OF_THREE, {"rms": [1.0, 1.0 if step < 2 else 1e6, 1.0]}, step=step)
    opened = OpenedRun(open_run(tmp_path / "run"))
    answer = findings(opened)
    assert (answer["findings"], answer["health"], answer["shortfalls"]) == ([], "unknown", ["no step was judged"])
    assert (overview(opened)["findings"], overview(opened)["health"]) == ([], "unknown")
    answer = findings(opened, every=True)
    assert [each["rule"] for each in answer["findings"]] == ["output_growth"]
    assert (answer["health"], answer["shortfalls"], answer["counted"]) == ("bad", [], "1 finding")
    assert overview(opened)["findings"] == answer["findings"]


def test_a_distribution_counts_shares_of_elements() -> None:
    """Of 8 elements, 4 have the power -1, 2 the power 0, one is zero, one NaN."""
    counts = np.zeros(278)
    counts[148], counts[149] = 4, 2
    writer = memory_run()
    for step in range(4):
        writer.append(
            "exponents", Layout(["fc:output"]), {"powers": counts[None], "zeros": [1.0], "nan": [1.0], "inf": [0.0]}, step=step
        )
    answer = distribution(OpenedRun(writer.run()), columns=2)
    assert (answer["site"], answer["sites"], answer["powers"]) == ("fc:output", ["fc:output"], list(range(-27, 19)))
    assert answer["share"] == [[0.0] * 26 + [0.5, 0.25] + [0.0] * 18] * 2
    assert {"power": -24.0, "text": "fp16 least subnormal", "below": False} in answer["limits"]
    assert (answer["zeros"], answer["nonfinite"], answer["steps"]) == ([0.125] * 2, [0.125] * 2, [0, 2, 4])


def test_a_distribution_at_a_step_is_that_of_the_nearest_logged_step_alone() -> None:
    """Half of the elements have the power -1 at step 4, and all of them at step 8; a layer names its sites that were counted."""
    writer = memory_run()
    for step, high in ((4, 4.0), (8, 8.0)):
        counts = np.zeros(278)
        counts[148], counts[149] = high, 8 - high
        writer.append("exponents", Layout(["fc:output", "head:output"]), {"powers": np.stack([counts] * 2)}, step=step)
        writer.append("moments", Layout(["fc:output", "fc:grad_output"]), {"rms": [1.0, 1.0]}, step=step)
    opened = OpenedRun(writer.run())
    for step, share in ((5, [0.5, 0.5]), (7, [1.0, 0.0])):
        answer = distribution(opened, site="fc:output", step=step)
        place = answer["powers"].index(-1)
        assert [each[place : place + 2] for each in answer["share"]] == [share]
        assert answer["ends"] == [4 if step == 5 else 8]
    assert layer(opened, "fc")["powers"] == ["fc:output"]


def beside(name: str, steps: range, layers: tuple[str, ...], factor: float) -> OpenedRun:
    """A run of a size (10 times the factor), a share, a signed number and NaN elements, whose steps and layers are chosen."""
    writer = memory_run()
    for step in steps:
        size = np.full(len(layers), 10.0 * factor * (1 + step))
        size[-1] = 0.0
        nan = np.zeros(len(layers))
        nan[0] = float(step == 6 and factor > 1)
        numbers = {"rms": size, "mean": size - 1, "nan": nan, "inf": nan * 0, "count": nan + 8}
        writer.append("moments", Layout([f"{layer}:output" for layer in layers]), numbers, step=step)
        writer.append("activation", Layout([f"{layers[0]}:output"]), {"death": [0.1 * factor]}, step=step)
        writer.scalar("loss", factor, step=step)
        writer.scalar("accuracy", factor - 2, step=step)
    return OpenedRun(writer.run(), name)


def test_a_run_against_another_is_log2_of_ratios_and_differences_where_both_have_rows() -> None:
    """Three times as large at the steps 4, 6, 8 that both have, in the layers that both have; 0 against 0 is 0, NaN is marked."""
    own, other = beside("own", range(0, 10, 2), ("a", "b", "z"), 3.0), beside("other", range(4, 12), ("new", "b", "a", "z"), 1.0)
    pair = Against(own, other)
    found = heatmap(pair, "rms@output")
    assert found["layers"] == ["a", "b", "z"]
    assert found["ends"] == [4, 6, 8]
    np.testing.assert_allclose(cells(found), [[np.log2(3)] * 3] * 2 + [[0.0] * 3], rtol=1e-6)  # float32
    assert cells(found, "marks").tolist() == [[VALUE, NAN, VALUE], [VALUE] * 3, [VALUE] * 3]
    assert (found["scale"]["low"], found["scale"]["high"], found["scale"]["diverging"]) == (-3, 3, True)
    assert found["label"] == "log₂ of rms / that of other"
    means = flow(pair, "mean@output", step=8)
    assert means["values"] == pytest.approx([3 * 90 - 90.0, 3 * 90 - 90.0, 0.0])
    assert numbers(pair)["matched"] == {"both": 3, "own": 5, "other": 8}
    scalars = {each["name"]: each for each in overview(pair)["scalars"]}
    assert (scalars["loss"]["values"], scalars["loss"]["steps"]) == ([np.log2(3.0)] * 3, [4, 6, 8])
    assert scalars["accuracy"]["values"] == [2.0] * 3  # 1 and -1: no ratio
    assert lines(pair, "rms@output", ("a:output",))["lines"][0]["values"] == [np.log2(3.0), np.log2(3.0), np.log2(3.0)]
    assert numbers(own)["matched"] is None


def test_two_runs_that_differ_in_every_cell_are_shown_as_a_difference() -> None:
    own, other = beside("own", range(4, 10, 2), ("a",), 3.0), beside("other", range(4, 10, 2), ("a",), 1.0)
    found = heatmap(Against(own, other), "death@output")
    np.testing.assert_allclose(cells(found), [[0.3 - 0.1] * 3], rtol=1e-6)  # float32
    assert cells(found, "marks").tolist() == [[VALUE] * 3]


def test_runs_without_a_common_step_or_site_are_not_shown_as_a_difference() -> None:
    own = beside("own", range(0, 4, 2), ("a", "z"), 1.0)
    for steps, layers, said in ((range(1, 5, 2), ("a", "z"), "logged step"), (range(4), ("c", "d"), "site")):
        with pytest.raises(ArgumentError, match=f"no {said} of moments.rms@output is in both runs"):
            heatmap(Against(own, beside("other", steps, layers, 1.0)), "rms@output")


def test_a_run_without_powers_names_the_lens(small: OpenedRun) -> None:
    with pytest.raises(UnknownSiteError, match="ExponentHistogram"):
        distribution(small)


def test_coverage_says_what_is_missing() -> None:
    writer = memory_run()
    writer.append("moments", Layout(["fc:output"]), {"rms": [1.0]}, step=0)
    assert coverage(OpenedRun(writer.run()))["sites"] is None
    writer.document("coverage", {"sites": 2, "observed": 1, "missing": [{"site": "a:output", "reason": "no call"}], "notes": [1]})
    answer = coverage(OpenedRun(writer.run()))
    assert (answer["sites"], answer["missing"], answer["notes"]) == (2, [{"site": "a:output", "reason": "no call"}], [])


def test_a_run_equals_itself(small: OpenedRun) -> None:
    answer = comparison(small, small)
    assert answer["identical"]
    assert (answer["first"], answer["partings"], answer["layers"]) == (None, [], [])


@pytest.mark.parametrize("most", [2_000_000, 20, 0])
def test_a_run_that_grows_gives_what_a_fresh_reading_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """The second answer reads only the last steps again; a new layer, and new defects, are in it, with 7 digits, too."""
    monkeypatch.setattr(opened_run, "_EXACT", most)
    from sonde.run.store.open import start_run

    with start_run(tmp_path / "run") as writer:
        kept = OpenedRun(writer.run(), "run", "0")
        for begin in (0, 6, 9):
            for step in range(begin, begin + 6):
                sites = ["a:output", "b:output"] + (["new:output"] if step > 8 else [])
                rms, nan = np.arange(len(sites)) + float(step), (np.arange(len(sites)) == step % 3).astype(float)
                if step >= begin + (0 if begin < 9 else 3):
                    writer.append("moments", Layout(sites), {"rms": rms, "nan": nan}, step=step)
            writer.flush()
            kept = OpenedRun(kept.run, "run", str(begin), kept.numbers)
            grown, fresh = heatmap(kept, "rms"), heatmap(OpenedRun(open_run(tmp_path / "run")), "rms")
            assert grown == fresh
            values = kept.grid("rms").matrix.values
            assert values.dtype == (np.float32 if values.size > most else np.float64)
    assert grown["sites"][-1] == "new:output"


def test_a_large_number_has_seven_digits_and_a_difference_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs differ by 2^-40, which is nothing in seven digits."""
    monkeypatch.setattr(opened_run, "_EXACT", 0)
    runs = []
    for name, size in (("a", 1 / 3), ("b", (1 / 3) * (1 + 2.0**-40))):
        with memory_run() as writer:
            writer.append("moments", Layout(["fc:output"]), {"rms": [size]}, step=0)
        runs.append(OpenedRun(writer.run(), name))
    (value,) = flow(runs[0], "rms")["values"]
    assert value == np.float32(1 / 3)
    (difference,) = flow(Against(*runs), "rms")["values"]
    assert difference == pytest.approx(-(2.0**-40) / math.log(2), rel=1e-3)


def test_unknown_names_are_said_with_the_nearest(small: OpenedRun) -> None:
    with pytest.raises(UnknownSiteError, match=r"moments\.rms@output"):
        heatmap(small, "rsm@output")
    with pytest.raises(UnknownSiteError, match="Nearest: head:output"):
        lines(small, "rms", ("haed:output",))
    with pytest.raises(ArgumentError, match="The nearest are"):
        heatmap(small, "rms", first=100, last=200)
    with pytest.raises(UnknownSiteError, match="heatmap"):
        answer_text("heatmpa", small, [])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ([], "lacks 'number'"),
        ([("number", "rms"), ("colums", "3")], "Nearest: columns"),
        ([("number", "rms"), ("columns", "many")], "whole number"),
        ([("number", "rms"), ("columns", "9" * 30)], "out of range"),
    ],
)
def test_a_query_that_cannot_be_read_is_said(query: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        arguments_of(heatmap, query)


def test_numbers_that_are_true_or_false_are_shares() -> None:
    """A lens of the user's own may record them; of two calls in one step the mean is shown."""
    writer = memory_run()
    writer.append("mine", Layout(["fc:output"] * 2, call=[0, 1]), {"flag": [True, False]}, step=0)
    opened = OpenedRun(writer.run())
    assert cells(heatmap(opened, "flag")).tolist() == [[0.5]]
    assert layer(opened, "fc")["numbers"][0]["last"] == 0.5


def test_an_alert_has_its_evidence_and_the_step_where_it_began() -> None:
    writer = memory_run()
    writer.append("moments", Layout(["fc:output"]), {"rms": [1.0]}, step=8)
    evidence = {"dead": 0.9, "limit": 0.25}
    writer.alert(
        "fc: 90 % dead", step=8, rule="dead", site="fc:output", call=1, first_step=5, evidence=evidence, advice="look here"
    )
    (found,) = findings(OpenedRun(writer.run()))["findings"]
    assert (found["step"], found["first_step"], found["call"], found["advice"]) == (8, 5, 1, "look here")
    assert found["evidence"] == [{"name": "dead", "value": 0.9}, {"name": "limit", "value": 0.25}]


def test_a_loss_has_the_value_of_its_last_step_and_not_a_median() -> None:
    """Seven steps in two bins; in a part, the last step of the part."""
    with memory_run() as writer:
        for step in range(7):
            writer.scalar("loss", float("nan") if step == 6 else 10.0 - step, step=step)
    opened = OpenedRun(writer.run())
    (whole,) = overview(opened, points=2)["scalars"]
    assert (whole["last"], whole["last_mark"]) == (None, NAN)
    (part,) = overview(opened, last=5, points=2)["scalars"]
    assert (part["last"], part["last_mark"], part["values"][-1]) == (5.0, VALUE, 6.0)


def test_a_layer_has_its_values_at_the_step_that_is_asked_for(small: OpenedRun) -> None:
    """Step 9 was not logged: of 8 and 10 the first."""
    found = next(each for each in layer(small, "head", step=9)["numbers"] if each["number"] == "moments.rms@output")
    assert (found["shown_step"], found["shown"], found["shown_mark"], found["last"]) == (8, 0.01 * 9, VALUE, 0.01 * 19)
    assert "shown" not in layer(small, "head")["numbers"][0]


def test_all_rows_are_said_to_be_lost_only_where_none_is_left() -> None:
    assert [Record(rows=1000, lost_rows=lost).losses() for lost in (1, 999, 1000)] == [
        [f"{share} % of rows lost"] for share in (1, 99, 100)
    ]


def test_rows_that_could_not_be_written_are_told_by_every_answer(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        writer.append("moments", Layout([f"{name}:output" for name in "abcd"]), {"rms": [1.0] * 4}, step=0)
        writer.lost += 3  # as where there was no room for them
    opened = OpenedRun(open_run(tmp_path / "run"))
    for answer in (coverage(opened), overview(opened), FollowedRuns(tmp_path).entries()[0]):
        assert answer["lost"] == ["75 % of rows lost"]
